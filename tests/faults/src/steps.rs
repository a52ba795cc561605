//! What scenarios are made of: one fault, what must be seen then, and the way back.

use crate::hurts::{self, Hurt};
use crate::stage::Stage;
use std::time::Duration;

/// Longer than the lease, and than what an election takes.
pub(crate) const LONGER_THAN_THE_LEASE: Duration = Duration::from_secs(10);

/// Hurts one broker: everything is served without it; then it comes back, and is in sync again.
pub(crate) async fn hurt_one(stage: &mut Stage, victim: usize, hurt: Hurt, least: Duration) -> Result<(), String> {
    stage.some_time().await;
    stage.mark(hurt.name(), &[victim]).await?;
    let began = tokio::time::Instant::now();
    hurt.inflict(victim, stage)?;
    stage.served().await.map_err(|error| format!("with broker {victim} hurt ({}): {error}", hurt.name()))?;
    stage.last(least.saturating_sub(began.elapsed())).await;
    stage.mark(format!("end of {}", hurt.name()), &[victim]).await?;
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
    stage.mark("start after SIGTERM", &[broker]).await?;
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
    stage.fleet.restart(victim).await?;
    stage.in_sync().await
}
