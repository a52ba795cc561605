//! Answers, in every version advertised, as an independent decoder reads them.

mod admin;
mod groups;
mod transactions;

use super::super::describe::{
    ClusterBroker, DescribeClusterResponse, DescribeTopicPartitionsResponse, DescribedPartition, DescribedTopic,
    NextCursor,
};
use super::super::epochs::{EpochEndPartition, EpochEndTopic, OffsetForLeaderEpochResponse};
use super::super::fetch::{AbortedTransaction, EpochEndOffset, FetchResponse, FetchedTopic, PartitionData};
use super::super::leaders::{LeaderIdAndEpoch, NodeEndpoint};
use super::super::metadata::{MetadataBroker, MetadataPartition, MetadataResponse, MetadataTopic};
use super::super::offsets::{ListOffsetsResponse, ListedPartition, ListedTopic};
use super::super::produce::{ProduceResponse, ProducedPartition, ProducedTopic, RecordError};
use super::super::producers::InitProducerIdResponse;
use super::super::topics::{CreateTopicsResponse, CreatedConfig, CreatedTopic, DeleteTopicsResponse, DeletedTopic};
use super::super::wire::Batches;
use super::*;
use bytes::{Buf, Bytes};
use kafka_protocol::messages as theirs;
use kafka_protocol::protocol::{Decodable, HeaderVersion};
use millpond_log::batch::{BatchBuilder, NewRecord};
use millpond_log::codec::Codec;
use millpond_log::{Batch, TimestampMs, TopicId};

const ID: TopicId = TopicId(0x0f8f_ad5b_d9cb_469f_a165_7086_7728_950e);

fn sealed(api: Api, version: i16, body: &impl ToWire) -> Bytes {
    let mut frame = Envelope { api, version, correlation_id: 77 }.seal(body);
    frame.copy_to_bytes(frame.remaining())
}

fn check<R: Decodable + HeaderVersion>(api: Api, body: &impl ToWire, seen: impl Fn(i16, R)) {
    let (min, max) = api.versions();
    // Produce below 3 is only ever refused; `refused_versions_of_produce_are_answered_in_their_own_layout` reads those.
    let min = if api == Api::Produce { 3 } else { min };
    // Their crate ends at 4; `described_log_dirs_are_read` reads 5.
    let max = if api == Api::DescribeLogDirs { 4 } else { max };
    // Nor has it the newest of ListOffsets, which adds a meaning, and no field.
    let layout = |version: i16| if api == Api::ListOffsets { version.min(10) } else { version };
    for version in min..=max {
        let mut frame = sealed(api, version, body);
        assert_eq!(frame.get_i32() as usize, frame.len(), "{api:?} {version}: the length in front");
        let header = theirs::ResponseHeader::decode(&mut frame, R::header_version(layout(version))).expect("a header");
        assert_eq!(header.correlation_id, 77);
        let read = R::decode(&mut frame, layout(version)).unwrap_or_else(|error| panic!("{api:?} {version}: {error}"));
        assert!(frame.is_empty(), "{api:?} {version} leaves {} bytes", frame.len());
        seen(version, read);
    }
}

fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

#[test]
fn produced_is_read() {
    let partition = ProducedPartition {
        index: 4,
        error_code: 87,
        base_offset: 10,
        log_append_time_ms: 11,
        log_start_offset: 12,
        record_errors: vec![RecordError { batch_index: 2, batch_index_error_message: some("bad") }],
        error_message: some("why"),
        current_leader: Some(LeaderIdAndEpoch { leader_id: 6, leader_epoch: 7 }),
    };
    let topics = vec![ProducedTopic { name: "t".to_owned(), partitions: vec![partition] }];
    let answer = ProduceResponse { topics, throttle_time_ms: 5, node_endpoints: Some(vec![endpoint()]) };
    check(Api::Produce, &answer, |version, read: theirs::ProduceResponse| {
        assert_eq!((read.throttle_time_ms, read.responses[0].name.as_str()), (5, "t"));
        let partition = &read.responses[0].partition_responses[0];
        assert_eq!((partition.index, partition.error_code, partition.base_offset), (4, 87, 10));
        assert_eq!(partition.log_append_time_ms, 11);
        assert_eq!(partition.log_start_offset, if version >= 5 { 12 } else { -1 });
        assert_eq!(partition.error_message.as_deref(), (version >= 8).then_some("why"));
        assert_eq!(partition.record_errors.first().map(|error| error.batch_index), (version >= 8).then_some(2));
        let leader = (partition.current_leader.leader_id.0, partition.current_leader.leader_epoch);
        assert_eq!(leader, if version >= 10 { (6, 7) } else { (-1, -1) });
        let nodes = read.node_endpoints.iter().map(|node| (node.node_id.0, node.host.as_str(), node.port));
        assert!(nodes.eq((version >= 10).then_some((6, "h", 9092))));
    });
}

