//! `millpond-sim`: runs seeds and says what they showed. `tests/sim/run` calls it.

use millpond_core::rules::{Rule, Rules};
use millpond_sim::Script;
use std::collections::BTreeSet;
use std::process::ExitCode;

const USAGE: &str = "usage: millpond-sim [--seeds N] [--from S] [--without RULE] [--tell SEED] [--shrink SEED] [--steps N] [--calm FAULT,…] [--unclean yes]";

struct Asked {
    seeds: u64,
    from: u64,
    without: Option<Rule>,
    tell: bool,
    /// A failing seed is made smaller.
    shrink: bool,
    steps: u64,
    /// Faults that are left out.
    calm: BTreeSet<String>,
    /// Of topics that ask for unclean elections (rule E7).
    unclean: bool,
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Asked, String> {
    let mut asked = Asked {
        seeds: 1_000,
        from: 1,
        without: None,
        tell: false,
        shrink: false,
        steps: millpond_sim::STEPS,
        calm: BTreeSet::new(),
        unclean: false,
    };
    while let Some(flag) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{flag} wants a value; {USAGE}"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{flag} wants a number, not `{value}`"));
        match flag.as_str() {
            "--seeds" => asked.seeds = number()?,
            "--steps" => asked.steps = number()?,
            "--from" => asked.from = number()?,
            "--unclean" => asked.unclean = value == "yes",
            "--tell" => (asked.from, asked.seeds, asked.tell) = (number()?, 1, true),
            "--shrink" => (asked.from, asked.seeds, asked.shrink) = (number()?, 1, true),
            "--calm" => {
                let known = millpond_sim::faults();
                for fault in value.split(',') {
                    if !known.iter().any(|known| known == fault) {
                        return Err(format!("no fault `{fault}`; one of {}", known.join(", ")));
                    }
                    asked.calm.insert(fault.to_owned());
                }
            }
            "--without" => {
                let rule = Rule::ALL.iter().find(|rule| format!("{rule:?}") == value);
                asked.without = Some(*rule.ok_or_else(|| format!("no rule `{value}`; one of {:?}", Rule::ALL))?);
            }
            _ => return Err(format!("no flag `{flag}`; {USAGE}")),
        }
    }
    Ok(asked)
}

/// What repeats a run, beside its seed.
fn flags(script: &Script, without: Option<Rule>) -> String {
    let mut flags = String::new();
    if script.unclean {
        flags += " --unclean yes";
    }
    if let Some(rule) = without {
        flags += &format!(" --without {rule:?}");
    }
    if script.steps != millpond_sim::STEPS {
        flags += &format!(" --steps {}", script.steps);
    }
    if !script.calm.is_empty() {
        let calm: Vec<&str> = script.calm.iter().map(String::as_str).collect();
        flags += &format!(" --calm {}", calm.join(","));
    }
    flags
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
    // Seeds do not survive changes of the code, so a failure names the code too.
    let commit = std::env::var("MILLPOND_SIM_COMMIT").unwrap_or_else(|_| "unknown".to_owned());
    let (mut failed, mut simulated_ms) = (0u64, 0);
    let mut totals: Vec<(String, u64)> = Vec::new();
    for seed in asked.from..asked.from + asked.seeds {
        let script = Script { seed, rules, steps: asked.steps, unclean: asked.unclean, calm: asked.calm.clone() };
        let (script, run) = match asked.shrink.then(|| millpond_sim::shrink(&script)).flatten() {
            Some(smaller) => smaller,
            None => (script.clone(), millpond_sim::run_script(&script, asked.tell)),
        };
        if let Some(violation) = &run.violation {
            failed += 1;
            println!(
                "SEED={seed} COMMIT={commit} {violation}\n  {}\n  again: tests/sim/run{} --tell {seed}",
                run.weather,
                flags(&script, asked.without)
            );
        }
        simulated_ms += run.simulated_ms;
        if totals.is_empty() {
            totals.clone_from(&run.counts);
        } else {
            totals.iter_mut().zip(&run.counts).for_each(|((_, total), (_, count))| *total += count);
        }
    }
    let hours = simulated_ms as f64 / 3_600_000.0;
    print!("seeds={} from={} violations={failed} simulated_hours={hours:.1}", asked.seeds, asked.from);
    totals.iter().for_each(|(name, total)| print!(" {name}={total}"));
    println!();
    if failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
