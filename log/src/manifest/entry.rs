//! What a manifest says of one segment, and of a rolled manifest. Plain data; made from what was built or encoded.

use crate::epochs::EpochStart;
use crate::ids::{LeaderEpoch, Offset, PartitionId, TimestampMs};
use crate::object_key::ObjectKey;
use crate::segment::{PlacedSegment, SegmentError, SegmentIndex};
use std::ops::Range;

/// One segment: its place in an object, and what retention, lookups and readers ask before they open it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentEntry {
    /// First offset covered.
    pub base: Offset,
    /// Offset after the last covered.
    pub end: Offset,
    /// The object. Its name carries the epoch of garbage collection.
    pub object: ObjectKey,
    /// Size of the object in bytes.
    pub object_length: u64,
    /// The segment's first byte, from the object's start.
    pub position: u64,
    /// Size of the segment in bytes.
    pub length: u64,
    /// Size of its header and index in bytes, which stand first: one ranged GET of these, one of data, reach any batch.
    pub index_length: u32,
    /// CRC-32C of the segment (rule S11).
    pub crc: u32,
    /// CRC-32C of its header and index, so that a read of a part of the segment is checked from here on as well.
    pub index_crc: u32,
    /// Records in it.
    pub record_count: u64,
    /// Largest record timestamp; `TimestampMs::NONE` if it holds no batch.
    pub max_timestamp: TimestampMs,
    /// Append time of its last batch: the age that retention goes by. `TimestampMs::NONE` if it holds no batch.
    pub max_append_time: TimestampMs,
    /// Chained hash of the log at its end (S6): a replica that installs the manifest goes on from there (rule R12).
    pub prefix_hash: u64,
    /// Leader epochs with records in it (rule R1): the first one's start is `base`.
    pub epochs: Vec<EpochStart>,
    /// Transactions open at its end (rule T7). Their list is in the segment's index, which a reader of it has at hand.
    pub open: Option<OpenTxns>,
}

/// The transactions open at a segment's end, in brief: there may be thousands, and a root has to stay small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenTxns {
    /// How many; at least one.
    pub count: u32,
    /// First offset of the oldest.
    pub first: Offset,
}

impl SegmentEntry {
    /// The entry of a segment that was uploaded as a part of `object`.
    #[must_use]
    pub fn new(object: ObjectKey, object_length: u64, placed: PlacedSegment) -> SegmentEntry {
        let PlacedSegment { position, meta } = placed;
        assert!(position + meta.length <= object_length, "the segment lies within its object");
        let open = meta.open.first().map(|oldest| OpenTxns { count: meta.open.len() as u32, first: oldest.first });
        SegmentEntry {
            base: meta.base,
            end: meta.end,
            object,
            object_length,
            position,
            length: meta.length,
            index_length: meta.index_length,
            crc: meta.crc,
            index_crc: meta.index_crc,
            record_count: meta.record_count,
            max_timestamp: meta.max_timestamp,
            max_append_time: meta.max_append_time,
            prefix_hash: meta.prefix_hash,
            epochs: meta.epochs,
            open,
        }
    }

    /// Whether the object can hold a segment of `partition`, by its name: the partition in it is not encoded again.
    pub(super) fn may_stand_in(&self, partition: PartitionId) -> bool {
        match &self.object {
            ObjectKey::Segment(name) => name.partition == partition,
            ObjectKey::Bundle(_) => true,
            ObjectKey::Manifest(_) => false,
        }
    }

    /// Bytes of header and index, from the object's start.
    #[must_use]
    pub fn index_bytes(&self) -> Range<u64> {
        self.position..self.position + u64::from(self.index_length)
    }

    /// Bytes of the whole segment, from the object's start.
    #[must_use]
    pub fn bytes(&self) -> Range<u64> {
        self.position..self.position + self.length
    }

