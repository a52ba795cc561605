//! `millpond dlq redrive`.

use crate::failure::Failure;
use crate::output::{self, Format, OutputArgs};
use crate::progress::Progress;
use crate::signals::Shutdown;
use millpond_sdk::Client;
use millpond_sdk::retries::{Redrive, Redriven};
use serde::Serialize;
use tokio::time::Instant;

/// The answer.
#[derive(Debug, Serialize)]
struct Answer<'a> {
    topic: &'a str,
    /// Where all went; null: each to the topic it came from.
    to: Option<&'a str>,
    /// Whether it was written, or only counted.
    executed: bool,
    /// Written, or to be written.
    redriven: u64,
    redriven_before: u64,
    filtered: u64,
    foreign: u64,
    /// Whether it went to the end.
    complete: bool,
}

pub(super) async fn run(client: &Client, redrive: &Redrive, output: OutputArgs) -> Result<(), Failure> {
    let mut shutdown = Shutdown::listen()?;
    let mut progress = None;
    let what = if redrive.execute { "redriving" } else { "counting" };
    let tell = |now: millpond_sdk::retries::RedriveProgress| {
        let progress = progress.get_or_insert_with(|| Progress::begin(what, Some(now.left), Instant::now()));
        progress.add(now.dealt_with, Instant::now());
    };
    let redriven = redrive.run(client, tell, shutdown.asked()).await;
    if let Some(progress) = progress {
        progress.end();
    }
    let redriven = redriven.map_err(|error| Failure::new(error.to_string()))?;
    let answer = Answer::new(redrive, &redriven);
    match output.output {
        Format::Json => output::json(&answer)?,
        Format::Text => output::text(&answer.to_text())?,
    }
    if redriven.stopped {
        return Err(Failure::new("stopped before the end; the same command goes on from there"));
    }
    Ok(())
}

impl<'a> Answer<'a> {
    fn new(redrive: &'a Redrive, redriven: &Redriven) -> Answer<'a> {
        Answer {
            topic: &redrive.topic,
            to: redrive.to.as_deref(),
            executed: redrive.execute,
            redriven: redriven.redriven,
            redriven_before: redriven.before,
            filtered: redriven.filtered,
            foreign: redriven.foreign,
            complete: !redriven.stopped,
        }
    }

    fn to_text(&self) -> String {
        let to = self.to.map_or_else(|| "the topics they came from".to_owned(), |to| format!("`{to}`"));
        let records =
            |count: u64| if count == 1 { "1 dead letter".to_owned() } else { format!("{count} dead letters") };
        let mut text = if self.executed {
            format!("redrove {} of {} to {to}", records(self.redriven), self.topic)
        } else {
            format!("would redrive {} of {} to {to}", records(self.redriven), self.topic)
        };
        let left_out = [
            (self.redriven_before, "redriven before (--again takes them too)"),
            (self.filtered, "left out by the filter"),
            (self.foreign, "no copies of records that failed"),
        ];
        for (count, why) in left_out.iter().filter(|(count, _)| *count > 0) {
            text.push_str(&format!("\n{count} {why}"));
        }
        if !self.executed {
            text.push_str("\nnothing was written; say --execute to do it");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schemas;

    fn redrive(execute: bool, to: Option<&str>) -> Redrive {
        Redrive { topic: "t.g.dlq".to_owned(), to: to.map(str::to_owned), execute, ..Redrive::default() }
    }

    #[test]
    fn json_has_the_promised_fields() {
        for redrive in [redrive(false, None), redrive(true, Some("t"))] {
            schemas::check("dlq-redrive", &Answer::new(&redrive, &Redriven::default()));
        }
    }

    #[test]
    fn a_dry_run_says_that_it_was_one() {
        let redriven = Redriven { redriven: 1, before: 2, filtered: 3, foreign: 0, stopped: false };
        let dry = redrive(false, None);
        let expected = "would redrive 1 dead letter of t.g.dlq to the topics they came from\n\
            2 redriven before (--again takes them too)\n3 left out by the filter\nnothing was written; say --execute to do it";
        assert_eq!(Answer::new(&dry, &redriven).to_text(), expected);
        let wet = redrive(true, Some("t2"));
        let text = Answer::new(&wet, &Redriven { redriven: 7, ..Redriven::default() }).to_text();
        assert_eq!(text, "redrove 7 dead letters of t.g.dlq to `t2`");
    }
}
