//! The clients that run throughout: producers and consumers of the SDK. They tell the recorder what they do before they do it, and
//! what they are told as soon as they are.

use crate::clock::now;
use crate::fleet::connect;
use crate::history::{Content, Event, Recorder};
use crate::payload::{self, RecordId};
use futures::stream::{FuturesUnordered, StreamExt};
use millpond_sdk::{
    Admin, Client, Consumer, ConsumerConfig, ConsumerRecord, Error, Offset, OffsetSpec, Producer, ProducerConfig,
    ProducerRecord, RecordMetadata, StartAt, TopicPartition,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The topic that everything is about.
pub(crate) const TOPIC: &str = "faults";

/// How many partitions it has.
pub(crate) const PARTITIONS: u16 = 6;

/// How often a writer sends a record to each partition, mostly: what the gaps between acknowledgements are measured by.
pub(crate) const TICK: Duration = Duration::from_millis(20);

/// Most records of a writer and partition that wait for their fate. Beyond them it waits as well.
const WAITING_MAX: usize = 500;

/// The writer of large records.
const BULK: u16 = payload::LARGE_FROM;

/// About how large they are.
pub(crate) const BULK_BYTES: usize = payload::LARGE_BYTES;

/// The partitions.
pub(crate) fn partitions() -> std::ops::Range<u16> {
    0..PARTITIONS
}

fn named(partition: u16) -> TopicPartition {
    TopicPartition::new(TOPIC, u32::from(partition))
}

/// What stands at a record's offset.
pub(crate) fn content(record: &ConsumerRecord) -> Content {
    let value = record.value.as_deref().unwrap_or_default();
    match payload::read(value) {
        Some(id) if record.key.as_deref() == Some(&payload::key(id)) => Content::Record(id),
        _ => Content::Foreign(crc32c::crc32c(value)),
    }
}

/// A record to send.
fn record(id: RecordId) -> ProducerRecord {
    ProducerRecord::new(TOPIC).partition(u32::from(id.partition)).key(payload::key(id)).value(payload::value(id))
}

/// Sends records to all partitions, one at each tick, until told to stop; then waits for the fate of all.
pub(crate) async fn write(
    writer: u16,
    tick: Duration,
    bootstrap: String,
    recorder: Arc<Recorder>,
    stop: CancellationToken,
) {
    let client = match connect(&bootstrap).await {
        Ok(client) => client,
        Err(error) => return recorder.trouble(format!("writer {writer}: {error}")),
    };
    let config = ProducerConfig { linger: Duration::ZERO, ..ProducerConfig::default() };
    let producer = Producer::new(&client, config).expect("the settings are sound");
    let mut next: BTreeMap<u16, u32> = BTreeMap::new();
    let mut waiting: BTreeMap<u16, usize> = BTreeMap::new();
    let mut deliveries = FuturesUnordered::new();
    let mut ticks = tokio::time::interval(tick);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        tokio::select! {
            biased;
            Some((id, outcome)) = deliveries.next(), if !deliveries.is_empty() => {
                let id: RecordId = id;
                *waiting.entry(id.partition).or_default() -= 1;
                settle(&recorder, id, outcome);
            }
            () = stop.cancelled() => break,
            _ = ticks.tick() => {
                for partition in partitions() {
                    let waiting = waiting.entry(partition).or_default();
                    if *waiting >= WAITING_MAX {
                        continue;
                    }
                    let number = next.entry(partition).or_default();
                    let id = RecordId { writer, partition, number: *number };
                    *number += 1;
                    recorder.record(Event::Sent { id, at: now() });
                    match producer.send(record(id)).await {
                        Ok(delivery) => {
                            *waiting += 1;
                            deliveries.push(async move { (id, delivery.await) });
                        }
                        Err(error) => settle(&recorder, id, Err(error)),
                    }
                }
            }
        }
    }
    recorder.in_flight(writer, u32::try_from(producer.in_flight_most()).unwrap_or(u32::MAX));
    let closed = producer.close();
    let told = async {
        while let Some((id, outcome)) = deliveries.next().await {
            settle(&recorder, id, outcome);
        }
    };
    tokio::join!(closed, told);
}

