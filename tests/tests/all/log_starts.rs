//! How far a log start moves: to where it is asked to, however many objects that drops (rule C1). One change of a manifest drops a few hundred.

use bytes::Bytes;
use millpond_broker::api::{Acks, Isolation, NewTopic, OffsetSpec, ProduceRequest, SettingsChange, TopicRef};
use millpond_core::topic_config::Alteration;
use millpond_log::batch::{BatchBuilder, NewRecord};
use millpond_log::codec::Codec;
use millpond_log::{Offset, TimestampMs};
use millpond_metadata::store::TIER_DROPPED_MAX;
use millpond_tests::broker::{TestBroker, config};
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
