//! OffsetCommit: how far a group has come. Each partition succeeds or fails alone.

use super::super::wire::{NO_TOPIC_ID, requests, responses};
use super::{ask, code, partition_id, topic_id};
use crate::Broker;
use millpond_core::groups::{self, Answer, CommitOffset};
use millpond_log::{ErrorCode, LeaderEpoch, Offset, PartitionId, TopicId};

/// First version in which topics are named by their ids.
const IDS_SINCE: i16 = 10;

/// First version whose clients know the codes of consumer groups (KIP-848).
const CONSUMER_CODES_SINCE: i16 = 9;

requests! {
    /// Offsets, and who commits them.
    OffsetCommitRequest {
        group: String => ..,
        epoch: i32 = -1 => ..,
        member: String => ..,
        instance: Option<String> => 7..,
        retention_ms: i64 = -1 => 2..=4,
        topics: Vec<CommitTopic> => ..,
    }
    /// One topic.
    CommitTopic {
        name: String => ..=9,
        id: TopicId = NO_TOPIC_ID => 10..,
        partitions: Vec<CommitPartition> => ..,
    }
    /// One partition.
    CommitPartition {
        index: i32 => ..,
        offset: i64 => ..,
        leader_epoch: i32 = -1 => 6..,
        metadata: Option<String> => ..,
    }
}

responses! {
    /// What became of each.
    OffsetCommitResponse {
        throttle_time_ms: i32 => 3..,
        topics: Vec<CommittedTopic> => ..,
    }
    /// One topic.
    CommittedTopic {
        name: String => ..=9,
        id: TopicId = NO_TOPIC_ID => 10..,
        partitions: Vec<CommittedPartition> => ..,
    }
    /// One partition.
    CommittedPartition {
        index: i32 => ..,
        error_code: i16 => ..,
    }
}

/// Commits what can be committed.
pub(in crate::front::kafka) async fn commit(
    broker: &Broker,
    version: i16,
    request: OffsetCommitRequest,
) -> OffsetCommitResponse {
    let OffsetCommitRequest { group, epoch, member, instance, retention_ms, topics } = request;
    let known = broker.group_topics();
    let mut offsets = Vec::new();
    let mut places = Vec::new();
    let mut answered: Vec<CommittedTopic> = Vec::with_capacity(topics.len());
    for CommitTopic { name, id, partitions } in topics {
        let topic = topic_id(&known, version >= IDS_SINCE, &name, id);
        let mut outcomes = Vec::with_capacity(partitions.len());
        for partition in partitions {
            let index = partition.index;
            let offset = topic.and_then(|topic| to_commit(topic, partition));
            outcomes.push(CommittedPartition { index, error_code: code(&offset) });
            if let Ok(offset) = offset {
                places.push((answered.len(), outcomes.len() - 1));
                offsets.push(offset);
            }
        }
        answered.push(CommittedTopic { name, id, partitions: outcomes });
    }
    if !offsets.is_empty() {
        let asked = groups::Commit {
            group: group.as_str().into(),
            member: member.as_str().into(),
            instance,
            epoch,
            retention_ms: (retention_ms >= 0).then_some(retention_ms),
            number: None,
            offsets,
        };
        let read = |answer| match answer {
            Answer::Commit(outcomes) => Some(outcomes),
            _ => None,
        };
        let outcomes = ask(broker, "OffsetCommit", &group, groups::Request::Commit(asked), read).await;
        // What is wrong with the member is wrong with all its offsets.
        let outcomes = outcomes.unwrap_or_else(|code| vec![Err(code); places.len()]);
        for ((topic, partition), outcome) in places.into_iter().zip(outcomes) {
            answered[topic].partitions[partition].error_code = code(&outcome.map_err(|code| told(version, code)));
        }
    }
    OffsetCommitResponse { topics: answered, ..Default::default() }
}

/// # Errors
/// `UNKNOWN_TOPIC_OR_PARTITION` for a partition, `INVALID_REQUEST` for an offset that cannot be.
fn to_commit(topic: TopicId, partition: CommitPartition) -> Result<(PartitionId, CommitOffset), ErrorCode> {
    let CommitPartition { index, offset, leader_epoch, metadata } = partition;
    let id = partition_id(topic, index)?;
    // Kafka keeps -1, and who reads it back takes it for no offset.
    let offset = u64::try_from(offset).map_err(|_| ErrorCode::InvalidRequest)?;
    let leader_epoch = u32::try_from(leader_epoch).ok().map(LeaderEpoch);
    Ok((id, CommitOffset { offset: Offset(offset), leader_epoch, metadata: metadata.unwrap_or_default() }))
}

/// The code in the words of the version.
fn told(version: i16, code: ErrorCode) -> ErrorCode {
    match code {
        ErrorCode::GroupIdNotFound if version < CONSUMER_CODES_SINCE => ErrorCode::IllegalGeneration,
        ErrorCode::StaleMemberEpoch if version < CONSUMER_CODES_SINCE => ErrorCode::UnsupportedVersion,
        code => code,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_taken_as_they_are_or_refused() {
        let check = |index, offset, leader_epoch, expected: Result<(u64, Option<u32>), ErrorCode>| {
            let partition = CommitPartition { index, offset, leader_epoch, metadata: None };
            let read = to_commit(TopicId(7), partition).map(|(id, commit)| {
                assert_eq!((id.topic, id.index, commit.metadata.as_str()), (TopicId(7), index.cast_unsigned(), ""));
                (commit.offset.0, commit.leader_epoch.map(|epoch| epoch.0))
            });
            assert_eq!(read, expected, "{index} {offset} {leader_epoch}");
        };
        check(0, 0, -1, Ok((0, None)));
        check(1, i64::MAX, 3, Ok((i64::MAX.cast_unsigned(), Some(3))));
        check(-1, 5, -1, Err(ErrorCode::UnknownTopicOrPartition));
        check(0, -1, -1, Err(ErrorCode::InvalidRequest));
        check(0, i64::MIN, -1, Err(ErrorCode::InvalidRequest));
    }

    #[test]
    fn older_clients_are_told_codes_that_they_know() {
        assert_eq!(told(8, ErrorCode::GroupIdNotFound), ErrorCode::IllegalGeneration);
        assert_eq!(told(9, ErrorCode::GroupIdNotFound), ErrorCode::GroupIdNotFound);
        assert_eq!(told(8, ErrorCode::StaleMemberEpoch), ErrorCode::UnsupportedVersion);
        assert_eq!(told(9, ErrorCode::StaleMemberEpoch), ErrorCode::StaleMemberEpoch);
        assert_eq!(told(2, ErrorCode::UnknownMemberId), ErrorCode::UnknownMemberId);
    }
}
