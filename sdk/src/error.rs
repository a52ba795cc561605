//! The one error of the client. It answers: what was it, may I try again, may it have happened?

use crate::leader::Leader;
use millpond_log::batch::BatchError;
use millpond_log::{BrokerId, ErrorCode, LeaderEpoch, Offset};
use millpond_proto::{
    ERROR_DOMAIN, ERROR_LEADER, ERROR_LEADER_EPOCH, ERROR_LEADER_GRPC, ERROR_MAYBE_DONE, ERROR_RETRIABLE, v1,
};
use std::collections::HashMap;
use std::time::Duration;
use tonic::{Code, Status};
use tonic_types::StatusExt;

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
#[non_exhaustive]
pub struct Error {
    /// What the broker, or the client on its behalf, says it was; `None` for a failure of the connection.
    pub code: Option<ErrorCode>,
    /// Whether the same call may succeed later.
    pub retriable: bool,
    /// Whether the call may have taken effect all the same.
    pub maybe_done: bool,
    /// When to come back, if the broker asked for a pause.
    pub retry_after: Option<Duration>,
    /// What happened and what to do.
    pub message: String,
    /// The first offset at which the log is no longer what the consumer has read: an unclean election replaced what came after.
    /// The partition rests until it is sought.
    pub diverging: Option<Offset>,
    /// Who leads the partition, if the broker said so.
    pub(crate) leader: Option<Box<Leader>>,
}

impl Error {
    /// An error that the client found itself; nothing was sent.
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Error {
        Error { code: Some(code), retriable: code.retriable(), maybe_done: false, ..Error::connection(message) }
    }

    /// The log is not the one that was read: it differs from `first` on.
    pub(crate) fn truncated(first: Offset, position: Offset) -> Error {
        let message = format!(
            "the log was truncated: it holds other records, or none, from offset {first} on, and was read up to {position}; seek to \
             go on"
        );
        Error { diverging: Some(first), ..Error::new(ErrorCode::OffsetOutOfRange, message).given_up() }
    }

    /// A failure of the connection: the call may or may not have arrived.
    pub(crate) fn connection(message: impl Into<String>) -> Error {
        Error {
            code: None,
            retriable: true,
            maybe_done: true,
            retry_after: None,
            message: message.into(),
            diverging: None,
            leader: None,
        }
    }

    /// The same error, saying where it happened.
    #[must_use]
    pub(crate) fn at(mut self, place: impl std::fmt::Display) -> Error {
        self.message = format!("{place}: {}", self.message);
        self
    }

    /// The same error, not to be tried again.
    #[must_use]
    pub(crate) fn given_up(mut self) -> Error {
        self.retriable = false;
        self
    }

    /// Whether this producer can do nothing more: another instance took over its transactional id, or nothing is known of it any
    /// more. Make a new one; anything else that fails inside a transaction is answered by aborting it.
    #[must_use]
    pub fn needs_new_producer(&self) -> bool {
        matches!(
            self.code,
            Some(
                ErrorCode::ProducerFenced
                    | ErrorCode::InvalidProducerEpoch
                    | ErrorCode::InvalidProducerIdMapping
                    | ErrorCode::TransactionalIdNotFound
            )
        )
    }

    /// Whether the connection failed, not the call.
    pub(crate) fn is_connection(&self) -> bool {
        self.code.is_none()
    }

    /// Whether the client's picture of the cluster is out of date: it should ask for metadata before it tries again.
    pub(crate) fn metadata_is_stale(&self) -> bool {
        matches!(
            self.code,
            Some(
                ErrorCode::NotLeaderOrFollower
                    | ErrorCode::LeaderNotAvailable
                    | ErrorCode::UnknownTopicOrPartition
                    | ErrorCode::UnknownTopicId
                    | ErrorCode::FencedLeaderEpoch
                    | ErrorCode::UnknownLeaderEpoch
                    | ErrorCode::NotController
            ) | None
        )
    }
}

impl From<v1::Error> for Error {
    fn from(error: v1::Error) -> Error {
        let code = ErrorCode::from_name(&error.reason).unwrap_or(ErrorCode::UnknownServerError);
        let leader = error.leader.map(|leader| Leader {
            broker: BrokerId(leader.id),
            epoch: LeaderEpoch(leader.epoch),
            address: leader.grpc,
        });
        Error {
            code: Some(code),
            retriable: error.retriable,
            maybe_done: error.maybe_done || code == ErrorCode::RequestTimedOut,
            retry_after: error.retry_after_ms.map(Duration::from_millis),
            leader: leader.map(Box::new),
            ..Error::connection(if error.message.is_empty() { error.reason } else { error.message })
        }
    }
}

impl From<Status> for Error {
    /// A status with our `ErrorInfo` is the broker's word; any other comes from the transport or something on the way.
    fn from(status: Status) -> Error {
        let details = status.get_error_details();
        let Some(info) = details.error_info().filter(|info| info.domain == ERROR_DOMAIN) else {
            let retriable = !matches!(
                status.code(),
                Code::Unimplemented
                    | Code::Unauthenticated
                    | Code::PermissionDenied
                    | Code::InvalidArgument
                    | Code::OutOfRange
            );
            let maybe_done = !was_refused(&status);
            return Error { retriable, maybe_done, ..Error::connection(chain(&status)) };
        };
        let code = ErrorCode::from_name(&info.reason).unwrap_or(ErrorCode::UnknownServerError);
        Error {
            code: Some(code),
            retriable: info.metadata.get(ERROR_RETRIABLE).map_or(code.retriable(), |said| said == "true"),
            maybe_done: info.metadata.contains_key(ERROR_MAYBE_DONE) || code == ErrorCode::RequestTimedOut,
            retry_after: details.retry_info().and_then(|retry| retry.retry_delay),
            leader: named_leader(&info.metadata).map(Box::new),
            ..Error::connection(status.message())
        }
    }
}

