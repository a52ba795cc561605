//! How far a log start moves: to where it is asked to, however many objects that drops (rule C1). One change of a manifest drops a few hundred.
//! And that it stays there, whoever leads next (rule F3, case C7).

use crate::kafka::wire::{Connection, Fetched, bases, fetch, name};
use bytes::Bytes;
use kafka_protocol::messages as kafka;
use millpond_broker::api::{Acks, Isolation, NewTopic, OffsetSpec, ProduceRequest, SettingsChange, TopicRef};
use millpond_core::topic_config::Alteration;
use millpond_log::batch::{BatchBuilder, NewRecord};
use millpond_log::codec::Codec;
use millpond_log::{Offset, TimestampMs};
use millpond_metadata::store::TIER_DROPPED_MAX;
use millpond_sdk::{Admin, NewTopic as SdkTopic, Producer, ProducerConfig, ProducerRecord};
use millpond_tests::broker::{TestBroker, config};
use millpond_tests::fleet::{Fleet, FleetOptions};
use object_store::memory::InMemory;
use std::sync::Arc;
use std::time::Duration;

/// Objects of a topic: more than one change may drop, twice.
const OBJECTS: u64 = 2 * TIER_DROPPED_MAX as u64 + 40;

/// Nothing that is waited for takes so long, unless it never comes.
const PATIENCE: Duration = Duration::from_secs(60);

fn named(topic: &str) -> TopicRef {
    TopicRef::Name(topic.to_owned())
}

/// A topic of one partition, each record of which is in an object of its own.
async fn publish(broker: &TestBroker, topic: &str) {
    let new = NewTopic { name: topic.to_owned(), partitions: Some(1), ..NewTopic::default() };
    broker.handle().create_topic(new).await.expect("it is new");
    for number in 0..OBJECTS {
        let mut builder = BatchBuilder::new(Codec::None);
        let timestamp = TimestampMs(number.cast_signed());
        builder.push(NewRecord { timestamp, key: None, value: Some(b"v"), headers: &[] });
        let mut records = Vec::new();
        builder.build().put(&mut records);
        let request = ProduceRequest {
            topic: named(topic),
            partition: 0,
            arrived_bytes: records.len(),
            records: Bytes::from(records),
            behind: None,
            transaction: None,
            acks: Acks::All,
            timeout: Duration::from_secs(30),
        };
        broker.handle().produce(request).await.expect("there is room").await.expect("acknowledged");
        broker.handle().flush_topic(&named(topic)).await.expect("memory takes it");
    }
}

async fn log_start(broker: &TestBroker, topic: &str) -> Offset {
    let isolation = Isolation::ReadUncommitted;
    let found = broker.handle().list_offsets(&named(topic), 0, None, OffsetSpec::Earliest, isolation).await;
    found.expect("it is led here").expect("every log has a start").offset
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_in_more_objects_than_one_change_may_drop_are_deleted_all_the_same() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = TestBroker::start(config(dir.path()), Arc::new(InMemory::new())).await;
    publish(&broker, "deleted").await;
    let deleted = broker.handle().delete_records(&named("deleted"), 0, Some(Offset(OBJECTS - 1))).await;
    assert_eq!(deleted.map_err(|error| error.to_string()), Ok(Offset(OBJECTS - 1)));
    assert_eq!(log_start(&broker, "deleted").await, Offset(OBJECTS - 1));
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retention_that_drops_more_objects_than_one_change_may_is_applied_all_the_same() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = TestBroker::start(config(dir.path()), Arc::new(InMemory::new())).await;
    publish(&broker, "expired").await;
    assert_eq!(log_start(&broker, "expired").await, Offset(0));
    let shorter = SettingsChange::Alter(vec![("retention.ms".to_owned(), Alteration::Set("1".to_owned()))]);
    broker.handle().alter_topic(&named("expired"), shorter, false).await.expect("it is a setting");
    let expired = async {
        let mut again = tokio::time::interval(Duration::from_millis(20));
        while log_start(&broker, "expired").await < Offset(OBJECTS) {
            again.tick().await;
        }
    };
    tokio::time::timeout(PATIENCE, expired).await.expect("all of it is too old");
    broker.stop().await;
}

