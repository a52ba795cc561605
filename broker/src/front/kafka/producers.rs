//! InitProducerId: identities of idempotent and of transactional producers.

use super::throttle::throttle_ms;
use super::transactions::{instance, told};
use super::wire::{requests, responses};
use crate::Broker;
use crate::api::ApiError;
use millpond_core::records::ProducerInstance;
use millpond_log::ErrorCode;

/// First version whose clients know `PRODUCER_FENCED`.
const FENCED_SINCE: i16 = 4;

requests! {
    /// Who asks.
    InitProducerIdRequest {
        transactional_id: Option<String> => ..,
        transaction_timeout_ms: i32 => ..,
        producer_id: i64 = -1 => 3..,
        producer_epoch: i16 = -1 => 3..,
    }
}

responses! {
    /// An identity. -1 and -1 with an error.
    InitProducerIdResponse {
        throttle_time_ms: i32 => ..,
        error_code: i16 => ..,
        producer_id: i64 = -1 => ..,
        producer_epoch: i16 = -1 => ..,
    }
}

/// Gives a new identity, also to a producer that has one: without a transactional id nothing ties it to its past. With one, the next
/// epoch of its producer; whoever had the one before is fenced.
pub(super) async fn answer(broker: &Broker, version: i16, request: InitProducerIdRequest) -> InitProducerIdResponse {
    let InitProducerIdRequest { transactional_id, transaction_timeout_ms, producer_id, producer_epoch } = request;
    let identity = match transactional_id {
        None => match broker.init_producer().await {
            Ok(new) => Ok(ProducerInstance { id: new.id, epoch: new.epoch }),
            Err(error) => Err(ApiError { code: later(error.code), ..error }),
        },
        Some(id) => {
            let granted = match expected(producer_id, producer_epoch) {
                Ok(expected) => broker.init_transactional(id, transaction_timeout_ms, expected).await,
                Err(code) => Err(ApiError::new(code, "a producer has an id and an epoch, or neither")),
            };
            broker.counted("InitProducerId", granted)
        }
    };
    match identity {
        Ok(identity) => InitProducerIdResponse {
            producer_id: identity.id.0.cast_signed(),
            producer_epoch: identity.epoch.0.cast_signed(),
            ..Default::default()
        },
        Err(error) => InitProducerIdResponse {
            throttle_time_ms: throttle_ms(std::iter::once(&error)),
            error_code: told(error.code, version, FENCED_SINCE, 0).kafka(),
            ..Default::default()
        },
    }
}

/// Why there is no id for an idempotent producer. Like Kafka's brokers it tells of a coordinator that loads where it has none now: several
/// clients take any other code for the end.
fn later(code: ErrorCode) -> ErrorCode {
    match code {
        ErrorCode::LeaderNotAvailable | ErrorCode::NotController => ErrorCode::CoordinatorLoadInProgress,
        code => code,
    }
}

/// Who the client was (KIP-360); -1 and -1 if nobody.
fn expected(id: i64, epoch: i16) -> Result<Option<ProducerInstance>, ErrorCode> {
    match (id, epoch) {
        (-1, -1) => Ok(None),
        (-1, _) | (_, -1) => Err(ErrorCode::InvalidRequest),
        _ => instance(id, epoch).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idempotent_producer_comes_back_for_an_id_that_cannot_be_had_now() {
        for code in [ErrorCode::LeaderNotAvailable, ErrorCode::NotController] {
            assert_eq!(later(code), ErrorCode::CoordinatorLoadInProgress);
        }
        assert_eq!(later(ErrorCode::InvalidRequest), ErrorCode::InvalidRequest);
    }

    #[test]
    fn a_client_says_who_it_was_by_both_numbers_or_by_none() {
        assert_eq!(expected(-1, -1), Ok(None));
        assert_eq!(expected(5, 6), instance(5, 6).map(Some));
        assert_eq!(expected(-1, 6), Err(ErrorCode::InvalidRequest));
        assert_eq!(expected(5, -1), Err(ErrorCode::InvalidRequest));
    }
}
