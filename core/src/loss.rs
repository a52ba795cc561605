//! Loss (rules B4, E2, E7): whether a partition has a copy left that may lead, which part of a disk's log can be kept, and what an
//! unclean election makes of the partition: by an operator's order (`accept`), or where its topic asks for it (`give_up`).

use crate::election::{candidates, vacant, won_unclean};
use crate::records::{Leader, LossRecord, PartitionRecord};
use crate::replica::Live;
use crate::rules::Rules;
use millpond_log::{BrokerId, LeaderEpoch, Offset, Rid, WalGen};

/// Whether a replica may lead a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It may be elected (rule E2).
    Electable,
    /// Others may, or may come back: this one waits.
    Elsewhere,
    /// Every replica that held all that was committed is gone for good: the partition stays without a leader (rule B4).
    Lost,
}

/// How `me` stands in a partition. `disk_of` tells the WAL that is on record for a broker, if there is one: that with which it registered
/// last, or `WalGen::LOST`.
#[must_use]
pub fn standing(record: &PartitionRecord, me: Rid, disk_of: impl Fn(BrokerId) -> Option<WalGen>) -> Standing {
    if record.isr.iter().chain(&record.elr).any(|rid| *rid == me) {
        Standing::Electable
    } else if awaited(record, disk_of).is_empty() {
        Standing::Lost
    } else {
        Standing::Elsewhere
    }
}

/// The brokers that may come back with all that was committed; a partition is lost once there are none. `disk_of` as for `standing`.
///
/// A replica is gone once its broker has registered with another WAL, or an operator gave its disk up: the old one never registers again
/// (rule B1a). A broker that is merely unknown proves nothing (rule K6).
#[must_use]
pub fn awaited(record: &PartitionRecord, disk_of: impl Fn(BrokerId) -> Option<WalGen>) -> Vec<BrokerId> {
    let complete = record.isr.iter().chain(&record.elr);
    let gone = |rid: &Rid| disk_of(rid.broker).is_some_and(|wal_gen| wal_gen != rid.wal_gen);
    complete.filter(|rid| !gone(rid)).map(|rid| rid.broker).collect()
}

/// Where the log on a disk that is not in sync meets the log in object storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seam {
    /// Where the disk's log begins.
    pub start: Offset,
    /// Where its good part ends.
    pub end: Offset,
    /// The disk's epoch at `tiered_end - 1`, if it reaches there; else that of its first record.
    pub epoch: Option<LeaderEpoch>,
    /// Where object storage ends.
    pub tiered_end: Offset,
    /// The manifest's epoch at `tiered_end - 1`.
    pub tiered_epoch: Option<LeaderEpoch>,
    /// The disk's chained hash at `tiered_end`, if it knows it (S6).
    pub hash: Option<u64>,
    /// The manifest's there.
    pub tiered_hash: u64,
}

/// How the two logs meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meeting {
    /// The disk's goes on where object storage ends: it is kept.
    Continues,
    /// The disk's ends before: nothing of it is needed, and the log goes on from `tiered_end`.
    Behind,
    /// The disk kept records that an unclean election replaced: all of it is dropped (rule R12).
    Diverged,
}

/// How the log on a disk meets the one in object storage (rule R12).
#[must_use]
pub fn meet(seam: &Seam) -> Meeting {
    if seam.end < seam.tiered_end {
        return Meeting::Behind;
    }
    if seam.hash.is_some_and(|hash| hash != seam.tiered_hash) {
        return Meeting::Diverged;
    }
    let continues = match (seam.epoch, seam.tiered_epoch) {
        // The same epoch at one offset is the same record, and so is all before it.
        (Some(here), Some(there)) if seam.start < seam.tiered_end => here == there,
        // It was trimmed to this very end, and what is tiered never changes.
        (Some(here), Some(there)) => here >= there,
        // Nothing is tiered, or the disk holds no record.
        (None, _) | (_, None) => true,
    };
    if continues { Meeting::Continues } else { Meeting::Diverged }
}

/// What is known of a lost partition where it is to be led from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// Who is to lead.
    pub leader: Leader,
    /// Highest epoch that its disk or the manifest has seen.
    pub epoch_seen: LeaderEpoch,
    /// End of what is left: the greater of the disk's good part and `tiered_end`.
    pub end: Offset,
    /// Where object storage ends.
    pub tiered_end: Offset,
    /// How far the log is known to have reached; `end` if nothing tells.
    pub known_end: Offset,
    /// What happened, for people.
    pub cause: String,
}

/// What an unclean election puts into the metadata store, in one transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acceptance {
    /// The partition from now on.
    pub next: PartitionRecord,
    /// What is on record of it.
    pub loss: LossRecord,
}

/// Why a partition cannot be led uncleanly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A copy that may lead exists, or may come back.
    #[error("nothing is lost: a replica that holds everything may still lead")]
    NotLost,
    /// Rule K7.
    #[error("the disk has seen epoch {seen}, the metadata only {known}: the metadata is older than the disk")]
    StaleMetadata {
        /// The disk's.
        seen: LeaderEpoch,
        /// The metadata's.
        known: LeaderEpoch,
    },
}

/// E7 by an operator's order: makes `evidence.leader` the only replica in sync of a lost partition, in the next epoch, which is marked
/// unclean: whoever knew the log before can tell that offsets from `evidence.end` on may have had other values.
///
/// # Errors
/// Nothing may be accepted; see `Refusal`.
///
/// Panics if `evidence.end` is below `tiered_end`: what is in object storage is never given up.
pub fn accept(
    seen: &PartitionRecord,
    evidence: Evidence,
    disk_of: impl Fn(BrokerId) -> Option<WalGen>,
) -> Result<Acceptance, Refusal> {
    if standing(seen, evidence.leader.rid, disk_of) != Standing::Lost {
        return Err(Refusal::NotLost);
    }
    unclean(seen, evidence)
}

/// E7 where the topic asks for it: the same for a partition that nobody leads, while no replica of its ISR and ELR is alive. They may
/// be lost, or come back and find that the log went on without them.
///
/// # Errors
/// It may not be given up; see `Refusal`.
///
/// Panics if `evidence.end` is below `tiered_end`.
pub fn give_up(seen: &PartitionRecord, live: &[Live], evidence: Evidence) -> Result<Acceptance, Refusal> {
    if !vacant(seen, live) || !candidates(seen, live, Rules::ALL).is_empty() {
        return Err(Refusal::NotLost);
    }
    unclean(seen, evidence)
}

fn unclean(seen: &PartitionRecord, evidence: Evidence) -> Result<Acceptance, Refusal> {
    let Evidence { leader, epoch_seen, end, tiered_end, known_end, cause } = evidence;
    assert!(end >= tiered_end, "rule E7: the new end is at least what is tiered");
    if epoch_seen > seen.epoch {
        return Err(Refusal::StaleMetadata { seen: epoch_seen, known: seen.epoch });
    }
    let next = won_unclean(seen, Live { rid: leader.rid, inc: leader.inc });
    let lost = seen.isr.iter().chain(&seen.elr).copied().collect();
    let known_end = known_end.max(end);
    let loss = LossRecord { epoch: next.epoch, leader: leader.rid, lost, end, known_end, tiered_end, cause };
    Ok(Acceptance { next, loss })
}

#[cfg(test)]
mod tests;
