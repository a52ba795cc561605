//! Where the pushes of one lane stand: a cursor for each partition, and which of them have something to say. Nothing else waits.

use millpond_core::replica::{Cursor, Placed, PushHead};
use millpond_log::{Offset, PartitionId};
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
        if let Some(last) = batches.last() {
            known.cursor.from = last.batch.end_offset();
            known.cursor.prev_epoch = Some(last.batch.leader_epoch());
        }
        self.enqueue(partition);
    }

    /// Notes what the follower acknowledged to a cursor. The partition, if the cursor is the one that goes on.
    pub(super) fn acked(&mut self, partition: PartitionId, nonce: u64, end: Offset) -> Option<Pushing> {
        let known = self.held.get_mut(&partition).filter(|known| known.cursor.nonce == nonce)?;
        known.acked = known.acked.max(Some(end));
        Some(*known)
    }

    /// Whether this cursor is the one that goes on.
    pub(super) fn goes_on(&self, partition: PartitionId, nonce: u64) -> bool {
        self.held.get(&partition).is_some_and(|known| known.cursor.nonce == nonce)
    }

    fn enqueue(&mut self, partition: PartitionId) {
        if let Some(known) = self.held.get_mut(&partition).filter(|known| !known.queued && known.is_due()) {
            known.queued = true;
            self.due.push_back(partition);
        }
    }
}
