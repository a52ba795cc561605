//! What the front doors may ask of a broker, in types: requests, answers and the one error. No behaviour.
//!
//! A door decodes into these, calls one method of `Broker`, and encodes the answer (section 7 of the architecture).

use crate::config::KafkaListener;
use millpond_core::records::ProducerInstance;
use millpond_core::topic_config::{Alteration, Described, SettingKind};
use millpond_log::{
    Batch, BrokerId, ErrorCode, LeaderEpoch, Offset, PartitionId, ProducerEpoch, ProducerId, TimestampMs, TopicId,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Why a request, or its part for one partition, was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", code.name())]
pub struct ApiError {
    /// What it is, in Kafka's vocabulary.
    pub code: ErrorCode,
    /// What happened and what to do, for a person.
    pub message: String,
    /// When to come back, if the broker asks for a pause.
    pub retry_after: Option<Duration>,
    /// Whether the request may have taken effect all the same, or may yet.
    pub maybe_done: bool,
    /// Who leads the partition, where that is why and another is known to.
    pub leader: Option<Box<CurrentLeader>>,
    /// Places in their batch of the records that are to blame, from 0 and ascending, where it is they by themselves.
    pub records: Vec<u32>,
}

impl ApiError {
    /// An error with its message.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> ApiError {
        ApiError {
            code,
            message: message.into(),
            retry_after: None,
            maybe_done: false,
            leader: None,
            records: Vec::new(),
        }
    }

    /// The same error, of a request that may have taken effect.
    #[must_use]
    pub(crate) fn in_doubt(self) -> ApiError {
        ApiError { maybe_done: true, ..self }
    }
}

/// Who leads a partition, and where it is reached (KIP-951).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CurrentLeader {
    /// The epoch it leads in.
    pub epoch: LeaderEpoch,
    /// The broker.
    pub broker: BrokerDescription,
}

/// A topic, as the client named it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopicRef {
    /// By name.
    Name(String),
    /// By id.
    Id(TopicId),
}

/// When a produce is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acks {
    /// Never: the client does not wait.
    None,
    /// When the leader has fsynced it.
    Leader,
    /// When every in-sync replica has fsynced it (rule R9).
    All,
}

/// One batch for one partition.
#[derive(Clone, Debug)]
pub struct ProduceRequest {
    /// The topic.
    pub topic: TopicRef,
    /// Its partition.
    pub partition: u32,
    /// Exactly one record batch v2, as it came.
    pub records: bytes::Bytes,
    /// Bytes of the message that `records` are a part of, and keep in memory with them.
    pub arrived_bytes: usize,
    /// Base sequence of an earlier batch of its producer that the same client was refused before it reached its partition, and will send again
    /// (rule P6).
    pub behind: Option<i32>,
    /// The transaction it may be part of; without it no transactional batch is taken.
    pub transaction: Option<InTransaction>,
    /// When to answer.
    pub acks: Acks,
    /// How long the client waits for the commit; after it `REQUEST_TIMED_OUT`, and the batch may still commit.
    pub timeout: Duration,
}

/// What is known of the transaction that a producer writes in.
#[derive(Clone, Debug)]
pub struct InTransaction {
    /// The transactional id.
    pub id: Arc<str>,
    /// Whether brokers add partitions and groups to the transaction as they are written to, and each transaction has an epoch of its
    /// own (transactions V2, KIP-890). Older clients add by themselves, before they write.
    pub epoch_per_transaction: bool,
    /// Cancelled once nothing more is read of the connection that the request came on: the client may have given the request up, and what
    /// it writes in its next transaction cannot be told from it where both have one epoch (rule X3).
    pub hung_up: CancellationToken,
}

impl InTransaction {
    /// Whether what the request carries may belong to a transaction before the one that is open now.
    pub(crate) fn is_given_up(&self) -> bool {
        !self.epoch_per_transaction && self.hung_up.is_cancelled()
    }
}

