//! TXN-TIER (rule T5): what of a partition is in object storage changes hands in one transaction, by its leader only.
//!
//! The root's value is opaque here: the log's manifest encodes it, `seq + 1` and `epoch` included.

use super::transition::{Broken, Guard, Settled, Transition};
use super::{Session, Store, StoreError, Versioned, codec};
use crate::keys::{Key, Space};
use crate::kv::{Compare, Revision, Write};
use bytes::Bytes;
use millpond_core::records::{DropRecord, Leader};
use millpond_log::{LeaderEpoch, PartitionId, TopicId};
use std::collections::BTreeMap;

/// Largest tier root, in bytes. In a drop record it is spelled in hexadecimal, and has to stay below 64 KiB there (rule Z5).
pub const TIER_ROOT_BYTES_MAX: usize = 24 << 10;

/// Most objects that one commit drops: their keys have to fit one record of 64 KiB. A log's start that drops more is moved in steps.
pub const TIER_DROPPED_MAX: usize = 256;

/// A partition's tier root, as stored.
pub type TierRoot = Versioned<Bytes>;

/// One commit to a partition's tier root, decided on its root at `base`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierCommit {
    /// The partition.
    pub partition: PartitionId,
    /// The epoch the actor leads it in.
    pub epoch: LeaderEpoch,
    /// Revision of the root it was decided on; `Revision::ABSENT` for the first commit.
    pub base: Revision,
    /// The new root. No two commits of a partition have equal values: a sequence number and unique object names see to it.
    pub root: Bytes,
    /// Lowest gc epoch in the names of the objects that the commit adds; `None` if it adds none (rule G1).
    pub objects_gc_epoch: Option<u64>,
    /// Keys of objects that the new root no longer names (rules G2, G3).
    pub dropped: Vec<String>,
}

/// How a commit ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TierOutcome {
    /// The root holds, durably; `revision` is the base of the next commit. Also when an earlier call wrote it.
    Committed {
        /// The revision that wrote it.
        revision: Revision,
    },
    /// This call wrote nothing: the root has moved, or the gc epoch did while objects were to be dropped. Read the root
    /// again; that also settles an earlier `Unknown`.
    Conflict,
    /// The actor no longer leads the partition, or its session is gone. Stop; its objects are orphans (rule K8).
    Fenced,
    /// The objects are too old to be committed (rule G1): upload them again under new names.
    Expired,
    /// It may have been written, now or later. Call again with the same commit until it says otherwise (rules K5, T6).
    Unknown,
}

impl From<Settled> for TierOutcome {
    fn from(settled: Settled) -> TierOutcome {
        match settled {
            Settled::Committed(revision) => TierOutcome::Committed { revision },
            Settled::Broken(Broken::Conflict) => TierOutcome::Conflict,
            Settled::Broken(Broken::Fenced) => TierOutcome::Fenced,
            Settled::Broken(Broken::Expired) => TierOutcome::Expired,
            Settled::Unknown => TierOutcome::Unknown,
        }
    }
}

impl Store {
    /// A partition's tier root, read linearizably (rules R12, F3, G4).
    ///
    /// # Errors
    /// As all reads.
    pub async fn tier_root(&self, partition: PartitionId) -> Result<Option<TierRoot>, StoreError> {
        self.read_bytes(&Key::TierRoot(partition)).await
    }

    /// The tier roots of a topic, or of all topics: at start-up, and for the orphans' collection (rule G2).
    ///
    /// The revision is one that every root is at least as new as.
    ///
    /// # Errors
    /// As all reads.
    pub async fn tier_roots(
        &self,
        topic: Option<TopicId>,
    ) -> Result<(Revision, BTreeMap<PartitionId, TierRoot>), StoreError> {
        let space = topic.map_or(Space::TierRoots, Space::TierRootsOf);
        let (revision, listed) = self.list(&space).await?;
        let root = |(key, root)| match key {
            Key::TierRoot(partition) => Some((partition, root)),
            _ => None,
        };
        Ok((revision, listed.into_iter().filter_map(root).collect()))
    }

