//! A WAL on a disk, an appender that knows what it wrote, and the check of what came back.

use crate::wal::disk::Disk;
use crate::wal::sim::SimDisk;
use crate::wal::*;
use millpond_log::TopicId;
use millpond_log::batch::{BatchBuilder, NewRecord};
use millpond_log::codec::Codec;
use std::collections::BTreeMap;
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

/// The largest timestamp of a batch, which is not what its header claims.
pub(super) fn latest_of(base: u64) -> TimestampMs {
    TimestampMs(9_000 + base as i64)
}

pub(super) fn bytes_of(batch: &Batch) -> Vec<u8> {
    let mut bytes = Vec::new();
    batch.put(&mut bytes);
    bytes
}

pub(super) fn open(disk: &SimDisk, options: &WalOptions, fresh: u64) -> Result<(Wal, Recovered), WalError> {
    open_on(Arc::new(disk.process()), options, fresh)
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
}

/// What was done to a log, and the ticket that acknowledges it.
#[derive(Clone)]
enum Done {
    Appended(u64, Written),
    Truncated(u64, u64),
}

/// An appender for some partitions, and what it knows.
pub(super) struct Client {
    pub(super) wal: Wal,
    appender: WalAppender,
    events: UnboundedReceiver<WalEvent>,
    /// All batches in each log, in order.
    pub(super) logs: BTreeMap<PartitionId, Vec<Written>>,
    /// Each log when the client began, and what it did since: the WAL may hold any state from the acknowledged one on.
    history: BTreeMap<PartitionId, (Vec<Written>, Vec<Done>)>,
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
        let history = BTreeMap::new();
        Client { wal: wal.clone(), appender, events, logs, history, synced: 0, ticket: 0, poisoned: None, trimmed }
    }

    /// A client that goes on with these logs.
    pub(super) fn resume(wal: &Wal, logs: BTreeMap<PartitionId, Vec<Written>>) -> Client {
        let mut client = Client::new(wal);
        client.history = logs.iter().map(|(partition, log)| (*partition, (log.clone(), Vec::new()))).collect();
        client.logs = logs;
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
        };
        let record = WalRecord::Batch {
            partition,
            batch,
            append_time: TimestampMs(written.append_time),
            latest: latest_of(base),
            prefix_hash: written.hash,
        };
        self.ticket = self.appender.append(vec![record], vec![permit]);
        self.history.entry(partition).or_default().1.push(Done::Appended(self.ticket, written.clone()));
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
        self.history.entry(partition).or_default().1.push(Done::Truncated(self.ticket, to));
        self.logs.entry(partition).or_default().retain(|written| written.end <= to);
    }

    pub(super) fn trim(&mut self, partition: PartitionId, to: u64) {
        self.wal.trim(partition, Offset(to));
        let trimmed = self.trimmed.entry(partition).or_default();
        *trimmed = to.max(*trimmed);
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

    /// The states of a log that the WAL may hold, from what was acknowledged to what was handed in last.
    fn states(&self, partition: PartitionId) -> Vec<Vec<Written>> {
        let (mut log, done) = self.history.get(&partition).cloned().unwrap_or_default();
        let mut states = Vec::new();
        for done in done {
            let (Done::Appended(ticket, _) | Done::Truncated(ticket, _)) = &done;
            if *ticket > self.synced {
                states.push(log.clone());
            }
            match done {
                Done::Appended(_, written) => log.push(written),
                Done::Truncated(_, to) => log.retain(|written| written.end <= to),
            }
        }
        states.push(log);
        states
    }

    /// What was acknowledged of a partition.
    pub(super) fn acknowledged(&self, partition: PartitionId) -> Vec<Written> {
        self.states(partition).swap_remove(0)
    }
}

/// Every batch that the WAL holds of a partition, with its time of append.
pub(super) fn read_all(wal: &Wal, partition: PartitionId) -> Result<Vec<(Batch, TimestampMs)>, TailReadError> {
    loop {
        let Some((start, end)) = wal.bounds(partition) else { return Ok(Vec::new()) };
        match runtime().block_on(wal.read(partition, start, end, usize::MAX)) {
            // What nobody needs was given up meanwhile.
            Err(TailReadError::Trimmed { start: raised }) if raised > start => {}
            done => return done,
        }
    }
}

