//! Kafka Connect with its connectors of files: lines go from a file through a topic into another.

use super::super::cluster::{Brokers, Cluster, with_one_broker_and_with_three};
use super::archives_or_skip;
use super::java::{Running, in_time};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

const STANDALONE: &str = "org.apache.kafka.connect.cli.ConnectStandalone";

/// How often is looked at a file.
const LOOK: Duration = Duration::from_millis(50);

/// The files of a worker.
struct Worker {
    dir: PathBuf,
    files: Vec<PathBuf>,
}

impl Worker {
    fn new(dir: &Path, cluster: &Cluster) -> Worker {
        let (at, bootstrap, replicas) = (dir.display(), &cluster.bootstrap, cluster.size);
        let worker = format!(
            "bootstrap.servers={bootstrap}\n\
             key.converter=org.apache.kafka.connect.storage.StringConverter\n\
             value.converter=org.apache.kafka.connect.storage.StringConverter\n\
             offset.storage.file.filename={at}/offsets\n\
             offset.flush.interval.ms=500\n\
             listeners=http://127.0.0.1:0\n\
             plugin.discovery=service_load\n"
        );
        // Connect makes the topic, since brokers may not.
        let source = format!(
            "name=source\nconnector.class=FileStreamSource\ntasks.max=1\nfile={at}/in\ntopic=connected\n\
             topic.creation.default.partitions=1\ntopic.creation.default.replication.factor={replicas}\n"
        );
        // The same member comes back, so that nobody waits for the one before.
        let sink = format!(
            "name=sink\nconnector.class=FileStreamSink\ntasks.max=1\nfile={at}/out\ntopics=connected\n\
             consumer.override.auto.offset.reset=earliest\nconsumer.override.group.instance.id=sink\n"
        );
        let files = [("worker", worker), ("source", source), ("sink", sink)].map(|(name, content)| {
            let file = dir.join(name).with_extension("properties");
            fs::write(&file, content).expect("there is room");
            file
        });
        Worker { dir: dir.to_owned(), files: files.to_vec() }
    }

    /// Appends lines to the source's file.
    fn write(&self, lines: &str) {
        let mut file =
            fs::File::options().create(true).append(true).open(self.dir.join("in")).expect("it can be opened");
        file.write_all(lines.as_bytes()).expect("there is room");
    }

    /// Waits until the sink's file has so many lines; all of it.
    async fn read(&self, lines: usize) -> String {
        let out = self.dir.join("out");
        in_time("lines in the sink's file", async {
            let mut look = tokio::time::interval(LOOK);
            loop {
                look.tick().await;
                let read = fs::read_to_string(&out).unwrap_or_default();
                if read.lines().count() >= lines {
                    return read;
                }
            }
        })
        .await
    }
}

with_one_broker_and_with_three! {
    connect_carries_lines_and_goes_on_where_it_was: lines_go_through;
}

async fn lines_go_through(test: &str, brokers: Brokers) {
    let archives = archives_or_skip!(test);
    let cluster = Cluster::start(brokers).await;
    let dir = tempfile::tempdir().expect("a temporary folder");
    let worker = Worker::new(dir.path(), &cluster);
    worker.write("one\ntwo\n");
    let running = Running::start(&archives, STANDALONE, &worker.files);
    assert_eq!(worker.read(2).await, "one\ntwo\n");
    worker.write("three\n");
    assert_eq!(worker.read(3).await, "one\ntwo\nthree\n");
    running.terminate().await;
    worker.write("four\n");
    let running = Running::start(&archives, STANDALONE, &worker.files);
    assert_eq!(worker.read(4).await, "one\ntwo\nthree\nfour\n", "it goes on where it was");
    running.terminate().await;
    cluster.stop().await;
}
