//! One replica of one partition: what it appends, when that counts as committed, whom it answers (rules R1 to R12, I1 to I8, P3, P4).
//!
//! It holds no bytes of the log and knows no disk and no wire: batches pass through it on their way to the WAL, which reports what
//! is durable, and what it says to other replicas is carried by the driver.

mod follower;
mod isr;
mod leader;
mod push;

pub use isr::{Proposal, removal};
pub use push::{Cursor, Placed, Push, PushHead, PushReply, Said};

use crate::records::PartitionRecord;
use crate::rules::{Rule, Rules};
use follower::{Busy, Stream};
use leader::{Leading, Produce};
use millpond_log::batch::{ProducerStamp, TimestampType};
use millpond_log::epochs::LeaderEpochs;
use millpond_log::limits::PRODUCER_EXPIRY_MS;
use millpond_log::producers::{ProducerError, ProducerTable};
use millpond_log::{Batch, BrokerId, ErrorCode, Incarnation, LeaderEpoch, Offset, Rid, TimestampMs};
use std::collections::VecDeque;

/// Names one request until it is answered. Chosen by the driver; unique among the requests of one replica that are open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Token(pub u64);

/// Names one record handed to the WAL. Marks of one replica rise in the order of the records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(pub u64);

/// When a step happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// The wall clock. It only stamps records, and never goes back in the log (rule W3).
    pub wall: TimestampMs,
    /// A clock that never goes back, in milliseconds: it tells who lags (rule I6).
    pub mono_ms: u64,
}

/// When a produce is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acks {
    /// As soon as it has its offset.
    None,
    /// When it is durable on the leader (rule W1).
    Leader,
    /// When it is committed: durable on the whole commit set (rule R9).
    All,
}

/// A live session of a broker that holds, or should hold, a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Live {
    /// The replica it speaks for.
    pub rid: Rid,
    /// Its incarnation.
    pub inc: Incarnation,
}

/// The partition's record as it was seen, by a watch or a read, with the live sessions of its replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The record.
    pub record: PartitionRecord,
    /// Its mod revision.
    pub revision: u64,
    /// Which of its brokers are alive, as far as is known: a hint, every decision on it is compared again.
    pub live: Vec<Live>,
}

/// What happens to a replica.
#[derive(Clone, Debug)]
pub enum Input {
    /// The broker registered with this incarnation, or has lost its session (rules B2, B3).
    Session(Option<Incarnation>),
    /// Who leads and who is in sync, as seen. Older revisions than one seen before change nothing.
    Assigned(Assignment),
    /// A client's batch, already validated in itself.
    Produce {
        /// To be answered.
        token: Token,
        /// The batch.
        batch: Batch,
        /// Largest timestamp of its records, whatever its header claims.
        latest: TimestampMs,
        /// When to answer.
        acks: Acks,
    },
    /// The own WAL has synced every record up to and with this one (rule W1).
    Durable(Mark),
    /// The leader pushed.
    Push(Push),
    /// A follower answered.
    Reply(PushReply),
    /// The way to a follower is new: what was on it may be lost.
    Reconnected(BrokerId),
    /// The WAL no longer holds what a cursor wanted to push next; it holds the log from `start` on.
    CursorTrimmed {
        /// Which cursor.
        nonce: u64,
        /// Its follower.
        to: BrokerId,
        /// First offset held.
        start: Offset,
    },
    /// State at the log end after `Output::Truncate`, replayed as at a start (rule R7).
    Rebuilt(EndState),
    /// The manifest after `Output::Install`, by a linearizable read (rule R12).
    Installed(Installed),
    /// A proposal was not written and never will be: a comparison failed that no later try can meet. Its key may have moved;
    /// then that was seen before, as `Assigned`.
    ProposalFailed {
        /// The revision it was decided on.
        base: u64,
    },
    /// `min.insync.replicas` as the topic wants it now (rule I7).
    MinIsr(u32),
    /// A change of the manifest was seen as committed (rule T6).
    Manifest {
        /// First offset that exists (rule C1).
        log_start: Offset,
        /// First offset not in object storage.
        tiered_end: Offset,
    },
    /// The topic's timestamp type changed.
    TimestampType(TimestampType),
    /// Time has passed.
    Tick,
}

/// What is a function of the log up to its end, and cannot be taken back without reading it again.
#[derive(Clone, Debug)]
pub struct EndState {
    /// Log end offset.
    pub end: Offset,
    /// Chained hash at `end`.
    pub prefix_hash: u64,
    /// Producer state at `end`.
    pub producers: ProducerTable,
    /// Newest append time in the log; `TimestampMs::NONE` for an empty one.
    pub last_append_time: TimestampMs,
}

/// What a manifest says of the log below its tiered end.
#[derive(Clone, Debug)]
pub struct Installed {
    /// First offset that exists.
    pub log_start: Offset,
    /// State at the tiered end.
    pub at_end: EndState,
    /// Epochs of everything below.
    pub epochs: LeaderEpochs,
}

