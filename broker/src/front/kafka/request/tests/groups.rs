//! Requests about groups, against an independent encoder in every version advertised.

use super::super::groups;
use super::*;
use kafka_protocol::messages as theirs;

fn group(name: &'static str) -> theirs::GroupId {
    text(name).into()
}

/// Frames are shared by what comes out of them.
fn bytes(bytes: &Option<Bytes>) -> &[u8] {
    bytes.as_deref().expect("they are there")
}

#[test]
fn find_coordinator_is_read() {
    let body = |version: i16| {
        let request = theirs::FindCoordinatorRequest::default();
        match version {
            0 => request.with_key(text("g")),
            1..=3 => request.with_key(text("g")).with_key_type(1),
            _ => request.with_key_type(1).with_coordinator_keys(vec![text("g"), text("h")]),
        }
    };
    check(Api::FindCoordinator, body, |version, body| {
        let Body::FindCoordinator(request) = body else { panic!("{body:?}") };
        assert_eq!(request.key, if version < 4 { "g" } else { "" }, "version {version}");
        assert_eq!(request.keys, if version < 4 { vec![] } else { vec!["g", "h"] });
        assert_eq!(request.key_type, i8::from(version >= 1));
    });
}

#[test]
fn join_group_is_read() {
    let body = |version: i16| {
        let protocol = theirs::join_group_request::JoinGroupRequestProtocol::default()
            .with_name(text("range"))
            .with_metadata(Bytes::from_static(b"topics"));
        let mut request = theirs::JoinGroupRequest::default()
            .with_group_id(group("g"))
            .with_session_timeout_ms(10_000)
            .with_member_id(text("m"))
            .with_protocol_type(text("consumer"))
            .with_protocols(vec![protocol]);
        if version >= 1 {
            request = request.with_rebalance_timeout_ms(20_000);
        }
        if version >= 5 {
            request = request.with_group_instance_id(Some(text("i")));
        }
        if version >= 8 {
            request = request.with_reason(Some(text("why")));
        }
        request
    };
    check(Api::JoinGroup, body, |version, body| {
        let Body::JoinGroup(request) = body else { panic!("{body:?}") };
        assert_eq!((request.group.as_str(), request.member.as_str()), ("g", "m"), "version {version}");
        assert_eq!((request.session_timeout_ms, request.protocol_type.as_str()), (10_000, "consumer"));
        assert_eq!(request.rebalance_timeout_ms, if version >= 1 { 20_000 } else { -1 });
        assert_eq!(request.instance.as_deref(), (version >= 5).then_some("i"));
        assert_eq!(request.reason.as_deref(), (version >= 8).then_some("why"));
        let [protocol] = &request.protocols[..] else { panic!("{request:?}") };
        assert_eq!((protocol.name.as_str(), bytes(&protocol.metadata)), ("range", &b"topics"[..]));
    });
}

#[test]
fn sync_group_is_read() {
    let body = |version: i16| {
        let assignment = theirs::sync_group_request::SyncGroupRequestAssignment::default()
            .with_member_id(text("m"))
            .with_assignment(Bytes::from_static(b"given"));
        let mut request = theirs::SyncGroupRequest::default()
            .with_group_id(group("g"))
            .with_generation_id(7)
            .with_member_id(text("m"))
            .with_assignments(vec![assignment]);
        if version >= 3 {
            request = request.with_group_instance_id(Some(text("i")));
        }
        if version >= 5 {
            request = request.with_protocol_type(Some(text("consumer"))).with_protocol_name(Some(text("range")));
        }
        request
    };
    check(Api::SyncGroup, body, |version, body| {
        let Body::SyncGroup(request) = body else { panic!("{body:?}") };
        let who = (request.group.as_str(), request.generation, request.member.as_str());
        assert_eq!(who, ("g", 7, "m"), "version {version}");
        assert_eq!(request.instance.as_deref(), (version >= 3).then_some("i"));
        let protocol = (request.protocol_type.as_deref(), request.protocol.as_deref());
        assert_eq!(protocol, if version >= 5 { (Some("consumer"), Some("range")) } else { (None, None) });
        let [given] = &request.assignments[..] else { panic!("{request:?}") };
        assert_eq!((given.member.as_str(), bytes(&given.assignment)), ("m", &b"given"[..]));
    });
}

