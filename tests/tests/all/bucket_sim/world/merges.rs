//! Segments that adjoin are written as one, and swapped for it, as a pass of compaction does (rules C2, C3); of what they hold, all stays.

use super::super::checks;
use super::{Errand, PARTITION, World};
use millpond_core::tiering::SWAP_INPUTS_MAX;
use millpond_log::compaction::{AbortedTxns, KeyOffsets, Pass, Rewrite};
use millpond_log::manifest::{Lookup, SegmentEntry, Swap};
use millpond_log::object_key::{ObjectKey, PartitionObject};
use millpond_log::segment::{AppendTimes, BuiltObject, SegmentIdentity, SegmentIndex, SegmentTail};
use millpond_log::{LeaderEpoch, Offset, TimestampMs};
use rand::RngExt;

/// Most segments of one merge here, so that some reach over rolled manifests and some do not.
const MERGED_MAX: usize = 6;

const _: () = assert!(MERGED_MAX <= SWAP_INPUTS_MAX);

/// A merged segment in the bucket, on its way into the manifest.
pub(super) struct Merged {
    /// The office in which it was written.
    epoch: LeaderEpoch,
    swap: Swap,
}

impl World {
    /// Writes a few segments as one, if nothing else is under way.
    pub(super) fn begin_merge(&mut self) -> Result<String, String> {
        let root = self.tiering.root();
        let Some(epoch) = self.tiering.office() else { return Ok("nobody merges".to_owned()) };
        // While the root is to be read again it may be an old one (rule T8).
        let may = matches!(self.errand, Errand::None) && self.tiering.may_change(self.now_ms);
        if !may || root.stable_end <= root.log_start {
            return Ok("nothing to merge".to_owned());
        }
        let view = checks::follow(root, &self.bucket)?;
        let Lookup::Found(segments) = view.segments(root.log_start..root.stable_end) else {
            unreachable!("everything is loaded")
        };
        let stable = segments.partition_point(|entry| entry.end <= root.stable_end);
        if stable == 0 {
            return Ok("nothing to merge is stable".to_owned());
        }
        let first = self.random.random_range(0..stable);
        let count = self.random.random_range(1..=MERGED_MAX).min(stable - first);
        let inputs = segments[first..first + count].to_vec();
        let identity =
            SegmentIdentity { cluster: "sim".to_owned(), partition: PARTITION, topic_name: "t".to_owned(), epoch };
        let object = BuiltObject::from(self.merged(&inputs, identity)?);
        let (gc_epoch, base, random) = (self.gc_epoch, inputs[0].base, self.random.random());
        let key = ObjectKey::Segment(PartitionObject { partition: PARTITION, gc_epoch, epoch, base, random });
        let bytes = object.parts.concat().into();
        if !self.put(key, &bytes) {
            return Ok("a merged segment was not written".to_owned());
        }
        let output = SegmentEntry::new(key, object.length, object.segments[0].clone());
        let said = format!("merged {count} from {base}");
        self.errand = Errand::Swap(Box::new(Merged { epoch, swap: Swap::new(inputs, output) }));
        Ok(said)
    }

    fn merged(
        &self,
        inputs: &[SegmentEntry],
        identity: SegmentIdentity,
    ) -> Result<millpond_log::segment::BuiltSegment, String> {
        let mut read = Vec::new();
        for entry in inputs {
            let bytes = checks::segment_bytes(entry, &self.bucket)?;
            let index = entry.open_index(PARTITION, &bytes).map_err(|error| format!("S11: {error}"))?;
            let part = |range: std::ops::Range<u64>| bytes.slice(range.start as usize..range.end as usize);
            let times = AppendTimes::parse(&index, &part(index.append_times_bytes()));
            let times = times.map_err(|error| format!("S11: {error}"))?;
            let span = index.span(0..index.chunks().len());
            let batches = index.read_timed(&span, &[part(span.bytes.clone())], &times);
            read.push((batches.map_err(|error| format!("S13: {error}"))?, part(index.producers_bytes()), index));
        }
        let indexes: Vec<&SegmentIndex> = read.iter().map(|(_, _, index)| index).collect();
        let producers = read.last().expect("a merge has inputs").1.clone();
        let tail = SegmentTail::joined(&indexes, producers);
        // Nothing is noted: all stays.
        let keys = KeyOffsets::new(1, Offset(0));
        let mut pass = Pass::new(keys, AbortedTxns::new(Vec::new()), [], TimestampMs(0), 0);
        let mut rewrite = Rewrite::new(identity, inputs[0].base);
        for (batch, append_time) in read.iter().flat_map(|(batches, ..)| batches) {
            rewrite.push(&mut pass, batch, *append_time).map_err(|error| format!("S13: {error}"))?;
        }
        let rewritten = rewrite.finish(&mut pass, tail).map_err(|error| format!("S13: {error}"))?;
        assert_eq!(rewritten.removed_records, 0, "a merge removes nothing");
        Ok(rewritten.segment)
    }

    /// Puts it in place, if the manifest may be changed now.
    pub(super) fn swap(&mut self, merged: Merged) -> Result<String, String> {
        if self.tiering.office() != Some(merged.epoch) {
            return Ok("a merged segment is an orphan".to_owned());
        }
        if !self.tiering.may_change(self.now_ms) {
            self.errand = Errand::Swap(Box::new(merged));
            return Ok("a swap waits".to_owned());
        }
        let view = checks::follow(self.tiering.root(), &self.bucket)?;
        let (random, gc_epoch) = (&mut self.random, self.gc_epoch);
        let random = std::cell::RefCell::new(random);
        let planned = view.swap(&merged.swap, merged.epoch, gc_epoch, || random.borrow_mut().random());
        let Lookup::Found(planned) = planned else { unreachable!("everything is loaded") };
        let Ok(plan) = planned else { return Ok("the segments of a swap are gone".to_owned()) };
        for object in &plan.objects {
            if !self.put(object.object, &object.bytes) {
                return Ok("a rolled manifest of a swap was not written".to_owned());
            }
        }
        let across = plan.objects.len();
        self.errand = Errand::Commit(Box::new(self.tiering.swap(&merged.swap, plan)));
        Ok(format!("swaps, with {across} rolled manifests"))
    }
}
