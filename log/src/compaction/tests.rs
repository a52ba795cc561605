//! What one pass and several keep of small logs (rules C2, C3, R13); `model` has logs of any kind.

mod log;
mod model;

use super::*;
use crate::batch::Batch;
use crate::codec::Codec;
use crate::ids::{LeaderEpoch, Offset, ProducerId, TimestampMs};
use crate::segment::{AbortedTxn, Density, SegmentIndex, SegmentTail};
use crate::transactions::TxnOutcome;
use log::{Isolation, Log, Plan, Writer, consume, records, written};

fn shown(log: &Log) -> Vec<String> {
    log.left().into_iter().map(|(offset, what)| format!("{offset} {what}")).collect()
}

#[test]
fn the_newest_record_of_each_key_stays_at_its_offset() {
    let mut log = Log::default();
    log.put(Writer::Nobody, &[("a", Some("1")), ("b", Some("1")), ("a", Some("2"))]);
    log.cut();
    log.put(Writer::Nobody, &[("c", Some("1")), ("b", Some("2"))]);
    let compacted = log.compact_all(0, 0);
    assert_eq!(shown(&log), ["2 a=2", "3 c=1", "4 b=2"]);
    assert_eq!((compacted.changed, compacted.removed_records), (vec![true, false], 2));
    assert_eq!(compacted.end, Offset(5));
}

#[test]
fn a_pass_that_finds_nothing_to_do_changes_no_byte() {
    let mut log = Log::default();
    log.put(Writer::Nobody, &[("a", Some("1")), ("b", Some(""))]);
    log.cut();
    log.put(Writer::Txn(1), &[("c", Some("1"))]);
    log.end(1, TxnOutcome::Commit);
    log.cut();
    let before = log.batches().into_iter().cloned().collect::<Vec<Batch>>();
    let compacted = log.compact(Plan { groups: vec![2], ..Plan::default() });
    assert_eq!((compacted.changed, compacted.removed_records), (vec![false], 0));
    assert!(log.batches().into_iter().eq(&before));
    assert_eq!(log.segments[0].index.density(), Density::Sparse);
}

#[test]
fn records_above_what_was_noted_all_stay() {
    let mut log = Log::default();
    log.put(Writer::Nobody, &[("a", Some("1")), ("b", Some("1"))]);
    log.put(Writer::Nobody, &[("a", Some("2")), ("a", Some("3"))]);
    log.put(Writer::Nobody, &[("b", None), ("b", None)]);
    let compacted = log.compact(Plan { bound: Offset(4), ..Plan::default() });
    assert_eq!(shown(&log), ["1 b=1", "3 a=3", "4 b=null", "5 b=null"]);
    assert_eq!((compacted.end, compacted.latest_horizon), (Offset(4), None));
    assert!(log.batches().iter().all(|batch| batch.delete_horizon().is_none()));
}

#[test]
fn passes_take_up_where_those_before_ended() {
    let mut log = Log::default();
    log.put(Writer::Nobody, &[("a", Some("1"))]);
    log.put(Writer::Nobody, &[("b", Some("1")), ("c", Some("1"))]);
    log.put(Writer::Nobody, &[("d", Some("1")), ("a", Some("2"))]);
    let first = log.compact(Plan { keys_max: 3, ..Plan::default() });
    assert_eq!((first.end, first.removed_records), (Offset(3), 0), "a and d do not fit");
    let second = log.compact(Plan { keys_max: 3, from: first.end, ..Plan::default() });
    assert_eq!((second.end, second.removed_records), (Offset(5), 1));
    assert_eq!(shown(&log), ["1 b=1", "2 c=1", "3 d=1", "4 a=2"]);
}

#[test]
fn a_record_without_a_key_stays() {
    let mut log = Log::default();
    log.write(
        Writer::Nobody,
        Codec::Lz4,
        &[(1, None, Some(b"1".to_vec())), written(1, "", Some("2")), (1, None, None)],
    );
    log.put(Writer::Nobody, &[("", Some("3"))]);
    assert_eq!(log.compact_all(10, 0).latest_horizon, None, "a null without a key deletes nothing");
    log.compact_all(11, 0);
    assert_eq!(shown(&log), ["0 null=1", "2 null=null", "3 =3"]);
}

