//! Copies of records in delay and dead-letter topics: their headers, how they are written, and how the original is read back. Pure.
//!
//! A copy has the original's key, value and headers, in order and with duplicates, and after them the headers below, as text. Its own
//! timestamp is the time it was made: with the original's, retention could delete an old record as soon as it is set aside. Names
//! are those that Spring's and Kafka Connect's users know, under this product's prefix.

use super::failure::{ErrorKind, LastError};
use crate::record::{ConsumerRecord, ProducerRecord};
use bytes::Bytes;
use millpond_log::batch::{Header, TimestampType};
use millpond_log::{LeaderEpoch, Offset, TimestampMs};
use std::sync::Arc;

/// Names of the headers. All values are UTF-8 text, numbers in decimal.
pub mod header {
    /// Topic of the original. The first header of a copy that is not the original's.
    pub const ORIGINAL_TOPIC: &str = "millpond.original-topic";
    /// Partition of the original.
    pub const ORIGINAL_PARTITION: &str = "millpond.original-partition";
    /// Offset of the original.
    pub const ORIGINAL_OFFSET: &str = "millpond.original-offset";
    /// Leader epoch of the original.
    pub const ORIGINAL_LEADER_EPOCH: &str = "millpond.original-leader-epoch";
    /// Timestamp of the original, in milliseconds since the Unix epoch.
    pub const ORIGINAL_TIMESTAMP: &str = "millpond.original-timestamp";
    /// Whose timestamp that is: `CreateTime` or `LogAppendTime`.
    pub const ORIGINAL_TIMESTAMP_TYPE: &str = "millpond.original-timestamp-type";
    /// Names the event for good: `TOPIC-PARTITION-OFFSET` of the record that was read first. Copies, copies of copies and
    /// redriven records have the same, so that readers can tell a duplicate.
    pub const EVENT_ID: &str = "millpond.event-id";
    /// The group whose handler failed, and which alone reads the copy in a delay topic.
    pub const GROUP: &str = "millpond.group";
    /// How often the handler ran on the record until the copy was made.
    pub const ATTEMPT: &str = "millpond.attempt";
    /// `transient` or `permanent`.
    pub const ERROR_KIND: &str = "millpond.error-kind";
    /// Short name of the last error; at most `CLASS_BYTES_MAX` bytes.
    pub const ERROR_CLASS: &str = "millpond.error-class";
    /// What the last error said; at most `TEXT_BYTES_MAX` bytes.
    pub const ERROR_TEXT: &str = "millpond.error-text";
    /// When the record is due in its delay topic, in milliseconds since the Unix epoch.
    pub const NEXT_AT: &str = "millpond.next-at";
    /// How often the record was redriven from a dead-letter topic.
    pub const REDRIVE_COUNT: &str = "millpond.redrive-count";
    /// The group whose dead letter was redriven.
    pub const REDRIVE_GROUP: &str = "millpond.redrive-group";

    /// What stands behind the original's headers in a copy.
    pub(super) const OF_A_COPY: [&str; 13] = [
        ORIGINAL_TOPIC,
        ORIGINAL_PARTITION,
        ORIGINAL_OFFSET,
        ORIGINAL_LEADER_EPOCH,
        ORIGINAL_TIMESTAMP,
        ORIGINAL_TIMESTAMP_TYPE,
        EVENT_ID,
        GROUP,
        ATTEMPT,
        ERROR_KIND,
        ERROR_CLASS,
        ERROR_TEXT,
        NEXT_AT,
    ];

    /// What stands behind the original's headers in a record that was redriven.
    pub(super) const OF_A_REDRIVE: [&str; 3] = [EVENT_ID, REDRIVE_COUNT, REDRIVE_GROUP];
}

/// Longest event id that is taken from a record, in bytes: the longest topic name, and two numbers.
const EVENT_ID_BYTES_MAX: usize = 249 + 1 + 10 + 1 + 20;

