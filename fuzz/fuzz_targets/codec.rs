//! Decompression of any bytes, in each codec: never past the bound, never a panic, and the same at a tight bound as at a wide one.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use millpond_log::codec::{Codec, CodecError};

const WIDE: usize = 1 << 20;

fuzz_target!(|input: &[u8]| {
    let Some((&selector, packed)) = input.split_first() else { return };
    let codec = Codec::ALL[usize::from(selector) % Codec::ALL.len()];
    let packed = Bytes::copy_from_slice(packed);
    let raw = codec.decompress(&packed, WIDE);
    if let Ok(portable) = codec.decompress_portable(&packed, WIDE) {
        assert_eq!(raw, Ok(portable), "what is portable is read alike");
    }
    let Ok(raw) = raw else { return };
    assert!(raw.len() <= WIDE, "the bound holds");
    assert_eq!(codec.decompress(&packed, raw.len()), Ok(raw.clone()), "the bound is exact");
    if let Some(max) = raw.len().checked_sub(1) {
        assert_eq!(codec.decompress(&packed, max), Err(CodecError::TooLarge { max }), "the bound is exact");
    }
    assert_eq!(codec.decompress(&codec.compress(&raw), raw.len()), Ok(raw), "what is read can be written");
});
