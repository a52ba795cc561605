//! The message `RecordBatches`, written by hand so that batches go from the log into the transport's buffer in one copy.
//!
//! The wire is that of `message RecordBatches { bytes data = 1; }`. Never looks into a batch.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use millpond_log::Batch;
use prost::DecodeError;
use prost::encoding::{self, DecodeContext, WireType};

/// Whole record batches, one after the other: as they were received, or as they are to be sent.
#[derive(Clone, Default)]
pub struct RecordBatches {
    received: Bytes,
    to_send: Vec<Batch>,
}

const DATA_TAG: u32 = 1;

impl RecordBatches {
    /// The bytes of all batches. Free for what was received; joins what was made from batches.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        if self.to_send.is_empty() {
            return self.received;
        }
        let mut joined = BytesMut::with_capacity(self.size());
        self.put(&mut joined);
        joined.freeze()
    }

    /// Size of all batches, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.received.len() + self.to_send.iter().map(Batch::size).sum::<usize>()
    }

    fn put(&self, out: &mut impl BufMut) {
        out.put_slice(&self.received);
        for batch in &self.to_send {
            batch.put(out);
        }
    }
}

impl From<Vec<Batch>> for RecordBatches {
    fn from(to_send: Vec<Batch>) -> RecordBatches {
        RecordBatches { received: Bytes::new(), to_send }
    }
}

impl From<Bytes> for RecordBatches {
    fn from(received: Bytes) -> RecordBatches {
        RecordBatches { received, to_send: Vec::new() }
    }
}

impl PartialEq for RecordBatches {
    /// Equal bytes are equal, however they are held.
    fn eq(&self, other: &RecordBatches) -> bool {
        self.size() == other.size() && self.clone().into_bytes() == other.clone().into_bytes()
    }
}

impl Eq for RecordBatches {}

impl std::hash::Hash for RecordBatches {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.clone().into_bytes().hash(state);
    }
}

impl std::fmt::Debug for RecordBatches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RecordBatches({} bytes)", self.size())
    }
}

impl prost::Message for RecordBatches {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        let size = self.size();
        if size > 0 {
            encoding::encode_key(DATA_TAG, WireType::LengthDelimited, buf);
            encoding::encode_varint(size as u64, buf);
            self.put(buf);
        }
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        if tag == DATA_TAG {
            self.to_send.clear();
            encoding::bytes::merge(wire_type, &mut self.received, buf, ctx)
        } else {
            encoding::skip_field(wire_type, tag, buf, ctx)
        }
    }

    fn encoded_len(&self) -> usize {
        match self.size() {
            0 => 0,
            size => encoding::key_len(DATA_TAG) + encoding::encoded_len_varint(size as u64) + size,
        }
    }

    fn clear(&mut self) {
        *self = RecordBatches::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    /// What prost would generate for the message.
    #[derive(Clone, PartialEq, Message)]
    struct Generated {
        #[prost(bytes = "bytes", tag = "1")]
        data: Bytes,
    }

    #[test]
    fn wire_is_that_of_the_proto_file() {
        for data in [&b""[..], b"x", &[7; 200], &[9; 70_000]] {
            let data = Bytes::copy_from_slice(data);
            let generated = Generated { data: data.clone() };
            let ours = RecordBatches::from(data.clone());
            assert_eq!(ours.encode_to_vec(), generated.encode_to_vec());
            assert_eq!(ours.encoded_len(), generated.encoded_len());
            let read = RecordBatches::decode(generated.encode_to_vec().as_slice()).expect("decodes");
            assert_eq!(read.into_bytes(), data);
        }
    }

    #[test]
    fn unknown_fields_are_skipped_and_damage_is_an_error() {
        let mut wire = Generated { data: Bytes::from_static(b"batch") }.encode_to_vec();
        wire.extend([0x10, 0x05]);
        assert_eq!(RecordBatches::decode(wire.as_slice()).expect("decodes").into_bytes(), "batch");
        assert!(RecordBatches::decode(&wire[..4]).is_err());
        assert!(RecordBatches::decode(&[0x08, 0x01][..]).is_err(), "a varint where bytes belong");
    }

    #[test]
    fn received_bytes_are_not_copied() {
        let wire = Bytes::from(Generated { data: Bytes::from(vec![3; 4096]) }.encode_to_vec());
        let read = RecordBatches::decode(wire.clone()).expect("decodes").into_bytes();
        assert!(wire.as_ptr_range().contains(&read.as_ptr()));
    }
}
