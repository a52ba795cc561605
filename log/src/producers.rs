//! Producer state of one partition (rules P1 to P6, X5): a deterministic function of the log's prefix.
//!
//! Time enters only as the append time stored with each batch, so replicas at one offset have equal state. It judges batches
//! and remembers them; it never appends one.

mod refused;
mod snapshot;

pub use refused::Refused;

use crate::batch::{ProducerStamp, ProducerWrite, WriteKind};
use crate::ids::{CoordinatorEpoch, Offset, ProducerEpoch, ProducerId, TimestampMs};
use crate::limits::{PARTITION_PRODUCERS_MAX, PRODUCER_BATCHES_REMEMBERED};
use crate::transactions::{EndMarker, EndedTxn, Marker, OpenTxn};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What the partition knows of its producers at one offset.
///
/// Whoever feeds it calls, for each batch of the log in order, `expire` with the batch's append time and then `append`. So leader,
/// followers and replay forget a producer at the same offset (rule P2). The leader judges a batch by what `at` tells before it: what is
/// refused in the end is in no log, and makes it forget nobody.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProducerTable {
    producers: BTreeMap<Writer, Producer>,
    /// Producers that may expire, oldest append first. Those with an open transaction may not, and are absent.
    idle: BTreeSet<(TimestampMs, Writer)>,
    /// Open transactions by their first offset.
    open: BTreeMap<Offset, ProducerId>,
}

/// A table as a batch with some append time would find it: without those who expire before it. What is judged by it changes nothing.
#[derive(Clone, Copy, Debug)]
pub struct ProducersAt<'a> {
    table: &'a ProducerTable,
    /// Whose last append is older has expired.
    oldest: TimestampMs,
}

/// Who writes under a producer id: in transactions, or outside of them (rule P1).
///
/// These are two, that know nothing of each other's epochs and sequences. The coordinator vouches for every epoch of the one, by what it
/// verifies and by its markers; nobody does for those of the other. So no epoch that a plain client makes up fences a transactional
/// producer, or the markers of its transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Writer {
    id: ProducerId,
    transactional: bool,
}

impl Writer {
    fn of(write: &ProducerWrite) -> Writer {
        Writer { id: write.stamp.id, transactional: write.in_transactions() }
    }

    /// The one that writes in transactions.
    fn transactional(id: ProducerId) -> Writer {
        Writer { id, transactional: true }
    }
}

/// One producer (rule P1).
#[derive(Clone, Debug, PartialEq, Eq)]
struct Producer {
    epoch: ProducerEpoch,
    /// The sequence number that its next batch in this epoch begins with.
    next_sequence: i32,
    /// Records appended in this epoch, one sequence number each, without a gap, up to the next one. A marker begins the count anew.
    records: u64,
    /// The newest batches of these records, at most five, oldest first.
    batches: VecDeque<Remembered>,
    last_append: TimestampMs,
    /// First offset of its open transaction.
    transaction_start: Option<Offset>,
    /// Epoch of the transaction coordinator that wrote its last marker.
    coordinator_epoch: Option<CoordinatorEpoch>,
}

/// What is known of a producer, for those who ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerSummary {
    /// The producer.
    pub id: ProducerId,
    /// Its newest epoch here.
    pub epoch: ProducerEpoch,
    /// Last sequence number that it wrote in this epoch.
    pub last_sequence: Option<i32>,
    /// Append time of its newest batch.
    pub last_append: TimestampMs,
    /// Epoch of the coordinator that wrote its newest marker.
    pub coordinator_epoch: Option<CoordinatorEpoch>,
    /// First offset of its open transaction.
    pub transaction_start: Option<Offset>,
}

/// A batch that was appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Remembered {
    base_sequence: i32,
    count: u32,
    base: Offset,
    append_time: TimestampMs,
}

/// What to do with a batch of an idempotent producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the next one.
    Append,
    /// It was appended before, as `[base, end)`; answer with `base` once the high watermark has reached `end` (rule P3).
    Duplicate {
        /// Original base offset.
        base: Offset,
        /// Original end offset.
        end: Offset,
        /// Append time of the original.
        append_time: TimestampMs,
    },
}

/// What to do with a marker that is not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkerVerdict {
    /// It goes into the log.
    Append,
    /// This very marker is in the log already.
    Known,
}

