//! Three brokers and the one that acts as controller: whoever dies is replaced as leader, whoever comes back leads again, and no produce
//! fails while leaderships move.

use millpond_broker::api::TopicRef;
use millpond_log::BrokerId;
use millpond_sdk::{Admin, Client, NewTopic, Producer, ProducerConfig, ProducerRecord};
use millpond_tests::brokers::TestBrokers;
use object_store::memory::InMemory;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const TOPIC: &str = "events";
const PARTITIONS: u32 = 12;

/// How often the metadata are looked at, by a test that waits for them.
const LOOK: Duration = Duration::from_millis(20);

/// How many partitions each broker leads, as `of` sees it.
fn leads(brokers: &TestBrokers, of: u32) -> BTreeMap<Option<BrokerId>, usize> {
    let topic = brokers.handle(of).topic(&TopicRef::Name(TOPIC.to_owned())).expect("the topic exists");
    let mut counts = BTreeMap::new();
    for partition in topic.partitions {
        *counts.entry(partition.leader).or_default() += 1;
    }
    counts
}

/// Waits until the brokers lead so many partitions, as broker `of` sees it.
async fn until_led(brokers: &TestBrokers, of: u32, wanted: &[(u32, usize)]) {
    let wanted: BTreeMap<Option<BrokerId>, usize> =
        wanted.iter().map(|(broker, count)| (Some(BrokerId(*broker)), *count)).collect();
    let reached = async {
        while leads(brokers, of) != wanted {
            tokio::time::sleep(LOOK).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), reached).await;
    assert!(waited.is_ok(), "{:?} where {wanted:?} is wanted", leads(brokers, of));
}

async fn create(client: &Client) {
    let mut topic = NewTopic::new(TOPIC);
    (topic.partitions, topic.replication_factor) = (Some(PARTITIONS), Some(3));
    Admin::new(client).create_topic(topic).await.expect("the topic is new");
}

/// Leaderships leave a broker that stops and come back to it, while a producer goes on: every record is acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaderships_go_and_come_back_and_no_produce_fails() {
    let mut brokers = TestBrokers::start(3, Arc::new(InMemory::new())).await;
    let client = Client::connect(&brokers.bootstrap()).await.expect("brokers are up");
    create(&client).await;
    until_led(&brokers, 0, &[(0, 4), (1, 4), (2, 4)]).await;

    let stop = Arc::new(AtomicBool::new(false));
    let (producing, stopped) = (client.clone(), Arc::clone(&stop));
    let produced = tokio::spawn(async move {
        let producer = Producer::new(&producing, ProducerConfig::default()).expect("the defaults are sound");
        let mut acknowledged = 0u64;
        while !stopped.load(Ordering::Relaxed) {
            let record = ProducerRecord::new(TOPIC).key(format!("key-{acknowledged}")).value(vec![7; 64]);
            producer.send(record).await.expect("there is room").await.expect("acknowledged");
            acknowledged += 1;
        }
        producer.close().await;
        acknowledged
    });
    for id in [1, 2] {
        let others: Vec<u32> = (0..3).filter(|other| *other != id).collect();
        brokers.stop_one(id).await;
        let moved = async {
            while leads(&brokers, 0).contains_key(&Some(BrokerId(id))) || leads(&brokers, 0).contains_key(&None) {
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), moved).await.expect("others lead");
        assert_eq!(
            others
                .iter()
                .map(|other| leads(&brokers, 0).get(&Some(BrokerId(*other))).copied())
                .flatten()
                .sum::<usize>(),
            12
        );
        brokers.start_one(id).await;
        until_led(&brokers, 0, &[(0, 4), (1, 4), (2, 4)]).await;
    }
    stop.store(true, Ordering::Relaxed);
    let acknowledged = produced.await.expect("no produce failed");
    assert!(acknowledged > 100, "only {acknowledged}");
    brokers.stop().await;
}
