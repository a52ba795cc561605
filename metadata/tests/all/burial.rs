//! Tombstones go once nobody has anything of their topics, and never before (rule K6).

use crate::control::committed;
use crate::shards::{take, taken};
use crate::store::{ANSWER, Cluster, REQUEST, Stepped, cluster, create, register, registration, topic};
use millpond_core::coordinators::SHARDS;
use millpond_log::{BrokerId, TopicId};
use millpond_metadata::keys::ShardKind;
use millpond_metadata::kv::Revision;
use millpond_metadata::store::{
    Burial, CreateOutcome, Forgotten, Missing, NewTopic, Outcome, Registered, Session, ShardBatch, ShardWrite, Store,
};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// Creates and deletes a topic; the revision at which its tombstone was laid.
async fn dead(store: &Store, actor: &Session, name: &str, id: u128) -> Revision {
    let record = create(store, actor, name, id, 2).await;
    committed(&store.delete_topic(actor, &record).await.expect("up"));
    store.tombstone(TopicId(id)).await.expect("up").expect("it was laid").revision
}

/// These shards have nothing of what was deleted up to `seen`.
async fn shards_say(store: &Store, actor: &Session, shards: std::ops::Range<u32>, seen: Revision) {
    for shard in shards {
        let mut held = taken(take(store, actor, shard).await);
        let mut batch = ShardBatch::default();
        batch.add(ShardWrite::purged(ShardKind::Group, shard, seen)).expect("it is empty");
        committed(&store.commit_shard(actor, &mut held, &batch).await.expect("up"));
    }
}

async fn says(store: &Store, actor: &Session, seen: Revision) {
    committed(&store.note_purged(actor, seen).await.expect("up"));
}

async fn bury(store: &Store, actor: &Session, topics: &[u128]) -> Burial {
    let topics: Vec<TopicId> = topics.iter().copied().map(TopicId).collect();
    store.bury(actor, &topics).await.expect("up")
}

fn gone(topics: &[u128]) -> Burial {
    Burial { gone: topics.iter().copied().map(TopicId).collect(), missing: Vec::new(), stopped: None }
}

fn waits(missing: Vec<Missing>) -> Burial {
    Burial { missing, ..gone(&[]) }
}

#[tokio::test]
async fn a_tombstone_stands_until_every_broker_and_every_shard_of_groups_has_nothing_of_its_topic() {
    let Cluster { store, .. } = cluster().await;
    let (one, two) = (register(&store, 1).await, register(&store, 2).await);
    let laid = dead(&store, &one, "t", 1).await;
    let before = Revision(laid.0 - 1);
    let all = (0..SHARDS).map(Missing::Groups);
    let mut missing: Vec<Missing> = [1, 2].map(|id| Missing::Broker(BrokerId(id))).into_iter().chain(all).collect();
    assert_eq!(bury(&store, &one, &[1]).await, waits(missing.clone()));
    says(&store, &one, laid).await;
    says(&store, &two, before).await;
    missing.remove(0);
    assert_eq!(bury(&store, &one, &[1]).await, waits(missing.clone()), "what is said of less is not said of it");
    says(&store, &two, laid).await;
    shards_say(&store, &one, 0..SHARDS - 1, laid).await;
    shards_say(&store, &one, SHARDS - 1..SHARDS, before).await;
    assert_eq!(bury(&store, &one, &[1]).await, waits(vec![Missing::Groups(SHARDS - 1)]));
    shards_say(&store, &one, SHARDS - 1..SHARDS, laid).await;
    assert_eq!(bury(&store, &one, &[1]).await, gone(&[1]));
}

#[tokio::test]
async fn what_another_disk_said_is_not_believed() {
    let Cluster { store, .. } = cluster().await;
    let (one, two) = (register(&store, 1).await, register(&store, 2).await);
    let laid = dead(&store, &one, "t", 1).await;
    shards_say(&store, &one, 0..SHARDS, laid).await;
    says(&store, &one, laid).await;
    says(&store, &two, laid).await;
    // Good frames are kept when a disk becomes another replica (rule B4).
    store.leave(&two).await.expect("up");
    let Ok(Registered::Session(two)) = store.register_broker(&registration(2, 900, 0, 0)).await else {
        panic!("another disk registers");
    };
    assert_eq!(bury(&store, &one, &[1]).await, waits(vec![Missing::Broker(BrokerId(2))]), "rule K2");
    says(&store, &two, laid).await;
    assert_eq!(bury(&store, &one, &[1]).await, gone(&[1]));
    assert_eq!(store.tombstone(TopicId(1)).await, Ok(None));
    assert_eq!(bury(&store, &one, &[1]).await, gone(&[1]), "it is gone already");
}

