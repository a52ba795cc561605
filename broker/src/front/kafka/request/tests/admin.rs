//! Requests of admin clients, against an independent encoder in every version advertised.

use super::*;
use theirs::{
    alter_configs_request, alter_partition_reassignments_request, create_partitions_request, delete_records_request,
    describe_configs_request, describe_log_dirs_request, elect_leaders_request, incremental_alter_configs_request,
    list_partition_reassignments_request,
};

#[test]
fn describe_configs_is_read() {
    let body = |version: i16| {
        let resource = |name, keys: Option<&[&'static str]>| {
            describe_configs_request::DescribeConfigsResource::default()
                .with_resource_type(2)
                .with_resource_name(text(name))
                .with_configuration_keys(keys.map(|keys| keys.iter().copied().map(text).collect()))
        };
        let resources = vec![resource("all", None), resource("some", Some(&["a", "b"]))];
        let request = theirs::DescribeConfigsRequest::default().with_resources(resources).with_include_synonyms(true);
        if version >= 3 { request.with_include_documentation(true) } else { request }
    };
    check(Api::DescribeConfigs, body, |version, body| {
        let Body::DescribeConfigs(request) = body else { panic!("{body:?}") };
        let [all, some] = &request.resources[..] else { panic!("{request:?}") };
        assert_eq!((all.kind, all.name.as_str(), &all.keys), (2, "all", &None), "version {version}");
        assert_eq!((some.name.as_str(), some.keys.as_deref()), ("some", Some(&["a".to_owned(), "b".to_owned()][..])));
        assert_eq!((request.include_synonyms, request.include_documentation), (true, version >= 3));
    });
}

#[test]
fn alter_configs_is_read() {
    let body = |_| {
        let config = |name, value: Option<_>| {
            alter_configs_request::AlterableConfig::default().with_name(text(name)).with_value(value.map(text))
        };
        let resource = alter_configs_request::AlterConfigsResource::default()
            .with_resource_type(4)
            .with_resource_name(text("r"))
            .with_configs(vec![config("a", Some("1")), config("b", None)]);
        theirs::AlterConfigsRequest::default().with_resources(vec![resource]).with_validate_only(true)
    };
    check(Api::AlterConfigs, body, |_, body| {
        let Body::AlterConfigs(request) = body else { panic!("{body:?}") };
        let resource = &request.resources[0];
        assert_eq!((resource.kind, resource.name.as_str(), request.validate_only), (4, "r", true));
        let configs = resource.configs.iter().map(|config| (config.name.as_str(), config.value.as_deref()));
        assert!(configs.eq([("a", Some("1")), ("b", None)]));
    });
}

#[test]
fn incremental_alter_configs_is_read() {
    let body = |_| {
        let config = |name, operation, value: Option<_>| {
            incremental_alter_configs_request::AlterableConfig::default()
                .with_name(text(name))
                .with_config_operation(operation)
                .with_value(value.map(text))
        };
        let resource = incremental_alter_configs_request::AlterConfigsResource::default()
            .with_resource_type(2)
            .with_resource_name(text("r"))
            .with_configs(vec![config("a", 2, Some("1")), config("b", 1, None)]);
        theirs::IncrementalAlterConfigsRequest::default().with_resources(vec![resource]).with_validate_only(true)
    };
    check(Api::IncrementalAlterConfigs, body, |_, body| {
        let Body::IncrementalAlterConfigs(request) = body else { panic!("{body:?}") };
        let resource = &request.resources[0];
        assert_eq!((resource.kind, resource.name.as_str(), request.validate_only), (2, "r", true));
        let changes =
            resource.configs.iter().map(|change| (change.name.as_str(), change.operation, change.value.as_deref()));
        assert!(changes.eq([("a", 2, Some("1")), ("b", 1, None)]));
    });
}

#[test]
fn create_partitions_is_read() {
    let body = |_| {
        let grown = |name, assignments| {
            create_partitions_request::CreatePartitionsTopic::default()
                .with_name(topic(name))
                .with_count(3)
                .with_assignments(assignments)
        };
        let assignment =
            create_partitions_request::CreatePartitionsAssignment::default().with_broker_ids(vec![1.into(), 2.into()]);
        let topics = vec![grown("chosen", Some(vec![assignment])), grown("placed", None)];
        theirs::CreatePartitionsRequest::default().with_topics(topics).with_timeout_ms(9).with_validate_only(true)
    };
    check(Api::CreatePartitions, body, |_, body| {
        let Body::CreatePartitions(request) = body else { panic!("{body:?}") };
        let [chosen, placed] = &request.topics[..] else { panic!("{request:?}") };
        assert_eq!((chosen.name.as_str(), chosen.count), ("chosen", 3));
        let assignments = chosen.assignments.as_deref().expect("they are there");
        assert_eq!((assignments.len(), &assignments[0].brokers[..]), (1, &[1, 2][..]));
        assert!(placed.name == "placed" && placed.assignments.is_none());
        assert_eq!((request.timeout_ms, request.validate_only), (9, true));
    });
}

