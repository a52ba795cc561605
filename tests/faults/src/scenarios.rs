//! The scenarios: what is done to a fleet while clients use it, and what must be seen then beside the checker's promises.

use crate::bucket::Gate;
use crate::fleet::{FAKETIME, FleetOptions};
use crate::hurts::Hurt;
use crate::mixed;
use crate::network::{self, Cut, Network};
use crate::pipeline;
use crate::stage::Stage;
use crate::steps::{self, LONGER_THAN_THE_LEASE};
use millpond_tests::tools::Tool;
use rand::seq::SliceRandom;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

/// A scenario's script.
type Script = for<'a> fn(&'a mut Stage) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>>;

/// What is done, on what, and what for.
pub(crate) struct Scenario {
    /// As it is asked for.
    pub(crate) name: &'static str,
    /// What it does, for a person.
    pub(crate) about: &'static str,
    /// What it needs.
    pub(crate) options: fn() -> FleetOptions,
    /// What it needs besides.
    pub(crate) needs: &'static [Need],
    /// How long acknowledgements may stay away, on a machine that is calm.
    pub(crate) limit: Option<Limit>,
    /// What it does.
    pub(crate) script: Script,
}

/// What not every machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Wires that can be cut and disks that can be mounted.
    Namespaces,
    /// What `tests/run tools` installs.
    Tool(Tool),
    /// A program of the system.
    Program(&'static str),
    /// A file.
    File(&'static str),
}

/// A bound on the times without an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// On their median.
    Median(Duration),
    /// On the longest.
    Worst(Duration),
}

/// Section 8 of the rules: a broker's lease, and what an election may take beyond it.
const SILENT: Duration = Duration::from_secs(6 + 2);

/// Rule I6: what it takes to find that no way leads to a follower, and to go on without it.
const APART: Duration = Duration::from_secs(4);

/// Rule E1a: what it takes the last broker to find the others gone. A lease that was just about to be renewed would last 4 s more.
const LEFT_ALONE: Duration = Duration::from_secs(3);

