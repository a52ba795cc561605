//! `millpond produce`: one record for each line of input. Ends well only if every record was acknowledged, or committed.

mod transactions;

use super::deliveries::Deliveries;
use crate::connection::ConnectionArgs;
use crate::failure::Failure;
use crate::input::{self, Portion};
use crate::output::{self, Format, OutputArgs};
use crate::records::Entered;
use crate::records::escape::unescape;
use crate::records::lines::Lines;
use crate::signals::Shutdown;
use crate::units;
use millpond_sdk::{Acks, Codec, Producer, ProducerConfig, ProducerRecord, TimestampMs};
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use transactions::{TransactionArgs, Transactions};

/// Arguments of `produce`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: printf 'alice:3 apples\\nbob:1 pear\\n' | millpond produce orders --key-separator :")]
pub(crate) struct Args {
    /// The topic
    topic: String,
    /// Where the lines are; - is standard input
    #[arg(default_value = "-")]
    file: PathBuf,
    /// What stands before the first S in a line is the key; \t and the like are understood
    #[arg(long, value_name = "S", value_parser = separator, conflicts_with = "json")]
    key_separator: Option<Separator>,
    /// Lines are JSON objects with key, value, headers, timestamp and partition
    #[arg(long)]
    json: bool,
    /// Write to this partition, unless a JSON line names another
    #[arg(long, value_name = "P")]
    partition: Option<u32>,
    #[command(flatten)]
    sending: SendingArgs,
    #[command(flatten)]
    transactions: TransactionArgs,
    /// Give a record up when it is not acknowledged after this time, with all retries
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "2m")]
    delivery_timeout: Duration,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

