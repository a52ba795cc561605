//! Manifests as the metadata store has them; and those of partitions that this broker holds no replica of, for readers (rule F4): a bounded
//! cache. It says how old what it gives may be; never what is in range and what is not.

use crate::clock;
use crate::start_error::StartError;
use bytes::Bytes;
use millpond_log::PartitionId;
use millpond_log::manifest::ManifestRoot;
use millpond_metadata::kv::Revision;
use millpond_metadata::store::{Store, StoreError, Versioned};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Manifests kept. A root is below 8 KiB as a rule and at most 24 KiB, so all of them stay below 24 MiB.
const KEPT: usize = 1024;

/// How long the metadata store is left alone after it failed to answer, where an older manifest will do.
const AWAY: Duration = Duration::from_secs(1);

/// The cache. Those used last stay.
pub(crate) struct Manifests {
    places: Mutex<Places>,
    max: usize,
    /// When the store last failed to answer.
    failed: Mutex<Option<Instant>>,
}

#[derive(Default)]
struct Places {
    by_partition: BTreeMap<PartitionId, Used>,
    /// Counts the uses.
    uses: u64,
}

struct Used {
    place: Arc<Place>,
    last: u64,
}

/// One partition's.
#[derive(Default)]
struct Place {
    known: Mutex<Option<Known>>,
    /// Held while it is read, so that many who miss the same read once.
    reading: tokio::sync::Mutex<()>,
}

/// A manifest, and when the read began that brought it: it is no older than that.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) root: Arc<ManifestRoot>,
    asked: Instant,
}

impl Known {
    /// Whether the read that brought it began longer than `age_max` before `now`.
    pub(crate) fn is_older(&self, age_max: Duration, now: Instant) -> bool {
        self.asked + age_max < now
    }
}

/// Why there is no manifest as new as it was wanted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ManifestsError {
    /// The metadata store did not answer, or not well.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What it holds cannot be read.
    #[error(transparent)]
    Unreadable(#[from] StartError),
}

impl Default for Manifests {
    fn default() -> Manifests {
        Manifests { places: Mutex::default(), max: KEPT, failed: Mutex::default() }
    }
}

impl Manifests {
    /// The manifest of a partition as a linearizable read has it that began at most `age_max` before `now`: from here, or from
    /// the store. Readers share reads. Cancel safe.
    pub(crate) async fn as_of(
        &self,
        store: &Store,
        partition: PartitionId,
        now: Instant,
        age_max: Duration,
    ) -> Result<Known, ManifestsError> {
        let place = self.place(partition);
        let fresh = || place.known().filter(|known| !known.is_older(age_max, now));
        if let Some(known) = fresh() {
            return Ok(known);
        }
        let _one = place.reading.lock().await;
        // Whoever held it may have asked late enough for this reader too.
        if let Some(known) = fresh() {
            return Ok(known);
        }
        let asked = clock::monotonic();
        let stored = store.tier_root(partition).await?;
        let known = Known { root: Arc::new(decode_root(partition, stored.as_ref())?.value), asked };
        *lock(&place.known) = Some(known.clone());
        Ok(known)
    }

    /// Notes that the store failed to answer.
    pub(crate) fn note_failure(&self, now: Instant) {
        *lock(&self.failed) = Some(now);
    }

    /// Whether it did just before: asking again keeps readers waiting who have what they need.
    pub(crate) fn store_is_away(&self, now: Instant) -> bool {
        lock(&self.failed).is_some_and(|failed| now < failed + AWAY)
    }

    /// The newest manifest that is here, however old.
    pub(crate) fn newest(&self, partition: PartitionId) -> Option<Known> {
        self.place(partition).known()
    }

    fn place(&self, partition: PartitionId) -> Arc<Place> {
        let mut places = lock(&self.places);
        places.uses += 1;
        let last = places.uses;
        if let Some(used) = places.by_partition.get_mut(&partition) {
            used.last = last;
            return Arc::clone(&used.place);
        }
        if places.by_partition.len() >= self.max
            && let Some(oldest) = places.by_partition.iter().min_by_key(|(_, used)| used.last).map(|(id, _)| *id)
        {
            // Whoever is reading it keeps its place, and nobody finds it any more.
            places.by_partition.remove(&oldest);
        }
        let place = Arc::<Place>::default();
        places.by_partition.insert(partition, Used { place: Arc::clone(&place), last });
        place
    }
}

impl Place {
    fn known(&self) -> Option<Known> {
        lock(&self.known).clone()
    }
}

/// Reads the manifest's root as the metadata store has it.
pub(crate) fn decode_root(
    partition: PartitionId,
    stored: Option<&Versioned<Bytes>>,
) -> Result<Versioned<ManifestRoot>, StartError> {
    match stored {
        None => Ok(Versioned { value: ManifestRoot::new(partition), revision: Revision::ABSENT }),
        Some(stored) => {
            let value =
                ManifestRoot::decode(&stored.value).map_err(|source| StartError::Manifest { partition, source })?;
            Ok(Versioned { value, revision: stored.revision })
        }
    }
}

/// A panic cannot leave these half changed.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_log::TopicId;

    fn partition(index: u32) -> PartitionId {
        PartitionId { topic: TopicId(7), index }
    }

    #[test]
    fn a_store_that_failed_is_left_alone_for_a_while() {
        let (manifests, now) = (Manifests::default(), clock::monotonic());
        assert!(!manifests.store_is_away(now));
        manifests.note_failure(now);
        assert!(manifests.store_is_away(now + AWAY / 2) && !manifests.store_is_away(now + AWAY));
    }

    #[test]
    fn those_used_last_are_kept() {
        let manifests = Manifests { max: 2, ..Manifests::default() };
        let root = |index| {
            let root = Arc::new(ManifestRoot::new(partition(index)));
            *lock(&manifests.place(partition(index)).known) = Some(Known { root, asked: clock::monotonic() });
        };
        root(0);
        root(1);
        assert!(manifests.newest(partition(0)).is_some(), "used again");
        root(2);
        let kept = [0, 1, 2].map(|index| lock(&manifests.places).by_partition.contains_key(&partition(index)));
        assert_eq!(kept, [true, false, true]);
        assert!(manifests.newest(partition(0)).is_some_and(|known| known.root.partition == partition(0)));
    }
}
