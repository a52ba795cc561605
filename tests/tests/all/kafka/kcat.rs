//! kcat, with librdkafka 2.0 as Debian has it: each promise with one broker and with three.

use super::cluster::{Brokers, Cluster, with_one_broker_and_with_three};
use super::programs::{Client, run};
use super::wire::{Connection, batches};
use millpond_log::Batch;
use millpond_log::codec::Codec;
use millpond_tests::tools::{Tool, skip};
use std::path::{Path, PathBuf};
use tokio::process::Command;

/// Partitions of a topic: each of three brokers leads one.
const PARTITIONS: u32 = 3;

with_one_broker_and_with_three! {
    kcat_compresses_with_every_codec_and_reads_it_back: compresses;
    kcat_lists_the_cluster_and_asks_for_offsets: lists_and_asks;
    kcat_sends_headers_and_nulls_and_a_large_record_and_finds_records_by_time: sends_all_kinds;
    kcat_in_a_group_goes_on_where_it_was: goes_on_in_a_group;
    kcat_cooperative_member_never_gives_up_what_it_keeps: cooperates;
    kcat_static_member_comes_back_unnoticed: comes_back;
    kcat_writes_in_a_transaction_and_is_fenced: transacts;
}

/// kcat, told of the brokers.
struct Kcat {
    program: PathBuf,
    cluster: Cluster,
}

impl Kcat {
    /// `None` if it is not here, which was told.
    async fn start(test: &str, brokers: Brokers) -> Option<Kcat> {
        match Tool::Kcat.find() {
            Ok(program) => Some(Kcat { program, cluster: Cluster::start(brokers).await }),
            Err(why) => {
                skip(test, &why);
                None
            }
        }
    }

    /// Runs it to its end; what it wrote.
    async fn run(&self, arguments: &[&str], input: &[u8]) -> Vec<u8> {
        run(&self.program, &[&["-b", &*self.cluster.bootstrap][..], arguments].concat(), input).await.stdout
    }

    /// As `run` without input, for text.
    async fn says(&self, arguments: &[&str]) -> String {
        String::from_utf8(self.run(arguments, b"").await).expect("text")
    }

    /// Starts one that lasts. What it reports is among what it says.
    fn spawn(&self, arguments: &[&str]) -> Client {
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$0\" \"$@\" 2>&1"]).arg(&self.program).args(["-b", &self.cluster.bootstrap]);
        command.args(arguments);
        Client::start(command)
    }

    /// A member of a group that says what it is given and what it reads.
    fn member(&self, more: &[&str]) -> Client {
        let group = ["-G", "readers", "-u", "-X", "session.timeout.ms=10000", "-X", "heartbeat.interval.ms=500"];
        self.spawn(&[&group[..], more, &["t"]].concat())
    }

    async fn stop(self) {
        self.cluster.is_used_in_full().await;
        self.cluster.stop().await;
    }
}

/// About a megabyte of lines that compress, no two alike.
fn lines() -> String {
    (0..16_000).map(|number| format!("line {number} of a text that compresses, as text does, quite well\n")).collect()
}

async fn compresses(test: &str, brokers: Brokers) {
    let Some(kcat) = Kcat::start(test, brokers).await else { return };
    let text = lines();
    for (codec, number) in [Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd].into_iter().zip(0..) {
        let topic = format!("kcat-{}", codec.name());
        // `dev` lets kcat's own Metadata request make the topic, of one partition.
        let partition = match brokers {
            Brokers::One => 0,
            Brokers::Three => {
                kcat.cluster.create(&topic, PARTITIONS, &[]).await;
                number % PARTITIONS
            }
        };
        let place = partition.to_string();
        let produce = ["-P", "-t", &topic, "-p", &place, "-z", codec.name(), "-X", "acks=all"];
        kcat.run(&produce, text.as_bytes()).await;
        let (_, leader) = kcat.cluster.leader(&topic, partition).await;
        let stored = batches(&Connection::to(&leader).await.fetch(&topic, partition.cast_signed(), 0).await);
        assert!(!stored.is_empty());
        // librdkafka sends a batch as it is when compressing it gains nothing, as with one of a single line.
        let worth_it: Vec<&Batch> = stored.iter().filter(|batch| batch.record_count() > 100).collect();
        assert!(!worth_it.is_empty(), "a megabyte is more than single lines");
        for batch in worth_it {
            assert_eq!(batch.codec(), Some(codec), "case A3: {topic}");
        }
        let consume = ["-C", "-t", &topic, "-p", &place, "-o", "beginning", "-e", "-q", "-X", "check.crcs=true"];
        let read = kcat.run(&consume, b"").await;
        assert!(read == text.as_bytes(), "{topic}: {} bytes came back of {}", read.len(), text.len());
    }
    kcat.stop().await;
}

