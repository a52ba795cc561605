//! Swapping adjoining segments for one that covers the same offsets: compaction and the merging of small segments (rule C3).
//!
//! Rolled manifests are immutable: those that name a segment that goes are written anew, from the leaf up, and the root names the new ones.
//! So a group of segments may reach over several of them, and what is left of a log is merged however often it was rolled.

use super::entry::{Cover, RolledRef, SegmentEntry};
use super::node::{ManifestNode, NodeItems};
use super::{Lookup, ManifestRoot, ManifestView, RolledObject};
use crate::ids::{LeaderEpoch, Offset};
use crate::object_key::{GcEpoch, ObjectKey, PartitionObject};
use std::ops::Range;

/// The inputs are not all there any more, unchanged and next to each other: read the manifest again (rule C3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the segments to be replaced are not in the manifest as they were")]
pub struct SwapConflict;

/// Adjoining segments, and the one that is to stand in their place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swap {
    inputs: Vec<SegmentEntry>,
    output: SegmentEntry,
}

/// A root with the swap made, to be committed in place of the one it was made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwapPlan {
    /// The root: the next `seq`.
    pub root: ManifestRoot,
    /// What has to be in the bucket before the commit, in any order.
    pub objects: Vec<RolledObject>,
    /// Objects that the new root no longer names, for the drop log (rule G2); not those of bundles, which may hold others' segments.
    pub dropped: Vec<ObjectKey>,
}

impl Swap {
    /// Panics unless the inputs adjoin, and the output covers exactly what they do (rule C3), has no record that they have not, keeps the
    /// chained hash at their end (rule S6), and knows the same transactions to be open there (rule T7).
    #[must_use]
    pub fn new(inputs: Vec<SegmentEntry>, output: SegmentEntry) -> Swap {
        let (Some(first), Some(last)) = (inputs.first(), inputs.last()) else { panic!("a swap has inputs") };
        let adjoin = inputs.windows(2).all(|pair| pair[0].end == pair[1].base);
        assert!(adjoin, "rule C3: the inputs of a swap adjoin");
        let (covered, covers) = ((first.base, last.end), (output.base, output.end));
        assert_eq!(covers, covered, "rule C3: an output covers exactly what its inputs cover");
        let records = inputs.iter().try_fold(0u64, |sum, input| sum.checked_add(input.record_count));
        assert!(records.is_none_or(|records| output.record_count <= records), "rule C3: a swap adds no record");
        assert_eq!(output.prefix_hash, last.prefix_hash, "S6: a swap keeps the chained hash at its end");
        assert_eq!(output.open, last.open, "rule T7: a swap opens and ends no transaction");
        Swap { inputs, output }
    }

    /// The segments that go.
    #[must_use]
    pub fn inputs(&self) -> &[SegmentEntry] {
        &self.inputs
    }

    /// The segment that comes.
    #[must_use]
    pub fn output(&self) -> &SegmentEntry {
        &self.output
    }

    fn covers(&self) -> Range<Offset> {
        self.output.base..self.output.end
    }

    fn touches(&self, item: &impl Cover) -> bool {
        let span = item.span();
        span.end > self.output.base && span.base < self.output.end
    }

    /// `entries` with the output in place of the first of the inputs among them, if it stands nowhere yet, and without the others.
    fn spliced(&self, entries: &[SegmentEntry], placed: &mut bool) -> Vec<SegmentEntry> {
        let mut spliced = Vec::with_capacity(entries.len());
        for entry in entries {
            if !self.touches(entry) {
                spliced.push(entry.clone());
            } else if !std::mem::replace(placed, true) {
                spliced.push(self.output.clone());
            }
        }
        spliced
    }
}

impl ManifestView {
    /// The root with the swap made, committed by the leader of `epoch`; `SwapConflict` when an input is not there any more as it was, or
    /// lies below the log start. `gc_epoch` is the current one; `random` gives 128 new random bits at each call (rule T2).
    ///
    /// Panics unless the output may stand in the partition and ends at or below `stable_end` (rule C2).
    pub fn swap(
        &self,
        swap: &Swap,
        epoch: LeaderEpoch,
        gc_epoch: GcEpoch,
        mut random: impl FnMut() -> u128,
    ) -> Lookup<Result<SwapPlan, SwapConflict>> {
        let root = self.root();
        assert!(swap.output.may_stand_in(root.partition), "another partition's object");
        assert!(swap.output.end <= root.stable_end, "rule C2: a swap stays below stable_end");
        let there = match self.segments(swap.covers()) {
            Lookup::Found(there) => there,
            Lookup::Need(rolled) => return Lookup::Need(rolled),
        };
        if there != swap.inputs || swap.inputs[0].end <= root.log_start {
            return Lookup::Found(Err(SwapConflict));
        }
        // Rule P5: whatever a swap reaches in the root, the newest segment above all, is named in the root afterwards.
        let in_root = root.entries.iter().any(|entry| swap.touches(entry));
        let mut rewriting = Rewriting { view: self, swap, objects: Vec::new(), dropped: Vec::new(), placed: in_root };
        let mut name = |base| PartitionObject { partition: root.partition, gc_epoch, epoch, base, random: random() };
        let mut next = root.next(epoch);
        next.rewritten_end = root.rewritten_end.max(swap.output.end);
        next.rolled = rewriting.rolled(&root.rolled, &mut name);
        next.entries = swap.spliced(&root.entries, &mut !in_root);
        let Rewriting { objects, mut dropped, .. } = rewriting;
        next.check().unwrap_or_else(|reason| panic!("swap built wrong: {reason}"));
        dropped.extend(swap.inputs.iter().map(|input| input.object).filter(ObjectKey::is_alone));
        Lookup::Found(Ok(SwapPlan { root: next, objects, dropped }))
    }
}

/// The rolled manifests of one swap, on the way down and up again.
struct Rewriting<'a> {
    view: &'a ManifestView,
    swap: &'a Swap,
    objects: Vec<RolledObject>,
    dropped: Vec<ObjectKey>,
    /// The output has its place, or has it in the root.
    placed: bool,
}

impl Rewriting<'_> {
    /// The references in place of `rolled`; those of manifests that name no input stay.
    fn rolled(&mut self, rolled: &[RolledRef], name: &mut impl FnMut(Offset) -> PartitionObject) -> Vec<RolledRef> {
        let mut references = Vec::with_capacity(rolled.len());
        for reference in rolled {
            if !self.swap.touches(reference) {
                references.push(reference.clone());
                continue;
            }
            self.dropped.push(reference.object);
            let node = self.view.node(reference).expect("the inputs were found by way of it");
            let items = match node.items() {
                NodeItems::Segments(entries) => NodeItems::Segments(self.swap.spliced(entries, &mut self.placed)),
                NodeItems::Manifests(below) => NodeItems::Manifests(self.rolled(below, name)),
            };
            if !items.is_empty() {
                references.push(self.put(ManifestNode::new(node.partition(), items), name));
            }
        }
        references
    }

    fn put(&mut self, node: ManifestNode, name: &mut impl FnMut(Offset) -> PartitionObject) -> RolledRef {
        let base = node.span().expect("checked when it was made").base;
        let (object, bytes) = (ObjectKey::Manifest(name(base)), node.encode());
        let reference = node.reference(object, &bytes);
        self.objects.push(RolledObject { object, bytes, crc: reference.crc });
        reference
    }
}
