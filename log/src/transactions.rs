//! The words of transactions in the log: how one ends, which were aborted, what a read of committed records needs to know.
//!
//! Plain data and searches in it. Which transaction ends, and how, is decided by its coordinator, never here.

use crate::ids::{CoordinatorEpoch, Offset, ProducerEpoch, ProducerId};
use std::ops::Range;
use std::sync::Arc;

/// How a transaction ends: the same on all its partitions and offsets (S18).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TxnOutcome {
    /// Its records are for everyone.
    Commit,
    /// Its records are for nobody who reads committed ones.
    Abort,
}

/// What the control record of a marker says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndMarker {
    /// How the transaction ends.
    pub outcome: TxnOutcome,
    /// Epoch of the coordinator that decided it.
    pub coordinator_epoch: CoordinatorEpoch,
}

/// A marker that a coordinator wants to have in a partition (rule X5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marker {
    /// Whose transaction ends.
    pub producer: ProducerId,
    /// The epoch it carries. Older epochs of the producer are fenced from then on.
    pub epoch: ProducerEpoch,
    /// Whether that is above the epoch of the transaction's records (rule X1): always, but for clients of the first version.
    pub raised: bool,
    /// How the transaction ends, and who says so.
    pub end: EndMarker,
}

/// A transaction that a marker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedTxn {
    /// Its producer.
    pub producer: ProducerId,
    /// Offset of its first record.
    pub first: Offset,
    /// Offset of the marker.
    pub marker: Offset,
    /// How it ended.
    pub outcome: TxnOutcome,
}

/// An aborted transaction, as the segment that holds its marker keeps it (rules T4, X7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AbortedTxn {
    /// Offset of the marker.
    pub marker: Offset,
    /// Offset of its first record, perhaps in an earlier segment.
    pub first: Offset,
    /// Its producer.
    pub producer: ProducerId,
}

/// A transaction that is open where the segment ends (rules T4, T7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpenTxn {
    /// Offset of its first record, perhaps in an earlier segment.
    pub first: Offset,
    /// Its producer.
    pub producer: ProducerId,
}

impl EndedTxn {
    /// What is kept of it, if it was aborted.
    #[must_use]
    pub fn aborted(&self) -> Option<AbortedTxn> {
        let EndedTxn { producer, first, marker, outcome } = *self;
        (outcome == TxnOutcome::Abort).then_some(AbortedTxn { marker, first, producer })
    }
}

impl AbortedTxn {
    /// Whether a reader of `read` has to know of it (rule X7).
    #[must_use]
    pub fn bears_on(&self, read: &Range<Offset>) -> bool {
        self.marker >= read.start && self.first < read.end
    }
}

/// The aborted transactions that a reader of `read` has to know, ordered by first offset as Kafka's clients rely on (rule X7).
///
/// `known` are those of one view (rule F5): each once, whatever the order. `read` ends at or below its last stable offset, so whatever
/// overlaps it is decided, though the marker may lie beyond, where an older transaction is still open.
#[must_use]
pub fn aborted_in(known: impl IntoIterator<Item = AbortedTxn>, read: &Range<Offset>) -> Vec<AbortedTxn> {
    let mut found: Vec<AbortedTxn> = known.into_iter().filter(|txn| txn.bears_on(read)).collect();
    found.sort_unstable_by_key(|txn| (txn.first, txn.producer));
    found
}

/// Entries of one sealed part of an `AbortedList`: what a change copies at most while a view holds the list.
const PART_LEN: usize = 256;

/// Aborted transactions by marker, as they are appended. A clone shares all but the newest few, so that each view may hold one.
#[derive(Clone, Debug, Default)]
pub struct AbortedList {
    /// Full parts, oldest first.
    sealed: Vec<Sealed>,
    recent: Vec<AbortedTxn>,
}

/// A full part.
#[derive(Clone, Debug)]
struct Sealed {
    txns: Arc<[AbortedTxn]>,
    /// The least first offset in it: whether a reader has to look into it.
    first: Offset,
}

impl AbortedList {
    /// Adds one.
    ///
    /// Panics if its marker is not after those before.
    pub fn push(&mut self, txn: AbortedTxn) {
        assert!(self.last().is_none_or(|last| last.marker < txn.marker), "markers are appended in order");
        self.recent.push(txn);
        if self.recent.len() == PART_LEN {
            let first = self.recent.iter().map(|txn| txn.first).min().expect("it is full");
            self.sealed.push(Sealed { txns: std::mem::take(&mut self.recent).into(), first });
        }
    }