    /// Commits tier roots, a bundle's partitions together, in batches of at most 40; the answers are in order.
    ///
    /// For each: `mod(/t) == base`, `value(/pe) == (actor, epoch)`, `value(/gc/epoch) < objects_gc_epoch + 2`, and the
    /// actor's session. The objects are already durable (rules T3, T6). Dropped objects enter the drop log with the gc
    /// epoch of the same transaction (rule G2). Cancel safe: a dropped call equals `Unknown`.
    ///
    /// # Errors
    /// Per commit: `Unavailable`; `Refused` if it is over a limit, which keeps nobody else's from being sent.
    pub async fn commit_tier(&self, actor: &Session, commits: &[TierCommit]) -> Vec<Result<TierOutcome, StoreError>> {
        let gc_epoch = if commits.iter().all(|commit| commit.dropped.is_empty()) {
            None
        } else {
            match self.gc_epoch().await {
                Ok(epoch) => Some(epoch.value),
                Err(error) => return commits.iter().map(|_| Err(error.clone())).collect(),
            }
        };
        let refused: Vec<Option<String>> = commits.iter().map(oversized).collect();
        let sent = commits.iter().zip(&refused).filter(|(_, refused)| refused.is_none());
        let transitions = sent.map(|(commit, _)| self.tier_commit(actor, commit, gc_epoch)).collect();
        let mut answers = self.run_batched(transitions).await.into_iter();
        let mut answer = || answers.next().expect("each transition is answered").map(TierOutcome::from);
        refused
            .into_iter()
            .map(|refused| refused.map_or_else(&mut answer, |reason| Err(StoreError::Refused(reason))))
            .collect()
    }

    fn tier_commit(&self, actor: &Session, commit: &TierCommit, gc_epoch: Option<u64>) -> Transition {
        let key = self.keys.encode(&Key::TierRoot(commit.partition));
        let leader = Leader { rid: actor.rid, inc: actor.inc };
        let leads = Compare::Value {
            key: self.keys.encode(&Key::Leadership(commit.partition)),
            is: codec::leadership(&leader, commit.epoch),
        };
        let mut guards = vec![
            self.own_session(actor),
            Guard { compare: leads, broken: Broken::Fenced },
            Guard::unmoved(key.clone(), commit.base),
        ];
        let gc_key = self.keys.encode(&Key::GcEpoch);
        if let Some(epoch) = commit.objects_gc_epoch {
            let bound = codec::gc_epoch(epoch.checked_add(2).expect("gc epochs are bumped once an hour"));
            let compare = Compare::ValueBelow { key: gc_key.clone(), bound };
            guards.push(Guard { compare, broken: Broken::Expired });
        }
        let mut writes = vec![Write::put(key.clone(), commit.root.clone())];
        if let Some(gc_epoch) = gc_epoch.filter(|_| !commit.dropped.is_empty()) {
            let compare = Compare::Value { key: gc_key, is: codec::gc_epoch(gc_epoch) };
            guards.push(Guard { compare, broken: Broken::Conflict });
            // Each base revision is dropped from once, so the key is unique.
            let drop = Key::GcDrop { gc_epoch, partition: commit.partition, seq: commit.base.0 };
            let record = DropRecord { objects: commit.dropped.clone(), root: None };
            writes.push(Write::put(self.keys.encode(&drop), codec::value(&record)));
        }
        Transition { guards, writes, proof: Some((key, commit.root.clone())) }
    }
}

/// What is too large about a commit.
fn oversized(commit: &TierCommit) -> Option<String> {
    let TierCommit { partition, root, dropped, .. } = commit;
    if root.len() > TIER_ROOT_BYTES_MAX {
        return Some(format!("tier root of {partition} has {} bytes; at most {TIER_ROOT_BYTES_MAX}", root.len()));
    }
    let many = dropped.len() > TIER_DROPPED_MAX;
    many.then(|| format!("a commit to {partition} drops {} objects; at most {TIER_DROPPED_MAX}", dropped.len()))
}
