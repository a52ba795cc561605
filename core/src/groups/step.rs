//! What goes into a shard of groups and what comes out. Plain data; nothing is decided here.

use crate::records::groups::{ClassicMemberRecord, Client, Committed, MemberRecord, Protocol, Record, RecordKey};
use millpond_log::{CoordinatorEpoch, ErrorCode, LeaderEpoch, Offset, PartitionId, ProducerEpoch, ProducerId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The member epoch of a request to join.
pub const JOIN_EPOCH: i32 = 0;
/// The member epoch of a request to leave for good.
pub const LEAVE_EPOCH: i32 = -1;
/// The member epoch of a static member that leaves and comes back.
pub const LEAVE_STATIC_EPOCH: i32 = -2;

/// What a shard of groups is told to keep to. Kafka's defaults, and its names in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupLimits {
    /// How long a member of a consumer group may be silent: `group.consumer.session.timeout.ms`.
    pub session_timeout_ms: u32,
    /// How often it is to heartbeat: `group.consumer.heartbeat.interval.ms`. A third of what silence it may keep is ten beats.
    pub heartbeat_interval_ms: u32,
    /// The range in which a group may have a session timeout of its own: `group.consumer.min.session.timeout.ms` and `….max.…`.
    pub session_timeout_bounds_ms: (u32, u32),
    /// The range of such an interval: `group.consumer.min.heartbeat.interval.ms` and `….max.…`. Kafka's begins at its default, and so does this.
    pub heartbeat_interval_bounds_ms: (u32, u32),
    /// Most members of a group. Bounds the work of one step, the assignment of all partitions anew.
    pub members_max: usize,
    /// The range of session timeouts that classic members may ask for.
    pub classic_session_timeout_ms: (u32, u32),
    /// How long the first rebalance of a classic group waits for more members: `group.initial.rebalance.delay.ms`.
    pub initial_rebalance_delay_ms: u32,
    /// How long a new classic member may wait for its first join to be answered: five minutes, as in Kafka.
    pub new_member_join_timeout_ms: u32,
    /// How long offsets are kept after their group emptied: `offsets.retention.minutes`.
    pub offsets_retention_ms: i64,
    /// How often it is looked for offsets that expired: `offsets.retention.check.interval.ms`.
    pub expiry_interval_ms: u32,
    /// Longest metadata beside an offset, in bytes: `offset.metadata.max.bytes`.
    pub metadata_bytes_max: usize,
    /// Most bytes of a record of a member of a consumer group, and of each of its pieces, if it has more than one thing to hold.
    pub member_bytes_max: usize,
}

impl Default for GroupLimits {
    fn default() -> GroupLimits {
        GroupLimits {
            session_timeout_ms: 45_000,
            heartbeat_interval_ms: 3_000,
            session_timeout_bounds_ms: (45_000, 60_000),
            heartbeat_interval_bounds_ms: (3_000, 15_000),
            members_max: 1_000,
            classic_session_timeout_ms: (6_000, 1_800_000),
            initial_rebalance_delay_ms: 3_000,
            new_member_join_timeout_ms: 300_000,
            offsets_retention_ms: 7 * 24 * 3_600_000,
            expiry_interval_ms: 600_000,
            metadata_bytes_max: 4_096,
            member_bytes_max: MEMBER_BYTES_MAX,
        }
    }
}

/// Most bytes of metadata beside the offsets of one block of 256 partitions, those of open transactions counted: a value of the metadata
/// store stays below 64 KiB (rule Z5).
pub const BLOCK_METADATA_BYTES_MAX: usize = 48 << 10;

/// Most bytes of a record of a member of a consumer group, and of each of its pieces: a value of the metadata store stays below 64 KiB
/// (rule Z5).
pub(super) const MEMBER_BYTES_MAX: usize = 56 << 10;

/// What time it is, on two clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds of a clock that never jumps. Sessions and timeouts go by it.
    pub steady_ms: u64,
    /// Milliseconds since the Unix epoch. Only commits and their expiry go by it.
    pub wall_ms: i64,
}

/// Names a request, so that its answer finds the way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Token(pub u64);

/// What a step made.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// What is to be persisted, in this order. Each prefix is a state that can be loaded, so a long list may be cut into transactions.
    pub changes: Vec<Change>,
    /// Answers to this request and to earlier ones that were waiting. They may be sent once all changes up to here are durable.
    pub answers: Vec<(Token, Answer)>,
}

