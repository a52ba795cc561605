//! The leader-epoch cache of a partition (rule R1): which epoch began at which offset, for the whole log.

use crate::ids::{LeaderEpoch, Offset};

/// Start of one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochStart {
    /// The epoch.
    pub epoch: LeaderEpoch,
    /// Offset of its first record.
    pub start: Offset,
}

/// Epochs in order, each with its first offset. Both strictly increase; an epoch without records has no entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaderEpochs {
    starts: Vec<EpochStart>,
}

impl LeaderEpochs {
    /// Notes that the record at `start` was appended in `epoch`. No-op if the epoch is the newest already.
    ///
    /// Panics if `epoch` or `start` goes backwards.
    pub fn append(&mut self, epoch: LeaderEpoch, start: Offset) {
        if let Some(last) = self.starts.last() {
            if last.epoch == epoch {
                return;
            }
            assert!(last.epoch < epoch && last.start < start, "epochs and their starts increase along the log");
        }
        self.starts.push(EpochStart { epoch, start });
    }

    /// Epoch of the record at `offset`, if the cache reaches back that far.
    #[must_use]
    pub fn epoch_at(&self, offset: Offset) -> Option<LeaderEpoch> {
        let after = self.starts.partition_point(|entry| entry.start <= offset);
        after.checked_sub(1).map(|at| self.starts[at].epoch)
    }

    /// Newest epoch with a record.
    #[must_use]
    pub fn last(&self) -> Option<EpochStart> {
        self.starts.last().copied()
    }

    /// Largest epoch <= `epoch`, and where it ends (start of the next, or `log_end`): Kafka's OffsetForLeaderEpoch.
    #[must_use]
    pub fn end_of(&self, epoch: LeaderEpoch, log_end: Offset) -> Option<(LeaderEpoch, Offset)> {
        let after = self.starts.partition_point(|entry| entry.epoch <= epoch);
        let found = self.starts[after.checked_sub(1)?].epoch;
        Some((found, self.starts.get(after).map_or(log_end, |next| next.start)))
    }

    /// Forgets what lies at or after `end`.
    pub fn truncate(&mut self, end: Offset) {
        let keep = self.starts.partition_point(|entry| entry.start < end);
        self.starts.truncate(keep);
    }

    /// The slice of epochs that cover `[from, to)`; the first entry's start is clipped to `from`.
    #[must_use]
    pub fn slice(&self, from: Offset, to: Offset) -> Vec<EpochStart> {
        let first = self.starts.partition_point(|entry| entry.start <= from).saturating_sub(1);
        let end = self.starts.partition_point(|entry| entry.start < to);
        let covering = self.starts.get(first..end).unwrap_or_default();
        covering.iter().map(|entry| EpochStart { start: entry.start.max(from), ..*entry }).collect()
    }

    /// All entries.
    #[must_use]
    pub fn entries(&self) -> &[EpochStart] {
        &self.starts
    }

    /// Rebuilds from entries; `None` if they are out of order.
    #[must_use]
    pub fn from_entries(starts: Vec<EpochStart>) -> Option<LeaderEpochs> {
        let increasing = starts.windows(2).all(|pair| pair[0].epoch < pair[1].epoch && pair[0].start < pair[1].start);
        increasing.then_some(LeaderEpochs { starts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epochs(entries: &[(u32, u64)]) -> LeaderEpochs {
        let mut epochs = LeaderEpochs::default();
        for (epoch, start) in entries {
            epochs.append(LeaderEpoch(*epoch), Offset(*start));
        }
        epochs
    }

    #[test]
    fn each_offset_has_the_epoch_it_was_appended_in() {
        let epochs = epochs(&[(1, 10), (1, 12), (4, 20)]);
        for (offset, epoch) in [(9, None), (10, Some(1)), (19, Some(1)), (20, Some(4)), (99, Some(4))] {
            assert_eq!(epochs.epoch_at(Offset(offset)), epoch.map(LeaderEpoch), "{offset}");
        }
    }

    #[test]
    fn an_epoch_ends_where_the_next_begins_and_the_newest_at_the_log_end() {
        let epochs = epochs(&[(1, 10), (4, 20)]);
        for (asked, found) in
            [(0, None), (1, Some((1, 20))), (3, Some((1, 20))), (4, Some((4, 30))), (9, Some((4, 30)))]
        {
            let end = epochs.end_of(LeaderEpoch(asked), Offset(30));
            assert_eq!(end, found.map(|(epoch, end)| (LeaderEpoch(epoch), Offset(end))), "{asked}");
        }
    }

    #[test]
    fn truncation_and_slices_keep_what_covers_the_range() {
        let mut epochs = epochs(&[(1, 10), (4, 20), (5, 30)]);
        let slice = |epochs: &LeaderEpochs, from, to| -> Vec<(u32, u64)> {
            epochs.slice(Offset(from), Offset(to)).iter().map(|entry| (entry.epoch.0, entry.start.0)).collect()
        };
        assert_eq!(slice(&epochs, 15, 30), [(1, 15), (4, 20)]);
        assert_eq!(slice(&epochs, 20, 21), [(4, 20)]);
        epochs.truncate(Offset(30));
        assert_eq!(slice(&epochs, 10, 99), [(1, 10), (4, 20)]);
        epochs.truncate(Offset(0));
        assert_eq!(slice(&epochs, 0, 99), []);
    }
}