/// Offsets that are to become part of a transaction.
#[derive(Clone, Debug)]
pub struct TransactionOffsets {
    /// The transaction.
    pub transaction: InTransaction,
    /// Its producer.
    pub producer: ProducerInstance,
    /// The offsets, and who commits them.
    pub commit: millpond_core::groups::Commit,
}

/// Where a batch landed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Produced {
    /// Offset of its first record.
    pub base_offset: Offset,
    /// The partition's log start offset.
    pub log_start: Offset,
    /// The broker's append time, under `LogAppendTime` only.
    pub append_time: Option<TimestampMs>,
}

/// Which records a reader may see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// Below the high watermark.
    #[default]
    ReadUncommitted,
    /// Below the last stable offset, with the aborted transactions listed.
    ReadCommitted,
}

/// A read from one or more partitions.
#[derive(Clone, Debug)]
pub struct FetchRequest {
    /// What to read, in the order in which bytes are given out.
    pub partitions: Vec<FetchPartition>,
    /// Most bytes of batches in the whole answer; the first batch may exceed it.
    pub bytes_max: usize,
    /// Wait until this many bytes are there...
    pub bytes_min: usize,
    /// ...but not longer than this.
    pub wait_max: Duration,
    /// What may be seen.
    pub isolation: Isolation,
    /// The reader goes through old data once: keep the cache's hot pages.
    pub scan: bool,
}

/// One partition of a fetch.
#[derive(Clone, Debug)]
pub struct FetchPartition {
    /// The topic.
    pub topic: TopicRef,
    /// Its partition.
    pub partition: u32,
    /// First offset wanted.
    pub offset: Offset,
    /// Most bytes of this partition; one whole batch may exceed it if it is the answer's first.
    pub bytes_max: usize,
    /// The leader epoch the client knows (rule F2).
    pub current_leader_epoch: Option<LeaderEpoch>,
    /// Epoch of the record before `offset`, as the client read it; `None` if it does not ask to have that checked.
    pub last_fetched_epoch: Option<LeaderEpoch>,
    /// Who asks, and what follows from that for whom it may read from.
    pub reader: Reader,
}

/// Which replicas a reader may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Reader {
    /// Whichever it asks.
    #[default]
    Anywhere,
    /// The same; a leader sends it to a replica in this rack, if there is one (KIP-392).
    InRack(Arc<str>),
    /// The leader only: its version of the protocol knows no other.
    OfLeader,
}

/// The answer for one partition, in the request's order.
#[derive(Clone, Debug)]
pub struct FetchedPartition {
    /// End of what is committed. 0 when the partition is unknown.
    pub high_watermark: Offset,
    /// End of what a `read_committed` reader sees.
    pub last_stable: Offset,
    /// First offset that exists.
    pub log_start: Offset,
    /// Whole batches in order; the first contains the wanted offset.
    pub batches: Vec<Batch>,
    /// Aborted transactions overlapping `batches`, by first offset; `None` unless `ReadCommitted`.
    pub aborted: Option<Vec<AbortedTxn>>,
    /// The replica to read from instead, which is nearer to the client (KIP-392). Then there are no batches.
    pub preferred: Option<BrokerId>,
    /// The log is not the one the client has read, by `last_fetched_epoch`: where it still is (KIP-595). Then there are no batches.
    pub diverging: Option<EpochEnd>,
    /// Why there is nothing, if that is so.
    pub error: Option<ApiError>,
}

/// Where the records of a leader epoch end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochEnd {
    /// The largest epoch of the log up to the one asked for.
    pub epoch: LeaderEpoch,
    /// Offset after its last record.
    pub end: Offset,
}

/// A transaction whose records a `read_committed` reader skips.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbortedTxn {
    /// Whose.
    pub producer: ProducerId,
    /// Offset of its first record in the partition.
    pub first_offset: Offset,
}

/// Which offset is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffsetSpec {
    /// The log start offset (Kafka's -2).
    Earliest,
    /// The end: high watermark or last stable offset (Kafka's -1).
    Latest,
    /// The first record with the largest timestamp (Kafka's -3).
    MaxTimestamp,
    /// First offset in the WAL (Kafka's -4).
    EarliestLocal,
    /// Last offset in object storage (Kafka's -5).
    LatestTiered,
    /// First offset that is not in object storage yet (Kafka's -6); the end if all is there.
    EarliestPendingUpload,
    /// The earliest record at or after this time.
    AtOrAfter(TimestampMs),
}

