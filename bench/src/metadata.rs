//! What a fleet asks of its metadata store while it takes in as much as it can: transactions beside objects uploaded, both by the
//! brokers' own metrics. What counts are those beyond the constant that is measured on the idle fleet.

use crate::Result;
use crate::bare::{Watch, wait};
use crate::goals::{self, Goals};
use crate::millpond::Dev;
use std::path::Path;
use std::time::Duration;

const BROKERS: usize = 3;

/// How long the idle fleet is looked at.
const IDLE: Duration = Duration::from_secs(30);

/// Partitions, records and bytes of a value: few large partitions, whose tails fill objects of their own, and many small ones, whose tails
/// share them.
const LOADS: [(u32, u64, u64); 2] = [(6, 160_000, 16 << 10), (600, 1_500_000, 512)];

pub(crate) fn run(dir: &Path, goals: &mut Goals) -> Result<()> {
    println!(
        "| partitions | MiB/s | objects | transactions | of which commits | idle transactions/s | transactions per object beyond idle |"
    );
    println!("|---|---|---|---|---|---|---|");
    for (partitions, records, size) in LOADS {
        let dev = Dev::start_fleet(&dir.join(partitions.to_string()), BROKERS)?;
        // Segments close by age in the second load: ten seconds are the shortest that the tierer looks at.
        let create =
            ["topic", "create", "bench", "--partitions", &partitions.to_string(), "--config", "segment.ms=10000"];
        dev.run(&create)?;
        dev.run(&["cluster", "wait", "--isr-full"])?;
        let idle = Counts::of(&dev)?;
        wait(IDLE)?;
        let before = Counts::of(&dev)?;
        let idle_rate = (before.transactions - idle.transactions) as f64 / IDLE.as_secs_f64();
        let watch = Watch::begin();
        let report =
            dev.bench(&["produce", "bench", "--records", &records.to_string(), "--size", &size.to_string()], records)?;
        let produced_in = watch.ms() / 1e3;
        dev.run(&["topic", "flush", "bench"])?;
        let after = Counts::of(&dev)?;
        let (sent, objects) = (after.transactions - before.transactions, after.objects - before.objects);
        let commits = after.commits - before.commits;
        let beyond = sent as f64 - idle_rate * watch.ms() / 1e3;
        let speed = (records * size) as f64 / f64::from(1 << 20) / produced_in;
        drop(report);
        let each = beyond / objects.max(1) as f64;
        println!("| {partitions} | {speed:.0} | {objects} | {sent} | {commits} | {idle_rate:.2} | {each:.2} |");
        goals.hold(goals::TRANSACTIONS, &format!("{partitions} partitions"), each);
        dev.stop()?;
    }
    Ok(())
}

/// What all brokers have done since they started.
struct Counts {
    /// Transactions sent, whatever came of them.
    transactions: u64,
    /// Those of them that were to change manifests.
    commits: u64,
    /// Objects uploaded.
    objects: u64,
}

impl Counts {
    fn of(dev: &Dev) -> Result<Counts> {
        Ok(Counts {
            transactions: dev.counted("millpond_metadata_requests_total", &["operation=\"txn\""])?,
            commits: dev.counted("millpond_commit_transactions_total", &[])?,
            objects: dev.counted("millpond_uploads_total", &[])?,
        })
    }
}
