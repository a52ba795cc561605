//! The writer thread: group commit (rules W1, W2). It alone writes frames, and tells appenders what is durable.
//!
//! It never acknowledges before the sync has answered well, and never syncs again after one that has not.

use super::copy::Copying;
use super::group::{Group, LaidOut, Origin, Payload};
use super::queue::{Body, Done, Item, Taken, Wait};
use super::shared::Shared;
use super::space::WalFile;
use super::tail::{Freed, Place, StateRecord, frame_bytes, head_of};
use bytes::Bytes;
use millpond_log::frame::{BLOCK_BYTES, FileHead, Frame, FrameKind};
use millpond_log::{LeaderEpoch, Lsn, Offset, PartitionId, TimestampMs, TopicId};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Most bytes of frames in a group, unless one frame is larger: about what a disk writes in 10 ms, so that a group that
/// forms meanwhile does not wait long.
const GROUP_BYTES_MAX: u64 = 8 << 20;

/// Quiet after which a sync mark proves the newest group (rule W3). Long against a sync, so that a lone producer does not pay it.
const QUIET: Duration = Duration::from_millis(20);

/// The thread's own state.
pub(super) struct Writer {
    pub(super) shared: Arc<Shared>,
    pub(super) file: Arc<WalFile>,
    /// Where the next group goes.
    pub(super) position: u64,
    pub(super) next_lsn: Lsn,
    pub(super) prev_crc: u32,
    pub(super) boot: u32,
    pub(super) copies: u32,
    /// Whether the newest frame is a sync mark, or there is nothing to prove.
    pub(super) marked: bool,
    /// Batches in memory that are on disk as well, oldest first, and their size.
    pub(super) evictable: VecDeque<(PartitionId, u64, u64)>,
    pub(super) evictable_bytes: u64,
    /// The file being given up.
    pub(super) copying: Option<Copying>,
}

impl Writer {
    /// Writes until the queue is closed and empty, then marks the log clean.
    ///
    /// # Errors
    /// The first error of a write or a sync (rule W2). Nothing was acknowledged that it may have lost.
    pub(super) fn run(&mut self) -> io::Result<()> {
        loop {
            self.give_up_oldest();
            let wait = match (&self.copying, self.marked) {
                (Some(copying), _) if copying.is_busy() => Wait::Not,
                (_, false) => Wait::For(QUIET),
                (_, true) => Wait::Forever,
            };
            match self.shared.queue.take(self.room(), GROUP_BYTES_MAX, wait) {
                Taken::Items(items) => self.commit(items)?,
                Taken::Nothing if self.copying.as_ref().is_some_and(Copying::is_busy) => self.commit(Vec::new())?,
                Taken::Nothing if !self.marked => self.mark()?,
                Taken::Nothing => {}
                Taken::TooLarge => self.roll()?,
                Taken::Closed => return self.mark(),
            }
        }
    }

    fn room(&self) -> u64 {
        self.file.bytes.saturating_sub(self.position.max(BLOCK_BYTES))
    }

    /// Writes and syncs these items and what is to be copied, then completes them.
    pub(super) fn commit(&mut self, items: Vec<Item>) -> io::Result<()> {
        let mut group = Group::default();
        let (mut done, mut copied) = (Vec::new(), Vec::new());
        let mut bytes = 0;
        for item in items {
            bytes += item.bytes();
            match item.body {
                Body::Record(seq, record) => {
                    let mut frame = Frame { seq, ..blank(FrameKind::Batch) };
                    head_of(&record, &mut frame);
                    group.push(frame, payload_of(record));
                }
                Body::State(partition, record) => group.push(state_frame(partition, &record), state_payload(&record)),
                Body::Copied(number) => copied.push(number),
                Body::Empty => {}
            }
            done.extend(item.done);
        }
        let room = self.room().saturating_sub(bytes);
        if let Some(copying) = &mut self.copying {
            copying.fill(&self.shared, room, &mut group)?;
        }
        self.write(group)?;
        self.complete(done);
        for number in copied {
            self.leave(number);
        }
        Ok(())
    }

    /// Writes one group with one vectored write and one sync, then notes where its batches are.
    fn write(&mut self, group: Group) -> io::Result<()> {
        if group.is_empty() {
            return Ok(());
        }
        let head = FileHead { wal_gen: self.file.wal_gen, file: self.file.number, first_lsn: self.next_lsn };
        let origin = Origin {
            position: self.position,
            lsn: self.next_lsn,
            prev_crc: self.prev_crc,
            boot: self.boot,
            copies: self.copies,
        };
        let laid_out = group.lay_out(&head, self.file.seed(), origin);
        laid_out.write(self.file.file.as_ref(), self.position)?;
        self.file.file.sync_data()?;
        self.position = laid_out.end;
        self.prev_crc = laid_out.prev_crc;
        self.copies = laid_out.copies;
        self.next_lsn = Lsn(self.next_lsn.0 + laid_out.frames.len() as u64);
        self.marked = laid_out.frames.last().is_some_and(|(frame, _)| frame.kind == FrameKind::SyncMark);
        self.shared.durable_lsn.store(self.next_lsn.0 - 1, Ordering::Release);
        self.placed(&laid_out);
        Ok(())
    }

