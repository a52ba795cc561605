//! Batches of producers that were refused on a connection before they came to a leader: what follows them on it is given to the leader together
//! with that (rule P6).
//!
//! It refuses nothing itself: only the leader knows whether the producer's sequence tells what is next.

use crate::api::ApiError;
use crate::clock;
use millpond_log::ErrorCode;
use millpond_log::batch::ProducerWrite;
use millpond_log::limits::TOPIC_NAME_BYTES_MAX;
use millpond_log::producers::Refused;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Producers of partitions that a connection notes: for some 100 bytes each, beside the topic's name.
const NOTED_MAX: usize = 2000;

/// A partition as the client named it, and whether it is written to in transactions.
type Place = (String, i32, bool);

/// What was refused on one connection. Cheap to clone.
#[derive(Clone)]
pub(super) struct RefusedHere {
    refused: Arc<Mutex<Refused<Place>>>,
    since: Instant,
}

impl Default for RefusedHere {
    fn default() -> RefusedHere {
        RefusedHere { refused: Arc::new(Mutex::new(Refused::at_most(NOTED_MAX))), since: clock::monotonic() }
    }
}

impl RefusedHere {
    /// Base sequence of the batch that was refused and has to come again before this one, if there is one.
    pub(super) fn before(&self, topic: &str, index: i32, write: ProducerWrite) -> Option<i32> {
        let mut refused = self.lock();
        if refused.is_empty() {
            return None;
        }
        refused.before(place(topic, index, write), write.stamp, self.now_ms())
    }

    /// Notes that a batch was refused. One without a producer is nothing to note.
    pub(super) fn note(&self, topic: &str, index: i32, write: Option<ProducerWrite>, error: &ApiError) {
        // Longer names are no topic's.
        if let Some(write) = write.filter(|_| comes_again(error) && topic.len() <= TOPIC_NAME_BYTES_MAX) {
            self.lock().note(place(topic, index, write), write.stamp, self.now_ms());
        }
    }

    /// Notes that a batch was written.
    pub(super) fn forget(&self, topic: &str, index: i32, write: Option<ProducerWrite>) {
        let (Some(write), mut refused) = (write, self.lock()) else { return };
        if !refused.is_empty() {
            refused.forget(place(topic, index, write), write.stamp.id);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Refused<Place>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        u64::try_from((clock::monotonic() - self.since).as_millis()).unwrap_or(u64::MAX)
    }
}

fn place(topic: &str, index: i32, write: ProducerWrite) -> Place {
    (topic.to_owned(), index, write.in_transactions())
}

/// Whether nothing was written, and the client sends the same records again: those that were too many in smaller batches, numbered alike. Of
/// those for which there were too few replicas the leader keeps note.
fn comes_again(error: &ApiError) -> bool {
    let retried = error.code.retriable() && error.code != ErrorCode::NotEnoughReplicas;
    !error.maybe_done && (retried || error.code == ErrorCode::MessageTooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_log::batch::{ProducerStamp, WriteKind};
    use millpond_log::{ProducerEpoch, ProducerId};

    fn write(base_sequence: i32) -> ProducerWrite {
        ProducerWrite::plain(ProducerStamp { id: ProducerId(7), epoch: ProducerEpoch(0), base_sequence })
    }

    /// Rule P6: as a WAL without room refuses a large batch, and would take the small one behind it.
    #[test]
    fn what_was_refused_and_comes_again_is_told_with_what_follows_it() {
        let check = |refusal: ApiError, expected: Option<i32>| {
            let refused = RefusedHere::default();
            refused.note("t", 0, Some(write(4)), &refusal);
            refused.note("t", 0, None, &refusal);
            assert_eq!(refused.before("t", 0, write(6)), expected, "{refusal:?}");
            let transactional = ProducerWrite { kind: WriteKind::Transactional, ..write(6) };
            let others = [("t", 1, write(6)), ("u", 0, write(6)), ("t", 0, transactional), ("t", 0, write(4))];
            for (topic, index, other) in others {
                assert_eq!(refused.before(topic, index, other), None, "{topic}-{index} {other:?}");
            }
            refused.forget("t", 0, None);
            assert_eq!(refused.before("t", 0, write(6)), expected);
            refused.forget("t", 0, Some(write(4)));
            assert_eq!(refused.before("t", 0, write(6)), None);
        };
        let error = |code| ApiError::new(code, "");
        check(error(ErrorCode::KafkaStorageError), Some(4));
        check(error(ErrorCode::NotLeaderOrFollower), Some(4));
        check(error(ErrorCode::RequestTimedOut), Some(4));
        check(error(ErrorCode::MessageTooLarge), Some(4));
        check(error(ErrorCode::NotEnoughReplicas), None);
        check(error(ErrorCode::InvalidRecord), None);
        check(error(ErrorCode::NotLeaderOrFollower).in_doubt(), None);
    }

    #[test]
    fn names_that_no_topic_has_take_no_memory() {
        let (refused, long) = (RefusedHere::default(), "t".repeat(TOPIC_NAME_BYTES_MAX + 1));
        refused.note(&long, 0, Some(write(4)), &ApiError::new(ErrorCode::UnknownTopicOrPartition, ""));
        assert!(refused.lock().is_empty());
    }
}
