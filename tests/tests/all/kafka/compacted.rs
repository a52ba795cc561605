//! A log that compaction has gone over, as clients read it that know nothing of it: batches with holes, batches without records, delete
//! horizons, and transactions whose markers are gone (rule C2, case C9). One log for all of them.

use super::cluster::{Brokers, Cluster, with_one_broker_and_with_three};
use super::programs::{Client, Program, output};
use super::wire::{Connection, batches};
use millpond_log::Batch;
use millpond_log::codec::Codec;
use millpond_sdk::{
    Admin, Client as Sdk, Delivery, IsolationLevel, Offset, OffsetSpec, Producer, ProducerConfig, ProducerRecord,
    TimestampMs, TransactionalConfig, TransactionalProducer,
};
use millpond_tests::tools::{Tool, skip};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::process::Command;
use tokio::time::timeout;

with_one_broker_and_with_three! {
    clients_read_a_compacted_log_to_its_end: is_read;
}

const TOPIC: &str = "compacted";

/// Key of the record that is written once all have read the others; the program of Go ends with it.
const LAST: &str = "last";

const FIRST_TIME: i64 = 1_700_000_000_000;

/// Nothing that is waited for takes so long, unless it never comes.
const PATIENCE: Duration = Duration::from_secs(60);

struct Line {
    offset: Offset,
    value: Option<String>,
    time: i64,
}

/// The log as it is written, and what should be left of it.
struct Log<'a> {
    cluster: &'a Cluster,
    client: Sdk,
    written: i64,
    /// The newest committed record of each key.
    newest: BTreeMap<String, Line>,
}

impl Log<'_> {
    /// A producer of its own, which sends in one batch what it is given in one go.
    fn producer(&self, compression: Codec) -> Producer {
        let linger = Duration::from_millis(50);
        let config = ProducerConfig { compression, linger, ..ProducerConfig::default() };
        Producer::new(&self.client, config).expect("good settings")
    }

    /// Writes these, and waits until they are there.
    async fn put(
        &mut self,
        counts: bool,
        rows: &[(&str, Option<&str>)],
        mut send: impl AsyncFnMut(ProducerRecord) -> Delivery,
    ) {
        let mut sent = Vec::new();
        for (key, value) in rows {
            let time = FIRST_TIME + self.written;
            self.written += 1;
            let record = ProducerRecord::new(TOPIC).partition(0).key((*key).to_owned()).timestamp(TimestampMs(time));
            let record = value.iter().fold(record, |record, value| record.value((*value).to_owned()));
            sent.push((*key, *value, time, send(record).await));
        }
        for (key, value, time, delivery) in sent {
            let offset = delivery.await.expect("it is acknowledged").offset.expect("it is new");
            if counts {
                self.newest.insert(key.to_owned(), Line { offset, value: value.map(str::to_owned), time });
            }
        }
    }

    async fn write(&mut self, producer: &Producer, rows: &[(&str, Option<&str>)]) {
        self.put(true, rows, async |record| producer.send(record).await.expect("it is taken")).await;
    }

    /// Writes these in one transaction, and waits until its marker is there.
    async fn transact(&mut self, id: &str, commits: bool, rows: &[(&str, Option<&str>)]) {
        let producer = TransactionalProducer::new(&self.client, TransactionalConfig::new(id)).await;
        let mut producer = producer.expect("it is taken");
        producer.begin().expect("none is open");
        self.put(commits, rows, async |record| producer.send(record).await.expect("it is taken")).await;
        match commits {
            true => producer.commit().await.expect("it is committed"),
            false => producer.abort().await.expect("it is aborted"),
        }
        let ended = async {
            while self.end(IsolationLevel::ReadCommitted).await < self.end(IsolationLevel::ReadUncommitted).await {}
        };
        timeout(PATIENCE, ended).await.expect("a marker follows");
    }

    async fn end(&self, isolation: IsolationLevel) -> Offset {
        let found = Admin::new(&self.client).list_offset_seen_by(isolation, TOPIC, 0, OffsetSpec::Latest).await;
        found.expect("it is led").expect("every log has an end").offset
    }

    async fn flush(&self) {
        Admin::new(&self.client).flush_topic(TOPIC).await.expect("it goes to the bucket");
    }

    /// All batches, as a fetch shows them.
    async fn batches(&self) -> Vec<Batch> {
        let (_, leader) = self.cluster.leader(TOPIC, 0).await;
        let mut connection = Connection::to(&leader).await;
        let mut all: Vec<Batch> = Vec::new();
        loop {
            let next = all.last().map_or(0, |last| last.end_offset().0.cast_signed());
            let more = batches(&connection.fetch(TOPIC, 0, next).await);
            if more.is_empty() {
                return all;
            }
            all.extend(more);
        }
    }

    /// Waits until compaction has left one record of each key, and this holds.
    async fn compacted(&self, what: &str, holds: impl Fn(&[Batch]) -> bool) -> Vec<Batch> {
        self.flush().await;
        let compacted = async {
            loop {
                let all = self.batches().await;
                let data = all.iter().filter(|batch| !batch.is_control());
                let left = data.map(|batch| batch.record_count() as usize).sum::<usize>();
                if left == self.newest.len() && holds(&all) {
                    return all;
                }
            }
        };
        timeout(PATIENCE, compacted).await.unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"))
    }

    /// What a reader of committed records sees, in order: `OFFSET KEY VALUE TIME`.
    fn lines(&self) -> Vec<String> {
        let lines: BTreeSet<(Offset, String)> =
            self.newest.iter().map(|(key, line)| (line.offset, shown(key, line))).collect();
        lines.into_iter().map(|(_, line)| line).collect()
    }
}

