//! Kafka record batch v2: the zero-copy view that travels unchanged from producer to bucket, its validation and its encoding.
//!
//! A batch is never re-encoded: placing it in a partition patches the header, which is held apart from the shared records.

mod admit;
mod build;
mod records;
mod varint;

pub use admit::ProduceRules;
pub use build::{BatchBuilder, NewRecord};
pub use records::{Header, Record, Records};

use crate::ErrorCode;
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
    pub fn code(&self) -> ErrorCode {
        match self {
            BatchError::Cut { .. } | BatchError::Malformed(_) | BatchError::InflatedTooLarge { .. } => {
                ErrorCode::InvalidRecord
            }
            BatchError::Corrupt(_) => ErrorCode::CorruptMessage,
            BatchError::TooLarge { .. } => ErrorCode::MessageTooLarge,
            BatchError::Timestamp { .. } => ErrorCode::InvalidTimestamp,
            BatchError::OldFormat(_) => ErrorCode::UnsupportedForMessageFormat,
        }
    }
}

/// Where the header's fields are. Kafka's record batch v2, big-endian.
mod field {
    use std::ops::Range;

    pub(super) const BASE_OFFSET: usize = 0;
    pub(super) const LENGTH: usize = 8;
    pub(super) const LEADER_EPOCH: usize = 12;
    pub(super) const MAGIC: usize = 16;
    pub(super) const CRC: usize = 17;
    /// What the CRC covers begins here.
    pub(super) const ATTRIBUTES: usize = 21;
    pub(super) const LAST_OFFSET_DELTA: usize = 23;
    pub(super) const BASE_TIMESTAMP: usize = 27;
    pub(super) const MAX_TIMESTAMP: usize = 35;
    pub(super) const PRODUCER_ID: usize = 43;
    pub(super) const PRODUCER_EPOCH: usize = 51;
    pub(super) const BASE_SEQUENCE: usize = 53;
    pub(super) const RECORD_COUNT: usize = 57;
    /// Bytes that `LENGTH` does not count.
    pub(super) const UNCOUNTED: Range<usize> = 0..12;
}

const LOG_APPEND_TIME_BIT: u16 = 1 << 3;
const TRANSACTIONAL_BIT: u16 = 1 << 4;
const CONTROL_BIT: u16 = 1 << 5;
/// Kafka's delete horizon (KIP-534): set by compaction, never by a producer.
const DELETE_HORIZON_BIT: u16 = 1 << 6;
const KNOWN_BITS: u16 = 0b111 | LOG_APPEND_TIME_BIT | TRANSACTIONAL_BIT | CONTROL_BIT | DELETE_HORIZON_BIT;

impl Batch {
    /// Takes the first whole batch off `buf`, sharing its bytes. `Ok(None)` when `buf` is empty.
    ///
    /// Checks lengths and magic only. On an error `buf` is unchanged.
    /// # Errors
    /// `Cut` when `buf` ends inside the batch; `Malformed` or `OldFormat` when the header is no batch header.
    pub fn take(buf: &mut Bytes) -> Result<Option<Batch>, BatchError> {
        if buf.is_empty() {
            return Ok(None);
        }
        let cut = |need| BatchError::Cut { need, have: buf.len() };
        let magic = *buf.get(field::MAGIC).ok_or_else(|| cut(BATCH_HEADER_BYTES))? as i8;
        match magic {
            2 => {}
            0 | 1 => return Err(BatchError::OldFormat(magic)),
            _ => return Err(BatchError::Malformed("magic is not 2")),
        }
        let head: [u8; BATCH_HEADER_BYTES] =
            *buf.first_chunk::<BATCH_HEADER_BYTES>().ok_or_else(|| cut(BATCH_HEADER_BYTES))?;
        let length = i32::from_be_bytes(read(&head, field::LENGTH));
        let length = usize::try_from(length).map_err(|_| BatchError::Malformed("negative length"))?;
        let size = length + field::UNCOUNTED.len();
        if size < BATCH_HEADER_BYTES {
            return Err(BatchError::Malformed("length is shorter than the header"));
        }
        if i64::from_be_bytes(read(&head, field::BASE_OFFSET)) < 0 {
            return Err(BatchError::Malformed("negative base offset"));
        }
        if i32::from_be_bytes(read(&head, field::LAST_OFFSET_DELTA)) < -1 {
            return Err(BatchError::Malformed("negative last offset delta"));
        }
        if i32::from_be_bytes(read(&head, field::RECORD_COUNT)) < 0 {
            return Err(BatchError::Malformed("negative record count"));
        }
        if buf.len() < size {
            return Err(cut(size));
        }
        let records = buf.split_to(size).slice(BATCH_HEADER_BYTES..);
        Ok(Some(Batch { head, records }))
    }

    /// Size in bytes, header included.
    #[must_use]
    pub fn size(&self) -> usize {
        BATCH_HEADER_BYTES + self.records.len()
    }

    /// The header's bytes.
    #[must_use]
    pub fn head(&self) -> &[u8; BATCH_HEADER_BYTES] {
        &self.head
    }

    /// The records' bytes, compressed as the producer compressed them.
    #[must_use]
    pub fn records_bytes(&self) -> &Bytes {
        &self.records
    }

    /// Appends the whole batch to `out`.
    pub fn put(&self, out: &mut impl BufMut) {
        out.put_slice(&self.head);
        out.put_slice(&self.records);
    }

    /// Offset of the first record.
    #[must_use]
    pub fn base_offset(&self) -> Offset {
        Offset(u64::from_be_bytes(read(&self.head, field::BASE_OFFSET)))
    }

