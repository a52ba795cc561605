//! Why bytes are no batch, or a batch is not acceptable.

use crate::ErrorCode;
use crate::codec::CodecError;

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
    /// A timestamp outside the topic's bounds.
    #[error("timestamp {timestamp} is outside what the topic accepts (message.timestamp.before.max.ms, after.max.ms)")]
    Timestamp {
        /// The offending timestamp.
        timestamp: i64,
        /// Whose it is: the record's place in the batch, from 0.
        record: u32,
    },
    /// Only the last record of a key is kept in the topic, and this one has none.
    #[error("record without a key in a compacted topic")]
    NoKey {
        /// The record's place in the batch, from 0.
        record: u32,
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
    /// Place in the batch of the record that spoils it, from 0, where it is one by itself (KIP-467): without it the others would do.
    #[must_use]
    pub fn record(&self) -> Option<u32> {
        match self {
            BatchError::Timestamp { record, .. } | BatchError::NoKey { record } => Some(*record),
            _ => None,
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
