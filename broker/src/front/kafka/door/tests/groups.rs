//! Answers about groups, as an independent decoder reads them in every version advertised.

use super::super::super::coordinator::{Coordinator, FindCoordinatorResponse};
use super::super::super::groups::answers::{self, *};
use super::*;

#[test]
fn coordinators_are_read() {
    let each = |key: &str, error_code| Coordinator {
        key: key.to_owned(),
        node_id: 2,
        host: "h".to_owned(),
        port: 9092,
        error_code,
        error_message: some("why"),
    };
    let answer = FindCoordinatorResponse {
        error_code: 15,
        error_message: some("why"),
        node_id: 2,
        host: "h".to_owned(),
        port: 9092,
        coordinators: vec![each("g", 0), each("k", 15)],
        ..Default::default()
    };
    check(Api::FindCoordinator, &answer, |version, read: theirs::FindCoordinatorResponse| {
        if version < 4 {
            let at = (read.error_code, read.node_id.0, read.host.as_str(), read.port);
            assert_eq!(at, (15, 2, "h", 9092), "version {version}");
            assert_eq!(read.error_message.as_deref(), Some(if version >= 1 { "why" } else { "" }));
        }
        let found = read
            .coordinators
            .iter()
            .map(|found| (found.key.as_str(), found.node_id.0, found.host.as_str(), found.port, found.error_code));
        let expected = [("g", 2, "h", 9092, 0), ("k", 2, "h", 9092, 15)];
        assert!(found.eq(expected.into_iter().take(if version < 4 { 0 } else { 2 })), "version {version}");
    });
}

#[test]
fn a_joined_generation_is_read() {
    let member = JoinedMember { member: "m".to_owned(), instance: some("i"), metadata: Bytes::from_static(b"topics") };
    let answer = JoinGroupResponse {
        throttle_time_ms: 1,
        error_code: 27,
        generation: 7,
        protocol_type: some("consumer"),
        protocol: some("range"),
        leader: "l".to_owned(),
        skip_assignment: true,
        member: "m".to_owned(),
        members: vec![member],
    };
    check(Api::JoinGroup, &answer, |version, read: theirs::JoinGroupResponse| {
        assert_eq!(read.throttle_time_ms, i32::from(version >= 2), "version {version}");
        assert_eq!((read.error_code, read.generation_id, read.skip_assignment), (27, 7, version >= 9));
        assert_eq!(read.protocol_type.as_deref(), (version >= 7).then_some("consumer"));
        assert_eq!((read.protocol_name.as_deref(), read.leader.as_str()), (Some("range"), "l"));
        let member = &read.members[0];
        assert_eq!((read.member_id.as_str(), member.member_id.as_str()), ("m", "m"));
        assert_eq!(member.group_instance_id.as_deref(), (version >= 5).then_some("i"));
        assert_eq!(&member.metadata[..], b"topics");
    });
}

#[test]
fn assignments_heartbeats_and_leavers_are_read() {
    let answer = SyncGroupResponse {
        throttle_time_ms: 1,
        error_code: 27,
        protocol_type: some("consumer"),
        protocol: some("range"),
        assignment: Bytes::from(vec![7; 2_000]),
    };
    check(Api::SyncGroup, &answer, |version, read: theirs::SyncGroupResponse| {
        assert_eq!((read.throttle_time_ms, read.error_code), (i32::from(version >= 1), 27), "version {version}");
        let named = (read.protocol_type.as_deref(), read.protocol_name.as_deref());
        assert_eq!(named, if version >= 5 { (Some("consumer"), Some("range")) } else { (None, None) });
        assert_eq!(&read.assignment[..], [7; 2_000]);
    });
    let answer = HeartbeatResponse { throttle_time_ms: 1, error_code: 27 };
    check(Api::Heartbeat, &answer, |version, read: theirs::HeartbeatResponse| {
        assert_eq!((read.throttle_time_ms, read.error_code), (i32::from(version >= 1), 27));
    });
    let members = vec![LeftMember { member: "m".to_owned(), instance: some("i"), error_code: 82 }];
    let answer = LeaveGroupResponse { throttle_time_ms: 1, error_code: 25, members };
    check(Api::LeaveGroup, &answer, |version, read: theirs::LeaveGroupResponse| {
        assert_eq!((read.throttle_time_ms, read.error_code), (i32::from(version >= 1), 25));
        let members = read.members.iter().map(|left| (left.member_id.as_str(), left.error_code));
        assert!(members.eq([("m", 82)].into_iter().take(usize::from(version >= 3))), "version {version}");
    });
}

