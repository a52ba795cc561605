//! Offsets by name and by time (cases F10 to F16, rules R11, F3).
//!
//! A record is looked for in object storage first, then in the tail, batch by batch: times may be in any order.

use crate::api::{ApiError, EpochEnd, FoundOffset, Isolation, OffsetSpec, TopicRef};
use crate::broker::Broker;
use crate::catalog::Local;
use crate::fetch::{check_epoch, end_of};
use crate::loss;
use crate::manifests::decode_root;
use crate::partitions::view::PartitionView;
use crate::refusals::{bounds_not_proven, not_leader, stale, storage_error};
use crate::tiered::{TieredError, larger};
use crate::topics::unavailable;
use crate::wal::{TailEntry, TailReadError};
use millpond_log::batch::BatchError;
use millpond_log::segment::{TimedOffset, first_at_or_after, first_of_largest_timestamp};
use millpond_log::{Batch, ErrorCode, LeaderEpoch, Offset, PartitionId, TimestampMs};
use std::time::Duration;

/// Times one look-up starts over, because the log was trimmed between the view and the search.
const LOOKS_MAX: usize = 3;

/// How long a look-up waits for a new leader's bounds, which take a read of the metadata store and an answer of the followers.
const PROVEN_WITHIN: Duration = Duration::from_secs(1);

/// The view once its bounds are proven, or it leads no more, or that takes too long.
async fn proven(local: &Local) -> PartitionView {
    let mut view = local.view.clone();
    let settled = view.wait_for(|view| !view.visible.leads || view.visible.bounds_proven());
    // A view ends with its shard, and the broker with that.
    let _ = tokio::time::timeout(PROVEN_WITHIN, settled).await;
    view.borrow().clone()
}

impl Broker {
    /// Looks up an offset; `None` when no record qualifies (`AtOrAfter`, `MaxTimestamp`, `LatestTiered` on an empty log).
    ///
    /// # Errors
    /// Of the partition (unknown, led elsewhere, in another epoch than `known`: rule F2), `OFFSET_NOT_AVAILABLE` (rules R11, B5),
    /// or of storage.
    pub async fn list_offsets(
        &self,
        topic: &TopicRef,
        partition: u32,
        known: Option<LeaderEpoch>,
        spec: OffsetSpec,
        isolation: Isolation,
    ) -> Result<Option<FoundOffset>, ApiError> {
        let found = self.counted("ListOffsets", self.find_offset(topic, partition, known, spec, isolation).await);
        found.map_err(|error| self.naming_leader(topic, partition, error))
    }

    async fn find_offset(
        &self,
        topic: &TopicRef,
        partition: u32,
        known: Option<LeaderEpoch>,
        spec: OffsetSpec,
        isolation: Isolation,
    ) -> Result<Option<FoundOffset>, ApiError> {
        let (topic, handle) = self.inner().catalog.partition(topic, partition)?;
        if let Some(refusal) = loss::refusal(&topic, &handle, ErrorCode::NotLeaderOrFollower) {
            return if spec == OffsetSpec::Earliest { self.earliest_of_lost(handle.id).await } else { Err(refusal) };
        }
        for _ in 0..LOOKS_MAX {
            let view = proven(handle.local()?).await;
            check_epoch(view.visible.epoch, known)?;
            if !view.visible.leads {
                return Err(not_leader());
            }
            if !view.visible.bounds_proven() {
                return Err(bounds_not_proven());
            }
            if !self.session_handle().is_fresh() {
                return Err(stale(ErrorCode::OffsetNotAvailable));
            }
            match self.look_up(handle.id, &view, spec, isolation).await {
                Ok(found) => return Ok(found),
                Err(LookupError::Moved) => {}
                Err(LookupError::Gone) => self.look_past_gone(handle.id, view.manifest.seq).await?,
                Err(LookupError::OldManifest) => self.refresh_manifest(handle.id, view.manifest.seq).await?,
                Err(LookupError::Failed(error)) => return Err(error),
            }
        }
        Err(ApiError::new(ErrorCode::KafkaStorageError, "the log is being trimmed faster than it is searched; retry"))
    }