#[test]
fn delete_records_is_read() {
    let body = |_| {
        let cut = |index, offset| {
            delete_records_request::DeleteRecordsPartition::default().with_partition_index(index).with_offset(offset)
        };
        let topic = delete_records_request::DeleteRecordsTopic::default()
            .with_name(topic("t"))
            .with_partitions(vec![cut(1, 77), cut(2, -1)]);
        theirs::DeleteRecordsRequest::default().with_topics(vec![topic]).with_timeout_ms(9)
    };
    check(Api::DeleteRecords, body, |_, body| {
        let Body::DeleteRecords(request) = body else { panic!("{body:?}") };
        assert_eq!((request.topics[0].name.as_str(), request.timeout_ms), ("t", 9));
        let cuts = request.topics[0].partitions.iter().map(|cut| (cut.index, cut.offset));
        assert!(cuts.eq([(1, 77), (2, -1)]));
    });
}

#[test]
fn elect_leaders_is_read() {
    for all in [false, true] {
        let body = |version: i16| {
            let asked =
                elect_leaders_request::TopicPartitions::default().with_topic(topic("t")).with_partitions(vec![1, 2]);
            let request = theirs::ElectLeadersRequest::default()
                .with_topic_partitions((!all).then(|| vec![asked]))
                .with_timeout_ms(9);
            if version >= 1 { request.with_election_type(1) } else { request }
        };
        check(Api::ElectLeaders, body, |version, body| {
            let Body::ElectLeaders(request) = body else { panic!("{body:?}") };
            assert_eq!((request.election_type, request.timeout_ms), (i8::from(version >= 1), 9), "version {version}");
            let asked = request.topics.map(|topics| (topics[0].name.clone(), topics[0].partitions.clone()));
            assert_eq!(asked, (!all).then(|| ("t".to_owned(), vec![1, 2])));
        });
    }
}

#[test]
fn alter_partition_reassignments_is_read() {
    let body = |version: i16| {
        let moved = |index, replicas: Option<&[i32]>| {
            alter_partition_reassignments_request::ReassignablePartition::default()
                .with_partition_index(index)
                .with_replicas(replicas.map(|ids| ids.iter().map(|&id| id.into()).collect()))
        };
        let topic = alter_partition_reassignments_request::ReassignableTopic::default()
            .with_name(topic("t"))
            .with_partitions(vec![moved(1, Some(&[3, 4])), moved(2, None)]);
        let request = theirs::AlterPartitionReassignmentsRequest::default().with_topics(vec![topic]).with_timeout_ms(9);
        if version >= 1 { request.with_allow_replication_factor_change(false) } else { request }
    };
    check(Api::AlterPartitionReassignments, body, |version, body| {
        let Body::AlterPartitionReassignments(request) = body else { panic!("{body:?}") };
        assert_eq!((request.allow_replication_factor_change, request.timeout_ms), (version == 0, 9));
        let moves = request.topics[0].partitions.iter().map(|moved| (moved.index, moved.replicas.as_deref()));
        assert!(request.topics[0].name == "t" && moves.eq([(1, Some(&[3, 4][..])), (2, None)]));
    });
}

#[test]
fn list_partition_reassignments_is_read() {
    for all in [false, true] {
        let body = |_| {
            let topic = list_partition_reassignments_request::ListPartitionReassignmentsTopics::default()
                .with_name(topic("t"))
                .with_partition_indexes(vec![1, 2]);
            theirs::ListPartitionReassignmentsRequest::default()
                .with_topics((!all).then(|| vec![topic]))
                .with_timeout_ms(9)
        };
        check(Api::ListPartitionReassignments, body, |_, body| {
            let Body::ListPartitionReassignments(request) = body else { panic!("{body:?}") };
            let asked = request.topics.map(|topics| (topics[0].name.clone(), topics[0].partitions.clone()));
            assert_eq!((asked, request.timeout_ms), ((!all).then(|| ("t".to_owned(), vec![1, 2])), 9));
        });
    }
}

#[test]
fn describe_log_dirs_is_read() {
    for all in [false, true] {
        let body = |_| {
            let topic = describe_log_dirs_request::DescribableLogDirTopic::default()
                .with_topic(topic("t"))
                .with_partitions(vec![1, 2]);
            theirs::DescribeLogDirsRequest::default().with_topics((!all).then(|| vec![topic]))
        };
        let seen = |_, body: Body| {
            let Body::DescribeLogDirs(request) = body else { panic!("{body:?}") };
            let asked = request.topics.map(|topics| (topics[0].name.clone(), topics[0].partitions.clone()));
            assert_eq!(asked, (!all).then(|| ("t".to_owned(), vec![1, 2])));
        };
        check(Api::DescribeLogDirs, body, seen);
        // Version 5 has the layout of 4.
        let mut bytes = frame(Api::DescribeLogDirs, 4, &body(4)).to_vec();
        bytes[3] = 5;
        seen(5, decode_request(bytes.into()).expect("well formed").body);
    }
}

#[test]
fn list_config_resources_is_read() {
    let body = |version: i16| {
        let request = theirs::ListConfigResourcesRequest::default();
        if version >= 1 { request.with_resource_types(vec![32, 2]) } else { request }
    };
    check(Api::ListConfigResources, body, |version, body| {
        let Body::ListConfigResources(request) = body else { panic!("{body:?}") };
        assert_eq!(request.kinds, if version >= 1 { vec![32, 2] } else { vec![] });
    });
}
