//! Topics, partitions, brokers and the cluster as the admin API tells them. Plain data, read off the wire.

use crate::error::Error;
use crate::record::TopicPartition;
use millpond_log::{BrokerId, ErrorCode, LeaderEpoch, Offset, TimestampMs, TopicId};
use millpond_proto::v1;
use std::collections::BTreeMap;
use std::time::Duration;

/// What a broker tells of how things are, or of how they were.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastKnown<T> {
    /// What it tells.
    pub value: T,
    /// Time since this broker last heard from the metadata store, if that is too long ago to know how things are now.
    pub stale_for: Option<Duration>,
}

/// A topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicDescription {
    /// Its identity: a topic created again under the same name has another.
    pub id: TopicId,
    /// Its name.
    pub name: String,
    /// Its partitions, by index, none missing.
    pub partitions: Vec<PartitionDescription>,
    /// Settings that differ from the defaults, by Kafka's names.
    pub configs: BTreeMap<String, String>,
}

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionDescription {
    /// Index in the topic.
    pub index: u32,
    /// The broker that leads it, if any.
    pub leader: Option<BrokerId>,
    /// Counts its elections.
    pub leader_epoch: LeaderEpoch,
    /// Brokers that hold a copy.
    pub replicas: Vec<BrokerId>,
    /// Brokers whose copy is complete.
    pub isr: Vec<BrokerId>,
    /// Brokers not in sync that hold everything committed all the same: they may lead when nobody in sync is left.
    pub elr: Vec<BrokerId>,
    /// Brokers of `replicas` that are not alive.
    pub offline: Vec<BrokerId>,
    /// Why no broker may lead it any more, if that is so.
    pub loss: Option<PartitionLoss>,
}

/// What is lost of a partition of which no complete copy is left. It has no leader until `Admin::accept_loss`; what is in object
/// storage can still be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionLoss {
    /// What happened, for a person.
    pub cause: String,
    /// The WAL file that is bad, and the byte position of the first bad frame in it, if that is what happened.
    pub place: Option<(String, u64)>,
    /// Where the log ends once the loss is accepted: records at this offset and after it are lost.
    pub end: Offset,
    /// How far the log is known to have reached, exclusive; it may have been further. `end` if nothing tells.
    pub known_end: Offset,
    /// The command line that accepts the loss.
    pub command: String,
}

/// A loss that was accepted, or would be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptedLoss {
    /// What is lost.
    pub loss: PartitionLoss,
    /// The epoch in which the partition is led from now on; `None` if it was only asked.
    pub leader_epoch: Option<LeaderEpoch>,
}

/// What names a broker whose disk is, or would be, gone for good.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LostBroker {
    /// How many partitions do. 0 once it is forgotten.
    pub partitions: u32,
    /// Those of them of which nobody else may come back with all that was acknowledged.
    pub last_copies: Vec<TopicPartition>,
}

/// Offsets and sizes of one partition's log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartitionStatus {
    /// First offset that exists.
    pub log_start: Offset,
    /// First offset that is not in object storage.
    pub tiered_end: Offset,
    /// End of what is committed.
    pub high_watermark: Offset,
    /// Log end offset.
    pub log_end: Offset,
    /// Bytes on brokers' disks.
    pub tail_bytes: u64,
    /// Bytes in object storage.
    pub tiered_bytes: u64,
}

/// A broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerDescription {
    /// Its id.
    pub id: BrokerId,
    /// Its rack, if it has one.
    pub rack: Option<String>,
    /// Where it speaks gRPC, `host:port`.
    pub grpc: String,
    /// Where it speaks the Kafka protocol, `host:port`.
    pub kafka: String,
    /// Where it speaks HTTP, `host:port`.
    pub http: String,
}

/// The cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterDescription {
    /// Its id.
    pub id: String,
    /// The broker that places and elects, if known.
    pub controller: Option<BrokerId>,
    /// Live brokers, by id.
    pub brokers: Vec<BrokerDescription>,
}

/// An offset that was looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundOffset {
    /// The offset.
    pub offset: Offset,
    /// The record's time, where a record was looked for.
    pub timestamp: Option<TimestampMs>,
    /// Leader epoch of that offset, where known.
    pub leader_epoch: Option<LeaderEpoch>,
}

impl TryFrom<v1::TopicDescription> for TopicDescription {
    type Error = Error;

    fn try_from(topic: v1::TopicDescription) -> Result<TopicDescription, Error> {
        let id = topic.id.parse().map_err(|error| {
            Error::new(ErrorCode::UnknownServerError, format!("the broker sent topic id `{}`: {error}", topic.id))
        })?;
        let partitions = topic.partitions.into_iter().map(PartitionDescription::from).collect();
        Ok(TopicDescription { id, name: topic.name, partitions, configs: topic.configs })
    }
}

impl From<v1::PartitionDescription> for PartitionDescription {
    fn from(partition: v1::PartitionDescription) -> PartitionDescription {
        let brokers = |ids: Vec<u32>| ids.into_iter().map(BrokerId).collect();
        PartitionDescription {
            index: partition.index,
            leader: partition.leader.map(BrokerId),
            leader_epoch: LeaderEpoch(partition.leader_epoch),
            replicas: brokers(partition.replicas),
            isr: brokers(partition.isr),
            elr: brokers(partition.elr),
            offline: brokers(partition.offline),
            loss: partition.loss.map(PartitionLoss::from),
        }
    }
}

impl From<v1::PartitionLoss> for PartitionLoss {
    fn from(loss: v1::PartitionLoss) -> PartitionLoss {
        let v1::PartitionLoss { cause, file, position, end, known_end, command } = loss;
        PartitionLoss { cause, place: file.zip(position), end: Offset(end), known_end: Offset(known_end), command }
    }
}

impl std::fmt::Display for PartitionLoss {
    /// One sentence: what happened, and what is lost.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.cause)?;
        if let Some((file, position)) = &self.place {
            write!(f, " (`{file}`, byte {position})")?;
        }
        match self.known_end.0.saturating_sub(self.end.0) {
            0 => write!(f, "; if anything was acknowledged from offset {} on, it is lost", self.end),
            count => {
                let last = self.known_end.0 - 1;
                write!(f, "; the {count} offsets {} to {last} are lost, with whatever came after them", self.end)
            }
        }
    }
}

impl From<v1::BrokerDescription> for BrokerDescription {
    fn from(broker: v1::BrokerDescription) -> BrokerDescription {
        let v1::BrokerDescription { id, rack, grpc, kafka, http } = broker;
        BrokerDescription { id: BrokerId(id), rack, grpc, kafka, http }
    }
}

impl From<v1::DescribeClusterResponse> for ClusterDescription {
    fn from(cluster: v1::DescribeClusterResponse) -> ClusterDescription {
        ClusterDescription {
            id: cluster.id,
            controller: cluster.controller.map(BrokerId),
            brokers: cluster.brokers.into_iter().map(BrokerDescription::from).collect(),
        }
    }
}

impl From<v1::DescribePartitionResponse> for PartitionStatus {
    fn from(status: v1::DescribePartitionResponse) -> PartitionStatus {
        PartitionStatus {
            log_start: Offset(status.log_start),
            tiered_end: Offset(status.tiered_end),
            high_watermark: Offset(status.high_watermark),
            log_end: Offset(status.log_end),
            tail_bytes: status.tail_bytes,
            tiered_bytes: status.tiered_bytes,
        }
    }
}
