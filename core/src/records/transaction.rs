//! A transactional id as the metadata store keeps it: `/x/{shard}/{txn id}`. Plain data; what may follow what is the coordinator's decision.

use super::text;
use millpond_log::transactions::TxnOutcome;
use millpond_log::{PartitionId, ProducerEpoch, ProducerId, TimestampMs, TopicId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// One instance of a producer: an epoch fences those below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProducerInstance {
    /// Its id.
    #[serde(with = "text::number")]
    pub id: ProducerId,
    /// Its epoch.
    #[serde(with = "text::number")]
    pub epoch: ProducerEpoch,
}

/// Where the newest transaction of a transactional id stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TransactionState {
    /// There was none yet since the producer was initialised.
    Empty,
    /// Partitions or groups belong to it; it may end either way.
    Ongoing,
    /// It is committed (rule X2); not all markers are.
    PrepareCommit,
    /// It is aborted (rule X2); not all markers are committed.
    PrepareAbort,
    /// It is committed, everywhere.
    CompleteCommit,
    /// It is aborted, everywhere.
    CompleteAbort,
}

/// A transactional id: `/x/{shard}/{txn id}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransactionRecord {
    /// Who may act on it. While a transaction is prepared: what its markers carry.
    pub producer: ProducerInstance,
    /// The id that takes over with epoch 0 once the prepared transaction is complete: the epochs of the other are used up (rule X1).
    #[serde(with = "text::option")]
    pub next_producer: Option<ProducerId>,
    /// Who its client was before its epoch was raised: it may ask for its new identity, having missed the answer (KIP-360).
    pub last: Option<ProducerInstance>,
    /// Who asked for the outcome that `state` tells, as it was then (rule X4). `None` if nobody did: it was fenced or timed out.
    pub ended_by: Option<ProducerInstance>,
    /// Where it stands.
    pub state: TransactionState,
    /// Partitions that belong to it, by topic.
    #[serde(with = "text::sets")]
    pub partitions: BTreeMap<TopicId, BTreeSet<u32>>,
    /// Groups whose offsets belong to it.
    pub groups: BTreeSet<String>,
    /// How long it may be ongoing, in milliseconds.
    pub timeout_ms: u32,
    /// When it began, if it did.
    #[serde(with = "text::option")]
    pub started: Option<TimestampMs>,
    /// When this record was last changed.
    #[serde(with = "text::number")]
    pub changed: TimestampMs,
}

impl TransactionState {
    /// The outcome of a transaction that is prepared and not complete.
    #[must_use]
    pub fn prepared(self) -> Option<TxnOutcome> {
        match self {
            TransactionState::PrepareCommit => Some(TxnOutcome::Commit),
            TransactionState::PrepareAbort => Some(TxnOutcome::Abort),
            _ => None,
        }
    }

    /// The outcome of a transaction that is decided, complete or not.
    #[must_use]
    pub fn outcome(self) -> Option<TxnOutcome> {
        match self {
            TransactionState::PrepareCommit | TransactionState::CompleteCommit => Some(TxnOutcome::Commit),
            TransactionState::PrepareAbort | TransactionState::CompleteAbort => Some(TxnOutcome::Abort),
            TransactionState::Empty | TransactionState::Ongoing => None,
        }
    }

    /// Kafka's name, such as `PrepareCommit`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            TransactionState::Empty => "Empty",
            TransactionState::Ongoing => "Ongoing",
            TransactionState::PrepareCommit => "PrepareCommit",
            TransactionState::PrepareAbort => "PrepareAbort",
            TransactionState::CompleteCommit => "CompleteCommit",
            TransactionState::CompleteAbort => "CompleteAbort",
        }
    }
}

impl TransactionRecord {
    /// Each partition that belongs to it, in order.
    pub fn partition_ids(&self) -> impl Iterator<Item = PartitionId> + '_ {
        let of_topic = |(topic, indexes): (&TopicId, &BTreeSet<u32>)| {
            let topic = *topic;
            indexes.iter().map(move |index| PartitionId { topic, index: *index }).collect::<Vec<_>>()
        };
        self.partitions.iter().flat_map(of_topic)
    }

    /// Whether the partition belongs to it.
    #[must_use]
    pub fn has_partition(&self, partition: PartitionId) -> bool {
        self.partitions.get(&partition.topic).is_some_and(|indexes| indexes.contains(&partition.index))
    }
}
