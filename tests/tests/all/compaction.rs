//! Compacted topics: of each key the newest record stays, and whoever reads the log sees what it says and gets to its end (rules C2, C3, S12;
//! cases C1, C2, C3, C9).

mod fleet;

use bytes::Bytes;
use millpond_broker::api::{Acks, ApiError, ProduceRequest, SettingsChange, TopicRef};
use millpond_core::topic_config::Alteration;
use millpond_log::batch::{BatchBuilder, NewRecord, ProducerStamp};
use millpond_log::codec::Codec;
use millpond_log::{ErrorCode, ProducerEpoch, ProducerId};
use millpond_sdk::{
    Admin, Client, Consumer, ConsumerConfig, ConsumerRecord, IsolationLevel, NewTopic, Offset, OffsetSpec, Producer,
    ProducerConfig, ProducerRecord, StartAt, TimestampMs, TopicPartition, TransactionalConfig, TransactionalProducer,
};
use millpond_tests::broker::{TestBroker, config};
use millpond_tests::http::metric;
use object_store::ObjectStore;
use object_store::memory::InMemory;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

const TOPIC: &str = "latest";

/// Nothing that is waited for takes so long, unless it never comes.
const PATIENCE: Duration = Duration::from_secs(60);

const PASSES: &str = "millpond_compaction_passes_total";

struct Pond {
    broker: TestBroker,
    client: Client,
}

impl Pond {
    async fn start(dir: &Path, objects: &Arc<dyn ObjectStore>) -> Pond {
        let broker = TestBroker::start(config(dir), Arc::clone(objects)).await;
        let client = Client::connect(broker.grpc()).await.expect("it answers");
        Pond { broker, client }
    }

    /// A topic of one partition that is compacted as soon as anything of it is not.
    async fn create(&self, settings: &[(&str, &str)]) {
        let mut topic = NewTopic { partitions: Some(1), ..NewTopic::new(TOPIC) };
        let eager = [("cleanup.policy", "compact"), ("min.cleanable.dirty.ratio", "0")];
        let settings = eager.iter().chain(settings);
        topic.configs = settings.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Admin::new(&self.client).create_topic(topic).await.expect("it is new");
    }

    async fn set(&self, name: &str, value: &str) {
        let change = SettingsChange::Alter(vec![(name.to_owned(), Alteration::Set(value.to_owned()))]);
        let topic = TopicRef::Name(TOPIC.to_owned());
        self.broker.handle().alter_topic(&topic, change, false).await.expect("it is a setting");
    }

    /// Has all that is committed go to the bucket.
    async fn flush(&self) {
        self.broker.handle().flush_topic(&TopicRef::Name(TOPIC.to_owned())).await.expect("memory takes it");
    }

    async fn passes(&self) -> f64 {
        metric(self.broker.http(), PASSES).await
    }

    /// Flushes, and waits until compaction has made of the log what it should.
    async fn compacted(&self, what: &str, should: impl Fn(&[ConsumerRecord]) -> bool) -> Vec<ConsumerRecord> {
        self.flush().await;
        let compacted = async {
            let mut again = tokio::time::interval(Duration::from_millis(50));
            loop {
                again.tick().await;
                let records = self.read(Offset(0), IsolationLevel::ReadUncommitted).await;
                if should(&records) {
                    return records;
                }
            }
        };
        timeout(PATIENCE, compacted).await.unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"))
    }

    /// Writes records of these keys in one batch, as a producer that counts.
    async fn write_as(&self, stamp: ProducerStamp, keys: &[&str], value: &str) -> Result<Offset, ApiError> {
        let mut builder = BatchBuilder::new(Codec::None).producer(stamp);
        for key in keys {
            let (key, value) = (Some(key.as_bytes()), Some(value.as_bytes()));
            builder.push(NewRecord { timestamp: TimestampMs(1), key, value, headers: &[] });
        }
        let mut records = Vec::new();
        builder.build().put(&mut records);
        let request = ProduceRequest {
            topic: TopicRef::Name(TOPIC.to_owned()),
            partition: 0,
            arrived_bytes: records.len(),
            records: Bytes::from(records),
            behind: None,
            transaction: None,
            acks: Acks::All,
            timeout: PATIENCE,
        };
        Ok(self.broker.handle().produce(request).await?.await?.base_offset)
    }