/// All of them, in the order in which they run.
pub(crate) static ALL: &[Scenario] = &[
    Scenario {
        name: "kill-leader",
        about: "kill -9 of a broker that leads, again and again",
        limit: Some(Limit::Median(Duration::from_secs(2))),
        script: |stage| Box::pin(kill_leader(stage)),
        ..PLAIN
    },
    Scenario {
        name: "kill-follower",
        about: "kill -9 of the broker that leads least",
        limit: Some(Limit::Median(Duration::from_secs(2))),
        script: |stage| Box::pin(kill_follower(stage)),
        ..PLAIN
    },
    Scenario {
        name: "kill-two",
        about: "kill -9 of two of three at once: acks=all stops, and goes on by itself",
        script: |stage| Box::pin(kill_two(stage)),
        ..PLAIN
    },
    Scenario {
        name: "kill-all",
        about: "kill -9 of all three at once: what they had written comes back",
        script: |stage| Box::pin(kill_all(stage)),
        ..PLAIN
    },
    Scenario {
        name: "graceful",
        about: "SIGTERM of each broker in turn, as in a rolling restart: no produce fails",
        limit: Some(Limit::Worst(Duration::from_millis(500))),
        script: |stage| Box::pin(graceful(stage)),
        ..PLAIN
    },
    Scenario {
        name: "stop-leader",
        about: "SIGSTOP of a leader for longer than its lease: it wakes up and leads nothing",
        limit: Some(Limit::Worst(SILENT)),
        script: |stage| Box::pin(hurt_leaders(stage, Hurt::Stop)),
        ..PLAIN
    },
    Scenario {
        name: "cut-network",
        about: "a leader is cut off from everybody for longer than its lease",
        needs: &[Need::Namespaces],
        limit: Some(Limit::Worst(SILENT)),
        script: |stage| Box::pin(hurt_leaders(stage, Hurt::Cut(Cut::Whole))),
        ..PLAIN
    },
    Scenario {
        name: "cut-one-way",
        about: "a leader hears everybody and is not heard, or is heard and does not hear",
        needs: &[Need::Namespaces],
        limit: Some(Limit::Worst(SILENT)),
        script: |stage| Box::pin(cut_one_way(stage)),
        ..PLAIN
    },
    Scenario {
        name: "cut-pair",
        about: "two brokers cannot reach each other; everybody else can reach both",
        needs: &[Need::Namespaces],
        limit: Some(Limit::Worst(APART)),
        script: |stage| Box::pin(cut_pair(stage)),
        ..PLAIN
    },
    Scenario {
        name: "lost-disk",
        about: "a broker is killed, its data are gone, and it comes back empty",
        script: |stage| Box::pin(hurt_leaders(stage, Hurt::Wipe)),
        ..PLAIN
    },
    Scenario {
        name: "full-disk",
        about: "a broker's disk is full while much is written",
        options: || FleetOptions { disk: Some("400m"), ..FleetOptions::default() },
        needs: &[Need::Namespaces],
        script: |stage| Box::pin(full_disk(stage)),
        ..PLAIN
    },
    Scenario {
        name: "fsync-error",
        about: "every fdatasync of a leader's WAL fails: it ends, and comes back as another replica",
        needs: &[Need::Program("strace")],
        script: |stage| Box::pin(fsync_error(stage)),
        ..PLAIN
    },
    Scenario {
        name: "bucket-down",
        about: "the bucket refuses, then says nothing, for minutes: what is written goes on",
        options: || FleetOptions { s3: true, ..FleetOptions::default() },
        needs: &[Need::Tool(Tool::LocalStack)],
        script: |stage| Box::pin(bucket_down(stage)),
        ..PLAIN
    },
    Scenario {
        name: "etcd-leader",
        about: "kill -9 of the leader of an etcd of three",
        options: || FleetOptions { etcd: 3, ..FleetOptions::default() },
        script: |stage| Box::pin(etcd_leader(stage)),
        ..PLAIN
    },
    Scenario {
        name: "etcd-restart",
        about: "kill -9 of the only etcd, which comes back at once",
        script: |stage| Box::pin(etcd_down(stage, Duration::ZERO, Duration::ZERO)),
        ..PLAIN
    },
    Scenario {
        name: "etcd-down",
        about: "no etcd for five minutes (a short run: 20 s): acks=all and reads go on (rule B5)",
        script: |stage| Box::pin(etcd_down(stage, Duration::from_secs(20), Duration::from_secs(300))),
        ..PLAIN
    },
    Scenario {
        name: "clock-jump",
        about: "brokers' wall clocks jump by an hour, forth and back, one after the other, with transactions open",
        options: || FleetOptions {
            clocks: true,
            tick: Duration::from_millis(100),
            workers: 3,
            ..FleetOptions::default()
        },
        needs: &[Need::File(FAKETIME)],
        script: |stage| Box::pin(clock_jump(stage)),
        ..PLAIN
    },
];

/// Faults of all kinds one after the other and two at once, by seed, for as long as is asked for.
pub(crate) static MIXED: Scenario = Scenario {
    name: "mixed",
    about: "faults of all kinds, by seed",
    options: || FleetOptions { etcd: 3, s3: true, ..FleetOptions::default() },
    needs: &[Need::Namespaces, Need::Program("strace"), Need::Tool(Tool::LocalStack)],
    script: |stage| Box::pin(mixed::mixed(stage)),
    ..PLAIN
};

/// A pipeline under faults, for as long as is asked for.
pub(crate) static PIPELINE: Scenario = Scenario {
    name: "pipeline",
    about: "a read-process-write pipeline under faults of brokers, coordinators, workers and etcd, by seed: every output once",
    options: || FleetOptions { etcd: 3, tick: Duration::from_millis(100), workers: 3, ..FleetOptions::default() },
    script: |stage| Box::pin(pipeline::script::pipeline(stage)),
    ..PLAIN
};

/// What most have in common.
const PLAIN: Scenario = Scenario {
    name: "",
    about: "",
    options: FleetOptions::default,
    needs: &[],
    limit: None,
    script: |_| Box::pin(async { Ok(()) }),
};

/// How often a fault is repeated.
fn rounds(stage: &Stage, short: u32, long: u32) -> u32 {
    if stage.short { short } else { long }
}

/// How long a fault lasts.
fn lasting(stage: &Stage, short: Duration, long: Duration) -> Duration {
    if stage.short { short } else { long }
}

async fn kill_leader(stage: &mut Stage) -> Result<(), String> {
    for _ in 0..rounds(stage, 3, 20) {
        let victim = stage.some_leader().await?;
        steps::hurt_one(stage, victim, Hurt::Kill, Duration::ZERO).await?;
    }
    Ok(())
}

async fn kill_follower(stage: &mut Stage) -> Result<(), String> {
    for _ in 0..rounds(stage, 2, 10) {
        let victim = stage.some_follower().await?;
        steps::hurt_one(stage, victim, Hurt::Kill, Duration::ZERO).await?;
    }
    Ok(())
}

