//! The leader's part: appends, the progress of its followers, the high watermark (rules R2, R8, R9, I1, I3).

use super::verification::Verifications;
use super::{
    Acks, Appended, Assignment, Cursor, Fault, Live, Now, Output, Placed, Proposal, PushHead, PushReply, Refusal,
    Replica, Role, Said, Token, Unverified, VerificationToken, chain_hash,
};
use crate::records::PartitionRecord;
use crate::rules::Rule;
use millpond_log::batch::{ProducerStamp, ProducerWrite, TimestampType, WriteKind};
use millpond_log::producers::{ProducerError, Verdict};
use millpond_log::{Batch, BrokerId, Incarnation, LeaderEpoch, Offset, Rid, TimestampMs};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What only a leader knows.
#[derive(Clone, Debug)]
pub(super) struct Leading {
    /// The record as confirmed, and its revision.
    pub(super) record: PartitionRecord,
    pub(super) revision: u64,
    /// The one change of the record that is not resolved (rule I3).
    pub(super) pending: Option<Proposal>,
    /// The transfer of leadership that is under way (rule E9).
    pub(super) handover: Option<Handover>,
    /// A transfer that was asked for and cannot begin yet.
    pub(super) wish: Option<Wish>,
    /// Counts the cursors: a later one has the higher nonce.
    pub(super) nonce: u64,
    /// The live replicas that are pushed to.
    pub(super) followers: BTreeMap<BrokerId, Follower>,
    /// Log end at the election: until the high watermark reaches it, the end is not proven (rule R11).
    pub(super) leso: Offset,
    /// Whether the log start was read in this office: the fence of an earlier leader's changes is its election (rules F3, T5).
    pub(super) start_proven: bool,
    pub(super) waiting_durable: VecDeque<Waiter>,
    pub(super) waiting_commit: VecDeque<Waiter>,
    /// Producers whose transactions the coordinator was asked about (rule X3).
    pub(super) verifications: Verifications,
}

/// A transfer of leadership under way (rule E9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Handover {
    pub(super) to: Live,
    /// From here on it no longer waits for those who wait for their commit.
    pub(super) hurry_ms: u64,
    pub(super) until_ms: u64,
}

/// A transfer of leadership that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) to: Live,
    /// By when it is to be done.
    pub(super) until_ms: u64,
}

/// How far a follower is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Follower {
    pub(super) rid: Rid,
    pub(super) inc: Incarnation,
    /// The incarnation that its way was made for, as it was seen alive. Its answers may be of a later one, which is seen alive later; then
    /// that way has ended, with all that was to be pushed on it.
    seen: Incarnation,
    pub(super) nonce: u64,
    /// `min(durable, matched)` as acknowledged in this epoch (rule R8); `None` before the first answer.
    pub(super) matched: Option<Offset>,
    /// There is no way to it; until it answers again (rule I6).
    pub(super) unreachable: bool,
    /// When it last held the whole log, as far as its answers show.
    pub(super) caught_up_ms: u64,
    /// A log end, and when it was: reaching it later means having been caught up then.
    goal: Offset,
    goal_ms: u64,
}

/// A client's batch on its way in.
pub(super) struct Produce {
    pub(super) token: Token,
    pub(super) batch: Batch,
    pub(super) latest: TimestampMs,
    pub(super) acks: Acks,
    /// Base sequence of an earlier one that was refused before it came here (rule P6).
    pub(super) behind: Option<i32>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    /// Answered once the watched offset has reached this.
    pub(super) end: Offset,
    pub(super) token: Token,
    pub(super) appended: Appended,
}

/// What becomes of a batch that is not refused.
enum Judged {
    Append,
    Duplicate { appended: Appended, end: Offset },
    Unverified(ProducerWrite, VerificationToken),
}

