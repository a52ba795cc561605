//! Groups that have read everything have no lag, whatever the log ends with.

use super::*;
use crate::commands::succeed;
use millpond_sdk::retries::{Attempt, HandlerError, RetryingConfig, RetryingConsumer};
use millpond_sdk::{
    ConsumerRecord, IsolationLevel, OffsetReset, TransactionalConfig, TransactionalProducer, Worker, WorkerConfig,
};
use millpond_tests::process::{Dev, DevOptions};

const TOPIC: &str = "t";

/// Three records and the marker of their commit, twice; then two records that are aborted, and that marker.
async fn write(client: &Client) {
    let config = TransactionalConfig::new("writer");
    let mut producer = TransactionalProducer::new(client, config).await.expect("it is taken");
    for (records, commit) in [(3, true), (3, true), (2, false)] {
        producer.begin().expect("none is open");
        for number in 0..records {
            let record = ProducerRecord::new(TOPIC).partition(0).value(number.to_string());
            producer.send(record).await.expect("it is taken").await.expect("it is written");
        }
        match commit {
            true => producer.commit().await.expect("it is committed"),
            false => producer.abort().await.expect("it is aborted"),
        }
    }
}

async fn lag(client: &Client, group: &str) -> Option<u64> {
    let lags = Admin::new(client).group_lag(group, IsolationLevel::ReadUncommitted).await.ok()?;
    lags.first().and_then(|lag| lag.lag)
}

/// Waits until the group lags behind nothing.
async fn until_read(client: &Client, group: &str) {
    let mut look = tokio::time::interval(Duration::from_millis(50));
    let read = async {
        while lag(client, group).await != Some(0) {
            look.tick().await;
        }
    };
    if timeout(PATIENCE, read).await.is_err() {
        panic!("`{group}` lags by {:?}", lag(client, group).await);
    }
}

fn from_the_start(group: &str) -> GroupConfig {
    let mut config = GroupConfig { initial_offset: OffsetReset::Earliest, ..GroupConfig::new(group) };
    config.reader.isolation = IsolationLevel::ReadCommitted;
    config
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_has_read_all_of_a_topic_that_ends_with_an_aborted_transaction_has_no_lag() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dev = Dev::start(&DevOptions::new(folder.path()));
    let client = Client::connect(&dev.grpc).await.expect("the broker is up");
    create(&client, TOPIC, 1).await;
    let printed =
        || succeed(&dev, &["consume", TOPIC, "--group", "cli", "--isolation", "read_committed", "--until-end"], b"");
    assert_eq!(printed(), "", "it begins at the end");
    write(&client).await;

    assert_eq!(printed(), "0\n1\n2\n0\n1\n2\n");
    assert_eq!(lag(&client, "cli").await, Some(0));

    let handler = |_: ConsumerRecord| async { Ok::<(), String>(()) };
    let config = WorkerConfig { commit_interval: Duration::from_millis(100), ..WorkerConfig::default() };
    let worker = Worker::new(config).expect("good");
    let read = until_read(&client, "worker");
    let run = worker.run(&client, from_the_start("worker"), Subscription::topics([TOPIC]), handler, read);
    run.await.expect("nothing fails");

    let mut config = RetryingConfig::new("retrying");
    config.group = from_the_start("retrying");
    let consumer = RetryingConsumer::new(&client, config, [TOPIC]).expect("the settings are valid");
    let handler = |_: Attempt| async { Ok::<(), HandlerError>(()) };
    let read = until_read(&client, "retrying");
    consumer.run(handler, read).await.expect("nothing fails");

    // And for an application that commits by itself.
    let group = from_the_start("own");
    let mut consumer = GroupConsumer::new(&client, group, Subscription::topics([TOPIC])).expect("good settings");
    let mut taken = 0;
    let read = async {
        while lag(&client, "own").await != Some(0) {
            taken += consumer.poll(Duration::from_millis(50)).await.expect("it can be read").len();
            consumer.commit().await.expect("it is committed");
        }
    };
    timeout(PATIENCE, read).await.expect("it reads all");
    assert_eq!(taken, 6);
    // All of them were left without a lag.
    for group in ["cli", "worker", "retrying", "own"] {
        assert_eq!(lag(&client, group).await, Some(0), "{group}");
    }
    consumer.close().await.expect("it leaves");
    dev.stop();
}
