//! One replica of one partition: what it appends, when that counts as committed, whom it answers (rules R1 to R12, I1 to I8, P3, P4,
//! X3, X5 to X7).
//!
//! It holds no bytes of the log and knows no disk and no wire: batches pass through it on their way to the WAL, which reports what
//! is durable, and what it says to other replicas is carried by the driver.

mod ended;
mod follower;
mod isr;
mod leader;
mod push;
mod step;
mod transactions;
mod transfer;
mod verification;

pub use ended::EndedInTail;
pub use isr::{Proposal, removal, won};
pub use push::{Cursor, Placed, Push, PushHead, PushReply, Said};
pub use step::{
    Acks, Appended, Assignment, EndState, Fault, Input, Installed, Live, Mark, Now, Output, Refusal, Token, Unverified,
    VerificationToken, Verified, Visible,
};
pub use transfer::Transfer;
pub use verification::VERIFICATION_MS;

use crate::records::PartitionRecord;
use crate::rules::{Rule, Rules};
use ended::StableBound;
use follower::{Busy, Stream};
use leader::{Leading, Produce};
use millpond_log::batch::{ProducerWrite, TimestampType};
use millpond_log::epochs::LeaderEpochs;
use millpond_log::limits::{PARTITION_PRODUCERS_MAX, PRODUCER_EXPIRY_MS};
use millpond_log::manifest::ManifestRoot;
use millpond_log::producers::{ProducerTable, ProducersAt, Refused};
use millpond_log::{Batch, BrokerId, Incarnation, LeaderEpoch, Offset, Rid, TimestampMs};
use std::collections::VecDeque;

/// The state a replica starts from: what its WAL and its manifest hold.
#[derive(Clone, Debug)]
pub struct Recovered {
    /// Which replica this is.
    pub rid: Rid,
    /// Highest epoch seen (rule R4).
    pub epoch_seen: LeaderEpoch,
    /// First offset that exists.
    pub log_start: Offset,
    /// First offset not in object storage.
    pub tiered_end: Offset,
    /// High watermark as last persisted; not above `at_end.end`.
    pub hw: Offset,
    /// State at the log end; everything below is durable (rule W3a), the uncommitted tail replayed (rule P4).
    pub at_end: EndState,
    /// Epochs of the whole log.
    pub epochs: LeaderEpochs,
    /// `message.timestamp.type`.
    pub timestamp_type: TimestampType,
    /// `replica.lag.time.max.ms`: how long a follower may lag and stay in the ISR (rule I6).
    pub lag_time_ms: u64,
    /// The rules to uphold: all of them.
    pub rules: Rules,
}

/// One replica of one partition.
#[derive(Clone, Debug)]
pub struct Replica {
    rules: Rules,
    rid: Rid,
    inc: Option<Incarnation>,
    epoch_seen: LeaderEpoch,
    epoch_durable: LeaderEpoch,
    /// Highest epoch in which this replica has led and no longer does, or may have led before it was opened: it never leads in it again
    /// (rule B2). Whoever took an office twice would not know what it has proposed in it (rule I3).
    abdicated: LeaderEpoch,
    log_start: Offset,
    tiered_end: Offset,
    durable: Offset,
    trimmed: Offset,
    hw: Offset,
    /// The newest unclean epoch for which the high watermark was taken from its leader (rule E7).
    unclean_met: Option<LeaderEpoch>,
    at_end: EndState,
    /// Set where the high watermark fell: markers that were below it are not any more (rule X6).
    stable_bound: Option<StableBound>,
    epochs: LeaderEpochs,
    timestamp_type: TimestampType,
    lag_time_ms: u64,
    mark: Mark,
    /// What is on its way to the disk, in order.
    unsynced: VecDeque<(Mark, Written)>,
    /// The log is being taken apart: until it stands again, nothing is appended and no office taken.
    busy: Option<Busy>,
    assigned: Option<Assignment>,
    /// Who was refused here, in whatever role, and will come again: those that write in transactions, and the others (rule P6).
    refused: Refused<bool>,
    min_isr_wanted: Option<u32>,
    role: Role,
}

