//! Committed offsets: who may commit, what is read back, and when it is forgotten.

use super::*;
use millpond_log::{CoordinatorEpoch, LeaderEpoch, ProducerEpoch, ProducerId};

const DAY_MS: u64 = 24 * 3_600_000;

fn commit(member: &str, epoch: i32, offsets: Vec<(PartitionId, CommitOffset)>) -> Commit {
    Commit { group: "g".into(), member: member.into(), epoch, offsets, ..Commit::default() }
}

type Committing = Result<Vec<Result<(), ErrorCode>>, ErrorCode>;

fn committed(world: &mut World, request: Commit) -> Committing {
    let Answer::Commit(result) = world.ask(Request::Commit(request)) else { panic!("another answer") };
    result
}

/// Commits as a consumer that is no member.
fn plain(world: &mut World, partition: PartitionId, at: u64) {
    let results = committed(world, commit("", -1, vec![(partition, offset(at))]));
    assert_eq!(results, Ok(vec![Ok(())]));
}

fn fetch(world: &mut World, partition: PartitionId, require_stable: bool) -> Result<Option<u64>, ErrorCode> {
    let partitions = Some(vec![partition]);
    let request = Fetch { group: "g".into(), member: None, partitions, require_stable };
    let Answer::Fetch(Ok(fetched)) = world.ask(Request::Fetch(request)) else { panic!("another answer") };
    fetched[0].1.clone().map(|committed| committed.map(|committed| committed.offset.0))
}

/// An offset belongs to the group, whoever committed it; where nothing was committed there is none, which is no error.
#[test]
fn offsets_belong_to_the_group() {
    let mut world = World::new(&[("t", 300)]);
    let partition = world.partition("t", 299);
    assert_eq!(fetch(&mut world, partition, true), Ok(None));
    world.beat(join("a", &["t"])).expect("it joins");
    assert_eq!(committed(&mut world, commit("a", 1, vec![(partition, offset(50))])), Ok(vec![Ok(())]));
    world.beat(alive("a", LEAVE_EPOCH)).expect("it leaves");
    world.reload(GroupLimits::default());
    world.beat(join("b", &["t"])).expect("it joins");
    assert_eq!(fetch(&mut world, partition, true), Ok(Some(50)));
    let untouched = world.partition("t", 298);
    assert_eq!(fetch(&mut world, untouched, true), Ok(None));
    let all = world.ask(Request::Fetch(Fetch { group: "g".into(), ..Fetch::default() }));
    let Answer::Fetch(Ok(all)) = all else { panic!("{all:?}") };
    assert_eq!(all.len(), 1);
}

/// Metadata and leader epoch come back as they were.
#[test]
fn what_was_committed_comes_back_whole() {
    let mut world = World::new(&[("t", 3)]);
    let metadata = "é".repeat(100);
    let rich = CommitOffset { offset: Offset(42), leader_epoch: Some(LeaderEpoch(3)), metadata: metadata.clone() };
    let long = CommitOffset { metadata: "x".repeat(4_097), ..offset(1) };
    let longest = CommitOffset { metadata: "x".repeat(4_096), ..offset(1) };
    let [p, q, r] = [0, 1, 2].map(|index| world.partition("t", index));
    let absent = world.partition("t", 3);
    let offsets = vec![(p, rich), (q, long), (absent, offset(1)), (r, longest)];
    let expected =
        vec![Ok(()), Err(ErrorCode::OffsetMetadataTooLarge), Err(ErrorCode::UnknownTopicOrPartition), Ok(())];
    assert_eq!(committed(&mut world, commit("", -1, offsets)), Ok(expected));
    let fetched = world.ask(Request::Fetch(Fetch { group: "g".into(), ..Fetch::default() }));
    let Answer::Fetch(Ok(fetched)) = fetched else { panic!("{fetched:?}") };
    let found = fetched[0].1.clone().expect("no error").expect("it was committed");
    assert_eq!((found.offset, found.leader_epoch, found.metadata), (Offset(42), Some(LeaderEpoch(3)), metadata));
    assert_eq!(fetched.iter().map(|(partition, _)| *partition).collect::<Vec<_>>(), [p, r]);
}

