//! Traces, end to end: a real `millpond dev` sends its spans to a collector, and the trace of one request tells what became of it.

use millpond_log::TimestampMs;
use millpond_log::batch::{BatchBuilder, NewRecord};
use millpond_log::codec::Codec;
use millpond_proto::v1;
use millpond_proto::v1::log_client::LogClient;
use millpond_sdk::{Admin, Client, NewTopic};
use millpond_tests::otlp::{Collector, Received, text};
use millpond_tests::process::{Dev, DevOptions};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use tonic::Request;
use tonic::transport::Channel;

const TOPIC: &str = "traced";

/// The span of a client, as it stands in `traceparent`.
#[derive(Clone, Copy)]
struct Cause {
    trace: u128,
    span: u64,
    sampled: bool,
}

impl Cause {
    fn of<T>(self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let value = format!("00-{:032x}-{:016x}-{:02x}", self.trace, self.span, u8::from(self.sampled));
        request.metadata_mut().insert("traceparent", value.parse().expect("a header"));
        request
    }
}

/// A broker that traces nothing by itself: what arrives was sampled by its client.
fn options(folder: &tempfile::TempDir, collector: &Collector) -> DevOptions {
    let mut options = DevOptions::new(folder.path());
    options.arguments = vec!["--trace-ratio".to_owned(), "0".to_owned()];
    options.variables = vec![
        ("OTEL_EXPORTER_OTLP_ENDPOINT".to_owned(), collector.endpoint()),
        ("OTEL_BSP_SCHEDULE_DELAY".to_owned(), "100".to_owned()),
    ];
    options
}

async fn traced_dev(collector: &Collector) -> (tempfile::TempDir, Dev, Client, LogClient<Channel>) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dev = Dev::start(&options(&folder, collector));
    let client = Client::connect(&dev.grpc).await.expect("the broker is up");
    Admin::new(&client).create_topic(NewTopic::new(TOPIC)).await.expect("the topic is new");
    let log = LogClient::connect(format!("http://{}", dev.grpc)).await.expect("the broker is up");
    (folder, dev, client, log)
}

fn produce(value: &[u8]) -> v1::ProduceRequest {
    let mut batch = BatchBuilder::new(Codec::None);
    batch.push(NewRecord { timestamp: TimestampMs(1), key: None, value: Some(value), headers: &[] });
    v1::ProduceRequest {
        request_id: 1,
        topic: Some(topic()),
        acks: v1::Acks::All.into(),
        records: Some(vec![batch.build()].into()),
        ..Default::default()
    }
}

fn fetch() -> v1::FetchOneRequest {
    v1::FetchOneRequest { topic: Some(topic()), bytes_min: 1, wait_ms_max: 10_000, ..Default::default() }
}

fn topic() -> v1::TopicRef {
    v1::TopicRef { topic: Some(v1::topic_ref::Topic::Name(TOPIC.to_owned())) }
}

/// The spans of one trace.
struct Trace(Vec<Span>);

impl Trace {
    fn of(received: &Received, trace: &[u8]) -> Trace {
        Trace(received.spans.iter().filter(|span| span.trace_id == trace).cloned().collect())
    }

    /// The only span of this name.
    fn span(&self, name: &str) -> &Span {
        let found: Vec<&Span> = self.0.iter().filter(|span| span.name == name).collect();
        assert_eq!(found.len(), 1, "`{name}` among {:?}", self.names());
        found[0]
    }

    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|span| span.name == name)
    }

    /// The only span of this name, which is a child of `parent`.
    fn child(&self, parent: &Span, name: &str) -> &Span {
        let child = self.span(name);
        assert_eq!(child.parent_span_id, parent.span_id, "`{name}` hangs on `{}`", parent.name);
        assert!(child.end_time_unix_nano >= child.start_time_unix_nano);
        child
    }

    fn names(&self) -> Vec<&str> {
        self.0.iter().map(|span| span.name.as_str()).collect()
    }
}

