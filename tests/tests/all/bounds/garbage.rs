//! Bytes that are no request, on every port: random ones, cut ones, other protocols'. After each the broker lives, serves, and holds no
//! memory for it.

use crate::kafka::produce::{VECTORS, unplaced, vectors};
use crate::kafka::wire;
use bytes::Bytes;
use millpond_proto::v1;
use millpond_proto::v1::log_client::LogClient;
use millpond_tests::broker::{TestBroker, config};
use millpond_tests::http::{get, metric};
use object_store::memory::InMemory;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn start(dir: &std::path::Path) -> TestBroker {
    let broker = TestBroker::start(config(dir), Arc::new(InMemory::new())).await;
    wire::Connection::to(broker.kafka()).await.create("t", 1, &[]).await;
    broker
}

/// Sends bytes and the end of the stream, and returns what came back until the broker closed.
async fn send(address: &str, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).await.expect("the port is open");
    // The broker may close before all is sent, and reset what it did not read.
    let _ = stream.write_all(bytes).await;
    let _ = stream.shutdown().await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    answer
}

/// All three doors do their work, and no memory is held.
async fn lives(broker: &TestBroker, after: &str) {
    assert_eq!(get(broker.http(), "/readyz").await.expect(after).0, 200, "after {after}");
    let mut kafka = wire::Connection::to(broker.kafka()).await;
    assert_eq!(kafka.produce("t", 0, wire::batch(&[1], b"v")).await.error_code, 0, "after {after}");
    let mut grpc = LogClient::connect(format!("http://{}", broker.grpc())).await.expect(after);
    let fetch = v1::FetchOneRequest { topic: Some(v1::TopicRef::name("t")), ..Default::default() };
    grpc.fetch_one(fetch).await.expect(after);
    // What a connection held is given back once the broker has seen its end.
    while metric(broker.http(), "millpond_request_memory_bytes").await > 0.0 {}
    while metric(broker.http(), "millpond_answer_memory_bytes").await > 0.0 {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_bytes_on_any_port_stop_the_broker() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start(dir.path()).await;
    let seed = rand::random();
    println!("SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let good = wire::frame(9, 1, &wire::produce(-1, "t", &[(0, wire::batch(&[1, 2, 3], b"value"))]));
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let settings = [&preface[..], b"\0\0\0\x04\0\0\0\0\0"].concat();
    for address in [broker.kafka(), broker.grpc(), broker.http()] {
        for round in 0..30 {
            let noise: Vec<u8> = (0..random.random_range(1..4000)).map(|_| random.random()).collect();
            send(address, &noise).await;
            // Behind what looks right at first, so that it gets further in.
            let length = u32::try_from(noise.len()).expect("small").to_be_bytes();
            let key = [0, random.random_range(0..23), 0, random.random_range(0..13)];
            send(address, &[&length[..], &key, &noise[..noise.len() - 1]].concat()).await;
            send(address, &[&settings, &noise[..]].concat()).await;
            // A request that is right but for one byte, or for its end.
            let mut flipped = good.to_vec();
            let place = random.random_range(4..flipped.len());
            flipped[place] ^= 1 << random.random_range(0..8);
            send(address, &flipped).await;
            send(address, &good[..good.len() * round / 30]).await;
        }
        lives(&broker, &format!("noise on {address}")).await;
    }
    for claimed in [u32::MAX, i32::MAX as u32, (100 << 20) + 1, 0, 1, 7] {
        assert!(send(broker.kafka(), &claimed.to_be_bytes()).await.is_empty(), "a frame of {claimed} has no answer");
    }
    lives(&broker, "lengths").await;
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_protocols_on_a_port_are_turned_away() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start(dir.path()).await;
    let versions = wire::frame(0, 1, &kafka_protocol::messages::ApiVersionsRequest::default());
    let http = b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n";
    let tls = b"\x16\x03\x01\x00\x2f\x01\x00\x00\x2b\x03\x03";
    assert!(send(broker.kafka(), http).await.is_empty());
    assert!(send(broker.kafka(), tls).await.is_empty());
    // The client of gRPC learns of it by the end of its connection; what it says then is the SDK's affair.
    LogClient::connect(format!("http://{}", broker.kafka()))
        .await
        .expect("TCP connects")
        .metadata(v1::MetadataRequest::default())
        .await
        .expect_err("that is the Kafka door");
    for (bytes, from) in [(&versions[..], "Kafka"), (http, "HTTP"), (tls, "TLS")] {
        let answer = send(broker.grpc(), bytes).await;
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{from} is no gRPC: {answer:?}");
    }
    for (bytes, from) in [(&versions[..], "Kafka"), (tls, "TLS"), (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "gRPC")] {
        let answer = send(broker.http(), bytes).await;
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{from} is no HTTP/1: {answer:?}");
    }
    assert_eq!(get(broker.http(), "/no-such-page").await.expect("an answer").0, 404);
    lives(&broker, "other protocols").await;
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_vector_over_grpc_is_stored_as_it_came_or_refused() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start(dir.path()).await;
    let mut kafka = wire::Connection::to(broker.kafka()).await;
    let mut grpc = LogClient::connect(format!("http://{}", broker.grpc())).await.expect("the door is open");
    let vectors = vectors();
    for (vector, codes) in VECTORS {
        kafka.create(vector, 1, &[]).await;
        let topic = Some(v1::TopicRef::name(vector));
        let records = Some(vectors[vector].clone().into());
        let request = v1::ProduceRequest { topic: topic.clone(), records, ..Default::default() };
        let produced = grpc.produce_one(request).await;
        let fetch = v1::FetchOneRequest { topic, ..Default::default() };
        let fetched = grpc.fetch_one(fetch).await.expect("an empty log can be read").into_inner();
        let stored = fetched.records.unwrap_or_default().into_bytes();
        if codes == [0] {
            assert_eq!(produced.expect(vector).into_inner().base_offset, Some(0), "{vector}");
            assert_eq!(unplaced(&stored), unplaced(&vectors[vector]), "{vector}");
        } else {
            let refused = produced.expect_err(vector);
            assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{vector}: {refused:?}");
            assert!(!refused.message().is_empty() && stored.is_empty(), "{vector}: nothing stored, and it says why");
        }
    }
    lives(&broker, "the vectors over gRPC").await;
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_there_is_named_by_both_doors() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start(dir.path()).await;
    let mut kafka = wire::Connection::to(broker.kafka()).await;
    let mut grpc = LogClient::connect(format!("http://{}", broker.grpc())).await.expect("the door is open");
    assert_eq!(kafka.fetch("nothing", 0, 0).await.error_code, 3);
    assert_eq!(kafka.fetch("t", 1, 0).await.error_code, 3);
    assert_eq!(kafka.fetch("t", 0, 99).await.error_code, 1, "OFFSET_OUT_OF_RANGE");
    assert_eq!(kafka.produce("t", 7, wire::batch(&[1], b"v")).await.error_code, 3);
    assert_eq!(kafka.produce("t", 0, Bytes::new()).await.error_code, 87);
    let fetch = |topic: &str, partition, offset| v1::FetchOneRequest {
        topic: Some(v1::TopicRef::name(topic)),
        partition,
        offset,
        ..Default::default()
    };
    for (request, code, names) in [
        (fetch("nothing", 0, 0), tonic::Code::NotFound, "nothing"),
        (fetch("t", 1, 0), tonic::Code::NotFound, "1"),
        (fetch("t", 0, 99), tonic::Code::OutOfRange, "99"),
        (v1::FetchOneRequest::default(), tonic::Code::InvalidArgument, "topic"),
    ] {
        let status = grpc.fetch_one(request).await.expect_err(names);
        assert_eq!(status.code(), code, "{status:?}");
        assert!(status.message().contains(names), "{status:?}");
    }
    lives(&broker, "requests for what is not there").await;
    broker.stop().await;
}
