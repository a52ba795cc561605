//! Properties of batches: what is built is read back, and no bytes panic, lie about their size, or pass when damaged.

use bytes::Bytes;
use millpond_log::batch::{
    BatchBuilder, BatchError, Header, NewRecord, ProduceRules, ProducerStamp, Record, TimestampType,
};
use millpond_log::codec::Codec;
use millpond_log::{Batch, LeaderEpoch, Offset, ProducerEpoch, ProducerId, TimestampMs};
use proptest::prelude::*;

/// Takes whatever is well formed.
const LENIENT: ProduceRules = ProduceRules {
    batch_bytes_max: u32::MAX,
    compacted: false,
    timestamp_type: TimestampType::LogAppendTime,
    timestamp_before_max_ms: i64::MAX,
    timestamp_after_max_ms: i64::MAX,
    now: TimestampMs(0),
    codec: None,
};

fn bytes(size: std::ops::Range<usize>) -> impl Strategy<Value = Bytes> {
    prop::collection::vec(any::<u8>(), size).prop_map(Bytes::from)
}

fn record() -> impl Strategy<Value = Record> {
    let header = (bytes(0..4), prop::option::of(bytes(0..70))).prop_map(|(name, value)| Header { name, value });
    let headers = prop::collection::vec(header, 0..4);
    let timestamp = prop_oneof![0..4_000_000_000_000_i64, any::<i64>()];
    (timestamp, prop::option::of(bytes(0..70)), prop::option::of(bytes(0..300)), headers).prop_map(
        |(timestamp, key, value, headers)| Record {
            offset: Offset(0),
            timestamp: TimestampMs(timestamp),
            key,
            value,
            headers,
        },
    )
}

fn codec() -> impl Strategy<Value = Codec> {
    prop::sample::select(Codec::ALL.to_vec())
}

fn producer() -> impl Strategy<Value = Option<ProducerStamp>> {
    let stamp = (0..i64::MAX as u64, 0..=0x7fff_u16, 0..=i32::MAX).prop_map(|(id, epoch, base_sequence)| {
        ProducerStamp { id: ProducerId(id), epoch: ProducerEpoch(epoch), base_sequence }
    });
    prop::option::of(stamp)
}

fn build(codec: Codec, producer: Option<ProducerStamp>, records: &[Record]) -> Batch {
    let mut builder = BatchBuilder::new(codec);
    if let Some(stamp) = producer {
        builder = builder.producer(stamp).transactional();
    }
    for record in records {
        let before = builder.size();
        let size = builder.push(NewRecord {
            timestamp: record.timestamp,
            key: record.key.as_deref(),
            value: record.value.as_deref(),
            headers: &record.headers,
        });
        assert!(size == builder.size() && size >= before + 7, "a record takes seven bytes at least");
    }
    builder.build()
}

fn batch() -> impl Strategy<Value = Batch> {
    (codec(), producer(), prop::collection::vec(record(), 1..12))
        .prop_map(|(codec, producer, records)| build(codec, producer, &records))
}

fn whole(batch: &Batch) -> Bytes {
    let mut bytes = Vec::new();
    batch.put(&mut bytes);
    bytes.into()
}

/// Everything that reads a batch, on bytes that may be anything.
fn read_all(mut bytes: Bytes) -> Result<Batch, BatchError> {
    let Some(batch) = Batch::take(&mut bytes)? else { return Err(BatchError::Malformed("nothing there")) };
    let _ = format!("{batch:?}");
    assert!(batch.end_offset() > batch.base_offset());
    let _ = batch.latest_timestamp();
    thins(&batch);
    if let Ok(records) = batch.records() {
        let read: Vec<_> = records.collect();
        assert!(read.iter().rev().skip(1).all(Result::is_ok), "ends after the first error");
        assert!(read.len() <= batch.record_count() as usize + 1);
    }
    batch.admit(&LENIENT)
}

/// What compaction takes out of a batch leaves a whole one, with the records that it was to keep; or it is no batch to be thinned.
fn thins(batch: &Batch) {
    let horizon = TimestampMs(7);
    let _ = batch.with_delete_horizon(horizon);
    for keep in [|_: u64| false, |offset: u64| offset.is_multiple_of(2), |_: u64| true] {
        let Ok(thinned) = batch.thinned(horizon, |record| keep(record.offset.0)) else { continue };
        let left = Batch::take(&mut whole(&thinned.batch)).expect("it is sound").expect("it is there");
        assert_eq!(left, thinned.batch);
        assert_eq!((left.base_offset(), left.end_offset()), (batch.base_offset(), batch.end_offset()));
        assert_eq!(left.record_count() + thinned.removed, batch.record_count());
        let read = |batch: &Batch| batch.records().and_then(Iterator::collect::<Result<Vec<Record>, BatchError>>);
        // A broken header of a record is found by whoever reads it, before and after.
        if let Ok(mut records) = read(batch) {
            records.retain(|record| keep(record.offset.0));
            assert_eq!(read(&left), Ok(records));
        }
    }
}

