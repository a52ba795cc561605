//! A produced batch, taken off the wire and read, with and without admission. What is admitted must read back in full.

use crate::batch::{BatchBuilder, BatchError, NewRecord, ProduceRules, ProducerStamp, Record, TimestampType};
use crate::codec::Codec;
use crate::limits::BATCH_INFLATED_BYTES_MAX;
use crate::testing::{Seed, memory};
use crate::{Batch, LeaderEpoch, Offset, ProducerEpoch, ProducerId, TimestampMs};
use bytes::Bytes;

/// Reads all batches of the input, as it is and behind a sound header. Whether any of them was admitted.
pub fn batch(input: &[u8]) -> bool {
    let plain = read_all(Bytes::copy_from_slice(input));
    let mended = read_all(mend(input));
    plain || mended
}

/// Golden vectors, and batches with a producer, headers and several records, in each codec.
#[must_use]
pub fn batch_seeds() -> Vec<Seed> {
    let built = Codec::ALL.into_iter().map(|codec| {
        let stamp = ProducerStamp { id: ProducerId(7), epoch: ProducerEpoch(1), base_sequence: 3 };
        let mut builder = BatchBuilder::new(codec).producer(stamp);
        for (time, value) in [(5, &b"value"[..]), (3, &[b'x'; 40]), (9, b"")] {
            let headers = [crate::batch::Header { name: Bytes::from_static(b"h"), value: None }];
            let record =
                NewRecord { timestamp: TimestampMs(time), key: Some(b"key"), value: Some(value), headers: &headers };
            builder.push(record);
        }
        let mut bytes = Vec::new();
        builder.build().put(&mut bytes);
        (format!("built-{codec}"), bytes)
    });
    golden().chain(built).collect()
}

/// The vectors of `log/tests/vectors`; those are refused whose defect is not one that `mend` mends.
fn golden() -> impl Iterator<Item = Seed> {
    let lines = include_str!("../../tests/vectors/golden.txt").lines();
    lines.filter(|line| line.starts_with('V')).filter_map(|line| {
        let mut words = line.split(' ');
        let (name, hex) = (words.next()?, words.nth(1)?);
        let digits: Option<Vec<u8>> = hex.chars().map(|digit| digit.to_digit(16).map(|digit| digit as u8)).collect();
        let bytes: Vec<u8> = digits?.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect();
        let name = if batch(&bytes) { name.to_owned() } else { format!("refused-{name}") };
        Some((name, bytes))
    })
}

/// The same bytes behind what would stop them early: length, magic and CRC are made to fit, and the base offset is 0.
fn mend(input: &[u8]) -> Bytes {
    let mut bytes = input.to_vec();
    let Some(len) = bytes.len().checked_sub(12).and_then(|len| u32::try_from(len).ok()) else { return bytes.into() };
    if bytes.len() >= 61 {
        bytes[..8].fill(0);
        bytes[8..12].copy_from_slice(&len.to_be_bytes());
        bytes[16] = 2;
        let crc = crc32c::crc32c(&bytes[21..]);
        bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    }
    bytes.into()
}

/// What sharing a buffer for the first time takes. The bytes themselves are never copied.
const SHARE_BYTES: usize = 64;

const fn rules(codec: Option<Codec>) -> ProduceRules {
    ProduceRules {
        batch_bytes_max: 1 << 20,
        compacted: false,
        timestamp_type: TimestampType::LogAppendTime,
        timestamp_before_max_ms: i64::MAX,
        timestamp_after_max_ms: i64::MAX,
        now: TimestampMs(0),
        codec,
    }
}

fn read_all(mut input: Bytes) -> bool {
    let mut any = false;
    while let Ok(Some(batch)) = memory::within(SHARE_BYTES, || Batch::take(&mut input)) {
        assert!(batch.end_offset() > batch.base_offset(), "a batch spans an offset");
        let read = batch.records().and_then(Iterator::collect::<Result<Vec<Record>, BatchError>>);
        let latest = batch.latest_timestamp();
        // Compressed records may inflate; those that are not are read where they lie.
        let inflated = if batch.codec() == Some(Codec::None) { 1 << 10 } else { 2 * BATCH_INFLATED_BYTES_MAX };
        let admitted = memory::within(inflated, || batch.clone().admit_timed(&rules(None)));
        let Ok(admitted) = admitted else { continue };
        let records = read.expect("an admitted batch reads in full");
        assert_eq!(admitted.batch, batch, "an admitted batch is stored as it came");
        assert_eq!(Ok(admitted.latest), latest);
        assert_eq!(records.len(), admitted.batch.record_count() as usize);
        stays_whole(admitted.batch, &records);
        if let Ok(plain) = batch.admit(&rules(Some(Codec::None))) {
            let again = plain.records().and_then(Iterator::collect);
            assert_eq!(again, Ok(records), "re-encoding changes no record");
        }
        any = true;
    }
    any
}

/// Placing and stamping an admitted batch keep its CRC and its records.
fn stays_whole(mut batch: Batch, records: &[Record]) {
    batch.place(Offset(1 << 40), LeaderEpoch(7));
    batch.stamp_append_time(TimestampMs(42));
    assert_eq!(batch.verify_crc(), Ok(()));
    let stamped = batch.records().expect("the records are the same");
    for (record, stamped) in records.iter().zip(stamped) {
        let stamped = stamped.expect("the records are the same");
        assert_eq!((stamped.offset, stamped.timestamp), (Offset((1 << 40) + record.offset.0), TimestampMs(42)));
        assert_eq!((&stamped.key, &stamped.value, &stamped.headers), (&record.key, &record.value, &record.headers));
    }
}