/// Case C2, with tiered segments.
#[test]
fn deleted_keys_go_for_good_and_the_end_of_the_log_stays_in_reach() {
    let mut log = Log::at(1);
    let keys: Vec<String> = (0..1000).map(|key| key.to_string()).collect();
    for value in [Some("v"), None] {
        for some in keys.chunks(50) {
            let pairs: Vec<(&str, Option<&str>)> = some.iter().map(|key| (key.as_str(), value)).collect();
            log.put(Writer::Nobody, &pairs);
            if some[0].ends_with("00") {
                log.cut();
            }
        }
    }
    let first = log.compact_all(10_000, 2_000);
    assert_eq!((first.removed_records, first.latest_horizon), (1000, Some(TimestampMs(12_000))));
    let early = log.compact_all(11_999, 2_000);
    assert_eq!((early.removed_records, early.latest_horizon), (0, Some(TimestampMs(12_000))), "slow readers see them");
    let late = log.compact_all(12_000, 2_000);
    assert_eq!((late.removed_records, late.latest_horizon), (1000, None));
    assert_eq!(shown(&log), Vec::<String>::new());
    let last = log.segments.last().expect("the segments are there");
    assert_eq!((last.index.end(), last.index.record_count()), (Offset(2000), 0));
    assert_eq!(last.index.max_timestamp(), TimestampMs::NONE, "no search by time finds what is not there");
    assert_eq!(last.index.max_append_time(), TimestampMs(1), "the clock of the log goes on from it");
    assert_eq!(consume(&log.segments, Offset(0), Offset(2000), 1, Isolation::Committed), []);
    // All in one: a header alone is left.
    log.compact(Plan { now: TimestampMs(12_000), groups: vec![usize::MAX], ..Plan::default() });
    assert_eq!(log.batches().len(), 1);
    assert_eq!(log.batches()[0].end_offset(), Offset(2000));
    let (fetched, _) = log::fetch(&log.segments, Offset(0), Offset(2000), 1);
    assert_eq!(fetched.last().map(Batch::end_offset), Some(Offset(2000)), "no record, with progress");
}

#[test]
fn a_reader_of_committed_records_gets_to_the_last_stable_offset() {
    let mut log = Log::default();
    log.put(Writer::Txn(1), &[("a", Some("1"))]);
    log.end(1, TxnOutcome::Abort);
    log.put(Writer::Txn(2), &[("a", Some("2"))]);
    log.cut();
    for now in 0..3 {
        log.compact_all(now, 0);
    }
    assert_eq!(log.stable_end(), Offset(2), "for as long as the transaction of 2 is open");
    assert_eq!(shown(&log), ["2 a=2"]);
    assert_eq!(consume(&log.segments, Offset(0), Offset(2), 1, Isolation::Committed), []);
    // Once it has ended, what follows is found without that header.
    log.end(2, TxnOutcome::Commit);
    log.compact(Plan { from: Offset(2), ..Plan::default() });
    assert_eq!(log.batches()[0].base_offset(), Offset(2));
}

/// Case C3.
#[test]
fn a_horizon_counts_from_the_first_pass_and_not_from_record_times() {
    let mut log = Log::at(1_000);
    let day = 86_400_000;
    log.write(Writer::Nobody, Codec::Gzip, &[written(1_000 + day + 10_000, "x", Some("1"))]);
    log.put(Writer::Nobody, &[("k", Some("1")), ("k", None)]);
    log.write(Writer::Nobody, Codec::Gzip, &[written(1, "old", None)]);
    assert_eq!(log.compact_all(5_000, 100).latest_horizon, Some(TimestampMs(5_100)));
    // A later setting does not move it.
    log.compact_all(5_099, 1);
    assert_eq!(shown(&log), ["0 x=1", "2 k=null", "3 old=null"]);
    log.compact_all(5_100, 1);
    assert_eq!(shown(&log), ["0 x=1"]);
}

