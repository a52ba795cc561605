//! What may happen next, and how often; the steps that brokers and clients take by themselves.

use super::wire::Msg;
use super::{Checked, World};
use crate::log::Record;
use crate::node::Errand;
use millpond_core::replica::{Input, Transfer};
use millpond_core::rules::Rule;
use millpond_log::manifest::ManifestRoot;
use millpond_log::{BrokerId, Offset, PartitionId};

/// What may happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Deliver,
    Produce,
    Sync,
    Push,
    Rebuild,
    Resend,
    Reconnect,
    Tick,
    Watch,
    Control,
    Elect,
    NoteHw,
    Mark,
    NoteDisk,
    Upload,
    GiveUpUpload,
    GiveUpCommit,
    Collect,
    Consume,
    Start,
    GetOn,
    HealWire,
    BumpGc,
    Retain,
    Kill,
    CutPower,
    CutAllPower,
    Restart,
    EndSession,
    Wipe,
    Snapshot,
    OldDisk,
    FlipBit,
    FailSync,
    FillDisk,
    Pause,
    StallWatch,
    CutWire,
    CutStore,
    StoreLeader,
    MinIsr,
    Wait,
    Transfer,
    Drain,
    Unreachable,
    JumpClock,
}

/// The usual weight of each, and whether it is a fault, or an order of somebody, which a run may go without. In the enum's order.
pub(crate) const ACTIONS: [(Action, u32, bool); 46] = [
    (Action::Deliver, 360, false),
    (Action::Produce, 24, false),
    (Action::Sync, 70, false),
    (Action::Push, 70, false),
    (Action::Rebuild, 20, false),
    (Action::Resend, 8, false),
    (Action::Reconnect, 8, false),
    (Action::Tick, 20, false),
    (Action::Watch, 40, false),
    (Action::Control, 24, false),
    (Action::Elect, 4, false),
    (Action::NoteHw, 12, false),
    (Action::Mark, 4, false),
    (Action::NoteDisk, 4, false),
    (Action::Upload, 20, false),
    (Action::GiveUpUpload, 4, false),
    (Action::GiveUpCommit, 6, false),
    (Action::Collect, 8, true),
    (Action::Consume, 8, false),
    (Action::Start, 16, false),
    (Action::GetOn, 30, false),
    (Action::HealWire, 6, false),
    (Action::BumpGc, 3, true),
    (Action::Retain, 3, true),
    (Action::Kill, 3, true),
    (Action::CutPower, 3, true),
    (Action::CutAllPower, 1, true),
    (Action::Restart, 3, true),
    (Action::EndSession, 3, true),
    (Action::Wipe, 2, true),
    (Action::Snapshot, 3, true),
    (Action::OldDisk, 2, true),
    (Action::FlipBit, 2, true),
    (Action::FailSync, 1, true),
    (Action::FillDisk, 1, true),
    (Action::Pause, 2, true),
    (Action::StallWatch, 2, true),
    (Action::CutWire, 2, true),
    (Action::CutStore, 2, true),
    (Action::StoreLeader, 2, true),
    (Action::MinIsr, 3, true),
    (Action::Wait, 2, true),
    (Action::Transfer, 4, true),
    (Action::Drain, 2, true),
    (Action::Unreachable, 5, true),
    (Action::JumpClock, 3, true),
];

/// What happens when nothing goes wrong any more.
pub(super) const HEALTHY: [Action; 27] = [
    Action::Deliver,
    Action::Deliver,
    Action::Deliver,
    Action::Deliver,
    Action::Deliver,
    Action::Deliver,
    Action::Deliver,
    Action::Deliver,
    Action::Deliver,
    Action::Deliver,
    Action::Produce,
    Action::Sync,
    Action::Sync,
    Action::Sync,
    Action::Push,
    Action::Push,
    Action::Push,
    Action::Rebuild,
    Action::Tick,
    Action::Watch,
    Action::Control,
    Action::Upload,
    Action::Upload,
    Action::Resend,
    Action::Start,
    Action::GetOn,
    Action::Consume,
];