/// Where a broker says that partition 0 begins, if it says so.
async fn earliest(broker: &mut Connection, topic: &str) -> (i16, i64) {
    let partition = kafka::list_offsets_request::ListOffsetsPartition::default().with_timestamp(-2);
    let asked = kafka::list_offsets_request::ListOffsetsTopic::default()
        .with_name(name(topic))
        .with_partitions(vec![partition]);
    let request = kafka::ListOffsetsRequest::default().with_replica_id((-1).into()).with_topics(vec![asked]);
    let found = &broker.call(6, &request).await.topics[0].partitions[0];
    (found.error_code, found.offset)
}

/// What is read of a leader: a follower, which may be behind in this too, is not asked in this version.
async fn read_of_leader(broker: &mut Connection, topic: &str, offset: i64) -> Fetched {
    let request = fetch(topic, &[(0, offset)], 1 << 20, 1 << 20);
    broker.call(10, &request).await.responses[0].partitions[0].clone()
}

/// The followers stand still while records are deleted, so that whoever leads next was told nothing of it. From its first answer on it
/// has to know.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_deleted_stays_deleted_to_whoever_leads_next_from_its_first_answer_on() {
    const OUT_OF_RANGE: i16 = 1;
    const NOT_LEADER: i16 = 6;
    const TOPIC: &str = "events";
    let mut fleet = Fleet::start(&FleetOptions::new(3)).await.expect("it runs everywhere");
    let client = fleet.connect().await;
    let mut topic = SdkTopic::new(TOPIC);
    (topic.partitions, topic.replication_factor) = (Some(1), Some(3));
    Admin::new(&client).create_topic(topic).await.expect("the topic is new");
    let producer = Producer::new(&client, ProducerConfig::default()).expect("the defaults are sound");
    for _ in 0..20 {
        let delivery = producer.send(ProducerRecord::new(TOPIC).value("v")).await.expect("there is room");
        delivery.await.expect("acknowledged");
    }
    producer.close().await;
    let leader = fleet.wait_until_in_sync().await[0].partitions[0].leader.expect("it is led").0 as usize;
    let others: Vec<usize> = (0..3).filter(|broker| *broker != leader).collect();

    others.iter().for_each(|other| fleet.pause(*other));
    let deleted = Admin::new(&client).delete_records(TOPIC, 0, Some(Offset(12))).await;
    assert_eq!(deleted.map_err(|error| error.to_string()), Ok(Offset(12)));
    fleet.kill(leader);
    others.iter().for_each(|other| fleet.resume(*other));

    let mut first = Connection::to(&fleet.kafka(others[0])).await;
    let mut second = Connection::to(&fleet.kafka(others[1])).await;
    let led = async {
        // Both are asked all the time: either may come to lead.
        loop {
            for broker in [&mut first, &mut second] {
                let read = read_of_leader(broker, TOPIC, 5).await;
                assert_eq!(bases(&read), Vec::<u64>::new(), "it was deleted");
                match earliest(broker, TOPIC).await {
                    (0, start) => return start,
                    (code, _) => assert!(code == NOT_LEADER || code > OUT_OF_RANGE, "{code}"),
                }
            }
        }
    };
    assert_eq!(tokio::time::timeout(PATIENCE, led).await.expect("one of them leads"), 12);
    let mut refused = Vec::new();
    for broker in [&mut first, &mut second] {
        refused.push(read_of_leader(broker, TOPIC, 5).await.error_code);
    }
    refused.sort_unstable();
    assert_eq!(refused, [OUT_OF_RANGE, NOT_LEADER]);
    fleet.stop().await;
}
