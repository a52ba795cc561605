//! `millpond transaction` and `millpond produce --transactional-id` over processes: what operators are told of transactions, what they can end,
//! and what readers of committed records see of lines that were written in them.

use crate::commands::{fail, fail_at, succeed, succeed_at};
use millpond_metadata::keys::Key;
use millpond_metadata::kv::{Txn, Write};
use millpond_sdk::{
    Admin, Client, IsolationLevel, NewTopic, Offset, OffsetSpec, OffsetsOf, ProducerRecord, TopicPartition,
    TransactionalConfig, TransactionalProducer,
};
use millpond_tests::fleet::{Fleet, FleetOptions};
use millpond_tests::process::{Dev, DevOptions, binary};
use serde_json::{Value, json};
use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::time::timeout;

const TOPIC: &str = "ledger";

/// How long a fact may take to come true before the test is called stuck, and how often is looked.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(50);

async fn fleet() -> (Fleet, Client) {
    let fleet = Fleet::start(&FleetOptions::new(3)).await.expect("every machine has what it takes");
    fleet.wait_until("all are alive", |cluster, _| cluster.brokers.len() == 3).await;
    let client = fleet.connect().await;
    let mut topic = NewTopic::new(TOPIC);
    (topic.partitions, topic.replication_factor) = (Some(2), Some(3));
    Admin::new(&client).create_topic(topic).await.expect("the topic is new");
    fleet.wait_until_in_sync().await;
    (fleet, client)
}

/// A producer with an open transaction, one record in each of these partitions.
async fn open(client: &Client, id: &str, partitions: &[u32]) -> TransactionalProducer {
    // Nothing is to end by its timeout here.
    let config = TransactionalConfig { timeout: Duration::from_secs(600), ..TransactionalConfig::new(id) };
    let mut producer = TransactionalProducer::new(client, config).await.expect("it is taken");
    producer.begin().expect("none is open");
    for partition in partitions {
        let record = ProducerRecord::new(TOPIC).partition(*partition).value(id.to_owned());
        producer.send(record).await.expect("there is room").await.expect("it is written");
    }
    producer
}

fn shown(fleet: &Fleet, arguments: &[&str]) -> Value {
    let arguments = [arguments, &["--output", "json"]].concat();
    serde_json::from_str(&succeed_at(&fleet.bootstrap(), &arguments, b"")).expect("it is JSON")
}

fn ids(listed: &Value) -> Vec<&str> {
    let listed = listed["transactions"].as_array().expect("a list");
    listed.iter().map(|one| one["transactional_id"].as_str().expect("text")).collect()
}

/// The end of what readers of this isolation see.
async fn end(client: &Client, isolation: IsolationLevel, topic: &str, partition: u32) -> Offset {
    let end = Admin::new(client).list_offset_seen_by(isolation, topic, partition, OffsetSpec::Latest).await;
    end.expect("it is led").expect("every log has an end").offset
}

