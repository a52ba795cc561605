//! Views of the store that reads in pages go on from, so that all pages of one read are of one revision. Holds few, and not
//! for long: each keeps the pages of the database that it sees from being used again.

use redb::ReadTransaction;
use std::collections::VecDeque;
use std::time::Duration;

/// Most views held; the oldest goes first. Its reader then reads anew.
const SNAPSHOTS_MAX: usize = 8;

/// How long a view is held: twice what a call on an etcd may take, and a read in pages is one call.
const AGE_MAX: Duration = Duration::from_secs(10);

struct Snapshot {
    revision: u64,
    since: Duration,
    read: ReadTransaction,
}

/// The views held, oldest first.
#[derive(Default)]
pub(super) struct Snapshots(VecDeque<Snapshot>);

impl Snapshots {
    /// The view at a revision, if it is still held.
    pub(super) fn at(&self, revision: u64) -> Option<&ReadTransaction> {
        self.0.iter().find(|held| held.revision == revision).map(|held| &held.read)
    }

    /// Holds the view at a revision from now on, as if it were new if it is held already.
    pub(super) fn hold(&mut self, revision: u64, now: Duration, read: ReadTransaction) {
        self.0.retain(|held| held.revision != revision);
        self.0.push_back(Snapshot { revision, since: now, read });
        if self.0.len() > SNAPSHOTS_MAX {
            self.0.pop_front();
        }
    }

    /// Lets go of what is too old.
    pub(super) fn expire(&mut self, now: Duration) {
        self.0.retain(|held| now.saturating_sub(held.since) <= AGE_MAX);
    }

    /// Lets go of all. The database can be closed.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
