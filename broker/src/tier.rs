//! The tierer: the one task that changes manifests. Flush, retention, delete-records and compaction of a partition are serialised here (rule C3).
//!
//! Level-triggered: each look starts from the views and the WAL, so whatever failed is simply found again (rule T8). What is
//! due and what a failure means is decided in `core::tiering` and `core::flush`; this carries it out.

pub(crate) mod commit;
mod compaction;
mod manifests;
pub(crate) mod upload;

pub(crate) use compaction::{Compactable, CompactionChange, CompactionStep, PassInput, StepRefused};

use crate::api::ApiError;
use crate::clock;
use crate::metrics::TierMeters;
use crate::partitions::messages::{ShardMsg, ShardSender};
use crate::partitions::view::ViewReceiver;
use crate::refusals::not_leader;
use crate::telemetry::TracedTails;
use crate::tiered::Tiered;
use crate::wal::Wal;
use commit::{CommitError, Committer};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use millpond_core::flush::{self, FlushRule, PlannedObject, Pressure, Tail};
use millpond_core::replica::EndState;
use millpond_core::tiering::{Backoff, Look, TierRules, TierSettings, Tiering};
use millpond_core::topic_config::{TopicConfig, millis};
use millpond_log::manifest::{ManifestRoot, SegmentEntry};
use millpond_log::producers::ProducerTable;
use millpond_log::{ErrorCode, Offset, PartitionId};
use millpond_metadata::kv::Revision;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span};
use upload::{Source, UploadError, Uploaded, Uploader};

/// Objects under way at once. Two keep the bucket busy while one is built; each is held in memory meanwhile.
const UPLOADS_MAX: usize = 2;

/// The WAL is filling when less than this share of it can be reserved.
const PRESSURE_FREE_SHARE: u64 = 4;

/// Most flushes that are waited for at once, and most cuts; more are refused. An operator's tool asks for one, Kafka's door for 64.
const WISHES_MAX: usize = 1024;

/// What the tierer is asked.
pub(crate) enum TierRequest {
    /// This broker holds the partition from now on.
    Hold(Box<Held>),
    /// Its settings changed.
    Configure { partition: PartitionId, config: Box<TopicConfig> },
    /// It holds it no longer.
    Leave { partition: PartitionId },
    /// Upload what is committed, now.
    Flush { partitions: Vec<PartitionId>, done: oneshot::Sender<Result<(), ApiError>> },
    /// Move the log start.
    DeleteRecords { partition: PartitionId, before: Option<Offset>, done: oneshot::Sender<Result<Offset, ApiError>> },
    /// Which partitions may be due for compaction.
    Compactable { done: oneshot::Sender<Vec<Compactable>> },
    /// What a pass of compaction needs to know besides the manifest. `None` when the partition is not led here.
    PassInput { partition: PartitionId, done: oneshot::Sender<Option<PassInput>> },
    /// A step of compaction.
    Compact(Box<CompactionStep>),
}

/// Asks the tierer.
#[derive(Clone)]
pub(crate) struct TierHandle {
    requests: mpsc::UnboundedSender<TierRequest>,
}

impl TierHandle {
    pub(crate) fn new() -> (TierHandle, mpsc::UnboundedReceiver<TierRequest>) {
        let (requests, inbox) = mpsc::unbounded_channel();
        (TierHandle { requests }, inbox)
    }

    /// Hands over a request. After the tierer ended nobody answers, and the asker sees its channel close.
    pub(crate) fn send(&self, request: TierRequest) {
        let _ = self.requests.send(request);
    }
}

/// A partition this broker holds, as it is handed to the tierer.
pub(crate) struct Held {
    pub(crate) topic_name: String,
    pub(crate) config: TopicConfig,
    pub(crate) shard: ShardSender,
    pub(crate) view: ViewReceiver,
    /// The manifest as last committed, and its revision in the metadata store.
    pub(crate) root: Arc<ManifestRoot>,
    pub(crate) revision: Revision,
    /// Producer state at `root.tiered_end` (rule T4).
    pub(crate) producers: ProducerTable,
}

/// The same as the tierer keeps it.
struct Partition {
    topic_name: String,
    config: TopicConfig,
    shard: ShardSender,
    view: ViewReceiver,
    tiering: Tiering,
}

