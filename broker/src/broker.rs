//! The broker as its front doors see it: one handle, one method per request.

use crate::api::*;
use millpond_log::{Offset, PartitionId};
use std::future::Future;

/// A running broker. Cheap to clone.
#[derive(Clone)]
pub struct Broker {}

impl Broker {
    /// Takes one batch for one partition.
    ///
    /// Returns once the batch has its place in the queue of its partition: calls made one after the other are appended in
    /// that order. The returned future resolves when `acks` is met; dropping it does not undo the append.
    /// Waits while the broker's produce memory is full, until `timeout`.
    pub async fn produce(
        &self,
        request: ProduceRequest,
    ) -> Result<impl Future<Output = Result<Produced, ApiError>> + Send + use<>, ApiError> {
        let _ = request;
        Ok(async { todo!() })
    }

    /// Reads, waiting as the request says. The answer has one entry per partition asked for, in order.
    pub async fn fetch(&self, request: FetchRequest) -> Vec<FetchedPartition> {
        let _ = request;
        todo!()
    }

    /// Looks up an offset; `None` when no record qualifies (`AtOrAfter`, `MaxTimestamp` on an empty log).
    pub async fn list_offsets(
        &self,
        topic: &TopicRef,
        partition: u32,
        spec: OffsetSpec,
        isolation: Isolation,
    ) -> Result<Option<FoundOffset>, ApiError> {
        let _ = (topic, partition, spec, isolation);
        todo!()
    }

    /// Hands out a new idempotent producer's identity.
    pub async fn init_producer(&self) -> Result<ProducerIdentity, ApiError> {
        todo!()
    }

    /// The cluster.
    pub fn describe_cluster(&self) -> ClusterDescription {
        todo!()
    }

    /// All topics, by name.
    pub fn topics(&self) -> Vec<TopicDescription> {
        todo!()
    }

    /// One topic.
    pub fn topic(&self, topic: &TopicRef) -> Result<TopicDescription, ApiError> {
        let _ = topic;
        todo!()
    }

    /// Whether a Metadata request may create topics (`auto.create.topics.enable`).
    pub fn auto_create(&self) -> bool {
        todo!()
    }

    /// Creates a topic; its partitions have a leader when this returns.
    pub async fn create_topic(&self, topic: NewTopic) -> Result<TopicDescription, ApiError> {
        let _ = topic;
        todo!()
    }

    /// Deletes a topic for good.
    pub async fn delete_topic(&self, topic: &TopicRef) -> Result<(), ApiError> {
        let _ = topic;
        todo!()
    }

    /// Grows a topic to `total` partitions.
    pub async fn create_partitions(&self, topic: &TopicRef, total: u32, validate_only: bool) -> Result<(), ApiError> {
        let _ = (topic, total, validate_only);
        todo!()
    }

    /// Sets (`Some`) and unsets (`None`) settings of a topic, all or none.
    pub async fn alter_topic(
        &self,
        topic: &TopicRef,
        changes: std::collections::BTreeMap<String, Option<String>>,
        validate_only: bool,
    ) -> Result<(), ApiError> {
        let _ = (topic, changes, validate_only);
        todo!()
    }

    /// Moves the log start offset up to `before` (`None`: to the high watermark); returns the new one.
    pub async fn delete_records(
        &self,
        topic: &TopicRef,
        partition: u32,
        before: Option<Offset>,
    ) -> Result<Offset, ApiError> {
        let _ = (topic, partition, before);
        todo!()
    }

    /// Uploads what is committed of every partition of the topic, now.
    pub async fn flush_topic(&self, topic: &TopicRef) -> Result<(), ApiError> {
        let _ = topic;
        todo!()
    }

    /// State of one partition's log.
    pub fn partition_status(&self, partition: PartitionId) -> Result<PartitionStatus, ApiError> {
        let _ = partition;
        todo!()
    }
}
