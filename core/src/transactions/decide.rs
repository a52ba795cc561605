//! What may follow what for one transactional id: functions from a record to the next one (rules X1, X2, X4, X8).
//!
//! They know neither time nor other ids but what they are given, and change nothing in place.

use super::{
    EXPIRY_MS, Granted, ID_BYTES_MAX, LOADED_ID_LEAST_MS, LOADED_LEAST_MS, Parts, TIMEOUT_MAX_MS, TransactionError,
};
use crate::records::{ProducerInstance, TransactionRecord, TransactionState};
use millpond_log::transactions::TxnOutcome;
use millpond_log::{ProducerEpoch, ProducerId, TimestampMs};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

/// The last epoch of a producer id (rule X1). Only markers carry it; no client ever holds it, so that there is always one to fence it.
pub const PRODUCER_EPOCH_LAST: ProducerEpoch = ProducerEpoch(32_766);

/// Most bytes that partitions and groups of one transaction take in its record. Rule Z5 keeps a value below 64 KiB: 8 000 partitions
/// of one topic, or about 1 000 of as many.
pub const RECORD_BYTES_MAX: usize = 48 << 10;

/// What is decided: the next record, if it changes, and the answer.
pub(super) struct Decided {
    pub(super) record: Option<TransactionRecord>,
    pub(super) answer: Result<Granted, TransactionError>,
}

impl Decided {
    fn keep(answer: Result<Granted, TransactionError>) -> Decided {
        Decided { record: None, answer }
    }

    fn change(record: TransactionRecord, granted: Granted) -> Decided {
        Decided { record: Some(record), answer: Ok(granted) }
    }
}

/// Producer ids to hand out.
#[derive(Clone, Debug, Default)]
pub(super) struct ProducerIds(VecDeque<Range<u64>>);

impl ProducerIds {
    pub(super) fn give(&mut self, ids: Range<u64>) {
        self.0.push_back(ids);
    }

    pub(super) fn left(&self) -> u64 {
        self.0.iter().map(|ids| ids.end.saturating_sub(ids.start)).sum()
    }

    fn take(&mut self) -> Result<ProducerId, TransactionError> {
        while let Some(block) = self.0.front_mut() {
            if let Some(id) = block.next() {
                return Ok(ProducerId(id));
            }
            self.0.pop_front();
        }
        Err(TransactionError::NoProducerId)
    }
}

/// A client's wish to be the producer of a transactional id.
#[derive(Clone, Copy, Debug)]
pub(super) struct Init {
    pub(super) timeout_ms: i32,
    pub(super) expected: Option<ProducerInstance>,
}

/// Hands an id to a client: a new producer, or the next epoch of the one before.
pub(super) fn init(
    known: Option<&TransactionRecord>,
    id: &str,
    now: TimestampMs,
    init: Init,
    ids: &mut ProducerIds,
) -> Decided {
    let Init { timeout_ms, expected } = init;
    if id.is_empty() || id.len() > ID_BYTES_MAX {
        return Decided::keep(Err(TransactionError::Id));
    }
    let timeout_ms = match u32::try_from(timeout_ms) {
        Ok(timeout_ms @ 1..=TIMEOUT_MAX_MS) => timeout_ms,
        _ => return Decided::keep(Err(TransactionError::Timeout)),
    };
    let decided = match known {
        None => ids.take().map(|id| fresh(id, now, timeout_ms)),
        Some(known) => match admit(known, expected) {
            Err(error) => Err(error),
            Ok(Admitted::Again) => return Decided::keep(Ok(Granted::Producer(known.producer))),
            // Rule X8: first the epoch, then the markers. The client asks again until they are written.
            Ok(Admitted::Ongoing) => {
                let fenced = TransactionRecord { last: expected, ..abort(known, now) };
                return Decided { record: Some(fenced), answer: Err(TransactionError::Concurrent) };
            }
            Ok(Admitted::Idle) => raised(known.producer, ids).map(|(now_is, next)| TransactionRecord {
                producer: next.map_or(now_is, |id| ProducerInstance { id, epoch: ProducerEpoch(0) }),
                last: expected,
                ..fresh(known.producer.id, now, timeout_ms)
            }),
        },
    };
    match decided {
        Ok(record) => {
            let producer = record.producer;
            Decided::change(record, Granted::Producer(producer))
        }
        Err(error) => Decided::keep(Err(error)),
    }
}