#[test]
fn heartbeat_is_read() {
    let body = |version: i16| {
        let request = theirs::HeartbeatRequest::default()
            .with_group_id(group("g"))
            .with_generation_id(7)
            .with_member_id(text("m"));
        if version >= 3 { request.with_group_instance_id(Some(text("i"))) } else { request }
    };
    check(Api::Heartbeat, body, |version, body| {
        let Body::Heartbeat(request) = body else { panic!("{body:?}") };
        let who = (request.group.as_str(), request.generation, request.member.as_str());
        assert_eq!(who, ("g", 7, "m"), "version {version}");
        assert_eq!(request.instance.as_deref(), (version >= 3).then_some("i"));
    });
}

#[test]
fn leave_group_is_read() {
    let body = |version: i16| {
        let request = theirs::LeaveGroupRequest::default().with_group_id(group("g"));
        if version < 3 {
            return request.with_member_id(text("m"));
        }
        let member = theirs::leave_group_request::MemberIdentity::default()
            .with_member_id(text("m"))
            .with_group_instance_id(Some(text("i")));
        let member = if version >= 5 { member.with_reason(Some(text("why"))) } else { member };
        request.with_members(vec![member])
    };
    check(Api::LeaveGroup, body, |version, body| {
        let Body::LeaveGroup(request) = body else { panic!("{body:?}") };
        assert_eq!((request.group.as_str(), request.member.as_str()), ("g", if version < 3 { "m" } else { "" }));
        let members: Vec<_> = request
            .members
            .iter()
            .map(|member| (member.member.as_str(), member.instance.as_deref(), member.reason.as_deref()))
            .collect();
        let why = (version >= 5).then_some("why");
        assert_eq!(members, if version < 3 { vec![] } else { vec![("m", Some("i"), why)] }, "version {version}");
    });
}

#[test]
fn offset_commit_is_read() {
    let body = |version: i16| {
        let mut partition = theirs::offset_commit_request::OffsetCommitRequestPartition::default()
            .with_partition_index(1)
            .with_committed_offset(1 << 40)
            .with_committed_metadata(Some(text("m")));
        if version >= 6 {
            partition = partition.with_committed_leader_epoch(3);
        }
        let asked = theirs::offset_commit_request::OffsetCommitRequestTopic::default()
            .with_name(topic("t"))
            .with_partitions(vec![partition]);
        let mut request = theirs::OffsetCommitRequest::default()
            .with_group_id(group("g"))
            .with_generation_id_or_member_epoch(7)
            .with_member_id(text("m"))
            .with_topics(vec![asked]);
        if version <= 4 {
            request = request.with_retention_time_ms(5_000);
        }
        if version >= 7 {
            request = request.with_group_instance_id(Some(text("i")));
        }
        request
    };
    check(Api::OffsetCommit, body, |version, body| {
        let Body::OffsetCommit(request) = body else { panic!("{body:?}") };
        let who = (request.group.as_str(), request.epoch, request.member.as_str());
        assert_eq!(who, ("g", 7, "m"), "version {version}");
        assert_eq!(request.instance.as_deref(), (version >= 7).then_some("i"));
        assert_eq!(request.retention_ms, if version <= 4 { 5_000 } else { -1 });
        let partition = &request.topics[0].partitions[0];
        assert_eq!((request.topics[0].name.as_str(), partition.index, partition.offset), ("t", 1, 1 << 40));
        assert_eq!(partition.leader_epoch, if version >= 6 { 3 } else { -1 });
        assert_eq!(partition.metadata.as_deref(), Some("m"));
    });
}

#[test]
fn offset_fetch_is_read() {
    let body = |version: i16| {
        let request = theirs::OffsetFetchRequest::default();
        let request = if version >= 7 { request.with_require_stable(true) } else { request };
        if version < 8 {
            let asked = theirs::offset_fetch_request::OffsetFetchRequestTopic::default()
                .with_name(topic("t"))
                .with_partition_indexes(vec![1, 2]);
            return request.with_group_id(group("g")).with_topics(Some(vec![asked]));
        }
        let asked = theirs::offset_fetch_request::OffsetFetchRequestTopics::default()
            .with_name(topic("t"))
            .with_partition_indexes(vec![1, 2]);
        let mut of = theirs::offset_fetch_request::OffsetFetchRequestGroup::default()
            .with_group_id(group("g"))
            .with_topics(Some(vec![asked]));
        if version >= 9 {
            of = of.with_member_id(Some(text("m"))).with_member_epoch(7);
        }
        let all = theirs::offset_fetch_request::OffsetFetchRequestGroup::default()
            .with_group_id(group("h"))
            .with_topics(None);
        request.with_groups(vec![of, all])
    };
    check(Api::OffsetFetch, body, |version, body| {
        let Body::OffsetFetch(request) = body else { panic!("{body:?}") };
        assert_eq!(request.require_stable, version >= 7, "version {version}");
        let topics = if version < 8 {
            assert_eq!((request.group.as_str(), request.groups.len()), ("g", 0));
            request.topics
        } else {
            let [of, all] = &request.groups[..] else { panic!("{request:?}") };
            assert_eq!((of.group.as_str(), all.group.as_str()), ("g", "h"));
            assert!(all.topics.is_none(), "null asks for all");
            let member = (of.member.as_deref(), of.epoch);
            assert_eq!(member, if version >= 9 { (Some("m"), 7) } else { (None, -1) });
            of.topics.clone()
        };
        let topics = topics.expect("some were named");
        assert_eq!((topics[0].name.as_str(), &topics[0].partitions[..]), ("t", &[1, 2][..]));
    });
    for version in 2..=7 {
        let all = theirs::OffsetFetchRequest::default().with_group_id(group("g")).with_topics(None);
        let frame = frame(Api::OffsetFetch, version, &all);
        let Body::OffsetFetch(request) = decode_request(frame).expect("well formed").body else {
            panic!("not OffsetFetch")
        };
        assert!(request.topics.is_none(), "version {version}: null asks for all");
    }
}

