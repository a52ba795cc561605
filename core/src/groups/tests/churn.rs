//! Consumer groups under churn, by seed: members that join, crash, stall and leave, topics that come, grow and go, answers that are lost, and
//! coordinators that fail between any two changes. Members act on what they are told, and only when it is durable.
//!
//! Checked all along: rule S20 as the members see it, no commit that was acknowledged is lost or goes backwards, and nothing is taken away
//! that stays. Checked at the end, when all is calm: rule L8, the group is at rest and even.

use super::*;
use crate::groups::assign::Assignor;
use crate::records::groups::{MemberRecord, MemberState, RecordPart};
use crate::seeds::{RUNS_THAT_TELL, seeds};
use std::collections::VecDeque;

/// Seeds that are run every time; `SIM_FROM` and `SIM_SEEDS` ask for others.
pub(super) const SEEDS: std::ops::Range<u64> = 0..500;
const EVENTS: usize = 400;
const LIMITS: GroupLimits = GroupLimits {
    session_timeout_ms: 45_000,
    heartbeat_interval_ms: 3_000,
    session_timeout_bounds_ms: (1, 60_000),
    heartbeat_interval_bounds_ms: (1, 60_000),
    members_max: 100,
    classic_session_timeout_ms: (6_000, 1_800_000),
    initial_rebalance_delay_ms: 3_000,
    new_member_join_timeout_ms: 300_000,
    offsets_retention_ms: i64::MAX,
    expiry_interval_ms: 600_000,
    metadata_bytes_max: 4_096,
    // Some members are one record, others a head and pieces.
    member_bytes_max: 780,
};

/// SplitMix64.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub(super) fn percent(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }
}

/// A consumer, as a client of the coordinator.
#[derive(Clone, Debug, Default)]
struct Reader {
    id: Arc<str>,
    instance: Option<String>,
    topics: Option<BTreeSet<String>>,
    regex: Option<String>,
    epoch: i32,
    /// What it reads from.
    owned: BTreeSet<PartitionId>,
    /// What it was told to own, and has not come to yet.
    told: Option<BTreeSet<PartitionId>>,
    /// Where it reads, for partitions whose committed offset it has been told.
    positions: BTreeMap<PartitionId, u64>,
    /// Its last question for a committed offset.
    asked: BTreeMap<PartitionId, Token>,
    /// Its heartbeat that is under way.
    awaits: Option<Token>,
    /// It missed an answer, so it says everything again.
    tells_all: bool,
}

/// What an answer is to be given to.
#[derive(Clone, Debug)]
enum Waiting {
    Heartbeat(usize),
    Commit(Vec<(PartitionId, u64)>),
    Position(usize, PartitionId),
}

/// Members as the shard describes them, each with its target.
type Described = BTreeMap<Arc<str>, (MemberRecord, BTreeSet<PartitionId>)>;

struct Churn {
    random: Random,
    world: World,
    /// Steps whose changes are not durable yet, so that their answers are held.
    held: VecDeque<Step>,
    durable: BTreeMap<RecordKey, Record>,
    readers: Vec<Option<Reader>>,
    waiting: BTreeMap<Token, Waiting>,
    /// What was acknowledged, at most, by partition.
    acknowledged: BTreeMap<PartitionId, u64>,
    members: u64,
    failovers: usize,
    moves: usize,
    /// Percentage of answers that are lost.
    lossy: u64,
}

#[test]
fn partitions_have_one_owner_and_commits_are_kept_under_churn() {
    let (mut failovers, mut moves) = (0, 0);
    let seeds = seeds(SEEDS);
    for &seed in &seeds {
        let run = std::panic::catch_unwind(|| run(seed));
        let churn = run.unwrap_or_else(|_| panic!("SEED={seed}"));
        failovers += churn.failovers;
        moves += churn.moves;
    }
    // A run in which nothing happens proves nothing.
    let runs = seeds.len();
    let moving = failovers > runs && moves > 20 * runs;
    assert!(moving || runs < RUNS_THAT_TELL, "{runs} runs, {failovers} failovers, {moves} moves");
}

