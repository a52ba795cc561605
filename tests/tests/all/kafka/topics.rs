//! Metadata, CreateTopics and DeleteTopics.

use super::wire::{Connection, Served, name, text};
use kafka_protocol::messages as kafka;
use millpond_broker::Config;
use millpond_tests::broker::{TestBroker, config};
use object_store::memory::InMemory;
use std::sync::Arc;

async fn describe(connection: &mut Connection, version: i16, topics: &[&str], create: bool) -> Vec<(i16, usize)> {
    let asked = topics
        .iter()
        .map(|&topic| kafka::metadata_request::MetadataRequestTopic::default().with_name(Some(name(topic))));
    let request = kafka::MetadataRequest::default()
        .with_topics(Some(asked.collect()))
        .with_allow_auto_topic_creation(version < 4 || create);
    let answer = connection.call(version, &request).await;
    assert_eq!(answer.topics.len(), topics.len());
    answer.topics.iter().map(|topic| (topic.error_code, topic.partitions.len())).collect()
}

#[tokio::test]
async fn metadata_creates_what_both_sides_allow() {
    let served = Served::start().await;
    let mut connection = served.connect().await;
    assert_eq!(describe(&mut connection, 12, &["absent"], false).await, [(3, 0)]);
    // Case A5.
    assert_eq!(describe(&mut connection, 4, &["new-a", "bad name"], true).await, [(0, 1), (17, 0)]);
    assert_eq!(describe(&mut connection, 12, &["new-a", "bad name"], false).await[0], (0, 1));
    for version in 0..=13 {
        let topic = format!("auto-{version}");
        assert_eq!(describe(&mut connection, version, &[&topic], true).await, [(0, 1)], "version {version}");
    }
    let all = connection.call(0, &kafka::MetadataRequest::default().with_topics(Some(vec![]))).await;
    assert_eq!(all.topics.len(), 15, "in version 0 an empty list means all");
    let none = connection.call(1, &kafka::MetadataRequest::default().with_topics(Some(vec![]))).await;
    assert_eq!(none.topics.len(), 0);
    assert_eq!(describe(&mut connection, 12, &["absent"], false).await, [(3, 0)], "asking did not create it");
}

#[tokio::test]
async fn metadata_names_the_cluster_and_finds_topics_by_id() {
    let served = Served::start().await;
    let mut connection = served.connect().await;
    connection.create("t", 3, &[]).await;
    let mut id = uuid::Uuid::nil();
    for version in 1..=13 {
        let answer = connection.call(version, &kafka::MetadataRequest::default().with_topics(None)).await;
        let [broker] = &answer.brokers[..] else { panic!("one broker: {answer:?}") };
        assert_eq!(format!("{}:{}", broker.host, broker.port), served.broker.kafka(), "where we are");
        assert_eq!(answer.controller_id, broker.node_id);
        assert_eq!(answer.cluster_id.is_some_and(|id| !id.is_empty()), version >= 2);
        let topic = &answer.topics[0];
        assert!(topic.partitions.iter().map(|part| part.partition_index).eq(0..3));
        for part in &topic.partitions {
            assert_eq!(
                (part.error_code, part.leader_id, part.isr_nodes.as_slice()),
                (0, broker.node_id, &[broker.node_id][..])
            );
            assert!(part.offline_replicas.is_empty());
        }
        assert_eq!(topic.topic_id.is_nil(), version < 10, "version {version}");
        id = topic.topic_id;
    }
    for (asked, code) in [(id, 0), (uuid::Uuid::from_u128(5), 100)] {
        let by_id = kafka::metadata_request::MetadataRequestTopic::default().with_name(None).with_topic_id(asked);
        let answer = connection.call(12, &kafka::MetadataRequest::default().with_topics(Some(vec![by_id]))).await;
        assert_eq!((answer.topics[0].error_code, answer.topics[0].topic_id), (code, asked));
    }
}

fn new_topic(topic: &str, partitions: i32, replicas: i16) -> kafka::create_topics_request::CreatableTopic {
    kafka::create_topics_request::CreatableTopic::default()
        .with_name(name(topic))
        .with_num_partitions(partitions)
        .with_replication_factor(replicas)
}

