//! Classic groups: join, sync, heartbeat, leave, and who is waited for how long.

use super::*;
use crate::groups::{CLASSIC_BYTES_MAX, TEXT_BYTES_MAX};
use crate::records::groups::RecordPart;

/// Two members, a that leads and b, in generation 1, each with what its name says.
fn pair(world: &mut World) {
    let a = world.send(Request::Join(joins("", "a")));
    let b = world.send(Request::Join(joins("", "b")));
    world.pass(9_000);
    assert_eq!(world.joined(a).expect("it joined").generation, 1);
    assert_eq!(world.joined(b).expect("it joined").leader, Some("a".into()));
    let b = world.sync(who("b", 1), BTreeMap::new());
    let a = world.sync(who("a", 1), gives([("a", "for a"), ("b", "for b")]));
    assert_eq!((world.synced(a), world.synced(b)), (Ok(b"for a".to_vec()), Ok(b"for b".to_vec())));
}

fn state(world: &mut World) -> GroupState {
    world.describe("g").listed.state
}

#[test]
fn the_leader_assigns_and_all_are_told() {
    let mut world = World::new(&[("t", 2)]);
    let a = world.send(Request::Join(joins("", "a")));
    let b = world.send(Request::Join(Join { instance: Some("i".to_owned()), ..joins("", "b") }));
    world.pass(2_999);
    assert_eq!((world.answer(a), world.answer(b)), (None, None), "more may come");
    world.pass(6_001);
    let (a, b) = (world.joined(a).expect("it joined"), world.joined(b).expect("it joined"));
    assert_eq!((a.generation, a.protocol.as_deref(), a.leader.as_deref()), (1, Some("range"), Some("a")));
    let others: Vec<_> = a.members.iter().map(|member| (&*member.id, member.instance.as_deref())).collect();
    assert_eq!(others, [("a", None), ("b", Some("i"))]);
    assert_eq!(a.members[1].metadata, joins("", "").protocols[0].metadata);
    assert_eq!((b.member, b.members), ("b".into(), Vec::new()), "only the leader assigns");
    assert_eq!(state(&mut world), GroupState::CompletingRebalance);
    let waits = world.sync(who("b", 1), BTreeMap::new());
    assert_eq!(world.answer(waits), None, "for the leader");
    assert_eq!(world.lives(who("b", 1)), Ok(()));
    let a = world.sync(who("a", 1), gives([("b", "all")]));
    assert_eq!((world.synced(a), world.synced(waits)), (Ok(Vec::new()), Ok(b"all".to_vec())));
    assert_eq!(state(&mut world), GroupState::Stable);
    let again = world.sync(who("b", 1), BTreeMap::new());
    assert_eq!(world.synced(again), Ok(b"all".to_vec()));
}

#[test]
fn a_new_group_waits_as_long_as_members_keep_coming() {
    let mut world = World::new(&[("t", 2)]);
    let mut tokens = Vec::new();
    for member in 0..18 {
        tokens.push(world.send(Request::Join(joins("", &format!("m{member}")))));
        world.pass(2_000);
    }
    assert!(tokens.iter().take(15).all(|token| world.answers.contains_key(token)), "at most the rebalance timeout");
    assert!(!world.answers.contains_key(&tokens[17]), "the last came after it");
    let first = tokens.iter().find_map(|token| match &world.answers[token] {
        Answer::Join(Ok(joined)) => Some(joined.generation),
        _ => None,
    });
    assert_eq!(first, Some(1));
}

/// KIP-394: a member is in the group only once it knows its id.
#[test]
fn a_member_without_an_id_is_given_one() {
    let mut world = World::new(&[("t", 2)]);
    let join = Join { known_id_required: true, ..joins("", "a") };
    let token = world.send(Request::Join(join.clone()));
    let refused = JoinRefused { code: ErrorCode::MemberIdRequired, member: "a".into() };
    assert_eq!(world.answer(token), Some(Answer::Join(Err(refused))));
    let token = world.send(Request::Join(Join { member: "a".into(), ..join.clone() }));
    world.pass(3_000);
    assert_eq!(world.joined(token).expect("it joined").member, "a".into());
    // An id that is not used in time is forgotten, and nobody waits for it.
    world.send(Request::Join(Join { fresh: "b".into(), ..join.clone() }));
    world.sync(who("a", 1), BTreeMap::new());
    let token = world.send(Request::Join(joins("a", "")));
    assert_eq!(world.answer(token), None, "b may come");
    world.pass(10_000);
    assert_eq!(world.joined(token).expect("b did not come").generation, 2);
    let late = world.send(Request::Join(Join { member: "b".into(), ..join }));
    assert_eq!(world.joined(late), Err(ErrorCode::UnknownMemberId));
}

