//! Unclean elections (rule E7): what both kinds have in common, and the kind that a topic asks for by `unclean.leader.election.enable`.
//!
//! It decides nothing: `core::loss` and `core::election` do. Without an order and without that setting nothing here changes anything.

use crate::alive;
use crate::broker::Broker;
use crate::catalog::Local;
use crate::manifests::decode_root;
use crate::partitions::messages::ShardMsg;
use millpond_core::election::{Holds, best_of_the_rest, candidates, vacant};
use millpond_core::loss::{self, Evidence};
use millpond_core::records::{Leader, PartitionRecord, TopicState};
use millpond_core::replica::{Live, Visible};
use millpond_core::rules::Rules;
use millpond_core::topic_config::TopicConfig;
use millpond_log::manifest::ManifestRoot;
use millpond_log::{Offset, PartitionId, Rid};
use millpond_metadata::keys::Key;
use millpond_metadata::kv::Revision;
use millpond_metadata::store::{Image, Outcome, Session, Store, StoreError, UncleanElection, Versioned};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// What is on record of an election that a topic asked for.
const CAUSE: &str = "no replica that held everything was alive, and the topic allows unclean elections";

/// Pause before an election that is not settled is sent again.
const RETRY: Duration = Duration::from_millis(200);

/// A log on this broker, read up to the newest manifest.
pub(crate) struct OwnLog {
    pub(crate) visible: Visible,
    /// Revision of the manifest's root.
    pub(crate) tier_root: Revision,
}

/// A partition that nobody leads and nobody may (rule E2), of a topic that asks for a leader all the same.
pub(crate) struct Forsaken {
    partition: PartitionId,
    seen: Versioned<PartitionRecord>,
    live: Vec<Live>,
    /// What else that rests on: the topic's settings, and that nobody who may lead is alive.
    also: Vec<(Key, Revision)>,
    /// Whether replicas that are alive but do not answer are passed over.
    pub(crate) hurried: bool,
}

/// The partitions with a replica here that are forsaken.
pub(crate) fn forsaken(image: &Image, session: Session) -> Vec<Forsaken> {
    let me = Live { rid: session.rid, inc: session.inc };
    let found = |(id, seen): (&PartitionId, &Versioned<PartitionRecord>)| {
        let live = alive::live(&seen.value, &image.sessions);
        if !live.contains(&me) || !vacant(&seen.value, &live) || !candidates(&seen.value, &live, Rules::ALL).is_empty()
        {
            return None;
        }
        let topic = image.topics.get(&id.topic).filter(|topic| topic.value.state == TopicState::Active)?;
        let config = TopicConfig::from_overrides(&topic.value.config).ok()?;
        let brokers = seen.value.isr.iter().chain(&seen.value.elr).map(|rid| rid.broker);
        let session = |broker| {
            let revision = image.sessions.get(&broker).map_or(Revision::ABSENT, |session| session.revision);
            (Key::BrokerSession(broker), revision)
        };
        // Rule K3. What this broker's own session is, is compared in any case.
        let others = brokers.filter(|broker| *broker != me.rid.broker).map(session);
        let also = std::iter::once((Key::Topic(id.topic), topic.revision)).chain(others).collect();
        let forsaken = Forsaken { partition: *id, seen: seen.clone(), live, also, hurried: false };
        config.unclean_leader_election.then_some(forsaken)
    };
    image.partitions.iter().filter_map(found).collect()
}

impl Forsaken {
    /// Which record it is.
    pub(crate) fn record(&self) -> (PartitionId, Revision) {
        (self.partition, self.seen.revision)
    }
}

impl Broker {
    /// The log here, if it was opened by the manifest that holds; `None` if the manifest has moved since.
    pub(crate) async fn own_log(&self, partition: PartitionId, local: &Local) -> Result<Option<OwnLog>, StoreError> {
        let root = self.inner().store.tier_root(partition).await?;
        let view = local.view.borrow().clone();
        let root = decode_root(partition, root.as_ref()).ok();
        // Rule C1: a winner that does not know the log start could write below it.
        let knows = |root: &ManifestRoot| {
            root.seq == view.manifest.seq
                && root.log_start == view.visible.log_start
                && root.tiered_end <= view.visible.end
        };
        let root = root.filter(|root| knows(&root.value));
        Ok(root.map(|root| OwnLog { visible: view.visible, tier_root: root.revision }))
    }

