//! AddPartitionsToTxn and AddOffsetsToTxn: what a transaction is about to write, told by clients that do not leave it to the brokers.

use super::super::throttle::throttle_ms;
use super::super::wire::{requests, responses};
use super::{instance, told};
use crate::Broker;
use crate::api::{ApiError, TopicRef};
use millpond_core::records::ProducerInstance;
use millpond_log::{ErrorCode, PartitionId};

/// First version with several transactions, which brokers send; some only to be verified.
const BATCHED_SINCE: i16 = 4;

/// First versions whose clients know `PRODUCER_FENCED`, and `TRANSACTION_ABORTABLE`.
const FENCED_SINCE: i16 = 2;
const PARTITIONS_ABORTABLE_SINCE: i16 = 5;
const OFFSETS_ABORTABLE_SINCE: i16 = 4;

requests! {
    /// Partitions that a transaction is about to write. Since version 4 of several transactions, or only to be verified.
    AddPartitionsToTxnRequest {
        transactions: Vec<AddedTransaction> => 4..,
        transactional_id: String => ..=3,
        producer_id: i64 => ..=3,
        producer_epoch: i16 => ..=3,
        topics: Vec<AddedTopic> => ..=3,
    }
    /// One transaction.
    AddedTransaction {
        transactional_id: String => ..,
        producer_id: i64 => ..,
        producer_epoch: i16 => ..,
        verify_only: bool => ..,
        topics: Vec<AddedTopic> => ..,
    }
    /// One topic.
    AddedTopic {
        name: String => ..,
        partitions: Vec<i32> => ..,
    }
    /// A group whose offsets a transaction is about to commit.
    AddOffsetsToTxnRequest {
        transactional_id: String => ..,
        producer_id: i64 => ..,
        producer_epoch: i16 => ..,
        group_id: String => ..,
    }
}

responses! {
    /// What became of each partition.
    AddPartitionsToTxnResponse {
        throttle_time_ms: i32 => ..,
        error_code: i16 => 4..,
        transactions: Vec<AddedTransactionResult> => 4..,
        topics: Vec<AddedTopicResult> => ..=3,
    }
    /// One transaction.
    AddedTransactionResult {
        transactional_id: String => ..,
        topics: Vec<AddedTopicResult> => ..,
    }
    /// One topic.
    AddedTopicResult {
        name: String => ..,
        partitions: Vec<AddedPartitionResult> => ..,
    }
    /// One partition.
    AddedPartitionResult {
        index: i32 => ..,
        error_code: i16 => ..,
    }
    /// Whether the group is part of the transaction.
    AddOffsetsToTxnResponse {
        throttle_time_ms: i32 => ..,
        error_code: i16 => ..,
    }
}

/// Adds the partitions of each transaction, all of them or none.
pub(in crate::front::kafka) async fn add_partitions(
    broker: &Broker,
    version: i16,
    request: AddPartitionsToTxnRequest,
) -> AddPartitionsToTxnResponse {
    let AddPartitionsToTxnRequest { transactions, transactional_id, producer_id, producer_epoch, topics } = request;
    if version < BATCHED_SINCE {
        let verify_only = false;
        let only = AddedTransaction { transactional_id, producer_id, producer_epoch, verify_only, topics };
        let (topics, throttle_time_ms) = add(broker, version, only).await;
        return AddPartitionsToTxnResponse { throttle_time_ms, topics, ..Default::default() };
    }
    let mut answer = AddPartitionsToTxnResponse::default();
    for transaction in transactions {
        let transactional_id = transaction.transactional_id.clone();
        let (topics, throttle_time_ms) = add(broker, version, transaction).await;
        answer.transactions.push(AddedTransactionResult { transactional_id, topics });
        answer.throttle_time_ms = answer.throttle_time_ms.max(throttle_time_ms);
    }
    answer
}

/// What became of the partitions of one transaction, and how long the client is to pause.
async fn add(broker: &Broker, version: i16, transaction: AddedTransaction) -> (Vec<AddedTopicResult>, i32) {
    let AddedTransaction { transactional_id, producer_id, producer_epoch, verify_only, topics } = transaction;
    let mut known = Vec::new();
    let mut answered = Vec::with_capacity(topics.len());
    for AddedTopic { name, partitions } in topics {
        let topic = TopicRef::Name(name.clone());
        let partitions = partitions.into_iter().map(|index| {
            let found = find(broker, &topic, index);
            let error_code = found.as_ref().err().map_or(0, |code| code.kafka());
            known.extend(found);
            AddedPartitionResult { index, error_code }
        });
        answered.push(AddedTopicResult { partitions: partitions.collect(), name });
    }
    let unknown = answered.iter().flat_map(|topic| &topic.partitions).any(|partition| partition.error_code != 0);
    let (outcome, throttle_time_ms) = if unknown {
        (Err(ErrorCode::OperationNotAttempted), 0)
    } else {
        match instance(producer_id, producer_epoch) {
            Ok(producer) => ask(broker, transactional_id, producer, known, verify_only).await,
            Err(code) => (Err(code), 0),
        }
    };
    if let Err(code) = outcome {
        let code = told(code, version, FENCED_SINCE, PARTITIONS_ABORTABLE_SINCE).kafka();
        let rest = answered.iter_mut().flat_map(|topic| &mut topic.partitions).filter(|one| one.error_code == 0);
        rest.for_each(|partition| partition.error_code = code);
    }
    (answered, throttle_time_ms)
}

async fn ask(
    broker: &Broker,
    id: String,
    producer: ProducerInstance,
    partitions: Vec<PartitionId>,
    verify_only: bool,
) -> (Result<(), ErrorCode>, i32) {
    let added = broker.add_partitions(id, producer, partitions, verify_only).await;
    settled(broker, "AddPartitionsToTxn", added)
}

/// Lets the offsets of a group be part of the transaction.
pub(in crate::front::kafka) async fn add_offsets(
    broker: &Broker,
    version: i16,
    request: AddOffsetsToTxnRequest,
) -> AddOffsetsToTxnResponse {
    let AddOffsetsToTxnRequest { transactional_id, producer_id, producer_epoch, group_id } = request;
    let (outcome, throttle_time_ms) = match instance(producer_id, producer_epoch) {
        _ if group_id.is_empty() => (Err(ErrorCode::InvalidGroupId), 0),
        Ok(producer) => {
            let added = broker.add_group(transactional_id, producer, group_id).await;
            settled(broker, "AddOffsetsToTxn", added)
        }
        Err(code) => (Err(code), 0),
    };
    let told = |code| told(code, version, FENCED_SINCE, OFFSETS_ABORTABLE_SINCE);
    AddOffsetsToTxnResponse { throttle_time_ms, error_code: outcome.err().map_or(0, |code| told(code).kafka()) }
}

fn settled(broker: &Broker, api: &'static str, outcome: Result<(), ApiError>) -> (Result<(), ErrorCode>, i32) {
    let throttle_time_ms = throttle_ms(outcome.as_ref().err().into_iter());
    (broker.counted(api, outcome).map_err(|error| error.code), throttle_time_ms)
}

fn find(broker: &Broker, topic: &TopicRef, index: i32) -> Result<PartitionId, ErrorCode> {
    let index = u32::try_from(index).map_err(|_| ErrorCode::UnknownTopicOrPartition)?;
    broker.partition(topic, index).map(|handle| handle.id).map_err(|error| error.code)
}
