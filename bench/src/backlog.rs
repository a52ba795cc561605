//! How long a group takes for a backlog of half an hour while records go on coming, beside the arithmetic of a capacity plan: what waits,
//! divided by what the group reads in a second when nothing comes, less what comes. Hot, as the brokers hold it once it was written; and
//! cold, out of the object store, by brokers that have nothing in their caches. Every record of the backlog must be read.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use crate::Result;
use crate::bare::{files, forget};
use crate::goals::{self, Goals};
use crate::millpond::Dev;
use millpond_sdk::{Admin, Client, GroupConfig, GroupConsumer, OffsetSpec, Subscription, TimestampMs, TopicPartition};
use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const BROKERS: usize = 3;
const TOPIC: &str = "bench";
const PARTITIONS: u32 = 6;

/// What 1 000 records a second are in 30 minutes.
const BACKLOG: u64 = 1_800_000;

/// Bytes of one value.
const VALUE_BYTES: u64 = 1 << 10;

/// Records that come in a second while the backlog is read.
const RATES: [u64; 3] = [1_000, 20_000, 60_000];

/// A partition has no backlog any more when what is read of it is not older.
const FRESH: Duration = Duration::from_millis(300);

/// A drain that takes longer is stuck; so long, records come.
const STUCK: Duration = Duration::from_secs(120);

/// How long a group is waited for at once.
const POLL: Duration = Duration::from_millis(200);

pub(crate) fn run(dir: &Path, goals: &mut Goals) -> Result<()> {
    let data = dir.join("fleet");
    let mut dev = Dev::start_fleet(&data, BROKERS)?;
    // The rounds add to it, and nothing expires.
    let partitions = PARTITIONS.to_string();
    dev.run(&["topic", "create", TOPIC, "--partitions", &partitions, "--config", "retention.ms=-1"])?;
    let (records, size) = (BACKLOG.to_string(), VALUE_BYTES.to_string());
    dev.bench(&["produce", TOPIC, "--records", &records, "--size", &size], BACKLOG)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    println!(
        "| backlog | reads alone, records/s | comes, records/s | waits, records | arithmetic s | drained after s | ratio |"
    );
    println!("|---|---|---|---|---|---|---|");
    for (held, cold) in [("hot", false), ("cold", true)] {
        if cold {
            dev = cooled(dev, &data)?;
        }
        let alone = runtime.block_on(drain(&dev, &format!("{held}-alone"), false))?;
        let speed = alone.read as f64 / alone.took.as_secs_f64();
        for rate in RATES {
            if cold {
                dev = cooled(dev, &data)?;
            }
            let (rate_text, records) = (rate.to_string(), (rate * STUCK.as_secs()).to_string());
            let coming =
                dev.begin(&["bench", "produce", TOPIC, "--records", &records, "--rate", &rate_text, "--size", &size])?;
            let drained = runtime.block_on(drain(&dev, &format!("{held}-{rate}"), true))?;
            drop(coming);
            let (waited, took) = (drained.waited as f64, drained.took.as_secs_f64());
            let arithmetic = waited / (speed - rate as f64);
            println!(
                "| {held} | {speed:.0} | {rate} | {waited:.0} | {arithmetic:.1} | {took:.1} | {:.2} |",
                took / arithmetic
            );
            goals.hold(goals::BACKLOG, &format!("{held}, {rate} records/s come"), took / arithmetic);
        }
    }
    dev.stop()
}

/// Another fleet on the same data, which has all records in the object store and nothing in its caches.
fn cooled(dev: Dev, data: &Path) -> Result<Dev> {
    dev.run(&["topic", "flush", TOPIC])?;
    dev.stop()?;
    for broker in 0..BROKERS {
        match fs::remove_dir_all(data.join(format!("broker-{broker}/cache"))) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
    }
    let dev = Dev::start_fleet(data, BROKERS)?;
    forget(&files(&data.join("objects"))?.0)?;
    Ok(dev)
}

struct Drained {
    /// Records that were there when the group began.
    waited: u64,
    read: u64,
    /// From the first record on: a new group is assigned its partitions before.
    took: Duration,
}

/// Reads all there is with a new group of one member; until it reads what has just come, if records come.
async fn drain(dev: &Dev, group: &str, coming: bool) -> Result<Drained> {
    let client = Client::connect(&dev.bootstrap()).await?;
    let admin = Admin::new(&client);
    let mut ends = Vec::new();
    for index in 0..PARTITIONS {
        let end = admin.list_offset(TOPIC, index, OffsetSpec::Latest).await?.ok_or("a partition has an end")?;
        ends.push((TopicPartition::new(TOPIC, index), end.offset));
    }
    let waited = ends.iter().map(|(_, end)| end.0).sum();
    let mut consumer = GroupConsumer::new(&client, GroupConfig::new(group), Subscription::topics([TOPIC]))?;
    let (started, mut first, mut read, mut fresh) = (Instant::now(), None, 0, BTreeSet::new());
    while fresh.len() < ends.len() {
        if started.elapsed() > STUCK {
            return Err(format!("group `{group}` has read {read} of {waited} records, and is stuck").into());
        }
        let records = consumer.poll(POLL).await?;
        if !records.is_empty() {
            first.get_or_insert_with(Instant::now);
        }
        read += records.len() as u64;
        if let Some(newest) = records.last()
            && coming
            && age(newest.timestamp)? <= FRESH
        {
            fresh.insert(newest.partition);
        }
        if !coming {
            let there = |(partition, end): &&(TopicPartition, _)| consumer.position(partition) >= Some(*end);
            fresh = ends.iter().filter(there).map(|(partition, _)| partition.partition).collect();
        }
    }
    let took = first.ok_or("there is a backlog")?.elapsed();
    consumer.close().await?;
    if read < waited {
        return Err(format!("group `{group}` has read {read} records of a backlog of {waited}").into());
    }
    Ok(Drained { waited, read, took })
}

fn age(timestamp: TimestampMs) -> Result<Duration> {
    let made = UNIX_EPOCH + Duration::from_millis(u64::try_from(timestamp.0)?);
    Ok(SystemTime::now().duration_since(made).unwrap_or_default())
}
