//! Names of objects in the bucket (rule T2): unique, never reused, written once.
//!
//! A name says all that garbage collection has to know about an object. Randomness is an argument.

use crate::ids::{BrokerId, Incarnation, LeaderEpoch, Offset, PartitionId, TopicId};
use std::fmt;

/// Period of garbage collection (rule G1). In names and in the metadata it is 16 hex digits, so that keys sort by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GcEpoch(pub u64);

impl GcEpoch {
    /// Whether an object named in this epoch may still be committed when `current` is the epoch (rules G1, T5).
    #[must_use]
    pub fn committable_at(self, current: GcEpoch) -> bool {
        !self.collectable_at(current)
    }

    /// Whether an unreferenced object named in this epoch may be deleted when `current` is the epoch (rule G2).
    ///
    /// Never true while `committable_at`: that is what keeps a late commit from naming a deleted object.
    #[must_use]
    pub fn collectable_at(self, current: GcEpoch) -> bool {
        current.0.checked_sub(2).is_some_and(|newest| self.0 <= newest)
    }
}

impl fmt::Display for GcEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl std::str::FromStr for GcEpoch {
    type Err = InvalidObjectKey;

    /// Reads what `Display` writes.
    fn from_str(text: &str) -> Result<GcEpoch, InvalidObjectKey> {
        hex(text, 16).and_then(|value| u64::try_from(value).ok()).map(GcEpoch).ok_or(InvalidObjectKey)
    }
}

/// Name of an object that belongs to one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionObject {
    /// Whose it is.
    pub partition: PartitionId,
    /// Current epoch of garbage collection when the name was made.
    pub gc_epoch: GcEpoch,
    /// Leader epoch of the writer.
    pub epoch: LeaderEpoch,
    /// First offset covered.
    pub base: Offset,
    /// Makes the name unique.
    pub random: u128,
}

/// Name of an object that carries segments of several partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BundleObject {
    /// Who wrote it.
    pub broker: BrokerId,
    /// In which of its lives.
    pub incarnation: Incarnation,
    /// Current epoch of garbage collection when the name was made.
    pub gc_epoch: GcEpoch,
    /// Makes the name unique.
    pub random: u128,
}

/// Name of an object, relative to the cluster's prefix in the bucket.
///
/// `{topic id}/{partition}/{gc epoch}/{leader epoch}-{base}-{random}.segment` (or `.manifest`), and
/// `{broker}-{incarnation}/{gc epoch}/{random}.bundle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKey {
    /// One segment.
    Segment(PartitionObject),
    /// One rolled manifest.
    Manifest(PartitionObject),
    /// Segments of several partitions and their directory.
    Bundle(BundleObject),
}

/// The text names no object of ours. Garbage collection leaves such objects alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the name of an object of this log")]
pub struct InvalidObjectKey;

impl ObjectKey {
    /// Epoch of garbage collection in which the name was made.
    #[must_use]
    pub fn gc_epoch(&self) -> GcEpoch {
        match self {
            ObjectKey::Segment(name) | ObjectKey::Manifest(name) => name.gc_epoch,
            ObjectKey::Bundle(name) => name.gc_epoch,
        }
    }

    /// Whether the object is one manifest's alone. A bundle may hold segments of other partitions: only the collector, which reads all
    /// manifests, tells whether any of them is left.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        !matches!(self, ObjectKey::Bundle(_))
    }

    /// Prefix of every object that belongs to `partition` alone.
    #[must_use]
    pub fn partition_prefix(partition: PartitionId) -> String {
        format!("{partition}/")
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ObjectKey::Segment(name) => write!(f, "{name}.segment"),
            ObjectKey::Manifest(name) => write!(f, "{name}.manifest"),
            ObjectKey::Bundle(BundleObject { broker, incarnation, gc_epoch, random }) => {
                write!(f, "{broker}-{incarnation}/{gc_epoch}/{random:032x}.bundle")
            }
        }
    }
}

impl fmt::Display for PartitionObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PartitionObject { partition, gc_epoch, epoch, base, random } = self;
        write!(f, "{partition}/{gc_epoch}/{:010}-{:020}-{random:032x}", epoch.0, base.0)
    }
}

impl std::str::FromStr for ObjectKey {
    type Err = InvalidObjectKey;

    /// Reads what `Display` writes, and nothing else.
    fn from_str(text: &str) -> Result<ObjectKey, InvalidObjectKey> {
        let key = parse(text).ok_or(InvalidObjectKey)?;
        // One object has one name: other spellings of the same numbers name nothing of ours.
        if key.to_string() == text { Ok(key) } else { Err(InvalidObjectKey) }
    }
}

