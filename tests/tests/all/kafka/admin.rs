//! What admin clients ask, raw: settings, growth, deletion of records.

use super::wire::{Connection, Served, batch, name, text};
use kafka_protocol::messages as kafka;
use kafka_protocol::messages::describe_configs_response::DescribeConfigsResult;

const TOPIC: i8 = 2;
const BROKER: i8 = 4;

const OFFSET_OUT_OF_RANGE: i16 = 1;
const UNKNOWN_TOPIC_OR_PARTITION: i16 = 3;
const INVALID_TOPIC: i16 = 17;
const INVALID_PARTITIONS: i16 = 37;
const INVALID_REPLICA_ASSIGNMENT: i16 = 39;
const INVALID_CONFIG: i16 = 40;
const INVALID_REQUEST: i16 = 42;
const POLICY_VIOLATION: i16 = 44;

const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;

async fn describe(
    connection: &mut Connection,
    version: i16,
    kind: i8,
    of: &str,
    keys: &[&str],
) -> DescribeConfigsResult {
    let keys = (!keys.is_empty()).then(|| keys.iter().copied().map(text).collect());
    let resource = kafka::describe_configs_request::DescribeConfigsResource::default()
        .with_resource_type(kind)
        .with_resource_name(text(of))
        .with_configuration_keys(keys);
    let request = kafka::DescribeConfigsRequest::default()
        .with_resources(vec![resource])
        .with_include_synonyms(true)
        .with_include_documentation(version >= 3);
    connection.call(version, &request).await.results.remove(0)
}

/// Value and source of a topic's setting.
async fn setting(connection: &mut Connection, topic: &str, key: &str) -> (String, i8) {
    let described = describe(connection, 4, TOPIC, topic, &[key]).await;
    let [entry] = &described.configs[..] else { panic!("{described:?}") };
    (entry.value.as_deref().expect("it has a value").to_owned(), entry.config_source)
}

async fn incremental(
    connection: &mut Connection,
    version: i16,
    resource: (i8, &str),
    changes: &[(&str, i8, Option<&str>)],
    validate_only: bool,
) -> i16 {
    use kafka::incremental_alter_configs_request::{AlterConfigsResource, AlterableConfig};
    let change = |&(name, operation, value): &(&str, i8, Option<&str>)| {
        AlterableConfig::default().with_name(text(name)).with_config_operation(operation).with_value(value.map(text))
    };
    let resource = AlterConfigsResource::default()
        .with_resource_type(resource.0)
        .with_resource_name(text(resource.1))
        .with_configs(changes.iter().map(change).collect());
    let request = kafka::IncrementalAlterConfigsRequest::default()
        .with_resources(vec![resource])
        .with_validate_only(validate_only);
    connection.call(version, &request).await.responses[0].error_code
}

async fn replace(
    connection: &mut Connection,
    version: i16,
    resource: (i8, &str),
    configs: &[(&str, Option<&str>)],
    validate_only: bool,
) -> i16 {
    use kafka::alter_configs_request::{AlterConfigsResource, AlterableConfig};
    let config = |&(name, value): &(&str, Option<&str>)| {
        AlterableConfig::default().with_name(text(name)).with_value(value.map(text))
    };
    let resource = AlterConfigsResource::default()
        .with_resource_type(resource.0)
        .with_resource_name(text(resource.1))
        .with_configs(configs.iter().map(config).collect());
    let request =
        kafka::AlterConfigsRequest::default().with_resources(vec![resource]).with_validate_only(validate_only);
    connection.call(version, &request).await.responses[0].error_code
}

