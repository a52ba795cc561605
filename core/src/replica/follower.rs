//! The follower's part: what it takes from the leader, where it truncates, what it acknowledges (rules R3 to R8, R10, R12).

use super::{
    EndState, Fault, Installed, Mark, Now, Output, Placed, Push, PushHead, PushReply, Replica, Role, Said, Written,
    chain_hash,
};
use crate::rules::Rule;
use millpond_log::{LeaderEpoch, Offset};

/// What a follower knows of the leader that pushes to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    pub(super) head: PushHead,
    nonce: u64,
    /// End of what was verified in this epoch (rule R8).
    matched: Offset,
    /// Newest end that was acknowledged.
    acked: Option<Offset>,
}

/// Why nothing can be appended now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Busy {
    /// Waits for `Input::Rebuilt`.
    Truncating,
    /// Waits for `Input::Installed`.
    Installing,
}

impl Replica {
    /// Takes one push (rules R3 to R6).
    pub(super) fn on_push(&mut self, push: Push, out: &mut Vec<Output>) {
        let Push { head, nonce, start, prev_offset, prev_epoch, batches } = push;
        if head.epoch < self.epoch_seen && self.rules.uphold(Rule::RefuseOldEpoch) {
            return self.reply(&head, nonce, Said::Stale { seen: self.epoch_seen }, out);
        }
        let leader = head.leader.rid.broker;
        if matches!(self.role, Role::Leader(_)) && head.epoch == self.epoch_seen {
            return out.push(Output::Fault(Fault::TwoLeaders { epoch: head.epoch }));
        }
        let newer = head.epoch > self.epoch_seen;
        self.step_down(head.epoch, Some(leader), out);
        if newer && !self.rules.uphold(Rule::TruncateByEpoch) && self.busy.is_none() && self.hw < self.at_end.end {
            return self.truncate(self.hw, &head, out);
        }
        if !self.note_stream(head, nonce) || self.busy.is_some() {
            return;
        }
        if let Some(end) = self.mismatch(prev_offset, prev_epoch) {
            // Rule R12: what the leader's WAL no longer holds is in the manifest.
            if end < start || prev_offset <= start {
                self.busy = Some(Busy::Installing);
                return out.push(Output::Install);
            }
            return self.reply(&head, nonce, Said::Mismatch { end, epoch: self.epoch_before(end) }, out);
        }
        let Some((matched, appended)) = self.take(prev_offset, batches, &head, out) else { return };
        self.note_matched(matched, &head, out);
        self.acknowledge(!appended, out);
    }

    /// Notes what the leader says of itself. `false` if the push is of a cursor that a later one has replaced.
    fn note_stream(&mut self, head: PushHead, nonce: u64) -> bool {
        let Role::Follower { stream, .. } = &mut self.role else { return false };
        match stream {
            Some(known) if known.head.epoch == head.epoch && known.head.leader == head.leader => {
                if nonce < known.nonce {
                    return false;
                }
                if nonce > known.nonce {
                    known.acked = None;
                }
                (known.head, known.nonce) = (head, nonce);
            }
            _ => *stream = Some(Stream { head, nonce, matched: Offset(0), acked: None }),
        }
        true
    }

    /// The most that may agree, if the log before a push is not the leader's (rule R5).
    fn mismatch(&self, prev_offset: Offset, prev_epoch: Option<LeaderEpoch>) -> Option<Offset> {
        if prev_offset > self.at_end.end {
            return Some(self.at_end.end);
        }
        if self.epoch_before(prev_offset) == prev_epoch || !self.rules.uphold(Rule::PreviousEpoch) {
            return None;
        }
        // Epochs rise along a log: what was written here in a later one than the leader's record has, it does not have there.
        let later = self.epochs.entries().iter().find(|entry| Some(entry.epoch) > prev_epoch);
        Some(later.map_or(prev_offset, |later| later.start.min(prev_offset)))
    }

