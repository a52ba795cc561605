//! How a broker starts, registers, keeps its session, and makes itself what the store says (rules B1 to B4, K6, Z2).

use super::wire::Msg;
use super::{Checked, World};
use crate::etcd::{Image, Registered, TTL_MS};
use crate::log::{Log, Record};
use crate::node::{Opening, Running, Slot};
use millpond_core::loss::{Standing, standing};
use millpond_core::replica::Input;
use millpond_core::rules::Rule;
use millpond_log::manifest::ManifestRoot;
use millpond_log::{Incarnation, LeaderEpoch, PartitionId};
use std::collections::BTreeMap;
use std::rc::Rc;

impl World {
    /// Starts a broker that is down, and registers one that has no session.
    pub(super) fn start(&mut self, node: usize, faults: bool) -> Result<bool, String> {
        let booted = self.nodes[node].running.is_none();
        if booted {
            self.boot(node)?;
        }
        let enrolled = self.nodes[node].live().is_none() && !self.cut_off.contains(&node);
        if enrolled {
            self.enroll(node, faults)?;
        }
        Ok(booted || enrolled)
    }

    /// Recovers the WAL (rules W3, W3a, W4); what lost something is another replica from now on (rules W2, B4).
    fn boot(&mut self, node: usize) -> Checked {
        let fresh = self.fresh_gen();
        let (synced, another) = (self.upholds(Rule::RecoveredSynced), self.upholds(Rule::DiskGeneration));
        let (id, disk) = (self.nodes[node].id, &mut self.nodes[node].disk);
        let found = disk.recover();
        if found.damage != disk.damaged {
            return Err(match disk.damaged {
                true => format!("S13 the disk of broker {id} is damaged, and that is treated as a torn end"),
                false => format!("W4 the disk of broker {id} is called damaged, and nothing has damaged it"),
            });
        }
        if (found.damage || disk.poisoned) && another {
            (disk.label.wal_gen, disk.label.inc) = (fresh, Incarnation(0));
        }
        (disk.damaged, disk.poisoned) = (false, false);
        if synced {
            disk.sync_all();
        }
        let mut running = Running::new(self.etcd.gc_epoch);
        running.recovered = Some(found.logs);
        running.found_lsn = disk.durable_lsn();
        self.nodes[node].running = Some(running);
        Ok(())
    }

    /// Registers (rules B1, B1a), and takes office once store and WAL know of each other.
    fn enroll(&mut self, node: usize, faults: bool) -> Checked {
        let mut registered = self.register(node);
        if registered == Registered::StaleDisk {
            let wal_gen = self.fresh_gen();
            let label = &mut self.nodes[node].disk.label;
            (label.wal_gen, label.inc) = (wal_gen, Incarnation(0));
            registered = self.register(node);
        }
        let Registered::Session(inc) = registered else { return Ok(()) };
        self.nodes[node].disk.suspect = false;
        // The answer may be lost, and the process may end, before the WAL has noted it; or before the store has heard that it did.
        if faults && self.media.per_mille(60) {
            if self.media.per_mille(300) {
                self.nodes[node].running = None;
            }
            return Ok(());
        }
        self.nodes[node].disk.label.inc = inc;
        if faults && self.media.per_mille(40) {
            return Ok(());
        }
        self.take_office(node, inc)
    }

    fn register(&mut self, node: usize) -> Registered {
        let Running { inc, found_lsn, recovered, .. } = self.nodes[node].running.as_mut().expect("it runs");
        *inc = None;
        // Rule B1a: which disk it is is told by what was found on it, whatever was written since.
        let found_lsn = recovered.is_some().then_some(*found_lsn);
        let (rid, disk) = (self.nodes[node].rid(), &self.nodes[node].disk);
        let durable_lsn = found_lsn.unwrap_or(disk.durable_lsn());
        let registered = self.etcd.register(self.now_ms, rid, disk.label.inc, durable_lsn);
        if self.tell {
            println!("{:>8}   broker {node} registers as {rid}: {registered:?}", self.now_ms);
        }
        registered
    }

    fn take_office(&mut self, node: usize, inc: Incarnation) -> Checked {
        let image = self.etcd.image();
        let now_ms = self.now_ms;
        let running = self.nodes[node].running.as_mut().expect("it runs");
        (running.inc, running.kept_alive_ms) = (Some(inc), now_ms);
        (running.image, running.told) = (Rc::clone(&image), image.revision);
        let recovered = running.recovered.take();
        let live = self.nodes[node].live().expect("it has just registered");
        let durable_lsn = self.nodes[node].disk.durable_lsn();
        self.etcd.refresh_disk(&live, durable_lsn);
        match recovered {
            Some(recovered) => self.open_all(node, recovered)?,
            None => self.place(node)?,
        }
        for partition in self.held(node) {
            self.begin_session(node, partition)?;
            if let Some(wanted) = image.min_isr.get(&partition) {
                self.step(node, partition, Input::MinIsr(*wanted))?;
            }
        }
        self.assign_all(node)
    }

    /// Opens the replicas that are placed here at the start; what the records say is elsewhere goes (rule K6).
    fn open_all(&mut self, node: usize, mut recovered: BTreeMap<PartitionId, Log>) -> Checked {
        let id = self.nodes[node].id;
        let image = self.etcd.image();
        for (partition, (record, _)) in &image.records {
            if record.replicas.contains(&id) {
                let (root, revision) = self.etcd.roots[partition].clone();
                self.open(node, &image, *partition, recovered.remove(partition), &root, revision)?;
            }
        }
        for partition in recovered.into_keys() {
            self.nodes[node].note(partition, Record::Drop, None);
        }
        Ok(())
    }

