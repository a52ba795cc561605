//! How much members may say of themselves, so that what is persisted of each fits the metadata store (rule Z5).
//!
//! Whoever persists more than a value may hold loses its shard, and all groups of it: so it is refused before it changes anything.

use super::embedded::Subscription;
use super::step::{Heartbeat, Join, MEMBER_BYTES_MAX, SyncGroup};
use crate::records::groups::{ClassicMemberRecord, Client, Held, MemberRecord, Protocol};
use millpond_log::TopicId;
use millpond_log::limits::TOPIC_NAME_BYTES_MAX;
use std::collections::BTreeSet;

/// Most bytes that a classic member tells its assignors, all of them together, and most that its leader gives it.
/// A cooperative member that owns 10 000 partitions of one topic says them to two assignors: 80 KiB.
pub const CLASSIC_BYTES_MAX: usize = 128 << 10;

/// Most bytes of the names by which a member is known and of its protocols, as they are persisted.
pub const TEXT_BYTES_MAX: usize = 16 << 10;

/// Most bytes of what a member of a consumer group says of itself in one heartbeat, its topics aside. What is not said again stays, so
/// that those of several heartbeats add up: to less than a value holds.
pub const WORDS_BYTES_MAX: usize = 4 << 10;

/// Most bytes of the names of topics that a member of a consumer group subscribes to, as they are persisted: some ten thousand topics.
pub const SUBSCRIPTION_BYTES_MAX: usize = 512 << 10;

/// Longest name of a group, in bytes: it is part of keys of the metadata store.
pub const GROUP_NAME_BYTES_MAX: usize = 4 << 10;

/// A protocol's braces, quotes and field names.
const PROTOCOL_BYTES: usize = 40;

/// Field names, braces, numbers and the envelope of a member's record.
const MEMBER_BYTES: usize = 600;

/// The same of a piece of it.
pub(super) const PIECE_BYTES: usize = 100;

/// Partitions of one topic with one epoch: braces, field names, topic id and epoch.
pub(super) const RUN_BYTES: usize = 110;

/// Most bytes of what a member told an assignor that stay together in a piece.
pub(super) const TOLD_BYTES_MAX: usize = 8 << 10;

const _: () = assert!(
    MEMBER_BYTES + 3 * WORDS_BYTES_MAX + 2 * TEXT_BYTES_MAX <= MEMBER_BYTES_MAX,
    "what is in no piece fits a member's record"
);

/// Whether a join says too much to be persisted.
pub(super) fn join_is_too_large(join: &Join) -> bool {
    let names = spelled(&join.member) + spelled(&join.fresh) + spelled(&join.protocol_type);
    names + known_by(&join.client, join.instance.as_ref()) + protocol_names(&join.protocols) > TEXT_BYTES_MAX
        || metadata_bytes(&join.protocols) > CLASSIC_BYTES_MAX
}

/// Whether a leader gives a member too much.
pub(super) fn sync_is_too_large(sync: &SyncGroup) -> bool {
    sync.assignments.values().any(|assignment| assignment.len() > CLASSIC_BYTES_MAX)
}

/// Whether a member of a consumer group says too much.
pub(super) fn heartbeat_is_too_large(heartbeat: &Heartbeat) -> bool {
    let words = [&heartbeat.rack, &heartbeat.regex, &heartbeat.assignor];
    let words: usize = words.into_iter().flatten().map(|word| spelled(word)).sum();
    let names = spelled(&heartbeat.member) + known_by(&heartbeat.client, heartbeat.instance.as_ref());
    words + names > WORDS_BYTES_MAX || heartbeat.topics.as_ref().is_some_and(|topics| !fits(topics))
}

/// Whether a classic member can be one of a consumer group. What it tells its assignors is bounded as it joins.
pub(super) fn fits_consumer_group(subscription: &Subscription) -> bool {
    subscription.rack.as_ref().is_none_or(|rack| spelled(rack) <= WORDS_BYTES_MAX) && fits(&subscription.topics)
}

