//! `millpond demo`: the tour on real events, with a fleet of its own. Publishes them, reads along, kills a broker meanwhile,
//! uploads, kills all brokers, starts them again, and replays everything. It is a client like any other; what it claims it has counted.

mod acks;
mod ledger;

use super::consume::{Left, ends};
use crate::failure::{Doing, Failure};
use crate::fleet::{Fleet, Plan};
use crate::flights;
use crate::output::{self, Format, OutputArgs};
use crate::progress::Progress;
use crate::signals::Shutdown;
use crate::units::ByteCount;
use acks::{Acked, Acks};
use ledger::Ledger;
use millpond_sdk::{
    Admin, Client, Codec, Consumer, ConsumerConfig, ErrorCode, IsolationLevel, NewTopic, Offset, PartitionStatus,
    Producer, ProducerConfig, ProducerRecord, StartAt, TimestampMs, TopicPartition,
};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::time::Instant;

const TOPIC: &str = "flights";
const PARTITIONS: u32 = 6;

const BROKERS: u16 = 3;

/// The broker that is killed: not the first, since clients would ask that one anyway.
const VICTIM: usize = 1;

/// After how many events a broker is killed: half of them.
const KILL_AFTER: u64 = flights::COUNT / 2;

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
    /// Leave the brokers running at the end, until Ctrl-C
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
    /// After which event a broker was killed.
    killed_after: u64,
    /// The longest that any partition went without an acknowledgement, while one had none to lead and follow it.
    longest_pause_seconds: f64,
    wal_bytes: u64,
    object_store_bytes: u64,
    replayed: u64,
    replay_seconds: f64,
}

pub(super) async fn run(args: Args) -> Result<(), Failure> {
    let mut shutdown = Shutdown::listen()?;
    tokio::select! {
        () = shutdown.asked() => Err(Failure::new("stopped before the end")),
        result = tour() => {
            let (summary, mut fleet, folder) = result?;
            summary.print(args.output.output)?;
            if args.keep {
                let folder = folder.keep();
                eprintln!("their data are in {}", folder.display());
                eprintln!("the brokers run on: --bootstrap {}; Ctrl-C ends them", bootstrap(&fleet));
                tokio::select! {
                    () = shutdown.asked() => {}
                    failure = fleet.keep() => return Err(failure),
                }
            }
            fleet.stop().await
        }
    }
}

async fn tour() -> Result<(Summary, Fleet, TempDir), Failure> {
    step("starting three brokers with empty disks and an empty object store");
    let folder = tempfile::Builder::new().prefix("millpond-demo-").tempdir().doing("cannot make a temporary folder")?;
    let mut fleet = Fleet::start(&plan(&folder)).await?;
    let client = connect(&fleet).await?;
    let admin = Admin::new(&client);
    let mut topic = NewTopic::new(TOPIC);
    topic.partitions = Some(PARTITIONS);
    topic.replication_factor = Some(u32::from(BROKERS));
    topic.configs = BTreeMap::from([("segment.bytes".to_owned(), SEGMENT_BYTES.to_owned())]);
    create(&admin, topic).await?;

    step("publishing the flights of 2013 by tail number, and reading along");
    let begun = Instant::now();
    let reading = tokio::spawn(read_along(connect(&fleet).await?));
    let (written, acked) = publish(&client, &mut fleet).await?;
    let publish_seconds = begun.elapsed().as_secs_f64();
    let read = reading.await.doing("the reader failed")??;
    written
        .compare(&read)
        .map_err(|difference| Failure::new(format!("what was read is not what was written: {difference}")))?;

    step("uploading what is not in the object store yet");
    admin.flush_topic(TOPIC).await.map_err(failed)?;
    let status = status(&admin).await?;

    step("killing all brokers (SIGKILL) and starting them again");
    fleet.kill_and_start().await?;

    step("replaying everything");
    let begun = Instant::now();
    let replayed = replay(connect(&fleet).await?).await?;
    let replay_seconds = begun.elapsed().as_secs_f64();
    written
        .compare(&replayed)
        .map_err(|difference| Failure::new(format!("the replay is not what was written: {difference}")))?;

    let summary = Summary {
        events: written.len(),
        keys: written.keys(),
        publish_seconds,
        killed_after: KILL_AFTER,
        longest_pause_seconds: acked.longest.as_secs_f64(),
        wal_bytes: status.iter().map(|status| status.tail_bytes).sum(),
        object_store_bytes: status.iter().map(|status| status.tiered_bytes).sum(),
        replayed: replayed.len(),
        replay_seconds,
    };
    Ok((summary, fleet, folder))
}

/// Three brokers on free ports, whose own words are errors alone: one of them is killed on purpose.
fn plan(folder: &TempDir) -> Plan {
    Plan {
        dir: folder.path().to_owned(),
        brokers: BROKERS,
        ports: [0; 3],
        objects: format!("file://{}", folder.path().join("objects").display()),
        arguments: ["--log", "error"].map(str::to_owned).to_vec(),
        named: true,
    }
}

fn bootstrap(fleet: &Fleet) -> String {
    fleet.grpc().join(",")
}

/// Says on standard error what happens now.
fn step(what: &str) {
    eprintln!("{what}");
}

/// On a busy machine a broker may lose its session, and is back in a moment: as many copies are possible then.
async fn create(admin: &Admin, topic: NewTopic) -> Result<(), Failure> {
    let patience = Instant::now() + STALL_MAX;
    loop {
        match admin.create_topic(topic.clone()).await {
            Err(error) if error.code == Some(ErrorCode::InvalidReplicationFactor) && Instant::now() < patience => {
                tokio::time::sleep(POLL_WAIT).await;
            }
            created => return created.map(drop).map_err(failed),
        }
    }
}

async fn connect(fleet: &Fleet) -> Result<Client, Failure> {
    Client::connect(&bootstrap(fleet)).await.map_err(failed)
}

fn failed(error: millpond_sdk::Error) -> Failure {
    Failure::new(error.to_string())
}

/// Publishes every event, and kills a broker half way. Returns what was written once all of it is acknowledged.
async fn publish(client: &Client, fleet: &mut Fleet) -> Result<(Ledger, Acked), Failure> {
    let config = ProducerConfig { compression: Codec::Lz4, ..ProducerConfig::default() };
    let producer = Producer::new(client, config).map_err(failed)?;
    let mut acks = Acks::begin();
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
        if acks.add(producer.send(record).await.map_err(failed)?).is_err() {
            // It ends with the reason.
            break;
        }
        progress.add(1, Instant::now());
        if written.len() == KILL_AFTER {
            step("killing a broker (SIGKILL); publishing goes on");
            fleet.kill(VICTIM).await?;
        }
    }
    producer.close().await;
    let acked = acks.settle().await?;
    progress.end();
    if acked.count != flights::COUNT {
        return Err(Failure::new(format!("{} of {} events were acknowledged", acked.count, flights::COUNT)));
    }
    Ok((written, acked))
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
    let mut left = Left::new(None, Some(ends(&client, &all, IsolationLevel::ReadUncommitted).await?));
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
            (
                "one of three brokers killed",
                format!("after {} events", self.killed_after),
                format!("no partition waited longer than {:.2} s", self.longest_pause_seconds),
            ),
            ("in the leaders' WALs", ByteCount(self.wal_bytes).to_string(), String::new()),
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