/// Rule Z5: a block of offsets stays small enough for the metadata store, whatever clients keep beside them.
#[test]
fn a_block_takes_only_so_much_metadata() {
    let mut world = World::new(&[("t", 512)]);
    let long = |index| (world.partition("t", index), CommitOffset { metadata: "x".repeat(4_096), ..offset(1) });
    let results = (0..13).map(long).collect();
    let results = committed(&mut world, commit("", -1, results)).expect("it may commit");
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 12);
    assert_eq!(results[12], Err(ErrorCode::OffsetMetadataTooLarge));
    let without = world.partition("t", 12);
    plain(&mut world, without, 9);
    let again = CommitOffset { metadata: "y".repeat(4_096), ..offset(2) };
    let again = vec![(world.partition("t", 3), again.clone()), (world.partition("t", 256), again)];
    assert_eq!(committed(&mut world, commit("", -1, again)), Ok(vec![Ok(()), Ok(())]));
}

#[test]
fn whoever_is_not_in_the_group_may_not_commit() {
    let mut world = World::new(&[("t", 2)]);
    let p = world.partition("t", 0);
    let one = || vec![(p, offset(1))];
    assert_eq!(committed(&mut world, commit("a", 1, one())), Err(ErrorCode::GroupIdNotFound));
    assert_eq!(
        committed(&mut world, Commit { group: "".into(), ..commit("", -1, one()) }),
        Err(ErrorCode::InvalidGroupId)
    );
    plain(&mut world, p, 7);
    assert_eq!(committed(&mut world, commit("a", 1, one())), Err(ErrorCode::UnknownMemberId));
    world.beat(Heartbeat { instance: Some("i".to_owned()), ..join("a", &["t"]) }).expect("it joins");
    assert_eq!(committed(&mut world, commit("", -1, one())), Err(ErrorCode::UnknownMemberId), "a live group");
    assert_eq!(committed(&mut world, commit("b", 1, one())), Err(ErrorCode::UnknownMemberId));
    assert_eq!(committed(&mut world, commit("a", 2, one())), Err(ErrorCode::StaleMemberEpoch));
    let other = Commit { instance: Some("i".to_owned()), ..commit("b", 1, one()) };
    assert_eq!(committed(&mut world, other), Err(ErrorCode::FencedInstanceId));
    assert_eq!(fetch(&mut world, p, false), Ok(Some(7)));
    assert_eq!(committed(&mut world, commit("a", 1, one())), Ok(vec![Ok(())]));
}

