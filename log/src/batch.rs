//! Kafka record batch v2: the zero-copy view that travels unchanged from producer to bucket, its validation and its encoding.
//!
//! A batch is never re-encoded: placing it in a partition patches the header, which is held apart from the shared records.

use crate::codec::Codec;
use crate::ids::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, TimestampMs};
use crate::limits::BATCH_HEADER_BYTES;
use bytes::{BufMut, Bytes};

/// One record batch: the header owned, so that it can be patched; the records shared with whoever received them.
#[derive(Clone, PartialEq, Eq)]
pub struct Batch {
    head: [u8; BATCH_HEADER_BYTES],
    records: Bytes,
}

/// Producer fields of an idempotent batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerStamp {
    /// Who wrote it.
    pub id: ProducerId,
    /// Which instance of it.
    pub epoch: ProducerEpoch,
    /// Sequence number of the first record; wraps at `i32::MAX` to 0.
    pub base_sequence: i32,
}

/// Which clock a batch's timestamps come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimestampType {
    /// The producer's.
    #[default]
    CreateTime,
    /// The broker's, when it appended.
    LogAppendTime,
}

/// Why bytes are no batch, or a batch is not acceptable. Each maps to one of Kafka's error codes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// The bytes end inside the batch.
    #[error("batch is cut: {have} of {need} bytes")]
    Cut {
        /// Bytes needed.
        need: usize,
        /// Bytes there.
        have: usize,
    },
    /// Header or records contradict themselves or the format.
    #[error("malformed batch: {0}")]
    Malformed(&'static str),
    /// The CRC-32C does not match, or a compressed stream is damaged.
    #[error("corrupt batch: {0}")]
    Corrupt(&'static str),
    /// Larger than the topic's `max.message.bytes`.
    #[error("batch of {size} bytes is over max.message.bytes={max}; send smaller batches or raise the topic's limit")]
    TooLarge {
        /// Size of the batch in bytes, as received.
        size: usize,
        /// The limit.
        max: u32,
    },
    /// Decompresses to more than the bound.
    #[error("records decompress to more than {max} bytes")]
    InflatedTooLarge {
        /// The bound.
        max: usize,
    },
    /// A timestamp outside the topic's bounds.
    #[error("timestamp {timestamp} is outside what the topic accepts (message.timestamp.before.max.ms, after.max.ms)")]
    Timestamp {
        /// The offending timestamp.
        timestamp: i64,
    },
    /// Magic 0 or 1: older than batch v2.
    #[error("message format {0} is not supported; use a client that writes record batch v2")]
    OldFormat(i8),
}

impl BatchError {
    /// The code a client gets.
    #[must_use]
    pub fn code(&self) -> crate::ErrorCode { todo!() }
}

/// What a partition asks of a batch beyond being well formed.
#[derive(Clone, Copy, Debug)]
pub struct ProduceRules {
    /// `max.message.bytes`, compared with the batch as received (compressed).
    pub batch_bytes_max: u32,
    /// Keyless records are refused.
    pub compacted: bool,
    /// `message.timestamp.type`; with `LogAppendTime` the timestamp bounds do not apply.
    pub timestamp_type: TimestampType,
    /// `message.timestamp.before.max.ms`.
    pub timestamp_before_max_ms: i64,
    /// `message.timestamp.after.max.ms`.
    pub timestamp_after_max_ms: i64,
    /// The broker's wall clock.
    pub now: TimestampMs,
    /// `compression.type` unless `producer`: a batch of another codec is re-encoded.
    pub codec: Option<Codec>,
}

impl Batch {
    /// Takes the first whole batch off `buf`, sharing its bytes. `Ok(None)` when `buf` is empty.
    ///
    /// Checks lengths and magic only.
    /// # Errors
    /// `Cut` when `buf` ends inside the batch; `Malformed` or `OldFormat` when the header is no batch header.
    pub fn take(buf: &mut Bytes) -> Result<Option<Batch>, BatchError> { let _ = buf; todo!() }
    /// Size in bytes, header included.
    #[must_use]
    pub fn size(&self) -> usize { BATCH_HEADER_BYTES + self.records.len() }
    /// The header's bytes.
    #[must_use]
    pub fn head(&self) -> &[u8; BATCH_HEADER_BYTES] { &self.head }
    /// The records' bytes, compressed as the producer compressed them.
    #[must_use]
    pub fn records_bytes(&self) -> &Bytes { &self.records }
    /// Appends the whole batch to `out`.
    pub fn put(&self, out: &mut impl BufMut) { out.put_slice(&self.head); out.put_slice(&self.records); }
    /// Offset of the first record.
    #[must_use]
    pub fn base_offset(&self) -> Offset { todo!() }
    /// Offset after the last record (`base + last offset delta + 1`): holes made by compaction count.
    #[must_use]
    pub fn end_offset(&self) -> Offset { todo!() }
    /// Leader epoch it was appended in.
    #[must_use]
    pub fn leader_epoch(&self) -> LeaderEpoch { todo!() }
    /// Records in it.
    #[must_use]
    pub fn record_count(&self) -> u32 { todo!() }
    /// Offsets it spans: last offset delta + 1.
    #[must_use]
    pub fn offset_span(&self) -> u32 { todo!() }
    /// The codec of its records; `None` if the bits name none.
    #[must_use]
    pub fn codec(&self) -> Option<Codec> { todo!() }
    /// Which clock its timestamps come from.
    #[must_use]
    pub fn timestamp_type(&self) -> TimestampType { todo!() }
    /// Base timestamp.
    #[must_use]
    pub fn base_timestamp(&self) -> TimestampMs { todo!() }
    /// Largest timestamp, as the producer (or the broker's stamp) says.
    #[must_use]
    pub fn max_timestamp(&self) -> TimestampMs { todo!() }
    /// Attribute bit 5.
    #[must_use]
    pub fn is_control(&self) -> bool { todo!() }
    /// Attribute bit 4.
    #[must_use]
    pub fn is_transactional(&self) -> bool { todo!() }
    /// Producer fields, if it has a producer id.
    #[must_use]
    pub fn producer(&self) -> Option<ProducerStamp> { todo!() }
    /// CRC-32C as stored.
    #[must_use]
    pub fn crc(&self) -> u32 { todo!() }
    /// Whether the stored CRC matches the bytes (rule R13).
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn verify_crc(&self) -> Result<(), BatchError> { todo!() }
    /// Puts the batch at its place in the log: base offset and leader epoch, neither of which the CRC covers.
    pub fn place(&mut self, base: Offset, epoch: LeaderEpoch) { let _ = (base, epoch); todo!() }
    /// Stamps the broker's append time (`LogAppendTime`): type bit, max timestamp, and the CRC, which then changes.
    pub fn stamp_append_time(&mut self, now: TimestampMs) { let _ = now; todo!() }
    /// Checks the batch in full, down to each record, so that nothing poisonous is ever stored.
    ///
    /// Returns the batch to append: the same one, or re-encoded where `rules.codec` asks for another codec.
    /// # Errors
    /// Every `BatchError`; nothing was changed.
    pub fn admit(self, rules: &ProduceRules) -> Result<Batch, BatchError> { let _ = rules; todo!() }
    /// Its records in order, decompressed within the bound of `limits`.
    ///
    /// # Errors
    /// As `Codec::decompress`; each record may be `Malformed`.
    pub fn records(&self) -> Result<Records, BatchError> { todo!() }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str("Batch") }
}