/// Hurts a leader; writes go on by themselves; then the hurt is undone.
async fn hurt_leaders(stage: &mut Stage, hurt: Hurt) -> Result<(), String> {
    for _ in 0..rounds(stage, 1, 5) {
        let victim = stage.some_leader().await?;
        steps::hurt_one(stage, victim, hurt, LONGER_THAN_THE_LEASE).await?;
    }
    Ok(())
}

async fn cut_one_way(stage: &mut Stage) -> Result<(), String> {
    for _ in 0..rounds(stage, 1, 3) {
        for cut in [Cut::Outgoing, Cut::Incoming] {
            let victim = stage.some_leader().await?;
            steps::hurt_one(stage, victim, Hurt::Cut(cut), LONGER_THAN_THE_LEASE).await?;
        }
    }
    Ok(())
}

async fn cut_pair(stage: &mut Stage) -> Result<(), String> {
    for _ in 0..rounds(stage, 1, 3) {
        let mut brokers: Vec<usize> = (0..stage.fleet.size()).collect();
        brokers.shuffle(&mut stage.random);
        steps::hurt_one(stage, brokers[0], Hurt::Cut(Cut::From(brokers[1])), LONGER_THAN_THE_LEASE).await?;
    }
    Ok(())
}

async fn kill_two(stage: &mut Stage) -> Result<(), String> {
    for _ in 0..rounds(stage, 1, 5) {
        let spared = stage.some_broker();
        let victims: Vec<usize> = (0..stage.fleet.size()).filter(|broker| *broker != spared).collect();
        stage.some_time().await;
        stage.mark("kill -9 of two", &victims).await?;
        victims.iter().for_each(|victim| stage.fleet.kill(*victim));
        let killed = tokio::time::Instant::now();
        stage.fleet.wait_until_alone(spared).await?;
        let (alone, calm) = (killed.elapsed(), !stage.short);
        stage.expect(alone < LEFT_ALONE || !calm, || {
            format!("the broker that is left leads all after {alone:?}, at most {LEFT_ALONE:?} allowed: it waits for no lease (rule E1a)")
        });
        let told = stage.probe(0, Duration::from_secs(10)).await?;
        // What the broker refused it with, as the client passes it on.
        let refused =
            told.as_ref().is_some_and(|told| told.contains("1 in-sync replicas where min.insync.replicas is 2"));
        stage.expect(refused, || {
            format!("with one of three left acks=all is refused with that reason, not answered {told:?}")
        });
        for victim in victims {
            stage.fleet.spawn(victim)?;
        }
        stage.served().await?;
        stage.in_sync().await?;
    }
    Ok(())
}

async fn kill_all(stage: &mut Stage) -> Result<(), String> {
    for _ in 0..rounds(stage, 1, 5) {
        steps::kill_all(stage).await?;
    }
    Ok(())
}

async fn graceful(stage: &mut Stage) -> Result<(), String> {
    for _ in 0..rounds(stage, 1, 3) {
        for broker in 0..stage.fleet.size() {
            steps::restart(stage, broker).await?;
        }
    }
    let failed = stage.recorder.failed();
    stage.expect(failed == 0, || {
        format!("{failed} records were not acknowledged, though every broker ended gracefully")
    });
    Ok(())
}

async fn full_disk(stage: &mut Stage) -> Result<(), String> {
    for _ in 0..rounds(stage, 1, 3) {
        let victim = stage.some_leader().await?;
        stage.mark("full disk", &[victim]).await?;
        let ballast = stage.fleet.data_dir(victim).join("ballast");
        fill(&ballast).map_err(|error| format!("`{}`: {error}", ballast.display()))?;
        // More than the files hold that are there already.
        let bulk = stage.write_bulk(160 << 20).await?;
        stage.last(LONGER_THAN_THE_LEASE).await;
        std::fs::remove_file(&ballast).map_err(|error| error.to_string())?;
        stage.served().await?;
        bulk.await.map_err(|error| error.to_string())?;
        stage.in_sync().await?;
    }
    Ok(())
}

