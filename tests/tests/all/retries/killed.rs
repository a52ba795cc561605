//! Processes that are killed (SIGKILL) in the middle of retries, or of a redrive: nothing that they had taken on is lost.

use super::{contents, eventually, json, topic, value};
use crate::commands::succeed_at;
use crate::examples::program;
use millpond_sdk::retries::event_id;
use millpond_sdk::{
    Admin, Client, IsolationLevel, NewTopic, Offset, OffsetSpec, Producer, ProducerConfig, ProducerRecord,
};
use millpond_tests::fleet::{Fleet, FleetOptions};
use millpond_tests::process::binary;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// How long a process may take to say something before the test is called stuck.
const PATIENCE: Duration = Duration::from_secs(90);

/// A process that runs a retrying consumer, and what it has said of its runs. Killed when dropped.
struct Worker {
    child: Child,
    said: watch::Receiver<Vec<Run>>,
    /// Ends with what it says.
    listener: Option<JoinHandle<()>>,
}

/// A line of it.
#[derive(Clone, Debug)]
struct Run {
    ok: bool,
    number: u32,
    value: String,
}

impl Worker {
    /// The SDK's example of it, in this group.
    fn start(fleet: &Fleet, topic: &str, group: &str) -> Worker {
        let mut command = Command::new(program("retry"));
        command.args([&fleet.bootstrap(), topic, group]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let (say, said) = watch::channel(Vec::new());
        let listener = std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let mut words = line.splitn(3, ' ');
                let mut word = || words.next().expect("a line has three words").to_owned();
                let (ok, number) = (word() == "handled", word().parse().expect("the number of the attempt"));
                say.send_modify(|runs| runs.push(Run { ok, number, value: word() }));
            }
        });
        Worker { child, said, listener: Some(listener) }
    }

    /// Waits until it has said enough.
    async fn until(&mut self, what: &str, enough: impl Fn(&[Run]) -> bool) {
        let waited = timeout(PATIENCE, self.said.wait_for(|runs| enough(runs))).await.map(|waited| waited.is_ok());
        // Not in time, or not before it ended.
        assert_eq!(waited, Ok(true), "{what}: {:?}", self.said.borrow());
    }

    /// Kills it (SIGKILL); what it has said.
    fn kill(mut self) -> Vec<Run> {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("it is ours");
        self.all_said()
    }

    /// All that it has said, once it has ended.
    fn all_said(&mut self) -> Vec<Run> {
        self.listener.take().expect("it is asked once").join().expect("every line is a run");
        self.said.borrow().clone()
    }

    /// Asks it to end (SIGINT), and waits until it has, in order; what it has said.
    async fn stop(mut self) -> Vec<Run> {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), rustix::process::Signal::INT)
            .expect("it is ours");
        let mut look = tokio::time::interval(Duration::from_millis(50));
        let status = timeout(PATIENCE, async {
            loop {
                look.tick().await;
                if let Some(status) = self.child.try_wait().expect("it is ours") {
                    return status;
                }
            }
        });
        let status = status.await.expect("it leaves its group and ends");
        assert!(status.success(), "it ended with {status}");
        self.all_said()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn fleet() -> (Fleet, Client) {
    let mut options = FleetOptions::new(3);
    // Whoever is killed is missed soon.
    let quick = ["--group-heartbeat-interval", "500ms", "--group-session-timeout", "3s"];
    options.arguments.extend(quick.map(str::to_owned));
    let fleet = Fleet::start(&options).await.expect("every machine has what it takes");
    fleet.wait_until("all are alive", |cluster, _| cluster.brokers.len() == 3).await;
    let client = fleet.connect().await;
    (fleet, client)
}

