//! What is persisted of a classic group: its record, and its members in pieces that each fit a value of the metadata store (rule Z5).
//!
//! Each version has pieces of its own, which become alive with the group's record: so no prefix of the changes mixes two versions.

use super::{ClassicGroup, Member, Scope, State};
use crate::records::groups::{ClassicMemberRecord, ClassicPiece, ClassicRecord, GroupRecord, Record, RecordPart};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of members after which a piece is closed. One member more may come on top.
const PIECE_BYTES: usize = 32 << 10;

impl ClassicGroup {
    /// Persists the group as it is.
    pub(in crate::groups) fn save(&mut self, cx: &mut Scope<'_>) {
        let mut pieces = vec![ClassicPiece::default()];
        let mut size = 0;
        for (id, member) in &self.members {
            if size > PIECE_BYTES {
                pieces.push(ClassicPiece::default());
                size = 0;
            }
            size += spelled_bytes(id, &member.record);
            let piece = pieces.last_mut().expect("there is one always");
            piece.members.insert(id.to_string(), member.record.clone());
        }
        pieces.retain(|piece| !piece.members.is_empty());
        self.record.version += 1;
        self.record.pieces = u32::try_from(pieces.len()).expect("members are few");
        let version = self.record.version;
        let pieces = (0..).zip(pieces);
        let pieces = pieces.map(|(piece, members)| (RecordPart::Classic { version, piece }, Record::Classic(members)));
        let group = (RecordPart::Group, Record::Group(GroupRecord::Classic(self.record.clone())));
        let saved: Vec<(RecordPart, Record)> = pieces.chain([group]).collect();
        for (part, record) in &saved {
            cx.put(part.clone(), record.clone());
        }
        for (part, _) in std::mem::replace(&mut self.saved, saved) {
            if part != RecordPart::Group {
                cx.delete(part);
            }
        }
    }

    /// Forgets what is persisted.
    pub(in crate::groups) fn delete(self, cx: &mut Scope<'_>) {
        // The group's record first: pieces without one are swept by whoever loads them.
        for (part, _) in self.saved.into_iter().rev() {
            cx.delete(part);
        }
    }

    /// Forgets the members that are persisted: the group's record is of another kind by now.
    pub(in crate::groups) fn delete_pieces(&self, cx: &mut Scope<'_>) {
        for (part, _) in self.saved.iter().filter(|(part, _)| *part != RecordPart::Group) {
            cx.delete(part.clone());
        }
    }

    /// All that is persisted of the group.
    pub(in crate::groups) fn records(&self) -> Vec<(RecordPart, Record)> {
        self.saved.clone()
    }

    /// Reads a group back. Members get a fresh session each.
    pub(in crate::groups) fn load(
        cx: &mut Scope<'_>,
        record: ClassicRecord,
        pieces: BTreeMap<(u64, u32), ClassicPiece>,
    ) -> ClassicGroup {
        let mut group = ClassicGroup { record, ..ClassicGroup::default() };
        for ((version, piece), members) in pieces {
            let part = RecordPart::Classic { version, piece };
            if version != group.record.version {
                cx.delete(part);
                continue;
            }
            for (id, record) in &members.members {
                let id: Arc<str> = id.as_str().into();
                group.statics.extend(record.instance.clone().map(|instance| (instance, id.clone())));
                cx.after(cx.session(&id), record.session_timeout_ms);
                group.members.insert(id, Member { record: record.clone(), ..Member::default() });
            }
            group.saved.push((part, Record::Classic(members)));
        }
        let record = Record::Group(GroupRecord::Classic(group.record.clone()));
        group.saved.push((RecordPart::Group, record));
        group.state = if group.members.is_empty() { State::Empty } else { State::Stable };
        group.subscribed = group.subscriptions();
        group
    }
}

/// About how many bytes a member takes as JSON: its bytes are spelled in hexadecimal.
fn spelled_bytes(id: &str, record: &ClassicMemberRecord) -> usize {
    let texts =
        id.len() + record.client.id.len() + record.client.host.len() + record.instance.as_deref().map_or(0, str::len);
    let protocols: usize = record.protocols.iter().map(|known| 40 + known.name.len() + 2 * known.metadata.len()).sum();
    200 + texts + protocols + 2 * record.assignment.len()
}
