//! The tail of one partition: which batches the WAL holds, where, and what else its frames said. Pure; no locks, no I/O.
//!
//! It changes when a record is handed in, before the record is durable: whoever must not see that asks only below what is.

use super::{Ahead, RecoveredPartition, TailEntry, WalRecord};
use millpond_core::tiering::TailSummary;
use millpond_log::batch::Batch;
use millpond_log::frame::{Frame, FrameKind, PartitionState};
use millpond_log::{LeaderEpoch, Offset, PartitionId, TimestampMs};
use std::collections::VecDeque;

/// Number of a partition's first frame. Records have even numbers, and 0 is nobody's.
pub(super) const FIRST_SEQ: u64 = 2;

/// Where a frame lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Number of the file.
    pub(super) file: u64,
    /// Byte position of the frame's head.
    pub(super) position: u64,
}

/// What a frame says of its batch beside the batch itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) append_time: TimestampMs,
    pub(super) latest: TimestampMs,
}

impl Times {
    /// Those of a batch's frame.
    pub(super) fn of(frame: &Frame) -> Times {
        Times { append_time: frame.append_time, latest: frame.latest }
    }
}

/// A batch in the tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    /// What readers of the index get.
    pub(super) entry: TailEntry,
    /// Its sequence number in the partition.
    pub(super) seq: u64,
    /// Chained hash up to and with it.
    pub(super) prefix_hash: u64,
    /// Bytes of all batches that the tail has held before it: the bytes of a stretch are a difference. Kept by the tail.
    pub(super) bytes_before: u64,
    /// Where it is on disk; `None` until it is synced.
    pub(super) place: Option<Place>,
}

/// A batch that stopped being needed, for the accounts of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Freed {
    /// Its file.
    pub(super) file: u64,
    /// Bytes of its frame.
    pub(super) bytes: u64,
}

impl Held {
    fn bytes_after(&self) -> u64 {
        self.bytes_before + u64::from(self.entry.size)
    }
}

/// A batch that a record on its way takes away: until that is durable, the log on disk still holds the batch.
#[derive(Clone, Copy, Debug)]
struct Removed {
    held: Held,
    /// Sequence number of the record that takes it away.
    by: u64,
}

/// Tail of one partition.
#[derive(Debug, Default)]
pub(super) struct Tail {
    pub(super) epoch_seen: LeaderEpoch,
    pub(super) hw: Offset,
    /// Whether its topic is gone. Kept until no frame of it is left, so that sequence numbers are not given out again.
    pub(super) dropped: bool,
    /// The oldest file that recovery reads for this partition: that of its newest state and the batches which the state names.
    /// Before that file is given up, the partition is stated anew. `None` before its first frame is written.
    pub(super) oldest_file: Option<u64>,
    /// What `oldest_file` becomes once the state that is being written is durable.
    stated_from: Option<u64>,
    /// Whether the record that dropped it is durable.
    gone: bool,
    /// Newest sequence number that is durable.
    written_seq: u64,
    /// Log end offset as the durable frames have it; `None` while they do not say where the log begins.
    written_end: Option<Offset>,
    removed: Vec<Removed>,
    start: Offset,
    /// Chained hash at `start`, where it is known (rule S6).
    start_hash: Option<u64>,
    end: Offset,
    /// Whether anything said where the log begins.
    begun: bool,
    /// Batches that end at or below this are kept only while nobody needs their file.
    needed: Offset,
    next_seq: u64,
    held: VecDeque<Held>,
    /// Batches in memory: those of the newest entries.
    recent: VecDeque<Batch>,
    needed_bytes: u64,
}

impl Tail {
    /// A recovered tail, from its batches in order. `state` says what the frames other than batches added up to.
    pub(super) fn recovered(
        state: PartitionState,
        start: (Offset, Option<u64>),
        epoch_seen: LeaderEpoch,
        mut held: Vec<Held>,
    ) -> Tail {
        let mut needed_bytes = 0;
        for held in &mut held {
            held.bytes_before = needed_bytes;
            needed_bytes += u64::from(held.entry.size);
        }
        Tail {
            epoch_seen,
            hw: state.hw,
            dropped: false,
            oldest_file: None,
            stated_from: None,
            gone: false,
            written_seq: state.end_seq - 1,
            written_end: Some(state.end),
            removed: Vec::new(),
            start: start.0,
            start_hash: start.1,
            end: state.end,
            begun: true,
            needed: start.0,
            next_seq: next_even(state.end_seq - 1),
            held: held.into(),
            recent: VecDeque::new(),
            needed_bytes,
        }
    }

