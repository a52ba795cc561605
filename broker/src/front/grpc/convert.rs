//! Between the messages of `millpond.v1` and the types of `api`. Field by field; nothing is decided here.

use super::status::{in_stream, malformed};
use crate::api::*;
use millpond_log::{LeaderEpoch, Offset, TimestampMs};
use millpond_proto::v1;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How long a produce waits for its commit unless the client says otherwise. Kafka's `request.timeout.ms` default.
const PRODUCE_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

/// Bytes of a `FetchOne` unless the client says otherwise. Kafka's `max.partition.fetch.bytes` default.
const FETCH_ONE_BYTES_DEFAULT: u32 = 1 << 20;

pub(super) fn given_up(given_up: GivenUp) -> v1::ForgetBrokerResponse {
    let last_copy = |(topic, partition)| v1::LastCopy { topic, partition };
    v1::ForgetBrokerResponse {
        partitions: u32::try_from(given_up.partitions).unwrap_or(u32::MAX),
        last_copies: given_up.last_copies.into_iter().map(last_copy).collect(),
    }
}

pub(super) fn topic_ref(topic: Option<v1::TopicRef>) -> Result<TopicRef, ApiError> {
    match topic.and_then(|topic| topic.topic) {
        Some(v1::topic_ref::Topic::Name(name)) => Ok(TopicRef::Name(name)),
        Some(v1::topic_ref::Topic::Id(id)) => {
            id.parse().map(TopicRef::Id).map_err(|error| malformed(format!("`topic.id` is `{id}`: {error}")))
        }
        None => Err(malformed("`topic` is missing: give its name or its id")),
    }
}

/// What came in a message of `arrived_bytes`.
pub(super) fn produce_request(request: v1::ProduceRequest, arrived_bytes: usize) -> Result<ProduceRequest, ApiError> {
    let acks = match v1::Acks::try_from(request.acks) {
        Ok(v1::Acks::Unspecified | v1::Acks::All) => Acks::All,
        Ok(v1::Acks::Leader) => Acks::Leader,
        Ok(v1::Acks::None) => Acks::None,
        Err(_) => {
            let message = format!("`acks` is {}; it must be one of `millpond.v1.Acks`", request.acks);
            return Err(ApiError::new(millpond_log::ErrorCode::InvalidRequiredAcks, message));
        }
    };
    let timeout = match request.timeout_ms {
        0 => PRODUCE_TIMEOUT_DEFAULT,
        ms => Duration::from_millis(ms.into()),
    };
    let records = request.records.ok_or_else(|| malformed("`records` is missing: give one record batch"))?;
    let id = Some(request.transactional_id).filter(|id| !id.is_empty());
    let transaction = id.map(|id| {
        let (id, hung_up) = (id.as_str().into(), CancellationToken::new());
        InTransaction { id, epoch_per_transaction: true, hung_up }
    });
    Ok(ProduceRequest {
        topic: topic_ref(request.topic)?,
        partition: request.partition,
        records: records.into_bytes(),
        arrived_bytes,
        behind: None,
        transaction,
        acks,
        timeout,
    })
}

pub(super) fn produced(produced: Produced) -> v1::Produced {
    v1::Produced {
        base_offset: Some(produced.base_offset.0),
        log_start: produced.log_start.0,
        append_time_ms: produced.append_time.map(|time| time.0),
    }
}

pub(super) fn isolation(isolation: i32) -> Result<Isolation, ApiError> {
    match v1::Isolation::try_from(isolation) {
        Ok(v1::Isolation::ReadUncommitted) => Ok(Isolation::ReadUncommitted),
        Ok(v1::Isolation::ReadCommitted) => Ok(Isolation::ReadCommitted),
        Err(_) => Err(malformed(format!("`isolation` is {isolation}; it must be one of `millpond.v1.Isolation`"))),
    }
}

pub(super) fn fetch_one(request: v1::FetchOneRequest) -> Result<FetchRequest, ApiError> {
    let bytes_max = if request.bytes_max == 0 { FETCH_ONE_BYTES_DEFAULT } else { request.bytes_max } as usize;
    Ok(FetchRequest {
        partitions: vec![FetchPartition {
            topic: topic_ref(request.topic)?,
            partition: request.partition,
            offset: Offset(request.offset),
            bytes_max,
            current_leader_epoch: request.current_leader_epoch.map(LeaderEpoch),
            last_fetched_epoch: request.last_fetched_epoch.map(LeaderEpoch),
            reader: Reader::Anywhere,
        }],
        bytes_max,
        bytes_min: request.bytes_min as usize,
        wait_max: Duration::from_millis(request.wait_ms_max.into()),
        isolation: isolation(request.isolation)?,
        scan: request.scan,
    })
}

