//! What clients of Kafka are told while the metadata store does not answer: codes after which they ask again, of which none ends a client.

use super::wire::{Connection, name, text};
use kafka_protocol::messages as kafka;
use millpond_tests::fleet::{Fleet, FleetOptions, MetadataIn};
use millpond_tests::tools::{Tool, skip};
use std::time::Duration;

const LEADER_NOT_AVAILABLE: i16 = 5;
const REQUEST_TIMED_OUT: i16 = 7;
const COORDINATOR_LOAD_IN_PROGRESS: i16 = 14;
const TOPIC_ALREADY_EXISTS: i16 = 36;
const NOT_CONTROLLER: i16 = 41;

/// Nothing that is waited for takes so long, unless it never comes.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a client waits that does not tell otherwise.
const PATIENT_MS: i32 = 30_000;

/// One broker over an etcd that can be stopped, or the reason why not.
async fn over_etcd(test: &str) -> Option<Fleet> {
    let mut options = FleetOptions::new(1);
    options.metadata = MetadataIn::Etcd(Tool::EtcdPinned, 1);
    options.arguments.push("--auto-create-topics".to_owned());
    Fleet::start(&options).await.map_err(|why| skip(test, &why)).ok()
}

/// Asks again until it holds.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let held = tokio::time::timeout(PATIENCE, async { while !holds().await {} });
    held.await.unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"));
}

async fn create(connection: &mut Connection, topics: &[&str], timeout_ms: i32) -> Vec<i16> {
    let topic = |&topic: &&str| {
        kafka::create_topics_request::CreatableTopic::default()
            .with_name(name(topic))
            .with_num_partitions(1)
            .with_replication_factor(1)
    };
    let topics = topics.iter().map(topic).collect();
    let request = kafka::CreateTopicsRequest::default().with_topics(topics).with_timeout_ms(timeout_ms);
    connection.call(7, &request).await.topics.iter().map(|topic| topic.error_code).collect()
}

async fn delete(connection: &mut Connection, topic: &str, timeout_ms: i32) -> i16 {
    let request = kafka::DeleteTopicsRequest::default().with_topic_names(vec![name(topic)]).with_timeout_ms(timeout_ms);
    connection.call(5, &request).await.responses[0].error_code
}

async fn grow(connection: &mut Connection, topic: &str, count: i32, timeout_ms: i32) -> i16 {
    let topic = kafka::create_partitions_request::CreatePartitionsTopic::default()
        .with_name(name(topic))
        .with_count(count)
        .with_assignments(None);
    let request = kafka::CreatePartitionsRequest::default().with_topics(vec![topic]).with_timeout_ms(timeout_ms);
    connection.call(3, &request).await.results[0].error_code
}

async fn alter(connection: &mut Connection, topic: &str) -> i16 {
    let config = kafka::incremental_alter_configs_request::AlterableConfig::default()
        .with_name(text("retention.ms"))
        .with_value(Some(text("1000")));
    let topic = kafka::incremental_alter_configs_request::AlterConfigsResource::default()
        .with_resource_type(2)
        .with_resource_name(text(topic))
        .with_configs(vec![config]);
    let request = kafka::IncrementalAlterConfigsRequest::default().with_resources(vec![topic]);
    connection.call(1, &request).await.responses[0].error_code
}

/// The code of the answer, and that of the one partition.
async fn reassign(connection: &mut Connection, topic: &str, timeout_ms: i32) -> (i16, i16) {
    let partition = kafka::alter_partition_reassignments_request::ReassignablePartition::default()
        .with_partition_index(0)
        .with_replicas(Some(vec![0.into()]));
    let topic = kafka::alter_partition_reassignments_request::ReassignableTopic::default()
        .with_name(name(topic))
        .with_partitions(vec![partition]);
    let request = kafka::AlterPartitionReassignmentsRequest::default().with_topics(vec![topic]);
    let answer = connection.call(0, &request.with_timeout_ms(timeout_ms)).await;
    (answer.error_code, answer.responses[0].partitions[0].error_code)
}

/// The codes of topics that are asked for by name.
async fn ask_for(connection: &mut Connection, topics: &[&str], create: bool) -> Vec<i16> {
    let asked = topics
        .iter()
        .map(|&topic| kafka::metadata_request::MetadataRequestTopic::default().with_name(Some(name(topic))));
    let request =
        kafka::MetadataRequest::default().with_topics(Some(asked.collect())).with_allow_auto_topic_creation(create);
    connection.call(12, &request).await.topics.iter().map(|topic| topic.error_code).collect()
}

async fn partitions(connection: &mut Connection, topic: &str) -> usize {
    let asked = kafka::metadata_request::MetadataRequestTopic::default().with_name(Some(name(topic)));
    let request = kafka::MetadataRequest::default().with_topics(Some(vec![asked]));
    connection.call(12, &request).await.topics[0].partitions.len()
}

