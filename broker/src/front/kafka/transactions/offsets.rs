//! TxnOffsetCommit: offsets that a group has committed once the transaction has. Each partition succeeds or fails alone.

use super::super::throttle::throttle_ms;
use super::super::wire::{requests, responses};
use super::{instance, told};
use crate::Broker;
use crate::api::{ApiError, InTransaction, TransactionOffsets};
use millpond_core::groups::{Commit, CommitOffset};
use millpond_log::{ErrorCode, LeaderEpoch, Offset, PartitionId};
use tokio_util::sync::CancellationToken;

/// First version of clients that leave it to the brokers to add the group to the transaction (KIP-890).
const ADDS_SINCE: i16 = 5;

/// First version whose clients know `TRANSACTION_ABORTABLE`, and `COORDINATOR_LOAD_IN_PROGRESS`.
const ABORTABLE_SINCE: i16 = 4;
const LOADING_SINCE: i16 = 2;

requests! {
    /// Offsets to commit.
    TxnOffsetCommitRequest {
        transactional_id: String => ..,
        group_id: String => ..,
        producer_id: i64 => ..,
        producer_epoch: i16 => ..,
        generation_id: i32 = -1 => 3..,
        member_id: String => 3..,
        group_instance_id: Option<String> => 3..,
        topics: Vec<TxnOffsetTopic> => ..,
    }
    /// One topic.
    TxnOffsetTopic {
        name: String => ..,
        partitions: Vec<TxnOffset> => ..,
    }
    /// One partition.
    TxnOffset {
        index: i32 => ..,
        committed_offset: i64 => ..,
        committed_leader_epoch: i32 = -1 => 2..,
        committed_metadata: Option<String> => ..,
    }
}

responses! {
    /// What became of each offset.
    TxnOffsetCommitResponse {
        throttle_time_ms: i32 => ..,
        topics: Vec<TxnOffsetTopicResult> => ..,
    }
    /// One topic.
    TxnOffsetTopicResult {
        name: String => ..,
        partitions: Vec<TxnOffsetResult> => ..,
    }
    /// One partition.
    TxnOffsetResult {
        index: i32 => ..,
        error_code: i16 => ..,
    }
}

/// Commits what can be committed, inside the transaction.
pub(in crate::front::kafka) async fn commit(
    broker: &Broker,
    hung_up: CancellationToken,
    version: i16,
    request: TxnOffsetCommitRequest,
) -> TxnOffsetCommitResponse {
    let TxnOffsetCommitRequest { transactional_id, group_id, producer_id, producer_epoch, topics, .. } = &request;
    let known = broker.group_topics();
    let (mut offsets, mut places) = (Vec::new(), Vec::new());
    let mut answered: Vec<TxnOffsetTopicResult> = Vec::with_capacity(topics.len());
    for TxnOffsetTopic { name, partitions } in topics {
        let topic = known.id(name).ok_or(ErrorCode::UnknownTopicOrPartition);
        let mut outcomes = Vec::with_capacity(partitions.len());
        for partition in partitions {
            let offset = topic.and_then(|topic| {
                let index = u32::try_from(partition.index).map_err(|_| ErrorCode::UnknownTopicOrPartition)?;
                Ok((PartitionId { topic, index }, to_commit(partition)?))
            });
            let error_code = offset.as_ref().err().map_or(0, |code: &ErrorCode| code.kafka());
            outcomes.push(TxnOffsetResult { index: partition.index, error_code });
            if let Ok(offset) = offset {
                places.push((answered.len(), outcomes.len() - 1));
                offsets.push(offset);
            }
        }
        answered.push(TxnOffsetTopicResult { name: name.clone(), partitions: outcomes });
    }
    if offsets.is_empty() {
        return TxnOffsetCommitResponse { throttle_time_ms: 0, topics: answered };
    }
    let committed = match instance(*producer_id, *producer_epoch) {
        Ok(producer) => {
            let commit = Commit {
                group: group_id.as_str().into(),
                member: request.member_id.as_str().into(),
                instance: request.group_instance_id.clone(),
                epoch: request.generation_id,
                retention_ms: None,
                number: None,
                offsets,
            };
            let id = transactional_id.as_str().into();
            let transaction = InTransaction { id, epoch_per_transaction: version >= ADDS_SINCE, hung_up };
            broker.commit_offsets_in_transaction(TransactionOffsets { transaction, producer, commit }).await
        }
        Err(code) => Err(ApiError::new(code, "there is no such producer")),
    };
    let throttle_time_ms = throttle_ms(committed.as_ref().err().into_iter());
    let outcomes = match broker.counted("TxnOffsetCommit", committed) {
        Ok(outcomes) => outcomes,
        // What is wrong with the producer or the member is wrong with all its offsets.
        Err(error) => vec![Err(error.code); places.len()],
    };
    for ((topic, partition), outcome) in places.into_iter().zip(outcomes) {
        let code = outcome.err().map_or(0, |code| known_to(version, code).kafka());
        answered[topic].partitions[partition].error_code = code;
    }
    TxnOffsetCommitResponse { throttle_time_ms, topics: answered }
}

