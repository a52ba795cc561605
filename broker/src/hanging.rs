//! Transactions that hang, for operators: who has one open in a partition, as its leader knows, and a marker of the operator's own that
//! ends it there (case T3).

use crate::api::{ApiError, TopicRef};
use crate::broker::{Broker, stopping};
use crate::partitions::messages::{ProduceReply, ShardMsg};
use crate::refusals::not_leader;
use millpond_log::producers::ProducerSummary;
use millpond_log::transactions::Marker;
use millpond_log::{Batch, ErrorCode, TimestampMs};
use std::time::Duration;
use tokio::sync::oneshot;

/// How long the commit of a marker is waited for. Kafka's `request.timeout.ms` of an admin client.
const MARKED_WITHIN: Duration = Duration::from_secs(30);

impl Broker {
    /// The producers that the partition remembers, by id, with their open transactions; at most 10 000 (rule T4).
    ///
    /// # Errors
    /// Of the partition: unknown, or not led here.
    pub async fn active_producers(&self, topic: &TopicRef, partition: u32) -> Result<Vec<ProducerSummary>, ApiError> {
        let found = self.counted("DescribeProducers", self.find_producers(topic, partition).await);
        found.map_err(|error| self.naming_leader(topic, partition, error))
    }

    async fn find_producers(&self, topic: &TopicRef, partition: u32) -> Result<Vec<ProducerSummary>, ApiError> {
        let (_, handle) = self.inner().catalog.partition(topic, partition)?;
        let (reply, answer) = oneshot::channel();
        let asked = ShardMsg::Producers { partition: handle.id, reply };
        handle.local()?.shard.send(asked).map_err(|_| stopping())?;
        answer.await.map_err(|_| stopping())?
    }

    /// Appends a marker to a partition that is led here, whatever the transaction's coordinator knows; returns once it is committed.
    ///
    /// # Errors
    /// Of the partition: unknown, or not led here. `INVALID_PRODUCER_EPOCH`, `TRANSACTION_COORDINATOR_FENCED`: the log knows later ones
    /// (rule X5). `REQUEST_TIMED_OUT`: it may be committed yet.
    pub(crate) async fn write_marker(&self, topic: &TopicRef, partition: u32, marker: Marker) -> Result<(), ApiError> {
        let written = self.counted("WriteTxnMarkers", self.append_marker(topic, partition, marker).await);
        written.map_err(|error| self.naming_leader(topic, partition, error))
    }

    async fn append_marker(&self, topic: &TopicRef, partition: u32, marker: Marker) -> Result<(), ApiError> {
        let (_, handle) = self.inner().catalog.partition(topic, partition)?;
        let local = handle.local()?;
        let visible = local.view.borrow().visible;
        if !visible.leads {
            return Err(not_leader());
        }
        // Like any append it has its room before it has an offset.
        let room = self.wal().reserve(Batch::of_marker(&marker, TimestampMs(0)).size()).ok_or_else(|| {
            ApiError::new(ErrorCode::KafkaStorageError, "the WAL has no room for the marker yet; retry")
        })?;
        let (reply, answer): (ProduceReply, _) = oneshot::channel();
        let message = ShardMsg::EndTransaction { partition: handle.id, office: visible.epoch, marker, room, reply };
        local.shard.send(message).map_err(|_| stopping())?;
        let answered = tokio::time::timeout(MARKED_WITHIN, answer).await.map_err(|_| {
            ApiError::new(ErrorCode::RequestTimedOut, "the marker was not committed in time; it may still be")
                .in_doubt()
        })?;
        answered.map_err(|_| stopping())?.map(drop)
    }
}
