//! `millpond dlq list`.

use super::{failed, rfc3339};
use crate::failure::Failure;
use crate::output::{self, Format, OutputArgs};
use crate::progress::Progress;
use millpond_sdk::retries::{DeadLetterCounts, DeadLetterFilter, DeadLetterReader, is_dead_letter_topic};
use millpond_sdk::{Admin, Client};
use serde::Serialize;
use tokio::time::Instant;

/// The answer.
#[derive(Debug, Serialize)]
struct Answer {
    topics: Vec<Topic>,
}

/// One dead-letter topic.
#[derive(Debug, Serialize)]
struct Topic {
    topic: String,
    records: u64,
    redriven: u64,
    /// Records that are no copies of records that failed.
    foreign: u64,
    /// Records of kinds above the bound on them.
    others: u64,
    counts: Vec<Count>,
}

/// Dead letters of one kind.
#[derive(Debug, Serialize)]
struct Count {
    origin: String,
    group: String,
    error_kind: &'static str,
    error_class: String,
    records: u64,
    redriven: u64,
    /// Milliseconds since the Unix epoch.
    oldest: i64,
    newest: i64,
}

pub(super) async fn run(
    client: &Client,
    mut names: Vec<String>,
    filter: &DeadLetterFilter,
    output: OutputArgs,
) -> Result<(), Failure> {
    if names.is_empty() {
        let topics = Admin::new(client).list_topics().await.map_err(failed)?;
        names = topics.into_iter().map(|topic| topic.name).filter(|name| is_dead_letter_topic(name)).collect();
    }
    let mut readers = Vec::with_capacity(names.len());
    for name in names {
        let reader = DeadLetterReader::open(client, &name).await.map_err(failed)?;
        readers.push((name, reader));
    }
    let total = readers.iter().map(|(_, reader)| reader.left()).sum();
    let mut progress = Progress::begin("counting", Some(total), Instant::now());
    let mut answer = Answer { topics: Vec::with_capacity(readers.len()) };
    for (name, mut reader) in readers {
        let mut counts = DeadLetterCounts::default();
        let mut left = reader.left();
        while let Some(read) = reader.next().await.map_err(failed)? {
            read.iter().filter(|dead| filter.takes(dead)).for_each(|dead| counts.add(dead));
            progress.add(left.saturating_sub(reader.left()), Instant::now());
            left = reader.left();
        }
        answer.topics.push(Topic::new(name, &counts));
    }
    progress.end();
    match output.output {
        Format::Json => output::json(&answer),
        Format::Text => output::text(&answer.to_text()),
    }
}

impl Topic {
    fn new(topic: String, counts: &DeadLetterCounts) -> Topic {
        let count = |count: millpond_sdk::retries::DeadLetterCount<'_>| Count {
            origin: count.topic.to_owned(),
            group: count.group.to_owned(),
            error_kind: count.error_kind.as_str(),
            error_class: count.error_class.to_owned(),
            records: count.records,
            redriven: count.redriven,
            oldest: count.oldest.0,
            newest: count.newest.0,
        };
        Topic {
            topic,
            records: counts.records,
            redriven: counts.redriven,
            foreign: counts.foreign,
            others: counts.others,
            counts: counts.iter().map(count).collect(),
        }
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let row = |origin: &str, group: &str, error: String, numbers: [String; 2], times: [String; 2]| {
            let [records, redriven] = numbers;
            let [oldest, newest] = times;
            vec![self.topic.clone(), origin.to_owned(), group.to_owned(), error, records, redriven, oldest, newest]
        };
        let none = || ["-".to_owned(), "-".to_owned()];
        let mut rows: Vec<Vec<String>> = self
            .counts
            .iter()
            .map(|count| {
                let error = format!("{} ({})", count.error_class, count.error_kind);
                let numbers = [count.records.to_string(), count.redriven.to_string()];
                let time = |ms| rfc3339(millpond_sdk::TimestampMs(ms));
                row(&count.origin, &count.group, error, numbers, [time(count.oldest), time(count.newest)])
            })
            .collect();
        for (count, what) in [(self.others, "other errors"), (self.foreign, "no copies of records that failed")] {
            if count > 0 {
                rows.push(row("-", "-", what.to_owned(), [count.to_string(), "-".to_owned()], none()));
            }
        }
        if rows.is_empty() {
            rows.push(row("-", "-", "-".to_owned(), ["0".to_owned(), "0".to_owned()], none()));
        }
        rows
    }
}

impl Answer {
    fn to_text(&self) -> String {
        if self.topics.is_empty() {
            return "no dead-letter topic is there (none whose name ends in .dlq)".to_owned();
        }
        let heading = ["TOPIC", "ORIGIN", "GROUP", "ERROR", "RECORDS", "REDRIVEN", "OLDEST", "NEWEST"];
        let rows: Vec<Vec<String>> = self.topics.iter().flat_map(Topic::rows).collect();
        output::table(&heading, &rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schemas;

    fn answer() -> Answer {
        let count = Count {
            origin: "orders".to_owned(),
            group: "billing".to_owned(),
            error_kind: "transient",
            error_class: "Timeout".to_owned(),
            records: 12,
            redriven: 3,
            oldest: 0,
            newest: 1_357_034_400_250,
        };
        let topic = "orders.billing.dlq".to_owned();
        Answer { topics: vec![Topic { topic, records: 14, redriven: 3, foreign: 2, others: 0, counts: vec![count] }] }
    }

    #[test]
    fn json_has_the_promised_fields() {
        schemas::check("dlq-list", &answer());
    }

    #[test]
    fn text_is_a_table_that_leaves_nothing_out() {
        let text = answer().to_text();
        for expected in ["Timeout (transient)", "12", "2013-01-01T10:00:00.250Z", "no copies of records that failed"] {
            assert!(text.contains(expected), "{text}");
        }
        assert_eq!(text.lines().count(), 3);
        assert!(Answer { topics: Vec::new() }.to_text().contains("no dead-letter topic"));
    }
}