#[tokio::test]
async fn each_topic_is_created_or_refused_alone() {
    let served = Served::start().await;
    let mut connection = served.connect().await;
    for version in 2..=7 {
        let config = |key: &str, value: Option<&str>| {
            vec![
                kafka::create_topics_request::CreatableTopicConfig::default()
                    .with_name(text(key))
                    .with_value(value.map(text)),
            ]
        };
        let good = format!("good-{version}");
        let topics = vec![
            new_topic(&good, 2, 1).with_configs(config("retention.ms", Some("1000"))),
            new_topic("none", 0, 1),
            new_topic("many", 1, 9),
            new_topic("odd", 1, 1).with_configs(config("no.such.setting", Some("1"))),
            new_topic("null", 1, 1).with_configs(config("retention.ms", None)),
            new_topic("twice", 1, 1),
            new_topic("twice", 1, 1),
        ];
        let request = kafka::CreateTopicsRequest::default().with_topics(topics).with_timeout_ms(10_000);
        let answer = connection.call(version, &request).await;
        let codes: Vec<i16> = answer.topics.iter().map(|topic| topic.error_code).collect();
        assert_eq!(codes, [0, 37, 38, 40, 40, 42, 42], "version {version}");
        if version >= 5 {
            let made = &answer.topics[0];
            assert_eq!((made.num_partitions, made.replication_factor, made.topic_id.is_nil()), (2, 1, version < 7));
            // KIP-525: all that hold, and where each comes from.
            let settings = made.configs.as_deref().expect("they are told");
            let find = |name: &str| {
                let found = settings.iter().find(|config| &*config.name == name).expect("listed");
                (found.value.as_deref().expect("it has a value").to_owned(), found.config_source)
            };
            assert_eq!(find("retention.ms"), ("1000".to_owned(), 1));
            assert_eq!(find("segment.ms"), ("604800000".to_owned(), 5));
            assert_eq!(find("min.insync.replicas"), ("1".to_owned(), 5));
        }
        let again = connection.call(version, &request).await;
        assert_eq!(again.topics[0].error_code, 36);
        let dry =
            kafka::CreateTopicsRequest::default().with_topics(vec![new_topic("dry", 3, 1)]).with_validate_only(true);
        let checked = connection.call(version, &dry).await.topics.remove(0);
        assert_eq!(checked.error_code, 0);
        if version >= 5 {
            assert_eq!((checked.num_partitions, checked.replication_factor), (3, 1), "what it would have");
        }
        assert_eq!(describe(&mut connection, 12, &["dry"], false).await, [(3, 0)], "only checked");
    }
}

#[tokio::test]
async fn names_follow_kafkas_rules_on_every_way_in() {
    let served = Served::start().await;
    let mut connection = served.connect().await;
    let longest = "d".repeat(249);
    connection.create(&longest, 1, &[]).await;
    let long = "d".repeat(250);
    // Case A12.
    for bad in [long.as_str(), "", ".", "..", "a/b", "é", "a b", "a\0"] {
        let request = kafka::CreateTopicsRequest::default().with_topics(vec![new_topic(bad, 1, 1)]);
        assert_eq!(connection.call(7, &request).await.topics[0].error_code, 17, "`{bad}`");
        assert_eq!(describe(&mut connection, 12, &[bad], true).await, [(17, 0)], "`{bad}`");
    }
}

/// Clients of Kafka write `.` as `_` where they name metrics.
#[tokio::test]
async fn names_that_differ_in_dots_and_underscores_alone_are_refused() {
    let served = Served::start().await;
    let mut connection = served.connect().await;
    connection.create("a.b_c", 1, &[]).await;
    for (other, code) in [("a_b_c", 17), ("a.b.c", 17), ("a.b_c", 36), ("a-b-c", 0)] {
        let request = kafka::CreateTopicsRequest::default().with_topics(vec![new_topic(other, 1, 1)]);
        assert_eq!(connection.call(7, &request).await.topics[0].error_code, code, "`{other}`");
    }
    assert_eq!(describe(&mut connection, 12, &["a.b.c", "a.b_c"], true).await, [(17, 0), (0, 1)]);
}

#[tokio::test]
async fn metadata_creates_nothing_where_the_broker_is_told_not_to() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let settings = Config { auto_create_topics: false, ..config(dir.path()) };
    let broker = TestBroker::start(settings, Arc::new(InMemory::new())).await;
    let mut connection = Connection::to(broker.kafka()).await;
    for version in 0..=13 {
        assert_eq!(describe(&mut connection, version, &["absent"], true).await, [(3, 0)], "version {version}");
    }
    broker.stop().await;
}

#[tokio::test]
async fn topics_are_deleted_by_name_and_by_id() {
    let served = Served::start().await;
    let mut connection = served.connect().await;
    for version in 1..=5 {
        connection.create("t", 1, &[]).await;
        let request = kafka::DeleteTopicsRequest::default().with_topic_names(vec![name("t"), name("absent")]);
        let answer = connection.call(version, &request.with_timeout_ms(10_000)).await;
        let codes: Vec<i16> = answer.responses.iter().map(|topic| topic.error_code).collect();
        assert_eq!(codes, [0, 3], "version {version}");
        assert_eq!(describe(&mut connection, 12, &["t"], false).await, [(3, 0)]);
    }
    connection.create("t", 1, &[]).await;
    let all = connection.call(12, &kafka::MetadataRequest::default().with_topics(None)).await;
    let id = all.topics[0].topic_id;
    let by_id = |id| kafka::delete_topics_request::DeleteTopicState::default().with_name(None).with_topic_id(id);
    let topics = vec![by_id(id), by_id(uuid::Uuid::from_u128(5))];
    let answer = connection.call(6, &kafka::DeleteTopicsRequest::default().with_topics(topics)).await;
    let [gone, unknown] = &answer.responses[..] else { panic!("{answer:?}") };
    assert_eq!((gone.error_code, gone.topic_id, gone.name.clone()), (0, id, Some(name("t"))));
    assert_eq!((unknown.error_code, unknown.name.is_none()), (100, true));
}
