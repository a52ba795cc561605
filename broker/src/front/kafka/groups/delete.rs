//! OffsetDelete and DeleteGroups: what a group has committed, or all of it, is forgotten.

use super::super::wire::{NO_TOPIC_ID, requests, responses};
use super::{ask, code, partition_id, topic_id};
use crate::Broker;
use millpond_core::groups::{self, Answer};
use millpond_log::ErrorCode;

requests! {
    /// Offsets to forget.
    OffsetDeleteRequest {
        group: String => ..,
        topics: Vec<DeleteTopic> => ..,
    }
    /// One topic.
    DeleteTopic {
        name: String => ..,
        partitions: Vec<DeletePartition> => ..,
    }
    /// One partition.
    DeletePartition {
        index: i32 => ..,
    }
    /// Groups to forget.
    DeleteGroupsRequest {
        groups: Vec<String> => ..,
    }
}

responses! {
    /// What became of each.
    OffsetDeleteResponse {
        error_code: i16 => ..,
        throttle_time_ms: i32 => ..,
        topics: Vec<DeletedTopic> => ..,
    }
    /// One topic.
    DeletedTopic {
        name: String => ..,
        partitions: Vec<DeletedPartition> => ..,
    }
    /// One partition.
    DeletedPartition {
        index: i32 => ..,
        error_code: i16 => ..,
    }
    /// What became of each.
    DeleteGroupsResponse {
        throttle_time_ms: i32 => ..,
        groups: Vec<DeletedGroup> => ..,
    }
    /// One group.
    DeletedGroup {
        group: String => ..,
        error_code: i16 => ..,
    }
}

/// Forgets offsets, each partition by itself.
pub(in crate::front::kafka) async fn delete_offsets(
    broker: &Broker,
    request: OffsetDeleteRequest,
) -> OffsetDeleteResponse {
    let OffsetDeleteRequest { group, topics } = request;
    let known = broker.group_topics();
    let mut partitions = Vec::new();
    let mut places = Vec::new();
    let mut answered: Vec<DeletedTopic> = Vec::with_capacity(topics.len());
    for DeleteTopic { name, partitions: asked } in topics {
        let topic = topic_id(&known, false, &name, NO_TOPIC_ID);
        let mut outcomes = Vec::with_capacity(asked.len());
        for DeletePartition { index } in asked {
            let id = topic.and_then(|topic| partition_id(topic, index)).and_then(|id| match known.holds(id) {
                true => Ok(id),
                false => Err(ErrorCode::UnknownTopicOrPartition),
            });
            outcomes.push(DeletedPartition { index, error_code: code(&id) });
            if let Ok(id) = id {
                places.push((answered.len(), outcomes.len() - 1));
                partitions.push(id);
            }
        }
        answered.push(DeletedTopic { name, partitions: outcomes });
    }
    let read = |answer| match answer {
        Answer::DeleteOffsets(outcomes) => Some(outcomes),
        _ => None,
    };
    let asked = groups::Request::DeleteOffsets { group: group.as_str().into(), partitions };
    match ask(broker, "OffsetDelete", &group, asked, read).await {
        Ok(outcomes) => {
            for ((topic, partition), outcome) in places.into_iter().zip(outcomes) {
                answered[topic].partitions[partition].error_code = code(&outcome);
            }
            OffsetDeleteResponse { topics: answered, ..Default::default() }
        }
        Err(code) => OffsetDeleteResponse { error_code: code.kafka(), ..Default::default() },
    }
}

/// Forgets groups, each by itself.
pub(in crate::front::kafka) async fn delete_groups(
    broker: &Broker,
    request: DeleteGroupsRequest,
) -> DeleteGroupsResponse {
    let mut groups = Vec::with_capacity(request.groups.len());
    for group in request.groups {
        let read = |answer| match answer {
            Answer::Delete(deleted) => Some(deleted),
            _ => None,
        };
        let asked = groups::Request::Delete(group.as_str().into());
        let deleted = ask(broker, "DeleteGroups", &group, asked, read).await;
        groups.push(DeletedGroup { group, error_code: code(&deleted) });
    }
    DeleteGroupsResponse { groups, ..Default::default() }
}
