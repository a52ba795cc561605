//! Requests whose caller goes away at every point where it can: what they took is given back, and a produce is in the log whole or not
//! at all.

use bytes::Bytes;
use futures::FutureExt;
use millpond_broker::api::{Acks, FetchPartition, FetchRequest, Isolation, NewTopic, ProduceRequest, Reader, TopicRef};
use millpond_log::batch::{BatchBuilder, NewRecord};
use millpond_log::codec::Codec;
use millpond_log::{Offset, TimestampMs};
use millpond_sdk::{Admin, Client};
use millpond_tests::broker::{TestBroker, config};
use millpond_tests::http::metric;
use object_store::memory::InMemory;
use object_store::throttle::{ThrottleConfig, ThrottledStore};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// A future that is dropped at its `polls`-th poll, if it is not ready before.
struct Dropped<F> {
    future: Option<Pin<Box<F>>>,
    polls: usize,
}

fn dropped_at<F: Future>(polls: usize, future: F) -> Dropped<F> {
    Dropped { future: Some(Box::pin(future)), polls }
}

impl<F: Future> Future for Dropped<F> {
    /// `None` when it was dropped.
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<F::Output>> {
        if self.polls == 0 {
            self.future = None;
            return Poll::Ready(None);
        }
        self.polls -= 1;
        let ready = self.future.as_mut().expect("it is not polled again").poll_unpin(context);
        match ready {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if self.polls == 0 => {
                // Nobody waits for it any more, so nobody is woken to drop it.
                self.future = None;
                Poll::Ready(None)
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

fn topic() -> TopicRef {
    TopicRef::Name("t".to_owned())
}

fn batch(number: u64, size: usize) -> Bytes {
    let mut builder = BatchBuilder::new(Codec::None);
    let key = number.to_be_bytes();
    let value = vec![7; size];
    builder.push(NewRecord { timestamp: TimestampMs(1), key: Some(&key), value: Some(&value), headers: &[] });
    let mut bytes = Vec::new();
    builder.build().put(&mut bytes);
    bytes.into()
}

fn produce(records: Bytes) -> ProduceRequest {
    ProduceRequest {
        topic: topic(),
        partition: 0,
        arrived_bytes: records.len(),
        records,
        behind: None,
        transaction: None,
        acks: Acks::All,
        timeout: Duration::from_secs(60),
    }
}

fn fetch(offset: u64, bytes_min: usize, wait_max: Duration) -> FetchRequest {
    FetchRequest {
        partitions: vec![FetchPartition {
            topic: topic(),
            partition: 0,
            offset: Offset(offset),
            bytes_max: 1 << 20,
            current_leader_epoch: None,
            last_fetched_epoch: None,
            reader: Reader::Anywhere,
        }],
        bytes_max: 1 << 20,
        bytes_min,
        wait_max,
        isolation: Isolation::ReadUncommitted,
        scan: false,
    }
}

async fn start(dir: &std::path::Path, produce_memory_bytes: u32) -> TestBroker {
    let config = millpond_broker::Config {
        produce_memory_bytes,
        // A burst of large batches finds room in the files that are ready.
        wal_file_bytes: 16 << 20,
        wal_bytes: 256 << 20,
        answer_memory_bytes: 2 << 20,
        // Nothing stays in memory for readers: they go to the files, or to the object store.
        tail_memory_bytes: 0,
        cache_memory_bytes: 16 << 20,
        cache_disk_bytes: 0,
        ..config(dir)
    };
    // Each read takes a while, as from a bucket.
    let slow = ThrottleConfig { wait_get_per_call: Duration::from_millis(2), ..ThrottleConfig::default() };
    let broker = TestBroker::start(config, Arc::new(ThrottledStore::new(InMemory::new(), slow))).await;
    broker.handle().create_topic(NewTopic { name: "t".to_owned(), ..NewTopic::default() }).await.expect("it is new");
    broker
}

/// The numbers of all records, in order.
async fn numbers(broker: &TestBroker) -> Vec<u64> {
    let mut numbers = Vec::new();
    let mut offset = 0;
    loop {
        let fetched = broker.handle().fetch(fetch(offset, 0, Duration::from_secs(60))).await.remove(0);
        assert_eq!(fetched.error, None);
        let Some(last) = fetched.batches.last() else { return numbers };
        offset = last.end_offset().0;
        for batch in &fetched.batches {
            let mut bytes = Vec::new();
            batch.put(&mut bytes);
            numbers.push(key_of(&bytes));
        }
    }
}

/// The first record's key: behind the batch's header come length, attributes, two deltas and the key's length, each as a varint.
fn key_of(batch: &[u8]) -> u64 {
    let mut at = 61;
    while batch[at] & 0x80 != 0 {
        at += 1;
    }
    let key = &batch[at + 5..at + 13];
    u64::from_be_bytes(key.try_into().expect("eight bytes"))
}

#[tokio::test]
async fn a_produce_that_nobody_waits_for_is_appended_whole_or_not_and_gives_back_its_memory() {
    const MEMORY: u32 = 64 << 10;
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start(dir.path(), MEMORY).await;
    let mut acknowledged = Vec::new();
    let mut unknown = Vec::new();
    let mut number = 0;
    let (mut in_admission, mut in_commit) = (0, 0);
    for round in 0..40 {
        // Three fill the memory, so that the fourth waits for it; each is dropped at another poll.
        let calls = (0..4).map(|place| {
            number += 1;
            let (id, records) = (number, batch(number, 20 << 10));
            let handle = broker.handle().clone();
            let polls = 1 + (round + place) % 5;
            async move {
                let admitted = dropped_at(polls, handle.produce(produce(records))).await;
                match admitted {
                    None => (id, "in admission"),
                    Some(admitted) => match dropped_at(polls, admitted.expect("there is room")).await {
                        None => (id, "in commit"),
                        Some(result) => {
                            result.expect("it is committed");
                            (id, "acknowledged")
                        }
                    },
                }
            }
        });
        for (id, end) in futures::future::join_all(calls).await {
            match end {
                "acknowledged" => acknowledged.push(id),
                "in commit" => {
                    in_commit += 1;
                    unknown.push(id);
                }
                _ => in_admission += 1,
            }
        }
    }
    println!("{} acknowledged, {in_admission} dropped in admission, {in_commit} in commit", acknowledged.len());
    assert!(in_admission > 0 && in_commit > 0 && !acknowledged.is_empty(), "each way was taken");
    // All of the produce memory at once: nothing was kept of it. And whatever was under way before it is in the log by then.
    let last = produce(batch(0, MEMORY as usize - 200));
    broker.handle().produce(last).await.expect("the memory is free").await.expect("committed");
    let mut expected: Vec<u64> = acknowledged.iter().chain(&unknown).copied().collect();
    expected.sort_unstable();
    let mut found = numbers(&broker).await;
    assert_eq!(found.pop(), Some(0));
    let mut sorted = found.clone();
    sorted.sort_unstable();
    // What was admitted is appended although nobody waits; what was not never is; nothing is there twice.
    assert_eq!(sorted, expected);
    broker.stop().await;
}

#[tokio::test]
async fn a_fetch_dropped_at_any_point_changes_nothing() {
    const BATCHES: u64 = 20;
    let dir = tempfile::tempdir().expect("a temporary folder");
    let broker = start(dir.path(), 2 << 20).await;
    for number in 0..BATCHES {
        let produced = broker.handle().produce(produce(batch(number, 900 << 10))).await.expect("there is room");
        produced.await.expect("committed");
    }
    let expected: Vec<u64> = (0..BATCHES).collect();
    for place in ["files", "object store", "nothing new"] {
        if place == "object store" {
            let admin = Admin::new(&Client::connect(broker.grpc()).await.expect("it is up"));
            admin.flush_topic("t").await.expect("the object store is there");
        }
        let mut dropped = 0;
        for offset in 0..BATCHES {
            // Each batch is read for the first time here. Some are in memory all the same, and ready at once.
            let polls = 1 + offset as usize % 2;
            let (offset, wait) = match place {
                "nothing new" => (BATCHES, Duration::from_millis(5)),
                _ => (offset, Duration::from_secs(60)),
            };
            let ended = dropped_at(polls, broker.handle().fetch(fetch(offset, 1, wait))).await;
            dropped += usize::from(ended.is_none());
            let held = metric(broker.http(), "millpond_answer_memory_bytes").await;
            assert_eq!(held, 0.0, "dropped at poll {polls} of a read from {place}");
        }
        println!("{dropped} of {BATCHES} reads from {place} were dropped");
        assert!(dropped > 0, "none from {place}");
        assert_eq!(numbers(&broker).await, expected, "after reads from {place}");
    }
    broker.stop().await;
}
