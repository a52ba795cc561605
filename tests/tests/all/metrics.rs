//! Metrics, end to end: what `/metrics` shows is Prometheus' text by the judgement of Prometheus' own parser, says what happened,
//! and is the same that a collector is sent.

use millpond_sdk::{Admin, Client, NewTopic, Producer, ProducerConfig, ProducerRecord};
use millpond_tests::http;
use millpond_tests::otlp::Collector;
use millpond_tests::process::{Dev, DevOptions};
use millpond_tests::tools::{Tool, repository, skip};
use opentelemetry_proto::tonic::metrics::v1::{Metric, metric, number_data_point};
use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

const RECORDS: u64 = 500;

/// Publishes, uploads, and asks for what is not there.
async fn use_it(grpc: &str) {
    let client = Client::connect(grpc).await.expect("the broker is up");
    let admin = Admin::new(&client);
    let mut topic = NewTopic::new("counted");
    topic.partitions = Some(2);
    admin.create_topic(topic).await.expect("the topic is new");
    let producer = Producer::new(&client, ProducerConfig::default()).expect("the defaults are sound");
    let mut deliveries = Vec::new();
    for number in 0..RECORDS {
        let record = ProducerRecord::new("counted").key(number.to_string()).value(vec![b'x'; 100]);
        deliveries.push(producer.send(record).await.expect("there is room"));
    }
    for delivery in deliveries {
        delivery.await.expect("acknowledged");
    }
    producer.close().await;
    admin.flush_topic("counted").await.expect("the object store is there");
}

async fn scrape(address: &str) -> String {
    let (status, head, body) = http::answer(address, "/metrics").await.expect("the door is open");
    assert_eq!(status, 200);
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    body
}

/// The value of the sample that begins with `name`, labels included.
fn value(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

/// Runs the checks of `tests/clients/metrics.py`, and returns the names of the families that it found.
fn parsed(python: &Path, text: &str) -> BTreeSet<String> {
    let mut child = Command::new(python)
        .arg(repository().join("tests/clients/metrics.py"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("Python starts");
    child.stdin.take().expect("it is piped").write_all(text.as_bytes()).expect("it reads to the end");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "the parser refused:\n{text}");
    String::from_utf8(output.stdout).expect("names are text").lines().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prometheus_reads_what_happened_and_the_collector_is_sent_the_same() {
    let python = match Tool::ClientPython.find() {
        Ok(python) => python,
        Err(why) => {
            return skip("prometheus_reads_what_happened_and_the_collector_is_sent_the_same", &why);
        }
    };
    let collector = Collector::start().await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut options = DevOptions::new(folder.path());
    options.arguments = vec!["--otlp-endpoint".to_owned(), collector.endpoint()];
    options.variables = vec![("OTEL_METRIC_EXPORT_INTERVAL".to_owned(), "200".to_owned())];
    let dev = Dev::start(&options);
    use_it(&dev.grpc).await;

    let text = scrape(&dev.http).await;
    let families = parsed(&python, &text);
    let all = |name: &str| value(&text, name).unwrap_or_else(|| panic!("no `{name}` in\n{text}"));
    assert_eq!(all("millpond_produce_records_total"), RECORDS as f64);
    let batches = all("millpond_produce_batches_total");
    assert!(batches >= 1.0 && all("millpond_produce_seconds_count") == batches);
    assert_eq!(all("millpond_wal_group_batches_sum"), batches, "every batch went through one group");
    assert!(all("millpond_wal_sync_seconds_count") <= batches + 20.0, "groups, and a few notes");
    assert_eq!(all("millpond_topic_records{topic=\"counted\"}"), RECORDS as f64);
    assert_eq!(all("millpond_topic_untiered_records{topic=\"counted\"}"), 0.0);
    assert_eq!(all("millpond_topic_tail_bytes{topic=\"counted\"}"), 0.0);
    assert_eq!(all("millpond_partitions_led"), 2.0);
    assert!(all("millpond_uploads_total") >= 1.0 && all("millpond_committed_segments_total") >= 2.0);
    let puts = all("millpond_object_requests_total{operation=\"put\",outcome=\"ok\"}");
    assert_eq!(puts, all("millpond_uploads_total") + 1.0, "small objects are put at once, and the bucket was marked");
    assert_eq!(all("millpond_object_bytes_total{direction=\"written\"}"), all("millpond_upload_bytes_total"));
    assert_eq!((all("millpond_broker_ready"), all("millpond_session_held")), (1.0, 1.0));
    assert!(all("millpond_lease_age_seconds") < 6.0, "the lease lasts 6 s");
    assert_eq!(all("millpond_produce_memory_bytes"), 0.0, "nothing is under way");
    assert_eq!(all("millpond_requests_total{api=\"CreateTopic\",door=\"grpc\"}"), 1.0);
    assert!(all("millpond_requests_total{api=\"Produce\",door=\"grpc\"}") >= batches);

    let known =
        |received: &[Metric]| -> BTreeSet<String> { received.iter().map(|metric| metric.name.clone()).collect() };
    let received =
        collector.wait_for("every family of `/metrics`", |received| known(&received.metrics).is_superset(&families));
    let received = received.await;
    assert_eq!(sum(&received.metrics, "millpond_produce_records"), Some(RECORDS));
    assert!(known(&received.metrics).is_subset(&parsed(&python, &scrape(&dev.http).await)), "one registry");
    assert_eq!(received.instance.as_deref(), Some("dev/0"));
}

fn sum(metrics: &[Metric], name: &str) -> Option<u64> {
    let metric = metrics.iter().find(|metric| metric.name == name)?;
    let metric::Data::Sum(sum) = metric.data.as_ref()? else { return None };
    let values = sum.data_points.iter().map(|point| match point.value {
        Some(number_data_point::Value::AsInt(value)) => u64::try_from(value).ok(),
        _ => None,
    });
    values.sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_cannot_make_up_series() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dev = Dev::start(&DevOptions::new(folder.path()));
    let client = Client::connect(&dev.grpc).await.expect("the broker is up");
    let admin = Admin::new(&client);
    for number in 0..210 {
        admin.create_topic(NewTopic::new(format!("topic-{number:03}"))).await.expect("the topic is new");
    }
    let channel = tonic::transport::Endpoint::new(format!("http://{}", dev.grpc)).expect("an address");
    let mut grpc = tonic::client::Grpc::new(channel.connect().await.expect("the broker is up"));
    for path in ["/millpond.v1.Log/MadeUp", "/made.up.Service/Method"] {
        grpc.ready().await.expect("it is connected");
        let codec = tonic_prost::ProstCodec::<(), ()>::default();
        let path = path.parse().expect("a path");
        grpc.unary(tonic::Request::new(()), path, codec).await.expect_err("nobody serves that");
    }
    let text = scrape(&dev.http).await;
    assert!(!text.contains("MadeUp") && !text.contains("made.up"), "{text}");
    assert_eq!(value(&text, "millpond_requests_total{api=\"other\",door=\"grpc\"}"), Some(2.0));
    let series = |label: &str| text.matches(&format!("millpond_topic_records{{topic=\"{label}")).count();
    assert_eq!((series("topic-"), series("other topics\"")), (200, 1));
    assert_eq!(value(&text, "millpond_topics"), Some(210.0));
}
