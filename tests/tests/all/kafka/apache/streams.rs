//! A job of Kafka Streams with exactly-once semantics, killed in the middle of transactions.

use super::super::cluster::{Brokers, Cluster, with_one_broker_and_with_three};
use super::archives_or_skip;
use super::java::{Running, until};
use super::records;
use millpond_sdk::{Admin, Client, IsolationLevel, Producer, ProducerConfig, ProducerRecord};
use std::collections::BTreeMap;
use std::path::Path;

const OUTPUT: &str = "counts";
const PARTITIONS: u32 = 3;
const WORDS: u32 = 20;
const LINES: u32 = 200;
/// The job is killed so often.
const KILLS: u32 = 2;

/// Each count of each word, in order.
type Counts = BTreeMap<String, Vec<u64>>;

/// The lines of a round, two words each; what is to be counted afterwards.
async fn write(client: &Client, round: u32, expected: &mut Counts) {
    let producer = Producer::new(client, ProducerConfig::default()).expect("the defaults are sound");
    let mut deliveries = Vec::new();
    for number in round * LINES..(round + 1) * LINES {
        let words = [number, number / 3].map(|number| format!("word-{}", number % WORDS));
        let record = ProducerRecord::new("lines").partition(number % PARTITIONS).value(words.join(" "));
        deliveries.push(producer.send(record).await.expect("there is room"));
        for word in words {
            let counts = expected.entry(word).or_default();
            counts.push(counts.len() as u64 + 1);
        }
    }
    for delivery in deliveries {
        delivery.await.expect("acknowledged");
    }
    producer.close().await;
}

/// All of the output that readers of this isolation see.
async fn read(client: &Client, isolation: IsolationLevel) -> Counts {
    let mut counts = Counts::new();
    for (word, count) in records::read(client, OUTPUT, PARTITIONS, isolation).await {
        counts.entry(word).or_default().push(count.parse().expect("a number"));
    }
    counts
}

/// Whether the job has a transaction open in its output.
async fn is_open(client: &Client) -> bool {
    let ends = async |isolation| records::ends(client, OUTPUT, PARTITIONS, isolation).await;
    ends(IsolationLevel::ReadCommitted).await != ends(IsolationLevel::ReadUncommitted).await
}

async fn job(archives: &Path, cluster: &Cluster, state: &Path) -> Running {
    let state = state.to_str().expect("a path of text");
    let mut job = Running::start(archives, "Counting.java", &[&cluster.bootstrap, state]);
    assert_eq!(job.line().await.as_deref(), Some("running"));
    job
}

fn total(counts: &Counts) -> usize {
    counts.values().map(Vec::len).sum()
}

with_one_broker_and_with_three! {
    streams_counts_each_word_exactly_once_though_it_is_killed_in_transactions_and_so_is_one_of_three_brokers: counts_exactly_once;
}

async fn counts_exactly_once(test: &str, brokers: Brokers) {
    let archives = archives_or_skip!(test);
    let mut cluster = Cluster::start(brokers).await;
    let client = cluster.connect().await;
    for topic in ["lines", OUTPUT] {
        cluster.create(topic, PARTITIONS, &[]).await;
    }
    let state = tempfile::tempdir().expect("a temporary folder");
    let mut expected = Counts::new();
    let mut running = job(&archives, &cluster, state.path()).await;
    for round in 0..KILLS {
        write(&client, round, &mut expected).await;
        until("an open transaction", async || is_open(&client).await).await;
        running.kill().await;
        running = job(&archives, &cluster, state.path()).await;
    }
    if brokers == Brokers::Three {
        cluster.as_fleet().kill(1);
    }
    write(&client, KILLS, &mut expected).await;
    let mut committed = Counts::new();
    until("all counts", async || {
        committed = read(&client, IsolationLevel::ReadCommitted).await;
        total(&committed) >= total(&expected)
    })
    .await;
    assert_eq!(committed, expected);
    let uncommitted = read(&client, IsolationLevel::ReadUncommitted).await;
    assert!(total(&uncommitted) > total(&committed), "it was killed in a transaction, which was aborted");

    let topics = Admin::new(&client).list_topics().await.expect("brokers are up");
    for own in ["counting-kept-changelog", "counting-words-repartition"] {
        assert!(topics.iter().any(|topic| &*topic.name == own), "{own} in {topics:?}");
    }
    if brokers == Brokers::Three {
        cluster.as_fleet().restart(1).await;
    }
    running.terminate().await;
    cluster.stop().await;
}
