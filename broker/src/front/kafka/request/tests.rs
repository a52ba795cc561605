//! The decoder against an independent encoder, in every version advertised, and against bytes that mean harm.

mod admin;
mod transactions;

use super::super::wire::REQUEST_ELEMENTS_MAX;
use super::*;
use bytes::{BufMut, BytesMut};
use kafka_protocol::messages as theirs;
use kafka_protocol::protocol::{Encodable, HeaderVersion, StrBytes};
use millpond_log::TopicId;
use millpond_log::testing::memory;
use proptest::prelude::*;

mod groups;

const CORRELATION: i32 = 0x0102_0304;
const ID: u128 = 0x0f8f_ad5b_d9cb_469f_a165_7086_7728_950e;

fn text(text: &'static str) -> StrBytes {
    StrBytes::from_static_str(text)
}

fn topic(name: &'static str) -> theirs::TopicName {
    text(name).into()
}

/// The version in which their crate has the fields of `version`: the newest of ListOffsets adds a meaning, and no field.
fn layout(api: Api, version: i16) -> i16 {
    if api == Api::ListOffsets { version.min(10) } else { version }
}

fn frame<T: Encodable + HeaderVersion>(api: Api, version: i16, body: &T) -> Bytes {
    let mut frame = BytesMut::new();
    let header = theirs::RequestHeader::default()
        .with_request_api_key(api as i16)
        .with_request_api_version(version)
        .with_correlation_id(CORRELATION)
        .with_client_id(Some(text("tester")));
    let layout = layout(api, version);
    header.encode(&mut frame, T::header_version(layout)).expect("their header has this version");
    body.encode(&mut frame, layout).unwrap_or_else(|error| panic!("{api:?} {version}: {error}"));
    frame.freeze()
}

/// Decodes in every version advertised; nothing is left over, and the body is what `seen` says.
fn check<T: Encodable + HeaderVersion>(api: Api, body: impl Fn(i16) -> T, seen: impl Fn(i16, Body)) {
    let (min, max) = api.versions();
    // Their crate does not carry what is refused anyway; `produce_versions_that_are_refused_are_decoded` does.
    let min = if api == Api::Produce { 3 } else { min };
    // Nor what is by topic id, and the newest of DescribeLogDirs; `offsets_of_topics_by_id_are_read` and `describe_log_dirs_is_read` do.
    let max = if matches!(api, Api::OffsetCommit | Api::OffsetFetch | Api::DescribeLogDirs) { max - 1 } else { max };
    for version in min..=max {
        let bytes = frame(api, version, &body(version));
        let (request, rest) = decode(bytes.clone()).unwrap_or_else(|error| panic!("{api:?} {version}: {error}"));
        assert!(rest.is_empty(), "{api:?} {version} leaves {} bytes", rest.len());
        assert_eq!((request.api, request.version, request.correlation_id), (api, version, CORRELATION));
        assert_eq!(request.client_id.as_deref(), Some("tester"));
        seen(version, request.body);
        for cut in 0..bytes.len() {
            assert!(
                decode(bytes.slice(..cut)).is_err(),
                "{api:?} {version} is decoded from {cut} of {} bytes",
                bytes.len()
            );
        }
    }
}

#[test]
fn produce_is_read_and_its_batches_are_shared() {
    let body = |_| {
        let partition = theirs::produce_request::PartitionProduceData::default()
            .with_index(3)
            .with_records(Some(Bytes::from_static(b"batch")));
        let null = theirs::produce_request::PartitionProduceData::default().with_index(4).with_records(None);
        let data = theirs::produce_request::TopicProduceData::default()
            .with_name(topic("t"))
            .with_partition_data(vec![partition, null]);
        theirs::ProduceRequest::default()
            .with_transactional_id(Some(text("txn").into()))
            .with_acks(-1)
            .with_timeout_ms(1500)
            .with_topic_data(vec![data])
    };
    check(Api::Produce, body, |version, body| {
        let Body::Produce(request) = body else { panic!("{body:?}") };
        assert_eq!(request.transactional_id.as_deref(), Some("txn"), "version {version}");
        assert_eq!((request.acks, request.timeout_ms), (-1, 1500));
        let [topic] = &request.topics[..] else { panic!("{request:?}") };
        assert_eq!(topic.name, "t");
        let read: Vec<_> = topic.partitions.iter().map(|part| (part.index, part.records.as_deref())).collect();
        assert_eq!(read, [(3, Some(&b"batch"[..])), (4, None)]);
    });
    let bytes = frame(Api::Produce, 9, &body(9));
    let whole = bytes.as_ptr_range();
    let Body::Produce(request) = decode_request(bytes).expect("well formed").body else { panic!("not Produce") };
    let batch = request.topics[0].partitions[0].records.clone().expect("there is one").as_ptr_range();
    assert!(whole.start <= batch.start && batch.end <= whole.end, "the batch was copied out of its frame");
}

