//! What must hold after every step (section 2.10 of the safety rules), seen from outside: by what readers and clients may know.

use crate::bucket;
use crate::log::Log;
use crate::world::{Checked, World};
use millpond_core::replica::{Appended, Placed, Refusal};
use millpond_log::manifest::ManifestRoot;
use millpond_log::producers::ProducerError;
use millpond_log::{LeaderEpoch, Offset, PartitionId, ProducerId, Rid, TimestampMs};
use std::collections::{BTreeMap, BTreeSet};

/// Everything of one partition that was ever exposed: the one true log.
#[derive(Default)]
pub(crate) struct History {
    batches: Vec<Exposed>,
    /// Where each (producer, sequence) was exposed.
    sequences: BTreeMap<(ProducerId, i32), Offset>,
    /// Highest epoch in which each replica has acknowledged something (rule R4).
    acknowledged_in: BTreeMap<Rid, LeaderEpoch>,
    /// What was acknowledged to clients that an unclean election ended, and was not given up by it.
    promised: BTreeSet<Offset>,
    /// What was deleted when an unclean election was held, though the log may end before it since.
    deleted: Offset,
    /// Where the log starts at least, as whoever moved it was told.
    starts: Offset,
}

#[derive(PartialEq)]
struct Exposed {
    base: Offset,
    end: Offset,
    hash: u64,
    /// Of its records.
    crc: u32,
    append_time: TimestampMs,
}

impl Exposed {
    fn of(placed: &Placed) -> Exposed {
        let Placed { batch, append_time, prefix_hash, .. } = placed;
        let (base, end) = (batch.base_offset(), batch.end_offset());
        Exposed { base, end, hash: *prefix_hash, crc: batch.crc(), append_time: *append_time }
    }
}

impl History {
    pub(crate) fn end(&self) -> Offset {
        self.batches.last().map_or(Offset(0), |last| last.end)
    }

    /// Rule E7: what the winner's `log` does not hold, or not durably, is given up; never what is tiered. What it knows to be committed
    /// up to `hw` is so again, though an earlier election may have given it up.
    pub(crate) fn give_up(&mut self, log: &Log, durable: &Log, tiered_end: Offset, hw: Offset) {
        let kept_below = log.start.max(tiered_end);
        let held = |exposed: &Exposed| {
            let holds = |log: &Log| log.hash_at(exposed.end) == Some(exposed.hash);
            exposed.end <= kept_below || (holds(log) && holds(durable))
        };
        let kept = self.batches.iter().take_while(|exposed| held(exposed)).count();
        self.batches.truncate(kept);
        let end = self.end();
        self.sequences.retain(|_, base| *base < end);
        for placed in log.batches[log.at(end)..].iter().take_while(|placed| placed.batch.end_offset() <= hw) {
            let (base, end) = (placed.batch.base_offset(), placed.batch.end_offset());
            if durable.hash_at(end) != Some(placed.prefix_hash) {
                break;
            }
            if let Some(stamp) = placed.batch.producer() {
                self.sequences.insert((stamp.id, stamp.base_sequence), base);
            }
            self.batches.push(Exposed::of(placed));
        }
        let end = self.end();
        self.promised.retain(|base| *base < end);
    }

    /// What lies below `log_start` stays deleted, also where an unclean election leaves less (rule C1).
    pub(crate) fn note_deleted(&mut self, log_start: Offset) {
        self.deleted = self.deleted.max(log_start);
    }

    /// The log start was moved, and whoever asked for it is told.
    pub(crate) fn note_start(&mut self, log_start: Offset) {
        self.starts = self.starts.max(log_start);
    }

    /// What was acknowledged to a client that begins anew stays promised, as far as it was not given up.
    pub(crate) fn keep_promised(&mut self, bases: impl Iterator<Item = Offset>) {
        let end = self.end();
        self.promised.extend(bases.filter(|base| *base < end));
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

    /// Whether the batch with these bounds and this checksum is the one that was shown (S2).
    pub(crate) fn shows(&self, base: Offset, end: Offset, crc: u32) -> bool {
        self.from(base).is_some_and(|known| known.end == end && known.crc == crc)
    }

    pub(crate) fn note_acknowledged_in(&mut self, rid: Rid, epoch: LeaderEpoch) {
        let newest = self.acknowledged_in.entry(rid).or_insert(epoch);
        *newest = epoch.max(*newest);
    }

    /// Rule R4: an epoch in which something was acknowledged is known after every restart.
    pub(crate) fn check_epoch(&self, rid: Rid, seen: LeaderEpoch) -> Checked {
        match self.acknowledged_in.get(&rid) {
            Some(newest) if *newest > seen => {
                Err(format!("R4 {rid} knows of epoch {seen} only, and has acknowledged in {newest}"))
            }
            _ => Ok(()),
        }
    }
}

impl World {
    pub(crate) fn history(&self, partition: PartitionId) -> &History {
        &self.histories[&partition]
    }

