//! A store that does what the next act of its script says, and notes every request. What it stores lies in another store.

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use millpond_cache::{Cache, CacheOptions, Object};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// What one GET does.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// Answers well.
    Pass,
    /// Fails as on status 503.
    Busy,
    /// Fails as on status 403.
    Deny,
    /// Never answers.
    Hang,
    /// Answers well, but the body ends after this many bytes.
    Cut(usize),
    /// Answers well, but the body breaks with an error after this many bytes.
    Break(usize),
    /// Answers well, but the body never goes on after this many bytes.
    Stall(usize),
    /// Answers well, but with this many bytes too much at the end.
    Pad(usize),
    /// Answers with fewer bytes than asked for, and says so.
    Less(u64),
    /// Answers well once the gate is opened for it.
    Gate,
}

#[derive(Debug)]
pub(crate) struct Script {
    inner: Arc<dyn ObjectStore>,
    acts: Mutex<VecDeque<Act>>,
    /// What follows when the acts are used up.
    rest: Mutex<Act>,
    gets: Mutex<Vec<Range<u64>>>,
    gate: Semaphore,
    in_flight: AtomicUsize,
    in_flight_max: AtomicUsize,
}

impl Script {
    pub(crate) fn new(inner: Arc<dyn ObjectStore>) -> Arc<Script> {
        Arc::new(Script {
            inner,
            acts: Mutex::default(),
            rest: Mutex::new(Act::Pass),
            gets: Mutex::default(),
            gate: Semaphore::new(0),
            in_flight: AtomicUsize::new(0),
            in_flight_max: AtomicUsize::new(0),
        })
    }

    pub(crate) fn in_memory() -> Arc<Script> {
        Script::new(Arc::new(InMemory::new()))
    }

    /// Stores an object whose bytes all differ in place and by name.
    pub(crate) async fn object(&self, name: &str, size: usize) -> (Object, Bytes) {
        let contents = contents(name, size);
        let path = Path::from(name);
        self.inner.put(&path, contents.clone().into()).await.unwrap();
        (Object { path, size: size as u64 }, contents)
    }

    /// Puts other bytes under the object's name, which nobody but a test would do.
    pub(crate) async fn overwrite(&self, object: &Object, contents: &[u8]) {
        self.inner.put(&object.path, Bytes::copy_from_slice(contents).into()).await.unwrap();
    }

    pub(crate) async fn delete_object(&self, object: &Object) {
        self.inner.delete(&object.path).await.unwrap();
    }

    pub(crate) fn next(&self, acts: impl IntoIterator<Item = Act>) {
        self.acts.lock().unwrap().extend(acts);
    }

    pub(crate) fn always(&self, act: Act) {
        *self.rest.lock().unwrap() = act;
    }

    pub(crate) fn open_gate(&self, gets: usize) {
        self.gate.add_permits(gets);
    }

    pub(crate) fn gets(&self) -> Vec<Range<u64>> {
        self.gets.lock().unwrap().clone()
    }

    /// The GETs since the last call.
    pub(crate) fn take_gets(&self) -> Vec<Range<u64>> {
        std::mem::take(&mut *self.gets.lock().unwrap())
    }

    pub(crate) fn in_flight_max(&self) -> usize {
        self.in_flight_max.load(Ordering::SeqCst)
    }

    async fn act(&self, act: Act, location: &Path, mut options: GetOptions) -> Result<GetResult> {
        match act {
            Act::Busy => return Err(Error::Generic { store: "script", source: "503 SlowDown".into() }),
            Act::Deny => return Err(Error::PermissionDenied { path: location.to_string(), source: "403".into() }),
            Act::Hang => std::future::pending().await,
            Act::Gate => self.gate.acquire().await.unwrap().forget(),
            Act::Less(less) => {
                if let Some(GetRange::Bounded(range)) = &mut options.range {
                    range.end -= less;
                }
            }
            Act::Pass | Act::Cut(_) | Act::Break(_) | Act::Stall(_) | Act::Pad(_) => {}
        }
        let mut answer = self.inner.get_opts(location, options).await?;
        let (range, meta) = (answer.range.clone(), answer.meta.clone());
        let body = |bytes: Bytes| futures::stream::iter([Ok(bytes)]);
        let start = |bytes: Bytes, len: usize| body(bytes.slice(..len.min(bytes.len())));
        let broken = || Err(Error::Generic { store: "script", source: "connection reset".into() });
        let stream = match act {
            Act::Cut(len) => start(answer.bytes().await?, len).boxed(),
            Act::Break(len) => start(answer.bytes().await?, len).chain(futures::stream::iter([broken()])).boxed(),
            Act::Stall(len) => start(answer.bytes().await?, len).chain(futures::stream::pending()).boxed(),
            Act::Pad(len) => body([&answer.bytes().await?[..], &vec![0; len]].concat().into()).boxed(),
            _ => return Ok(answer),
        };
        answer = GetResult {
            payload: GetResultPayload::Stream(stream),
            meta,
            range,
            attributes: Default::default(),
            extensions: Default::default(),
        };
        Ok(answer)
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("script")
    }
}

#[async_trait]
impl ObjectStore for Script {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.inner.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(&self, location: &Path, opts: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if options.head {
            return self.inner.get_opts(location, options).await;
        }
        let Some(GetRange::Bounded(range)) = options.range.clone() else { panic!("the cache gets ranges only") };
        self.gets.lock().unwrap().push(range);
        let act = self.acts.lock().unwrap().pop_front().unwrap_or_else(|| self.rest.lock().unwrap().clone());
        let now = self.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        self.in_flight_max.fetch_max(now, Ordering::SeqCst);
        let answer = self.act(act, location, options).await;
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
        answer
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

/// Bytes that differ from page to page and from object to object.
pub(crate) fn contents(name: &str, size: usize) -> Bytes {
    let seed = name.bytes().fold(1_u32, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
    let mut bytes = vec![0; size];
    for (block, chunk) in bytes.chunks_mut(4096).enumerate() {
        let stamp = (block as u32).wrapping_mul(2_654_435_761).wrapping_add(seed).to_le_bytes();
        chunk.fill(stamp[0]);
        let len = chunk.len().min(4);
        chunk[..len].copy_from_slice(&stamp[..len]);
    }
    bytes.into()
}

pub(crate) const PAGE: u64 = 4096;

/// Small pages, so that many fit a test: 64 in memory, 16 of them in the window; a GET takes at most 16.
pub(crate) fn options() -> CacheOptions {
    CacheOptions {
        memory_bytes: 64 * (PAGE + 512),
        disk: None,
        page_bytes: PAGE,
        read_ahead_bytes_max: 16 * PAGE,
        fetch_concurrency: 4,
        stall_timeout: Duration::from_secs(30),
    }
}

pub(crate) async fn open(options: CacheOptions, store: &Arc<Script>) -> Cache {
    Cache::open(options, store.clone()).await.unwrap()
}

/// Far enough that no test comes near it.
pub(crate) fn far() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

pub(crate) fn page(index: u64) -> Range<u64> {
    index * PAGE..(index + 1) * PAGE
}

/// Lets other tasks run until `done`. Virtual time does not move by this.
pub(crate) async fn until(done: impl Fn() -> bool) {
    for _ in 0..1_000_000 {
        if done() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("what was waited for never came");
}
