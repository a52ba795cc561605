//! Batches that were refused before anything was known of their producer: what follows them does not go first (rule P6).
//!
//! A producer that is not known may begin at any sequence, so a later batch of it would be taken where an earlier one was not. It appends
//! nothing and refuses nothing: who keeps it says what became of a batch.

use super::precedes;
use crate::batch::ProducerStamp;
use crate::ids::{ProducerEpoch, ProducerId};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// How long a refused batch is waited for, in milliseconds since it was refused last: as long as Kafka's own client tries by default. Some
/// clients that give one up go on behind it.
const AWAITED_MS: u64 = 120_000;

/// The first refused batches of some producers, each in a place `K`. Time is in milliseconds, by any clock that does not go back.
#[derive(Clone, Debug)]
pub struct Refused<K> {
    first: BTreeMap<(K, ProducerId), FirstRefused>,
    most: usize,
    /// None of them is waited for no more before this.
    next_gone_ms: u64,
}

/// The first batch that has to come again.
#[derive(Clone, Copy, Debug)]
struct FirstRefused {
    epoch: ProducerEpoch,
    sequence: i32,
    /// When it was refused last.
    at_ms: u64,
}

impl FirstRefused {
    fn is_awaited(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.at_ms) < AWAITED_MS
    }
}

impl<K: Ord> Refused<K> {
    /// Keeps note of at most `most` producers. For more, a later batch may be taken first.
    #[must_use]
    pub fn at_most(most: usize) -> Refused<K> {
        Refused { first: BTreeMap::new(), most, next_gone_ms: 0 }
    }

    /// Whether there is nothing that anybody would have to wait for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    /// A batch was refused, nothing of it was written, and its producer will send it again.
    pub fn note(&mut self, place: K, stamp: ProducerStamp, now_ms: u64) {
        let ProducerStamp { id, epoch, base_sequence: sequence } = stamp;
        let noted = FirstRefused { epoch, sequence, at_ms: now_ms };
        let key = (place, id);
        if let Some(first) = self.first.get_mut(&key) {
            let is_first = epoch == first.epoch && !precedes(first.sequence, sequence);
            if is_first || epoch > first.epoch || !first.is_awaited(now_ms) {
                *first = noted;
            }
            return;
        }
        if self.first.len() >= self.most && self.next_gone_ms <= now_ms {
            self.first.retain(|_, first| first.is_awaited(now_ms));
            let oldest = self.first.values().map(|first| first.at_ms).min();
            self.next_gone_ms = oldest.unwrap_or(now_ms) + AWAITED_MS;
        }
        if self.first.len() < self.most {
            self.first.insert(key, noted);
        }
    }

    /// Base sequence of the batch that has to come again before this one; `None` where nothing was refused, or it is that one, or one before
    /// it, or of another epoch.
    pub fn before(&mut self, place: K, stamp: ProducerStamp, now_ms: u64) -> Option<i32> {
        let Entry::Occupied(entry) = self.first.entry((place, stamp.id)) else { return None };
        let first = *entry.get();
        if !first.is_awaited(now_ms) {
            entry.remove();
            return None;
        }
        let is_behind = stamp.epoch == first.epoch && precedes(first.sequence, stamp.base_sequence);
        is_behind.then_some(first.sequence)
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
    fn before(refused: &mut Refused<u32>, stamp: ProducerStamp) -> Option<i32> {
        refused.before(0, stamp, 0)
    }

    /// Rule P6.
    #[test]
    fn what_follows_a_refused_first_batch_waits_until_that_was_taken() {
        let mut refused = Refused::at_most(10);
        assert!(refused.is_empty() && before(&mut refused, stamp(7, 0, 5)).is_none());
        refused.note(0, stamp(7, 0, 5), 0);
        refused.note(0, stamp(7, 0, 9), 0);
        assert_eq!(before(&mut refused, stamp(7, 0, 6)), Some(5));
        for other in [stamp(7, 0, 5), stamp(7, 0, 4), stamp(7, 1, 6), stamp(8, 0, 6)] {
            assert_eq!(before(&mut refused, other), None, "{other:?}");
        }
        assert_eq!(refused.before(1, stamp(7, 0, 6), 0), None, "another place");
        refused.forget(0, ProducerId(7));
        assert!(refused.is_empty() && before(&mut refused, stamp(7, 0, 6)).is_none());
    }

    #[test]
    fn the_first_is_the_lowest_of_the_newest_epoch_also_where_sequences_wrap() {
        let mut refused = Refused::at_most(10);
        for noted in [stamp(7, 1, 3), stamp(7, 1, i32::MAX), stamp(7, 0, 1)] {
            refused.note(0, noted, 0);
        }
        assert_eq!(before(&mut refused, stamp(7, 1, 0)), Some(i32::MAX));
        assert_eq!(before(&mut refused, stamp(7, 1, 3)), Some(i32::MAX));
        assert_eq!(before(&mut refused, stamp(7, 1, i32::MAX)), None);
        refused.note(0, stamp(7, 2, 8), 0);
        assert_eq!(before(&mut refused, stamp(7, 2, 8)), None, "a newer epoch begins anew");
    }

    /// A client that gave it up and goes on in its epoch is not kept waiting for ever.
    #[test]
    fn a_refused_batch_is_waited_for_as_long_as_a_client_may_send_it_again() {
        let mut refused = Refused::at_most(10);
        refused.note(0, stamp(7, 0, 5), 1000);
        refused.note(0, stamp(7, 0, 6), 100_000);
        assert_eq!(refused.before(0, stamp(7, 0, 6), 1000 + AWAITED_MS - 1), Some(5));
        refused.note(0, stamp(7, 0, 5), 2000);
        assert_eq!(refused.before(0, stamp(7, 0, 6), 2000 + AWAITED_MS - 1), Some(5), "it was refused again");
        // Given up; the one behind it is the first now.
        refused.note(0, stamp(7, 0, 6), 2000 + AWAITED_MS);
        assert_eq!(refused.before(0, stamp(7, 0, 7), 2000 + AWAITED_MS), Some(6));
        assert_eq!(refused.before(0, stamp(7, 0, 7), 2000 + 2 * AWAITED_MS), None);
        assert!(refused.is_empty(), "what is waited for no more takes no room");
    }

    #[test]
    fn no_more_producers_are_noted_than_it_may_keep() {
        let mut refused = Refused::at_most(2);
        for id in 0..3 {
            refused.note(0, stamp(id, 0, 4), id);
        }
        let held = |refused: &mut Refused<u32>| [0, 1, 2].map(|id| before(refused, stamp(id, 0, 5)).is_some());
        assert_eq!(held(&mut refused), [true, true, false]);
        refused.note(0, stamp(1, 0, 2), 1);
        assert_eq!(before(&mut refused, stamp(1, 0, 2)), None, "those that are noted are kept true");
        refused.note(0, stamp(2, 0, 4), AWAITED_MS);
        assert_eq!(held(&mut refused), [false, true, true], "one that is waited for no more makes room");
    }
}