/// # Errors
/// `INVALID_REQUEST` for an offset that cannot be.
fn to_commit(partition: &TxnOffset) -> Result<CommitOffset, ErrorCode> {
    let offset = u64::try_from(partition.committed_offset).map_err(|_| ErrorCode::InvalidRequest)?;
    let leader_epoch = u32::try_from(partition.committed_leader_epoch).ok().map(LeaderEpoch);
    let metadata = partition.committed_metadata.clone().unwrap_or_default();
    Ok(CommitOffset { offset: Offset(offset), leader_epoch, metadata })
}

/// The code in the words of the version. The client asked the group's coordinator: what is wrong with the transaction's, and passes, is
/// a reason to ask the same again. Being fenced it knows by `INVALID_PRODUCER_EPOCH` alone.
fn known_to(version: i16, code: ErrorCode) -> ErrorCode {
    let code = match code {
        ErrorCode::ConcurrentTransactions | ErrorCode::RequestTimedOut => ErrorCode::CoordinatorLoadInProgress,
        ErrorCode::ProducerFenced => ErrorCode::InvalidProducerEpoch,
        code => code,
    };
    match code {
        ErrorCode::CoordinatorLoadInProgress if version < LOADING_SINCE => ErrorCode::CoordinatorNotAvailable,
        code => told(code, version, 0, ABORTABLE_SINCE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_taken_as_they_are_or_refused() {
        let check = |committed_offset, committed_leader_epoch, expected: Result<(u64, Option<u32>), ErrorCode>| {
            let partition = TxnOffset { index: 0, committed_offset, committed_leader_epoch, committed_metadata: None };
            let read = to_commit(&partition).map(|commit| (commit.offset.0, commit.leader_epoch.map(|epoch| epoch.0)));
            assert_eq!(read, expected, "{committed_offset} {committed_leader_epoch}");
        };
        check(0, -1, Ok((0, None)));
        check(i64::MAX, 3, Ok((i64::MAX.cast_unsigned(), Some(3))));
        check(-1, -1, Err(ErrorCode::InvalidRequest));
    }

    #[test]
    fn clients_are_told_codes_that_they_act_on() {
        let check = |version, code, expected| assert_eq!(known_to(version, code), expected, "{version} {code:?}");
        check(5, ErrorCode::ConcurrentTransactions, ErrorCode::CoordinatorLoadInProgress);
        check(1, ErrorCode::ConcurrentTransactions, ErrorCode::CoordinatorNotAvailable);
        check(5, ErrorCode::ProducerFenced, ErrorCode::InvalidProducerEpoch);
        check(3, ErrorCode::TransactionAbortable, ErrorCode::InvalidTxnState);
        check(4, ErrorCode::TransactionAbortable, ErrorCode::TransactionAbortable);
        check(0, ErrorCode::UnknownMemberId, ErrorCode::UnknownMemberId);
    }
}
