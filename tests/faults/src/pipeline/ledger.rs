//! What the workers tell of their transactions, in the order in which it arrives.

use super::check::{Fate, Txn};
use super::worker::is_ours;
use crate::clock::{Nanos, between};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// One line of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// It begins a transaction.
    Begun { number: u32 },
    /// It asks for the commit of so many outputs.
    Asked { number: u32 },
    /// They are committed.
    Committed { number: u32, outputs: u64, at: Nanos },
    /// They are aborted, on purpose or not.
    Aborted { number: u32, meant: bool },
    /// It cannot go on.
    Ended { why: String },
    /// An error that ended nothing.
    Trouble { text: String },
}

impl Told {
    /// Reads a line; whatever is none is trouble.
    pub(crate) fn read(line: &str) -> Told {
        Told::understood(line).unwrap_or_else(|| Told::Trouble { text: line.to_owned() })
    }

    fn understood(line: &str) -> Option<Told> {
        let mut words = line.split(' ');
        let kind = words.next()?;
        if kind == "F" {
            return Some(Told::Ended { why: words.skip(1).collect::<Vec<&str>>().join(" ") });
        }
        let number = words.next()?.parse().ok()?;
        let mut next = || words.next()?.parse::<u64>().ok();
        match kind {
            "B" => next().map(|_| Told::Begun { number }),
            "K" => next().map(|_| Told::Asked { number }),
            "C" => Some(Told::Committed { number, outputs: next()?, at: next()? }),
            "X" => {
                next().and_then(|_| next())?;
                match words.next()? {
                    "meant" => Some(Told::Aborted { number, meant: true }),
                    "forced" => Some(Told::Aborted { number, meant: false }),
                    _ => None,
                }
            }
            _ => None,
        }
    }
}

/// How often what happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) committed: u64,
    /// Those of them that were by our own SDK.
    pub(crate) by_sdk: u64,
    pub(crate) aborted: (u64, u64),
    pub(crate) fenced: u64,
    pub(crate) lives: u64,
}

/// Takes down what workers tell.
#[derive(Default)]
pub(crate) struct Ledger {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    fates: BTreeMap<Txn, Fate>,
    commits: Vec<Nanos>,
    counts: Counts,
    /// When the first worker started.
    began: Option<Nanos>,
    /// Transactions that must not be committed any more, with those of them that are told to be.
    forbidden: BTreeSet<Txn>,
    broken: Vec<String>,
    troubles: Vec<String>,
    /// How many processes each worker was.
    lives: BTreeMap<u16, u32>,
}

/// How many messages of workers are kept: the first, since what follows is mostly of the same.
const TROUBLES_MAX: usize = 10_000;

impl State {
    fn trouble(&mut self, text: String) {
        if self.troubles.len() < TROUBLES_MAX {
            self.troubles.push(text);
        }
    }
}

impl Ledger {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A name for the next process of a worker.
    pub(crate) fn next_life(&self, worker: u16) -> u32 {
        let mut state = self.state();
        let lives = state.lives.entry(worker).or_default();
        *lives += 1;
        *lives - 1
    }

    /// A worker starts.
    pub(crate) fn starts(&self, at: Nanos) {
        let mut state = self.state();
        state.counts.lives += 1;
        state.began.get_or_insert(at);
    }

    /// Takes a line down.
    pub(crate) fn take_down(&self, worker: u16, life: u32, told: Told) {
        let mut state = self.state();
        let txn = |number| Txn { worker, life, number };
        match told {
            Told::Begun { number } => drop(state.fates.insert(txn(number), Fate::Open)),
            Told::Asked { number } => drop(state.fates.insert(txn(number), Fate::Asked)),
            Told::Committed { number, outputs, at } => {
                state.fates.insert(txn(number), Fate::Committed(outputs));
                state.commits.push(at);
                state.counts.committed += 1;
                state.counts.by_sdk += u64::from(is_ours(worker));
                if state.forbidden.contains(&txn(number)) {
                    let promise = format!("{} was committed by a zombie (rule X1)", txn(number));
                    state.broken.push(promise);
                }
            }
            Told::Aborted { number, meant } => {
                state.fates.insert(txn(number), Fate::Aborted);
                let (on_purpose, by_need) = &mut state.counts.aborted;
                *(if meant { on_purpose } else { by_need }) += 1;
            }
            Told::Ended { why } => state.trouble(format!("worker {worker}/{life} ends: {why}")),
            Told::Trouble { text } => state.trouble(format!("worker {worker}/{life}: {text}")),
        }
    }

    /// Notes that a worker is a zombie by now: what it has open, and never asked to be committed, cannot be committed any more.
    pub(crate) fn outlaw(&self, worker: u16, life: u32) {
        let mut state = self.state();
        let newest = state.fates.range(..=Txn { worker, life, number: u32::MAX }).next_back();
        let open = newest.filter(|(txn, fate)| (txn.worker, txn.life) == (worker, life) && **fate == Fate::Open);
        if let Some(txn) = open.map(|(txn, _)| *txn) {
            state.forbidden.insert(txn);
            state.counts.fenced += 1;
        }
    }

