//! What goes into a step of a replica and what comes out of it. Plain data: nothing is decided here.

use super::ended::EndedInTail;
use super::isr::Proposal;
use super::push::{Cursor, Placed, Push, PushReply};
use super::transfer::Transfer;
use crate::records::PartitionRecord;
use millpond_log::batch::{ProducerWrite, TimestampType};
use millpond_log::epochs::LeaderEpochs;
use millpond_log::producers::{ProducerError, ProducerTable};
use millpond_log::transactions::Marker;
use millpond_log::{
    Batch, BrokerId, ErrorCode, Incarnation, LeaderEpoch, Offset, ProducerEpoch, ProducerId, Rid, TimestampMs,
};

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

/// Names one verification of a producer's transaction (rule X3). Never used again: each office has an epoch of its own (rule E4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VerificationToken {
    /// Epoch of the leader that asks.
    pub office: LeaderEpoch,
    /// Counts what it asks.
    pub number: u64,
}

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
        /// Base sequence of an earlier batch of its producer that was refused on its way here, and will come again (rule P6).
        behind: Option<i32>,
    },
    /// A batch that was handed back, and waited, was refused, and will come again (rule P6).
    Refused(ProducerWrite),
    /// A coordinator has said that the partition is part of a producer's transaction (rule X3).
    Verified(Verified),
    /// A coordinator ends a transaction (rule X5). Answered when the marker is committed.
    EndTransaction {
        /// To be answered.
        token: Token,
        /// How it ends.
        marker: Marker,
    },
    /// The own WAL has synced every record up to and with this one (rule W1).
    Durable(Mark),
    /// The leader pushed.
    Push(Push),
    /// A follower answered.
    Reply(PushReply),
    /// The way to a follower is new: what was on it may be lost.
    Reconnected(BrokerId),
    /// There has been no way to a follower for a while, whatever its session says (rule I6).
    Unreachable(BrokerId),
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
        /// Leader epoch of whoever committed it.
        epoch: LeaderEpoch,
    },
    /// The manifest after `Output::ReadForOffice`, as `Manifest`.
    OfficeManifest {
        /// What was asked.
        office: LeaderEpoch,
        /// First offset that exists.
        log_start: Offset,
        /// First offset not in object storage.
        tiered_end: Offset,
        /// Leader epoch of whoever committed it.
        epoch: LeaderEpoch,
    },
    /// The topic's timestamp type changed.
    TimestampType(TimestampType),
    /// Somebody else is to lead (rule E9).
    Transfer(Transfer),
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
    /// Transactions that ended in the part of the log that was replayed or appended: not in object storage.
    pub ended: EndedInTail,
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
        /// Chained hash there (S6).
        prefix_hash: u64,
        /// To be told when it is durable.
        mark: Mark,
    },
    /// Read the manifest linearizably and answer with `Input::Installed` (rule R12).
    Install,
    /// Read the manifest linearizably, from now on, and answer with `Input::OfficeManifest` (rule F3): an earlier leader may have moved
    /// the log start without having said so here.
    ReadForOffice {
        /// The epoch of the office.
        office: LeaderEpoch,
    },
    /// Keep a batch until it is verified, and ask for that if it was not asked before (rule X3).
    Verify(Unverified),
    /// Answer a produce, or a marker.
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
    /// S3, C1: what was deleted had been committed, so whoever is elected by rule E2 holds it, or its offsets.
    #[error("the log starts at {log_start} but this leader's log ends at {end} (S3, C1)")]
    StartBeyondLog {
        /// First offset that exists.
        log_start: Offset,
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
    /// Offset of its first record: the original one for a duplicate (rule P3); the log end for a marker that is in the log already.
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
    /// The producer's epoch, sequence or transaction does not fit, or the coordinator's epoch.
    #[error(transparent)]
    Producer(#[from] ProducerError),
}

impl Refusal {
    /// Whether nothing was written, and the client sends the same batch again, here or elsewhere. Not those that tell it what to send before:
    /// `Behind`, and what is out of order.
    pub(super) fn passes(&self) -> bool {
        match self {
            Refusal::NotLeader { .. } | Refusal::NotEnoughReplicas { .. } => true,
            Refusal::Producer(error) => matches!(error, ProducerError::TooMany { .. }),
            Refusal::Deposed { .. } => false,
        }
    }

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
    /// Whether the end is proven (rule R11).
    pub end_proven: bool,
    /// Whether the log start is proven: of a leader that has read it in this office, where nobody else moves it (rule F3).
    pub start_proven: bool,
}

impl Visible {
    /// Whether earliest, latest and out-of-range may be answered (rules R11, F3).
    #[must_use]
    pub fn bounds_proven(&self) -> bool {
        self.end_proven && self.start_proven
    }
}