/// What the driver has to do, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Note durably that this epoch was seen (rules R2, R4).
    PersistEpoch {
        /// The epoch.
        epoch: LeaderEpoch,
        /// To be told when it is durable.
        mark: Mark,
    },
    /// Write the batch to the WAL at its place.
    Append {
        /// The batch.
        placed: Placed,
        /// To be told when it is durable.
        mark: Mark,
    },
    /// The log ends at `to` again (rule R6). Replay what is left, from the manifest on, and answer with `Input::Rebuilt`; or with
    /// `Input::Installed` if the manifest has passed `to`.
    Truncate {
        /// New end.
        to: Offset,
        /// To be told when it is durable.
        mark: Mark,
    },
    /// The log starts over, empty, at `at` (rule R12).
    Reset {
        /// Start and end of the empty log.
        at: Offset,
        /// To be told when it is durable.
        mark: Mark,
    },
    /// Read the manifest linearizably and answer with `Input::Installed` (rule R12).
    Install,
    /// Answer a produce.
    Answer {
        /// Which.
        token: Token,
        /// How it went.
        result: Result<Appended, Refusal>,
    },
    /// Push to a follower from here on, whatever comes, until told otherwise. At once, if only to hear what it holds.
    Follow(Cursor),
    /// Push nothing more to this follower.
    Unfollow(BrokerId),
    /// Answer the leader.
    Reply {
        /// The leader's broker.
        to: BrokerId,
        /// The answer.
        reply: PushReply,
    },
    /// Change the partition's record (rules I3, I5, I6). To be sent again until its key moves (rule K5).
    Propose(Proposal),
    /// The WAL may forget what lies below (rule T6).
    Trim {
        /// End of what is no longer needed.
        to: Offset,
    },
    /// The visible state changed: readers that wait look again.
    Publish,
    /// An invariant about our own state is broken: quarantine the partition and end this broker (rule B6).
    Fault(Fault),
}

/// A broken invariant (rule B6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// S4.
    #[error(
        "the leader's log differs at offset {to}, below the high watermark {hw} or the tiered end {tiered_end} (S4)"
    )]
    TruncationBelowCommitted {
        /// Where it differs.
        to: Offset,
        /// High watermark here.
        hw: Offset,
        /// Tiered end here.
        tiered_end: Offset,
    },
    /// S6.
    #[error("the log up to offset {end} is not the leader's, though its epochs are (S6)")]
    PrefixHash {
        /// End of the batch that showed it.
        end: Offset,
    },
    /// S8 or S3: the manifest holds more than a leader does.
    #[error("the manifest ends at {tiered_end} but this leader's log at {end} (S3, S8)")]
    TieredBeyondLog {
        /// Tiered end.
        tiered_end: Offset,
        /// Log end offset.
        end: Offset,
    },
    /// S24.
    #[error("another replica leads in epoch {epoch} too (S24)")]
    TwoLeaders {
        /// The epoch.
        epoch: LeaderEpoch,
    },
}

/// Where a batch stands in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Offset of its first record: the original one for a duplicate (rule P3).
    pub base: Offset,
    /// Its append time.
    pub append_time: TimestampMs,
}

/// Why a produce was refused. Nothing was appended, except where it says `may have happened`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// This replica does not lead.
    #[error("this broker does not lead the partition")]
    NotLeader {
        /// Who does, if known.
        leader: Option<BrokerId>,
    },
    /// It was deposed while the batch waited for its commit: it may have happened.
    #[error("leadership moved before the batch was committed; retry with the same sequence")]
    Deposed {
        /// Who leads now, if known.
        leader: Option<BrokerId>,
    },
    /// Too few in-sync replicas (rule I1).
    #[error("{isr} in-sync replicas where min.insync.replicas is {min_isr}")]
    NotEnoughReplicas {
        /// Confirmed ISR.
        isr: u32,
        /// Wanted.
        min_isr: u32,
    },
    /// The producer's epoch or sequence does not fit.
    #[error(transparent)]
    Producer(#[from] ProducerError),
}

impl Refusal {
    /// The code a client gets.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Refusal::NotLeader { .. } | Refusal::Deposed { .. } => ErrorCode::NotLeaderOrFollower,
            Refusal::NotEnoughReplicas { .. } => ErrorCode::NotEnoughReplicas,
            Refusal::Producer(error) => error.code(),
        }
    }
}

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
    /// Highest epoch in which this replica has led and no longer does: it never leads in it again (rule B2).
    abdicated: LeaderEpoch,
    log_start: Offset,
    tiered_end: Offset,
    durable: Offset,
    trimmed: Offset,
    hw: Offset,
    at_end: EndState,
    epochs: LeaderEpochs,
    timestamp_type: TimestampType,
    lag_time_ms: u64,
    mark: Mark,
    /// What is on its way to the disk, in order.
    unsynced: VecDeque<(Mark, Written)>,
    /// The log is being taken apart: until it stands again, nothing is appended and no office taken.
    busy: Option<Busy>,
    assigned: Option<Assignment>,
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

