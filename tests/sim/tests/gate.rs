//! The simulation finds nothing with all rules upheld, and finds each rule that is taken away: this tells that the checks check.

use millpond_core::rules::{Rule, Rules};
use millpond_sim::{run, run_unclean};

/// Seeds that are run every time.
const SEEDS: u64 = 300;

/// Seeds in which a missing rule has to show.
const GATE_SEEDS: u64 = 1_000;

/// Rules whose removal shows in far more runs than a gate can make, if at all: what else upholds them is said beside each.
const DEFENCE_IN_DEPTH: [Rule; 4] = [
    // The answer's nonce and incarnation catch nearly all of them.
    Rule::AckOfEpoch,
    // Needs two elections around one lost epoch record; the long run finds it.
    Rule::EpochPersisted,
    // The simulated WAL keeps a prefix, so a persisted high watermark is never ahead of its data.
    Rule::HighWatermarkDurable,
    // A deposed leader tiers only what is committed; needs two uploads of one range at once.
    Rule::TierCompare,
];

#[test]
fn no_seed_breaks_an_invariant() {
    // `tests/run` names a few seeds that are new each time, so that the set does not grow stale; a failing one prints itself.
    let fresh = std::env::var("SIM_FROM").map_or(1_000_000, |from| from.parse().expect("SIM_FROM is a number"));
    for seed in (1..=SEEDS).chain(fresh..fresh + 20) {
        let run = run(seed, Rules::ALL, false);
        assert_eq!(run.violation, None, "SEED={seed}; `tests/sim/run --tell {seed}` tells its story");
    }
}

#[test]
fn no_seed_of_a_topic_that_gives_records_up_breaks_anything_else() {
    let mut elections = 0;
    for seed in 1..=SEEDS {
        let run = run_unclean(seed, Rules::ALL, false);
        assert_eq!(run.violation, None, "SEED={seed}; `tests/sim/run --unclean yes --tell {seed}` tells its story");
        elections += run.unclean;
    }
    assert!(elections > SEEDS / 10, "rule E7 happens: {elections} times in {SEEDS} runs");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 1..20 {
        assert_eq!(run(seed, Rules::ALL, false), run(seed, Rules::ALL, false));
    }
    assert_ne!(run(1, Rules::ALL, false).trace, run(2, Rules::ALL, false).trace);
}

#[test]
fn every_rule_that_is_taken_away_is_missed() {
    // Assertions of the code under test are expected here, and not worth a backtrace each.
    std::panic::set_hook(Box::new(|_| {}));
    let missed = |rule: &Rule| (1..=GATE_SEEDS).any(|seed| run(seed, Rules::without(*rule), false).violation.is_some());
    let gated = Rule::ALL.iter().filter(|rule| !DEFENCE_IN_DEPTH.contains(rule));
    let unnoticed: Vec<&Rule> = gated.filter(|rule| !missed(rule)).collect();
    drop(std::panic::take_hook());
    assert_eq!(unnoticed, Vec::<&Rule>::new());
}
