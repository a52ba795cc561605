//! The table of topic settings: name, kind, default, what is accepted, what it does. One entry is all there is to one setting.

use super::{CleanupPolicy, CompressionType, ConfigError, LocalRetention, TopicConfig, items};
use millpond_log::batch::TimestampType;
use millpond_log::limits::BATCH_BYTES_MAX;
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

/// Kafka's type of a setting, as `DescribeConfigs` tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingKind {
    /// `true` or `false`.
    Boolean,
    /// Text.
    Text,
    /// 32-bit number.
    Int,
    /// 64-bit number.
    Long,
    /// Fraction.
    Double,
    /// Items separated by commas.
    List,
}

/// What is fixed about one setting.
pub struct Setting {
    /// Kafka's name.
    pub name: &'static str,
    /// Kafka's name of the brokers' setting that says what holds in topics without an override; `None` where there is none.
    pub of_brokers: Option<&'static str>,
    /// Its type.
    pub kind: SettingKind,
    /// The value that holds without an override.
    pub default: &'static str,
    /// Which values are accepted, for a person.
    pub accepted: &'static str,
    /// What it does.
    pub documentation: &'static str,
    /// Reads a value into the configuration; `None` if it is not accepted.
    read: fn(&mut TopicConfig, &str) -> Option<()>,
}

impl fmt::Debug for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Setting({})", self.name)
    }
}

impl PartialEq for Setting {
    fn eq(&self, other: &Setting) -> bool {
        self.name == other.name
    }
}

impl Eq for Setting {}

impl Setting {
    /// The setting of this name.
    ///
    /// # Errors
    /// `Unknown`: there is none.
    pub fn find(name: &str) -> Result<&'static Setting, ConfigError> {
        let found = SETTINGS.iter().find(|setting| setting.name == name);
        found.ok_or_else(|| ConfigError::Unknown(name.to_owned()))
    }

    pub(super) fn apply(&self, config: &mut TopicConfig, value: &str) -> Result<(), ConfigError> {
        let bad = || ConfigError::BadValue { name: self.name, value: value.to_owned(), accepted: self.accepted };
        (self.read)(config, value.trim()).ok_or_else(bad)
    }
}

const MILLIS: &str = "a number of milliseconds, at least 0";
const MILLIS_POSITIVE: &str = "a number of milliseconds, at least 1";
const BOOLEAN: &str = "`true` or `false`";
const THROTTLED: &str = "a list of `partition:broker`, `*` or nothing";

