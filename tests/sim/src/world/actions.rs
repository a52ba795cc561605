//! What may happen next, and how often; the steps that brokers and clients take by themselves.

use super::wire::Msg;
use super::{Checked, REPLICAS, World};
use millpond_core::replica::{Input, Live, Transfer};
use millpond_log::BrokerId;

/// What may happen next; the numbers are the usual weights.
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
    NoteHw,
    Upload,
    ForgetUpload,
    Collect,
    BumpGc,
    Retain,
    Kill,
    CutPower,
    Start,
    Restart,
    EndSession,
    Wipe,
    CutWire,
    HealWire,
    MinIsr,
    Wait,
    Transfer,
}

pub(super) const ACTIONS: [(Action, u32, bool); 27] = [
    (Action::Deliver, 120, false),
    (Action::Produce, 30, false),
    (Action::Sync, 60, false),
    (Action::Push, 60, false),
    (Action::Rebuild, 20, false),
    (Action::Resend, 6, false),
    (Action::Reconnect, 8, false),
    (Action::Tick, 20, false),
    (Action::Watch, 14, false),
    (Action::Control, 14, false),
    (Action::NoteHw, 6, false),
    (Action::Upload, 12, false),
    (Action::ForgetUpload, 3, true),
    (Action::Collect, 4, true),
    (Action::BumpGc, 3, true),
    (Action::Retain, 2, true),
    (Action::Kill, 3, true),
    (Action::CutPower, 3, true),
    (Action::Start, 16, false),
    (Action::Restart, 3, true),
    (Action::EndSession, 3, true),
    (Action::Wipe, 2, true),
    (Action::CutWire, 2, true),
    (Action::HealWire, 6, false),
    (Action::MinIsr, 3, true),
    (Action::Wait, 2, true),
    (Action::Transfer, 5, true),
];

/// What happens when nothing goes wrong any more.
pub(super) const HEALTHY: [Action; 18] = [
    Action::Deliver,
    Action::Deliver,
    Action::Deliver,
    Action::Deliver,
    Action::Deliver,
    Action::Deliver,
    Action::Produce,
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
    Action::Resend,
];

impl World {
    pub(super) fn act(&mut self, action: Action, faults: bool) -> Checked {
        self.now_ms += self.rng.below(12) as u64;
        let node = self.rng.below(self.nodes.len());
        self.note(action as u64 ^ (node as u64) << 8);
        if self.tell && action != Action::Deliver {
            println!("{:>8} {action:?} broker={node}", self.now_ms);
        }
        match action {
            Action::Deliver => self.deliver_one(faults)?,
            Action::Produce => self.produce(faults),
            Action::Sync => self.sync(node)?,
            Action::Push => self.push()?,
            Action::Rebuild => {
                let input = self.nodes[node].rebuild(&self.etcd.manifest);
                if let Some(input) = input {
                    self.step(node, input)?;
                }
            }
            Action::Resend => self.resend(node),
            Action::Reconnect => self.reconnect(node)?,
            Action::Tick => self.step(node, Input::Tick)?,
            Action::Watch => {
                let assignment = self.etcd.assignment();
                self.wire.push(Msg::View { to: self.nodes[node].id, at: self.etcd.revision, assignment });
            }
            Action::Control => {
                let seen = self.etcd.assignment();
                self.wire.push(Msg::Control { seen });
            }
            Action::NoteHw => self.nodes[node].note_hw(),
            Action::Upload => self.upload(node)?,
            Action::ForgetUpload => {
                if let Some(running) = &mut self.nodes[node].running {
                    running.upload = None;
                }
            }
            Action::Collect => self.collect(),
            Action::BumpGc => self.etcd.gc_epoch += 1,
            Action::Retain => self.retain(node),
            Action::Kill => self.kill(node),
            Action::CutPower => self.cut_power(node),
            Action::Start => self.start(node)?,
            Action::Restart => {
                if self.nodes[node].running.is_some() {
                    self.kill(node);
                    self.start(node)?;
                }
            }
            Action::EndSession => self.etcd.end_session(self.nodes[node].id),
            Action::Wipe => self.wipe(node)?,
            Action::CutWire => {
                let other = self.rng.below(self.nodes.len());
                self.cut[node][other] = true;
            }
            Action::HealWire => {
                let other = self.rng.below(self.nodes.len());
                self.cut[node][other] = false;
            }
            Action::MinIsr => {
                let min_isr = 1 + u32::try_from(self.rng.below(2)).expect("0 or 1");
                self.step(node, Input::MinIsr(min_isr))?;
            }
            Action::Wait => self.now_ms += 300,
            Action::Transfer => self.transfer()?,
        }
        self.check()
    }

    pub(super) fn produce(&mut self, faults: bool) {
        let client = self.rng.below(self.clients.len());
        let stray = faults && self.rng.per_mille(150);
        let to = match self.etcd.record.leader {
            Some(leader) if !stray => leader.rid.broker,
            _ => BrokerId(u32::try_from(self.rng.below(REPLICAS as usize)).expect("small")),
        };
        for batch in self.clients[client].batches(&mut self.rng) {
            self.wire.push(Msg::Produce { to, client, batch });
        }
    }

    pub(super) fn sync(&mut self, node: usize) -> Checked {
        let Some(running) = &self.nodes[node].running else { return Ok(()) };
        let mark = running.mark;
        self.nodes[node].disk.sync();
        self.step(node, Input::Durable(mark))
    }

    pub(super) fn push(&mut self) -> Checked {
        let leaders: Vec<(usize, BrokerId)> = (0..self.nodes.len())
            .filter_map(|node| Some((node, self.nodes[node].running.as_ref()?)))
            .flat_map(|(node, running)| running.cursors.keys().map(move |to| (node, *to)))
            .collect();
        if leaders.is_empty() {
            return Ok(());
        }
        let (node, to) = leaders[self.rng.below(leaders.len())];
        let batches_max = self.rng.below(4);
        match self.nodes[node].push(to, batches_max) {
            Some(Ok(push)) => self.wire.push(Msg::Push { to, push }),
            Some(Err(trimmed)) => self.step(node, trimmed)?,
            None => {}
        }
        Ok(())
    }

    /// Sends an unresolved proposal again (rule K5).
    pub(super) fn resend(&mut self, node: usize) {
        let Some(running) = &self.nodes[node].running else { return };
        if let (Some(proposal), Some(inc)) = (running.proposal.clone(), running.inc) {
            let from = Live { rid: self.nodes[node].rid(), inc };
            self.wire.push(Msg::Propose { from, proposal });
        }
    }

    /// A leader is asked to hand over (rule E9). Whoever asks goes by what it saw, so the wish may be out of date.
    pub(super) fn transfer(&mut self) -> Checked {
        let (to, within_ms) = (self.rng.below(self.nodes.len()), 100 + self.rng.below(3_000) as u64);
        let record = &self.etcd.record;
        let (Some(leader), Some(to)) = (record.leader, self.etcd.sessions.get(&self.nodes[to].id)) else {
            return Ok(());
        };
        let wish = Transfer { epoch: record.epoch, to: *to, within_ms };
        self.step(self.index(leader.rid.broker), Input::Transfer(wish))
    }

    pub(super) fn reconnect(&mut self, node: usize) -> Checked {
        let to = self.rng.below(self.nodes.len());
        let to = self.nodes[to].id;
        self.step(node, Input::Reconnected(to))
    }
}