async fn lists_and_asks(test: &str, brokers: Brokers) {
    let Some(kcat) = Kcat::start(test, brokers).await else { return };
    kcat.cluster.create("t", PARTITIONS, &[]).await;
    kcat.run(&["-P", "-t", "t", "-p", "1", "-K", ":", "-X", "enable.idempotence=true"], b"a:1\nb:2\nc:3\n").await;
    let listed = kcat.says(&["-L"]).await;
    assert!(listed.contains("topic \"t\" with 3 partitions"), "{listed}");
    for broker in kcat.cluster.bootstrap.split(',') {
        assert!(listed.contains(broker), "{listed}");
    }
    for (query, answer) in [("t:1:-1", "t [1] offset 3"), ("t:1:-2", "t [1] offset 0"), ("t:0:-1", "t [0] offset 0")] {
        assert_eq!(kcat.says(&["-Q", "-t", query]).await.trim(), answer);
    }
    let keys = kcat.says(&["-C", "-t", "t", "-p", "1", "-o", "1", "-e", "-q", "-f", "%o %k=%s\n"]).await;
    assert_eq!(keys, "1 b=2\n2 c=3\n");
    kcat.stop().await;
}

async fn sends_all_kinds(test: &str, brokers: Brokers) {
    let Some(kcat) = Kcat::start(test, brokers).await else { return };
    kcat.cluster.create("t", PARTITIONS, &[]).await;
    kcat.cluster.create("large", PARTITIONS, &[("max.message.bytes", "10485760")]).await;
    for partition in ["0", "1", "2"] {
        let produce = ["-P", "-t", "t", "-p", partition, "-K", ":", "-Z", "-H", "h=1", "-H", "empty="];
        kcat.run(&produce, b"a:1\n").await;
        kcat.run(&produce, b"b:\n").await;
        let consume = ["-C", "-t", "t", "-p", partition, "-o", "beginning", "-e", "-q", "-f"];
        let read = async |format| kcat.says(&[&consume[..], &[format]].concat()).await;
        // A null value has the size -1.
        assert_eq!(read("%k=%s %S %h\n").await, "a=1 1 h=1,empty=\nb= -1 h=1,empty=\n");
        let last = read("%T\n").await.lines().last().map(str::to_owned).expect("two records");
        for (time, offset) in [("0", 0), (&*last, 1), ("99999999999999", -1)] {
            let found = kcat.says(&["-Q", "-t", &format!("t:{partition}:{time}")]).await;
            assert_eq!(found.trim(), format!("t [{partition}] offset {offset}"), "{time}");
        }
    }
    large(&kcat).await;
    kcat.stop().await;
}

async fn large(kcat: &Kcat) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = dir.path().join("large");
    let value: Vec<u8> = (0..3_u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(&file, &value).expect("there is room");
    let path = |file: &Path| file.to_str().expect("a path of text").to_owned();
    let place = ["-t", "large", "-p", "0", "-X", "message.max.bytes=10485760"];
    kcat.run(&[&place[..], &["-P", &path(&file)]].concat(), b"").await;
    let read = ["-C", "-o", "beginning", "-e", "-q", "-f", "%s", "-X", "fetch.message.max.bytes=10485760"];
    let read = kcat.run(&[&place[..], &read].concat(), b"").await;
    assert!(read == value, "{} bytes came back of {}", read.len(), value.len());
}

