//! Layout of a segment's header and of its index block, in bytes. Checks what the bytes say, decides nothing.
//!
//! The header has a fixed size and stands first, so that a segment can be walked without a manifest.

use super::index::{Chunk, SegmentIndex};
use super::{AbortedTxn, Density, OpenTxn, SEGMENT_BYTES_MAX, SegmentError, SegmentIdentity};
use crate::epochs::EpochStart;
use crate::fields::{FieldError, Fields, put_signed, put_text, put_varint};
use crate::ids::{LeaderEpoch, Offset, PartitionId, ProducerId, TimestampMs, TopicId};
use bytes::{BufMut, BytesMut};

const MAGIC: [u8; 8] = *b"MPSEGMNT";
const VERSION: u16 = 1;
const FLAG_SPARSE: u16 = 1;

/// Kind of producer snapshot: the whole state. Others (a reference to an earlier one and a delta, rule T4) may follow.
const SNAPSHOT_FULL: u8 = 1;

/// Size of a segment's header in bytes.
///
/// `magic 8 | version u16 | flags u16 | index length u32 | data length u64 | append times length u32, CRC u32 |
/// producer snapshot length u32, CRC u32 | index CRC u32 | reserved u32 | header CRC u32`.
pub const HEADER_BYTES: usize = 52;

/// Lengths and checksums of a segment's parts: enough to find each, and the next segment after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Whether offsets may be missing.
    pub density: Density,
    /// Size of the index block in bytes, without the header.
    pub index_block_length: u32,
    /// CRC-32C of the index block.
    pub index_block_crc: u32,
    /// Size of the data in bytes.
    pub data_length: u64,
    /// Size of the append times in bytes.
    pub append_times_length: u32,
    /// CRC-32C of the append times.
    pub append_times_crc: u32,
    /// Size of the producer snapshot in bytes.
    pub producers_length: u32,
    /// CRC-32C of the producer snapshot.
    pub producers_crc: u32,
}

impl SegmentHeader {
    /// Reads the header at the front of `bytes`.
    ///
    /// # Errors
    /// `Cut`, `Corrupt`, `Malformed` or `NewerVersion`.
    pub fn parse(bytes: &[u8]) -> Result<SegmentHeader, SegmentError> {
        const WHAT: &str = "segment header";
        let have = bytes.len();
        let bytes = bytes.first_chunk::<HEADER_BYTES>();
        let bytes = bytes.ok_or(SegmentError::Cut { what: WHAT, need: HEADER_BYTES as u64, have: have as u64 })?;
        let (version, header, reserved) = SegmentHeader::fields(bytes).map_err(SegmentError::field(WHAT, have))?;
        // A newer version may lay out the rest in another way; magic and version stay where they are.
        let Some(version) = version else {
            return Err(SegmentError::Malformed { what: WHAT, reason: "no segment begins here" });
        };
        if version > VERSION {
            return Err(SegmentError::NewerVersion { found: version, known: VERSION });
        }
        let (covered, crc) = bytes.split_at(HEADER_BYTES - 4);
        if crc32c::crc32c(covered).to_le_bytes() != crc {
            return Err(SegmentError::Corrupt { what: WHAT });
        }
        let Some(header) = header.filter(|_| version == VERSION && reserved == 0) else {
            return Err(SegmentError::Malformed { what: WHAT, reason: "unknown version, flag or reserved field" });
        };
        match header.segment_length() {
            Some(length) if length <= SEGMENT_BYTES_MAX => Ok(header),
            _ => Err(SegmentError::Malformed { what: WHAT, reason: "lengths beyond the largest segment" }),
        }
    }

    /// The version if the magic is right, the header if its flags are known, and the reserved field.
    fn fields(bytes: &[u8; HEADER_BYTES]) -> Result<(Option<u16>, Option<SegmentHeader>, u32), FieldError> {
        let mut fields = Fields::new(bytes);
        let magic = fields.bytes(MAGIC.len())? == MAGIC;
        let version = fields.u16()?;
        let density = match fields.u16()? {
            0 => Some(Density::Dense),
            FLAG_SPARSE => Some(Density::Sparse),
            _ => None,
        };
        let index_block_length = fields.u32()?;
        let data_length = fields.u64()?;
        let append_times_length = fields.u32()?;
        let append_times_crc = fields.u32()?;
        let producers_length = fields.u32()?;
        let producers_crc = fields.u32()?;
        let index_block_crc = fields.u32()?;
        let reserved = fields.u32()?;
        let header = density.map(|density| SegmentHeader {
            density,
            index_block_length,
            index_block_crc,
            data_length,
            append_times_length,
            append_times_crc,
            producers_length,
            producers_crc,
        });
        Ok((magic.then_some(version), header, reserved))
    }

    pub(super) fn put(&self, out: &mut BytesMut) {
        let start = out.len();
        out.put_slice(&MAGIC);
        out.put_u16_le(VERSION);
        out.put_u16_le(match self.density {
            Density::Dense => 0,
            Density::Sparse => FLAG_SPARSE,
        });
        out.put_u32_le(self.index_block_length);
        out.put_u64_le(self.data_length);
        out.put_u32_le(self.append_times_length);
        out.put_u32_le(self.append_times_crc);
        out.put_u32_le(self.producers_length);
        out.put_u32_le(self.producers_crc);
        out.put_u32_le(self.index_block_crc);
        out.put_u32_le(0);
        let crc = crc32c::crc32c(&out[start..]);
        out.put_u32_le(crc);
        debug_assert_eq!(out.len() - start, HEADER_BYTES);
    }

    /// Size of header and index in bytes; where the data begin in the segment. `None` past 32 bits.
    #[must_use]
    pub fn index_length(&self) -> Option<u32> {
        self.index_block_length.checked_add(HEADER_BYTES as u32)
    }

    /// Size of the segment in bytes; `None` if the lengths do not add up within 64 bits.
    #[must_use]
    pub fn segment_length(&self) -> Option<u64> {
        let blocks = [self.data_length, u64::from(self.append_times_length), u64::from(self.producers_length)];
        blocks.into_iter().try_fold(u64::from(self.index_length()?), u64::checked_add)
    }
}

const WHAT: &str = "segment index";

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

/// Reads the index block behind `header`; `block` is all of it and its CRC was checked.
pub(super) fn parse_index(header: &SegmentHeader, block: &[u8]) -> Result<SegmentIndex, SegmentError> {
    let mut fields = Fields::new(block);
    let index = index_fields(header, &mut fields).and_then(|index| fields.end().map(|()| index));
    let index = index.map_err(SegmentError::field(WHAT, block.len()))?;
    index.check().map_err(|reason| SegmentError::Malformed { what: WHAT, reason })?;
    Ok(index)
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