    /// Runs an unclean election until it is settled, and tells the replica here of it if it holds.
    pub(crate) async fn elect_unclean(
        &self,
        session: &Session,
        election: &UncleanElection,
        local: &Local,
    ) -> Result<Outcome, StoreError> {
        let partition = election.partition;
        let _stands = Stands::begin(partition, local);
        // What a push has changed since this was decided would make the record of the loss untrue.
        let (reply, held) = oneshot::channel();
        let partitions = Arc::from([partition]);
        // A shard that is gone ends the broker.
        let _ = local.shard.send(ShardMsg::Holds { partitions, reply });
        let held = held.await.ok().and_then(|held| held.first().map(|(_, held)| held.durable));
        if held != Some(election.acceptance.loss.end) {
            return Ok(Outcome::Conflict);
        }
        let outcome = settle(&self.inner().store, session, election).await?;
        if let Outcome::Committed { revision } = outcome {
            self.metrics().unclean_elections.add(1, &[]);
            let loss = &election.acceptance.loss;
            tracing::warn!(
                %partition,
                epoch = %loss.epoch,
                end = %loss.end,
                known_end = %loss.known_end,
                cause = loss.cause,
                "an unclean election: this broker leads what is left"
            );
            self.forget_damage([partition]).await;
            let seen = Versioned { value: election.acceptance.next.clone(), revision };
            self.inner().alive.assign(&local.shard, partition, &seen);
        }
        Ok(outcome)
    }

    /// Has this broker lead the forsaken partitions of which it holds more than the others that are alive: they look for themselves.
    /// Returns those whose log here has to be read again first, since the manifest has moved.
    pub(crate) async fn lead_forsaken(&self, session: Session, forsaken: Vec<(Forsaken, Local)>) -> Vec<PartitionId> {
        let (mut outdated, mut open) = (Vec::new(), Vec::new());
        for (found, local) in forsaken {
            // It has heard of a later epoch than the image shows, perhaps of its own office: nothing is forsaken, and to open a replica
            // again that leads would have it take the same office twice, by a record that has moved since (rules R2, I3).
            if local.view.borrow().visible.epoch > found.seen.value.epoch {
                continue;
            }
            match self.own_log(found.partition, &local).await {
                Ok(Some(log)) => open.push((found, local, log)),
                Ok(None) => outdated.push(found.partition),
                Err(error) => {
                    tracing::warn!(%error, "an unclean election waits for the metadata store");
                    return outdated;
                }
            }
        }
        let asked: Vec<(PartitionId, &[Live])> =
            open.iter().map(|(found, ..)| (found.partition, found.live.as_slice())).collect();
        let answers = self.ask_once(asked.iter().map(|(partition, live)| (partition, live))).await;
        let nothing = BTreeMap::new();
        for (found, local, log) in &open {
            let held = answers.get(&found.partition).unwrap_or(&nothing);
            let Some(election) = decide(session, found, log, held) else { continue };
            match self.elect_unclean(&session, &election, local).await {
                // Somebody else was faster, or is back; or this broker's session is gone.
                Ok(_) => {}
                Err(error) => tracing::warn!(partition = %found.partition, %error, "an unclean election failed"),
            }
        }
        outdated
    }
}

