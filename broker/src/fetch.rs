//! The read path: one loop that reads what is there, and waits for more as the request allows (cases F1 to F5, rules F1 to F5).
//!
//! It reads views, never replicas: a fetch does not pass through a shard.

mod elsewhere;
mod holes;

use crate::api::{AbortedTxn, ApiError, EpochEnd, FetchPartition, FetchRequest, FetchedPartition, Isolation, Reader};
use crate::broker::Broker;
use crate::budget::Held;
use crate::clock;
use crate::loss;
use crate::partitions::view::{PartitionView, ViewReceiver};
use crate::refusals::{bounds_not_proven, not_leader, stale, storage_error};
use crate::tiered::TieredError;
use crate::wal::TailReadError;
use elsewhere::Place;
use futures::future::select_all;
use holes::past_holes;
use millpond_log::{Batch, BrokerId, ErrorCode, LeaderEpoch, Offset, PartitionId};
use std::ops::Range;
use std::time::{Duration, Instant};
use tracing::Instrument;
use tracing::field::Empty;

/// Times one partition is looked at again within one read, because its tail was trimmed between the view and the read.
const LOOKS_MAX: usize = 3;

/// What one read of one partition may return.
#[derive(Clone, Copy)]
struct Budget {
    /// Most bytes.
    bytes: usize,
    /// The answer is still empty: one whole batch may exceed `bytes` (case F2).
    may_overshoot: bool,
}

/// One partition of a request.
enum Watched {
    /// This broker holds a replica.
    Here(Here),
    /// It holds none: what is in object storage is all it can serve (rule F4).
    Elsewhere {
        id: PartitionId,
        /// The leader epoch, as far as this broker has heard.
        epoch: LeaderEpoch,
    },
}

/// A partition of which a replica is here.
struct Here {
    id: PartitionId,
    view: ViewReceiver,
    /// The refusal of what is not in object storage, if nobody may lead the partition.
    lost: Option<ApiError>,
}

/// Where a partition's log stands, as an answer says it (rule F5: of the same view as its records).
#[derive(Clone, Copy, Default)]
struct Stands {
    high_watermark: Offset,
    last_stable: Offset,
    log_start: Offset,
}

impl From<&PartitionView> for Stands {
    fn from(view: &PartitionView) -> Stands {
        let visible = &view.visible;
        Stands { high_watermark: visible.hw, last_stable: visible.lso, log_start: visible.log_start }
    }
}

#[derive(Default)]
struct Read {
    batches: Vec<Batch>,
    /// Aborted transactions that overlap the batches; none unless the reader wants committed records only.
    aborted: Vec<AbortedTxn>,
    /// More would have been there: waiting cannot make this partition fuller (case F5).
    filled: bool,
}

impl Broker {
    /// Reads, waiting as the request says. The answer has one entry per partition asked for, in order.
    ///
    /// Answers by `wait_max` whether the object store does or not (case F4): what could not be read by then comes back empty.
    ///
    /// Cancel safe: dropped at any point it has read, and changed nothing. What the cache began to fetch goes on for the next.
    pub async fn fetch(&self, request: FetchRequest) -> Vec<FetchedPartition> {
        self.fetch_held(request).await.0
    }

    /// As `fetch`, with the memory that the answer's batches take: to be held until they are sent.
    pub(crate) async fn fetch_held(&self, request: FetchRequest) -> (Vec<FetchedPartition>, Held) {
        let span = tracing::debug_span!("fetch", partitions = request.partitions.len(), batches = Empty, bytes = Empty);
        self.fetch_and_wait(request).instrument(span).await
    }

    async fn fetch_and_wait(&self, request: FetchRequest) -> (Vec<FetchedPartition>, Held) {
        let begun = clock::monotonic();
        let deadline = begun + request.wait_max;
        let mut waited = false;
        let mut watched: Vec<Result<Watched, ApiError>> = tracing::debug_span!("find")
            .in_scope(|| request.partitions.iter().map(|wanted| self.watched(wanted)).collect());
        loop {
            let (mut answer, complete, held) = self.read_within_budget(&request, &mut watched, deadline).await;
            if complete || clock::monotonic() >= deadline {
                for (wanted, fetched) in request.partitions.iter().zip(&mut answer) {
                    let named = |error| self.naming_leader(&wanted.topic, wanted.partition, error);
                    fetched.error = fetched.error.take().map(named);
                }
                self.count_fetched(&answer, clock::monotonic() - begun, waited);
                return (answer, held);
            }
            waited = true;
            tracing::debug!("waiting for records");
            // Nobody holds memory while it waits for records.
            drop((answer, held));
            // What is elsewhere completes an answer, so that somebody here is waited for.
            let changes = watched.iter_mut().enumerate().filter_map(|(at, watched)| match watched {
                Ok(Watched::Here(here)) => Some(Box::pin(async move { (at, here.view.changed().await) })),
                _ => None,
            });
            let changed = tokio::time::timeout_at(deadline.into(), select_all(changes)).await;
            if let Some(at) = changed.ok().and_then(|((at, changed), ..)| changed.is_err().then_some(at)) {
                watched[at] = self.watched_anew(&request.partitions[at]);
            }
        }
    }

