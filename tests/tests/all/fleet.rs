//! Three brokers: what is acknowledged is on the in-sync replicas, and outlives any one of them.

use millpond_broker::Broker;
use millpond_broker::api::{FetchPartition, FetchRequest, Isolation, Reader, TopicRef};
use millpond_log::{Batch, BrokerId, Offset};
use millpond_sdk::{
    Admin, Client, Consumer, ConsumerConfig, NewTopic, Producer, ProducerConfig, ProducerRecord, StartAt,
    TopicPartition,
};
use millpond_tests::brokers::{TestBrokers, WAL_BYTES};
use object_store::memory::InMemory;
use std::sync::Arc;
use std::time::Duration;

const TOPIC: &str = "events";
const PARTITIONS: u32 = 4;

/// Sends the numbers, spread over keys, and waits until each is acknowledged by all that are in sync.
async fn publish(client: &Client, numbers: std::ops::Range<u32>) {
    let producer = Producer::new(client, ProducerConfig::default()).expect("the defaults are sound");
    let mut deliveries = Vec::new();
    for number in numbers {
        let record =
            ProducerRecord::new(TOPIC).key(format!("key-{}", number % 17)).value(number.to_be_bytes().to_vec());
        deliveries.push(producer.send(record).await.expect("there is room"));
    }
    for delivery in deliveries {
        delivery.await.expect("acknowledged");
    }
    producer.close().await;
}

/// All numbers in the topic, each partition's in order; sorted.
async fn read(client: &Client, count: usize) -> Vec<u32> {
    let mut consumer = Consumer::new(client, ConsumerConfig::default());
    let all = (0..PARTITIONS).map(|partition| (TopicPartition::new(TOPIC, partition), StartAt::Earliest));
    consumer.assign(all).await.expect("the topic exists");
    let mut numbers = Vec::new();
    while numbers.len() < count {
        for record in consumer.poll(Duration::from_secs(10)).await.expect("the log can be read") {
            let value = record.value.as_deref().and_then(|value| value.try_into().ok());
            numbers.push(u32::from_be_bytes(value.expect("four bytes")));
        }
    }
    numbers.sort_unstable();
    numbers
}

async fn create(client: &Client) {
    let mut topic = NewTopic::new(TOPIC);
    topic.partitions = Some(PARTITIONS);
    topic.replication_factor = Some(3);
    Admin::new(client).create_topic(topic).await.expect("the topic is new");
}

/// Waits until a broker holds and has committed all of every partition's log, and is in sync everywhere.
async fn await_in_sync(brokers: &TestBrokers, id: u32) {
    for partition in 0..PARTITIONS {
        loop {
            let topic = brokers.handle(id).topic(&TopicRef::Name(TOPIC.to_owned())).expect("the topic exists");
            let described = &topic.partitions[partition as usize];
            let leader = described.leader.map(|leader| brokers.handle(leader.0).partition_status(described.id));
            let own = brokers.handle(id).partition_status(described.id);
            if let (Some(Ok(leader)), Ok(own)) = (leader, own)
                && described.isr.contains(&BrokerId(id))
                && own.high_watermark == leader.log_end
            {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
}

/// Every batch of a partition, as a broker serves it.
async fn batches(broker: &Broker, partition: u32) -> Vec<Batch> {
    let mut batches: Vec<Batch> = Vec::new();
    loop {
        let offset = batches.last().map_or(Offset(0), Batch::end_offset);
        let wanted = FetchPartition {
            topic: TopicRef::Name(TOPIC.to_owned()),
            partition,
            offset,
            bytes_max: 1 << 20,
            current_leader_epoch: None,
            last_fetched_epoch: None,
            reader: Reader::Anywhere,
        };
        let request = FetchRequest {
            partitions: vec![wanted],
            bytes_max: 1 << 20,
            bytes_min: 0,
            wait_max: Duration::from_secs(5),
            isolation: Isolation::ReadUncommitted,
            scan: false,
        };
        let fetched = broker.fetch(request).await.remove(0);
        assert_eq!(fetched.error, None, "from offset {offset}");
        if fetched.batches.is_empty() {
            return batches;
        }
        batches.extend(fetched.batches);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_that_missed_what_was_trimmed_takes_the_manifest_and_holds_the_same_log() {
    let mut brokers = TestBrokers::start(3, Arc::new(InMemory::new())).await;
    let client = Client::connect(&brokers.bootstrap()).await.expect("brokers are up");
    create(&client).await;
    publish(&client, 0..1000).await;
    await_in_sync(&brokers, 2).await;
    brokers.stop_one(2).await;
    // More than the WAL holds, so that its files are used again.
    let producer = Producer::new(&client, ProducerConfig::default()).expect("the defaults are sound");
    let value = vec![7; 100_000];
    let mut deliveries = Vec::new();
    for _ in 0..WAL_BYTES * 2 / value.len() as u64 {
        deliveries.push(producer.send(ProducerRecord::new(TOPIC).value(value.clone())).await.expect("there is room"));
    }
    for delivery in deliveries {
        delivery.await.expect("acknowledged");
    }
    producer.close().await;
    brokers.start_one(2).await;
    await_in_sync(&brokers, 2).await;
    for partition in 0..PARTITIONS {
        let here = batches(brokers.handle(2), partition).await;
        assert_eq!(here, batches(brokers.handle(0), partition).await);
        assert_eq!(here, batches(brokers.handle(1), partition).await);
    }
    brokers.stop_one(0).await;
    publish(&client, 0..1000).await;
    brokers.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acked_records_outlive_each_broker_in_turn() {
    let mut brokers = TestBrokers::start(3, Arc::new(InMemory::new())).await;
    let client = Client::connect(&brokers.bootstrap()).await.expect("brokers are up");
    create(&client).await;
    publish(&client, 0..1000).await;
    let mut end = 1000;
    for id in 0..3 {
        brokers.stop_one(id).await;
        publish(&client, end..end + 1000).await;
        end += 1000;
        assert_eq!(read(&client, end as usize).await, (0..end).collect::<Vec<u32>>(), "without broker {id}");
        brokers.start_one(id).await;
    }
    brokers.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushed_topic_is_in_the_bucket_whoever_leads_its_partitions() {
    let brokers = TestBrokers::start(3, Arc::new(InMemory::new())).await;
    let client = Client::connect(&brokers.bootstrap()).await.expect("brokers are up");
    create(&client).await;
    publish(&client, 0..1000).await;
    let admin = Admin::new(&client);
    admin.flush_topic(TOPIC).await.expect("memory takes it");
    let described = admin.describe_topic(TOPIC).await.expect("it exists").partitions;
    let leaders: Vec<BrokerId> = described.iter().filter_map(|partition| partition.leader).collect();
    assert!(leaders.iter().any(|leader| *leader != leaders[0]), "several brokers lead: {leaders:?}");
    for partition in 0..PARTITIONS {
        let status = admin.partition_status(TOPIC, partition).await.expect("its leader answers");
        assert_eq!(status.tiered_end, status.high_watermark, "partition {partition}");
    }
    brokers.stop().await;
}
