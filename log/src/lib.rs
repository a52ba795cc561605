//! What the log is, in bytes: identities, limits, record batches, codecs, WAL frames, segments, indexes, producer state.
//!
//! Floor 0. Pure: no sockets, no files, no clock, no tasks, and no randomness but for the keys of hashes. Everything here can be tested by
//! calling it.

pub mod batch;
pub mod codec;
pub mod compaction;
pub mod epochs;
pub mod error_code;
mod fields;
pub mod frame;
pub mod ids;
pub mod limits;
pub mod manifest;
pub mod object_key;
pub mod plan;
pub mod producers;
#[cfg(any(test, feature = "testing"))]
pub mod properties;
pub mod segment;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod transactions;

pub use batch::Batch;
pub use error_code::ErrorCode;
pub use ids::{
    BrokerId, CoordinatorEpoch, Incarnation, LeaderEpoch, Lsn, Offset, PartitionId, ProducerEpoch, ProducerId, Rid,
    TimestampMs, TopicId, WalGen,
};
