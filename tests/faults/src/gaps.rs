//! How long acknowledgements, and records to read, stayed away around a fault. Pure.

use crate::clock::{Nanos, between};
use crate::history::Event;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Whether something was done to the fleet, or undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// A fault began.
    Fault,
    /// What was done was undone: the broker came back, the wire was mended.
    Recovery,
}

/// A fault or its end: from when on it could be felt, until when things were well again, and what its victims led.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// What was done, or is undone here.
    pub(crate) what: String,
    /// Which of the two.
    pub(crate) phase: Phase,
    /// When it began.
    pub(crate) at: Nanos,
    /// When writes to all partitions were acknowledged again; of a fault that is undone on purpose, when that was.
    pub(crate) until: Nanos,
    /// Partitions that a victim led.
    pub(crate) led: BTreeSet<u16>,
}

impl std::fmt::Display for Mark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        name(f, self.phase, &self.what)
    }
}

fn name(f: &mut std::fmt::Formatter<'_>, phase: Phase, what: &str) -> std::fmt::Result {
    match phase {
        Phase::Fault => f.write_str(what),
        Phase::Recovery => write!(f, "end of {what}"),
    }
}

/// What a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Doing {
    /// It is told that records were written.
    Writes,
    /// It gets records.
    Reads,
}

/// The clients that are measured, by what they do and their number, and whether they are librdkafka's.
pub(crate) type Clients = BTreeMap<(Doing, u16), bool>;

/// What was done, who measured, and where.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// The fault.
    pub(crate) what: String,
    /// Whether it began or was undone. Never pooled: coming back is quiet, and would hide what the fault itself does.
    pub(crate) phase: Phase,
    /// Whether acknowledgements or records stayed away.
    pub(crate) doing: Doing,
    /// By librdkafka; else by the SDK.
    pub(crate) librdkafka: bool,
    /// In a partition that the victim led.
    pub(crate) led_by_victim: bool,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        name(f, self.phase, &self.what)?;
        let client = if self.librdkafka { "librdkafka" } else { "SDK" };
        let partitions = if self.led_by_victim { "led by the victim" } else { "led by others" };
        write!(f, ": {client} {}, {partitions}", self.doing)
    }
}

impl std::fmt::Display for Doing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Doing::Writes => "writes",
            Doing::Reads => "reads",
        })
    }
}

/// Times without an acknowledgement or without a record, sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gaps(Vec<Duration>);

