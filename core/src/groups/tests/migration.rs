//! On-line migration: members of both protocols in one group, and groups that become of the other kind (KIP-848).

use super::*;
use crate::groups::embedded::{read_assignment, write_assignment};

fn named(partitions: impl IntoIterator<Item = u32>) -> Vec<u8> {
    write_assignment(&[("t".to_owned(), partitions.into_iter().collect())].into(), 1)
}

fn owned(bytes: &[u8]) -> BTreeSet<u32> {
    read_assignment(bytes).expect("an assignment").remove("t").unwrap_or_default()
}

/// A member that joins again, cooperatively: it keeps what it owns meanwhile.
fn joins_owning(member: &str, partitions: impl IntoIterator<Item = u32>) -> Join {
    let subscription = Subscription {
        version: 1,
        topics: ["t".to_owned()].into(),
        owned: [("t".to_owned(), partitions.into_iter().collect())].into(),
        ..Subscription::default()
    };
    Join { protocols: vec![protocol("range", &subscription)], ..joins(member, "") }
}

/// A classic group of a and b, each with two of four partitions.
fn classic_pair(world: &mut World) {
    let a = world.send(Request::Join(joins("", "a")));
    let b = world.send(Request::Join(joins("", "b")));
    world.pass(9_000);
    world.joined(a).expect("it joined");
    world.joined(b).expect("it joined");
    let b = world.sync(who("b", 1), BTreeMap::new());
    let gifts = [("a".into(), named([0, 1])), ("b".into(), named([2, 3]))].into();
    let a = world.sync(who("a", 1), gifts);
    assert_eq!((world.synced(a), world.synced(b)), (Ok(named([0, 1])), Ok(named([2, 3]))));
}

fn rejoin(world: &mut World, join: Join) -> (i32, BTreeSet<u32>) {
    let member = join.member.clone();
    let token = world.send(Request::Join(join));
    let joined = world.joined(token).expect("nobody is waited for");
    assert_eq!((joined.leader, joined.members.len()), (None, 0), "the coordinator assigns");
    let sync = world.sync(who(&member, joined.generation), BTreeMap::new());
    (joined.generation, owned(&world.synced(sync).expect("it is a member")))
}

/// Rule S20: a classic group becomes a consumer group while it is read from; nothing is read by two, and nothing stops that stays.
#[test]
fn a_live_group_is_upgraded_and_downgraded() {
    let mut world = World::new(&[("t", 4)]);
    classic_pair(&mut world);
    let c = world.beat(join("c", &["t"])).expect("it joins");
    assert_eq!((c.epoch, c.assignment), (2, Some(BTreeSet::new())));
    assert!(world.describe("g").listed.consumer);
    // The classic members are told by their heartbeats, and give up what moves.
    assert_eq!(world.lives(who("b", 1)), Err(ErrorCode::RebalanceInProgress));
    let (b, kept) = rejoin(&mut world, joins_owning("b", [2, 3]));
    assert_eq!((b, kept), (2, [2].into()), "it is to give 3 up");
    let still = world.beat(alive("c", 2)).expect("a member");
    assert_eq!(still.assignment, None, "3 is still read by b");
    assert_eq!(world.lives(who("b", 2)), Err(ErrorCode::RebalanceInProgress));
    assert_eq!(rejoin(&mut world, joins_owning("b", [2])), (2, [2].into()));
    let (a, kept) = rejoin(&mut world, joins_owning("a", [0, 1]));
    assert_eq!((a, kept), (2, [0, 1].into()), "nothing of it moves");
    assert_eq!((world.lives(who("a", 2)), world.lives(who("b", 2))), (Ok(()), Ok(())));
    let c = world.beat(alive("c", 2)).expect("a member");
    assert_eq!(c.assignment, Some(world.partitions("t", [3])));
    assert_eq!(world.describe("g").listed.state, GroupState::Stable);
    world.reload(GroupLimits::default());
    assert_eq!(world.describe("g").listed.state, GroupState::Stable);
    assert_eq!(world.lives(who("a", 2)), Ok(()));
    // c goes; the classic members are among themselves, and one of them assigns again.
    world.beat(alive("c", LEAVE_EPOCH)).expect("it leaves");
    assert!(!world.describe("g").listed.consumer);
    assert_eq!(world.lives(who("a", 3)), Err(ErrorCode::RebalanceInProgress));
    assert_eq!(world.lives(who("a", 2)), Err(ErrorCode::IllegalGeneration), "which makes it join anew");
    let a = world.send(Request::Join(joins("a", "")));
    let b = world.send(Request::Join(joins("b", "")));
    let joined = world.joined(a).expect("both are there");
    assert_eq!((joined.generation, joined.members.len()), (4, 2));
    world.joined(b).expect("both are there");
    world.reload(GroupLimits::default());
    assert!(!world.describe("g").listed.consumer);
}