impl Replica {
    /// Rule R2.
    pub(super) fn take_office(&mut self, now: Now, assigned: Assignment, out: &mut Vec<Output>) {
        let Assignment { record, revision, live } = assigned;
        assert!(record.isr.contains(&self.rid), "rule E3: the elected replica is in the ISR");
        let (log_start, end) = (self.log_start, self.at_end.end);
        if end < log_start && record.unclean_epoch.is_none() {
            return out.push(Output::Fault(Fault::StartBeyondLog { log_start, end }));
        }
        self.step_down(record.epoch, None, out);
        if record.unclean_epoch == Some(record.epoch) {
            // Rule E7: it was in no ISR, so what it was told to be committed may not be durable here (rule R9).
            self.commit(self.hw.min(self.durable).max(self.tiered_end));
        }
        self.pass_over_deleted(now, out);
        let office = record.epoch;
        self.min_isr_wanted = self.min_isr_wanted.filter(|wanted| *wanted != record.min_isr);
        self.role = Role::Leader(Leading {
            record,
            revision,
            pending: None,
            handover: None,
            wish: None,
            nonce: 0,
            followers: BTreeMap::new(),
            leso: self.at_end.end,
            start_proven: !self.rules.uphold(Rule::StartReadInOffice),
            waiting_durable: VecDeque::new(),
            waiting_commit: VecDeque::new(),
            verifications: Verifications::default(),
        });
        out.push(Output::ReadForOffice { office });
        self.follow_live(now, &live, out);
        self.advance(out);
        out.push(Output::Publish);
        self.consider_isr(now, out);
    }

    /// Rules E7, C1: what an unclean election left may end below the log start, if records above that end were deleted. They stay
    /// deleted, and nothing new is written where nobody could read it: a hole takes up the offsets between.
    fn pass_over_deleted(&mut self, now: Now, out: &mut Vec<Output>) {
        let append_time = now.wall.max(self.at_end.last_append_time);
        while let Some(missing) = self.log_start.0.checked_sub(self.at_end.end.0).filter(|missing| *missing > 0) {
            let span = u32::try_from(missing).unwrap_or(u32::MAX).min(Batch::HOLE_SPAN_MAX);
            let mut batch = Batch::hole(span);
            batch.place(self.at_end.end, self.epoch_seen);
            let prefix_hash = chain_hash(self.at_end.prefix_hash, &batch);
            self.append(Placed { batch, append_time, latest: TimestampMs::NONE, prefix_hash }, out);
        }
    }

    /// The record was seen again, perhaps changed by this leader or by the controller (rule E6).
    pub(super) fn confirm(&mut self, now: Now, assigned: Assignment, out: &mut Vec<Output>) {
        let rules = self.rules;
        let Role::Leader(leading) = &mut self.role else { return };
        // Rule K5: only a later revision resolves what is pending; the unchanged key proves nothing.
        if assigned.revision > leading.revision || !rules.uphold(Rule::ProposalNeedsRevision) {
            let before = std::mem::replace(&mut leading.record, assigned.record);
            leading.revision = assigned.revision;
            let resolved = leading.pending.take();
            leading.forget_who_left(&before, resolved.as_ref(), out);
        }
        self.follow_live(now, &assigned.live, out);
        self.advance(out);
        self.consider_isr(now, out);
    }

    /// Pushes to exactly the live replicas, each from where it may stand. Whoever is seen alive in a later incarnation than its way was made
    /// for has another way, on which nothing is pushed yet.
    fn follow_live(&mut self, now: Now, live: &[Live], out: &mut Vec<Output>) {
        let (me, end) = (self.rid.broker, self.at_end.end);
        let Role::Leader(leading) = &mut self.role else { return };
        let replicas: BTreeSet<BrokerId> =
            leading.record.replicas.iter().copied().filter(|broker| *broker != me).collect();
        let wanted = |live: &&Live| replicas.contains(&live.rid.broker);
        leading.followers.retain(|broker, known| {
            let same = |live: &Live| live.rid == known.rid && live.inc <= known.seen;
            let stays = replicas.contains(broker) && live.iter().any(same);
            if !stays {
                out.push(Output::Unfollow(*broker));
            }
            stays
        });
        let mut fresh = Vec::new();
        for Live { rid, inc } in live.iter().filter(wanted) {
            leading.followers.entry(rid.broker).or_insert_with(|| {
                fresh.push(rid.broker);
                let (caught_up_ms, goal_ms) = (now.mono_ms, now.mono_ms);
                let (nonce, matched, unreachable) = (0, None, false);
                let (rid, inc, seen) = (*rid, *inc, *inc);
                Follower { rid, inc, seen, nonce, matched, unreachable, caught_up_ms, goal: end, goal_ms }
            });
        }
        for broker in fresh {
            self.restart_cursor(broker, None, out);
        }
    }

