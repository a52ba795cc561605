//! One partition's batches on their way: order, sequences, retries, expiry. Pure: time and the random part are arguments.
//!
//! Upholds the client's half of rules P1 to P6: a sequence is never skipped; a batch whose outcome is unknown is sent again
//! unchanged; a number is given to other records only once it is known that the batch which had it is not in the log.

use super::batch::{RecordBatch, Written};
use crate::backoff::Backoff;
use crate::error::Error;
use millpond_log::ErrorCode;
use millpond_log::batch::{Batch, ProducerStamp};
use millpond_log::limits::PRODUCER_EXPIRY_MS;
use millpond_log::{ProducerEpoch, ProducerId};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;

/// Highest epoch a producer may use (rule X1); after it comes a new id.
const EPOCH_MAX: ProducerEpoch = ProducerEpoch(32_766);

/// How long a leader is taken to know a producer after it took a batch of it: far less than producers are remembered for.
const KNOWN_FOR: Duration = Duration::from_secs(3600);

const _: () =
    assert!((KNOWN_FOR.as_secs() * 1000 * 2) < PRODUCER_EXPIRY_MS as u64, "a producer is known for longer than that");

/// How long an answer is waited for before the client asks who leads.
pub(super) const LEADER_PATIENCE: Duration = Duration::from_secs(1);

/// A connection that carries batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LinkId(pub(super) u64);

/// A batch that was handed to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RequestId(pub(super) u64);

/// Who writes, in this partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) id: ProducerId,
    pub(crate) epoch: ProducerEpoch,
}

/// How all lanes of a producer behave.
#[derive(Clone, Debug)]
pub(super) struct LaneConfig {
    pub(super) idempotent: bool,
    /// Batches are of one transaction: its epoch is its coordinator's to raise, and what is given up takes the whole of it along.
    pub(super) transactional: bool,
    pub(super) max_in_flight: usize,
    pub(super) delivery_timeout: Duration,
    pub(super) answer_timeout: Duration,
    pub(super) backoff: Backoff,
}

/// The batches of one partition that are not answered, in order.
#[derive(Default)]
pub(super) struct Lane {
    entries: VecDeque<Entry>,
    identity: Option<Identity>,
    next_sequence: i32,
    /// An identity that must not be used again.
    spent: Option<ProducerId>,
    /// A batch was given up after it had got its sequence: those behind it cannot follow without an epoch of their own.
    gap: bool,
    failures: u32,
    resume_at: Option<Instant>,
    /// The leader that was known is not the leader, or cannot be reached.
    stale: bool,
    /// Why the last try failed, for the error of what is given up.
    trouble: Option<Error>,
    /// Over which connection, and when, a batch of this identity was last written. A broker that does not know a producer takes it at
    /// any sequence, so that it would not see what is missing: the first batch goes alone, until it is known to know.
    known: Option<(LinkId, Instant)>,
    /// Why the transaction cannot be committed any more.
    doom: Option<Error>,
}

struct Entry {
    batch: RecordBatch,
    stamp: Option<ProducerStamp>,
    state: State,
    /// Some try of it ended without an answer: it may be in the log.
    in_doubt: bool,
    /// Since when an answer is owed, over whichever connection; each answer ends it.
    owed: Option<Instant>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Not sent under its stamp, or without one yet.
    Fresh,
    /// Sent, and not answered.
    InFlight { request: RequestId, link: LinkId, since: Instant },
    /// Sent before; to be sent again unchanged.
    Again,
    /// Refused for its sequence or epoch while nothing before it was open: it is not in the log, nor is what is behind it.
    Renumber,
}

/// What a lane asks of its owner before it can send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Nothing: there is nothing to send now.
    Nothing,
    /// A producer id that is not this one.
    Identity { not: Option<ProducerId> },
    /// To be called with a connection to the leader.
    Link,
}

impl Lane {
    /// Adds a batch at the end.
    pub(super) fn push(&mut self, batch: RecordBatch) {
        self.entries.push_back(Entry { batch, stamp: None, state: State::Fresh, in_doubt: false, owed: None });
    }

    /// Whether everything was answered.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether another batch could be sent as soon as it is there.
    pub(super) fn has_room(&self, config: &LaneConfig) -> bool {
        self.entries.len() < config.max_in_flight
    }

    /// Whether the leader should be asked for.
    pub(super) fn is_stale(&self) -> bool {
        self.stale
    }

    /// The leader was asked for.
    pub(super) fn refreshed(&mut self) {
        self.stale = false;
    }