/// Golden vectors: version 10 is version 9 with 16 bytes in the place of each topic's name.
#[test]
fn offsets_of_topics_by_id_are_read() {
    let header = |key: i16| {
        let mut frame = BytesMut::new();
        frame.put_i16(key);
        frame.put_i16(10);
        frame.put_i32(CORRELATION);
        frame.put_slice(b"\0\x06tester\0");
        frame
    };
    let mut commit = header(8);
    // The group, an epoch, the member, no instance, one topic.
    commit.put_slice(b"\x02g\0\0\0\x07\x02m\0\x02");
    commit.put_u128(ID);
    // One partition with its offset, epoch and metadata; the tags of partition, topic and request.
    commit.put_slice(b"\x02\0\0\0\x01\0\0\0\0\0\0\0\x2a\0\0\0\x03\x02x\0\0\0");
    let (request, rest) = decode(commit.freeze()).expect("well formed");
    let Body::OffsetCommit(commit) = request.body else { panic!("not OffsetCommit") };
    assert_eq!((rest.len(), commit.group.as_str(), commit.epoch, commit.member.as_str()), (0, "g", 7, "m"));
    let asked = &commit.topics[0];
    let partition = &asked.partitions[0];
    assert_eq!((asked.name.as_str(), asked.id), ("", TopicId(ID)));
    assert_eq!((partition.index, partition.offset, partition.leader_epoch), (1, 42, 3));
    assert_eq!(partition.metadata.as_deref(), Some("x"));

    let mut fetch = header(9);
    // One group, its member and epoch, one topic.
    fetch.put_slice(b"\x02\x02g\x02m\0\0\0\x07\x02");
    fetch.put_u128(ID);
    // Two partitions; the tags of topic and group; stable only; the request's tags.
    fetch.put_slice(b"\x03\0\0\0\x01\0\0\0\x02\0\0\x01\0");
    let (request, rest) = decode(fetch.freeze()).expect("well formed");
    let Body::OffsetFetch(fetch) = request.body else { panic!("not OffsetFetch") };
    let of = &fetch.groups[0];
    assert_eq!((rest.len(), of.group.as_str(), of.member.as_deref(), of.epoch), (0, "g", Some("m"), 7));
    let asked = &of.topics.as_ref().expect("one is named")[0];
    assert_eq!((asked.id, &asked.partitions[..], fetch.require_stable), (TopicId(ID), &[1, 2][..], true));
}

#[test]
fn requests_that_name_groups_are_read() {
    let groups = || vec![group("g"), group("h")];
    let describe = |version: i16| {
        let request = theirs::DescribeGroupsRequest::default().with_groups(groups());
        if version >= 3 { request.with_include_authorized_operations(true) } else { request }
    };
    check(Api::DescribeGroups, describe, |version, body| {
        let Body::DescribeGroups(request) = body else { panic!("{body:?}") };
        assert_eq!(
            (request.groups, request.include_authorized_operations),
            (vec!["g".to_owned(), "h".to_owned()], version >= 3)
        );
    });
    let describe = |_| {
        theirs::ConsumerGroupDescribeRequest::default()
            .with_group_ids(groups())
            .with_include_authorized_operations(true)
    };
    check(Api::ConsumerGroupDescribe, describe, |_, body| {
        let Body::ConsumerGroupDescribe(request) = body else { panic!("{body:?}") };
        assert_eq!(
            (request.groups, request.include_authorized_operations),
            (vec!["g".to_owned(), "h".to_owned()], true)
        );
    });
    let delete = |_| theirs::DeleteGroupsRequest::default().with_groups_names(groups());
    check(Api::DeleteGroups, delete, |_, body| {
        let Body::DeleteGroups(request) = body else { panic!("{body:?}") };
        assert_eq!(request.groups, ["g", "h"]);
    });
    let list = |version: i16| {
        let mut request = theirs::ListGroupsRequest::default();
        if version >= 4 {
            request = request.with_states_filter(vec![text("Stable")]);
        }
        if version >= 5 {
            request = request.with_types_filter(vec![text("consumer")]);
        }
        request
    };
    check(Api::ListGroups, list, |version, body| {
        let Body::ListGroups(request) = body else { panic!("{body:?}") };
        assert_eq!(request.states, if version >= 4 { vec!["Stable"] } else { vec![] }, "version {version}");
        assert_eq!(request.kinds, if version >= 5 { vec!["consumer"] } else { vec![] });
    });
}

