//! Reads through manifest, index and data, as a broker does them, against the plain list of batches.

use super::*;
use crate::ids::{BrokerId, Incarnation, LeaderEpoch};
use crate::manifest::ManifestRoot;
use crate::object_key::{BundleObject, GcEpoch, ObjectKey, PartitionObject};
use crate::segment::sample::{Built, PARTITION, Sample, build, bytes_of, samples};
use crate::segment::{BuiltObject, BundleWriter, Density};
use proptest::prelude::*;
use std::cell::Cell;
use std::collections::BTreeMap;

/// A partition whose log is in the bucket, and the list of its batches.
struct World {
    view: ManifestView,
    bucket: BTreeMap<ObjectKey, Bytes>,
    batches: Vec<Batch>,
    indexes: BTreeMap<ObjectKey, Arc<SegmentIndex>>,
    gets: Cell<u32>,
}

/// How a segment is stored.
#[derive(Clone, Copy, Debug)]
enum Store {
    Alone,
    /// In a bundle, behind another partition's segment.
    Bundled,
}

impl World {
    fn new(segments: Vec<(Vec<Sample>, Density, Store)>) -> World {
        let mut root = ManifestRoot::new(PARTITION);
        let (mut bucket, mut batches) = (BTreeMap::new(), Vec::new());
        for (nth, (samples, density, store)) in segments.into_iter().enumerate() {
            // Epochs rise from segment to segment, or stay: `build` raises them inside.
            let Built { object, segment, batches: placed, .. } =
                build(&samples, root.tiered_end, nth as u32 * 30, density);
            batches.extend(placed.into_iter().map(|(batch, _)| batch));
            let (gc_epoch, random) = (GcEpoch(1), nth as u128);
            let epoch = segment.meta.epoch;
            let (key, object) = match store {
                Store::Alone => {
                    let base = root.tiered_end;
                    let name = PartitionObject { partition: PARTITION, gc_epoch, epoch, base, random };
                    (ObjectKey::Segment(name), object)
                }
                Store::Bundled => {
                    let mut bundle = BundleWriter::new();
                    bundle.push(build(&[Sample::of_times(&[1])], Offset(0), 0, Density::Dense).segment);
                    bundle.push(segment);
                    let (broker, incarnation) = (BrokerId(1), Incarnation(2));
                    (ObjectKey::Bundle(BundleObject { broker, incarnation, gc_epoch, random }), bundle.finish())
                }
            };
            let BuiltObject { parts, length, mut segments, .. } = object;
            bucket.insert(key, bytes_of(&parts));
            let mut entry = SegmentEntry::new(key, length, segments.pop().expect("the last is ours"));
            // No transactions here: the samples' are there for the format's sake.
            entry.open = None;
            root = root.append(entry, epoch);
            if let Some(plan) = root.roll(gc_epoch, || u128::MAX - nth as u128) {
                bucket.extend(plan.objects.into_iter().map(|object| (object.object, object.bytes)));
                root = plan.root;
            }
        }
        World { view: ManifestView::new(root), bucket, batches, indexes: BTreeMap::new(), gets: Cell::new(0) }
    }

    fn get(&self, object: ObjectKey, bytes: Range<u64>) -> Bytes {
        self.gets.set(self.gets.get() + 1);
        self.bucket[&object].slice(bytes.start as usize..bytes.end as usize)
    }

    /// One fetch, from a plan to batches; `None` when the plan says there is nothing.
    fn fetch(&mut self, bounds: ReadBounds) -> Option<Vec<Batch>> {
        loop {
            let plan = plan_read(&self.view, bounds, |entry| self.indexes.get(&entry.object).cloned());
            match plan {
                ReadPlan::BelowStart { .. } => panic!("the log starts at 0"),
                ReadPlan::Nothing => return None,
                ReadPlan::NeedManifest(rolled) => {
                    let bytes = self.get(rolled.object, 0..u64::from(rolled.length));
                    self.view.load(&rolled, &bytes).expect("sound");
                }
                ReadPlan::NeedIndex(entry) => {
                    let bytes = self.get(entry.object, entry.index_bytes());
                    let index = entry.open_index(PARTITION, &bytes).expect("sound");
                    self.indexes.insert(entry.object, Arc::new(index));
                }
                ReadPlan::Fetch { parts, .. } => {
                    check_parts(&parts, bounds);
                    let mut answer = Vec::new();
                    for part in parts {
                        let data = self.get(part.entry.object, part.bytes_in_object());
                        bounds.take(part.batches(&[data]).expect("sound"), &mut answer);
                    }
                    return Some(answer);
                }
            }
        }
    }

