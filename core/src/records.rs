//! The records the cluster decides on, as the metadata store keeps them (section 2.1 of the safety rules).
//!
//! Plain data. A field this version does not know is an error, never dropped: a record read, changed and written back
//! by an older broker must not lose what a newer one put there. Who writes them, and under which guard, is not here.

pub mod groups;
mod text;
mod transaction;

pub use transaction::{ProducerInstance, TransactionRecord, TransactionState};

use crate::topic_name::TopicName;
use millpond_log::{BrokerId, Incarnation, LeaderEpoch, Lsn, Offset, Rid, TopicId, WalGen};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The cluster: `/cluster`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterRecord {
    /// Random identity of the cluster; every disk and bucket carries it.
    pub id: String,
    /// Version of the key space. A broker that does not know it stops.
    pub format: u32,
    /// What all brokers understand. Raised by the operator after an upgrade; new fields are written only from then on.
    pub feature_level: u32,
}

/// A broker's disk, as it was last heard of: `/b/{id}/wal` (rule B1a).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskRecord {
    /// Identity of the WAL.
    #[serde(with = "text::wal_gen")]
    pub wal_gen: WalGen,
    /// The incarnation the disk is known to carry. `None` from a registration until the broker confirms that its WAL
    /// carries the new one; it is then the key's own mod revision.
    #[serde(with = "text::option")]
    pub last_inc: Option<Incarnation>,
    /// The incarnation the disk carried when it registered; 0 if it never had.
    #[serde(with = "text::number")]
    pub previous_inc: Incarnation,
    /// A position its WAL is durable up to.
    #[serde(with = "text::number")]
    pub durable_lsn: Lsn,
    /// Where its broker's internal door was, `host:port`, by its last registration: a session ends, and this stays. None if it had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub internal: Option<String>,
}

/// A broker's session, under its lease: `/b/{id}/sess`. The key's mod revision is the incarnation; never rewritten.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionRecord {
    /// Identity of the WAL it runs on.
    #[serde(with = "text::wal_gen")]
    pub wal_gen: WalGen,
    /// Where its gRPC door is, `host:port`.
    pub grpc: String,
    /// Where its Kafka door is, `host:port`.
    pub kafka: String,
    /// Where the listeners of its Kafka door are that have names, by these.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub kafka_listeners: BTreeMap<String, String>,
    /// Where its HTTP door is, `host:port`.
    pub http: String,
    /// Where its internal door is, `host:port`; none if it has no cluster secret, and so takes part in no replication.
    pub internal: Option<String>,
    /// Its rack, if told.
    pub rack: Option<String>,
}

/// A broker that is to be left: `/b/{id}/drain`. Its leaderships go elsewhere, and nothing new is placed on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrainRecord {
    /// Whether its replicas go too. A broker that stops and comes back keeps them.
    pub replicas: bool,
}

/// Where a topic stands in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TopicState {
    /// Its partitions are being written. Not served.
    Creating,
    /// Served.
    Active,
    /// Its partitions are being removed. Not served; there is no way back.
    Deleting,
}

/// A topic: `/topic/{uuid}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopicRecord {
    /// Its name, for its whole life.
    pub name: TopicName,
    /// Its identity (rule K1).
    #[serde(with = "text::plain")]
    pub id: TopicId,
    /// Where it stands.
    pub state: TopicState,
    /// Number of partitions. Partition records at or above it are of a growth that is not finished: not served.
    pub partitions: u32,
    /// Replicas wanted of each partition; whoever finishes a creation places by it.
    pub replication_factor: u32,
    /// Settings that differ from the defaults, by Kafka's names; checked before they were written.
    pub config: BTreeMap<String, String>,
}

/// Who leads a partition. A broker acts as leader only if both are its own (rule B2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Leader {
    /// The replica.
    #[serde(with = "text::plain")]
    pub rid: Rid,
    /// The registration it was elected in.
    #[serde(with = "text::number")]
    pub inc: Incarnation,
}

