//! What is persisted of a member of a consumer group: one record, or where that were too large a head and pieces (rule Z5).
//!
//! Each version has pieces of its own, which become alive with the head: so no prefix of the changes mixes two versions.

use super::Scope;
use crate::groups::bounds::{self, PIECE_BYTES, RUN_BYTES, TOLD_BYTES_MAX};
use crate::records::groups::{Held, MemberPiece, MemberRecord, Pieces, Record, RecordPart, Told};
use millpond_log::TopicId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What was read back of a member.
#[derive(Default)]
pub(in crate::groups) struct Saved {
    /// Its record; none where that was deleted first.
    pub(in crate::groups) head: Option<MemberRecord>,
    /// By version and index.
    pub(in crate::groups) pieces: BTreeMap<(u64, u32), MemberPiece>,
}

/// Persists a member as it is.
pub(super) fn save(cx: &mut Scope<'_>, id: &Arc<str>, record: &mut MemberRecord) {
    let before = record.pieces;
    let whole = bounds::member_bytes(record) <= cx.limits.member_bytes_max;
    let pieces = if whole { Vec::new() } else { split(record, cx.limits.member_bytes_max) };
    let count = u32::try_from(pieces.len()).expect("a member is bounded");
    record.pieces = Pieces { version: before.version + u64::from(count > 0), count };
    for (part, record) in parts(id, record, pieces) {
        cx.put(part, record);
    }
    if record.pieces != before {
        delete_pieces(cx, id, before);
    }
}

/// Forgets a member.
pub(super) fn forget(cx: &mut Scope<'_>, id: &Arc<str>, pieces: Pieces) {
    // The head first: pieces without one are swept by whoever loads them.
    cx.delete(RecordPart::Member(id.clone()));
    delete_pieces(cx, id, pieces);
}

/// All that is persisted of a member.
pub(super) fn records(id: &Arc<str>, record: &MemberRecord, bytes_max: usize) -> Vec<(RecordPart, Record)> {
    let pieces = if record.pieces.count == 0 { Vec::new() } else { split(record, bytes_max) };
    parts(id, record, pieces)
}

impl Saved {
    /// The member, and forgets what is not of it; none, and nothing is left, if its record or one of its pieces is missing.
    pub(super) fn whole(self, cx: &mut Scope<'_>, id: &Arc<str>) -> Option<MemberRecord> {
        let Some(record) = self.head.clone().and_then(|head| join(head, &self.pieces)) else {
            self.sweep(cx, id);
            return None;
        };
        let alive = record.pieces;
        for (version, piece) in self.pieces.into_keys().filter(|&(version, piece)| !alive.has(version, piece)) {
            cx.delete(RecordPart::MemberPiece { member: id.clone(), version, piece });
        }
        Some(record)
    }

    /// Forgets everything.
    pub(in crate::groups) fn sweep(self, cx: &mut Scope<'_>, id: &Arc<str>) {
        if self.head.is_some() {
            cx.delete(RecordPart::Member(id.clone()));
        }
        for (version, piece) in self.pieces.into_keys() {
            cx.delete(RecordPart::MemberPiece { member: id.clone(), version, piece });
        }
    }
}

impl Pieces {
    fn has(self, version: u64, piece: u32) -> bool {
        version == self.version && piece < self.count
    }
}

fn delete_pieces(cx: &mut Scope<'_>, id: &Arc<str>, Pieces { version, count }: Pieces) {
    for piece in 0..count {
        cx.delete(RecordPart::MemberPiece { member: id.clone(), version, piece });
    }
}

/// Pieces first, then the head, which makes them alive.
fn parts(id: &Arc<str>, record: &MemberRecord, pieces: Vec<MemberPiece>) -> Vec<(RecordPart, Record)> {
    let version = record.pieces.version;
    let head = if pieces.is_empty() { record.clone() } else { head(record) };
    let piece = |(piece, content): (u32, MemberPiece)| {
        (RecordPart::MemberPiece { member: id.clone(), version, piece }, Record::MemberPiece(content))
    };
    let pieces = (0..).zip(pieces).map(piece);
    pieces.chain([(RecordPart::Member(id.clone()), Record::Member(head))]).collect()
}

