//! Records that fail, on a fleet of real brokers: they are tried again, set aside, shown, redriven, and never lost.

mod killed;

use crate::commands::{fail_at, succeed_at};
use bytes::Bytes;
use millpond_sdk::retries::{
    Attempt, HandlerError, RetryPolicy, RetryingConfig, RetryingConsumer, SetAside, event_id, header,
};
use millpond_sdk::{
    Admin, Backoff, Client, Consumer, ConsumerConfig, ConsumerRecord, ErrorCode, Header, NewTopic, Producer,
    ProducerConfig, ProducerRecord, StartAt, TimestampMs, TopicPartition,
};
use millpond_tests::fleet::{Fleet, FleetOptions};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// How long a fact may take to come true before the test is called stuck.
const PATIENCE: Duration = Duration::from_secs(90);

/// Every run of the handler, in order.
#[derive(Clone)]
struct Runs {
    runs: watch::Sender<Vec<Run>>,
}

#[derive(Clone, Debug)]
struct Run {
    attempt: Attempt,
    ok: bool,
}

impl Runs {
    fn new() -> Runs {
        Runs { runs: watch::channel(Vec::new()).0 }
    }

    fn add(&self, attempt: Attempt, ok: bool) {
        self.runs.send_modify(|runs| runs.push(Run { attempt, ok }));
    }

    async fn until(&self, enough: impl FnMut(&Vec<Run>) -> bool) -> Vec<Run> {
        let mut runs = self.runs.subscribe();
        let found = timeout(PATIENCE, runs.wait_for(enough)).await;
        let now = || self.runs.borrow().clone();
        let found = found.unwrap_or_else(|_| panic!("stuck after {} runs: {:?}", now().len(), values(&now())));
        found.expect("the sender lives as long as this").clone()
    }
}

fn value(record: &ConsumerRecord) -> String {
    record.value.as_ref().map_or_else(|| "null".to_owned(), |value| String::from_utf8_lossy(value).into_owned())
}

fn values(runs: &[Run]) -> Vec<(String, bool)> {
    runs.iter().map(|run| (value(&run.attempt.record), run.ok)).collect()
}

/// Short delays, so that a test sees all of them.
fn policy() -> RetryPolicy {
    RetryPolicy {
        tries_max: 2,
        backoff: Backoff { first: Duration::from_millis(10), max: Duration::from_millis(20) },
        delays: vec![Duration::from_secs(1), Duration::from_secs(2)],
        ..RetryPolicy::default()
    }
}

async fn topic(client: &Client, name: &str, partitions: u32) {
    let topic = NewTopic { partitions: Some(partitions), replication_factor: Some(3), ..NewTopic::new(name) };
    Admin::new(client).create_topic(topic).await.expect("the topic is new");
}

/// Runs a consumer with this handler until it is stopped.
fn run<F, A>(client: &Client, config: RetryingConfig, topic: &str, handler: F) -> Running
where
    F: Fn(Attempt) -> A + Send + Sync + 'static,
    A: Future<Output = Result<(), HandlerError>> + Send + 'static,
{
    let consumer = RetryingConsumer::new(client, config, [topic]).expect("the settings are valid");
    let (control, stop) = (consumer.control(), CancellationToken::new());
    let stopped = stop.clone();
    let task = tokio::spawn(async move { consumer.run(handler, stopped.cancelled()).await });
    Running { control, stop, task }
}

struct Running {
    control: millpond_sdk::retries::RetryControl,
    stop: CancellationToken,
    task: JoinHandle<Result<(), millpond_sdk::Error>>,
}

impl Running {
    async fn close(self) {
        self.stop.cancel();
        timeout(PATIENCE, self.task).await.expect("it ends").expect("it does not panic").expect("it leaves in order");
    }

    /// As a crash: nothing is finished and nothing committed.
    async fn crash(self) {
        self.task.abort();
        assert!(self.task.await.expect_err("it was cut off").is_cancelled());
    }
}

