//! Changes of a partition's record that are no election: its ISR and ELR, its least ISR, its replicas (rules I3, I5 to I8, E6).

use super::transition::{Guard, Settled, Transition};
use super::{Outcome, Session, Store, StoreError, codec};
use crate::keys::Key;
use crate::kv::{Revision, Write};
use millpond_core::records::{Leader, PartitionRecord};
use millpond_log::{LeaderEpoch, PartitionId};

/// A change that was decided on the record at `base`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordChange {
    /// The partition.
    pub partition: PartitionId,
    /// Revision of the record it was decided on.
    pub base: Revision,
    /// Epoch of that record, which the change keeps: only elections change it (rule E4).
    pub epoch: LeaderEpoch,
    /// What is to hold.
    pub next: PartitionRecord,
    /// A session that has to be there still: whoever joins the ISR (rule I5).
    pub joining: Option<Leader>,
}

impl Store {
    /// Changes partitions' records, in batches of at most 40; the answers are in order, one for each change (rule K8).
    ///
    /// Compares each record, the actor's session, the session of whoever joins, and the controller's key at the revision
    /// `controller` if the actor acts as controller. A `Conflict` is final for its change: a compared revision has passed.
    ///
    /// # Panics
    /// If a change is an election in disguise: a bug of whoever decided it.
    ///
    /// # Errors
    /// Per change: `Unavailable`, `Refused`.
    pub async fn change_records(
        &self,
        actor: &Session,
        controller: Option<Revision>,
        changes: &[RecordChange],
    ) -> Vec<Result<Outcome, StoreError>> {
        let transitions = changes.iter().map(|change| self.record_change(actor, controller, change)).collect();
        let answers = self.run_batched(transitions).await;
        answers.into_iter().map(|answer: Result<Settled, StoreError>| answer.map(Outcome::from)).collect()
    }

    fn record_change(&self, actor: &Session, controller: Option<Revision>, change: &RecordChange) -> Transition {
        let RecordChange { partition, base, epoch, next, joining } = change;
        assert_eq!(next.epoch, *epoch, "only elections change the epoch (rule E4)");
        let key = self.keys.encode(&Key::Partition(*partition));
        let value = codec::value(next);
        let mut guards = vec![self.own_session(actor), Guard::unmoved(key.clone(), *base)];
        guards.extend(joining.as_ref().map(|joining| self.live_session(joining)));
        guards.extend(controller.map(|control| self.in_control(control)));
        // Whoever wrote this value at a later revision, it is what holds.
        Transition { guards, writes: vec![Write::put(key.clone(), value.clone())], proof: Some((key, value)) }
    }
}