/// kcat's balanced consumer prints what it reads, commits when it ends, and goes on behind that the next time.
async fn goes_on_in_a_group(test: &str, brokers: Brokers) {
    let Some(kcat) = Kcat::start(test, brokers).await else { return };
    kcat.cluster.create("t", PARTITIONS, &[]).await;
    let read = async |count| {
        let said = kcat.says(&["-G", "readers", "-c", count, "-q", "-X", "auto.offset.reset=earliest", "t"]).await;
        let mut lines: Vec<String> = said.lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    for (partition, value) in [("0", "one\n"), ("1", "three\n"), ("2", "two\n")] {
        kcat.run(&["-P", "-t", "t", "-p", partition], value.as_bytes()).await;
    }
    assert_eq!(read("3").await, ["one", "three", "two"]);
    kcat.run(&["-P", "-t", "t", "-p", "2"], b"four\n").await;
    assert_eq!(read("1").await, ["four"]);
    kcat.stop().await;
}

/// Partitions that a line of a member tells of, if it tells of what was given or taken in these words.
fn told<'a>(line: &'a str, words: &str) -> Option<Vec<&'a str>> {
    let listed = line.strip_prefix("% Group ").filter(|line| line.contains(words))?.rsplit_once(": ")?.1;
    let mut told: Vec<&str> = listed.split(", ").filter(|partition| partition.starts_with("t [")).collect();
    told.sort_unstable();
    Some(told)
}

/// Waits until a member says in these words that it was given so many partitions at once; which.
async fn hears(member: &mut Client, words: &str, count: usize) -> Vec<String> {
    loop {
        let line = member.goes_on().await;
        if let Some(found) = told(&line, words).filter(|found| found.len() == count) {
            return found.into_iter().map(str::to_owned).collect();
        }
    }
}

async fn cooperates(test: &str, brokers: Brokers) {
    let Some(kcat) = Kcat::start(test, brokers).await else { return };
    kcat.cluster.create("t", 4, &[]).await;
    let how = ["-X", "partition.assignment.strategy=cooperative-sticky"];
    let (given, taken) = ("incremental assignment", "incremental revoke");
    let mut first = kcat.member(&how);
    hears(&mut first, given, 4).await;
    let mut second = kcat.member(&how);
    let gave = hears(&mut first, taken, 2).await;
    assert_eq!(hears(&mut second, given, 2).await, gave);
    second.terminate().await;
    // Nothing is taken from the first meanwhile.
    loop {
        let line = first.goes_on().await;
        assert_eq!(told(&line, taken), None, "{line}");
        if told(&line, given).is_some_and(|found| found == gave) {
            break;
        }
    }
    first.terminate().await;
    kcat.stop().await;
}

async fn comes_back(test: &str, brokers: Brokers) {
    let Some(kcat) = Kcat::start(test, brokers).await else { return };
    kcat.cluster.create("t", 4, &[]).await;
    let [mut one, mut two] = ["one", "two"].map(|name| kcat.member(&["-X", &format!("group.instance.id={name}")]));
    let had = hears(&mut one, "assigned", 2).await;
    let others = hears(&mut two, "assigned", 2).await;
    one.kill().await;
    let mut again = kcat.member(&["-X", "group.instance.id=one"]);
    assert_eq!(hears(&mut again, "assigned", 2).await, had);
    // The next that the other tells of is a record.
    let partition = others[0].trim_matches(|c: char| !c.is_ascii_digit());
    kcat.run(&["-P", "-t", "t", "-p", partition], b"a record\n").await;
    loop {
        let line = two.goes_on().await;
        assert!(!line.starts_with("% Group "), "{line}");
        if line == "a record" {
            break;
        }
    }
    again.kill().await;
    two.kill().await;
    kcat.stop().await;
}