/// In which way a known id is taken over.
enum Admitted {
    /// It was, by this client, which has missed the answer (KIP-360).
    Again,
    /// Once the ongoing transaction is aborted.
    Ongoing,
    /// At once.
    Idle,
}

fn admit(known: &TransactionRecord, expected: Option<ProducerInstance>) -> Result<Admitted, TransactionError> {
    let current = expected.is_none_or(|expected| expected == known.producer);
    let prior = expected.is_some() && expected == known.last;
    match known.state {
        _ if !current && !prior => Err(TransactionError::Fenced),
        TransactionState::PrepareCommit | TransactionState::PrepareAbort => Err(TransactionError::Concurrent),
        // Whoever writes has heard who it is: what names an earlier instance was under way for long.
        TransactionState::Ongoing if prior => Err(TransactionError::Fenced),
        TransactionState::Ongoing => Ok(Admitted::Ongoing),
        TransactionState::Empty if prior => Ok(Admitted::Again),
        TransactionState::Empty | TransactionState::CompleteCommit | TransactionState::CompleteAbort => {
            Ok(Admitted::Idle)
        }
    }
}

fn fresh(id: ProducerId, now: TimestampMs, timeout_ms: u32) -> TransactionRecord {
    TransactionRecord {
        producer: ProducerInstance { id, epoch: ProducerEpoch(0) },
        next_producer: None,
        last: None,
        ended_by: None,
        state: TransactionState::Empty,
        partitions: BTreeMap::new(),
        groups: BTreeSet::new(),
        timeout_ms,
        started: None,
        changed: now,
    }
}

/// The instance with the next epoch, and another producer id if no client may hold that one any more (rule X1).
fn raised(
    producer: ProducerInstance,
    ids: &mut ProducerIds,
) -> Result<(ProducerInstance, Option<ProducerId>), TransactionError> {
    let next = next_epoch(producer);
    if next.epoch < PRODUCER_EPOCH_LAST { Ok((next, None)) } else { Ok((next, Some(ids.take()?))) }
}

/// Never above the last: what was fenced with it is raised no further, but has its id replaced.
fn next_epoch(producer: ProducerInstance) -> ProducerInstance {
    let epoch = ProducerEpoch(producer.epoch.0.saturating_add(1)).min(PRODUCER_EPOCH_LAST);
    ProducerInstance { epoch, ..producer }
}

/// Lets parts be of the transaction; the first of them begins it.
pub(super) fn add(
    known: Option<&TransactionRecord>,
    now: TimestampMs,
    producer: ProducerInstance,
    parts: &Parts,
) -> Decided {
    let known = match acting(known, producer) {
        Ok(known) => known,
        Err(error) => return Decided::keep(Err(error)),
    };
    let ongoing = match known.state {
        TransactionState::PrepareCommit | TransactionState::PrepareAbort => {
            return Decided::keep(Err(TransactionError::Concurrent));
        }
        TransactionState::Ongoing => true,
        TransactionState::Empty | TransactionState::CompleteCommit | TransactionState::CompleteAbort => false,
    };
    if ongoing && holds(known, parts) {
        return Decided::keep(Ok(Granted::Done));
    }
    let mut record = TransactionRecord {
        state: TransactionState::Ongoing,
        // Whoever goes on has heard who it is and how the transaction before ended.
        last: None,
        ended_by: None,
        started: known.started.filter(|_| ongoing).or(Some(now)),
        changed: now,
        ..known.clone()
    };
    for partition in &parts.partitions {
        record.partitions.entry(partition.topic).or_default().insert(partition.index);
    }
    record.groups.extend(parts.groups.iter().cloned());
    if parts_bytes(&record) > RECORD_BYTES_MAX {
        return Decided::keep(Err(TransactionError::TooLarge));
    }
    Decided::change(record, Granted::Done)
}