/// A live member is told to join again, and never that it is unknown.
#[test]
fn a_rebalance_waits_for_all_and_tells_them() {
    let mut world = World::new(&[("t", 2)]);
    pair(&mut world);
    let c = world.send(Request::Join(joins("", "c")));
    assert_eq!(state(&mut world), GroupState::PreparingRebalance);
    for member in ["a", "b"] {
        assert_eq!(world.lives(who(member, 1)), Err(ErrorCode::RebalanceInProgress));
        let sync = world.sync(who(member, 1), BTreeMap::new());
        assert_eq!(world.synced(sync), Err(ErrorCode::RebalanceInProgress));
    }
    let b = world.send(Request::Join(joins("b", "")));
    world.pass(5_000);
    let a = world.send(Request::Join(joins("a", "")));
    for token in [a, b, c] {
        assert_eq!(world.joined(token).expect("all are there").generation, 2);
    }
    // What the last generation says is out of date.
    assert_eq!(world.lives(who("a", 1)), Err(ErrorCode::IllegalGeneration));
    let sync = world.sync(who("b", 1), BTreeMap::new());
    assert_eq!(world.synced(sync), Err(ErrorCode::IllegalGeneration));
}

/// A member that dies while it waits for its assignment is found dead by its session, not only by the end of the next join.
#[test]
fn a_member_that_died_while_it_waited_in_sync_is_not_waited_for_in_the_next_join() {
    let mut world = World::new(&[("t", 2)]);
    world.send(Request::Join(joins("", "a")));
    world.send(Request::Join(joins("", "b")));
    world.pass(9_000);
    let waits = world.sync(who("b", 1), BTreeMap::new());
    let session_ms = u64::from(joins("", "").session_timeout_ms);
    assert!(session_ms * 3 < u64::from(joins("", "").rebalance_timeout_ms) * 2, "the join would end by itself");
    for _ in 0..2 {
        world.pass(session_ms * 2 / 3);
        assert_eq!(world.lives(who("a", 1)), Ok(()));
    }
    assert_eq!(world.answer(waits), None, "who waits for an answer cannot heartbeat");
    let c = world.send(Request::Join(joins("", "c")));
    assert_eq!(world.synced(waits), Err(ErrorCode::RebalanceInProgress));
    let a = world.send(Request::Join(joins("a", "")));
    assert_eq!((world.answer(a), world.answer(c)), (None, None), "b may be alive");
    world.pass(session_ms);
    assert_eq!(world.joined(a).expect("b is dead").generation, 2);
    assert_eq!(world.joined(c).expect("b is dead").generation, 2);
}

/// Whoever leaves in the middle of a join is not waited for.
#[test]
fn a_join_goes_on_at_once_when_the_missing_member_leaves() {
    let mut world = World::new(&[("t", 2)]);
    pair(&mut world);
    let c = world.send(Request::Join(joins("", "c")));
    let a = world.send(Request::Join(joins("a", "")));
    assert_eq!((world.answer(a), world.answer(c)), (None, None));
    assert_eq!(world.leave(&[("b", None), ("nobody", None)]), [Ok(()), Err(ErrorCode::UnknownMemberId)]);
    assert_eq!(world.joined(a).expect("nobody is missing").generation, 2);
    assert_eq!(world.joined(c).expect("nobody is missing").generation, 2);
}

