//! Disks that lost something under a stopped broker: what it says, what it still serves, and what accepting the loss brings back
//! (rules B1a, B4, E7, F4, R12, W4; case S12). Against the real binary.

use crate::commands::{fail, run, succeed};
use millpond_sdk::{
    Admin, Client, Consumer, ConsumerConfig, NewTopic, Offset, Producer, ProducerConfig, ProducerRecord, StartAt,
    TopicPartition,
};
use millpond_tests::broker::{TestBroker, config};
use millpond_tests::process::{Dev, DevOptions, binary};
use object_store::ObjectStore;
use object_store::memory::InMemory;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

pub(crate) const TOPIC: &str = "orders";

/// A `millpond dev` that can be stopped and started again on the same folder.
pub(crate) struct Bench {
    folder: TempDir,
    options: DevOptions,
}

impl Bench {
    pub(crate) fn new() -> Bench {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let options = DevOptions::new(folder.path());
        Bench { folder, options }
    }

    pub(crate) fn start(&self) -> Dev {
        Dev::start(&self.options)
    }

    /// What a broker keeps on its own disk.
    pub(crate) fn disk(&self) -> PathBuf {
        self.folder.path().join("broker-0")
    }

    /// The WAL's files, by number.
    fn wal_files(&self) -> Vec<PathBuf> {
        let listed = fs::read_dir(self.disk().join("wal")).expect("there is a WAL");
        let mut files: Vec<PathBuf> = listed.map(|entry| entry.expect("it can be listed").path()).collect();
        files.retain(|path| path.extension().is_some_and(|extension| extension == "wal"));
        files.sort();
        assert!(!files.is_empty(), "the WAL has files");
        files
    }

    /// Flips one bit in the only place of the WAL that holds `text`. Returns the file and the position.
    fn damage(&self, text: &str) -> (PathBuf, u64) {
        let mut places = Vec::new();
        for path in self.wal_files() {
            let bytes = fs::read(&path).expect("it can be read");
            let found = bytes.windows(text.len()).enumerate().filter(|(_, window)| *window == text.as_bytes());
            places.extend(found.map(|(at, window)| (path.clone(), at as u64, window[0])));
        }
        let [(path, at, byte)] = &places[..] else { panic!("`{text}` is in {} places", places.len()) };
        let file = File::options().write(true).open(path).expect("it can be written");
        file.write_all_at(&[byte ^ 1], *at).expect("it can be written");
        (path.clone(), *at)
    }
}

/// Copies a folder without the blocks that hold nothing, of which a WAL has many.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("there is room");
    for entry in fs::read_dir(from).expect("it can be listed") {
        let (from, to) = { (entry.as_ref().expect("listed").path(), to.join(entry.expect("listed").file_name())) };
        if from.is_dir() {
            copy(&from, &to);
            continue;
        }
        let (mut source, mut target) = (File::open(&from).expect("readable"), File::create(&to).expect("new"));
        let mut block = vec![0; 1 << 20];
        loop {
            let count = source.read(&mut block).expect("readable");
            if count == 0 {
                break;
            }
            if block[..count].iter().all(|byte| *byte == 0) {
                target.seek(SeekFrom::Current(count as i64)).expect("a position");
            } else {
                target.write_all(&block[..count]).expect("there is room");
            }
        }
        target.set_len(source.metadata().expect("it exists").len()).expect("there is room");
    }
}

/// Puts a copy in the place of a broker's disk.
fn restore(copied: &Path, disk: &Path) {
    fs::remove_dir_all(disk).expect("it was there");
    copy(copied, disk);
}

pub(crate) async fn create(client: &Client, partitions: u32) {
    let mut topic = NewTopic::new(TOPIC);
    topic.partitions = Some(partitions);
    Admin::new(client).create_topic(topic).await.expect("the topic is new");
}

/// The value of a record. Each stands in the WAL once, and is not compressed.
fn value(era: &str, partition: u32, number: u64) -> String {
    format!("{era}-{partition}-{number:05}.")
}

/// Sends records one by one, so that each has a frame and a sync of its own; each lands at the offset of its number.
pub(crate) async fn publish(client: &Client, era: &str, partition: u32, numbers: Range<u64>) {
    let producer = Producer::new(client, ProducerConfig::default()).expect("the defaults are sound");
    for number in numbers {
        let record = ProducerRecord::new(TOPIC).partition(partition).value(value(era, partition, number));
        let delivery = producer.send(record).await.expect("there is room");
        let written = delivery.await.expect("acknowledged");
        assert_eq!(written.offset, Some(Offset(number)), "{era}");
    }
    producer.close().await;
}

