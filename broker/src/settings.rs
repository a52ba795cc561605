//! Settings of topics, which are altered while all runs, and of this broker, which are as it was started, by Kafka's names.

use crate::api::{ApiError, BrokerSetting, SettingsChange, TopicRef};
use crate::broker::{Broker, stopping};
use crate::catalog::Topic;
use crate::config::{Config, KafkaListener};
use crate::placement::replication_factor;
use crate::topics::{bad_config, unavailable};
use millpond_core::topic_config::{self, Described, SETTINGS, SettingKind, TopicConfig};
use millpond_core::transactions::TIMEOUT_MAX_MS;
use millpond_metadata::store::Outcome;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Longest wait until this broker serves what the metadata store has taken in.
const SERVED_WAIT_MAX: Duration = Duration::from_secs(5);

impl Broker {
    /// Every setting of a topic, by name, with the value that holds.
    pub fn topic_settings(&self, topic: &TopicRef) -> Result<Vec<Described>, ApiError> {
        let topic = self.inner().catalog.topic(topic)?;
        Ok(topic_config::describe(&topic.record.config, topic.record.replication_factor))
    }

    /// Changes settings of a topic, all or none. They hold on this broker when this returns.
    ///
    /// # Errors
    /// `INVALID_CONFIG`: a setting is unknown, does not take that value, or contradicts another.
    pub async fn alter_topic(
        &self,
        topic: &TopicRef,
        change: SettingsChange,
        validate_only: bool,
    ) -> Result<(), ApiError> {
        self.counted("AlterTopic", self.alter(topic, &change, validate_only).await)
    }

    async fn alter(&self, topic: &TopicRef, change: &SettingsChange, validate_only: bool) -> Result<(), ApiError> {
        let _one = self.inner().topic_changes.lock().await;
        let id = self.inner().catalog.topic(topic)?.record.id;
        let session = self.session()?;
        let revision = loop {
            let seen = self.read_topic(id).await?;
            // Of what the store has: what another broker has altered since this one was told of the topic stays.
            let next = changed(&seen.value.config, change)?;
            if validate_only {
                return Ok(());
            }
            if next == seen.value.config {
                break seen.revision;
            }
            let altered = self.inner().store.alter_topic_config(&session, &seen, &next).await;
            match altered.map_err(|error| unavailable(&error))? {
                Outcome::Committed { revision } => break revision,
                Outcome::Fenced => return Err(stopping()),
                // Rule K5: each change may be made again.
                Outcome::Conflict | Outcome::Unknown => {}
            }
        };
        let told = |topic: Option<&Arc<Topic>>| topic.is_none_or(|topic| topic.revision >= revision);
        let told = self.inner().catalog.until(id, told);
        let _ = tokio::time::timeout(SERVED_WAIT_MAX, told).await;
        Ok(())
    }

    /// What this broker was started with, by name. None of it changes while it runs.
    #[must_use]
    pub fn settings(&self) -> Vec<BrokerSetting> {
        let brokers = self.describe_cluster().brokers;
        let me = brokers.iter().find(|broker| broker.id == self.id());
        let advertised = |listener: &KafkaListener| me.and_then(|me| me.kafka_at(&listener.name)).map(str::to_owned);
        of_broker(&self.inner().config, brokers.len(), &advertised)
    }
}

fn changed(
    overrides: &BTreeMap<String, String>,
    change: &SettingsChange,
) -> Result<BTreeMap<String, String>, ApiError> {
    let next = match change {
        SettingsChange::Alter(alterations) => topic_config::alter(overrides, alterations),
        SettingsChange::Replace(all) => TopicConfig::from_overrides(all).map(|_| all.clone()),
    };
    next.map_err(|error| bad_config(&error))
}

/// What a listener of the Kafka door advertises; `None` while the broker is not registered.
type Advertised<'a> = &'a dyn Fn(&KafkaListener) -> Option<String>;

/// The settings of a broker that sees so many brokers alive.
fn of_broker(config: &Config, brokers: usize, advertised: Advertised<'_>) -> Vec<BrokerSetting> {
    let mut settings: Vec<BrokerSetting> = told(config, brokers, advertised);
    // What holds in topics that do not say otherwise. No flag changes it.
    settings.extend(SETTINGS.iter().filter_map(|setting| {
        let fixed = Some(setting.default.to_owned());
        let (kind, documentation) = (setting.kind, setting.documentation);
        Some(BrokerSetting { name: setting.of_brokers?, kind, value: fixed.clone(), default: fixed, documentation })
    }));
    settings.sort_unstable_by_key(|setting| setting.name);
    settings
}

