//! Brokers, store, bucket, network and clients, stepped by one seed. What may go wrong is drawn anew for each run.

pub(crate) mod actions;
mod control;
mod faults;
mod office;
mod placing;
mod tell;
mod tier;
mod unclean;
mod wire;

use crate::bucket::Bucket;
use crate::checks::History;
use crate::client::Client;
use crate::etcd::Etcd;
use crate::node::{Effect, Node};
use crate::rng::Rng;
use crate::wal::Wal;
use crate::weather::Weather;
use actions::{ACTIONS, Action, HEALTHY};
use faults::clock_ahead;
use millpond_core::records::PartitionRecord;
use millpond_core::replica::{Input, Now};
use millpond_core::rules::{Rule, Rules};
use millpond_log::{BrokerId, LeaderEpoch, Offset, PartitionId, ProducerId, Rid, TimestampMs, TopicId, WalGen};
use std::collections::{BTreeMap, BTreeSet};
use tell::brief;
use wire::Msg;

/// Messages on the wire above which nothing new is started; and more for each partition.
const WIRE_MAX: usize = 40;
const WIRE_MAX_EACH: usize = 12;

/// What a true wall clock says when a run begins, in milliseconds.
const WALL_MS: i64 = 1_000_000_000_000;

/// Clients of one partition.
const CLIENTS: u64 = 2;

pub(crate) type Checked = Result<(), String>;

/// One run.
pub(crate) struct World {
    pub(crate) rules: Rules,
    pub(crate) weather: Weather,
    /// Chance in what happens, in what the network does, on disks, at clients: apart, so that none shifts the others.
    rng: Rng,
    net: Rng,
    media: Rng,
    whims: Rng,
    pub(crate) now_ms: u64,
    pub(crate) etcd: Etcd,
    pub(crate) nodes: Vec<Node>,
    pub(crate) bucket: Bucket,
    wire: Vec<Msg>,
    /// What is under way for very long.
    late: Vec<Msg>,
    pub(crate) clients: Vec<Client>,
    /// Where a reader of each partition stands.
    readers: BTreeMap<PartitionId, Offset>,
    pub(crate) histories: BTreeMap<PartitionId, History>,
    /// Whose messages do not reach whom; one-way.
    cut: BTreeSet<(usize, usize)>,
    /// Who does not reach the store.
    cut_off: BTreeSet<usize>,
    next_gen: u64,
    next_id: u64,
    tokens: BTreeMap<u64, (usize, ProducerId, i32)>,
    /// The topics ask for unclean elections (rule E7), and any disk may be lost.
    unclean: bool,
    /// The winners of unclean elections, until they lead: until then what they hold may still be cut by whoever led before.
    pub(crate) comes_to_office: BTreeMap<PartitionId, usize>,
    /// How often each action had an effect, in the order of `ACTIONS`.
    pub(crate) happened: Vec<u64>,
    pub(crate) reads: u64,
    /// Offsets that unclean winners passed over were exposed so often.
    pub(crate) holes: u64,
    /// Records committed while things went wrong.
    pub(crate) troubled: u64,
    pub(crate) steps: u64,
    /// How far each log has to come, once nothing goes wrong any more.
    goals: BTreeMap<PartitionId, Offset>,
    /// Whether to tell what happens, line by line.
    pub(crate) tell: bool,
    /// Hash of everything that happened: equal for equal seeds.
    pub(crate) trace: u64,
}

impl World {
    pub(crate) fn new(seed: u64, rules: Rules, unclean: bool) -> World {
        let mut rng = Rng::part(seed, 0);
        let weather = Weather::draw(&mut rng);
        let node = |id| Node {
            id: BrokerId(id),
            disk: Wal::new(WalGen(u64::from(id) + 1)),
            snapshot: None,
            paused_until: 0,
            stalled_until: 0,
            full_until: 0,
            clock_ahead_ms: 0,
            running: None,
        };
        let mut nodes: Vec<Node> = (0..weather.brokers).map(node).collect();
        if weather.clocks_differ {
            nodes.iter_mut().for_each(|node| node.clock_ahead_ms = clock_ahead(&mut rng));
        }
        let records = records(&weather, &nodes);
        let ids: Vec<PartitionId> = records.keys().copied().collect();
        let clients = ids.iter().flat_map(|id| std::iter::repeat_n(*id, CLIENTS as usize)).enumerate();
        World {
            rules,
            rng,
            net: Rng::part(seed, 1),
            media: Rng::part(seed, 2),
            whims: Rng::part(seed, 3),
            now_ms: 1_000,
            etcd: Etcd::new(records, rules),
            next_gen: nodes.len() as u64 + 1,
            nodes,
            bucket: Bucket::default(),
            wire: Vec::new(),
            late: Vec::new(),
            clients: clients.map(|(id, partition)| Client::new(id as u64, partition)).collect(),
            readers: ids.iter().map(|id| (*id, Offset(0))).collect(),
            histories: ids.iter().map(|id| (*id, History::default())).collect(),
            cut: BTreeSet::new(),
            cut_off: BTreeSet::new(),
            next_id: 1,
            tokens: BTreeMap::new(),
            unclean,
            comes_to_office: BTreeMap::new(),
            happened: vec![0; ACTIONS.len()],
            reads: 0,
            holes: 0,
            troubled: 0,
            steps: 0,
            goals: BTreeMap::new(),
            weather,
            tell: false,
            trace: seed,
        }
    }

