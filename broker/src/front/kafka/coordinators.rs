//! FindCoordinator: who keeps a group's or a transaction's state. Nobody yet; the request is served all the same, since librdkafka
//! takes its presence for support of LZ4 and sends plain batches without it.

use super::wire::{requests, responses};
use millpond_log::ErrorCode;

requests! {
    /// What is looked for.
    FindCoordinatorRequest {
        key: String => ..,
        key_type: i8 => 1..,
    }
}

responses! {
    /// Where it is. -1 and nothing with an error.
    FindCoordinatorResponse {
        throttle_time_ms: i32 => 1..,
        error_code: i16 => ..,
        error_message: Option<String> => 1..,
        node_id: i32 = -1 => ..,
        host: String => ..,
        port: i32 = -1 => ..,
    }
}

/// Says that there is none. Retriable: a consumer that was assigned its partitions asks in the background and reads meanwhile.
pub(super) fn answer(request: &FindCoordinatorRequest) -> FindCoordinatorResponse {
    let key = &request.key;
    FindCoordinatorResponse {
        error_code: ErrorCode::CoordinatorNotAvailable.kafka(),
        error_message: Some(format!("nobody keeps `{key}`: groups and transactions are not served yet")),
        ..Default::default()
    }
}
