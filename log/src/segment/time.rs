//! Search for a record by its timestamp, inside batches, compressed ones too.
//!
//! Times may be in any order, and the largest one in a batch's header need not be true: records are what counts.

use crate::batch::{Batch, BatchError};
use crate::ids::{Offset, TimestampMs};

/// A record's offset and timestamp: the answer to a search by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedOffset {
    /// The record's offset.
    pub offset: Offset,
    /// The record's timestamp.
    pub timestamp: TimestampMs,
}

/// The first record at or after `from`, in order of offset, whose timestamp is at least `timestamp`.
///
/// # Errors
/// As `Batch::records`, for a batch that has to be looked into.
pub fn first_at_or_after(
    batches: &[Batch],
    timestamp: TimestampMs,
    from: Offset,
) -> Result<Option<TimedOffset>, BatchError> {
    for batch in batches.iter().filter(|batch| batch.end_offset() > from) {
        for record in batch.records()? {
            let record = record?;
            if record.offset >= from && record.timestamp >= timestamp {
                return Ok(Some(TimedOffset { offset: record.offset, timestamp: record.timestamp }));
            }
        }
    }
    Ok(None)
}

/// The first of the records at or after `from` that have the largest timestamp among them.
///
/// # Errors
/// As `Batch::records`, for a batch that has to be looked into.
pub fn first_of_largest_timestamp(batches: &[Batch], from: Offset) -> Result<Option<TimedOffset>, BatchError> {
    let mut largest: Option<TimedOffset> = None;
    for batch in batches.iter().filter(|batch| batch.end_offset() > from) {
        for record in batch.records()? {
            let record = record?;
            if record.offset >= from && largest.is_none_or(|largest| record.timestamp > largest.timestamp) {
                largest = Some(TimedOffset { offset: record.offset, timestamp: record.timestamp });
            }
        }
    }
    Ok(largest)
}