    async fn offset(&self, isolation: IsolationLevel, spec: OffsetSpec) -> Offset {
        let found = Admin::new(&self.client).list_offset_seen_by(isolation, TOPIC, 0, spec).await;
        found.expect("it is led").expect("every log has one").offset
    }

    /// What a reader from `start` sees until it stands at the end of the log.
    async fn read(&self, start: Offset, isolation: IsolationLevel) -> Vec<ConsumerRecord> {
        let end = self.offset(isolation, OffsetSpec::Latest).await;
        let mut consumer = Consumer::new(&self.client, ConsumerConfig { isolation, ..ConsumerConfig::default() });
        let place = TopicPartition::new(TOPIC, 0);
        consumer.assign([(place.clone(), StartAt::Offset(start))]).await.expect("it exists");
        let mut records = Vec::new();
        let reading = async {
            while consumer.position(&place).is_some_and(|position| position < end) {
                records.extend(consumer.poll(Duration::from_millis(50)).await.expect("the log can be read"));
            }
        };
        timeout(PATIENCE, reading).await.expect("a reader gets to the end of the log");
        assert!(consumer.position(&place) >= Some(end), "from {start}");
        records
    }

    async fn stop(self) {
        self.broker.stop().await;
    }
}

fn record(key: &str, value: Option<&str>) -> ProducerRecord {
    let record = ProducerRecord::new(TOPIC).partition(0).key(key.to_owned());
    match value {
        Some(value) => record.value(value.to_owned()),
        None => record,
    }
}

async fn write(producer: &Producer, records: impl IntoIterator<Item = ProducerRecord>) {
    let mut sent = Vec::new();
    for record in records {
        sent.push(producer.send(record).await.expect("it is taken"));
    }
    for sent in sent {
        sent.await.expect("it is acknowledged");
    }
}

fn text(bytes: Option<&[u8]>) -> Option<String> {
    bytes.map(|bytes| String::from_utf8(bytes.to_vec()).expect("tests write text"))
}

/// Offset, key and value.
fn shown(records: &[ConsumerRecord]) -> Vec<(u64, String, Option<String>)> {
    let shown = |record: &ConsumerRecord| {
        let key = text(record.key.as_deref()).expect("every record has a key");
        (record.offset.0, key, text(record.value.as_deref()))
    };
    records.iter().map(shown).collect()
}

/// What a reader makes of the log: the newest value of each key that has one.
fn table(records: &[ConsumerRecord]) -> BTreeMap<String, String> {
    let mut table = BTreeMap::new();
    for (_, key, value) in shown(records) {
        match value {
            Some(value) => table.insert(key, value),
            None => table.remove(&key),
        };
    }
    table
}

fn memory() -> Arc<dyn ObjectStore> {
    Arc::new(InMemory::new())
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

/// Rules C2, C3, and case C9: what stays keeps its offset, and a reader from any offset gets to the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_newest_record_of_each_key_stays_at_its_offset_and_every_reader_gets_to_the_end() {
    let (dir, objects) = (folder(), memory());
    let pond = Pond::start(dir.path(), &objects).await;
    pond.create(&[]).await;
    let producer = Producer::new(&pond.client, ProducerConfig::default()).expect("good settings");
    let key = |offset: u64| match offset % 100 {
        nth if nth.is_multiple_of(7) => format!("once-{offset}"),
        nth => format!("k{nth}"),
    };
    for round in 0..7 {
        write(&producer, (0..100).map(|nth| record(&key(round * 100 + nth), Some(&round.to_string())))).await;
        pond.flush().await;
    }
    let all = pond.compacted("one record of each key", |records| records.len() == 7 * 15 + 85).await;
    let all = shown(&all);
    for (offset, found, value) in &all {
        assert_eq!((found, value.as_deref()), (&key(*offset), Some((offset / 100).to_string().as_str())));
        assert!(*offset >= 600 || found.starts_with("once"), "{offset}");
    }
    for start in (0..=700).step_by(23) {
        let from = shown(&pond.read(Offset(start), IsolationLevel::ReadUncommitted).await);
        assert_eq!(from, all.iter().filter(|(offset, ..)| *offset >= start).cloned().collect::<Vec<_>>());
    }
    assert_eq!(pond.offset(IsolationLevel::ReadUncommitted, OffsetSpec::Earliest).await, Offset(0));
    pond.stop().await;
}

