//! Settings are read as Kafka reads them, and every refusal says what would be accepted.

use super::*;

fn overrides(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn parse(name: &str, value: &str) -> Result<TopicConfig, ConfigError> {
    TopicConfig::from_overrides(&overrides(&[(name, value)]))
}

#[test]
fn table_and_defaults_agree() {
    let mut config = TopicConfig { min_insync_replicas: Some(MIN_ISR_DEFAULT), ..TopicConfig::default() };
    let expected = config.clone();
    for setting in SETTINGS {
        setting.apply(&mut config, setting.default).expect("a default is accepted");
    }
    assert_eq!(config, expected);
    assert!(SETTINGS.is_sorted_by(|a, b| a.name < b.name));
}

#[test]
fn every_setting_refuses_nonsense_by_name() {
    for setting in SETTINGS {
        for bad in ["nonsense", "-200000", "9223372036854775808", "1.5.2"] {
            let Err(ConfigError::BadValue { name, value, accepted }) = parse(setting.name, bad) else {
                panic!("{} accepts {bad}", setting.name);
            };
            assert_eq!((name, value.as_str(), accepted), (setting.name, bad, setting.accepted));
        }
    }
}

#[test]
fn bounds_are_kafkas() {
    let check = |name: &str, good: &[&str], bad: &[&str]| {
        for value in good {
            assert!(parse(name, value).is_ok(), "{name}={value}");
        }
        for value in bad {
            assert!(parse(name, value).is_err(), "{name}={value}");
        }
    };
    check(
        "cleanup.policy",
        &["delete", "compact", "compact,delete", " delete , compact ", ""],
        &["remove", "delete;compact"],
    );
    check("compression.type", &["producer", "zstd"], &["none", "ZSTD", ""]);
    check("compression.gzip.level", &["-1", "1", "9"], &["0", "10", "-2"]);
    check("delete.retention.ms", &["0", "9223372036854775807"], &["-1", ""]);
    check("flush.messages", &["1"], &["0"]);
    check("flush.ms", &["0"], &["-1"]);
    check("follower.replication.throttled.replicas", &["", "*", "0:1,2:3"], &["a", "0", "0:b", "*,*"]);
    check("max.compaction.lag.ms", &["1"], &["0"]);
    check("max.message.bytes", &["0", "67108864"], &["-1", "67108865"]);
    check("message.timestamp.type", &["CreateTime", "LogAppendTime"], &["createtime", ""]);
    check("min.cleanable.dirty.ratio", &["0", "0.5", "1"], &["-0.1", "1.1", "NaN", "inf"]);
    check("min.insync.replicas", &["1", " 3 "], &["0", "-1", "x"]);
    check("preallocate", &["true", "FALSE"], &["yes", "1"]);
    check("retention.bytes", &["-1", "0"], &["-2"]);
    check("retention.ms", &["-1", "0", "9223372036854775807"], &["-2", "1d"]);
    check("segment.bytes", &["14", "2147483647"], &["13", "2147483648"]);
    check("segment.ms", &["1"], &["0"]);
    check("unclean.leader.election.enable", &["True"], &[""]);
}

#[test]
fn a_refusal_names_key_value_and_what_is_accepted() {
    let error = parse("retention.ms", "1d").expect_err("not a number");
    assert_eq!(
        error.to_string(),
        "topic setting `retention.ms` cannot be `1d`: it takes a number of milliseconds, or -1 for no limit"
    );
    assert_eq!(parse("retention", "1"), Err(ConfigError::Unknown("retention".to_owned())));
    let error = parse("remote.storage.enable", "false").expect_err("always on");
    assert!(error.to_string().contains("closed segments always live in object storage"), "{error}");
}

#[test]
fn values_arrive_typed() {
    let config = TopicConfig::from_overrides(&overrides(&[
        ("cleanup.policy", "compact,delete"),
        ("retention.ms", "-1"),
        ("retention.bytes", "1000"),
        ("local.retention.bytes", "100"),
        ("min.insync.replicas", "3"),
        ("message.timestamp.type", "LogAppendTime"),
        ("segment.bytes", "1048576"),
        ("segment.ms", "60000"),
    ]))
    .expect("valid");
    assert_eq!(config.cleanup_policy, CleanupPolicy { delete: true, compact: true });
    assert_eq!((config.retention, config.retention_bytes), (None, Some(1000)));
    assert_eq!(config.local_retention_bytes, LocalRetention::Limit(100));
    assert_eq!(config.timestamp_type, TimestampType::LogAppendTime);
    assert_eq!((config.upload_bytes(), config.upload_age()), (1 << 20, Duration::from_secs(60)));
    assert_eq!(config.min_isr(3), 3);
    let default = TopicConfig::default();
    assert_eq!((default.upload_bytes(), default.upload_age()), (UPLOAD_BYTES_MAX, UPLOAD_AGE_MAX));
    assert_eq!([default.min_isr(1), default.min_isr(2), default.min_isr(3)], [1, 2, 2]);
}

#[test]
fn settings_may_not_contradict_each_other() {
    let check = |pairs: &[(&str, &str)], culprit: Option<&str>| {
        let named = match TopicConfig::from_overrides(&overrides(pairs)) {
            Ok(_) => None,
            Err(ConfigError::BadValue { name, .. }) => Some(name),
            Err(other) => panic!("{other}"),
        };
        assert_eq!(named, culprit, "{pairs:?}");
    };
    check(&[("min.compaction.lag.ms", "2"), ("max.compaction.lag.ms", "1")], Some("min.compaction.lag.ms"));
    check(&[("min.compaction.lag.ms", "1"), ("max.compaction.lag.ms", "1")], None);
    check(&[("local.retention.ms", "2"), ("retention.ms", "1")], Some("local.retention.ms"));
    check(&[("local.retention.ms", "-1"), ("retention.ms", "1")], Some("local.retention.ms"));
    check(&[("local.retention.ms", "-1"), ("retention.ms", "-1")], None);
    check(&[("local.retention.bytes", "2"), ("retention.bytes", "1")], Some("local.retention.bytes"));
    check(&[("local.retention.bytes", "2")], None);
}

#[test]
fn list_operations_add_and_remove_items() {
    let policy = |before: &[(&str, &str)], alteration: Alteration| {
        alter(&overrides(before), &[("cleanup.policy".to_owned(), alteration)])
            .map(|altered| altered.get("cleanup.policy").cloned())
    };
    let some = |value: &str| Ok(Some(value.to_owned()));
    assert_eq!(policy(&[], Alteration::Append("compact".to_owned())), some("delete,compact"));
    assert_eq!(policy(&[], Alteration::Append("delete".to_owned())), some("delete"));
    let both = [("cleanup.policy", "delete,compact")];
    assert_eq!(policy(&both, Alteration::Subtract("delete".to_owned())), some("compact"));
    assert_eq!(policy(&both, Alteration::Delete), Ok(None));
    assert!(matches!(policy(&both, Alteration::Append("x".to_owned())), Err(ConfigError::BadValue { .. })));
    let number = alter(&BTreeMap::new(), &[("retention.ms".to_owned(), Alteration::Append("1".to_owned()))]);
    assert_eq!(number, Err(ConfigError::NotAList("retention.ms")));
}

#[test]
fn description_tells_every_setting_and_its_source() {
    let described = describe(&overrides(&[("retention.ms", "1000")]), 1);
    assert_eq!(described.len(), SETTINGS.len());
    let find = |name: &str| described.iter().find(|entry| entry.setting.name == name).expect("listed");
    let retention = find("retention.ms");
    assert_eq!((retention.value.as_str(), retention.source), ("1000", ConfigSource::Topic));
    assert_eq!((retention.setting.default, retention.setting.kind), ("604800000", SettingKind::Long));
    let others = described.iter().filter(|entry| entry.setting.name != "retention.ms");
    assert!(
        others.clone().all(|entry| entry.source == ConfigSource::Default && !entry.setting.documentation.is_empty())
    );
    assert_eq!(find("min.insync.replicas").value, "1");
}
