//! The records of a batch, one by one, sharing its (decompressed) bytes.

use super::layout::{Input, RawRecord};
use super::{Batch, BatchError, TimestampType};
use crate::ids::{Offset, TimestampMs};
use crate::limits::BATCH_INFLATED_BYTES_MAX;
use bytes::{Buf, Bytes};

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

/// Iterator over the records of one batch. Ends after the first error.
#[derive(Debug)]
pub struct Records {
    /// What is left to read, decompressed.
    raw: Bytes,
    left: u32,
    base: Offset,
    offset_span: u32,
    /// Offset delta that the next record may have at least.
    next_delta: u32,
    base_timestamp: i64,
    /// The broker's stamp, which then is every record's time.
    stamped: Option<TimestampMs>,
}

impl Batch {
    /// Its records in order, decompressed within `limits::BATCH_INFLATED_BYTES_MAX`. The CRC is not checked here.
    ///
    /// # Errors
    /// `Malformed` for an unknown codec, `Corrupt` or `InflatedTooLarge` when decompressing; each record may be `Malformed`.
    pub fn records(&self) -> Result<Records, BatchError> {
        let codec = self.codec().ok_or(BatchError::Malformed("unknown codec"))?;
        Ok(Records {
            raw: codec.decompress(&self.records, BATCH_INFLATED_BYTES_MAX)?,
            left: self.record_count(),
            base: self.base_offset(),
            offset_span: self.offset_span(),
            next_delta: 0,
            base_timestamp: self.base_timestamp().0,
            stamped: (self.timestamp_type() == TimestampType::LogAppendTime).then(|| self.max_timestamp()),
        })
    }

    /// Largest timestamp of its records, read off them, since the header's need not be true. The broker's stamp where it has one;
    /// `TimestampMs::NONE` without records, whatever compaction left in the header.
    ///
    /// # Errors
    /// As `records`; each record may be `Malformed`.
    pub fn latest_timestamp(&self) -> Result<TimestampMs, BatchError> {
        if self.record_count() == 0 {
            return Ok(TimestampMs::NONE);
        }
        if self.timestamp_type() == TimestampType::LogAppendTime {
            return Ok(self.max_timestamp());
        }
        let codec = self.codec().ok_or(BatchError::Malformed("unknown codec"))?;
        let raw = codec.decompress(&self.records, BATCH_INFLATED_BYTES_MAX)?;
        let base = self.base_timestamp().0;
        let mut input = Input(&raw);
        let mut latest = i64::MIN;
        for _ in 0..self.record_count() {
            latest = latest.max(base.wrapping_add(RawRecord::take(&mut input)?.timestamp_delta));
        }
        Ok(TimestampMs(latest))
    }
}

impl Records {
    fn read(&mut self) -> Result<Record, BatchError> {
        let mut input = Input(&self.raw);
        let mut raw = RawRecord::take(&mut input)?;
        let delta = u32::try_from(raw.offset_delta).map_err(|_| BatchError::Malformed("negative offset delta"))?;
        // Compaction leaves holes, but neither moves nor repeats.
        if delta < self.next_delta || delta >= self.offset_span {
            return Err(BatchError::Malformed("offset delta out of order"));
        }
        let share = |bytes: &[u8]| self.raw.slice_ref(bytes);
        // The count is a claim: most records have few headers, and a list of many grows as they are read.
        let mut headers = Vec::with_capacity(raw.headers.left().min(8) as usize);
        while let Some((name, value)) = raw.headers.take()? {
            headers.push(Header { name: share(name), value: value.map(share) });
        }
        let record = Record {
            offset: self.base.plus(u64::from(delta)),
            // Wraps as it does in Kafka, so that any pair of times survives the round trip.
            timestamp: self.stamped.unwrap_or(TimestampMs(self.base_timestamp.wrapping_add(raw.timestamp_delta))),
            key: raw.key.map(share),
            value: raw.value.map(share),
            headers,
        };
        self.next_delta = delta + 1;
        let consumed = self.raw.len() - input.0.len();
        self.raw.advance(consumed);
        Ok(record)
    }
}

impl Iterator for Records {
    type Item = Result<Record, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        let read = if self.left > 0 {
            self.left -= 1;
            self.read()
        } else if self.raw.is_empty() {
            return None;
        } else {
            Err(BatchError::Malformed("bytes left after the last record"))
        };
        if read.is_err() {
            self.left = 0;
            self.raw = Bytes::new();
        }
        Some(read)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        // A damaged batch ends early; one with bytes left over ends with one error more.
        (0, usize::try_from(self.left).ok().and_then(|left| left.checked_add(1)))
    }
}
