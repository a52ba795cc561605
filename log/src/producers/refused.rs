//! Batches that were refused before anything was known of their producer: what follows them does not go first (rule P6).
//!
//! A producer that is not known may begin at any sequence, so a later batch of it would be taken where an earlier one was not. It appends
//! nothing and asks for no time: who keeps it says what became of a batch.

use super::{ProducerError, precedes};
use crate::batch::ProducerStamp;
use crate::ids::{ProducerEpoch, ProducerId};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// The first refused batches of some producers, each in some place `K`.
#[derive(Clone, Debug)]
pub struct Refused<K> {
    first: BTreeMap<(K, ProducerId), First>,
    most: usize,
}

/// The first batch that has to come again.
#[derive(Clone, Copy, Debug)]
struct First {
    epoch: ProducerEpoch,
    sequence: i32,
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
    pub fn note(&mut self, place: K, stamp: ProducerStamp) {
        let ProducerStamp { id, epoch, base_sequence: sequence } = stamp;
        let is_full = self.first.len() >= self.most;
        match self.first.entry((place, id)) {
            Entry::Vacant(_) if is_full => {}
            Entry::Vacant(entry) => drop(entry.insert(First { epoch, sequence })),
            Entry::Occupied(mut entry) => {
                let first = entry.get_mut();
                if epoch > first.epoch || (epoch == first.epoch && precedes(sequence, first.sequence)) {
                    *first = First { epoch, sequence };
                }
            }
        }
    }

    /// Whether a batch is the first one again, or one before it, or of another epoch, or nothing was refused.
    ///
    /// # Errors
    /// `ProducerError::Behind`: the first one has to come again before it.
    pub fn check(&self, place: K, stamp: ProducerStamp) -> Result<(), ProducerError> {
        let ProducerStamp { id, epoch, base_sequence: got } = stamp;
        match self.first.get(&(place, id)) {
            Some(first) if epoch == first.epoch && precedes(first.sequence, got) => {
                Err(ProducerError::Behind { id, expected: first.sequence, got })
            }
            _ => Ok(()),
        }
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

    /// Rule P6.
    #[test]
    fn what_follows_a_refused_first_batch_waits_until_that_was_taken() {
        let mut refused = Refused::at_most(10);
        assert!(refused.is_empty() && refused.check(0, stamp(7, 0, 5)).is_ok());
        refused.note(0, stamp(7, 0, 5));
        refused.note(0, stamp(7, 0, 9));
        let behind = |got| Err(ProducerError::Behind { id: ProducerId(7), expected: 5, got });
        assert_eq!(refused.check(0, stamp(7, 0, 6)), behind(6));
        for other in [stamp(7, 0, 5), stamp(7, 0, 4), stamp(7, 1, 6), stamp(8, 0, 6)] {
            assert_eq!(refused.check(0, other), Ok(()), "{other:?}");
        }
        assert_eq!(refused.check(1, stamp(7, 0, 6)), Ok(()), "another place");
        refused.forget(0, ProducerId(7));
        assert!(refused.is_empty() && refused.check(0, stamp(7, 0, 6)).is_ok());
    }

    #[test]
    fn the_first_is_the_lowest_of_the_newest_epoch_also_where_sequences_wrap() {
        let mut refused = Refused::at_most(10);
        for noted in [stamp(7, 1, 3), stamp(7, 1, i32::MAX), stamp(7, 0, 1)] {
            refused.note((), noted);
        }
        let behind = |got| Err(ProducerError::Behind { id: ProducerId(7), expected: i32::MAX, got });
        assert_eq!(refused.check((), stamp(7, 1, 0)), behind(0));
        assert_eq!(refused.check((), stamp(7, 1, 3)), behind(3));
        assert_eq!(refused.check((), stamp(7, 1, i32::MAX)), Ok(()));
        refused.note((), stamp(7, 2, 8));
        assert_eq!(refused.check((), stamp(7, 2, 8)), Ok(()), "a newer epoch begins anew");
    }

    #[test]
    fn no_more_producers_are_noted_than_it_may_keep() {
        let mut refused = Refused::at_most(2);
        for id in 0..3 {
            refused.note((), stamp(id, 0, 4));
        }
        let held: Vec<bool> = (0..3).map(|id| refused.check((), stamp(id, 0, 5)).is_err()).collect();
        assert_eq!(held, [true, true, false]);
        refused.note((), stamp(1, 0, 2));
        assert_eq!(refused.check((), stamp(1, 0, 2)), Ok(()), "those that are noted are kept true");
    }
}