/// Iterator over the records of one batch. Ends after the first error.
pub struct Records {}

impl Iterator for Records {
    type Item = Result<Record, BatchError>;
    fn next(&mut self) -> Option<Self::Item> { todo!() }
}

/// One record, sharing the bytes of its (decompressed) batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Offset in the partition.
    pub offset: Offset,
    /// Its time; the batch's max timestamp under `LogAppendTime`.
    pub timestamp: TimestampMs,
    /// Key; null and empty differ.
    pub key: Option<Bytes>,
    /// Value; null (a tombstone) and empty differ.
    pub value: Option<Bytes>,
    /// Headers in order, duplicates kept. Names may be empty, values may be null.
    pub headers: Vec<Header>,
}

/// One header of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Name; UTF-8 by convention, not enforced.
    pub name: Bytes,
    /// Value; null and empty differ.
    pub value: Option<Bytes>,
}

/// Encodes records into one batch, base offset 0. Offsets are dense.
pub struct BatchBuilder {}

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
    pub fn new(codec: Codec) -> BatchBuilder { let _ = codec; todo!() }
    /// Marks the batch as an idempotent producer's.
    #[must_use]
    pub fn producer(self, stamp: ProducerStamp) -> BatchBuilder { let _ = stamp; todo!() }
    /// Marks the batch transactional.
    #[must_use]
    pub fn transactional(self) -> BatchBuilder { todo!() }
    /// Adds a record; returns the batch's size so far, uncompressed, header included.
    pub fn push(&mut self, record: NewRecord<'_>) -> usize { let _ = record; todo!() }
    /// Records so far.
    #[must_use]
    pub fn len(&self) -> u32 { todo!() }
    /// Whether nothing was pushed.
    #[must_use]
    pub fn is_empty(&self) -> bool { self.len() == 0 }
    /// Size so far in bytes, uncompressed, header included.
    #[must_use]
    pub fn size(&self) -> usize { todo!() }
    /// The finished batch.
    ///
    /// Panics when empty: a batch has at least one record.
    #[must_use]
    pub fn build(self) -> Batch { todo!() }
}
