//! The controller on whichever broker has control, and elections by anybody where it does not act (rules E1 to E9).

use super::wire::Msg;
use super::{Checked, World};
use crate::etcd::{Image, Txn};
use crate::node::{Sweep, Term};
use millpond_core::controller::{Controller, Duty, Limits, Member, View};
use millpond_core::election::{self, Holds};
use millpond_core::records::PartitionRecord;
use millpond_core::replica::{Live, Transfer};
use millpond_core::rules::Rule;
use millpond_core::tiering::Outcome;
use millpond_log::{Offset, PartitionId, Rid};
use std::collections::BTreeMap;
use std::rc::Rc;

/// As a broker's, in the time of runs that last some seconds.
const LIMITS: Limits = Limits {
    calm_ms: 400,
    replace_after_ms: 4_000,
    remove_after_ms: 500,
    transfer_ms: 800,
    finish_after_ms: 10_000,
    bury_after_ms: 600_000,
    transfers_max: 3,
    moves_max: 2,
};

impl World {
    /// A broker takes control where nobody has it, or acts as controller.
    pub(super) fn control(&mut self, node: usize, faults: bool) -> Result<bool, String> {
        let Some(live) = self.nodes[node].live() else { return Ok(false) };
        let now_ms = self.now_ms;
        let running = self.nodes[node].running.as_mut().expect("it has a session");
        let image = Rc::clone(&running.image);
        match image.control {
            Some((holder, revision)) if holder == live => {
                // It may have taken it without having heard.
                if running.term.as_ref().is_none_or(|term| term.revision != revision) {
                    let controller = Controller::new(LIMITS, now_ms);
                    running.term = Some(Term { revision, controller, written: BTreeMap::new() });
                }
            }
            Some(_) => {
                running.term = None;
                return Ok(false);
            }
            None => {
                self.send_txn(node, Rc::new(Txn::Control { seen: None }));
                return Ok(true);
            }
        }
        self.act_as_controller(node, &image, faults)?;
        Ok(true)
    }

    pub(super) fn took_control(&mut self, node: usize, outcome: Outcome) {
        let now_ms = self.now_ms;
        let Some(running) = &mut self.nodes[node].running else { return };
        if let Outcome::Committed(revision) = outcome {
            running.term =
                Some(Term { revision, controller: Controller::new(LIMITS, now_ms), written: BTreeMap::new() });
        }
    }

    /// What a controller wrote is known to it before its image shows it.
    pub(super) fn record_written(
        &mut self,
        node: usize,
        partition: PartitionId,
        next: &PartitionRecord,
        outcome: Outcome,
    ) {
        let term = self.nodes[node].running.as_mut().and_then(|running| running.term.as_mut());
        if let (Some(term), Outcome::Committed(revision)) = (term, outcome) {
            term.written.insert(partition, (next.clone(), revision));
        }
    }

    fn act_as_controller(&mut self, node: usize, image: &Image, faults: bool) -> Checked {
        let now_ms = self.now_ms;
        let running = self.nodes[node].running.as_mut().expect("it acts");
        let Some(mut term) = running.term.take() else { return Ok(()) };
        let newer = |id: &PartitionId, revision: u64| image.records.get(id).is_some_and(|(_, seen)| *seen < revision);
        term.written.retain(|id, (_, revision)| newer(id, *revision));
        let records: BTreeMap<PartitionId, (PartitionRecord, u64)> =
            image.records.iter().map(|(id, seen)| (*id, term.written.get(id).unwrap_or(seen).clone())).collect();
        let vacant: Vec<PartitionId> = records
            .iter()
            .filter(|(_, (record, _))| election::vacant(record, &image.live(record)))
            .map(|(id, _)| *id)
            .collect();
        let mut elected = false;
        for partition in vacant {
            elected |= self.elect_one(node, image, partition, &records[&partition], Some(term.revision), faults);
        }
        if elected {
            term.controller.note_elections(now_ms);
        }
        let view = View {
            members: image.sessions.iter().map(|(id, live)| (*id, Member { live: *live, rack: None })).collect(),
            leaving: image.draining.clone(),
            draining: image.draining.clone(),
            disks: image.disks.clone(),
            partitions: records.iter().map(|(id, (record, _))| (*id, record)).collect(),
        };
        for duty in term.controller.due(now_ms, &view) {
            self.do_duty(node, duty, &records, term.revision);
        }
        if !self.upholds(Rule::LeaderExpands) {
            self.expand_as_controller(node, image, &records, term.revision);
        }
        self.nodes[node].running.as_mut().expect("it acts").term = Some(term);
        Ok(())
    }

    fn do_duty(
        &mut self,
        node: usize,
        duty: Duty,
        records: &BTreeMap<PartitionId, (PartitionRecord, u64)>,
        control: u64,
    ) {
        match duty {
            Duty::Change { partition, next } => {
                let base = records[&partition].1;
                let (sessions, control) = (Vec::new(), Some(control));
                self.send_txn(node, Rc::new(Txn::Record { partition, base, next, sessions, control }));
            }
            Duty::Transfer { partition, from, epoch, to } => {
                let wish = Transfer { epoch, to, within_ms: LIMITS.transfer_ms / 2 };
                self.wire.push(Msg::Wish { to: from.rid.broker, partition, wish });
            }
        }
    }

