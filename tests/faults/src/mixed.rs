//! Faults of all kinds, one after the other and two at once, drawn by seed.

use crate::bucket::Gate;
use crate::hurts::Hurt;
use crate::network::Cut;
use crate::stage::Stage;
use crate::steps::{self, LONGER_THAN_THE_LEASE};
use rand::RngExt;
use rand::seq::{IndexedRandom, SliceRandom};
use std::time::Duration;

/// What the mixed run draws from.
#[derive(Clone, Copy, Debug)]
enum Mix {
    One(Hurt),
    Two,
    All,
    Graceful,
    FailedSync,
    EtcdLeader,
    EtcdDown,
    Bucket(Gate),
}

/// Draws a fault, does it and undoes it, for as long as the stage has time.
pub(crate) async fn mixed(stage: &mut Stage) -> Result<(), String> {
    let end = tokio::time::Instant::now() + stage.time;
    while tokio::time::Instant::now() < end {
        let other = stage.some_broker();
        let kinds = [
            (Mix::One(Hurt::Kill), 6),
            (Mix::One(Hurt::Stop), 2),
            (Mix::One(Hurt::Cut(Cut::Whole)), 2),
            (Mix::One(Hurt::Cut(Cut::Outgoing)), 1),
            (Mix::One(Hurt::Cut(Cut::Incoming)), 1),
            (Mix::One(Hurt::Cut(Cut::From(other))), 2),
            (Mix::One(Hurt::Wipe), 2),
            (Mix::Two, 4),
            (Mix::All, 2),
            (Mix::Graceful, 2),
            (Mix::FailedSync, 1),
            (Mix::EtcdLeader, 2),
            (Mix::EtcdDown, 1),
            (Mix::Bucket(Gate::Shut), 1),
            (Mix::Bucket(Gate::Silent), 1),
        ];
        let drawn = kinds.choose_weighted(&mut stage.random, |(_, weight)| *weight).expect("weights are above 0").0;
        carry_out(stage, drawn).await.map_err(|error| format!("{drawn:?}: {error}"))?;
    }
    Ok(())
}

async fn carry_out(stage: &mut Stage, drawn: Mix) -> Result<(), String> {
    let victim = stage.some_broker();
    match drawn {
        // Nobody can be cut off from itself.
        Mix::One(Hurt::Cut(Cut::From(other))) if other == victim => Ok(()),
        Mix::One(hurt) => {
            let least = if hurt == Hurt::Kill { Duration::ZERO } else { LONGER_THAN_THE_LEASE };
            steps::hurt_one(stage, victim, hurt, least).await
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
        Mix::EtcdDown => {
            stage.mark("no etcd", &[]).await?;
            (0..stage.fleet.etcd.size()).for_each(|member| stage.fleet.etcd.kill(member));
            stage.last(LONGER_THAN_THE_LEASE).await;
            stage.served().await.map_err(|error| format!("rule B5: {error}"))?;
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