    /// Offset after the last record (`base + last offset delta + 1`): holes made by compaction count.
    #[must_use]
    pub fn end_offset(&self) -> Offset {
        self.base_offset().plus(u64::from(self.offset_span()))
    }

    /// Leader epoch it was appended in. A producer's batch carries none; it reads as 0 until it is placed.
    #[must_use]
    pub fn leader_epoch(&self) -> LeaderEpoch {
        LeaderEpoch(u32::try_from(i32::from_be_bytes(read(&self.head, field::LEADER_EPOCH))).unwrap_or_default())
    }

    /// Records in it.
    #[must_use]
    pub fn record_count(&self) -> u32 {
        u32::from_be_bytes(read(&self.head, field::RECORD_COUNT))
    }

    /// Offsets it spans: last offset delta + 1.
    #[must_use]
    pub fn offset_span(&self) -> u32 {
        // `take` refuses deltas below -1.
        u32::from_be_bytes(read(&self.head, field::LAST_OFFSET_DELTA)).wrapping_add(1)
    }

    /// The codec of its records; `None` if the bits name none.
    #[must_use]
    pub fn codec(&self) -> Option<Codec> {
        Codec::from_bits(self.attributes())
    }

    /// Which clock its timestamps come from.
    #[must_use]
    pub fn timestamp_type(&self) -> TimestampType {
        if self.attributes() & LOG_APPEND_TIME_BIT == 0 {
            TimestampType::CreateTime
        } else {
            TimestampType::LogAppendTime
        }
    }

    /// Base timestamp.
    #[must_use]
    pub fn base_timestamp(&self) -> TimestampMs {
        TimestampMs(i64::from_be_bytes(read(&self.head, field::BASE_TIMESTAMP)))
    }

    /// Largest timestamp, as the producer (or the broker's stamp) says, but not below the first record's: the header may say none.
    ///
    /// Lookups by time go by it: a producer that claims too little is found by its claim.
    #[must_use]
    pub fn max_timestamp(&self) -> TimestampMs {
        let claimed = TimestampMs(i64::from_be_bytes(read(&self.head, field::MAX_TIMESTAMP)));
        match self.timestamp_type() {
            TimestampType::CreateTime => claimed.max(self.base_timestamp()),
            TimestampType::LogAppendTime => claimed,
        }
    }

    /// Attribute bit 5.
    #[must_use]
    pub fn is_control(&self) -> bool {
        self.attributes() & CONTROL_BIT != 0
    }

    /// Attribute bit 4.
    #[must_use]
    pub fn is_transactional(&self) -> bool {
        self.attributes() & TRANSACTIONAL_BIT != 0
    }

    /// Producer fields, if it has a producer id.
    #[must_use]
    pub fn producer(&self) -> Option<ProducerStamp> {
        let id = u64::try_from(i64::from_be_bytes(read(&self.head, field::PRODUCER_ID))).ok()?;
        // `admit` refuses a producer id with a negative epoch.
        let epoch = u16::from_be_bytes(read(&self.head, field::PRODUCER_EPOCH));
        let base_sequence = i32::from_be_bytes(read(&self.head, field::BASE_SEQUENCE));
        Some(ProducerStamp { id: ProducerId(id), epoch: ProducerEpoch(epoch), base_sequence })
    }

    /// CRC-32C as stored.
    #[must_use]
    pub fn crc(&self) -> u32 {
        u32::from_be_bytes(read(&self.head, field::CRC))
    }

    /// Whether the stored CRC matches the bytes (rule R13).
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn verify_crc(&self) -> Result<(), BatchError> {
        if self.crc() == self.computed_crc() { Ok(()) } else { Err(BatchError::Corrupt("CRC-32C does not match")) }
    }

    /// Puts the batch at its place in the log: base offset and leader epoch, neither of which the CRC covers.
    pub fn place(&mut self, base: Offset, epoch: LeaderEpoch) {
        self.write(field::BASE_OFFSET, base.0.to_be_bytes());
        self.write(field::LEADER_EPOCH, epoch.0.to_be_bytes());
    }

    /// Stamps the broker's append time (`LogAppendTime`): type bit, max timestamp, and the CRC, which then changes.
    pub fn stamp_append_time(&mut self, now: TimestampMs) {
        self.write(field::ATTRIBUTES, (self.attributes() | LOG_APPEND_TIME_BIT).to_be_bytes());
        self.write(field::MAX_TIMESTAMP, now.0.to_be_bytes());
        self.seal();
    }

    fn attributes(&self) -> u16 {
        u16::from_be_bytes(read(&self.head, field::ATTRIBUTES))
    }

    fn write<const N: usize>(&mut self, at: usize, value: [u8; N]) {
        self.head[at..at + N].copy_from_slice(&value);
    }

    fn seal(&mut self) {
        let crc = self.computed_crc();
        self.write(field::CRC, crc.to_be_bytes());
    }

    fn computed_crc(&self) -> u32 {
        crc32c::crc32c_append(crc32c::crc32c(&self.head[field::ATTRIBUTES..]), &self.records)
    }
}

/// The `N` bytes at `at`, which lie in the header.
fn read<const N: usize>(head: &[u8; BATCH_HEADER_BYTES], at: usize) -> [u8; N] {
    *head[at..].first_chunk().expect("fields lie in the header")
}

impl std::fmt::Debug for Batch {
    /// Header fields only: records are users' data and never logged.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch")
            .field("base_offset", &self.base_offset())
            .field("end_offset", &self.end_offset())
            .field("leader_epoch", &self.leader_epoch())
            .field("size", &self.size())
            .field("producer", &self.producer())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
