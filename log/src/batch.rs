//! Kafka record batch v2: the zero-copy view that travels unchanged from producer to bucket, its validation and its encoding.
//!
//! The records are shared, never copied: placing a batch in a partition patches its header, which is held apart. Only a topic's
//! `compression.type` has a batch encoded anew, and compaction, where it takes records out.

mod admit;
mod builder;
mod control;
mod crc;
mod error;
mod layout;
mod records;
mod thin;

pub use admit::{Admitted, ProduceRules};
pub use builder::{BatchBuilder, NewRecord};
pub use control::{ProducerWrite, WriteKind};
pub use error::{BatchError, SPOILT_RECORDS_MAX};
pub use records::{Header, Record, Records};
pub use thin::{KeyedRecord, Thinned};

use crate::codec::Codec;
use crate::ids::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, TimestampMs};
use crate::limits::BATCH_HEADER_BYTES;
use bytes::{BufMut, Bytes};
use layout::{LEN_COUNTS_FROM, MAGIC, attribute};

/// One record batch: the header owned, so that it can be patched; the records shared with whoever received them.
///
/// Lengths, magic, offsets and counts are in range from `take` on, so that no accessor can fail; the rest is what `admit` checks.
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
    /// Sequence number of the first record; wraps at `i32::MAX` to 0. -1 in control batches, which have none.
    pub base_sequence: i32,
}

impl ProducerStamp {
    fn of_header(head: &[u8; BATCH_HEADER_BYTES]) -> Option<ProducerStamp> {
        let id = u64::try_from(layout::PRODUCER_ID.get(head)).ok()?;
        let epoch = u16::try_from(layout::PRODUCER_EPOCH.get(head)).ok()?;
        let base_sequence = layout::BASE_SEQUENCE.get(head);
        Some(ProducerStamp { id: ProducerId(id), epoch: ProducerEpoch(epoch), base_sequence })
    }
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

impl Batch {
    /// Takes the first whole batch off `buf`, sharing its bytes. `Ok(None)` when `buf` is empty.
    ///
    /// Checks lengths, magic, and that offsets and counts are in range; neither CRC nor records. On error `buf` is unchanged.
    ///
    /// # Errors
    /// `Cut` when `buf` ends inside the batch; `Malformed` or `OldFormat` when the header is no batch header.
    pub fn take(buf: &mut Bytes) -> Result<Option<Batch>, BatchError> {
        if buf.is_empty() {
            return Ok(None);
        }
        // Messages older than v2 are shorter than its header, but have their magic at the same place.
        match buf.get(layout::MAGIC_AT).map(|&byte| byte.cast_signed()) {
            None => return Err(BatchError::Cut { need: BATCH_HEADER_BYTES, have: buf.len() }),
            Some(MAGIC) => {}
            Some(old @ (0 | 1)) => return Err(BatchError::OldFormat(old)),
            Some(_) => return Err(BatchError::Malformed("unknown magic")),
        }
        let Some(head) = buf.first_chunk::<BATCH_HEADER_BYTES>() else {
            return Err(BatchError::Cut { need: BATCH_HEADER_BYTES, have: buf.len() });
        };
        let len = usize::try_from(layout::LEN.get(head)).map_err(|_| BatchError::Malformed("negative length"))?;
        let size = len.saturating_add(LEN_COUNTS_FROM);
        if size < BATCH_HEADER_BYTES {
            return Err(BatchError::Malformed("length shorter than the header"));
        }
        check_ranges(head)?;
        if buf.len() < size {
            return Err(BatchError::Cut { need: size, have: buf.len() });
        }
        let head = *head;
        let records = buf.split_to(size).slice(BATCH_HEADER_BYTES..);
        Ok(Some(Batch { head, records }))
    }

    /// The same batch in memory of its own: whatever its bytes were a part of is held by it no longer.
    #[must_use]
    pub fn detached(self) -> Batch {
        Batch { records: Bytes::copy_from_slice(&self.records), ..self }
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
        Offset(layout::BASE_OFFSET.get(&self.head).cast_unsigned())
    }

    /// Offset after the last record (`base + last offset delta + 1`): holes made by compaction count.
    #[must_use]
    pub fn end_offset(&self) -> Offset {
        self.base_offset().plus(u64::from(self.offset_span()))
    }

    /// Leader epoch it was appended in; `u32::MAX`, Kafka's -1, before it was placed.
    #[must_use]
    pub fn leader_epoch(&self) -> LeaderEpoch {
        LeaderEpoch(layout::LEADER_EPOCH.get(&self.head).cast_unsigned())
    }

    /// Records in it.
    #[must_use]
    pub fn record_count(&self) -> u32 {
        layout::RECORD_COUNT.get(&self.head).cast_unsigned()
    }

    /// Offsets it spans: last offset delta + 1.
    #[must_use]
    pub fn offset_span(&self) -> u32 {
        layout::LAST_OFFSET_DELTA.get(&self.head).cast_unsigned().wrapping_add(1)
    }

    /// The codec of its records; `None` if the bits name none.
    #[must_use]
    pub fn codec(&self) -> Option<Codec> {
        Codec::from_bits(self.attributes() & attribute::CODEC)
    }

    /// Which clock its timestamps come from.
    #[must_use]
    pub fn timestamp_type(&self) -> TimestampType {
        match self.attributes() & attribute::LOG_APPEND_TIME {
            0 => TimestampType::CreateTime,
            _ => TimestampType::LogAppendTime,
        }
    }

