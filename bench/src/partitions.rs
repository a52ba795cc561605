//! What ten thousand partitions with three replicas each cost three brokers: the time to create them, the memory that they take, and the
//! time until everything is led again when one broker is killed.

use crate::Result;
use crate::bare::{Watch, wait};
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

pub(crate) fn run(dir: &Path) -> Result<()> {
    let dev = Dev::start_fleet(dir, BROKERS)?;
    wait(SETTLES / 6);
    let before = resident_bytes(&dev)?;
    let watch = Watch::begin();
    dev.run(&["topic", "create", "bench", "--partitions", &PARTITIONS.to_string()])?;
    let created_ms = watch.ms();
    until_all_led(&dev, &watch)?;
    let led_ms = watch.ms();
    dev.run(&["cluster", "wait", "--isr-full", "--timeout", "2m"])?;
    let in_sync_ms = watch.ms();
    wait(SETTLES);
    let after = resident_bytes(&dev)?;
    let victim = dev.brokers()?[0];
    let watch = Watch::begin();
    kill(victim)?;
    until_dead_leads_nothing(&dev, &watch)?;
    let elected_ms = watch.ms();
    let each = after.saturating_sub(before) as f64 / f64::from(PARTITIONS);
    println!(
        "| partitions | create ms | all led ms | all in sync ms | KiB a partition | of which each replica | led again after a kill ms |"
    );
    println!("|---|---|---|---|---|---|---|");
    println!(
        "| {PARTITIONS} | {created_ms:.0} | {led_ms:.0} | {in_sync_ms:.0} | {:.1} | {:.1} | {elected_ms:.0} |",
        each / 1024.0,
        each / 1024.0 / BROKERS as f64
    );
    dev.stop()
}

fn kill(process: u32) -> Result<()> {
    let pid = i32::try_from(process).ok().and_then(rustix::process::Pid::from_raw);
    Ok(rustix::process::kill_process(pid.ok_or("a child has an id")?, rustix::process::Signal::KILL)?)
}

fn until_all_led(dev: &Dev, watch: &Watch) -> Result<()> {
    until(watch, "every partition has a leader", || {
        let cluster = dev.json(&["cluster", "describe"])?;
        Ok(cluster["offline"].as_array().is_some_and(Vec::is_empty))
    })
}

/// The killed one comes back as another life: until it leads again, all its partitions have to be led by others.
fn until_dead_leads_nothing(dev: &Dev, watch: &Watch) -> Result<()> {
    until(watch, "others lead what the killed broker led", || {
        let cluster = dev.json(&["cluster", "describe"])?;
        let brokers = cluster["brokers"].as_array().ok_or("a cluster without brokers")?;
        let idle = brokers.iter().filter(|broker| broker["leads"] == 0).count();
        let leads: u64 = brokers.iter().filter_map(|broker| broker["leads"].as_u64()).sum();
        let offline = cluster["offline"].as_array().map_or(1, Vec::len);
        Ok(offline == 0 && leads == u64::from(PARTITIONS) && (brokers.len() < BROKERS || idle > 0))
    })
}

fn until(watch: &Watch, what: &str, holds: impl Fn() -> Result<bool>) -> Result<()> {
    loop {
        // A broker that was just killed may be the one that is asked.
        if holds().unwrap_or(false) {
            return Ok(());
        }
        if watch.ms() > STUCK_MS {
            return Err(format!("not within {STUCK_MS:.0} ms: {what}").into());
        }
    }
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
