//! The header of a segment: fixed in size and first, so that a bucket's objects can be walked without a manifest.

use super::{Density, SEGMENT_BYTES_MAX, SegmentError};
use crate::fields::{FieldError, Fields};
use bytes::{BufMut, BytesMut};

const MAGIC: [u8; 8] = *b"MPSEGMNT";
const VERSION: u16 = 1;
const FLAG_SPARSE: u16 = 1;

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
        let Some(version) = version else {
            return Err(SegmentError::Malformed { what: WHAT, reason: "no segment begins here" });
        };
        // Every version keeps magic, version, size and CRC of the header, so that damage is not taken for a newer format.
        let (covered, crc) = bytes.split_at(HEADER_BYTES - 4);
        if crc32c::crc32c(covered).to_le_bytes() != crc {
            return Err(SegmentError::Corrupt { what: WHAT });
        }
        if version > VERSION {
            return Err(SegmentError::NewerVersion { found: version, known: VERSION });
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