    /// Notes what a broker's readers may see now (S1, S2, S7, S15).
    pub(crate) fn expose(&mut self, node: usize, partition: PartitionId) -> Checked {
        let id = self.nodes[node].id;
        let past = self.is_of_the_past(node, partition);
        let Some(slot) = self.nodes[node].slot_mut(partition) else { return Ok(()) };
        let history = self.histories.get_mut(&partition).expect("every partition has a history");
        let visible = slot.replica.visible();
        let hw = visible.hw;
        if past {
            slot.exposed = slot.exposed.min(hw).min(history.end());
            return Ok(());
        }
        if hw > slot.log.end() {
            return Err(format!("broker {id} exposes {hw} of {partition}, whose log ends at {}", slot.log.end()));
        }
        let from = slot.log.at(slot.exposed);
        for placed in slot.log.batches[from..].iter().take_while(|placed| placed.batch.base_offset() < hw) {
            let (base, end) = (placed.batch.base_offset(), placed.batch.end_offset());
            if end > hw {
                return Err(format!("broker {id} exposes half a batch at {base} of {partition}"));
            }
            if base < history.end() {
                let same = history.from(base).is_some_and(|known| *known == Exposed::of(placed));
                if !same {
                    return Err(format!("S1/S2 broker {id} exposes another batch at {base} of {partition}"));
                }
                continue;
            }
            if base > history.end() {
                return Err(format!("S7 broker {id} exposes {base} of {partition} after {}", history.end()));
            }
            if !visible.leads {
                return Err(format!("follower {id} exposes {base} of {partition}, which no leader did"));
            }
            // Records that a winner kept may lie below; none that it takes may (rules E7, C1).
            let taken = placed.batch.leader_epoch() == visible.epoch && placed.batch.record_count() > 0;
            if taken && base < visible.log_start {
                return Err(format!(
                    "C1 broker {id} commits {base} of {partition}, which begins at {}",
                    visible.log_start
                ));
            }
            if let Some(stamp) = placed.batch.producer()
                && let Some(first) = history.sequences.insert((stamp.id, stamp.base_sequence), base)
            {
                return Err(format!(
                    "S15 sequence {} of producer {} at {first} and {base} of {partition}",
                    stamp.base_sequence, stamp.id.0
                ));
            }
            // Rule W3: whatever wall clocks do.
            if history.batches.last().is_some_and(|last| last.append_time > placed.append_time) {
                return Err(format!("W3 the append times of {partition} go back at {base}"));
            }
            self.holes += u64::from(placed.batch.record_count() == 0);
            history.batches.push(Exposed::of(placed));
        }
        slot.exposed = slot.exposed.max(hw);
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
        let asked = &self.clients[client];
        // What a producer is told that an unclean election has ended nobody hears.
        if asked.producer() != producer {
            return Ok(());
        }
        match result {
            Ok(appended) => {
                let found = self.history(asked.partition).sequences.get(&(producer, sequence));
                if found != Some(&appended.base) {
                    return Err(format!(
                        "P3 acknowledged {sequence} of {client} at {}, exposed at {found:?}",
                        appended.base
                    ));
                }
                Ok(())
            }
            // A late copy of what the client knows to be acknowledged may be old; what it still waits for may not.
            Err(Refusal::Producer(ProducerError::DuplicateUnknown { .. } | ProducerError::Fenced { .. }))
                if !asked.acked.contains_key(&sequence) =>
            {
                Err(format!("P1 {sequence} of {client} is answered {result:?}"))
            }
            Err(_) => Ok(()),
        }
    }

