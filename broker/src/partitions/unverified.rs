//! Batches that wait until the coordinator of their transaction has said that the partition belongs to it, in order (rule X3).
//!
//! It asks nobody. What waits holds its memory and its room in the WAL.

use super::messages::Produce;
use millpond_core::replica::{VerificationToken, Verified};
use millpond_log::transactions::Marker;
use millpond_log::{LeaderEpoch, ProducerEpoch, ProducerId};
use std::collections::BTreeMap;

/// The batches of one partition that wait.
#[derive(Default)]
pub(super) struct Waiting {
    queues: BTreeMap<(ProducerId, ProducerEpoch), Queue>,
}

/// What waits of one instance of a producer, in the order in which it came, whatever was asked when it did.
struct Queue {
    /// The newest question: an older one is about what was before something that happened here since.
    asked: VerificationToken,
    produces: Vec<Produce>,
}

impl Waiting {
    /// Keeps a batch behind those of its producer that wait; true if nobody has asked yet what it waits for. They wait for it as well, and
    /// go first.
    pub(super) fn keep(&mut self, asked: &Verified, produce: Produce) -> bool {
        let Some(queue) = self.queues.get_mut(&instance(asked)) else {
            self.queues.insert(instance(asked), Queue { asked: asked.verification, produces: vec![produce] });
            return true;
        };
        queue.produces.push(produce);
        std::mem::replace(&mut queue.asked, asked.verification) != asked.verification
    }

    /// Gives back what the end of a transaction leaves of a producer that keeps its epoch: what came before the marker was no part of what
    /// comes behind it. One of a newer epoch was: the marker is late.
    pub(super) fn take_ended(&mut self, marker: &Marker) -> Vec<Produce> {
        let keeps_epoch = |produce: &mut Produce| {
            produce.transaction.as_ref().is_some_and(|transaction| !transaction.epoch_per_transaction)
        };
        let ended_by = (marker.producer, ProducerEpoch(0))..=(marker.producer, marker.epoch);
        let queues = self.queues.range_mut(ended_by);
        let ended = queues.flat_map(|(_, queue)| queue.produces.extract_if(.., keeps_epoch)).collect();
        self.queues.retain(|_, queue| !queue.produces.is_empty());
        ended
    }

    /// Gives back what was asked about by an office that is over, now that this one has begun, or none: what came to this log since then may
    /// have ended its transaction.
    pub(super) fn take_deposed(&mut self, office: Option<LeaderEpoch>) -> Vec<Produce> {
        let deposed = self.queues.extract_if(.., |_, queue| Some(queue.asked.office) != office);
        deposed.flat_map(|(_, queue)| queue.produces).collect()
    }

    /// Gives back what waited for this answer, in order: nothing if another question was asked since.
    pub(super) fn take(&mut self, answered: &Verified) -> Vec<Produce> {
        let instance = instance(answered);
        if self.queues.get(&instance).is_none_or(|queue| queue.asked != answered.verification) {
            return Vec::new();
        }
        self.queues.remove(&instance).map(|queue| queue.produces).unwrap_or_default()
    }
}

fn instance(of: &Verified) -> (ProducerId, ProducerEpoch) {
    (of.producer, of.epoch)
}
