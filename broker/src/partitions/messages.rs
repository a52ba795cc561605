//! What shards are told, and what they ask others for. Plain messages: shards and replicas decide.

use super::ends::AskedEnds;
use super::links::{Links, Pushed};
use super::open::AskedOpen;
use super::view::ViewSender;
use crate::api::{ApiError, InTransaction};
use crate::wal::WalPermit;
use millpond_core::election::Holds;
use millpond_core::replica::{Acks, Appended, Fault, Input, Proposal, Replica, Verified};
use millpond_log::manifest::ManifestRoot;
use millpond_log::producers::ProducerSummary;
use millpond_log::transactions::Marker;
use millpond_log::{Batch, BrokerId, Incarnation, LeaderEpoch, Offset, PartitionId, TimestampMs};
use std::sync::{Arc, Weak};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tracing::Span;

/// What a shard is told. Bounded in bytes by the permits that a produce carries.
pub(crate) enum ShardMsg {
    /// The broker registered with this incarnation, or has lost its session (rules B2, B3): all replicas hear of it.
    Session(Option<Incarnation>),
    /// A validated batch.
    Produce(Produce),
    /// Own this replica from now on.
    Open(Box<Open>),
    /// Own this replica no longer, and keep its frames: it is opened again, from what the WAL holds.
    Close { partition: PartitionId, done: oneshot::Sender<Closed> },
    /// A leader's push.
    Push(Box<Pushed>),
    /// What a shard asked to be read again.
    Rebuilt(Box<Rebuilt>),
    /// Something happened to a replica.
    Step { partition: PartitionId, input: Input },
    /// Whether a way leads to another broker, whatever its session says (rule I6): all that lead hear of it, also later ones.
    Reach { broker: BrokerId, reachable: bool },
    /// Says how far replicas are (rule E5). What is not here is not in the answer.
    Holds { partitions: Arc<[PartitionId]>, reply: oneshot::Sender<Vec<(PartitionId, Holds)>> },
    /// Says where the logs end that are led here. What is not is not in the answer.
    Ends(AskedEnds),
    /// Whether a replica stands for an unclean election (rule E7): then it takes no pushes, which could cut what it was chosen for.
    Stand { partition: PartitionId, stands: bool },
    /// Says which producers the replica that is here remembers, whether it leads or follows.
    Producers { partition: PartitionId, reply: oneshot::Sender<Result<Vec<ProducerSummary>, ApiError>> },
    /// Says which transactions are open in partitions that are led here. What is not is not in the answer.
    OpenTransactions(AskedOpen),
    /// Its manifest changed, as seen committed (rule T6).
    Manifest { partition: PartitionId, root: Arc<ManifestRoot> },
    /// Its manifest as read in the office that was taken in this epoch (rule F3).
    OfficeManifest { partition: PartitionId, office: LeaderEpoch, root: Arc<ManifestRoot> },
    /// A replica is to be given up, or is to stay after all: between the two it acknowledges nothing, whatever session begins (rule S5).
    Leave { partition: PartitionId, leaves: bool },
    /// It is said to hold no replica any more, by a tombstone or by the partition's record (rule K6): forget it and its frames.
    Drop { partition: PartitionId },
    /// A coordinator, or an operator, ends a transaction (rule X5). Answered once the marker is committed.
    EndTransaction(Ending),
    /// What a coordinator said of a transaction that batches wait for (rule X3).
    Verified { partition: PartitionId, verified: Verified, refused: Option<ApiError> },
    /// Whoever reads its log found an invariant broken (rule B6).
    Fault { partition: PartitionId, fault: Fault },
}

/// The end of a transaction in one partition.
pub(crate) struct Ending {
    pub(crate) partition: PartitionId,
    /// For whoever leads in this epoch.
    pub(crate) office: LeaderEpoch,
    pub(crate) marker: Marker,
    /// Only if this is where the producer's open transaction begins: who says so knows no coordinator's epoch to tell it from the next.
    pub(crate) first: Option<Offset>,
    pub(crate) room: WalPermit,
    pub(crate) reply: ProduceReply,
}