impl From<Held> for Partition {
    fn from(held: Held) -> Partition {
        let Held { topic_name, config, shard, view, root, revision, producers } = held;
        let tiering = Tiering::new(root, revision.0, producers, settings(&config), TierRules::ALL);
        Partition { topic_name, config, shard, view, tiering }
    }
}

fn settings(config: &TopicConfig) -> TierSettings {
    let rule = FlushRule { bytes: config.upload_bytes(), age_ms: millis(config.upload_age()) };
    TierSettings { rule, retention_ms: config.retention.map_or(-1, millis) }
}

/// A wish to flush, answered when every partition is tiered up to what was committed when it was made.
struct FlushWish {
    targets: BTreeMap<PartitionId, Offset>,
    done: oneshot::Sender<Result<(), ApiError>>,
}

/// A wish to move the log start, answered when it has moved.
struct CutWish {
    partition: PartitionId,
    to: Offset,
    until: Instant,
    /// It has moved a part of the way.
    begun: bool,
    done: oneshot::Sender<Result<Offset, ApiError>>,
}

type UploadTask = BoxFuture<'static, (Flush, Result<Uploaded, UploadError>)>;

/// One object under way, from its plan to its commit.
struct Flush {
    planned: PlannedObject,
    spans: FlushSpans,
}

/// Where the traces go on. Empty and disabled where nobody traces.
struct FlushSpans {
    /// The object's own.
    flush: Span,
    /// One in the trace of each traced batch that is uploaded.
    batches: Vec<Span>,
}

impl FlushSpans {
    fn failed(&self) {
        for span in std::iter::once(&self.flush).chain(&self.batches) {
            span.record("otel.status_code", "ERROR");
        }
    }
}

/// The task's state.
pub(crate) struct Tierer {
    pub(crate) inbox: mpsc::UnboundedReceiver<TierRequest>,
    pub(crate) wal: Wal,
    pub(crate) tiered: Arc<Tiered>,
    pub(crate) uploader: Uploader,
    pub(crate) committer: Committer,
    pub(crate) meters: TierMeters,
    pub(crate) traced: Arc<TracedTails>,
    pub(crate) interval: Duration,
    pub(crate) started: Instant,
    pub(crate) state: TierState,
}

#[derive(Default)]
pub(crate) struct TierState {
    partitions: BTreeMap<PartitionId, Partition>,
    uploads: FuturesUnordered<UploadTask>,
    wishes: Vec<FlushWish>,
    cuts: Vec<CutWish>,
    compaction: Vec<CompactionStep>,
    /// Some of these have further to go, and nothing to wait for.
    goes_on: bool,
    /// Of the object store and the metadata store, which all partitions share. Each has its own besides.
    backoff: Backoff,
}