    /// What a reader of the whole list would answer.
    fn expected(&self, bounds: ReadBounds) -> Vec<Batch> {
        let mut answer = Vec::new();
        bounds.take(self.batches.iter().cloned(), &mut answer);
        answer
    }
}

/// No more is fetched than the limits allow: over `bytes_max` only for one chunk, and nothing that begins past `until`.
fn check_parts(parts: &[PlannedRead], bounds: ReadBounds) {
    let chunks = || parts.iter().flat_map(|part| &part.index.chunks()[part.span.chunks.clone()]);
    let size: u64 = chunks().map(|chunk| chunk.size).sum();
    assert!(chunks().count() == 1 || size <= bounds.bytes_max, "{size} bytes of {}", bounds.bytes_max);
    assert!(chunks().all(|chunk| chunk.base < bounds.until), "a chunk past {}", bounds.until);
}

fn worlds() -> impl Strategy<Value = World> {
    let segment = any::<bool>().prop_flat_map(|dense| {
        let density = if dense { Density::Dense } else { Density::Sparse };
        let store = prop_oneof![Just(Store::Alone), Just(Store::Bundled)];
        (samples(dense), Just(density), store)
    });
    prop::collection::vec(segment, 1..5).prop_map(World::new)
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.batches.iter().map(|batch| (batch.base_offset(), batch.size()))).finish()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Rule F4, cases F1 and F2: from any offset, below any bound, within any limit, a fetch gives what the list gives.
    #[test]
    fn fetch_gives_the_batches_a_scan_gives(mut world in worlds(), bytes_max in 0u64..6_000, bound: prop::sample::Index) {
        // Bounds lie between batches, as a high watermark does.
        let mut bounds: Vec<Offset> = world.batches.iter().map(Batch::end_offset).collect();
        bounds.push(Offset(u64::MAX));
        let until = *bound.get(&bounds);
        let offsets: Vec<Offset> = world.batches.iter()
            .flat_map(|batch| [batch.base_offset(), Offset(batch.end_offset().0 - 1), batch.end_offset()]).collect();
        // Twice: the second time all indexes are at hand, so that plans go on from segment to segment.
        for from in [&offsets[..], &offsets[..]].concat() {
            let bounds = ReadBounds { from, until, bytes_max };
            let expected = world.expected(bounds);
            let found = world.fetch(bounds).unwrap_or_default();
            prop_assert_eq!(found.is_empty(), expected.is_empty(), "from {:?}", from);
            prop_assert_eq!(&found[..], &expected[..found.len()], "from {:?}", from);
        }
    }

    /// S19, case T11: a reader that goes on where the answer ended meets every batch once, and then the end.
    #[test]
    fn replay_meets_every_batch_once(mut world in worlds(), bytes_max in 0u64..6_000) {
        let mut replayed = Vec::new();
        let mut from = Offset(0);
        while let Some(batches) = world.fetch(ReadBounds { from, until: Offset(u64::MAX), bytes_max }) {
            prop_assert!(!batches.is_empty(), "an empty answer before the end, at {:?}", from);
            from = batches.last().expect("not empty").end_offset();
            replayed.extend(batches);
        }
        prop_assert_eq!(replayed, world.batches);
    }
}

fn dense(segments: usize, batches: usize, store: Store) -> World {
    let samples: Vec<Sample> = (0..batches).map(|nth| Sample::of_times(&[nth as i64, 5])).collect();
    World::new(vec![(samples, Density::Dense, store); segments])
}