fn endpoint() -> NodeEndpoint {
    NodeEndpoint { node_id: 6, host: "h".to_owned(), port: 9092, rack: some("r") }
}

#[test]
fn refused_versions_of_produce_are_answered_in_their_own_layout() {
    let partition = ProducedPartition { index: 4, error_code: 35, ..Default::default() };
    let topics = vec![ProducedTopic { name: "t".to_owned(), partitions: vec![partition] }];
    let answer = ProduceResponse { topics, throttle_time_ms: 5, node_endpoints: None };
    let start = b"\0\0\0\x4d\0\0\0\x01\0\x01t\0\0\0\x01\0\0\0\x04\0\x23\xff\xff\xff\xff\xff\xff\xff\xff";
    let time = b"\xff\xff\xff\xff\xff\xff\xff\xff";
    let throttle = b"\0\0\0\x05";
    assert_eq!(sealed(Api::Produce, 0, &answer)[4..], start[..]);
    assert_eq!(sealed(Api::Produce, 1, &answer)[4..], [&start[..], throttle].concat());
    assert_eq!(sealed(Api::Produce, 2, &answer)[4..], [&start[..], time, throttle].concat());
}

fn batch(value_size: usize) -> Batch {
    let mut batch = BatchBuilder::new(Codec::None);
    batch.push(NewRecord { timestamp: TimestampMs(1), key: None, value: Some(&vec![7; value_size]), headers: &[] });
    batch.build()
}

#[test]
fn fetched_is_read_and_its_batches_are_shared() {
    let batches = vec![batch(10), batch(100_000), batch(3), batch(50_000)];
    let whole: Vec<u8> = batches.iter().fold(Vec::new(), |mut all, batch| {
        batch.put(&mut all);
        all
    });
    let full = PartitionData {
        index: 1,
        high_watermark: 20,
        last_stable_offset: 19,
        log_start_offset: 2,
        aborted_transactions: Some(vec![AbortedTransaction { producer_id: 8, first_offset: 9 }]),
        records: Batches(batches.clone()),
        ..Default::default()
    };
    let failed = PartitionData {
        index: 2,
        error_code: 1,
        preferred_read_replica: 6,
        diverging_epoch: Some(EpochEndOffset { epoch: 3, end_offset: 4 }),
        current_leader: Some(LeaderIdAndEpoch { leader_id: 6, leader_epoch: 7 }),
        ..Default::default()
    };
    let topic = FetchedTopic { name: "t".to_owned(), id: ID, partitions: vec![full, failed] };
    let (topics, node_endpoints) = (vec![topic], Some(vec![endpoint()]));
    let answer = FetchResponse { throttle_time_ms: 3, topics, node_endpoints, ..Default::default() };
    check(Api::Fetch, &answer, |version, read: theirs::FetchResponse| {
        assert_eq!((read.throttle_time_ms, read.error_code, read.session_id), (3, 0, 0));
        let topic = &read.responses[0];
        let expected = if version >= 13 { ("", ID.0) } else { ("t", 0) };
        assert_eq!((topic.topic.as_str(), topic.topic_id.as_u128()), expected);
        let [full, failed] = &topic.partitions[..] else { panic!("{topic:?}") };
        assert_eq!((full.partition_index, full.high_watermark, full.last_stable_offset), (1, 20, 19));
        assert_eq!((full.log_start_offset, full.preferred_read_replica.0), (if version >= 5 { 2 } else { -1 }, -1));
        let aborted = full.aborted_transactions.iter().flatten().map(|txn| (txn.producer_id.0, txn.first_offset));
        assert!(aborted.eq([(8, 9)]));
        assert!(full.records.as_deref() == Some(&whole[..]), "version {version}: the batches as they are");
        assert_eq!((failed.partition_index, failed.error_code, failed.high_watermark), (2, 1, -1));
        assert_eq!((failed.records.as_deref(), failed.aborted_transactions.as_deref()), (Some(&[][..]), None));
        assert_eq!(failed.preferred_read_replica.0, if version >= 11 { 6 } else { -1 });
        let diverging = (failed.diverging_epoch.epoch, failed.diverging_epoch.end_offset);
        assert_eq!(diverging, if version >= 12 { (3, 4) } else { (-1, -1) });
        let leader = (failed.current_leader.leader_id.0, failed.current_leader.leader_epoch);
        assert_eq!(leader, if version >= 12 { (6, 7) } else { (-1, -1) });
        let nodes = read.node_endpoints.iter().map(|node| (node.node_id.0, node.host.as_str(), node.rack.as_deref()));
        assert!(nodes.eq((version >= 16).then_some((6, "h", Some("r")))));
    });
    // The two large batches' records are in the frame where they are in memory, not as copies.
    let frame = Envelope { api: Api::Fetch, version: 12, correlation_id: 1 }.seal(&answer);
    let mut slices = [std::io::IoSlice::new(&[]); 64];
    let count = frame.chunks_vectored(&mut slices);
    let parts: Vec<*const u8> = slices[..count].iter().map(|slice| slice.as_ptr()).collect();
    for large in [&batches[1], &batches[3]] {
        assert!(parts.contains(&large.records_bytes().as_ptr()), "the records were copied");
    }
    assert_eq!(count, 5, "and all else is three parts between them");
}