/// A group of a, which owned both partitions and has been given the first, and b, which waits for the second.
fn cooperative_pair(world: &mut World) {
    let a = world.send(Request::Join(Join { fresh: "a".into(), ..joins_owning("", []) }));
    world.pass(9_000);
    world.joined(a).expect("it joined");
    let a = world.sync(who("a", 1), [("a".into(), named([0, 1]))].into());
    assert_eq!(world.synced(a), Ok(named([0, 1])));
    let b = world.send(Request::Join(Join { fresh: "b".into(), ..joins_owning("", []) }));
    let a = world.send(Request::Join(joins_owning("a", [0, 1])));
    world.joined(a).expect("it joined");
    world.joined(b).expect("it joined");
}

/// Rules O2 and S20: what its leader took from a cooperative member is read by it until it has heard of that and joined again.
#[test]
fn what_a_cooperative_member_has_still_to_give_up_goes_to_nobody_when_its_group_is_upgraded() {
    let mut world = World::new(&[("t", 2)]);
    cooperative_pair(&mut world);
    let b = world.sync(who("b", 2), BTreeMap::new());
    let a = world.sync(who("a", 2), [("a".into(), named([0])), ("b".into(), named([]))].into());
    assert_eq!((world.synced(a), world.synced(b)), (Ok(named([0])), Ok(named([]))));
    let c = world.beat(join("c", &["t"])).expect("it joins");
    assert_eq!(c.assignment, Some(BTreeSet::new()), "a may still read the second");
    assert_eq!(rejoin(&mut world, joins_owning("b", [])).1, BTreeSet::new());
    world.reload(GroupLimits::default());
    let c = world.beat(alive("c", c.epoch)).expect("a member");
    assert_eq!(c.assignment.unwrap_or_default(), BTreeSet::new());
    assert_eq!(world.lives(who("a", 2)), Err(ErrorCode::RebalanceInProgress), "it is to join again");
    let (a, kept) = rejoin(&mut world, joins_owning("a", [0]));
    assert_eq!(kept, [0].into());
    assert_eq!(world.lives(who("a", a)), Ok(()));
    let c = world.beat(alive("c", c.epoch)).expect("a member").assignment;
    let (_, b) = rejoin(&mut world, joins_owning("b", []));
    assert_eq!(c.unwrap_or_default().len() + b.len(), 1, "the second has an owner again");
}

/// The same, where the rebalance that would have told it began anew.
#[test]
fn a_cooperative_member_without_an_assignment_goes_on_with_what_it_owned_when_its_group_is_upgraded() {
    let mut world = World::new(&[("t", 2)]);
    cooperative_pair(&mut world);
    // Another joins before the leader has assigned anything.
    world.send(Request::Join(Join { fresh: "d".into(), ..joins_owning("", []) }));
    let c = world.beat(join("c", &["t"])).expect("it joins");
    assert_eq!(c.assignment, Some(BTreeSet::new()), "a reads both");
    let (a, kept) = rejoin(&mut world, joins_owning("a", [0, 1]));
    assert!(kept.len() <= 1, "{kept:?}: it hears what it is to give up");
    assert_eq!(world.beat(alive("c", c.epoch)).expect("a member").assignment.unwrap_or_default(), BTreeSet::new());
    assert_eq!(world.lives(who("a", a)), Err(ErrorCode::RebalanceInProgress));
    rejoin(&mut world, joins_owning("a", kept.clone()));
    let owned: usize = [world.beat(alive("c", c.epoch)).expect("a member").assignment.map_or(0, |owned| owned.len())]
        .into_iter()
        .chain([rejoin(&mut world, joins_owning("b", [])).1.len(), kept.len()])
        .sum();
    assert_eq!(owned, 2);
}