/// Says whether parts are of the transaction (rule X3).
pub(super) fn verify(known: Option<&TransactionRecord>, producer: ProducerInstance, parts: &Parts) -> Decided {
    let answer = acting(known, producer).and_then(|known| match known.state {
        TransactionState::PrepareCommit | TransactionState::PrepareAbort => Err(TransactionError::Concurrent),
        TransactionState::Ongoing if holds(known, parts) => Ok(Granted::Done),
        _ => Err(TransactionError::NoPart),
    });
    Decided::keep(answer)
}

fn holds(known: &TransactionRecord, parts: &Parts) -> bool {
    parts.partitions.iter().all(|partition| known.has_partition(*partition))
        && parts.groups.iter().all(|group| known.groups.contains(group))
}

/// What the parts take in the record, at most: JSON's quotes and commas included, and each character of a group escaped.
fn parts_bytes(record: &TransactionRecord) -> usize {
    let partitions: usize =
        record.partitions.values().map(|indexes| 42 + indexes.iter().map(digits).sum::<usize>()).sum();
    let groups: usize = record.groups.iter().map(|group| 3 + group.len() * 6).sum();
    partitions + groups
}

/// Digits of an index and a comma.
fn digits(index: &u32) -> usize {
    index.checked_ilog10().unwrap_or(0) as usize + 2
}

/// The record, if `producer` is the one that may act on it.
fn acting(
    known: Option<&TransactionRecord>,
    producer: ProducerInstance,
) -> Result<&TransactionRecord, TransactionError> {
    let known = known.ok_or(TransactionError::UnknownProducer)?;
    let successor = known.next_producer.map(|id| ProducerInstance { id, epoch: ProducerEpoch(0) });
    match () {
        // It was told who it will be, and is in a hurry.
        () if Some(producer) == successor => Err(TransactionError::Concurrent),
        () if producer.id != known.producer.id => Err(TransactionError::UnknownProducer),
        () if producer.epoch != known.producer.epoch || producer.epoch >= PRODUCER_EPOCH_LAST => {
            Err(TransactionError::Fenced)
        }
        () => Ok(known),
    }
}

/// A client's wish to end its transaction.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub(super) producer: ProducerInstance,
    pub(super) outcome: TxnOutcome,
    pub(super) epoch_per_transaction: bool,
}

/// Ends the transaction: from here on its outcome is final (rule X2).
pub(super) fn end(known: Option<&TransactionRecord>, now: TimestampMs, end: End, ids: &mut ProducerIds) -> Decided {
    if let Some(known) = known
        && is_retry(known, end)
    {
        return Decided::keep(earlier(known, end.outcome));
    }
    let known = match acting(known, end.producer) {
        Ok(known) => known,
        Err(error) => return Decided::keep(Err(error)),
    };
    match known.state {
        TransactionState::Ongoing => prepare(known, now, end, ids),
        TransactionState::PrepareCommit | TransactionState::PrepareAbort => {
            Decided::keep(Err(TransactionError::Concurrent))
        }
        // Nothing was added, as far as is known here: what is on its way from leaders is fenced (KIP-890).
        TransactionState::Empty | TransactionState::CompleteCommit | TransactionState::CompleteAbort
            if end.epoch_per_transaction && end.outcome == TxnOutcome::Abort =>
        {
            prepare(known, now, end, ids)
        }
        state => Decided::keep(Err(TransactionError::State { state })),
    }
}

/// Whether the same was asked before, by the same instance, and the state is what came of it (rule X4).
fn is_retry(known: &TransactionRecord, end: End) -> bool {
    let raised = known.ended_by.is_some_and(|by| by != known.producer);
    known.ended_by == Some(end.producer) && raised == end.epoch_per_transaction
}

/// The earlier outcome; another one is refused (rule X4).
fn earlier(known: &TransactionRecord, outcome: TxnOutcome) -> Result<Granted, TransactionError> {
    match known.state {
        state if state.outcome() != Some(outcome) => Err(TransactionError::State { state }),
        TransactionState::PrepareCommit | TransactionState::PrepareAbort => Err(TransactionError::Concurrent),
        _ => Ok(Granted::Producer(known.producer)),
    }
}

