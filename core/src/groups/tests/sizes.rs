//! Rule Z5: whatever clients say, and however much is assigned to a member, no record grows beyond what the metadata store takes.
//! `World::absorb` looks at every record that any test makes; here clients say much.

use super::churn::Random;
use super::*;
use crate::records::groups::{RecordPart, encode_offsets};

const SEEDS: u64 = 4;
const EVENTS: usize = 50;
const TOPICS: usize = 700;

/// Bytes of a value, as the metadata store keeps it: a record is in an envelope with a version.
pub(super) fn size(record: &Record) -> usize {
    let json = match record {
        Record::Offsets(block) => return encode_offsets(block).len(),
        Record::Pending(block) => return block.encode().len(),
        Record::Group(group) => serde_json::to_vec(group),
        Record::Member(member) => serde_json::to_vec(member),
        Record::MemberPiece(piece) => serde_json::to_vec(piece),
        Record::Classic(piece) => serde_json::to_vec(piece),
    };
    json.expect("a record is JSON").len() + r#"{"v":1,"record":}"#.len()
}

fn name(topic: usize) -> String {
    format!("topic-with-a-name-of-some-length-{topic}")
}

fn large(topics: usize) -> World {
    let mut world = World::new(&[]);
    let names: Vec<String> = (0..topics).map(name).collect();
    world.put_topics(names.iter().map(|name| (name.as_str(), 3)));
    world
}

fn pieces(world: &World) -> usize {
    world.store.keys().filter(|key| matches!(key.part, RecordPart::MemberPiece { .. })).count()
}

#[test]
fn a_member_with_thousands_of_topics_is_kept_in_pieces_and_comes_back_whole() {
    let mut world = large(3_000);
    let all: BTreeSet<String> = (0..3_000).map(name).collect();
    let a = world.beat(Heartbeat { topics: Some(all), ..join("a", &[]) }).expect("it joins");
    let owned = a.assignment.expect("it is told");
    assert_eq!(owned.len(), 9_000);
    assert!(pieces(&world) > 5);
    let before = (world.store.clone(), world.describe("g"));
    world.reload(GroupLimits::default());
    assert_eq!((world.store.clone(), world.describe("g")), before, "it was at rest, and is");
    // Half of it moves to another, which is told by a pattern what is there.
    let by_pattern = Heartbeat { regex: Some("topic-.*".to_owned()), ..join("b", &[]) };
    world.beat(by_pattern).expect("it joins");
    let a = world.beat(owning("a", a.epoch, owned)).expect("a member");
    let kept = a.assignment.expect("it is told");
    world.beat(owning("a", a.epoch, kept.clone())).expect("a member");
    let b = world.beat(alive("b", 2)).expect("a member").assignment.expect("it is told");
    assert_eq!((kept.len(), b.len()), (4_500, 4_500));
    assert!(kept.is_disjoint(&b));
    // A few topics are one record again, and nothing is left of the pieces.
    for member in ["a", "b"] {
        world.beat(alive(member, LEAVE_EPOCH)).expect("it leaves");
        assert!(pieces(&world) > 0 || member == "b");
    }
    assert_eq!(pieces(&world), 0);
}

#[test]
fn a_member_that_needs_pieces_no_more_leaves_none() {
    let mut world = large(1_000);
    let a = world.beat(Heartbeat { topics: Some((0..1_000).map(name).collect()), ..join("a", &[]) }).expect("it joins");
    assert!(pieces(&world) > 1);
    let fewer = Heartbeat { topics: Some([name(1)].into()), ..owning("a", a.epoch, a.assignment.expect("it is told")) };
    let told = world.beat(fewer).expect("a member");
    let owned = told.assignment.expect("it is told");
    world.beat(owning("a", told.epoch, owned)).expect("it gave the others up");
    assert_eq!(pieces(&world), 0);
    let before = world.describe("g");
    world.reload(GroupLimits::default());
    assert_eq!(world.describe("g"), before);
}

