//! Topic settings by Kafka's names, with Kafka's validation, parsed once into types. One table says all there is to say of each.

use millpond_log::TimestampMs;
use millpond_log::batch::{ProduceRules, TimestampType};
use millpond_log::codec::Codec;
use millpond_log::limits::{BATCH_BYTES_DEFAULT, BATCH_BYTES_MAX};
use std::collections::BTreeMap;

/// Most bytes of a tail before it is uploaded, whatever `segment.bytes` says: it is held in memory while its object is built.
pub const UPLOAD_BYTES_MAX: u64 = 64 << 20;

/// Longest a committed record waits for its upload, whatever `segment.ms` says. Bounds what the loss of all disks can lose.
pub const UPLOAD_AGE_MS_MAX: i64 = 10 * 60 * 1000;

/// What happens to old records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CleanupPolicy {
    /// They are deleted by age and size.
    pub delete: bool,
    /// Only the newest of each key is kept.
    pub compact: bool,
}

/// The settings of one topic.
#[derive(Clone, Debug, PartialEq)]
pub struct TopicConfig {
    /// `cleanup.policy`.
    pub cleanup_policy: CleanupPolicy,
    /// `compression.type`; `None` is `producer`: as it came.
    pub compression: Option<Codec>,
    /// `delete.retention.ms`.
    pub delete_retention_ms: i64,
    /// `max.message.bytes`.
    pub max_message_bytes: u32,
    /// `message.timestamp.type`.
    pub message_timestamp_type: TimestampType,
    /// `message.timestamp.before.max.ms`.
    pub timestamp_before_max_ms: i64,
    /// `message.timestamp.after.max.ms`.
    pub timestamp_after_max_ms: i64,
    /// `min.insync.replicas`; `None` is the cluster's default.
    pub min_insync_replicas: Option<u32>,
    /// `retention.ms`; `None` is without end.
    pub retention_ms: Option<i64>,
    /// `retention.bytes`; `None` is without bound.
    pub retention_bytes: Option<u64>,
    /// `segment.bytes`.
    pub segment_bytes: u64,
    /// `segment.ms`.
    pub segment_ms: i64,
    /// `unclean.leader.election.enable`.
    pub unclean_leader_election: bool,
}

/// A setting that does not exist or does not take this value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// No topic setting has this name.
    #[error("no topic setting is named `{name}`")]
    Unknown {
        /// The name.
        name: String,
    },
    /// The value is not accepted.
    #[error("`{name}` does not take `{value}`: {accepts}")]
    Value {
        /// The setting.
        name: String,
        /// The value.
        value: String,
        /// What it takes.
        accepts: &'static str,
    },
}

/// Type of a setting, for those who list them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingType {
    /// `true` or `false`.
    Boolean,
    /// One word.
    String,
    /// 32 bits.
    Int,
    /// 64 bits.
    Long,
    /// A real number.
    Double,
    /// Words with commas between.
    List,
}

/// One row of the table of settings.
pub struct Setting {
    /// Kafka's name.
    pub name: &'static str,
    /// Its type.
    pub kind: SettingType,
    /// Its default, as text.
    pub default: &'static str,
    /// What it takes.
    pub accepts: &'static str,
    /// What it does here.
    pub documentation: &'static str,
    apply: fn(&mut TopicConfig, &str) -> Option<()>,
}