/// A classic member that stops everything before it joins gets at once what it gets.
#[test]
fn an_eager_member_gives_everything_up_by_joining() {
    let mut world = World::new(&[("t", 4)]);
    classic_pair(&mut world);
    world.beat(join("c", &["t"])).expect("it joins");
    assert_eq!(rejoin(&mut world, joins_owning("b", [])), (2, [2].into()));
    assert_eq!(world.beat(alive("c", 2)).expect("a member").assignment, Some(world.partitions("t", [3])));
}

#[test]
fn a_classic_member_that_does_not_join_again_is_removed() {
    let mut world = World::new(&[("t", 4)]);
    classic_pair(&mut world);
    world.beat(join("c", &["t"])).expect("it joins");
    for _ in 0..5 {
        assert_eq!(world.lives(who("b", 1)), Err(ErrorCode::RebalanceInProgress));
        rejoin(&mut world, joins_owning("a", [0, 1]));
        world.beat(alive("c", 2)).expect("a member");
        world.pass(5_990);
    }
    world.pass(100);
    assert_eq!(world.lives(who("b", 1)), Err(ErrorCode::UnknownMemberId), "its time to join was up");
    let c = world.beat(alive("c", 2)).expect("a member");
    assert_eq!(c.assignment, Some(world.partitions("t", 2..4)));
}

/// Rule S20: it was removed, does not know, and reads on what is another's by now.
#[test]
fn a_classic_member_that_nobody_knows_and_that_owns_something_has_to_join_anew() {
    let mut world = World::new(&[("t", 2)]);
    world.beat(join("c", &["t"])).expect("it joins");
    let token = world.send(Request::Join(joins_owning("gone", [0])));
    assert_eq!(world.joined(token), Err(ErrorCode::UnknownMemberId));
    let token = world.send(Request::Join(Join { fresh: "again".into(), ..joins_owning("", []) }));
    assert_eq!(&*world.joined(token).expect("it owns nothing").member, "again");
}

/// A group of c, which speaks the other protocol, and a, which was given partition 1 of two and has been silent until it was removed.
fn evicted(world: &mut World) {
    world.beat(join("c", &["t"])).expect("it joins");
    world.beat(owning("c", 1, world.partitions("t", 0..2))).expect("a member");
    rejoin(world, joins_owning("a", []));
    world.beat(alive("c", 1)).expect("a member");
    world.beat(owning("c", 2, world.partitions("t", [0]))).expect("it gave 1 up");
    assert_eq!(rejoin(world, joins_owning("a", [])), (2, [1].into()));
    world.pass(10_100);
    assert_eq!(world.lives(who("a", 2)), Err(ErrorCode::UnknownMemberId));
}

/// A client that was removed and keeps saying what it owned: it is refused, and then given an id to come back with.
fn joins_bringing(world: &mut World, id: &str, partitions: &[u32]) {
    let brings = |member: &str| Join {
        fresh: id.into(),
        known_id_required: true,
        ..joins_owning(member, partitions.iter().copied())
    };
    let refused = world.send(Request::Join(brings("a")));
    assert_eq!(world.joined(refused), Err(ErrorCode::UnknownMemberId), "most drop everything now");
    let asked = world.send(Request::Join(brings("")));
    assert_eq!(world.joined(asked), Err(ErrorCode::MemberIdRequired));
}

