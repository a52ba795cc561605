//! Batches of producers that were refused on a connection, before they reached their partition or where it did not lead: its leader is told of
//! them before it is given what follows (rule P6).
//!
//! It refuses nothing itself: only the leader knows whether the producer's sequence tells what is next.

use crate::api::ApiError;
use crate::clock;
use millpond_log::ErrorCode;
use millpond_log::batch::{ProducerStamp, ProducerWrite, WriteKind};
use millpond_log::producers::Refused;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Producers of partitions that a connection notes: for some 100 bytes each, beside the topic's name.
const NOTED_MAX: usize = 2000;

/// Longer names are no topic's.
const TOPIC_BYTES_MAX: usize = 249;

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
    /// The batch that was refused and has to come again before this one, if there is one, and how long ago that was.
    pub(super) fn before(&self, topic: &str, index: i32, write: ProducerWrite) -> Option<(ProducerWrite, Duration)> {
        let refused = self.lock();
        if refused.is_empty() {
            return None;
        }
        let now_ms = self.now_ms();
        let first = refused.before(place(topic, index, write), write.stamp, now_ms)?;
        let stamp = ProducerStamp { base_sequence: first.sequence, ..write.stamp };
        Some((ProducerWrite { stamp, ..write }, Duration::from_millis(now_ms.saturating_sub(first.at_ms))))
    }

    /// Notes what became of a batch on its way to its partition.
    pub(super) fn note<T>(&self, topic: &str, index: i32, write: Option<ProducerWrite>, result: &Result<T, ApiError>) {
        match (result, write) {
            (Err(error), _) => self.note_refusal(topic, index, write, error),
            (Ok(_), Some(write)) => {
                let mut refused = self.lock();
                if !refused.is_empty() {
                    refused.forget(place(topic, index, write), write.stamp.id);
                }
            }
            (Ok(_), None) => {}
        }
    }

    /// Notes that a batch was refused.
    pub(super) fn note_refusal(&self, topic: &str, index: i32, write: Option<ProducerWrite>, error: &ApiError) {
        if let Some(write) = write.filter(|_| comes_again(error) && topic.len() <= TOPIC_BYTES_MAX) {
            self.lock().note(place(topic, index, write), write.stamp, self.now_ms());
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
    (topic.to_owned(), index, write.kind == WriteKind::Transactional)
}

/// Whether nothing was written, and the client sends the same records again: those that were too many in smaller batches, numbered alike.
fn comes_again(error: &ApiError) -> bool {
    !error.maybe_done && (error.code.retriable() || error.code == ErrorCode::MessageTooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_log::{ProducerEpoch, ProducerId};

    fn write(base_sequence: i32) -> ProducerWrite {
        let stamp = ProducerStamp { id: ProducerId(7), epoch: ProducerEpoch(0), base_sequence };
        ProducerWrite { stamp, kind: WriteKind::Plain }
    }

    /// Rule P6: as a WAL without room refuses a large batch, and would take the small one behind it.
    #[test]
    fn what_was_refused_and_comes_again_is_told_before_what_follows_it() {
        let check = |refusal: ApiError, expected: Option<i32>| {
            let refused = RefusedHere::default();
            let before = |topic, index, write| {
                let before = refused.before(topic, index, write);
                before.map(|(before, _)| (before.stamp.base_sequence, before.kind == WriteKind::Transactional))
            };
            refused.note::<()>("t", 0, Some(write(4)), &Err(refusal.clone()));
            assert_eq!(before("t", 0, write(6)), expected.map(|first| (first, false)), "{refusal:?}");
            let transactional = ProducerWrite { kind: WriteKind::Transactional, ..write(6) };
            for (topic, index, other) in
                [("t", 1, write(6)), ("u", 0, write(6)), ("t", 0, transactional), ("t", 0, write(4))]
            {
                assert_eq!(before(topic, index, other), None, "{topic}-{index} {other:?}");
            }
            refused.note("t", 0, Some(write(4)), &Ok(()));
            assert_eq!(before("t", 0, write(6)), None);
        };
        let error = |code| ApiError::new(code, "");
        check(error(ErrorCode::KafkaStorageError), Some(4));
        check(error(ErrorCode::NotLeaderOrFollower), Some(4));
        check(error(ErrorCode::RequestTimedOut), Some(4));
        check(error(ErrorCode::MessageTooLarge), Some(4));
        check(error(ErrorCode::InvalidRecord), None);
        check(error(ErrorCode::NotLeaderOrFollower).in_doubt(), None);
    }

    #[test]
    fn names_that_no_topic_has_take_no_memory() {
        let (refused, long) = (RefusedHere::default(), "t".repeat(TOPIC_BYTES_MAX + 1));
        let unknown = ApiError::new(ErrorCode::UnknownTopicOrPartition, "");
        refused.note::<()>(&long, 0, Some(write(4)), &Err(unknown));
        assert!(refused.lock().is_empty());
    }
}
