//! Where the pushes of one lane stand: a cursor for each partition, and which of them have something to say. Nothing else waits.

use millpond_core::replica::{Cursor, Placed, PushHead};
use millpond_log::{LeaderEpoch, Offset, PartitionId};
use std::collections::{HashMap, VecDeque};

/// One partition on its way to one follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pushing {
    /// What is pushed next.
    pub(super) cursor: Cursor,
    /// What the leader says of itself, as it was told last.
    pub(super) head: PushHead,
    /// End of the leader's log, as it was told last.
    pub(super) end: Offset,
    /// What the follower was told last, since this cursor began.
    told: Option<PushHead>,
    /// End of what the follower has acknowledged to this cursor.
    pub(super) acked: Option<Offset>,
    /// Whether it is in the queue.
    queued: bool,
}

impl Pushing {
    fn is_due(&self) -> bool {
        self.told != Some(self.head) || self.cursor.from < self.end
    }
}

/// The partitions of one lane.
#[derive(Default)]
pub(super) struct Cursors {
    held: HashMap<PartitionId, Pushing>,
    /// Those that are due, each once; some may be gone since.
    due: VecDeque<PartitionId>,
}

impl Cursors {
    /// Pushes a partition from a cursor on, at once: if only to hear what the follower holds.
    pub(super) fn follow(&mut self, partition: PartitionId, cursor: Cursor, head: PushHead, end: Offset) {
        let queued = self.held.get(&partition).is_some_and(|known| known.queued);
        self.held.insert(partition, Pushing { cursor, head, end, told: None, acked: None, queued });
        self.enqueue(partition);
    }

    /// Notes what the leader says, and where its log ends. `false` if the partition is not here.
    pub(super) fn moved(&mut self, partition: PartitionId, head: PushHead, end: Offset) -> bool {
        let Some(known) = self.held.get_mut(&partition) else { return false };
        (known.head, known.end) = (head, end);
        self.enqueue(partition);
        true
    }

    /// Forgets a partition. `false` if it is not here.
    pub(super) fn remove(&mut self, partition: PartitionId) -> bool {
        self.held.remove(&partition).is_some()
    }

