//! What coordinators of transactions, and the brokers that write for them, ask each other: plain data, the same here and over the
//! internal door; and which of it comes too late.

use millpond_core::records::ProducerInstance;
use millpond_core::transactions::Parts;
use millpond_log::transactions::Marker;
use millpond_log::{CoordinatorEpoch, ErrorCode, LeaderEpoch, PartitionId};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use tokio::sync::oneshot;

/// Markers of one coordinator shard for places of one broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MarkCall {
    /// The coordinator's shard.
    pub(crate) shard: u32,
    /// The epoch it is owned in.
    pub(crate) coordinator: CoordinatorEpoch,
    /// Counts the calls of this owner: whoever has seen a later one refuses it, so a marker that is sent again cannot be overtaken by
    /// its first copy (rule X5).
    pub(crate) number: u64,
    pub(crate) marks: Vec<Mark>,
}

/// A marker for one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) marker: Marker,
    pub(crate) place: MarkPlace,
}

/// Where a marker belongs, and in which office whoever takes it has to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MarkPlace {
    /// A partition, and the epoch it is led in.
    Partition(PartitionId, LeaderEpoch),
    /// A group, and the epoch its shard is owned in.
    Group(String, u32),
}

/// What became of each mark of a call, in order: none of it is done only in part. `REQUEST_TIMED_OUT`: not yet.
pub(crate) type Marked = Vec<Result<(), ErrorCode>>;

/// Asks the coordinator whether parts belong to a transaction (rule X3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Confirm {
    /// The transactional id.
    pub(crate) id: String,
    pub(crate) producer: ProducerInstance,
    pub(crate) parts: Parts,
    /// Make them part of it if they are not: for clients that leave that to the brokers (KIP-890).
    pub(crate) add: bool,
}

/// The epoch of the coordinator that said yes.
pub(crate) type Confirmed = Result<CoordinatorEpoch, ErrorCode>;

/// What another broker asks of this one.
pub(crate) enum Asked {
    Mark(MarkCall, oneshot::Sender<Marked>),
    Confirm(Confirm, oneshot::Sender<Confirmed>),
}

/// What each coordinator shard was heard to say last: its owner's epoch, and the number of the call.
///
/// Whatever is older is refused: it may have been under way for long, and a newer copy of it be done. A marker that keeps its epoch
/// would end the transaction after its own (rule X5).
#[derive(Default)]
pub(crate) struct LastCalls {
    seen: Mutex<BTreeMap<u32, (CoordinatorEpoch, u64)>>,
}

impl LastCalls {
    /// Notes a call, in the order in which they come.
    ///
    /// # Errors
    /// What its markers are refused with.
    pub(crate) fn note(&self, call: &MarkCall) -> Result<(), ErrorCode> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let (epoch, number) = seen.entry(call.shard).or_default();
        if call.coordinator < *epoch {
            return Err(ErrorCode::TransactionCoordinatorFenced);
        }
        if call.coordinator == *epoch && call.number < *number {
            return Err(ErrorCode::RequestTimedOut);
        }
        (*epoch, *number) = (call.coordinator, call.number);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rule X5.
    #[test]
    fn a_call_that_was_overtaken_is_refused() {
        let calls = LastCalls::default();
        let note = |shard, epoch, number| {
            calls.note(&MarkCall { shard, coordinator: CoordinatorEpoch(epoch), number, marks: Vec::new() })
        };
        assert_eq!(note(1, 3, 7), Ok(()));
        assert_eq!(note(1, 3, 9), Ok(()));
        assert_eq!(note(1, 3, 8), Err(ErrorCode::RequestTimedOut), "a later one was seen");
        assert_eq!(note(2, 1, 1), Ok(()), "of another shard");
        assert_eq!(note(1, 4, 1), Ok(()), "the next owner counts anew");
        assert_eq!(note(1, 3, 10), Err(ErrorCode::TransactionCoordinatorFenced), "deposed");
    }
}
