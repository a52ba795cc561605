//! Which leases live, until when, and which keys end with them. In memory only: opening a store voids them all.
//!
//! Pure: time is an argument, and keys are deleted by the caller.

use crate::kv::{Lease, LeaseId};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A live lease as it stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LeaseState {
    /// How long it lives after its last keep-alive.
    pub(crate) ttl: Duration,
    /// How long it still lives without one.
    pub(crate) left: Duration,
    /// The keys that end with it, in order.
    pub(crate) keys: Vec<Bytes>,
}

/// The live leases of one boot.
pub(super) struct Leases {
    live: BTreeMap<LeaseId, Entry>,
    next: u64,
}

struct Entry {
    ttl: Duration,
    ends: Duration,
    keys: BTreeSet<Bytes>,
}

impl Leases {
    /// No leases; their ids begin with the number of the boot, so that an id of an earlier boot is never given again.
    pub(super) fn of_boot(boot: u64) -> Leases {
        Leases { live: BTreeMap::new(), next: (boot << 32) + 1 }
    }

    pub(super) fn grant(&mut self, ttl: Duration, now: Duration) -> Lease {
        let rounded_up = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        let ttl = Duration::from_secs(rounded_up.max(1));
        let id = LeaseId(self.next);
        self.next += 1;
        self.live.insert(id, Entry { ttl, ends: now.saturating_add(ttl), keys: BTreeSet::new() });
        Lease { id, ttl }
    }

    pub(super) fn keep_alive(&mut self, id: LeaseId, now: Duration) -> Option<Duration> {
        let entry = self.live.get_mut(&id)?;
        entry.ends = now.saturating_add(entry.ttl);
        Some(entry.ttl)
    }

    pub(super) fn state(&self, id: LeaseId, now: Duration) -> Option<LeaseState> {
        let entry = self.live.get(&id)?;
        let keys = entry.keys.iter().cloned().collect();
        Some(LeaseState { ttl: entry.ttl, left: entry.ends.saturating_sub(now), keys })
    }

    pub(super) fn contains(&self, id: LeaseId) -> bool {
        self.live.contains_key(&id)
    }

    pub(super) fn attach(&mut self, id: LeaseId, key: Bytes) {
        let entry = self.live.get_mut(&id).expect("the caller checked that the lease is live");
        entry.keys.insert(key);
    }

    pub(super) fn detach(&mut self, id: LeaseId, key: &Bytes) {
        if let Some(entry) = self.live.get_mut(&id) {
            entry.keys.remove(key);
        }
    }

    /// Ends a lease; its keys are now the caller's to delete.
    pub(super) fn end(&mut self, id: LeaseId) -> Option<BTreeSet<Bytes>> {
        self.live.remove(&id).map(|entry| entry.keys)
    }

    /// Ties keys to their leases as they are stored. Returns those of leases that have ended: the caller's to delete.
    pub(super) fn reattach(&mut self, stored: Vec<(Bytes, LeaseId)>) -> Vec<Bytes> {
        self.live.values_mut().for_each(|entry| entry.keys.clear());
        let mut ended = Vec::new();
        for (key, lease) in stored {
            match self.live.get_mut(&lease) {
                Some(entry) => _ = entry.keys.insert(key),
                None => ended.push(key),
            }
        }
        ended
    }

    /// Leases whose time is over, the earliest first.
    pub(super) fn due(&self, now: Duration) -> Vec<LeaseId> {
        let mut due: Vec<(Duration, LeaseId)> =
            self.live.iter().filter(|(_, entry)| entry.ends <= now).map(|(&id, entry)| (entry.ends, id)).collect();
        due.sort_unstable();
        due.into_iter().map(|(_, id)| id).collect()
    }

    /// When the next lease ends unless it is kept alive.
    pub(super) fn next_end(&self) -> Option<Duration> {
        self.live.values().map(|entry| entry.ends).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_lives_from_keep_alive_to_keep_alive() {
        let at = Duration::from_millis;
        let mut leases = Leases::of_boot(3);
        let first = leases.grant(at(1500), at(0));
        let second = leases.grant(Duration::ZERO, at(500));
        assert_eq!((first.ttl, second.ttl), (at(2000), at(1000)));
        assert_eq!((first.id, second.id), (LeaseId((3 << 32) + 1), LeaseId((3 << 32) + 2)));
        assert_eq!(leases.next_end(), Some(at(1500)));
        assert_eq!(leases.due(at(1499)), []);
        assert_eq!(leases.due(at(2000)), [second.id, first.id]);
        assert_eq!(leases.keep_alive(first.id, at(1900)), Some(at(2000)));
        assert_eq!(leases.due(at(3899)), [second.id]);
        leases.attach(first.id, Bytes::from_static(b"a"));
        let state = LeaseState { ttl: at(2000), left: at(1500), keys: vec![Bytes::from_static(b"a")] };
        assert_eq!(leases.state(first.id, at(2400)), Some(state));
        leases.detach(first.id, &Bytes::from_static(b"a"));
        assert_eq!(leases.end(second.id), Some(BTreeSet::new()));
        assert_eq!(leases.keep_alive(second.id, at(1900)), None);
        assert_eq!(leases.state(second.id, at(1900)), None);
    }
}
