//! Sequence rules by table and against a plain model; snapshots by every damage.

use super::*;
use crate::limits::PRODUCER_EXPIRY_MS;
use crate::transactions::TxnOutcome;
use bytes::{BufMut, Bytes};
use proptest::prelude::*;

const LAST: i32 = i32::MAX;

fn stamp(id: u64, epoch: u16, base_sequence: i32) -> ProducerStamp {
    ProducerStamp { id: ProducerId(id), epoch: ProducerEpoch(epoch), base_sequence }
}

/// Records outside of transactions; control records that end nothing where there is no sequence.
fn write(id: u64, epoch: u16, base_sequence: i32) -> ProducerWrite {
    let kind = if base_sequence < 0 { WriteKind::Control } else { WriteKind::Plain };
    ProducerWrite { stamp: stamp(id, epoch, base_sequence), kind }
}

fn part_of_transaction(id: u64, epoch: u16, base_sequence: i32) -> ProducerWrite {
    ProducerWrite::transactional(stamp(id, epoch, base_sequence))
}

fn marker(id: u64, epoch: u16, raised: bool, outcome: TxnOutcome, coordinator_epoch: u32) -> Marker {
    let end = EndMarker { outcome, coordinator_epoch: CoordinatorEpoch(coordinator_epoch) };
    Marker { producer: ProducerId(id), epoch: ProducerEpoch(epoch), raised, end }
}

/// A log of batches (producer, epoch, sequence, count), one millisecond apart, and the state at its end.
#[derive(Default)]
struct Log {
    table: ProducerTable,
    end: u64,
    now: i64,
}

impl Log {
    fn of(batches: &[(u64, u16, i32, u32)]) -> Log {
        let mut log = Log::default();
        for &(id, epoch, sequence, count) in batches {
            log.append(id, epoch, sequence, count);
        }
        log
    }

    fn append(&mut self, id: u64, epoch: u16, sequence: i32, count: u32) {
        self.write(write(id, epoch, sequence), count);
    }

    /// Returns the transaction that it ended: producer, first offset, marker, outcome.
    fn write(&mut self, write: ProducerWrite, count: u32) -> Option<(u64, u64, u64, TxnOutcome)> {
        let ended = self.table.append(write, count, Offset(self.end), TimestampMs(self.now));
        self.end += u64::from(count);
        self.now += 1;
        ended.map(|ended| (ended.producer.0, ended.first.0, ended.marker.0, ended.outcome))
    }

    fn check(&self, id: u64, epoch: u16, sequence: i32, count: u32, expected: Result<Verdict, ProducerError>) {
        let verdict = self.table.as_it_is().check(write(id, epoch, sequence), count);
        assert_eq!(verdict, expected, "producer {id}, epoch {epoch}, {count} records from sequence {sequence}");
    }
}

fn duplicate(base: u64, end: u64, append_time: i64) -> Result<Verdict, ProducerError> {
    Ok(Verdict::Duplicate { base: Offset(base), end: Offset(end), append_time: TimestampMs(append_time) })
}

fn out_of_order(expected: i32, got: i32) -> Result<Verdict, ProducerError> {
    Err(ProducerError::OutOfOrder { id: ProducerId(7), expected, got })
}

const APPEND: Result<Verdict, ProducerError> = Ok(Verdict::Append);
const FENCED: Result<Verdict, ProducerError> = Err(ProducerError::Fenced { id: ProducerId(7) });
const OLD: Result<Verdict, ProducerError> = Err(ProducerError::DuplicateUnknown { id: ProducerId(7) });

#[test]
fn epoch_bump_restarts_one_partition_only() {
    // P6's try, and rule P6: pid 7 wrote sequence 0 to 9 in epoch 0 to both partitions.
    let (p0, mut p1) = (Log::of(&[(7, 0, 0, 10)]), Log::of(&[(7, 0, 0, 10)]));
    p1.check(7, 1, 10, 1, out_of_order(0, 10));
    p1.check(7, 1, 0, 1, APPEND);
    p1.append(7, 1, 0, 1);
    p1.check(7, 0, 10, 1, FENCED);
    p1.check(7, 0, 0, 10, FENCED);
    p0.check(7, 0, 10, 1, APPEND);
}