/// Writes a file until the disk has no room.
fn fill(file: &std::path::Path) -> std::io::Result<()> {
    use std::io::{ErrorKind, Write};
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

async fn fsync_error(stage: &mut Stage) -> Result<(), String> {
    for _ in 0..rounds(stage, 1, 3) {
        let victim = stage.some_leader().await?;
        steps::break_syncs(stage, victim).await?;
    }
    Ok(())
}

async fn bucket_down(stage: &mut Stage) -> Result<(), String> {
    let time = lasting(stage, Duration::from_secs(15), Duration::from_secs(120));
    for (what, gate) in [("bucket refuses", Gate::Shut), ("bucket says nothing", Gate::Silent)] {
        stage.mark(what, &[]).await?;
        stage.fleet.bucket.set(gate);
        stage.last(time).await;
        stage.served().await.map_err(|error| format!("{what}: {error}"))?;
        stage.fleet.bucket.set(Gate::Open);
        stage.more(50).await?;
    }
    Ok(())
}

async fn etcd_leader(stage: &mut Stage) -> Result<(), String> {
    for _ in 0..rounds(stage, 1, 5) {
        stage.some_time().await;
        let leader = stage.fleet.etcd.leader().await;
        stage.mark("kill -9 of etcd's leader", &[]).await?;
        stage.fleet.etcd.kill(leader);
        stage.served().await?;
        // Whoever leads now has to do what only etcd can record.
        let victim = stage.some_leader().await?;
        steps::hurt_one(stage, victim, Hurt::Kill, Duration::ZERO).await?;
        stage.fleet.etcd.restart(leader).await;
        stage.more(20).await?;
    }
    Ok(())
}

async fn etcd_down(stage: &mut Stage, short: Duration, long: Duration) -> Result<(), String> {
    for _ in 0..rounds(stage, 1, if long.is_zero() { 5 } else { 1 }) {
        stage.mark("no etcd", &[]).await?;
        stage.fleet.etcd.kill(0);
        stage.last(lasting(stage, short, long)).await;
        stage.served().await.map_err(|error| format!("rule B5: without etcd: {error}"))?;
        let before = stage.recorder.progress();
        stage.more(20).await?;
        stage.read_since(&before).await.map_err(|error| format!("rule B5: without etcd: {error}"))?;
        stage.mark("etcd is back", &[]).await?;
        stage.fleet.etcd.restart(0).await;
        stage.served().await?;
        // And it elects again.
        let victim = stage.some_leader().await?;
        steps::hurt_one(stage, victim, Hurt::Kill, Duration::ZERO).await?;
    }
    Ok(())
}

/// Rule X8: a clock that jumps times out no transaction, where it is coordinated, and where it is coordinated next.
async fn clock_jump(stage: &mut Stage) -> Result<(), String> {
    const WORKER: u16 = 1;
    pipeline::goes_on(stage).await?;
    for _ in 0..rounds(stage, 1, 3) {
        let before = pipeline::disturbed(stage);
        for broker in 0..stage.fleet.size() {
            for seconds in [3600, -3600, 0] {
                stage.mark("clock jumps", &[broker]).await?;
                pipeline::in_transaction(stage, WORKER).await?;
                stage.fleet.set_clock(broker, seconds);
                stage.more(20).await?;
                stage.served().await?;
                pipeline::goes_on(stage).await?;
            }
        }
        let after = pipeline::disturbed(stage);
        stage.expect(before == after, || {
            format!("transactions aborted by need, and processes of workers: {before:?} before clocks jumped, {after:?} after")
        });
        let victim = pipeline::transaction_coordinator(stage, WORKER).await?;
        let others: Vec<usize> = (0..stage.fleet.size()).filter(|broker| *broker != victim).collect();
        stage.mark("clocks of the others jump", &others).await?;
        others.iter().for_each(|broker| stage.fleet.set_clock(*broker, 3600));
        pipeline::in_transaction(stage, WORKER).await?;
        steps::hurt_one(stage, victim, Hurt::Kill, Duration::ZERO).await?;
        pipeline::goes_on(stage).await?;
        others.iter().for_each(|broker| stage.fleet.set_clock(*broker, 0));
    }
    Ok(())
}

impl Need {
    /// Why it is not met; `None` if it is.
    pub(crate) fn missing(self, network: &Network) -> Option<String> {
        match self {
            Need::Namespaces => match network {
                Network::Loopback { why } => Some(why.clone()),
                Network::Namespaces => None,
            },
            Need::Tool(tool) => tool.find().err(),
            Need::Program(program) => {
                let found = network::run(program, &["-V"]);
                found.err()
            }
            Need::File(file) => (!std::path::Path::new(file).is_file()).then(|| format!("no {file}")),
        }
    }
}