fn shown(key: &str, line: &Line) -> String {
    let value = line.value.as_deref().unwrap_or("NULL");
    format!("{}\t{key}\t{value}\t{}", line.offset.0, line.time)
}

/// Writes and has compacted, until all is there that compaction makes of a log; at its end is a batch without records.
async fn written(cluster: &Cluster) -> Log<'_> {
    let eager = [("cleanup.policy", "compact"), ("min.cleanable.dirty.ratio", "0"), ("delete.retention.ms", "5000")];
    cluster.create(TOPIC, 1, &eager).await;
    let mut log = Log { cluster, client: cluster.connect().await, written: 0, newest: BTreeMap::new() };
    for codec in [Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
        let producer = log.producer(codec);
        let value = format!("by {} and so on", codec.name()).repeat(10);
        let own: Vec<String> = (0..4).map(|nth| format!("{}-{nth}", codec.name())).collect();
        let rows = own.iter().zip(["k0", "k1", "k2", "k3"]);
        let rows: Vec<_> = rows.flat_map(|(own, all)| [(all, Some(&*value)), (&**own, Some(&*value))]).collect();
        log.write(&producer, &rows).await;
        log.flush().await;
    }
    let producer = log.producer(Codec::Lz4);
    log.transact("stays", true, &[("t0", Some("1")), ("t1", Some("1"))]).await;
    log.transact("aborted", false, &[("t0", Some("2")), ("k0", Some("2")), ("x", Some("2"))]).await;
    log.transact("covered", true, &[("u0", Some("1")), ("u1", Some("1"))]).await;
    log.write(&producer, &[("u0", Some("2")), ("u1", Some("2")), ("k0", None), ("k1", None)]).await;
    log.transact("deletes", true, &[("k2", None), ("k3", None)]).await;
    let covered = log.producer(Codec::Gzip);
    log.write(&covered, &[("v0", Some("1")), ("v1", Some("1"))]).await;
    log.write(&producer, &[("v0", Some("2")), ("v1", Some("2"))]).await;
    log.transact("at the end", false, &[("v0", Some("3")), ("x", Some("3"))]).await;
    let has_horizon = |all: &[Batch], is_control| {
        all.iter().any(|batch| batch.is_control() == is_control && batch.delete_horizon().is_some())
    };
    let of_both = |all: &[Batch]| has_horizon(all, false) && has_horizon(all, true);
    log.compacted("tombstones and markers have horizons", of_both).await;

    // The marker of those that deleted gets its horizon when they go, and keeps it.
    let late = BTreeMap::from([("delete.retention.ms".to_owned(), Some("3600000".to_owned()))]);
    Admin::new(&log.client).alter_topic(TOPIC, late).await.expect("it is a setting");
    for gone in ["k0", "k1", "k2", "k3"] {
        log.newest.remove(gone);
    }
    let ends_empty = |all: &[Batch]| of_both(all) && all.last().is_some_and(|batch| batch.record_count() == 0);
    let all = log.compacted("the log ends without a record", ends_empty).await;

    let is_sparse = |batch: &Batch| batch.record_count() > 0 && batch.record_count() < batch.offset_span();
    for codec in [Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
        assert!(all.iter().any(|batch| is_sparse(batch) && batch.codec() == Some(codec)), "{}", codec.name());
    }
    let of_producer = |batch: &Batch| batch.record_count() == 0 && batch.producer().is_some();
    assert!(all.iter().any(of_producer), "for the sequence of a producer");
    assert!(all.windows(2).any(|pair| pair[0].end_offset() < pair[1].base_offset()), "and between batches are holes");
    log
}