#[test]
fn retries_of_the_last_five_are_answered_with_the_original() {
    // T13, rule P3: batches of 1, 2, 3, … records at sequences 0, 1, 3, 6, …
    let log = Log::of(&[(7, 0, 0, 1), (7, 0, 1, 2), (7, 0, 3, 3), (7, 0, 6, 4), (7, 0, 10, 5), (7, 0, 15, 6)]);
    log.check(7, 0, 1, 2, duplicate(1, 3, 1));
    log.check(7, 0, 3, 3, duplicate(3, 6, 2));
    log.check(7, 0, 15, 6, duplicate(15, 21, 5));
    log.check(7, 0, 21, 1, APPEND);
    // The sixth last is known to be in the log, but no longer where.
    log.check(7, 0, 0, 1, OLD);
    // A true gap, and batches that were cut anew: neither was appended as it stands.
    log.check(7, 0, 22, 1, out_of_order(21, 22));
    log.check(7, 0, 1, 1, out_of_order(21, 1));
    log.check(7, 0, 0, 3, out_of_order(21, 0));
    log.check(7, 0, 15, 7, out_of_order(21, 15));
    log.check(7, 0, LAST, 1, out_of_order(21, LAST));
}

#[test]
fn old_duplicate_is_claimed_only_when_proven() {
    // Producers take the answer for success. This one had expired and went on at 100: what was before is not known.
    let mut log = Log::of(&[(7, 0, 100, 10)]);
    log.check(7, 0, 90, 10, out_of_order(110, 90));
    for sequence in [110, 120, 130, 140, 150] {
        log.append(7, 0, sequence, 10);
    }
    log.check(7, 0, 100, 10, OLD);
    log.check(7, 0, 99, 10, out_of_order(160, 99));
    log.check(7, 0, 99, 1, out_of_order(160, 99));
    // A new epoch: what the old one wrote proves nothing.
    log.append(7, 1, 0, 10);
    log.check(7, 1, LAST - 9, 10, out_of_order(10, LAST - 9));
}

#[test]
fn sequences_wrap_to_zero() {
    let mut log = Log::of(&[(7, 0, LAST - 4, 5)]);
    log.check(7, 0, 0, 1, APPEND);
    log.check(7, 0, LAST - 4, 5, duplicate(0, 5, 0));
    let mut inside = Log::of(&[(7, 0, LAST - 1, 5)]);
    inside.check(7, 0, 3, 1, APPEND);
    inside.check(7, 0, 0, 1, out_of_order(3, 0));
    for sequence in [3, 4, 5, 6, 7] {
        inside.append(7, 0, sequence, 1);
    }
    inside.check(7, 0, LAST - 1, 5, OLD);
    log.append(7, 0, 0, 10);
    log.check(7, 0, 10, 1, APPEND);
}

#[test]
fn unknown_producers_begin_anywhere_until_the_partition_is_full() {
    let mut log = Log::default();
    log.check(7, 3, 41, 1, APPEND);
    for id in 0..PARTITION_PRODUCERS_MAX as u64 {
        log.append(id, 0, 0, 1);
    }
    assert_eq!(log.table.len(), PARTITION_PRODUCERS_MAX);
    // Rule T4: known ones go on, none is evicted early.
    log.check(7, 0, 1, 1, APPEND);
    let full = ProducerError::TooMany { max: PARTITION_PRODUCERS_MAX };
    log.check(u64::MAX, 0, 0, 1, Err(full));
    assert!(full.code().retriable());
    // The log is followed whatever it holds.
    log.append(u64::MAX, 0, 0, 1);
    log.check(u64::MAX, 0, 1, 1, APPEND);
    // Time makes room, also for what is only judged.
    let other = |now| {
        log.table.at(TimestampMs(PRODUCER_EXPIRY_MS + now), PRODUCER_EXPIRY_MS).check(write(u64::MAX - 1, 0, 0), 1)
    };
    assert_eq!([other(1), other(2), other(i64::MAX - PRODUCER_EXPIRY_MS)], [Err(full), APPEND, APPEND]);
    log.table.expire(TimestampMs(PRODUCER_EXPIRY_MS + 3), PRODUCER_EXPIRY_MS);
    assert_eq!(log.table.len(), PARTITION_PRODUCERS_MAX + 1 - 3);
    log.table.expire(TimestampMs(i64::MAX), PRODUCER_EXPIRY_MS);
    assert!(log.table.is_empty());
    log.check(u64::MAX, 0, 0, 1, APPEND);
}

