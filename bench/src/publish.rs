//! How long one producer waits for one record, acks=all, through the gRPC door of a broker process, beside one write with its
//! fdatasync of as many blocks on the same disk, and beside a gRPC server that does nothing but such writes.

use crate::Result;
use crate::bare::{BLOCK_BYTES, Synced};
use crate::echo::Echo;
use crate::goals::{self, Goals};
use crate::millpond::Dev;
use crate::tally::{median, ratios};
use std::path::Path;

const ROUNDS: usize = 5;

/// Records of one round.
const RECORDS: u64 = 300;

/// How often two files' worth is written before: more files than the WAL makes ahead.
const FILLS: usize = 4;

/// What a record's frame has beside its value, at most: the batch's header, the record's own fields, the frame's head.
const OVERHEAD_BYTES: u64 = 256;

/// Blocks of the groups that are written.
const BLOCKS: [u64; 3] = [1, 4, 32];

/// Times in milliseconds of the rounds.
#[derive(Default)]
struct Times {
    ours: Vec<f64>,
    echo: Vec<f64>,
    bare: Vec<f64>,
}

pub(crate) fn run(dir: &Path, goals: &mut Goals) -> Result<()> {
    let dev = Dev::start(dir)?;
    dev.run(&["topic", "create", "bench"])?;
    // Each time twice as much as a file of the WAL holds, uploaded and trimmed, until those that were made ahead are used up: after that
    // it writes over blocks that were written before, as the disk alone does here. Under load new files are not zeroed to their end,
    // and a sync of blocks that were never written has their allocation to note as well.
    for _ in 0..FILLS {
        dev.bench(&["produce", "bench", "--records", "8192", "--size", "16KiB"], 8192)?;
        dev.run(&["topic", "flush", "bench"])?;
    }
    let (mut bare, echo) = (Synced::new(&dir.join("bare"))?, Echo::start(dir)?);
    println!(
        "| blocks of 4 KiB | publish p50 ms | write + fdatasync p50 ms | ratio | rounds | gRPC echo p50 ms | ratio to it |"
    );
    println!("|---|---|---|---|---|---|---|");
    for blocks in BLOCKS {
        let times = measure(&dev, &mut bare, &echo, blocks)?;
        let (ours, alone, echo) = (median(&times.ours), median(&times.bare), median(&times.echo));
        let (least, most) = ratios(&times.ours, &times.bare);
        let (ratio, to_echo) = (ours / alone, ours / echo);
        goals.hold(goals::PUBLISH, &format!("{blocks} blocks"), ratio);
        println!(
            "| {blocks} | {ours:.3} | {alone:.3} | {ratio:.2} | {least:.2} to {most:.2} | {echo:.3} | {to_echo:.2} |"
        );
    }
    dev.stop()
}

/// All in turns, so that whatever else the machine does meets all.
fn measure(dev: &Dev, bare: &mut Synced, echo: &Echo, blocks: u64) -> Result<Times> {
    let (records, size) = (RECORDS.to_string(), (blocks * BLOCK_BYTES - OVERHEAD_BYTES).to_string());
    let produce = ["produce", "bench", "--records", &records, "--size", &size, "--in-flight", "1", "--linger", "0s"];
    let mut times = Times::default();
    for _ in 0..ROUNDS {
        dev.run(&["topic", "flush", "bench"])?;
        let report = dev.bench(&produce, RECORDS)?;
        times.ours.push(report["latency_ms"]["p50"].as_f64().ok_or("a report without a median")?);
        times.echo.push(echo.p50_ms(RECORDS, blocks * BLOCK_BYTES - OVERHEAD_BYTES)?);
        times.bare.push(bare.p50_ms(RECORDS, blocks * BLOCK_BYTES)?);
    }
    Ok(times)
}
