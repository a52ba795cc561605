//! Snappy, raw or in the framing of `xerial/snappy-java`, which Kafka's clients write. Never allocates by a block's claim.

use super::{CodecError, first_guess};

/// Opens xerial's framing; two 32-bit numbers follow, its version and the oldest version that reads it.
const MAGIC: [u8; 8] = *b"\x82SNAPPY\0";
/// Both numbers, as the Java library writes them and as some ports do on little-endian machines.
const VERSIONS: [[u8; 8]; 2] = [[0, 0, 0, 1, 0, 0, 0, 1], [1, 0, 0, 0, 1, 0, 0, 0]];
/// Bytes of input per block, as the Java library writes by default.
const BLOCK_BYTES: usize = 32 << 10;
/// A copy of 64 bytes takes 3: no honest block makes more from each of its bytes.
const RATIO_MAX: usize = 22;

pub(super) fn deflate(raw: &[u8]) -> Vec<u8> {
    let mut framed = Vec::with_capacity(MAGIC.len() + VERSIONS[0].len() + raw.len() / 2);
    framed.extend_from_slice(&MAGIC);
    framed.extend_from_slice(&VERSIONS[0]);
    let mut encoder = snap::raw::Encoder::new();
    for block in raw.chunks(BLOCK_BYTES) {
        let packed = encoder.compress_vec(block).expect("a block of 32 KiB is within snappy's 4 GiB");
        let len = i32::try_from(packed.len()).expect("snappy adds a sixth at most");
        framed.extend_from_slice(&len.to_be_bytes());
        framed.extend_from_slice(&packed);
    }
    framed
}

pub(super) fn inflate(packed: &[u8], max: usize) -> Result<Vec<u8>, CodecError> {
    let mut raw = Vec::with_capacity(first_guess(packed.len(), max));
    if !packed.starts_with(&MAGIC) {
        inflate_block(packed, &mut raw, max)?;
        return Ok(raw);
    }
    let mut rest = packed;
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix(&MAGIC) {
            // Streams that were concatenated carry the header again; as a block length the magic would be negative.
            let versions = VERSIONS.iter().find_map(|version| after.strip_prefix(version));
            rest = versions.ok_or(CodecError::Corrupt("snappy framing of an unknown version"))?;
            continue;
        }
        let (len, after) = rest.split_first_chunk().ok_or(CodecError::Corrupt("snappy stream is cut"))?;
        let len = usize::try_from(i32::from_be_bytes(*len))
            .map_err(|_| CodecError::Corrupt("snappy block of negative length"))?;
        let (block, after) = after.split_at_checked(len).ok_or(CodecError::Corrupt("snappy stream is cut"))?;
        inflate_block(block, &mut raw, max)?;
        rest = after;
    }
    Ok(raw)
}

fn inflate_block(block: &[u8], raw: &mut Vec<u8>, max: usize) -> Result<(), CodecError> {
    let damaged = |_| CodecError::Corrupt("damaged snappy block");
    let claim = snap::raw::decompress_len(block).map_err(damaged)?;
    if claim > block.len().saturating_mul(RATIO_MAX) {
        return Err(CodecError::Corrupt("snappy block that claims more than it can hold"));
    }
    let start = raw.len();
    if claim > max - start {
        return Err(CodecError::TooLarge { max });
    }
    raw.resize(start + claim, 0);
    let made = snap::raw::Decoder::new().decompress(block, &mut raw[start..]).map_err(damaged)?;
    raw.truncate(start + made);
    Ok(())
}
