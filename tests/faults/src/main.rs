//! `millpond-faults`: a fleet of real processes under clients and faults, and a checker of all that the clients were told.
//! `tests/faults/run` calls it. What is checked is in `checker.rs`, what is done in `scenarios.rs`.

mod bucket;
mod checker;
mod clients;
mod clock;
mod finale;
mod fleet;
mod gaps;
mod history;
mod hurts;
mod librdkafka;
mod limits;
mod mixed;
mod network;
mod payload;
mod pipeline;
mod report;
mod run;
mod scenarios;
mod stage;
mod steps;
mod transfers;

use millpond_tests::tools::{Tool, skip};
use network::Network;
use report::Report;
use scenarios::{Need, Scenario};
use stage::Settings;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// What no scenario can do without.
const EVERYTHING_NEEDS: &[Need] = &[Need::Tool(Tool::EtcdPinned), Need::Tool(Tool::ClientPython)];

const USAGE: &str =
    "usage: tests/faults/run [--scenario NAME]… [--short] [--minutes N] [--seed S] [--report FILE] [--keep] [--list]";

#[derive(Default)]
struct Asked {
    scenarios: Vec<&'static Scenario>,
    short: bool,
    minutes: Option<u64>,
    seed: Option<u64>,
    report: Option<PathBuf>,
    keep: bool,
    list: bool,
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Asked, String> {
    let mut asked = Asked::default();
    while let Some(flag) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{flag} wants a value; {USAGE}"));
        let number = |text: String| text.parse().map_err(|_| format!("{flag} wants a number, not `{text}`"));
        match flag.as_str() {
            "--scenario" => {
                let name = value()?;
                let found = all().find(|scenario| scenario.name == name);
                asked
                    .scenarios
                    .push(found.ok_or_else(|| format!("no scenario `{name}`; --list tells which there are"))?);
            }
            "--short" => asked.short = true,
            "--minutes" => asked.minutes = Some(number(value()?)?),
            "--seed" => asked.seed = Some(number(value()?)?),
            "--report" => asked.report = Some(value()?.into()),
            "--keep" => asked.keep = true,
            "--list" => asked.list = true,
            _ => return Err(format!("no flag `{flag}`; {USAGE}")),
        }
    }
    // Minutes alone are minutes of mixed faults; nothing at all is everything.
    if asked.scenarios.is_empty() && asked.minutes.is_some() {
        asked.scenarios = vec![&scenarios::MIXED];
    } else if asked.scenarios.is_empty() {
        asked.scenarios = all().collect();
    }
    Ok(asked)
}

/// All scenarios, the mixed one last.
fn all() -> impl Iterator<Item = &'static Scenario> {
    scenarios::ALL.iter().chain([&scenarios::PIPELINE, &scenarios::MIXED])
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    if words.next().as_deref() == Some(pipeline::worker::WORD) {
        return pipeline::worker::run(words.collect());
    }
    let asked = match parse(std::env::args().skip(1)) {
        Ok(asked) => asked,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    if asked.list {
        all().for_each(|scenario| println!("{:<20} {}", scenario.name, scenario.about));
        return ExitCode::SUCCESS;
    }
    let network = network::isolate();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime starts");
    runtime.block_on(async {
        tokio::select! {
            code = perform(&asked, network) => code,
            // In a namespace of its own it is the first process, which signals end only if it takes them.
            _ = tokio::signal::ctrl_c() => ExitCode::from(130),
        }
    })
}

async fn perform(asked: &Asked, network: Network) -> ExitCode {
    let mut report = Report { outcomes: Vec::new(), skipped: Vec::new() };
    let seed = asked.seed.unwrap_or_else(|| rand::random_range(0..1_000_000));
    for scenario in &asked.scenarios {
        println!("scenario {} SEED={seed}", scenario.name);
        if let Some(why) = EVERYTHING_NEEDS.iter().chain(scenario.needs).find_map(|need| need.missing(&network)) {
            skip(scenario.name, &why);
            report.skipped.push((scenario.name, why));
            continue;
        }
        let minutes = asked.minutes.unwrap_or(if asked.short { 1 } else { scenario.minutes });
        let time = Duration::from_secs(60 * minutes);
        let settings = Settings { network: network.clone(), seed, short: asked.short, time, keep: asked.keep };
        report.outcomes.push(run::run(scenario, &settings).await);
    }
    let text = report.text();
    print!("{text}");
    if let Some(file) = &asked.report {
        let json = serde_json::to_string_pretty(&report.json()).expect("it is plain data");
        let written = std::fs::write(file, &text).and_then(|()| std::fs::write(file.with_extension("json"), json));
        if let Err(error) = written {
            eprintln!("error: `{}`: {error}", file.display());
            return ExitCode::FAILURE;
        }
    }
    if report.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
