//! Swapping segments for others that cover the same offsets: compaction and the merging of small segments (rule C3).
//!
//! Rolled manifests are immutable, so a swap inside one makes a new one, whose reference is then swapped in the one above.

use super::entry::{Cover, RolledRef, SegmentEntry};
use super::node::{ManifestNode, NodeItems};
use super::{ManifestRoot, RolledObject};
use crate::ids::{LeaderEpoch, Offset, PartitionId};
use crate::object_key::ObjectKey;

/// The inputs are not all there any more, unchanged and next to each other: read the manifest again (rule C3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the segments to be replaced are not in the manifest as they were")]
pub struct SwapConflict;

impl ManifestRoot {
    /// The root with `outputs` in place of `inputs`, both in the root itself, committed by the leader of `epoch`.
    ///
    /// Panics unless the outputs cover exactly what the inputs cover, below `stable_end` (rules C2, C3), and keep the chained hash
    /// at their end (S6).
    /// # Errors
    /// `SwapConflict`.
    pub fn swap_entries(
        &self,
        inputs: &[SegmentEntry],
        outputs: Vec<SegmentEntry>,
        epoch: LeaderEpoch,
    ) -> Result<ManifestRoot, SwapConflict> {
        let mut root = self.next(epoch);
        check_outputs(self.partition, inputs, &outputs);
        replace(&mut root.entries, inputs, outputs)?;
        assert!(inputs.iter().all(|input| input.end <= self.stable_end), "rule C2: a swap stays below stable_end");
        Ok(root)
    }

    /// The root with a reference replaced by one to a manifest that covers the same, committed by the leader of `epoch`.
    ///
    /// # Errors
    /// `SwapConflict`.
    pub fn swap_rolled(
        &self,
        input: &RolledRef,
        output: RolledRef,
        epoch: LeaderEpoch,
    ) -> Result<ManifestRoot, SwapConflict> {
        assert_eq!(output.level, input.level, "a manifest is replaced by one of its level");
        let mut root = self.next(epoch);
        replace(&mut root.rolled, std::slice::from_ref(input), vec![output])?;
        Ok(root)
    }
}

impl ManifestNode {
    /// This manifest with `outputs` in place of `inputs`.
    ///
    /// Panics unless the outputs cover exactly what the inputs cover (rule C3), and keep the chained hash at their end (S6).
    /// # Errors
    /// `SwapConflict`; also when this manifest does not list segments.
    pub fn swap_entries(
        &self,
        inputs: &[SegmentEntry],
        outputs: Vec<SegmentEntry>,
    ) -> Result<ManifestNode, SwapConflict> {
        let NodeItems::Segments(entries) = &self.items else { return Err(SwapConflict) };
        check_outputs(self.partition, inputs, &outputs);
        let mut entries = entries.clone();
        replace(&mut entries, inputs, outputs)?;
        Ok(ManifestNode::new(self.partition, NodeItems::Segments(entries)))
    }

    /// This manifest with one reference replaced.
    ///
    /// # Errors
    /// `SwapConflict`; also when this manifest does not list manifests.
    pub fn swap_rolled(&self, input: &RolledRef, output: RolledRef) -> Result<ManifestNode, SwapConflict> {
        let NodeItems::Manifests(rolled) = &self.items else { return Err(SwapConflict) };
        let mut rolled = rolled.clone();
        replace(&mut rolled, std::slice::from_ref(input), vec![output])?;
        Ok(ManifestNode::new(self.partition, NodeItems::Manifests(rolled)))
    }

    /// The object to upload under a new name (rule T2), and the reference to it.
    #[must_use]
    pub fn to_object(&self, object: ObjectKey) -> (RolledObject, RolledRef) {
        let bytes = self.encode();
        let reference = self.reference(object, &bytes);
        (RolledObject { object, bytes, crc: reference.crc }, reference)
    }
}

/// What is said of the log at the end of `inputs` stays true of `outputs` (rule S6), which stand in objects of the partition.
fn check_outputs(partition: PartitionId, inputs: &[SegmentEntry], outputs: &[SegmentEntry]) {
    assert!(outputs.iter().all(|output| output.may_stand_in(partition)), "another partition's object");
    let hash_at_end = |entries: &[SegmentEntry]| entries.last().map(|last| last.prefix_hash);
    assert_eq!(hash_at_end(inputs), hash_at_end(outputs), "S6: a swap keeps the chained hash at its end");
}

/// Puts `outputs` where `inputs` stand in `items`.
fn replace<T: Cover + PartialEq>(items: &mut Vec<T>, inputs: &[T], outputs: Vec<T>) -> Result<(), SwapConflict> {
    assert!(!inputs.is_empty(), "a swap has inputs");
    let base = inputs[0].span().base;
    let start = items.partition_point(|item| item.span().base < base);
    let there = items.get(start..start + inputs.len());
    if there != Some(inputs) {
        return Err(SwapConflict);
    }
    assert_eq!(range(inputs), range(&outputs), "rule C3: outputs cover exactly what their inputs cover");
    items.splice(start..start + inputs.len(), outputs);
    Ok(())
}

/// `[base, end)` of items that adjoin; `None` if they do not.
fn range(items: &[impl Cover]) -> Option<(Offset, Offset)> {
    let (first, last) = (items.first()?.span(), items.last()?.span());
    let adjoin = items.windows(2).all(|pair| pair[0].span().end == pair[1].span().base);
    adjoin.then_some((first.base, last.end))
}
