//! Decompression of any bytes, in each codec: never past the bound, never a panic, the same at a tight bound as at a wide one.

use crate::codec::{Codec, CodecError};
use crate::testing::{Seed, memory};
use bytes::Bytes;

const WIDE: usize = 1 << 20;

/// Reads the input behind its first byte, which chooses the codec. Whether it decompresses.
pub fn codec(input: &[u8]) -> bool {
    let Some((&selector, packed)) = input.split_first() else { return false };
    let codec = Codec::ALL[usize::from(selector) % Codec::ALL.len()];
    let packed = Bytes::copy_from_slice(packed);
    // Output that grows is for a moment held twice; a decoder's own window is at most a few MiB.
    let raw = memory::within(8 * WIDE + input.len(), || codec.decompress(&packed, WIDE));
    if let Ok(portable) = codec.decompress_portable(&packed, WIDE) {
        assert_eq!(raw, Ok(portable), "what is portable is read alike");
    }
    let Ok(raw) = raw else { return false };
    assert!(raw.len() <= WIDE, "the bound holds");
    assert_eq!(codec.decompress(&packed, raw.len()), Ok(raw.clone()), "the bound is exact");
    if let Some(max) = raw.len().checked_sub(1) {
        assert_eq!(codec.decompress(&packed, max), Err(CodecError::TooLarge { max }), "the bound is exact");
    }
    assert_eq!(codec.decompress(&codec.compress(&raw), raw.len()), Ok(raw), "what is read can be written");
    true
}

/// Text that compresses, bytes that do not, and nothing, in each codec.
#[must_use]
pub fn codec_seeds() -> Vec<Seed> {
    let text = b"to be or not to be, that is the question; to be or not to be".repeat(3);
    let noise: Vec<u8> = (0..64u32).map(|at| ((at * at * 37) >> 3) as u8).collect();
    let all = (0u8..).zip(Codec::ALL);
    all.flat_map(|(selector, codec)| {
        [("text", &text[..]), ("noise", &noise), ("nothing", b"")]
            .map(|(name, raw)| (format!("{codec}-{name}"), [&[selector], &codec.compress(raw)[..]].concat()))
    })
    .collect()
}
