//! The manifest against a plain list of segments.

mod damage;
mod log_start;

use super::roll::RollLimits;
use super::*;
use crate::epochs::EpochStart;
use crate::ids::{BrokerId, Incarnation, TimestampMs, TopicId};
use crate::object_key::{BundleObject, GcEpoch, ObjectKey, PartitionObject};
use bytes::Bytes;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const PARTITION: PartitionId = PartitionId { topic: TopicId(0x1234_5678_9abc_def0_1122_3344_5566_7788), index: 3 };

/// Objects that one step of a log start drops at most.
const DROPPED_MAX: usize = 16;

/// So small that a few dozen segments make several levels.
const TINY: RollLimits = RollLimits { inline_bytes_max: 320, inline_bytes_kept: 170, fanout: 3 };

/// A partition's manifest, the bucket it rolls into, and the plain list that says what is right.
struct Model {
    view: ManifestView,
    bucket: BTreeMap<ObjectKey, Bytes>,
    /// Every segment ever appended or swapped in, in order of offset.
    all: Vec<SegmentEntry>,
    /// What moves of the log start have dropped so far.
    dropped: BTreeSet<ObjectKey>,
    limits: RollLimits,
    names: u128,
    epoch: LeaderEpoch,
    clock: i64,
}

#[derive(Clone, Copy, Debug)]
struct Appended {
    offsets: u64,
    records: u64,
    size: u64,
    timestamp: i64,
    waited_ms: i64,
    epochs: u32,
    bundled: bool,
}

impl Model {
    fn new(limits: RollLimits) -> Model {
        let view = ManifestView::new(ManifestRoot::new(PARTITION));
        Model {
            view,
            bucket: BTreeMap::new(),
            all: Vec::new(),
            dropped: BTreeSet::new(),
            limits,
            names: 0,
            epoch: LeaderEpoch(0),
            clock: 1_000,
        }
    }

    fn random(&mut self) -> u128 {
        self.names += 1;
        self.names << 64 | 0xfeed
    }