#[derive(Clone, Copy, Debug)]
enum Written {
    /// The log up to here.
    End(Offset),
    Epoch(LeaderEpoch),
}

// One of each per replica; the leader's is the large one, and there are as many leaders as partitions.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug)]
enum Role {
    Follower { leader: Option<BrokerId>, stream: Option<Stream> },
    Leader(Leading),
}

impl Replica {
    /// A replica that follows nobody yet.
    ///
    /// Panics if the recovered offsets contradict each other: the driver checks what it read before (S9).
    #[must_use]
    pub fn new(from: Recovered) -> Replica {
        let end = from.at_end.end;
        assert!(from.tiered_end <= end, "the log ends at or after what is tiered");
        assert!(from.hw <= end, "rule R10: a persisted high watermark was durable");
        // What the manifest holds was committed (S8), whatever was persisted here.
        let hw = from.hw.max(from.tiered_end);
        let mut at_end = from.at_end;
        at_end.ended.decided(hw);
        Replica {
            rules: from.rules,
            rid: from.rid,
            inc: None,
            epoch_seen: from.epoch_seen,
            epoch_durable: from.epoch_seen,
            abdicated: if from.rules.uphold(Rule::EpochPerOffice) { from.epoch_seen } else { LeaderEpoch(0) },
            log_start: from.log_start,
            tiered_end: from.tiered_end,
            durable: end,
            trimmed: from.tiered_end,
            hw,
            unclean_met: None,
            at_end,
            stable_bound: None,
            epochs: from.epochs,
            timestamp_type: from.timestamp_type,
            lag_time_ms: from.lag_time_ms,
            mark: Mark(0),
            unsynced: VecDeque::new(),
            busy: None,
            assigned: None,
            refused: Refused::at_most(PARTITION_PRODUCERS_MAX),
            min_isr_wanted: None,
            role: Role::Follower { leader: None, stream: None },
        }
    }

