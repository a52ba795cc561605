//! Compression codecs of record batches. Decompression is bounded: a bomb is an error, never an allocation.

use crate::batch::BatchError;
use bytes::Bytes;

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
    /// The codec of these attribute bits; `None` for 5 to 7.
    #[must_use]
    pub fn from_bits(bits: u16) -> Option<Codec> { let _ = bits; todo!() }
    /// Kafka's name: `none`, `gzip`, `snappy`, `lz4`, `zstd`.
    #[must_use]
    pub fn name(self) -> &'static str { todo!() }
    /// Attribute bits.
    #[must_use]
    pub fn bits(self) -> u16 { todo!() }
    /// Compresses `raw`. Snappy comes out in xerial's framing, as Kafka's clients write it.
    #[must_use]
    pub fn compress(self, raw: &[u8]) -> Bytes { let _ = raw; todo!() }
    /// Decompresses `packed`, refusing to make more than `max` bytes.
    ///
    /// # Errors
    /// `Corrupt` if the stream is damaged, cut, or has bytes left over; `InflatedTooLarge` past `max`.
    pub fn decompress(self, packed: &Bytes, max: usize) -> Result<Bytes, BatchError> { let _ = (packed, max); todo!() }
}

impl std::str::FromStr for Codec {
    type Err = ();
    fn from_str(name: &str) -> Result<Codec, ()> { let _ = name; todo!() }
}
