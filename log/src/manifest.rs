//! The manifest: which objects hold a partition's log below its tiered offset, and where in them.
//!
//! Pure: what has to be read is named, what has to be written is handed out as bytes. The newest entries stand in the root (the
//! value of the tiering key); older ones are rolled into immutable objects in the bucket, and references to those into objects
//! of a higher level, like a B-tree that grows at one end: the root stays small for ever, and a roll reads nothing.

mod codec;
mod entry;
mod node;
mod roll;
mod swap;
mod view;

pub use entry::{OpenTxns, RolledRef, SegmentEntry, Totals};
pub use node::{ManifestNode, NodeItems};
pub use roll::{INLINE_BYTES_MAX, ROLLED_FANOUT, RollPlan, RolledObject};
pub use swap::{Swap, SwapConflict, SwapPlan};
pub use view::{Dropped, Lookup, ManifestView, Retention};

use crate::ids::{LeaderEpoch, Offset, PartitionId, TimestampMs};
use entry::Cover;

/// Largest encoded root, in bytes. Rule Z5 keeps values of the metadata store below 64 KiB; an ordinary root stays below 8 KiB,
/// so that 40 of them fit one transaction (rule K8).
pub const ROOT_BYTES_MAX: usize = 64 << 10;

const _: () = assert!(INLINE_BYTES_MAX * 2 * 40 <= 512 << 10, "rule K8: 40 roots fit one transaction");

/// The value of a partition's tiering key. Each change makes a new root with the next `seq`, committed by compare-and-swap (rule T5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestRoot {
    /// The partition.
    pub partition: PartitionId,
    /// Counts the changes.
    pub seq: u64,
    /// First offset a reader may see (rule C1). May lie beyond `tiered_end`.
    pub log_start: Offset,
    /// Offset after the last one in object storage (rule T5).
    pub tiered_end: Offset,
    /// No transaction is open below it (rule T7). At most `tiered_end`.
    pub stable_end: Offset,
    /// Leader epoch of whoever committed last.
    pub epoch: LeaderEpoch,
    /// How far the log is compacted.
    pub compacted: Compacted,
    /// Where the last of the segments ends that took the place of others. Below it the log is what they hold: what is left of it in a WAL is
    /// what it was, of which the segments no longer tell what was aborted (rules X7, F5). At most `stable_end`.
    pub rewritten_end: Offset,
    rolled: Vec<RolledRef>,
    entries: Vec<SegmentEntry>,
}

/// How far passes of compaction have come (rule C2). Nothing of it is what a reader relies on: a pass that is done again finds nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    /// Below it, no key has two records. At most `stable_end`.
    pub end: Offset,
    /// When the last of the tombstones and markers below `end` may go; `None` if there are none.
    pub purge_at: Option<TimestampMs>,
}

