//! Reads batches of the tail: from memory where they still are, else from the files, checked (rule R13, S13).

use super::TailReadError;
use super::file::WalFile;
use super::shared::Shared;
use super::tail::{Place, frame_bytes};
use bytes::Bytes;
use millpond_core::replica::Placed;
use millpond_log::frame::{BLOCK_BYTES, FRAME_HEAD_BYTES, Frame, FrameKind};
use millpond_log::{Batch, Offset, PartitionId};
use std::sync::Arc;

/// Most bytes read at once, unless one frame is larger.
const READ_BYTES: u64 = 1 << 20;

/// What was asked for, and where it is.
pub(super) struct Plan {
    pub(super) pieces: Vec<Piece>,
    on_disk: bool,
}

/// One batch of the answer.
pub(super) enum Piece {
    Memory(Placed),
    Disk(Place, u64),
}

/// What reading a plan came to.
pub(super) enum Done {
    Read(Vec<Placed>),
    /// A frame was not where the plan said: copied elsewhere since, given up, or damaged.
    Missing(Place),
}

impl Plan {
    /// Finds the batches from the one that contains `from` up to `to`, within `bytes_max` but at least one.
    pub(super) fn new(
        shared: &Shared,
        partition: PartitionId,
        from: Offset,
        to: Offset,
        bytes_max: usize,
    ) -> Result<Plan, TailReadError> {
        let look = |tail: &super::tail::Tail| {
            if from < tail.start() {
                return Err(TailReadError::Trimmed { start: tail.start() });
            }
            let mut plan = Plan { pieces: Vec::new(), on_disk: false };
            let mut bytes = 0;
            for (held, recent) in tail.batches_from(from) {
                bytes += held.entry.size as usize;
                if held.entry.base >= to || !plan.pieces.is_empty() && bytes > bytes_max {
                    break;
                }
                match (recent, held.place) {
                    (Some(batch), _) => plan.pieces.push(Piece::Memory(Placed {
                        batch: batch.clone(),
                        append_time: held.entry.append_time,
                        latest: held.entry.latest,
                        prefix_hash: held.prefix_hash,
                    })),
                    (None, Some(place)) => {
                        plan.pieces.push(Piece::Disk(place, frame_bytes(&held.entry)));
                        plan.on_disk = true;
                    }
                    (None, None) => unreachable!("a batch leaves memory only once it is on disk"),
                }
            }
            Ok(plan)
        };
        shared.tails.look(partition, look).unwrap_or(Err(TailReadError::Unknown))
    }

    /// Whether it takes I/O.
    pub(super) fn on_disk(&self) -> bool {
        self.on_disk
    }

    /// Reads it. Blocks when `on_disk`.
    pub(super) fn read(self, shared: &Shared) -> Result<Done, TailReadError> {
        let mut batches = Vec::with_capacity(self.pieces.len());
        let mut pieces = self.pieces.into_iter().peekable();
        while let Some(piece) = pieces.next() {
            let (place, size) = match piece {
                Piece::Memory(placed) => {
                    batches.push(placed);
                    continue;
                }
                Piece::Disk(place, size) => (place, size),
            };
            // Neighbours in the file are read with it.
            let mut places = vec![place];
            let mut end = place.position + size;
            while let Some(Piece::Disk(next, size)) = pieces.peek() {
                let near = next.file == place.file && next.position >= end && next.position < end + BLOCK_BYTES;
                if !near || next.position + size > place.position + READ_BYTES {
                    break;
                }
                end = next.position + size;
                places.push(*next);
                pieces.next();
            }
            let Some(file) = shared.space.file(place.file) else { return Ok(Done::Missing(place)) };
            let bytes = read_stretch(&file, place.position, end)?;
            for place in places {
                let from = (place.position - (end - bytes.len() as u64)) as usize;
                match frame_at(&file, &bytes, from) {
                    Some(read) => batches.push(read),
                    None => return Ok(Done::Missing(place)),
                }
            }
        }
        Ok(Done::Read(batches))
    }
}

fn read_stretch(file: &Arc<WalFile>, from: u64, end: u64) -> Result<Bytes, TailReadError> {
    let mut bytes = vec![0; (end - from) as usize];
    file.file.read_at(&mut bytes, from)?;
    Ok(bytes.into())
}

/// The batch of the frame at `from`, sharing the bytes, if the frame is whole.
fn frame_at(file: &WalFile, bytes: &Bytes, from: usize) -> Option<Placed> {
    let (frame, _) = Frame::decode(&bytes[from..], file.seed())?;
    let payload_at = from + FRAME_HEAD_BYTES;
    let payload_end = payload_at + frame.payload_len as usize;
    if frame.kind != FrameKind::Batch || payload_end > bytes.len() {
        return None;
    }
    let mut payload = bytes.slice(payload_at..payload_end);
    if !frame.matches(&payload) {
        return None;
    }
    let batch = Batch::take(&mut payload).ok()??;
    Some(Placed { batch, append_time: frame.append_time, latest: frame.latest, prefix_hash: frame.prefix_hash })
}