#[test]
fn a_seed_makes_one_run() {
    let trace = |seed| {
        let churn = run(seed);
        (churn.durable, churn.acknowledged, churn.world.now, churn.moves)
    };
    assert!(trace(7) == trace(7) && trace(7).2 != trace(8).2);
}

fn run(seed: u64) -> Churn {
    let mut churn = Churn::new(seed);
    for _ in 0..EVENTS {
        churn.event();
        churn.check();
    }
    churn.calm();
    churn
}

impl Churn {
    fn new(seed: u64) -> Churn {
        let mut random = Random(seed);
        let topics = [("a", random.below(8)), ("b", random.below(12)), ("x-c", 1)];
        let world = World::with(LIMITS, &topics);
        Churn {
            random,
            world,
            held: VecDeque::new(),
            durable: BTreeMap::new(),
            readers: Vec::new(),
            waiting: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
            members: 0,
            failovers: 0,
            moves: 0,
            lossy: 8,
        }
    }

    fn event(&mut self) {
        match self.random.below(100) {
            0..40 => self.with_reader(Churn::heartbeat),
            40..58 => self.with_reader(Churn::act),
            58..70 => self.with_reader(Churn::commit),
            70..74 => self.join(),
            74..76 => self.with_reader(Churn::go),
            76..80 => {
                let ms = 1 + self.random.below(12_000) as u64;
                self.pass(ms);
            }
            80..82 => self.change_topics(),
            82..98 => {
                let steps = if self.random.percent(50) { 1 } else { 20 };
                self.flush(steps);
            }
            98 => self.with_reader(Churn::resubscribe),
            _ if self.random.percent(50) => self.fail_over(),
            _ => {}
        }
    }

    fn with_reader(&mut self, act: fn(&mut Churn, usize)) {
        let alive: Vec<usize> = (0..self.readers.len()).filter(|&reader| self.readers[reader].is_some()).collect();
        if !alive.is_empty() {
            let reader = alive[self.random.below(alive.len())];
            act(self, reader);
        }
    }

    fn reader(&mut self, reader: usize) -> &mut Reader {
        self.readers[reader].as_mut().expect("it is alive")
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
        for (_, answer) in &step.answers {
            self.check_kept(answer);
        }
        self.held.push_back(step);
    }

    /// Whatever a member owns and is to own by the target stays with it.
    fn check_kept(&self, answer: &Answer) {
        let Answer::Heartbeat(Ok(Beat { member, assignment: Some(assignment), .. })) = answer else { return };
        let (Some(reader), Some((record, target))) = (
            self.readers.iter().flatten().find(|reader| reader.id == *member),
            self.described().map(|(_, mut members)| members.remove(member).expect("it is a member")),
        ) else {
            return;
        };
        for partition in reader.owned.intersection(&target) {
            // A target may come back to what it had taken away; that is given up all the same, and given again.
            let kept = assignment.contains(partition) || record.revoking.contains_key(partition);
            assert!(kept, "{member} loses {partition}, which it is to have");
        }
    }

    fn described(&self) -> Option<(GroupState, Described)> {
        let description = self.world.shard.describe(&"g".into()).ok()?;
        let Members::Consumer { members, .. } = description.members else { return None };
        Some((description.listed.state, members))
    }

    fn join(&mut self) {
        if self.readers.iter().flatten().count() >= 8 {
            return;
        }
        self.members += 1;
        let mut reader = Reader { id: format!("m{}", self.members).into(), tells_all: true, ..Reader::default() };
        self.subscribe(&mut reader);
        if self.random.percent(40) {
            let instance = format!("i{}", self.random.below(3));
            let taken = self.readers.iter().flatten().any(|other| other.instance.as_ref() == Some(&instance));
            reader.instance = Some(instance).filter(|_| !taken);
        }
        self.readers.push(Some(reader));
    }

    fn subscribe(&mut self, reader: &mut Reader) {
        if self.random.percent(25) {
            (reader.topics, reader.regex) = (Some(BTreeSet::new()), Some("x-.*|a".to_owned()));
        } else {
            let names = if self.random.percent(75) { &["a", "b"][..] } else { &["b"][..] };
            reader.topics = Some(names.iter().map(|&name| name.to_owned()).collect());
            reader.regex = Some(String::new());
        }
    }