/// The span that `span` is linked to, of whichever trace.
fn linked<'a>(received: &'a Received, span: &Span) -> &'a Span {
    assert_eq!(span.links.len(), 1, "`{}` has one link", span.name);
    let found = received.spans.iter().find(|other| other.span_id == span.links[0].span_id);
    found.unwrap_or_else(|| panic!("what `{}` is linked to has arrived", span.name))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_trace_tells_of_a_produce_from_the_door_to_the_upload() {
    let collector = Collector::start().await;
    let (_folder, _dev, client, mut log) = traced_dev(&collector).await;
    let unsampled = Cause { trace: 0xdead, span: 9, sampled: false };
    log.produce_one(unsampled.of(produce(b"not traced"))).await.expect("acknowledged");
    let cause = Cause { trace: 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c, span: 0xb7ad_6b71_6920_3331, sampled: true };
    let produced = log.produce_one(cause.of(produce(b"traced"))).await.expect("acknowledged").into_inner();
    assert_eq!(produced.base_offset, Some(1));
    Admin::new(&client).flush_topic(TOPIC).await.expect("it is uploaded");

    let id = cause.trace.to_be_bytes();
    let received = collector.wait_for("the upload", |received| {
        let trace = Trace::of(received, &id);
        trace.has("upload") && trace.has("grpc") && received.spans.iter().any(|span| span.name == "flush")
    });
    let received = received.await;
    let trace = Trace::of(&received, &id);

    // Front door.
    let door = trace.span("grpc");
    assert_eq!(door.parent_span_id, cause.span.to_be_bytes());
    assert_eq!((door.kind(), text(&door.attributes, "method").as_deref()), (SpanKind::Server, Some("ProduceOne")));
    // Partition.
    let produce = trace.child(door, "produce");
    let attribute = |key| text(&produce.attributes, key);
    assert_eq!((attribute("topic").as_deref(), attribute("base_offset").as_deref()), (Some(TOPIC), Some("1")));
    assert!(produce.events.iter().any(|event| event.name == "committed"), "{:?}", produce.events);
    let admit = trace.child(produce, "admit");
    let append = trace.child(produce, "append");
    assert!(admit.end_time_unix_nano <= append.end_time_unix_nano);
    // WAL: the batch's own span, and that of the group it was synced in.
    let wal = trace.child(produce, "wal");
    let group = linked(&received, wal);
    assert_eq!(group.name, "wal_group");
    assert!(group.links.iter().any(|link| link.span_id == wal.span_id), "linked both ways");
    assert!(wal.start_time_unix_nano <= group.start_time_unix_nano, "it waits before the group is written");
    assert!(group.start_time_unix_nano <= wal.end_time_unix_nano);
    assert!(wal.end_time_unix_nano <= produce.end_time_unix_nano, "acknowledged after the sync (rule W1)");
    // Upload: in the same trace, and linked to the object's own span, which has the upload and the commit in it.
    let upload = trace.child(produce, "upload");
    assert_eq!(text(&upload.attributes, "base_offset").as_deref(), Some("1"));
    let flush = linked(&received, upload);
    assert_eq!(flush.name, "flush");
    let object = Trace::of(&received, &flush.trace_id);
    let put = object.child(flush, "upload_object");
    let commit = object.child(flush, "commit");
    assert!(put.end_time_unix_nano <= commit.start_time_unix_nano, "the object is there before its manifest (rule T6)");
    assert!(upload.end_time_unix_nano >= commit.end_time_unix_nano);

    let others = received.spans.iter().filter(|span| span.trace_id == 0xdead_u128.to_be_bytes());
    assert_eq!(others.count(), 0, "a client that does not sample is not traced");
    assert_eq!(received.instance.as_deref(), Some("dev/0"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_message_of_a_produce_stream_joins_the_trace_of_its_stream() {
    let collector = Collector::start().await;
    let (_folder, _dev, _client, mut log) = traced_dev(&collector).await;
    let cause = Cause { trace: 0x51, span: 0x52, sampled: true };
    let messages = [produce(b"one"), produce(b"two"), produce(b"three")];
    let mut answers = log.produce(cause.of(tokio_stream::iter(messages))).await.expect("it opens").into_inner();
    let mut offsets = Vec::new();
    while let Some(answer) = answers.message().await.expect("the stream goes on") {
        let Some(v1::produce_response::Result::Produced(produced)) = answer.result else { panic!("{answer:?}") };
        offsets.extend(produced.base_offset);
    }
    assert_eq!(offsets, [0, 1, 2]);
    let id = cause.trace.to_be_bytes();
    let three = |received: &Received| {
        let trace = Trace::of(received, &id);
        trace.0.iter().filter(|span| span.name == "grpc").count() == 3
    };
    let trace = Trace::of(&collector.wait_for("three requests", three).await, &id);
    for door in trace.0.iter().filter(|span| span.name == "grpc") {
        assert_eq!(door.parent_span_id, cause.span.to_be_bytes());
        let within = trace.0.iter().filter(|span| span.name == "produce" && span.parent_span_id == door.span_id);
        assert_eq!(within.count(), 1, "{:?}", trace.names());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fetch_tells_where_it_read() {
    let collector = Collector::start().await;
    let (folder, dev, client, mut log) = traced_dev(&collector).await;
    log.produce_one(produce(b"to be read")).await.expect("acknowledged");
    let read = async |log: &mut LogClient<Channel>, trace: u128| {
        let cause = Cause { trace, span: 7, sampled: true };
        let fetched = log.fetch_one(cause.of(fetch())).await.expect("it can be read").into_inner();
        assert!(fetched.records.is_some_and(|records| records.size() > 0));
        let id = trace.to_be_bytes();
        let received = collector.wait_for("the fetch", |received| Trace::of(received, &id).has("grpc")).await;
        Trace::of(&received, &id)
    };
    let from_tail = read(&mut log, 0xa).await;
    let fetch = from_tail.child(from_tail.span("grpc"), "fetch");
    from_tail.child(fetch, "find");
    let source = |read: &Span| text(&read.attributes, "from");
    assert_eq!(source(from_tail.child(fetch, "read")).as_deref(), Some("wal"));
    from_tail.child(fetch, "assemble");
    assert!(!from_tail.has("plan"));

    Admin::new(&client).flush_topic(TOPIC).await.expect("it is uploaded");
    // A broker that lost its disk reads what is in the bucket all the same (rule F4).
    tokio::task::spawn_blocking(move || dev.stop()).await.expect("it ends well");
    std::fs::remove_dir_all(folder.path().join("broker-0")).expect("nobody holds it");
    let dev = Dev::start(&options(&folder, &collector));
    let mut log = LogClient::connect(format!("http://{}", dev.grpc)).await.expect("the broker is up");
    let from_bucket = read(&mut log, 0xb).await;
    let fetch = from_bucket.child(from_bucket.span("grpc"), "fetch");
    from_bucket.child(fetch, "plan");
    let mut sources: Vec<Option<String>> =
        from_bucket.0.iter().filter(|span| span.name == "read").map(source).collect();
    sources.sort();
    assert_eq!(sources, [Some("object_storage".to_owned()), Some("wal".to_owned())], "first where it might have been");
}
