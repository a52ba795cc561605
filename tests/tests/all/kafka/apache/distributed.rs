//! A distributed worker of Kafka Connect, which keeps its settings, offsets and states in topics, and whose source writes exactly once.

use super::super::cluster::{Brokers, Cluster, with_one_broker_and_with_three};
use super::archives_or_skip;
use super::java::{Running, in_time, until};
use super::records;
use millpond_sdk::{Client, IsolationLevel};
use millpond_tests::http;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::time::Duration;

const DISTRIBUTED: &str = "org.apache.kafka.connect.cli.ConnectDistributed";
const TOPIC: &str = "connected";
/// Lines of its file: those by which all is seen to run, those while which the worker is killed, and those after.
const FIRST: usize = 100;
const LINES: usize = 4000;
const ALL: usize = LINES + 100;

/// How often is looked whether it answers.
const LOOK: Duration = Duration::from_millis(50);

/// Appends lines to a file, which a source may read meanwhile.
fn write(file: &Path, numbers: std::ops::Range<usize>) {
    let mut file = fs::File::options().create(true).append(true).open(file).expect("it can be opened");
    file.write_all(lines(numbers).as_bytes()).expect("there is room");
}

fn lines(numbers: std::ops::Range<usize>) -> String {
    numbers.fold(String::new(), |mut text, number| {
        writeln!(text, "line {number}").expect("text grows");
        text
    })
}

/// Starts the worker; its file of settings is made with the address of its REST door. Its leader writes settings of connectors in transactions, by
/// its own timeout: one that was open at a kill keeps the next worker from reading them for so long.
async fn worker(archives: &Path, dir: &Path, cluster: &Cluster) -> (Running, String) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
    let rest = listener.local_addr().expect("it is bound").to_string();
    drop(listener);
    let bootstrap = &cluster.bootstrap;
    let mut settings = format!(
        "bootstrap.servers={bootstrap}\ngroup.id=workers\nlisteners=http://{rest}\nplugin.discovery=service_load\n\
         key.converter=org.apache.kafka.connect.storage.StringConverter\n\
         value.converter=org.apache.kafka.connect.storage.StringConverter\n\
         exactly.once.source.support=enabled\nsession.timeout.ms=6000\nheartbeat.interval.ms=1000\n\
         scheduled.rebalance.max.delay.ms=0\noffset.flush.interval.ms=500\n\
         transaction.timeout.ms=10000\n"
    );
    for kept in ["config", "offset", "status"] {
        writeln!(settings, "{kept}.storage.topic=connect-{kept}").expect("text grows");
        writeln!(settings, "{kept}.storage.replication.factor={}", cluster.size).expect("text grows");
    }
    let file = dir.join("worker.properties");
    fs::write(&file, settings).expect("there is room");
    let running = Running::start(archives, DISTRIBUTED, &[&file]);
    in_time("the worker", async {
        let mut look = tokio::time::interval(LOOK);
        while !http::get(&rest, "/connectors").await.is_ok_and(|(status, _)| status == 200) {
            look.tick().await;
        }
    })
    .await;
    (running, rest)
}

async fn configure(rest: &str, name: &str, settings: &Value) {
    let path = format!("/connectors/{name}/config");
    // Until the worker leads its group.
    until("the connector", async || {
        http::put(rest, &path, &settings.to_string()).await.is_ok_and(|status| matches!(status, 200 | 201))
    })
    .await;
}

async fn values(client: &Client, isolation: IsolationLevel) -> Vec<String> {
    records::read(client, TOPIC, 1, isolation).await.into_iter().map(|(_, value)| value).collect()
}

with_one_broker_and_with_three! {
    connect_writes_each_line_exactly_once_though_its_distributed_worker_is_killed: writes_exactly_once;
}

async fn writes_exactly_once(test: &str, brokers: Brokers) {
    let archives = archives_or_skip!(test);
    let cluster = Cluster::start(brokers).await;
    let client = cluster.connect().await;
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (from, to) = (dir.path().join("in"), dir.path().join("out"));
    write(&from, 0..FIRST);
    let (running, rest) = worker(&archives, dir.path(), &cluster).await;
    let source = json!({
        "connector.class": "FileStreamSource", "tasks.max": "1", "file": from, "topic": TOPIC, "batch.size": "100",
        "topic.creation.default.partitions": "1", "topic.creation.default.replication.factor": "-1",
        // A worker reads what is committed of its offsets to their end before it does anything else.
        "producer.override.transaction.timeout.ms": "10000",
    });
    configure(&rest, "source", &source).await;
    let made = async || {
        let topics = millpond_sdk::Admin::new(&client).list_topics().await.expect("brokers are up");
        topics.iter().any(|topic| &*topic.name == TOPIC)
    };
    // A static member that was assigned nothing, since the topic was not there, and is killed before it has noticed, comes back to that.
    until("the topic", made).await;
    // The same member comes back, so that nobody waits for the one before.
    let member = "consumer.override.group.instance.id";
    let sink =
        json!({"connector.class": "FileStreamSink", "tasks.max": "1", "file": to, "topics": TOPIC, member: "sink"});
    configure(&rest, "sink", &sink).await;
    until("a line in the file", async || fs::read_to_string(&to).is_ok_and(|read| !read.is_empty())).await;
    write(&from, FIRST..LINES);
    until("more lines", async || values(&client, IsolationLevel::ReadUncommitted).await.len() > FIRST).await;
    running.kill().await;
    write(&from, LINES..ALL);
    let (running, _) = worker(&archives, dir.path(), &cluster).await;
    let mut committed = Vec::new();
    until("all lines", async || {
        committed = values(&client, IsolationLevel::ReadCommitted).await;
        committed.len() >= ALL
    })
    .await;
    let written = lines(0..ALL);
    assert!(committed == written.lines().collect::<Vec<&str>>(), "{} lines", committed.len());
    // The sink may write some twice, which were not committed before the kill.
    until("all lines in the file", async || {
        let read = fs::read_to_string(&to).unwrap_or_default();
        let read: std::collections::BTreeSet<&str> = read.lines().collect();
        written.lines().all(|line| read.contains(line))
    })
    .await;
    running.terminate().await;
    cluster.stop().await;
}
