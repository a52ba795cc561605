//! The broker as its front doors see it: one handle, one method per request.
//!
//! Produce is here; reads are in `fetch` and `offsets`, topics in `topics`. No method decides: they look up, hand on and wait.

use crate::alive::{self, Alive};
use crate::api::*;
use crate::budget::{Budget, Doors};
use crate::catalog::{Catalog, Local, PartitionHandle, Topic};
use crate::clock;
use crate::config::Config;
use crate::coordinators::Coordinators;
use crate::loss;
use crate::manifests::Manifests;
use crate::marks::LastCalls;
use crate::metrics::Metrics;
use crate::partitions::messages::{Produce, ProduceReply, ProduceSpans, ShardMsg, ShardSender};
use crate::peers::Peers;
use crate::producer_ids::ProducerIds;
use crate::refusals::stale;
use crate::session::SessionHandle;
use crate::tier::TierHandle;
use crate::tiered::Tiered;
use crate::wal::{Wal, WalPermit};
use bytes::Bytes;
use millpond_core::replica;
use millpond_log::batch::{Admitted, BatchError, TimestampType};
use millpond_log::{Batch, BrokerId, ErrorCode, PartitionId, ProducerEpoch, Rid, TimestampMs};
use millpond_metadata::store::{Session, Store};
use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Instant;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tracing::Instrument;
use tracing::field::Empty;

/// A running broker. Cheap to clone.
#[derive(Clone)]
pub struct Broker {
    inner: Arc<Inner>,
}

/// What all requests share.
pub(crate) struct Inner {
    pub(crate) config: Config,
    pub(crate) cluster_id: String,
    pub(crate) rid: Rid,
    pub(crate) session: SessionHandle,
    pub(crate) alive: Alive,
    pub(crate) store: Store,
    pub(crate) catalog: Catalog,
    pub(crate) coordinators: Coordinators,
    /// What coordinators of transactions were heard to say last.
    pub(crate) last_calls: LastCalls,
    pub(crate) shards: Vec<ShardSender>,
    /// The streams to the other brokers.
    pub(crate) peers: Peers,
    pub(crate) wal: Wal,
    pub(crate) tier: TierHandle,
    pub(crate) tiered: Arc<Tiered>,
    pub(crate) producer_ids: ProducerIds,
    /// Bytes of batches between admission and the WAL's sync.
    pub(crate) produce_memory: Arc<Semaphore>,
    /// What the doors may hold.
    pub(crate) budget: Budget,
    /// Who is connected.
    pub(crate) connections: Doors,
    /// Held while topics are created, grown, altered or deleted.
    pub(crate) topic_changes: tokio::sync::Mutex<()>,
    /// Held while a manifest is read for readers.
    pub(crate) manifest_reads: tokio::sync::Mutex<()>,
    /// Manifests of partitions that others hold.
    pub(crate) manifests: Manifests,
    pub(crate) metrics: Arc<Metrics>,
}

impl Broker {
    pub(crate) fn new(inner: Inner) -> Broker {
        Broker { inner: Arc::new(inner) }
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.inner
    }