#[tokio::test]
async fn a_topics_settings_are_described_with_where_they_come_from() {
    let served = Served::start().await;
    let mut connection = served.connect().await;
    connection.create("t", 1, &[("retention.ms", "1000")]).await;
    for version in 1..=4 {
        let all = describe(&mut connection, version, TOPIC, "t", &[]).await;
        assert!(all.configs.len() > 25, "version {version}: {}", all.configs.len());
        let set = all.configs.iter().find(|entry| &*entry.name == "retention.ms").expect("listed");
        assert_eq!((set.value.as_deref(), set.config_source, set.read_only), (Some("1000"), 1, false));
        let synonyms: Vec<_> = set.synonyms.iter().map(|synonym| (&*synonym.name, synonym.source)).collect();
        assert_eq!(synonyms, [("retention.ms", 1), ("log.retention.ms", 5)], "version {version}");
        let documented = set.documentation.as_deref().is_some_and(|documentation| !documentation.is_empty());
        assert_eq!((set.config_type, documented), if version >= 3 { (5, true) } else { (0, false) });
        let some = describe(&mut connection, version, TOPIC, "t", &["cleanup.policy", "no.such"]).await;
        let named: Vec<_> = some.configs.iter().map(|entry| (&*entry.name, entry.config_source)).collect();
        assert_eq!(named, [("cleanup.policy", 5)], "version {version}");
    }
    for (kind, of, code) in [
        (TOPIC, "absent", UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "bad name", INVALID_TOPIC),
        (TOPIC, "", INVALID_TOPIC),
        (BROKER, "7", INVALID_REQUEST),
        (8, "0", INVALID_REQUEST),
    ] {
        let refused = describe(&mut connection, 4, kind, of, &[]).await;
        assert_eq!((refused.error_code, refused.configs.len()), (code, 0), "{kind} `{of}`");
        assert_eq!((refused.resource_type, &*refused.resource_name), (kind, of));
    }
}

#[tokio::test]
async fn a_topics_settings_are_altered_one_by_one_or_all_at_once() {
    let served = Served::start().await;
    let mut connection = served.connect().await;
    for version in 0..=1 {
        let topic = &*format!("incremental-{version}");
        let of = (TOPIC, topic);
        connection.create(topic, 1, &[("retention.ms", "1000"), ("segment.ms", "5000")]).await;
        let changes = [
            ("retention.ms", SET, Some("2000")),
            ("segment.ms", DELETE, None),
            ("cleanup.policy", APPEND, Some("compact")),
        ];
        assert_eq!(incremental(&mut connection, version, of, &changes, true).await, 0);
        assert_eq!(setting(&mut connection, topic, "retention.ms").await, ("1000".to_owned(), 1), "only checked");
        assert_eq!(incremental(&mut connection, version, of, &changes, false).await, 0);
        assert_eq!(setting(&mut connection, topic, "retention.ms").await, ("2000".to_owned(), 1));
        assert_eq!(setting(&mut connection, topic, "segment.ms").await, ("604800000".to_owned(), 5));
        assert_eq!(setting(&mut connection, topic, "cleanup.policy").await, ("delete,compact".to_owned(), 1));
        assert_eq!(
            incremental(&mut connection, version, of, &[("cleanup.policy", SUBTRACT, Some("delete"))], false).await,
            0
        );
        assert_eq!(setting(&mut connection, topic, "cleanup.policy").await, ("compact".to_owned(), 1));
        // All or nothing: the first would be fine.
        let half = [("retention.ms", SET, Some("3000")), ("segment.ms", SET, Some("x"))];
        assert_eq!(incremental(&mut connection, version, of, &half, false).await, INVALID_CONFIG);
        assert_eq!(setting(&mut connection, topic, "retention.ms").await, ("2000".to_owned(), 1));
        for (change, code) in [
            (("no.such.setting", SET, Some("1")), INVALID_CONFIG),
            (("retention.ms", APPEND, Some("1")), INVALID_CONFIG),
            (("retention.ms", SET, None), INVALID_REQUEST),
            (("retention.ms", 9, Some("1")), INVALID_REQUEST),
        ] {
            assert_eq!(incremental(&mut connection, version, of, &[change], false).await, code, "{change:?}");
        }
        let twice = [("retention.ms", SET, Some("1")), ("retention.ms", DELETE, None)];
        assert_eq!(incremental(&mut connection, version, of, &twice, false).await, INVALID_REQUEST);
    }
    for version in 0..=2 {
        let topic = &*format!("replaced-{version}");
        let of = (TOPIC, topic);
        connection.create(topic, 1, &[("retention.ms", "1000"), ("segment.ms", "5000")]).await;
        let all = [("retention.ms", Some("2000"))];
        assert_eq!(replace(&mut connection, version, of, &all, true).await, 0);
        assert_eq!(setting(&mut connection, topic, "segment.ms").await, ("5000".to_owned(), 1), "only checked");
        assert_eq!(replace(&mut connection, version, of, &all, false).await, 0);
        assert_eq!(setting(&mut connection, topic, "retention.ms").await, ("2000".to_owned(), 1));
        assert_eq!(setting(&mut connection, topic, "segment.ms").await, ("604800000".to_owned(), 5), "it is not named");
        assert_eq!(replace(&mut connection, version, of, &[("retention.ms", Some("x"))], false).await, INVALID_CONFIG);
        assert_eq!(replace(&mut connection, version, of, &[("retention.ms", None)], false).await, INVALID_REQUEST);
    }
    let absent = (TOPIC, "absent");
    let change = [("retention.ms", SET, Some("1"))];
    assert_eq!(incremental(&mut connection, 1, absent, &change, false).await, UNKNOWN_TOPIC_OR_PARTITION);
}

