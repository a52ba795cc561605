//! Pages in memory, and the way to and from their copies on disk.
//!
//! Two parts: `hot` holds what readers asked for; the `window` holds what was read once by a scan, read ahead, or just uploaded.
//! Nothing that passes through the window ever pushes a hot page out. Only hot and uploaded pages are written to disk.

use crate::counters::{Counters, add};
use crate::disk::{Disk, DiskSettings};
use crate::options::CacheOptions;
use crate::page::{Geometry, Object, Page, PageKey};
use foyer::{
    CacheBuilder, Event, EventListener, FifoConfig, HybridCache, HybridCacheBuilder, HybridCachePolicy,
    HybridCacheProperties, Load, LruConfig,
};
use std::sync::Arc;

type Window = foyer::Cache<PageKey, Page, foyer::DefaultHasher, HybridCacheProperties>;

/// Bytes of bookkeeping per page, roughly: key, hash table slot, record.
const ENTRY_OVERHEAD_BYTES: usize = 256;

pub(crate) struct Memory {
    hot: HybridCache<PageKey, Page>,
    window: Window,
    disk: Option<Disk>,
    geometry: Geometry,
    counters: Arc<Counters>,
}

struct CountEvictions(Arc<Counters>);

impl EventListener for CountEvictions {
    type Key = PageKey;
    type Value = Page;

    fn on_leave(&self, reason: Event, _: &PageKey, _: &Page) {
        if reason == Event::Evict {
            add(&self.0.evictions, 1);
        }
    }
}

fn weight(key: &PageKey, page: &Page) -> usize {
    page.bytes.len() + key.object.len() + ENTRY_OVERHEAD_BYTES
}

impl Memory {
    /// Opens the memory part, and the disk part if there is one and it can be used. A bad disk costs hits, never reads.
    pub(crate) async fn open(options: &CacheOptions, counters: Arc<Counters>) -> Memory {
        let settings = options.disk.as_ref().filter(|disk| disk.bytes > 0);
        let settings = settings.map(|disk| DiskSettings::new(disk, options.page_bytes));
        let opened = match settings {
            Some(settings) => match settings.prepare() {
                Ok(lock) => match hybrid(options, &counters, Some(&settings)).await {
                    Ok(hot) => Some((Disk::start(hot.clone(), &settings, lock, counters.clone()), hot)),
                    Err(error) => settings.warn(&error),
                },
                Err(error) => settings.warn(&error),
            },
            None => None,
        };
        let (disk, hot) = match opened {
            Some((disk, hot)) => (Some(disk), hot),
            None => (None, hybrid(options, &counters, None).await.expect("a cache in memory only does no I/O")),
        };
        let window_bytes = usize::try_from(options.window_bytes()).expect("checked with the options");
        let window = CacheBuilder::new(window_bytes)
            // Pages are large and few: one lock is no bottleneck, and the budget holds for the whole part.
            .with_shards(1)
            // First in, first out: a scan reads its pages in the order they came. By last use, the pages read ahead for it,
            // which nobody has touched, would go before those it has done with.
            .with_eviction_config(FifoConfig::default())
            .with_weighter(weight)
            .with_event_listener(Arc::new(CountEvictions(counters.clone())))
            .build();
        Memory { hot, window, disk, geometry: Geometry { page_bytes: options.page_bytes }, counters }
    }

    pub(crate) fn usage(&self) -> u64 {
        (self.hot.memory().usage() + self.window.usage()) as u64
    }

    /// The page, if it is in memory. `Hint::Normal` readers make it hot.
    pub(crate) fn get(&self, key: &PageKey, object: &Object, make_hot: bool) -> Option<Page> {
        if let Some(entry) = self.hot.memory().get(key) {
            return self.sized(key, entry.value(), object);
        }
        let page = self.window.get(key).map(|entry| entry.value().clone())?;
        let page = self.sized(key, &page, object)?;
        if make_hot {
            self.make_hot(key, &page);
        }
        Some(page)
    }

