//! Coordinators of transactions and of groups, partition leaders and clients together, by seed: messages are lost, repeated and late,
//! coordinators and leaders die at any step, clients leave zombies behind (rules S15, S17, S18, L5).
//!
//! Partitions are real replicas, and groups the real shard of them. Store and network are plain models; time is a number, wall clocks jump.

mod clients;
mod offsets;
mod places;
mod weather;

use super::*;
use crate::replica::VerificationToken;
use crate::seeds::{RUNS_THAT_TELL, seeds};
use clients::{Client, Txn};
use millpond_log::Batch;
use offsets::Offsets;
use places::Partition;
use std::collections::VecDeque;
use weather::{Random, Removed, Tally, Weather};

/// Whom a coordinator answers.
#[derive(Clone, Debug)]
pub(super) enum ReplyTo {
    /// A client's call, by number.
    Client { client: usize, call: u64 },
    /// What was asked for a partition's or a group's first write of a transaction.
    Place { place: Place, asked: Asked },
}

/// A partition or a group, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    Partition(usize),
    Group(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) producer: ProducerInstance,
    pub(super) verification: VerificationToken,
    pub(super) epoch_per_transaction: bool,
}

/// One write of a transaction.
#[derive(Clone, Debug)]
pub(super) struct Write {
    pub(super) client: usize,
    pub(super) id: String,
    pub(super) producer: ProducerInstance,
    pub(super) epoch_per_transaction: bool,
    /// What is written: transaction and position in it.
    pub(super) value: Value,
    /// For partitions.
    pub(super) batch: Option<Batch>,
}

/// A marker on its way.
#[derive(Clone, Debug)]
pub(super) struct Mark {
    pub(super) id: String,
    pub(super) ticket: Ticket,
    pub(super) marker: Marker,
}

/// What a reader finds: the number of the transaction and the position in it.
pub(super) type Value = (u64, u32);

#[derive(Clone, Debug)]
pub(super) enum Message {
    Ask {
        request: Request,
        reply: ReplyTo,
    },
    /// In the epoch of the coordinator that gave it.
    Answer {
        reply: ReplyTo,
        epoch: CoordinatorEpoch,
        answer: Result<Granted, TransactionError>,
    },
    Write {
        place: Place,
        write: Write,
    },
    Written {
        client: usize,
        value: Value,
        result: Result<(), ErrorCode>,
    },
    Mark {
        place: Place,
        mark: Mark,
    },
    Reported(Report),
}

pub(super) struct World {
    pub(super) random: Random,
    weather: Weather,
    pub(super) removed: Removed,
    /// True time, as steady clocks tell it.
    pub(super) now_ms: i64,
    /// How far the coordinator's wall clock is ahead.
    ahead_ms: i64,
    /// Since when the owner counts the timeout of what is ongoing: since it began, or was loaded.
    counted_from: BTreeMap<String, i64>,
    net: Vec<Message>,
    /// Messages that take their time: they arrive when much else has happened.
    late: Vec<Message>,
    /// No message is lost or repeated any more, nothing dies, nobody begins anything.
    pub(super) healed: bool,
    store: BTreeMap<String, TransactionRecord>,
    shard_epoch: u32,
    coordinators: Vec<Owner>,
    producer_ids: u64,
    pub(super) partitions: Vec<Partition>,
    pub(super) offsets: Offsets,
    pub(super) clients: Vec<Client>,
    pub(super) txns: Vec<Txn>,
    pub(super) tally: Tally,
    trace: u64,
}

/// One life of a coordinator.
struct Owner {
    coordinator: Coordinator,
    /// Steps whose changes are not durable, in order.
    undurable: VecDeque<(Step, Option<ReplyTo>)>,
}

const PARTITIONS: usize = 3;
const GROUPS: usize = 2;
const IDS: usize = 3;

impl World {
    fn new(seed: u64, removed: Removed) -> World {
        let mut random = Random(seed);
        let mut store = BTreeMap::new();
        // Epochs near their end, in a part of the runs.
        if random.percent(40) {
            let mut aged = Fixture::aged(32_755 + random.below(11) as u16);
            store.insert("t0".to_owned(), aged.store.remove(ID).expect("it was written"));
        }
        let weather = Weather::draw(&mut random);
        let mut world = World {
            random,
            weather,
            removed,
            now_ms: 1_000_000,
            ahead_ms: 0,
            counted_from: BTreeMap::new(),
            net: Vec::new(),
            late: Vec::new(),
            healed: false,
            store,
            shard_epoch: 0,
            coordinators: Vec::new(),
            producer_ids: 1_000,
            partitions: (0..PARTITIONS).map(Partition::new).collect(),
            offsets: Offsets::new(),
            clients: Vec::new(),
            txns: Vec::new(),
            tally: Tally::default(),
            trace: 0,
        };
        for id in 0..IDS {
            world.open_client(id);
        }
        world
    }

