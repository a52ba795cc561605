//! The metadata store: one revision for all keys, leases, compare-and-swap. It never lies; what reaches it, and when, is the wire's.

use millpond_core::election;
use millpond_core::records::PartitionRecord;
use millpond_core::replica::{Assignment, Live, Proposal};
use millpond_core::rules::{Rule, Rules};
use millpond_core::tiering::{Change, Outcome};
use millpond_log::manifest::ManifestRoot;
use millpond_log::object_key::{GcEpoch, ObjectKey};
use millpond_log::{BrokerId, Incarnation, PartitionId, Rid, WalGen};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// TTL of sessions, in simulated milliseconds.
pub(crate) const TTL_MS: u64 = 1_200;

/// What brokers watch, at one revision.
#[derive(Clone, Debug, Default)]
pub(crate) struct Image {
    pub(crate) revision: u64,
    pub(crate) records: BTreeMap<PartitionId, (PartitionRecord, u64)>,
    pub(crate) sessions: BTreeMap<BrokerId, Live>,
    /// The WAL with which each broker registered last.
    pub(crate) disks: BTreeMap<BrokerId, WalGen>,
    pub(crate) draining: BTreeSet<BrokerId>,
    /// `min.insync.replicas` as operators want it, where they have changed it (rule I7).
    pub(crate) min_isr: BTreeMap<PartitionId, u32>,
    /// Who has control, and the revision at which it was taken (rule E8).
    pub(crate) control: Option<(Live, u64)>,
}

/// A broker's disk as it was last heard of (rule B1a).
#[derive(Clone, Copy, Debug)]
struct Disk {
    wal_gen: WalGen,
    /// `None` until the broker confirms that its WAL carries the incarnation of its registration.
    last_inc: Option<Incarnation>,
    previous_inc: Incarnation,
    durable_lsn: u64,
    revision: u64,
}

/// How a registration ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Registered {
    Session(Incarnation),
    /// The disk is not the one that registered last (rule B1a).
    StaleDisk,
    /// A live session of another WAL stands (rule B1).
    Occupied,
}

/// A transaction on its way. Sent again it is the very same (rule K5).
// It is shared, not copied; its size does not matter.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug)]
pub(crate) enum Txn {
    /// Take control (rule E8).
    Control { seen: Option<u64> },
    /// Change a partition's record (rules K3, I5, E3): compared with its revision, with these sessions and with the control.
    Record { partition: PartitionId, base: u64, next: PartitionRecord, sessions: Vec<Live>, control: Option<u64> },
    /// Change a partition's manifest (rule T5).
    Tier(Box<Change>),
}

impl Txn {
    /// What a leader proposes.
    pub(crate) fn of(partition: PartitionId, proposal: &Proposal) -> Txn {
        let sessions = proposal.joining.iter().chain(&proposal.heir).copied().collect();
        Txn::Record { partition, base: proposal.base, next: proposal.record.clone(), sessions, control: None }
    }
}

/// What came to be, counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) elections: u64,
    /// Elections that leaders asked for (rule E9).
    pub(crate) transfers: u64,
    /// Moves of replicas that were ended (rule I8).
    pub(crate) moves: u64,
    pub(crate) segments: u64,
    pub(crate) advances: u64,
}

pub(crate) struct Etcd {
    rules: Rules,
    image: Rc<Image>,
    /// What was watched at each revision before, in order.
    history: Vec<Rc<Image>>,
    /// When each session ends.
    leases: BTreeMap<BrokerId, u64>,
    disks: BTreeMap<BrokerId, Disk>,
    pub(crate) roots: BTreeMap<PartitionId, (Rc<ManifestRoot>, u64)>,
    pub(crate) gc_epoch: GcEpoch,
    /// Dropped objects, with the gc epoch of the drop (rule G2).
    pub(crate) drops: Vec<(GcEpoch, ObjectKey)>,
    pub(crate) counts: Counts,
}