#[test]
fn a_retention_beyond_all_time_is_kept_to() {
    let mut log = Log::default();
    log.put(Writer::Nobody, &[("k", None)]);
    log.put(Writer::Nobody, &[("l", Some("1"))]);
    assert_eq!(log.compact_all(5_000, i64::MAX).latest_horizon, Some(TimestampMs(i64::MAX)));
    log.compact_all(i64::MAX - 1, 0);
    assert_eq!(shown(&log), ["0 k=null", "1 l=1"]);
}

#[test]
fn a_tombstone_goes_before_its_horizon_only_to_a_newer_record() {
    let mut log = Log::default();
    log.put(Writer::Nobody, &[("k", None), ("l", None)]);
    log.compact_all(0, 100);
    log.put(Writer::Nobody, &[("k", Some("2"))]);
    let second = log.compact(Plan { from: Offset(2), now: TimestampMs(1), ..Plan::default() });
    assert_eq!(shown(&log), ["1 l=null", "2 k=2"]);
    assert_eq!(second.latest_horizon, Some(TimestampMs(100)), "as it was set");
}

/// Case C1.
#[test]
fn markers_stay_for_as_long_as_their_data_and_are_no_keys() {
    let mut log = Log::default();
    for nth in 0..50u64 {
        let key = (nth % 10).to_string();
        log.put(Writer::Txn(nth % 3), &[(&key, Some(&nth.to_string()))]);
        log.end(nth % 3, if nth % 2 == 0 { TxnOutcome::Abort } else { TxnOutcome::Commit });
        if nth % 7 == 0 {
            log.cut();
        }
    }
    log.cut();
    let view = |log: &Log| -> Vec<String> {
        let read = consume(&log.segments, Offset(0), log.end, 300, Isolation::Committed);
        let mut newest = std::collections::BTreeMap::new();
        read.into_iter().for_each(|record| drop(newest.insert(record.key, record.value)));
        newest.into_iter().map(|pair| format!("{pair:?}")).collect()
    };
    let before = view(&log);
    for now in [0, 99, 100, 300] {
        log.compact_all(now, 100);
        assert_eq!(view(&log), before, "at {now}");
        assert_eq!(log.stable_end(), log.end);
        let markers = log.batches().iter().filter(|batch| batch.is_control() && batch.record_count() > 0).count();
        assert_eq!(markers, if now < 100 { 50 } else { 5 }, "those of the five keys' newest records, at {now}");
        assert!(log.batches().iter().all(|batch| !batch.is_control() || batch.record_count() > 0), "at {now}");
    }
    let aborted: usize = log.segments.iter().map(|segment| segment.index.aborted().len()).sum();
    assert_eq!(aborted, 0, "rule X7: aborted transactions are told for as long as their markers are there");
}

#[test]
fn data_of_aborted_transactions_go_at_once_and_hide_no_older_record() {
    let mut log = Log::default();
    log.put(Writer::Nobody, &[("a", Some("1")), ("b", Some("1"))]);
    log.cut();
    log.put(Writer::Txn(1), &[("a", Some("2")), ("b", None)]);
    log.put(Writer::Txn(2), &[("a", Some("3"))]);
    log.cut();
    log.end(1, TxnOutcome::Abort);
    log.end(2, TxnOutcome::Commit);
    log.compact_all(0, 100);
    assert_eq!(shown(&log), ["1 b=1", "4 a=3", "5 Abort", "6 Commit"]);
    let told: Vec<AbortedTxn> = log.segments.iter().flat_map(|segment| segment.index.aborted().to_vec()).collect();
    assert_eq!(told, [AbortedTxn { marker: Offset(5), first: Offset(2), producer: ProducerId(1) }]);
    let horizons: Vec<bool> = log.batches().iter().map(|batch| batch.delete_horizon().is_some()).collect();
    assert_eq!(horizons, [false, false, true, false].map(|has| has), "only the marker that is of no use any more");
    log.compact_all(100, 100);
    assert_eq!(shown(&log), ["1 b=1", "4 a=3", "6 Commit"]);
    assert!(log.segments.iter().all(|segment| segment.index.aborted().is_empty()));
}

