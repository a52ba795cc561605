//! Changes of manifests, from the decision to everyone's hearing of it, and the moves of log starts (rules T6, K5, C1, T8).

use super::commit::{CommitError, Committed, Committer};
use super::{CutWish, Partition, Tierer, WISHES_MAX};
use crate::api::ApiError;
use crate::clock;
use crate::partitions::messages::ShardMsg;
use crate::refusals::{not_leader, storage_error};
use crate::tiered::Tiered;
use crate::wal::Wal;
use futures::StreamExt;
use millpond_core::tiering::{Change, Settled, TailBatch, TailSummary, may_retire, tail_retention_start};
use millpond_core::topic_config::millis;
use millpond_log::manifest::{ManifestRoot, ManifestView, Retention};
use millpond_log::producers::ProducerTable;
use millpond_log::{ErrorCode, Offset, PartitionId, TimestampMs};
use millpond_metadata::store::TIER_DROPPED_MAX;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// How long a move of the log start may wait for other changes of the manifest. An upload takes a second or so.
const CUT_WAIT_MAX: Duration = Duration::from_secs(10);

/// Roots read again at once.
const REREADS_AT_ONCE: usize = 32;

/// A root as it stands, with the producers at its end if that has moved.
struct Reread {
    root: ManifestRoot,
    base: u64,
    producers: ProducerTable,
}

