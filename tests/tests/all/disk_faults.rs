//! A disk that fails under a running broker: nothing is acknowledged after it, and the process ends (rules W2, B4).

use millpond_broker::wal::disk::RealDisk;
use millpond_broker::wal::{Wal, WalError, WalIdentity, WalOptions};
use millpond_log::{BrokerId, WalGen};
use millpond_sdk::{Admin, Client, NewTopic, Producer, ProducerConfig, ProducerRecord};
use millpond_tests::process::{Dev, DevOptions};
use millpond_tests::tools;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

const TOPIC: &str = "numbers";

/// The files below `dir` whose names end so.
fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let listed = std::fs::read_dir(dir).expect("the folder is there").map(|entry| entry.expect("it is read").path());
    let below = |path: PathBuf| if path.is_dir() { files(&path, extension) } else { vec![path] };
    let all = listed.flat_map(below);
    all.filter(|path| path.extension().is_some_and(|found| found == extension)).collect()
}

/// Lets every sync of these files by the process fail from now on.
fn fail_syncs(pid: u32, files: &[PathBuf]) -> Result<Child, String> {
    let mut strace = Command::new("strace");
    strace.args(["-f", "-o", "/dev/null", "-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO"]);
    files.iter().for_each(|file| _ = strace.arg("-P").arg(file));
    let started = strace.arg("-p").arg(pid.to_string()).stderr(Stdio::piped()).spawn();
    let mut strace = started.map_err(|error| format!("strace: {error}"))?;
    let mut said = String::new();
    for line in BufReader::new(strace.stderr.take().expect("stderr is piped")).lines().map_while(Result::ok) {
        if line.contains("attached") {
            return Ok(strace);
        }
        said.push_str(&line);
    }
    strace.wait().map_err(|error| error.to_string())?;
    Err(said)
}

/// Whose the WAL of an ended broker is.
fn identity(dir: &Path) -> WalIdentity {
    let wal = files(dir, "wal").first().and_then(|file| Some(file.parent()?.to_owned())).expect("a WAL was written");
    let options = WalOptions { dir: wal, bytes_max: 1 << 20, file_bytes: 1 << 16, memory_bytes: 0 };
    match Wal::open(options, Arc::new(RealDisk), "somebody else's", BrokerId(0), WalGen(0)).map(|_| ()) {
        Err(WalError::OtherOwner { found, .. }) => *found,
        other => panic!("it is another cluster's: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_whose_sync_fails_acknowledges_nothing_more_ends_and_comes_back_as_another_replica() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let options = DevOptions::new(dir.path());
    let dev = Dev::start(&options);
    let client = Client::connect(&dev.grpc).await.expect("the broker is up");
    let mut topic = NewTopic::new(TOPIC);
    topic.partitions = Some(1);
    Admin::new(&client).create_topic(topic).await.expect("the topic is new");
    // Long enough for a busy machine, short enough to wait for: what cannot be written fails in the end.
    let (request_timeout, delivery_timeout) = (Duration::from_secs(9), Duration::from_secs(10));
    let config = ProducerConfig { request_timeout, delivery_timeout, ..ProducerConfig::default() };
    let producer = Producer::new(&client, config).expect("the settings are sound");
    let record = |number: u32| ProducerRecord::new(TOPIC).partition(0).value(number.to_string());
    for number in 0..20 {
        let delivery = producer.send(record(number)).await.expect("there is room");
        delivery.await.expect("it is written");
    }
    let mut strace = match fail_syncs(dev.pid(), &files(dir.path(), "wal")) {
        Ok(strace) => strace,
        Err(why) => return tools::skip("a broker whose sync fails", &why),
    };
    let delivery = producer.send(record(20)).await.expect("there is room");
    let (acknowledged, status) = tokio::join!(delivery, tokio::task::spawn_blocking(move || dev.ended()));
    let status = status.expect("it is waited for");
    strace.wait().expect("it ends with the process it follows");
    assert!(acknowledged.is_err(), "rule W2: acknowledged after a sync that failed");
    assert_eq!(status.code(), Some(1), "it ends by itself, and says that it failed");

    let poisoned = identity(dir.path());
    Dev::start(&options).kill();
    let renewed = identity(dir.path());
    assert_eq!(renewed.cluster, poisoned.cluster);
    assert_ne!(renewed.wal_gen, poisoned.wal_gen, "rule B4: another replica");
}