/// A record that was set aside in a delay or dead-letter topic, as its copy tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetAside {
    /// The record as it was read: topic, partition, offset, times, key, value and headers.
    pub original: ConsumerRecord,
    /// Names the event for good.
    pub event_id: String,
    /// The group whose handler failed.
    pub group: String,
    /// How often the handler has run on it.
    pub attempts: u32,
    /// Why it failed last.
    pub error: LastError,
    /// When it is due; in delay topics only.
    pub next_at: Option<TimestampMs>,
}

impl SetAside {
    /// Reads a copy; `None` if the record is none.
    #[must_use]
    pub fn read(copy: &ConsumerRecord) -> Option<SetAside> {
        // The last: the original may be a copy itself, when a dead-letter topic is read like any other.
        let first = copy.headers.iter().rposition(|found| found.name == header::ORIGINAL_TOPIC)?;
        let (before, block) = copy.headers.split_at(first);
        let text = |name: &str| text(block.iter().find(|found| found.name == name)?);
        let timestamp_type = match text(header::ORIGINAL_TIMESTAMP_TYPE)? {
            "CreateTime" => TimestampType::CreateTime,
            "LogAppendTime" => TimestampType::LogAppendTime,
            _ => return None,
        };
        // What others added on the way belongs to the record.
        let added = block.iter().filter(|found| !is_one_of(&header::OF_A_COPY, found));
        let original = ConsumerRecord {
            topic: text(header::ORIGINAL_TOPIC)?.into(),
            partition: text(header::ORIGINAL_PARTITION)?.parse().ok()?,
            offset: Offset(text(header::ORIGINAL_OFFSET)?.parse().ok()?),
            leader_epoch: LeaderEpoch(text(header::ORIGINAL_LEADER_EPOCH)?.parse().ok()?),
            timestamp: TimestampMs(text(header::ORIGINAL_TIMESTAMP)?.parse().ok()?),
            timestamp_type,
            key: copy.key.clone(),
            value: copy.value.clone(),
            headers: before.iter().chain(added).cloned().collect(),
        };
        let kind = match text(header::ERROR_KIND)? {
            "transient" => ErrorKind::Transient,
            "permanent" => ErrorKind::Permanent,
            _ => return None,
        };
        let error = LastError {
            kind,
            class: text(header::ERROR_CLASS)?.to_owned(),
            text: text(header::ERROR_TEXT)?.to_owned(),
        };
        let next_at = text(header::NEXT_AT).and_then(|text| text.parse().ok()).map(TimestampMs);
        Some(SetAside {
            original,
            event_id: text(header::EVENT_ID)?.to_owned(),
            group: text(header::GROUP)?.to_owned(),
            attempts: text(header::ATTEMPT)?.parse().ok()?,
            error,
            next_at,
        })
    }

    /// The copy, for a partition of `topic`.
    pub(super) fn copy(&self, topic: Arc<str>, partition: u32) -> ProducerRecord {
        let original = &self.original;
        let timestamp_type = match original.timestamp_type {
            TimestampType::CreateTime => "CreateTime",
            TimestampType::LogAppendTime => "LogAppendTime",
        };
        let mut headers = original.headers.clone();
        headers.extend([
            named(header::ORIGINAL_TOPIC, original.topic.to_string()),
            named(header::ORIGINAL_PARTITION, original.partition.to_string()),
            named(header::ORIGINAL_OFFSET, original.offset.0.to_string()),
            named(header::ORIGINAL_LEADER_EPOCH, original.leader_epoch.0.to_string()),
            named(header::ORIGINAL_TIMESTAMP, original.timestamp.0.to_string()),
            named(header::ORIGINAL_TIMESTAMP_TYPE, timestamp_type.to_owned()),
            named(header::EVENT_ID, self.event_id.clone()),
            named(header::GROUP, self.group.clone()),
            named(header::ATTEMPT, self.attempts.to_string()),
            named(header::ERROR_KIND, self.error.kind.as_str().to_owned()),
            named(header::ERROR_CLASS, self.error.class.clone()),
            named(header::ERROR_TEXT, self.error.text.clone()),
        ]);
        headers.extend(self.next_at.map(|next_at| named(header::NEXT_AT, next_at.0.to_string())));
        let (key, value) = (original.key.clone(), original.value.clone());
        ProducerRecord { topic, partition: Some(partition), timestamp: None, key, value, headers }
    }

