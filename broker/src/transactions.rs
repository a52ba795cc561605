//! Transactions as the doors see them: one method per request, each to the coordinator of a transactional id (KIP-98, 360, 447, 890).
//!
//! Nothing is decided here. `desk` answers what other brokers ask of this one, `verifier` asks coordinators for leaders, `ways` takes
//! markers to where they belong.

mod desk;
#[cfg(test)]
mod tests;
mod verifier;
mod ways;

use crate::api::{ApiError, CurrentLeader, InTransaction, TransactionOffsets};
use crate::broker::Broker;
use crate::clock;
use crate::coordinators::{Ask, Here, Told, Unanswered};
use crate::marks::{Confirm, Confirmed};
use crate::refusals::given_up;
use millpond_core::coordinators::shard_of;
use millpond_core::groups::{self, Answer};
use millpond_core::records::{ProducerInstance, TransactionRecord};
use millpond_core::transactions::{Granted, Parts, Request, TransactionError};
use millpond_log::transactions::TxnOutcome;
use millpond_log::{CoordinatorEpoch, ErrorCode, PartitionId};
use millpond_metadata::keys::ShardKind;
use std::time::Duration;

pub(crate) use desk::Desk;
pub(crate) use verifier::Verifier;
pub(crate) use ways::BrokerWays;

/// How long a broker goes on asking a coordinator that moves, loads, or still ends the transaction before.
const CONFIRM_WITHIN: Duration = Duration::from_secs(5);

/// Pause before it asks again; it doubles up to the other.
const ASK_AGAIN_FIRST: Duration = Duration::from_millis(5);
const ASK_AGAIN_MAX: Duration = Duration::from_millis(200);

/// Times that offsets are verified anew because a transaction of the same producer ended meanwhile.
const OFFSETS_TRIES_MAX: usize = 3;

impl Broker {
    /// The broker that coordinates a transactional id, and in which epoch it owns the shard.
    ///
    /// # Errors
    /// `COORDINATOR_NOT_AVAILABLE`: nobody owns the shard, as far as is known.
    pub(crate) fn transaction_coordinator(&self, id: &str) -> Result<CurrentLeader, ApiError> {
        self.coordinator(ShardKind::Txn, shard_of(id)).ok_or_else(|| {
            let message = "nobody coordinates the transactional id yet; try again";
            ApiError::new(ErrorCode::CoordinatorNotAvailable, message)
        })
    }

    /// Makes the client the producer of a transactional id: whoever was is fenced, and its transaction aborted. `expected` is who
    /// the client believes to be, if it goes on after an error (KIP-360).
    ///
    /// # Errors
    /// `CONCURRENT_TRANSACTIONS`: a transaction is being ended; ask again. `PRODUCER_FENCED`: `expected` is not the newest.
    pub(crate) async fn init_transactional(
        &self,
        id: String,
        timeout_ms: i32,
        expected: Option<ProducerInstance>,
    ) -> Result<ProducerInstance, ApiError> {
        match self.ask_transaction(Request::Init { id, timeout_ms, expected }).await? {
            (Granted::Producer(producer), _) => Ok(producer),
            (Granted::Done, _) => unreachable!("whoever is initialised is told who it is"),
        }
    }

    /// Lets partitions be part of the transaction, all or none. With `verify_only` it only says whether they are.
    ///
    /// # Errors
    /// `UNKNOWN_TOPIC_OR_PARTITION`: one of them does not exist. `CONCURRENT_TRANSACTIONS`: the transaction before is being ended.
    /// `TRANSACTION_ABORTABLE`: asked to verify only, and one of them is no part of it.
    pub async fn add_partitions(
        &self,
        id: String,
        producer: ProducerInstance,
        partitions: Vec<PartitionId>,
        verify_only: bool,
    ) -> Result<(), ApiError> {
        for partition in &partitions {
            let topic = self.inner().catalog.by_id(partition.topic);
            if topic.is_none_or(|topic| topic.partitions.len() <= partition.index as usize) {
                let message = format!("there is no partition {partition}; none was added to the transaction");
                return Err(ApiError::new(ErrorCode::UnknownTopicOrPartition, message));
            }
        }
        let parts = Parts { partitions, groups: Vec::new() };
        self.ask_transaction(part(id, producer, parts, !verify_only)).await.map(drop)
    }

    /// Lets the offsets of a group be part of the transaction.
    ///
    /// # Errors
    /// As `add_partitions`.
    pub async fn add_group(&self, id: String, producer: ProducerInstance, group: String) -> Result<(), ApiError> {
        let parts = Parts { partitions: Vec::new(), groups: vec![group] };
        self.ask_transaction(part(id, producer, parts, true)).await.map(drop)
    }

