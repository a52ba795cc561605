//! Commits manifests: one metadata transaction for all partitions of an object, settled before anybody hears of it (rules T5, T6, K5).

use super::upload::Uploader;
use crate::metrics::TierMeters;
use crate::session::SessionHandle;
use crate::tiered::TieredError;
use millpond_core::tiering::{Change, Outcome};
use millpond_log::PartitionId;
use millpond_log::manifest::{ManifestError, ManifestRoot};
use millpond_log::object_key::{GcEpoch, ObjectKey};
use millpond_metadata::kv::Revision;
use millpond_metadata::store::{Store, StoreError, TierCommit, TierOutcome};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Times a commit is sent again at once while its outcome is unknown: the answer comes as soon as the store does. After so many
/// it is sent again with the next looks.
const TRIES_MAX: usize = 8;

/// Why manifests could not be changed, or read again. The tierer looks again later.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommitError {
    #[error("the broker has no session")]
    NoSession,
    #[error("the metadata store could not be used")]
    Store(#[from] StoreError),
    #[error("another change of the manifest is under way; retry")]
    Busy,
    #[error("the manifest could not be followed")]
    Manifest(#[source] TieredError),
    #[error("the manifest's root is damaged")]
    Root(#[source] ManifestError),
    #[error("the producer snapshot is unreadable: {0}")]
    Producers(&'static str),
}

impl CommitError {
    /// Whether the next partition would suffer from it too.
    pub(crate) fn is_shared(&self) -> bool {
        match self {
            CommitError::NoSession => true,
            CommitError::Store(error) => !matches!(error, StoreError::Refused(_)),
            CommitError::Busy | CommitError::Manifest(_) | CommitError::Root(_) | CommitError::Producers(_) => false,
        }
    }
}

/// How changes ended, in their order, and what all of them suffered from.
pub(crate) struct Committed {
    pub(crate) outcomes: Vec<Outcome>,
    pub(crate) failure: Option<CommitError>,
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
    /// as it is and rolled with a later change. A change that is sent again rolls nothing: it has to stay the same (rule K5).
    pub(crate) async fn put_rolled(&self, uploader: &Uploader, changes: &mut [Change]) {
        for change in changes {
            if change.sent {
                continue;
            }
            let Some(plan) = change.root.roll(self.gc_epoch(), rand::random) else { continue };
            let mut written = true;
            for object in &plan.objects {
                let parts = std::slice::from_ref(&object.bytes);
                written &= uploader.put(&object.object, parts, object.bytes.len() as u64, object.crc).await.is_ok();
            }
            if written {
                let named_in = plan.objects.iter().map(|object| object.object.gc_epoch());
                change.objects_gc_epoch = change.objects_gc_epoch.into_iter().chain(named_in).min();
                change.root = plan.root;
            }
        }
    }

    /// Commits changes of different partitions.
    pub(crate) async fn commit(&self, changes: &[Change], meters: &TierMeters) -> Committed {
        let commits: Vec<TierCommit> = changes
            .iter()
            .map(|change| TierCommit {
                partition: change.partition,
                epoch: change.epoch,
                base: Revision(change.base),
                root: change.root.encode(),
                objects_gc_epoch: change.objects_gc_epoch.map(|epoch| epoch.0),
                dropped: change.dropped.iter().map(ObjectKey::to_string).collect(),
            })
            .collect();
        let mut outcomes = vec![Outcome::Unknown; commits.len()];
        // A change that was sent before may have happened, whatever keeps it from being sent now.
        for (outcome, change) in outcomes.iter_mut().zip(changes) {
            if !change.sent {
                *outcome = Outcome::Unsent;
            }
        }
        let mut failure = None;
        for _ in 0..TRIES_MAX {
            let Some(session) = self.session.get() else {
                return Committed { outcomes, failure: Some(CommitError::NoSession) };
            };
            // Only those that are not settled: the same transactions again (rule K5).
            let open: Vec<usize> =
                (0..commits.len()).filter(|at| matches!(outcomes[*at], Outcome::Unknown | Outcome::Unsent)).collect();
            if open.is_empty() {
                break;
            }
            meters.transactions.add(1, &[]);
            let again: Vec<TierCommit> = open.iter().map(|at| commits[*at].clone()).collect();
            failure = None;
            for (at, answer) in open.into_iter().zip(self.store.commit_tier(&session, &again).await) {
                match answer {
                    Ok(answer) => outcomes[at] = settle(answer),
                    // Nothing was sent; what was before stays as it is.
                    Err(error) => failure = Some(error.into()),
                }
            }
            if failure.is_some() {
                break;
            }
            tokio::task::yield_now().await;
        }
        if outcomes.contains(&Outcome::Expired) {
            self.refresh_gc_epoch().await;
        }
        Committed { outcomes, failure }
    }

    /// A partition's root as it stands, and its revision. `None` before the first commit.
    pub(crate) async fn root(&self, partition: PartitionId) -> Result<Option<(ManifestRoot, u64)>, CommitError> {
        let Some(stored) = self.store.tier_root(partition).await? else { return Ok(None) };
        let root = ManifestRoot::decode(&stored.value).map_err(CommitError::Root)?;
        Ok(Some((root, stored.revision.0)))
    }

    /// The names made so far were too old: the next ones are not. If it cannot be read now, they expire once more.
    async fn refresh_gc_epoch(&self) {
        if let Ok(epoch) = self.store.gc_epoch().await {
            self.gc_epoch.fetch_max(epoch.value, Ordering::Relaxed);
        }
    }
}

fn settle(answer: TierOutcome) -> Outcome {
    match answer {
        TierOutcome::Committed { revision } => Outcome::Committed(revision.0),
        TierOutcome::Fenced => Outcome::Fenced,
        TierOutcome::Expired => Outcome::Expired,
        TierOutcome::Conflict => Outcome::Conflict,
        TierOutcome::Unknown => Outcome::Unknown,
    }
}