    pub(crate) fn check(&self) -> Checked {
        for (partition, (root, _)) in &self.etcd.roots {
            self.check_leaders(*partition)?;
            self.check_candidates(*partition)?;
            let missing = root.entries().iter().find(|entry| {
                let needed = entry.end > root.log_start || entry.end == root.tiered_end;
                needed && !self.bucket.0.contains_key(&entry.object)
            });
            if let Some(entry) = missing {
                return Err(format!("S10 the manifest of {partition} names `{}`, which is gone", entry.object));
            }
        }
        Ok(())
    }

    /// S3, S3b, S22, S24, R11: one leader an epoch; the one of record holds everything committed, and counts what is there.
    fn check_leaders(&self, partition: PartitionId) -> Checked {
        let mut epochs = BTreeMap::new();
        let committed = self.history(partition).end();
        for node in &self.nodes {
            let Some(slot) = node.slot(partition) else { continue };
            let visible = slot.replica.visible();
            if !visible.leads {
                continue;
            }
            if let Some(other) = epochs.insert(visible.epoch, node.id) {
                let (one, epoch) = (node.id, visible.epoch);
                return Err(format!("S24 brokers {other} and {one} lead {partition} in epoch {epoch}"));
            }
            if visible.epoch != self.etcd.record(partition).epoch {
                continue;
            }
            if visible.end < committed {
                return Err(format!(
                    "S3 leader {} of {partition} ends at {}, committed is {committed}",
                    node.id, visible.end
                ));
            }
            if visible.end_proven && visible.hw < committed {
                return Err(format!(
                    "S22 leader {} of {partition} proves {} as the end, committed is {committed}",
                    node.id, visible.hw
                ));
            }
            let starts = self.history(partition).starts;
            if visible.start_proven && visible.log_start < starts {
                return Err(format!(
                    "S22 leader {} of {partition} proves {} as the start, all below {starts} was deleted",
                    node.id, visible.log_start
                ));
            }
            self.check_counted(partition, node)?;
        }
        Ok(())
    }

    /// S3b: what the leader of record counts is durable where it says, and is its own log.
    fn check_counted(&self, partition: PartitionId, leader: &crate::node::Node) -> Checked {
        let Some(slot) = leader.slot(partition) else { return Ok(()) };
        for (rid, end) in slot.replica.counted() {
            let Some(holder) = self.nodes.iter().find(|node| node.rid() == rid && node.is_sound()) else { continue };
            let Some(held) = holder.disk.synced.get(&partition) else { continue };
            let (here, there) = (slot.log.hash_at(end), held.hash_at(end));
            // What either has trimmed is in the manifest.
            let trimmed = end < held.start || end < slot.log.start;
            if !trimmed && (held.end() < end || (here.is_some() && there.is_some() && here != there)) {
                return Err(format!(
                    "S3b leader {} of {partition} counts {rid} up to {end}, which holds {}..{} durably",
                    leader.id,
                    held.start,
                    held.end()
                ));
            }
        }
        Ok(())
    }

    /// S5: whoever may be elected, and whose disk is there, holds everything committed durably.
    fn check_candidates(&self, partition: PartitionId) -> Checked {
        // Until its winner leads, what an unclean election leaves is not known.
        if self.comes_to_office.contains_key(&partition) {
            return Ok(());
        }
        let history = self.history(partition);
        let committed = history.end();
        let record = self.etcd.record(partition);
        for rid in record.isr.iter().chain(&record.elr) {
            let Some(node) = self.nodes.iter().find(|node| node.rid() == *rid && node.is_sound()) else { continue };
            let empty = crate::log::Log::default();
            let log = node.disk.synced.get(&partition).unwrap_or(&empty);
            if log.start >= committed && log.end() >= committed {
                continue;
            }
            // Rule E7: what its winner has less of than object storage it takes from there, at every start until its disk begins there.
            if self.is_unclean() && committed <= self.etcd.roots[&partition].0.tiered_end {
                continue;
            }
            if log.hash_at(committed) != history.hash_at(committed) {
                return Err(format!(
                    "S5 candidate {rid} holds {}..{} of {partition} durably, committed is {committed}",
                    log.start,
                    log.end()
                ));
            }
        }
        Ok(())
    }

