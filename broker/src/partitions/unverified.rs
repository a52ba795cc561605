//! Batches that wait until the coordinator of their transaction has said that the partition belongs to it, in order (rule X3).
//!
//! It asks nobody. What waits holds its memory and its room in the WAL.

use super::messages::Produce;
use millpond_core::replica::{VerificationToken, Verified};
use millpond_log::{ProducerEpoch, ProducerId};
use std::collections::BTreeMap;

/// What one answer of a coordinator is to.
type Question = (ProducerId, ProducerEpoch, VerificationToken);

/// The batches of one partition that wait.
#[derive(Default)]
pub(super) struct Waiting {
    produces: BTreeMap<Question, Vec<Produce>>,
}

impl Waiting {
    /// Keeps a batch behind those that wait for the same answer; true if it is the first of them, so that somebody has to ask.
    pub(super) fn keep(&mut self, asked: &Verified, produce: Produce) -> bool {
        let waiting = self.produces.entry(question(asked)).or_default();
        waiting.push(produce);
        waiting.len() == 1
    }

    /// Gives back what the end of a transaction leaves of a producer that keeps its epoch: what came before the marker was no part of what
    /// comes behind it.
    pub(super) fn take_ended(&mut self, producer: ProducerId) -> Vec<Produce> {
        let keeps_epoch = |produce: &mut Produce| {
            produce.transaction.as_ref().is_some_and(|transaction| !transaction.epoch_per_transaction)
        };
        let of_producer = self.produces.iter_mut().filter(|((id, ..), _)| *id == producer);
        of_producer.flat_map(|(_, waiting)| waiting.extract_if(.., keeps_epoch)).collect()
    }

    /// Gives back what waited for this answer, in order.
    pub(super) fn take(&mut self, answered: &Verified) -> Vec<Produce> {
        self.produces.remove(&question(answered)).unwrap_or_default()
    }
}

fn question(of: &Verified) -> Question {
    (of.producer, of.epoch, of.verification)
}
