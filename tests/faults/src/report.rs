//! What a person reads of a run, and the same for machines.

use crate::gaps::{Gaps, Phase};
use crate::limits::Judgement;
use crate::run::Outcome;
use serde_json::{Value, json};
use std::fmt::Write;
use std::time::Duration;

/// What came of everything that was asked for.
pub(crate) struct Report {
    pub(crate) outcomes: Vec<Outcome>,
    /// Scenarios that could not be run, and why.
    pub(crate) skipped: Vec<(&'static str, String)>,
}

impl Report {
    /// Whether all that was run holds.
    pub(crate) fn holds(&self) -> bool {
        self.outcomes.iter().all(Outcome::holds)
    }

    /// For a person.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for outcome in &self.outcomes {
            // Writing to a string does not fail.
            let _ = scenario(outcome, &mut text);
        }
        for (name, why) in &self.skipped {
            let _ = writeln!(text, "SKIPPED {name}: {why}");
        }
        let count = |holds: bool| self.outcomes.iter().filter(|outcome| outcome.holds() == holds).count();
        let acked: u64 =
            self.outcomes.iter().filter_map(|outcome| outcome.verdict.as_ref()).map(|verdict| verdict.acked).sum();
        let faults: u64 = self.outcomes.iter().flat_map(|outcome| outcome.faults.values()).sum();
        let _ = writeln!(
            text,
            "scenarios={} failed={} skipped={} limits_not_judged={} acknowledged={acked} faults={faults}",
            count(true) + count(false),
            count(false),
            self.skipped.len(),
            self.outcomes.iter().filter(|outcome| matches!(outcome.limits, Judgement::NotJudged(_))).count()
        );
        text
    }

    /// For a machine.
    pub(crate) fn json(&self) -> Value {
        let skipped = self.skipped.iter().map(|(name, why)| json!({"name": name, "why": why}));
        json!({
            "holds": self.holds(),
            "scenarios": self.outcomes.iter().map(as_json).collect::<Vec<Value>>(),
            "skipped": skipped.collect::<Vec<Value>>(),
        })
    }
}

fn scenario(outcome: &Outcome, text: &mut String) -> std::fmt::Result {
    let Outcome { name, about, seed, took, .. } = outcome;
    writeln!(text, "{name}: {about} (seed {seed}, {:.0} s)", took.as_secs_f64())?;
    let faults: Vec<String> = outcome.faults.iter().map(|(what, count)| format!("{count} x {what}")).collect();
    writeln!(text, "  faults: {}", faults.join(", "))?;
    if let Some(verdict) = &outcome.verdict {
        writeln!(
            text,
            "  records: {} sent, {} acknowledged, {} refused, {} given up of which {} are there; {} in the log, {} read on the way",
            verdict.sent,
            verdict.acked,
            verdict.refused,
            verdict.unknown,
            verdict.unknown_written,
            verdict.records,
            verdict.reads
        )?;
    }
    if let Some(pipeline) = &outcome.pipeline {
        writeln!(text, "  pipeline: {pipeline}")?;
    }
    if !outcome.gaps.is_empty() {
        let heads = ["gaps", "median", "p99", "worst"];
        let [count, median, p99, worst] = heads;
        let title = "without an acknowledgement (acks=all) or a record, ms:";
        writeln!(text, "  {title:<62} {count:>5} {median:>8} {p99:>8} {worst:>8}")?;
        for (place, gaps) in &outcome.gaps {
            line(text, &place.to_string(), gaps)?;
        }
        for (doing, gaps) in &outcome.quiet {
            line(text, &format!("nothing done yet: {doing}"), gaps)?;
        }
    }
    let in_flight: Vec<String> = outcome.in_flight.iter().map(|(writer, most)| format!("{most} of {writer}")).collect();
    if !in_flight.is_empty() {
        writeln!(text, "  requests under way at once, at most, by writer: {}", in_flight.join(", "))?;
    }
    match &outcome.limits {
        Judgement::Unlimited | Judgement::Exceeded(_) => {}
        Judgement::Kept { allowed_beyond: Duration::ZERO } => writeln!(text, "  limits: kept")?,
        Judgement::Kept { allowed_beyond } => {
            writeln!(
                text,
                "  limits: kept, with {:.0} ms more for what the machine does by itself",
                millis(*allowed_beyond)
            )?;
        }
        Judgement::NotJudged(why) => writeln!(text, "  limits: NOT JUDGED: {why}")?,
    }
    if outcome.troubles.0 > 0 {
        writeln!(text, "  clients told of {} failures, the first: {}", outcome.troubles.0, outcome.troubles.1[0])?;
    }
    if let Some(failure) = &outcome.failure {
        writeln!(text, "  DID NOT END: {failure}")?;
    }
    for broken in &outcome.broken {
        writeln!(text, "  BROKEN: {broken}")?;
    }
    for (kind, (count, examples)) in outcome.verdict.iter().flat_map(|verdict| &verdict.violations) {
        writeln!(text, "  VIOLATION {kind:?}: {count}")?;
        for example in examples {
            writeln!(text, "    {example}")?;
        }
    }
    if let Some(kept) = &outcome.kept {
        writeln!(text, "  everything is left in {}", kept.display())?;
    }
    writeln!(text, "  {}", summary(outcome))
}

