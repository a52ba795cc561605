//! Builds a segment from batches. Shares the bytes of large batches; hashes every byte once.
//!
//! Nothing is built from a batch whose CRC does not match: after the commit the WAL forgets its copy (rule T6).

use super::format::put_index;
use super::header::{HEADER_BYTES, SegmentHeader};
use super::index::{Chunk, SegmentIndex};
use super::{
    AbortedTxn, AppendTimes, CHUNK_BYTES, Density, OpenTxn, SEGMENT_BYTES_MAX, SEGMENT_DATA_BYTES_MAX, SegmentIdentity,
    SegmentMeta,
};
use crate::batch::{Batch, BatchError};
use crate::epochs::EpochStart;
use crate::ids::{Offset, TimestampMs};
use bytes::{Bytes, BytesMut};

/// Records of at least this size are shared, smaller ones copied next to each other: a part costs about what 1 KiB does.
const SHARED_BYTES_MIN: usize = 1 << 10;

/// Collects the batches of one segment.
pub struct SegmentWriter {
    identity: SegmentIdentity,
    density: Density,
    chunk_bytes: u64,
    base: Offset,
    end: Offset,
    /// Finished parts of the data, and the bytes that will become the next.
    parts: Vec<Bytes>,
    pending: BytesMut,
    chunks: Vec<Chunk>,
    /// The chunk in the making; its position counts from the start of the data until the index's length is known.
    open_chunk: Option<Chunk>,
    data_length: u64,
    data_crc: u32,
    batch_count: u64,
    record_count: u64,
    append_times: AppendTimes,
    /// Epoch of each run of batches, to hold against the epochs that `finish` is given.
    epochs_seen: Vec<EpochStart>,
}

/// What a segment carries besides its batches.
#[derive(Clone, Debug)]
pub struct SegmentTail {
    /// Offset after the last covered. For a dense segment: the end of its last batch.
    pub end: Offset,
    /// Chained hash of the log at `end` (S6). A segment made of others keeps that of the last: it stands for the log as it was
    /// written, whatever was compacted away since.
    pub prefix_hash: u64,
    /// Slice of the leader-epoch cache for `[base, end)`; the first entry's start is the segment's base.
    pub epochs: Vec<EpochStart>,
    /// Producer state at `end`, as `ProducerTable::encode` gives it (rules P5, T4).
    pub producers: Bytes,
    /// Aborted transactions whose markers are in the segment, by marker.
    pub aborted: Vec<AbortedTxn>,
    /// Transactions open at `end`, oldest first.
    pub open: Vec<OpenTxn>,
}

/// A finished segment: its bytes in parts, to be written one after the other, and what a manifest says of it.
#[derive(Clone, Debug)]
pub struct BuiltSegment {
    /// The bytes. Immutable during upload (rule T3).
    pub parts: Vec<Bytes>,
    /// What the manifest entry is made from.
    pub meta: SegmentMeta,
    pub(super) topic_name: String,
}

impl SegmentTail {
    /// The tail of a segment that covers what `inputs` cover, which adjoin and are in order (rule C3). `producers` is the snapshot of the
    /// last of them, as it was read from `producers_bytes` and checked.
    ///
    /// Panics without inputs, or if they do not adjoin.
    #[must_use]
    pub fn joined(inputs: &[&SegmentIndex], producers: Bytes) -> SegmentTail {
        let last = inputs.last().expect("a segment is made of at least one");
        let adjoin = inputs.windows(2).all(|pair| pair[0].end == pair[1].base);
        assert!(adjoin, "rule C3: segments that do not adjoin");
        // Each segment's first epoch starts at its base, even one that began in the segment before.
        let mut epochs: Vec<EpochStart> = Vec::new();
        for start in inputs.iter().flat_map(|input| &input.epochs) {
            if epochs.last().map(|last| last.epoch) != Some(start.epoch) {
                epochs.push(*start);
            }
        }
        let aborted = inputs.iter().flat_map(|input| input.aborted.iter().copied()).collect();
        SegmentTail {
            end: last.end,
            prefix_hash: last.prefix_hash,
            epochs,
            producers,
            aborted,
            open: last.open.clone(),
        }
    }
}

