//! InitProducerId: identities of idempotent producers.

use super::throttle::throttle_ms;
use super::wire::{requests, responses};
use crate::Broker;
use crate::api::ApiError;
use millpond_log::ErrorCode;

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

/// Gives a new identity, also to a producer that has one: without a transactional id nothing ties it to its past.
pub(super) async fn answer(broker: &Broker, request: InitProducerIdRequest) -> InitProducerIdResponse {
    let identity = match request.transactional_id {
        None => broker.init_producer().await,
        // Not a coordinator error: those are retriable, and the client would ask for ever.
        Some(_) => Err(ApiError::new(ErrorCode::UnsupportedVersion, "transactions are not served")),
    };
    match identity {
        Ok(identity) => InitProducerIdResponse {
            producer_id: identity.id.0.cast_signed(),
            producer_epoch: identity.epoch.0.cast_signed(),
            ..Default::default()
        },
        Err(error) => InitProducerIdResponse {
            throttle_time_ms: throttle_ms(std::iter::once(&error)),
            error_code: error.code.kafka(),
            ..Default::default()
        },
    }
}
