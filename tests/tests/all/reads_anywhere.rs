//! Rule F4: what is in object storage is served by every broker, also by one that holds no copy of the partition, and never more
//! than that; rule F3: what takes a proof there is told by a read no older than the request.

use crate::kafka::wire::{Connection, bases, text};
use kafka_protocol::messages as kafka;
use millpond_log::Batch;
use millpond_proto::v1;
use millpond_proto::v1::log_client::LogClient;
use millpond_sdk::{
    Admin, Client, Consumer, ConsumerConfig, NewTopic, Offset, OffsetReset, Producer, ProducerConfig, ProducerRecord,
    ReadFrom, StartAt, TopicPartition,
};
use millpond_tests::brokers::TestBrokers;
use millpond_tests::fleet::{Fleet as ProcessFleet, FleetOptions, MetadataIn};
use millpond_tests::http;
use millpond_tests::tools::{Tool, skip};
use object_store::memory::InMemory;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tonic_types::StatusExt;

const TOPIC: &str = "events";
const NOT_LEADER: i16 = 6;
const OUT_OF_RANGE: i16 = 1;

/// Records that are uploaded, and those that come after them.
const TIERED: u64 = 500;
const ALL: u64 = 600;

/// Three brokers, and a topic of one partition with one copy, of which `TIERED` records are in object storage.
struct Fleet {
    brokers: TestBrokers,
    client: Client,
    /// The only one with a copy.
    leader: u32,
    epoch: u32,
    /// Two without.
    others: [u32; 2],
}

impl Fleet {
    async fn start() -> Fleet {
        let fleet = Fleet::of(|_| {}).await;
        let (client, admin) = (&fleet.client, Admin::new(&fleet.client));
        publish(client, 0..TIERED).await;
        admin.flush_topic(TOPIC).await.expect("the bucket is there");
        publish(client, TIERED..ALL).await;
        let status = admin.partition_status(TOPIC, 0).await.expect("it is led");
        assert_eq!((status.tiered_end, status.high_watermark), (Offset(TIERED), Offset(ALL)));
        fleet
    }

    /// With a topic that is empty, and set as the caller says.
    async fn of(set: impl Fn(&mut NewTopic)) -> Fleet {
        let brokers = TestBrokers::start(3, Arc::new(InMemory::new())).await;
        let client = Client::connect(&brokers.bootstrap()).await.expect("brokers are up");
        let mut topic = NewTopic::new(TOPIC);
        (topic.partitions, topic.replication_factor) = (Some(1), Some(1));
        set(&mut topic);
        let made = Admin::new(&client).create_topic(topic).await.expect("the topic is new").partitions.remove(0);
        let leader = made.leader.expect("it is led").0;
        let others = [(leader + 1) % 3, (leader + 2) % 3];
        Fleet { brokers, client, leader, epoch: made.leader_epoch.0, others }
    }

    async fn log(&self, broker: u32) -> LogClient<Channel> {
        LogClient::connect(format!("http://{}", self.brokers.addresses(broker).grpc)).await.expect("it is up")
    }

    /// Reads from `broker` alone, from `from` until it refuses: where it got to, and why.
    async fn read_all(&self, broker: u32, from: u64) -> (Vec<Range<u64>>, Status) {
        let mut log = self.log(broker).await;
        let mut read: Vec<Range<u64>> = Vec::new();
        loop {
            let offset = read.last().map_or(from, |last| last.end);
            match log.fetch_one(ask(offset)).await {
                Ok(answer) => read.extend(ranges(answer.into_inner())),
                Err(refused) => return (read, refused),
            }
        }
    }

    async fn consumer(&self, config: ConsumerConfig) -> Consumer {
        let mut consumer = Consumer::new(&self.client, config);
        consumer.assign([(TopicPartition::new(TOPIC, 0), StartAt::Offset(Offset(0)))]).await.expect("the topic exists");
        consumer
    }

