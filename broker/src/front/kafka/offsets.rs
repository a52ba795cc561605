//! ListOffsets: which offset is first, last, or at a time.

use super::fetch::isolation;
use super::throttle::throttle_ms;
use super::wire::{requests, responses};
use crate::Broker;
use crate::api::{ApiError, FoundOffset, Isolation, OffsetSpec, TopicRef};
use futures::stream::{self, StreamExt};
use millpond_log::{ErrorCode, LeaderEpoch, TimestampMs};

/// Partitions of one request looked up at once. A look-up by time may read the object store; the bound keeps one request from
/// taking all of its connections.
const LOOKUPS_AT_ONCE: usize = 16;

/// Kafka's negative timestamps with a meaning, each with the first version that has it.
const SPECIAL: [(i64, i16, OffsetSpec); 6] = [
    (-1, 1, OffsetSpec::Latest),
    (-2, 1, OffsetSpec::Earliest),
    (-3, 7, OffsetSpec::MaxTimestamp),
    (-4, 8, OffsetSpec::EarliestLocal),
    (-5, 9, OffsetSpec::LatestTiered),
    (-6, 11, OffsetSpec::EarliestPendingUpload),
];

requests! {
    /// Where to look.
    ListOffsetsRequest {
        replica_id: i32 = -1 => ..,
        isolation_level: i8 => 2..,
        topics: Vec<ListOffsetsTopic> => ..,
        timeout_ms: i32 => 10..,
    }
    /// One topic.
    ListOffsetsTopic {
        name: String => ..,
        partitions: Vec<ListOffsetsPartition> => ..,
    }
    /// One partition.
    ListOffsetsPartition {
        index: i32 => ..,
        current_leader_epoch: i32 = -1 => 4..,
        timestamp: i64 => ..,
    }
}

responses! {
    /// What was found.
    ListOffsetsResponse {
        throttle_time_ms: i32 => 2..,
        topics: Vec<ListedTopic> => ..,
    }
    /// One topic.
    ListedTopic {
        name: String => ..,
        partitions: Vec<ListedPartition> => ..,
    }
    /// One partition. Offset and timestamp are -1, without an error, where no record qualifies (cases F10, F11).
    ListedPartition {
        index: i32 => ..,
        error_code: i16 => ..,
        timestamp: i64 = -1 => ..,
        offset: i64 = -1 => ..,
        leader_epoch: i32 = -1 => 4..,
    }
}

/// Looks up every partition.
pub(super) async fn answer(broker: &Broker, version: i16, request: ListOffsetsRequest) -> ListOffsetsResponse {
    let isolation = isolation(request.isolation_level);
    let mut errors = Vec::new();
    let mut topics = Vec::with_capacity(request.topics.len());
    for ListOffsetsTopic { name, partitions } in request.topics {
        let topic = TopicRef::Name(name.clone());
        let results: Vec<_> = stream::iter(partitions)
            .map(|partition| look_up(broker, version, &topic, partition, isolation))
            .buffered(LOOKUPS_AT_ONCE)
            .collect()
            .await;
        let partitions = results.into_iter().map(|(index, result)| listed(index, result, &mut errors)).collect();
        topics.push(ListedTopic { name, partitions });
    }
    ListOffsetsResponse { throttle_time_ms: throttle_ms(errors.iter()), topics }
}

async fn look_up(
    broker: &Broker,
    version: i16,
    topic: &TopicRef,
    asked: ListOffsetsPartition,
    isolation: Isolation,
) -> (i32, Result<Option<FoundOffset>, ApiError>) {
    let result = match (spec(version, asked.timestamp), u32::try_from(asked.index)) {
        (Err(error), _) => Err(error),
        (_, Err(_)) => {
            Err(ApiError::new(ErrorCode::UnknownTopicOrPartition, format!("there is no partition {}", asked.index)))
        }
        (Ok(spec), Ok(partition)) => {
            // Rule F2; -1 is a client that does not know the epoch.
            let known = u32::try_from(asked.current_leader_epoch).ok().map(LeaderEpoch);
            broker.list_offsets(topic, partition, known, spec, isolation).await
        }
    };
    (asked.index, result)
}

/// What a timestamp asks for.
///
/// # Errors
/// `UnsupportedVersion` for a negative one that has no meaning in this version.
fn spec(version: i16, timestamp: i64) -> Result<OffsetSpec, ApiError> {
    if timestamp >= 0 {
        return Ok(OffsetSpec::AtOrAfter(TimestampMs(timestamp)));
    }
    let known = SPECIAL.into_iter().find(|&(special, since, _)| special == timestamp && since <= version);
    known.map(|(_, _, spec)| spec).ok_or_else(|| {
        ApiError::new(
            ErrorCode::UnsupportedVersion,
            format!("timestamp {timestamp} means nothing in version {version}"),
        )
    })
}

fn listed(index: i32, result: Result<Option<FoundOffset>, ApiError>, errors: &mut Vec<ApiError>) -> ListedPartition {
    match result {
        Ok(None) => ListedPartition { index, ..Default::default() },
        Ok(Some(found)) => ListedPartition {
            index,
            timestamp: found.timestamp.map_or(-1, |time| time.0),
            offset: found.offset.0.cast_signed(),
            leader_epoch: found.leader_epoch.map_or(-1, |epoch| epoch.0.cast_signed()),
            ..Default::default()
        },
        Err(error) => {
            let error_code = error.code.kafka();
            errors.push(error);
            ListedPartition { index, error_code, ..Default::default() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_timestamps_mean_something_from_their_version_on() {
        let check = |version, timestamp, expected: Result<OffsetSpec, ErrorCode>| {
            assert_eq!(
                spec(version, timestamp).map_err(|error| error.code),
                expected,
                "{timestamp} in version {version}"
            );
        };
        let unsupported = Err(ErrorCode::UnsupportedVersion);
        check(1, -1, Ok(OffsetSpec::Latest));
        check(1, -2, Ok(OffsetSpec::Earliest));
        check(6, -3, unsupported);
        check(7, -3, Ok(OffsetSpec::MaxTimestamp));
        check(7, -4, unsupported);
        check(8, -4, Ok(OffsetSpec::EarliestLocal));
        check(8, -5, unsupported);
        check(9, -5, Ok(OffsetSpec::LatestTiered));
        check(10, -6, unsupported);
        check(11, -6, Ok(OffsetSpec::EarliestPendingUpload));
        check(11, -7, unsupported);
        check(11, i64::MIN, unsupported);
        check(1, 0, Ok(OffsetSpec::AtOrAfter(TimestampMs(0))));
        check(10, i64::MAX, Ok(OffsetSpec::AtOrAfter(TimestampMs(i64::MAX))));
    }
}