#[test]
fn commits_are_read() {
    let partitions = vec![CommittedPartition { index: 1, error_code: 12 }];
    let topics = vec![CommittedTopic { name: "t".to_owned(), id: ID, partitions }];
    let answer = OffsetCommitResponse { throttle_time_ms: 1, topics };
    check(Api::OffsetCommit, &answer, |version, read: theirs::OffsetCommitResponse| {
        assert_eq!(read.throttle_time_ms, i32::from(version >= 3), "version {version}");
        let topic = &read.topics[0];
        let named = if version < 10 { ("t", 0) } else { ("", ID.0) };
        assert_eq!((topic.name.as_str(), topic.topic_id.as_u128()), named);
        assert_eq!((topic.partitions[0].partition_index, topic.partitions[0].error_code), (1, 12));
    });
}

#[test]
fn committed_offsets_are_read() {
    let partition =
        FetchedPartition { index: 1, offset: 1 << 40, leader_epoch: 3, metadata: some("m"), error_code: 88 };
    let topics = vec![answers::FetchedTopic { name: "t".to_owned(), id: ID, partitions: vec![partition] }];
    let groups = vec![FetchedGroup { group: "g".to_owned(), topics: topics.clone(), error_code: 16 }];
    let answer = OffsetFetchResponse { throttle_time_ms: 1, topics, error_code: 14, groups };
    check(Api::OffsetFetch, &answer, |version, read: theirs::OffsetFetchResponse| {
        assert_eq!(read.throttle_time_ms, i32::from(version >= 3), "version {version}");
        if version < 8 {
            assert_eq!(read.error_code, if version >= 2 { 14 } else { 0 });
            let (topic, found) = (&read.topics[0], &read.topics[0].partitions[0]);
            assert_eq!((topic.name.as_str(), found.partition_index, found.committed_offset), ("t", 1, 1 << 40));
            assert_eq!(found.committed_leader_epoch, if version >= 5 { 3 } else { -1 });
            assert_eq!((found.metadata.as_deref(), found.error_code), (Some("m"), 88));
            return;
        }
        let group = &read.groups[0];
        let (topic, found) = (&group.topics[0], &group.topics[0].partitions[0]);
        assert_eq!((group.group_id.as_str(), group.error_code), ("g", 16));
        let named = if version < 10 { ("t", 0) } else { ("", ID.0) };
        assert_eq!((topic.name.as_str(), topic.topic_id.as_u128()), named);
        assert_eq!((found.partition_index, found.committed_offset, found.committed_leader_epoch), (1, 1 << 40, 3));
        assert_eq!((found.metadata.as_deref(), found.error_code), (Some("m"), 88));
    });
}

#[test]
fn deletions_are_read() {
    let partitions = vec![DeletedPartition { index: 1, error_code: 86 }];
    let topics = vec![answers::DeletedTopic { name: "t".to_owned(), partitions }];
    let answer = OffsetDeleteResponse { error_code: 69, throttle_time_ms: 1, topics };
    check(Api::OffsetDelete, &answer, |_, read: theirs::OffsetDeleteResponse| {
        assert_eq!((read.error_code, read.throttle_time_ms, read.topics[0].name.as_str()), (69, 1, "t"));
        let partition = &read.topics[0].partitions[0];
        assert_eq!((partition.partition_index, partition.error_code), (1, 86));
    });
    let groups = vec![DeletedGroup { group: "g".to_owned(), error_code: 68 }];
    let answer = DeleteGroupsResponse { throttle_time_ms: 1, groups };
    check(Api::DeleteGroups, &answer, |_, read: theirs::DeleteGroupsResponse| {
        let deleted = &read.results[0];
        assert_eq!((read.throttle_time_ms, deleted.group_id.as_str(), deleted.error_code), (1, "g", 68));
    });
}

#[test]
fn listed_groups_are_read() {
    let group = ListedGroup {
        group: "g".to_owned(),
        protocol_type: "consumer".to_owned(),
        state: "Stable".to_owned(),
        kind: "classic".to_owned(),
    };
    let answer = ListGroupsResponse { throttle_time_ms: 1, error_code: 14, groups: vec![group] };
    check(Api::ListGroups, &answer, |version, read: theirs::ListGroupsResponse| {
        assert_eq!((read.throttle_time_ms, read.error_code), (i32::from(version >= 1), 14), "version {version}");
        let group = &read.groups[0];
        assert_eq!((group.group_id.as_str(), group.protocol_type.as_str()), ("g", "consumer"));
        assert_eq!(group.group_state.as_str(), if version >= 4 { "Stable" } else { "" });
        assert_eq!(group.group_type.as_str(), if version >= 5 { "classic" } else { "" });
    });
}