#[test]
fn members_that_do_not_come_are_left_out() {
    let mut world = World::new(&[("t", 2)]);
    pair(&mut world);
    let c = world.send(Request::Join(Join { rebalance_timeout_ms: 8_000, ..joins("", "c") }));
    let a = world.send(Request::Join(joins("a", "")));
    for _ in 0..5 {
        world.pass(5_900);
        assert_eq!(world.answer(c), None);
        assert_eq!(world.lives(who("b", 1)), Err(ErrorCode::RebalanceInProgress), "it lives, and does not come");
    }
    world.pass(600);
    assert_eq!(world.joined(a).expect("time is up").generation, 2);
    assert_eq!(world.lives(who("b", 1)), Err(ErrorCode::UnknownMemberId));
    // Of those that came, one does not fetch its assignment.
    let a = world.sync(who("a", 2), gives([("c", "all")]));
    assert_eq!(world.synced(a), Ok(Vec::new()));
    for _ in 0..4 {
        assert_eq!(world.lives(who("a", 2)), Ok(()));
        assert_eq!(world.lives(who("c", 2)), Ok(()));
        world.pass(7_400);
    }
    world.pass(400);
    assert_eq!(world.lives(who("c", 2)), Err(ErrorCode::UnknownMemberId));
    assert_eq!(world.lives(who("a", 2)), Err(ErrorCode::RebalanceInProgress));
}

#[test]
fn a_silent_member_makes_the_others_rebalance() {
    let mut world = World::new(&[("t", 2)]);
    pair(&mut world);
    world.pass(6_000);
    assert_eq!(world.lives(who("b", 1)), Ok(()));
    world.pass(4_000);
    assert_eq!(world.lives(who("a", 1)), Err(ErrorCode::UnknownMemberId));
    assert_eq!(world.lives(who("b", 1)), Err(ErrorCode::RebalanceInProgress));
    let b = world.send(Request::Join(joins("b", "")));
    let joined = world.joined(b).expect("it is alone");
    assert_eq!((joined.generation, joined.leader), (2, Some("b".into())));
    let sync = world.sync(who("b", 2), gives([("b", "all")]));
    assert_eq!(world.synced(sync), Ok(b"all".to_vec()));
    assert_eq!(world.leave(&[("b", None)]), [Ok(())]);
    assert_eq!(state(&mut world), GroupState::Empty);
    assert_eq!(world.lives(who("b", 2)), Err(ErrorCode::UnknownMemberId));
}

/// Whoever waits is not silent, however long it takes.
#[test]
fn a_member_that_waits_keeps_its_session() {
    let mut world = World::new(&[("t", 2)]);
    pair(&mut world);
    let b = world.send(Request::Join(Join { protocols: joins("", "").protocols, ..joins("a", "") }));
    for _ in 0..5 {
        world.pass(5_000);
        assert_eq!(world.lives(who("b", 1)), Err(ErrorCode::RebalanceInProgress));
    }
    let last = world.send(Request::Join(joins("b", "")));
    assert_eq!(world.joined(b).expect("a waited").generation, 2);
    assert_eq!(world.joined(last).expect("b came").generation, 2);
}

/// KIP-345: a static member that starts again takes its place over without a rebalance; its old process is fenced.
#[test]
fn a_static_member_starts_again_without_a_rebalance() {
    for may_skip_assignment in [false, true] {
        let mut world = World::new(&[("t", 2)]);
        let fixed = |fresh: &str| Join { instance: Some("i".to_owned()), may_skip_assignment, ..joins("", fresh) };
        let old = |member: &str| ClassicHeartbeat { instance: Some("i".to_owned()), ..who(member, 1) };
        let m1 = world.send(Request::Join(fixed("m1")));
        world.pass(3_000);
        assert_eq!(world.joined(m1).expect("it joined").generation, 1);
        let m1 = world.sync(old("m1"), gives([("m1", "all")]));
        assert_eq!(world.synced(m1), Ok(b"all".to_vec()));
        let m2 = world.send(Request::Join(fixed("m2")));
        let joined = world.joined(m2).expect("it takes over");
        assert_eq!((joined.generation, &*joined.member, joined.skip_assignment), (1, "m2", may_skip_assignment));
        let (leader, members) = (joined.leader.as_deref(), joined.members.len());
        // An old client would assign if it took itself for the leader; a new one is told not to.
        assert_eq!((leader, members), if may_skip_assignment { (Some("m2"), 1) } else { (Some("m1"), 0) });
        let m2 = world.sync(old("m2"), BTreeMap::new());
        assert_eq!(world.synced(m2), Ok(b"all".to_vec()));
        assert_eq!(world.lives(old("m1")), Err(ErrorCode::FencedInstanceId));
        let m1 = world.sync(old("m1"), BTreeMap::new());
        assert_eq!(world.synced(m1), Err(ErrorCode::FencedInstanceId));
        let commit = Commit {
            group: "g".into(),
            member: "m1".into(),
            instance: Some("i".to_owned()),
            epoch: 1,
            offsets: vec![(world.partition("t", 0), offset(1))],
            ..Commit::default()
        };
        assert_eq!(world.ask(Request::Commit(commit)), Answer::Commit(Err(ErrorCode::FencedInstanceId)));
        assert_eq!(world.lives(old("m2")), Ok(()));
        assert_eq!(world.leave(&[("", Some("j")), ("", Some("i"))]), [Err(ErrorCode::UnknownMemberId), Ok(())]);
        assert_eq!(state(&mut world), GroupState::Empty);
    }
}

