//! The whole path of one broker, over more than one object store: publish, flush, trim, restart, replay.

use bytes::Bytes;
use millpond_broker::api::{FetchPartition, FetchRequest, Isolation, Reader, TopicRef};
use millpond_log::{Batch, Offset};
use millpond_sdk::{
    Admin, Client, Consumer, ConsumerConfig, ConsumerRecord, NewTopic, Producer, ProducerConfig, ProducerRecord,
    StartAt, TopicPartition,
};
use millpond_tests::broker::{TestBroker, config};
use millpond_tests::s3::S3;
use millpond_tests::tools::skip;
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::prefix::PrefixStore;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const TOPIC: &str = "events";
const PARTITIONS: u32 = 3;
const RECORDS: u32 = 3000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_published_is_replayed_byte_for_byte_after_upload_trim_and_restart_over_memory() {
    whole_path(Arc::new(InMemory::new())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_published_is_replayed_byte_for_byte_after_upload_trim_and_restart_over_files() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    whole_path(Arc::new(LocalFileSystem::new_with_prefix(dir.path()).expect("the folder exists").with_fsync(true)))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_published_is_replayed_byte_for_byte_after_upload_trim_and_restart_over_an_s3_server_that_misbehaves()
{
    let test =
        "what_was_published_is_replayed_byte_for_byte_after_upload_trim_and_restart_over_an_s3_server_that_misbehaves";
    let s3 = match S3::start().await {
        Ok(s3) => s3,
        Err(why) => return skip(test, &why),
    };
    whole_path(Arc::new(PrefixStore::new(s3.bucket(), "calm"))).await;
    let seed = rand::random();
    println!("SEED={seed}");
    whole_path(Arc::new(PrefixStore::new(s3.faulty_bucket(seed).await, "faulty"))).await;
}

async fn whole_path(objects: Arc<dyn ObjectStore>) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = TestBroker::start(config(dir.path()), Arc::clone(&objects)).await;
    let client = Client::connect(broker.grpc()).await.expect("the broker is up");
    let admin = Admin::new(&client);
    let mut topic = NewTopic::new(TOPIC);
    topic.partitions = Some(PARTITIONS);
    admin.create_topic(topic).await.expect("the topic is new");
    publish(&client).await;
    let from_tail = read_all(&client).await;
    let batches_before = all_batches(&broker).await;
    check_order_per_key(&from_tail);

    admin.flush_topic(TOPIC).await.expect("the object store is there");
    for partition in 0..PARTITIONS {
        let status = admin.partition_status(TOPIC, partition).await.expect("it exists");
        assert_eq!(status.tiered_end, status.high_watermark, "everything committed is uploaded");
        assert_eq!(status.tail_bytes, 0, "the WAL holds only the tail, and there is none");
        assert!(status.tiered_bytes > 0);
    }
    assert_eq!(all_batches(&broker).await, batches_before, "the same bytes from object storage");
    broker.stop().await;

    let broker = TestBroker::start(config(dir.path()), objects).await;
    let client = Client::connect(broker.grpc()).await.expect("the broker is up again");
    assert_eq!(all_batches(&broker).await, batches_before, "the same bytes after a restart");
    assert_eq!(read_all(&client).await, from_tail);
    publish(&client).await;
    let twice = read_all(&client).await;
    assert_eq!(twice.len(), 2 * from_tail.len(), "offsets go on where they ended");
    broker.stop().await;
}

/// Keys 0 to 16 in turn; each value counts up.
async fn publish(client: &Client) {
    let producer = Producer::new(client, ProducerConfig::default()).expect("the defaults are sound");
    let mut deliveries = Vec::new();
    for number in 0..RECORDS {
        let record = ProducerRecord::new(TOPIC)
            .key(format!("key-{}", number % 17))
            .value(number.to_be_bytes().to_vec())
            .header("number", number.to_string());
        deliveries.push(producer.send(record).await.expect("there is room"));
    }
    for delivery in deliveries {
        delivery.await.expect("acknowledged");
    }
    producer.close().await;
}

async fn read_all(client: &Client) -> Vec<ConsumerRecord> {
    let admin = Admin::new(client);
    let mut left = 0;
    for partition in 0..PARTITIONS {
        left += admin.partition_status(TOPIC, partition).await.expect("it exists").high_watermark.0;
    }
    let mut consumer = Consumer::new(client, ConsumerConfig::default());
    let all = (0..PARTITIONS).map(|partition| (TopicPartition::new(TOPIC, partition), StartAt::Earliest));
    consumer.assign(all).await.expect("the topic exists");
    let mut records = Vec::new();
    while (records.len() as u64) < left {
        records.extend(consumer.poll(Duration::from_secs(5)).await.expect("the log can be read"));
    }
    records.sort_by_key(|record| (record.partition, record.offset));
    records
}

fn check_order_per_key(records: &[ConsumerRecord]) {
    let mut last: BTreeMap<Bytes, u32> = BTreeMap::new();
    assert_eq!(records.len() as u32, RECORDS);
    for record in records {
        let key = record.key.clone().expect("every record has a key");
        let value = record.value.as_deref().and_then(|value| value.try_into().ok()).map(u32::from_be_bytes);
        let value = value.expect("four bytes");
        assert!(last.insert(key, value).is_none_or(|before| before < value), "order per key");
        assert_eq!(record.headers[0].value.as_deref(), Some(value.to_string().as_bytes()));
    }
}

/// Every batch of the topic as stored, by fetching in small steps.
async fn all_batches(broker: &TestBroker) -> Vec<Batch> {
    let mut batches = Vec::new();
    for partition in 0..PARTITIONS {
        let mut offset = Offset(0);
        loop {
            let request = FetchRequest {
                partitions: vec![FetchPartition {
                    topic: TopicRef::Name(TOPIC.to_owned()),
                    partition,
                    offset,
                    bytes_max: 50_000,
                    current_leader_epoch: None,
                    last_fetched_epoch: None,
                    reader: Reader::Anywhere,
                }],
                bytes_max: 50_000,
                bytes_min: 0,
                wait_max: Duration::from_secs(5),
                isolation: Isolation::ReadUncommitted,
                scan: false,
            };
            let fetched = broker.handle().fetch(request).await.remove(0);
            assert_eq!(fetched.error, None);
            let Some(last) = fetched.batches.last() else { break };
            offset = last.end_offset();
            batches.extend(fetched.batches);
        }
    }
    batches
}