    /// Forgets those whose markers lie below `to`; of a sealed part only the whole.
    pub fn forget_below(&mut self, to: Offset) {
        let parts = self.sealed.partition_point(|part| part.is_below(to));
        self.sealed.drain(..parts);
        self.recent.retain(|txn| txn.marker >= to);
    }

    /// How many `forget_below` would forget.
    #[must_use]
    pub fn count_below(&self, to: Offset) -> usize {
        let parts = self.sealed.partition_point(|part| part.is_below(to));
        parts * PART_LEN + self.recent.iter().filter(|txn| txn.marker < to).count()
    }

    /// Those whose markers lie at or after `from`, in order.
    pub fn from(&self, from: Offset) -> impl Iterator<Item = AbortedTxn> + '_ {
        self.bearing_on(from..Offset(u64::MAX))
    }

    /// Those that a reader of `read` has to know (rule X7), by marker. Parts of which none bears on it are passed over whole.
    pub fn bearing_on(&self, read: Range<Offset>) -> impl Iterator<Item = AbortedTxn> + '_ {
        let from = self.sealed.partition_point(|part| part.is_below(read.start));
        let end = read.end;
        let sealed = self.sealed[from..].iter().filter(move |part| part.first < end);
        let all = sealed.flat_map(|part| part.txns.iter()).chain(&self.recent);
        all.copied().filter(move |txn| txn.bears_on(&read))
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sealed.is_empty() && self.recent.is_empty()
    }

    fn last(&self) -> Option<AbortedTxn> {
        self.recent.last().or_else(|| self.sealed.last()?.txns.last()).copied()
    }
}

impl Sealed {
    /// Whether all its markers lie below `to`.
    fn is_below(&self, to: Offset) -> bool {
        self.txns.last().is_some_and(|last| last.marker < to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn txn(first: u64, marker: u64) -> AbortedTxn {
        AbortedTxn { marker: Offset(marker), first: Offset(first), producer: ProducerId(first) }
    }

    fn firsts(known: &[AbortedTxn], from: u64, to: u64) -> Vec<u64> {
        let found = aborted_in(known.iter().copied(), &(Offset(from)..Offset(to)));
        found.iter().map(|txn| txn.first.0).collect()
    }

    /// Case T1: offsets 0 to 4 aborted, marker at 5. Whoever reads any of them, the marker included, has to know.
    #[test]
    fn an_aborted_range_is_told_to_whoever_reads_a_part_of_it() {
        let known = [txn(0, 5)];
        assert_eq!(firsts(&known, 0, 11), [0]);
        assert_eq!(firsts(&known, 3, 4), [0], "rule X7: also where the marker lies beyond the stable end");
        assert_eq!(firsts(&known, 5, 6), [0]);
        assert_eq!(firsts(&known, 6, 11), Vec::<u64>::new());
    }

    #[test]
    fn aborted_ranges_are_told_by_first_offset() {
        // By marker 8 comes before 3, as the list has them.
        assert_eq!(firsts(&[txn(8, 9), txn(3, 12)], 0, 20), [3, 8]);
    }

    proptest! {
        /// However a list was built and trimmed, it answers like a plain one.
        #[test]
        fn a_list_answers_like_a_plain_one(
            steps in prop::collection::vec((1u64..40, 1u64..5, prop::option::weighted(0.05, 0u64..3_000)), 1..900),
            asked in 0u64..3_000,
            len in 1u64..300,
        ) {
            let (mut list, mut plain, mut marker, mut trimmed) = (AbortedList::default(), Vec::new(), 40u64, 0);
            let mut views = Vec::new();
            for (back, forward, trim) in steps {
                marker += forward;
                list.push(txn(marker - back, marker));
                plain.push(txn(marker - back, marker));
                if let Some(to) = trim {
                    views.push((list.clone(), plain.clone(), trimmed));
                    trimmed = trimmed.max(to);
                    list.forget_below(Offset(to));
                }
            }
            views.push((list, plain, trimmed));
            for (list, plain, trimmed) in views {
                // What was trimmed is another's to tell.
                let from = Offset(asked.max(trimmed));
                let expected: Vec<AbortedTxn> = plain.into_iter().filter(|txn| txn.marker >= from).collect();
                prop_assert_eq!(&list.from(from).collect::<Vec<_>>(), &expected);
                let read = from..from.plus(len);
                let bearing: Vec<AbortedTxn> = expected.into_iter().filter(|txn| txn.bears_on(&read)).collect();
                prop_assert_eq!(list.bearing_on(read).collect::<Vec<_>>(), bearing);
            }
        }
    }
}
