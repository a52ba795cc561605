//! A shard as it is read back from its records. What was cut short is put right, by changes that come with it.

use super::{
    ClassicGroup, ConsumerGroup, Ends, Group, GroupRules, Kind, Now, Patterns, Shard, Step, Timer, Timers, Topics,
};
use crate::groups::consumer::Saved;
use crate::records::groups::{ClassicPiece, GroupRecord, Record, RecordKey, RecordPart};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is left of a group before it is put together.
#[derive(Default)]
struct Parts {
    group: Option<GroupRecord>,
    members: BTreeMap<Arc<str>, Saved>,
    pieces: BTreeMap<(u64, u32), ClassicPiece>,
    loaded: Group,
}

/// A record under a key of another kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("group `{}` has a record of another kind under {:?}", .0.group, .0.part)]
pub struct MisplacedRecord(pub RecordKey);

impl Shard {
    /// Reads a shard back (rule O3). Members get a fresh session each: what they sent meanwhile was answered by nobody.
    ///
    /// The records are those of one moment. Tombstones of topics that were seen while nobody owned the shard are told by `topic_deleted`
    /// afterwards, all that there are.
    ///
    /// # Errors
    /// A record is under a key of another kind.
    pub fn load(
        now: Now,
        rules: impl Into<GroupRules>,
        topics: Arc<Topics>,
        records: impl IntoIterator<Item = (RecordKey, Record)>,
    ) -> Result<(Shard, Step), MisplacedRecord> {
        let mut parts: BTreeMap<Arc<str>, Parts> = BTreeMap::new();
        for (key, record) in records {
            let parts = parts.entry(key.group.clone()).or_default();
            match (&key.part, record) {
                (RecordPart::Group, Record::Group(record)) => parts.group = Some(record),
                (RecordPart::Member(id), Record::Member(record)) => {
                    parts.members.entry(id.clone()).or_default().head = Some(record);
                }
                (RecordPart::MemberPiece { member, version, piece }, Record::MemberPiece(record)) => {
                    let saved = parts.members.entry(member.clone()).or_default();
                    saved.pieces.insert((*version, *piece), record);
                }
                (&RecordPart::Classic { version, piece }, Record::Classic(record)) => {
                    parts.pieces.insert((version, piece), record);
                }
                (&RecordPart::Offsets { topic, block }, Record::Offsets(offsets)) => {
                    parts.loaded.offsets.load((topic, block), offsets);
                }
                (&RecordPart::Pending { topic, block, producer }, Record::Pending(pending)) => {
                    parts.loaded.offsets.load_pending((topic, block), producer, pending);
                }
                _ => return Err(MisplacedRecord(key)),
            }
        }
        let rules = rules.into();
        let expiry_ms = rules.limits.expiry_interval_ms;
        let mut shard = Shard {
            rules,
            topics,
            patterns: Patterns::default(),
            timers: Timers::default(),
            groups: BTreeMap::new(),
            open: BTreeMap::new(),
            ends: Ends::default(),
            expiry_after: None,
        };
        shard.timers.set(Timer::Expiry, now.steady_ms.saturating_add(expiry_ms.into()));
        let mut step = Step::default();
        for (name, Parts { group, members, pieces, loaded }) in parts {
            for producer in loaded.offsets.producers() {
                shard.open.entry(producer).or_default().insert(name.clone());
            }
            shard.groups.insert(name.clone(), loaded);
            shard.enter(now, &mut step, &name, |cx, loaded| {
                // What is left over is of a group that was being deleted, or whose kind was being changed.
                let (mut stray_members, mut stray_pieces) = (members, pieces);
                match group {
                    Some(GroupRecord::Consumer(record)) => {
                        let members = std::mem::take(&mut stray_members);
                        loaded.kind = Kind::Consumer(ConsumerGroup::load(cx, record, members));
                    }
                    Some(GroupRecord::Classic(record)) => {
                        let pieces = std::mem::take(&mut stray_pieces);
                        loaded.kind = Kind::Classic(ClassicGroup::load(cx, record, pieces));
                    }
                    None => {}
                }
                for (id, saved) in stray_members {
                    saved.sweep(cx, &id);
                }
                for (version, piece) in stray_pieces.into_keys() {
                    cx.delete(RecordPart::Classic { version, piece });
                }
            });
        }
        Ok((shard, step))
    }
}