impl Gaps {
    pub(crate) fn new(mut gaps: Vec<Duration>) -> Gaps {
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

/// When records were acknowledged and read, by what the client does, its number and partition, in order.
pub(crate) struct Signs(BTreeMap<(Doing, u16, u16), Vec<Nanos>>);

impl Signs {
    /// Reads them off a history.
    pub(crate) fn of(events: &[Event]) -> Signs {
        let mut signs: BTreeMap<(Doing, u16, u16), Vec<Nanos>> = BTreeMap::new();
        for event in events {
            let (whose, at) = match event {
                Event::Acked { id, at, .. } => ((Doing::Writes, id.writer, id.partition), at),
                Event::Read { reader, partition, at, .. } => ((Doing::Reads, *reader, *partition), at),
                _ => continue,
            };
            signs.entry(whose).or_default().push(*at);
        }
        signs.values_mut().for_each(|times| times.sort_unstable());
        Signs(signs)
    }

    /// For each mark, client of `clients` and partition: the longest time without a sign that touches what was done.
    pub(crate) fn gaps(&self, marks: &[Mark], clients: &Clients) -> BTreeMap<Place, Gaps> {
        let mut found: BTreeMap<Place, Vec<Duration>> = BTreeMap::new();
        for mark in marks {
            for ((doing, client, partition), times) in &self.0 {
                let Some(librdkafka) = clients.get(&(*doing, *client)) else { continue };
                let place = Place {
                    what: mark.what.clone(),
                    phase: mark.phase,
                    doing: *doing,
                    librdkafka: *librdkafka,
                    led_by_victim: mark.led.contains(partition),
                };
                found.entry(place).or_default().push(longest(times, mark.at, mark.until));
            }
        }
        found.into_iter().map(|(place, gaps)| (place, Gaps::new(gaps))).collect()
    }

    /// The longest time without a sign from `from` to `to`, of each of these clients in each partition.
    pub(crate) fn quiet(&self, from: Nanos, to: Nanos, clients: &Clients) -> BTreeMap<Doing, Gaps> {
        let mut found: BTreeMap<Doing, Vec<Duration>> = BTreeMap::new();
        for ((doing, client, _), times) in &self.0 {
            if clients.contains_key(&(*doing, *client)) {
                found.entry(*doing).or_default().push(longest(times, from, to));
            }
        }
        found.into_iter().map(|(doing, gaps)| (doing, Gaps::new(gaps))).collect()
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
    use crate::history::Content;
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

    fn acked(writer: u16, partition: u16, at: Nanos) -> Event {
        Event::Acked { id: RecordId { writer, partition, number: 0 }, offset: None, at }
    }

    fn read(reader: u16, partition: u16, at: Nanos) -> Event {
        let content = Content::Record(RecordId { writer: 0, partition, number: 0 });
        Event::Read { reader, partition, offset: 0, content, at }
    }

    fn mark(what: &str, phase: Phase, at: Nanos, until: Nanos) -> Mark {
        Mark { what: what.to_owned(), phase, at, until, led: BTreeSet::from([0]) }
    }

    #[test]
    fn gaps_are_told_apart_by_client_leader_and_what_it_does() {
        let mut events: Vec<Event> = [0, 10, 20, 30, 40].map(|at| acked(0, 1, at)).into();
        events.extend([0, 10, 40].map(|at| acked(0, 0, at)));
        events.extend([acked(9, 0, 0), acked(9, 0, 40), acked(50, 0, 0)]);
        // A reader of the same number as a writer is another client.
        events.extend([0, 15, 40].map(|at| read(0, 0, at)));
        let clients =
            BTreeMap::from([((Doing::Writes, 0), false), ((Doing::Writes, 9), true), ((Doing::Reads, 0), false)]);
        let gaps = Signs::of(&events).gaps(&[mark("kill", Phase::Fault, 12, 35)], &clients);
        let worst = |doing, librdkafka, led_by_victim| {
            let place = Place { what: "kill".to_owned(), phase: Phase::Fault, doing, librdkafka, led_by_victim };
            gaps.get(&place).map(|gaps| (gaps.count(), gaps.worst().as_nanos()))
        };
        assert_eq!(worst(Doing::Writes, false, true), Some((1, 30)));
        assert_eq!(worst(Doing::Writes, false, false), Some((1, 10)));
        assert_eq!(worst(Doing::Writes, true, true), Some((1, 40)));
        assert_eq!(worst(Doing::Writes, true, false), None);
        assert_eq!(worst(Doing::Reads, false, true), Some((1, 25)));
    }

    #[test]
    fn a_fault_and_its_end_are_told_apart() {
        let events: Vec<Event> = [0, 10, 90, 100, 110, 120].map(|at| acked(0, 1, at)).into();
        let marks = [mark("kill", Phase::Fault, 12, 95), mark("kill", Phase::Recovery, 101, 115)];
        let gaps = Signs::of(&events).gaps(&marks, &BTreeMap::from([((Doing::Writes, 0), false)]));
        let found: Vec<(String, u128)> =
            gaps.iter().map(|(place, gaps)| (place.to_string(), gaps.worst().as_nanos())).collect();
        let expected = [("kill: SDK writes, led by others", 80), ("end of kill: SDK writes, led by others", 10)];
        assert_eq!(found, expected.map(|(place, gap)| (place.to_owned(), gap)));
    }

    #[test]
    fn the_quiet_time_is_told_by_what_clients_do() {
        let mut events: Vec<Event> = [0, 10, 30, 40].map(|at| acked(0, 0, at)).into();
        events.extend([0, 40].map(|at| read(1, 0, at)));
        let clients = BTreeMap::from([((Doing::Writes, 0), false), ((Doing::Reads, 1), false)]);
        let quiet = Signs::of(&events).quiet(0, 40, &clients);
        let worst: Vec<(Doing, u128)> = quiet.iter().map(|(doing, gaps)| (*doing, gaps.worst().as_nanos())).collect();
        assert_eq!(worst, [(Doing::Writes, 20), (Doing::Reads, 40)]);
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