#[test]
fn a_marker_whose_transaction_is_superseded_gets_its_horizon_then() {
    let mut log = Log::default();
    log.put(Writer::Txn(1), &[("a", Some("1"))]);
    log.end(1, TxnOutcome::Commit);
    log.cut();
    assert_eq!(log.compact_all(0, 100).latest_horizon, None);
    log.put(Writer::Nobody, &[("a", Some("2"))]);
    let from = Offset(2);
    assert_eq!(
        log.compact(Plan { from, now: TimestampMs(500), delete_retention_ms: 100, ..Plan::default() }).latest_horizon,
        Some(TimestampMs(600))
    );
    assert_eq!(shown(&log), ["1 Commit", "2 a=2"]);
    log.compact(Plan { from, now: TimestampMs(600), ..Plan::default() });
    assert_eq!(shown(&log), ["2 a=2"]);
    assert_eq!(log.segments[0].index.end(), Offset(2));
}

#[test]
fn a_marker_far_behind_its_data_stays_with_them() {
    let mut log = Log::default();
    log.put(Writer::Txn(1), &[("a", Some("1"))]);
    log.cut();
    log.put(Writer::Nobody, &[("b", Some("1"))]);
    log.cut();
    log.end(1, TxnOutcome::Commit);
    log.put(Writer::Nobody, &[("b", Some("2"))]);
    log.end(2, TxnOutcome::Commit);
    log.compact_all(0, 0);
    log.compact_all(1, 0);
    assert_eq!(shown(&log), ["0 a=1", "2 Commit", "3 b=2"], "the one that ended nothing is gone");
}

#[test]
fn control_batches_that_are_not_understood_stay() {
    let mut log = Log::default();
    let marker = {
        let mut other = Log::default();
        other.end(1, TxnOutcome::Commit);
        other.cut();
        other.segments[0].batches[0].0.clone()
    };
    // Of a type that a later version may write: byte 3 of the key, which begins at 61 + 5.
    let mut bytes = Vec::new();
    marker.put(&mut bytes);
    bytes[61 + 5 + 3] = 9;
    let crc = crc32c::crc32c(&bytes[21..]);
    bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    let unknown = Batch::take(&mut bytes.into()).expect("sound").expect("whole");
    assert_eq!(unknown.end_marker(), Ok(None));
    log.put(Writer::Txn(1), &[("a", Some("1"))]);
    log.append(unknown.clone());
    log.end(1, TxnOutcome::Commit);
    log.compact_all(0, 0);
    log.compact_all(1, 0);
    let kept = log.batches();
    assert_eq!((kept.len(), kept[1].records_bytes(), kept[1].delete_horizon()), (3, unknown.records_bytes(), None));
}

/// Case C9.
#[test]
fn the_last_batch_of_each_producer_keeps_its_header() {
    let mut log = Log::at(7);
    log.put(Writer::Plain(1), &[("a", Some("1"))]);
    log.put(Writer::Plain(1), &[("a", Some("2")), ("a", Some("3"))]);
    log.put(Writer::Plain(2), &[("a", Some("4"))]);
    log.put(Writer::Nobody, &[("a", Some("5")), ("b", Some("1"))]);
    let written: Vec<Batch> = {
        log.cut();
        log.batches().into_iter().cloned().collect()
    };
    log.compact_all(0, 0);
    assert_eq!(shown(&log), ["4 a=5", "5 b=1"]);
    let kept = log.batches();
    assert_eq!(kept.len(), 3, "the first batch of 1 is gone");
    for (kept, written) in kept.iter().zip(&written[1..3]) {
        assert_eq!((kept.record_count(), kept.producer()), (0, written.producer()));
        assert_eq!((kept.base_offset(), kept.end_offset()), (written.base_offset(), written.end_offset()));
        assert_eq!(kept.max_timestamp(), TimestampMs(7));
    }
    let again = log.compact_all(1, 0);
    assert_eq!(again.changed, [false], "once they are headers they stay as they are");
    // Not for ever: what is written later is the last.
    log.put(Writer::Plain(1), &[("c", Some("1"))]);
    log.put(Writer::Plain(2), &[("d", Some("1"))]);
    log.compact_all(1, 0);
    assert!(log.batches().iter().all(|batch| batch.record_count() > 0));
}

