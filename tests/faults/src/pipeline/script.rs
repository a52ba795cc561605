//! What is done to a pipeline and to the fleet below it, drawn by seed: brokers that lead or coordinate, workers and etcd's leader.

use super::workers::{Order, SILENT_AT_MOST};
use super::{goes_on, group_coordinator, in_transaction, transaction_coordinator};
use crate::hurts::Hurt;
use crate::network::{Cut, Network};
use crate::stage::Stage;
use crate::steps::{self, LONGER_THAN_THE_LEASE};
use rand::RngExt;
use rand::seq::IndexedRandom;
use std::time::Duration;

/// A worker that was silent for so long is out of its group, and its transaction is aborted.
const LONGER_THAN_ITS_TIMEOUTS: Duration = SILENT_AT_MOST.saturating_add(Duration::from_secs(6));

/// Whose broker is hurt.
#[derive(Clone, Copy, Debug)]
enum Who {
    Leader,
    GroupCoordinator,
    TransactionCoordinator,
}

/// What is drawn from.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// A broker is hurt.
    Broker(Who, Hurt),
    /// kill -9 of a broker and of a worker at once.
    Both(Who),
    /// kill -9 of a worker.
    Worker,
    /// SIGSTOP of a worker in a transaction, until others have its partitions.
    Zombie,
    /// SIGSTOP of a worker in a transaction; another one takes its transactional id; then it wakes up.
    Replaced,
    EtcdLeader,
    Graceful,
}

/// Draws a fault, does it and undoes it, for as long as the stage has time; a few fixed ones in the short form.
pub(crate) async fn pipeline(stage: &mut Stage) -> Result<(), String> {
    goes_on(stage).await?;
    if stage.short {
        for fault in [
            Fault::Worker,
            Fault::Broker(Who::GroupCoordinator, Hurt::Kill),
            Fault::Both(Who::TransactionCoordinator),
            Fault::Zombie,
        ] {
            carry_out(stage, fault).await.map_err(|error| format!("{fault:?}: {error}"))?;
        }
        return Ok(());
    }
    let end = tokio::time::Instant::now() + stage.time;
    // All kinds once, then whatever is drawn.
    let kinds = kinds(stage);
    let mut first = kinds.clone();
    while tokio::time::Instant::now() < end {
        let drawn = match first.pop() {
            Some((fault, _)) => fault,
            None => kinds.choose_weighted(&mut stage.random, |(_, weight)| *weight).expect("weights are above 0").0,
        };
        carry_out(stage, drawn).await.map_err(|error| format!("{drawn:?}: {error}"))?;
    }
    Ok(())
}

fn kinds(stage: &Stage) -> Vec<(Fault, u32)> {
    use Who::{GroupCoordinator, Leader, TransactionCoordinator};
    let mut kinds = vec![
        (Fault::Graceful, 1),
        (Fault::Broker(Leader, Hurt::Stop), 1),
        (Fault::Broker(GroupCoordinator, Hurt::Stop), 1),
        (Fault::Broker(TransactionCoordinator, Hurt::Stop), 1),
        (Fault::Broker(Leader, Hurt::Kill), 3),
        (Fault::EtcdLeader, 2),
        (Fault::Replaced, 2),
        (Fault::Both(Leader), 2),
        (Fault::Both(GroupCoordinator), 2),
        (Fault::Both(TransactionCoordinator), 2),
        (Fault::Broker(GroupCoordinator, Hurt::Kill), 2),
        (Fault::Broker(TransactionCoordinator, Hurt::Kill), 3),
        (Fault::Zombie, 2),
        (Fault::Worker, 4),
    ];
    if stage.fleet.network == Network::Namespaces {
        kinds.push((Fault::Broker(Leader, Hurt::Cut(Cut::Whole)), 1));
        kinds.push((Fault::Broker(GroupCoordinator, Hurt::Cut(Cut::Outgoing)), 1));
        kinds.push((Fault::Broker(TransactionCoordinator, Hurt::Cut(Cut::Incoming)), 1));
    }
    kinds
}

async fn carry_out(stage: &mut Stage, fault: Fault) -> Result<(), String> {
    let worker = some_worker(stage)?;
    match fault {
        Fault::Broker(who, hurt) => {
            let victim = find(stage, who, worker).await?;
            stage.tell(&format!("{who:?}: broker {victim}"));
            let least = if hurt == Hurt::Kill { Duration::ZERO } else { LONGER_THAN_THE_LEASE };
            steps::hurt_one(stage, victim, hurt, least).await?;
        }
        Fault::Both(who) => {
            let victim = find(stage, who, worker).await?;
            stage.mark("kill -9 of a broker and a worker", &[victim]).await?;
            order(stage, worker, Order::Kill).await?;
            stage.fleet.kill(victim);
            stage.served().await?;
            goes_on(stage).await.map_err(|error| format!("without broker {victim}: {error}"))?;
            stage.fleet.spawn(victim)?;
            stage.fleet.wait_until_ready().await?;
            stage.in_sync().await?;
        }
        Fault::Worker => {
            stage.some_time().await;
            stage.mark("kill -9 of a worker", &[]).await?;
            order(stage, worker, Order::Kill).await?;
        }
        Fault::Zombie | Fault::Replaced => {
            in_transaction(stage, worker).await?;
            order(stage, worker, Order::Stop).await?;
            if matches!(fault, Fault::Replaced) {
                stage.mark("SIGSTOP of a worker that is replaced", &[]).await?;
                order(stage, worker, Order::Replace).await?;
            } else {
                stage.mark("SIGSTOP of a worker", &[]).await?;
            }
            stage.last(LONGER_THAN_ITS_TIMEOUTS).await;
            goes_on(stage).await.map_err(|error| format!("without worker {worker}: {error}"))?;
            order(stage, worker, Order::Wake).await?;
        }
        Fault::EtcdLeader => {
            let leader = stage.fleet.etcd.leader().await;
            stage.mark("kill -9 of etcd's leader", &[]).await?;
            stage.fleet.etcd.kill(leader);
            stage.served().await?;
            goes_on(stage).await.map_err(|error| format!("without one member of etcd: {error}"))?;
            stage.fleet.etcd.restart(leader).await;
        }
        Fault::Graceful => {
            let broker = stage.some_broker();
            steps::restart(stage, broker).await?;
        }
    }
    stage.served().await?;
    goes_on(stage).await
}

fn some_worker(stage: &mut Stage) -> Result<u16, String> {
    let count = stage.pipeline.as_ref().ok_or("there is no pipeline")?.workers.count();
    Ok(stage.random.random_range(0..count))
}

async fn find(stage: &mut Stage, who: Who, worker: u16) -> Result<usize, String> {
    match who {
        Who::Leader => stage.some_leader().await,
        Who::GroupCoordinator => group_coordinator(stage).await,
        Who::TransactionCoordinator => transaction_coordinator(stage, worker).await,
    }
}

async fn order(stage: &Stage, worker: u16, order: Order) -> Result<(), String> {
    stage.tell(&format!("worker {worker}: {order:?}"));
    let pipeline = stage.pipeline.as_ref().ok_or("there is no pipeline")?;
    pipeline.workers.order(worker, order).await
}
