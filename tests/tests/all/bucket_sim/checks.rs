//! The invariants, checked against what is stored: the manifest as the metadata store has it, the bytes in the bucket, the WAL.
//! They are those of rules C1, S1, S2, S7, S8, S9, S10, S11, S13 and S15; the end of a run adds what rules L6 and L7 promise.

use super::bucket::Bucket;
use super::wal::Wal;
use millpond_log::manifest::{Lookup, ManifestRoot, ManifestView, SegmentEntry};
use millpond_log::{Batch, Offset, PartitionId};
use std::collections::{BTreeMap, BTreeSet};

/// What must hold after every step. An invariant's name comes first in the text of its violation.
pub(super) fn invariants(
    root: &ManifestRoot,
    before: &ManifestRoot,
    wal: &Wal,
    bucket: &Bucket,
    committed: Offset,
) -> Result<(), String> {
    if root.tiered_end > committed {
        return Err(format!("S8: tiered up to {} where {committed} is committed", root.tiered_end));
    }
    if root.tiered_end < before.tiered_end {
        return Err(format!("S8: the tiered end fell from {} to {}", before.tiered_end, root.tiered_end));
    }
    if root.log_start < before.log_start || root.log_start > committed {
        return Err(format!("C1: the log start went from {} to {}", before.log_start, root.log_start));
    }
    if wal.start > root.tiered_end {
        return Err(format!("S9: the WAL begins at {} where {} is tiered", wal.start, root.tiered_end));
    }
    let view = follow(root, bucket)?;
    let Lookup::Found(references) = view.references() else { unreachable!("everything is loaded") };
    for object in references {
        if bucket.get(&object).is_none() {
            return Err(format!("S10: `{object}` is referenced and not there"));
        }
    }
    // One that the log start has passed is not referenced any more, though it stands in the root until the next move.
    for entry in root.entries().iter().filter(|entry| entry.end > root.log_start || entry.end == root.tiered_end) {
        segment_bytes(entry, bucket)?;
    }
    Ok(())
}

/// The manifest with everything below its root loaded that is not below the log start.
pub(super) fn follow(root: &ManifestRoot, bucket: &Bucket) -> Result<ManifestView, String> {
    let mut view = ManifestView::new(root.clone());
    let mut pending = root.rolled().to_vec();
    while let Some(rolled) = pending.pop() {
        if rolled.end <= root.log_start {
            continue;
        }
        let bytes = bucket.get(&rolled.object).ok_or_else(|| format!("S10: `{}` is not there", rolled.object))?;
        view.load(&rolled, bytes).map_err(|error| format!("S11: `{}`: {error}", rolled.object))?;
        let node = view.node(&rolled).expect("it was loaded");
        if let millpond_log::manifest::NodeItems::Manifests(below) = node.items() {
            pending.extend(below.iter().cloned());
        }
    }
    Ok(view)
}

pub(super) fn segment_bytes(entry: &SegmentEntry, bucket: &Bucket) -> Result<bytes::Bytes, String> {
    let object = bucket.get(&entry.object).ok_or_else(|| format!("S10: `{}` is not there", entry.object))?;
    let (from, to) = (entry.bytes().start as usize, entry.bytes().end as usize);
    if object.len() as u64 != entry.object_length || to > object.len() || crc32c::crc32c(&object[from..to]) != entry.crc
    {
        return Err(format!("S11: `{}` is not what was committed", entry.object));
    }
    Ok(object.slice(from..to))
}

/// The producer snapshot at the tiered end.
pub(super) fn producers(root: &ManifestRoot, bucket: &Bucket) -> Result<Option<bytes::Bytes>, String> {
    let Some(newest) = root.newest() else { return Ok(None) };
    let bytes = segment_bytes(newest, bucket)?;
    let index = newest.open_index(root.partition, &bytes).map_err(|error| format!("S11: {error}"))?;
    let range = index.producers_bytes();
    Ok(Some(bytes.slice(range.start as usize..range.end as usize)))
}

/// Every batch at or after the log start, from the bucket and the WAL, as a reader finds them.
pub(super) fn read_everything(
    root: &ManifestRoot,
    wal: &Wal,
    bucket: &Bucket,
) -> Result<BTreeMap<Offset, Batch>, String> {
    let view = follow(root, bucket)?;
    let mut log = BTreeMap::new();
    let mut at = root.log_start;
    while at < root.tiered_end {
        let Lookup::Found(entry) = view.find(at) else { unreachable!("everything is loaded") };
        let entry = entry.ok_or_else(|| format!("S8: nothing covers offset {at}"))?;
        let batches = batches_of(root.partition, entry, bucket)?;
        log.extend(batches.into_iter().map(|batch| (batch.base_offset(), batch)));
        at = entry.end;
    }
    let tail = wal.frames.iter().filter(|frame| frame.batch.base_offset() >= root.tiered_end);
    log.extend(tail.map(|frame| (frame.batch.base_offset(), frame.batch.clone())));
    log.retain(|_, batch| batch.end_offset() > root.log_start);
    let mut end = None;
    for batch in log.values() {
        if end.is_some_and(|end| end != batch.base_offset()) {
            return Err(format!("S7: a hole before {}", batch.base_offset()));
        }
        end = Some(batch.end_offset());
    }
    Ok(log)
}

fn batches_of(partition: PartitionId, entry: &SegmentEntry, bucket: &Bucket) -> Result<Vec<Batch>, String> {
    let bytes = segment_bytes(entry, bucket)?;
    let index = entry.open_index(partition, &bytes).map_err(|error| format!("S11: {error}"))?;
    let span = index.span(0..index.chunks().len());
    let data = bytes.slice(span.bytes.start as usize..span.bytes.end as usize);
    index.read(&span, std::slice::from_ref(&data)).map_err(|error| format!("S13: {error}"))
}

/// S1 and S2: every acknowledged batch that retention has left is there, with its bytes. S15: no producer's sequence twice.
pub(super) fn history(
    log: &BTreeMap<Offset, Batch>,
    acked: &BTreeMap<Offset, Batch>,
    log_start: Offset,
) -> Result<(), String> {
    for (base, batch) in acked.iter().filter(|(_, batch)| batch.end_offset() > log_start) {
        match log.get(base) {
            Some(found) if found == batch => {}
            Some(_) => return Err(format!("S2: the batch at {base} is not the one that was acknowledged")),
            None => return Err(format!("S1: the acknowledged batch at {base} is gone")),
        }
    }
    let mut seen = BTreeSet::new();
    for batch in log.values() {
        if let Some(stamp) = batch.producer()
            && !seen.insert((stamp.id, stamp.epoch, stamp.base_sequence))
        {
            return Err(format!("S15: sequence {} of {} is there twice", stamp.base_sequence, stamp.id));
        }
    }
    Ok(())
}