impl World {
    /// One thing happens, to one broker drawn for it.
    pub(super) fn act(&mut self, action: Action, faults: bool) -> Checked {
        self.now_ms += self.rng.below(8) as u64;
        self.steps += 1;
        let concerned = self.concerned(action);
        let node = match concerned.len() {
            0 => self.rng.below(self.nodes.len()),
            some => concerned[self.rng.below(some)],
        };
        self.note(action as u64 ^ (node as u64) << 8);
        if self.tell && action != Action::Deliver {
            println!("{:>8} {action:?} broker={node}", self.now_ms);
        }
        self.etcd.expire(self.now_ms);
        self.keep_alive()?;
        let happened = match action {
            _ if self.is_paused(node) && acts_by_itself(action) => false,
            Action::Deliver => self.deliver_some(faults)?,
            Action::Produce => self.produce(faults),
            Action::Sync => self.sync(node)?,
            Action::Push => self.push()?,
            Action::Rebuild => self.rebuild(node)?,
            Action::Resend => self.resend(node),
            Action::Reconnect => self.reconnect(node)?,
            Action::Tick => self.tick(node)? | self.lead_forsaken(node, faults)?,
            Action::Watch => self.watch(node),
            Action::Control => self.control(node, faults)?,
            Action::Elect => self.elect(node, faults)?,
            Action::NoteHw => self.note_high_watermarks(node),
            Action::Mark => self.mark(node),
            Action::NoteDisk => self.note_disk(node),
            Action::Upload => self.upload(node, faults)?,
            Action::GiveUpUpload => self.give_up_upload(node),
            Action::GiveUpCommit => self.give_up_commit(node)?,
            Action::Collect => self.collect(node),
            Action::Consume => self.consume(node)?,
            Action::Start => self.start(node, faults)?,
            Action::GetOn => self.get_on(node)?,
            Action::HealWire => self.heal_wire(),
            Action::BumpGc => {
                self.etcd.gc_epoch.0 += 1;
                true
            }
            Action::Retain => self.retain(node)?,
            Action::Wait => {
                self.now_ms += 300;
                true
            }
            Action::Transfer => self.transfer()?,
            Action::MinIsr => self.change_min_isr(),
            Action::Unreachable => self.judge_unreachable(node)?,
            fault => self.befall(fault, node)?,
        };
        if happened {
            self.happened[action as usize] += 1;
        }
        self.check()
    }

    /// The brokers for which an action has something to do, where it is worth looking: so that runs are short and full.
    fn concerned(&self, action: Action) -> Vec<usize> {
        let newest = self.etcd.look().revision;
        let control = self.etcd.look().control.map(|(holder, _)| self.index(holder.rid.broker));
        let concerned = |node: &usize| {
            let at = &self.nodes[*node];
            match action {
                Action::Wipe | Action::FlipBit => return at.is_sound() && self.may_lose(*node),
                Action::OldDisk => return at.snapshot.is_some() && self.may_lose(*node),
                Action::FailSync => return at.wal_waits().1 && self.may_lose(*node),
                _ => {}
            }
            let Some(running) = &at.running else { return action == Action::Start };
            let mut slots = running.slots.values();
            match action {
                Action::Start => running.inc.is_none(),
                Action::GetOn => !running.opening.is_empty() || !running.leaving.is_empty(),
                Action::Sync => at.wal_waits() != (false, false),
                Action::Watch => running.told < newest && at.stalled_until <= self.now_ms,
                Action::Control => control.is_none_or(|control| control == *node),
                Action::Rebuild => slots.any(|slot| slot.rebuild.is_some() || slot.office_read.is_some()),
                Action::GiveUpUpload => slots.any(|slot| matches!(slot.errand, Errand::Upload(_))),
                Action::GiveUpCommit => slots.any(|slot| matches!(slot.errand, Errand::Commit(..))),
                Action::Resend => slots.any(|slot| slot.proposal.is_some()),
                Action::Upload | Action::Retain => slots.any(|slot| slot.tiering.office().is_some()),
                _ => false,
            }
        };
        (0..self.nodes.len()).filter(concerned).collect()
    }