#[tokio::test]
async fn a_broker_that_is_gone_keeps_tombstones_until_it_is_forgotten() {
    let Cluster { store, .. } = cluster().await;
    let (one, two) = (register(&store, 1).await, register(&store, 2).await);
    let laid = dead(&store, &one, "t", 1).await;
    shards_say(&store, &one, 0..SHARDS, laid).await;
    says(&store, &one, laid).await;
    store.leave(&two).await.expect("up");
    assert_eq!(bury(&store, &one, &[1]).await, waits(vec![Missing::Broker(BrokerId(2))]));
    assert_eq!(store.forget_broker(&one, BrokerId(2)).await, Ok(Forgotten::Done));
    assert_eq!(bury(&store, &one, &[1]).await, gone(&[1]));
}

#[tokio::test]
async fn each_topic_of_a_name_has_a_tombstone_of_its_own_and_one_that_is_not_finished_keeps_its() {
    let Cluster { store, lossy, .. } = cluster().await;
    let me = register(&store, 1).await;
    let first = dead(&store, &me, "t", 1).await;
    let second = dead(&store, &me, "t", 2).await;
    shards_say(&store, &me, 0..SHARDS, first).await;
    says(&store, &me, second).await;
    let burial = bury(&store, &me, &[1, 2]).await;
    assert_eq!(burial, Burial { gone: [TopicId(1)].into(), ..waits((0..SHARDS).map(Missing::Groups).collect()) });
    assert!(store.tombstone(TopicId(2)).await.expect("up").is_some());

    // The deleter dies midway: partitions are there yet, or may be.
    let record = create(&store, &me, "t", 3, 2).await;
    let steps = Arc::new(Stepped { inner: lossy, step: AtomicU32::new(2), lose: REQUEST });
    assert_eq!(Store::new(steps, store.keys().clone()).delete_topic(&me, &record).await, Ok(Outcome::Unknown));
    let third = store.tombstone(TopicId(3)).await.expect("up").expect("it was laid").revision;
    shards_say(&store, &me, 0..SHARDS, third).await;
    says(&store, &me, third).await;
    assert_eq!(bury(&store, &me, &[2, 3]).await, gone(&[2]), "not before the topic is gone");
    committed(&store.resume_deletion(&me, TopicId(3)).await.expect("up"));
    assert_eq!(bury(&store, &me, &[3]).await, gone(&[3]));
}

#[tokio::test]
async fn a_creation_that_arrives_after_the_tombstone_is_gone_makes_nothing() {
    let Cluster { store, lossy, .. } = cluster().await;
    let me = register(&store, 1).await;
    let late = topic("t", 1, 1, &me);
    let laid = dead(&store, &me, "t", 1).await;
    shards_say(&store, &me, 0..SHARDS, laid).await;
    says(&store, &me, laid).await;
    // The burial's own answer is lost; the next one finds what it did.
    lossy.lose(ANSWER);
    assert_eq!(bury(&store, &me, &[1]).await.stopped, Some(Outcome::Unknown));
    assert_eq!(bury(&store, &me, &[1]).await, gone(&[1]));
    assert_eq!(store.create_topic(&me, &late).await, Ok(CreateOutcome::Conflict), "rule K6: its id was used");
    assert_eq!(store.topic(TopicId(1)).await, Ok(None));
    assert_eq!(store.topic_id(&late.name).await, Ok(None), "its name is free");
    let anew = NewTopic { id: TopicId(2), buried: store.buried().await.expect("up"), ..late };
    let created = store.create_topic(&me, &anew).await;
    assert!(matches!(created, Ok(CreateOutcome::Created { .. })), "{created:?}");
}
