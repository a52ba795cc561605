//! How a refusal looks on the wire: a status with `google.rpc` details for calls, a message inside streams.

use crate::api::{ApiError, CurrentLeader};
use millpond_log::ErrorCode;
use millpond_proto::{
    ERROR_DOMAIN, ERROR_LEADER, ERROR_LEADER_EPOCH, ERROR_LEADER_GRPC, ERROR_MAYBE_DONE, ERROR_RETRIABLE, grpc_code, v1,
};
use std::collections::HashMap;
use std::time::Duration;
use tonic::Status;
use tonic_types::{ErrorDetails, StatusExt};

/// The status of a refused call.
pub(super) fn status(error: &ApiError) -> Status {
    let mut details = ErrorDetails::new();
    let mut metadata = HashMap::from([(ERROR_RETRIABLE.to_owned(), error.code.retriable().to_string())]);
    if error.maybe_done {
        metadata.insert(ERROR_MAYBE_DONE.to_owned(), true.to_string());
    }
    if let Some(CurrentLeader { epoch, broker }) = error.leader.as_deref() {
        let told = [
            (ERROR_LEADER, broker.id.0.to_string()),
            (ERROR_LEADER_EPOCH, epoch.0.to_string()),
            (ERROR_LEADER_GRPC, broker.grpc.clone()),
        ];
        metadata.extend(told.map(|(key, value)| (key.to_owned(), value)));
    }
    details.set_error_info(error.code.name(), ERROR_DOMAIN, metadata);
    if let Some(pause) = error.retry_after {
        details.set_retry_info(Some(pause));
    }
    Status::with_error_details(grpc_code(error.code), error.message.clone(), details)
}

/// The refusal of one request of a stream.
pub(super) fn in_stream(error: &ApiError) -> v1::Error {
    v1::Error {
        reason: error.code.name().to_owned(),
        message: error.message.clone(),
        retriable: error.code.retriable(),
        retry_after_ms: error.retry_after.map(millis_up),
        maybe_done: error.maybe_done,
        leader: error.leader.as_deref().map(|CurrentLeader { epoch, broker }| v1::CurrentLeader {
            id: broker.id.0,
            epoch: epoch.0,
            grpc: broker.grpc.clone(),
        }),
    }
}

/// A request that is none.
pub(super) fn malformed(message: impl Into<String>) -> ApiError {
    ApiError::new(ErrorCode::InvalidRequest, message)
}

/// The end of a stream whose broker goes away. The client finds the next leader and goes on there.
pub(super) fn going_away() -> Status {
    status(&ApiError::new(ErrorCode::LeaderNotAvailable, "the broker is shutting down"))
}

/// In whole milliseconds, never less than asked.
fn millis_up(pause: Duration) -> u64 {
    u64::try_from(pause.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::BrokerDescription;
    use millpond_log::{BrokerId, LeaderEpoch};
    use tonic::Code;

    #[test]
    fn refusals_carry_reason_retriable_and_pause() {
        let mut error = ApiError::new(ErrorCode::ThrottlingQuotaExceeded, "too much in flight");
        error.retry_after = Some(Duration::from_micros(1_500));
        let status = status(&error);
        assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "too much in flight"));
        let info = status.get_details_error_info().expect("has error info");
        assert_eq!((info.reason.as_str(), info.domain.as_str()), ("THROTTLING_QUOTA_EXCEEDED", "millpond"));
        assert_eq!(info.metadata.get("retriable").map(String::as_str), Some("true"));
        let pause = status.get_details_retry_info().and_then(|info| info.retry_delay);
        assert_eq!(pause, Some(Duration::from_micros(1_500)));
        assert_eq!(in_stream(&error).retry_after_ms, Some(2), "a pause is never shortened");
    }

    #[test]
    fn refusals_name_the_leader_they_know() {
        let broker = BrokerDescription {
            id: BrokerId(2),
            rack: None,
            grpc: "b:7400".to_owned(),
            kafka: "b:9092".to_owned(),
            kafka_listeners: std::collections::BTreeMap::new(),
            http: "b:7480".to_owned(),
        };
        let leader = Some(Box::new(CurrentLeader { epoch: LeaderEpoch(7), broker }));
        let error = ApiError { leader, ..ApiError::new(ErrorCode::NotLeaderOrFollower, "elsewhere") };
        let info = status(&error).get_details_error_info().expect("has error info").metadata;
        let told = ["leader", "leader_epoch", "leader_grpc"].map(|key| info.get(key).map(String::as_str));
        assert_eq!(told, [Some("2"), Some("7"), Some("b:7400")]);
        let expected = v1::CurrentLeader { id: 2, epoch: 7, grpc: "b:7400".to_owned() };
        assert_eq!(in_stream(&error).leader, Some(expected));
    }

    #[test]
    fn a_final_refusal_says_so_and_asks_for_no_pause() {
        let status = status(&ApiError::new(ErrorCode::InvalidRecord, "x"));
        let info = status.get_details_error_info().expect("has error info");
        assert_eq!(info.metadata.get("retriable").map(String::as_str), Some("false"));
        assert!(status.get_details_retry_info().is_none());
    }
}