/// Why bytes are not the manifest they should be (rules S11, S13).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// The bytes end too early.
    #[error("manifest is cut")]
    Cut,
    /// The checksum does not match.
    #[error("manifest is damaged: its checksum does not match")]
    Corrupt,
    /// The bytes contradict themselves or the format.
    #[error("manifest is malformed: {0}")]
    Malformed(&'static str),
    /// Written by a newer version of this software.
    #[error("manifest format {found} is newer than {known}, the newest known here; upgrade this broker")]
    NewerVersion {
        /// Version of the bytes.
        found: u8,
        /// Newest version that can be read.
        known: u8,
    },
    /// Sound bytes, but of another manifest than the reference names.
    #[error("the bytes are of another manifest: `{0}` differs from the reference")]
    OtherManifest(&'static str),
}

impl ManifestRoot {
    /// The root of a new partition.
    #[must_use]
    pub fn new(partition: PartitionId) -> ManifestRoot {
        ManifestRoot {
            partition,
            seq: 0,
            log_start: Offset(0),
            tiered_end: Offset(0),
            stable_end: Offset(0),
            epoch: LeaderEpoch(0),
            compacted: Compacted::default(),
            rewritten_end: Offset(0),
            rolled: Vec::new(),
            entries: Vec::new(),
        }
    }

    /// The newest segments, in order of offset.
    #[must_use]
    pub fn entries(&self) -> &[SegmentEntry] {
        &self.entries
    }

    /// References to older segments, in order of offset; they end where `entries` begins. Levels do not rise from old to new.
    #[must_use]
    pub fn rolled(&self) -> &[RolledRef] {
        &self.rolled
    }

    /// The segment that ends at `tiered_end`: it carries the producer snapshot there, so it stays referenced even when
    /// `log_start` has passed it (rule P5). `None` before the first upload.
    #[must_use]
    pub fn newest(&self) -> Option<&SegmentEntry> {
        self.entries.last()
    }

    /// Offset where the oldest referenced segment begins; `tiered_end` without any.
    #[must_use]
    pub fn base(&self) -> Offset {
        let oldest = self.rolled.first().map(Cover::span).or_else(|| self.entries.first().map(Cover::span));
        oldest.map_or(self.tiered_end, |oldest| oldest.base)
    }

    /// Bytes of the segments it references.
    #[must_use]
    pub fn size(&self) -> u64 {
        let rolled = self.rolled.iter().map(|rolled| rolled.totals.size);
        rolled.chain(self.entries.iter().map(|entry| entry.length)).sum()
    }

    /// The root with one more segment at its end, committed by the leader of `epoch`.
    ///
    /// Panics unless the segment begins at `tiered_end` (rules T1, S8), the epoch does not go back, and no transaction open at
    /// its end began below `stable_end`.
    #[must_use]
    pub fn append(&self, entry: SegmentEntry, epoch: LeaderEpoch) -> ManifestRoot {
        assert_eq!(entry.base, self.tiered_end, "S8: tiered ranges are contiguous");
        assert!(entry.end > entry.base, "S8: tiered_end only grows");
        assert!(entry.may_stand_in(self.partition), "`{}` is not an object of {}", entry.object, self.partition);
        let mut root = self.next(epoch);
        root.tiered_end = entry.end;
        root.stable_end = entry.open.map_or(entry.end, |open| open.first.min(entry.end));
        assert!(
            root.stable_end >= self.stable_end,
            "rule T7: a transaction open at {} began below stable_end",
            entry.end
        );
        root.entries.push(entry);
        root
    }

    /// The root with the log starting at `to` (rule C1), committed by the leader of `epoch`. References wholly below go, but
    /// for `newest`; what `ManifestView::dropped_by` names belongs into the drop log of the same transaction (rule G2), and says how far one
    /// transaction may go.
    ///
    /// Panics if `to` is below `log_start`: it never goes back.
    #[must_use]
    pub fn advance_log_start(&self, to: Offset, epoch: LeaderEpoch) -> ManifestRoot {
        assert!(to >= self.log_start, "rule C1: log_start never goes back");
        let mut root = self.next(epoch);
        root.log_start = to;
        root.rolled.retain(|rolled| rolled.end > to);
        let newest = root.tiered_end;
        root.entries.retain(|entry| entry.end > to || entry.end == newest);
        root
    }

    /// The root after a pass of compaction, committed by the leader of `epoch`.
    ///
    /// Panics if the pass has come further than `stable_end` (rule C2), or less far than one before.
    #[must_use]
    pub fn after_pass(&self, compacted: Compacted, epoch: LeaderEpoch) -> ManifestRoot {
        assert!(compacted.end >= self.compacted.end, "passes only come further");
        assert!(compacted.end <= self.stable_end, "rule C2: compaction stays below stable_end");
        ManifestRoot { compacted, ..self.next(epoch) }
    }

    /// A copy to change: the next `seq`, by the leader of `epoch`.
    fn next(&self, epoch: LeaderEpoch) -> ManifestRoot {
        assert!(epoch >= self.epoch, "a manifest is committed by the leader of epoch {}, not {epoch}", self.epoch);
        ManifestRoot { seq: self.seq + 1, epoch, ..self.clone() }
    }

    /// What makes the parts contradict each other, if anything does.
    fn check(&self) -> Result<(), &'static str> {
        let spans = || self.rolled.iter().map(Cover::span).chain(self.entries.iter().map(Cover::span));
        let mut ends = spans().map(|span| span.end);
        let adjoin = spans().skip(1).all(|span| ends.next() == Some(span.base));
        match () {
            () if spans().any(|span| span.base >= span.end) => Err("an entry covers nothing"),
            () if !adjoin => Err("entries do not adjoin"),
            () if spans().map(Some).reduce(|older, newer| older?.join(newer?)) == Some(None) => {
                Err("sums beyond 64 bits")
            }
            () if spans().last().is_some_and(|last| last.end != self.tiered_end) => {
                Err("entries do not end at tiered_end")
            }
            () if self.entries.is_empty() && !self.rolled.is_empty() => Err("the newest segment is not in the root"),
            () if self.base() > self.log_start => Err("a gap between log_start and the entries"),
            () if self.stable_end > self.tiered_end => Err("stable_end beyond tiered_end"),
            () if self.compacted.end > self.stable_end => Err("compacted beyond stable_end"),
            () if self.rewritten_end > self.stable_end => Err("rewritten beyond stable_end"),
            () if !self.rolled.is_sorted_by(|older, newer| older.level >= newer.level) => Err("levels rise"),
            () => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
