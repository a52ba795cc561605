//! Requests of group members and of those who look after groups: each is one question to the coordinator of a group.
//!
//! Topics come by name or by id and are ids from here on (rule K1). What a question leaves open is Kafka's answer, in the codes of the
//! version it came in.

mod commit;
mod consumer;
mod delete;
mod describe;
mod fetch;
mod heartbeat;
mod join;
mod list;
mod turns;

pub(super) use commit::{OffsetCommitRequest, commit};
pub(super) use consumer::{ConsumerGroupHeartbeatRequest, consumer_heartbeat};
pub(super) use delete::{DeleteGroupsRequest, OffsetDeleteRequest, delete_groups, delete_offsets};
pub(super) use describe::{
    ConsumerGroupDescribeRequest, DescribeGroupsRequest, describe_consumer_groups, describe_groups,
};
pub(super) use fetch::{OffsetFetchRequest, fetch};
pub(super) use heartbeat::{HeartbeatRequest, LeaveGroupRequest, heartbeat, leave};
pub(super) use join::{JoinGroupRequest, SyncGroupRequest, join, sync};
pub(super) use list::{ListGroupsRequest, list};
pub(super) use turns::Turns;

use crate::Broker;
use millpond_core::groups::{Answer, Request as Ask, Topics};
use millpond_log::{ErrorCode, PartitionId, TopicId};

/// Asks the coordinator of a group, and waits as long as its answer takes. `read` takes the answer of the request's name.
async fn ask<T>(
    broker: &Broker,
    api: &'static str,
    group: &str,
    ask: Ask,
    read: impl FnOnce(Answer) -> Option<Result<T, ErrorCode>>,
) -> Result<T, ErrorCode> {
    let answered = match broker.ask_group(group, ask).await {
        Ok(answer) => read(answer).expect("each request has an answer of its name"),
        Err(error) => Err(error.code),
    };
    answered.inspect_err(|&code| broker.metrics().failed(api, code))
}

/// The topic that a request speaks of, by its id or by its name.
///
/// # Errors
/// `UNKNOWN_TOPIC_ID`, `UNKNOWN_TOPIC_OR_PARTITION`.
fn topic_id(topics: &Topics, by_id: bool, name: &str, id: TopicId) -> Result<TopicId, ErrorCode> {
    match by_id {
        true => topics.get(id).map(|_| id).ok_or(ErrorCode::UnknownTopicId),
        false => topics.id(name).ok_or(ErrorCode::UnknownTopicOrPartition),
    }
}

/// A partition by Kafka's signed index.
fn partition_id(topic: TopicId, index: i32) -> Result<PartitionId, ErrorCode> {
    let index = u32::try_from(index).map_err(|_| ErrorCode::UnknownTopicOrPartition)?;
    Ok(PartitionId { topic, index })
}

/// Refuses a group without a name where Kafka does.
fn named(group: &str) -> Result<&str, ErrorCode> {
    if group.is_empty() { Err(ErrorCode::InvalidGroupId) } else { Ok(group) }
}

/// An error on the wire; 0 for none.
fn code<T>(outcome: &Result<T, ErrorCode>) -> i16 {
    outcome.as_ref().err().map_or(0, |code| code.kafka())
}

#[cfg(test)]
pub(super) mod answers {
    //! The answers, for whoever checks how they are spelled.
    pub(in crate::front::kafka) use super::commit::{CommittedPartition, CommittedTopic, OffsetCommitResponse};
    pub(in crate::front::kafka) use super::consumer::{Assignment, ConsumerGroupHeartbeatResponse, TopicPartitions};
    pub(in crate::front::kafka) use super::delete::{
        DeleteGroupsResponse, DeletedGroup, DeletedPartition, DeletedTopic, OffsetDeleteResponse,
    };
    pub(in crate::front::kafka) use super::describe::{
        ConsumerGroupDescribeResponse, DescribeGroupsResponse, DescribedConsumerGroup, DescribedConsumerMember,
        DescribedGroup, DescribedMember, MemberAssignment, MemberTopic,
    };
    pub(in crate::front::kafka) use super::fetch::{FetchedGroup, FetchedPartition, FetchedTopic, OffsetFetchResponse};
    pub(in crate::front::kafka) use super::heartbeat::{HeartbeatResponse, LeaveGroupResponse, LeftMember};
    pub(in crate::front::kafka) use super::join::{JoinGroupResponse, JoinedMember, SyncGroupResponse};
    pub(in crate::front::kafka) use super::list::{ListGroupsResponse, ListedGroup};
}