fn parse(text: &str) -> Option<ObjectKey> {
    let (path, kind) = text.rsplit_once('.')?;
    let mut parts = path.split('/');
    if kind == "bundle" {
        let (broker, incarnation) = parts.next()?.split_once('-')?;
        let key = BundleObject {
            broker: BrokerId(broker.parse().ok()?),
            incarnation: Incarnation(incarnation.parse().ok()?),
            gc_epoch: parts.next()?.parse().ok()?,
            random: hex(parts.next()?, 32)?,
        };
        return parts.next().is_none().then_some(ObjectKey::Bundle(key));
    }
    let topic: TopicId = parts.next()?.parse().ok()?;
    let index = parts.next()?.parse().ok()?;
    let gc_epoch = parts.next()?.parse().ok()?;
    let mut name = parts.next()?.splitn(3, '-');
    let key = PartitionObject {
        partition: PartitionId { topic, index },
        gc_epoch,
        epoch: LeaderEpoch(name.next()?.parse().ok()?),
        base: Offset(name.next()?.parse().ok()?),
        random: hex(name.next()?, 32)?,
    };
    match (kind, parts.next()) {
        ("segment", None) => Some(ObjectKey::Segment(key)),
        ("manifest", None) => Some(ObjectKey::Manifest(key)),
        _ => None,
    }
}

/// Exactly `digits` hex digits, no sign.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let plain = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    plain.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn partition_object() -> impl Strategy<Value = PartitionObject> {
        (any::<u128>(), any::<u32>(), any::<u64>(), any::<u32>(), any::<u64>(), any::<u128>()).prop_map(
            |(topic, index, gc_epoch, epoch, base, random)| PartitionObject {
                partition: PartitionId { topic: TopicId(topic), index },
                gc_epoch: GcEpoch(gc_epoch),
                epoch: LeaderEpoch(epoch),
                base: Offset(base),
                random,
            },
        )
    }

    fn object_key() -> impl Strategy<Value = ObjectKey> {
        let bundle = (any::<u32>(), any::<u64>(), any::<u64>(), any::<u128>());
        prop_oneof![
            partition_object().prop_map(ObjectKey::Segment),
            partition_object().prop_map(ObjectKey::Manifest),
            bundle.prop_map(|(broker, incarnation, gc_epoch, random)| ObjectKey::Bundle(BundleObject {
                broker: BrokerId(broker),
                incarnation: Incarnation(incarnation),
                gc_epoch: GcEpoch(gc_epoch),
                random,
            })),
        ]
    }

    proptest! {
        #[test]
        fn names_read_back(key in object_key()) {
            prop_assert_eq!(key.to_string().parse(), Ok(key));
        }

        #[test]
        fn any_text_is_refused_or_reads_back(text in "\\PC{0,80}") {
            if let Ok(key) = text.parse::<ObjectKey>() {
                prop_assert_eq!(key.to_string(), text);
            }
        }

        #[test]
        fn rule_t2_names_of_a_partition_sort_by_gc_epoch(one in partition_object(), gc_epoch: u64) {
            let other = PartitionObject { gc_epoch: GcEpoch(gc_epoch), ..one };
            let names = (ObjectKey::Segment(one).to_string(), ObjectKey::Segment(other).to_string());
            prop_assert_eq!(names.0.cmp(&names.1), one.gc_epoch.cmp(&other.gc_epoch));
        }
    }

    #[test]
    fn names_look_as_documented() {
        let topic: TopicId = "0f8fad5b-d9cb-469f-a165-70867728950e".parse().expect("a UUID");
        let key = ObjectKey::Segment(PartitionObject {
            partition: PartitionId { topic, index: 7 },
            gc_epoch: GcEpoch(0x1a),
            epoch: LeaderEpoch(3),
            base: Offset(1200),
            random: 0xbeef,
        });
        let name = "0f8fad5b-d9cb-469f-a165-70867728950e/7/000000000000001a/\
                    0000000003-00000000000000001200-0000000000000000000000000000beef.segment";
        assert_eq!(key.to_string(), name);
        for bad in [
            name.replace("/7/", "/07/"),
            name.replace("1a", "1A"),
            name.replace(".segment", ".log"),
            format!("x{name}"),
        ] {
            assert_eq!(bad.parse::<ObjectKey>(), Err(InvalidObjectKey), "{bad}");
        }
    }

    #[test]
    fn rules_g1_g2_an_object_is_never_committable_and_collectable() {
        for (named, current, committable) in
            [(0, 0, true), (0, 1, true), (0, 2, false), (5, 6, true), (5, 7, false), (7, 5, true)]
        {
            assert_eq!(GcEpoch(named).committable_at(GcEpoch(current)), committable, "{named} at {current}");
            assert_eq!(GcEpoch(named).collectable_at(GcEpoch(current)), !committable, "{named} at {current}");
        }
        assert!(GcEpoch(u64::MAX).committable_at(GcEpoch(u64::MAX)));
    }
}
