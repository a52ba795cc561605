//! What ten thousand partitions with three replicas each cost three brokers: the time to create them, the memory that they take, the
//! time of `cluster describe`, and the time until everything is led again when one broker is killed.

use crate::Result;
use crate::bare::{Watch, wait};
use crate::goals::{self, Goals};
use crate::millpond::Dev;
use std::fs;
use std::path::Path;
use std::time::Duration;

const BROKERS: usize = 3;
const PARTITIONS: u32 = 10_000;

/// How long they are left alone before their memory is looked at.
const SETTLES: Duration = Duration::from_secs(60);

/// What takes longer is stuck.
const STUCK_MS: f64 = 120_000.0;

pub(crate) fn run(dir: &Path, goals: &mut Goals) -> Result<()> {
    let dev = Dev::start_fleet(dir, BROKERS)?;
    wait(SETTLES / 6)?;
    let before = resident_bytes(&dev)?;
    let watch = Watch::begin();
    dev.run(&["topic", "create", "bench", "--partitions", &PARTITIONS.to_string()])?;
    let created_ms = watch.ms();
    until_all_led(&dev, &watch)?;
    let led_ms = watch.ms();
    dev.run(&["cluster", "wait", "--isr-full", "--timeout", "2m"])?;
    let in_sync_ms = watch.ms();
    wait(SETTLES)?;
    let after = resident_bytes(&dev)?;
    let watch = Watch::begin();
    dev.run(&["cluster", "describe"])?;
    let described_ms = watch.ms();
    let watch = Watch::begin();
    kill(dev.brokers()?[0])?;
    // Whether or not it is back: nobody gives it leaderships within the first seconds.
    until_all_led(&dev, &watch)?;
    let elected_ms = watch.ms();
    let each = after.saturating_sub(before) as f64 / f64::from(PARTITIONS);
    println!(
        "| partitions | create ms | all led ms | all in sync ms | KiB a partition | of which each replica | described ms | led again after a kill ms |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    println!(
        "| {PARTITIONS} | {created_ms:.0} | {led_ms:.0} | {in_sync_ms:.0} | {:.1} | {:.1} | {described_ms:.0} | {elected_ms:.0} |",
        each / 1024.0,
        each / 1024.0 / BROKERS as f64
    );
    goals.hold(goals::LED_AGAIN, &format!("{PARTITIONS} partitions"), elected_ms);
    dev.stop()
}

fn kill(process: u32) -> Result<()> {
    let pid = i32::try_from(process).ok().and_then(rustix::process::Pid::from_raw);
    Ok(rustix::process::kill_process(pid.ok_or("a child has an id")?, rustix::process::Signal::KILL)?)
}

/// How many partitions each broker leads, by its own account; `None` of one that does not answer.
fn led(dev: &Dev) -> Vec<Option<u64>> {
    dev.counted_each("millpond_partitions_led")
}

fn until_all_led(dev: &Dev, watch: &Watch) -> Result<()> {
    until(watch, "every partition is led", || led(dev).into_iter().flatten().sum::<u64>() == u64::from(PARTITIONS))
}

fn until(watch: &Watch, what: &str, holds: impl Fn() -> bool) -> Result<()> {
    while !holds() {
        if watch.ms() > STUCK_MS {
            return Err(format!("not within {STUCK_MS:.0} ms: {what}").into());
        }
    }
    Ok(())
}

/// Memory that the brokers hold, by the system's count.
fn resident_bytes(dev: &Dev) -> Result<u64> {
    let mut sum = 0;
    for broker in dev.brokers()? {
        let status = fs::read_to_string(format!("/proc/{broker}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next()).ok_or("a process without VmRSS")?;
        sum += kib.parse::<u64>()? << 10;
    }
    Ok(sum)
}
