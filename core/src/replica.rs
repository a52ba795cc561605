//! One replica of one partition: what it appends, when that counts as committed, whom it answers (rules R1, R2, R9, I1, P3, P4).
//!
//! It holds no bytes of the log and knows no disk: batches pass through it on their way to the WAL, which reports what is durable.

use millpond_log::batch::TimestampType;
use millpond_log::epochs::LeaderEpochs;
use millpond_log::limits::PRODUCER_EXPIRY_MS;
use millpond_log::producers::{ProducerError, ProducerTable, Verdict};
use millpond_log::{Batch, BrokerId, ErrorCode, LeaderEpoch, Offset, Rid, TimestampMs};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Names one request until it is answered. Chosen by the driver; unique among the requests of one replica that are open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Token(pub u64);

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

/// What happens to a replica.
#[derive(Clone, Debug)]
pub enum Input {
    /// It was elected: `/p` names it, with its own incarnation, as leader in this epoch (rules B2, R2).
    Elected(Leadership),
    /// Another leads, or nobody does.
    Deposed {
        /// The epoch of that election.
        epoch: LeaderEpoch,
        /// Who leads now, if known.
        leader: Option<BrokerId>,
    },
    /// A client's batch, already validated in itself.
    Produce {
        /// To be answered.
        token: Token,
        /// The batch.
        batch: Batch,
        /// Largest timestamp of its records, as admission read it off them: the header's may be false.
        latest: TimestampMs,
        /// When to answer.
        acks: Acks,
    },
    /// The own WAL has synced everything below `end` (rule W1).
    Durable {
        /// End of what is durable.
        end: Offset,
    },
    /// A follower acknowledged (rule R8): it holds everything below `end`, verified in this epoch and durable.
    FollowerDurable {
        /// Which replica.
        rid: Rid,
        /// In which epoch it was verified.
        epoch: LeaderEpoch,
        /// `min(durable, matched)`.
        end: Offset,
    },
    /// A change of the manifest was seen as committed (rule T6).
    Manifest {
        /// First offset that exists (rule C1).
        log_start: Offset,
        /// First offset not in object storage.
        tiered_end: Offset,
    },
    /// The topic's timestamp type changed.
    TimestampType(TimestampType),
}

/// The terms of an election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leadership {
    /// The new epoch.
    pub epoch: LeaderEpoch,
    /// Confirmed in-sync replicas, this one among them.
    pub isr: BTreeSet<Rid>,
    /// Least ISR for acks=all and for the high watermark to move (rule I1).
    pub min_isr: u32,
}

/// What the driver has to do, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Note durably that this epoch was seen, no later than the first ack in it (rules R2, R4).
    PersistEpoch(LeaderEpoch),
    /// Write the batch to the WAL at its place.
    Append {
        /// The batch, placed and stamped.
        batch: Batch,
        /// The leader's time of append, never going back (rule W3).
        append_time: TimestampMs,
        /// Largest timestamp a reader finds in it: its records', or the append time where that stands for theirs.
        latest: TimestampMs,
        /// Chained hash of the log up to and with the batch (S6).
        prefix_hash: u64,
    },
    /// Answer a produce.
    Answer {
        /// Which.
        token: Token,
        /// How it went.
        result: Result<Appended, Refusal>,
    },
    /// The WAL may forget what lies below (rule T6).
    Trim {
        /// End of what is no longer needed.
        to: Offset,
    },
    /// The visible state changed: readers that wait look again.
    Publish,
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
            Refusal::Producer(ProducerError::Fenced { .. }) => ErrorCode::InvalidProducerEpoch,
            Refusal::Producer(ProducerError::OutOfOrder { .. }) => ErrorCode::OutOfOrderSequenceNumber,
            Refusal::Producer(ProducerError::DuplicateUnknown { .. }) => ErrorCode::DuplicateSequenceNumber,
            Refusal::Producer(ProducerError::TooMany { .. }) => ErrorCode::ThrottlingQuotaExceeded,
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
    /// Log end offset; everything below is durable (rule W3a).
    pub end: Offset,
    /// High watermark as last persisted; not above `end`.
    pub hw: Offset,
    /// Chained hash at `end`.
    pub prefix_hash: u64,
    /// Epochs of the whole log.
    pub epochs: LeaderEpochs,
    /// Producer state at `end`, replayed with the uncommitted tail (rule P4).
    pub producers: ProducerTable,
    /// Newest append time in the log; `TimestampMs::NONE` for an empty one.
    pub last_append_time: TimestampMs,
    /// `message.timestamp.type`.
    pub timestamp_type: TimestampType,
}

/// One replica of one partition.
#[derive(Clone, Debug)]
pub struct Replica {
    rid: Rid,
    epoch_seen: LeaderEpoch,
    log_start: Offset,
    tiered_end: Offset,
    end: Offset,
    durable: Offset,
    hw: Offset,
    prefix_hash: u64,
    epochs: LeaderEpochs,
    producers: ProducerTable,
    last_append_time: TimestampMs,
    timestamp_type: TimestampType,
    role: Role,
}

