//! Fetch and ListOffsets.

use super::wire::{Connection, Served, bases, batch, batches, fetch, name};
use kafka_protocol::messages as kafka;
use millpond_tests::broker::{TestBroker, config};
use object_store::memory::InMemory;
use std::sync::Arc;

/// A fetch as each version names the topic.
async fn fetch_in(
    connection: &mut Connection,
    version: i16,
    id: uuid::Uuid,
    mut request: kafka::FetchRequest,
) -> kafka::FetchResponse {
    if version < 7 {
        request.session_epoch = -1;
    }
    if version >= 13 {
        for topic in &mut request.topics {
            topic.topic = name("");
            topic.topic_id = id;
        }
    }
    connection.call(version, &request).await
}

async fn topic_id(connection: &mut Connection, topic: &str) -> uuid::Uuid {
    let asked = kafka::metadata_request::MetadataRequestTopic::default().with_name(Some(name(topic)));
    let answer = connection.call(12, &kafka::MetadataRequest::default().with_topics(Some(vec![asked]))).await;
    answer.topics[0].topic_id
}

#[tokio::test]
async fn every_version_of_fetch_reads_the_batch_around_an_offset() {
    let served = Served::start().await;
    let mut connection = served.connect().await;
    connection.create("t", 1, &[]).await;
    let id = topic_id(&mut connection, "t").await;
    for times in [[1, 2], [3, 4]] {
        assert_eq!(connection.produce("t", 0, batch(&times, b"v")).await.error_code, 0);
    }
    for version in 4..=17 {
        // Case F1.
        for (offset, error, expected) in
            [(0, 0, vec![0, 2]), (1, 0, vec![0, 2]), (3, 0, vec![2]), (4, 0, vec![]), (5, 1, vec![]), (-1, 1, vec![])]
        {
            let request = fetch("t", &[(0, offset)], 1 << 20, 1 << 20);
            let answer = fetch_in(&mut connection, version, id, request).await;
            assert_eq!((answer.error_code, answer.session_id), (0, 0), "no session is kept");
            let data = &answer.responses[0].partitions[0];
            assert_eq!((data.error_code, bases(data)), (error, expected), "offset {offset} in version {version}");
            if error == 0 {
                assert_eq!((data.high_watermark, data.last_stable_offset), (4, 4));
                assert_eq!(data.log_start_offset, if version >= 5 { 0 } else { -1 });
            }
        }
    }
}

#[tokio::test]
async fn one_batch_may_exceed_the_limits_and_no_second() {
    let served = Served::start().await;
    let mut connection = served.connect().await;
    connection.create("t", 3, &[]).await;
    for partition in 0..3 {
        assert_eq!(connection.produce("t", partition, batch(&[1], &vec![7; 100_000])).await.error_code, 0);
    }
    let read = |answer: kafka::FetchResponse| {
        let parts = answer.responses[0].partitions.iter();
        parts.map(|data| (batches(data).len(), data.high_watermark)).collect::<Vec<_>>()
    };
    let one = connection.call(12, &fetch("t", &[(0, 0)], 1, 1)).await;
    assert_eq!(read(one), [(1, 1)], "case F2");
    let three = connection.call(12, &fetch("t", &[(0, 0), (1, 0), (2, 0)], 512, 1 << 20)).await;
    assert_eq!(read(three), [(1, 1), (0, 1), (0, 1)], "case F3");
}

