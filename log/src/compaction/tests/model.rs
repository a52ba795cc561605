//! Logs of any kind under passes of any kind, against a plain list of what was written (rules C2, S12).
//!
//! The list is never compacted: what a reader finds is held against what it would have found in the log as it was written.

use super::log::{Compacted, Isolation, Log, Plan, Stored, Writer, Written, compact, consume, fetch, records};
use crate::batch::{Batch, Record};
use crate::codec::Codec;
use crate::ids::{LeaderEpoch, Offset, ProducerId, TimestampMs};
use crate::segment::{first_at_or_after, first_of_largest_timestamp};
use crate::transactions::TxnOutcome;
use bytes::Bytes;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// One step of whoever writes the log.
#[derive(Clone, Debug)]
struct Step {
    who: u64,
    what: What,
    codec: Codec,
    waited_ms: i64,
    new_epoch: bool,
    stamped: bool,
    cut: bool,
}

#[derive(Clone, Debug)]
enum What {
    Records(Vec<Written>),
    End(TxnOutcome),
}

/// Producers 1 and 2 write in transactions, 3 does not, 0 has no id.
fn writer(who: u64) -> Writer {
    match who {
        0 => Writer::Nobody,
        3 => Writer::Plain(3),
        id => Writer::Txn(id),
    }
}

fn step() -> impl Strategy<Value = Step> {
    let key = prop_oneof![
        12 => (0u8..6).prop_map(|key| Some(vec![b'k'; usize::from(key)])),
        1 => Just(None),
    ];
    let value = prop_oneof![2 => Just(None), 1 => Just(Some(Vec::new())), 5 => prop::collection::vec(any::<u8>(), 1..40).prop_map(Some)];
    let time = prop_oneof![4 => 0i64..500, 1 => Just(-1), 1 => Just(i64::MAX)];
    let what = prop_oneof![
        5 => prop::collection::vec((time, key, value), 1..6).prop_map(What::Records),
        1 => Just(What::End(TxnOutcome::Commit)),
        1 => Just(What::End(TxnOutcome::Abort)),
    ];
    let codec = prop::sample::select(&Codec::ALL[..]);
    (0u64..4, what, codec, 0i64..3, prop::bool::weighted(0.1), prop::bool::weighted(0.1), prop::bool::weighted(0.25))
        .prop_map(|(who, what, codec, waited_ms, new_epoch, stamped, cut)| Step {
            who,
            what,
            codec,
            waited_ms,
            new_epoch,
            stamped,
            cut,
        })
}

fn written_log(steps: &[Step]) -> Log {
    let mut log = Log::at(1_000);
    for step in steps {
        log.now.0 += step.waited_ms;
        log.epoch = LeaderEpoch(log.epoch.0 + u32::from(step.new_epoch));
        match (&step.what, writer(step.who)) {
            (What::End(outcome), Writer::Txn(id)) => drop(log.end(id, *outcome)),
            // Nobody else ends anything.
            (What::End(_), _) => {}
            (What::Records(records), writer) => {
                let mut batch = log.batch(writer, step.codec, records);
                if step.stamped {
                    batch.stamp_append_time(log.now);
                }
                log.append(batch);
            }
        }
        if step.cut {
            log.cut();
        }
    }
    log
}

/// One pass, as shares of what is there.
#[derive(Clone, Debug)]
struct PassPlan {
    waited_ms: i64,
    delete_retention_ms: i64,
    bound: prop::sample::Index,
    whole: bool,
    keys_max: usize,
    groups: Vec<usize>,
    fails: Option<usize>,
}

fn pass_plan() -> impl Strategy<Value = PassPlan> {
    (
        0i64..200,
        0i64..150,
        any::<prop::sample::Index>(),
        prop::bool::weighted(0.5),
        prop_oneof![1 => 0usize..6, 1 => Just(usize::MAX)],
        prop::collection::vec(1usize..5, 1..4),
        prop::option::weighted(0.3, 0usize..4),
    )
        .prop_map(|(waited_ms, delete_retention_ms, bound, whole, keys_max, groups, fails)| PassPlan {
            waited_ms,
            delete_retention_ms,
            bound,
            whole,
            keys_max,
            groups,
            fails,
        })
}

/// A record as it was written, and what became of its transaction.
#[derive(Clone, Debug)]
struct Line {
    record: Record,
    is_control: bool,
    /// Offset of the marker that ended its transaction, for a record in one; its own for a marker.
    marker: Option<Offset>,
    is_aborted: bool,
}

/// The log as it was written, and what was seen of it over the passes.
struct Model {
    lines: BTreeMap<Offset, Line>,
    end: Offset,
    stable_end: Offset,
    /// From when on a tombstone or a marker may be missed.
    removable_at: BTreeMap<Offset, TimestampMs>,
    /// Below it a record may be missed that has a newer one of its key.
    noted_end: Offset,
    /// Below it nothing that was aborted is shown.
    cleaned_end: Offset,
}

