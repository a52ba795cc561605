//! The index block of a segment, in bytes. Checks what the bytes say; what they mean is `index`'s.

use super::header::{HEADER_BYTES, SegmentHeader};
use super::index::{Chunk, SegmentIndex};
use super::{AbortedTxn, OpenTxn, SegmentError, SegmentIdentity};
use crate::epochs::EpochStart;
use crate::fields::{FieldError, Fields, put_signed, put_text, put_varint};
use crate::ids::{LeaderEpoch, Offset, PartitionId, ProducerId, TimestampMs, TopicId};
use bytes::{BufMut, BytesMut};

/// Kind of producer snapshot: the whole state. Others (a reference to an earlier one and a delta, rule T4) may follow.
const SNAPSHOT_FULL: u8 = 1;

const WHAT: &str = "segment index";

impl SegmentIndex {
    /// Reads header and index from the front of a segment. Bytes after them are ignored, so that one GET may fetch more.
    ///
    /// # Errors
    /// `Cut` with the need when `bytes` end too early; `Corrupt`, `Malformed` or `NewerVersion` (rule S13).
    pub fn parse(bytes: &[u8]) -> Result<SegmentIndex, SegmentError> {
        let header = SegmentHeader::parse(bytes)?;
        let need = HEADER_BYTES as u64 + u64::from(header.index_block_length);
        let block = usize::try_from(need).ok().and_then(|need| bytes.get(HEADER_BYTES..need));
        let block = block.ok_or(SegmentError::Cut { what: WHAT, need, have: bytes.len() as u64 })?;
        if crc32c::crc32c(block) != header.index_block_crc {
            return Err(SegmentError::Corrupt { what: WHAT });
        }
        let mut fields = Fields::new(block);
        let index = index_fields(&header, &mut fields).and_then(|index| fields.end().map(|()| index));
        let index = index.map_err(SegmentError::field(WHAT, block.len()))?;
        index.check().map_err(|reason| SegmentError::Malformed { what: WHAT, reason })?;
        Ok(index)
    }
}

/// Writes the index block of `index`.
pub(super) fn put_index(out: &mut BytesMut, index: &SegmentIndex) {
    let SegmentIdentity { cluster, partition, topic_name, epoch } = &index.identity;
    put_text(out, cluster);
    out.put_u128_le(partition.topic.0);
    put_text(out, topic_name);
    put_varint(out, u64::from(partition.index));
    put_varint(out, u64::from(epoch.0));
    put_varint(out, index.base.0);
    put_varint(out, index.end.0 - index.base.0);
    put_varint(out, index.record_count);
    put_signed(out, index.max_append_time.0);
    out.put_u64_le(index.prefix_hash);
    out.put_u8(SNAPSHOT_FULL);
    put_varint(out, index.epochs.len() as u64);
    for EpochStart { epoch, start } in &index.epochs {
        put_varint(out, u64::from(epoch.0));
        put_varint(out, start.0 - index.base.0);
    }
    put_varint(out, index.aborted.len() as u64);
    for AbortedTxn { marker, first, producer } in &index.aborted {
        put_varint(out, marker.0 - index.base.0);
        put_varint(out, marker.0 - first.0);
        put_varint(out, producer.0);
    }
    put_varint(out, index.open.len() as u64);
    for OpenTxn { first, producer } in &index.open {
        put_varint(out, index.end.0 - first.0);
        put_varint(out, producer.0);
    }
    put_chunks(out, index.base, &index.chunks);
}

fn put_chunks(out: &mut BytesMut, base: Offset, chunks: &[Chunk]) {
    put_varint(out, chunks.len() as u64);
    let mut covered = base;
    let mut timestamp = 0i64;
    for chunk in chunks {
        put_varint(out, chunk.size);
        put_varint(out, chunk.base.0 - covered.0);
        put_varint(out, chunk.end.0 - chunk.base.0);
        put_varint(out, u64::from(chunk.batch_count));
        // Times may lie anywhere in 64 bits and in any order (an old record may follow a new one): differences wrap, and
        // wrap back when read.
        put_signed(out, chunk.max_timestamp.0.wrapping_sub(timestamp));
        out.put_u32_le(chunk.crc);
        covered = chunk.end;
        timestamp = chunk.max_timestamp.0;
    }
}