    /// What is left of a partition whose frame `seq` dropped it.
    pub(super) fn husk(seq: u64, file: u64) -> Tail {
        let next_seq = next_even(seq);
        Tail { dropped: true, gone: true, written_seq: seq, next_seq, oldest_file: Some(file), ..Tail::default() }
    }

    /// Takes a record in and gives it its sequence number: an even one, so that a state fits between any two. Batches that it makes unneeded go to `freed`.
    ///
    /// Panics if a batch is not at the end, or a truncation is not between two batches: then the caller is wrong.
    pub(super) fn apply(&mut self, record: &WalRecord, freed: &mut Vec<Freed>) -> u64 {
        let seq = self.next_seq.max(FIRST_SEQ);
        self.next_seq = seq + 2;
        match record {
            WalRecord::Batch { batch, append_time, latest, prefix_hash, partition } => {
                self.push(*partition, batch, Times { append_time: *append_time, latest: *latest }, *prefix_hash, seq);
            }
            WalRecord::EpochSeen { epoch, .. } => self.epoch_seen = self.epoch_seen.max(*epoch),
            WalRecord::Truncate { to, .. } => self.truncate(*to, seq, freed),
            WalRecord::HighWatermark { hw, .. } => self.hw = *hw,
            WalRecord::Reset { at, prefix_hash, .. } => self.reset(*at, *prefix_hash, seq, freed),
            WalRecord::Drop { .. } => {
                self.reset(Offset(0), 0, seq, freed);
                self.dropped = true;
            }
        }
        seq
    }

    fn push(&mut self, partition: PartitionId, batch: &Batch, times: Times, prefix_hash: u64, seq: u64) {
        if !self.begun {
            // A log that was never reset begins where its first batch says.
            (self.start, self.end, self.needed) = (batch.base_offset(), batch.base_offset(), batch.base_offset());
            self.start_hash = known_hash(self.start, 0);
            self.begun = true;
        }
        assert!(
            batch.base_offset() == self.end && !self.dropped,
            "a batch of `{partition}` at {} where the log ends at {}",
            batch.base_offset(),
            self.end
        );
        let entry = entry_of(batch, times);
        self.end = entry.end;
        self.needed_bytes += u64::from(entry.size);
        self.epoch_seen = self.epoch_seen.max(entry.leader_epoch);
        let bytes_before = self.held.back().map_or(0, Held::bytes_after);
        self.held.push_back(Held { entry, seq, prefix_hash, bytes_before, place: None });
        self.recent.push_back(batch.clone());
    }

    fn truncate(&mut self, to: Offset, seq: u64, freed: &mut Vec<Freed>) {
        while let Some(held) = self.held.pop_back_if(|held| held.entry.end > to) {
            self.recent.pop_back();
            let whole = held.entry.base >= to || to <= self.needed;
            assert!(whole, "truncation to {to} inside the batch at {}", held.entry.base);
            self.forget(held, seq, freed);
        }
        if to < self.end && self.held.back().map_or(self.start, |held| held.entry.end) != to {
            // Below what was needed: nothing that is left adjoins the new end.
            self.held.clear();
            self.recent.clear();
            (self.start, self.start_hash) = (to, known_hash(to, 0));
        }
        self.end = self.end.min(to);
        self.needed = self.needed.min(to);
        self.hw = self.hw.min(to);
    }

    fn reset(&mut self, at: Offset, prefix_hash: u64, seq: u64, freed: &mut Vec<Freed>) {
        for held in std::mem::take(&mut self.held) {
            self.forget(held, seq, freed);
        }
        self.recent.clear();
        (self.start, self.start_hash) = (at, known_hash(at, prefix_hash));
        (self.end, self.needed) = (at, at);
        self.hw = at;
        (self.dropped, self.gone) = (false, false);
        self.begun = true;
    }

    /// Takes a batch that left `held` off the accounts.
    fn forget(&mut self, held: Held, by: u64, freed: &mut Vec<Freed>) {
        if held.entry.end > self.needed {
            self.unneed(&held, freed);
            self.removed.push(Removed { held, by });
        }
    }

    fn unneed(&mut self, held: &Held, freed: &mut Vec<Freed>) {
        self.needed_bytes -= u64::from(held.entry.size);
        if let Some(place) = held.place {
            freed.push(Freed { file: place.file, bytes: frame_bytes(&held.entry) });
        }
    }