    /// As `watched`, of a partition whose replica here was dropped: its last view says nothing any more, and ends no wait. A topic that is
    /// deleted is unknown by now.
    fn watched_anew(&self, wanted: &FetchPartition) -> Result<Watched, ApiError> {
        match self.watched(wanted)? {
            // Dropped a moment ago: the catalog hears of it next.
            Watched::Here(here) if here.view.has_changed().is_err() => Err(not_leader()),
            watched => Ok(watched),
        }
    }

    fn watched(&self, wanted: &FetchPartition) -> Result<Watched, ApiError> {
        let (topic, handle) = self.inner().catalog.partition(&wanted.topic, wanted.partition)?;
        let Some(local) = &handle.local else {
            return Ok(Watched::Elsewhere { id: handle.id, epoch: handle.placement.epoch });
        };
        let lost = loss::refusal(&topic, &handle, ErrorCode::NotLeaderOrFollower);
        Ok(Watched::Here(Here { id: handle.id, view: local.view.clone(), lost }))
    }

    fn count_fetched(&self, answer: &[FetchedPartition], took: Duration, waited: bool) {
        let batches = answer.iter().map(|part| part.batches.len() as u64).sum();
        let bytes = answer.iter().flat_map(|part| &part.batches).map(|batch| batch.size() as u64).sum();
        self.metrics().fetched(batches, bytes, took, waited);
        for error in answer.iter().filter_map(|part| part.error.as_ref()) {
            self.metrics().failed("Fetch", error.code);
        }
        tracing::Span::current().record("batches", batches).record("bytes", bytes);
    }

    /// Reads what fits the memory for answers now, waiting for it when there is none. A first batch that is larger than what was
    /// free is read again once there is room: readers that kept theirs while they wait for more would wait for each other.
    async fn read_within_budget(
        &self,
        request: &FetchRequest,
        watched: &mut [Result<Watched, ApiError>],
        deadline: Instant,
    ) -> (Vec<FetchedPartition>, bool, Held) {
        let answers = &self.inner().budget.answers;
        let most = request.partitions.iter().fold(0, |sum: usize, wanted| sum.saturating_add(wanted.bytes_max));
        let mut held = answers.take_for_read(request.bytes_max.min(most)).await;
        loop {
            let (answer, complete) = self.read_all(request, held.bytes(), watched, deadline).await;
            let size = answer.iter().flat_map(|part| &part.batches).map(Batch::size).sum::<usize>();
            if size <= held.bytes() || held.bytes() == answers.bytes() {
                held.shrink(size);
                return (answer, complete, held);
            }
            drop((answer, held));
            held = answers.take(size).await;
        }
    }

    async fn read_all(
        &self,
        request: &FetchRequest,
        bytes_max: usize,
        watched: &mut [Result<Watched, ApiError>],
        deadline: Instant,
    ) -> (Vec<FetchedPartition>, bool) {
        let mut total = 0;
        let mut complete = watched.is_empty();
        let mut answer = Vec::with_capacity(watched.len());
        for (wanted, source) in request.partitions.iter().zip(watched) {
            let fetched = match source {
                Err(error) => failed(Stands::default(), error.clone()),
                Ok(watched) => {
                    let budget = Budget {
                        bytes: wanted.bytes_max.min(bytes_max.saturating_sub(total)),
                        may_overshoot: total == 0,
                    };
                    let (fetched, filled) = match watched {
                        Watched::Here(here) => self.read_one(request, wanted, here, budget, deadline).await,
                        Watched::Elsewhere { id, epoch } => {
                            let place = Place { id: *id, epoch: *epoch };
                            // Waiting makes it no fuller: what is not in object storage is not here either.
                            (self.read_elsewhere(request, wanted, place, budget, deadline).await, true)
                        }
                    };
                    complete |= filled;
                    fetched
                }
            };
            complete |= fetched.error.is_some();
            total += fetched.batches.iter().map(Batch::size).sum::<usize>();
            answer.push(fetched);
        }
        (answer, complete || total >= request.bytes_min.min(bytes_max.max(1)))
    }