#[test]
fn listed_offsets_are_read() {
    let partition = ListedPartition { index: 1, error_code: 2, timestamp: 3, offset: 4, leader_epoch: 5 };
    let topics = vec![ListedTopic { name: "t".to_owned(), partitions: vec![partition, ListedPartition::default()] }];
    let answer = ListOffsetsResponse { throttle_time_ms: 6, topics };
    check(Api::ListOffsets, &answer, |version, read: theirs::ListOffsetsResponse| {
        assert_eq!(read.throttle_time_ms, if version >= 2 { 6 } else { 0 });
        let topic = &read.topics[0];
        let [found, none] = &topic.partitions[..] else { panic!("{topic:?}") };
        assert_eq!((topic.name.as_str(), found.partition_index, found.error_code), ("t", 1, 2));
        assert_eq!((found.timestamp, found.offset), (3, 4));
        assert_eq!(found.leader_epoch, if version >= 4 { 5 } else { -1 });
        assert_eq!((none.error_code, none.timestamp, none.offset, none.leader_epoch), (0, -1, -1, -1), "case F11");
    });
}

#[test]
fn metadata_is_read() {
    let partition = MetadataPartition {
        error_code: 5,
        index: 1,
        leader_id: 2,
        leader_epoch: 3,
        replicas: vec![2, 4],
        isr: vec![2],
        offline_replicas: vec![4],
    };
    let topic = MetadataTopic { name: some("t"), id: ID, partitions: vec![partition], ..Default::default() };
    let broker = MetadataBroker { node_id: 2, host: "h".to_owned(), port: 9092, rack: some("r") };
    let answer = MetadataResponse {
        throttle_time_ms: 1,
        brokers: vec![broker],
        cluster_id: some("c"),
        controller_id: 2,
        topics: vec![topic],
        ..Default::default()
    };
    check(Api::Metadata, &answer, |version, read: theirs::MetadataResponse| {
        assert_eq!(read.throttle_time_ms, i32::from(version >= 3));
        let broker = &read.brokers[0];
        assert_eq!((broker.node_id.0, broker.host.as_str(), broker.port), (2, "h", 9092));
        assert_eq!(broker.rack.as_deref(), (version >= 1).then_some("r"));
        assert_eq!(read.cluster_id.as_deref(), (version >= 2).then_some("c"));
        assert_eq!(read.controller_id.0, if version >= 1 { 2 } else { -1 });
        let topic = &read.topics[0];
        assert_eq!(topic.name.as_deref().map(|name| name.as_str()), Some("t"));
        assert_eq!(topic.topic_id.as_u128(), if version >= 10 { ID.0 } else { 0 });
        assert_eq!(topic.topic_authorized_operations, i32::MIN);
        let partition = &topic.partitions[0];
        let nodes = |nodes: &[theirs::BrokerId]| nodes.iter().map(|node| node.0).collect::<Vec<i32>>();
        assert_eq!((partition.error_code, partition.partition_index, partition.leader_id.0), (5, 1, 2));
        assert_eq!(partition.leader_epoch, if version >= 7 { 3 } else { -1 });
        assert_eq!((nodes(&partition.replica_nodes), nodes(&partition.isr_nodes)), (vec![2, 4], vec![2]));
        assert_eq!(nodes(&partition.offline_replicas), if version >= 5 { vec![4] } else { vec![] });
    });
}

