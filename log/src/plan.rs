//! Read planning: from a manifest and an offset to the byte ranges to fetch.
//!
//! It fetches nothing. What it lacks, a rolled manifest or a segment's index, it names; the caller fetches it and asks again.

use crate::batch::Batch;
use crate::ids::Offset;
use crate::manifest::{Lookup, ManifestView, RolledRef, SegmentEntry};
use crate::segment::{ChunkSpan, ReadBounds, SegmentError, SegmentIndex};
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;

/// What to do next to answer a read below the tiered offset.
#[derive(Clone, Debug)]
pub enum ReadPlan {
    /// The offset is below the log's start, by this manifest. Only a manifest no older than the request proves that (rule F3).
    BelowStart {
        /// First offset a reader may see.
        log_start: Offset,
    },
    /// Nothing at or after the offset lies in object storage below the bound. Says nothing of what lies beyond (rule F4).
    Nothing,
    /// Load this rolled manifest into the view and ask again.
    NeedManifest(RolledRef),
    /// Read the index of this segment and ask again.
    NeedIndex(SegmentEntry),
    /// Fetch these, in order; together they hold at least one whole batch of the answer.
    Fetch {
        /// Ranges to fetch.
        parts: Vec<PlannedRead>,
        /// The segment after them, when it was not planned only since its index was not at hand: worth reading ahead.
        next: Option<SegmentEntry>,
    },
}

/// One ranged read and how to make batches of it.
#[derive(Clone, Debug)]
pub struct PlannedRead {
    /// The segment.
    pub entry: SegmentEntry,
    /// Its index.
    pub index: Arc<SegmentIndex>,
    /// What to read of it.
    pub span: ChunkSpan,
}

impl PlannedRead {
    /// Bytes to fetch, from the start of `entry.object`.
    #[must_use]
    pub fn bytes_in_object(&self) -> Range<u64> {
        self.entry.in_object(&self.span.bytes)
    }

    /// The batches in the fetched bytes, which may come in pieces, all checked.
    ///
    /// # Errors
    /// As `SegmentIndex::read`.
    pub fn batches(&self, fetched: &[Bytes]) -> Result<Vec<Batch>, SegmentError> {
        self.index.read(&self.span, fetched)
    }
}

/// Plans a read of `bounds` in object storage. `index_of` gives the index of a segment if it is at hand.
///
/// Covers the batch that contains `bounds.from`, whole, however large (rule F4), and then as many chunks, over as many
/// segments, as stay within `bounds.bytes_max` and begin below `bounds.until`. A segment that holds nothing at or after the
/// offset (compaction may leave a hole at its end) is passed over, so that a reader never stops before the log's end.
pub fn plan_read(
    manifest: &ManifestView,
    bounds: ReadBounds,
    index_of: impl Fn(&SegmentEntry) -> Option<Arc<SegmentIndex>>,
) -> ReadPlan {
    let root = manifest.root();
    if bounds.from < root.log_start {
        return ReadPlan::BelowStart { log_start: root.log_start };
    }
    let until = bounds.until.min(root.tiered_end);
    let mut parts: Vec<PlannedRead> = Vec::new();
    let mut left = bounds.bytes_max;
    let mut offset = bounds.from;
    while offset < until {
        let entry = match manifest.find(offset) {
            Lookup::Found(Some(entry)) => entry,
            Lookup::Found(None) => break,
            Lookup::Need(rolled) if parts.is_empty() => return ReadPlan::NeedManifest(rolled),
            Lookup::Need(_) => break,
        };
        let Some(index) = index_of(entry) else {
            if parts.is_empty() {
                return ReadPlan::NeedIndex(entry.clone());
            }
            return ReadPlan::Fetch { parts, next: Some(entry.clone()) };
        };
        if let Some(span) = plan_segment(&index, offset, until, left) {
            let size = span.bytes.end - span.bytes.start;
            if !parts.is_empty() && size > left {
                break;
            }
            left = left.saturating_sub(size);
            let to_the_end = span.chunks.end == index.chunks().len();
            parts.push(PlannedRead { entry: entry.clone(), index, span });
            if !to_the_end {
                break;
            }
        }
        offset = entry.end;
    }
    if parts.is_empty() { ReadPlan::Nothing } else { ReadPlan::Fetch { parts, next: None } }
}

/// Chunks of one segment, none of which begins at or after `until`.
fn plan_segment(index: &SegmentIndex, offset: Offset, until: Offset, bytes_max: u64) -> Option<ChunkSpan> {
    let span = index.plan(offset, bytes_max)?;
    let chunks = &index.chunks()[span.chunks.clone()];
    let below = chunks.partition_point(|chunk| chunk.base < until);
    (below > 0).then(|| index.span(span.chunks.start..span.chunks.start + below))
}

#[cfg(test)]
mod tests;
