//! The consumer over real streams that refuse and break.

use crate::scripted::{Act, Scripted, Subscribed};
use futures::StreamExt;
use millpond_log::batch::{BatchBuilder, NewRecord};
use millpond_log::{Batch, TimestampMs};
use millpond_sdk::{
    Client, Codec, Consumer, ConsumerConfig, Error, ErrorCode, Offset, OffsetReset, StartAt, TopicPartition,
};
use std::time::Duration;

fn batch(values: &[String]) -> Batch {
    let mut builder = BatchBuilder::new(Codec::Lz4);
    for value in values {
        let value = Some(value.as_bytes());
        builder.push(NewRecord { timestamp: TimestampMs(1), key: None, value, headers: &[] });
    }
    builder.build()
}

/// Appends batches of two records with values `from..to`.
pub(crate) fn fill(broker: &Scripted, partition: u32, from: usize, to: usize) {
    for first in (from..to).step_by(2) {
        broker.append(partition, batch(&[first.to_string(), (first + 1).to_string()]));
    }
}

fn quick() -> ConsumerConfig {
    let mut config = ConsumerConfig::default();
    config.retry_backoff.first = Duration::from_millis(1);
    config
}

pub(crate) fn partition(index: u32) -> TopicPartition {
    TopicPartition::new("t", index)
}

async fn consumer(broker: &Scripted, config: ConsumerConfig, starts: &[(u32, StartAt)]) -> Consumer {
    let client = Client::connect(&broker.address).await.expect("connects");
    let mut consumer = Consumer::new(&client, config);
    let starts = starts.iter().map(|(index, at)| (partition(*index), *at));
    consumer.assign(starts).await.expect("exists");
    consumer
}

async fn take(consumer: &mut Consumer, count: usize) -> Vec<(u32, u64, String)> {
    let mut records = Vec::new();
    while records.len() < count {
        let record = consumer.next().await.expect("never ends").expect("a record");
        let value = String::from_utf8_lossy(&record.value.expect("a value")).into_owned();
        records.push((record.partition, record.offset.0, value));
    }
    records
}

fn expected(partition: u32, from: usize, to: usize) -> Vec<(u32, u64, String)> {
    (from..to).map(|index| (partition, index as u64, index.to_string())).collect()
}

#[tokio::test]
async fn records_come_in_order_whatever_the_stream_does() {
    let not_leader = Act::Refuse(ErrorCode::NotLeaderOrFollower);
    for acts in [&[][..], &[not_leader], &[Act::CutBefore], &[not_leader, Act::CutBefore, not_leader]] {
        let broker = Scripted::start(1).await;
        broker.fetch_acts(acts.iter().copied());
        fill(&broker, 0, 0, 10);
        let mut consumer = consumer(&broker, quick(), &[(0, StartAt::Earliest)]).await;
        assert_eq!(take(&mut consumer, 10).await, expected(0, 0, 10));
        // What comes later comes too.
        fill(&broker, 0, 10, 14);
        assert_eq!(take(&mut consumer, 4).await, expected(0, 10, 14));
        assert_eq!(consumer.high_watermark(&partition(0)), Some(Offset(14)));
        assert!(broker.is_done());
    }
}

#[tokio::test]
async fn reading_begins_at_any_offset() {
    let broker = Scripted::start(1).await;
    fill(&broker, 0, 0, 10);
    for from in 0..10 {
        let mut consumer = consumer(&broker, quick(), &[(0, StartAt::Offset(Offset(from)))]).await;
        let first = take(&mut consumer, 1).await;
        assert_eq!(first, expected(0, from as usize, from as usize + 1), "also in the middle of a batch");
    }
    let mut latest = consumer(&broker, quick(), &[(0, StartAt::Latest)]).await;
    fill(&broker, 0, 10, 12);
    assert_eq!(take(&mut latest, 2).await, expected(0, 10, 12));
    let late = consumer(&broker, quick(), &[(0, StartAt::Time(TimestampMs(9)))]).await;
    assert_eq!(late.position(&partition(0)), Some(Offset(12)), "no such time: the end");
}

