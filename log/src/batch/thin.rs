//! What compaction leaves of a batch: fewer records, each at its offset, or a header alone (rules C2, C3).
//!
//! Decides nothing: the caller judges each record. Encodes anew only what loses records or gets a delete horizon (KIP-534).

use super::layout::{self, Input, RawRecord, attribute, put_varint, put_varlong};
use super::{Batch, BatchError, TimestampType};
use crate::codec::Codec;
use crate::ids::{Offset, TimestampMs};
use crate::limits::{BATCH_BYTES_MAX, BATCH_INFLATED_BYTES_MAX};
use bytes::Bytes;

/// What compaction judges a record by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyedRecord<'a> {
    /// Offset in the partition.
    pub offset: Offset,
    /// Key; null and empty differ.
    pub key: Option<&'a [u8]>,
    /// Whether it deletes its key: the value is null. An empty one is not, and what has no key deletes none.
    pub is_tombstone: bool,
}

/// Bytes that a record grows by at most when its time is written anew: the time's own, and one more of its length.
const HORIZON_GROWTH_MAX: usize = 10;

/// A batch of which records may have been taken out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thinned {
    /// What is left: the same bytes if all records stay and no horizon was set; if none stays a header (`Batch::emptied`).
    pub batch: Batch,
    /// Records taken out.
    pub removed: u32,
    /// Whether any of those left is a tombstone.
    pub has_tombstones: bool,
    /// Largest timestamp of those left; `TimestampMs::NONE` without any.
    pub latest: TimestampMs,
}

impl Batch {
    /// From when on its tombstones, or the marker in it, may be removed: attribute bit 6 and the base timestamp, as KIP-534 has them.
    /// `None` until a compaction sets it.
    #[must_use]
    pub fn delete_horizon(&self) -> Option<TimestampMs> {
        (self.attributes() & attribute::DELETE_HORIZON != 0).then(|| self.base_timestamp())
    }

    /// Shows `visit` each record in order. Cheaper than `records`, since it makes none; headers are not looked at.
    ///
    /// # Errors
    /// As `records`; some may have been shown by then.
    pub fn each_keyed(&self, mut visit: impl FnMut(KeyedRecord<'_>)) -> Result<(), BatchError> {
        self.walk(&self.inflated()?, |record, _| visit(self.keyed(record)))
    }

    /// The batch with those records that `keep` says, asked of each in order. They keep offset, timestamp, key, value, headers and
    /// attributes; the batch its offsets, codec, leader epoch, producer fields and bits, and under `LogAppendTime` its time.
    ///
    /// If a tombstone stays and no horizon is set yet, `horizon` is, unless the batch grew by it past what readers can read.
    ///
    /// The CRC is checked before; that of what is left is made anew.
    ///
    /// # Errors
    /// As `records`; `TooLarge` if what is left, compressed anew, is larger than the batch was and than any may be.
    pub fn thinned(
        &self,
        horizon: TimestampMs,
        keep: impl FnMut(KeyedRecord<'_>) -> bool,
    ) -> Result<Thinned, BatchError> {
        self.thinned_within(BATCH_BYTES_MAX, BATCH_INFLATED_BYTES_MAX, horizon, keep)
    }

    fn thinned_within(
        &self,
        bytes_max: u32,
        inflated_bytes_max: usize,
        horizon: TimestampMs,
        mut keep: impl FnMut(KeyedRecord<'_>) -> bool,
    ) -> Result<Thinned, BatchError> {
        let raw = self.inflated()?;
        // The count is a claim of the header; one byte for each record that is there.
        let mut kept = Vec::new();
        let mut has_tombstones = false;
        let mut latest = None;
        self.walk(&raw, |record, _| {
            let keyed = self.keyed(record);
            let stays = keep(keyed);
            if stays {
                has_tombstones |= keyed.is_tombstone;
                latest = latest.max(Some(self.timestamp(record)));
            }
            kept.push(stays);
        })?;
        let removed = kept.iter().filter(|stays| !**stays).count() as u32;
        let grown = raw.len().saturating_add(kept.len() * HORIZON_GROWTH_MAX);
        let wants_horizon = has_tombstones && self.delete_horizon().is_none();
        let fits = |batch: &Batch| batch.size() <= self.size().max(bytes_max as usize);
        let with = |latest, horizon: Option<TimestampMs>| match horizon {
            None if removed == 0 => Ok(self.clone()),
            horizon => self.encoded(&raw, &kept, latest, horizon),
        };
        let Some(latest) = latest else {
            let batch = self.emptied();
            return Ok(Thinned { batch, removed, has_tombstones, latest: TimestampMs::NONE });
        };
        let mut batch = with(latest, Some(horizon).filter(|_| wants_horizon && grown <= inflated_bytes_max))?;
        if !fits(&batch) {
            batch = with(latest, None)?;
        }
        if !fits(&batch) {
            return Err(BatchError::TooLarge { size: batch.size(), max: bytes_max });
        }
        Ok(Thinned { batch, removed, has_tombstones, latest })
    }

    /// The batch with a delete horizon, as a marker gets it whose transaction has no records left.
    ///
    /// # Errors
    /// As `records`.
    pub fn with_delete_horizon(&self, horizon: TimestampMs) -> Result<Batch, BatchError> {
        let raw = self.inflated()?;
        let mut latest = TimestampMs(i64::MIN);
        self.walk(&raw, |record, _| latest = latest.max(self.timestamp(record)))?;
        self.encoded(&raw, &vec![true; self.record_count() as usize], latest, Some(horizon))
    }

    /// Its header alone: for its offsets, or for the sequence of its producer. As Kafka has it: the largest timestamp stays, the base
    /// timestamp is none. The same bytes if it holds no records already.
    ///
    /// Of a marker a hole is left: clients look for the outcome in whatever is a control batch, and several fail on one without a record.
    #[must_use]
    pub fn emptied(&self) -> Batch {
        if self.is_control() {
            let mut hole = Batch::hole(self.offset_span());
            hole.place(self.base_offset(), self.leader_epoch());
            return hole;
        }
        if self.record_count() == 0 {
            return self.clone();
        }
        let mut head = self.head;
        let attributes = self.attributes() & !attribute::CODEC & !attribute::DELETE_HORIZON;
        layout::ATTRIBUTES.set(&mut head, attributes.cast_signed());
        layout::BASE_TIMESTAMP.set(&mut head, TimestampMs::NONE.0);
        layout::MAX_TIMESTAMP.set(&mut head, self.max_timestamp().0);
        layout::RECORD_COUNT.set(&mut head, 0);
        Batch::seal(head, Bytes::new())
    }

    fn inflated(&self) -> Result<Bytes, BatchError> {
        let codec = self.codec().ok_or(BatchError::Malformed("unknown codec"))?;
        Ok(codec.decompress(&self.records, BATCH_INFLATED_BYTES_MAX)?)
    }

    /// Shows each record and all its bytes, its length included.
    fn walk<'a>(&self, raw: &'a [u8], mut visit: impl FnMut(&RawRecord<'a>, &'a [u8])) -> Result<(), BatchError> {
        let mut input = Input(raw);
        let mut next_delta = 0;
        for _ in 0..self.record_count() {
            let before = input.0;
            let record = RawRecord::take(&mut input)?;
            let delta =
                u32::try_from(record.offset_delta).map_err(|_| BatchError::Malformed("negative offset delta"))?;
            if delta < next_delta || delta >= self.offset_span() {
                return Err(BatchError::Malformed("offset delta out of order"));
            }
            next_delta = delta + 1;
            visit(&record, &before[..before.len() - input.0.len()]);
        }
        if input.is_empty() { Ok(()) } else { Err(BatchError::Malformed("bytes left after the last record")) }
    }

    fn keyed<'a>(&self, record: &RawRecord<'a>) -> KeyedRecord<'a> {
        let offset = self.base_offset().plus(u64::from(record.offset_delta.cast_unsigned()));
        KeyedRecord { offset, key: record.key, is_tombstone: record.key.is_some() && record.value.is_none() }
    }

