//! What admin clients of Kafka do to a fleet: replicas are moved, moves are listed and given up, preferred replicas lead again.

use super::wire::{Connection, batch, name};
use kafka_protocol::messages as kafka;
use kafka_protocol::messages::alter_partition_reassignments_request::{ReassignablePartition, ReassignableTopic};
use kafka_protocol::messages::create_topics_request::{CreatableReplicaAssignment, CreatableTopic};
use millpond_tests::fleet::{Fleet, FleetOptions};
use std::time::Duration;

const TOPIC: &str = "moved";

const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
const INVALID_REPLICATION_FACTOR: i16 = 38;
const INVALID_REPLICA_ASSIGNMENT: i16 = 39;
const INVALID_REQUEST: i16 = 42;
const ELECTION_NOT_NEEDED: i16 = 84;
const NO_REASSIGNMENT_IN_PROGRESS: i16 = 85;

/// Nothing that is waited for takes so long, unless it never comes.
const PATIENCE: Duration = Duration::from_secs(60);

fn ids(brokers: &[i32]) -> Vec<kafka::BrokerId> {
    brokers.iter().map(|&id| kafka::BrokerId(id)).collect()
}

fn plain(brokers: &[kafka::BrokerId]) -> Vec<i32> {
    brokers.iter().map(|broker| broker.0).collect()
}

/// Waits until it holds.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let held = async { while !holds().await {} };
    tokio::time::timeout(PATIENCE, held).await.unwrap_or_else(|_| panic!("{what} did not come about"));
}

/// Waits until so many brokers are alive: on a busy machine a session may be lost and made anew.
async fn registered(connection: &mut Connection, brokers: usize) {
    let request = kafka::MetadataRequest::default().with_topics(Some(vec![]));
    until("all brokers", async || connection.call(12, &request).await.brokers.len() == brokers).await;
}

/// A topic of one partition on these brokers.
async fn create(connection: &mut Connection, replicas: &[i32]) {
    let assignment = CreatableReplicaAssignment::default().with_broker_ids(ids(replicas));
    let topic = CreatableTopic::default()
        .with_name(name(TOPIC))
        .with_num_partitions(-1)
        .with_replication_factor(-1)
        .with_assignments(vec![assignment]);
    let request = kafka::CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(30_000);
    until("the topic", async || match connection.call(7, &request).await.topics[0].error_code {
        0 => true,
        code => {
            assert_eq!(code, INVALID_REPLICA_ASSIGNMENT);
            registered(connection, 4).await;
            false
        }
    })
    .await;
}

/// Asks for a move of a partition, or gives it up.
async fn alter(connection: &mut Connection, partition: i32, to: Option<&[i32]>, factor_may_change: bool) -> i16 {
    let moved = ReassignablePartition::default().with_partition_index(partition).with_replicas(to.map(ids));
    let topic = ReassignableTopic::default().with_name(name(TOPIC)).with_partitions(vec![moved]);
    let request = kafka::AlterPartitionReassignmentsRequest::default().with_topics(vec![topic]);
    let (version, request) = match factor_may_change {
        true => (0, request),
        false => (1, request.with_allow_replication_factor_change(false)),
    };
    let answer = connection.call(version, &request).await;
    assert_eq!((answer.error_code, answer.allow_replication_factor_change), (0, version == 0));
    answer.responses[0].partitions[0].error_code
}

/// The replicas of each partition under way, who joins and who leaves.
async fn under_way(connection: &mut Connection) -> Vec<(Vec<i32>, Vec<i32>, Vec<i32>)> {
    let answer = connection.call(0, &kafka::ListPartitionReassignmentsRequest::default().with_topics(None)).await;
    assert_eq!(answer.error_code, 0);
    let partitions = answer.topics.iter().flat_map(|topic| &topic.partitions);
    partitions
        .map(|each| (plain(&each.replicas), plain(&each.adding_replicas), plain(&each.removing_replicas)))
        .collect()
}

/// Replicas, the preferred leader first, and who leads.
async fn placed(connection: &mut Connection) -> (Vec<i32>, i32) {
    let asked = kafka::metadata_request::MetadataRequestTopic::default().with_name(Some(name(TOPIC)));
    let answer = connection.call(12, &kafka::MetadataRequest::default().with_topics(Some(vec![asked]))).await;
    let partition = &answer.topics[0].partitions[0];
    (plain(&partition.replica_nodes), partition.leader_id.0)
}

async fn until_placed(connection: &mut Connection, replicas: &[i32]) {
    until("the move", async || placed(connection).await.0 == replicas && under_way(connection).await.is_empty()).await;
}

async fn elect(connection: &mut Connection, version: i16, kind: i8, partitions: Option<&[i32]>) -> Vec<i16> {
    let topic = |partitions: &[i32]| {
        kafka::elect_leaders_request::TopicPartitions::default()
            .with_topic(name(TOPIC))
            .with_partitions(partitions.to_vec())
    };
    let request = kafka::ElectLeadersRequest::default()
        .with_topic_partitions(partitions.map(|partitions| vec![topic(partitions)]))
        .with_timeout_ms(30_000);
    let request = if version > 0 { request.with_election_type(kind) } else { request };
    let answer = connection.call(version, &request).await;
    assert_eq!(answer.error_code, 0);
    let topics = answer.replica_election_results.iter();
    topics.flat_map(|topic| &topic.partition_result).map(|elected| elected.error_code).collect()
}

