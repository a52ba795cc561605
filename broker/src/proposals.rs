//! Carries what leaders propose about their partitions' records to the metadata store, and the outcome back (rules I3, K5).
//!
//! It decides nothing: a proposal is sent as it is until its outcome is known. What failed for another reason than its own key is told
//! after a pause, so that a leader that goes by an old image does not propose the same as fast as it can.

use crate::alive::Alive;
use crate::partitions::messages::{Proposed, ShardMsg};
use crate::session::SessionHandle;
use futures::StreamExt;
use futures::future::{join, join_all};
use futures::stream::FuturesUnordered;
use millpond_core::records::{Leader, PartitionRecord};
use millpond_core::replica::Input;
use millpond_log::LeaderEpoch;
use millpond_metadata::kv::Revision;
use millpond_metadata::store::{Election, Outcome, RecordChange, Session, Store, StoreError, Versioned};
use std::time::Duration;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_util::sync::CancellationToken;

/// Proposals taken from the queue at once: one transaction holds no more (rule K8).
const BATCH_MAX: usize = 40;

/// Pause between tries while the metadata store cannot be used, or does not say what became of a proposal.
const RETRY: Duration = Duration::from_millis(200);

/// Pause before a leader hears that a proposal failed though its record has not moved: whoever was to join has another session, or none,
/// and until this broker's image shows that, the leader would propose the very same again.
const STALE_SESSION: Duration = Duration::from_millis(200);

/// Pause before a proposal is tried again whose record cannot be read: it holds up no other meanwhile.
const UNREADABLE: Duration = Duration::from_secs(1);

/// What became of a proposal that is not written.
enum Left {
    /// It is not known: it is sent again.
    Unknown(Proposed),
    /// What the store holds of its partition is not understood: it is sent again after a longer pause.
    Unreadable(Proposed),
    /// It never will be, and its leader is to hear of it after a pause.
    Stale(Proposed),
}

/// Carries proposals until `shutdown`.
pub(crate) async fn run(
    store: Store,
    session: SessionHandle,
    alive: Alive,
    mut inbox: UnboundedReceiver<Proposed>,
    shutdown: CancellationToken,
) {
    let mut open = Vec::new();
    let (mut stale, mut unreadable) = (FuturesUnordered::new(), FuturesUnordered::new());
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            count = inbox.recv_many(&mut open, BATCH_MAX), if open.is_empty() => if count == 0 { return },
            () = tokio::time::sleep(RETRY), if !open.is_empty() => {}
            Some(proposed) = stale.next() => {
                fail(&proposed);
                continue;
            }
            Some(proposed) = unreadable.next() => open.push(proposed),
        }
        // Without a session this broker leads nothing, so nobody waits for these any more (rule B3).
        let Some(session) = session.get() else {
            open.clear();
            continue;
        };
        let tries = std::mem::take(&mut open);
        for left in carry(&store, &session, &alive, tries).await {
            match left {
                Left::Unknown(proposed) => open.push(proposed),
                Left::Unreadable(proposed) => unreadable.push(after(UNREADABLE, proposed)),
                Left::Stale(proposed) => stale.push(after(STALE_SESSION, proposed)),
            }
        }
    }
}

async fn after(pause: Duration, proposed: Proposed) -> Proposed {
    tokio::time::sleep(pause).await;
    proposed
}

/// What a failed try leaves: the store cannot be used, or it is this proposal that cannot be carried.
fn left(proposed: Proposed, error: &StoreError) -> Left {
    match error {
        StoreError::Unavailable(_) => Left::Unknown(proposed),
        _ => Left::Unreadable(proposed),
    }
}

/// Tries each proposal once; returns those that are not settled, or not told.
async fn carry(store: &Store, session: &Session, alive: &Alive, tries: Vec<Proposed>) -> Vec<Left> {
    // A leader that hands over proposes an election; everything else keeps its epoch (rule E4).
    let (transfers, tries): (Vec<Proposed>, Vec<Proposed>) =
        tries.into_iter().partition(|proposed| proposed.proposal.heir.is_some());
    let elections: Vec<Election> = transfers.iter().map(election).collect();
    let changes: Vec<RecordChange> = tries.iter().map(change).collect();
    let (elected, changed) =
        join(store.elect(session, None, &elections), store.change_records(session, None, &changes)).await;
    let settle = |(proposed, outcome): (Proposed, Result<Outcome, StoreError>)| async move {
        match outcome {
            Ok(Outcome::Committed { revision }) => {
                let record = proposed.proposal.record.clone();
                tell(&proposed, alive, &Versioned { value: record, revision });
                None
            }
            // The session is gone, and this office with it.
            Ok(Outcome::Fenced) => None,
            Ok(Outcome::Conflict) => conflicted(store, alive, proposed).await,
            Ok(Outcome::Unknown) => Some(Left::Unknown(proposed)),
            Err(error) => {
                tracing::warn!(partition = %proposed.partition, %error, "an ISR change waits for the metadata store");
                Some(left(proposed, &error))
            }
        }
    };
    join_all(transfers.into_iter().zip(elected).chain(tries.into_iter().zip(changed)).map(settle))
        .await
        .into_iter()
        .flatten()
        .collect()
}

