//! Which transactions ended lately: what was found open before its end was told must not be taken for open after it (rule X3).

use super::super::step::Verification;
use millpond_log::ProducerId;
use std::collections::BTreeMap;

/// Ends that are remembered. A check that is under way while so many others end is refused, and tried again.
const ENDS_MAX: usize = 10_000;

/// Ends of transactions, counted from 1.
#[derive(Clone, Debug, Default)]
pub(super) struct Ends {
    count: u64,
    /// The last end of each producer.
    last: BTreeMap<ProducerId, u64>,
    order: BTreeMap<u64, ProducerId>,
    /// The greatest end that was forgotten.
    forgotten: u64,
}

impl Ends {
    /// None is known of, and none that was counted below `start` counts.
    pub(super) fn after(start: u64) -> Ends {
        Ends { count: start, forgotten: start, ..Ends::default() }
    }

    pub(super) fn now(&self) -> Verification {
        Verification(self.count)
    }

    pub(super) fn add(&mut self, producer: ProducerId) {
        self.count += 1;
        if let Some(earlier) = self.last.insert(producer, self.count) {
            self.order.remove(&earlier);
        }
        self.order.insert(self.count, producer);
        if self.order.len() > ENDS_MAX
            && let Some((end, producer)) = self.order.pop_first()
        {
            self.last.remove(&producer);
            self.forgotten = end;
        }
    }

    /// Whether a transaction of the producer ended since, or may have.
    pub(super) fn missed(&self, since: Verification, producer: ProducerId) -> bool {
        since.0 < self.forgotten || self.last.get(&producer).is_some_and(|&end| end > since.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_of_another_owner_is_void() {
        let (before, after) = (Ends::after(1 << 32), Ends::after(2 << 32));
        assert!(!before.missed(before.now(), ProducerId(1)));
        assert!(after.missed(before.now(), ProducerId(1)), "it ended there, for all that is known");
    }

    #[test]
    fn an_end_is_missed_by_who_asked_before_it() {
        let mut ends = Ends::default();
        let before = ends.now();
        ends.add(ProducerId(1));
        assert!(ends.missed(before, ProducerId(1)));
        assert!(!ends.missed(before, ProducerId(2)));
        assert!(!ends.missed(ends.now(), ProducerId(1)));
        for other in 0..u64::try_from(ENDS_MAX).expect("a number") {
            ends.add(ProducerId(10 + other));
        }
        assert!(ends.missed(before, ProducerId(2)), "what was forgotten may have been its end");
        assert!(!ends.missed(ends.now(), ProducerId(1)));
        assert_eq!(ends.order.len(), ENDS_MAX);
    }
}
