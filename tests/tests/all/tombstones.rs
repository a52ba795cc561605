//! What becomes of deleted topics (rule K6): their tombstones go once nobody has anything of them, and wait for whoever is down.

use millpond_broker::wal::disk::RealDisk;
use millpond_broker::wal::{Wal, WalOptions};
use millpond_log::{BrokerId, Incarnation, Rid, TopicId, WalGen};
use millpond_metadata::keys::Key;
use millpond_metadata::kv::{LeaseId, Txn, Write};
use millpond_metadata::store::{Missing, Session, Store};
use millpond_proto::v1::groups_client::GroupsClient;
use millpond_proto::v1::{
    CommitOffsetsRequest, FetchOffsetsRequest, FindCoordinatorRequest, GroupPartition, OffsetToCommit,
};
use millpond_sdk::{Admin, Client, ErrorCode, NewTopic, Producer, ProducerConfig, ProducerRecord};
use millpond_tests::brokers::TestBrokers;
use object_store::memory::InMemory;
use std::sync::Arc;
use std::time::Duration;
use tonic::transport::Channel;

const TOPIC: &str = "events";
const GROUP: &str = "readers";

/// How often the metadata are looked at, by a test that waits for them.
const LOOK: Duration = Duration::from_millis(50);

/// How long something may take before the test is called stuck.
const PATIENCE: Duration = Duration::from_secs(60);

async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    let found = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::time::timeout(PATIENCE, found).await.unwrap_or_else(|_| panic!("{what}"))
}

/// Creates the topic on so many brokers and writes a record into each partition.
async fn write(brokers: &TestBrokers, copies: u32) -> TopicId {
    let client = Client::connect(&brokers.bootstrap()).await.expect("they are up");
    let mut topic = NewTopic::new(TOPIC);
    (topic.partitions, topic.replication_factor) = (Some(3), Some(copies));
    Admin::new(&client).create_topic(topic).await.expect("its name is free");
    let producer = Producer::new(&client, ProducerConfig::default()).expect("the defaults are sound");
    for partition in 0..3 {
        let record = ProducerRecord::new(TOPIC).partition(partition).value("v");
        producer.send(record).await.expect("there is room").await.expect("acknowledged");
    }
    producer.close().await;
    brokers.store().topic_id(&TOPIC.parse().expect("a name")).await.expect("up").expect("it is there")
}

async fn delete(brokers: &TestBrokers) {
    let client = Client::connect(&brokers.bootstrap()).await.expect("they are up");
    Admin::new(&client).delete_topic(TOPIC).await.expect("it is there");
}

/// Who has not said yet that nothing of these is left.
async fn missing(store: &Store, topics: &[TopicId]) -> Vec<Missing> {
    let sessions = store.sessions().await.expect("up");
    let (broker, seen) = sessions.first_key_value().expect("one is up");
    let rid = Rid { broker: *broker, wal_gen: seen.value.wal_gen };
    let actor = Session { rid, inc: Incarnation(seen.revision.0), lease: LeaseId(0), ttl: Duration::from_secs(1) };
    store.bury(&actor, topics).await.expect("up").missing
}

/// The topics of which a broker that is stopped has frames.
async fn on_disk(brokers: &TestBrokers, id: u32) -> Vec<TopicId> {
    let (config, store) = (brokers.config(id), brokers.store());
    let cluster = store.init_cluster("unused").await.expect("up").value.id;
    let options = WalOptions {
        dir: config.data_dir.join("wal"),
        bytes_max: config.wal_bytes,
        file_bytes: config.wal_file_bytes,
        memory_bytes: 0,
    };
    let opened = tokio::task::spawn_blocking(move || {
        let (wal, recovered) =
            Wal::open(options, Arc::new(RealDisk), &cluster, BrokerId(id), WalGen(0)).expect("it was closed");
        wal.close().expect("it is sound");
        recovered
    });
    let mut topics: Vec<TopicId> =
        opened.await.expect("it opens").partitions.iter().map(|held| held.partition.topic).collect();
    topics.dedup();
    topics
}

/// The coordinator of the group.
async fn coordinator(brokers: &TestBrokers) -> GroupsClient<Channel> {
    until("the group has a coordinator", || async {
        let mut any = GroupsClient::connect(format!("http://{}", brokers.addresses(0).grpc)).await.ok()?;
        let found = any.find_coordinator(FindCoordinatorRequest { group: GROUP.to_owned() }).await.ok()?;
        GroupsClient::connect(format!("http://{}", found.into_inner().grpc)).await.ok()
    })
    .await
}