impl From<BatchError> for Error {
    /// A batch that was read and is no good.
    fn from(error: BatchError) -> Error {
        Error::new(error.code(), error.to_string()).given_up()
    }
}

/// The leader that a status names.
fn named_leader(metadata: &HashMap<String, String>) -> Option<Leader> {
    Some(Leader {
        broker: BrokerId(metadata.get(ERROR_LEADER)?.parse().ok()?),
        epoch: LeaderEpoch(metadata.get(ERROR_LEADER_EPOCH)?.parse().ok()?),
        address: metadata.get(ERROR_LEADER_GRPC)?.clone(),
    })
}

/// Whether nobody took the connection: then nothing was sent, and another broker may be asked.
fn was_refused(status: &Status) -> bool {
    let mut next = std::error::Error::source(status);
    while let Some(error) = next {
        let refused = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ConnectionRefused;
        if error.downcast_ref().is_some_and(refused) {
            return true;
        }
        next = error.source();
    }
    false
}

/// What a status says, and the innermost reason under it.
fn chain(status: &Status) -> String {
    let mut innermost = None;
    let mut next = std::error::Error::source(status);
    while let Some(error) = next {
        innermost = Some(error.to_string());
        next = error.source();
    }
    match innermost {
        Some(reason) if status.message().contains(&reason) => status.message().to_owned(),
        Some(reason) => format!("{}: {reason}", status.message()),
        None if status.message().is_empty() => status.code().description().to_owned(),
        None => status.message().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic_types::ErrorDetails;

    #[test]
    fn broker_errors_are_read_off_the_status() {
        let mut details = ErrorDetails::new();
        details.set_error_info("NOT_ENOUGH_REPLICAS", ERROR_DOMAIN, [(ERROR_RETRIABLE.to_owned(), "true".to_owned())]);
        details.set_retry_info(Some(Duration::from_millis(250)));
        let error = Error::from(Status::with_error_details(Code::Unavailable, "the WAL is full", details));
        assert_eq!(error.code, Some(ErrorCode::NotEnoughReplicas));
        assert_eq!(error.retry_after, Some(Duration::from_millis(250)));
        assert!(error.retriable && !error.maybe_done);
        assert_eq!(error.to_string(), "the WAL is full");
    }

    #[test]
    fn the_leader_is_read_off_the_status_and_off_the_message() {
        let expected = Leader { broker: BrokerId(2), epoch: LeaderEpoch(7), address: "b:7400".to_owned() };
        let mut details = ErrorDetails::new();
        let told = [("leader", "2"), ("leader_epoch", "7"), ("leader_grpc", "b:7400"), ("maybe_done", "true")];
        let told = told.map(|(key, value)| (key.to_owned(), value.to_owned()));
        details.set_error_info("NOT_LEADER_OR_FOLLOWER", ERROR_DOMAIN, told);
        let error = Error::from(Status::with_error_details(Code::FailedPrecondition, "elsewhere", details));
        assert_eq!((error.leader.as_deref(), error.maybe_done), (Some(&expected), true));
        let leader = Some(v1::CurrentLeader { id: 2, epoch: 7, grpc: "b:7400".to_owned() });
        let reason = "NOT_LEADER_OR_FOLLOWER".to_owned();
        let error = Error::from(v1::Error { reason, leader, ..Default::default() });
        assert_eq!(error.leader.as_deref(), Some(&expected));
    }

    #[tokio::test]
    async fn a_call_to_where_nobody_listens_was_not_sent() {
        let bound = std::net::TcpListener::bind("127.0.0.1:0").expect("there is a port");
        let address = bound.local_addr().expect("it is bound");
        drop(bound);
        let channel =
            tonic::transport::Endpoint::from_shared(format!("http://{address}")).expect("valid").connect_lazy();
        let mut log = millpond_proto::v1::log_client::LogClient::new(channel);
        let status = log.metadata(v1::MetadataRequest::default()).await.expect_err("nobody is there");
        let error = Error::from(status);
        assert!(error.is_connection() && error.retriable && !error.maybe_done, "{error:?}");
    }

    #[test]
    fn other_statuses_are_failures_of_the_connection() {
        let error = Error::from(Status::unavailable("tcp connect error"));
        assert!(error.is_connection() && error.retriable && error.maybe_done);
        assert!(!Error::from(Status::unimplemented("no such method")).retriable);
        let mut details = ErrorDetails::new();
        details.set_error_info("NOT_ENOUGH_REPLICAS", "elsewhere", std::collections::HashMap::new());
        assert!(Error::from(Status::with_error_details(Code::Unavailable, "x", details)).is_connection());
    }

    #[test]
    fn a_refused_request_is_in_doubt_after_a_timeout_or_where_the_broker_says_so() {
        let read = |reason: &str| Error::from(v1::Error { reason: reason.to_owned(), ..Default::default() });
        let deposed = v1::Error { reason: "NOT_LEADER_OR_FOLLOWER".to_owned(), maybe_done: true, ..Default::default() };
        assert!(Error::from(deposed).maybe_done);
        assert!(read("REQUEST_TIMED_OUT").maybe_done);
        assert!(!read("NOT_LEADER_OR_FOLLOWER").maybe_done);
        assert_eq!(read("SOMETHING_NEW").code, Some(ErrorCode::UnknownServerError));
    }
}