/// Rule O1: a commit that its member gave up, and that comes after later ones, sets nothing back, where the member counts.
#[test]
fn a_commit_that_was_given_up_sets_nothing_back() {
    let mut world = World::new(&[("t", 2)]);
    let p = world.partition("t", 0);
    let numbered = |epoch, number, at| Commit { number: Some(number), ..commit("a", epoch, vec![(p, offset(at))]) };
    world.beat(join("a", &["t"])).expect("it joins");
    assert_eq!(committed(&mut world, numbered(1, 1, 10)), Ok(vec![Ok(())]));
    assert_eq!(committed(&mut world, numbered(1, 3, 30)), Ok(vec![Ok(())]));
    assert_eq!(committed(&mut world, numbered(1, 2, 20)), Err(ErrorCode::StaleMemberEpoch));
    assert_eq!(fetch(&mut world, p, false), Ok(Some(30)));
    // Asked again it is answered as before, and a member may go back on purpose.
    assert_eq!(committed(&mut world, numbered(1, 3, 30)), Ok(vec![Ok(())]));
    assert_eq!(committed(&mut world, numbered(1, 4, 5)), Ok(vec![Ok(())]));
    // Another epoch of the member changes nothing about it.
    world.beat(join("b", &["t"])).expect("it joins");
    assert_eq!(world.beat(alive("a", 1)).expect("a member").epoch, 2);
    assert_eq!(committed(&mut world, numbered(1, 3, 30)), Err(ErrorCode::StaleMemberEpoch));
    assert_eq!(committed(&mut world, numbered(2, 3, 30)), Err(ErrorCode::StaleMemberEpoch));
    assert_eq!(fetch(&mut world, p, false), Ok(Some(5)));
    // Who does not count is Kafka's: the last wins. A process that begins counts anew.
    assert_eq!(committed(&mut world, commit("a", 2, vec![(p, offset(6))])), Ok(vec![Ok(())]));
    let epoch = world.beat(join("a", &["t"])).expect("it joins again").epoch;
    assert_eq!(committed(&mut world, numbered(epoch, 1, 7)), Ok(vec![Ok(())]));
    // A refused commit is none: it raises no number.
    assert_eq!(committed(&mut world, numbered(99, 50, 8)), Err(ErrorCode::StaleMemberEpoch));
    assert_eq!(committed(&mut world, numbered(epoch, 2, 9)), Ok(vec![Ok(())]));
}

#[test]
fn a_process_that_takes_a_static_member_over_counts_its_commits_anew() {
    let mut world = World::new(&[("t", 1)]);
    let p = world.partition("t", 0);
    let named = |member: &str| Heartbeat { instance: Some("i".to_owned()), ..join(member, &["t"]) };
    let first = world.beat(named("a")).expect("it joins").epoch;
    let instance = Some("i".to_owned());
    let late = Commit { number: Some(9), instance: instance.clone(), ..commit("a", first, vec![(p, offset(90))]) };
    assert_eq!(committed(&mut world, late.clone()), Ok(vec![Ok(())]));
    world.beat(Heartbeat { instance: instance.clone(), ..alive("a", LEAVE_STATIC_EPOCH) }).expect("it leaves");
    let second = world.beat(named("b")).expect("it joins").epoch;
    let anew = Commit { number: Some(1), instance, ..commit("b", second, vec![(p, offset(91))]) };
    assert_eq!(committed(&mut world, anew), Ok(vec![Ok(())]));
    assert_eq!(committed(&mut world, late), Err(ErrorCode::FencedInstanceId));
    assert_eq!(fetch(&mut world, p, false), Ok(Some(91)));
}

/// Rule O2: a member that has not heard of its new epoch may commit what it has owned all along, and nothing else.
#[test]
fn a_member_behind_its_epoch_commits_what_it_still_owns() {
    let mut world = World::new(&[("t", 2)]);
    let [p, q, r] = [0, 1, 2].map(|index| PartitionId { topic: world.id("t"), index });
    world.beat(join("a", &["t"])).expect("it joins");
    world.put_topic("t", 3);
    world.beat(owning("a", 1, [p, q].into())).expect("a member, in epoch 2");
    let results = committed(&mut world, commit("a", 1, vec![(p, offset(5)), (r, offset(5))]));
    assert_eq!(results, Ok(vec![Ok(()), Err(ErrorCode::StaleMemberEpoch)]));
    // It is to give r up, and may commit it until it has.
    world.beat(join("b", &["t"])).expect("it joins");
    world.beat(alive("a", 2)).expect("a member");
    assert_eq!(committed(&mut world, commit("a", 2, vec![(r, offset(6))])), Ok(vec![Ok(())]));
    world.beat(owning("a", 3, [p, q].into())).expect("a member, in epoch 3");
    assert_eq!(
        committed(&mut world, commit("a", 2, vec![(r, offset(7)), (q, offset(7))])).expect("it may")[..],
        [Err(ErrorCode::StaleMemberEpoch), Ok(())]
    );
    assert_eq!(fetch(&mut world, r, false), Ok(Some(6)));
    let request = |epoch| Fetch { group: "g".into(), member: Some(("a".into(), epoch)), ..Fetch::default() };
    assert_eq!(world.ask(Request::Fetch(request(2))), Answer::Fetch(Err(ErrorCode::StaleMemberEpoch)));
    assert!(matches!(world.ask(Request::Fetch(request(3))), Answer::Fetch(Ok(_))));
}