#[test]
fn offsets_more_than_two_to_the_31_apart_stay_what_they_are() {
    let mut log = Log::default();
    log.put(Writer::Nobody, &[("a", Some("1"))]);
    log.append(Batch::hole(Batch::HOLE_SPAN_MAX));
    log.append(Batch::hole(Batch::HOLE_SPAN_MAX));
    log.put(Writer::Nobody, &[("b", Some("1")), ("b", Some("2"))]);
    let compacted = log.compact_all(0, 0);
    assert_eq!((compacted.changed, log.batches().len()), (vec![true], 2), "the holes are of no more use");
    assert_eq!(shown(&log), ["0 a=1", "4294967298 b=2"]);
    assert_eq!(consume(&log.segments, Offset(1), log.end, 1, Isolation::Committed).len(), 1);
}

#[test]
fn the_state_of_producers_stays_at_every_end() {
    let mut log = Log::at(7);
    log.put(Writer::Plain(1), &[("a", Some("1"))]);
    log.put(Writer::Txn(2), &[("a", Some("2"))]);
    log.cut();
    log.end(2, TxnOutcome::Commit);
    log.put(Writer::Nobody, &[("a", Some("3"))]);
    log.cut();
    let before = log.segments.clone();
    log.compact_all(100, 0);
    log.compact_all(200, 0);
    for (before, after) in before.iter().zip(&log.segments) {
        assert_eq!(after.producers(), before.producers(), "rule P5");
        assert_eq!((after.index.open(), after.index.end()), (before.index.open(), before.index.end()));
    }
}

#[test]
fn a_group_of_several_segments_tells_what_they_told() {
    let mut log = Log::at(1);
    log.epoch = LeaderEpoch(1);
    log.put(Writer::Txn(1), &[("a", Some("1"))]);
    log.cut();
    log.put(Writer::Nobody, &[("a", Some("2"))]);
    log.epoch = LeaderEpoch(4);
    log.end(1, TxnOutcome::Abort);
    log.put(Writer::Txn(2), &[("b", Some("1"))]);
    log.cut();
    log.now = TimestampMs(9);
    log.put(Writer::Nobody, &[("c", Some("1"))]);
    log.cut();
    let indexes: Vec<&SegmentIndex> = log.segments.iter().map(|segment| &segment.index).collect();
    let tail = SegmentTail::joined(&indexes, log.segments[2].producers());
    let epochs: Vec<(u32, u64)> = tail.epochs.iter().map(|start| (start.epoch.0, start.start.0)).collect();
    assert_eq!(epochs, [(1, 0), (4, 2)], "an epoch that goes on in the next segment is told once");
    assert_eq!(tail.aborted, [AbortedTxn { marker: Offset(2), first: Offset(0), producer: ProducerId(1) }]);
    assert_eq!((tail.end, tail.open.len()), (Offset(5), 1));
    let newest = log.segments[2].index.clone();
    log.compact(Plan { groups: vec![3], ..Plan::default() });
    assert_eq!(log.segments.len(), 1);
    let joined = &log.segments[0].index;
    assert_eq!(joined.epochs(), tail.epochs);
    assert_eq!((joined.base(), joined.end(), joined.open()), (Offset(0), Offset(5), newest.open()));
    assert_eq!(joined.max_append_time(), newest.max_append_time(), "rule W3: append times go on from it");
    assert_eq!(joined.identity().epoch, LeaderEpoch(4));
}

#[test]
#[should_panic(expected = "rule C3")]
fn segments_that_do_not_adjoin_are_not_joined() {
    let mut log = Log::default();
    for key in ["a", "b", "c"] {
        log.put(Writer::Nobody, &[(key, Some("1"))]);
        log.cut();
    }
    let _ = SegmentTail::joined(&[&log.segments[0].index, &log.segments[2].index], log.segments[2].producers());
}