    /// Where bytes of the segment, counted from its start, lie in the object.
    #[must_use]
    pub fn in_object(&self, bytes: &Range<u64>) -> Range<u64> {
        self.position + bytes.start..self.position + bytes.end
    }

    /// Reads the index from the bytes that `index_bytes` names (more may follow), and makes sure that it is this segment's.
    ///
    /// # Errors
    /// As `SegmentIndex::parse`, and `OtherSegment` when sound bytes are not those that were committed (rule S11).
    pub fn open_index(&self, partition: PartitionId, bytes: &[u8]) -> Result<SegmentIndex, SegmentError> {
        let index = SegmentIndex::parse(bytes)?;
        let front = bytes.get(..self.index_length as usize).map(crc32c::crc32c);
        let differs = match () {
            () if index.identity().partition != partition => "partition",
            () if index.base() != self.base || index.end() != self.end => "offsets",
            () if index.length() != self.length || index.data_bytes().start != u64::from(self.index_length) => "length",
            () if front != Some(self.index_crc) => "checksum of the index",
            () => return Ok(index),
        };
        Err(SegmentError::OtherSegment { what: differs })
    }
}

/// A rolled manifest in the bucket and a summary of all it covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolledRef {
    /// The object.
    pub object: ObjectKey,
    /// Size of the object in bytes.
    pub length: u32,
    /// CRC-32C of the object.
    pub crc: u32,
    /// 1 for a manifest of segments; one more than its items' for a manifest of manifests.
    pub level: u8,
    /// First offset covered.
    pub base: Offset,
    /// Offset after the last covered.
    pub end: Offset,
    /// Segments below it, and their sums and extremes.
    pub totals: Totals,
}

/// Sums and extremes over segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals {
    /// Segments.
    pub segment_count: u64,
    /// Records.
    pub record_count: u64,
    /// Bytes of segments.
    pub size: u64,
    /// Largest record timestamp.
    pub max_timestamp: TimestampMs,
    /// Largest append time.
    pub max_append_time: TimestampMs,
    /// Leader epoch of the first record.
    pub first_epoch: LeaderEpoch,
    /// Leader epoch of the last record.
    pub last_epoch: LeaderEpoch,
}

/// What lookups need of an entry or of a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) base: Offset,
    pub(super) end: Offset,
    pub(super) totals: Totals,
}

/// Whatever stands in a manifest and covers a range of offsets.
pub(super) trait Cover {
    fn span(&self) -> Span;
}

impl Cover for SegmentEntry {
    fn span(&self) -> Span {
        let epoch = |start: Option<&EpochStart>| start.expect("a segment has at least one epoch").epoch;
        let totals = Totals {
            segment_count: 1,
            record_count: self.record_count,
            size: self.length,
            max_timestamp: self.max_timestamp,
            max_append_time: self.max_append_time,
            first_epoch: epoch(self.epochs.first()),
            last_epoch: epoch(self.epochs.last()),
        };
        Span { base: self.base, end: self.end, totals }
    }
}

impl Cover for RolledRef {
    fn span(&self) -> Span {
        Span { base: self.base, end: self.end, totals: self.totals }
    }
}

impl Span {
    /// The span of two that adjoin; `None` if they do not, or if sums do not fit 64 bits.
    pub(super) fn join(self, next: Span) -> Option<Span> {
        if self.end != next.base {
            return None;
        }
        let (older, newer) = (self.totals, next.totals);
        let totals = Totals {
            segment_count: older.segment_count.checked_add(newer.segment_count)?,
            record_count: older.record_count.checked_add(newer.record_count)?,
            size: older.size.checked_add(newer.size)?,
            max_timestamp: older.max_timestamp.max(newer.max_timestamp),
            max_append_time: older.max_append_time.max(newer.max_append_time),
            first_epoch: older.first_epoch,
            last_epoch: newer.last_epoch,
        };
        Some(Span { base: self.base, end: next.end, totals })
    }
}