    /// Runs `steps` faulty steps, heals, and demands progress.
    pub(crate) fn run(&mut self, steps: u64) -> Checked {
        for node in 0..self.nodes.len() {
            self.start(node, false)?;
        }
        for _ in 0..steps {
            let drawn = self.weather.next(&mut self.rng);
            let action = if self.wire_is_full() && !self.rng.per_mille(100) { Action::Deliver } else { drawn };
            self.act(action, true)?;
        }
        self.heal()
    }

    fn wire_is_full(&self) -> bool {
        self.wire.len() > WIRE_MAX + WIRE_MAX_EACH * self.histories.len()
    }

    /// Liveness (L1 to L4, L6, L7): when faults stop, leaders are there, writes commit, every ISR is whole, tails are tiered, moves end.
    fn heal(&mut self) -> Checked {
        self.wire.append(&mut self.late);
        self.cut.clear();
        self.cut_off.clear();
        for node in 0..self.nodes.len() {
            let node = &mut self.nodes[node];
            (node.paused_until, node.stalled_until, node.full_until) = (0, 0, 0);
            self.etcd.drain(node.id, false);
        }
        let hopeless = self.partitions().into_iter().find(|partition| self.electable(*partition).next().is_none());
        let hopeless = hopeless.filter(|_| !self.unclean);
        self.clients.iter_mut().for_each(Client::resume);
        self.troubled = self.histories.values().map(|history| history.end().0).sum();
        self.goals = self.histories.iter().map(|(id, history)| (*id, history.end().plus(6))).collect();
        for step in 0..30_000 {
            if step % 1_500 == 0 {
                self.reconnect_all()?;
            }
            let drawn = HEALTHY[self.rng.below(HEALTHY.len())];
            let action = if self.wire_is_full() && !self.rng.per_mille(100) { Action::Deliver } else { drawn };
            self.act(action, false)?;
            if step % 50 == 49 && self.goals.iter().all(|(id, goal)| self.lacks(*id, *goal).is_none()) {
                self.check_acknowledged()?;
                return self.collect_all();
            }
        }
        if let Some(partition) = hopeless {
            return Err(format!("unavailable: no electable replica of {partition} is left"));
        }
        let lacking = self.goals.iter().find_map(|(id, goal)| Some((id, goal, self.lacks(*id, *goal)?)));
        let (id, goal, demand) = lacking.expect("a partition lacks something");
        Err(format!(
            "{demand}: what {id} lacks after healing: committed {} of {goal}, tiered {}, {:?}",
            self.history(*id).end(),
            self.etcd.roots[id].0.tiered_end,
            self.etcd.record(*id)
        ))
    }