/// Passes over two segments by hand, to leave something out.
fn by_hand(skip_group: bool, skip_batch: bool, short: bool) {
    let mut log = Log::default();
    for (key, value) in [("a", "1"), ("b", "1")] {
        log.put(Writer::Nobody, &[(key, Some(value))]);
        log.put(Writer::Nobody, &[(value, Some(value))]);
        log.cut();
    }
    let aborted = AbortedTxns::default();
    let mut keys = KeyOffsets::new(9, Offset(0));
    for batch in log.batches() {
        assert_eq!(keys.note(batch, &aborted), Ok(true));
    }
    let mut pass = Pass::new(keys, aborted, [], TimestampMs(0), 0);
    for segment in &log.segments[usize::from(skip_group)..] {
        let mut rewrite = Rewrite::new(segment.index.identity().clone(), segment.index.base());
        for (batch, time) in &segment.batches[usize::from(skip_batch)..] {
            rewrite.push(&mut pass, batch, *time).expect("sound");
        }
        let mut tail = SegmentTail::joined(&[&segment.index], segment.producers());
        tail.end = tail.end.plus(u64::from(short));
        rewrite.finish(&mut pass, tail).expect("sound");
        if skip_group {
            pass.cover(Offset(0), Offset(2));
        }
    }
}

#[test]
fn a_pass_by_hand_over_everything_is_sound() {
    by_hand(false, false, false);
}

#[test]
#[should_panic(expected = "groups are gone over in order")]
fn a_group_out_of_order_is_a_mistake() {
    by_hand(true, false, false);
}

#[test]
#[should_panic(expected = "the newest record of each key is in the groups")]
fn a_batch_left_out_is_a_mistake() {
    by_hand(false, true, false);
}

#[test]
#[should_panic(expected = "the last batch ends where the inputs end")]
fn an_end_that_no_batch_reaches_is_a_mistake() {
    by_hand(false, false, true);
}

#[test]
fn damage_ends_a_pass() {
    let mut log = Log::default();
    log.put(Writer::Nobody, &[("a", Some("1"))]);
    log.put(Writer::Nobody, &[("a", Some("2"))]);
    log.cut();
    let mut bytes = Vec::new();
    log.batches()[0].put(&mut bytes);
    *bytes.last_mut().expect("it has bytes") ^= 1;
    let damaged = Batch::take(&mut bytes.into()).expect("its header is whole").expect("it is there");
    let aborted = AbortedTxns::default();
    let mut keys = KeyOffsets::new(9, Offset(0));
    log.batches().into_iter().for_each(|batch| assert_eq!(keys.note(batch, &aborted), Ok(true)));
    let mut pass = Pass::new(keys, aborted, [], TimestampMs(0), 0);
    let mut rewrite = Rewrite::new(log.segments[0].index.identity().clone(), Offset(0));
    let refused = rewrite.push(&mut pass, &damaged, TimestampMs(0));
    assert!(refused.is_err(), "rule R13: though none of its records would stay");
}

#[test]
fn keys_that_do_not_fit_are_left_to_the_next_pass() {
    let log = {
        let mut log = Log::default();
        log.put(Writer::Nobody, &[("a", Some("1")), ("b", Some("1")), ("c", Some("1"))]);
        log.put(Writer::Nobody, &[("a", Some("2")), ("a", Some("3")), ("b", Some("2"))]);
        log.put(Writer::Nobody, &[("d", Some("1")), ("d", Some("2"))]);
        log.put(Writer::Nobody, &[("a", Some("4"))]);
        log.cut();
        log
    };
    let batches = log.batches();
    let check = |keys_max: usize, expected: [bool; 4], len: usize, end: u64| {
        let mut keys = KeyOffsets::new(keys_max, Offset(0));
        let noted = batches.iter().map(|batch| keys.note(batch, &AbortedTxns::default()).expect("sound"));
        assert_eq!(noted.collect::<Vec<bool>>(), expected, "{keys_max}");
        assert_eq!((keys.len(), keys.end()), (len, Offset(end)), "{keys_max}");
    };
    check(9, [true; 4], 4, 9);
    check(4, [true; 4], 4, 9);
    // What follows one that did not fit is not noted, though it would.
    check(3, [true, true, false, false], 3, 6);
    // A first batch of more keys than fit is held all the same.
    check(0, [true, true, false, false], 3, 6);
}