/// Every topic setting, in order of name.
pub const SETTINGS: &[Setting] = &[
    setting(
        "cleanup.policy",
        SettingType::List,
        "delete",
        "`delete`, `compact` or both",
        "what happens to old records",
        |config, value| {
            let mut policy = CleanupPolicy { delete: false, compact: false };
            for word in value.split(',').map(str::trim) {
                match word {
                    "delete" => policy.delete = true,
                    "compact" => policy.compact = true,
                    _ => return None,
                }
            }
            config.cleanup_policy = policy;
            Some(())
        },
    ),
    setting(
        "compression.type",
        SettingType::String,
        "producer",
        "`producer`, `uncompressed`, `gzip`, `snappy`, `lz4` or `zstd`",
        "codec of stored batches; `producer` keeps them as they came",
        |config, value| {
            config.compression = match value {
                "producer" => None,
                "uncompressed" | "none" => Some(Codec::None),
                name => Some(name.parse().ok()?),
            };
            Some(())
        },
    ),
    setting(
        "delete.retention.ms",
        SettingType::Long,
        "86400000",
        "0 or more",
        "how long a tombstone is kept on a compacted topic",
        |config, value| {
            config.delete_retention_ms = at_least(value, 0)?;
            Some(())
        },
    ),
    setting(
        "file.delete.delay.ms",
        SettingType::Long,
        "60000",
        "0 or more",
        "accepted, without effect: objects are deleted by garbage collection",
        |_, value| at_least(value, 0).map(drop),
    ),
    setting(
        "flush.messages",
        SettingType::Long,
        "9223372036854775807",
        "1 or more",
        "accepted, without effect: every batch is synced before it is acknowledged",
        |_, value| at_least(value, 1).map(drop),
    ),
    setting(
        "flush.ms",
        SettingType::Long,
        "9223372036854775807",
        "0 or more",
        "accepted, without effect: every batch is synced before it is acknowledged",
        |_, value| at_least(value, 0).map(drop),
    ),
    setting(
        "follower.replication.throttled.replicas",
        SettingType::List,
        "",
        "a list",
        "accepted, without effect",
        |_, _| Some(()),
    ),
    setting(
        "index.interval.bytes",
        SettingType::Int,
        "4096",
        "0 or more",
        "accepted, without effect: the index has an entry per chunk",
        |_, value| at_least(value, 0).map(drop),
    ),
    setting(
        "leader.replication.throttled.replicas",
        SettingType::List,
        "",
        "a list",
        "accepted, without effect",
        |_, _| Some(()),
    ),
    setting("local.retention.bytes", SettingType::Long, "-2", "-2 or more", "a hint for the cache", |_, value| {
        at_least(value, -2).map(drop)
    }),
    setting("local.retention.ms", SettingType::Long, "-2", "-2 or more", "a hint for the cache", |_, value| {
        at_least(value, -2).map(drop)
    }),
    setting(
        "max.compaction.lag.ms",
        SettingType::Long,
        "9223372036854775807",
        "1 or more",
        "longest a record stays out of compaction",
        |_, value| at_least(value, 1).map(drop),
    ),
    setting(
        "max.message.bytes",
        SettingType::Int,
        "1048588",
        "0 to 67108864",
        "largest batch, as it comes (compressed)",
        |config, value| {
            config.max_message_bytes = value.parse().ok().filter(|bytes| *bytes <= BATCH_BYTES_MAX)?;
            Some(())
        },
    ),
    setting(
        "message.timestamp.after.max.ms",
        SettingType::Long,
        "3600000",
        "0 or more",
        "how far ahead of the broker a record's time may be",
        |config, value| {
            config.timestamp_after_max_ms = at_least(value, 0)?;
            Some(())
        },
    ),
    setting(
        "message.timestamp.before.max.ms",
        SettingType::Long,
        "9223372036854775807",
        "0 or more",
        "how far behind the broker a record's time may be",
        |config, value| {
            config.timestamp_before_max_ms = at_least(value, 0)?;
            Some(())
        },
    ),
    setting(
        "message.timestamp.type",
        SettingType::String,
        "CreateTime",
        "`CreateTime` or `LogAppendTime`",
        "whose clock gives records their time",
        |config, value| {
            config.message_timestamp_type = match value {
                "CreateTime" => TimestampType::CreateTime,
                "LogAppendTime" => TimestampType::LogAppendTime,
                _ => return None,
            };
            Some(())
        },
    ),
    setting(
        "min.cleanable.dirty.ratio",
        SettingType::Double,
        "0.5",
        "0 to 1",
        "how much of a log is dirty before it is compacted",
        |_, value| value.parse().ok().filter(|ratio: &f64| (0.0..=1.0).contains(ratio)).map(drop),
    ),
    setting(
        "min.compaction.lag.ms",
        SettingType::Long,
        "0",
        "0 or more",
        "how long a record stays out of compaction",
        |_, value| at_least(value, 0).map(drop),
    ),
    setting(
        "min.insync.replicas",
        SettingType::Int,
        "1",
        "1 or more",
        "least in-sync replicas for acks=all",
        |config, value| {
            config.min_insync_replicas = Some(value.parse().ok().filter(|replicas| *replicas >= 1)?);
            Some(())
        },
    ),
    setting(
        "preallocate",
        SettingType::Boolean,
        "false",
        "`true` or `false`",
        "accepted, without effect: the WAL is always preallocated",
        |_, value| boolean(value).map(drop),
    ),
    setting(
        "remote.storage.enable",
        SettingType::Boolean,
        "true",
        "only `true`: the log is always tiered to object storage",
        "always on",
        |_, value| boolean(value)?.then_some(()),
    ),
    setting(
        "retention.bytes",
        SettingType::Long,
        "-1",
        "-1 (no bound) or more",
        "size above which the oldest segments are deleted",
        |config, value| {
            config.retention_bytes = u64::try_from(at_least(value, -1)?).ok();
            Some(())
        },
    ),
    setting(
        "retention.ms",
        SettingType::Long,
        "604800000",
        "-1 (for ever) or more",
        "age, by the broker's time of append, above which segments are deleted",
        |config, value| {
            config.retention_ms = Some(at_least(value, -1)?).filter(|age| *age >= 0);
            Some(())
        },
    ),
    setting(
        "segment.bytes",
        SettingType::Int,
        "1073741824",
        "14 or more",
        "size of a tail that is uploaded; at most 64 MiB counts",
        |config, value| {
            config.segment_bytes = u64::try_from(at_least(value, 14)?).ok()?;
            Some(())
        },
    ),
    setting(
        "segment.index.bytes",
        SettingType::Int,
        "10485760",
        "4 or more",
        "accepted, without effect",
        |_, value| at_least(value, 4).map(drop),
    ),
    setting(
        "segment.jitter.ms",
        SettingType::Long,
        "0",
        "0 or more",
        "accepted, without effect: small tails share an object",
        |_, value| at_least(value, 0).map(drop),
    ),
    setting(
        "segment.ms",
        SettingType::Long,
        "604800000",
        "1 or more",
        "age of a tail that is uploaded; at most 10 minutes count",
        |config, value| {
            config.segment_ms = at_least(value, 1)?;
            Some(())
        },
    ),
    setting(
        "unclean.leader.election.enable",
        SettingType::Boolean,
        "false",
        "`true` or `false`",
        "whether a replica that may lack acknowledged records may lead when no other can",
        |config, value| {
            config.unclean_leader_election = boolean(value)?;
            Some(())
        },
    ),
];