    /// Moves a page that a reader waited for, or found in the window, among the hot ones, and offers it to the disk.
    pub(crate) fn make_hot(&self, key: &PageKey, page: &Page) {
        if self.hot.memory().contains(key) {
            return;
        }
        let entry = self.hot.memory().insert(key.clone(), page.clone());
        self.window.remove(key);
        if let Some(disk) = &self.disk {
            disk.offer(entry);
        }
    }

    /// Puts a page that arrived where the readers that wait for it, and those that come soon, find it.
    pub(crate) fn arrive(&self, key: PageKey, page: Page) {
        self.window.insert(key, page);
    }

    /// Puts a page in that nobody has asked for yet: among the hot ones only while there is room without pushing any out.
    ///
    /// Waits for room in the disk's queue. Cancel safe: at worst the page is not on disk.
    pub(crate) async fn insert_warm(&self, key: PageKey, page: Page) {
        let hot = self.hot.memory();
        let entry = if hot.usage() + weight(&key, &page) <= hot.capacity() {
            hot.insert(key, page)
        } else {
            self.window.insert(key, page)
        };
        if let Some(disk) = &self.disk {
            disk.write(entry).await;
        }
    }

    pub(crate) fn on_disk(&self, key: &PageKey) -> bool {
        self.disk.is_some() && self.hot.storage().may_contains(key)
    }

    /// Reads a page from disk. Whatever is wrong with it, it is a miss, and the entry is dropped (S13).
    pub(crate) async fn load(&self, key: &PageKey, object: &Object) -> Option<Page> {
        let storage = self.hot.storage();
        let page = match storage.load(key).await {
            Ok(Load::Entry { value, .. }) => Some(value),
            Ok(Load::Piece { piece, .. }) => Some(piece.value().clone()),
            Ok(Load::Throttled) => return None,
            // An entry of another page with the same hash stays in the index; a damaged one was dropped from it.
            Ok(Load::Miss) if storage.may_contains(key) => return None,
            Ok(Load::Miss) => None,
            Err(error) => {
                tracing::warn!(object = %key.object, page = key.page, %error, "cached page cannot be read, it is fetched anew");
                storage.delete(key);
                None
            }
        };
        if page.is_none() {
            add(&self.counters.corrupt_pages, 1);
        }
        self.sized(key, &page?, object)
    }

    /// Drops a page everywhere.
    pub(crate) fn forget(&self, key: &PageKey) {
        self.hot.memory().remove(key);
        self.window.remove(key);
        if let Some(disk) = &self.disk {
            disk.delete(key.clone());
        }
    }

    pub(crate) async fn flush(&self) {
        if let Some(disk) = &self.disk {
            disk.flush().await;
        }
    }

    pub(crate) async fn close(&self) {
        if let Some(disk) = &self.disk {
            disk.close().await;
        }
    }

    /// The page, if it is as long as the object's size says. Else the object was known by another size: one of the two is wrong,
    /// and the store will tell.
    fn sized(&self, key: &PageKey, page: &Page, object: &Object) -> Option<Page> {
        if page.bytes.len() == self.geometry.page_size(key.page, object.size) {
            return Some(page.clone());
        }
        tracing::warn!(object = %key.object, page = key.page, size = object.size, "cached page does not fit the object's size");
        self.forget(key);
        None
    }
}

async fn hybrid(
    options: &CacheOptions,
    counters: &Arc<Counters>,
    disk: Option<&DiskSettings>,
) -> foyer::Result<HybridCache<PageKey, Page>> {
    let hot_bytes = usize::try_from(options.memory_bytes - options.window_bytes()).expect("checked with the options");
    let builder = HybridCacheBuilder::new()
        .with_name("millpond")
        // Which pages go to disk, and when, is decided by `Disk`, so foyer must not do it on eviction or on closing.
        .with_policy(HybridCachePolicy::WriteOnInsertion)
        .with_flush_on_close(false)
        .with_event_listener(Arc::new(CountEvictions(counters.clone())))
        .memory(hot_bytes)
        .with_shards(1)
        .with_eviction_config(LruConfig { high_priority_pool_ratio: 0.0 })
        .with_weighter(weight)
        .storage();
    match disk {
        Some(settings) => builder.with_engine_config(settings.engine()?).build().await,
        None => builder.build().await,
    }
}
