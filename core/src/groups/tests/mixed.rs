//! Groups of both protocols under churn, by seed: consumers that are assigned by the coordinator, and consumers that assign among
//! themselves and, by seed, stop everything before they join again or read on meanwhile (KIP-429). So groups become of the other kind and
//! back, while coordinators fail between any two changes.
//!
//! Checked all along: rule S20 as the members see it. At the end, when all is calm: rule L8, every partition is read by one of them.

use super::churn::{Random, SEEDS};
use super::*;
use crate::groups::embedded::{ByName, read_assignment, write_assignment};
use crate::records::groups::{ClassicPiece, RecordPart};
use crate::seeds::{RUNS_THAT_TELL, seeds};
use std::collections::VecDeque;

const EVENTS: usize = 400;
const PARTITIONS: u32 = 9;

/// A consumer, by its protocol.
#[derive(Clone, Debug, Default)]
struct Reader {
    id: Arc<str>,
    classic: bool,
    /// Whether it reads on while it joins again.
    cooperative: bool,
    /// Epoch or generation; 0 before it has joined.
    epoch: i32,
    owned: BTreeSet<u32>,
    /// The id that it was given that as.
    owned_as: Arc<str>,
    memory: Memory,
    /// As a classic member: what it was given last, whatever became of that.
    given: BTreeSet<u32>,
    /// One of the members has assigned since it has this id.
    assigned_by_leader: bool,
    /// It was given its id to come back with.
    promised: bool,
    /// What it was told by the coordinator and has not come to yet.
    told: Option<BTreeSet<u32>>,
    next: Next,
    awaits: Option<Token>,
    tells_all: bool,
}

/// What a cooperative consumer makes of its removal.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Memory {
    /// It drops everything, and joins anew.
    #[default]
    Clear,
    /// It drops everything, and says that it has it, as kafka-python does.
    Says,
    /// If it hears of it as it joins, it joins anew and reads on, as franz-go does.
    Reads,
}

/// What a classic consumer does next.
#[derive(Clone, Debug, Default, PartialEq)]
enum Next {
    #[default]
    Join,
    /// As the leader, with what it gives the members.
    Sync(BTreeMap<Arc<str>, Vec<u8>>),
    Heartbeat,
}

struct Mixed {
    random: Random,
    world: World,
    held: VecDeque<Step>,
    durable: BTreeMap<RecordKey, Record>,
    readers: Vec<Option<Reader>>,
    members: u64,
    /// How often the group changed its kind, and how often coordinators failed.
    conversions: usize,
    failovers: usize,
    consumer: bool,
    /// Whether those that assign among themselves are cooperative.
    cooperative: bool,
    /// Percentage of answers that are lost.
    lossy: u64,
}

#[test]
fn partitions_have_one_owner_whatever_members_speak() {
    let (mut conversions, mut failovers) = (0, 0);
    let seeds = seeds(SEEDS);
    for &seed in &seeds {
        let run = std::panic::catch_unwind(|| run(seed));
        let mixed = run.unwrap_or_else(|_| panic!("SEED={seed}"));
        conversions += mixed.conversions;
        failovers += mixed.failovers;
    }
    let runs = seeds.len();
    let changing = conversions > runs && failovers > runs;
    assert!(changing || runs < RUNS_THAT_TELL, "{runs} runs, {conversions} conversions, {failovers} failovers");
}

fn run(seed: u64) -> Mixed {
    let mut mixed = Mixed {
        random: Random(seed),
        world: World::new(&[("t", PARTITIONS as usize)]),
        held: VecDeque::new(),
        durable: BTreeMap::new(),
        readers: Vec::new(),
        members: 0,
        conversions: 0,
        failovers: 0,
        consumer: false,
        cooperative: seed % 2 == 1,
        lossy: 5,
    };
    for _ in 0..EVENTS {
        mixed.event();
        mixed.check();
    }
    mixed.calm();
    mixed
}