/// Looks until there is what is looked for.
async fn eventually(what: &str, mut look: impl AsyncFnMut() -> bool) {
    let mut every = tokio::time::interval(LOOK);
    let looked = timeout(PATIENCE, async {
        loop {
            every.tick().await;
            if look().await {
                return;
            }
        }
    });
    looked.await.unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_of_all_coordinators_are_listed_described_and_aborted() {
    let (fleet, client) = fleet().await;
    // Enough of them that every broker coordinates some.
    let mut producers = Vec::new();
    for n in 0..12 {
        producers.push(open(&client, &format!("teller-{n:02}"), &[n % 2]).await);
    }
    for producer in &mut producers[..10] {
        producer.commit().await.expect("it is committed");
    }
    let mut both = open(&client, "both", &[0, 1]).await;
    let of = OffsetsOf { group: "billing".to_owned(), member: None };
    both.send_offsets(&of, &[(TopicPartition::new(TOPIC, 0), Offset(1))]).await.expect("they are taken");

    eventually("the first ten have ended everywhere", async || {
        ids(&shown(&fleet, &["transaction", "list", "--state", "CompleteCommit"])).len() == 10
    })
    .await;
    let all = shown(&fleet, &["transaction", "list"]);
    let expected: Vec<String> =
        std::iter::once("both".to_owned()).chain((0..12).map(|n| format!("teller-{n:02}"))).collect();
    assert_eq!(ids(&all), expected);
    let ongoing = shown(&fleet, &["transaction", "list", "--state", "Ongoing"]);
    assert_eq!(ids(&ongoing), ["both", "teller-10", "teller-11"]);
    assert_eq!(
        (&ongoing["transactions"][0]["partitions"], &ongoing["transactions"][0]["groups"]),
        (&json!(2), &json!(1))
    );
    assert_eq!(ids(&shown(&fleet, &["transaction", "list", "--open-for", "0s"])), ["both", "teller-10", "teller-11"]);
    assert_eq!(shown(&fleet, &["transaction", "list", "--open-for", "1h"]), json!({"transactions": []}));
    let text = succeed_at(&fleet.bootstrap(), &["transaction", "list", "--state", "Ongoing"], b"");
    assert!(text.starts_with("ID ") && text.lines().count() == 4, "{text}");

    let described = shown(&fleet, &["transaction", "describe", "both"]);
    let places: Vec<(&str, u64)> = described["partitions"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|place| (place["topic"].as_str().expect("a name"), place["partition"].as_u64().expect("a number")))
        .collect();
    assert_eq!((places.as_slice(), &described["groups"]), (&[(TOPIC, 0), (TOPIC, 1)][..], &json!(["billing"])));
    assert_eq!((&described["state"], &described["timeout_seconds"]), (&json!("Ongoing"), &json!(600.0)));

    // What is under way does not hang, however long it takes.
    let any = ["transaction", "find-hanging", "--max-transaction-timeout", "0s"];
    assert_eq!(shown(&fleet, &any), json!({"hanging": [], "leaderless": []}));
    let first = end(&client, IsolationLevel::ReadCommitted, TOPIC, 1).await;
    let at = [format!("{TOPIC}:1"), first.to_string()];
    let tears = ["transaction", "abort", "--partition", &at[0], "--start-offset", &at[1]];
    let refused = fail_at(&fleet.bootstrap(), &tears, b"");
    assert!(refused.contains("under way; abort that by its id"), "{refused}");

    let aborted = shown(&fleet, &["transaction", "abort", "both"]);
    assert_eq!((&aborted["aborted"], &aborted["transactional_id"]), (&json!(true), &json!("both")));
    let fenced = both.commit().await.expect_err("it was aborted");
    assert!(fenced.needs_new_producer(), "{fenced}");
    eventually("it is aborted everywhere", async || {
        shown(&fleet, &["transaction", "describe", "both"])["state"] == json!("CompleteAbort")
    })
    .await;
    for missing in [["transaction", "describe", "nobody"], ["transaction", "abort", "nobody"]] {
        let refused = fail_at(&fleet.bootstrap(), &missing, b"");
        assert!(refused.contains("no transactional id `nobody`"), "{refused}");
    }
    for producer in &mut producers[10..] {
        producer.commit().await.expect("others were not touched");
    }
    settled(&fleet.bootstrap()).await;
    let read = ["consume", TOPIC, "--isolation", "read_committed", "--until-end"];
    let mut seen: Vec<String> = succeed_at(&fleet.bootstrap(), &read, b"").lines().map(str::to_owned).collect();
    seen.sort();
    assert_eq!(seen, expected[1..]);
    fleet.stop().await;
}

/// Case T3. A coordinator that has lost a transaction, as one does whose metadata were restored from a backup, never ends it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hanging_transaction_is_found_and_aborted_in_its_partition_and_readers_go_on() {
    let (mut fleet, client) = fleet().await;
    let mut tracked = open(&client, "tracked", &[0]).await;
    let mut lost = open(&client, "lost", &[0, 1]).await;
    let store = fleet.store().await;
    let forget =
        Txn { then: vec![Write::delete(&store.keys().encode(&Key::Transaction("lost".to_owned())))], ..Txn::default() };
    store.kv().txn(forget).await.expect("the store is up");
    // Whoever coordinates next reads what is left.
    for broker in 0..fleet.size() {
        fleet.kill(broker);
        fleet.restart(broker).await;
        fleet.wait_until_in_sync().await;
    }
    let client = fleet.connect().await;

    let find = |timeout: &str| shown(&fleet, &["transaction", "find-hanging", "--max-transaction-timeout", timeout]);
    assert_eq!(find("1h"), json!({"hanging": [], "leaderless": []}), "it may be written to yet");
    let found = find("0s");
    let found = found["hanging"].as_array().expect("a list");
    let at = |one: &Value| (one["topic"].clone(), one["partition"].clone(), one["start_offset"].clone());
    let places: Vec<_> = found.iter().map(at).collect();
    assert_eq!(places, [(json!(TOPIC), json!(0), json!(1)), (json!(TOPIC), json!(1), json!(0))]);
    assert!(found.iter().all(|one| one["transactional_id"].is_null()), "{found:?}");
    let text = succeed_at(
        &fleet.bootstrap(),
        &["transaction", "find-hanging", "--topic", "ledger:1", "--max-transaction-timeout", "0s"],
        b"",
    );
    let command = "abort one with: millpond transaction abort --partition ledger:1 --start-offset 0\n";
    assert!(text.lines().count() == 3 && text.ends_with(command), "{text}");

    assert_eq!(end(&client, IsolationLevel::ReadCommitted, TOPIC, 1).await, Offset(0), "readers wait there");
    let abort =
        |at: &str, first: &str| ["transaction", "abort", "--partition", at, "--start-offset", first].map(str::to_owned);
    let run = |arguments: [String; 6]| {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        succeed_at(&fleet.bootstrap(), &arguments, b"")
    };
    assert_eq!(run(abort("ledger:1", "0")), "what hung in ledger:1 from offset 0 on is aborted\n");
    assert_eq!(end(&client, IsolationLevel::ReadCommitted, TOPIC, 1).await, Offset(2), "its record, and the marker");
    run(abort("ledger:0", "1"));
    assert_eq!(find("0s"), json!({"hanging": [], "leaderless": []}));
    // Twice is refused, and what is under way besides goes on.
    let again = abort("ledger:1", "0");
    let refused = fail_at(&fleet.bootstrap(), &again.each_ref().map(String::as_str), b"");
    assert!(refused.contains("no transaction that begins at offset 0 is open"), "{refused}");
    assert!(lost.commit().await.is_err(), "nobody knows it");
    tracked.commit().await.expect("it was not touched");
    settled(&fleet.bootstrap()).await;
    let read = ["consume", TOPIC, "--isolation", "read_committed", "--until-end"];
    assert_eq!(succeed_at(&fleet.bootstrap(), &read, b""), "tracked\n");
    fleet.stop().await;
}

