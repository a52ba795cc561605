//! What must hold after every step (section 2.10 of the safety rules), seen from outside: by what readers and clients may know.

use crate::disk::Log;
use crate::world::World;
use millpond_core::replica::{Appended, Refusal};
use millpond_log::producers::ProducerError;
use millpond_log::{Offset, ProducerId};
use std::collections::{BTreeMap, BTreeSet};

/// Everything that was ever exposed: the one true log.
#[derive(Default)]
pub(crate) struct History {
    batches: Vec<Exposed>,
    /// Where each (producer, sequence) was exposed.
    sequences: BTreeMap<(ProducerId, i32), Offset>,
    /// What was acknowledged to clients that are gone, and not given up.
    pub(crate) promised: BTreeSet<Offset>,
}

struct Exposed {
    base: Offset,
    end: Offset,
    hash: u64,
}

impl History {
    pub(crate) fn end(&self) -> Offset {
        self.batches.last().map_or(Offset(0), |last| last.end)
    }

    /// Rule E7: what a log does not hold is given up. The log holds what was tiered, or begins there. What it knows to be committed up to
    /// `hw` is so again, though an earlier election may have given it up.
    pub(crate) fn give_up(&mut self, log: &Log, hw: Offset) {
        let held = |exposed: &Exposed| {
            exposed.end <= log.start || log.hash_at(exposed.end).is_some_and(|hash| hash == exposed.hash)
        };
        let kept = self.batches.iter().take_while(|exposed| held(exposed)).count();
        self.batches.truncate(kept);
        let end = self.end();
        self.sequences.retain(|_, base| *base < end);
        for placed in log.batches[log.at(end)..].iter().take_while(|placed| placed.batch.end_offset() <= hw) {
            let (base, end) = (placed.batch.base_offset(), placed.batch.end_offset());
            if let Some(stamp) = placed.batch.producer() {
                self.sequences.insert((stamp.id, stamp.base_sequence), base);
            }
            self.batches.push(Exposed { base, end, hash: placed.prefix_hash });
        }
    }

    fn from(&self, base: Offset) -> Option<&Exposed> {
        let at = self.batches.binary_search_by_key(&base, |exposed| exposed.base).ok()?;
        Some(&self.batches[at])
    }

    /// Hash of the log up to `end`, where a batch ends.
    fn hash_at(&self, end: Offset) -> Option<u64> {
        let at = self.batches.binary_search_by_key(&end, |exposed| exposed.end).ok()?;
        Some(self.batches[at].hash)
    }
}

type Checked = Result<(), String>;

impl World {
    /// Notes what a broker's readers may see now (S1, S2, S15).
    pub(crate) fn expose(&mut self, node: usize) -> Checked {
        let id = self.nodes[node].id;
        let past = self.is_of_the_past(node);
        let Some(running) = &mut self.nodes[node].running else { return Ok(()) };
        let visible = running.replica.visible();
        let hw = visible.hw;
        if past {
            running.exposed = running.exposed.min(hw);
            return Ok(());
        }
        if hw > running.log.end() {
            return Err(format!("broker {id} exposes {hw} of a log that ends at {}", running.log.end()));
        }
        let from = running.log.at(running.exposed);
        for placed in running.log.batches[from..].iter().take_while(|placed| placed.batch.base_offset() < hw) {
            let (base, end) = (placed.batch.base_offset(), placed.batch.end_offset());
            if end > hw {
                return Err(format!("broker {id} exposes half a batch at {base}"));
            }
            if base < self.history.end() {
                let same =
                    self.history.from(base).is_some_and(|known| known.hash == placed.prefix_hash && known.end == end);
                if !same {
                    return Err(format!("S1/S2 broker {id} exposes another batch at {base}"));
                }
                continue;
            }
            if base > self.history.end() {
                return Err(format!("S7 broker {id} exposes {base} after {}", self.history.end()));
            }
            if !visible.leads {
                return Err(format!("follower {id} exposes {base}, which no leader did"));
            }
            if let Some(stamp) = placed.batch.producer()
                && let Some(first) = self.history.sequences.insert((stamp.id, stamp.base_sequence), base)
            {
                return Err(format!(
                    "S15 sequence {} of producer {} at {first} and {base}",
                    stamp.base_sequence, stamp.id.0
                ));
            }
            self.history.batches.push(Exposed { base, end, hash: placed.prefix_hash });
        }
        running.exposed = running.exposed.max(hw);
        Ok(())
    }

    /// An answer is true when it is given, whether or not it arrives.
    pub(crate) fn check_answer(
        &self,
        client: usize,
        producer: ProducerId,
        sequence: i32,
        result: &Result<Appended, Refusal>,
    ) -> Checked {
        // What a client is told that is gone nobody hears.
        if self.clients[client].id() != producer {
            return Ok(());
        }
        match result {
            Ok(appended) => {
                let found = self.history.sequences.get(&(producer, sequence));
                if found != Some(&appended.base) {
                    return Err(format!(
                        "rule P3: acknowledged {sequence} of {client} at {}, exposed at {found:?}",
                        appended.base
                    ));
                }
                Ok(())
            }
            // A late copy of what the client knows to be acknowledged may be old; what it still waits for may not.
            Err(Refusal::Producer(ProducerError::DuplicateUnknown { .. } | ProducerError::Fenced { .. }))
                if !self.clients[client].acked.contains_key(&sequence) =>
            {
                Err(format!("rule P1: {sequence} of {client} is answered {result:?}"))
            }
            Err(_) => Ok(()),
        }
    }

