//! The writer thread: group commit (rules W1, W2). It alone writes frames, and tells appenders what is durable.
//!
//! It never acknowledges before the sync has answered well, and never syncs again after one that has not.

use super::WalRecord;
mod copy;

use super::file::WalFile;
use super::group::{Group, LaidOut, Origin, Payload};
use super::index_file::Growing;
use super::queue::{Done, Item, Taken, Wait};
use super::shared::Shared;
use super::tail::{Freed, Place, frame_bytes, head_of};
use crate::clock;
use copy::{Copying, Filled, STATE_FRAME_BYTES, push_state};
use millpond_log::frame::{BLOCK_BYTES, FileHead, Frame, FrameKind};
use millpond_log::{Lsn, PartitionId};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tracing::Span;

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
    /// Index of the file, unless it was begun before this start or has become large.
    pub(super) index: Option<Growing>,
    /// The file being given up.
    pub(super) copying: Option<Copying>,
}

/// How the writer ended.
pub(super) enum Ended {
    /// All is written, and the log marked.
    Clean,
    /// Closed while there was no room for what waited. That was not acknowledged.
    Full,
}

impl Writer {
    /// Writes until the queue is closed and empty, then marks the log.
    ///
    /// # Errors
    /// The first error of a write or a sync (rule W2). Nothing was acknowledged that it may have lost.
    pub(super) fn run(&mut self) -> io::Result<Ended> {
        loop {
            self.shared.queue.begin_look();
            self.give_up_oldest();
            let spendable = self.shared.space.spendable();
            let wait = match (&self.copying, self.marked) {
                (Some(_), _) => Wait::Not,
                (None, false) => Wait::For(QUIET),
                (None, true) => Wait::Forever,
            };
            match self.shared.queue.take(self.room().min(spendable), GROUP_BYTES_MAX, wait) {
                Taken::Items(items) => {
                    self.commit(items)?;
                }
                Taken::Closed => {
                    self.mark()?;
                    return Ok(Ended::Clean);
                }
                // A file on its way out makes room by itself; else the rest of this one may be too short.
                Taken::Nothing | Taken::TooLarge(_) if self.copying.is_some() => {
                    if !(self.commit(Vec::new())? || self.roll() || self.wait_for_room()) {
                        return Ok(Ended::Full);
                    }
                }
                Taken::Nothing => self.mark()?,
                Taken::TooLarge(bytes) => {
                    let elsewhere = bytes > self.room() && bytes + self.room() <= spendable;
                    if !(elsewhere && self.roll() || self.wait_for_room()) {
                        return Ok(Ended::Full);
                    }
                }
            }
        }
    }

    fn room(&self) -> u64 {
        self.file.bytes.saturating_sub(self.position.max(BLOCK_BYTES))
    }

    /// Waits until something changed that may have made room. False if the WAL is closed instead.
    fn wait_for_room(&self) -> bool {
        self.shared.space.set_writer_waits(true);
        let goes_on = self.shared.queue.wait_for_nudge();
        self.shared.space.set_writer_waits(false);
        goes_on
    }

    /// Writes and syncs what is to be copied and these items, then completes them. Answers whether it got anything done.
    fn commit(&mut self, items: Vec<Item>) -> io::Result<bool> {
        let mut group = Group::default();
        let mut filled = Filled::Nothing;
        let bytes: u64 = items.iter().map(Item::bytes).sum();
        if let Some(copying) = &mut self.copying {
            let room = self.file.bytes.saturating_sub(self.position.max(BLOCK_BYTES)).saturating_sub(bytes);
            // Before the items: a state's number is below theirs.
            filled = copying.fill(&self.shared, self.file.number, room, &mut group)?;
        }
        let mut done = Vec::new();
        for item in items {
            if let Some((seq, record)) = item.record {
                let mut frame = Frame { seq, ..Frame::blank(FrameKind::Batch) };
                head_of(&record, &mut frame);
                group.push(frame, payload_of(record, item.crc));
            }
            done.extend(item.done);
        }
        let did = filled != Filled::Nothing || !group.is_empty() || !done.is_empty();
        let span = group_span(&done, bytes);
        span.in_scope(|| self.write(group))?;
        self.complete(done);
        if filled == Filled::Last {
            self.leave();
        }
        Ok(did)
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
        let begun = clock::monotonic();
        laid_out.write(self.file.file.as_ref(), self.position)?;
        self.file.file.sync_data()?;
        if let Some(meters) = self.shared.meters.get() {
            let new = |(frame, _): &&(Frame, u64)| frame.kind == FrameKind::Batch && !frame.copied;
            let batches = laid_out.frames.iter().filter(new).count() as u64;
            meters.synced(batches, laid_out.end - self.position, clock::monotonic() - begun);
        }
        self.position = laid_out.end;
        self.prev_crc = laid_out.prev_crc;
        self.copies = laid_out.copies;
        self.next_lsn = Lsn(self.next_lsn.0 + laid_out.frames.len() as u64);
        self.marked = laid_out.frames.last().is_some_and(|(frame, _)| frame.kind == FrameKind::SyncMark);
        self.shared.durable_lsn.store(self.next_lsn.0 - 1, Ordering::Release);
        self.grow_index(&laid_out);
        self.placed(&laid_out);
        Ok(())
    }