/// Those that tell where they stand once they are at the end.
fn readers(bootstrap: &str) -> Result<Vec<(&'static str, Command)>, String> {
    let mut kcat = Command::new(Tool::Kcat.find()?);
    kcat.args(["-b", bootstrap, "-C", "-t", TOPIC, "-p", "0", "-o", "beginning", "-e", "-Z", "-f", "%o\t%k\t%s\t%T\n"]);
    kcat.args(["-X", "isolation.level=read_committed", "-X", "check.crcs=true"]);
    let mut readers = vec![("kcat", kcat)];
    for client in ["confluent", "kafka", "aiokafka"] {
        readers.push((client, Program::Python("compacted.py").command(bootstrap, &["@", client, TOPIC])?));
    }
    readers.push(("java", Program::Java("Compacted.java").command(bootstrap, &["@", TOPIC])?));
    Ok(readers)
}

/// Those that do not, and read on until the last record.
fn followers(bootstrap: &str) -> Result<Vec<(&'static str, Command)>, String> {
    Ok(vec![
        ("franz-go", Program::Go.command(bootstrap, &["franz", "@", "compacted"])?),
        ("sarama", Program::Go.command(bootstrap, &["sarama", "@", "compacted"])?),
        ("kafkajs", Program::KafkaJs("compacted.js").command(bootstrap, &["@", TOPIC])?),
    ])
}

/// Reads by a tool of Kafka's, as a member of a group: it ends when nothing has come for a while, and commits where it stands.
fn console(bootstrap: &str) -> Result<[Command; 2], String> {
    let archives = Tool::KafkaPrograms.find()?;
    let start = |class: &str| {
        let mut command = Command::new("java");
        command.args(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]);
        command.arg("-cp").arg(archives.join("*")).arg(class).args([
            "--bootstrap-server",
            bootstrap,
            "--group",
            "console",
        ]);
        command
    };
    let mut read = start("org.apache.kafka.tools.consumer.ConsoleConsumer");
    read.args(["--topic", TOPIC, "--from-beginning", "--isolation-level", "read_committed", "--timeout-ms", "8000"]);
    for property in ["print.offset=true", "print.key=true", "print.timestamp=true", "null.literal=NULL"] {
        read.args(["--formatter-property", property]);
    }
    let mut describe = start("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand");
    describe.arg("--describe");
    Ok([read, describe])
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

async fn console_reads(bootstrap: &str, lines: &[String], end: Offset) {
    let [read, describe] = console(bootstrap).expect("it was found");
    let said = text(&output(read, b"").await.stdout);
    let found = said.lines().map(|line| {
        let words: Vec<&str> = line.split('\t').collect();
        let [time, offset, key, value] = words[..] else { panic!("{line}") };
        let (time, offset) = (time.strip_prefix("CreateTime:"), offset.strip_prefix("Offset:"));
        [offset.expect("an offset"), key, value, time.expect("a time")].join("\t")
    });
    assert_eq!(found.collect::<Vec<_>>(), lines, "the console's consumer");
    let said = text(&output(describe, b"").await.stdout);
    let row = said.lines().find(|line| line.starts_with("console ")).unwrap_or_else(|| panic!("{said}"));
    let columns: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(columns[3..6], [&*end.0.to_string(), &*end.0.to_string(), "0"], "{said}");
}

async fn others_read(bootstrap: &str, lines: &[String], end: Offset) {
    let expected: Vec<String> = lines.iter().cloned().chain([format!("end {}", end.0)]).collect();
    for (client, command) in readers(bootstrap).expect("they were found") {
        let said = output(command, b"").await;
        let mut found: Vec<String> = text(&said.stdout).lines().map(str::to_owned).collect();
        if client == "kcat" {
            let errors = text(&said.stderr);
            let end = errors.split("at offset ").nth(1).and_then(|rest| rest.split(':').next());
            found.push(format!("end {}", end.unwrap_or_else(|| panic!("{errors}"))));
        }
        assert_eq!(found, expected, "{client}");
    }
}

async fn is_read(test: &str, brokers: Brokers) {
    // Before brokers are started for nothing.
    if let Err(why) = readers("").and(followers("")).map(drop).and(console("").map(drop)) {
        return skip(test, &why);
    }
    let cluster = Cluster::start(brokers).await;
    let bootstrap = &*cluster.bootstrap;
    let mut log = written(&cluster).await;
    let (lines, end) = (log.lines(), log.end(IsolationLevel::ReadUncommitted).await);
    assert_eq!(log.end(IsolationLevel::ReadCommitted).await, end);
    tokio::join!(console_reads(bootstrap, &lines, end), others_read(bootstrap, &lines, end));

    let started = followers(bootstrap).expect("they were found").into_iter();
    let mut following: Vec<(&str, Client)> = started.map(|(name, command)| (name, Client::start(command))).collect();
    for (name, client) in &mut following {
        for line in &lines {
            assert_eq!(&client.goes_on().await, line, "{name}");
        }
    }
    let producer = log.producer(Codec::None);
    log.write(&producer, &[(LAST, Some("1"))]).await;
    let last = shown(LAST, &log.newest[LAST]);
    for (name, client) in following {
        assert_eq!(client.end().await, last, "{name}");
    }
    drop(log);
    cluster.stop().await;
}
