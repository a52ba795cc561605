//! Compression codecs of record batches. Decompression is bounded: a bomb is an error, never an allocation.
//!
//! No codec allocates by what a header claims; memory follows the bytes received and the bytes made.

mod lz4;
mod snappy;
mod zstandard;

use bytes::Bytes;
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
    /// LZ4 frame format, one or several frames.
    Lz4,
    /// Zstandard, with or without content size, one or several frames.
    Zstd,
}

/// Why a stream does not decompress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The stream is damaged, cut, or followed by bytes that are none of it.
    #[error("{0}")]
    Corrupt(&'static str),
    /// It makes more bytes than the caller allows.
    #[error("decompresses to more than {max} bytes")]
    TooLarge {
        /// The bound.
        max: usize,
    },
}

/// The name is no codec.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no codec `{0}`; there are none, gzip, snappy, lz4, zstd")]
pub struct UnknownCodec(pub String);

impl Codec {
    /// Every codec, in order of its bits.
    pub const ALL: [Codec; 5] = [Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd];

    /// The codec of these attribute bits; `None` for 5 to 7.
    #[must_use]
    pub fn from_bits(bits: u16) -> Option<Codec> {
        Codec::ALL.get(usize::from(bits)).copied()
    }

    /// Kafka's name: `none`, `gzip`, `snappy`, `lz4`, `zstd`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Codec::None => "none",
            Codec::Gzip => "gzip",
            Codec::Snappy => "snappy",
            Codec::Lz4 => "lz4",
            Codec::Zstd => "zstd",
        }
    }

    /// Attribute bits.
    #[must_use]
    pub fn bits(self) -> u16 {
        match self {
            Codec::None => 0,
            Codec::Gzip => 1,
            Codec::Snappy => 2,
            Codec::Lz4 => 3,
            Codec::Zstd => 4,
        }
    }

    /// Compresses `raw`. Snappy comes out in xerial's framing, as Kafka's clients write it.
    ///
    /// What comes out is what the oldest Kafka clients read: one gzip member, one LZ4 frame of independent blocks, one zstd frame.
    #[must_use]
    pub fn compress(self, raw: &[u8]) -> Bytes {
        match self {
            Codec::None => Bytes::copy_from_slice(raw),
            Codec::Gzip => deflate_gzip(raw).into(),
            Codec::Snappy => snappy::deflate(raw).into(),
            Codec::Lz4 => lz4::deflate(raw).into(),
            Codec::Zstd => zstandard::deflate(raw).into(),
        }
    }

    /// Decompresses `packed`, refusing to make more than `max` bytes.
    ///
    /// # Errors
    /// `Corrupt` if the stream is damaged, cut, or has bytes left over; `TooLarge` past `max`.
    pub fn decompress(self, packed: &Bytes, max: usize) -> Result<Bytes, CodecError> {
        match self {
            Codec::None if packed.len() > max => Err(CodecError::TooLarge { max }),
            Codec::None => Ok(packed.clone()),
            Codec::Gzip => inflate_gzip(packed, max).map(Bytes::from),
            Codec::Snappy => snappy::inflate(packed, max).map(Bytes::from),
            Codec::Lz4 => lz4::inflate(packed, max, lz4::Dialect::Any).map(Bytes::from),
            Codec::Zstd => zstandard::inflate(packed, max).map(Bytes::from),
        }
    }

    /// As `decompress`, but refuses what some Kafka client could not read: what is stored, every consumer has to read.
    ///
    /// Kafka's Java client reads one LZ4 frame of independent blocks; it takes no linked blocks and overlooks further frames.
    ///
    /// # Errors
    /// As `decompress`.
    pub fn decompress_portable(self, packed: &Bytes, max: usize) -> Result<Bytes, CodecError> {
        match self {
            Codec::Lz4 => lz4::inflate(packed, max, lz4::Dialect::Kafka).map(Bytes::from),
            Codec::None | Codec::Gzip | Codec::Snappy | Codec::Zstd => self.decompress(packed, max),
        }
    }
}

impl std::str::FromStr for Codec {
    type Err = UnknownCodec;

    /// Reads what `name` writes.
    fn from_str(name: &str) -> Result<Codec, UnknownCodec> {
        Codec::ALL.into_iter().find(|codec| codec.name() == name).ok_or_else(|| UnknownCodec(name.to_owned()))
    }
}

impl std::fmt::Display for Codec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

fn deflate_gzip(raw: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::with_capacity(raw.len() / 2), flate2::Compression::default());
    encoder.write_all(raw).expect("a `Vec` takes every write");
    encoder.finish().expect("a `Vec` takes every write")
}

fn inflate_gzip(packed: &[u8], max: usize) -> Result<Vec<u8>, CodecError> {
    let mut raw = Vec::with_capacity(first_guess(packed.len(), max));
    // One byte past the bound tells a stream that ends at it from one that goes on.
    let bound = u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1);
    let read = flate2::read::MultiGzDecoder::new(packed).take(bound).read_to_end(&mut raw);
    if raw.len() > max {
        return Err(CodecError::TooLarge { max });
    }
    read.map_err(|_| CodecError::Corrupt("damaged gzip stream"))?;
    Ok(raw)
}

/// Bytes to reserve before anything is decompressed: a small multiple of what was received.
fn first_guess(packed: usize, max: usize) -> usize {
    packed.saturating_mul(4).min(max)
}

#[cfg(test)]
mod tests;