/// Nobody came, all may come yet, and none of them says how long that takes: the shard has others to serve meanwhile.
#[test]
fn a_group_of_static_members_that_allow_no_time_to_join_keeps_no_shard_busy() {
    let mut world = World::new(&[("t", 2)]);
    let fixed = |instance: &str, fresh: &str| Join { instance: Some(instance.to_owned()), ..joins("", fresh) };
    let tokens = [("i", "m1"), ("j", "m2")].map(|(instance, id)| world.send(Request::Join(fixed(instance, id))));
    world.pass(6_000);
    for token in tokens {
        world.joined(token).expect("it joined");
    }
    for (instance, id) in [("i", "m1"), ("j", "m2")] {
        let who = ClassicHeartbeat { instance: Some(instance.to_owned()), ..who(id, 1) };
        let token = world.sync(who, gives([("m1", "one"), ("m2", "two")]));
        world.synced(token).expect("it is a member");
    }
    for (instance, id) in [("i", "m3"), ("j", "m4")] {
        let again = world.send(Request::Join(Join { rebalance_timeout_ms: 0, ..fixed(instance, id) }));
        assert_eq!(world.joined(again).expect("it takes over").generation, 1);
    }
    assert_eq!(world.leave(&[("", Some("j"))]), [Ok(())]);
    world.pass(5_000);
    assert_eq!(state(&mut world), GroupState::PreparingRebalance);
    let m3 = world.send(Request::Join(Join { member: "m3".into(), ..fixed("i", "") }));
    assert_eq!(world.joined(m3).expect("it came").generation, 2);
}

#[test]
fn who_leaves_before_it_was_a_member_makes_nobody_join_again() {
    let mut world = World::new(&[("t", 2)]);
    pair(&mut world);
    let promised = world.send(Request::Join(Join { known_id_required: true, ..joins("", "c") }));
    assert_eq!(world.joined(promised), Err(ErrorCode::MemberIdRequired));
    assert_eq!(world.leave(&[("c", None)]), [Ok(())]);
    assert_eq!((world.lives(who("a", 1)), world.lives(who("b", 1))), (Ok(()), Ok(())));
}

#[test]
fn a_request_that_is_sent_again_replaces_the_first() {
    let mut world = World::new(&[("t", 2)]);
    pair(&mut world);
    let first = world.send(Request::Join(joins("a", "")));
    let second = world.send(Request::Join(joins("a", "")));
    assert_eq!(world.joined(first), Err(ErrorCode::RebalanceInProgress));
    let b = world.send(Request::Join(joins("b", "")));
    assert_eq!(world.joined(second).expect("all are there").generation, 2);
    assert_eq!(world.joined(b).expect("all are there").generation, 2);
    let first = world.sync(who("b", 2), BTreeMap::new());
    let second = world.sync(who("b", 2), BTreeMap::new());
    assert_eq!(world.synced(first), Err(ErrorCode::RebalanceInProgress));
    // The leader comes again with another subscription, so all have to.
    let protocols = vec![Protocol { name: "range".to_owned(), metadata: b"else".to_vec() }];
    let again = world.send(Request::Join(Join { protocols, ..joins("a", "") }));
    assert_eq!(world.synced(second), Err(ErrorCode::RebalanceInProgress));
    assert_eq!(world.leave(&[("a", None)]), [Ok(())]);
    assert_eq!(world.joined(again), Err(ErrorCode::UnknownMemberId), "it left");
}

