//! Consumer groups: what members are told, and when.

use super::*;
use crate::records::groups::MemberState;

#[test]
fn a_lone_member_owns_everything_at_once() {
    let mut world = World::new(&[("t", 3)]);
    let beat = world.beat(join("a", &["t", "not-there"])).expect("it joins");
    assert_eq!(beat.assignment, Some(world.partitions("t", 0..3)));
    assert_eq!((beat.epoch, beat.heartbeat_interval_ms), (1, 3_000));
    assert_eq!(world.describe("g").listed.state, GroupState::Stable);
}

/// Rules S20 and O2: what moves is given on only after its owner said that it gave it up; what stays is never taken away.
#[test]
fn a_partition_moves_only_after_its_owner_gave_it_up() {
    let mut world = World::new(&[("t", 4)]);
    world.beat(join("a", &["t"])).expect("it joins");
    world.beat(owning("a", 1, world.partitions("t", 0..4))).expect("it owns all");
    // b joins and has to wait; it is told that it owns nothing yet.
    let b = world.beat(join("b", &["t"])).expect("it joins");
    assert_eq!((b.epoch, b.assignment), (2, Some(BTreeSet::new())));
    let a = world.beat(alive("a", 1)).expect("a member");
    assert_eq!((a.epoch, a.assignment), (2, Some(world.partitions("t", 0..2))), "it keeps what it keeps");
    assert_eq!(world.beat(alive("b", 2)).expect("a member").assignment, None, "nothing new");
    // a still owns one of them.
    let still = world.beat(owning("a", 2, world.partitions("t", [0, 1, 3]))).expect("a member");
    assert_eq!((still.epoch, still.assignment), (2, Some(world.partitions("t", 0..2))));
    assert_eq!(world.beat(alive("b", 2)).expect("a member").assignment, None, "nothing new");
    // a has given up both.
    let a = world.beat(owning("a", 2, world.partitions("t", 0..2))).expect("a member");
    assert_eq!(a.epoch, 2);
    let b = world.beat(alive("b", 2)).expect("a member");
    assert_eq!((b.epoch, b.assignment), (2, Some(world.partitions("t", 2..4))));
    assert_eq!(world.describe("g").listed.state, GroupState::Stable);
}

/// A member that does not know the topic yet hears of it until it says that it owns it.
#[test]
fn an_assignment_is_told_until_it_is_confirmed() {
    let mut world = World::new(&[("t", 2)]);
    world.beat(join("a", &["t"])).expect("it joins");
    let all = Some(world.partitions("t", 0..2));
    for owned in [None, Some(BTreeSet::new()), Some(world.partitions("t", [0]))] {
        let beat = Heartbeat { owned, ..alive("a", 1) };
        assert_eq!(world.beat(beat).expect("a member").assignment, all);
    }
    let confirmed = world.beat(owning("a", 1, world.partitions("t", 0..2))).expect("a member");
    assert_eq!(confirmed.assignment, None);
    assert_eq!(world.beat(alive("a", 1)).expect("a member").assignment, None);
}

#[test]
fn whoever_is_out_of_its_epoch_is_fenced() {
    let mut world = World::new(&[("t", 2)]);
    let all = world.partitions("t", 0..2);
    world.beat(join("a", &["t"])).expect("it joins");
    world.beat(owning("a", 1, all.clone())).expect("a member");
    world.put_topic("t", 3);
    let grown = world.beat(alive("a", 1)).expect("a member");
    assert_eq!((grown.epoch, grown.assignment), (2, Some(world.partitions("t", 0..3))));
    assert_eq!(world.beat(alive("a", 3)), Err(ErrorCode::FencedMemberEpoch));
    assert_eq!(world.beat(alive("a", 1)), Err(ErrorCode::FencedMemberEpoch), "it has to say what it owns");
    // The answer was lost: the member is told again, and keeps what it has.
    let again = world.beat(owning("a", 1, all)).expect("a member");
    assert_eq!((again.epoch, again.assignment), (2, Some(world.partitions("t", 0..3))));
    assert_eq!(world.beat(alive("b", 1)), Err(ErrorCode::UnknownMemberId));
    assert_eq!(world.beat(Heartbeat { group: "h".into(), ..alive("a", 1) }), Err(ErrorCode::UnknownMemberId));
}

