//! Judges a read-process-write pipeline: what stands in its output against its input, the offsets that its group has committed, and
//! what its processes were told of their transactions. Pure.

#[cfg(test)]
mod tests;

use crate::history::{Content, Logs};
use crate::payload::RecordId;
use std::collections::{BTreeMap, HashMap};

/// Most examples kept of each kind of violation.
const EXAMPLES_MAX: usize = 5;

/// A transaction: the `number`th of the `life`th process that worked as `worker`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Txn {
    pub(crate) worker: u16,
    pub(crate) life: u32,
    pub(crate) number: u32,
}

impl std::fmt::Display for Txn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}/{}", self.worker, self.life, self.number)
    }
}

/// What an output says of itself: which input it was made of, and in which transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The input's place.
    pub(crate) partition: u16,
    pub(crate) offset: u64,
    /// Which record stood there.
    pub(crate) id: RecordId,
    pub(crate) txn: Txn,
}

/// The output's partitions, each as somebody read it from its start: offset, and what stands there; `None` for what no worker writes.
pub(crate) type Outputs = BTreeMap<u16, Vec<(u64, Option<Origin>)>>;

/// What a worker was told of a transaction last. Outputs are counted as they were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It began it, and never asked for its commit.
    Open,
    /// It asked for its commit, and was not told.
    Asked,
    /// It is committed, with so many outputs.
    Committed(u64),
    /// It is aborted.
    Aborted,
}

/// A broken promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// The group has passed an input, and no output of it is there.
    Lost,
    /// An input has two outputs.
    Doubled,
    /// An input has an output, and the group has not passed it.
    Ahead,
    /// Outputs of one key are not in the order of their inputs.
    Reordered,
    /// An output of no input, or in another partition than its key's.
    Phantom,
    /// Some of a transaction is visible, and some is not.
    Half,
    /// A worker was told that a transaction is committed, and not all of it is visible.
    Uncommitted,
    /// A transaction is visible though its commit was never asked for, or its worker was told that it is aborted.
    Unaborted,
    /// Visible, and not there for a reader of everything.
    Unwritten,
    /// The group has not passed an input, though all had time for it.
    Undrained,
}

/// What is judged.
pub(crate) struct Found<'a> {
    /// The input as it is in the end.
    pub(crate) inputs: &'a Logs,
    /// The output, as a reader of committed records sees it.
    pub(crate) visible: &'a Outputs,
    /// The output with all that is open or was aborted.
    pub(crate) written: &'a Outputs,
    /// What the group has committed, by the input's partition.
    pub(crate) offsets: &'a BTreeMap<u16, u64>,
    pub(crate) fates: &'a BTreeMap<Txn, Fate>,
    /// Whether the workers had the time to come to the input's end.
    pub(crate) drained: bool,
}

/// Broken promises: how often, and the first examples.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Violations(pub(crate) BTreeMap<Kind, (u64, Vec<String>)>);

impl Violations {
    fn add(&mut self, kind: Kind, example: impl FnOnce() -> String) {
        let (count, examples) = self.0.entry(kind).or_default();
        *count += 1;
        if examples.len() < EXAMPLES_MAX {
            examples.push(example());
        }
    }

    /// One line for each kind.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|(kind, (count, examples))| format!("{kind:?}: {count}, such as {}", examples.join("; ")))
    }
}

/// The output's partition that an input's outputs belong to, of `count`: all of a key to one.
pub(crate) fn place(id: RecordId, count: u16) -> u16 {
    // As in `clients/pipeline.py`; a key is a writer, a partition and one of three.
    let key = u32::from(id.writer) * 31 + u32::from(id.partition) * 7 + id.number % 3;
    u16::try_from(key % u32::from(count)).expect("below a u16")
}

/// Judges.
pub(crate) fn check(found: &Found) -> Violations {
    let mut violations = Violations::default();
    let counts = outputs(found, &mut violations);
    inputs(found, &counts, &mut violations);
    transactions(found, &mut violations);
    violations
}