    /// Appends what is new (rule R6). Returns the end of what was verified, and whether anything was appended; `None` if the log
    /// has to be truncated first, or is broken.
    fn take(
        &mut self,
        from: Offset,
        batches: Vec<Placed>,
        head: &PushHead,
        out: &mut Vec<Output>,
    ) -> Option<(Offset, bool)> {
        let (mut matched, mut appended) = (from, false);
        for placed in batches {
            let (base, end, epoch) =
                (placed.batch.base_offset(), placed.batch.end_offset(), placed.batch.leader_epoch());
            if base != matched {
                // Batches of one push adjoin: what does not is a peer's fault, and what came before it stands.
                break;
            }
            if end <= self.tiered_end && self.epochs.epoch_at(base).is_none() {
                // Long since tiered, and so committed: older than the epochs that the manifest still tells, no proof of another log.
                matched = end;
                continue;
            }
            if base < self.at_end.end {
                if self.epochs.epoch_at(base) != Some(epoch) {
                    self.truncate(base, head, out);
                    return None;
                }
                // Equal epoch at an offset: the same record, so the same batch (rule S6).
                if end > self.at_end.end {
                    out.push(Output::Fault(Fault::PrefixHash { end }));
                    return None;
                }
                matched = end;
                continue;
            }
            if chain_hash(self.at_end.prefix_hash, &placed.batch) != placed.prefix_hash {
                out.push(Output::Fault(Fault::PrefixHash { end }));
                return None;
            }
            self.append(placed, out);
            (matched, appended) = (end, true);
        }
        Some((matched, appended))
    }

    /// Ends the log at `to` (rules R6, R7).
    fn truncate(&mut self, to: Offset, head: &PushHead, out: &mut Vec<Output>) {
        let Replica { hw, tiered_end, .. } = *self;
        if to < tiered_end || (to < hw && !self.unclean(head)) {
            return out.push(Output::Fault(Fault::TruncationBelowCommitted { to, hw, tiered_end }));
        }
        self.busy = Some(Busy::Truncating);
        // Which transactions were open there is not known before the log is replayed (rules X6, R7).
        self.commit(hw.min(to));
        self.cut(to);
        let mark = self.written(Written::End(to));
        out.push(Output::Truncate { to, mark });
        out.push(Output::Publish);
    }

    /// Rule E7: an unclean election that this log took no part in may undo what was committed before it, once.
    fn unclean(&self, head: &PushHead) -> bool {
        let last = self.epochs.last().map_or(LeaderEpoch(0), |last| last.epoch);
        head.unclean_epoch.is_some_and(|unclean| last < unclean)
    }

    /// Forgets what lies at or after `to`.
    fn cut(&mut self, to: Offset) {
        self.epochs.truncate(to);
        self.at_end.end = to;
        self.durable = self.durable.min(to);
        for (_, written) in &mut self.unsynced {
            if let Written::End(end) = written {
                *end = (*end).min(to);
            }
        }
        if let Role::Follower { stream: Some(stream), .. } = &mut self.role {
            stream.matched = stream.matched.min(to);
            stream.acked = None;
        }
    }

    pub(super) fn rebuilt(&mut self, now: Now, state: EndState, out: &mut Vec<Output>) {
        assert_eq!(self.busy, Some(Busy::Truncating), "only a truncated log is rebuilt");
        assert_eq!(state.end, self.at_end.end, "the log ends where it was truncated");
        self.at_end = state;
        self.stand_again(now, out);
    }