/// A topic that is created again under its name starts without offsets.
#[test]
fn a_deleted_topic_takes_its_offsets_along() {
    let mut world = World::new(&[("t", 1), ("u", 1)]);
    let [old, other] = ["t", "u"].map(|name| world.partition(name, 0));
    plain(&mut world, old, 10);
    plain(&mut world, other, 20);
    txn(&mut world, 5, 0, vec![(old, offset(11))]).expect("it may");
    world.drop_topic(old.topic);
    world.put_topic("t", 1);
    let new = world.partition("t", 0);
    assert_eq!(fetch(&mut world, new, true), Ok(None));
    assert_eq!(fetch(&mut world, old, true), Ok(None));
    end(&mut world, 5, 0, true);
    assert_eq!(fetch(&mut world, old, true), Ok(None), "a transaction does not bring it back");
    assert_eq!(fetch(&mut world, other, true), Ok(Some(20)));
}

/// KIP-211: offsets are kept as long as the group is read from, and for the retention after it emptied.
#[test]
fn offsets_expire_after_their_group_emptied() {
    let mut world = World::new(&[("t", 1), ("u", 1)]);
    let [t, u] = ["t", "u"].map(|name| world.partition(name, 0));
    world.beat(join("a", &["t", "u"])).expect("it joins");
    assert!(committed(&mut world, commit("a", 1, vec![(t, offset(1)), (u, offset(1))])).is_ok());
    live(&mut world, "a", 1, 8 * DAY_MS);
    assert_eq!(fetch(&mut world, t, false), Ok(Some(1)), "it is subscribed to");
    // Not subscribed any more: its age counts from the commit.
    world.beat(Heartbeat { topics: Some(["t".to_owned()].into()), ..owning("a", 1, [t].into()) }).expect("a member");
    world.beat(owning("a", 2, [t].into())).expect("a member");
    live(&mut world, "a", 2, 600_000);
    assert_eq!((fetch(&mut world, t, false), fetch(&mut world, u, false)), (Ok(Some(1)), Ok(None)));
    world.beat(alive("a", LEAVE_EPOCH)).expect("it leaves");
    world.pass(7 * DAY_MS - 1);
    assert_eq!(fetch(&mut world, t, false), Ok(Some(1)), "its group has not been empty for long enough");
    world.pass(600_001);
    assert_eq!(fetch(&mut world, t, false), Ok(None));
    assert_eq!(world.ask(Request::List), Answer::List(Vec::new()), "nothing is left of the group");
    assert!(world.store.is_empty(), "{:?}", world.store);
}

/// Lets a member heartbeat for so long.
fn live(world: &mut World, member: &str, epoch: i32, ms: u64) {
    for _ in 0..ms / 40_000 {
        world.pass(40_000);
        world.beat(alive(member, epoch)).expect("a member");
    }
}

#[test]
fn a_consumer_without_a_group_keeps_offsets_for_the_retention() {
    let mut world = World::new(&[("t", 2)]);
    let [p, q] = [0, 1].map(|index| world.partition("t", index));
    plain(&mut world, p, 1);
    let short = Commit { retention_ms: Some(1_000), ..commit("", -1, vec![(q, offset(1))]) };
    assert_eq!(committed(&mut world, short), Ok(vec![Ok(())]));
    world.pass(601_000);
    assert_eq!((fetch(&mut world, p, false), fetch(&mut world, q, false)), (Ok(Some(1)), Ok(None)));
    world.pass(6 * DAY_MS);
    plain(&mut world, p, 2);
    world.pass(6 * DAY_MS);
    assert_eq!(fetch(&mut world, p, false), Ok(Some(2)));
    world.pass(DAY_MS + 600_000);
    assert!(world.store.is_empty(), "{:?}", world.store);
}

