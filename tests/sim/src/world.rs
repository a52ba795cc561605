//! Brokers, store, bucket, network and clients of one partition, stepped by one seed. What may go wrong is drawn anew for each run.

mod actions;
mod faults;
mod tell;
mod tier;
mod wire;

use crate::checks::History;
use crate::client::Client;
use crate::etcd::Etcd;
use crate::node::{Effect, Node};
use crate::rng::Rng;
use actions::{ACTIONS, Action, HEALTHY};
use millpond_core::records::PartitionRecord;
use millpond_core::replica::{Input, Now, Placed};
use millpond_core::rules::Rules;
use millpond_log::{BrokerId, LeaderEpoch, TimestampMs, WalGen};
use std::collections::BTreeMap;
use tell::brief;
use wire::Msg;

/// Brokers in the cluster; the partition has replicas on the first three.
const BROKERS: u32 = 4;
const REPLICAS: u32 = 3;

/// Messages on the wire above which nothing new is started.
const WIRE_MAX: usize = 60;
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
    tokens: BTreeMap<u64, (usize, i32)>,
    pub(crate) wipes: u64,
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

impl World {
    pub(crate) fn new(seed: u64, rules: Rules) -> World {
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
        if !electable {
            return Err("unavailable: no electable replica is left".to_owned());
        }
        let record = &self.etcd.record;
        Err(format!(
            "L1-L6 no progress after healing: committed {} of {goal}, tiered {}, {record:?}",
            self.history.end(),
            self.etcd.manifest.at_end.end
        ))
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
                    let (client, sequence) = self.tokens.remove(&token.0).expect("a token is answered once");
                    if self.tell && self.check_answer(client, sequence, &result).is_err() {
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
                    self.check_answer(client, sequence, &result)?;
                    self.wire.push(Msg::Answer { client, sequence, result });
                }
                Effect::Reply { to, reply } => self.wire.push(Msg::Reply { to, reply }),
                Effect::Propose { from, proposal } => self.wire.push(Msg::Propose { from, proposal }),
                Effect::Fault(fault) => return Err(format!("broker {}: {fault}", self.nodes[node].id)),
            }
        }
        Ok(())
    }
}