    fn produce(&mut self, faults: bool) -> bool {
        let client = self.whims.below(self.clients.len());
        let partition = self.clients[client].partition;
        let stray = faults && self.whims.per_mille(150);
        let fresh = self.goals.get(&partition).is_none_or(|goal| self.history(partition).end() < *goal);
        let record = self.etcd.record(partition);
        let to = match record.leader {
            Some(leader) if !stray => leader.rid.broker,
            _ => record.replicas[self.whims.below(record.replicas.len())],
        };
        let batches = self.clients[client].batches(&mut self.whims, fresh);
        let sent = !batches.is_empty();
        let some = 1 + self.whims.below(batches.len());
        self.wire.extend(batches.into_iter().take(some).map(|batch| Msg::Produce { to, client, batch }));
        sent
    }

    /// The writer of a WAL goes on: it writes what waits, or syncs what it wrote, or both at once.
    pub(super) fn sync(&mut self, node: usize) -> Result<bool, String> {
        let (waits, in_flight) = self.nodes[node].wal_waits();
        if !in_flight {
            self.nodes[node].write_group();
            if !waits || self.media.per_mille(300) {
                return Ok(waits);
            }
        }
        for (partition, mark) in self.nodes[node].sync_group() {
            self.step(node, partition, Input::Durable(mark))?;
        }
        Ok(true)
    }

    fn mark(&mut self, node: usize) -> bool {
        let idle = self.nodes[node].running.is_some() && self.nodes[node].wal_waits() == (false, false);
        let marks = idle && self.nodes[node].disk.wants_mark();
        if marks {
            self.nodes[node].disk.write([]);
            self.nodes[node].disk.sync();
        }
        marks
    }

    fn push(&mut self) -> Result<bool, String> {
        let mut open: Vec<(usize, PartitionId, BrokerId)> = Vec::new();
        for (node, running) in self.nodes.iter().enumerate().filter_map(|(at, node)| Some((at, node.running.as_ref()?)))
        {
            for (partition, slot) in &running.slots {
                open.extend(slot.cursors.keys().map(|to| (node, *partition, *to)));
            }
        }
        if open.is_empty() {
            return Ok(false);
        }
        let (node, partition, to) = open[self.rng.below(open.len())];
        if self.is_paused(node) {
            return Ok(false);
        }
        let batches_max = self.rng.below(4);
        match self.nodes[node].push(partition, to, batches_max) {
            Some(Ok(push)) => self.wire.push(Msg::Push { to, partition, push }),
            Some(Err(trimmed)) => self.step(node, partition, trimmed)?,
            None => return Ok(false),
        }
        Ok(true)
    }

    fn rebuild(&mut self, node: usize) -> Result<bool, String> {
        let mut inputs = Vec::new();
        let Some(running) = &mut self.nodes[node].running else { return Ok(false) };
        for (partition, slot) in &mut running.slots {
            let (root, _) = &self.etcd.roots[partition];
            inputs.extend(slot.rebuilt(root, &self.bucket)?.map(|input| (*partition, input)));
            let ManifestRoot { log_start, tiered_end, epoch, .. } = **root;
            let read = slot.office_read.take();
            inputs.extend(
                read.map(|office| (*partition, Input::OfficeManifest { office, log_start, tiered_end, epoch })),
            );
        }
        let any = !inputs.is_empty();
        for (partition, input) in inputs {
            self.step(node, partition, input)?;
        }
        Ok(any)
    }

