//! Full validation of a producer's batch, so that nothing poisonous is ever stored (cases P1 to P18, C5).

use super::records::RawRecord;
use super::{
    Batch, BatchBuilder, BatchError, CONTROL_BIT, DELETE_HORIZON_BIT, KNOWN_BITS, LOG_APPEND_TIME_BIT, NewRecord,
    TimestampType, field, read,
};
use crate::codec::Codec;
use crate::ids::TimestampMs;
use crate::limits::BATCH_RECORDS_MAX;

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
    /// Checks the batch in full, down to each record, so that nothing poisonous is ever stored.
    ///
    /// Returns the batch to append: the same one, or re-encoded where `rules.codec` asks for another codec.
    /// # Errors
    /// Every `BatchError`; nothing was changed.
    pub fn admit(self, rules: &ProduceRules) -> Result<Batch, BatchError> {
        if self.size() > rules.batch_bytes_max as usize {
            return Err(BatchError::TooLarge { size: self.size(), max: rules.batch_bytes_max });
        }
        self.verify_crc()?;
        self.check_header()?;
        self.check_records(rules)?;
        match rules.codec {
            Some(codec) if self.codec() != Some(codec) => self.recode(codec),
            _ => Ok(self),
        }
    }

    fn check_header(&self) -> Result<(), BatchError> {
        let malformed = |reason| Err(BatchError::Malformed(reason));
        let attributes = self.attributes();
        if attributes & !KNOWN_BITS != 0 || self.codec().is_none() {
            return malformed("unknown codec or attribute");
        }
        if attributes & CONTROL_BIT != 0 {
            return malformed("clients may not write control batches");
        }
        if attributes & (LOG_APPEND_TIME_BIT | DELETE_HORIZON_BIT) != 0 {
            return malformed("an attribute that only the broker sets");
        }
        if self.record_count() == 0 {
            return malformed("a batch without records");
        }
        // Case P1: the offsets a batch takes are those of its records.
        if self.record_count() != self.offset_span() || self.record_count() > BATCH_RECORDS_MAX {
            return malformed("last offset delta and record count contradict each other");
        }
        let producer_id = i64::from_be_bytes(read(&self.head, field::PRODUCER_ID));
        let epoch = i16::from_be_bytes(read(&self.head, field::PRODUCER_EPOCH));
        let sequence = i32::from_be_bytes(read(&self.head, field::BASE_SEQUENCE));
        if producer_id >= 0 && (epoch < 0 || sequence < 0) {
            return malformed("a producer id without epoch or sequence");
        }
        if producer_id < 0 && self.is_transactional() {
            return malformed("a transactional batch without a producer id");
        }
        Ok(())
    }

    fn check_records(&self, rules: &ProduceRules) -> Result<(), BatchError> {
        let inflated = self.inflated()?;
        let mut rest = &inflated[..];
        for expected in 0..self.record_count() {
            let record = RawRecord::take(&mut rest)?;
            if i64::from(record.offset_delta) != i64::from(expected) {
                return Err(BatchError::Malformed("offset deltas are not 0, 1, 2 and so on"));
            }
            if rules.compacted && record.key.is_none() {
                return Err(BatchError::Malformed("a compacted topic takes no record without a key"));
            }
            record.check_headers()?;
            self.check_timestamp(record.timestamp_delta, rules)?;
        }
        if rest.is_empty() { Ok(()) } else { Err(BatchError::Malformed("more bytes than records")) }
    }

    fn check_timestamp(&self, delta: i64, rules: &ProduceRules) -> Result<(), BatchError> {
        let timestamp =
            self.base_timestamp().0.checked_add(delta).ok_or(BatchError::Malformed("timestamp overflow"))?;
        // The broker's clock replaces the producer's; and "no timestamp" is neither early nor late.
        if rules.timestamp_type == TimestampType::LogAppendTime || timestamp == TimestampMs::NONE.0 {
            return Ok(());
        }
        let late = timestamp.saturating_sub(rules.now.0) > rules.timestamp_after_max_ms;
        let early = rules.now.0.saturating_sub(timestamp) > rules.timestamp_before_max_ms;
        if late || early || timestamp < 0 { Err(BatchError::Timestamp { timestamp }) } else { Ok(()) }
    }

    /// The same records under another codec. Producer fields and times are kept.
    fn recode(&self, codec: Codec) -> Result<Batch, BatchError> {
        let mut builder = BatchBuilder::new(codec);
        if let Some(stamp) = self.producer() {
            builder = builder.producer(stamp);
        }
        if self.is_transactional() {
            builder = builder.transactional();
        }
        for record in self.records()? {
            let record = record?;
            builder.push(NewRecord {
                timestamp: record.timestamp,
                key: record.key.as_deref(),
                value: record.value.as_deref(),
                headers: &record.headers,
            });
        }
        Ok(builder.build())
    }
}