/// An offset that was looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundOffset {
    /// The offset.
    pub offset: Offset,
    /// The record's time, where a record was looked for.
    pub timestamp: Option<TimestampMs>,
    /// Epoch of that offset, where known.
    pub leader_epoch: Option<LeaderEpoch>,
}

/// A topic to create.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewTopic {
    /// Name, by Kafka's rules.
    pub name: String,
    /// Partitions; the broker's default when `None`.
    pub partitions: Option<u32>,
    /// Replicas of each; the broker's default when `None`.
    pub replication_factor: Option<u32>,
    /// Replicas of each partition, the preferred leader first, chosen by hand; empty if the cluster is to choose. With them neither
    /// number is given.
    pub assignments: Vec<Vec<BrokerId>>,
    /// Settings by Kafka's names.
    pub configs: BTreeMap<String, String>,
    /// Check only.
    pub validate_only: bool,
}

/// A topic that was created, or could be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicMade {
    /// The topic; without partitions if it was only checked.
    pub topic: TopicDescription,
    /// How many partitions it has, or would have.
    pub partitions: u32,
    /// How many replicas each of them has, or would have.
    pub replication_factor: u32,
    /// Every setting with the value that holds.
    pub settings: Vec<Described>,
}

/// Partitions that a topic is to get.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewPartitions {
    /// How many it has then.
    pub total: u32,
    /// Replicas of each that is new, the preferred leader first, chosen by hand; empty if the cluster is to choose.
    pub assignments: Vec<Vec<BrokerId>>,
    /// Check only.
    pub validate_only: bool,
}

/// How the settings of a topic change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingsChange {
    /// One alteration after the other, of what is set.
    Alter(Vec<(String, Alteration)>),
    /// This is set, and nothing else.
    Replace(BTreeMap<String, String>),
}

/// Where the replicas of a partition are to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveTo {
    /// Who is to hold it, the preferred leader first.
    pub replicas: Vec<BrokerId>,
    /// Whether these may be more or fewer than it has.
    pub factor_may_change: bool,
}

/// A partition whose replicas are being moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionMove {
    /// The topic's name.
    pub topic: String,
    /// Its partition.
    pub partition: u32,
    /// Who holds a copy or is to hold one, those that are to leave last.
    pub replicas: Vec<BrokerId>,
    /// Who of them is yet to be in sync.
    pub adding: Vec<BrokerId>,
    /// Who of them is to leave.
    pub removing: Vec<BrokerId>,
}

/// What a broker's disk holds of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogDir {
    /// The folder of its data.
    pub path: String,
    /// Size of the disk that the folder is on; `None` if that cannot be told.
    pub total_bytes: Option<u64>,
    /// What of that is free for the broker.
    pub usable_bytes: Option<u64>,
    /// The replicas that it holds, by topic and partition.
    pub tails: Vec<TailOnDisk>,
}

/// A replica's part of the WAL: what is not in object storage yet, or not trimmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TailOnDisk {
    /// The topic's name.
    pub topic: String,
    /// Its partition.
    pub partition: u32,
    /// Bytes of it that are needed.
    pub bytes: u64,
    /// Offsets by which it is behind the high watermark.
    pub lag: u64,
}

/// A setting of a broker, as Kafka's tools show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerSetting {
    /// Kafka's name.
    pub name: &'static str,
    /// Its type.
    pub kind: SettingKind,
    /// The value that holds; `None` where it is not set.
    pub value: Option<String>,
    /// The value that holds unless the broker is told another.
    pub default: Option<String>,
    /// What it does.
    pub documentation: &'static str,
}

/// A topic as clients see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicDescription {
    /// Its identity.
    pub id: TopicId,
    /// Its name.
    pub name: String,
    /// Its partitions, by index.
    pub partitions: Vec<PartitionDescription>,
    /// Settings that differ from the defaults.
    pub configs: BTreeMap<String, String>,
}