#[test]
fn offset_delete_is_read() {
    let body = |_| {
        let partition = theirs::offset_delete_request::OffsetDeleteRequestPartition::default().with_partition_index(2);
        let asked = theirs::offset_delete_request::OffsetDeleteRequestTopic::default()
            .with_name(topic("t"))
            .with_partitions(vec![partition]);
        theirs::OffsetDeleteRequest::default().with_group_id(group("g")).with_topics(vec![asked])
    };
    check(Api::OffsetDelete, body, |_, body| {
        let Body::OffsetDelete(groups::OffsetDeleteRequest { group, topics }) = body else { panic!("{body:?}") };
        assert_eq!((group.as_str(), topics[0].name.as_str(), topics[0].partitions[0].index), ("g", "t", 2));
    });
}

#[test]
fn consumer_group_heartbeat_is_read() {
    let body = |version: i16| {
        let owned = theirs::consumer_group_heartbeat_request::TopicPartitions::default()
            .with_topic_id(uuid::Uuid::from_u128(ID))
            .with_partitions(vec![1, 2]);
        let request = theirs::ConsumerGroupHeartbeatRequest::default()
            .with_group_id(group("g"))
            .with_member_id(text("m"))
            .with_member_epoch(7)
            .with_instance_id(Some(text("i")))
            .with_rack_id(Some(text("r")))
            .with_rebalance_timeout_ms(9)
            .with_subscribed_topic_names(Some(vec![topic("t")]))
            .with_server_assignor(Some(text("uniform")))
            .with_topic_partitions(Some(vec![owned]));
        if version >= 1 { request.with_subscribed_topic_regex(Some(text("^t"))) } else { request }
    };
    check(Api::ConsumerGroupHeartbeat, body, |version, body| {
        let Body::ConsumerGroupHeartbeat(request) = body else { panic!("{body:?}") };
        let who = (request.group.as_str(), request.member.as_str(), request.epoch);
        assert_eq!(who, ("g", "m", 7), "version {version}");
        assert_eq!((request.instance.as_deref(), request.rack.as_deref()), (Some("i"), Some("r")));
        assert_eq!((request.rebalance_timeout_ms, request.topics), (9, Some(vec!["t".to_owned()])));
        assert_eq!(request.regex.as_deref(), (version >= 1).then_some("^t"));
        assert_eq!(request.assignor.as_deref(), Some("uniform"));
        let owned = request.owned.expect("it was said");
        assert_eq!((owned[0].id, &owned[0].partitions[..]), (TopicId(ID), &[1, 2][..]));
    });
    let unchanged = |_| theirs::ConsumerGroupHeartbeatRequest::default();
    check(Api::ConsumerGroupHeartbeat, unchanged, |_, body| {
        let Body::ConsumerGroupHeartbeat(request) = body else { panic!("{body:?}") };
        assert!(request.topics.is_none() && request.owned.is_none() && request.rack.is_none(), "{request:?}");
        assert_eq!(request.rebalance_timeout_ms, -1);
    });
}

/// What waits for other members holds less than what it took to read it.
#[test]
fn requests_that_wait_for_others_hold_little_meanwhile() {
    let join = frame(Api::JoinGroup, 9, &theirs::JoinGroupRequest::default());
    let size = join.len();
    let held = size + decoded_bytes_max(&join);
    let waiting = decode_request(join).expect("well formed").waiting_bytes(size).expect("it waits");
    assert!(size < waiting && waiting < held / 2, "{waiting} of {held}");
    let heartbeat = frame(Api::Heartbeat, 4, &theirs::HeartbeatRequest::default());
    assert_eq!(decode_request(heartbeat.clone()).expect("well formed").waiting_bytes(heartbeat.len()), None);
}
