//! Topic settings: Kafka's names and meanings, parsed once at the edge into plain data.
//!
//! It decides what a value may be. It does not know brokers' own settings, and never reads a clock or a store.

mod settings;

use millpond_log::TimestampMs;
use millpond_log::batch::{ProduceRules, TimestampType};
use millpond_log::codec::Codec;
use millpond_log::limits::BATCH_BYTES_DEFAULT;
use std::collections::BTreeMap;
use std::time::Duration;

pub use settings::{SETTINGS, Setting, SettingKind};

/// Largest upload threshold: a tail of this size is uploaded though `segment.bytes` allows more, in bytes.
/// Larger objects would not be read faster, and the tail would fill local disks.
pub const UPLOAD_BYTES_MAX: u64 = 64 << 20;

/// Longest time before a tail is uploaded though `segment.ms` allows more: bounds what a lost cluster disk can lose.
pub const UPLOAD_AGE_MAX: Duration = Duration::from_secs(600);

/// In-sync replicas that a commit needs unless the topic says otherwise; a topic of one replica needs one.
pub const MIN_ISR_DEFAULT: u32 = 2;

/// `cleanup.policy`: what becomes of old records. Neither means that they are kept forever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CleanupPolicy {
    /// Delete segments beyond the retention limits.
    pub delete: bool,
    /// Keep the newest record of each key.
    pub compact: bool,
}

/// `compression.type`: which codec batches are stored in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompressionType {
    /// As the producer sent them.
    Producer,
    /// Not compressed.
    Uncompressed,
    /// gzip.
    Gzip,
    /// Snappy.
    Snappy,
    /// LZ4 frames.
    Lz4,
    /// Zstandard.
    Zstd,
}

/// `local.retention.*`: how much the cache should keep on brokers. A hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalRetention {
    /// As the topic's own retention (-2).
    AsRetention,
    /// No limit (-1).
    Unlimited,
    /// This many bytes or milliseconds.
    Limit(u64),
}

/// The settings of one topic. Settings that are accepted but have no effect here are checked and not kept.
#[derive(Clone, Debug, PartialEq)]
pub struct TopicConfig {
    /// `cleanup.policy`.
    pub cleanup_policy: CleanupPolicy,
    /// `compression.type`.
    pub compression_type: CompressionType,
    /// `compression.gzip.level`; `None` is the codec's default.
    pub compression_gzip_level: Option<u32>,
    /// `compression.lz4.level`.
    pub compression_lz4_level: u32,
    /// `compression.zstd.level`.
    pub compression_zstd_level: i32,
    /// `delete.retention.ms`: how long compaction keeps tombstones and markers.
    pub delete_retention: Duration,
    /// `local.retention.bytes`.
    pub local_retention_bytes: LocalRetention,
    /// `local.retention.ms`.
    pub local_retention_ms: LocalRetention,
    /// `max.compaction.lag.ms`.
    pub max_compaction_lag: Duration,
    /// `max.message.bytes`: largest batch, as stored.
    pub max_message_bytes: u32,
    /// `message.timestamp.type`.
    pub timestamp_type: TimestampType,
    /// `message.timestamp.before.max.ms`: how far behind the leader's clock a record may be.
    pub timestamp_before_max: Duration,
    /// `message.timestamp.after.max.ms`: how far ahead of it.
    pub timestamp_after_max: Duration,
    /// `min.cleanable.dirty.ratio`, 0 to 1.
    pub min_cleanable_dirty_ratio: f64,
    /// `min.compaction.lag.ms`.
    pub min_compaction_lag: Duration,
    /// `min.insync.replicas`, if the topic says. `min_isr` tells what holds.
    pub min_insync_replicas: Option<u32>,
    /// `retention.bytes` of one partition; `None` is unlimited.
    pub retention_bytes: Option<u64>,
    /// `retention.ms`; `None` is unlimited.
    pub retention: Option<Duration>,
    /// `segment.bytes`.
    pub segment_bytes: u64,
    /// `segment.jitter.ms`.
    pub segment_jitter: Duration,
    /// `segment.ms`.
    pub segment_age: Duration,
    /// `unclean.leader.election.enable` (rule E7).
    pub unclean_leader_election: bool,
}

/// Kafka's largest duration: for ever.
const FOR_EVER: Duration = Duration::from_millis(i64::MAX as u64);
const DAY: Duration = Duration::from_secs(24 * 3600);

