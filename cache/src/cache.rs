//! The cache as its users see it: read, insert, forget, close. It joins memory, flights and fetches, and does no I/O of its own.

use crate::ahead::{Access, ReadAhead, Windows};
use crate::counters::{CounterValues, Counters, add};
use crate::error::CacheError;
use crate::fetch::Fetcher;
use crate::flight::{Flights, Joined, arrival, overdue};
use crate::memory::Memory;
use crate::options::InvalidOptions;
use crate::options::{CacheOptions, SCAN_START_BYTES};
use crate::page::{Geometry, Object, Page, PageKey};
use bytes::{Bytes, BytesMut};
use object_store::ObjectStore;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::time::{Instant, timeout_at};

/// What a reader knows about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// The pages are likely to be read again: they become hot, and are written to disk.
    Normal,
    /// The reader reads on in order and will not come back: its pages pass through a small window and push out no hot page.
    Scan,
}

/// A read-through cache of immutable objects. Cheap to clone.
#[derive(Clone)]
pub struct Cache {
    inner: Arc<Inner>,
}

struct Inner {
    memory: Arc<Memory>,
    flights: Arc<Flights>,
    fetcher: Arc<Fetcher>,
    ahead: Mutex<ReadAhead>,
    geometry: Geometry,
    counters: Arc<Counters>,
}

impl Cache {
    /// Opens the cache in front of `store`.
    ///
    /// The store should not retry by itself: the cache does, as long as anyone waits, and counts each GET it sends.
    /// A disk part that cannot be used is left out with a warning. Has to be called within a tokio runtime.
    ///
    /// # Errors
    /// A setting that cannot work; nothing else fails.
    pub async fn open(options: CacheOptions, store: Arc<dyn ObjectStore>) -> Result<Cache, InvalidOptions> {
        options.check()?;
        let counters = Arc::new(Counters::default());
        let memory = Arc::new(Memory::open(&options, counters.clone()).await);
        let fetcher = Arc::new(Fetcher::new(store, memory.clone(), &options, counters.clone()));
        let in_pages = |bytes: u64| u32::try_from(bytes / options.page_bytes).unwrap_or(u32::MAX);
        let windows = Windows {
            scan_start: in_pages(SCAN_START_BYTES).max(1),
            max: options.get_pages_max(),
            // The other half is for pages that were read ahead and are being read.
            total: in_pages(options.window_bytes() / 2),
        };
        let inner = Inner {
            memory,
            flights: Arc::new(Flights::default()),
            fetcher,
            ahead: Mutex::new(ReadAhead::new(windows, options.page_bytes)),
            geometry: Geometry { page_bytes: options.page_bytes },
            counters,
        };
        Ok(Cache { inner: Arc::new(inner) })
    }

    /// Reads `bytes` of `object`: all of them, as one or more pieces in order, each at most a page. Nothing is copied.
    ///
    /// Adjoining pages that are not cached cost one GET together, up to `read_ahead_bytes_max`, however many readers ask for them.
    /// Reads that go on in order are read ahead of. Cancel safe: what was begun goes on, and the next read finds it.
    ///
    /// # Errors
    /// - `Unavailable`: not there by `deadline`. Retry.
    /// - `NotFound`: read the manifest again (rule G4).
    /// - `WrongSize`: the object is damaged (S13). Do not retry.
    /// - `Refused`, `OutOfBounds`, `Closed`: as they say.
    pub async fn read(
        &self,
        object: &Object,
        bytes: Range<u64>,
        hint: Hint,
        deadline: Instant,
    ) -> Result<Vec<Bytes>, CacheError> {
        let inner = &*self.inner;
        let (pages, object_end) = inner.place(object, &bytes)?;
        if pages.is_empty() {
            return Ok(Vec::new());
        }
        let name: Arc<str> = object.path.as_ref().into();
        let access = Access { object: &name, bytes: bytes.clone(), pages, object_end, scan: hint == Hint::Scan };
        let found = inner.find(object, access, hint);
        let mut pieces = Vec::with_capacity(found.len());
        for (index, joined) in found {
            let page = match joined {
                Joined::Ready(page) => page,
                Joined::Waiting(mut flight) => {
                    let arrived = match timeout_at(deadline, arrival(&mut flight)).await {
                        Ok(arrived) => arrived?,
                        Err(_) => return Err(overdue(object, &flight)),
                    };
                    if hint == Hint::Normal {
                        inner.memory.make_hot(&PageKey { object: name.clone(), page: index }, &arrived);
                    }
                    arrived
                }
            };
            pieces.push(inner.geometry.cut(&page, index, &bytes));
        }
        Ok(pieces)
    }

