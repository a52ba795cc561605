//! Gives the oldest file up (rules W8, W8a): what is needed of it is copied to the head and synced, then it may be reused.
//!
//! Runs in the writer's groups, in small portions, so that it delays nobody. It never frees a file that somebody needs.

use super::files::Files;
use super::group::{Group, Payload};
use super::queue::{Body, Item};
use super::shared::Shared;
use super::space::Oldest;
use super::tail::Place;
use super::writer::Writer;
use bytes::Bytes;
use millpond_log::PartitionId;
use millpond_log::frame::{FRAME_ALIGN, FRAME_HEAD_BYTES, Frame, FrameKind, align_up};
use std::collections::VecDeque;
use std::io;

/// Most bytes copied with one group, unless one batch is larger.
const PORTION_BYTES: u64 = 1 << 20;

/// A file on its way out.
pub(super) struct Copying {
    oldest: Oldest,
    needed: VecDeque<(PartitionId, u64, Place)>,
    /// Whether the states of its partitions, and the note that ends it all, are in the queue.
    stated: bool,
}

impl Copying {
    /// Whether there is something to do without waiting for the queue.
    pub(super) fn is_busy(&self) -> bool {
        !self.stated
    }

    /// Adds a portion of copies to `group`, at most `room` bytes; after the last one, queues what ends the file.
    ///
    /// # Errors
    /// A needed frame cannot be read back: damage, found late (rules W4, S13). Its file's index is gone, so that the next start finds it.
    pub(super) fn fill(&mut self, shared: &Shared, room: u64, group: &mut Group) -> io::Result<()> {
        let mut bytes = 0;
        while let Some((partition, seq, place)) = self.needed.front().copied() {
            let held = shared.tails.look(partition, |tail| tail.needed_at(seq, place)).flatten();
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
        if self.needed.is_empty() && !self.stated {
            self.stated = true;
            state(shared, self.oldest.number);
        }
        Ok(())
    }
}

/// Queues the state of each partition that has frames in the file and no later state, and the note that this is all.
fn state(shared: &Shared, number: u64) {
    let mut waiting = shared.queue.lock();
    shared.tails.retain(|partition, tail| {
        if tail.anchor_file.is_some_and(|file| file <= number) && !tail.dropped {
            waiting.push(Item { body: Body::State(partition, tail.state()), done: None });
        }
        true
    });
    waiting.push(Item { body: Body::Copied(number), done: None });
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
            needed.extend(tail.needed_in(oldest.number).map(|(seq, place)| (partition, seq, place)));
            true
        });
        Copying { oldest, needed, stated: false }
    }

    /// All of the file is written elsewhere, and durable: lets go of it.
    pub(super) fn leave(&mut self, number: u64) {
        self.copying = None;
        let mut needed = false;
        self.shared.tails.retain(|_, tail| {
            needed |= tail.needed_in(number).next().is_some();
            true
        });
        if needed {
            // Nothing can make a batch needed again; yet a file is let go on proof only. The next round copies it.
            return;
        }
        self.shared.tails.retain(|_, tail| {
            tail.leave_file(number);
            !(tail.dropped && tail.anchor_file.is_some_and(|file| file <= number))
        });
        self.shared.space.release(number);
    }
}
