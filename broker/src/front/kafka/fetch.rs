//! Fetch: reads from some partitions, waiting as the client says.

mod sessions;

use super::leaders::{LeaderIdAndEpoch, Leaders, NodeEndpoint};
use super::throttle::throttle_ms;
use super::wire::{Batches, NO_TOPIC_ID, requests, responses};
use crate::Broker;
use crate::api::{
    AbortedTxn, FetchPartition as BrokerPartition, FetchRequest as BrokerRequest, FetchedPartition, Isolation, Reader,
    TopicRef,
};
use crate::budget::Held;
use millpond_log::{ErrorCode, LeaderEpoch, Offset, TopicId};
use std::time::Duration;

pub(super) use sessions::Sessions;

/// Most bytes of batches in one answer, whatever the client asks for. Kafka's default for `fetch.max.bytes` on brokers.
pub(super) const ANSWER_BYTES_MAX: usize = 55 << 20;

/// First version in which followers are read from.
const REPLICAS_SINCE: i16 = 11;

/// First version that is told the leader with an error.
const LEADERS_SINCE: i16 = 16;

/// First version in which topics are named by id.
const IDS_SINCE: i16 = 13;

requests! {
    /// What to read.
    FetchRequest {
        replica_id: i32 = -1 => ..=14,
        max_wait_ms: i32 => ..,
        min_bytes: i32 => ..,
        max_bytes: i32 => ..,
        isolation_level: i8 => ..,
        session_id: i32 => 7..,
        session_epoch: i32 = -1 => 7..,
        topics: Vec<FetchTopic> => ..,
        forgotten_topics: Vec<ForgottenTopic> => 7..,
        rack_id: String => 11..,
    }
    /// One topic.
    FetchTopic {
        name: String => ..=12,
        id: TopicId = NO_TOPIC_ID => 13..,
        partitions: Vec<FetchPartition> => ..,
    }
    /// One partition.
    FetchPartition {
        index: i32 => ..,
        current_leader_epoch: i32 = -1 => 9..,
        fetch_offset: i64 => ..,
        last_fetched_epoch: i32 = -1 => 12..,
        log_start_offset: i64 = -1 => 5..,
        partition_max_bytes: i32 => ..,
    }
    /// Partitions to drop from a session.
    ForgottenTopic {
        name: String => ..=12,
        id: TopicId = NO_TOPIC_ID => 13..,
        partitions: Vec<i32> => ..,
    }
}

responses! {
    /// What was read.
    FetchResponse {
        throttle_time_ms: i32 => ..,
        error_code: i16 => 7..,
        session_id: i32 => 7..,
        topics: Vec<FetchedTopic> => ..,
        ;
        node_endpoints: Vec<NodeEndpoint> => 16.. as 0,
    }
    /// One topic.
    FetchedTopic {
        name: String => ..=12,
        id: TopicId = NO_TOPIC_ID => 13..,
        partitions: Vec<PartitionData> => ..,
    }
    /// One partition.
    PartitionData {
        index: i32 => ..,
        error_code: i16 => ..,
        high_watermark: i64 = -1 => ..,
        last_stable_offset: i64 = -1 => ..,
        log_start_offset: i64 = -1 => 5..,
        aborted_transactions: Option<Vec<AbortedTransaction>> => ..,
        preferred_read_replica: i32 = -1 => 11..,
        records: Batches => ..,
        ;
        diverging_epoch: EpochEndOffset => 12.. as 0,
        current_leader: LeaderIdAndEpoch => 12.. as 1,
    }
    /// Where the log is still what the client has read (KIP-595).
    EpochEndOffset {
        epoch: i32 => ..,
        end_offset: i64 => ..,
    }
    /// A transaction whose records are to be skipped.
    AbortedTransaction {
        producer_id: i64 => ..,
        first_offset: i64 => ..,
    }
}

/// Most bytes of batches in the answer to a request for `max_bytes`; one batch that is larger still goes out whole.
fn bytes_max(max_bytes: i32) -> usize {
    usize::try_from(max_bytes).unwrap_or(0).min(ANSWER_BYTES_MAX)
}

/// What the answer to a request may take of its connection's share.
///
/// One of a session takes what no two can have: it asks for more than it says, and changes what the next one means.
pub(super) fn answer_bytes_max(request: &FetchRequest) -> usize {
    if sessions::concerned(request) { ANSWER_BYTES_MAX } else { bytes_max(request.max_bytes) }
}

