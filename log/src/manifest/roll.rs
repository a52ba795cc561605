//! Rolling: moving the root's older entries into immutable manifest objects, so that the root stays small.
//!
//! A roll needs nothing but the root: it never reads the bucket. What it names it also hands out, to be uploaded first (rule T6).

use super::ManifestRoot;
use super::codec::entry_sizes;
use super::entry::RolledRef;
use super::node::{LEVEL_MAX, ManifestNode, NodeItems};
use crate::object_key::{GcEpoch, ObjectKey, PartitionObject};
use bytes::Bytes;

/// Encoded size of the root's own entries above which they are rolled, in bytes. Safety rules, section 2.1.
pub const INLINE_BYTES_MAX: usize = 4096;

/// References of one level the root keeps; so many become one reference of the next level. With about 40 segments in a manifest
/// of level 1, three levels hold ten years of one segment every ten minutes.
pub const ROLLED_FANOUT: usize = 20;

/// When to roll, and how much.
#[derive(Clone, Copy, Debug)]
pub(super) struct RollLimits {
    /// As `INLINE_BYTES_MAX`.
    pub(super) inline_bytes_max: usize,
    /// Encoded size of the entries that stay in the root, in bytes: the newest, which readers and merges ask for most.
    pub(super) inline_bytes_kept: usize,
    /// As `ROLLED_FANOUT`.
    pub(super) fanout: usize,
}

const LIMITS: RollLimits =
    RollLimits { inline_bytes_max: INLINE_BYTES_MAX, inline_bytes_kept: INLINE_BYTES_MAX / 4, fanout: ROLLED_FANOUT };

/// A manifest object to upload before the root that names it is committed (rules T3, T6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolledObject {
    /// Its name; new with each plan, so that a retry never reuses it (rule T2).
    pub object: ObjectKey,
    /// Its bytes.
    pub bytes: Bytes,
    /// CRC-32C of its bytes.
    pub crc: u32,
}

/// A root with its older entries rolled, to be committed in place of the one it was made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RollPlan {
    /// The root: same `seq` and offsets, other references.
    pub root: ManifestRoot,
    /// What has to be in the bucket before the commit, in any order.
    pub objects: Vec<RolledObject>,
}

impl ManifestRoot {
    /// Rolls the older entries when they have outgrown `INLINE_BYTES_MAX`; `None` while they have not.
    ///
    /// A leader that cannot upload the objects may commit the root as it was and roll later. `gc_epoch` is the current one;
    /// `random` gives 128 new random bits at each call.
    #[must_use]
    pub fn roll(&self, gc_epoch: GcEpoch, random: impl FnMut() -> u128) -> Option<RollPlan> {
        self.roll_within(LIMITS, gc_epoch, random)
    }

    pub(super) fn roll_within(
        &self,
        limits: RollLimits,
        gc_epoch: GcEpoch,
        mut random: impl FnMut() -> u128,
    ) -> Option<RollPlan> {
        let rolled = self.entries.len() - self.kept_inline(limits);
        if rolled == 0 {
            return None;
        }
        let mut root = self.clone();
        let older = root.entries.drain(..rolled).collect();
        let mut name =
            |base| PartitionObject { partition: self.partition, gc_epoch, epoch: self.epoch, base, random: random() };
        let mut objects = Vec::new();
        let mut put = |node: ManifestNode| {
            let base = node.span().expect("checked when it was made").base;
            let (object, bytes) = (ObjectKey::Manifest(name(base)), node.encode());
            let reference = node.reference(object, &bytes);
            objects.push(RolledObject { object, bytes, crc: reference.crc });
            reference
        };
        root.rolled.push(put(ManifestNode::new(self.partition, NodeItems::Segments(older))));
        while let Some(full) = full_level(&root.rolled, limits.fanout) {
            let items = root.rolled.split_off(full);
            root.rolled.push(put(ManifestNode::new(self.partition, NodeItems::Manifests(items))));
        }
        Some(RollPlan { root, objects })
    }

    /// How many of the newest entries stay in the root: all, or about `inline_bytes_kept` of them once they have outgrown it.
    fn kept_inline(&self, limits: RollLimits) -> usize {
        let sizes = entry_sizes(&self.entries);
        if sizes.iter().sum::<usize>() <= limits.inline_bytes_max {
            return self.entries.len();
        }
        let mut left = limits.inline_bytes_kept;
        let fits = |size: &&usize| match left.checked_sub(**size) {
            Some(less) => {
                left = less;
                true
            }
            None => false,
        };
        // The newest entry always stays: it is what `newest` has to find without a read (rule P5).
        sizes.iter().rev().take_while(fits).count().max(1)
    }
}

/// Where the references of the lowest level begin, if there are enough of them for one of the next level.
fn full_level(rolled: &[RolledRef], fanout: usize) -> Option<usize> {
    let level = rolled.last()?.level;
    let first = rolled.partition_point(|rolled| rolled.level > level);
    (rolled.len() - first >= fanout && level < LEVEL_MAX).then_some(first)
}