impl Mixed {
    fn event(&mut self) {
        match self.random.below(100) {
            0..52 => self.with_reader(Mixed::speak),
            52..62 => self.with_reader(Mixed::act),
            62..66 => self.come(),
            66..69 => self.with_reader(Mixed::go),
            69..74 => {
                let ms = 1 + self.random.below(4_000) as u64;
                self.pass(ms);
            }
            74..99 => {
                let steps = if self.random.percent(50) { 1 } else { 20 };
                self.flush(steps);
            }
            _ => self.fail_over(),
        }
        let consumer = self.world.shard.describe(&"g".into()).is_ok_and(|group| group.listed.consumer);
        self.conversions += usize::from(consumer != self.consumer);
        self.consumer = consumer;
    }

    fn with_reader(&mut self, act: fn(&mut Mixed, usize)) {
        let alive: Vec<usize> = (0..self.readers.len()).filter(|&reader| self.readers[reader].is_some()).collect();
        if !alive.is_empty() {
            let reader = alive[self.random.below(alive.len())];
            act(self, reader);
        }
    }

    fn come(&mut self) {
        if self.readers.iter().flatten().count() < 6 {
            self.members += 1;
            let id = format!("m{}", self.members).into();
            let classic = self.random.percent(65);
            let cooperative = self.cooperative;
            let memory = match self.random.below(3) {
                1 if cooperative => Memory::Says,
                2 if cooperative => Memory::Reads,
                _ => Memory::Clear,
            };
            self.readers.push(Some(Reader { id, classic, cooperative, memory, tells_all: true, ..Reader::default() }));
        }
    }

    /// A consumer stops: silently, or with a word.
    fn go(&mut self, index: usize) {
        let reader = self.readers[index].take().expect("it is alive");
        match (self.random.percent(50), reader.classic) {
            (false, _) => {}
            (true, true) => {
                let members = vec![(reader.id, None)];
                self.step(Request::Leave(Leave { group: "g".into(), members }));
            }
            (true, false) => {
                self.step(Request::Heartbeat(alive(&reader.id, LEAVE_EPOCH)));
            }
        }
    }

    fn step(&mut self, request: Request) -> Token {
        let token = self.world.token();
        let step = self.world.shard.step(self.world.now, token, request);
        self.hold(step);
        token
    }

    fn hold(&mut self, step: Step) {
        apply(&mut self.world.store, step.changes.clone());
        assert_eq!(self.world.store, self.world.shard.records(), "the store holds what the shard says it persisted");
        self.held.push_back(step);
    }

    /// A consumer sends what it has to send, unless it waits for an answer.
    fn speak(&mut self, index: usize) {
        let reader = self.readers[index].as_mut().expect("it is alive");
        if reader.awaits.is_some() {
            return;
        }
        let request = if reader.classic { reader.speak_classic() } else { reader.heartbeat(&self.world) };
        let token = self.step(request);
        self.readers[index].as_mut().expect("it is alive").awaits = Some(token);
    }

    fn act(&mut self, index: usize) {
        let reader = self.readers[index].as_mut().expect("it is alive");
        if let Some(told) = reader.told.take() {
            reader.own(told);
        }
    }

    fn pass(&mut self, ms: u64) {
        let end = self.world.now.steady_ms + ms;
        while let Some(due) = self.world.shard.next_deadline().filter(|due| *due <= end) {
            self.world.advance(due.saturating_sub(self.world.now.steady_ms));
            let step = self.world.shard.tick(self.world.now);
            self.hold(step);
        }
        self.world.advance(end - self.world.now.steady_ms);
    }

    fn flush(&mut self, steps: usize) {
        for _ in 0..steps {
            let Some(step) = self.held.pop_front() else { return };
            apply(&mut self.durable, step.changes);
            for (token, answer) in step.answers {
                let lost = self.random.percent(self.lossy);
                let waits = |reader: &&mut Reader| reader.awaits == Some(token);
                let Some(reader) = self.readers.iter_mut().flatten().find(waits) else { continue };
                reader.awaits = None;
                match lost {
                    true => reader.missed(),
                    false => reader.hear(answer),
                }
            }
        }
    }

    fn fail_over(&mut self) {
        self.failovers += 1;
        if let Some(step) = self.held.pop_front() {
            let kept = self.random.below(step.changes.len() + 1);
            apply(&mut self.durable, step.changes.into_iter().take(kept).collect());
        }
        self.held.clear();
        for reader in self.readers.iter_mut().flatten() {
            if reader.awaits.take().is_some() {
                reader.missed();
            }
        }
        let records = self.durable.clone();
        let limits = GroupLimits::default();
        let (shard, step) = Shard::load(self.world.now, limits, self.world.image(), records).expect("in place");
        self.world.shard = shard;
        self.world.store = self.durable.clone();
        self.hold(step);
    }