#[tokio::test]
async fn what_a_fetch_cannot_have_is_named() {
    let served = Served::start().await;
    let mut connection = served.connect().await;
    connection.create("t", 1, &[]).await;
    connection.produce("t", 0, batch(&[1], b"v")).await;
    let answer = connection.call(12, &fetch("unknown", &[(0, 0)], 1 << 20, 1 << 20)).await;
    assert_eq!(answer.responses[0].partitions[0].error_code, 3);
    // The good partition of the request is read all the same, in its place, and nobody waits.
    let beside =
        fetch("t", &[(9, 0), (0, 0), (-1, 0)], 1 << 20, 1 << 20).with_max_wait_ms(600_000).with_min_bytes(1 << 20);
    let answer = connection.call(12, &beside).await;
    let codes: Vec<_> = answer.responses[0]
        .partitions
        .iter()
        .map(|data| (data.partition_index, data.error_code, bases(data)))
        .collect();
    assert_eq!(codes, [(9, 3, vec![]), (0, 0, vec![0]), (-1, 3, vec![])]);
    let answer =
        fetch_in(&mut connection, 13, uuid::Uuid::from_u128(77), fetch("t", &[(0, 0)], 1 << 20, 1 << 20)).await;
    assert_eq!(answer.responses[0].partitions[0].error_code, 100);
    let session = fetch("t", &[(0, 0)], 1 << 20, 1 << 20).with_session_id(5).with_session_epoch(2);
    assert_eq!(connection.call(12, &session).await.error_code, 70, "there is no such session");
    for (epoch, expected) in [(-1, 0), (0, 0), (1_000_000, 75)] {
        let mut request = fetch("t", &[(0, 0)], 1 << 20, 1 << 20);
        request.topics[0].partitions[0].current_leader_epoch = epoch;
        let code = connection.call(12, &request).await.responses[0].partitions[0].error_code;
        // Rule F2. Epoch 0 is older than the first election, or equal to it.
        assert!(code == expected || (epoch == 0 && code == 74), "epoch {epoch}: {code}");
    }
}

#[tokio::test]
async fn a_long_poll_ends_with_the_first_record() {
    let served = Served::start().await;
    let mut reader = served.connect().await;
    let mut writer = served.connect().await;
    writer.create("t", 1, &[]).await;
    // Ten minutes: only a wake-up lets this test end.
    let waits = fetch("t", &[(0, 0)], 1 << 20, 1 << 20).with_max_wait_ms(600_000).with_min_bytes(1);
    let (answer, produced) = tokio::join!(reader.call(12, &waits), writer.produce("t", 0, batch(&[1], b"v")));
    assert_eq!(produced.error_code, 0);
    assert_eq!(bases(&answer.responses[0].partitions[0]), [0]);
}

/// The vectors V10 to V13 claim in their header that their newest record is as old as their first: the records know better.
/// In the tail, in the tail after a restart, in object storage, and after a restart there.
#[tokio::test]
async fn a_header_that_lies_about_its_newest_record_hides_no_record() {
    const BASE: i64 = 1_700_000_000_000;
    let dir = tempfile::tempdir().expect("a temporary folder");
    let objects = Arc::new(InMemory::new());
    let vectors = super::produce::vectors();
    let names = ["V10", "V11", "V12", "V13"];
    for (phase, tiered) in [("new", false), ("after a restart", false), ("tiered", true), ("restarted", true)] {
        let broker = TestBroker::start(config(dir.path()), objects.clone()).await;
        let mut connection = Connection::to(broker.kafka()).await;
        for vector in names {
            if phase == "new" {
                connection.create(vector, 1, &[]).await;
                assert_eq!(connection.produce(vector, 0, vectors[vector].clone()).await.error_code, 0);
            }
            if tiered {
                let client = millpond_sdk::Client::connect(broker.grpc()).await.expect("the broker is up");
                millpond_sdk::Admin::new(&client).flush_topic(vector).await.expect("memory takes it");
            }
            for (time, found) in [(0, (0, 0, BASE)), (1, (0, 1, BASE + 1)), (2, (0, 2, BASE + 2)), (3, (0, -1, -1))] {
                let answer = offset_of(&mut connection, 7, vector, BASE + time).await;
                assert_eq!(answer, found, "{vector} {phase}, {time} ms after its first record");
            }
            assert_eq!(offset_of(&mut connection, 7, vector, -3).await, (0, 2, BASE + 2), "{vector} {phase}");
        }
        broker.stop().await;
    }
}

async fn offset_of(connection: &mut Connection, version: i16, topic: &str, timestamp: i64) -> (i16, i64, i64) {
    let partition = kafka::list_offsets_request::ListOffsetsPartition::default().with_timestamp(timestamp);
    let asked = kafka::list_offsets_request::ListOffsetsTopic::default()
        .with_name(name(topic))
        .with_partitions(vec![partition]);
    let request = kafka::ListOffsetsRequest::default().with_replica_id((-1).into()).with_topics(vec![asked]);
    // Version 11 has the fields of version 10.
    let answer = connection.call_as(version, version.min(10), &request).await;
    let found = &answer.topics[0].partitions[0];
    (found.error_code, found.offset, found.timestamp)
}