    /// Batches wholly below `to` are no longer needed. They stay readable until the space is.
    pub(super) fn trim(&mut self, to: Offset, freed: &mut Vec<Freed>) {
        let to = to.min(self.end);
        let from = self.held.partition_point(|held| held.entry.end <= self.needed);
        let end = self.held.partition_point(|held| held.entry.end <= to);
        let unneeded: Vec<Held> = self.held.range(from..end.max(from)).copied().collect();
        for held in unneeded {
            self.unneed(&held, freed);
        }
        self.needed = self.needed.max(to);
    }

    /// Forgets the batches that nobody needs in files up to and with `file`, and older ones, so that no hole is left.
    pub(super) fn leave_file(&mut self, file: u64) {
        let inside = |held: &Held| held.place.is_some_and(|place| place.file <= file);
        let needless = self.held.partition_point(|held| held.entry.end <= self.needed);
        let count = self.held.range(..needless).rposition(inside).map_or(0, |last| last + 1);
        if let Some(last) = self.held.range(..count).next_back() {
            (self.start, self.start_hash) = (last.entry.end, Some(last.prefix_hash));
        }
        self.held.drain(..count);
        let surplus = self.recent.len().saturating_sub(self.held.len());
        self.recent.drain(..surplus);
    }

    /// Notes where a batch is on disk now. Bytes that became live there; `None` if it is not needed (any more).
    pub(super) fn placed(&mut self, seq: u64, place: Place) -> Option<u64> {
        self.oldest_file.get_or_insert(place.file);
        self.written_seq = self.written_seq.max(seq);
        let needed = self.needed;
        if let Some(removed) = self.removed.iter_mut().find(|removed| removed.held.seq == seq) {
            removed.held.place = Some(place);
            self.written_end = Some(removed.held.entry.end);
            return None;
        }
        let held = self.find_seq(seq)?;
        held.place = Some(place);
        let entry = held.entry;
        self.written_end = Some(entry.end);
        (entry.end > needed).then(|| frame_bytes(&entry))
    }

    /// Notes that a frame other than a batch is durable in `file`; `offset` is the one it speaks of.
    pub(super) fn noted(&mut self, kind: FrameKind, seq: u64, offset: Offset, file: u64) {
        self.written_seq = self.written_seq.max(seq);
        match kind {
            FrameKind::Truncate => self.written_end = self.written_end.map(|end| end.min(offset)),
            FrameKind::Reset => self.written_end = Some(offset),
            FrameKind::Drop => self.gone = self.dropped,
            _ => {}
        }
        if matches!(kind, FrameKind::Truncate | FrameKind::Reset | FrameKind::Drop) {
            self.removed.retain(|removed| removed.by > seq);
        }
        self.oldest_file = match kind {
            FrameKind::State => self.stated_from.take().or(self.oldest_file),
            // Nothing before it matters.
            FrameKind::Drop => Some(file),
            _ => self.oldest_file.or(Some(file)),
        };
    }

    /// Notes that a copy of the batch is durable at `place`. If the batch is still needed, returns it, and where it was.
    pub(super) fn moved(&mut self, seq: u64, place: Place) -> Option<(Held, Place)> {
        if let Some(removed) = self.removed.iter_mut().find(|removed| removed.held.seq == seq) {
            removed.held.place = Some(place);
            return None;
        }
        let needed = self.needed;
        let held = self.find_seq(seq).filter(|held| held.entry.end > needed)?;
        let old = held.place.replace(place)?;
        Some((*held, old))
    }

    fn find_seq(&mut self, seq: u64) -> Option<&mut Held> {
        let at = self.held.binary_search_by_key(&seq, |held| held.seq).ok()?;
        self.held.get_mut(at)
    }

    /// The log as the durable frames have it, in order, without what nobody needs.
    fn durable(&self) -> impl Iterator<Item = (&Held, Place)> {
        let from = self.held.partition_point(|held| held.entry.end <= self.needed);
        let removed = self.removed.iter().map(|removed| &removed.held);
        let all = self.held.range(from..).chain(removed);
        all.filter_map(|held| held.place.map(|place| (held, place)))
    }

    /// The batch, if the durable log has it at `place`.
    pub(super) fn durable_at(&self, seq: u64, place: Place) -> Option<Held> {
        let removed = self.removed.iter().map(|removed| removed.held).find(|held| held.seq == seq);
        let held = removed.or_else(|| {
            let at = self.held.binary_search_by_key(&seq, |held| held.seq).ok()?;
            Some(self.held[at]).filter(|held| held.entry.end > self.needed)
        })?;
        (held.place == Some(place)).then_some(held)
    }

    /// The batches of the durable log that lie in files up to and with `file`.
    pub(super) fn durable_in(&self, file: u64) -> impl Iterator<Item = (u64, Place)> {
        self.durable().filter(move |(_, place)| place.file <= file).map(|(held, place)| (held.seq, place))
    }

