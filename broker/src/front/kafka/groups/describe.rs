//! DescribeGroups and ConsumerGroupDescribe: all of a group, as clients see it. Each speaks of groups of its own kind.

use super::super::operations;
use super::super::wire::{NO_TOPIC_ID, requests, responses};
use super::consumer::{TopicPartitions, by_topic};
use super::list::state;
use super::{ask, code};
use crate::Broker;
use bytes::Bytes;
use millpond_core::groups::{self, Answer, Description, GroupState, Members, Topics};
use millpond_core::records::groups::{ClassicMemberRecord, MemberRecord};
use millpond_log::{ErrorCode, PartitionId, TopicId};
use std::collections::BTreeSet;
use std::sync::Arc;

/// First version of DescribeGroups in which a group that is not there is an error (KIP-1043).
const NOT_FOUND_SINCE: i16 = 6;

/// Kafka's word for a group that is not there.
const DEAD: &str = "Dead";

/// Kafka's numbers of what a member of a consumer group speaks.
const CLASSIC_MEMBER: i8 = 0;
const CONSUMER_MEMBER: i8 = 1;

requests! {
    /// Classic groups.
    DescribeGroupsRequest {
        groups: Vec<String> => ..,
        include_authorized_operations: bool => 3..,
    }
    /// Consumer groups.
    ConsumerGroupDescribeRequest {
        groups: Vec<String> => ..,
        include_authorized_operations: bool => ..,
    }
}

responses! {
    /// All of them.
    DescribeGroupsResponse {
        throttle_time_ms: i32 => 1..,
        groups: Vec<DescribedGroup> => ..,
    }
    /// One group.
    DescribedGroup {
        error_code: i16 => ..,
        error_message: Option<String> => 6..,
        group: String => ..,
        state: String => ..,
        protocol_type: String => ..,
        protocol: String => ..,
        members: Vec<DescribedMember> => ..,
        authorized_operations: i32 = operations::UNKNOWN => 3..,
    }
    /// One member. What it said and was given is told of groups at rest.
    DescribedMember {
        member: String => ..,
        instance: Option<String> => 4..,
        client_id: String => ..,
        client_host: String => ..,
        metadata: Bytes => ..,
        assignment: Bytes => ..,
    }
    /// All of them.
    ConsumerGroupDescribeResponse {
        throttle_time_ms: i32 => ..,
        groups: Vec<DescribedConsumerGroup> => ..,
    }
    /// One group.
    DescribedConsumerGroup {
        error_code: i16 => ..,
        error_message: Option<String> => ..,
        group: String => ..,
        state: String => ..,
        epoch: i32 => ..,
        target_epoch: i32 => ..,
        assignor: String => ..,
        members: Vec<DescribedConsumerMember> => ..,
        authorized_operations: i32 = operations::UNKNOWN => ..,
    }
    /// One member.
    DescribedConsumerMember {
        member: String => ..,
        instance: Option<String> => ..,
        rack: Option<String> => ..,
        epoch: i32 => ..,
        client_id: String => ..,
        client_host: String => ..,
        topics: Vec<String> => ..,
        regex: Option<String> => ..,
        assigned: MemberAssignment => ..,
        target: MemberAssignment => ..,
        kind: i8 = CONSUMER_MEMBER => 1..,
    }
    /// Partitions of a member.
    MemberAssignment {
        topics: Vec<MemberTopic> => ..,
    }
    /// Those of one topic.
    MemberTopic {
        id: TopicId = NO_TOPIC_ID => ..,
        name: String => ..,
        partitions: Vec<i32> => ..,
    }
}

/// Describes classic groups.
pub(in crate::front::kafka) async fn describe_groups(
    broker: &Broker,
    version: i16,
    request: DescribeGroupsRequest,
) -> DescribeGroupsResponse {
    let authorized_operations = operations::told(request.include_authorized_operations, operations::GROUP);
    let mut groups = Vec::with_capacity(request.groups.len());
    for group in request.groups {
        let described = describe(broker, "DescribeGroups", &group).await;
        let group = classic(version, group, described);
        groups.push(DescribedGroup { authorized_operations, ..group });
    }
    DescribeGroupsResponse { groups, ..Default::default() }
}

/// Describes consumer groups.
pub(in crate::front::kafka) async fn describe_consumer_groups(
    broker: &Broker,
    request: ConsumerGroupDescribeRequest,
) -> ConsumerGroupDescribeResponse {
    let authorized_operations = operations::told(request.include_authorized_operations, operations::GROUP);
    let mut groups = Vec::with_capacity(request.groups.len());
    for group in request.groups {
        let described = describe(broker, "ConsumerGroupDescribe", &group).await;
        let group = consumer(&broker.group_topics(), group, described);
        groups.push(DescribedConsumerGroup { authorized_operations, ..group });
    }
    ConsumerGroupDescribeResponse { groups, ..Default::default() }
}

