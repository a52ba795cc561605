//! One broker: a disk, and a process that carries what `core` decides to that disk, to the network, the store and the bucket.
//!
//! It decides nothing itself, as the broker's shards, links and tasks decide nothing.

mod slot;

pub(crate) use slot::{Errand, Opening, Rebuild, Slot, Upload};

use crate::etcd::Image;
use crate::log::{Log, Record};
use crate::wal::Wal;
use millpond_core::controller::Controller;
use millpond_core::records::PartitionRecord;
use millpond_core::replica::{Appended, Input, Live, Mark, Now, Output, Proposal, PushReply, Refusal, Token};
use millpond_core::replica::{Cursor, Fault, Push};
use millpond_log::manifest::ManifestRoot;
use millpond_log::object_key::{GcEpoch, ObjectKey};
use millpond_log::{BrokerId, Incarnation, Offset, PartitionId, Rid};
use std::collections::BTreeMap;
use std::rc::Rc;

/// A broker, dead or alive.
pub(crate) struct Node {
    pub(crate) id: BrokerId,
    pub(crate) disk: Wal,
    /// A copy of the disk, made at some time.
    pub(crate) snapshot: Option<Wal>,
    /// It does nothing before this.
    pub(crate) paused_until: u64,
    /// Its watch tells nothing before this, and then goes on where it was (rule Z3).
    pub(crate) stalled_until: u64,
    /// Its disk takes nothing new before this (rule W7).
    pub(crate) full_until: u64,
    /// How far its wall clock is ahead. It may jump at any time; the steady one never does.
    pub(crate) clock_ahead_ms: i64,
    pub(crate) running: Option<Running>,
}

/// What lives in the process.
pub(crate) struct Running {
    /// Its session; none before it has registered, and once it has lost it (rule B3).
    pub(crate) inc: Option<Incarnation>,
    /// When the lease was last kept alive.
    pub(crate) kept_alive_ms: u64,
    pub(crate) image: Rc<Image>,
    /// Revision up to which its watch has told.
    pub(crate) told: u64,
    /// What was found in the WAL, until the replicas are opened.
    pub(crate) recovered: Option<BTreeMap<PartitionId, Log>>,
    /// The newest frame that was found in the WAL.
    pub(crate) found_lsn: u64,
    pub(crate) slots: BTreeMap<PartitionId, Slot>,
    /// Replicas that are being opened while it runs.
    pub(crate) opening: BTreeMap<PartitionId, Placing>,
    /// Replicas that are to be given up, with what the store said of that.
    pub(crate) leaving: BTreeMap<PartitionId, Option<bool>>,
    /// The newest mark of any replica that was ever open.
    pub(crate) newest_mark: Mark,
    /// Handed to the WAL and not written; then written and not synced.
    queue: Vec<(PartitionId, Record, Option<Mark>)>,
    unsynced: Option<BTreeMap<PartitionId, Mark>>,
    pub(crate) term: Option<Term>,
    /// What nobody might lead at the last look, by its record, and for how many looks (rule E7).
    pub(crate) forsaken: BTreeMap<(PartitionId, u64), u32>,
    pub(crate) sweep: Sweep,
    /// The collection's epoch as last read: names of new objects carry it (rule T2).
    pub(crate) gc_epoch: GcEpoch,
}

/// How far a replica is that is being opened.
pub(crate) enum Placing {
    /// Its manifest is asked for.
    Asks,
    /// Its manifest was read, and its bucket is being read.
    Reads { root: Rc<ManifestRoot>, revision: u64 },
}

/// A term of office as controller (rule E8).
pub(crate) struct Term {
    pub(crate) revision: u64,
    pub(crate) controller: Controller,
    /// What was written in it and is not in the image yet.
    pub(crate) written: BTreeMap<PartitionId, (PartitionRecord, u64)>,
}

/// Where a collection stands; any time may pass between its stages (rule G2).
#[derive(Default)]
pub(crate) enum Sweep {
    #[default]
    Idle,
    Listed(Vec<ObjectKey>),
    Judged(Vec<ObjectKey>),
}

/// What a step asks of the world around the node.
// A handful exist at a time; their size does not matter.
#[allow(clippy::large_enum_variant)]
#[derive(Debug)]
pub(crate) enum Effect {
    Answer { token: Token, result: Result<Appended, Refusal> },
    Reply { to: BrokerId, reply: PushReply },
    Propose(Proposal),
    Trim(Offset),
    Fault(Fault),
}

impl Node {
    pub(crate) fn rid(&self) -> Rid {
        Rid { broker: self.id, wal_gen: self.disk.label.wal_gen }
    }

    /// Whether its disk holds what it was told to hold; what is amiss shows when it starts (rules B1a, W2, W4).
    pub(crate) fn is_sound(&self) -> bool {
        !(self.disk.damaged || self.disk.poisoned || self.disk.suspect)
    }

    /// The broker as its session names it.
    pub(crate) fn live(&self) -> Option<Live> {
        Some(Live { rid: self.rid(), inc: self.running.as_ref()?.inc? })
    }

    pub(crate) fn slot(&self, partition: PartitionId) -> Option<&Slot> {
        self.running.as_ref()?.slots.get(&partition)
    }

    pub(crate) fn slot_mut(&mut self, partition: PartitionId) -> Option<&mut Slot> {
        self.running.as_mut()?.slots.get_mut(&partition)
    }

