//! One group of segments rewritten as one: covers exactly what they cover (rule C3).
//!
//! Writes what `Pass` decides, and keeps the end of the segment in sight of readers.

use super::pass::{Pass, Stays};
use crate::batch::{Batch, BatchError};
use crate::ids::{Offset, TimestampMs};
use crate::segment::{BuiltSegment, Density, SegmentIdentity, SegmentTail, SegmentWriter};
use std::collections::HashSet;

/// A segment in the making from the batches of others.
pub struct Rewrite {
    writer: SegmentWriter,
    base: Offset,
    /// Offset after the last batch that was pushed.
    end: Offset,
    /// A batch without records that stays only if none follows it.
    last: Option<(Batch, TimestampMs)>,
    /// Offsets of the markers that were taken out.
    markers_removed: HashSet<Offset>,
    is_changed: bool,
    records_in: u64,
    removed_records: u64,
}

/// The segment made of a group.
#[derive(Clone, Debug)]
pub struct Rewritten {
    /// The segment.
    pub segment: BuiltSegment,
    /// Whether any batch differs or is gone. If not, and the group is of one segment, nothing is won by a swap.
    pub changed: bool,
    /// Records taken out, markers among them.
    pub removed_records: u64,
}

impl Rewrite {
    /// Begins the segment of a group that begins at `base`, with the identity of who writes it: topic and leader epoch are the current
    /// ones, not those of the inputs.
    ///
    /// Bytes may grow a little by what is encoded anew: the batches of the inputs are at most half of `SEGMENT_DATA_BYTES_MAX`.
    #[must_use]
    pub fn new(identity: SegmentIdentity, base: Offset) -> Rewrite {
        Rewrite {
            writer: SegmentWriter::new(identity, base, Density::Sparse),
            base,
            end: base,
            last: None,
            markers_removed: HashSet::new(),
            is_changed: false,
            records_in: 0,
            removed_records: 0,
        }
    }

    /// Small chunks, so that a test's few batches make many.
    #[cfg(test)]
    pub(super) fn with_chunk_bytes(self, chunk_bytes: u64) -> Rewrite {
        Rewrite { writer: self.writer.with_chunk_bytes(chunk_bytes), ..self }
    }

    /// Takes the next batch of the group's segments, each in order and once, with its append time.
    ///
    /// Panics if it is not behind the one before; also as `SegmentWriter::push_timed`.
    ///
    /// # Errors
    /// `Corrupt` if its CRC does not match; as `Batch::records`. The pass is over: the log stays as it is.
    pub fn push(&mut self, pass: &mut Pass, batch: &Batch, append_time: TimestampMs) -> Result<(), BatchError> {
        // Rule R13: damage must not decide what goes.
        batch.verify_crc()?;
        assert!(batch.base_offset() >= self.end, "batch at {} after {}", batch.base_offset(), self.end);
        self.end = batch.end_offset();
        let count = u64::from(batch.record_count());
        self.records_in += count;
        match pass.judge(batch)? {
            Stays::Whole { latest } => self.write(batch, append_time, latest),
            Stays::Part { batch: part, latest } => {
                self.removed_records += count - u64::from(part.record_count());
                self.is_changed = true;
                self.write(&part, append_time, latest)
            }
            Stays::Nothing { header } => {
                self.removed_records += count;
                self.is_changed |= count > 0;
                if batch.is_control() {
                    self.markers_removed.insert(batch.base_offset());
                }
                if header {
                    return self.write(&batch.emptied(), append_time, TimestampMs::NONE);
                }
                self.drop_last();
                self.last = Some((batch.emptied(), append_time));
                Ok(())
            }
        }
    }

    /// The segment. `tail` is that of the inputs (`SegmentTail::joined`); aborted transactions leave it with their markers.
    ///
    /// Panics if the batches do not end where the inputs do, if the group does not follow the one before in the pass, or if records are
    /// missing that neither stayed nor were taken out (rule C3); also as `SegmentWriter::finish`.
    ///
    /// # Errors
    /// As `SegmentWriter::push_timed`.
    pub fn finish(mut self, pass: &mut Pass, mut tail: SegmentTail) -> Result<Rewritten, BatchError> {
        if let Some((batch, append_time)) = self.last.take() {
            // Whoever reads from an offset before the end is handed a batch that ends there, and so goes on.
            self.writer.push_timed(&batch, append_time, TimestampMs::NONE)?;
        }
        assert_eq!(self.writer.end(), tail.end, "rule C3: the last batch ends where the inputs end");
        pass.cover(self.base, tail.end);
        tail.aborted.retain(|txn| !self.markers_removed.contains(&txn.marker));
        let segment = self.writer.finish(tail);
        let accounted = segment.meta.record_count.checked_add(self.removed_records);
        assert_eq!(accounted, Some(self.records_in), "rule C3: each record stayed or was taken out");
        Ok(Rewritten { segment, changed: self.is_changed, removed_records: self.removed_records })
    }

    fn write(&mut self, batch: &Batch, append_time: TimestampMs, latest: TimestampMs) -> Result<(), BatchError> {
        self.drop_last();
        self.writer.push_timed(batch, append_time, latest)
    }

    fn drop_last(&mut self) {
        self.is_changed |= self.last.take().is_some();
    }
}
