//! Producer snapshots (rules P5, T4). What decodes encodes to the same bytes, and can go on.

use crate::batch::ProducerStamp;
use crate::producers::{ProducerTable, Verdict};
use crate::testing::{Seed, decoding};
use crate::{Offset, ProducerEpoch, ProducerId, TimestampMs};

/// Reads the input, without its last four bytes, behind a sound CRC.
pub fn producers(input: &[u8]) -> bool {
    let _ = decoding(input, || ProducerTable::decode(input));
    let Some(body) = input.len().checked_sub(4).map(|len| &input[..len]) else { return false };
    let sealed = [body, &crc32c::crc32c(body).to_be_bytes()].concat();
    let Ok(mut table) = decoding(&sealed, || ProducerTable::decode(&sealed)) else { return false };
    assert_eq!(table.encode(), sealed, "what decodes encodes to the same");
    // The first producer, behind magic, version and count.
    let first = sealed.get(10..18).and_then(|id| id.try_into().ok()).map(u64::from_be_bytes);
    let Some(id) = first.filter(|_| !table.is_empty()) else { return true };
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
    true
}

/// An empty table, and one with two producers of several batches.
#[must_use]
pub fn producers_seeds() -> Vec<Seed> {
    let mut table = ProducerTable::default();
    let empty = table.encode().to_vec();
    for (id, batches) in [(3, 2), (1 << 40, 7)] {
        for batch in 0..batches {
            let stamp = ProducerStamp { id: ProducerId(id), epoch: ProducerEpoch(1), base_sequence: batch * 10 };
            table.append(stamp, 10, Offset(id + 10 * batch as u64), TimestampMs(1_700_000_000_000 + i64::from(batch)));
        }
    }
    vec![("empty".to_owned(), empty), ("two".to_owned(), table.encode().to_vec())]
}