pub(super) fn aborted(aborted: Option<Vec<AbortedTxn>>) -> Vec<v1::AbortedTransaction> {
    let aborted = aborted.unwrap_or_default().into_iter();
    aborted
        .map(|aborted| v1::AbortedTransaction { producer_id: aborted.producer.0, first_offset: aborted.first_offset.0 })
        .collect()
}

pub(super) fn fetched_one(fetched: FetchedPartition) -> Result<v1::FetchOneResponse, ApiError> {
    match fetched.error {
        Some(error) => Err(error),
        None => Ok(v1::FetchOneResponse {
            high_watermark: fetched.high_watermark.0,
            last_stable: fetched.last_stable.0,
            log_start: fetched.log_start.0,
            records: Some(fetched.batches.into()),
            aborted: aborted(fetched.aborted),
            diverging: fetched.diverging.map(epoch_end),
        }),
    }
}

pub(super) fn partition_status(state: PartitionStatus) -> v1::DescribePartitionResponse {
    v1::DescribePartitionResponse {
        log_start: state.log_start.0,
        tiered_end: state.tiered_end.0,
        high_watermark: state.high_watermark.0,
        log_end: state.log_end.0,
        tail_bytes: state.tail_bytes,
        tiered_bytes: state.tiered_bytes,
    }
}

pub(super) fn epoch_end(end: EpochEnd) -> v1::EpochEnd {
    v1::EpochEnd { leader_epoch: end.epoch.0, end_offset: end.end.0 }
}

pub(super) fn offset_spec(spec: Option<v1::offset_query::Spec>) -> Result<OffsetSpec, ApiError> {
    use v1::OffsetPosition as P;
    let position = match spec {
        Some(v1::offset_query::Spec::AtOrAfterMs(time)) => return Ok(OffsetSpec::AtOrAfter(TimestampMs(time))),
        Some(v1::offset_query::Spec::Position(position)) => position,
        None => return Err(malformed("`spec` is missing: give a position or a time")),
    };
    match P::try_from(position) {
        Ok(P::Earliest) => Ok(OffsetSpec::Earliest),
        Ok(P::Latest) => Ok(OffsetSpec::Latest),
        Ok(P::MaxTimestamp) => Ok(OffsetSpec::MaxTimestamp),
        Ok(P::EarliestLocal) => Ok(OffsetSpec::EarliestLocal),
        Ok(P::LatestTiered) => Ok(OffsetSpec::LatestTiered),
        Ok(P::Unspecified) | Err(_) => {
            Err(malformed(format!("`position` is {position}; it must be one of `millpond.v1.OffsetPosition`")))
        }
    }
}

pub(super) fn offset_result(found: Result<Option<FoundOffset>, ApiError>) -> v1::OffsetResult {
    match found {
        Ok(Some(found)) => v1::OffsetResult {
            offset: Some(found.offset.0),
            timestamp_ms: found.timestamp.map(|time| time.0),
            leader_epoch: found.leader_epoch.map(|epoch| epoch.0),
            error: None,
        },
        Ok(None) => v1::OffsetResult::default(),
        Err(error) => v1::OffsetResult { error: Some(in_stream(&error)), ..Default::default() },
    }
}

pub(super) fn topic(topic: TopicDescription) -> v1::TopicDescription {
    v1::TopicDescription {
        id: topic.id.to_string(),
        partitions: topic.partitions.into_iter().map(|described| partition(&topic.name, described)).collect(),
        name: topic.name,
        configs: topic.configs,
    }
}

fn partition(topic: &str, partition: PartitionDescription) -> v1::PartitionDescription {
    let index = partition.id.index;
    let ids = |brokers: Vec<millpond_log::BrokerId>| brokers.into_iter().map(|broker| broker.0).collect();
    v1::PartitionDescription {
        index,
        leader: partition.leader.map(|broker| broker.0),
        leader_epoch: partition.leader_epoch.0,
        replicas: ids(partition.replicas),
        isr: ids(partition.isr),
        elr: ids(partition.elr),
        offline: ids(partition.offline),
        loss: partition.loss.map(|lost| loss(topic, index, lost)),
    }
}

pub(super) fn loss(topic: &str, partition: u32, loss: PartitionLoss) -> v1::PartitionLoss {
    let (file, position) = loss.place.map(|place| (place.file, place.position)).unzip();
    let command = crate::loss::accept_command(topic, partition);
    v1::PartitionLoss { cause: loss.cause, file, position, end: loss.end.0, known_end: loss.known_end.0, command }
}

pub(super) fn broker(broker: BrokerDescription) -> v1::BrokerDescription {
    let BrokerDescription { id, rack, grpc, kafka, http, .. } = broker;
    v1::BrokerDescription { id: id.0, rack, grpc, kafka, http }
}
