//! CreatePartitions and DeleteRecords: topics grow at one end, logs are cut at the other. Each topic or partition succeeds or fails alone.

use super::orders::{Orders, by, given};
use super::throttle::throttle_ms;
use super::topics::brokers;
use super::wire::{requests, responses};
use crate::Broker;
use crate::api::{ApiError, NewPartitions, TopicRef};
use futures::stream::{self, StreamExt};
use millpond_log::{ErrorCode, Offset};
use std::collections::BTreeMap;

/// Kafka's "up to the high watermark".
const TO_HIGH_WATERMARK: i64 = -1;

/// How many partitions of one request are cut at once. The tierer takes them one after the other; what waits are answers.
const CUT_AT_ONCE: usize = 64;

requests! {
    /// Topics to grow.
    CreatePartitionsRequest {
        topics: Vec<GrownTopic> => ..,
        timeout_ms: i32 => ..,
        validate_only: bool => ..,
    }
    /// One topic: how many partitions it is to have, and who holds those that are new; null if the cluster is to choose.
    GrownTopic {
        name: String => ..,
        count: i32 => ..,
        assignments: Option<Vec<GrownAssignment>> => ..,
    }
    /// Replicas of one new partition.
    GrownAssignment {
        brokers: Vec<i32> => ..,
    }
    /// What to delete.
    DeleteRecordsRequest {
        topics: Vec<CutTopic> => ..,
        timeout_ms: i32 => ..,
    }
    /// One topic.
    CutTopic {
        name: String => ..,
        partitions: Vec<CutPartition> => ..,
    }
    /// One partition, and its first offset that is kept.
    CutPartition {
        index: i32 => ..,
        offset: i64 => ..,
    }
}

responses! {
    /// What became of each topic.
    CreatePartitionsResponse {
        throttle_time_ms: i32 => ..,
        results: Vec<GrownTopicResult> => ..,
    }
    /// One topic.
    GrownTopicResult {
        name: String => ..,
        error_code: i16 => ..,
        error_message: Option<String> => ..,
    }
    /// What became of each partition.
    DeleteRecordsResponse {
        throttle_time_ms: i32 => ..,
        topics: Vec<CutTopicResult> => ..,
    }
    /// One topic.
    CutTopicResult {
        name: String => ..,
        partitions: Vec<CutPartitionResult> => ..,
    }
    /// One partition, and its first offset that is there.
    CutPartitionResult {
        index: i32 => ..,
        low_watermark: i64 = -1 => ..,
        error_code: i16 => ..,
    }
}

/// Grows the topics, one after the other.
pub(super) async fn create(broker: &Broker, request: CreatePartitionsRequest) -> CreatePartitionsResponse {
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    request.topics.iter().for_each(|topic| *times.entry(topic.name.clone()).or_default() += 1);
    let mut orders = Orders::within(request.timeout_ms);
    let mut errors = Vec::new();
    let mut results = Vec::with_capacity(request.topics.len());
    for topic in request.topics {
        let name = topic.name.clone();
        let grown = if times[&name] > 1 {
            Err(ApiError::new(ErrorCode::InvalidRequest, format!("topic `{name}` is in the request more than once")))
        } else {
            match wanted(topic, request.validate_only) {
                Ok(wanted) => {
                    let (broker, topic) = (broker.clone(), TopicRef::Name(name.clone()));
                    orders.carry(async move { broker.create_partitions(&topic, wanted).await }).await
                }
                Err(error) => Err(error),
            }
        };
        let (error_code, error_message) = match grown {
            Ok(()) => (0, None),
            Err(error) => {
                let told = (error.code.kafka(), Some(error.message.clone()));
                errors.push(error);
                told
            }
        };
        results.push(GrownTopicResult { name, error_code, error_message });
    }
    CreatePartitionsResponse { throttle_time_ms: throttle_ms(errors.iter()), results }
}

