//! Whole segments, for those who write them anew.

use super::{Tiered, TieredError, damaged, whole};
use bytes::Bytes;
use millpond_cache::Hint;
use millpond_log::manifest::SegmentEntry;
use millpond_log::segment::{AppendTimes, SegmentIndex};
use millpond_log::{Batch, PartitionId, TimestampMs};
use std::sync::Arc;

/// All that a segment holds.
pub(crate) struct WholeSegment {
    pub(crate) index: Arc<SegmentIndex>,
    /// With the times of their append, in order.
    pub(crate) batches: Vec<(Batch, TimestampMs)>,
    /// The producer snapshot at its end.
    pub(crate) producers: Bytes,
}

impl Tiered {
    /// A segment in memory, all of it checked (rules R13, S11). It costs nobody's hot pages their place.
    ///
    /// # Errors
    /// As `read`.
    pub(crate) async fn segment(
        &self,
        partition: PartitionId,
        entry: &SegmentEntry,
    ) -> Result<WholeSegment, TieredError> {
        let index = self.index(partition, entry).await?;
        let (key, length) = (&entry.object, entry.object_length);
        let parse =
            |pieces: &[Bytes]| AppendTimes::parse(&index, &whole(pieces)).map_err(|source| damaged(key, source));
        let times = entry.in_object(&index.append_times_bytes());
        let times = self.checked(key, length, times, Hint::Scan, parse).await?;
        let batches = match index.chunks().len() {
            0 => Vec::new(),
            chunks => {
                let span = index.span(0..chunks);
                let read =
                    |pieces: &[Bytes]| index.read_timed(&span, pieces, &times).map_err(|source| damaged(key, source));
                self.checked(key, length, entry.in_object(&span.bytes), Hint::Scan, read).await?
            }
        };
        let producers = self.producers(partition, entry).await?;
        Ok(WholeSegment { index, batches, producers })
    }
}
