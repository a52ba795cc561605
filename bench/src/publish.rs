//! How long one producer waits for one record, acks=all, through the gRPC door of a broker process, beside one write with its
//! fdatasync of as many blocks on the same disk. Goal: twice as long at most.

use crate::Result;
use crate::bare::{BLOCK_BYTES, Synced};
use crate::millpond::Dev;
use crate::tally::{median, ratios};
use std::path::Path;

const ROUNDS: usize = 5;

/// Records of one round.
const RECORDS: u64 = 300;

/// What a record's frame has beside its value, at most: the batch's header, the record's own fields, the frame's head.
const OVERHEAD_BYTES: u64 = 256;

/// Blocks of the groups that are written.
const BLOCKS: [u64; 3] = [1, 4, 32];

/// Times in milliseconds of the rounds.
#[derive(Default)]
struct Times {
    ours: Vec<f64>,
    bare: Vec<f64>,
}

pub(crate) fn run(dir: &Path) -> Result<()> {
    let dev = Dev::start(dir)?;
    dev.run(&["topic", "create", "bench"])?;
    // Twice as much as a file of the WAL holds: there are used ones to write over, once this is uploaded and trimmed.
    dev.bench(&["produce", "bench", "--records", "8192", "--size", "16KiB"], 8192)?;
    let mut bare = Synced::new(dir)?;
    println!("| blocks of 4 KiB | publish p50 ms | write + fdatasync p50 ms | ratio | rounds |\n|---|---|---|---|---|");
    for blocks in BLOCKS {
        let times = measure(&dev, &mut bare, blocks)?;
        let (ours, alone) = (median(&times.ours), median(&times.bare));
        let (least, most) = ratios(&times.ours, &times.bare);
        println!("| {blocks} | {ours:.3} | {alone:.3} | {:.2} | {least:.2} to {most:.2} |", ours / alone);
    }
    dev.stop()
}

/// Both in turns, so that whatever else the machine does meets both.
fn measure(dev: &Dev, bare: &mut Synced, blocks: u64) -> Result<Times> {
    let (records, size) = (RECORDS.to_string(), (blocks * BLOCK_BYTES - OVERHEAD_BYTES).to_string());
    let produce = ["produce", "bench", "--records", &records, "--size", &size, "--in-flight", "1", "--linger", "0s"];
    let mut times = Times::default();
    for _ in 0..ROUNDS {
        dev.run(&["topic", "flush", "bench"])?;
        let report = dev.bench(&produce, RECORDS)?;
        times.ours.push(report["latency_ms"]["p50"].as_f64().ok_or("a report without a median")?);
        times.bare.push(bare.p50_ms(RECORDS, blocks * BLOCK_BYTES)?);
    }
    Ok(times)
}