    async fn fetched_bytes(&self, broker: u32) -> f64 {
        http::metric(&self.brokers.addresses(broker).http, "millpond_fetch_bytes_total").await
    }
}

async fn publish(client: &Client, numbers: Range<u64>) {
    let producer = Producer::new(client, ProducerConfig::default()).expect("the defaults are sound");
    let mut deliveries = Vec::new();
    for number in numbers {
        let record = ProducerRecord::new(TOPIC).partition(0).value(number.to_be_bytes().to_vec());
        deliveries.push(producer.send(record).await.expect("there is room"));
    }
    for delivery in deliveries {
        delivery.await.expect("acknowledged");
    }
    producer.close().await;
}

/// Writes a value for each of these keys; `None` deletes them.
async fn keep(client: &Client, keys: Range<u64>, value: Option<&str>) {
    let producer = Producer::new(client, ProducerConfig::default()).expect("the defaults are sound");
    let mut deliveries = Vec::new();
    for key in keys {
        let record = ProducerRecord::new(TOPIC).partition(0).key(key.to_string());
        let record = value.iter().fold(record, |record, value| record.value((*value).to_owned()));
        deliveries.push(producer.send(record).await.expect("there is room"));
    }
    for delivery in deliveries {
        delivery.await.expect("acknowledged");
    }
    producer.close().await;
}

fn ask(offset: u64) -> v1::FetchOneRequest {
    // Small reads, so that there are several.
    let topic = Some(v1::TopicRef::name(TOPIC));
    v1::FetchOneRequest { topic, offset, bytes_max: 4096, wait_ms_max: 10_000, ..Default::default() }
}

fn batches(answer: v1::FetchOneResponse) -> Vec<Batch> {
    let mut bytes = answer.records.unwrap_or_default().into_bytes();
    std::iter::from_fn(|| Batch::take(&mut bytes).expect("only whole batches are sent")).collect()
}

/// The offsets of each batch of an answer.
fn ranges(answer: v1::FetchOneResponse) -> Vec<Range<u64>> {
    batches(answer).iter().map(|batch| batch.base_offset().0..batch.end_offset().0).collect()
}

fn reason(status: &Status) -> String {
    status.get_details_error_info().map(|info| info.reason).unwrap_or_default()
}

