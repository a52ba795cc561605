//! What a leader does about the manifest of one partition: which tail goes up, what is committed, when it counts, what comes
//! after a failure (rules T1, T5, T6, T8, C1, C2, C3, K5, K8).
//!
//! Pure: it reads no WAL, puts no object and runs no transaction. The driver does, and says how each ended. Whatever is under
//! way for a partition is here, so that flush, retention, delete-records and compaction cannot overlap (rule C3).

mod backoff;
mod compaction;
mod retention;

pub use backoff::Backoff;
pub use compaction::{CompactionRule, PassPlan, SWAP_BYTES_TARGET, SWAP_INPUTS_MAX, groups, plan_pass};
pub use retention::{TailBatch, may_retire, tail_retention_start};

use crate::flush::{FlushRule, Pressure, Tail};
use crate::replica::Visible;
use millpond_log::manifest::{Compacted, Dropped, ManifestRoot, SegmentEntry, Swap, SwapPlan};
use millpond_log::object_key::{GcEpoch, ObjectKey};
use millpond_log::producers::ProducerTable;
use millpond_log::{LeaderEpoch, Offset, PartitionId, TimestampMs};
use std::sync::Arc;

/// The safety rules of tiering that can be taken away, to see that the simulator misses them. A broker has all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierRules {
    /// T1: only what is committed goes up.
    pub committed_only: bool,
    /// T6: nobody hears of a manifest before its commit was seen.
    pub commit_before_trim: bool,
    /// G1, G2: only objects too old to be committed are collected.
    pub collect_by_epoch: bool,
}

impl TierRules {
    /// As a broker runs.
    pub const ALL: TierRules = TierRules { committed_only: true, commit_before_trim: true, collect_by_epoch: true };
}

/// What the WAL holds of a partition from its tiered end on, in brief.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TailSummary {
    /// End of the last whole batch that was asked for and fits the bytes asked for.
    pub end: Offset,
    /// Bytes of batches up to there.
    pub bytes: u64,
    /// Append time of the first.
    pub oldest: TimestampMs,
    /// More follow below the bound: the bytes asked for are full.
    pub more: bool,
}

/// What a topic's settings say about its uploads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierSettings {
    /// Most bytes of one segment, and when a tail is due.
    pub rule: FlushRule,
    /// Which segments may share an object.
    pub retention_ms: i64,
}

/// When a tail is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// A clock that only goes forward, in milliseconds.
    pub mono_ms: u64,
    /// The wall clock, which append times are compared with.
    pub wall: TimestampMs,
    /// How hard the broker has to flush.
    pub pressure: Pressure,
}

/// A change of one manifest (rule T5), decided on the root that stands at `base` in the metadata store.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The partition.
    pub partition: PartitionId,
    /// The epoch it is led in.
    pub epoch: LeaderEpoch,
    /// Revision of the root it was decided on; 0 for none.
    pub base: u64,
    /// The new root.
    pub root: ManifestRoot,
    /// Lowest gc epoch in the names of the objects it adds (rule G1).
    pub objects_gc_epoch: Option<GcEpoch>,
    /// Objects that the new root no longer names (rule G2).
    pub dropped: Vec<ObjectKey>,
    /// Producer state at the new tiered end, where it moves (rule T4).
    pub producers: Option<ProducerTable>,
    /// It was sent before, and may have happened: it must not be altered any more (rule K5).
    pub sent: bool,
}

/// How a change ended, as far as the driver knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It holds; this is its revision.
    Committed(u64),
    /// It did not happen and will not: another leads, or the session is gone.
    Fenced,
    /// It did not happen and will not: the objects are too old (rule G1).
    Expired,
    /// It did not happen and will not: the root is not the one it was decided on.
    Conflict,
    /// It may have happened, or may yet (rule K5).
    Unknown,
    /// It was not sent, this time or ever.
    Unsent,
}

/// What a settled change means for everyone else.
#[derive(Clone, Debug, PartialEq)]
pub enum Settled {
    /// The shard may hear of this root: it was seen as committed (rule T6).
    Announce(Arc<ManifestRoot>),
    /// Nothing came of it; what was uploaded is an orphan. It is planned again after the back-off.
    Again,
    /// Not known: `unsettled` has it until it is.
    Open,
}