    /// Who is a member, as far as anybody was told.
    fn is_member(&self, id: &Arc<str>) -> bool {
        let key = |part| RecordKey { group: "g".into(), part };
        if self.durable.contains_key(&key(RecordPart::Member(id.clone()))) {
            return true;
        }
        let has = |record: &Record| matches!(record, Record::Classic(ClassicPiece { members }) if members.contains_key(&**id));
        self.durable.values().any(has)
    }

    /// Rule S20: no two members read one partition. What one reads on that it was given as a member that was removed, others may have.
    fn check(&self) {
        let mut owners: BTreeMap<u32, &Arc<str>> = BTreeMap::new();
        for reader in self.readers.iter().flatten().filter(|reader| self.is_member(&reader.owned_as)) {
            for &index in &reader.owned {
                let other = owners.insert(index, &reader.id);
                assert_eq!(other, None, "{index} is read by {} too", reader.id);
            }
        }
    }

    /// Rule L8: once nothing happens any more, members come to rest.
    fn calm(&mut self) {
        self.lossy = 0;
        self.come();
        for _ in 0..60 {
            for index in 0..self.readers.len() {
                for _ in 0..3 {
                    if self.readers[index].is_some() {
                        self.speak(index);
                        self.flush(usize::MAX);
                        self.act(index);
                        self.check();
                    }
                }
            }
            self.pass(3_000);
        }
        let described = self.world.shard.describe(&"g".into()).expect("the group is there");
        assert_eq!(described.listed.state, GroupState::Stable);
        let readers = self.readers.iter().flatten();
        assert_eq!(described.listed.consumer, readers.clone().any(|reader| !reader.classic));
        let owned: Vec<u32> = readers.flat_map(|reader| reader.owned.iter().copied()).collect();
        assert_eq!(owned.iter().copied().collect::<BTreeSet<u32>>(), (0..PARTITIONS).collect(), "all are read");
        assert_eq!(owned.len(), PARTITIONS as usize, "by one each");
    }
}

impl Reader {
    fn heartbeat(&self, world: &World) -> Request {
        let mut request = alive(&self.id, self.epoch);
        if self.epoch == JOIN_EPOCH || self.tells_all {
            request = Heartbeat { epoch: self.epoch, ..join(&self.id, &["t"]) };
        }
        request.owned = Some(world.partitions("t", self.owned.iter().copied()));
        Request::Heartbeat(request)
    }

    fn speak_classic(&mut self) -> Request {
        let who = who(&self.id, self.epoch);
        match std::mem::take(&mut self.next) {
            Next::Join => {
                if !self.cooperative {
                    // It stops everything first.
                    self.owned.clear();
                }
                let member = if self.epoch == 0 && !self.promised { "".into() } else { self.id.clone() };
                let subscription = Subscription {
                    version: 1,
                    topics: ["t".to_owned()].into(),
                    owned: [("t".to_owned(), self.brings())].into(),
                    ..Subscription::default()
                };
                let protocols = vec![protocol("range", &subscription)];
                let known_id_required = self.memory != Memory::Clear;
                Request::Join(Join { member, protocols, known_id_required, ..joins("", &self.id) })
            }
            Next::Sync(assignments) => Request::Sync(SyncGroup { who, assignments, ..SyncGroup::default() }),
            Next::Heartbeat => {
                self.next = Next::Heartbeat;
                Request::ClassicHeartbeat(who)
            }
        }
    }

    /// An answer was lost.
    fn missed(&mut self) {
        self.tells_all = true;
        if self.classic {
            self.next = Next::Join;
        }
    }

