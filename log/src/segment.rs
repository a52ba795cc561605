//! The segment: one partition's batches `[base, end)` as they lie in object storage, written once and never changed.
//!
//! Owns the bytes of segments and of the bundles that carry several. Knows neither manifests nor the store. A segment is one
//! range of an object and describes itself: `header | index | data | append times | producer snapshot`, little endian. The
//! data are the batches as produced, with nothing between them. Every byte is under a CRC-32C: header, index, each chunk of
//! data, and the last two blocks have one each, so that whatever is read can be checked.

mod aborted;
mod append_times;
mod bundle;
mod format;
mod header;
mod index;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod properties;
mod read;
mod time;
mod write;

pub use aborted::AbortedSearch;
pub use append_times::AppendTimes;
pub use bundle::{
    BUNDLE_FOOTER_BYTES, BuiltObject, BundleDirectory, BundleFooter, BundleItem, BundleWriter, PlacedSegment,
};
pub use header::{HEADER_BYTES, SegmentHeader};
pub use index::{Chunk, ChunkSpan, SegmentIndex};
pub use read::ReadBounds;
pub use time::{TimedOffset, first_at_or_after, first_of_largest_timestamp};
pub use write::{BuiltSegment, SegmentTail, SegmentWriter};

use crate::batch::BatchError;
use crate::epochs::EpochStart;
use crate::ids::{LeaderEpoch, Offset, PartitionId, TimestampMs};
pub use crate::transactions::{AbortedTxn, OpenTxn};

/// Bytes of data after which a chunk is closed. A chunk is what the index can find and a CRC covers: at least one batch.
/// 64 KiB keeps the index of a 64 MiB segment near 20 KiB and what a random read fetches too much below a page.
pub const CHUNK_BYTES: u64 = 64 << 10;

/// Most bytes of batches in one segment: Kafka's default for `segment.bytes` (1 GiB), far above what is uploaded at once.
pub const SEGMENT_DATA_BYTES_MAX: u64 = 1 << 30;

/// Most bytes of one segment: its batches, and as much again for index, append times and producer snapshot.
pub const SEGMENT_BYTES_MAX: u64 = 2 * SEGMENT_DATA_BYTES_MAX;

const _: () = assert!(SEGMENT_BYTES_MAX <= u32::MAX as u64, "lengths of blocks are 32-bit");
const _: () =
    assert!(crate::limits::BATCH_BYTES_MAX as u64 * 8 <= SEGMENT_DATA_BYTES_MAX, "a segment holds several batches");

/// Whose batches a segment holds and who wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentIdentity {
    /// The cluster's id.
    pub cluster: String,
    /// The partition.
    pub partition: PartitionId,
    /// Name of its topic when the segment was written.
    pub topic_name: String,
    /// Leader epoch of the writer (rule T1); no batch in it is of a later one.
    pub epoch: LeaderEpoch,
}

/// Whether offsets may be missing between the batches of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Density {
    /// Each batch begins where the one before ended (S7).
    Dense,
    /// Compaction took out whole batches: the segment covers `[base, end)` all the same (rule C3).
    Sparse,
}

/// What is worth knowing of a segment without opening it. A manifest entry is made from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentMeta {
    /// The partition.
    pub partition: PartitionId,
    /// First offset covered.
    pub base: Offset,
    /// Offset after the last covered.
    pub end: Offset,
    /// Leader epoch of the writer.
    pub epoch: LeaderEpoch,
    /// Size of the segment in bytes.
    pub length: u64,
    /// Size of header and index in bytes: the front of the segment, all that a reader needs to plan.
    pub index_length: u32,
    /// CRC-32C of the whole segment.
    pub crc: u32,
    /// CRC-32C of header and index.
    pub index_crc: u32,
    /// Records in it.
    pub record_count: u64,
    /// Largest record timestamp; `TimestampMs::NONE` if it holds no batch.
    pub max_timestamp: TimestampMs,
    /// Append time of its last batch; `TimestampMs::NONE` if it holds no batch.
    pub max_append_time: TimestampMs,
    /// Chained hash of the log at its end (S6).
    pub prefix_hash: u64,
    /// Leader epochs with records in it: the first entry's start is `base`.
    pub epochs: Vec<EpochStart>,
    /// Transactions open at its end, oldest first.
    pub open: Vec<OpenTxn>,
}

/// Why bytes are not the segment they should be (rules R13, S11, S13). None of them is ever served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SegmentError {
    /// The bytes end too early.
    #[error("`{what}` is cut: {have} of {need} bytes")]
    Cut {
        /// Part of the segment.
        what: &'static str,
        /// Bytes needed; a lower bound where the need is not known.
        need: u64,
        /// Bytes there.
        have: u64,
    },
    /// A checksum does not match.
    #[error("`{what}` is damaged: its checksum does not match")]
    Corrupt {
        /// Part of the segment.
        what: &'static str,
    },
    /// The bytes contradict themselves or the format.
    #[error("`{what}` is malformed: {reason}")]
    Malformed {
        /// Part of the segment.
        what: &'static str,
        /// What is wrong.
        reason: &'static str,
    },
    /// Written by a newer version of this software.
    #[error("segment format {found} is newer than {known}, the newest known here; upgrade this broker")]
    NewerVersion {
        /// Version of the bytes.
        found: u16,
        /// Newest version that can be read.
        known: u16,
    },
    /// Sound bytes, but of another segment than was asked for.
    #[error("the bytes are of another segment: `{what}` differs from the manifest")]
    OtherSegment {
        /// What differs.
        what: &'static str,
    },
    /// A batch is no sound batch.
    #[error("batch at offset {at} of the segment is not sound")]
    Batch {
        /// Where the batch was expected to begin.
        at: Offset,
        /// Why.
        #[source]
        source: BatchError,
    },
}

impl SegmentError {
    /// Turns the error of a field of `what` into one of the segment.
    fn field(what: &'static str, have: usize) -> impl Fn(crate::fields::FieldError) -> SegmentError {
        move |error| match error {
            crate::fields::FieldError::Cut => SegmentError::Cut { what, need: have as u64 + 1, have: have as u64 },
            crate::fields::FieldError::Malformed(reason) => SegmentError::Malformed { what, reason },
        }
    }
}

#[cfg(test)]
pub(crate) mod sample;
#[cfg(test)]
mod tests;