    /// Opens a replica from what the WAL holds, and the manifest as it was read.
    pub(super) fn open(
        &mut self,
        node: usize,
        image: &Image,
        partition: PartitionId,
        in_wal: Option<Log>,
        root: &ManifestRoot,
        revision: u64,
    ) -> Checked {
        let rid = self.nodes[node].rid();
        let (record, _) = &image.records[&partition];
        let stands = standing(record, rid, |broker| image.disks.get(&broker).copied());
        // What a replica knew that was dropped here it hears again with its record, before anything else.
        let told = if in_wal.is_none() { record.epoch } else { LeaderEpoch(0) };
        let opening = Opening {
            rid,
            root,
            revision,
            marks: self.nodes[node].running.as_ref().expect("it opens replicas").newest_mark,
            in_wal,
            lost: (stands == Standing::Lost).then_some(record.epoch),
            complete: stands == Standing::Electable,
            rules: self.rules,
        };
        let (slot, reset) = Slot::open(opening, &self.bucket)?;
        self.history(partition).check_epoch(rid, slot.replica.visible().epoch.max(told))?;
        let running = self.nodes[node].running.as_mut().expect("it opens replicas");
        // Another would begin its log anew, and what this one has acknowledged be gone (S5).
        if running.slots.insert(partition, slot).is_some() {
            return Err(format!("S5 {partition} on {rid} is opened while it is open"));
        }
        if let Some((reset, mark)) = reset {
            self.nodes[node].note(partition, reset, Some(mark));
        }
        Ok(())
    }

    fn assign_all(&mut self, node: usize) -> Checked {
        for partition in self.held(node) {
            self.assign(node, partition)?;
        }
        Ok(())
    }

    pub(super) fn assign(&mut self, node: usize, partition: PartitionId) -> Checked {
        let image = Rc::clone(&self.nodes[node].running.as_ref().expect("it holds replicas").image);
        match image.assignment(partition) {
            Some(assignment) => self.step(node, partition, Input::Assigned(assignment)),
            None => Ok(()),
        }
    }

    /// What changed in the store is on its way to a broker that watches: one revision after the other, or many at once.
    pub(super) fn watch(&mut self, node: usize) -> bool {
        let to = self.nodes[node].id;
        let newest = self.net.per_mille(500);
        let Some(running) = self.nodes[node].running.as_mut() else { return false };
        let image = if newest { self.etcd.image() } else { self.etcd.image_after(running.told) };
        let news = image.revision > running.told && self.nodes[node].stalled_until <= self.now_ms;
        if news {
            self.nodes[node].running.as_mut().expect("it watches").told = image.revision;
            self.wire.push(Msg::Watch { to, image });
        }
        news
    }

    /// What a broker knows of the store never goes back (rule Z2).
    pub(super) fn see(&mut self, node: usize, image: Rc<Image>) -> Checked {
        let id = self.nodes[node].id;
        let live = self.nodes[node].live();
        let Some(running) = &mut self.nodes[node].running else { return Ok(()) };
        // Before it has opened its replicas it reads, and does not watch.
        if image.revision <= running.image.revision || running.recovered.is_some() {
            return Ok(());
        }
        let before = std::mem::replace(&mut running.image, Rc::clone(&image));
        // A link ends with the session that it leads to; the next knows of no cursor until it is told (rule L2).
        for (to, session) in &image.sessions {
            if before.sessions.get(to) != Some(session) {
                running.slots.values_mut().for_each(|slot| slot.cursors.retain(|known, _| known != to));
            }
        }
        if live.is_some() && image.sessions.get(&id).copied() != live {
            self.lose_session(node)?;
        }
        self.place(node)?;
        for (partition, wanted) in &image.min_isr {
            if before.min_isr.get(partition) != Some(wanted) {
                self.step(node, *partition, Input::MinIsr(*wanted))?;
            }
        }
        self.assign_all(node)
    }

    /// Brokers keep their leases alive, and notice that one is gone (rule B3).
    pub(super) fn keep_alive(&mut self) -> Checked {
        for node in 0..self.nodes.len() {
            let Some(live) = self.nodes[node].live() else { continue };
            let running = self.nodes[node].running.as_mut().expect("it has a session");
            let due = running.kept_alive_ms + TTL_MS / 3 <= self.now_ms;
            if !due || self.is_paused(node) || self.cut_off.contains(&node) {
                continue;
            }
            if self.etcd.keep_alive(self.now_ms, &live) {
                self.nodes[node].running.as_mut().expect("it has a session").kept_alive_ms = self.now_ms;
            } else {
                self.lose_session(node)?;
            }
        }
        Ok(())
    }

    /// Rule B3: without its session a broker leads nothing, and is no controller.
    fn lose_session(&mut self, node: usize) -> Checked {
        let running = self.nodes[node].running.as_mut().expect("it had a session");
        (running.inc, running.term) = (None, None);
        for partition in self.held(node) {
            self.step(node, partition, Input::Session(None))?;
            if let Some(slot) = self.nodes[node].slot_mut(partition) {
                slot.proposal = None;
            }
        }
        Ok(())
    }

    /// The durable position of the disk is told to the store (rule B1a).
    pub(super) fn note_disk(&mut self, node: usize) -> bool {
        let Some(live) = self.nodes[node].live().filter(|_| !self.cut_off.contains(&node)) else { return false };
        let durable_lsn = self.nodes[node].disk.durable_lsn();
        self.etcd.refresh_disk(&live, durable_lsn)
    }
}
