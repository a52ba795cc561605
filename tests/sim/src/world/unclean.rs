//! Unclean elections where topics ask for them (rule E7): how brokers hold them, and what they excuse. Nothing else is excused.

use super::{Checked, World};
use crate::etcd::Txn;
use crate::log::Log;
use millpond_core::election::{best_of_the_rest, candidates, vacant};
use millpond_core::loss::{self, Evidence};
use millpond_core::records::Leader;
use millpond_core::replica::{Input, Live};
use millpond_core::rules::Rules;
use millpond_log::{LeaderEpoch, Offset, PartitionId};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Looks after which replicas that are alive but do not answer are passed over.
const LOOKS_FOR_ALL: u32 = 4;

impl World {
    /// Whether the topics ask for unclean elections.
    pub(crate) fn is_unclean(&self) -> bool {
        self.unclean
    }

    /// A broker looks for what nobody may lead, as it did at its last look, and leads it if it holds the most of it. Whether it tries.
    pub(super) fn lead_forsaken(&mut self, node: usize, faults: bool) -> Result<bool, String> {
        let Some(live) = self.nodes[node].live().filter(|_| self.unclean) else { return Ok(false) };
        let running = self.nodes[node].running.as_mut().expect("it has a session");
        let image = Rc::clone(&running.image);
        let forsaken = image.records.iter().filter(|(_, (record, _))| {
            let alive = image.live(record);
            alive.contains(&live) && vacant(record, &alive) && candidates(record, &alive, Rules::ALL).is_empty()
        });
        let looks =
            |id: &PartitionId, revision: &u64| running.forsaken.get(&(*id, *revision)).map_or(0, |looks| looks + 1);
        let found: BTreeMap<(PartitionId, u64), u32> =
            forsaken.map(|(id, (_, revision))| ((*id, *revision), looks(id, revision))).collect();
        running.forsaken.clone_from(&found);
        let mut any = false;
        for ((partition, _), looks) in found.into_iter().filter(|(_, looks)| *looks > 0) {
            any |= self.lead_one(node, live, partition, looks >= LOOKS_FOR_ALL, faults)?;
        }
        Ok(any)
    }

    /// Has a broker lead one forsaken partition, if it holds the most of those that answer. Its own log is opened by the newest manifest
    /// first.
    fn lead_one(
        &mut self,
        node: usize,
        me: Live,
        partition: PartitionId,
        hurried: bool,
        faults: bool,
    ) -> Result<bool, String> {
        let Some(slot) = self.nodes[node].slot(partition) else { return Ok(false) };
        let visible = slot.replica.visible();
        let (root, root_revision) = self.etcd.roots[&partition].clone();
        let image = Rc::clone(&self.nodes[node].running.as_ref().expect("it holds a replica").image);
        let (record, base) = &image.records[&partition];
        // It has heard of a later epoch than its image shows, perhaps of its own office: nothing is forsaken.
        if visible.epoch > record.epoch {
            return Ok(false);
        }
        // Rule C1: a winner that does not know the log start could write below it.
        let outdated = slot.tiering.root().as_ref() != root.as_ref() || visible.log_start != root.log_start;
        if outdated || root.tiered_end > visible.end {
            return self.reopen(node, partition).map(|()| true);
        }
        let live = image.live(record);
        let answers = self.ask(node, partition, &live, faults);
        if !hurried && live.iter().any(|live| !answers.contains_key(&live.rid)) {
            return Ok(false);
        }
        let best = best_of_the_rest(record, &live, &answers, root.tiered_end);
        let own = answers.get(&me.rid).map(|held| held.durable);
        if best != Some(me) || own != Some(visible.end) {
            return Ok(false);
        }
        let evidence = Evidence {
            leader: Leader { rid: me.rid, inc: me.inc },
            epoch_seen: visible.epoch,
            end: visible.end,
            tiered_end: visible.tiered_end.max(root.tiered_end),
            known_end: answers.values().map(|held| held.known_end.max(held.hw)).max().unwrap_or_default(),
            cause: String::new(),
        };
        let acceptance = loss::give_up(record, &live, evidence);
        let acceptance = acceptance.map_err(|refusal| format!("E7 {partition} is forsaken, and yet: {refusal}"))?;
        let complete = record.isr.iter().chain(&record.elr).map(|rid| rid.broker);
        let sessions = complete.map(|broker| (broker, image.sessions.get(&broker).copied())).collect();
        let (base, root, next) = (*base, root_revision, acceptance.next);
        self.send_txn(node, Rc::new(Txn::Unclean { partition, base, root, next, sessions }));
        Ok(true)
    }