    /// S8, S11, S13, C1: what was just committed of a manifest was committed before, adjoins, and is what readers saw.
    pub(crate) fn check_tiered(&self, partition: PartitionId, old: &ManifestRoot) -> Checked {
        let (root, _) = &self.etcd.roots[&partition];
        let history = self.history(partition);
        if root.tiered_end > history.end() {
            return Err(format!("S8 {partition} is tiered to {} beyond committed {}", root.tiered_end, history.end()));
        }
        if root.tiered_end < old.tiered_end {
            return Err(format!("S8 tiered end of {partition} falls from {} to {}", old.tiered_end, root.tiered_end));
        }
        if root.log_start < old.log_start || root.log_start > history.end().max(history.deleted) {
            return Err(format!("C1 the log start of {partition} goes from {} to {}", old.log_start, root.log_start));
        }
        for entry in root.entries().iter().filter(|entry| entry.base >= old.tiered_end) {
            let mut expected = entry.base;
            for batch in self.bucket.read(root, entry)? {
                let (base, end) = (batch.base_offset(), batch.end_offset());
                if base != expected {
                    return Err(format!("S8 `{}` has {base} where {expected} is next", entry.object));
                }
                if !history.shows(base, end, batch.crc()) {
                    return Err(format!("S8 `{}` holds another batch at {base}", entry.object));
                }
                expected = end;
            }
            if expected != entry.end || history.hash_at(entry.end) != Some(entry.prefix_hash) {
                return Err(format!("S6 `{}` ends at {expected} with another history", entry.object));
            }
        }
        Ok(())
    }

    /// S1, S6, P2 at the end: everything acknowledged is in the leader's log or in the bucket, and replicas at the same offset agree.
    pub(crate) fn check_acknowledged(&self) -> Checked {
        for client in &self.clients {
            let (partition, root) = (client.partition, &self.etcd.roots[&client.partition].0);
            let leader = self.etcd.record(partition).leader.ok_or("nobody leads in the end")?;
            let node = self.nodes.iter().find(|node| node.id == leader.rid.broker).ok_or("no such broker")?;
            let log = &node.slot(partition).ok_or("the leader is down")?.log;
            let tiered = |base| root.entries().iter().any(|entry| (entry.base..entry.end).contains(&base));
            for (sequence, (_, appended)) in &client.acked {
                let base = appended.base;
                let held = log.batches.get(log.at(base)).is_some_and(|placed| placed.batch.base_offset() == base);
                if base >= root.log_start && !tiered(base) && !held {
                    return Err(format!("S1 acknowledged sequence {sequence} at {base} of {partition} is gone"));
                }
            }
        }
        for (partition, (root, _)) in &self.etcd.roots {
            let leader = self.etcd.record(*partition).leader.ok_or("nobody leads in the end")?;
            let leader = self.nodes.iter().find(|node| node.id == leader.rid.broker).ok_or("no such broker")?;
            let log = &leader.slot(*partition).ok_or("the leader is down")?.log;
            let there = |base: &&Offset| {
                let held = log.batches.get(log.at(**base)).is_some_and(|placed| placed.batch.base_offset() == **base);
                **base < root.log_start || **base < root.tiered_end || held
            };
            if let Some(gone) = self.history(*partition).promised.iter().find(|base| !there(base)) {
                return Err(format!("S1 acknowledged and not given up: {gone} of {partition} is gone"));
            }
            let mut ends = BTreeMap::new();
            for slot in self.nodes.iter().filter_map(|node| node.slot(*partition)) {
                let state = (slot.replica.prefix_hash(), slot.replica.producers().encode());
                let end = slot.replica.visible().end;
                if ends.insert(end, state.clone()).is_some_and(|other| other != state) {
                    return Err(format!("S6/P2 two replicas of {partition} differ at {end}"));
                }
            }
        }
        Ok(())
    }

    /// L7: nothing is left in the bucket that no manifest names.
    pub(crate) fn check_collected(&self) -> Checked {
        let named: std::collections::BTreeSet<_> =
            self.etcd.roots.values().flat_map(|(root, _)| bucket::references(root)).collect();
        match self.bucket.0.keys().find(|key| !named.contains(key)) {
            None => Ok(()),
            Some(left) => Err(format!("L7 `{left}` is still there")),
        }
    }

    pub(crate) fn acknowledged(&self) -> usize {
        let promised = self.histories.values().map(|history| history.promised.len());
        self.clients.iter().map(|client| client.acked.len()).chain(promised).sum()
    }
}
