//! Zstandard: streams with or without content size, one or several frames. The output grows as bytes are made.

use super::{CodecError, first_guess};
use zstd::stream::raw::{DParameter, Decoder, InBuffer, Operation, OutBuffer};
use zstd::zstd_safe;

/// zstd's own default, which Kafka's clients keep.
const LEVEL: i32 = 3;
/// Largest window a frame may ask for, as a power of two: what zstd's highest level makes, and the most other readers take.
/// The library reserves it as address space; only bytes made are touched.
const WINDOW_LOG_MAX: u32 = 27;
/// Room for one block, so that the output never grows by less.
const BLOCK_BYTES: usize = 128 << 10;
/// A frame's claim is believed up to this multiple of the bytes received: then it is made in one step, with no window.
const RATIO_BELIEVED: usize = 32;

pub(super) fn deflate(raw: &[u8]) -> Vec<u8> {
    zstd::bulk::compress(raw, LEVEL).expect("compressing into a `Vec` of the bound's size cannot fail")
}

pub(super) fn inflate(packed: &[u8], max: usize) -> Result<Vec<u8>, CodecError> {
    let damaged = |_| CodecError::Corrupt("damaged zstd stream");
    let mut decoder = Decoder::new().map_err(damaged)?;
    decoder.set_parameter(DParameter::WindowLogMax(WINDOW_LOG_MAX)).map_err(damaged)?;
    let mut raw = Vec::with_capacity(capacity(packed, max));
    let mut input = InBuffer::around(packed);
    loop {
        if raw.len() == raw.capacity() {
            // One byte past the bound tells a stream that ends at it from one that goes on.
            raw.reserve_exact(raw.len().max(BLOCK_BYTES).min(max + 1 - raw.len()));
        }
        let before = (input.pos(), raw.len());
        let made = raw.len();
        let mut output = OutBuffer::around_pos(&mut raw, made);
        let hint = decoder.run(&mut input, &mut output).map_err(damaged)?;
        if raw.len() > max {
            return Err(CodecError::TooLarge { max });
        }
        let consumed = input.pos() == packed.len();
        if consumed && hint == 0 {
            return Ok(raw);
        }
        let stuck = (input.pos(), raw.len()) == before;
        if stuck || (consumed && raw.len() < raw.capacity()) {
            return Err(CodecError::Corrupt("zstd stream is cut"));
        }
    }
}

fn capacity(packed: &[u8], max: usize) -> usize {
    match zstd_safe::get_frame_content_size(packed) {
        Ok(Some(claim)) => {
            let claim = usize::try_from(claim).unwrap_or(usize::MAX);
            claim.min(packed.len().saturating_mul(RATIO_BELIEVED)).min(max)
        }
        _ => first_guess(packed.len(), max),
    }
}