/// Sends an unclean election until it is settled (rule K5): what was sent and not answered may arrive as long as nothing has moved, and an
/// error of a later try says nothing of it.
async fn settle(store: &Store, session: &Session, election: &UncleanElection) -> Result<Outcome, StoreError> {
    let mut sent = false;
    loop {
        match store.accept_loss(session, election).await {
            Ok(Outcome::Unknown) => sent = true,
            Err(StoreError::Unavailable(_)) if sent => {}
            settled => return settled,
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// A replica here that stands for an unclean election: until it is settled, whoever led before may still push, and could cut the very
/// records for which it is elected (rule R6). What it refuses meanwhile is pushed again.
struct Stands<'a> {
    partition: PartitionId,
    local: &'a Local,
}

impl<'a> Stands<'a> {
    fn begin(partition: PartitionId, local: &'a Local) -> Stands<'a> {
        // A shard that is gone ends the broker.
        let _ = local.shard.send(ShardMsg::Stand { partition, stands: true });
        Stands { partition, local }
    }
}

impl Drop for Stands<'_> {
    /// If it won, its shard has heard of that before.
    fn drop(&mut self) {
        let _ = self.local.shard.send(ShardMsg::Stand { partition: self.partition, stands: false });
    }
}

/// The election of this broker, if it holds the most.
fn decide(session: Session, found: &Forsaken, log: &OwnLog, held: &BTreeMap<Rid, Holds>) -> Option<UncleanElection> {
    let Forsaken { partition, seen, live, also, hurried } = found;
    let OwnLog { visible, tier_root } = log;
    if !hurried && live.iter().any(|live| !held.contains_key(&live.rid)) {
        return None;
    }
    let best = best_of_the_rest(&seen.value, live, held, visible.tiered_end)?;
    let own = held.get(&session.rid)?;
    // What it said of itself is what it goes on from.
    if best.rid != session.rid || own.durable != visible.end {
        return None;
    }
    let known_end = held.values().map(|held| held.known_end.max(held.hw)).max().unwrap_or(Offset(0));
    let evidence = Evidence {
        leader: Leader { rid: session.rid, inc: session.inc },
        epoch_seen: visible.epoch,
        end: visible.end,
        tiered_end: visible.tiered_end,
        known_end,
        cause: CAUSE.to_owned(),
    };
    let acceptance = match loss::give_up(&seen.value, live, evidence) {
        Ok(acceptance) => acceptance,
        Err(refusal) => {
            tracing::error!(%partition, %refusal, "no unclean election");
            return None;
        }
    };
    let (record, tier_root) = (seen.revision, *tier_root);
    Some(UncleanElection { partition: *partition, record, tier_root, also: also.clone(), acceptance })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faulted::{Fault, Faulted};
    use millpond_core::records::SessionRecord;
    use millpond_log::{BrokerId, Incarnation, LeaderEpoch, Lsn, TopicId, WalGen};
    use millpond_metadata::embedded::Embedded;
    use millpond_metadata::keys::Keys;
    use millpond_metadata::kv::{BoxFuture, Kv, KvError, Txn, TxnOutcome};
    use millpond_metadata::store::{CreateOutcome, NewTopic, Placement, Registered, Registration};
    use std::sync::Mutex;

    const PARTITION: PartitionId = PartitionId { topic: TopicId(7), index: 0 };

    /// The first election is on its way for long: two tries after it find no leader of the store, and then it lands.
    #[derive(Default)]
    struct Late {
        late: Mutex<(Option<Txn>, u32)>,
    }

    impl Fault for Late {
        fn txn<'a>(&'a self, inner: &'a Embedded, txn: Txn) -> BoxFuture<'a, Result<TxnOutcome, KvError>> {
            let elects = txn.then.iter().any(|write| format!("{write:?}").contains("/loss/"));
            if !elects {
                return inner.txn(txn);
            }
            Box::pin(async move {
                let landing = {
                    let mut late = self.late.lock().expect("no test panics with it");
                    late.1 += 1;
                    match late.1 {
                        1 => {
                            late.0 = Some(txn);
                            return Err(KvError::Unknown("no answer".to_owned()));
                        }
                        2 | 3 => return Err(KvError::Unavailable("no leader".to_owned())),
                        _ => late.0.take(),
                    }
                };
                if let Some(first) = landing {
                    inner.txn(first).await?;
                }
                inner.txn(txn).await
            })
        }
    }

    async fn session(store: &Store, broker: u32) -> Session {
        let at = || format!("127.0.0.1:{}", 7000 + broker);
        let record = SessionRecord {
            wal_gen: WalGen(100 + u64::from(broker)),
            grpc: at(),
            kafka: at(),
            kafka_listeners: BTreeMap::new(),
            http: at(),
            internal: None,
            rack: None,
        };
        let (broker, ttl) = (BrokerId(broker), Duration::from_secs(60));
        let registration = Registration { broker, record, disk_inc: Incarnation(0), durable_lsn: Lsn(0), ttl };
        match store.register_broker(&registration).await {
            Ok(Registered::Session(session)) => session,
            other => panic!("{other:?}"),
        }
    }

    /// Rule K5: given up before that, whoever led before could still change what the record of the loss names.
    #[tokio::test]
    async fn an_unclean_election_whose_answer_was_lost_is_settled_before_it_is_over() {
        let kv: Arc<dyn Kv> = Faulted::new(Late::default());
        let store = Store::new(kv, Keys::for_cluster("test"));
        let (one, two) = (session(&store, 1).await, session(&store, 2).await);
        let placement = Placement {
            replicas: vec![BrokerId(1), BrokerId(2)],
            isr: vec![one.rid],
            leader: Some(Leader { rid: one.rid, inc: one.inc }),
            min_isr: 1,
            absent: Vec::new(),
        };
        let topic = NewTopic {
            name: "t".parse().expect("a name"),
            id: PARTITION.topic,
            buried: Revision::ABSENT,
            replication_factor: 2,
            config: BTreeMap::new(),
            placements: vec![placement],
        };
        let created = store.create_topic(&one, &topic).await;
        assert!(matches!(created, Ok(CreateOutcome::Created { .. })), "{created:?}");
        store.leave(&one).await.expect("up");
        let seen = store.partition(PARTITION).await.expect("up").expect("there");
        let evidence = Evidence {
            leader: Leader { rid: two.rid, inc: two.inc },
            epoch_seen: LeaderEpoch(0),
            end: Offset(5),
            tiered_end: Offset(0),
            known_end: Offset(9),
            cause: CAUSE.to_owned(),
        };
        let acceptance =
            loss::give_up(&seen.value, &[Live { rid: two.rid, inc: two.inc }], evidence).expect("forsaken");
        let (record, tier_root) = (seen.revision, Revision::ABSENT);
        let election = UncleanElection { partition: PARTITION, record, tier_root, also: Vec::new(), acceptance };
        let outcome = settle(&store, &two, &election).await.expect("it is settled");
        let now = store.partition(PARTITION).await.expect("up").expect("there");
        assert_eq!(outcome, Outcome::Committed { revision: now.revision });
        assert_eq!(now.value, election.acceptance.next);
    }
}