    /// Nobody leads the partition, as far as is known.
    pub(super) fn leaderless(&mut self, why: Error, now: Instant, random: f64, config: &LaneConfig) {
        (self.stale, self.trouble) = (true, Some(why));
        self.pause(now, random, None, config);
    }

    /// What it takes to send the next batch. Starts a new epoch where that is due.
    pub(super) fn need(&mut self, now: Instant, config: &LaneConfig) -> Need {
        let Some(next) = self.sendable(now, config) else { return Need::Nothing };
        if !config.idempotent {
            return Need::Link;
        }
        let head_is_void = self.entries[0].state == State::Renumber;
        // With a gap, new numbers begin only when all that was sent is settled: then the first entry is a fresh one.
        let gap_is_next = self.gap && self.entries[next].stamp.is_none();
        if gap_is_next && next > 0 {
            return Need::Nothing;
        }
        if config.transactional && (head_is_void || gap_is_next) {
            self.doom.get_or_insert_with(|| {
                let trouble = self.trouble.clone();
                trouble
                    .unwrap_or_else(|| Error::new(ErrorCode::OutOfOrderSequenceNumber, "a batch before was given up"))
            });
            return Need::Nothing;
        }
        if head_is_void || gap_is_next {
            self.renumber();
        }
        if self.identity.is_none() && self.entries[next].stamp.is_none() {
            return Need::Identity { not: self.spent };
        }
        Need::Link
    }

    /// Takes a producer id. Sequences begin at 0.
    pub(super) fn identify(&mut self, identity: Identity) {
        (self.identity, self.next_sequence, self.gap, self.known) = (Some(identity), 0, false, None);
    }

    /// The next batch, as it goes over `link`. Call only after `need` said `Link`, until it no longer does.
    ///
    /// `None` while batches are in flight on another link: they come first.
    pub(super) fn send(
        &mut self,
        now: Instant,
        link: LinkId,
        request: RequestId,
        config: &LaneConfig,
    ) -> Option<Batch> {
        let next = self.sendable(now, config)?;
        let elsewhere = |entry: &Entry| matches!(entry.state, State::InFlight { link: other, .. } if other != link);
        if self.entries.iter().any(elsewhere) {
            return None;
        }
        let known = self.known.is_some_and(|(over, at)| over == link && now < at + KNOWN_FOR);
        // Answers come in order, so whatever is in flight stands before it.
        if config.idempotent && !known && next > 0 {
            return None;
        }
        let entry = &mut self.entries[next];
        if config.idempotent && entry.stamp.is_none() {
            let Identity { id, epoch } = self.identity.expect("`need` asked for it");
            entry.stamp = Some(ProducerStamp { id, epoch, base_sequence: self.next_sequence });
            self.next_sequence = sequence_after(self.next_sequence, entry.batch.count());
        }
        entry.state = State::InFlight { request, link, since: now };
        entry.owed.get_or_insert(now);
        Some(entry.batch.encode(entry.stamp))
    }

    /// Takes back the batch just sent and counts it as written: nobody will answer it.
    pub(super) fn sent_without_answer(&mut self, request: RequestId, now: Instant) {
        if let Some(index) = self.find(request) {
            self.complete(index, Written::default(), now);
        }
    }

    /// The first batch that is not in flight, if it may go now.
    fn sendable(&self, now: Instant, config: &LaneConfig) -> Option<usize> {
        if self.stale || self.resume_at.is_some_and(|at| now < at) {
            return None;
        }
        let in_flight = |entry: &Entry| matches!(entry.state, State::InFlight { .. });
        let next = self.entries.iter().position(|entry| !in_flight(entry))?;
        // What was sent behind it has to be settled first, or its outcome could not be told from a reordering.
        let settled = !self.entries.iter().skip(next).any(in_flight);
        // A void head is renumbered with all that follows, so nothing may be in flight at all.
        let void = self.entries[next].state == State::Renumber;
        (settled && next < config.max_in_flight && (!void || next == 0)).then_some(next)
    }

    /// Starts a new epoch at sequence 0 for everything unanswered. Nothing is in flight, and none of it is in the log.
    fn renumber(&mut self) {
        for entry in &mut self.entries {
            (entry.stamp, entry.state, entry.in_doubt, entry.owed) = (None, State::Fresh, false, None);
        }
        (self.gap, self.next_sequence, self.known) = (false, 0, None);
        self.identity = match self.identity {
            Some(Identity { id, epoch }) if epoch < EPOCH_MAX => {
                Some(Identity { id, epoch: ProducerEpoch(epoch.0 + 1) })
            }
            Some(Identity { id, .. }) => {
                self.spent = Some(id);
                None
            }
            None => None,
        };
    }

