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
use millpond_metadata::store::{Image, Outcome, Session, StoreError, UncleanElection, Versioned};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::oneshot;

/// What is on record of an election that a topic asked for.
const CAUSE: &str = "no replica that held everything was alive, and the topic allows unclean elections";

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
        // An unknown outcome is settled by the same transaction (rule K5).
        let outcome = loop {
            match self.inner().store.accept_loss(session, election).await? {
                Outcome::Unknown => tokio::task::yield_now().await,
                settled => break settled,
            }
        };
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