/// A partition's replication state: `/p/{uuid}/{n}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartitionRecord {
    /// Who leads, if anyone was elected.
    pub leader: Option<Leader>,
    /// Counts the elections (rule E4); 0 before the first.
    #[serde(with = "text::number")]
    pub epoch: LeaderEpoch,
    /// In-sync replicas.
    #[serde(with = "text::list")]
    pub isr: Vec<Rid>,
    /// Replicas out of sync that still hold everything committed (rule I2).
    #[serde(with = "text::list")]
    pub elr: Vec<Rid>,
    /// Brokers that hold or should hold a copy, the preferred leader first.
    #[serde(with = "text::list")]
    pub replicas: Vec<BrokerId>,
    /// Brokers of `replicas` that join (rule I8).
    #[serde(with = "text::list")]
    pub adding: Vec<BrokerId>,
    /// Brokers of `replicas` that leave (rule I8).
    #[serde(with = "text::list")]
    pub removing: Vec<BrokerId>,
    /// In-sync replicas needed to commit (rules I1, I7).
    pub min_isr: u32,
    /// Epoch of the last unclean election (rule E7), if there was one.
    #[serde(with = "text::option")]
    pub unclean_epoch: Option<LeaderEpoch>,
}

/// Who owns a coordinator shard: `/shard/{kind}/{s}` (rule O3). What it commits moves another key, so that this one moves only when
/// the shard changes hands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardRecord {
    /// The owner, under the session it took the shard in; none if it was given up.
    pub owner: Option<Leader>,
    /// Counts the times that the shard was taken.
    pub coord_epoch: u32,
}

/// What is set on a group, whether it is there or not: `/gset/{group}`. A group on which nothing is set has none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupSettingsRecord {
    /// Settings that differ from what brokers say, by Kafka's names.
    pub settings: BTreeMap<String, String>,
}

/// What is left of a deleted topic until nobody holds anything of it: `/tomb/{uuid}` (rule K6). Written once, with the end of the topic.
// Earlier builds wrote who held data of it as well, which nobody goes by any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TombstoneRecord {
    /// Its name when it lived.
    pub name: TopicName,
    /// Mod revision of the topic record that the deletion was decided on.
    pub revision: u64,
}

/// What a broker's disk holds nothing of any more: `/b/{id}/purged` (rule K6).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PurgedRecord {
    /// Identity of the WAL that this is said of.
    #[serde(with = "text::wal_gen")]
    pub wal_gen: WalGen,
    /// It has no frame of any topic whose tombstone was laid at or before this revision, and will have none.
    pub revision: u64,
}

/// Objects that a manifest no longer names: `/gc/drop/{gc epoch}/…` (rule G2).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DropRecord {
    /// Keys of the objects.
    pub objects: Vec<String>,
    /// The tier root of a partition that was deleted, opaque here: everything it names is dropped.
    #[serde(with = "text::bytes")]
    pub root: Option<Vec<u8>>,
}

/// What was given up as lost, by an operator or because the topic asks for it: `/loss/{uuid}/{n}/{epoch}` (rule E7). Kept for good.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossRecord {
    /// The unclean epoch that began with it.
    #[serde(with = "text::number")]
    pub epoch: LeaderEpoch,
    /// The replica that leads since.
    #[serde(with = "text::plain")]
    pub leader: Rid,
    /// The replicas that held all that was committed, and are gone or were away.
    #[serde(with = "text::list")]
    pub lost: Vec<Rid>,
    /// Where the log ended from then on: whatever was at or after it is lost.
    #[serde(with = "text::number")]
    pub end: Offset,
    /// How far the log is known to have reached. It may have been further.
    #[serde(with = "text::number")]
    pub known_end: Offset,
    /// Where object storage ended.
    #[serde(with = "text::number")]
    pub tiered_end: Offset,
    /// What happened, for people.
    pub cause: String,
}

#[cfg(test)]
mod tests;