    /// Takes in an answer. One to a request that was given up is ignored.
    pub(super) fn answered(
        &mut self,
        request: RequestId,
        answer: Result<Written, Error>,
        now: Instant,
        random: f64,
        config: &LaneConfig,
    ) {
        let Some(index) = self.find(request) else { return };
        let error = match answer {
            Ok(written) => return self.complete(index, written, now),
            Err(error) => error,
        };
        self.entries[index].owed = None;
        match error.code {
            // Written by an earlier try, so long ago that the broker no longer knows where.
            Some(ErrorCode::DuplicateSequenceNumber) if config.idempotent => {
                return self.complete(index, Written::default(), now);
            }
            Some(
                ErrorCode::OutOfOrderSequenceNumber | ErrorCode::UnknownProducerId | ErrorCode::InvalidProducerEpoch,
            ) if config.idempotent => {
                self.refused_for_order(index, &error);
            }
            // In doubt it may be in the log whole, and its halves would not be recognised as the same.
            Some(ErrorCode::MessageTooLarge) if !self.entries[index].in_doubt => match self.split(index) {
                Ok(()) => return,
                Err(()) => return self.give_up(index, &error),
            },
            _ if error.retriable => {
                let entry = &mut self.entries[index];
                (entry.state, entry.in_doubt) = (State::Again, entry.in_doubt || error.maybe_done);
            }
            _ => return self.give_up(index, &error),
        }
        self.stale |= error.metadata_is_stale();
        self.pause(now, random, error.retry_after, config);
        self.trouble = Some(error);
    }

    /// The broker expected another sequence or epoch. Answers come in order, so with others open before it the batch was
    /// only sent too early; at the head the broker does not know what went before, and a new epoch is needed.
    fn refused_for_order(&mut self, index: usize, error: &Error) {
        self.entries[index].state = if index > 0 { State::Again } else { State::Renumber };
        if index == 0 && error.code == Some(ErrorCode::InvalidProducerEpoch) {
            self.trouble = Some(error.clone());
            // Someone writes with a higher epoch of this id: only a new id is ours alone.
            self.spent = self.identity.take().map(|identity| identity.id);
        }
    }

    /// A connection broke: whatever it carried is in doubt. Returns whether it carried anything.
    pub(super) fn link_broke(&mut self, link: LinkId, now: Instant, random: f64, config: &LaneConfig) -> bool {
        let mut carried = false;
        for entry in &mut self.entries {
            if matches!(entry.state, State::InFlight { link: on, .. } if on == link) {
                (entry.state, entry.in_doubt, carried) = (State::Again, true, true);
            }
        }
        if carried {
            self.stale = true;
            self.pause(now, random, None, config);
        }
        carried
    }

    /// What was refused may go again at once: another leads than the one that refused it, and it is known who.
    pub(super) fn redirected(&mut self) {
        (self.stale, self.resume_at) = (false, None);
    }

    /// The connection that carries what is owed an answer for longer than a leader that is well takes: perhaps another leads by now. A
    /// leader that was silent on one connection gets no more time on the next.
    pub(super) fn suspicious(&self, now: Instant) -> Option<LinkId> {
        self.entries.iter().find_map(|entry| match entry.state {
            State::InFlight { link, .. } if entry.owed.is_some_and(|owed| now >= owed + LEADER_PATIENCE) => Some(link),
            _ => None,
        })
    }