    /// Forgets all of them.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = PartitionId> {
        self.due.clear();
        self.held.drain().map(|(partition, _)| partition)
    }

    /// Whether the follower has yet to acknowledge something that was pushed.
    pub(super) fn owes(&self) -> bool {
        self.held.values().any(|known| known.told.is_some() && known.acked < Some(known.cursor.from))
    }

    /// Whether any partition has something to say.
    pub(super) fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// The partition whose turn it is.
    pub(super) fn next(&mut self) -> Option<(PartitionId, Pushing)> {
        while let Some(partition) = self.due.pop_front() {
            let Some(known) = self.held.get_mut(&partition) else { continue };
            // A partition that left and came back may be in the queue twice.
            if std::mem::take(&mut known.queued) && known.is_due() {
                return Some((partition, *known));
            }
        }
        None
    }

    /// Lets a partition be the next again.
    pub(super) fn put_back(&mut self, partition: PartitionId) {
        if let Some(known) = self.held.get_mut(&partition) {
            known.queued = true;
            self.due.push_front(partition);
        }
    }

    /// Notes what was pushed of a partition. If there is more, its turn comes again, after the others'.
    pub(super) fn pushed(&mut self, partition: PartitionId, head: PushHead, batches: &[Placed]) {
        let Some(known) = self.held.get_mut(&partition) else { return };
        known.told = Some(head);
        // Where there was nothing to read, there is nothing more until the replica says so.
        let Some(last) = batches.last() else { return };
        known.cursor.from = last.batch.end_offset();
        known.cursor.prev_epoch = Some(last.batch.leader_epoch());
        self.enqueue(partition);
    }

    /// Notes what the follower acknowledged to a cursor of this office: each counts its own. The partition, if it is the one that goes on.
    pub(super) fn acked(
        &mut self,
        partition: PartitionId,
        office: LeaderEpoch,
        nonce: u64,
        end: Offset,
    ) -> Option<Pushing> {
        let goes_on = |known: &&mut Pushing| (known.head.epoch, known.cursor.nonce) == (office, nonce);
        let known = self.held.get_mut(&partition).filter(goes_on)?;
        known.acked = known.acked.max(Some(end));
        Some(*known)
    }

    /// Whether this cursor is the one that goes on.
    pub(super) fn goes_on(&self, partition: PartitionId, nonce: u64) -> bool {
        self.held.get(&partition).is_some_and(|known| known.cursor.nonce == nonce)
    }

    /// Gives a partition its turn, if it has something to say.
    pub(super) fn enqueue(&mut self, partition: PartitionId) {
        if let Some(known) = self.held.get_mut(&partition).filter(|known| !known.queued && known.is_due()) {
            known.queued = true;
            self.due.push_back(partition);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_core::records::Leader;
    use millpond_log::batch::{BatchBuilder, NewRecord};
    use millpond_log::codec::Codec;
    use millpond_log::{BrokerId, Incarnation, Rid, TimestampMs, TopicId, WalGen};

    fn partition(index: u32) -> PartitionId {
        PartitionId { topic: TopicId(1), index }
    }

    fn head(hw: u64) -> PushHead {
        let rid = Rid { broker: BrokerId(1), wal_gen: WalGen(1) };
        PushHead {
            epoch: LeaderEpoch(4),
            leader: Leader { rid, inc: Incarnation(1) },
            unclean_epoch: None,
            hw: Offset(hw),
            log_start: Offset(0),
            tiered_end: Offset(0),
        }
    }

    fn cursor(nonce: u64, from: u64) -> Cursor {
        Cursor { to: BrokerId(2), nonce, from: Offset(from), prev_epoch: None }
    }

    fn placed(base: u64) -> Placed {
        let mut builder = BatchBuilder::new(Codec::None);
        builder.push(NewRecord { timestamp: TimestampMs(1), key: None, value: None, headers: &[] });
        let mut batch = builder.build();
        batch.place(Offset(base), LeaderEpoch(3));
        Placed { batch, append_time: TimestampMs(1), latest: TimestampMs(1), prefix_hash: 0 }
    }

    /// Indexes of the partitions whose turn it is, until nobody's is; each says `hw` and reads nothing.
    fn turns(cursors: &mut Cursors) -> Vec<u32> {
        let mut turns = Vec::new();
        while let Some((partition, pushing)) = cursors.next() {
            cursors.pushed(partition, pushing.head, &[]);
            turns.push(partition.index);
        }
        turns
    }

    #[test]
    fn who_has_something_to_say_has_one_turn() {
        let mut cursors = Cursors::default();
        for index in [0, 1, 2] {
            cursors.follow(partition(index), cursor(1, 5), head(0), Offset(5));
        }
        assert_eq!(turns(&mut cursors), [0, 1, 2], "at once, if only to hear what the follower holds");
        assert!(turns(&mut cursors).is_empty());
        // However often it moves: it is told once, with the newest.
        for hw in 1..9 {
            assert!(cursors.moved(partition(1), head(hw), Offset(5)));
        }
        assert!(cursors.moved(partition(0), head(0), Offset(5)), "nothing moved");
        let (_, pushing) = cursors.next().expect("it moved");
        assert_eq!(pushing.head.hw, Offset(8));
        assert_eq!(cursors.next(), None);
        assert!(!cursors.moved(partition(7), head(1), Offset(5)));
    }

    #[test]
    fn turns_go_round_while_there_is_more() {
        let mut cursors = Cursors::default();
        cursors.follow(partition(0), cursor(1, 0), head(0), Offset(3));
        cursors.follow(partition(1), cursor(1, 0), head(0), Offset(2));
        let mut seen = Vec::new();
        while let Some((partition, pushing)) = cursors.next() {
            let read = placed(pushing.cursor.from.0);
            cursors.pushed(partition, pushing.head, std::slice::from_ref(&read));
            seen.push((partition.index, pushing.cursor.from.0, pushing.cursor.prev_epoch));
        }
        let later = Some(LeaderEpoch(3));
        assert_eq!(seen, [(0, 0, None), (1, 0, None), (0, 1, later), (1, 1, later), (0, 2, later)]);
    }

    #[test]
    fn a_newer_cursor_replaces_an_older_one_and_its_acknowledgements() {
        let mut cursors = Cursors::default();
        cursors.follow(partition(0), cursor(1, 5), head(0), Offset(5));
        turns(&mut cursors);
        let office = LeaderEpoch(4);
        let mut acked = |office, end| cursors.acked(partition(0), office, 1, Offset(end)).map(|pushing| pushing.acked);
        assert_eq!(acked(office, 5), Some(Some(Offset(5))));
        assert_eq!(acked(office, 4), Some(Some(Offset(5))));
        assert_eq!(acked(LeaderEpoch(3), 9), None, "to the first cursor of an office before");
        cursors.follow(partition(0), cursor(2, 3), head(0), Offset(5));
        assert_eq!(cursors.acked(partition(0), office, 1, Offset(5)), None, "of a cursor that is no more");
        assert!(cursors.goes_on(partition(0), 2) && !cursors.goes_on(partition(0), 1));
        let (_, pushing) = cursors.next().expect("at once");
        assert_eq!((pushing.cursor.from, pushing.acked), (Offset(3), None));
        cursors.put_back(partition(0));
        assert_eq!(cursors.next().map(|(id, _)| id), Some(partition(0)));
    }

    #[test]
    fn who_is_gone_has_no_turn_and_who_is_back_has_one() {
        let mut cursors = Cursors::default();
        cursors.follow(partition(0), cursor(1, 5), head(0), Offset(5));
        cursors.follow(partition(1), cursor(1, 5), head(0), Offset(5));
        assert!(cursors.remove(partition(0)) && !cursors.remove(partition(0)));
        cursors.follow(partition(0), cursor(2, 5), head(0), Offset(5));
        let mut seen = turns(&mut cursors);
        seen.sort_unstable();
        assert_eq!(seen, [0, 1]);
        cursors.moved(partition(1), head(1), Offset(5));
        let mut gone: Vec<u32> = cursors.drain().map(|partition| partition.index).collect();
        gone.sort_unstable();
        assert_eq!(gone, [0, 1]);
        assert!(!cursors.is_due() && cursors.next().is_none());
    }
}
