//! Clients that claim more than they should, send slowly, or do not read: memory stays bounded, and others are served.

use super::http2::{Connection, Event};
use crate::kafka::wire;
use millpond_sdk::{
    Admin, Client, Consumer, ConsumerConfig, NewTopic, Producer, ProducerConfig, ProducerRecord, StartAt,
    TopicPartition,
};
use millpond_tests::broker::{TestBroker, config};
use millpond_tests::http::{get, metric};
use millpond_tests::process::{Dev, DevOptions, resident_bytes};
use object_store::memory::InMemory;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const MIB: u64 = 1 << 20;

/// A broker that has not moved for so long does not take more for now. Only ever an upper bound of what is sent.
const PATIENCE: Duration = Duration::from_millis(500);

/// Publishes and reads back, as a client that knows nothing of the others.
pub(crate) async fn is_served(grpc: &str, topic: &str) {
    let client = Client::connect(grpc).await.expect("a client is let in");
    let producer = Producer::new(&client, ProducerConfig::default()).expect("the defaults are sound");
    let value = vec![7; 1000];
    let mut deliveries = Vec::new();
    for _ in 0..500 {
        deliveries.push(producer.send(ProducerRecord::new(topic).value(value.clone())).await.expect("there is room"));
    }
    for delivery in deliveries {
        delivery.await.expect("acknowledged");
    }
    producer.close().await;
    let mut consumer = Consumer::new(&client, ConsumerConfig::default());
    consumer.assign([(TopicPartition::new(topic, 0), StartAt::Earliest)]).await.expect("the topic exists");
    let mut read = 0;
    while read < 500 {
        read += consumer.poll(Duration::from_secs(30)).await.expect("the log can be read").len();
    }
}

pub(crate) async fn create(grpc: &str, topic: &str) {
    let admin = Admin::new(&Client::connect(grpc).await.expect("it is up"));
    admin.create_topic(NewTopic::new(topic)).await.expect("the topic is new");
}

