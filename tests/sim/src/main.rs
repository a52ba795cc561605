//! `millpond-sim`: runs seeds and says what they showed. `tests/sim/run` calls it.

use millpond_core::rules::{Rule, Rules};
use std::process::ExitCode;

const USAGE: &str = "usage: millpond-sim [--seeds N] [--from S] [--without RULE] [--unclean yes] [--tell SEED]";

struct Asked {
    seeds: u64,
    from: u64,
    without: Option<Rule>,
    tell: bool,
    /// Of a topic that asks for unclean elections.
    unclean: bool,
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Asked, String> {
    let mut asked = Asked { seeds: 1_000, from: 1, without: None, tell: false, unclean: false };
    while let Some(flag) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{flag} wants a value; {USAGE}"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{flag} wants a number, not `{value}`"));
        match flag.as_str() {
            "--seeds" => asked.seeds = number()?,
            "--from" => asked.from = number()?,
            "--unclean" => asked.unclean = value == "yes",
            "--tell" => (asked.from, asked.seeds, asked.tell) = (number()?, 1, true),
            "--without" => {
                let rule = Rule::ALL.iter().find(|rule| format!("{rule:?}") == value);
                asked.without = Some(*rule.ok_or_else(|| format!("no rule `{value}`; one of {:?}", Rule::ALL))?);
            }
            _ => return Err(format!("no flag `{flag}`; {USAGE}")),
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
    let (mut failed, mut acknowledged, mut elections, mut transfers, mut unclean, mut wipes, mut simulated_ms) =
        (0u64, 0, 0, 0, 0, 0, 0);
    for seed in asked.from..asked.from + asked.seeds {
        let run = match asked.unclean {
            true => millpond_sim::run_unclean(seed, rules, asked.tell),
            false => millpond_sim::run(seed, rules, asked.tell),
        };
        if let Some(violation) = &run.violation {
            failed += 1;
            println!("SEED={seed} {violation}");
        }
        acknowledged += run.acknowledged;
        elections += run.elections;
        transfers += run.transfers;
        unclean += run.unclean;
        wipes += run.wipes;
        simulated_ms += run.simulated_ms;
    }
    println!(
        "seeds={} from={} violations={failed} acknowledged={acknowledged} elections={elections} transfers={transfers} unclean={unclean} lost_disks={wipes} simulated_hours={:.1}",
        asked.seeds,
        asked.from,
        simulated_ms as f64 / 3_600_000.0
    );
    if failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