    /// What rule E6 forbids: whoever lives is in sync.
    fn expand_as_controller(
        &mut self,
        node: usize,
        image: &Image,
        records: &BTreeMap<PartitionId, (PartitionRecord, u64)>,
        control: u64,
    ) {
        for (partition, (record, base)) in records {
            let isr: Vec<Rid> = image.live(record).iter().map(|live| live.rid).collect();
            let led = record.leader.is_some_and(|leader| isr.contains(&leader.rid));
            if led && isr.len() > record.isr.len() {
                let next = PartitionRecord { isr, ..record.clone() };
                let (partition, base, sessions, control) = (*partition, *base, Vec::new(), Some(control));
                self.send_txn(node, Rc::new(Txn::Record { partition, base, next, sessions, control }));
            }
        }
    }

    /// Whoever may lead what nobody leads elects, where no controller does (rule E1).
    pub(super) fn elect(&mut self, node: usize, faults: bool) -> Result<bool, String> {
        let Some(live) = self.nodes[node].live() else { return Ok(false) };
        let image = Rc::clone(&self.nodes[node].running.as_ref().expect("it has a session").image);
        let mut any = false;
        for (partition, seen) in &image.records {
            let candidates = election::candidates(&seen.0, &image.live(&seen.0), self.rules);
            if image.vacant(*partition) && candidates.contains(&live) {
                any |= self.elect_one(node, &image, *partition, seen, None, faults);
            }
        }
        Ok(any)
    }

    /// Asks the candidates and has the best elected (rules E2 to E5). Whether somebody could be.
    fn elect_one(
        &mut self,
        node: usize,
        image: &Image,
        partition: PartitionId,
        seen: &(PartitionRecord, u64),
        control: Option<u64>,
        faults: bool,
    ) -> bool {
        let (record, base) = seen;
        let live = image.live(record);
        let candidates = election::candidates(record, &live, self.rules);
        let mut answers = BTreeMap::new();
        if candidates.len() > 1 {
            answers = self.ask(node, partition, &candidates, faults);
            // Asked again, since a log end proves something only if it was asked for after the high watermark had come.
            if let Some(committed) = election::short_of_committed(&answers) {
                answers = self.ask(node, partition, &candidates, faults);
                if answers.values().any(|holds| holds.durable < committed) {
                    return false;
                }
            }
        }
        let Some(next) = election::elect(record, &live, &answers, self.rules) else { return false };
        let leader = next.leader.expect("an election has a winner");
        let sessions = vec![Live { rid: leader.rid, inc: leader.inc }];
        self.send_txn(node, Rc::new(Txn::Record { partition, base: *base, next, sessions, control }));
        true
    }

    /// What the candidates say that they hold; not all of them answer in time.
    pub(super) fn ask(
        &mut self,
        node: usize,
        partition: PartitionId,
        candidates: &[Live],
        faults: bool,
    ) -> BTreeMap<Rid, Holds> {
        let mut answers = BTreeMap::new();
        for live in candidates {
            let at = self.index(live.rid.broker);
            let cut = self.cut.contains(&(node, at)) || self.cut.contains(&(at, node)) || self.is_paused(at);
            let late = faults && self.net.per_mille(150);
            if cut || late || self.nodes[at].rid() != live.rid {
                continue;
            }
            let Some(slot) = self.nodes[at].slot(partition) else { continue };
            let visible = slot.replica.visible();
            // What is tiered is durable in object storage, whatever the WAL has of it.
            let durable = slot.replica.durable().max(visible.tiered_end);
            let last = durable.0.checked_sub(1).and_then(|last| slot.replica.epochs().epoch_at(Offset(last)));
            let hw = visible.hw;
            answers.insert(live.rid, Holds { last_epoch: last.unwrap_or_default(), durable, hw, known_end: durable });
        }
        answers
    }

    /// One stage of a collection on one broker (rules G1, G2); any time may pass between the stages.
    pub(super) fn collect(&mut self, node: usize) -> bool {
        use millpond_core::collection::{collectable, drops_due_below, orphans};
        use millpond_core::tiering::TierRules;
        let epoch = self.etcd.gc_epoch;
        let rules = TierRules { collect_by_epoch: self.upholds(Rule::ObjectsExpire), ..TierRules::ALL };
        let Some(running) = &mut self.nodes[node].running else { return false };
        running.gc_epoch = epoch;
        match std::mem::take(&mut running.sweep) {
            Sweep::Idle => {
                // What was dropped long enough ago goes at once.
                let due = drops_due_below(epoch);
                let (gone, kept) = self.etcd.drops.iter().partition(|(dropped, _)| *dropped < due);
                self.etcd.drops = kept;
                let gone: Vec<(_, _)> = gone;
                self.wire.extend(gone.into_iter().map(|(_, key)| Msg::Delete { key }));
                let listed = self.bucket.0.keys().copied().collect();
                running.sweep = Sweep::Listed(collectable(listed, epoch, rules));
            }
            Sweep::Listed(old) => {
                let named = self.etcd.roots.values().flat_map(|(root, _)| crate::bucket::references(root)).collect();
                running.sweep = Sweep::Judged(orphans(old, &named));
            }
            Sweep::Judged(orphans) => {
                self.wire.extend(orphans.into_iter().map(|key| Msg::Delete { key }));
            }
        }
        true
    }
}
