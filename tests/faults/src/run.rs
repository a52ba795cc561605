//! One scenario from its beginning to its judgement.

use crate::checker::{self, Run, Verdict};
use crate::clock::{between, now};
use crate::finale;
use crate::gaps::{Doing, Gaps, Phase, Place, Signs};
use crate::history::{Event, Logs};
use crate::limits::{self, Judgement};
use crate::pipeline::{self, Summary};
use crate::scenarios::Scenario;
use crate::stage::{READERS, Settings, Stage, measured, writers};
use std::collections::BTreeMap;
use std::time::Duration;

/// What a scenario came to.
pub(crate) struct Outcome {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) seed: u64,
    pub(crate) took: Duration,
    /// What a pipeline came to, if there is one.
    pub(crate) pipeline: Option<Summary>,
    /// What the clients' history shows, if it came so far.
    pub(crate) verdict: Option<Verdict>,
    /// Why it did not come to its end.
    pub(crate) failure: Option<String>,
    /// Promises beside the checker's that were broken.
    pub(crate) broken: Vec<String>,
    /// The faults, by what was done, and how often.
    pub(crate) faults: BTreeMap<String, u64>,
    /// Times without an acknowledgement, or without a record to read, around faults.
    pub(crate) gaps: BTreeMap<Place, Gaps>,
    /// The same of a time without faults: what the machine itself does.
    pub(crate) quiet: BTreeMap<Doing, Gaps>,
    /// Whether those around faults are within the scenario's limits.
    pub(crate) limits: Judgement,
    /// The most requests that each writer was seen to have under way at once.
    pub(crate) in_flight: BTreeMap<u16, u32>,
    /// What clients told of failures: how many, and the first.
    pub(crate) troubles: (usize, Vec<String>),
    /// Where everything was left, if something is wrong.
    pub(crate) kept: Option<std::path::PathBuf>,
}

impl Outcome {
    /// Whether every promise that was judged was kept, to the end. Limits that were not judged are told by `limits`.
    pub(crate) fn holds(&self) -> bool {
        self.failure.is_none() && self.broken.is_empty() && self.verdict.as_ref().is_some_and(Verdict::holds)
    }
}

/// How many messages of clients are kept of a scenario.
const TROUBLES_MAX: usize = 10;

/// Runs a scenario.
pub(crate) async fn run(scenario: &'static Scenario, settings: &Settings) -> Outcome {
    let began = now();
    let mut outcome = Outcome {
        name: scenario.name,
        about: scenario.about,
        seed: settings.seed,
        took: Duration::ZERO,
        pipeline: None,
        verdict: None,
        failure: None,
        broken: Vec::new(),
        faults: BTreeMap::new(),
        gaps: BTreeMap::new(),
        quiet: BTreeMap::new(),
        limits: Judgement::Unlimited,
        in_flight: BTreeMap::new(),
        troubles: (0, Vec::new()),
        kept: None,
    };
    let set = Stage::set((scenario.options)(), settings).await;
    match set {
        Ok(stage) => perform(scenario, settings, stage, &mut outcome).await,
        Err(error) => outcome.failure = Some(format!("before anything was done: {error}")),
    }
    outcome.took = between(began, now());
    outcome
}

async fn perform(scenario: &'static Scenario, settings: &Settings, mut stage: Stage, outcome: &mut Outcome) {
    let played = play(scenario, &mut stage).await;
    let (events, mut troubles) = stage.history();
    match played {
        Ok((logs, pipeline)) => {
            outcome.verdict = Some(judge(&events, &logs));
            outcome.pipeline = pipeline;
        }
        Err(error) => outcome.failure = Some(error),
    }
    outcome.in_flight = stage.recorder.in_flight_most();
    for writer in writers().into_keys() {
        let (seen, least) = (outcome.in_flight.get(&writer).copied().unwrap_or_default(), scenario.in_flight);
        stage.expect(outcome.failure.is_some() || seen >= least, || {
            format!(
                "writer {writer} was seen with {seen} requests under way at once: {least} were to be put to the test"
            )
        });
    }
    for mark in stage.marks.iter().filter(|mark| mark.phase == Phase::Fault) {
        *outcome.faults.entry(mark.what.clone()).or_default() += 1;
    }
    let signs = Signs::of(&events);
    stage.marks.retain(|mark| mark.until > 0);
    for mark in &stage.marks {
        for (place, gaps) in signs.gaps(std::slice::from_ref(mark), &measured()) {
            stage.tell(&format!("{place}: {:?} without a sign", gaps.worst()));
        }
    }
    outcome.gaps = signs.gaps(&stage.marks, &measured());
    outcome.quiet = signs.quiet(stage.quiet.0, stage.quiet.1, &measured());
    outcome.limits = match settings.short && !scenario.limits.is_empty() {
        true => Judgement::NotJudged("the short form runs beside other tests".to_owned()),
        false => limits::judge(scenario.limits, &outcome.gaps, &outcome.quiet),
    };
    outcome.broken = std::mem::take(&mut stage.broken);
    if let Judgement::Exceeded(exceeded) = &outcome.limits {
        outcome.broken.extend(exceeded.iter().cloned());
    }
    outcome.troubles.0 = troubles.len();
    troubles.truncate(TROUBLES_MAX);
    outcome.troubles.1 = troubles;
    if !outcome.holds() && settings.keep {
        outcome.kept = Some(stage.fleet.keep());
    }
}

/// The script, and the end of every run; the logs as they are then.
async fn play(scenario: &Scenario, stage: &mut Stage) -> Result<(Logs, Option<Summary>), String> {
    (scenario.script)(stage).await?;
    finale::heal(stage).await.map_err(|error| format!("after everything was healed: {error}"))?;
    let halted = pipeline::finale::halt(stage).await.map_err(|error| format!("the pipeline: {error}"))?;
    stage.stop_writing().await?;
    stage.tell("reading");
    let logs = finale::read(stage).await?;
    let piped = match halted {
        Some(halted) => Some(pipeline::finale::drain(stage, halted, &logs).await?),
        None => None,
    };
    for difference in finale::compare_replicas(stage, &logs).await? {
        stage.broken.push(difference);
    }
    for difference in finale::restore(stage, &logs).await.map_err(|error| format!("out of the bucket: {error}"))? {
        stage.broken.push(format!("out of the bucket: {difference}"));
    }
    let Some((summary, outputs)) = piped else { return Ok((logs, None)) };
    for difference in pipeline::finale::restored(stage, &outputs).await? {
        stage.broken.push(format!("out of the bucket: {difference}"));
    }
    Ok((logs, Some(summary)))
}

fn judge(events: &[Event], logs: &Logs) -> Verdict {
    checker::check(&Run { events, logs, readers: &READERS })
}