    fn entry(&mut self, appended: Appended) -> SegmentEntry {
        let base = self.view.root().tiered_end;
        let end = base.plus(appended.offsets);
        let random = self.random();
        // As many epochs as were asked for, but each has at least one record.
        let first_epoch = self.epoch.0.max(1);
        let epochs: Vec<EpochStart> = (0..u64::from(appended.epochs).min(appended.offsets - 1) + 1)
            .map(|nth| EpochStart { epoch: LeaderEpoch(first_epoch + nth as u32), start: base.plus(nth) })
            .collect();
        self.epoch = epochs[epochs.len() - 1].epoch;
        self.clock += appended.waited_ms;
        let gc_epoch = GcEpoch(7);
        let object = if appended.bundled {
            ObjectKey::Bundle(BundleObject { broker: BrokerId(1), incarnation: Incarnation(99), gc_epoch, random })
        } else {
            ObjectKey::Segment(PartitionObject { partition: PARTITION, gc_epoch, epoch: self.epoch, base, random })
        };
        SegmentEntry {
            base,
            end,
            object,
            object_length: appended.size + if appended.bundled { 1_000 } else { 0 },
            position: if appended.bundled { 500 } else { 0 },
            length: appended.size,
            index_length: 60,
            crc: random as u32 ^ 0x5a5a,
            index_crc: 17,
            record_count: appended.records,
            max_timestamp: TimestampMs(appended.timestamp),
            max_append_time: TimestampMs(self.clock),
            prefix_hash: (random as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            epochs,
            open: None,
        }
    }

    /// Commits a root as a leader would: objects first, then the encoded root (rule T6).
    fn commit(&mut self, root: ManifestRoot) {
        let mut names = self.names;
        let plan = root.roll_within(self.limits, GcEpoch(7), || {
            names += 1;
            names << 64 | 0xfeed
        });
        self.names = names;
        let root = match plan {
            Some(plan) => {
                for object in plan.objects {
                    assert!(
                        self.bucket.insert(object.object, object.bytes).is_none(),
                        "rule T2: names are never reused"
                    );
                }
                plan.root
            }
            None => root,
        };
        let stored = root.encode();
        assert_eq!(ManifestRoot::decode(&stored), Ok(root.clone()));
        assert_eq!(ManifestRoot::decode(&stored).expect("just checked").encode(), stored);
        assert!(self.view.update(root));
    }

    fn append(&mut self, appended: Appended) {
        let entry = self.entry(appended);
        self.all.push(entry.clone());
        let root = self.view.root().append(entry, self.epoch);
        self.commit(root);
    }

    /// What may be asked for at `log_start`, by the plain list.
    fn live(&self) -> Vec<&SegmentEntry> {
        let root = self.view.root();
        self.all.iter().filter(|entry| entry.end > root.log_start).collect()
    }
}

/// Asks until nothing is missing, loading from the bucket.
fn ask<T, F>(view: &mut ManifestView, bucket: &BTreeMap<ObjectKey, Bytes>, question: F) -> T
where
    F: Fn(&ManifestView) -> Lookup<T>,
{
    loop {
        match question(view) {
            Lookup::Found(answer) => return answer,
            Lookup::Need(rolled) => view.load(&rolled, &bucket[&rolled.object]).expect("what was rolled can be loaded"),
        }
    }
}

fn cloned(lookup: Lookup<Option<&SegmentEntry>>) -> Lookup<Option<SegmentEntry>> {
    match lookup {
        Lookup::Found(found) => Lookup::Found(found.cloned()),
        Lookup::Need(rolled) => Lookup::Need(rolled),
    }
}

impl Model {
    fn check_find(&mut self, offset: Offset) {
        let expected = self.live().into_iter().find(|entry| entry.base <= offset && offset < entry.end).cloned();
        if offset >= self.view.root().log_start {
            let found = ask(&mut self.view, &self.bucket, |view| cloned(view.find(offset)));
            assert_eq!(found, expected, "find {offset}");
        }
    }

    fn check_times(&mut self, timestamp: TimestampMs, from: Offset) {
        let from = from.max(self.view.root().log_start);
        let expected =
            self.live().into_iter().find(|entry| entry.end > from && entry.max_timestamp >= timestamp).cloned();
        let found = ask(&mut self.view, &self.bucket, |view| cloned(view.find_time(timestamp, from)));
        assert_eq!(found, expected, "find {timestamp} from {from}");

        let whole: Vec<_> = self.live().into_iter().filter(|entry| entry.base >= from).cloned().collect();
        let largest = whole.iter().map(|entry| entry.max_timestamp).max();
        let expected = whole.into_iter().find(|entry| Some(entry.max_timestamp) == largest);
        let found = ask(&mut self.view, &self.bucket, |view| cloned(view.find_max_timestamp(from)));
        assert_eq!(found, expected, "largest timestamp from {from}");
    }

    fn check_retention(&mut self, retention: Retention, now: TimestampMs, tail_size: u64) {
        let root = self.view.root();
        let mut expected = root.log_start;
        // Oldest first, as Kafka's cleaner goes: by age, then by size.
        let live: Vec<SegmentEntry> = self.live().into_iter().cloned().collect();
        if let Some(age_ms_max) = retention.age_ms_max {
            for entry in &live {
                if now.0 - entry.max_append_time.0 <= age_ms_max {
                    break;
                }
                expected = expected.max(entry.end);
            }
        }
        if let Some(size_max) = retention.size_max {
            let mut newer: u64 = live.iter().map(|entry| entry.length).sum::<u64>() + tail_size;
            for entry in &live {
                newer -= entry.length;
                if newer < size_max {
                    break;
                }
                expected = expected.max(entry.end);
            }
        }
        let found = ask(&mut self.view, &self.bucket, |view| view.retention_start(retention, now, tail_size));
        assert_eq!(found, expected, "{retention:?} at {now} with a tail of {tail_size}");
    }