    /// Ends the transaction. Once it is answered, the outcome is decided, durably; markers follow. Returns who the client is for its next
    /// transaction: another epoch where each has its own.
    ///
    /// # Errors
    /// `INVALID_TXN_STATE`: there is none, or it ended otherwise. `CONCURRENT_TRANSACTIONS`: it is being ended, as asked before.
    pub(crate) async fn end_transaction(
        &self,
        transaction: InTransaction,
        producer: ProducerInstance,
        outcome: TxnOutcome,
    ) -> Result<ProducerInstance, ApiError> {
        let InTransaction { id, epoch_per_transaction, .. } = transaction;
        let request = Request::End { id: id.to_string(), producer, outcome, epoch_per_transaction };
        match self.ask_transaction(request).await? {
            (Granted::Producer(producer), _) => Ok(producer),
            (Granted::Done, _) => unreachable!("whoever ends a transaction is told who it is"),
        }
    }

    /// Commits offsets inside a transaction, at the group's coordinator: they count once the transaction is committed (KIP-447).
    /// Outcomes in the order of the offsets.
    ///
    /// # Errors
    /// As a commit outside of transactions, and what the transaction's coordinator says.
    pub(crate) async fn commit_offsets_in_transaction(
        &self,
        offsets: TransactionOffsets,
    ) -> Result<Vec<Result<(), ErrorCode>>, ApiError> {
        let TransactionOffsets { transaction, producer, commit } = offsets;
        let group = commit.group.to_string();
        for _ in 0..OFFSETS_TRIES_MAX {
            // Rule X3: first the moment, then the question.
            let verified = match self.ask_group(&group, groups::Request::Verification).await? {
                Answer::Verification(verified) => verified,
                other => unreachable!("a verification is no {other:?}"),
            };
            let parts = Parts { partitions: Vec::new(), groups: vec![group.clone()] };
            let (id, add) = (transaction.id.to_string(), transaction.epoch_per_transaction);
            let coordinator = self.confirm(Confirm { id, producer, parts, add }).await.map_err(unconfirmed)?;
            if transaction.is_given_up() {
                return Err(given_up());
            }
            let (commit, producer_epoch) = (commit.clone(), producer.epoch);
            let request = groups::TxnCommit { commit, producer: producer.id, producer_epoch, verified, coordinator };
            match self.ask_group(&group, groups::Request::TxnCommit(request)).await? {
                // A transaction of this producer ended between the two: it may have been this one. With one epoch for all it was: the next
                // begins when all of it has ended.
                Answer::Commit(Err(ErrorCode::InvalidTxnState)) if transaction.epoch_per_transaction => {}
                Answer::Commit(Err(ErrorCode::InvalidTxnState)) => return Err(given_up()),
                Answer::Commit(Err(code)) => {
                    return Err(ApiError::new(code, format!("the coordinator of group `{group}` refused")));
                }
                Answer::Commit(Ok(outcomes)) => return Ok(outcomes),
                other => unreachable!("a commit is not answered by {other:?}"),
            }
        }
        let message = "transactions of this producer end all the time while it commits offsets; retry";
        Err(ApiError::new(ErrorCode::ConcurrentTransactions, message))
    }

    /// The transactional ids that this broker coordinates, in order of id.
    ///
    /// # Errors
    /// `COORDINATOR_LOAD_IN_PROGRESS`: some are being read back. `NOT_COORDINATOR`, if a shard is lost meanwhile.
    pub(crate) async fn list_transactions_here(&self) -> Result<Here<(String, TransactionRecord)>, ApiError> {
        let (shards, mut found) = (self.inner().coordinators.transactions.shards(), Vec::new());
        for shard in &shards {
            match self.ask_transactions(*shard, Ask::List).await? {
                Told::List(listed) => found.extend(listed),
                other => unreachable!("a list is answered by a list, not by {other:?}"),
            }
        }
        found.sort_by(|(one, _): &(String, _), (other, _)| one.cmp(other));
        Ok(Here { shards, found })
    }

    /// What is known of a transactional id.
    ///
    /// # Errors
    /// `TRANSACTIONAL_ID_NOT_FOUND`: nothing.
    pub(crate) async fn describe_transaction(&self, id: String) -> Result<TransactionRecord, ApiError> {
        match self.ask_transactions(shard_of(&id), Ask::Describe(id)).await? {
            Told::Described(described) => described.ok_or_else(|| refused(&TransactionError::UnknownId)),
            other => unreachable!("a description is no {other:?}"),
        }
    }