#[test]
fn expiry_counts_from_the_last_append() {
    let mut log = Log::of(&[(7, 0, 0, 1), (8, 0, 0, 1), (7, 0, 1, 1)]);
    // Rule P2: appends at 0, 1 and 2, by the log's own clock.
    log.table.expire(TimestampMs(11), 10);
    assert_eq!(log.table.len(), 2);
    log.table.expire(TimestampMs(12), 10);
    log.check(7, 0, 1, 1, duplicate(2, 3, 2));
    assert_eq!(log.table.len(), 1);
    log.table.expire(TimestampMs(13), 10);
    assert_eq!(log.table, ProducerTable::default());
}

#[test]
fn open_transaction_keeps_its_producer() {
    let mut log = Log::of(&[(8, 0, 0, 1)]);
    log.write(part_of_transaction(7, 0, 0), 1);
    log.table.expire(TimestampMs(i64::MAX), 0);
    assert_eq!(log.table.len(), 1);
    log.write(part_of_transaction(7, 0, 1), 1);
    log.table.expire(TimestampMs(i64::MAX), 0);
    assert_eq!(log.table.as_it_is().check(part_of_transaction(7, 0, 2), 1), APPEND);
    assert_eq!(log.table.as_it_is().check(part_of_transaction(7, 0, 5), 1), out_of_order(2, 5));
    // Once it has ended, its producer counts from the marker on.
    let end = marker(7, 1, true, TxnOutcome::Commit, 3);
    log.write(ProducerWrite::marker(&end), 1);
    log.table.expire(TimestampMs(log.now + 9), 10);
    assert_eq!(log.table.len(), 1);
    log.table.expire(TimestampMs(log.now + 10), 10);
    assert!(log.table.is_empty());
}

#[test]
fn a_transaction_is_open_from_its_first_batch_to_its_marker() {
    let mut log = Log::of(&[(8, 0, 0, 4)]);
    assert_eq!(log.table.first_open(), None);
    assert_eq!(log.write(part_of_transaction(7, 0, 0), 2), None);
    log.write(part_of_transaction(9, 3, 0), 1);
    log.write(part_of_transaction(7, 0, 2), 1);
    let open: Vec<(u64, u64)> = log.table.open().map(|txn| (txn.first.0, txn.producer.0)).collect();
    assert_eq!(open, [(4, 7), (6, 9)]);
    assert!(log.table.as_it_is().in_transaction(ProducerId(7), ProducerEpoch(0)));
    assert!(
        !log.table.as_it_is().in_transaction(ProducerId(7), ProducerEpoch(1)),
        "another epoch has another transaction"
    );
    let ended = log.write(ProducerWrite::marker(&marker(7, 1, true, TxnOutcome::Abort, 3)), 1);
    assert_eq!(ended, Some((7, 4, 8, TxnOutcome::Abort)));
    assert_eq!(log.table.first_open(), Some(Offset(6)));
    let again = log.write(ProducerWrite::marker(&marker(7, 1, true, TxnOutcome::Abort, 4)), 1);
    assert_eq!(again, None, "a marker for nothing ends nothing");
    // Rule X1: the marker raised the epoch, so the next transaction begins at sequence 0.
    assert_eq!(log.table.as_it_is().check(part_of_transaction(7, 0, 3), 1), FENCED);
    assert_eq!(log.table.as_it_is().check(part_of_transaction(7, 1, 3), 1), out_of_order(0, 3));
    assert_eq!(log.table.as_it_is().check(part_of_transaction(7, 1, 0), 1), APPEND);
}