/// Where a partition stands.
#[derive(Clone, Debug)]
enum Step {
    Idle,
    /// An object with its tail is on its way up, begun in this epoch.
    Uploading(LeaderEpoch),
    /// A change was handed to the driver.
    Committing,
    /// A change whose outcome is unknown: the very same is sent again (rule K5).
    Unsettled(Box<Change>),
    /// The root has to be read again (rule T8).
    Stale,
}

/// One partition, as its leader tiers it.
#[derive(Clone, Debug)]
pub struct Tiering {
    partition: PartitionId,
    rules: TierRules,
    office: Option<LeaderEpoch>,
    settings: TierSettings,
    root: Arc<ManifestRoot>,
    base: u64,
    producers: ProducerTable,
    step: Step,
    backoff: Backoff,
}

impl Tiering {
    /// A partition that nobody leads yet. `root` stands at revision `base` in the metadata store; `producers` is the state of
    /// its producers at the tiered end.
    #[must_use]
    pub fn new(
        root: Arc<ManifestRoot>,
        base: u64,
        producers: ProducerTable,
        settings: TierSettings,
        rules: TierRules,
    ) -> Tiering {
        let (step, backoff) = (Step::Idle, Backoff::default());
        Tiering { partition: root.partition, rules, office: None, settings, root, base, producers, step, backoff }
    }

    /// The manifest as last seen committed.
    #[must_use]
    pub fn root(&self) -> &Arc<ManifestRoot> {
        &self.root
    }

    /// Producer state at the tiered end.
    #[must_use]
    pub fn producers(&self) -> &ProducerTable {
        &self.producers
    }

    /// The epoch it is led in, if it is (rule T5): as the office was taken, not as a view may still say.
    #[must_use]
    pub fn office(&self) -> Option<LeaderEpoch> {
        self.office
    }

    /// Takes or leaves office as the replica has.
    pub fn see(&mut self, visible: &Visible) {
        let office = visible.leads.then_some(visible.epoch);
        match office {
            _ if office == self.office => {}
            None => self.resign(),
            Some(epoch) => {
                self.lead(epoch);
                if matches!(self.step, Step::Idle) {
                    // Another may have led meanwhile, and have changed the root last (rule T8).
                    self.step = Step::Stale;
                }
            }
        }
    }

    /// The office was taken, in `epoch`.
    pub fn lead(&mut self, epoch: LeaderEpoch) {
        self.office = Some(epoch);
        self.backoff = Backoff::default();
        if matches!(self.step, Step::Unsettled(_)) {
            // It was sent in another epoch: it may have happened before, and cannot happen from now on.
            self.step = Step::Stale;
        }
    }

    /// The office was lost. What is under way will be fenced.
    pub fn resign(&mut self) {
        self.office = None;
    }

    /// The topic's settings changed.
    pub fn configure(&mut self, settings: TierSettings) {
        self.settings = settings;
    }

    /// The tail that may go up next: committed (rule T1), of this office's epoch, and nothing else under way.
    ///
    /// It ends where transactions begin to be undecided, unless that holds up what has to go: when the WAL fills, or when its first
    /// record is older than twice the flush interval. The segment then says which are open at its end (rule T7).
    ///
    /// `summary` tells what the WAL holds between two offsets, within so many bytes.
    pub fn tail(
        &self,
        look: Look,
        visible: &Visible,
        summary: impl Fn(Offset, Offset, u64) -> Option<TailSummary>,
    ) -> Option<Tail> {
        let (stable, committed) =
            if self.rules.committed_only { (visible.lso, visible.hw) } else { (visible.end, visible.end) };
        let tiered_end = self.root.tiered_end;
        let may = visible.leads
            && self.office == Some(visible.epoch)
            && committed > tiered_end
            && matches!(self.step, Step::Idle)
            && self.backoff.over(look.mono_ms);
        if !may {
            return None;
        }
        let TierSettings { rule, retention_ms } = self.settings;
        let mut held = summary(tiered_end, committed, rule.bytes)?;
        let overdue = look.wall.0.saturating_sub(held.oldest.0) >= rule.age_ms.saturating_mul(2);
        if held.end > stable && look.pressure == Pressure::Calm && !overdue {
            held = if stable > tiered_end { summary(tiered_end, stable, rule.bytes)? } else { return None };
        }
        let TailSummary { end, bytes, oldest, more } = held;
        // A full segment is due, however its size falls short of the setting by a part of a batch.
        let rule = FlushRule { bytes: if more { bytes } else { rule.bytes }, ..rule };
        Some(Tail { partition: self.partition, tiered_end, end, bytes, oldest, rule, retention_ms })
    }

