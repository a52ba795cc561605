//! Judges a history against the log as it is in the end: what was promised and broken. Pure; one pass over events in order of time.
//!
//! The kinds are those of section 3.4 of Jepsen's Kafka workload (rule of testing 10 in `docs/safety.md`), by plain names.

#[cfg(test)]
mod tests;

use crate::clock::Nanos;
use crate::history::{Content, Event, Logs};
use crate::payload::RecordId;
use std::collections::{BTreeMap, HashMap};

/// Most examples kept of each kind of violation.
const EXAMPLES_MAX: usize = 5;

/// A broken promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Acknowledged, and not in the log.
    Lost,
    /// Acknowledged at one offset, and in the log at another.
    Moved,
    /// In the log twice.
    Duplicate,
    /// A writer's records of a partition are not in the order in which they were sent.
    Reordered,
    /// Sent after another one was acknowledged, and before it in the log.
    Realtime,
    /// Refused for good, and in the log.
    Resurrected,
    /// In the log or read, and never sent, or other bytes than were sent, or in another partition.
    Phantom,
    /// Two contents were seen at one offset.
    Inconsistent,
    /// Read, and not in the log: it was shown before it was committed, or lost afterwards.
    Vanished,
    /// A reader went back.
    Nonmonotonic,
    /// A reader skipped offsets.
    Skipped,
    /// The log has offsets that nobody can read.
    Gap,
    /// A leader told an end below what was acknowledged before it was asked.
    StaleLatest,
    /// In the log, and a reader that should have come by has not.
    Unseen,
    /// Neither acknowledged nor given up.
    Unsettled,
}

/// A history with what it ended in.
pub(crate) struct Run<'a> {
    /// What clients did and were told. Each client's events are in its own order.
    pub(crate) events: &'a [Event],
    /// Each partition as it was read in the end, from its start, by offset.
    pub(crate) logs: &'a Logs,
    /// Readers that began at the start of every partition and should have read all of it.
    pub(crate) readers: &'a [u16],
}

/// What the checker found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// How often each promise was broken, with the first examples.
    pub(crate) violations: BTreeMap<Kind, (u64, Vec<String>)>,
    /// Records sent, acknowledged, refused, and given up with an unknown outcome.
    pub(crate) sent: u64,
    pub(crate) acked: u64,
    pub(crate) refused: u64,
    pub(crate) unknown: u64,
    /// Of those with an unknown outcome, how many are in the log.
    pub(crate) unknown_written: u64,
    /// Records read on the way, not counting the last reading.
    pub(crate) reads: u64,
    /// Records in the log.
    pub(crate) records: u64,
}

impl Verdict {
    /// Whether every promise was kept.
    pub(crate) fn holds(&self) -> bool {
        self.violations.is_empty()
    }

    /// Adds a violation.
    pub(crate) fn add(&mut self, kind: Kind, example: impl FnOnce() -> String) {
        let (count, examples) = self.violations.entry(kind).or_default();
        *count += 1;
        if examples.len() < EXAMPLES_MAX {
            examples.push(example());
        }
    }
}

/// How a record's sending ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    None,
    Acked,
    Refused,
    Unknown,
}

/// What is known of a record that was sent.
struct Sent {
    outcome: Outcome,
    /// The greatest offset of its partition that was acknowledged before it was sent.
    after: Option<u64>,
}

/// Judges a run.
pub(crate) fn check(run: &Run) -> Verdict {
    let mut verdict = Verdict::default();
    let index = index(run.logs, &mut verdict);
    let sent = walk(run, &index, &mut verdict);
    judge_log(run.logs, &sent, &mut verdict);
    for (id, sent) in &sent {
        match sent.outcome {
            Outcome::None => verdict.add(Kind::Unsettled, || format!("{id}")),
            Outcome::Acked if !index.places.contains_key(id) => {
                verdict.add(Kind::Lost, || format!("{id} was acknowledged, and is not in the log"));
            }
            Outcome::Refused if index.places.contains_key(id) => {
                verdict.add(Kind::Resurrected, || format!("{id} was refused, and is in the log"));
            }
            Outcome::Unknown => verdict.unknown_written += u64::from(index.places.contains_key(id)),
            _ => {}
        }
    }
    read_all(run, &mut verdict);
    verdict
}

