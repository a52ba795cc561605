//! What waits for the writer: records in the order of their sequence numbers, with what to do once they are durable.
//!
//! The lock also orders sequence numbers: they are given out while it is held, so no frame overtakes an earlier one.

use super::{WalEvent, WalPermit, WalRecord};
use millpond_log::frame::{FRAME_ALIGN, FRAME_HEAD_BYTES, align_up};
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc::UnboundedSender;

/// Times the writer offers its core to others before it sleeps: some tens of microseconds on an idle machine, one turn of
/// everybody else on a busy one.
const LINGER_YIELDS: usize = 100;

/// One thing for the writer.
pub(super) struct Item {
    /// The record with its sequence number; `None` for an append without records.
    pub(super) record: Option<(u64, WalRecord)>,
    /// Checksum of the batch's bytes.
    pub(super) crc: u32,
    /// Present on the last record of an append.
    pub(super) done: Option<Done>,
}

/// Whom to tell, and what to give back.
pub(super) struct Done {
    pub(super) appender: u64,
    pub(super) events: UnboundedSender<WalEvent>,
    pub(super) ticket: u64,
    pub(super) permits: Vec<WalPermit>,
}

impl Item {
    /// Bytes of its frame in a group.
    pub(super) fn bytes(&self) -> u64 {
        let payload = match &self.record {
            Some((_, WalRecord::Batch { batch, .. })) => batch.size() as u64,
            Some(_) => 0,
            None => return 0,
        };
        align_up(FRAME_HEAD_BYTES as u64 + payload, FRAME_ALIGN)
    }
}

/// What the writer finds.
pub(super) enum Taken {
    /// Items for the next group, at least one.
    Items(Vec<Item>),
    /// The first item, of so many bytes, is larger than the room.
    TooLarge(u64),
    /// Nothing, for as long as it was willing to wait.
    Nothing,
    /// Nothing, and nothing will come.
    Closed,
}

/// The queue.
#[derive(Default)]
pub(super) struct Queue {
    inner: Mutex<Waiting>,
    woken: Condvar,
}

/// Its contents, locked.
#[derive(Default)]
pub(super) struct Waiting {
    items: VecDeque<Item>,
    closed: bool,
    /// Whether the writer is to look around though nothing came.
    nudged: bool,
}

impl Waiting {
    /// Adds an item. Answers whether it was taken: a closed queue takes none.
    pub(super) fn push(&mut self, item: Item) -> bool {
        if !self.closed {
            self.items.push_back(item);
        }
        !self.closed
    }
}

impl Queue {
    /// Locks the queue, to give out sequence numbers and push what got them.
    pub(super) fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the writer.
    pub(super) fn wake(&self) {
        self.woken.notify_one();
    }

    /// Makes the writer look around: something changed that is not in the queue.
    pub(super) fn nudge(&self) {
        self.lock().nudged = true;
        self.woken.notify_one();
    }

    /// Waits for a nudge. False if the queue is closed: then nothing may come to wait for.
    pub(super) fn wait_for_nudge(&self) -> bool {
        let asleep = |waiting: &mut Waiting| !waiting.closed && !waiting.nudged;
        let waiting = self.woken.wait_while(self.lock(), asleep).unwrap_or_else(PoisonError::into_inner);
        waiting.nudged || !waiting.closed
    }

    /// Forgets nudges so far. The writer calls this before it looks around, so that none is lost that comes while it looks.
    pub(super) fn begin_look(&self) {
        self.lock().nudged = false;
    }

    /// Takes no more; the writer ends after what is there.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.woken.notify_all();
    }

    /// Drops all that waits and takes no more.
    pub(super) fn clear(&self) {
        let mut waiting = self.lock();
        waiting.closed = true;
        let dropped = std::mem::take(&mut waiting.items);
        drop(waiting);
        // Permits give their room back through another lock.
        drop(dropped);
    }

    /// Gives a producer that waits for each answer the time to come back before the writer goes to sleep: waking it up again
    /// costs about as much as a sync of a fast disk.
    fn linger(&self) {
        for _ in 0..LINGER_YIELDS {
            let waiting = self.lock();
            if !waiting.items.is_empty() || waiting.closed || waiting.nudged {
                return;
            }
            drop(waiting);
            std::thread::yield_now();
        }
    }

    /// Takes items that add up to at most `room` bytes, and to at most `group` unless a single one is larger.
    /// Waits for the first one: not at all, for a time, or as long as it takes.
    pub(super) fn take(&self, room: u64, group: u64, wait: Wait) -> Taken {
        if !matches!(wait, Wait::Not) {
            self.linger();
        }
        let mut waiting = self.lock();
        let idle = |waiting: &mut Waiting| waiting.items.is_empty() && !waiting.closed && !waiting.nudged;
        match wait {
            Wait::Not => {}
            Wait::For(time) => {
                waiting = self.woken.wait_timeout_while(waiting, time, idle).unwrap_or_else(PoisonError::into_inner).0;
            }
            Wait::Forever => waiting = self.woken.wait_while(waiting, idle).unwrap_or_else(PoisonError::into_inner),
        }
        let (mut items, mut bytes) = (Vec::new(), 0);
        while let Some(item) = waiting.items.front() {
            let item_bytes = item.bytes();
            if bytes + item_bytes > room || bytes > 0 && bytes + item_bytes > group {
                break;
            }
            bytes += item_bytes;
            items.extend(waiting.items.pop_front());
        }
        match waiting.items.front() {
            _ if !items.is_empty() => Taken::Items(items),
            Some(first) => Taken::TooLarge(first.bytes()),
            None if waiting.closed => Taken::Closed,
            None => Taken::Nothing,
        }
    }
}

/// How long to wait.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wait {
    Not,
    For(Duration),
    Forever,
}