/// Rules C2, P5, and case C9.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_producer_goes_on_where_it_was_when_none_of_its_records_is_left_also_after_a_restart() {
    let (dir, objects) = (folder(), memory());
    let mut pond = Pond::start(dir.path(), &objects).await;
    pond.create(&[]).await;
    let stamp = |id, base_sequence| ProducerStamp { id: ProducerId(id), epoch: ProducerEpoch(0), base_sequence };
    pond.write_as(stamp(70, 0), &["a", "b", "c"], "first").await.expect("it is the first");
    pond.flush().await;
    pond.write_as(stamp(71, 0), &["a", "b", "c"], "second").await.expect("it is the first");
    let left = pond.compacted("the first producer's records are gone", |records| records.len() == 3).await;
    assert!(left.iter().all(|record| record.offset.0 >= 3));
    for restarted in [false, true] {
        if restarted {
            pond.stop().await;
            pond = Pond::start(dir.path(), &objects).await;
        }
        let again = pond.write_as(stamp(70, 0), &["a", "b", "c"], "first").await;
        assert_eq!(again.map_err(|error| error.code), Ok(Offset(0)), "a repeated batch is answered as it was");
        let gap = pond.write_as(stamp(70, 9), &["a"], "gap").await;
        assert_eq!(gap.map_err(|error| error.code), Err(ErrorCode::OutOfOrderSequenceNumber));
    }
    assert_eq!(pond.write_as(stamp(70, 3), &["d"], "third").await.map_err(|error| error.code), Ok(Offset(6)));
    pond.stop().await;
}

/// Rule P5: the segment that takes the place of all is where uploads and starts go on from.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_whose_many_segments_became_one_goes_on_also_after_a_restart() {
    let (dir, objects) = (folder(), memory());
    let mut pond = Pond::start(dir.path(), &objects).await;
    pond.create(&[("cleanup.policy", "delete")]).await;
    let stamp = |base_sequence| ProducerStamp { id: ProducerId(70), epoch: ProducerEpoch(0), base_sequence };
    // So many that most are named in rolled manifests.
    for nth in 0..60 {
        let written = pond.write_as(stamp(nth), &[&format!("k{nth}")], "first").await;
        assert_eq!(written.map_err(|error| error.code), Ok(Offset(nth as u64)));
        pond.flush().await;
    }
    pond.set("cleanup.policy", "compact").await;
    let written = async { while metric(pond.broker.http(), "millpond_compaction_written_bytes_total").await == 0.0 {} };
    timeout(PATIENCE, written).await.expect("they are written as one");
    for restarted in [false, true] {
        if restarted {
            pond.stop().await;
            pond = Pond::start(dir.path(), &objects).await;
        }
        assert_eq!(pond.read(Offset(0), IsolationLevel::ReadUncommitted).await.len(), 60 + usize::from(restarted));
        let (sequence, again) = if restarted { (61, 60) } else { (60, 59) };
        let repeated = pond.write_as(stamp(again), &[&format!("k{again}")], "first").await;
        assert_eq!(repeated.map_err(|error| error.code), Ok(Offset(again as u64)), "its producer is known");
        let written = pond.write_as(stamp(sequence), &[&format!("k{sequence}")], "first").await;
        assert_eq!(written.map_err(|error| error.code), Ok(Offset(sequence as u64)));
        pond.flush().await;
    }
    pond.stop().await;
}

