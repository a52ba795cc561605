//! The write-ahead log: one per broker for all its partitions (rules W1 to W8). It owns every byte that is not yet in object storage.
//!
//! One writer thread does group commit; readers find batches through the tail index. It decides nothing about partitions.

use millpond_log::batch::ProducerStamp;
use millpond_log::{Batch, BrokerId, Incarnation, LeaderEpoch, Offset, PartitionId, TimestampMs, WalGen};
use std::path::PathBuf;
use tokio::sync::mpsc::UnboundedSender;

/// How large the WAL is and where it lives.
#[derive(Clone, Debug)]
pub struct WalOptions {
    /// Directory, locked against other processes while open.
    pub dir: PathBuf,
    /// Most bytes of WAL files on disk.
    pub bytes_max: u64,
    /// Bytes of one preallocated file.
    pub file_bytes: u64,
    /// Bytes of newest batches kept in memory for readers.
    pub memory_bytes: u64,
}

/// Who this WAL belongs to; kept in the directory and compared at every start (rule B1a).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalIdentity {
    /// The cluster's id.
    pub cluster: String,
    /// The broker's id.
    pub broker: BrokerId,
    /// Identity of the contents (rule K2).
    pub wal_gen: WalGen,
    /// Incarnation of the last boot that registered; 0 before the first.
    pub incarnation: Incarnation,
}

/// One thing to make durable. Records of one partition are written in the order they are given.
#[derive(Clone, Debug)]
pub enum WalRecord {
    /// A batch at its place: its base offset is the partition's end.
    Batch {
        /// The partition.
        partition: PartitionId,
        /// The batch, placed.
        batch: Batch,
        /// The leader's time of append (rule W3).
        append_time: TimestampMs,
        /// Chained hash of the log up to and with this batch (S6).
        prefix_hash: u64,
    },
    /// The highest epoch this replica has seen (rule R4).
    EpochSeen {
        /// The partition.
        partition: PartitionId,
        /// The epoch.
        epoch: LeaderEpoch,
    },
    /// The log ends at `to` again (rules R6, R7).
    Truncate {
        /// The partition.
        partition: PartitionId,
        /// New end.
        to: Offset,
    },
    /// The high watermark, no more than what was durable when it was handed in (rule R10).
    HighWatermark {
        /// The partition.
        partition: PartitionId,
        /// The high watermark.
        hw: Offset,
    },
    /// The partition starts over, empty, at `at`: its log below is elsewhere (rule R12), or it is new here.
    Reset {
        /// The partition.
        partition: PartitionId,
        /// Start and end of the empty log.
        at: Offset,
    },
    /// Its topic's tombstone was seen: nothing of it is needed any more (rules K6, S14).
    Drop {
        /// The partition.
        partition: PartitionId,
    },
}

/// What the WAL tells the owner of an appender.
#[derive(Clone, Debug)]
pub enum WalEvent {
    /// All records of every append up to and with this ticket are durable (rule W1).
    Synced {
        /// The newest durable ticket of this appender.
        ticket: u64,
    },
    /// A write or fsync failed: nothing will be acknowledged any more; the broker has to end (rule W2).
    Poisoned {
        /// What the system said.
        reason: String,
    },
}

/// Handle of the WAL. Cheap to clone; the writer ends when `close` is called or the last handle is dropped.
#[derive(Clone)]
pub struct Wal {}

/// Room in the WAL, reserved before a batch is admitted, so that a full disk refuses produce before an offset is given out
/// (rules W2, W7). Dropping it gives the room back; appending with it spends it.
#[derive(Debug)]
pub struct WalPermit {}

/// Hands records to the writer for one owner. Tickets are acknowledged in order.
pub struct WalAppender {}

/// What recovery found.
#[derive(Clone, Debug)]
pub struct Recovered {
    /// Whose WAL it is; `wal_gen` is new if the directory was empty or damaged (rule B4).
    pub identity: WalIdentity,
    /// Whether `wal_gen` is new with this start.
    pub fresh: bool,
    /// Each partition with anything in the WAL, in order of id.
    pub partitions: Vec<RecoveredPartition>,
    /// Damage to synced frames (rule W4), if any: what was lost, for the operator.
    pub damage: Vec<Damage>,
}

/// One partition as the WAL holds it. Everything in it is durable again (rule W3a).
#[derive(Clone, Debug)]
pub struct RecoveredPartition {
    /// The partition.
    pub partition: PartitionId,
    /// Highest epoch seen.
    pub epoch_seen: LeaderEpoch,
    /// Offset of the first batch held.
    pub start: Offset,
    /// Log end offset.
    pub end: Offset,
    /// High watermark; never above what is held.
    pub hw: Offset,
    /// Chained hash at `end`.
    pub prefix_hash: u64,
}

/// Synced frames that cannot be read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file.
    pub file: PathBuf,
    /// Byte position of the first bad frame.
    pub position: u64,
    /// The partitions that lost batches, each with the offset where the good part ends.
    pub partitions: Vec<(PartitionId, Offset)>,
}

/// One batch in the tail, as the index knows it. Enough to replay producer state and to plan reads without touching the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TailEntry {
    /// First offset.
    pub base: Offset,
    /// Offset after the last.
    pub end: Offset,
    /// Records in it.
    pub record_count: u32,
    /// Size of the batch in bytes.
    pub size: u32,
    /// Epoch it was appended in.
    pub leader_epoch: LeaderEpoch,
    /// The leader's time of append.
    pub append_time: TimestampMs,
    /// Largest record timestamp.
    pub max_timestamp: TimestampMs,
    /// Producer fields.
    pub producer: Option<ProducerStamp>,
}

/// Why the tail could not be read.
#[derive(Debug, thiserror::Error)]
pub enum TailReadError {
    /// The offset is below what the WAL holds: read it from object storage.
    #[error("the WAL holds the partition from offset {start} on")]
    Trimmed {
        /// First offset held.
        start: Offset,
    },
    /// The partition is not in this WAL.
    #[error("the WAL holds nothing of the partition")]
    Unknown,
    /// What was read back does not match its checksum; it is never served (S13).
    #[error("damaged frame in `{file}` at byte {position}")]
    Damaged {
        /// The file.
        file: PathBuf,
        /// Byte position of the frame.
        position: u64,
    },
    /// The system's error.
    #[error("read of the WAL failed")]
    Io(#[from] std::io::Error),
}

/// How full the WAL is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalUsage {
    /// Bytes in frames that some partition still needs.
    pub live_bytes: u64,
    /// Bytes of files in use.
    pub file_bytes: u64,
    /// Most bytes of files.
    pub bytes_max: u64,
    /// Bytes that can still be reserved.
    pub free_bytes: u64,
}