fn partition(topic: TopicId) -> GroupPartition {
    GroupPartition { topic_id: topic.to_string(), partition: 1 }
}

async fn commit(brokers: &TestBrokers, topic: TopicId) {
    let to_commit =
        OffsetToCommit { partition: Some(partition(topic)), offset: 1, leader_epoch: None, metadata: String::new() };
    let request = CommitOffsetsRequest {
        group: GROUP.to_owned(),
        member: String::new(),
        epoch: -1,
        instance: None,
        offsets: vec![to_commit],
        number: None,
    };
    until("an offset is committed", || async {
        let answer = coordinator(brokers).await.commit_offsets(request.clone()).await.ok()?.into_inner();
        answer.outcomes.iter().all(|outcome| outcome.error.is_empty()).then_some(())
    })
    .await;
}

async fn committed(brokers: &TestBrokers, topic: TopicId) -> Option<u64> {
    let request = FetchOffsetsRequest {
        group: GROUP.to_owned(),
        partitions: vec![partition(topic)],
        ..FetchOffsetsRequest::default()
    };
    until("offsets are told", || async {
        let answer = coordinator(brokers).await.fetch_offsets(request.clone()).await.ok()?;
        Some(answer.into_inner().offsets[0].offset)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_topic_is_forgotten_once_the_last_broker_has_come_back_and_dropped_it() {
    let mut brokers = TestBrokers::start(3, Arc::new(InMemory::new())).await;
    let store = brokers.store();
    let first = write(&brokers, 3).await;
    commit(&brokers, first).await;
    brokers.stop_one(2).await;
    assert_eq!(on_disk(&brokers, 2).await, [first]);
    delete(&brokers).await;
    // The same name once more: another topic, and another tombstone.
    let second = write(&brokers, 2).await;
    assert_ne!(first, second);
    commit(&brokers, second).await;
    delete(&brokers).await;

    let dead = [first, second];
    let down = [Missing::Broker(BrokerId(2))];
    until("all others say that nothing is left", || async { (missing(&store, &dead).await == down).then_some(()) })
        .await;
    for topic in dead {
        assert!(store.tombstone(topic).await.expect("up").is_some(), "it waits for the broker that is down");
        assert_eq!(committed(&brokers, topic).await, None, "its offsets are forgotten");
    }
    brokers.start_one(2).await;
    for topic in dead {
        until("its tombstone goes", || async { store.tombstone(topic).await.expect("up").is_none().then_some(()) })
            .await;
    }
    let third = write(&brokers, 3).await;
    for id in [0, 1, 2] {
        brokers.stop_one(id).await;
        assert_eq!(on_disk(&brokers, id).await, [third], "what it had of the others was dropped before");
    }
    brokers.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_of_a_topic_that_nobody_knows_are_kept_and_not_served() {
    let mut brokers = TestBrokers::start(1, Arc::new(InMemory::new())).await;
    let topic = write(&brokers, 1).await;
    brokers.stop_one(0).await;
    // As if the metadata had lost it, or an old disk had been put back: no tombstone says that it was deleted.
    let (store, keys) = (brokers.store(), brokers.keys());
    let records = (0..3).map(|index| Key::Partition(millpond_log::PartitionId { topic, index }));
    let lost = records.chain([Key::TopicName(TOPIC.parse().expect("a name")), Key::Topic(topic)]);
    let then: Vec<Write> = lost.map(|key| Write::delete(&keys.encode(&key))).collect();
    store.kv().txn(Txn { then, ..Txn::default() }).await.expect("up");
    brokers.start_one(0).await;
    let client = Client::connect(&brokers.bootstrap()).await.expect("it is up");
    let described = Admin::new(&client).describe_topic(TOPIC).await;
    assert_eq!(described.expect_err("nobody knows it").code, Some(ErrorCode::UnknownTopicOrPartition));
    let other = write(&brokers, 1).await;
    brokers.stop_one(0).await;
    let mut kept = [topic, other];
    kept.sort_unstable();
    assert_eq!(on_disk(&brokers, 0).await, kept, "rule K6: not found is no reason to delete");
    brokers.stop().await;
}
