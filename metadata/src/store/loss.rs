//! TXN-LOSS (rule E7): the unclean election, and what is on record of it, in one transaction. Who orders it is decided elsewhere.

use super::transition::{Guard, Transition};
use super::{Outcome, Session, Store, StoreError, Versioned, codec};
use crate::keys::{Key, Space};
use crate::kv::{Revision, Write};
use millpond_core::loss::Acceptance;
use millpond_core::records::LossRecord;
use millpond_log::PartitionId;

/// An unclean election that was decided on a partition's record and tier root at these revisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UncleanElection {
    /// The partition.
    pub partition: PartitionId,
    /// Revision of its record.
    pub record: Revision,
    /// Revision of its tier root; `Revision::ABSENT` if nothing was tiered. It says where the log ends at least.
    pub tier_root: Revision,
    /// Other keys that it was decided on, at their revisions; `Revision::ABSENT` for one that was not there.
    pub also: Vec<(Key, Revision)>,
    /// What is to hold.
    pub acceptance: Acceptance,
}

impl Store {
    /// Elects a leader that is not in sync, and puts what is lost by it on record.
    ///
    /// Compares the partition's record, its tier root, the new leader's session, the actor's own, and what else was decided on. Send an `Unknown` again as
    /// it is: the record that it puts proves it (rule K5).
    ///
    /// # Panics
    /// If the acceptance names no leader, or does not mark its epoch as unclean: a bug of whoever decided it.
    ///
    /// # Errors
    /// `Unavailable`, `Refused`.
    pub async fn accept_loss(&self, actor: &Session, election: &UncleanElection) -> Result<Outcome, StoreError> {
        let UncleanElection { partition, record, tier_root, also, acceptance: Acceptance { next, loss } } = election;
        let leader = next.leader.as_ref().expect("an unclean election has a winner");
        assert_eq!(next.unclean_epoch, Some(next.epoch), "rule E7: the epoch is marked");
        assert_eq!((&next.isr[..], next.elr.len()), (&[leader.rid][..], 0), "rule E7: isr = {{c}}, elr = {{}}");
        let key = self.keys.encode(&Key::Partition(*partition));
        let value = codec::value(next);
        let lost = self.keys.encode(&Key::Loss { partition: *partition, epoch: next.epoch.0 });
        let leadership = self.keys.encode(&Key::Leadership(*partition));
        let mut guards = vec![
            self.own_session(actor),
            self.live_session(leader),
            Guard::unmoved(key.clone(), *record),
            Guard::unmoved(self.keys.encode(&Key::TierRoot(*partition)), *tier_root),
            // One epoch is lost into once; what is on record of another is never written over (rule K3).
            Guard::absent(lost.clone()),
        ];
        guards.extend(also.iter().map(|(key, revision)| Guard::unmoved(self.keys.encode(key), *revision)));
        let writes = vec![
            Write::put(key.clone(), value.clone()),
            Write::put(leadership, codec::leadership(leader, next.epoch)),
            Write::put(lost, codec::value(loss)),
        ];
        Ok(self.run(Transition { guards, writes, proof: Some((key, value)) }).await?.into())
    }

    /// Everything that was given up as lost, by partition and epoch.
    ///
    /// # Errors
    /// As all reads.
    pub async fn losses(&self) -> Result<Vec<(PartitionId, LossRecord)>, StoreError> {
        let (_, listed) = self.list_records::<LossRecord>(&Space::Losses).await?;
        let loss = |(key, found): (Key, Versioned<LossRecord>)| match key {
            Key::Loss { partition, .. } => Some((partition, found.value)),
            _ => None,
        };
        Ok(listed.into_iter().filter_map(loss).collect())
    }
}
