//! Encoding records into a batch: what producers do once, and brokers only where a topic asks for another codec.

use super::{Batch, Header, ProducerStamp, TRANSACTIONAL_BIT, field, varint};
use crate::codec::Codec;
use crate::ids::TimestampMs;
use crate::limits::BATCH_HEADER_BYTES;
use bytes::{BufMut, Bytes, BytesMut};

/// Encodes records into one batch, base offset 0. Offsets are dense.
pub struct BatchBuilder {
    codec: Codec,
    producer: Option<ProducerStamp>,
    transactional: bool,
    records: BytesMut,
    scratch: BytesMut,
    count: u32,
    base_timestamp: TimestampMs,
    max_timestamp: TimestampMs,
}

/// Fields of a record to encode.
#[derive(Clone, Copy, Debug)]
pub struct NewRecord<'a> {
    /// Its time.
    pub timestamp: TimestampMs,
    /// Key, or null.
    pub key: Option<&'a [u8]>,
    /// Value, or null.
    pub value: Option<&'a [u8]>,
    /// Headers, in order.
    pub headers: &'a [Header],
}

impl BatchBuilder {
    /// An empty builder.
    #[must_use]
    pub fn new(codec: Codec) -> BatchBuilder {
        BatchBuilder {
            codec,
            producer: None,
            transactional: false,
            records: BytesMut::new(),
            scratch: BytesMut::new(),
            count: 0,
            base_timestamp: TimestampMs::NONE,
            max_timestamp: TimestampMs::NONE,
        }
    }

    /// Marks the batch as an idempotent producer's.
    #[must_use]
    pub fn producer(mut self, stamp: ProducerStamp) -> BatchBuilder {
        self.producer = Some(stamp);
        self
    }

    /// Marks the batch transactional.
    #[must_use]
    pub fn transactional(mut self) -> BatchBuilder {
        self.transactional = true;
        self
    }

    /// Adds a record; returns the batch's size so far, uncompressed, header included.
    pub fn push(&mut self, record: NewRecord<'_>) -> usize {
        if self.count == 0 {
            self.base_timestamp = record.timestamp;
        }
        self.max_timestamp = self.max_timestamp.max(record.timestamp);
        let body = &mut self.scratch;
        body.clear();
        body.put_u8(0);
        varint::put(body, record.timestamp.0.wrapping_sub(self.base_timestamp.0));
        varint::put(body, i64::from(self.count));
        put_nullable(body, record.key);
        put_nullable(body, record.value);
        varint::put(body, record.headers.len() as i64);
        for header in record.headers {
            put_nullable(body, Some(&header.name));
            put_nullable(body, header.value.as_deref());
        }
        varint::put(&mut self.records, body.len() as i64);
        self.records.extend_from_slice(body);
        self.count += 1;
        self.size()
    }

    /// Records so far.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.count
    }

    /// Whether nothing was pushed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Size so far in bytes, uncompressed, header included.
    #[must_use]
    pub fn size(&self) -> usize {
        BATCH_HEADER_BYTES + self.records.len()
    }

    /// The finished batch.
    ///
    /// Panics when empty: a batch has at least one record.
    #[must_use]
    pub fn build(self) -> Batch {
        assert!(self.count > 0, "a batch has at least one record");
        let records: Bytes = match self.codec {
            Codec::None => self.records.freeze(),
            codec => codec.compress(&self.records),
        };
        let transactional = if self.transactional { TRANSACTIONAL_BIT } else { 0 };
        let (producer_id, epoch, sequence) = match self.producer {
            Some(stamp) => (stamp.id.0 as i64, stamp.epoch.0 as i16, stamp.base_sequence),
            None => (-1, -1, -1),
        };
        let counted = BATCH_HEADER_BYTES - field::UNCOUNTED.len() + records.len();
        let mut batch = Batch { head: [0; BATCH_HEADER_BYTES], records };
        batch.write(field::LENGTH, i32::try_from(counted).expect("a batch is below 2 GiB").to_be_bytes());
        batch.write(field::LEADER_EPOCH, (-1_i32).to_be_bytes());
        batch.write(field::MAGIC, [2]);
        batch.write(field::ATTRIBUTES, (self.codec.bits() | transactional).to_be_bytes());
        batch.write(field::LAST_OFFSET_DELTA, (self.count - 1).to_be_bytes());
        batch.write(field::BASE_TIMESTAMP, self.base_timestamp.0.to_be_bytes());
        batch.write(field::MAX_TIMESTAMP, self.max_timestamp.0.to_be_bytes());
        batch.write(field::PRODUCER_ID, producer_id.to_be_bytes());
        batch.write(field::PRODUCER_EPOCH, epoch.to_be_bytes());
        batch.write(field::BASE_SEQUENCE, sequence.to_be_bytes());
        batch.write(field::RECORD_COUNT, self.count.to_be_bytes());
        batch.seal();
        batch
    }
}

fn put_nullable(out: &mut BytesMut, bytes: Option<&[u8]>) {
    match bytes {
        None => varint::put(out, -1),
        Some(bytes) => {
            varint::put(out, bytes.len() as i64);
            out.extend_from_slice(bytes);
        }
    }
}
