//! Produce, and what keeps a connection in order.

use super::wire::{Connection, Served, bases, batch, fetch, frame, framed, idempotent, produce, transactional};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::messages as kafka;
use kafka_protocol::protocol::Decodable;
use millpond_log::batch::ProducerStamp;
use millpond_log::{ProducerEpoch, ProducerId};
use millpond_tests::tools::repository;
use std::collections::BTreeMap;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// What a vector is answered with: any of some codes, 0 for stored.
pub(crate) const VECTORS: [(&str, &[i16]); 20] = [
    ("V01", &[0]),
    ("V02", &[0]),
    ("V03", &[0]),
    ("V04", &[87]),
    ("V05", &[87, 2]),
    ("V06", &[87]),
    ("V07", &[2]),
    ("V08", &[87]),
    ("V09", &[87]),
    ("V10", &[0]),
    ("V11", &[0]),
    ("V12", &[0]),
    ("V13", &[0]),
    ("V14", &[0]),
    ("V15", &[0]),
    // Beyond the default of `message.timestamp.after.max.ms`, one hour (case C5).
    ("V16", &[32]),
    ("V17", &[0]),
    ("V18", &[87, 43, 2]),
    ("V19", &[87, 76, 2]),
    ("V20", &[0]),
];

/// The vectors' bytes, by name.
pub(crate) fn vectors() -> BTreeMap<String, Bytes> {
    let text =
        std::fs::read_to_string(repository().join("log/tests/vectors/golden.txt")).expect("the vectors are there");
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("hex"), 16).expect("hex");
    let vector = |line: &str| {
        let [name, _size, hex] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("not a vector: {line}") };
        (name[..3].to_owned(), hex.as_bytes().chunks(2).map(byte).collect::<Bytes>())
    };
    text.lines().map(vector).collect()
}

/// The batch but for what the broker places: base offset and leader epoch.
pub(crate) fn unplaced(batch: &[u8]) -> Vec<u8> {
    [&batch[8..12], &batch[16..]].concat()
}

#[tokio::test]
async fn every_vector_is_stored_as_it_came_or_refused_with_its_code() {
    let served = Served::start().await;
    let mut connection = served.connect().await;
    let vectors = vectors();
    assert!(vectors.keys().map(String::as_str).eq(VECTORS.map(|(name, _)| name)));
    for (vector, codes) in VECTORS {
        connection.create(vector, 1, &[]).await;
        let answer = connection.produce(vector, 0, vectors[vector].clone()).await;
        assert!(codes.contains(&answer.error_code), "{vector}: {answer:?}");
        assert_eq!(answer.log_append_time_ms, -1, "{vector}: the topic keeps the producer's times");
        let fetched = connection.fetch(vector, 0, 0).await;
        let stored = fetched.records.expect("records are never null");
        if codes == [0] {
            assert_eq!((answer.base_offset, answer.log_start_offset, answer.error_message), (0, 0, None), "{vector}");
            assert_eq!(unplaced(&stored), unplaced(&vectors[vector]), "{vector}");
        } else {
            assert!(answer.error_message.is_some_and(|message| !message.is_empty()), "{vector} says why");
            assert_eq!(
                (answer.base_offset, fetched.high_watermark, stored.len()),
                (-1, 0, 0),
                "{vector}: nothing stored"
            );
        }
    }
    connection.create("compacted", 1, &[("cleanup.policy", "compact")]).await;
    assert_eq!(connection.produce("compacted", 0, vectors["V20"].clone()).await.error_code, 87, "no key to compact by");
    assert_eq!(connection.produce("compacted", 0, vectors["V02"].clone()).await.error_code, 0);
}

#[tokio::test]
async fn a_bad_batch_does_not_spoil_its_neighbour() {
    let served = Served::start().await;
    let mut connection = served.connect().await;
    connection.create("t", 2, &[]).await;
    let vectors = vectors();
    let good = batch(&[1, 2], b"v");
    let two = Bytes::from([&good[..], &good[..]].concat());
    for (bad, code) in [(vectors["V04"].clone(), 87), (two, 87), (Bytes::new(), 87), (good.slice(..40), 2)] {
        let request = produce(-1, "t", &[(0, bad), (1, good.clone()), (7, good.clone())]);
        let answer = connection.call(8, &request).await;
        let codes: Vec<_> =
            answer.responses[0].partition_responses.iter().map(|part| (part.index, part.error_code)).collect();
        // A cut batch is malformed or corrupt; both say that it is not stored.
        let first = codes[0].1;
        assert!(first == code || first == 87, "{codes:?}");
        assert_eq!(codes[1..], [(1, 0), (7, 3)]);
    }
    assert_eq!(connection.fetch("t", 0, 0).await.high_watermark, 0, "case P1");
    assert_eq!(bases(&connection.fetch("t", 1, 0).await), [0, 2, 4, 6]);
}

