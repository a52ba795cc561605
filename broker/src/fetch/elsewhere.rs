//! Reads of partitions that this broker holds no replica of: what is in object storage, from the manifest (rule F4). What it takes
//! more than a manifest to tell, it leaves to the leader; that an offset is gone it says by a read no older than the request (rule F3).

use super::holes::past_holes;
use super::{Budget, LOOKS_MAX, Read, Stands, answered, check_epoch, covered, failed, told, within};
use crate::api::{ApiError, FetchPartition, FetchRequest, FetchedPartition, Isolation, Reader};
use crate::broker::Broker;
use crate::clock;
use crate::manifest_refresh::object_missing;
use crate::manifests::{Known, ManifestsError};
use crate::refusals::{not_leader, storage_error};
use crate::tiered::TieredError;
use millpond_log::epochs::LeaderEpochs;
use millpond_log::manifest::{ManifestRoot, ManifestView};
use millpond_log::transactions::AbortedList;
use millpond_log::{ErrorCode, LeaderEpoch, Offset, PartitionId};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::timeout_at;

/// How old a manifest may be that holds the wanted offset. Objects that it names and a newer one does not stay for an hour and more
/// (rules G1, G3); records that were deleted may be seen for so long.
const AGE_MAX: Duration = Duration::from_secs(5);

/// How old it may be if it ends before the wanted offset. Who has read all of it goes to the leader, and does not come back soon.
const AGE_AT_END_MAX: Duration = Duration::from_secs(1);

/// How long the metadata store is waited for at least, be the reader's own wait shorter (case F4).
const PATIENCE: Duration = Duration::from_millis(500);

/// Which partition, and in which leader epoch it is, as far as this broker has heard.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) id: PartitionId,
    pub(super) epoch: LeaderEpoch,
}

impl From<&ManifestRoot> for Stands {
    /// Less than the log holds, never more: a reader learns the rest from the leader.
    fn from(root: &ManifestRoot) -> Stands {
        Stands { high_watermark: root.tiered_end, last_stable: root.stable_end, log_start: root.log_start }
    }
}

impl Broker {
    /// Reads one partition from object storage. Either there are batches, or an error, or the object store is slow.
    pub(super) async fn read_elsewhere(
        &self,
        request: &FetchRequest,
        wanted: &FetchPartition,
        place: Place,
        budget: Budget,
        deadline: Instant,
    ) -> FetchedPartition {
        let mut stands = Stands::default();
        let read = self.view_elsewhere(request, wanted, place, budget, deadline, &mut stands);
        match read.await {
            Ok(read) => answered(stands, request.isolation, read),
            Err(error) => failed(stands, error),
        }
    }

    /// All of one manifest (rule F5), and `stands` too.
    async fn view_elsewhere(
        &self,
        request: &FetchRequest,
        wanted: &FetchPartition,
        place: Place,
        budget: Budget,
        deadline: Instant,
        stands: &mut Stands,
    ) -> Result<Read, ApiError> {
        if wanted.reader == Reader::OfLeader {
            return Err(not_leader());
        }
        check_epoch(place.epoch, wanted.current_leader_epoch)?;
        let mut manifest = self.manifest_with(place.id, wanted.offset, deadline).await?;
        for _ in 0..LOOKS_MAX {
            *stands = Stands::from(&*manifest);
            let end = match request.isolation {
                Isolation::ReadUncommitted => manifest.tiered_end,
                // Rule T7: a transaction that is open there may end in the tail.
                Isolation::ReadCommitted => manifest.stable_end,
            };
            if wanted.offset >= end {
                return Err(not_leader());
            }
            if budget.bytes == 0 && !budget.may_overshoot {
                return Ok(Read::default());
            }
            match self.batches_elsewhere(request, wanted, &manifest, end, budget, deadline).await {
                Ok(Some(read)) => return Ok(read),
                // Another log, perhaps: where they part the leader tells.
                Ok(None) => return Err(not_leader()),
                Err(TieredError::Gone) => manifest = self.after(&manifest, wanted.offset, deadline).await?,
                Err(error) => return Err(storage_error(&error)),
            }
        }
        Err(ApiError::new(ErrorCode::KafkaStorageError, "the log is being trimmed faster than it is read; retry"))
    }

    /// What there is below `end` by one manifest, and of committed records what was aborted of them. `None`: the client has read another
    /// log. Empty: the store is slow; the read goes on in the background, and the next fetch finds it cached.
    async fn batches_elsewhere(
        &self,
        request: &FetchRequest,
        wanted: &FetchPartition,
        manifest: &Arc<ManifestRoot>,
        end: Offset,
        budget: Budget,
        deadline: Instant,
    ) -> Result<Option<Read>, TieredError> {
        let first = async {
            if !self.has_read(manifest, wanted).await? {
                return Ok(None);
            }
            let batches = self.tiered().read(manifest, wanted.offset..end, budget.bytes, request.scan).await?;
            Ok(Some(within(batches, end, budget)))
        };
        let read = match timeout_at(deadline.into(), first).await {
            Ok(Ok(Some(read))) => read,
            Ok(refused) => return refused,
            Err(_) => return Ok(Some(Read::default())),
        };
        let behind = |rest, budget: Budget| async move {
            let more = self.tiered().read(manifest, rest, budget.bytes, request.scan);
            let batches = timeout_at(deadline.into(), more).await.ok()?.ok()?;
            Some(within(batches, end, budget))
        };
        let read = past_holes(read, end, budget, behind).await;
        let committed_only = request.isolation == Isolation::ReadCommitted;
        let Some(covered) = covered(&read.batches).filter(|_| committed_only) else { return Ok(Some(read)) };
        // Rule T7: below `stable_end` all is decided by markers below `tiered_end`; nothing of the tail is needed.
        let nothing_open = AbortedList::default();
        match timeout_at(deadline.into(), self.tiered().aborted(manifest, covered, &nothing_open)).await {
            Ok(aborted) => Ok(Some(Read { aborted: told(&aborted?), ..read })),
            // Rule X7: records go out with what was aborted of them, or not at all.
            Err(_) => Ok(Some(Read::default())),
        }
    }