#[tokio::test]
async fn a_brokers_settings_are_described_and_cannot_be_altered() {
    let served = Served::start().await;
    let mut connection = served.connect().await;
    let id = served.broker.handle().id().to_string();
    for version in 1..=4 {
        let all = describe(&mut connection, version, BROKER, &id, &[]).await;
        assert!(all.configs.len() > 40 && all.configs.iter().all(|entry| entry.read_only), "version {version}");
        let find = |name: &str| {
            let entry = all.configs.iter().find(|entry| &*entry.name == name).expect("listed");
            (entry.value.as_deref().unwrap_or_default().to_owned(), entry.config_source)
        };
        assert_eq!(find("node.id"), (id.clone(), 4));
        assert_eq!(find("auto.create.topics.enable"), ("true".to_owned(), 5));
        assert_eq!(find("advertised.listeners"), (format!("PLAINTEXT://{}", served.broker.kafka()), 4));
        assert_eq!(find("message.max.bytes"), ("1048588".to_owned(), 5));
    }
    let of_all = describe(&mut connection, 4, BROKER, "", &[]).await;
    assert_eq!((of_all.error_code, of_all.configs.len()), (0, 0), "nothing is altered for all of them");
    for of in [&*id, ""] {
        let change = [("num.partitions", SET, Some("3"))];
        assert_eq!(incremental(&mut connection, 1, (BROKER, of), &change, false).await, INVALID_REQUEST);
        let all = [("num.partitions", Some("3"))];
        assert_eq!(replace(&mut connection, 2, (BROKER, of), &all, false).await, INVALID_REQUEST);
        assert_eq!(replace(&mut connection, 2, (BROKER, of), &[], false).await, 0, "nothing is asked for");
        let unset = [("leader.replication.throttled.rate", DELETE, None), ("num.partitions", DELETE, None)];
        assert_eq!(incremental(&mut connection, 1, (BROKER, of), &unset, false).await, 0, "nothing of it is set");
    }
}

#[tokio::test]
async fn topics_grow_and_each_is_refused_alone() {
    use kafka::create_partitions_request::{CreatePartitionsAssignment, CreatePartitionsTopic};
    let served = Served::start().await;
    let mut connection = served.connect().await;
    let id = served.broker.handle().id().0.cast_signed();
    for version in 0..=3 {
        let topic = &*format!("t-{version}");
        connection.create(topic, 2, &[]).await;
        let grown = |name_of: &str, count, brokers: Option<&[&[i32]]>| {
            let assignment = |brokers: &&[i32]| {
                let ids = brokers.iter().map(|&id| kafka::BrokerId(id)).collect();
                CreatePartitionsAssignment::default().with_broker_ids(ids)
            };
            CreatePartitionsTopic::default()
                .with_name(name(name_of))
                .with_count(count)
                .with_assignments(brokers.map(|brokers| brokers.iter().map(assignment).collect()))
        };
        let ask = async |connection: &mut Connection, topics: Vec<CreatePartitionsTopic>, validate_only| -> Vec<i16> {
            let request = kafka::CreatePartitionsRequest::default()
                .with_topics(topics)
                .with_timeout_ms(10_000)
                .with_validate_only(validate_only);
            connection.call(version, &request).await.results.iter().map(|grown| grown.error_code).collect()
        };
        let several =
            vec![grown(topic, 3, None), grown("absent", 3, None), grown("twice", 3, None), grown("twice", 4, None)];
        let codes = [0, UNKNOWN_TOPIC_OR_PARTITION, INVALID_REQUEST, INVALID_REQUEST];
        assert_eq!(ask(&mut connection, several.clone(), true).await, codes, "version {version}");
        assert_eq!(partitions(&mut connection, topic).await, 2, "only checked");
        assert_eq!(ask(&mut connection, several, false).await, codes);
        assert_eq!(partitions(&mut connection, topic).await, 3);
        for count in [3, 2, 0, -1, 1_000_000] {
            assert_eq!(ask(&mut connection, vec![grown(topic, count, None)], false).await, [INVALID_PARTITIONS]);
        }
        for wrong in [&[&[id][..]][..], &[&[id], &[7]], &[&[id], &[]], &[&[id], &[id, id]], &[&[id], &[-1]]] {
            let refused = ask(&mut connection, vec![grown(topic, 5, Some(wrong))], true).await;
            assert_eq!(refused, [INVALID_REPLICA_ASSIGNMENT], "{wrong:?}");
        }
        assert_eq!(ask(&mut connection, vec![grown(topic, 5, Some(&[&[id], &[id]]))], false).await, [0]);
        assert_eq!(partitions(&mut connection, topic).await, 5);
        let landed = connection.produce(topic, 4, batch(&[1], b"v")).await;
        assert_eq!(landed.error_code, 0, "it is led");
    }
}