/// A compared key has moved for good: what holds now is read and told first, then that this proposal never will (rule K5).
async fn conflicted(store: &Store, alive: &Alive, proposed: Proposed) -> Option<Left> {
    let moved = match store.partition(proposed.partition).await {
        Ok(Some(seen)) => {
            tell(&proposed, alive, &seen);
            seen.revision.0 != proposed.proposal.base
        }
        // Its topic is being deleted: nobody leads it any more.
        Ok(None) => return None,
        Err(error) => {
            tracing::warn!(partition = %proposed.partition, %error, "a partition's record cannot be read yet");
            return Some(left(proposed, &error));
        }
    };
    // A transfer is not proposed again by itself, and nothing is admitted while it is open (rule E9).
    if !moved && proposed.proposal.joining.is_some() {
        return Some(Left::Stale(proposed));
    }
    fail(&proposed);
    None
}

/// Tells a leader that its proposal never will be written.
fn fail(proposed: &Proposed) {
    let failed = Input::ProposalFailed { base: proposed.proposal.base };
    // A shard that is gone ends the broker.
    let _ = proposed.shard.send(ShardMsg::Step { partition: proposed.partition, input: failed });
}

fn tell(proposed: &Proposed, alive: &Alive, seen: &Versioned<PartitionRecord>) {
    alive.assign(&proposed.shard, proposed.partition, seen);
}

/// TXN-ELECT of the heir: its session is compared, and this broker's own (rule E9).
fn election(proposed: &Proposed) -> Election {
    let Proposed { partition, proposal, .. } = proposed;
    let next = proposal.record.clone();
    let epoch = LeaderEpoch(next.epoch.0 - 1);
    Election { partition: *partition, base: Revision(proposal.base), epoch, next }
}

