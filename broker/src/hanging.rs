//! Transactions that hang, for operators: who has one open in a partition, as its leader knows, and a marker of the operator's own that
//! ends it there (case T3).

use crate::api::{ApiError, TopicRef};
use crate::broker::{Broker, stopping};
use crate::catalog::PartitionHandle;
use crate::clock;
use crate::partitions::messages::{Ending, ProduceReply, ShardMsg};
use crate::partitions::open::{AskedOpen, OpenTransaction, not_open};
use crate::refusals::{not_leader, stale};
use futures::future::join_all;
use millpond_core::records::ProducerInstance;
use millpond_log::producers::ProducerSummary;
use millpond_log::transactions::{EndMarker, Marker, TxnOutcome};
use millpond_log::{Batch, CoordinatorEpoch, ErrorCode, LeaderEpoch, Offset, PartitionId, TimestampMs};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// How long the commit of a marker is waited for. Kafka's `request.timeout.ms` of an admin client.
const MARKED_WITHIN: Duration = Duration::from_secs(30);

/// Most open transactions that are told of at once: who has that many does not need to hear of more to know what is wrong.
const OPEN_MAX: usize = 10_000;

/// Transactions that are open in partitions which are led here.
pub(crate) struct Open {
    /// With the names of their topics, in order of partition and offset.
    pub(crate) transactions: Vec<(String, OpenTransaction)>,
    /// Whether there are more than these.
    pub(crate) more: bool,
}

impl Broker {
    /// What transactions have open in partitions that are led here and was not written to for `idle`: of one partition, of a topic, or of all.
    ///
    /// # Errors
    /// `UNKNOWN_TOPIC_OR_PARTITION`. `NOT_LEADER_OR_FOLLOWER`: this broker may lead nothing any more (rule B5).
    pub(crate) async fn open_transactions(
        &self,
        topic: Option<TopicRef>,
        partition: Option<u32>,
        idle: Duration,
    ) -> Result<Open, ApiError> {
        if !self.session_handle().is_fresh() {
            return Err(stale(ErrorCode::NotLeaderOrFollower));
        }
        let partitions: Arc<[PartitionId]> = match (&topic, partition) {
            (Some(topic), Some(index)) => Arc::new([self.inner().catalog.partition(topic, index)?.1.id]),
            (Some(topic), None) => {
                self.inner().catalog.topic(topic)?.partitions.iter().map(|partition| partition.id).collect()
            }
            (None, _) => {
                let tables = self.inner().catalog.tables();
                tables.topics().flat_map(|topic| topic.partitions.iter().map(|partition| partition.id)).collect()
            }
        };
        let idle_ms = i64::try_from(idle.as_millis()).unwrap_or(i64::MAX);
        let written_by = TimestampMs(clock::wall().0.saturating_sub(idle_ms));
        let asked = self.inner().shards.iter().map(|shard| {
            let (reply, answer) = oneshot::channel();
            let asked = AskedOpen { partitions: Arc::clone(&partitions), written_by, reply };
            // A shard that is gone ends the broker.
            let _ = shard.send(ShardMsg::OpenTransactions(asked));
            answer
        });
        let answers: Result<Vec<Vec<OpenTransaction>>, _> = join_all(asked).await.into_iter().collect();
        let mut found = answers.map_err(|_| stopping())?.concat();
        found.sort_by_key(|open| (open.partition, open.first));
        let more = found.len() > OPEN_MAX;
        found.truncate(OPEN_MAX);
        let named = found.into_iter().filter_map(|open| {
            // A topic that is deleted has nothing open any more.
            let topic = self.inner().catalog.by_id(open.partition.topic)?;
            Some((topic.record.name.to_string(), open))
        });
        Ok(Open { transactions: named.collect(), more })
    }

