//! A produced batch: taken off the wire, read with and without admission. What is admitted must read back in full.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use millpond_log::batch::{BatchError, ProduceRules, Record, TimestampType};
use millpond_log::codec::Codec;
use millpond_log::{Batch, LeaderEpoch, Offset, TimestampMs};

fuzz_target!(|input: &[u8]| {
    read_all(Bytes::copy_from_slice(input));
    read_all(mend(input));
});

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

fn read_all(mut input: Bytes) {
    while let Ok(Some(batch)) = Batch::take(&mut input) {
        assert!(batch.end_offset() > batch.base_offset(), "a batch spans an offset");
        let read = batch.records().and_then(Iterator::collect::<Result<Vec<Record>, BatchError>>);
        let latest = batch.latest_timestamp();
        let rules = |codec| ProduceRules {
            batch_bytes_max: 1 << 20,
            compacted: false,
            timestamp_type: TimestampType::LogAppendTime,
            timestamp_before_max_ms: i64::MAX,
            timestamp_after_max_ms: i64::MAX,
            now: TimestampMs(0),
            codec,
        };
        let Ok(admitted) = batch.clone().admit_timed(&rules(None)) else { continue };
        let records = read.expect("an admitted batch reads in full");
        assert_eq!(admitted.batch, batch, "an admitted batch is stored as it came");
        assert_eq!(Ok(admitted.latest), latest);
        assert_eq!(records.len(), admitted.batch.record_count() as usize);
        stays_whole(admitted.batch, &records);
        if let Ok(plain) = batch.admit(&rules(Some(Codec::None))) {
            let again = plain.records().and_then(Iterator::collect);
            assert_eq!(again, Ok(records), "re-encoding changes no record");
        }
    }
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
