//! How fast a topic is replayed out of a `file://` object store, by a broker process that has nothing in its caches, beside plain
//! reads of the same objects. Every round must return every record.

use crate::Result;
use crate::bare::{files, forget, read_seconds};
use crate::goals::{self, Goals};
use crate::millpond::Dev;
use crate::tally::{median, ratios};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

const ROUNDS: usize = 5;

/// Bytes of all values.
const TOPIC_BYTES: u64 = 256 << 20;

/// Bytes of one value.
const SIZES: [u64; 3] = [16 << 10, 1 << 10, 200];

const MIB: f64 = (1 << 20) as f64;

pub(crate) fn run(dir: &Path, goals: &mut Goals) -> Result<()> {
    println!(
        "| value | replay MiB/s | plain read MiB/s | ratio | rounds | GETs, for each 4 MiB |\n|---|---|---|---|---|---|"
    );
    for size in SIZES {
        let data = dir.join(size.to_string());
        goals.hold(goals::REPLAY, &format!("{size} B"), measure(&data, size)?);
        fs::remove_dir_all(data)?;
    }
    Ok(())
}

/// Replays and reads in turns; the ratio of the speeds.
fn measure(dir: &Path, size: u64) -> Result<f64> {
    let (records, objects) = (TOPIC_BYTES / size, dir.join("objects"));
    let dev = Dev::start(dir)?;
    dev.run(&["topic", "create", "bench"])?;
    dev.bench(&["produce", "bench", "--records", &records.to_string(), "--size", &size.to_string()], records)?;
    dev.run(&["topic", "flush", "bench"])?;
    dev.stop()?;
    let (objects, bytes) = files(&objects)?;
    let (mut ours, mut bare, mut gets) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        match fs::remove_dir_all(dir.join("broker-0/cache")) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let dev = Dev::start(dir)?;
        forget(&objects)?;
        let before = dev.object_gets()?;
        let report = dev.bench(&["replay", "bench"], records)?;
        gets.push((dev.object_gets()? - before) as f64);
        ours.push(report["seconds"].as_f64().ok_or("a report without a time")?);
        dev.stop()?;
        forget(&objects)?;
        bare.push(read_seconds(&objects)?);
    }
    let speed = |seconds: &[f64]| bytes as f64 / MIB / median(seconds);
    let (speed, alone, gets) = (speed(&ours), speed(&bare), median(&gets));
    // Twice the time is half the speed.
    let (least, most) = ratios(&bare, &ours);
    let each = gets / (bytes as f64 / MIB / 4.0);
    println!(
        "| {size} B | {speed:.0} | {alone:.0} | {:.2} | {least:.2} to {most:.2} | {gets:.0}, {each:.2} |",
        speed / alone
    );
    Ok(speed / alone)
}