impl Default for TopicConfig {
    /// What holds without overrides. A test compares it with the table of settings.
    fn default() -> TopicConfig {
        TopicConfig {
            cleanup_policy: CleanupPolicy { delete: true, compact: false },
            compression_type: CompressionType::Producer,
            compression_gzip_level: None,
            compression_lz4_level: 9,
            compression_zstd_level: 3,
            delete_retention: DAY,
            local_retention_bytes: LocalRetention::AsRetention,
            local_retention_ms: LocalRetention::AsRetention,
            max_compaction_lag: FOR_EVER,
            max_message_bytes: BATCH_BYTES_DEFAULT,
            timestamp_type: TimestampType::CreateTime,
            timestamp_before_max: FOR_EVER,
            timestamp_after_max: Duration::from_secs(3600),
            min_cleanable_dirty_ratio: 0.5,
            min_compaction_lag: Duration::ZERO,
            min_insync_replicas: None,
            retention_bytes: None,
            retention: Some(7 * DAY),
            segment_bytes: 1 << 30,
            segment_jitter: Duration::ZERO,
            segment_age: 7 * DAY,
            unclean_leader_election: false,
        }
    }
}

impl TopicConfig {
    /// Reads settings that differ from the defaults.
    ///
    /// # Errors
    /// The first setting that is unknown or has a bad value, and settings that contradict each other.
    pub fn from_overrides(overrides: &BTreeMap<String, String>) -> Result<TopicConfig, ConfigError> {
        let mut config = TopicConfig::default();
        for (name, value) in overrides {
            let setting = Setting::find(name)?;
            setting.apply(&mut config, value)?;
        }
        config.check_relations(overrides)?;
        Ok(config)
    }

    /// Size at which a partition's tail is uploaded, in bytes.
    #[must_use]
    pub fn upload_bytes(&self) -> u64 {
        self.segment_bytes.min(UPLOAD_BYTES_MAX)
    }

    /// Age of its oldest record at which a partition's tail is uploaded. What is in no segment is not compacted either.
    #[must_use]
    pub fn upload_age(&self) -> Duration {
        let compacted_after = if self.cleanup_policy.compact { self.max_compaction_lag } else { FOR_EVER };
        self.segment_age.min(UPLOAD_AGE_MAX).min(compacted_after)
    }

    /// In-sync replicas that a commit needs in a topic of `replicas` replicas (rule I1).
    #[must_use]
    pub fn min_isr(&self, replicas: u32) -> u32 {
        self.min_insync_replicas.unwrap_or(MIN_ISR_DEFAULT.min(replicas))
    }

    /// What the topic asks of a producer's batch that comes at `now`.
    #[must_use]
    pub fn produce_rules(&self, now: TimestampMs) -> ProduceRules {
        let codec = match self.compression_type {
            CompressionType::Producer => None,
            CompressionType::Uncompressed => Some(Codec::None),
            CompressionType::Gzip => Some(Codec::Gzip),
            CompressionType::Snappy => Some(Codec::Snappy),
            CompressionType::Lz4 => Some(Codec::Lz4),
            CompressionType::Zstd => Some(Codec::Zstd),
        };
        ProduceRules {
            batch_bytes_max: self.max_message_bytes,
            compacted: self.cleanup_policy.compact,
            timestamp_type: self.timestamp_type,
            timestamp_before_max_ms: millis(self.timestamp_before_max),
            timestamp_after_max_ms: millis(self.timestamp_after_max),
            now,
            codec,
        }
    }

    /// Kafka's rules between settings.
    fn check_relations(&self, overrides: &BTreeMap<String, String>) -> Result<(), ConfigError> {
        let refuse = |name: &'static str, accepted: &'static str| {
            let value = overrides.get(name).cloned().unwrap_or_default();
            Err(ConfigError::BadValue { name, value, accepted })
        };
        if self.min_compaction_lag > self.max_compaction_lag {
            return refuse("min.compaction.lag.ms", "at most `max.compaction.lag.ms`");
        }
        let retention_ms = self.retention.map(|retention| u64::try_from(retention.as_millis()).unwrap_or(u64::MAX));
        if exceeds(self.local_retention_ms, retention_ms) {
            return refuse("local.retention.ms", "at most `retention.ms`");
        }
        if exceeds(self.local_retention_bytes, self.retention_bytes) {
            return refuse("local.retention.bytes", "at most `retention.bytes`");
        }
        Ok(())
    }
}

