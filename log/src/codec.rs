//! Compression codecs of record batches. Decompression is bounded: a bomb is an error, never an allocation.

use crate::batch::BatchError;
use bytes::{Bytes, BytesMut};
use std::io::{Read, Write};

/// Codec of a batch's records: bits 0 to 2 of its attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Codec {
    /// Not compressed.
    None,
    /// gzip (RFC 1952), one or several members.
    Gzip,
    /// Snappy, raw or in xerial's framing.
    Snappy,
    /// LZ4 frame format.
    Lz4,
    /// Zstandard, with or without content size, one or several frames.
    Zstd,
}

impl Codec {
    /// Every codec, in order of its bits.
    pub const ALL: [Codec; 5] = [Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd];

    /// The codec of these attribute bits; `None` for 5 to 7.
    #[must_use]
    pub fn from_bits(bits: u16) -> Option<Codec> {
        Codec::ALL.get(usize::from(bits & 0b111)).copied()
    }

    /// Attribute bits.
    #[must_use]
    pub fn bits(self) -> u16 {
        self as u16
    }

    /// Kafka's name: `none`, `gzip`, `snappy`, `lz4`, `zstd`.
    #[must_use]
    pub fn name(self) -> &'static str {
        ["none", "gzip", "snappy", "lz4", "zstd"][self as usize]
    }

    /// Compresses `raw`. Snappy comes out in xerial's framing, as Kafka's clients write it.
    #[must_use]
    pub fn compress(self, raw: &[u8]) -> Bytes {
        const IN_MEMORY: &str = "compressing into memory does not fail";
        match self {
            Codec::None => Bytes::copy_from_slice(raw),
            Codec::Gzip => {
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
                encoder.write_all(raw).expect(IN_MEMORY);
                encoder.finish().expect(IN_MEMORY).into()
            }
            Codec::Snappy => xerial::compress(raw),
            Codec::Lz4 => {
                let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
                encoder.write_all(raw).expect(IN_MEMORY);
                encoder.finish().expect(IN_MEMORY).into()
            }
            Codec::Zstd => zstd::bulk::compress(raw, ZSTD_LEVEL).expect(IN_MEMORY).into(),
        }
    }

    /// Decompresses `packed`, refusing to make more than `max` bytes.
    ///
    /// # Errors
    /// `Corrupt` if the stream is damaged, cut, or has bytes left over; `InflatedTooLarge` past `max`.
    pub fn decompress(self, packed: &Bytes, max: usize) -> Result<Bytes, BatchError> {
        match self {
            Codec::None if packed.len() > max => Err(BatchError::InflatedTooLarge { max }),
            Codec::None => Ok(packed.clone()),
            Codec::Gzip => read_bounded(flate2::bufread::MultiGzDecoder::new(&packed[..]), max),
            Codec::Snappy => xerial::decompress(packed, max),
            Codec::Lz4 => lz4_frames(packed, max),
            Codec::Zstd => {
                let decoder = zstd::stream::read::Decoder::with_buffer(&packed[..]);
                read_bounded(decoder.map_err(|_| DAMAGED)?, max)
            }
        }
    }
}

/// Kafka's default level for zstd.
const ZSTD_LEVEL: i32 = 3;

const DAMAGED: BatchError = BatchError::Corrupt("the compressed records are damaged");

/// Reads a decoder to its end, growing with what really comes: the claim of a header allocates nothing.
fn read_bounded(decoder: impl Read, max: usize) -> Result<Bytes, BatchError> {
    let mut out = Vec::new();
    decoder.take(max as u64 + 1).read_to_end(&mut out).map_err(|_| DAMAGED)?;
    if out.len() > max { Err(BatchError::InflatedTooLarge { max }) } else { Ok(out.into()) }
}

/// LZ4 frames, one after the other: the decoder stops after each.
fn lz4_frames(packed: &[u8], max: usize) -> Result<Bytes, BatchError> {
    let mut rest = packed;
    let mut out = Vec::new();
    while !rest.is_empty() {
        let before = rest.len();
        let room = max - out.len();
        let mut decoder = lz4_flex::frame::FrameDecoder::new(&mut rest);
        (&mut decoder).take(room as u64 + 1).read_to_end(&mut out).map_err(|_| DAMAGED)?;
        if out.len() > max {
            return Err(BatchError::InflatedTooLarge { max });
        }
        if rest.len() == before {
            return Err(DAMAGED);
        }
    }
    Ok(out.into())
}

impl std::str::FromStr for Codec {
    type Err = UnknownCodec;

    /// Reads what `name` writes.
    fn from_str(name: &str) -> Result<Codec, UnknownCodec> {
        Codec::ALL.into_iter().find(|codec| codec.name() == name).ok_or(UnknownCodec)
    }
}

/// No codec has this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown codec; use none, gzip, snappy, lz4 or zstd")]
pub struct UnknownCodec;

/// Snappy as Kafka's clients frame it (case P14): a magic, two versions, then blocks of length and data. Raw streams are read too.
mod xerial {
    use super::*;

    const MAGIC: [u8; 8] = [0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0];
    /// Magic and the two versions. They are written big-endian; some clients write them the other way round, so they are not read.
    const HEADER_BYTES: usize = 16;
    /// Bytes of one block before compression, as the Java library cuts them.
    const BLOCK_BYTES: usize = 32 << 10;

    pub(super) fn compress(raw: &[u8]) -> Bytes {
        let mut out = BytesMut::new();
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 1]);
        let mut encoder = snap::raw::Encoder::new();
        for block in raw.chunks(BLOCK_BYTES) {
            let packed = encoder.compress_vec(block).expect("a block is far below snappy's limit");
            out.extend_from_slice(&u32::try_from(packed.len()).expect("a block is small").to_be_bytes());
            out.extend_from_slice(&packed);
        }
        out.freeze()
    }

    pub(super) fn decompress(packed: &Bytes, max: usize) -> Result<Bytes, BatchError> {
        let mut out = Vec::new();
        if !packed.starts_with(&MAGIC) {
            append_block(&mut out, packed, max)?;
            return Ok(out.into());
        }
        let mut rest = packed.get(HEADER_BYTES..).ok_or(DAMAGED)?;
        while !rest.is_empty() {
            let (length, after) = rest.split_first_chunk::<4>().ok_or(DAMAGED)?;
            let length = u32::from_be_bytes(*length) as usize;
            let block = after.get(..length).ok_or(DAMAGED)?;
            append_block(&mut out, block, max)?;
            rest = &after[length..];
        }
        Ok(out.into())
    }

    fn append_block(out: &mut Vec<u8>, block: &[u8], max: usize) -> Result<(), BatchError> {
        let length = snap::raw::decompress_len(block).map_err(|_| DAMAGED)?;
        if length > max - out.len() {
            return Err(BatchError::InflatedTooLarge { max });
        }
        // Snappy expands at most 64 to 3 or so; a longer claim is a lie, and must not allocate.
        if length / 32 > block.len() {
            return Err(DAMAGED);
        }
        let start = out.len();
        out.resize(start + length, 0);
        let written = snap::raw::Decoder::new().decompress(block, &mut out[start..]).map_err(|_| DAMAGED)?;
        if written == length { Ok(()) } else { Err(DAMAGED) }
    }
}
