//! `/livez`, `/readyz` and `/healthz` through a broker's life: while it recovers, serves, and ends.

use millpond_proto::v1;
use millpond_proto::v1::log_client::LogClient;
use millpond_sdk::{Admin, Client, NewTopic, Producer, ProducerConfig, ProducerRecord};
use millpond_tests::http::{get, metric};
use millpond_tests::process::{Dev, DevOptions, Server};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a state may take to show.
const PATIENCE: Duration = Duration::from_secs(60);

async fn status(address: &str, path: &str) -> (u16, String) {
    get(address, path).await.expect("the door is open")
}

/// Asks until `path` is answered as expected: that is how whoever watches a broker learns of it.
async fn becomes(address: &str, path: &str, expected: (u16, &str)) {
    let asked = async {
        let mut again = tokio::time::interval(Duration::from_millis(20));
        loop {
            again.tick().await;
            match get(address, path).await {
                Ok((status, body)) if (status, body.as_str()) == expected => return,
                // Nobody listens yet, or it is not so yet.
                _ => {}
            }
        }
    };
    let became = tokio::time::timeout(PATIENCE, asked).await;
    assert!(became.is_ok(), "{path} did not become {expected:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_recovers_is_alive_and_not_ready() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut options = DevOptions::new(folder.path());
    let dev = Dev::start(&options);
    options.ports = dev.ports();
    let http = dev.http.clone();
    let client = Client::connect(&dev.grpc).await.expect("the broker is up");
    let admin = Admin::new(&client);
    admin.create_topic(NewTopic::new("t")).await.expect("the topic is new");
    let producer = Producer::new(&client, ProducerConfig::default()).expect("the defaults are sound");
    let sent = producer.send(ProducerRecord::new("t").value("x")).await.expect("there is room");
    sent.await.expect("acknowledged");
    producer.close().await;
    admin.flush_topic("t").await.expect("it is uploaded");
    assert_eq!(status(&http, "/readyz").await, (200, "ready\n".to_owned()));
    dev.kill();

    // Recovery needs the newest segment's producer state, and waits for the object store as long as it takes (case S1).
    let (objects, away) = (folder.path().join("objects"), folder.path().join("away"));
    std::fs::rename(&objects, &away).expect("nobody holds it");
    std::fs::remove_dir_all(folder.path().join("broker-0/cache")).expect("there is a cache");
    let mut starting = Server::spawn(&mut options.command());
    becomes(&http, "/livez", (200, "ok\n")).await;
    assert_eq!(status(&http, "/healthz").await, (200, "ok\n".to_owned()));
    assert_eq!(status(&http, "/readyz").await, (503, "recovering\n".to_owned()));
    let (code, metrics) = status(&http, "/metrics").await;
    assert!(code == 200 && metrics.contains("\nmillpond_broker_ready 0\n"), "{metrics}");
    // The marker of the cluster comes before its data (rule G5); the broker may have put it into what it took for an empty bucket.
    let (marker, marked) = (away.join("cluster"), objects.join("cluster"));
    assert!(std::fs::rename(&marker, &marked).is_ok() || marked.is_dir());
    for entry in std::fs::read_dir(&away).expect("it was there before") {
        let entry = entry.expect("it can be read");
        if entry.path() == marker {
            continue;
        }
        std::fs::rename(entry.path(), objects.join(entry.file_name())).expect("it is not in the way");
    }
    starting.wait_until_ready();
    assert_eq!(status(&http, "/readyz").await, (200, "ready\n".to_owned()));
    assert!(status(&http, "/metrics").await.1.contains("\nmillpond_broker_ready 1\n"));
}

/// All files below a folder.
fn files(folder: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(folder).expect("it is there") {
        let path = entry.expect("it can be read").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.insert(path);
        }
    }
    found
}

/// Rule G4: what is missing or damaged in object storage keeps its partition from being served, until it is there again, and no other,
/// whether anything else is there or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_serves_what_it_can_though_a_segment_is_missing_or_damaged() {
    let missing = |segment: &Path| std::fs::remove_file(segment).expect("it is there");
    let empty = |segment: &Path| std::fs::write(segment, b"").expect("it is there");
    let shorter = |segment: &Path| {
        let whole = std::fs::read(segment).expect("it is there");
        std::fs::write(segment, &whole[..whole.len() / 2]).expect("it is there");
    };
    let other = |segment: &Path| {
        let size = std::fs::metadata(segment).expect("it is there").len();
        std::fs::write(segment, vec![0x55; usize::try_from(size).expect("it is small")]).expect("it is there");
    };
    let faults: [(&dyn Fn(&Path), bool); 4] = [(&missing, true), (&empty, false), (&shorter, true), (&other, false)];
    for (spoil, other_is_uploaded) in faults {
        serves_what_it_can(spoil, other_is_uploaded).await;
    }
}

