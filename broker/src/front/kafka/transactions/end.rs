//! EndTxn: how a transaction ends.

use super::super::throttle::throttle_ms;
use super::super::wire::{requests, responses};
use super::{instance, told};
use crate::Broker;
use crate::api::InTransaction;
use millpond_log::transactions::TxnOutcome;
use tokio_util::sync::CancellationToken;

/// First version of clients whose transactions have an epoch each (KIP-890).
const EPOCHS_SINCE: i16 = 5;

/// First versions whose clients know `PRODUCER_FENCED`, and `TRANSACTION_ABORTABLE`.
const FENCED_SINCE: i16 = 2;
const ABORTABLE_SINCE: i16 = 4;

requests! {
    /// How a transaction ends.
    EndTxnRequest {
        transactional_id: String => ..,
        producer_id: i64 => ..,
        producer_epoch: i16 => ..,
        committed: bool => ..,
    }
}

responses! {
    /// Whether it has ended, and who the producer is from now on; -1 and -1 with an error.
    EndTxnResponse {
        throttle_time_ms: i32 => ..,
        error_code: i16 => ..,
        producer_id: i64 = -1 => 5..,
        producer_epoch: i16 = -1 => 5..,
    }
}

/// Ends it. Once it is answered, the outcome stands, whatever becomes of anybody.
pub(in crate::front::kafka) async fn end(broker: &Broker, version: i16, request: EndTxnRequest) -> EndTxnResponse {
    let EndTxnRequest { transactional_id, producer_id, producer_epoch, committed } = request;
    let failed = |code| {
        let error_code = told(code, version, FENCED_SINCE, ABORTABLE_SINCE).kafka();
        EndTxnResponse { error_code, ..Default::default() }
    };
    let producer = match instance(producer_id, producer_epoch) {
        Ok(producer) => producer,
        Err(code) => return failed(code),
    };
    let epoch_per_transaction = version >= EPOCHS_SINCE;
    let transaction =
        InTransaction { id: transactional_id.into(), epoch_per_transaction, hung_up: CancellationToken::new() };
    let outcome = if committed { TxnOutcome::Commit } else { TxnOutcome::Abort };
    let ended = broker.end_transaction(transaction, producer, outcome).await;
    match broker.counted("EndTxn", ended) {
        Ok(next) => EndTxnResponse {
            producer_id: next.id.0.cast_signed(),
            producer_epoch: next.epoch.0.cast_signed(),
            ..Default::default()
        },
        Err(error) => EndTxnResponse { throttle_time_ms: throttle_ms(std::iter::once(&error)), ..failed(error.code) },
    }
}
