//! What must hold of any bytes that are read as a key: each key has one spelling, and lies in the spaces it belongs to.

use super::{Key, Keys, ShardKind, Space};
use millpond_core::coordinators::shard_of;
use millpond_log::testing::{Seed, decoding};
use millpond_log::{BrokerId, PartitionId, TopicId};

const PREFIX: &str = "/millpond/c";

/// Reads the input as a key, and as names that a client chose, which become keys.
pub fn key(input: &[u8]) -> bool {
    let keys = Keys::under(PREFIX);
    if let Ok(name) = std::str::from_utf8(input) {
        let chosen = [
            Key::Transaction(name.to_owned()),
            Key::Group { group: name.to_owned(), part: "members".to_owned() },
            Key::Group { group: "g".to_owned(), part: name.to_owned() },
            Key::Offsets { group: name.to_owned(), topic: TopicId(7), block: 0 },
            Key::GroupSettings(name.to_owned()),
        ];
        for key in chosen {
            assert_eq!(keys.parse(&keys.encode(&key)).as_ref(), Ok(&key), "any name can be a part of a key");
            lies_in_its_spaces(&keys, &key);
        }
    }
    // Mutants keep what is behind the prefix, so it is put in front.
    let spelled = [PREFIX.as_bytes(), input].concat();
    let Ok(key) = decoding(&spelled, || keys.parse(&spelled)) else { return false };
    assert_eq!(keys.encode(&key), spelled, "a key has one spelling");
    lies_in_its_spaces(&keys, &key);
    assert!(Keys::under("/millpond/d").parse(&spelled).is_err(), "another cluster's");
    true
}

fn lies_in_its_spaces(keys: &Keys, key: &Key) {
    let space = match key.clone() {
        Key::BrokerDisk(_) | Key::BrokerSession(_) | Key::BrokerDrain(_) | Key::BrokerPurged(_) => Space::Brokers,
        Key::TopicName(_) => Space::TopicNames,
        Key::Topic(_) => Space::Topics,
        Key::Tombstone(_) => Space::Tombstones,
        Key::Partition(partition) => Space::PartitionsOf(partition.topic),
        Key::TierRoot(partition) => Space::TierRootsOf(partition.topic),
        Key::GcDrop { gc_epoch, .. } => Space::DropsBefore(gc_epoch.saturating_add(1)),
        Key::Shard { .. } => Space::Shards,
        Key::ShardPurged { .. } => Space::ShardsPurged,
        Key::Transaction(id) => Space::TransactionsIn(shard_of(&id)),
        Key::Group { group, .. } => Space::GroupsOf(group),
        Key::Offsets { group, .. } => Space::OffsetsOf(group),
        Key::PendingOffsets { group, .. } => Space::PendingOffsetsOf(group),
        Key::ShareState { group, .. } => Space::ShareStatesOf(group),
        Key::GroupSettings(_) => Space::GroupSettings,
        Key::Loss { .. } => Space::Losses,
        _ => Space::All,
    };
    let spelled = keys.encode(key);
    let last_drop = matches!(key, Key::GcDrop { gc_epoch: u64::MAX, .. });
    for space in [Space::All, space] {
        assert!(last_drop || keys.space(&space).contains(&spelled), "{key:?} lies in {space:?}");
    }
}

/// A key of each kind, behind the prefix.
#[must_use]
pub fn key_seeds() -> Vec<Seed> {
    let topic = TopicId(0x0f8f_ad5b_d9cb_469f_a165_7086_7728_950e);
    let partition = PartitionId { topic, index: 7 };
    let group = || "a/b %".to_owned();
    let all = [
        Key::Cluster,
        Key::BrokerDisk(BrokerId(1)),
        Key::BrokerSession(BrokerId(u32::MAX)),
        Key::BrokerDrain(BrokerId(3)),
        Key::TopicName("flights".parse().expect("a name")),
        Key::Topic(topic),
        Key::Tombstone(topic),
        Key::Partition(partition),
        Key::Leadership(partition),
        Key::TierRoot(partition),
        Key::GcEpoch,
        Key::GcBumped,
        Key::GcDrop { gc_epoch: 26, partition, seq: 3 },
        Key::Controller,
        Key::ProducerIds,
        Key::BrokerIds,
        Key::Shard { kind: ShardKind::Txn, shard: 5 },
        Key::ShardSeq { kind: ShardKind::Group, shard: 5 },
        Key::Transaction("payments".to_owned()),
        Key::Group { group: group(), part: "members".to_owned() },
        Key::Offsets { group: group(), topic, block: 2 },
        Key::PendingOffsets { group: group(), topic, block: 2, producer: 1 << 40 },
        Key::ShareState { group: group(), partition },
        Key::Bucket,
        Key::Loss { partition, epoch: 4 },
        Key::GroupSettings(group()),
        Key::BrokerPurged(BrokerId(3)),
        Key::Buried,
        Key::ShardPurged { kind: ShardKind::Group, shard: 5 },
    ];
    let keys = Keys::under(PREFIX);
    (0..)
        .zip(all)
        .map(|(nth, key): (u32, Key)| (format!("{nth:02}"), keys.encode(&key)[PREFIX.len()..].to_vec()))
        .collect()
}
