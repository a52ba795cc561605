//! What clients cost a broker in memory when they read nothing, send much, ask for everything, or only stay: a process of its own,
//! whose resident memory is looked at while they do. Bounds are those of the broker's budgets, and slack for the allocator.

use super::wire::{Connection, batch, batches, fetch, frame, name, produce};
use crate::bounds::attack::{create, is_served};
use kafka_protocol::messages as kafka;
use kafka_protocol::protocol::{Decodable, HeaderVersion, Request};
use millpond_tests::http::metric;
use millpond_tests::process::{Dev, DevOptions, open_many_files, resident_bytes};
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

const MIB: u64 = 1 << 20;

/// What a broker keeps for answers, and for requests, over all doors.
const ANSWERS: u64 = 256 * MIB;
const REQUESTS: u64 = 256 * MIB;

/// What it keeps of the batches that were written last.
const TAIL: u64 = 64 * MIB;

/// What sessions of readers may hold, and what one partition in one takes of it.
const SESSIONS: u64 = 64 * MIB;
const SESSION_PARTITION: u64 = 1 << 10;

/// For the allocator, the cache and whatever else a broker does meanwhile.
const SLACK: u64 = 96 * MIB;

/// A connection whose kernel keeps little for a client that does not read.
async fn deaf(kafka: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("there are sockets");
    socket.set_recv_buffer_size(4 << 10).expect("it is a size");
    socket.connect(kafka.parse().expect("an address")).await.expect("the Kafka door is open")
}

async fn start() -> (Dev, TempDir) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let dev = Dev::start(&DevOptions::new(dir.path()));
    // What every broker has after its first clients is nobody's cost.
    create(&dev.grpc, "t").await;
    is_served(&dev.grpc, "t").await;
    (dev, dir)
}

async fn answer<R: Request>(connection: &mut Connection, version: i16) -> R::Response {
    let mut bytes = connection.receive().await.expect("the broker answers");
    kafka::ResponseHeader::decode(&mut bytes, R::Response::header_version(version)).expect("a header");
    R::Response::decode(&mut bytes, version).expect("an answer of this version")
}

/// Waits until so much is held for answers that others have to wait.
async fn answers_are_full(dev: &Dev) {
    while metric(&dev.http, "millpond_answer_memory_bytes").await < (ANSWERS / 8 * 7) as f64 {}
}

fn tell(what: &str, before: u64, during: u64, bound: u64) {
    let growth = during.saturating_sub(before);
    println!(
        "{what}: resident {} KiB before, {} KiB more at its most, of {} KiB",
        before >> 10,
        growth >> 10,
        bound >> 10
    );
    assert!(growth <= bound, "{what}: {growth} bytes more, of {bound}");
}

