//! Transactions in one replica: how far everything is decided (rule X6), what was aborted (rule X7), and which producers were found
//! to have begun one (rule X3).
//!
//! It decides no outcome: that is the coordinator's, and comes as a marker (rule X5).

use super::leader::{Produce, Waiter};
use super::{Acks, Appended, EndState, Now, Output, Refusal, Replica, Role, Token};
use millpond_log::batch::ProducerWrite;
use millpond_log::limits::PARTITION_PRODUCERS_MAX;
use millpond_log::producers::{MarkerVerdict, ProducerError};
use millpond_log::transactions::{AbortedList, AbortedTxn, EndedTxn, Marker};
use millpond_log::{Batch, Offset, ProducerEpoch, ProducerId, TimestampMs};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// How long a verification holds without a batch that uses it, in milliseconds. Longer than a produce waits for its answer.
pub const VERIFICATION_MS: u64 = 60_000;

/// Names one verification of a producer's transaction (rule X3). Never used again, in any office of this replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VerificationToken(pub u64);

/// A batch that is not appended before the coordinator says that the partition is part of the producer's transaction (rule X3).
///
/// The driver keeps it, and behind it all that comes of this producer and epoch, in order. It asks the coordinator if it has not; a
/// yes is told by `Input::Verified`, and then all that was kept is produced again, in order. A no is its answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Unverified {
    /// Whom it waits for.
    pub producer: ProducerId,
    /// In which epoch.
    pub epoch: ProducerEpoch,
    /// What the answer has to name.
    pub verification: VerificationToken,
    /// The request, as it came.
    pub token: Token,
    /// Its batch.
    pub batch: Batch,
    /// Largest timestamp of its records.
    pub latest: TimestampMs,
    /// When to answer.
    pub acks: Acks,
}

/// What a coordinator answered to a verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    /// The producer.
    pub producer: ProducerId,
    /// Its epoch.
    pub epoch: ProducerEpoch,
    /// What was asked.
    pub verification: VerificationToken,
    /// Whether each of the client's transactions has an epoch of its own (rule X1): then one that is not known begins at sequence 0.
    pub epoch_per_transaction: bool,
}

/// Transactions that ended in the part of the log that is not in object storage.
#[derive(Clone, Debug, Default)]
pub struct EndedInTail {
    /// Those whose markers may still lie at or above the high watermark: (marker, first offset), by marker.
    undecided: VecDeque<(Offset, Offset)>,
    /// The first offsets of the same.
    firsts: BTreeSet<Offset>,
    aborted: Arc<AbortedList>,
}

impl EndedInTail {
    pub(super) fn push(&mut self, ended: EndedTxn) {
        self.undecided.push_back((ended.marker, ended.first));
        self.firsts.insert(ended.first);
        if let Some(aborted) = ended.aborted() {
            Arc::make_mut(&mut self.aborted).push(aborted);
        }
    }

    /// The high watermark reached `hw`: what ended below it stays ended.
    pub(super) fn decided(&mut self, hw: Offset) {
        while let Some((_, first)) = self.undecided.pop_front_if(|(marker, _)| *marker < hw) {
            self.firsts.remove(&first);
        }
    }
}

/// Which producers the coordinator was asked about, and what it said. Of one office: another leader asks for itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Verifications(BTreeMap<(ProducerId, ProducerEpoch), Verification>);

#[derive(Clone, Copy, Debug)]
struct Verification {
    token: VerificationToken,
    /// The answer, once it was yes: `Verified::epoch_per_transaction`.
    said: Option<bool>,
    /// Lowest sequence of the batches that wait or waited: a later one does not go first.
    lowest: i32,
    since_ms: u64,
}

impl Verifications {
    /// Whatever was found out about the producer holds no longer.
    fn forget(&mut self, producer: ProducerId) {
        let of_producer = (producer, ProducerEpoch(0))..=(producer, ProducerEpoch(u16::MAX));
        while let Some((&key, _)) = self.0.range(of_producer.clone()).next() {
            self.0.remove(&key);
        }
    }

    pub(super) fn expire(&mut self, now: Now) {
        self.0.retain(|_, verification| now.mono_ms.saturating_sub(verification.since_ms) < VERIFICATION_MS);
    }
}

impl Replica {
    /// Rule X6: everything below is committed and no transaction in it is undecided.
    pub(super) fn last_stable(&self) -> Offset {
        let open = self.at_end.producers.first_open();
        let undecided = self.at_end.ended.firsts.first().copied();
        let decided = open.into_iter().chain(undecided).chain(self.stable_bound).min();
        decided.map_or(self.hw, |first| first.min(self.hw))
    }

