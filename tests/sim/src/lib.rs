//! The replication of one partition by seed: the very `core::Replica` that brokers run, with disks, network, store, bucket and
//! clients simulated around it. What may go wrong is drawn anew for each seed, and the invariants are checked after every step.

mod checks;
mod client;
mod disk;
mod etcd;
mod node;
mod rng;
mod world;

use millpond_core::rules::Rules;
use std::panic::{AssertUnwindSafe, catch_unwind};
use world::World;

/// Faulty steps of one run, before it heals.
pub const STEPS: u64 = 1_500;

/// How one run went.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// The seed.
    pub seed: u64,
    /// The invariant that was broken, if one was.
    pub violation: Option<String>,
    /// Hash of everything that happened: equal for equal seeds.
    pub trace: u64,
    /// Batches that clients know to be acknowledged.
    pub acknowledged: u64,
    /// Elections.
    pub elections: u64,
    /// Those of them that a leader asked for (rule E9).
    pub transfers: u64,
    /// Those of them that gave something up (rule E7).
    pub unclean: u64,
    /// Disks that were lost.
    pub wipes: u64,
    /// Simulated time, in milliseconds.
    pub simulated_ms: u64,
}

/// Runs one seed. `tell` prints its story.
///
/// A broken assertion of the code under test counts as a violation.
#[must_use]
pub fn run(seed: u64, rules: Rules, tell: bool) -> Run {
    run_as(seed, rules, tell, false)
}

/// The same of a topic that asks for unclean elections (rule E7): what one gives up is no violation, everything else is.
#[must_use]
pub fn run_unclean(seed: u64, rules: Rules, tell: bool) -> Run {
    run_as(seed, rules, tell, true)
}

fn run_as(seed: u64, rules: Rules, tell: bool, unclean: bool) -> Run {
    let mut world = World::new(seed, rules, unclean);
    world.tell = tell;
    let outcome = catch_unwind(AssertUnwindSafe(|| world.run(STEPS)));
    let violation = match outcome {
        Ok(outcome) => outcome.err(),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
            Some(format!("assertion: {}", text.unwrap_or_default()))
        }
    };
    Run {
        seed,
        violation,
        trace: world.trace,
        acknowledged: world.acknowledged() as u64,
        elections: world.etcd.elections,
        transfers: world.etcd.transfers,
        unclean: world.unclean_elections,
        wipes: world.wipes,
        simulated_ms: world.now_ms,
    }
}