/// A partition as clients see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionDescription {
    /// Its identity.
    pub id: PartitionId,
    /// Who leads it, if anyone.
    pub leader: Option<BrokerId>,
    /// In which epoch.
    pub leader_epoch: LeaderEpoch,
    /// Who holds a copy.
    pub replicas: Vec<BrokerId>,
    /// Whose copies are complete.
    pub isr: Vec<BrokerId>,
    /// Who is not in sync, and still holds everything committed (rule I2).
    pub elr: Vec<BrokerId>,
    /// Who of the replicas is not alive.
    pub offline: Vec<BrokerId>,
    /// Why nobody may lead it any more, if that is so (rule B4).
    pub loss: Option<PartitionLoss>,
}

/// What was lost of a partition of which no complete copy is left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionLoss {
    /// What happened.
    pub cause: String,
    /// Where the WAL is bad, if that is what happened.
    pub place: Option<DamagedPlace>,
    /// Where the log ends if the loss is accepted: offsets from here on are lost.
    pub end: Offset,
    /// How far the log is known to have reached; it may have been further. `end` if nothing tells.
    pub known_end: Offset,
}

/// A place in the WAL that cannot be read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedPlace {
    /// The file.
    pub file: String,
    /// Byte position of the first bad frame.
    pub position: u64,
}

/// How a broker is given up whose disk is gone for good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GiveUp {
    /// The operator knows that its machine is gone: silence is taken for its end. What runs for all to see is refused none the less.
    pub machine_gone: bool,
    /// Only to say what it would come to: nothing is changed.
    pub validate_only: bool,
}

/// What a broker that is lost was, or would be, given up with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GivenUp {
    /// How many partitions still name it; 0 once it is forgotten.
    pub partitions: usize,
    /// Those of them, by topic and index, of which nobody else may come back with all that was acknowledged.
    pub last_copies: Vec<(String, u32)>,
}

/// A loss that was accepted, or would be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptedLoss {
    /// The topic's name.
    pub topic: String,
    /// What is lost.
    pub loss: PartitionLoss,
    /// The unclean epoch in which the partition is led now; `None` if it was only asked.
    pub leader_epoch: Option<LeaderEpoch>,
}

/// State of one partition's log, for operators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartitionStatus {
    /// First offset that exists.
    pub log_start: Offset,
    /// First offset not in object storage.
    pub tiered_end: Offset,
    /// End of what is committed.
    pub high_watermark: Offset,
    /// Log end offset.
    pub log_end: Offset,
    /// Bytes in the WAL.
    pub tail_bytes: u64,
    /// Bytes in object storage.
    pub tiered_bytes: u64,
}

/// A broker as clients see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerDescription {
    /// Its id.
    pub id: BrokerId,
    /// Its rack, if told.
    pub rack: Option<String>,
    /// Where its gRPC door is, `host:port`.
    pub grpc: String,
    /// Where its Kafka door is, `host:port`.
    pub kafka: String,
    /// Where the listeners of its Kafka door are that have names, by these.
    pub kafka_listeners: BTreeMap<String, String>,
    /// Where its HTTP door is, `host:port`.
    pub http: String,
}

impl BrokerDescription {
    /// Where its Kafka door is for clients that came in by a listener of this name.
    #[must_use]
    pub fn kafka_at(&self, listener: &str) -> Option<&str> {
        if listener == KafkaListener::DEFAULT {
            return Some(&self.kafka);
        }
        self.kafka_listeners.get(listener).map(String::as_str)
    }
}

/// The cluster as clients see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterDescription {
    /// The cluster's id.
    pub id: String,
    /// Who places and elects.
    pub controller: Option<BrokerId>,
    /// Live brokers, by id.
    pub brokers: Vec<BrokerDescription>,
}

/// A producer's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerIdentity {
    /// Its id, unique in the cluster.
    pub id: ProducerId,
    /// Its epoch.
    pub epoch: ProducerEpoch,
}