/// A failover between any two changes finds the member as it was before them, or as it is after.
#[test]
fn pieces_that_were_cut_short_never_were() {
    let mut world = large(1_000);
    let a = world.beat(Heartbeat { topics: Some((0..999).map(name).collect()), ..join("a", &[]) }).expect("it joins");
    world.beat(owning("a", a.epoch, a.assignment.expect("it is told"))).expect("a member");
    let topics = |world: &mut World| match world.describe("g").members {
        Members::Consumer { members, .. } => members["a"].0.topics.len(),
        Members::Classic { .. } => panic!("a consumer group"),
    };
    let (before, saved) = (world.store.clone(), world.shard.clone());
    let more = Heartbeat { topics: Some((0..1_000).map(name).collect()), ..alive("a", a.epoch) };
    let token = world.token();
    let changes = world.shard.step(world.now, token, Request::Heartbeat(more)).changes;
    assert!(changes.len() > 5, "{}", changes.len());
    let head = changes.iter().position(|change| matches!(change.key.part, RecordPart::Member(_)));
    let head = head.expect("the member is written");
    for kept in 0..=changes.len() {
        world.shard = saved.clone();
        world.store = before.clone();
        apply(&mut world.store, changes[..kept].to_vec());
        world.reload(GroupLimits::default());
        let expected = if kept > head { 1_000 } else { 999 };
        assert_eq!(topics(&mut world), expected, "{kept} changes were kept");
        let versions: BTreeSet<u64> = world
            .store
            .keys()
            .filter_map(|key| match key.part {
                RecordPart::MemberPiece { version, .. } => Some(version),
                _ => None,
            })
            .collect();
        assert_eq!(versions.len(), 1, "those of one version are left");
    }
}

#[test]
fn what_no_record_can_hold_is_refused_before_it_changes_anything() {
    let mut world = World::new(&[("t", 1)]);
    let long: Arc<str> = "g".repeat(GROUP_NAME_BYTES_MAX + 1).as_str().into();
    let commit = Commit { group: long.clone(), epoch: -1, ..Commit::default() };
    for request in [
        Request::Heartbeat(Heartbeat { group: long.clone(), ..join("a", &["t"]) }),
        Request::Join(Join { group: long.clone(), ..joins("", "a") }),
        Request::Commit(commit),
        Request::Describe(long.clone()),
    ] {
        let refused = request.refused(ErrorCode::InvalidGroupId);
        assert_eq!(Some(world.ask(request)), refused);
    }
    let words = Some("w".repeat(WORDS_BYTES_MAX));
    let topics = Some(["\u{1}".repeat(250)].into());
    let many = (0..SUBSCRIPTION_BYTES_MAX / 8).map(|n| format!("t{n:07}")).collect();
    for heartbeat in [
        Heartbeat { rack: words, ..join("a", &["t"]) },
        Heartbeat { topics, ..join("a", &[]) },
        Heartbeat { topics: Some(many), ..join("a", &[]) },
    ] {
        assert_eq!(world.beat(heartbeat), Err(ErrorCode::InvalidRequest));
    }
    assert!(world.store.is_empty());
    world.beat(join("a", &["t"])).expect("it joins");
    let subscription = Subscription { version: 3, rack: Some("\u{1}".repeat(1_000)), ..Subscription::default() };
    let protocols = vec![protocol("range", &subscription)];
    let refused = world.send(Request::Join(Join { protocols, ..joins("", "b") }));
    assert_eq!(world.joined(refused), Err(ErrorCode::MessageTooLarge));
}

/// Members of both kinds that say as much as they may, of odd characters too, and own as much as there is.
#[test]
fn groups_of_any_size_make_no_record_that_the_store_refuses() {
    let (mut most, mut joined, mut went_on) = (0, 0, 0);
    for seed in 0..SEEDS {
        let run = std::panic::catch_unwind(|| {
            let mut large = Large { random: Random(seed), world: large(TOPICS), most: 0, joined: 0, went_on: 0 };
            (0..EVENTS).for_each(|_| large.event());
            large
        });
        let run = run.unwrap_or_else(|_| panic!("SEED={seed}"));
        most = most.max(run.most);
        joined += run.joined;
        went_on += run.went_on;
    }
    // Runs in which nothing is large prove nothing.
    assert!(most > 4 && joined > 12 && went_on > 12, "{most} pieces at most, {joined} joins, {went_on} heartbeats");
}