impl Etcd {
    pub(crate) fn new(records: BTreeMap<PartitionId, PartitionRecord>, rules: Rules) -> Etcd {
        let roots = records.keys().map(|id| (*id, (Rc::new(ManifestRoot::new(*id)), 0))).collect();
        let records = records.into_iter().map(|(id, record)| (id, (record, 1))).collect();
        Etcd {
            rules,
            image: Rc::new(Image { revision: 1, records, ..Image::default() }),
            history: Vec::new(),
            leases: BTreeMap::new(),
            disks: BTreeMap::new(),
            roots,
            gc_epoch: GcEpoch(2),
            drops: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// Everything that is watched, as it is now.
    pub(crate) fn image(&self) -> Rc<Image> {
        Rc::clone(&self.image)
    }

    pub(crate) fn look(&self) -> &Image {
        &self.image
    }

    pub(crate) fn record(&self, partition: PartitionId) -> &PartitionRecord {
        &self.image.records[&partition].0
    }

    /// The first that a watch which has come to `revision` tells next (rule Z3).
    pub(crate) fn image_after(&self, revision: u64) -> Rc<Image> {
        let at = self.history.partition_point(|image| image.revision <= revision);
        Rc::clone(self.history.get(at).unwrap_or(&self.image))
    }

    /// The image, to be changed at the next revision.
    fn next(&mut self) -> &mut Image {
        self.history.push(Rc::clone(&self.image));
        let image = Rc::make_mut(&mut self.image);
        image.revision += 1;
        image
    }

    fn alive(&self, live: &Live) -> bool {
        self.image.sessions.get(&live.rid.broker) == Some(live)
    }

    /// Registers a broker (rules B1, B1a): the revision of the registration is the incarnation.
    pub(crate) fn register(&mut self, now_ms: u64, rid: Rid, disk_inc: Incarnation, durable_lsn: u64) -> Registered {
        let stale = self.disks.get(&rid.broker).is_some_and(|disk| disk.is_not(rid.wal_gen, disk_inc, durable_lsn));
        if stale && self.rules.uphold(Rule::DiskIncarnation) {
            return Registered::StaleDisk;
        }
        if self.image.sessions.get(&rid.broker).is_some_and(|session| session.rid.wal_gen != rid.wal_gen) {
            return Registered::Occupied;
        }
        // The session before, and what stood under its lease.
        self.end_session(rid.broker);
        let image = self.next();
        let revision = image.revision;
        let inc = Incarnation(revision);
        image.sessions.insert(rid.broker, Live { rid, inc });
        image.disks.insert(rid.broker, rid.wal_gen);
        let disk = Disk { wal_gen: rid.wal_gen, last_inc: None, previous_inc: disk_inc, durable_lsn, revision };
        self.disks.insert(rid.broker, disk);
        self.leases.insert(rid.broker, now_ms + TTL_MS);
        Registered::Session(inc)
    }

    /// The broker's WAL carries its incarnation, and is durable up to here (rule B1a). Whether it holds.
    pub(crate) fn refresh_disk(&mut self, live: &Live, durable_lsn: u64) -> bool {
        if !self.alive(live) {
            return false;
        }
        let revision = self.next().revision;
        let (last_inc, previous_inc) = (Some(live.inc), live.inc);
        let disk = Disk { wal_gen: live.rid.wal_gen, last_inc, previous_inc, durable_lsn, revision };
        self.disks.insert(live.rid.broker, disk);
        true
    }

    /// Whether a disk would be found to be not the one that registered last (rule B1a).
    pub(crate) fn tells_apart(&self, broker: BrokerId, wal_gen: WalGen, inc: Incarnation, durable_lsn: u64) -> bool {
        self.disks.get(&broker).is_some_and(|disk| disk.is_not(wal_gen, inc, durable_lsn))
    }

    /// Keeps a session alive; `false` if it is there no longer.
    pub(crate) fn keep_alive(&mut self, now_ms: u64, live: &Live) -> bool {
        let alive = self.alive(live);
        if alive {
            self.leases.insert(live.rid.broker, now_ms + TTL_MS);
        }
        alive
    }

    /// Ends the sessions whose time is over.
    pub(crate) fn expire(&mut self, now_ms: u64) {
        let over: Vec<BrokerId> =
            self.leases.iter().filter(|(_, until)| **until <= now_ms).map(|(broker, _)| *broker).collect();
        over.into_iter().for_each(|broker| self.end_session(broker));
    }

    /// Another member leads the store: every lease starts over with its whole TTL.
    pub(crate) fn change_leader(&mut self, now_ms: u64) {
        self.leases.values_mut().for_each(|until| *until = now_ms + TTL_MS);
    }

    pub(crate) fn end_session(&mut self, broker: BrokerId) {
        self.leases.remove(&broker);
        if !self.image.sessions.contains_key(&broker) {
            return;
        }
        let image = self.next();
        let gone = image.sessions.remove(&broker);
        // The control stands under the same lease.
        image.control = image.control.filter(|(holder, _)| Some(*holder) != gone);
    }

    pub(crate) fn drain(&mut self, broker: BrokerId, drains: bool) {
        let draining = &mut self.next().draining;
        if drains {
            draining.insert(broker);
        } else {
            draining.remove(&broker);
        }
    }

    pub(crate) fn want_min_isr(&mut self, partition: PartitionId, min_isr: u32) {
        self.next().min_isr.insert(partition, min_isr);
    }

    /// Carries a transaction out, as far as its comparisons hold (rules K3, K4).
    ///
    /// # Errors
    /// S24: it would take an epoch back.
    pub(crate) fn run(&mut self, from: &Live, txn: &Txn) -> Result<Outcome, String> {
        if !self.alive(from) {
            let untouched = matches!(txn, Txn::Tier(_)) && !self.rules.uphold(Rule::TierCompare);
            if !untouched {
                return Ok(Outcome::Fenced);
            }
        }
        match txn {
            Txn::Control { seen } => {
                if self.image.control.map(|(_, revision)| revision) != *seen {
                    return Ok(Outcome::Conflict);
                }
                let image = self.next();
                image.control = Some((*from, image.revision));
                Ok(Outcome::Committed(image.revision))
            }
            Txn::Record { partition, base, next, sessions, control } => {
                let (old, revision) = &self.image.records[partition];
                let in_control = control.is_none() || self.image.control.map(|(_, revision)| revision) == *control;
                if revision != base || !in_control || !sessions.iter().all(|session| self.alive(session)) {
                    return Ok(Outcome::Conflict);
                }
                if next.epoch < old.epoch || (next.epoch == old.epoch && next.leader != old.leader) {
                    return Err(format!("S24 epoch {} of {partition} follows {}", next.epoch, old.epoch));
                }
                self.counts.elections += u64::from(next.epoch > old.epoch);
                let asked_for = next.epoch > old.epoch && old.leader.is_some_and(|leader| leader.rid == from.rid);
                self.counts.transfers += u64::from(asked_for && control.is_none() && !sessions.contains(from));
                let moves = |record: &PartitionRecord| !record.adding.is_empty() || !record.removing.is_empty();
                self.counts.moves += u64::from(moves(old) && !moves(next));
                let image = self.next();
                image.records.insert(*partition, (next.clone(), image.revision));
                Ok(Outcome::Committed(image.revision))
            }
            Txn::Tier(change) => Ok(self.tier(from, change)),
        }
    }

    /// TXN-TIER (rules T5, G1, G2).
    fn tier(&mut self, from: &Live, change: &Change) -> Outcome {
        let Change { partition, epoch, base, root, objects_gc_epoch, dropped, producers, .. } = change;
        let record = self.record(*partition);
        let leads = record.epoch == *epoch
            && record.leader.is_some_and(|leader| (leader.rid, leader.inc) == (from.rid, from.inc));
        let (old, revision) = &self.roots[partition];
        if self.rules.uphold(Rule::TierCompare) {
            // Sent before, and done then: the value proves it (rule K5).
            if **old == *root {
                return Outcome::Committed(*revision);
            }
            if !leads {
                return Outcome::Fenced;
            }
            if revision != base {
                return Outcome::Conflict;
            }
        }
        if objects_gc_epoch.is_some_and(|named| !named.committable_at(self.gc_epoch))
            && self.rules.uphold(Rule::ObjectsExpire)
        {
            return Outcome::Expired;
        }
        self.counts.segments += u64::from(producers.is_some());
        self.counts.advances += u64::from(producers.is_none());
        self.drops.extend(dropped.iter().map(|object| (self.gc_epoch, *object)));
        let revision = self.next().revision;
        self.roots.insert(*partition, (Rc::new(root.clone()), revision));
        Outcome::Committed(revision)
    }
}

impl Disk {
    /// Rule B1a, as the registration judges it.
    fn is_not(&self, wal_gen: WalGen, carries: Incarnation, durable_lsn: u64) -> bool {
        if self.wal_gen != wal_gen {
            return carries != Incarnation(0);
        }
        let newest = self.last_inc.unwrap_or(Incarnation(self.revision));
        let unconfirmed = self.last_inc.is_none() && carries == self.previous_inc;
        (carries != newest && !unconfirmed) || durable_lsn < self.durable_lsn
    }
}

impl Image {
    /// The sessions of a partition's replicas.
    pub(crate) fn live(&self, record: &PartitionRecord) -> Vec<Live> {
        record.replicas.iter().filter_map(|broker| self.sessions.get(broker).copied()).collect()
    }

    /// What a replica is told of its record.
    pub(crate) fn assignment(&self, partition: PartitionId) -> Option<Assignment> {
        let (record, revision) = self.records.get(&partition)?;
        Some(Assignment { record: record.clone(), revision: *revision, live: self.live(record) })
    }

    /// Whether nobody leads a partition (rule E1).
    pub(crate) fn vacant(&self, partition: PartitionId) -> bool {
        self.records.get(&partition).is_some_and(|(record, _)| election::vacant(record, &self.live(record)))
    }
}