#[test]
fn members_need_a_protocol_in_common() {
    let mut world = World::new(&[("t", 2)]);
    let named = |names: &[&str]| -> Vec<Protocol> {
        names.iter().map(|name| Protocol { name: (*name).to_owned(), metadata: Vec::new() }).collect()
    };
    let a = world.send(Request::Join(Join { protocols: named(&["x", "range", "z"]), ..joins("", "a") }));
    let b = world.send(Request::Join(Join { protocols: named(&["z", "range"]), ..joins("", "b") }));
    let c = world.send(Request::Join(Join { protocols: named(&["z", "range", "y"]), ..joins("", "c") }));
    let d = world.send(Request::Join(Join { protocols: named(&["x"]), ..joins("", "d") }));
    assert_eq!(world.joined(d), Err(ErrorCode::InconsistentGroupProtocol));
    let connect = Join { protocol_type: "connect".to_owned(), ..joins("", "e") };
    let e = world.send(Request::Join(connect));
    assert_eq!(world.joined(e), Err(ErrorCode::InconsistentGroupProtocol));
    world.pass(9_000);
    let protocols = [a, b, c].map(|token| world.joined(token).expect("it joined").protocol);
    assert_eq!(protocols, [(); 3].map(|()| Some("z".to_owned())), "two of three prefer it");
    let other = SyncGroup { who: who("a", 1), protocol: Some("x".to_owned()), ..SyncGroup::default() };
    let other = world.send(Request::Sync(other));
    assert_eq!(world.synced(other), Err(ErrorCode::InconsistentGroupProtocol));
}

#[test]
fn joins_that_cannot_be_are_refused_and_leave_nothing() {
    let mut world = World::new(&[("t", 2)]);
    let cases = [
        (Join { group: "".into(), ..joins("", "a") }, ErrorCode::InvalidGroupId),
        (Join { session_timeout_ms: 5_999, ..joins("", "a") }, ErrorCode::InvalidSessionTimeout),
        (Join { session_timeout_ms: 1_800_001, ..joins("", "a") }, ErrorCode::InvalidSessionTimeout),
        (joins("a", ""), ErrorCode::UnknownMemberId),
        (Join { protocols: Vec::new(), ..joins("", "a") }, ErrorCode::InconsistentGroupProtocol),
        (Join { protocol_type: String::new(), ..joins("", "a") }, ErrorCode::InconsistentGroupProtocol),
    ];
    for (request, code) in cases {
        let token = world.send(Request::Join(request));
        assert_eq!(world.joined(token), Err(code));
        assert_eq!(world.ask(Request::List), Answer::List(Vec::new()));
    }
    assert_eq!(world.lives(who("a", 1)), Err(ErrorCode::UnknownMemberId));
    let sync = world.sync(who("a", 1), BTreeMap::new());
    assert_eq!(world.synced(sync), Err(ErrorCode::UnknownMemberId));
    let leave = Request::Leave(Leave { group: "g".into(), members: vec![("a".into(), None)] });
    assert_eq!(world.ask(leave), Answer::Leave(Err(ErrorCode::UnknownMemberId)));
}

#[test]
fn a_classic_group_takes_only_so_many() {
    let mut world = World::with(GroupLimits { members_max: 2, ..GroupLimits::default() }, &[("t", 2)]);
    pair(&mut world);
    let c = world.send(Request::Join(joins("", "c")));
    assert_eq!(world.joined(c), Err(ErrorCode::GroupMaxSizeReached));
    assert_eq!(world.lives(who("a", 1)), Ok(()), "nobody noticed");
}

fn commit(world: &mut World, member: &str, generation: i32) -> Result<Vec<Result<(), ErrorCode>>, ErrorCode> {
    let offsets = vec![(world.partition("t", 0), offset(1))];
    let (group, member) = ("g".into(), member.into());
    let request = Commit { group, member, epoch: generation, offsets, ..Commit::default() };
    let Answer::Commit(result) = world.ask(Request::Commit(request)) else { panic!("another answer") };
    result
}