impl Model {
    fn new(log: &Log) -> Model {
        let batches: Vec<&Batch> = log.batches();
        let mut lines = BTreeMap::new();
        for (nth, batch) in batches.iter().enumerate() {
            let producer = batch.producer().map(|stamp| stamp.id);
            let is_end = |later: &&&Batch| later.is_control() && later.producer().map(|stamp| stamp.id) == producer;
            let marker = if batch.is_transactional() { batches[nth..].iter().find(is_end) } else { None };
            let outcome = marker.and_then(|marker| marker.end_marker().expect("sound")).map(|end| end.outcome);
            for record in records(batch) {
                let line = Line {
                    is_control: batch.is_control(),
                    marker: marker.map(|marker| marker.base_offset()),
                    is_aborted: !batch.is_control() && outcome == Some(TxnOutcome::Abort),
                    record,
                };
                lines.insert(line.record.offset, line);
            }
        }
        let (end, stable_end) = (log.end, log.stable_end());
        Model { lines, end, stable_end, removable_at: BTreeMap::new(), noted_end: Offset(0), cleaned_end: Offset(0) }
    }

    /// The newest value of each key; a deleted key is as good as one that never was.
    fn view<'a>(lines: impl Iterator<Item = &'a Record>) -> BTreeMap<Bytes, (Offset, Bytes)> {
        let mut view = BTreeMap::new();
        for record in lines {
            let Some(key) = record.key.clone() else { continue };
            match record.value.clone() {
                Some(value) => drop(view.insert(key, (record.offset, value))),
                None => drop(view.remove(&key)),
            }
        }
        view
    }

    /// What any reader finds after a pass that made `compacted` of the segments `before`.
    fn check(&mut self, before: &[Stored], compacted: &Compacted, pass: &Plan) {
        let Compacted { segments: now, noted, end, .. } = compacted;
        self.noted_end = self.noted_end.max(*noted);
        self.cleaned_end = self.cleaned_end.max(*end);
        let found = all_records(now);
        let mut left = BTreeMap::new();
        for (record, is_control) in &found {
            let line = self.lines.get(&record.offset).expect("it was written");
            assert_eq!((&line.record, line.is_control), (record, *is_control), "as it was written");
            assert!(left.last_key_value().is_none_or(|(last, _)| *last < record.offset), "in order, once");
            left.insert(record.offset, record);
        }
        for (offset, line) in &self.lines {
            if left.contains_key(offset) {
                continue;
            }
            assert!(*offset < self.cleaned_end, "{offset} is not below {}, and gone", self.cleaned_end);
            assert!(line.record.key.is_some() || line.is_aborted, "{offset} has no key, and is gone");
            if line.is_aborted {
                continue;
            }
            let is_newer = |other: &Line| {
                !other.is_control
                    && !other.is_aborted
                    && other.record.key == line.record.key
                    && other.record.offset > *offset
            };
            let cleaned = self.lines.range(offset..&self.noted_end);
            if !line.is_control && cleaned.map(|(_, other)| other).any(is_newer) {
                continue;
            }
            assert!(line.is_control || line.record.value.is_none(), "{offset} was the newest, and is gone");
            let since = self.removable_at.get(offset).copied();
            assert!(
                since.is_some_and(|since| since <= pass.now),
                "{offset} had to stay until {since:?}, and is gone at {}",
                pass.now
            );
        }
        // What this pass has gone over and left, it may have given a horizon.
        let data: BTreeSet<Offset> = left
            .keys()
            .filter(|offset| !self.lines[*offset].is_control)
            .filter_map(|offset| self.lines[offset].marker)
            .collect();
        for offset in left.range(..end).map(|(offset, _)| *offset) {
            let line = &self.lines[&offset];
            let is_candidate = if line.is_control { !data.contains(&offset) } else { line.record.value.is_none() };
            if is_candidate {
                self.removable_at
                    .entry(offset)
                    .or_insert(TimestampMs(pass.now.0.saturating_add(pass.delete_retention_ms)));
            }
        }
        for marker in data.iter().filter(|marker| **marker < self.end) {
            assert!(left.contains_key(marker), "the marker at {marker} is gone before its data");
        }
        assert_coverage(before, now);
    }

    /// Readers of both kinds, with steps of `bytes_max`.
    fn check_readers(&self, now: &[Stored], bytes_max: u64) {
        let committed = consume(now, Offset(0), self.stable_end, bytes_max, Isolation::Committed);
        assert!(committed.iter().all(|record| !self.lines[&record.offset].is_aborted), "nothing aborted is shown");
        let lines = || self.lines.values().filter(|line| !line.is_control);
        let written = lines().filter(|line| !line.is_aborted && line.record.offset < self.stable_end);
        assert_eq!(Model::view(committed.iter()), Model::view(written.map(|line| &line.record)));
        let uncommitted = consume(now, Offset(0), self.end, bytes_max, Isolation::Uncommitted);
        // What was aborted is taken out where a pass went, and shown where none did.
        let shown = uncommitted.iter().filter(|record| self.counts(record.offset));
        let written = lines().filter(|line| self.counts(line.record.offset));
        assert_eq!(Model::view(shown), Model::view(written.map(|line| &line.record)));
        // From any offset one step leads on, to another, past nothing: so whoever begins anywhere gets to the end and finds all.
        let all: BTreeMap<Offset, Record> =
            all_records(now).into_iter().map(|(record, _)| (record.offset, record)).collect();
        for from in (0..self.end.0).map(Offset) {
            for until in [self.stable_end, self.end] {
                let (batches, _) = fetch(now, from, until, bytes_max);
                let end = batches.last().map_or(from, Batch::end_offset);
                assert!(end > from || from >= until, "a reader at {from} gets nowhere before {until}");
                let read = batches.iter().flat_map(records).filter(|record| record.offset >= from);
                assert!(read.eq(all.range(from..end).map(|(_, record)| record.clone())), "from {from} to {end}");
            }
        }
    }

    /// Whether readers of uncommitted records find the same of it before and after.
    fn counts(&self, offset: Offset) -> bool {
        !self.lines[&offset].is_aborted || offset >= self.cleaned_end
    }
}