/// Whether these can be subscribed to. No topic has a longer name.
fn fits(topics: &BTreeSet<String>) -> bool {
    topics.iter().all(|topic| topic.len() <= TOPIC_NAME_BYTES_MAX)
        && topics.iter().map(|topic| spelled(topic)).sum::<usize>() <= SUBSCRIPTION_BYTES_MAX
}

/// At most how many bytes a member of a consumer group takes as it is persisted.
pub(super) fn member_bytes(record: &MemberRecord) -> usize {
    let words = [&record.rack, &record.regex, &record.assignor];
    let words: usize = words.into_iter().flatten().map(|word| spelled(word)).sum();
    let protocols = record.classic.iter().flat_map(|classic| &classic.protocols);
    let protocols = protocols.map(|known| PROTOCOL_BYTES + spelled(&known.name) + 2 * known.metadata.len());
    let topics: usize = record.topics.iter().map(|topic| spelled(topic)).sum();
    let held = held_bytes(&record.assigned) + held_bytes(&record.revoking);
    MEMBER_BYTES + words + known_by(&record.client, record.instance.as_ref()) + protocols.sum::<usize>() + topics + held
}

fn held_bytes(held: &Held) -> usize {
    let runs: BTreeSet<(TopicId, i32)> = held.iter().map(|(partition, &epoch)| (partition.topic, epoch)).collect();
    RUN_BYTES * runs.len() + held.keys().map(|partition| index_bytes(partition.index)).sum::<usize>()
}

/// Digits of a partition's index, and what is behind them. In a range two stand for as many partitions at least.
pub(super) fn index_bytes(index: u32) -> usize {
    index.checked_ilog10().unwrap_or(0) as usize + 2
}

/// At most how many bytes a part of what a member told an assignor takes as it is persisted.
pub(super) fn told_bytes(metadata: &[u8]) -> usize {
    PROTOCOL_BYTES + 2 * metadata.len()
}

/// At most how many bytes a classic member takes as it is persisted: its bytes are spelled in hexadecimal.
pub(super) fn spelled_bytes(id: &str, record: &ClassicMemberRecord) -> usize {
    let texts = spelled(id) + known_by(&record.client, record.instance.as_ref()) + protocol_names(&record.protocols);
    200 + texts + 2 * (metadata_bytes(&record.protocols) + record.assignment.len())
}

fn known_by(client: &Client, instance: Option<&String>) -> usize {
    spelled(&client.id) + spelled(&client.host) + instance.map_or(0, |instance| spelled(instance))
}

fn protocol_names(protocols: &[Protocol]) -> usize {
    protocols.iter().map(|known| PROTOCOL_BYTES + spelled(&known.name)).sum()
}

fn metadata_bytes(protocols: &[Protocol]) -> usize {
    protocols.iter().map(|known| known.metadata.len()).sum()
}

/// Bytes of a text in JSON, quotes and comma included.
pub(super) fn spelled(text: &str) -> usize {
    let byte = |byte: u8| match byte {
        b'"' | b'\\' => 2,
        0..0x20 => 6,
        _ => 1,
    };
    3 + text.bytes().map(byte).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn texts_take_no_more_than_is_counted(text in any::<String>()) {
            let json = serde_json::to_string(&text).expect("any text is one in JSON");
            prop_assert!(json.len() < spelled(&text) + 1, "{json}");
        }

        #[test]
        fn members_take_no_more_than_is_counted(
            id in any::<String>(),
            instance in any::<Option<String>>(),
            metadata in proptest::collection::vec(any::<u8>(), 0..200),
            names in proptest::collection::vec(any::<String>(), 0..5),
        ) {
            let protocols = names.into_iter().map(|name| Protocol { name, metadata: metadata.clone() }).collect();
            let record = ClassicMemberRecord { instance, protocols, assignment: metadata, ..Default::default() };
            let piece = crate::records::groups::ClassicPiece { members: [(id.clone(), record.clone())].into() };
            let json = serde_json::to_string(&piece).expect("a record is JSON");
            prop_assert!(json.len() <= spelled_bytes(&id, &record) + 64, "{json}");
        }
    }
}
