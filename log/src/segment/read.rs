//! From fetched bytes to batches: nothing leaves here that was not checked (rules R13, S13).
//!
//! Batches share the bytes they are read from.

use super::{AppendTimes, Chunk, ChunkSpan, Density, SegmentError, SegmentIndex};
use crate::batch::Batch;
use crate::ids::{Offset, TimestampMs};
use bytes::{Bytes, BytesMut};

/// Which of the batches at hand answer a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadBounds {
    /// First offset wanted. The batch that contains it is answered whole (rule F4).
    pub from: Offset,
    /// Offset to stop before: high watermark, last stable offset or `Offset(u64::MAX)`. Batches lie on one side of it.
    pub until: Offset,
    /// Bytes to stay within; the first batch is answered even if it is larger.
    pub bytes_max: u64,
}

impl ReadBounds {
    /// Appends to `out` what of `batches`, in order, lies within the bounds; `bytes_max` counts what `out` holds already.
    ///
    /// Returns whether it went on to the last batch: `false` means that the answer is complete.
    pub fn take(&self, batches: impl IntoIterator<Item = Batch>, out: &mut Vec<Batch>) -> bool {
        let mut size: u64 = out.iter().map(|batch| batch.size() as u64).sum();
        for batch in batches {
            if batch.end_offset() <= self.from {
                continue;
            }
            let size_with = size + batch.size() as u64;
            if batch.end_offset() > self.until || (!out.is_empty() && size_with > self.bytes_max) {
                return false;
            }
            size = size_with;
            out.push(batch);
        }
        true
    }
}

impl SegmentIndex {
    /// The batches in `data`, the bytes that `span.bytes` names in one or more pieces, all checked: the chunk's CRC, each batch's
    /// own CRC, that each follows the one before, and that offsets and leader epochs are those of the index.
    ///
    /// Batches share the pieces; only a chunk that lies in two of them is copied.
    ///
    /// `span` comes from this index. # Errors
    /// `Cut`, `Corrupt`, `Malformed` or `Batch`: none of the bytes may be served; read them again from another place.
    pub fn read(&self, span: &ChunkSpan, data: &[Bytes]) -> Result<Vec<Batch>, SegmentError> {
        let need = span.bytes.end - span.bytes.start;
        let have = data.iter().map(|piece| piece.len() as u64).sum();
        if have != need {
            return Err(match have < need {
                true => SegmentError::Cut { what: "segment data", need, have },
                false => SegmentError::Malformed { what: "segment data", reason: "more bytes than were asked for" },
            });
        }
        let chunks = &self.chunks[span.chunks.clone()];
        let mut batches = Vec::with_capacity(chunks.iter().map(|chunk| chunk.batch_count as usize).sum());
        let mut data = Pieces { rest: data.iter(), piece: Bytes::new() };
        for chunk in chunks {
            // Chunks adjoin, and the span is as long as `data`, whose length is a `usize`.
            self.read_chunk(chunk, data.take(chunk.size as usize), &mut batches)?;
        }
        Ok(batches)
    }

    /// As `read`, each batch with its append time.
    ///
    /// # Errors
    /// As `read`.
    pub fn read_timed(
        &self,
        span: &ChunkSpan,
        data: &[Bytes],
        times: &AppendTimes,
    ) -> Result<Vec<(Batch, TimestampMs)>, SegmentError> {
        let first = self.chunks[span.chunks.start].first_batch;
        let missing = SegmentError::Malformed { what: "append times", reason: "fewer than batches" };
        let timed = |(number, batch)| times.get(number).map(|time| (batch, time)).ok_or(missing.clone());
        (first..).zip(self.read(span, data)?).map(timed).collect()
    }

    fn read_chunk(&self, chunk: &Chunk, mut bytes: Bytes, out: &mut Vec<Batch>) -> Result<(), SegmentError> {
        const WHAT: &str = "segment data";
        if crc32c::crc32c(&bytes) != chunk.crc {
            return Err(SegmentError::Corrupt { what: WHAT });
        }
        let malformed = |reason| Err(SegmentError::Malformed { what: WHAT, reason });
        let first = out.len();
        let mut at = chunk.base;
        loop {
            let unsound = |source| SegmentError::Batch { at, source };
            let Some(batch) = Batch::take(&mut bytes).map_err(unsound)? else { break };
            batch.verify_crc().map_err(unsound)?;
            let (base, end) =
                batch_range(&batch).ok_or(SegmentError::Malformed { what: WHAT, reason: "offset beyond 64 bits" })?;
            if base < at || (base > at && self.density() == Density::Dense) || end > chunk.end {
                return malformed("a batch is not where the one before ends");
            }
            if batch.leader_epoch() != self.epoch_at(base) {
                return malformed("a batch is of another leader epoch than the index says");
            }
            at = end;
            out.push(batch);
        }
        match () {
            () if out[first..].first().map(Batch::base_offset) != Some(chunk.base) || at != chunk.end => {
                malformed("the batches do not fill the chunk")
            }
            () if (out.len() - first) as u64 != u64::from(chunk.batch_count) => malformed("another count of batches"),
            () => Ok(()),
        }
    }
}

/// Bytes in pieces, taken from the front.
struct Pieces<'a> {
    rest: std::slice::Iter<'a, Bytes>,
    /// What is left of the piece at hand.
    piece: Bytes,
}

impl Pieces<'_> {
    /// The next `len` bytes, or what there is: shared if they lie in one piece, joined if not.
    fn take(&mut self, len: usize) -> Bytes {
        let mut joined = BytesMut::new();
        loop {
            let lacks = len - joined.len();
            if lacks <= self.piece.len() {
                let taken = self.piece.split_to(lacks);
                if joined.is_empty() {
                    return taken;
                }
                joined.extend_from_slice(&taken);
                return joined.freeze();
            }
            if !self.piece.is_empty() {
                joined.reserve(lacks);
                joined.extend_from_slice(&self.piece);
            }
            match self.rest.next() {
                Some(next) => self.piece = next.clone(),
                None => return joined.freeze(),
            }
        }
    }
}

/// `[base, end)` of a batch whose header came from outside, or `None` if it does not fit 64 bits.
fn batch_range(batch: &Batch) -> Option<(Offset, Offset)> {
    let base = batch.base_offset();
    let end = base.0.checked_add(u64::from(batch.offset_span()))?;
    (end > base.0).then_some((base, Offset(end)))
}
