//! When a log is compacted, how far, and which segments are rewritten together (rules C2, C3).
//!
//! Kafka's rule: a share of the log that no pass has covered yet, or the age of its oldest record. And one of its own, since Kafka's
//! tombstones stay where nothing more is written: what a pass kept only for `delete.retention.ms` calls for one more when that is over.

use crate::topic_config::{TopicConfig, millis};
use millpond_log::manifest::{Compacted, ManifestRoot, SegmentEntry};
use millpond_log::{Offset, TimestampMs};
use std::ops::Range;

/// Bytes of segments that are rewritten together: enough that requests cost little, few enough to hold in memory twice.
pub const SWAP_BYTES_TARGET: u64 = 32 << 20;

/// Most segments that are rewritten together. Each may be alone in rolled manifests of three levels, and with all of these it fits the drop
/// log of one change (rule G2).
pub const SWAP_INPUTS_MAX: usize = 64;

/// Most leader epochs in what is rewritten together, unless it is one segment: an entry names them all, and a root stays small.
const SWAP_EPOCHS_MAX: usize = 200;

/// What a topic's settings say of compaction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CompactionRule {
    /// `min.cleanable.dirty.ratio`.
    pub dirty_ratio_min: f64,
    /// `min.compaction.lag.ms`, from the append of a segment's last record on.
    pub lag_min_ms: i64,
    /// `max.compaction.lag.ms`.
    pub lag_max_ms: i64,
    /// `delete.retention.ms`.
    pub delete_retention_ms: i64,
    /// How much older than its last record a segment's first one may be, unless uploads were held up.
    pub segment_age_ms: i64,
    /// Whether segments are written together. Not where `delete` is a policy too: a segment is as old as its newest record, and one that
    /// took in all that follows would never be old enough.
    pub joins: bool,
}

/// What a pass is to cover.
#[derive(Clone, Debug, PartialEq)]
pub struct PassPlan {
    /// First offset whose key no pass has looked at.
    pub dirty_from: Offset,
    /// Where the pass ends.
    pub end: Offset,
    /// The log's segments up to there, the oldest first.
    pub segments: Vec<SegmentEntry>,
}

impl CompactionRule {
    /// `None` where the topic is not compacted.
    #[must_use]
    pub fn of(config: &TopicConfig) -> Option<CompactionRule> {
        config.cleanup_policy.compact.then(|| CompactionRule {
            dirty_ratio_min: config.min_cleanable_dirty_ratio,
            lag_min_ms: millis(config.min_compaction_lag),
            lag_max_ms: millis(config.max_compaction_lag),
            delete_retention_ms: millis(config.delete_retention),
            segment_age_ms: millis(config.upload_age()),
            joins: !config.cleanup_policy.delete,
        })
    }

    /// Whether a pass may be due by what the root alone says. `true` is no promise.
    #[must_use]
    pub fn may_be_due(&self, root: &ManifestRoot, now: TimestampMs) -> bool {
        dirty_from(root) < root.stable_end || purges(root.compacted, now)
    }
}

/// The pass that is due now, if one is. `segments` are those of the log up to `root.stable_end`, the oldest first.
#[must_use]
pub fn plan_pass(
    root: &ManifestRoot,
    mut segments: Vec<SegmentEntry>,
    rule: CompactionRule,
    now: TimestampMs,
) -> Option<PassPlan> {
    // A clock that went back makes nothing younger than it was.
    let age = |time: TimestampMs| now.0.saturating_sub(time.0).max(0);
    let dirty_from = dirty_from(root);
    let ripe = |entry: &SegmentEntry| {
        entry.end <= root.stable_end && (entry.base < dirty_from || age(entry.max_append_time) >= rule.lag_min_ms)
    };
    let covered = segments.iter().position(|entry| !ripe(entry)).unwrap_or(segments.len());
    segments.truncate(covered);
    let end = segments.last()?.end;
    let size = |entries: &[SegmentEntry]| entries.iter().map(|entry| entry.length).sum::<u64>();
    let (clean, dirty) = segments.split_at(segments.partition_point(|entry| entry.end <= dirty_from));
    let (clean, dirty_size) = (size(clean), size(dirty));
    let ratio = dirty_size as f64 / (clean + dirty_size).max(1) as f64;
    let oldest = dirty.first().map(|entry| age(entry.max_append_time).saturating_add(rule.segment_age_ms));
    let due = ratio > rule.dirty_ratio_min
        || oldest.is_some_and(|oldest| oldest > rule.lag_max_ms)
        || purges(root.compacted, now);
    due.then_some(PassPlan { dirty_from, end, segments })
}