#[test]
fn without_a_raised_epoch_sequences_go_on_over_a_marker() {
    let mut log = Log::default();
    log.write(part_of_transaction(7, 0, 0), 3);
    log.write(ProducerWrite::marker(&marker(7, 0, false, TxnOutcome::Commit, 3)), 1);
    assert_eq!(log.table.as_it_is().check(part_of_transaction(7, 0, 3), 1), APPEND);
    assert_eq!(ProducerTable::decode(&log.table.encode()), Ok(log.table));
}

/// librdkafka 2 numbers a transaction's records like those of the one before that it gave up, though they may be in the log. Who waits for
/// the one is not to be told of the other (rule P3).
#[test]
fn what_an_ended_transaction_wrote_answers_no_batch_of_the_next() {
    let mut log = Log::default();
    for sequence in 0..7 {
        log.write(part_of_transaction(7, 0, sequence), 1);
    }
    let check = |log: &Log, sequence, count| log.table.as_it_is().check(part_of_transaction(7, 0, sequence), count);
    let ended = |got| Err(ProducerError::Ended { id: ProducerId(7), expected: 7, got });
    assert_eq!(check(&log, 6, 1), duplicate(6, 7, 6));
    assert_eq!(check(&log, 0, 1), Err(ProducerError::DuplicateUnknown { id: ProducerId(7) }));
    log.write(ProducerWrite::marker(&marker(7, 0, false, TxnOutcome::Abort, 3)), 1);
    // As many records as before, one that is remembered no more, fewer, more.
    for (sequence, count) in [(6, 1), (0, 1), (5, 1), (5, 9)] {
        assert_eq!(check(&log, sequence, count), ended(sequence));
    }
    assert_eq!(check(&log, 8, 1), out_of_order(7, 8));
    assert_eq!(check(&log, 7, 1), APPEND);
    // Among those of the next transaction, too.
    log.write(part_of_transaction(7, 0, 7), 2);
    assert_eq!(check(&log, 7, 2), duplicate(8, 10, 8));
    assert_eq!(check(&log, 6, 1), Err(ProducerError::Ended { id: ProducerId(7), expected: 9, got: 6 }));
    assert_eq!(check(&log, 7, 1), out_of_order(9, 7));
    log.write(ProducerWrite::marker(&marker(7, 0, false, TxnOutcome::Commit, 3)), 1);
    assert_eq!(check(&log, 7, 2), Err(ProducerError::Ended { id: ProducerId(7), expected: 9, got: 7 }));
    assert_eq!(log.table.summaries().next().and_then(|producer| producer.last_sequence), Some(8));
    assert_eq!(ProducerTable::decode(&log.table.encode()), Ok(log.table));
}

#[test]
fn what_is_no_part_of_the_open_transaction_is_refused() {
    let mut log = Log::default();
    log.write(part_of_transaction(7, 0, 0), 1);
    let other = Err(ProducerError::OtherTransaction { id: ProducerId(7) });
    log.check(7, 0, 1, 1, other);
    log.check(7, 1, 0, 1, other);
    // A plain batch is no retry of one of the transaction, whatever its number.
    log.check(7, 0, 0, 1, other);
    assert_eq!(log.table.as_it_is().check(part_of_transaction(7, 0, 0), 1), duplicate(0, 1, 0));
    // What it wrote before is answered as ever.
    let mut log = Log::of(&[(7, 0, 0, 1)]);
    log.write(part_of_transaction(7, 0, 0), 1);
    log.check(7, 0, 0, 1, duplicate(0, 1, 0));
    log.check(7, 0, 1, 1, other);
}

