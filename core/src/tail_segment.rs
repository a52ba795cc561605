//! Makes one segment of one partition's committed tail, batch by batch, and carries the log's state to its end (rules T1, T4, S6).
//!
//! Pure: batches come from whoever reads the WAL.

use crate::replica::EndState;
use millpond_log::batch::BatchError;
use millpond_log::epochs::LeaderEpochs;
use millpond_log::producers::ProducerTable;
use millpond_log::segment::{BuiltSegment, Density, SegmentIdentity, SegmentTail, SegmentWriter};
use millpond_log::transactions::AbortedTxn;
use millpond_log::{Batch, Offset, TimestampMs};

/// A segment in the making.
pub struct TailSegment {
    writer: SegmentWriter,
    begin: Offset,
    end: Offset,
    epochs: LeaderEpochs,
    /// State of the log where the segment ends so far.
    reached: EndState,
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
    /// A segment of `[from.end, end)`; `from` is the state of the log where it begins.
    #[must_use]
    pub fn new(identity: SegmentIdentity, from: EndState, end: Offset) -> TailSegment {
        let begin = from.end;
        let writer = SegmentWriter::new(identity, begin, Density::Dense);
        TailSegment { writer, begin, end, epochs: LeaderEpochs::default(), reached: from }
    }

    /// Offset after the last batch; the next one begins here.
    #[must_use]
    pub fn reached(&self) -> Offset {
        self.writer.end()
    }

    /// Chained hash of the log where the segment ends so far (S6).
    #[must_use]
    pub fn prefix_hash(&self) -> u64 {
        self.reached.prefix_hash
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
        // Rule P2: by the very steps that the replicas take, so that their state at its end is the segment's.
        self.reached.absorb(batch, append_time);
        Ok(())
    }

    /// The segment, and the producer state at its end.
    ///
    /// Panics before its end is reached.
    #[must_use]
    pub fn finish(self) -> (BuiltSegment, ProducerTable) {
        let TailSegment { writer, begin, end, epochs, reached } = self;
        assert_eq!(writer.end(), end, "a segment covers all of its range (S8)");
        // Rule T4: its own markers tell of those that were aborted; what is open at its end goes on in the next.
        let aborted: Vec<AbortedTxn> = reached.aborted_since(begin).collect();
        let segment = writer.finish(SegmentTail {
            end,
            prefix_hash: reached.prefix_hash,
            epochs: epochs.entries().to_vec(),
            producers: reached.producers.encode(),
            aborted,
            open: reached.producers.open().collect(),
        });
        (segment, reached.producers)
    }
}

#[cfg(test)]
mod tests;