fn prepare(known: &TransactionRecord, now: TimestampMs, end: End, ids: &mut ProducerIds) -> Decided {
    let (producer, next_producer) = match end.epoch_per_transaction {
        false => (known.producer, None),
        true => match raised(known.producer, ids) {
            Ok(raised) => raised,
            Err(error) => return Decided::keep(Err(error)),
        },
    };
    let state = match end.outcome {
        TxnOutcome::Commit => TransactionState::PrepareCommit,
        TxnOutcome::Abort => TransactionState::PrepareAbort,
    };
    let (last, ended_by) = (Some(end.producer).filter(|_| end.epoch_per_transaction), Some(end.producer));
    let started = known.started.or(Some(now));
    let record =
        TransactionRecord { producer, next_producer, last, ended_by, state, started, changed: now, ..known.clone() };
    // Who it is for its next transaction; that one waits until this is complete.
    let next = next_producer.map_or(producer, |id| ProducerInstance { id, epoch: ProducerEpoch(0) });
    Decided::change(record, Granted::Producer(next))
}

/// An ongoing transaction, aborted without its client: its epoch is raised first (rule X8), and once (rule X1).
fn abort(known: &TransactionRecord, now: TimestampMs) -> TransactionRecord {
    TransactionRecord {
        producer: next_epoch(known.producer),
        next_producer: None,
        last: None,
        ended_by: None,
        state: TransactionState::PrepareAbort,
        changed: now,
        ..known.clone()
    }
}

/// What becomes of an id whose deadline has passed: it is aborted, or with `None` forgotten.
pub(super) fn timed_out(known: &TransactionRecord, now: TimestampMs) -> Option<TransactionRecord> {
    // Its client may go on with another epoch (KIP-360), if no other has taken over.
    (known.state == TransactionState::Ongoing)
        .then(|| TransactionRecord { last: Some(known.producer), ..abort(known, now) })
}

/// Aborts what is ongoing, by order of an operator.
pub(super) fn terminate(known: Option<&TransactionRecord>, now: TimestampMs) -> Decided {
    match known {
        None => Decided::keep(Err(TransactionError::UnknownId)),
        Some(known) if known.state == TransactionState::Ongoing => Decided::change(abort(known, now), Granted::Done),
        Some(_) => Decided::keep(Ok(Granted::Done)),
    }
}

/// A prepared transaction of which every part has reported (rule X5).
pub(super) fn complete(known: &TransactionRecord, now: TimestampMs) -> TransactionRecord {
    let state = match known.state.prepared().expect("only a prepared transaction is completed") {
        TxnOutcome::Commit => TransactionState::CompleteCommit,
        TxnOutcome::Abort => TransactionState::CompleteAbort,
    };
    let successor = known.next_producer.map(|id| ProducerInstance { id, epoch: ProducerEpoch(0) });
    TransactionRecord {
        producer: successor.unwrap_or(known.producer),
        next_producer: None,
        state,
        partitions: BTreeMap::new(),
        groups: BTreeSet::new(),
        started: None,
        changed: now,
        ..known.clone()
    }
}

/// How long a record stays as it is if nobody does anything: an ongoing transaction times out, an id that is not used is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wait {
    /// From when on, by the wall clock of whoever wrote it.
    since: TimestampMs,
    pub(super) whole_ms: u64,
    /// What of it is left for whoever loads the record, at least.
    least_ms: u64,
}

impl Wait {
    /// What is left of it for whoever loads the record at `now`: never more than all of it, and never nothing, since either clock may be
    /// wrong.
    pub(super) fn left_ms(self, now: TimestampMs) -> u64 {
        let passed_ms = u64::try_from(now.0.saturating_sub(self.since.0)).unwrap_or(0);
        self.whole_ms.saturating_sub(passed_ms).max(self.least_ms.min(self.whole_ms))
    }
}

/// How long the record waits; none if for ever.
pub(super) fn wait(known: &TransactionRecord) -> Option<Wait> {
    match known.state {
        TransactionState::Ongoing => Some(Wait {
            since: known.started.unwrap_or(known.changed),
            whole_ms: u64::from(known.timeout_ms),
            least_ms: LOADED_LEAST_MS,
        }),
        TransactionState::PrepareCommit | TransactionState::PrepareAbort => None,
        TransactionState::Empty | TransactionState::CompleteCommit | TransactionState::CompleteAbort => {
            Some(Wait { since: known.changed, whole_ms: EXPIRY_MS, least_ms: LOADED_ID_LEAST_MS })
        }
    }
}