/// Every topic setting, by name.
pub const SETTINGS: &[Setting] = &[
    Setting {
        name: "cleanup.policy",
        of_brokers: Some("log.cleanup.policy"),
        kind: SettingKind::List,
        default: "delete",
        accepted: "`delete`, `compact`, both, or nothing to keep records for ever",
        documentation: "What becomes of old records: `delete` removes segments beyond the retention limits, `compact` keeps the newest record of each key.",
        read: |config, value| {
            let mut policy = CleanupPolicy { delete: false, compact: false };
            for item in items(value) {
                match item.as_str() {
                    "delete" => policy.delete = true,
                    "compact" => policy.compact = true,
                    _ => return None,
                }
            }
            config.cleanup_policy = policy;
            Some(())
        },
    },
    Setting {
        name: "compression.gzip.level",
        of_brokers: Some("compression.gzip.level"),
        kind: SettingKind::Int,
        default: "-1",
        accepted: "1 to 9, or -1 for the codec's default",
        documentation: "Level used when `compression.type` is `gzip` and a batch comes in another codec.",
        read: |config, value| {
            config.compression_gzip_level = match integer(value, -1..=9)? {
                -1 => None,
                0 => return None,
                level => Some(u32::try_from(level).ok()?),
            };
            Some(())
        },
    },
    Setting {
        name: "compression.lz4.level",
        of_brokers: Some("compression.lz4.level"),
        kind: SettingKind::Int,
        default: "9",
        accepted: "1 to 17",
        documentation: "Level used when `compression.type` is `lz4` and a batch comes in another codec.",
        read: |config, value| {
            config.compression_lz4_level = u32::try_from(integer(value, 1..=17)?).ok()?;
            Some(())
        },
    },
    Setting {
        name: "compression.type",
        of_brokers: Some("compression.type"),
        kind: SettingKind::Text,
        default: "producer",
        accepted: "`producer`, `uncompressed`, `gzip`, `snappy`, `lz4` or `zstd`",
        documentation: "Codec that batches are stored in. `producer` keeps each as it was sent, which costs the broker nothing.",
        read: |config, value| {
            config.compression_type = match value {
                "producer" => CompressionType::Producer,
                "uncompressed" => CompressionType::Uncompressed,
                "gzip" => CompressionType::Gzip,
                "snappy" => CompressionType::Snappy,
                "lz4" => CompressionType::Lz4,
                "zstd" => CompressionType::Zstd,
                _ => return None,
            };
            Some(())
        },
    },
    Setting {
        name: "compression.zstd.level",
        of_brokers: Some("compression.zstd.level"),
        kind: SettingKind::Int,
        default: "3",
        accepted: "-131072 to 22",
        documentation: "Level used when `compression.type` is `zstd` and a batch comes in another codec.",
        read: |config, value| {
            config.compression_zstd_level = i32::try_from(integer(value, -131_072..=22)?).ok()?;
            Some(())
        },
    },
    Setting {
        name: "delete.retention.ms",
        of_brokers: Some("log.cleaner.delete.retention.ms"),
        kind: SettingKind::Long,
        default: "86400000",
        accepted: MILLIS,
        documentation: "How long a compacted topic keeps tombstones and transaction markers, so that a reader that starts at offset 0 sees them.",
        read: |config, value| {
            config.delete_retention = millis(value, 0)?;
            Some(())
        },
    },
    Setting {
        name: "file.delete.delay.ms",
        of_brokers: Some("log.segment.delete.delay.ms"),
        kind: SettingKind::Long,
        default: "60000",
        accepted: MILLIS,
        documentation: "Without effect: segments live in object storage, and the garbage collector's grace holds for all topics.",
        read: |_, value| millis(value, 0).map(drop),
    },
    Setting {
        name: "flush.messages",
        of_brokers: Some("log.flush.interval.messages"),
        kind: SettingKind::Long,
        default: "9223372036854775807",
        accepted: "a number of records, at least 1",
        documentation: "Without effect: every record is fsynced before it is acknowledged.",
        read: |_, value| integer(value, 1..=i64::MAX).map(drop),
    },
    Setting {
        name: "flush.ms",
        of_brokers: Some("log.flush.interval.ms"),
        kind: SettingKind::Long,
        default: "9223372036854775807",
        accepted: MILLIS,
        documentation: "Without effect: every record is fsynced before it is acknowledged.",
        read: |_, value| millis(value, 0).map(drop),
    },
    Setting {
        name: "follower.replication.throttled.replicas",
        of_brokers: None,
        kind: SettingKind::List,
        default: "",
        accepted: THROTTLED,
        documentation: "Without effect: catching up has a rate of its own and only copies the tail.",
        read: |_, value| throttled(value),
    },
    Setting {
        name: "index.interval.bytes",
        of_brokers: Some("log.index.interval.bytes"),
        kind: SettingKind::Int,
        default: "4096",
        accepted: "a number of bytes, at least 0",
        documentation: "Without effect: a segment's index holds every batch.",
        read: |_, value| integer(value, 0..=i64::from(i32::MAX)).map(drop),
    },
    Setting {
        name: "leader.replication.throttled.replicas",
        of_brokers: None,
        kind: SettingKind::List,
        default: "",
        accepted: THROTTLED,
        documentation: "Without effect: catching up has a rate of its own and only copies the tail.",
        read: |_, value| throttled(value),
    },
    Setting {
        name: "local.retention.bytes",
        of_brokers: Some("log.local.retention.bytes"),
        kind: SettingKind::Long,
        default: "-2",
        accepted: "a number of bytes, -1 for no limit, or -2 to follow `retention.bytes`",
        documentation: "Bytes of a partition that brokers should keep in their caches. A hint: the tail is trimmed once it is uploaded.",
        read: |config, value| {
            config.local_retention_bytes = local_retention(value)?;
            Some(())
        },
    },
    Setting {
        name: "local.retention.ms",
        of_brokers: Some("log.local.retention.ms"),
        kind: SettingKind::Long,
        default: "-2",
        accepted: "a number of milliseconds, -1 for no limit, or -2 to follow `retention.ms`",
        documentation: "Age of records that brokers should keep in their caches. A hint: the tail is trimmed once it is uploaded.",
        read: |config, value| {
            config.local_retention_ms = local_retention(value)?;
            Some(())
        },
    },
    Setting {
        name: "max.compaction.lag.ms",
        of_brokers: Some("log.cleaner.max.compaction.lag.ms"),
        kind: SettingKind::Long,
        default: "9223372036854775807",
        accepted: MILLIS_POSITIVE,
        documentation: "Longest time a record stays out of compaction in a compacted topic.",
        read: |config, value| {
            config.max_compaction_lag = millis(value, 1)?;
            Some(())
        },
    },
    Setting {
        name: "max.message.bytes",
        of_brokers: Some("message.max.bytes"),
        kind: SettingKind::Int,
        default: "1048588",
        accepted: "a number of bytes, 0 to 67108864",
        documentation: "Largest record batch, after compression. Larger payloads belong in object storage, by reference.",
        read: |config, value| {
            config.max_message_bytes = u32::try_from(integer(value, 0..=i64::from(BATCH_BYTES_MAX))?).ok()?;
            Some(())
        },
    },
    Setting {
        name: "message.timestamp.after.max.ms",
        of_brokers: Some("log.message.timestamp.after.max.ms"),
        kind: SettingKind::Long,
        default: "3600000",
        accepted: MILLIS,
        documentation: "How far a record's timestamp may be ahead of the broker's clock, under CreateTime. Later ones are refused, so that they cannot pin retention.",
        read: |config, value| {
            config.timestamp_after_max = millis(value, 0)?;
            Some(())
        },
    },
    Setting {
        name: "message.timestamp.before.max.ms",
        of_brokers: Some("log.message.timestamp.before.max.ms"),
        kind: SettingKind::Long,
        default: "9223372036854775807",
        accepted: MILLIS,
        documentation: "How far a record's timestamp may be behind the broker's clock, under CreateTime. Older ones are refused.",
        read: |config, value| {
            config.timestamp_before_max = millis(value, 0)?;
            Some(())
        },
    },
    Setting {
        name: "message.timestamp.type",
        of_brokers: Some("log.message.timestamp.type"),
        kind: SettingKind::Text,
        default: "CreateTime",
        accepted: "`CreateTime` or `LogAppendTime`",
        documentation: "Whether a record's timestamp is the producer's or the broker's time of append.",
        read: |config, value| {
            config.timestamp_type = match value {
                "CreateTime" => TimestampType::CreateTime,
                "LogAppendTime" => TimestampType::LogAppendTime,
                _ => return None,
            };
            Some(())
        },
    },
    Setting {
        name: "min.cleanable.dirty.ratio",
        of_brokers: Some("log.cleaner.min.cleanable.ratio"),
        kind: SettingKind::Double,
        default: "0.5",
        accepted: "a fraction from 0 to 1",
        documentation: "Share of a compacted log that is not compacted yet, above which compaction starts.",
        read: |config, value| {
            let ratio: f64 = value.parse().ok()?;
            config.min_cleanable_dirty_ratio = (0.0..=1.0).contains(&ratio).then_some(ratio)?;
            Some(())
        },
    },
    Setting {
        name: "min.compaction.lag.ms",
        of_brokers: Some("log.cleaner.min.compaction.lag.ms"),
        kind: SettingKind::Long,
        default: "0",
        accepted: MILLIS,
        documentation: "Shortest time a record stays out of compaction in a compacted topic.",
        read: |config, value| {
            config.min_compaction_lag = millis(value, 0)?;
            Some(())
        },
    },
    Setting {
        name: "min.insync.replicas",
        of_brokers: Some("min.insync.replicas"),
        kind: SettingKind::Int,
        default: "2",
        accepted: "a number, at least 1",
        documentation: "In-sync replicas that must have fsynced a record before it counts as committed. Without an override 2, or 1 in a topic of one replica.",
        read: |config, value| {
            config.min_insync_replicas = Some(u32::try_from(integer(value, 1..=i64::from(i32::MAX))?).ok()?);
            Some(())
        },
    },
    Setting {
        name: "preallocate",
        of_brokers: Some("log.preallocate"),
        kind: SettingKind::Boolean,
        default: "false",
        accepted: BOOLEAN,
        documentation: "Without effect: the write-ahead log is always preallocated.",
        read: |_, value| boolean(value).map(drop),
    },
    Setting {
        name: "remote.storage.enable",
        of_brokers: None,
        kind: SettingKind::Boolean,
        default: "true",
        accepted: "`true` only: closed segments always live in object storage, and brokers hold only the tail",
        documentation: "Closed segments live in object storage. Always on.",
        read: |_, value| boolean(value)?.then_some(()),
    },
    Setting {
        name: "retention.bytes",
        of_brokers: Some("log.retention.bytes"),
        kind: SettingKind::Long,
        default: "-1",
        accepted: "a number of bytes, or -1 for no limit",
        documentation: "Bytes that each partition keeps under `cleanup.policy=delete`.",
        read: |config, value| {
            config.retention_bytes = u64::try_from(integer(value, -1..=i64::MAX)?).ok();
            Some(())
        },
    },
    Setting {
        name: "retention.ms",
        of_brokers: Some("log.retention.ms"),
        kind: SettingKind::Long,
        default: "604800000",
        accepted: "a number of milliseconds, or -1 for no limit",
        documentation: "How long records are kept under `cleanup.policy=delete`, by the broker's time of append.",
        read: |config, value| {
            config.retention = u64::try_from(integer(value, -1..=i64::MAX)?).ok().map(Duration::from_millis);
            Some(())
        },
    },
    Setting {
        name: "segment.bytes",
        of_brokers: Some("log.segment.bytes"),
        kind: SettingKind::Int,
        default: "1073741824",
        accepted: "a number of bytes, 14 to 2147483647",
        documentation: "Size at which a segment is closed and uploaded; 64 MiB at most. Small segments of many partitions share objects.",
        read: |config, value| {
            config.segment_bytes = u64::try_from(integer(value, 14..=i64::from(i32::MAX))?).ok()?;
            Some(())
        },
    },
    Setting {
        name: "segment.index.bytes",
        of_brokers: Some("log.index.size.max.bytes"),
        kind: SettingKind::Int,
        default: "10485760",
        accepted: "a number of bytes, at least 4",
        documentation: "Without effect: a segment's index is as large as its batches need.",
        read: |_, value| integer(value, 4..=i64::from(i32::MAX)).map(drop),
    },
    Setting {
        name: "segment.jitter.ms",
        of_brokers: Some("log.roll.jitter.ms"),
        kind: SettingKind::Long,
        default: "0",
        accepted: MILLIS,
        documentation: "Largest random time by which a segment is closed before `segment.ms`, so that not all partitions upload at once.",
        read: |config, value| {
            config.segment_jitter = millis(value, 0)?;
            Some(())
        },
    },
    Setting {
        name: "segment.ms",
        of_brokers: Some("log.roll.ms"),
        kind: SettingKind::Long,
        default: "604800000",
        accepted: MILLIS_POSITIVE,
        documentation: "Age at which a segment is closed and uploaded; 10 minutes at most.",
        read: |config, value| {
            config.segment_age = millis(value, 1)?;
            Some(())
        },
    },
    Setting {
        name: "unclean.leader.election.enable",
        of_brokers: Some("unclean.leader.election.enable"),
        kind: SettingKind::Boolean,
        default: "false",
        accepted: BOOLEAN,
        documentation: "Whether a replica that may lack committed records may lead when no other is left. Loses data.",
        read: |config, value| {
            config.unclean_leader_election = boolean(value)?;
            Some(())
        },
    },
];

fn integer(value: &str, accepted: RangeInclusive<i64>) -> Option<i64> {
    value.parse().ok().filter(|number| accepted.contains(number))
}

fn millis(value: &str, least: i64) -> Option<Duration> {
    let millis = integer(value, least..=i64::MAX)?;
    Some(Duration::from_millis(u64::try_from(millis).ok()?))
}

fn boolean(value: &str) -> Option<bool> {
    if value.eq_ignore_ascii_case("true") {
        Some(true)
    } else if value.eq_ignore_ascii_case("false") {
        Some(false)
    } else {
        None
    }
}

fn local_retention(value: &str) -> Option<LocalRetention> {
    Some(match integer(value, -2..=i64::MAX)? {
        -2 => LocalRetention::AsRetention,
        -1 => LocalRetention::Unlimited,
        limit => LocalRetention::Limit(u64::try_from(limit).ok()?),
    })
}

fn throttled(value: &str) -> Option<()> {
    let pair = |item: &String| {
        item.split_once(':')
            .is_some_and(|(partition, broker)| partition.parse::<u32>().is_ok() && broker.parse::<u32>().is_ok())
    };
    (value == "*" || items(value).iter().all(pair)).then_some(())
}
