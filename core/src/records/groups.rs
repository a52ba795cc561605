//! Groups and their offsets, as the metadata store keeps them: below `/g`, `/o` and `/op`. How keys are spelled as paths is not here.

mod block;
mod text;

pub use block::{Committed, OffsetBlock, PendingBlock, decode as decode_offsets, encode as encode_offsets};

use millpond_log::{PartitionId, ProducerId, TopicId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Partitions whose committed offsets share one key (rule O1).
pub const OFFSETS_BLOCK_PARTITIONS: u32 = 256;

/// The key of a record of a group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordKey {
    /// The group.
    pub group: Arc<str>,
    /// Which of its records.
    pub part: RecordPart,
}

/// Which record of a group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordPart {
    /// The group itself.
    Group,
    /// A member of a consumer group, by its id.
    Member(Arc<str>),
    /// Part of what a member of a consumer group said and owns. Only the version that the member's record names is alive.
    MemberPiece {
        /// Its id.
        member: Arc<str>,
        /// Counts the times that the member was written in pieces.
        version: u64,
        /// Index of the piece, from 0.
        piece: u32,
    },
    /// Members of a classic group. Only the version that the group's record names is alive.
    Classic {
        /// Counts the times that the group was written.
        version: u64,
        /// Index of the piece, from 0.
        piece: u32,
    },
    /// Committed offsets of a block of partitions.
    Offsets {
        /// The topic.
        topic: TopicId,
        /// Partition divided by `OFFSETS_BLOCK_PARTITIONS`.
        block: u32,
    },
    /// Offsets of a transaction that has not ended.
    Pending {
        /// The topic.
        topic: TopicId,
        /// Partition divided by `OFFSETS_BLOCK_PARTITIONS`.
        block: u32,
        /// Whose transaction.
        producer: ProducerId,
    },
}

/// A record of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Under `RecordPart::Group`.
    Group(GroupRecord),
    /// Under `RecordPart::Member`.
    Member(MemberRecord),
    /// Under `RecordPart::MemberPiece`.
    MemberPiece(MemberPiece),
    /// Under `RecordPart::Classic`.
    Classic(ClassicPiece),
    /// Under `RecordPart::Offsets`.
    Offsets(OffsetBlock),
    /// Under `RecordPart::Pending`.
    Pending(PendingBlock),
}

/// A group: `/g/{group}/group`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GroupRecord {
    /// Members are assigned by the coordinator (KIP-848).
    Consumer(ConsumerRecord),
    /// Members are assigned by one of them.
    Classic(ClassicRecord),
}

/// What all members of a consumer group share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConsumerRecord {
    /// Raised whenever what is to be assigned changes.
    pub epoch: i32,
    /// Tells whether the topics subscribed to are the ones that the epoch was raised for.
    #[serde(with = "text::hash")]
    pub topics_hash: u64,
    /// When the last member left, in wall-clock milliseconds; none while there are members.
    pub emptied_at_ms: Option<i64>,
}

/// What all members of a classic group share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassicRecord {
    /// Counts the rebalances.
    pub generation: i32,
    /// Kafka's protocol type, `consumer` for consumers.
    pub protocol_type: Option<String>,
    /// The assignor that all members know and most prefer.
    pub protocol: Option<String>,
    /// The member that assigns.
    pub leader: Option<String>,
    /// Which version of its pieces is alive.
    pub version: u64,
    /// How many pieces that version has.
    pub pieces: u32,
    /// When the last member left, in wall-clock milliseconds; none while there are members.
    pub emptied_at_ms: Option<i64>,
}

/// Some members of a classic group: `/g/{group}/c.{version}.{piece}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassicPiece {
    /// The members, by id.
    pub members: BTreeMap<String, ClassicMemberRecord>,
}

/// A member of a classic group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassicMemberRecord {
    /// Its static identity, if it has one (KIP-345).
    pub instance: Option<String>,
    /// Who it says it is, and where.
    pub client: Client,
    /// How long a rebalance waits for it.
    pub rebalance_timeout_ms: u32,
    /// How long it may be silent.
    pub session_timeout_ms: u32,
    /// The protocols it knows, the preferred one first.
    pub protocols: Vec<Protocol>,
    /// What the leader gave it in this generation.
    #[serde(with = "text::bytes")]
    pub assignment: Vec<u8>,
}

/// Who a member says it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Client {
    /// Kafka's `client.id`.
    pub id: String,
    /// Its address.
    pub host: String,
}

/// An assignor that a classic member knows, and what it tells that assignor. Opaque here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Protocol {
    /// The assignor's name.
    pub name: String,
    /// What it is told.
    #[serde(with = "text::bytes")]
    pub metadata: Vec<u8>,
}

