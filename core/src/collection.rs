//! Which objects of the bucket may be deleted (rules G1, G2). Safe however long the caller pauses: only age by gc epochs counts.
//!
//! Pure. The caller lists the bucket first and reads every manifest afterwards, at a revision not older than its bump.

use crate::tiering::TierRules;
use millpond_log::object_key::{GcEpoch, ObjectKey};
use std::collections::BTreeSet;

/// Drops of gc epochs below this one are old enough that their objects go: two bumps of the epoch have passed, which is the
/// grace of readers that hold an older manifest.
#[must_use]
pub fn drops_due_below(epoch: GcEpoch) -> GcEpoch {
    GcEpoch(epoch.0.saturating_sub(1))
}

/// Of the objects that were listed, those that can be orphans at all: nobody can commit them any more.
#[must_use]
pub fn collectable(listed: Vec<ObjectKey>, epoch: GcEpoch, rules: TierRules) -> Vec<ObjectKey> {
    listed.into_iter().filter(|key| !rules.collect_by_epoch || key.gc_epoch().collectable_at(epoch)).collect()
}

/// Of those, the ones that no manifest references.
#[must_use]
pub fn orphans(collectable: Vec<ObjectKey>, referenced: &BTreeSet<ObjectKey>) -> Vec<ObjectKey> {
    collectable.into_iter().filter(|key| !referenced.contains(key)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_log::object_key::BundleObject;
    use millpond_log::{BrokerId, Incarnation};

    #[test]
    fn only_what_is_two_epochs_old_and_unreferenced_is_an_orphan() {
        let key = |epoch| {
            let (broker, incarnation) = (BrokerId(1), Incarnation(2));
            ObjectKey::Bundle(BundleObject { broker, incarnation, gc_epoch: GcEpoch(epoch), random: epoch.into() })
        };
        let listed: Vec<ObjectKey> = (0..6).map(key).collect();
        let old = collectable(listed, GcEpoch(5), TierRules::ALL);
        assert_eq!(old, (0..4).map(key).collect::<Vec<_>>(), "rule G1: 4 and 5 may yet be committed");
        assert_eq!(orphans(old, &BTreeSet::from([key(1)])), [key(0), key(2), key(3)]);
        assert_eq!(drops_due_below(GcEpoch(5)), GcEpoch(4), "rule G2: dropped at 3 or before");
        assert_eq!(drops_due_below(GcEpoch(0)), GcEpoch(0));
    }
}
