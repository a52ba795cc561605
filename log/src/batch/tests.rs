//! What a batch promises: the vectors as they are to be answered, round trips, and no wrong answer on any bytes.

use super::*;
use crate::limits::BATCH_BYTES_DEFAULT;
use proptest::prelude::*;

/// Batches in hex, made by a program of our own outside this repository's code: name, size, bytes.
const VECTORS: &str = include_str!("../../tests/vectors/batches.txt");
const T: i64 = 1_700_000_000_000;

fn vector(name: &str) -> Bytes {
    let line = VECTORS.lines().find(|line| line.starts_with(name)).expect("the vector exists");
    let hex = line.split(' ').next_back().expect("a line ends in hex");
    (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[at * 2..at * 2 + 2], 16).expect("hex")).collect()
}

fn rules() -> ProduceRules {
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

fn parse(mut bytes: Bytes) -> Result<Batch, BatchError> {
    Batch::take(&mut bytes).map(|batch| batch.expect("there are bytes"))
}

fn admitted(name: &str, rules: &ProduceRules) -> Result<Batch, ErrorCode> {
    parse(vector(name)).and_then(|batch| batch.admit(rules)).map_err(|error| error.code())
}

fn bytes_of(batch: &Batch) -> Bytes {
    let mut out = bytes::BytesMut::new();
    batch.put(&mut out);
    out.freeze()
}

fn records_of(batch: &Batch) -> Vec<Record> {
    batch.records().expect("inflates").map(|record| record.expect("parses")).collect()
}

#[test]
fn the_vectors_are_answered_as_kafka_answers_them() {
    for (name, expected) in [
        ("V01", Ok(1)),
        ("V02", Ok(1)),
        ("V03", Ok(1)),
        ("V04", Err(ErrorCode::InvalidRecord)),
        ("V05", Err(ErrorCode::InvalidRecord)),
        ("V06", Err(ErrorCode::InvalidRecord)),
        ("V07", Err(ErrorCode::CorruptMessage)),
        ("V08", Err(ErrorCode::InvalidRecord)),
        ("V09", Err(ErrorCode::InvalidRecord)),
        ("V10", Ok(3)),
        ("V11", Ok(3)),
        ("V12", Ok(3)),
        ("V13", Ok(3)),
        ("V14", Ok(1)),
        ("V15", Ok(1)),
        ("V16", Err(ErrorCode::InvalidTimestamp)),
        ("V17", Ok(4)),
        ("V18", Err(ErrorCode::UnsupportedForMessageFormat)),
        ("V19", Err(ErrorCode::InvalidRecord)),
        ("V20", Ok(1)),
    ] {
        let outcome = admitted(name, &rules());
        if let Ok(batch) = &outcome {
            assert_eq!(bytes_of(batch), vector(name), "{name} is stored as it came");
        }
        assert_eq!(outcome.map(|batch| records_of(&batch).len()), expected, "{name}");
    }
}

#[test]
fn topic_settings_decide_on_future_times_and_keyless_records() {
    let any_time = ProduceRules { timestamp_after_max_ms: i64::MAX, ..rules() };
    assert!(admitted("V16", &any_time).is_ok());
    let compacted = ProduceRules { compacted: true, ..rules() };
    assert_eq!(admitted("V20", &compacted), Err(ErrorCode::InvalidRecord));
    assert!(admitted("V02", &compacted).is_ok());
}

#[test]
fn null_and_empty_stay_different_and_headers_keep_order_and_duplicates() {
    let only = |name| records_of(&parse(vector(name)).expect("parses")).remove(0);
    assert_eq!((only("V01").key, only("V01").value), (None, Some(Bytes::new())));
    assert_eq!((only("V02").key, only("V02").value), (Some(Bytes::new()), None));
    let headers: Vec<(Bytes, Option<Bytes>)> =
        only("V03").headers.into_iter().map(|header| (header.name, header.value)).collect();
    let expected: [(&[u8], Option<&[u8]>); 4] =
        [(b"h", Some(b"1")), (b"h", None), (b"h", Some(b"")), (b"", Some(b"x"))];
    assert_eq!(headers, expected.map(|(name, value)| (name.into(), value.map(Bytes::from_static))));
}

#[test]
fn the_size_limit_is_about_the_batch_as_received() {
    let build = |codec| {
        let mut builder = BatchBuilder::new(codec);
        builder.push(NewRecord { timestamp: TimestampMs(T), key: None, value: Some(&[b'y'; 100_000]), headers: &[] });
        builder.build()
    };
    let rules = ProduceRules { batch_bytes_max: 100_000, ..rules() };
    assert!(build(Codec::Gzip).admit(&rules).is_ok(), "case P4: compressed size counts");
    assert_eq!(build(Codec::None).admit(&rules).map_err(|error| error.code()), Err(ErrorCode::MessageTooLarge));
}

#[test]
fn append_time_replaces_every_record_time_and_the_crc_follows() {
    let mut batch = parse(vector("V17")).expect("parses");
    batch.stamp_append_time(TimestampMs(T + 77));
    assert_eq!(batch.verify_crc(), Ok(()));
    assert_eq!(batch.timestamp_type(), TimestampType::LogAppendTime);
    assert!(records_of(&batch).iter().all(|record| record.timestamp == TimestampMs(T + 77)), "case P18");
}

#[test]
fn create_times_are_base_plus_delta_in_any_order() {
    let batch = parse(vector("V17")).expect("parses");
    let times: Vec<i64> = records_of(&batch).iter().map(|record| record.timestamp.0 - T).collect();
    assert_eq!(times, [5000, 0, 9000, 1000]);
}

#[test]
fn an_unset_largest_timestamp_reads_as_the_first_records() {
    assert_eq!(admitted("V15", &rules()).map(|batch| batch.max_timestamp()), Ok(TimestampMs(T)));
    assert_eq!(admitted("V14", &rules()).map(|batch| batch.max_timestamp()), Ok(TimestampMs::NONE));
}

#[test]
fn placing_changes_offset_and_epoch_and_keeps_the_crc() {
    let mut batch = parse(vector("V17")).expect("parses");
    batch.place(Offset(41), LeaderEpoch(7));
    assert_eq!(
        (batch.base_offset(), batch.end_offset(), batch.leader_epoch()),
        (Offset(41), Offset(45), LeaderEpoch(7))
    );
    assert_eq!(batch.verify_crc(), Ok(()));
    assert_eq!(records_of(&batch)[3].offset, Offset(44));
}

#[test]
fn a_decompression_bomb_is_refused() {
    let bomb = vec![0_u8; 64 << 20];
    for codec in [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
        let packed = codec.compress(&bomb);
        let outcome = codec.decompress(&packed, 1 << 20);
        assert_eq!(outcome, Err(BatchError::InflatedTooLarge { max: 1 << 20 }), "{}", codec.name());
        assert_eq!(codec.decompress(&packed, bomb.len()).as_deref(), Ok(&bomb[..]), "{}", codec.name());
    }
}

#[test]
fn a_snappy_length_that_no_block_can_reach_allocates_nothing() {
    let claim = Bytes::from_static(&[0xff, 0xff, 0xff, 0x7f, 0, 0]);
    assert!(matches!(Codec::Snappy.decompress(&claim, 256 << 20), Err(BatchError::Corrupt(_))));
}

fn any_codec() -> impl Strategy<Value = Codec> {
    prop::sample::select(Codec::ALL.to_vec())
}

prop_compose! {
    fn any_record()(
        timestamp in 0..T,
        key in prop::option::of(prop::collection::vec(any::<u8>(), 0..20)),
        value in prop::option::of(prop::collection::vec(any::<u8>(), 0..200)),
        headers in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..5), prop::option::of(prop::collection::vec(any::<u8>(), 0..5))), 0..4),
    ) -> Record {
        let headers = headers.into_iter().map(|(name, value)| Header { name: name.into(), value: value.map(Bytes::from) }).collect();
        Record { offset: Offset(0), timestamp: TimestampMs(timestamp), key: key.map(Bytes::from), value: value.map(Bytes::from), headers }
    }
}

