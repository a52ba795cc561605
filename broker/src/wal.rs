//! The write-ahead log: one per broker for all its partitions (rules W1 to W8). It owns every byte that is not yet in object storage.
//!
//! One writer thread does group commit; readers find batches through the tail index. It decides nothing about partitions.

pub mod disk;
mod file;
mod files;
mod group;
mod index_file;
mod open;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod properties;
mod queue;
mod read;
mod recovery;
mod replay;
mod scan;
mod shared;
#[cfg(any(test, feature = "testing"))]
pub mod sim;
mod space;
pub(crate) mod state_file;
mod tail;
mod tails;
#[cfg(test)]
mod tests;
mod writer;

use crate::metrics::WalMeters;
use millpond_core::replica::Placed;
use millpond_core::tiering::TailSummary;
use millpond_log::batch::ProducerWrite;
use millpond_log::frame::BLOCK_BYTES;
use millpond_log::{Batch, BrokerId, Incarnation, LeaderEpoch, Lsn, Offset, PartitionId, TimestampMs, WalGen};
use queue::{Done, Item};
use shared::{Shared, lock};
use space::Room;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use tail::Freed;
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
        /// Largest timestamp of its records, which its header need not tell truly.
        latest: TimestampMs,
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
        /// Chained hash of the log below (S6).
        prefix_hash: u64,
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

/// Handle of the WAL. Cheap to clone; the writer ends when `close` is called, or the last handle and appender are dropped.
#[derive(Clone)]
pub struct Wal {
    shared: Arc<Shared>,
    guard: Arc<Guard>,
}

/// Ends the writer when nobody can hand it anything any more.
struct Guard {
    shared: Arc<Shared>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// Room in the WAL, reserved before a batch is admitted, so that a full disk refuses produce before an offset is given out
/// (rules W2, W7). Dropping it gives the room back; appending with it spends it.
pub struct WalPermit {
    shared: Arc<Shared>,
    cost: u64,
    /// Open until the batch is durable.
    span: tracing::Span,
}

/// Hands records to the writer for one owner. Tickets are acknowledged in order.
/// A partition's records come from one appender at a time.
pub struct WalAppender {
    shared: Arc<Shared>,
    _guard: Arc<Guard>,
    number: u64,
    events: UnboundedSender<WalEvent>,
    ticket: u64,
}

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
    /// How far the log is known to have reached before it was damaged; `end` where nothing is lost, or nothing tells.
    pub known_end: Offset,
    /// High watermark; never above what is held.
    pub hw: Offset,
    /// Chained hash at `end` (S6). `None` only if no batch is left and the frames that are do not say it.
    pub prefix_hash: Option<u64>,
}

/// Synced frames that cannot be read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file.
    pub file: PathBuf,
    /// Byte position of the first bad frame.
    pub position: u64,
    /// The partitions that lost frames, or may have, each with the offset where the good part ends. A partition of which nothing
    /// is left at all cannot be named here: after damage, one that is missing from `Recovered::partitions` has lost its tail.
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
    /// Largest timestamp of its records, as it was handed in: the batch's header need not tell it truly.
    pub latest: TimestampMs,
    /// What it is to its producer's state.
    pub producer: Option<ProducerWrite>,
}

/// What a reader of a tail has before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ahead {
    /// Bytes of batches up to the log end.
    pub(crate) bytes: u64,
    /// Size of the next batch in bytes; 0 if there is none.
    pub(crate) next: u32,
    /// Whether all of it is in memory.
    pub(crate) in_memory: bool,
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

