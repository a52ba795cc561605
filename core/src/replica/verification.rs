//! Which producers a leader has asked their coordinators about, and what was said (rule X3).
//!
//! It asks nobody: it remembers, for as long as nothing happens to the producer in this log.

use super::{Now, VerificationToken, Verified};
use millpond_log::batch::ProducerStamp;
use millpond_log::producers::precedes;
use millpond_log::{LeaderEpoch, ProducerEpoch, ProducerId};
use std::collections::BTreeMap;

/// How long a verification holds without a batch that uses it, in milliseconds. Longer than a produce waits for its answer.
pub const VERIFICATION_MS: u64 = 60_000;

/// Which producers the coordinator was asked about, and what it said. Of one office: another leader asks for itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Verifications {
    open: BTreeMap<(ProducerId, ProducerEpoch), Verification>,
    /// Questions so far.
    asked: u64,
}

#[derive(Clone, Copy, Debug)]
struct Verification {
    token: VerificationToken,
    /// The answer, once it was yes: `Verified::epoch_per_transaction`.
    said: Option<bool>,
    /// Lowest sequence of the batches that wait or waited: a later one does not go first.
    lowest: i32,
    since_ms: u64,
}

/// What is known of a transaction that a batch would begin.
pub(super) enum Found {
    /// Its batches wait for an answer to this.
    Asked(VerificationToken),
    /// It may begin, with this sequence number or an earlier one where nothing else tells what is next.
    Verified {
        /// The first one.
        expected: i32,
        /// Whether the batch is.
        in_order: bool,
    },
}

impl Verifications {
    /// Looks a batch's transaction up, and notes that it waits if there is no answer. `None` if nothing was asked yet.
    pub(super) fn find(&mut self, stamp: ProducerStamp) -> Option<Found> {
        let verification = self.open.get_mut(&(stamp.id, stamp.epoch))?;
        let got = stamp.base_sequence;
        Some(match verification.said {
            None => {
                if precedes(got, verification.lowest) {
                    verification.lowest = got;
                }
                Found::Asked(verification.token)
            }
            // A transaction of an epoch of its own begins at 0 (KIP-890); of others, what waited goes first.
            Some(true) => Found::Verified { expected: 0, in_order: got == 0 },
            Some(false) => {
                let expected = verification.lowest;
                Found::Verified { expected, in_order: !precedes(expected, got) }
            }
        })
    }

    /// Asks. A question of this office, which has `office` for its epoch.
    pub(super) fn ask(&mut self, now: Now, stamp: ProducerStamp, office: LeaderEpoch) -> VerificationToken {
        self.asked += 1;
        let token = VerificationToken { office, number: self.asked };
        let (lowest, since_ms) = (stamp.base_sequence, now.mono_ms);
        self.open.insert((stamp.id, stamp.epoch), Verification { token, said: None, lowest, since_ms });
        token
    }

    /// Notes a yes, if it is to what was asked.
    pub(super) fn note(&mut self, verified: Verified) {
        let Verified { producer, epoch, verification, epoch_per_transaction } = verified;
        if let Some(asked) = self.open.get_mut(&(producer, epoch))
            && asked.token == verification
        {
            asked.said = Some(epoch_per_transaction);
        }
    }

    /// How many were asked about.
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// Whatever was found out about the producer holds no longer.
    pub(super) fn forget(&mut self, producer: ProducerId) {
        let of_producer = (producer, ProducerEpoch(0))..=(producer, ProducerEpoch(u16::MAX));
        while let Some((&key, _)) = self.open.range(of_producer.clone()).next() {
            self.open.remove(&key);
        }
    }

    /// Forgets what is too old.
    pub(super) fn expire(&mut self, now: Now) {
        self.open.retain(|_, verification| now.mono_ms.saturating_sub(verification.since_ms) < VERIFICATION_MS);
    }
}
