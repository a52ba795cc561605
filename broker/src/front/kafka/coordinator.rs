//! FindCoordinator: there are no coordinators yet, and the client is told so.
//!
//! Served all the same: librdkafka compresses with lz4 only for brokers that list this request (case A3 has the same cause).

use super::wire::{requests, responses};
use millpond_log::ErrorCode;

/// Kafka's `COORDINATOR_NOT_AVAILABLE`. Retriable: librdkafka keeps it from applications that assign partitions themselves,
/// whose consumers ask for a coordinator all the same.
const COORDINATOR_NOT_AVAILABLE: i16 = 15;

/// Kafka's key type of consumer groups. The others are transactions and share groups.
const GROUP: i8 = 0;

const NO_BROKER: i32 = -1;

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

/// Says of every key that it has no coordinator.
pub(super) fn answer(request: FindCoordinatorRequest) -> FindCoordinatorResponse {
    let (error_code, message) = match request.key_type {
        GROUP => (COORDINATOR_NOT_AVAILABLE, "consumer groups are not served; assign partitions instead"),
        // Nothing goes on without this one, so it has to end the waiting.
        _ => (ErrorCode::UnsupportedVersion.kafka(), "transactions and share groups are not served"),
    };
    let none = |key| Coordinator { key, error_code, error_message: Some(message.to_owned()), ..Default::default() };
    FindCoordinatorResponse {
        error_code,
        error_message: Some(message.to_owned()),
        coordinators: request.keys.into_iter().map(none).collect(),
        ..Default::default()
    }
}
