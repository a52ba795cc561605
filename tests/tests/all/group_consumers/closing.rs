//! Consumers that close while a record is being worked on that does not end.

use super::*;
use millpond_sdk::retries::{Attempt, HandlerError, RetryPolicy, RetryingConfig, RetryingConsumer, WhenFailing};
use millpond_sdk::{ConsumerRecord, IsolationLevel, Worker, WorkerConfig};
use millpond_tests::gate::Hold;
use tokio_util::sync::CancellationToken;

/// Six tenths of it are for the record that does not end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Two partitions of ten records each; the fourth of the first one does not end.
async fn filled(pond: &Pond) {
    create(&pond.client, "t", 2).await;
    for index in 0..2 {
        produce(&pond.client, "t", index, 0..10).await;
    }
}

fn does_not_end(record: &ConsumerRecord) -> bool {
    (record.partition, record.offset) == (0, Offset(3))
}

/// Counts records that were begun.
#[derive(Clone)]
struct Begun(Arc<watch::Sender<usize>>);

impl Begun {
    fn new() -> Begun {
        Begun(Arc::new(watch::channel(0).0))
    }

    fn add(&self) {
        self.0.send_modify(|begun| *begun += 1);
    }

    async fn reaches(&self, count: usize) {
        drop(self.0.subscribe().wait_for(|begun| *begun >= count).await.expect("it lives"));
    }
}

/// What the group has committed, in order of partition.
async fn committed_by_group(client: &Client) -> Vec<Option<u64>> {
    let mut lag = Admin::new(client).group_lag("g", IsolationLevel::ReadUncommitted).await.expect("it is coordinated");
    lag.sort_by_key(|partition| partition.partition);
    lag.into_iter().map(|partition| partition.offset.map(|offset| offset.0)).collect()
}

/// Holds a partition at a record that fails, and commits as often as this.
fn retrying(client: &Client, commit_interval: Duration) -> RetryingConsumer {
    let policy = RetryPolicy { when_failing: WhenFailing::Pause, delays: Vec::new(), ..RetryPolicy::default() };
    let mut config = RetryingConfig::new("g").policy(policy);
    (config.group.close_timeout, config.commit_interval) = (CLOSE_TIMEOUT, commit_interval);
    RetryingConsumer::new(client, config, ["t"]).expect("the settings are good")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_does_not_end_costs_a_closing_consumer_no_partition_but_its_own() {
    let pond = Pond::start().await;
    filled(&pond).await;
    // Nothing is committed but in the end.
    let consumer = retrying(&pond.client, Duration::from_secs(3600));
    let begun = Begun::new();
    let counted = begun.clone();
    let handler = move |Attempt { record, .. }: Attempt| {
        counted.add();
        async move { if does_not_end(&record) { std::future::pending().await } else { Ok::<(), HandlerError>(()) } }
    };
    let closed = timeout(PATIENCE, consumer.run(handler, begun.reaches(14))).await.expect("it ends");
    closed.expect("what does not end is left to others");
    assert_eq!(committed_by_group(&pond.client).await, [Some(3), Some(10)]);
    pond.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_done_is_committed_while_a_closing_consumer_waits_for_a_handler_that_cannot_be_cut_off() {
    let (pond, gate) = Pond::gated().await;
    filled(&pond).await;
    gate.hold(Hold::Request("CommitOffsets"));
    let consumer = retrying(&pond.client, Duration::from_millis(10));
    let begun = Begun::new();
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    let (counted, blocked) = (begun.clone(), Mutex::new(blocked));
    let handler = move |Attempt { record, .. }: Attempt| {
        counted.add();
        if does_not_end(&record) {
            // Until the test lets it go.
            let _ = tokio::task::block_in_place(|| blocked.lock().expect("no panic").recv());
        }
        async { Ok::<(), HandlerError>(()) }
    };
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let closing = tokio::spawn(async move { consumer.run(handler, stopped.cancelled()).await });
    let test = async {
        begun.reaches(14).await;
        // A commit is under way, so nothing that was done since is committed before it closes.
        gate.holds().await;
        stop.cancel();
        gate.pass();
        while committed_by_group(&pond.client).await != [Some(3), Some(10)] {}
        drop(release);
        closing.await.expect("it does not panic")
    };
    // Whether that was in time.
    let _ = timeout(PATIENCE, test).await.expect("what is done is committed");
    pond.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_does_not_end_costs_a_closing_worker_no_partition_but_its_own() {
    let pond = Pond::start().await;
    filled(&pond).await;
    let config = WorkerConfig {
        commit_interval: Duration::from_secs(3600),
        drain_timeout: CLOSE_TIMEOUT * 2,
        ..WorkerConfig::default()
    };
    let begun = Begun::new();
    let handler = |record: ConsumerRecord| {
        begun.add();
        async move { if does_not_end(&record) { std::future::pending().await } else { Ok::<(), String>(()) } }
    };
    let group = GroupConfig { close_timeout: CLOSE_TIMEOUT, ..GroupConfig::new("g") };
    let worker = Worker::new(config).expect("the settings are good");
    // The fourth record of the first partition shares its key with none below the eleventh.
    let run = worker.run(&pond.client, group, Subscription::topics(["t"]), handler, begun.reaches(20));
    timeout(PATIENCE, run).await.expect("it ends").expect("what does not end is left to others");
    assert_eq!(committed_by_group(&pond.client).await, [Some(3), Some(10)]);
    pond.stop().await;
}
