//! Why bytes are no batch, or a batch is not acceptable.

use crate::ErrorCode;
use crate::codec::CodecError;

/// Records that are named of those that spoil a batch: so many, and no more, are told to a client that may send millions.
pub const SPOILT_RECORDS_MAX: usize = 10_000;

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
    /// Header or records contradict themselves or the format: whoever made the batch made it so.
    #[error("malformed batch: {0}")]
    Malformed(&'static str),
    /// The CRC-32C does not match, or a stored compressed stream is damaged: it was changed on its way.
    #[error("corrupt batch: {0}")]
    Corrupt(&'static str),
    /// Larger than the topic's `max.message.bytes`.
    #[error("batch of {size} bytes is over max.message.bytes={max}; send smaller batches or raise the topic's limit")]
    TooLarge {
        /// Size of the batch in bytes, as received; after re-encoding where that made it larger.
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
    /// Timestamps outside the topic's bounds.
    #[error("timestamp {timestamp} is outside what the topic accepts (message.timestamp.before.max.ms, after.max.ms)")]
    Timestamp {
        /// The first of them.
        timestamp: i64,
        /// Places in the batch, from 0, of the records that spoil it, those without a key in a compacted topic included; at most
        /// [`SPOILT_RECORDS_MAX`].
        records: Vec<u32>,
    },
    /// Only the last record of a key is kept in the topic, and these have none.
    #[error("record without a key in a compacted topic")]
    NoKey {
        /// Their places in the batch, from 0; at most [`SPOILT_RECORDS_MAX`].
        records: Vec<u32>,
    },
    /// The producer claims the broker's clock: only a broker stamps `LogAppendTime`.
    #[error("batch is marked LogAppendTime, which only a broker may do")]
    TimestampType,
    /// Magic 0 or 1: older than batch v2.
    #[error("message format {0} is not supported; use a client that writes record batch v2")]
    OldFormat(i8),
}

impl BatchError {
    /// The code a client gets: the one that Kafka's broker answers, where it has one.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            BatchError::Cut { .. } | BatchError::Corrupt(_) => ErrorCode::CorruptMessage,
            BatchError::Malformed(_) | BatchError::OldFormat(_) | BatchError::NoKey { .. } => ErrorCode::InvalidRecord,
            // Producers answer it by splitting the batch, which is the cure for both.
            BatchError::TooLarge { .. } | BatchError::InflatedTooLarge { .. } => ErrorCode::MessageTooLarge,
            BatchError::Timestamp { .. } | BatchError::TimestampType => ErrorCode::InvalidTimestamp,
        }
    }
}

impl BatchError {
    /// Places in the batch of the records that spoil it, from 0 and ascending, where it is they by themselves (KIP-467): without them the
    /// others would do. The first [`SPOILT_RECORDS_MAX`] of more.
    #[must_use]
    pub fn records(&self) -> &[u32] {
        match self {
            BatchError::Timestamp { records, .. } | BatchError::NoKey { records } => records,
            _ => &[],
        }
    }
}

impl From<super::layout::Malformed> for BatchError {
    fn from(what: super::layout::Malformed) -> BatchError {
        BatchError::Malformed(what)
    }
}

impl From<CodecError> for BatchError {
    fn from(error: CodecError) -> BatchError {
        match error {
            CodecError::Corrupt(what) => BatchError::Corrupt(what),
            CodecError::TooLarge { max } => BatchError::InflatedTooLarge { max },
        }
    }
}