#[tokio::test]
async fn seek_drops_what_was_read_ahead() {
    let broker = Scripted::start(1).await;
    fill(&broker, 0, 0, 20);
    let mut consumer = consumer(&broker, quick(), &[(0, StartAt::Earliest)]).await;
    take(&mut consumer, 3).await;
    consumer.seek(&partition(0), StartAt::Offset(Offset(15))).await.expect("assigned");
    assert_eq!(take(&mut consumer, 2).await, expected(0, 15, 17));
    consumer.seek(&partition(0), StartAt::Earliest).await.expect("assigned");
    assert_eq!(take(&mut consumer, 2).await, expected(0, 0, 2));
    let error = consumer.seek(&partition(7), StartAt::Earliest).await.expect_err("not assigned");
    assert_eq!(error.code, Some(ErrorCode::InvalidRequest));
}

#[tokio::test]
async fn a_paused_partition_rests_and_the_others_go_on() {
    let broker = Scripted::start(2).await;
    let starts = [(0, StartAt::Earliest), (1, StartAt::Earliest)];
    let mut consumer = consumer(&broker, quick(), &starts).await;
    fill(&broker, 0, 0, 4);
    assert_eq!(take(&mut consumer, 1).await, expected(0, 0, 1));
    consumer.pause(&partition(0)).expect("assigned");
    fill(&broker, 1, 0, 4);
    assert_eq!(take(&mut consumer, 4).await, expected(1, 0, 4));
    consumer.resume(&partition(0)).expect("assigned");
    assert_eq!(take(&mut consumer, 3).await, expected(0, 1, 4));
}

#[tokio::test]
async fn read_ahead_is_bounded_and_goes_on_as_it_is_consumed() {
    let broker = Scripted::start(1).await;
    let value = "x".repeat(1000);
    for _ in 0..200 {
        // Incompressible sizes do not matter here: the bound counts batches as they lie in the log.
        let mut builder = BatchBuilder::new(Codec::None);
        builder.push(NewRecord { timestamp: TimestampMs(1), key: None, value: Some(value.as_bytes()), headers: &[] });
        broker.append(0, builder.build());
    }
    let bound = 10_000;
    let config = ConsumerConfig { read_ahead_bytes: bound, ..quick() };
    let mut consumer = consumer(&broker, config, &[(0, StartAt::Earliest)]).await;
    for index in 0..200 {
        let record = consumer.next().await.expect("never ends").expect("a record");
        assert_eq!(record.offset, Offset(index));
    }
    assert!(broker.credit_lowest() > -1100, "overdrawn by one batch at most, was {}", broker.credit_lowest());
}

#[tokio::test]
async fn a_position_that_is_gone_is_an_error_unless_a_reset_is_asked_for() {
    let broker = Scripted::start(1).await;
    fill(&broker, 0, 0, 10);
    broker.delete_before(6);
    let start = [(0, StartAt::Offset(Offset(2)))];
    let mut strict = consumer(&broker, quick(), &start).await;
    let error: Error = strict.next().await.expect("never ends").expect_err("gone");
    assert_eq!(error.code, Some(ErrorCode::OffsetOutOfRange));
    assert!(error.to_string().starts_with("t:0: "), "{error}");
    strict.seek(&partition(0), StartAt::Earliest).await.expect("assigned");
    assert_eq!(take(&mut strict, 1).await, expected(0, 6, 7));
    let config = ConsumerConfig { offset_reset: OffsetReset::Earliest, ..quick() };
    let mut lenient = consumer(&broker, config, &start).await;
    assert_eq!(take(&mut lenient, 4).await, expected(0, 6, 10));
    let config = ConsumerConfig { offset_reset: OffsetReset::Latest, ..quick() };
    let mut beyond = consumer(&broker, config, &[(0, StartAt::Offset(Offset(99)))]).await;
    while beyond.position(&partition(0)) == Some(Offset(99)) {
        assert!(beyond.poll(Duration::from_millis(1)).await.expect("no error").is_empty());
    }
    fill(&broker, 0, 10, 12);
    assert_eq!(take(&mut beyond, 2).await, expected(0, 10, 12));
}