#[test]
fn ends_of_epochs_are_read() {
    let end = EpochEndPartition { error_code: 75, index: 1, leader_epoch: 3, end_offset: 1 << 40 };
    let topic = EpochEndTopic { name: "t".to_owned(), partitions: vec![end] };
    let answer = OffsetForLeaderEpochResponse { throttle_time_ms: 2, topics: vec![topic] };
    check(Api::OffsetForLeaderEpoch, &answer, |_, read: theirs::OffsetForLeaderEpochResponse| {
        assert_eq!((read.throttle_time_ms, read.topics[0].topic.as_str()), (2, "t"));
        let end = &read.topics[0].partitions[0];
        assert_eq!((end.error_code, end.partition, end.leader_epoch, end.end_offset), (75, 1, 3, 1 << 40));
    });
}

#[test]
fn a_described_cluster_is_read() {
    let broker = ClusterBroker { broker_id: 2, host: "h".to_owned(), port: 9092, rack: some("r"), is_fenced: false };
    let answer = DescribeClusterResponse {
        cluster_id: "c".to_owned(),
        controller_id: 2,
        brokers: vec![broker],
        ..Default::default()
    };
    check(Api::DescribeCluster, &answer, |_, read: theirs::DescribeClusterResponse| {
        assert_eq!((read.error_code, read.cluster_id.as_str(), read.controller_id.0), (0, "c", 2));
        let broker = &read.brokers[0];
        assert_eq!((broker.broker_id.0, broker.host.as_str(), broker.port), (2, "h", 9092));
        assert_eq!((broker.rack.as_deref(), read.cluster_authorized_operations), (Some("r"), i32::MIN));
    });
}

#[test]
fn described_partitions_are_read() {
    let partition = DescribedPartition {
        error_code: 5,
        partition_index: 1,
        leader_id: 2,
        leader_epoch: 3,
        replica_nodes: vec![2, 4],
        isr_nodes: vec![2],
        eligible_leader_replicas: vec![4],
        offline_replicas: vec![4],
        ..Default::default()
    };
    let topic = DescribedTopic { name: some("t"), topic_id: ID, partitions: vec![partition], ..Default::default() };
    for cursor in [None, Some(("u", 7))] {
        let next_cursor =
            cursor.map(|(topic, partition_index)| NextCursor { topic_name: topic.to_owned(), partition_index });
        let answer = DescribeTopicPartitionsResponse { throttle_time_ms: 1, topics: vec![topic.clone()], next_cursor };
        check(Api::DescribeTopicPartitions, &answer, |_, read: theirs::DescribeTopicPartitionsResponse| {
            let topic = &read.topics[0];
            assert_eq!(topic.name.as_deref().map(|name| name.as_str()), Some("t"));
            assert_eq!((topic.topic_id.as_u128(), read.throttle_time_ms), (ID.0, 1));
            let partition = &topic.partitions[0];
            let nodes = |nodes: &[theirs::BrokerId]| nodes.iter().map(|node| node.0).collect::<Vec<i32>>();
            assert_eq!((partition.error_code, partition.partition_index), (5, 1));
            assert_eq!((partition.leader_id.0, partition.leader_epoch), (2, 3));
            assert_eq!((nodes(&partition.replica_nodes), nodes(&partition.isr_nodes)), (vec![2, 4], vec![2]));
            assert_eq!(partition.eligible_leader_replicas.as_deref().map(nodes), Some(vec![4]));
            assert_eq!(nodes(&partition.offline_replicas), vec![4]);
            let next = read.next_cursor.as_ref().map(|next| (next.topic_name.as_str(), next.partition_index));
            assert_eq!(next, cursor);
        });
    }
}

