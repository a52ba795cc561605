//! A fleet by seed: the very replicas, elections, controller, tiering and collection of `core` that brokers run, with clock, disks,
//! network, store, bucket and clients simulated around them. What may go wrong is drawn anew for each seed, and the invariants
//! are checked after every step.

mod bucket;
mod checks;
mod client;
mod etcd;
mod log;
mod node;
mod rng;
mod shrink;
mod wal;
mod weather;
mod world;

use millpond_core::rules::Rules;
pub use shrink::shrink;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use weather::Weather;
use world::World;
use world::actions::ACTIONS;

/// Faulty steps of one run, before it heals.
pub const STEPS: u64 = 1_800;

/// How one run went.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// The seed.
    pub seed: u64,
    /// The invariant that was broken, if one was.
    pub violation: Option<String>,
    /// What was drawn for it: brokers, topics, faults and their rates.
    pub weather: String,
    /// Hash of everything that happened: equal for equal seeds.
    pub trace: u64,
    /// What happened, by its name: what was counted, and every fault that had an effect.
    pub counts: Vec<(String, u64)>,
    /// Simulated time, in milliseconds.
    pub simulated_ms: u64,
}

/// What makes a run: the same script gives the same run.
#[derive(Clone, Debug)]
pub struct Script {
    /// What everything is drawn from.
    pub seed: u64,
    /// What the code under test upholds.
    pub rules: Rules,
    /// Faulty steps, before it heals.
    pub steps: u64,
    /// Whether all topics set `unclean.leader.election.enable` (rule E7) and any disk may be lost: what such an election gives up is no
    /// violation, everything else is.
    pub unclean: bool,
    /// Faults that are left out, by their names.
    pub calm: BTreeSet<String>,
}

impl Script {
    /// A run of usual length.
    #[must_use]
    pub fn new(seed: u64, rules: Rules) -> Script {
        Script { seed, rules, steps: STEPS, unclean: false, calm: BTreeSet::new() }
    }
}

/// Runs one seed for `steps` steps and heals it. `tell` prints its story.
///
/// A broken assertion of the code under test counts as a violation.
#[must_use]
pub fn run(seed: u64, rules: Rules, steps: u64, tell: bool) -> Run {
    run_script(&Script { steps, ..Script::new(seed, rules) }, tell)
}

/// The same of topics that ask for unclean elections; see `Script::unclean`.
#[must_use]
pub fn run_unclean(seed: u64, rules: Rules, steps: u64, tell: bool) -> Run {
    run_script(&Script { steps, unclean: true, ..Script::new(seed, rules) }, tell)
}

/// The names of what a script may leave out.
#[must_use]
pub fn faults() -> Vec<String> {
    Weather::faults()
}

/// As `run`, by a script.
#[must_use]
pub fn run_script(script: &Script, tell: bool) -> Run {
    let Script { seed, rules, steps, unclean, ref calm } = *script;
    let mut world = World::new(seed, rules, unclean);
    world.weather.leave_out(calm);
    world.tell = tell;
    let outcome = catch_unwind(AssertUnwindSafe(|| world.run(steps)));
    let violation = match outcome {
        Ok(outcome) => outcome.err(),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
            Some(format!("assertion: {}", text.unwrap_or_default()))
        }
    };
    let counts = world.etcd.counts;
    let mut named = vec![
        ("acknowledged".to_owned(), world.acknowledged() as u64),
        ("committed_in_trouble".to_owned(), world.troubled),
        ("steps".to_owned(), world.steps),
        ("read".to_owned(), world.reads),
        ("elections".to_owned(), counts.elections),
        ("transfers".to_owned(), counts.transfers),
        ("moves".to_owned(), counts.moves),
        ("segments".to_owned(), counts.segments),
        ("log_starts_moved".to_owned(), counts.advances),
    ];
    if world.is_unclean() {
        named.extend([("unclean".to_owned(), counts.unclean), ("holes".to_owned(), world.holes)]);
    }
    let faults = ACTIONS.iter().zip(&world.happened).filter(|((_, _, fault), _)| *fault);
    named.extend(faults.map(|((action, ..), count)| (format!("{action:?}"), *count)));
    Run {
        seed,
        violation,
        weather: world.weather.to_string(),
        trace: world.trace,
        counts: named,
        simulated_ms: world.now_ms,
    }
}
