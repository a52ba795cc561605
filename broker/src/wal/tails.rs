//! The tails of all partitions, behind a lock per group of them. Never held across I/O.

use super::tail::Tail;
use millpond_log::PartitionId;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks; enough that shards seldom meet.
const LOCKS: usize = 64;

/// The tails, by partition.
pub(super) struct Tails {
    locks: Vec<Mutex<HashMap<PartitionId, Tail>>>,
}

impl Tails {
    /// These tails.
    pub(super) fn new(tails: impl IntoIterator<Item = (PartitionId, Tail)>) -> Tails {
        let made = Tails { locks: std::iter::repeat_with(Mutex::default).take(LOCKS).collect() };
        for (partition, tail) in tails {
            made.lock_of(partition).insert(partition, tail);
        }
        made
    }

    fn lock_of(&self, partition: PartitionId) -> MutexGuard<'_, HashMap<PartitionId, Tail>> {
        let at = (partition.topic.0 as usize).wrapping_add(partition.index as usize) % LOCKS;
        self.locks[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What `look` makes of the tail; `None` if the partition is not here, or is dropped.
    pub(super) fn look<R>(&self, partition: PartitionId, look: impl FnOnce(&Tail) -> R) -> Option<R> {
        self.lock_of(partition).get(&partition).filter(|tail| !tail.dropped).map(look)
    }

    /// Changes the tail, if the partition is here.
    pub(super) fn change<R>(&self, partition: PartitionId, change: impl FnOnce(&mut Tail) -> R) -> Option<R> {
        self.lock_of(partition).get_mut(&partition).map(change)
    }

    /// Changes the tail, making it first if the partition is new.
    pub(super) fn change_or_add<R>(&self, partition: PartitionId, change: impl FnOnce(&mut Tail) -> R) -> R {
        change(self.lock_of(partition).entry(partition).or_default())
    }

    /// The partitions whose tail is as `wanted`.
    pub(super) fn which(&self, wanted: impl Fn(&Tail) -> bool) -> Vec<PartitionId> {
        let mut found = Vec::new();
        for lock in &self.locks {
            let tails = lock.lock().unwrap_or_else(PoisonError::into_inner);
            found.extend(tails.iter().filter(|(_, tail)| wanted(tail)).map(|(partition, _)| *partition));
        }
        found
    }

    /// Changes each tail; those for which `keep` answers no are removed.
    pub(super) fn retain(&self, mut keep: impl FnMut(PartitionId, &mut Tail) -> bool) {
        for lock in &self.locks {
            let mut tails = lock.lock().unwrap_or_else(PoisonError::into_inner);
            tails.retain(|partition, tail| keep(*partition, tail));
        }
    }
}