async fn describe(broker: &Broker, api: &'static str, group: &str) -> Result<Description, ErrorCode> {
    let read = |answer| match answer {
        Answer::Describe(description) => Some(description),
        _ => None,
    };
    ask(broker, api, group, groups::Request::Describe(group.into()), read).await
}

fn classic(version: i16, group: String, described: Result<Description, ErrorCode>) -> DescribedGroup {
    let (described, members, protocol) = match described {
        Ok(Description { listed, members: Members::Classic { protocol, members }, .. }) => {
            (Ok(listed), members, protocol)
        }
        Ok(_) => (Err(ErrorCode::GroupIdNotFound), Default::default(), None),
        Err(code) => (Err(code), Default::default(), None),
    };
    let listed = match described {
        Ok(listed) => listed,
        Err(ErrorCode::GroupIdNotFound) if version < NOT_FOUND_SINCE => {
            return DescribedGroup { group, state: DEAD.to_owned(), ..Default::default() };
        }
        Err(code) => {
            let state = if code == ErrorCode::GroupIdNotFound { DEAD } else { "" }.to_owned();
            let error_message = Some(refusal(code, &group, "classic"));
            return DescribedGroup { error_code: code.kafka(), error_message, group, state, ..Default::default() };
        }
    };
    // Between two generations what members said and what they hold belongs to neither.
    let protocol = protocol.filter(|_| listed.state == GroupState::Stable).unwrap_or_default();
    let at_rest = listed.state == GroupState::Stable;
    let member = |(id, record)| described_member(&id, record, at_rest.then_some(protocol.as_str()));
    DescribedGroup {
        group,
        state: state(listed.state).to_owned(),
        protocol_type: listed.protocol_type,
        members: members.into_iter().map(member).collect(),
        protocol,
        ..Default::default()
    }
}

fn described_member(id: &Arc<str>, record: ClassicMemberRecord, protocol: Option<&str>) -> DescribedMember {
    let ClassicMemberRecord { instance, client, protocols, assignment, .. } = record;
    let known = protocols.into_iter().find(|known| protocol == Some(known.name.as_str()));
    DescribedMember {
        member: id.to_string(),
        instance,
        client_id: client.id,
        client_host: host(&client.host),
        metadata: known.map(|known| known.metadata).unwrap_or_default().into(),
        assignment: protocol.map(|_| assignment).unwrap_or_default().into(),
    }
}

fn consumer(topics: &Topics, group: String, described: Result<Description, ErrorCode>) -> DescribedConsumerGroup {
    let members = described.and_then(|described| match described.members {
        Members::Consumer { target_epoch, assignor, members } => {
            Ok((described.listed.state, described.epoch, target_epoch, assignor, members))
        }
        Members::Classic { .. } => Err(ErrorCode::GroupIdNotFound),
    });
    let error_code = code(&members);
    match members {
        Ok((stands, epoch, target_epoch, assignor, members)) => DescribedConsumerGroup {
            group,
            state: state(stands).to_owned(),
            epoch,
            target_epoch,
            assignor: assignor.to_owned(),
            members: members.into_iter().map(|(id, member)| consumer_member(topics, &id, member)).collect(),
            ..Default::default()
        },
        Err(code) => {
            let error_message = Some(refusal(code, &group, "consumer"));
            DescribedConsumerGroup { error_code, error_message, group, ..Default::default() }
        }
    }
}

fn consumer_member(
    topics: &Topics,
    id: &Arc<str>,
    (record, target): (MemberRecord, BTreeSet<PartitionId>),
) -> DescribedConsumerMember {
    let MemberRecord { instance, rack, epoch, client, topics: names, regex, assigned, classic, .. } = record;
    DescribedConsumerMember {
        member: id.to_string(),
        instance,
        rack,
        epoch,
        client_id: client.id,
        client_host: host(&client.host),
        topics: names.into_iter().collect(),
        regex,
        assigned: assignment(topics, assigned.into_keys()),
        target: assignment(topics, target),
        kind: if classic.is_some() { CLASSIC_MEMBER } else { CONSUMER_MEMBER },
    }
}

/// Partitions with the names of their topics; those of topics that are gone have none.
fn assignment(topics: &Topics, partitions: impl IntoIterator<Item = PartitionId>) -> MemberAssignment {
    let topic = |TopicPartitions { id, partitions }| {
        Some(MemberTopic { id, name: topics.get(id)?.name.to_string(), partitions })
    };
    MemberAssignment { topics: by_topic(partitions).into_iter().filter_map(topic).collect() }
}

