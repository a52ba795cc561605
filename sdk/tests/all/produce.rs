//! The producer over real streams that refuse, break and stay silent.

use crate::scripted::{Act, Scripted};
use futures::FutureExt;
use millpond_sdk::{
    Acks, Client, ClientConfig, Codec, Delivery, Error, ErrorCode, Producer, ProducerConfig, ProducerRecord,
};
use std::time::Duration;

async fn client(broker: &Scripted) -> Client {
    Client::connect(&broker.address).await.expect("connects")
}

fn quick() -> ProducerConfig {
    let mut config = ProducerConfig { linger: Duration::ZERO, ..ProducerConfig::default() };
    config.retry_backoff.first = Duration::from_millis(1);
    config
}

async fn send(producer: &Producer, value: &str) -> Delivery {
    let record = ProducerRecord::new("t").partition(0).value(value.to_owned());
    producer.send(record).await.expect("taken")
}

/// Sends records one batch each, playing `acts` on them; returns their offsets.
async fn deliver(acts: &[Act], config: ProducerConfig, count: usize) -> (Scripted, Vec<Result<u64, Error>>) {
    let broker = Scripted::start(1).await;
    broker.produce_acts(acts.iter().copied());
    let producer = Producer::new(&client(&broker).await, ProducerConfig { batch_bytes: 1, ..config }).expect("valid");
    let mut deliveries = Vec::new();
    for index in 0..count {
        deliveries.push(send(&producer, &index.to_string()).await);
    }
    let mut offsets = Vec::new();
    for delivery in deliveries {
        offsets.push(delivery.await.map(|metadata| metadata.offset.expect("acknowledged with an offset").0));
    }
    producer.close().await;
    (broker, offsets)
}

async fn check_delivered_once_in_order(acts: &[Act]) {
    let (broker, offsets) = deliver(acts, quick(), 12).await;
    let offsets: Vec<u64> = offsets.into_iter().map(|offset| offset.expect("written")).collect();
    assert_eq!(offsets, (0..12).collect::<Vec<u64>>(), "{acts:?}");
    let expected: Vec<String> = (0..12).map(|index| index.to_string()).collect();
    assert_eq!(broker.values(0), expected, "{acts:?}");
    assert!(broker.is_done(), "{acts:?} was played");
}

/// Whoever looks at many deliveries at once, in a task that does not yield between them, sees each that is there.
#[tokio::test]
async fn deliveries_that_are_here_are_seen_however_many_are_looked_at() {
    let broker = Scripted::start(1).await;
    let producer = Producer::new(&client(&broker).await, quick()).expect("valid");
    let mut deliveries = Vec::new();
    for index in 0..1000 {
        deliveries.push(send(&producer, &index.to_string()).await);
    }
    producer.flush().await;
    let seen = deliveries.into_iter().filter_map(FutureExt::now_or_never).filter(Result::is_ok).count();
    assert_eq!(seen, 1000);
}

#[tokio::test]
async fn records_are_written_once_and_in_order_whatever_the_stream_does() {
    let not_leader = Act::Refuse(ErrorCode::NotLeaderOrFollower);
    check_delivered_once_in_order(&[]).await;
    check_delivered_once_in_order(&[not_leader]).await;
    check_delivered_once_in_order(&[Act::CutBefore]).await;
    check_delivered_once_in_order(&[Act::CutAfter]).await;
    check_delivered_once_in_order(&[Act::Refuse(ErrorCode::RequestTimedOut)]).await;
    check_delivered_once_in_order(&[Act::CutAfter, not_leader, Act::CutBefore, Act::CutAfter]).await;
    check_delivered_once_in_order(&[Act::Refuse(ErrorCode::UnknownProducerId)]).await;
    check_delivered_once_in_order(&[Act::Refuse(ErrorCode::InvalidProducerEpoch)]).await;
}

#[tokio::test]
async fn a_silent_broker_is_left_and_its_batch_sent_again() {
    let config = ProducerConfig { request_timeout: Duration::from_millis(200), ..quick() };
    let broker = Scripted::start(1).await;
    broker.produce_acts([Act::Silence]);
    let producer = Producer::new(&client(&broker).await, config).expect("valid");
    let delivery = send(&producer, "a").await;
    assert_eq!(delivery.await.expect("written").offset.map(|offset| offset.0), Some(0));
    assert_eq!(broker.values(0), ["a"], "written once although sent twice");
    assert_eq!(broker.seen().len(), 2);
}

#[tokio::test]
async fn a_refused_record_fails_alone() {
    let acts = [Act::Refuse(ErrorCode::InvalidTimestamp)];
    let (broker, offsets) = deliver(&acts, quick(), 4).await;
    let codes: Vec<Option<ErrorCode>> = offsets.into_iter().map(|offset| offset.err().and_then(|e| e.code)).collect();
    assert_eq!(codes, [Some(ErrorCode::InvalidTimestamp), None, None, None]);
    assert_eq!(broker.values(0), ["1", "2", "3"]);
}