/// A member of a consumer group: `/g/{group}/m.{member}`. Where it has pieces, its topics, what it told its assignors, and what it owns
/// are in these.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberRecord {
    /// Its static identity, if it has one.
    pub instance: Option<String>,
    /// Its rack, if told.
    pub rack: Option<String>,
    /// Who it says it is, and where.
    pub client: Client,
    /// How long it may take to give partitions up.
    pub rebalance_timeout_ms: u32,
    /// Topics it subscribes to by name.
    pub topics: BTreeSet<String>,
    /// Topics it subscribes to by a regular expression.
    pub regex: Option<String>,
    /// The assignor it prefers.
    pub assignor: Option<String>,
    /// What it needs as a member that speaks the classic protocol.
    pub classic: Option<ClassicMember>,
    /// The epoch it has reached. -2 for a static member that left for a while.
    pub epoch: i32,
    /// The epoch it had before: an answer may have been lost.
    pub previous_epoch: i32,
    /// Where it stands on its way to the target.
    pub state: MemberState,
    /// What it owns.
    #[serde(with = "text::held")]
    pub assigned: Held,
    /// What it was told to give up and has not yet.
    #[serde(with = "text::held")]
    pub revoking: Held,
    /// Its pieces, if it is too large for one record.
    #[serde(default, skip_serializing_if = "Pieces::were_never")]
    pub pieces: Pieces,
}

/// Which pieces of a record are alive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pieces {
    /// Their version.
    pub version: u64,
    /// How many there are.
    pub count: u32,
}

impl Pieces {
    /// Whether the record was always whole.
    #[must_use]
    pub fn were_never(&self) -> bool {
        *self == Pieces::default()
    }
}

/// Part of a member of a consumer group: `/g/{group}/p.{version}.{piece}.{member}`. All its pieces together hold it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberPiece {
    /// Topics it subscribes to by name.
    pub topics: BTreeSet<String>,
    /// What it told its assignors, as a member that speaks the classic protocol.
    pub told: Vec<Told>,
    /// What it owns.
    #[serde(with = "text::held")]
    pub assigned: Held,
    /// What it was told to give up and has not yet.
    #[serde(with = "text::held")]
    pub revoking: Held,
}

/// More of what a member told an assignor: it goes behind what earlier pieces have of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Told {
    /// Index of the protocol in the member's record.
    pub protocol: u32,
    /// The bytes.
    #[serde(with = "text::bytes")]
    pub metadata: Vec<u8>,
}

/// Partitions that a member holds, and the epoch in which each was given to it (rule O2).
pub type Held = BTreeMap<PartitionId, i32>;

/// What a member of a consumer group that speaks the classic protocol said when it joined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassicMember {
    /// How long it may be silent.
    pub session_timeout_ms: u32,
    /// The protocols it knows, the preferred one first.
    pub protocols: Vec<Protocol>,
}

/// Where a member stands on its way to the target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberState {
    /// It owns all that its epoch's target gives it.
    #[default]
    Stable,
    /// It has partitions to give up first.
    Unrevoked,
    /// It waits for partitions that others have not given up.
    Unreleased,
}

impl RecordPart {
    /// The last part of the key below `/g/{group}`; none for offsets, which have keys of their own.
    #[must_use]
    pub fn name(&self) -> Option<String> {
        match self {
            RecordPart::Group => Some("group".to_owned()),
            RecordPart::Member(member) => Some(format!("m.{member}")),
            RecordPart::MemberPiece { member, version, piece } => Some(format!("p.{version}.{piece}.{member}")),
            RecordPart::Classic { version, piece } => Some(format!("c.{version}.{piece}")),
            RecordPart::Offsets { .. } | RecordPart::Pending { .. } => None,
        }
    }

    /// Reads what `name` writes, and nothing else.
    #[must_use]
    pub fn from_name(name: &str) -> Option<RecordPart> {
        let part = if name == "group" {
            RecordPart::Group
        } else if let Some(member) = name.strip_prefix("m.") {
            RecordPart::Member(member.into())
        } else if let Some(rest) = name.strip_prefix("p.") {
            let (version, rest) = rest.split_once('.')?;
            let (piece, member) = rest.split_once('.')?;
            let (version, piece) = (version.parse().ok()?, piece.parse().ok()?);
            RecordPart::MemberPiece { member: member.into(), version, piece }
        } else {
            let (version, piece) = name.strip_prefix("c.")?.split_once('.')?;
            RecordPart::Classic { version: version.parse().ok()?, piece: piece.parse().ok()? }
        };
        (part.name().as_deref() == Some(name)).then_some(part)
    }
}

/// The block of a partition's offsets.
#[must_use]
pub fn block_of(partition: PartitionId) -> u32 {
    partition.index / OFFSETS_BLOCK_PARTITIONS
}

#[cfg(test)]
mod tests;
