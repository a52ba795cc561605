//! One member's way from what it owns to what the target gives it (KIP-848; rule O2). Pure; whether a partition is free is asked for.

use crate::records::groups::{Held, MemberRecord, MemberState};
use millpond_log::PartitionId;
use std::collections::BTreeSet;

/// The target of one member.
#[derive(Clone, Copy)]
pub(super) struct Goal<'a> {
    /// The epoch of the group's target.
    pub(super) epoch: i32,
    /// What the target gives to the member.
    pub(super) partitions: &'a BTreeSet<PartitionId>,
}

/// What a member says of the partitions it owns.
#[derive(Clone, Copy)]
pub(super) enum Said<'a> {
    /// Nothing that counts: nothing has changed, or it is out of date.
    Nothing,
    /// This, in its present epoch. It may come to own what it was given before meanwhile.
    Owns(&'a BTreeSet<PartitionId>),
    /// This, and it comes to own nothing before it is answered, since it joins.
    Joins(&'a BTreeSet<PartitionId>),
}

/// Where the member stands next: `record`, changed in what it owns, its state and its epochs. None if it stays where it is.
///
/// `free` tells of a partition that nobody else owns or has still to give up.
pub(super) fn advance(
    record: &MemberRecord,
    goal: Goal<'_>,
    said: Said<'_>,
    free: impl Fn(PartitionId) -> bool,
) -> Option<MemberRecord> {
    let next = match record.state {
        MemberState::Stable if record.epoch == goal.epoch => return None,
        MemberState::Unrevoked if !said.without(&record.revoking) => return None,
        MemberState::Stable | MemberState::Unreleased | MemberState::Unrevoked => toward(record, goal, said, free),
    };
    (next != *record).then_some(next)
}

impl Said<'_> {
    /// Whether the member has said that it owns none of `partitions`, which it was told to give up.
    fn without(self, partitions: &Held) -> bool {
        match self {
            Said::Nothing => false,
            Said::Owns(owned) | Said::Joins(owned) => partitions.keys().all(|partition| !owned.contains(partition)),
        }
    }

    /// Whether the member joins with a partition that it was not given: it had it as somebody else.
    fn brings(self, partition: PartitionId) -> bool {
        matches!(self, Said::Joins(owned) if owned.contains(&partition))
    }
}

fn toward(record: &MemberRecord, goal: Goal<'_>, said: Said<'_>, free: impl Fn(PartitionId) -> bool) -> MemberRecord {
    let (keep, revoke): (Held, Held) =
        record.assigned.iter().partition(|(partition, _)| goal.partitions.contains(partition));
    let mut next = MemberRecord { assigned: keep, revoking: Held::new(), ..record.clone() };
    let given_up = matches!(said, Said::Joins(_)) && said.without(&revoke);
    if !revoke.is_empty() && !given_up {
        // Everything is given up before anything is taken. What is to be given up is told in an epoch of its own, so that no word from
        // before it was told, when the member could yet come to own a partition that it was given last, is taken for its
        // acknowledgement. That epoch is at most the goal's: a goal takes something away from a member only once.
        next.revoking = revoke;
        next.state = MemberState::Unrevoked;
        return entered(next, record.epoch + 1);
    }
    let mut waits = false;
    for &partition in goal.partitions {
        if next.assigned.contains_key(&partition) {
            continue;
        }
        // What it brings it has to drop first: others may have read that since, and it would go on where it was.
        if free(partition) && !said.brings(partition) {
            next.assigned.insert(partition, goal.epoch);
        } else {
            waits = true;
        }
    }
    next.state = if waits { MemberState::Unreleased } else { MemberState::Stable };
    entered(next, goal.epoch)
}

fn entered(mut record: MemberRecord, epoch: i32) -> MemberRecord {
    if record.epoch != epoch {
        record.previous_epoch = record.epoch;
        record.epoch = epoch;
    }
    record
}
