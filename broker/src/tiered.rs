//! Reads of what is in object storage: manifest, then the segment's index, then the bytes, each through the cache and checked (rules F4, S10, S13).
//!
//! It decides nothing about offsets: `log::plan` says what to fetch, this fetches it.

mod aborted;
mod search;
#[cfg(test)]
mod tests;

pub(crate) use search::larger;

use bytes::Bytes;
use millpond_cache::{Cache, CacheError, Hint, Object};
use millpond_log::manifest::{Lookup, ManifestError, ManifestRoot, ManifestView, RolledRef, SegmentEntry};
use millpond_log::object_key::ObjectKey;
use millpond_log::plan::{PlannedRead, ReadPlan, plan_read};
use millpond_log::segment::{ReadBounds, SegmentError, SegmentIndex};
use millpond_log::{Batch, Offset, PartitionId};
use object_store::path::Path;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tracing::Instrument;

/// Segment indexes kept parsed. One is about 20 KiB for a 64 MiB segment, so all of them stay below 20 MiB.
const INDEXES_KEPT: usize = 1024;

/// How long a read of the object store is waited for where nobody says: longer than any client waits for an answer.
const READ_PATIENCE: Duration = Duration::from_secs(60);

/// Rolled manifests kept parsed. One is a few KiB.
const NODES_KEPT: usize = 1024;

/// Reads segments of any partition.
pub(crate) struct Tiered {
    cache: Cache,
    /// Objects up to this size are put into the cache when they are uploaded.
    warm_bytes_max: u64,
    /// Who puts an object into the cache has it: one copy of one object waits for a slow disk, never more.
    warming: Arc<Semaphore>,
    indexes: Mutex<Recent<(ObjectKey, u64), Arc<SegmentIndex>>>,
    nodes: Mutex<Recent<ObjectKey, Bytes>>,
}

/// Why old data could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TieredError {
    /// The manifest says so no longer: look at a newer one (rule G4).
    #[error("the offset has left the manifest")]
    Gone,
    /// The object store or the cache.
    #[error(transparent)]
    Read { source: CacheError },
    /// Sound storage, wrong bytes: they are never served (S11, S13).
    #[error("object `{object}` is damaged")]
    Segment {
        object: String,
        #[source]
        source: SegmentError,
    },
    #[error("rolled manifest `{object}` is damaged")]
    Manifest {
        object: String,
        #[source]
        source: ManifestError,
    },
}

impl TieredError {
    /// Whether the same read may succeed later, with nothing else done in between: the object store is out of reach.
    pub(crate) fn is_retriable(&self) -> bool {
        matches!(self, TieredError::Read { source } if source.is_retriable())
    }
}

impl Tiered {
    pub(crate) fn new(cache: Cache, warm_bytes_max: u64) -> Tiered {
        let (indexes, nodes) = (Mutex::new(Recent::new(INDEXES_KEPT)), Mutex::new(Recent::new(NODES_KEPT)));
        Tiered { cache, warm_bytes_max, warming: Arc::new(Semaphore::new(1)), indexes, nodes }
    }

    /// The cache, for its counters and for warm inserts.
    pub(crate) fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Whole batches of `wanted`, the first containing its start, none that ends after its end; at least one even over `bytes_max`.
    pub(crate) async fn read(
        &self,
        manifest: &Arc<ManifestRoot>,
        wanted: Range<Offset>,
        bytes_max: usize,
        scan: bool,
    ) -> Result<Vec<Batch>, TieredError> {
        let hint = if scan { Hint::Scan } else { Hint::Normal };
        let until = wanted.end.min(manifest.tiered_end);
        let bounds = ReadBounds { from: wanted.start, until, bytes_max: bytes_max as u64 };
        let mut view = ManifestView::new(ManifestRoot::clone(manifest));
        let planned = self.plan(&mut view, manifest.partition, bounds).instrument(tracing::debug_span!("plan")).await?;
        self.fetch(&planned, bounds, hint).instrument(tracing::debug_span!("read", from = "object_storage")).await
    }