/// Where everything is in the end.
struct Index<'a> {
    logs: &'a Logs,
    places: HashMap<RecordId, u64>,
}

impl Index<'_> {
    /// What is at an offset.
    fn at(&self, partition: u16, offset: u64) -> Option<Content> {
        let log = self.logs.get(&partition)?;
        // Dense logs are the rule, and then the offset is the place.
        let dense = usize::try_from(offset).ok().and_then(|place| log.get(place)).filter(|(at, _)| *at == offset);
        let found = dense.or_else(|| log.binary_search_by_key(&offset, |(at, _)| *at).ok().map(|place| &log[place]));
        found.map(|(_, content)| *content)
    }
}

fn index<'a>(logs: &'a Logs, verdict: &mut Verdict) -> Index<'a> {
    let mut places = HashMap::new();
    for (partition, log) in logs {
        let mut next = 0;
        for (offset, content) in log {
            verdict.records += 1;
            if *offset != next {
                verdict.add(Kind::Gap, || format!("partition {partition}: offset {offset} comes after {next} was due"));
            }
            next = offset + 1;
            let Content::Record(id) = content else { continue };
            if let Some(first) = places.insert(*id, *offset) {
                verdict.add(Kind::Duplicate, || format!("{id} is at {first} and at {offset}"));
            }
        }
    }
    Index { logs, places }
}

/// Goes through the events in order of time. Of those at one moment, what was sent comes before what was told.
fn walk(run: &Run, index: &Index, verdict: &mut Verdict) -> HashMap<RecordId, Sent> {
    let mut timed: Vec<(Nanos, bool, &Event)> = Vec::new();
    let mut readers: BTreeMap<(u16, u16), u64> = BTreeMap::new();
    for event in run.events {
        match event {
            Event::Sent { at, .. } => timed.push((*at, false, event)),
            Event::Acked { at, .. } | Event::Refused { at, .. } | Event::Unknown { at, .. } => {
                timed.push((*at, true, event));
            }
            Event::Latest { asked, .. } => timed.push((*asked, false, event)),
            Event::Started { reader, partition, offset } => {
                readers.insert((*reader, *partition), *offset);
            }
            Event::Read { reader, partition, offset, content, .. } => {
                verdict.reads += 1;
                let due = readers.entry((*reader, *partition)).or_default();
                let place = || format!("reader {reader}, partition {partition}: offset {offset} where {due} was due");
                match offset.cmp(due) {
                    std::cmp::Ordering::Less => verdict.add(Kind::Nonmonotonic, place),
                    std::cmp::Ordering::Greater => verdict.add(Kind::Skipped, place),
                    std::cmp::Ordering::Equal => {}
                }
                *due = offset + 1;
                judge_read(*partition, *offset, *content, index, verdict);
            }
        }
    }
    timed.sort_by_key(|(at, told, _)| (*at, *told));
    let mut sent: HashMap<RecordId, Sent> = HashMap::new();
    let mut acked: BTreeMap<u16, u64> = BTreeMap::new();
    for (_, _, event) in timed {
        match event {
            Event::Sent { id, .. } => {
                verdict.sent += 1;
                let after = acked.get(&id.partition).copied();
                let twice = sent.insert(*id, Sent { outcome: Outcome::None, after });
                assert!(twice.is_none(), "a writer numbers its records: {id}");
            }
            Event::Acked { id, offset, .. } => {
                verdict.acked += 1;
                settle(&mut sent, *id, Outcome::Acked);
                let Some(offset) = offset else { continue };
                judge_place(*id, *offset, index, verdict);
                let end = acked.entry(id.partition).or_default();
                *end = (*end).max(*offset);
            }
            Event::Refused { id, .. } => {
                verdict.refused += 1;
                settle(&mut sent, *id, Outcome::Refused);
            }
            Event::Unknown { id, .. } => {
                verdict.unknown += 1;
                settle(&mut sent, *id, Outcome::Unknown);
            }
            Event::Latest { partition, offset, .. } => match acked.get(partition) {
                Some(acked) if acked >= offset => verdict.add(Kind::StaleLatest, || {
                    format!("partition {partition}: the end was told as {offset} after {acked} was acknowledged")
                }),
                _ => {}
            },
            Event::Started { .. } | Event::Read { .. } => unreachable!("they were not taken along"),
        }
    }
    sent
}