#[test]
fn described_groups_are_read() {
    let member = DescribedMember {
        member: "m".to_owned(),
        instance: some("i"),
        client_id: "app".to_owned(),
        client_host: "/10.0.0.1".to_owned(),
        metadata: Bytes::from_static(b"topics"),
        assignment: Bytes::from_static(b"given"),
    };
    let group = DescribedGroup {
        error_code: 69,
        error_message: some("why"),
        group: "g".to_owned(),
        state: "Dead".to_owned(),
        protocol_type: "consumer".to_owned(),
        protocol: "range".to_owned(),
        members: vec![member],
        ..Default::default()
    };
    let answer = DescribeGroupsResponse { throttle_time_ms: 1, groups: vec![group] };
    check(Api::DescribeGroups, &answer, |version, read: theirs::DescribeGroupsResponse| {
        assert_eq!(read.throttle_time_ms, i32::from(version >= 1), "version {version}");
        let group = &read.groups[0];
        assert_eq!((group.error_code, group.group_id.as_str(), group.group_state.as_str()), (69, "g", "Dead"));
        assert_eq!(group.error_message.as_deref(), (version >= 6).then_some("why"));
        assert_eq!((group.protocol_type.as_str(), group.protocol_data.as_str()), ("consumer", "range"));
        assert_eq!(group.authorized_operations, i32::MIN);
        let member = &group.members[0];
        assert_eq!(member.group_instance_id.as_deref(), (version >= 4).then_some("i"));
        let who = (member.member_id.as_str(), member.client_id.as_str(), member.client_host.as_str());
        assert_eq!(who, ("m", "app", "/10.0.0.1"));
        assert_eq!((&member.member_metadata[..], &member.member_assignment[..]), (&b"topics"[..], &b"given"[..]));
    });
}

#[test]
fn described_consumer_groups_are_read() {
    let partitions = |partitions: &[i32]| MemberAssignment {
        topics: vec![MemberTopic { id: ID, name: "t".to_owned(), partitions: partitions.to_vec() }],
    };
    let member = DescribedConsumerMember {
        member: "m".to_owned(),
        instance: some("i"),
        rack: some("r"),
        epoch: 6,
        client_id: "app".to_owned(),
        client_host: "/10.0.0.1".to_owned(),
        topics: vec!["t".to_owned()],
        regex: some("^t"),
        assigned: partitions(&[1]),
        target: partitions(&[1, 2]),
        kind: 0,
    };
    let group = DescribedConsumerGroup {
        group: "g".to_owned(),
        state: "Reconciling".to_owned(),
        epoch: 7,
        target_epoch: 7,
        assignor: "uniform".to_owned(),
        members: vec![member],
        ..Default::default()
    };
    let answer = ConsumerGroupDescribeResponse { throttle_time_ms: 1, groups: vec![group] };
    check(Api::ConsumerGroupDescribe, &answer, |version, read: theirs::ConsumerGroupDescribeResponse| {
        let group = &read.groups[0];
        assert_eq!((group.error_code, group.group_id.as_str(), group.group_state.as_str()), (0, "g", "Reconciling"));
        assert_eq!((group.group_epoch, group.assignment_epoch, group.assignor_name.as_str()), (7, 7, "uniform"));
        let member = &group.members[0];
        assert_eq!((member.member_id.as_str(), member.member_epoch), ("m", 6));
        assert_eq!((member.instance_id.as_deref(), member.rack_id.as_deref()), (Some("i"), Some("r")));
        assert_eq!((member.client_id.as_str(), member.client_host.as_str()), ("app", "/10.0.0.1"));
        assert_eq!(
            (member.subscribed_topic_names[0].as_str(), member.subscribed_topic_regex.as_deref()),
            ("t", Some("^t"))
        );
        let (assigned, target) =
            (&member.assignment.topic_partitions[0], &member.target_assignment.topic_partitions[0]);
        assert_eq!((assigned.topic_id.as_u128(), assigned.topic_name.as_str()), (ID.0, "t"));
        assert_eq!((&assigned.partitions[..], &target.partitions[..]), (&[1][..], &[1, 2][..]));
        assert_eq!(member.member_type, if version >= 1 { 0 } else { -1 }, "version {version}");
    });
}

#[test]
fn what_a_consumer_may_own_is_read() {
    for partitions in [None, Some(vec![1, 2])] {
        let topics = |partitions: Vec<i32>| vec![TopicPartitions { id: ID, partitions }];
        let answer = ConsumerGroupHeartbeatResponse {
            throttle_time_ms: 1,
            error_code: 110,
            error_message: some("why"),
            member: some("m"),
            epoch: 7,
            heartbeat_interval_ms: 3_000,
            assignment: partitions.clone().map(|partitions| Assignment { topics: topics(partitions) }),
        };
        check(Api::ConsumerGroupHeartbeat, &answer, |_, read: theirs::ConsumerGroupHeartbeatResponse| {
            assert_eq!((read.throttle_time_ms, read.error_code, read.error_message.as_deref()), (1, 110, Some("why")));
            let who = (read.member_id.as_deref(), read.member_epoch, read.heartbeat_interval_ms);
            assert_eq!(who, (Some("m"), 7, 3_000));
            let found = read.assignment.as_ref().map(|assignment| {
                let topic = &assignment.topic_partitions[0];
                assert_eq!(topic.topic_id.as_u128(), ID.0);
                topic.partitions.clone()
            });
            assert_eq!(found, partitions);
        });
    }
}