    /// Pushes to `broker` anew: from `from`, or from the end of what it is known to hold, or else from the log end.
    pub(super) fn restart_cursor(&mut self, broker: BrokerId, from: Option<Offset>, out: &mut Vec<Output>) {
        let end = self.at_end.end;
        let Role::Leader(leading) = &mut self.role else { return };
        let Some(follower) = leading.followers.get_mut(&broker) else { return };
        leading.nonce += 1;
        let nonce = leading.nonce;
        follower.nonce = nonce;
        let from = from.or(follower.matched).unwrap_or(end);
        out.push(Output::Follow(Cursor { to: broker, nonce, from, prev_epoch: self.epoch_before(from) }));
    }

    /// There is no way to `broker` until it answers again.
    pub(super) fn note_unreachable(&mut self, broker: BrokerId) {
        let Role::Leader(leading) = &mut self.role else { return };
        if let Some(follower) = leading.followers.get_mut(&broker) {
            follower.unreachable = true;
        }
    }

    pub(super) fn restart_trimmed(&mut self, nonce: u64, broker: BrokerId, start: Offset, out: &mut Vec<Output>) {
        let Role::Leader(leading) = &self.role else { return };
        if leading.followers.get(&broker).is_some_and(|follower| follower.nonce == nonce) {
            self.restart_cursor(broker, Some(start), out);
        }
    }

    /// Where the own records of `epoch`, or of the newest one before it, end.
    fn end_of(&self, epoch: Option<LeaderEpoch>) -> Offset {
        let found = epoch.and_then(|epoch| self.epochs.end_of(epoch, self.at_end.end));
        found.map_or(Offset(0), |(_, end)| end)
    }

    /// Epoch of the record before `offset`, if there is one.
    pub(super) fn epoch_before(&self, offset: Offset) -> Option<LeaderEpoch> {
        self.epochs.epoch_at(Offset(offset.0.checked_sub(1)?))
    }

    /// What every push says beside its batches; `None` if this replica does not lead.
    #[must_use]
    pub fn push_head(&self) -> Option<PushHead> {
        let Role::Leader(leading) = &self.role else { return None };
        Some(PushHead {
            epoch: leading.record.epoch,
            leader: leading.record.leader?,
            unclean_epoch: leading.record.unclean_epoch,
            hw: self.hw,
            log_start: self.log_start,
            tiered_end: self.tiered_end,
        })
    }

    /// What followers are counted to hold durably of this leader's log (rule R8); nothing unless it leads.
    pub fn counted(&self) -> impl Iterator<Item = (Rid, Offset)> {
        let leading = match &self.role {
            Role::Leader(leading) => Some(leading),
            Role::Follower { .. } => None,
        };
        let followers = leading.into_iter().flat_map(|leading| leading.followers.values());
        followers.filter_map(|follower| Some((follower.rid, follower.matched?)))
    }

