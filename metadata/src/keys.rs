//! The key space: every key of the metadata store, as a type. Nothing else builds or takes apart a key.
//!
//! It knows how keys are spelled, not what is stored under them.

mod groups;
mod path;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod properties;

use bytes::Bytes;
use millpond_core::coordinators::shard_of;
use millpond_core::topic_name::TopicName;
use millpond_log::{BrokerId, PartitionId, TopicId};
use path::{Reader, Writer};

pub use millpond_core::records::groups::OFFSETS_BLOCK_PARTITIONS;

/// What a coordinator shard coordinates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ShardKind {
    /// Transactions.
    Txn,
    /// Consumer groups.
    Group,
    /// Share groups.
    Share,
}

/// A key of the metadata store. Each stands for one path below the cluster's prefix.
///
/// | Key | Path | Value |
/// |---|---|---|
/// | `Cluster` | `/cluster` | `ClusterRecord` |
/// | `BrokerDisk` | `/b/{id}/wal` | `DiskRecord` |
/// | `BrokerSession` | `/b/{id}/sess` | `SessionRecord`, under the broker's lease |
/// | `BrokerDrain` | `/b/{id}/drain` | `DrainRecord`, under the broker's lease if it marked itself |
/// | `BrokerPurged` | `/b/{id}/purged` | `PurgedRecord` |
/// | `TopicName` | `/topics/{name}` | the topic's UUID as text |
/// | `Topic` | `/topic/{uuid}` | `TopicRecord` |
/// | `Tombstone` | `/tomb/{uuid}` | `TombstoneRecord` |
/// | `Buried` | `/buried` | how many tombstones were removed, as text: it moves whenever some are (rule K6) |
/// | `Partition` | `/p/{uuid}/{n:10}` | `PartitionRecord` |
/// | `Leadership` | `/pe/{uuid}/{n:10}` | `{rid} {inc} {epoch}`, compared by value (rule T5), so its form never changes |
/// | `TierRoot` | `/t/{uuid}/{n:10}` | the manifest's root, in the log's own encoding |
/// | `GcEpoch` | `/gc/epoch` | 16 hex digits, so that order by bytes is order by number |
/// | `GcBumped` | `/gc/bumped` | wall-clock time of the last bump, milliseconds as text |
/// | `GcDrop` | `/gc/drop/{gc_epoch:16 hex}/{uuid}/{n:10}/{seq:16 hex}` | `DropRecord` |
/// | `Controller` | `/controller` | `{id, inc}`, under a lease |
/// | `ProducerIds` | `/pid/next` | first producer id not handed out, as text |
/// | `BrokerIds` | `/bid/next` | first broker id not handed out, as text |
/// | `Shard` | `/shard/{txn,group,share}/{s:10}` | `ShardRecord`: owner of a coordinator shard |
/// | `ShardSeq` | `/seq/{txn,group,share}/{s:10}` | `{coord epoch} {seq}`: commits of a shard's owner (rule O1) |
/// | `ShardPurged` | `/purged/{txn,group,share}/{s:10}` | a revision, as text: the shard has nothing of topics deleted up to it (rule K6) |
/// | `Transaction` | `/x/{s:10}/{txn id}` | `TransactionRecord` |
/// | `Group` | `/g/{s:10}/{group}/{part}` | group epoch, members, target |
/// | `Offsets` | `/o/{s:10}/{group}/{uuid}/{block:10}` | committed offsets of 256 partitions, packed |
/// | `PendingOffsets` | `/op/{s:10}/{group}/{uuid}/{block:10}/{producer id:20}` | offsets of an open transaction |
/// | `ShareState` | `/s/{group}/{uuid}/{n:10}` | a share partition's state |
/// | `GroupSettings` | `/gset/{group}` | `GroupSettingsRecord` |
/// | `Bucket` | `/bucket` | what the cluster's marker in its bucket says, as text (rule G5) |
/// | `Loss` | `/loss/{uuid}/{n:10}/{epoch:10}` | what an operator accepted as lost |
///
/// `{s:10}` of a group or a transactional id is the number of its coordinator shard, so that a shard is read as one.
/// `{n:10}` is decimal, padded with zeros to that width, so that order by bytes is order by number. Names that clients
/// choose (transaction ids, groups, parts) may hold any text: `%`, `/` and control characters are written as `%XX`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the table above tells of every variant")]
pub enum Key {
    Cluster,
    BrokerDisk(BrokerId),
    BrokerSession(BrokerId),
    BrokerDrain(BrokerId),
    BrokerPurged(BrokerId),
    TopicName(TopicName),
    Topic(TopicId),
    Tombstone(TopicId),
    Buried,
    Partition(PartitionId),
    Leadership(PartitionId),
    TierRoot(PartitionId),
    GcEpoch,
    GcBumped,
    GcDrop { gc_epoch: u64, partition: PartitionId, seq: u64 },
    Controller,
    ProducerIds,
    BrokerIds,
    Shard { kind: ShardKind, shard: u32 },
    ShardSeq { kind: ShardKind, shard: u32 },
    ShardPurged { kind: ShardKind, shard: u32 },
    Transaction(String),
    Group { group: String, part: String },
    Offsets { group: String, topic: TopicId, block: u32 },
    PendingOffsets { group: String, topic: TopicId, block: u32, producer: u64 },
    ShareState { group: String, partition: PartitionId },
    GroupSettings(String),
    Bucket,
    Loss { partition: PartitionId, epoch: u32 },
}