/// A put, or a deletion if there is no record.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The record's key.
    pub key: RecordKey,
    /// What it is to hold.
    pub record: Option<Record>,
}

/// What clients ask for.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// A member of a consumer group lives, joins or leaves.
    Heartbeat(Heartbeat),
    /// A member joins by the classic protocol. Waits until its group has been joined by all.
    Join(Join),
    /// A classic member fetches what its leader gave it. Waits for the leader.
    Sync(SyncGroup),
    /// A classic member lives.
    ClassicHeartbeat(ClassicHeartbeat),
    /// Classic members leave.
    Leave(Leave),
    /// Offsets are committed.
    Commit(Commit),
    /// A moment to ask the coordinator of a transaction after (rule X3).
    Verification,
    /// Offsets become part of an open transaction (KIP-447).
    TxnCommit(TxnCommit),
    /// A transaction ends. May be told twice; answered once its offsets are settled.
    EndTxn(TxnEnd),
    /// Committed offsets are asked for.
    Fetch(Fetch),
    /// Committed offsets are deleted.
    DeleteOffsets {
        /// The group.
        group: Arc<str>,
        /// Whose offsets.
        partitions: Vec<PartitionId>,
    },
    /// A group without members is deleted, with its offsets.
    Delete(Arc<str>),
    /// All of a group is asked for.
    Describe(Arc<str>),
    /// The groups of the shard are asked for.
    List,
}

impl Request {
    /// The group that it names.
    pub(super) fn group(&self) -> Option<&Arc<str>> {
        match self {
            Request::Heartbeat(Heartbeat { group, .. })
            | Request::Join(Join { group, .. })
            | Request::Sync(SyncGroup { who: ClassicHeartbeat { group, .. }, .. })
            | Request::ClassicHeartbeat(ClassicHeartbeat { group, .. })
            | Request::Leave(Leave { group, .. })
            | Request::Commit(Commit { group, .. })
            | Request::TxnCommit(TxnCommit { commit: Commit { group, .. }, .. })
            | Request::Fetch(Fetch { group, .. })
            | Request::DeleteOffsets { group, .. }
            | Request::Delete(group)
            | Request::Describe(group) => Some(group),
            Request::Verification | Request::EndTxn(_) | Request::List => None,
        }
    }

    /// Whether its answer has to be proven by a commit, be it of nothing (rule O1). Whoever has lost the shard may know of no transaction here,
    /// which is all the same for the next owner to end.
    #[must_use]
    pub fn wants_proof(&self) -> bool {
        matches!(self, Request::EndTxn(_))
    }

    /// The answer that refuses it as a whole; none for what cannot be refused.
    #[must_use]
    pub fn refused(&self, code: ErrorCode) -> Option<Answer> {
        Some(match self {
            Request::Heartbeat(_) => Answer::Heartbeat(Err(code)),
            Request::Join(join) => Answer::Join(Err(JoinRefused { code, member: join.member.clone() })),
            Request::Sync(_) => Answer::Sync(Err(code)),
            Request::ClassicHeartbeat(_) => Answer::ClassicHeartbeat(Err(code)),
            Request::Leave(_) => Answer::Leave(Err(code)),
            Request::Commit(_) | Request::TxnCommit(_) => Answer::Commit(Err(code)),
            Request::Fetch(_) => Answer::Fetch(Err(code)),
            Request::DeleteOffsets { .. } => Answer::DeleteOffsets(Err(code)),
            Request::Delete(_) => Answer::Delete(Err(code)),
            Request::Describe(_) => Answer::Describe(Err(code)),
            Request::Verification | Request::EndTxn(_) | Request::List => return None,
        })
    }
}

/// A member of a consumer group lives, joins (epoch 0) or leaves (-1, -2). What is none has not changed.
///
/// A member has one heartbeat under way at a time, and does not act on the answer to one that it has given up: what it says of the
/// partitions it owns is then the truth when it arrives (rule O2).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Heartbeat {
    /// The group.
    pub group: Arc<str>,
    /// The member's id, which it chose itself.
    pub member: Arc<str>,
    /// The epoch it was told last.
    pub epoch: i32,
    /// Its static identity.
    pub instance: Option<String>,
    /// Its rack.
    pub rack: Option<String>,
    /// Who it is.
    pub client: Client,
    /// How long it may take to give partitions up.
    pub rebalance_timeout_ms: Option<u32>,
    /// Topics it subscribes to by name.
    pub topics: Option<BTreeSet<String>>,
    /// Topics it subscribes to by a regular expression; empty for none any more.
    pub regex: Option<String>,
    /// The assignor it prefers.
    pub assignor: Option<String>,
    /// What it owns.
    pub owned: Option<BTreeSet<PartitionId>>,
}