#[tokio::test]
async fn records_that_linger_share_a_batch_and_flush_sends_it() {
    let broker = Scripted::start(1).await;
    let config =
        ProducerConfig { linger: Duration::from_secs(60), compression: Codec::Zstd, ..ProducerConfig::default() };
    let producer = Producer::new(&client(&broker).await, config).expect("valid");
    let deliveries = [send(&producer, "a").await, send(&producer, "b").await, send(&producer, "c").await];
    producer.flush().await;
    assert_eq!(broker.seen(), [(0, Some(0), 3)]);
    for (delivery, expected) in deliveries.into_iter().zip(0..) {
        assert_eq!(delivery.await.expect("written").offset.map(|offset| offset.0), Some(expected));
    }
}

#[tokio::test]
async fn a_batch_too_large_is_halved_until_it_fits() {
    let broker = Scripted::start(1).await;
    broker.batch_bytes_max(200);
    let config = ProducerConfig { linger: Duration::from_secs(60), ..quick() };
    let producer = Producer::new(&client(&broker).await, config).expect("valid");
    let value = "x".repeat(50);
    let mut deliveries = Vec::new();
    for _ in 0..8 {
        deliveries.push(send(&producer, &value).await);
    }
    producer.flush().await;
    for (delivery, expected) in deliveries.into_iter().zip(0..) {
        assert_eq!(delivery.await.expect("written").offset.map(|offset| offset.0), Some(expected));
    }
    let too_large = send(&producer, &"y".repeat(500)).await;
    producer.flush().await;
    assert_eq!(too_large.await.expect_err("refused").code, Some(ErrorCode::MessageTooLarge));
}

#[tokio::test]
async fn full_memory_blocks_and_then_fails() {
    let broker = Scripted::start(1).await;
    broker.produce_acts([Act::Silence]);
    let config = ProducerConfig { buffer_memory: 1000, max_block: Duration::from_millis(20), ..quick() };
    let producer = Producer::new(&client(&broker).await, config).expect("valid");
    let _held = send(&producer, &"x".repeat(900)).await;
    let record = || ProducerRecord::new("t").partition(0).value("y".repeat(900));
    let error = producer.send(record()).await.expect_err("no room");
    assert_eq!(error.code, Some(ErrorCode::ThrottlingQuotaExceeded));
    let huge = ProducerRecord::new("t").partition(0).value("z".repeat(1001));
    assert_eq!(producer.send(huge).await.expect_err("never fits").code, Some(ErrorCode::MessageTooLarge));
    producer.abort();
    producer.close().await;
}

#[tokio::test]
async fn a_sender_that_waits_for_memory_goes_on_when_there_is_some() {
    let broker = Scripted::start(1).await;
    let config = ProducerConfig { buffer_memory: 1000, linger: Duration::from_secs(60), ..quick() };
    let producer = Producer::new(&client(&broker).await, config).expect("valid");
    for _ in 0..20 {
        // The linger of what fills memory is cut short, or this would take minutes.
        send(&producer, &"x".repeat(900)).await;
    }
    producer.close().await;
    assert_eq!(broker.values(0).len(), 20);
}

#[tokio::test]
async fn close_waits_for_what_was_taken_and_takes_no_more() {
    let broker = Scripted::start(1).await;
    broker.produce_acts([Act::CutBefore]);
    let config = ProducerConfig { linger: Duration::from_secs(60), ..quick() };
    let producer = Producer::new(&client(&broker).await, config).expect("valid");
    let delivery = send(&producer, "a").await;
    producer.close().await;
    assert_eq!(broker.values(0), ["a"]);
    delivery.await.expect("written");
    let record = ProducerRecord::new("t").partition(0);
    assert_eq!(producer.send(record).await.expect_err("closed").code, Some(ErrorCode::InvalidRequest));
}

#[tokio::test]
async fn records_without_acks_are_delivered_without_offset() {
    let broker = Scripted::start(1).await;
    let config = ProducerConfig { acks: Acks::None, ..quick() };
    let producer = Producer::new(&client(&broker).await, config).expect("valid");
    let delivery = send(&producer, "a").await;
    assert_eq!(delivery.await.expect("handed over").offset, None);
    producer.close().await;
    assert_eq!(broker.values(0), ["a"], "closing does not cut off what was handed over");
}

#[tokio::test]
async fn keys_go_where_java_puts_them() {
    let broker = Scripted::start(5).await;
    let producer = Producer::new(&client(&broker).await, quick()).expect("valid");
    for key in ["21", "foobar", "abc"] {
        let delivery = producer.send(ProducerRecord::new("t").key(key).value(key)).await.expect("taken");
        let expected = (millpond_sdk::murmur2(key.as_bytes()).cast_unsigned() & 0x7fff_ffff) % 5;
        assert_eq!(delivery.await.expect("written").partition, expected);
    }
}

#[tokio::test]
async fn what_does_not_exist_is_refused_at_once() {
    let broker = Scripted::start(1).await;
    let producer = Producer::new(&client(&broker).await, quick()).expect("valid");
    let error = producer.send(ProducerRecord::new("nowhere")).await.expect_err("no topic");
    assert_eq!(error.code, Some(ErrorCode::UnknownTopicOrPartition));
    let error = producer.send(ProducerRecord::new("t").partition(1)).await.expect_err("no partition");
    assert_eq!(error.code, Some(ErrorCode::UnknownTopicOrPartition));
    assert!(!error.retriable, "{error}");
}