const fn setting(
    name: &'static str,
    kind: SettingType,
    default: &'static str,
    accepts: &'static str,
    documentation: &'static str,
    apply: fn(&mut TopicConfig, &str) -> Option<()>,
) -> Setting {
    Setting { name, kind, default, accepts, documentation, apply }
}

fn at_least(value: &str, min: i64) -> Option<i64> {
    value.trim().parse().ok().filter(|number| *number >= min)
}

fn boolean(value: &str) -> Option<bool> {
    value.trim().to_ascii_lowercase().parse().ok()
}

impl Default for TopicConfig {
    /// Kafka's defaults: those of the table.
    fn default() -> TopicConfig {
        TopicConfig {
            cleanup_policy: CleanupPolicy { delete: true, compact: false },
            compression: None,
            delete_retention_ms: 86_400_000,
            max_message_bytes: BATCH_BYTES_DEFAULT,
            message_timestamp_type: TimestampType::CreateTime,
            timestamp_before_max_ms: i64::MAX,
            timestamp_after_max_ms: 3_600_000,
            min_insync_replicas: None,
            retention_ms: Some(604_800_000),
            retention_bytes: None,
            segment_bytes: 1 << 30,
            segment_ms: 604_800_000,
            unclean_leader_election: false,
        }
    }
}

