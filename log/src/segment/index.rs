//! The index of a segment: which chunk of its data holds an offset or a time. The front of the segment, one ranged GET.
//!
//! A chunk is read whole, since its CRC covers it whole. Offsets and times are 64-bit; the order of times is not assumed.

use super::header::{HEADER_BYTES, SegmentHeader};
use super::{AbortedTxn, Density, OpenTxn, SegmentError, SegmentIdentity, SegmentMeta};
use crate::epochs::EpochStart;
use crate::ids::{LeaderEpoch, Offset, TimestampMs};
use crate::limits::BATCH_HEADER_BYTES;
use std::ops::Range;

/// A run of whole batches: what the index finds, what one CRC covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Where it begins, in bytes from the segment's start.
    pub position: u64,
    /// Its size in bytes.
    pub size: u64,
    /// Base offset of its first batch.
    pub base: Offset,
    /// Offset after its last batch.
    pub end: Offset,
    /// Batches of the segment before it.
    pub first_batch: u64,
    /// Batches in it.
    pub batch_count: u32,
    /// Largest record timestamp in it.
    pub max_timestamp: TimestampMs,
    /// CRC-32C of its bytes. It also covers what a batch's own CRC leaves out: base offset, length, leader epoch.
    pub crc: u32,
}

/// Chunks next to each other and the bytes they lie in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkSpan {
    /// Their numbers.
    pub chunks: Range<usize>,
    /// Their bytes, from the segment's start.
    pub bytes: Range<u64>,
}

/// What a segment says of itself. Parsed from its front; checked to be consistent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentIndex {
    pub(super) identity: SegmentIdentity,
    pub(super) header: SegmentHeader,
    pub(super) base: Offset,
    pub(super) end: Offset,
    pub(super) record_count: u64,
    pub(super) max_append_time: TimestampMs,
    pub(super) prefix_hash: u64,
    pub(super) epochs: Vec<EpochStart>,
    pub(super) aborted: Vec<AbortedTxn>,
    pub(super) open: Vec<OpenTxn>,
    pub(super) chunks: Vec<Chunk>,
}