    /// Base timestamp: the first record's as produced, and no record's once compaction has set a delete horizon, which stands there.
    #[must_use]
    pub fn base_timestamp(&self) -> TimestampMs {
        TimestampMs(layout::BASE_TIMESTAMP.get(&self.head))
    }

    /// Largest timestamp as the header says: the broker's stamp, or what the producer took for it; base timestamp if unset (-1) and
    /// if that is one.
    ///
    /// Producers are not held to it, so records may be later: `latest_timestamp` is what an index may rely on.
    #[must_use]
    pub fn max_timestamp(&self) -> TimestampMs {
        match layout::MAX_TIMESTAMP.get(&self.head) {
            -1 if self.delete_horizon().is_none() => self.base_timestamp(),
            max => TimestampMs(max),
        }
    }

    /// Attribute bit 5.
    #[must_use]
    pub fn is_control(&self) -> bool {
        self.attributes() & attribute::CONTROL != 0
    }

    /// Attribute bit 4.
    #[must_use]
    pub fn is_transactional(&self) -> bool {
        self.attributes() & attribute::TRANSACTIONAL != 0
    }

    /// Producer fields, if it has a producer id.
    #[must_use]
    pub fn producer(&self) -> Option<ProducerStamp> {
        ProducerStamp::of_header(&self.head)
    }

    /// CRC-32C as stored.
    #[must_use]
    pub fn crc(&self) -> u32 {
        layout::CRC.get(&self.head).cast_unsigned()
    }

    /// Whether the stored CRC matches the bytes (rule R13).
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn verify_crc(&self) -> Result<(), BatchError> {
        let computed = crc32c::crc32c_append(crc32c::crc32c(&self.head[layout::CRC_COVERS_FROM..]), &self.records);
        if computed == self.crc() { Ok(()) } else { Err(BatchError::Corrupt("CRC mismatch")) }
    }

    /// Puts the batch at its place in the log: base offset and leader epoch, neither of which the CRC covers.
    ///
    /// Panics past 2^63 offsets or 2^31 epochs, which Kafka's wire cannot carry.
    pub fn place(&mut self, base: Offset, epoch: LeaderEpoch) {
        let last = base.plus(u64::from(self.offset_span()));
        assert!(i64::try_from(last.0).is_ok(), "offsets stay below 2^63");
        assert!(i32::try_from(epoch.0).is_ok(), "leader epochs stay below 2^31");
        layout::BASE_OFFSET.set(&mut self.head, base.0.cast_signed());
        layout::LEADER_EPOCH.set(&mut self.head, epoch.0.cast_signed());
    }

    /// Stamps the broker's append time (`LogAppendTime`): type bit, max timestamp, and the CRC, which then changes.
    pub fn stamp_append_time(&mut self, now: TimestampMs) {
        let attributes = self.attributes() | attribute::LOG_APPEND_TIME;
        self.patch(|head| {
            layout::ATTRIBUTES.set(head, attributes.cast_signed());
            layout::MAX_TIMESTAMP.set(head, now.0);
        });
    }

    fn attributes(&self) -> u16 {
        layout::ATTRIBUTES.get(&self.head).cast_unsigned()
    }

    /// Changes header fields that the CRC covers, and the CRC with them.
    ///
    /// The CRC is linear: it moves by the CRC of the change. The records are not read again, so damage to them since the CRC
    /// was made stays visible, where a CRC made anew would bless it (rule R13).
    fn patch(&mut self, change: impl FnOnce(&mut [u8; BATCH_HEADER_BYTES])) {
        let before = crc32c::crc32c(&self.head[layout::CRC_COVERS_FROM..]);
        change(&mut self.head);
        let after = crc32c::crc32c(&self.head[layout::CRC_COVERS_FROM..]);
        let crc = crc::moved(self.crc(), before, after, self.records.len());
        layout::CRC.set(&mut self.head, crc.cast_signed());
    }
}

/// Offsets and counts that no batch in a log can have would make every later sum a trap.
fn check_ranges(head: &[u8; BATCH_HEADER_BYTES]) -> Result<(), BatchError> {
    let base = layout::BASE_OFFSET.get(head);
    if base < 0 {
        return Err(BatchError::Malformed("negative base offset"));
    }
    let last_delta = layout::LAST_OFFSET_DELTA.get(head);
    if last_delta < 0 {
        return Err(BatchError::Malformed("negative last offset delta"));
    }
    if base.checked_add(i64::from(last_delta) + 1).is_none() {
        return Err(BatchError::Malformed("offsets past 2^63"));
    }
    if layout::RECORD_COUNT.get(head) < 0 {
        return Err(BatchError::Malformed("negative record count"));
    }
    Ok(())
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch")
            .field("offsets", &(self.base_offset().0..self.end_offset().0))
            .field("epoch", &self.leader_epoch())
            .field("records", &self.record_count())
            .field("size", &self.size())
            .field("codec", &self.codec())
            .field("max_timestamp", &self.max_timestamp())
            .field("producer", &self.producer())
            .field("control", &self.is_control())
            .field("transactional", &self.is_transactional())
            .field("crc", &format_args!("{:08x}", self.crc()))
            .finish()
    }
}

#[cfg(test)]
mod tests;
