//! What an error of etcd says of the request that met it: may it have happened, and may it be tried again. Decides nothing else.

use etcd_client::Error;
use std::error::Error as StdError;

/// gRPC's numbers for the codes that are told apart here.
mod code {
    pub(super) const RESOURCE_EXHAUSTED: i32 = 8;
    pub(super) const PERMISSION_DENIED: i32 = 7;
    pub(super) const DATA_LOSS: i32 = 15;
    pub(super) const UNAUTHENTICATED: i32 = 16;
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// It did not happen, and never will as it is.
    Refused(String),
    /// It did not happen: the lease is not there.
    LeaseNotFound,
    /// It did not happen: the history is gone.
    Compacted,
    /// It did not happen: etcd cannot, until somebody mends it.
    Unable(String),
    /// It did not happen, and may at another member, or a little later.
    NotDone(String),
    /// It may have happened, or may yet (rule K5).
    Ambiguous(String),
}

/// Judges an error by etcd's own texts, which its clients have relied on since 3.0.
pub(super) fn classify(error: &Error) -> Failure {
    let Error::GRpcStatus(status) = error else {
        return match error {
            Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::InvalidMetadataValue(_) => {
                Failure::Refused(error.to_string())
            }
            _ => Failure::Ambiguous(reason(error)),
        };
    };
    let said = status.message();
    match i32::from(status.code()) {
        code::UNAUTHENTICATED => return Failure::NotDone("etcd wants a new login".to_owned()),
        code::PERMISSION_DENIED => {
            return Failure::Unable(format!("{said}; grant etcd's user read and write on the prefix of the keys"));
        }
        code::DATA_LOSS => return Failure::Unable(format!("{said}; mend the etcd cluster")),
        code::RESOURCE_EXHAUSTED if said.contains("database space exceeded") => {
            return Failure::Unable(format!("{said}; compact and defragment etcd, then disarm its alarm"));
        }
        _ => {}
    }
    let Some(said) = said.strip_prefix("etcdserver: ") else { return Failure::Ambiguous(reason(error)) };
    match said {
        "requested lease not found" => Failure::LeaseNotFound,
        "mvcc: required revision has been compacted" => Failure::Compacted,
        "mvcc: required revision is a future revision"
        | "key is not provided"
        | "duplicate key given in txn request"
        | "too many operations in txn request"
        | "request is too large"
        | "too large lease TTL" => Failure::Refused(said.to_owned()),
        // Answered before a request is proposed; the two about users, before it is applied.
        "no leader" | "not leader" | "too many requests" | "revision of auth store is old" | "user name is empty" => {
            Failure::NotDone(said.to_owned())
        }
        _ => Failure::Ambiguous(said.to_owned()),
    }
}

/// An error with its causes, in one line.
pub(super) fn reason(error: &Error) -> String {
    let mut text = match error {
        Error::GRpcStatus(status) => format!("{:?}: {}", status.code(), status.message()),
        Error::TransportError(error) => error.to_string(),
        other => other.to_string(),
    };
    let mut cause = match error {
        Error::GRpcStatus(status) => status.source(),
        Error::TransportError(error) => error.source(),
        _ => None,
    };
    while let Some(inner) = cause {
        let said = inner.to_string();
        if !text.ends_with(&said) {
            text = format!("{text}: {said}");
        }
        cause = inner.source();
    }
    text
}