#[test]
fn produce_versions_that_are_refused_are_decoded() {
    for version in 0..3 {
        let mut frame = BytesMut::new();
        frame.put_i16(0);
        frame.put_i16(version);
        frame.put_i32(CORRELATION);
        frame.put_i16(-1);
        frame.put_i16(1);
        frame.put_i32(1000);
        frame.put_i32(1);
        frame.put_slice(b"\0\x01t\0\0\0\x01\0\0\0\x05\0\0\0\x02xy");
        let (request, rest) = decode(frame.freeze()).expect("well formed");
        assert!(rest.is_empty());
        let Body::Produce(body) = request.body else { panic!("{request:?}") };
        let partition = &body.topics[0].partitions[0];
        assert_eq!((body.acks, partition.index, partition.records.as_deref()), (1, 5, Some(&b"xy"[..])));
    }
}

#[test]
fn describe_cluster_is_read() {
    let body = |version: i16| {
        let mut request = theirs::DescribeClusterRequest::default();
        if version >= 1 {
            request = request.with_endpoint_type(2);
        }
        if version >= 2 {
            request = request.with_include_fenced_brokers(true);
        }
        request.with_include_cluster_authorized_operations(true)
    };
    check(Api::DescribeCluster, body, |version, body| {
        let Body::DescribeCluster(request) = body else { panic!("{body:?}") };
        assert!(request.include_cluster_authorized_operations);
        assert_eq!(request.endpoint_type, if version >= 1 { 2 } else { 1 });
        assert_eq!(request.include_fenced_brokers, version >= 2);
    });
}

#[test]
fn describe_topic_partitions_is_read() {
    for cursor in [None, Some(("u", 7))] {
        let body = |_| {
            let asked = theirs::describe_topic_partitions_request::TopicRequest::default().with_name(topic("t"));
            let cursor = cursor.map(|(name, index)| {
                theirs::describe_topic_partitions_request::Cursor::default()
                    .with_topic_name(topic(name))
                    .with_partition_index(index)
            });
            theirs::DescribeTopicPartitionsRequest::default()
                .with_topics(vec![asked])
                .with_response_partition_limit(9)
                .with_cursor(cursor)
        };
        check(Api::DescribeTopicPartitions, body, |_, body| {
            let Body::DescribeTopicPartitions(request) = body else { panic!("{body:?}") };
            assert_eq!((request.topics[0].name.as_str(), request.response_partition_limit), ("t", 9));
            let read = request.cursor.as_ref().map(|cursor| (cursor.topic_name.as_str(), cursor.partition_index));
            assert_eq!(read, cursor);
        });
    }
}

