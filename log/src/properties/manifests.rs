//! Roots and rolled manifests (rules T5, S11), behind a sound CRC. What decodes can be written, asked and moved on.

use crate::epochs::EpochStart;
use crate::manifest::{Compacted, ManifestNode, ManifestRoot, ManifestView, OpenTxns, Retention, SegmentEntry};
use crate::object_key::{BundleObject, GcEpoch, ObjectKey, PartitionObject};
use crate::testing::{Seed, decoding};
use crate::{BrokerId, Incarnation, LeaderEpoch, Offset, PartitionId, TimestampMs, TopicId};

/// Reads the input as a root and as a rolled manifest.
pub fn manifest(input: &[u8]) -> bool {
    let mut taken = false;
    for (magic, version) in [(b"MPMR", 1), (b"MPMR", 2), (b"MPMN", 1)] {
        let bytes = mended(input, magic, version);
        if let Ok(root) = decoding(&bytes, || ManifestRoot::decode(&bytes)) {
            root_holds(&root);
            taken = true;
        }
        if let Ok(node) = decoding(&bytes, || ManifestNode::decode(&bytes)) {
            assert_eq!(ManifestNode::decode(&node.encode()), Ok(node), "what decodes can be written");
            taken = true;
        }
    }
    taken
}

/// The input with this magic, this version of the format, and a CRC that fits.
fn mended(input: &[u8], magic: &[u8; 4], version: u8) -> Vec<u8> {
    let mut bytes = input.to_vec();
    if let Some(covered) = bytes.len().checked_sub(4).filter(|covered| *covered >= 5) {
        bytes[..4].copy_from_slice(magic);
        bytes[4] = version;
        let crc = crc32c::crc32c(&bytes[..covered]);
        bytes[covered..].copy_from_slice(&crc.to_le_bytes());
    }
    bytes
}

fn root_holds(root: &ManifestRoot) {
    assert_eq!(ManifestRoot::decode(&root.encode()).as_ref(), Ok(root), "what decodes can be written");
    assert!(root.base() <= root.log_start && root.stable_end <= root.tiered_end);
    let _ = root.size();
    let view = ManifestView::new(root.clone());
    for offset in [0, root.base().0, root.log_start.0, root.tiered_end.0.saturating_sub(1), root.tiered_end.0, u64::MAX]
    {
        let offset = Offset(offset);
        let _ = view.find(offset).map(|found| {
            if let Some(entry) = found {
                assert!(entry.base <= offset && offset < entry.end, "the segment found covers {offset}");
                let _ = (entry.bytes(), entry.index_bytes());
            }
        });
        let _ = (view.find_time(TimestampMs(0), offset), view.find_max_timestamp(offset), view.dropped_by(offset, 256));
    }
    for (age_ms_max, size_max) in [(None, Some(0)), (Some(0), None), (Some(i64::MAX), Some(u64::MAX))] {
        for now in [i64::MIN, 0, i64::MAX] {
            let _ = view.retention_start(Retention { age_ms_max, size_max }, TimestampMs(now), 1 << 20);
        }
    }
    let _ = (view.epochs(), view.references());
    moves_on(root);
}

/// The next changes a leader makes. A root that was committed 2^64 times has none; nor has an offset beyond 2^64.
fn moves_on(root: &ManifestRoot) {
    let to = Offset(root.log_start.0.max(root.tiered_end.0));
    if root.seq > u64::MAX - 2 || root.tiered_end.0 > u64::MAX - 10 {
        return;
    }
    let epoch = root.epoch;
    if root.stable_end == root.tiered_end {
        let longer = root.append(entry(root.partition, root.tiered_end, epoch, None), epoch);
        assert_eq!(ManifestRoot::decode(&longer.encode()), Ok(longer));
    }
    let moved = root.after_pass(Compacted { end: root.stable_end, purge_at: None }, epoch);
    assert_eq!(ManifestRoot::decode(&moved.encode()), Ok(moved));
    let moved = root.advance_log_start(to, epoch);
    assert_eq!(ManifestRoot::decode(&moved.encode()), Ok(moved));
    let mut random = 0;
    let rolled = root.roll(GcEpoch(1), || {
        random += 1;
        random
    });
    for object in rolled.into_iter().flat_map(|plan| plan.objects) {
        assert!(ManifestNode::decode(&object.bytes).is_ok());
    }
}

fn entry(partition: PartitionId, base: Offset, epoch: LeaderEpoch, open: Option<OpenTxns>) -> SegmentEntry {
    let gc_epoch = GcEpoch(3);
    let object = match open {
        None => ObjectKey::Segment(PartitionObject { partition, gc_epoch, epoch, base, random: 0xabcd }),
        Some(_) => {
            let (broker, incarnation) = (BrokerId(1), Incarnation(12));
            ObjectKey::Bundle(BundleObject { broker, incarnation, gc_epoch, random: 0xabcd })
        }
    };
    SegmentEntry {
        base,
        end: base.plus(9),
        object,
        object_length: 900,
        position: 100,
        length: 700,
        index_length: 60,
        crc: 1,
        index_crc: 2,
        record_count: 9,
        max_timestamp: TimestampMs(1_700_000_000_000),
        max_append_time: TimestampMs(1_700_000_000_500),
        prefix_hash: 0xfedc_ba98_7654_3210,
        epochs: vec![EpochStart { epoch, start: base }],
        open,
    }
}

/// A new root, one with a few entries, one that was rolled, the same compacted, and a manifest it was rolled into.
#[must_use]
pub fn manifest_seeds() -> Vec<Seed> {
    let partition = PartitionId { topic: TopicId(0x1234_5678 << 90), index: 3 };
    let mut root = ManifestRoot::new(partition);
    let mut seeds = vec![("new".to_owned(), root.encode().to_vec())];
    let mut random = 0;
    loop {
        let base = root.tiered_end;
        let open = (base.0 == 9).then_some(OpenTxns { count: 2, first: base });
        root = root.append(entry(partition, base, LeaderEpoch(1), open), LeaderEpoch(1));
        if base.0 == 18 {
            seeds.push(("three".to_owned(), root.encode().to_vec()));
        }
        let plan = root.roll(GcEpoch(4), || {
            random += 1;
            random
        });
        if let Some(plan) = plan {
            let compacted = Compacted { end: Offset(9), purge_at: Some(TimestampMs(1_700_000_000_000)) };
            let compacted = plan.root.after_pass(compacted, LeaderEpoch(1));
            seeds.push(("compacted".to_owned(), compacted.encode().to_vec()));
            seeds.push(("rolled".to_owned(), plan.root.encode().to_vec()));
            seeds.extend(plan.objects.into_iter().map(|object| ("node".to_owned(), object.bytes.to_vec())));
            return seeds;
        }
    }
}