    /// What to fetch, once every manifest and index it takes to tell is there.
    async fn plan(
        &self,
        view: &mut ManifestView,
        partition: PartitionId,
        bounds: ReadBounds,
    ) -> Result<Vec<PlannedRead>, TieredError> {
        loop {
            let plan = plan_read(view, bounds, |entry| self.known_index(entry));
            match plan {
                ReadPlan::BelowStart { .. } | ReadPlan::Nothing => return Err(TieredError::Gone),
                ReadPlan::NeedManifest(rolled) => self.load(view, &rolled).await?,
                ReadPlan::NeedIndex(entry) => drop(self.index(partition, &entry).await?),
                ReadPlan::Fetch { parts, .. } => return Ok(parts),
            }
        }
    }

    async fn fetch(&self, parts: &[PlannedRead], bounds: ReadBounds, hint: Hint) -> Result<Vec<Batch>, TieredError> {
        let mut batches = Vec::new();
        for part in parts {
            if !bounds.take(self.fetch_part(part, hint).await?, &mut batches) {
                break;
            }
        }
        Ok(batches)
    }

    async fn fetch_part(&self, part: &PlannedRead, hint: Hint) -> Result<Vec<Batch>, TieredError> {
        let (key, length, range) = (&part.entry.object, part.entry.object_length, part.bytes_in_object());
        self.checked(key, length, range, hint, |pieces| part.batches(pieces).map_err(|source| damaged(key, source)))
            .await
    }

    /// Puts an object that was just uploaded into the cache, in the background; not while another is being put there. Readers fetch what is
    /// not there, so that a disk slower than the uploads costs them a GET, and no memory.
    pub(crate) fn warm(&self, key: &ObjectKey, parts: &[Bytes], length: u64) {
        if length > self.warm_bytes_max {
            return;
        }
        let Ok(warming) = Arc::clone(&self.warming).try_acquire_owned() else { return };
        let (cache, object) = (self.cache.clone(), object(key, length));
        let contents: Bytes = parts.concat().into();
        tokio::spawn(async move {
            cache.insert(&object, &contents).await;
            drop((contents, warming));
        });
    }

    /// Answers a question to the manifest, loading what it needs.
    pub(crate) async fn ask<T>(
        &self,
        view: &mut ManifestView,
        question: impl Fn(&ManifestView) -> Lookup<T>,
    ) -> Result<T, TieredError> {
        loop {
            match question(view) {
                Lookup::Found(answer) => return Ok(answer),
                Lookup::Need(rolled) => self.load(view, &rolled).await?,
            }
        }
    }

    /// The producer snapshot at the end of a segment (rules P5, T4).
    pub(crate) async fn producers(&self, partition: PartitionId, entry: &SegmentEntry) -> Result<Bytes, TieredError> {
        let index = self.index(partition, entry).await?;
        let range = entry.in_object(&index.producers_bytes());
        let (key, length) = (&entry.object, entry.object_length);
        let check = |pieces: &[Bytes]| {
            let bytes = whole(pieces);
            index.verify_producers(&bytes).map(|()| bytes).map_err(|source| damaged(key, source))
        };
        self.checked(key, length, range, Hint::Scan, check).await
    }

    /// The index of a segment, read once and kept.
    pub(crate) async fn index(
        &self,
        partition: PartitionId,
        entry: &SegmentEntry,
    ) -> Result<Arc<SegmentIndex>, TieredError> {
        if let Some(index) = self.known_index(entry) {
            return Ok(index);
        }
        let (key, length) = (&entry.object, entry.object_length);
        let check =
            |pieces: &[Bytes]| entry.open_index(partition, &whole(pieces)).map_err(|source| damaged(key, source));
        let index = Arc::new(self.checked(key, length, entry.index_bytes(), Hint::Normal, check).await?);
        lock(&self.indexes).put((entry.object, entry.position), Arc::clone(&index));
        Ok(index)
    }