/// Rules P1, X5: whoever writes outside of transactions under the id of a transactional producer, with an epoch that no coordinator gave
/// out, neither fences that producer nor keeps its markers away.
#[test]
fn plain_writes_fence_no_transaction_and_no_marker() {
    let mut log = Log::of(&[(7, 32_767, 0, 1)]);
    assert_eq!(log.table.as_it_is().check(part_of_transaction(7, 3, 0), 1), APPEND);
    assert_eq!(
        log.table.as_it_is().check_marker(&marker(7, 4, true, TxnOutcome::Commit, 1)),
        Ok(MarkerVerdict::Append)
    );
    log.write(part_of_transaction(7, 3, 0), 2);
    assert!(log.table.as_it_is().in_transaction(ProducerId(7), ProducerEpoch(3)));
    let end = marker(7, 4, true, TxnOutcome::Commit, 1);
    assert_eq!(log.table.as_it_is().check_marker(&end), Ok(MarkerVerdict::Append));
    assert_eq!(log.write(ProducerWrite::marker(&end), 1), Some((7, 1, 3, TxnOutcome::Commit)));
    // Between two transactions, too.
    log.append(7, u16::MAX, 0, 1);
    log.check(7, u16::MAX, 0, 1, duplicate(4, 5, 3));
    assert_eq!(log.table.as_it_is().check_marker(&end), Ok(MarkerVerdict::Known));
    assert_eq!(log.table.as_it_is().check(part_of_transaction(7, 4, 0), 1), APPEND);
    // Nor do the coordinator's epochs fence the other.
    log.check(7, u16::MAX, 1, 1, APPEND);
    let epochs: Vec<u16> = log.table.summaries().map(|producer| producer.epoch.0).collect();
    assert_eq!(epochs, [u16::MAX, 4]);
    assert_eq!(ProducerTable::decode(&log.table.encode()), Ok(log.table));
}

/// Each transaction has its epoch (KIP-890), which its client is told once the one before is decided.
#[test]
fn a_transaction_that_comes_before_the_marker_of_the_one_before_waits_for_it() {
    let mut log = Log::default();
    log.write(part_of_transaction(7, 0, 0), 1);
    let next = log.table.as_it_is().check(part_of_transaction(7, 1, 0), 1);
    assert_eq!(next, Err(ProducerError::Ending { id: ProducerId(7) }));
    log.write(ProducerWrite::marker(&marker(7, 1, true, TxnOutcome::Commit, 3)), 1);
    assert_eq!(log.table.as_it_is().check(part_of_transaction(7, 1, 0), 1), APPEND);
}

/// Rule X5, by table: (epoch, raised, coordinator epoch) of a marker for a producer that wrote in epoch 4.
#[test]
fn markers_are_judged_by_epoch_and_coordinator() {
    let fenced = Err(ProducerError::Fenced { id: ProducerId(7) });
    let zombie = |got| {
        let (known, got) = (CoordinatorEpoch(10), CoordinatorEpoch(got));
        Err(ProducerError::CoordinatorFenced { id: ProducerId(7), known, got })
    };
    let check = |table: &ProducerTable, epoch, raised, coordinator, expected| {
        let marker = marker(7, epoch, raised, TxnOutcome::Commit, coordinator);
        assert_eq!(table.as_it_is().check_marker(&marker), expected, "{marker:?}");
    };
    let append = Ok(MarkerVerdict::Append);
    let mut log = Log::default();
    check(&log.table, 0, true, 1, append);
    log.write(ProducerWrite::marker(&marker(7, 4, true, TxnOutcome::Abort, 10)), 1);
    // Nothing is open: a retry changes nothing, unless a later coordinator sends it.
    check(&log.table, 4, true, 10, Ok(MarkerVerdict::Known));
    // Of a client that keeps its epoch it may be another transaction's, which this log lacks.
    check(&log.table, 4, false, 10, append);
    check(&log.table, 4, true, 11, append);
    check(&log.table, 5, true, 10, append);
    check(&log.table, 3, true, 10, fenced);
    check(&log.table, 5, true, 9, zombie(9));
    log.write(part_of_transaction(7, 4, 0), 1);
    // A transaction of epoch 4 is open: a raised epoch of 4 belongs to the one before.
    check(&log.table, 4, true, 10, fenced);
    check(&log.table, 4, true, 11, fenced);
    check(&log.table, 4, false, 10, append);
    check(&log.table, 5, true, 10, append);
    check(&log.table, 3, false, 10, fenced);
    check(&log.table, 5, true, 9, zombie(9));
}

