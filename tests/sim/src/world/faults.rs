//! What befalls brokers, disks, the network and the store. Disks are lost only as far as the rules promise to bear it.

use super::actions::Action;
use super::{Checked, World};
use crate::etcd::TTL_MS;
use crate::rng::Rng;
use crate::wal::Wal;
use millpond_core::rules::Rule;

/// How far a wall clock may be off, in milliseconds: an hour. A day and more would have producers forgotten (rule P2).
const CLOCK_OFF_MAX: u32 = 3_600_000;

/// How far a broker's wall clock is ahead: a little, or a lot; as often it is behind.
pub(super) fn clock_ahead(rng: &mut Rng) -> i64 {
    let most = [0, 50, 5_000, CLOCK_OFF_MAX][rng.below(4)];
    i64::from(rng.between(0, 2 * most)) - i64::from(most)
}

impl World {
    /// Lets a fault, or an order of an operator, happen to a broker. Whether it had an effect.
    pub(super) fn befall(&mut self, fault: Action, node: usize) -> Result<bool, String> {
        match fault {
            Action::Kill => Ok(self.kill(node)),
            Action::CutPower => Ok(self.cut_power(node)),
            Action::CutAllPower => {
                for node in 0..self.nodes.len() {
                    self.cut_power(node);
                }
                Ok(true)
            }
            Action::Restart => {
                let ran = self.kill(node);
                if ran {
                    self.start(node, true)?;
                }
                Ok(ran)
            }
            Action::EndSession => {
                let stood = self.etcd.look().sessions.contains_key(&self.nodes[node].id);
                self.etcd.end_session(self.nodes[node].id);
                Ok(stood)
            }
            Action::Wipe => self.wipe(node),
            Action::Snapshot => {
                self.nodes[node].snapshot = Some(self.nodes[node].disk.clone()).filter(|_| self.nodes[node].is_sound());
                Ok(self.nodes[node].snapshot.is_some())
            }
            Action::OldDisk => self.put_back(node),
            Action::FlipBit => self.flip(node),
            Action::FailSync => Ok(self.fail_sync(node)),
            Action::FillDisk => {
                self.nodes[node].full_until = self.now_ms + 200 + self.rng.below(1_500) as u64;
                Ok(true)
            }
            Action::Pause => {
                // From a moment to longer than a lease (rule B3).
                self.nodes[node].paused_until = self.now_ms + 10 + self.rng.below(2 * TTL_MS as usize) as u64;
                Ok(true)
            }
            Action::JumpClock => {
                self.nodes[node].clock_ahead_ms = clock_ahead(&mut self.rng);
                Ok(true)
            }
            Action::StallWatch => {
                self.nodes[node].stalled_until = self.now_ms + 200 + self.rng.below(4_000) as u64;
                Ok(true)
            }
            Action::CutWire => {
                let other = self.rng.below(self.nodes.len());
                Ok(self.cut.insert((node, other)))
            }
            Action::CutStore => Ok(self.cut_off.insert(node)),
            Action::StoreLeader => {
                self.etcd.change_leader(self.now_ms);
                Ok(true)
            }
            Action::Drain => {
                let drains = !self.etcd.look().draining.contains(&self.nodes[node].id) && self.rng.per_mille(600);
                self.etcd.drain(self.nodes[node].id, drains);
                Ok(drains)
            }
            other => unreachable!("{other:?} is no fault"),
        }
    }

    /// Something of what was cut is whole again.
    pub(super) fn heal_wire(&mut self) -> bool {
        let at = self.rng.below(self.cut.len() + self.cut_off.len());
        if let Some(way) = self.cut.iter().nth(at).copied() {
            return self.cut.remove(&way);
        }
        match self.cut_off.iter().nth(at - self.cut.len()).copied() {
            Some(node) => self.cut_off.remove(&node),
            None => false,
        }
    }

    /// The process ends; what it wrote stays in the page cache.
    fn kill(&mut self, node: usize) -> bool {
        self.nodes[node].running.take().is_some()
    }

    /// The power goes: of what was not synced, a part is on the disk. Also of what a process wrote that was killed before.
    fn cut_power(&mut self, node: usize) -> bool {
        let ran = self.kill(node);
        self.nodes[node].disk.cut_power(&mut self.media) || ran
    }

    /// A disk is lost, and replaced by an empty one.
    fn wipe(&mut self, node: usize) -> Result<bool, String> {
        if !self.may_lose(node) {
            return Ok(false);
        }
        self.kill(node);
        let wal_gen = match self.upholds(Rule::DiskGeneration) {
            true => self.fresh_gen(),
            false => self.nodes[node].disk.label.wal_gen,
        };
        (self.nodes[node].disk, self.nodes[node].snapshot) = (Wal::new(wal_gen), None);
        self.start(node, true)?;
        Ok(true)
    }

    /// An old copy of the disk is put in its place (rule B1a). One that cannot be told from the newest state is out of reach of every rule:
    /// what was written since the store last heard of the disk's position.
    fn put_back(&mut self, node: usize) -> Result<bool, String> {
        let Some(mut old) = self.nodes[node].snapshot.clone() else { return Ok(false) };
        old.cut_power(&mut self.media);
        old.recover();
        let (label, durable_lsn) = (old.label, old.durable_lsn());
        let told = self.etcd.tells_apart(self.nodes[node].id, label.wal_gen, label.inc, durable_lsn);
        if !told || !self.may_lose(node) {
            return Ok(false);
        }
        self.kill(node);
        old.suspect = true;
        self.nodes[node].disk = old;
        self.start(node, true)?;
        Ok(true)
    }

    /// A bit flips at rest, in what is provably synced (rule W4), and the broker starts anew.
    fn flip(&mut self, node: usize) -> Result<bool, String> {
        if !self.nodes[node].is_sound() || !self.may_lose(node) || !self.nodes[node].disk.flip(&mut self.media) {
            return Ok(false);
        }
        // A process that runs would not look; the next start does.
        self.kill(node);
        self.start(node, true)?;
        Ok(true)
    }

    /// A sync fails: the broker ends, and starts again as another replica (rules W2, B4).
    fn fail_sync(&mut self, node: usize) -> bool {
        let (_, in_flight) = self.nodes[node].wal_waits();
        if !in_flight || !self.may_lose(node) {
            return false;
        }
        self.nodes[node].disk.fail_sync();
        self.kill(node)
    }

    /// Collects everything that can be, until nothing unreferenced is left (L7).
    pub(super) fn collect_all(&mut self) -> Checked {
        // What is on its way to the bucket arrives first.
        for _ in 0..5 {
            self.etcd.gc_epoch.0 += 1;
            for _ in 0..3 {
                self.collect(0);
            }
            while !self.wire.is_empty() {
                self.deliver_one(false)?;
            }
        }
        self.check()?;
        self.check_collected()
    }
}