impl Tierer {
    /// Runs until `shutdown`. What is under way then is an orphan at worst.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        let mut tick = tokio::time::interval(self.interval);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                request = self.inbox.recv() => match request {
                    Some(request) => self.on_request(request).await,
                    None => return,
                },
                Some((flush, outcome)) = self.state.uploads.next() => self.on_uploaded(flush, outcome).await,
                () = std::future::ready(()), if self.state.goes_on => self.state.goes_on = false,
                _ = tick.tick() => {
                    self.settle_open().await;
                    self.apply_retention().await;
                }
            }
            self.look_at_offices();
            self.grant_wishes();
            self.grant_cuts().await;
            self.grant_compaction().await;
            self.start_uploads();
        }
    }

    /// Whoever leads uploads, and nobody else (rules B2, B3, T1).
    fn look_at_offices(&mut self) {
        for led in self.state.partitions.values_mut() {
            led.tiering.see(&led.view.borrow().visible);
        }
    }

    /// A clock that only goes forward, for pauses.
    fn now_ms(&self) -> u64 {
        u64::try_from(clock::monotonic().duration_since(self.started).as_millis()).unwrap_or(u64::MAX)
    }

    async fn on_request(&mut self, request: TierRequest) {
        let partitions = &mut self.state.partitions;
        match request {
            TierRequest::Hold(held) => drop(partitions.insert(held.root.partition, Partition::from(*held))),
            TierRequest::Leave { partition } => drop(partitions.remove(&partition)),
            TierRequest::Configure { partition, config } => {
                if let Some(led) = partitions.get_mut(&partition) {
                    led.tiering.configure(settings(&config));
                    led.config = *config;
                }
            }
            TierRequest::Flush { partitions, done } => self.on_flush(partitions, done),
            TierRequest::DeleteRecords { partition, before, done } => self.on_cut(partition, before, done),
            // Whoever asks these ends with the broker.
            TierRequest::Compactable { done } => drop(done.send(self.compactable())),
            TierRequest::PassInput { partition, done } => drop(done.send(self.pass_input(partition))),
            TierRequest::Compact(step) => self.state.compaction.push(*step),
        }
    }

    fn on_flush(&mut self, partitions: Vec<PartitionId>, done: oneshot::Sender<Result<(), ApiError>>) {
        if self.state.wishes.len() >= WISHES_MAX {
            let many = ApiError::new(ErrorCode::ThrottlingQuotaExceeded, "too many flushes are waited for; retry");
            // Nobody else is to be told.
            let _ = done.send(Err(many));
            return;
        }
        let committed = |partition: PartitionId| {
            // Of one that is not held here nothing is known, and granting the wish refuses it.
            let held = self.state.partitions.get(&partition);
            (partition, held.map_or(Offset(0), |held| held.view.borrow().visible.lso))
        };
        let targets = partitions.into_iter().map(committed).collect();
        self.state.wishes.push(FlushWish { targets, done });
    }

    /// Answers the wishes that are fulfilled, and forgets those that nobody waits for. One with a partition that is not led here
    /// is refused: what of it is uploaded is another broker's business, and may be less than was asked for.
    fn grant_wishes(&mut self) {
        let partitions = &self.state.partitions;
        let led = |partition: PartitionId| partitions.get(&partition).filter(|held| held.tiering.office().is_some());
        let open = |(partition, target): (&PartitionId, &Offset)| {
            led(*partition).is_some_and(|led| led.tiering.root().tiered_end < *target)
        };
        for wish in std::mem::take(&mut self.state.wishes) {
            if wish.done.is_closed() {
                continue;
            }
            if wish.targets.keys().any(|partition| led(*partition).is_none()) {
                let _ = wish.done.send(Err(not_leader()));
            } else if wish.targets.iter().any(open) {
                self.state.wishes.push(wish);
            } else {
                let _ = wish.done.send(Ok(()));
            }
        }
    }

    fn start_uploads(&mut self) {
        let now_ms = self.now_ms();
        if self.state.uploads.len() >= UPLOADS_MAX || !self.state.backoff.over(now_ms) {
            return;
        }
        let usage = self.wal.usage();
        let filling = usage.free_bytes < usage.bytes_max / PRESSURE_FREE_SHARE;
        let pressure = if filling { Pressure::WalFilling } else { Pressure::Calm };
        let look = Look { mono_ms: now_ms, wall: clock::wall(), pressure };
        let tails: Vec<Tail> = self.state.partitions.iter().filter_map(|(id, led)| self.tail(*id, led, look)).collect();
        if tails.is_empty() {
            return;
        }
        let wished: BTreeSet<PartitionId> =
            self.state.wishes.iter().flat_map(|wish| wish.targets.keys().copied()).collect();
        for planned in flush::plan(look.wall, &tails, &wished, pressure) {
            if self.state.uploads.len() >= UPLOADS_MAX {
                break;
            }
            self.start_upload(planned);
        }
    }

    fn tail(&self, partition: PartitionId, led: &Partition, look: Look) -> Option<Tail> {
        let visible = led.view.borrow().visible;
        led.tiering.tail(look, &visible, |from, to, bytes| self.wal.summary(partition, from, to, bytes))
    }

    fn start_upload(&mut self, planned: PlannedObject) {
        let partitions = &mut self.state.partitions;
        let source = |tail: &Tail| {
            let led = partitions.get_mut(&tail.partition).expect("its tail was offered in this look");
            let epoch = led.tiering.begin_upload();
            let from = EndState::tiered(led.tiering.root(), led.tiering.producers().clone());
            Source { tail: *tail, topic_name: led.topic_name.clone(), epoch, from }
        };
        let sources: Vec<Source> = planned.tails.iter().map(source).collect();
        let uploader = self.uploader.clone();
        let gc_epoch = self.committer.gc_epoch();
        let spans = self.flush_spans(&planned);
        let meters = self.meters.clone();
        self.state.uploads.push(Box::pin(async move {
            let begun = clock::monotonic();
            let span = tracing::debug_span!(parent: &spans.flush, "upload_object");
            let outcome = uploader.upload(sources, gc_epoch).instrument(span).await;
            meters.upload_seconds.record((clock::monotonic() - begun).as_secs_f64(), &[]);
            (Flush { planned, spans }, outcome)
        }));
    }

    fn flush_spans(&self, planned: &PlannedObject) -> FlushSpans {
        let flush = tracing::debug_span!(
            parent: None,
            "flush",
            segments = planned.tails.len(),
            bytes = planned.tails.iter().map(|tail| tail.bytes).sum::<u64>(),
            otel.status_code = tracing::field::Empty,
        );
        if flush.is_disabled() {
            return FlushSpans { flush, batches: Vec::new() };
        }
        let uploads = |tail: &Tail| self.traced.uploads(tail.partition, &(tail.tiered_end..tail.end));
        let batches: Vec<Span> = planned.tails.iter().flat_map(uploads).collect();
        // First this way: whether the object's span is kept is decided by the spans it is linked to.
        for batch in &batches {
            flush.follows_from(batch);
        }
        for batch in &batches {
            batch.follows_from(&flush);
        }
        FlushSpans { flush, batches }
    }

    async fn on_uploaded(&mut self, flush: Flush, outcome: Result<Uploaded, UploadError>) {
        let Flush { planned, spans } = flush;
        let uploaded = match outcome {
            Ok(uploaded) => uploaded,
            Err(error) => {
                spans.failed();
                return self.upload_failed(&planned, &error);
            }
        };
        let commit = tracing::debug_span!(parent: &spans.flush, "commit");
        match self.commit_upload(uploaded).instrument(commit).await {
            Ok(()) => self.state.backoff = Backoff::default(),
            Err(error) => {
                spans.failed();
                self.pause(&error);
            }
        }
    }

    /// A bundle of which one member is at fault is planned again without it (rule K8); the rest waits for nothing.
    fn upload_failed(&mut self, planned: &PlannedObject, error: &UploadError) {
        let now_ms = self.now_ms();
        let blamed = error.partition();
        for tail in &planned.tails {
            if let Some(led) = self.state.partitions.get_mut(&tail.partition) {
                led.tiering.upload_failed(now_ms, blamed == Some(tail.partition), rand::random());
            }
        }
        match blamed {
            None => self.pause(error),
            Some(partition) => {
                self.meters.upload_errors.add(1, &[]);
                if let (Some(fault), Some(led)) = (error.fault(), self.state.partitions.get(&partition)) {
                    // The shard is gone only when the broker ends.
                    let _ = led.shard.send(ShardMsg::Fault { partition, fault });
                    return;
                }
                let reason = crate::refusals::storage_error(error).message;
                tracing::warn!(%partition, reason, "a tail could not be uploaded; it is tried again");
            }
        }
    }

    /// The object store or the metadata store is at fault: nothing goes up for a while.
    fn pause(&mut self, error: &(dyn std::error::Error + 'static)) {
        self.meters.upload_errors.add(1, &[]);
        let now_ms = self.now_ms();
        self.state.backoff.fail(now_ms, rand::random());
        tracing::warn!(
            reason = crate::refusals::storage_error(error).message,
            retry_ms = self.state.backoff.until_ms() - now_ms,
            "upload failed; produce goes on while the WAL has room"
        );
    }

    /// Commits the segments of one object: manifests first, then everyone hears of it (rule T6).
    async fn commit_upload(&mut self, uploaded: Uploaded) -> Result<(), CommitError> {
        self.meters.uploads.add(1, &[]);
        self.meters.upload_bytes.add(uploaded.object.length, &[]);
        let mut changes = Vec::with_capacity(uploaded.object.segments.len());
        for (placed, (partition, producers)) in uploaded.object.segments.iter().zip(uploaded.after) {
            assert_eq!(placed.meta.partition, partition, "an object's segments are in the order of its tails");
            let entry = SegmentEntry::new(uploaded.key, uploaded.object.length, placed.clone());
            // Led no longer: the range is an orphan.
            let led = self.state.partitions.get_mut(&partition);
            changes.extend(led.and_then(|led| led.tiering.uploaded(entry, producers)));
        }
        self.tiered.warm(&uploaded.key, &uploaded.object.parts, uploaded.object.length);
        self.apply(changes).await
    }
}