/// Where the offset that it is told is out of range as well, nothing is won by asking again at once.
#[tokio::test]
async fn a_reset_that_leads_out_of_range_again_waits_before_the_next() {
    let broker = Scripted::start(2).await;
    fill(&broker, 1, 0, 6);
    // Partition 0 is empty, so its end is below this.
    broker.delete_before(6);
    let mut config = ConsumerConfig { offset_reset: OffsetReset::Latest, ..quick() };
    (config.retry_backoff.first, config.retry_backoff.max) = (Duration::from_secs(3_600), Duration::from_secs(3_600));
    let starts = [(0, StartAt::Offset(Offset(2))), (1, StartAt::Offset(Offset(6)))];
    let mut consumer = consumer(&broker, config, &starts).await;
    let tries = |broker: &Scripted| broker.subscribed().iter().filter(|one| one.offset < 6).count();
    while tries(&broker) < 2 {
        assert!(consumer.poll(Duration::from_millis(1)).await.expect("no error").is_empty());
    }
    for first in (6..46).step_by(2) {
        fill(&broker, 1, first, first + 2);
        assert_eq!(take(&mut consumer, 2).await, expected(1, first, first + 2), "the other goes on");
    }
    assert_eq!(tries(&broker), 2, "the first reset is followed at once");
}

#[tokio::test]
async fn poll_gives_what_is_there_and_nothing_in_time() {
    let broker = Scripted::start(1).await;
    fill(&broker, 0, 0, 6);
    let config = ConsumerConfig { poll_records_max: 4, ..quick() };
    let mut consumer = consumer(&broker, config, &[(0, StartAt::Earliest)]).await;
    let mut offsets = Vec::new();
    while offsets.len() < 6 {
        let records = consumer.poll(Duration::from_secs(10)).await.expect("no error");
        assert!((1..=4).contains(&records.len()));
        offsets.extend(records.iter().map(|record| record.offset.0));
    }
    assert_eq!(offsets, [0, 1, 2, 3, 4, 5]);
    assert!(consumer.poll(Duration::from_millis(1)).await.expect("no error").is_empty());
    assert_eq!(consumer.position(&partition(0)), Some(Offset(6)));
}

#[tokio::test]
async fn assigning_what_does_not_exist_is_refused() {
    let broker = Scripted::start(1).await;
    let client = Client::connect(&broker.address).await.expect("connects");
    let mut consumer = Consumer::new(&client, quick());
    for name in [TopicPartition::new("nowhere", 0), partition(3)] {
        for at in [StartAt::Offset(Offset(0)), StartAt::Earliest] {
            let error = consumer.assign([(name.clone(), at)]).await.expect_err("not there");
            assert_eq!(error.code, Some(ErrorCode::UnknownTopicOrPartition), "{name} {at:?}");
        }
    }
    assert_eq!(consumer.assignment().count(), 0);
}

#[tokio::test]
async fn a_new_leader_that_is_named_is_read_from_without_asking_for_metadata() {
    let brokers = Scripted::start_pair(1).await;
    fill(&brokers, 0, 0, 4);
    let mut consumer = consumer(&brokers, quick(), &[(0, StartAt::Earliest)]).await;
    assert_eq!(take(&mut consumer, 4).await, expected(0, 0, 4));
    let asked = brokers.metadata_calls();
    brokers.fetch_acts([Act::Redirect]);
    fill(&brokers, 0, 4, 8);
    assert_eq!(take(&mut consumer, 4).await, expected(0, 4, 8));
    assert_eq!(brokers.metadata_calls(), asked);
    let newest = brokers.subscribed().pop().expect("it subscribed");
    assert_eq!((newest.broker, newest.offset, newest.last_fetched_epoch), (1, 4, Some(0)));
}

