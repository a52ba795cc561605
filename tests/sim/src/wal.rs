//! A broker's disk: one log of frames for all its partitions, written in groups (rules W1, W3, W3a, W4).
//!
//! A model of the broker's WAL, not its code: groups are written to the page cache, made durable by a sync of their file, torn by a
//! power cut and judged at recovery as the rules say. Files are freed oldest first; `base` stands for the states and live frames
//! that the real one copies ahead (rules W8, W8a).

use crate::log::{Log, Record};
use crate::rng::Rng;
use millpond_core::replica::Placed;
use millpond_log::{Incarnation, Offset, PartitionId, WalGen};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Groups in one file.
const FILE_GROUPS: usize = 5;

/// What the disk says of itself, in a small file of its own (rule W5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    pub(crate) wal_gen: WalGen,
    /// The newest incarnation it was told of (rule B1a).
    pub(crate) inc: Incarnation,
}

#[derive(Clone, Debug)]
struct Frame {
    partition: PartitionId,
    record: Record,
    /// Its checksum does not match.
    bad: bool,
}

/// What was written with one write. A sync mark has no frame of a partition.
#[derive(Clone, Debug)]
struct Group {
    file: u64,
    first_lsn: u64,
    /// Everything up to here was synced when it was written (rule W3).
    last_synced: u64,
    frames: Vec<Frame>,
    durable: bool,
}

impl Group {
    fn last_lsn(&self) -> u64 {
        self.first_lsn + (self.frames.len() as u64).max(1) - 1
    }

    fn is_bad(&self) -> bool {
        self.frames.iter().any(|frame| frame.bad)
    }
}

/// The disk under a running or dead broker.
#[derive(Clone, Debug)]
pub(crate) struct Wal {
    pub(crate) label: Label,
    base: BTreeMap<PartitionId, Log>,
    groups: VecDeque<Group>,
    next_lsn: u64,
    /// Newest frame that was freed.
    freed_lsn: u64,
    /// The file that is written to.
    file: u64,
    /// What is durable of each partition, whatever the power does.
    pub(crate) synced: BTreeMap<PartitionId, Log>,
    /// High watermarks in a file of their own, ahead of their data: only without rule R10.
    hw_ahead: BTreeMap<PartitionId, Offset>,
    /// A fault has changed what was synced.
    pub(crate) damaged: bool,
    /// A write or a sync failed: the next start is another replica (rules W2, B4).
    pub(crate) poisoned: bool,
    /// It is an old copy, put in place of the disk (rule B1a).
    pub(crate) suspect: bool,
}

/// What recovery found.
pub(crate) struct Found {
    pub(crate) logs: BTreeMap<PartitionId, Log>,
    /// Synced frames cannot be read back (rule W4).
    pub(crate) damage: bool,
}

impl Wal {
    /// An empty disk.
    pub(crate) fn new(wal_gen: WalGen) -> Wal {
        Wal {
            label: Label { wal_gen, inc: Incarnation(0) },
            base: BTreeMap::new(),
            groups: VecDeque::new(),
            next_lsn: 1,
            freed_lsn: 0,
            file: 0,
            synced: BTreeMap::new(),
            hw_ahead: BTreeMap::new(),
            damaged: false,
            poisoned: false,
            suspect: false,
        }
    }

    /// Newest frame that is durable, as the process knows (rule B1a).
    pub(crate) fn durable_lsn(&self) -> u64 {
        self.groups.iter().rev().find(|group| group.durable).map_or(self.freed_lsn, Group::last_lsn)
    }

    /// Writes one group to the page cache; without records it is a sync mark (rule W3).
    pub(crate) fn write(&mut self, records: impl IntoIterator<Item = (PartitionId, Record)>) {
        let in_file = self.groups.iter().rev().take_while(|group| group.file == self.file).count();
        self.file += u64::from(in_file >= FILE_GROUPS);
        let frames = records.into_iter().map(|(partition, record)| Frame { partition, record, bad: false }).collect();
        // The writer has one group in flight: all before it was synced, or is believed to be (rule W3a).
        let last_synced = self.next_lsn - 1;
        let group = Group { file: self.file, first_lsn: self.next_lsn, last_synced, frames, durable: false };
        self.next_lsn = group.last_lsn() + 1;
        self.groups.push_back(group);
    }

    /// Syncs the file that is written to (rule W1).
    pub(crate) fn sync(&mut self) {
        let file = self.file;
        self.harden(|group| group.file == file);
    }

    /// Syncs every file (rule W3a).
    pub(crate) fn sync_all(&mut self) {
        self.harden(|_| true);
    }

    fn harden(&mut self, which: impl Fn(&Group) -> bool) {
        for group in self.groups.iter_mut().filter(|group| !group.durable && which(group)) {
            group.durable = true;
            for frame in &group.frames {
                take(&mut self.synced, frame);
            }
        }
    }

    /// Whether the newest group is proved by nothing after it.
    pub(crate) fn wants_mark(&self) -> bool {
        self.groups.back().is_some_and(|group| group.durable && !group.frames.is_empty())
    }

