//! A shard that is read back (rule O3) is the one that was persisted, wherever its changes were cut.

use super::*;
use crate::records::groups::{GroupRecord, RecordPart};

#[test]
fn a_group_at_rest_is_loaded_as_it_was() {
    let mut world = World::new(&[("t", 4)]);
    world.beat(join("a", &["t"])).expect("it joins");
    world.beat(join("b", &["t"])).expect("it joins");
    world.beat(alive("a", 1)).expect("a member");
    world.beat(owning("a", 2, world.partitions("t", 0..2))).expect("a member");
    world.beat(alive("b", 2)).expect("a member");
    let before = (world.store.clone(), world.describe("g"));
    world.reload(GroupLimits::default());
    assert_eq!((world.store.clone(), world.describe("g")), before);
    // Sessions are fresh, and nobody has to move.
    world.pass(44_000);
    assert_eq!(world.beat(alive("a", 2)).expect("a member").epoch, 2);
    world.pass(2_000);
    assert_eq!(world.beat(alive("b", 2)), Err(ErrorCode::UnknownMemberId));
}

/// Rule S20: what was to be given up is still to be given up after a failover.
#[test]
fn a_rebalance_goes_on_after_a_failover() {
    let mut world = World::new(&[("t", 2)]);
    let all = world.partitions("t", 0..2);
    world.beat(join("a", &["t"])).expect("it joins");
    world.beat(join("b", &["t"])).expect("it joins");
    world.beat(owning("a", 1, all.clone())).expect("a member");
    world.reload(GroupLimits::default());
    assert_eq!(world.beat(alive("b", 2)).expect("a member").assignment, Some(BTreeSet::new()));
    let a = world.beat(owning("a", 1, all)).expect("a member");
    assert_eq!((a.epoch, a.assignment), (2, Some(world.partitions("t", [0]))));
    world.beat(owning("a", a.epoch, world.partitions("t", [0]))).expect("it gave the other up");
    let b = world.beat(alive("b", 3)).expect("a member");
    assert_eq!((b.epoch, b.assignment), (3, Some(world.partitions("t", [1]))));
}

#[test]
fn topics_that_came_while_nobody_looked_are_assigned() {
    let mut world = World::new(&[("t", 1)]);
    world.beat(join("a", &["t"])).expect("it joins");
    let version = world.image();
    world.put_topic("t", 2);
    let (shard, step) = Shard::load(world.now, GroupLimits::default(), version, world.store.clone()).expect("in place");
    assert_eq!(step.changes, []);
    world.shard = shard;
    world.publish();
    assert_eq!(world.beat(alive("a", 1)).expect("a member").assignment, Some(world.partitions("t", 0..2)));
}

#[test]
fn records_of_a_group_that_is_gone_are_swept() {
    let mut world = World::new(&[("t", 1)]);
    world.beat(join("a", &["t"])).expect("it joins");
    world.store.retain(|key, _| key.part != RecordPart::Group);
    world.reload(GroupLimits::default());
    assert!(world.store.is_empty(), "{:?}", world.store);
    let key = RecordKey { group: "g".into(), part: RecordPart::Member("a".into()) };
    let record = Record::Group(GroupRecord::Consumer(Default::default()));
    let loaded = Shard::load(world.now, GroupLimits::default(), world.image(), [(key.clone(), record)]);
    assert_eq!(loaded.err(), Some(MisplacedRecord(key)));
}

/// Rule S20: two members that claim one partition are never both believed.
#[test]
fn a_partition_that_two_claim_stays_with_one() {
    let mut world = World::new(&[("t", 1)]);
    world.beat(join("a", &["t"])).expect("it joins");
    let key = |member: &str| RecordKey { group: "g".into(), part: RecordPart::Member(member.into()) };
    let record = world.store[&key("a")].clone();
    world.store.insert(key("b"), record);
    world.reload(GroupLimits::default());
    assert!(!world.store.contains_key(&key("b")));
    assert_eq!(world.beat(alive("b", 1)), Err(ErrorCode::UnknownMemberId));
    world.beat(alive("a", 1)).expect("a member");
}