fn build(records: &[Record], codec: Codec) -> Batch {
    let mut builder = BatchBuilder::new(codec);
    for record in records {
        builder.push(NewRecord {
            timestamp: record.timestamp,
            key: record.key.as_deref(),
            value: record.value.as_deref(),
            headers: &record.headers,
        });
    }
    builder.build()
}

proptest! {
    #[test]
    fn records_read_back_as_they_were_pushed(mut records in prop::collection::vec(any_record(), 1..20), codec in any_codec()) {
        for (at, record) in records.iter_mut().enumerate() {
            record.offset = Offset(at as u64);
        }
        let batch = build(&records, codec).admit(&rules()).expect("what we build is sound");
        prop_assert_eq!(records_of(&batch), &records[..]);
        prop_assert_eq!(parse(bytes_of(&batch)), Ok(batch));
    }

    #[test]
    fn another_codec_keeps_the_records(records in prop::collection::vec(any_record(), 1..20), from in any_codec(), to in any_codec()) {
        let batch = build(&records, from);
        let recoded = batch.clone().admit(&ProduceRules { codec: Some(to), ..rules() }).expect("sound");
        prop_assert_eq!(recoded.codec(), Some(to));
        prop_assert_eq!(records_of(&recoded), records_of(&batch));
    }

    /// A flip in what the CRC covers is seen; one before it changes the place, the length or the magic, never a record.
    #[test]
    fn a_flipped_bit_never_changes_a_record(records in prop::collection::vec(any_record(), 1..5), codec in any_codec(), bit: prop::sample::Index) {
        let batch = build(&records, codec);
        let mut bytes = bytes_of(&batch).to_vec();
        let bit = bit.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok(admitted) = parse(bytes.into()).and_then(|batch| batch.admit(&rules())) {
            prop_assert!(bit / 8 < field::MAGIC);
            prop_assert_eq!(admitted.records_bytes(), batch.records_bytes());
        }
    }

    #[test]
    fn a_cut_batch_is_refused(records in prop::collection::vec(any_record(), 1..5), codec in any_codec(), at: prop::sample::Index) {
        let bytes = bytes_of(&build(&records, codec));
        let cut = bytes.slice(..at.index(bytes.len() - 1) + 1);
        if cut.len() < bytes.len() {
            prop_assert!(parse(cut).is_err());
        }
    }

    #[test]
    fn any_bytes_are_refused_without_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..300), seal: bool) {
        if bytes.len() > 61 {
            let counted = (bytes.len() - 12) as u32;
            bytes[8..12].copy_from_slice(&counted.to_be_bytes());
            bytes[16] = 2;
        }
        let Ok(Some(mut batch)) = Batch::take(&mut bytes.into()) else { return Ok(()) };
        if seal {
            batch.seal();
        }
        if let Ok(records) = batch.records() {
            records.for_each(drop);
        }
        let _ = batch.admit(&rules());
    }

    #[test]
    fn any_bytes_inflate_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), codec in any_codec()) {
        let _ = codec.decompress(&bytes.into(), 1 << 16);
    }
}