    /// Whether the batch is in memory, the oldest of the partition, and on disk: then memory lets go of it.
    pub(super) fn evict(&mut self, seq: u64) {
        let oldest = self.held.len() - self.recent.len();
        if self.held.get(oldest).is_some_and(|held| held.seq == seq && held.place.is_some()) {
            self.recent.pop_front();
        }
    }

    /// A frame that stands for all the partition's durable frames that are no batch (rule W8a): its head's offset, hash and
    /// epoch, its payload, and its sequence number, which is odd and above what is durable. It leaves out the batches that nobody
    /// needs. Records on their way follow it, so it speaks of the log as those expect it. `file` is the one being written.
    pub(super) fn state(&mut self, file: u64) -> StateRecord {
        let mut named: Vec<(Held, Place)> = self.durable().map(|(held, place)| (*held, place)).collect();
        named.sort_by_key(|(held, _)| held.seq);
        self.stated_from = Some(named.iter().map(|(_, place)| place.file).fold(file, u64::min));
        let seq = self.written_seq | 1;
        // What no frame has said yet, this one leaves open: number 0 is no frame's.
        let end = self.written_end.unwrap_or_default();
        let (none_first, none_end) = if self.written_end.is_some() { (seq, seq) } else { (0, 0) };
        let start = named.first().map_or(end, |(first, _)| first.entry.base);
        // Where the log on disk begins with batches that a record on its way takes away, `start` is that record's already.
        let oldest_goes =
            named.first().is_some_and(|(oldest, _)| self.removed.iter().any(|gone| gone.held.seq == oldest.seq));
        let start_hash = self.prefix_hash_at(start).filter(|_| !oldest_goes).unwrap_or(UNKNOWN_HASH);
        let state = PartitionState {
            end,
            hw: self.hw.min(end),
            first_seq: named.first().map_or(none_first, |(first, _)| first.seq),
            end_seq: named.last().map_or(none_end, |(last, _)| last.seq + 1),
        };
        StateRecord { seq, start, start_hash, epoch_seen: self.epoch_seen, state }
    }

    /// Whether it is dropped, durably.
    pub(super) fn is_gone(&self) -> bool {
        self.gone
    }

    /// Whether recovery would miss frames of it that are in files up to and with `file`.
    pub(super) fn reads(&self, file: u64) -> bool {
        !self.gone && self.oldest_file.is_some_and(|oldest| oldest <= file)
    }

    /// Whether it is dropped, and no frame of it is left once files up to and with `file` are given up.
    pub(super) fn ends_with(&self, file: u64) -> bool {
        self.gone && self.oldest_file.is_some_and(|oldest| oldest <= file)
    }

    /// Leaves a gap in the sequence numbers, wider than what can have been lost: lost frames that can be read again one day
    /// are then void, not next.
    pub(super) fn leave_gap(&mut self) {
        self.next_seq += 1 << 32;
        self.written_seq = self.next_seq - 2;
    }

    /// First offset held.
    pub(super) fn start(&self) -> Offset {
        self.start
    }

    /// Log end offset.
    pub(super) fn end(&self) -> Offset {
        self.end
    }

    /// The whole batches of `[from, to)` in brief, at most `bytes_max` of them but one at least. Costs a search, however many
    /// they are. `None` if there is none, or `from` is not where one begins.
    pub(super) fn summary(&self, from: Offset, to: Offset, bytes_max: u64) -> Option<TailSummary> {
        let first = self.held.partition_point(|held| held.entry.base < from);
        let below = self.held.partition_point(|held| held.entry.end <= to);
        let oldest = self.held.get(first).filter(|oldest| first < below && oldest.entry.base == from)?;
        let fits = |held: &Held| held.bytes_after() - oldest.bytes_before <= bytes_max;
        let full = self.held.partition_point(|held| held.entry.base <= from || fits(held));
        let last = self.held.get(below.min(full) - 1)?;
        Some(TailSummary {
            end: last.entry.end,
            bytes: last.bytes_after() - oldest.bytes_before,
            oldest: oldest.entry.append_time,
            more: full < below,
        })
    }

    /// What lies before a reader at `from`. Costs a search, however much it is.
    pub(super) fn ahead(&self, from: Offset) -> Ahead {
        let first = self.held.partition_point(|held| held.entry.end <= from);
        let (Some(next), Some(last)) = (self.held.get(first), self.held.back()) else {
            return Ahead { bytes: 0, next: 0, in_memory: true };
        };
        let spilled = self.held.len() - self.recent.len();
        Ahead { bytes: last.bytes_after() - next.bytes_before, next: next.entry.size, in_memory: first >= spilled }
    }

