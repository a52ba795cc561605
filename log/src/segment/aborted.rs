//! Which aborted transactions a reader of committed records has to know, from segments and the tail behind them (rules X7, T7).
//!
//! It reads nothing: whoever does hands over index after index, until told that it is enough.

use super::SegmentIndex;
use crate::ids::Offset;
use crate::transactions::{AbortedList, AbortedTxn, aborted_in};
use std::ops::Range;

/// A search over segments in order, from the one that holds the first offset of the read.
///
/// A marker may lie in a later segment than the records it ends, so the search goes on past the read, but only for as long as a
/// transaction that began below its end is open.
#[derive(Clone, Debug)]
pub struct AbortedSearch {
    read: Range<Offset>,
    found: Vec<AbortedTxn>,
    /// End of the segments seen.
    seen: Option<Offset>,
    goes_on: bool,
    /// First offset of the one transaction whose end is still searched for, if it is only one.
    alone: Option<Offset>,
}

impl AbortedSearch {
    /// A search for a read of these offsets, which end at or below the last stable offset of the same view (rule F5).
    #[must_use]
    pub fn new(read: Range<Offset>) -> AbortedSearch {
        AbortedSearch { read, found: Vec::new(), seen: None, goes_on: true, alone: None }
    }

    /// Whether the next segment has to be looked at, or behind the last one the tail.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        self.goes_on
    }

    /// Looks at the next segment.
    ///
    /// Panics if it does not adjoin the one before.
    pub fn segment(&mut self, index: &SegmentIndex) {
        assert!(self.seen.is_none_or(|seen| seen == index.base()), "segments are searched in order");
        self.seen = Some(index.end());
        self.found.extend(index.aborted().iter().filter(|txn| txn.bears_on(&self.read)));
        let mut open = index.open().iter().map(|txn| txn.first).filter(|first| *first < self.read.end);
        let (oldest, next) = (open.next(), open.next());
        let covered = index.end() >= self.read.end;
        self.goes_on = !covered || oldest.is_some();
        self.alone = oldest.filter(|_| covered && next.is_none());
    }

    /// Whether the next segment, which ends at `end`, need not be looked at: `oldest_open` is the first offset of the oldest transaction
    /// open at its end, as its manifest entry says. So a transaction that was open for many segments costs no read of each.
    pub fn passes_over(&mut self, end: Offset, oldest_open: Option<Offset>) -> bool {
        // What begins after the read is younger than what is searched for.
        let still_open = self.alone.is_some() && oldest_open == self.alone;
        if still_open {
            self.seen = Some(end);
        }
        still_open
    }

    /// What was found, by first offset; `tail` is that of the view, and begins anew where the segments end.
    #[must_use]
    pub fn finish(self, tail: &AbortedList) -> Vec<AbortedTxn> {
        let from = self.seen.unwrap_or(self.read.start);
        let in_tail = tail.bearing_on(from..self.read.end).filter(|_| self.goes_on);
        aborted_in(self.found.into_iter().chain(in_tail), &self.read)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Density, OpenTxn, SegmentIdentity, SegmentTail, SegmentWriter};
    use super::*;
    use crate::batch::{BatchBuilder, NewRecord};
    use crate::codec::Codec;
    use crate::epochs::EpochStart;
    use crate::ids::{LeaderEpoch, PartitionId, ProducerId, TimestampMs, TopicId};
    use bytes::Bytes;
    use proptest::prelude::*;

    /// A log of one-record batches: which producer's transaction each belongs to, or aborts.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Record(u64),
        Abort(u64),
        Commit(u64),
    }

    /// The index of `[base, end)`.
    fn index(base: u64, end: u64, aborted: Vec<AbortedTxn>, open: Vec<OpenTxn>) -> SegmentIndex {
        let identity = SegmentIdentity {
            cluster: "c".to_owned(),
            partition: PartitionId { topic: TopicId(1), index: 0 },
            topic_name: "t".to_owned(),
            epoch: LeaderEpoch(1),
        };
        let mut writer = SegmentWriter::new(identity, Offset(base), Density::Dense);
        for at in base..end {
            let mut builder = BatchBuilder::new(Codec::None);
            builder.push(NewRecord { timestamp: TimestampMs(1), key: None, value: None, headers: &[] });
            let mut batch = builder.build();
            batch.place(Offset(at), LeaderEpoch(1));
            writer.push(&batch, TimestampMs(1)).expect("sound");
        }
        let epochs = vec![EpochStart { epoch: LeaderEpoch(1), start: Offset(base) }];
        let producers = Bytes::new();
        let tail = SegmentTail { end: Offset(end), prefix_hash: 0, epochs, producers, aborted, open };
        SegmentIndex::parse(&writer.finish(tail).parts.concat()).expect("sound")
    }

    #[test]
    fn segments_in_which_a_lone_transaction_stays_open_are_not_opened() {
        let open = |first: u64| OpenTxn { first: Offset(first), producer: ProducerId(first) };
        let mut search = AbortedSearch::new(Offset(0)..Offset(2));
        assert!(!search.passes_over(Offset(4), Some(Offset(1))), "nothing is known before the first");
        search.segment(&index(0, 4, vec![], vec![open(1), open(3)]));
        // 3 begins after the read, and so do others that are open later.
        assert!(search.goes_on() && search.passes_over(Offset(6), Some(Offset(1))));
        assert!(search.passes_over(Offset(8), Some(Offset(1))));
        assert!(!search.passes_over(Offset(10), Some(Offset(3))), "its marker is there");
        let ended = AbortedTxn { marker: Offset(9), first: Offset(1), producer: ProducerId(1) };
        search.segment(&index(8, 10, vec![ended], vec![open(3)]));
        assert!(!search.goes_on());
        assert_eq!(search.finish(&AbortedList::default()), [ended]);
    }

    proptest! {
        /// However a log is cut into segments and a tail, a reader of any part of it is told what it would be of the whole, and no segment
        /// is opened that tells nothing new.
        #[test]
        fn a_reader_is_told_the_same_however_the_log_is_cut(
            steps in prop::collection::vec((0u64..3, 0u8..5, prop::bool::weighted(0.2)), 1..50),
            from in any::<prop::sample::Index>(),
            to in any::<prop::sample::Index>(),
        ) {
            let mut open: Vec<OpenTxn> = Vec::new();
            let (mut aborted, mut all, mut segments, mut base) = (Vec::new(), Vec::new(), Vec::new(), 0);
            let mut tail = AbortedList::default();
            let mut lso = Vec::new();
            for (at, (producer, what, cut)) in (0u64..).zip(&steps) {
                let step = match what {
                    0 => Step::Abort(*producer),
                    1 => Step::Commit(*producer),
                    _ => Step::Record(*producer),
                };
                match step {
                    Step::Record(id) if open.iter().all(|txn| txn.producer.0 != id) => {
                        open.push(OpenTxn { first: Offset(at), producer: ProducerId(id) });
                    }
                    Step::Record(_) => {}
                    Step::Abort(id) | Step::Commit(id) => {
                        if let Some(found) = open.iter().position(|txn| txn.producer.0 == id) {
                            let OpenTxn { first, producer } = open.remove(found);
                            if matches!(step, Step::Abort(_)) {
                                aborted.push(AbortedTxn { marker: Offset(at), first, producer });
                            }
                        }
                    }
                }
                lso.push(open.first().map_or(at + 1, |txn| txn.first.0));
                if *cut {
                    all.extend_from_slice(&aborted);
                    segments.push(index(base, at + 1, std::mem::take(&mut aborted), open.clone()));
                    base = at + 1;
                }
            }
            aborted.iter().for_each(|txn| tail.push(*txn));
            all.extend(aborted);
            let stable = *lso.last().expect("there is a step");
            prop_assume!(stable > 0);
            let (from, to) = (from.index(stable as usize) as u64, to.index(stable as usize) as u64);
            let read = Offset(from.min(to))..Offset(from.max(to) + 1);
            let mut search = AbortedSearch::new(read.clone());
            for segment in segments.iter().filter(|segment| segment.end() > read.start) {
                if !search.goes_on() {
                    break;
                }
                prop_assert!(segment.base() < read.end || search.seen.is_some());
                if search.passes_over(segment.end(), segment.open().first().map(|open| open.first)) {
                    prop_assert!(segment.aborted().iter().all(|txn| !txn.bears_on(&read)), "it tells nothing");
                    continue;
                }
                search.segment(segment);
            }
            prop_assert_eq!(search.finish(&tail), aborted_in(all, &read));
        }
    }
}
