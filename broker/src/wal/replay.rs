//! Rebuilds one partition's tail from its frames, in the order of their sequence numbers (rule W8a). Pure.
//!
//! Where frames are missing it keeps the good part before, and says so; it never bridges a gap.

use super::scan::{Detail, Found};
use super::tail::{FIRST_SEQ, Held, Place, Tail, known_hash};
use millpond_log::frame::{FrameKind, PartitionState};
use millpond_log::{LeaderEpoch, Lsn, Offset};

/// The frames of one partition, as they are found.
#[derive(Default)]
pub(super) struct Frames {
    found: Vec<Piece>,
}

#[derive(Clone, Copy)]
struct Piece {
    seq: u64,
    lsn: Lsn,
    copied: bool,
    kind: FrameKind,
    offset: Offset,
    epoch: LeaderEpoch,
    prefix_hash: u64,
    place: Place,
    detail: Detail,
}

/// A stretch of the log in which synced frames cannot be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hole {
    /// First frame lost.
    pub(super) from: Lsn,
    /// First good frame after it.
    pub(super) to: Lsn,
    /// The one frame lost, where its head could be read: its partition's number for it.
    pub(super) seq: Option<u64>,
    /// Whether copies or states may be among what was lost.
    pub(super) copies: bool,
}

/// A rebuilt tail.
pub(super) struct Replayed {
    pub(super) tail: Tail,
    /// Whether frames that must be there are missing: the tail ends where its good part does.
    pub(super) cut: bool,
    /// How far the log reached, as any frame that is left tells: beyond the tail's end if it was cut.
    pub(super) known_end: Offset,
}

impl Frames {
    /// Adds a frame, in the order of the log.
    pub(super) fn add(&mut self, file: u64, found: &Found) {
        let frame = &found.frame;
        self.found.push(Piece {
            seq: frame.seq,
            lsn: frame.lsn,
            copied: frame.copied,
            kind: frame.kind,
            offset: frame.base_offset,
            epoch: frame.leader_epoch,
            prefix_hash: frame.prefix_hash,
            place: Place { file, position: found.position },
            detail: found.detail,
        });
    }

    /// Whether the partition may have lost a frame in `hole`, or has: what cannot be proved whole counts as lost.
    pub(super) fn may_have_lost(&self, hole: &Hole) -> bool {
        match hole.seq {
            // A copy of it may be elsewhere.
            Some(seq) => !self.found.iter().any(|piece| piece.seq == seq),
            None if hole.copies => true,
            None => {
                let originals = self.found.iter().filter(|piece| !piece.copied && piece.kind != FrameKind::State);
                let before = originals.clone().filter(|piece| piece.lsn < hole.from).map(|piece| piece.seq).max();
                let after = originals.filter(|piece| piece.lsn >= hole.to).map(|piece| piece.seq).min();
                after != Some(before.map_or(FIRST_SEQ, |seq| seq + 2))
            }
        }
    }

    /// The tail that the frames add up to.
    pub(super) fn replay(mut self) -> Replayed {
        // Of a frame and its copies the newest stays where it is needed.
        self.found.sort_by_key(|piece| (piece.seq, std::cmp::Reverse(piece.lsn)));
        self.found.dedup_by_key(|piece| piece.seq);
        let end_seq = self.found.last().map_or(1, |piece| piece.seq + 1);
        let known_end = known_end(&self.found);
        let anchor = self
            .found
            .iter()
            .rposition(|piece| matches!(piece.kind, FrameKind::State | FrameKind::Reset | FrameKind::Drop));
        let mut log =
            Log { epoch_seen: self.found.iter().map(|piece| piece.epoch).max().unwrap_or_default(), ..Log::default() };
        let Some(anchor) = anchor else {
            // Without a state the first frame is there as long as its file is. If not, nothing says where the log begins.
            log.cut = self.found.first().is_some_and(|first| first.seq != FIRST_SEQ);
            log.run(&self.found);
            return log.finish(end_seq, known_end);
        };
        let (before, rest) = self.found.split_at(anchor);
        let (head, after) = (rest[0], &rest[1..]);
        match (head.kind, head.detail) {
            (FrameKind::Drop, _) if after.is_empty() => {
                let tail = Tail::husk(head.seq, head.place.file);
                return Replayed { tail, cut: false, known_end: Offset(0) };
            }
            (_, Detail::State(state)) => log.begin(before, head, state),
            _ => log.begin_at(head.offset, head.prefix_hash),
        }
        log.run(after);
        log.finish(end_seq, known_end)
    }
}