    /// Aborted transactions whose markers lie in the tail, for a view (rule F5). It may tell of some that the manifest tells of as well:
    /// a reader takes those whose markers lie at or after the tiered end of its manifest, `AbortedList::from`.
    #[must_use]
    pub fn aborted(&self) -> Arc<AbortedList> {
        Arc::clone(&self.at_end.ended.aborted)
    }

    /// Readers have a manifest from now on that tells of every marker below `tiered_end`.
    pub fn forget_aborted(&mut self, tiered_end: Offset) {
        let aborted = &mut self.at_end.ended.aborted;
        if !aborted.is_empty() {
            Arc::make_mut(aborted).forget_below(tiered_end);
        }
    }

    /// Raises the high watermark.
    pub(super) fn commit(&mut self, hw: Offset) {
        self.hw = hw;
        // While the log is taken apart, what ended may have to be opened again.
        if self.busy.is_none() {
            self.at_end.ended.decided(hw);
        }
    }

    /// What a transactional batch has to wait for, that is next in the log but for that: `None` if nothing (rule X3).
    pub(super) fn verification_for(
        &mut self,
        now: Now,
        write: ProducerWrite,
    ) -> Result<Option<VerificationToken>, ProducerError> {
        let stamp = write.stamp;
        if self.at_end.producers.in_transaction(stamp.id, stamp.epoch) {
            return Ok(None);
        }
        let known = self.at_end.producers.knows(stamp.id);
        let Role::Leader(leading) = &mut self.role else { return Ok(None) };
        let asked = &mut leading.verifications.0;
        if !asked.contains_key(&(stamp.id, stamp.epoch)) && asked.len() >= PARTITION_PRODUCERS_MAX {
            return Err(ProducerError::TooMany { max: PARTITION_PRODUCERS_MAX });
        }
        let verification = asked.entry((stamp.id, stamp.epoch)).or_insert_with(|| {
            self.verifications += 1;
            let token = VerificationToken(self.verifications);
            Verification { token, said: None, lowest: stamp.base_sequence, since_ms: now.mono_ms }
        });
        let Some(epoch_per_transaction) = verification.said else {
            if precedes(stamp.base_sequence, verification.lowest) {
                verification.lowest = stamp.base_sequence;
            }
            return Ok(Some(verification.token));
        };
        // Where the producer is known, its sequence tells what is next. Otherwise what waited goes first; and a transaction of an epoch
        // of its own begins at 0 (KIP-890).
        let (id, got) = (stamp.id, stamp.base_sequence);
        let (expected, in_order) = match epoch_per_transaction {
            true => (0, got == 0),
            false => (verification.lowest, !precedes(verification.lowest, got)),
        };
        if !known && !in_order {
            return Err(ProducerError::OutOfOrder { id, expected, got });
        }
        Ok(None)
    }

    /// Notes a coordinator's yes. One that comes after a marker, or after another epoch, or to another office is none (rule X3).
    pub(super) fn verified(&mut self, verified: Verified) {
        let Verified { producer, epoch, verification, epoch_per_transaction } = verified;
        let Role::Leader(leading) = &mut self.role else { return };
        if let Some(asked) = leading.verifications.0.get_mut(&(producer, epoch))
            && asked.token == verification
        {
            asked.said = Some(epoch_per_transaction);
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

    fn judge_marker(&mut self, append_time: TimestampMs, marker: &Marker) -> Result<MarkerVerdict, Refusal> {
        let lacks = self.admits(Acks::All)?;
        self.at_end.expire(append_time);
        match self.at_end.producers.check_marker(marker)? {
            MarkerVerdict::Append => lacks.map_or(Ok(MarkerVerdict::Append), Err),
            known => Ok(known),
        }
    }

    /// Hands a batch back that has to be verified first.
    pub(super) fn hand_back(produce: Produce, write: ProducerWrite, verification: VerificationToken) -> Output {
        let Produce { token, batch, latest, acks } = produce;
        let (producer, epoch) = (write.stamp.id, write.stamp.epoch);
        Output::Verify(Unverified { producer, epoch, verification, token, batch, latest, acks })
    }
}

impl EndState {
    /// Aborted transactions whose markers were replayed or appended at or after `from`, by marker.
    pub fn aborted_since(&self, from: Offset) -> impl Iterator<Item = AbortedTxn> + '_ {
        self.ended.aborted.from(from)
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

/// Whether one sequence number comes before another: they wrap, so half of them lie before each.
fn precedes(one: i32, other: i32) -> bool {
    let steps = other.wrapping_sub(one) & i32::MAX;
    0 < steps && steps < 1 << 30
}
