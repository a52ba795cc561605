//! Answers to admin clients, as an independent decoder reads them in every version advertised.

use super::super::super::configs::answers::*;
use super::super::super::elections::{ElectLeadersResponse, ElectedPartition, ElectedTopic};
use super::super::super::log_dirs::{DescribeLogDirsResponse, DescribedLogDir, DescribedLogDirTopic, DescribedTail};
use super::super::super::partitions::{
    CreatePartitionsResponse, CutPartitionResult, CutTopicResult, DeleteRecordsResponse, GrownTopicResult,
};
use super::super::super::reassignments::{
    AlterPartitionReassignmentsResponse, ListPartitionReassignmentsResponse, MovedPartitionResult, MovedTopicResult,
    OngoingMove, OngoingTopic,
};
use super::*;

#[test]
fn described_configs_are_read() {
    let synonym = |name: &str, value: Option<&str>, source| ConfigSynonym {
        name: name.to_owned(),
        value: value.map(str::to_owned),
        source,
    };
    let entry = ConfigEntry {
        name: "a".to_owned(),
        value: some("1"),
        read_only: true,
        source: 4,
        is_sensitive: false,
        synonyms: vec![synonym("a", Some("1"), 4), synonym("b", None, 5)],
        kind: 3,
        documentation: some("why"),
    };
    let unset = ConfigEntry { name: "unset".to_owned(), ..Default::default() };
    let good = DescribedResource { kind: 2, name: "t".to_owned(), configs: vec![entry, unset], ..Default::default() };
    let bad = DescribedResource {
        error_code: 3,
        error_message: some("no"),
        kind: 2,
        name: "u".to_owned(),
        ..Default::default()
    };
    let answer = DescribeConfigsResponse { throttle_time_ms: 5, results: vec![good, bad] };
    check(Api::DescribeConfigs, &answer, |version, read: theirs::DescribeConfigsResponse| {
        let [good, bad] = &read.results[..] else { panic!("{read:?}") };
        assert_eq!((read.throttle_time_ms, good.error_code, good.resource_type), (5, 0, 2), "version {version}");
        assert_eq!((good.resource_name.as_str(), good.error_message.as_deref()), ("t", None));
        let entry = &good.configs[0];
        assert_eq!((entry.name.as_str(), entry.value.as_deref(), entry.read_only), ("a", Some("1"), true));
        assert_eq!((entry.config_source, entry.is_sensitive), (4, false));
        let synonyms: Vec<_> = entry
            .synonyms
            .iter()
            .map(|synonym| (synonym.name.as_str(), synonym.value.as_deref(), synonym.source))
            .collect();
        assert_eq!(synonyms, [("a", Some("1"), 4), ("b", None, 5)]);
        let told = (entry.config_type, entry.documentation.as_deref().unwrap_or_default());
        assert_eq!(told, if version >= 3 { (3, "why") } else { (0, "") });
        assert_eq!((good.configs[1].value.as_deref(), good.configs[1].config_source), (None, 5));
        assert_eq!((bad.error_code, bad.error_message.as_deref(), bad.configs.len()), (3, Some("no"), 0));
    });
}

#[test]
fn altered_configs_are_read() {
    let altered = |error_code, error_message, name: &str| AlteredResource {
        error_code,
        error_message,
        kind: 2,
        name: name.to_owned(),
    };
    let resources = vec![altered(0, None, "t"), altered(40, some("no"), "u")];
    let answer = AlterConfigsResponse { throttle_time_ms: 5, resources };
    let expected = [(0, None, 2, "t"), (40, Some("no"), 2, "u")];
    check(Api::AlterConfigs, &answer, |version, read: theirs::AlterConfigsResponse| {
        let each = read.responses.iter().map(|altered| {
            (altered.error_code, altered.error_message.as_deref(), altered.resource_type, &*altered.resource_name)
        });
        assert!(each.eq(expected) && read.throttle_time_ms == 5, "version {version}");
    });
    check(Api::IncrementalAlterConfigs, &answer, |version, read: theirs::IncrementalAlterConfigsResponse| {
        let each = read.responses.iter().map(|altered| {
            (altered.error_code, altered.error_message.as_deref(), altered.resource_type, &*altered.resource_name)
        });
        assert!(each.eq(expected) && read.throttle_time_ms == 5, "version {version}");
    });
}

#[test]
fn created_partitions_are_read() {
    let grown =
        |name: &str, error_code, error_message| GrownTopicResult { name: name.to_owned(), error_code, error_message };
    let results = vec![grown("t", 0, None), grown("u", 37, some("no"))];
    let answer = CreatePartitionsResponse { throttle_time_ms: 5, results };
    check(Api::CreatePartitions, &answer, |version, read: theirs::CreatePartitionsResponse| {
        let each = read.results.iter().map(|grown| (&**grown.name, grown.error_code, grown.error_message.as_deref()));
        assert!(each.eq([("t", 0, None), ("u", 37, Some("no"))]) && read.throttle_time_ms == 5, "version {version}");
    });
}

#[test]
fn deleted_records_are_read() {
    let partitions = vec![
        CutPartitionResult { index: 1, low_watermark: 77, error_code: 0 },
        CutPartitionResult { index: 2, error_code: 1, ..Default::default() },
    ];
    let topics = vec![CutTopicResult { name: "t".to_owned(), partitions }];
    let answer = DeleteRecordsResponse { throttle_time_ms: 5, topics };
    check(Api::DeleteRecords, &answer, |version, read: theirs::DeleteRecordsResponse| {
        let cuts = read.topics[0].partitions.iter().map(|cut| (cut.partition_index, cut.low_watermark, cut.error_code));
        assert!(cuts.eq([(1, 77, 0), (2, -1, 1)]), "version {version}");
        assert_eq!((read.throttle_time_ms, read.topics[0].name.as_str()), (5, "t"));
    });
}