    /// Takes one input; appends what to do to `out`.
    pub fn step(&mut self, now: Now, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::Session(inc) => self.note_session(inc, out),
            Input::Assigned(assignment) => self.note_assignment(now, assignment, out),
            Input::Produce { token, batch, latest, acks, behind } => {
                self.produce(now, Produce { token, batch, latest, acks, behind }, out);
            }
            Input::Refused(write) => self.note_refused(now, write),
            Input::Verified(verified) => self.verified(verified),
            Input::EndTransaction { token, marker } => self.end_transaction(now, token, &marker, out),
            Input::Durable(mark) => self.note_durable(now, mark, out),
            Input::Push(push) => self.on_push(push, out),
            Input::Reply(reply) => self.note_reply(now, reply, out),
            Input::Reconnected(broker) => self.restart_cursor(broker, None, out),
            Input::Unreachable(broker) => {
                self.note_unreachable(broker);
                self.consider_isr(now, out);
            }
            Input::CursorTrimmed { nonce, to, start } => self.restart_trimmed(nonce, to, start, out),
            Input::Rebuilt(state) => self.rebuilt(now, state, out),
            Input::Installed(installed) => self.installed(now, installed, out),
            Input::ProposalFailed { base } => self.proposal_failed(now, base, out),
            Input::MinIsr(min_isr) => {
                self.min_isr_wanted = Some(min_isr);
                self.consider_isr(now, out);
            }
            Input::Manifest { log_start, tiered_end, epoch } => {
                // Rule S8: a later leader's manifest is of a log that may part from this one. Whoever was deposed and has not heard of
                // it must neither take its own records for committed nor the other's for a fault: he hears of it as a follower.
                let deposed = matches!(&self.role, Role::Leader(leading) if epoch > leading.record.epoch);
                if !deposed {
                    self.note_manifest(log_start, tiered_end, out);
                }
            }
            Input::OfficeManifest { office, log_start, tiered_end, epoch } => {
                let Role::Leader(leading) = &mut self.role else { return };
                // Read after a later leader's change it says where that one's log starts; see `Manifest`.
                if leading.record.epoch != office || epoch > office {
                    return;
                }
                leading.start_proven = true;
                self.note_manifest(log_start, tiered_end, out);
                out.push(Output::Publish);
            }
            Input::TimestampType(kind) => self.timestamp_type = kind,
            Input::Transfer(wish) => {
                self.take_wish(now, wish);
                self.consider_isr(now, out);
            }
            Input::Tick => {
                if let Role::Leader(leading) = &mut self.role {
                    leading.verifications.expire(now);
                }
                self.consider_isr(now, out);
            }
        }
    }

    /// What readers may know now.
    #[must_use]
    pub fn visible(&self) -> Visible {
        let (leads, end_proven, start_proven) = match &self.role {
            Role::Leader(leading) => (true, self.hw >= leading.leso, leading.start_proven),
            Role::Follower { .. } => (false, false, false),
        };
        Visible {
            epoch: self.epoch_seen,
            leads,
            log_start: self.log_start,
            tiered_end: self.tiered_end,
            hw: self.hw,
            lso: self.last_stable(),
            end: self.at_end.end,
            end_proven,
            start_proven,
        }
    }

    /// Which replica this is.
    #[must_use]
    pub fn rid(&self) -> Rid {
        self.rid
    }

    /// End of what is durable here.
    #[must_use]
    pub fn durable(&self) -> Offset {
        self.durable
    }

    /// Chained hash at the log end (S6).
    #[must_use]
    pub fn prefix_hash(&self) -> u64 {
        self.at_end.prefix_hash
    }

    /// The high watermark as it may be persisted now: durable when it is written (rule R10).
    #[must_use]
    pub fn hw_to_persist(&self) -> Offset {
        if self.rules.uphold(Rule::HighWatermarkDurable) { self.hw.min(self.durable) } else { self.hw }
    }

    /// Epochs of the whole log.
    #[must_use]
    pub fn epochs(&self) -> &LeaderEpochs {
        &self.epochs
    }

    /// Producer state at the log end.
    #[must_use]
    pub fn producers(&self) -> &ProducerTable {
        &self.at_end.producers
    }

    /// The record this replica goes by, and its revision, if it leads.
    #[must_use]
    pub fn leading(&self) -> Option<(&PartitionRecord, u64)> {
        match &self.role {
            Role::Leader(leading) => Some((&leading.record, leading.revision)),
            Role::Follower { .. } => None,
        }
    }

    /// Whether it has to hear that time passes: a leader with others to wait for, or with questions that get old.
    #[must_use]
    pub fn wants_ticks(&self) -> bool {
        let Role::Leader(leading) = &self.role else { return false };
        leading.record.replicas.len() > 1 || leading.verifications.len() > 0
    }

    /// Whether all that was handed to the WAL is durable.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.unsynced.is_empty()
    }

    /// Hands out marks that are behind `marks` from now on: others were handed out for a replica that was here before, and what becomes durable
    /// of it may still be told.
    pub fn begin_marks_behind(&mut self, marks: Mark) {
        assert!(self.is_settled(), "nothing of it is under way");
        self.mark = self.mark.max(marks);
    }

    /// How far the log is known to be committed: what is here, or what a leader has said that is not.
    #[must_use]
    pub fn known_committed(&self) -> Offset {
        match &self.role {
            Role::Follower { stream: Some(stream), .. } => self.hw.max(stream.head.hw),
            Role::Follower { .. } | Role::Leader(_) => self.hw,
        }
    }

    fn note_session(&mut self, inc: Option<Incarnation>, out: &mut Vec<Output>) {
        if self.inc != inc {
            self.inc = inc;
            // Rule B3: without its session, or with another one, a broker leads nothing.
            self.step_down(self.epoch_seen, None, out);
        }
    }

    fn note_assignment(&mut self, now: Now, assignment: Assignment, out: &mut Vec<Output>) {
        if self.assigned.as_ref().is_some_and(|seen| seen.revision > assignment.revision) {
            return;
        }
        self.assigned = Some(assignment);
        self.act_on_assignment(now, out);
    }

    /// Takes, keeps or leaves office as the newest record says; not while the log is taken apart.
    fn act_on_assignment(&mut self, now: Now, out: &mut Vec<Output>) {
        if self.busy.is_some() {
            return;
        }
        let Some(assigned) = self.assigned.clone() else { return };
        let record = &assigned.record;
        if record.epoch < self.epoch_seen {
            return;
        }
        let same_office = |inc| self.inc == Some(inc) || !self.rules.uphold(Rule::EpochPerOffice);
        let mine = record.leader.is_some_and(|leader| leader.rid == self.rid && same_office(leader.inc));
        match &self.role {
            Role::Leader(leading) if leading.record.epoch == record.epoch => self.confirm(now, assigned, out),
            _ if mine && record.epoch > self.abdicated => self.take_office(now, assigned, out),
            _ => self.step_down(record.epoch, record.leader.map(|leader| leader.rid.broker), out),
        }
    }

    /// Leads no longer, if it did; follows whoever leads in `epoch`.
    fn step_down(&mut self, epoch: LeaderEpoch, leader: Option<BrokerId>, out: &mut Vec<Output>) {
        self.see_epoch(epoch, out);
        if let Role::Follower { leader: known, stream } = &mut self.role {
            *known = leader.or(*known);
            if stream.as_ref().is_some_and(|stream| stream.head.epoch < epoch) {
                *stream = None;
            }
            return;
        }
        let deposed = std::mem::replace(&mut self.role, Role::Follower { leader, stream: None });
        let Role::Leader(old) = deposed else { unreachable!("the other role has returned") };
        self.abdicated = self.abdicated.max(old.record.epoch);
        for waiter in old.waiting_durable.into_iter().chain(old.waiting_commit) {
            out.push(Output::Answer { token: waiter.token, result: Err(Refusal::Deposed { leader }) });
        }
        out.extend(old.followers.into_keys().map(Output::Unfollow));
        out.push(Output::Publish);
    }

    fn see_epoch(&mut self, epoch: LeaderEpoch, out: &mut Vec<Output>) {
        if epoch > self.epoch_seen {
            self.epoch_seen = epoch;
            let mark = self.written(Written::Epoch(epoch));
            out.push(Output::PersistEpoch { epoch, mark });
            // Readers name the epoch that they know (rule F2).
            out.push(Output::Publish);
        }
    }

    fn written(&mut self, written: Written) -> Mark {
        self.mark.0 += 1;
        self.unsynced.push_back((self.mark, written));
        self.mark
    }

    fn note_durable(&mut self, now: Now, mark: Mark, out: &mut Vec<Output>) {
        assert!(mark <= self.mark, "only what was handed out becomes durable");
        while let Some((_, written)) = self.unsynced.pop_front_if(|(known, _)| *known <= mark) {
            match written {
                Written::End(end) => self.durable = self.durable.max(end),
                Written::Epoch(epoch) => self.epoch_durable = epoch,
            }
        }
        self.trim(out);
        match &self.role {
            Role::Leader(_) => {
                self.advance(out);
                self.consider_isr(now, out);
            }
            Role::Follower { .. } => self.acknowledge(false, out),
        }
    }

    /// Puts a batch at the log end: everything here is a function of the log's prefix alone (rule P2).
    fn append(&mut self, placed: Placed, out: &mut Vec<Output>) {
        let Placed { batch, append_time, .. } = &placed;
        self.at_end.absorb(batch, *append_time);
        let write = batch.producer_write();
        self.epochs.append(batch.leader_epoch(), batch.base_offset());
        let mark = self.written(Written::End(batch.end_offset()));
        out.push(Output::Append { placed, mark });
        if let Some(write) = write {
            self.spend_verifications(write.stamp.id);
            self.refused.forget(write.in_transactions(), write.stamp.id);
        }
    }

    fn note_manifest(&mut self, log_start: Offset, tiered_end: Offset, out: &mut Vec<Output>) {
        let end = self.at_end.end;
        if tiered_end > end {
            // A follower that lags hears of it again; a leader holds everything committed (S3).
            if matches!(self.role, Role::Leader(_)) {
                out.push(Output::Fault(Fault::TieredBeyondLog { tiered_end, end }));
            }
            return;
        }
        if log_start <= self.log_start && tiered_end <= self.tiered_end {
            return;
        }
        self.log_start = self.log_start.max(log_start);
        self.tiered_end = self.tiered_end.max(tiered_end);
        // What the manifest holds was committed (S8).
        self.commit(self.hw.max(self.tiered_end));
        self.trim(out);
        out.push(Output::Publish);
    }

    /// Rule T6: what the manifest holds, and is durable here, the WAL may forget.
    fn trim(&mut self, out: &mut Vec<Output>) {
        let to = self.tiered_end.min(self.durable);
        if to > self.trimmed {
            self.trimmed = to;
            out.push(Output::Trim { to });
        }
    }
}

