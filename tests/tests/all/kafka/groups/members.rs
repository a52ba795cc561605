//! Classic members: they join, are assigned, rebalance, leave, and are told Kafka's codes.

use super::*;
use crate::kafka::wire::{frame, framed};
use bytes::Buf;
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn coordinator_is_found_by_every_version_and_named_by_its_listener() {
    let served = serving("g").await;
    let mut connection = served.connect().await;
    for version in 0..=6 {
        let request = match version {
            0..=3 => kafka::FindCoordinatorRequest::default().with_key(text("g")),
            _ => kafka::FindCoordinatorRequest::default().with_coordinator_keys(vec![text("g"), text("h")]),
        };
        let found = connection.call(version, &request).await;
        let mut at = vec![(found.error_code, found.host.to_string(), found.port)];
        if version >= 4 {
            let each = found.coordinators.iter();
            at = each.map(|found| (found.error_code, found.host.to_string(), found.port)).collect();
        }
        assert_eq!(at.len(), if version < 4 { 1 } else { 2 });
        for (code, host, port) in at {
            assert_eq!((code, format!("{host}:{port}").as_str()), (0, served.broker.kafka()), "version {version}");
        }
    }
    let transactional = kafka::FindCoordinatorRequest::default().with_key_type(7);
    let refused = connection.call(3, &transactional).await;
    assert_eq!(refused.error_code, 42, "no such key type");
}

/// A member without an id is told to come back with one, since version 4 (KIP-394).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_members_share_a_generation_and_the_rest_takes_over_who_leaves() {
    let served = serving("g").await;
    let mut connection = served.connect().await;
    let stranger = connection.call(9, &joining("g", "", None)).await;
    assert_eq!((stranger.error_code, stranger.member_id.starts_with("raw-")), (MEMBER_ID_REQUIRED, true));
    assert_eq!(connection.call(9, &joining("", "", None)).await.error_code, INVALID_GROUP_ID);
    let (mut a, mut b) = (Member::new(&served, "g", None).await, Member::new(&served, "g", None).await);
    tokio::join!(a.settle(), b.settle());
    assert_eq!((a.generation, b.generation, a.leads != b.leads), (1, 1, true));
    assert_eq!((a.beat().await, b.beat().await), (0, 0));
    a.generation = 0;
    assert_eq!(a.beat().await, ILLEGAL_GENERATION);
    a.generation = 1;
    assert_eq!((b.leave().await, b.leave().await), (0, UNKNOWN_MEMBER_ID));
    assert_eq!((a.beat().await, b.beat().await), (REBALANCE_IN_PROGRESS, UNKNOWN_MEMBER_ID));
    a.settle().await;
    assert_eq!((a.generation, a.members.len(), a.beat().await), (2, 1, 0));
}

/// Case G2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn member_that_leaves_while_others_join_is_not_waited_for() {
    let served = serving("g").await;
    let (mut a, mut b) = (Member::new(&served, "g", None).await, Member::new(&served, "g", None).await);
    tokio::join!(a.settle(), b.settle());
    let mut c = Member::new(&served, "g", None).await;
    let others = async {
        while a.beat().await == 0 {
            tokio::task::yield_now().await;
        }
        let leaving = async {
            assert_eq!(b.beat().await, REBALANCE_IN_PROGRESS, "case G1: it lives, and is told so");
            assert_eq!(b.leave().await, 0);
        };
        tokio::join!(a.join(), leaving);
    };
    // The rebalance timeout is five minutes.
    let all = async { tokio::join!(c.join(), others) };
    tokio::time::timeout(std::time::Duration::from_secs(60), all).await.expect("nobody is waited for who has left");
    assert_eq!((a.generation, c.generation, a.members.len() + c.members.len()), (2, 2, 2));
}

/// Case G3.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn static_member_is_replaced_without_a_rebalance_and_the_old_one_is_fenced() {
    let served = serving("g").await;
    let mut old = Member::new(&served, "g", Some("i1")).await;
    old.settle().await;
    assert!(old.id.starts_with("i1-"), "{}", old.id);
    let mut new = Member::new(&served, "g", Some("i1")).await;
    let request = joining("g", "", Some("i1"));
    let joined = new.connection.call(9, &request).await;
    assert_eq!((joined.error_code, joined.generation_id, joined.skip_assignment), (0, 1, true));
    assert_ne!(joined.member_id.as_str(), old.id);
    (new.id, new.generation) = (joined.member_id.to_string(), joined.generation_id);
    let synced = new.sync().await;
    assert_eq!((synced.error_code, &synced.assignment[..]), (0, old.id.as_bytes()), "what the old one had");
    assert_eq!((old.beat().await, new.beat().await), (FENCED_INSTANCE_ID, 0));
    assert_eq!(old.sync().await.error_code, FENCED_INSTANCE_ID);
    let mut admin = served.connect().await;
    admin.create("t", 1, &[]).await;
    let by = |member: &Member| super::offsets::committing("g", &member.id, member.generation, "t", &[(0, 5)]);
    let commit = by(&old).with_group_instance_id(Some(text("i1")));
    let refused = admin.call(9, &commit).await;
    assert_eq!(refused.topics[0].partitions[0].error_code, FENCED_INSTANCE_ID);
    // By its static identity alone, as operators remove members.
    let gone = kafka::leave_group_request::MemberIdentity::default().with_group_instance_id(Some(text("i1")));
    let request = kafka::LeaveGroupRequest::default().with_group_id(group("g")).with_members(vec![gone]);
    let left = admin.call(3, &request).await;
    assert_eq!((left.error_code, left.members[0].error_code), (0, 0));
    assert_eq!(new.beat().await, UNKNOWN_MEMBER_ID);
}