/// What a topic holds now.
async fn contents(client: &Client, topic: &str) -> Vec<ConsumerRecord> {
    let admin = Admin::new(client);
    let described = match admin.describe_topic(topic).await {
        Err(error) if error.code == Some(ErrorCode::UnknownTopicOrPartition) => return Vec::new(),
        described => described.expect("a broker answers"),
    };
    let mut ends = BTreeMap::new();
    for partition in &described.partitions {
        let end = admin.list_offset(topic, partition.index, millpond_sdk::OffsetSpec::Latest).await.expect("it is led");
        ends.insert(TopicPartition::new(topic, partition.index), end.expect("every log has an end").offset);
    }
    let mut consumer = Consumer::new(client, ConsumerConfig::default());
    consumer.assign(ends.keys().map(|place| (place.clone(), StartAt::Earliest))).await.expect("they exist");
    let mut records = Vec::new();
    while ends.iter().any(|(place, end)| consumer.position(place).is_some_and(|at| at < *end)) {
        records.extend(consumer.poll(Duration::from_millis(100)).await.expect("it can be read"));
    }
    records
}

/// Looks again and again until there is what is looked for.
async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let mut every = tokio::time::interval(Duration::from_millis(100));
    let found = timeout(PATIENCE, async {
        loop {
            every.tick().await;
            if let Some(found) = look().await {
                return found;
            }
        }
    });
    found.await.unwrap_or_else(|_| panic!("stuck: {what}"))
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("it is JSON")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poison_record_passes_its_delays_to_the_dead_letters_while_its_partition_goes_on_and_is_redriven() {
    let fleet = Fleet::start(&FleetOptions::new(3)).await.expect("every machine has what it takes");
    let client = fleet.connect().await;
    topic(&client, "orders", 2).await;
    let producer = Producer::new(&client, ProducerConfig::default()).expect("the defaults are valid");
    // An old record, with what is easily lost: a null key, an empty header and a null one of the same name.
    let null = Header { name: Bytes::from_static(b"h"), value: None };
    let mut poison =
        ProducerRecord::new("orders").partition(0).value("poison").header("h", "").timestamp(TimestampMs(1));
    poison.headers.push(null);
    let broken = ProducerRecord::new("orders").partition(1).key("k").value("broken");
    for record in [poison, broken] {
        producer.send(record).await.expect("there is room").await.expect("it is written");
    }
    for n in 0..40 {
        let record = ProducerRecord::new("orders").partition(n % 2).key(format!("key-{n}")).value(n.to_string());
        producer.send(record).await.expect("there is room");
    }
    producer.flush().await;

    let (runs, mended) = (Runs::new(), Arc::new(AtomicBool::new(false)));
    let handler = {
        let (runs, mended) = (runs.clone(), Arc::clone(&mended));
        move |attempt: Attempt| {
            let result = match value(&attempt.record).as_str() {
                _ if mended.load(Ordering::SeqCst) => Ok(()),
                "poison" => Err(HandlerError::transient("Down", "the bank does not answer")),
                "broken" => Err(HandlerError::permanent("Malformed", "no such currency")),
                _ => Ok(()),
            };
            runs.add(attempt, result.is_ok());
            async move { result }
        }
    };
    let consumer = run(&client, RetryingConfig::new("billing").policy(policy()), "orders", handler);
    let all = runs.until(|runs| runs.iter().filter(|run| !run.ok).count() == 7).await;
    let failed: Vec<(&str, u32)> = all
        .iter()
        .filter(|run| !run.ok)
        .map(|run| (if run.attempt.record.partition == 0 { "poison" } else { "broken" }, run.attempt.number))
        .collect();
    let of =
        |what: &str| failed.iter().filter(|(value, _)| *value == what).map(|(_, number)| *number).collect::<Vec<_>>();
    assert_eq!(of("poison"), [1, 2, 3, 4, 5, 6], "twice in its topic and in each delay topic");
    assert_eq!(of("broken"), [1], "an error that will not pass is not tried again");
    // The twenty behind it in its partition were handled while it waited to be due for the first time.
    let third = all.iter().position(|run| run.attempt.number == 3).expect("there are six");
    let behind = all[..third].iter().filter(|run| run.ok && run.attempt.record.partition == 0).count();
    assert_eq!(behind, 20);
    // The handler sees the original, wherever it was read.
    let seen: Vec<&ConsumerRecord> =
        all.iter().filter(|run| value(&run.attempt.record) == "poison").map(|run| &run.attempt.record).collect();
    assert!(seen.iter().all(|record| *record == seen[0]), "{seen:?}");
    assert_eq!(
        (&*seen[0].topic, seen[0].offset.0, seen[0].timestamp, &seen[0].key),
        ("orders", 0, TimestampMs(1), &None)
    );
    let kept: Vec<Option<&[u8]>> = seen[0].headers.iter().map(|header| header.value.as_deref()).collect();
    assert_eq!(kept, [Some(&b""[..]), None]);

    let bootstrap = fleet.bootstrap();
    let list = || json(&succeed_at(&bootstrap, &["dlq", "list", "--output", "json"], b""))["topics"][0].clone();
    let listed = eventually("both are dead", async || Some(list()).filter(|topic| topic["records"] == 2)).await;
    assert_eq!((&listed["topic"], &listed["redriven"]), (&"orders.billing.dlq".into(), &0.into()));
    let counts: Vec<(&str, u64)> = listed["counts"]
        .as_array()
        .expect("there are counts")
        .iter()
        .map(|count| (count["error_class"].as_str().unwrap_or(""), count["records"].as_u64().unwrap_or(0)))
        .collect();
    assert_eq!(counts, [("Down", 1), ("Malformed", 1)]);
    let show = ["dlq", "show", "orders.billing.dlq", "--origin", "orders:0", "--output", "json"];
    let shown = json(&succeed_at(&bootstrap, &show, b""));
    assert_eq!((&shown["attempts"], &shown["error_class"]), (&6.into(), &"Down".into()));
    assert_eq!((&shown["original"]["value"], &shown["original"]["timestamp"]), (&"poison".into(), &1.into()));
    assert_eq!(shown["event_id"], "orders-0-0");
    for (name, delay) in [("orders.retry.1s", 1), ("orders.retry.2s", 1), ("orders.billing.dlq", 2)] {
        assert_eq!(contents(&client, name).await.len(), delay, "{name}");
        let made = Admin::new(&client).describe_topic(name).await.expect("it was made");
        assert!(made.partitions.len() == 2 && made.partitions.iter().all(|made| made.replicas.len() == 3), "{name}");
    }

    // The handler is mended, and the record written back: it is handled like any other.
    mended.store(true, Ordering::SeqCst);
    let redrive = ["dlq", "redrive", "orders.billing.dlq", "--error", "Down", "--output", "json"];
    let dry = json(&succeed_at(&bootstrap, &redrive, b""));
    assert_eq!((&dry["executed"], &dry["redriven"], &dry["filtered"]), (&false.into(), &1.into(), &1.into()));
    assert_eq!(contents(&client, "orders").await.len(), 42, "a dry run writes nothing");
    let execute = [&redrive[..], &["--execute"]].concat();
    assert_eq!(json(&succeed_at(&bootstrap, &execute, b""))["redriven"], 1);
    let all = runs.until(|runs| runs.last().is_some_and(|run| value(&run.attempt.record) == "poison" && run.ok)).await;
    let handled = &all.last().expect("it was looked at").attempt;
    assert_eq!((handled.number, handled.event_id()), (1, "orders-0-0".to_owned()));
    assert_eq!((handled.record.partition, handled.record.timestamp, &handled.record.key), (0, TimestampMs(1), &None));
    let names: Vec<&[u8]> = handled.record.headers.iter().map(|header| &*header.name).collect();
    let added = [header::EVENT_ID, header::REDRIVE_COUNT, header::REDRIVE_GROUP].map(str::as_bytes);
    assert_eq!(names, [&[&b"h"[..], b"h"], &added[..]].concat());

    // What was redriven is not redriven again unless that is asked for, whatever the filter.
    assert_eq!(json(&succeed_at(&bootstrap, &execute, b""))["redriven"], 0);
    let rest = ["dlq", "redrive", "orders.billing.dlq", "--execute", "--output", "json"];
    let rest_done = json(&succeed_at(&bootstrap, &rest, b""));
    assert_eq!((&rest_done["redriven"], &rest_done["redriven_before"]), (&1.into(), &1.into()));
    assert_eq!(list()["redriven"], 2);
    assert_eq!(json(&succeed_at(&bootstrap, &rest, b""))["redriven"], 0);
    let again = [&rest[..], &["--again", "--to", "elsewhere"]].concat();
    let refused = fail_at(&bootstrap, &again, b"");
    assert!(refused.contains("elsewhere"), "{refused}");
    topic(&client, "elsewhere", 1).await;
    assert_eq!(json(&succeed_at(&bootstrap, &again, b""))["redriven"], 2);
    let elsewhere: BTreeSet<String> = contents(&client, "elsewhere").await.iter().map(event_id).collect();
    assert_eq!(elsewhere, BTreeSet::from(["orders-0-0".to_owned(), "orders-1-0".to_owned()]));
    let round = ["dlq", "redrive", "orders.billing.dlq", "--again", "--to", "orders.billing.dlq", "--execute"];
    assert!(fail_at(&bootstrap, &round, b"").contains("to itself"));
    consumer.close().await;
    fleet.stop().await;
}

