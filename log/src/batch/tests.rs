//! Validation and encoding of batches by table; the properties are in the crate's integration tests.

use super::*;
use crate::ErrorCode;
use crate::limits::BATCH_BYTES_DEFAULT;

const T: i64 = 1_700_000_000_000;
const HOUR_MS: i64 = 3_600_000;

fn rules() -> ProduceRules {
    ProduceRules {
        batch_bytes_max: BATCH_BYTES_DEFAULT,
        compacted: false,
        timestamp_type: TimestampType::CreateTime,
        timestamp_before_max_ms: i64::MAX,
        timestamp_after_max_ms: HOUR_MS,
        now: TimestampMs(T),
        codec: None,
    }
}

fn record(timestamp: i64, key: Option<&'static [u8]>, value: Option<&'static [u8]>) -> NewRecord<'static> {
    NewRecord { timestamp: TimestampMs(timestamp), key, value, headers: &[] }
}

/// Three records, a millisecond apart.
fn three(codec: Codec) -> Batch {
    let mut builder = BatchBuilder::new(codec);
    for (index, value) in (0..).zip([b"v0", b"v1", b"v2"]) {
        builder.push(record(T + index, Some(b"k"), Some(value)));
    }
    builder.build()
}

/// A batch of these record bytes, made as no builder would.
fn raw_batch(records: &'static [u8], change: impl FnOnce(&mut [u8; BATCH_HEADER_BYTES])) -> Batch {
    let mut head = *three(Codec::None).head();
    layout::LAST_OFFSET_DELTA.set(&mut head, 0);
    layout::RECORD_COUNT.set(&mut head, 1);
    layout::MAX_TIMESTAMP.set(&mut head, T);
    change(&mut head);
    Batch::seal(head, Bytes::from_static(records))
}

fn whole(batch: &Batch) -> Bytes {
    let mut bytes = Vec::new();
    batch.put(&mut bytes);
    bytes.into()
}