/// Why a producer's batch or a marker is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProducerError {
    /// Epoch below the known one.
    #[error("producer {id} is fenced: a newer instance writes with a higher epoch")]
    Fenced {
        /// The producer.
        id: ProducerId,
    },
    /// A gap, or a new epoch that does not begin at 0.
    #[error("sequence {got} where {expected} is next for producer {id}")]
    OutOfOrder {
        /// The producer.
        id: ProducerId,
        /// Expected base sequence.
        expected: i32,
        /// Sequence that came.
        got: i32,
    },
    /// It follows a batch that was refused, and may be the first that is known of its producer.
    #[error("sequence {got} of producer {id} comes after {expected}, which was refused and has to be sent again first")]
    Behind {
        /// The producer.
        id: ProducerId,
        /// Base sequence that was refused.
        expected: i32,
        /// Sequence that came.
        got: i32,
    },
    /// A retry of records that were appended, but longer ago than the batches remembered.
    #[error("producer {id} repeats a batch older than the last five")]
    DuplicateUnknown {
        /// The producer.
        id: ProducerId,
    },
    /// A sequence number of before the marker of the transaction before: whatever it was used for, it is used up.
    #[error("sequence {got} of producer {id} belongs to a transaction that has ended; {expected} is next")]
    Ended {
        /// The producer.
        id: ProducerId,
        /// Expected base sequence.
        expected: i32,
        /// Sequence that came.
        got: i32,
    },
    /// Records outside of the producer's open transaction.
    #[error("producer {id} has an open transaction that the batch is no part of; it has to end first")]
    OtherTransaction {
        /// The producer.
        id: ProducerId,
    },
    /// Records of the transaction after the open one, whose outcome is decided: its marker is on the way.
    #[error("the transaction of producer {id} before this one is still being ended here; retry")]
    Ending {
        /// The producer.
        id: ProducerId,
    },
    /// A marker of a coordinator that is one no more.
    #[error("the coordinator of epoch {got} is no more: epoch {known} has written a marker for producer {id}")]
    CoordinatorFenced {
        /// The producer.
        id: ProducerId,
        /// Newest coordinator epoch seen.
        known: CoordinatorEpoch,
        /// That of the marker.
        got: CoordinatorEpoch,
    },
    /// `limits::PARTITION_PRODUCERS_MAX` live producers (rule T4).
    #[error("the partition has {max} live producers; reuse producers instead of making new ones")]
    TooMany {
        /// The bound.
        max: usize,
    },
}

impl ProducerError {
    /// The code a client gets.
    #[must_use]
    pub fn code(&self) -> crate::ErrorCode {
        match self {
            ProducerError::Fenced { .. } => crate::ErrorCode::InvalidProducerEpoch,
            ProducerError::OutOfOrder { .. } => crate::ErrorCode::OutOfOrderSequenceNumber,
            ProducerError::DuplicateUnknown { .. } => crate::ErrorCode::DuplicateSequenceNumber,
            // Nothing is known any more of what it was used for. librdkafka, which may have numbered anew, asks to abort, and takes
            // another epoch; a sequence out of order would end it. No other client is known to come here.
            ProducerError::Ended { .. } => crate::ErrorCode::UnknownProducerId,
            ProducerError::OtherTransaction { .. } => crate::ErrorCode::InvalidTxnState,
            // As a coordinator that is asked to add to it would say; every producer retries this one.
            ProducerError::Ending { .. } | ProducerError::Behind { .. } => crate::ErrorCode::NotEnoughReplicas,
            ProducerError::CoordinatorFenced { .. } => crate::ErrorCode::TransactionCoordinatorFenced,
            // Rule T4 asks for a retriable error: others expire, and then there is room. Of those for which there is no room
            // yet, this is the one that every Kafka client retries; quota errors are final to some.
            ProducerError::TooMany { .. } => crate::ErrorCode::NotEnoughReplicas,
        }
    }
}

