//! Tells events that came before, by their ids, within a bounded window.

use crate::record::ConsumerRecord;
use bytes::Bytes;
use std::collections::{HashSet, VecDeque};
use std::fmt;

/// Longest id that is remembered, in bytes. What identifies events is a UUID or a name; a longer one is taken for none.
const ID_BYTES_MAX: usize = 1024;

type Extract = Box<dyn Fn(&ConsumerRecord) -> Option<Bytes> + Send + Sync>;

/// Remembers the ids of the events that were processed last, and tells whether one came before.
///
/// At-least-once delivery hands a record out again after a crash or a rebalance, and a producer without idempotence may have written it
/// twice. The window is this process's memory: what another process did before is not in it. So it spares work; it does not replace an
/// output that can take an event twice.
///
/// ```
/// # use millpond_sdk::{ConsumerRecord, Deduplicator};
/// # fn process(_: &ConsumerRecord) {}
/// # fn consume(records: Vec<ConsumerRecord>) {
/// let mut seen = Deduplicator::by_header("event-id", 100_000);
/// for record in &records {
///     if !seen.is_duplicate(record) {
///         process(record);
///         seen.remember(record);
///     }
/// }
/// # }
/// ```
pub struct Deduplicator {
    extract: Extract,
    ids_max: usize,
    known: HashSet<Bytes>,
    /// The same, the oldest first.
    order: VecDeque<Bytes>,
}

impl Deduplicator {
    /// Takes the last header of this name as the id, and remembers `ids_max` of them.
    #[must_use]
    pub fn by_header(name: impl Into<Bytes>, ids_max: usize) -> Deduplicator {
        let name = name.into();
        Deduplicator::new(ids_max, move |record| {
            record.headers.iter().rev().find(|header| header.name == name).and_then(|header| header.value.clone())
        })
    }

    /// Takes what `extract` returns as the id, and remembers `ids_max` of them. A record without one is never a duplicate.
    #[must_use]
    pub fn new(
        ids_max: usize,
        extract: impl Fn(&ConsumerRecord) -> Option<Bytes> + Send + Sync + 'static,
    ) -> Deduplicator {
        Deduplicator { extract: Box::new(extract), ids_max, known: HashSet::new(), order: VecDeque::new() }
    }

    /// Whether an event with the record's id is among those remembered.
    #[must_use]
    pub fn is_duplicate(&self, record: &ConsumerRecord) -> bool {
        self.id(record).is_some_and(|id| self.known.contains(&id))
    }

    /// Remembers the record's id: to be called once the record was processed, so that one that failed is not taken for done.
    pub fn remember(&mut self, record: &ConsumerRecord) {
        let Some(id) = self.id(record) else { return };
        // A copy: the record's own bytes keep its whole batch.
        let id = Bytes::copy_from_slice(&id);
        if self.ids_max == 0 || !self.known.insert(id.clone()) {
            return;
        }
        self.order.push_back(id);
        while self.order.len() > self.ids_max {
            let oldest = self.order.pop_front().expect("it is longer than the window");
            self.known.remove(&oldest);
        }
    }

    fn id(&self, record: &ConsumerRecord) -> Option<Bytes> {
        (self.extract)(record).filter(|id| !id.is_empty() && id.len() <= ID_BYTES_MAX)
    }
}

impl fmt::Debug for Deduplicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deduplicator").field("ids_max", &self.ids_max).field("ids", &self.order.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_log::batch::{Header, TimestampType};
    use millpond_log::{LeaderEpoch, Offset, TimestampMs};

    fn record(ids: &[&[u8]]) -> ConsumerRecord {
        let header = |id: &&[u8]| Header { name: "id".into(), value: Some(Bytes::copy_from_slice(id)) };
        ConsumerRecord {
            topic: "t".into(),
            partition: 0,
            offset: Offset(0),
            leader_epoch: LeaderEpoch(0),
            timestamp: TimestampMs(0),
            timestamp_type: TimestampType::CreateTime,
            key: Some("k".into()),
            value: None,
            headers: ids.iter().map(header).collect(),
        }
    }

    #[test]
    fn an_event_is_a_duplicate_once_it_was_processed() {
        let mut seen = Deduplicator::by_header("id", 10);
        let event = record(&[b"1"]);
        assert!(!seen.is_duplicate(&event) && !seen.is_duplicate(&event), "looking is not processing");
        seen.remember(&event);
        assert!(seen.is_duplicate(&event) && !seen.is_duplicate(&record(&[b"2"])));
        assert!(seen.is_duplicate(&record(&[b"0", b"1"])), "the last header of the name counts");
    }

    #[test]
    fn only_the_newest_ids_are_remembered() {
        let mut seen = Deduplicator::by_header("id", 2);
        for id in [&b"1"[..], b"2", b"2", b"3"] {
            seen.remember(&record(&[id]));
        }
        let duplicates = [&b"1"[..], b"2", b"3"].map(|id| seen.is_duplicate(&record(&[id])));
        assert_eq!((duplicates, seen.known.len(), seen.order.len()), ([false, true, true], 2, 2));
    }

    #[test]
    fn what_has_no_id_is_no_duplicate() {
        let mut seen = Deduplicator::by_header("id", 2);
        for none in [record(&[]), record(&[b""]), record(&[&[7; ID_BYTES_MAX + 1]])] {
            seen.remember(&none);
            assert!(!seen.is_duplicate(&none));
        }
        assert!(seen.order.is_empty());
    }

    #[test]
    fn any_part_of_a_record_can_be_its_id() {
        let mut seen = Deduplicator::new(2, |record| record.key.clone());
        seen.remember(&record(&[]));
        assert!(seen.is_duplicate(&record(&[b"1"])));
    }
}
