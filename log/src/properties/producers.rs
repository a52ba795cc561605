//! Producer snapshots (rules P5, T4). What decodes encodes to the same bytes, and can go on.

use crate::batch::{ProducerStamp, ProducerWrite, WriteKind};
use crate::producers::{ProducerTable, Verdict};
use crate::testing::{Seed, decoding};
use crate::transactions::{EndMarker, Marker, TxnOutcome};
use crate::{CoordinatorEpoch, Offset, ProducerEpoch, ProducerId, TimestampMs};

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
        let write = ProducerWrite { stamp, kind: if epoch > 0 { WriteKind::Transactional } else { WriteKind::Plain } };
        let verdict = table.as_it_is().check(write, count);
        if let Ok(Verdict::Append) = verdict {
            table.append(write, count, Offset(1 << 62), TimestampMs(7));
            let again = table.as_it_is().check(write, count);
            assert!(matches!(again, Ok(Verdict::Duplicate { base: Offset(base), .. }) if base == 1 << 62), "{again:?}");
        }
    }
    end_all(&mut table);
    table.expire(TimestampMs(i64::MAX), 0);
    true
}

/// Every transaction can be ended, and is listed as open until then.
fn end_all(table: &mut ProducerTable) {
    assert!(table.open().is_sorted());
    let open: Vec<_> = table.summaries().filter(|producer| producer.transaction_start.is_some()).collect();
    assert_eq!(open.len(), table.open().count());
    for producer in open {
        let coordinator_epoch = producer.coordinator_epoch.unwrap_or(CoordinatorEpoch(3));
        let end = EndMarker { outcome: TxnOutcome::Abort, coordinator_epoch };
        let marker = Marker { producer: producer.id, epoch: producer.epoch, raised: false, end };
        assert!(table.as_it_is().check_marker(&marker).is_ok(), "{producer:?}");
        let ended = table.append(ProducerWrite::marker(&marker), 1, Offset(1 << 61), TimestampMs(7));
        assert_eq!(ended.map(|ended| ended.first), producer.transaction_start);
    }
    assert_eq!(table.first_open(), None);
}

/// An empty table, one with two producers of several batches, and one with transactions, open and ended.
#[must_use]
pub fn producers_seeds() -> Vec<Seed> {
    let mut table = ProducerTable::default();
    let empty = table.encode().to_vec();
    for (id, batches) in [(3, 2), (1 << 40, 7)] {
        for batch in 0..batches {
            let stamp = ProducerStamp { id: ProducerId(id), epoch: ProducerEpoch(1), base_sequence: batch * 10 };
            table.append(
                ProducerWrite::plain(stamp),
                10,
                Offset(id + 10 * batch as u64),
                TimestampMs(1_700_000_000_000 + i64::from(batch)),
            );
        }
    }
    let two = table.encode().to_vec();
    for id in [5, 6] {
        let stamp = ProducerStamp { id: ProducerId(id), epoch: ProducerEpoch(2), base_sequence: 0 };
        table.append(ProducerWrite::transactional(stamp), 3, Offset(100 * id), TimestampMs(1_700_000_000_000));
    }
    let end = EndMarker { outcome: TxnOutcome::Commit, coordinator_epoch: CoordinatorEpoch(4) };
    let marker = Marker { producer: ProducerId(6), epoch: ProducerEpoch(3), raised: true, end };
    table.append(ProducerWrite::marker(&marker), 1, Offset(700), TimestampMs(1_700_000_000_001));
    let open = table.encode().to_vec();
    vec![("empty".to_owned(), empty), ("two".to_owned(), two), ("transactions".to_owned(), open)]
}
