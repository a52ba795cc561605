//! Refusals that more than one part of the broker gives, each worded once.

use crate::api::ApiError;
use millpond_log::ErrorCode;

pub(crate) fn not_leader() -> ApiError {
    ApiError::new(ErrorCode::NotLeaderOrFollower, "this broker does not lead the partition; refresh the metadata")
}

/// Rule B5: what only a leader may say or take alone.
pub(crate) fn stale(code: ErrorCode) -> ApiError {
    ApiError::new(
        code,
        "this broker has not heard from the metadata store for too long; acks=all and reads go on; retry",
    )
}

/// Rule X3: of a client whose transactions have one epoch. It has given the request up, or is about to.
pub(crate) fn given_up() -> ApiError {
    ApiError::new(
        ErrorCode::TransactionAbortable,
        "it is not known any more which transaction this belongs to: the connection was closed, or one has ended meanwhile; abort",
    )
}

pub(crate) fn bounds_not_proven() -> ApiError {
    ApiError::new(
        ErrorCode::OffsetNotAvailable,
        "the new leader has not proven yet where the log starts and ends; retry",
    )
}

pub(crate) fn storage_error(error: &(dyn std::error::Error + 'static)) -> ApiError {
    let mut message = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        message.push_str(": ");
        message.push_str(&cause.to_string());
        source = cause.source();
    }
    ApiError::new(ErrorCode::KafkaStorageError, message)
}