/// What readers may know of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visible {
    /// Epoch it leads in, or has seen.
    pub epoch: LeaderEpoch,
    /// Whether it leads.
    pub leads: bool,
    /// First offset that exists.
    pub log_start: Offset,
    /// First offset not in object storage.
    pub tiered_end: Offset,
    /// High watermark.
    pub hw: Offset,
    /// Last stable offset (rule X6).
    pub lso: Offset,
    /// Log end offset.
    pub end: Offset,
    /// Whether the end is proven: earliest, latest and out-of-range may be answered (rules R11, F3).
    pub end_proven: bool,
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
        Replica {
            rules: from.rules,
            rid: from.rid,
            inc: None,
            epoch_seen: from.epoch_seen,
            epoch_durable: from.epoch_seen,
            abdicated: LeaderEpoch(0),
            log_start: from.log_start,
            tiered_end: from.tiered_end,
            durable: end,
            trimmed: from.tiered_end,
            // What the manifest holds was committed (S8), whatever was persisted here.
            hw: from.hw.max(from.tiered_end),
            at_end: from.at_end,
            epochs: from.epochs,
            timestamp_type: from.timestamp_type,
            lag_time_ms: from.lag_time_ms,
            mark: Mark(0),
            unsynced: VecDeque::new(),
            busy: None,
            assigned: None,
            min_isr_wanted: None,
            role: Role::Follower { leader: None, stream: None },
        }
    }

    /// Takes one input; appends what to do to `out`.
    pub fn step(&mut self, now: Now, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::Session(inc) => self.note_session(inc, out),
            Input::Assigned(assignment) => self.note_assignment(now, assignment, out),
            Input::Produce { token, batch, latest, acks } => {
                self.produce(now, Produce { token, batch, latest, acks }, out);
            }
            Input::Durable(mark) => self.note_durable(now, mark, out),
            Input::Push(push) => self.on_push(push, out),
            Input::Reply(reply) => self.note_reply(now, reply, out),
            Input::Reconnected(broker) => self.restart_cursor(broker, None, out),
            Input::CursorTrimmed { nonce, to, start } => self.restart_trimmed(nonce, to, start, out),
            Input::Rebuilt(state) => self.rebuilt(now, state, out),
            Input::Installed(installed) => self.installed(now, installed, out),
            Input::ProposalFailed { base } => self.proposal_failed(now, base, out),
            Input::MinIsr(min_isr) => {
                self.min_isr_wanted = Some(min_isr);
                self.consider_isr(now, out);
            }
            Input::Manifest { log_start, tiered_end } => self.note_manifest(log_start, tiered_end, out),
            Input::TimestampType(kind) => self.timestamp_type = kind,
            Input::Tick => self.consider_isr(now, out),
        }
    }

    /// What readers may know now.
    #[must_use]
    pub fn visible(&self) -> Visible {
        let (leads, end_proven) = match &self.role {
            Role::Leader(leading) => (true, self.hw >= leading.leso),
            Role::Follower { .. } => (false, false),
        };
        Visible {
            epoch: self.epoch_seen,
            leads,
            log_start: self.log_start,
            tiered_end: self.tiered_end,
            hw: self.hw,
            lso: self.hw,
            end: self.at_end.end,
            end_proven,
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

    /// The high watermark as it may be persisted now: durable when it is written (rule R10).
    #[must_use]
    pub fn hw_to_persist(&self) -> Offset {
        self.hw.min(self.durable)
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
        self.epochs.append(batch.leader_epoch(), batch.base_offset());
        let mark = self.written(Written::End(batch.end_offset()));
        out.push(Output::Append { placed, mark });
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
        self.hw = self.hw.max(self.tiered_end);
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
        }
    }

    /// Moves past `batch`.
    pub fn absorb(&mut self, batch: &Batch, append_time: TimestampMs) {
        self.replay(batch.producer(), batch.record_count(), batch.base_offset()..batch.end_offset(), append_time);
        self.prefix_hash = chain_hash(self.prefix_hash, batch);
    }

    /// Moves past a batch of which only the index is at hand; the hash stays as it is.
    pub fn replay(
        &mut self,
        producer: Option<ProducerStamp>,
        record_count: u32,
        span: std::ops::Range<Offset>,
        append_time: TimestampMs,
    ) {
        self.expire(append_time);
        if let Some(stamp) = producer {
            self.producers.append(stamp, record_count, span.start, append_time);
        }
        self.last_append_time = append_time;
        self.end = span.end;
    }

    fn expire(&mut self, append_time: TimestampMs) {
        expire_producers(&mut self.producers, self.last_append_time, append_time);
    }
}

/// Forgets expired producers when the log's own time enters another minute, so that replicas forget at the same offset (rule P2).
/// To be called before the batch of `append_time` is judged or absorbed; `before` is the append time of the batch before it.
pub fn expire_producers(producers: &mut ProducerTable, before: TimestampMs, append_time: TimestampMs) {
    const MINUTE_MS: i64 = 60_000;
    if before.0.div_euclid(MINUTE_MS) != append_time.0.div_euclid(MINUTE_MS) {
        producers.expire(append_time, PRODUCER_EXPIRY_MS);
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