    /// What a partition lacks of what it should be once nothing goes wrong any more.
    fn lacks(&self, partition: PartitionId, goal: Offset) -> Option<&'static str> {
        let record = self.etcd.record(partition);
        let wanted = self.etcd.look().min_isr.get(&partition);
        let answered = self.clients.iter().filter(|client| client.partition == partition).all(Client::is_done);
        let demands = [
            (!self.etcd.look().vacant(partition), "L1 a leader"),
            (record.isr.len() == record.replicas.len(), "L2 a whole ISR"),
            (record.adding.is_empty() && record.removing.is_empty(), "L2 the end of a move"),
            (answered && self.history(partition).end() >= goal, "L3 commits"),
            (self.etcd.roots[&partition].0.tiered_end.plus(6) >= goal, "L6 uploads"),
            (wanted.is_none_or(|wanted| *wanted == record.min_isr), "I7 the least ISR that is wanted"),
        ];
        demands.into_iter().find(|(met, _)| !met).map(|(_, demand)| demand)
    }

    pub(crate) fn note(&mut self, what: u64) {
        self.trace = (self.trace.rotate_left(5) ^ what).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    pub(crate) fn partitions(&self) -> Vec<PartitionId> {
        self.histories.keys().copied().collect()
    }

    fn index(&self, broker: BrokerId) -> usize {
        broker.0 as usize
    }

    /// What a broker's wall clock says.
    fn wall(&self, node: usize) -> TimestampMs {
        TimestampMs(WALL_MS + i64::try_from(self.now_ms).expect("small") + self.nodes[node].clock_ahead_ms)
    }

    fn is_paused(&self, node: usize) -> bool {
        self.nodes[node].paused_until > self.now_ms
    }

    pub(crate) fn step(&mut self, node: usize, partition: PartitionId, input: Input) -> Checked {
        if self.tell && self.nodes[node].slot(partition).is_some() {
            println!("{:>8}   broker {node} {} {}", self.now_ms, partition.index, brief(&input));
        }
        let now = Now { wall: self.wall(node), mono_ms: self.now_ms };
        let effects = self.nodes[node].step(now, partition, input);
        self.note_office(node, partition);
        self.expose(node, partition)?;
        if let Some(slot) = self.nodes[node].slot(partition) {
            let visible = slot.replica.visible();
            if self.tell {
                println!("{:>8}     -> {visible:?} durable {}", self.now_ms, slot.replica.durable());
            }
            self.note(visible.hw.0 ^ visible.end.0 << 16 ^ u64::from(visible.epoch.0) << 32);
        }
        for effect in effects {
            self.carry_out(node, partition, effect)?;
        }
        Ok(())
    }

    fn carry_out(&mut self, node: usize, partition: PartitionId, effect: Effect) -> Checked {
        match effect {
            Effect::Answer { token, result } => {
                let (client, producer, sequence) = self.tokens.remove(&token.0).expect("a token is answered once");
                // Whoever goes by what was given up promises nothing any more (rule E7).
                if !self.is_of_the_past(node, partition) {
                    self.check_answer(client, producer, sequence, &result)?;
                    self.wire.push(Msg::Answer { client, producer, sequence, result });
                }
            }
            Effect::Reply { to, reply } => {
                if let millpond_core::replica::Said::Matched { .. } = reply.said {
                    let history = self.histories.get_mut(&partition).expect("every partition has a history");
                    history.note_acknowledged_in(reply.rid, reply.epoch);
                }
                self.wire.push(Msg::Reply { to, partition, reply });
            }
            Effect::Propose(proposal) => self.propose(node, partition, &proposal),
            Effect::Trim(to) => {
                let tiered_end = self.etcd.roots[&partition].0.tiered_end;
                if to > tiered_end {
                    let id = self.nodes[node].id;
                    return Err(format!("S9 broker {id} trims {partition} to {to}, tiered is {tiered_end}"));
                }
                self.nodes[node].trim(partition, to);
            }
            Effect::Fault(fault) => return Err(format!("broker {}: {partition}: {fault}", self.nodes[node].id)),
        }
        Ok(())
    }

    /// Electable replicas whose disk is there.
    fn electable(&self, partition: PartitionId) -> impl Iterator<Item = Rid> {
        let record = self.etcd.record(partition);
        let there = |rid: &Rid| self.nodes.iter().any(|node| node.rid() == *rid && node.is_sound());
        record.isr.iter().chain(&record.elr).copied().filter(there)
    }

    /// Whether a disk may be lost within what is promised: at most `min_isr - 1` disks at once of every partition. One that was lost
    /// counts for as long as the record takes it for a copy. Where topics ask for unclean elections, nothing is promised that a lost
    /// disk could break.
    fn may_lose(&self, node: usize) -> bool {
        if self.unclean {
            return true;
        }
        let rid = self.nodes[node].rid();
        self.partitions().into_iter().all(|partition| {
            let (there, wanted) = (self.electable(partition).count(), self.etcd.look().min_isr.get(&partition));
            let record = self.etcd.record(partition);
            let min_isr = wanted.map_or(record.min_isr, |wanted| record.min_isr.min(*wanted));
            let borne = self.copies_lost(partition) + 1 < min_isr as usize && there > 1;
            borne || self.electable(partition).all(|electable| electable != rid)
        })
    }

    /// Copies that the record counts on and that are not there any more.
    fn copies_lost(&self, partition: PartitionId) -> usize {
        let record = self.etcd.record(partition);
        record.isr.len() + record.elr.len() - self.electable(partition).count()
    }

    fn fresh_gen(&mut self) -> WalGen {
        self.next_gen += 1;
        WalGen(self.next_gen)
    }

    fn upholds(&self, rule: Rule) -> bool {
        self.rules.uphold(rule)
    }
}

/// The records of new topics, with replicas spread over the brokers.
fn records(weather: &Weather, nodes: &[Node]) -> BTreeMap<PartitionId, PartitionRecord> {
    let mut records = BTreeMap::new();
    for (topic, plan) in weather.topics.iter().enumerate() {
        for index in 0..plan.partitions {
            let first = records.len();
            let brokers = (0..plan.replicas as usize).map(|place| &nodes[(first + place) % nodes.len()]);
            let record = PartitionRecord {
                leader: None,
                epoch: LeaderEpoch(0),
                isr: brokers.clone().map(Node::rid).collect(),
                elr: Vec::new(),
                replicas: brokers.map(|node| node.id).collect(),
                adding: Vec::new(),
                removing: Vec::new(),
                min_isr: plan.min_isr,
                unclean_epoch: None,
            };
            records.insert(PartitionId { topic: TopicId(topic as u128 + 1), index }, record);
        }
    }
    records
}
