//! Commits manifests: one metadata transaction for all partitions of an object, settled before anybody hears of it (rules T5, T6, K5).

use super::Led;
use super::upload::Uploader;
use crate::metrics::Metrics;
use crate::session::SessionHandle;
use crate::tiered::TieredError;
use millpond_log::manifest::{Dropped, ManifestRoot};
use millpond_log::object_key::{GcEpoch, ObjectKey};
use millpond_log::{LeaderEpoch, PartitionId};
use millpond_metadata::kv::Revision;
use millpond_metadata::store::{Store, StoreError, TierCommit, TierOutcome};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Times a commit is sent again while its outcome is unknown or the collection's epoch moves under it. The answer comes as
/// soon as the store does; after so many the tierer looks again from what is stored (rule T8).
const TRIES_MAX: usize = 8;

/// A change of one manifest, decided on the root at `base`.
pub(crate) struct Change {
    pub(crate) partition: PartitionId,
    pub(crate) root: ManifestRoot,
    epoch: LeaderEpoch,
    base: Revision,
    objects_gc_epoch: Option<GcEpoch>,
    dropped: Vec<String>,
}

impl Change {
    /// One more segment, in an object named in `gc_epoch`.
    pub(crate) fn append(led: &Led, root: ManifestRoot, gc_epoch: GcEpoch) -> Change {
        let (epoch, base) = (led.epoch(), led.revision);
        Change { partition: led.partition, root, epoch, base, objects_gc_epoch: Some(gc_epoch), dropped: Vec::new() }
    }

    /// Another log start. A bundle that loses a segment may hold others': only the sweep, which looks at all manifests, deletes it.
    pub(crate) fn advance(led: &Led, root: ManifestRoot, dropped: &Dropped) -> Change {
        let segments = dropped.segments.iter().map(|entry| entry.object);
        let manifests = dropped.manifests.iter().map(|rolled| rolled.object);
        let alone = |object: &ObjectKey| !matches!(object, ObjectKey::Bundle(_));
        let dropped = segments.chain(manifests).filter(alone).map(|object| object.to_string()).collect();
        Change {
            partition: led.partition,
            root,
            epoch: led.epoch(),
            base: led.revision,
            objects_gc_epoch: None,
            dropped,
        }
    }
}

/// How a change ended.
pub(crate) enum Outcome {
    /// It holds; the revision is the base of the next.
    Committed(Revision),
    /// Another leads the partition, or this broker's session is gone.
    Fenced,
}

/// Why a change could not be settled. The tierer looks again later.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommitError {
    #[error("the broker has no session")]
    NoSession,
    #[error("the metadata store could not be used")]
    Store(#[from] StoreError),
    #[error("the manifest moved, or its change could not be settled")]
    Unsettled,
    /// Another leads one of the partitions, or this broker has a new session: the views tell soon. The others' changes hold.
    #[error("a manifest commit was fenced")]
    Fenced,
    #[error("the objects are too old to be committed; they are uploaded again")]
    Expired,
    #[error("the manifest could not be followed")]
    Manifest(#[source] TieredError),
}

/// Commits for one broker.
pub(crate) struct Committer {
    pub(crate) store: Store,
    pub(crate) session: SessionHandle,
    /// The collection's epoch as last read: names of new objects carry it (rule T2). An old one costs an upload, no more.
    pub(crate) gc_epoch: Arc<AtomicU64>,
}

impl Committer {
    /// The epoch for names of new objects.
    pub(crate) fn gc_epoch(&self) -> GcEpoch {
        GcEpoch(self.gc_epoch.load(Ordering::Relaxed))
    }

    /// Rolls older entries of roots that have outgrown their key into objects. A root that cannot be rolled now is committed
    /// as it is and rolled with a later change.
    pub(crate) async fn put_rolled(&self, uploader: &Uploader, changes: &mut [Change]) {
        for change in changes {
            let Some(plan) = change.root.roll(self.gc_epoch(), rand::random) else { continue };
            let mut written = true;
            for object in &plan.objects {
                let parts = std::slice::from_ref(&object.bytes);
                written &= uploader.put(&object.object, parts, object.bytes.len() as u64, object.crc).await.is_ok();
            }
            if written {
                change.root = plan.root;
            }
        }
    }

    /// Commits changes of different partitions; the outcomes are in their order.
    pub(crate) async fn commit(&self, changes: &[Change], metrics: &Metrics) -> Result<Vec<Outcome>, CommitError> {
        let commits: Vec<TierCommit> = changes
            .iter()
            .map(|change| TierCommit {
                partition: change.partition,
                epoch: change.epoch,
                base: change.base,
                root: change.root.encode(),
                objects_gc_epoch: change.objects_gc_epoch.map(|epoch| epoch.0),
                dropped: change.dropped.clone(),
            })
            .collect();
        for _ in 0..TRIES_MAX {
            let session = self.session.get().ok_or(CommitError::NoSession)?;
            metrics.metadata_tier_transactions.inc();
            let answers = self.store.commit_tier(&session, &commits).await;
            let settled: Result<Vec<Option<Outcome>>, CommitError> = answers.into_iter().map(settle).collect();
            match settled? {
                outcomes if outcomes.iter().all(Option::is_some) => {
                    return Ok(outcomes.into_iter().flatten().collect());
                }
                // The same transactions again: those that hold say so (rule K5).
                _ => tokio::task::yield_now().await,
            }
        }
        Err(CommitError::Unsettled)
    }
}

/// `None`: send it again.
fn settle(answer: Result<TierOutcome, StoreError>) -> Result<Option<Outcome>, CommitError> {
    match answer? {
        TierOutcome::Committed { revision } => Ok(Some(Outcome::Committed(revision))),
        TierOutcome::Fenced => Ok(Some(Outcome::Fenced)),
        TierOutcome::Expired => Err(CommitError::Expired),
        TierOutcome::Conflict | TierOutcome::Unknown => Ok(None),
    }
}