/// The values at `0..count`. Waits for that many; where more could be read, they are ignored.
async fn read(client: &Client, partition: u32, count: u64) -> Vec<String> {
    let mut consumer = Consumer::new(client, ConsumerConfig::default());
    consumer.assign([(TopicPartition::new(TOPIC, partition), StartAt::Earliest)]).await.expect("it can be read");
    let mut values = Vec::new();
    while (values.len() as u64) < count {
        let records = consumer.poll(Duration::from_secs(20)).await.expect("it can be read");
        assert!(!records.is_empty(), "only {} of {count} can be read", values.len());
        for record in records {
            assert_eq!(record.offset, Offset(values.len() as u64), "none skipped, none repeated");
            values.push(String::from_utf8(record.value.expect("not null").to_vec()).expect("text"));
        }
    }
    values.truncate(count as usize);
    values
}

fn values(era: &str, partition: u32, numbers: Range<u64>) -> Vec<String> {
    numbers.map(|number| value(era, partition, number)).collect()
}

fn json_of(dev: &Dev, arguments: &[&str]) -> Value {
    let printed = succeed(dev, &[arguments, &["--output", "json"]].concat(), b"");
    serde_json::from_str(&printed).expect("it is JSON")
}

/// The state of a partition, as `topic describe` tells it.
pub(crate) fn state(dev: &Dev, partition: usize) -> Value {
    json_of(dev, &["topic", "describe", TOPIC])["partitions"][partition].clone()
}

