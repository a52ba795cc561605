//! Makes one segment of one partition's committed tail, batch by batch, and carries the producer state to its end (rules T1, T4).
//!
//! Pure: batches come from whoever reads the WAL.

use crate::replica::expire_producers;
use millpond_log::batch::BatchError;
use millpond_log::epochs::LeaderEpochs;
use millpond_log::producers::ProducerTable;
use millpond_log::segment::{BuiltSegment, Density, SegmentIdentity, SegmentTail, SegmentWriter};
use millpond_log::{Batch, Offset, TimestampMs};

/// A segment in the making.
pub struct TailSegment {
    writer: SegmentWriter,
    end: Offset,
    epochs: LeaderEpochs,
    producers: ProducerTable,
    last_append_time: TimestampMs,
}

/// Why a batch does not go into the segment.
#[derive(Debug, thiserror::Error)]
pub enum TailSegmentError {
    /// It is not the next one, or reaches past the segment's end: the tail is not what was planned.
    #[error("the batch at {found} is not the one at {expected}")]
    Moved {
        /// Where the segment ends so far.
        expected: Offset,
        /// Where the batch begins.
        found: Offset,
    },
    /// It is damaged (S13).
    #[error(transparent)]
    Damaged(#[from] BatchError),
}

impl TailSegment {
    /// A segment of `[base, end)`; `producers` is the state at `base` and `last_append_time` the newest append time before it.
    #[must_use]
    pub fn new(
        identity: SegmentIdentity,
        base: Offset,
        end: Offset,
        producers: ProducerTable,
        last_append_time: TimestampMs,
    ) -> TailSegment {
        let writer = SegmentWriter::new(identity, base, Density::Dense);
        TailSegment { writer, end, epochs: LeaderEpochs::default(), producers, last_append_time }
    }

    /// Offset after the last batch; the next one begins here.
    #[must_use]
    pub fn reached(&self) -> Offset {
        self.writer.end()
    }

    /// Adds the next batch. `latest` is its largest timestamp, as admission read it off the records.
    ///
    /// # Errors
    /// Nothing was added; the segment has to be given up, since the log has no holes.
    pub fn push(
        &mut self,
        batch: &Batch,
        append_time: TimestampMs,
        latest: TimestampMs,
    ) -> Result<(), TailSegmentError> {
        let expected = self.writer.end();
        if batch.base_offset() != expected || batch.end_offset() > self.end {
            return Err(TailSegmentError::Moved { expected, found: batch.base_offset() });
        }
        self.writer.push_timed(batch, append_time, latest)?;
        self.epochs.append(batch.leader_epoch(), batch.base_offset());
        if let Some(stamp) = batch.producer() {
            self.producers.append(stamp, batch.record_count(), batch.base_offset(), append_time);
        }
        expire_producers(&mut self.producers, self.last_append_time, append_time);
        self.last_append_time = append_time;
        Ok(())
    }

    /// The segment, and the producer state at its end.
    ///
    /// Panics before its end is reached.
    #[must_use]
    pub fn finish(self) -> (BuiltSegment, ProducerTable) {
        let TailSegment { writer, end, epochs, producers, .. } = self;
        assert_eq!(writer.end(), end, "a segment covers all of its range (S8)");
        let segment = writer.finish(SegmentTail {
            end,
            epochs: epochs.entries().to_vec(),
            producers: producers.encode(),
            aborted: Vec::new(),
            open: Vec::new(),
        });
        (segment, producers)
    }
}
