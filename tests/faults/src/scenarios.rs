//! The scenarios: what is done to a fleet while clients use it, and what must be seen then beside the checker's promises.

use crate::bucket::Gate;
use crate::fleet::{FAKETIME, FleetOptions};
use crate::hurts::Hurt;
use crate::limits::{Bound, Limit, Whose};
use crate::mixed;
use crate::network::{self, Cut, Network};
use crate::pipeline;
use crate::stage::Stage;
use crate::steps::{self, LONGER_THAN_THE_LEASE, NO_ETCD};
use crate::transfers;
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
    /// How long acknowledgements and records may stay away.
    pub(crate) limits: &'static [Limit],
    /// How many requests of each writer have to be seen under way at once, or the run has not put to the test what it is for.
    pub(crate) in_flight: u32,
    /// How long it does what it does by time, if nobody says.
    pub(crate) minutes: u64,
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

/// Section 8 of the rules: a broker's lease, and what an election may take beyond it.
const SILENT: Duration = Duration::from_secs(6 + 2);

/// Rule I6: what it takes to find that no way leads to a follower, and to go on without it.
const APART: Duration = Duration::from_secs(4);

/// Rule E1a: what it takes the last broker to find the others gone. A lease that was just about to be renewed would last 4 s more.
const LEFT_ALONE: Duration = Duration::from_secs(3);

/// A process that ends is noticed at once, by its connections: half of the times are over within this.
const KILLED: Duration = Duration::from_secs(2);

/// Who hands over what it leads before it ends holds up nobody for longer.
const HANDED_OVER: Duration = Duration::from_millis(500);

/// The same where every partition is handed over at once.
const ALL_HANDED_OVER: Duration = Duration::from_secs(1);

/// Where nothing that a record passes through is hurt nobody waits for anything; this is for a machine that has other things to do.
const UNTOUCHED: Duration = Duration::from_secs(2);

/// As many requests as an idempotent writer has under way at most: it gets there wherever acknowledgements stay away for longer.
const IN_FLIGHT_ALL: u32 = 5;

/// On all faults of a scenario.
const fn within(bound: Bound) -> Limit {
    Limit { fault: None, whose: Whose::SdkWrites, bound }
}

/// On a fault that nobody is to notice, for as long as it lasts (rule B5).
const fn unnoticed(fault: &'static str) -> Limit {
    Limit { fault: Some(fault), whose: Whose::Everybody, bound: Bound::Worst(UNTOUCHED) }
}