/// Consumers are cut off again and again, and a broker is killed: every record is handled well or is a dead letter in the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_record_is_lost_when_consumers_and_a_broker_are_killed_at_any_time() {
    const RECORDS: usize = 240;
    let mut fleet = Fleet::start(&FleetOptions::new(3)).await.expect("every machine has what it takes");
    let client = fleet.connect().await;
    topic(&client, "events", 4).await;
    let producer = Producer::new(&client, ProducerConfig::default()).expect("the defaults are valid");
    for n in 0..RECORDS {
        let record = ProducerRecord::new("events").key(n.to_string()).value(n.to_string());
        producer.send(record).await.expect("there is room");
    }
    producer.flush().await;
    let runs = Runs::new();
    let handler = {
        let runs = runs.clone();
        move |attempt: Attempt| {
            let n: usize = value(&attempt.record).parse().expect("a number was written");
            // One in twelve never succeeds, another not at first, and another never at all.
            let result = match n % 12 {
                0 => Err(HandlerError::transient("Never", n)),
                1 if attempt.number <= 3 => Err(HandlerError::transient("NotYet", n)),
                2 => Err(HandlerError::permanent("Bad", n)),
                _ => Ok(()),
            };
            let runs = runs.clone();
            async move {
                // Long enough to be cut off in.
                tokio::time::sleep(Duration::from_millis(2)).await;
                runs.add(attempt, result.is_ok());
                result
            }
        }
    };
    let config = || {
        let mut config = RetryingConfig::new("workers").policy(policy());
        config.commit_interval = Duration::from_millis(200);
        config
    };
    let mut stays = Some(run(&client, config(), "events", handler.clone()));
    for life in 0..5 {
        let crashes = run(&client, config(), "events", handler.clone());
        let before = runs.runs.borrow().len();
        runs.until(|runs| runs.len() >= before + 30 || runs.iter().filter(|run| run.ok).count() >= 180).await;
        crashes.crash().await;
        if life == 1 {
            // With a broker down none can be made, and all waits for it: another test tells of that.
            let made = ["events.retry.1s", "events.retry.2s", "events.workers.dlq"];
            eventually("every topic that records are set aside in is there", async || {
                let there = Admin::new(&client).list_topics().await.ok()?;
                made.iter().all(|name| there.iter().any(|topic| topic.name == *name)).then_some(())
            })
            .await;
            fleet.kill(1);
        }
        if life == 2 {
            stays.replace(run(&client, config(), "events", handler.clone())).expect("it ran").crash().await;
        }
    }
    fleet.restart(1).await;
    let expected_dead: BTreeSet<String> =
        (0..RECORDS).filter(|n| matches!(n % 12, 0 | 2)).map(|n| n.to_string()).collect();
    let dead = eventually("what never succeeds is dead", async || {
        let dead = contents(&client, "events.workers.dlq").await;
        let there: BTreeSet<String> = dead.iter().map(value).collect();
        (there.len() >= expected_dead.len()).then_some(dead)
    })
    .await;
    let expected_ok: BTreeSet<String> =
        (0..RECORDS).map(|n| n.to_string()).filter(|n| !expected_dead.contains(n)).collect();
    let ok = |runs: &Vec<Run>| -> BTreeSet<String> {
        runs.iter().filter(|run| run.ok).map(|run| value(&run.attempt.record)).collect()
    };
    let all = runs.until(|runs| ok(runs).len() >= expected_ok.len()).await;
    assert_eq!(ok(&all), expected_ok);
    assert_eq!(dead.iter().map(value).collect::<BTreeSet<String>>(), expected_dead);
    // Copies may be there twice; their event ids say so.
    let ids: BTreeSet<String> = dead.iter().map(event_id).collect();
    assert_eq!(ids.len(), expected_dead.len());
    for copy in &dead {
        let set_aside = SetAside::read(copy).expect("it is a copy");
        assert_eq!(set_aside.error.text, value(copy));
        assert_eq!((&*set_aside.original.topic, set_aside.group.as_str()), ("events", "workers"));
    }
    println!("{} runs for {RECORDS} records, {} dead letters of {}", all.len(), dead.len(), ids.len());
    stays.expect("one stays").close().await;
    fleet.stop().await;
}