/// A heartbeat that is sent behind a join tells of the generation that the join gave, as where a broker reads one request at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pipelined_requests_of_a_member_are_carried_out_in_their_order() {
    let served = serving("g").await;
    let mut connection = served.connect().await;
    let stranger = connection.call(9, &joining("g", "", None)).await;
    let id = stranger.member_id.to_string();
    let join = frame(9, 100, &joining("g", &id, None));
    let beat = frame(4, 101, &beating("g", &id, None, 1));
    connection.send(&[join, beat].concat()).await;
    let joined: kafka::JoinGroupResponse = answer(&mut connection, 100, 9).await;
    assert_eq!((joined.error_code, joined.generation_id), (0, 1));
    let beat: kafka::HeartbeatResponse = answer(&mut connection, 101, 4).await;
    assert_eq!(beat.error_code, 0, "its generation is the one that the join before it began");
}

async fn answer<R: Decodable + HeaderVersion>(connection: &mut Connection, id: i32, version: i16) -> R {
    let mut bytes = connection.receive().await.expect("the broker answers");
    let header = kafka::ResponseHeader::decode(&mut bytes, R::header_version(version)).expect("a header");
    assert_eq!(header.correlation_id, id);
    let read = R::decode(&mut bytes, version).expect("an answer of this version");
    assert!(!bytes.has_remaining());
    read
}

/// As in Kafka: the member stays until its session is over, and then nobody waits for it any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_that_hangs_up_while_it_joins_is_gone_with_its_session() {
    let served = serving("g").await;
    let mut a = Member::new(&served, "g", None).await;
    a.settle().await;
    let mut b = served.connect().await;
    let id = b.call(9, &joining("g", "", None)).await.member_id.to_string();
    b.send(&frame(9, 7, &joining("g", &id, None))).await;
    while a.beat().await == 0 {
        tokio::task::yield_now().await;
    }
    drop(b);
    a.join().await;
    assert_eq!((a.generation, a.members.len()), (2, 2), "it is waited for no longer than its session, and so long");
    assert_eq!(a.sync().await.error_code, 0);
    while a.beat().await == 0 {
        tokio::task::yield_now().await;
    }
    a.join().await;
    assert_eq!((a.generation, a.members), (3, vec![a.id]));
}

/// Versions without flexible headers, static members and ids that are required: the join of an old client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn oldest_versions_join_and_leave() {
    let served = serving("g").await;
    let mut connection = served.connect().await;
    let request = joining("g", "", None).with_rebalance_timeout_ms(-1);
    let joined = connection.call(0, &request).await;
    assert_eq!((joined.error_code, joined.generation_id), (0, 1));
    assert_eq!((joined.leader.as_str(), joined.protocol_name.as_deref()), (joined.member_id.as_str(), Some("range")));
    let id = joined.member_id.to_string();
    let given =
        SyncGroupRequestAssignment::default().with_member_id(text(&id)).with_assignment(Bytes::from_static(b"all"));
    let sync = kafka::SyncGroupRequest::default()
        .with_group_id(group("g"))
        .with_generation_id(1)
        .with_member_id(text(&id))
        .with_assignments(vec![given]);
    assert_eq!(&connection.call(0, &sync).await.assignment[..], b"all");
    assert_eq!(connection.call(0, &beating("g", &id, None, 1)).await.error_code, 0);
    let leave = kafka::LeaveGroupRequest::default().with_group_id(group("g")).with_member_id(text(&id));
    assert_eq!(connection.call(0, &leave).await.error_code, 0);
    assert_eq!(connection.call(2, &leave).await.error_code, UNKNOWN_MEMBER_ID);
}

/// A frame whose metadata claims more than is there ends the connection, and takes no memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn join_that_claims_more_than_it_sends_ends_the_connection() {
    let served = Served::start().await;
    let mut connection = served.connect().await;
    let mut body = bytes::BytesMut::new();
    let header = kafka::RequestHeader::default().with_request_api_key(11).with_request_api_version(5);
    header.encode(&mut body, 1).expect("a header");
    body.extend_from_slice(
        b"\0\x01g\0\0\x17\x70\0\0\x17\x70\0\0\xff\xff\0\x08consumer\0\0\0\x01\0\x05range\x7f\xff\xff\xff",
    );
    connection.send(&framed(&body)).await;
    assert!(connection.receive().await.is_none());
}
