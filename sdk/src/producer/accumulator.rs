//! Gathers records into batches by size and linger. Pure: the time and the random part are arguments.

use super::batch::{Pending, RecordBatch};
use super::partitioner::next_sticky;
use crate::error::Error;
use crate::record::{ProducerRecord, TopicPartition};
use millpond_log::TimestampMs;
use millpond_log::batch::{BatchBuilder, NewRecord};
use millpond_log::codec::Codec;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::Instant;

/// The batches being filled, one per partition at most, and those that are full.
pub(super) struct Accumulator {
    batch_bytes: usize,
    linger: Duration,
    codec: Codec,
    transactional: bool,
    topics: HashMap<Arc<str>, Topic>,
    full: Vec<RecordBatch>,
    /// Held by every batch begun since the last flush; closed when all of them are answered.
    generation: Arc<watch::Sender<Option<Error>>>,
    /// Generations of batches that may not be answered yet.
    unanswered: Vec<watch::Receiver<Option<Error>>>,
}

#[derive(Default)]
struct Topic {
    open: BTreeMap<u32, Open>,
    /// Where keyless records go, until its batch is closed.
    sticky: Option<u32>,
    last_sticky: Option<u32>,
}

struct Open {
    batch: RecordBatch,
    /// Whether its linger was cut short.
    flushed: bool,
}

/// Where a record wants to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// To this partition.
    Partition(u32),
    /// To any of so many.
    Any { count: u32, random: u32 },
}

/// A record to append, with all that goes with it.
pub(super) struct Append {
    pub(super) record: ProducerRecord,
    pub(super) timestamp: TimestampMs,
    pub(super) choice: Choice,
    pub(super) memory: OwnedSemaphorePermit,
    pub(super) pending: Pending,
}

impl Accumulator {
    /// Gathers batches; those of a transaction are marked as such.
    pub(super) fn new(batch_bytes: usize, linger: Duration, codec: Codec, transactional: bool) -> Accumulator {
        let (generation, first) = watch::channel(None);
        Accumulator {
            batch_bytes,
            linger,
            codec,
            transactional,
            topics: HashMap::new(),
            full: Vec::new(),
            generation: Arc::new(generation),
            unanswered: vec![first],
        }
    }

    /// Adds a record to its partition's batch. Returns whether the sender has something new to look at: a batch that is
    /// full, or one whose linger begins.
    pub(super) fn append(&mut self, now: Instant, append: Append) -> bool {
        let Append { record, timestamp, choice, memory, pending } = append;
        let size = record.size_estimate();
        let topic = self.topics.entry(Arc::clone(&record.topic)).or_default();
        let partition = topic.choose(choice, size, self.batch_bytes);
        let mut news = false;
        if let Some(full) = topic.take_if(partition, |batch| batch.size() + size > self.batch_bytes) {
            self.full.push(full);
            news = true;
        }
        let open = topic.open.entry(partition).or_insert_with(|| {
            news = true;
            let partition = TopicPartition { topic: Arc::clone(&record.topic), partition };
            let builder = BatchBuilder::new(self.codec);
            let builder = if self.transactional { builder.transactional() } else { builder };
            Open { batch: RecordBatch::new(partition, builder, now, Arc::clone(&self.generation)), flushed: false }
        });
        let fields = NewRecord {
            timestamp,
            key: record.key.as_deref(),
            value: record.value.as_deref(),
            headers: &record.headers,
        };
        open.batch.push(fields, pending, memory);
        if let Some(full) = topic.take_if(partition, |batch| batch.size() >= self.batch_bytes) {
            self.full.push(full);
            news = true;
        }
        news
    }

    /// Ends the linger of every batch.
    pub(super) fn hurry(&mut self) {
        for open in self.topics.values_mut().flat_map(|topic| topic.open.values_mut()) {
            open.flushed = true;
        }
    }

    /// Ends the linger of every batch. Each channel returned is closed when a part of all that was appended so far is answered; it
    /// holds what failed of it.
    pub(super) fn flush(&mut self) -> Vec<watch::Receiver<Option<Error>>> {
        self.hurry();
        let (generation, next) = watch::channel(None);
        self.generation = Arc::new(generation);
        let is_open = |generation: &watch::Receiver<Option<Error>>| generation.has_changed().is_ok();
        // What has failed is told once.
        let told = |generation: &&watch::Receiver<Option<Error>>| is_open(generation) || generation.borrow().is_some();
        let before = self.unanswered.iter().filter(told).cloned().collect();
        self.unanswered.retain(is_open);
        self.unanswered.push(next);
        before
    }

