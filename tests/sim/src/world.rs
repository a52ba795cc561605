//! Brokers, store, bucket, network and clients of one partition, stepped by one seed. What may go wrong is drawn anew for each run.

use crate::checks::History;
use crate::client::Client;
use crate::etcd::{Etcd, TierCommit, Tiered};
use crate::node::{Effect, Node, Upload};
use crate::rng::Rng;
use millpond_core::election::{self, Holds};
use millpond_core::records::PartitionRecord;
use millpond_core::replica::{
    Acks, Appended, Assignment, Input, Live, Now, Placed, Proposal, Push, PushReply, Refusal, Token, Transfer,
};
use millpond_core::rules::{Rule, Rules};
use millpond_log::{Batch, BrokerId, LeaderEpoch, Offset, ProducerId, Rid, TimestampMs, WalGen};
use std::collections::BTreeMap;

/// Brokers in the cluster; the partition has replicas on the first three.
const BROKERS: u32 = 4;
const REPLICAS: u32 = 3;

/// Messages on the wire above which nothing new is started.
const WIRE_MAX: usize = 60;

/// What travels. Every message may be late, and those between brokers and clients lost, repeated or reordered.
// A few dozen exist at a time; their size does not matter.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug)]
pub(crate) enum Msg {
    View { to: BrokerId, at: u64, assignment: Assignment },
    Push { to: BrokerId, push: Push },
    Reply { to: BrokerId, reply: PushReply },
    Propose { from: Live, proposal: Proposal },
    Proposed { to: Live, proposal: Proposal, written: bool, at: u64, after: Assignment },
    Control { seen: Assignment },
    GiveUp { seen: Assignment, sessions: BTreeMap<BrokerId, Live>, manifest: u64, winner: Live },
    Put { from: Live, object: u64, gc_epoch: u64, batches: Vec<Placed> },
    PutDone { to: Live, object: u64 },
    Tier { commit: Box<TierCommit> },
    TierDone { to: Live, object: u64 },
    Delete { object: u64 },
    Produce { to: BrokerId, client: usize, batch: Batch },
    Answer { client: usize, producer: ProducerId, sequence: i32, result: Result<Appended, Refusal> },
}

/// One run.
pub(crate) struct World {
    pub(crate) rules: Rules,
    pub(crate) rng: Rng,
    pub(crate) now_ms: u64,
    pub(crate) etcd: Etcd,
    pub(crate) nodes: Vec<Node>,
    pub(crate) bucket: BTreeMap<u64, Object>,
    pub(crate) wire: Vec<Msg>,
    pub(crate) clients: Vec<Client>,
    pub(crate) history: History,
    pub(crate) cut: [[bool; BROKERS as usize]; BROKERS as usize],
    weights: Vec<u32>,
    next_object: u64,
    next_token: u64,
    tokens: BTreeMap<u64, (usize, ProducerId, i32)>,
    pub(crate) wipes: u64,
    /// The topic asks for unclean elections (rule E7).
    unclean: bool,
    pub(crate) unclean_elections: u64,
    /// The winner of the last one, until it leads: until then what it holds may still be cut by whoever led before.
    pub(crate) comes_to_office: Option<usize>,
    /// Whether to tell what happens, line by line.
    pub(crate) tell: bool,
    /// Hash of everything that happened: equal for equal seeds.
    pub(crate) trace: u64,
}

pub(crate) struct Object {
    pub(crate) gc_epoch: u64,
    pub(crate) batches: Vec<Placed>,
}

type Checked = Result<(), String>;

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
    Unreachable,
}

const ACTIONS: [(Action, u32, bool); 28] = [
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
    (Action::Unreachable, 5, true),
];

