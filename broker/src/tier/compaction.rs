//! Steps of compaction, as the one task that changes manifests takes them (rules C2, C3).
//!
//! Level-triggered, like all it does: whether a step is taken is read off the manifest as last seen committed, so that one whose commit was in
//! doubt is neither taken twice nor forgotten (rules K5, T8).

use super::Tierer;
use super::commit::CommitError;
use super::upload::UploadError;
use crate::clock;
use millpond_core::tiering::CompactionRule;
use millpond_log::manifest::{Compacted, ManifestRoot, ManifestView, Swap, SwapConflict};
use millpond_log::producers::ProducerTable;
use millpond_log::{LeaderEpoch, PartitionId};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::oneshot;

/// A compacted partition that is led here, and has something that no pass has covered, or that may go.
pub(crate) struct Compactable {
    pub(crate) partition: PartitionId,
    pub(crate) epoch: LeaderEpoch,
    pub(crate) rule: CompactionRule,
    pub(crate) root: Arc<ManifestRoot>,
}

/// What a pass needs besides the manifest.
pub(crate) struct PassInput {
    pub(crate) topic_name: String,
    /// At a tiered end that is not below any that the pass looks at.
    pub(crate) producers: ProducerTable,
}

/// One step, and who waits for it.
pub(crate) struct CompactionStep {
    pub(crate) partition: PartitionId,
    /// The office in which it was decided (rule T5).
    pub(crate) epoch: LeaderEpoch,
    pub(crate) change: CompactionChange,
    /// Others of the manifest's changes are waited for until then.
    pub(crate) until: Instant,
    pub(crate) done: oneshot::Sender<Result<(), StepRefused>>,
}

/// What is to become of the manifest.
#[derive(Clone)]
pub(crate) enum CompactionChange {
    /// A segment, whose object is in the bucket, takes the place of others.
    Swap(Box<Swap>),
    /// A pass is over.
    AfterPass(Compacted),
}

/// Why a step is not taken. The pass ends; the next one starts from the manifest as it is then.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StepRefused {
    #[error("the partition is not led here any more")]
    NotLeader,
    #[error("the topic is not compacted any more")]
    NotCompacted,
    #[error(transparent)]
    Conflict(#[from] SwapConflict),
    #[error("the manifest could not be changed")]
    Commit(#[from] CommitError),
    #[error("a rolled manifest could not be written")]
    Upload(#[from] UploadError),
}

/// How far a step has come.
enum Progress {
    Taken,
    Waits,
}

impl Tierer {
    pub(super) fn compactable(&self) -> Vec<Compactable> {
        let now = clock::wall();
        let due = |(partition, led): (&PartitionId, &super::Partition)| {
            let rule = CompactionRule::of(&led.config)?;
            let epoch = led.tiering.office().filter(|_| led.tiering.knows_root())?;
            let root = Arc::clone(led.tiering.root());
            rule.may_be_due(&root, now).then_some(Compactable { partition: *partition, epoch, rule, root })
        };
        self.state.partitions.iter().filter_map(due).collect()
    }

    pub(super) fn pass_input(&self, partition: PartitionId) -> Option<PassInput> {
        let led = self.state.partitions.get(&partition).filter(|led| led.tiering.office().is_some())?;
        Some(PassInput { topic_name: led.topic_name.clone(), producers: led.tiering.producers().clone() })
    }

    /// Takes the steps that can be taken now, and answers those that are taken, or never will be.
    pub(super) async fn grant_compaction(&mut self) {
        for step in std::mem::take(&mut self.state.compaction) {
            if step.done.is_closed() {
                continue;
            }
            let answer = match self.take_step(&step).await {
                Ok(Progress::Taken) => Ok(()),
                Ok(Progress::Waits) if clock::monotonic() < step.until => {
                    self.state.compaction.push(step);
                    continue;
                }
                Ok(Progress::Waits) => Err(CommitError::Busy.into()),
                Err(refused) => Err(refused),
            };
            // The asker ends with the broker.
            let _ = step.done.send(answer);
        }
    }

    async fn take_step(&mut self, step: &CompactionStep) -> Result<Progress, StepRefused> {
        let CompactionStep { partition, epoch, change, .. } = step;
        let now_ms = self.now_ms();
        let led = self.state.partitions.get(partition).filter(|led| led.tiering.office() == Some(*epoch));
        let led = led.ok_or(StepRefused::NotLeader)?;
        if CompactionRule::of(&led.config).is_none() {
            return Err(StepRefused::NotCompacted);
        }
        if !led.tiering.knows_root() {
            return Ok(Progress::Waits);
        }
        let may_change = led.tiering.may_change(now_ms);
        let root = Arc::clone(led.tiering.root());
        let changed = match change {
            CompactionChange::AfterPass(compacted) if root.compacted == *compacted => return Ok(Progress::Taken),
            // Others have led in between, and came further.
            CompactionChange::AfterPass(compacted) if compacted.end < root.compacted.end => {
                return Err(SwapConflict.into());
            }
            CompactionChange::AfterPass(_) if !may_change => return Ok(Progress::Waits),
            CompactionChange::AfterPass(compacted) => self.led(*partition).after_pass(*compacted),
            CompactionChange::Swap(swap) => {
                let mut view = ManifestView::new(ManifestRoot::clone(&root));
                let covered = swap.output().base..swap.output().end;
                let there = self.tiered.ask(&mut view, |view| view.segments(covered.clone())).await;
                if there.map_err(CommitError::Manifest)? == std::slice::from_ref(swap.output()) {
                    return Ok(Progress::Taken);
                }
                if !may_change {
                    return Ok(Progress::Waits);
                }
                let gc_epoch = self.committer.gc_epoch();
                let plan = self.tiered.ask(&mut view, |view| view.swap(swap, *epoch, gc_epoch, rand::random)).await;
                let plan = plan.map_err(CommitError::Manifest)??;
                for object in &plan.objects {
                    let parts = std::slice::from_ref(&object.bytes);
                    self.uploader.put(&object.object, parts, object.bytes.len() as u64, object.crc).await?;
                }
                self.led(*partition).swap(swap, plan)
            }
        };
        // Whether it happened is read off the manifest, once that is known.
        self.apply(vec![changed]).await?;
        self.state.goes_on = true;
        Ok(Progress::Waits)
    }

    fn led(&mut self, partition: PartitionId) -> &mut millpond_core::tiering::Tiering {
        &mut self.state.partitions.get_mut(&partition).expect("only this task takes partitions away").tiering
    }
}
