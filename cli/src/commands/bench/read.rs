//! `millpond bench consume` and `bench replay`: how fast records can be read, newest or oldest first.

use super::report::Report;
use crate::commands::consume::{Left, ends, partitions};
use crate::connection::ConnectionArgs;
use crate::failure::Failure;
use crate::output::OutputArgs;
use crate::progress::Progress;
use crate::signals::Shutdown;
use millpond_sdk::{Consumer, ConsumerConfig, IsolationLevel, StartAt};
use std::time::Duration;
use tokio::time::Instant;

/// How long `poll` waits before the end is looked at again.
const POLL_WAIT: Duration = Duration::from_millis(100);

/// Records taken at once: a poll should cost little beside its records.
const POLL_RECORDS: usize = 10_000;

/// Arguments of `bench consume` and `bench replay`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: millpond bench replay bench --output json")]
pub(super) struct Args {
    /// The topic
    topic: String,
    /// Stop after so many records
    #[arg(long, value_name = "N")]
    records: Option<u64>,
    /// Read only this partition
    #[arg(long, value_name = "P")]
    partition: Option<u32>,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// What is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// From the end on, as records come, until so many were read or the command is stopped.
    Consume,
    /// From the start to the end, as a scan that leaves the brokers' caches alone.
    Replay,
}

pub(super) async fn run(args: Args, way: Way) -> Result<(), Failure> {
    let mut shutdown = Shutdown::listen()?;
    let failed = |error: millpond_sdk::Error| Failure::new(error.to_string());
    let client = args.connection.connect().await?;
    let partitions = partitions(&client, &args.topic, args.partition).await?;
    let (from, until) = match way {
        Way::Consume => (StartAt::Latest, None),
        Way::Replay => (StartAt::Earliest, Some(ends(&client, &partitions, IsolationLevel::ReadUncommitted).await?)),
    };
    let mut left = Left::new(args.records, until);
    let config =
        ConsumerConfig { scan: way == Way::Replay, poll_records_max: POLL_RECORDS, ..ConsumerConfig::default() };
    let mut consumer = Consumer::new(&client, config);
    let begun = Instant::now();
    consumer.assign(partitions.iter().map(|partition| (partition.clone(), from))).await.map_err(failed)?;
    let mut progress = Progress::begin("reading", args.records, begun);
    let (mut records, mut bytes) = (0, 0);
    // A consumer that waits for its first record is not reading yet.
    let (mut start, mut end) = (begun, begun);
    while !left.is_done(|partition| consumer.position(partition)) {
        let polled = tokio::select! {
            () = shutdown.asked() => break,
            polled = consumer.poll(POLL_WAIT) => polled.map_err(failed)?,
        };
        let now = Instant::now();
        if records == 0 && way == Way::Consume {
            start = now;
        }
        let taken = polled.iter().filter(|record| left.takes(record));
        let (count, size) =
            taken.fold((0, 0), |(count, size), record| (count + 1, size + record.payload_size() as u64));
        records += count;
        bytes += size;
        if count > 0 {
            end = now;
            progress.add(count, now);
        }
    }
    progress.end();
    Report::new(records, bytes, end.saturating_duration_since(start), None).print(args.output.output)
}