/// Rule O2: what a member said before it heard of a revocation does not acknowledge it: it may be about to take up what it was given last.
#[test]
fn only_who_was_told_to_give_up_acknowledges() {
    let mut world = World::new(&[("t", 2)]);
    world.beat(join("a", &["t"])).expect("it joins");
    world.put_topic("t", 3);
    let told = world.beat(owning("a", 1, world.partitions("t", 0..2))).expect("a member");
    assert_eq!((told.epoch, told.assignment), (2, Some(world.partitions("t", 0..3))));
    world.beat(join("b", &["t"])).expect("it joins");
    // a has not taken partition 2 up yet, and is told that it is not to. That answer is lost.
    let told = world.beat(owning("a", 2, world.partitions("t", 0..2))).expect("a member");
    assert_eq!((told.epoch, told.assignment), (3, Some(world.partitions("t", 0..2))));
    let again = world.beat(owning("a", 2, world.partitions("t", 0..2))).expect("a retry");
    assert_eq!((again.epoch, again.assignment), (3, Some(world.partitions("t", 0..2))));
    // It took it up meanwhile, by the answer before.
    world.beat(owning("a", 2, world.partitions("t", 0..3))).expect("a retry");
    assert_eq!(world.beat(alive("b", 3)).expect("a member").assignment, None, "it belongs to a");
    world.beat(owning("a", 3, world.partitions("t", 0..2))).expect("it gave partition 2 up");
    assert_eq!(world.beat(alive("b", 3)).expect("a member").assignment, Some(world.partitions("t", [2])));
}

#[test]
fn a_member_that_starts_again_with_its_id_is_told_what_it_has() {
    let mut world = World::new(&[("t", 2)]);
    world.beat(join("a", &["t"])).expect("it joins");
    world.put_topic("t", 3);
    world.beat(owning("a", 1, world.partitions("t", 0..2))).expect("a member");
    let again = world.beat(join("a", &["t"])).expect("it joins anew");
    assert_eq!((again.epoch, again.assignment), (2, Some(world.partitions("t", 0..3))));
}

#[test]
fn a_silent_member_loses_its_partitions() {
    let mut world = World::new(&[("t", 2)]);
    world.beat(join("a", &["t"])).expect("it joins");
    world.beat(join("b", &["t"])).expect("it joins");
    world.pass(40_000);
    assert_eq!(world.beat(alive("b", 2)).expect("a member").assignment, None);
    world.pass(5_000);
    assert_eq!(world.beat(alive("a", 1)), Err(ErrorCode::UnknownMemberId));
    let b = world.beat(alive("b", 2)).expect("a member");
    assert_eq!((b.epoch, b.assignment), (3, Some(world.partitions("t", 0..2))));
}

#[test]
fn a_member_that_does_not_give_up_in_time_is_removed() {
    let mut world = World::new(&[("t", 2)]);
    let all = world.partitions("t", 0..2);
    world.beat(Heartbeat { rebalance_timeout_ms: Some(10_000), ..join("a", &["t"]) }).expect("it joins");
    world.beat(join("b", &["t"])).expect("it joins");
    world.beat(owning("a", 1, all.clone())).expect("it is told");
    for _ in 0..3 {
        world.pass(3_300);
        world.beat(owning("a", 2, all.clone())).expect("a member");
        world.beat(alive("b", 2)).expect("a member");
    }
    world.pass(100);
    assert_eq!(world.beat(owning("a", 2, all.clone())), Err(ErrorCode::UnknownMemberId));
    assert_eq!(world.beat(alive("b", 2)).expect("a member").assignment, Some(all));
}

#[test]
fn who_leaves_makes_room_at_once() {
    let mut world = World::new(&[("t", 2)]);
    world.beat(join("a", &["t"])).expect("it joins");
    world.beat(join("b", &["t"])).expect("it joins");
    let left = world.beat(alive("a", LEAVE_EPOCH)).expect("it leaves");
    assert_eq!((left.epoch, left.assignment), (LEAVE_EPOCH, None));
    assert_eq!(world.beat(alive("b", 2)).expect("a member").assignment, Some(world.partitions("t", 0..2)));
    assert_eq!(world.beat(alive("a", LEAVE_EPOCH)), Err(ErrorCode::UnknownMemberId));
    world.beat(alive("b", LEAVE_EPOCH)).expect("it leaves");
    assert_eq!(world.describe("g").listed.state, GroupState::Empty);
}

fn fixed(heartbeat: Heartbeat) -> Heartbeat {
    Heartbeat { instance: Some("i".to_owned()), ..heartbeat }
}

