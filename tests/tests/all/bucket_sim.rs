//! One partition and its bucket, by seed: the replica, the tiering, the collection and the metadata transactions that ship, over
//! a WAL that loses what was not synced, a bucket and a metadata store that misbehave. Every step is checked.
//!
//! `SIM_SEEDS=N` runs more seeds than the suite does, from `SIM_FROM` on.

mod bucket;
mod checks;
mod metadata;
mod wal;
mod world;

use millpond_core::tiering::TierRules;
use world::{Run, run};

/// Seeds that the suite runs; `rules` needs far fewer to be missed (see the gate).
const SEEDS: u64 = 45;

/// Seeds within which the removal of a rule has to be noticed.
const GATE_SEEDS: u64 = 200;

/// How many new seeds are run beside the fixed ones.
const FRESH: u64 = 5;

/// The fixed seeds, and some that are new each time; or those that are asked for.
fn seeds() -> Vec<u64> {
    let number = |name: &str| std::env::var(name).ok().map(|said| said.parse::<u64>().expect("a number"));
    let from = number("SIM_FROM");
    match number("SIM_SEEDS") {
        Some(count) => (0..count).map(|nth| from.unwrap_or(0) + nth).collect(),
        None => (0..SEEDS).chain((0..FRESH).map(|nth| from.unwrap_or(1_000_000) + nth)).collect(),
    }
}

#[test]
fn one_seed_makes_one_run() {
    let (one, other) = (run(11, TierRules::ALL), run(11, TierRules::ALL));
    assert!(one.trace.len() > 300, "a run of some length");
    assert_eq!(one.trace, other.trace);
    assert_ne!(one.trace, run(12, TierRules::ALL).trace, "and another seed another");
}

#[test]
fn nothing_acknowledged_is_lost_or_doubled_whatever_bucket_metadata_and_power_do() {
    let mut total = world::Tally::default();
    for seed in seeds() {
        let Run { trace, violation, tally } = run(seed, TierRules::ALL);
        if let Some(violation) = violation {
            let tail = trace[trace.len().saturating_sub(40)..].join("\n");
            panic!("SEED={seed}: {violation}\n{tail}");
        }
        total.add(&tally);
    }
    println!("{total:?}");
    total.check_that_everything_happened();
}

/// Rules T1, T6, G1 and G2: without one of them the checks above must fail (2.11 of the safety rules).
#[test]
fn a_rule_taken_away_is_missed() {
    let gate = |rule: &str, invariants: &[&str], rules: TierRules| {
        let violation = (0..GATE_SEEDS).find_map(|seed| run(seed, rules).violation.map(|violation| (seed, violation)));
        let (seed, violation) = violation.unwrap_or_else(|| panic!("nobody misses {rule}"));
        println!("without {rule}: seed {seed}: {violation}");
        assert!(invariants.iter().any(|name| violation.starts_with(name)), "without {rule}: {violation}");
    };
    gate("T1 (TierAboveHw)", &["S8"], TierRules { committed_only: false, ..TierRules::ALL });
    gate("T6 (TrimBeforeCommit)", &["S9"], TierRules { commit_before_trim: false, ..TierRules::ALL });
    gate("G1 (GcNoEpoch)", &["S10"], TierRules { collect_by_epoch: false, ..TierRules::ALL });
}
