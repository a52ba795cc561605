//! The tierer: the one task that changes manifests. Flush, retention and delete-records of a partition are serialised here (rule C3).
//!
//! Level-triggered: each look starts from the views and the WAL, so whatever failed is simply found again (rule T8).

pub(crate) mod commit;
pub(crate) mod upload;

use crate::api::ApiError;
use crate::clock;
use crate::metrics::Metrics;
use crate::partitions::shard::{ShardMsg, ShardSender};
use crate::partitions::view::{PartitionView, ViewReceiver};
use crate::tiered::Tiered;
use crate::wal::Wal;
use commit::{Change, CommitError, Committer};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use millpond_core::flush::{self, FlushRule, PlannedObject, Pressure, Tail};
use millpond_core::replica::Visible;
use millpond_core::topic_config::{TopicConfig, millis};
use millpond_log::manifest::{ManifestRoot, ManifestView, Retention, SegmentEntry};
use millpond_log::producers::ProducerTable;
use millpond_log::{ErrorCode, LeaderEpoch, Offset, PartitionId, TimestampMs};
use millpond_metadata::kv::Revision;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use upload::{Source, UploadError, Uploaded, Uploader};

/// Objects under way at once. Two keep the bucket busy while one is built; each is held in memory meanwhile.
const UPLOADS_MAX: usize = 2;

/// The WAL is filling when less than this share of it can be reserved.
const PRESSURE_FREE_SHARE: u64 = 4;

/// Pause after the first failure of the object store; it doubles up to `BACKOFF_MAX`, with jitter (case S1).
const BACKOFF_MIN: Duration = Duration::from_millis(200);
const BACKOFF_MAX: Duration = Duration::from_secs(30);

