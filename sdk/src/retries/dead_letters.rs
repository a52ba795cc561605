//! Dead letters, read for people: whichever a filter takes, from the beginning of their topic to its end at that moment.

use super::copies::SetAside;
use super::failure::ErrorKind;
use super::marks::Marks;
use super::memory::Memory;
use crate::admin::{Admin, OffsetSpec};
use crate::client::Client;
use crate::consumer::{Consumer, ConsumerConfig, OffsetReset, StartAt};
use crate::error::Error;
use crate::record::{ConsumerRecord, TopicPartition};
use bytes::Bytes;
use millpond_log::{Offset, TimestampMs};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long one poll waits. Between polls is looked whether the end is reached: the last offsets may hold no records.
const POLL_WAIT: Duration = Duration::from_millis(100);

/// A record in a dead-letter topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// Where it is.
    pub place: TopicPartition,
    /// Its offset there.
    pub offset: Offset,
    /// When it came there.
    pub since: TimestampMs,
    /// Whether it was redriven, as far as that is remembered.
    pub redriven: bool,
    /// What it is; `None` if it is no copy of a record that failed: somebody else wrote it.
    pub set_aside: Option<SetAside>,
}

/// Which dead letters are wanted. What is not set takes all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadLetterFilter {
    /// Short name of the error.
    pub error_class: Option<String>,
    /// Whether the error was one that may pass.
    pub error_kind: Option<ErrorKind>,
    /// Topic of the original.
    pub topic: Option<String>,
    /// Partition of the original.
    pub partition: Option<u32>,
    /// Key.
    pub key: Option<Bytes>,
    /// Group whose handler failed.
    pub group: Option<String>,
    /// Came to the dead-letter topic at this time or later.
    pub from: Option<TimestampMs>,
    /// Came there before this time.
    pub before: Option<TimestampMs>,
}

impl DeadLetterFilter {
    /// Whether a dead letter is wanted. One that is no copy is only wanted by a filter that asks nothing of originals.
    #[must_use]
    pub fn takes(&self, dead: &DeadLetter) -> bool {
        let in_time =
            self.from.is_none_or(|from| dead.since >= from) && self.before.is_none_or(|before| dead.since < before);
        let Some(SetAside { original, group, error, .. }) = &dead.set_aside else {
            return in_time
                && DeadLetterFilter { from: None, before: None, ..self.clone() } == DeadLetterFilter::default();
        };
        in_time
            && self.error_class.as_ref().is_none_or(|class| *class == error.class)
            && self.error_kind.is_none_or(|kind| kind == error.kind)
            && self.topic.as_ref().is_none_or(|topic| **topic == *original.topic)
            && self.partition.is_none_or(|partition| partition == original.partition)
            && self.key.as_ref().is_none_or(|key| Some(key) == original.key.as_ref())
            && self.group.as_ref().is_none_or(|wanted| wanted == group)
    }
}

/// Reads the dead letters of a topic, once, up to where it ends when this begins.
pub struct DeadLetterReader {
    consumer: Consumer,
    /// First offset that exists and the end, by partition.
    bounds: BTreeMap<TopicPartition, (Offset, Offset)>,
    memory: Memory,
    /// What was redriven, by partition.
    marks: BTreeMap<u32, Marks>,
}

impl DeadLetterReader {
    /// Begins. Partitions are read side by side, each in order.
    ///
    /// # Errors
    /// `UnknownTopicOrPartition`, or why offsets, or what was redriven, cannot be told.
    pub async fn open(client: &Client, topic: &str) -> Result<DeadLetterReader, Error> {
        let admin = Admin::new(client);
        let described = admin.describe_topic(topic).await?;
        let mut bounds = BTreeMap::new();
        for partition in &described.partitions {
            let end = admin.list_offset(topic, partition.index, OffsetSpec::Latest).await?;
            let start = admin.list_offset(topic, partition.index, OffsetSpec::Earliest).await?;
            let offset = |found: Option<crate::FoundOffset>| found.map_or(Offset(0), |found| found.offset);
            bounds.insert(TopicPartition::new(topic, partition.index), (offset(start), offset(end)));
        }
        // Retention may take the oldest away meanwhile.
        let config = ConsumerConfig { offset_reset: OffsetReset::Earliest, scan: true, ..ConsumerConfig::default() };
        let mut consumer = Consumer::new(client, config);
        let read = bounds.iter().filter(|(_, (start, end))| start < end);
        let starts: Vec<_> = read.map(|(place, (start, _))| (place.clone(), StartAt::Offset(*start))).collect();
        consumer.assign(starts).await?;
        let memory = Memory::new(client, described);
        let mut marks = memory.recall().await?;
        for (place, (start, _)) in &bounds {
            // What retention took away needs not be remembered.
            marks.entry(place.partition).or_default().mark(0, start.0);
        }
        Ok(DeadLetterReader { consumer, bounds, memory, marks })
    }

    /// Where is remembered what was redriven, and what that was when this began.
    pub(super) fn memory(&self) -> (&Memory, &BTreeMap<u32, Marks>) {
        (&self.memory, &self.marks)
    }

