//! The WAL of one partition as the replica's driver sees it: what is synced survives a power cut, what is not may or may not.

use millpond_core::tiering::TailSummary;
use millpond_log::{Batch, LeaderEpoch, Offset, TimestampMs};

/// A batch and what its frame says besides.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Frame {
    pub(super) batch: Batch,
    pub(super) append_time: TimestampMs,
    pub(super) latest: TimestampMs,
    pub(super) prefix_hash: u64,
}

#[derive(Default)]
pub(super) struct Wal {
    pub(super) frames: Vec<Frame>,
    pub(super) start: Offset,
    /// Frames of which the sync was acknowledged.
    synced: usize,
    pub(super) epoch_seen: LeaderEpoch,
    epoch_synced: LeaderEpoch,
}

impl Wal {
    pub(super) fn end(&self) -> Offset {
        self.frames.last().map_or(self.start, |frame| frame.batch.end_offset())
    }

    /// Syncs the first `count` frames that are not: a group of the writer's.
    pub(super) fn sync(&mut self, count: usize) -> Offset {
        self.synced = (self.synced + count).min(self.frames.len());
        self.epoch_synced = self.epoch_seen;
        self.synced.checked_sub(1).map_or(self.start, |last| self.frames[last].batch.end_offset())
    }

    pub(super) fn unsynced(&self) -> usize {
        self.frames.len() - self.synced
    }

    /// Frees everything below `to` at once: a reader of what was trimmed must find it elsewhere.
    pub(super) fn trim(&mut self, to: Offset) {
        let count = self.frames.partition_point(|frame| frame.batch.end_offset() <= to);
        self.frames.drain(..count);
        self.synced = self.synced.saturating_sub(count);
        self.start = self.start.max(to);
    }

    /// The power goes. Of what was not synced, the first `survivors` are found on the disk all the same.
    pub(super) fn cut(&mut self, survivors: usize) {
        self.frames.truncate(self.synced + survivors);
        self.synced = self.frames.len();
        if survivors == 0 {
            self.epoch_seen = self.epoch_synced;
        }
        self.epoch_synced = self.epoch_seen;
    }

    /// Starts over, empty, at `at`.
    pub(super) fn reset(&mut self, at: Offset) {
        *self = Wal { start: at, epoch_seen: self.epoch_seen, epoch_synced: self.epoch_synced, ..Wal::default() };
    }

    /// As the real one tells it.
    pub(super) fn summary(&self, from: Offset, to: Offset, bytes_max: u64) -> Option<TailSummary> {
        let mut batches = self.frames.iter().skip_while(|frame| frame.batch.base_offset() < from);
        let first =
            batches.next().filter(|first| first.batch.base_offset() == from && first.batch.end_offset() <= to)?;
        let mut summary = TailSummary {
            end: first.batch.end_offset(),
            bytes: first.batch.size() as u64,
            oldest: first.append_time,
            more: false,
        };
        for frame in batches.take_while(|frame| frame.batch.end_offset() <= to) {
            if summary.bytes + frame.batch.size() as u64 > bytes_max {
                summary.more = true;
                break;
            }
            summary.bytes += frame.batch.size() as u64;
            summary.end = frame.batch.end_offset();
        }
        Some(summary)
    }

    pub(super) fn read(&self, from: Offset, to: Offset) -> Vec<Frame> {
        let inside = |frame: &&Frame| frame.batch.base_offset() >= from && frame.batch.end_offset() <= to;
        self.frames.iter().filter(inside).cloned().collect()
    }
}
