//! A replica that contradicts what is in object storage: it is not served, and what it holds is kept (rules K6, S5).

use millpond_broker::wal::disk::RealDisk;
use millpond_broker::wal::{Wal, WalOptions};
use millpond_core::records::PartitionRecord;
use millpond_log::{BrokerId, LeaderEpoch, Offset, PartitionId, Rid, WalGen};
use millpond_metadata::keys::Key;
use millpond_metadata::kv::{Txn, Write};
use millpond_sdk::{Admin, Client, NewTopic, Producer, ProducerConfig, ProducerRecord};
use millpond_tests::brokers::TestBrokers;
use object_store::memory::InMemory;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const TOPIC: &str = "events";
const RECORDS: u64 = 10;

/// How often it is looked whether a replica is open.
const LOOK: Duration = Duration::from_millis(20);

/// How long something may take before the test is called stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whether a replica is open on the broker.
async fn is_served(brokers: &TestBrokers) -> bool {
    !brokers.handle(0).log_dir().await.tails.is_empty()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_cannot_be_opened_again_is_not_served_and_keeps_what_it_holds() {
    let mut brokers = TestBrokers::start(1, Arc::new(InMemory::new())).await;
    let client = Client::connect(&brokers.bootstrap()).await.expect("it is up");
    let mut topic = NewTopic::new(TOPIC);
    (topic.partitions, topic.replication_factor) = (Some(1), Some(1));
    let admin = Admin::new(&client);
    admin.create_topic(topic).await.expect("its name is free");
    let producer = Producer::new(&client, ProducerConfig::default()).expect("the defaults are sound");
    for _ in 0..RECORDS {
        producer.send(ProducerRecord::new(TOPIC).value("v")).await.expect("there is room").await.expect("acknowledged");
    }
    producer.close().await;

    // Its manifest cannot be read, and whoever held all of it is gone: the replica is opened again, to say what is lost.
    let (store, keys) = (brokers.store(), brokers.keys());
    let id = store.topic_id(&TOPIC.parse().expect("a name")).await.expect("up").expect("it is there");
    let partition = PartitionId { topic: id, index: 0 };
    let seen = store.partition(partition).await.expect("up").expect("it is there").value;
    let gone = Rid { broker: BrokerId(0), wal_gen: WalGen(1) };
    let epoch = LeaderEpoch(seen.epoch.0 + 1);
    let next = PartitionRecord { leader: None, epoch, isr: vec![gone], ..seen };
    let value = serde_json::to_vec(&serde_json::json!({ "v": 1, "record": next })).expect("it is text");
    let root = keys.encode(&Key::TierRoot(partition));
    let then =
        vec![Write::put(root.clone(), "no manifest"), Write::put(keys.encode(&Key::Partition(partition)), value)];
    store.kv().txn(Txn { then, ..Txn::default() }).await.expect("up");
    let given_up = async {
        while is_served(&brokers).await {
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::time::timeout(PATIENCE, given_up).await.expect("the broker gives up on the replica");

    // What was wrong is mended, and the topic changes: a replica that is opened anew begins its log anew.
    store.kv().txn(Txn { then: vec![Write::delete(&root)], ..Txn::default() }).await.expect("up");
    let retention = BTreeMap::from([("retention.ms".to_owned(), Some("3600000".to_owned()))]);
    admin.alter_topic(TOPIC, retention).await.expect("it is there");
    let described = admin.describe_topic(TOPIC).await.expect("it is there");
    assert_eq!(described.configs.get("retention.ms").map(String::as_str), Some("3600000"), "the broker has seen it");
    assert!(!is_served(&brokers).await);

    brokers.stop_one(0).await;
    let config = brokers.config(0);
    let cluster = store.init_cluster("unused").await.expect("up").value.id;
    let options = WalOptions {
        dir: config.data_dir.join("wal"),
        bytes_max: config.wal_bytes,
        file_bytes: config.wal_file_bytes,
        memory_bytes: 0,
    };
    let opened = tokio::task::spawn_blocking(move || {
        Wal::open(options, Arc::new(RealDisk), &cluster, BrokerId(0), WalGen(0)).expect("it was closed")
    });
    let (_wal, recovered) = opened.await.expect("it opens");
    let held: Vec<_> = recovered.partitions.iter().map(|held| (held.partition, held.start, held.end)).collect();
    assert_eq!(held, [(partition, Offset(0), Offset(RECORDS))], "all that was acknowledged");
    brokers.stop().await;
}