    pub(super) fn produce(&mut self, now: Now, produce: Produce, out: &mut Vec<Output>) {
        let append_time = now.wall.max(self.at_end.last_append_time);
        let judged = self.judge(now, append_time, &produce);
        let Produce { token, batch, latest, acks, .. } = produce;
        match judged {
            Err(refusal) => out.push(Output::Answer { token, result: Err(refusal) }),
            Ok(Judged::Unverified(write, verification)) => {
                let (producer, epoch) = (write.stamp.id, write.stamp.epoch);
                out.push(Output::Verify(Unverified { producer, epoch, verification, token, batch, latest, acks }));
            }
            Ok(Judged::Duplicate { appended, end }) => {
                self.await_offset(Acks::All, Waiter { end, token, appended }, out);
            }
            Ok(Judged::Append) => {
                let appended = self.place(append_time, batch, latest, out);
                self.await_offset(acks, Waiter { end: self.at_end.end, token, appended }, out);
            }
        }
    }

    fn judge(&mut self, now: Now, append_time: TimestampMs, produce: &Produce) -> Result<Judged, Refusal> {
        let Some(write) = produce.batch.producer_write() else {
            return self.admits(produce.acks)?.map_or(Ok(Judged::Append), Err);
        };
        let judged = self.judge_write(now, append_time, produce, write);
        if judged.as_ref().is_err_and(Refusal::passes) {
            self.note_refused(now, write);
        }
        judged
    }

    fn judge_write(
        &mut self,
        now: Now,
        append_time: TimestampMs,
        produce: &Produce,
        write: ProducerWrite,
    ) -> Result<Judged, Refusal> {
        let lacks = self.admits(produce.acks)?;
        let verdict = self.at_end.producers_at(append_time).check(write, produce.batch.record_count());
        // It is in the log already, and waits for its commit like the first time: a refusal would say that it did not happen, and
        // its producer would give it another number (S15).
        if let Ok(Verdict::Duplicate { base, end, append_time }) = verdict {
            return Ok(Judged::Duplicate { appended: Appended { base, append_time }, end });
        }
        // Nor is it ever to be what it says: where a client took up used numbers again, "later" would let its next batch go first.
        if let Err(ended @ ProducerError::Ended { .. }) = verdict {
            return Err(ended.into());
        }
        if let Some(lacks) = lacks {
            return Err(lacks);
        }
        self.keep_behind(now, append_time, write, produce.behind, &verdict)?;
        // Rule X3 comes before order: what is not the next batch yet may follow others that wait for the same answer.
        if write.kind == WriteKind::Transactional
            && matches!(verdict, Ok(_) | Err(ProducerError::OutOfOrder { .. }))
            && let Some(verification) = self.verification_for(now, append_time, write)?
        {
            return Ok(Judged::Unverified(write, verification));
        }
        verdict?;
        Ok(Judged::Append)
    }

    /// Rule P6: what follows a batch that was refused for now waits for it. Where nothing is known of the producer it could be taken for its
    /// first; where it is out of order for nothing else, a refusal for that would make librdkafka number all anew that is under way.
    fn keep_behind(
        &mut self,
        now: Now,
        append_time: TimestampMs,
        write: ProducerWrite,
        told: Option<i32>,
        verdict: &Result<Verdict, ProducerError>,
    ) -> Result<(), ProducerError> {
        if told.is_none() && self.refused.is_empty() {
            return Ok(());
        }
        let ProducerStamp { id, base_sequence: got, .. } = write.stamp;
        let noted = self.refused.before(write.in_transactions(), write.stamp, now.mono_ms);
        let expected = match verdict {
            Err(ProducerError::OutOfOrder { expected, .. }) => {
                Some(*expected).filter(|next| [told, noted].contains(&Some(*next)))
            }
            _ if self.at_end.producers_at(append_time).knows(&write) => None,
            _ => told.or(noted),
        };
        expected.map_or(Ok(()), |expected| Err(ProducerError::Behind { id, expected, got }))
    }

    /// Nothing of a batch was written, and it will come again.
    pub(super) fn note_refused(&mut self, now: Now, write: ProducerWrite) {
        self.refused.note(write.in_transactions(), write.stamp, now.mono_ms);
    }

