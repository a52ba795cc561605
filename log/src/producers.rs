//! Producer state of one partition (rules P1 to P6): a deterministic function of the log's prefix.
//!
//! Time enters only as the append time stored with each batch, so replicas at one offset have equal state.

use crate::batch::ProducerStamp;
use crate::ids::{Offset, ProducerId, TimestampMs};
use bytes::Bytes;

/// What the partition knows of its producers at one offset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProducerTable {
    // private
}

/// What to do with a batch of an idempotent producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the next one.
    Append,
    /// It was appended before, as `[base, end)`; answer with `base` once the high watermark has passed `end` (rule P3).
    Duplicate {
        /// Original base offset.
        base: Offset,
        /// Original end offset.
        end: Offset,
        /// Append time of the original.
        append_time: TimestampMs,
    },
}

/// Why a producer's batch is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProducerError {
    /// Epoch below the known one.
    #[error("producer {id} is fenced: a newer instance writes with a higher epoch")]
    Fenced {
        /// The producer.
        id: ProducerId,
    },
    /// A gap, or a new epoch that does not begin at 0.
    #[error("sequence {got} where {expected} is next for producer {id}")]
    OutOfOrder {
        /// The producer.
        id: ProducerId,
        /// Expected base sequence.
        expected: i32,
        /// Sequence that came.
        got: i32,
    },
    /// A retry older than the batches remembered.
    #[error("producer {id} repeats a batch older than the last five")]
    DuplicateUnknown {
        /// The producer.
        id: ProducerId,
    },
    /// `limits::PARTITION_PRODUCERS_MAX` live producers (rule T4).
    #[error("the partition has {max} live producers; reuse producers instead of making new ones")]
    TooMany {
        /// The bound.
        max: usize,
    },
}

impl ProducerTable {
    /// Judges a batch of `count` records. Changes nothing.
    ///
    /// A producer that is not known may begin at any sequence (it may have expired), as Kafka's brokers allow.
    /// # Errors
    /// Each `ProducerError`.
    pub fn check(&self, stamp: ProducerStamp, count: u32) -> Result<Verdict, ProducerError> { let _ = (stamp, count); todo!() }
    /// Records that a batch was appended; also the replay after a restart and on followers. Accepts what the log holds.
    pub fn append(&mut self, stamp: ProducerStamp, count: u32, base: Offset, append_time: TimestampMs) { let _ = (stamp, count, base, append_time); todo!() }
    /// Forgets producers whose last append is older than `expiry_ms` before `now` (an append time, rule P2).
    pub fn expire(&mut self, now: TimestampMs, expiry_ms: i64) { let _ = (now, expiry_ms); todo!() }
    /// Producers known.
    #[must_use]
    pub fn len(&self) -> usize { todo!() }
    /// Whether none is known.
    #[must_use]
    pub fn is_empty(&self) -> bool { self.len() == 0 }
    /// The state as bytes, with format version and CRC. Equal states give equal bytes.
    #[must_use]
    pub fn encode(&self) -> Bytes { todo!() }
    /// Reads what `encode` wrote.
    ///
    /// # Errors
    /// A reason, when the bytes are cut, damaged or of a newer version.
    pub fn decode(bytes: &[u8]) -> Result<ProducerTable, &'static str> { let _ = bytes; todo!() }
}