/// All of them, in the order in which they run.
pub(crate) static ALL: &[Scenario] = &[
    Scenario {
        name: "kill-leader",
        about: "kill -9 of a broker that leads, again and again",
        limits: &[within(Bound::Median(KILLED))],
        script: |stage| Box::pin(kill_leader(stage)),
        ..PLAIN
    },
    Scenario {
        name: "kill-follower",
        about: "kill -9 of the broker that leads least",
        limits: &[within(Bound::Median(KILLED))],
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
        limits: &[within(Bound::Worst(HANDED_OVER))],
        script: |stage| Box::pin(graceful(stage)),
        ..PLAIN
    },
    Scenario {
        name: "stop-leader",
        about: "SIGSTOP of a leader for longer than its lease: it wakes up and leads nothing",
        limits: &[within(Bound::Worst(SILENT))],
        in_flight: IN_FLIGHT_ALL,
        script: |stage| Box::pin(hurt_leaders(stage, Hurt::Stop)),
        ..PLAIN
    },
    Scenario {
        name: "cut-network",
        about: "a leader is cut off from everybody for longer than its lease",
        needs: &[Need::Namespaces],
        limits: &[within(Bound::Worst(SILENT))],
        in_flight: IN_FLIGHT_ALL,
        script: |stage| Box::pin(hurt_leaders(stage, Hurt::Cut(Cut::Whole))),
        ..PLAIN
    },
    Scenario {
        name: "cut-one-way",
        about: "a leader hears everybody and is not heard, or is heard and does not hear",
        needs: &[Need::Namespaces],
        limits: &[within(Bound::Worst(SILENT))],
        in_flight: IN_FLIGHT_ALL,
        script: |stage| Box::pin(cut_one_way(stage)),
        ..PLAIN
    },
    Scenario {
        name: "cut-pair",
        about: "two brokers cannot reach each other; everybody else can reach both",
        needs: &[Need::Namespaces],
        limits: &[within(Bound::Worst(APART))],
        in_flight: IN_FLIGHT_ALL,
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
        about: "the bucket refuses, then says nothing, for minutes: acks=all and reads go on throughout",
        options: || FleetOptions { s3: true, ..FleetOptions::default() },
        needs: &[Need::Tool(Tool::LocalStack)],
        limits: &[unnoticed(BUCKET_REFUSES), unnoticed(BUCKET_SILENT)],
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
        about: "kill -9 of the only etcd, which comes back at once: acks=all and reads go on",
        limits: &[unnoticed(NO_ETCD)],
        script: |stage| Box::pin(etcd_down(stage, Duration::ZERO, Duration::ZERO)),
        ..PLAIN
    },
    Scenario {
        name: "etcd-down",
        about: "no etcd for five minutes (a short run: 20 s): acks=all and reads go on throughout (rule B5)",
        limits: &[unnoticed(NO_ETCD)],
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
    Scenario {
        name: "move-leaders",
        about: "every partition gets another leader every 2 s, for five minutes (a short run: 20 s): nothing is out of order",
        options: || FleetOptions { tick: Duration::from_millis(30), workers: 3, ..FleetOptions::default() },
        limits: &[within(Bound::Worst(ALL_HANDED_OVER))],
        script: |stage| Box::pin(transfers::move_leaders(stage)),
        ..PLAIN
    },
    Scenario {
        name: "ping-pong",
        about: "100 partitions are led by one broker after the other, round and round: no round takes longer than those before",
        script: |stage| Box::pin(transfers::ping_pong(stage)),
        ..PLAIN
    },
];

/// Faults of all kinds one after the other and two at once, by seed, for as long as is asked for.
pub(crate) static MIXED: Scenario = Scenario {
    name: "mixed",
    about: "faults of all kinds, each once and then by seed, for ten minutes (a short run: one)",
    options: || FleetOptions {
        etcd: 3,
        s3: true,
        clocks: true,
        disk: Some("400m"),
        wal: "256MiB",
        ..FleetOptions::default()
    },
    needs: &[Need::Namespaces, Need::Program("strace"), Need::Tool(Tool::LocalStack), Need::File(FAKETIME)],
    minutes: 10,
    script: |stage| Box::pin(mixed::mixed(stage)),
    ..PLAIN
};

/// A pipeline under faults, for as long as is asked for.
pub(crate) static PIPELINE: Scenario = Scenario {
    name: "pipeline",
    about: "a read-process-write pipeline under faults of brokers, coordinators, workers and etcd, by seed: every output once",
    options: || FleetOptions { etcd: 3, tick: Duration::from_millis(100), workers: 3, ..FleetOptions::default() },
    // Its writers pause for longer than most answers take.
    in_flight: 1,
    script: |stage| Box::pin(pipeline::script::pipeline(stage)),
    ..PLAIN
};

/// Names of outages that limits are on.
const BUCKET_REFUSES: &str = "bucket refuses";
const BUCKET_SILENT: &str = "bucket says nothing";

/// What most have in common.
const PLAIN: Scenario = Scenario {
    name: "",
    about: "",
    options: FleetOptions::default,
    needs: &[],
    limits: &[],
    in_flight: 2,
    minutes: 1,
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
        steps::full_disk(stage, victim).await?;
    }
    Ok(())
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
    for (what, gate) in [(BUCKET_REFUSES, Gate::Shut), (BUCKET_SILENT, Gate::Silent)] {
        stage.mark(what, &[]).await?;
        stage.fleet.bucket.set(gate);
        stage.goes_on_for(time).await.map_err(|error| format!("{what}: {error}"))?;
        stage.mark_end(what, &[]).await?;
        stage.fleet.bucket.set(Gate::Open);
        stage.more(50).await?;
        stage.served().await?;
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
        stage.mark_end("kill -9 of etcd's leader", &[]).await?;
        stage.fleet.etcd.restart(leader).await;
        stage.more(20).await?;
        stage.served().await?;
    }
    Ok(())
}

async fn etcd_down(stage: &mut Stage, short: Duration, long: Duration) -> Result<(), String> {
    for _ in 0..rounds(stage, 1, if long.is_zero() { 5 } else { 1 }) {
        stage.mark(NO_ETCD, &[]).await?;
        stage.fleet.etcd.kill(0);
        let time = lasting(stage, short, long);
        stage.goes_on_for(time).await.map_err(|error| format!("rule B5: without etcd: {error}"))?;
        stage.mark_end(NO_ETCD, &[]).await?;
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
            pipeline::in_transaction(stage, WORKER).await?;
            steps::clock_jumps(stage, broker).await?;
            pipeline::goes_on(stage).await?;
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
