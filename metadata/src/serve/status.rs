//! What went wrong, in etcd's words and codes: its clients decide by them. Says nothing of a request that succeeded.

use crate::kv::KvError;
use tonic::{Code, Status};

pub(super) const EMPTY_KEY: &str = "etcdserver: key is not provided";
pub(super) const DUPLICATE_KEY: &str = "etcdserver: duplicate key given in txn request";
pub(super) const TOO_MANY_OPS: &str = "etcdserver: too many operations in txn request";
pub(super) const TOO_LARGE: &str = "etcdserver: request is too large";
pub(super) const COMPACTED: &str = "etcdserver: mvcc: required revision has been compacted";
const LEASE_NOT_FOUND: &str = "etcdserver: requested lease not found";
const STOPPED: &str = "etcdserver: server stopped";
const FUTURE_REVISION: &str = "etcdserver: mvcc: required revision is a future revision";
const TTL_TOO_LARGE: &str = "etcdserver: too large lease TTL";
/// It did not happen: etcd says so before it proposes a request.
const NO_LEADER: &str = "etcdserver: no leader";
/// It may have happened.
const TIMED_OUT: &str = "etcdserver: request timed out";

pub(super) fn invalid(said: &'static str) -> Status {
    Status::invalid_argument(said)
}

/// A part of etcd's API that nothing of ours asks for.
pub(super) fn absent(what: &str) -> Status {
    Status::unimplemented(format!("the embedded metadata store does not have {what}; use etcd"))
}

pub(super) fn stopped() -> Status {
    Status::unavailable(STOPPED)
}

pub(super) fn ttl_too_large() -> Status {
    Status::out_of_range(TTL_TOO_LARGE)
}

/// An error of the store to what names no revision.
pub(super) fn of(error: &KvError) -> Status {
    let (code, said) = match error {
        // What the store refuses beyond the door's own checks is over its limit of bytes.
        KvError::Refused(_) => (Code::InvalidArgument, TOO_LARGE),
        KvError::LeaseNotFound => (Code::NotFound, LEASE_NOT_FOUND),
        KvError::Unavailable(_) => (Code::Unavailable, NO_LEADER),
        KvError::Unknown(_) | KvError::Restored(_) => (Code::Unavailable, TIMED_OUT),
        KvError::Compacted(_) => (Code::OutOfRange, COMPACTED),
    };
    // These words do not say why, and nobody else will.
    if matches!(error, KvError::Unavailable(_) | KvError::Unknown(_)) {
        tracing::warn!(%error, "a request to the embedded metadata store failed");
    }
    Status::new(code, said)
}

/// An error of the store to what names a revision: it refuses those that lie ahead.
pub(super) fn of_revision(error: &KvError) -> Status {
    match error {
        KvError::Refused(_) => Status::out_of_range(FUTURE_REVISION),
        other => of(other),
    }
}
