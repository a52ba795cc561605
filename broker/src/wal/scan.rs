//! Reads the frames of one WAL file back, group by group, and looks for proof that a bad stretch was once good (rule W4).
//!
//! It says what is there. What that means for the log is recovery's decision.

use super::TailEntry;
use super::file::WalFile;
use super::tail::{Times, entry_of};
use bytes::Bytes;
use millpond_log::Batch;
use millpond_log::frame::{
    BLOCK_BYTES, FRAME_ALIGN, FRAME_HEAD_BYTES, Frame, FrameKind, FrameSeed, PartitionState, align_up,
};
use std::io;

/// Bytes read at once: few at first, since often only the first frame matters; more the further a reader goes.
const CHUNK_BYTES_MIN: u64 = 16 << 10;
const CHUNK_BYTES_MAX: u64 = 1 << 20;

/// Blocks at the head of a later file that are searched for proof before the whole of it is.
const PROBE_BLOCKS: u64 = 64;

/// A frame read back whole.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Found {
    pub(super) frame: Frame,
    /// Checksum of its head.
    pub(super) crc: u32,
    pub(super) position: u64,
    pub(super) detail: Detail,
}

/// What a frame's payload says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Detail {
    None,
    Batch(TailEntry),
    State(PartitionState),
}

/// Where the log goes on: what the next frame has to look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cursor {
    /// Its number; `None` before the first frame.
    pub(super) next_lsn: Option<u64>,
    /// The checksum it repeats; `None` where that is not known.
    pub(super) prev_crc: Option<u32>,
    /// The least boot it may come from.
    pub(super) boot: u32,
    /// Newest frame proved durable by a frame read so far.
    pub(super) proven: u64,
}

impl Cursor {
    /// The cursor after this frame.
    pub(super) fn after(&self, frame: &Frame, crc: u32) -> Cursor {
        Cursor {
            next_lsn: Some(frame.lsn.0 + 1),
            prev_crc: Some(crc),
            boot: frame.boot,
            proven: self.proven.max(frame.synced_lsn.0),
        }
    }

    fn accepts(&self, frame: &Frame) -> bool {
        self.next_lsn.is_none_or(|lsn| lsn == frame.lsn.0)
            && self.prev_crc.is_none_or(|crc| crc == frame.prev_crc)
            && frame.boot >= self.boot
    }
}

/// One file, read through a window.
pub(super) struct Reader<'a> {
    pub(super) file: &'a WalFile,
    seed: FrameSeed,
    window: Vec<u8>,
    window_at: u64,
    chunk_bytes: u64,
    /// First byte that could not be read, and why.
    pub(super) failed: Option<(u64, io::Error)>,
}

impl<'a> Reader<'a> {
    /// A reader of the file.
    pub(super) fn new(file: &'a WalFile) -> Reader<'a> {
        Reader { file, seed: file.seed(), window: Vec::new(), window_at: 0, chunk_bytes: CHUNK_BYTES_MIN, failed: None }
    }

    /// Bytes `[at, at + len)`, or what of them the file has. What cannot be read is zero, which is no frame.
    fn bytes(&mut self, at: u64, len: u64) -> &[u8] {
        let end = (at + len).min(self.file.bytes);
        if at < self.window_at || end > self.window_at + self.window.len() as u64 {
            let size = (end.max(at) - at).max(self.chunk_bytes).min(self.file.bytes.saturating_sub(at));
            self.chunk_bytes = (self.chunk_bytes * 2).min(CHUNK_BYTES_MAX);
            self.window.clear();
            self.window.resize(size as usize, 0);
            self.window_at = at;
            if let Err(error) = self.file.file.read_at(&mut self.window, at) {
                self.window.fill(0);
                self.failed.get_or_insert((at, error));
            }
        }
        let from = (at - self.window_at) as usize;
        self.window.get(from..from + end.saturating_sub(at) as usize).unwrap_or_default()
    }

    fn head(&mut self, at: u64) -> Option<(Frame, u32)> {
        let seed = self.seed;
        Frame::decode(self.bytes(at, FRAME_HEAD_BYTES as u64), seed)
            .filter(|(frame, _)| at + frame.size() <= self.file.bytes)
    }

    /// The frame at `at`, if its head is good: whole, or with `None` if its payload is bad.
    pub(super) fn frame(&mut self, at: u64) -> Option<(Frame, u32, Option<Found>)> {
        let (frame, crc) = self.head(at)?;
        let payload = self.bytes(at + FRAME_HEAD_BYTES as u64, u64::from(frame.payload_len));
        let detail = if frame.matches(payload) { detail(&frame, payload) } else { None };
        Some((frame, crc, detail.map(|detail| Found { frame, crc, position: at, detail })))
    }

    /// The group that begins at `at` and continues the log at `cursor`: its frames, where it ends, and the cursor after it.
    /// `None` unless each of its frames is whole.
    pub(super) fn group(&mut self, at: u64, cursor: Cursor) -> Option<(Vec<Found>, u64, Cursor)> {
        let (mut position, mut after, mut frames) = (at, cursor, Vec::new());
        loop {
            let (frame, crc, found) = self.frame(position)?;
            if !after.accepts(&frame) {
                return None;
            }
            frames.push(found?);
            after = after.after(&frame, crc);
            position += frame.size();
            if frame.group_end {
                return Some((frames, align_up(position, BLOCK_BYTES), after));
            }
            position = align_up(position, FRAME_ALIGN);
        }
    }

    /// The newest frame that any group from `at` on calls durable, of this boot or a later one.
    pub(super) fn proof(&mut self, at: u64, boot: u32) -> Option<u64> {
        let blocks = (align_up(at, BLOCK_BYTES)..self.file.bytes).step_by(BLOCK_BYTES as usize);
        self.proof_in(blocks, boot)
    }

    /// Like `proof` over a whole file that the log may not have reached: reads on only if its first blocks hold a group.
    pub(super) fn proof_if_begun(&mut self, boot: u32) -> Option<u64> {
        let blocks = (BLOCK_BYTES..self.file.bytes).step_by(BLOCK_BYTES as usize);
        self.proof_in(blocks.take(PROBE_BLOCKS as usize), boot).and_then(|_| self.proof(BLOCK_BYTES, boot))
    }

    fn proof_in(&mut self, blocks: impl Iterator<Item = u64>, boot: u32) -> Option<u64> {
        let mut proof = None;
        for block in blocks {
            if let Some((frame, _)) = self.head(block).filter(|(frame, _)| frame.boot >= boot) {
                proof = proof.max(Some(frame.synced_lsn.0));
            }
        }
        proof
    }

    /// The next good head at or after `at` of a frame numbered `lsn` or higher.
    pub(super) fn resync(&mut self, at: u64, lsn: u64, boot: u32) -> Option<u64> {
        let mut positions = (align_up(at, FRAME_ALIGN)..self.file.bytes).step_by(FRAME_ALIGN as usize);
        positions
            .find(|&position| self.head(position).is_some_and(|(frame, _)| frame.lsn.0 >= lsn && frame.boot >= boot))
    }
}

/// What the payload says; `None` if it is not what the frame's kind carries.
pub(super) fn detail(frame: &Frame, payload: &[u8]) -> Option<Detail> {
    match frame.kind {
        FrameKind::Batch => {
            let mut bytes = Bytes::copy_from_slice(payload);
            let batch = Batch::take(&mut bytes).ok()??;
            bytes.is_empty().then(|| Detail::Batch(entry_of(&batch, Times::of(frame))))
        }
        FrameKind::State => PartitionState::decode(payload).map(Detail::State),
        _ => payload.is_empty().then_some(Detail::None),
    }
}