    /// Rule R12: continues from the tiered end. Also after a truncation, if the manifest has passed it meanwhile.
    pub(super) fn installed(&mut self, now: Now, installed: Installed, out: &mut Vec<Output>) {
        assert!(self.busy.is_some(), "a manifest is installed where it was asked for");
        let Installed { log_start, at_end, epochs } = installed;
        let (at, prefix_hash) = (at_end.end, at_end.prefix_hash);
        let head = match &self.role {
            Role::Follower { stream: Some(stream), .. } => Some(stream.head),
            _ => None,
        };
        if self.hw > at && !head.is_some_and(|head| self.unclean(&head)) {
            let Replica { hw, tiered_end, .. } = *self;
            return out.push(Output::Fault(Fault::TruncationBelowCommitted { to: at, hw, tiered_end }));
        }
        self.cut(at);
        (self.at_end, self.epochs) = (at_end, epochs);
        self.log_start = self.log_start.max(log_start);
        (self.tiered_end, self.hw) = (at, at);
        let mark = self.start_over();
        out.push(Output::Reset { at, prefix_hash, mark });
        out.push(Output::Publish);
        self.stand_again(now, out);
    }

    /// The log starts over at its end, with a reset that the driver hands to the WAL under this mark: what was durable before is of
    /// another log, and nothing of this one is acknowledged before the reset is durable (rule W1).
    pub fn start_over(&mut self) -> Mark {
        self.durable = Offset(0);
        self.written(Written::End(self.at_end.end))
    }

    /// The log is whole again: asks the leader to go on, and looks at what was decided meanwhile.
    fn stand_again(&mut self, now: Now, out: &mut Vec<Output>) {
        self.busy = None;
        // Rule R7: what is known of transactions is of this log again.
        self.stable_bound = None;
        self.at_end.ended.decided(self.hw);
        let end = self.at_end.end;
        if let Role::Follower { stream: Some(stream), .. } = &self.role {
            let (head, nonce) = (stream.head, stream.nonce);
            self.reply(&head, nonce, Said::Mismatch { end, epoch: self.epoch_before(end) }, out);
        }
        self.act_on_assignment(now, out);
    }

    /// Notes what the push showed (rules R10, T6).
    fn note_matched(&mut self, matched: Offset, head: &PushHead, out: &mut Vec<Output>) {
        let Role::Follower { stream: Some(stream), .. } = &mut self.role else { return };
        stream.matched = stream.matched.max(matched);
        let matched = stream.matched;
        let hw = head.hw.min(matched);
        // Rule E7: after an unclean election its leader says what is committed, and that may be less than was known here.
        let reset = self.unclean(head) && self.unclean_met < head.unclean_epoch;
        let hw = if reset { hw.max(self.tiered_end) } else { hw.max(self.hw) };
        if reset {
            self.unclean_met = head.unclean_epoch;
        }
        if hw != self.hw {
            self.commit(hw);
            out.push(Output::Publish);
        }
        if head.tiered_end <= matched {
            self.note_manifest(head.log_start, head.tiered_end, out);
        }
    }

    /// Acknowledges what is durable and verified (rule R8), if that moved or if the leader has to hear in any case.
    pub(super) fn acknowledge(&mut self, in_any_case: bool, out: &mut Vec<Output>) {
        // Rule R4: the epoch is durable before the first answer in it; so is the truncation before what follows it.
        if self.epoch_durable < self.epoch_seen || self.busy.is_some() {
            return;
        }
        let (durable, rules) = (self.durable, self.rules);
        let Role::Follower { stream: Some(stream), .. } = &mut self.role else { return };
        let end = match () {
            () if !rules.uphold(Rule::AckDurable) => stream.matched,
            () if !rules.uphold(Rule::AckMatched) => durable,
            () => durable.min(stream.matched),
        };
        if in_any_case || stream.acked.is_none_or(|acked| end > acked) {
            stream.acked = Some(end);
            let (head, nonce) = (stream.head, stream.nonce);
            self.reply(&head, nonce, Said::Matched { end }, out);
        }
    }

    fn reply(&self, head: &PushHead, nonce: u64, said: Said, out: &mut Vec<Output>) {
        // Without a session there is no incarnation to answer in; the leader pushes again once there is.
        let Some(inc) = self.inc else { return };
        let reply = PushReply { rid: self.rid, inc, epoch: head.epoch, nonce, said };
        out.push(Output::Reply { to: head.leader.rid.broker, reply });
    }
}
