//! FindCoordinator: which broker keeps the state of a group, or of a transactional id.
//!
//! librdkafka compresses with lz4 only for brokers that list this request (case A3 has the same cause).

use super::metadata::{dialled, node_id};
use super::wire::{requests, responses};
use crate::Broker;
use crate::api::{ApiError, BrokerDescription};
use millpond_log::ErrorCode;

/// Kafka's key types: consumer groups, transactions, share groups.
const GROUP: i8 = 0;
const TRANSACTION: i8 = 1;
const KEY_TYPES: std::ops::RangeInclusive<i8> = 0..=2;

const NO_BROKER: i32 = -1;

/// First version with a list of keys.
const KEYS_SINCE: i16 = 4;

requests! {
    /// Whose coordinator.
    FindCoordinatorRequest {
        key: String => ..=3,
        key_type: i8 => 1..,
        keys: Vec<String> => 4..,
    }
}

responses! {
    /// The coordinator, or since version 4 one for each key.
    FindCoordinatorResponse {
        throttle_time_ms: i32 => 1..,
        error_code: i16 => ..=3,
        error_message: Option<String> => 1..=3,
        node_id: i32 = NO_BROKER => ..=3,
        host: String => ..=3,
        port: i32 = -1 => ..=3,
        coordinators: Vec<Coordinator> => 4..,
    }
    /// The coordinator of one key.
    Coordinator {
        key: String => ..,
        node_id: i32 = NO_BROKER => ..,
        host: String => ..,
        port: i32 = -1 => ..,
        error_code: i16 => ..,
        error_message: Option<String> => ..,
    }
}

/// Looks up every key.
pub(super) fn answer(
    broker: &Broker,
    listener: &str,
    version: i16,
    request: FindCoordinatorRequest,
) -> FindCoordinatorResponse {
    let FindCoordinatorRequest { key, key_type, keys } = request;
    let found = |key: String| coordinator(broker, listener, key_type, key);
    if version >= KEYS_SINCE {
        return FindCoordinatorResponse { coordinators: keys.into_iter().map(found).collect(), ..Default::default() };
    }
    let Coordinator { node_id, host, port, error_code, error_message, .. } = found(key);
    FindCoordinatorResponse { node_id, host, port, error_code, error_message, ..Default::default() }
}

fn coordinator(broker: &Broker, listener: &str, key_type: i8, key: String) -> Coordinator {
    let found = match key_type {
        GROUP => broker.group_coordinator(&key).and_then(|owner| at(&owner.broker, listener)),
        TRANSACTION => broker.transaction_coordinator(&key).and_then(|owner| at(&owner.broker, listener)),
        // Nothing goes on without this one, so it has to end the waiting.
        _ if KEY_TYPES.contains(&key_type) => {
            Err(ApiError::new(ErrorCode::UnsupportedVersion, "share groups are not served"))
        }
        _ => Err(ApiError::new(ErrorCode::InvalidRequest, format!("nothing is coordinated by key type {key_type}"))),
    };
    match broker.counted("FindCoordinator", found) {
        Ok((node_id, host, port)) => Coordinator { key, node_id, host, port, ..Default::default() },
        Err(error) => Coordinator {
            key,
            error_code: error.code.kafka(),
            error_message: Some(error.message),
            ..Default::default()
        },
    }
}

/// Node id, host and port of a coordinator, at the listener of this name.
fn at(owner: &BrokerDescription, listener: &str) -> Result<(i32, String, i32), ApiError> {
    let (host, port) = owner.kafka_at(listener).and_then(dialled).ok_or_else(|| {
        let message = format!("broker {} coordinates it and has no listener `{listener}`", owner.id);
        ApiError::new(ErrorCode::CoordinatorNotAvailable, message)
    })?;
    Ok((node_id(owner.id), host, port))
}
