//! How long acknowledgements stayed away around a fault. Pure.

use crate::clock::{Nanos, between};
use crate::history::Event;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A fault: from when on it could be felt, until when things were well again, and what its victims led.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// What was done.
    pub(crate) what: String,
    /// When it began.
    pub(crate) at: Nanos,
    /// When writes to all partitions were acknowledged again, and whatever was undone had been.
    pub(crate) until: Nanos,
    /// Partitions that a victim led.
    pub(crate) led: BTreeSet<u16>,
}

/// Who measured, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// By librdkafka; else by the SDK.
    pub(crate) librdkafka: bool,
    /// In a partition that the victim led.
    pub(crate) led_by_victim: bool,
}

/// Times without an acknowledgement, sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gaps(Vec<Duration>);

impl Gaps {
    fn new(mut gaps: Vec<Duration>) -> Gaps {
        gaps.sort_unstable();
        Gaps(gaps)
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// The least that so many of a thousand do not exceed.
    pub(crate) fn per_mille(&self, share: usize) -> Duration {
        let rank = (self.0.len() * share).div_ceil(1000).max(1);
        self.0.get(rank - 1).copied().unwrap_or_default()
    }

    /// The longest.
    pub(crate) fn worst(&self) -> Duration {
        self.0.last().copied().unwrap_or_default()
    }
}

/// When records were acknowledged, by writer and partition, in order.
pub(crate) struct Acks(BTreeMap<(u16, u16), Vec<Nanos>>);

impl Acks {
    /// Reads them off a history.
    pub(crate) fn of(events: &[Event]) -> Acks {
        let mut acks: BTreeMap<(u16, u16), Vec<Nanos>> = BTreeMap::new();
        for event in events {
            if let Event::Acked { id, at, .. } = event {
                acks.entry((id.writer, id.partition)).or_default().push(*at);
            }
        }
        acks.values_mut().for_each(|times| times.sort_unstable());
        Acks(acks)
    }

    /// For each fault, writer of `writers` and partition: the longest time without an acknowledgement that touches the fault.
    pub(crate) fn gaps(&self, marks: &[Mark], writers: &BTreeMap<u16, bool>) -> BTreeMap<Place, Gaps> {
        let mut found: BTreeMap<Place, Vec<Duration>> = BTreeMap::new();
        for mark in marks {
            for ((writer, partition), times) in &self.0 {
                let Some(librdkafka) = writers.get(writer) else { continue };
                let place = Place { librdkafka: *librdkafka, led_by_victim: mark.led.contains(partition) };
                found.entry(place).or_default().push(longest(times, mark.at, mark.until));
            }
        }
        found.into_iter().map(|(place, gaps)| (place, Gaps::new(gaps))).collect()
    }

    /// The longest time without an acknowledgement from `from` to `to`, of each of these writers in each partition.
    pub(crate) fn quiet(&self, from: Nanos, to: Nanos, writers: &BTreeMap<u16, bool>) -> Gaps {
        let of_writers = self.0.iter().filter(|((writer, _), _)| writers.contains_key(writer));
        Gaps::new(of_writers.map(|(_, times)| longest(times, from, to)).collect())
    }
}

/// The longest time between two neighbours that has a part in `from..=to`. Nothing after the last counts until `to`.
fn longest(times: &[Nanos], from: Nanos, to: Nanos) -> Duration {
    // The last before, those within, and the first after.
    let first = times.partition_point(|at| *at <= from).saturating_sub(1);
    let last = times.partition_point(|at| *at < to).min(times.len().saturating_sub(1));
    let Some(near) = times.get(first..=last).filter(|near| !near.is_empty()) else { return between(from, to) };
    let inner = near.windows(2).map(|pair| between(pair[0], pair[1])).max().unwrap_or_default();
    let (before, after) = (between(from, near[0]), between(near[near.len() - 1], to));
    inner.max(before).max(after)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::RecordId;

    #[test]
    fn the_longest_gap_touches_the_fault() {
        let check = |times: &[Nanos], from, to, expected| {
            assert_eq!(longest(times, from, to), Duration::from_nanos(expected), "{times:?} {from}..{to}");
        };
        check(&[10, 20, 30, 90, 100, 110], 35, 60, 60);
        // It began before the fault, and ended after all was called well.
        check(&[0, 50, 100], 60, 70, 50);
        // A longer one elsewhere is none of its business.
        check(&[0, 500, 510, 520, 530, 1000], 505, 525, 10);
        // Nothing came any more.
        check(&[10, 20], 30, 130, 110);
        check(&[], 30, 130, 100);
    }

    #[test]
    fn gaps_are_told_apart_by_client_and_leader() {
        let acked = |writer, partition, at| {
            let id = RecordId { writer, partition, number: 0 };
            Event::Acked { id, offset: None, at }
        };
        let mut events = Vec::new();
        for at in [0, 10, 20, 30, 40] {
            events.push(acked(0, 1, at));
        }
        for at in [0, 10, 40] {
            events.push(acked(0, 0, at));
        }
        events.extend([acked(9, 0, 0), acked(9, 0, 40), acked(50, 0, 0)]);
        let mark = Mark { what: "kill".to_owned(), at: 12, until: 35, led: BTreeSet::from([0]) };
        let gaps = Acks::of(&events).gaps(&[mark], &BTreeMap::from([(0, false), (9, true)]));
        let worst = |librdkafka, led_by_victim| {
            let found = gaps.get(&Place { librdkafka, led_by_victim });
            found.map(|gaps| (gaps.count(), gaps.worst().as_nanos()))
        };
        assert_eq!(worst(false, true), Some((1, 30)));
        assert_eq!(worst(false, false), Some((1, 10)));
        assert_eq!(worst(true, true), Some((1, 40)));
        assert_eq!(worst(true, false), None);
    }

    #[test]
    fn shares_are_of_those_that_do_not_exceed() {
        let gaps = Gaps::new((1..=100).map(Duration::from_millis).collect());
        assert_eq!(gaps.per_mille(500), Duration::from_millis(50));
        assert_eq!(gaps.per_mille(990), Duration::from_millis(99));
        assert_eq!(gaps.worst(), Duration::from_millis(100));
        assert_eq!(Gaps::default().per_mille(500), Duration::ZERO);
    }
}
