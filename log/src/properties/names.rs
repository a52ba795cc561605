//! Names of objects in the bucket (rule T2), and lists of leader epochs (rule R1).

use crate::epochs::{EpochStart, LeaderEpochs};
use crate::object_key::{BundleObject, GcEpoch, ObjectKey, PartitionObject};
use crate::testing::{Seed, decoding};
use crate::{BrokerId, Incarnation, LeaderEpoch, Offset, PartitionId, TopicId};

/// Reads the input as the name of an object. One object has one name.
pub fn object_key(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else { return false };
    if let Ok(topic) = text.parse::<TopicId>() {
        assert_eq!(topic.to_string(), text.to_ascii_lowercase());
    }
    let Ok(key) = decoding(input, || text.parse::<ObjectKey>()) else { return false };
    assert_eq!(key.to_string(), text);
    // What garbage collection lists is found under the prefix of its partition.
    if let ObjectKey::Segment(name) | ObjectKey::Manifest(name) = key {
        assert!(text.starts_with(&ObjectKey::partition_prefix(name.partition)));
    }
    true
}

/// A name of each kind.
#[must_use]
pub fn object_key_seeds() -> Vec<Seed> {
    let name = PartitionObject {
        partition: PartitionId { topic: TopicId(0x0f8f_ad5b_d9cb_469f_a165_7086_7728_950e), index: 7 },
        gc_epoch: GcEpoch(0x1a),
        epoch: LeaderEpoch(3),
        base: Offset(1200),
        random: 0xbeef,
    };
    let bundle =
        BundleObject { broker: BrokerId(1), incarnation: Incarnation(99), gc_epoch: GcEpoch(u64::MAX), random: 1 };
    [ObjectKey::Segment(name), ObjectKey::Manifest(name), ObjectKey::Bundle(bundle)]
        .into_iter()
        .zip(["segment", "manifest", "bundle"])
        .map(|(key, kind)| (kind.to_owned(), key.to_string().into_bytes()))
        .collect()
}

/// Bytes of one epoch and its start in the input of `epochs`.
const ENTRY_BYTES: usize = 12;

/// Reads the input as pairs of epoch and start, little-endian. What is in order answers as a search through the list does.
pub fn epochs(input: &[u8]) -> bool {
    let entry = |bytes: &[u8]| {
        let (epoch, start) = bytes.split_first_chunk()?;
        let start = u64::from_le_bytes(start.try_into().ok()?);
        Some(EpochStart { epoch: LeaderEpoch(u32::from_le_bytes(*epoch)), start: Offset(start) })
    };
    let entries: Vec<EpochStart> = input.chunks_exact(ENTRY_BYTES).filter_map(entry).collect();
    let Some(cache) = LeaderEpochs::from_entries(entries.clone()) else { return false };
    for (nth, at) in entries.iter().enumerate() {
        let next = entries.get(nth + 1).map_or(Offset(u64::MAX), |next| next.start);
        assert_eq!(cache.epoch_at(at.start), Some(at.epoch));
        assert_eq!(cache.end_of(at.epoch, Offset(u64::MAX)), Some((at.epoch, next)));
        let slice = cache.slice(at.start, next);
        assert_eq!(slice.first(), (at.start < next).then_some(at), "a slice begins with its own epoch");
        let mut cut = cache.clone();
        cut.truncate(at.start);
        assert_eq!(cut.entries(), &entries[..nth], "epochs at or after the end are forgotten");
    }
    !entries.is_empty()
}

/// A list of none, one and several epochs.
#[must_use]
pub fn epochs_seeds() -> Vec<Seed> {
    let bytes = |list: &[(u32, u64)]| {
        let put = |&(epoch, start): &(u32, u64)| [&epoch.to_le_bytes()[..], &start.to_le_bytes()].concat();
        list.iter().flat_map(put).collect::<Vec<u8>>()
    };
    let list = [(0, 0), (1, 256), (5, 1 << 20), (9, 1 << 40), (u32::MAX, u64::MAX - 1)];
    vec![
        ("one".to_owned(), bytes(&[(3, 17)])),
        ("several".to_owned(), bytes(&list)),
        ("refused-order".to_owned(), bytes(&[(3, 17), (3, 18)])),
    ]
}
