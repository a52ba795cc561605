//! What reads of old data cost, counted at the broker's own metric and, over S3, at the server: a restarted broker with an empty
//! cache reads a random offset for two GETs at most, and replays for one GET per 4 MiB at most.

use bytes::Bytes;
use millpond_broker::Config;
use millpond_broker::api::{Acks, FetchPartition, FetchRequest, Isolation, NewTopic, ProduceRequest, Reader, TopicRef};
use millpond_log::batch::{BatchBuilder, NewRecord};
use millpond_log::codec::Codec;
use millpond_log::{Batch, Offset, TimestampMs};
use millpond_tests::broker::{TestBroker, config};
use millpond_tests::s3::S3;
use millpond_tests::tools::skip;
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::prefix::PrefixStore;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const BATCH_BYTES: usize = 128 << 10;

/// A topic of one partition, and how much is in it.
struct Data {
    topic: &'static str,
    segment_bytes: u64,
    batches: u64,
}

/// Six segments: what a broker reads to come up leaves the older ones untouched.
const MANY: Data = Data { topic: "many", segment_bytes: 4 * MIB, batches: 24 * MIB / BATCH_BYTES as u64 };

/// One segment as the default settings make it, but for its tail.
const LARGE: Data = Data { topic: "large", segment_bytes: 1 << 30, batches: 48 * MIB / BATCH_BYTES as u64 };

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cold_reads_cost_two_gets_and_replays_one_per_4_mib_over_files() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let objects = LocalFileSystem::new_with_prefix(dir.path()).expect("the folder exists");
    cold_reads(Arc::new(objects), None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cold_reads_cost_two_gets_and_replays_one_per_4_mib_over_s3() {
    let s3 = match S3::start().await {
        Ok(s3) => s3,
        Err(why) => return skip("cold_reads_cost_two_gets_and_replays_one_per_4_mib_over_s3", &why),
    };
    let (bucket, gets) = s3.counted_bucket().await;
    cold_reads(Arc::new(PrefixStore::new(bucket, "cold")), Some(gets)).await;
}

async fn cold_reads(objects: Arc<dyn ObjectStore>, at_server: Option<Arc<AtomicU64>>) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = TestBroker::start(roomy(dir.path()), Arc::clone(&objects)).await;
    let many = publish(&broker, &MANY).await;
    let large = publish(&broker, &LARGE).await;
    broker.stop().await;

    let seed = rand::random();
    println!("SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    for _ in 0..4 {
        // The start itself reads the end of what is tiered: a page there would not be cold.
        let offset = Offset(random.random_range(0..MANY.batches / 2));
        let (broker, counted) = start_cold(dir.path(), &objects, at_server.as_ref()).await;
        let read = fetch(&broker, &MANY, offset, 1, false).await;
        assert_eq!(read, [many[offset.0 as usize].clone()], "the batch at {offset}, and no other");
        let gets = counted.gets(&broker).await;
        assert!((1..=2).contains(&gets), "a cold read of offset {offset} cost {gets} GETs");
        broker.stop().await;
    }
    for scan in [false, true] {
        let (broker, counted) = start_cold(dir.path(), &objects, at_server.as_ref()).await;
        let mut replayed: Vec<Batch> = Vec::new();
        while (replayed.len() as u64) < LARGE.batches {
            let offset = replayed.last().map_or(Offset(0), Batch::end_offset);
            replayed.extend(fetch(&broker, &LARGE, offset, MIB as usize, scan).await);
        }
        assert_eq!(replayed, large);
        let bytes: u64 = large.iter().map(|batch| batch.size() as u64).sum();
        let (gets, allowed) = (counted.gets(&broker).await, bytes.div_ceil(4 * MIB));
        assert!(
            (1..=allowed).contains(&gets),
            "a replay of {bytes} bytes (scan: {scan}) cost {gets} GETs of {allowed}"
        );
        println!("replay of {bytes} bytes, scan {scan}: {gets} GETs of {allowed} allowed");
        broker.stop().await;
    }
}

/// GETs since the start of a broker, after what it reads to come up.
struct Counted {
    before: u64,
    at_server: Option<(Arc<AtomicU64>, u64)>,
}

