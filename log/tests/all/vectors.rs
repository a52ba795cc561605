//! Every vector of `vectors/golden.txt`, answered as a Kafka broker should on a topic with default settings.

use bytes::Bytes;
use millpond_log::batch::{BatchError, Header, ProduceRules, Record, TimestampType};
use millpond_log::codec::Codec;
use millpond_log::limits::BATCH_BYTES_DEFAULT;
use millpond_log::{Batch, LeaderEpoch, Offset, TimestampMs};

const T: i64 = 1_700_000_000_000;

fn defaults() -> ProduceRules {
    ProduceRules {
        batch_bytes_max: BATCH_BYTES_DEFAULT,
        compacted: false,
        timestamp_type: TimestampType::CreateTime,
        timestamp_before_max_ms: i64::MAX,
        timestamp_after_max_ms: 3_600_000,
        now: TimestampMs(T),
        codec: None,
    }
}

/// The bytes of the vector whose name starts with `name`.
fn vector(name: &str) -> Bytes {
    let mut lines = include_str!("../vectors/golden.txt").lines();
    let line = lines.find(|line| line.starts_with(name)).expect("the vector is in the file");
    let [_, size, hex] = line.split(' ').collect::<Vec<&str>>()[..] else { panic!("three words in `{line}`") };
    let pairs = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).expect("a sound vector"));
    let bytes: Bytes = pairs.map(|pair| u8::from_str_radix(pair, 16).expect("a sound vector")).collect();
    assert_eq!(bytes.len().to_string(), size);
    bytes
}

fn admit(name: &str, rules: &ProduceRules) -> Result<Batch, BatchError> {
    let mut bytes = vector(name);
    let batch = Batch::take(&mut bytes)?.expect("a vector is not empty");
    assert!(bytes.is_empty(), "{name} is one batch");
    batch.admit(rules)
}

fn records(batch: &Batch) -> Vec<Record> {
    batch.records().expect("a sound vector").collect::<Result<Vec<Record>, BatchError>>().expect("a sound vector")
}

fn whole(batch: &Batch) -> Bytes {
    let mut bytes = Vec::new();
    batch.put(&mut bytes);
    bytes.into()
}

#[test]
fn refused_vectors_are_refused_with_kafkas_code() {
    let check = |name, rules: ProduceRules, code: i16| {
        let error = admit(name, &rules).expect_err("refused");
        assert_eq!(error.code().kafka(), code, "{name}: {error}");
    };
    check("V04", defaults(), 87);
    check("V05", defaults(), 87);
    check("V06", defaults(), 87);
    check("V07", defaults(), 2);
    check("V08", defaults(), 87);
    check("V09", defaults(), 87);
    check("V16", defaults(), 32);
    check("V18", defaults(), 87);
    check("V19", defaults(), 87);
    check("V20", ProduceRules { compacted: true, ..defaults() }, 87);
    check("V01", ProduceRules { compacted: true, ..defaults() }, 87);
}

#[test]
fn accepted_vectors_are_stored_byte_for_byte() {
    let no_limit = ProduceRules { timestamp_after_max_ms: i64::MAX, ..defaults() };
    let compacted = ProduceRules { compacted: true, ..defaults() };
    let check = |name, rules: ProduceRules, count: usize| {
        let mut batch = admit(name, &rules).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(records(&batch).len(), count, "{name}");
        batch.place(Offset(1 << 40), LeaderEpoch(12));
        let (stored, sent) = (whole(&batch), vector(name));
        // All but the base offset and the leader epoch.
        assert_eq!((&stored[8..12], &stored[16..]), (&sent[8..12], &sent[16..]), "{name}");
        assert_eq!(
            (stored[..8].to_vec(), stored[12..16].to_vec()),
            ((1_u64 << 40).to_be_bytes().into(), vec![0, 0, 0, 12])
        );
        let again = Batch::take(&mut stored.clone()).expect("a sound vector").expect("a sound vector");
        assert_eq!((again.verify_crc(), &again), (Ok(()), &batch), "{name}");
        assert_eq!(again.end_offset(), Offset((1 << 40) + count as u64));
    };
    for (name, count) in [("V01", 1), ("V02", 1), ("V03", 1), ("V14", 1), ("V15", 1), ("V17", 4), ("V20", 1)] {
        check(name, defaults(), count);
    }
    for name in ["V10", "V11", "V12", "V13"] {
        check(name, defaults(), 3);
    }
    check("V16", no_limit, 1);
    check("V02", compacted, 1);
}