#[test]
fn header_fields_are_where_kafka_puts_them() {
    let stamp = ProducerStamp { id: ProducerId(7), epoch: ProducerEpoch(3), base_sequence: 11 };
    let mut builder = BatchBuilder::new(Codec::Zstd).producer(stamp).transactional();
    builder.push(record(T, None, Some(b"a")));
    builder.push(record(T - 5, None, Some(b"b")));
    let mut batch = builder.build();
    batch.place(Offset(0x0102_0304_0506), LeaderEpoch(9));
    let head = batch.head();
    assert_eq!(head[..8], [0, 0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(head[8..12], u32::try_from(batch.size() - 12).unwrap().to_be_bytes());
    assert_eq!((&head[12..16], head[16]), (&[0, 0, 0, 9][..], 2));
    assert_eq!(head[21..27], [0, 0b1_0100, 0, 0, 0, 1]);
    assert_eq!((&head[27..35], &head[35..43]), (&T.to_be_bytes()[..], &T.to_be_bytes()[..]));
    assert_eq!(head[43..57], [0, 0, 0, 0, 0, 0, 0, 7, 0, 3, 0, 0, 0, 11]);
    assert_eq!(head[57..61], [0, 0, 0, 2]);
    assert_eq!(batch.base_offset(), Offset(0x0102_0304_0506));
    assert_eq!(batch.end_offset(), Offset(0x0102_0304_0508));
    assert_eq!((batch.leader_epoch(), batch.record_count(), batch.offset_span()), (LeaderEpoch(9), 2, 2));
    assert_eq!((batch.codec(), batch.producer()), (Some(Codec::Zstd), Some(stamp)));
    assert!(batch.is_transactional() && !batch.is_control());
    assert_eq!(batch.verify_crc(), Ok(()), "placing is outside the CRC");
}

#[test]
fn take_yields_whole_batches_only() {
    let first = three(Codec::None);
    let second = three(Codec::Lz4);
    let mut buf = Bytes::from([whole(&first), whole(&second)].concat());
    assert_eq!(Batch::take(&mut buf), Ok(Some(first.clone())));
    assert_eq!(Batch::take(&mut buf), Ok(Some(second)));
    assert_eq!(Batch::take(&mut buf), Ok(None));
    for cut in 1..first.size() {
        let mut short = whole(&first).slice(..cut);
        let need = if cut < BATCH_HEADER_BYTES { BATCH_HEADER_BYTES } else { first.size() };
        assert_eq!(Batch::take(&mut short), Err(BatchError::Cut { need, have: cut }));
        assert_eq!(short.len(), cut, "an error takes nothing");
    }
}

#[test]
fn take_refuses_headers_that_are_none() {
    let check = |at: usize, bytes: &[u8], expected: BatchError| {
        let mut batch = whole(&three(Codec::None)).to_vec();
        batch[at..at + bytes.len()].copy_from_slice(bytes);
        assert_eq!(Batch::take(&mut Bytes::from(batch)), Err(expected));
    };
    check(16, &[0], BatchError::OldFormat(0));
    check(16, &[1], BatchError::OldFormat(1));
    check(16, &[3], BatchError::Malformed("unknown magic"));
    check(16, &[0xff], BatchError::Malformed("unknown magic"));
    check(8, &[0xff; 4], BatchError::Malformed("negative length"));
    check(8, &[0, 0, 0, 48], BatchError::Malformed("length shorter than the header"));
    check(8, &[0x7f, 0xff, 0xff, 0xff], BatchError::Cut { need: 0x8000_000b, have: 91 });
    check(0, &[0xff; 8], BatchError::Malformed("negative base offset"));
    check(0, &i64::MAX.to_be_bytes(), BatchError::Malformed("offsets past 2^63"));
    check(23, &[0xff; 4], BatchError::Malformed("negative last offset delta"));
    check(57, &[0xff; 4], BatchError::Malformed("negative record count"));
    // An old message set may be shorter than the header of a batch.
    let mut old = Bytes::from_static(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 14, 1, 2, 3, 4, 0, 0]);
    assert_eq!(Batch::take(&mut old), Err(BatchError::OldFormat(0)));
}

#[test]
fn header_contradictions_are_refused() {
    let check = |name: &str, change: &dyn Fn(&mut [u8; BATCH_HEADER_BYTES]), expected: Result<(), BatchError>| {
        let good = three(Codec::None);
        let mut head = good.head;
        change(&mut head);
        let batch = Batch::seal(head, good.records);
        assert_eq!(batch.clone().admit(&rules()).map(|admitted| assert_eq!(admitted, batch)), expected, "{name}");
    };
    let malformed = |what| Err(BatchError::Malformed(what));
    let contradict = malformed("record count and last offset delta contradict");
    check("as built", &|_| {}, Ok(()));
    check("P1: delta too large", &|head| layout::LAST_OFFSET_DELTA.set(head, 5), contradict.clone());
    check("P1: delta always 0", &|head| layout::LAST_OFFSET_DELTA.set(head, 0), contradict.clone());
    check("count 2 of 3", &|head| layout::RECORD_COUNT.set(head, 2), contradict);
    check("no records", &|head| layout::RECORD_COUNT.set(head, 0), malformed("no records"));
    let both = |head: &mut [u8; BATCH_HEADER_BYTES], count| {
        layout::RECORD_COUNT.set(head, count);
        layout::LAST_OFFSET_DELTA.set(head, count - 1);
    };
    check("2 of 3", &|head| both(head, 2), malformed("bytes left after the last record"));
    check("4 of 3", &|head| both(head, 4), malformed("records end inside a record"));
    check("2^31 - 1", &|head| both(head, i32::MAX), malformed("more records than a batch may hold"));
    check("base offset", &|head| layout::BASE_OFFSET.set(head, 1), malformed("base offset is not 0"));
    check("leader epoch of a client is ignored", &|head| layout::LEADER_EPOCH.set(head, 3), Ok(()));
    for codec in 5..8 {
        check("codec", &|head| layout::ATTRIBUTES.set(head, codec), malformed("unknown codec"));
    }
    let control = malformed("clients may not write control batches");
    check("control", &|head| layout::ATTRIBUTES.set(head, 1 << 5), control);
    for bit in 6..16 {
        let reserved = malformed("reserved attribute bits are set");
        check("reserved", &|head| layout::ATTRIBUTES.set(head, (1_u16 << bit).cast_signed()), reserved);
    }
    check("broker's clock", &|head| layout::ATTRIBUTES.set(head, 1 << 3), Err(BatchError::TimestampType));
    let lonely = malformed("transactional without a producer id");
    check("transactional", &|head| layout::ATTRIBUTES.set(head, 1 << 4), lonely);
    let producer = |head: &mut [u8; BATCH_HEADER_BYTES], id, epoch, sequence| {
        layout::PRODUCER_ID.set(head, id);
        layout::PRODUCER_EPOCH.set(head, epoch);
        layout::BASE_SEQUENCE.set(head, sequence);
    };
    check("producer", &|head| producer(head, 0, 0, 0), Ok(()));
    check("last sequence", &|head| producer(head, i64::MAX, i16::MAX, i32::MAX), Ok(()));
    check("no sequence", &|head| producer(head, 7, 0, -1), malformed("producer id without a sequence"));
    check("no epoch", &|head| producer(head, 7, -1, 0), malformed("producer id without a producer epoch"));
    check("sequence of nobody", &|head| producer(head, -1, 5, 5), Ok(()));
}

#[test]
fn malformed_records_are_refused() {
    let check = |records: &'static [u8], expected: Result<(), &'static str>| {
        let batch = raw_batch(records, |_| {});
        let expected = expected.map_err(BatchError::Malformed);
        assert_eq!(batch.clone().admit(&rules()).map(|_| ()), expected, "{records:x?}");
        // Readers see the same as validation did.
        let read: Result<Vec<Record>, BatchError> = batch.records().unwrap().collect();
        match expected {
            Err(BatchError::Malformed("offset deltas are not 0, 1, 2 and so on")) => assert!(read.is_err()),
            _ => assert_eq!(read.map(|_| ()), expected, "{records:x?}"),
        }
    };
    check(&[12, 0, 0, 0, 1, 0, 0], Ok(()));
    // Attribute bits of a record have no meaning, and Kafka takes any.
    check(&[12, 0xff, 0, 0, 1, 0, 0], Ok(()));
    // Lengths in more bytes than needed.
    check(&[14, 0, 0, 0, 1, 0x80, 0x00, 0], Ok(()));
    check(&[], Err("records end inside a record"));
    check(&[1, 0, 0, 0, 1, 0, 0], Err("negative record length"));
    check(&[14, 0, 0, 0, 1, 0, 0], Err("records end inside a record"));
    check(&[10, 0, 0, 0, 1, 0, 0], Err("records end inside a record"));
    check(&[14, 0, 0, 0, 1, 0, 0, 0], Err("bytes left in a record"));
    check(&[12, 0, 0, 0, 1, 0, 0, 0], Err("bytes left after the last record"));
    check(&[12, 0, 0, 2, 1, 0, 0], Err("offset deltas are not 0, 1, 2 and so on"));
    check(&[12, 0, 0, 1, 1, 0, 0], Err("offset deltas are not 0, 1, 2 and so on"));
    check(&[12, 0, 0, 0, 3, 0, 0], Err("negative key length"));
    check(&[12, 0, 0, 0, 0, 3, 0], Err("negative value length"));
    check(&[12, 0, 0, 0, 0, 2, 0], Err("records end inside a record"));
    check(&[12, 0, 0, 0, 1, 1, 1], Err("negative header count"));
    check(&[12, 0, 0, 0, 1, 1, 2], Err("records end inside a record"));
    check(&[16, 0, 0, 0, 1, 1, 2, 0, 1], Ok(()));
    // P12: a header's name may be empty, but not null.
    check(&[16, 0, 0, 0, 1, 1, 2, 1, 1], Err("null header name"));
    check(&[16, 0, 0, 0, 1, 1, 2, 3, 1], Err("negative header name length"));
    check(&[16, 0, 0, 0, 1, 1, 2, 0, 3], Err("negative header value length"));
    check(&[18, 0, 0, 0, 1, 1, 2, 0, 1, 0], Err("bytes left in a record"));
    // A header count that only a lie can reach reserves nothing.
    check(&[20, 0, 0, 0, 1, 1, 0xfe, 0xff, 0xff, 0xff, 0x0f], Err("records end inside a record"));
    check(&[0xff, 0xff, 0xff, 0xff, 0x1f], Err("varint past 32 bits"));
    check(&[0x80, 0x80, 0x80, 0x80, 0x80, 0x00], Err("varint too long"));
}

#[test]
fn damage_is_told_from_malice_by_the_crc() {
    // Both wrong: the count may be a flipped bit, so the client is to send the batch again.
    let mut batch = three(Codec::None);
    layout::RECORD_COUNT.set(&mut batch.head, 9);
    assert_eq!(batch.admit(&rules()), Err(BatchError::Corrupt("CRC mismatch")));
    // The CRC is right, so the stream came damaged from the producer, and would again.
    let packed = raw_batch(b"\x1f\x8bnot gzip", |head| layout::ATTRIBUTES.set(head, 1));
    assert_eq!(packed.clone().admit(&rules()), Err(BatchError::Malformed("damaged gzip stream")));
    assert_eq!(packed.records().err(), Some(BatchError::Corrupt("damaged gzip stream")));
}

#[test]
fn size_limit_is_about_the_bytes_received() {
    // P4: what compresses below the limit is accepted, whatever it was before.
    let mut builder = BatchBuilder::new(Codec::Gzip);
    let value = vec![b'y'; 100_000];
    let uncompressed =
        builder.push(NewRecord { timestamp: TimestampMs(T), key: None, value: Some(&value), headers: &[] });
    let batch = builder.build();
    let size = batch.size();
    assert!(size < 1000 && uncompressed > 100_000);
    let check = |max: usize, codec: Option<Codec>, expected: Result<(), usize>| {
        let max = u32::try_from(max).unwrap();
        let admitted = batch.clone().admit(&ProduceRules { batch_bytes_max: max, codec, ..rules() });
        assert_eq!(admitted.map(|_| ()), expected.map_err(|size| BatchError::TooLarge { size, max }));
    };
    check(size, None, Ok(()));
    check(size - 1, None, Err(size));
    // Re-encoding must not smuggle a batch past the limit.
    check(uncompressed, Some(Codec::None), Ok(()));
    check(uncompressed - 1, Some(Codec::None), Err(uncompressed));
}

#[test]
fn thirty_megabytes_in_a_small_batch_are_accepted_and_a_bomb_is_not() {
    // P16: highly compressible is no crime.
    let check = |len: usize, expected: Result<(), BatchError>| {
        let value = vec![0; len];
        let mut builder = BatchBuilder::new(Codec::Zstd);
        builder.push(NewRecord { timestamp: TimestampMs(T), key: None, value: Some(&value), headers: &[] });
        assert_eq!(builder.build().admit(&rules()).map(|_| ()), expected);
    };
    check(30 << 20, Ok(()));
    check(257 << 20, Err(BatchError::InflatedTooLarge { max: 256 << 20 }));
}

#[test]
fn timestamps_are_held_to_the_topics_bounds() {
    let check = |timestamp: i64, rules: ProduceRules, accepted: bool| {
        let mut builder = BatchBuilder::new(Codec::None);
        builder.push(record(T, None, None));
        builder.push(record(timestamp, None, None));
        let admitted = builder.build().admit(&rules).map(|_| ());
        assert_eq!(
            admitted,
            if accepted { Ok(()) } else { Err(BatchError::Timestamp { timestamp, records: vec![1] }) }
        );
    };
    check(T + HOUR_MS, rules(), true);
    check(T + HOUR_MS + 1, rules(), false);
    // C5: the year 2099.
    check(4_070_908_800_000, rules(), false);
    check(4_070_908_800_000, ProduceRules { timestamp_after_max_ms: i64::MAX, ..rules() }, true);
    check(i64::MAX, ProduceRules { timestamp_after_max_ms: i64::MAX, ..rules() }, true);
    check(0, rules(), true);
    check(T - i64::MAX, rules(), true);
    check(i64::MIN, rules(), false);
    let recent = ProduceRules { timestamp_before_max_ms: HOUR_MS, ..rules() };
    check(T - HOUR_MS, recent, true);
    check(T - HOUR_MS - 1, recent, false);
    check(-1, recent, true);
    check(-2, recent, false);
    check(0, ProduceRules { timestamp_type: TimestampType::LogAppendTime, ..recent }, true);
}

#[test]
fn latest_timestamp_is_true_whatever_the_header_says() {
    let check = |header_max: i64, expected_header: i64| {
        for codec in Codec::ALL {
            let good = three(codec);
            let mut head = good.head;
            layout::MAX_TIMESTAMP.set(&mut head, header_max);
            let batch = Batch::seal(head, good.records);
            let admitted = batch.clone().admit_timed(&rules()).unwrap();
            assert_eq!(admitted, Admitted { batch: batch.clone(), latest: TimestampMs(T + 2) });
            assert_eq!(batch.latest_timestamp(), Ok(TimestampMs(T + 2)));
            assert_eq!(batch.max_timestamp(), TimestampMs(expected_header));
        }
    };
    check(T + 2, T + 2);
    check(T, T);
    check(-1, T);
    check(i64::MAX, i64::MAX);
}

#[test]
fn log_append_time_is_every_records_time() {
    // P18, over each codec: the stamp is in the header, so no record is rewritten.
    for codec in Codec::ALL {
        let mut batch = three(codec);
        batch.stamp_append_time(TimestampMs(T + 777));
        assert_eq!(
            (batch.timestamp_type(), batch.max_timestamp()),
            (TimestampType::LogAppendTime, TimestampMs(T + 777))
        );
        assert_eq!(batch.verify_crc(), Ok(()), "{codec}");
        assert_eq!(batch.records_bytes(), three(codec).records_bytes());
        let times: Vec<i64> = batch.records().unwrap().map(|record| record.unwrap().timestamp.0).collect();
        assert_eq!(times, [T + 777; 3]);
        assert_eq!(batch.latest_timestamp(), Ok(TimestampMs(T + 777)));
    }
}

#[test]
fn stamping_does_not_bless_damaged_records() {
    // Rule R13: what was damaged between validation and append is still seen by whoever checks the CRC.
    let mut batch = three(Codec::None);
    let mut damaged = batch.records.to_vec();
    damaged[6] ^= 0x10;
    batch.records = damaged.into();
    batch.stamp_append_time(TimestampMs(T));
    assert_eq!(batch.verify_crc(), Err(BatchError::Corrupt("CRC mismatch")));
}

#[test]
fn compression_type_re_encodes_other_codecs_only() {
    for from in Codec::ALL {
        for to in Codec::ALL {
            let batch = three(from);
            let admitted = batch.clone().admit(&ProduceRules { codec: Some(to), ..rules() }).unwrap();
            assert_eq!((admitted.codec(), admitted.verify_crc()), (Some(to), Ok(())));
            let read = |batch: &Batch| batch.records().unwrap().collect::<Result<Vec<Record>, BatchError>>();
            assert_eq!(read(&admitted), read(&batch), "{from} to {to}");
            assert_eq!(whole(&admitted), whole(&three(to)), "{from} to {to}");
            if from == to {
                assert_eq!(admitted.records.as_ptr(), batch.records.as_ptr(), "the producer's bytes are shared");
            }
        }
    }
}

#[test]
fn keyless_records_are_refused_on_compacted_topics_only() {
    let check = |key: Option<&'static [u8]>, compacted: bool, expected: Result<(), BatchError>| {
        let mut builder = BatchBuilder::new(Codec::Snappy);
        builder.push(record(T, Some(b"k"), None));
        builder.push(record(T, key, None));
        assert_eq!(builder.build().admit(&ProduceRules { compacted, ..rules() }).map(|_| ()), expected);
    };
    check(None, false, Ok(()));
    check(None, true, Err(BatchError::NoKey { records: vec![1] }));
    // P10: an empty key is a key.
    check(Some(b""), true, Ok(()));
}