fn change(proposed: &Proposed) -> RecordChange {
    let Proposed { partition, proposal, .. } = proposed;
    RecordChange {
        partition: *partition,
        base: Revision(proposal.base),
        epoch: proposal.record.epoch,
        next: proposal.record.clone(),
        joining: proposal.joining.map(|live| Leader { rid: live.rid, inc: live.inc }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use millpond_core::records::SessionRecord;
    use millpond_core::replica::{Live, Proposal};
    use millpond_log::{BrokerId, Incarnation, Lsn, PartitionId, TopicId, WalGen};
    use millpond_metadata::clock::SystemClock;
    use millpond_metadata::embedded::Embedded;
    use millpond_metadata::keys::{Key, Keys};
    use millpond_metadata::kv::{Txn, Write};
    use millpond_metadata::store::{CreateOutcome, NewTopic, Placement, Registered, Registration};
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    const PARTITION: PartitionId = PartitionId { topic: TopicId(7), index: 0 };

    async fn register(store: &Store, broker: u32) -> Session {
        let record = SessionRecord {
            wal_gen: WalGen(u64::from(broker)),
            grpc: "127.0.0.1:1".to_owned(),
            kafka: "127.0.0.1:2".to_owned(),
            kafka_listeners: BTreeMap::new(),
            http: "127.0.0.1:3".to_owned(),
            internal: None,
            rack: None,
        };
        let (broker, ttl) = (BrokerId(broker), Duration::from_secs(600));
        let registration = Registration { broker, record, disk_inc: Incarnation(0), durable_lsn: Lsn(0), ttl };
        match store.register_broker(&registration).await {
            Ok(Registered::Session(session)) => session,
            other => panic!("{other:?}"),
        }
    }

    /// What the shard hears next: the base of a failed proposal, or nothing for a record.
    async fn heard(shard: &mut UnboundedReceiver<ShardMsg>) -> Option<u64> {
        match shard.recv().await {
            Some(ShardMsg::Step { input: Input::ProposalFailed { base }, .. }) => Some(base),
            Some(ShardMsg::Step { input: Input::Assigned(_), .. }) => None,
            _ => panic!("a shard hears of records and of proposals that failed"),
        }
    }

    /// A store with a topic of two partitions that broker 1 leads alone, and broker 2, which has come.
    async fn store() -> (Store, Session, Session) {
        let store =
            Store::new(Arc::new(Embedded::in_memory(Arc::new(SystemClock::start()))), Keys::for_cluster("tests"));
        store.init_cluster("tests").await.expect("it is new");
        let (me, peer) = (register(&store, 1).await, register(&store, 2).await);
        let leader = Some(Leader { rid: me.rid, inc: me.inc });
        let placement = Placement {
            replicas: vec![BrokerId(1), BrokerId(2)],
            isr: vec![me.rid],
            leader,
            min_isr: 1,
            absent: Vec::new(),
        };
        let topic = NewTopic {
            name: "t".parse().expect("valid"),
            id: PARTITION.topic,
            buried: Revision::ABSENT,
            replication_factor: 2,
            config: BTreeMap::new(),
            placements: vec![placement.clone(), placement],
        };
        let created = store.create_topic(&me, &topic).await;
        assert!(matches!(created, Ok(CreateOutcome::Created { .. })), "{created:?}");
        (store, me, peer)
    }

    #[tokio::test]
    async fn a_record_that_cannot_be_read_holds_up_no_other_partition() {
        let (store, me, peer) = store().await;
        let whole = PartitionId { index: 1, ..PARTITION };
        let seen = store.partition(whole).await.expect("the store is up").expect("it was created");
        let key = store.keys().encode(&Key::Partition(PARTITION));
        let spoil = Txn { then: vec![Write::put(key, b"no record".to_vec())], ..Txn::default() };
        store.kv().txn(spoil).await.expect("it is up");
        store.partition(PARTITION).await.expect_err("it cannot be read");

        let (proposals, inbox) = unbounded_channel();
        let (shard, mut told) = unbounded_channel();
        let session = SessionHandle::default();
        session.begin(me, clock::boot());
        let stop = CancellationToken::new();
        let task = tokio::spawn(run(store.clone(), session, Alive::default(), inbox, stop.clone()));
        let propose = |partition: PartitionId| {
            let record = PartitionRecord { isr: vec![me.rid, peer.rid], ..seen.value.clone() };
            let joining = Some(Live { rid: peer.rid, inc: peer.inc });
            let proposal = Proposal { base: seen.revision.0, record, joining, heir: None };
            let proposed = Proposed { partition, shard: shard.clone(), proposal };
            assert!(proposals.send(proposed).is_ok(), "the carrier runs");
        };
        // More of the spoilt than are carried at once.
        (0..=BATCH_MAX).for_each(|_| propose(PARTITION));
        propose(whole);
        let heard = tokio::time::timeout(Duration::from_secs(60), heard(&mut told)).await.expect("it is carried");
        assert_eq!(heard, None, "its record was written, and of the others nobody hears anything");
        let written = store.partition(whole).await.expect("the store is up").expect("it is there");
        assert_eq!(written.value.isr, [me.rid, peer.rid]);
        stop.cancel();
        task.await.expect("it ends when it is told to");
    }

    #[tokio::test]
    async fn a_proposal_that_fails_by_a_stale_session_is_not_made_again_at_once() {
        let (store, me, peer) = store().await;
        let seen = store.partition(PARTITION).await.expect("the store is up").expect("it was created");

        let (proposals, inbox) = unbounded_channel();
        let (shard, mut told) = unbounded_channel();
        let session = SessionHandle::default();
        session.begin(me, clock::boot());
        let stop = CancellationToken::new();
        let task = tokio::spawn(run(store.clone(), session, Alive::default(), inbox, stop.clone()));
        let propose = |inc| {
            let record = PartitionRecord { isr: vec![me.rid, peer.rid], ..seen.value.clone() };
            let joining = Some(Live { rid: peer.rid, inc });
            let proposal = Proposal { base: seen.revision.0, record, joining, heir: None };
            let proposed = Proposed { partition: PARTITION, shard: shard.clone(), proposal };
            assert!(proposals.send(proposed).is_ok(), "the carrier runs");
        };

        let asked = clock::monotonic();
        propose(Incarnation(peer.inc.0 + 1));
        assert_eq!(heard(&mut told).await, None, "rule K5: what holds is told first");
        assert_eq!(heard(&mut told).await, Some(seen.revision.0), "and that it never will be written");
        let paused = clock::monotonic().duration_since(asked);
        assert!(paused >= STALE_SESSION, "the same again can do nothing before the image moves: {paused:?}");
        // The pause holds up nobody else: with the session that stands, it is written while another waits.
        propose(Incarnation(peer.inc.0 + 1));
        assert_eq!(heard(&mut told).await, None);
        propose(peer.inc);
        assert_eq!(heard(&mut told).await, None, "the record that was written, ahead of the failure");
        let written = store.partition(PARTITION).await.expect("the store is up").expect("it is there");
        assert_eq!(written.value.isr, [me.rid, peer.rid]);
        assert_eq!(heard(&mut told).await, Some(seen.revision.0));
        stop.cancel();
        task.await.expect("it ends when it is told to");
    }
}