    /// The time as the coordinator's broker tells it.
    fn now(&self) -> Now {
        Now { steady_ms: self.now_ms as u64, wall_ms: self.now_ms + self.ahead_ms }
    }

    /// A wall clock is set, by up to a day.
    fn jump(&mut self) {
        self.tally.jumps += 1;
        let ms = [10, 5_000, 24 * 3_600_000][self.random.below(3)];
        self.ahead_ms = self.random.below(2 * ms + 1) as i64 - ms as i64;
    }

    /// Sends a message over a network that may lose it, deliver it twice, and delivers in any order.
    pub(super) fn send(&mut self, message: Message) {
        let Weather { lose, repeat, late, .. } = self.weather;
        let (lose, repeat) = if self.healed || self.reliable(&message) { (0, 0) } else { (lose, repeat) };
        if self.random.percent(lose) {
            return;
        }
        if self.random.percent(repeat) {
            self.net.push(message.clone());
        }
        if !self.healed && self.random.percent(late) {
            self.late.push(message);
        } else {
            self.net.push(message);
        }
    }

    /// What a client that keeps its epoch needs a connection for, on which nothing comes twice: see `Report`. Kafka's first version does
    /// so as well.
    fn reliable(&self, message: &Message) -> bool {
        match message {
            Message::Ask { reply: ReplyTo::Client { client, .. }, .. } => !self.clients[*client].epoch_per_transaction,
            Message::Mark { mark, .. } => !mark.marker.raised,
            Message::Write { place: Place::Group(_), write } => !write.epoch_per_transaction,
            _ => false,
        }
    }

    fn step(&mut self) {
        self.now_ms += self.random.below(5) as i64;
        let Weather { crash, restart, depose, open, stall, stray, jump, regroup, .. } = self.weather;
        let dies = crash + restart + depose;
        if !self.healed {
            match self.random.below(1_000) {
                chance if chance < crash => return self.crash_coordinator(),
                chance if chance < crash + restart => return self.restart_partition(),
                chance if chance < dies => return self.depose_leader(),
                chance if chance < dies + open => {
                    let id = self.random.below(IDS);
                    return self.open_client(id);
                }
                chance if chance < dies + open + stall => self.now_ms += 2_500,
                chance if chance < dies + open + stall + stray => return self.stray(),
                chance if chance < dies + open + stall + stray + jump => return self.jump(),
                chance if chance < dies + open + stall + stray + jump + regroup => return self.fail_over_offsets(),
                _ => {}
            }
        }
        match self.random.below(100) {
            0..4 => self.tick(),
            4..7 => self.send_outstanding(),
            7..20 => self.flush(),
            20..24 => self.flush_offsets(),
            24..34 => {
                let at = self.random.below(PARTITIONS);
                self.sync_partition(at);
            }
            34..36 => {
                let at = self.random.below(PARTITIONS);
                self.ask_again(at);
            }
            36 => self.ask_about_all(),
            37..55 => {
                let client = self.random.below(self.clients.len());
                self.act(client);
            }
            _ => {
                if !self.late.is_empty() && self.random.percent(1) {
                    let at = self.random.below(self.late.len());
                    let message = self.late.swap_remove(at);
                    self.net.push(message);
                }
                self.deliver();
            }
        }
    }

    fn deliver(&mut self) {
        if self.net.is_empty() {
            return;
        }
        let at = self.random.below(self.net.len());
        let message = self.net.swap_remove(at);
        self.note(&message);
        match message {
            Message::Ask { request, reply } => self.ask_coordinator(request, reply),
            Message::Answer { reply: ReplyTo::Client { client, call }, answer, .. } => {
                self.answered(client, call, answer);
            }
            Message::Answer { reply: ReplyTo::Place { place, asked }, epoch, answer } => {
                let answer = answer.map_err(|error| produce_code(error.code()));
                match place {
                    Place::Partition(at) => self.verified(at, asked, answer),
                    Place::Group(_) => self.confirmed(asked, epoch, answer.map(drop)),
                }
            }
            Message::Write { place, write } => self.write(place, write),
            Message::Written { client, value, result } => self.written(client, value, result),
            Message::Mark { place, mark } => self.mark(place, mark),
            Message::Reported(report) => {
                let now = self.now();
                if let Some(owner) = self.coordinators.last_mut() {
                    let step = owner.coordinator.report(now, report);
                    self.take_step(step, None);
                }
            }
        }
    }