/// One produce on its way. The queue is bounded because `memory` was acquired before.
pub(crate) struct Produce {
    pub(crate) partition: PartitionId,
    pub(crate) batch: Batch,
    /// Largest timestamp of its records.
    pub(crate) latest: TimestampMs,
    pub(crate) acks: Acks,
    /// Base sequence of an earlier batch of its producer that was refused on its way, and will come again (rule P6).
    pub(crate) behind: Option<i32>,
    /// The transaction that the producer says it writes in.
    pub(crate) transaction: Option<InTransaction>,
    pub(crate) room: WalPermit,
    pub(crate) memory: OwnedSemaphorePermit,
    pub(crate) reply: ProduceReply,
    pub(crate) spans: ProduceSpans,
}

/// Where the trace of a produce goes on. Both are disabled, and cost nothing, where nobody traces.
pub(crate) struct ProduceSpans {
    /// Ends when the replica has decided about the batch.
    pub(crate) append: Span,
    /// The whole request.
    pub(crate) produce: Span,
}

pub(crate) type ProduceReply = oneshot::Sender<Result<Appended, ApiError>>;

/// What a leader wants changed in the metadata store, and who is told of the outcome.
pub(crate) struct Proposed {
    pub(crate) partition: PartitionId,
    pub(crate) shard: ShardSender,
    pub(crate) proposal: Proposal,
}

/// A log that was taken apart and has to be read again (rules R7, R12), or a manifest that readers need.
pub(crate) struct Rebuild {
    pub(crate) partition: PartitionId,
    pub(crate) shard: ShardSender,
    pub(crate) wanted: Wanted,
    /// Tells the answer from those to a replica that was here before.
    pub(crate) ticket: u64,
    /// Gone once nobody waits for it any more.
    pub(crate) asker: Weak<()>,
}

/// The log as it was read again.
pub(crate) struct Rebuilt {
    pub(crate) partition: PartitionId,
    pub(crate) ticket: u64,
    /// `Rebuilt` or `Installed`.
    pub(crate) input: Input,
    /// The manifest it was read by.
    pub(crate) root: Arc<ManifestRoot>,
}

/// What a replica asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The state at this end of the log, to which it was truncated.
    StateAt(Offset),
    /// What the manifest holds.
    Manifest,
    /// The manifest alone, for readers; the log stands as it is. Answered by `ShardMsg::Manifest`.
    Newest,
    /// As `Newest`, for an office that was taken in this epoch (rule F3). Answered by `ShardMsg::OfficeManifest`.
    ForOffice(LeaderEpoch),
}

/// A transaction that a coordinator is to be asked about, before anything of it is appended (rule X3).
pub(crate) struct Verify {
    pub(crate) partition: PartitionId,
    pub(crate) shard: ShardSender,
    pub(crate) transaction: InTransaction,
    /// What a yes is to say.
    pub(crate) verified: Verified,
}

/// Whom shards ask for what they do not do themselves.
#[derive(Clone)]
pub(crate) struct Services {
    pub(crate) proposals: UnboundedSender<Proposed>,
    pub(crate) rebuilds: UnboundedSender<Rebuild>,
    pub(crate) verifications: UnboundedSender<Verify>,
    pub(crate) links: Links,
}

/// A replica to own.
pub(crate) struct Open {
    pub(crate) partition: PartitionId,
    pub(crate) replica: Replica,
    pub(crate) manifest: Arc<ManifestRoot>,
    pub(crate) view: ViewSender,
    /// The WAL holds nothing of it yet: its log starts at this offset.
    pub(crate) reset_at: Option<Offset>,
    /// How far its log is known to have reached: beyond its end if something was lost.
    pub(crate) known_end: Offset,
}

/// What is left of a replica that was closed. All that it wrote is durable.
pub(crate) struct Closed {
    /// Where its readers look.
    pub(crate) view: ViewSender,
    /// Its high watermark.
    pub(crate) hw: Offset,
    /// How far the log is known to be committed, here or elsewhere.
    pub(crate) known_committed: Offset,
}

/// Sends to one shard.
pub(crate) type ShardSender = UnboundedSender<ShardMsg>;