fn dirty_from(root: &ManifestRoot) -> Offset {
    root.compacted.end.max(root.log_start)
}

fn purges(compacted: Compacted, now: TimestampMs) -> bool {
    compacted.purge_at.is_some_and(|at| at <= now)
}

/// Which of these segments are rewritten together, in order.
#[must_use]
pub fn groups(segments: &[SegmentEntry], rule: CompactionRule) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    let (mut size, mut epochs) = (0u64, 0);
    for (at, entry) in segments.iter().enumerate() {
        let fits = size + entry.length <= SWAP_BYTES_TARGET && epochs + entry.epochs.len() <= SWAP_EPOCHS_MAX;
        match groups.last_mut() {
            Some(open) if rule.joins && fits && open.len() < SWAP_INPUTS_MAX => open.end += 1,
            _ => {
                groups.push(at..at + 1);
                (size, epochs) = (0, 0);
            }
        }
        size += entry.length;
        epochs += entry.epochs.len();
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_log::epochs::EpochStart;
    use millpond_log::object_key::{GcEpoch, ObjectKey, PartitionObject};
    use millpond_log::{LeaderEpoch, PartitionId, TopicId};

    const PARTITION: PartitionId = PartitionId { topic: TopicId(1), index: 0 };
    const RULE: CompactionRule = CompactionRule {
        dirty_ratio_min: 0.5,
        lag_min_ms: 0,
        lag_max_ms: i64::MAX,
        delete_retention_ms: 100,
        segment_age_ms: 0,
        joins: true,
    };

    /// Segments of ten records each, of these sizes, each appended at the time that is its number.
    fn segments(sizes: &[u64]) -> Vec<SegmentEntry> {
        let entry = |(nth, &length): (usize, &u64)| {
            let base = Offset(nth as u64 * 10);
            let name = PartitionObject {
                partition: PARTITION,
                gc_epoch: GcEpoch(1),
                epoch: LeaderEpoch(1),
                base,
                random: nth as u128,
            };
            SegmentEntry {
                base,
                end: base.plus(10),
                object: ObjectKey::Segment(name),
                object_length: length,
                position: 0,
                length,
                index_length: 0,
                crc: 0,
                index_crc: 0,
                record_count: 10,
                max_timestamp: TimestampMs(0),
                max_append_time: TimestampMs(nth as i64),
                prefix_hash: 0,
                epochs: vec![EpochStart { epoch: LeaderEpoch(1), start: base }],
                open: None,
            }
        };
        sizes.iter().enumerate().map(entry).collect()
    }

    fn root(sizes: &[u64], compacted: u64, purge_at: Option<i64>) -> ManifestRoot {
        let root = ManifestRoot::new(PARTITION);
        let root = segments(sizes).into_iter().fold(root, |root, entry| root.append(entry, LeaderEpoch(1)));
        match compacted {
            0 => root,
            end => {
                let compacted = Compacted { end: Offset(end), purge_at: purge_at.map(TimestampMs) };
                root.after_pass(compacted, LeaderEpoch(1))
            }
        }
    }

    fn planned(sizes: &[u64], root: &ManifestRoot, rule: CompactionRule, now: i64) -> Option<(u64, u64)> {
        let plan = plan_pass(root, segments(sizes), rule, TimestampMs(now))?;
        assert_eq!(plan.segments.last().map(|entry| entry.end), Some(plan.end));
        assert!(rule.may_be_due(root, TimestampMs(now)), "the first look misses nothing");
        Some((plan.dirty_from.0, plan.end.0))
    }

    #[test]
    fn a_pass_is_due_by_the_share_that_none_has_covered() {
        let sizes = [60, 20, 21];
        assert_eq!(planned(&sizes, &root(&sizes, 0, None), RULE, 5), Some((0, 30)));
        assert_eq!(planned(&sizes, &root(&sizes, 10, None), RULE, 5), None, "41 of 101 bytes");
        let rule = CompactionRule { dirty_ratio_min: 0.4, ..RULE };
        assert_eq!(planned(&sizes, &root(&sizes, 10, None), rule, 5), Some((10, 30)));
        let rule = CompactionRule { dirty_ratio_min: 0.0, ..RULE };
        assert_eq!(planned(&sizes, &root(&sizes, 30, None), rule, 5), None, "nothing is new");
        assert_eq!(planned(&sizes, &root(&sizes, 25, None), rule, 5), Some((25, 30)), "a pass ended in a segment");
    }

    #[test]
    fn a_pass_is_due_by_the_age_of_what_none_has_covered() {
        let sizes = [60, 10, 10];
        let rule = CompactionRule { lag_max_ms: 100, segment_age_ms: 30, ..RULE };
        assert_eq!(planned(&sizes, &root(&sizes, 10, None), rule, 71), None);
        assert_eq!(planned(&sizes, &root(&sizes, 10, None), rule, 72), Some((10, 30)), "its first may be 30 ms older");
        assert_eq!(planned(&sizes, &root(&sizes, 30, None), rule, 1000), None);
    }

    #[test]
    fn a_pass_is_due_when_what_was_kept_for_a_while_may_go() {
        let sizes = [60, 10];
        assert_eq!(planned(&sizes, &root(&sizes, 20, Some(50)), RULE, 49), None);
        assert_eq!(planned(&sizes, &root(&sizes, 20, Some(50)), RULE, 50), Some((20, 20)), "also where nothing is new");
    }

    /// Rule C2, and `min.compaction.lag.ms`.
    #[test]
    fn a_pass_ends_below_what_is_undecided_and_what_is_too_young() {
        let sizes = [10, 10, 10];
        let mut open = root(&sizes, 0, None);
        open.stable_end = Offset(29);
        assert_eq!(planned(&sizes, &open, RULE, 5), Some((0, 20)), "a segment that is decided in part is none");
        let rule = CompactionRule { lag_min_ms: 4, ..RULE };
        assert_eq!(planned(&sizes, &root(&sizes, 0, None), rule, 5), Some((0, 20)));
        assert_eq!(planned(&sizes, &root(&sizes, 0, None), rule, 3), None);
        // What was covered once is not too young, whatever clocks say.
        assert_eq!(planned(&sizes, &root(&sizes, 20, Some(1)), rule, 3), Some((20, 20)));
    }

    #[test]
    fn what_is_below_the_log_start_is_not_dirty() {
        let sizes = [10, 10];
        let moved = root(&sizes, 10, None).advance_log_start(Offset(15), LeaderEpoch(1));
        let plan = plan_pass(&moved, segments(&sizes)[1..].to_vec(), RULE, TimestampMs(5));
        assert_eq!(plan.map(|plan| (plan.dirty_from, plan.end)), Some((Offset(15), Offset(20))));
    }

    /// `min.compaction.lag.ms` was raised after a pass that ended in a segment, since its keys were too many.
    #[test]
    fn a_pass_covers_what_one_before_it_began() {
        let sizes = [10, 10, 10];
        let rule = CompactionRule { lag_min_ms: 100, ..RULE };
        assert_eq!(planned(&sizes, &root(&sizes, 15, Some(1)), rule, 5), Some((15, 20)));
    }

    #[test]
    fn a_clock_that_goes_back_keeps_nothing_from_being_compacted() {
        let sizes = [10, 10, 10];
        assert_eq!(planned(&sizes, &root(&sizes, 0, None), RULE, -1000), Some((0, 30)));
    }

    #[test]
    fn groups_are_bounded_by_bytes_by_number_and_by_leader_epochs() {
        let half = SWAP_BYTES_TARGET / 2;
        assert_eq!(groups(&segments(&[half, half, 1, 3 * half, 1, 1]), RULE), [0..2, 2..3, 3..4, 4..6]);
        let many = groups(&segments(&[1; 250]), RULE);
        assert_eq!(many, [0..64, 64..128, 128..192, 192..250]);
        assert!(groups(&[], RULE).is_empty());
        let mut led_by_many = segments(&[1; 4]);
        let epochs =
            |count| (0..count).map(|nth| EpochStart { epoch: LeaderEpoch(nth), start: Offset(u64::from(nth)) });
        led_by_many[1].epochs = epochs(200).collect();
        led_by_many[2].epochs = epochs(199).collect();
        assert_eq!(groups(&led_by_many, RULE), [0..1, 1..2, 2..4]);
    }

    /// With `delete`, segments leave the log by their age: one that took in all that follows would stay.
    #[test]
    fn segments_of_a_topic_that_is_deleted_from_too_stay_apart() {
        let apart = CompactionRule { joins: false, ..RULE };
        assert_eq!(groups(&segments(&[1, 1, 1]), apart), [0..1, 1..2, 2..3]);
        let config = |policy: &str| {
            let overrides = [("cleanup.policy".to_owned(), policy.to_owned())].into();
            CompactionRule::of(&TopicConfig::from_overrides(&overrides).expect("a setting"))
        };
        assert_eq!(config("compact").map(|rule| rule.joins), Some(true));
        assert_eq!(config("compact,delete").map(|rule| rule.joins), Some(false));
        assert_eq!(config("delete"), None);
    }
}