#[test]
fn a_marker_is_never_refused_for_lack_of_room() {
    let mut log = Log::default();
    for id in 0..PARTITION_PRODUCERS_MAX as u64 {
        log.append(id, 0, 0, 1);
    }
    let marker = marker(u64::MAX, 0, true, TxnOutcome::Abort, 1);
    assert_eq!(log.table.as_it_is().check_marker(&marker), Ok(MarkerVerdict::Append));
}

#[test]
fn producers_are_told_as_they_are() {
    let mut log = Log::of(&[(3, 1, LAST, 1)]);
    log.write(part_of_transaction(7, 2, 0), 5);
    log.write(ProducerWrite::marker(&marker(9, 6, true, TxnOutcome::Abort, 8)), 1);
    let told: Vec<ProducerSummary> = log.table.summaries().collect();
    let summary = |id, epoch, last_sequence, at, coordinator, start: Option<u64>| ProducerSummary {
        id: ProducerId(id),
        epoch: ProducerEpoch(epoch),
        last_sequence,
        last_append: TimestampMs(at),
        coordinator_epoch: coordinator,
        transaction_start: start.map(Offset),
    };
    let expected = [
        summary(3, 1, Some(LAST), 0, None, None),
        summary(7, 2, Some(4), 1, None, Some(1)),
        summary(9, 6, None, 2, Some(CoordinatorEpoch(8)), None),
    ];
    assert_eq!(told, expected);
}

#[test]
fn control_batches_count_for_epoch_and_time() {
    let mut log = Log::of(&[(7, 0, 0, 3)]);
    log.append(7, 0, -1, 1);
    log.check(7, 0, 3, 1, APPEND);
    log.check(7, 0, 0, 3, duplicate(0, 3, 0));
    // The marker of a bumped epoch (rule X1) ends the old one.
    log.append(7, 1, -1, 1);
    log.check(7, 0, 3, 1, FENCED);
    log.check(7, 1, 3, 1, out_of_order(0, 3));
    log.check(7, 1, 0, 1, APPEND);
    log.table.expire(TimestampMs(12), 10);
    assert_eq!(log.table.len(), 1);
}

#[test]
fn errors_have_kafkas_codes() {
    let id = ProducerId(7);
    for (error, code) in [
        (ProducerError::Fenced { id }, 47),
        (ProducerError::OutOfOrder { id, expected: 0, got: 1 }, 45),
        (ProducerError::DuplicateUnknown { id }, 46),
        (ProducerError::Ended { id, expected: 1, got: 0 }, 59),
        (ProducerError::OtherTransaction { id }, 48),
        (ProducerError::Ending { id }, 19),
        (ProducerError::CoordinatorFenced { id, known: CoordinatorEpoch(2), got: CoordinatorEpoch(1) }, 52),
        (ProducerError::TooMany { max: 1 }, 19),
    ] {
        assert_eq!(error.code().kafka(), code, "{error}");
    }
}

/// Bytes with their CRC behind them.
fn seal(body: &[u8]) -> Bytes {
    let mut bytes = body.to_vec();
    bytes.put_u32(crc32c::crc32c(body));
    bytes.into()
}

#[test]
fn snapshot_bytes_are_the_documented_ones() {
    let bytes = Log::of(&[(7, 2, 5, 3)]).table.encode();
    let mut expected = b"MPps\0\x02\0\0\0\x01".to_vec();
    expected.put_u64(7);
    expected.put_u16(2);
    expected.put_i32(8);
    expected.put_u64(3);
    expected.put_i64(0);
    expected.put_i64(-1);
    expected.put_i64(-1);
    expected.put_u8(1);
    expected.put_i32(5);
    expected.put_u32(3);
    expected.put_u64(0);
    expected.put_i64(0);
    assert_eq!(bytes, seal(&expected));
    assert_eq!(ProducerTable::default().encode(), seal(b"MPps\0\x02\0\0\0\0"));
}

