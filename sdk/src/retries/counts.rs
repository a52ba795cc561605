//! How many dead letters there are, by what happened to them and where they came from. Pure.

use super::dead_letters::DeadLetter;
use super::failure::ErrorKind;
use millpond_log::TimestampMs;
use std::collections::BTreeMap;

/// Most kinds of dead letters that are told apart. Error classes are the application's words: they may be many.
pub const COUNTS_MAX: usize = 1000;

/// Dead letters of one topic, counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadLetterCounts {
    counts: BTreeMap<(String, String, ErrorKind, String), Count>,
    /// Of kinds above `COUNTS_MAX`.
    pub others: u64,
    /// Records that are no copies of records that failed.
    pub foreign: u64,
    /// All.
    pub records: u64,
    /// Those of all that were redriven.
    pub redriven: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Count {
    records: u64,
    redriven: u64,
    oldest: TimestampMs,
    newest: TimestampMs,
}

/// Dead letters of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetterCount<'a> {
    /// Topic of the originals.
    pub topic: &'a str,
    /// Group whose handler failed.
    pub group: &'a str,
    /// Whether the error may pass.
    pub error_kind: ErrorKind,
    /// Short name of the error.
    pub error_class: &'a str,
    /// How many.
    pub records: u64,
    /// How many of them were redriven.
    pub redriven: u64,
    /// When the first of them came.
    pub oldest: TimestampMs,
    /// When the last of them came.
    pub newest: TimestampMs,
}

impl DeadLetterCounts {
    /// Counts one.
    pub fn add(&mut self, dead: &DeadLetter) {
        let redriven = u64::from(dead.redriven);
        self.records += 1;
        self.redriven += redriven;
        let Some(set_aside) = &dead.set_aside else {
            self.foreign += 1;
            return;
        };
        let (error, original) = (&set_aside.error, &set_aside.original);
        let kind = (original.topic.to_string(), set_aside.group.clone(), error.kind, error.class.clone());
        if !self.counts.contains_key(&kind) && self.counts.len() >= COUNTS_MAX {
            self.others += 1;
            return;
        }
        let none = Count { records: 0, redriven: 0, oldest: dead.since, newest: dead.since };
        let count = self.counts.entry(kind).or_insert(none);
        count.records += 1;
        count.redriven += redriven;
        count.oldest = count.oldest.min(dead.since);
        count.newest = count.newest.max(dead.since);
    }

    /// The counts, by topic, group and error.
    pub fn iter(&self) -> impl Iterator<Item = DeadLetterCount<'_>> {
        self.counts.iter().map(|((topic, group, error_kind, error_class), count)| DeadLetterCount {
            topic,
            group,
            error_kind: *error_kind,
            error_class,
            records: count.records,
            redriven: count.redriven,
            oldest: count.oldest,
            newest: count.newest,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{ConsumerRecord, TopicPartition};
    use crate::retries::{LastError, SetAside};
    use millpond_log::batch::TimestampType;
    use millpond_log::{LeaderEpoch, Offset};

    fn dead(class: &str, since: i64, redriven: bool) -> DeadLetter {
        let original = ConsumerRecord {
            topic: "t".into(),
            partition: 0,
            offset: Offset(0),
            leader_epoch: LeaderEpoch(0),
            timestamp: TimestampMs(0),
            timestamp_type: TimestampType::CreateTime,
            key: None,
            value: None,
            headers: Vec::new(),
        };
        let error = LastError { kind: ErrorKind::Permanent, class: class.to_owned(), text: String::new() };
        let (event_id, group) = (String::new(), "g".to_owned());
        let set_aside = Some(SetAside { original, event_id, group, attempts: 1, error, next_at: None });
        let place = TopicPartition::new("t.g.dlq", 0);
        DeadLetter { place, offset: Offset(0), since: TimestampMs(since), redriven, set_aside }
    }

    #[test]
    fn dead_letters_are_counted_by_error_and_origin() {
        let mut counts = DeadLetterCounts::default();
        let foreign = DeadLetter { set_aside: None, ..dead("", 0, false) };
        for dead in [dead("b", 5, false), dead("a", 3, true), dead("b", 4, true), dead("b", 9, false), foreign] {
            counts.add(&dead);
        }
        let told: Vec<_> = counts
            .iter()
            .map(|count| (count.error_class, count.records, count.redriven, count.oldest.0, count.newest.0))
            .collect();
        assert_eq!(told, [("a", 1, 1, 3, 3), ("b", 3, 1, 4, 9)]);
        assert_eq!((counts.records, counts.redriven, counts.foreign, counts.others), (5, 2, 1, 0));
    }

    #[test]
    fn kinds_are_bounded_and_none_is_uncounted() {
        let mut counts = DeadLetterCounts::default();
        for class in 0..COUNTS_MAX + 5 {
            counts.add(&dead(&class.to_string(), 0, false));
        }
        counts.add(&dead("0", 0, false));
        assert_eq!((counts.iter().count(), counts.others, counts.records), (COUNTS_MAX, 5, COUNTS_MAX as u64 + 6));
    }
}