#[test]
fn fetch_is_read() {
    let body = |version: i16| {
        let mut partition = theirs::fetch_request::FetchPartition::default()
            .with_partition(2)
            .with_fetch_offset(77)
            .with_partition_max_bytes(4096);
        if version >= 9 {
            partition = partition.with_current_leader_epoch(6);
        }
        if version >= 12 {
            partition = partition.with_last_fetched_epoch(5);
        }
        if version >= 17 {
            partition = partition.with_replica_directory_id(uuid::Uuid::from_u128(9));
        }
        let mut asked = theirs::fetch_request::FetchTopic::default().with_partitions(vec![partition]);
        let mut request = theirs::FetchRequest::default()
            .with_max_wait_ms(500)
            .with_min_bytes(1)
            .with_max_bytes(1 << 20)
            .with_isolation_level(1);
        if version >= 13 {
            asked = asked.with_topic_id(uuid::Uuid::from_u128(ID));
        } else {
            asked = asked.with_topic(topic("t"));
        }
        if version >= 7 {
            let mut forgotten = theirs::fetch_request::ForgottenTopic::default().with_partitions(vec![1, 2]);
            if version < 13 {
                forgotten = forgotten.with_topic(topic("old"));
            }
            request = request.with_session_id(12).with_session_epoch(3).with_forgotten_topics_data(vec![forgotten]);
        }
        if version >= 11 {
            request = request.with_rack_id(text("rack"));
        }
        if version >= 12 {
            request = request.with_cluster_id(Some(text("cluster")));
        }
        request.with_topics(vec![asked])
    };
    check(Api::Fetch, body, |version, body| {
        let Body::Fetch(request) = body else { panic!("{body:?}") };
        assert_eq!((request.max_wait_ms, request.min_bytes, request.max_bytes), (500, 1, 1 << 20), "version {version}");
        assert_eq!((request.isolation_level, request.replica_id), (1, -1));
        let session = if version >= 7 { (12, 3) } else { (0, -1) };
        assert_eq!((request.session_id, request.session_epoch), session);
        let asked = &request.topics[0];
        let named = if version >= 13 { ("", TopicId(ID)) } else { ("t", TopicId(0)) };
        assert_eq!((asked.name.as_str(), asked.id), named);
        let partition = &asked.partitions[0];
        assert_eq!((partition.index, partition.fetch_offset, partition.partition_max_bytes), (2, 77, 4096));
        assert_eq!(partition.current_leader_epoch, if version >= 9 { 6 } else { -1 });
        assert_eq!(partition.last_fetched_epoch, if version >= 12 { 5 } else { -1 });
        assert_eq!(
            request.forgotten_topics.first().map(|old| old.partitions.clone()),
            (version >= 7).then(|| vec![1, 2])
        );
        assert_eq!(request.rack_id, if version >= 11 { "rack" } else { "" });
    });
}

#[test]
fn list_offsets_is_read() {
    let body = |version: i16| {
        let mut partition =
            theirs::list_offsets_request::ListOffsetsPartition::default().with_partition_index(1).with_timestamp(-2);
        if version >= 4 {
            partition = partition.with_current_leader_epoch(8);
        }
        let asked = theirs::list_offsets_request::ListOffsetsTopic::default()
            .with_name(topic("t"))
            .with_partitions(vec![partition]);
        let mut request = theirs::ListOffsetsRequest::default().with_replica_id((-1).into()).with_topics(vec![asked]);
        if version >= 2 {
            request = request.with_isolation_level(1);
        }
        if version >= 10 {
            request = request.with_timeout_ms(5000);
        }
        request
    };
    check(Api::ListOffsets, body, |version, body| {
        let Body::ListOffsets(request) = body else { panic!("{body:?}") };
        assert_eq!(request.isolation_level, i8::from(version >= 2), "version {version}");
        let partition = &request.topics[0].partitions[0];
        assert_eq!((request.topics[0].name.as_str(), partition.index, partition.timestamp), ("t", 1, -2));
        assert_eq!(partition.current_leader_epoch, if version >= 4 { 8 } else { -1 });
    });
}

#[test]
fn offset_for_leader_epoch_is_read() {
    let body = |version: i16| {
        let partition = theirs::offset_for_leader_epoch_request::OffsetForLeaderPartition::default()
            .with_partition(1)
            .with_current_leader_epoch(8)
            .with_leader_epoch(7);
        let asked = theirs::offset_for_leader_epoch_request::OffsetForLeaderTopic::default()
            .with_topic(topic("t"))
            .with_partitions(vec![partition]);
        let request = theirs::OffsetForLeaderEpochRequest::default().with_topics(vec![asked]);
        if version >= 3 { request.with_replica_id((-1).into()) } else { request }
    };
    check(Api::OffsetForLeaderEpoch, body, |version, body| {
        let Body::OffsetForLeaderEpoch(request) = body else { panic!("{body:?}") };
        assert_eq!(request.replica_id, if version >= 3 { -1 } else { -2 }, "version {version}");
        let partition = &request.topics[0].partitions[0];
        let epochs = (partition.current_leader_epoch, partition.leader_epoch);
        assert_eq!((request.topics[0].name.as_str(), partition.index, epochs), ("t", 1, (8, 7)));
    });
}