impl SegmentWriter {
    /// An empty segment that begins at `base`.
    #[must_use]
    pub fn new(identity: SegmentIdentity, base: Offset, density: Density) -> SegmentWriter {
        SegmentWriter {
            identity,
            density,
            chunk_bytes: CHUNK_BYTES,
            base,
            end: base,
            parts: Vec::new(),
            pending: BytesMut::new(),
            chunks: Vec::new(),
            open_chunk: None,
            data_length: 0,
            data_crc: 0,
            batch_count: 0,
            record_count: 0,
            append_times: AppendTimes::default(),
            epochs_seen: Vec::new(),
        }
    }

    /// Small chunks, so that a test's few batches make many.
    #[cfg(test)]
    pub(crate) fn with_chunk_bytes(self, chunk_bytes: u64) -> SegmentWriter {
        SegmentWriter { chunk_bytes, ..self }
    }

    /// Offset after the last batch; the base without any.
    #[must_use]
    pub fn end(&self) -> Offset {
        self.end
    }

    /// Size of the batches so far, in bytes.
    #[must_use]
    pub fn data_length(&self) -> u64 {
        self.data_length
    }

    /// Adds the next batch. Its bytes are stored as they are; its largest timestamp is read off its records, since a producer
    /// is not held to what it wrote in the header.
    ///
    /// Panics as `push_timed`.
    /// # Errors
    /// As `push_timed`; also as `Batch::latest_timestamp`.
    pub fn push(&mut self, batch: &Batch, append_time: TimestampMs) -> Result<(), BatchError> {
        self.push_timed(batch, append_time, batch.latest_timestamp()?)
    }

    /// Adds the next batch, of which the largest record timestamp is known (`Batch::admit_timed` tells it).
    ///
    /// Panics if the batch does not follow (S7: where the last one ended; later, in a sparse segment), if its leader epoch
    /// or `append_time` runs backwards (rule W3), or if the segment grows past `SEGMENT_DATA_BYTES_MAX`.
    /// # Errors
    /// `Corrupt` if the batch's CRC does not match: damage since it was admitted. Nothing was added; the caller must not
    /// leave the batch out and go on, since the log would have a hole.
    pub fn push_timed(
        &mut self,
        batch: &Batch,
        append_time: TimestampMs,
        max_timestamp: TimestampMs,
    ) -> Result<(), BatchError> {
        batch.verify_crc()?;
        let (base, end) = (batch.base_offset(), batch.end_offset());
        let follows = match self.density {
            Density::Dense => base == self.end,
            Density::Sparse => base >= self.end,
        };
        assert!(follows && end > base, "S7: batch [{base}, {end}) after {}", self.end);
        let size = batch.size() as u64;
        assert!(self.data_length + size <= SEGMENT_DATA_BYTES_MAX, "segment of more than SEGMENT_DATA_BYTES_MAX");
        self.note_epoch(EpochStart { epoch: batch.leader_epoch(), start: base });
        self.append_times.push(append_time);

        let chunk = self.open_chunk.get_or_insert(Chunk {
            position: self.data_length,
            size: 0,
            base,
            end,
            first_batch: self.batch_count,
            batch_count: 0,
            max_timestamp,
            crc: 0,
        });
        chunk.size += size;
        chunk.end = end;
        chunk.batch_count += 1;
        chunk.max_timestamp = chunk.max_timestamp.max(max_timestamp);
        chunk.crc = crc32c::crc32c_append(crc32c::crc32c_append(chunk.crc, batch.head()), batch.records_bytes());
        let full = chunk.size >= self.chunk_bytes;

        self.data_length += size;
        self.batch_count += 1;
        self.record_count += u64::from(batch.record_count());
        self.end = end;
        self.put(batch);
        if full {
            self.close_chunk();
        }
        Ok(())
    }