/// What a member is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beat {
    /// Its id.
    pub member: Arc<str>,
    /// Its epoch from now on.
    pub epoch: i32,
    /// When to heartbeat again.
    pub heartbeat_interval_ms: u32,
    /// How long after its last heartbeat others may be given what it owns.
    pub session_timeout_ms: u32,
    /// What it may own. It gives up all else and says so; none if it knows already.
    pub assignment: Option<BTreeSet<PartitionId>>,
}

/// A member joins by the classic protocol.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Join {
    /// The group.
    pub group: Arc<str>,
    /// The member's id; empty if it has none yet.
    pub member: Arc<str>,
    /// The id it gets if it has none: unique, made by the caller.
    pub fresh: Arc<str>,
    /// Its static identity.
    pub instance: Option<String>,
    /// Who it is.
    pub client: Client,
    /// How long it may be silent.
    pub session_timeout_ms: u32,
    /// How long a rebalance waits for it.
    pub rebalance_timeout_ms: u32,
    /// `consumer` for consumers.
    pub protocol_type: String,
    /// The assignors it knows, the preferred one first.
    pub protocols: Vec<Protocol>,
    /// Whether a member without an id is told to come back with one (JoinGroup v4, KIP-394).
    pub known_id_required: bool,
    /// Whether a static leader may be told to skip the assignment (JoinGroup v9, KIP-814).
    pub may_skip_assignment: bool,
}

/// What a member is told that joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// Its id.
    pub member: Arc<str>,
    /// The generation it is a member of.
    pub generation: i32,
    /// The group's protocol type.
    pub protocol_type: Option<String>,
    /// The assignor.
    pub protocol: Option<String>,
    /// Who assigns; none where the coordinator does.
    pub leader: Option<Arc<str>>,
    /// All members, for the leader.
    pub members: Vec<JoinedMember>,
    /// The leader has nothing to assign.
    pub skip_assignment: bool,
}

/// A member as its leader sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinedMember {
    /// Its id.
    pub id: Arc<str>,
    /// Its static identity.
    pub instance: Option<String>,
    /// What it told the assignor.
    pub metadata: Vec<u8>,
}

/// A member fetches its assignment; the leader brings all of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SyncGroup {
    /// Which member.
    pub who: ClassicHeartbeat,
    /// The protocol type it was told, if it says so.
    pub protocol_type: Option<String>,
    /// The assignor it was told, if it says so.
    pub protocol: Option<String>,
    /// From the leader: what each member gets.
    pub assignments: BTreeMap<Arc<str>, Vec<u8>>,
}

/// What a classic member owns in its generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Synced {
    /// The group's protocol type.
    pub protocol_type: Option<String>,
    /// The assignor.
    pub protocol: Option<String>,
    /// What the leader gave it.
    pub assignment: Vec<u8>,
}

/// A classic member in its generation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassicHeartbeat {
    /// The group.
    pub group: Arc<str>,
    /// The member's id.
    pub member: Arc<str>,
    /// Its static identity.
    pub instance: Option<String>,
    /// The generation it is a member of.
    pub generation: i32,
}

/// Classic members leave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leave {
    /// The group.
    pub group: Arc<str>,
    /// Who leaves: by id, or by static identity and an empty id.
    pub members: Vec<(Arc<str>, Option<String>)>,
}

/// Offsets to commit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Commit {
    /// The group.
    pub group: Arc<str>,
    /// Who commits; empty for a consumer that is no member.
    pub member: Arc<str>,
    /// Its static identity.
    pub instance: Option<String>,
    /// The member's epoch, or its generation; negative for a consumer that is no member.
    pub epoch: i32,
    /// Keep them for so long, where the client says so.
    pub retention_ms: Option<i64>,
    /// Counts the commits of the member, if it does: those below the highest that came were given up by it, and are refused. Without, the
    /// last that comes wins.
    pub number: Option<u64>,
    /// The offsets.
    pub offsets: Vec<(PartitionId, CommitOffset)>,
}

