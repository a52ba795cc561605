//! Records as users give and get them. Plain data.

use bytes::Bytes;
use millpond_log::batch::{Header, TimestampType};
use millpond_log::{LeaderEpoch, Offset, TimestampMs};
use std::fmt;
use std::sync::Arc;

/// A partition of a topic, by name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicPartition {
    /// The topic's name.
    pub topic: Arc<str>,
    /// The partition's index.
    pub partition: u32,
}

impl TopicPartition {
    /// Names a partition.
    pub fn new(topic: impl Into<Arc<str>>, partition: u32) -> TopicPartition {
        TopicPartition { topic: topic.into(), partition }
    }
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.topic, self.partition)
    }
}

impl fmt::Debug for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TopicPartition({self})")
    }
}

/// A record to write. A key or value that is not set is null, which differs from an empty one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerRecord {
    /// The topic's name.
    pub topic: Arc<str>,
    /// The partition; `None`: by the key's hash, or any if there is no key.
    pub partition: Option<u32>,
    /// The record's time; `None`: when it is sent.
    pub timestamp: Option<TimestampMs>,
    /// Key.
    pub key: Option<Bytes>,
    /// Value; null is a tombstone in a compacted topic.
    pub value: Option<Bytes>,
    /// Headers in order; names may repeat.
    pub headers: Vec<Header>,
}

impl ProducerRecord {
    /// A record for `topic` with null key and value.
    pub fn new(topic: impl Into<Arc<str>>) -> ProducerRecord {
        ProducerRecord {
            topic: topic.into(),
            partition: None,
            timestamp: None,
            key: None,
            value: None,
            headers: Vec::new(),
        }
    }

    /// Sets the key.
    #[must_use]
    pub fn key(mut self, key: impl Into<Bytes>) -> ProducerRecord {
        self.key = Some(key.into());
        self
    }

    /// Sets the value.
    #[must_use]
    pub fn value(mut self, value: impl Into<Bytes>) -> ProducerRecord {
        self.value = Some(value.into());
        self
    }

    /// Sets the partition.
    #[must_use]
    pub fn partition(mut self, partition: u32) -> ProducerRecord {
        self.partition = Some(partition);
        self
    }

    /// Sets the time.
    #[must_use]
    pub fn timestamp(mut self, timestamp: TimestampMs) -> ProducerRecord {
        self.timestamp = Some(timestamp);
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: impl Into<Bytes>, value: impl Into<Bytes>) -> ProducerRecord {
        self.headers.push(Header { name: name.into(), value: Some(value.into()) });
        self
    }

    /// About how many bytes the record takes in a batch: what it holds, and lengths at their longest.
    pub(crate) fn size_estimate(&self) -> usize {
        let len = |bytes: &Option<Bytes>| bytes.as_ref().map_or(0, Bytes::len);
        let headers: usize =
            self.headers.iter().map(|header| header.name.len() + len(&header.value) + HEADER_OVERHEAD_MAX).sum();
        len(&self.key) + len(&self.value) + headers + RECORD_OVERHEAD_MAX
    }
}

/// Bytes of a record beside key, value and headers: Kafka's bound, five varints, one long varint and the attributes.
const RECORD_OVERHEAD_MAX: usize = 21 + 15;

/// Bytes of a header beside its name and value: two varints.
const HEADER_OVERHEAD_MAX: usize = 10;

/// Where a record was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordMetadata {
    /// The topic's name.
    pub topic: Arc<str>,
    /// The partition's index.
    pub partition: u32,
    /// The record's offset; `None` with `Acks::None`, or when it had been written long before and the broker no longer
    /// knows where.
    pub offset: Option<Offset>,
    /// The record's time: its own, or the broker's where the topic says so.
    pub timestamp: TimestampMs,
}

/// A record that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerRecord {
    /// The topic's name.
    pub topic: Arc<str>,
    /// The partition's index.
    pub partition: u32,
    /// The record's offset.
    pub offset: Offset,
    /// The epoch of the leader that appended it.
    pub leader_epoch: LeaderEpoch,
    /// The record's time.
    pub timestamp: TimestampMs,
    /// Whose time that is.
    pub timestamp_type: TimestampType,
    /// Key; null and empty differ.
    pub key: Option<Bytes>,
    /// Value; null and empty differ.
    pub value: Option<Bytes>,
    /// Headers in order; names may repeat.
    pub headers: Vec<Header>,
}

impl ConsumerRecord {
    /// The record's partition.
    #[must_use]
    pub fn topic_partition(&self) -> TopicPartition {
        TopicPartition { topic: Arc::clone(&self.topic), partition: self.partition }
    }

    /// Bytes of key, value and headers.
    #[must_use]
    pub fn payload_size(&self) -> usize {
        let len = |bytes: &Option<Bytes>| bytes.as_ref().map_or(0, Bytes::len);
        let headers: usize = self.headers.iter().map(|header| header.name.len() + len(&header.value)).sum();
        len(&self.key) + len(&self.value) + headers
    }
}

/// An offset to commit: where a group goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitOffset {
    /// The next offset to read: one more than that of the last record that was processed.
    pub offset: Offset,
    /// The leader epoch of that record, if known: whoever goes on is told if the log is another one by then.
    pub leader_epoch: Option<LeaderEpoch>,
    /// Whatever is to be kept beside it, up to 4 KiB.
    pub metadata: String,
}

impl CommitOffset {
    /// Goes on at this offset.
    #[must_use]
    pub fn at(offset: Offset) -> CommitOffset {
        CommitOffset { offset, leader_epoch: None, metadata: String::new() }
    }

    /// Goes on after this record.
    #[must_use]
    pub fn after(record: &ConsumerRecord) -> CommitOffset {
        CommitOffset { leader_epoch: Some(record.leader_epoch), ..CommitOffset::at(record.offset.plus(1)) }
    }
}

impl From<Offset> for CommitOffset {
    fn from(offset: Offset) -> CommitOffset {
        CommitOffset::at(offset)
    }
}