    fn check_epochs(&mut self) {
        let root = self.view.root();
        // The record before the tiered end is always in it (rule R5).
        let log_start = root.log_start.min(Offset(root.tiered_end.0.saturating_sub(1)));
        let live = self.all.iter().filter(|entry| entry.end > log_start);
        let mut expected = LeaderEpochsByHand::default();
        for entry in live {
            entry.epochs.iter().for_each(|&at| expected.note(at, log_start));
        }
        let found = ask(&mut self.view, &self.bucket, ManifestView::epochs);
        assert_eq!(found, expected.0);
    }

    /// Rules G2, P5: the live segments and the newest are referenced, and nothing else that ever was a segment.
    fn check_references(&mut self) {
        let root = self.view.root().clone();
        let references = ask(&mut self.view, &self.bucket, ManifestView::references);
        for entry in &self.all {
            let live = entry.end > root.log_start || entry.end == root.tiered_end;
            assert_eq!(references.contains(&entry.object), live, "[{}, {})", entry.base, entry.end);
        }
        let manifests = references.iter().filter(|object| matches!(object, ObjectKey::Manifest(_)));
        assert!(manifests.clone().all(|object| self.bucket.contains_key(object)), "S10: referenced objects exist");
    }

    /// Moves the log start in steps, and checks each of them.
    fn advance(&mut self, to: Offset) {
        while self.advance_within(to, DROPPED_MAX) < to {}
    }