#[test]
fn elected_leaders_are_read() {
    let partition = |index, error_code, error_message| ElectedPartition { index, error_code, error_message };
    let partitions = vec![partition(1, 0, None), partition(2, 84, some("no"))];
    let topics = vec![ElectedTopic { name: "t".to_owned(), partitions }];
    let answer = ElectLeadersResponse { throttle_time_ms: 5, error_code: 42, topics };
    check(Api::ElectLeaders, &answer, |version, read: theirs::ElectLeadersResponse| {
        assert_eq!((read.throttle_time_ms, read.error_code), (5, if version >= 1 { 42 } else { 0 }));
        let topic = &read.replica_election_results[0];
        let each = topic
            .partition_result
            .iter()
            .map(|elected| (elected.partition_id, elected.error_code, elected.error_message.as_deref()));
        assert!(&**topic.topic == "t" && each.eq([(1, 0, None), (2, 84, Some("no"))]), "version {version}");
    });
}

#[test]
fn altered_reassignments_are_read() {
    let partition = |index, error_code, error_message| MovedPartitionResult { index, error_code, error_message };
    let partitions = vec![partition(1, 0, None), partition(2, 85, some("no"))];
    let topics = vec![MovedTopicResult { name: "t".to_owned(), partitions }];
    let answer = AlterPartitionReassignmentsResponse {
        throttle_time_ms: 5,
        allow_replication_factor_change: false,
        error_code: 42,
        error_message: some("why"),
        topics,
    };
    check(Api::AlterPartitionReassignments, &answer, |version, read: theirs::AlterPartitionReassignmentsResponse| {
        assert_eq!((read.throttle_time_ms, read.error_code, read.error_message.as_deref()), (5, 42, Some("why")));
        assert_eq!(read.allow_replication_factor_change, version == 0);
        let each = read.responses[0]
            .partitions
            .iter()
            .map(|moved| (moved.partition_index, moved.error_code, moved.error_message.as_deref()));
        assert!(&**read.responses[0].name == "t" && each.eq([(1, 0, None), (2, 85, Some("no"))]));
    });
}

#[test]
fn listed_reassignments_are_read() {
    let partitions = vec![OngoingMove { index: 1, replicas: vec![3, 1, 2], adding: vec![3], removing: vec![2] }];
    let topics = vec![OngoingTopic { name: "t".to_owned(), partitions }];
    let answer = ListPartitionReassignmentsResponse { throttle_time_ms: 5, topics, ..Default::default() };
    check(Api::ListPartitionReassignments, &answer, |_, read: theirs::ListPartitionReassignmentsResponse| {
        let ids = |brokers: &[theirs::BrokerId]| brokers.iter().map(|broker| broker.0).collect::<Vec<_>>();
        let moved = &read.topics[0].partitions[0];
        assert_eq!((read.throttle_time_ms, read.error_code, read.error_message.as_deref()), (5, 0, None));
        assert_eq!((&**read.topics[0].name, moved.partition_index, ids(&moved.replicas)), ("t", 1, vec![3, 1, 2]));
        assert_eq!((ids(&moved.adding_replicas), ids(&moved.removing_replicas)), (vec![3], vec![2]));
    });
}

#[test]
fn described_log_dirs_are_read() {
    let tail = DescribedTail { index: 1, size: 77, offset_lag: 3, is_future: false };
    let topics = vec![DescribedLogDirTopic { name: "t".to_owned(), partitions: vec![tail] }];
    let dir =
        DescribedLogDir { path: "/data".to_owned(), topics, total_bytes: 100, usable_bytes: 40, ..Default::default() };
    let answer = DescribeLogDirsResponse { throttle_time_ms: 5, error_code: 0, dirs: vec![dir] };
    check(Api::DescribeLogDirs, &answer, |version, read: theirs::DescribeLogDirsResponse| {
        let [dir] = &read.results[..] else { panic!("{read:?}") };
        assert_eq!((read.throttle_time_ms, read.error_code, dir.error_code, &*dir.log_dir), (5, 0, 0, "/data"));
        let bytes = (dir.total_bytes, dir.usable_bytes);
        assert_eq!(bytes, if version >= 4 { (100, 40) } else { (-1, -1) });
        let tail = &dir.topics[0].partitions[0];
        assert_eq!((&**dir.topics[0].name, tail.partition_index, tail.is_future_key), ("t", 1, false));
        assert_eq!((tail.partition_size, tail.offset_lag), (77, 3), "version {version}");
    });
    // Version 5 says in one more byte whether the folder takes no more replicas: never, here. Then there are no tags.
    let (older, newer) = (sealed(Api::DescribeLogDirs, 4, &answer), sealed(Api::DescribeLogDirs, 5, &answer));
    assert_eq!(newer[4..], [&older[4..older.len() - 2], &[0, 0, 0]].concat());
}

#[test]
fn listed_config_resources_are_read() {
    let resource = |name: &str, kind| ConfigResource { name: name.to_owned(), kind };
    let resources = vec![resource("g", 32), resource("t", 2)];
    let answer = ListConfigResourcesResponse { throttle_time_ms: 5, error_code: 35, resources };
    check(Api::ListConfigResources, &answer, |version, read: theirs::ListConfigResourcesResponse| {
        let each = read.config_resources.iter().map(|resource| (&*resource.resource_name, resource.resource_type));
        let expected = if version >= 1 { [("g", 32), ("t", 2)] } else { [("g", 16), ("t", 16)] };
        assert!(each.eq(expected), "version {version}: {read:?}");
        assert_eq!((read.throttle_time_ms, read.error_code), (5, 35));
    });
}
