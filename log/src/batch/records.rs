//! The records inside a batch: one parser for validation, consumers and time lookups.

use super::{Batch, BatchError, TimestampType, varint};
use crate::ids::{Offset, TimestampMs};
use crate::limits::BATCH_INFLATED_BYTES_MAX;
use bytes::Bytes;

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
pub struct Records {
    bytes: Bytes,
    position: usize,
    left: u32,
    base_offset: Offset,
    base_timestamp: i64,
    append_time: Option<TimestampMs>,
}

impl Batch {
    /// Its records in order, decompressed within the bound of `limits`.
    ///
    /// # Errors
    /// As `Codec::decompress`; each record may be `Malformed`.
    pub fn records(&self) -> Result<Records, BatchError> {
        Ok(Records {
            bytes: self.inflated()?,
            position: 0,
            left: self.record_count(),
            base_offset: self.base_offset(),
            base_timestamp: self.base_timestamp().0,
            append_time: (self.timestamp_type() == TimestampType::LogAppendTime).then(|| self.max_timestamp()),
        })
    }

    /// The records' bytes, decompressed.
    pub(super) fn inflated(&self) -> Result<Bytes, BatchError> {
        let codec = self.codec().ok_or(BatchError::Malformed("unknown codec"))?;
        codec.decompress(&self.records, BATCH_INFLATED_BYTES_MAX)
    }
}

impl Iterator for Records {
    type Item = Result<Record, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        let record = self.parse_next();
        self.left = if record.is_ok() { self.left - 1 } else { 0 };
        Some(record)
    }
}

impl Records {
    fn parse_next(&mut self) -> Result<Record, BatchError> {
        let mut rest = &self.bytes[self.position..];
        let raw = RawRecord::take(&mut rest)?;
        let mut header_bytes = raw.headers;
        let mut headers = Vec::with_capacity((raw.header_count as usize).min(header_bytes.len()));
        for _ in 0..raw.header_count {
            let (name, value) = take_header(&mut header_bytes)?;
            headers.push(Header { name: self.share(name), value: value.map(|value| self.share(value)) });
        }
        let record = Record {
            offset: Offset(self.base_offset.0.wrapping_add_signed(i64::from(raw.offset_delta))),
            timestamp: self.append_time.unwrap_or(TimestampMs(self.base_timestamp.wrapping_add(raw.timestamp_delta))),
            key: raw.key.map(|key| self.share(key)),
            value: raw.value.map(|value| self.share(value)),
            headers,
        };
        self.position = self.bytes.len() - rest.len();
        Ok(record)
    }

    fn share(&self, part: &[u8]) -> Bytes {
        self.bytes.slice_ref(part)
    }
}

/// A record's fields, borrowed; headers not yet taken apart.
pub(super) struct RawRecord<'a> {
    pub(super) timestamp_delta: i64,
    pub(super) offset_delta: i32,
    pub(super) key: Option<&'a [u8]>,
    pub(super) value: Option<&'a [u8]>,
    header_count: u32,
    headers: &'a [u8],
}

impl<'a> RawRecord<'a> {
    /// Takes one record off the front of `buf`; allocates nothing.
    ///
    /// # Errors
    /// `Malformed` when lengths do not fit each other. Headers are not looked into: see `check_headers`.
    pub(super) fn take(buf: &mut &'a [u8]) -> Result<RawRecord<'a>, BatchError> {
        let length = varint::take_int(buf).and_then(|length| usize::try_from(length).ok());
        let length = length.ok_or(BatchError::Malformed("bad record length"))?;
        let mut body = buf.get(..length).ok_or(BatchError::Malformed("a record reaches past the batch"))?;
        *buf = &buf[length..];
        const CUT: BatchError = BatchError::Malformed("a record is cut");
        let (_attributes, after) = body.split_first().ok_or(CUT)?;
        body = after;
        let timestamp_delta = varint::take_long(&mut body).ok_or(CUT)?;
        let offset_delta = varint::take_int(&mut body).ok_or(CUT)?;
        let key = take_nullable(&mut body)?;
        let value = take_nullable(&mut body)?;
        let header_count = varint::take_int(&mut body).and_then(|count| u32::try_from(count).ok()).ok_or(CUT)?;
        Ok(RawRecord { timestamp_delta, offset_delta, key, value, header_count, headers: body })
    }

    /// Walks the headers to the record's end.
    ///
    /// # Errors
    /// `Malformed` when one is cut, a name is null, or bytes are left over.
    pub(super) fn check_headers(&self) -> Result<(), BatchError> {
        let mut rest = self.headers;
        for _ in 0..self.header_count {
            take_header(&mut rest)?;
        }
        if rest.is_empty() { Ok(()) } else { Err(BatchError::Malformed("a record has bytes after its headers")) }
    }
}

fn take_header<'a>(buf: &mut &'a [u8]) -> Result<(&'a [u8], Option<&'a [u8]>), BatchError> {
    let name = take_nullable(buf)?.ok_or(BatchError::Malformed("a header name is null"))?;
    Ok((name, take_nullable(buf)?))
}

/// Bytes with their length in front; -1 is null (case P10).
fn take_nullable<'a>(buf: &mut &'a [u8]) -> Result<Option<&'a [u8]>, BatchError> {
    const BAD: BatchError = BatchError::Malformed("a length reaches past its record");
    match varint::take_int(buf).ok_or(BAD)? {
        -1 => Ok(None),
        length => {
            let length = usize::try_from(length).map_err(|_| BAD)?;
            let (part, rest) = buf.split_at_checked(length).ok_or(BAD)?;
            *buf = rest;
            Ok(Some(part))
        }
    }
}
