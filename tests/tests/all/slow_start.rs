//! A broker that comes up while its object store is slow: it keeps the session that it registered with (rule B3).

use millpond_log::BrokerId;
use millpond_sdk::{Admin, Client, NewTopic, Producer, ProducerConfig, ProducerRecord};
use millpond_tests::brokers::TestBrokers;
use object_store::memory::InMemory;
use object_store::throttle::{ThrottleConfig, ThrottledStore};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const TOPIC: &str = "events";

/// Of a lease: short, so that a start is soon longer.
const TTL: Duration = Duration::from_secs(2);

/// Of each read: two leases, at least.
const SLOW: Duration = Duration::from_secs(4);

/// Its lease would end before it takes office, and all that it leads would be elected twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_is_longer_than_a_lease_keeps_the_session_that_it_registered_with() {
    let objects = Arc::new(ThrottledStore::new(InMemory::new(), ThrottleConfig::default()));
    let mut brokers = TestBrokers::start(1, Arc::<ThrottledStore<InMemory>>::clone(&objects)).await;
    let client = Client::connect(&brokers.bootstrap()).await.expect("it is up");
    let mut topic = NewTopic::new(TOPIC);
    (topic.partitions, topic.replication_factor) = (Some(1), Some(1));
    Admin::new(&client).create_topic(topic).await.expect("the topic is new");
    let producer = Producer::new(&client, ProducerConfig::default()).expect("the defaults are sound");
    for number in 0..10 {
        let record = ProducerRecord::new(TOPIC).value(format!("{number}"));
        producer.send(record).await.expect("there is room").await.expect("acknowledged");
    }
    producer.close().await;
    Admin::new(&client).flush_topic(TOPIC).await.expect("the bucket is there");
    brokers.stop_one(0).await;
    // It has to read what it led from the bucket.
    std::fs::remove_dir_all(brokers.config(0).data_dir.join("cache")).expect("there is a cache");

    objects.config_mut(|config| config.wait_get_per_call = SLOW);
    let store = brokers.store();
    let registered = async {
        let mut look = tokio::time::interval(Duration::from_millis(20));
        loop {
            look.tick().await;
            if let Some(session) = store.sessions().await.expect("it is up").remove(&BrokerId(0)) {
                return session.revision;
            }
        }
    };
    let began = Instant::now();
    let (first, ()) = tokio::join!(registered, brokers.start_one_with(0, |config| config.lease_ttl = TTL));
    assert!(began.elapsed() > TTL * 2, "its start was slow");
    let now = store.sessions().await.expect("it is up").remove(&BrokerId(0));
    assert_eq!(now.map(|session| session.revision), Some(first), "the same incarnation");
    objects.config_mut(|config| config.wait_get_per_call = Duration::ZERO);
    brokers.stop().await;
}
