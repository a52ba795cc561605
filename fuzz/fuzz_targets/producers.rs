//! Producer snapshots: any bytes behind a sound CRC. What decodes encodes to the same bytes, and can go on.

#![no_main]

use libfuzzer_sys::fuzz_target;
use millpond_log::batch::ProducerStamp;
use millpond_log::producers::{ProducerTable, Verdict};
use millpond_log::{Offset, ProducerEpoch, ProducerId, TimestampMs};

fuzz_target!(|input: &[u8]| {
    let _ = ProducerTable::decode(input);
    let sealed = [input, &crc32c::crc32c(input).to_be_bytes()].concat();
    let Ok(mut table) = ProducerTable::decode(&sealed) else { return };
    assert_eq!(table.encode(), sealed, "what decodes encodes to the same");
    // The first producer, behind magic, version and count.
    let Some(id) = input.get(10..18).and_then(|id| id.try_into().ok()).map(u64::from_be_bytes) else { return };
    for (epoch, base_sequence, count) in [(0, 0, 1), (1, 0, 5), (1, 5, 3), (u16::MAX, i32::MAX, 1 << 24)] {
        let stamp = ProducerStamp { id: ProducerId(id), epoch: ProducerEpoch(epoch), base_sequence };
        let verdict = table.check(stamp, count);
        if let Ok(Verdict::Append) = verdict {
            table.append(stamp, count, Offset(1 << 62), TimestampMs(7));
            let again = table.check(stamp, count);
            assert!(matches!(again, Ok(Verdict::Duplicate { base: Offset(base), .. }) if base == 1 << 62), "{again:?}");
        }
    }
    table.expire(TimestampMs(i64::MAX), 0);
});