    /// Where the records end of leader epoch `asked`, or of the last one before it (KIP-320); `None` if no epoch is asked for.
    ///
    /// Only a leader says so, and as soon as it is one: what its log holds is all that was acknowledged (case F18).
    ///
    /// # Errors
    /// Of the partition, as `list_offsets`. `UNKNOWN_LEADER_EPOCH`: `asked` is of a leader that this broker has not heard of.
    pub fn end_of_epoch(
        &self,
        topic: &TopicRef,
        partition: u32,
        known: Option<LeaderEpoch>,
        asked: Option<LeaderEpoch>,
    ) -> Result<Option<EpochEnd>, ApiError> {
        let found = self.counted("OffsetForLeaderEpoch", self.find_end_of_epoch(topic, partition, known, asked));
        found.map_err(|error| self.naming_leader(topic, partition, error))
    }

    fn find_end_of_epoch(
        &self,
        topic: &TopicRef,
        partition: u32,
        known: Option<LeaderEpoch>,
        asked: Option<LeaderEpoch>,
    ) -> Result<Option<EpochEnd>, ApiError> {
        let (topic, handle) = self.inner().catalog.partition(topic, partition)?;
        if let Some(refusal) = loss::refusal(&topic, &handle, ErrorCode::NotLeaderOrFollower) {
            return Err(refusal);
        }
        let view = handle.local()?.view.borrow().clone();
        check_epoch(view.visible.epoch, known)?;
        if !view.visible.leads {
            return Err(not_leader());
        }
        // A client that has read in a later epoch would take any offset, and none, for a log that lost what it read.
        check_epoch(view.visible.epoch, asked.filter(|asked| *asked > view.visible.epoch))?;
        Ok(asked.map(|asked| end_of(&view, asked)))
    }

    async fn look_up(
        &self,
        id: PartitionId,
        view: &PartitionView,
        spec: OffsetSpec,
        isolation: Isolation,
    ) -> Result<Option<FoundOffset>, LookupError> {
        let visible = &view.visible;
        let end = match isolation {
            Isolation::ReadUncommitted => visible.hw,
            Isolation::ReadCommitted => visible.lso,
        };
        let epoch = Some(visible.epoch);
        let named = |offset| Some(FoundOffset { offset, timestamp: None, leader_epoch: epoch });
        let timed = |found: Option<TimedOffset>| {
            let found = found.filter(|found| found.offset < end);
            found.map(|found| FoundOffset {
                offset: found.offset,
                timestamp: Some(found.timestamp),
                leader_epoch: view.epochs.epoch_at(found.offset).or(epoch),
            })
        };
        match spec {
            OffsetSpec::Earliest => Ok(named(visible.log_start)),
            OffsetSpec::Latest => Ok(named(end)),
            OffsetSpec::EarliestLocal => Ok(named(self.first_local(id, view))),
            OffsetSpec::LatestTiered => {
                let held = visible.tiered_end > visible.log_start;
                Ok(held.then(|| Offset(visible.tiered_end.0 - 1)).and_then(named))
            }
            OffsetSpec::EarliestPendingUpload => Ok(named(visible.tiered_end.max(visible.log_start))),
            // S19: what lies between would be passed over in silence.
            _ if view.manifest.tiered_end < visible.tiered_end => Err(LookupError::OldManifest),
            OffsetSpec::AtOrAfter(time) => self.first_at_or_after(id, view, end, time).await.map(timed),
            OffsetSpec::MaxTimestamp => self.first_of_largest(id, view, end).await.map(timed),
        }
    }

    /// Where a log begins that nobody leads: by a linearizable read (rule F3).
    async fn earliest_of_lost(&self, id: PartitionId) -> Result<Option<FoundOffset>, ApiError> {
        let root = self.inner().store.tier_root(id).await.map_err(|error| unavailable(&error))?;
        let root = decode_root(id, root.as_ref()).map_err(|error| storage_error(&error))?;
        Ok(Some(FoundOffset { offset: root.value.log_start, timestamp: None, leader_epoch: None }))
    }