/// Why the WAL cannot be opened or changed.
#[derive(Debug, thiserror::Error)]
pub enum WalError {
    /// Another process has the directory open.
    #[error("`{dir}` is in use by another process", dir = dir.display())]
    Locked {
        /// The directory.
        dir: PathBuf,
    },
    /// The directory is another broker's, or of another cluster.
    #[error("the WAL holds data of broker {} of cluster `{}`, not of {wanted}", found.broker, found.cluster)]
    OtherOwner {
        /// Whose it is.
        found: Box<WalIdentity>,
        /// Who wanted it.
        wanted: String,
    },
    /// The identity of a directory with data in it cannot be read.
    #[error("`{file}` does not say whose data it is; start the broker with the --id it had", file = file.display())]
    Unlabelled {
        /// The identity file.
        file: PathBuf,
    },
    /// Another version wrote it.
    #[error("`{file}` has format {format}, which this version cannot read; use the version that wrote it", file = file.display())]
    OtherFormat {
        /// The file.
        file: PathBuf,
        /// Its format.
        format: u32,
    },
    /// Settings that cannot work.
    #[error("WAL settings: {0}")]
    Options(&'static str),
    /// A write or sync failed before (rule W2).
    #[error("the WAL is poisoned: {0}")]
    Poisoned(String),
    /// The system's error.
    #[error("the WAL cannot be read or written")]
    Io(#[from] io::Error),
}

impl Wal {
    /// Makes `incarnation` part of the identity (rule B1a); durable when it returns. Blocks.
    ///
    /// # Errors
    /// `Io`: it is not known whether the old or the new one stands. The broker has to end.
    pub fn set_incarnation(&self, incarnation: Incarnation) -> Result<(), WalError> {
        Ok(self.shared.relabel(|label| label.identity.incarnation = incarnation)?)
    }

    /// Takes another `wal_gen`, because the disk turned out to be an old snapshot (rules B1a and B4). Before registering. Blocks.
    ///
    /// # Errors
    /// `Io`: it is not known whether the old or the new one stands. The broker has to end.
    pub fn renew(&self, fresh_wal_gen: WalGen) -> Result<(), WalError> {
        Ok(self.shared.relabel(|label| {
            label.identity.wal_gen = fresh_wal_gen;
            label.identity.incarnation = Incarnation(0);
        })?)
    }

    /// Whose WAL it is.
    #[must_use]
    pub fn identity(&self) -> WalIdentity {
        lock(&self.shared.label).1.identity.clone()
    }

    /// Forgets the damage to a partition, once its loss is accepted or healed; until then each start reports it again. Blocks.
    ///
    /// # Errors
    /// `Io`: the next start reports it again.
    pub fn settle_damage(&self, partition: PartitionId) -> Result<(), WalError> {
        let of_others = |bad: &state_file::Bad| bad.partition.is_none_or(|(lost, _)| lost != partition);
        if lock(&self.shared.damage).iter().all(of_others) {
            return Ok(());
        }
        self.shared.remember(|damage| damage.retain(of_others))
    }

    /// Newest frame that was found when it was opened, whatever was written since: which disk it is is told by that (rule B1a).
    #[must_use]
    pub fn found_lsn(&self) -> Lsn {
        self.shared.found_lsn
    }

    /// Newest durable frame (rule B1a).
    #[must_use]
    pub fn durable_lsn(&self) -> Lsn {
        Lsn(self.shared.durable_lsn.load(Ordering::Acquire))
    }

    /// Largest batch the WAL takes, in bytes: about a quarter of a file.
    #[must_use]
    pub fn batch_bytes_max(&self) -> usize {
        space::batch_bytes_max(self.shared.options.file_bytes)
    }

    /// Reserves room for a batch of `bytes` (its size), if there is some now.
    ///
    /// `None` when the WAL is full, or the disk is, or the WAL is poisoned: refuse the produce with a retriable error. Room comes
    /// back by itself after a trim, or when the disk has space again.
    #[must_use]
    pub fn reserve(&self, bytes: usize) -> Option<WalPermit> {
        match self.room(bytes) {
            Room::Reserved(cost) => Some(self.permit(cost)),
            Room::Soon | Room::Full => None,
        }
    }

    /// As `reserve`, but waits while there is none because files are made more slowly than they are filled.
    ///
    /// Cancel safe.
    pub async fn reserve_soon(&self, bytes: usize) -> Option<WalPermit> {
        loop {
            // Before it is asked, so that no change is missed.
            let changes = self.shared.space.changes();
            match self.room(bytes) {
                Room::Reserved(cost) => return Some(self.permit(cost)),
                Room::Soon => changes.await,
                Room::Full => return None,
            }
        }
    }

    fn room(&self, bytes: usize) -> Room {
        let room = self.shared.space.reserve(bytes);
        if !matches!(room, Room::Reserved(_)) {
            // The writer may be able to give a file up; it may be asleep.
            self.shared.queue.nudge();
        }
        room
    }

    fn permit(&self, cost: u64) -> WalPermit {
        WalPermit { shared: self.shared.clone(), cost, span: tracing::Span::none() }
    }

    /// Has each group measured from now on. Once at most.
    pub(crate) fn measure(&self, meters: WalMeters) {
        let first = self.shared.meters.set(meters).is_ok();
        assert!(first, "a WAL is measured by one broker");
    }

    /// An appender that reports to `events`.
    #[must_use]
    pub fn appender(&self, events: UnboundedSender<WalEvent>) -> WalAppender {
        let number = lock(&self.shared.listeners).add(events.clone());
        WalAppender { shared: self.shared.clone(), _guard: self.guard.clone(), number, events, ticket: 0 }
    }

    /// Reads whole batches of `[from, to)` in order, each with its time of append; the first contains `from`.
    ///
    /// Stops before batches that begin at or after `to`, and before `bytes_max` is exceeded, but gives at least one if there is any.
    /// Batches may not be durable yet: `to` is the caller's guard. Does not await when all of them are in memory.
    ///
    /// # Errors
    /// As the variants of `TailReadError` say. Nothing damaged is ever returned (S13).
    ///
    /// Cancel safe.
    pub async fn read(
        &self,
        partition: PartitionId,
        from: Offset,
        to: Offset,
        bytes_max: usize,
    ) -> Result<Vec<(Batch, TimestampMs)>, TailReadError> {
        let placed = self.read_placed(partition, from, to, bytes_max).await?;
        Ok(placed.into_iter().map(|placed| (placed.batch, placed.append_time)).collect())
    }

    /// Reads as `read` does, each batch with all that the log keeps beside it: as a leader pushes it. What is not durable here yet
    /// is read too, and may be pushed (rule R9).
    ///
    /// # Errors
    /// As `read`.
    ///
    /// Cancel safe.
    pub(crate) async fn read_placed(
        &self,
        partition: PartitionId,
        from: Offset,
        to: Offset,
        bytes_max: usize,
    ) -> Result<Vec<Placed>, TailReadError> {
        let mut missing = None;
        loop {
            let plan = read::Plan::new(&self.shared, partition, from, to, bytes_max)?;
            let done = if plan.on_disk() {
                let shared = self.shared.clone();
                tokio::task::spawn_blocking(move || plan.read(&shared)).await.map_err(io::Error::other)??
            } else {
                plan.read(&self.shared)?
            };
            match done {
                read::Done::Read(batches) => return Ok(batches),
                // Read again where it lies now; the same place twice is damage.
                read::Done::Missing(place) if missing == Some(place) => {
                    let path = self.shared.space.file(place.file).map(|file| file.path.clone());
                    let file = path.unwrap_or_else(|| self.shared.options.dir.clone());
                    return Err(TailReadError::Damaged { file, position: place.position });
                }
                read::Done::Missing(place) => missing = Some(place),
            }
        }
    }

    /// The index entries of the batches that overlap `[from, to)`, in order. Empty for a partition that is not here.
    #[must_use]
    pub fn entries(&self, partition: PartitionId, from: Offset, to: Offset) -> Vec<TailEntry> {
        let look = |tail: &tail::Tail| {
            let entries = tail.batches_from(from).map(|(held, _)| held.entry);
            entries.take_while(|entry| entry.base < to).collect()
        };
        self.shared.tails.look(partition, look).unwrap_or_default()
    }

    /// The whole batches of `[from, to)` in brief, at most `bytes_max` of them but one at least: what a look at an idle partition
    /// costs does not grow with its tail. `None` if the WAL has none that begins at `from`.
    #[must_use]
    pub fn summary(&self, partition: PartitionId, from: Offset, to: Offset, bytes_max: u64) -> Option<TailSummary> {
        self.shared.tails.look(partition, |tail| tail.summary(from, to, bytes_max)).flatten()
    }

    /// First offset that can be read, and log end offset.
    #[must_use]
    pub fn bounds(&self, partition: PartitionId) -> Option<(Offset, Offset)> {
        self.shared.tails.look(partition, |tail| (tail.start(), tail.end()))
    }

    /// A partition as the WAL holds it now, durable or not: what recovery would say of it. `None` if it holds nothing.
    #[must_use]
    pub fn held(&self, partition: PartitionId) -> Option<RecoveredPartition> {
        let mut held = self.shared.tails.look(partition, |tail| tail.report(partition))?;
        open::note_known_ends(std::slice::from_mut(&mut held), &lock(&self.shared.damage));
        Some(held)
    }

    /// Chained hash of the log up to `offset` (S6), durable or not. `None` where no batch that is held begins or ends.
    #[must_use]
    pub fn prefix_hash_at(&self, partition: PartitionId, offset: Offset) -> Option<u64> {
        self.shared.tails.look(partition, |tail| tail.prefix_hash_at(offset)).flatten()
    }

    /// Batches wholly below `to` are no longer needed (the caller upholds rule T6). They stay readable until the space is needed;
    /// a restart may bring them back.
    pub fn trim(&self, partition: PartitionId, to: Offset) {
        let mut freed = Vec::new();
        self.shared.tails.change(partition, |tail| tail.trim(to, &mut freed));
        if !freed.is_empty() {
            self.shared.space.free(&freed);
            // The writer gives files up; it may be asleep.
            self.shared.queue.nudge();
        }
    }

    /// What a reader at `from` has before it; `None` for a partition that is not here.
    #[must_use]
    pub(crate) fn ahead(&self, partition: PartitionId, from: Offset) -> Option<Ahead> {
        self.shared.tails.look(partition, |tail| tail.ahead(from))
    }

    /// How full the WAL is.
    #[must_use]
    pub fn usage(&self) -> WalUsage {
        self.shared.space.usage()
    }

    /// The partitions of which a start now might find something: all but those whose drop is durable. In no order.
    #[must_use]
    pub fn partitions(&self) -> Vec<PartitionId> {
        self.shared.tails.which(|tail| !tail.is_gone())
    }

    /// Bytes of the partition's batches that are not trimmed.
    #[must_use]
    pub fn partition_bytes(&self, partition: PartitionId) -> u64 {
        self.shared.tails.look(partition, tail::Tail::needed_bytes).unwrap_or_default()
    }

    /// Writes what was handed in, marks the log clean and ends the threads. Blocks. Other handles can only read afterwards.
    ///
    /// # Errors
    /// `Poisoned` if a write or sync failed, now or before.
    pub fn close(self) -> Result<(), WalError> {
        self.shared.queue.close();
        if let Some(writer) = lock(&self.guard.writer).take() {
            writer.join().map_err(|_| WalError::Poisoned("the writer panicked".to_owned()))?;
        }
        self.shared.poisoned().map_or(Ok(()), |reason| Err(WalError::Poisoned(reason)))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.shared.queue.close();
    }
}

impl WalAppender {
    /// Hands records in, in order; the answer's number comes back in `WalEvent::Synced` once all of them are durable.
    ///
    /// Never blocks. `permits` hold the room that batches take. Records without a batch need none (rule W7).
    /// After `close`, or once poisoned, nothing is written and nothing acknowledged.
    ///
    /// Panics if a batch is not at its partition's end, or is larger than `batch_bytes_max`: then the caller is wrong.
    pub fn append(&mut self, records: Vec<WalRecord>, permits: Vec<WalPermit>) -> u64 {
        self.ticket += 1;
        let shared = &self.shared;
        let done = Done { appender: self.number, events: self.events.clone(), ticket: self.ticket, permits };
        let mut freed: Vec<Freed> = Vec::new();
        let mut done = Some(done);
        let count = records.len();
        // Checksums cost more than all the rest, so they are computed before the lock is taken, on the caller's core.
        let records: Vec<(WalRecord, u32)> = records.into_iter().map(with_crc).collect();
        let mut waiting = shared.queue.lock();
        if records.is_empty() {
            waiting.push(Item { record: None, crc: 0, done: done.take() });
        }
        for (nth, (record, crc)) in records.into_iter().enumerate() {
            let partition = partition_of(&record);
            // The queue's lock is held, so the order of sequence numbers is the order of the log.
            let seq = shared.tails.change_or_add(partition, |tail| tail.apply(&record, &mut freed));
            let last = nth + 1 == count;
            let item = Item { record: Some((seq, record)), crc, done: if last { done.take() } else { None } };
            assert!(item.bytes() <= shared.options.file_bytes - BLOCK_BYTES, "a batch larger than a WAL file");
            waiting.push(item);
        }
        drop(waiting);
        shared.queue.wake();
        shared.space.free(&freed);
        self.ticket
    }
}

impl Drop for WalAppender {
    fn drop(&mut self) {
        lock(&self.shared.listeners).remove(self.number);
    }
}

impl WalPermit {
    /// Lets `span` end when the batch is durable, and links it to the span of its group.
    pub(crate) fn trace(&mut self, span: tracing::Span) {
        self.span = span;
    }
}

impl Drop for WalPermit {
    fn drop(&mut self) {
        self.shared.space.unreserve(self.cost);
    }
}

impl std::fmt::Debug for WalPermit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WalPermit").field("cost", &self.cost).finish()
    }
}

fn with_crc(record: WalRecord) -> (WalRecord, u32) {
    let crc = match &record {
        WalRecord::Batch { batch, .. } => crc32c::crc32c_append(crc32c::crc32c(batch.head()), batch.records_bytes()),
        _ => 0,
    };
    (record, crc)
}

fn partition_of(record: &WalRecord) -> PartitionId {
    match record {
        WalRecord::Batch { partition, .. }
        | WalRecord::EpochSeen { partition, .. }
        | WalRecord::Truncate { partition, .. }
        | WalRecord::HighWatermark { partition, .. }
        | WalRecord::Reset { partition, .. }
        | WalRecord::Drop { partition } => *partition,
    }
}