pub(super) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime starts")
}

/// The state of the log that the WAL holds: every acknowledged batch that is not trimmed has to be there, and everything that
/// is there has to be what was handed in, in order.
pub(super) fn state_held(client: &Client, wal: &Wal, partition: PartitionId) -> Result<Vec<Written>, String> {
    let held = read_all(wal, partition).map_err(|error| format!("{partition}: {error}"))?;
    let end = wal.bounds(partition).map_or(0, |(_, end)| end.0);
    let entries = wal.entries(partition, Offset(0), Offset(end));
    if let Some(entry) = entries.iter().find(|entry| entry.latest != latest_of(entry.base.0)) {
        return Err(format!("{partition}: the index has another largest timestamp: {entry:?}"));
    }
    let trimmed = client.trimmed.get(&partition).copied().unwrap_or_default();
    let mut complaint = String::new();
    for state in client.states(partition) {
        match differs(&state, &held, end, trimmed) {
            None => return hashes_differ(&state, wal, partition).map_or(Ok(state), Err),
            Some(difference) => complaint = difference,
        }
    }
    Err(format!(
        "{partition}: {complaint} (acknowledged to {:?})",
        client.acknowledged(partition).last().map(|last| last.end)
    ))
}

/// Rule S6: the chained hash is known where a batch that is held ends, and never another than the one handed in.
fn hashes_differ(state: &[Written], wal: &Wal, partition: PartitionId) -> Option<String> {
    let (start, _) = wal.bounds(partition)?;
    let begins = wal.prefix_hash_at(partition, start);
    let before = state.iter().rfind(|written| written.end == start.0).map_or(0, |written| written.hash);
    if begins.is_some_and(|hash| hash != before) {
        return Some(format!("{partition}: the hash at {start}, where it begins, is another"));
    }
    let held = |written: &&Written| written.base >= start.0;
    let wrong = |written: &&Written| wal.prefix_hash_at(partition, Offset(written.end)) != Some(written.hash);
    let bad = state.iter().filter(held).find(wrong)?;
    Some(format!("{partition}: the hash at {} is another", bad.end))
}

fn differs(state: &[Written], held: &[(Batch, TimestampMs)], end: u64, trimmed: u64) -> Option<String> {
    if state.last().map_or(0, |last| last.end) != end {
        return Some(format!("ends at {end}"));
    }
    let must_begin = state.iter().find(|written| written.end > trimmed).map_or(u64::MAX, |written| written.base);
    let start = held.first().map_or(u64::MAX, |(batch, _)| batch.base_offset().0);
    if start > must_begin {
        return Some(format!("begins at {start}, and is needed from {must_begin} on"));
    }
    let from = state.partition_point(|written| written.base < start);
    if held.len() != state.len() - from {
        return Some(format!("holds {} batches from {start} on", held.len()));
    }
    let same = |((batch, append_time), written): (&(Batch, TimestampMs), &Written)| {
        bytes_of(batch) == written.bytes && append_time.0 == written.append_time
    };
    let bad = held.iter().zip(&state[from..]).position(|pair| !same(pair))?;
    Some(format!("the batch at {} is another", state[from + bad].base))
}

/// What is wrong with the partition as the WAL holds it.
pub(super) fn faults(client: &Client, wal: &Wal, partition: PartitionId) -> Option<String> {
    state_held(client, wal, partition).err()
}

/// Fails on the first fault of any partition the client knows.
pub(super) fn check(client: &Client, wal: &Wal) {
    for partition in client.logs.keys() {
        assert_eq!(faults(client, wal, *partition), None);
    }
}

/// The WAL files, oldest first.
pub(super) fn wal_files(disk: &SimDisk) -> Vec<std::path::PathBuf> {
    disk.paths().into_iter().filter(|path| path.extension() == Some("wal".as_ref())).collect()
}

pub(super) fn recovered(recovered: &Recovered, partition: PartitionId) -> &RecoveredPartition {
    recovered.partitions.iter().find(|found| found.partition == partition).expect("the partition is recovered")
}
