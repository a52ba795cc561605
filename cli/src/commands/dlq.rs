//! `millpond dlq`: looks at dead letters, and writes them back to where they came from.

mod filter;
mod list;
mod redrive;
mod show;

use crate::connection::ConnectionArgs;
use crate::failure::Failure;
use crate::output::OutputArgs;
use filter::FilterArgs;
use millpond_sdk::TimestampMs;
use std::time::{Duration, UNIX_EPOCH};

/// Arguments of `dlq`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: millpond dlq list")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Count dead letters, by topic, error and origin
    #[command(
        after_help = "Examples:\n  millpond dlq list\n  millpond dlq list orders.billing.dlq --kind transient --output json"
    )]
    List {
        /// Dead-letter topics; all whose names end in .dlq if none is given
        topics: Vec<String>,
        #[command(flatten)]
        filter: FilterArgs,
        #[command(flatten)]
        output: OutputArgs,
        #[command(flatten)]
        connection: ConnectionArgs,
    },
    /// Show dead letters: what they are, where they came from and why they failed
    #[command(after_help = "Example: millpond dlq show orders.billing.dlq --error Timeout --max 10")]
    Show {
        /// Dead-letter topic
        topic: String,
        /// Stop after so many
        #[arg(long, value_name = "N")]
        max: Option<u64>,
        #[command(flatten)]
        filter: FilterArgs,
        #[command(flatten)]
        output: OutputArgs,
        #[command(flatten)]
        connection: ConnectionArgs,
    },
    /// Say which dead letters would be written back to where they came from; with --execute write them
    #[command(after_help = "Examples:\n  \
        millpond dlq redrive orders.billing.dlq --error Timeout\n  \
        millpond dlq redrive orders.billing.dlq --error Timeout --execute\n\n\
        What was redriven is remembered, and not redriven again: as offsets of group millpond.dlq.redrive, which expire a week\n\
        after the last redrive. All groups that read the topic get the records again; header millpond.event-id tells that.")]
    Redrive {
        /// Dead-letter topic
        topic: String,
        /// Write to this topic instead of the one each came from
        #[arg(long, value_name = "TOPIC")]
        to: Option<String>,
        /// Also those that were redriven before
        #[arg(long)]
        again: bool,
        /// Write; without it nothing is changed
        #[arg(long)]
        execute: bool,
        #[command(flatten)]
        filter: FilterArgs,
        #[command(flatten)]
        output: OutputArgs,
        #[command(flatten)]
        connection: ConnectionArgs,
    },
}

pub(super) async fn run(args: Args) -> Result<(), Failure> {
    match args.action {
        Action::List { topics, filter, output, connection } => {
            list::run(&connection.connect().await?, topics, &filter.filter(), output).await
        }
        Action::Show { topic, max, filter, output, connection } => {
            show::run(&connection.connect().await?, &topic, max, &filter.filter(), output).await
        }
        Action::Redrive { topic, to, again, execute, filter, output, connection } => {
            let redrive = millpond_sdk::retries::Redrive { topic, filter: filter.filter(), to, again, execute };
            redrive::run(&connection.connect().await?, &redrive, output).await
        }
    }
}

fn failed(error: millpond_sdk::Error) -> Failure {
    Failure::new(error.to_string())
}

/// A time as people write it, in UTC.
fn rfc3339(time: TimestampMs) -> String {
    match u64::try_from(time.0) {
        // The last second of the year 9999, which is the last that RFC 3339 knows.
        Ok(ms) if ms < 253_402_300_800_000 => {
            humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(ms)).to_string()
        }
        _ => format!("{} ms", time.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_for_people() {
        assert_eq!(rfc3339(TimestampMs(1_357_034_400_250)), "2013-01-01T10:00:00.250Z");
        assert_eq!(rfc3339(TimestampMs(-1)), "-1 ms");
        assert_eq!(rfc3339(TimestampMs(i64::MAX)), "9223372036854775807 ms");
    }
}