/// Rules O2 and S20: nobody gets what it may read on, and it goes on nowhere before it has dropped that.
#[test]
fn a_removed_member_that_brings_what_it_owned_is_told_to_drop_it_and_goes_on() {
    let mut world = World::new(&[("t", 2)]);
    evicted(&mut world);
    joins_bringing(&mut world, "b", &[1]);
    let (generation, kept) = rejoin(&mut world, joins_owning("b", [1]));
    assert_eq!(kept, [].into(), "it has to drop 1");
    let c = world.beat(alive("c", 2)).expect("a member");
    assert_eq!(c.assignment.unwrap_or_default(), world.partitions("t", [0]), "b may still read 1");
    world.reload(GroupLimits::default());
    let c = world.beat(alive("c", c.epoch)).expect("a member");
    assert_eq!(c.assignment.unwrap_or_default(), world.partitions("t", [0]), "so it is on record");
    assert_eq!(world.lives(who("b", generation)), Err(ErrorCode::RebalanceInProgress));
    let (generation, kept) = rejoin(&mut world, joins_owning("b", []));
    assert_eq!((kept, world.lives(who("b", generation))), ([1].into(), Ok(())), "and from where the group is");
    world.beat(owning("c", c.epoch, world.partitions("t", [0]))).expect("a member");
    assert_eq!(world.describe("g").listed.state, GroupState::Stable);
}

/// Rule S20: what it brings is another's by now.
#[test]
fn a_removed_member_does_not_get_back_what_another_has_by_now() {
    let mut world = World::new(&[("t", 2)]);
    evicted(&mut world);
    let c = world.beat(alive("c", 2)).expect("a member");
    assert_eq!(c.assignment, Some(world.partitions("t", 0..2)));
    world.beat(owning("c", c.epoch, world.partitions("t", 0..2))).expect("a member");
    joins_bringing(&mut world, "b", &[0, 1]);
    let (_, kept) = rejoin(&mut world, joins_owning("b", [0, 1]));
    assert_eq!(kept, [].into());
    // It has not heard of that, and c gives one up meanwhile.
    let c = world.beat(alive("c", c.epoch)).expect("a member");
    let left = c.assignment.expect("it is told");
    assert_eq!(left.len(), 1, "b is to have the other one");
    world.beat(owning("c", c.epoch, left.clone())).expect("a member");
    let (_, kept) = rejoin(&mut world, joins_owning("b", [0, 1]));
    assert_eq!(kept, [].into(), "c has read it since b has");
    let (generation, kept) = rejoin(&mut world, joins_owning("b", []));
    assert_eq!(kept.len(), 1);
    assert!(world.partitions("t", kept).is_disjoint(&left));
    assert_eq!(world.lives(who("b", generation)), Ok(()));
}

#[test]
fn an_id_to_come_back_with_is_promised_for_a_session() {
    let mut world = World::new(&[("t", 2)]);
    evicted(&mut world);
    joins_bringing(&mut world, "b", &[1]);
    world.pass(10_100);
    let late = world.send(Request::Join(joins_owning("b", [1])));
    assert_eq!(world.joined(late), Err(ErrorCode::UnknownMemberId));
    // Nor does another coordinator know of it; from the beginning it comes in.
    joins_bringing(&mut world, "d", &[1]);
    world.reload(GroupLimits::default());
    let unknown = world.send(Request::Join(joins_owning("d", [1])));
    assert_eq!(world.joined(unknown), Err(ErrorCode::UnknownMemberId));
    joins_bringing(&mut world, "e", &[1]);
    assert_eq!(rejoin(&mut world, joins_owning("e", [1])).1, [].into());
}

