//! Changes of records that are no election, the controller's key, and the image that follows the store.

use crate::store::{Cluster, REQUEST, cluster, committed, create, leader, partition, partition_record, register};
use millpond_core::records::{Leader, PartitionRecord};
use millpond_log::{BrokerId, Incarnation, LeaderEpoch, Rid, TopicId, WalGen};
use millpond_metadata::keys::Key;
use millpond_metadata::kv::{Kv, Revision};
use millpond_metadata::store::{Outcome, RecordChange, Store, Versioned};
use std::sync::Arc;

fn change(seen: &Versioned<PartitionRecord>, joining: Option<Leader>) -> RecordChange {
    let mut next = seen.value.clone();
    next.isr.extend(joining.map(|joining| joining.rid));
    RecordChange { partition: partition(7, 0), base: seen.revision, epoch: seen.value.epoch, next, joining }
}

async fn one(store: &Store, actor: &millpond_metadata::store::Session, change: &RecordChange) -> Outcome {
    let answers = store.change_records(actor, None, std::slice::from_ref(change)).await;
    answers.into_iter().next().expect("one answer").expect("up")
}

#[tokio::test]
async fn a_change_is_held_to_the_record_to_the_actor_and_to_who_joins() {
    let Cluster { store, .. } = cluster().await;
    let (me, peer) = (register(&store, 1).await, register(&store, 2).await);
    create(&store, &me, "t", 7, 1).await;
    let seen = partition_record(&store, partition(7, 0)).await;

    let gone = Leader { rid: peer.rid, inc: Incarnation(peer.inc.0 + 1) };
    assert_eq!(one(&store, &me, &change(&seen, Some(gone))).await, Outcome::Conflict, "rule I5");
    let joins = change(&seen, Some(leader(&peer)));
    committed(&one(&store, &me, &joins).await);
    let now = partition_record(&store, partition(7, 0)).await;
    assert_eq!(now.value.isr, [me.rid, peer.rid]);
    assert_eq!(one(&store, &me, &change(&seen, None)).await, Outcome::Conflict, "rule K3");
    store.leave(&me).await.expect("up");
    assert_eq!(one(&store, &me, &change(&now, None)).await, Outcome::Fenced, "rule K4");
}

#[tokio::test]
async fn a_change_whose_answer_was_lost_is_found_in_place() {
    let Cluster { store, lossy, .. } = cluster().await;
    let (me, peer) = (register(&store, 1).await, register(&store, 2).await);
    create(&store, &me, "t", 7, 1).await;
    let seen = partition_record(&store, partition(7, 0)).await;
    let joins = change(&seen, Some(leader(&peer)));
    lossy.lose(crate::store::ANSWER);
    assert_eq!(one(&store, &me, &joins).await, Outcome::Unknown, "rule K5");
    let revision = committed(&one(&store, &me, &joins).await);
    assert_eq!(partition_record(&store, partition(7, 0)).await.revision, revision);
    let now = partition_record(&store, partition(7, 0)).await;
    lossy.lose(REQUEST);
    let shrinks = RecordChange { next: seen.value.clone(), ..change(&now, None) };
    assert_eq!(one(&store, &me, &shrinks).await, Outcome::Unknown);
    assert_eq!(partition_record(&store, partition(7, 0)).await.value.isr.len(), 2, "it never arrived");
    committed(&one(&store, &me, &shrinks).await);
}

#[tokio::test]
#[should_panic(expected = "only elections change the epoch")]
async fn a_change_cannot_smuggle_an_election() {
    let Cluster { store, .. } = cluster().await;
    let me = register(&store, 1).await;
    create(&store, &me, "t", 7, 1).await;
    let seen = partition_record(&store, partition(7, 0)).await;
    let mut change = change(&seen, None);
    change.next.epoch = LeaderEpoch(9);
    one(&store, &me, &change).await;
}

/// Rules E1a, B3, K4, E8.
#[tokio::test]
async fn controllers_and_ended_sessions() {
    let kv: Arc<dyn Kv> = Arc::new(cluster().await.embedded);
    crate::control::promises(&kv).await;
}

#[tokio::test]
async fn an_old_controllers_change_is_fenced() {
    let Cluster { store, .. } = cluster().await;
    let (me, peer) = (register(&store, 1).await, register(&store, 2).await);
    let mine = committed(&store.take_control(&me).await.expect("up"));
    store.leave(&me).await.expect("up");
    committed(&store.take_control(&peer).await.expect("up"));
    create(&store, &peer, "t", 7, 1).await;
    let record = partition_record(&store, partition(7, 0)).await;
    let stale = store.change_records(&peer, Some(mine), &[change(&record, None)]).await;
    assert_eq!(stale, [Ok(Outcome::Fenced)]);
}

/// Rule K5: control whose answer was lost is found in place, and one that never arrived is taken.
#[tokio::test]
async fn control_taken_without_an_answer_is_settled() {
    for lose in [crate::store::ANSWER, REQUEST] {
        let Cluster { store, lossy, .. } = cluster().await;
        let me = register(&store, 1).await;
        lossy.lose(lose);
        assert_eq!(store.take_control(&me).await, Ok(Outcome::Unknown));
        let mine = committed(&store.take_control(&me).await.expect("up"));
        let seen = store.controller().await.expect("up").expect("taken");
        assert_eq!((seen.value, seen.revision), (leader(&me), mine));
    }
}

#[tokio::test]
async fn an_image_follows_sessions_topics_and_partitions() {
    let Cluster { store, .. } = cluster().await;
    let mut follow = store.follow().await.expect("loaded");
    let me = register(&store, 1).await;
    let mut seen = std::collections::BTreeSet::new();
    create(&store, &me, "t", 7, 2).await;
    while !seen.contains(&Key::Partition(partition(7, 1))) || !follow.image().topics.contains_key(&TopicId(7)) {
        seen.extend(follow.changed().await.expect("up"));
    }
    store.leave(&me).await.expect("up");
    while follow.image().sessions.contains_key(&BrokerId(1)) {
        seen.extend(follow.changed().await.expect("up"));
    }
    assert!(seen.contains(&Key::BrokerSession(BrokerId(1))));
    assert_eq!(follow.reload().await.expect("up"), std::collections::BTreeSet::new(), "rule Z2: nothing was missed");
}

#[tokio::test]
async fn an_image_is_loaded_again_when_history_is_gone() {
    let Cluster { store, embedded, .. } = cluster().await;
    let me = register(&store, 1).await;
    let mut follow = store.follow().await.expect("loaded");
    create(&store, &me, "t", 7, 1).await;
    let now = embedded.range(millpond_metadata::kv::Range::key(&store.keys().encode(&Key::Cluster))).await.expect("up");
    embedded.compact(Revision(now.revision.0)).await.expect("compacted");
    while !follow.image().partitions.contains_key(&partition(7, 0)) {
        follow.changed().await.expect("loaded again");
    }
    let rid = Rid { broker: BrokerId(1), wal_gen: WalGen(101) };
    assert_eq!(follow.image().partitions[&partition(7, 0)].value.isr, [rid]);
}