#[test]
fn metadata_is_read() {
    let body = |version: i16| {
        let named = theirs::metadata_request::MetadataRequestTopic::default().with_name(Some(topic("t")));
        let mut topics = vec![named];
        if version >= 10 {
            let id = uuid::Uuid::from_u128(ID);
            topics.push(theirs::metadata_request::MetadataRequestTopic::default().with_topic_id(id).with_name(None));
        }
        let mut request = theirs::MetadataRequest::default().with_topics(Some(topics));
        if version >= 4 {
            request = request.with_allow_auto_topic_creation(false);
        }
        if version >= 8 {
            request = request.with_include_topic_authorized_operations(true);
        }
        request
    };
    check(Api::Metadata, body, |version, body| {
        let Body::Metadata(request) = body else { panic!("{body:?}") };
        assert_eq!(request.allow_auto_topic_creation, version < 4, "version {version}");
        assert_eq!(request.include_topic_authorized_operations, version >= 8);
        let topics: Vec<_> = request.topics.iter().flatten().map(|topic| (topic.name.as_deref(), topic.id)).collect();
        let expected = [(Some("t"), TopicId(0)), (None, TopicId(ID))];
        assert_eq!(topics, expected[..if version >= 10 { 2 } else { 1 }]);
    });
    for version in 1..=13 {
        let all = theirs::MetadataRequest::default().with_topics(None);
        let Body::Metadata(request) = decode_request(frame(Api::Metadata, version, &all)).expect("well formed").body
        else {
            panic!("not Metadata")
        };
        assert!(request.topics.is_none(), "version {version}: null asks for all topics");
        assert!(request.allow_auto_topic_creation);
    }
}

#[test]
fn api_versions_is_read() {
    let body = |version: i16| match version {
        3.. => theirs::ApiVersionsRequest::default()
            .with_client_software_name(text("kcat"))
            .with_client_software_version(text("1.7")),
        _ => theirs::ApiVersionsRequest::default(),
    };
    check(Api::ApiVersions, body, |version, body| {
        let Body::ApiVersions(request) = body else { panic!("{body:?}") };
        let expected = if version >= 3 { ("kcat", "1.7") } else { ("", "") };
        assert_eq!((request.client_software_name.as_str(), request.client_software_version.as_str()), expected);
    });
}

#[test]
fn create_topics_is_read() {
    let body = |_| {
        let config = theirs::create_topics_request::CreatableTopicConfig::default()
            .with_name(text("retention.ms"))
            .with_value(Some(text("1000")));
        let assignment = theirs::create_topics_request::CreatableReplicaAssignment::default()
            .with_partition_index(1)
            .with_broker_ids(vec![2.into(), 3.into()]);
        let topic = theirs::create_topics_request::CreatableTopic::default()
            .with_name(topic("t"))
            .with_num_partitions(4)
            .with_replication_factor(-1)
            .with_assignments(vec![assignment])
            .with_configs(vec![config]);
        theirs::CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(9).with_validate_only(true)
    };
    check(Api::CreateTopics, body, |_, body| {
        let Body::CreateTopics(request) = body else { panic!("{body:?}") };
        let topic = &request.topics[0];
        assert_eq!((topic.name.as_str(), topic.partitions, topic.replication_factor), ("t", 4, -1));
        assert_eq!((topic.assignments[0].partition, &topic.assignments[0].brokers[..]), (1, &[2, 3][..]));
        assert_eq!((topic.configs[0].name.as_str(), topic.configs[0].value.as_deref()), ("retention.ms", Some("1000")));
        assert_eq!((request.timeout_ms, request.validate_only), (9, true));
    });
}