/// Sends a claim of `claimed` bytes and then as many of them as the broker takes. The connection stays open.
async fn claim(kafka: &str, claimed: u32) -> (TcpStream, u64) {
    let mut stream = TcpStream::connect(kafka).await.expect("the Kafka door is open");
    stream.write_all(&claimed.to_be_bytes()).await.expect("it reads lengths");
    // A Produce, as far as one can tell.
    let piece = vec![0; 256 << 10];
    let mut sent = 0;
    // The last byte never comes.
    while sent + (piece.len() as u64) < u64::from(claimed) {
        match timeout(PATIENCE, stream.write(&piece)).await {
            Ok(Ok(count)) => sent += count as u64,
            Ok(Err(_)) | Err(_) => break,
        }
    }
    (stream, sent)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_of_the_largest_frames_leave_memory_bounded_and_others_served() {
    const KAFKA: u32 = 48;
    const GRPC: usize = 32;
    const STREAMS: usize = 4;
    let dir = tempfile::tempdir().expect("a temporary folder");
    let dev = Dev::start(&DevOptions::new(dir.path()));
    create(&dev.grpc, "t").await;
    is_served(&dev.grpc, "t").await;
    let before = resident_bytes(dev.pid());
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..KAFKA {
        let kafka = dev.kafka.clone();
        // The largest that is taken, and some of an ordinary size, all unfinished.
        let claimed = if number % 4 == 0 { 2 << 20 } else { 100 << 20 };
        tasks.spawn(async move { claim(&kafka, claimed).await });
    }
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..GRPC {
        let grpc = dev.grpc.clone();
        calls.spawn(async move {
            let mut connection = Connection::open(&grpc).await;
            // A message of 64 MiB, which lacks its end.
            let message = [&[0][..], &(64u32 << 20).to_be_bytes(), &vec![7; (64 << 20) - 1]].concat();
            let mut sent = 0;
            for _ in 0..STREAMS {
                let call = connection.call("/millpond.v1.Log/Produce").await;
                sent += connection.fill(call, &message, PATIENCE).await as u64;
            }
            (connection, sent)
        });
    }
    // While they try.
    is_served(&dev.grpc, "t").await;
    let sockets = tasks.join_all().await;
    let connections = calls.join_all().await;
    let (held, most) = (metric(&dev.http, "millpond_request_memory_bytes").await, 256.0 * MIB as f64);
    assert!(held <= most, "{held} of {most}");
    let claimed: u64 =
        sockets.iter().map(|(_, sent)| sent).sum::<u64>() + connections.iter().map(|(_, sent)| sent).sum::<u64>();
    let during = resident_bytes(dev.pid());
    println!(
        "claimed {} MiB, sent {} MiB; resident before {} MiB, during {} MiB, budget held {} MiB",
        u64::from(KAFKA) * 100 + (GRPC * STREAMS * 64) as u64,
        claimed / MIB,
        before / MIB,
        during / MIB,
        held as u64 / MIB,
    );
    assert!(claimed > 128 * MIB, "the claims were followed by bytes");
    // The budget, HTTP/2's windows of each connection, and slack for the allocator and a busy broker.
    let bound = before + 256 * MIB + GRPC as u64 * 2 * MIB + 128 * MIB;
    assert!(during < bound, "{} MiB of at most {} MiB", during / MIB, bound / MIB);
    is_served(&dev.grpc, "t").await;
    drop((sockets, connections));
    while metric(&dev.http, "millpond_request_memory_bytes").await > 0.0 {}
    is_served(&dev.grpc, "t").await;
    assert!(resident_bytes(dev.pid()) < bound);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_sends_slowly_cannot_keep_the_memory_from_others() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let config = millpond_broker::Config { request_memory_bytes: 8 << 20, ..config(dir.path()) };
    let broker = TestBroker::start(config, Arc::new(InMemory::new())).await;
    create(broker.grpc(), "t").await;
    // All of the memory for small requests, taken by frames that lack their end.
    let mut slow = Vec::new();
    for _ in 0..8 {
        slow.push(claim(broker.kafka(), 1 << 20).await.0);
    }
    let held = metric(broker.http(), "millpond_request_memory_bytes").await;
    assert!(held >= 3.5 * MIB as f64, "{held}");
    // Waits until they are let go, which takes seconds, not the minutes that the frames were given.
    is_served(broker.grpc(), "t").await;
    for mut stream in slow {
        let mut nothing = Vec::new();
        let ended = timeout(Duration::from_secs(60), stream.read_to_end(&mut nothing)).await;
        assert!(ended.is_ok(), "it was let go");
    }
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_read_answers_keeps_memory_only_while_nobody_needs_it() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let config = millpond_broker::Config {
        answer_memory_bytes: 16 << 20,
        // A burst of large batches finds room in the files that are ready.
        wal_file_bytes: 16 << 20,
        wal_bytes: 256 << 20,
        ..config(dir.path())
    };
    let broker = TestBroker::start(config, Arc::new(InMemory::new())).await;
    create(broker.grpc(), "t").await;
    let mut connection = wire::Connection::to(broker.kafka()).await;
    for _ in 0..16 {
        assert_eq!(connection.produce("t", 0, wire::batch(&[1], &vec![7; 900_000])).await.error_code, 0);
    }
    // 20 clients ask again and again for 2 MiB each and read nothing.
    let mut deaf = Vec::new();
    for number in 0..20 {
        let mut connection = wire::Connection::to(broker.kafka()).await;
        for id in 0..8 {
            connection.send(&wire::frame(12, id, &wire::fetch("t", &[(0, number % 8)], 2 << 20, 2 << 20))).await;
        }
        deaf.push(connection);
    }
    let held = metric(broker.http(), "millpond_answer_memory_bytes").await;
    assert!(held <= 16.0 * MIB as f64, "{held}");
    // One that does read gets everything, once the others lost what they kept.
    let mut offset = 0;
    while offset < 16 {
        let fetched = connection.fetch("t", 0, offset).await;
        assert_eq!(fetched.error_code, 0);
        offset = i64::try_from(wire::batches(&fetched).last().expect("there is more").end_offset().0).expect("small");
    }
    let held = metric(broker.http(), "millpond_answer_memory_bytes").await;
    assert!(held <= 16.0 * MIB as f64, "{held}");
    drop((deaf, connection));
    while metric(broker.http(), "millpond_answer_memory_bytes").await > 0.0 {}
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_over_the_bound_are_refused_and_one_that_ends_makes_room() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let config = millpond_broker::Config { connections_max: 4, ..config(dir.path()) };
    let broker = TestBroker::start(config, Arc::new(InMemory::new())).await;
    let mut inside = Vec::new();
    for _ in 0..4 {
        let mut connection = wire::Connection::to(broker.kafka()).await;
        connection.call(1, &kafka_protocol::messages::ApiVersionsRequest::default()).await;
        inside.push(connection);
    }
    let mut fifth = wire::Connection::to(broker.kafka()).await;
    assert_eq!(fifth.receive().await, None, "closed at once");
    assert_eq!(metric(broker.http(), "millpond_connections_refused_total").await, 1.0);
    drop(inside.pop());
    // The broker sees the end when it sees it.
    while metric(broker.http(), "millpond_connections").await > 4.0 {}
    let mut connection = wire::Connection::to(broker.kafka()).await;
    connection.call(1, &kafka_protocol::messages::ApiVersionsRequest::default()).await;

    let mut calls = Vec::new();
    for _ in 0..4 {
        calls.push(Connection::open(broker.grpc()).await);
    }
    let mut refused = TcpStream::connect(broker.grpc()).await.expect("the port is open");
    let mut said = Vec::new();
    refused.read_to_end(&mut said).await.expect("it is told why");
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(said.ends_with("too many connections"), "{said:?}");

    let mut scrapers = Vec::new();
    for _ in 0..4 {
        let mut scraper = TcpStream::connect(broker.http()).await.expect("the port is open");
        scraper.write_all(b"GET /livez HTTP/1.1\r\nhost: test\r\n\r\n").await.expect("it reads");
        scraper.read_u8().await.expect("it answers");
        scrapers.push(scraper);
    }
    assert_eq!(get(broker.http(), "/livez").await.expect("an answer").0, 503);
    drop((scrapers, calls));
    while get(broker.http(), "/livez").await.expect("an answer").0 != 200 {}
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grpc_message_over_the_bound_ends_its_call_only() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = TestBroker::start(config(dir.path()), Arc::new(InMemory::new())).await;
    create(broker.grpc(), "t").await;
    let mut connection = Connection::open(broker.grpc()).await;
    let head = |size: u32| [&[0][..], &size.to_be_bytes()].concat();
    for (method, size) in [
        ("Log/Produce", u32::MAX),
        ("Log/ProduceOne", 66 << 20),
        ("Log/Metadata", 2 << 20),
        ("Admin/CreateTopic", 2 << 20),
    ] {
        let call = connection.call(&format!("/millpond.v1.{method}")).await;
        connection.fill(call, &head(size), PATIENCE).await;
        // Trailers, or a reset: either way this call is over, and the next one goes on.
        let ended = timeout(Duration::from_secs(30), async {
            loop {
                match connection.event().await.expect("the connection lives") {
                    Event::GoAway(why) => panic!("the connection ends: {why}"),
                    Event::Other | Event::Reset(_) => break,
                    Event::Window(..) => {}
                }
            }
        });
        ended.await.expect("it ends");
    }
    is_served(broker.grpc(), "t").await;
    broker.stop().await;
}
