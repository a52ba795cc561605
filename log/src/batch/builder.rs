//! Encodes records into one batch. Producers, markers and tests build batches here; the broker's produce path never does.

use super::layout::{self, MAGIC, attribute, put_varint, put_varlong};
use super::{Batch, Header, ProducerStamp};
use crate::codec::Codec;
use crate::ids::TimestampMs;
use crate::limits::BATCH_HEADER_BYTES;
use bytes::Bytes;

/// Encodes records into one batch, base offset 0. Offsets are dense.
#[derive(Debug)]
pub struct BatchBuilder {
    codec: Codec,
    producer: Option<ProducerStamp>,
    transactional: bool,
    control: bool,
    raw: Vec<u8>,
    /// Room in which the next record is laid out before its length is known.
    body: Vec<u8>,
    count: i32,
    base_timestamp: i64,
    max_timestamp: i64,
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
            control: false,
            raw: Vec::new(),
            body: Vec::new(),
            count: 0,
            base_timestamp: TimestampMs::NONE.0,
            max_timestamp: i64::MIN,
        }
    }

    /// Marks the batch as an idempotent producer's.
    #[must_use]
    pub fn producer(self, stamp: ProducerStamp) -> BatchBuilder {
        BatchBuilder { producer: Some(stamp), ..self }
    }

    /// Marks the batch transactional.
    #[must_use]
    pub fn transactional(self) -> BatchBuilder {
        BatchBuilder { transactional: true, ..self }
    }

    /// Marks the batch as one of control records.
    #[must_use]
    pub(super) fn control(self) -> BatchBuilder {
        BatchBuilder { control: true, ..self }
    }

    /// Adds a record; returns the batch's size so far, uncompressed, header included.
    ///
    /// Panics past 2 GiB, which the format cannot carry; callers bound their batches far below.
    pub fn push(&mut self, record: NewRecord<'_>) -> usize {
        let timestamp = record.timestamp.0;
        if self.count == 0 {
            self.base_timestamp = timestamp;
        }
        self.max_timestamp = self.max_timestamp.max(timestamp);
        self.body.clear();
        self.body.push(0);
        put_varlong(&mut self.body, timestamp.wrapping_sub(self.base_timestamp));
        put_varint(&mut self.body, self.count);
        put_nullable(&mut self.body, record.key);
        put_nullable(&mut self.body, record.value);
        put_len(&mut self.body, record.headers.len());
        for header in record.headers {
            put_nullable(&mut self.body, Some(&header.name));
            put_nullable(&mut self.body, header.value.as_deref());
        }
        put_len(&mut self.raw, self.body.len());
        self.raw.extend_from_slice(&self.body);
        self.count = self.count.checked_add(1).expect("a batch of 2 GiB holds fewer records than 2^31");
        self.size()
    }

    /// Records so far.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.count.cast_unsigned()
    }

    /// Whether nothing was pushed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Size so far in bytes, uncompressed, header included.
    #[must_use]
    pub fn size(&self) -> usize {
        BATCH_HEADER_BYTES + self.raw.len()
    }

    /// The finished batch.
    ///
    /// Panics when empty: a batch has at least one record. Also when transactional without a producer: nobody could end it.
    #[must_use]
    pub fn build(self) -> Batch {
        assert!(!self.is_empty(), "a batch has at least one record");
        assert!(!self.transactional || self.producer.is_some(), "a transaction is a producer's");
        let records = match self.codec {
            Codec::None => Bytes::from(self.raw),
            codec => codec.compress(&self.raw),
        };
        let mut attributes = self.codec.bits();
        if self.transactional {
            attributes |= attribute::TRANSACTIONAL;
        }
        if self.control {
            attributes |= attribute::CONTROL;
        }
        let mut head = [0; BATCH_HEADER_BYTES];
        head[layout::MAGIC_AT] = MAGIC.cast_unsigned();
        layout::LEADER_EPOCH.set(&mut head, -1);
        layout::ATTRIBUTES.set(&mut head, attributes.cast_signed());
        layout::LAST_OFFSET_DELTA.set(&mut head, self.count - 1);
        layout::BASE_TIMESTAMP.set(&mut head, self.base_timestamp);
        layout::MAX_TIMESTAMP.set(&mut head, self.max_timestamp);
        layout::RECORD_COUNT.set(&mut head, self.count);
        let producer = self.producer.map(|stamp| {
            let id = i64::try_from(stamp.id.0).expect("producer ids are handed out from 0, far below 2^63");
            let epoch = i16::try_from(stamp.epoch.0).expect("producer epochs end at 32 766 (rule X1)");
            (id, epoch, stamp.base_sequence)
        });
        let (id, epoch, base_sequence) = producer.unwrap_or((-1, -1, -1));
        layout::PRODUCER_ID.set(&mut head, id);
        layout::PRODUCER_EPOCH.set(&mut head, epoch);
        layout::BASE_SEQUENCE.set(&mut head, base_sequence);
        Batch::seal(head, records)
    }
}

impl Batch {
    /// Most offsets that one `hole` can take up: Kafka's last offset delta ends at 2^31 - 1.
    pub const HOLE_SPAN_MAX: u32 = 1 << 31;

    /// A batch without records and without a time, that only takes up `span` offsets. Kafka's clients pass over it, as over one that
    /// compaction has emptied.
    ///
    /// Panics unless `span` is within 1..=`HOLE_SPAN_MAX`.
    #[must_use]
    pub fn hole(span: u32) -> Batch {
        let last = span.checked_sub(1).and_then(|last| i32::try_from(last).ok());
        let mut head = [0; BATCH_HEADER_BYTES];
        head[layout::MAGIC_AT] = MAGIC.cast_unsigned();
        layout::LEADER_EPOCH.set(&mut head, -1);
        layout::LAST_OFFSET_DELTA.set(&mut head, last.expect("a hole takes up 1 to 2^31 offsets"));
        layout::BASE_TIMESTAMP.set(&mut head, TimestampMs::NONE.0);
        layout::MAX_TIMESTAMP.set(&mut head, TimestampMs::NONE.0);
        layout::PRODUCER_ID.set(&mut head, -1);
        layout::PRODUCER_EPOCH.set(&mut head, -1);
        layout::BASE_SEQUENCE.set(&mut head, -1);
        Batch::seal(head, Bytes::new())
    }

    /// Joins a header to its records: sets length and CRC.
    ///
    /// Panics past 2 GiB, which the format cannot carry.
    pub(super) fn seal(mut head: [u8; BATCH_HEADER_BYTES], records: Bytes) -> Batch {
        let len = BATCH_HEADER_BYTES - layout::LEN_COUNTS_FROM + records.len();
        layout::LEN.set(&mut head, i32::try_from(len).expect("a batch is smaller than 2 GiB"));
        let crc = crc32c::crc32c_append(crc32c::crc32c(&head[layout::CRC_COVERS_FROM..]), &records);
        layout::CRC.set(&mut head, crc.cast_signed());
        Batch { head, records }
    }
}

fn put_nullable(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    match bytes {
        None => put_varint(out, -1),
        Some(bytes) => {
            put_len(out, bytes.len());
            out.extend_from_slice(bytes);
        }
    }
}

fn put_len(out: &mut Vec<u8>, len: usize) {
    put_varint(out, i32::try_from(len).expect("a batch is smaller than 2 GiB"));
}