    /// Where what is read from this broker's disk begins.
    fn first_local(&self, id: PartitionId, view: &PartitionView) -> Offset {
        let PartitionView { visible, manifest, .. } = view;
        let from = visible.log_start.max(manifest.rewritten_end);
        let held = self.wal().entries(id, from, visible.end).first().map(|entry| entry.base);
        held.unwrap_or(visible.end).max(from)
    }

    async fn first_at_or_after(
        &self,
        id: PartitionId,
        view: &PartitionView,
        end: Offset,
        time: TimestampMs,
    ) -> Result<Option<TimedOffset>, LookupError> {
        let from = view.visible.log_start;
        if from < view.visible.tiered_end {
            let found = self.tiered().first_at_or_after(&view.manifest, time, from).await;
            if let Some(found) = found.map_err(in_bucket)? {
                return Ok(Some(found));
            }
        }
        for entry in self.tail_entries(id, view, end)?.iter().filter(|entry| entry.latest >= time) {
            let batches = self.tail_batch(id, entry).await?;
            if let Some(found) = first_at_or_after(&batches, time, from).map_err(unsound)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    async fn first_of_largest(
        &self,
        id: PartitionId,
        view: &PartitionView,
        end: Offset,
    ) -> Result<Option<TimedOffset>, LookupError> {
        let from = view.visible.log_start;
        let mut largest = None;
        if from < view.visible.tiered_end {
            let found = self.tiered().first_of_largest(&view.manifest, from).await;
            largest = found.map_err(in_bucket)?;
        }
        let mut entries = self.tail_entries(id, view, end)?;
        // The largest first; of equal ones the earliest, which a stable sort keeps in front.
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.latest));
        for entry in entries {
            if largest.is_some_and(|largest: TimedOffset| largest.timestamp >= entry.latest) {
                break;
            }
            let batches = self.tail_batch(id, &entry).await?;
            let found = first_of_largest_timestamp(&batches, from).map_err(unsound)?;
            largest = larger(largest, found);
        }
        Ok(largest)
    }

    /// Batches of the tail that are visible and not in object storage: all of them, or `Moved`.
    fn tail_entries(&self, id: PartitionId, view: &PartitionView, end: Offset) -> Result<Vec<TailEntry>, LookupError> {
        let from = view.visible.tiered_end.max(view.visible.log_start);
        let entries = self.wal().entries(id, from, end);
        // S19: what was trimmed since the view was taken would be passed over in silence.
        let whole = from >= end || entries.first().is_some_and(|first| first.base <= from);
        if whole { Ok(entries) } else { Err(LookupError::Moved) }
    }

    async fn tail_batch(&self, id: PartitionId, entry: &TailEntry) -> Result<Vec<Batch>, LookupError> {
        match self.wal().read(id, entry.base, entry.end, 0).await {
            Ok(batches) => Ok(batches.into_iter().map(|(batch, _)| batch).collect()),
            Err(TailReadError::Trimmed { .. } | TailReadError::Unknown) => Err(LookupError::Moved),
            Err(error) => Err(LookupError::Failed(storage_error(&error))),
        }
    }
}

/// Why a look-up found neither a record nor that there is none.
enum LookupError {
    /// The view is too old: what it speaks of was uploaded, or deleted, meanwhile.
    Moved,
    /// The manifest is: it ends before the tail begins, as that of a leader which was just elected may.
    OldManifest,
    /// It names what is gone (rule G4).
    Gone,
    Failed(ApiError),
}

fn in_bucket(error: TieredError) -> LookupError {
    match error {
        TieredError::Gone => LookupError::Gone,
        error => LookupError::Failed(storage_error(&error)),
    }
}

fn unsound(error: BatchError) -> LookupError {
    LookupError::Failed(storage_error(&error))
}
