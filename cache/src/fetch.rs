//! Brings pages from disk or the store: GETs, their checks, retries with jittered backoff. The only module that spawns fetches,
//! waits and draws random numbers. A short or wrong answer is an error, never a short read.

use crate::counters::{Counters, add};
use crate::error::{CacheError, Fault};
use crate::flight::Slots;
use crate::memory::Memory;
use crate::options::CacheOptions;
use crate::page::{Geometry, Object, Page};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use object_store::{GetOptions, GetRange, GetResultPayload, ObjectStore, ObjectStoreExt};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// First and longest pause between two tries. S3 asks for exponential backoff on 503 `SlowDown`; tries are not counted (case S1).
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(10);

/// Tries in a row that nobody waits for. Readers with short deadlines come and go, so one moment without any proves nothing.
const TRIES_UNAWAITED_MAX: u32 = 4;

/// Faults in a row after which the object's size is asked for: a damaged object may look like a faulty store.
const FAULTS_BEFORE_HEAD: u32 = 2;

/// Pages read from disk at a time for one fetch.
const DISK_READS: usize = 8;

/// Pages of a local store's file that are read before the ones before them have landed: enough that the reading never waits.
const FILE_PAGES_AHEAD: usize = 2;

/// Fetches pages in tasks of its own, which outlive the readers that wait for them.
pub(crate) struct Fetcher {
    store: Arc<dyn ObjectStore>,
    memory: Arc<Memory>,
    geometry: Geometry,
    get_pages_max: u32,
    stall_timeout: Duration,
    permits: Semaphore,
    counters: Arc<Counters>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Fetcher {
    pub(crate) fn new(
        store: Arc<dyn ObjectStore>,
        memory: Arc<Memory>,
        options: &CacheOptions,
        counters: Arc<Counters>,
    ) -> Fetcher {
        Fetcher {
            store,
            memory,
            geometry: Geometry { page_bytes: options.page_bytes },
            get_pages_max: options.get_pages_max(),
            stall_timeout: options.stall_timeout,
            permits: Semaphore::new(options.fetch_concurrency),
            counters,
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        }
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Starts to bring the pages of `slots`.
    pub(crate) fn start(self: &Arc<Fetcher>, object: Object, slots: Slots) {
        let fetcher = self.clone();
        self.spawn(async move { fetcher.bring(object, slots).await });
    }

    /// Ends all fetches; their readers get `Closed`.
    pub(crate) async fn stop(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// A task that ends early drops its slots, which ends them.
    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            stop.run_until_cancelled(work).await;
        });
    }

    async fn bring(self: Arc<Fetcher>, object: Object, mut slots: Slots) {
        self.load_cached(&object, &mut slots).await;
        for run in slots.into_runs(self.get_pages_max) {
            let (fetcher, object) = (self.clone(), object.clone());
            self.spawn(async move { fetcher.fetch_run(&object, run).await });
        }
    }

    async fn load_cached(&self, object: &Object, slots: &mut Slots) {
        let on_disk = slots.pages().into_iter().map(|page| (page, slots.key(page)));
        let on_disk: Vec<_> = on_disk.filter(|(_, key)| self.memory.on_disk(key)).collect();
        let load = |(page, key)| async move {
            let loaded = self.memory.load(&key, object).await;
            (page, key, loaded)
        };
        let mut loads = stream::iter(on_disk).map(load).buffer_unordered(DISK_READS);
        while let Some((page, key, loaded)) = loads.next().await {
            if let Some(loaded) = loaded {
                add(&self.counters.disk_hits, 1);
                self.memory.arrive(key, loaded.clone());
                slots.end(page, Ok(loaded));
            }
        }
    }

    /// Gets a run of adjoining pages. A GET that breaks off is taken up again where it ended.
    async fn fetch_run(&self, object: &Object, mut slots: Slots) {
        let mut backoff = Backoff { tries: 0 };
        let mut unawaited = 0;
        while !slots.is_empty() {
            let missing = slots.len();
            let mut fault = match self.get(object, &mut slots).await {
                Ok(()) => return,
                Err(fault) => fault,
            };
            add(&self.counters.get_faults, 1);
            if slots.len() < missing {
                backoff.tries = 0;
            }
            backoff.tries += 1;
            if backoff.tries == FAULTS_BEFORE_HEAD {
                fault = self.size_fault(object).await.unwrap_or(fault);
            }
            let fault = Arc::new(fault);
            if let Some(error) = fault.verdict(object) {
                slots.fail(&error);
                return;
            }
            unawaited = if slots.awaited() { 0 } else { unawaited + 1 };
            if unawaited == TRIES_UNAWAITED_MAX {
                slots.fail(&CacheError::unavailable(object, Some(fault)));
                return;
            }
            tracing::debug!(path = %object.path, %fault, tries = backoff.tries, "get of an object failed, it is tried again");
            slots.tell(&fault);
            tokio::time::sleep(backoff.pause()).await;
        }
    }

    /// One GET for all pages of the run. Pages end as they arrive.
    async fn get(&self, object: &Object, slots: &mut Slots) -> Result<(), Fault> {
        let _permit = self.permits.acquire().await.expect("never closed");
        let run = slots.run();
        let bytes = self.geometry.bytes(run.clone(), object.size);
        add(&self.counters.gets, 1);
        let options = GetOptions { range: Some(GetRange::Bounded(bytes.clone())), ..GetOptions::default() };
        let answer = self.in_time(self.store.get_opts(&object.path, options)).await??;
        if answer.meta.size != object.size {
            return Err(Fault::WrongSize { found: answer.meta.size });
        }
        if answer.range != bytes {
            let found = answer.range.end.saturating_sub(answer.range.start);
            return Err(Fault::WrongLength { expected: bytes.end - bytes.start, found });
        }
        let mut landing = Landing { fetcher: self, object, slots, next: run.start };
        match answer.payload {
            GetResultPayload::File(file, _) => landing.read_file(file, run).await,
            GetResultPayload::Stream(body) => landing.read_body(body, run).await,
        }
    }