#[test]
fn a_classic_member_of_a_consumer_group_follows_its_topics() {
    let mut world = World::new(&[("t", 2)]);
    world.beat(join("c", &["t"])).expect("it joins");
    world.beat(owning("c", 1, world.partitions("t", 0..2))).expect("a member");
    let known = Join { known_id_required: true, ..joins("", "a") };
    let token = world.send(Request::Join(known));
    assert_eq!(world.joined(token), Err(ErrorCode::MemberIdRequired));
    let (generation, owned) = rejoin(&mut world, joins_owning("a", []));
    assert_eq!((generation, owned), (2, [].into()));
    assert_eq!(world.lives(who("a", 2)), Ok(()), "it waits for c");
    world.beat(alive("c", 1)).expect("a member");
    world.beat(owning("c", 2, world.partitions("t", [0]))).expect("it gave 1 up");
    assert_eq!(world.lives(who("a", 2)), Err(ErrorCode::RebalanceInProgress), "there is something to fetch");
    assert_eq!(rejoin(&mut world, joins_owning("a", [])), (2, [1].into()));
    world.put_topic("t", 4);
    assert_eq!(world.lives(who("a", 2)), Err(ErrorCode::RebalanceInProgress), "nobody else has to notice first");
    let (generation, owned) = rejoin(&mut world, joins_owning("a", [1]));
    assert_eq!((generation, owned.len()), (3, 2));
    // It leaves as classic members do.
    assert_eq!(world.leave(&[("c", None), ("a", None)]), [Err(ErrorCode::UnknownMemberId), Ok(())]);
    assert_eq!(world.beat(alive("c", 2)).expect("a member").assignment, Some(world.partitions("t", 0..4)));
}

#[test]
fn what_a_classic_member_may_not_is_refused() {
    let mut world = World::new(&[("t", 2)]);
    world.beat(join("c", &["t"])).expect("it joins");
    let other = world.send(Request::Join(Join { protocol_type: "connect".to_owned(), ..joins("", "a") }));
    assert_eq!(world.joined(other), Err(ErrorCode::InconsistentGroupProtocol));
    let odd = vec![Protocol { name: "range".to_owned(), metadata: vec![0] }];
    let odd = world.send(Request::Join(Join { protocols: odd, ..joins("", "a") }));
    assert_eq!(world.joined(odd), Err(ErrorCode::InconsistentGroupProtocol));
    assert_eq!(world.lives(who("c", 1)), Err(ErrorCode::UnknownMemberId), "it speaks the other protocol");
    let (generation, _) = rejoin(&mut world, joins_owning("a", []));
    assert_eq!(world.lives(who("a", generation - 1)), Err(ErrorCode::IllegalGeneration));
    let offsets = vec![(world.partition("t", 0), offset(1))];
    let commit =
        |epoch| Commit { group: "g".into(), member: "a".into(), epoch, offsets: offsets.clone(), ..Commit::default() };
    let answer = world.ask(Request::Commit(commit(generation - 1)));
    assert_eq!(answer, Answer::Commit(Err(ErrorCode::IllegalGeneration)));
    assert_eq!(world.ask(Request::Commit(commit(generation))), Answer::Commit(Ok(vec![Ok(())])));
}

#[test]
fn groups_whose_members_are_no_consumers_stay_classic() {
    let mut world = World::new(&[("t", 2)]);
    let token = world.send(Request::Join(Join { protocol_type: "connect".to_owned(), ..joins("", "a") }));
    assert_eq!(world.beat(join("c", &["t"])), Err(ErrorCode::GroupIdNotFound));
    world.pass(9_000);
    assert_eq!(world.joined(token).expect("nobody disturbed it").generation, 1);
    assert_eq!(world.beat(join("c", &["t"])), Err(ErrorCode::GroupIdNotFound));
    assert_eq!(world.leave(&[("a", None)]), [Ok(())]);
    world.beat(join("c", &["t"])).expect("the group is empty");
}

