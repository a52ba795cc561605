//! The index of a full WAL file: all its frames without their batches, so that a start need not read the file (rules W6, W8a).
//!
//! Written after the file is full and synced, so it never claims too much. Missing or bad, the file is read instead.

use super::TailEntry;
use super::disk::Disk;
use super::file::WalFile;
use super::scan::{Cursor, Detail, Found};
use super::state_file;
use millpond_log::batch::ProducerStamp;
use millpond_log::frame::{FRAME_HEAD_BYTES, Frame, PartitionState, STATE_BYTES};
use millpond_log::{Lsn, Offset, ProducerEpoch, ProducerId};
use std::io;
use std::path::Path;

const MAGIC: [u8; 8] = *b"MPwalix2";
const HEAD_BYTES: usize = 8 + 8;
/// Position, and the longest detail: a batch's index entry.
const TAIL_BYTES: usize = 8 + 36;
const ENTRY_BYTES: usize = FRAME_HEAD_BYTES + TAIL_BYTES;

/// What a full file holds, in order.
pub(super) struct FileIndex {
    /// Number of its first frame.
    pub(super) first_lsn: Lsn,
    pub(super) frames: Vec<Found>,
    /// Where the log goes on.
    pub(super) end: Cursor,
}

/// Name of the index of the file with this number.
pub(super) fn name(number: u64) -> String {
    format!("{number:020}.index")
}

/// Most bytes of an index that grows while its file is written. One that would be larger is made from the file later.
const GROWN_BYTES_MAX: usize = 16 << 20;

/// An index in the making.
pub(super) struct Growing {
    bytes: Vec<u8>,
}

impl Growing {
    /// The index of a file of which nothing is written yet.
    pub(super) fn new(number: u64) -> Growing {
        let mut bytes = Vec::from(MAGIC);
        bytes.extend(number.to_le_bytes());
        Growing { bytes }
    }

    /// Adds a frame, in order. False if the index is too large to be kept in memory.
    pub(super) fn push(&mut self, file: &WalFile, frame: &Frame, position: u64, detail: &Detail) -> bool {
        self.bytes.extend(frame.encode(file.seed()).0);
        self.bytes.extend(position.to_le_bytes());
        let end = self.bytes.len() + TAIL_BYTES - 8;
        match detail {
            Detail::None => {}
            Detail::State(state) => self.bytes.extend(state.encode()),
            Detail::Batch(entry) => put_entry(entry, &mut self.bytes),
        }
        self.bytes.resize(end, 0);
        self.bytes.len() <= GROWN_BYTES_MAX
    }

    /// Whether no frame was added.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.len() == HEAD_BYTES
    }

    /// Writes the index of `file`, which is full and synced.
    pub(super) fn write(&self, disk: &dyn Disk, dir: &Path, file: &WalFile) -> io::Result<()> {
        state_file::replace(disk, dir, &name(file.number), &self.bytes)
    }
}

/// Reads the index of `file`; `None` if there is none that belongs to this life of it.
pub(super) fn load(disk: &dyn Disk, dir: &Path, file: &WalFile) -> Option<FileIndex> {
    let bytes = state_file::load(disk, &dir.join(name(file.number)))?;
    let (head, entries) = bytes.split_at_checked(HEAD_BYTES)?;
    if !head.starts_with(&MAGIC) || number(&head[8..]) != file.number || !entries.len().is_multiple_of(ENTRY_BYTES) {
        return None;
    }
    let frames: Option<Vec<Found>> = entries.chunks_exact(ENTRY_BYTES).map(|entry| read_entry(entry, file)).collect();
    let frames = frames?;
    let (first, last) = (frames.first()?, frames.last()?);
    let end = Cursor {
        next_lsn: Some(last.frame.lsn.0 + 1),
        prev_crc: Some(last.crc),
        boot: last.frame.boot,
        proven: last.frame.synced_lsn.0,
    };
    Some(FileIndex { first_lsn: first.frame.lsn, end, frames })
}

fn read_entry(entry: &[u8], file: &WalFile) -> Option<Found> {
    let (head, rest) = entry.split_at(FRAME_HEAD_BYTES);
    // The seed ties each entry to this life of the file.
    let (frame, crc) = Frame::decode(head, file.seed())?;
    let (position, detail) = rest.split_at(8);
    let detail = match frame.kind {
        millpond_log::frame::FrameKind::Batch => Detail::Batch(take_entry(&frame, detail)),
        millpond_log::frame::FrameKind::State => Detail::State(PartitionState::decode(&detail[..STATE_BYTES])?),
        _ => Detail::None,
    };
    Some(Found { frame, crc, position: number(position), detail })
}

/// The fields of an index entry that the frame's head does not have: 36 bytes.
fn put_entry(entry: &TailEntry, bytes: &mut Vec<u8>) {
    bytes.extend(entry.end.0.to_le_bytes());
    bytes.extend(entry.record_count.to_le_bytes());
    let producer = entry.producer;
    bytes.extend(u64::from(producer.is_some()).to_le_bytes());
    bytes.extend(producer.map_or(0, |producer| producer.id.0).to_le_bytes());
    bytes.extend(producer.map_or(0, |producer| u32::from(producer.epoch.0)).to_le_bytes());
    bytes.extend(producer.map_or(0, |producer| producer.base_sequence).to_le_bytes());
}

fn take_entry(frame: &Frame, bytes: &[u8]) -> TailEntry {
    let small = |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().expect("an entry has its length"));
    let producer = (number(&bytes[12..]) != 0).then(|| ProducerStamp {
        id: ProducerId(number(&bytes[20..])),
        epoch: ProducerEpoch(small(28) as u16),
        base_sequence: small(32) as i32,
    });
    TailEntry {
        base: frame.base_offset,
        end: Offset(number(bytes)),
        record_count: small(8),
        size: frame.payload_len,
        leader_epoch: frame.leader_epoch,
        append_time: frame.append_time,
        latest: frame.latest,
        producer,
    }
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(*bytes.first_chunk().expect("the caller cut eight bytes"))
}