/// KIP-392: to the replica that the leader names, and back to the leader when that is not well.
#[tokio::test]
async fn a_consumer_reads_near_by_and_from_the_leader_when_that_fails() {
    for failure in
        [Act::Refuse(ErrorCode::NotLeaderOrFollower), Act::CutBefore, Act::Refuse(ErrorCode::OffsetOutOfRange)]
    {
        let brokers = Scripted::start_pair(1).await;
        let config = ConsumerConfig { rack: Some("r1".to_owned()), ..quick() };
        brokers.fetch_acts([Act::Steer]);
        fill(&brokers, 0, 0, 4);
        let mut consumer = consumer(&brokers, config, &[(0, StartAt::Earliest)]).await;
        assert_eq!(take(&mut consumer, 4).await, expected(0, 0, 4));
        brokers.fetch_acts_of(1, [failure]);
        fill(&brokers, 0, 4, 8);
        assert_eq!(take(&mut consumer, 4).await, expected(0, 4, 8));
        let rack = |rack: &str| Some(rack.to_owned());
        let subscribed =
            |broker, offset, rack, last_fetched_epoch| Subscribed { broker, offset, rack, last_fetched_epoch };
        let path = [
            subscribed(0, 0, rack("r1"), None),
            subscribed(1, 0, None, None),
            // Without the rack, or the leader would send it there again at once.
            subscribed(0, 4, None, Some(0)),
        ];
        assert_eq!(brokers.subscribed(), path, "{failure:?}");
        assert!(brokers.is_done());
    }
}

#[tokio::test]
async fn a_log_that_was_truncated_is_an_error_that_says_from_where_on() {
    let broker = Scripted::start(1).await;
    broker.leader_epoch(3);
    fill(&broker, 0, 0, 6);
    let mut strict = consumer(&broker, quick(), &[(0, StartAt::Earliest)]).await;
    assert_eq!(take(&mut strict, 6).await, expected(0, 0, 6));
    broker.fetch_acts([Act::Diverge(4)]);
    fill(&broker, 0, 6, 8);
    let error = strict.next().await.expect("never ends").expect_err("other records were read");
    assert_eq!((error.code, error.diverging), (Some(ErrorCode::OffsetOutOfRange), Some(Offset(4))));
    assert!(error.to_string().contains("from offset 4 on, and was read up to 6"), "{error}");
    assert!(!error.retriable);
    // The others go on; this one where the application says.
    assert_eq!(strict.position(&partition(0)), Some(Offset(6)));
    strict.seek(&partition(0), StartAt::Offset(Offset(4))).await.expect("assigned");
    assert_eq!(take(&mut strict, 2).await, expected(0, 4, 6));
}

#[tokio::test]
async fn with_a_reset_reading_goes_on_where_the_log_parts_from_what_was_read() {
    let broker = Scripted::start(1).await;
    fill(&broker, 0, 0, 6);
    let config = ConsumerConfig { offset_reset: OffsetReset::Latest, ..quick() };
    let mut lenient = consumer(&broker, config, &[(0, StartAt::Earliest)]).await;
    assert_eq!(take(&mut lenient, 6).await, expected(0, 0, 6));
    broker.fetch_acts([Act::Diverge(4)]);
    fill(&broker, 0, 6, 8);
    assert_eq!(take(&mut lenient, 4).await, expected(0, 4, 8));
    let newest = broker.subscribed().pop().expect("it subscribed");
    assert_eq!((newest.offset, newest.last_fetched_epoch), (4, None), "what was read before says nothing any more");
}

/// A pause in the middle of a batch keeps what is known of the record before.
#[tokio::test]
async fn the_epoch_of_what_was_read_is_told_whenever_reading_goes_on() {
    let broker = Scripted::start(1).await;
    broker.leader_epoch(2);
    fill(&broker, 0, 0, 4);
    let mut consumer = consumer(&broker, quick(), &[(0, StartAt::Earliest)]).await;
    assert_eq!(take(&mut consumer, 3).await, expected(0, 0, 3));
    consumer.pause(&partition(0)).expect("assigned");
    consumer.resume(&partition(0)).expect("assigned");
    assert_eq!(take(&mut consumer, 1).await, expected(0, 3, 4));
    let told: Vec<_> = broker.subscribed().iter().map(|told| (told.offset, told.last_fetched_epoch)).collect();
    assert_eq!(told, [(0, None), (3, Some(2))]);
    consumer.seek(&partition(0), StartAt::Offset(Offset(1))).await.expect("assigned");
    take(&mut consumer, 1).await;
    assert_eq!(broker.subscribed()[2].last_fetched_epoch, None);
}
