//! What retention calls for where the manifest alone does not say: a first look that costs nothing, and the tail's part.

use super::TailSummary;
use millpond_log::manifest::{ManifestRoot, Retention};
use millpond_log::{Offset, TimestampMs};

/// A batch of the tail, as retention sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TailBatch {
    /// Offset after its last record.
    pub end: Offset,
    /// Its size in bytes.
    pub size: u64,
    /// When it was appended.
    pub append_time: TimestampMs,
}

/// Whether retention may call for anything at all: judged by the root and the tail's summary, so that a log of which
/// nothing is due costs a few comparisons. `true` is no promise.
#[must_use]
pub fn may_retire(
    root: &ManifestRoot,
    retention: Retention,
    now: TimestampMs,
    tail: Option<TailSummary>,
    tail_bytes: u64,
) -> bool {
    let by_size = retention.size_max.is_some_and(|max| root.size().saturating_add(tail_bytes) > max);
    let by_age = retention.age_ms_max.is_some_and(|max| {
        let old = |time: TimestampMs| now.0.saturating_sub(time.0) > max;
        // Segments below `log_start` are kept in the root only for their producers, those of a rolled manifest have no
        // age of their own here.
        let oldest = root.entries().iter().find(|entry| entry.end > root.log_start);
        let in_bucket = !root.rolled().is_empty() || oldest.is_some_and(|entry| old(entry.max_append_time));
        in_bucket || tail.is_some_and(|tail| old(tail.oldest))
    });
    by_size || by_age
}

/// Goes on with whole committed batches of the tail where nothing in object storage is kept; `from` is the tiered end, or the
/// log start beyond it.
#[must_use]
pub fn tail_retention_start(
    batches: &[TailBatch],
    from: Offset,
    hw: Offset,
    retention: Retention,
    now: TimestampMs,
) -> Offset {
    let mut bytes: u64 = batches.iter().map(|batch| batch.size).sum();
    let mut start = from;
    for batch in batches.iter().filter(|batch| batch.end <= hw) {
        let old = retention.age_ms_max.is_some_and(|max| now.0.saturating_sub(batch.append_time.0) > max);
        let over = retention.size_max.is_some_and(|max| bytes - batch.size >= max);
        if !old && !over {
            break;
        }
        bytes -= batch.size;
        start = batch.end;
    }
    start.max(from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_log::{PartitionId, TopicId};

    fn batches(of: &[(u64, u64, i64)]) -> Vec<TailBatch> {
        let batch = |&(end, size, time)| TailBatch { end: Offset(end), size, append_time: TimestampMs(time) };
        of.iter().map(batch).collect()
    }

    #[test]
    fn the_tail_goes_in_whole_committed_batches() {
        let tail = batches(&[(2, 10, 0), (4, 10, 50), (6, 10, 90)]);
        let check = |age_ms_max, size_max, hw, expected| {
            let retention = Retention { age_ms_max, size_max };
            let start = tail_retention_start(&tail, Offset(0), Offset(hw), retention, TimestampMs(100));
            assert_eq!(start, Offset(expected), "{age_ms_max:?} {size_max:?} below {hw}");
        };
        check(None, None, 6, 0);
        check(Some(100), None, 6, 0);
        check(Some(99), None, 6, 2);
        check(Some(0), None, 6, 6);
        check(Some(0), None, 5, 4);
        check(None, Some(30), 6, 0);
        check(None, Some(21), 6, 0);
        check(None, Some(20), 6, 2);
        check(None, Some(0), 6, 6);
    }

    #[test]
    fn nothing_is_looked_into_while_nothing_can_be_due() {
        let root = ManifestRoot::new(PartitionId { topic: TopicId(1), index: 0 });
        let tail = TailSummary { end: Offset(5), bytes: 10, oldest: TimestampMs(0), more: false };
        let check = |age_ms_max, size_max, tail, expected| {
            let retention = Retention { age_ms_max, size_max };
            assert_eq!(may_retire(&root, retention, TimestampMs(100), tail, 10), expected);
        };
        check(Some(100), Some(10), Some(tail), false);
        check(Some(99), None, Some(tail), true);
        check(Some(99), None, None, false);
        check(None, Some(9), Some(tail), true);
        check(None, None, Some(tail), false);
    }
}
