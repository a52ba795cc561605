//! Faults of all kinds, one after the other and two at once, drawn by seed.

use crate::bucket::Gate;
use crate::hurts::Hurt;
use crate::network::Cut;
use crate::stage::Stage;
use crate::steps::{self, LONGER_THAN_THE_LEASE, NO_ETCD};
use crate::transfers;
use rand::RngExt;
use rand::seq::{IndexedRandom, SliceRandom};
use std::time::Duration;

/// What the mixed run draws from.
#[derive(Clone, Copy, Debug)]
enum Mix {
    One(Hurt),
    /// Two brokers are cut off from each other.
    Apart,
    Two,
    All,
    Graceful,
    FailedSync,
    EtcdLeader,
    EtcdStopped,
    EtcdDown,
    Bucket(Gate),
    FullDisk,
    ClockJumps,
    /// Replicas are taken away and made anew; a broker is killed in the middle.
    Moves,
    Transfers,
}

/// Draws a fault, does it and undoes it, for as long as the stage has time: all kinds once in an order that is drawn, then any.
pub(crate) async fn mixed(stage: &mut Stage) -> Result<(), String> {
    let end = tokio::time::Instant::now() + stage.time;
    let mut first = kinds();
    first.shuffle(&mut stage.random);
    while tokio::time::Instant::now() < end {
        let drawn = match first.pop() {
            Some((kind, _)) => kind,
            None => {
                let kinds = kinds();
                kinds.choose_weighted(&mut stage.random, |(_, weight)| *weight).expect("weights are above 0").0
            }
        };
        carry_out(stage, drawn).await.map_err(|error| format!("{drawn:?}: {error}"))?;
    }
    Ok(())
}

fn kinds() -> Vec<(Mix, u32)> {
    vec![
        (Mix::One(Hurt::Kill), 6),
        (Mix::One(Hurt::Stop), 2),
        (Mix::One(Hurt::Cut(Cut::Whole)), 2),
        (Mix::One(Hurt::Cut(Cut::Outgoing)), 1),
        (Mix::One(Hurt::Cut(Cut::Incoming)), 1),
        (Mix::Apart, 2),
        (Mix::One(Hurt::Wipe), 2),
        (Mix::Two, 4),
        (Mix::All, 2),
        (Mix::Graceful, 2),
        (Mix::FailedSync, 1),
        (Mix::EtcdLeader, 2),
        (Mix::EtcdStopped, 1),
        (Mix::EtcdDown, 1),
        (Mix::Bucket(Gate::Shut), 1),
        (Mix::Bucket(Gate::Silent), 1),
        (Mix::FullDisk, 1),
        (Mix::ClockJumps, 1),
        (Mix::Moves, 2),
        (Mix::Transfers, 2),
    ]
}

async fn carry_out(stage: &mut Stage, drawn: Mix) -> Result<(), String> {
    let victim = stage.some_broker();
    match drawn {
        Mix::One(hurt) => {
            let least = if hurt == Hurt::Kill { Duration::ZERO } else { LONGER_THAN_THE_LEASE };
            steps::hurt_one(stage, victim, hurt, least).await
        }
        Mix::Apart => {
            let size = stage.fleet.size();
            let other = (victim + stage.random.random_range(1..size)) % size;
            steps::hurt_one(stage, victim, Hurt::Cut(Cut::From(other)), LONGER_THAN_THE_LEASE).await
        }
        Mix::Two => hurt_two(stage).await,
        Mix::All => steps::kill_all(stage).await,
        Mix::Graceful => steps::restart(stage, victim).await,
        Mix::FailedSync => steps::break_syncs(stage, victim).await,
        Mix::EtcdLeader => {
            let leader = stage.fleet.etcd.leader().await;
            stage.mark("kill -9 of etcd's leader", &[]).await?;
            stage.fleet.etcd.kill(leader);
            steps::hurt_one(stage, victim, Hurt::Kill, Duration::ZERO).await?;
            stage.fleet.etcd.restart(leader).await;
            Ok(())
        }
        Mix::EtcdStopped => {
            let leader = stage.fleet.etcd.leader().await;
            stage.mark("SIGSTOP of etcd's leader", &[]).await?;
            stage.fleet.etcd.pause(leader);
            let hurt = steps::hurt_one(stage, victim, Hurt::Kill, LONGER_THAN_THE_LEASE).await;
            stage.fleet.etcd.resume(leader);
            hurt?;
            stage.served().await
        }
        Mix::EtcdDown => {
            stage.mark(NO_ETCD, &[]).await?;
            (0..stage.fleet.etcd.size()).for_each(|member| stage.fleet.etcd.kill(member));
            stage.goes_on_for(LONGER_THAN_THE_LEASE).await.map_err(|error| format!("rule B5: {error}"))?;
            stage.mark_end(NO_ETCD, &[]).await?;
            stage.fleet.etcd.restart_all().await;
            stage.served().await
        }
        Mix::Bucket(gate) => {
            stage.mark("bucket away", &[]).await?;
            stage.fleet.bucket.set(gate);
            stage.fleet.kill(victim);
            stage.served().await?;
            stage.last(LONGER_THAN_THE_LEASE).await;
            stage.fleet.bucket.set(Gate::Open);
            // It does not start before the bucket answers.
            stage.fleet.restart(victim).await?;
            stage.in_sync().await
        }
        Mix::FullDisk => steps::full_disk(stage, victim).await,
        Mix::ClockJumps => steps::clock_jumps(stage, victim).await,
        Mix::Moves => {
            let kill = async |stage: &mut Stage| steps::hurt_one(stage, victim, Hurt::Kill, Duration::ZERO).await;
            transfers::move_replicas(stage, kill).await
        }
        Mix::Transfers => transfers::all_round(stage).await,
    }
}

/// Two brokers are hurt at once, each in its own way; no disk is lost. Writes stop, or go on once the fleet is whole.
async fn hurt_two(stage: &mut Stage) -> Result<(), String> {
    let mut brokers: Vec<usize> = (0..stage.fleet.size()).collect();
    brokers.shuffle(&mut stage.random);
    let kinds = [Hurt::Kill, Hurt::Stop, Hurt::Cut(Cut::Whole), Hurt::Cut(Cut::Incoming), Hurt::Cut(Cut::Outgoing)];
    let hurts: Vec<(usize, Hurt)> = brokers[..2]
        .iter()
        .map(|broker| (*broker, *kinds.choose(&mut stage.random).expect("there are some")))
        .collect();
    let names: Vec<&str> = hurts.iter().map(|(_, hurt)| hurt.name()).collect();
    stage.mark(format!("two at once: {}", names.join(" and ")), &brokers[..2]).await?;
    for (broker, hurt) in &hurts {
        hurt.inflict(*broker, stage)?;
        stage.some_time().await;
    }
    let seconds = stage.random.random_range(1..12);
    stage.last(Duration::from_secs(seconds)).await;
    for (broker, hurt) in &hurts {
        hurt.undo(*broker, stage)?;
        stage.some_time().await;
    }
    stage.served().await?;
    stage.fleet.wait_until_ready().await?;
    stage.in_sync().await
}