fn index_fields(header: &SegmentHeader, fields: &mut Fields<'_>) -> Result<SegmentIndex, FieldError> {
    let cluster = fields.text()?.to_owned();
    let topic = TopicId(fields.u128()?);
    let topic_name = fields.text()?.to_owned();
    let partition = PartitionId { topic, index: fields.varint32()? };
    let epoch = LeaderEpoch(fields.varint32()?);
    let base = Offset(fields.varint()?);
    let end = forward(base, fields.varint()?)?;
    let record_count = fields.varint()?;
    let max_append_time = TimestampMs(fields.signed()?);
    let prefix_hash = fields.u64()?;
    if fields.u8()? != SNAPSHOT_FULL {
        return Err(FieldError::Malformed("unknown kind of producer snapshot"));
    }
    let epochs = (0..fields.count(2)?)
        .map(|_| Ok(EpochStart { epoch: LeaderEpoch(fields.varint32()?), start: forward(base, fields.varint()?)? }))
        .collect::<Result<_, FieldError>>()?;
    let aborted = (0..fields.count(3)?)
        .map(|_| {
            let marker = forward(base, fields.varint()?)?;
            let first = backward(marker, fields.varint()?)?;
            Ok(AbortedTxn { marker, first, producer: ProducerId(fields.varint()?) })
        })
        .collect::<Result<_, FieldError>>()?;
    let open = (0..fields.count(2)?)
        .map(|_| {
            let first = backward(end, fields.varint()?)?;
            Ok(OpenTxn { first, producer: ProducerId(fields.varint()?) })
        })
        .collect::<Result<_, FieldError>>()?;
    let data_position = header.index_length().expect("the header was parsed, so its lengths add up");
    let chunks = chunk_fields(fields, base, u64::from(data_position))?;
    Ok(SegmentIndex {
        identity: SegmentIdentity { cluster, partition, topic_name, epoch },
        header: *header,
        base,
        end,
        record_count,
        max_append_time,
        prefix_hash,
        epochs,
        aborted,
        open,
        chunks,
    })
}

/// The chunks with their positions and ordinals, which are sums over those before.
fn chunk_fields(fields: &mut Fields<'_>, base: Offset, data_position: u64) -> Result<Vec<Chunk>, FieldError> {
    let count = fields.count(9)?;
    let mut chunks = Vec::with_capacity(count);
    let mut covered = base;
    let mut timestamp = 0i64;
    let mut position = data_position;
    let mut first_batch = 0u64;
    for _ in 0..count {
        let size = fields.varint()?;
        let base = forward(covered, fields.varint()?)?;
        let end = forward(base, fields.varint()?)?;
        let batch_count = fields.varint32()?;
        timestamp = timestamp.wrapping_add(fields.signed()?);
        let crc = fields.u32()?;
        chunks.push(Chunk {
            position,
            size,
            base,
            end,
            first_batch,
            batch_count,
            max_timestamp: TimestampMs(timestamp),
            crc,
        });
        covered = end;
        position = position.checked_add(size).ok_or(FieldError::Malformed("sizes beyond 64 bits"))?;
        first_batch += u64::from(batch_count);
    }
    Ok(chunks)
}

/// Offsets are 64-bit and checked: a segment may span more than 2^31 of them.
fn forward(offset: Offset, by: u64) -> Result<Offset, FieldError> {
    offset.0.checked_add(by).map(Offset).ok_or(FieldError::Malformed("offset beyond 64 bits"))
}

fn backward(offset: Offset, by: u64) -> Result<Offset, FieldError> {
    offset.0.checked_sub(by).map(Offset).ok_or(FieldError::Malformed("offset below 0"))
}