    /// For those who look in without keeping the broker alive.
    pub(crate) fn downgrade(&self) -> Weak<Inner> {
        Arc::downgrade(&self.inner)
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    /// Counts a refusal on its way to the client.
    pub(crate) fn counted<T>(&self, api: &'static str, result: Result<T, ApiError>) -> Result<T, ApiError> {
        result.inspect_err(|error| self.metrics().failed(api, error.code))
    }

    pub(crate) fn session_handle(&self) -> &SessionHandle {
        &self.inner.session
    }

    /// The session this broker acts under.
    pub(crate) fn session(&self) -> Result<Session, ApiError> {
        self.inner.session.get().ok_or_else(|| {
            ApiError::new(ErrorCode::NotController, "this broker lost its session and is registering again; retry")
        })
    }

    pub(crate) fn wal(&self) -> &Wal {
        &self.inner.wal
    }

    pub(crate) fn tiered(&self) -> &Tiered {
        &self.inner.tiered
    }

    pub(crate) fn partition(&self, topic: &TopicRef, index: u32) -> Result<PartitionHandle, ApiError> {
        self.inner.catalog.partition(topic, index).map(|(_, handle)| handle)
    }

    /// Takes one batch for one partition.
    ///
    /// Returns once the batch has its place in the queue of its partition: calls made one after the other are appended in
    /// that order. The returned future resolves when `acks` is met; dropping it does not undo the append.
    /// Waits while the broker's produce memory is full, until `timeout`.
    ///
    /// # Errors
    /// At once: nothing was appended. From the future: it may have happened if the error says so, and the same batch with the same
    /// sequence settles it; else it did not.
    pub async fn produce(
        &self,
        request: ProduceRequest,
    ) -> Result<impl Future<Output = Result<Produced, ApiError>> + Send + use<>, ApiError> {
        let started = clock::monotonic();
        let span = tracing::debug_span!(
            "produce",
            topic = Empty,
            partition = request.partition,
            bytes = request.records.len(),
            base_offset = Empty,
            error_code = Empty,
            otel.status_code = Empty,
        );
        let deadline = started + request.timeout;
        let (named, partition) = (request.topic.clone(), request.partition);
        let begun = self.begin_produce(request, deadline, &span).instrument(span.clone()).await;
        let Begun { topic, local, size, records, answer } = begun.map_err(|error| {
            failed(&self.inner.metrics, &span, &error);
            self.naming_leader(&named, partition, error)
        })?;
        let broker = self.clone();
        let committed = async move {
            let appended = tokio::time::timeout_at(deadline.into(), answer)
                .await
                .map_err(|_| timed_out("the batch was not committed in time; it may still be").in_doubt())
                .and_then(|answer| answer.unwrap_or_else(|_| Err(stopping().in_doubt())))
                .map_err(|error| {
                    let error = if broker.inner.session.is_fresh() { error } else { by_a_stale_leader(error) };
                    failed(&broker.inner.metrics, &tracing::Span::current(), &error);
                    broker.naming_leader(&TopicRef::Id(topic.record.id), partition, error)
                })?;
            tracing::Span::current().record("base_offset", appended.base.0);
            tracing::debug!("committed");
            broker.metrics().produced(size, records, clock::monotonic() - started);
            let stamped = topic.config.timestamp_type == TimestampType::LogAppendTime;
            Ok(Produced {
                base_offset: appended.base,
                log_start: local.view.borrow().visible.log_start,
                append_time: stamped.then_some(appended.append_time),
            })
        };
        Ok(committed.instrument(span))
    }

    /// From a request to its place in the queue of its shard.
    async fn begin_produce(
        &self,
        request: ProduceRequest,
        deadline: Instant,
        span: &tracing::Span,
    ) -> Result<Begun, ApiError> {
        let ProduceRequest { topic, partition, records, arrived_bytes, behind, transaction, acks, .. } = request;
        let (topic, handle) = self.inner.catalog.partition(&topic, partition)?;
        span.record("topic", topic.record.name.as_str());
        if let Some(refusal) = loss::refusal(&topic, &handle, ErrorCode::LeaderNotAvailable) {
            return Err(refusal);
        }
        let local = handle.local()?.clone();
        if acks != Acks::All && !self.inner.session.is_fresh() {
            return Err(stale(ErrorCode::NotLeaderOrFollower));
        }
        let Provided { batch, latest, room, memory } =
            self.admit(&topic, records, arrived_bytes, deadline).instrument(tracing::debug_span!("admit")).await?;
        if batch.is_transactional() && transaction.is_none() {
            let message = "the batch is part of a transaction: name its transactional id in the request";
            return Err(ApiError::new(ErrorCode::InvalidRequest, message));
        }
        let (size, records) = (batch.size() as u64, u64::from(batch.record_count()));
        let (reply, answer): (ProduceReply, _) = oneshot::channel();
        let acks = match acks {
            Acks::None => replica::Acks::None,
            Acks::Leader => replica::Acks::Leader,
            Acks::All => replica::Acks::All,
        };
        let spans = ProduceSpans { append: tracing::debug_span!("append"), produce: span.clone() };
        let produce =
            Produce { partition: handle.id, batch, latest, acks, behind, transaction, room, memory, reply, spans };
        local.shard.send(ShardMsg::Produce(produce)).map_err(|_| stopping())?;
        Ok(Begun { topic, local, size, records, answer })
    }

    /// Checks a batch and takes what it needs: memory until it is durable, and room in the WAL.
    async fn admit(
        &self,
        topic: &Topic,
        records: Bytes,
        arrived_bytes: usize,
        deadline: Instant,
    ) -> Result<Provided, ApiError> {
        let Admitted { batch, latest } = admit(topic, records)?;
        if batch.size() > self.inner.wal.batch_bytes_max() {
            let message =
                format!("a batch of {} bytes does not fit this broker's WAL files; send smaller ones", batch.size());
            return Err(ApiError::new(ErrorCode::MessageTooLarge, message));
        }
        let size = u32::try_from(batch.size()).expect("max.message.bytes fits u32");
        let memory = Arc::clone(&self.inner.produce_memory).acquire_many_owned(size);
        let memory = tokio::time::timeout_at(deadline.into(), memory)
            .await
            .map_err(|_| timed_out("the broker's produce memory stayed full; nothing was written"))?
            .expect("the semaphore is never closed");
        let room = tokio::time::timeout_at(deadline.into(), self.inner.wal.reserve_soon(batch.size()))
            .await
            .map_err(|_| timed_out("the WAL's next file was not ready in time; nothing was written"))?
            .ok_or_else(wal_full)?;
        // It stays in memory for as long as it is among the newest, and its own bytes are counted: not those that came with it, which may be
        // many and refused.
        let batch = if batch.size() < arrived_bytes / 2 { batch.detached() } else { batch };
        Ok(Provided { batch, latest, room, memory })
    }

    /// Hands out a new idempotent producer's identity.
    pub async fn init_producer(&self) -> Result<ProducerIdentity, ApiError> {
        let next = self.inner.producer_ids.next(&self.inner.store, || self.session());
        let id = self.counted("InitProducer", next.await)?;
        Ok(ProducerIdentity { id, epoch: ProducerEpoch(0) })
    }

    /// The cluster.
    #[must_use]
    pub fn describe_cluster(&self) -> ClusterDescription {
        let sessions = self.inner.alive.sessions();
        ClusterDescription {
            id: self.inner.cluster_id.clone(),
            controller: self.inner.alive.controller(),
            brokers: sessions.iter().map(|(id, seen)| alive::describe(*id, &seen.value)).collect(),
        }
    }

    /// This broker's id.
    #[must_use]
    pub fn id(&self) -> BrokerId {
        self.inner.rid.broker
    }

    /// State of one partition's log.
    pub fn partition_status(&self, partition: PartitionId) -> Result<PartitionStatus, ApiError> {
        let handle = self.partition(&TopicRef::Id(partition.topic), partition.index)?;
        let named = |error| self.naming_leader(&TopicRef::Id(partition.topic), partition.index, error);
        let view = handle.local().map_err(named)?.view.borrow().clone();
        Ok(PartitionStatus {
            log_start: view.visible.log_start,
            tiered_end: view.visible.tiered_end,
            high_watermark: view.visible.hw,
            log_end: view.visible.end,
            tail_bytes: self.inner.wal.partition_bytes(partition),
            tiered_bytes: view.manifest.size(),
        })
    }
}

/// A batch that has its place in the queue of its shard.
struct Begun {
    topic: Arc<Topic>,
    local: Local,
    size: u64,
    records: u64,
    answer: oneshot::Receiver<Result<replica::Appended, ApiError>>,
}

/// A batch that may be appended, with what it takes.
struct Provided {
    batch: Batch,
    latest: TimestampMs,
    room: WalPermit,
    memory: OwnedSemaphorePermit,
}

/// Rules B5, P6: another may lead by now, and have taken what this one takes for missing, or for fenced. So the client asks whoever leads.
fn by_a_stale_leader(error: ApiError) -> ApiError {
    match error.code {
        ErrorCode::OutOfOrderSequenceNumber
        | ErrorCode::InvalidProducerEpoch
        | ErrorCode::UnknownProducerId
        | ErrorCode::InvalidTxnState => stale(ErrorCode::NotLeaderOrFollower),
        _ => error,
    }
}

fn failed(metrics: &Metrics, span: &tracing::Span, error: &ApiError) {
    metrics.failed("Produce", error.code);
    span.record("error_code", error.code.name());
    span.record("otel.status_code", "ERROR");
}

/// Exactly one batch, checked in full against the topic's settings.
fn admit(topic: &Topic, mut records: Bytes) -> Result<Admitted, ApiError> {
    let batch = Batch::take(&mut records).map_err(|error| refused(&error))?;
    let Some(batch) = batch else {
        return Err(ApiError::new(ErrorCode::InvalidRecord, "there is no record batch in the request"));
    };
    if !records.is_empty() {
        return Err(ApiError::new(ErrorCode::InvalidRecord, "a partition takes exactly one record batch in a request"));
    }
    batch.admit_timed(&topic.config.produce_rules(clock::wall())).map_err(|error| refused(&error))
}

fn refused(error: &BatchError) -> ApiError {
    ApiError { records: error.records().to_vec(), ..ApiError::new(error.code(), error.to_string()) }
}

fn timed_out(message: &str) -> ApiError {
    ApiError::new(ErrorCode::RequestTimedOut, message)
}

fn wal_full() -> ApiError {
    let message = "the WAL has no room: its disk or --wal-bytes is full and uploads have not freed it yet; retry";
    ApiError {
        retry_after: Some(std::time::Duration::from_millis(500)),
        ..ApiError::new(ErrorCode::KafkaStorageError, message)
    }
}

pub(crate) fn stopping() -> ApiError {
    ApiError::new(ErrorCode::NotLeaderOrFollower, "this broker is stopping; retry with another")
}