    pub(crate) fn check(&mut self) -> Checked {
        self.check_leaders()?;
        self.check_candidates()?;
        let missing = self.etcd.manifest.entries.iter().find(|entry| !self.bucket.contains_key(&entry.object));
        match missing {
            Some(entry) => Err(format!("S10 the manifest names object {}, which is gone", entry.object)),
            None => Ok(()),
        }
    }

    /// S3, S24, R11: one leader an epoch, and the one of record holds everything committed.
    fn check_leaders(&self) -> Checked {
        let mut epochs = BTreeMap::new();
        let committed = self.history.end();
        for node in &self.nodes {
            let Some(running) = &node.running else { continue };
            let visible = running.replica.visible();
            if !visible.leads {
                continue;
            }
            if let Some(other) = epochs.insert(visible.epoch, node.id) {
                return Err(format!("S24 brokers {other} and {} lead in epoch {}", node.id, visible.epoch));
            }
            if visible.epoch != self.etcd.record.epoch {
                continue;
            }
            if visible.end < committed {
                return Err(format!("S3 leader {} ends at {}, committed is {committed}", node.id, visible.end));
            }
            if visible.end_proven && visible.hw < committed {
                return Err(format!(
                    "S22 leader {} proves {} as the end, committed is {committed}",
                    node.id, visible.hw
                ));
            }
        }
        Ok(())
    }

    /// S5: whoever may be elected, and whose disk is there, holds everything committed durably.
    fn check_candidates(&self) -> Checked {
        if self.comes_to_office.is_some() {
            return Ok(());
        }
        let committed = self.history.end();
        let record = &self.etcd.record;
        for rid in record.isr.iter().chain(&record.elr) {
            let Some(node) = self.nodes.iter().find(|node| node.id == rid.broker) else { continue };
            if node.wal_gen != rid.wal_gen {
                continue;
            }
            let log = &node.disk.synced;
            if log.start >= committed && log.end() >= committed {
                continue;
            }
            let last = log.batches.iter().find(|placed| placed.batch.end_offset() == committed);
            if last.map(|placed| placed.prefix_hash) != self.history.hash_at(committed) {
                return Err(format!(
                    "S5 candidate {rid} holds {}..{} durably, committed is {committed}",
                    log.start,
                    log.end()
                ));
            }
        }
        Ok(())
    }

    /// S8, S11: what is tiered was committed, adjoins, and is what readers saw.
    pub(crate) fn check_tiered(&self) -> Checked {
        let manifest = &self.etcd.manifest;
        if manifest.at_end.end > self.history.end() {
            return Err(format!("S8 tiered {} beyond committed {}", manifest.at_end.end, self.history.end()));
        }
        let mut expected = manifest.entries.first().map_or(manifest.at_end.end, |first| first.base);
        for entry in &manifest.entries {
            let Some(object) = self.bucket.get(&entry.object) else { continue };
            for placed in &object.batches {
                let (base, end) = (placed.batch.base_offset(), placed.batch.end_offset());
                if base != expected {
                    return Err(format!("S8 tiered {base} where {expected} is next"));
                }
                if self.history.from(base).is_none_or(|exposed| exposed.hash != placed.prefix_hash) {
                    return Err(format!("S8 the object holds another batch at {base}"));
                }
                expected = end;
            }
        }
        Ok(())
    }

    /// S1 at the end: everything acknowledged is in the leader's log or in the bucket.
    pub(crate) fn check_acknowledged(&self) -> Checked {
        self.check_tiered()?;
        let leader = self.etcd.record.leader.ok_or("nobody leads in the end")?;
        let node = self.nodes.iter().find(|node| node.id == leader.rid.broker).ok_or("no such broker")?;
        let log = &node.running.as_ref().ok_or("the leader is down")?.log;
        let tiered: Vec<Offset> = self
            .etcd
            .manifest
            .entries
            .iter()
            .filter_map(|entry| self.bucket.get(&entry.object))
            .flat_map(|object| object.batches.iter().map(|placed| placed.batch.base_offset()))
            .collect();
        let there = |base: Offset| {
            base < self.etcd.manifest.log_start
                || tiered.contains(&base)
                || log.batches.iter().any(|placed| placed.batch.base_offset() == base)
        };
        for client in &self.clients {
            if let Some((sequence, (_, appended))) =
                client.acked.iter().find(|(_, (_, appended))| !there(appended.base))
            {
                return Err(format!("S1 acknowledged sequence {sequence} at {} is gone", appended.base));
            }
        }
        match self.history.promised.iter().find(|base| !there(**base)) {
            Some(base) => Err(format!("S1 acknowledged, and not given up: {base} is gone")),
            None => Ok(()),
        }
    }

    pub(crate) fn acknowledged(&self) -> usize {
        self.clients.iter().map(|client| client.acked.len()).sum::<usize>() + self.history.promised.len()
    }
}