impl EndState {
    /// The state before the first record.
    #[must_use]
    pub fn empty() -> EndState {
        EndState {
            end: Offset(0),
            prefix_hash: 0,
            producers: ProducerTable::default(),
            last_append_time: TimestampMs::NONE,
            ended: EndedInTail::default(),
        }
    }

    /// The state at a manifest's tiered end, where `producers` is that of the producers (rules T4, R12).
    #[must_use]
    pub fn tiered(root: &ManifestRoot, producers: ProducerTable) -> EndState {
        let empty = EndState::empty();
        let (prefix_hash, last_append_time) = root
            .newest()
            .map_or((empty.prefix_hash, empty.last_append_time), |newest| (newest.prefix_hash, newest.max_append_time));
        // What ended below is told by the segments, and decided (rule T1).
        EndState { end: root.tiered_end, prefix_hash, producers, last_append_time, ended: EndedInTail::default() }
    }

    /// Moves past `batch`.
    pub fn absorb(&mut self, batch: &Batch, append_time: TimestampMs) {
        self.replay(batch.producer_write(), batch.record_count(), batch.base_offset()..batch.end_offset(), append_time);
        self.prefix_hash = chain_hash(self.prefix_hash, batch);
    }

    /// Moves past a batch of which only the index is at hand; the hash stays as it is.
    pub fn replay(
        &mut self,
        write: Option<ProducerWrite>,
        record_count: u32,
        span: std::ops::Range<Offset>,
        append_time: TimestampMs,
    ) {
        self.expire(append_time);
        if let Some(write) = write {
            self.note_write(write, record_count, span.start, append_time);
        }
        self.last_append_time = append_time;
        self.end = span.end;
    }

