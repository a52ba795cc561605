//! A broker's disk for one partition: records in order, of which a power cut keeps what was synced and some of what came after.

use millpond_core::replica::Placed;
use millpond_log::{LeaderEpoch, Offset};

/// One record handed to the WAL.
#[derive(Clone, Debug)]
pub(crate) enum Record {
    Epoch(LeaderEpoch),
    Batch(Placed),
    Truncate(Offset),
    Reset { at: Offset, prefix_hash: u64 },
    HighWatermark(Offset),
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

    pub(crate) fn apply(&mut self, record: Record) {
        match record {
            Record::Epoch(epoch) => self.epoch_seen = self.epoch_seen.max(epoch),
            Record::Batch(placed) => {
                assert_eq!(placed.batch.base_offset(), self.end(), "the WAL is dense");
                self.batches.push(placed);
            }
            Record::Truncate(to) => {
                self.batches.retain(|placed| placed.batch.base_offset() < to);
                self.hw = self.hw.min(to);
            }
            Record::Reset { at, prefix_hash } => {
                self.batches.clear();
                (self.start, self.start_hash, self.hw) = (at, prefix_hash, at);
            }
            Record::HighWatermark(hw) => self.hw = hw,
        }
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

    /// Chained hash up to `end`, if a batch ends there or the log begins there.
    pub(crate) fn hash_at(&self, end: Offset) -> Option<u64> {
        let ends = self.batches.iter().find(|placed| placed.batch.end_offset() == end).map(|placed| placed.prefix_hash);
        ends.or_else(|| (self.start == end).then_some(self.start_hash))
    }

    /// Index of the batch that contains `offset`, if one does.
    pub(crate) fn containing(&self, offset: Offset) -> usize {
        self.batches.partition_point(|placed| placed.batch.end_offset() <= offset)
    }
}

/// The disk under a running or dead broker.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk {
    /// What survives everything but the loss of the disk.
    pub(crate) synced: Log,
    /// In the page cache: survives the process, not the power.
    pending: Vec<Record>,
}

impl Disk {
    pub(crate) fn write(&mut self, record: Record) {
        self.pending.push(record);
    }

    pub(crate) fn sync(&mut self) {
        for record in self.pending.drain(..) {
            self.synced.apply(record);
        }
    }

    /// The power goes: the first `kept` records that were not synced happen to be on disk.
    pub(crate) fn cut_power(&mut self, kept: usize) {
        self.pending.truncate(kept);
    }

    pub(crate) fn unsynced(&self) -> usize {
        self.pending.len()
    }
}
