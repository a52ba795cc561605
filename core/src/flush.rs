//! When a partition's tail is closed into a segment, and which segments share an object (rules T1, K8; section 3 "Segments").
//!
//! Pure planning over facts the driver gathers; it starts no upload and knows no object store.

use millpond_log::{Offset, PartitionId, TimestampMs};
use std::collections::BTreeSet;

/// Most partitions in one object: their manifests are committed in one metadata transaction (rule K8).
pub const BUNDLE_PARTITIONS_MAX: usize = 40;

/// A bundle is full at this many bytes: large enough that requests cost little, small enough to hold in memory while it is built.
pub const BUNDLE_BYTES_TARGET: u64 = 32 << 20;

/// When a tail is flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushRule {
    /// `min(segment.bytes, 64 MiB)`.
    pub bytes: u64,
    /// `min(segment.ms, 10 min)`.
    pub age_ms: i64,
}

/// The committed tail of one partition this broker leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    /// The partition.
    pub partition: PartitionId,
    /// First offset not in object storage: where the next segment begins (rule T1).
    pub tiered_end: Offset,
    /// Where it may end: the last stable offset, or beyond it where rule T1 lets it.
    pub end: Offset,
    /// Bytes of batches between the two.
    pub bytes: u64,
    /// Append time of the first of them.
    pub oldest: TimestampMs,
    /// When it is due.
    pub rule: FlushRule,
    /// Only segments of one retention class share an object, so that objects die whole.
    pub retention_ms: i64,
}

/// How hard the broker has to flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pressure {
    /// By size and age only.
    Calm,
    /// The WAL is filling: whatever frees it goes, largest first.
    WalFilling,
}

/// One object to upload: the tails whose segments it bundles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedObject {
    /// The tails, in order of partition.
    pub tails: Vec<Tail>,
}

impl Tail {
    fn has_records(&self) -> bool {
        self.end > self.tiered_end
    }

    fn due(&self, now: TimestampMs) -> bool {
        self.bytes >= self.rule.bytes || now.0.saturating_sub(self.oldest.0) >= self.rule.age_ms
    }

    /// Old enough to ride along in an object that is written anyway, which saves it one of its own later.
    fn rides_along(&self, now: TimestampMs) -> bool {
        now.0.saturating_sub(self.oldest.0) >= self.rule.age_ms / 2
    }
}

/// Plans the objects to upload now.
///
/// Every due tail is in exactly one object. A tail of half a bundle or more has its own; smaller ones share, up to
/// `BUNDLE_BYTES_TARGET` and `BUNDLE_PARTITIONS_MAX`, and only with equal retention. `forced` names partitions that someone
/// asked to flush; under `WalFilling` every tail is due.
#[must_use]
pub fn plan(
    now: TimestampMs,
    tails: &[Tail],
    forced: &BTreeSet<PartitionId>,
    pressure: Pressure,
) -> Vec<PlannedObject> {
    let due = |tail: &Tail| pressure == Pressure::WalFilling || tail.due(now) || forced.contains(&tail.partition);
    let with_records = || tails.iter().copied().filter(Tail::has_records);
    let (large, mut small): (Vec<Tail>, Vec<Tail>) =
        with_records().filter(due).partition(|tail| tail.bytes >= BUNDLE_BYTES_TARGET / 2);
    if !small.is_empty() {
        small.extend(
            with_records().filter(|tail| !due(tail) && tail.rides_along(now) && tail.bytes < BUNDLE_BYTES_TARGET / 2),
        );
    }
    let mut objects: Vec<PlannedObject> = large.into_iter().map(|tail| PlannedObject { tails: vec![tail] }).collect();
    objects.sort_by_key(|object| std::cmp::Reverse(object.tails[0].bytes));
    objects.extend(bundle(small));
    objects
}

