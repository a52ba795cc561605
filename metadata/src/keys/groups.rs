//! Which keys the records of groups have. What they hold is `core`'s.

use super::Key;
use millpond_core::records::groups::{RecordKey, RecordPart};
use millpond_log::ProducerId;

impl From<&RecordKey> for Key {
    fn from(key: &RecordKey) -> Key {
        let group = key.group.to_string();
        match (&key.part, key.part.name()) {
            (&RecordPart::Offsets { topic, block }, _) => Key::Offsets { group, topic, block },
            (&RecordPart::Pending { topic, block, producer }, _) => {
                Key::PendingOffsets { group, topic, block, producer: producer.0 }
            }
            (_, part) => Key::Group { group, part: part.expect("all other parts have a name") },
        }
    }
}

impl Key {
    /// The record of a group that has this key; none if it is another key, or a part that this version does not know.
    #[must_use]
    pub fn group_record(&self) -> Option<RecordKey> {
        let (group, part) = match self {
            Key::Group { group, part } => (group, RecordPart::from_name(part)?),
            Key::Offsets { group, topic, block } => (group, RecordPart::Offsets { topic: *topic, block: *block }),
            Key::PendingOffsets { group, topic, block, producer } => {
                let producer = ProducerId(*producer);
                (group, RecordPart::Pending { topic: *topic, block: *block, producer })
            }
            _ => return None,
        };
        Some(RecordKey { group: group.as_str().into(), part })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Keys;
    use millpond_log::TopicId;

    #[test]
    fn every_record_of_a_group_has_a_key_of_its_own() {
        let (topic, producer) = (TopicId(7), ProducerId(u64::MAX));
        let parts = [
            RecordPart::Group,
            RecordPart::Member("group".into()),
            RecordPart::Member("a/b%.é".into()),
            RecordPart::MemberPiece { member: "3.0.a/b".into(), version: 3, piece: 0 },
            RecordPart::Classic { version: 3, piece: 0 },
            RecordPart::Offsets { topic, block: 1 },
            RecordPart::Pending { topic, block: 1, producer },
        ];
        let keys = Keys::for_cluster("c");
        let mut spelled = std::collections::BTreeSet::new();
        for part in parts {
            let key = RecordKey { group: "g/1".into(), part };
            let bytes = keys.encode(&Key::from(&key));
            assert_eq!(keys.parse(&bytes).expect("a key of ours").group_record(), Some(key));
            spelled.insert(bytes);
        }
        assert_eq!(spelled.len(), 7);
        assert_eq!(Key::Cluster.group_record(), None);
        let other = Key::Group { group: "g".to_owned(), part: "else".to_owned() };
        assert_eq!(other.group_record(), None);
    }
}