#[test]
fn snapshots_that_cannot_be_are_refused() {
    let bytes = Log::of(&[(7, 2, 5, 3), (7, 2, 8, 2), (9, 0, 0, 1)]).table.encode();
    let body = &bytes[..bytes.len() - 4];
    assert!(ProducerTable::decode(&bytes).is_ok());
    let check = |at: usize, new: &[u8], expected: &str| {
        let mut body = body.to_vec();
        body[at..at + new.len()].copy_from_slice(new);
        assert_eq!(ProducerTable::decode(&seal(&body)), Err(expected), "{new:x?} at {at}");
    };
    check(0, b"X", "no producer snapshot");
    check(4, &[0, 1], "producer snapshot of another version");
    check(6, &[0xff; 4], "producer snapshot is cut");
    check(6, &[0, 0, 0, 1], "producer snapshot has bytes left over");
    check(10, &9_u64.to_be_bytes(), "producer snapshot is out of order");
    check(20, &9_i32.to_be_bytes(), "producer snapshot that contradicts its batches");
    check(24, &4_u64.to_be_bytes(), "producer snapshot that contradicts its batches");
    check(40, &(-2_i64).to_be_bytes(), "producer snapshot with a negative offset");
    let transactions = |first: &[u8]| {
        // Of the second producer, behind one of two batches.
        let at = 10 + 47 + 2 * 24 + 30;
        let mut body = body.to_vec();
        body[40..48].copy_from_slice(&1_u64.to_be_bytes());
        body[at..at + 8].copy_from_slice(first);
        ProducerTable::decode(&seal(&body)).map(|table| table.open().count())
    };
    assert_eq!(transactions(&2_u64.to_be_bytes()), Ok(2));
    let twice = "producer snapshot with two transactions that begin at one offset";
    assert_eq!(transactions(&1_u64.to_be_bytes()), Err(twice));
    check(48, &(1_i64 << 32).to_be_bytes(), "producer snapshot with a bad coordinator epoch");
    check(56, &[6], "producer snapshot with more batches than are remembered");
    check(57, &[0xff; 4], "producer snapshot with a batch that cannot be");
    check(61, &[0; 4], "producer snapshot with a batch that cannot be");
    check(65, &[0xff; 8], "producer snapshot with a batch that cannot be");
    check(57, &6_i32.to_be_bytes(), "producer snapshot with batches out of order");
    check(65, &1_u64.to_be_bytes(), "producer snapshot with batches out of order");
    assert_eq!(ProducerTable::decode(b"abc"), Err("producer snapshot is cut"));
    assert_eq!(ProducerTable::decode(&[]), Err("producer snapshot is cut"));
}

/// Batches of few producers; most go on where they were, some jump.
fn batches() -> impl Strategy<Value = Vec<(u64, u16, i32, u32)>> {
    prop::collection::vec((0..4_u64, 0..3_u16, prop::option::weighted(0.1, any::<i32>()), 1..5_u32), 0..60).prop_map(
        |steps| {
            let mut next: BTreeMap<(u64, u16), i32> = BTreeMap::new();
            steps
                .into_iter()
                .map(|(id, epoch, jump, count)| {
                    let sequence = jump.unwrap_or_else(|| next.get(&(id, epoch)).copied().unwrap_or(0));
                    next.insert((id, epoch), advance(sequence.max(0), count));
                    (id, epoch, sequence.max(-1), count)
                })
                .collect()
        },
    )
}

/// One of all kinds of batches that a log may hold.
fn kept(id: u64, epoch: u16, sequence: i32, count: u32) -> ProducerWrite {
    match (sequence, count) {
        (..0, _) => ProducerWrite::marker(&marker(id, epoch, true, TxnOutcome::Abort, count)),
        (_, ..3) => part_of_transaction(id, epoch, sequence),
        (_, 3..) => write(id, epoch, sequence),
    }
}