    /// Aborts what a producer has open in a partition that is led here, from `first` on, whatever its coordinator knows; returns once the marker
    /// is committed.
    ///
    /// # Errors
    /// `INVALID_TXN_STATE`: this is not open. As `write_marker`.
    pub(crate) async fn abort_open_transaction(
        &self,
        topic: &TopicRef,
        partition: u32,
        producer: ProducerInstance,
        first: Offset,
    ) -> Result<(), ApiError> {
        let aborted = async {
            // A follower may know less.
            self.led_here(topic, partition)?;
            // The id may be known twice: as one that writes in transactions, and outside of them (rule P1).
            let is_it = |known: &ProducerSummary| {
                (known.id, known.epoch, known.transaction_start) == (producer.id, producer.epoch, Some(first))
            };
            let open = self.find_producers(topic, partition).await?.into_iter().find(is_it).ok_or_else(not_open)?;
            // The newest coordinator that the log knows: an older one would be refused (rule X5), and a newer one be made up.
            let coordinator_epoch = open.coordinator_epoch.unwrap_or(CoordinatorEpoch(0));
            let end = EndMarker { outcome: TxnOutcome::Abort, coordinator_epoch };
            let marker = Marker { producer: producer.id, epoch: producer.epoch, raised: false, end };
            self.append_marker(topic, partition, marker, Some(first)).await
        };
        aborted.await.map_err(|error| self.naming_leader(topic, partition, error))
    }

    /// The producers that the replica here remembers, by id, with their open transactions; at most 10 000 (rule T4). As in Kafka a follower
    /// answers as well, of what it holds: operators ask a broker for what hangs there.
    ///
    /// # Errors
    /// Of the partition: unknown, or no replica of it is here.
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

    /// The partition, and the epoch in which it is led here.
    fn led_here(&self, topic: &TopicRef, partition: u32) -> Result<(PartitionHandle, LeaderEpoch), ApiError> {
        let (_, handle) = self.inner().catalog.partition(topic, partition)?;
        let visible = handle.local()?.view.borrow().visible;
        if visible.leads { Ok((handle, visible.epoch)) } else { Err(not_leader()) }
    }

    /// Appends a marker to a partition that is led here, whatever the transaction's coordinator knows; returns once it is committed.
    ///
    /// # Errors
    /// Of the partition: unknown, or not led here. `INVALID_PRODUCER_EPOCH`, `TRANSACTION_COORDINATOR_FENCED`: the log knows later ones
    /// (rule X5). `REQUEST_TIMED_OUT`: it may be committed yet.
    pub(crate) async fn write_marker(&self, topic: &TopicRef, partition: u32, marker: Marker) -> Result<(), ApiError> {
        let written = self.counted("WriteTxnMarkers", self.append_marker(topic, partition, marker, None).await);
        written.map_err(|error| self.naming_leader(topic, partition, error))
    }

    /// Only if the producer's open transaction begins at `first`, where that is given.
    async fn append_marker(
        &self,
        topic: &TopicRef,
        partition: u32,
        marker: Marker,
        first: Option<Offset>,
    ) -> Result<(), ApiError> {
        let (handle, office) = self.led_here(topic, partition)?;
        let local = handle.local()?;
        // Like any append it has its room before it has an offset.
        let room = self.wal().reserve(Batch::of_marker(&marker, TimestampMs(0)).size()).ok_or_else(|| {
            ApiError::new(ErrorCode::KafkaStorageError, "the WAL has no room for the marker yet; retry")
        })?;
        let (reply, answer): (ProduceReply, _) = oneshot::channel();
        let ending = Ending { partition: handle.id, office, marker, first, room, reply };
        local.shard.send(ShardMsg::EndTransaction(ending)).map_err(|_| stopping())?;
        let answered = tokio::time::timeout(MARKED_WITHIN, answer).await.map_err(|_| {
            ApiError::new(ErrorCode::RequestTimedOut, "the marker was not committed in time; it may still be")
                .in_doubt()
        })?;
        answered.map_err(|_| stopping())?.map(drop)
    }
}
