//! Delay and dead-letter topics: created when first needed, in the likeness of the topic whose records they take.

use crate::admin::{Admin, NewTopic};
use crate::client::Client;
use crate::description::TopicDescription;
use crate::error::Error;
use millpond_log::ErrorCode;
use millpond_log::limits::{BATCH_BYTES_DEFAULT, BATCH_BYTES_MAX};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// What a topic is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    Delay,
    DeadLetters,
}

/// How much longer a record's copy may be than the record, in bytes: what the headers of a copy take, with group names of the longest.
const COPY_OVERHEAD_BYTES_MAX: u32 = 64 << 10;
const _: () = assert!(
    COPY_OVERHEAD_BYTES_MAX as usize > (32 << 10) + 3 * super::failure::TEXT_BYTES_MAX + 4 * 249 + 13 * 64,
    "the longest group name, the error, the topic's names, and the headers' own names and lengths"
);

/// How long the brokers' default keeps records: `retention.ms`.
const RETENTION_DEFAULT: Duration = Duration::from_secs(7 * 86_400);

/// How many partitions the topic `name` has. If there is no such topic, it is created like `source`.
///
/// # Errors
/// Those that are `retriable` pass by themselves.
pub(super) async fn ensure(client: &Client, name: &str, source: &str, for_what: Use) -> Result<u32, Error> {
    let deadline = || Instant::now() + client.config().api_timeout;
    match client.partition_count(name, false, deadline()).await {
        Err(error) if error.code == Some(ErrorCode::UnknownTopicOrPartition) => {}
        known => return known,
    }
    let admin = Admin::new(client);
    let source = admin.describe_topic(source).await?;
    let created = match admin.create_topic(like(&source, name, for_what)).await {
        // Another consumer of the group was faster, or an answer was lost.
        Err(error) if error.maybe_done || error.code == Some(ErrorCode::TopicAlreadyExists) => {
            admin.describe_topic(name).await?
        }
        Err(refused) => return Err(may_pass(refused)),
        Ok(created) => created,
    };
    tracing::info!(topic = name, partitions = created.partitions.len(), "created a topic for records that fail");
    Ok(u32::try_from(created.partitions.len()).expect("partitions are counted in 32 bits"))
}

/// `source` has as many copies: so many brokers were there once, and one that is down comes back or is replaced.
fn may_pass(refused: Error) -> Error {
    let retriable = refused.retriable || refused.code == Some(ErrorCode::InvalidReplicationFactor);
    Error { retriable, ..refused }
}

/// The topic to create: as many partitions and copies as `source` has, and settings by which no record is lost that `source` would keep.
fn like(source: &TopicDescription, name: &str, for_what: Use) -> NewTopic {
    let copies = source.partitions.first().map_or(0, |partition| partition.replicas.len());
    NewTopic {
        name: name.to_owned(),
        partitions: u32::try_from(source.partitions.len()).ok().filter(|count| *count > 0),
        replication_factor: u32::try_from(copies).ok().filter(|count| *count > 0),
        configs: settings(&source.configs, for_what),
    }
}

fn settings(source: &BTreeMap<String, String>, for_what: Use) -> BTreeMap<String, String> {
    let mut settings = BTreeMap::new();
    let mut set = |name: &str, value: String| drop(settings.insert(name.to_owned(), value));
    let largest = source.get("max.message.bytes").and_then(|value| value.parse().ok()).unwrap_or(BATCH_BYTES_DEFAULT);
    set("max.message.bytes", largest.saturating_add(COPY_OVERHEAD_BYTES_MAX).min(BATCH_BYTES_MAX).to_string());
    if let Some(min_isr) = source.get("min.insync.replicas") {
        set("min.insync.replicas", min_isr.clone());
    }
    let retention: Option<i64> = source.get("retention.ms").and_then(|value| value.parse().ok());
    let is_long = |ms: i64| u64::try_from(ms).is_err() || ms as u128 > RETENTION_DEFAULT.as_millis();
    match (for_what, retention) {
        // Until somebody has looked at them.
        (Use::DeadLetters, _) => set("retention.ms", "-1".to_owned()),
        (Use::Delay, Some(ms)) if is_long(ms) => set("retention.ms", ms.to_string()),
        (Use::Delay, _) => {}
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(source: &[(&str, &str)], for_what: Use, expected: &[(&str, &str)]) {
        let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        assert_eq!(settings(&map(source), for_what), map(expected), "{source:?} {for_what:?}");
    }

    #[test]
    fn dead_letters_stay_and_delayed_records_at_least_as_long_as_in_their_topic() {
        let size = ("max.message.bytes", "1114124");
        check(&[], Use::Delay, &[size]);
        check(&[], Use::DeadLetters, &[size, ("retention.ms", "-1")]);
        check(&[("retention.ms", "60000")], Use::Delay, &[size]);
        check(&[("retention.ms", "60000")], Use::DeadLetters, &[size, ("retention.ms", "-1")]);
        check(&[("retention.ms", "-1")], Use::Delay, &[size, ("retention.ms", "-1")]);
        check(&[("retention.ms", "31536000000")], Use::Delay, &[size, ("retention.ms", "31536000000")]);
    }

    #[test]
    fn copies_fit_and_are_as_safe_as_their_originals() {
        let source = [("max.message.bytes", "2000000"), ("min.insync.replicas", "3"), ("cleanup.policy", "compact")];
        let made = [("max.message.bytes", "2065536"), ("min.insync.replicas", "3")];
        check(&source, Use::Delay, &made);
        let largest = BATCH_BYTES_MAX.to_string();
        check(&[("max.message.bytes", &largest)], Use::Delay, &[("max.message.bytes", &largest)]);
        let unclean = [("unclean.leader.election.enable", "true")];
        check(&unclean, Use::Delay, &[("max.message.bytes", "1114124")]);
    }
}