    /// Chains what happens, so that two runs can be compared.
    fn note(&mut self, message: &Message) {
        for byte in format!("{message:?}").bytes() {
            self.trace = (self.trace ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn ask_coordinator(&mut self, request: Request, reply: ReplyTo) {
        let now = self.now();
        let Some(owner) = self.coordinators.last_mut() else { return };
        if owner.coordinator.producer_ids_left() == 0 && self.random.percent(80) {
            owner.coordinator.give_producer_ids(self.producer_ids..self.producer_ids + 3);
            self.producer_ids += 3;
        }
        let step = owner.coordinator.step(now, request);
        self.take_step(step, Some(reply));
    }

    fn tick(&mut self) {
        let now = self.now();
        if let Some(owner) = self.coordinators.last_mut() {
            let step = owner.coordinator.tick(now);
            self.tally.timeouts += u32::from(!step.changes.is_empty());
            // Rule X8: whatever wall clocks do, a timeout is as long as it is, from the beginning or the load.
            let over = |from: &i64| self.now_ms - from >= i64::from(clients::TIMEOUT_MS);
            let due: BTreeSet<&String> =
                self.counted_from.iter().filter(|(_, from)| over(from)).map(|(id, _)| id).collect();
            let aborted: BTreeSet<&String> = step.changes.iter().map(|change| &change.id).collect();
            assert_eq!(aborted, due, "X8: {:?} at {}", self.counted_from, self.now_ms);
            self.take_step(step, None);
        }
    }

    fn take_step(&mut self, step: Step, reply: Option<ReplyTo>) {
        if step.changes.is_empty() && step.answer.is_none() {
            return;
        }
        for Change { id, record } in &step.changes {
            match record.as_ref().is_some_and(|record| record.state == TransactionState::Ongoing) {
                true => drop(self.counted_from.entry(id.clone()).or_insert(self.now_ms)),
                false => drop(self.counted_from.remove(id)),
            }
        }
        if self.removed == Removed::Durability {
            let step = Step { changes: Vec::new(), ..step_copy(&step) };
            let epoch = CoordinatorEpoch(self.shard_epoch);
            self.release(epoch, step, reply.clone());
        }
        let owner = self.coordinators.last_mut().expect("it made the step");
        owner.undurable.push_back((step, reply));
    }

    /// Group commit: the oldest steps become durable, and only then are their answers given and their effects begun (rules O1, X2).
    fn flush(&mut self) {
        let newest = self.coordinators.len();
        let at = match self.removed {
            // An owner that was replaced writes on.
            Removed::Fence if newest > 1 => self.random.below(newest),
            _ if newest == 0 => return,
            _ => newest - 1,
        };
        let count = self.random.below(4);
        for _ in 0..count {
            let owner = &mut self.coordinators[at];
            let epoch = owner.coordinator.epoch;
            let Some((step, reply)) = owner.undurable.pop_front() else { return };
            self.store_changes(&step);
            if self.removed != Removed::Durability {
                self.release(epoch, step, reply);
            }
        }
    }

    fn store_changes(&mut self, step: &Step) {
        for Change { id, record } in &step.changes {
            match record {
                Some(record) => {
                    self.tally.rotations += u32::from(record.next_producer.is_some());
                    self.store.insert(id.clone(), record.clone());
                }
                None => drop(self.store.remove(id)),
            }
        }
    }

    fn release(&mut self, epoch: CoordinatorEpoch, step: Step, reply: Option<ReplyTo>) {
        self.send_effects(step.effects);
        if let (Some(reply), Some(answer)) = (reply, step.answer) {
            if let (ReplyTo::Client { client, call }, Ok(_)) = (&reply, &answer) {
                self.note_granted(*client, *call);
            }
            self.send(Message::Answer { reply, epoch, answer });
        }
    }

    fn send_effects(&mut self, effects: Vec<Effect>) {
        for Effect { id, ticket, marker, parts } in effects {
            if !marker.raised {
                self.recall(ticket);
            }
            let number = |group: &String| group[1..].parse().expect("groups are numbered");
            let partitions = parts.partitions.iter().map(|partition| Place::Partition(partition.index as usize));
            for place in partitions.chain(parts.groups.iter().map(|group| Place::Group(number(group)))) {
                let mark = Mark { id: id.clone(), ticket, marker };
                if self.removed == Removed::Markers {
                    self.report_marked(place, &mark);
                }
                self.send(Message::Mark { place, mark });
            }
        }
    }

    /// A client opens another connection: what it asked on the one before arrives no more.
    pub(super) fn reconnect(&mut self, at: usize) {
        let of_client = |message: &Message| matches!(message, Message::Ask { reply: ReplyTo::Client { client, .. }, .. } if *client == at);
        self.net.retain(|message| !of_client(message));
        self.late.retain(|message| !of_client(message));
    }

    /// A client closes the connections that it writes on: what is under way there arrives no more.
    pub(super) fn hang_up_writes(&mut self, at: usize) {
        let of_client = |message: &Message| matches!(message, Message::Write { write, .. } if write.client == at);
        self.net.retain(|message| !of_client(message));
        self.late.retain(|message| !of_client(message));
        self.partitions.iter_mut().for_each(|partition| partition.give_up_held(at));
        self.offsets.give_up_held(at);
    }

    /// Whether what a client has written has all arrived.
    pub(super) fn all_writes_read(&self, at: usize) -> bool {
        let of_client = |message: &Message| matches!(message, Message::Write { write, .. } if write.client == at);
        !self.net.iter().chain(&self.late).any(of_client)
    }

    /// Closes the connections that earlier copies of a marker, and their answers, are under way on. Those of an owner before stay: its
    /// connections are not ours to close.
    fn recall(&mut self, ticket: Ticket) {
        let stays = |message: &Message| match message {
            Message::Mark { mark, .. } => mark.ticket != ticket,
            Message::Reported(report) => report.ticket != ticket,
            _ => true,
        };
        self.net.retain(stays);
        self.late.retain(stays);
        self.partitions.iter_mut().for_each(|partition| partition.hang_up(ticket));
        self.offsets.hang_up(ticket);
    }

    /// What is not reported is sent again, and an absent owner replaced.
    fn send_outstanding(&mut self) {
        let Some(owner) = self.coordinators.last() else { return self.take_over() };
        if owner.undurable.is_empty() {
            let effects = owner.coordinator.outstanding();
            self.send_effects(effects);
        }
    }

    /// The owner dies. What it was writing may be written, and it hears of none of it (rule K5).
    fn crash_coordinator(&mut self) {
        let Some(owner) = self.coordinators.last_mut() else { return };
        let steps = std::mem::take(&mut owner.undurable);
        let written = self.random.below(steps.len() + 1);
        for (step, _) in steps.iter().take(written) {
            self.store_changes(step);
        }
        match self.removed {
            // It was only slow.
            Removed::Fence => {
                self.coordinators.last_mut().expect("as above").undurable = steps.into_iter().skip(written).collect()
            }
            _ => self.coordinators.clear(),
        }
        if self.removed == Removed::Fence || self.random.percent(50) {
            self.take_over();
        }
    }

    /// Rule O3.
    fn take_over(&mut self) {
        self.shard_epoch += 1;
        self.tally.failovers += 1;
        let records: Vec<_> = self.store.iter().map(|(id, record)| (id.clone(), record.clone())).collect();
        if !self.healed && self.random.percent(50) {
            self.jump();
        }
        let ongoing = records.iter().filter(|(_, record)| record.state == TransactionState::Ongoing);
        self.counted_from = ongoing.map(|(id, _)| (id.clone(), self.now_ms)).collect();
        let (coordinator, effects) = Coordinator::load(CoordinatorEpoch(self.shard_epoch), self.now(), records);
        self.coordinators.push(Owner { coordinator, undurable: VecDeque::new() });
        self.send_effects(effects);
    }

    pub(super) fn report_marked(&mut self, place: Place, mark: &Mark) {
        let done = match place {
            Place::Partition(at) => partitions(&[at as u32]),
            Place::Group(at) => group(&group_name(at)),
        };
        self.send(Message::Reported(Report { id: mark.id.clone(), ticket: mark.ticket, done }));
    }

    fn restart_partition(&mut self) {
        let at = self.random.below(PARTITIONS);
        self.tally.restarts += 1;
        self.partitions[at].restart();
    }

    fn depose_leader(&mut self) {
        let at = self.random.below(PARTITIONS);
        self.tally.depositions += 1;
        self.partitions[at].depose();
    }

    /// Everything comes to rest (L5): nothing is under way, nothing open, what is committed is stable.
    fn settle(&mut self) {
        self.healed = true;
        self.net.append(&mut self.late);
        for _ in 0..400 {
            (0..400).for_each(|_| self.step());
            self.now_ms += 4_000;
            self.tick();
            if self.at_rest() {
                return;
            }
        }
        let open: Vec<_> = self.coordinators.last().map(|owner| owner.coordinator.outstanding()).into_iter().collect();
        let partitions: Vec<String> = self.partitions.iter().map(Partition::tell).collect();
        let offsets = self.offsets.tell();
        let clients: Vec<String> = self.clients.iter().map(Client::tell).collect();
        panic!("L5: something hangs: {open:?}, {partitions:#?}, {offsets}, {clients:#?}, {:?}", self.net);
    }

    fn at_rest(&self) -> bool {
        let quiet = self.coordinators.last().is_some_and(|owner| {
            let idle = |record: &TransactionRecord| {
                record.state.prepared().is_none() && record.state != TransactionState::Ongoing
            };
            owner.undurable.is_empty() && owner.coordinator.list().all(|(_, record)| idle(record))
        });
        quiet
            && self.partitions.iter().all(Partition::at_rest)
            && self.offsets.at_rest()
            && self.clients.iter().all(Client::at_rest)
    }
}

fn step_copy(step: &Step) -> Step {
    Step { changes: step.changes.clone(), effects: step.effects.clone(), answer: step.answer.clone() }
}

pub(super) fn group_name(at: usize) -> String {
    format!("g{at}")
}

/// One run. Panics, with the seed, on whatever a promise is broken by.
fn run(seed: u64, removed: Removed) -> (Tally, u64) {
    let mut world = World::new(seed, removed);
    for _ in 0..STEPS {
        world.step();
    }
    world.settle();
    world.check_outcomes();
    (world.tally, world.trace)
}

const STEPS: usize = 4_000;
/// Seeds that are run every time; `SIM_FROM` and `SIM_SEEDS` ask for others.
const SEEDS: Range<u64> = 0..1_000;

fn try_run(seed: u64, removed: Removed) -> Result<Tally, String> {
    let outcome = std::panic::catch_unwind(|| run(seed, removed));
    outcome.map(|(tally, _)| tally).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        format!("SEED={seed} {}", text.unwrap_or_default())
    })
}

#[test]
fn one_seed_makes_one_run() {
    for seed in 0..3 {
        assert_eq!(run(seed, Removed::Nothing).1, run(seed, Removed::Nothing).1, "SEED={seed}");
    }
}

#[test]
fn a_transaction_has_one_outcome_whatever_fails() {
    let mut sum = Tally::default();
    let seeds = seeds(SEEDS);
    for &seed in &seeds {
        let tally = try_run(seed, Removed::Nothing).unwrap_or_else(|broken| panic!("{broken}"));
        sum.commits += tally.commits;
        sum.aborts += tally.aborts;
        sum.fenced += tally.fenced;
        sum.undecided += tally.undecided;
        sum.failovers += tally.failovers;
        sum.group_failovers += tally.group_failovers;
        sum.offsets += tally.offsets;
        sum.restarts += tally.restarts;
        sum.depositions += tally.depositions;
        sum.timeouts += tally.timeouts;
        sum.jumps += tally.jumps;
        sum.rotations += tally.rotations;
        sum.strays += tally.strays;
        sum.numbered_anew += tally.numbered_anew;
        sum.used_up += tally.used_up;
    }
    println!("{sum:?}");
    let Tally { commits, aborts, fenced, undecided, failovers, restarts, timeouts, rotations, .. } = sum;
    let Tally { strays, numbered_anew, used_up, depositions, jumps, group_failovers, offsets, .. } = sum;
    let outcomes = [commits, aborts, fenced, undecided];
    let seen = [
        failovers,
        group_failovers,
        offsets,
        restarts,
        depositions,
        timeouts,
        jumps,
        rotations,
        strays,
        numbered_anew,
        used_up,
    ];
    let happens = outcomes.iter().chain(&seen).all(|count| *count > 10);
    assert!(happens || seeds.len() < RUNS_THAT_TELL, "{sum:?}");
}

/// Each rule whose removal breaks a promise is missed within few runs: this is what tells that the checks check.
#[test]
fn a_rule_that_is_missing_is_noticed() {
    std::panic::set_hook(Box::new(|_| {}));
    let rules = [
        Removed::Durability,
        Removed::Verification,
        Removed::Markers,
        Removed::Fence,
        Removed::Moment,
        Removed::Stable,
        Removed::Proof,
    ];
    let missed: Vec<(Removed, Option<String>)> =
        rules.into_iter().map(|rule| (rule, (0..200).find_map(|seed| try_run(seed, rule).err()))).collect();
    let _ = std::panic::take_hook();
    println!("{missed:#?}");
    assert!(missed.iter().all(|(_, broken)| broken.is_some()), "{missed:#?}");
}