    /// How many batches are in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.entries.iter().filter(|entry| matches!(entry.state, State::InFlight { .. })).count()
    }

    /// The connection that carries batches, if any are in flight.
    pub(super) fn carrier(&self) -> Option<LinkId> {
        self.entries.iter().find_map(|entry| match entry.state {
            State::InFlight { link, .. } => Some(link),
            _ => None,
        })
    }

    /// The connection that owes an answer for too long.
    pub(super) fn overdue(&self, now: Instant, config: &LaneConfig) -> Option<LinkId> {
        self.entries.iter().find_map(|entry| match entry.state {
            State::InFlight { link, since, .. } if now >= since + config.answer_timeout => Some(link),
            _ => None,
        })
    }

    /// Gives up batches that are older than the delivery timeout.
    pub(super) fn expire(&mut self, now: Instant, config: &LaneConfig) {
        while self.entries.front().is_some_and(|entry| now >= entry.batch.created() + config.delivery_timeout) {
            let head = &self.entries[0];
            let in_doubt = head.in_doubt || matches!(head.state, State::InFlight { .. });
            let what = if in_doubt { "not acknowledged; it may have been written" } else { "not sent" };
            let why = self.trouble.as_ref().map_or(String::new(), |error| format!(": {error}"));
            let message = format!("{what} within {:?} (delivery timeout){why}", config.delivery_timeout);
            let error = Error { maybe_done: in_doubt, ..Error::new(ErrorCode::RequestTimedOut, message) };
            self.give_up(0, &error.given_up());
        }
    }

    /// Why the transaction that the batches are of cannot be committed any more, if that is so.
    pub(super) fn doom(&self) -> Option<&Error> {
        self.doom.as_ref()
    }

    /// Gives up everything.
    pub(super) fn abandon(&mut self, error: &Error) {
        while let Some(entry) = self.entries.pop_front() {
            let in_doubt = entry.in_doubt || matches!(entry.state, State::InFlight { .. });
            entry.batch.fail(&Error { maybe_done: in_doubt, ..error.clone() });
        }
    }

    /// When something is to be done without an answer: the end of a pause, an expiry, an overdue answer.
    pub(super) fn deadline(&self, now: Instant, config: &LaneConfig) -> Option<Instant> {
        let head = self.entries.front()?;
        let expiry = head.batch.created() + config.delivery_timeout;
        let overdue = self.entries.iter().filter_map(|entry| match entry.state {
            State::InFlight { since, .. } => Some(since + config.answer_timeout),
            _ => None,
        });
        let suspicion = self.entries.iter().filter_map(|entry| match entry.state {
            State::InFlight { .. } => Some(entry.owed? + LEADER_PATIENCE).filter(|at| *at > now),
            _ => None,
        });
        overdue.chain(suspicion).chain(self.resume_at.filter(|at| *at > now)).chain([expiry]).min()
    }

    fn find(&self, request: RequestId) -> Option<usize> {
        let carries =
            |entry: &Entry| matches!(entry.state, State::InFlight { request: carried, .. } if carried == request);
        self.entries.iter().position(carries)
    }

    fn complete(&mut self, index: usize, written: Written, now: Instant) {
        let entry = self.entries.remove(index).expect("found above");
        if let State::InFlight { link, .. } = entry.state {
            self.known = Some((link, now));
        }
        (self.failures, self.resume_at, self.trouble) = (0, None, None);
        entry.batch.complete(written);
    }

    fn give_up(&mut self, index: usize, error: &Error) {
        let entry = self.entries.remove(index).expect("found above");
        self.gap |= entry.stamp.is_some();
        self.doom.get_or_insert_with(|| error.clone());
        entry.batch.fail(&Error { maybe_done: error.maybe_done || entry.in_doubt, ..error.clone() });
    }

    /// Puts two halves in place of a batch that was too large. They share its sequence numbers, which are free: it is not
    /// in the log.
    fn split(&mut self, index: usize) -> Result<(), ()> {
        let Entry { batch, stamp, in_doubt, owed, .. } = self.entries.remove(index).expect("found above");
        let halves = match batch.split() {
            Ok(halves) => halves,
            Err(batch) => {
                self.entries.insert(index, Entry { batch: *batch, stamp, state: State::Again, in_doubt, owed });
                return Err(());
            }
        };
        let second_stamp = stamp.map(|stamp| ProducerStamp {
            base_sequence: sequence_after(stamp.base_sequence, halves.0.count()),
            ..stamp
        });
        let entry = |batch, stamp| Entry { batch, stamp, state: State::Again, in_doubt: false, owed: None };
        self.entries.insert(index, entry(halves.1, second_stamp));
        self.entries.insert(index, entry(halves.0, stamp));
        Ok(())
    }

    fn pause(&mut self, now: Instant, random: f64, asked: Option<Duration>, config: &LaneConfig) {
        // Batches refused behind the first are its echo, not further failures.
        if self.resume_at.is_none_or(|at| at <= now) {
            self.failures += 1;
        }
        let backoff = config.backoff.pause(self.failures, random);
        let resume_at = now + asked.map_or(backoff, |asked| asked.max(backoff));
        self.resume_at = Some(self.resume_at.map_or(resume_at, |at| at.max(resume_at)));
    }
}

/// The sequence after `count` records; wraps from `i32::MAX` to 0.
fn sequence_after(base: i32, count: u32) -> i32 {
    let next = (i64::from(base) + i64::from(count)) % (1 << 31);
    i32::try_from(next).expect("below 2^31")
}

#[cfg(test)]
mod tests;