impl Counted {
    async fn gets(&self, broker: &TestBroker) -> u64 {
        let told = async || metric(broker, "millpond_cache_gets_total").await;
        let Some((now, before)) = &self.at_server else { return told().await - self.before };
        let seen = || now.load(Ordering::Relaxed) - before;
        // What is read ahead may be on its way: the metric counts it when it is sent, the server when it comes.
        let same = async { while seen() != told().await {} };
        let arrived = tokio::time::timeout(Duration::from_secs(20), same).await;
        assert!(arrived.is_ok(), "the server has seen {} GETs, the metric says {}", seen(), told().await);
        told().await - self.before
    }
}

/// Nothing goes up before it is flushed.
fn roomy(dir: &Path) -> Config {
    Config { wal_bytes: 256 * MIB, ..config(dir) }
}

/// A broker that has nothing of the topic on its disk but the tail, which is empty.
async fn start_cold(
    dir: &Path,
    objects: &Arc<dyn ObjectStore>,
    at_server: Option<&Arc<AtomicU64>>,
) -> (TestBroker, Counted) {
    match std::fs::remove_dir_all(dir.join("cache")) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("the cache cannot be emptied: {error}"),
        _ => {}
    }
    std::fs::remove_dir_all(dir.join("wal")).expect("everything is in object storage");
    // The server counts from here on, as the metric does: what a start still has under way falls between no two readings.
    let at_server = at_server.map(|gets| (Arc::clone(gets), gets.load(Ordering::Relaxed)));
    let broker = TestBroker::start(roomy(dir), Arc::clone(objects)).await;
    let before = metric(&broker, "millpond_cache_gets_total").await;
    (broker, Counted { before, at_server })
}

async fn publish(broker: &TestBroker, data: &Data) -> Vec<Batch> {
    let topic = NewTopic {
        name: data.topic.to_owned(),
        partitions: Some(1),
        configs: [("segment.bytes".to_owned(), data.segment_bytes.to_string())].into(),
        ..NewTopic::default()
    };
    broker.handle().create_topic(topic).await.expect("it is new");
    let mut random = StdRng::seed_from_u64(7);
    for number in 0..data.batches {
        let mut value = vec![0; BATCH_BYTES - 100];
        random.fill(&mut value[..]);
        let mut builder = BatchBuilder::new(Codec::None);
        builder.push(NewRecord { timestamp: TimestampMs(number as i64), key: None, value: Some(&value), headers: &[] });
        let mut records = Vec::new();
        builder.build().put(&mut records);
        let request = ProduceRequest {
            topic: TopicRef::Name(data.topic.to_owned()),
            partition: 0,
            arrived_bytes: records.len(),
            records: Bytes::from(records),
            behind: None,
            transaction: None,
            acks: Acks::All,
            timeout: Duration::from_secs(30),
        };
        broker.handle().produce(request).await.expect("there is room").await.expect("acknowledged");
    }
    let mut stored: Vec<Batch> = Vec::new();
    while (stored.len() as u64) < data.batches {
        let offset = stored.last().map_or(Offset(0), Batch::end_offset);
        stored.extend(fetch(broker, data, offset, MIB as usize, true).await);
    }
    broker.handle().flush_topic(&TopicRef::Name(data.topic.to_owned())).await.expect("the object store is there");
    stored
}

async fn fetch(broker: &TestBroker, data: &Data, offset: Offset, bytes_max: usize, scan: bool) -> Vec<Batch> {
    let wanted = FetchPartition {
        topic: TopicRef::Name(data.topic.to_owned()),
        partition: 0,
        offset,
        bytes_max,
        current_leader_epoch: None,
        last_fetched_epoch: None,
        reader: Reader::Anywhere,
    };
    let request = FetchRequest {
        partitions: vec![wanted],
        bytes_max,
        bytes_min: 1,
        wait_max: Duration::from_secs(30),
        isolation: Isolation::ReadUncommitted,
        scan,
    };
    let fetched = broker.handle().fetch(request).await.remove(0);
    assert_eq!(fetched.error, None);
    fetched.batches
}

/// A metric off the HTTP door, as an operator's tools read it.
async fn metric(broker: &TestBroker, name: &str) -> u64 {
    millpond_tests::http::metric(broker.http(), name).await as u64
}
