//! How long a client is asked to pause, from the errors of one answer.

use crate::api::ApiError;
use std::time::Duration;

/// The longest pause that any of the errors asks for, as an answer's `throttle_time_ms`. The client pauses; we answer at once
/// (KIP-219).
pub(super) fn throttle_ms<'a>(errors: impl Iterator<Item = &'a ApiError>) -> i32 {
    let pause = errors.filter_map(|error| error.retry_after).max().unwrap_or(Duration::ZERO);
    i32::try_from(pause.as_millis()).unwrap_or(i32::MAX)
}