/// What a broker is told by its flags, and what is fixed.
fn told(config: &Config, brokers: usize, advertised: Advertised<'_>) -> Vec<BrokerSetting> {
    use SettingKind::{Boolean, Int, List, Long, Text};
    let defaults = Config::local(config.data_dir.clone());
    let set = |name, kind, value: String, documentation| BrokerSetting {
        name,
        kind,
        value: Some(value),
        default: None,
        documentation,
    };
    let fixed = |name, kind, value: String, documentation| BrokerSetting {
        name,
        kind,
        value: Some(value.clone()),
        default: Some(value),
        documentation,
    };
    let flag = |name, kind, of: &dyn Fn(&Config) -> String, documentation| BrokerSetting {
        name,
        kind,
        value: Some(of(config)),
        default: Some(of(&defaults)),
        documentation,
    };
    let bound = |listener: &KafkaListener| Some(listener.listener.bind.to_string());
    let millis = |duration: Duration| duration.as_millis().to_string();
    let rack = BrokerSetting {
        name: "broker.rack",
        kind: Text,
        value: config.rack.clone(),
        default: None,
        documentation: "Rack or zone of the broker: `--rack`.",
    };
    vec![
        set(
            "advertised.listeners",
            List,
            listeners(config, advertised),
            "Where clients are told to find the Kafka door.",
        ),
        flag(
            "auto.create.topics.enable",
            Boolean,
            &|config| config.auto_create_topics.to_string(),
            "Whether a Metadata request may create topics: `--auto-create-topics`.",
        ),
        fixed(
            "auto.leader.rebalance.enable",
            Boolean,
            true.to_string(),
            "The controller gives leaderships back to the preferred replicas.",
        ),
        set("broker.id", Int, config.id.to_string(), "Id of the broker; it stays with its data directory: `--id`."),
        rack,
        flag(
            "broker.session.timeout.ms",
            Int,
            &|config| millis(config.lease_ttl),
            "How long a silent broker is taken to be alive.",
        ),
        fixed(
            "default.replication.factor",
            Int,
            replication_factor(brokers).to_string(),
            "Replicas of a topic that is created without a number: three, or as many as there are brokers.",
        ),
        fixed("delete.topic.enable", Boolean, true.to_string(), "Topics may be deleted."),
        flag(
            "group.consumer.heartbeat.interval.ms",
            Int,
            &|config| config.groups.heartbeat_interval_ms.to_string(),
            "How often a member of a consumer group is to heartbeat: `--group-heartbeat-interval`.",
        ),
        flag(
            "group.consumer.max.heartbeat.interval.ms",
            Int,
            &|config| config.groups.heartbeat_interval_bounds_ms.1.to_string(),
            "Longest heartbeat interval that may be set on a consumer group: `--group-consumer-max-heartbeat-interval`.",
        ),
        flag(
            "group.consumer.max.session.timeout.ms",
            Int,
            &|config| config.groups.session_timeout_bounds_ms.1.to_string(),
            "Longest session timeout that may be set on a consumer group: `--group-consumer-max-session-timeout`.",
        ),
        flag(
            "group.consumer.max.size",
            Int,
            &|config| config.groups.members_max.to_string(),
            "Most members of a consumer group.",
        ),
        flag(
            "group.consumer.min.heartbeat.interval.ms",
            Int,
            &|config| config.groups.heartbeat_interval_bounds_ms.0.to_string(),
            "Shortest heartbeat interval that may be set on a consumer group: `--group-consumer-min-heartbeat-interval`.",
        ),
        flag(
            "group.consumer.min.session.timeout.ms",
            Int,
            &|config| config.groups.session_timeout_bounds_ms.0.to_string(),
            "Shortest session timeout that may be set on a consumer group: `--group-consumer-min-session-timeout`.",
        ),
        flag(
            "group.consumer.session.timeout.ms",
            Int,
            &|config| config.groups.session_timeout_ms.to_string(),
            "How long a member of a consumer group may be silent: `--group-session-timeout`.",
        ),
        flag(
            "group.initial.rebalance.delay.ms",
            Int,
            &|config| config.groups.initial_rebalance_delay_ms.to_string(),
            "How long the first rebalance of a classic group waits for more members: `--group-initial-rebalance-delay`.",
        ),
        flag(
            "group.max.session.timeout.ms",
            Int,
            &|config| config.groups.classic_session_timeout_ms.1.to_string(),
            "Longest session timeout that a classic member may ask for: `--group-max-session-timeout`.",
        ),
        flag(
            "group.max.size",
            Int,
            &|config| config.groups.members_max.to_string(),
            "Most members of a classic group.",
        ),
        flag(
            "group.min.session.timeout.ms",
            Int,
            &|config| config.groups.classic_session_timeout_ms.0.to_string(),
            "Shortest session timeout that a classic member may ask for: `--group-min-session-timeout`.",
        ),
        set(
            "listeners",
            List,
            listeners(config, bound),
            "Where the Kafka door listens: `--kafka-listen`, `--kafka-listener`.",
        ),
        set("log.dirs", Text, config.data_dir.display().to_string(), "The folder of the broker's data: `--data-dir`."),
        flag("max.connections", Int, &|config| config.connections_max.to_string(), "Most connections of each door."),
        set("node.id", Int, config.id.to_string(), "Id of the broker; it stays with its data directory: `--id`."),
        flag(
            "num.partitions",
            Int,
            &|config| config.default_partitions.to_string(),
            "Partitions of a topic that is created without a number: `--num-partitions`.",
        ),
        flag(
            "offset.metadata.max.bytes",
            Int,
            &|config| config.groups.metadata_bytes_max.to_string(),
            "Longest metadata beside a committed offset.",
        ),
        flag(
            "offsets.retention.minutes",
            Int,
            &|config| (config.groups.offsets_retention_ms / 60_000).to_string(),
            "How long offsets are kept after their group emptied.",
        ),
        fixed("process.roles", List, "broker,controller".to_owned(), "Each broker may be the controller."),
        flag(
            "queued.max.request.bytes",
            Long,
            &|config| config.request_memory_bytes.to_string(),
            "Bytes of requests that are being received or answered, over all doors and connections.",
        ),
        fixed("remote.log.storage.system.enable", Boolean, true.to_string(), "Closed segments live in object storage."),
        fixed(
            "transaction.max.timeout.ms",
            Int,
            TIMEOUT_MAX_MS.to_string(),
            "Longest timeout that a transactional producer may ask for.",
        ),
    ]
}

