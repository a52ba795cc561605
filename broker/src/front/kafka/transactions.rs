//! Requests of transactional producers, and of operators who look after transactions: each is one question to a coordinator or a leader.
//!
//! Topics come by name and are ids from here on (rule K1). Codes are those that the client's version knows.

mod end;
mod list;
mod markers;
mod offsets;
mod parts;

pub(super) use end::{EndTxnRequest, end};
pub(super) use list::{DescribeTransactionsRequest, ListTransactionsRequest, describe, list};
pub(super) use markers::{WriteTxnMarkersRequest, write_markers};
pub(super) use offsets::{TxnOffsetCommitRequest, commit};
pub(super) use parts::{AddOffsetsToTxnRequest, AddPartitionsToTxnRequest, add_offsets, add_partitions};

#[cfg(test)]
pub(super) mod answers {
    //! The answers, for whoever checks how they are spelled.
    pub(in crate::front::kafka) use super::end::EndTxnResponse;
    pub(in crate::front::kafka) use super::list::{
        DescribeTransactionsResponse, DescribedTransaction, DescribedTxnTopic, ListTransactionsResponse,
        ListedTransaction,
    };
    pub(in crate::front::kafka) use super::markers::{
        MarkedPartitionResult, MarkedTopicResult, WriteTxnMarkersResponse, WrittenMarkerResult,
    };
    pub(in crate::front::kafka) use super::offsets::{TxnOffsetCommitResponse, TxnOffsetResult, TxnOffsetTopicResult};
    pub(in crate::front::kafka) use super::parts::{
        AddOffsetsToTxnResponse, AddPartitionsToTxnResponse, AddedPartitionResult, AddedTopicResult,
        AddedTransactionResult,
    };
}

use millpond_core::records::ProducerInstance;
use millpond_log::{ErrorCode, ProducerEpoch, ProducerId};

/// A producer by Kafka's signed numbers.
///
/// # Errors
/// Kafka's for an id and an epoch that no producer has.
pub(super) fn instance(id: i64, epoch: i16) -> Result<ProducerInstance, ErrorCode> {
    let id = u64::try_from(id).map(ProducerId).map_err(|_| ErrorCode::InvalidProducerIdMapping)?;
    let epoch = u16::try_from(epoch).map(ProducerEpoch).map_err(|_| ErrorCode::InvalidProducerEpoch)?;
    Ok(ProducerInstance { id, epoch })
}

/// The code in the words of a version: those before `fenced_since` know no `PRODUCER_FENCED`, those before `abortable_since` no
/// `TRANSACTION_ABORTABLE`.
pub(super) fn told(code: ErrorCode, version: i16, fenced_since: i16, abortable_since: i16) -> ErrorCode {
    match code {
        ErrorCode::ProducerFenced if version < fenced_since => ErrorCode::InvalidProducerEpoch,
        ErrorCode::TransactionAbortable if version < abortable_since => ErrorCode::InvalidTxnState,
        code => code,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn producers_are_named_by_numbers_from_0_on() {
        let named = ProducerInstance { id: ProducerId(5), epoch: ProducerEpoch(6) };
        assert_eq!(instance(5, 6), Ok(named));
        assert_eq!(instance(-1, 6), Err(ErrorCode::InvalidProducerIdMapping));
        assert_eq!(instance(5, -1), Err(ErrorCode::InvalidProducerEpoch));
    }

    #[test]
    fn older_clients_are_told_codes_that_they_know() {
        let check = |code, version, expected| assert_eq!(told(code, version, 2, 5), expected, "{code:?} {version}");
        check(ErrorCode::ProducerFenced, 1, ErrorCode::InvalidProducerEpoch);
        check(ErrorCode::ProducerFenced, 2, ErrorCode::ProducerFenced);
        check(ErrorCode::TransactionAbortable, 4, ErrorCode::InvalidTxnState);
        check(ErrorCode::TransactionAbortable, 5, ErrorCode::TransactionAbortable);
        check(ErrorCode::InvalidTxnState, 0, ErrorCode::InvalidTxnState);
    }
}