    /// Forgets expired producers, so that replicas forget at the same offset (rule P2). To be called before the batch of `append_time` is
    /// absorbed.
    fn expire(&mut self, append_time: TimestampMs) {
        if self.expires(append_time) {
            self.producers.expire(append_time, PRODUCER_EXPIRY_MS);
        }
    }

    /// The producers as a batch of `append_time` finds them, if it is the next one. It may be refused: then it is in no log, and nobody is
    /// forgotten for it (rule P2).
    fn producers_at(&self, append_time: TimestampMs) -> ProducersAt<'_> {
        match self.expires(append_time) {
            true => self.producers.at(append_time, PRODUCER_EXPIRY_MS),
            false => self.producers.as_it_is(),
        }
    }

    /// Whether the log's own time enters another minute.
    fn expires(&self, append_time: TimestampMs) -> bool {
        const MINUTE_MS: i64 = 60_000;
        self.last_append_time.0.div_euclid(MINUTE_MS) != append_time.0.div_euclid(MINUTE_MS)
    }
}

/// Hash of the log up to and with `batch`, from the hash before it (S6): equal hashes mean equal prefixes.
///
/// The batch's own CRC stands for its records; a 64-bit finaliser (MurmurHash3's) spreads the chain.
#[must_use]
pub fn chain_hash(before: u64, batch: &Batch) -> u64 {
    let mut hash = before;
    for word in [batch.base_offset().0, u64::from(batch.leader_epoch().0), u64::from(batch.crc())] {
        hash ^= word;
        hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        hash ^= hash >> 33;
    }
    hash
}

#[cfg(test)]
mod tests;