/// Looks at each output by itself, and at the order of each key's; how many each input has.
fn outputs(found: &Found, violations: &mut Violations) -> HashMap<(u16, u64), u64> {
    let partitions = u16::try_from(found.visible.len()).expect("few");
    let mut counts: HashMap<(u16, u64), u64> = HashMap::new();
    for (partition, outputs) in found.visible {
        let mut newest: HashMap<(u16, u16, u32), u64> = HashMap::new();
        for (offset, origin) in outputs {
            let at = format_args!("at {partition}:{offset}");
            let Some(origin) = origin else {
                violations.add(Kind::Phantom, || format!("{at} stands what no worker writes"));
                continue;
            };
            let input = (origin.partition, origin.offset);
            if stands(found.inputs, input) != Some(Content::Record(origin.id)) {
                violations.add(Kind::Phantom, || format!("{at} {origin:?}, which is no input"));
            } else if place(origin.id, partitions) != *partition {
                violations.add(Kind::Phantom, || format!("{at} {origin:?}, which belongs elsewhere"));
            }
            let count = counts.entry(input).or_default();
            *count += 1;
            if *count > 1 {
                violations.add(Kind::Doubled, || format!("{at} again the output of {input:?}, by {}", origin.txn));
                continue;
            }
            let key = (origin.id.writer, origin.id.partition, origin.id.number % 3);
            let newest = newest.entry(key).or_insert(origin.offset);
            if *newest > origin.offset {
                violations.add(Kind::Reordered, || format!("{at} the output of {input:?}, after that of {newest}"));
            }
            *newest = origin.offset.max(*newest);
        }
    }
    counts
}

/// What stands at a place of the input.
fn stands(inputs: &Logs, (partition, offset): (u16, u64)) -> Option<Content> {
    let log = inputs.get(&partition)?;
    let index = log.binary_search_by_key(&offset, |(offset, _)| *offset).ok()?;
    Some(log[index].1)
}

/// Every input below the group's offset has an output, and none above it has: offsets and outputs were committed together.
fn inputs(found: &Found, counts: &HashMap<(u16, u64), u64>, violations: &mut Violations) {
    for (partition, log) in found.inputs {
        let passed = found.offsets.get(partition).copied().unwrap_or_default();
        for (offset, _) in log {
            let there = counts.contains_key(&(*partition, *offset));
            if *offset < passed && !there {
                violations.add(Kind::Lost, || format!("{partition}:{offset}; the group is at {passed}"));
            }
            if *offset >= passed && there {
                violations.add(Kind::Ahead, || format!("{partition}:{offset}; the group is at {passed}"));
            }
        }
        let end = log.last().map_or(0, |(offset, _)| offset + 1);
        if found.drained && passed != end {
            violations.add(Kind::Undrained, || format!("partition {partition}: at {passed} of {end}"));
        }
    }
}

/// Every transaction is visible whole or not at all, as its worker was told.
fn transactions(found: &Found, violations: &mut Violations) {
    let (visible, written) = (by_transaction(found.visible), by_transaction(found.written));
    for (txn, written) in &written {
        let seen = visible.get(txn).copied().unwrap_or_default();
        if seen != 0 && seen < *written {
            violations.add(Kind::Half, || format!("{txn}: {seen} of {written} outputs"));
        }
    }
    for (txn, seen) in &visible {
        let there = written.get(txn).copied().unwrap_or_default();
        if there < *seen {
            violations.add(Kind::Unwritten, || format!("{txn}: {seen} of {there} outputs"));
        }
        match found.fates.get(txn) {
            Some(Fate::Asked | Fate::Committed(_)) => {}
            fate => violations.add(Kind::Unaborted, || format!("{txn}: {seen} outputs; its worker knows {fate:?}")),
        }
    }
    for (txn, fate) in found.fates {
        let seen = visible.get(txn).copied().unwrap_or_default();
        if let Fate::Committed(sent) = fate
            && seen != *sent
        {
            violations.add(Kind::Uncommitted, || format!("{txn}: {seen} of {sent} outputs"));
        }
    }
}

fn by_transaction(outputs: &Outputs) -> BTreeMap<Txn, u64> {
    let mut counts = BTreeMap::new();
    for origin in outputs.values().flatten().filter_map(|(_, origin)| origin.as_ref()) {
        *counts.entry(origin.txn).or_default() += 1;
    }
    counts
}
