//! What an application gives: a function of a record.

use super::copies::event_id;
use super::failure::Classify;
use crate::record::ConsumerRecord;
use std::future::Future;

/// A record to be handled, and how often that was tried before.
///
/// The record is the original, also when it comes out of a delay topic: its topic, partition, offset, times and headers are those
/// with which it was read first.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// The record.
    pub record: ConsumerRecord,
    /// Counts the runs of the handler on it, from 1, in its topic and in delay topics together. After a crash a run may count twice
    /// or not at all.
    pub number: u32,
}

impl Attempt {
    /// Names the event for good, for handlers that have to notice one that they did before: a record is handled at least once.
    #[must_use]
    pub fn event_id(&self) -> String {
        event_id(&self.record)
    }
}

/// Handles records. Any `Fn(Attempt) -> impl Future<Output = Result<(), E>>` is one.
///
/// It runs for many records at once, of different partitions; for records of one partition one after the other, in order. A panic
/// counts as a permanent error.
pub trait Handler: Send + Sync + 'static {
    /// Its error.
    type Error: Classify + Send;

    /// Handles a record. When this returns `Ok`, the record is done and will not come again, but after a crash.
    fn handle(&self, attempt: Attempt) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

impl<F, Answer, E> Handler for F
where
    F: Fn(Attempt) -> Answer + Send + Sync + 'static,
    Answer: Future<Output = Result<(), E>> + Send,
    E: Classify + Send,
{
    type Error = E;

    fn handle(&self, attempt: Attempt) -> impl Future<Output = Result<(), E>> + Send {
        self(attempt)
    }
}