    /// How often the original had been redriven before.
    #[must_use]
    pub fn redrives(&self) -> u32 {
        let count = self.original.headers.iter().rfind(|found| found.name == header::REDRIVE_COUNT);
        count.and_then(text).and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// The record to be written for it when it is redriven: the original, with its time and without anything of its retries, so that
    /// it has all of them before it again; and how often that was done.
    #[must_use]
    pub fn redriven(&self, topic: Arc<str>, partition: Option<u32>) -> ProducerRecord {
        let original = &self.original;
        let kept = original.headers.iter().filter(|found| !is_one_of(&header::OF_A_REDRIVE, found));
        let mut headers: Vec<Header> = kept.cloned().collect();
        headers.extend([
            named(header::EVENT_ID, self.event_id.clone()),
            named(header::REDRIVE_COUNT, self.redrives().saturating_add(1).to_string()),
            named(header::REDRIVE_GROUP, self.group.clone()),
        ]);
        let (key, value) = (original.key.clone(), original.value.clone());
        ProducerRecord { topic, partition, timestamp: Some(original.timestamp), key, value, headers }
    }
}

/// Names the event that a record tells of, for good: the same for a record, its copies in delay and dead-letter topics, and what was
/// redriven from there.
#[must_use]
pub fn event_id(record: &ConsumerRecord) -> String {
    let told = record.headers.iter().rfind(|found| found.name == header::EVENT_ID).and_then(text);
    match told.filter(|told| (1..=EVENT_ID_BYTES_MAX).contains(&told.len())) {
        Some(told) => told.to_owned(),
        None => format!("{}-{}-{}", record.topic, record.partition, record.offset),
    }
}

fn named(name: &'static str, value: String) -> Header {
    Header { name: Bytes::from_static(name.as_bytes()), value: Some(value.into()) }
}

fn text(found: &Header) -> Option<&str> {
    std::str::from_utf8(found.value.as_ref()?).ok()
}

fn is_one_of(names: &[&str], found: &Header) -> bool {
    names.iter().any(|name| found.name == name.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes() -> impl Strategy<Value = Option<Bytes>> {
        proptest::option::of(proptest::collection::vec(any::<u8>(), 0..6).prop_map(Bytes::from))
    }

    /// Headers of any names, ours among them.
    fn headers() -> impl Strategy<Value = Vec<Header>> {
        let ours = proptest::sample::select(
            [&header::OF_A_COPY[..], &header::OF_A_REDRIVE[..]].concat().into_iter().collect::<Vec<&str>>(),
        );
        let name = prop_oneof!["[a-z]{0,3}".prop_map(Bytes::from), ours.prop_map(|name| Bytes::from(name.to_owned()))];
        proptest::collection::vec((name, bytes()).prop_map(|(name, value)| Header { name, value }), 0..5)
    }

    fn originals() -> impl Strategy<Value = ConsumerRecord> {
        let place = ("[a-z.]{1,9}", any::<u32>(), any::<u64>(), any::<u32>());
        let time = (any::<i64>(), any::<bool>());
        (place, time, bytes(), bytes(), headers()).prop_map(
            |((topic, partition, offset, epoch), (ms, own), key, value, headers)| ConsumerRecord {
                topic: topic.into(),
                partition,
                offset: Offset(offset),
                leader_epoch: LeaderEpoch(epoch),
                timestamp: TimestampMs(ms),
                timestamp_type: if own { TimestampType::CreateTime } else { TimestampType::LogAppendTime },
                key,
                value,
                headers,
            },
        )
    }

    fn set_asides() -> impl Strategy<Value = SetAside> {
        let error = (any::<bool>(), "\\PC{0,9}", "\\PC{0,9}").prop_map(|(passes, class, text)| LastError {
            kind: if passes { ErrorKind::Transient } else { ErrorKind::Permanent },
            class,
            text,
        });
        let next_at = proptest::option::of(any::<i64>().prop_map(TimestampMs));
        (originals(), "\\PC{0,9}", any::<u32>(), error, next_at).prop_map(
            |(original, group, attempts, error, next_at)| {
                let event_id = event_id(&original);
                SetAside { original, event_id, group, attempts, error, next_at }
            },
        )
    }

    /// What a consumer reads of what a producer wrote.
    fn read_back(written: ProducerRecord) -> ConsumerRecord {
        ConsumerRecord {
            topic: written.topic,
            partition: written.partition.unwrap_or(0),
            offset: Offset(7),
            leader_epoch: LeaderEpoch(1),
            timestamp: written.timestamp.unwrap_or(TimestampMs(99)),
            timestamp_type: TimestampType::CreateTime,
            key: written.key,
            value: written.value,
            headers: written.headers,
        }
    }

    proptest! {
        /// Null and empty, duplicates, and headers that have the names of ours included.
        #[test]
        fn the_original_is_read_back_from_its_copy_as_it_was(set_aside in set_asides()) {
            let copy = read_back(set_aside.copy("t.retry.5m".into(), 3));
            prop_assert_eq!(SetAside::read(&copy), Some(set_aside));
        }

        #[test]
        fn a_copy_of_a_copy_keeps_the_event_id_and_the_innermost_original_can_be_read(set_aside in set_asides()) {
            let copy = read_back(set_aside.copy("t.g.dlq".into(), 3));
            prop_assert_eq!(event_id(&copy), event_id(&set_aside.original));
            let again = SetAside { original: copy, ..set_aside.clone() };
            let outer = SetAside::read(&read_back(again.copy("t.g.dlq.h.dlq".into(), 3))).expect("a copy");
            prop_assert_eq!(SetAside::read(&outer.original), Some(set_aside));
        }

        #[test]
        fn a_redriven_record_has_its_retries_before_it_again(set_aside in set_asides()) {
            let redriven = read_back(set_aside.redriven("t".into(), None));
            let foreign = |found: &&Header| !is_one_of(&header::OF_A_REDRIVE, found);
            let kept: Vec<&Header> = redriven.headers.iter().filter(foreign).collect();
            let had: Vec<&Header> = set_aside.original.headers.iter().filter(foreign).collect();
            prop_assert_eq!(kept, had, "what the application wrote, and nothing of a copy");
            prop_assert_eq!((&redriven.key, &redriven.value), (&set_aside.original.key, &set_aside.original.value));
            prop_assert_eq!(redriven.timestamp, set_aside.original.timestamp);
            prop_assert_eq!(event_id(&redriven), set_aside.event_id.clone());
            let failed_again = SetAside { original: redriven, ..set_aside.clone() };
            prop_assert_eq!(failed_again.redrives(), set_aside.redrives().saturating_add(1));
        }

        #[test]
        fn nothing_that_lacks_a_header_is_taken_for_a_copy(set_aside in set_asides(), without in 0usize..12) {
            let mut original = set_aside.original.clone();
            original.headers.clear();
            let mut copy = read_back(SetAside { original, ..set_aside }.copy("t".into(), 0));
            copy.headers.remove(without);
            prop_assert_eq!(SetAside::read(&copy), None);
        }

        #[test]
        fn no_record_is_too_odd_to_be_looked_at(record in originals()) {
            let _ = SetAside::read(&record);
            prop_assert!(!event_id(&record).is_empty());
        }
    }

    #[test]
    fn an_event_is_named_by_where_it_was_read_first() {
        let mut record = read_back(ProducerRecord::new("orders").partition(3));
        assert_eq!(event_id(&record), "orders-3-7");
        let long = "x".repeat(EVENT_ID_BYTES_MAX + 1);
        for odd in [Some(Bytes::from_static(b"\xff")), Some(Bytes::new()), None, Some(long.into())] {
            record.headers = vec![Header { name: Bytes::from_static(header::EVENT_ID.as_bytes()), value: odd }];
            assert_eq!(event_id(&record), "orders-3-7", "an id that cannot be one is none");
        }
    }
}