/// In one line what came of it. What was not judged is not said to hold.
fn summary(outcome: &Outcome) -> &'static str {
    const HOLDS: &str = "holds: nothing lost, doubled, reordered or changed";
    match &outcome.limits {
        _ if !outcome.holds() => "FAILED",
        Judgement::Unlimited => HOLDS,
        Judgement::Kept { .. } => {
            "holds: nothing lost, doubled, reordered or changed, and nobody waited beyond the limits"
        }
        Judgement::NotJudged(_) | Judgement::Exceeded(_) => {
            "SAFE, LIMITS NOT JUDGED: nothing lost, doubled, reordered or changed; how long clients waited was not judged"
        }
    }
}

fn line(text: &mut String, name: &str, gaps: &Gaps) -> std::fmt::Result {
    let (median, p99) = (millis(gaps.per_mille(500)), millis(gaps.per_mille(990)));
    let (count, worst) = (gaps.count(), millis(gaps.worst()));
    writeln!(text, "    {name:<60} {count:>5} {median:>8.0} {p99:>8.0} {worst:>8.0}")
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn as_json(outcome: &Outcome) -> Value {
    let gaps = |gaps: &Gaps| {
        json!({
            "count": gaps.count(),
            "median_ms": millis(gaps.per_mille(500)),
            "p99_ms": millis(gaps.per_mille(990)),
            "worst_ms": millis(gaps.worst()),
        })
    };
    let places = outcome.gaps.iter().map(|(place, found)| {
        json!({
            "fault": place.what,
            "phase": match place.phase {
                Phase::Fault => "fault",
                Phase::Recovery => "end of fault",
            },
            "client": if place.librdkafka { "librdkafka" } else { "sdk" },
            "does": place.doing.to_string(),
            "led_by_victim": place.led_by_victim,
            "gaps": gaps(found),
        })
    });
    let (limits, why) = match &outcome.limits {
        Judgement::Unlimited => ("none", None),
        Judgement::Kept { .. } => ("kept", None),
        Judgement::Exceeded(_) => ("exceeded", None),
        Judgement::NotJudged(why) => ("not judged", Some(why)),
    };
    let quiet = outcome.quiet.iter().map(|(doing, found)| (doing.to_string(), gaps(found)));
    let verdict = outcome.verdict.as_ref().map(|verdict| {
        let violations = verdict.violations.iter();
        json!({
            "sent": verdict.sent,
            "acknowledged": verdict.acked,
            "refused": verdict.refused,
            "given_up": verdict.unknown,
            "given_up_and_written": verdict.unknown_written,
            "in_the_log": verdict.records,
            "reads": verdict.reads,
            "violations": violations
                .map(|(kind, (count, examples))| json!({"kind": format!("{kind:?}"), "count": count, "examples": examples}))
                .collect::<Vec<Value>>(),
        })
    });
    json!({
        "name": outcome.name,
        "seed": outcome.seed,
        "seconds": outcome.took.as_secs_f64(),
        "holds": outcome.holds(),
        "faults": outcome.faults,
        "unavailability": places.collect::<Vec<Value>>(),
        "without_faults": quiet.collect::<serde_json::Map<String, Value>>(),
        "limits": {"state": limits, "why": why},
        "requests_in_flight_most": outcome.in_flight,
        "verdict": verdict,
        "pipeline": outcome.pipeline.as_ref().map(|found| json!({
            "inputs": found.inputs,
            "outputs": found.outputs,
            "transactions_committed": found.committed,
            "transactions_aborted_on_purpose": found.aborted.0,
            "transactions_aborted_by_need": found.aborted.1,
            "outputs_hidden": found.hidden,
            "zombies_fenced": found.fenced,
            "processes": found.lives,
            "longest_without_a_commit_ms": millis(found.standstill),
        })),
        "failure": outcome.failure,
        "broken": outcome.broken,
        "troubles": {"count": outcome.troubles.0, "first": outcome.troubles.1},
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checker::Verdict;
    use crate::gaps::{Doing, Place};
    use std::collections::BTreeMap;

    fn outcome(limits: Judgement, broken: &[&str]) -> Outcome {
        let place = |phase| Place {
            what: "kill -9".to_owned(),
            phase,
            doing: Doing::Writes,
            librdkafka: false,
            led_by_victim: false,
        };
        let gaps = |ms| Gaps::new(vec![Duration::from_millis(ms)]);
        Outcome {
            name: "kill-follower",
            about: "",
            seed: 1,
            took: Duration::ZERO,
            pipeline: None,
            verdict: Some(Verdict::default()),
            failure: None,
            broken: broken.iter().map(|text| (*text).to_owned()).collect(),
            faults: BTreeMap::from([("kill -9".to_owned(), 1)]),
            gaps: BTreeMap::from([(place(Phase::Fault), gaps(700)), (place(Phase::Recovery), gaps(30))]),
            quiet: BTreeMap::from([(Doing::Writes, gaps(25))]),
            limits,
            in_flight: BTreeMap::from([(0, 5)]),
            troubles: (0, Vec::new()),
            kept: None,
        }
    }

    fn report(limits: Judgement, broken: &[&str]) -> Report {
        Report { outcomes: vec![outcome(limits, broken)], skipped: Vec::new() }
    }

    #[test]
    fn limits_that_are_not_judged_are_not_said_to_hold() {
        let not_judged = report(Judgement::NotJudged("the machine is too busy".to_owned()), &[]);
        let text = not_judged.text();
        assert!(text.contains("limits: NOT JUDGED: the machine is too busy"), "{text}");
        assert!(text.contains("SAFE, LIMITS NOT JUDGED") && !text.contains("holds"), "{text}");
        assert!(text.contains("failed=0 skipped=0 limits_not_judged=1"), "{text}");
        assert_eq!(not_judged.json()["scenarios"][0]["limits"]["state"], "not judged");
        assert!(not_judged.holds(), "what was judged holds");

        let kept = report(Judgement::Kept { allowed_beyond: Duration::from_millis(400) }, &[]).text();
        assert!(kept.contains("kept, with 400 ms more") && kept.contains("holds: nothing lost"), "{kept}");
        let unlimited = report(Judgement::Unlimited, &[]).text();
        assert!(unlimited.contains("holds: nothing lost") && !unlimited.contains("limits:"), "{unlimited}");
        let exceeded = report(Judgement::Exceeded(vec!["half".to_owned()]), &["half"]);
        let text = exceeded.text();
        assert!(text.contains("FAILED") && text.contains("BROKEN: half") && !text.contains("holds"), "{text}");
        assert!(!exceeded.holds());
    }

    #[test]
    fn a_fault_and_its_end_have_lines_of_their_own() {
        let text = report(Judgement::Unlimited, &[]).text();
        let line = |name: &str| {
            let found = text.lines().find_map(|line| line.trim().strip_prefix(name));
            found.map(|line| line.split_whitespace().collect::<Vec<&str>>())
        };
        assert_eq!(line("kill -9: SDK writes, led by others"), Some(vec!["1", "700", "700", "700"]), "{text}");
        assert_eq!(line("end of kill -9: SDK writes, led by others"), Some(vec!["1", "30", "30", "30"]), "{text}");
    }
}