    async fn read_one(
        &self,
        request: &FetchRequest,
        wanted: &FetchPartition,
        watched: &mut Here,
        budget: Budget,
        deadline: Instant,
    ) -> (FetchedPartition, bool) {
        for _ in 0..LOOKS_MAX {
            let view = watched.view.borrow_and_update().clone();
            // Of a partition that nobody may lead only what is in object storage is served (rule F4).
            if let Some(refusal) = watched.lost.clone().filter(|_| wanted.offset >= view.visible.tiered_end) {
                return (failed(Stands::from(&view), refusal), true);
            }
            let checked = check_epoch(view.visible.epoch, wanted.current_leader_epoch)
                .and_then(|()| self.check_reader(&view, wanted))
                .and_then(|()| check_range(&view, wanted.offset, self.session_handle().is_fresh()))
                .and_then(|()| check_history(&view, wanted));
            match checked {
                Ok(None) => {}
                Ok(diverging) => {
                    let nothing = answered(Stands::from(&view), request.isolation, Read::default());
                    return (FetchedPartition { diverging, ..nothing }, true);
                }
                Err(error) => return (failed(Stands::from(&view), error), true),
            }
            if let Some(preferred) = self.nearer_to(&view, wanted) {
                let nothing = answered(Stands::from(&view), request.isolation, Read::default());
                return (FetchedPartition { preferred: Some(preferred), ..nothing }, true);
            }
            let end = match request.isolation {
                Isolation::ReadUncommitted => view.visible.hw,
                Isolation::ReadCommitted => view.visible.lso,
            };
            // Rule F3: a new leader does not know yet what was deleted. It says nothing until it does.
            let unsure = view.visible.leads && !view.visible.start_proven;
            if wanted.offset >= end || unsure {
                return (answered(Stands::from(&view), request.isolation, Read::default()), false);
            }
            match self.read_view(request, &view, watched.id, wanted.offset..end, budget, deadline).await {
                Ok(Some(read)) => {
                    let filled = read.filled;
                    return (answered(Stands::from(&view), request.isolation, read), filled);
                }
                Ok(None) => {}
                Err(error) => return (failed(Stands::from(&view), error), true),
            }
        }
        let view = watched.view.borrow().clone();
        let moving =
            ApiError::new(ErrorCode::KafkaStorageError, "the log is being trimmed faster than it is read; retry");
        (failed(Stands::from(&view), moving), true)
    }

    /// Who may read here: of a replica that does not lead, only what is in object storage, unless it is in sync (rules F1, F4).
    fn check_reader(&self, view: &PartitionView, wanted: &FetchPartition) -> Result<(), ApiError> {
        let visible = &view.visible;
        let serves = match wanted.reader {
            _ if visible.leads => true,
            Reader::OfLeader => false,
            _ if wanted.offset < visible.tiered_end => true,
            // Cut off from the metadata it may wait for records that went elsewhere (rule B5).
            _ => {
                self.is_in_sync(&wanted.topic, wanted.partition)
                    && (wanted.offset < visible.hw || self.session_handle().is_fresh())
            }
        };
        if serves { Ok(()) } else { Err(not_leader()) }
    }

    fn nearer_to(&self, view: &PartitionView, wanted: &FetchPartition) -> Option<BrokerId> {
        match &wanted.reader {
            Reader::InRack(rack) if view.visible.leads => self.nearer(rack, &wanted.topic, wanted.partition),
            _ => None,
        }
    }

    /// Reads `wanted`, and what a reader has to know of it, all of one view (rule F5). `None`: as `read_batches`.
    async fn read_view(
        &self,
        request: &FetchRequest,
        view: &PartitionView,
        id: PartitionId,
        wanted: Range<Offset>,
        budget: Budget,
        deadline: Instant,
    ) -> Result<Option<Read>, ApiError> {
        let end = wanted.end;
        let read = self.read_batches(view, id, wanted, budget, request.scan, deadline).await?;
        let Some(read) = read else { return Ok(None) };
        let behind = |rest, budget| async move {
            self.read_batches(view, id, rest, budget, request.scan, deadline).await.ok().flatten()
        };
        let read = past_holes(read, end, budget, behind).await;
        let committed_only = request.isolation == Isolation::ReadCommitted;
        let Some(covered) = covered(&read.batches).filter(|_| committed_only) else { return Ok(Some(read)) };
        if !is_of(view, &read.batches) {
            return Ok(None);
        }
        let aborted = self.tiered().aborted(&view.manifest, covered, &view.aborted);
        match tokio::time::timeout_at(deadline.into(), aborted).await {
            Ok(Ok(aborted)) => Ok(Some(Read { aborted: told(&aborted), ..read })),
            Ok(Err(TieredError::Gone)) => self.look_past_gone(id, view.manifest.seq).await.map(|()| None),
            Ok(Err(error)) => Err(storage_error(&error)),
            // Rule X7: records go out with what was aborted of them, or not at all.
            Err(_) => Ok(Some(Read::default())),
        }
    }