#[test]
fn only_members_of_the_generation_commit() {
    let mut world = World::new(&[("t", 2)]);
    pair(&mut world);
    assert_eq!(commit(&mut world, "a", 1), Ok(vec![Ok(())]));
    assert_eq!(commit(&mut world, "a", 0), Err(ErrorCode::IllegalGeneration));
    assert_eq!(commit(&mut world, "x", 1), Err(ErrorCode::UnknownMemberId));
    assert_eq!(commit(&mut world, "", -1), Err(ErrorCode::UnknownMemberId));
    // Before it joins again a member commits what it has read.
    let c = world.send(Request::Join(joins("", "c")));
    assert_eq!(commit(&mut world, "a", 1), Ok(vec![Ok(())]));
    let others = ["a", "b"].map(|member| world.send(Request::Join(joins(member, ""))));
    for token in [others[0], others[1], c] {
        assert_eq!(world.joined(token).expect("all are there").generation, 2);
    }
    assert_eq!(commit(&mut world, "a", 2), Err(ErrorCode::RebalanceInProgress));
    // A commit shows that its member lives.
    for member in ["a", "b", "c"] {
        world.sync(who(member, 2), BTreeMap::new());
    }
    for _ in 0..3 {
        world.pass(9_000);
        for member in ["a", "b", "c"] {
            assert_eq!(commit(&mut world, member, 2), Ok(vec![Ok(())]));
        }
    }
}

/// Offsets of a group that rebalances are needed, whatever it subscribes to.
#[test]
fn offsets_do_not_expire_while_a_group_rebalances() {
    let limits = GroupLimits { offsets_retention_ms: 1_000, expiry_interval_ms: 100, ..GroupLimits::default() };
    let mut world = World::with(limits, &[("t", 2), ("u", 1)]);
    world.reload(limits);
    let u = world.partition("u", 0);
    let early = Commit { group: "g".into(), epoch: -1, offsets: vec![(u, offset(7))], ..Commit::default() };
    assert_eq!(world.ask(Request::Commit(early)), Answer::Commit(Ok(vec![Ok(())])));
    pair(&mut world);
    assert_eq!(commit(&mut world, "a", 1), Ok(vec![Ok(())]));
    world.send(Request::Join(joins("", "c")));
    let fetch = Request::Fetch(Fetch { group: "g".into(), ..Fetch::default() });
    let offsets = |world: &mut World| match world.ask(fetch.clone()) {
        Answer::Fetch(Ok(fetched)) => fetched.len(),
        other => panic!("{other:?}"),
    };
    for _ in 0..2 {
        world.pass(5_000);
        assert_eq!(world.lives(who("a", 1)), Err(ErrorCode::RebalanceInProgress));
    }
    let before = offsets(&mut world);
    assert_eq!(world.leave(&[("a", None), ("c", None)]), [Ok(()), Ok(())]);
    assert_eq!(before, 2);
    world.pass(900);
    assert_eq!(offsets(&mut world), 2, "the group has not been empty for long enough");
    world.pass(200);
    assert!(world.store.is_empty(), "{:?}", world.store);
}

#[test]
fn a_failover_keeps_the_generation() {
    let mut world = World::new(&[("t", 2)]);
    pair(&mut world);
    world.send(Request::Join(joins("", "c")));
    world.reload(GroupLimits::default());
    // c is asked to join anew; the others have noticed nothing.
    for member in ["a", "b"] {
        assert_eq!(world.lives(who(member, 1)), Ok(()));
        let sync = world.sync(who(member, 1), BTreeMap::new());
        assert_eq!(world.synced(sync), Ok(format!("for {member}").into_bytes()));
    }
    let c = world.send(Request::Join(joins("c", "")));
    assert_eq!(world.joined(c), Err(ErrorCode::UnknownMemberId));
    world.pass(10_000);
    assert_eq!(world.lives(who("a", 1)), Err(ErrorCode::UnknownMemberId), "its new session has ended");
}

/// Whatever of a generation was written before the group's record is not mixed into the one before.
#[test]
fn a_generation_that_was_cut_short_never_was() {
    let mut world = World::new(&[("t", 2)]);
    pair(&mut world);
    let before = (world.describe("g"), world.store.clone());
    for token in ["a", "b"].map(|member| world.send(Request::Join(joins(member, "")))) {
        assert_eq!(world.joined(token).expect("the leader made all join again").generation, 2);
    }
    let (who, assignments) = (who("a", 2), gives([("a", "later for a"), ("b", "later for b")]));
    let token = world.token();
    let request = Request::Sync(SyncGroup { who, assignments, ..SyncGroup::default() });
    let step = world.shard.step(world.now, token, request);
    assert!(step.changes.len() > 2, "{step:?}");
    apply(&mut world.store, step.changes.into_iter().take(1).collect());
    assert_ne!(world.store, before.1);
    world.reload(GroupLimits::default());
    assert_eq!((world.describe("g"), world.store), before);
}