fn accept(dev: &Dev, partition: u32) -> Value {
    json_of(dev, &["partition", "accept-loss", &format!("{TOPIC}:{partition}"), "--yes"])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_frame_costs_what_follows_it_and_the_rest_comes_back_when_the_loss_is_accepted() {
    let bench = Bench::new();
    let dev = bench.start();
    let client = Client::connect(&dev.grpc).await.expect("the broker is up");
    create(&client, 3).await;
    publish(&client, "a", 0, 0..20).await;
    Admin::new(&client).flush_topic(TOPIC).await.expect("the object store is there");
    publish(&client, "a", 0, 20..60).await;
    publish(&client, "a", 1, 0..10).await;
    let epoch_before = state(&dev, 0)["leader_epoch"].as_u64().expect("a number");
    dev.kill();
    let (file, at) = bench.damage(&value("a", 0, 40));

    // The process runs; what needs the lost copy is refused with the file, the place and what is lost.
    let dev = bench.start();
    let client = Client::connect(&dev.grpc).await.expect("the broker is up");
    let damaged = state(&dev, 0);
    let loss = &damaged["loss"];
    assert_eq!((&damaged["leader"], &damaged["isr"]), (&Value::Null, &json!([])), "rules B4 and K2");
    assert_eq!((&loss["end"], &loss["known_end"]), (&json!(40), &json!(60)), "exactly what is lost");
    assert_eq!(loss["file"], file.to_str().expect("text"));
    let position = loss["position"].as_u64().expect("a number");
    assert!((1..400).contains(&(at - position)), "the frame at {position} is the one around {at}");
    assert_eq!(loss["command"], "millpond partition accept-loss orders:0 --yes");
    // Its neighbour stood on the same disk, and is whole; that, too, is for the operator to say.
    let whole = state(&dev, 1);
    assert_eq!(whole["leader"], Value::Null, "rule K2: another wal_gen is another replica");
    assert_eq!((&whole["loss"]["end"], &whole["loss"]["known_end"]), (&json!(10), &json!(10)));
    let text = succeed(&dev, &["topic", "describe", TOPIC], b"");
    assert!(text.contains("the 20 offsets 40 to 59 are lost"), "{text}");
    let cluster = json_of(&dev, &["cluster", "describe"]);
    assert_eq!((cluster["lost"].as_array().map(Vec::len), &cluster["lost"][0]["loss"]), (Some(3), loss));

    // Rule F4: what is in object storage can be read.
    assert_eq!(read(&client, 0, 20).await, values("a", 0, 0..20));
    let produce = ["produce", TOPIC, "--partition", "0", "--delivery-timeout", "1s"];
    let refused = fail(&dev, &produce, b"x\n");
    assert!(refused.contains("accept-loss orders:0 --yes") && refused.contains("offsets 40 to 59"), "{refused}");
    // The broker serves whatever does not need it.
    assert_eq!(succeed(&dev, &["produce", "others"], b"1\n2\n"), "2 records\n");
    assert_eq!(succeed(&dev, &["consume", "others", "--until-end"], b""), "1\n2\n");
    assert!(fail(&dev, &["partition", "accept-loss", "others:0", "--yes"], b"").contains("lost nothing"));

    // Nothing changes without --yes.
    let dry = json_of(&dev, &["partition", "accept-loss", "orders:0"]);
    assert_eq!((&dry["accepted"], &dry["partitions"][0]["loss"]), (&json!(false), loss));
    assert_eq!(state(&dev, 0), damaged);

    let accepted = accept(&dev, 0);
    let epoch = accepted["partitions"][0]["leader_epoch"].as_u64().expect("a number");
    assert_eq!(epoch, epoch_before + 1, "rule E7");
    assert_eq!(read(&client, 0, 40).await, values("a", 0, 0..40), "all before the damage is there");
    publish(&client, "b", 0, 40..45).await;
    let after = state(&dev, 0);
    assert_eq!((&after["leader"], &after["loss"], &after["high_watermark"]), (&json!(0), &Value::Null, &json!(45)));
    dev.kill();

    // It is accepted for good, also for the WAL; what was not accepted still waits.
    let dev = bench.start();
    let client = Client::connect(&dev.grpc).await.expect("the broker is up");
    let all = [values("a", 0, 0..40), values("b", 0, 40..45)].concat();
    assert_eq!(read(&client, 0, 45).await, all);
    assert_eq!(state(&dev, 1)["leader"], Value::Null);
    let rest = json_of(&dev, &["partition", "accept-loss", "--all", "--yes"]);
    assert_eq!(rest["partitions"].as_array().map(Vec::len), Some(2));
    assert_eq!(read(&client, 1, 10).await, values("a", 1, 0..10), "nothing was lost");
    publish(&client, "b", 1, 10..12).await;
    publish(&client, "b", 2, 0..2).await;
    let none = succeed(&dev, &["partition", "accept-loss", "--all", "--yes"], b"");
    assert_eq!(none, "no partition waits for a loss to be accepted\n");
    // What replaced the lost records goes the way of all records.
    Admin::new(&client).flush_topic(TOPIC).await.expect("the object store is there");
    assert_eq!(read(&client, 0, 45).await, all);
    dev.stop();
    let dev = bench.start();
    let client = Client::connect(&dev.grpc).await.expect("the broker is up");
    assert_eq!(read(&client, 0, 45).await, all);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_torn_tail_is_no_loss() {
    let bench = Bench::new();
    let dev = bench.start();
    let client = Client::connect(&dev.grpc).await.expect("the broker is up");
    create(&client, 1).await;
    publish(&client, "a", 0, 0..30).await;
    dev.kill();
    // A group that was being written when the power went: its first half, after the last group that was synced.
    let file = bench.wal_files().remove(0);
    let bytes = fs::read(&file).expect("it can be read");
    let end = bytes.iter().rposition(|byte| *byte != 0).expect("something is written").next_multiple_of(4096);
    let from = bytes.windows(value("a", 0, 29).len()).position(|window| window == value("a", 0, 29).as_bytes());
    let from = from.expect("it was written") / 4096 * 4096;
    let torn = File::options().write(true).open(&file).expect("it can be written");
    torn.write_all_at(&bytes[from..from + 150], end as u64).expect("it can be written");

    let dev = bench.start();
    let client = Client::connect(&dev.grpc).await.expect("the broker is up");
    let whole = state(&dev, 0);
    assert_eq!((&whole["leader"], &whole["loss"]), (&json!(0), &Value::Null), "rule W4: a torn group is no damage");
    assert_eq!(read(&client, 0, 30).await, values("a", 0, 0..30));
    publish(&client, "a", 0, 30..32).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_snapshot_of_the_disk_is_another_replica_and_never_speaks_for_what_came_after_it() {
    let bench = Bench::new();
    let copies = tempfile::tempdir().expect("a temporary folder");
    let (older, newer) = (copies.path().join("older"), copies.path().join("newer"));
    let dev = bench.start();
    let client = Client::connect(&dev.grpc).await.expect("the broker is up");
    create(&client, 1).await;
    publish(&client, "a", 0, 0..10).await;
    Admin::new(&client).flush_topic(TOPIC).await.expect("the object store is there");
    publish(&client, "a", 0, 10..20).await;
    dev.stop();
    copy(&bench.disk(), &older);
    let dev = bench.start();
    let client = Client::connect(&dev.grpc).await.expect("the broker is up");
    publish(&client, "a", 0, 20..40).await;
    dev.stop();
    copy(&bench.disk(), &newer);

    // Rule B1a: the snapshot ends at 20, and does not know what is missing.
    restore(&older, &bench.disk());
    let dev = bench.start();
    let client = Client::connect(&dev.grpc).await.expect("the broker is up");
    let stale = state(&dev, 0);
    assert_eq!((&stale["leader"], &stale["loss"]["end"]), (&Value::Null, &json!(20)));
    let cause = stale["loss"]["cause"].as_str().expect("text");
    assert!(cause.contains("not the one that served it last"), "{cause}");
    assert_eq!(read(&client, 0, 10).await, values("a", 0, 0..10), "rule F4");
    accept(&dev, 0);
    assert_eq!(read(&client, 0, 20).await, values("a", 0, 0..20));
    publish(&client, "b", 0, 20..25).await;
    Admin::new(&client).flush_topic(TOPIC).await.expect("the object store is there");
    dev.stop();

    // Rule R12: the newer disk has other records at 20 to 24 than the manifest, and more after them: all of that is dropped.
    restore(&newer, &bench.disk());
    let dev = bench.start();
    let client = Client::connect(&dev.grpc).await.expect("the broker is up");
    let diverged = state(&dev, 0)["loss"].clone();
    assert_eq!(
        (&diverged["end"], &diverged["known_end"]),
        (&json!(25), &json!(25)),
        "its records are of another history"
    );
    let now = [values("a", 0, 0..20), values("b", 0, 20..25)].concat();
    assert_eq!(read(&client, 0, 25).await, now, "also before the loss is accepted");
    accept(&dev, 0);
    publish(&client, "c", 0, 25..27).await;
    assert_eq!(read(&client, 0, 27).await, [now.clone(), values("c", 0, 25..27)].concat());
    dev.kill();

    // The first snapshot ends before what is tiered by now: it adds nothing.
    restore(&older, &bench.disk());
    let dev = bench.start();
    let client = Client::connect(&dev.grpc).await.expect("the broker is up");
    assert_eq!(state(&dev, 0)["loss"]["end"], 25);
    accept(&dev, 0);
    assert_eq!(read(&client, 0, 25).await, now);
}

/// Rule B1a: a snapshot taken while the broker ran carries the incarnation that is registered; its position gives it away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_of_a_running_brokers_disk_is_told_by_its_position() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let copied = folder.path().join("copied");
    let mut config = config(&folder.path().join("data"));
    config.disk_note_interval = Duration::from_millis(5);
    let objects: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let broker = TestBroker::start(config.clone(), Arc::clone(&objects)).await;
    let client = Client::connect(broker.grpc()).await.expect("the broker is up");
    create(&client, 1).await;
    publish(&client, "a", 0, 0..10).await;
    copy(&config.data_dir.join("wal"), &copied);
    let before = broker.noted_position().await;
    publish(&client, "a", 0, 10..20).await;
    // It is noted while the broker runs, not only when it ends.
    tokio::time::timeout(Duration::from_secs(60), async {
        while broker.noted_position().await <= before {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("the position is noted");
    broker.stop().await;

    restore(&copied, &config.data_dir.join("wal"));
    let broker = TestBroker::start(config, objects).await;
    let client = Client::connect(broker.grpc()).await.expect("the broker is up");
    let admin = Admin::new(&client);
    let stale = admin.describe_topic(TOPIC).await.expect("it exists").partitions.remove(0);
    let loss = stale.loss.expect("rule B1a");
    assert_eq!(stale.leader, None);
    assert!(loss.cause.contains("but was durable up to"), "{loss}");
    assert!(loss.end >= Offset(10) && loss.end <= Offset(20), "what the copy caught: {loss}");
    assert!(admin.accept_loss(TOPIC, 0).await.expect("it is lost").leader_epoch.is_some());
    assert_eq!(read(&client, 0, 10).await, values("a", 0, 0..10));
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_disk_leaves_what_was_tiered_and_waits_for_the_operator() {
    let bench = Bench::new();
    let dev = bench.start();
    let client = Client::connect(&dev.grpc).await.expect("the broker is up");
    create(&client, 2).await;
    publish(&client, "a", 0, 0..10).await;
    Admin::new(&client).flush_topic(TOPIC).await.expect("the object store is there");
    publish(&client, "a", 0, 10..20).await;
    dev.kill();
    fs::remove_dir_all(bench.disk()).expect("it was there");

    let dev = bench.start();
    let client = Client::connect(&dev.grpc).await.expect("the broker is up");
    let wiped = state(&dev, 0);
    assert_eq!((&wiped["leader"], &wiped["loss"]["end"]), (&Value::Null, &json!(10)));
    assert_eq!(wiped["loss"]["cause"], "the data directory was empty");
    // A partition that was never used cannot be told from one that lost everything.
    assert_eq!((&state(&dev, 1)["leader"], &state(&dev, 1)["loss"]["end"]), (&Value::Null, &json!(0)));
    assert_eq!(read(&client, 0, 10).await, values("a", 0, 0..10), "rule F4");
    // Not accepted, it waits over a restart too.
    dev.stop();
    let dev = bench.start();
    let client = Client::connect(&dev.grpc).await.expect("the broker is up");
    assert_eq!(state(&dev, 0)["loss"]["end"], 10);
    succeed(&dev, &["partition", "accept-loss", "orders:0", "orders:1", "--yes"], b"");
    assert_eq!(read(&client, 0, 10).await, values("a", 0, 0..10));
    publish(&client, "b", 0, 10..15).await;
    publish(&client, "b", 1, 0..5).await;
    dev.kill();
    let dev = bench.start();
    let client = Client::connect(&dev.grpc).await.expect("the broker is up");
    assert_eq!(read(&client, 0, 15).await, [values("a", 0, 0..10), values("b", 0, 10..15)].concat());
    assert_eq!(read(&client, 1, 5).await, values("b", 1, 0..5));
}

#[test]
fn mistaken_orders_change_nothing() {
    let bench = Bench::new();
    let dev = bench.start();
    succeed(&dev, &["topic", "create", TOPIC], b"");
    assert!(fail(&dev, &["partition", "accept-loss", "orders:0", "--yes"], b"").contains("lost nothing"));
    assert!(fail(&dev, &["partition", "accept-loss", "orders:7", "--yes"], b"").contains("there is no 7"));
    assert!(fail(&dev, &["partition", "accept-loss", "nothing:0"], b"").contains("nothing"));
    for wrong in [&["orders"][..], &["orders:x"], &[], &["orders:0", "--all"]] {
        let output = run(&dev, &[&["partition", "accept-loss"], wrong].concat(), b"");
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn a_second_process_on_a_data_directory_is_refused() {
    let bench = Bench::new();
    let _dev = bench.start();
    let metadata = format!("embedded:{}", bench.folder.path().join("metadata").display());
    let output = Command::new(binary())
        .args(["broker", "--id", "0", "--cluster", "dev", "--metadata", &metadata, "--object-store", "memory://"])
        .arg("--data-dir")
        .arg(bench.disk())
        .args(["--grpc-listen", "127.0.0.1:0", "--kafka-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"])
        .stdin(Stdio::null())
        .output()
        .expect("`millpond` starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("is in use by another process"), "{stderr}");
}

/// Brokers that share their metadata have nothing but the WAL's lock between them (rule B1).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_broker_on_a_wal_is_refused_and_the_first_goes_on() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config = config(folder.path());
    let broker = TestBroker::start(config.clone(), Arc::new(InMemory::new())).await;
    let refused = broker.start_another(config).await.err().expect("the WAL is locked");
    assert!(refused.contains("is in use by another process") && refused.contains("wal"), "{refused}");
    let client = Client::connect(broker.grpc()).await.expect("the broker is up");
    create(&client, 1).await;
    publish(&client, "a", 0, 0..3).await;
    broker.stop().await;
}