fn all_records(segments: &[Stored]) -> Vec<(Record, bool)> {
    let batches = segments.iter().flat_map(|segment| &segment.batches);
    batches.flat_map(|(batch, _)| records(batch).into_iter().map(|record| (record, batch.is_control()))).collect()
}

/// The same offsets, and at each end of a segment what was said there.
fn assert_coverage(before: &[Stored], now: &[Stored]) {
    assert!(now.windows(2).all(|pair| pair[0].index.end() == pair[1].index.base()));
    assert_eq!(now.first().map(|first| first.index.base()), before.first().map(|first| first.index.base()));
    assert_eq!(now.last().map(|last| last.index.end()), before.last().map(|last| last.index.end()));
    for after in now {
        let same_end = |before: &&Stored| before.index.end() == after.index.end();
        let before = before.iter().find(same_end).expect("segments end where segments ended");
        assert_eq!(after.producers(), before.producers());
        let said = |stored: &Stored| {
            let index = &stored.index;
            (
                index.meta(&[], 0).prefix_hash,
                index.open().to_vec(),
                index.max_append_time(),
                index.epochs().last().map(|last| last.epoch),
            )
        };
        assert_eq!(said(after), said(before));
        let (last, _) = after.batches.last().expect("a batch stays");
        assert_eq!(last.end_offset(), after.index.end());
        let markers: BTreeSet<Offset> = after
            .batches
            .iter()
            .filter(|(batch, _)| batch.is_control() && batch.record_count() > 0)
            .map(|(batch, _)| batch.base_offset())
            .collect();
        assert!(after.index.aborted().iter().all(|txn| markers.contains(&txn.marker)), "told with its marker");
    }
    // Whoever is shown an abort marker was told of the transaction.
    let told: BTreeSet<Offset> = now.iter().flat_map(|stored| stored.index.aborted()).map(|txn| txn.marker).collect();
    let was_told = before.iter().flat_map(|stored| stored.index.aborted()).map(|txn| txn.marker);
    let there: BTreeSet<Offset> = all_records(now).into_iter().map(|(record, _)| record.offset).collect();
    assert!(was_told.filter(|marker| there.contains(marker)).all(|marker| told.contains(&marker)));
}

/// Searches by time answer what a scan of the records does.
fn assert_searches(segments: &[Stored]) {
    let records: Vec<Record> = all_records(segments).into_iter().map(|(record, _)| record).collect();
    for stored in segments {
        let own: Vec<&Record> = records
            .iter()
            .filter(|record| (stored.index.base()..stored.index.end()).contains(&record.offset))
            .collect();
        let latest = own.iter().map(|record| record.timestamp).max().unwrap_or(TimestampMs::NONE);
        assert_eq!(stored.index.max_timestamp(), latest);
        assert_eq!(stored.index.record_count(), own.len() as u64);
        for time in [0, 200, 1_000, i64::MAX].map(TimestampMs) {
            let (mut from, mut found) = (stored.index.base(), None);
            while let Some(span) = stored.index.find_time(time, from) {
                let data = stored.bytes.slice(span.bytes.start as usize..span.bytes.end as usize);
                let batches = stored.index.read(&span, &[data]).expect("sound");
                found = first_at_or_after(&batches, time, from).expect("sound");
                if found.is_some() {
                    break;
                }
                from = stored.index.chunks()[span.chunks.end - 1].end;
            }
            let expected = own.iter().find(|record| record.timestamp >= time);
            assert_eq!(found.map(|found| found.offset), expected.map(|record| record.offset));
        }
        let batches: Vec<Batch> = stored.batches.iter().map(|(batch, _)| batch.clone()).collect();
        let largest = first_of_largest_timestamp(&batches, stored.index.base()).expect("sound");
        let expected = own.iter().find(|record| record.timestamp == latest);
        assert_eq!(largest.map(|largest| largest.offset), expected.map(|record| record.offset));
    }
}