#[test]
fn delete_topics_is_read() {
    let body = |version: i16| {
        let request = theirs::DeleteTopicsRequest::default().with_timeout_ms(9);
        if version < 6 {
            return request.with_topic_names(vec![topic("t")]);
        }
        let by_id = theirs::delete_topics_request::DeleteTopicState::default()
            .with_name(None)
            .with_topic_id(uuid::Uuid::from_u128(ID));
        request.with_topics(vec![by_id])
    };
    check(Api::DeleteTopics, body, |version, body| {
        let Body::DeleteTopics(request) = body else { panic!("{body:?}") };
        assert_eq!(request.names, if version < 6 { vec!["t"] } else { vec![] });
        let ids: Vec<_> = request.topics.iter().map(|topic| (topic.name.clone(), topic.id)).collect();
        assert_eq!(ids, if version < 6 { vec![] } else { vec![(None, TopicId(ID))] });
    });
}

#[test]
fn init_producer_id_is_read() {
    let body = |version: i16| {
        let request =
            theirs::InitProducerIdRequest::default().with_transactional_id(None).with_transaction_timeout_ms(60_000);
        if version < 3 { request } else { request.with_producer_id(5.into()).with_producer_epoch(6) }
    };
    check(Api::InitProducerId, body, |version, body| {
        let Body::InitProducerId(request) = body else { panic!("{body:?}") };
        assert_eq!((request.transactional_id, request.transaction_timeout_ms), (None, 60_000));
        assert_eq!((request.producer_id, request.producer_epoch), if version < 3 { (-1, -1) } else { (5, 6) });
    });
}

#[test]
fn tables_name_each_request_once_in_order_of_its_key() {
    assert!(Api::ALL.is_sorted_by_key(|&api| api as i16));
    for &api in Api::ALL {
        let (min, max) = api.versions();
        assert!(0 <= min && min <= max, "{api:?}");
        assert_eq!(Api::from_key(api as i16), Some(api));
        // KIP-482 as an independent table knows it: their header version 2 is the flexible one.
        let theirs = theirs::ApiKey::try_from(api as i16).expect("a key of Kafka's");
        for version in min..=max {
            assert_eq!(api.flexible(version), theirs.request_header_version(version) == 2, "{api:?} {version}");
            let header = theirs.response_header_version(version) == 1;
            assert_eq!(api.flexible_answer_header(version), header, "{api:?} {version}");
        }
    }
}

#[test]
fn what_is_not_served_is_told_apart() {
    let header = |key: i16, version: i16| {
        let mut frame = BytesMut::new();
        frame.put_i16(key);
        frame.put_i16(version);
        frame.put_i32(CORRELATION);
        decode_request(frame.freeze()).map(|_| ()).expect_err("no request is only a header")
    };
    assert_eq!(header(4, 0), RequestError::UnknownApi { key: 4 });
    assert_eq!(header(-1, 0), RequestError::UnknownApi { key: -1 });
    assert_eq!(header(1, 3), RequestError::UnsupportedVersion { key: 1, version: 3 });
    assert_eq!(header(3, 14), RequestError::UnsupportedVersion { key: 3, version: 14 });
    for version in [99, 5, -1, i16::MAX] {
        let expected = RequestError::UnknownApiVersions { version, correlation_id: CORRELATION };
        assert_eq!(header(18, version), expected);
    }
}

#[test]
fn claimed_lengths_take_no_memory() {
    // Metadata 1 with 2^31 - 1 topics, and Metadata 12 with 2^32 - 2: a decoder that reserves what is claimed aborts here.
    for (version, claim) in [(1, &b"\x7f\xff\xff\xff"[..]), (12, &b"\0\xff\xff\xff\xff\x0f"[..])] {
        let mut frame = BytesMut::new();
        frame.put_i16(3);
        frame.put_i16(version);
        frame.put_i32(CORRELATION);
        frame.put_i16(-1);
        frame.put_slice(claim);
        assert!(matches!(decode_request(frame.freeze()), Err(RequestError::Malformed(_))));
    }
    // As many elements as there are bytes: each of them would take eighty times its own in memory.
    let count = REQUEST_ELEMENTS_MAX + 1;
    let mut frame = BytesMut::new();
    frame.put_slice(b"\0\x03\0\x01\0\0\0\0\xff\xff");
    frame.put_i32(i32::try_from(count).expect("fits"));
    frame.put_bytes(0, 2 * count);
    let refused = decode_request(frame.freeze()).map(|_| ());
    assert_eq!(refused, Err(RequestError::Malformed(Malformed("it has too many elements"))));
}