impl ProducersAt<'_> {
    /// Judges an admitted batch of `count` records (its offset span).
    ///
    /// A producer that is not known may begin at any sequence (it may have expired), as Kafka's brokers allow: `knows` and `Refused` tell
    /// whether an earlier batch has to come first. Whether records that open a transaction belong to one is not known here (rule X3):
    /// `in_transaction` tells who has to ask.
    ///
    /// # Errors
    /// Each `ProducerError` but `CoordinatorFenced` and `Behind`.
    pub fn check(&self, write: ProducerWrite, count: u32) -> Result<Verdict, ProducerError> {
        let ProducerWrite { stamp, kind } = write;
        assert!(stamp.base_sequence >= 0 && count > 0, "admission refuses batches without sequence or records");
        // What is outside of the open transaction of its id (which is repeated all the same).
        let stray = kind == WriteKind::Plain && self.transactional(stamp.id).is_some_and(Producer::has_transaction);
        match self.get(Writer::of(&write)) {
            Some(producer) => producer.check(stamp, count, stray),
            None if stray => Err(ProducerError::OtherTransaction { id: stamp.id }),
            // Rule T4: none is evicted early to make room.
            None if self.is_full() => Err(ProducerError::TooMany { max: PARTITION_PRODUCERS_MAX }),
            None => Ok(Verdict::Append),
        }
    }

    /// Judges a marker (rule X5).
    ///
    /// Never `TooMany`: a marker that fences a producer which never wrote here is not refused for the sake of others.
    ///
    /// # Errors
    /// `Fenced` or `CoordinatorFenced`: whoever sent it coordinates no more, or it is late.
    pub fn check_marker(&self, marker: &Marker) -> Result<MarkerVerdict, ProducerError> {
        let Marker { producer: id, epoch, raised, end } = *marker;
        let Some(producer) = self.transactional(id) else { return Ok(MarkerVerdict::Append) };
        if let Some(known) = producer.coordinator_epoch.filter(|known| *known > end.coordinator_epoch) {
            return Err(ProducerError::CoordinatorFenced { id, known, got: end.coordinator_epoch });
        }
        let opened = producer.transaction_start.is_some();
        // A raised epoch is above that of the records it ends; one that only equals it is late, and the open transaction another.
        if epoch < producer.epoch || (opened && raised && epoch == producer.epoch) {
            return Err(ProducerError::Fenced { id });
        }
        // A raised epoch is that of one end. Where it is kept, equal epochs tell that nothing is open in this log, not that this end is in
        // it: a leader that was deposed and has not heard of it may lack the very transaction. So the marker is appended, which only
        // a leader can have committed.
        let repeated =
            raised && !opened && epoch == producer.epoch && producer.coordinator_epoch == Some(end.coordinator_epoch);
        Ok(if repeated { MarkerVerdict::Known } else { MarkerVerdict::Append })
    }

    /// Whether anything is known of who writes a batch, so that its sequence tells whether it is the next one.
    #[must_use]
    pub fn knows(&self, write: &ProducerWrite) -> bool {
        self.get(Writer::of(write)).is_some()
    }

    /// Whether this instance of a producer has a transaction open here: its records need no verification (rule X3).
    #[must_use]
    pub fn in_transaction(&self, id: ProducerId, epoch: ProducerEpoch) -> bool {
        self.transactional(id).is_some_and(|producer| producer.epoch == epoch && producer.has_transaction())
    }

    /// Whether anything is known of the producer as one that writes in transactions.
    #[must_use]
    pub fn knows_transactional(&self, id: ProducerId) -> bool {
        self.transactional(id).is_some()
    }

    fn transactional(&self, id: ProducerId) -> Option<&Producer> {
        self.get(Writer::transactional(id))
    }

    fn get(&self, writer: Writer) -> Option<&Producer> {
        self.table
            .producers
            .get(&writer)
            .filter(|producer| producer.has_transaction() || producer.last_append >= self.oldest)
    }

    /// Rule T4. Counts no more of those who have expired than it takes.
    fn is_full(&self) -> bool {
        let Some(beyond) = self.table.len().checked_sub(PARTITION_PRODUCERS_MAX) else { return false };
        let expired = self.table.idle.iter().take_while(|(last_append, _)| *last_append < self.oldest);
        expired.take(beyond + 1).count() <= beyond
    }
}