    fn timestamp(&self, record: &RawRecord<'_>) -> TimestampMs {
        match self.timestamp_type() {
            TimestampType::LogAppendTime => self.max_timestamp(),
            TimestampType::CreateTime => TimestampMs(self.base_timestamp().0.wrapping_add(record.timestamp_delta)),
        }
    }

    /// The batch with the records that are `kept`, of which `latest` is the largest timestamp.
    fn encoded(
        &self,
        raw: &[u8],
        kept: &[bool],
        latest: TimestampMs,
        horizon: Option<TimestampMs>,
    ) -> Result<Batch, BatchError> {
        let mut out = Vec::with_capacity(raw.len());
        let mut time = Vec::new();
        let mut stays = kept.iter();
        self.walk(raw, |record, bytes| match horizon {
            _ if stays.next() != Some(&true) => {}
            None => out.extend_from_slice(bytes),
            Some(horizon) => {
                time.clear();
                // Wraps as it does in Kafka, and back when it is read.
                put_varlong(
                    &mut time,
                    self.base_timestamp().0.wrapping_add(record.timestamp_delta).wrapping_sub(horizon.0),
                );
                let len = 1 + time.len() + record.after_time.len();
                put_varint(&mut out, i32::try_from(len).expect("a batch is smaller than 2 GiB"));
                out.push(record.attributes);
                out.extend_from_slice(&time);
                out.extend_from_slice(record.after_time);
            }
        })?;
        let records = match self.codec() {
            None | Some(Codec::None) => Bytes::from(out),
            Some(codec) => codec.compress(&out),
        };
        let mut head = self.head;
        if let Some(horizon) = horizon {
            let attributes = self.attributes() | attribute::DELETE_HORIZON;
            layout::ATTRIBUTES.set(&mut head, attributes.cast_signed());
            layout::BASE_TIMESTAMP.set(&mut head, horizon.0);
        }
        // The broker's stamp is in it already, but where the header left it to the base timestamp.
        layout::MAX_TIMESTAMP.set(&mut head, latest.0);
        let count = kept.iter().filter(|stays| **stays).count() as u32;
        layout::RECORD_COUNT.set(&mut head, count.cast_signed());
        Ok(Batch::seal(head, records))
    }
}

#[cfg(test)]
mod tests;