proptest! {
    // Every bit of every batch is tried, so few batches do.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_built_is_read_back(
        codec in codec(), producer in producer(), records in prop::collection::vec(record(), 1..40), base in 0..1_u64 << 62,
    ) {
        let built = build(codec, producer, &records);
        let mut bytes = whole(&built);
        prop_assert_eq!(bytes.len(), built.size());
        let taken = Batch::take(&mut bytes).unwrap().unwrap();
        prop_assert_eq!(&taken, &built);
        // A good batch is admitted as it is.
        let mut batch = taken.admit(&LENIENT).unwrap();
        prop_assert_eq!(&batch, &built);
        batch.place(Offset(base), LeaderEpoch(3));
        prop_assert_eq!(batch.producer(), producer);
        prop_assert_eq!(batch.is_transactional(), producer.is_some());
        let latest = records.iter().map(|record| record.timestamp).max();
        prop_assert_eq!(batch.latest_timestamp().ok(), latest);
        let expected: Vec<Record> =
            (base..).zip(records).map(|(offset, record)| Record { offset: Offset(offset), ..record }).collect();
        let read: Result<Vec<Record>, BatchError> = batch.records().unwrap().collect();
        prop_assert_eq!(read, Ok(expected));
    }

    #[test]
    fn no_bytes_panic(bytes in bytes(0..200)) {
        let _ = read_all(bytes);
    }

    /// Any bytes as records behind a sound header, so that they are reached.
    #[test]
    fn no_records_panic(codec in codec(), count in 1..5_u8, records in bytes(0..100)) {
        let template = build(Codec::None, None, &[Record {
            offset: Offset(0), timestamp: TimestampMs(0), key: None, value: None, headers: Vec::new(),
        }]);
        let mut bytes = template.head().to_vec();
        bytes.extend_from_slice(&records);
        let len = u32::try_from(bytes.len() - 12).unwrap();
        bytes[8..12].copy_from_slice(&len.to_be_bytes());
        bytes[22] = u8::try_from(codec.bits()).unwrap();
        bytes[26] = count - 1;
        bytes[60] = count;
        let crc = crc32c::crc32c(&bytes[21..]);
        bytes[17..21].copy_from_slice(&crc.to_be_bytes());
        let bytes = Bytes::from(bytes);
        let batch = Batch::take(&mut bytes.clone()).unwrap().unwrap();
        let read: Result<Vec<Record>, BatchError> = batch.records().and_then(Iterator::collect);
        let admitted = read_all(bytes);
        prop_assert!(!matches!(admitted, Err(BatchError::Corrupt(_))));
        if admitted.is_ok() {
            prop_assert_eq!(read.map(|records| records.len()), Ok(usize::from(count)));
        }
    }

    #[test]
    fn every_truncation_is_cut(batch in batch()) {
        let bytes = whole(&batch);
        for cut in 0..bytes.len() {
            let mut short = bytes.slice(..cut);
            let taken = Batch::take(&mut short);
            if cut == 0 {
                prop_assert_eq!(taken, Ok(None));
            } else {
                prop_assert!(matches!(taken, Err(BatchError::Cut { have, .. }) if have == cut), "{cut} bytes: {taken:?}");
            }
        }
    }

    /// A flipped bit is refused wherever it is, but in the two fields that the broker sets and the CRC leaves out: a base offset
    /// other than 0 is refused by its value, the leader epoch of a producer is overwritten.
    #[test]
    fn every_flipped_bit_is_refused(batch in batch()) {
        let bytes = whole(&batch);
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let taken = Batch::take(&mut flipped.into());
            if (12..16).contains(&(bit / 8)) {
                let mut admitted = taken.unwrap().unwrap().admit(&LENIENT).unwrap();
                let mut original = batch.clone();
                admitted.place(Offset(0), LeaderEpoch(0));
                original.place(Offset(0), LeaderEpoch(0));
                prop_assert_eq!(admitted, original);
            } else if let Ok(Some(taken)) = taken {
                prop_assert!(taken.admit(&LENIENT).is_err(), "bit {bit}");
            }
        }
    }

    /// Readers that did not check the CRC see errors at worst.
    #[test]
    fn no_damage_panics(batch in batch(), at in any::<prop::sample::Index>(), flip in 1..=255_u8) {
        let mut damaged = whole(&batch).to_vec();
        let at = at.index(damaged.len());
        damaged[at] ^= flip;
        let _ = read_all(damaged.into());
    }

    #[test]
    fn stamped_batches_stay_whole(batch in batch(), now in any::<i64>()) {
        let mut stamped = batch.clone();
        stamped.stamp_append_time(TimestampMs(now));
        prop_assert_eq!(stamped.verify_crc(), Ok(()));
        prop_assert_eq!(stamped.records_bytes(), batch.records_bytes());
        prop_assert_eq!(stamped.timestamp_type(), TimestampType::LogAppendTime);
    }
}
