//! What scenarios are made of: one fault, what must be seen then, and the way back.

use crate::hurts::{self, Hurt};
use crate::stage::Stage;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::time::Duration;

/// Longer than the lease, and than what an election takes.
pub(crate) const LONGER_THAN_THE_LEASE: Duration = Duration::from_secs(10);

/// No member of etcd runs, for the report.
pub(crate) const NO_ETCD: &str = "no etcd";

/// Hurts one broker: everything is served without it; then it comes back, and is in sync again.
pub(crate) async fn hurt_one(stage: &mut Stage, victim: usize, hurt: Hurt, least: Duration) -> Result<(), String> {
    stage.some_time().await;
    stage.mark(hurt.name(), &[victim]).await?;
    let began = tokio::time::Instant::now();
    hurt.inflict(victim, stage)?;
    stage.served().await.map_err(|error| format!("with broker {victim} hurt ({}): {error}", hurt.name()))?;
    stage.last(least.saturating_sub(began.elapsed())).await;
    stage.mark_end(hurt.name(), &[victim]).await?;
    hurt.undo(victim, stage)?;
    stage.served().await?;
    stage.fleet.wait_until_ready().await?;
    stage.in_sync().await
}

/// Kills all brokers at once, and starts them again.
pub(crate) async fn kill_all(stage: &mut Stage) -> Result<(), String> {
    stage.some_time().await;
    let all: Vec<usize> = (0..stage.fleet.size()).collect();
    stage.mark("kill -9 of all", &all).await?;
    all.iter().for_each(|victim| stage.fleet.kill(*victim));
    for victim in all {
        stage.fleet.spawn(victim)?;
    }
    stage.served().await?;
    stage.in_sync().await
}

/// Ends a broker gracefully, and starts it again.
pub(crate) async fn restart(stage: &mut Stage, broker: usize) -> Result<(), String> {
    stage.mark("SIGTERM", &[broker]).await?;
    let status = stage.fleet.terminate(broker).await?;
    stage.expect(status.success(), || format!("broker {broker}, asked to end, ends with {status}"));
    stage.served().await?;
    stage.mark_end("SIGTERM", &[broker]).await?;
    stage.fleet.restart(broker).await?;
    stage.in_sync().await?;
    stage.served().await
}

/// Lets every sync of a broker's WAL fail: it ends by itself, and is started again.
pub(crate) async fn break_syncs(stage: &mut Stage, victim: usize) -> Result<(), String> {
    stage.mark("fsync error", &[victim]).await?;
    let mut strace = hurts::fail_syncs(stage, victim).await?;
    let status = stage.fleet.ended(victim).await?;
    strace.wait().await.map_err(|error| error.to_string())?;
    stage.expect(status.code() == Some(1), || format!("a broker whose sync fails ends with 1, not {status} (rule W2)"));
    stage.served().await?;
    stage.mark_end("fsync error", &[victim]).await?;
    stage.fleet.restart(victim).await?;
    stage.in_sync().await?;
    stage.served().await
}

/// Fills a broker's disk while much is written; then there is room again.
pub(crate) async fn full_disk(stage: &mut Stage, victim: usize) -> Result<(), String> {
    stage.mark("full disk", &[victim]).await?;
    let ballast = stage.fleet.data_dir(victim).join("ballast");
    fill(&ballast).map_err(|error| format!("`{}`: {error}", ballast.display()))?;
    // More than the files hold that are there already.
    let bulk = stage.write_bulk(160 << 20).await?;
    stage.last(LONGER_THAN_THE_LEASE).await;
    stage.mark_end("full disk", &[victim]).await?;
    std::fs::remove_file(&ballast).map_err(|error| error.to_string())?;
    stage.served().await?;
    bulk.await.map_err(|error| error.to_string())?;
    stage.in_sync().await
}

/// Writes a file until the disk has no room.
fn fill(file: &Path) -> std::io::Result<()> {
    let mut file = std::fs::File::create(file)?;
    let piece = vec![0; 1 << 16];
    loop {
        match file.write_all(&piece) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::StorageFull => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Sets a broker's wall clock an hour ahead, an hour behind, and right again.
pub(crate) async fn clock_jumps(stage: &mut Stage, broker: usize) -> Result<(), String> {
    for seconds in [3600, -3600, 0] {
        stage.mark("clock jumps", &[broker]).await?;
        stage.fleet.set_clock(broker, seconds);
        stage.more(50).await?;
        stage.served().await?;
    }
    Ok(())
}
