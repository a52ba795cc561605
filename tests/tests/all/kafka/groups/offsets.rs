//! Committed offsets: they come back as they were given, by name and by topic id, and are told of in Kafka's codes.

use super::*;
use crate::kafka::wire::framed;
use bytes::{Buf, BufMut, BytesMut};
use kafka_protocol::messages::offset_commit_request::{OffsetCommitRequestPartition, OffsetCommitRequestTopic};
use kafka_protocol::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use kafka_protocol::protocol::Decodable;

const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
const OFFSET_METADATA_TOO_LARGE: i16 = 12;
const UNKNOWN_TOPIC_ID: i16 = 100;
const GROUP_ID_NOT_FOUND: i16 = 69;
const NON_EMPTY_GROUP: i16 = 68;

/// A commit of partitions of one topic. The metadata of each is its number.
pub(super) fn committing(
    of: &str,
    member: &str,
    epoch: i32,
    topic: &str,
    offsets: &[(i32, i64)],
) -> kafka::OffsetCommitRequest {
    let partition = |&(index, offset): &(i32, i64)| {
        OffsetCommitRequestPartition::default()
            .with_partition_index(index)
            .with_committed_offset(offset)
            .with_committed_metadata(Some(text(&format!("p{index}"))))
    };
    let asked = OffsetCommitRequestTopic::default()
        .with_name(name(topic))
        .with_partitions(offsets.iter().map(partition).collect());
    kafka::OffsetCommitRequest::default()
        .with_group_id(group(of))
        .with_member_id(text(member))
        .with_generation_id_or_member_epoch(epoch)
        .with_topics(vec![asked])
}

/// Commits as a consumer that is no member, and says what became of each partition.
async fn commit(connection: &mut Connection, version: i16, topic: &str, offsets: &[(i32, i64)]) -> Vec<(i32, i16)> {
    let answer = connection.call(version, &committing("g", "", -1, topic, offsets)).await;
    answer.topics[0].partitions.iter().map(|done| (done.partition_index, done.error_code)).collect()
}

type Found = Vec<(i32, i64, String, i16)>;

/// What is committed of a topic's partitions.
async fn committed(connection: &mut Connection, version: i16, topic: &str, partitions: &[i32]) -> Found {
    if version < 8 {
        let asked =
            OffsetFetchRequestTopic::default().with_name(name(topic)).with_partition_indexes(partitions.to_vec());
        let request = kafka::OffsetFetchRequest::default().with_group_id(group("g")).with_topics(Some(vec![asked]));
        let answer = connection.call(version, &request).await;
        assert_eq!(answer.error_code, 0);
        let found = answer.topics[0].partitions.iter().map(|found| {
            let metadata = found.metadata.as_deref().expect("it is never null").to_owned();
            (found.partition_index, found.committed_offset, metadata, found.error_code)
        });
        return found.collect();
    }
    let asked = OffsetFetchRequestTopics::default().with_name(name(topic)).with_partition_indexes(partitions.to_vec());
    let of = OffsetFetchRequestGroup::default().with_group_id(group("g")).with_topics(Some(vec![asked]));
    let answer = connection.call(version, &kafka::OffsetFetchRequest::default().with_groups(vec![of])).await;
    assert_eq!(answer.groups[0].error_code, 0);
    let found = answer.groups[0].topics[0].partitions.iter().map(|found| {
        let metadata = found.metadata.as_deref().expect("it is never null").to_owned();
        (found.partition_index, found.committed_offset, metadata, found.error_code)
    });
    found.collect()
}

fn found(index: i32, offset: i64, metadata: &str) -> (i32, i64, String, i16) {
    (index, offset, metadata.to_owned(), 0)
}