    /// Tells the tails where their frames are, and lets memory go of the oldest batches.
    fn placed(&mut self, group: &LaidOut) {
        let mut live = 0;
        for (frame, position) in &group.frames {
            let place = Place { file: self.file.number, position: *position };
            match frame.kind {
                FrameKind::Batch if frame.copied => live += self.copy_placed(frame, place),
                FrameKind::Batch => {
                    let bytes = self.shared.tails.change(frame.partition, |tail| {
                        tail.anchor_file.get_or_insert(place.file);
                        tail.placed(frame.seq, place)
                    });
                    live += bytes.flatten().unwrap_or_default();
                    let size = u64::from(frame.payload_len);
                    self.evictable.push_back((frame.partition, frame.seq, size));
                    self.evictable_bytes += size;
                }
                FrameKind::SyncMark => {}
                FrameKind::State | FrameKind::Drop => {
                    self.shared.tails.change(frame.partition, |tail| tail.anchor_file = Some(place.file));
                }
                _ => {
                    self.shared
                        .tails
                        .change(frame.partition, |tail| tail.anchor_file.get_or_insert(place.file).to_owned());
                }
            }
        }
        let left = self.file.bytes.saturating_sub(self.position);
        self.shared.space.wrote(left, self.file.number, live);
        while self.evictable_bytes > self.shared.options.memory_bytes {
            let Some((partition, seq, size)) = self.evictable.pop_front() else { break };
            self.evictable_bytes -= size;
            self.shared.tails.change(partition, |tail| tail.evict(seq));
        }
    }

    /// A copy is durable: the batch lies there now. Returns the bytes that became live.
    fn copy_placed(&mut self, frame: &Frame, place: Place) -> u64 {
        let moved = self.shared.tails.change(frame.partition, |tail| tail.moved(frame.seq, place)).flatten();
        let Some((held, old)) = moved else { return 0 };
        let bytes = frame_bytes(&held.entry);
        self.shared.space.free(&[Freed { file: old.file, bytes }]);
        bytes
    }

    /// Answers the appenders, once each, with their newest ticket.
    fn complete(&self, done: Vec<Done>) {
        let mut newest = BTreeMap::new();
        for Done { appender, events, ticket, permits } in done {
            // The room is taken now, not reserved.
            drop(permits);
            newest.insert(appender, (events, ticket));
        }
        self.shared.acknowledge(newest.into_values());
    }

    /// Proves the newest group by a frame after it (rule W3).
    pub(super) fn mark(&mut self) -> io::Result<()> {
        if self.marked {
            return Ok(());
        }
        if self.room() < BLOCK_BYTES {
            self.roll()?;
        }
        let mut group = Group::default();
        group.push(blank(FrameKind::SyncMark), Payload::Empty);
        self.write(group)
    }

    /// Goes on in the next file; waits while there is none.
    fn roll(&mut self) -> io::Result<()> {
        let next = loop {
            if let Some(next) = self.shared.space.roll(self.file.number) {
                break next;
            }
            if !self.shared.space.wait_ready() {
                return Err(io::Error::other("the WAL is being closed and has no file to write to"));
            }
        };
        (self.file, self.position, self.copies) = (next, 0, 0);
        Ok(())
    }

    /// Writes the state of every partition and syncs it, before anybody else writes: the end of recovery after damage.
    pub(super) fn restate(&mut self) -> io::Result<()> {
        let mut states = VecDeque::new();
        self.shared.tails.retain(|partition, tail| {
            if !tail.dropped {
                tail.leave_gap();
                states.push_back(Item { body: Body::State(partition, tail.state()), done: None });
            }
            true
        });
        while let Some(first) = states.front() {
            if first.bytes() > self.room() {
                self.roll()?;
            }
            let fits = (self.room().min(GROUP_BYTES_MAX) / first.bytes()) as usize;
            let portion = states.drain(..fits.min(states.len())).collect();
            self.commit(portion)?;
        }
        self.mark()
    }
}

/// A frame of this kind that says nothing yet.
pub(super) fn blank(kind: FrameKind) -> Frame {
    Frame {
        lsn: Lsn(0),
        synced_lsn: Lsn(0),
        prev_crc: 0,
        boot: 0,
        kind,
        group_end: false,
        copied: false,
        copies: 0,
        partition: PartitionId { topic: TopicId(0), index: 0 },
        seq: 0,
        leader_epoch: LeaderEpoch(0),
        base_offset: Offset(0),
        append_time: TimestampMs(0),
        prefix_hash: 0,
        payload_len: 0,
        payload_crc: 0,
    }
}

fn payload_of(record: super::WalRecord) -> Payload {
    match record {
        super::WalRecord::Batch { batch, .. } => Payload::Batch(batch),
        _ => Payload::Empty,
    }
}

fn state_frame(partition: PartitionId, record: &StateRecord) -> Frame {
    Frame {
        partition,
        seq: record.seq,
        leader_epoch: record.epoch_seen,
        base_offset: record.start,
        prefix_hash: record.start_hash,
        ..blank(FrameKind::State)
    }
}

fn state_payload(record: &StateRecord) -> Payload {
    Payload::Bytes(Bytes::copy_from_slice(&record.state.encode()))
}