    fn hear(&mut self, answer: Answer) {
        match answer {
            Answer::Heartbeat(Ok(beat)) => {
                (self.epoch, self.tells_all) = (beat.epoch, false);
                if let Some(assignment) = beat.assignment {
                    let told: BTreeSet<u32> = assignment.iter().map(|partition| partition.index).collect();
                    self.owned.retain(|index| told.contains(index));
                    self.told = Some(told);
                }
            }
            Answer::Heartbeat(Err(ErrorCode::FencedMemberEpoch | ErrorCode::UnknownMemberId)) => self.abandon(),
            Answer::Join(Ok(joined)) => {
                self.epoch = joined.generation;
                self.assigned_by_leader |= joined.leader.is_some();
                self.next = Next::Sync(shared_out(&joined));
            }
            Answer::Sync(Ok(synced)) => {
                let mut named = read_assignment(&synced.assignment).expect("an assignment");
                let told = named.remove("t").unwrap_or_default();
                // What it gave up goes to others when it has said so.
                let gives_up = self.cooperative && !self.brings().is_subset(&told);
                assert!(
                    self.owned_as == self.id || self.assigned_by_leader || self.owned.is_disjoint(&told),
                    "it drops that first"
                );
                self.given.clone_from(&told);
                self.own(told);
                self.next = if gives_up { Next::Join } else { Next::Heartbeat };
            }
            Answer::ClassicHeartbeat(Ok(())) => {}
            Answer::Join(Err(JoinRefused { code: ErrorCode::MemberIdRequired, member })) => {
                assert_eq!(member, self.id);
                (self.promised, self.next) = (true, Next::Join);
            }
            Answer::Join(Err(JoinRefused { code: ErrorCode::UnknownMemberId, .. })) if self.memory == Memory::Reads => {
                self.forget();
            }
            Answer::Join(Err(JoinRefused { code: ErrorCode::UnknownMemberId, .. }))
            | Answer::Sync(Err(ErrorCode::UnknownMemberId))
            | Answer::ClassicHeartbeat(Err(ErrorCode::UnknownMemberId)) => self.abandon(),
            Answer::Sync(Err(ErrorCode::IllegalGeneration))
            | Answer::ClassicHeartbeat(Err(ErrorCode::IllegalGeneration)) => {
                // Others may have been given what it owned.
                self.owned.clear();
                self.next = Next::Join;
            }
            Answer::Join(Err(JoinRefused { code: ErrorCode::RebalanceInProgress, .. }))
            | Answer::Sync(Err(ErrorCode::RebalanceInProgress))
            | Answer::ClassicHeartbeat(Err(ErrorCode::RebalanceInProgress)) => self.next = Next::Join,
            other => panic!("{other:?}"),
        }
    }

    fn abandon(&mut self) {
        self.owned.clear();
        self.forget();
    }

    /// It is nobody, and joins anew. Coordinators give no id to two.
    fn forget(&mut self) {
        if self.memory != Memory::Clear {
            self.id = format!("{}+", self.id).into();
        }
        (self.told, self.epoch, self.next, self.tells_all) = (None, JOIN_EPOCH, Next::Join, true);
        (self.promised, self.assigned_by_leader) = (false, false);
    }

    /// It reads these from now on, and no others.
    fn own(&mut self, told: BTreeSet<u32>) {
        self.owned = told;
        self.owned_as = self.id.clone();
    }

    /// What it says that it owns as it joins.
    fn brings(&self) -> BTreeSet<u32> {
        if self.memory == Memory::Says { self.given.clone() } else { self.owned.clone() }
    }
}

/// What a leader gives its members: every partition to one, in turn, but for those that another reads on: they go to nobody yet.
fn shared_out(joined: &Joined) -> BTreeMap<Arc<str>, Vec<u8>> {
    let mut shares: Vec<BTreeSet<u32>> = vec![BTreeSet::new(); joined.members.len()];
    let owned = |member: &JoinedMember| {
        let mut subscription = Subscription::read(&member.metadata).expect("a subscription");
        subscription.owned.remove("t").unwrap_or_default()
    };
    let owned: Vec<BTreeSet<u32>> = joined.members.iter().map(owned).collect();
    for (index, turn) in (0..PARTITIONS).zip((0..shares.len()).cycle()) {
        if owned.iter().enumerate().all(|(other, owned)| other == turn || !owned.contains(&index)) {
            shares[turn].insert(index);
        }
    }
    let shares = joined.members.iter().zip(shares);
    let shares = shares.map(|(member, share)| {
        let named = ByName::from([("t".to_owned(), share)]);
        (member.id.clone(), write_assignment(&named, 1))
    });
    shares.collect()
}
