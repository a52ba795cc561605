//! One pass over one partition: note the newest offset of each key, write segments anew without what is older, put them in place.
//!
//! Groups of segments follow each other from the oldest on, and a pass ends at the first that fails (rule C2): so what a pass keeps for
//! `delete.retention.ms` only, it keeps when everything older that it stands for is gone.

use super::{Compactor, PassError};
use crate::clock;
use crate::tier::{Compactable, CompactionChange, CompactionStep, PassInput, TierRequest};
use crate::tiered::WholeSegment;
use bytes::Bytes;
use millpond_core::tiering::{PassPlan, groups};
use millpond_log::compaction::{self, AbortedTxns, KeyOffsets, Rewritten};
use millpond_log::manifest::{Compacted, SegmentEntry, Swap};
use millpond_log::object_key::{GcEpoch, ObjectKey, PartitionObject};
use millpond_log::segment::{BuiltObject, SegmentIdentity, SegmentIndex, SegmentTail};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Memory for the keys that one pass notes. A log with more dirty keys takes several passes.
const KEYS_BYTES_MAX: usize = 64 << 20;

/// How long a step may wait for other changes of the manifest, which take a second or so, or for the metadata store.
const STEP_WAIT_MAX: Duration = Duration::from_secs(60);

impl Compactor {
    /// Carries out what was planned on a manifest.
    pub(super) async fn pass(&self, one: &Compactable, plan: PassPlan) -> Result<(), PassError> {
        let begun = clock::monotonic();
        let PassInput { topic_name, producers } = self.input(one.partition).await?;
        let first = plan.segments.first().map_or(plan.end, |entry| entry.base);
        let aborted = self.tiered.aborted_in_segments(&one.root, first..plan.end).await?;
        let aborted = AbortedTxns::new(aborted.ok_or(PassError::Undecided(plan.end))?);
        let (keys, aborted) = self.note_keys(one, &plan, aborted).await?;
        let end = keys.end();
        let (now, retention_ms) = (clock::wall(), one.rule.delete_retention_ms);
        let mut pass = compaction::Pass::new(keys, aborted, producers.last_batches(), now, retention_ms);
        drop(producers);
        let covered = plan.segments.partition_point(|entry| entry.base < end);
        let mut removed = 0;
        for group in groups(&plan.segments[..covered], one.rule) {
            let inputs = &plan.segments[group];
            let (went_on, rewritten) = self.rewrite(one, &topic_name, inputs, pass).await?;
            pass = went_on;
            if rewritten.changed || inputs.len() > 1 {
                removed += rewritten.removed_records;
                self.put_in_place(one, inputs, rewritten).await?;
            }
        }
        let compacted = Compacted { end, purge_at: pass.latest_horizon() };
        self.step(one, CompactionChange::AfterPass(compacted)).await?;
        self.meters.passes.add(1, &[]);
        let (partition, took) = (one.partition, clock::monotonic() - begun);
        tracing::info!(%partition, %end, removed, ms = took.as_millis() as u64, "a pass of compaction is over");
        Ok(())
    }

    /// The newest offset of each key from where the last pass ended, as far as keys fit.
    async fn note_keys(
        &self,
        one: &Compactable,
        plan: &PassPlan,
        mut aborted: AbortedTxns,
    ) -> Result<(KeyOffsets, AbortedTxns), PassError> {
        let mut keys = KeyOffsets::new(KeyOffsets::keys_in(KEYS_BYTES_MAX), plan.dirty_from);
        for entry in plan.segments.iter().filter(|entry| entry.end > plan.dirty_from) {
            let segment = self.read(one, entry).await?;
            let noted = blocking(move || {
                let mut all = true;
                for (batch, _) in &segment.batches {
                    let at = batch.base_offset();
                    all = keys.note(batch, &aborted).map_err(|source| PassError::Batch { at, source })?;
                }
                Ok((keys, aborted, all))
            });
            let all;
            (keys, aborted, all) = noted.await?;
            if !all {
                break;
            }
        }
        Ok((keys, aborted))
    }

    /// Writes adjoining segments as one, of what stays of them.
    async fn rewrite(
        &self,
        one: &Compactable,
        topic_name: &str,
        inputs: &[SegmentEntry],
        mut pass: compaction::Pass,
    ) -> Result<(compaction::Pass, Rewritten), PassError> {
        let mut segments = Vec::with_capacity(inputs.len());
        for entry in inputs {
            segments.push(self.read(one, entry).await?);
        }
        let identity = SegmentIdentity {
            cluster: self.uploader.cluster.clone(),
            partition: one.partition,
            topic_name: topic_name.to_owned(),
            epoch: one.epoch,
        };
        blocking(move || {
            let indexes: Vec<&SegmentIndex> = segments.iter().map(|segment| &*segment.index).collect();
            let producers = segments.last().map_or_else(Bytes::new, |last| last.producers.clone());
            let tail = SegmentTail::joined(&indexes, producers);
            let mut rewrite = compaction::Rewrite::new(identity, indexes[0].base());
            for (batch, append_time) in segments.iter().flat_map(|segment| &segment.batches) {
                let at = batch.base_offset();
                rewrite.push(&mut pass, batch, *append_time).map_err(|source| PassError::Batch { at, source })?;
            }
            let at = tail.end;
            let rewritten = rewrite.finish(&mut pass, tail).map_err(|source| PassError::Batch { at, source })?;
            Ok((pass, rewritten))
        })
        .await
    }

    async fn read(&self, one: &Compactable, entry: &SegmentEntry) -> Result<WholeSegment, PassError> {
        let segment = self.tiered.segment(one.partition, entry).await?;
        self.meters.read_bytes.add(entry.length, &[]);
        Ok(segment)
    }

    async fn put_in_place(
        &self,
        one: &Compactable,
        inputs: &[SegmentEntry],
        rewritten: Rewritten,
    ) -> Result<(), PassError> {
        let Rewritten { segment, removed_records, .. } = rewritten;
        let name = PartitionObject {
            partition: one.partition,
            gc_epoch: GcEpoch(self.gc_epoch.load(Ordering::Relaxed)),
            epoch: one.epoch,
            base: segment.meta.base,
            random: rand::random(),
        };
        let (key, object) = (ObjectKey::Segment(name), BuiltObject::from(segment));
        self.uploader.put(&key, &object.parts, object.length, object.crc).await?;
        let [placed] = &object.segments[..] else { unreachable!("the object is one segment") };
        let output = SegmentEntry::new(key, object.length, placed.clone());
        self.step(one, CompactionChange::Swap(Box::new(Swap::new(inputs.to_vec(), output)))).await?;
        self.meters.written_bytes.add(object.length, &[]);
        self.meters.removed_records.add(removed_records, &[]);
        Ok(())
    }

    /// Has the manifest changed, and waits until it is.
    async fn step(&self, one: &Compactable, change: CompactionChange) -> Result<(), PassError> {
        let (partition, epoch, until) = (one.partition, one.epoch, clock::monotonic() + STEP_WAIT_MAX);
        let asked = |done| TierRequest::Compact(Box::new(CompactionStep { partition, epoch, change, until, done }));
        Ok(self.ask(asked).await.ok_or(PassError::Ending)??)
    }
}

/// Runs what takes a core for a while where it holds up nobody. What it finds to be impossible ends the pass, and not the broker.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PassError> + Send + 'static,
) -> Result<T, PassError> {
    tokio::task::spawn_blocking(work).await.map_err(PassError::Impossible)?
}
