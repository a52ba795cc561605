//! One partition's log as the records of a WAL add up to it.

use millpond_core::replica::Placed;
use millpond_log::{LeaderEpoch, Offset};

/// One record handed to the WAL.
#[derive(Clone, Debug)]
pub(crate) enum Record {
    Epoch(LeaderEpoch),
    Batch(Placed),
    Truncate(Offset),
    Reset {
        at: Offset,
        prefix_hash: u64,
    },
    HighWatermark(Offset),
    /// The replica is here no longer: nothing of it is needed.
    Drop,
}

/// What the records add up to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    pub(crate) start: Offset,
    pub(crate) batches: Vec<Placed>,
    pub(crate) epoch_seen: LeaderEpoch,
    pub(crate) hw: Offset,
    /// Prefix hash where the log starts: of the last batch that was trimmed.
    pub(crate) start_hash: u64,
}

impl Log {
    pub(crate) fn end(&self) -> Offset {
        self.batches.last().map_or(self.start, |last| last.batch.end_offset())
    }

    /// Takes the next record; `false` if it is a batch that does not adjoin, and was left out.
    pub(crate) fn apply(&mut self, record: &Record) -> bool {
        match record {
            Record::Epoch(epoch) => self.epoch_seen = self.epoch_seen.max(*epoch),
            Record::Batch(placed) if placed.batch.base_offset() != self.end() => return false,
            Record::Batch(placed) => self.batches.push(placed.clone()),
            Record::Truncate(to) => {
                self.batches.retain(|placed| placed.batch.base_offset() < *to);
                self.hw = self.hw.min(*to);
            }
            Record::Reset { at, prefix_hash } => {
                self.batches.clear();
                (self.start, self.start_hash, self.hw) = (*at, *prefix_hash, *at);
            }
            Record::HighWatermark(hw) => self.hw = *hw,
            Record::Drop => unreachable!("a log that is dropped is not there"),
        }
        true
    }

    pub(crate) fn trim(&mut self, to: Offset) {
        let gone = self.batches.iter().take_while(|placed| placed.batch.end_offset() <= to).count();
        if let Some(last) = self.batches[..gone].last() {
            (self.start, self.start_hash) = (last.batch.end_offset(), last.prefix_hash);
        }
        self.batches.drain(..gone);
    }

    /// Index of the batch that begins at `offset`, or of the end.
    pub(crate) fn at(&self, offset: Offset) -> usize {
        self.batches.partition_point(|placed| placed.batch.base_offset() < offset)
    }

    /// Index of the batch that contains `offset`, if one does.
    pub(crate) fn containing(&self, offset: Offset) -> usize {
        self.batches.partition_point(|placed| placed.batch.end_offset() <= offset)
    }

    /// Chained hash up to `end`, if a batch ends there or the log begins there.
    pub(crate) fn hash_at(&self, end: Offset) -> Option<u64> {
        if end == self.start {
            return Some(self.start_hash);
        }
        let at = self.batches.binary_search_by_key(&end, |placed| placed.batch.end_offset()).ok()?;
        Some(self.batches[at].prefix_hash)
    }

    /// Whether exactly this batch is in it.
    pub(crate) fn holds(&self, placed: &Placed) -> bool {
        self.batches.get(self.at(placed.batch.base_offset())).is_some_and(|held| held.prefix_hash == placed.prefix_hash)
    }
}