    /// As `read`, in one piece. Copies if the range spans pages.
    ///
    /// # Errors
    /// As `read`.
    pub async fn read_whole(
        &self,
        object: &Object,
        bytes: Range<u64>,
        hint: Hint,
        deadline: Instant,
    ) -> Result<Bytes, CacheError> {
        let mut pieces = self.read(object, bytes, hint, deadline).await?;
        if pieces.len() <= 1 {
            return Ok(pieces.pop().unwrap_or_default());
        }
        let mut whole = BytesMut::with_capacity(pieces.iter().map(Bytes::len).sum());
        pieces.iter().for_each(|piece| whole.extend_from_slice(piece));
        Ok(whole.freeze())
    }

    /// Puts in a whole object that was just uploaded, so that those who follow closely need no GET.
    ///
    /// `contents` is copied. Pushes no hot page out of memory. Waits while the disk's queue is full; cancel safe: at worst a part is
    /// not cached.
    pub async fn insert(&self, object: &Object, contents: &Bytes) {
        let inner = &*self.inner;
        assert_eq!(contents.len() as u64, object.size, "an object is inserted whole");
        let Ok((pages, _)) = inner.place(object, &(0..object.size)) else { return };
        let name: Arc<str> = object.path.as_ref().into();
        for page in pages {
            let at = inner.geometry.bytes(page..page + 1, object.size);
            let at =
                usize::try_from(at.start).expect("within contents")..usize::try_from(at.end).expect("within contents");
            let bytes = Bytes::copy_from_slice(&contents[at]);
            inner.memory.insert_warm(PageKey { object: name.clone(), page }, Page::new(bytes)).await;
        }
    }

    /// Drops the pages that hold `bytes` from memory and disk, so that the next read gets them from the store again.
    ///
    /// For a caller whose own checksums refuse what it read: another source has to be tried before the read fails (case S9).
    pub fn forget(&self, object: &Object, bytes: Range<u64>) {
        let Ok((pages, _)) = self.inner.place(object, &bytes) else { return };
        let name: Arc<str> = object.path.as_ref().into();
        for page in pages {
            self.inner.memory.forget(&PageKey { object: name.clone(), page });
        }
    }

    /// Waits until all pages handed to the disk part so far are written.
    pub async fn flush(&self) {
        self.inner.memory.flush().await;
    }

    /// Ends all fetches, writes what waits for the disk, and gives the directory free. Later reads of pages not in memory fail.
    pub async fn close(&self) {
        self.inner.fetcher.stop().await;
        self.inner.memory.close().await;
    }

    /// What was counted so far.
    #[must_use]
    pub fn counters(&self) -> CounterValues {
        CounterValues {
            memory_bytes: self.inner.memory.usage(),
            pages_in_flight: self.inner.flights.len() as u64,
            ..self.inner.counters.values()
        }
    }
}

impl Inner {
    /// The pages that hold `bytes`, and the end of the object in pages.
    fn place(&self, object: &Object, bytes: &Range<u64>) -> Result<(Range<u32>, u32), CacheError> {
        let all = self.geometry.pages(&(0..object.size));
        match (self.geometry.pages(bytes), all) {
            (Some(pages), Some(all)) if bytes.start <= bytes.end && bytes.end <= object.size => Ok((pages, all.end)),
            _ => Err(CacheError::OutOfBounds {
                path: object.path.to_string(),
                start: bytes.start,
                end: bytes.end,
                size: object.size,
            }),
        }
    }

    /// Finds each page of an access in memory or on its way, and starts the fetches that are needed, read-ahead included.
    fn find(&self, object: &Object, access: Access<'_>, hint: Hint) -> Vec<(u32, Joined)> {
        let ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner).note(&access);
        let make_hot = hint == Hint::Normal;
        let key = |page| PageKey { object: access.object.clone(), page };
        let mut found: Vec<(u32, Joined)> = Vec::with_capacity(access.pages.len());
        let mut missing = Vec::new();
        for page in access.pages.clone() {
            match self.memory.get(&key(page), object, make_hot) {
                Some(cached) => found.push((page, Joined::Ready(cached))),
                None => missing.push(page),
            }
        }
        add(&self.counters.memory_hits, found.len() as u64);
        add(&self.counters.misses, missing.len() as u64);
        if missing.is_empty() && ahead.is_empty() {
            return found;
        }
        let look_again = |key: &PageKey| self.memory.get(key, object, false);
        let (joined, slots) = self.flights.join(access.object, missing.into_iter(), ahead.clone(), look_again);
        let is_ahead = |page: &&u32| ahead.contains(page);
        add(&self.counters.read_ahead_pages, slots.pages().iter().filter(is_ahead).count() as u64);
        found.extend(joined);
        found.sort_by_key(|(page, _)| *page);
        if !slots.is_empty() && !self.fetcher.is_stopped() {
            self.fetcher.start(object.clone(), slots);
        }
        found
    }
}
