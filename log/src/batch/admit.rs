//! What a partition asks of a produced batch: everything that a reader will rely on, down to each record.
//!
//! The hot path of produce: one pass for the CRC, one over the records, no allocation unless they are compressed. A batch that
//! passes is one that every Kafka client can read; what does not pass changes nothing.

use super::layout::{self, Input, RawRecord, attribute};
use super::{Batch, BatchError, SPOILT_RECORDS_MAX, TimestampType};
use crate::codec::{Codec, CodecError};
use crate::ids::TimestampMs;
use crate::limits::{BATCH_INFLATED_BYTES_MAX, BATCH_RECORDS_MAX};
use bytes::Bytes;

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

/// A batch fit to be appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// The batch.
    pub batch: Batch,
    /// Largest timestamp of its records, as the producer set them.
    pub latest: TimestampMs,
}

impl Batch {
    /// Checks the batch in full, down to each record, so that nothing poisonous is ever stored.
    ///
    /// Returns the batch to append: the same bytes, or re-encoded where `rules.codec` asks for another codec. Under
    /// `LogAppendTime` the caller stamps it when it appends it.
    ///
    /// # Errors
    /// Every `BatchError` but `Cut` and `OldFormat`; nothing was changed.
    pub fn admit(self, rules: &ProduceRules) -> Result<Batch, BatchError> {
        self.admit_timed(rules).map(|admitted| admitted.batch)
    }

    /// As `admit`, and tells the largest timestamp of the records, which it has seen: the header's need not be true.
    ///
    /// # Errors
    /// As `admit`.
    pub fn admit_timed(self, rules: &ProduceRules) -> Result<Admitted, BatchError> {
        self.check_size(rules)?;
        // Before a field is believed: damage on the way must look like damage, so that the client sends it again.
        self.verify_crc()?;
        let codec = self.check_header()?;
        let raw = self.inflate(codec)?;
        let latest = self.check_records(&raw, rules)?;
        let batch = match rules.codec {
            Some(wanted) if wanted != codec => self.encode_as(wanted, &raw),
            _ => self,
        };
        batch.check_size(rules)?;
        Ok(Admitted { batch, latest })
    }

    fn check_size(&self, rules: &ProduceRules) -> Result<(), BatchError> {
        let (size, max) = (self.size(), rules.batch_bytes_max);
        if size > max as usize { Err(BatchError::TooLarge { size, max }) } else { Ok(()) }
    }

    fn check_header(&self) -> Result<Codec, BatchError> {
        let malformed = |what| Err(BatchError::Malformed(what));
        let codec = self.codec().ok_or(BatchError::Malformed("unknown codec"))?;
        if self.is_control() {
            return malformed("clients may not write control batches");
        }
        if self.attributes() & attribute::NOT_A_PRODUCERS != 0 {
            return malformed("reserved attribute bits are set");
        }
        if self.timestamp_type() == TimestampType::LogAppendTime {
            return Err(BatchError::TimestampType);
        }
        if self.base_offset().0 != 0 {
            return malformed("base offset is not 0");
        }
        match self.record_count() {
            0 => return malformed("no records"),
            count if count > BATCH_RECORDS_MAX => return malformed("more records than a batch may hold"),
            count if count != self.offset_span() => return malformed("record count and last offset delta contradict"),
            _ => {}
        }
        if layout::PRODUCER_ID.get(&self.head) < 0 {
            return if self.is_transactional() { malformed("transactional without a producer id") } else { Ok(codec) };
        }
        match self.producer() {
            None => malformed("producer id without a producer epoch"),
            Some(stamp) if stamp.base_sequence < 0 => malformed("producer id without a sequence"),
            Some(_) => Ok(codec),
        }
    }

    fn inflate(&self, codec: Codec) -> Result<Bytes, BatchError> {
        codec.decompress_portable(&self.records, BATCH_INFLATED_BYTES_MAX).map_err(|error| match error {
            // The CRC has matched, so the producer made it so: sending it again would not help.
            CodecError::Corrupt(what) => BatchError::Malformed(what),
            CodecError::TooLarge { max } => BatchError::InflatedTooLarge { max },
        })
    }

    /// Walks every record; returns the largest timestamp.
    fn check_records(&self, raw: &[u8], rules: &ProduceRules) -> Result<TimestampMs, BatchError> {
        let base = self.base_timestamp().0;
        let times = TimestampBounds::new(rules);
        let mut input = Input(raw);
        let mut max = i64::MIN;
        let mut spoilt = Spoilt::default();
        for index in 0..self.record_count() {
            let mut record = RawRecord::take(&mut input)?;
            if record.offset_delta != index.cast_signed() {
                return Err(BatchError::Malformed("offset deltas are not 0, 1, 2 and so on"));
            }
            let timestamp = base.wrapping_add(record.timestamp_delta);
            if rules.compacted && record.key.is_none() {
                spoilt.note(index);
            } else if !times.take(timestamp) {
                spoilt.timestamp.get_or_insert(timestamp);
                spoilt.note(index);
            }
            max = max.max(timestamp);
            while record.headers.take()?.is_some() {}
        }
        match input.is_empty() {
            true => spoilt.judged().map(|()| TimestampMs(max)),
            false => Err(BatchError::Malformed("bytes left after the last record")),
        }
    }

    /// The same batch in another codec: `compression.type` of the topic.
    fn encode_as(&self, codec: Codec, raw: &Bytes) -> Batch {
        let records = match codec {
            Codec::None => raw.clone(),
            codec => codec.compress(raw),
        };
        let mut head = self.head;
        let attributes = (self.attributes() & !attribute::CODEC) | codec.bits();
        layout::ATTRIBUTES.set(&mut head, attributes.cast_signed());
        Batch::seal(head, records)
    }
}

/// The times a topic accepts, worked out once per batch.
struct TimestampBounds {
    earliest: i64,
    latest: i64,
}

impl TimestampBounds {
    fn new(rules: &ProduceRules) -> TimestampBounds {
        match rules.timestamp_type {
            TimestampType::LogAppendTime => TimestampBounds { earliest: i64::MIN, latest: i64::MAX },
            TimestampType::CreateTime => TimestampBounds {
                earliest: rules.now.0.saturating_sub(rules.timestamp_before_max_ms),
                latest: rules.now.0.saturating_add(rules.timestamp_after_max_ms),
            },
        }
    }

    fn take(&self, timestamp: i64) -> bool {
        (self.earliest..=self.latest).contains(&timestamp) || timestamp == TimestampMs::NONE.0
    }
}

/// The records that spoil a batch, each by itself. All are found before it is refused: a client gives up those, and may send the others
/// again.
#[derive(Default)]
struct Spoilt {
    records: Vec<u32>,
    /// The first that is out of bounds.
    timestamp: Option<i64>,
}

impl Spoilt {
    fn note(&mut self, record: u32) {
        if self.records.len() < SPOILT_RECORDS_MAX {
            self.records.push(record);
        }
    }

    fn judged(self) -> Result<(), BatchError> {
        let Spoilt { records, timestamp } = self;
        match timestamp {
            Some(timestamp) => Err(BatchError::Timestamp { timestamp, records }),
            None if records.is_empty() => Ok(()),
            None => Err(BatchError::NoKey { records }),
        }
    }
}