    /// Whether this replica may append now: what an append under `acks` is refused with for lack of replicas (rule I1), if it is.
    pub(super) fn admits(&self, acks: Acks) -> Result<Option<Refusal>, Refusal> {
        let record = match &self.role {
            Role::Leader(leading) => match &leading.handover {
                // Rule E9: nothing is admitted that the heir might lack.
                Some(_) => return Err(Refusal::NotLeader { leader: self.hands_over_to() }),
                None => &leading.record,
            },
            Role::Follower { leader, .. } => return Err(Refusal::NotLeader { leader: *leader }),
        };
        let isr = u32::try_from(record.isr.len()).expect("an ISR is a handful of brokers");
        let min_isr = record.min_isr;
        Ok((acks == Acks::All && isr < min_isr).then_some(Refusal::NotEnoughReplicas { isr, min_isr }))
    }

    /// Gives a batch its place at the log end.
    pub(super) fn place(
        &mut self,
        append_time: TimestampMs,
        mut batch: Batch,
        mut latest: TimestampMs,
        out: &mut Vec<Output>,
    ) -> Appended {
        batch.place(self.at_end.end, self.epoch_seen);
        if self.timestamp_type == TimestampType::LogAppendTime {
            batch.stamp_append_time(append_time);
            latest = append_time;
        }
        let appended = Appended { base: batch.base_offset(), append_time };
        let prefix_hash = chain_hash(self.at_end.prefix_hash, &batch);
        self.append(Placed { batch, append_time, latest, prefix_hash }, out);
        appended
    }

    /// Answers when the offset that `acks` asks for has reached the waiter's.
    pub(super) fn await_offset(&mut self, acks: Acks, waiter: Waiter, out: &mut Vec<Output>) {
        let (durable, hw) = (self.durable, self.hw);
        let Role::Leader(leading) = &mut self.role else { unreachable!("`judge` lets only a leader append") };
        let (queue, reached) = match acks {
            Acks::None => return out.push(Output::Answer { token: waiter.token, result: Ok(waiter.appended) }),
            Acks::Leader => (&mut leading.waiting_durable, durable),
            Acks::All => (&mut leading.waiting_commit, hw),
        };
        if reached >= waiter.end {
            return out.push(Output::Answer { token: waiter.token, result: Ok(waiter.appended) });
        }
        // Appends arrive in order and land at the back; only a duplicate may have to stand further ahead.
        let at = queue.partition_point(|other| other.end <= waiter.end);
        queue.insert(at, waiter);
    }

    pub(super) fn note_reply(&mut self, now: Now, reply: PushReply, out: &mut Vec<Output>) {
        if let Said::Stale { seen } = reply.said {
            // Rule R4.
            if seen > self.epoch_seen {
                self.step_down(seen, None, out);
            }
            return;
        }
        let (rules, end) = (self.rules, self.at_end.end);
        let Role::Leader(leading) = &mut self.role else { return };
        // Rule R8: an answer of another epoch says nothing about this one.
        if reply.epoch != leading.record.epoch && rules.uphold(Rule::AckOfEpoch) {
            return;
        }
        let Some(follower) = leading.followers.get_mut(&reply.rid.broker) else { return };
        if reply.rid != follower.rid || reply.inc < follower.inc {
            return;
        }
        if reply.inc > follower.inc {
            follower.inc = reply.inc;
            follower.matched = None;
        }
        if reply.nonce != follower.nonce {
            return;
        }
        follower.unreachable = false;
        match reply.said {
            Said::Matched { end: matched } if matched <= end => follower.reached(now, matched, end),
            Said::Mismatch { end: theirs, epoch } => {
                let from = theirs.min(self.end_of(epoch));
                return self.restart_cursor(reply.rid.broker, Some(from), out);
            }
            // Beyond the log: a fault of the peer, which counts for nothing.
            Said::Matched { .. } | Said::Stale { .. } => return,
        }
        self.advance(out);
        self.consider_isr(now, out);
    }

