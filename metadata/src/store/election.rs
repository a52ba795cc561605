//! TXN-ELECT (rules E3, E4): the only transition that changes a partition's leader or epoch once the partition is there.

use super::transition::{Guard, Settled, Transition};
use super::{Outcome, Session, Store, StoreError, Versioned, codec};
use crate::keys::Key;
use crate::kv::{Revision, Write};
use millpond_core::records::PartitionRecord;
use millpond_log::{LeaderEpoch, PartitionId};

/// An election that was decided on the record at `base`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Election {
    /// The partition.
    pub partition: PartitionId,
    /// Revision of the record it was decided on.
    pub base: Revision,
    /// Epoch of that record.
    pub epoch: LeaderEpoch,
    /// What is to hold: a leader, and the epoch after that one.
    pub next: PartitionRecord,
}

impl Election {
    /// The election that makes `next` of `seen`.
    #[must_use]
    pub fn of(partition: PartitionId, seen: &Versioned<PartitionRecord>, next: PartitionRecord) -> Election {
        Election { partition, base: seen.revision, epoch: seen.value.epoch, next }
    }
}

impl Store {
    /// Elects leaders, in batches of at most 40 partitions; the answers are in order, one for each election (rule K8).
    ///
    /// Compares each partition's record, each new leader's session, the actor's own, and the controller's key at the
    /// revision `controller` if the actor acts as controller (hygiene: rule E8 holds without).
    ///
    /// # Panics
    /// If an election names no leader or does not raise the epoch by one: a bug of whoever decided it.
    ///
    /// # Errors
    /// Per election: `Unavailable`, `Refused`.
    pub async fn elect(
        &self,
        actor: &Session,
        controller: Option<Revision>,
        elections: &[Election],
    ) -> Vec<Result<Outcome, StoreError>> {
        let transitions = elections.iter().map(|election| self.election(actor, controller, election)).collect();
        let answers = self.run_batched(transitions).await;
        answers.into_iter().map(|answer: Result<Settled, StoreError>| answer.map(Outcome::from)).collect()
    }

    fn election(&self, actor: &Session, controller: Option<Revision>, election: &Election) -> Transition {
        let Election { partition, base, epoch, next } = election;
        let leader = next.leader.as_ref().expect("an election has a winner");
        assert_eq!(next.epoch.0, epoch.0 + 1, "every election bumps the epoch by one (rule E4)");
        assert!(next.isr.contains(&leader.rid), "a leader is in sync with itself (rule E3)");
        let key = self.keys.encode(&Key::Partition(*partition));
        let value = codec::value(next);
        let mut guards = vec![self.own_session(actor), self.live_session(leader), Guard::unmoved(key.clone(), *base)];
        guards.extend(controller.map(|control| self.in_control(control)));
        let leadership = self.keys.encode(&Key::Leadership(*partition));
        let writes =
            vec![Write::put(key.clone(), value.clone()), Write::put(leadership, codec::leadership(leader, next.epoch))];
        // Epoch and winner are in the value: whoever wrote it, this election holds.
        Transition { guards, writes, proof: Some((key, value)) }
    }
}
