//! A compacted topic on a fleet of processes, whose leaders die in the middle of it.

use super::{PASSES, PATIENCE, shown, table};
use millpond_sdk::{
    Admin, Client, Consumer, ConsumerConfig, ConsumerRecord, NewTopic, OffsetSpec, Producer, ProducerConfig,
    ProducerRecord, StartAt, TopicPartition,
};
use millpond_tests::fleet::{Fleet, FleetOptions};
use millpond_tests::http::metric;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::timeout;

const TOPIC: &str = "table";
const PARTITIONS: u32 = 2;
const KEYS: u64 = 20;

/// Rounds of all keys that are written between one fault and the next.
const ROUNDS: u64 = 30;

/// Writes all keys, round after round, until it is told to stop: in each round some are deleted. What was acknowledged last, by partition.
async fn write(
    client: Client,
    rounds: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
) -> BTreeMap<u32, BTreeMap<String, String>> {
    let producer = Producer::new(&client, ProducerConfig::default()).expect("good settings");
    let mut tables: BTreeMap<u32, BTreeMap<String, String>> = BTreeMap::new();
    while !stop.load(Ordering::Relaxed) {
        let round = rounds.load(Ordering::Relaxed);
        let mut sent = Vec::new();
        for nth in 0..KEYS {
            let (partition, key) = (nth as u32 % PARTITIONS, format!("k{nth}"));
            let value = (!(round + nth).is_multiple_of(5)).then(|| round.to_string());
            let record = ProducerRecord::new(TOPIC).partition(partition).key(key.clone());
            let record = value.iter().fold(record, |record, value| record.value(value.clone()));
            sent.push((partition, key, value, producer.send(record).await.expect("it is taken")));
        }
        for (partition, key, value, sent) in sent {
            sent.await.expect("it is acknowledged within the delivery timeout");
            let table = tables.entry(partition).or_default();
            match value {
                Some(value) => table.insert(key, value),
                None => table.remove(&key),
            };
        }
        rounds.fetch_add(1, Ordering::Relaxed);
    }
    tables
}

async fn read(client: &Client, partition: u32) -> Vec<ConsumerRecord> {
    let end = Admin::new(client).list_offset(TOPIC, partition, OffsetSpec::Latest).await;
    let end = end.expect("it is led").expect("every log has an end").offset;
    let place = TopicPartition::new(TOPIC, partition);
    let mut consumer = Consumer::new(client, ConsumerConfig::default());
    consumer.assign([(place.clone(), StartAt::Earliest)]).await.expect("it exists");
    let mut records = Vec::new();
    while consumer.position(&place).is_some_and(|position| position < end) {
        records.extend(consumer.poll(Duration::from_millis(50)).await.expect("the log can be read"));
    }
    records
}

/// Passes that came to their end on the brokers as they run now.
async fn passes(fleet: &Fleet) -> f64 {
    let mut passes = 0.0;
    for broker in 0..fleet.size() {
        passes += metric(&fleet.http(broker), PASSES).await;
    }
    passes
}

/// Rules C2, C3, T5, and S12.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_newest_acknowledged_value_of_each_key_is_read_whoever_dies_while_the_log_is_compacted() {
    let mut fleet = Fleet::start(&FleetOptions::new(3)).await.expect("every machine has what it takes");
    let client = fleet.connect().await;
    let mut topic = NewTopic { partitions: Some(PARTITIONS), replication_factor: Some(3), ..NewTopic::new(TOPIC) };
    let eager = [("cleanup.policy", "compact"), ("min.cleanable.dirty.ratio", "0"), ("segment.ms", "100")];
    let settings = eager.into_iter().chain([("delete.retention.ms", "300")]);
    topic.configs = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    Admin::new(&client).create_topic(topic).await.expect("it is new");
    fleet.wait_until_in_sync().await;
    let (rounds, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let writer = tokio::spawn(write(client.clone(), Arc::clone(&rounds), Arc::clone(&stop)));
    let written = async |more: u64| {
        let goal = rounds.load(Ordering::Relaxed) + more;
        let mut again = tokio::time::interval(Duration::from_millis(20));
        let written = async {
            while rounds.load(Ordering::Relaxed) < goal {
                again.tick().await;
            }
        };
        timeout(PATIENCE, written).await.expect("writes go on");
    };
    let compacted = async |fleet: &Fleet, more: f64| {
        let goal = passes(fleet).await + more;
        let mut again = tokio::time::interval(Duration::from_millis(50));
        let compacted = async {
            while passes(fleet).await < goal {
                again.tick().await;
            }
        };
        timeout(PATIENCE, compacted).await.expect("compaction goes on");
    };
    for broker in 0..fleet.size() {
        compacted(&fleet, 3.0).await;
        fleet.kill(broker);
        written(ROUNDS).await;
        fleet.restart(broker).await;
        fleet.wait_until_in_sync().await;
    }
    compacted(&fleet, 3.0).await;
    stop.store(true, Ordering::Relaxed);
    let expected = writer.await.expect("it has written");
    for partition in 0..PARTITIONS {
        let small = async {
            loop {
                let records = read(&client, partition).await;
                assert!(records.is_sorted_by(|a, b| a.offset < b.offset));
                assert_eq!(table(&records), expected[&partition], "partition {partition}");
                if records.len() as u64 == expected[&partition].len() as u64 {
                    return records;
                }
            }
        };
        let records = timeout(PATIENCE, small).await.expect("one record of each key is left");
        assert!(shown(&records).iter().all(|(.., value)| value.is_some()), "no tombstone is");
    }
    fleet.stop().await;
}
