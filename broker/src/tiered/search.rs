//! Searches by time in object storage: manifest to segment, index to chunk, chunk to record. At most a chunk is read for a miss.

use super::{Tiered, TieredError, damaged};
use bytes::Bytes;
use millpond_cache::Hint;
use millpond_log::batch::BatchError;
use millpond_log::manifest::{ManifestRoot, ManifestView, SegmentEntry};
use millpond_log::segment::{
    ChunkSpan, SegmentError, SegmentIndex, TimedOffset, first_at_or_after, first_of_largest_timestamp,
};
use millpond_log::{Batch, Offset, TimestampMs};
use std::sync::Arc;

impl Tiered {
    /// The first record at or after `from` with at least this time.
    pub(crate) async fn first_at_or_after(
        &self,
        manifest: &Arc<ManifestRoot>,
        time: TimestampMs,
        mut from: Offset,
    ) -> Result<Option<TimedOffset>, TieredError> {
        let mut view = ManifestView::new(ManifestRoot::clone(manifest));
        loop {
            let entry = self.ask(&mut view, |view| view.find_time(time, from).map(|entry| entry.cloned())).await?;
            let Some(entry) = entry else { return Ok(None) };
            let index = self.index(manifest.partition, &entry).await?;
            while let Some(span) = index.find_time(time, from) {
                let batches = self.chunk(&entry, &index, &span).await?;
                if let Some(found) =
                    first_at_or_after(&batches, time, from).map_err(|error| unsound(&entry, from, error))?
                {
                    return Ok(Some(found));
                }
                from = index.chunks()[span.chunks.end - 1].end;
            }
            from = entry.end;
        }
    }

    /// The first of the records at or after `from` that have the largest time.
    pub(crate) async fn first_of_largest(
        &self,
        manifest: &Arc<ManifestRoot>,
        from: Offset,
    ) -> Result<Option<TimedOffset>, TieredError> {
        let mut view = ManifestView::new(ManifestRoot::clone(manifest));
        let mut largest = None;
        let straddler = self.ask(&mut view, |view| view.find(from).map(|entry| entry.cloned())).await?;
        if let Some(entry) = straddler.filter(|entry| entry.base < from) {
            largest = self.largest_in(manifest, &entry, from).await?;
        }
        let whole = self.ask(&mut view, |view| view.find_max_timestamp(from).map(|entry| entry.cloned())).await?;
        if let Some(entry) = whole {
            largest = larger(largest, self.largest_in(manifest, &entry, from).await?);
        }
        Ok(largest)
    }

    async fn largest_in(
        &self,
        manifest: &Arc<ManifestRoot>,
        entry: &SegmentEntry,
        from: Offset,
    ) -> Result<Option<TimedOffset>, TieredError> {
        let index = self.index(manifest.partition, entry).await?;
        let straddler = index.plan(from, 0).filter(|span| index.chunks()[span.chunks.start].base < from);
        let mut largest = None;
        for span in straddler.into_iter().chain(index.find_max_timestamp(from)) {
            let batches = self.chunk(entry, &index, &span).await?;
            let found = first_of_largest_timestamp(&batches, from).map_err(|error| unsound(entry, from, error))?;
            largest = larger(largest, found);
        }
        Ok(largest)
    }

    async fn chunk(
        &self,
        entry: &SegmentEntry,
        index: &SegmentIndex,
        span: &ChunkSpan,
    ) -> Result<Vec<Batch>, TieredError> {
        let (key, length, range) = (&entry.object, entry.object_length, entry.in_object(&span.bytes));
        let check = |pieces: &[Bytes]| index.read(span, pieces).map_err(|source| damaged(key, source));
        self.checked(key, length, range, Hint::Scan, check).await
    }
}

/// The one with the larger time; of equal ones the one with the smaller offset.
pub(crate) fn larger(one: Option<TimedOffset>, other: Option<TimedOffset>) -> Option<TimedOffset> {
    let rank = |found: &TimedOffset| (found.timestamp, std::cmp::Reverse(found.offset));
    one.into_iter().chain(other).max_by_key(rank)
}

fn unsound(entry: &SegmentEntry, at: Offset, source: BatchError) -> TieredError {
    damaged(&entry.object, SegmentError::Batch { at, source })
}
