//! Clients that people use: kcat (librdkafka 2.0 on Debian) and confluent-kafka (the newest librdkafka).

use super::wire::{Served, batches};
use millpond_log::Batch;
use millpond_log::codec::Codec;
use millpond_tests::tools::{Tool, repository, skip};
use std::path::Path;
use std::process::{Output, Stdio};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

pub(crate) async fn run(program: &Path, arguments: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the tool was found");
    let mut stdin = child.stdin.take().expect("piped");
    let feed = async {
        stdin.write_all(input).await.expect("it reads its input");
        drop(stdin);
    };
    let (output, ()) = tokio::join!(child.wait_with_output(), feed);
    let output = output.expect("it can be waited for");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} {arguments:?}: {said}", program.display());
    output
}

/// About a megabyte of lines that compress, no two alike.
fn lines() -> String {
    (0..16_000).map(|number| format!("line {number} of a text that compresses, as text does, quite well\n")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kcat_compresses_with_every_codec_and_reads_it_back() {
    let kcat = match Tool::Kcat.find() {
        Ok(kcat) => kcat,
        Err(why) => return skip("kcat_compresses_with_every_codec_and_reads_it_back", &why),
    };
    let served = Served::start().await;
    let bootstrap = served.broker.kafka();
    let mut raw = served.connect().await;
    let text = lines();
    for codec in [Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
        // The topic is made by kcat's own Metadata request.
        let topic = format!("kcat-{}", codec.name());
        let produce = ["-b", bootstrap, "-P", "-t", &topic, "-p", "0", "-z", codec.name(), "-X", "acks=all"];
        run(&kcat, &produce, text.as_bytes()).await;
        let stored = batches(&raw.fetch(&topic, 0, 0).await);
        assert!(!stored.is_empty());
        // librdkafka sends a batch as it is when compressing it gains nothing, as with one of a single line.
        let worth_it: Vec<&Batch> = stored.iter().filter(|batch| batch.record_count() > 100).collect();
        assert!(!worth_it.is_empty(), "a megabyte is more than single lines");
        for batch in worth_it {
            assert_eq!(batch.codec(), Some(codec), "case A3: {topic}");
        }
        let consume =
            ["-b", bootstrap, "-C", "-t", &topic, "-p", "0", "-o", "beginning", "-e", "-q", "-X", "check.crcs=true"];
        let read = run(&kcat, &consume, b"").await;
        assert!(read.stdout == text.as_bytes(), "{topic}: {} bytes came back of {}", read.stdout.len(), text.len());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kcat_lists_the_cluster_and_asks_for_offsets() {
    let kcat = match Tool::Kcat.find() {
        Ok(kcat) => kcat,
        Err(why) => return skip("kcat_lists_the_cluster_and_asks_for_offsets", &why),
    };
    let served = Served::start().await;
    let bootstrap = served.broker.kafka();
    served.connect().await.create("t", 2, &[]).await;
    let idempotent = ["-b", bootstrap, "-P", "-t", "t", "-p", "1", "-K", ":", "-X", "enable.idempotence=true"];
    run(&kcat, &idempotent, b"a:1\nb:2\nc:3\n").await;
    let listed = run(&kcat, &["-b", bootstrap, "-L"], b"").await;
    let listed = String::from_utf8(listed.stdout).expect("text");
    assert!(listed.contains("topic \"t\" with 2 partitions") && listed.contains(bootstrap), "{listed}");
    for (query, answer) in [("t:1:-1", "t [1] offset 3"), ("t:1:-2", "t [1] offset 0"), ("t:0:-1", "t [0] offset 0")] {
        let found = run(&kcat, &["-b", bootstrap, "-Q", "-t", query], b"").await;
        assert_eq!(String::from_utf8_lossy(&found.stdout).trim(), answer);
    }
    let keys =
        run(&kcat, &["-b", bootstrap, "-C", "-t", "t", "-p", "1", "-o", "1", "-e", "-q", "-f", "%o %k=%s\n"], b"")
            .await;
    assert_eq!(String::from_utf8_lossy(&keys.stdout), "1 b=2\n2 c=3\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kcat_sends_headers_and_nulls_and_a_large_record_and_finds_records_by_time() {
    let test = "kcat_sends_headers_and_nulls_and_a_large_record_and_finds_records_by_time";
    let kcat = match Tool::Kcat.find() {
        Ok(kcat) => kcat,
        Err(why) => return skip(test, &why),
    };
    let served = Served::with_room_for_large_batches().await;
    let bootstrap = served.broker.kafka();
    let mut raw = served.connect().await;
    raw.create("t", 1, &[]).await;
    raw.create("large", 1, &[("max.message.bytes", "10485760")]).await;
    let produce = ["-b", bootstrap, "-P", "-t", "t", "-p", "0", "-K", ":", "-Z", "-H", "h=1", "-H", "empty="];
    run(&kcat, &produce, b"a:1\n").await;
    run(&kcat, &produce, b"b:\n").await;
    let consume = ["-b", bootstrap, "-C", "-t", "t", "-p", "0", "-o", "beginning", "-e", "-q"];
    let read = async |format: &str| {
        let read = run(&kcat, &[&consume[..], &["-f", format]].concat(), b"").await.stdout;
        String::from_utf8(read).expect("text")
    };
    // A null value has the size -1.
    assert_eq!(read("%k=%s %S %h\n").await, "a=1 1 h=1,empty=\nb= -1 h=1,empty=\n");
    let last = read("%T\n").await.lines().last().map(str::to_owned).expect("two records");
    for (time, offset) in [("0", 0), (&*last, 1), ("99999999999999", -1)] {
        let found = run(&kcat, &["-b", bootstrap, "-Q", "-t", &format!("t:0:{time}")], b"").await.stdout;
        assert_eq!(String::from_utf8_lossy(&found).trim(), format!("t [0] offset {offset}"), "{time}");
    }

    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = dir.path().join("large");
    let value: Vec<u8> = (0..3_u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(&file, &value).expect("there is room");
    let file = file.to_str().expect("a path of text");
    let large = ["-b", bootstrap, "-t", "large", "-p", "0", "-X", "message.max.bytes=10485760"];
    run(&kcat, &[&large[..], &["-P", file]].concat(), b"").await;
    let read = ["-C", "-o", "beginning", "-e", "-q", "-f", "%s", "-X", "fetch.message.max.bytes=10485760"];
    let read = run(&kcat, &[&large[..], &read].concat(), b"").await.stdout;
    assert!(read == value, "{} bytes came back of {}", read.len(), value.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn confluent_kafka_gets_back_what_it_sent() {
    let python = match Tool::ClientPython.find() {
        Ok(python) => python,
        Err(why) => return skip("confluent_kafka_gets_back_what_it_sent", &why),
    };
    let served = Served::with_room_for_large_batches().await;
    let script = repository().join("tests/clients/confluent.py");
    let script = script.to_str().expect("a path of text");
    let output = run(&python, &[script, "--large", "--bootstrap", served.broker.kafka()], b"").await;
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "10000 records there and back");
}