/// What the tierer is asked.
pub(crate) enum TierRequest {
    /// This broker holds the partition from now on.
    Hold(Box<Led>),
    /// Its settings changed.
    Configure { partition: PartitionId, config: Box<TopicConfig> },
    /// It holds it no longer.
    Leave { partition: PartitionId },
    /// Upload what is committed, now.
    Flush { partitions: Vec<PartitionId>, done: oneshot::Sender<Result<(), ApiError>> },
    /// Move the log start.
    DeleteRecords { partition: PartitionId, before: Option<Offset>, done: oneshot::Sender<Result<Offset, ApiError>> },
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

/// A partition this broker leads, as the tierer keeps it.
pub(crate) struct Led {
    pub(crate) partition: PartitionId,
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

impl Led {
    /// The epoch it is led in, which a commit is held to (rule T5).
    fn epoch(&self) -> LeaderEpoch {
        self.view.borrow().visible.epoch
    }
}

/// A wish to flush, answered when every partition is tiered up to what was committed when it was made.
struct FlushWish {
    targets: BTreeMap<PartitionId, Offset>,
    done: oneshot::Sender<Result<(), ApiError>>,
}

type UploadTask = BoxFuture<'static, (PlannedObject, Result<Uploaded, UploadError>)>;

/// The task's state.
pub(crate) struct Tierer {
    pub(crate) inbox: mpsc::UnboundedReceiver<TierRequest>,
    pub(crate) wal: Wal,
    pub(crate) tiered: Arc<Tiered>,
    pub(crate) uploader: Uploader,
    pub(crate) committer: Committer,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) interval: Duration,
    pub(crate) state: TierState,
}

#[derive(Default)]
pub(crate) struct TierState {
    led: BTreeMap<PartitionId, Led>,
    uploading: BTreeSet<PartitionId>,
    uploads: FuturesUnordered<UploadTask>,
    wishes: Vec<FlushWish>,
    failures: u32,
    paused_until: Option<Instant>,
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
                Some((planned, outcome)) = self.state.uploads.next() => self.on_uploaded(planned, outcome).await,
                _ = tick.tick() => self.apply_retention().await,
            }
            self.grant_wishes();
            self.start_uploads();
        }
    }

    async fn on_request(&mut self, request: TierRequest) {
        match request {
            TierRequest::Hold(led) => drop(self.state.led.insert(led.partition, *led)),
            TierRequest::Leave { partition } => drop(self.state.led.remove(&partition)),
            TierRequest::Configure { partition, config } => {
                if let Some(led) = self.state.led.get_mut(&partition) {
                    led.config = *config;
                }
            }
            TierRequest::Flush { partitions, done } => {
                let committed = |partition: PartitionId| {
                    self.state.led.get(&partition).map(|led| (partition, led.view.borrow().visible.lso))
                };
                let targets = partitions.into_iter().filter_map(committed).collect();
                self.state.wishes.push(FlushWish { targets, done });
            }
            TierRequest::DeleteRecords { partition, before, done } => {
                let moved = self.delete_records(partition, before).await;
                // The asker may have gone away; the log start has moved all the same.
                let _ = done.send(moved);
            }
        }
    }

    /// Answers the wishes that are fulfilled. A partition that is led no longer fulfils itself.
    fn grant_wishes(&mut self) {
        let led = &self.state.led;
        let open = |(partition, target): (&PartitionId, &Offset)| {
            led.get(partition).is_some_and(|led| led.root.tiered_end < *target)
        };
        for wish in std::mem::take(&mut self.state.wishes) {
            if wish.targets.iter().any(open) {
                self.state.wishes.push(wish);
            } else {
                let _ = wish.done.send(Ok(()));
            }
        }
    }

    fn start_uploads(&mut self) {
        if self.state.uploads.len() >= UPLOADS_MAX
            || self.state.paused_until.is_some_and(|until| clock::monotonic() < until)
        {
            return;
        }
        let tails: Vec<Tail> = self.state.led.values().filter_map(|led| self.tail_of(led)).collect();
        if tails.is_empty() {
            return;
        }
        let wished: Vec<PartitionId> = self.state.wishes.iter().flat_map(|wish| wish.targets.keys().copied()).collect();
        let usage = self.wal.usage();
        let filling = usage.free_bytes < usage.bytes_max / PRESSURE_FREE_SHARE;
        let pressure = if filling { Pressure::WalFilling } else { Pressure::Calm };
        for planned in flush::plan(clock::wall(), &tails, &wished, pressure) {
            if self.state.uploads.len() >= UPLOADS_MAX {
                break;
            }
            self.start_upload(planned);
        }
    }

    fn start_upload(&mut self, planned: PlannedObject) {
        let sources: Vec<Source> =
            planned.tails.iter().map(|tail| source(&self.state.led[&tail.partition], *tail)).collect();
        self.state.uploading.extend(planned.tails.iter().map(|tail| tail.partition));
        let uploader = self.uploader.clone();
        let gc_epoch = self.committer.gc_epoch();
        self.state.uploads.push(Box::pin(async move {
            let outcome = uploader.upload(sources, gc_epoch).await;
            (planned, outcome)
        }));
    }

    /// The committed tail of a partition, unless it is empty or being uploaded.
    fn tail_of(&self, led: &Led) -> Option<Tail> {
        let Visible { leads, lso, .. } = led.view.borrow().visible;
        let tiered_end = led.root.tiered_end;
        if !leads || lso <= tiered_end || self.state.uploading.contains(&led.partition) {
            return None;
        }
        let entries = self.wal.entries(led.partition, tiered_end, lso);
        let oldest = entries.first()?.append_time;
        // T1: a segment holds whole batches below the last stable offset, and no more than its topic asks for.
        let mut bytes = 0;
        let mut end = tiered_end;
        for entry in entries.iter().take_while(|entry| entry.end <= lso) {
            if bytes > 0 && bytes + u64::from(entry.size) > led.config.upload_bytes() {
                break;
            }
            bytes += u64::from(entry.size);
            end = entry.end;
        }
        let more = end < lso;
        let rule = FlushRule {
            bytes: if more { bytes } else { led.config.upload_bytes() },
            age_ms: millis(led.config.upload_age()),
        };
        Some(Tail {
            partition: led.partition,
            tiered_end,
            lso: end,
            bytes,
            oldest,
            rule,
            retention_ms: led.config.retention.map_or(-1, millis),
        })
    }

    async fn on_uploaded(&mut self, planned: PlannedObject, outcome: Result<Uploaded, UploadError>) {
        for tail in &planned.tails {
            self.state.uploading.remove(&tail.partition);
        }
        let committed = match outcome {
            Ok(uploaded) => self.commit_upload(uploaded).await.map_err(|error| error.to_string()),
            Err(UploadError::Moved { .. }) => return,
            Err(error) => Err(crate::refusals::storage_error(&error).message),
        };
        match committed {
            Ok(()) => {
                self.state.failures = 0;
                self.state.paused_until = None;
            }
            Err(reason) => self.pause(&reason),
        }
    }

    fn pause(&mut self, reason: &str) {
        self.metrics.upload_errors.inc();
        let doubled = BACKOFF_MIN.saturating_mul(1 << self.state.failures.min(16)).min(BACKOFF_MAX);
        self.state.failures += 1;
        let pause = doubled.mul_f64(rand::random_range(0.5..1.0));
        self.state.paused_until = Some(clock::monotonic() + pause);
        tracing::warn!(
            reason,
            retry_ms = pause.as_millis() as u64,
            "upload failed; produce goes on while the WAL has room"
        );
    }

    /// Commits the segments of one object: manifests first, then everyone hears of it (rule T6).
    async fn commit_upload(&mut self, uploaded: Uploaded) -> Result<(), CommitError> {
        self.metrics.uploads.inc();
        self.metrics.upload_bytes.inc_by(uploaded.object.length);
        let mut changes = Vec::with_capacity(uploaded.object.segments.len());
        for placed in &uploaded.object.segments {
            let entry = SegmentEntry::new(uploaded.key, uploaded.object.length, placed.clone());
            // Led no longer, or led again in a later epoch and tiered meanwhile: the range is an orphan.
            let Some(led) = self.state.led.get(&placed.meta.partition).filter(|led| led.root.tiered_end == entry.base)
            else {
                continue;
            };
            changes.push(Change::append(led, led.root.append(entry, led.epoch()), uploaded.key.gc_epoch()));
        }
        self.committer.put_rolled(&self.uploader, &mut changes).await;
        let after: BTreeMap<PartitionId, ProducerTable> = uploaded.after.into_iter().collect();
        self.tiered.warm(&uploaded.key, &uploaded.object.parts, uploaded.object.length);
        self.apply(changes, &after).await
    }

    /// Commits changes and tells the shards. A partition whose change was fenced is left: another leads it.
    async fn apply(
        &mut self,
        changes: Vec<Change>,
        producers: &BTreeMap<PartitionId, ProducerTable>,
    ) -> Result<(), CommitError> {
        let outcomes = self.committer.commit(&changes, &self.metrics).await?;
        let mut fenced = false;
        for (change, outcome) in changes.into_iter().zip(outcomes) {
            let Some(led) = self.state.led.get_mut(&change.partition) else { continue };
            match outcome {
                commit::Outcome::Committed(revision) => {
                    led.root = Arc::new(change.root);
                    led.revision = revision;
                    if let Some(table) = producers.get(&change.partition) {
                        led.producers = table.clone();
                        self.metrics.segments_committed.inc();
                    }
                    let message = ShardMsg::Manifest { partition: change.partition, root: Arc::clone(&led.root) };
                    // The shard is gone only when the broker ends.
                    let _ = led.shard.send(message);
                    // Whoever is told that it is done has to see it done.
                    let seq = led.root.seq;
                    let _ = led.view.wait_for(|view| view.manifest.seq >= seq).await;
                }
                // What was uploaded is an orphan.
                commit::Outcome::Fenced => fenced = true,
            }
        }
        if fenced { Err(CommitError::Fenced) } else { Ok(()) }
    }

    async fn apply_retention(&mut self) {
        let now = clock::wall();
        let partitions: Vec<PartitionId> = self.state.led.keys().copied().collect();
        for partition in partitions {
            if self.state.uploading.contains(&partition) {
                continue;
            }
            let led = &self.state.led[&partition];
            if !led.view.borrow().visible.leads {
                continue;
            }
            let Some(start) = retention_start(&self.tiered, &self.wal, led, now).await else { continue };
            if start > led.root.log_start
                && let Err(error) = self.move_log_start(partition, start).await
            {
                tracing::warn!(%partition, %error, "retention could not be applied; it is tried again");
                return;
            }
        }
    }

    async fn delete_records(&mut self, partition: PartitionId, before: Option<Offset>) -> Result<Offset, ApiError> {
        let Some(led) = self.state.led.get(&partition) else { return Err(crate::refusals::not_leader()) };
        let PartitionView { visible, .. } = led.view.borrow().clone();
        let to = before.unwrap_or(visible.hw);
        if to > visible.hw {
            let message = format!("offset {to} is beyond the high watermark {}", visible.hw);
            return Err(ApiError::new(ErrorCode::OffsetOutOfRange, message));
        }
        if to <= led.root.log_start {
            return Ok(led.root.log_start);
        }
        self.move_log_start(partition, to).await.map_err(|error| crate::refusals::storage_error(&error))?;
        match self.state.led.get(&partition) {
            Some(led) => Ok(led.root.log_start),
            None => Err(crate::refusals::not_leader()),
        }
    }

    /// Durable metadata first, deletion later (rule C1, case C7).
    async fn move_log_start(&mut self, partition: PartitionId, to: Offset) -> Result<(), CommitError> {
        let led = &self.state.led[&partition];
        let mut view = ManifestView::new(ManifestRoot::clone(&led.root));
        let dropped = self.tiered.ask(&mut view, |view| view.dropped_by(to)).await.map_err(CommitError::Manifest)?;
        let change = Change::advance(led, led.root.advance_log_start(to, led.epoch()), &dropped);
        self.apply(vec![change], &BTreeMap::new()).await
    }
}