#[tokio::test]
async fn offsets_are_found_by_time() {
    let served = Served::start().await;
    let mut connection = served.connect().await;
    connection.create("even", 1, &[]).await;
    connection.create("jumbled", 1, &[]).await;
    connection.create("empty", 1, &[]).await;
    for time in [2, 4, 6, 8] {
        connection.produce("even", 0, batch(&[time], b"v")).await;
    }
    let t = 1_700_000_000_000;
    connection.produce("jumbled", 0, batch(&[t + 5000, t, t + 9000, t + 1000], b"v")).await;
    let none = (0, -1, -1);
    for version in 1..=11 {
        // Case F10.
        for (time, expected) in
            [(2, (0, 0, 2)), (3, (0, 1, 4)), (4, (0, 1, 4)), (7, (0, 3, 8)), (8, (0, 3, 8)), (9, none)]
        {
            assert_eq!(
                offset_of(&mut connection, version, "even", time).await,
                expected,
                "{time} in version {version}"
            );
        }
        assert_eq!(offset_of(&mut connection, version, "even", -2).await, (0, 0, -1));
        assert_eq!(offset_of(&mut connection, version, "even", -1).await, (0, 4, -1));
        // Case F12.
        for (time, offset) in [(t + 1, 0), (t + 5001, 2), (t + 9001, -1)] {
            assert_eq!(offset_of(&mut connection, version, "jumbled", time).await.1, offset, "T+{}", time - t);
        }
        // Cases F14 and F11.
        let newest = if version >= 7 { (0, 2, t + 9000) } else { (35, -1, -1) };
        assert_eq!(offset_of(&mut connection, version, "jumbled", -3).await, newest, "version {version}");
        assert_eq!(offset_of(&mut connection, version, "empty", 5).await, none);
        assert_eq!(offset_of(&mut connection, version, "unknown", -1).await.0, 3);
    }
    assert_eq!(offset_of(&mut connection, 7, "empty", -3).await, none);
    assert_eq!(offset_of(&mut connection, 8, "even", -4).await.1, 0);
}

/// What version 11 asks for (KIP-1023): clients that are told which Kafka they talk to send it, whatever they ask for.
#[tokio::test]
async fn what_waits_for_its_upload_begins_where_object_storage_ends() {
    const PENDING: i64 = -6;
    let served = Served::start().await;
    let mut connection = served.connect().await;
    connection.create("t", 1, &[]).await;
    assert_eq!(offset_of(&mut connection, 11, "t", PENDING).await, (0, 0, -1), "nothing is there");
    connection.produce("t", 0, batch(&[1, 2], b"v")).await;
    assert_eq!(offset_of(&mut connection, 11, "t", PENDING).await, (0, 0, -1), "nothing is uploaded");
    assert_eq!(offset_of(&mut connection, 10, "t", PENDING).await, (35, -1, -1), "version 10 has no word for it");
    let client = millpond_sdk::Client::connect(served.broker.grpc()).await.expect("the broker is up");
    millpond_sdk::Admin::new(&client).flush_topic("t").await.expect("memory takes it");
    assert_eq!(offset_of(&mut connection, 11, "t", PENDING).await, (0, 2, -1), "all is uploaded");
    connection.produce("t", 0, batch(&[3], b"v")).await;
    assert_eq!(offset_of(&mut connection, 11, "t", PENDING).await, (0, 2, -1), "the newest is not");
    assert_eq!(offset_of(&mut connection, 11, "t", -5).await, (0, 1, -1));
    delete_to(&mut connection, "t", 3).await;
    assert_eq!(offset_of(&mut connection, 11, "t", PENDING).await, (0, 3, -1), "what is deleted waits for nothing");
}

async fn delete_to(connection: &mut Connection, topic: &str, offset: i64) {
    let partition = kafka::delete_records_request::DeleteRecordsPartition::default().with_offset(offset);
    let topic = kafka::delete_records_request::DeleteRecordsTopic::default()
        .with_name(name(topic))
        .with_partitions(vec![partition]);
    let request = kafka::DeleteRecordsRequest::default().with_topics(vec![topic]).with_timeout_ms(30_000);
    let answer = connection.call(2, &request).await;
    let deleted = &answer.topics[0].partitions[0];
    assert_eq!((deleted.error_code, deleted.low_watermark), (0, offset));
}