    /// Takes the batches that are full, and those whose linger is over and whose partition has room for one more in flight.
    /// A batch that waits for room goes on filling, until it has waited for `patience`.
    pub(super) fn take(
        &mut self,
        now: Instant,
        patience: Duration,
        has_room: impl Fn(&TopicPartition) -> bool,
    ) -> Vec<RecordBatch> {
        let mut taken = std::mem::take(&mut self.full);
        let linger = self.linger;
        for topic in self.topics.values_mut() {
            let due: Vec<u32> = topic
                .open
                .iter()
                .filter(|(_, open)| {
                    let lingered = open.flushed || now >= open.batch.created() + linger;
                    (lingered && has_room(open.batch.partition())) || now >= open.batch.created() + patience
                })
                .map(|(partition, _)| *partition)
                .collect();
            taken.extend(due.into_iter().filter_map(|partition| topic.take_if(partition, |_| true)));
        }
        taken
    }

    /// When `take` has something new to give, unless an append comes first.
    pub(super) fn deadline(&self, patience: Duration, has_room: impl Fn(&TopicPartition) -> bool) -> Option<Instant> {
        let opens = self.topics.values().flat_map(|topic| topic.open.values());
        let due = opens.map(|open| {
            let wait = match (has_room(open.batch.partition()), open.flushed) {
                (true, true) => Duration::ZERO,
                (true, false) => self.linger,
                (false, _) => patience,
            };
            open.batch.created() + wait
        });
        due.min()
    }

    /// Drops every record: whoever waits for one learns that the producer's task ended.
    pub(super) fn clear(&mut self) {
        self.full.clear();
        self.topics.clear();
    }

    /// Whether it holds no record.
    pub(super) fn is_empty(&self) -> bool {
        self.full.is_empty() && self.topics.values().all(|topic| topic.open.is_empty())
    }
}

impl Topic {
    /// The partition of a record. The sticky one is left when the record would not fit its batch.
    fn choose(&mut self, choice: Choice, size: usize, batch_bytes: usize) -> u32 {
        let (count, random) = match choice {
            Choice::Partition(partition) => return partition,
            Choice::Any { count, random } => (count, random),
        };
        let fits = |sticky: &u32| {
            let filled = self.open.get(sticky).map_or(0, |open| open.batch.size());
            *sticky < count && (filled == 0 || filled + size <= batch_bytes)
        };
        let partition = match self.sticky.filter(fits) {
            Some(sticky) => sticky,
            None => next_sticky(self.last_sticky, count, random),
        };
        (self.sticky, self.last_sticky) = (Some(partition), Some(partition));
        partition
    }