fn dev() -> (tempfile::TempDir, Dev) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dev = Dev::start(&DevOptions::new(folder.path()));
    succeed(&dev, &["topic", "create", TOPIC, "--partitions", "2"], b"");
    (folder, dev)
}

/// Waits until every transaction has ended everywhere: its outcome is answered before its markers are in the logs.
async fn settled(bootstrap: &str) {
    let under_way = ["transaction", "list", "--state", "Ongoing,PrepareCommit,PrepareAbort"];
    eventually("every transaction has ended", async || succeed_at(bootstrap, &under_way, b"") == "no transactions\n")
        .await;
}

/// The lines that readers see once every transaction has ended, in order of text.
async fn lines(dev: &Dev, isolation: &str) -> Vec<String> {
    settled(&dev.grpc).await;
    let read = succeed(dev, &["consume", TOPIC, "--isolation", isolation, "--until-end"], b"");
    let mut lines: Vec<String> = read.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lines_are_committed_in_one_transaction_or_in_several_of_so_many() {
    let (_folder, dev) = dev();
    let produce = ["produce", TOPIC, "--key-separator", ":", "--transactional-id", "teller"];
    assert_eq!(succeed(&dev, &produce, b"a:1\nb:2\nc:3\n"), "3 records in 1 transactions\n");
    let by_two = [&produce[..], &["--transaction-records", "2", "--output", "json"]].concat();
    let told: Value = serde_json::from_str(&succeed(&dev, &by_two, b"d:4\ne:5\nf:6\ng:7\nh:8\n")).expect("it is JSON");
    assert_eq!(told, json!({"records": 5, "transactions": 3}));
    assert_eq!(lines(&dev, "read_committed").await, ["1", "2", "3", "4", "5", "6", "7", "8"]);
    assert_eq!(succeed(&dev, &produce, b""), "0 records in 0 transactions\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_open_when_a_line_is_bad_is_aborted_and_what_was_committed_stays() {
    let (_folder, dev) = dev();
    let by_two = ["produce", TOPIC, "--json", "--transactional-id", "teller", "--transaction-records", "2"];
    let input = b"{\"value\": \"1\"}\n{\"value\": \"2\"}\n{\"value\": \"3\"}\noops\n{\"value\": \"4\"}\n";
    let error = fail(&dev, &by_two, input);
    assert!(error.contains("line 4"), "{error}");
    assert!(error.contains("2 records in 1 transactions were committed, and 1 were aborted"), "{error}");
    assert_eq!(lines(&dev, "read_committed").await, ["1", "2"]);
}

fn interrupted(mut child: Child) -> String {
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it is ours");
    // Its input stays open: it is the signal that ends it.
    let input = child.stdin.take();
    let output = child.wait_with_output().expect("it ends");
    drop(input);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(output.stdout.is_empty(), "nothing is told as done");
    stderr
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_interrupted_aborts_what_is_open() {
    let (_folder, dev) = dev();
    let mut child = Command::new(binary())
        .args(["produce", TOPIC, "--partition", "0", "--transactional-id", "teller", "--transaction-records", "2"])
        .env("MILLPOND_BOOTSTRAP", &dev.grpc)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("`millpond` starts");
    child.stdin.as_mut().expect("it is piped").write_all(b"1\n2\n3\n").expect("it reads");
    let client = Client::connect(&dev.grpc).await.expect("it is up");
    // Two records, their marker, and the third record.
    eventually("the third line is written", async || {
        end(&client, IsolationLevel::ReadUncommitted, TOPIC, 0).await == Offset(4)
    })
    .await;
    let error = tokio::task::spawn_blocking(move || interrupted(child)).await.expect("it does not panic");
    assert!(error.contains("interrupted; 2 records in 1 transactions were committed, and 1 were aborted"), "{error}");
    assert_eq!(lines(&dev, "read_committed").await, ["1", "2"]);
    assert_eq!(end(&client, IsolationLevel::ReadCommitted, TOPIC, 0).await, Offset(5), "nothing is left open");
    assert_eq!(lines(&dev, "read_uncommitted").await, ["1", "2", "3"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_producer_of_the_same_id_fences_the_first_whose_lines_are_never_seen() {
    let (_folder, dev) = dev();
    let mut first = Command::new(binary())
        .args(["produce", TOPIC, "--transactional-id", "teller"])
        .env("MILLPOND_BOOTSTRAP", &dev.grpc)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("`millpond` starts");
    let mut input = first.stdin.take().expect("it is piped");
    input.write_all(b"of the first\n").expect("it reads");
    // Until it is the producer of the id, and has begun.
    eventually("it has begun", async || {
        succeed(&dev, &["transaction", "list", "--state", "Ongoing"], b"").contains("teller")
    })
    .await;
    let second = succeed(&dev, &["produce", TOPIC, "--transactional-id", "teller"], b"of the second\n");
    assert_eq!(second, "1 records in 1 transactions\n");
    drop(input);
    let output = first.wait_with_output().expect("it ends");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("0 records in 0 transactions were committed, and 1 were aborted"), "{error}");
    assert_eq!(lines(&dev, "read_committed").await, ["of the second"]);
}
