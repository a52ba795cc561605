//! When something is due in a shard. A name has one deadline at most; setting it anew moves it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What is due.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// A member of a group was silent for too long.
    Session(Arc<str>, Arc<str>),
    /// A member of a consumer group took too long to give partitions up.
    Revocation(Arc<str>, Arc<str>),
    /// A classic member of a consumer group took too long to join again.
    Rejoin(Arc<str>, Arc<str>),
    /// A classic member of a consumer group took too long to fetch its assignment.
    Resync(Arc<str>, Arc<str>),
    /// The join phase of a classic group is over.
    Join(Arc<str>),
    /// The sync phase of a classic group is over.
    Sync(Arc<str>),
    /// Offsets may have expired.
    Expiry,
}

/// All deadlines, in milliseconds of the steady clock.
#[derive(Clone, Debug, Default)]
pub(super) struct Timers {
    deadlines: BTreeMap<Timer, u64>,
    order: BTreeSet<(u64, Timer)>,
}

impl Timers {
    pub(super) fn set(&mut self, timer: Timer, at_ms: u64) {
        self.cancel(&timer);
        self.order.insert((at_ms, timer.clone()));
        self.deadlines.insert(timer, at_ms);
    }

    pub(super) fn set_if_absent(&mut self, timer: Timer, at_ms: u64) {
        if !self.deadlines.contains_key(&timer) {
            self.set(timer, at_ms);
        }
    }

    pub(super) fn cancel(&mut self, timer: &Timer) {
        if let Some((timer, at_ms)) = self.deadlines.remove_entry(timer) {
            self.order.remove(&(at_ms, timer));
        }
    }

    pub(super) fn next(&self) -> Option<u64> {
        self.order.first().map(|(at_ms, _)| *at_ms)
    }

    /// Takes the earliest timer that is due.
    pub(super) fn due(&mut self, now_ms: u64) -> Option<Timer> {
        if self.next()? > now_ms {
            return None;
        }
        let (_, timer) = self.order.pop_first()?;
        self.deadlines.remove(&timer);
        Some(timer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_deadline_counts_and_due_ones_come_in_order() {
        let mut timers = Timers::default();
        let join = |group: &str| Timer::Join(group.into());
        timers.set(join("a"), 10);
        timers.set(join("b"), 5);
        timers.set(join("a"), 3);
        timers.set_if_absent(join("b"), 1);
        timers.set(Timer::Expiry, 4);
        timers.cancel(&Timer::Expiry);
        assert_eq!(timers.next(), Some(3));
        assert_eq!(timers.due(2), None);
        assert_eq!(timers.due(9), Some(join("a")));
        assert_eq!(timers.due(9), Some(join("b")));
        assert_eq!((timers.due(99), timers.next()), (None, None));
    }
}
