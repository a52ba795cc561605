//! How much members may say of themselves, so that what is persisted of each fits the metadata store (rule Z5).
//!
//! Whoever persists more than a value may hold loses its shard, and all groups of it: so it is refused before it changes anything.

use super::step::{Heartbeat, Join, SyncGroup};
use crate::records::groups::{ClassicMemberRecord, Client, Protocol};

/// Most bytes that a classic member tells its assignors, all of them together, and most that its leader gives it.
/// A cooperative member that owns 10 000 partitions of one topic says them to two assignors: 80 KiB.
pub const CLASSIC_BYTES_MAX: usize = 128 << 10;

/// Most bytes that a classic member of a consumer group tells its assignors: there a member is one value, beside what it owns.
pub const CONVERTED_BYTES_MAX: usize = 12 << 10;

/// Most bytes of the names by which a member is known, of its protocols, and of what it subscribes to in a consumer group, as they
/// are persisted: some hundred topics.
pub const TEXT_BYTES_MAX: usize = 16 << 10;

/// A protocol's braces, quotes and field names.
const PROTOCOL_BYTES: usize = 40;

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
    let topics: usize = heartbeat.topics.iter().flatten().map(|topic| spelled(topic)).sum();
    let names = spelled(&heartbeat.member) + known_by(&heartbeat.client, heartbeat.instance.as_ref());
    // Words that are not said again stay: those of several heartbeats add up.
    words + names > TEXT_BYTES_MAX / 4 || topics > TEXT_BYTES_MAX
}

/// Whether a classic member can be one of a consumer group.
pub(super) fn fits_consumer_group(protocols: &[Protocol]) -> bool {
    metadata_bytes(protocols) <= CONVERTED_BYTES_MAX
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
fn spelled(text: &str) -> usize {
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
