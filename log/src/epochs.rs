//! The leader-epoch cache of a partition (rule R1): which epoch began at which offset, for the whole log.
//!
//! Pure bookkeeping: it never decides who leads, nor where a log is to be truncated.

use crate::ids::{LeaderEpoch, Offset};

/// Start of one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochStart {
    /// The epoch.
    pub epoch: LeaderEpoch,
    /// Offset of its first record.
    pub start: Offset,
}

/// Epochs in order, each with its first offset. Both strictly increase: an epoch without records has no entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaderEpochs {
    starts: Vec<EpochStart>,
}

impl LeaderEpochs {
    /// Notes that the record at `start` was appended in `epoch`. No-op if the epoch is the newest already.
    ///
    /// Panics if `epoch` or `start` goes backwards (invariant S24): a log that was truncated is told so first, by `truncate`.
    pub fn append(&mut self, epoch: LeaderEpoch, start: Offset) {
        if let Some(last) = self.last() {
            assert!(epoch >= last.epoch, "leader epoch {epoch} after {}", last.epoch);
            assert!(start >= last.start, "offset {start} after epoch {} began at {}", last.epoch, last.start);
            if epoch == last.epoch {
                return;
            }
            assert!(start > last.start, "epochs {} and {epoch} both begin at {start}", last.epoch);
        }
        self.starts.push(EpochStart { epoch, start });
    }

    /// Epoch of the record at `offset`, if the cache reaches back that far.
    ///
    /// The newest epoch has no end here: the caller asks only below the log's end.
    #[must_use]
    pub fn epoch_at(&self, offset: Offset) -> Option<LeaderEpoch> {
        let after = self.starts.partition_point(|entry| entry.start <= offset);
        Some(self.starts[after.checked_sub(1)?].epoch)
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
        self.starts.truncate(self.starts.partition_point(|entry| entry.start < end));
    }

    /// The slice of epochs that cover `[from, to)`; the first entry's start is clipped to `from`.
    ///
    /// Empty when the range is, or when the cache does not reach back into it.
    #[must_use]
    pub fn slice(&self, from: Offset, to: Offset) -> Vec<EpochStart> {
        let until = self.starts.partition_point(|entry| entry.start < to);
        let first = self.starts.partition_point(|entry| entry.start <= from).saturating_sub(1);
        if from >= to || first >= until {
            return Vec::new();
        }
        let clip = |entry: &EpochStart| EpochStart { start: entry.start.max(from), ..*entry };
        self.starts[first..until].iter().map(clip).collect()
    }

    /// All entries.
    #[must_use]
    pub fn entries(&self) -> &[EpochStart] {
        &self.starts
    }