#[tokio::test]
async fn every_version_of_produce_appends_and_the_old_ones_are_refused() {
    let served = Served::start().await;
    let mut connection = served.connect().await;
    connection.create("t", 1, &[]).await;
    for (count, version) in (3..=12).enumerate() {
        let answer = connection.call(version, &produce(1, "t", &[(0, batch(&[5], b"v"))])).await;
        let part = &answer.responses[0].partition_responses[0];
        assert_eq!((part.error_code, part.base_offset), (0, i64::try_from(count).expect("few")), "version {version}");
    }
    for version in 0..3i16 {
        let mut body = BytesMut::new();
        body.put_i16(0);
        body.put_i16(version);
        body.put_i32(900);
        body.put_slice(b"\xff\xff\0\x01\0\0\x10\0\0\0\0\x01\0\x01t\0\0\0\x01\0\0\0\0\0\0\0\x02xy");
        connection.send(&framed(&body)).await;
        let answer = connection.receive().await.expect("refused, not closed");
        assert_eq!(answer[..21], b"\0\0\x03\x84\0\0\0\x01\0\x01t\0\0\0\x01\0\0\0\0\0\x23"[..], "case A3");
    }
    assert_eq!(connection.fetch("t", 0, 0).await.high_watermark, 10, "nothing more was stored");
}

#[tokio::test]
async fn terms_that_cannot_be_met_are_refused() {
    let served = Served::start().await;
    let mut connection = served.connect().await;
    connection.create("t", 1, &[]).await;
    let code = |answer: kafka::ProduceResponse| answer.responses[0].partition_responses[0].error_code;
    assert_eq!(code(connection.call(9, &produce(2, "t", &[(0, batch(&[1], b"v"))])).await), 21);
    let stamp = ProducerStamp { id: ProducerId(7), epoch: ProducerEpoch(0), base_sequence: 0 };
    let nameless = produce(-1, "t", &[(0, transactional(stamp, 1))]);
    assert_eq!(code(connection.call(9, &nameless).await), 42, "a transactional batch without a transactional id");
    assert_eq!(code(connection.call(9, &produce(-1, "unknown", &[(0, batch(&[1], b"v"))])).await), 3);
    assert_eq!(code(connection.call(9, &produce(-1, "t", &[(-1, batch(&[1], b"v"))])).await), 3);
    assert_eq!(connection.fetch("t", 0, 0).await.high_watermark, 0);
}

#[tokio::test]
async fn no_acknowledgement_means_no_answer_and_failure_closes() {
    let served = Served::start().await;
    let mut connection = served.connect().await;
    connection.create("t", 1, &[]).await;
    connection.send(&frame(9, 501, &produce(0, "t", &[(0, batch(&[1], b"v"))]))).await;
    connection.send(&frame(1, 502, &kafka::MetadataRequest::default().with_topics(None))).await;
    let first = connection.receive().await.expect("Metadata is answered");
    assert_eq!(first[..4], 502i32.to_be_bytes(), "case P8");
    let bad = vectors()["V07"].clone();
    connection.send(&frame(9, 503, &produce(0, "t", &[(0, bad)]))).await;
    assert!(connection.receive().await.is_none(), "a failed append without acknowledgement closes the connection");
    let mut again = served.connect().await;
    // Nobody was told when it was stored: wait for it.
    let waits = fetch("t", &[(0, 0)], 1 << 20, 1 << 20).with_max_wait_ms(30_000).with_min_bytes(1);
    let stored = again.call(12, &waits).await.responses[0].partitions[0].clone();
    assert_eq!(bases(&stored), [0], "the good one was stored");
}

#[tokio::test]
async fn answers_keep_the_order_of_pipelined_requests() {
    let served = Served::start().await;
    let mut connection = served.connect().await;
    connection.create("t", 1, &[]).await;
    let waits = fetch("t", &[(0, 0)], 1 << 20, 1 << 20).with_max_wait_ms(300).with_min_bytes(1);
    let together = [
        frame(12, 10, &waits),
        frame(12, 11, &kafka::MetadataRequest::default().with_topics(None)),
        frame(3, 12, &kafka::ApiVersionsRequest::default()),
    ];
    connection.send(&together.concat()).await;
    for expected in [10i32, 11, 12] {
        let answer = connection.receive().await.expect("each is answered");
        assert_eq!(answer[..4], expected.to_be_bytes(), "case P9");
    }
    // Produces of one connection land in the order they were sent, however many are in flight.
    let sent: Vec<Bytes> =
        (0..50).map(|id| frame(9, id, &produce(-1, "t", &[(0, batch(&[i64::from(id)], b"v"))]))).collect();
    connection.send(&sent.concat()).await;
    for id in 0..50 {
        let mut answer = connection.receive().await.expect("each is answered");
        assert_eq!(answer.get_i32(), id);
        answer.advance(1);
        let read = kafka::ProduceResponse::decode(&mut answer, 9).expect("an answer");
        assert_eq!(read.responses[0].partition_responses[0].base_offset, i64::from(id));
    }
}

