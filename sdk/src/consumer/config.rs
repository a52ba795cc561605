//! Settings of a consumer.

use crate::backoff::Backoff;
use crate::isolation::IsolationLevel;
use millpond_log::{Offset, TimestampMs};

/// What to do when the position does not exist: records were deleted, or never there. Kafka's `auto.offset.reset`.
///
/// Where an unclean election took records away that were read before, the last two go on where the log parts from what was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OffsetReset {
    /// Say so: nothing is skipped silently. The partition stops until it is sought elsewhere.
    #[default]
    Fail,
    /// Go on at the log start offset.
    Earliest,
    /// Go on at the end.
    Latest,
}

/// Which brokers a consumer reads from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadFrom {
    /// Leaders, or the replica in the consumer's rack where it named one.
    #[default]
    Leader,
    /// Whichever broker, one of the consumer's rack first, as long as what is wanted lies in object storage; then as `Leader`. For
    /// replays: they spread over the whole cluster, and go on where nobody leads.
    AnyBroker,
}

/// Where to begin in a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartAt {
    /// At this offset.
    Offset(Offset),
    /// At the log start offset.
    Earliest,
    /// At the end: only what comes from now on.
    Latest,
    /// At the earliest record of this time or later; at the end if there is none.
    Time(TimestampMs),
}

/// How a consumer behaves.
#[derive(Clone, Debug)]
pub struct ConsumerConfig {
    /// Which records are seen.
    pub isolation: IsolationLevel,
    /// What to do when the position does not exist.
    pub offset_reset: OffsetReset,
    /// Most bytes of batches read ahead and not consumed yet, as they are in the log, over all partitions; one batch for
    /// each broker may exceed it.
    pub read_ahead_bytes: usize,
    /// The consumer goes through old data once: the brokers' caches keep what others use.
    pub scan: bool,
    /// Whether each batch's checksum is verified. `check.crcs`.
    pub check_crcs: bool,
    /// Where the consumer is: partitions are read from a replica in this rack, where one is in sync. Kafka's `client.rack`.
    pub rack: Option<String>,
    /// Which brokers are read from.
    pub read_from: ReadFrom,
    /// Most records one `poll` returns. `max.poll.records`.
    pub poll_records_max: usize,
    /// Pauses between tries.
    pub retry_backoff: Backoff,
}

impl Default for ConsumerConfig {
    fn default() -> ConsumerConfig {
        ConsumerConfig {
            isolation: IsolationLevel::default(),
            offset_reset: OffsetReset::default(),
            // Two connection windows: the wire stays full while one half is consumed.
            read_ahead_bytes: 32 << 20,
            scan: false,
            check_crcs: true,
            rack: None,
            read_from: ReadFrom::default(),
            poll_records_max: 500,
            retry_backoff: Backoff::default(),
        }
    }
}
