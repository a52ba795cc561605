//! How long a partition's only replica takes to move to another broker: the tail is copied, synced, in sync, led there, and gone here.
//! Beside a plain copy of as many bytes on the same disk, with its sync; with 1 GiB and with 10 GiB in the object store.

use crate::Result;
use crate::bare::{Watch, copy_seconds, touch_memory, wait};
use crate::goals::{self, Goals};
use crate::millpond::Dev;
use crate::tally::{median, ratios};
use millpond_sdk::{Admin, BrokerId, Client};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::time::Duration;
use tokio::runtime::Runtime;

const BROKERS: usize = 3;
const ROUNDS: usize = 9;

/// Bytes of one value.
const VALUE_BYTES: u64 = 16 << 10;

/// Records of the tail: with what batches and records have beside their values just less than the 64 MiB at which a tail is uploaded.
const TAIL_RECORDS: u64 = 4_000;

/// GiB that the object store holds.
const RETAINED: [u64; 2] = [1, 10];

/// Times that a tail is written until it stays, and the pause between them.
const TRIES: usize = 10;
const PAUSE: Duration = Duration::from_secs(1);

/// A move that takes longer is stuck.
const STUCK_MS: f64 = 60_000.0;

/// Pause between looks at a move: they are not to take from the brokers what the copy has for itself.
const LOOK: Duration = Duration::from_millis(2);

pub(crate) fn run(dir: &Path, goals: &mut Goals) -> Result<()> {
    let dev = Dev::start_fleet(&dir.join("fleet"), BROKERS)?;
    let create = ["topic", "create", "bench", "--replication-factor", "1", "--config", "min.insync.replicas=1"];
    // Nothing is uploaded but what is asked for, and nothing expires.
    let settings = ["--config", "segment.ms=86400000", "--config", "retention.ms=-1"];
    dev.run(&[&create[..], &settings].concat())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = runtime.block_on(Client::connect(&dev.bootstrap()))?;
    let from_outside = Outside { runtime, admin: Admin::new(&client) };
    let (mut held, mut times) = (0, Vec::new());
    for retained in RETAINED {
        fill(&dev, retained - held)?;
        touch_memory()?;
        held = retained;
        if retained == RETAINED[0] {
            first_moves(&dev, &from_outside)?;
        }
        let (ours_ms, ratio) = measure(&dev, &from_outside, dir, retained)?;
        goals.hold(goals::MOVE, &format!("{retained} GiB retained"), ratio);
        times.push(ours_ms);
    }
    let [least, .., most] = times[..] else { return Err("there is more than one amount to retain".into()) };
    goals.hold(goals::MOVE_GROWTH, &format!("{RETAINED:?} GiB retained"), most / least);
    dev.stop()
}

fn fill(dev: &Dev, gib: u64) -> Result<()> {
    let records = (gib << 30) / VALUE_BYTES;
    produce(dev, records)?;
    dev.run(&["topic", "flush", "bench"])?;
    Ok(())
}

fn produce(dev: &Dev, records: u64) -> Result<()> {
    dev.bench(&["produce", "bench", "--records", &records.to_string(), "--size", &VALUE_BYTES.to_string()], records)?;
    Ok(())
}

/// A move to each broker: what a broker pays once for the first tail that it takes (files of the WAL that are made, memory that is touched)
/// is told by itself.
fn first_moves(dev: &Dev, outside: &Outside) -> Result<()> {
    let mut first = Vec::new();
    for _ in 0..BROKERS {
        first.push(format!("{:.0}", outside.move_ms(next_broker(&with_tail(dev)?)?)?));
        dev.run(&["topic", "flush", "bench"])?;
    }
    println!("first move to each broker: {} ms", first.join(", "));
    println!("| retained | move ms | copy + fsync ms | ratio | rounds |\n|---|---|---|---|---|");
    Ok(())
}

/// The broker after the partition's leader.
fn next_broker(partition: &Value) -> Result<BrokerId> {
    let leader = partition["leader"].as_u64().ok_or("a partition without leader")?;
    Ok(BrokerId(u32::try_from((leader + 1) % BROKERS as u64)?))
}

/// Moves and copies in turns; the milliseconds of a move, and their ratio to those of a copy.
fn measure(dev: &Dev, outside: &Outside, dir: &Path, retained: u64) -> Result<(f64, f64)> {
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let before = with_tail(dev)?;
        let tail = before["tail_bytes"].as_u64().ok_or("a partition without a tail")?;
        ours.push(outside.move_ms(next_broker(&before)?)?);
        let source = dir.join("source");
        fs::write(&source, incompressible(usize::try_from(tail)?))?;
        bare.push(copy_seconds(&source, &dir.join("copy"))? * 1e3);
        dev.run(&["topic", "flush", "bench"])?;
    }
    let (ours_ms, bare_ms) = (median(&ours), median(&bare));
    let (least, most) = ratios(&ours, &bare);
    println!("| {retained} GiB | {ours_ms:.0} | {bare_ms:.0} | {:.2} | {least:.2} to {most:.2} |", ours_ms / bare_ms);
    Ok((ours_ms, ours_ms / bare_ms))
}

/// Writes a tail; the partition with it. A WAL that has just taken gibibytes may still be short of room, and its tails go at once: again.
fn with_tail(dev: &Dev) -> Result<Value> {
    for _ in 0..TRIES {
        produce(dev, TAIL_RECORDS)?;
        let now = partition(dev)?;
        if now["tail_bytes"].as_u64().is_some_and(|tail| tail >= TAIL_RECORDS * VALUE_BYTES) {
            return Ok(now);
        }
        dev.run(&["topic", "flush", "bench"])?;
        wait(PAUSE)?;
    }
    Err("the tail is uploaded as soon as it is written".into())
}

/// Bytes that no disk stores in less room than they take.
fn incompressible(size: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        // Xorshift, by Marsaglia.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(size);
    bytes
}

fn partition(dev: &Dev) -> Result<Value> {
    Ok(dev.json(&["topic", "describe", "bench"])?["partitions"][0].clone())
}

/// An operator, connected.
struct Outside {
    runtime: Runtime,
    admin: Admin,
}

impl Outside {
    /// Milliseconds from the request to the moment when the record says that it is done. Seen from outside, by asking again and again.
    fn move_ms(&self, to: BrokerId) -> Result<f64> {
        self.runtime.block_on(async {
            let watch = Watch::begin();
            self.admin.move_partition("bench", 0, &[to]).await?;
            loop {
                let topic = self.admin.describe_topic("bench").await?;
                let now = &topic.partitions[0];
                if now.leader == Some(to) && now.replicas == [to] {
                    return Ok(watch.ms());
                }
                if watch.ms() > STUCK_MS {
                    return Err(format!("the partition does not move to {to}: {now:?}").into());
                }
                tokio::time::sleep(LOOK).await;
            }
        })
    }
}