    /// Reads `wanted` from the tail, or from object storage where the tail no longer reaches back, or was written anew (rules C2, X7).
    /// `None`: what was looked at has moved; look again with a newer view.
    async fn read_batches(
        &self,
        view: &PartitionView,
        id: PartitionId,
        wanted: Range<Offset>,
        budget: Budget,
        scan: bool,
        deadline: Instant,
    ) -> Result<Option<Read>, ApiError> {
        let Range { start: offset, end } = wanted;
        if budget.bytes == 0 && !budget.may_overshoot {
            return Ok(Some(Read { filled: true, ..Read::default() }));
        }
        if offset < view.manifest.rewritten_end {
            // What a follower knows to be committed may end in what was one batch of several: it cannot say that nothing is there (rule F4).
            if !view.visible.leads && end < view.manifest.rewritten_end {
                return Err(not_leader());
            }
            return self.read_tiered(view, id, wanted, budget, scan, deadline).await;
        }
        let tail = self.wal().read(id, offset, end, budget.bytes);
        match tail.instrument(tracing::debug_span!("read", from = "wal")).await {
            Ok(batches) => Ok(Some(within(batches.into_iter().map(|(batch, _)| batch).collect(), end, budget))),
            Err(TailReadError::Trimmed { .. } | TailReadError::Unknown) if offset >= view.manifest.tiered_end => {
                self.refresh_manifest(id, view.manifest.seq).await?;
                Ok(None)
            }
            Err(TailReadError::Trimmed { .. } | TailReadError::Unknown) if offset < view.visible.tiered_end => {
                self.read_tiered(view, id, wanted, budget, scan, deadline).await
            }
            Err(TailReadError::Trimmed { .. } | TailReadError::Unknown) => Ok(None),
            Err(error) => Err(storage_error(&error)),
        }
    }

    /// As `read_batches`, from object storage.
    async fn read_tiered(
        &self,
        view: &PartitionView,
        id: PartitionId,
        wanted: Range<Offset>,
        budget: Budget,
        scan: bool,
        deadline: Instant,
    ) -> Result<Option<Read>, ApiError> {
        let end = wanted.end;
        let read = self.tiered().read(&view.manifest, wanted, budget.bytes, scan);
        match tokio::time::timeout_at(deadline.into(), read).await {
            Ok(Ok(batches)) => Ok(Some(within(batches, end, budget))),
            Ok(Err(TieredError::Gone)) => self.look_past_gone(id, view.manifest.seq).await.map(|()| None),
            Ok(Err(error)) => Err(storage_error(&error)),
            // The store is slow: the read goes on in the background and the next fetch finds it cached.
            Err(_) => Ok(Some(Read::default())),
        }
    }
}

/// Cuts what was read to whole batches within the budget. Only the answer's first batch may overshoot (cases F2, F3).
fn within(batches: Vec<Batch>, end: Offset, budget: Budget) -> Read {
    let _assemble = tracing::debug_span!("assemble").entered();
    let mut taken = 0;
    let mut kept = Vec::with_capacity(batches.len());
    let mut filled = false;
    for batch in batches {
        let overshoots = taken + batch.size() > budget.bytes;
        if overshoots && !(budget.may_overshoot && kept.is_empty()) {
            filled = true;
            break;
        }
        taken += batch.size();
        kept.push(batch);
    }
    let more_is_there = kept.last().is_some_and(|last| last.end_offset() < end);
    Read { filled: filled || more_is_there || taken >= budget.bytes, batches: kept, aborted: Vec::new() }
}

/// The offsets of an answer's batches, if there are any.
fn covered(batches: &[Batch]) -> Option<Range<Offset>> {
    Some(batches.first()?.base_offset()..batches.last()?.end_offset())
}