    /// The partitions, each with the first offset that existed and the end, when this began.
    pub fn bounds(&self) -> impl Iterator<Item = (&TopicPartition, Offset, Offset)> {
        self.bounds.iter().map(|(place, (start, end))| (place, *start, *end))
    }

    /// Most offsets that are left to be read; some may hold no records.
    #[must_use]
    pub fn left(&self) -> u64 {
        let left = |(place, (_, end)): (&TopicPartition, &(Offset, Offset))| {
            self.consumer.position(place).map_or(0, |at| end.0.saturating_sub(at.0))
        };
        self.bounds.iter().map(left).sum()
    }

    /// Some more dead letters; `None` at the end. Cancel safe.
    ///
    /// # Errors
    /// What cannot be read.
    pub async fn next(&mut self) -> Result<Option<Vec<DeadLetter>>, Error> {
        while self.left() > 0 {
            let records = self.consumer.poll(POLL_WAIT).await?;
            let in_bounds = |record: &&ConsumerRecord| {
                self.bounds.get(&record.topic_partition()).is_some_and(|(_, end)| record.offset < *end)
            };
            let dead: Vec<DeadLetter> =
                records.iter().filter(in_bounds).map(|record| self.dead_letter(record)).collect();
            if !dead.is_empty() {
                return Ok(Some(dead));
            }
        }
        Ok(None)
    }

    fn dead_letter(&self, record: &ConsumerRecord) -> DeadLetter {
        let marks = self.marks.get(&record.partition);
        DeadLetter {
            place: record.topic_partition(),
            offset: record.offset,
            since: record.timestamp,
            redriven: marks.is_some_and(|marks| marks.contains(record.offset.0)),
            set_aside: SetAside::read(record),
        }
    }
}

impl std::fmt::Debug for DeadLetterReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeadLetterReader").field("bounds", &self.bounds).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::retries::LastError;
    use millpond_log::LeaderEpoch;
    use millpond_log::batch::TimestampType;

    fn dead_letter() -> DeadLetter {
        let original = ConsumerRecord {
            topic: "orders".into(),
            partition: 3,
            offset: Offset(9),
            leader_epoch: LeaderEpoch(0),
            timestamp: TimestampMs(1),
            timestamp_type: TimestampType::CreateTime,
            key: Some(Bytes::from_static(b"k")),
            value: None,
            headers: Vec::new(),
        };
        let error = LastError { kind: ErrorKind::Transient, class: "Timeout".to_owned(), text: "late".to_owned() };
        let (event_id, group) = ("orders-3-9".to_owned(), "billing".to_owned());
        let set_aside = SetAside { original, event_id, group, attempts: 3, error, next_at: None };
        let place = TopicPartition::new("orders.billing.dlq", 3);
        DeadLetter { place, offset: Offset(0), since: TimestampMs(1000), redriven: false, set_aside: Some(set_aside) }
    }

    #[test]
    fn a_filter_takes_what_meets_all_it_asks() {
        let check = |change: fn(&mut DeadLetterFilter), taken: bool| {
            let mut filter = DeadLetterFilter::default();
            change(&mut filter);
            assert_eq!(filter.takes(&dead_letter()), taken, "{filter:?}");
        };
        check(|_| (), true);
        check(|filter| filter.error_class = Some("Timeout".to_owned()), true);
        check(|filter| filter.error_class = Some("timeout".to_owned()), false);
        check(|filter| filter.error_kind = Some(ErrorKind::Transient), true);
        check(|filter| filter.error_kind = Some(ErrorKind::Permanent), false);
        check(|filter| filter.topic = Some("orders".to_owned()), true);
        check(|filter| filter.topic = Some("order".to_owned()), false);
        check(|filter| filter.partition = Some(3), true);
        check(|filter| filter.partition = Some(0), false);
        check(|filter| filter.key = Some(Bytes::from_static(b"k")), true);
        check(|filter| filter.key = Some(Bytes::new()), false);
        check(|filter| filter.group = Some("billing".to_owned()), true);
        check(|filter| filter.group = Some("shipping".to_owned()), false);
        check(|filter| filter.from = Some(TimestampMs(1000)), true);
        check(|filter| filter.from = Some(TimestampMs(1001)), false);
        check(|filter| filter.before = Some(TimestampMs(1001)), true);
        check(|filter| filter.before = Some(TimestampMs(1000)), false);
        check(|filter| (filter.partition, filter.group) = (Some(3), Some("shipping".to_owned())), false);
    }

    #[test]
    fn what_is_no_copy_meets_no_question_about_originals() {
        let foreign = DeadLetter { set_aside: None, ..dead_letter() };
        assert!(DeadLetterFilter::default().takes(&foreign));
        assert!(DeadLetterFilter { from: Some(TimestampMs(1000)), ..Default::default() }.takes(&foreign));
        assert!(!DeadLetterFilter { from: Some(TimestampMs(1001)), ..Default::default() }.takes(&foreign));
        assert!(!DeadLetterFilter { partition: Some(3), ..Default::default() }.takes(&foreign));
    }
}
