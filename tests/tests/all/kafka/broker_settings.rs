//! Settings of brokers that users of Kafka know, as a process was told them.

use super::wire::{Connection, name, text};
use bytes::Bytes;
use kafka_protocol::messages as kafka;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use millpond_tests::process::BrokerProcess;
use std::path::Path;

const COORDINATOR_LOAD_IN_PROGRESS: i16 = 14;
const COORDINATOR_NOT_AVAILABLE: i16 = 15;
const NOT_COORDINATOR: i16 = 16;
const INVALID_SESSION_TIMEOUT: i16 = 26;
const INVALID_CONFIG: i16 = 40;

fn broker(root: &Path, more: &[&str]) -> BrokerProcess {
    let path = |name: &str| root.join(name).display().to_string();
    let mut arguments = vec![
        format!("--metadata=embedded:{}", path("metadata")),
        format!("--object-store=file://{}", path("objects")),
        format!("--data-dir={}", path("data")),
        "--id=0".to_owned(),
    ];
    arguments.extend(more.iter().map(|&argument| argument.to_owned()));
    BrokerProcess::start(&arguments)
}

/// Values of the broker's settings, with their sources: 4 is its start, 5 a default.
async fn settings(connection: &mut Connection, keys: &[&str]) -> Vec<(String, i8)> {
    let resource = kafka::describe_configs_request::DescribeConfigsResource::default()
        .with_resource_type(4)
        .with_resource_name(text("0"))
        .with_configuration_keys(Some(keys.iter().copied().map(text).collect()));
    let request = kafka::DescribeConfigsRequest::default().with_resources(vec![resource]);
    let described = connection.call(4, &request).await.results.remove(0);
    let value = |key: &&str| {
        let entry = described.configs.iter().find(|entry| entry.name.as_str() == *key).expect("it is told");
        (entry.value.as_deref().expect("it has a value").to_owned(), entry.config_source)
    };
    keys.iter().map(value).collect()
}

/// Joins a classic group by itself; the error that it gets.
async fn join(connection: &mut Connection, group: &str, session_timeout_ms: i32) -> i16 {
    let protocol = JoinGroupRequestProtocol::default().with_name(text("range")).with_metadata(Bytes::from_static(b"x"));
    let request = kafka::JoinGroupRequest::default()
        .with_group_id(text(group).into())
        .with_session_timeout_ms(session_timeout_ms)
        .with_rebalance_timeout_ms(300_000)
        .with_protocol_type(text("consumer"))
        .with_protocols(vec![protocol]);
    loop {
        // Version 3: an id is not asked for first.
        match connection.call(3, &request).await.error_code {
            COORDINATOR_LOAD_IN_PROGRESS | COORDINATOR_NOT_AVAILABLE | NOT_COORDINATOR => {
                tokio::task::yield_now().await
            }
            code => return code,
        }
    }
}