/// Milliseconds, or the most that Kafka's 64 bits hold.
#[must_use]
pub fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// Whether local data would outlive the topic's own retention.
fn exceeds(local: LocalRetention, whole: Option<u64>) -> bool {
    match (local, whole) {
        (LocalRetention::AsRetention, _) | (_, None) => false,
        (LocalRetention::Unlimited, Some(_)) => true,
        (LocalRetention::Limit(local), Some(whole)) => local > whole,
    }
}

/// Why settings were refused. Kafka's `INVALID_CONFIG`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// No topic setting has this name.
    #[error("unknown topic setting `{0}`")]
    Unknown(String),
    /// The setting does not take this value.
    #[error("topic setting `{name}` cannot be `{value}`: it takes {accepted}")]
    BadValue {
        /// The setting.
        name: &'static str,
        /// What was given.
        value: String,
        /// What it takes.
        accepted: &'static str,
    },
    /// Only settings that hold a list can be appended to or subtracted from.
    #[error("topic setting `{0}` is no list: only `set` and `delete` apply")]
    NotAList(&'static str),
}

/// One change of one setting, as Kafka's `IncrementalAlterConfigs` has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Alteration {
    /// Overrides the default.
    Set(String),
    /// Goes back to the default.
    Delete,
    /// Adds items to a list, those it has not.
    Append(String),
    /// Takes items from a list.
    Subtract(String),
}

/// Applies alterations to a topic's overrides, in order, and checks the result as a whole. Nothing is kept on an error.
///
/// # Errors
/// As `TopicConfig::from_overrides`; `NotAList` for a list operation on another setting.
pub fn alter(
    overrides: &BTreeMap<String, String>,
    alterations: &[(String, Alteration)],
) -> Result<BTreeMap<String, String>, ConfigError> {
    let mut altered = overrides.clone();
    for (name, alteration) in alterations {
        let setting = Setting::find(name)?;
        let current = || items(altered.get(name).map_or(setting.default, String::as_str));
        let value = match alteration {
            Alteration::Set(value) => Some(value.clone()),
            Alteration::Delete => None,
            Alteration::Append(_) | Alteration::Subtract(_) if setting.kind != SettingKind::List => {
                return Err(ConfigError::NotAList(setting.name));
            }
            Alteration::Append(value) => {
                let mut list = current();
                for item in items(value) {
                    if !list.contains(&item) {
                        list.push(item);
                    }
                }
                Some(list.join(","))
            }
            Alteration::Subtract(value) => {
                let gone = items(value);
                let mut list = current();
                list.retain(|item| !gone.contains(item));
                Some(list.join(","))
            }
        };
        match value {
            Some(value) => altered.insert(name.clone(), value),
            None => altered.remove(name),
        };
    }
    TopicConfig::from_overrides(&altered)?;
    Ok(altered)
}

/// The items of a list's text.
fn items(list: &str) -> Vec<String> {
    list.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect()
}

/// Where a setting's value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigSource {
    /// The topic overrides it. Kafka's `DYNAMIC_TOPIC_CONFIG`, 1.
    Topic,
    /// Kafka's `DEFAULT_CONFIG`, 5.
    Default,
}

/// A setting with the value that holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// What is fixed about it: name, kind, default, documentation.
    pub setting: &'static Setting,
    /// The value that holds.
    pub value: String,
    /// Where it comes from; under `Topic` the setting's default is its only synonym.
    pub source: ConfigSource,
}

/// Every topic setting, by name, with the value that holds under these overrides and `replicas` replicas.
#[must_use]
pub fn describe(overrides: &BTreeMap<String, String>, replicas: u32) -> Vec<Described> {
    let described = |setting: &'static Setting| match overrides.get(setting.name) {
        Some(value) => Described { setting, value: value.clone(), source: ConfigSource::Topic },
        None => {
            let value = match setting.name {
                "min.insync.replicas" => MIN_ISR_DEFAULT.min(replicas).to_string(),
                _ => setting.default.to_owned(),
            };
            Described { setting, value, source: ConfigSource::Default }
        }
    };
    SETTINGS.iter().map(described).collect()
}

#[cfg(test)]
mod tests;