    fn resubscribe(&mut self, reader: usize) {
        let mut changed = self.reader(reader).clone();
        self.subscribe(&mut changed);
        changed.tells_all = true;
        *self.reader(reader) = changed;
    }

    fn heartbeat(&mut self, index: usize) {
        let says_what_it_owns = self.random.percent(70);
        let reader = self.reader(index);
        if reader.awaits.is_some() {
            return;
        }
        let joins = reader.epoch == JOIN_EPOCH;
        let mut request = Heartbeat { instance: reader.instance.clone(), ..alive(&reader.id, reader.epoch) };
        if joins || reader.tells_all {
            request.topics.clone_from(&reader.topics);
            request.regex.clone_from(&reader.regex);
            request.rebalance_timeout_ms = Some(30_000);
        }
        if joins || reader.tells_all || says_what_it_owns {
            request.owned = Some(reader.owned.clone());
        }
        if joins && request.regex.as_ref().is_some_and(String::is_empty) {
            request.regex = None;
        }
        reader.tells_all = false;
        let token = self.step(Request::Heartbeat(request));
        self.reader(index).awaits = Some(token);
        self.waiting.insert(token, Waiting::Heartbeat(index));
    }

    /// A consumer does what it was told: it gives up first, and takes then.
    fn act(&mut self, index: usize) {
        let partly = self.random.percent(40);
        let reader = self.reader(index);
        let Some(told) = reader.told.clone() else { return };
        reader.owned.retain(|partition| told.contains(partition));
        let owned = reader.owned.clone();
        reader.positions.retain(|partition, _| owned.contains(partition));
        if partly {
            return;
        }
        reader.told = None;
        let new: Vec<PartitionId> = told.difference(&owned).copied().collect();
        reader.owned = told;
        self.moves += new.len();
        for partition in new {
            self.ask_position(index, partition);
        }
    }

    fn ask_position(&mut self, index: usize, partition: PartitionId) {
        let request = Fetch { group: "g".into(), partitions: Some(vec![partition]), ..Fetch::default() };
        let token = self.step(Request::Fetch(request));
        self.waiting.insert(token, Waiting::Position(index, partition));
        if let Some(reader) = &mut self.readers[index] {
            reader.asked.insert(partition, token);
        }
    }

    fn commit(&mut self, index: usize) {
        let advance = 1 + self.random.below(9) as u64;
        let reader = self.reader(index);
        for position in reader.positions.values_mut() {
            *position += advance;
        }
        let offsets: Vec<(PartitionId, u64)> = reader.positions.iter().map(|(p, position)| (*p, *position)).collect();
        let request = Commit {
            group: "g".into(),
            member: reader.id.clone(),
            epoch: reader.epoch,
            offsets: offsets.iter().map(|(partition, at)| (*partition, offset(*at))).collect(),
            ..Commit::default()
        };
        if !offsets.is_empty() {
            let token = self.step(Request::Commit(request));
            self.waiting.insert(token, Waiting::Commit(offsets));
        }
    }