/// KIP-345: a static member that goes and comes back within its session moves nothing.
#[test]
fn a_static_member_comes_back_to_its_partitions() {
    let mut world = World::new(&[("t", 4)]);
    world.beat(fixed(join("a1", &["t"]))).expect("it joins");
    world.beat(join("b", &["t"])).expect("it joins");
    world.beat(fixed(owning("a1", 1, world.partitions("t", 0..4)))).expect("a member");
    world.beat(fixed(owning("a1", 2, world.partitions("t", 0..2)))).expect("a member");
    world.beat(alive("b", 2)).expect("a member");
    assert_eq!(world.beat(fixed(join("a2", &["t"]))), Err(ErrorCode::UnreleasedInstanceId));
    world.beat(fixed(alive("a1", LEAVE_STATIC_EPOCH))).expect("it leaves for a while");
    assert_eq!(world.describe("g").listed.state, GroupState::Stable);
    assert_eq!(world.beat(alive("b", 2)).expect("a member").epoch, 2, "nothing moves");
    let back = world.beat(fixed(join("a2", &["t"]))).expect("it is back");
    assert_eq!((back.epoch, back.assignment), (2, Some(world.partitions("t", 0..2))));
    assert_eq!(world.beat(fixed(alive("a1", 2))), Err(ErrorCode::FencedInstanceId));
    assert_eq!(world.beat(fixed(alive("a1", LEAVE_EPOCH))), Err(ErrorCode::FencedInstanceId));
    assert_eq!(world.beat(alive("b", 2)).expect("a member").epoch, 2, "nothing moves");
    // Gone for longer than its session, it is gone.
    world.beat(fixed(alive("a2", LEAVE_STATIC_EPOCH))).expect("it leaves for a while");
    world.pass(44_000);
    world.beat(alive("b", 2)).expect("a member");
    world.pass(2_000);
    let b = world.beat(alive("b", 2)).expect("a member");
    assert_eq!((b.epoch, b.assignment), (3, Some(world.partitions("t", 0..4))));
    assert_eq!(world.beat(fixed(alive("a2", 2))), Err(ErrorCode::UnknownMemberId));
}

/// Groups follow the topics, whether they subscribe by name or by expression.
#[test]
fn groups_follow_their_topics() {
    let mut world = World::new(&[("ev-a", 1), ("other", 1)]);
    let regex = |heartbeat| Heartbeat { regex: Some("ev-.*".to_owned()), topics: None, ..heartbeat };
    let a = world.beat(regex(join("a", &[]))).expect("it joins");
    assert_eq!(a.assignment, Some(world.partitions("ev-a", [0])));
    world.put_topic("unrelated", 1);
    assert_eq!(world.beat(alive("a", 1)).expect("a member").epoch, 1, "what it does not read does not matter");
    world.put_topic("ev-b", 2);
    let mut both = world.partitions("ev-a", [0]);
    both.extend(world.partitions("ev-b", 0..2));
    let a = world.beat(alive("a", 1)).expect("a member");
    assert_eq!((a.epoch, a.assignment), (2, Some(both.clone())));
    world.beat(owning("a", 2, both)).expect("a member");
    // Deleted, and created again under its name: another topic.
    let old = world.id("ev-a");
    world.drop_topic(old);
    world.put_topic("ev-a", 1);
    assert_ne!(world.id("ev-a"), old);
    assert_eq!(world.beat(alive("a", 2)).expect("a member").epoch, 3);
    let a = world.beat(owning("a", 3, world.partitions("ev-b", 0..2))).expect("a member");
    let mut both = world.partitions("ev-a", [0]);
    both.extend(world.partitions("ev-b", 0..2));
    assert_eq!((a.epoch, a.assignment), (3, Some(both)));
    // No expression any more, but a name.
    let named = Heartbeat { regex: Some(String::new()), topics: Some(["other".to_owned()].into()), ..alive("a", 3) };
    assert_eq!(world.beat(named).expect("a member").assignment, Some(BTreeSet::new()));
    let a = world.beat(owning("a", 4, BTreeSet::new())).expect("a member");
    assert_eq!((a.epoch, a.assignment), (4, Some(world.partitions("other", [0]))));
}

#[test]
fn requests_that_contradict_themselves_are_refused() {
    let mut world = World::new(&[("t", 1)]);
    let owned = world.partitions("t", [0]);
    let cases = [
        (Heartbeat { group: "".into(), ..join("a", &["t"]) }, ErrorCode::InvalidRequest),
        (join("", &["t"]), ErrorCode::InvalidRequest),
        (Heartbeat { rebalance_timeout_ms: None, ..join("a", &["t"]) }, ErrorCode::InvalidRequest),
        (Heartbeat { topics: None, ..join("a", &[]) }, ErrorCode::InvalidRequest),
        (Heartbeat { owned: Some(owned), ..join("a", &["t"]) }, ErrorCode::InvalidRequest),
        (Heartbeat { instance: Some(String::new()), ..join("a", &["t"]) }, ErrorCode::InvalidRequest),
        (alive("a", LEAVE_STATIC_EPOCH), ErrorCode::InvalidRequest),
        (alive("a", -3), ErrorCode::InvalidRequest),
        (Heartbeat { assignor: Some("best".to_owned()), ..join("a", &["t"]) }, ErrorCode::UnsupportedAssignor),
        (Heartbeat { regex: Some("(".to_owned()), ..join("a", &["t"]) }, ErrorCode::InvalidRegularExpression),
    ];
    for (request, code) in cases {
        assert_eq!(world.beat(request.clone()), Err(code), "{request:?}");
        assert_eq!(world.ask(Request::List), Answer::List(Vec::new()), "nothing is left of {request:?}");
    }
}