fn bundle(mut small: Vec<Tail>) -> Vec<PlannedObject> {
    small.sort_by_key(|tail| (tail.retention_ms, tail.partition));
    let mut objects: Vec<PlannedObject> = Vec::new();
    let mut open_bytes = 0;
    for tail in small {
        let fits = objects.last().is_some_and(|open| {
            open.tails[0].retention_ms == tail.retention_ms
                && open.tails.len() < BUNDLE_PARTITIONS_MAX
                && open_bytes + tail.bytes <= BUNDLE_BYTES_TARGET
        });
        match objects.last_mut().filter(|_| fits) {
            Some(open) => open.tails.push(tail),
            None => {
                objects.push(PlannedObject { tails: vec![tail] });
                open_bytes = 0;
            }
        }
        open_bytes += tail.bytes;
    }
    objects
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_log::TopicId;

    const RULE: FlushRule = FlushRule { bytes: 1000, age_ms: 600 };

    fn tail(index: u32, bytes: u64, oldest: i64) -> Tail {
        Tail {
            partition: PartitionId { topic: TopicId(1), index },
            tiered_end: Offset(0),
            end: Offset(bytes),
            bytes,
            oldest: TimestampMs(oldest),
            rule: RULE,
            retention_ms: 1,
        }
    }

    fn planned(tails: &[Tail], forced: &[PartitionId], pressure: Pressure) -> Vec<Vec<u32>> {
        let forced = forced.iter().copied().collect();
        let objects = plan(TimestampMs(1000), tails, &forced, pressure);
        objects.iter().map(|object| object.tails.iter().map(|tail| tail.partition.index).collect()).collect()
    }

    #[test]
    fn a_tail_is_due_by_size_age_request_or_pressure() {
        let young = tail(0, 999, 900);
        assert_eq!(planned(&[young], &[], Pressure::Calm), Vec::<Vec<u32>>::new());
        assert_eq!(planned(&[tail(0, 1000, 900)], &[], Pressure::Calm), [[0]]);
        assert_eq!(planned(&[tail(0, 1, 400)], &[], Pressure::Calm), [[0]]);
        assert_eq!(planned(&[young], &[young.partition], Pressure::Calm), [[0]]);
        assert_eq!(planned(&[young], &[], Pressure::WalFilling), [[0]]);
    }

    #[test]
    fn an_empty_tail_is_never_uploaded() {
        assert!(planned(&[tail(0, 0, 0)], &[tail(0, 0, 0).partition], Pressure::WalFilling).is_empty());
    }

    #[test]
    fn small_tails_share_an_object_and_half_old_ones_ride_along() {
        assert_eq!(planned(&[tail(0, 5, 100), tail(1, 5, 600), tail(2, 5, 900)], &[], Pressure::Calm), [[0, 1]]);
        let large = tail(3, BUNDLE_BYTES_TARGET, 0);
        assert_eq!(planned(&[tail(0, 5, 100), large], &[], Pressure::Calm), [[3], [0]]);
    }

    #[test]
    fn objects_hold_one_retention_class_and_no_more_partitions_than_one_transaction_commits() {
        let mut other = tail(1, 5, 0);
        other.retention_ms = 2;
        assert_eq!(planned(&[tail(0, 5, 0), other], &[], Pressure::Calm), [[0], [1]]);
        let many: Vec<Tail> = (0..100).map(|index| tail(index, 5, 0)).collect();
        let sizes: Vec<usize> = planned(&many, &[], Pressure::Calm).iter().map(Vec::len).collect();
        assert_eq!(sizes, [40, 40, 20]);
    }

    #[test]
    fn every_due_tail_is_in_exactly_one_object() {
        let tails: Vec<Tail> =
            (0..300).map(|index| tail(index, u64::from(index) * (BUNDLE_BYTES_TARGET / 200), 0)).collect();
        let mut seen: Vec<u32> = planned(&tails, &[], Pressure::Calm).concat();
        seen.sort_unstable();
        assert_eq!(seen, (1..300).collect::<Vec<u32>>(), "all but the empty one");
    }
}