#[test]
fn the_search_for_expired_offsets_goes_on_where_it_stopped() {
    let mut world = World::new(&[("t", 6_000)]);
    for group in 0..5 {
        let offsets = (0..6_000).map(|index| (world.partition("t", index), offset(1))).collect();
        let request = Commit { group: format!("g{group}").into(), ..commit("", -1, offsets) };
        assert!(committed(&mut world, request).is_ok());
    }
    world.now.wall_ms += 8 * 24 * 3_600_000;
    let mut sizes = vec![world.store.len()];
    while !world.store.is_empty() {
        let due = world.shard.next_deadline().expect("expiry is always due some time");
        world.now.steady_ms = world.now.steady_ms.max(due);
        let step = world.shard.tick(world.now);
        world.absorb(step);
        sizes.push(world.store.len());
        assert!(sizes.len() < 9, "{sizes:?}");
    }
    assert_eq!(sizes, [120, 72, 24, 0], "two groups reach the bound of one tick");
}

#[test]
fn offsets_and_groups_are_deleted_on_request() {
    let mut world = World::new(&[("t", 1), ("u", 1)]);
    let [t, u] = ["t", "u"].map(|name| world.partition(name, 0));
    let delete = |partitions| Request::DeleteOffsets { group: "g".into(), partitions };
    assert_eq!(world.ask(delete(vec![t])), Answer::DeleteOffsets(Err(ErrorCode::GroupIdNotFound)));
    assert_eq!(world.ask(Request::Delete("g".into())), Answer::Delete(Err(ErrorCode::GroupIdNotFound)));
    world.beat(join("a", &["t"])).expect("it joins");
    assert!(committed(&mut world, commit("a", 1, vec![(t, offset(1)), (u, offset(1))])).is_ok());
    let answer = world.ask(delete(vec![t, u]));
    assert_eq!(answer, Answer::DeleteOffsets(Ok(vec![Err(ErrorCode::GroupSubscribedToTopic), Ok(())])));
    assert_eq!((fetch(&mut world, t, false), fetch(&mut world, u, false)), (Ok(Some(1)), Ok(None)));
    assert_eq!(world.ask(Request::Delete("g".into())), Answer::Delete(Err(ErrorCode::NonEmptyGroup)));
    world.beat(alive("a", LEAVE_EPOCH)).expect("it leaves");
    assert_eq!(world.ask(Request::Delete("g".into())), Answer::Delete(Ok(())));
    assert!(world.store.is_empty(), "{:?}", world.store);
}

fn txn(world: &mut World, producer: u64, epoch: u16, offsets: Vec<(PartitionId, CommitOffset)>) -> Committing {
    let verified = verification(world);
    let (producer, producer_epoch, coordinator) = (ProducerId(producer), ProducerEpoch(epoch), COORDINATOR);
    let request = TxnCommit { commit: commit("", -1, offsets), producer, producer_epoch, verified, coordinator };
    let Answer::Commit(result) = world.ask(Request::TxnCommit(request)) else { panic!("another answer") };
    result
}

const COORDINATOR: CoordinatorEpoch = CoordinatorEpoch(3);

fn verification(world: &mut World) -> Verification {
    let Answer::Verification(verified) = world.ask(Request::Verification) else { panic!("another answer") };
    verified
}

fn end(world: &mut World, producer: u64, epoch: u16, commit: bool) {
    ends(world, TxnEnd { raised: false, ..told(producer, epoch, commit) });
}

fn told(producer: u64, epoch: u16, commit: bool) -> TxnEnd {
    let (producer, epoch) = (ProducerId(producer), ProducerEpoch(epoch));
    TxnEnd { producer, epoch, raised: true, coordinator: COORDINATOR, commit }
}