/// As Kafka's broker has it, since some clients take any other code for the end.
#[tokio::test]
async fn an_idempotent_producer_is_told_to_come_back_while_no_producer_ids_can_be_had() {
    let test = "an_idempotent_producer_is_told_to_come_back_while_no_producer_ids_can_be_had";
    let Some(mut fleet) = over_etcd(test).await else { return };
    let mut connection = Connection::to(&fleet.kafka(0)).await;
    let mut init = async || {
        let request = kafka::InitProducerIdRequest::default().with_transactional_id(None);
        let answer = connection.call(4, &request).await;
        assert_eq!(answer.error_code == 0, answer.producer_id.0 >= 0, "{answer:?}");
        answer.error_code
    };
    assert_eq!(init().await, 0);
    fleet.etcd().kill(0);
    let mut refused = 0;
    // What is left of its block the broker gives out.
    until("a refusal", async || {
        refused = init().await;
        refused != 0
    })
    .await;
    assert_eq!(refused, COORDINATOR_LOAD_IN_PROGRESS);
    fleet.etcd().restart(0).await;
    until("an id", async || match init().await {
        0 => true,
        code => {
            assert_eq!(code, COORDINATOR_LOAD_IN_PROGRESS);
            false
        }
    })
    .await;
    fleet.stop().await;
}

/// Kafka's admin clients ask again after `NOT_CONTROLLER`, and after nothing else of this kind.
#[tokio::test]
async fn an_admin_is_told_of_another_controller_while_the_metadata_store_does_not_answer() {
    let test = "an_admin_is_told_of_another_controller_while_the_metadata_store_does_not_answer";
    let Some(mut fleet) = over_etcd(test).await else { return };
    let mut connection = Connection::to(&fleet.kafka(0)).await;
    assert_eq!(create(&mut connection, &["t"], PATIENT_MS).await, [0]);
    fleet.etcd().pause(0);
    assert_eq!(create(&mut connection, &["a", "b"], PATIENT_MS).await, [NOT_CONTROLLER; 2]);
    assert_eq!(delete(&mut connection, "t", PATIENT_MS).await, NOT_CONTROLLER);
    assert_eq!(grow(&mut connection, "t", 2, PATIENT_MS).await, NOT_CONTROLLER);
    assert_eq!(alter(&mut connection, "t").await, NOT_CONTROLLER);
    // Java's looks at the code of the whole answer there.
    assert_eq!(reassign(&mut connection, "t", PATIENT_MS).await, (NOT_CONTROLLER, NOT_CONTROLLER));
    // Whoever asks for metadata knows another code for the same.
    assert_eq!(ask_for(&mut connection, &["c", "d"], true).await, [LEADER_NOT_AVAILABLE; 2]);
    fleet.etcd().resume(0);
    until("the topics", async || {
        let made = create(&mut connection, &["a", "b"], PATIENT_MS).await;
        assert!(made.iter().all(|code| matches!(*code, 0 | TOPIC_ALREADY_EXISTS | NOT_CONTROLLER)), "{made:?}");
        !made.contains(&NOT_CONTROLLER)
    })
    .await;
    fleet.stop().await;
}

#[tokio::test]
async fn what_is_not_done_within_the_time_of_its_request_goes_on_after_the_answer() {
    let test = "what_is_not_done_within_the_time_of_its_request_goes_on_after_the_answer";
    let Some(mut fleet) = over_etcd(test).await else { return };
    let mut connection = Connection::to(&fleet.kafka(0)).await;
    assert_eq!(create(&mut connection, &["t"], PATIENT_MS).await, [0]);
    fleet.etcd().pause(0);
    assert_eq!(create(&mut connection, &["made", "later"], 1).await, [REQUEST_TIMED_OUT; 2]);
    fleet.etcd().resume(0);
    until("the first topic", async || ask_for(&mut connection, &["made"], false).await == [0]).await;
    // Only one at a time is begun.
    assert_eq!(ask_for(&mut connection, &["later"], false).await, [3]);
    fleet.etcd().pause(0);
    assert_eq!(grow(&mut connection, "made", 2, 1).await, REQUEST_TIMED_OUT);
    assert_eq!(reassign(&mut connection, "made", 1).await, (0, REQUEST_TIMED_OUT));
    fleet.etcd().resume(0);
    until("a partition more", async || partitions(&mut connection, "made").await == 2).await;
    fleet.etcd().pause(0);
    assert_eq!(delete(&mut connection, "made", 1).await, REQUEST_TIMED_OUT);
    fleet.etcd().resume(0);
    until("its end", async || ask_for(&mut connection, &["made"], false).await == [3]).await;
    fleet.stop().await;
}