/// How records are sent; `bench` has the same arguments.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SendingArgs {
    /// When a record counts as written: never, by its leader, or by all in-sync replicas
    #[arg(long, value_enum, default_value_t = AcksArg::All)]
    acks: AcksArg,
    /// How batches are compressed
    #[arg(long, value_enum, default_value_t = CompressionArg::None)]
    compression: CompressionArg,
    /// How long a batch waits for more records
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "5ms")]
    linger: Duration,
    /// Let a retry write a record twice, or out of order
    #[arg(long)]
    no_idempotence: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum AcksArg {
    #[value(name = "0", alias = "none")]
    None,
    #[value(name = "1", alias = "leader")]
    Leader,
    #[value(name = "all", alias = "-1")]
    All,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum CompressionArg {
    None,
    Gzip,
    Snappy,
    Lz4,
    Zstd,
}

impl SendingArgs {
    /// The producer's settings.
    pub(crate) fn config(&self) -> ProducerConfig {
        ProducerConfig {
            acks: match self.acks {
                AcksArg::None => Acks::None,
                AcksArg::Leader => Acks::Leader,
                AcksArg::All => Acks::All,
            },
            compression: match self.compression {
                CompressionArg::None => Codec::None,
                CompressionArg::Gzip => Codec::Gzip,
                CompressionArg::Snappy => Codec::Snappy,
                CompressionArg::Lz4 => Codec::Lz4,
                CompressionArg::Zstd => Codec::Zstd,
            },
            linger: self.linger,
            idempotence: self.no_idempotence.then_some(false),
            ..ProducerConfig::default()
        }
    }
}

#[derive(Clone, Debug)]
struct Separator(Vec<u8>);

fn separator(text: &str) -> Result<Separator, String> {
    let bytes = unescape(text)?;
    if bytes.is_empty() { Err("a separator has at least one character".to_owned()) } else { Ok(Separator(bytes)) }
}

/// What `--output json` prints.
#[derive(Serialize)]
struct Sent {
    records: u64,
    /// How many transactions they were committed in, if they were.
    #[serde(skip_serializing_if = "Option::is_none")]
    transactions: Option<u64>,
}

/// Why no more is read.
enum End {
    /// That was all.
    Input,
    /// The process is asked to end.
    Asked,
    Failed(Failure),
}

pub(super) async fn run(args: Args) -> Result<(), Failure> {
    let mut shutdown = Shutdown::listen()?;
    let client = args.connection.connect().await?;
    let defaults = args.sending.config();
    let config = ProducerConfig {
        delivery_timeout: args.delivery_timeout,
        request_timeout: defaults.request_timeout.min(args.delivery_timeout.saturating_sub(defaults.linger)),
        ..defaults
    };
    let lines = match args.json {
        true => Lines::Json,
        false => Lines::Plain { key_separator: args.key_separator.map(|separator| separator.0) },
    };
    let reading = Reading { topic: args.topic.into(), partition: args.partition, lines };
    let mut sending = match args.transactions.within(args.delivery_timeout) {
        None => Sending::OneByOne(OneByOne {
            producer: Producer::new(&client, config).map_err(|error| Failure::usage(error.to_string()))?,
            reading,
            deliveries: Deliveries::default(),
        }),
        Some(how) => Sending::InTransactions(Transactions::begin(&client, how, config, reading).await?),
    };
    let mut portions = input::lines(&args.file)?;
    let end = loop {
        let portion = tokio::select! {
            () = shutdown.asked() => break End::Asked,
            portion = portions.recv() => portion,
        };
        match portion {
            None => break End::Input,
            Some(Err(failure)) => break End::Failed(failure),
            Some(Ok(portion)) => {
                if let Err(failure) = sending.send(portion).await {
                    break End::Failed(failure);
                }
            }
        }
    };
    let sent = sending.finish(end).await?;
    match args.output.output {
        Format::Json => output::json(&sent),
        Format::Text => output::text(&sent.to_text()),
    }
}

impl Sent {
    fn to_text(&self) -> String {
        match self.transactions {
            None => format!("{} records", self.records),
            Some(transactions) => format!("{} records in {transactions} transactions", self.records),
        }
    }
}

/// What lines become.
struct Reading {
    topic: Arc<str>,
    partition: Option<u32>,
    lines: Lines,
}

impl Reading {
    /// The record of a line, or what is wrong with it.
    fn record(&self, number: u64, line: &[u8]) -> Result<ProducerRecord, Failure> {
        let entered = self.lines.read(line).map_err(|error| at_line(number, error))?;
        let Entered { partition, timestamp_ms, key, value, headers } = entered;
        Ok(ProducerRecord {
            topic: Arc::clone(&self.topic),
            partition: partition.or(self.partition),
            timestamp: timestamp_ms.map(TimestampMs),
            key,
            value,
            headers,
        })
    }
}

fn at_line(number: u64, error: impl std::fmt::Display) -> Failure {
    Failure::new(format!("line {number}: {error}"))
}

/// How records are written.
enum Sending {
    OneByOne(OneByOne),
    InTransactions(Transactions),
}

impl Sending {
    async fn send(&mut self, portion: Portion) -> Result<(), Failure> {
        for (number, line) in (portion.first..).zip(&portion.lines) {
            match self {
                Sending::OneByOne(records) => records.send(number, line).await?,
                Sending::InTransactions(transactions) => transactions.send(number, line).await?,
            }
        }
        Ok(())
    }

    /// Ends what is under way, and tells what was written, or what went wrong and how much was written before.
    async fn finish(self, end: End) -> Result<Sent, Failure> {
        match self {
            Sending::OneByOne(records) => records.finish(end).await,
            Sending::InTransactions(transactions) => transactions.finish(end).await,
        }
    }
}

/// A producer and the records on their way.
struct OneByOne {
    producer: Producer,
    reading: Reading,
    deliveries: Deliveries,
}

impl OneByOne {
    async fn send(&mut self, number: u64, line: &[u8]) -> Result<(), Failure> {
        let sent = self.producer.send(self.reading.record(number, line)?).await;
        self.deliveries.add(sent.map_err(|error| at_line(number, error))?);
        self.deliveries.look()
    }

    async fn finish(mut self, end: End) -> Result<Sent, Failure> {
        self.producer.close().await;
        let settled = self.deliveries.settle().await;
        let records = self.deliveries.acknowledged();
        let stopped = match end {
            End::Input | End::Asked => Ok(()),
            End::Failed(failure) => Err(failure),
        };
        match stopped.and(settled) {
            Ok(()) => Ok(Sent { records, transactions: None }),
            Err(failure) => Err(Failure::new(format!("{failure}; {records} records were acknowledged"))),
        }
    }
}