/// An offset to commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitOffset {
    /// The next offset to read.
    pub offset: Offset,
    /// The leader epoch of what was read last.
    pub leader_epoch: Option<LeaderEpoch>,
    /// What the client keeps beside it.
    pub metadata: String,
}

/// Offsets that become part of a transaction.
#[derive(Clone, Debug, PartialEq)]
pub struct TxnCommit {
    /// What, and who commits.
    pub commit: Commit,
    /// Whose transaction.
    pub producer: ProducerId,
    /// In which epoch.
    pub producer_epoch: ProducerEpoch,
    /// What `Request::Verification` gave before the transaction's coordinator was asked whether it is open (rule X3).
    pub verified: Verification,
    /// The epoch in which that coordinator said so.
    pub coordinator: CoordinatorEpoch,
}

/// A moment before which no end of a transaction was missed. Of one owner of the shard: the next one knows of none that was given before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Verification(pub(super) u64);

/// Committed offsets are asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fetch {
    /// The group.
    pub group: Arc<str>,
    /// The member and its epoch, if it says so.
    pub member: Option<(Arc<str>, i32)>,
    /// Of which partitions; none for all that have offsets.
    pub partitions: Option<Vec<PartitionId>>,
    /// Refuse where a transaction is open (KIP-447).
    pub require_stable: bool,
}

/// What a request is answered with.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "each answers the request of its name")]
pub enum Answer {
    Heartbeat(Result<Beat, ErrorCode>),
    Join(Result<Joined, JoinRefused>),
    Sync(Result<Synced, ErrorCode>),
    ClassicHeartbeat(Result<(), ErrorCode>),
    /// By member, in the order of the request.
    Leave(Result<Vec<Result<(), ErrorCode>>, ErrorCode>),
    /// By partition, in the order of the request.
    Commit(Result<Vec<Result<(), ErrorCode>>, ErrorCode>),
    Verification(Verification),
    EndTxn,
    /// None where nothing was committed.
    Fetch(Result<Vec<Fetched>, ErrorCode>),
    /// By partition, in the order of the request.
    DeleteOffsets(Result<Vec<Result<(), ErrorCode>>, ErrorCode>),
    Delete(Result<(), ErrorCode>),
    Describe(Result<Description, ErrorCode>),
    List(Vec<Listed>),
}

/// A partition's committed offset, none if there is none.
pub type Fetched = (PartitionId, Result<Option<Committed>, ErrorCode>);

/// Why a member may not join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinRefused {
    /// The reason.
    pub code: ErrorCode,
    /// The id to come back with, for `MEMBER_ID_REQUIRED`; else what the request said.
    pub member: Arc<str>,
}

/// Where a group stands. Kafka's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "Kafka's states")]
pub enum GroupState {
    Empty,
    Assigning,
    Reconciling,
    Stable,
    PreparingRebalance,
    CompletingRebalance,
}

/// A group in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub group: Arc<str>,
    /// Where it stands.
    pub state: GroupState,
    /// Whether the coordinator assigns.
    pub consumer: bool,
    /// The protocol type; empty where only offsets are there.
    pub protocol_type: String,
}

/// All of a group.
#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    /// What the list says of it.
    pub listed: Listed,
    /// Group epoch or generation.
    pub epoch: i32,
    /// Its members.
    pub members: Members,
}

/// The members of a group.
#[derive(Clone, Debug, PartialEq)]
pub enum Members {
    /// Of a consumer group, with the epoch of the target, the assignor, and what the target gives each.
    Consumer {
        /// The group epoch that the target is of.
        target_epoch: i32,
        /// Who made it.
        assignor: &'static str,
        /// By id.
        members: BTreeMap<Arc<str>, (MemberRecord, BTreeSet<PartitionId>)>,
    },
    /// Of a classic group, by id.
    Classic {
        /// The assignor.
        protocol: Option<String>,
        /// By id.
        members: BTreeMap<Arc<str>, ClassicMemberRecord>,
    },
}

/// The end of a transaction, as its coordinator tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxnEnd {
    /// Whose transaction.
    pub producer: ProducerId,
    /// The epoch of the marker: that of the transaction, or a higher one that fences it.
    pub epoch: ProducerEpoch,
    /// Whether that is above the epoch of the transaction's offsets (rule X1): always, but for clients of the first version.
    pub raised: bool,
    /// The epoch of the coordinator that says so.
    pub coordinator: CoordinatorEpoch,
    /// Whether it was committed.
    pub commit: bool,
}