proptest! {
    #[test]
    fn snapshots_round_trip_and_go_on_alike(before in batches(), after in batches()) {
        let mut log = Log::default();
        for (id, epoch, sequence, count) in before {
            log.write(kept(id, epoch, sequence, count), count);
        }
        let bytes = log.table.encode();
        let mut copy = ProducerTable::decode(&bytes).unwrap();
        prop_assert_eq!(&copy, &log.table);
        prop_assert_eq!(copy.encode(), bytes);
        // Rule P2: replica and replayed replica have equal state at each later offset, expiry included.
        for &(id, epoch, sequence, count) in &after {
            let (base, now) = (Offset(log.end), TimestampMs(log.now));
            let (plain, part) = (write(id, epoch, sequence.max(0)), part_of_transaction(id, epoch, sequence.max(0)));
            let end = marker(id, epoch, true, TxnOutcome::Abort, count);
            let judged = |at: ProducersAt<'_>| (at.check(plain, 1), at.check(part, 1), at.check_marker(&end));
            let before = judged(log.table.at(now, 20));
            log.table.expire(now, 20);
            copy.expire(now, 20);
            prop_assert_eq!(before, judged(copy.as_it_is()), "it is judged as it will be appended");
            let write = kept(id, epoch, sequence, count);
            log.write(write, count);
            copy.append(write, count, base, now);
            prop_assert_eq!(&copy, &log.table);
            prop_assert_eq!(copy.encode(), log.table.encode());
            let starts: BTreeSet<Offset> = copy.summaries().filter_map(|producer| producer.transaction_start).collect();
            prop_assert_eq!(copy.open().map(|txn| txn.first).collect::<BTreeSet<_>>(), starts);
        }
    }

    #[test]
    fn any_change_to_a_snapshot_is_refused(batches in batches(), at in any::<prop::sample::Index>(), flip in 1..=255_u8) {
        let good = Log::of(&batches).table.encode();
        let mut bytes = good.to_vec();
        bytes[at.index(good.len())] ^= flip;
        prop_assert!(ProducerTable::decode(&bytes).is_err());
        prop_assert!(ProducerTable::decode(&good[..at.index(good.len())]).is_err());
    }

    #[test]
    fn what_decodes_encodes_to_the_same(body in prop::collection::vec(any::<u8>(), 0..200), batches in batches(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut near = Log::of(&batches).table.encode().to_vec();
        near.truncate(near.len() - 4);
        let at = at.index(near.len());
        near[at] = byte;
        for body in [body, near] {
            let bytes = seal(&body);
            if let Ok(table) = ProducerTable::decode(&bytes) {
                prop_assert_eq!(table.encode(), bytes);
            }
        }
    }

    /// A client that retries as it likes: whatever order its batches arrive in, each is in the log once, in order.
    #[test]
    fn retries_never_repeat_or_reorder(sends in prop::collection::vec(0..12_usize, 1..120), start in prop::sample::select(vec![0, 5, LAST - 7])) {
        let mut sequence = start;
        let batches: Vec<(i32, u32)> = (1..=12).map(|count| {
            let base = sequence;
            sequence = advance(sequence, count);
            (base, count)
        }).collect();
        let mut log = Log::default();
        let mut appended: Vec<(i32, u64)> = Vec::new();
        // The first batch opens the state; an unknown producer may begin anywhere.
        for send in std::iter::once(0).chain(sends) {
            let (base_sequence, count) = batches[send];
            match log.table.as_it_is().check(write(7, 0, base_sequence), count) {
                Ok(Verdict::Append) => {
                    appended.push((base_sequence, log.end));
                    log.append(7, 0, base_sequence, count);
                }
                Ok(Verdict::Duplicate { base, .. }) => prop_assert!(appended.contains(&(base_sequence, base.0))),
                Err(ProducerError::DuplicateUnknown { .. }) => {
                    prop_assert!(appended.iter().any(|&(known, _)| known == base_sequence), "never claimed without proof");
                }
                Err(ProducerError::OutOfOrder { .. }) => {
                    prop_assert!(!appended.iter().any(|&(known, _)| known == base_sequence), "45 only for true gaps");
                }
                Err(other) => prop_assert!(false, "{other}"),
            }
        }
        let order: Vec<i32> = appended.iter().map(|&(sequence, _)| sequence).collect();
        let expected: Vec<i32> = batches.iter().take(order.len()).map(|&(sequence, _)| sequence).collect();
        prop_assert_eq!(order, expected);
    }
}