/// Cases G5 and G7.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offsets_come_back_as_they_were_committed_in_every_version() {
    let served = serving("g").await;
    let mut connection = served.connect().await;
    connection.create("t", 3, &[]).await;
    for version in 1..=9 {
        let none = committed(&mut connection, version, "t", &[0]).await;
        assert_eq!(none, [found(0, -1, "")], "nothing committed is no error: version {version}");
        assert_eq!(committed(&mut connection, version, "nobody", &[0]).await, [found(0, -1, "")]);
    }
    for version in 2..=9 {
        let offset = 100 + i64::from(version);
        let done = commit(&mut connection, version, "t", &[(1, offset), (7, 1), (-1, 1)]).await;
        let beyond = UNKNOWN_TOPIC_OR_PARTITION;
        assert_eq!(done, [(1, 0), (7, beyond), (-1, beyond)], "version {version}");
        for reading in 1..=9 {
            let read = committed(&mut connection, reading, "t", &[1, 0, 7]).await;
            assert_eq!(read, [found(1, offset, "p1"), found(0, -1, ""), found(7, -1, "")], "{version} {reading}");
        }
    }
    let unknown = commit(&mut connection, 9, "nobody", &[(0, 1)]).await;
    assert_eq!(unknown, [(0, UNKNOWN_TOPIC_OR_PARTITION)]);
    // Nothing below 0 is an offset, and what a client keeps beside one is bounded.
    assert_eq!(commit(&mut connection, 9, "t", &[(0, -1)]).await, [(0, 42)]);
    let mut long = committing("g", "", -1, "t", &[(0, 1)]);
    for (size, code) in [(4_096, 0), (4_097, OFFSET_METADATA_TOO_LARGE)] {
        long.topics[0].partitions[0].committed_metadata = Some(StrBytes::from_string("x".repeat(size)));
        long.topics[0].partitions[0].committed_leader_epoch = 3;
        assert_eq!(connection.call(9, &long).await.topics[0].partitions[0].error_code, code, "{size} bytes");
    }
    let all = kafka::OffsetFetchRequest::default().with_group_id(group("g")).with_topics(None);
    let all = connection.call(7, &all).await;
    let [topic] = &all.topics[..] else { panic!("{all:?}") };
    let read: Vec<_> = topic
        .partitions
        .iter()
        .map(|found| (found.partition_index, found.committed_offset, found.committed_leader_epoch))
        .collect();
    assert_eq!((topic.name.as_str(), read), ("t", vec![(0, 1, 3), (1, 109, -1)]));
}

/// Version 10 of both, which names topics by their ids; an id that nobody has is an error, whatever is committed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offsets_are_committed_and_read_by_topic_id() {
    let served = serving("g").await;
    let mut connection = served.connect().await;
    connection.create("t", 2, &[]).await;
    let id = connection.topic_id("t").await;
    assert_eq!(commit_by_id(&mut connection, id, 42).await, 0);
    assert_eq!(commit_by_id(&mut connection, 7, 42).await, UNKNOWN_TOPIC_ID);
    assert_eq!(committed_by_id(&mut connection, id).await, (42, 0));
    assert_eq!(committed_by_id(&mut connection, 7).await, (-1, UNKNOWN_TOPIC_ID));
    assert_eq!(committed(&mut connection, 9, "t", &[1]).await, [found(1, 42, "")]);
}

impl Connection {
    async fn topic_id(&mut self, topic: &str) -> u128 {
        let asked = kafka::metadata_request::MetadataRequestTopic::default().with_name(Some(name(topic)));
        let request = kafka::MetadataRequest::default().with_topics(Some(vec![asked]));
        self.call(12, &request).await.topics[0].topic_id.as_u128()
    }
}

/// The header of a request in version 10, without a client id.
fn header(key: i16) -> BytesMut {
    let mut body = BytesMut::new();
    body.put_i16(key);
    body.put_i16(10);
    body.put_slice(b"\0\0\0\x09\xff\xff\0");
    body
}

