//! Which seeds the simulations of this crate run.

/// Seeds that are run every time.
const SEEDS: u64 = 1_000;

/// Seeds that are new each time, if `SIM_FROM` says where they begin.
const FRESH: u64 = 20;

/// A thousand, and a few from `SIM_FROM` on, which `tests/run` sets to the time so that the set does not grow stale. `CORE_SEEDS` asks for
/// others: `5000`, or `17..18`.
pub(crate) fn seeds() -> Vec<u64> {
    let number = |text: &str| text.parse::<u64>().unwrap_or_else(|_| panic!("`{text}` is no number of seeds"));
    let from = std::env::var("SIM_FROM").ok().map_or(0..0, |from| number(&from)..number(&from) + FRESH);
    match std::env::var("CORE_SEEDS") {
        Err(_) => (0..SEEDS).chain(from).collect(),
        Ok(asked) => match asked.split_once("..") {
            Some((first, end)) => (number(first)..number(end)).collect(),
            None => (0..number(&asked)).collect(),
        },
    }
}