/// A client's batch on its way in.
struct Produce {
    token: Token,
    batch: Batch,
    latest: TimestampMs,
    acks: Acks,
}

#[derive(Clone, Debug)]
enum Role {
    Follower { leader: Option<BrokerId> },
    Leader(Leader),
}

#[derive(Clone, Debug)]
struct Leader {
    terms: Leadership,
    /// Matched durable end of each follower, in this epoch (rule R9).
    progress: BTreeMap<Rid, Offset>,
    /// Log end at the election: until the high watermark reaches it, the end is not proven (rule R11).
    leso: Offset,
    waiting_durable: VecDeque<Waiter>,
    waiting_commit: VecDeque<Waiter>,
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    /// Answered once the watched offset has reached this.
    end: Offset,
    token: Token,
    appended: Appended,
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
        assert!(from.tiered_end <= from.end, "the log ends at or after what is tiered");
        assert!(from.hw <= from.end, "rule R10: a persisted high watermark was durable");
        Replica {
            rid: from.rid,
            epoch_seen: from.epoch_seen,
            log_start: from.log_start,
            tiered_end: from.tiered_end,
            end: from.end,
            durable: from.end,
            // What the manifest holds was committed (S8), whatever was persisted here.
            hw: from.hw.max(from.tiered_end),
            prefix_hash: from.prefix_hash,
            epochs: from.epochs,
            producers: from.producers,
            last_append_time: from.last_append_time,
            timestamp_type: from.timestamp_type,
            role: Role::Follower { leader: None },
        }
    }

    /// Takes one input; appends what to do to `out`.
    ///
    /// `now` is the wall clock. It only stamps records, and never goes back in the log (rule W3).
    pub fn step(&mut self, now: TimestampMs, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::Elected(terms) => self.take_office(terms, out),
            Input::Deposed { epoch, leader } => self.step_down(epoch, leader, out),
            Input::Produce { token, batch, latest, acks } => {
                self.produce(now, Produce { token, batch, latest, acks }, out);
            }
            Input::Durable { end } => {
                assert!(end <= self.end, "only what was appended becomes durable");
                self.durable = self.durable.max(end);
                self.advance(out);
            }
            Input::FollowerDurable { rid, epoch, end } => self.note_progress(rid, epoch, end, out),
            Input::Manifest { log_start, tiered_end } => self.note_manifest(log_start, tiered_end, out),
            Input::TimestampType(kind) => self.timestamp_type = kind,
        }
    }

    /// What readers may know now.
    #[must_use]
    pub fn visible(&self) -> Visible {
        let (leads, end_proven) = match &self.role {
            Role::Leader(leader) => (true, self.hw >= leader.leso),
            Role::Follower { .. } => (false, false),
        };
        Visible {
            epoch: self.epoch_seen,
            leads,
            log_start: self.log_start,
            tiered_end: self.tiered_end,
            hw: self.hw,
            lso: self.hw,
            end: self.end,
            end_proven,
        }
    }

    /// Epochs of the whole log.
    #[must_use]
    pub fn epochs(&self) -> &LeaderEpochs {
        &self.epochs
    }

    /// Producer state at the log end.
    #[must_use]
    pub fn producers(&self) -> &ProducerTable {
        &self.producers
    }

    fn take_office(&mut self, terms: Leadership, out: &mut Vec<Output>) {
        assert!(terms.isr.contains(&self.rid), "rule E3: the elected replica is in the ISR");
        if terms.epoch <= self.epoch_seen && matches!(self.role, Role::Leader(_)) {
            return;
        }
        assert!(terms.epoch > self.epoch_seen, "rule E4: every election has a higher epoch");
        self.step_down(terms.epoch, None, out);
        self.role = Role::Leader(Leader {
            terms,
            progress: BTreeMap::new(),
            leso: self.end,
            waiting_durable: VecDeque::new(),
            waiting_commit: VecDeque::new(),
        });
        self.advance(out);
        out.push(Output::Publish);
    }

    fn step_down(&mut self, epoch: LeaderEpoch, leader: Option<BrokerId>, out: &mut Vec<Output>) {
        if epoch > self.epoch_seen {
            self.epoch_seen = epoch;
            out.push(Output::PersistEpoch(epoch));
        }
        if let Role::Leader(old) = std::mem::replace(&mut self.role, Role::Follower { leader }) {
            for waiter in old.waiting_durable.into_iter().chain(old.waiting_commit) {
                out.push(Output::Answer { token: waiter.token, result: Err(Refusal::Deposed { leader }) });
            }
            out.push(Output::Publish);
        }
    }

    fn produce(&mut self, now: TimestampMs, produce: Produce, out: &mut Vec<Output>) {
        let Produce { token, batch, latest, acks } = produce;
        match self.judge(&batch, acks) {
            Err(refusal) => out.push(Output::Answer { token, result: Err(refusal) }),
            Ok(Verdict::Duplicate { base, end, append_time }) => {
                self.await_offset(Acks::All, Waiter { end, token, appended: Appended { base, append_time } }, out);
            }
            Ok(Verdict::Append) => {
                let appended = self.append(now, batch, latest, out);
                self.await_offset(acks, Waiter { end: self.end, token, appended }, out);
            }
        }
    }

    fn judge(&self, batch: &Batch, acks: Acks) -> Result<Verdict, Refusal> {
        let leader = match &self.role {
            Role::Leader(leader) => leader,
            Role::Follower { leader } => return Err(Refusal::NotLeader { leader: *leader }),
        };
        let isr = u32::try_from(leader.terms.isr.len()).expect("an ISR is a handful of brokers");
        if acks == Acks::All && isr < leader.terms.min_isr {
            return Err(Refusal::NotEnoughReplicas { isr, min_isr: leader.terms.min_isr });
        }
        match batch.producer() {
            Some(stamp) => Ok(self.producers.check(stamp, batch.record_count())?),
            None => Ok(Verdict::Append),
        }
    }

    fn append(
        &mut self,
        now: TimestampMs,
        mut batch: Batch,
        mut latest: TimestampMs,
        out: &mut Vec<Output>,
    ) -> Appended {
        let append_time = now.max(self.last_append_time);
        batch.place(self.end, self.epoch_seen);
        if self.timestamp_type == TimestampType::LogAppendTime {
            batch.stamp_append_time(append_time);
            latest = append_time;
        }
        self.absorb(&batch, append_time);
        let appended = Appended { base: batch.base_offset(), append_time };
        out.push(Output::Append { batch, append_time, latest, prefix_hash: self.prefix_hash });
        appended
    }

    /// Moves the log end past `batch`: everything here is a function of the log's prefix alone (rule P2).
    fn absorb(&mut self, batch: &Batch, append_time: TimestampMs) {
        self.epochs.append(batch.leader_epoch(), batch.base_offset());
        if let Some(stamp) = batch.producer() {
            self.producers.append(stamp, batch.record_count(), batch.base_offset(), append_time);
        }
        expire_producers(&mut self.producers, self.last_append_time, append_time);
        self.prefix_hash = chain_hash(self.prefix_hash, batch);
        self.last_append_time = append_time;
        self.end = batch.end_offset();
    }

    fn await_offset(&mut self, acks: Acks, waiter: Waiter, out: &mut Vec<Output>) {
        let Role::Leader(leader) = &mut self.role else { unreachable!("`judge` lets only a leader append") };
        let (queue, reached) = match acks {
            Acks::None => return out.push(Output::Answer { token: waiter.token, result: Ok(waiter.appended) }),
            Acks::Leader => (&mut leader.waiting_durable, self.durable),
            Acks::All => (&mut leader.waiting_commit, self.hw),
        };
        if reached >= waiter.end {
            return out.push(Output::Answer { token: waiter.token, result: Ok(waiter.appended) });
        }
        // Appends arrive in order and land at the back; only a duplicate may have to stand further ahead.
        let at = queue.partition_point(|other| other.end <= waiter.end);
        queue.insert(at, waiter);
    }

    fn note_progress(&mut self, rid: Rid, epoch: LeaderEpoch, end: Offset, out: &mut Vec<Output>) {
        let log_end = self.end;
        // Rule R8: an ack of another epoch says nothing about this one.
        let Role::Leader(leader) = &mut self.role else { return };
        if leader.terms.epoch != epoch || end > log_end {
            return;
        }
        let known = leader.progress.entry(rid).or_default();
        *known = (*known).max(end);
        self.advance(out);
    }

    /// Moves the high watermark as far as the commit set allows, and answers who waited for it (rules R9, I1).
    fn advance(&mut self, out: &mut Vec<Output>) {
        let Role::Leader(leader) = &mut self.role else { return };
        answer_reached(&mut leader.waiting_durable, self.durable, out);
        if (leader.terms.isr.len() as u64) < u64::from(leader.terms.min_isr) {
            return;
        }
        let committed =
            leader
                .terms
                .isr
                .iter()
                .map(|rid| {
                    if *rid == self.rid { self.durable } else { leader.progress.get(rid).copied().unwrap_or_default() }
                })
                .min()
                .expect("rule I6: a leader never leaves its own ISR");
        if committed > self.hw {
            self.hw = committed;
            answer_reached(&mut leader.waiting_commit, committed, out);
            out.push(Output::Publish);
        }
    }

    fn note_manifest(&mut self, log_start: Offset, tiered_end: Offset, out: &mut Vec<Output>) {
        assert!(tiered_end <= self.hw, "S8: only committed offsets are tiered");
        if log_start <= self.log_start && tiered_end <= self.tiered_end {
            return;
        }
        self.log_start = self.log_start.max(log_start);
        self.tiered_end = self.tiered_end.max(tiered_end);
        out.push(Output::Trim { to: self.tiered_end.min(self.durable) });
        out.push(Output::Publish);
    }
}

fn answer_reached(queue: &mut VecDeque<Waiter>, reached: Offset, out: &mut Vec<Output>) {
    while let Some(waiter) = queue.pop_front_if(|waiter| waiter.end <= reached) {
        out.push(Output::Answer { token: waiter.token, result: Ok(waiter.appended) });
    }
}

/// Forgets expired producers when the log's own time enters another minute, so that replicas forget at the same offset (rule P2).
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