#[tokio::test]
async fn idempotent_producers_are_known_by_their_sequence() {
    let served = Served::start().await;
    let mut connection = served.connect().await;
    connection.create("t", 2, &[]).await;
    let mut ids = Vec::new();
    for version in 0..=5 {
        let answer =
            connection.call(version, &kafka::InitProducerIdRequest::default().with_transactional_id(None)).await;
        assert_eq!((answer.error_code, answer.producer_epoch), (0, 0), "version {version}");
        ids.push(answer.producer_id.0);
    }
    ids.dedup();
    assert_eq!(ids.len(), 6, "each producer has its own id: {ids:?}");
    let id = ProducerId(ids[0].cast_unsigned());
    let stamp = |epoch, base_sequence| ProducerStamp { id, epoch: ProducerEpoch(epoch), base_sequence };
    let ten: Vec<i64> = (0..10).collect();
    // Case P6, then a retry.
    for (partition, epoch, sequence, expected) in [
        (0, 0, 0, (0, 0)),
        (1, 0, 0, (0, 0)),
        (1, 1, 10, (45, -1)),
        (1, 1, 0, (0, 10)),
        (1, 0, 10, (47, -1)),
        (0, 0, 10, (0, 10)),
        (0, 0, 10, (0, 10)),
        (0, 0, 30, (45, -1)),
    ] {
        let answer = connection.produce("t", partition, idempotent(stamp(epoch, sequence), &ten)).await;
        assert_eq!((answer.error_code, answer.base_offset), expected, "partition {partition}, {epoch}/{sequence}");
    }
    assert_eq!(connection.fetch("t", 0, 0).await.high_watermark, 20);
}

/// Rule P6: nothing is known of the producer, so any batch of it could be the first. Some clients take the acknowledgement of a later one for that of
/// all before it. What was refused is sent again as it was, or, if it was too large, in two.
#[tokio::test]
async fn no_batch_of_a_producer_overtakes_its_first_one_that_was_refused() {
    let served = Served::start().await;
    let mut connection = served.connect().await;
    connection.create("small", 1, &[("max.message.bytes", "1024")]).await;
    let stamp = |id, base_sequence| ProducerStamp { id: ProducerId(id), epoch: ProducerEpoch(0), base_sequence };
    let records = |count: i64| (0..count).collect::<Vec<i64>>();
    let mut produce = async |topic: &str, id, sequence, count| {
        let answer = connection.produce(topic, 0, idempotent(stamp(id, sequence), &records(count))).await;
        (answer.error_code, answer.base_offset)
    };
    assert_eq!(produce("small", 7, 0, 500).await, (10, -1), "MESSAGE_TOO_LARGE");
    assert_eq!(produce("small", 7, 500, 1).await, (19, -1), "NOT_ENOUGH_REPLICAS, which every client retries");
    assert_eq!(produce("small", 8, 500, 1).await, (0, 0), "another producer may have been forgotten");
    assert_eq!(produce("small", 7, 0, 50).await, (0, 1));
    assert_eq!(produce("small", 7, 50, 1).await, (0, 51));
    assert_eq!(produce("late", 7, 0, 1).await, (3, -1), "UNKNOWN_TOPIC_OR_PARTITION");
    served.connect().await.create("late", 1, &[]).await;
    assert_eq!(produce("late", 7, 1, 1).await, (19, -1));
    assert_eq!(produce("late", 7, 0, 1).await, (0, 0));
    assert_eq!(produce("late", 7, 1, 1).await, (0, 1));
}

/// Rule P6: a batch that was refused on one connection may have come again on another, as it does when another broker led meanwhile.
#[tokio::test]
async fn what_a_connection_was_refused_holds_up_nothing_that_the_partition_knows_to_be_next() {
    let served = Served::start().await;
    let (mut one, mut other) = (served.connect().await, served.connect().await);
    one.create("t", 1, &[("max.message.bytes", "1024")]).await;
    let stamp = |base_sequence| ProducerStamp { id: ProducerId(7), epoch: ProducerEpoch(0), base_sequence };
    let batch = |sequence, count: i64| idempotent(stamp(sequence), &(0..count).collect::<Vec<i64>>());
    assert_eq!(one.produce("t", 0, batch(0, 500)).await.error_code, 10, "MESSAGE_TOO_LARGE");
    assert_eq!(one.produce("t", 0, batch(1, 1)).await.error_code, 19, "NOT_ENOUGH_REPLICAS");
    assert_eq!(other.produce("t", 0, batch(0, 1)).await.error_code, 0);
    assert_eq!(one.produce("t", 0, batch(1, 1)).await.error_code, 0);
    assert_eq!(one.produce("t", 0, batch(2, 1)).await.error_code, 0);
}