/// An address as Kafka's brokers tell it: with a slash, where a name that was resolved would stand before it.
fn host(address: &str) -> String {
    if address.is_empty() { String::new() } else { format!("/{address}") }
}

fn refusal(code: ErrorCode, group: &str, kind: &str) -> String {
    match code {
        ErrorCode::GroupIdNotFound => format!("there is no {kind} group `{group}`"),
        code => format!("the coordinator of group `{group}` refused: {}", code.name()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_core::groups::{Listed, Topic};
    use millpond_core::records::groups::{Client, Protocol};

    fn described(state: GroupState, consumer: bool, members: Members) -> Description {
        let protocol_type = "consumer".to_owned();
        Description { listed: Listed { group: "g".into(), state, consumer, protocol_type }, epoch: 4, members }
    }

    fn client() -> Client {
        Client { id: "app".to_owned(), host: "10.0.0.1".to_owned() }
    }

    fn classic_group(state: GroupState) -> Description {
        let protocol = |name: &str| Protocol { name: name.to_owned(), metadata: name.as_bytes().to_vec() };
        let record = ClassicMemberRecord {
            client: client(),
            protocols: vec![protocol("range"), protocol("sticky")],
            assignment: b"given".to_vec(),
            ..Default::default()
        };
        let (protocol, members) = (Some("sticky".to_owned()), [("m".into(), record)].into());
        described(state, false, Members::Classic { protocol, members })
    }

    fn consumer_group() -> Description {
        let partition = |topic, index| PartitionId { topic: TopicId(topic), index };
        let record = MemberRecord {
            client: client(),
            epoch: 3,
            topics: ["t".to_owned()].into(),
            assigned: [(partition(1, 0), 3), (partition(9, 0), 3)].into(),
            ..Default::default()
        };
        let target = [partition(1, 0), partition(1, 1)].into();
        let members = [("m".into(), (record, target))].into();
        described(GroupState::Reconciling, true, Members::Consumer { target_epoch: 4, assignor: "uniform", members })
    }

    #[test]
    fn what_members_said_and_were_given_is_told_of_groups_at_rest() {
        let group = classic(5, "g".to_owned(), Ok(classic_group(GroupState::Stable)));
        assert_eq!((group.state.as_str(), group.protocol.as_str()), ("Stable", "sticky"));
        let member = &group.members[0];
        assert_eq!((&member.metadata[..], &member.assignment[..]), (&b"sticky"[..], &b"given"[..]));
        assert_eq!((member.client_id.as_str(), member.client_host.as_str()), ("app", "/10.0.0.1"));
        let group = classic(5, "g".to_owned(), Ok(classic_group(GroupState::PreparingRebalance)));
        let member = &group.members[0];
        assert_eq!((group.protocol.as_str(), member.metadata.len(), member.assignment.len()), ("", 0, 0));
    }

    #[test]
    fn a_group_that_is_not_there_is_dead_and_later_an_error() {
        for described in [Err(ErrorCode::GroupIdNotFound), Ok(consumer_group())] {
            let group = |version| classic(version, "g".to_owned(), described.clone());
            assert_eq!((group(5).error_code, group(5).state.as_str()), (0, "Dead"));
            assert_eq!((group(6).error_code, group(6).state.as_str()), (69, "Dead"));
        }
        let loading = classic(5, "g".to_owned(), Err(ErrorCode::CoordinatorLoadInProgress));
        assert_eq!((loading.error_code, loading.state.as_str()), (14, ""));
    }

    #[test]
    fn a_consumer_group_is_told_with_names_and_where_each_member_stands() {
        let topic = Topic { name: "t".parse().expect("a name"), racks: vec![BTreeSet::new(); 2] };
        let topics = Topics::new(1, [(TopicId(1), topic)].into());
        let group = consumer(&topics, "g".to_owned(), Ok(consumer_group()));
        assert_eq!((group.state.as_str(), group.epoch, group.target_epoch), ("Reconciling", 4, 4));
        let member = &group.members[0];
        assert_eq!((member.epoch, member.kind, &member.topics[..]), (3, 1, &["t".to_owned()][..]));
        let partitions = |assignment: &MemberAssignment| -> Vec<(String, Vec<i32>)> {
            assignment.topics.iter().map(|topic| (topic.name.clone(), topic.partitions.clone())).collect()
        };
        assert_eq!(partitions(&member.assigned), [("t".to_owned(), vec![0])], "the other topic is gone");
        assert_eq!(partitions(&member.target), [("t".to_owned(), vec![0, 1])]);
        for described in [Err(ErrorCode::GroupIdNotFound), Ok(classic_group(GroupState::Stable))] {
            let group = consumer(&topics, "g".to_owned(), described);
            assert_eq!((group.error_code, group.members.len()), (69, 0));
        }
    }
}
