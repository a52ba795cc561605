//! The coordinator of transactions: which transactional id stands for which producer, what belongs to its transaction, how that ends
//! (rules X1, X2, X4, X5, X8, O3; KIP-98, 360, 447, 890).
//!
//! Pure: it writes no record, sends no marker and reads no clock. A step changes its state at once; what it answers and what it wants
//! done holds only once the changes are durable. It is one shard's, and of one owner: another one loads for itself.

mod decide;

use crate::groups::Now;
use crate::records::{ProducerInstance, TransactionRecord, TransactionState};
use decide::{Decided, ProducerIds};
use millpond_log::transactions::{EndMarker, Marker, TxnOutcome};
use millpond_log::{CoordinatorEpoch, ErrorCode, PartitionId, ProducerId, TimestampMs};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

pub use decide::{PRODUCER_EPOCH_LAST, RECORD_BYTES_MAX};

/// Longest transaction timeout, in milliseconds: Kafka's default for `transaction.max.timeout.ms`, 15 minutes.
pub const TIMEOUT_MAX_MS: u32 = 900_000;

/// How long a transactional id is remembered without use, in milliseconds: Kafka's `transactional.id.expiration.ms`, 7 days.
pub const EXPIRY_MS: u64 = 7 * 24 * 3600 * 1000;

/// What is left at least of the timeout of a transaction when another owner loads it, in milliseconds; all of it where that is less.
///
/// How long it has been open is told by two wall clocks, and one that is ahead cannot be told from time that has passed. Meanwhile its
/// client may have had nobody to ask for its end: it gets the time to find the new owner and to say so.
pub const LOADED_LEAST_MS: u64 = 10_000;

/// The same of a transactional id that is not used, before it is forgotten: an hour.
pub const LOADED_ID_LEAST_MS: u64 = 3_600_000;

/// Longest transactional id, in bytes: it is part of a key of the metadata store.
pub const ID_BYTES_MAX: usize = 4 << 10;

/// Most transactional ids that one tick changes, so that it stays short; another tick goes on.
const TICK_MAX: usize = 100;

/// What belongs, or is to belong, to a transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// Partitions that it writes.
    pub partitions: Vec<PartitionId>,
    /// Groups whose offsets it commits.
    pub groups: Vec<String>,
}

/// What clients, leaders and groups ask for. `id` is the transactional id, `producer` who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Be the producer of this id from now on: whoever was is fenced.
    Init {
        /// The transactional id.
        id: String,
        /// `transaction.timeout.ms`.
        timeout_ms: i32,
        /// Who the client believes to be, if it goes on after an error (KIP-360): it is refused if another has taken over.
        expected: Option<ProducerInstance>,
    },
    /// Let these be part of the transaction; the first of them begins it.
    Add {
        /// The transactional id.
        id: String,
        /// Who asks.
        producer: ProducerInstance,
        /// What is added.
        parts: Parts,
    },
    /// Say whether these are part of the transaction already (rule X3), for clients that add by themselves.
    Verify {
        /// The transactional id.
        id: String,
        /// Who asks.
        producer: ProducerInstance,
        /// What has to be part of it.
        parts: Parts,
    },
    /// End the transaction.
    End {
        /// The transactional id.
        id: String,
        /// Who asks.
        producer: ProducerInstance,
        /// How it ends.
        outcome: TxnOutcome,
        /// Whether each transaction of the client has its own epoch (rule X1, transactions V2); older clients keep theirs.
        epoch_per_transaction: bool,
    },
    /// Abort the transaction, if one is ongoing, and fence its producer: an operator's order.
    Terminate {
        /// The transactional id.
        id: String,
    },
}

/// Names what a prepared transaction wants done, over all coordinators: what is said of another says nothing about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket {
    /// Epoch of the coordinator.
    pub coordinator: CoordinatorEpoch,
    /// Counts its prepared transactions.
    pub number: u64,
}

/// What became of an `Effect`. Repeated and late reports change nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The transactional id.
    pub id: String,
    /// That of the effect.
    pub ticket: Ticket,
    /// Partitions that hold the marker below their high watermarks (rule X5), or are gone with their topic; groups that have settled the
    /// transaction's offsets, durably.
    pub done: Parts,
}

/// A record to be written, before any later one of the same id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The transactional id.
    pub id: String,
    /// Its record; `None` if it is forgotten.
    pub record: Option<TransactionRecord>,
}