fn wanted(topic: GrownTopic, validate_only: bool) -> Result<NewPartitions, ApiError> {
    let total = u32::try_from(topic.count).map_err(|_| {
        ApiError::new(ErrorCode::InvalidPartitions, format!("{} partitions; use 1 or more", topic.count))
    })?;
    let assignments = topic.assignments.into_iter().flatten();
    let assignments = assignments.map(|GrownAssignment { brokers: ids }| brokers(ids)).collect::<Result<_, _>>()?;
    Ok(NewPartitions { total, assignments, validate_only })
}

/// Moves the log start of each partition.
pub(super) async fn delete_records(broker: &Broker, request: DeleteRecordsRequest) -> DeleteRecordsResponse {
    let DeleteRecordsRequest { topics: asked, timeout_ms } = request;
    let deadline = given(timeout_ms);
    let mut errors = Vec::new();
    let mut topics = Vec::with_capacity(asked.len());
    for CutTopic { name, partitions } in asked {
        let topic = &TopicRef::Name(name.clone());
        let cuts = partitions.into_iter().map(async |CutPartition { index, offset }| {
            let late = || ApiError::new(ErrorCode::RequestTimedOut, "the log start may still move").in_doubt();
            let cut = by(deadline, cut(broker, topic, index, offset)).await;
            (index, cut.unwrap_or_else(|| Err(late())))
        });
        let cut: Vec<(i32, Result<Offset, ApiError>)> = stream::iter(cuts).buffered(CUT_AT_ONCE).collect().await;
        let result = |(index, cut): (i32, Result<Offset, ApiError>)| match cut {
            Ok(start) => CutPartitionResult { index, low_watermark: start.0.cast_signed(), error_code: 0 },
            Err(error) => {
                let error_code = error.code.kafka();
                errors.push(error);
                CutPartitionResult { index, error_code, ..Default::default() }
            }
        };
        let partitions = cut.into_iter().map(result).collect();
        topics.push(CutTopicResult { name, partitions });
    }
    DeleteRecordsResponse { throttle_time_ms: throttle_ms(errors.iter()), topics }
}

async fn cut(broker: &Broker, topic: &TopicRef, index: i32, offset: i64) -> Result<Offset, ApiError> {
    let partition = u32::try_from(index)
        .map_err(|_| ApiError::new(ErrorCode::UnknownTopicOrPartition, format!("there is no partition {index}")))?;
    broker.delete_records(topic, partition, before(offset)?).await
}

/// The first offset that is kept, `None` for the high watermark.
fn before(offset: i64) -> Result<Option<Offset>, ApiError> {
    match u64::try_from(offset) {
        Ok(offset) => Ok(Some(Offset(offset))),
        Err(_) if offset == TO_HIGH_WATERMARK => Ok(None),
        Err(_) => Err(ApiError::new(ErrorCode::OffsetOutOfRange, format!("there is no offset {offset}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_log::BrokerId;

    #[test]
    fn offsets_below_zero_are_refused_but_for_the_high_watermark() {
        let before = |offset| before(offset).map_err(|error| error.code);
        assert_eq!((before(0), before(-1)), (Ok(Some(Offset(0))), Ok(None)));
        assert_eq!(
            (before(-2), before(i64::MIN)),
            (Err(ErrorCode::OffsetOutOfRange), Err(ErrorCode::OffsetOutOfRange))
        );
    }

    #[test]
    fn what_no_topic_can_have_is_refused_with_its_own_code() {
        let topic = |count, brokers: Option<Vec<i32>>| {
            let assignments = brokers.map(|brokers| vec![GrownAssignment { brokers }]);
            wanted(GrownTopic { name: "t".to_owned(), count, assignments }, true)
                .map(|wanted| (wanted.total, wanted.assignments, wanted.validate_only))
                .map_err(|error| error.code)
        };
        assert_eq!(topic(3, None), Ok((3, vec![], true)));
        assert_eq!(topic(3, Some(vec![2, 0])), Ok((3, vec![vec![BrokerId(2), BrokerId(0)]], true)));
        assert_eq!(topic(-1, None), Err(ErrorCode::InvalidPartitions));
        assert_eq!(topic(3, Some(vec![-1])), Err(ErrorCode::InvalidReplicaAssignment));
    }
}