#[test]
fn all_records_that_spoil_a_batch_are_named() {
    let admitted = |records: &[(i64, Option<&'static [u8]>)]| {
        let mut builder = BatchBuilder::new(Codec::Gzip);
        for (timestamp, key) in records {
            builder.push(record(*timestamp, *key, None));
        }
        builder.build().admit(&ProduceRules { compacted: true, ..rules() }).map(|_| ())
    };
    let (good, keyless, late) = ((T, Some(&b"k"[..])), (T, None), (T + 2 * HOUR_MS, Some(&b"k"[..])));
    let later = (T + 3 * HOUR_MS, None);
    assert_eq!(admitted(&[good, good]), Ok(()));
    assert_eq!(admitted(&[keyless, good, keyless]), Err(BatchError::NoKey { records: vec![0, 2] }));
    let timestamp = T + 2 * HOUR_MS;
    assert_eq!(
        admitted(&[keyless, later, good, late]),
        Err(BatchError::Timestamp { timestamp, records: vec![0, 1, 3] })
    );
    // A bound on what millions of them cost.
    let many = admitted(&vec![keyless; SPOILT_RECORDS_MAX + 1]);
    assert_eq!(many, Err(BatchError::NoKey { records: (0..10_000).collect() }));
}

#[test]
fn holes_of_a_compacted_batch_are_kept() {
    let check = |records: &'static [u8], span: i32, expected: &[Result<u64, BatchError>]| {
        let mut batch = raw_batch(records, |head| {
            layout::LAST_OFFSET_DELTA.set(head, span - 1);
            layout::RECORD_COUNT.set(head, 2);
        });
        batch.place(Offset(100), LeaderEpoch(0));
        let read: Vec<_> = batch.records().unwrap().map(|record| record.map(|record| record.offset.0)).collect();
        assert_eq!(read, expected);
        assert_eq!(batch.end_offset(), Offset(100 + u64::from(span.unsigned_abs())));
    };
    let disordered = || Err(BatchError::Malformed("offset delta out of order"));
    check(&[12, 0, 0, 4, 1, 0, 0, 12, 0, 0, 10, 1, 0, 0], 10, &[Ok(102), Ok(105)]);
    check(&[12, 0, 0, 4, 1, 0, 0, 12, 0, 0, 10, 1, 0, 0], 5, &[Ok(102), disordered()]);
    check(&[12, 0, 0, 4, 1, 0, 0, 12, 0, 0, 4, 1, 0, 0], 10, &[Ok(102), disordered()]);
    check(&[12, 0, 0, 4, 1, 0, 0, 12, 0, 0, 2, 1, 0, 0], 10, &[Ok(102), disordered()]);
}