/// A marker to have in partitions and groups, over failures and changes of leaders, until all are reported as done.
///
/// Partitions append it. Groups take the transaction's offsets over, or drop them; they judge it as partitions do: offsets of lower epochs
/// are refused from then on, and what they verified before is void. Whoever answers `INVALID_PRODUCER_EPOCH` or
/// `TRANSACTION_COORDINATOR_FENCED` while it is `outstanding` has heard of a later owner of the shard: then this coordinator is to be
/// given up. Of one that is complete such an answer means nothing.
///
/// A marker that keeps its epoch (`Marker::raised`) must be under way to a place at most once at a time: a copy that arrives after the
/// transaction is complete would end the next one, which has the same epoch. So the driver sends another only when neither the one before
/// nor its answer can arrive any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    /// The transactional id.
    pub id: String,
    /// What a report has to name.
    pub ticket: Ticket,
    /// The marker.
    pub marker: Marker,
    /// Where it has to be.
    pub parts: Parts,
}

/// What was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granted {
    /// Who the client is from now on.
    Producer(ProducerInstance),
    /// What was asked for.
    Done,
}

/// What a step leads to. The answer is given, and the effects are begun, when all changes of this step **and of those before it** are
/// durable: a refusal, too, may rest on what is not durable yet.
#[derive(Debug, PartialEq, Eq)]
pub struct Step {
    /// What to write, in order, in one transaction or several.
    pub changes: Vec<Change>,
    /// What to do then.
    pub effects: Vec<Effect>,
    /// What to answer then; reports and ticks have no answer.
    pub answer: Option<Result<Granted, TransactionError>>,
}

/// Why something is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransactionError {
    /// Another instance has taken over, or the transaction timed out.
    #[error("the producer is fenced: another instance took over, or its transaction timed out")]
    Fenced,
    /// The producer id is not the one of the transactional id, or nothing is known of that.
    #[error("the transactional id does not stand for this producer id; initialise the producer again")]
    UnknownProducer,
    /// The transaction before is being ended; ask again.
    #[error("the transaction before is still being ended; retry")]
    Concurrent,
    /// Not in this state.
    #[error("the transaction is `{}`, in which that cannot be done", state.name())]
    State {
        /// Where it stands.
        state: TransactionState,
    },
    /// What was to be written does not belong to the transaction.
    #[error("that is no part of an ongoing transaction; abort and begin another")]
    NoPart,
    /// `transaction.timeout.ms` out of range.
    #[error("transaction.timeout.ms has to be above 0 and at most {TIMEOUT_MAX_MS}")]
    Timeout,
    /// No transactional id, or one that is too long.
    #[error("a transactional id has 1 to {ID_BYTES_MAX} bytes")]
    Id,
    /// More parts than a transaction can have.
    #[error("the transaction has more partitions and groups than one can have; commit more often")]
    TooLarge,
    /// There is no producer id to give out at the moment.
    #[error("there is no producer id to give out yet; retry")]
    NoProducerId,
    /// Nothing is known of the transactional id.
    #[error("nothing is known of the transactional id")]
    UnknownId,
}

impl TransactionError {
    /// The code a client gets. Where it knows no `PRODUCER_FENCED` or `TRANSACTION_ABORTABLE` yet, its door gives an older one.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            TransactionError::Fenced => ErrorCode::ProducerFenced,
            TransactionError::UnknownProducer => ErrorCode::InvalidProducerIdMapping,
            TransactionError::Concurrent => ErrorCode::ConcurrentTransactions,
            TransactionError::State { .. } => ErrorCode::InvalidTxnState,
            TransactionError::NoPart => ErrorCode::TransactionAbortable,
            TransactionError::Timeout => ErrorCode::InvalidTransactionTimeout,
            TransactionError::Id | TransactionError::TooLarge => ErrorCode::InvalidRequest,
            TransactionError::NoProducerId => ErrorCode::CoordinatorNotAvailable,
            TransactionError::UnknownId => ErrorCode::TransactionalIdNotFound,
        }
    }
}

/// The code a producer gets whose batch could not be verified (rule X3), from the one that the coordinator, or the way to it, gave.
///
/// Producers know only `INVALID_PRODUCER_EPOCH` for being fenced, and retry `NOT_ENOUGH_REPLICAS` whatever their age.
#[must_use]
pub fn produce_code(code: ErrorCode) -> ErrorCode {
    match code {
        ErrorCode::ProducerFenced => ErrorCode::InvalidProducerEpoch,
        ErrorCode::ConcurrentTransactions
        | ErrorCode::CoordinatorLoadInProgress
        | ErrorCode::CoordinatorNotAvailable
        | ErrorCode::NotCoordinator
        | ErrorCode::RequestTimedOut => ErrorCode::NotEnoughReplicas,
        other => other,
    }
}