/// What happens when nothing goes wrong any more.
const HEALTHY: [Action; 18] = [
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

/// The connection a message of the replication travels on.
fn way(message: &Msg) -> Option<(bool, BrokerId, BrokerId)> {
    match message {
        Msg::Push { to, push } => Some((true, push.head.leader.rid.broker, *to)),
        Msg::Reply { to, reply } => Some((false, reply.rid.broker, *to)),
        _ => None,
    }
}

impl World {
    pub(crate) fn new(seed: u64, rules: Rules, unclean: bool) -> World {
        let mut rng = Rng::new(seed);
        let weights = ACTIONS
            .iter()
            .map(|(_, weight, fault)| match rng.below(4) {
                0 if *fault => 0,
                1 => weight / 2 + 1,
                2 => weight * 2,
                _ => *weight,
            })
            .collect();
        let nodes: Vec<Node> = (0..BROKERS)
            .map(|id| Node { id: BrokerId(id), wal_gen: WalGen(0), disk: crate::disk::Disk::default(), running: None })
            .collect();
        let record = PartitionRecord {
            leader: None,
            epoch: LeaderEpoch(0),
            isr: nodes.iter().take(REPLICAS as usize).map(Node::rid).collect(),
            elr: Vec::new(),
            replicas: (0..REPLICAS).map(BrokerId).collect(),
            adding: Vec::new(),
            removing: Vec::new(),
            min_isr: 2,
            unclean_epoch: None,
        };
        World {
            rules,
            rng,
            now_ms: 1_000,
            etcd: Etcd::new(record, rules),
            nodes,
            bucket: BTreeMap::new(),
            wire: Vec::new(),
            clients: (0..3).map(Client::new).collect(),
            history: History::default(),
            cut: Default::default(),
            weights,
            next_object: 1,
            next_token: 1,
            tokens: BTreeMap::new(),
            wipes: 0,
            unclean,
            unclean_elections: 0,
            comes_to_office: None,
            tell: false,
            trace: seed,
        }
    }

    /// Runs `steps` faulty steps, heals, and demands progress.
    pub(crate) fn run(&mut self, steps: u64) -> Checked {
        for node in 0..self.nodes.len() {
            self.start(node)?;
        }
        let total: u32 = self.weights.iter().sum();
        for _ in 0..steps {
            let mut draw = u32::try_from(self.rng.below(total as usize)).expect("weights are small");
            let mut at = 0;
            while draw >= self.weights[at] {
                draw -= self.weights[at];
                at += 1;
            }
            let action = if self.wire.len() > WIRE_MAX { Action::Deliver } else { ACTIONS[at].0 };
            self.act(action, true)?;
        }
        self.heal()
    }

    /// Liveness (L1 to L4, L6): when faults stop, a leader is there, writes commit, the ISR is whole and the tail is tiered.
    fn heal(&mut self) -> Checked {
        self.cut = Default::default();
        let electable = self.electable().next().is_some();
        for node in 0..self.nodes.len() {
            // An upload whose answer was lost is given up in time.
            if let Some(running) = &mut self.nodes[node].running {
                running.upload = None;
            }
            if self.nodes[node].running.is_none() {
                self.start(node)?;
            }
        }
        self.clients.iter_mut().for_each(Client::resume);
        let goal = self.history.end().0 + 6;
        for step in 0..20_000 {
            let action =
                if self.wire.len() > WIRE_MAX { Action::Deliver } else { HEALTHY[self.rng.below(HEALTHY.len())] };
            self.act(action, false)?;
            if step % 2_000 == 0 {
                // Sessions that were ended are noticed, and what was lost on the way by the end of its connection.
                for node in 0..self.nodes.len() {
                    if !self.etcd.sessions.contains_key(&self.nodes[node].id) {
                        self.register(node)?;
                    }
                    for to in 0..self.nodes.len() {
                        self.step(node, Input::Reconnected(self.nodes[to].id))?;
                    }
                }
            }
            let whole = self.etcd.record.isr.len() == REPLICAS as usize;
            if self.history.end().0 >= goal && whole && self.etcd.manifest.at_end.end.0 >= goal - 6 {
                return self.check_acknowledged();
            }
        }
        if !electable && !self.unclean {
            return Err("unavailable: no electable replica is left".to_owned());
        }
        let record = &self.etcd.record;
        Err(format!(
            "L1-L6 no progress after healing: committed {} of {goal}, tiered {}, {record:?}",
            self.history.end(),
            self.etcd.manifest.at_end.end
        ))
    }

    pub(crate) fn act(&mut self, action: Action, faults: bool) -> Checked {
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
            Action::Unreachable => {
                // Judged rightly or not (rule I6).
                let to = self.rng.below(self.nodes.len());
                self.step(node, Input::Unreachable(self.nodes[to].id))?;
            }
        }
        self.check()
    }

    pub(crate) fn note(&mut self, what: u64) {
        self.trace = (self.trace.rotate_left(5) ^ what).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn index(&self, broker: BrokerId) -> usize {
        self.nodes.iter().position(|node| node.id == broker).expect("every broker is a node")
    }

    pub(crate) fn step(&mut self, node: usize, input: Input) -> Checked {
        if self.tell && self.nodes[node].running.is_some() {
            println!("{:>8}   broker {node} {}", self.now_ms, brief(&input));
        }
        let now = Now { wall: TimestampMs(i64::try_from(self.now_ms).expect("small")), mono_ms: self.now_ms };
        let (effects, trims) = self.nodes[node].step(now, input);
        self.note_office(node);
        self.expose(node)?;
        for to in trims {
            let tiered_end = self.etcd.manifest.at_end.end;
            if to > tiered_end {
                return Err(format!("S9 broker {} trims to {to}, tiered is {tiered_end}", self.nodes[node].id));
            }
            self.nodes[node].trim(to);
        }
        if self.tell
            && let Some(running) = &self.nodes[node].running
        {
            let visible = running.replica.visible();
            println!(
                "{:>8}     -> epoch {} leads {} hw {} end {} durable {} tiered {}",
                self.now_ms,
                visible.epoch,
                visible.leads,
                visible.hw,
                visible.end,
                running.replica.durable(),
                visible.tiered_end
            );
        }
        if let Some(running) = &self.nodes[node].running {
            let visible = running.replica.visible();
            self.note(visible.hw.0 ^ visible.end.0 << 16 ^ u64::from(visible.epoch.0) << 32);
        }
        for effect in effects {
            match effect {
                Effect::Answer { token, result } => {
                    let (client, producer, sequence) = self.tokens.remove(&token.0).expect("a token is answered once");
                    // Whoever goes by what was given up promises nothing any more (rule E7).
                    if self.is_of_the_past(node) {
                        continue;
                    }
                    if self.tell && self.check_answer(client, producer, sequence, &result).is_err() {
                        let log = &self.nodes[node].running.as_ref().expect("it answered").log;
                        for placed in &log.batches {
                            println!(
                                "holds {}..{} {:?}",
                                placed.batch.base_offset(),
                                placed.batch.end_offset(),
                                placed.batch.producer()
                            );
                        }
                    }
                    self.check_answer(client, producer, sequence, &result)?;
                    self.wire.push(Msg::Answer { client, producer, sequence, result });
                }
                Effect::Reply { to, reply } => self.wire.push(Msg::Reply { to, reply }),
                Effect::Propose { from, proposal } => self.wire.push(Msg::Propose { from, proposal }),
                Effect::Fault(fault) => return Err(format!("broker {}: {fault}", self.nodes[node].id)),
            }
        }
        Ok(())
    }

    fn deliver_one(&mut self, faults: bool) -> Checked {
        if self.wire.is_empty() {
            return Ok(());
        }
        let mut at = self.rng.below(self.wire.len());
        // A connection keeps its order; a new one may overtake what is left of the old.
        if (!faults || self.rng.per_mille(900))
            && let Some(way) = way(&self.wire[at])
        {
            at = self.wire.iter().position(|other| self::way(other) == Some(way)).expect("it is on the wire itself");
        }
        let message = self.wire.remove(at);
        if faults && self.lossy(&message) {
            match self.rng.below(100) {
                0..4 => return Ok(()),
                4..8 => self.wire.push(message.clone()),
                _ => {}
            }
        }
        self.deliver(message)
    }

    /// Whether the network may lose or repeat a message. A store's request is sent once for each sending, and may be lost too.
    fn lossy(&self, message: &Msg) -> bool {
        !matches!(message, Msg::Delete { .. } | Msg::Put { .. } | Msg::Tier { .. })
    }

    fn deliver(&mut self, message: Msg) -> Checked {
        match message {
            Msg::View { to, at, assignment } => self.see(self.index(to), at, assignment),
            Msg::Push { to, push } => {
                let (from, to) = (self.index(push.head.leader.rid.broker), self.index(to));
                if self.cut[from][to] { Ok(()) } else { self.step(to, Input::Push(push)) }
            }
            Msg::Reply { to, reply } => {
                let (from, to) = (self.index(reply.rid.broker), self.index(to));
                if self.cut[from][to] { Ok(()) } else { self.step(to, Input::Reply(reply)) }
            }
            Msg::Propose { from, proposal } => {
                let written = self.etcd.propose(&from, &proposal);
                let after = self.etcd.assignment();
                self.wire.push(Msg::Proposed { to: from, proposal, written, at: self.etcd.revision, after });
                Ok(())
            }
            Msg::Proposed { to, proposal, written, at, after } => {
                let Some(node) = self.running_as(&to) else { return Ok(()) };
                self.see(node, at, after)?;
                self.proposed(node, &proposal, written)
            }
            Msg::Control { seen } => {
                if !self.etcd.control(&seen) && self.unclean {
                    self.ask_the_rest(&seen)?;
                }
                Ok(())
            }
            Msg::GiveUp { seen, sessions, manifest, winner } => {
                // What a process that was killed meanwhile will find on its disk is not known yet: its election got lost.
                if let Some(node) = self.running_as(&winner)
                    && self.etcd.give_up(&seen, &sessions, manifest, winner)
                {
                    self.forget_the_past(node);
                }
                Ok(())
            }
            Msg::Put { from, object, gc_epoch, batches } => {
                self.bucket.insert(object, Object { gc_epoch, batches });
                self.wire.push(Msg::PutDone { to: from, object });
                Ok(())
            }
            Msg::PutDone { to, object } => self.stored(to, object),
            Msg::Tier { commit } => {
                let written = self.etcd.tier(&commit);
                if written {
                    self.check_tiered()?;
                }
                self.wire.push(Msg::TierDone { to: commit.leader, object: commit.entry.object });
                Ok(())
            }
            Msg::TierDone { to, object } => self.tier_done(to, object),
            Msg::Delete { object } => {
                self.bucket.remove(&object);
                Ok(())
            }
            Msg::Produce { to, client, batch } => self.admit(to, client, batch),
            Msg::Answer { client, producer, sequence, result } => {
                if self.clients[client].id() == producer {
                    self.clients[client].answered(sequence, &result);
                }
                Ok(())
            }
        }
    }

    fn running_as(&self, live: &Live) -> Option<usize> {
        let node = self.index(live.rid.broker);
        let running = self.nodes[node].running.as_ref()?;
        (running.inc == Some(live.inc) && self.nodes[node].wal_gen == live.rid.wal_gen).then_some(node)
    }

    /// What a broker knows of the store never goes back (rule Z2).
    fn see(&mut self, node: usize, at: u64, assignment: Assignment) -> Checked {
        let Some(running) = &mut self.nodes[node].running else { return Ok(()) };
        if at < running.seen {
            return Ok(());
        }
        running.seen = at;
        self.step(node, Input::Assigned(assignment))
    }

    fn proposed(&mut self, node: usize, proposal: &Proposal, written: bool) -> Checked {
        let running = self.nodes[node].running.as_mut().expect("it runs");
        if running.proposal.as_ref() == Some(proposal) {
            running.proposal = None;
            if !written {
                return self.step(node, Input::ProposalFailed { base: proposal.base });
            }
        }
        Ok(())
    }

    fn admit(&mut self, to: BrokerId, client: usize, batch: Batch) -> Checked {
        let node = self.index(to);
        if self.nodes[node].running.is_none() {
            return Ok(());
        }
        let token = Token(self.next_token);
        self.next_token += 1;
        let stamp = batch.producer().expect("every client is a producer");
        let sequence = stamp.base_sequence;
        self.tokens.insert(token.0, (client, stamp.id, sequence));
        let acks = if sequence < 0 { Acks::Leader } else { Acks::All };
        self.step(node, Input::Produce { token, batch, latest: TimestampMs(1), acks })
    }

    /// Where nobody may lead, those that are alive are asked what they hold, and the best of them is to lead (rule E7). Who ends before
    /// the manifest does is opened again first.
    fn ask_the_rest(&mut self, seen: &Assignment) -> Checked {
        let tiered_end = self.etcd.manifest.at_end.end;
        let mut answers = BTreeMap::new();
        for live in &seen.live {
            let Some(node) = self.running_as(live) else { continue };
            let replica = &self.nodes[node].running.as_ref().expect("it runs").replica;
            let durable = replica.durable();
            if replica.visible().end < tiered_end {
                self.reopen(node)?;
                continue;
            }
            let last = durable.0.checked_sub(1).and_then(|last| replica.epochs().epoch_at(Offset(last)));
            let hw = replica.hw_to_persist();
            answers.insert(live.rid, Holds { last_epoch: last.unwrap_or_default(), durable, hw, known_end: durable });
        }
        let best = election::best_of_the_rest(&seen.record, &seen.live, &answers, tiered_end);
        if let Some(winner) = best {
            let (sessions, manifest) = (self.etcd.sessions.clone(), self.etcd.manifest.revision);
            self.wire.push(Msg::GiveUp { seen: seen.clone(), sessions, manifest, winner });
        }
        Ok(())
    }

    /// Opens a replica again, from its disk and the manifest as they are now.
    fn reopen(&mut self, node: usize) -> Checked {
        let Some(running) = &self.nodes[node].running else { return Ok(()) };
        let (inc, seen) = (running.inc, running.seen);
        self.open(node)?;
        let running = self.nodes[node].running.as_mut().expect("it was started");
        (running.inc, running.seen) = (inc, seen);
        self.step(node, Input::Session(inc))
    }

    /// An unclean election holds: what its winner does not hold durably is given up, and clients begin anew, as they would have to.
    fn forget_the_past(&mut self, winner: usize) {
        self.unclean_elections += 1;
        self.comes_to_office = Some(winner);
        self.give_up_what_lacks(winner);
        let end = self.history.end();
        // What the winner holds besides is shown anew, if it comes to be committed.
        self.nodes.iter_mut().filter_map(|node| node.running.as_mut()).for_each(|running| {
            running.exposed = running.exposed.min(end);
        });
        for client in &mut self.clients {
            let kept = client.acked.values().map(|(_, appended)| appended.base).filter(|base| *base < end);
            self.history.promised.extend(kept);
            *client = client.successor();
        }
    }

    fn give_up_what_lacks(&mut self, winner: usize) {
        let Node { running, disk, .. } = &self.nodes[winner];
        let hw = running.as_ref().expect("it runs").replica.hw_to_persist();
        self.history.give_up(&disk.synced, hw);
        let end = self.history.end();
        self.history.promised.retain(|base| *base < end);
    }

    /// The winner of an unclean election leads: what it has now is what is left.
    fn note_office(&mut self, node: usize) {
        let Some(running) = &self.nodes[node].running else { return };
        if self.comes_to_office == Some(node) && running.replica.visible().leads && !self.is_of_the_past(node) {
            self.comes_to_office = None;
            self.give_up_what_lacks(node);
        }
    }

    /// Whether a broker has not heard yet that the log went on elsewhere: it neither leads since, nor holds anything from then on.
    pub(crate) fn is_of_the_past(&self, node: usize) -> bool {
        let (Some(unclean), Some(running)) = (self.etcd.record.unclean_epoch, &self.nodes[node].running) else {
            return false;
        };
        let visible = running.replica.visible();
        let last = running.replica.epochs().last().map_or(LeaderEpoch(0), |last| last.epoch);
        visible.epoch < unclean || !visible.leads && last < unclean
    }

    fn produce(&mut self, faults: bool) {
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

    fn sync(&mut self, node: usize) -> Checked {
        let Some(running) = &self.nodes[node].running else { return Ok(()) };
        let mark = running.mark;
        self.nodes[node].disk.sync();
        self.step(node, Input::Durable(mark))
    }

    fn push(&mut self) -> Checked {
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
    fn resend(&mut self, node: usize) {
        let Some(running) = &self.nodes[node].running else { return };
        if let (Some(proposal), Some(inc)) = (running.proposal.clone(), running.inc) {
            let from = Live { rid: self.nodes[node].rid(), inc };
            self.wire.push(Msg::Propose { from, proposal });
        }
    }

    /// A leader is asked to hand over (rule E9). Whoever asks goes by what it saw, so the wish may be out of date.
    fn transfer(&mut self) -> Checked {
        let (to, within_ms) = (self.rng.below(self.nodes.len()), 100 + self.rng.below(3_000) as u64);
        let record = &self.etcd.record;
        let (Some(leader), Some(to)) = (record.leader, self.etcd.sessions.get(&self.nodes[to].id)) else {
            return Ok(());
        };
        let wish = Transfer { epoch: record.epoch, to: *to, within_ms };
        self.step(self.index(leader.rid.broker), Input::Transfer(wish))
    }

    fn reconnect(&mut self, node: usize) -> Checked {
        let to = self.rng.below(self.nodes.len());
        let to = self.nodes[to].id;
        self.step(node, Input::Reconnected(to))
    }

    fn upload(&mut self, node: usize) -> Checked {
        let committed_only = self.rules.uphold(Rule::TierCommitted);
        let (rid, count) = (self.nodes[node].rid(), 1 + self.rng.below(4));
        let Some(running) = &mut self.nodes[node].running else { return Ok(()) };
        let Some(inc) = running.inc else { return Ok(()) };
        let visible = running.replica.visible();
        if !visible.leads {
            running.upload = None;
            return Ok(());
        }
        let from = Live { rid, inc };
        let manifest = &self.etcd.manifest;
        match &mut running.upload {
            None => {
                let (base, top) = (manifest.at_end.end, if committed_only { visible.hw } else { visible.end });
                if base < running.log.start || base >= top {
                    return self.learn_manifest(node);
                }
                let at = running.log.at(base);
                let wanted = running.log.batches[at..].iter().take_while(|placed| placed.batch.end_offset() <= top);
                let batches: Vec<Placed> = wanted.take(count).cloned().collect();
                let (object, gc_epoch) = (self.next_object, self.etcd.gc_epoch);
                self.next_object += 1;
                running.upload = Some(Upload {
                    object,
                    gc_epoch,
                    base_revision: manifest.revision,
                    batches: batches.clone(),
                    stored: false,
                    sent: false,
                });
                self.wire.push(Msg::Put { from, object, gc_epoch, batches });
            }
            Some(upload) if upload.stored && !upload.sent => {
                upload.sent = true;
                let base = upload.batches[0].batch.base_offset();
                let commit = TierCommit {
                    base: upload.base_revision,
                    leader: from,
                    epoch: visible.epoch,
                    entry: Tiered { object: upload.object, base, gc_epoch: upload.gc_epoch },
                    batches: upload.batches.clone(),
                    log_start: Offset(0),
                };
                self.wire.push(Msg::Tier { commit: Box::new(commit) });
            }
            Some(_) => {}
        }
        Ok(())
    }

    fn stored(&mut self, to: Live, object: u64) -> Checked {
        let Some(node) = self.running_as(&to) else { return Ok(()) };
        let trim_early = !self.rules.uphold(Rule::TrimAfterCommit);
        let running = self.nodes[node].running.as_mut().expect("it runs");
        let Some(upload) = running.upload.as_mut().filter(|upload| upload.object == object) else { return Ok(()) };
        upload.stored = true;
        let end = upload.batches.last().expect("uploads are not empty").batch.end_offset();
        if trim_early {
            return self.step(node, Input::Manifest { log_start: Offset(0), tiered_end: end });
        }
        Ok(())
    }

    fn tier_done(&mut self, to: Live, object: u64) -> Checked {
        let Some(node) = self.running_as(&to) else { return Ok(()) };
        let running = self.nodes[node].running.as_mut().expect("it runs");
        if running.upload.as_ref().is_some_and(|upload| upload.object == object) {
            running.upload = None;
        }
        self.learn_manifest(node)
    }

    /// The leader reads the manifest: what is there was committed (rule T6).
    fn learn_manifest(&mut self, node: usize) -> Checked {
        let manifest = &self.etcd.manifest;
        let input = Input::Manifest { log_start: manifest.log_start, tiered_end: manifest.at_end.end };
        let running = self.nodes[node].running.as_ref();
        // A deposed leader that lags may read of what it does not hold; followers learn by pushes.
        if running.is_some_and(|running| running.replica.visible().end >= manifest.at_end.end) {
            return self.step(node, input);
        }
        Ok(())
    }

    /// Orphans and dropped objects go once no commit can name them any more (rules G1, G2).
    fn collect(&mut self) {
        let (etcd, any_age) = (&self.etcd, !self.rules.uphold(Rule::ObjectsExpire));
        let named = |object: &u64| etcd.manifest.entries.iter().any(|entry| entry.object == *object);
        let old = |object: &Object| any_age || object.gc_epoch + 2 <= etcd.gc_epoch;
        let gone: Vec<u64> =
            self.bucket.iter().filter(|(id, object)| !named(id) && old(object)).map(|(id, _)| *id).collect();
        self.wire.extend(gone.into_iter().map(|object| Msg::Delete { object }));
    }

    /// The leader moves the log start (rule C1).
    fn retain(&mut self, node: usize) {
        let Some(running) = &self.nodes[node].running else { return };
        let visible = running.replica.visible();
        if visible.leads && visible.epoch == self.etcd.record.epoch {
            let manifest = &mut self.etcd.manifest;
            let to = Offset(self.rng.below(usize::try_from(visible.hw.0).expect("small") + 1) as u64);
            if to > manifest.log_start {
                self.etcd.revision += 1;
                manifest.revision = self.etcd.revision;
                manifest.log_start = to;
            }
        }
    }

    fn kill(&mut self, node: usize) {
        self.nodes[node].running = None;
    }

    fn cut_power(&mut self, node: usize) {
        self.kill(node);
        let unsynced = self.nodes[node].disk.unsynced();
        let kept = if self.rng.per_mille(300) { 0 } else { self.rng.below(unsynced + 1) };
        self.nodes[node].disk.cut_power(kept);
    }

    fn start(&mut self, node: usize) -> Checked {
        if self.nodes[node].running.is_none() {
            self.open(node)?;
            return self.register(node);
        }
        if !self.etcd.sessions.contains_key(&self.nodes[node].id) {
            return self.register(node);
        }
        Ok(())
    }

    fn open(&mut self, node: usize) -> Checked {
        self.nodes[node].start(&self.etcd.manifest, self.rules)?;
        let running = self.nodes[node].running.as_mut().expect("it was started");
        // What it knows to be committed beyond that was given up.
        running.exposed = running.exposed.min(self.history.end());
        Ok(())
    }

    fn register(&mut self, node: usize) -> Checked {
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
    fn electable(&self) -> impl Iterator<Item = Rid> {
        let record = &self.etcd.record;
        let there = |rid: &Rid| self.nodes.iter().any(|node| node.rid() == *rid);
        record.isr.iter().chain(&record.elr).copied().filter(there)
    }

    /// A disk is lost, within what is promised: another electable copy is left. Where that is promised at all.
    fn wipe(&mut self, node: usize) -> Checked {
        let rid = self.nodes[node].rid();
        let (mut own, mut others) = (false, 0);
        for electable in self.electable() {
            if electable == rid { own = true } else { others += 1 }
        }
        if self.nodes[node].running.is_some() || (own && others == 0 && !self.unclean) {
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

/// An input in one line.
fn brief(input: &Input) -> String {
    match input {
        Input::Push(push) => {
            let spans: Vec<String> = push
                .batches
                .iter()
                .map(|placed| {
                    format!(
                        "{}..{}e{}",
                        placed.batch.base_offset(),
                        placed.batch.end_offset(),
                        placed.batch.leader_epoch()
                    )
                })
                .collect();
            format!(
                "Push e{} from {} nonce {} prev {} {:?} hw {} tiered {} {spans:?}",
                push.head.epoch,
                push.head.leader.rid,
                push.nonce,
                push.prev_offset,
                push.prev_epoch,
                push.head.hw,
                push.head.tiered_end
            )
        }
        Input::Produce { batch, .. } => format!("Produce {:?}", batch.producer()),
        Input::Installed(installed) => format!("Installed {}", installed.at_end.end),
        Input::Rebuilt(state) => format!("Rebuilt {}", state.end),
        Input::Assigned(assigned) => format!(
            "Assigned r{} e{} leader {:?} isr {:?} live {:?}",
            assigned.revision,
            assigned.record.epoch,
            assigned.record.leader.map(|leader| (leader.rid.to_string(), leader.inc.0)),
            assigned.record.isr.iter().map(ToString::to_string).collect::<Vec<_>>(),
            assigned.live.iter().map(|live| (live.rid.to_string(), live.inc.0)).collect::<Vec<_>>()
        ),
        other => format!("{other:?}"),
    }
}