/// Whether batches are of the log that the view speaks of. An unclean election may have put another one in its place since (rule E7), of
/// which the view does not know what was aborted. Logs that agree in an offset and its leader epoch agree in all before it.
fn is_of(view: &PartitionView, batches: &[Batch]) -> bool {
    batches.last().is_none_or(|last| view.epochs.epoch_at(last.base_offset()) == Some(last.leader_epoch()))
}

/// What a client is told of aborted transactions.
fn told(aborted: &[millpond_log::transactions::AbortedTxn]) -> Vec<AbortedTxn> {
    aborted.iter().map(|txn| AbortedTxn { producer: txn.producer, first_offset: txn.first }).collect()
}

/// Rule F2 (KIP-320).
pub(crate) fn check_epoch(current: LeaderEpoch, known: Option<LeaderEpoch>) -> Result<(), ApiError> {
    match known {
        Some(known) if known < current => Err(ApiError::new(
            ErrorCode::FencedLeaderEpoch,
            format!("the client knows leader epoch {known}, the leader is in {current}; refresh the metadata"),
        )),
        Some(known) if known > current => Err(ApiError::new(
            ErrorCode::UnknownLeaderEpoch,
            format!("the client knows leader epoch {known}, this broker only {current}; retry"),
        )),
        _ => Ok(()),
    }
}

/// Whether the log is the one that the client has read up to `wanted.offset`; where it still is, if not. Decides as Kafka's
/// leader does for a `LastFetchedEpoch` (KIP-595).
fn check_history(view: &PartitionView, wanted: &FetchPartition) -> Result<Option<EpochEnd>, ApiError> {
    let Some(fetched) = wanted.last_fetched_epoch else { return Ok(None) };
    let visible = &view.visible;
    if fetched > visible.epoch {
        if !visible.leads {
            return Err(not_leader());
        }
        let message = format!("no record was read in leader epoch {fetched}: the leader is in {}", visible.epoch);
        return Err(ApiError::new(ErrorCode::OffsetOutOfRange, message));
    }
    let EpochEnd { epoch, end } = end_of(view, fetched);
    let diverges = epoch < fetched || end < wanted.offset;
    if diverges && !visible.leads {
        // A log that is not the leader's may be behind it, or hold what the leader does not.
        return Err(not_leader());
    }
    Ok(diverges.then_some(EpochEnd { epoch, end }))
}

/// Where the records end of `asked`, an epoch up to that of the view, or of the last one before it. Of a leader's view this is never
/// below what was acknowledged: its log holds all of that (case F18).
pub(crate) fn end_of(view: &PartitionView, asked: LeaderEpoch) -> EpochEnd {
    let PartitionView { visible, epochs, .. } = view;
    let (epoch, end) = match epochs.end_of(asked, visible.end) {
        // The leader's own epoch goes on, also while it has no record yet.
        _ if asked == visible.epoch => (asked, visible.end),
        Some(found) => found,
        // All that is older is gone: the log begins with a later epoch.
        None => (asked, epochs.entries().first().map_or(visible.end, |first| first.start)),
    };
    EpochEnd { epoch, end }
}

/// Rules R11, F3 and B5: out of range is only said by a leader whose end is proven and whose session is fresh.
fn check_range(view: &PartitionView, offset: Offset, fresh: bool) -> Result<(), ApiError> {
    let visible = &view.visible;
    // A replica that is behind has it from the manifest that was read for its readers (rule G4).
    let log_start = visible.log_start.max(view.manifest.log_start);
    if offset >= log_start && offset <= visible.end {
        return Ok(());
    }
    if !visible.leads {
        return Err(not_leader());
    }
    if !visible.bounds_proven() {
        return Err(bounds_not_proven());
    }
    if !fresh {
        return Err(stale(ErrorCode::OffsetNotAvailable));
    }
    Err(ApiError::new(
        ErrorCode::OffsetOutOfRange,
        format!("offset {offset} is outside the log, which holds {log_start} to {}", visible.hw),
    ))
}

fn answered(stands: Stands, isolation: Isolation, read: Read) -> FetchedPartition {
    let Read { batches, aborted, .. } = read;
    let aborted = (isolation == Isolation::ReadCommitted).then_some(aborted);
    let Stands { high_watermark, last_stable, log_start } = stands;
    FetchedPartition {
        high_watermark,
        last_stable,
        log_start,
        batches,
        aborted,
        preferred: None,
        diverging: None,
        error: None,
    }
}

fn failed(stands: Stands, error: ApiError) -> FetchedPartition {
    FetchedPartition { error: Some(error), ..answered(stands, Isolation::ReadUncommitted, Read::default()) }
}

#[cfg(test)]
mod tests;