/// The transactions of one shard, as its owner knows them.
#[derive(Clone, Debug)]
pub struct Coordinator {
    epoch: CoordinatorEpoch,
    transactions: BTreeMap<String, Transaction>,
    /// When a transaction times out, or an id is forgotten, in milliseconds of the steady clock.
    deadlines: BTreeSet<(u64, String)>,
    ids: ProducerIds,
    /// Prepared transactions so far.
    tickets: u64,
}

#[derive(Clone, Debug)]
struct Transaction {
    record: TransactionRecord,
    /// Its entry in `deadlines`.
    due_ms: Option<u64>,
    /// What is left to do for a prepared one.
    left: Option<Left>,
}

/// The parts of a prepared transaction that have not reported.
#[derive(Clone, Debug)]
struct Left {
    ticket: Ticket,
    marker: Marker,
    partitions: BTreeSet<PartitionId>,
    groups: BTreeSet<String>,
}

impl Coordinator {
    /// A coordinator that goes on from what is stored, and what it has to see to at once: prepared transactions are completed.
    ///
    /// `epoch` is the one in which the shard was taken (rule O3), and the records were read after that. Only here the wall clock says how
    /// much of a timeout has passed; from here on the steady one does.
    #[must_use]
    pub fn load(
        epoch: CoordinatorEpoch,
        now: Now,
        records: impl IntoIterator<Item = (String, TransactionRecord)>,
    ) -> (Coordinator, Vec<Effect>) {
        let (transactions, deadlines) = (BTreeMap::new(), BTreeSet::new());
        let ids = ProducerIds::default();
        let mut coordinator = Coordinator { epoch, transactions, deadlines, ids, tickets: 0 };
        for (id, record) in records {
            let left_ms = decide::wait(&record).map(|wait| wait.left_ms(TimestampMs(now.wall_ms)));
            coordinator.put(id, record, left_ms.map(|left_ms| now.steady_ms.saturating_add(left_ms)));
        }
        let effects = coordinator.outstanding();
        (coordinator, effects)
    }

    /// Gives it producer ids to hand out. They are nobody else's, and lost with it.
    pub fn give_producer_ids(&mut self, ids: Range<u64>) {
        self.ids.give(ids);
    }

    /// How many producer ids it can hand out. With none, new producers are told to retry.
    #[must_use]
    pub fn producer_ids_left(&self) -> u64 {
        self.ids.left()
    }

    /// Answers a request.
    pub fn step(&mut self, now: Now, request: Request) -> Step {
        let wall = TimestampMs(now.wall_ms);
        let Coordinator { transactions, ids, .. } = self;
        let known = |id: &str| transactions.get(id).map(|transaction| &transaction.record);
        let (id, decided) = match request {
            Request::Init { id, timeout_ms, expected } => {
                let decided = decide::init(known(&id), &id, wall, decide::Init { timeout_ms, expected }, ids);
                (id, decided)
            }
            Request::Add { id, producer, parts } => {
                let decided = decide::add(known(&id), wall, producer, &parts);
                (id, decided)
            }
            Request::Verify { id, producer, parts } => {
                let decided = decide::verify(known(&id), producer, &parts);
                (id, decided)
            }
            Request::End { id, producer, outcome, epoch_per_transaction } => {
                let end = decide::End { producer, outcome, epoch_per_transaction };
                let decided = decide::end(known(&id), wall, end, ids);
                (id, decided)
            }
            Request::Terminate { id } => {
                let decided = decide::terminate(known(&id), wall);
                (id, decided)
            }
        };
        let Decided { record, answer } = decided;
        let mut step = Step { changes: Vec::new(), effects: Vec::new(), answer: Some(answer) };
        if let Some(record) = record {
            self.change(now, id, record, &mut step);
        }
        step
    }

    /// Notes what became of an effect. With the last one the transaction is complete (rule X5).
    pub fn report(&mut self, now: Now, report: Report) -> Step {
        let mut step = Step { changes: Vec::new(), effects: Vec::new(), answer: None };
        let Report { id, ticket, done } = report;
        let Some(transaction) = self.transactions.get_mut(&id) else { return step };
        let Some(left) = transaction.left.as_mut().filter(|left| left.ticket == ticket) else { return step };
        for partition in &done.partitions {
            left.partitions.remove(partition);
        }
        for group in &done.groups {
            left.groups.remove(group);
        }
        if left.partitions.is_empty() && left.groups.is_empty() {
            let complete = decide::complete(&transaction.record, TimestampMs(now.wall_ms));
            self.change(now, id, complete, &mut step);
        }
        step
    }