#[test]
fn created_topics_are_read() {
    let config = CreatedConfig { name: "a.b".to_owned(), value: some("c"), ..Default::default() };
    let topic = CreatedTopic {
        name: "t".to_owned(),
        id: ID,
        error_code: 36,
        error_message: some("there"),
        partitions: 3,
        replication_factor: 1,
        configs: Some(vec![config]),
    };
    let answer = CreateTopicsResponse { throttle_time_ms: 2, topics: vec![topic] };
    check(Api::CreateTopics, &answer, |version, read: theirs::CreateTopicsResponse| {
        let topic = &read.topics[0];
        assert_eq!((read.throttle_time_ms, topic.name.as_str(), topic.error_code), (2, "t", 36));
        assert_eq!(topic.error_message.as_deref(), Some("there"));
        assert_eq!(topic.topic_id.as_u128(), if version >= 7 { ID.0 } else { 0 });
        if version >= 5 {
            assert_eq!((topic.num_partitions, topic.replication_factor), (3, 1));
            let configs = topic.configs.iter().flatten();
            assert!(configs.map(|config| (config.name.as_str(), config.config_source)).eq([("a.b", 1)]));
        }
    });
}

#[test]
fn deleted_topics_are_read() {
    let topic = DeletedTopic { name: some("t"), id: ID, error_code: 3, error_message: some("gone") };
    let answer = DeleteTopicsResponse { throttle_time_ms: 2, topics: vec![topic] };
    check(Api::DeleteTopics, &answer, |version, read: theirs::DeleteTopicsResponse| {
        let topic = &read.responses[0];
        assert_eq!((read.throttle_time_ms, topic.error_code), (2, 3));
        assert_eq!(topic.name.as_deref().map(|name| name.as_str()), Some("t"));
        assert_eq!(topic.error_message.as_deref(), (version >= 5).then_some("gone"));
        assert_eq!(topic.topic_id.as_u128(), if version >= 6 { ID.0 } else { 0 });
    });
}

#[test]
fn producer_identities_are_read() {
    let answer = InitProducerIdResponse { throttle_time_ms: 1, error_code: 2, producer_id: 3, producer_epoch: 4 };
    check(Api::InitProducerId, &answer, |_, read: theirs::InitProducerIdResponse| {
        assert_eq!((read.throttle_time_ms, read.error_code, read.producer_id.0, read.producer_epoch), (1, 2, 3, 4));
    });
}

#[test]
fn the_list_of_versions_is_read() {
    check(Api::ApiVersions, &supported(None), |version, read: theirs::ApiVersionsResponse| {
        let listed: Vec<i16> = read.api_keys.iter().map(|line| line.api_key).collect();
        assert_eq!(listed, Api::ALL.iter().map(|&api| api as i16).collect::<Vec<_>>(), "version {version}");
        let produce = &read.api_keys[0];
        assert_eq!((produce.api_key, produce.min_version), (0, 0), "case A3");
        let finalized = read.finalized_features.iter();
        let finalized = finalized.map(|one| (one.name.as_str(), one.min_version_level, one.max_version_level));
        assert!(finalized.eq((version >= 3).then_some(("transaction.version", 2, 2))), "version {version}");
        assert_eq!(read.finalized_features_epoch, if version >= 3 { 0 } else { -1 });
        let supported = read.supported_features.iter();
        let supported = supported.map(|one| (one.name.as_str(), one.min_version, one.max_version));
        assert!(supported.eq((version >= 4).then_some(("transaction.version", 0, 2))), "version {version}");
    });
    // Case A2: no tag byte after the correlation id; error, compact length, entries that end in an empty tag buffer.
    let bytes = sealed(Api::ApiVersions, 3, &supported(None));
    let count = u8::try_from(Api::ALL.len()).expect("few");
    assert_eq!(bytes[8..18], [0, 0, count + 1, 0, 0, 0, 0, 0, 12, 0]);
}
