//! Answers to admin clients, as an independent decoder reads them in every version advertised.

use super::super::super::configs::answers::*;
use super::super::super::partitions::{
    CreatePartitionsResponse, CutPartitionResult, CutTopicResult, DeleteRecordsResponse, GrownTopicResult,
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
    let good =
        DescribedResource { kind: 2, name: "t".to_owned(), configs: vec![entry, unset], ..Default::default() };
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
        let told = (entry.config_type, entry.documentation.as_deref());
        assert_eq!(told, if version >= 3 { (3, Some("why")) } else { (0, None) });
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
        let cuts =
            read.topics[0].partitions.iter().map(|cut| (cut.partition_index, cut.low_watermark, cut.error_code));
        assert!(cuts.eq([(1, 77, 0), (2, -1, 1)]), "version {version}");
        assert_eq!((read.throttle_time_ms, read.topics[0].name.as_str()), (5, "t"));
    });
}