impl ProducerTable {
    /// What a batch that is appended `now` finds, if those have expired by then whose last append is older than `expiry_ms` before.
    #[must_use]
    pub fn at(&self, now: TimestampMs, expiry_ms: i64) -> ProducersAt<'_> {
        ProducersAt { table: self, oldest: TimestampMs(now.0.saturating_sub(expiry_ms)) }
    }

    /// What a batch finds before which nobody expires.
    #[must_use]
    pub fn as_it_is(&self) -> ProducersAt<'_> {
        ProducersAt { table: self, oldest: TimestampMs(i64::MIN) }
    }

    /// Records that a batch of `count` offsets was appended; also the replay after a restart and on followers. Accepts what the
    /// log holds. Returns the transaction that it ended, if it did.
    ///
    /// Control batches count for the epoch and the time; they have no sequence, `base_sequence` being -1.
    pub fn append(
        &mut self,
        write: ProducerWrite,
        count: u32,
        base: Offset,
        append_time: TimestampMs,
    ) -> Option<EndedTxn> {
        let ProducerWrite { stamp, kind } = write;
        let writer = Writer::of(&write);
        let producer = self.producers.entry(writer).or_insert_with(|| Producer::new(stamp.epoch));
        self.idle.remove(&(producer.last_append, writer));
        producer.append(stamp, Remembered { base_sequence: stamp.base_sequence, count, base, append_time });
        let ended = match kind {
            WriteKind::Transactional if producer.transaction_start.is_none() => {
                producer.transaction_start = Some(base);
                self.open.insert(base, stamp.id);
                None
            }
            WriteKind::End(end) => producer.end(stamp.id, end, base),
            WriteKind::Plain | WriteKind::Transactional | WriteKind::Control => None,
        };
        if let Some(ended) = &ended {
            self.open.remove(&ended.first);
        }
        if producer.transaction_start.is_none() {
            self.idle.insert((append_time, writer));
        }
        ended
    }

    /// First offset of the oldest open transaction.
    #[must_use]
    pub fn first_open(&self) -> Option<Offset> {
        self.open.first_key_value().map(|(first, _)| *first)
    }

    /// The open transactions, oldest first.
    pub fn open(&self) -> impl Iterator<Item = OpenTxn> + '_ {
        self.open.iter().map(|(&first, &producer)| OpenTxn { first, producer })
    }

    /// What is known of each producer, by id; two for an id that was written under in transactions and outside, that outside first.
    pub fn summaries(&self) -> impl Iterator<Item = ProducerSummary> + '_ {
        self.producers.iter().map(|(writer, producer)| producer.summary(writer.id))
    }

    /// Base offset of the newest batch with records of each producer, in no order: what compaction leaves a header of (rule C2). None of a
    /// producer that a marker came from since: what was before a marker answers no batch (rule P3).
    pub fn last_batches(&self) -> impl Iterator<Item = Offset> + '_ {
        self.producers.values().filter_map(|producer| producer.batches.back().map(|batch| batch.base))
    }

    /// Forgets producers whose last append is older than `expiry_ms` before `now`, the append time of the batch that comes next in the log
    /// (rule P2).
    ///
    /// Costs next to nothing when none is that old, so that it can precede every append.
    pub fn expire(&mut self, now: TimestampMs, expiry_ms: i64) {
        let oldest = TimestampMs(now.0.saturating_sub(expiry_ms));
        while let Some(&(last_append, writer)) = self.idle.first()
            && last_append < oldest
        {
            self.idle.pop_first();
            self.producers.remove(&writer);
        }
    }

    /// Producers known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.producers.len()
    }

    /// Whether none is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.producers.is_empty()
    }
}

impl Producer {
    fn new(epoch: ProducerEpoch) -> Producer {
        Producer {
            epoch,
            next_sequence: 0,
            records: 0,
            batches: VecDeque::new(),
            last_append: TimestampMs::NONE,
            transaction_start: None,
            coordinator_epoch: None,
        }
    }

    /// Rules P3 and P6. What is in the log already is a duplicate, until a marker ends its transaction.
    fn check(&self, stamp: ProducerStamp, count: u32, stray: bool) -> Result<Verdict, ProducerError> {
        let (id, got) = (stamp.id, stamp.base_sequence);
        if stamp.epoch < self.epoch {
            return Err(ProducerError::Fenced { id });
        }
        let newer = stamp.epoch > self.epoch;
        let expected = if newer { 0 } else { self.next_sequence };
        if !newer && got != expected {
            let same = |batch: &&Remembered| batch.base_sequence == got && batch.count == count;
            if let Some(batch) = self.batches.iter().find(same) {
                let end = batch.base.plus(u64::from(count));
                return Ok(Verdict::Duplicate { base: batch.base, end, append_time: batch.append_time });
            }
        }
        if stray {
            return Err(ProducerError::OtherTransaction { id });
        }
        // A client has its next epoch once an outcome is decided (rule X2), and may be here before the marker.
        if self.has_transaction() && newer {
            return Err(ProducerError::Ending { id });
        }
        if got == expected {
            return Ok(Verdict::Append);
        }
        if newer {
            return Err(ProducerError::OutOfOrder { id, expected, got });
        }
        if self.is_before_remembered(got, count) {
            return Err(ProducerError::DuplicateUnknown { id });
        }
        if self.is_before_marker(got) {
            return Err(ProducerError::Ended { id, expected, got });
        }
        Err(ProducerError::OutOfOrder { id, expected, got })
    }