/// What it reads until the end of its input is one transaction.
async fn transacts(test: &str, brokers: Brokers) {
    let Some(kcat) = Kcat::start(test, brokers).await else { return };
    kcat.cluster.create("t", PARTITIONS, &[]).await;
    let read = async |partition, isolation| {
        let isolation = format!("isolation.level={isolation}");
        kcat.says(&["-C", "-t", "t", "-p", partition, "-o", "beginning", "-e", "-q", "-X", &isolation]).await
    };
    let write = ["-P", "-t", "t", "-X", "transactional.id=writer", "-p"];
    let text = lines();
    let mut writer = kcat.spawn(&[&write[..], &["1"]].concat());
    writer.feed(text.as_bytes()).await;
    while read("1", "read_uncommitted").await.is_empty() {}
    assert_eq!(read("1", "read_committed").await, "", "it is open");
    writer.end().await;
    assert!(read("1", "read_committed").await == text, "it was committed");

    let mut older = kcat.spawn(&[&write[..], &["1"]].concat());
    older.feed(text.as_bytes()).await;
    while read("1", "read_uncommitted").await.len() <= text.len() {}
    kcat.run(&[&write[..], &["2"]].concat(), b"of the newer\n").await;
    let said = older.fails().await;
    assert!(said.contains("fenced"), "{said}");
    assert!(read("1", "read_committed").await == text, "what the older wrote was aborted");
    assert_eq!(read("2", "read_committed").await, "of the newer\n");
    kcat.stop().await;
}

/// What kcat has read, by partition.
#[derive(Default)]
struct Account {
    read: [Vec<u32>; PARTITIONS as usize],
}

impl Account {
    /// Reads until every partition has come to this number.
    async fn comes_to(&mut self, reader: &mut Client, number: u32) {
        while self.read.iter().any(|read| read.last().is_none_or(|last| *last < number)) {
            self.reads(reader).await;
        }
    }

    async fn reads(&mut self, reader: &mut Client) {
        let line = reader.goes_on().await;
        // It reports that a broker is gone among what it reads.
        if let Some((Ok(partition), Ok(number))) = line.split_once(' ').map(|(at, number)| (at.parse(), number.parse()))
        {
            let partition: usize = partition;
            self.read[partition].push(number);
        }
    }

    fn len(&self) -> usize {
        self.read.iter().map(Vec::len).sum()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kcat_goes_on_while_a_leader_is_killed() {
    /// Lines of a round: more than it reads at once.
    const ROUND: u32 = 20_000;
    let Some(mut kcat) = Kcat::start("kcat_goes_on_while_a_leader_is_killed", Brokers::Three).await else { return };
    kcat.cluster.create("t", PARTITIONS, &[]).await;
    kcat.cluster.is_used_in_full().await;
    let mut writer = kcat.spawn(&["-P", "-t", "t", "-K", ":", "-X", "enable.idempotence=true"]);
    let mut reader = kcat.spawn(&["-C", "-t", "t", "-u", "-q", "-o", "beginning", "-f", "%p %s\n"]);
    let mut account = Account::default();
    let round = |number: u32| {
        let lines = number * ROUND..(number + 1) * ROUND;
        lines.map(|line| format!("key-{line}:{line}\n")).collect::<String>()
    };
    writer.feed(round(0).as_bytes()).await;
    account.comes_to(&mut reader, ROUND / 4).await;
    let (leader, _) = kcat.cluster.leader("t", 0).await;
    kcat.cluster.as_fleet().kill(leader);
    writer.feed(round(1).as_bytes()).await;
    account.comes_to(&mut reader, ROUND + ROUND / 4).await;
    kcat.cluster.as_fleet().restart(leader).await;
    writer.feed(round(2).as_bytes()).await;
    writer.end().await;
    while account.len() < 3 * ROUND as usize {
        account.reads(&mut reader).await;
    }
    reader.kill().await;
    assert!(account.read.iter().all(|read| read.is_sorted()), "in order");
    let mut all = account.read.concat();
    all.sort_unstable();
    assert!(all == (0..3 * ROUND).collect::<Vec<u32>>(), "each once");
    kcat.cluster.stop().await;
}