    /// Sends unresolved proposals again (rule K5).
    fn resend(&mut self, node: usize) -> bool {
        let Some(running) = &self.nodes[node].running else { return false };
        let open = running.slots.iter().filter_map(|(id, slot)| Some((*id, slot.proposal.clone()?)));
        let open: Vec<_> = open.collect();
        for (partition, proposal) in &open {
            self.propose(node, *partition, proposal);
        }
        !open.is_empty()
    }

    fn reconnect(&mut self, node: usize) -> Result<bool, String> {
        let to = self.rng.below(self.nodes.len());
        let to = self.nodes[to].id;
        self.tell_reconnected(node, to)?;
        Ok(true)
    }

    /// A link asks only for what it has been told to push.
    fn tell_reconnected(&mut self, node: usize, to: BrokerId) -> Checked {
        for partition in self.held(node) {
            if self.nodes[node].slot(partition).is_some_and(|slot| slot.cursors.contains_key(&to)) {
                self.step(node, partition, Input::Reconnected(to))?;
            }
        }
        Ok(())
    }

    /// No way leads to a broker, another thinks, rightly or not (rule I6).
    fn judge_unreachable(&mut self, node: usize) -> Result<bool, String> {
        let to = self.rng.below(self.nodes.len());
        for partition in self.held(node) {
            self.step(node, partition, Input::Unreachable(self.nodes[to].id))?;
        }
        Ok(true)
    }

    /// What was lost on the way is noticed by the end of its connection, or of its time.
    pub(super) fn reconnect_all(&mut self) -> Checked {
        for node in 0..self.nodes.len() {
            self.give_up_upload(node);
            self.give_up_commit(node)?;
            for to in 0..self.nodes.len() {
                self.tell_reconnected(node, self.nodes[to].id)?;
            }
        }
        Ok(())
    }

    /// Partitions that a broker leads, as far as it knows.
    pub(super) fn led(&self, node: usize) -> Vec<PartitionId> {
        let slots = self.nodes[node].running.iter().flat_map(|running| &running.slots);
        slots.filter(|(_, slot)| slot.tiering.office().is_some()).map(|(id, _)| *id).collect()
    }

    /// Partitions of which a broker has a replica open.
    pub(super) fn held(&self, node: usize) -> Vec<PartitionId> {
        self.nodes[node].running.as_ref().map_or_else(Vec::new, |running| running.slots.keys().copied().collect())
    }

    fn tick(&mut self, node: usize) -> Result<bool, String> {
        for partition in self.held(node) {
            self.step(node, partition, Input::Tick)?;
        }
        Ok(true)
    }

    /// Notes high watermarks in the WAL (rule R10).
    fn note_high_watermarks(&mut self, node: usize) -> bool {
        let ahead = !self.upholds(Rule::HighWatermarkDurable);
        for partition in self.held(node) {
            let Some(slot) = self.nodes[node].slot_mut(partition) else { continue };
            let hw = slot.replica.hw_to_persist();
            slot.log.hw = hw;
            if ahead {
                self.nodes[node].disk.note_hw_ahead(partition, hw);
            } else {
                self.nodes[node].note(partition, Record::HighWatermark(hw), None);
            }
        }
        true
    }

    /// A leader is asked to hand over (rule E9). Whoever asks goes by what it saw, so the wish may be out of date.
    fn transfer(&mut self) -> Result<bool, String> {
        let partitions = self.partitions();
        let partition = partitions[self.rng.below(partitions.len())];
        let record = self.etcd.record(partition);
        let (to, within_ms) =
            (record.replicas[self.rng.below(record.replicas.len())], 100 + self.rng.below(3_000) as u64);
        let (Some(leader), Some(to)) = (record.leader, self.etcd.look().sessions.get(&to)) else { return Ok(false) };
        let wish = Transfer { epoch: record.epoch, to: *to, within_ms };
        self.step(self.index(leader.rid.broker), partition, Input::Transfer(wish))?;
        Ok(true)
    }

