//! Who is in sync (rules I1 to I8): the leader alone proposes, one change at a time, and believes it when it is confirmed.

use super::leader::Follower;
use super::{Live, Now, Output, Replica, Role};
use crate::records::{Leader, PartitionRecord};
use crate::rules::Rule;
use millpond_log::{LeaderEpoch, Rid};

/// A change of the partition's record that its leader wants: one transaction, compared with `base`, with the leader's own
/// session and, if someone joins, with that session too (rules K3, K4, I5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// The revision it was decided on.
    pub base: u64,
    /// What is to hold.
    pub record: PartitionRecord,
    /// Who joins the ISR, in which incarnation.
    pub joining: Option<Live>,
    /// Who is to lead: the proposal is an election, and that session is compared (rules E3, E9).
    pub heir: Option<Live>,
}

impl Replica {
    /// Proposes what the record lacks, unless a proposal is open.
    pub(super) fn consider_isr(&mut self, now: Now, out: &mut Vec<Output>) {
        self.end_handover(now);
        self.begin_handover(now);
        let Some(proposal) = self.wanted_change(now) else { return };
        let Role::Leader(leading) = &mut self.role else { return };
        leading.pending = Some(proposal.clone());
        out.push(Output::Propose(proposal));
        // Rule I3: whoever is proposed counts from now on.
        self.advance(out);
    }

    pub(super) fn proposal_failed(&mut self, now: Now, base: u64, out: &mut Vec<Output>) {
        let Role::Leader(leading) = &mut self.role else { return };
        if leading.pending.as_ref().is_some_and(|pending| pending.base == base) {
            let failed = leading.pending.take();
            // Its heir may not lead, or the record has moved.
            leading.handover = leading.handover.filter(|_| failed.is_none_or(|failed| failed.heir.is_none()));
            self.advance(out);
            self.consider_isr(now, out);
        }
    }

    fn wanted_change(&self, now: Now) -> Option<Proposal> {
        let Role::Leader(leading) = &self.role else { return None };
        if leading.pending.is_some() {
            return None;
        }
        if leading.handover.is_some() {
            return self.election_of_heir(now);
        }
        let propose = |record, joining| Some(Proposal { base: leading.revision, record, joining, heir: None });
        if let Some(record) = self.without_laggards(now) {
            return propose(record, None);
        }
        if let Some((record, joining)) = self.with_one_more() {
            return propose(record, Some(joining));
        }
        if let Some(record) = self.with_reassignment_done() {
            return propose(record, None);
        }
        // Rule I7: changed by a leader only, whose session is compared.
        let min_isr = self.min_isr_wanted.filter(|wanted| *wanted != leading.record.min_isr)?;
        let mut record = PartitionRecord { min_isr, ..leading.record.clone() };
        if self.rules.uphold(Rule::MinIsrClearsElr) {
            record.elr = removal(&record, &record.isr);
        }
        propose(record, None)
    }

    /// Rule I6: who has no session, or was not caught up for too long, leaves; and so does whom no way leads to, where the others are
    /// enough to commit what it lacks. The leader itself never leaves.
    fn without_laggards(&self, now: Now) -> Option<PartitionRecord> {
        let Role::Leader(leading) = &self.role else { return None };
        let end = self.at_end.end;
        let lacks = |follower: &Follower| follower.matched.unwrap_or_default() < end;
        let lags = |follower: &Follower| {
            lacks(follower) && now.mono_ms.saturating_sub(follower.caught_up_ms) > self.lag_time_ms
        };
        let isr_without = |leaves: &dyn Fn(&Follower) -> bool| -> Vec<Rid> {
            let stays = |rid: &&Rid| {
                let follower = leading.followers.get(&rid.broker).filter(|follower| follower.rid == **rid);
                **rid == self.rid || follower.is_some_and(|follower| !leaves(follower))
            };
            leading.record.isr.iter().filter(stays).copied().collect()
        };
        let reached = isr_without(&|follower| lags(follower) || lacks(follower) && follower.unreachable);
        let isr = match reached.len() >= leading.record.min_isr as usize {
            true => reached,
            // Without them nothing could be committed: the way to them may be back before they have lagged for too long.
            false => isr_without(&lags),
        };
        (isr.len() < leading.record.isr.len()).then(|| {
            let elr = removal(&leading.record, &isr);
            PartitionRecord { isr, elr, ..leading.record.clone() }
        })
    }