/// Partitions of the topic that a broker says it has on its disk.
async fn on_disk(fleet: &Fleet, broker: usize) -> Vec<i32> {
    let mut connection = Connection::to(&fleet.kafka(broker)).await;
    let answer = connection.call(4, &kafka::DescribeLogDirsRequest::default().with_topics(None)).await;
    let [dir] = &answer.results[..] else { panic!("a broker has one folder: {answer:?}") };
    assert_eq!(dir.log_dir.as_str(), fleet.data_dir(broker).display().to_string());
    assert!(0 < dir.usable_bytes && dir.usable_bytes <= dir.total_bytes, "{dir:?}");
    let partitions = dir.topics.iter().filter(|topic| topic.name == name(TOPIC)).flat_map(|topic| &topic.partitions);
    partitions.map(|partition| partition.partition_index).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kafka_client_moves_a_partition_gives_a_move_up_and_has_the_preferred_replica_lead() {
    let mut fleet = Fleet::start(&FleetOptions::new(4)).await.expect("it needs nothing but this machine");
    let mut connection = Connection::to(&fleet.kafka(1)).await;
    create(&mut connection, &[0, 1, 2]).await;
    assert_eq!(elect(&mut connection, 2, 0, Some(&[0, 7])).await, [ELECTION_NOT_NEEDED, UNKNOWN_TOPIC_OR_PARTITION]);
    assert_eq!(elect(&mut connection, 1, 1, Some(&[0])).await, [ELECTION_NOT_NEEDED], "it is led");
    assert!(elect(&mut connection, 2, 0, None).await.is_empty(), "all is as it is to be");

    for (to, code) in [(&[][..], INVALID_REPLICA_ASSIGNMENT), (&[0, 0, 1], INVALID_REPLICA_ASSIGNMENT)] {
        assert_eq!(alter(&mut connection, 0, Some(to), true).await, code, "{to:?}");
    }
    assert_eq!(alter(&mut connection, 0, Some(&[0, 1, 9]), true).await, INVALID_REPLICA_ASSIGNMENT);
    assert_eq!(alter(&mut connection, 0, Some(&[0, 1, -1]), true).await, INVALID_REPLICA_ASSIGNMENT);
    assert_eq!(alter(&mut connection, 0, Some(&[0, 1]), false).await, INVALID_REPLICATION_FACTOR);
    assert_eq!(alter(&mut connection, 5, Some(&[0, 1, 2]), true).await, UNKNOWN_TOPIC_OR_PARTITION);
    assert_eq!(alter(&mut connection, 0, None, true).await, NO_REASSIGNMENT_IN_PROGRESS);

    // Whoever is to join is stopped, so the move cannot be done.
    until("a move to a broker that is stopped", async || {
        fleet.pause(3);
        let decided = alter(&mut connection, 0, Some(&[3, 1, 2]), true).await == 0;
        if !decided {
            fleet.resume(3);
            registered(&mut connection, 4).await;
        }
        decided
    })
    .await;
    until("the move in the list", async || !under_way(&mut connection).await.is_empty()).await;
    assert_eq!(under_way(&mut connection).await, [(vec![3, 1, 2, 0], vec![3], vec![0])]);
    assert_eq!(alter(&mut connection, 0, None, true).await, 0, "it is given up");
    until_placed(&mut connection, &[1, 2, 0]).await;
    assert_eq!(alter(&mut connection, 0, None, true).await, NO_REASSIGNMENT_IN_PROGRESS);
    fleet.resume(3);
    registered(&mut connection, 4).await;

    until("a record", async || {
        let (_, leader) = placed(&mut connection).await;
        let Ok(leader) = usize::try_from(leader) else { return false };
        let mut at_leader = Connection::to(&fleet.kafka(leader)).await;
        at_leader.produce(TOPIC, 0, batch(&[1; 100], b"v")).await.error_code == 0
    })
    .await;
    until("a move", async || alter(&mut connection, 0, Some(&[3, 1, 2]), false).await == 0).await;
    until_placed(&mut connection, &[3, 1, 2]).await;
    until("the new replica", async || on_disk(&fleet, 3).await == [0]).await;
    until("the end of the old replica", async || on_disk(&fleet, 0).await.is_empty()).await;

    // Another is preferred: only the order changes, so nothing is moved, and it leads when it is asked to.
    assert_eq!(alter(&mut connection, 0, Some(&[2, 3, 1]), true).await, 0);
    until_placed(&mut connection, &[2, 3, 1]).await;
    until("the election", async || {
        matches!(elect(&mut connection, 0, 0, Some(&[0])).await[..], [0 | ELECTION_NOT_NEEDED])
    })
    .await;
    until("the lead of the preferred replica", async || placed(&mut connection).await.1 == 2).await;
    fleet.stop().await;
}

#[tokio::test]
async fn an_election_of_a_kind_that_is_not_there_is_refused() {
    let served = super::wire::Served::start().await;
    let mut connection = served.connect().await;
    let request = kafka::ElectLeadersRequest::default().with_topic_partitions(None).with_election_type(7);
    assert_eq!(connection.call(2, &request).await.error_code, INVALID_REQUEST);
}