    /// The operator changes `min.insync.replicas` (rule I7).
    fn change_min_isr(&mut self) -> bool {
        let partitions = self.partitions();
        let partition = partitions[self.rng.below(partitions.len())];
        let topic = usize::try_from(partition.topic.0 - 1).expect("a few topics");
        let wanted = self.rng.between(1, self.weather.topics[topic].replicas);
        // What was promised before a loss stays promised until it is made good.
        if self.copies_lost(partition) > 0 {
            return false;
        }
        self.etcd.want_min_isr(partition, wanted);
        true
    }

    /// A reader takes the next batch of a partition from some broker (S2, S19, S22).
    fn consume(&mut self, node: usize) -> Result<bool, String> {
        let held = self.held(node);
        if held.is_empty() {
            return Ok(false);
        }
        let partition = held[self.rng.below(held.len())];
        if self.is_of_the_past(node, partition) {
            return Ok(false);
        }
        let at = self.readers[&partition];
        let slot = self.nodes[node].slot(partition).expect("it is held");
        let visible = slot.replica.visible();
        let stored = &self.etcd.roots[&partition].0;
        if at < visible.log_start {
            // Out of range, as the leader or the manifest proves it: nothing that retention left is passed over.
            if stored.log_start < visible.log_start {
                return Err(format!("S22 broker {} begins {partition} at {}", self.nodes[node].id, visible.log_start));
            }
            self.readers.insert(partition, visible.log_start);
            return Ok(true);
        }
        let unsure = visible.leads && !visible.start_proven;
        if at >= visible.hw || unsure {
            return Ok(false);
        }
        let history = self.history(partition);
        let next = if at >= slot.log.start {
            let placed = slot.log.batches.get(slot.log.containing(at));
            placed.map(|placed| (placed.batch.base_offset(), placed.batch.end_offset(), placed.batch.crc()))
        } else {
            let own = slot.tiering.root();
            let root = if own.tiered_end > at { own.as_ref() } else { stored.as_ref() };
            let covering = root.entries().iter().find(|entry| (entry.base..entry.end).contains(&at));
            match covering.map(|entry| self.bucket.read(root, entry)) {
                // Rule G4: the manifest is read again; what it does not hold any more is out of range.
                None | Some(Err(_)) if stored.log_start > at => {
                    self.readers.insert(partition, stored.log_start);
                    return Ok(true);
                }
                None => None,
                Some(batches) => {
                    let batch = batches?.into_iter().find(|batch| batch.end_offset() > at);
                    batch.map(|batch| (batch.base_offset(), batch.end_offset(), batch.crc()))
                }
            }
        };
        let Some((base, end, crc)) = next.filter(|(base, end, _)| (*base..*end).contains(&at)) else {
            let id = self.nodes[node].id;
            return Err(format!("S19 broker {id} has nothing of {partition} at {at}, below {}", visible.hw));
        };
        if !history.shows(base, end, crc) {
            return Err(format!("S2 broker {} reads another batch of {partition} at {base}", self.nodes[node].id));
        }
        self.reads += 1;
        self.readers.insert(partition, Offset(end.0));
        Ok(true)
    }
}

/// Whether a broker does it, so that a paused one does not. The rest is done to brokers, or by others.
fn acts_by_itself(action: Action) -> bool {
    let to_brokers = [
        Action::Deliver,
        Action::Produce,
        Action::Push,
        Action::HealWire,
        Action::BumpGc,
        Action::Kill,
        Action::CutPower,
        Action::CutAllPower,
        Action::EndSession,
        Action::StallWatch,
        Action::CutWire,
        Action::CutStore,
        Action::StoreLeader,
        Action::MinIsr,
        Action::Wait,
        Action::Transfer,
        Action::Drain,
        Action::FillDisk,
        Action::JumpClock,
    ];
    !to_brokers.contains(&action)
}