    /// Rebuilds from entries; `None` if they are out of order.
    #[must_use]
    pub fn from_entries(starts: Vec<EpochStart>) -> Option<LeaderEpochs> {
        let ordered = starts.windows(2).all(|pair| pair[0].epoch < pair[1].epoch && pair[0].start < pair[1].start);
        ordered.then_some(LeaderEpochs { starts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn starts(entries: &[(u32, u64)]) -> Vec<EpochStart> {
        entries.iter().map(|&(epoch, start)| EpochStart { epoch: LeaderEpoch(epoch), start: Offset(start) }).collect()
    }

    /// Epoch 1 from offset 0, 3 from 10, 7 from 11.
    fn cache() -> LeaderEpochs {
        LeaderEpochs::from_entries(starts(&[(1, 0), (3, 10), (7, 11)])).unwrap()
    }

    #[test]
    fn epochs_are_found_by_offset() {
        let check = |offset, expected: Option<u32>| {
            assert_eq!(cache().epoch_at(Offset(offset)), expected.map(LeaderEpoch), "{offset}");
        };
        check(0, Some(1));
        check(9, Some(1));
        check(10, Some(3));
        check(11, Some(7));
        check(u64::MAX, Some(7));
        assert_eq!(LeaderEpochs::default().epoch_at(Offset(0)), None);
        let trimmed = LeaderEpochs::from_entries(starts(&[(2, 5)])).unwrap();
        assert_eq!(trimmed.epoch_at(Offset(4)), None);
    }

    #[test]
    fn ends_are_what_offset_for_leader_epoch_answers() {
        let check = |epoch, expected: Option<(u32, u64)>| {
            let expected = expected.map(|(epoch, end)| (LeaderEpoch(epoch), Offset(end)));
            assert_eq!(cache().end_of(LeaderEpoch(epoch), Offset(20)), expected, "{epoch}");
        };
        check(0, None);
        check(1, Some((1, 10)));
        check(2, Some((1, 10)));
        check(3, Some((3, 11)));
        check(6, Some((3, 11)));
        check(7, Some((7, 20)));
        check(9, Some((7, 20)));
    }

    #[test]
    fn truncation_forgets_epochs_without_records() {
        let check = |end, expected: &[(u32, u64)]| {
            let mut cache = cache();
            cache.truncate(Offset(end));
            assert_eq!(cache.entries(), starts(expected), "{end}");
        };
        check(12, &[(1, 0), (3, 10), (7, 11)]);
        check(11, &[(1, 0), (3, 10)]);
        check(10, &[(1, 0)]);
        check(1, &[(1, 0)]);
        check(0, &[]);
    }

    #[test]
    fn slices_cover_their_range() {
        let check = |from, to, expected: &[(u32, u64)]| {
            assert_eq!(cache().slice(Offset(from), Offset(to)), starts(expected), "{from}..{to}");
        };
        check(0, 20, &[(1, 0), (3, 10), (7, 11)]);
        check(5, 10, &[(1, 5)]);
        check(5, 11, &[(1, 5), (3, 10)]);
        check(10, 11, &[(3, 10)]);
        check(15, 16, &[(7, 15)]);
        check(5, 5, &[]);
        check(6, 5, &[]);
        let trimmed = LeaderEpochs::from_entries(starts(&[(2, 5)])).unwrap();
        assert_eq!(trimmed.slice(Offset(0), Offset(5)), []);
        assert_eq!(trimmed.slice(Offset(0), Offset(6)), starts(&[(2, 5)]));
    }

    #[test]
    fn appends_note_the_first_record_of_an_epoch() {
        let mut cache = LeaderEpochs::default();
        for (epoch, start) in [(1, 0), (1, 4), (3, 10), (3, 10), (7, 11), (7, 99)] {
            cache.append(LeaderEpoch(epoch), Offset(start));
        }
        assert_eq!(cache, self::cache());
        assert_eq!(cache.last(), starts(&[(7, 11)]).first().copied());
    }

    #[test]
    fn going_backwards_is_a_bug() {
        for (epoch, start) in [(6, 12), (8, 11), (8, 10), (7, 10)] {
            let append = || cache().append(LeaderEpoch(epoch), Offset(start));
            assert!(std::panic::catch_unwind(append).is_err(), "epoch {epoch} at {start}");
        }
    }

    #[test]
    fn entries_out_of_order_are_refused() {
        for bad in [[(1, 0), (1, 5)], [(2, 0), (1, 5)], [(1, 5), (2, 5)], [(1, 5), (2, 4)]] {
            assert_eq!(LeaderEpochs::from_entries(starts(&bad)), None, "{bad:?}");
        }
    }

    proptest! {
        /// A log is a list of epochs, one per record; the cache must answer as the list does.
        #[test]
        fn answers_equal_those_of_the_list(bumps in prop::collection::vec(0..3_u32, 1..40), cut in 0..45_u64, to in 0..45_u64) {
            let epochs: Vec<u32> = bumps.iter().scan(0, |epoch, bump| { *epoch += bump; Some(*epoch) }).collect();
            let mut cache = LeaderEpochs::default();
            for (offset, &epoch) in (0..).zip(&epochs) {
                cache.append(LeaderEpoch(epoch), Offset(offset));
            }
            for (offset, &epoch) in (0..).zip(&epochs) {
                prop_assert_eq!(cache.epoch_at(Offset(offset)), Some(LeaderEpoch(epoch)));
                let end = epochs.iter().filter(|&&other| other <= epoch).count() as u64;
                let log_end = Offset(epochs.len() as u64);
                prop_assert_eq!(cache.end_of(LeaderEpoch(epoch), log_end), Some((LeaderEpoch(epoch), Offset(end))));
            }
            let slice = LeaderEpochs::from_entries(cache.slice(Offset(cut), Offset(to))).expect("a slice is in order");
            for offset in cut..to.min(epochs.len() as u64) {
                prop_assert_eq!(slice.epoch_at(Offset(offset)), cache.epoch_at(Offset(offset)));
            }
            cache.truncate(Offset(cut));
            prop_assert!(cache.last().is_none_or(|last| last.start < Offset(cut)));
            for offset in 0..cut.min(epochs.len() as u64) {
                prop_assert_eq!(cache.epoch_at(Offset(offset)), Some(LeaderEpoch(epochs[offset as usize])));
            }
        }
    }
}