    /// Aborts what is ongoing of a transactional id, and fences its producer: an operator's order.
    ///
    /// # Errors
    /// `TRANSACTIONAL_ID_NOT_FOUND`: nothing is known of it.
    pub(crate) async fn terminate_transaction(&self, id: String) -> Result<(), ApiError> {
        self.ask_transaction(Request::Terminate { id }).await.map(drop)
    }

    /// Asks whoever coordinates the transaction, here or elsewhere, whether parts belong to it (rule X3). Asks again, for a while, where
    /// that passes by itself.
    pub(crate) async fn confirm(&self, confirm: Confirm) -> Confirmed {
        let shard = shard_of(&confirm.id);
        let until = clock::monotonic() + CONFIRM_WITHIN;
        let mut pause = ASK_AGAIN_FIRST;
        loop {
            let inner = self.inner();
            let confirmed = match inner.coordinators.owner(ShardKind::Txn, shard) {
                None => Err(ErrorCode::CoordinatorNotAvailable),
                Some((owner, _)) if owner == self.id() => self.confirm_here(confirm.clone()).await,
                Some((owner, _)) => inner.peers.confirm(owner, &confirm).await,
            };
            match confirmed {
                Err(code) if passes(code) && clock::monotonic() + pause < until => tokio::time::sleep(pause).await,
                answered => return answered,
            }
            pause = ASK_AGAIN_MAX.min(pause * 2);
        }
    }

    /// Answers as the coordinator, if it is this broker.
    async fn confirm_here(&self, confirm: Confirm) -> Confirmed {
        let Confirm { id, producer, parts, add } = confirm;
        match self.ask_transaction(part(id, producer, parts, add)).await {
            Ok((_, coordinator)) => Ok(coordinator),
            Err(error) => Err(error.code),
        }
    }

    async fn ask_transaction(&self, request: Request) -> Result<(Granted, CoordinatorEpoch), ApiError> {
        let shard = shard_of(id_of(&request));
        match self.ask_transactions(shard, Ask::Do(request)).await? {
            Told::Granted(answer, epoch) => match answer {
                Ok(granted) => Ok((granted, epoch)),
                Err(error) => Err(refused(&error)),
            },
            other => unreachable!("a request is not answered by {other:?}"),
        }
    }

    async fn ask_transactions(&self, shard: u32, ask: Ask) -> Result<Told, ApiError> {
        // Rule B5: another broker may own the shard by now.
        if !self.session_handle().is_fresh() {
            let message = "this broker has not heard from the metadata store for too long to coordinate; ask again";
            return Err(ApiError::new(ErrorCode::NotCoordinator, message));
        }
        let coordinators = &self.inner().coordinators;
        coordinators.transactions.ask(shard, ask).await.map_err(|unanswered| match unanswered {
            Unanswered::NotHere => self.not_coordinator(ShardKind::Txn, shard),
            Unanswered::Lost => self.not_coordinator(ShardKind::Txn, shard).in_doubt(),
            Unanswered::Loading => ApiError::new(
                ErrorCode::CoordinatorLoadInProgress,
                "the transactions of this coordinator are being read back; try again",
            ),
        })
    }
}

fn part(id: String, producer: ProducerInstance, parts: Parts, add: bool) -> Request {
    if add { Request::Add { id, producer, parts } } else { Request::Verify { id, producer, parts } }
}

fn id_of(request: &Request) -> &str {
    match request {
        Request::Init { id, .. }
        | Request::Add { id, .. }
        | Request::Verify { id, .. }
        | Request::End { id, .. }
        | Request::Terminate { id } => id,
    }
}

/// Whether the same question may get another answer soon.
fn passes(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::ConcurrentTransactions
            | ErrorCode::CoordinatorLoadInProgress
            | ErrorCode::CoordinatorNotAvailable
            | ErrorCode::NotCoordinator
            | ErrorCode::RequestTimedOut
    )
}

fn refused(error: &TransactionError) -> ApiError {
    ApiError::new(error.code(), error.to_string())
}

/// The refusal of what a coordinator did not confirm.
fn unconfirmed(code: ErrorCode) -> ApiError {
    let message = match code {
        code if passes(code) => "the coordinator of the transaction has not confirmed it in time; retry",
        ErrorCode::ProducerFenced => "the producer is fenced: another instance took over, or its transaction timed out",
        _ => "the coordinator of the transaction refused",
    };
    ApiError::new(code, message)
}