async fn publish(client: &Client, topic: &str, values: impl IntoIterator<Item = String>) {
    let producer = Producer::new(client, ProducerConfig::default()).expect("the defaults are valid");
    for value in values {
        let record = ProducerRecord::new(topic).key(value.clone()).value(value);
        producer.send(record).await.expect("there is room");
    }
    producer.flush().await;
    producer.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_record_is_lost_when_a_consumer_process_is_killed_in_the_middle_of_retries() {
    const RECORDS: usize = 120;
    let (fleet, client) = fleet().await;
    topic(&client, "events", 4).await;
    let fate = |n: usize| match n % 6 {
        0 => format!("never:{n}"),
        1 => format!("not yet:{n}"),
        2 => format!("broken:{n}"),
        _ => format!("well:{n}"),
    };
    publish(&client, "events", (0..RECORDS).map(fate)).await;
    let (dead, well): (BTreeSet<String>, BTreeSet<String>) =
        (0..RECORDS).map(fate).partition(|value| value.starts_with("never") || value.starts_with("broken"));

    // In its topic, out of the first delay topic, and out of the second.
    let mut said = Vec::new();
    for number in [2, 3, 5] {
        let mut worker = Worker::start(&fleet, "events", "workers");
        let fails = |runs: &[Run]| runs.iter().any(|run| !run.ok && run.number >= number);
        worker.until("a retry fails", fails).await;
        said.extend(worker.kill());
    }
    let mut last = Worker::start(&fleet, "events", "workers");
    let handled =
        |runs: &[Run]| -> BTreeSet<String> { runs.iter().filter(|run| run.ok).map(|run| run.value.clone()).collect() };
    let before = handled(&said);
    last.until("all that can be is handled", |runs| handled(runs).union(&before).count() >= well.len()).await;
    let set_aside = eventually("what never succeeds is dead", async || {
        let dead_letters = contents(&client, "events.workers.dlq").await;
        let there: BTreeSet<String> = dead_letters.iter().map(value).collect();
        (there.len() >= dead.len()).then_some(there)
    })
    .await;
    said.extend(last.stop().await);
    assert_eq!(set_aside, dead);
    assert_eq!(handled(&said), well);
    // Whoever left in order has nothing more to do, and has said so.
    let lags = Admin::new(&client).group_lag("workers", IsolationLevel::ReadUncommitted).await.expect("it is there");
    let source: Vec<Option<u64>> =
        lags.iter().filter(|lag| lag.topic.as_deref() == Some("events")).map(|lag| lag.lag).collect();
    assert_eq!(source, [Some(0); 4]);
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redrive_that_is_killed_halfway_and_run_again_redrives_every_dead_letter() {
    const RECORDS: usize = 200;
    let (mut fleet, client) = fleet().await;
    topic(&client, "orders", 2).await;
    publish(&client, "orders", (0..RECORDS).map(|n| format!("broken:{n}"))).await;
    let worker = Worker::start(&fleet, "orders", "billing");
    let all: BTreeSet<String> = eventually("all are dead", async || {
        let there: BTreeSet<String> = contents(&client, "orders.billing.dlq").await.iter().map(event_id).collect();
        (there.len() == RECORDS).then_some(there)
    })
    .await;
    worker.stop().await;

    // One of the two places they go to is held by a single broker, which is down: nothing gets there, and the redrive cannot end.
    let admin = Admin::new(&client);
    let mut elsewhere = NewTopic::new("elsewhere");
    (elsewhere.partitions, elsewhere.replication_factor) = (Some(2), Some(1));
    let made = admin.create_topic(elsewhere).await.expect("the topic is new");
    let leaders = [0, 1].map(|index: usize| made.partitions[index].leader.expect("it is led").0 as usize);
    assert_ne!(leaders[0], leaders[1], "brokers share what is new");
    fleet.kill(leaders[1]);
    let led = |topics: &[millpond_sdk::TopicDescription]| {
        let others = topics.iter().filter(|topic| topic.name != "elsewhere").flat_map(|topic| &topic.partitions);
        others.into_iter().all(|partition| partition.leader.is_some_and(|leader| leader.0 as usize != leaders[1]))
    };
    fleet.wait_until("all else is led", |_, topics| led(topics)).await;
    let redrive = ["dlq", "redrive", "orders.billing.dlq", "--to", "elsewhere", "--execute", "--output", "json"];
    let mut child = Command::new(binary())
        .args(redrive)
        .env("MILLPOND_BOOTSTRAP", fleet.bootstrap())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("`millpond` starts");
    let end = async |partition| {
        let end = admin.list_offset("elsewhere", partition, OffsetSpec::Latest).await.expect("it is led");
        end.expect("every log has an end").offset
    };
    eventually("some are written", async || (end(0).await > Offset(0)).then_some(())).await;
    child.kill().expect("it is ours");
    assert!(!child.wait().expect("it is ours").success(), "it was under way");
    fleet.restart(leaders[1]).await;
    fleet.wait_until_in_sync().await;
    assert_eq!(end(1).await, Offset(0), "it was half done");

    let bootstrap = fleet.bootstrap();
    let again = json(&succeed_at(&bootstrap, &redrive, b""));
    let redriven = again["redriven"].as_u64().expect("a number");
    assert!(redriven > 0 && again["complete"] == true, "{again}");
    let written = contents(&client, "elsewhere").await;
    let there: BTreeSet<String> = written.iter().map(event_id).collect();
    assert_eq!(there, all, "each at least once, and none lost");
    println!("{} written for {RECORDS} dead letters, {redriven} of them by the second run", written.len());
    assert_eq!(json(&succeed_at(&bootstrap, &redrive, b""))["redriven"], 0, "all are remembered");
    fleet.stop().await;
}
