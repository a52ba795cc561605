//! The simulation finds nothing with all rules upheld, and finds each rule that is taken away: this tells that the checks check.

use millpond_core::rules::{Rule, Rules};
use millpond_sim::{Run, STEPS, Script, run_script, shrink};
use std::collections::BTreeMap;

/// Seeds that are run every time.
const SEEDS: u64 = 300;

/// Seeds that are run every time where topics ask for unclean elections (rule E7).
const UNCLEAN_SEEDS: u64 = 400;

/// Seeds in which a missing rule has to show.
const GATE_SEEDS: u64 = 1_000;

/// The fixed seeds, and a few from `SIM_FROM` on, which `tests/run` sets anew each time, so that the set does not grow stale.
fn seeds(fixed: u64) -> impl Iterator<Item = u64> {
    let fresh = std::env::var("SIM_FROM").map_or(1_000_000, |from| from.parse().expect("SIM_FROM is a number"));
    (1..=fixed).chain(fresh..fresh + 20)
}

fn run(seed: u64, rules: Rules) -> Run {
    millpond_sim::run(seed, rules, STEPS, false)
}

#[test]
fn no_seed_breaks_an_invariant() {
    let mut totals: BTreeMap<String, u64> = BTreeMap::new();
    for seed in seeds(SEEDS) {
        let run = run(seed, Rules::ALL);
        run.counts.into_iter().for_each(|(name, count)| *totals.entry(name).or_default() += count);
        assert_eq!(run.violation, None, "SEED={seed}; `tests/sim/run --tell {seed}` tells its story; {}", run.weather);
    }
    // What never happens in any run is not simulated.
    let missing: Vec<&String> = totals.iter().filter(|(_, total)| **total == 0).map(|(name, _)| name).collect();
    assert_eq!(missing, Vec::<&String>::new());
}

#[test]
fn no_seed_of_topics_that_give_records_up_breaks_anything_else() {
    let (mut elections, mut holes) = (0, 0);
    for seed in seeds(UNCLEAN_SEEDS) {
        let run = millpond_sim::run_unclean(seed, Rules::ALL, STEPS, false);
        let story = "tests/sim/run --unclean yes --tell";
        assert_eq!(run.violation, None, "SEED={seed}; `{story} {seed}` tells its story; {}", run.weather);
        let count = |name: &str| run.counts.iter().find(|(known, _)| known == name).map_or(0, |(_, count)| *count);
        (elections, holes) = (elections + count("unclean"), holes + count("holes"));
    }
    assert!(elections > UNCLEAN_SEEDS / 4, "rule E7 happens: {elections} times in {UNCLEAN_SEEDS} runs");
    assert!(holes > 0, "rule C1: a winner ends below the log start, and passes over what was deleted");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 1..20 {
        assert_eq!(run(seed, Rules::ALL), run(seed, Rules::ALL));
    }
    assert_ne!(run(1, Rules::ALL).trace, run(2, Rules::ALL).trace);
}

#[test]
fn a_failing_run_is_made_smaller_and_fails_in_the_same_way() {
    std::panic::set_hook(Box::new(|_| {}));
    let scripts = (1..=GATE_SEEDS).map(|seed| Script::new(seed, Rules::without(Rule::StartReadInOffice)));
    let whole = scripts.into_iter().find(|script| run_script(script, false).violation.is_some()).expect("it is missed");
    let (small, run) = shrink(&whole).expect("it fails");
    drop(std::panic::take_hook());
    assert!(run.violation.as_ref().is_some_and(|violation| violation.starts_with("S22")), "{:?}", run.violation);
    assert!(small.steps < STEPS && small.calm.len() > millpond_sim::faults().len() / 2, "{small:?}");
    assert_eq!(run_script(&small, false), run);
    assert_eq!(
        shrink(&Script::new(whole.seed, Rules::ALL)).map(|(script, _)| script.seed),
        None,
        "nothing is broken there"
    );
}

#[test]
fn every_rule_that_is_taken_away_is_missed() {
    // Assertions of the code under test are expected here, and not worth a backtrace each.
    std::panic::set_hook(Box::new(|_| {}));
    let missed = |rule: &Rule| (1..=GATE_SEEDS).any(|seed| run(seed, Rules::without(*rule)).violation.is_some());
    let unnoticed: Vec<&Rule> = Rule::ALL.iter().filter(|rule| !missed(rule)).collect();
    drop(std::panic::take_hook());
    assert_eq!(unnoticed, Vec::<&Rule>::new());
}
