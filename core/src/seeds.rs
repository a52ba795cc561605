//! Which seeds the tests by seed run: a fixed set, and a few that are new each time, so that the set does not grow stale.
//!
//! The only place of this crate that reads its surroundings, and for tests alone.

use std::ops::Range;

/// How many new seeds are run beside the fixed ones.
const FRESH: u64 = 20;

/// Runs below this say nothing about how often things happen.
pub(crate) const RUNS_THAT_TELL: usize = 100;

/// The fixed seeds, and some from `SIM_FROM` on, which `tests/run` sets. With `SIM_SEEDS` so many from `SIM_FROM` (or 0) on instead.
pub(crate) fn seeds(fixed: Range<u64>) -> Vec<u64> {
    let number = |name: &str| {
        let said = std::env::var(name).ok()?;
        Some(said.parse::<u64>().unwrap_or_else(|_| panic!("{name} is a number, not `{said}`")))
    };
    let from = number("SIM_FROM");
    match number("SIM_SEEDS") {
        Some(count) => {
            let from = from.unwrap_or(0);
            (from..from + count).collect()
        }
        None => {
            let from = from.unwrap_or(1_000_000);
            fixed.chain(from..from + FRESH).collect()
        }
    }
}