/// Case C2: a topic that is emptied by tombstones ends up without records, and tells where it ends all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tombstones_go_once_their_time_is_over_and_the_end_of_the_log_stays() {
    let (dir, objects) = (folder(), memory());
    let pond = Pond::start(dir.path(), &objects).await;
    pond.create(&[("delete.retention.ms", "2000")]).await;
    let producer = Producer::new(&pond.client, ProducerConfig::default()).expect("good settings");
    write(&producer, (0..1000).map(|nth| record(&format!("k{nth}"), Some("set")))).await;
    pond.flush().await;
    write(&producer, (0..1000).map(|nth| record(&format!("k{nth}"), None))).await;
    pond.compacted("no record is left", <[ConsumerRecord]>::is_empty).await;
    for isolation in [IsolationLevel::ReadUncommitted, IsolationLevel::ReadCommitted] {
        assert_eq!(pond.offset(isolation, OffsetSpec::Earliest).await, Offset(0));
        assert_eq!(pond.offset(isolation, OffsetSpec::Latest).await, Offset(2000));
        for start in [0, 1, 999, 1000, 1500, 1999, 2000] {
            assert!(pond.read(Offset(start), isolation).await.is_empty(), "from {start}");
        }
    }
    write(&producer, [record("k0", Some("again"))]).await;
    let left = shown(&pond.read(Offset(0), IsolationLevel::ReadCommitted).await);
    assert_eq!(left, [(2000, "k0".to_owned(), Some("again".to_owned()))]);
    pond.stop().await;
}

/// Case C3: what a record is dated does not make a tombstone go early.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tombstone_stays_for_its_time_whatever_records_are_dated() {
    let (dir, objects) = (folder(), memory());
    let pond = Pond::start(dir.path(), &objects).await;
    pond.create(&[("message.timestamp.after.max.ms", &i64::MAX.to_string())]).await;
    let producer = Producer::new(&pond.client, ProducerConfig::default()).expect("good settings");
    let late = TimestampMs(millpond_broker::clock::wall().0 + 86_410_000);
    write(&producer, [record("late", Some("1")).timestamp(late), record("k", Some("1"))]).await;
    pond.flush().await;
    write(&producer, [record("k", None).timestamp(TimestampMs(0)), record("late", Some("2"))]).await;
    let left = pond.compacted("the older ones are gone", |records| records.len() == 2).await;
    assert_eq!(shown(&left)[0], (2, "k".to_owned(), None));
    assert_eq!(left[0].timestamp, TimestampMs(0), "nor is it dated otherwise");
    // Another pass finds it, and leaves it.
    write(&producer, [record("late", Some("3"))]).await;
    let left = pond.compacted("the older one is gone", |records| records.len() == 2).await;
    assert_eq!(shown(&left)[0], (2, "k".to_owned(), None));
    pond.stop().await;
}