/// Where the log ends if nothing before the last frame is missing: each frame, in order, says where it leaves the end.
fn known_end(pieces: &[Piece]) -> Offset {
    pieces.iter().fold(Offset(0), |end, piece| match (piece.kind, piece.detail) {
        (FrameKind::Batch, Detail::Batch(entry)) => entry.end,
        (FrameKind::State, Detail::State(state)) if state.first_seq > 0 => state.end.max(state.hw),
        (FrameKind::Truncate, _) => end.min(piece.offset),
        (FrameKind::Reset, _) => piece.offset,
        (FrameKind::HighWatermark, _) => end.max(piece.offset),
        (FrameKind::Drop, _) => Offset(0),
        _ => end,
    })
}

/// The batches that make up `[start, end)`, if all are there. Batches that were truncated may lie among them, or be missing with
/// their files: going back from the end, the newest batch that ends where the next begins is the one, since whatever was
/// appended after it and before it was truncated ends later.
fn chain(pieces: &[Piece], start: Offset, end: Offset) -> Option<Vec<Held>> {
    let (mut at, mut held) = (end, Vec::new());
    for piece in pieces.iter().rev() {
        if let Detail::Batch(entry) = piece.detail
            && entry.end == at
            && at > start
        {
            at = entry.base;
            held.push(Held {
                entry,
                seq: piece.seq,
                prefix_hash: piece.prefix_hash,
                bytes_before: 0,
                place: Some(piece.place),
            });
        }
    }
    held.reverse();
    (at == start).then_some(held)
}

#[derive(Default)]
struct Log {
    /// Where it begins, and the chained hash there if it is known (S6), once something said so.
    start: Option<(Offset, Option<u64>)>,
    end: Offset,
    hw: Offset,
    epoch_seen: LeaderEpoch,
    held: Vec<Held>,
    cut: bool,
}

impl Log {
    fn begin_at(&mut self, at: Offset, hash: u64) {
        self.begin_here(at, hash);
        self.hw = at;
    }

    fn begin_here(&mut self, at: Offset, hash: u64) {
        self.start = Some((at, known_hash(at, hash)));
        self.end = at;
    }

    /// Begins with a `State` and the batches before it that it names.
    fn begin(&mut self, before: &[Piece], head: Piece, state: PartitionState) {
        if state.first_seq == 0 {
            // Nothing had said where the log begins.
            return;
        }
        let named = before.iter().filter(|piece| (state.first_seq..state.end_seq).contains(&piece.seq));
        let named: Vec<Piece> = named.copied().collect();
        self.begin_here(head.offset, head.prefix_hash);
        (self.end, self.hw) = (state.end, state.hw);
        if let Some(held) = chain(&named, head.offset, state.end) {
            self.held = held;
            return;
        }
        // Something is lost: keep what follows from the start on without a gap.
        self.end = head.offset;
        self.run(&named);
        (self.hw, self.cut) = (state.hw, true);
    }

    fn run(&mut self, pieces: &[Piece]) {
        for piece in pieces {
            if self.cut {
                // Nothing after a gap can be trusted to follow what is before it.
                return;
            }
            match (piece.kind, piece.detail) {
                (FrameKind::Batch, Detail::Batch(entry)) => {
                    if self.start.is_none() {
                        // A log that nothing said the start of begins with its first batch.
                        self.begin_here(entry.base, 0);
                    }
                    if entry.base != self.end {
                        self.truncate(entry.base);
                        self.cut = true;
                        return;
                    }
                    self.end = entry.end;
                    let (seq, prefix_hash, place) = (piece.seq, piece.prefix_hash, Some(piece.place));
                    self.held.push(Held { entry, seq, prefix_hash, bytes_before: 0, place });
                }
                (FrameKind::Truncate, _) => self.truncate(piece.offset),
                (FrameKind::HighWatermark, _) => self.hw = piece.offset,
                _ => {}
            }
        }
    }

    fn truncate(&mut self, to: Offset) {
        self.held.retain(|held| held.entry.end <= to);
        self.end = self.end.min(to);
        self.hw = self.hw.min(to);
        if let Some((start, _)) = self.start
            && to < start
        {
            self.start = Some((to, known_hash(to, 0)));
        }
        let adjoins = self.held.last().map_or(self.start.map(|(start, _)| start), |held| Some(held.entry.end));
        if to == self.end && adjoins != Some(to) {
            self.held.clear();
            self.start = Some((to, known_hash(to, 0)));
        }
    }

    fn finish(mut self, end_seq: u64, known_end: Offset) -> Replayed {
        // Rules R10 and W4: the high watermark was durable before it was written down, so a shorter log has lost synced data.
        let cut = self.cut || self.hw > self.end;
        self.hw = self.hw.min(self.end);
        let start = self.start.unwrap_or((Offset(0), known_hash(Offset(0), 0)));
        let state = PartitionState { end: self.end, hw: self.hw, first_seq: 0, end_seq };
        let known_end = known_end.max(self.end);
        Replayed { tail: Tail::recovered(state, start, self.epoch_seen, self.held), cut, known_end }
    }
}