/// What a request may take is held for it before it is decoded, so it must not take more.
#[test]
fn request_that_would_outgrow_what_is_held_for_it_is_refused() {
    let check = |header: &[u8], element: &[u8]| {
        let mut frame = BytesMut::new();
        frame.put_slice(header);
        frame.put_i32(10_000);
        (0..10_000).for_each(|_| frame.put_slice(element));
        let frame = frame.freeze();
        let (refused, peak) = memory::peak(|| decode_request(frame.clone()).map(|_| ()));
        let expected = Malformed("it takes too much memory for its size");
        assert_eq!(refused, Err(RequestError::Malformed(expected)), "{element:?}");
        assert!(peak <= decoded_bytes_max(&frame), "{element:?}: {peak} bytes were taken");
    };
    // Metadata 1: names that are empty, 2 bytes for a structure of 48. Produce 3: a topic of 6 bytes for one of 48.
    check(b"\0\x03\0\x01\0\0\0\0\xff\xff", b"\0\0");
    check(b"\0\0\0\x03\0\0\0\0\xff\xff\xff\xff\0\0\0\0\0\0", b"\0\0\0\0\0\0");
}

/// As many topics as a large cluster has, with the shortest names that are common, and the smallest batch there is.
#[test]
fn honest_requests_fit_what_is_held_for_them() {
    let names = || (0..5_000).map(|nth| theirs::TopicName(StrBytes::from_string(format!("t{nth}"))));
    for version in [3, 9, 12] {
        let topic = |name| {
            let partition = theirs::produce_request::PartitionProduceData::default()
                .with_index(1)
                .with_records(Some(Bytes::from(vec![0; 68])));
            theirs::produce_request::TopicProduceData::default().with_name(name).with_partition_data(vec![partition])
        };
        let body = theirs::ProduceRequest::default().with_topic_data(names().map(topic).collect());
        assert_eq!(decode_request(frame(Api::Produce, version, &body)).map(|_| ()), Ok(()), "Produce {version}");
    }
    for version in [4, 12] {
        let topic = |name| {
            let partition = theirs::fetch_request::FetchPartition::default();
            theirs::fetch_request::FetchTopic::default().with_topic(name).with_partitions(vec![partition])
        };
        let body = theirs::FetchRequest::default().with_topics(names().map(topic).collect());
        assert_eq!(decode_request(frame(Api::Fetch, version, &body)).map(|_| ()), Ok(()), "Fetch {version}");
    }
    for version in [1, 9] {
        let topic = |name| theirs::metadata_request::MetadataRequestTopic::default().with_name(Some(name));
        let body = theirs::MetadataRequest::default().with_topics(Some(names().map(topic).collect()));
        assert_eq!(decode_request(frame(Api::Metadata, version, &body)).map(|_| ()), Ok(()), "Metadata {version}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_a_request_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
        let _ = decode_request(bytes.into());
    }

    #[test]
    fn any_body_of_a_served_request_is_read_or_refused(
        api in proptest::sample::select(Api::ALL),
        version in 0i16..=17,
        body in proptest::collection::vec(any::<u8>(), 0..256),
    ) {
        let (min, max) = api.versions();
        let mut frame = BytesMut::new();
        frame.put_i16(api as i16);
        frame.put_i16(version.clamp(min, max));
        frame.put_i32(CORRELATION);
        frame.put_i16(0);
        frame.put_slice(&body);
        let size = frame.len();
        if let Ok((_, rest)) = decode(frame.freeze()) {
            prop_assert!(rest.len() <= size);
        }
    }

    /// Nearly right is what finds a decoder's mistakes: one byte of a good request is another.
    #[test]
    fn a_flipped_byte_is_read_or_refused(at in any::<proptest::sample::Index>(), to in any::<u8>(), version in 3i16..=12) {
        let data = theirs::produce_request::TopicProduceData::default()
            .with_name(topic("topic"))
            .with_partition_data(vec![Default::default(), Default::default()]);
        let good = frame(Api::Produce, version, &theirs::ProduceRequest::default().with_topic_data(vec![data]));
        let mut bytes = good.to_vec();
        let at = at.index(bytes.len());
        bytes[at] = to;
        let _ = decode_request(bytes.into());
    }
}