async fn serves_what_it_can(spoil: &dyn Fn(&Path), other_is_uploaded: bool) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut options = DevOptions::new(folder.path());
    let dev = Dev::start(&options);
    options.ports = dev.ports();
    let client = Client::connect(&dev.grpc).await.expect("the broker is up");
    let admin = Admin::new(&client);
    let produce = async |topic: &str| {
        let producer = Producer::new(&client, ProducerConfig::default()).expect("the defaults are sound");
        let sent = producer.send(ProducerRecord::new(topic).value("x")).await.expect("there is room").await;
        producer.close().await;
        sent.expect("acknowledged").offset.expect("it was")
    };
    let objects = folder.path().join("objects");
    admin.create_topic(NewTopic::new("lost")).await.expect("the topic is new");
    produce("lost").await;
    let before = files(&objects);
    admin.flush_topic("lost").await.expect("it is uploaded");
    let segments: Vec<PathBuf> = files(&objects).difference(&before).cloned().collect();
    admin.create_topic(NewTopic::new("whole")).await.expect("the topic is new");
    produce("whole").await;
    if other_is_uploaded {
        admin.flush_topic("whole").await.expect("it is uploaded");
    }
    let http = dev.http.clone();
    dev.kill();

    let [segment] = &segments[..] else { panic!("{segments:?}") };
    let aside = folder.path().join("aside");
    std::fs::copy(segment, &aside).expect("nobody holds it");
    spoil(segment);
    std::fs::remove_dir_all(folder.path().join("broker-0/cache")).expect("there is a cache");
    let mut starting = Server::spawn(&mut options.command());
    starting.wait_until_ready();
    assert_eq!(produce("whole").await.0, 1);
    assert_eq!(metric(&http, "millpond_partitions").await, 1.0);
    std::fs::rename(&aside, segment).expect("nobody holds it");
    let opened = async { while metric(&http, "millpond_partitions").await < 2.0 {} };
    tokio::time::timeout(PATIENCE, opened).await.expect("it is opened once it can be read");
    assert_eq!(produce("lost").await.0, 1, "and goes on where it was");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_ends_is_alive_and_not_ready_until_its_requests_are_answered() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dev = Dev::start(&DevOptions::new(folder.path()));
    let http = dev.http.clone();
    let client = Client::connect(&dev.grpc).await.expect("the broker is up");
    Admin::new(&client).create_topic(NewTopic::new("t")).await.expect("the topic is new");
    let mut log = LogClient::connect(format!("http://{}", dev.grpc)).await.expect("the broker is up");
    let topic = v1::TopicRef { topic: Some(v1::topic_ref::Topic::Name("t".to_owned())) };
    let wait = v1::FetchOneRequest { topic: Some(topic), bytes_min: 1, wait_ms_max: 4000, ..Default::default() };
    let waiting = tokio::spawn(async move { log.fetch_one(wait).await });
    // It has been taken in once it is counted.
    becomes_counted(&http, "millpond_requests_total{api=\"FetchOne\",door=\"grpc\"} 1").await;
    dev.ask_to_end();
    becomes(&http, "/readyz", (503, "stopping\n")).await;
    assert_eq!(status(&http, "/livez").await, (200, "ok\n".to_owned()));
    assert!(!waiting.is_finished(), "the broker ends only after the request");
    let answer = waiting.await.expect("it did not panic").expect("it is answered, though the broker ends");
    assert_eq!(answer.into_inner().high_watermark, 0);
    let ended = tokio::task::spawn_blocking(move || dev.ended()).await.expect("it did not panic");
    assert!(ended.success(), "{ended}");
}

async fn becomes_counted(http: &str, line: &str) {
    let counted = async {
        let mut again = tokio::time::interval(Duration::from_millis(20));
        while !get(http, "/metrics").await.expect("the door is open").1.lines().any(|found| found == line) {
            again.tick().await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, counted).await.is_ok(), "`{line}` did not show");
}
