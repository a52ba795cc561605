//! Compaction: of the newest record of each key, the log keeps that one (rules C2, C3, S12; cases C1, C2, C3, C9).
//!
//! One pass at a time in a broker, over one partition that it leads, beside everything else: it reads segments and writes others, and asks the
//! tierer, the one task that changes manifests, to put these in the place of those. What is due is decided in `core::tiering`, what stays
//! of a log in `log::compaction`. A pass that fails or is cut off leaves orphans, and is begun again: what it did stands.

mod pass;

use crate::clock;
use crate::metrics::CompactionMeters;
use crate::tier::upload::{UploadError, Uploader};
use crate::tier::{Compactable, PassInput, StepRefused, TierHandle, TierRequest};
use crate::tiered::{Tiered, TieredError};
use millpond_core::tiering::plan_pass;
use millpond_log::PartitionId;
use millpond_log::batch::BatchError;
use millpond_log::manifest::{ManifestRoot, ManifestView};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

/// A manifest that has not changed is looked at again after so long: what was too young may be old enough by then.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// A pass that ended early is begun again after so many times as long as it took: one that always meets the same damage leaves most of the
/// time to other partitions.
const PAUSE_FACTOR: u32 = 8;

/// Shortest and longest of these pauses.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(3600));

/// The task's state.
pub(crate) struct Compactor {
    pub(crate) tier: TierHandle,
    pub(crate) tiered: Arc<Tiered>,
    pub(crate) uploader: Uploader,
    /// As the tierer's committer has it.
    pub(crate) gc_epoch: Arc<AtomicU64>,
    pub(crate) meters: CompactionMeters,
    pub(crate) interval: Duration,
    pub(crate) looks: BTreeMap<PartitionId, Look>,
}

/// When a partition was looked at last, and when it is next at the earliest.
pub(crate) struct Look {
    /// Of the manifest.
    seq: u64,
    at: Instant,
    not_before: Instant,
}

/// Why a pass ended early. The next one starts over.
#[derive(Debug, thiserror::Error)]
enum PassError {
    #[error("the log could not be read")]
    Read(#[from] TieredError),
    #[error("a batch at offset {at} is damaged")]
    Batch {
        at: millpond_log::Offset,
        #[source]
        source: BatchError,
    },
    #[error("the bucket's segments do not tell how each transaction below {0} ended")]
    Undecided(millpond_log::Offset),
    #[error("a compacted segment could not be written")]
    Upload(#[from] UploadError),
    #[error("a compacted segment could not be put in place")]
    Refused(#[from] StepRefused),
    /// An assertion: the log and what is known of it contradict each other, and nothing of it was touched.
    #[error("a pass of compaction came upon what cannot be")]
    Impossible(#[source] tokio::task::JoinError),
    #[error("the broker is ending")]
    Ending,
}

impl PassError {
    /// Whether it is nothing to tell of: the office or the log has moved on. `moved`: the manifest is another one by now (rule G4).
    fn is_expected(&self, moved: bool) -> bool {
        match self {
            PassError::Ending => true,
            PassError::Read(TieredError::Gone) => moved,
            PassError::Refused(refused) => {
                matches!(refused, StepRefused::NotLeader | StepRefused::NotCompacted | StepRefused::Conflict(_))
            }
            PassError::Read(_)
            | PassError::Batch { .. }
            | PassError::Undecided(_)
            | PassError::Upload(_)
            | PassError::Impossible(_) => false,
        }
    }
}

impl Compactor {
    /// Runs until `shutdown`.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        let mut tick = tokio::time::interval(self.interval);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let round = async {
                tick.tick().await;
                self.round().await;
            };
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = round => {}
            }
        }
    }

    /// A pass over each partition that is due.
    async fn round(&mut self) {
        let compactable = self.compactable().await;
        let now = clock::monotonic();
        // What pauses does so however often it is not listed meanwhile.
        self.looks.retain(|partition, look| {
            look.not_before > now || compactable.iter().any(|one| one.partition == *partition)
        });
        for one in compactable {
            if !self.looks_at(&one) {
                continue;
            }
            let begun = clock::monotonic();
            let Err(error) = self.look(&one).await else { continue };
            let now = clock::monotonic();
            if let Some(look) = self.looks.get_mut(&one.partition) {
                look.not_before = now + ((now - begun) * PAUSE_FACTOR).clamp(PAUSES.0, PAUSES.1);
            }
            let other = |other: &Compactable| other.partition == one.partition && other.root.seq != one.root.seq;
            let moved = self.compactable().await.iter().any(other);
            if !error.is_expected(moved) {
                self.meters.errors.add(1, &[]);
                let (partition, reason) = (one.partition, crate::refusals::storage_error(&error).message);
                tracing::warn!(%partition, reason, "a pass of compaction ended early; it is begun again");
            }
        }
    }

    async fn compactable(&self) -> Vec<Compactable> {
        self.ask(|done| TierRequest::Compactable { done }).await.unwrap_or_default()
    }

    /// Whether the partition is to be looked at now, as is noted then.
    fn looks_at(&mut self, one: &Compactable) -> bool {
        let (now, seq) = (clock::monotonic(), one.root.seq);
        let new = || Look { seq: u64::MAX, at: now, not_before: now };
        let look = self.looks.entry(one.partition).or_insert_with(new);
        let due = now >= look.not_before && (look.seq != seq || now.duration_since(look.at) >= LOOK_AGAIN);
        if due {
            (look.seq, look.at) = (seq, now);
        }
        due
    }

    async fn look(&self, one: &Compactable) -> Result<(), PassError> {
        let root = &one.root;
        let mut view = ManifestView::new(ManifestRoot::clone(root));
        let segments = self.tiered.ask(&mut view, |view| view.segments(root.log_start..root.stable_end)).await?;
        match plan_pass(root, segments, one.rule, clock::wall()) {
            Some(plan) => self.pass(one, plan).await,
            None => Ok(()),
        }
    }

    async fn input(&self, partition: PartitionId) -> Result<PassInput, PassError> {
        let input = self.ask(|done| TierRequest::PassInput { partition, done }).await.ok_or(PassError::Ending)?;
        Ok(input.ok_or(StepRefused::NotLeader)?)
    }

    /// Asks the tierer; `None` once that has ended.
    async fn ask<T>(&self, request: impl FnOnce(oneshot::Sender<T>) -> TierRequest) -> Option<T> {
        let (done, answer) = oneshot::channel();
        self.tier.send(request(done));
        answer.await.ok()
    }
}
