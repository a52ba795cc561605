//! Three brokers: what is acknowledged is on the in-sync replicas, and outlives any one of them.

use millpond_sdk::{
    Admin, Client, Consumer, ConsumerConfig, NewTopic, Producer, ProducerConfig, ProducerRecord, StartAt,
    TopicPartition,
};
use millpond_tests::brokers::TestBrokers;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acked_records_outlive_each_broker_in_turn() {
    let mut brokers = TestBrokers::start(3, Arc::new(InMemory::new())).await;
    let client = Client::connect(&brokers.bootstrap()).await.expect("brokers are up");
    let admin = Admin::new(&client);
    let mut topic = NewTopic::new(TOPIC);
    topic.partitions = Some(PARTITIONS);
    topic.replication_factor = Some(3);
    admin.create_topic(topic).await.expect("the topic is new");
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
