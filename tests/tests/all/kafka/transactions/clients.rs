//! Transactions by real clients: what is committed is seen, nothing that was aborted or is open; older producers are fenced.

use super::super::wire::Served;
use crate::kafka::programs::{Program, promises};
use millpond_tests::brokers::TestBrokers;
use millpond_tests::tools::{Tool, repository, skip};
use object_store::memory::InMemory;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::process::Command;

promises! {
    kafkajs_commits_and_aborts_and_is_fenced:
        Program::KafkaJs("transactions.js"), ["@"], "transactions hold";
    franz_go_commits_and_aborts_and_is_fenced:
        Program::Go, ["franz", "@", "transactions"], "transactions hold";
    sarama_commits_and_aborts_and_is_fenced:
        Program::Go, ["sarama", "@", "transactions"], "transactions hold";
}

/// Runs a program of real clients against these brokers; what it says in the end.
async fn run(python: &Path, script: &str, bootstrap: &str, more: &[&str]) -> String {
    let mut command = Command::new(python);
    command.arg(program(script)).args(["--bootstrap", bootstrap]).args(more);
    output(command).await
}

fn program(name: &str) -> PathBuf {
    repository().join("tests/clients").join(name)
}

async fn output(mut command: Command) -> String {
    let running = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let output = tokio::time::timeout(Duration::from_secs(180), running).await;
    let output = output.expect("it ends").expect("the tool was found");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// librdkafka, by its transactional API.
async fn librdkafka(test: &str, checks: &[&str]) {
    let python = match Tool::ClientPython.find() {
        Ok(python) => python,
        Err(why) => return skip(test, &why),
    };
    let served = Served::start().await;
    let more: Vec<&str> = checks.iter().flat_map(|check| ["--check", check]).collect();
    let said = run(&python, "transactions.py", served.broker.kafka(), &more).await;
    assert_eq!(said, format!("{} checks held", checks.len()));
    served.broker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aiokafka_and_kafka_python_commit_and_abort_and_are_fenced() {
    let python = match Tool::ClientPython.find() {
        Ok(python) => python,
        Err(why) => return skip("aiokafka_and_kafka_python_commit_and_abort_and_are_fenced", &why),
    };
    let served = Served::start().await;
    let said = run(&python, "transactions_python.py", served.broker.kafka(), &[]).await;
    assert_eq!(said, "aiokafka and kafka-python held");
    served.broker.stop().await;
}

/// Over three brokers a transaction's coordinator, its partitions' leaders and its group's coordinator are different ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn confluent_kafka_has_transactions_over_three_brokers() {
    let python = match Tool::ClientPython.find() {
        Ok(python) => python,
        Err(why) => return skip("confluent_kafka_has_transactions_over_three_brokers", &why),
    };
    let brokers = TestBrokers::start(3, Arc::new(InMemory::new())).await;
    let bootstrap: Vec<&str> = (0..3).map(|id| brokers.addresses(id).kafka.as_str()).collect();
    assert_eq!(run(&python, "transactions.py", &bootstrap.join(","), &[]).await, "4 checks held");
    brokers.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn confluent_kafka_shows_what_was_committed_and_nothing_that_was_aborted_or_is_open() {
    librdkafka("confluent_kafka_shows_what_was_committed_and_nothing_that_was_aborted_or_is_open", &["rounds", "open"])
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn confluent_kafka_fences_the_older_of_two_producers() {
    librdkafka("confluent_kafka_fences_the_older_of_two_producers", &["fence"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn confluent_kafka_reads_processes_and_writes_with_offsets_in_the_transaction() {
    librdkafka("confluent_kafka_reads_processes_and_writes_with_offsets_in_the_transaction", &["pipeline"]).await;
}

/// The Java client has transactions V2: it sees by the features that it may, and is given an epoch for each transaction. Its admin client
/// finds a hanging transaction and aborts it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_client_has_transactions_v2_and_its_admin_client_aborts_what_hangs() {
    let archives = match Tool::JavaClient.find() {
        Ok(archives) => archives.join("*"),
        Err(why) => return skip("java_client_has_transactions_v2_and_its_admin_client_aborts_what_hangs", &why),
    };
    let served = Served::start().await;
    let mut command = Command::new("java");
    command
        .arg("-cp")
        .arg(archives)
        .arg(program("java/Transactions.java"))
        .args(["--bootstrap", served.broker.kafka()]);
    assert_eq!(output(command).await, "the Java client held");
    served.broker.stop().await;
}