/// The most that a process has resident until `work` is done.
async fn most_resident<T>(pid: u32, work: impl Future<Output = T>) -> (u64, T) {
    let mut work = std::pin::pin!(work);
    let mut clock = tokio::time::interval(Duration::from_millis(50));
    let mut most = 0;
    loop {
        most = most.max(resident_bytes(pid));
        tokio::select! {
            done = &mut work => return (most.max(resident_bytes(pid)), done),
            _ = clock.tick() => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumers_that_ask_for_much_and_read_nothing_take_no_more_than_the_answers_memory() {
    const CONSUMERS: usize = 32;
    const REQUESTS_EACH: usize = 8;
    /// More than is kept in memory of what was written last, so that each read is a copy of its own.
    const PARTITIONS: i32 = 5;
    const BATCHES: i64 = 40;
    let (dev, _dir) = start().await;
    let mut connection = Connection::to(&dev.kafka).await;
    connection.create("much", PARTITIONS, &[]).await;
    for partition in 0..PARTITIONS {
        for _ in 0..BATCHES {
            let records = batch(&[1], &vec![7; 1_000_000]);
            assert_eq!(connection.produce("much", partition, records.clone()).await.error_code, 0);
        }
    }
    let before = resident_bytes(dev.pid());
    let mut deafs = Vec::new();
    let work = async {
        for consumer in 0..CONSUMERS {
            let mut stream = deaf(&dev.kafka).await;
            let partition = i32::try_from(consumer).expect("small") % (PARTITIONS - 2);
            let asked = fetch("much", &[(partition, 0)], 50 << 20, 50 << 20);
            let requests: Vec<_> = (0..REQUESTS_EACH).map(|_| frame(12, 1, &asked)).collect();
            stream.write_all(&requests.concat()).await.expect("the broker reads");
            deafs.push(stream);
        }
        answers_are_full(&dev).await;
        // One that does read gets all of it, once the others have lost what they kept.
        let mut offset = 0;
        while offset < BATCHES {
            let fetched = connection.fetch("much", 0, offset).await;
            assert_eq!(fetched.error_code, 0);
            let end = batches(&fetched).last().expect("there is more").end_offset().0;
            offset = i64::try_from(end).expect("small");
        }
    };
    let (most, ()) = most_resident(dev.pid(), work).await;
    tell("32 consumers that asked for 12 800 MiB", before, most, ANSWERS + SLACK);
    drop(deafs);
    while metric(&dev.http, "millpond_answer_memory_bytes").await > 0.0 {}
    is_served(&dev.grpc, "t").await;
    dev.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn producers_with_64_mib_under_way_that_read_no_answer_take_no_more_than_the_requests_memory() {
    const PRODUCERS: usize = 10;
    const BATCHES: usize = 256;
    let (dev, _dir) = start().await;
    let mut connection = Connection::to(&dev.kafka).await;
    connection.create("much", i32::try_from(PRODUCERS).expect("small"), &[]).await;
    let before = resident_bytes(dev.pid());
    let work = async {
        let mut producers = JoinSet::new();
        for partition in 0..i32::try_from(PRODUCERS).expect("small") {
            let kafka = dev.kafka.clone();
            producers.spawn(async move {
                let mut connection = Connection::to(&kafka).await;
                let request = frame(9, 1, &produce(-1, "much", &[(partition, batch(&[1], &vec![7; 256 << 10]))]));
                for _ in 0..BATCHES {
                    connection.send(&request).await;
                }
                connection
            });
        }
        producers.join_all().await
    };
    let (most, producers) = most_resident(dev.pid(), work).await;
    // Half of the requests' memory is kept for larger ones.
    tell("10 producers that sent 64 MiB each", before, most, REQUESTS / 2 + TAIL + SLACK);
    for mut producer in producers {
        for offset in 0..BATCHES {
            let landed = answer::<kafka::ProduceRequest>(&mut producer, 9).await;
            let landed = &landed.responses[0].partition_responses[0];
            let offset = i64::try_from(offset).expect("small");
            assert_eq!((landed.error_code, landed.base_offset), (0, offset), "each is answered, in order");
        }
    }
    is_served(&dev.grpc, "t").await;
    dev.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_connections_that_are_idle_or_sent_half_a_request_cost_little_each() {
    const CONNECTIONS: u64 = 2_000;
    /// Buffers, the connection's state and its task.
    const IDLE: u64 = 24 << 10;
    /// The first room of an arriving request.
    const HALF: u64 = 8 << 10;
    open_many_files();
    let (dev, _dir) = start().await;
    let before = resident_bytes(dev.pid());
    let mut idle = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut connection = Connection::to(&dev.kafka).await;
        connection.call(3, &kafka::ApiVersionsRequest::default()).await;
        idle.push(connection);
    }
    let slack = 8 * MIB;
    tell("2 000 idle connections", before, resident_bytes(dev.pid()), CONNECTIONS * IDLE + slack);
    // A claim of 2 MiB, and the first 4 KiB.
    let half = [&(2i32 << 20).to_be_bytes()[..], &vec![0; 4 << 10]].concat();
    for connection in &mut idle {
        connection.send(&half).await;
    }
    let arrived = CONNECTIONS * HALF;
    while metric(&dev.http, "millpond_request_memory_bytes").await < arrived as f64 {}
    let bound = CONNECTIONS * (IDLE + HALF) + slack;
    tell("2 000 that sent half a request", before, resident_bytes(dev.pid()), bound);
    is_served(&dev.grpc, "t").await;
    drop(idle);
    while metric(&dev.http, "millpond_request_memory_bytes").await > 0.0 {}
    dev.stop();
}

const PARTITIONS: i32 = 10_000;

/// Made in steps: on a busy machine all of them at once take longer than an answer is waited for.
async fn with_ten_thousand_partitions() -> (Dev, TempDir) {
    let (dev, dir) = start().await;
    let mut connection = Connection::to(&dev.kafka).await;
    connection.create("many", PARTITIONS / 10, &[]).await;
    for count in (PARTITIONS / 10..=PARTITIONS).step_by(500).skip(1) {
        let grown = kafka::create_partitions_request::CreatePartitionsTopic::default()
            .with_name(name("many"))
            .with_count(count)
            .with_assignments(None);
        let request = kafka::CreatePartitionsRequest::default().with_topics(vec![grown]).with_timeout_ms(60_000);
        // Until it is so, whatever became of the request: a broker may lose its session meanwhile.
        while partitions_of_many(&mut connection).await < count {
            connection.call(3, &request).await;
        }
    }
    (dev, dir)
}

async fn partitions_of_many(connection: &mut Connection) -> i32 {
    let described = connection.call(12, &kafka::MetadataRequest::default().with_topics(None)).await;
    let many = described.topics.iter().find(|topic| topic.name == Some(name("many"))).expect("it is there");
    i32::try_from(many.partitions.len()).expect("small")
}

/// A request of a session over all partitions, or over what changed.
fn of_session(id: i32, epoch: i32, changed: &[(i32, i64)]) -> kafka::FetchRequest {
    let request = fetch("many", changed, 50 << 20, 1 << 20).with_session_id(id).with_session_epoch(epoch);
    if changed.is_empty() { request.with_topics(Vec::new()) } else { request }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumers_of_ten_thousand_partitions_take_no_more_than_what_sessions_may() {
    let (dev, _dir) = with_ten_thousand_partitions().await;
    let mut connection = Connection::to(&dev.kafka).await;
    assert_eq!(partitions_of_many(&mut connection).await, 10_000);
    let partition = |index| {
        kafka::list_offsets_request::ListOffsetsPartition::default().with_partition_index(index).with_timestamp(-1)
    };
    let topic = kafka::list_offsets_request::ListOffsetsTopic::default()
        .with_name(name("many"))
        .with_partitions((0..PARTITIONS).map(partition).collect());
    let request = kafka::ListOffsetsRequest::default().with_replica_id((-1).into()).with_topics(vec![topic]);
    // On a busy machine a broker may lose its session, and lead again a little later.
    loop {
        let listed = connection.call(7, &request).await.topics.remove(0);
        assert_eq!(listed.partitions.len(), 10_000);
        if listed.partitions.iter().all(|found| found.error_code == 0) {
            assert!(listed.partitions.iter().all(|found| found.offset == 0));
            break;
        }
    }

    let all: Vec<(i32, i64)> = (0..PARTITIONS).map(|partition| (partition, 0)).collect();
    let before = resident_bytes(dev.pid());
    let work = async {
        let (mut readers, mut declined) = (Vec::new(), 0);
        for _ in 0..8 {
            let mut reader = Connection::to(&dev.kafka).await;
            let opened = reader.call(12, &of_session(0, 0, &all)).await;
            assert_eq!(opened.responses.iter().map(|topic| topic.partitions.len()).sum::<usize>(), 10_000);
            match opened.session_id {
                0 => declined += 1,
                id => readers.push((reader, id)),
            }
        }
        let kept = SESSIONS / (SESSION_PARTITION * PARTITIONS.unsigned_abs() as u64);
        assert_eq!(
            (readers.len() as u64, declined),
            (kept, 8 - kept),
            "there is room for so many, and the others are told"
        );
        // All of them wait at once, and each record wakes all.
        for (reader, id) in &mut readers {
            let waiting = of_session(*id, 1, &[]).with_max_wait_ms(600_000).with_min_bytes(1);
            reader.send(&frame(12, 1, &waiting)).await;
        }
        assert_eq!(connection.produce("many", 9_999, batch(&[1], b"v")).await.error_code, 0);
        for (reader, id) in &mut readers {
            let woken = answer::<kafka::FetchRequest>(reader, 12).await;
            assert_eq!(woken.session_id, *id);
            let told: Vec<i32> = woken.responses[0].partitions.iter().map(|data| data.partition_index).collect();
            assert_eq!(told, [9_999], "its answer names one partition of 10 000");
        }
        readers.len() as u64
    };
    let (most, sessions) = most_resident(dev.pid(), work).await;
    let growth = most.saturating_sub(before);
    println!("{} bytes a partition of a session", growth / (sessions * PARTITIONS.unsigned_abs() as u64));
    tell("6 consumers of 10 000 partitions in a session each", before, most, SESSIONS + SLACK / 2);
    dev.stop();
}

/// A question of twenty bytes has an answer of half a MiB, and a connection may have 64 of them under way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_lists_ten_thousand_partitions_and_reads_nothing_takes_no_more_than_the_answers_memory() {
    const CLIENTS: usize = 48;
    /// So many are made at once, and what one takes until it is a frame.
    const LISTS_AT_ONCE: u64 = 16;
    const LIST: u64 = 4 * MIB;
    const REQUESTS_EACH: usize = 64;
    let (dev, _dir) = with_ten_thousand_partitions().await;
    let mut connection = Connection::to(&dev.kafka).await;
    let all = kafka::MetadataRequest::default().with_topics(None);
    connection.send(&frame(12, 1, &all)).await;
    let size = connection.receive().await.expect("the broker answers").len() as u64;
    let before = resident_bytes(dev.pid());
    let work = async {
        let mut deafs = Vec::new();
        for _ in 0..CLIENTS {
            let mut stream = deaf(&dev.kafka).await;
            let requests: Vec<_> = (0..REQUESTS_EACH).map(|_| frame(12, 1, &all)).collect();
            stream.write_all(&requests.concat()).await.expect("the broker reads");
            deafs.push(stream);
        }
        answers_are_full(&dev).await;
        // One that does read is answered, once the others have lost what they kept.
        connection.send(&frame(12, 1, &all)).await;
        assert!(connection.receive().await.is_some());
        deafs
    };
    let (most, deafs) = most_resident(dev.pid(), work).await;
    let asked = (CLIENTS * REQUESTS_EACH) as u64 * size;
    assert!(asked > 2 * ANSWERS, "what they asked for is more than the memory for answers: {asked}");
    println!("a list of 10 000 partitions is {size} bytes; asked for {} MiB", asked / MIB);
    tell("48 clients that list and read nothing", before, most, ANSWERS + LISTS_AT_ONCE * LIST + SLACK);
    drop(deafs);
    while metric(&dev.http, "millpond_answer_memory_bytes").await > 0.0 {}
    is_served(&dev.grpc, "t").await;
    dev.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_batches_in_large_frames_keep_no_more_in_memory_than_the_tail() {
    const FRAMES: usize = 100;
    /// What comes with each small batch, for a partition that is not there.
    const REFUSED: usize = 8 << 20;
    let (dev, _dir) = start().await;
    let mut connection = Connection::to(&dev.kafka).await;
    connection.create("few", 1, &[]).await;
    let request = produce(-1, "few", &[(0, batch(&[1], &[7; 1000])), (1, vec![7; REFUSED].into())]);
    let before = resident_bytes(dev.pid());
    let (most, ()) = most_resident(dev.pid(), async {
        for _ in 0..FRAMES {
            let answer = connection.call(9, &request).await;
            let landed = answer.responses[0].partition_responses.iter().map(|landed| landed.error_code);
            assert_eq!(landed.collect::<Vec<i16>>(), [0, 3], "one is taken, the other has no partition");
        }
    })
    .await;
    tell("100 frames of 8 MiB with a batch of 1 KB each", before, most, TAIL + SLACK);
}