#[test]
fn a_group_takes_only_so_many() {
    let mut world = World::with(GroupLimits { members_max: 2, ..GroupLimits::default() }, &[("t", 1)]);
    for member in ["a", "b"] {
        world.beat(join(member, &["t"])).expect("it joins");
    }
    assert_eq!(world.beat(join("c", &["t"])), Err(ErrorCode::GroupMaxSizeReached));
    world.beat(join("a", &["t"])).expect("it is one already");
}

#[test]
fn most_members_choose_the_assignor() {
    let mut world = World::new(&[("t", 4), ("u", 4)]);
    let by =
        |assignor: &str, member: &str| Heartbeat { assignor: Some(assignor.to_owned()), ..join(member, &["t", "u"]) };
    let chosen = |world: &mut World| match world.describe("g").members {
        Members::Consumer { assignor, .. } => assignor,
        Members::Classic { .. } => panic!("not a classic group"),
    };
    world.beat(join("a", &["t", "u"])).expect("it joins");
    assert_eq!(chosen(&mut world), "uniform");
    world.beat(by("range", "b")).expect("it joins");
    assert_eq!(chosen(&mut world), "range");
    world.beat(by("uniform", "c")).expect("it joins");
    assert_eq!(chosen(&mut world), "uniform");
}

#[test]
fn a_description_tells_where_members_stand() {
    let mut world = World::new(&[("t", 2)]);
    let all = world.partitions("t", 0..2);
    world.beat(join("a", &["t"])).expect("it joins");
    world.beat(join("b", &["t"])).expect("it joins");
    world.beat(owning("a", 1, all)).expect("a member");
    let described = world.describe("g");
    assert_eq!((described.epoch, described.listed.state), (2, GroupState::Reconciling));
    let Members::Consumer { target_epoch: 2, members, .. } = described.members else { panic!("{described:?}") };
    let (a, target) = &members["a"];
    assert_eq!((a.state, a.epoch, target), (MemberState::Unrevoked, 2, &world.partitions("t", [0])));
    let (b, target) = &members["b"];
    assert_eq!((b.state, b.epoch, target), (MemberState::Unreleased, 2, &world.partitions("t", [1])));
    let unknown = world.ask(Request::Describe("h".into()));
    assert_eq!(unknown, Answer::Describe(Err(ErrorCode::GroupIdNotFound)));
}

/// What is set on a group holds in it and in no other, from the next heartbeat on, and for whoever loads the shard.
#[test]
fn a_group_goes_by_the_session_and_the_interval_that_are_set_on_it() {
    let mut world = World::new(&[("t", 1)]);
    let settings = [("consumer.session.timeout.ms", "60000"), ("consumer.heartbeat.interval.ms", "10000")];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let set = Arc::new(BTreeMap::from([(Arc::from("g"), GroupOverrides::kept(&settings))]));
    let told = |beat: Beat| (beat.session_timeout_ms, beat.heartbeat_interval_ms);
    let other = |member: &str| Heartbeat { group: "other".into(), ..join(member, &["t"]) };

    assert_eq!(told(world.beat(join("a", &["t"])).expect("it joins")), (45_000, 3_000));
    world.shard.set_overrides(Arc::clone(&set));
    assert_eq!(told(world.beat(alive("a", 1)).expect("a member")), (60_000, 10_000), "it is told at once");
    assert_eq!(told(world.beat(other("b")).expect("it joins")), (45_000, 3_000), "another group");
    world.pass(59_999);
    assert_ne!(world.describe("g").listed.state, GroupState::Empty, "it may be silent for longer");
    assert_eq!(world.describe("other").listed.state, GroupState::Empty, "that one may not");

    // Another owner of the shard gives it as long.
    let records = world.store.clone();
    let rules = GroupRules { overrides: set, ..GroupRules::default() };
    let (shard, step) = Shard::load(world.now, rules, world.image(), records).expect("nothing is misplaced");
    world.shard = shard;
    world.absorb(step);
    world.pass(59_999);
    assert_ne!(world.describe("g").listed.state, GroupState::Empty);
    world.shard.set_overrides(Arc::default());
    let left = world.beat(Heartbeat { epoch: LEAVE_EPOCH, ..alive("a", 1) }).expect("a member");
    assert_eq!(told(left), (45_000, 3_000), "as before");
}