    /// Frees what no partition needs, oldest first (rule W8).
    pub(crate) fn free(&mut self, needed: impl Fn(PartitionId, &Placed) -> bool) {
        while let Some(oldest) = self.groups.front() {
            let dead = |frame: &Frame| match &frame.record {
                Record::Batch(placed) => !needed(frame.partition, placed),
                _ => true,
            };
            if !oldest.durable || oldest.is_bad() || oldest.file == self.file || !oldest.frames.iter().all(dead) {
                break;
            }
            self.freed_lsn = oldest.last_lsn();
            for frame in self.groups.pop_front().into_iter().flat_map(|group| group.frames) {
                take(&mut self.base, &frame);
            }
        }
    }

    /// Forgets batches below `to`, which are dead from now on.
    pub(crate) fn trim(&mut self, partition: PartitionId, to: Offset) {
        if let Some(log) = self.synced.get_mut(&partition) {
            log.trim(to);
        }
    }

    /// Notes a high watermark ahead of its data: what rule R10 forbids.
    pub(crate) fn note_hw_ahead(&mut self, partition: PartitionId, hw: Offset) {
        self.hw_ahead.insert(partition, hw);
    }

    /// The power goes: of what was not synced, some frames happen to be on disk, later ones perhaps and earlier ones not (rule W4).
    pub(crate) fn cut_power(&mut self, rng: &mut Rng) -> bool {
        let keep = [0, 0, 500, 900, 1000][rng.below(5)];
        let mut torn = false;
        for group in self.groups.iter_mut().filter(|group| !group.durable) {
            group.frames.iter_mut().for_each(|frame| frame.bad |= !rng.per_mille(keep));
            torn |= group.is_bad() && group.frames.iter().any(|frame| !frame.bad);
            // What of it is on the medium is there for good.
            group.durable = true;
        }
        torn
    }

    /// A bit flips in a frame that a later frame proves synced (rule W4). `false` if there is none such.
    pub(crate) fn flip(&mut self, rng: &mut Rng) -> bool {
        let proof = self.proof(0).unwrap_or(0);
        let provable = |group: &&mut Group| group.durable && group.last_lsn() <= proof && !group.frames.is_empty();
        let mut provable: Vec<&mut Group> = self.groups.iter_mut().filter(provable).collect();
        if provable.is_empty() {
            return false;
        }
        let at = rng.below(provable.len());
        let frames = &mut provable[at].frames;
        let at = rng.below(frames.len());
        frames[at].bad = true;
        self.damaged = true;
        true
    }

    /// A sync fails: what was dirty is dropped and called clean (rule W2).
    pub(crate) fn fail_sync(&mut self) {
        self.groups.retain(|group| group.durable);
        self.next_lsn = self.end_lsn() + 1;
        self.poisoned = true;
    }

    /// Reads the log (rules W3, W4). What a torn group leaves is gone for good; damage leaves the good frames (rule B4).
    pub(crate) fn recover(&mut self) -> Found {
        let mut logs = self.base.clone();
        let (mut damage, mut broken) = (false, BTreeSet::new());
        for at in 0..self.groups.len() {
            let group = &self.groups[at];
            if group.is_bad() {
                if self.proof(at + 1).is_none_or(|proof| proof < group.first_lsn) {
                    // A torn group is dropped whole, and recovery stops there (rule W3).
                    self.groups.truncate(at);
                    break;
                }
                damage = true;
                broken.extend(group.frames.iter().filter(|frame| frame.bad).map(|frame| frame.partition));
            }
            let good = group.frames.iter().filter(|frame| !frame.bad);
            for frame in good.filter(|frame| !broken.contains(&frame.partition)) {
                take(&mut logs, frame);
            }
        }
        self.next_lsn = self.end_lsn() + 1;
        for (partition, hw) in &self.hw_ahead {
            logs.entry(*partition).and_modify(|log| log.hw = log.hw.max(*hw));
        }
        damage |= logs.iter().any(|(partition, log)| !broken.contains(partition) && log.hw > log.end());
        for log in logs.values_mut() {
            log.hw = log.hw.min(log.end());
        }
        if damage {
            // The end of a recovery after damage: the state of every partition is written anew, and synced.
            self.freed_lsn = self.end_lsn();
            self.base = logs.clone();
            self.groups.clear();
            self.hw_ahead.clear();
        }
        self.synced = self.base.clone();
        for frame in self.groups.iter().take_while(|group| group.durable).flat_map(|group| &group.frames) {
            take(&mut self.synced, frame);
        }
        Found { logs, damage }
    }

    /// The newest frame that a good frame of these groups calls synced (rule W4).
    fn proof(&self, from: usize) -> Option<u64> {
        let readable =
            |group: &&Group| group.durable && (group.frames.is_empty() || group.frames.iter().any(|frame| !frame.bad));
        self.groups.iter().skip(from).filter(readable).map(|group| group.last_synced).max()
    }

    /// Newest frame there is, or was.
    fn end_lsn(&self) -> u64 {
        self.groups.back().map_or(self.freed_lsn, Group::last_lsn)
    }
}

/// Adds a frame to what its partition's log adds up to.
fn take(logs: &mut BTreeMap<PartitionId, Log>, frame: &Frame) {
    if matches!(frame.record, Record::Drop) {
        logs.remove(&frame.partition);
    } else {
        logs.entry(frame.partition).or_default().apply(&frame.record);
    }
}
