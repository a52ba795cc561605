//! Where clients are sent: to the leader where this broker is not it (KIP-951), readers to the replica nearest to them (KIP-392).
//!
//! By the images of topics and sessions alone: a hint, which whoever is named may refuse.

use crate::alive;
use crate::api::{ApiError, CurrentLeader, TopicRef};
use crate::broker::Broker;
use crate::catalog::{PartitionHandle, Placement};
use millpond_log::{BrokerId, ErrorCode};

impl Broker {
    /// The refusal, with the partition's leader where the client looked for it in the wrong place and another broker is it.
    pub(crate) fn naming_leader(&self, topic: &TopicRef, partition: u32, error: ApiError) -> ApiError {
        if !matches!(error.code, ErrorCode::NotLeaderOrFollower | ErrorCode::FencedLeaderEpoch) {
            return error;
        }
        let placement = self.partition(topic, partition).map(|handle| handle.placement);
        let leader = placement.ok().and_then(|placement| self.current_leader(&placement));
        ApiError { leader: leader.map(Box::new), ..error }
    }

    /// Who leads, if anyone does. This broker too: a client that knows an older epoch learns the newer one.
    fn current_leader(&self, placement: &Placement) -> Option<CurrentLeader> {
        let leader = placement.leader?;
        let sessions = self.inner().alive.sessions();
        let broker = alive::describe(leader, &sessions.get(&leader)?.value);
        Some(CurrentLeader { epoch: placement.epoch, broker })
    }

    /// The replica that a reader in `rack` is better served by than by this broker, which leads: one in sync, alive, and in that
    /// rack. What is below the leader's high watermark is on it, by the way a high watermark moves (rule R9).
    pub(crate) fn nearer(&self, rack: &str, topic: &TopicRef, partition: u32) -> Option<BrokerId> {
        if rack.is_empty() || self.inner().config.rack.as_deref() == Some(rack) {
            return None;
        }
        let PartitionHandle { placement, .. } = self.partition(topic, partition).ok()?;
        let sessions = self.inner().alive.sessions();
        let in_rack = |id: &&BrokerId| sessions.get(id).is_some_and(|seen| seen.value.rack.as_deref() == Some(rack));
        let mut near = placement.isr.iter().filter(|id| **id != self.id()).filter(in_rack);
        near.next().copied()
    }

    /// Whether this broker is in sync with the partition, as far as it knows: then it serves readers what is committed, although
    /// it does not lead (rule F1).
    pub(crate) fn is_in_sync(&self, topic: &TopicRef, partition: u32) -> bool {
        self.partition(topic, partition).is_ok_and(|handle| handle.placement.isr.contains(&self.id()))
    }
}
