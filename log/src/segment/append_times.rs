//! Append times of a segment's batches (rule W3): the broker's clock, kept beside the batches so that their bytes stay as produced.
//!
//! They never run backwards, so they are stored as runs of equal times.

use super::{SegmentError, SegmentIndex};
use crate::fields::{FieldError, Fields, put_signed, put_varint};
use crate::ids::TimestampMs;
use bytes::BytesMut;

/// Append time of each batch of a segment, by the batch's number in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AppendTimes {
    runs: Vec<Run>,
}

/// Batches appended in one millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    /// Number of the batch after the last of the run.
    end: u64,
    time: TimestampMs,
}

const WHAT: &str = "append times";

impl AppendTimes {
    /// Reads the bytes that `index.append_times_bytes()` names.
    ///
    /// # Errors
    /// `Cut`, `Corrupt` or `Malformed`; also when they are not those of `index`.
    pub fn parse(index: &SegmentIndex, bytes: &[u8]) -> Result<AppendTimes, SegmentError> {
        index.verify_append_times(bytes)?;
        let times = AppendTimes::fields(bytes).map_err(SegmentError::field(WHAT, bytes.len()))?;
        if times.batch_count() != index.batch_count() || times.last() != index.max_append_time() {
            return Err(SegmentError::Malformed { what: WHAT, reason: "not those of the index's batches" });
        }
        Ok(times)
    }

    pub(super) fn fields(bytes: &[u8]) -> Result<AppendTimes, FieldError> {
        let mut fields = Fields::new(bytes);
        let count = fields.count(2)?;
        let mut runs = Vec::with_capacity(count);
        let (mut end, mut time) = (0u64, 0i64);
        for index in 0..count {
            let batches = fields.varint()?;
            let step = fields.signed()?;
            if batches == 0 || (index > 0 && step <= 0) {
                return Err(FieldError::Malformed("an empty run, or time runs backwards"));
            }
            end = end.checked_add(batches).ok_or(FieldError::Malformed("counts beyond 64 bits"))?;
            time = time.checked_add(step).ok_or(FieldError::Malformed("time beyond 64 bits"))?;
            runs.push(Run { end, time: TimestampMs(time) });
        }
        fields.end()?;
        Ok(AppendTimes { runs })
    }

    /// Notes the append time of the next batch.
    ///
    /// Panics if it is earlier than the one before (rule W3: append time is the maximum of the wall clock and the previous).
    pub(super) fn push(&mut self, time: TimestampMs) {
        match self.runs.last_mut() {
            Some(run) if run.time == time => run.end += 1,
            Some(Run { end, time: last }) => {
                assert!(*last < time, "append times run backwards: {time} after {last}");
                let end = *end + 1;
                self.runs.push(Run { end, time });
            }
            None => self.runs.push(Run { end: 1, time }),
        }
    }

    pub(super) fn put(&self, out: &mut BytesMut) {
        put_varint(out, self.runs.len() as u64);
        let (mut end, mut time) = (0, 0);
        for run in &self.runs {
            put_varint(out, run.end - end);
            // Both times are sane clocks or the difference would not fit; `push` keeps them in order.
            put_signed(out, run.time.0.checked_sub(time).expect("append times lie within 2^63 ms of each other"));
            (end, time) = (run.end, run.time.0);
        }
    }

    /// Append time of batch number `batch` of the segment, if it has that many.
    #[must_use]
    pub fn get(&self, batch: u64) -> Option<TimestampMs> {
        self.runs.get(self.runs.partition_point(|run| run.end <= batch)).map(|run| run.time)
    }

    /// Append time of the last batch; `TimestampMs::NONE` without any.
    #[must_use]
    pub fn last(&self) -> TimestampMs {
        self.runs.last().map_or(TimestampMs::NONE, |run| run.time)
    }

    /// Batches of the segment.
    #[must_use]
    pub fn batch_count(&self) -> u64 {
        self.runs.last().map_or(0, |run| run.end)
    }
}
