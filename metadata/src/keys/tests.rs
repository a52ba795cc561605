//! Every key reads back, sorts by its numbers, and has one spelling.

use super::*;
use proptest::prelude::*;

const TOPIC: TopicId = TopicId(0x0f8f_ad5b_d9cb_469f_a165_7086_7728_950e);

fn keys() -> Keys {
    Keys::for_cluster("test")
}

fn text(key: &Key) -> String {
    String::from_utf8(keys().encode(key).to_vec()).expect("keys are text")
}

fn partition(index: u32) -> PartitionId {
    PartitionId { topic: TOPIC, index }
}

#[test]
fn keys_are_spelled_as_the_table_says() {
    let check = |key: Key, path: &str| {
        assert_eq!(text(&key), format!("/millpond/test{path}"));
        assert_eq!(keys().parse(&keys().encode(&key)), Ok(key));
    };
    let uuid = "0f8fad5b-d9cb-469f-a165-70867728950e";
    check(Key::Cluster, "/cluster");
    check(Key::BrokerDisk(BrokerId(7)), "/b/7/wal");
    check(Key::BrokerSession(BrokerId(7)), "/b/7/sess");
    check(Key::BrokerDrain(BrokerId(7)), "/b/7/drain");
    check(Key::BrokerPurged(BrokerId(7)), "/b/7/purged");
    check(Key::TopicName("a.b".parse().expect("valid")), "/topics/a.b");
    check(Key::Topic(TOPIC), &format!("/topic/{uuid}"));
    check(Key::Tombstone(TOPIC), &format!("/tomb/{uuid}"));
    check(Key::Buried, "/buried");
    check(Key::Partition(partition(3)), &format!("/p/{uuid}/0000000003"));
    check(Key::Leadership(partition(3)), &format!("/pe/{uuid}/0000000003"));
    check(Key::TierRoot(partition(u32::MAX)), &format!("/t/{uuid}/4294967295"));
    check(Key::GcEpoch, "/gc/epoch");
    check(Key::GcBumped, "/gc/bumped");
    let drop = Key::GcDrop { gc_epoch: 11, partition: partition(3), seq: 255 };
    check(drop, &format!("/gc/drop/000000000000000b/{uuid}/0000000003/00000000000000ff"));
    check(Key::Controller, "/controller");
    check(Key::ProducerIds, "/pid/next");
    check(Key::BrokerIds, "/bid/next");
    check(Key::Shard { kind: ShardKind::Group, shard: 4 }, "/shard/group/0000000004");
    check(Key::Transaction("a/b%\u{0}é".to_owned()), "/x/0000000005/a%2Fb%25%00é");
    check(Key::ShardSeq { kind: ShardKind::Txn, shard: 4 }, "/seq/txn/0000000004");
    check(Key::ShardPurged { kind: ShardKind::Group, shard: 4 }, "/purged/group/0000000004");
    check(Key::Group { group: "g".to_owned(), part: "members".to_owned() }, "/g/0000000004/g/members");
    let offsets = Key::Offsets { group: String::new(), topic: TOPIC, block: 1 };
    check(offsets, &format!("/o/0000000011//{uuid}/0000000001"));
    let pending = Key::PendingOffsets { group: "g".to_owned(), topic: TOPIC, block: 1, producer: 9 };
    check(pending, &format!("/op/0000000004/g/{uuid}/0000000001/00000000000000000009"));
    let share = Key::ShareState { group: "g".to_owned(), partition: partition(1) };
    check(share, &format!("/s/g/{uuid}/0000000001"));
    check(Key::GroupSettings("a/b".to_owned()), "/gset/a%2Fb");
    check(Key::Bucket, "/bucket");
    check(Key::Loss { partition: partition(1), epoch: 2 }, &format!("/loss/{uuid}/0000000001/0000000002"));
}

#[test]
fn other_spellings_are_foreign() {
    let uuid = "0f8fad5b-d9cb-469f-a165-70867728950e";
    for path in [
        "",
        "/",
        "/cluster/",
        "/Cluster",
        "/b/07/wal",
        "/b/+7/wal",
        "/b/7/lease",
        "/topics/a b",
        "/pid/first",
        "/x/a",
        "/x/0000000000/g",
        "/x/0000000004/%2f",
        "/x/0000000004/%41",
        "/x/0000000004/%4",
        "/gc/drop/b",
        &format!("/p/{uuid}/3"),
        &format!("/p/{}/0000000003", uuid.to_uppercase()),
        &format!("/p/{uuid}/0000000003/x"),
        &format!("/p/{uuid}/9999999999"),
    ] {
        let key = format!("/millpond/test{path}");
        assert_eq!(keys().parse(key.as_bytes()), Err(ForeignKey(key.clone().into())), "{key}");
    }
    assert!(keys().parse(b"/millpond/tes/cluster").is_err());
    assert!(keys().parse(b"/millpond/test2/cluster").is_err());
    assert!(keys().parse(b"/millpond/test/x/0000000004/\xff").is_err());
}

#[test]
fn spaces_hold_their_keys_and_no_others() {
    let check = |space: Space, inside: Key, outside: Key| {
        let interval = keys().space(&space);
        assert!(interval.contains(&keys().encode(&inside)), "{space:?} {inside:?}");
        assert!(!interval.contains(&keys().encode(&outside)), "{space:?} {outside:?}");
    };
    let other = PartitionId { topic: TopicId(TOPIC.0 + 1), index: 0 };
    check(Space::Topics, Key::Topic(TOPIC), Key::TopicName("a".parse().expect("valid")));
    check(Space::Partitions, Key::Partition(other), Key::Leadership(other));
    check(Space::PartitionsOf(TOPIC), Key::Partition(partition(u32::MAX)), Key::Partition(other));
    let dropped = |gc_epoch| Key::GcDrop { gc_epoch, partition: other, seq: 1 };
    check(Space::DropsBefore(16), dropped(15), dropped(16));
    check(Space::GroupsOf("a".to_owned()), group("a"), group("ab"));
    check(Space::GroupsOf("a".to_owned()), group("a"), group("a/b"));
    check(Space::GroupSettings, Key::GroupSettings(String::new()), group("set"));
    let (in_four, in_nine) = ("g", "orders");
    check(Space::TransactionsIn(4), Key::Transaction(in_four.to_owned()), Key::Transaction(in_nine.to_owned()));
    assert!(!keys().space(&Space::All).contains(&Keys::for_cluster("test2").encode(&Key::Cluster)));
}

fn group(name: &str) -> Key {
    Key::Group { group: name.to_owned(), part: "epoch".to_owned() }
}

#[test]
fn partitions_sort_by_number() {
    let spelled: Vec<Bytes> = [0, 9, 10, 99_999, u32::MAX].map(|n| keys().encode(&Key::Partition(partition(n)))).into();
    assert!(spelled.is_sorted());
}

proptest! {
    #[test]
    fn any_name_reads_back(group in ".*", part in ".*") {
        let key = Key::Group { group, part };
        prop_assert_eq!(keys().parse(&keys().encode(&key)), Ok(key));
    }

    #[test]
    fn any_bytes_are_read_without_panic(path in proptest::collection::vec(any::<u8>(), 0..60)) {
        let key = [b"/millpond/test/", path.as_slice()].concat();
        if let Ok(parsed) = keys().parse(&key) {
            prop_assert_eq!(keys().encode(&parsed), key);
        }
    }
}