/// Every listener of the Kafka door with its address, as Kafka writes them.
fn listeners(config: &Config, address: impl Fn(&KafkaListener) -> Option<String>) -> String {
    let listener = |listener: &KafkaListener| Some(format!("{}://{}", shown(listener), address(listener)?));
    config.kafka.iter().filter_map(listener).collect::<Vec<_>>().join(",")
}

/// Kafka names listeners by their protocol unless it is told other names.
fn shown(listener: &KafkaListener) -> &str {
    match (listener.name.as_str(), listener.listener.tls) {
        (KafkaListener::DEFAULT, false) => "PLAINTEXT",
        (KafkaListener::DEFAULT, true) => "SSL",
        (name, _) => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_core::topic_config::Alteration;
    use millpond_log::ErrorCode;

    #[test]
    fn a_change_alters_what_is_set_or_replaces_it_whole() {
        let of = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let set = of(&[("retention.ms", "1000"), ("segment.bytes", "2000")]);
        let delete = SettingsChange::Alter(vec![("retention.ms".to_owned(), Alteration::Delete)]);
        assert_eq!(changed(&set, &delete), Ok(of(&[("segment.bytes", "2000")])));
        let all = of(&[("cleanup.policy", "compact")]);
        assert_eq!(changed(&set, &SettingsChange::Replace(all.clone())), Ok(all));
        for bad in [of(&[("no.such", "1")]), of(&[("retention.ms", "x")])] {
            let refused = changed(&set, &SettingsChange::Replace(bad)).map_err(|error| error.code);
            assert_eq!(refused, Err(ErrorCode::InvalidConfig));
        }
        let unknown = SettingsChange::Alter(vec![("no.such".to_owned(), Alteration::Delete)]);
        assert_eq!(changed(&set, &unknown).map_err(|error| error.code), Err(ErrorCode::InvalidConfig));
    }

    #[test]
    fn a_broker_names_each_setting_once_and_says_which_it_was_told() {
        let mut config = Config::local("/data".into());
        config.auto_create_topics = false;
        let settings = of_broker(&config, 2, &|_| Some("broker:9092".to_owned()));
        assert!(settings.is_sorted_by(|a, b| a.name < b.name), "each once");
        let find = |name: &str| {
            let found = settings.iter().find(|setting| setting.name == name).expect("listed");
            (found.value.as_deref(), found.default.as_deref())
        };
        assert_eq!(find("auto.create.topics.enable"), (Some("false"), Some("true")));
        assert_eq!(find("num.partitions"), (Some("1"), Some("1")));
        assert_eq!(find("default.replication.factor"), (Some("2"), Some("2")));
        assert_eq!(find("log.retention.ms"), (Some("604800000"), Some("604800000")));
        assert_eq!(find("node.id"), (Some("0"), None));
        assert_eq!(find("broker.rack"), (None, None));
        assert_eq!(find("listeners"), (Some("PLAINTEXT://127.0.0.1:9092"), None));
        assert_eq!(find("advertised.listeners"), (Some("PLAINTEXT://broker:9092"), None));
        assert!(settings.iter().all(|setting| !setting.documentation.is_empty()));
    }
}