/// Reads what the request asks for. What is held with the answer is held until it was sent.
pub(super) async fn answer(
    broker: &Broker,
    listener: &str,
    version: i16,
    mut request: FetchRequest,
    sessions: &Sessions,
) -> (FetchResponse, Held) {
    let mut turn = match sessions.begin(&mut request, version >= IDS_SINCE, &broker.inner().budget.sessions) {
        Ok(turn) => turn,
        Err(error_code) => return (FetchResponse { error_code, ..Default::default() }, Held::default()),
    };
    let reader = reader(version, request.rack_id);
    let Plan { asked, mut topics, places } = plan(version, turn.topics(), &reader);
    let refused = topics.iter().flat_map(|topic| &topic.partitions).count() > places.len();
    let (answers, held) = if asked.is_empty() {
        Default::default()
    } else {
        // A refusal is news: nobody waits for records beside it.
        let wait_max_ms = if refused { 0 } else { u64::try_from(request.max_wait_ms).unwrap_or(0) };
        let request = BrokerRequest {
            partitions: asked,
            bytes_max: bytes_max(request.max_bytes),
            bytes_min: usize::try_from(request.min_bytes).unwrap_or(0),
            wait_max: Duration::from_millis(wait_max_ms),
            isolation: isolation(request.isolation_level),
            scan: false,
        };
        broker.fetch_held(request).await
    };
    assert_eq!(answers.len(), places.len(), "the broker answers each partition that it was asked for");
    let throttle_time_ms = throttle_ms(answers.iter().filter_map(|answer| answer.error.as_ref()));
    let mut leaders = Leaders::since(LEADERS_SINCE, version, listener);
    for ((topic, partition), answer) in places.into_iter().zip(answers) {
        let data = &mut topics[topic].partitions[partition];
        *data = partition_data(data.index, answer, &mut leaders);
    }
    let node_endpoints = leaders.endpoints();
    let mut response = FetchResponse { throttle_time_ms, topics, node_endpoints, ..Default::default() };
    sessions.end(turn, &mut response);
    (response, held)
}

/// What the broker is asked for, and the answer with a place for each partition.
#[derive(Default)]
struct Plan {
    asked: Vec<BrokerPartition>,
    /// Every partition of the request in its order; what cannot be asked for is answered already.
    topics: Vec<FetchedTopic>,
    /// Topic and partition in `topics` of each one asked for.
    places: Vec<(usize, usize)>,
}

/// Whom a client of this version may read from: older ones know leaders only (KIP-392).
fn reader(version: i16, rack: String) -> Reader {
    match rack.is_empty() {
        _ if version < REPLICAS_SINCE => Reader::OfLeader,
        true => Reader::Anywhere,
        false => Reader::InRack(rack.into()),
    }
}

fn plan(version: i16, topics: Vec<FetchTopic>, reader: &Reader) -> Plan {
    let mut plan = Plan::default();
    for FetchTopic { name, id, partitions } in topics {
        let topic = if version >= IDS_SINCE { TopicRef::Id(id) } else { TopicRef::Name(name.clone()) };
        let mut data = Vec::with_capacity(partitions.len());
        for partition in partitions {
            let index = partition.index;
            match wanted(topic.clone(), partition, reader) {
                Ok(wanted) => {
                    plan.places.push((plan.topics.len(), data.len()));
                    plan.asked.push(wanted);
                    data.push(PartitionData { index, ..Default::default() });
                }
                Err(code) => data.push(PartitionData { index, error_code: code.kafka(), ..Default::default() }),
            }
        }
        plan.topics.push(FetchedTopic { name, id, partitions: data });
    }
    plan
}

fn wanted(topic: TopicRef, asked: FetchPartition, reader: &Reader) -> Result<BrokerPartition, ErrorCode> {
    Ok(BrokerPartition {
        topic,
        partition: u32::try_from(asked.index).map_err(|_| ErrorCode::UnknownTopicOrPartition)?,
        offset: u64::try_from(asked.fetch_offset).map(Offset).map_err(|_| ErrorCode::OffsetOutOfRange)?,
        bytes_max: usize::try_from(asked.partition_max_bytes).unwrap_or(0),
        // Rule F2; -1 is a client that does not know the epoch.
        current_leader_epoch: u32::try_from(asked.current_leader_epoch).ok().map(LeaderEpoch),
        last_fetched_epoch: u32::try_from(asked.last_fetched_epoch).ok().map(LeaderEpoch),
        reader: reader.clone(),
    })
}

fn partition_data(index: i32, fetched: FetchedPartition, leaders: &mut Leaders<'_>) -> PartitionData {
    if let Some(error) = fetched.error {
        let current_leader = leaders.name(&error);
        return PartitionData { index, error_code: error.code.kafka(), current_leader, ..Default::default() };
    }
    let aborted = |txn: AbortedTxn| AbortedTransaction {
        producer_id: txn.producer.0.cast_signed(),
        first_offset: txn.first_offset.0.cast_signed(),
    };
    PartitionData {
        index,
        high_watermark: fetched.high_watermark.0.cast_signed(),
        last_stable_offset: fetched.last_stable.0.cast_signed(),
        log_start_offset: fetched.log_start.0.cast_signed(),
        aborted_transactions: fetched.aborted.map(|list| list.into_iter().map(aborted).collect()),
        preferred_read_replica: fetched.preferred.map_or(-1, |broker| broker.0.cast_signed()),
        records: Batches(fetched.batches),
        diverging_epoch: fetched.diverging.map(|diverging| EpochEndOffset {
            epoch: diverging.epoch.0.cast_signed(),
            end_offset: diverging.end.0.cast_signed(),
        }),
        ..Default::default()
    }
}

/// Kafka's isolation level: 1 is `read_committed`.
pub(super) fn isolation(level: i8) -> Isolation {
    if level == 1 { Isolation::ReadCommitted } else { Isolation::ReadUncommitted }
}