/// The bytes of a batch that Kafka's compaction has emptied, but for the producer, which a hole has none of.
#[test]
fn a_hole_takes_up_offsets_and_holds_nothing() {
    for span in [1, 7, Batch::HOLE_SPAN_MAX] {
        let mut hole = Batch::hole(span);
        hole.place(Offset(100), LeaderEpoch(3));
        let mut bytes = bytes::BytesMut::new();
        hole.put(&mut bytes);
        let read = Batch::take(&mut bytes.freeze()).unwrap().expect("it is whole");
        assert_eq!((&read, read.verify_crc()), (&hole, Ok(())));
        assert_eq!((read.base_offset(), read.end_offset().0), (Offset(100), 100 + u64::from(span)));
        assert_eq!((read.record_count(), read.records().unwrap().count()), (0, 0));
        assert_eq!((read.producer_write(), read.is_control(), read.size()), (None, false, 61));
        assert_eq!(read.latest_timestamp(), Ok(TimestampMs::NONE), "no search by time finds it");
    }
}

#[test]
fn errors_have_kafkas_codes() {
    for (error, code) in [
        (BatchError::Cut { need: 61, have: 1 }, 2),
        (BatchError::Corrupt("CRC mismatch"), 2),
        (BatchError::TooLarge { size: 2, max: 1 }, 10),
        (BatchError::InflatedTooLarge { max: 1 }, 10),
        (BatchError::Timestamp { timestamp: 1, records: vec![0] }, 32),
        (BatchError::NoKey { records: vec![0] }, 87),
        (BatchError::TimestampType, 32),
        (BatchError::Malformed("unknown codec"), 87),
        (BatchError::OldFormat(1), 87),
    ] {
        assert_eq!(error.code().kafka(), code, "{error}");
    }
    assert_eq!(BatchError::Malformed("x").code(), ErrorCode::InvalidRecord);
}
