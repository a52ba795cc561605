//! What must hold of any bytes that are read as `RecordBatches`, the message that is written by hand.
//!
//! For the fuzz target, and for an ordinary test that replays it.

use crate::RecordBatches;
use bytes::Bytes;
use millpond_log::testing::Seed;
use millpond_log::testing::memory;
use prost::Message;

/// What prost generates for the message.
#[derive(Clone, PartialEq, Message)]
struct Generated {
    #[prost(bytes = "bytes", tag = "1")]
    data: Bytes,
}

/// What a `DecodeError` and a buffer shared for the first time take. Batches are never copied.
const DECODING_BYTES: usize = 512;

/// Reads the input as the message. It is taken if, and as, prost's own decoder takes it.
pub fn record_batches(input: &[u8]) -> bool {
    let wire = Bytes::copy_from_slice(input);
    let ours = memory::within(DECODING_BYTES, || RecordBatches::decode(wire.clone()));
    let generated = Generated::decode(wire);
    assert_eq!(ours.is_ok(), generated.is_ok(), "what is taken is the same");
    let (Ok(ours), Ok(generated)) = (ours, generated) else { return false };
    assert_eq!(ours.size(), generated.data.len());
    assert_eq!((ours.encoded_len(), ours.encode_to_vec()), (generated.encoded_len(), generated.encode_to_vec()));
    assert_eq!(
        RecordBatches::decode(ours.encode_to_vec().as_slice()).as_ref(),
        Ok(&ours),
        "what is read can be written"
    );
    assert_eq!(ours.into_bytes(), generated.data);
    true
}

/// No batches, a few bytes of them, and a message of a later version: with a field before and one after.
#[must_use]
pub fn record_batches_seeds() -> Vec<Seed> {
    let some = RecordBatches::from(Bytes::from_static(b"batches")).encode_to_vec();
    let later = [&[0x10, 0x05][..], &some, &[0x1a, 0x02, b'h', b'i'], &some].concat();
    vec![("none".to_owned(), Vec::new()), ("some".to_owned(), some), ("later".to_owned(), later)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_log::testing::{check, memory::Meter};

    #[global_allocator]
    static METER: Meter = Meter;

    #[test]
    fn record_batches_hold() {
        check("record_batches", &record_batches_seeds(), record_batches);
    }
}
