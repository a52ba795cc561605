//! Kafka's TransactionalMessageCopier, as its own system tests use it: killed, and copying exactly once all the same.

use super::super::cluster::{Brokers, Cluster, with_one_broker_and_with_three};
use super::archives_or_skip;
use super::java::{Programs, Running};
use super::records;
use millpond_sdk::IsolationLevel;
use std::path::Path;

const TOPICS: &str = "org.apache.kafka.tools.TopicCommand";
const PRODUCER: &str = "org.apache.kafka.tools.VerifiableProducer";
const COPIER: &str = "org.apache.kafka.tools.TransactionalMessageCopier";

const RECORDS: usize = 3000;

/// It copies up to where the input ends as it starts, in small transactions, some of which it aborts and does again.
fn copier(archives: &Path, cluster: &Cluster) -> Running {
    let from =
        ["--input-topic", "in", "--input-partition", "0", "--output-topic", "out", "--consumer-group", "copiers"];
    // One that is killed may leave offsets in an open transaction. Its successor waits for these before it does anything else, and gives up
    // after a minute, which is also how long a transaction may take by default.
    let timeout = ["--transaction-timeout", "15000"];
    let how = ["--transaction-size", "50", "--transactional-id", "copier", "--enable-random-aborts"];
    let at = ["--use-group-metadata", "--broker-list", &cluster.bootstrap];
    Running::start(archives, COPIER, &[&from[..], &how, &timeout, &at].concat())
}

/// Waits until it has copied something and has not more left than that.
async fn copies(copier: &mut Running, left: u64) {
    copier.event("progress", |event| event["remaining"].as_u64().is_some_and(|remaining| remaining <= left)).await;
}

with_one_broker_and_with_three! {
    transactional_message_copier_copies_exactly_once_though_it_is_killed_and_so_is_one_of_three_brokers: copies_exactly_once;
}

async fn copies_exactly_once(test: &str, brokers: Brokers) {
    let archives = archives_or_skip!(test);
    let mut cluster = Cluster::start(brokers).await;
    let mut programs = Programs::start(&archives, &cluster.bootstrap);
    for topic in ["in", "out"] {
        programs.tool(TOPICS, &["--create", "--topic", topic, "--partitions", "1"]).await;
    }
    let records = RECORDS.to_string();
    let write = ["--bootstrap-server", &cluster.bootstrap, "--topic", "in", "--max-messages", &records];
    let (status, said) = Running::start(&archives, PRODUCER, &write).ended().await;
    assert!(status.success(), "{said:?}");

    let mut first = copier(&archives, &cluster);
    copies(&mut first, 2500).await;
    first.kill().await;
    let mut second = copier(&archives, &cluster);
    copies(&mut second, 2000).await;
    if brokers == Brokers::Three {
        cluster.as_fleet().kill(1);
        copies(&mut second, 1500).await;
        cluster.as_fleet().restart(1).await;
    }
    let (status, said) = second.ended().await;
    assert!(status.success(), "{said:?}");

    let copied = records::read(&cluster.connect().await, "out", 1, IsolationLevel::ReadCommitted).await;
    let copied: Vec<String> = copied.into_iter().map(|(_, value)| value).collect();
    let expected: Vec<String> = (0..RECORDS).map(|number| number.to_string()).collect();
    assert!(copied == expected, "{} of {RECORDS} records", copied.len());
    cluster.stop().await;
}
