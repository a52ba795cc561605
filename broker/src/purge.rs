//! Finds out which deleted topics this broker has nothing of any more, and puts that on record, so that their tombstones can go (rule K6).
//!
//! Level by level: looks at what the WAL holds, never at what was asked of it.

use crate::broker::Broker;
use millpond_log::{PartitionId, TopicId};
use millpond_metadata::keys::Space;
use millpond_metadata::kv::Revision;
use millpond_metadata::store::{Follow, Image, Outcome};
use tokio::task::JoinSet;

/// What is on record of this broker, and what is being put there.
pub(crate) struct Purge {
    /// Of topics whose tombstones were laid up to here, nothing is left: said by this process.
    noted: Revision,
    /// Coordinators were told of all tombstones up to here.
    told: Revision,
    /// At most one note under way.
    noting: JoinSet<Option<Revision>>,
}

impl Default for Purge {
    fn default() -> Purge {
        Purge { noted: Revision::ABSENT, told: Revision::ABSENT, noting: JoinSet::new() }
    }
}

impl Purge {
    /// Looks at what is left here of deleted topics, and says so if it is nothing. `is_open` tells of a topic whether a replica of it is
    /// open here or being opened. Returns what the WAL has of others of them: it is to be dropped.
    pub(crate) fn look(
        &mut self,
        broker: &Broker,
        follow: &Follow,
        is_open: impl Fn(TopicId) -> bool,
    ) -> Vec<PartitionId> {
        while let Some(noted) = self.noting.try_join_next() {
            let noted = noted.expect("noting does not panic, and nobody ends it");
            self.noted = self.noted.max(noted.unwrap_or(Revision::ABSENT));
        }
        let image = follow.image();
        // A topic whose deletion was seen by both never comes back into the image, so no replica of it is opened from here on.
        let seen = follow.seen(&Space::Tombstones).min(follow.seen(&Space::Topics));
        if any_laid(image, self.told, seen) {
            self.told = seen;
            broker.inner().coordinators.note_deletions(seen);
        }
        if !any_laid(image, self.noted, seen) || !self.noting.is_empty() {
            return Vec::new();
        }
        let Some(session) = broker.session_handle().get() else { return Vec::new() };
        let mut held = broker.inner().wal.partitions();
        held.retain(|partition| image.tombstones.contains_key(&partition.topic));
        if held.is_empty() && !image.tombstones.keys().copied().any(&is_open) {
            let store = broker.inner().store.clone();
            self.noting.spawn(async move {
                match store.note_purged(&session, seen).await {
                    Ok(Outcome::Committed { .. }) => Some(seen),
                    // The next look tries again, under the session that there is then.
                    Ok(_) => None,
                    Err(error) => {
                        tracing::debug!(%error, "that nothing of deleted topics is left here cannot be noted yet");
                        None
                    }
                }
            });
        }
        held.retain(|partition| !is_open(partition.topic));
        held
    }
}

/// Whether a tombstone was laid after `after`, and not after `seen`.
fn any_laid(image: &Image, after: Revision, seen: Revision) -> bool {
    image.tombstones.values().any(|tombstone| after < tombstone.revision && tombstone.revision <= seen)
}