fn settle(sent: &mut HashMap<RecordId, Sent>, id: RecordId, outcome: Outcome) {
    let found = sent.get_mut(&id).expect("the recorder takes down what is sent before what becomes of it");
    assert!(found.outcome == Outcome::None, "a record has one outcome: {id}");
    found.outcome = outcome;
}

/// An acknowledged record has to be where it was said to be.
fn judge_place(id: RecordId, offset: u64, index: &Index, verdict: &mut Verdict) {
    // One that is nowhere is lost, which is said once.
    let Some(place) = index.places.get(&id) else { return };
    match index.at(id.partition, offset) {
        Some(Content::Record(there)) if there == id => {}
        _ => verdict.add(Kind::Moved, || format!("{id} was acknowledged at {offset}, and is at {place}")),
    }
}

fn judge_read(partition: u16, offset: u64, content: Content, index: &Index, verdict: &mut Verdict) {
    match index.at(partition, offset) {
        None => verdict.add(Kind::Vanished, || {
            format!("partition {partition}: {content:?} was read at {offset}, where the log has nothing")
        }),
        Some(there) if there != content => verdict.add(Kind::Inconsistent, || {
            format!("partition {partition}, offset {offset}: {content:?} was read, and {there:?} is there")
        }),
        Some(_) => {}
    }
}

/// What the log holds was sent, there, and stands in order.
fn judge_log(logs: &Logs, sent: &HashMap<RecordId, Sent>, verdict: &mut Verdict) {
    for (partition, log) in logs {
        let mut newest: BTreeMap<u16, u32> = BTreeMap::new();
        for (offset, content) in log {
            let known = match content {
                Content::Record(id) if id.partition == *partition => sent.get(id).map(|sent| (id, sent)),
                _ => None,
            };
            let Some((id, sent)) = known else {
                verdict.add(Kind::Phantom, || format!("partition {partition}, offset {offset}: {content:?}"));
                continue;
            };
            if let Some(after) = sent.after.filter(|after| after >= offset) {
                verdict.add(Kind::Realtime, || {
                    format!("{id} is at {offset}, and was sent after offset {after} had been acknowledged")
                });
            }
            match newest.get(&id.writer) {
                Some(before) if *before >= id.number => {
                    verdict.add(Kind::Reordered, || format!("{id} at {offset} comes after number {before}"));
                }
                _ => drop(newest.insert(id.writer, id.number)),
            }
        }
    }
}

/// Readers that began at the start have read everything.
fn read_all(run: &Run, verdict: &mut Verdict) {
    let mut ends: BTreeMap<(u16, u16), u64> = BTreeMap::new();
    for event in run.events {
        if let Event::Read { reader, partition, offset, .. } = event {
            let end = ends.entry((*reader, *partition)).or_default();
            *end = (*end).max(offset + 1);
        }
    }
    for reader in run.readers {
        for (partition, log) in run.logs {
            let end = log.last().map_or(0, |(offset, _)| offset + 1);
            let read = ends.get(&(*reader, *partition)).copied().unwrap_or_default();
            if read < end {
                verdict.add(Kind::Unseen, || {
                    format!("reader {reader}, partition {partition}: it has come to {read} of {end}")
                });
            }
        }
    }
}
