//! Who leads next (rules E1 to E7). Any broker may decide it from what it read; the transaction compares all of it again.

use crate::records::{Leader, PartitionRecord};
pub use crate::replica::won;
use crate::replica::{Live, removal};
use crate::rules::{Rule, Rules};
use millpond_log::{LeaderEpoch, Offset, Rid};
use std::collections::BTreeMap;

/// What a candidate answered when it was asked (rule E5). The greatest has the most of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holds {
    /// Epoch of its last record.
    pub last_epoch: LeaderEpoch,
    /// Its durable log end.
    pub durable: Offset,
    /// Its high watermark.
    pub hw: Offset,
    /// How far its log is known to have reached: beyond `durable` if its disk lost something that was not copied again.
    pub known_end: Offset,
}

impl Holds {
    /// Whether its disk is known to lack something that it had.
    #[must_use]
    pub fn is_doubtful(&self) -> bool {
        self.known_end > self.durable || self.hw > self.durable
    }
}

/// Whether nobody leads: no leader, or one whose session is gone or another (rule E1).
#[must_use]
pub fn vacant(record: &PartitionRecord, live: &[Live]) -> bool {
    record.leader.is_none_or(|leader| !live.contains(&Live { rid: leader.rid, inc: leader.inc }))
}

/// Who may lead: members of ISR and ELR with a live session of the same disk (rule E2), the preferred one first.
#[must_use]
pub fn candidates(record: &PartitionRecord, live: &[Live], rules: Rules) -> Vec<Live> {
    let electable = |live: &&Live| {
        record.isr.contains(&live.rid) || record.elr.contains(&live.rid) || !rules.uphold(Rule::Electable)
    };
    by_preference(record, live.iter().filter(electable).copied().collect())
}

/// Replicas in the order in which they should lead.
fn by_preference(record: &PartitionRecord, mut candidates: Vec<Live>) -> Vec<Live> {
    let place = |rid: Rid| record.replicas.iter().position(|broker| *broker == rid.broker).unwrap_or(usize::MAX);
    // Whoever is to leave leads only if nobody else can (rule I8).
    candidates.sort_by_key(|live| (record.removing.contains(&live.rid.broker), place(live.rid), live.rid));
    candidates
}

/// The record after the election (rules E3, E4), or `None` if nobody may lead.
///
/// Of several candidates the one that answered with the greatest holdings wins, and among equals the preferred one; without
/// answers, the preferred one: each of them holds everything committed (S5).
#[must_use]
pub fn elect(
    record: &PartitionRecord,
    live: &[Live],
    answers: &BTreeMap<Rid, Holds>,
    rules: Rules,
) -> Option<PartitionRecord> {
    let candidates = candidates(record, live, rules);
    // The first of equals wins, so the preferred one has to come last for `max_by_key`.
    let winner = candidates.iter().rev().max_by_key(|live| answers.get(&live.rid))?;
    Some(won(record, *winner, live))
}

/// The greatest high watermark among the answers, if an answer holds less (rule E5): either it was given before that much was
/// committed, which another question settles, or its disk lost something.
#[must_use]
pub fn short_of_committed(answers: &BTreeMap<Rid, Holds>) -> Option<Offset> {
    let committed = answers.values().map(|holds| holds.hw).max()?;
    answers.values().any(|holds| holds.durable < committed).then_some(committed)
}

/// Who leads a partition that nobody may lead (rule E2) where the topic asks for that (rule E7): of the replicas that answered the one
/// with the greatest holdings, and among equals the preferred one. Never one that ends before object storage does, nor one whose disk
/// is known to have lost something. `None` also if a member of ISR or ELR is alive.
#[must_use]
pub fn best_of_the_rest(
    record: &PartitionRecord,
    live: &[Live],
    answers: &BTreeMap<Rid, Holds>,
    tiered_end: Offset,
) -> Option<Live> {
    if !vacant(record, live) || !candidates(record, live, Rules::ALL).is_empty() {
        return None;
    }
    let held = |live: &Live| {
        let answer = answers.get(&live.rid).filter(|_| record.replicas.contains(&live.rid.broker));
        answer.filter(|held| !held.is_doubtful() && held.durable >= tiered_end)
    };
    let rest = by_preference(record, live.iter().filter(|live| held(live).is_some()).copied().collect());
    // The first of equals wins, so the preferred one has to come last for `max_by_key`.
    rest.into_iter().rev().max_by_key(|live| held(live).map(|held| (held.last_epoch, held.durable)))
}

/// The record once `winner` leads although it may lack what was committed (rule E7).
#[must_use]
pub fn won_unclean(record: &PartitionRecord, winner: Live) -> PartitionRecord {
    let epoch = LeaderEpoch(record.epoch.0 + 1);
    let leader = Some(Leader { rid: winner.rid, inc: winner.inc });
    PartitionRecord {
        leader,
        epoch,
        isr: vec![winner.rid],
        elr: Vec::new(),
        unclean_epoch: Some(epoch),
        ..record.clone()
    }
}

/// The record without the members of the ISR that have no live session; `None` if all have one. The leader stays (rule E6).
#[must_use]
pub fn without_dead(record: &PartitionRecord, live: &[Live]) -> Option<PartitionRecord> {
    let alive = |rid: &&Rid| {
        live.iter().any(|live| live.rid == **rid) || record.leader.is_some_and(|leader| leader.rid == **rid)
    };
    let isr: Vec<Rid> = record.isr.iter().filter(alive).copied().collect();
    (isr.len() < record.isr.len() && !isr.is_empty()).then(|| {
        let elr = removal(record, &isr);
        PartitionRecord { isr, elr, ..record.clone() }
    })
}

#[cfg(test)]
mod tests;