/// A part of the key space that is read or watched as one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each names the keys it holds; what is not plain is said")]
pub enum Space {
    /// Everything of the cluster.
    All,
    Brokers,
    TopicNames,
    Topics,
    Tombstones,
    Partitions,
    PartitionsOf(TopicId),
    TierRoots,
    TierRootsOf(TopicId),
    /// Drops of gc epochs below the bound.
    DropsBefore(u64),
    Shards,
    /// What coordinator shards say of deleted topics.
    ShardsPurged,
    /// Records of all groups of a shard, but for their offsets.
    GroupsIn(u32),
    /// Offsets of all groups of a shard.
    OffsetsIn(u32),
    /// Pending offsets of all groups of a shard.
    PendingOffsetsIn(u32),
    GroupsOf(String),
    OffsetsOf(String),
    PendingOffsetsOf(String),
    ShareStatesOf(String),
    /// Transactional ids of a shard.
    TransactionsIn(u32),
    /// What is set on groups.
    GroupSettings,
    Losses,
}

/// A key under our prefix that is none of ours, or bytes outside it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no key of this version")]
pub struct ForeignKey(pub Bytes);

/// Spells keys under one cluster's prefix. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    prefix: Bytes,
}

impl Keys {
    /// Keys under the default prefix of a cluster, `/millpond/CLUSTER`.
    #[must_use]
    pub fn for_cluster(cluster: &str) -> Keys {
        Keys::under(&format!("/millpond/{cluster}"))
    }

    /// Keys under `prefix`; a slash at its end makes no difference.
    #[must_use]
    pub fn under(prefix: &str) -> Keys {
        Keys { prefix: Bytes::from(prefix.trim_end_matches('/').to_owned()) }
    }

    /// Spells a key.
    #[must_use]
    pub fn encode(&self, key: &Key) -> Bytes {
        let to = Writer::new(&self.prefix);
        match key {
            Key::Cluster => to.word("cluster"),
            Key::BrokerDisk(id) => to.word("b").plain(id.0).word("wal"),
            Key::BrokerSession(id) => to.word("b").plain(id.0).word("sess"),
            Key::BrokerDrain(id) => to.word("b").plain(id.0).word("drain"),
            Key::BrokerPurged(id) => to.word("b").plain(id.0).word("purged"),
            Key::TopicName(name) => to.word("topics").word(name.as_str()),
            Key::Topic(id) => to.word("topic").topic(*id),
            Key::Tombstone(id) => to.word("tomb").topic(*id),
            Key::Buried => to.word("buried"),
            Key::Partition(id) => to.word("p").partition(*id),
            Key::Leadership(id) => to.word("pe").partition(*id),
            Key::TierRoot(id) => to.word("t").partition(*id),
            Key::GcEpoch => to.word("gc").word("epoch"),
            Key::GcBumped => to.word("gc").word("bumped"),
            Key::GcDrop { gc_epoch, partition, seq } => {
                to.word("gc").word("drop").hex(*gc_epoch).partition(*partition).hex(*seq)
            }
            Key::Controller => to.word("controller"),
            Key::ProducerIds => to.word("pid").word("next"),
            Key::BrokerIds => to.word("bid").word("next"),
            Key::Shard { kind, shard } => to.word("shard").word(kind.word()).padded(*shard),
            Key::ShardSeq { kind, shard } => to.word("seq").word(kind.word()).padded(*shard),
            Key::ShardPurged { kind, shard } => to.word("purged").word(kind.word()).padded(*shard),
            Key::Transaction(id) => to.word("x").padded(shard_of(id)).free(id),
            Key::Group { group, part } => to.word("g").padded(shard_of(group)).free(group).free(part),
            Key::Offsets { group, topic, block } => {
                to.word("o").padded(shard_of(group)).free(group).topic(*topic).padded(*block)
            }
            Key::PendingOffsets { group, topic, block, producer } => {
                to.word("op").padded(shard_of(group)).free(group).topic(*topic).padded(*block).padded_wide(*producer)
            }
            Key::ShareState { group, partition } => to.word("s").free(group).partition(*partition),
            Key::GroupSettings(group) => to.word("gset").free(group),
            Key::Bucket => to.word("bucket"),
            Key::Loss { partition, epoch } => to.word("loss").partition(*partition).padded(*epoch),
        }
        .finish()
    }

    /// Reads what `encode` writes; every other spelling is refused, so that one thing never has two keys.
    ///
    /// # Errors
    /// The bytes are no key of this version.
    pub fn parse(&self, key: &[u8]) -> Result<Key, ForeignKey> {
        let parsed = Reader::new(&self.prefix, key).and_then(read_key);
        let canonical = parsed.filter(|parsed| self.encode(parsed) == key);
        canonical.ok_or_else(|| ForeignKey(Bytes::copy_from_slice(key)))
    }

