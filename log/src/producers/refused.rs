//! Batches that were refused before anything was known of their producer: what follows them does not go first (rule P6).
//!
//! A producer that is not known may begin at any sequence, so a later batch of it would be taken where an earlier one was not. It appends
//! nothing and refuses nothing: who keeps it says what became of a batch.

use super::precedes;
use crate::batch::ProducerStamp;
use crate::ids::{ProducerEpoch, ProducerId};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// How long a refused batch is waited for, in milliseconds since it was refused last: clients give up a batch in two minutes, if not earlier, and
/// some go on behind it.
const AWAITED_MS: u64 = 120_000;

/// The first refused batches of some producers, each in some place `K`. Time is in milliseconds, by any clock that does not go back.
#[derive(Clone, Debug)]
pub struct Refused<K> {
    first: BTreeMap<(K, ProducerId), First>,
    most: usize,
}

/// The first batch that has to come again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct First {
    /// The epoch it was of.
    pub epoch: ProducerEpoch,
    /// Its base sequence.
    pub sequence: i32,
    /// When it was refused last.
    pub at_ms: u64,
}

impl First {
    fn is_awaited(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.at_ms) < AWAITED_MS
    }
}

impl<K: Ord> Refused<K> {
    /// Keeps note of at most `most` producers. For more, a later batch may be taken first.
    #[must_use]
    pub fn at_most(most: usize) -> Refused<K> {
        Refused { first: BTreeMap::new(), most }
    }

    /// Whether there is nothing that anybody would have to wait for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    /// A batch was refused, nothing of it was written, and its producer will send it again.
    pub fn note(&mut self, place: K, stamp: ProducerStamp, at_ms: u64) {
        let ProducerStamp { id, epoch, base_sequence: sequence } = stamp;
        let noted = First { epoch, sequence, at_ms };
        if self.first.len() >= self.most {
            self.first.retain(|_, first| first.is_awaited(at_ms));
        }
        let is_full = self.first.len() >= self.most;
        match self.first.entry((place, id)) {
            Entry::Vacant(_) if is_full => {}
            Entry::Vacant(entry) => drop(entry.insert(noted)),
            Entry::Occupied(mut entry) => {
                let first = entry.get_mut();
                let earlier = epoch == first.epoch && precedes(sequence, first.sequence);
                if (epoch, sequence) == (first.epoch, first.sequence) {
                    // It may be told late.
                    first.at_ms = first.at_ms.max(at_ms);
                } else if epoch > first.epoch || earlier || !first.is_awaited(at_ms) {
                    *first = noted;
                }
            }
        }
    }

    /// What has to come again before this batch; `None` where nothing was refused, or it is that one, or one before it, or of another epoch.
    #[must_use]
    pub fn before(&self, place: K, stamp: ProducerStamp, now_ms: u64) -> Option<First> {
        let first = self.first.get(&(place, stamp.id))?;
        let is_behind = stamp.epoch == first.epoch && precedes(first.sequence, stamp.base_sequence);
        (is_behind && first.is_awaited(now_ms)).then_some(*first)
    }

    /// A batch of the producer was taken: from now on its sequence tells what is next.
    pub fn forget(&mut self, place: K, producer: ProducerId) {
        self.first.remove(&(place, producer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(id: u64, epoch: u16, base_sequence: i32) -> ProducerStamp {
        ProducerStamp { id: ProducerId(id), epoch: ProducerEpoch(epoch), base_sequence }
    }

    /// What has to come before it, in place 0 at time 0.
    fn before(refused: &Refused<u32>, stamp: ProducerStamp) -> Option<i32> {
        refused.before(0, stamp, 0).map(|first| first.sequence)
    }

    /// Rule P6.
    #[test]
    fn what_follows_a_refused_first_batch_waits_until_that_was_taken() {
        let mut refused = Refused::at_most(10);
        assert!(refused.is_empty() && before(&refused, stamp(7, 0, 5)).is_none());
        refused.note(0, stamp(7, 0, 5), 0);
        refused.note(0, stamp(7, 0, 9), 0);
        assert_eq!(before(&refused, stamp(7, 0, 6)), Some(5));
        for other in [stamp(7, 0, 5), stamp(7, 0, 4), stamp(7, 1, 6), stamp(8, 0, 6)] {
            assert_eq!(before(&refused, other), None, "{other:?}");
        }
        assert_eq!(refused.before(1, stamp(7, 0, 6), 0), None, "another place");
        refused.forget(0, ProducerId(7));
        assert!(refused.is_empty() && before(&refused, stamp(7, 0, 6)).is_none());
    }

    #[test]
    fn the_first_is_the_lowest_of_the_newest_epoch_also_where_sequences_wrap() {
        let mut refused = Refused::at_most(10);
        for noted in [stamp(7, 1, 3), stamp(7, 1, i32::MAX), stamp(7, 0, 1)] {
            refused.note(0, noted, 0);
        }
        assert_eq!(before(&refused, stamp(7, 1, 0)), Some(i32::MAX));
        assert_eq!(before(&refused, stamp(7, 1, 3)), Some(i32::MAX));
        assert_eq!(before(&refused, stamp(7, 1, i32::MAX)), None);
        refused.note(0, stamp(7, 2, 8), 0);
        assert_eq!(before(&refused, stamp(7, 2, 8)), None, "a newer epoch begins anew");
    }

    /// A client that gave it up and goes on in its epoch is not kept waiting for ever.
    #[test]
    fn a_refused_batch_is_waited_for_as_long_as_a_client_may_send_it_again() {
        let mut refused = Refused::at_most(10);
        let first =
            |refused: &Refused<u32>, now_ms| refused.before(0, stamp(7, 0, 6), now_ms).map(|first| first.sequence);
        refused.note(0, stamp(7, 0, 5), 1000);
        refused.note(0, stamp(7, 0, 6), 100_000);
        assert_eq!(first(&refused, 1000 + AWAITED_MS - 1), Some(5));
        assert_eq!(first(&refused, 1000 + AWAITED_MS), None);
        refused.note(0, stamp(7, 0, 5), 2000);
        refused.note(0, stamp(7, 0, 5), 1500);
        assert_eq!(first(&refused, 2000 + AWAITED_MS - 1), Some(5), "it was refused again");
        // Given up; the one behind it is the first now.
        refused.note(0, stamp(7, 0, 6), 2000 + AWAITED_MS);
        assert_eq!(refused.before(0, stamp(7, 0, 7), 2000 + AWAITED_MS).map(|first| first.sequence), Some(6));
    }

    #[test]
    fn no_more_producers_are_noted_than_it_may_keep() {
        let mut refused = Refused::at_most(2);
        for id in 0..3 {
            refused.note(0, stamp(id, 0, 4), id);
        }
        let held = |refused: &Refused<u32>| [0, 1, 2].map(|id| before(refused, stamp(id, 0, 5)).is_some());
        assert_eq!(held(&refused), [true, true, false]);
        refused.note(0, stamp(1, 0, 2), 1);
        assert_eq!(before(&refused, stamp(1, 0, 2)), None, "those that are noted are kept true");
        refused.note(0, stamp(2, 0, 4), AWAITED_MS);
        assert_eq!(held(&refused), [false, true, true], "one that is waited for no more makes room");
    }
}
