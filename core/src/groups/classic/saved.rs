//! What is persisted of a classic group: its record, and its members in pieces that each fit a value of the metadata store (rule Z5).
//!
//! Each version has pieces of its own, which become alive with the group's record: so no prefix of the changes mixes two versions. A member
//! that says much, or was given much, is in several of them.

use super::{ClassicGroup, Member, Scope, State};
use crate::groups::bounds::{TEXT_BYTES_MAX, spelled_bytes};
use crate::records::groups::{
    ClassicMemberRecord, ClassicPiece, ClassicRecord, GroupRecord, Protocol, Record, RecordPart,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Most bytes of members in a piece.
const PIECE_BYTES: usize = 56 << 10;

/// Most bytes of what a member said and was given in one piece, before they are spelled in hexadecimal.
const SHARE_BYTES: usize = 16 << 10;

const _: () = assert!(2 * SHARE_BYTES + TEXT_BYTES_MAX + (1 << 10) <= PIECE_BYTES, "a share fits a piece");

impl ClassicGroup {
    /// Persists the group as it is.
    pub(in crate::groups) fn save(&mut self, cx: &mut Scope<'_>) {
        let mut pieces = vec![ClassicPiece::default()];
        let mut size = 0;
        for (id, member) in &self.members {
            for share in shares(&member.record) {
                let bytes = spelled_bytes(id, &share);
                let last = pieces.last_mut().expect("there is one always");
                if size + bytes > PIECE_BYTES || last.members.contains_key(&**id) {
                    pieces.push(ClassicPiece::default());
                    size = 0;
                }
                size += bytes;
                let piece = pieces.last_mut().expect("there is one always");
                piece.members.insert(id.to_string(), share);
            }
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
                if let Some(member) = group.members.get_mut(&id) {
                    add_share(&mut member.record, record);
                    continue;
                }
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

/// A member in as many shares as it takes: each has its part of what the member told every protocol, and of what it was given.
fn shares(record: &ClassicMemberRecord) -> Vec<ClassicMemberRecord> {
    let metadata: usize = record.protocols.iter().map(|known| known.metadata.len()).sum();
    let count = (metadata + record.assignment.len()).div_ceil(SHARE_BYTES).max(1);
    let part = |bytes: &[u8], nth: usize| bytes[bytes.len() * nth / count..bytes.len() * (nth + 1) / count].to_vec();
    let share = |nth: usize| {
        let protocol = |known: &Protocol| Protocol { name: known.name.clone(), metadata: part(&known.metadata, nth) };
        let protocols = record.protocols.iter().map(protocol).collect();
        let assignment = part(&record.assignment, nth);
        match nth {
            0 => ClassicMemberRecord {
                instance: record.instance.clone(),
                client: record.client.clone(),
                rebalance_timeout_ms: record.rebalance_timeout_ms,
                session_timeout_ms: record.session_timeout_ms,
                protocols,
                assignment,
            },
            _ => ClassicMemberRecord { protocols, assignment, ..ClassicMemberRecord::default() },
        }
    };
    (0..count).map(share).collect()
}

/// Adds the next share of a member to those before it.
fn add_share(record: &mut ClassicMemberRecord, share: &ClassicMemberRecord) {
    for (known, more) in record.protocols.iter_mut().zip(&share.protocols) {
        known.metadata.extend(&more.metadata);
    }
    record.assignment.extend(&share.assignment);
}