    /// Rule I5: who holds everything committed, and the log as it was at the election, joins.
    fn with_one_more(&self) -> Option<(PartitionRecord, Live)> {
        let Role::Leader(leading) = &self.role else { return None };
        let least = if self.rules.uphold(Rule::ExpandReachesElection) { self.hw.max(leading.leso) } else { self.hw };
        let joins = |follower: &&Follower| {
            let holds = follower.matched.is_some_and(|matched| matched >= least);
            holds && !follower.unreachable && !leading.record.isr.contains(&follower.rid)
        };
        let follower = leading.followers.values().find(joins)?;
        let mut isr = leading.record.isr.clone();
        isr.push(follower.rid);
        let elr = removal(&leading.record, &isr);
        let record = PartitionRecord { isr, elr, ..leading.record.clone() };
        Some((record, Live { rid: follower.rid, inc: follower.inc }))
    }

    /// Rule I8: once those who join are in sync, those who leave go; a leader that leaves waits until another is elected.
    fn with_reassignment_done(&self) -> Option<PartitionRecord> {
        let Role::Leader(leading) = &self.role else { return None };
        let record = &leading.record;
        if record.adding.is_empty() && record.removing.is_empty() {
            return None;
        }
        let in_sync = |broker| record.isr.iter().any(|rid| rid.broker == broker);
        let stays = |rid: &&Rid| !record.removing.contains(&rid.broker);
        let isr: Vec<Rid> = record.isr.iter().filter(stays).copied().collect();
        let replicas: Vec<_> =
            record.replicas.iter().filter(|broker| !record.removing.contains(broker)).copied().collect();
        let least = if replicas.len() > 1 { record.min_isr.max(2) } else { record.min_isr };
        let joined = record.adding.iter().all(|broker| in_sync(*broker));
        if !joined || isr.len() < least as usize || !isr.contains(&self.rid) {
            return None;
        }
        let mut elr = removal(record, &isr);
        elr.retain(|rid| replicas.contains(&rid.broker));
        Some(PartitionRecord { isr, elr, replicas, adding: Vec::new(), removing: Vec::new(), ..record.clone() })
    }
}

/// The record once `winner` leads (rules E3, E4): who has no live session leaves the ISR.
#[must_use]
pub fn won(record: &PartitionRecord, winner: Live, live: &[Live]) -> PartitionRecord {
    let alive = |rid: &&Rid| **rid == winner.rid || live.iter().any(|live| live.rid == **rid);
    let mut isr: Vec<Rid> = record.isr.iter().filter(alive).copied().collect();
    if !isr.contains(&winner.rid) {
        isr.push(winner.rid);
    }
    let elr = removal(record, &isr);
    let leader = Some(Leader { rid: winner.rid, inc: winner.inc });
    PartitionRecord { leader, epoch: LeaderEpoch(record.epoch.0 + 1), isr, elr, ..record.clone() }
}

/// The ELR once the ISR is `isr` (rule I2): who leaves an ISR that is too small to commit still holds everything committed.
#[must_use]
pub fn removal(record: &PartitionRecord, isr: &[Rid]) -> Vec<Rid> {
    if isr.len() >= record.min_isr as usize {
        return Vec::new();
    }
    let mut elr: Vec<Rid> = record.elr.iter().chain(&record.isr).filter(|rid| !isr.contains(rid)).copied().collect();
    elr.sort_unstable();
    elr.dedup();
    elr
}