#[tokio::test]
async fn limits_of_the_topic_hold_for_the_batch_as_it_came() {
    let served = Served::start().await;
    let mut connection = served.connect().await;
    connection.create("t", 1, &[("max.message.bytes", "51200")]).await;
    assert_eq!(connection.produce("t", 0, batch(&[1], &vec![7; 10 << 20])).await.error_code, 10, "case P3");
    let overhead = batch(&[1], &vec![7; 50_000]).len() - 50_000;
    assert_eq!(connection.produce("t", 0, batch(&[1], &vec![7; 51_200 - overhead])).await.error_code, 0);
    assert_eq!(connection.produce("t", 0, batch(&[1], &vec![7; 51_201 - overhead])).await.error_code, 10);
    assert_eq!(connection.fetch("t", 0, 0).await.high_watermark, 1);
}

#[tokio::test]
async fn log_append_time_is_told_and_stored() {
    let served = Served::start().await;
    let mut connection = served.connect().await;
    connection.create("t", 1, &[("message.timestamp.type", "LogAppendTime")]).await;
    let answer = connection.produce("t", 0, vectors()["V17"].clone()).await;
    assert!(answer.error_code == 0 && answer.log_append_time_ms > 1_700_000_009_000, "case P18: {answer:?}");
    let fetched = connection.fetch("t", 0, 0).await;
    let stored = &super::wire::batches(&fetched)[0];
    assert_eq!(stored.max_timestamp().0, answer.log_append_time_ms);
    stored.verify_crc().expect("the CRC was made anew");
}

#[tokio::test]
async fn garbage_closes_its_own_connection_and_nothing_else() {
    let served = Served::start().await;
    let mut good = served.connect().await;
    good.create("t", 1, &[]).await;
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    let mut garbage = |size: usize| -> Vec<u8> {
        let byte = |_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 56) as u8
        };
        (0..size).map(byte).collect()
    };
    for round in 0..50 {
        let bytes = garbage(round * 40);
        // Behind a length that is right, so that it reaches the decoder, and as it is.
        for bytes in [framed(&[&[0, (round % 4) as u8, 0, 5][..], &bytes].concat()).to_vec(), bytes] {
            let mut bad = served.connect().await;
            // The broker may have closed it before all is sent.
            let _ = bad.stream.write_all(&bytes).await;
            let _ = bad.stream.shutdown().await;
            let mut rest = Vec::new();
            let _ = bad.stream.read_to_end(&mut rest).await;
        }
    }
    for opening in
        [&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\0\x01"]
    {
        let mut bad = served.connect().await;
        bad.send(opening).await;
        assert!(bad.receive().await.is_none(), "closed without an answer");
    }
    assert_eq!(good.produce("t", 0, batch(&[1], b"v")).await.error_code, 0, "the broker lives on");
}

#[tokio::test]
async fn a_newer_client_learns_which_versions_there_are() {
    let served = Served::start().await;
    let mut connection: Connection = served.connect().await;
    // Case A1: ApiVersions 99 with a flexible header.
    connection.send(&framed(b"\0\x12\0\x63\0\0\0\x07\0\x01c\0\x02x\x02y\0")).await;
    let mut answer = connection.receive().await.expect("answered, not closed");
    assert_eq!((answer.get_i32(), answer.get_i16()), (7, 35));
    let count = answer.get_i32();
    let keys: Vec<(i16, i16, i16)> =
        (0..count).map(|_| (answer.get_i16(), answer.get_i16(), answer.get_i16())).collect();
    assert!(!answer.has_remaining() && keys.contains(&(18, 0, 4)) && keys.contains(&(0, 0, 12)), "{keys:?}");
    for version in 0..=4 {
        let answer = connection.call(version, &kafka::ApiVersionsRequest::default()).await;
        assert_eq!((answer.error_code, answer.api_keys.len()), (0, keys.len()), "version {version}");
    }
    // Any other request in a version that is not served cannot be answered in a layout the client knows.
    connection.send(&frame(13, 1, &kafka::MetadataRequest::default().with_topics(None))).await;
    assert!(connection.receive().await.is_some());
    connection.send(&framed(b"\0\x03\0\x0e\0\0\0\x08\xff\xff")).await;
    assert!(connection.receive().await.is_none());
}