    /// Chained hash of the log up to `offset` (S6), if a batch that is held begins or ends there, or the log begins there and it is
    /// known. On its way to the disk or on it.
    pub(super) fn prefix_hash_at(&self, offset: Offset) -> Option<u64> {
        let at = self.held.partition_point(|held| held.entry.end < offset);
        match self.held.get(at).filter(|held| held.entry.end == offset) {
            Some(held) => Some(held.prefix_hash),
            None if self.begun && offset == self.start => self.start_hash,
            None => None,
        }
    }

    /// Bytes of batches that are needed.
    pub(super) fn needed_bytes(&self) -> u64 {
        self.needed_bytes
    }

    /// Batches from the one that contains `from` on, each with its copy in memory if there is one.
    pub(super) fn batches_from(&self, from: Offset) -> impl Iterator<Item = (&Held, Option<&Batch>)> {
        let first = self.held.partition_point(|held| held.entry.end <= from);
        let spilled = self.held.len() - self.recent.len();
        (first..self.held.len()).map(move |at| {
            let recent = at.checked_sub(spilled).and_then(|at| self.recent.get(at));
            (&self.held[at], recent)
        })
    }

    /// The tail as recovery reports it.
    pub(super) fn report(&self, partition: PartitionId) -> RecoveredPartition {
        RecoveredPartition {
            partition,
            epoch_seen: self.epoch_seen,
            start: self.start,
            end: self.end,
            known_end: self.end,
            hw: self.hw.min(self.end),
            prefix_hash: self.held.back().map_or(self.start_hash, |held| Some(held.prefix_hash)),
        }
    }
}

/// What frames say of a chained hash that is not known; above offset 0 none is taken for it.
const UNKNOWN_HASH: u64 = 0;

/// The chained hash at `offset`, where a frame says `hash` (S6): 0 at the beginning of a log, and unknown where that is said above.
pub(super) fn known_hash(offset: Offset, hash: u64) -> Option<u64> {
    (offset == Offset(0) || hash != UNKNOWN_HASH).then_some(hash)
}

/// The first even number after `seq`.
fn next_even(seq: u64) -> u64 {
    (seq | 1) + 1
}

/// What a `State` frame carries.
#[derive(Clone, Copy, Debug)]
pub(super) struct StateRecord {
    pub(super) seq: u64,
    pub(super) start: Offset,
    pub(super) start_hash: u64,
    pub(super) epoch_seen: LeaderEpoch,
    pub(super) state: PartitionState,
}

/// The index entry of a batch.
pub(super) fn entry_of(batch: &Batch, times: Times) -> TailEntry {
    TailEntry {
        base: batch.base_offset(),
        end: batch.end_offset(),
        record_count: batch.record_count(),
        size: u32::try_from(batch.size()).expect("a batch is smaller than 4 GiB"),
        leader_epoch: batch.leader_epoch(),
        append_time: times.append_time,
        latest: times.latest,
        producer: batch.producer_write(),
    }
}

/// Bytes of the frame that holds this batch.
pub(super) fn frame_bytes(entry: &TailEntry) -> u64 {
    millpond_log::frame::FRAME_HEAD_BYTES as u64 + u64::from(entry.size)
}

/// The fields that a frame's head has of a record.
pub(super) fn head_of(record: &WalRecord, frame: &mut Frame) {
    let kind = match record {
        WalRecord::Batch { partition, batch, append_time, latest, prefix_hash } => {
            frame.partition = *partition;
            frame.leader_epoch = batch.leader_epoch();
            frame.base_offset = batch.base_offset();
            frame.append_time = *append_time;
            frame.latest = *latest;
            frame.prefix_hash = *prefix_hash;
            FrameKind::Batch
        }
        WalRecord::EpochSeen { partition, epoch } => {
            (frame.partition, frame.leader_epoch) = (*partition, *epoch);
            FrameKind::EpochSeen
        }
        WalRecord::Truncate { partition, to } => {
            (frame.partition, frame.base_offset) = (*partition, *to);
            FrameKind::Truncate
        }
        WalRecord::HighWatermark { partition, hw } => {
            (frame.partition, frame.base_offset) = (*partition, *hw);
            FrameKind::HighWatermark
        }
        WalRecord::Reset { partition, at, prefix_hash } => {
            (frame.partition, frame.base_offset, frame.prefix_hash) = (*partition, *at, *prefix_hash);
            FrameKind::Reset
        }
        WalRecord::Drop { partition } => {
            frame.partition = *partition;
            FrameKind::Drop
        }
    };
    frame.kind = kind;
}