fn settle(recorder: &Recorder, id: RecordId, outcome: Result<RecordMetadata, Error>) {
    let at = now();
    match outcome {
        Ok(written) => {
            recorder.record(Event::Acked { id, offset: written.offset.map(|offset| offset.0), at });
        }
        Err(error) => {
            recorder.trouble(format!("{id}: {error}"));
            let event = if error.maybe_done { Event::Unknown { id, at } } else { Event::Refused { id, at } };
            recorder.record(event);
        }
    }
}

/// Sends one record with little patience; what became of it.
pub(crate) async fn try_one(
    id: RecordId,
    client: &Client,
    patience: Duration,
    recorder: &Recorder,
) -> Result<RecordMetadata, Error> {
    let (linger, request_timeout) = (Duration::ZERO, patience / 2);
    let config = ProducerConfig { linger, request_timeout, delivery_timeout: patience, ..ProducerConfig::default() };
    let producer = Producer::new(client, config).expect("the settings are sound");
    recorder.record(Event::Sent { id, at: now() });
    let outcome = match producer.send(record(id)).await {
        Ok(delivery) => delivery.await,
        Err(error) => Err(error),
    };
    settle(recorder, id, outcome.clone());
    producer.close().await;
    outcome
}

/// Sends large records, as fast as their fate is known of enough of them.
pub(crate) async fn write_bulk(numbers: std::ops::Range<u32>, client: Client, recorder: Arc<Recorder>) {
    let producer = Producer::new(&client, ProducerConfig::default()).expect("the defaults are sound");
    let mut deliveries = FuturesUnordered::new();
    for number in numbers {
        let id =
            RecordId { writer: BULK, partition: u16::try_from(number % u32::from(PARTITIONS)).expect("few"), number };
        recorder.record(Event::Sent { id, at: now() });
        match producer.send(record(id)).await {
            Ok(delivery) => deliveries.push(async move { (id, delivery.await) }),
            Err(error) => settle(&recorder, id, Err(error)),
        }
        while deliveries.len() >= WAITING_MAX {
            let Some((id, outcome)) = deliveries.next().await else { break };
            settle(&recorder, id, outcome);
        }
    }
    while let Some((id, outcome)) = deliveries.next().await {
        settle(&recorder, id, outcome);
    }
    producer.close().await;
}

/// Reads all partitions from the start until told to stop.
pub(crate) async fn read_along(reader: u16, bootstrap: String, recorder: Arc<Recorder>, stop: CancellationToken) {
    let client = match connect(&bootstrap).await {
        Ok(client) => client,
        Err(error) => return recorder.trouble(format!("reader {reader}: {error}")),
    };
    let mut consumer = Consumer::new(&client, ConsumerConfig::default());
    for partition in partitions() {
        recorder.record(Event::Started { reader, partition, offset: 0 });
    }
    let all = || partitions().map(|partition| (named(partition), StartAt::Offset(Offset(0))));
    while let Err(error) = consumer.assign(all()).await {
        recorder.trouble(format!("reader {reader}: {error}"));
        tokio::select! {
            () = tokio::time::sleep(TICK) => {}
            () = stop.cancelled() => return,
        }
    }
    loop {
        let polled = tokio::select! {
            polled = consumer.poll(Duration::from_secs(1)) => polled,
            () = stop.cancelled() => return,
        };
        match polled {
            Ok(records) => take_down(reader, &records, &recorder),
            Err(error) => {
                recorder.trouble(format!("reader {reader}: {error}"));
                go_on(&mut consumer, &recorder).await;
                tokio::time::sleep(TICK).await;
            }
        }
    }
}

fn take_down(reader: u16, records: &[ConsumerRecord], recorder: &Recorder) {
    let at = now();
    for record in records {
        let partition = u16::try_from(record.partition).expect("the topic has few partitions");
        recorder.record(Event::Read { reader, partition, offset: record.offset.0, content: content(record), at });
    }
}

