//! Gives the oldest file up (rules W8, W8a): what is needed of it is copied to the head and synced, then it may be reused.
//!
//! Runs in the writer's groups, in small portions, so that it delays nobody. It never frees a file that somebody needs.

use super::Writer;
use crate::wal::files::Files;
use crate::wal::group::{Group, Payload};
use crate::wal::shared::Shared;
use crate::wal::space::Oldest;
use crate::wal::tail::{Place, StateRecord};
use bytes::Bytes;
use millpond_log::PartitionId;
use millpond_log::frame::{FRAME_ALIGN, FRAME_HEAD_BYTES, Frame, FrameKind, STATE_BYTES, align_up};
use std::collections::VecDeque;
use std::io;

/// Most bytes copied with one group, unless one batch is larger.
const PORTION_BYTES: u64 = 1 << 20;

/// Bytes of a frame that states a partition.
pub(super) const STATE_FRAME_BYTES: u64 = (FRAME_HEAD_BYTES + STATE_BYTES) as u64;

const _: () = assert!(STATE_FRAME_BYTES.is_multiple_of(FRAME_ALIGN));

/// A file on its way out.
pub(in crate::wal) struct Copying {
    oldest: Oldest,
    needed: VecDeque<(PartitionId, u64, Place)>,
    /// Partitions to be stated anew; `None` until the last copy is durable, so that the states name the new places.
    unstated: Option<VecDeque<PartitionId>>,
}

/// How far a portion came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filled {
    /// There is no room for the next piece.
    Nothing,
    /// More is to come.
    Some,
    /// That was all: the file is given up once the group is durable.
    Last,
}

impl Copying {
    /// Adds a portion of copies or of states to `group`, at most `room` bytes. `file` is the one being written.
    /// Answers how far it came.
    ///
    /// # Errors
    /// A needed frame cannot be read back: damage, found late (rules W4, S13). Its file's index is gone, so that the next start
    /// finds it.
    pub(super) fn fill(&mut self, shared: &Shared, file: u64, room: u64, group: &mut Group) -> io::Result<Filled> {
        if !self.needed.is_empty() {
            return self.fill_copies(shared, room, group);
        }
        let unstated = self.unstated.get_or_insert_with(|| {
            let mut unstated = VecDeque::new();
            shared.tails.retain(|partition, tail| {
                unstated.extend(tail.reads(self.oldest.number).then_some(partition));
                true
            });
            unstated
        });
        let fits = (room.min(PORTION_BYTES) / STATE_FRAME_BYTES) as usize;
        for partition in unstated.drain(..fits.min(unstated.len())) {
            if let Some(record) = shared.tails.change(partition, |tail| tail.state(file)) {
                push_state(partition, &record, group);
            }
        }
        Ok(match (unstated.is_empty(), fits) {
            (true, _) => Filled::Last,
            (false, 0) => Filled::Nothing,
            (false, _) => Filled::Some,
        })
    }

    fn fill_copies(&mut self, shared: &Shared, room: u64, group: &mut Group) -> io::Result<Filled> {
        let before = self.needed.len();
        let mut bytes = 0;
        while let Some((partition, seq, place)) = self.needed.front().copied() {
            let held = shared.tails.look(partition, |tail| tail.durable_at(seq, place)).flatten();
            if let Some(held) = held {
                let size = align_up(FRAME_HEAD_BYTES as u64 + u64::from(held.entry.size), FRAME_ALIGN);
                if bytes + size > room || bytes > 0 && bytes + size > PORTION_BYTES {
                    break;
                }
                let (frame, payload) = read(shared, place)?;
                group.push(Frame { copied: true, ..frame }, Payload::Bytes(payload));
                bytes += size;
            }
            self.needed.pop_front();
        }
        Ok(if self.needed.len() < before { Filled::Some } else { Filled::Nothing })
    }
}

/// Adds the state of a partition to a group.
pub(super) fn push_state(partition: PartitionId, record: &StateRecord, group: &mut Group) {
    let frame = Frame {
        partition,
        seq: record.seq,
        leader_epoch: record.epoch_seen,
        base_offset: record.start,
        prefix_hash: record.start_hash,
        ..Frame::blank(FrameKind::State)
    };
    group.push(frame, Payload::Bytes(Bytes::copy_from_slice(&record.state.encode())));
}

/// Reads one frame with its payload.
fn read(shared: &Shared, place: Place) -> io::Result<(Frame, Bytes)> {
    let damaged = || {
        // Without its index the file is read at the next start, and the damage reported.
        if let Err(error) = Files::distrust(shared.disk.as_ref(), &shared.options.dir, place.file) {
            tracing::warn!(file = place.file, %error, "the index of a damaged WAL file stays");
        }
        io::Error::other(format!("file {} of the WAL is damaged at byte {}", place.file, place.position))
    };
    let file = shared.space.file(place.file).ok_or_else(damaged)?;
    let mut head = [0; FRAME_HEAD_BYTES];
    file.file.read_at(&mut head, place.position)?;
    let (frame, _) = Frame::decode(&head, file.seed()).ok_or_else(damaged)?;
    let mut payload = vec![0; frame.payload_len as usize];
    file.file.read_at(&mut payload, place.position + FRAME_HEAD_BYTES as u64)?;
    if frame.kind != FrameKind::Batch || !frame.matches(&payload) {
        return Err(damaged());
    }
    Ok((Frame { group_end: false, ..frame }, payload.into()))
}

impl Writer {
    /// Starts to give up the oldest file, if it is time.
    pub(super) fn give_up_oldest(&mut self) {
        if self.copying.is_none()
            && let Some(oldest) = self.shared.space.oldest_to_free()
        {
            self.copying = Some(self.copying_of(oldest));
        }
    }

    fn copying_of(&self, oldest: Oldest) -> Copying {
        let mut needed = VecDeque::new();
        self.shared.tails.retain(|partition, tail| {
            needed.extend(tail.durable_in(oldest.number).map(|(seq, place)| (partition, seq, place)));
            true
        });
        Copying { oldest, needed, unstated: None }
    }

    /// All that the file being given up held is written elsewhere, and durable: lets go of it.
    pub(super) fn leave(&mut self) {
        let Some(Copying { oldest: Oldest { number }, .. }) = self.copying.take() else { return };
        let mut needed = false;
        self.shared.tails.retain(|_, tail| {
            needed |= tail.durable_in(number).next().is_some() || tail.reads(number);
            true
        });
        if needed {
            // Nothing should be; yet a file is let go on proof only. The next round tries again.
            return;
        }
        self.shared.tails.retain(|_, tail| {
            tail.leave_file(number);
            !tail.ends_with(number)
        });
        self.shared.space.release(number);
    }
}