#[test]
fn null_and_empty_stay_different() {
    // P10, P11, P12.
    let read = |name| records(&admit(name, &defaults()).expect("a sound vector")).remove(0);
    let (v01, v02, v03, v20) = (read("V01"), read("V02"), read("V03"), read("V20"));
    let empty = || Some(Bytes::new());
    assert_eq!((v01.key, v01.value), (None, empty()));
    assert_eq!((v02.key, v02.value), (empty(), None));
    assert_eq!((v20.key, v20.value), (None, None));
    let header =
        |name: &'static str, value: Option<&'static str>| Header { name: name.into(), value: value.map(Bytes::from) };
    let expected = [header("h", Some("1")), header("h", None), header("h", Some("")), header("", Some("x"))];
    assert_eq!(v03.headers, expected);
}

#[test]
fn each_codec_holds_the_same_three_records() {
    for (name, codec) in [("V10", Codec::Snappy), ("V11", Codec::Snappy), ("V12", Codec::Zstd), ("V13", Codec::Zstd)] {
        let batch = admit(name, &defaults()).expect("a sound vector");
        assert_eq!(batch.codec(), Some(codec), "{name}");
        let read: Vec<_> =
            records(&batch).into_iter().map(|record| (record.offset.0, record.timestamp.0, record.value)).collect();
        let expected: Vec<_> =
            (0..3).map(|index| (index, T + index as i64, Some(Bytes::from(format!("v{index}"))))).collect();
        assert_eq!(read, expected, "{name}");
    }
}

#[test]
fn compression_type_decodes_and_encodes_anew() {
    // P14, P16: the broker has to read what it re-encodes.
    let uncompressed = vector("V04").slice(61..);
    for name in ["V10", "V11", "V12", "V13"] {
        for codec in Codec::ALL {
            let admitted = admit(name, &ProduceRules { codec: Some(codec), ..defaults() }).expect("a sound vector");
            assert_eq!((admitted.codec(), admitted.verify_crc()), (Some(codec), Ok(())), "{name} as {codec}");
            assert_eq!(codec.decompress(admitted.records_bytes(), 1000), Ok(uncompressed.clone()), "{name} as {codec}");
        }
    }
}

#[test]
fn times_are_what_the_producer_or_the_broker_says() {
    let times = |batch: &Batch| records(batch).iter().map(|record| record.timestamp.0).collect::<Vec<i64>>();
    let v17 = admit("V17", &defaults()).expect("a sound vector");
    assert_eq!(times(&v17), [T + 5000, T, T + 9000, T + 1000]);
    assert_eq!(v17.max_timestamp(), TimestampMs(T + 9000));
    // P18: one time for all.
    let rules = ProduceRules { timestamp_type: TimestampType::LogAppendTime, ..defaults() };
    let mut stamped = admit("V17", &rules).expect("a sound vector");
    stamped.stamp_append_time(TimestampMs(T + 60_000));
    assert_eq!(times(&stamped), [T + 60_000; 4]);
    assert_eq!((stamped.verify_crc(), stamped.max_timestamp()), (Ok(()), TimestampMs(T + 60_000)));
    let mut future = admit("V16", &rules).expect("a sound vector");
    future.stamp_append_time(TimestampMs(T));
    assert_eq!(times(&future), [T]);
    for (name, time) in [("V14", -1), ("V15", T)] {
        let batch = admit(name, &defaults()).expect("a sound vector");
        assert_eq!((times(&batch), batch.max_timestamp()), (vec![time], TimestampMs(time)), "{name}");
    }
}