    /// Aborts what has timed out (rule X8), and forgets ids that nobody has used for long. To be called again at `next_deadline`.
    pub fn tick(&mut self, now: Now) -> Step {
        let mut step = Step { changes: Vec::new(), effects: Vec::new(), answer: None };
        for _ in 0..TICK_MAX {
            let Some((_, id)) = self.deadlines.first().filter(|(due_ms, _)| *due_ms <= now.steady_ms) else { break };
            let id = id.clone();
            let record = &self.transactions[&id].record;
            match decide::timed_out(record, TimestampMs(now.wall_ms)) {
                Some(aborting) => self.change(now, id, aborting, &mut step),
                None => {
                    self.deadlines.pop_first();
                    self.transactions.remove(&id);
                    step.changes.push(Change { id, record: None });
                }
            }
        }
        step
    }

    /// When `tick` has something to do next, in milliseconds of the steady clock.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        self.deadlines.first().map(|(due_ms, _)| *due_ms)
    }

    /// Everything that has to be seen to and was not reported as done. Only for changes that are durable: after a load, or when none is
    /// on its way.
    #[must_use]
    pub fn outstanding(&self) -> Vec<Effect> {
        self.transactions.iter().filter_map(|(id, transaction)| transaction.effect(id)).collect()
    }

    /// What is known of a transactional id. It may be ahead of what is durable.
    #[must_use]
    pub fn describe(&self, id: &str) -> Option<&TransactionRecord> {
        self.known(id)
    }

    /// All transactional ids and what is known of them, in order. They may be ahead of what is durable.
    pub fn list(&self) -> impl Iterator<Item = (&str, &TransactionRecord)> {
        self.transactions.iter().map(|(id, transaction)| (id.as_str(), &transaction.record))
    }

    /// The transactional id that this producer has acted for last: for an operator who finds a transaction open in a partition.
    #[must_use]
    pub fn id_of(&self, producer: ProducerId) -> Option<&str> {
        self.list().find(|(_, record)| record.producer.id == producer).map(|(id, _)| id)
    }

    fn known(&self, id: &str) -> Option<&TransactionRecord> {
        self.transactions.get(id).map(|transaction| &transaction.record)
    }

    /// Takes a decision over. A transaction that is prepared without any part is complete at once.
    fn change(&mut self, now: Now, id: String, record: TransactionRecord, step: &mut Step) {
        let record = match record.state.prepared() {
            Some(_) if record.partitions.is_empty() && record.groups.is_empty() => {
                let wall = record.changed;
                decide::complete(&record, wall)
            }
            _ => record,
        };
        step.changes.push(Change { id: id.clone(), record: Some(record.clone()) });
        let due_ms = match self.transactions.get(&id) {
            // What is added to a transaction gives it no more time.
            Some(Transaction { record: before, due_ms, .. })
                if (before.state, record.state) == (TransactionState::Ongoing, TransactionState::Ongoing) =>
            {
                *due_ms
            }
            _ => decide::wait(&record).map(|wait| now.steady_ms.saturating_add(wait.whole_ms)),
        };
        self.put(id.clone(), record, due_ms);
        step.effects.extend(self.transactions[&id].effect(&id));
    }

    fn put(&mut self, id: String, record: TransactionRecord, due_ms: Option<u64>) {
        if let Some(before) = self.transactions.get(&id).and_then(|known| known.due_ms) {
            self.deadlines.remove(&(before, id.clone()));
        }
        if let Some(due_ms) = due_ms {
            self.deadlines.insert((due_ms, id.clone()));
        }
        let left = record.state.prepared().map(|outcome| self.left(&record, outcome));
        self.transactions.insert(id, Transaction { record, due_ms, left });
    }

    /// What a prepared transaction needs to be complete.
    fn left(&mut self, record: &TransactionRecord, outcome: TxnOutcome) -> Left {
        self.tickets += 1;
        let producer = record.producer;
        Left {
            ticket: Ticket { coordinator: self.epoch, number: self.tickets },
            marker: Marker {
                producer: producer.id,
                epoch: producer.epoch,
                // Rule X1: only who keeps its epoch over the end has the markers carry it as it is.
                raised: record.ended_by != Some(producer),
                end: EndMarker { outcome, coordinator_epoch: self.epoch },
            },
            partitions: record.partition_ids().collect(),
            groups: record.groups.clone(),
        }
    }
}

impl Transaction {
    /// What is still to be done, if it is prepared.
    fn effect(&self, id: &str) -> Option<Effect> {
        let Left { ticket, marker, partitions, groups } = self.left.as_ref()?;
        let parts =
            Parts { partitions: partitions.iter().copied().collect(), groups: groups.iter().cloned().collect() };
        Some(Effect { id: id.to_owned(), ticket: *ticket, marker: *marker, parts })
    }
}

#[cfg(test)]
mod tests;