    /// The fault that the object has another size, if it has. Any other outcome proves nothing.
    async fn size_fault(&self, object: &Object) -> Option<Fault> {
        add(&self.counters.heads, 1);
        match self.in_time(self.store.head(&object.path)).await {
            Ok(Ok(meta)) if meta.size != object.size => Some(Fault::WrongSize { found: meta.size }),
            _ => None,
        }
    }

    async fn in_time<T>(&self, step: impl Future<Output = T>) -> Result<T, Fault> {
        tokio::time::timeout(self.stall_timeout, step).await.map_err(|_| Fault::Stalled(self.stall_timeout))
    }
}

/// Where the pages of one GET land, in order.
struct Landing<'a> {
    fetcher: &'a Fetcher,
    object: &'a Object,
    slots: &'a mut Slots,
    next: u32,
}

impl Landing<'_> {
    fn land(&mut self, bytes: Bytes) {
        add(&self.fetcher.counters.get_bytes, bytes.len() as u64);
        let page = Page::new(bytes);
        self.fetcher.memory.arrive(self.slots.key(self.next), page.clone());
        self.slots.end(self.next, Ok(page));
        self.next += 1;
    }

    fn page_size(&self) -> usize {
        self.fetcher.geometry.page_size(self.next, self.object.size)
    }

    /// A local store answers with its file: reading it page by page spares the copy through a stream of small pieces. One job reads
    /// them all, some ahead of what has landed.
    async fn read_file(&mut self, file: File, run: Range<u32>) -> Result<(), Fault> {
        let (sender, mut pages) = mpsc::channel(FILE_PAGES_AHEAD);
        let (geometry, size) = (self.fetcher.geometry, self.object.size);
        let sizes = run.clone().map(move |page| geometry.page_size(page, size));
        let start = geometry.bytes(run.clone(), size).start;
        tokio::task::spawn_blocking(move || read_pages(file, start, sizes, &sender));
        while let Some(page) = self.fetcher.in_time(pages.recv()).await? {
            self.land(page?);
        }
        if self.next == run.end { Ok(()) } else { Err(io::Error::other("the task that read a file ended").into()) }
    }

    /// Collects a body into pages. Each gets an allocation of its own, so that one page does not keep a whole answer alive.
    async fn read_body(
        &mut self,
        mut body: BoxStream<'static, object_store::Result<Bytes>>,
        run: Range<u32>,
    ) -> Result<(), Fault> {
        let expected = self.fetcher.geometry.bytes(run.clone(), self.object.size);
        let expected = expected.end - expected.start;
        let mut found = 0;
        let mut page = BytesMut::with_capacity(self.page_size());
        while let Some(piece) = self.fetcher.in_time(body.next()).await? {
            let mut piece = piece?;
            found += piece.len() as u64;
            if found > expected {
                return Err(Fault::WrongLength { expected, found });
            }
            while !piece.is_empty() {
                let part = piece.split_to(piece.len().min(self.page_size() - page.len()));
                page.extend_from_slice(&part);
                if page.len() == self.page_size() {
                    self.land(std::mem::take(&mut page).freeze());
                    page.reserve(if self.next < run.end { self.page_size() } else { 0 });
                }
            }
            if self.next == run.end {
                return Ok(());
            }
        }
        Err(Fault::WrongLength { expected, found })
    }
}

/// Reads pages of these sizes, one after the other, until one cannot be read or nobody wants them any more.
fn read_pages(mut file: File, start: u64, sizes: impl Iterator<Item = usize>, pages: &mpsc::Sender<io::Result<Bytes>>) {
    let mut sought = file.seek(SeekFrom::Start(start)).map(|_| ());
    for size in sizes {
        let read = sought.and_then(|()| read_page(&mut file, size));
        sought = Ok(());
        let failed = read.is_err();
        if pages.blocking_send(read).is_err() || failed {
            return;
        }
    }
}

fn read_page(file: &mut File, size: usize) -> io::Result<Bytes> {
    // Not zeroed first: a page is large, and all of it is written over.
    let mut bytes = Vec::with_capacity(size);
    file.take(size as u64).read_to_end(&mut bytes)?;
    if bytes.len() == size { Ok(bytes.into()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Pauses between tries: they double, and each is drawn from its upper half, so that many brokers do not come back in step.
struct Backoff {
    tries: u32,
}

impl Backoff {
    fn longest(&self) -> Duration {
        BACKOFF_MIN.saturating_mul(2_u32.saturating_pow(self.tries.saturating_sub(1))).min(BACKOFF_MAX)
    }

    fn pause(&self) -> Duration {
        self.longest().mul_f64(rand::random_range(0.5..=1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_limit_and_are_never_zero() {
        let longest = |tries| Backoff { tries }.longest().as_millis();
        assert_eq!([1, 2, 3, 7, 8, 40, u32::MAX].map(longest), [100, 200, 400, 6400, 10_000, 10_000, 10_000]);
        for tries in 1..20 {
            let backoff = Backoff { tries };
            assert!((backoff.longest() / 2..=backoff.longest()).contains(&backoff.pause()));
        }
    }
}