impl Tierer {
    /// Commits changes and tells the shards. Each partition's failure is its own; what all share comes back as the error.
    pub(super) async fn apply(&mut self, mut changes: Vec<Change>) -> Result<(), CommitError> {
        if changes.is_empty() {
            return Ok(());
        }
        self.committer.put_rolled(&self.uploader, &mut changes).await;
        let begun = clock::monotonic();
        let Committed { outcomes, failure } = self.committer.commit(&changes, &self.meters).await;
        self.meters.commit_seconds.record((clock::monotonic() - begun).as_secs_f64(), &[]);
        let now_ms = self.now_ms();
        for (change, outcome) in changes.into_iter().zip(outcomes) {
            let Some(led) = self.state.partitions.get_mut(&change.partition) else { continue };
            let tiered = change.producers.is_some();
            let partition = change.partition;
            match led.tiering.settled(change, outcome, now_ms, rand::random()) {
                Settled::Announce(root) => {
                    if tiered {
                        self.meters.segments.add(1, &[]);
                    }
                    announce(led, root).await;
                }
                Settled::Again => {
                    tracing::info!(%partition, ?outcome, "a manifest was not changed; it is looked at again")
                }
                Settled::Open => tracing::warn!(%partition, "a manifest's change is not settled yet; it is sent again"),
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// Sends again what is not settled (rule K5), and reads again the roots that moved (rule T8).
    pub(super) async fn settle_open(&mut self) {
        let now_ms = self.now_ms();
        let partitions = &mut self.state.partitions;
        let open: Vec<Change> = partitions.values_mut().filter_map(|led| led.tiering.unsettled(now_ms)).collect();
        let wants = |(id, led): (&PartitionId, &Partition)| {
            led.tiering.wants_root(now_ms).then(|| (*id, led.tiering.root().tiered_end))
        };
        let stale: Vec<(PartitionId, Offset)> = partitions.iter().filter_map(wants).collect();
        if let Err(error) = self.apply(open).await {
            tracing::warn!(reason = storage_error(&error).message, "manifests are still not settled");
        }
        // After an election there may be thousands.
        let (committer, tiered) = (&self.committer, &*self.tiered);
        let reads = stale.into_iter().map(|(partition, known)| async move {
            (partition, read_again(committer, tiered, partition, known).await)
        });
        let read: Vec<_> = futures::stream::iter(reads).buffer_unordered(REREADS_AT_ONCE).collect().await;
        for (partition, read) in read {
            let Some(led) = self.state.partitions.get_mut(&partition) else { continue };
            match read {
                Ok(Reread { root, base, producers }) => {
                    if let Some(root) = led.tiering.reread(root, base, || producers) {
                        announce(led, root).await;
                    }
                }
                Err(error) => {
                    let reason = storage_error(&error).message;
                    tracing::warn!(%partition, reason, "a manifest could not be read again");
                }
            }
        }
    }

    pub(super) async fn apply_retention(&mut self) {
        let (now, now_ms) = (clock::wall(), self.now_ms());
        let due: Vec<PartitionId> = self
            .state
            .partitions
            .iter()
            .filter(|(id, led)| self.may_retire(**id, led, now, now_ms))
            .map(|(id, _)| *id)
            .collect();
        for partition in due {
            let led = &self.state.partitions[&partition];
            // A manifest that cannot be read now is read at the next look.
            let Some(start) = retention_start(&self.tiered, &self.wal, partition, led, now).await else { continue };
            // One step: what is still too old then goes with the next look.
            if start > led.tiering.root().log_start
                && let Err(error) = self.move_log_start(partition, start).await
            {
                tracing::warn!(%partition, reason = storage_error(&error).message, "retention could not be applied; it is tried again");
                if error.is_shared() {
                    return;
                }
            }
        }
    }

    fn may_retire(&self, partition: PartitionId, led: &Partition, now: TimestampMs, now_ms: u64) -> bool {
        let retention = retention(led);
        if retention.age_ms_max.is_none() && retention.size_max.is_none() || !led.tiering.may_change(now_ms) {
            return false;
        }
        let root = led.tiering.root();
        let hw = led.view.borrow().visible.hw;
        let tail: Option<TailSummary> = self.wal.summary(partition, root.tiered_end, hw, 0);
        may_retire(root, retention, now, tail, self.wal.partition_bytes(partition))
    }

    pub(super) fn on_cut(
        &mut self,
        partition: PartitionId,
        before: Option<Offset>,
        done: oneshot::Sender<Result<Offset, ApiError>>,
    ) {
        let many = || ApiError::new(ErrorCode::ThrottlingQuotaExceeded, "too many deletions are waited for; retry");
        let target = match self.state.cuts.len() < WISHES_MAX {
            true => self.cut_target(partition, before),
            false => Err(many()),
        };
        match target {
            Ok(to) => {
                let until = clock::monotonic() + CUT_WAIT_MAX;
                self.state.cuts.push(CutWish { partition, to, until, begun: false, done });
            }
            // The asker may have gone away.
            Err(error) => drop(done.send(Err(error))),
        }
    }

    fn cut_target(&self, partition: PartitionId, before: Option<Offset>) -> Result<Offset, ApiError> {
        let led = self.state.partitions.get(&partition).ok_or_else(not_leader)?;
        let visible = led.view.borrow().visible;
        if !visible.leads && led.tiering.office().is_none() {
            return Err(not_leader());
        }
        match before {
            Some(to) if to > visible.hw => {
                let message = format!("offset {to} is beyond the high watermark {}", visible.hw);
                Err(ApiError::new(ErrorCode::OffsetOutOfRange, message))
            }
            before => Ok(before.unwrap_or(visible.hw)),
        }
    }

    /// Moves the log starts that can be moved now, each by a step. One that has further to go is looked at again at once, also when nobody
    /// waits for it any more: what is asked for is done, or not begun.
    pub(super) async fn grant_cuts(&mut self) {
        for mut wish in std::mem::take(&mut self.state.cuts) {
            if wish.done.is_closed() && !wish.begun {
                continue;
            }
            let before = self.log_start(wish.partition);
            let late = || {
                let message = "the log start has not moved in time; it may still, so ask again";
                ApiError::new(ErrorCode::KafkaStorageError, message).in_doubt()
            };
            let answer = match self.cut(wish.partition, wish.to).await {
                Some(answer) => answer,
                None if self.log_start(wish.partition) > before => {
                    (wish.begun, wish.until) = (true, clock::monotonic() + CUT_WAIT_MAX);
                    self.state.goes_on = true;
                    self.state.cuts.push(wish);
                    continue;
                }
                None if clock::monotonic() < wish.until => {
                    self.state.cuts.push(wish);
                    continue;
                }
                None => Err(late()),
            };
            // The asker may have gone away; the log start has moved all the same.
            let _ = wish.done.send(answer);
        }
    }

    fn log_start(&self, partition: PartitionId) -> Option<Offset> {
        self.state.partitions.get(&partition).map(|led| led.tiering.root().log_start)
    }

    /// Where the log starts then. `None` while it has further to go, or another change of the manifest is under way, or it is not known how one
    /// ended, or a new leader has yet to read the root (rule T8): then it is tried again.
    async fn cut(&mut self, partition: PartitionId, to: Offset) -> Option<Result<Offset, ApiError>> {
        let Some(led) = self.state.partitions.get(&partition) else { return Some(Err(not_leader())) };
        if led.tiering.office().is_none() {
            return (!led.view.borrow().visible.leads).then(|| Err(not_leader()));
        }
        if to <= led.tiering.root().log_start {
            return Some(Ok(led.tiering.root().log_start));
        }
        match self.move_log_start(partition, to).await {
            Ok(()) => {}
            Err(CommitError::Busy) => return None,
            Err(error) => return Some(Err(storage_error(&error))),
        }
        let start = self.state.partitions.get(&partition)?.tiering.root().log_start;
        (start >= to).then_some(Ok(start))
    }

    /// Moves the log start towards `to`, as far as one change of the manifest may drop objects. Durable metadata first, deletion later (rule
    /// C1, case C7).
    async fn move_log_start(&mut self, partition: PartitionId, to: Offset) -> Result<(), CommitError> {
        let now_ms = self.now_ms();
        let led = &self.state.partitions[&partition];
        if !led.tiering.may_change(now_ms) {
            return Err(CommitError::Busy);
        }
        let mut view = ManifestView::new(ManifestRoot::clone(led.tiering.root()));
        let dropped = self.tiered.ask(&mut view, |view| view.dropped_by(to, TIER_DROPPED_MAX)).await;
        let dropped = dropped.map_err(CommitError::Manifest)?;
        let led = self.state.partitions.get_mut(&partition).expect("only this task takes partitions away");
        let change = led.tiering.advance(&dropped);
        self.apply(vec![change]).await
    }
}

fn retention(led: &Partition) -> Retention {
    if !led.config.cleanup_policy.delete {
        return Retention { age_ms_max: None, size_max: None };
    }
    Retention { age_ms_max: led.config.retention.map(millis), size_max: led.config.retention_bytes }
}

/// Where the log may start by its retention settings. `None` where the manifest cannot be read now.
async fn retention_start(
    tiered: &Tiered,
    wal: &Wal,
    partition: PartitionId,
    led: &Partition,
    now: TimestampMs,
) -> Option<Offset> {
    let retention = retention(led);
    let root = led.tiering.root();
    let tail_bytes = wal.partition_bytes(partition);
    let mut view = ManifestView::new(ManifestRoot::clone(root));
    let start = tiered.ask(&mut view, |view| view.retention_start(retention, now, tail_bytes)).await.ok()?;
    if start < root.tiered_end {
        return Some(start);
    }
    let hw = led.view.borrow().visible.hw;
    let entries = wal.entries(partition, root.tiered_end, hw);
    let batches: Vec<TailBatch> = entries
        .iter()
        .map(|entry| TailBatch { end: entry.end, size: entry.size.into(), append_time: entry.append_time })
        .collect();
    Some(tail_retention_start(&batches, start, hw, retention, now))
}

/// Reads a root, and the producers at its end unless that is still at `known`.
async fn read_again(
    committer: &Committer,
    tiered: &Tiered,
    partition: PartitionId,
    known: Offset,
) -> Result<Reread, CommitError> {
    let read = committer.root(partition).await?;
    let (root, base) = read.unwrap_or_else(|| (ManifestRoot::new(partition), 0));
    let producers = match root.newest().filter(|_| root.tiered_end != known) {
        None => ProducerTable::default(),
        Some(newest) => {
            let snapshot = tiered.producers(partition, newest).await.map_err(CommitError::Manifest)?;
            ProducerTable::decode(&snapshot).map_err(CommitError::Producers)?
        }
    };
    Ok(Reread { root, base, producers })
}

/// Tells the shard of a root that was seen as committed (rule T6), and waits until readers see it: whoever is told that it is
/// done has to see it done.
async fn announce(led: &mut Partition, root: Arc<ManifestRoot>) {
    let (partition, seq) = (root.partition, root.seq);
    // The shard is gone only when the broker ends.
    let _ = led.shard.send(ShardMsg::Manifest { partition, root });
    let _ = led.view.wait_for(|view| view.manifest.seq >= seq).await;
}