    /// A manifest that holds `offset`.
    ///
    /// # Errors
    /// `OFFSET_OUT_OF_RANGE`: it is below the log's start, proven (rule F3). `NOT_LEADER_OR_FOLLOWER`: it is not in object storage, as
    /// far as this broker knows. `OFFSET_NOT_AVAILABLE`: it cannot be told now.
    async fn manifest_with(
        &self,
        id: PartitionId,
        offset: Offset,
        deadline: Instant,
    ) -> Result<Arc<ManifestRoot>, ApiError> {
        let known = self.recent(id, offset, deadline).await?;
        if offset < known.root.log_start {
            let proven = self.manifest_of(id, Duration::ZERO, deadline).await?;
            return in_range(proven.root, offset);
        }
        if offset < known.root.tiered_end {
            return Ok(known.root);
        }
        let newer = self.manifest_of(id, AGE_AT_END_MAX, deadline).await.map_err(|_| not_leader())?;
        in_range(newer.root, offset)
    }

    /// A manifest that is young enough; or, while the metadata store is away, any that holds `offset`: an old one may only answer less
    /// (rule F4), and reads go on.
    async fn recent(&self, id: PartitionId, offset: Offset, deadline: Instant) -> Result<Known, ApiError> {
        let manifests = &self.inner().manifests;
        let old = manifests.newest(id).filter(|known| offset >= known.root.log_start && offset < known.root.tiered_end);
        let Some(old) = old else { return self.manifest_of(id, AGE_MAX, deadline).await };
        let now = clock::monotonic();
        if !old.is_older(AGE_MAX, now) || manifests.store_is_away(now) {
            return Ok(old);
        }
        // Who has something to read does not wait for long.
        Ok(self.manifest_of(id, AGE_MAX, deadline.min(now + PATIENCE)).await.unwrap_or(old))
    }

    /// The manifest after one that named what is no longer there (rule G4).
    async fn after(
        &self,
        read: &ManifestRoot,
        offset: Offset,
        deadline: Instant,
    ) -> Result<Arc<ManifestRoot>, ApiError> {
        let newest = self.manifest_of(read.partition, Duration::ZERO, deadline).await?.root;
        if newest.seq == read.seq {
            return Err(object_missing());
        }
        in_range(newest, offset)
    }

    async fn manifest_of(&self, id: PartitionId, age_max: Duration, deadline: Instant) -> Result<Known, ApiError> {
        let now = clock::monotonic();
        let read = self.inner().manifests.as_of(&self.inner().store, id, now, age_max);
        match timeout_at(deadline.max(now + PATIENCE).into(), read).await {
            Ok(Ok(known)) => Ok(known),
            Ok(Err(ManifestsError::Unreadable(error))) => Err(storage_error(&error)),
            Ok(Err(ManifestsError::Store(error))) => {
                self.inner().manifests.note_failure(clock::monotonic());
                Err(unproven(&error.to_string()))
            }
            Err(_) => {
                self.inner().manifests.note_failure(clock::monotonic());
                Err(unproven("it does not answer in time"))
            }
        }
    }

    /// Whether the log is the one that the client has read up to the wanted offset, as far as the manifest tells.
    async fn has_read(&self, manifest: &Arc<ManifestRoot>, wanted: &FetchPartition) -> Result<bool, TieredError> {
        let Some(fetched) = wanted.last_fetched_epoch else { return Ok(true) };
        let Some(last) = wanted.offset.0.checked_sub(1).map(Offset).filter(|last| *last >= manifest.base()) else {
            // Of what is before the oldest segment nothing is known, and nothing can be read.
            return Ok(true);
        };
        let mut view = ManifestView::new(ManifestRoot::clone(manifest));
        let entry = self.tiered().ask(&mut view, |view| view.find(last).map(|entry| entry.cloned())).await?;
        let epochs = entry.and_then(|entry| LeaderEpochs::from_entries(entry.epochs));
        Ok(epochs.and_then(|epochs| epochs.epoch_at(last)) == Some(fetched))
    }
}

/// A manifest that was read late enough to prove where the log starts.
fn in_range(root: Arc<ManifestRoot>, offset: Offset) -> Result<Arc<ManifestRoot>, ApiError> {
    if offset < root.log_start {
        let message = format!("offset {offset} is below the log, which starts at {}", root.log_start);
        return Err(ApiError::new(ErrorCode::OffsetOutOfRange, message));
    }
    // What lies at or beyond `tiered_end` only the leader knows.
    if offset < root.tiered_end { Ok(root) } else { Err(not_leader()) }
}

fn unproven(reason: &str) -> ApiError {
    ApiError::new(ErrorCode::OffsetNotAvailable, format!("the metadata store cannot be used now: {reason}; retry"))
}