fn source(led: &Led, tail: Tail) -> Source {
    Source {
        tail,
        topic_name: led.topic_name.clone(),
        epoch: led.epoch(),
        producers: led.producers.clone(),
        last_append_time: led.root.newest().map_or(TimestampMs::NONE, |entry| entry.max_append_time),
    }
}

/// Where the log may start by its retention settings. `None` where the manifest cannot be read now.
async fn retention_start(tiered: &Tiered, wal: &Wal, led: &Led, now: TimestampMs) -> Option<Offset> {
    let retention = Retention { age_ms_max: led.config.retention.map(millis), size_max: led.config.retention_bytes };
    if !led.config.cleanup_policy.delete || (retention.age_ms_max.is_none() && retention.size_max.is_none()) {
        return Some(led.root.log_start);
    }
    let tail_bytes = wal.partition_bytes(led.partition);
    let mut view = ManifestView::new(ManifestRoot::clone(&led.root));
    let start = tiered.ask(&mut view, |view| view.retention_start(retention, now, tail_bytes)).await.ok()?;
    if start < led.root.tiered_end {
        return Some(start);
    }
    Some(tail_retention_start(wal, led, retention, now).max(start))
}

/// Goes on with whole batches of the committed tail where nothing in object storage is kept.
fn tail_retention_start(wal: &Wal, led: &Led, retention: Retention, now: TimestampMs) -> Offset {
    let hw = led.view.borrow().visible.hw;
    let entries = wal.entries(led.partition, led.root.tiered_end, hw);
    let mut bytes: u64 = entries.iter().map(|entry| u64::from(entry.size)).sum();
    let mut start = led.root.tiered_end;
    for entry in entries.iter().filter(|entry| entry.end <= hw) {
        let old = retention.age_ms_max.is_some_and(|max| now.0.saturating_sub(entry.append_time.0) > max);
        let over = retention.size_max.is_some_and(|max| bytes - u64::from(entry.size) >= max);
        if !old && !over {
            break;
        }
        bytes -= u64::from(entry.size);
        start = entry.end;
    }
    start
}