/// Nobody waits for the syncs of a member that speaks the other protocol by now.
#[test]
fn a_member_changes_its_protocol_and_keeps_its_id() {
    let mut world = World::new(&[("t", 2)]);
    world.beat(join("c", &["t"])).expect("it joins");
    let token = world.send(Request::Join(joins_owning("a", [])));
    let generation = world.joined(token).expect("nobody is waited for").generation;
    let mut epoch = world.beat(join("a", &["t"])).expect("it is a member").epoch;
    assert_eq!(epoch, generation);
    world.beat(alive("c", 1)).expect("a member");
    world.beat(owning("c", 2, world.partitions("t", [0]))).expect("it gave 1 up");
    for _ in 0..3 {
        world.pass(20_000);
        epoch = world.beat(alive("a", epoch)).expect("a member").epoch;
        world.beat(alive("c", 2)).expect("a member");
    }
    assert_eq!(world.lives(who("a", epoch)), Err(ErrorCode::UnknownMemberId), "as a classic member");
    assert_eq!(world.describe("g").listed.state, GroupState::Stable);
}

#[test]
fn a_full_group_stays_what_it_is() {
    let mut world = World::with(GroupLimits { members_max: 2, ..GroupLimits::default() }, &[("t", 4)]);
    classic_pair(&mut world);
    assert_eq!(world.beat(join("c", &["t"])), Err(ErrorCode::GroupMaxSizeReached));
    assert_eq!((world.lives(who("a", 1)), world.lives(who("b", 1))), (Ok(()), Ok(())), "nobody noticed");
}

/// Offsets outlive what the group is.
#[test]
fn an_empty_group_becomes_of_the_kind_of_whoever_joins() {
    let mut world = World::new(&[("t", 2)]);
    let fetch = Request::Fetch(Fetch { group: "g".into(), ..Fetch::default() });
    let offsets = vec![(world.partition("t", 0), offset(5))];
    let commit = Commit { group: "g".into(), epoch: -1, offsets, ..Commit::default() };
    assert_eq!(world.ask(Request::Commit(commit)), Answer::Commit(Ok(vec![Ok(())])));
    let before = world.ask(fetch.clone());
    let mut epochs = Vec::new();
    for _ in 0..2 {
        world.beat(join("c", &["t"])).expect("it joins");
        world.beat(alive("c", LEAVE_EPOCH)).expect("it leaves");
        epochs.push(world.describe("g").epoch);
        let a = world.send(Request::Join(joins("", "a")));
        world.pass(9_000);
        world.joined(a).expect("it joined");
        world.sync(who("a", world.shard.describe(&"g".into()).expect("a group").epoch), BTreeMap::new());
        assert_eq!(world.leave(&[("a", None)]), [Ok(())]);
        epochs.push(world.describe("g").epoch);
        world.reload(GroupLimits::default());
    }
    assert!(epochs.is_sorted_by(|a, b| a < b), "{epochs:?}");
    assert_eq!(world.ask(fetch), before);
}

/// A static member that comes back by the classic protocol makes the group a classic one, if it was the last of the others.
#[test]
fn a_static_member_changes_its_protocol() {
    let mut world = World::new(&[("t", 2)]);
    let fixed = |heartbeat| Heartbeat { instance: Some("i".to_owned()), ..heartbeat };
    world.beat(fixed(join("c1", &["t"]))).expect("it joins");
    let classic = Join { instance: Some("i".to_owned()), ..joins("", "c2") };
    let token = world.send(Request::Join(classic));
    world.joined(token).expect("it takes over");
    assert!(!world.describe("g").listed.consumer);
    assert_eq!(
        world.lives(ClassicHeartbeat { instance: Some("i".to_owned()), ..who("c2", 1) }),
        Err(ErrorCode::RebalanceInProgress)
    );
    let again = world.send(Request::Join(Join { instance: Some("i".to_owned()), ..joins("c2", "") }));
    let joined = world.joined(again).expect("it is alone");
    let who = ClassicHeartbeat { instance: Some("i".to_owned()), ..who("c2", joined.generation) };
    let sync = world.sync(who, [("c2".into(), named([0, 1]))].into());
    assert_eq!(world.synced(sync), Ok(named([0, 1])));
    // And back: the new process owns what the old one did.
    let back = world.beat(fixed(join("c3", &["t"]))).expect("it takes over");
    assert_eq!(back.assignment, Some(world.partitions("t", 0..2)));
    assert!(world.describe("g").listed.consumer);
}