    /// Notes a failure that is no worker's own.
    pub(crate) fn trouble(&self, text: String) {
        self.state().trouble(text);
    }

    /// Notes a broken promise.
    pub(crate) fn broke(&self, promise: String) {
        self.state().broken.push(promise);
    }

    /// Whether a worker's newest process has a transaction open, and has not asked for its commit.
    pub(crate) fn has_open(&self, worker: u16) -> bool {
        let state = self.state();
        let newest = Txn { worker, life: u32::MAX, number: u32::MAX };
        let life = state.lives.get(&worker).map_or(0, |lives| lives.saturating_sub(1));
        let newest = state.fates.range(..=newest).next_back();
        newest.is_some_and(|(txn, fate)| (txn.worker, txn.life) == (worker, life) && *fate == Fate::Open)
    }

    /// How many transactions that were committed at or after this time.
    pub(crate) fn committed_since(&self, since: Nanos) -> u64 {
        self.state().commits.iter().rev().take_while(|at| **at >= since).count() as u64
    }

    pub(crate) fn counts(&self) -> Counts {
        self.state().counts
    }

    pub(crate) fn fates(&self) -> BTreeMap<Txn, Fate> {
        self.state().fates.clone()
    }

    /// The longest time without a commit, from the first start to `until`.
    pub(crate) fn standstill(&self, until: Nanos) -> Duration {
        let state = self.state();
        let Some(began) = state.began else { return Duration::ZERO };
        let mut times: Vec<Nanos> = state.commits.iter().copied().filter(|at| *at < until).collect();
        times.extend([began, until]);
        times.sort_unstable();
        times.windows(2).map(|pair| between(pair[0], pair[1])).max().unwrap_or_default()
    }

    /// What was told last of things that went wrong.
    pub(crate) fn last_words(&self) -> Vec<String> {
        let state = self.state();
        let from = state.troubles.len().saturating_sub(6);
        state.troubles[from..].to_vec()
    }

    /// What was told of things that went wrong.
    pub(crate) fn troubles(&self) -> Vec<String> {
        self.state().troubles.clone()
    }

    /// Broken promises that workers told of.
    pub(crate) fn broken(&self) -> Vec<String> {
        self.state().broken.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_what_workers_tell() {
        let check = |line: &str, expected: Told| assert_eq!(Told::read(line), expected, "{line}");
        check("B 3 77", Told::Begun { number: 3 });
        check("K 3 60 78", Told::Asked { number: 3 });
        check("C 3 60 79", Told::Committed { number: 3, outputs: 60, at: 79 });
        check("X 3 60 79 meant", Told::Aborted { number: 3, meant: true });
        check("X 3 60 79 forced", Told::Aborted { number: 3, meant: false });
        check("F 80 _FENCED it is fenced", Told::Ended { why: "_FENCED it is fenced".to_owned() });
        for line in ["", "E text", "C 3 60", "X 3 60 79", "X 3 60 79 so", "B x 1", "B 3"] {
            check(line, Told::Trouble { text: line.to_owned() });
        }
    }

    #[test]
    fn a_zombie_that_commits_what_it_had_open_is_found() {
        let ledger = Ledger::default();
        let tell = |line: &str| ledger.take_down(1, 0, Told::read(line));
        // What it asked for before may have been committed.
        ["B 0 1", "K 0 5 2"].into_iter().for_each(tell);
        ledger.outlaw(1, 0);
        ["C 0 5 3", "B 1 4"].into_iter().for_each(tell);
        ledger.outlaw(1, 0);
        assert_eq!(ledger.counts().fenced, 1);
        tell("X 1 5 5 forced");
        assert_eq!(ledger.broken(), Vec::<String>::new());
        tell("B 2 6");
        ledger.outlaw(1, 0);
        ledger.outlaw(2, 0);
        ["K 2 5 7", "C 2 5 8"].into_iter().for_each(tell);
        assert_eq!(ledger.broken().len(), 1);
        assert_eq!(ledger.counts().fenced, 2);
    }

    #[test]
    fn the_longest_standstill_counts_from_the_first_start_to_the_halt() {
        let ledger = Ledger::default();
        ledger.starts(100);
        for (number, at) in (0..).zip([130, 135, 170, 300]) {
            ledger.take_down(0, 0, Told::Committed { number, outputs: 1, at });
        }
        assert_eq!(ledger.standstill(180), Duration::from_nanos(35));
        assert_eq!(ledger.standstill(260), Duration::from_nanos(90));
        assert_eq!(ledger.committed_since(135), 3);
    }
}