/// Each producer's newest batch is there, if only its header.
fn assert_producers(log: &Log, written: &[Batch], now: &[Stored]) {
    for base in log.producers.last_batches() {
        let found = |batch: &&Batch| batch.base_offset() == base;
        let after = now.iter().flat_map(|stored| &stored.batches).map(|(batch, _)| batch).find(found);
        let before = written.iter().find(found).expect("it was written");
        let after = after.unwrap_or_else(|| panic!("rule C2: the last batch of {:?} is gone", before.producer()));
        assert_eq!((after.producer(), after.end_offset()), (before.producer(), before.end_offset()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    /// Rule S12: coverage, the newest value of each key, and the visibility of transactions stay, whatever is written and however it
    /// is compacted; and in the end nothing is left that is of no use.
    #[test]
    fn readers_find_after_any_passes_what_was_written(
        steps in prop::collection::vec(step(), 1..60),
        plans in prop::collection::vec(pass_plan(), 1..6),
        bytes_max in 1u64..600,
    ) {
        let mut log = written_log(&steps);
        log.cut();
        prop_assume!(!log.segments.is_empty());
        let written: Vec<Batch> = log.batches().into_iter().cloned().collect();
        let mut model = Model::new(&log);
        let (mut from, mut now) = (Offset(0), TimestampMs(10_000));
        for plan in plans {
            now.0 += plan.waited_ms;
            let bound = if plan.whole { model.stable_end } else { Offset(plan.bound.index(model.stable_end.0 as usize + 1) as u64) };
            let PassPlan { delete_retention_ms, keys_max, groups, fails, .. } = plan;
            // A pass does not end before one that came before it: that is noted already.
            let bound = bound.max(from);
            let plan = Plan { from, bound, keys_max, now, delete_retention_ms, groups, fails };
            let compacted = compact(&log.segments, &log.producers, &plan);
            model.check(&log.segments, &compacted, &plan);
            model.check_readers(&compacted.segments, bytes_max);
            assert_searches(&compacted.segments);
            assert_producers(&log, &written, &compacted.segments);
            let untouched = |stored: &&Stored| stored.index.base() >= compacted.end;
            prop_assert!(compacted.segments.iter().filter(untouched).all(|stored| log.segments.contains(stored)));
            from = compacted.end;
            log.segments = compacted.segments;
        }
        let whole = |now: TimestampMs, segments: &[Stored], from: Offset, producers| {
            let plan = Plan { from, bound: model.stable_end, now, delete_retention_ms: 10, ..Plan::default() };
            compact(segments, producers, &plan)
        };
        // Tombstones go, then the markers of transactions that had no more than those.
        for _ in 0..4 {
            let Compacted { segments, latest_horizon, end, .. } = whole(now, &log.segments, from, &log.producers);
            now = latest_horizon.unwrap_or(now);
            from = end;
            log.segments = segments;
        }
        let last = whole(now, &log.segments, from, &log.producers);
        prop_assert!(last.changed.iter().all(|changed| !changed), "there is nothing left to do");
        prop_assert_eq!((last.latest_horizon, last.removed_records), (None, 0));
        model.cleaned_end = from;
        model.check_readers(&log.segments, bytes_max);
        let mut keys = BTreeSet::new();
        let mut in_use: BTreeSet<ProducerId> = BTreeSet::new();
        for (batch, _) in log.segments.iter().flat_map(|stored| &stored.batches).filter(|(batch, _)| batch.end_offset() <= from) {
            let id = batch.producer().map(|stamp| stamp.id);
            for record in records(batch) {
                let line = &model.lines[&record.offset];
                prop_assert!(!line.is_aborted);
                if batch.is_control() {
                    prop_assert!(id.is_some_and(|id| in_use.remove(&id)), "a marker without data is left");
                } else if let Some(key) = record.key {
                    prop_assert!(record.value.is_some(), "a tombstone is left");
                    prop_assert!(keys.insert(key), "two records of a key are left");
                }
            }
            if batch.is_transactional() && !batch.is_control() && batch.record_count() > 0 {
                in_use.extend(id);
            }
        }
    }
}