    /// Its tail is on its way up from now on. Returns the epoch to write it under.
    ///
    /// Panics if `tail` did not offer it.
    pub fn begin_upload(&mut self) -> LeaderEpoch {
        assert!(matches!(self.step, Step::Idle), "rule C3: one change of a manifest at a time");
        let epoch = self.office.expect("only a leader has a tail to upload");
        self.step = Step::Uploading(epoch);
        epoch
    }

    /// The upload failed. `blamed`: by this partition, not by the object store or by a neighbour in the bundle.
    pub fn upload_failed(&mut self, now_ms: u64, blamed: bool, jitter: f64) {
        if let Step::Uploading(epoch) = self.step {
            self.step = self.rest(epoch);
        }
        if blamed {
            self.backoff.fail(now_ms, jitter);
        }
    }

    /// Its segment is in the bucket, surely and rightly (rules T2, T3). The change that commits it; `None` if the office has
    /// changed hands meanwhile: then it is an orphan.
    pub fn uploaded(&mut self, entry: SegmentEntry, producers: ProducerTable) -> Option<Change> {
        let Step::Uploading(epoch) = self.step else { return None };
        self.step = self.rest(epoch);
        if self.office != Some(epoch) || entry.base != self.root.tiered_end {
            return None;
        }
        self.step = Step::Committing;
        Some(Change {
            partition: self.partition,
            epoch,
            base: self.base,
            objects_gc_epoch: Some(entry.object.gc_epoch()),
            root: self.root.append(entry, epoch),
            dropped: Vec::new(),
            producers: Some(producers),
            sent: false,
        })
    }

    /// What follows what was begun in `epoch`. In another office the root may be older than the replica's log, since others have led
    /// in between: it is read again first (rule T8).
    fn rest(&self, epoch: LeaderEpoch) -> Step {
        if self.office == Some(epoch) { Step::Idle } else { Step::Stale }
    }

    /// Whether the manifest may be changed now: by an advance of the log start, or by compaction.
    #[must_use]
    pub fn may_change(&self, now_ms: u64) -> bool {
        self.office.is_some() && matches!(self.step, Step::Idle) && self.backoff.over(now_ms)
    }

    /// Whether the root is as it stands, as far as a leader may know: no other has changed it unseen, and no change of it is in doubt (rules K5,
    /// T8). One may be under way.
    #[must_use]
    pub fn knows_root(&self) -> bool {
        self.office.is_some() && !matches!(self.step, Step::Stale | Step::Unsettled(_))
    }

    /// The change that moves the log start (rule C1) as far as `dropped` says, which is what the manifest says leaves it then. A bundle that
    /// loses a segment may hold others': only the collector, which reads all manifests, deletes it.
    ///
    /// Panics unless `may_change`.
    pub fn advance(&mut self, dropped: &Dropped) -> Change {
        let segments = dropped.segments.iter().map(|entry| entry.object);
        let manifests = dropped.manifests.iter().map(|rolled| rolled.object);
        let named = segments.chain(manifests).filter(ObjectKey::is_alone).collect();
        self.change(|root, epoch| root.advance_log_start(dropped.to, epoch), None, named)
    }

