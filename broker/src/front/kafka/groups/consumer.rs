//! ConsumerGroupHeartbeat: members of consumer groups live, join and leave, and are told what they own (KIP-848).

use super::super::wire::{NO_TOPIC_ID, ToWire, Writer, requests, responses};
use super::{ask, partition_id};
use crate::Broker;
use millpond_core::groups::{self, Answer, Beat, JOIN_EPOCH};
use millpond_core::records::groups::Client;
use millpond_log::{ErrorCode, PartitionId, TopicId};
use std::collections::{BTreeMap, BTreeSet};

/// First version in which members choose their ids themselves (KIP-1082).
const OWN_ID_SINCE: i16 = 1;

requests! {
    /// What is none has not changed.
    ConsumerGroupHeartbeatRequest {
        group: String => ..,
        member: String => ..,
        epoch: i32 => ..,
        instance: Option<String> => ..,
        rack: Option<String> => ..,
        rebalance_timeout_ms: i32 = -1 => ..,
        topics: Option<Vec<String>> => ..,
        regex: Option<String> => 1..,
        assignor: Option<String> => ..,
        owned: Option<Vec<OwnedTopic>> => ..,
    }
    /// Partitions that the member owns.
    OwnedTopic {
        id: TopicId = NO_TOPIC_ID => ..,
        partitions: Vec<i32> => ..,
    }
}

responses! {
    /// Where the member stands.
    ConsumerGroupHeartbeatResponse {
        throttle_time_ms: i32 => ..,
        error_code: i16 => ..,
        error_message: Option<String> => ..,
        member: Option<String> => ..,
        epoch: i32 => ..,
        heartbeat_interval_ms: i32 => ..,
        assignment: Option<Assignment> => ..,
    }
    /// What it may own.
    Assignment {
        topics: Vec<TopicPartitions> => ..,
    }
    /// Partitions of one topic.
    TopicPartitions {
        id: TopicId = NO_TOPIC_ID => ..,
        partitions: Vec<i32> => ..,
    }
}

// A structure that may be null is preceded by one byte: -1 where it is.
impl ToWire for Option<Assignment> {
    fn write(&self, w: &mut Writer) {
        match self {
            None => (-1i8).write(w),
            Some(assignment) => {
                1i8.write(w);
                assignment.write(w);
            }
        }
    }
}

/// Tells the coordinator that the member lives, and the member what it owns.
pub(in crate::front::kafka) async fn consumer_heartbeat(
    broker: &Broker,
    version: i16,
    client: Client,
    request: ConsumerGroupHeartbeatRequest,
) -> ConsumerGroupHeartbeatResponse {
    let group = request.group.clone();
    let read = |answer| match answer {
        Answer::Heartbeat(beat) => Some(beat),
        _ => None,
    };
    let beat = match to_heartbeat(version, client, request) {
        Ok(heartbeat) => {
            ask(broker, "ConsumerGroupHeartbeat", &group, groups::Request::Heartbeat(heartbeat), read).await
        }
        Err(code) => Err(code),
    };
    match beat {
        Ok(Beat { member, epoch, heartbeat_interval_ms, assignment, .. }) => ConsumerGroupHeartbeatResponse {
            member: Some(member.to_string()),
            epoch,
            heartbeat_interval_ms: i32::try_from(heartbeat_interval_ms).unwrap_or(i32::MAX),
            assignment: assignment.map(|partitions| Assignment { topics: by_topic(partitions) }),
            ..Default::default()
        },
        Err(code) => ConsumerGroupHeartbeatResponse {
            error_code: code.kafka(),
            error_message: Some(format!("the coordinator of group `{group}` refused: {}", code.name())),
            ..Default::default()
        },
    }
}

/// # Errors
/// `INVALID_REQUEST` for partitions that no topic has.
fn to_heartbeat(
    version: i16,
    client: Client,
    request: ConsumerGroupHeartbeatRequest,
) -> Result<groups::Heartbeat, ErrorCode> {
    let ConsumerGroupHeartbeatRequest { group, mut member, epoch, instance, rack, topics, regex, assignor, .. } =
        request;
    if version < OWN_ID_SINCE && member.is_empty() && epoch == JOIN_EPOCH {
        member = uuid::Uuid::new_v4().to_string();
    }
    let owned = |owned: Vec<OwnedTopic>| {
        let partitions = owned.into_iter().flat_map(|OwnedTopic { id, partitions }| {
            partitions.into_iter().map(move |index| partition_id(id, index).map_err(|_| ErrorCode::InvalidRequest))
        });
        partitions.collect::<Result<BTreeSet<PartitionId>, ErrorCode>>()
    };
    Ok(groups::Heartbeat {
        group: group.as_str().into(),
        member: member.as_str().into(),
        epoch,
        instance,
        rack,
        client,
        rebalance_timeout_ms: u32::try_from(request.rebalance_timeout_ms).ok(),
        topics: topics.map(BTreeSet::from_iter),
        regex,
        assignor,
        owned: request.owned.map(owned).transpose()?,
    })
}

/// Partitions by topic, in order.
pub(super) fn by_topic(partitions: impl IntoIterator<Item = PartitionId>) -> Vec<TopicPartitions> {
    let mut topics: BTreeMap<TopicId, Vec<i32>> = BTreeMap::new();
    for PartitionId { topic, index } in partitions {
        topics.entry(topic).or_default().push(index.cast_signed());
    }
    topics.into_iter().map(|(id, partitions)| TopicPartitions { id, partitions }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_the_first_version_are_given_an_id_once() {
        let id = |version, member: &str, epoch| {
            let request = ConsumerGroupHeartbeatRequest { member: member.to_owned(), epoch, ..Default::default() };
            to_heartbeat(version, Client::default(), request).expect("it owns nothing").member
        };
        assert_eq!(id(0, "", 0).len(), 36);
        assert_ne!(id(0, "", 0), id(0, "", 0));
        assert_eq!((&*id(0, "m", 0), &*id(0, "", 3), &*id(1, "", 0)), ("m", "", ""));
    }

    #[test]
    fn what_is_owned_comes_in_by_topic_and_goes_out_by_topic() {
        let topic = |id, partitions: &[i32]| OwnedTopic { id: TopicId(id), partitions: partitions.to_vec() };
        let heartbeat = |owned| {
            let request = ConsumerGroupHeartbeatRequest { owned: Some(owned), ..Default::default() };
            to_heartbeat(1, Client::default(), request).map(|heartbeat| heartbeat.owned.expect("it was said"))
        };
        let owned = heartbeat(vec![topic(2, &[1]), topic(1, &[3, 0])]).expect("well formed");
        let out: Vec<_> = by_topic(owned).into_iter().map(|topic| (topic.id.0, topic.partitions)).collect();
        assert_eq!(out, [(1, vec![0, 3]), (2, vec![1])]);
        assert_eq!(heartbeat(vec![topic(1, &[-1])]), Err(ErrorCode::InvalidRequest));
        assert_eq!(heartbeat(Vec::new()), Ok(BTreeSet::new()));
    }
}