    fn take_if(&mut self, partition: u32, due: impl Fn(&RecordBatch) -> bool) -> Option<RecordBatch> {
        if !self.open.get(&partition).is_some_and(|open| due(&open.batch)) {
            return None;
        }
        if self.sticky == Some(partition) {
            self.sticky = None;
        }
        self.open.remove(&partition).map(|open| open.batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::{Semaphore, oneshot};

    const LINGER: Duration = Duration::from_millis(5);
    const PATIENCE: Duration = Duration::from_secs(120);

    struct Bench {
        accumulator: Accumulator,
        memory: Arc<Semaphore>,
        start: Instant,
    }

    impl Bench {
        fn new(batch_bytes: usize) -> Bench {
            let accumulator = Accumulator::new(batch_bytes, LINGER, Codec::None, false);
            Bench { accumulator, memory: Arc::new(Semaphore::new(1 << 20)), start: Instant::now() }
        }

        /// Appends a record of `size` value bytes, `at` milliseconds after the start.
        fn append(&mut self, at: u64, choice: Choice, size: usize) -> bool {
            let record = ProducerRecord::new("t").value(vec![7; size]);
            let timestamp = TimestampMs(1);
            let (reply, _) = oneshot::channel();
            let memory = Arc::clone(&self.memory).try_acquire_many_owned(1).expect("there is memory");
            let append = Append { record, timestamp, choice, memory, pending: Pending { reply, timestamp } };
            self.accumulator.append(self.at(at), append)
        }

        fn at(&self, ms: u64) -> Instant {
            self.start + Duration::from_millis(ms)
        }

        /// Partition and record count of the batches that are due.
        fn take(&mut self, at: u64, has_room: bool) -> Vec<(u32, u32)> {
            let taken = self.accumulator.take(self.at(at), PATIENCE, |_| has_room);
            taken.iter().map(|batch| (batch.partition().partition, batch.count())).collect()
        }
    }

    #[test]
    fn a_batch_is_due_when_its_linger_is_over() {
        let mut bench = Bench::new(1000);
        assert!(bench.append(0, Choice::Partition(0), 10), "the sender must learn of the linger");
        assert!(!bench.append(1, Choice::Partition(0), 10), "nothing new for it");
        assert!(bench.append(2, Choice::Partition(1), 10));
        assert_eq!(bench.take(4, true), []);
        assert_eq!(bench.accumulator.deadline(PATIENCE, |_| true), Some(bench.at(5)));
        assert_eq!(bench.take(5, true), [(0, 2)]);
        assert_eq!(bench.accumulator.deadline(PATIENCE, |_| true), Some(bench.at(7)));
        assert_eq!(bench.take(7, true), [(1, 1)]);
        assert!(bench.accumulator.is_empty());
    }

    #[test]
    fn a_full_batch_is_due_at_once_whether_there_is_room_or_not() {
        let mut bench = Bench::new(300);
        bench.append(0, Choice::Partition(0), 150);
        assert!(bench.append(0, Choice::Partition(0), 150), "the first one is closed");
        assert_eq!(bench.take(0, false), [(0, 1)]);
        assert!(bench.append(0, Choice::Partition(1), 500), "larger than a batch: one of its own");
        assert_eq!(bench.take(0, false), [(1, 1)]);
    }

    #[test]
    fn a_batch_without_room_goes_on_filling() {
        let mut bench = Bench::new(1000);
        bench.append(0, Choice::Partition(0), 10);
        assert_eq!(bench.take(50, false), []);
        assert_eq!(bench.accumulator.deadline(PATIENCE, |_| false), Some(bench.start + PATIENCE));
        bench.append(60, Choice::Partition(0), 10);
        assert_eq!(bench.take(60, true), [(0, 2)]);
        bench.append(100, Choice::Partition(0), 10);
        assert_eq!(bench.take(100 + 120_000, false), [(0, 1)], "it is given up by the lane, not kept for ever");
    }

    #[test]
    fn keyless_records_stick_to_a_partition_until_its_batch_is_closed() {
        let mut bench = Bench::new(300);
        let any = |random| Choice::Any { count: 4, random };
        for random in [2, 3, 0] {
            bench.append(0, any(random), 10);
        }
        assert_eq!(bench.take(5, true), [(2, 3)]);
        bench.append(6, any(1), 10);
        let next = bench.take(11, true);
        assert!(matches!(next[..], [(partition, 1)] if partition != 2), "{next:?}");
        // A record that does not fit moves on rather than making the next batch of the same partition.
        bench.append(20, any(0), 200);
        bench.append(20, any(0), 200);
        let both = bench.take(25, true);
        assert!(matches!(both[..], [(a, 1), (b, 1)] if a != b), "{both:?}");
    }

    #[test]
    fn flush_cuts_lingers_short_and_waits_for_what_was_before_it() {
        let mut bench = Bench::new(1000);
        bench.append(0, Choice::Partition(0), 10);
        let before = bench.accumulator.flush();
        bench.append(1, Choice::Partition(1), 10);
        assert_eq!(bench.accumulator.deadline(PATIENCE, |_| true), Some(bench.at(0)));
        let flushed = bench.accumulator.take(bench.at(1), PATIENCE, |_| true);
        assert_eq!(flushed.len(), 1);
        assert!(before.iter().any(|generation| generation.has_changed().is_ok()), "its batch is not answered");
        let after = bench.accumulator.flush();
        drop(flushed);
        assert!(before.iter().all(|generation| generation.has_changed().is_err()));
        assert!(after.iter().any(|generation| generation.has_changed().is_ok()), "the later one has more to wait for");
        bench.accumulator.take(bench.at(1), PATIENCE, |_| true);
        assert!(after.iter().all(|generation| generation.has_changed().is_err()));
    }
}
