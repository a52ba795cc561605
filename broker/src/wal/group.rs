//! Lays out one group of frames for one vectored write. Payloads are not copied: the write reads them where they are.

use super::disk::DiskFile;
use super::scan::{self, Detail};
use super::tail::{Times, entry_of};
use bytes::Bytes;
use millpond_log::frame::{
    BLOCK_BYTES, FRAME_ALIGN, FRAME_HEAD_BYTES, FileHead, Frame, FrameKind, FrameSeed, align_up,
};
use millpond_log::{Batch, Lsn};
use std::io::{self, IoSlice};

/// What follows a frame's head.
pub(super) enum Payload {
    Empty,
    /// A batch with the checksum of its bytes, which the appender's thread has computed.
    Batch(Batch, u32),
    /// Bytes as they were read from another file, or made here.
    Bytes(Bytes),
}

impl Payload {
    fn len(&self) -> usize {
        match self {
            Payload::Empty => 0,
            Payload::Batch(batch, _) => batch.size(),
            Payload::Bytes(bytes) => bytes.len(),
        }
    }

    fn crc(&self) -> u32 {
        match self {
            Payload::Empty => crc32c::crc32c(&[]),
            Payload::Batch(_, crc) => *crc,
            Payload::Bytes(bytes) => crc32c::crc32c(bytes),
        }
    }
}

/// Where in the log a group begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    /// Byte position in the file; 0 writes the file's head too.
    pub(super) position: u64,
    /// Number of the first frame.
    pub(super) lsn: Lsn,
    /// Checksum of the frame before it.
    pub(super) prev_crc: u32,
    pub(super) boot: u32,
    /// Copies and states in the file so far.
    pub(super) copies: u32,
}

/// Frames to be written and synced together.
#[derive(Default)]
pub(super) struct Group {
    frames: Vec<(Frame, Payload)>,
}

/// A group that was laid out.
pub(super) struct LaidOut {
    scratch: Vec<u8>,
    /// Pieces in order: a stretch of `scratch`, then a payload that lies elsewhere.
    pieces: Vec<(std::ops::Range<usize>, usize)>,
    /// Each frame as written, and where.
    pub(super) frames: Vec<(Frame, u64)>,
    payloads: Vec<Payload>,
    /// Where the next group goes.
    pub(super) end: u64,
    pub(super) prev_crc: u32,
    pub(super) copies: u32,
}

impl Group {
    /// Adds a frame. Its kind and what the kind needs are set; number, chain and checksums are set when it is laid out.
    pub(super) fn push(&mut self, frame: Frame, payload: Payload) {
        self.frames.push((frame, payload));
    }

    /// Whether there is nothing to write.
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Gives each frame its number, its place and its checksums.
    pub(super) fn lay_out(self, head: &FileHead, seed: FrameSeed, origin: Origin) -> LaidOut {
        let count = self.frames.len();
        let mut out = LaidOut {
            scratch: Vec::with_capacity(count * (FRAME_HEAD_BYTES + 72) + 2 * BLOCK_BYTES as usize),
            pieces: Vec::with_capacity(count + 1),
            frames: Vec::with_capacity(count),
            payloads: Vec::with_capacity(count),
            end: 0,
            prev_crc: origin.prev_crc,
            copies: origin.copies,
        };
        let mut at = origin.position;
        let mut from = 0;
        if at == 0 {
            out.scratch.extend(head.encode());
            out.scratch.resize(BLOCK_BYTES as usize, 0);
            at = BLOCK_BYTES;
        }
        let synced_lsn = Lsn(origin.lsn.0 - 1);
        for (nth, (mut frame, payload)) in self.frames.into_iter().enumerate() {
            frame.lsn = Lsn(origin.lsn.0 + nth as u64);
            (frame.synced_lsn, frame.boot, frame.prev_crc) = (synced_lsn, origin.boot, out.prev_crc);
            frame.group_end = nth + 1 == count;
            frame.copies = out.copies;
            frame.payload_len = u32::try_from(payload.len()).expect("a payload is smaller than 4 GiB");
            frame.payload_crc = payload.crc();
            let (bytes, crc) = frame.encode(seed);
            out.prev_crc = crc;
            out.copies += u32::from(frame.copied || frame.kind == FrameKind::State);
            out.scratch.extend(bytes);
            if let Payload::Batch(batch, _) = &payload {
                out.scratch.extend(batch.head());
            }
            out.frames.push((frame, at));
            out.pieces.push((from..out.scratch.len(), out.payloads.len()));
            from = out.scratch.len();
            at += frame.size();
            let next = align_up(at, if frame.group_end { BLOCK_BYTES } else { FRAME_ALIGN });
            out.scratch.resize(from + (next - at) as usize, 0);
            at = next;
            out.payloads.push(payload);
        }
        out.pieces.push((from..out.scratch.len(), out.payloads.len()));
        out.end = at;
        out
    }
}

impl LaidOut {
    /// Each frame, where it is, and what its payload says.
    pub(super) fn frames(&self) -> impl Iterator<Item = (&Frame, u64, Detail)> {
        self.frames.iter().zip(&self.payloads).map(|((frame, position), payload)| {
            let detail = match payload {
                Payload::Empty => Detail::None,
                Payload::Batch(batch, _) => Detail::Batch(entry_of(batch, Times::of(frame))),
                Payload::Bytes(bytes) => scan::detail(frame, bytes).expect("it was checked, or made here"),
            };
            (frame, *position, detail)
        })
    }

    /// Writes the group where it was laid out to go.
    pub(super) fn write(&self, file: &dyn DiskFile, position: u64) -> io::Result<()> {
        let mut slices = Vec::with_capacity(2 * self.pieces.len());
        for (stretch, payload) in &self.pieces {
            slices.push(IoSlice::new(&self.scratch[stretch.clone()]));
            match self.payloads.get(*payload) {
                Some(Payload::Batch(batch, _)) => slices.push(IoSlice::new(batch.records_bytes())),
                Some(Payload::Bytes(bytes)) => slices.push(IoSlice::new(bytes)),
                Some(Payload::Empty) | None => {}
            }
        }
        slices.retain(|slice| !slice.is_empty());
        file.write_vectored_at(&mut slices, position)
    }
}