    fn known_index(&self, entry: &SegmentEntry) -> Option<Arc<SegmentIndex>> {
        lock(&self.indexes).get(&(entry.object, entry.position))
    }

    async fn load(&self, view: &mut ManifestView, rolled: &RolledRef) -> Result<(), TieredError> {
        let mut load = |bytes: &Bytes| {
            let object = || rolled.object.to_string();
            view.load(rolled, bytes).map_err(|source| TieredError::Manifest { object: object(), source })
        };
        let known = lock(&self.nodes).get(&rolled.object);
        if let Some(bytes) = known {
            return load(&bytes);
        }
        let length = u64::from(rolled.length);
        let check = |pieces: &[Bytes]| {
            let bytes = whole(pieces);
            load(&bytes).map(|()| bytes)
        };
        let bytes = self.checked(&rolled.object, length, 0..length, Hint::Normal, check).await?;
        lock(&self.nodes).put(rolled.object, bytes);
        Ok(())
    }

    /// What `check` makes of bytes of an object. Bytes that do not check out are dropped from the cache, memory and disk, and got once more
    /// from the object store before the read fails (case S9): whatever came wrong once does not stay (S13).
    ///
    /// # Errors
    /// Those of the read, and that of `check` for bytes that were wrong twice.
    async fn checked<T>(
        &self,
        key: &ObjectKey,
        length: u64,
        range: Range<u64>,
        hint: Hint,
        mut check: impl FnMut(&[Bytes]) -> Result<T, TieredError>,
    ) -> Result<T, TieredError> {
        if let Ok(sound) = check(&self.pieces(key, length, range.clone(), hint).await?) {
            return Ok(sound);
        }
        self.cache.forget(&object(key, length), range.clone());
        check(&self.pieces(key, length, range, hint).await?)
    }

    /// Bytes of an object as the cache holds them.
    async fn pieces(
        &self,
        object: &ObjectKey,
        length: u64,
        range: Range<u64>,
        hint: Hint,
    ) -> Result<Vec<Bytes>, TieredError> {
        let deadline = tokio::time::Instant::now() + READ_PATIENCE;
        self.cache.read(&self::object(object, length), range, hint, deadline).await.map_err(unread)
    }
}

fn unread(source: CacheError) -> TieredError {
    match source {
        CacheError::NotFound { path } => {
            // Rule G4: a reader with an older manifest looks again; with the newest it is S10.
            tracing::error!(path, "an object of a manifest is not in the object store");
            TieredError::Gone
        }
        source => TieredError::Read { source },
    }
}

/// Pieces as one, copied together where there are several.
fn whole(pieces: &[Bytes]) -> Bytes {
    match pieces {
        [one] => one.clone(),
        several => several.concat().into(),
    }
}

fn object(key: &ObjectKey, size: u64) -> Object {
    Object { path: Path::from(key.to_string()), size }
}

fn damaged(object: &ObjectKey, source: SegmentError) -> TieredError {
    TieredError::Segment { object: object.to_string(), source }
}

/// A panic cannot leave these maps half changed.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The newest `max` values, by key; the oldest inserted leaves first. What is in it is immutable.
struct Recent<K, V> {
    values: BTreeMap<K, V>,
    order: VecDeque<K>,
    max: usize,
}

impl<K: Ord + Copy, V: Clone> Recent<K, V> {
    fn new(max: usize) -> Recent<K, V> {
        Recent { values: BTreeMap::new(), order: VecDeque::new(), max }
    }

    fn get(&self, key: &K) -> Option<V> {
        self.values.get(key).cloned()
    }

    fn put(&mut self, key: K, value: V) {
        if self.values.insert(key, value).is_none() {
            self.order.push_back(key);
        }
        if self.order.len() > self.max
            && let Some(oldest) = self.order.pop_front()
        {
            self.values.remove(&oldest);
        }
    }
}