    fn grow_index(&mut self, group: &LaidOut) {
        let Some(index) = &mut self.index else { return };
        let fits = group.frames().all(|(frame, position, detail)| index.push(&self.file, frame, position, &detail));
        if !fits {
            self.index = None;
        }
    }

    /// Tells the tails where their frames are, and lets memory go of the oldest batches.
    fn placed(&mut self, group: &LaidOut) {
        let mut live = 0;
        for (frame, position) in &group.frames {
            let place = Place { file: self.file.number, position: *position };
            match frame.kind {
                FrameKind::Batch if frame.copied => live += self.copy_placed(frame, place),
                FrameKind::Batch => {
                    let bytes = self.shared.tails.change(frame.partition, |tail| tail.placed(frame.seq, place));
                    live += bytes.flatten().unwrap_or_default();
                    let size = u64::from(frame.payload_len);
                    self.evictable.push_back((frame.partition, frame.seq, size));
                    self.evictable_bytes += size;
                }
                FrameKind::SyncMark => {}
                kind => {
                    self.shared
                        .tails
                        .change(frame.partition, |tail| tail.noted(kind, frame.seq, frame.base_offset, place.file));
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

    /// Proves the newest group by a frame after it (rule W3), if there is room for that.
    pub(super) fn mark(&mut self) -> io::Result<()> {
        if !self.marked && (self.room() >= BLOCK_BYTES || self.roll()) {
            let mut group = Group::default();
            group.push(Frame::blank(FrameKind::SyncMark), Payload::Empty);
            self.write(group)?;
        }
        self.marked = true;
        Ok(())
    }

    /// Goes on in the next file. False while none is ready, or if nothing is written to this one: no file of the log is empty.
    fn roll(&mut self) -> bool {
        if self.position == 0 {
            return false;
        }
        let Some(next) = self.shared.space.roll(self.file.number, &mut self.index) else { return false };
        self.index = Some(Growing::new(next.number));
        (self.file, self.position, self.copies) = (next, 0, 0);
        true
    }

    /// Writes the state of every partition and syncs it, before anybody else writes: the end of recovery after damage.
    ///
    /// # Errors
    /// As `run`; and `StorageFull` if there is no room, which leaves the damage for the next start.
    pub(super) fn restate(&mut self) -> io::Result<()> {
        let mut partitions = VecDeque::new();
        self.shared.tails.retain(|partition, tail| {
            partitions.extend((!tail.dropped).then_some(partition));
            true
        });
        while !partitions.is_empty() {
            if self.room() < STATE_FRAME_BYTES && !self.roll() {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let fits = (self.room().min(GROUP_BYTES_MAX) / STATE_FRAME_BYTES) as usize;
            let mut group = Group::default();
            for partition in partitions.drain(..fits.min(partitions.len())) {
                let file = self.file.number;
                let state = self.shared.tails.change(partition, |tail| {
                    tail.leave_gap();
                    tail.state(file)
                });
                if let Some(record) = state {
                    push_state(partition, &record, &mut group);
                }
            }
            self.write(group)?;
        }
        self.mark()
    }
}

/// A span for a group, linked both ways with those of its batches. Disabled where nobody traces.
fn group_span(done: &[Done], bytes: u64) -> Span {
    let group = tracing::debug_span!(parent: None, "wal_group", bytes);
    if !group.is_disabled() {
        let batches = || done.iter().flat_map(|done| &done.permits).map(|permit| &permit.span);
        // First this way: whether the group's span is kept is decided by the spans it is linked to.
        for batch in batches() {
            group.follows_from(batch);
        }
        for batch in batches() {
            batch.follows_from(&group);
        }
    }
    group
}

fn payload_of(record: WalRecord, crc: u32) -> Payload {
    match record {
        WalRecord::Batch { batch, .. } => Payload::Batch(batch, crc),
        _ => Payload::Empty,
    }
}