/// Case C1 and rule C2: markers are not taken for records of one key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_of_committed_records_see_the_same_after_compaction() {
    let (dir, objects) = (folder(), memory());
    let pond = Pond::start(dir.path(), &objects).await;
    pond.create(&[]).await;
    let mut producers = Vec::new();
    for id in ["one", "two"] {
        let producer = TransactionalProducer::new(&pond.client, TransactionalConfig::new(id)).await;
        producers.push(producer.expect("it is taken"));
    }
    let mut expected = BTreeMap::new();
    for pass in 0..3 {
        for nth in 0..50u32 {
            let producer = &mut producers[nth as usize % 2];
            producer.begin().expect("none is open");
            let (key, value) = (format!("k{}", nth / 2 % 10), format!("{pass}-{nth}"));
            for _ in 0..2 {
                let sent = producer.send(record(&key, Some(&value))).await.expect("it is taken");
                sent.await.expect("it is written");
            }
            if nth.is_multiple_of(3) {
                producer.abort().await.expect("it is aborted");
            } else {
                producer.commit().await.expect("it is committed");
                expected.insert(key, value);
            }
            if nth.is_multiple_of(17) {
                pond.flush().await;
            }
        }
        // A commit is answered once it is decided; its marker follows.
        let end = Offset((pass + 1) * 150);
        let ended = async { while pond.offset(IsolationLevel::ReadCommitted, OffsetSpec::Latest).await < end {} };
        timeout(PATIENCE, ended).await.expect("two records and a marker each");
        assert_eq!(table(&pond.read(Offset(0), IsolationLevel::ReadCommitted).await), expected);
        pond.compacted("one committed record of each key", |records| records.len() == expected.len()).await;
        let after = pond.read(Offset(0), IsolationLevel::ReadCommitted).await;
        assert_eq!(table(&after), expected);
        for isolation in [IsolationLevel::ReadUncommitted, IsolationLevel::ReadCommitted] {
            assert_eq!(pond.offset(isolation, OffsetSpec::Latest).await, end);
        }
        let offsets: Vec<u64> = after.iter().map(|record| record.offset.0).collect();
        for start in (0..end.0).step_by(31) {
            let from = pond.read(Offset(start), IsolationLevel::ReadCommitted).await;
            let expected: Vec<u64> = offsets.iter().copied().filter(|offset| *offset >= start).collect();
            assert_eq!(from.iter().map(|record| record.offset.0).collect::<Vec<_>>(), expected);
        }
    }
    pond.stop().await;
}

/// `min.compaction.lag.ms`, and rule C2: what is not decided yet is not touched.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_too_young_or_in_an_open_transaction_is_not_compacted() {
    let (dir, objects) = (folder(), memory());
    let pond = Pond::start(dir.path(), &objects).await;
    pond.create(&[("min.compaction.lag.ms", "3600000"), ("segment.ms", "1")]).await;
    let producer = Producer::new(&pond.client, ProducerConfig::default()).expect("good settings");
    let twice = || [record("k", Some("1")), record("k", Some("2"))];
    write(&producer, twice()).await;
    pond.flush().await;
    let young = pond.read(Offset(0), IsolationLevel::ReadUncommitted).await;
    assert_eq!(young.len(), 2);
    let mut open = TransactionalProducer::new(&pond.client, TransactionalConfig::new("open")).await.expect("taken");
    open.begin().expect("none is open");
    open.send(record("t", Some("1"))).await.expect("it is taken").await.expect("it is written");
    write(&producer, twice()).await;
    // What is old enough for an upload goes up in spite of the transaction, and is not stable.
    let uploaded = async { while metric(pond.broker.http(), "millpond_committed_segments_total").await < 2.0 {} };
    timeout(PATIENCE, uploaded).await.expect("the tail goes up");
    assert_eq!(pond.passes().await, 0.0, "nothing was old enough");
    pond.set("min.compaction.lag.ms", "0").await;
    let stable = |records: &[ConsumerRecord]| shown(records).first().is_some_and(|(offset, ..)| *offset == 1);
    let left = async { while !stable(&pond.read(Offset(0), IsolationLevel::ReadUncommitted).await) {} };
    timeout(PATIENCE, left).await.expect("the first segment is compacted");
    let offsets = |records: &[ConsumerRecord]| records.iter().map(|record| record.offset.0).collect::<Vec<_>>();
    let left = pond.read(Offset(0), IsolationLevel::ReadUncommitted).await;
    assert_eq!(offsets(&left), [1, 2, 3, 4], "the newest is above what is stable");
    open.commit().await.expect("it is committed");
    let left = pond.compacted("the transaction is over", |records| records.len() == 2).await;
    assert_eq!(offsets(&left), [2, 4]);
    pond.stop().await;
}