fn ends(world: &mut World, end: TxnEnd) {
    assert_eq!(world.ask(Request::EndTxn(end)), Answer::EndTxn);
}

/// Rule X5: an end that comes late, or twice, is of an earlier transaction.
#[test]
fn a_late_end_settles_nothing_of_a_later_transaction() {
    let mut world = World::new(&[("t", 1)]);
    let p = world.partition("t", 0);
    txn(&mut world, 5, 0, vec![(p, offset(10))]).expect("it may");
    ends(&mut world, told(5, 1, true));
    assert_eq!(fetch(&mut world, p, true), Ok(Some(10)));
    // The epoch that the first end raised is the next transaction's.
    txn(&mut world, 5, 1, vec![(p, offset(20))]).expect("it may");
    ends(&mut world, told(5, 1, true));
    assert_eq!(fetch(&mut world, p, true), Err(ErrorCode::UnstableOffsetCommit), "told twice");
    // A client that keeps its epoch: only who coordinates tells its ends apart, also after a failover here.
    let deposed = TxnEnd { raised: false, coordinator: CoordinatorEpoch(2), ..told(5, 1, true) };
    ends(&mut world, deposed);
    world.reload(GroupLimits::default());
    ends(&mut world, deposed);
    assert_eq!(fetch(&mut world, p, true), Err(ErrorCode::UnstableOffsetCommit), "told by one who was deposed");
    ends(&mut world, TxnEnd { raised: false, ..told(5, 1, false) });
    assert_eq!(fetch(&mut world, p, true), Ok(Some(10)));
}

/// Rule X3: the next owner knows nothing of ends that the one before was told.
#[test]
fn what_one_owner_verified_is_void_with_the_next() {
    let mut world = World::new(&[("t", 1)]);
    let p = world.partition("t", 0);
    world.shard = world.shard.clone().in_office(CoordinatorEpoch(1));
    let verified = verification(&mut world);
    world.shard = world.shard.clone().in_office(CoordinatorEpoch(2));
    let (producer, producer_epoch, coordinator) = (ProducerId(5), ProducerEpoch(0), COORDINATOR);
    let late =
        TxnCommit { commit: commit("", -1, vec![(p, offset(1))]), producer, producer_epoch, verified, coordinator };
    assert_eq!(world.ask(Request::TxnCommit(late)), Answer::Commit(Err(ErrorCode::InvalidTxnState)));
    assert_eq!(txn(&mut world, 5, 0, vec![(p, offset(1))]), Ok(vec![Ok(())]));
}

/// KIP-447, rule O1: offsets of a transaction count when it is committed; until then who wants stable ones has to wait.
#[test]
fn offsets_of_a_transaction_count_when_it_is_committed() {
    let mut world = World::new(&[("t", 2)]);
    let [p, q] = [0, 1].map(|index| world.partition("t", index));
    plain(&mut world, p, 10);
    assert_eq!(txn(&mut world, 5, 0, vec![(p, offset(20))]), Ok(vec![Ok(())]));
    assert_eq!(fetch(&mut world, p, false), Ok(Some(10)));
    assert_eq!(fetch(&mut world, p, true), Err(ErrorCode::UnstableOffsetCommit));
    assert_eq!(fetch(&mut world, q, true), Ok(None));
    end(&mut world, 5, 0, false);
    assert_eq!(fetch(&mut world, p, true), Ok(Some(10)));
    txn(&mut world, 5, 1, vec![(p, offset(30)), (q, offset(3))]).expect("it may");
    world.reload(GroupLimits::default());
    assert_eq!(fetch(&mut world, p, true), Err(ErrorCode::UnstableOffsetCommit), "a failover keeps it open");
    end(&mut world, 6, 1, true);
    end(&mut world, 5, 0, true);
    assert_eq!(fetch(&mut world, p, true), Err(ErrorCode::UnstableOffsetCommit), "another transaction ended");
    end(&mut world, 5, 2, true);
    assert_eq!((fetch(&mut world, p, true), fetch(&mut world, q, true)), (Ok(Some(30)), Ok(Some(3))));
    plain(&mut world, p, 40);
    end(&mut world, 5, 2, true);
    assert_eq!(fetch(&mut world, p, true), Ok(Some(40)), "an end that is told twice does nothing twice");
}

