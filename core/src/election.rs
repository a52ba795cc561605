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
    let mut candidates: Vec<Live> = live.iter().filter(electable).copied().collect();
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
