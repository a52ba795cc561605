//! The order of a producer's batches where the first of them is refused (rule P6). A replica sees to it for what it refuses itself; here it is
//! what never reached one, or one that did not lead.
//!
//! Of one connection, on which requests are begun one after the other. It refuses nothing that its partition would have taken in turn.

use crate::api::ApiError;
use millpond_log::ErrorCode;
use millpond_log::batch::ProducerStamp;
use millpond_log::producers::Refused;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Producers of partitions that a connection notes: for some 100 bytes each, beside the topic's name.
const NOTED_MAX: usize = 2000;

/// Longer names are no topic's.
const TOPIC_BYTES_MAX: usize = 249;

/// A partition as the client named it.
type Place = (String, i32);

/// What was refused on one connection. Cheap to clone.
#[derive(Clone)]
pub(super) struct RefusedHere(Arc<Mutex<Refused<Place>>>);

impl Default for RefusedHere {
    fn default() -> RefusedHere {
        RefusedHere(Arc::new(Mutex::new(Refused::at_most(NOTED_MAX))))
    }
}

impl RefusedHere {
    /// Whether a batch may go to its partition now. One without a stamp is not numbered.
    ///
    /// # Errors
    /// One before it was refused, and has not come again.
    pub(super) fn check(&self, topic: &str, index: i32, stamp: Option<ProducerStamp>) -> Result<(), ApiError> {
        let (Some(stamp), refused) = (stamp, self.lock()) else { return Ok(()) };
        if refused.is_empty() {
            return Ok(());
        }
        let checked = refused.check((topic.to_owned(), index), stamp);
        checked.map_err(|behind| ApiError::new(behind.code(), behind.to_string()))
    }

    /// Notes what became of a batch, at the door or in its partition.
    pub(super) fn note<T>(&self, topic: &str, index: i32, stamp: Option<ProducerStamp>, result: &Result<T, ApiError>) {
        let Some(stamp) = stamp else { return };
        let mut refused = self.lock();
        match result {
            Ok(_) if refused.is_empty() => {}
            Ok(_) => refused.forget((topic.to_owned(), index), stamp.id),
            Err(error) if comes_again(error) && topic.len() <= TOPIC_BYTES_MAX => {
                refused.note((topic.to_owned(), index), stamp);
            }
            Err(_) => {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, Refused<Place>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether nothing was written, and the client sends the same records again: those that were too many in smaller batches, numbered alike.
fn comes_again(error: &ApiError) -> bool {
    !error.maybe_done && (error.code.retriable() || error.code == ErrorCode::MessageTooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_log::{ProducerEpoch, ProducerId};

    fn stamp(base_sequence: i32) -> Option<ProducerStamp> {
        Some(ProducerStamp { id: ProducerId(7), epoch: ProducerEpoch(0), base_sequence })
    }

    fn code(checked: Result<(), ApiError>) -> Option<ErrorCode> {
        checked.err().map(|error| error.code)
    }

    /// Rule P6: as a WAL without room refuses a large batch, and would take the small one behind it.
    #[test]
    fn what_follows_a_batch_that_the_door_refused_waits_for_it() {
        let check = |refusal: ApiError, expected| {
            let refused = RefusedHere::default();
            refused.note::<()>("t", 0, stamp(4), &Err(refusal.clone()));
            assert_eq!(code(refused.check("t", 0, stamp(6))), expected, "{refusal:?}");
            for (topic, index, other) in [("t", 1, stamp(6)), ("u", 0, stamp(6)), ("t", 0, None), ("t", 0, stamp(4))] {
                assert_eq!(code(refused.check(topic, index, other)), None, "{topic}-{index} {other:?}");
            }
            refused.note("t", 0, stamp(4), &Ok(()));
            assert_eq!(code(refused.check("t", 0, stamp(6))), None);
        };
        let waits = Some(ErrorCode::NotEnoughReplicas);
        let error = |code| ApiError::new(code, "");
        check(error(ErrorCode::KafkaStorageError), waits);
        check(error(ErrorCode::NotLeaderOrFollower), waits);
        check(error(ErrorCode::RequestTimedOut), waits);
        check(error(ErrorCode::MessageTooLarge), waits);
        check(error(ErrorCode::InvalidRecord), None);
        check(error(ErrorCode::NotLeaderOrFollower).in_doubt(), None);
    }

    #[test]
    fn names_that_no_topic_has_take_no_memory() {
        let (refused, long) = (RefusedHere::default(), "t".repeat(TOPIC_BYTES_MAX + 1));
        refused.note::<()>(&long, 0, stamp(4), &Err(ApiError::new(ErrorCode::UnknownTopicOrPartition, "")));
        assert!(refused.lock().is_empty());
    }
}