impl SegmentIndex {
    /// What makes the parts contradict each other, if anything does.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        let Range { start, end } = self.data_bytes();
        let data_end = self.chunks.last().map_or(start, |chunk| chunk.position.saturating_add(chunk.size));
        let mut covered = self.base;
        let dense = self.header.density == Density::Dense;
        for chunk in &self.chunks {
            let holds_something = chunk.base < chunk.end && chunk.size > 0 && chunk.batch_count > 0;
            // The count is a claim that readers reserve room by.
            if u64::from(chunk.batch_count) * BATCH_HEADER_BYTES as u64 > chunk.size {
                return Err("a chunk of more batches than fit in it");
            }
            if !holds_something || (dense && chunk.base != covered) {
                return Err("a chunk is empty or not where the one before ends");
            }
            covered = chunk.end;
        }
        let epochs_in_order =
            self.epochs.windows(2).all(|pair| pair[0].epoch < pair[1].epoch && pair[0].start < pair[1].start);
        let epochs_cover = self.epochs.first().is_some_and(|first| first.start == self.base)
            && self.epochs.last().is_some_and(|last| last.start < self.end && last.epoch <= self.identity.epoch);
        let inside = |marker: Offset| self.base <= marker && marker < self.end;
        match () {
            () if self.base >= self.end => Err("no offset is covered"),
            () if data_end != end => Err("sizes of the chunks and of the data differ"),
            () if covered > self.end || (dense && covered != self.end) => {
                Err("the chunks do not end where the segment does")
            }
            () if !epochs_in_order || !epochs_cover => Err("leader epochs out of order or out of range"),
            () if !self.aborted.iter().all(|txn| inside(txn.marker) && txn.first < txn.marker) => {
                Err("the marker of an aborted transaction is elsewhere")
            }
            () if !self.aborted.is_sorted() || !self.open.is_sorted() => Err("transactions out of order"),
            () if self.open.iter().any(|txn| txn.first >= self.end) => Err("an open transaction begins past the end"),
            () => Ok(()),
        }
    }

    /// Whose batches these are.
    #[must_use]
    pub fn identity(&self) -> &SegmentIdentity {
        &self.identity
    }

    /// Whether offsets may be missing.
    #[must_use]
    pub fn density(&self) -> Density {
        self.header.density
    }

    /// First offset covered.
    #[must_use]
    pub fn base(&self) -> Offset {
        self.base
    }

    /// Offset after the last covered.
    #[must_use]
    pub fn end(&self) -> Offset {
        self.end
    }

    /// Records in the segment.
    #[must_use]
    pub fn record_count(&self) -> u64 {
        self.record_count
    }

    /// Batches in the segment.
    #[must_use]
    pub fn batch_count(&self) -> u64 {
        self.chunks.last().map_or(0, |chunk| chunk.first_batch + u64::from(chunk.batch_count))
    }

    /// Largest record timestamp; `TimestampMs::NONE` without any batch.
    #[must_use]
    pub fn max_timestamp(&self) -> TimestampMs {
        self.chunks.iter().map(|chunk| chunk.max_timestamp).max().unwrap_or(TimestampMs::NONE)
    }

    /// Append time of the last batch; `TimestampMs::NONE` without any batch.
    #[must_use]
    pub fn max_append_time(&self) -> TimestampMs {
        self.max_append_time
    }

    /// Leader epochs with records in the segment, in order; the first one's start is the segment's base (rule T4).
    #[must_use]
    pub fn epochs(&self) -> &[EpochStart] {
        &self.epochs
    }

    /// Aborted transactions whose markers are in the segment, by marker (rule T4).
    #[must_use]
    pub fn aborted(&self) -> &[AbortedTxn] {
        &self.aborted
    }

    /// Transactions open at the segment's end, oldest first (rules T4, T7).
    #[must_use]
    pub fn open(&self) -> &[OpenTxn] {
        &self.open
    }

    /// The chunks of the data, in order.
    #[must_use]
    pub fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// Size of the segment in bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.producers_bytes().end
    }

    /// Bytes of the batches, from the segment's start.
    #[must_use]
    pub fn data_bytes(&self) -> Range<u64> {
        let start = HEADER_BYTES as u64 + u64::from(self.header.index_block_length);
        start..start + self.header.data_length
    }

    /// Bytes of the append times, from the segment's start. Only what replays or rewrites the log needs them.
    #[must_use]
    pub fn append_times_bytes(&self) -> Range<u64> {
        let start = self.data_bytes().end;
        start..start + u64::from(self.header.append_times_length)
    }

    /// Bytes of the producer snapshot at the segment's end, from the segment's start.
    #[must_use]
    pub fn producers_bytes(&self) -> Range<u64> {
        let start = self.append_times_bytes().end;
        start..start + u64::from(self.header.producers_length)
    }

    /// Checks a producer snapshot that was read from `producers_bytes`; `ProducerTable::decode` reads it.
    ///
    /// # Errors
    /// `Cut` or `Corrupt`.
    pub fn verify_producers(&self, bytes: &[u8]) -> Result<(), SegmentError> {
        verify_block("producer snapshot", bytes, self.header.producers_length, self.header.producers_crc)
    }

    pub(super) fn verify_append_times(&self, bytes: &[u8]) -> Result<(), SegmentError> {
        verify_block("append times", bytes, self.header.append_times_length, self.header.append_times_crc)
    }

    /// Leader epoch of the records at `offset`, which lies in the segment.
    pub(super) fn epoch_at(&self, offset: Offset) -> LeaderEpoch {
        let after = self.epochs.partition_point(|epoch| epoch.start <= offset);
        self.epochs[after.checked_sub(1).expect("the first epoch starts at the segment's base")].epoch
    }

    /// Chunks to read from `offset` on: the one with the batch that contains it, whole, and more while all stay within
    /// `bytes_max`. So a fetch always gets one whole batch. `None` when nothing at or after `offset` is in the segment.
    #[must_use]
    pub fn plan(&self, offset: Offset, bytes_max: u64) -> Option<ChunkSpan> {
        let first = self.chunks.partition_point(|chunk| chunk.end <= offset);
        let start = self.chunks.get(first)?.position;
        let fits = |chunk: &&Chunk| chunk.position + chunk.size - start <= bytes_max;
        let more = self.chunks[first + 1..].iter().take_while(fits).count();
        Some(self.span(first..first + 1 + more))
    }

    /// The chunk in which to look for the first record at or after `from` whose timestamp is at least `timestamp`.
    ///
    /// The chunk's largest timestamp reaches it, but perhaps only by a record before `from`: when the chunk does not have
    /// it, ask again from the chunk's end. `None` when no chunk left can have it.
    #[must_use]
    pub fn find_time(&self, timestamp: TimestampMs, from: Offset) -> Option<ChunkSpan> {
        let mut chunks = self.chunks.iter();
        let found = chunks.position(|chunk| chunk.end > from && chunk.max_timestamp >= timestamp)?;
        Some(self.span(found..found + 1))
    }

    /// The first of the chunks wholly at or after `from` that have the largest timestamp there. A chunk that straddles
    /// `from` is left to the caller, since its largest timestamp may be that of a record before `from`.
    #[must_use]
    pub fn find_max_timestamp(&self, from: Offset) -> Option<ChunkSpan> {
        let whole = self.chunks.partition_point(|chunk| chunk.base < from);
        let largest = self.chunks[whole..].iter().map(|chunk| chunk.max_timestamp).max()?;
        self.find_time(largest, self.chunks[whole].base)
    }

    /// The chunks with these numbers.
    ///
    /// Panics if there are none of them in the segment.
    #[must_use]
    pub fn span(&self, chunks: Range<usize>) -> ChunkSpan {
        assert!(chunks.start < chunks.end, "a span has at least one chunk");
        let (first, last) = (self.chunks[chunks.start], self.chunks[chunks.end - 1]);
        ChunkSpan { chunks, bytes: first.position..last.position + last.size }
    }

    /// What a manifest entry says of the segment.
    ///
    /// `crc` is the CRC-32C of the whole segment and `front` its header and index: a rebuild from the bucket has read both.
    #[must_use]
    pub fn meta(&self, front: &[u8], crc: u32) -> SegmentMeta {
        SegmentMeta {
            partition: self.identity.partition,
            base: self.base,
            end: self.end,
            epoch: self.identity.epoch,
            length: self.length(),
            index_length: front.len() as u32,
            crc,
            index_crc: crc32c::crc32c(front),
            record_count: self.record_count,
            max_timestamp: self.max_timestamp(),
            max_append_time: self.max_append_time,
            prefix_hash: self.prefix_hash,
            epochs: self.epochs.clone(),
            open: self.open.clone(),
        }
    }
}

/// Whether `bytes` are the block whose length and CRC the header committed.
fn verify_block(what: &'static str, bytes: &[u8], length: u32, crc: u32) -> Result<(), SegmentError> {
    let (need, have) = (u64::from(length), bytes.len() as u64);
    match () {
        () if have < need => Err(SegmentError::Cut { what, need, have }),
        () if have > need => Err(SegmentError::Malformed { what, reason: "more bytes than the header says" }),
        () if crc32c::crc32c(bytes) != crc => Err(SegmentError::Corrupt { what }),
        () => Ok(()),
    }
}
