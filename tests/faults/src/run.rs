//! One scenario from its beginning to its judgement.

use crate::checker::{self, Run, Verdict};
use crate::clock::{between, now};
use crate::finale;
use crate::gaps::{Acks, Gaps, Place};
use crate::history::{Event, Logs};
use crate::pipeline::{self, Summary};
use crate::scenarios::{Limit, Scenario};
use crate::stage::{READERS, Settings, Stage, writers};
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
    /// Times without an acknowledgement around faults.
    pub(crate) gaps: BTreeMap<Place, Gaps>,
    /// The same of a time without faults: what the machine itself does.
    pub(crate) quiet: Gaps,
    /// What clients told of failures: how many, and the first.
    pub(crate) troubles: (usize, Vec<String>),
    /// Where everything was left, if something is wrong.
    pub(crate) kept: Option<std::path::PathBuf>,
}

impl Outcome {
    /// Whether every promise was kept, to the end.
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
        quiet: Gaps::default(),
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
    outcome.broken = std::mem::take(&mut stage.broken);
    for mark in &stage.marks {
        *outcome.faults.entry(mark.what.clone()).or_default() += 1;
    }
    let acks = Acks::of(&events);
    stage.marks.retain(|mark| mark.until > 0);
    for mark in &stage.marks {
        for (place, gaps) in acks.gaps(std::slice::from_ref(mark), &writers()) {
            stage.tell(&format!("{}: {place}: {:?} without an acknowledgement", mark.what, gaps.worst()));
        }
    }
    outcome.gaps = acks.gaps(&stage.marks, &writers());
    outcome.quiet = acks.quiet(stage.quiet.0, stage.quiet.1, &writers());
    // The short form runs beside other tests: it tells how long things took, and judges only what was written and read.
    if let Some(limit) = scenario.limit.filter(|_| !settings.short) {
        outcome.broken.extend(over(limit, &outcome.gaps, &outcome.quiet));
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

/// A machine on which even undisturbed acknowledgements stay away for so long tells nothing about limits.
const CALM: Duration = Duration::from_millis(150);

/// Where the limit is exceeded, as our own client sees it: others wait for what is silent by timeouts of theirs.
fn over(limit: Limit, gaps: &BTreeMap<Place, Gaps>, quiet: &Gaps) -> Vec<String> {
    if quiet.worst() > CALM {
        return Vec::new();
    }
    let look = |(place, gaps): (&Place, &Gaps)| {
        let (what, found, most) = match limit {
            Limit::Median(most) => ("half of the times", gaps.per_mille(500), most),
            Limit::Worst(most) => ("the longest time", gaps.worst(), most),
        };
        (found > most)
            .then(|| format!("{place}: {what} without an acknowledgement: {found:?}, at most {most:?} allowed"))
    };
    gaps.iter().filter(|(place, _)| !place.librdkafka).filter_map(look).collect()
}

fn judge(events: &[Event], logs: &Logs) -> Verdict {
    checker::check(&Run { events, logs, readers: &READERS })
}
