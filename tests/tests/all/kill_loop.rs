//! Kill -9 at random moments, with producers and a consumer running, uploads and trims happening. `KILL_LOOP_KILLS` sets how often.

use millpond_sdk::{
    Admin, Client, Consumer, ConsumerConfig, NewTopic, Offset, Producer, ProducerConfig, ProducerRecord, StartAt,
    TopicPartition,
};
use millpond_tests::process::{Dev, DevOptions};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const TOPIC: &str = "numbers";
const PARTITIONS: u32 = 4;
const PRODUCERS: u32 = 3;

/// What one producer was told: partition, offset, number, in order of sending.
type Acknowledged = Vec<(u32, Offset, u64)>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acked_records_survive_kills_once_and_in_order_while_uploads_and_trims_go_on() {
    let kills: u32 =
        std::env::var("KILL_LOOP_KILLS").map_or(5, |kills| kills.parse().expect("KILL_LOOP_KILLS is a number"));
    let seed: u64 =
        std::env::var("KILL_LOOP_SEED").map_or_else(|_| rand::random(), |seed| seed.parse().expect("a number"));
    println!("KILL_LOOP_SEED={seed} KILL_LOOP_KILLS={kills}");
    let mut random = StdRng::seed_from_u64(seed);
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut options = DevOptions::new(dir.path());
    let mut dev = Dev::start(&options);
    options.ports = dev.ports();
    let bootstrap = dev.grpc.clone();

    let client = Client::connect(&bootstrap).await.expect("the broker is up");
    // Small and young segments, so that uploads and trims happen between any two kills.
    let mut topic = NewTopic::new(TOPIC);
    topic.partitions = Some(PARTITIONS);
    topic.configs = BTreeMap::from([("segment.bytes".into(), "65536".into()), ("segment.ms".into(), "300".into())]);
    Admin::new(&client).create_topic(topic).await.expect("the topic is new");

    let stop = Arc::new(AtomicBool::new(false));
    let producers: Vec<_> =
        (0..PRODUCERS).map(|number| tokio::spawn(produce(bootstrap.clone(), number, Arc::clone(&stop)))).collect();
    let reader = tokio::spawn(read_along(bootstrap.clone(), Arc::clone(&stop)));

    for _ in 0..kills {
        tokio::time::sleep(Duration::from_millis(random.random_range(50..1500))).await;
        dev.kill();
        dev = Dev::start(&options);
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    stop.store(true, Ordering::Relaxed);
    let mut acknowledged = Vec::new();
    for producer in producers {
        acknowledged.push(producer.await.expect("the producer did not panic"));
    }
    let read_along = reader.await.expect("the reader did not panic");
    let logs = read_all(&bootstrap).await;
    check(&acknowledged, &logs);
    for (partition, seen) in read_along {
        assert_eq!(seen, logs[&partition][..seen.len()], "what was read once reads the same again (S2)");
    }
    let total: usize = acknowledged.iter().map(Vec::len).sum();
    println!("{total} records acknowledged over {kills} kills, seed {seed}");
    assert!(total > 100, "the producers got somewhere");
    assert!(tiered_somewhere(&client).await, "uploads happened");
}

/// Sends numbers, each producer its own, until told to stop; returns what was acknowledged.
async fn produce(bootstrap: String, producer_number: u32, stop: Arc<AtomicBool>) -> Acknowledged {
    let client = Client::connect(&bootstrap).await.expect("the broker comes back");
    let producer = Producer::new(&client, ProducerConfig::default()).expect("the defaults are sound");
    let mut acknowledged = Vec::new();
    let mut next = 0;
    while !stop.load(Ordering::Relaxed) {
        let mut deliveries = Vec::new();
        for number in next..next + 20 {
            let record = ProducerRecord::new(TOPIC)
                .partition(number as u32 % PARTITIONS)
                .key(producer_number.to_string())
                .value(format!("{number}:{}", "x".repeat(300)));
            deliveries.push((number, producer.send(record).await.expect("there is room")));
        }
        next += 20;
        for (number, delivery) in deliveries {
            let written = delivery.await.expect("acknowledged within the delivery timeout");
            acknowledged.push((written.partition, written.offset.expect("acks=all tells the offset"), number));
        }
    }
    producer.close().await;
    acknowledged
}

/// One partition's records as (producer, number), by offset from 0.
type Log = Vec<(u32, u64)>;

/// Follows the log from the start while brokers die; returns what was seen.
async fn read_along(bootstrap: String, stop: Arc<AtomicBool>) -> BTreeMap<u32, Log> {
    let mut consumer = consumer(&bootstrap).await;
    let mut logs = BTreeMap::new();
    while !stop.load(Ordering::Relaxed) {
        for record in consumer.poll(Duration::from_millis(100)).await.expect("retriable errors stay inside") {
            push(&mut logs, &record);
        }
    }
    logs
}

async fn read_all(bootstrap: &str) -> BTreeMap<u32, Log> {
    let client = Client::connect(bootstrap).await.expect("the broker is up");
    let admin = Admin::new(&client);
    let mut consumer = consumer(bootstrap).await;
    let mut logs: BTreeMap<u32, Log> = (0..PARTITIONS).map(|partition| (partition, Log::new())).collect();
    for partition in 0..PARTITIONS {
        let end = admin.partition_status(TOPIC, partition).await.expect("the partition exists").high_watermark;
        while (logs[&partition].len() as u64) < end.0 {
            for record in consumer.poll(Duration::from_secs(1)).await.expect("the log can be read") {
                push(&mut logs, &record);
            }
        }
    }
    logs
}

async fn consumer(bootstrap: &str) -> Consumer {
    let client = Client::connect(bootstrap).await.expect("the broker comes back");
    let mut consumer = Consumer::new(&client, ConsumerConfig::default());
    let all = (0..PARTITIONS).map(|partition| (TopicPartition::new(TOPIC, partition), StartAt::Earliest));
    consumer.assign(all).await.expect("the topic exists");
    consumer
}

fn push(logs: &mut BTreeMap<u32, Log>, record: &millpond_sdk::ConsumerRecord) {
    let log = logs.entry(record.partition).or_default();
    assert_eq!(record.offset.0, log.len() as u64, "offsets are dense: none skipped, none repeated");
    let text =
        |bytes: &Option<bytes::Bytes>| String::from_utf8(bytes.as_ref().expect("not null").to_vec()).expect("text");
    let producer = text(&record.key).parse().expect("a producer's number");
    let number = text(&record.value).split(':').next().and_then(|number| number.parse().ok()).expect("a number");
    log.push((producer, number));
}

/// Every acknowledged record is where its producer was told, no number is there twice, and each producer's are in order.
fn check(acknowledged: &[Acknowledged], logs: &BTreeMap<u32, Log>) {
    for (producer, records) in acknowledged.iter().enumerate() {
        for (partition, offset, number) in records {
            let found = logs[partition].get(offset.0 as usize);
            assert_eq!(found, Some(&(producer as u32, *number)), "at {partition}/{offset}");
        }
    }
    for (partition, log) in logs {
        for producer in 0..acknowledged.len() as u32 {
            let numbers: Vec<u64> =
                log.iter().filter(|(from, _)| *from == producer).map(|(_, number)| *number).collect();
            let increasing = numbers.windows(2).all(|pair| pair[0] < pair[1]);
            assert!(increasing, "producer {producer} in partition {partition}: once each and in order");
        }
    }
}

async fn tiered_somewhere(client: &Client) -> bool {
    let admin = Admin::new(client);
    for partition in 0..PARTITIONS {
        if admin.partition_status(TOPIC, partition).await.expect("it exists").tiered_end > Offset(0) {
            return true;
        }
    }
    false
}