    /// The change that puts a segment in place of others (rules C2, C3), as planned on `root` and with this office's epoch. The segment's
    /// object and the plan's are in the bucket, surely and rightly (rules T2, T3).
    ///
    /// Panics unless `may_change`, and the plan follows on the root.
    pub fn swap(&mut self, swap: &Swap, plan: SwapPlan) -> Change {
        let named = plan.objects.iter().map(|object| object.object.gc_epoch());
        let oldest = named.fold(swap.output().object.gc_epoch(), GcEpoch::min);
        let root = |root: &ManifestRoot, epoch| {
            assert!(plan.root.seq == root.seq + 1 && plan.root.epoch == epoch, "the plan follows on the root");
            plan.root
        };
        self.change(root, Some(oldest), plan.dropped)
    }

    /// The change that says how far a pass of compaction has come.
    ///
    /// Panics unless `may_change`.
    pub fn after_pass(&mut self, compacted: Compacted) -> Change {
        self.change(|root, epoch| root.after_pass(compacted, epoch), None, Vec::new())
    }

    /// A change that moves no tiered end, begun now.
    fn change(
        &mut self,
        root: impl FnOnce(&ManifestRoot, LeaderEpoch) -> ManifestRoot,
        objects_gc_epoch: Option<GcEpoch>,
        dropped: Vec<ObjectKey>,
    ) -> Change {
        assert!(matches!(self.step, Step::Idle), "rule C3: one change of a manifest at a time");
        let epoch = self.office.expect("only a leader changes a manifest");
        self.step = Step::Committing;
        Change {
            partition: self.partition,
            epoch,
            base: self.base,
            objects_gc_epoch,
            root: root(&self.root, epoch),
            dropped,
            producers: None,
            sent: false,
        }
    }

    /// How a change ended (rules K5, T6).
    pub fn settled(&mut self, change: Change, outcome: Outcome, now_ms: u64, jitter: f64) -> Settled {
        let committed = match outcome {
            Outcome::Committed(revision) => Some(revision),
            Outcome::Unknown if !self.rules.commit_before_trim => Some(self.base),
            _ => None,
        };
        if let Some(revision) = committed {
            self.step = self.rest(change.epoch);
            self.backoff = Backoff::default();
            self.base = revision;
            self.root = Arc::new(change.root);
            if let Some(producers) = change.producers {
                self.producers = producers;
            }
            return Settled::Announce(Arc::clone(&self.root));
        }
        self.backoff.fail(now_ms, jitter);
        match outcome {
            Outcome::Unknown if self.office == Some(change.epoch) => {
                self.step = Step::Unsettled(Box::new(Change { sent: true, ..change }));
                Settled::Open
            }
            // Whether it happened in an office that is over is read off the root.
            Outcome::Unknown | Outcome::Fenced | Outcome::Conflict => {
                self.step = Step::Stale;
                Settled::Again
            }
            Outcome::Expired | Outcome::Unsent => {
                self.step = self.rest(change.epoch);
                Settled::Again
            }
            Outcome::Committed(_) => unreachable!("settled above"),
        }
    }

    /// A change of unknown outcome that is to be sent again now, the very same (rule K5).
    pub fn unsettled(&mut self, now_ms: u64) -> Option<Change> {
        if !self.backoff.over(now_ms) || !matches!(self.step, Step::Unsettled(_)) {
            return None;
        }
        match std::mem::replace(&mut self.step, Step::Committing) {
            Step::Unsettled(change) => Some(*change),
            _ => unreachable!("matched above"),
        }
    }

    /// Whether the root is to be read again now, from the metadata store (rule T8).
    #[must_use]
    pub fn wants_root(&self, now_ms: u64) -> bool {
        matches!(self.step, Step::Stale) && self.office.is_some() && self.backoff.over(now_ms)
    }

    /// The root as read again, with the producer state at its tiered end; the shard hears of it if it is news.
    pub fn reread(
        &mut self,
        root: ManifestRoot,
        base: u64,
        producers: impl FnOnce() -> ProducerTable,
    ) -> Option<Arc<ManifestRoot>> {
        self.step = Step::Idle;
        self.base = base;
        if root.seq <= self.root.seq {
            return None;
        }
        if root.tiered_end != self.root.tiered_end {
            self.producers = producers();
        }
        self.root = Arc::new(root);
        Some(Arc::clone(&self.root))
    }
}

#[cfg(test)]
mod tests;
