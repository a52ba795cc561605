//! `millpond-sim`: runs the replication of one partition by seed, with everything around it simulated, and checks the safety
//! invariants after every step. `--seeds N --from S`, `--without RULE` to see a rule missed, `--tell SEED` for one seed's story.

mod checks;
mod client;
mod disk;
mod etcd;
mod node;
mod rng;
mod world;

use millpond_core::rules::{Rule, Rules};
use std::process::ExitCode;
use world::World;

/// Faulty steps of one run.
const STEPS: u64 = 1_500;

struct Asked {
    seeds: u64,
    from: u64,
    without: Option<Rule>,
    tell: bool,
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Asked, String> {
    let mut asked = Asked { seeds: 1_000, from: 1, without: None, tell: false };
    while let Some(flag) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{flag} wants a value"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{flag} wants a number, not `{value}`"));
        match flag.as_str() {
            "--seeds" => asked.seeds = number()?,
            "--from" => asked.from = number()?,
            "--tell" => (asked.from, asked.seeds, asked.tell) = (number()?, 1, true),
            "--without" => {
                let rule = Rule::ALL.iter().find(|rule| format!("{rule:?}") == value);
                asked.without = Some(*rule.ok_or_else(|| format!("no rule `{value}`; one of {:?}", Rule::ALL))?);
            }
            _ => return Err(format!("no flag `{flag}`; use --seeds, --from, --without, --tell SEED")),
        }
    }
    Ok(asked)
}

fn main() -> ExitCode {
    let asked = match parse(std::env::args().skip(1)) {
        Ok(asked) => asked,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    let rules = asked.without.map_or(Rules::ALL, Rules::without);
    let (mut failed, mut acknowledged, mut elections, mut wipes, mut hours) = (0u64, 0, 0, 0, 0.0);
    for seed in asked.from..asked.from + asked.seeds {
        let mut world = World::new(seed, rules);
        world.tell = asked.tell;
        if let Err(error) = world.run(STEPS) {
            failed += 1;
            println!("SEED={seed} {error}");
        }
        acknowledged += world.acknowledged();
        elections += world.etcd.elections;
        wipes += world.wipes;
        hours += world.now_ms as f64 / 3_600_000.0;
    }
    println!(
        "seeds={} from={} failed={failed} acknowledged={acknowledged} elections={elections} wipes={wipes} simulated_hours={hours:.2}",
        asked.seeds, asked.from
    );
    if failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