impl TopicConfig {
    /// The settings of a topic that overrides some defaults.
    ///
    /// # Errors
    /// The first setting that does not exist or does not take its value.
    pub fn from_overrides(overrides: &BTreeMap<String, String>) -> Result<TopicConfig, ConfigError> {
        let mut config = TopicConfig::default();
        for (name, value) in overrides {
            let setting = SETTINGS.iter().find(|setting| setting.name == name);
            let setting = setting.ok_or_else(|| ConfigError::Unknown { name: name.clone() })?;
            (setting.apply)(&mut config, value).ok_or_else(|| ConfigError::Value {
                name: name.clone(),
                value: value.clone(),
                accepts: setting.accepts,
            })?;
        }
        Ok(config)
    }

    /// Whether records are deleted by age and size.
    #[must_use]
    pub fn deletes(&self) -> bool {
        self.cleanup_policy.delete
    }

    /// Bytes at which a tail is uploaded.
    #[must_use]
    pub fn upload_bytes(&self) -> u64 {
        self.segment_bytes.min(UPLOAD_BYTES_MAX)
    }

    /// Age at which a tail is uploaded, in milliseconds.
    #[must_use]
    pub fn upload_age_ms(&self) -> i64 {
        self.segment_ms.min(UPLOAD_AGE_MS_MAX)
    }

    /// What the topic asks of a producer's batch.
    #[must_use]
    pub fn produce_rules(&self, now: TimestampMs) -> ProduceRules {
        ProduceRules {
            batch_bytes_max: self.max_message_bytes,
            compacted: self.cleanup_policy.compact,
            timestamp_type: self.message_timestamp_type,
            timestamp_before_max_ms: self.timestamp_before_max_ms,
            timestamp_after_max_ms: self.timestamp_after_max_ms,
            now,
            codec: self.compression,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overrides(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn the_default_of_every_setting_is_what_the_defaults_are() {
        // `min.insync.replicas` is the cluster's when it is not set.
        let pairs: Vec<(&str, &str)> = SETTINGS
            .iter()
            .filter(|setting| {
                setting.name != "min.insync.replicas" && setting.kind != SettingType::List
                    || setting.name == "cleanup.policy"
            })
            .map(|setting| (setting.name, setting.default))
            .collect();
        assert_eq!(TopicConfig::from_overrides(&overrides(&pairs)), Ok(TopicConfig::default()));
        assert!(SETTINGS.is_sorted_by_key(|setting| setting.name));
    }

    #[test]
    fn settings_take_what_kafka_takes() {
        let config = TopicConfig::from_overrides(&overrides(&[
            ("cleanup.policy", "delete, compact"),
            ("compression.type", "zstd"),
            ("message.timestamp.type", "LogAppendTime"),
            ("retention.ms", "-1"),
            ("retention.bytes", "1000"),
            ("segment.bytes", "100"),
            ("max.message.bytes", "51200"),
        ]));
        let config = config.expect("all are valid");
        assert_eq!(config.cleanup_policy, CleanupPolicy { delete: true, compact: true });
        assert_eq!(config.compression, Some(Codec::Zstd));
        assert_eq!(config.message_timestamp_type, TimestampType::LogAppendTime);
        assert_eq!((config.retention_ms, config.retention_bytes), (None, Some(1000)));
        assert_eq!((config.upload_bytes(), config.max_message_bytes), (100, 51_200));
    }

    #[test]
    fn a_wrong_setting_says_its_name_its_value_and_what_it_takes() {
        for (name, value) in [
            ("retention.ms", "a week"),
            ("retention.ms", "-2"),
            ("cleanup.policy", "deleet"),
            ("cleanup.policy", ""),
            ("compression.type", "brotli"),
            ("remote.storage.enable", "false"),
            ("max.message.bytes", "67108865"),
            ("min.insync.replicas", "0"),
            ("segment.bytes", "13"),
            ("unclean.leader.election.enable", "perhaps"),
            ("min.cleanable.dirty.ratio", "NaN"),
        ] {
            let error = TopicConfig::from_overrides(&overrides(&[(name, value)])).expect_err(name).to_string();
            assert!(error.contains(name) && error.contains(value), "{error}");
        }
        let unknown = TopicConfig::from_overrides(&overrides(&[("retention.minutes", "1")]));
        assert_eq!(unknown, Err(ConfigError::Unknown { name: "retention.minutes".into() }));
    }
}
