//! The index of a full WAL file: all its frames without their batches, so that a start need not read the file (rules W6, W8a).
//!
//! Written after the file is full and synced, so it never claims too much. Missing or bad, the file is read instead.

use super::TailEntry;
use super::disk::Disk;
use super::file::WalFile;
use super::scan::{Cursor, Detail, Found};
use super::state_file;
use millpond_log::batch::{ProducerStamp, ProducerWrite, WriteKind};
use millpond_log::frame::{FRAME_HEAD_BYTES, Frame, PartitionState, STATE_BYTES};
use millpond_log::transactions::{EndMarker, TxnOutcome};
use millpond_log::{CoordinatorEpoch, Lsn, Offset, ProducerEpoch, ProducerId};
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
        millpond_log::frame::FrameKind::Batch => Detail::Batch(take_entry(&frame, detail)?),
        millpond_log::frame::FrameKind::State => Detail::State(PartitionState::decode(&detail[..STATE_BYTES])?),
        _ => Detail::None,
    };
    Some(Found { frame, crc, position: number(position), detail })
}

/// The fields of an index entry that the frame's head does not have: 36 bytes.
fn put_entry(entry: &TailEntry, bytes: &mut Vec<u8>) {
    let stamp = entry.producer.map(|write| write.stamp);
    let (kind, coordinator_epoch) = entry.producer.map_or((0, 0), |write| kind_out(write.kind));
    bytes.extend(entry.end.0.to_le_bytes());
    bytes.extend(entry.record_count.to_le_bytes());
    bytes.extend(kind.to_le_bytes());
    bytes.extend(coordinator_epoch.to_le_bytes());
    bytes.extend(stamp.map_or(0, |stamp| stamp.id.0).to_le_bytes());
    bytes.extend(stamp.map_or(0, |stamp| u32::from(stamp.epoch.0)).to_le_bytes());
    bytes.extend(stamp.map_or(0, |stamp| stamp.base_sequence).to_le_bytes());
}

/// The entry, and `None` if it cannot be one.
fn take_entry(frame: &Frame, bytes: &[u8]) -> Option<TailEntry> {
    let small = |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().expect("an entry has its length"));
    let stamp = ProducerStamp {
        id: ProducerId(number(&bytes[20..])),
        epoch: ProducerEpoch(small(28) as u16),
        base_sequence: small(32) as i32,
    };
    let producer = match small(12) {
        0 => None,
        kind => Some(ProducerWrite { stamp, kind: kind_in(kind, small(16))? }),
    };
    Some(TailEntry {
        base: frame.base_offset,
        end: Offset(number(bytes)),
        record_count: small(8),
        size: frame.payload_len,
        leader_epoch: frame.leader_epoch,
        append_time: frame.append_time,
        latest: frame.latest,
        producer,
    })
}

/// The number of a kind, 0 being that of a batch without producer, and the coordinator epoch of a marker.
fn kind_out(kind: WriteKind) -> (u32, u32) {
    match kind {
        WriteKind::Plain => (1, 0),
        WriteKind::Transactional => (2, 0),
        WriteKind::Control => (3, 0),
        WriteKind::End(EndMarker { outcome: TxnOutcome::Commit, coordinator_epoch }) => (4, coordinator_epoch.0),
        WriteKind::End(EndMarker { outcome: TxnOutcome::Abort, coordinator_epoch }) => (5, coordinator_epoch.0),
    }
}

fn kind_in(kind: u32, coordinator_epoch: u32) -> Option<WriteKind> {
    let end = |outcome| WriteKind::End(EndMarker { outcome, coordinator_epoch: CoordinatorEpoch(coordinator_epoch) });
    match kind {
        1 => Some(WriteKind::Plain),
        2 => Some(WriteKind::Transactional),
        3 => Some(WriteKind::Control),
        4 => Some(end(TxnOutcome::Commit)),
        5 => Some(end(TxnOutcome::Abort)),
        _ => None,
    }
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(*bytes.first_chunk().expect("the caller cut eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wal::WalRecord;
    use crate::wal::tail::{Times, entry_of, head_of};
    use millpond_log::batch::{BatchBuilder, NewRecord};
    use millpond_log::codec::Codec;
    use millpond_log::frame::FrameKind;
    use millpond_log::transactions::Marker;
    use millpond_log::{Batch, LeaderEpoch, PartitionId, TimestampMs, TopicId};

    fn records(stamp: Option<ProducerStamp>, transactional: bool) -> Batch {
        let mut builder = BatchBuilder::new(Codec::None);
        builder = stamp.map_or(builder, |stamp| BatchBuilder::new(Codec::None).producer(stamp));
        if transactional {
            builder = builder.transactional();
        }
        builder.push(NewRecord { timestamp: TimestampMs(1), key: None, value: None, headers: &[] });
        builder.build()
    }

    /// Rule P4: what a start reads off an index is what it would read off the batches.
    #[test]
    fn an_entry_keeps_what_a_batch_is_to_its_producer() {
        let stamp =
            ProducerStamp { id: ProducerId(u64::MAX >> 1), epoch: ProducerEpoch(32_766), base_sequence: i32::MAX };
        let marker = |outcome| {
            let end = EndMarker { outcome, coordinator_epoch: CoordinatorEpoch(u32::MAX >> 1) };
            Batch::of_marker(&Marker { producer: stamp.id, epoch: stamp.epoch, raised: true, end }, TimestampMs(1))
        };
        let batches = [
            records(None, false),
            records(Some(stamp), false),
            records(Some(stamp), true),
            marker(TxnOutcome::Commit),
            marker(TxnOutcome::Abort),
        ];
        for mut batch in batches {
            batch.place(Offset(5), LeaderEpoch(3));
            let record = WalRecord::Batch {
                partition: PartitionId { topic: TopicId(1), index: 2 },
                batch: batch.clone(),
                append_time: TimestampMs(7),
                latest: TimestampMs(8),
                prefix_hash: 9,
            };
            let mut frame = Frame::blank(FrameKind::Batch);
            head_of(&record, &mut frame);
            frame.payload_len = batch.size() as u32;
            let entry = entry_of(&batch, Times::of(&frame));
            let mut bytes = Vec::new();
            put_entry(&entry, &mut bytes);
            assert_eq!(bytes.len(), TAIL_BYTES - 8);
            assert_eq!(take_entry(&frame, &bytes), Some(entry));
            assert_eq!(entry.producer, batch.producer_write());
            bytes[12] = 9;
            assert_eq!(take_entry(&frame, &bytes), None, "a kind that is not known");
        }
    }
}
