//! A WAL on a disk, an appender that knows what it wrote, and the check of what came back.

use crate::wal::disk::Disk;
use crate::wal::sim::SimDisk;
use crate::wal::*;
use millpond_log::TopicId;
use millpond_log::batch::{BatchBuilder, NewRecord};
use millpond_log::codec::Codec;
use std::collections::BTreeMap;
use std::path::Path;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

pub(super) const DIR: &str = "/wal";

/// Small files, so that a test goes through many.
pub(super) fn small() -> WalOptions {
    WalOptions { dir: DIR.into(), bytes_max: 12 * (64 << 10), file_bytes: 64 << 10, memory_bytes: 16 << 10 }
}

pub(super) fn partition(index: u32) -> PartitionId {
    PartitionId { topic: TopicId(7), index }
}

/// A batch of `records` records, with a body that depends on its place and on `salt`.
pub(super) fn batch(partition: PartitionId, base: u64, records: u32, bytes: usize, salt: u64) -> Batch {
    let mut builder = BatchBuilder::new(Codec::None);
    for record in 0..records {
        let mut value = format!("{partition} {base} {record} {salt} ").into_bytes();
        value.resize(value.len().max(bytes), b'.');
        let timestamp = TimestampMs(1_000 + base as i64);
        builder.push(NewRecord { timestamp, key: None, value: Some(&value), headers: &[] });
    }
    let mut batch = builder.build();
    batch.place(Offset(base), LeaderEpoch(1));
    batch
}

pub(super) fn bytes_of(batch: &Batch) -> Vec<u8> {
    let mut bytes = Vec::new();
    batch.put(&mut bytes);
    bytes
}

pub(super) fn open(disk: &SimDisk, options: &WalOptions, fresh: u64) -> Result<(Wal, Recovered), WalError> {
    open_on(Arc::new(disk.clone()), options, fresh)
}

pub(super) fn open_on(disk: Arc<dyn Disk>, options: &WalOptions, fresh: u64) -> Result<(Wal, Recovered), WalError> {
    Wal::open(options.clone(), disk, "cluster-1", BrokerId(3), WalGen(fresh))
}

/// One batch as it was handed in.
#[derive(Clone, PartialEq)]
pub(super) struct Written {
    pub(super) base: u64,
    pub(super) end: u64,
    pub(super) bytes: Vec<u8>,
    pub(super) append_time: i64,
    pub(super) hash: u64,
    ticket: u64,
}

/// An appender for some partitions, and what it knows.
pub(super) struct Client {
    pub(super) wal: Wal,
    appender: WalAppender,
    events: UnboundedReceiver<WalEvent>,
    /// All batches in each log, in order.
    pub(super) logs: BTreeMap<PartitionId, Vec<Written>>,
    pub(super) synced: u64,
    ticket: u64,
    pub(super) poisoned: Option<String>,
    pub(super) trimmed: BTreeMap<PartitionId, u64>,
}

impl Client {
    pub(super) fn new(wal: &Wal) -> Client {
        let (sender, events) = unbounded_channel();
        let appender = wal.appender(sender);
        let (logs, trimmed) = (BTreeMap::new(), BTreeMap::new());
        Client { wal: wal.clone(), appender, events, logs, synced: 0, ticket: 0, poisoned: None, trimmed }
    }

    /// A client that goes on with these logs.
    pub(super) fn resume(wal: &Wal, logs: BTreeMap<PartitionId, Vec<Written>>) -> Client {
        let mut client = Client::new(wal);
        client.logs = logs;
        client.logs.values_mut().flatten().for_each(|written| written.ticket = 0);
        client
    }

    pub(super) fn end(&self, partition: PartitionId) -> u64 {
        self.logs.get(&partition).and_then(|log| log.last()).map_or(0, |last| last.end)
    }

    /// Appends a batch; false if the WAL has no room for it.
    pub(super) fn append(&mut self, partition: PartitionId, records: u32, bytes: usize) -> bool {
        let base = self.end(partition);
        let batch = batch(partition, base, records, bytes, 0);
        let Some(permit) = self.wal.reserve(batch.size()) else { return false };
        let hash = self.logs.get(&partition).and_then(|log| log.last()).map_or(0, |last| last.hash);
        let written = Written {
            base,
            end: base + u64::from(records),
            bytes: bytes_of(&batch),
            append_time: 5_000 + base as i64,
            hash: hash.wrapping_mul(31).wrapping_add(base + 1),
            ticket: self.ticket + 1,
        };
        let record = WalRecord::Batch {
            partition,
            batch,
            append_time: TimestampMs(written.append_time),
            prefix_hash: written.hash,
        };
        self.ticket = self.appender.append(vec![record], vec![permit]);
        assert_eq!(self.ticket, written.ticket);
        self.logs.entry(partition).or_default().push(written);
        true
    }

