//! `millpond demo`: the tour on real events. Publishes them, reads along, uploads, kills the broker, starts it again, and
//! replays everything. It is a client like any other; what it claims it has counted.

mod ledger;
mod server;

use super::consume::{Left, ends};
use super::deliveries::Deliveries;
use crate::failure::{Doing, Failure};
use crate::flights;
use crate::output::{self, Format, OutputArgs};
use crate::progress::Progress;
use crate::signals::Shutdown;
use crate::units::ByteCount;
use ledger::Ledger;
use millpond_sdk::{
    Admin, Client, Codec, Consumer, ConsumerConfig, NewTopic, Offset, PartitionStatus, Producer, ProducerConfig,
    ProducerRecord, StartAt, TimestampMs, TopicPartition,
};
use serde::Serialize;
use server::Server;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const TOPIC: &str = "flights";
const PARTITIONS: u32 = 6;

/// Segments small enough that uploads go on while events are published.
const SEGMENT_BYTES: &str = "4194304";

/// How long `poll` waits before the end is looked at again.
const POLL_WAIT: Duration = Duration::from_millis(100);

/// How long a reader may go without a record before the demo calls it stuck.
const STALL_MAX: Duration = Duration::from_secs(30);

/// Arguments of `demo`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: millpond demo --keep")]
pub(crate) struct Args {
    /// Leave the broker running at the end, until Ctrl-C
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// What the tour came to.
#[derive(Debug, Serialize)]
struct Summary {
    events: u64,
    keys: usize,
    publish_seconds: f64,
    wal_bytes: u64,
    object_store_bytes: u64,
    replayed: u64,
    replay_seconds: f64,
}

pub(super) async fn run(args: Args) -> Result<(), Failure> {
    let mut shutdown = Shutdown::listen()?;
    tokio::select! {
        () = shutdown.asked() => Err(Failure::new("stopped before the end")),
        result = tour(&args) => {
            let (summary, server) = result?;
            summary.print(args.output.output)?;
            if args.keep {
                eprintln!("the broker runs on: --bootstrap {}; Ctrl-C ends it", server.grpc);
                shutdown.asked().await;
            }
            server.stop().await
        }
    }
}

async fn tour(args: &Args) -> Result<(Summary, Server), Failure> {
    step("starting a broker with an empty disk and an empty object store");
    let mut server = Server::start().await?;
    let client = connect(&server).await?;
    let admin = Admin::new(&client);
    let mut topic = NewTopic::new(TOPIC);
    topic.partitions = Some(PARTITIONS);
    topic.configs = BTreeMap::from([("segment.bytes".to_owned(), SEGMENT_BYTES.to_owned())]);
    admin.create_topic(topic).await.map_err(failed)?;

    step("publishing the flights of 2013 by tail number, and reading along");
    let begun = Instant::now();
    let reading = tokio::spawn(read_along(connect(&server).await?));
    let written = publish(&client).await?;
    let publish_seconds = begun.elapsed().as_secs_f64();
    let read = reading.await.doing("the reader failed")??;
    written
        .compare(&read)
        .map_err(|difference| Failure::new(format!("what was read is not what was written: {difference}")))?;

    step("uploading what is not in the object store yet");
    admin.flush_topic(TOPIC).await.map_err(failed)?;
    let status = status(&admin).await?;

    step("killing the broker (SIGKILL) and starting it again");
    server.kill_and_start().await?;

    step("replaying everything");
    let begun = Instant::now();
    let replayed = replay(connect(&server).await?).await?;
    let replay_seconds = begun.elapsed().as_secs_f64();
    written
        .compare(&replayed)
        .map_err(|difference| Failure::new(format!("the replay is not what was written: {difference}")))?;

    if args.keep {
        server.keep_data();
    }
    let summary = Summary {
        events: written.len(),
        keys: written.keys(),
        publish_seconds,
        wal_bytes: status.iter().map(|status| status.tail_bytes).sum(),
        object_store_bytes: status.iter().map(|status| status.tiered_bytes).sum(),
        replayed: replayed.len(),
        replay_seconds,
    };
    Ok((summary, server))
}

/// Says on standard error what happens now.
fn step(what: &str) {
    eprintln!("{what}");
}

async fn connect(server: &Server) -> Result<Client, Failure> {
    Client::connect(&server.grpc).await.map_err(failed)
}

fn failed(error: millpond_sdk::Error) -> Failure {
    Failure::new(error.to_string())
}

/// Publishes every event, and returns what was written once all of it is acknowledged.
async fn publish(client: &Client) -> Result<Ledger, Failure> {
    let config = ProducerConfig { compression: Codec::Lz4, ..ProducerConfig::default() };
    let producer = Producer::new(client, config).map_err(failed)?;
    let mut deliveries = Deliveries::default();
    let mut written = Ledger::new(flights::COUNT);
    let mut progress = Progress::begin("publishing", Some(flights::COUNT), Instant::now());
    let topic: Arc<str> = TOPIC.into();
    for (row, event) in (0..).zip(flights::events().doing("cannot read the demo's events")?) {
        let event = event.doing("cannot read the demo's events")?;
        let key = event.key.as_ref().map(String::as_bytes);
        written.enter(row, key, event.timestamp_ms, event.value.as_bytes()).map_err(Failure::new)?;
        let record = ProducerRecord {
            timestamp: Some(TimestampMs(event.timestamp_ms)),
            key: event.key.map(Into::into),
            value: Some(event.value.into()),
            ..ProducerRecord::new(Arc::clone(&topic))
        };
        let record = record.header(ledger::ROW, row.to_string());
        deliveries.add(producer.send(record).await.map_err(failed)?);
        deliveries.look()?;
        progress.add(1, Instant::now());
    }
    producer.close().await;
    deliveries.settle().await?;
    progress.end();
    if deliveries.acknowledged() != written.len() {
        let acknowledged = deliveries.acknowledged();
        return Err(Failure::new(format!("{acknowledged} of {} events were acknowledged", written.len())));
    }
    Ok(written)
}

/// Reads from the start, while events are still being published, until every one has been seen.
async fn read_along(client: Client) -> Result<Ledger, Failure> {
    let mut consumer = Consumer::new(&client, ConsumerConfig::default());
    consumer.assign(partitions().map(|partition| (partition, StartAt::Earliest))).await.map_err(failed)?;
    let mut read = Ledger::new(flights::COUNT);
    while read.len() < flights::COUNT {
        let records = consumer.poll(STALL_MAX).await.map_err(failed)?;
        if records.is_empty() {
            return Err(Failure::new(format!("no event came for 30 s, after {} of them", read.len())));
        }
        for record in &records {
            read.enter_record(record).map_err(Failure::new)?;
        }
    }
    Ok(read)
}

/// Reads everything there is, once.
async fn replay(client: Client) -> Result<Ledger, Failure> {
    let all: Vec<TopicPartition> = partitions().collect();
    let mut left = Left::new(None, Some(ends(&client, &all).await?));
    let mut consumer = Consumer::new(&client, ConsumerConfig { scan: true, ..ConsumerConfig::default() });
    consumer.assign(all.into_iter().map(|partition| (partition, StartAt::Earliest))).await.map_err(failed)?;
    let mut replayed = Ledger::new(flights::COUNT);
    let mut moved = Instant::now();
    while !left.is_done(|partition| consumer.position(partition)) {
        let records = consumer.poll(POLL_WAIT).await.map_err(failed)?;
        for record in records.iter().filter(|record| left.takes(record)) {
            replayed.enter_record(record).map_err(Failure::new)?;
            moved = Instant::now();
        }
        if moved.elapsed() > STALL_MAX {
            return Err(Failure::new(format!("no event came for 30 s, after {} of them", replayed.len())));
        }
    }
    Ok(replayed)
}

fn partitions() -> impl Iterator<Item = TopicPartition> {
    (0..PARTITIONS).map(|index| TopicPartition::new(TOPIC, index))
}

/// The state of every partition; all of them wholly in the object store.
async fn status(admin: &Admin) -> Result<Vec<PartitionStatus>, Failure> {
    let mut all = Vec::new();
    for partition in partitions() {
        let status = admin.partition_status(TOPIC, partition.partition).await.map_err(failed)?;
        if status.tiered_end < status.high_watermark || status.log_start != Offset(0) {
            return Err(Failure::new(format!("{partition} is not wholly in the object store: {status:?}")));
        }
        all.push(status);
    }
    Ok(all)
}

impl Summary {
    fn print(&self, format: Format) -> Result<(), Failure> {
        match format {
            Format::Json => output::json(self),
            Format::Text => output::text(&self.to_text()),
        }
    }

    fn to_text(&self) -> String {
        let rate = |count: u64, seconds: f64| format!("{:.0} events/s", count as f64 / seconds.max(f64::MIN_POSITIVE));
        let rows = [
            (
                "published",
                format!("{} events of {} aircraft", self.events, self.keys),
                rate(self.events, self.publish_seconds),
            ),
            ("in the broker's WAL", ByteCount(self.wal_bytes).to_string(), String::new()),
            ("in the object store", ByteCount(self.object_store_bytes).to_string(), String::new()),
            ("replayed", format!("{} events", self.replayed), rate(self.replayed, self.replay_seconds)),
            ("lost, repeated, out of order", "0".to_owned(), String::new()),
        ];
        let line = |(what, amount, rate): &(&str, String, String)| {
            format!("{what:<30}{amount:<34}{rate}").trim_end().to_owned()
        };
        rows.iter().map(line).collect::<Vec<String>>().join("\n")
    }
}