    fn note_epoch(&mut self, at: EpochStart) {
        let newest = self.epochs_seen.last().map(|seen| seen.epoch);
        assert!(newest <= Some(at.epoch) && at.epoch <= self.identity.epoch, "epoch {} after {newest:?}", at.epoch);
        if newest != Some(at.epoch) {
            self.epochs_seen.push(at);
        }
    }

    fn put(&mut self, batch: &Batch) {
        self.pending.extend_from_slice(batch.head());
        if batch.records_bytes().len() < SHARED_BYTES_MIN {
            self.pending.extend_from_slice(batch.records_bytes());
        } else {
            self.parts.push(self.pending.split().freeze());
            self.parts.push(batch.records_bytes().clone());
        }
    }

    fn close_chunk(&mut self) {
        if let Some(chunk) = self.open_chunk.take() {
            // A chunk holds one batch more than `chunk_bytes` at most, so its size fits any `usize`.
            self.data_crc = crc32c::crc32c_combine(self.data_crc, chunk.crc, chunk.size as usize);
            self.chunks.push(chunk);
        }
    }

    /// The segment.
    ///
    /// Panics if `tail` contradicts the batches: another end, epochs that are not theirs, transactions out of order or range,
    /// or nothing covered.
    #[must_use]
    pub fn finish(mut self, tail: SegmentTail) -> BuiltSegment {
        self.close_chunk();
        let SegmentTail { end, prefix_hash, epochs, producers, aborted, open } = tail;
        let mut times = BytesMut::new();
        self.append_times.put(&mut times);
        let index = SegmentIndex {
            header: SegmentHeader {
                density: self.density,
                index_block_length: 0,
                index_block_crc: 0,
                data_length: self.data_length,
                append_times_length: u32::try_from(times.len()).expect("bounded by SEGMENT_BYTES_MAX"),
                append_times_crc: crc32c::crc32c(&times),
                producers_length: u32::try_from(producers.len()).expect("bounded by PARTITION_PRODUCERS_MAX"),
                producers_crc: crc32c::crc32c(&producers),
            },
            identity: self.identity,
            base: self.base,
            end,
            record_count: self.record_count,
            max_append_time: self.append_times.last(),
            prefix_hash,
            epochs,
            aborted,
            open,
            chunks: self.chunks,
        };
        let (front, index) = front(index);
        for seen in &self.epochs_seen {
            assert_eq!(index.epoch_at(seen.start), seen.epoch, "epoch slice and batches differ at {}", seen.start);
        }

        let mut crc = crc32c::crc32c_combine(crc32c::crc32c(&front), self.data_crc, self.data_length as usize);
        crc = crc32c::crc32c_combine(crc, index.header.append_times_crc, times.len());
        crc = crc32c::crc32c_combine(crc, index.header.producers_crc, producers.len());
        let meta = index.meta(&front, crc);

        let mut parts = vec![front];
        parts.append(&mut self.parts);
        parts.push(self.pending.freeze());
        parts.push(times.freeze());
        parts.push(producers);
        parts.retain(|part| !part.is_empty());
        assert!(meta.length <= SEGMENT_BYTES_MAX, "segment of {} bytes", meta.length);
        debug_assert_eq!(parts.iter().map(|part| part.len() as u64).sum::<u64>(), meta.length);
        BuiltSegment { parts, meta, topic_name: index.identity.topic_name }
    }
}

/// Header and index as bytes, and the index with all that depends on their length filled in.
fn front(mut index: SegmentIndex) -> (Bytes, SegmentIndex) {
    let mut block = BytesMut::new();
    put_index(&mut block, &index);
    index.header.index_block_length = u32::try_from(block.len()).expect("bounded by SEGMENT_BYTES_MAX");
    index.header.index_block_crc = crc32c::crc32c(&block);
    let data_position = (HEADER_BYTES + block.len()) as u64;
    for chunk in &mut index.chunks {
        chunk.position += data_position;
    }
    index.check().unwrap_or_else(|reason| panic!("segment built wrong: {reason}"));
    let mut bytes = BytesMut::with_capacity(HEADER_BYTES + block.len());
    index.header.put(&mut bytes);
    bytes.extend_from_slice(&block);
    (bytes.freeze(), index)
}