#[test]
fn the_later_of_two_commits_wins() {
    let mut world = World::new(&[("t", 1)]);
    let p = world.partition("t", 0);
    txn(&mut world, 5, 0, vec![(p, offset(20))]).expect("it may");
    plain(&mut world, p, 30);
    assert_eq!(fetch(&mut world, p, true), Ok(Some(30)), "whatever becomes of the transaction");
    end(&mut world, 5, 0, true);
    assert_eq!(fetch(&mut world, p, true), Ok(Some(30)));
    txn(&mut world, 5, 1, vec![(p, offset(40))]).expect("it may");
    txn(&mut world, 6, 0, vec![(p, offset(50))]).expect("it may");
    world.reload(GroupLimits::default());
    end(&mut world, 6, 0, true);
    assert_eq!(fetch(&mut world, p, true), Ok(Some(50)));
    end(&mut world, 5, 1, true);
    assert_eq!(fetch(&mut world, p, true), Ok(Some(50)));
}

#[test]
fn an_older_instance_of_a_producer_is_fenced() {
    let mut world = World::new(&[("t", 2)]);
    let [p, q] = [0, 1].map(|index| world.partition("t", index));
    txn(&mut world, 5, 1, vec![(p, offset(20))]).expect("it may");
    assert_eq!(txn(&mut world, 5, 0, vec![(q, offset(1))]), Err(ErrorCode::InvalidProducerEpoch));
    // Its successor's transaction is another one.
    txn(&mut world, 5, 2, vec![(q, offset(2))]).expect("it may");
    end(&mut world, 5, 2, true);
    assert_eq!((fetch(&mut world, p, true), fetch(&mut world, q, true)), (Ok(None), Ok(Some(2))));
}

/// Rule X3: what was found open before its end was told is not taken for open after it.
#[test]
fn a_commit_that_was_verified_before_the_end_is_refused() {
    let mut world = World::new(&[("t", 1)]);
    let p = world.partition("t", 0);
    let verified = verification(&mut world);
    end(&mut world, 5, 0, false);
    let (producer, producer_epoch, coordinator) = (ProducerId(5), ProducerEpoch(0), COORDINATOR);
    let late =
        TxnCommit { commit: commit("", -1, vec![(p, offset(1))]), producer, producer_epoch, verified, coordinator };
    assert_eq!(world.ask(Request::TxnCommit(late)), Answer::Commit(Err(ErrorCode::InvalidTxnState)));
    assert_eq!(fetch(&mut world, p, true), Ok(None));
}

#[test]
fn members_are_fenced_inside_transactions_too() {
    let mut world = World::new(&[("t", 1)]);
    let p = world.partition("t", 0);
    world.beat(join("a", &["t"])).expect("it joins");
    let mut of = |member: &str, epoch| {
        let verified = verification(&mut world);
        let commit = commit(member, epoch, vec![(p, offset(1))]);
        let (producer, producer_epoch, coordinator) = (ProducerId(1), ProducerEpoch(0), COORDINATOR);
        let request = TxnCommit { commit, producer, producer_epoch, verified, coordinator };
        let Answer::Commit(result) = world.ask(Request::TxnCommit(request)) else { panic!("another answer") };
        result
    };
    assert_eq!(of("a", 0), Err(ErrorCode::IllegalGeneration));
    assert_eq!(of("b", 1), Err(ErrorCode::UnknownMemberId));
    assert_eq!(of("a", 1), Ok(vec![Ok(())]));
    assert_eq!(of("", -1), Ok(vec![Ok(())]), "producers of old say nothing of the group");
}