/// The member without what its pieces hold.
fn head(record: &MemberRecord) -> MemberRecord {
    let mut head = MemberRecord {
        instance: record.instance.clone(),
        rack: record.rack.clone(),
        client: record.client.clone(),
        regex: record.regex.clone(),
        assignor: record.assignor.clone(),
        classic: record.classic.clone(),
        topics: BTreeSet::new(),
        assigned: Held::new(),
        revoking: Held::new(),
        ..*record
    };
    for protocol in head.classic.iter_mut().flat_map(|classic| &mut classic.protocols) {
        protocol.metadata = Vec::new();
    }
    head
}

/// The member again. None if a piece is missing.
fn join(head: MemberRecord, pieces: &BTreeMap<(u64, u32), MemberPiece>) -> Option<MemberRecord> {
    let mut record = head;
    for index in 0..record.pieces.count {
        let piece = pieces.get(&(record.pieces.version, index))?;
        record.topics.extend(piece.topics.iter().cloned());
        record.assigned.extend(&piece.assigned);
        record.revoking.extend(&piece.revoking);
        for told in &piece.told {
            let known = record.classic.as_mut()?.protocols.get_mut(told.protocol as usize)?;
            known.metadata.extend(&told.metadata);
        }
    }
    Some(record)
}

/// What a member's pieces hold, each of at most `bytes_max` bytes as it is spelled, or of one thing.
fn split(record: &MemberRecord, bytes_max: usize) -> Vec<MemberPiece> {
    let mut packer =
        Packer { pieces: vec![MemberPiece::default()], size: PIECE_BYTES, bytes_max, runs: BTreeSet::new() };
    for topic in &record.topics {
        packer.take(bounds::spelled(topic)).topics.insert(topic.clone());
    }
    let protocols = record.classic.iter().flat_map(|classic| &classic.protocols);
    for (protocol, known) in (0..).zip(protocols) {
        for metadata in known.metadata.chunks(TOLD_BYTES_MAX) {
            let told = Told { protocol, metadata: metadata.to_vec() };
            packer.take(bounds::told_bytes(metadata)).told.push(told);
        }
    }
    packer.take_held(&record.assigned, |piece| &mut piece.assigned);
    packer.take_held(&record.revoking, |piece| &mut piece.revoking);
    packer.pieces
}

struct Packer {
    pieces: Vec<MemberPiece>,
    /// At most how many bytes the last one is spelled with.
    size: usize,
    bytes_max: usize,
    /// The runs of partitions that the last one has.
    runs: BTreeSet<(TopicId, i32)>,
}

impl Packer {
    /// The piece that takes so many bytes more.
    fn take(&mut self, bytes: usize) -> &mut MemberPiece {
        if self.size + bytes > self.bytes_max && self.size > PIECE_BYTES {
            self.pieces.push(MemberPiece::default());
            self.size = PIECE_BYTES;
            self.runs.clear();
        }
        self.size += bytes;
        self.pieces.last_mut().expect("there is one always")
    }

    fn take_held(&mut self, held: &Held, of: fn(&mut MemberPiece) -> &mut Held) {
        self.runs.clear();
        for (&partition, &epoch) in held {
            let run = (partition.topic, epoch);
            let bytes = bounds::index_bytes(partition.index);
            // A piece that has the run may be too full for one more of it: the next one begins it anew.
            let begins = !self.runs.contains(&run) || self.size + bytes > self.bytes_max;
            let piece = self.take(bytes + if begins { RUN_BYTES } else { 0 });
            of(piece).insert(partition, epoch);
            self.runs.insert(run);
        }
    }
}