    /// A consumer crashes, stops for good, or restarts as a static member.
    fn go(&mut self, index: usize) {
        let reader = self.readers[index].take().expect("it is alive");
        let epoch = match self.random.below(3) {
            0 => return,
            1 => LEAVE_EPOCH,
            _ if reader.instance.is_some() => LEAVE_STATIC_EPOCH,
            _ => return,
        };
        self.step(Request::Heartbeat(Heartbeat { instance: reader.instance.clone(), ..alive(&reader.id, epoch) }));
        if epoch == LEAVE_STATIC_EPOCH {
            self.members += 1;
            let id = format!("m{}", self.members).into();
            let Reader { instance, topics, regex, .. } = reader;
            self.readers.push(Some(Reader { id, instance, topics, regex, tells_all: true, ..Reader::default() }));
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

    fn change_topics(&mut self) {
        let names = ["a", "b", "x-c", "x-d"];
        let name = names[self.random.below(names.len())];
        let known = self.world.topics.iter().find(|(_, topic)| topic.name.as_str() == name);
        let known = known.map(|(id, topic)| (*id, topic.racks.len()));
        match known {
            Some((id, _)) if self.random.percent(30) => {
                self.world.topics.remove(&id);
                self.world.publish();
                let step = self.world.shard.topic_deleted(self.world.now, id);
                self.hold(step);
                self.acknowledged.retain(|partition, _| partition.topic != id);
            }
            Some((_, count)) => {
                self.world.put_topic(name, (count + self.random.below(4)).min(16));
            }
            None => {
                let count = self.random.below(10);
                self.world.put_topic(name, count);
            }
        }
    }

    /// Makes some steps durable, and gives their answers.
    fn flush(&mut self, steps: usize) {
        for _ in 0..steps {
            let Some(step) = self.held.pop_front() else { return };
            apply(&mut self.durable, step.changes);
            for (token, answer) in step.answers {
                let lost = self.random.percent(self.lossy);
                match (self.waiting.remove(&token), answer) {
                    (Some(Waiting::Heartbeat(index)), answer) => self.heard(index, token, answer, lost),
                    (Some(Waiting::Commit(offsets)), Answer::Commit(Ok(results))) if !lost => {
                        self.committed(&offsets, &results);
                    }
                    (Some(Waiting::Position(index, partition)), Answer::Fetch(Ok(fetched))) => {
                        let committed = fetched[0].1.clone().expect("no transaction is open");
                        let committed = committed.map_or(0, |committed| committed.offset.0);
                        let asked = |reader: &&mut Reader| {
                            reader.owned.contains(&partition) && reader.asked.get(&partition) == Some(&token)
                        };
                        if let Some(reader) = self.readers[index].as_mut().filter(asked) {
                            reader.positions.insert(partition, committed);
                        }
                    }
                    _ => {}
                }
            }
            self.check_commits();
        }
    }

    fn committed(&mut self, offsets: &[(PartitionId, u64)], results: &[Result<(), ErrorCode>]) {
        for ((partition, at), result) in offsets.iter().zip(results) {
            if result.is_ok() && self.world.topics.contains_key(&partition.topic) {
                let most = self.acknowledged.entry(*partition).or_default();
                *most = (*most).max(*at);
            }
        }
    }

    fn heard(&mut self, index: usize, token: Token, answer: Answer, lost: bool) {
        let Some(reader) = self.readers[index].as_mut().filter(|reader| reader.awaits == Some(token)) else { return };
        reader.awaits = None;
        if lost {
            reader.tells_all = true;
            return;
        }
        match answer {
            Answer::Heartbeat(Ok(beat)) => {
                reader.epoch = beat.epoch;
                if let Some(assignment) = beat.assignment {
                    reader.told = Some(assignment);
                }
            }
            Answer::Heartbeat(Err(ErrorCode::FencedMemberEpoch | ErrorCode::UnknownMemberId)) => reader.abandon(),
            // Another process with its identity has not gone yet.
            Answer::Heartbeat(Err(ErrorCode::UnreleasedInstanceId)) => reader.tells_all = true,
            // Another process has its identity now.
            Answer::Heartbeat(Err(ErrorCode::FencedInstanceId)) => self.readers[index] = None,
            other => panic!("{other:?}"),
        }
    }

    /// The coordinator is gone with all that was not durable; the changes of the step under way may be cut anywhere.
    fn fail_over(&mut self) {
        self.failovers += 1;
        if let Some(step) = self.held.pop_front() {
            let kept = self.random.below(step.changes.len() + 1);
            apply(&mut self.durable, step.changes.into_iter().take(kept).collect());
        }
        self.held.clear();
        for reader in self.readers.iter_mut().flatten() {
            reader.tells_all |= reader.awaits.take().is_some();
        }
        // Who waited for an offset asks again.
        let waiting = std::mem::take(&mut self.waiting);
        let records = self.durable.clone();
        let (shard, step) = Shard::load(self.world.now, LIMITS, self.world.image(), records).expect("in place");
        self.world.shard = shard;
        self.world.store = self.durable.clone();
        self.hold(step);
        // What was deleted while nobody looked is told again: tombstones stay.
        let known: BTreeSet<TopicId> = self.world.topics.keys().copied().collect();
        let gone = self.durable.keys().filter_map(|key| match key.part {
            RecordPart::Offsets { topic, .. } if !known.contains(&topic) => Some(topic),
            _ => None,
        });
        for topic in gone.collect::<BTreeSet<TopicId>>() {
            let step = self.world.shard.topic_deleted(self.world.now, topic);
            self.hold(step);
        }
        for wait in waiting.into_values() {
            if let Waiting::Position(index, partition) = wait {
                self.ask_position(index, partition);
            }
        }
    }

    /// Rule S20: among those that are members, as far as anybody was told, no two read one partition.
    fn check(&self) {
        let mut owners: BTreeMap<PartitionId, &Arc<str>> = BTreeMap::new();
        for reader in self.readers.iter().flatten() {
            let part = RecordPart::Member(reader.id.clone());
            if !self.durable.contains_key(&RecordKey { group: "g".into(), part }) {
                continue;
            }
            for &partition in &reader.owned {
                let other = owners.insert(partition, &reader.id);
                assert_eq!(other, None, "{partition} is read by {} too", reader.id);
            }
        }
    }

    /// What was acknowledged is what is read back, or something later.
    fn check_commits(&self) {
        for (partition, most) in &self.acknowledged {
            let (topic, block) = (partition.topic, crate::records::groups::block_of(*partition));
            let key = RecordKey { group: "g".into(), part: RecordPart::Offsets { topic, block } };
            let Some(Record::Offsets(offsets)) = self.durable.get(&key) else { panic!("{partition} lost its offset") };
            assert!(offsets[&partition.index].offset.0 >= *most, "{partition} went back from {most}");
        }
    }

    /// Rule L8: once nothing happens any more, members come to rest, and share evenly.
    fn calm(&mut self) {
        self.lossy = 0;
        self.join();
        for _ in 0..40 {
            for index in 0..self.readers.len() {
                if self.readers[index].is_some() {
                    self.heartbeat(index);
                    self.flush(usize::MAX);
                    self.check();
                }
                if self.readers[index].is_some() {
                    self.reader(index).tells_all = true;
                    while self.reader(index).told.is_some() {
                        self.act(index);
                    }
                    self.flush(usize::MAX);
                    self.check();
                }
            }
            self.pass(3_000);
        }
        let (state, members) = self.described().expect("the group is there");
        assert_eq!(state, GroupState::Stable);
        let mut all = BTreeSet::new();
        for reader in self.readers.iter().flatten() {
            let (record, target) = &members[&reader.id];
            assert_eq!(record.state, MemberState::Stable, "{reader:?}");
            assert_eq!((&reader.owned, reader.epoch), (target, record.epoch), "{}", reader.id);
            all.extend(reader.owned.iter().copied());
        }
        assert_eq!(members.len(), self.readers.iter().flatten().count(), "who is gone is out");
        let subscribes = |topic: &Topic| {
            let name = topic.name.as_str();
            let by_name = |reader: &Reader| reader.topics.as_ref().is_some_and(|topics| topics.contains(name));
            let by_regex = |reader: &Reader| {
                reader.regex.as_ref().is_some_and(|regex| !regex.is_empty()) && (name.starts_with("x-") || name == "a")
            };
            self.readers.iter().flatten().any(|reader| by_name(reader) || by_regex(reader))
        };
        let wanted = self.world.topics.iter().filter(|(_, topic)| subscribes(topic));
        let wanted: BTreeSet<PartitionId> = wanted
            .flat_map(|(&topic, image)| (0..image.racks.len() as u32).map(move |index| PartitionId { topic, index }))
            .collect();
        assert_eq!(all, wanted, "every partition is read");
        self.check_even(&members);
    }

    fn check_even(&self, members: &Described) {
        let assignor = Assignor::default();
        assert_eq!(assignor, Assignor::Uniform);
        let same: BTreeSet<_> = members.values().map(|(record, _)| (&record.topics, &record.regex)).collect();
        let loads: BTreeSet<usize> = members.values().map(|(_, target)| target.len()).collect();
        if same.len() == 1 {
            assert!(loads.last().expect("somebody") - loads.first().expect("somebody") <= 1, "{loads:?}");
        }
    }
}

impl Reader {
    /// Gives everything up, and joins anew.
    fn abandon(&mut self) {
        self.owned.clear();
        self.positions.clear();
        self.told = None;
        self.epoch = JOIN_EPOCH;
        self.tells_all = true;
    }
}
