//! The state of partitions, as `topic describe` and `cluster describe` show it: one question to each leader.

use futures::StreamExt;
use millpond_sdk::{Admin, BrokerId, PartitionDescription, PartitionStatus, TopicDescription};
use serde::Serialize;

/// How many leaders are asked at once.
const QUESTIONS_AT_ONCE: usize = 16;

/// A partition. The offsets and sizes are null when its leader did not answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct PartitionState {
    pub(super) partition: u32,
    pub(super) leader: Option<u32>,
    pub(super) leader_epoch: u32,
    pub(super) replicas: Vec<u32>,
    pub(super) isr: Vec<u32>,
    pub(super) log_start: Option<u64>,
    pub(super) tiered_end: Option<u64>,
    pub(super) high_watermark: Option<u64>,
    pub(super) log_end: Option<u64>,
    pub(super) tail_bytes: Option<u64>,
    pub(super) tiered_bytes: Option<u64>,
}

/// Asks for the state of every partition of a topic, in order.
pub(super) async fn partitions(admin: &Admin, topic: &TopicDescription) -> Vec<PartitionState> {
    let asked = topic.partitions.iter().map(|partition| async {
        let status = match partition.leader {
            Some(_) => admin.partition_status(&topic.name, partition.index).await.ok(),
            None => None,
        };
        PartitionState::new(partition, status)
    });
    futures::stream::iter(asked).buffered(QUESTIONS_AT_ONCE).collect().await
}

impl PartitionState {
    fn new(partition: &PartitionDescription, status: Option<PartitionStatus>) -> PartitionState {
        let ids = |ids: &[BrokerId]| ids.iter().map(|id| id.0).collect();
        PartitionState {
            partition: partition.index,
            leader: partition.leader.map(|leader| leader.0),
            leader_epoch: partition.leader_epoch.0,
            replicas: ids(&partition.replicas),
            isr: ids(&partition.isr),
            log_start: status.map(|status| status.log_start.0),
            tiered_end: status.map(|status| status.tiered_end.0),
            high_watermark: status.map(|status| status.high_watermark.0),
            log_end: status.map(|status| status.log_end.0),
            tail_bytes: status.map(|status| status.tail_bytes),
            tiered_bytes: status.map(|status| status.tiered_bytes),
        }
    }
}

#[cfg(test)]
impl PartitionState {
    /// A partition with everything known.
    pub(super) fn example() -> PartitionState {
        let partition = PartitionDescription {
            index: 1,
            leader: Some(BrokerId(0)),
            leader_epoch: millpond_sdk::LeaderEpoch(7),
            replicas: vec![BrokerId(0), BrokerId(1)],
            isr: vec![BrokerId(0)],
        };
        PartitionState::new(&partition, Some(PartitionStatus::default()))
    }

    /// A partition without a leader.
    pub(super) fn unknown(partition: u32) -> PartitionState {
        PartitionState { partition, replicas: vec![0], ..PartitionState::default() }
    }
}