#[tokio::test]
async fn many_who_miss_a_topic_ask_once() {
    let broker = Scripted::start(1).await;
    let producer = Producer::new(&client(&broker).await, quick()).expect("valid");
    let sends = (0..50).map(|_| send(&producer, "a"));
    futures::future::join_all(sends).await;
    assert_eq!(broker.metadata_calls(), 2, "one to connect, one for the topic");
}

#[tokio::test]
async fn nobody_at_the_address_is_said_with_the_address() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    drop(listener);
    let error = Client::connect(&address).await.expect_err("nobody there");
    assert!(error.to_string().contains(&address) && error.to_string().contains("refused"), "{error}");
}

#[tokio::test]
async fn a_kafka_port_is_named_as_such() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    let server = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.expect("accepts");
            tokio::spawn(async move {
                // As a Kafka broker: a length that is too large ends the connection.
                let length = stream.read_u32().await.unwrap_or(u32::MAX);
                if length > 1 << 20 {
                    return;
                }
                let mut request = vec![0; length as usize];
                stream.read_exact(&mut request).await.expect("a whole request");
                let answer = [&[0, 0, 0, 10], &request[4..8], &[0; 6]].concat();
                stream.write_all(&answer).await.expect("still there");
            });
        }
    });
    let config = ClientConfig::new(&address).expect("an address");
    let error = Client::with_config(config).await.expect_err("not gRPC");
    assert_eq!(error.to_string(), format!("{address} speaks Kafka; use 7400"));
    assert!(!error.retriable);
    server.abort();
}

/// Order and uniqueness over a change of leaders with batches in flight, and no question in between (KIP-951).
#[tokio::test]
async fn batches_in_flight_follow_a_leader_that_is_named_in_order_and_without_asking() {
    let brokers = Scripted::start_pair(1).await;
    let client = Client::connect(&brokers.address).await.expect("connects");
    let producer = Producer::new(&client, ProducerConfig { batch_bytes: 1, ..quick() }).expect("valid");
    send(&producer, "first").await.await.expect("written");
    let asked = brokers.metadata_calls();
    // As a deposed leader does: whatever it still gets is refused.
    brokers.produce_acts([Act::Redirect; 5]);
    let mut deliveries = Vec::new();
    for index in 0..20 {
        deliveries.push(send(&producer, &index.to_string()).await);
    }
    for (index, delivery) in (1..).zip(deliveries) {
        assert_eq!(delivery.await.expect("written").offset.map(|offset| offset.0), Some(index));
    }
    producer.close().await;
    let expected: Vec<String> =
        std::iter::once("first".to_owned()).chain((0..20).map(|index| index.to_string())).collect();
    assert_eq!(brokers.values(0), expected);
    assert_eq!(brokers.metadata_calls(), asked);
    let by = brokers.seen_by();
    let moved = by.iter().position(|broker| *broker == 1).expect("it moved");
    assert!(by[moved..].iter().all(|broker| *broker == 1), "nothing goes back: {by:?}");
    assert!(moved <= 6, "what was in flight was refused, and nothing else sent there: {by:?}");
}

/// A leader that takes batches and says nothing is left as soon as another is known to lead, long before its answer is overdue.
#[tokio::test]
async fn a_silent_leader_is_left_when_another_is_elected() {
    let brokers = Scripted::start_pair(1).await;
    let client = Client::connect(&brokers.address).await.expect("connects");
    let producer = Producer::new(&client, quick()).expect("valid");
    send(&producer, "0").await.await.expect("written");
    brokers.produce_acts([Act::Silence]);
    let silent = send(&producer, "1").await;
    brokers.elect(1);
    assert_eq!(silent.await.expect("written").offset.map(|offset| offset.0), Some(1), "rule P3: it was written once");
    producer.close().await;
    assert_eq!(brokers.values(0), ["0", "1"]);
    assert_eq!(brokers.seen_by(), [0, 0, 1]);
}

/// An election takes its time: who leads is asked again for as long as the answer is owed.
#[tokio::test]
async fn who_leads_is_asked_until_another_does() {
    let brokers = Scripted::start_pair(1).await;
    let client = Client::connect(&brokers.address).await.expect("connects");
    let producer = Producer::new(&client, quick()).expect("valid");
    send(&producer, "0").await.await.expect("written");
    brokers.produce_acts([Act::Silence]);
    let (silent, asked) = (send(&producer, "1").await, brokers.metadata_calls());
    let mut poll = tokio::time::interval(Duration::from_millis(20));
    while brokers.metadata_calls() < asked + 3 {
        poll.tick().await;
    }
    brokers.elect(1);
    assert_eq!(silent.await.expect("written").offset.map(|offset| offset.0), Some(1));
    producer.close().await;
    assert_eq!(brokers.seen_by(), [0, 0, 1], "nothing was sent elsewhere before");
}