struct Large {
    random: Random,
    world: World,
    most: usize,
    joined: usize,
    went_on: usize,
}

impl Large {
    fn event(&mut self) {
        let member = format!("m{}", self.random.below(5));
        match self.random.below(100) {
            0..20 => self.consumer_joins(&member),
            20..40 => self.classic_joins(&member),
            40..65 => self.goes_on(&member),
            65..85 => self.commits(),
            85..90 => self.leaves(&member),
            90..95 => self.world.pass(20_000),
            _ => self.world.reload(GroupLimits::default()),
        }
        self.most = self.most.max(pieces(&self.world));
    }

    /// Text of up to so many bytes, some of which take six in JSON.
    fn text(&mut self, bytes_max: usize) -> String {
        let letter = ["x", "\u{1}", "\"", "é"][self.random.below(4)];
        letter.repeat(self.random.below(bytes_max / 2))
    }

    fn topics(&mut self) -> BTreeSet<String> {
        let (first, count) = (self.random.below(TOPICS), self.random.below(TOPICS));
        let mut topics: BTreeSet<String> = (first..first + count).map(|topic| name(topic % TOPICS)).collect();
        topics.insert(self.text(200));
        topics
    }

    fn consumer_joins(&mut self, member: &str) {
        let topics = Some(self.topics()).filter(|_| self.random.percent(70));
        let (rack, instance) = (self.text(800), self.text(800));
        let heartbeat = Heartbeat {
            regex: topics.is_none().then(|| "topic-.*[0-7]".to_owned()),
            topics,
            rack: Some(rack).filter(|rack| !rack.is_empty()),
            instance: Some(instance).filter(|instance| !instance.is_empty()),
            ..join(member, &[])
        };
        let joined = self.world.beat(heartbeat);
        self.joined += usize::from(joined.is_ok());
    }

    fn classic_joins(&mut self, member: &str) {
        let owned = self.topics().into_iter().map(|topic| (topic, (0..3).collect())).collect();
        let (topics, rack) = (self.topics(), Some(self.text(1_500)));
        let subscription = Subscription { version: 3, topics, owned, rack };
        let protocols = vec![protocol("range", &subscription)];
        let instance = Some(self.text(3_000)).filter(|instance| !instance.is_empty());
        self.world.send(Request::Join(Join { protocols, instance, ..joins("", member) }));
        self.world.pass(4_000);
    }

    /// A member gives up what it is to give up, and takes what it is given.
    fn goes_on(&mut self, member: &str) {
        let Answer::Describe(Ok(description)) = self.world.ask(Request::Describe("g".into())) else { return };
        match description.members {
            Members::Consumer { members, .. } => {
                let Some((record, _)) = members.get(member) else { return };
                let owned = record.assigned.keys().copied().collect();
                let beat = Heartbeat { instance: record.instance.clone(), ..owning(member, record.epoch, owned) };
                // Members that speak the classic protocol become of the other kind by it.
                let went_on = self.world.beat(beat);
                self.went_on += usize::from(went_on.is_ok());
            }
            Members::Classic { members, .. } => {
                let generation = description.epoch;
                let give = |id: &Arc<str>| (id.clone(), vec![7; CLASSIC_BYTES_MAX]);
                let assignments = members.keys().map(give).collect();
                let instance = members.get(member).and_then(|member| member.instance.clone());
                let who = ClassicHeartbeat { instance, ..who(member, generation) };
                self.world.sync(who, assignments);
            }
        }
    }

    fn commits(&mut self) {
        let topic = name(self.random.below(3));
        let metadata = self.text(6_000);
        let offsets = (0..3).map(|index| {
            (self.world.partition(&topic, index), CommitOffset { metadata: metadata.clone(), ..offset(1 << 60) })
        });
        let offsets = offsets.collect();
        self.world.ask(Request::Commit(Commit { group: "g".into(), epoch: -1, offsets, ..Commit::default() }));
    }

    fn leaves(&mut self, member: &str) {
        let _ = self.world.beat(alive(member, LEAVE_EPOCH));
        let leave = Leave { group: "g".into(), members: vec![(member.into(), None)] };
        self.world.ask(Request::Leave(leave));
    }
}