const KEYS: [&str; 4] = [
    "group.min.session.timeout.ms",
    "group.max.session.timeout.ms",
    "group.initial.rebalance.delay.ms",
    "num.partitions",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_goes_by_the_session_timeouts_the_delay_and_the_partitions_that_it_was_told() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let told = [
        "--group-min-session-timeout=1s",
        "--group-max-session-timeout=1m",
        "--group-initial-rebalance-delay=0s",
        "--num-partitions=7",
        "--auto-create-topics",
    ];
    let broker = broker(folder.path(), &told);
    let mut connection = Connection::to(&broker.kafka).await;
    let expected = ["1000", "60000", "0", "7"].map(|value| (value.to_owned(), 4));
    assert_eq!(settings(&mut connection, &KEYS).await, expected);

    for (session_timeout_ms, error) in
        [(999, INVALID_SESSION_TIMEOUT), (1_000, 0), (60_000, 0), (60_001, INVALID_SESSION_TIMEOUT)]
    {
        let group = format!("g-{session_timeout_ms}");
        assert_eq!(join(&mut connection, &group, session_timeout_ms).await, error, "{session_timeout_ms} ms");
    }

    let asked = kafka::metadata_request::MetadataRequestTopic::default().with_name(Some(name("made")));
    let request = kafka::MetadataRequest::default().with_topics(Some(vec![asked])).with_allow_auto_topic_creation(true);
    let made = connection.call(12, &request).await.topics.remove(0);
    assert_eq!((made.error_code, made.partitions.len()), (0, 7), "by asking for it");
    let topic = kafka::create_topics_request::CreatableTopic::default()
        .with_name(name("created"))
        .with_num_partitions(-1)
        .with_replication_factor(-1);
    let request = kafka::CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(10_000);
    let created = connection.call(7, &request).await.topics.remove(0);
    assert_eq!((created.error_code, created.num_partitions), (0, 7), "by -1");
    broker.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_was_told_nothing_has_the_defaults_of_kafka() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let broker = broker(folder.path(), &[]);
    let mut connection = Connection::to(&broker.kafka).await;
    let expected = ["6000", "1800000", "3000", "1"].map(|value| (value.to_owned(), 5));
    assert_eq!(settings(&mut connection, &KEYS).await, expected);
    assert_eq!(join(&mut connection, "g", 5_999).await, INVALID_SESSION_TIMEOUT);
    broker.stop();
}

/// Sets one setting of a group; the error that it gets.
async fn set_on_group(connection: &mut Connection, setting: &str, value: &str) -> i16 {
    use kafka::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
    let change = AlterableConfig::default().with_name(text(setting)).with_value(Some(text(value)));
    let group =
        AlterConfigsResource::default().with_resource_type(32).with_resource_name(text("g")).with_configs(vec![change]);
    let request = kafka::IncrementalAlterConfigsRequest::default().with_resources(vec![group]);
    connection.call(1, &request).await.responses[0].error_code
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_may_be_set_to_what_lies_within_the_bounds_that_its_broker_was_told() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let told = [
        "--group-consumer-min-session-timeout=10s",
        "--group-consumer-max-session-timeout=5m",
        "--group-consumer-min-heartbeat-interval=500ms",
        "--group-consumer-max-heartbeat-interval=30s",
    ];
    let broker = broker(folder.path(), &told);
    let mut connection = Connection::to(&broker.kafka).await;
    let keys = [
        "group.consumer.min.session.timeout.ms",
        "group.consumer.max.session.timeout.ms",
        "group.consumer.min.heartbeat.interval.ms",
        "group.consumer.max.heartbeat.interval.ms",
    ];
    let expected = ["10000", "300000", "500", "30000"].map(|value| (value.to_owned(), 4));
    assert_eq!(settings(&mut connection, &keys).await, expected);
    let (session, heartbeat) = ("consumer.session.timeout.ms", "consumer.heartbeat.interval.ms");
    for (setting, value, error) in [
        (heartbeat, "499", INVALID_CONFIG),
        (heartbeat, "500", 0),
        (session, "9999", INVALID_CONFIG),
        (session, "10000", 0),
        (heartbeat, "10000", INVALID_CONFIG),
        (session, "300000", 0),
        (session, "300001", INVALID_CONFIG),
        (heartbeat, "30000", 0),
        (heartbeat, "30001", INVALID_CONFIG),
    ] {
        assert_eq!(set_on_group(&mut connection, setting, value).await, error, "{setting}={value}");
    }
    // It is kept with what else coordinators know.
    broker.stop();
    let again = self::broker(folder.path(), &told);
    let mut connection = Connection::to(&again.kafka).await;
    let group = kafka::describe_configs_request::DescribeConfigsResource::default()
        .with_resource_type(32)
        .with_resource_name(text("g"));
    let request = kafka::DescribeConfigsRequest::default().with_resources(vec![group]);
    let described = connection.call(4, &request).await.results.remove(0).configs;
    let values: Vec<_> = described.iter().map(|entry| (entry.value.as_deref(), entry.config_source)).collect();
    assert_eq!(values, [(Some("30000"), 8), (Some("300000"), 8)]);
    again.stop();
}
