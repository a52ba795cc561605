//! DescribeConfigs: every setting with its value, where that comes from, and what it does.

use super::super::throttle::throttle_ms;
use super::super::wire::{requests, responses};
use super::Resource;
use crate::Broker;
use crate::api::{ApiError, BrokerSetting};
use crate::group_settings::SetOnGroup;
use millpond_core::topic_config::{ConfigSource, Described, SettingKind};
use std::collections::BTreeSet;

/// Kafka's sources of a value.
const SET_ON_TOPIC: i8 = 1;
const SET_AT_START: i8 = 4;
const DEFAULT: i8 = 5;
const SET_ON_GROUP: i8 = 8;

requests! {
    /// Of what, and how much.
    DescribeConfigsRequest {
        resources: Vec<DescribedBy> => ..,
        include_synonyms: bool => 1..,
        include_documentation: bool => 3..,
    }
    /// One resource, with the settings asked for; all, if that is null or empty.
    DescribedBy {
        kind: i8 => ..,
        name: String => ..,
        keys: Option<Vec<String>> => ..,
    }
}

responses! {
    /// The settings.
    DescribeConfigsResponse {
        throttle_time_ms: i32 => ..,
        results: Vec<DescribedResource> => ..,
    }
    /// Those of one resource.
    DescribedResource {
        error_code: i16 => ..,
        error_message: Option<String> => ..,
        kind: i8 => ..,
        name: String => ..,
        configs: Vec<ConfigEntry> => ..,
    }
    /// One setting.
    ConfigEntry {
        name: String => ..,
        value: Option<String> => ..,
        read_only: bool => ..,
        source: i8 = DEFAULT => 1..,
        is_sensitive: bool => ..,
        synonyms: Vec<ConfigSynonym> => 1..,
        kind: i8 => 3..,
        documentation: Option<String> => 3..,
    }
    /// A value that holds, or would hold if those before it were not set.
    ConfigSynonym {
        name: String => 1..,
        value: Option<String> => 1..,
        source: i8 => 1..,
    }
}

/// Describes each resource once, however often it is named: an answer is no larger than what there is.
pub(in crate::front::kafka) fn describe(broker: &Broker, request: DescribeConfigsRequest) -> DescribeConfigsResponse {
    let DescribeConfigsRequest { resources, include_synonyms, include_documentation } = request;
    let mut seen = BTreeSet::new();
    let mut errors = Vec::new();
    let mut results = Vec::new();
    for DescribedBy { kind, name, keys } in resources {
        if !seen.insert((kind, name.clone())) {
            continue;
        }
        let keys: BTreeSet<String> = keys.into_iter().flatten().collect();
        results.push(match settings(broker, kind, &name) {
            Ok(mut configs) => {
                configs.retain(|config| keys.is_empty() || keys.contains(&config.name));
                for config in &mut configs {
                    if !include_synonyms {
                        config.synonyms.clear();
                    }
                    if !include_documentation {
                        config.documentation = None;
                    }
                }
                DescribedResource { kind, name, configs, ..Default::default() }
            }
            Err(error) => {
                let (error_code, error_message) = (error.code.kafka(), Some(error.message.clone()));
                errors.push(error);
                DescribedResource { error_code, error_message, kind, name, ..Default::default() }
            }
        });
    }
    DescribeConfigsResponse { throttle_time_ms: throttle_ms(errors.iter()), results }
}

fn settings(broker: &Broker, kind: i8, name: &str) -> Result<Vec<ConfigEntry>, ApiError> {
    Ok(match Resource::named(broker, kind, name)? {
        Resource::Topic(topic) => broker.topic_settings(&topic)?.into_iter().map(of_topic).collect(),
        Resource::ThisBroker => broker.settings().into_iter().map(of_broker).collect(),
        // What is altered for all of them: nothing is.
        Resource::AllBrokers | Resource::ClientMetrics => Vec::new(),
        Resource::Group(group) => broker.group_settings(&group)?.into_iter().map(of_group).collect(),
    })
}

fn of_topic(described: Described) -> ConfigEntry {
    let Described { setting, value, source } = described;
    let synonym = |name: &str, value: &str, source| ConfigSynonym {
        name: name.to_owned(),
        value: Some(value.to_owned()),
        source,
    };
    let own = (source == ConfigSource::Topic).then(|| synonym(setting.name, &value, SET_ON_TOPIC));
    // Where nothing is set on the topic, what holds may depend on its replicas.
    let fallback = if own.is_some() { setting.default } else { &value };
    let of_brokers = setting.of_brokers.map(|name| synonym(name, fallback, DEFAULT));
    ConfigEntry {
        name: setting.name.to_owned(),
        source: if own.is_some() { SET_ON_TOPIC } else { DEFAULT },
        synonyms: own.into_iter().chain(of_brokers).collect(),
        value: Some(value),
        kind: kind(setting.kind),
        documentation: Some(setting.documentation.to_owned()),
        ..Default::default()
    }
}

