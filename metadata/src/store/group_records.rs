//! The records of a shard of groups as values: what its owner loads, and what it commits.

use super::shards::{HeldShard, ShardWrite};
use super::{Store, StoreError, codec};
use crate::keys::{Key, ShardKind, Space};
use crate::kv::Revision;
use bytes::Bytes;
use millpond_core::groups::Change;
use millpond_core::records::groups::{PendingBlock, Record, RecordKey, RecordPart, decode_offsets, encode_offsets};

/// What a shard was read back from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupRecords {
    /// The records, in order of key within groups, offsets and pending offsets.
    pub records: Vec<(RecordKey, Record)>,
    /// Bytes of their values.
    pub bytes: u64,
}

impl From<&Change> for ShardWrite {
    fn from(change: &Change) -> ShardWrite {
        ShardWrite { key: Key::from(&change.key), value: change.record.as_ref().map(encode) }
    }
}

impl Store {
    /// Reads all records of a shard of groups that the caller has taken (rule O3): nobody else writes them any more, so pages
    /// read one after the other are one state.
    ///
    /// # Errors
    /// As all reads: one record that cannot be read refuses the whole (rule K6).
    ///
    /// # Panics
    /// The shard is none of groups.
    pub async fn load_groups(&self, held: &HeldShard) -> Result<GroupRecords, StoreError> {
        assert_eq!(held.kind(), ShardKind::Group, "a shard of groups");
        let shard = held.shard();
        let mut loaded = GroupRecords::default();
        for space in [Space::GroupsIn(shard), Space::OffsetsIn(shard), Space::PendingOffsetsIn(shard)] {
            for (key, found) in self.list(&space).await?.1 {
                let spelled = self.keys.encode(&key);
                let record = key.group_record().ok_or_else(|| damaged(&spelled, "no record of this version"))?;
                loaded.bytes += found.value.len() as u64;
                let value = decode(&spelled, &record.part, &found.value, found.revision)?;
                loaded.records.push((record, value));
            }
        }
        Ok(loaded)
    }
}

fn encode(record: &Record) -> Bytes {
    match record {
        Record::Group(group) => codec::value(group),
        Record::Member(member) => codec::value(member),
        Record::MemberPiece(piece) => codec::value(piece),
        Record::Classic(piece) => codec::value(piece),
        Record::Offsets(block) => encode_offsets(block).into(),
        Record::Pending(block) => block.encode().into(),
    }
}

fn decode(key: &Bytes, part: &RecordPart, value: &Bytes, revision: Revision) -> Result<Record, StoreError> {
    let unreadable = || damaged(key, "not a block of offsets of this version");
    Ok(match part {
        RecordPart::Group => Record::Group(codec::record(key, value, revision)?.value),
        RecordPart::Member(_) => Record::Member(codec::record(key, value, revision)?.value),
        RecordPart::MemberPiece { .. } => Record::MemberPiece(codec::record(key, value, revision)?.value),
        RecordPart::Classic { .. } => Record::Classic(codec::record(key, value, revision)?.value),
        RecordPart::Offsets { .. } => Record::Offsets(decode_offsets(value).ok_or_else(unreadable)?),
        RecordPart::Pending { .. } => Record::Pending(PendingBlock::decode(value).ok_or_else(unreadable)?),
    })
}

fn damaged(key: &Bytes, reason: &str) -> StoreError {
    StoreError::Damaged { key: String::from_utf8_lossy(key).into_owned(), reason: reason.to_owned() }
}