async fn partitions(connection: &mut Connection, topic: &str) -> usize {
    let asked = kafka::metadata_request::MetadataRequestTopic::default().with_name(Some(name(topic)));
    let answer = connection.call(12, &kafka::MetadataRequest::default().with_topics(Some(vec![asked]))).await;
    answer.topics[0].partitions.len()
}

#[tokio::test]
async fn records_are_deleted_up_to_an_offset_or_all_of_them() {
    use kafka::delete_records_request::{DeleteRecordsPartition, DeleteRecordsTopic};
    let served = Served::start().await;
    let mut connection = served.connect().await;
    for version in 0..=2 {
        let topic = &*format!("t-{version}");
        connection.create(topic, 2, &[]).await;
        for partition in 0..2 {
            connection.produce(topic, partition, batch(&[1; 10], b"v")).await;
        }
        let ask = async |connection: &mut Connection, topic: &str, cuts: &[(i32, i64)]| -> Vec<(i64, i16)> {
            let cut = |&(index, offset): &(i32, i64)| {
                DeleteRecordsPartition::default().with_partition_index(index).with_offset(offset)
            };
            let topic =
                DeleteRecordsTopic::default().with_name(name(topic)).with_partitions(cuts.iter().map(cut).collect());
            // Also of a client that gives no time.
            let request = kafka::DeleteRecordsRequest::default().with_topics(vec![topic]);
            let request = request.with_timeout_ms(if version == 0 { 0 } else { 10_000 });
            let answer = connection.call(version, &request).await;
            answer.topics[0].partitions.iter().map(|cut| (cut.low_watermark, cut.error_code)).collect()
        };
        let cut = ask(&mut connection, topic, &[(0, 4), (1, -1), (2, 1), (-1, 1)]).await;
        let unknown = (-1, UNKNOWN_TOPIC_OR_PARTITION);
        assert_eq!(cut, [(4, 0), (10, 0), unknown, unknown], "version {version}");
        assert_eq!(ask(&mut connection, topic, &[(0, 3)]).await, [(4, 0)], "it never goes back");
        for offset in [11, -2] {
            assert_eq!(ask(&mut connection, topic, &[(0, offset)]).await, [(-1, OFFSET_OUT_OF_RANGE)]);
        }
        assert_eq!(connection.fetch(topic, 0, 3).await.error_code, OFFSET_OUT_OF_RANGE);
        let left = connection.fetch(topic, 0, 4).await;
        assert_eq!((left.error_code, left.log_start_offset, left.high_watermark), (0, 4, 10));
        assert_eq!(ask(&mut connection, "absent", &[(0, 1)]).await, [unknown]);
        let compacted = &*format!("compacted-{version}");
        connection.create(compacted, 1, &[("cleanup.policy", "compact")]).await;
        assert_eq!(ask(&mut connection, compacted, &[(0, 0)]).await, [(-1, POLICY_VIOLATION)]);
    }
}
