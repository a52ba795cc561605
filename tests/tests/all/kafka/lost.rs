//! A partition that nobody may lead, as Kafka clients see it (rules B4, F4).

use super::wire::{Connection, bases, batch, name};
use crate::commands::succeed;
use crate::loss::{Bench, TOPIC, create, publish};
use kafka_protocol::messages as kafka;
use millpond_sdk::{Admin, Client};

const LEADER_NOT_AVAILABLE: i16 = 5;
const NOT_LEADER_OR_FOLLOWER: i16 = 6;

async fn offset_of(connection: &mut Connection, timestamp: i64) -> (i16, i64) {
    let partition = kafka::list_offsets_request::ListOffsetsPartition::default().with_timestamp(timestamp);
    let topic = kafka::list_offsets_request::ListOffsetsTopic::default()
        .with_name(name(TOPIC))
        .with_partitions(vec![partition]);
    let request = kafka::ListOffsetsRequest::default().with_replica_id((-1).into()).with_topics(vec![topic]);
    let found = &connection.call(6, &request).await.topics[0].partitions[0];
    (found.error_code, found.offset)
}

async fn leader(connection: &mut Connection) -> (i16, i32) {
    let asked = kafka::metadata_request::MetadataRequestTopic::default().with_name(Some(name(TOPIC)));
    let answer = connection.call(9, &kafka::MetadataRequest::default().with_topics(Some(vec![asked]))).await;
    let partition = &answer.topics[0].partitions[0];
    (partition.error_code, partition.leader_id.0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_partition_has_no_leader_is_read_as_far_as_it_is_tiered_and_refuses_the_rest_with_the_reason() {
    let bench = Bench::new();
    let dev = bench.start();
    let client = Client::connect(&dev.grpc).await.expect("the broker is up");
    create(&client, 1).await;
    publish(&client, "a", 0, 0..3).await;
    Admin::new(&client).flush_topic(TOPIC).await.expect("the object store is there");
    publish(&client, "a", 0, 3..5).await;
    dev.kill();
    std::fs::remove_dir_all(bench.disk()).expect("it was there");

    let dev = bench.start();
    let mut connection = Connection::to(&dev.kafka).await;
    assert_eq!(leader(&mut connection).await, (LEADER_NOT_AVAILABLE, -1));
    let refused = connection.produce(TOPIC, 0, batch(&[1], b"v")).await;
    assert_eq!(refused.error_code, LEADER_NOT_AVAILABLE, "retriable");
    let message = refused.error_message.expect("the reason").to_string();
    assert!(message.contains("millpond partition accept-loss orders:0 --yes"), "{message}");
    let tiered = connection.fetch(TOPIC, 0, 0).await;
    assert_eq!((tiered.error_code, bases(&tiered)), (0, vec![0, 1, 2]), "rule F4");
    assert_eq!(connection.fetch(TOPIC, 0, 3).await.error_code, NOT_LEADER_OR_FOLLOWER);
    assert_eq!(offset_of(&mut connection, -2).await, (0, 0), "rule F3: earliest, by a linearizable read");
    assert_eq!(offset_of(&mut connection, -1).await, (NOT_LEADER_OR_FOLLOWER, -1), "the end is not known");

    succeed(&dev, &["partition", "accept-loss", "--all", "--yes"], b"");
    assert_eq!(leader(&mut connection).await, (0, 0));
    assert_eq!(offset_of(&mut connection, -1).await, (0, 3));
    let written = connection.produce(TOPIC, 0, batch(&[1], b"v")).await;
    assert_eq!((written.error_code, written.base_offset), (0, 3));
}