/// Commits partition 1 of a topic, with no metadata.
async fn commit_by_id(connection: &mut Connection, topic: u128, offset: i64) -> i16 {
    let mut body = header(8);
    body.put_slice(b"\x02g\xff\xff\xff\xff\x01\0\x02");
    body.put_u128(topic);
    body.put_slice(b"\x02\0\0\0\x01");
    body.put_i64(offset);
    body.put_slice(b"\xff\xff\xff\xff\0\0\0\0");
    connection.send(&framed(&body)).await;
    let mut answer = connection.receive().await.expect("the broker answers");
    answer.advance(5);
    let answer = kafka::OffsetCommitResponse::decode(&mut answer, 10).expect("an answer of this version");
    assert_eq!(answer.topics[0].topic_id.as_u128(), topic);
    answer.topics[0].partitions[0].error_code
}

/// What is committed of partition 1 of a topic.
async fn committed_by_id(connection: &mut Connection, topic: u128) -> (i64, i16) {
    let mut body = header(9);
    body.put_slice(b"\x02\x02g\0\xff\xff\xff\xff\x02");
    body.put_u128(topic);
    body.put_slice(b"\x02\0\0\0\x01\0\0\0\0");
    connection.send(&framed(&body)).await;
    let mut answer = connection.receive().await.expect("the broker answers");
    answer.advance(5);
    let answer = kafka::OffsetFetchResponse::decode(&mut answer, 10).expect("an answer of this version");
    assert_eq!(answer.groups[0].topics[0].topic_id.as_u128(), topic);
    let found = &answer.groups[0].topics[0].partitions[0];
    (found.committed_offset, found.error_code)
}

/// Case G11.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offsets_of_a_topic_are_gone_with_it_although_its_name_comes_back() {
    let served = serving("g").await;
    let mut connection = served.connect().await;
    connection.create("t", 1, &[]).await;
    assert_eq!(commit(&mut connection, 9, "t", &[(0, 10)]).await, [(0, 0)]);
    let doomed = kafka::delete_topics_request::DeleteTopicState::default().with_name(Some(name("t")));
    let delete = kafka::DeleteTopicsRequest::default().with_topics(vec![doomed]).with_timeout_ms(10_000);
    assert_eq!(connection.call(6, &delete).await.responses[0].error_code, 0);
    connection.create("t", 1, &[]).await;
    assert_eq!(committed(&mut connection, 9, "t", &[0]).await, [found(0, -1, "")]);
    let all = kafka::OffsetFetchRequest::default().with_group_id(group("g")).with_topics(None);
    assert!(connection.call(7, &all).await.topics.is_empty(), "nor among all that the group has");
}