    /// Moves the high watermark as far as the commit set allows, and answers who waited for it (rules R9, I1).
    pub(super) fn advance(&mut self, out: &mut Vec<Output>) {
        let own = if self.rules.uphold(Rule::LeaderDurable) { self.durable } else { self.at_end.end };
        let (rules, me) = (self.rules, self.rid);
        let Role::Leader(leading) = &mut self.role else { return };
        answer_reached(&mut leading.waiting_durable, self.durable, out);
        // Rule R2: the epoch is durable before anything counts in it.
        if self.epoch_durable < leading.record.epoch {
            return;
        }
        let set = leading.commit_set(rules);
        let quorum = if rules.uphold(Rule::PendingIsNotQuorum) { leading.record.isr.len() } else { set.len() };
        if (quorum as u64) < u64::from(leading.record.min_isr) && rules.uphold(Rule::LeastIsr) {
            return;
        }
        let held = |rid: &Rid| if *rid == me { own } else { leading.matched(*rid) };
        let committed = set.iter().map(held).min().expect("rule I6: a leader never leaves its own ISR");
        if committed > self.hw {
            answer_reached(&mut leading.waiting_commit, committed, out);
            self.commit(committed);
            out.push(Output::Publish);
        }
    }
}

impl Leading {
    /// Confirmed ISR and the ISR of the proposal that is not resolved (rule I3).
    fn commit_set(&self, rules: crate::rules::Rules) -> BTreeSet<Rid> {
        let confirmed: BTreeSet<Rid> = self.record.isr.iter().copied().collect();
        let Some(pending) = &self.pending else { return confirmed };
        let proposed: BTreeSet<Rid> = pending.record.isr.iter().copied().collect();
        match proposed.len() < confirmed.len() {
            true if !rules.uphold(Rule::ShrinkWaits) => proposed,
            false if !rules.uphold(Rule::ExpandCounts) => confirmed,
            _ => &confirmed | &proposed,
        }
    }

    /// Rule R8: a replica that was moved away gives its log up, and one that was placed on the same broker since is another, though
    /// broker, disk and session are the same and the record in between may never have been seen here. Only a leader's own proposal takes
    /// a replica out of the record: so whoever `resolved` took out may have been away, and so was whoever joins now and was a member
    /// `before`. What it acknowledged counts no more, nor does what it says to an older cursor.
    fn forget_who_left(&mut self, before: &PartitionRecord, resolved: Option<&Proposal>, out: &mut Vec<Output>) {
        let record = &self.record;
        self.followers.retain(|broker, _| {
            let taken_out = resolved.is_some_and(|proposal| !proposal.record.replicas.contains(broker));
            let joins_anew = record.adding.contains(broker) && !before.adding.contains(broker);
            let stays = !taken_out && !joins_anew;
            if !stays {
                out.push(Output::Unfollow(*broker));
            }
            stays
        });
    }

    /// What a replica is known to hold durably in this epoch.
    pub(super) fn matched(&self, rid: Rid) -> Offset {
        let follower = self.followers.get(&rid.broker).filter(|follower| follower.rid == rid);
        follower.and_then(|follower| follower.matched).unwrap_or_default()
    }
}

impl Follower {
    /// It acknowledged up to `matched` while the log ended at `end`.
    fn reached(&mut self, now: Now, matched: Offset, end: Offset) {
        self.matched = self.matched.max(Some(matched));
        if matched >= end {
            self.caught_up_ms = now.mono_ms;
        } else if matched >= self.goal {
            self.caught_up_ms = self.caught_up_ms.max(self.goal_ms);
        } else {
            return;
        }
        (self.goal, self.goal_ms) = (end, now.mono_ms);
    }
}

fn answer_reached(queue: &mut VecDeque<Waiter>, reached: Offset, out: &mut Vec<Output>) {
    while let Some(waiter) = queue.pop_front_if(|waiter| waiter.end <= reached) {
        out.push(Output::Answer { token: waiter.token, result: Ok(waiter.appended) });
    }
}