/// A broker is down when the first record fails: its delay topic cannot have as many copies as the topic, and that passes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_whose_delay_topic_cannot_be_made_while_a_broker_is_down_waits_for_the_broker() {
    let mut fleet = Fleet::start(&FleetOptions::new(3)).await.expect("every machine has what it takes");
    let client = fleet.connect().await;
    topic(&client, "events", 1).await;
    let producer = Producer::new(&client, ProducerConfig::default()).expect("the defaults are valid");
    producer.send(ProducerRecord::new("events").value("1")).await.expect("there is room").await.expect("it is written");
    fleet.kill(2);
    eventually("the fleet knows that a broker is down", async || {
        let described = Admin::new(&client).describe_cluster().await.ok()?;
        (described.brokers.len() == 2).then_some(())
    })
    .await;
    let runs = Runs::new();
    let handler = {
        let runs = runs.clone();
        move |attempt: Attempt| {
            let first = attempt.number <= 2;
            runs.add(attempt, !first);
            async move { if first { Err(HandlerError::transient("NotYet", "it is not time")) } else { Ok(()) } }
        }
    };
    let consumer = run(&client, RetryingConfig::new("workers").policy(policy()), "events", handler);
    runs.until(|runs| runs.len() == 2).await;
    assert!(consumer.control.paused().is_empty(), "nobody has to look at it");
    fleet.restart(2).await;
    let all = runs.until(|runs| runs.len() == 3).await;
    assert_eq!(values(&all), [("1".to_owned(), false), ("1".to_owned(), false), ("1".to_owned(), true)]);
    let delay = Admin::new(&client).describe_topic("events.retry.1s").await.expect("it was made");
    assert_eq!(delay.partitions[0].replicas.len(), 3);
    consumer.close().await;
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_strict_consumer_lets_nothing_overtake_a_record_that_fails_until_it_is_told_to_go_on() {
    let fleet = Fleet::start(&FleetOptions::new(3)).await.expect("every machine has what it takes");
    let client = fleet.connect().await;
    topic(&client, "ledger", 2).await;
    let producer = Producer::new(&client, ProducerConfig::default()).expect("the defaults are valid");
    for n in 0..40 {
        let record = ProducerRecord::new("ledger").partition(n % 2).value(n.to_string());
        producer.send(record).await.expect("there is room");
    }
    producer.flush().await;
    let mended = Arc::new(AtomicBool::new(false));
    let handler = |runs: &Runs| {
        let (runs, mended) = (runs.clone(), Arc::clone(&mended));
        move |attempt: Attempt| {
            let fails = value(&attempt.record) == "20" && !mended.load(Ordering::SeqCst);
            runs.add(attempt, !fails);
            async move { if fails { Err(HandlerError::transient("Locked", "the account is locked")) } else { Ok(()) } }
        }
    };
    let policy = RetryPolicy { when_failing: millpond_sdk::retries::WhenFailing::Pause, ..policy() };
    let runs = Runs::new();
    let consumer = run(&client, RetryingConfig::new("books").policy(policy.clone()), "ledger", handler(&runs));
    let paused = timeout(PATIENCE, consumer.control.wait_until(|paused| !paused.is_empty())).await.expect("it pauses");
    assert_eq!((paused.len(), &paused[0].partition, paused[0].offset.0), (1, &TopicPartition::new("ledger", 0), 10));
    assert_eq!((paused[0].error.class.as_str(), paused[0].error.text.as_str()), ("Locked", "the account is locked"));
    let of = |runs: &[Run], partition| -> Vec<(String, bool)> {
        values(&runs.iter().filter(|run| run.attempt.record.partition == partition).cloned().collect::<Vec<Run>>())
    };
    runs.until(|runs| of(runs, 1).len() == 20).await;
    // Stopped and started again, it begins with the same record.
    consumer.close().await;
    let before = runs.until(|_| true).await;
    let good = |range: std::ops::Range<u32>| range.step_by(2).map(|n| (n.to_string(), true)).collect::<Vec<_>>();
    let twice = || vec![("20".to_owned(), false); 2];
    assert_eq!(of(&before, 0), [good(0..20), twice()].concat(), "two tries, and nothing behind it");

    let runs = Runs::new();
    let consumer = run(&client, RetryingConfig::new("books").policy(policy), "ledger", handler(&runs));
    timeout(PATIENCE, consumer.control.wait_until(|paused| !paused.is_empty())).await.expect("it pauses again");
    assert_eq!(of(&runs.until(|_| true).await, 0), twice());
    // Told to go on, it tries again, and pauses again.
    let told = TopicPartition::new("ledger", 0);
    consumer.control.resume(&told);
    runs.until(|runs| runs.len() == 4).await;
    timeout(PATIENCE, consumer.control.wait_until(|paused| !paused.is_empty())).await.expect("it pauses once more");
    mended.store(true, Ordering::SeqCst);
    consumer.control.resume(&told);
    let all = runs.until(|runs| of(runs, 0).len() == 14).await;
    assert_eq!(of(&all, 0), [twice(), twice(), good(20..40)].concat());
    assert_eq!(of(&all, 1), [], "that partition was done and committed before");
    timeout(PATIENCE, consumer.control.wait_until(<[_]>::is_empty)).await.expect("nothing waits any more");
    let topics = Admin::new(&client).list_topics().await.expect("a broker answers");
    assert_eq!(topics.len(), 1, "nothing was set aside");
    consumer.close().await;
    fleet.stop().await;
}
