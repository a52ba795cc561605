//! What befalls brokers: kills, power cuts, lost disks; and how they come back.

use super::wire::Msg;
use super::{Checked, World};
use millpond_core::replica::Input;
use millpond_core::rules::Rule;
use millpond_log::Rid;

impl World {
    pub(super) fn kill(&mut self, node: usize) {
        self.nodes[node].running = None;
    }

    pub(super) fn cut_power(&mut self, node: usize) {
        self.kill(node);
        let unsynced = self.nodes[node].disk.unsynced();
        let kept = if self.rng.per_mille(300) { 0 } else { self.rng.below(unsynced + 1) };
        self.nodes[node].disk.cut_power(kept);
    }

    pub(super) fn start(&mut self, node: usize) -> Checked {
        if self.nodes[node].running.is_none() {
            self.nodes[node].start(&self.etcd.manifest, self.rules)?;
            return self.register(node);
        }
        if !self.etcd.sessions.contains_key(&self.nodes[node].id) {
            return self.register(node);
        }
        Ok(())
    }

    pub(super) fn register(&mut self, node: usize) -> Checked {
        let (id, wal_gen) = (self.nodes[node].id, self.nodes[node].wal_gen);
        let inc = self.etcd.register(id, wal_gen);
        let Some(running) = &mut self.nodes[node].running else { return Ok(()) };
        running.inc = Some(inc);
        running.proposal = None;
        running.upload = None;
        self.step(node, Input::Session(Some(inc)))?;
        let assignment = self.etcd.assignment();
        self.wire.push(Msg::View { to: id, at: self.etcd.revision, assignment });
        Ok(())
    }

    /// Electable replicas whose disk is there.
    pub(super) fn electable(&self) -> impl Iterator<Item = Rid> {
        let record = &self.etcd.record;
        let there = |rid: &Rid| self.nodes.iter().any(|node| node.rid() == *rid);
        record.isr.iter().chain(&record.elr).copied().filter(there)
    }

    /// A disk is lost, within what is promised: another electable copy is left.
    pub(super) fn wipe(&mut self, node: usize) -> Checked {
        let rid = self.nodes[node].rid();
        let (mut own, mut others) = (false, 0);
        for electable in self.electable() {
            if electable == rid { own = true } else { others += 1 }
        }
        if self.nodes[node].running.is_some() || (own && others == 0) {
            return Ok(());
        }
        self.wipes += 1;
        self.nodes[node].disk = crate::disk::Disk::default();
        if self.rules.uphold(Rule::DiskGeneration) {
            self.nodes[node].wal_gen.0 += 1;
        }
        self.start(node)
    }
}