    /// Opens a replica again, from what its WAL holds and the manifest as it is now.
    fn reopen(&mut self, node: usize, partition: PartitionId) -> Checked {
        // Whoever waits for a commit is told that it will not be seen here; and all that was handed to the WAL is written first.
        self.step(node, partition, Input::Session(None))?;
        while self.nodes[node].wal_waits() != (false, false) {
            self.sync(node)?;
        }
        let running = self.nodes[node].running.as_mut().expect("it holds a replica");
        let image = Rc::clone(&running.image);
        let slot = running.slots.remove(&partition).expect("it is held");
        let (root, revision) = self.etcd.roots[&partition].clone();
        self.open(node, &image, partition, Some(slot.log), &root, revision)?;
        self.begin_session(node, partition)?;
        if let Some(wanted) = image.min_isr.get(&partition) {
            self.step(node, partition, Input::MinIsr(*wanted))?;
        }
        let assignment = image.assignment(partition).expect("it has a record");
        self.step(node, partition, Input::Assigned(assignment))
    }

    /// An unclean election holds: what its winner does not hold durably is given up, and producers begin anew, as they would have to.
    pub(super) fn forget_the_past(&mut self, winner: usize, partition: PartitionId) {
        self.comes_to_office.insert(partition, winner);
        self.give_up_what_lacks(winner, partition);
        let history = self.histories.get_mut(&partition).expect("every partition has a history");
        for client in self.clients.iter_mut().filter(|client| client.partition == partition) {
            history.keep_promised(client.acked.values().map(|(_, appended)| appended.base));
            *client = client.successor();
        }
    }

    /// The winner of an unclean election leads: what it has now is what is left.
    pub(super) fn note_office(&mut self, node: usize, partition: PartitionId) {
        if self.comes_to_office.get(&partition) != Some(&node) || self.is_of_the_past(node, partition) {
            return;
        }
        if self.nodes[node].slot(partition).is_some_and(|slot| slot.replica.visible().leads) {
            self.comes_to_office.remove(&partition);
            self.give_up_what_lacks(node, partition);
        }
    }

    fn give_up_what_lacks(&mut self, winner: usize, partition: PartitionId) {
        let (tiered_end, log_start) =
            (self.etcd.roots[&partition].0.tiered_end, self.etcd.roots[&partition].0.log_start);
        let empty = Log::default();
        let durable = self.nodes[winner].disk.synced.get(&partition).unwrap_or(&empty);
        let slot = self.nodes[winner].slot(partition).expect("the winner holds a replica");
        let history = self.histories.get_mut(&partition).expect("every partition has a history");
        history.give_up(&slot.log, durable, tiered_end, slot.replica.hw_to_persist());
        history.note_deleted(log_start);
        let end = history.end();
        // What is left is shown anew, and read anew.
        for slot in self.nodes.iter_mut().filter_map(|node| node.slot_mut(partition)) {
            slot.exposed = slot.exposed.min(end);
        }
        let reader = self.readers.get_mut(&partition).expect("every partition has a reader");
        *reader = end.min(*reader);
    }

    /// Whether a broker has not heard yet that the log went on elsewhere: it neither leads since, nor holds anything from then on.
    pub(crate) fn is_of_the_past(&self, node: usize, partition: PartitionId) -> bool {
        let (Some(unclean), Some(slot)) = (self.etcd.record(partition).unclean_epoch, self.nodes[node].slot(partition))
        else {
            return false;
        };
        let visible = slot.replica.visible();
        let last = visible.end.0.checked_sub(1).and_then(|last| slot.replica.epochs().epoch_at(Offset(last)));
        visible.epoch < unclean || !visible.leads && last.unwrap_or(LeaderEpoch(0)) < unclean
    }
}