#[test]
fn keys_below_the_noted_part_are_not_noted() {
    let mut log = Log::default();
    log.put(Writer::Nobody, &[("a", Some("1"))]);
    log.put(Writer::Nobody, &[("b", Some("1")), ("b", Some("2"))]);
    log.cut();
    let mut keys = KeyOffsets::new(9, Offset(1));
    log.batches().into_iter().for_each(|batch| assert_eq!(keys.note(batch, &AbortedTxns::default()), Ok(true)));
    assert_eq!((keys.newest(b"a"), keys.newest(b"b"), keys.newest(b"")), (None, Some(Offset(2)), None));
    assert_eq!((keys.from(), keys.end(), keys.len(), keys.is_empty()), (Offset(1), Offset(3), 1, false));
}

#[test]
fn keys_are_told_apart_whatever_their_bytes() {
    let keys = ["", "\0", "\0\0", "a", "a\0", "\u{1}", "\u{1}\u{1}", "aaaaaaaa", "aaaaaaaaa"];
    let pairs: Vec<(&str, Option<&str>)> = keys.iter().map(|key| (*key, Some("1"))).collect();
    let mut log = Log::default();
    log.put(Writer::Nobody, &pairs);
    log.cut();
    let mut noted = KeyOffsets::new(99, Offset(0));
    assert_eq!(noted.note(log.batches()[0], &AbortedTxns::default()), Ok(true));
    for (offset, key) in (0..).zip(keys) {
        assert_eq!(noted.newest(key.as_bytes()), Some(Offset(offset)), "{key:?}");
    }
}

#[test]
fn the_keys_that_fit_are_those_that_the_table_holds() {
    assert_eq!(KeyOffsets::keys_in(26 << 20), 917_504);
    assert_eq!(KeyOffsets::keys_in(416 << 20), 14_680_064);
    assert_eq!(KeyOffsets::keys_in(0), 0);
    // Kept to by the table itself, once it has grown to as many.
    let count = KeyOffsets::keys_in(64 << 10);
    let mut log = Log::default();
    for from in (0..count).step_by(100) {
        let keys: Vec<String> = (from..count.min(from + 100)).map(|key| key.to_string()).collect();
        let pairs: Vec<(&str, Option<&str>)> = keys.iter().map(|key| (key.as_str(), Some(""))).collect();
        log.put(Writer::Nobody, &pairs);
    }
    log.cut();
    let mut keys = KeyOffsets::new(count, Offset(0));
    let aborted = AbortedTxns::default();
    let batches = log.batches();
    let note = || batches.iter().for_each(|batch| assert_eq!(keys.note(batch, &aborted), Ok(true)));
    let ((), grown) = crate::testing::memory::peak(note);
    assert_eq!(keys.len(), count);
    assert!(grown <= (64 << 10) / 2 * 3, "{grown} bytes for {count} keys, while the table grew");
}

#[test]
fn aborted_data_are_told_from_what_the_producer_wrote_before_and_after() {
    let txn =
        |first: u64, marker: u64| AbortedTxn { marker: Offset(marker), first: Offset(first), producer: ProducerId(1) };
    let aborted = AbortedTxns::new(vec![txn(20, 25), txn(3, 9)]);
    for (offset, expected) in
        [(0, false), (2, false), (3, true), (8, true), (9, false), (19, false), (20, true), (25, false)]
    {
        assert_eq!(aborted.contains(ProducerId(1), Offset(offset)), expected, "{offset}");
        assert!(!aborted.contains(ProducerId(2), Offset(offset)));
    }
    // Outside of transactions the id says nothing.
    let mut log = Log::default();
    log.put(Writer::Plain(1), &[("a", Some("1"))]);
    log.put(Writer::Txn(1), &[("a", Some("1"))]);
    log.end(1, TxnOutcome::Abort);
    log.cut();
    let aborted = AbortedTxns::new(vec![AbortedTxn { marker: Offset(2), first: Offset(0), producer: ProducerId(1) }]);
    let held: Vec<bool> = log.batches().into_iter().map(|batch| aborted.holds(batch)).collect();
    assert_eq!(held, [false, true, false]);
    assert_eq!(records(log.batches()[1]).len(), 1);
}