    /// Appends a batch, however often it has to ask. False if the WAL is poisoned instead.
    pub(super) fn append_when_there_is_room(&mut self, partition: PartitionId, records: u32, bytes: usize) -> bool {
        while !self.append(partition, records, bytes) {
            if !self.sync() {
                return false;
            }
            self.poll();
            if self.poisoned.is_some() {
                return false;
            }
            // Another thread makes the room.
            std::thread::yield_now();
        }
        true
    }

    /// Hands in a record that is no batch.
    pub(super) fn control(&mut self, record: WalRecord) {
        self.ticket = self.appender.append(vec![record], Vec::new());
    }

    pub(super) fn truncate(&mut self, partition: PartitionId, to: u64) {
        self.control(WalRecord::Truncate { partition, to: Offset(to) });
        self.logs.entry(partition).or_default().retain(|written| written.end <= to);
    }

    pub(super) fn trim(&mut self, partition: PartitionId, to: u64) {
        self.wal.trim(partition, Offset(to));
        self.trimmed.insert(partition, to);
    }

    /// Waits until everything handed in is durable, or the WAL is poisoned.
    pub(super) fn sync(&mut self) -> bool {
        while self.synced < self.ticket && self.poisoned.is_none() {
            let event = self.events.blocking_recv().expect("the WAL answers or poisons");
            self.note(event);
        }
        self.poisoned.is_none()
    }

    /// Takes the events that are there.
    pub(super) fn poll(&mut self) {
        while let Ok(event) = self.events.try_recv() {
            self.note(event);
        }
    }

    fn note(&mut self, event: WalEvent) {
        match event {
            WalEvent::Synced { ticket } => {
                assert!(ticket > self.synced && ticket <= self.ticket, "tickets come in order");
                assert!(self.poisoned.is_none(), "rule W2: acknowledged after an error");
                self.synced = ticket;
            }
            WalEvent::Poisoned { reason } => self.poisoned = Some(reason),
        }
    }

    /// What was acknowledged of a partition.
    pub(super) fn acknowledged(&self, partition: PartitionId) -> &[Written] {
        let log = self.logs.get(&partition).map(Vec::as_slice).unwrap_or_default();
        &log[..log.partition_point(|written| written.ticket <= self.synced)]
    }
}

/// Every batch that the WAL holds of a partition, with its time of append.
pub(super) fn read_all(wal: &Wal, partition: PartitionId) -> Result<Vec<(Batch, TimestampMs)>, TailReadError> {
    let Some((start, end)) = wal.bounds(partition) else { return Ok(Vec::new()) };
    runtime().block_on(wal.read(partition, start, end, usize::MAX))
}

pub(super) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime starts")
}

/// What is wrong with the partition as the WAL holds it: every acknowledged batch that is not trimmed has to be there, and
/// everything that is there has to be what was handed in, in order.
pub(super) fn faults(client: &Client, wal: &Wal, partition: PartitionId) -> Option<String> {
    let log = client.logs.get(&partition).cloned().unwrap_or_default();
    let acknowledged = client.acknowledged(partition);
    let held = match read_all(wal, partition) {
        Ok(held) => held,
        Err(error) => return Some(format!("{partition}: {error}")),
    };
    let start = held.first().map_or(u64::MAX, |(batch, _)| batch.base_offset().0);
    let trimmed = client.trimmed.get(&partition).copied().unwrap_or_default();
    let must_begin = acknowledged.iter().find(|written| written.end > trimmed).map_or(u64::MAX, |written| written.base);
    if start > must_begin {
        return Some(format!("{partition}: begins at {start}, and {must_begin} was acknowledged"));
    }
    let from = log.partition_point(|written| written.base < start);
    for (nth, (batch, append_time)) in held.iter().enumerate() {
        let Some(written) = log.get(from + nth) else { return Some(format!("{partition}: a batch nobody wrote")) };
        if bytes_of(batch) != written.bytes || append_time.0 != written.append_time {
            return Some(format!("{partition}: the batch at {} is another", written.base));
        }
    }
    if from + held.len() < acknowledged.len() && must_begin < u64::MAX {
        return Some(format!("{partition}: {} of {} acknowledged batches are lost", acknowledged.len() - from - held.len(), acknowledged.len()));
    }
    None
}

/// Fails on the first fault of any partition the client knows.
pub(super) fn check(client: &Client, wal: &Wal) {
    for partition in client.logs.keys() {
        assert_eq!(faults(client, wal, *partition), None);
    }
}

/// The newest WAL file with something in it, by name.
pub(super) fn wal_files(disk: &SimDisk) -> Vec<std::path::PathBuf> {
    disk.paths().into_iter().filter(|path| path.extension() == Some("wal".as_ref())).collect()
}

pub(super) fn recovered(recovered: &Recovered, partition: PartitionId) -> &RecoveredPartition {
    recovered.partitions.iter().find(|found| found.partition == partition).expect("the partition is recovered")
}

pub(super) fn file_of(number: u64) -> std::path::PathBuf {
    Path::new(DIR).join(format!("{number:020}.wal"))
}