/// A cold read of any batch costs at most two GETs: one of the index, one of the data.
#[test]
fn cold_read_takes_two_gets() {
    for store in [Store::Alone, Store::Bundled] {
        let mut world = dense(4, 12, store);
        for from in (0..world.view.root().tiered_end.0).map(Offset) {
            world.indexes.clear();
            world.gets.set(0);
            let found = world.fetch(ReadBounds { from, until: Offset(u64::MAX), bytes_max: 300 }).expect("something");
            assert_eq!(found.first().map(|batch| batch.base_offset().0), Some(from.0 / 2 * 2));
            assert_eq!(world.gets.get(), 2, "from {from}");
        }
    }
}

/// The first part of a log of many segments is found through rolled manifests.
#[test]
fn old_offsets_are_found_through_rolled_manifests() {
    let mut world = dense(120, 1, Store::Alone);
    assert!(!world.view.root().rolled().is_empty());
    for from in (0..240).map(Offset) {
        let bounds = ReadBounds { from, until: Offset(u64::MAX), bytes_max: 1 };
        let found = world.fetch(bounds).expect("something");
        assert_eq!(found, world.expected(bounds));
    }
}

/// Segments whose index is at hand are read together; the next one that lacks it is named for reading ahead.
#[test]
fn plan_goes_on_over_segments_whose_index_is_known() {
    // One offset each: going on one too far would pass over a segment.
    let mut world = World::new(vec![(vec![Sample::of_times(&[1])], Density::Dense, Store::Alone); 3]);
    let bounds = ReadBounds { from: Offset(0), until: Offset(u64::MAX), bytes_max: 1 << 20 };
    let entries = world.view.root().entries().to_vec();
    for (known, entry) in entries.iter().enumerate() {
        let index_of = |entry: &SegmentEntry| world.indexes.get(&entry.object).cloned();
        match plan_read(&world.view, bounds, index_of) {
            ReadPlan::NeedIndex(needed) => assert_eq!((known, &needed), (0, entry)),
            ReadPlan::Fetch { parts, next } => assert_eq!((parts.len(), next.as_ref()), (known, Some(entry))),
            other => panic!("{other:?}"),
        }
        let index = entry.open_index(PARTITION, &world.bucket[&entry.object]).expect("sound");
        world.indexes.insert(entry.object, Arc::new(index));
    }
    let index_of = |entry: &SegmentEntry| world.indexes.get(&entry.object).cloned();
    assert!(
        matches!(plan_read(&world.view, bounds, index_of), ReadPlan::Fetch { parts, next: None } if parts.len() == 3)
    );
}

/// Rule C1: what lies below the log's start is not served, though it is still in the bucket.
#[test]
fn read_below_the_log_start_is_told_so() {
    let world = dense(2, 2, Store::Alone);
    let root = world.view.root().advance_log_start(Offset(3), LeaderEpoch(60));
    let view = ManifestView::new(root);
    let bounds = |from| ReadBounds { from: Offset(from), until: Offset(u64::MAX), bytes_max: 1 };
    let below = plan_read(&view, bounds(2), |_| None);
    assert!(matches!(below, ReadPlan::BelowStart { log_start: Offset(3) }));
    assert!(matches!(plan_read(&view, bounds(3), |_| None), ReadPlan::NeedIndex(entry) if entry.base == Offset(0)));
    assert!(matches!(plan_read(&view, bounds(8), |_| None), ReadPlan::Nothing));
}

/// Rule S11: a sound segment that is not the one committed is not read.
#[test]
fn index_of_another_segment_is_refused() {
    let world = dense(2, 2, Store::Alone);
    let entries = world.view.root().entries();
    let front = |entry: &SegmentEntry| world.bucket[&entry.object].slice(..entry.index_length as usize);
    assert!(entries[0].open_index(PARTITION, &front(&entries[0])).is_ok());
    let other = entries[0].open_index(PARTITION, &front(&entries[1]));
    assert_eq!(other, Err(SegmentError::OtherSegment { what: "offsets" }));
    let mut stranger = PARTITION;
    stranger.index += 1;
    let other = entries[0].open_index(stranger, &front(&entries[0]));
    assert_eq!(other, Err(SegmentError::OtherSegment { what: "partition" }));
    let rewritten = SegmentEntry { index_crc: 0, ..entries[0].clone() };
    let other = rewritten.open_index(PARTITION, &front(&entries[0]));
    assert_eq!(other, Err(SegmentError::OtherSegment { what: "checksum of the index" }));
}