    /// The interval of a part of the key space.
    #[must_use]
    pub fn space(&self, space: &Space) -> crate::kv::Interval {
        let to = Writer::new(&self.prefix);
        let path = match space {
            Space::All => to,
            Space::Brokers => to.word("b"),
            Space::TopicNames => to.word("topics"),
            Space::Topics => to.word("topic"),
            Space::Tombstones => to.word("tomb"),
            Space::Partitions => to.word("p"),
            Space::PartitionsOf(topic) => to.word("p").topic(*topic),
            Space::TierRoots => to.word("t"),
            Space::TierRootsOf(topic) => to.word("t").topic(*topic),
            Space::DropsBefore(gc_epoch) => {
                let start = to.word("gc").word("drop").open();
                let end = Writer::new(&self.prefix).word("gc").word("drop").hex(*gc_epoch).open();
                return crate::kv::Interval { start, end: Some(end) };
            }
            Space::Shards => to.word("shard"),
            Space::ShardsPurged => to.word("purged"),
            Space::GroupsIn(shard) => to.word("g").padded(*shard),
            Space::OffsetsIn(shard) => to.word("o").padded(*shard),
            Space::PendingOffsetsIn(shard) => to.word("op").padded(*shard),
            Space::GroupsOf(group) => to.word("g").padded(shard_of(group)).free(group),
            Space::OffsetsOf(group) => to.word("o").padded(shard_of(group)).free(group),
            Space::PendingOffsetsOf(group) => to.word("op").padded(shard_of(group)).free(group),
            Space::ShareStatesOf(group) => to.word("s").free(group),
            Space::TransactionsIn(shard) => to.word("x").padded(*shard),
            Space::GroupSettings => to.word("gset"),
            Space::Losses => to.word("loss"),
        };
        crate::kv::Interval::prefix(path.open())
    }
}

impl ShardKind {
    const ALL: [ShardKind; 3] = [ShardKind::Txn, ShardKind::Group, ShardKind::Share];

    fn read(word: &str) -> Option<ShardKind> {
        ShardKind::ALL.into_iter().find(|kind| kind.word() == word)
    }

    /// What it is called in keys and metrics.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            ShardKind::Txn => "txn",
            ShardKind::Group => "group",
            ShardKind::Share => "share",
        }
    }
}

/// Reads a key's path. May accept what `encode` would not write; the caller compares.
fn read_key(mut from: Reader<'_>) -> Option<Key> {
    let key = match from.word()? {
        "cluster" => Key::Cluster,
        "b" => {
            let id = BrokerId(from.number()?);
            match from.word()? {
                "wal" => Key::BrokerDisk(id),
                "sess" => Key::BrokerSession(id),
                "drain" => Key::BrokerDrain(id),
                "purged" => Key::BrokerPurged(id),
                _ => return None,
            }
        }
        "topics" => Key::TopicName(from.word()?.parse().ok()?),
        "topic" => Key::Topic(from.topic()?),
        "tomb" => Key::Tombstone(from.topic()?),
        "buried" => Key::Buried,
        "p" => Key::Partition(from.partition()?),
        "pe" => Key::Leadership(from.partition()?),
        "t" => Key::TierRoot(from.partition()?),
        "gc" => match from.word()? {
            "epoch" => Key::GcEpoch,
            "bumped" => Key::GcBumped,
            "drop" => Key::GcDrop { gc_epoch: from.hex()?, partition: from.partition()?, seq: from.hex()? },
            _ => return None,
        },
        "controller" => Key::Controller,
        "pid" if from.word()? == "next" => Key::ProducerIds,
        "bid" if from.word()? == "next" => Key::BrokerIds,
        "shard" => {
            let kind = ShardKind::read(from.word()?)?;
            Key::Shard { kind, shard: from.number()? }
        }
        "seq" => {
            let kind = ShardKind::read(from.word()?)?;
            Key::ShardSeq { kind, shard: from.number()? }
        }
        "purged" => {
            let kind = ShardKind::read(from.word()?)?;
            Key::ShardPurged { kind, shard: from.number()? }
        }
        "x" => Key::Transaction(from.name()?),
        "g" => Key::Group { group: from.name()?, part: from.free()? },
        "o" => Key::Offsets { group: from.name()?, topic: from.topic()?, block: from.number()? },
        "op" => Key::PendingOffsets {
            group: from.name()?,
            topic: from.topic()?,
            block: from.number()?,
            producer: from.number()?,
        },
        "s" => Key::ShareState { group: from.free()?, partition: from.partition()? },
        "gset" => Key::GroupSettings(from.free()?),
        "bucket" => Key::Bucket,
        "loss" => Key::Loss { partition: from.partition()?, epoch: from.number()? },
        _ => return None,
    };
    from.ended().then_some(key)
}

#[cfg(test)]
mod tests;