/// After an error the partition that it concerned is at rest where it was: all go on from where they are.
async fn go_on(consumer: &mut Consumer, recorder: &Recorder) {
    for partition in partitions().map(named) {
        let Some(position) = consumer.position(&partition) else { continue };
        if let Err(error) = consumer.seek(&partition, StartAt::Offset(position)).await {
            recorder.trouble(format!("{partition} at {position:?}: {error}"));
        }
    }
}

/// Reads again what was read before, from random places of the past, in pieces; and asks leaders for the end, all along.
pub(crate) async fn look_back(
    readers: std::ops::Range<u16>,
    bootstrap: String,
    seed: u64,
    recorder: Arc<Recorder>,
    stop: CancellationToken,
) {
    let work = async {
        let client = connect(&bootstrap).await?;
        let admin = Admin::new(&client);
        let mut random = StdRng::seed_from_u64(seed);
        for reader in readers.cycle() {
            let partition = random.random_range(partitions());
            let asked = now();
            match admin.list_offset(TOPIC, u32::from(partition), OffsetSpec::Latest).await {
                Ok(Some(found)) => {
                    let offset = found.offset.0;
                    recorder.record(Event::Latest { partition, offset, asked });
                    if offset > 0 {
                        let from = random.random_range(0..offset);
                        read_piece(reader, partition, from, &client, &recorder).await;
                    }
                }
                Ok(None) => recorder.trouble(format!("partition {partition} has no end")),
                Err(error) => recorder.trouble(format!("the end of partition {partition}: {error}")),
            }
            tokio::time::sleep(Duration::from_millis(random.random_range(20..200))).await;
        }
        Ok::<(), String>(())
    };
    tokio::select! {
        ended = work => {
            if let Err(error) = ended {
                recorder.trouble(format!("who looks back: {error}"));
            }
        }
        () = stop.cancelled() => {}
    }
}

/// Reads what comes at once from an offset on.
async fn read_piece(reader: u16, partition: u16, from: u64, client: &Client, recorder: &Recorder) {
    let mut consumer = Consumer::new(client, ConsumerConfig::default());
    if let Err(error) = consumer.assign([(named(partition), StartAt::Offset(Offset(from)))]).await {
        return recorder.trouble(format!("reader {reader}: {error}"));
    }
    recorder.record(Event::Started { reader, partition, offset: from });
    match consumer.poll(Duration::from_secs(2)).await {
        Ok(records) => take_down(reader, &records, recorder),
        Err(error) => recorder.trouble(format!("reader {reader}: {error}")),
    }
}

/// A partition as it is now: from its start to its end, read anew.
///
/// # Errors
/// It cannot be read, or not within `patience`.
pub(crate) async fn read_all(
    client: &Client,
    partition: u16,
    patience: Duration,
) -> Result<Vec<(u64, Content)>, String> {
    let read = async {
        let admin = Admin::new(client);
        let end = admin.list_offset(TOPIC, u32::from(partition), OffsetSpec::Latest).await;
        let end = end.map_err(|error| error.to_string())?.ok_or("it has no end")?.offset;
        let mut consumer = Consumer::new(client, ConsumerConfig::default());
        let start = [(named(partition), StartAt::Earliest)];
        consumer.assign(start).await.map_err(|error| error.to_string())?;
        let mut log = Vec::new();
        while consumer.position(&named(partition)).is_some_and(|position| position < end) {
            let records = consumer.poll(Duration::from_secs(1)).await.map_err(|error| error.to_string())?;
            log.extend(records.iter().map(|record| (record.offset.0, content(record))));
        }
        Ok(log)
    };
    let read = tokio::time::timeout(patience, read).await;
    read.unwrap_or_else(|_| Err(format!("it is not read within {patience:?}")))
        .map_err(|error: String| format!("partition {partition}: {error}"))
}
