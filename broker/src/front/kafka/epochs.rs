//! OffsetForLeaderEpoch: where the records of a leader epoch end, by which a reader learns whether the log is still the one it has
//! read (KIP-320).

use super::throttle::throttle_ms;
use super::wire::{requests, responses};
use crate::Broker;
use crate::api::{ApiError, EpochEnd, TopicRef};
use millpond_log::{ErrorCode, LeaderEpoch};

requests! {
    /// Which epochs.
    OffsetForLeaderEpochRequest {
        replica_id: i32 = -2 => 3..,
        topics: Vec<EpochTopic> => ..,
    }
    /// One topic.
    EpochTopic {
        name: String => ..,
        partitions: Vec<EpochPartition> => ..,
    }
    /// One partition.
    EpochPartition {
        index: i32 => ..,
        current_leader_epoch: i32 = -1 => ..,
        leader_epoch: i32 => ..,
    }
}

responses! {
    /// Where they end.
    OffsetForLeaderEpochResponse {
        throttle_time_ms: i32 => ..,
        topics: Vec<EpochEndTopic> => ..,
    }
    /// One topic.
    EpochEndTopic {
        name: String => ..,
        partitions: Vec<EpochEndPartition> => ..,
    }
    /// One partition. Epoch and offset are -1 where nothing is known of the epoch.
    EpochEndPartition {
        error_code: i16 => ..,
        index: i32 => ..,
        leader_epoch: i32 = -1 => ..,
        end_offset: i64 = -1 => ..,
    }
}

/// Looks up every partition.
pub(super) fn answer(broker: &Broker, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse {
    let mut errors = Vec::new();
    let topic = |EpochTopic { name, partitions }: EpochTopic| {
        let named = TopicRef::Name(name.clone());
        let ended = |asked: EpochPartition| ended(asked.index, look_up(broker, &named, &asked), &mut errors);
        EpochEndTopic { name, partitions: partitions.into_iter().map(ended).collect() }
    };
    let topics = request.topics.into_iter().map(topic).collect();
    OffsetForLeaderEpochResponse { throttle_time_ms: throttle_ms(errors.iter()), topics }
}

fn look_up(broker: &Broker, topic: &TopicRef, asked: &EpochPartition) -> Result<Option<EpochEnd>, ApiError> {
    let no_partition = || ApiError::new(ErrorCode::UnknownTopicOrPartition, format!("there is no {}", asked.index));
    let partition = u32::try_from(asked.index).map_err(|_| no_partition())?;
    // -1 is a client that does not know the epoch: no epoch ends then, and rule F2 does not hold it to any.
    let epoch = |epoch: i32| u32::try_from(epoch).ok().map(LeaderEpoch);
    broker.end_of_epoch(topic, partition, epoch(asked.current_leader_epoch), epoch(asked.leader_epoch))
}

fn ended(index: i32, result: Result<Option<EpochEnd>, ApiError>, errors: &mut Vec<ApiError>) -> EpochEndPartition {
    match result {
        Ok(None) => EpochEndPartition { index, ..Default::default() },
        Ok(Some(end)) => EpochEndPartition {
            index,
            leader_epoch: end.epoch.0.cast_signed(),
            end_offset: end.end.0.cast_signed(),
            ..Default::default()
        },
        Err(error) => {
            let error_code = error.code.kafka();
            errors.push(error);
            EpochEndPartition { index, error_code, ..Default::default() }
        }
    }
}