fn of_group(of: SetOnGroup) -> ConfigEntry {
    let SetOnGroup { setting, set, of_broker, default } = of;
    let synonym = |name: &str, value: &str, source| ConfigSynonym {
        name: name.to_owned(),
        value: Some(value.to_owned()),
        source,
    };
    let own = set.as_deref().map(|value| synonym(setting.name, value, SET_ON_GROUP));
    let told = (of_broker != default).then(|| synonym(setting.of_brokers, &of_broker, SET_AT_START));
    let synonyms: Vec<ConfigSynonym> =
        own.into_iter().chain(told).chain([synonym(setting.of_brokers, &default, DEFAULT)]).collect();
    ConfigEntry {
        name: setting.name.to_owned(),
        source: synonyms[0].source,
        value: synonyms[0].value.clone(),
        synonyms,
        kind: kind(SettingKind::Int),
        documentation: Some(setting.documentation.to_owned()),
        ..Default::default()
    }
}

fn of_broker(setting: BrokerSetting) -> ConfigEntry {
    let BrokerSetting { name, kind: of, value, default, documentation } = setting;
    let told = value != default;
    let synonym =
        |value: &Option<String>, source| ConfigSynonym { name: name.to_owned(), value: value.clone(), source };
    let own = told.then(|| synonym(&value, SET_AT_START));
    let fallback = default.is_some().then(|| synonym(&default, DEFAULT));
    ConfigEntry {
        name: name.to_owned(),
        source: if told { SET_AT_START } else { DEFAULT },
        synonyms: own.into_iter().chain(fallback).collect(),
        value,
        read_only: true,
        kind: kind(of),
        documentation: Some(documentation.to_owned()),
        ..Default::default()
    }
}

/// Kafka's number of a type.
fn kind(kind: SettingKind) -> i8 {
    match kind {
        SettingKind::Boolean => 1,
        SettingKind::Text => 2,
        SettingKind::Int => 3,
        SettingKind::Long => 5,
        SettingKind::Double => 6,
        SettingKind::List => 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_core::groups::GROUP_SETTINGS;
    use millpond_core::topic_config;
    use std::collections::BTreeMap;

    fn synonyms(entry: &ConfigEntry) -> Vec<(&str, Option<&str>, i8)> {
        entry.synonyms.iter().map(|synonym| (&*synonym.name, synonym.value.as_deref(), synonym.source)).collect()
    }

    #[test]
    fn a_topics_setting_says_where_its_value_comes_from() {
        let overrides = BTreeMap::from([("retention.ms".to_owned(), "1000".to_owned())]);
        let entries: Vec<ConfigEntry> = topic_config::describe(&overrides, 1).into_iter().map(of_topic).collect();
        let find = |name: &str| entries.iter().find(|entry| entry.name == name).expect("listed");
        let set = find("retention.ms");
        assert_eq!((set.value.as_deref(), set.source, set.kind), (Some("1000"), SET_ON_TOPIC, 5));
        let both = [("retention.ms", Some("1000"), 1), ("log.retention.ms", Some("604800000"), 5)];
        assert_eq!(synonyms(set), both);
        let unset = find("min.insync.replicas");
        assert_eq!((unset.value.as_deref(), unset.source), (Some("1"), DEFAULT));
        assert_eq!(synonyms(unset), [("min.insync.replicas", Some("1"), 5)]);
        assert!(synonyms(find("remote.storage.enable")).is_empty(), "no setting of brokers is behind it");
        assert!(entries.iter().all(|entry| !entry.read_only && !entry.is_sensitive && entry.kind != 0));
    }

    #[test]
    fn a_groups_setting_says_where_its_value_comes_from() {
        let entry = |set: Option<&str>, of_broker: &str| {
            let (set, of_broker, default) = (set.map(str::to_owned), of_broker.to_owned(), "3000".to_owned());
            of_group(SetOnGroup { setting: &GROUP_SETTINGS[0], set, of_broker, default })
        };
        let (name, of_brokers) = ("consumer.heartbeat.interval.ms", "group.consumer.heartbeat.interval.ms");
        let all = entry(Some("5000"), "4000");
        assert_eq!((all.value.as_deref(), all.source, all.kind), (Some("5000"), SET_ON_GROUP, 3));
        let expected = [(name, Some("5000"), 8), (of_brokers, Some("4000"), 4), (of_brokers, Some("3000"), 5)];
        assert_eq!(synonyms(&all), expected);
        let told = entry(None, "4000");
        assert_eq!(
            (told.value.as_deref(), told.source, &synonyms(&told)[..]),
            (Some("4000"), SET_AT_START, &expected[1..])
        );
        let default = entry(None, "3000");
        assert_eq!((default.value.as_deref(), default.source), (Some("3000"), DEFAULT));
        assert_eq!(synonyms(&default), expected[2..]);
    }

    #[test]
    fn a_brokers_setting_is_read_only_and_says_whether_it_was_told() {
        let entry = |value: Option<&str>, default: Option<&str>| {
            let (value, default) = (value.map(str::to_owned), default.map(str::to_owned));
            of_broker(BrokerSetting { name: "x", kind: SettingKind::Int, value, default, documentation: "why" })
        };
        let told = entry(Some("2"), Some("1"));
        assert_eq!((told.read_only, told.source, told.kind), (true, SET_AT_START, 3));
        assert_eq!(synonyms(&told), [("x", Some("2"), 4), ("x", Some("1"), 5)]);
        assert_eq!(synonyms(&entry(Some("1"), Some("1"))), [("x", Some("1"), 5)]);
        assert_eq!(synonyms(&entry(Some("1"), None)), [("x", Some("1"), 4)]);
        assert_eq!((synonyms(&entry(None, None)), entry(None, None).source), (vec![], DEFAULT));
    }
}