/// Case K1: offsets belong to the group, not to the member that committed them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offsets_of_a_member_that_left_are_those_of_its_group() {
    let served = serving("g").await;
    let mut connection = served.connect().await;
    connection.create("t", 1, &[]).await;
    let mut a = Member::new(&served, "g", None).await;
    a.settle().await;
    let refused = connection.call(9, &committing("g", "", -1, "t", &[(0, 1)])).await;
    assert_eq!(refused.topics[0].partitions[0].error_code, UNKNOWN_MEMBER_ID, "the group has members");
    let by = |generation| committing("g", &a.id, generation, "t", &[(0, 50)]);
    assert_eq!(connection.call(9, &by(3)).await.topics[0].partitions[0].error_code, ILLEGAL_GENERATION);
    assert_eq!(connection.call(9, &by(1)).await.topics[0].partitions[0].error_code, 0);
    assert_eq!(a.leave().await, 0);
    let mut b = Member::new(&served, "g", None).await;
    b.settle().await;
    assert_eq!(committed(&mut connection, 9, "t", &[0]).await, [found(0, 50, "p0")]);
    // A generation of a group that never was.
    for (version, code) in [(8, ILLEGAL_GENERATION), (9, GROUP_ID_NOT_FOUND)] {
        let lost = connection.call(version, &committing("never", "m", 1, "t", &[(0, 1)])).await;
        assert_eq!(lost.topics[0].partitions[0].error_code, code, "version {version}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_are_listed_described_and_deleted() {
    let served = serving("g").await;
    let mut connection = served.connect().await;
    connection.create("t", 2, &[]).await;
    let mut member = Member::new(&served, "g", Some("i1")).await;
    member.settle().await;
    let simple = committing("simple", "", -1, "t", &[(0, 5), (1, 6)]);
    assert_eq!(connection.call(9, &simple).await.topics[0].partitions[0].error_code, 0);
    let listed = |states: &[&str], kinds: &[&str]| {
        kafka::ListGroupsRequest::default()
            .with_states_filter(states.iter().map(|&state| text(state)).collect())
            .with_types_filter(kinds.iter().map(|&kind| text(kind)).collect())
    };
    for (states, kinds, expected) in [
        (&[][..], &[][..], vec![("g", "consumer", "Stable"), ("simple", "", "Empty")]),
        (&["stable"], &[], vec![("g", "consumer", "Stable")]),
        (&[], &["Classic"], vec![("g", "consumer", "Stable"), ("simple", "", "Empty")]),
        (&[], &["consumer"], vec![]),
    ] {
        let answer = connection.call(5, &listed(states, kinds)).await;
        let found: Vec<_> = answer
            .groups
            .iter()
            .map(|group| (group.group_id.as_str(), group.protocol_type.as_str(), group.group_state.as_str()))
            .collect();
        assert_eq!((answer.error_code, found), (0, expected), "{states:?} {kinds:?}");
    }
    let describe = kafka::DescribeGroupsRequest::default().with_groups(vec![group("g"), group("never")]);
    for version in 0..=6 {
        let answer = connection.call(version, &describe).await;
        let [known, never] = &answer.groups[..] else { panic!("{answer:?}") };
        let state = (known.error_code, known.group_state.as_str(), known.protocol_data.as_str());
        assert_eq!(state, (0, "Stable", "range"), "version {version}");
        let one = &known.members[0];
        let who = (one.member_id.as_str(), one.client_id.as_str(), one.client_host.as_str());
        assert_eq!(who, (member.id.as_str(), "raw", "/127.0.0.1"));
        assert_eq!(one.group_instance_id.as_deref(), (version >= 4).then_some("i1"));
        assert_eq!((&one.member_metadata[..], &one.member_assignment[..]), (&b"x"[..], member.id.as_bytes()));
        let missing = if version >= 6 { GROUP_ID_NOT_FOUND } else { 0 };
        assert_eq!((never.error_code, never.group_state.as_str()), (missing, "Dead"));
    }
    let forget =
        kafka::offset_delete_request::OffsetDeleteRequestTopic::default().with_name(name("t")).with_partitions(
            [0, 9]
                .map(|index| {
                    kafka::offset_delete_request::OffsetDeleteRequestPartition::default().with_partition_index(index)
                })
                .to_vec(),
        );
    let forget = kafka::OffsetDeleteRequest::default().with_group_id(group("simple")).with_topics(vec![forget]);
    let answer = connection.call(0, &forget).await;
    let outcomes: Vec<_> = answer.topics[0].partitions.iter().map(|done| done.error_code).collect();
    assert_eq!((answer.error_code, outcomes), (0, vec![0, UNKNOWN_TOPIC_OR_PARTITION]));
    assert_eq!(connection.call(0, &forget.with_group_id(group("never"))).await.error_code, GROUP_ID_NOT_FOUND);
    let delete = kafka::DeleteGroupsRequest::default().with_groups_names(["g", "simple", "never"].map(group).to_vec());
    let answer = connection.call(2, &delete).await;
    let outcomes: Vec<_> = answer.results.iter().map(|done| done.error_code).collect();
    assert_eq!(outcomes, [NON_EMPTY_GROUP, 0, GROUP_ID_NOT_FOUND]);
    let answer = connection.call(5, &listed(&[], &[])).await;
    assert_eq!(answer.groups.iter().map(|group| group.group_id.as_str()).collect::<Vec<_>>(), ["g"]);
}
