//! The index of a full WAL file: all its frames without their batches, so that a start need not read the file (rules W6, W8a).
//!
//! Written after the file is full and synced, so it never claims too much. Missing or bad, the file is read instead.

use super::TailEntry;
use super::disk::Disk;
use super::scan::{Cursor, Detail, Found};
use super::space::WalFile;
use super::state_file;
use millpond_log::batch::ProducerStamp;
use millpond_log::frame::{FRAME_HEAD_BYTES, Frame, PartitionState, STATE_BYTES};
use millpond_log::{Lsn, Offset, ProducerEpoch, ProducerId, TimestampMs};
use std::io;
use std::path::{Path, PathBuf};

const MAGIC: [u8; 8] = *b"MPwal-ix";
const HEAD_BYTES: usize = 8 + 6 * 8;
/// Position, and the longest detail: a batch's index entry.
const TAIL_BYTES: usize = 8 + 44;
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

/// Writes the index of `file`.
pub(super) fn write(disk: &dyn Disk, dir: &Path, file: &WalFile, index: &FileIndex) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(HEAD_BYTES + index.frames.len() * ENTRY_BYTES);
    bytes.extend(MAGIC);
    let end = index.end;
    let lsns = [index.first_lsn.0, end.next_lsn.unwrap_or_default()];
    let rest = [u64::from(end.prev_crc.unwrap_or_default()), u64::from(end.boot), end.proven];
    for field in [file.number].into_iter().chain(lsns).chain(rest) {
        bytes.extend(field.to_le_bytes());
    }
    for found in &index.frames {
        bytes.extend(found.frame.encode(file.seed()).0);
        bytes.extend(found.position.to_le_bytes());
        let from = bytes.len();
        match &found.detail {
            Detail::None => {}
            Detail::State(state) => bytes.extend(state.encode()),
            Detail::Batch(entry) => put_entry(entry, &mut bytes),
        }
        bytes.resize(from + TAIL_BYTES - 8, 0);
    }
    state_file::replace(disk, dir, &name(file.number), &bytes)
}

/// Reads the index of `file`; `None` if there is none that belongs to this life of it.
pub(super) fn load(disk: &dyn Disk, dir: &Path, file: &WalFile) -> Option<FileIndex> {
    let path: PathBuf = dir.join(name(file.number));
    let bytes = state_file::load(disk, &path)?;
    let (head, entries) = bytes.split_at_checked(HEAD_BYTES)?;
    let fields: Vec<u64> = head[8..].chunks_exact(8).map(number).collect();
    let &[number, first_lsn, next_lsn, prev_crc, boot, proven] = fields.as_slice() else { return None };
    if !head.starts_with(&MAGIC) || number != file.number || !entries.len().is_multiple_of(ENTRY_BYTES) {
        return None;
    }
    let frames: Option<Vec<Found>> = entries.chunks_exact(ENTRY_BYTES).map(|entry| read_entry(entry, file)).collect();
    let end = Cursor {
        next_lsn: Some(next_lsn),
        prev_crc: Some(u32::try_from(prev_crc).ok()?),
        boot: u32::try_from(boot).ok()?,
        proven,
    };
    Some(FileIndex { first_lsn: Lsn(first_lsn), frames: frames?, end })
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

/// The fields of an index entry that the frame's head does not have: 44 bytes.
fn put_entry(entry: &TailEntry, bytes: &mut Vec<u8>) {
    bytes.extend(entry.end.0.to_le_bytes());
    bytes.extend(entry.max_timestamp.0.to_le_bytes());
    bytes.extend(entry.record_count.to_le_bytes());
    let producer = entry.producer;
    bytes.extend(u64::from(producer.is_some()).to_le_bytes());
    bytes.extend(producer.map_or(0, |producer| producer.id.0).to_le_bytes());
    bytes.extend(producer.map_or(0, |producer| u32::from(producer.epoch.0)).to_le_bytes());
    bytes.extend(producer.map_or(0, |producer| producer.base_sequence).to_le_bytes());
}

fn take_entry(frame: &Frame, bytes: &[u8]) -> TailEntry {
    let small = |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().expect("an entry has its length"));
    let producer = (number(&bytes[20..]) != 0).then(|| ProducerStamp {
        id: ProducerId(number(&bytes[28..])),
        epoch: ProducerEpoch(small(36) as u16),
        base_sequence: small(40) as i32,
    });
    TailEntry {
        base: frame.base_offset,
        end: Offset(number(bytes)),
        record_count: small(16),
        size: frame.payload_len,
        leader_epoch: frame.leader_epoch,
        append_time: frame.append_time,
        max_timestamp: TimestampMs(number(&bytes[8..]) as i64),
        producer,
    }
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(*bytes.first_chunk().expect("the caller cut eight bytes"))
}