/// Rule Z5: however many members there are, no value grows too large, and they come back together.
#[test]
fn a_large_group_is_kept_in_pieces() {
    let mut world = World::new(&[("t", 2)]);
    let protocols = vec![Protocol { name: "range".to_owned(), metadata: vec![7; 900] }];
    let ids: Vec<String> = (0..200).map(|member| format!("m{member:03}")).collect();
    for id in &ids {
        world.send(Request::Join(Join { protocols: protocols.clone(), ..joins("", id) }));
    }
    world.pass(9_000);
    let assignments = ids.iter().map(|id| (id.as_str().into(), vec![3; 500])).collect();
    world.sync(who("m000", 1), assignments);
    let sizes = |world: &World| -> Vec<usize> {
        let piece = |(key, record): (&RecordKey, &Record)| match (&key.part, record) {
            (RecordPart::Classic { .. }, Record::Classic(piece)) => serde_json::to_string(piece).ok().map(|s| s.len()),
            _ => None,
        };
        world.store.iter().filter_map(piece).collect()
    };
    let first = sizes(&world);
    assert!(first.len() > 5 && first.iter().all(|size| (1_000..65_536).contains(size)), "{first:?}");
    let before = world.describe("g");
    world.reload(GroupLimits::default());
    assert_eq!(world.describe("g"), before);
    world.pass(10_000);
    assert_eq!(state(&mut world), GroupState::Empty);
    assert!(sizes(&world).is_empty(), "pieces of older versions are gone");
}

/// Rule Z5: a member that owns very many partitions is persisted in shares, and comes back whole; more than that is refused before it
/// changes anything.
#[test]
fn a_member_with_ten_thousand_partitions_is_kept_whole_and_larger_ones_are_refused() {
    let mut world = World::new(&[("t", 2)]);
    let metadata = |size: usize| -> Vec<u8> { (0..size).map(|n| (n % 251).to_be_bytes()[7]).collect() };
    let protocols = |size| {
        let protocol = |name: &str| Protocol { name: name.to_owned(), metadata: metadata(size) };
        vec![protocol("cooperative-sticky"), protocol("range")]
    };
    let m1 = world.send(Request::Join(Join { protocols: protocols(40_000), ..joins("", "m1") }));
    world.send(Request::Join(Join { protocols: protocols(7), ..joins("", "m2") }));
    world.pass(9_000);
    assert_eq!(world.joined(m1).expect("it joined").leader, Some("m1".into()));
    let given: BTreeMap<Arc<str>, Vec<u8>> = [("m1".into(), metadata(41_000)), ("m2".into(), metadata(9))].into();
    let before = world.store.clone();
    let mut too_much = given.clone();
    too_much.insert("m2".into(), metadata(CLASSIC_BYTES_MAX + 1));
    let refused = world.sync(who("m1", 1), too_much);
    assert_eq!((world.synced(refused), &world.store), (Err(ErrorCode::MessageTooLarge), &before));
    let synced = world.sync(who("m1", 1), given);
    assert_eq!(world.synced(synced), Ok(metadata(41_000)));
    let size = |record: &Record| match record {
        Record::Classic(piece) => serde_json::to_string(piece).expect("it is JSON").len(),
        _ => 0,
    };
    let sizes: Vec<usize> = world.store.values().map(size).filter(|size| *size > 0).collect();
    assert!(sizes.len() > 4 && sizes.iter().all(|size| *size < 64 << 10), "{sizes:?}");
    let before = world.describe("g");
    world.reload(GroupLimits::default());
    assert_eq!(world.describe("g"), before);
    let long = Some("i".repeat(TEXT_BYTES_MAX));
    for too_large in [
        Join { protocols: protocols(CLASSIC_BYTES_MAX), ..joins("", "m3") },
        Join { instance: long, ..joins("", "m4") },
    ] {
        let refused = world.send(Request::Join(too_large));
        assert_eq!(world.joined(refused), Err(ErrorCode::MessageTooLarge));
    }
    assert_eq!(world.describe("g"), before);
    let mut talks = join("m5", &["t"]);
    talks.regex = Some("r".repeat(TEXT_BYTES_MAX));
    assert_eq!(world.beat(talks), Err(ErrorCode::InvalidRequest));
}
