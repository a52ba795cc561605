//! Transactions in one replica: how far everything is decided (rule X6), what was aborted (rule X7), which batches have to be verified
//! (rule X3), which markers are appended (rule X5).
//!
//! It decides no outcome: that is the coordinator's.

use super::ended::StableBound;
use super::leader::Waiter;
use super::verification::Found;
use super::{Acks, Appended, EndState, Now, Output, Refusal, Replica, Role, Token, VerificationToken, Verified};
use millpond_log::batch::ProducerWrite;
use millpond_log::limits::PARTITION_PRODUCERS_MAX;
use millpond_log::producers::{MarkerVerdict, ProducerError};
use millpond_log::transactions::{AbortedList, AbortedTxn, Marker};
use millpond_log::{Batch, Offset, ProducerId, TimestampMs};
use std::sync::Arc;

impl Replica {
    /// Rule X6: everything below is committed and no transaction in it is undecided. What was deleted is nobody's to wait for.
    pub(super) fn last_stable(&self) -> Offset {
        let open = self.at_end.producers.first_open();
        let undecided = self.at_end.ended.first_undecided();
        let bound = self.stable_bound.map(|bound| bound.at);
        let decided = open.into_iter().chain(undecided).chain(bound).min();
        // A follower may have heard where the log starts before it has heard that so much is committed.
        decided.map_or(self.hw, |first| first.max(self.log_start).min(self.hw))
    }

    /// Aborted transactions whose markers lie in the tail, for a view (rule F5). It may tell of some that the manifest tells of as well:
    /// a reader takes those whose markers lie at or after the tiered end of its manifest, `AbortedList::from`.
    #[must_use]
    pub fn aborted(&self) -> Arc<AbortedList> {
        Arc::clone(self.at_end.ended.aborted())
    }

    /// Readers have a manifest from now on that tells of every marker below `tiered_end`.
    pub fn forget_aborted(&mut self, tiered_end: Offset) {
        self.at_end.ended.forget_aborted(tiered_end);
    }

    /// Moves the high watermark: forward, but for rule E7.
    pub(super) fn commit(&mut self, hw: Offset) {
        if hw < self.hw {
            let until = self.stable_bound.map_or(self.hw, |bound| bound.until.max(self.hw));
            self.stable_bound = Some(StableBound { at: self.log_start, until });
        }
        self.hw = hw;
        // While the log is taken apart, what ended may have to be opened again.
        if self.busy.is_none() {
            self.at_end.ended.decided(hw);
            self.stable_bound = self.stable_bound.filter(|bound| hw < bound.until);
        }
    }

    /// What a transactional batch has to wait for, that is next in the log but for that: `None` if nothing (rule X3).
    pub(super) fn verification_for(
        &mut self,
        now: Now,
        append_time: TimestampMs,
        write: ProducerWrite,
    ) -> Result<Option<VerificationToken>, ProducerError> {
        let stamp = write.stamp;
        let producers = self.at_end.producers_at(append_time);
        if producers.in_transaction(stamp.id, stamp.epoch) {
            return Ok(None);
        }
        let known = producers.knows_transactional(stamp.id);
        let Role::Leader(leading) = &mut self.role else { return Ok(None) };
        let (id, got) = (stamp.id, stamp.base_sequence);
        match leading.verifications.find(stamp) {
            Some(Found::Asked(token)) => Ok(Some(token)),
            // Where the producer is known, its sequence tells what is next.
            Some(Found::Verified { in_order, .. }) if known || in_order => Ok(None),
            Some(Found::Verified { expected, .. }) => Err(ProducerError::OutOfOrder { id, expected, got }),
            None if leading.verifications.len() >= PARTITION_PRODUCERS_MAX => {
                Err(ProducerError::TooMany { max: PARTITION_PRODUCERS_MAX })
            }
            None => Ok(Some(leading.verifications.ask(now, stamp, leading.record.epoch))),
        }
    }

    /// Notes a coordinator's yes. One that comes after a marker, or after another epoch, or to another office is none (rule X3).
    pub(super) fn verified(&mut self, verified: Verified) {
        if let Role::Leader(leading) = &mut self.role {
            leading.verifications.note(verified);
        }
    }

    /// A batch of `producer` was appended: what was verified for it is used up; after a marker or in another epoch it is void (rule X3).
    pub(super) fn spend_verifications(&mut self, producer: ProducerId) {
        if let Role::Leader(leading) = &mut self.role {
            leading.verifications.forget(producer);
        }
    }

    /// Appends a marker, and answers when it is committed (rule X5).
    pub(super) fn end_transaction(&mut self, now: Now, token: Token, marker: &Marker, out: &mut Vec<Output>) {
        let append_time = now.wall.max(self.at_end.last_append_time);
        let verdict = self.judge_marker(append_time, marker);
        let appended = match verdict {
            Err(refusal) => return out.push(Output::Answer { token, result: Err(refusal) }),
            Ok(MarkerVerdict::Known) => {
                // It says all the same that whatever was verified before belongs to a transaction that is over.
                self.spend_verifications(marker.producer);
                // It may not be committed yet; all that is in the log now tells when it surely is.
                Appended { base: self.at_end.end, append_time }
            }
            Ok(MarkerVerdict::Append) => {
                self.place(append_time, Batch::of_marker(marker, append_time), append_time, out)
            }
        };
        self.await_offset(Acks::All, Waiter { end: self.at_end.end, token, appended }, out);
    }

    fn judge_marker(&self, append_time: TimestampMs, marker: &Marker) -> Result<MarkerVerdict, Refusal> {
        let lacks = self.admits(Acks::All)?;
        match self.at_end.producers_at(append_time).check_marker(marker)? {
            MarkerVerdict::Append => lacks.map_or(Ok(MarkerVerdict::Append), Err),
            known => Ok(known),
        }
    }
}

impl EndState {
    /// Aborted transactions whose markers were replayed or appended at or after `from`, by marker.
    pub fn aborted_since(&self, from: Offset) -> impl Iterator<Item = AbortedTxn> + '_ {
        self.ended.aborted().from(from)
    }

    /// Moves the producers' state past a batch, and notes the transaction that it ended.
    pub(super) fn note_write(
        &mut self,
        write: ProducerWrite,
        record_count: u32,
        base: Offset,
        append_time: TimestampMs,
    ) {
        if let Some(ended) = self.producers.append(write, record_count, base, append_time) {
            self.ended.push(ended);
        }
    }
}