    fn has_transaction(&self) -> bool {
        self.transaction_start.is_some()
    }

    /// Whether all these records were appended in this epoch, before the oldest batch that is remembered.
    ///
    /// Producers take the answer for success, so it must be proven: a sequence behind the next one is no proof when the
    /// producer expired and began anew in the middle.
    fn is_before_remembered(&self, sequence: i32, count: u32) -> bool {
        let remembered: u64 = self.batches.iter().map(|batch| u64::from(batch.count)).sum();
        self.behind(sequence).is_some_and(|behind| behind <= self.records && behind >= remembered + u64::from(count))
    }

    /// Whether the sequence is one of those before the newest marker, of a producer that keeps its epoch from one transaction to the next.
    fn is_before_marker(&self, sequence: i32) -> bool {
        self.coordinator_epoch.is_some() && self.behind(sequence).is_some_and(|behind| behind > self.records)
    }

    /// How far a sequence lies behind the next one, if it does: half of the sequence space lies behind, and half ahead.
    fn behind(&self, sequence: i32) -> Option<u64> {
        let behind = distance(sequence, self.next_sequence);
        (1..SEQUENCES / 2).contains(&behind).then_some(u64::from(behind))
    }

    /// Ends the open transaction, if there is one.
    ///
    /// Nobody waits any more for what was written before the marker, so none of it is answered as a duplicate: a client that gave up a
    /// transaction may number the records of the next one like those it gave up, and would take the answer for theirs (rule P3).
    fn end(&mut self, id: ProducerId, end: EndMarker, marker: Offset) -> Option<EndedTxn> {
        // Followed as it is written; `check_marker` keeps coordinator epochs from falling.
        self.coordinator_epoch = Some(end.coordinator_epoch);
        self.forget_batches();
        let first = self.transaction_start.take()?;
        Some(EndedTxn { producer: id, first, marker, outcome: end.outcome })
    }

    fn summary(&self, id: ProducerId) -> ProducerSummary {
        let written = self.records > 0 || self.next_sequence > 0;
        ProducerSummary {
            id,
            epoch: self.epoch,
            last_sequence: written.then(|| advance(self.next_sequence, SEQUENCES - 1)),
            last_append: self.last_append,
            coordinator_epoch: self.coordinator_epoch,
            transaction_start: self.transaction_start,
        }
    }

    fn forget_batches(&mut self) {
        self.records = 0;
        self.batches.clear();
    }

    fn append(&mut self, stamp: ProducerStamp, batch: Remembered) {
        self.last_append = batch.append_time;
        // A marker has no sequence, so it is never a gap.
        let gap = batch.base_sequence >= 0 && batch.base_sequence != self.next_sequence;
        if stamp.epoch != self.epoch || gap {
            // A new epoch begins anew; so does a producer that had expired when this was appended. `check` keeps
            // epochs from falling (invariant S16); what the log holds is followed.
            self.epoch = stamp.epoch;
            self.next_sequence = 0;
            self.forget_batches();
        }
        if batch.base_sequence >= 0 {
            self.next_sequence = advance(batch.base_sequence, batch.count);
            self.records = self.records.saturating_add(u64::from(batch.count));
            self.batches.push_back(batch);
            if self.batches.len() > PRODUCER_BATCHES_REMEMBERED {
                self.batches.pop_front();
            }
        }
    }
}

/// Sequence numbers there are: 0 to `i32::MAX`, after which 0 follows.
const SEQUENCES: u32 = 1 << 31;

/// The sequence number `count` after `sequence`.
fn advance(sequence: i32, count: u32) -> i32 {
    (sequence.cast_unsigned().wrapping_add(count) % SEQUENCES).cast_signed()
}

/// Whether one sequence number comes before another: they wrap, so half of them lie before each.
#[must_use]
pub fn precedes(one: i32, other: i32) -> bool {
    (1..SEQUENCES / 2).contains(&distance(one, other))
}

/// Steps forward from one sequence number to another.
fn distance(from: i32, to: i32) -> u32 {
    to.cast_unsigned().wrapping_sub(from.cast_unsigned()) % SEQUENCES
}

#[cfg(test)]
mod tests;
