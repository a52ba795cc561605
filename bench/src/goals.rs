//! What the benchmarks are held to, all of it, and whether a run has met it. Figures of one machine are no goals: they are ratios to what
//! it does by itself, counts, and the times that the rules of `docs/safety.md` promise whatever the machine.

use std::fmt::Write;

/// What is measured, and how much of it is good enough.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Goal {
    /// What is measured, with its unit.
    what: &'static str,
    bound: Bound,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

use Bound::{AtLeast, AtMost};

/// A record goes through two processes to one write with its sync.
pub(crate) const PUBLISH: Goal =
    Goal { what: "publish: a lone record's time to that of a write and its sync", bound: AtMost(2.0) };

/// What is read twice, by the broker and by its reader, is read half as fast.
pub(crate) const REPLAY: Goal =
    Goal { what: "replay: speed to that of plain reads of the same objects", bound: AtLeast(0.5) };

/// A tail that moves is read, written and synced, as a copy is, and its record changes some times.
pub(crate) const MOVE: Goal = Goal { what: "moves: a move's time to that of a copy of the tail", bound: AtMost(2.0) };

/// What is in the object store does not move.
pub(crate) const MOVE_GROWTH: Goal =
    Goal { what: "moves: the time with most retained to that with least", bound: AtMost(1.2) };

/// An object is committed in one transaction with whatever else waits; the rest is for tries.
pub(crate) const TRANSACTIONS: Goal =
    Goal { what: "metadata: transactions for each object, beyond those of an idle fleet", bound: AtMost(1.2) };

/// Rule L1: the lease and 2 s, also where thousands are vacant at once.
pub(crate) const LED_AGAIN: Goal =
    Goal { what: "partitions: ms until all are led again after a kill", bound: AtMost(8_000.0) };

/// What is asked for, but for the edges of the measurement.
pub(crate) const COMMITS: Goal =
    Goal { what: "commits: of what groups are to commit at their pace, they do", bound: AtLeast(0.95) };

/// A group's next commit is due then: commits that take longer queue up.
pub(crate) const COMMIT_P99: Goal = Goal { what: "commits: p99 ms of those at a pace", bound: AtMost(1_000.0) };

/// As `LED_AGAIN`: whoever coordinates is gone, and its shards are read back elsewhere.
pub(crate) const COMMIT_FAILOVER: Goal =
    Goal { what: "commits: the longest ms where a coordinator is killed", bound: AtMost(8_000.0) };

/// A capacity plan that is wrong by more than half is none.
pub(crate) const BACKLOG: Goal =
    Goal { what: "backlog: the time that a backlog takes to that of the arithmetic", bound: AtMost(1.5) };

impl Goal {
    fn is_met(&self, found: f64) -> bool {
        // What is not a number meets nothing.
        match self.bound {
            AtMost(most) => found <= most,
            AtLeast(least) => found >= least,
        }
    }
}

impl std::fmt::Display for Goal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.bound {
            AtMost(most) => write!(f, "{}: at most {most}", self.what),
            AtLeast(least) => write!(f, "{}: at least {least}", self.what),
        }
    }
}

/// What a run was held to, and what it came to.
#[derive(Debug, Default)]
pub(crate) struct Goals {
    held: Vec<(Goal, String, f64)>,
}

impl Goals {
    /// Holds what was found, under these conditions, to a goal.
    pub(crate) fn hold(&mut self, goal: Goal, conditions: &str, found: f64) {
        self.held.push((goal, conditions.to_owned(), found));
    }

    /// How many goals were missed.
    pub(crate) fn missed(&self) -> usize {
        self.held.iter().filter(|(goal, _, found)| !goal.is_met(*found)).count()
    }

    /// A line for each.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for (goal, conditions, found) in &self.held {
            let word = if goal.is_met(*found) { "met" } else { "MISSED" };
            // Writing to a string does not fail.
            let _ = writeln!(text, "goal {word}: {goal}; {conditions}: {found:.2}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_that_is_missed_is_counted_and_told() {
        let mut goals = Goals::default();
        goals.hold(PUBLISH, "1 block", 2.0);
        goals.hold(REPLAY, "200 B", 0.5);
        assert_eq!(goals.missed(), 0, "{}", goals.text());
        goals.hold(PUBLISH, "4 blocks", 2.01);
        goals.hold(REPLAY, "1024 B", 0.49);
        goals.hold(BACKLOG, "cold", f64::NAN);
        assert_eq!(goals.missed(), 3, "{}", goals.text());
        let text = goals.text();
        let missed: Vec<&str> = text.lines().filter(|line| line.starts_with("goal MISSED")).collect();
        assert_eq!(missed.len(), 3, "{text}");
        assert!(missed[0].ends_with("at most 2; 4 blocks: 2.01"), "{text}");
    }
}