async fn next(consumer: &mut Consumer, numbers: Range<u64>) {
    let mut expected = numbers.start;
    while expected < numbers.end {
        for record in consumer.poll(Duration::from_secs(10)).await.expect("the log can be read") {
            assert_eq!(record.offset, Offset(expected));
            assert_eq!(record.value.as_deref(), Some(&expected.to_be_bytes()[..]));
            expected += 1;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_without_a_copy_serves_what_is_in_object_storage_and_names_the_leader_for_the_rest() {
    let fleet = Fleet::start().await;
    for other in fleet.others {
        let (read, refused) = fleet.read_all(other, 0).await;
        assert!(read.windows(2).all(|pair| pair[0].end == pair[1].start), "rule F4: whole batches, none left out");
        assert_eq!((read[0].start, read[read.len() - 1].end), (0, TIERED), "rule F4: all of it, and no more");
        assert_eq!(reason(&refused), "NOT_LEADER_OR_FOLLOWER", "rule F3: the end is the leader's to tell");
        let info = refused.get_details_error_info().expect("an ErrorInfo").metadata;
        assert_eq!(info.get("leader"), Some(&fleet.leader.to_string()));
    }
    // An offset inside a batch brings the whole batch, with offsets that fit what can be read here (rule F5).
    let mut log = fleet.log(fleet.others[0]).await;
    let middle = log.fetch_one(ask(TIERED - 1)).await.expect("it is in object storage").into_inner();
    assert_eq!((middle.high_watermark, middle.last_stable, middle.log_start), (TIERED, TIERED, 0));
    let batch = ranges(middle).remove(0);
    assert!(batch.contains(&(TIERED - 1)) && batch.end == TIERED, "{batch:?}");

    // Beyond the log's end it does not say out of range: that is the leader's (rule F3).
    let beyond = log.fetch_one(ask(ALL + 7)).await.expect_err("nobody has it");
    assert_eq!(reason(&beyond), "NOT_LEADER_OR_FOLLOWER");
    fleet.brokers.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_without_a_copy_holds_readers_to_their_epochs_and_leaves_proofs_to_the_leader() {
    let fleet = Fleet::start().await;
    let mut log = fleet.log(fleet.others[0]).await;
    for (current, fetched, expected) in [
        (Some(fleet.epoch), Some(fleet.epoch), None),
        (Some(fleet.epoch + 1), None, Some("UNKNOWN_LEADER_EPOCH")),
        (fleet.epoch.checked_sub(1), None, fleet.epoch.checked_sub(1).map(|_| "FENCED_LEADER_EPOCH")),
        // The log it has read is not this one, perhaps: whoever leads says where they part.
        (None, Some(fleet.epoch + 1), Some("NOT_LEADER_OR_FOLLOWER")),
    ] {
        let request =
            v1::FetchOneRequest { current_leader_epoch: current, last_fetched_epoch: fetched, ..ask(TIERED / 2) };
        let answer = log.fetch_one(request).await;
        assert_eq!(answer.as_ref().err().map(reason).as_deref(), expected, "rule F2: {current:?} {fetched:?}");
        assert!(answer.map_or(true, |answer| !ranges(answer.into_inner()).is_empty()));
    }

    // The log's start moves. Who has not looked yet says so at once; who has may take its time, and says no other thing.
    let before = Offset(200);
    Admin::new(&fleet.client).delete_records(TOPIC, 0, Some(before)).await.expect("it is led");
    let gone = fleet.log(fleet.others[1]).await.fetch_one(ask(100)).await.expect_err("it was deleted");
    assert_eq!((gone.code(), reason(&gone).as_str()), (Code::OutOfRange, "OFFSET_OUT_OF_RANGE"), "rule F3");
    let started = log.fetch_one(ask(before.0)).await.expect("that is there").into_inner();
    assert!(ranges(started)[0].contains(&before.0));
    loop {
        match log.fetch_one(ask(100)).await {
            // A manifest from before the deletion, which is not used for long.
            Ok(old) => assert_eq!(old.into_inner().log_start, 0),
            Err(gone) => break assert_eq!(reason(&gone), "OFFSET_OUT_OF_RANGE", "rule F4: never another refusal"),
        }
        tokio::task::yield_now().await;
    }
    let (read, refused) = fleet.read_all(fleet.others[1], before.0).await;
    assert_eq!(read.last().map(|last| last.end), Some(TIERED));
    assert_eq!(reason(&refused), "NOT_LEADER_OR_FOLLOWER");

    // What is uploaded next is found there soon after.
    Admin::new(&fleet.client).flush_topic(TOPIC).await.expect("the bucket is there");
    let found = loop {
        match log.fetch_one(ask(ALL - 1)).await {
            Ok(answer) => break ranges(answer.into_inner()),
            Err(early) => {
                assert_eq!(reason(&early), "NOT_LEADER_OR_FOLLOWER", "rule F4: a stale manifest answers less")
            }
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(found.last().map(|last| last.end), Some(ALL));
    fleet.brokers.stop().await;
}

/// Rule F4 of a compacted log: kafkajs asks at the same offset again for as long as it is given nothing but batches without records.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_of_a_broker_without_a_copy_goes_on_behind_what_compaction_emptied() {
    let fleet = Fleet::of(|topic| {
        let settings =
            [("cleanup.policy", "compact"), ("min.cleanable.dirty.ratio", "0"), ("delete.retention.ms", "100")];
        topic.configs = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    })
    .await;
    let admin = Admin::new(&fleet.client);
    for value in [Some("set"), None] {
        keep(&fleet.client, 0..10, value).await;
        admin.flush_topic(TOPIC).await.expect("the bucket is there");
    }
    let mut log = fleet.log(fleet.leader).await;
    while batches(log.fetch_one(ask(0)).await.expect("it leads").into_inner())
        .iter()
        .any(|batch| batch.record_count() > 0)
    {
        tokio::task::yield_now().await;
    }
    // From here on nothing more of it is compacted.
    let lag = [("min.compaction.lag.ms".to_owned(), Some("3600000".to_owned()))];
    admin.alter_topic(TOPIC, lag.into()).await.expect("it is a setting");
    // More than a read takes, so that no read of what is before it brings it along.
    let bytes_max = ask(0).bytes_max as usize;
    keep(&fleet.client, 10..11, Some(&"large ".repeat(bytes_max))).await;
    admin.flush_topic(TOPIC).await.expect("the bucket is there");
    for (broker, isolation) in [
        (fleet.leader, v1::Isolation::ReadUncommitted),
        (fleet.others[0], v1::Isolation::ReadUncommitted),
        (fleet.others[0], v1::Isolation::ReadCommitted),
        (fleet.others[1], v1::Isolation::ReadCommitted),
    ] {
        let request = v1::FetchOneRequest { isolation: isolation.into(), ..ask(0) };
        let answer = fleet.log(broker).await.fetch_one(request).await.expect("it is in object storage");
        let batches = batches(answer.into_inner());
        let (last, before) = batches.split_last().expect("something is there");
        assert!(!before.is_empty() && before.iter().all(|batch| batch.record_count() == 0), "a hole comes first");
        assert_eq!((last.base_offset(), last.record_count()), (Offset(20), 1), "broker {broker}, {isolation:?}");
    }
    fleet.brokers.stop().await;
}

/// Kafka's brokers refuse a fetch from who holds no replica. Clients that know of reading from followers take data as well, and go
/// to the leader by the refusal at its end; older ones get the refusal at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kafka_clients_are_served_by_a_broker_without_a_copy_too() {
    let fleet = Fleet::start().await;
    let id = Admin::new(&fleet.client).describe_topic(TOPIC).await.expect("the topic exists").id;
    let mut kafka = Connection::to(&fleet.brokers.addresses(fleet.others[0]).kafka).await;
    let fetch = |version: i16, offset: u64| {
        let partition = kafka::fetch_request::FetchPartition::default()
            .with_fetch_offset(offset.cast_signed())
            .with_partition_max_bytes(1 << 20);
        let topic = kafka::fetch_request::FetchTopic::default().with_partitions(vec![partition]);
        let topic = match version {
            ..=12 => topic.with_topic(text(TOPIC).into()),
            _ => topic.with_topic_id(uuid::Uuid::from_u128(id.0)),
        };
        let request = kafka::FetchRequest::default().with_max_bytes(1 << 20).with_max_wait_ms(10_000);
        request.with_min_bytes(1 << 20).with_session_epoch(-1).with_topics(vec![topic])
    };
    for version in [4, 10, 11, 12, 17] {
        let mut offset = 0;
        let last = loop {
            let answer = kafka.call(version, &fetch(version, offset)).await;
            let data = answer.responses[0].partitions[0].clone();
            if data.error_code != 0 {
                break data;
            }
            assert_eq!(bases(&data).first(), Some(&offset), "version {version}");
            assert_eq!(data.high_watermark, TIERED as i64);
            let batches = crate::kafka::wire::batches(&data);
            offset = batches.last().expect("it waited for records").end_offset().0;
        };
        assert_eq!(last.error_code, NOT_LEADER, "version {version}");
        assert_eq!(offset, if version < 11 { 0 } else { TIERED }, "version {version}");
        if version >= 16 {
            assert_eq!(last.current_leader.leader_id.0, fleet.leader.cast_signed());
        }
    }
    Admin::new(&fleet.client).delete_records(TOPIC, 0, Some(Offset(ALL))).await.expect("it is led");
    let mut kafka = Connection::to(&fleet.brokers.addresses(fleet.others[1]).kafka).await;
    let answer = kafka.call(17, &fetch(17, 0)).await;
    assert_eq!(answer.responses[0].partitions[0].error_code, OUT_OF_RANGE);
    fleet.brokers.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_from_any_broker_leaves_the_leader_alone_until_the_tail() {
    let mut fleet = Fleet::start().await;
    for other in fleet.others {
        let config = ConsumerConfig {
            read_from: ReadFrom::AnyBroker,
            rack: Some(format!("r{other}")),
            scan: true,
            ..ConsumerConfig::default()
        };
        let before = fleet.fetched_bytes(fleet.leader).await;
        let mut consumer = fleet.consumer(config).await;
        next(&mut consumer, 0..ALL).await;
        assert!(fleet.fetched_bytes(other).await > 0.0, "it was read in the reader's rack");
        let by_leader = fleet.fetched_bytes(fleet.leader).await - before;
        let by_other = fleet.fetched_bytes(other).await;
        assert!(by_leader > 0.0 && by_leader < by_other, "the leader served the tail only: {by_leader} of {by_other}");
    }

    // With the only copy gone, what is in object storage is there all the same.
    fleet.brokers.stop_one(fleet.leader).await;
    let config = ConsumerConfig { read_from: ReadFrom::AnyBroker, ..ConsumerConfig::default() };
    assert_eq!(config.offset_reset, OffsetReset::Fail);
    let mut consumer = fleet.consumer(config).await;
    next(&mut consumer, 0..TIERED).await;
    // The tail comes with its broker.
    fleet.brokers.start_one(fleet.leader).await;
    next(&mut consumer, TIERED..ALL).await;
    drop(consumer);
    fleet.brokers.stop().await;
}

/// A manifest that cannot be read anew is used on: it may only answer less (rule F4).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_go_on_anywhere_while_the_metadata_store_is_away() {
    let options = FleetOptions { metadata: MetadataIn::Etcd(Tool::EtcdPinned, 1), ..FleetOptions::new(2) };
    let mut fleet = match ProcessFleet::start(&options).await {
        Ok(fleet) => fleet,
        Err(why) => return skip("reads_go_on_anywhere_while_the_metadata_store_is_away", &why),
    };
    let client = fleet.connect().await;
    let admin = Admin::new(&client);
    let mut topic = NewTopic::new(TOPIC);
    (topic.partitions, topic.replication_factor) = (Some(1), Some(1));
    let leader = admin.create_topic(topic).await.expect("the topic is new").partitions[0].leader.expect("it is led").0;
    publish(&client, 0..TIERED).await;
    admin.flush_topic(TOPIC).await.expect("the bucket is there");
    let other = fleet.grpc(1 - leader as usize);
    let mut log = LogClient::connect(format!("http://{other}")).await.expect("it is up");
    log.fetch_one(ask(0)).await.expect("it is in object storage");
    fleet.etcd().kill(0);
    // Twice as long as a manifest is used while a newer one is to be had.
    let until = tokio::time::Instant::now() + Duration::from_secs(10);
    let mut pace = tokio::time::interval(Duration::from_millis(20));
    while tokio::time::Instant::now() < until {
        pace.tick().await;
        assert!(!ranges(log.fetch_one(ask(TIERED / 2)).await.expect("it reads on").into_inner()).is_empty());
    }
    let end = log.fetch_one(ask(TIERED)).await.expect_err("nobody can tell it");
    assert!(["NOT_LEADER_OR_FOLLOWER", "OFFSET_NOT_AVAILABLE"].contains(&reason(&end).as_str()), "rule F3: {end}");
    fleet.etcd().restart(0).await;
    fleet.wait_until_ready().await;
    fleet.stop().await;
}
