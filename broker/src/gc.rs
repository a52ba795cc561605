//! Garbage collection of objects (rules G1 to G3). Safe however long it pauses: it only deletes what two bumps of the epoch have outlived.

use crate::bucket::{Bucket, BucketError};
use crate::clock;
use crate::metrics::TierMeters;
use crate::session::SessionHandle;
use crate::tiered::{Tiered, TieredError};
use futures::TryStreamExt;
use millpond_core::collection::{collectable, drops_due_below, orphans};
use millpond_core::tiering::TierRules;
use millpond_log::manifest::{ManifestError, ManifestRoot, ManifestView};
use millpond_log::object_key::{GcEpoch, ObjectKey};
use millpond_metadata::store::{Bumped, Store, StoreError};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Orphans are looked for once in so many periods: daily, with the default of one hour.
const SWEEP_PERIODS: u64 = 24;

/// What the collector works with.
pub(crate) struct Collector {
    pub(crate) store: Store,
    pub(crate) session: SessionHandle,
    pub(crate) objects: Arc<dyn ObjectStore>,
    pub(crate) bucket: Bucket,
    pub(crate) tiered: Arc<Tiered>,
    pub(crate) gc_epoch: Arc<AtomicU64>,
    pub(crate) meters: TierMeters,
    pub(crate) period: Duration,
}

/// Why a collection stopped. What it had not deleted yet is found again.
#[derive(Debug, thiserror::Error)]
enum GcError {
    #[error("the metadata store could not be used")]
    Metadata(#[from] StoreError),
    #[error("the object store could not be used")]
    Objects(#[from] object_store::Error),
    /// Rule G5: what no manifest of ours names may be another cluster's.
    #[error(transparent)]
    Bucket(#[from] BucketError),
    /// Without every manifest nothing may be called an orphan (rule K6).
    #[error("a manifest could not be followed")]
    Manifest(#[from] TieredError),
    #[error("a manifest root is damaged")]
    Root(#[from] ManifestError),
}

impl Collector {
    /// Runs until `shutdown`.
    pub(crate) async fn run(self, shutdown: CancellationToken) {
        let mut tick = tokio::time::interval(self.period);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                _ = tick.tick() => {}
            }
            if let Err(error) = self.collect().await {
                tracing::warn!(error = %crate::refusals::storage_error(&error).message, "garbage collection stopped; it goes on later");
            }
        }
    }

    async fn collect(&self) -> Result<(), GcError> {
        let Some(session) = self.session.get() else { return Ok(()) };
        let bumped = self.store.bump_gc_epoch(&session, clock::wall(), self.period).await?;
        let epoch = self.store.gc_epoch().await?.value;
        self.gc_epoch.store(epoch, Ordering::Relaxed);
        self.delete_dropped(epoch).await?;
        if matches!(bumped, Bumped::To { .. }) && epoch.is_multiple_of(SWEEP_PERIODS) {
            self.sweep(GcEpoch(epoch)).await?;
        }
        Ok(())
    }

    /// Deletes what manifests dropped two epochs ago (rule G2). Readers that still hold an older manifest have had two periods.
    async fn delete_dropped(&self, epoch: u64) -> Result<(), GcError> {
        let Some(session) = self.session.get() else { return Ok(()) };
        let due = self.store.drops_before(drops_due_below(GcEpoch(epoch)).0).await?;
        let (mut gone, mut left) = (Vec::with_capacity(due.len()), Left::default());
        for drop in due {
            let mut all = true;
            for object in &drop.record.value.objects {
                all &= left.note(object, self.delete(&Path::from(object.as_str())).await);
            }
            if all {
                gone.push(drop);
            }
        }
        left.tell();
        for struck in self.store.forget_drops(&session, &gone).await {
            // One that stays is deleted again, which is harmless.
            struck?;
        }
        Ok(())
    }

    /// Deletes objects that no manifest names and that nobody can commit any more (rule G2): list first, then read the manifests. First of all
    /// that nobody else's objects are among them (rule G5).
    async fn sweep(&self, epoch: GcEpoch) -> Result<(), GcError> {
        self.bucket.check().await?;
        let listed: Vec<Path> = self.objects.list(None).map_ok(|meta| meta.location).try_collect().await?;
        let ours: Vec<ObjectKey> = listed.iter().filter_map(|path| path.as_ref().parse().ok()).collect();
        let old = collectable(ours, epoch, TierRules::ALL);
        let referenced = self.references().await?;
        let mut left = Left::default();
        for key in orphans(old, &referenced) {
            let path = Path::from(key.to_string());
            left.note(path.as_ref(), self.delete(&path).await);
        }
        left.tell();
        Ok(())
    }

    async fn references(&self) -> Result<BTreeSet<ObjectKey>, GcError> {
        let (_, roots) = self.store.tier_roots(None).await?;
        let mut references = BTreeSet::new();
        for root in roots.into_values() {
            let mut view = ManifestView::new(ManifestRoot::decode(&root.value)?);
            references.extend(self.tiered.ask(&mut view, ManifestView::references).await?);
        }
        Ok(references)
    }

    async fn delete(&self, path: &Path) -> Result<(), object_store::Error> {
        match self.objects.delete(path).await {
            Ok(()) => self.meters.objects_deleted.add(1, &[]),
            Err(object_store::Error::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// What could not be deleted. It keeps itself, and nothing else; it is found again at the next look.
#[derive(Default)]
struct Left {
    count: u64,
    first: Option<(String, object_store::Error)>,
}

impl Left {
    /// Whether it is gone.
    fn note(&mut self, object: &str, deleted: Result<(), object_store::Error>) -> bool {
        let Err(error) = deleted else { return true };
        self.count += 1;
        self.first.get_or_insert_with(|| (object.to_owned(), error));
        false
    }

    fn tell(self) {
        let Some((first, error)) = self.first else { return };
        let error = crate::refusals::storage_error(&error).message;
        tracing::warn!(objects = self.count, first, error, "objects could not be deleted; they are tried again later");
    }
}

#[cfg(test)]
mod tests;