    /// Moves the log start by one step and checks that what it drops is what was referenced before and is not any more. Where it is then.
    fn advance_within(&mut self, to: Offset, objects_max: usize) -> Offset {
        let before = ask(&mut self.view, &self.bucket, ManifestView::references);
        let dropped = ask(&mut self.view, &self.bucket, |view| view.dropped_by(to, objects_max));
        assert!(dropped.segments.len() + dropped.manifests.len() <= objects_max, "a step is bounded");
        assert!(
            dropped.to == to || dropped != Dropped { to: dropped.to, ..Dropped::default() },
            "a step gets somewhere"
        );
        let root = self.view.root().advance_log_start(dropped.to, self.epoch);
        self.commit(root);
        let after = ask(&mut self.view, &self.bucket, ManifestView::references);
        let mut named: BTreeSet<ObjectKey> = dropped.segments.iter().map(|entry| entry.object).collect();
        named.extend(dropped.manifests.iter().map(|rolled| rolled.object));
        assert_eq!(named.len(), dropped.segments.len() + dropped.manifests.len(), "nothing is named twice");
        assert!(named.is_disjoint(&after), "rule G2: what is dropped is referenced no more");
        let gone: BTreeSet<ObjectKey> = before.difference(&after).copied().collect();
        assert!(gone.is_subset(&named), "all that is referenced no more is dropped");
        let again: BTreeSet<ObjectKey> = named.intersection(&self.dropped).copied().collect();
        assert!(again.is_empty(), "what an earlier move dropped is named again: {again:?}");
        self.dropped.extend(named);
        dropped.to
    }
}

/// The epochs of a list of segments, the plain way.
#[derive(Default)]
struct LeaderEpochsByHand(Vec<EpochStart>);

impl LeaderEpochsByHand {
    fn note(&mut self, at: EpochStart, log_start: Offset) {
        let at = EpochStart { start: at.start.max(log_start), ..at };
        if self.0.last().is_some_and(|last| last.epoch == at.epoch) {
            return;
        }
        if self.0.last().is_some_and(|last| last.start == at.start) {
            self.0.pop();
        }
        self.0.push(at);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Append(Appended),
    /// By so many offsets past `log_start`, even past `tiered_end` (rule C1).
    AdvanceLogStart(u64),
    Retain(Retention, i64, u64),
    /// Merges so many neighbours.
    Merge(usize, usize),
    Forget,
}

fn appended() -> impl Strategy<Value = Appended> {
    let timestamp = prop_oneof![8 => 0i64..500, 1 => Just(-1), 1 => any::<i64>()];
    (1u64..40, 0u64..40, 60u64..5_000, timestamp, 0i64..50, 0u32..3, any::<bool>()).prop_map(
        |(offsets, records, size, timestamp, waited_ms, epochs, bundled)| Appended {
            offsets,
            records,
            size,
            timestamp,
            waited_ms,
            epochs: epochs.saturating_sub(1),
            bundled,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let retention = (proptest::option::of(0i64..2_000), proptest::option::of(0u64..100_000))
        .prop_map(|(age_ms_max, size_max)| Retention { age_ms_max, size_max });
    prop_oneof![
        12 => appended().prop_map(Step::Append),
        1 => (0u64..60).prop_map(Step::AdvanceLogStart),
        2 => (retention, 0i64..100, 0u64..10_000).prop_map(|(r, later, tail)| Step::Retain(r, later, tail)),
        2 => (0usize..40, 1usize..6).prop_map(|(at, count)| Step::Merge(at, count)),
        1 => Just(Step::Forget),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn manifest_answers_as_a_plain_list_would(
        steps in prop::collection::vec(step(), 1..120),
        offset in 0u64..3_000,
        timestamp in 0i64..600,
    ) {
        let mut model = Model::new(TINY);
        for (nth, step) in steps.into_iter().enumerate() {
            match step {
                Step::Append(appended) => model.append(appended),
                Step::AdvanceLogStart(by) => model.advance(model.view.root().log_start.plus(by)),
                Step::Retain(retention, later, tail_size) => {
                    let now = TimestampMs(model.clock + later);
                    model.check_retention(retention, now, tail_size);
                }
                Step::Merge(at, count) => merge(&mut model, at, count),
                Step::Forget => model.view.unload(),
            }
            let end = model.view.root().tiered_end.0 + 2;
            model.check_find(Offset((offset * (nth as u64 + 1)) % end));
            model.check_times(TimestampMs(timestamp), Offset(offset % end));
        }
        for offset in 0..model.view.root().tiered_end.0 + 2 {
            model.check_find(Offset(offset));
        }
        model.check_epochs();
        model.check_references();
    }
}

/// Replaces neighbours, wherever they are named, by one, as compaction and the merging of small segments do (rule C3).
fn merge(model: &mut Model, at: usize, count: usize) {
    let live: Vec<SegmentEntry> = model.live().into_iter().cloned().collect();
    let Some(inputs) = live.get(at..at + count).map(<[SegmentEntry]>::to_vec) else { return };
    let merged = merged(model, &inputs);
    let before = ask(&mut model.view, &model.bucket, ManifestView::references);
    let plan = swap(model, &Swap::new(inputs.clone(), merged.clone())).expect("the inputs are there");
    for object in &plan.objects {
        let new = model.bucket.insert(object.object, object.bytes.clone()).is_none();
        assert!(new, "rule T2: names are never reused");
    }
    model.commit(plan.root);
    let newest = model.view.root().newest().map(|newest| newest.end);
    assert_eq!(newest, Some(model.view.root().tiered_end), "rule P5: the newest is named in the root");
    let first = model.all.iter().position(|entry| *entry == inputs[0]).expect("the list has what the manifest has");
    model.all.splice(first..first + count, [merged.clone()]);
    let after = ask(&mut model.view, &model.bucket, ManifestView::references);
    let gone: BTreeSet<ObjectKey> = before.difference(&after).filter(|object| object.is_alone()).copied().collect();
    assert_eq!(
        plan.dropped.into_iter().collect::<BTreeSet<_>>(),
        gone,
        "rule G2: what is referenced no more is dropped"
    );
    model.dropped.extend(gone);
    let again = swap(model, &Swap::new(inputs.clone(), merged));
    assert_eq!(again, Err(SwapConflict), "rule C3: inputs that are not there are refused");
}

fn merged(model: &mut Model, inputs: &[SegmentEntry]) -> SegmentEntry {
    let (oldest, newest) = (&inputs[0], &inputs[inputs.len() - 1]);
    let mut epochs: Vec<EpochStart> = Vec::new();
    for at in inputs.iter().flat_map(|input| &input.epochs) {
        if epochs.last().map(|last| last.epoch) != Some(at.epoch) {
            epochs.push(*at);
        }
    }
    let (partition, gc_epoch, epoch, base) = (PARTITION, GcEpoch(8), model.epoch, oldest.base);
    let object = ObjectKey::Segment(PartitionObject { partition, gc_epoch, epoch, base, random: model.random() });
    let length = inputs.iter().map(|input| input.length).sum();
    SegmentEntry {
        end: newest.end,
        object,
        object_length: length,
        position: 0,
        length,
        record_count: inputs.iter().map(|input| input.record_count).sum(),
        max_timestamp: inputs.iter().map(|input| input.max_timestamp).max().expect("a swap has inputs"),
        max_append_time: newest.max_append_time,
        prefix_hash: newest.prefix_hash,
        epochs,
        ..oldest.clone()
    }
}

fn swap(model: &mut Model, swap: &Swap) -> Result<SwapPlan, SwapConflict> {
    let epoch = model.epoch;
    let planned = ask(&mut model.view, &model.bucket, |view| {
        let names = std::cell::Cell::new(model.names);
        view.swap(swap, epoch, GcEpoch(9), || {
            names.set(names.get() + 1);
            names.get() << 64 | 0xfade
        })
    });
    model.names += 100;
    planned
}

fn hourly(nth: u64) -> Appended {
    Appended {
        offsets: 1_000_000,
        records: 1_000_000,
        size: 64 << 20,
        timestamp: 1_700_000_000_000 + nth as i64 * 3_600_000,
        waited_ms: 3_600_000,
        epochs: u32::from(nth.is_multiple_of(500)),
        bundled: false,
    }
}

/// Rules Z5, K8: the root stays small whatever the history, and finding anything in it takes few reads.
#[test]
fn ten_years_of_hourly_segments_stay_below_8_kib() {
    let mut root = ManifestRoot::new(PARTITION);
    let mut model = Model::new(TINY);
    model.clock = 1_700_000_000_000;
    let (mut largest, mut manifest_bytes) = (0, 0u64);
    let hours = 10 * 365 * 24;
    let mut names = 0;
    for nth in 0..hours {
        let entry = model.entry(hourly(nth));
        root = root.append(entry, model.epoch);
        if let Some(plan) = root.roll(GcEpoch(1_000_000), || {
            names += 1;
            u128::MAX - names
        }) {
            largest = largest.max(root.encode().len());
            for object in plan.objects {
                manifest_bytes += object.bytes.len() as u64;
                assert!(object.bytes.len() < 8 << 10, "a rolled manifest is small");
                model.bucket.insert(object.object, object.bytes);
            }
            root = plan.root;
        }
        // Where the next segment begins, without the cost of a full view.
        model.view = ManifestView::new(ManifestRoot { tiered_end: root.tiered_end, ..ManifestRoot::new(PARTITION) });
    }
    assert!(largest > INLINE_BYTES_MAX, "the largest root was measured before it was rolled");
    assert!(largest < 8 << 10, "a root of {largest} bytes");
    assert!(manifest_bytes < 16 << 20, "{manifest_bytes} bytes of manifests");
    assert_eq!(ManifestRoot::decode(&root.encode()), Ok(root.clone()));

    let mut view = ManifestView::new(root);
    for nth in (0..hours).step_by(997) {
        view.unload();
        let offset = Offset(nth * 1_000_000 + 5);
        let mut reads = 0;
        let found = loop {
            match cloned(view.find(offset)) {
                Lookup::Found(found) => break found,
                Lookup::Need(rolled) => {
                    reads += 1;
                    view.load(&rolled, &model.bucket[&rolled.object]).expect("what was rolled can be loaded");
                }
            }
        };
        assert_eq!(found.map(|entry| entry.base), Some(Offset(nth * 1_000_000)));
        assert!(reads <= 3, "{reads} reads of manifests for hour {nth}");
    }
    let epochs = ask(&mut view, &model.bucket, ManifestView::epochs);
    assert_eq!(epochs.len() as u64, hours.div_ceil(500) + 1);
}

fn rolled_model() -> Model {
    let mut model = Model::new(TINY);
    (0..24).for_each(|nth| model.append(hourly(nth)));
    assert!(model.view.root().rolled().iter().any(|rolled| rolled.level > 1), "the model has several levels");
    model
}

/// S23: a view never goes back to an older root.
#[test]
fn view_ignores_an_older_root() {
    let mut model = Model::new(TINY);
    model.append(hourly(0));
    let older = model.view.root().clone();
    model.append(hourly(1));
    let newer = model.view.root().clone();
    assert!(!model.view.update(older));
    assert_eq!(model.view.root(), &newer);
}

/// Rule P5: the newest entry stays in the root even when it alone outgrows what a roll leaves there.
#[test]
fn oversized_newest_entry_stays_in_the_root() {
    let mut model = Model::new(TINY);
    (0..3).for_each(|nth| model.append(hourly(nth)));
    model.append(Appended { epochs: 300, ..hourly(3) });
    let root = model.view.root();
    assert_eq!(root.entries().len(), 1);
    assert_eq!(root.newest().map(|entry| entry.end), Some(root.tiered_end));
    assert_eq!(root.rolled().last().map(|rolled| rolled.end), Some(Offset(3_000_000)));
}

#[test]
#[should_panic(expected = "S8")]
fn gap_before_an_appended_segment_is_a_mistake() {
    let mut model = Model::new(TINY);
    let mut entry = model.entry(hourly(0));
    entry.base = Offset(1);
    let _ = model.view.root().append(entry, LeaderEpoch(1));
}

/// Rule T7: what is stable ends where the oldest open transaction begins, and catches up when none is open.
#[test]
fn stable_end_stops_at_an_open_transaction() {
    let mut model = Model::new(TINY);
    let mut entry = model.entry(hourly(0));
    entry.open = Some(OpenTxns { count: 2, first: Offset(400) });
    let root = model.view.root().append(entry, LeaderEpoch(1));
    assert_eq!((root.stable_end, root.tiered_end), (Offset(400), Offset(1_000_000)));
    assert_eq!(ManifestRoot::decode(&root.encode()), Ok(root.clone()));
    model.commit(root);
    model.append(hourly(1));
    assert_eq!(model.view.root().stable_end, Offset(2_000_000));
}

/// Rule C3 inside rolled manifests: those that name an input are written anew, up to the root, and no other is.
#[test]
fn swap_over_rolled_manifests_rewrites_the_paths_to_its_inputs() {
    let mut model = rolled_model();
    let all = model.all.clone();
    // From the middle of one rolled manifest into another.
    let inputs = all[1..8].to_vec();
    let output = merged(&mut model, &inputs);
    let plan = swap(&mut model, &Swap::new(inputs, output.clone())).expect("the inputs are there");
    let before = ask(&mut model.view, &model.bucket, ManifestView::references);
    let manifests = |objects: &mut dyn Iterator<Item = &ObjectKey>| {
        objects.filter(|object| matches!(object, ObjectKey::Manifest(_))).count()
    };
    let dropped = manifests(&mut plan.dropped.iter());
    assert!(dropped > 2 && dropped < manifests(&mut before.iter()), "{dropped} manifests are written anew");
    assert!(plan.objects.len() <= dropped, "what is left of them is no more");
    for object in plan.objects {
        model.bucket.insert(object.object, object.bytes);
    }
    model.commit(plan.root);
    model.all.splice(1..8, [output]);
    (0..24_000_000).step_by(500_000).for_each(|offset| model.check_find(Offset(offset)));
    model.check_epochs();
    model.check_references();
}

/// Rule P5: the newest segment is found in the root, also when it was made of others that are named elsewhere.
#[test]
fn swap_of_all_there_is_leaves_the_newest_segment_in_the_root() {
    let mut model = rolled_model();
    let inputs = model.all.clone();
    let output = merged(&mut model, &inputs);
    let plan = swap(&mut model, &Swap::new(inputs, output.clone())).expect("the inputs are there");
    assert_eq!((plan.root.newest(), plan.root.rolled()), (Some(&output), &[][..]));
    assert_eq!(ManifestRoot::decode(&plan.root.encode()), Ok(plan.root));
}

/// Rule C3: what was appended meanwhile, or left, is no input; what was swapped is none twice.
#[test]
fn swap_holds_whatever_is_appended_behind_it() {
    let mut model = Model::new(TINY);
    (0..3).for_each(|nth| model.append(hourly(nth)));
    let inputs = model.all[..2].to_vec();
    let output = merged(&mut model, &inputs);
    let planned = Swap::new(inputs, output.clone());
    (3..30).for_each(|nth| model.append(hourly(nth)));
    let plan = swap(&mut model, &planned).expect("the inputs are there, in a rolled manifest by now");
    assert_eq!((plan.root.tiered_end, plan.root.rewritten_end), (Offset(30_000_000), Offset(2_000_000)));
    assert_eq!(ManifestRoot::decode(&plan.root.encode()), Ok(plan.root));
    model.advance(Offset(1_000_000));
    assert_eq!(swap(&mut model, &planned), Err(SwapConflict), "one of the inputs has left the log");
}

#[test]
#[should_panic(expected = "rule C2")]
fn swap_above_stable_end_is_a_mistake() {
    let mut model = Model::new(TINY);
    let mut entry = model.entry(hourly(0));
    entry.open = Some(OpenTxns { count: 1, first: Offset(400) });
    let root = model.view.root().append(entry.clone(), LeaderEpoch(1));
    model.commit(root);
    model.all.push(entry.clone());
    let output = SegmentEntry { open: entry.open, ..merged(&mut model, &[entry.clone()]) };
    let _ = swap(&mut model, &Swap::new(vec![entry], output));
}

#[test]
#[should_panic(expected = "rule C3")]
fn swap_that_covers_less_than_its_inputs_is_a_mistake() {
    let mut model = Model::new(TINY);
    (0..2).for_each(|nth| model.append(hourly(nth)));
    let inputs = model.all.clone();
    let output = SegmentEntry { end: Offset(1_999_999), ..merged(&mut model, &inputs) };
    let _ = Swap::new(inputs, output);
}

/// How far compaction came is read back, and what was never compacted is written as it always was.
#[test]
fn a_root_says_how_far_it_is_compacted() {
    let mut model = Model::new(TINY);
    model.append(hourly(0));
    let never = model.view.root().encode();
    for purge_at in [None, Some(TimestampMs(0)), Some(TimestampMs(i64::MAX - 1))] {
        let compacted = Compacted { end: Offset(1_000_000), purge_at };
        let root = model.view.root().after_pass(compacted, model.epoch);
        let encoded = root.encode();
        assert_eq!((never[4], encoded[4]), (1, 2), "versions");
        assert_eq!(ManifestRoot::decode(&encoded).map(|root| root.compacted), Ok(compacted));
        assert_eq!(root.advance_log_start(Offset(7), model.epoch).compacted, compacted);
    }
}