    /// Steps one replica and carries out what concerns this node alone. Whoever has no such replica does nothing.
    pub(crate) fn step(&mut self, now: Now, partition: PartitionId, input: Input) -> Vec<Effect> {
        let Some(running) = &mut self.running else { return Vec::new() };
        let Some(slot) = running.slots.get_mut(&partition) else { return Vec::new() };
        let mut outputs = Vec::new();
        slot.replica.step(now, input, &mut outputs);
        let mut effects = Vec::new();
        for output in outputs {
            let written = match output {
                Output::PersistEpoch { epoch, mark } => Some((Record::Epoch(epoch), mark)),
                Output::Append { placed, mark } => Some((Record::Batch(placed), mark)),
                Output::Truncate { to, mark } => {
                    slot.rebuild = Some(Rebuild::Truncated(to));
                    Some((Record::Truncate(to), mark))
                }
                Output::Reset { at, prefix_hash, mark } => {
                    slot.exposed = slot.exposed.max(at);
                    Some((Record::Reset { at, prefix_hash }, mark))
                }
                Output::Install => {
                    slot.rebuild = Some(Rebuild::Install);
                    None
                }
                Output::ReadForOffice { office } => {
                    slot.office_read = Some(office);
                    None
                }
                Output::Follow(Cursor { to, nonce, from, prev_epoch }) => {
                    // Whoever is not alive has no link.
                    if running.image.sessions.contains_key(&to) {
                        slot.cursors.insert(to, slot::SimCursor { nonce, next: from, prev_epoch });
                    }
                    None
                }
                Output::Unfollow(to) => {
                    slot.cursors.remove(&to);
                    None
                }
                Output::Verify(_) => unreachable!("no client of this simulation has transactions"),
                Output::Propose(proposal) => {
                    slot.proposal = Some(proposal.clone());
                    effects.push(Effect::Propose(proposal));
                    None
                }
                Output::Answer { token, result } => {
                    effects.push(Effect::Answer { token, result });
                    None
                }
                Output::Reply { to, reply } => {
                    effects.push(Effect::Reply { to, reply });
                    None
                }
                Output::Trim { to } => {
                    effects.push(Effect::Trim(to));
                    None
                }
                Output::Publish => None,
                Output::Fault(fault) => {
                    effects.push(Effect::Fault(fault));
                    None
                }
            };
            if let Some((record, mark)) = written {
                assert!(slot.log.apply(&record), "the WAL is dense");
                running.newest_mark = running.newest_mark.max(mark);
                running.queue.push((partition, record, Some(mark)));
            }
        }
        slot.tiering.see(&slot.replica.visible());
        effects
    }

    /// Hands a record to the WAL, with whom to tell if anybody waits for it.
    pub(crate) fn note(&mut self, partition: PartitionId, record: Record, mark: Option<Mark>) {
        if let Some(running) = &mut self.running {
            running.newest_mark = running.newest_mark.max(mark.unwrap_or_default());
            running.queue.push((partition, record, mark));
        }
    }

    /// Whether something waits to be written, and whether something waits to be synced.
    pub(crate) fn wal_waits(&self) -> (bool, bool) {
        self.running.as_ref().map_or((false, false), |running| (!running.queue.is_empty(), running.unsynced.is_some()))
    }

    /// Writes one group of what waits, of all partitions together, if none is in flight.
    pub(crate) fn write_group(&mut self) {
        let Some(running) = self.running.as_mut().filter(|running| running.unsynced.is_none()) else { return };
        let mut marks = BTreeMap::new();
        let records: Vec<_> = running.queue.drain(..).collect();
        if records.is_empty() {
            return;
        }
        for (partition, _, mark) in &records {
            marks.extend(mark.map(|mark| (*partition, mark)));
        }
        self.disk.write(records.into_iter().map(|(partition, record, _)| (partition, record)));
        running.unsynced = Some(marks);
    }

    /// Syncs the group in flight. What became durable is to be told.
    pub(crate) fn sync_group(&mut self) -> BTreeMap<PartitionId, Mark> {
        let Some(running) = &mut self.running else { return BTreeMap::new() };
        let Some(marks) = running.unsynced.take() else { return BTreeMap::new() };
        self.disk.sync();
        let slots = &running.slots;
        self.disk.free(|partition, placed| slots.get(&partition).is_some_and(|slot| slot.log.holds(placed)));
        marks
    }

    pub(crate) fn trim(&mut self, partition: PartitionId, to: Offset) {
        self.disk.trim(partition, to);
        if let Some(slot) = self.slot_mut(partition) {
            slot.log.trim(to);
        }
    }

    /// The next push to `to`, at most `batches_max` batches; `Err` with the input that tells that its cursor was trimmed.
    pub(crate) fn push(
        &mut self,
        partition: PartitionId,
        to: BrokerId,
        batches_max: usize,
    ) -> Option<Result<Push, Input>> {
        self.slot_mut(partition)?.push(to, batches_max)
    }
}

impl Running {
    /// A process that has just started.
    pub(crate) fn new(gc_epoch: GcEpoch) -> Running {
        Running {
            inc: None,
            kept_alive_ms: 0,
            image: Rc::new(Image::default()),
            told: 0,
            recovered: None,
            found_lsn: 0,
            slots: BTreeMap::new(),
            opening: BTreeMap::new(),
            leaving: BTreeMap::new(),
            newest_mark: Mark(0),
            queue: Vec::new(),
            unsynced: None,
            term: None,
            forsaken: BTreeMap::new(),
            sweep: Sweep::Idle,
            gc_epoch,
        }
    }
}
