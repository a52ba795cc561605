//! Old data over a bucket whose answers are wrong for once, or that comes faster than the cache's disk takes it (cases S9, S13).

use super::*;
use async_trait::async_trait;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use millpond_cache::{CacheOptions, DiskOptions};
use millpond_core::replica::EndState;
use millpond_core::tail_segment::TailSegment;
use millpond_log::batch::{BatchBuilder, NewRecord};
use millpond_log::codec::Codec;
use millpond_log::object_key::{GcEpoch, PartitionObject};
use millpond_log::producers::ProducerTable;
use millpond_log::segment::{BuiltObject, SegmentIdentity};
use millpond_log::{LeaderEpoch, TimestampMs, TopicId};
use object_store::memory::InMemory;
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result as StoreResult,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

const PARTITION: PartitionId = PartitionId { topic: TopicId(7), index: 0 };

/// A bucket whose next answers have one byte wrong, at a place of the object that the test says. It counts the GETs.
#[derive(Debug, Default)]
struct Flipping {
    inner: InMemory,
    /// Which byte of the object, and in how many answers still.
    wrong: Mutex<(u64, usize)>,
    gets: AtomicUsize,
}

impl Flipping {
    fn flip(&self, at: u64, answers: usize) {
        *lock(&self.wrong) = (at, answers);
        self.gets.store(0, Ordering::Relaxed);
    }

    fn gets(&self) -> usize {
        self.gets.load(Ordering::Relaxed)
    }
}

impl std::fmt::Display for Flipping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a bucket that flips a byte")
    }
}

#[async_trait]
impl ObjectStore for Flipping {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> StoreResult<PutResult> {
        self.inner.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> StoreResult<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> StoreResult<GetResult> {
        let mut got = self.inner.get_opts(location, options).await?;
        self.gets.fetch_add(1, Ordering::Relaxed);
        let GetResultPayload::Stream(body) = got.payload else { panic!("memory has no files") };
        let mut bytes = body.try_collect::<Vec<Bytes>>().await?.concat();
        let mut wrong = lock(&self.wrong);
        if wrong.1 > 0 && got.range.contains(&wrong.0) {
            wrong.1 -= 1;
            bytes[usize::try_from(wrong.0 - got.range.start).expect("it is small")] ^= 0x10;
        }
        got.payload = GetResultPayload::Stream(futures::stream::iter([Ok(Bytes::from(bytes))]).boxed());
        Ok(got)
    }

    fn delete_stream(&self, locations: BoxStream<'static, StoreResult<Path>>) -> BoxStream<'static, StoreResult<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> StoreResult<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> StoreResult<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

/// A log in the bucket, with enough segments that the older ones are in a rolled manifest.
struct Bucket {
    store: Arc<Flipping>,
    root: Arc<ManifestRoot>,
}

/// One segment of ten records at the end of `root`.
fn segment(root: &ManifestRoot) -> BuiltObject {
    let from = root.tiered_end;
    let identity =
        SegmentIdentity { cluster: "c".into(), partition: PARTITION, topic_name: "t".into(), epoch: LeaderEpoch(1) };
    let end = Offset(from.0 + 10);
    let mut segment = TailSegment::new(identity, EndState::tiered(root, ProducerTable::default()), end);
    let mut builder = BatchBuilder::new(Codec::None);
    for record in from.0..end.0 {
        let timestamp = TimestampMs(i64::try_from(record).expect("it is small"));
        builder.push(NewRecord { timestamp, key: None, value: Some(b"value"), headers: &[] });
    }
    let mut batch = builder.build();
    batch.place(from, LeaderEpoch(1));
    segment.push(&batch, TimestampMs(5), batch.max_timestamp()).expect("it follows");
    segment.finish().0.into()
}

impl Bucket {
    async fn new() -> Bucket {
        let store = Arc::new(Flipping::default());
        let mut root = ManifestRoot::new(PARTITION);
        for random in 0..400 {
            let object = segment(&root);
            let base = root.tiered_end;
            let name =
                PartitionObject { partition: PARTITION, gc_epoch: GcEpoch(0), epoch: LeaderEpoch(1), base, random };
            let key = ObjectKey::Segment(name);
            let payload: PutPayload = object.parts.iter().cloned().collect();
            store.put(&Path::from(key.to_string()), payload).await.expect("memory takes it");
            root = root.append(SegmentEntry::new(key, object.length, object.segments[0].clone()), LeaderEpoch(1));
        }
        let plan = root.roll(GcEpoch(0), rand::random).expect("there are many");
        for object in plan.objects {
            store.put(&Path::from(object.object.to_string()), object.bytes.into()).await.expect("memory takes it");
        }
        Bucket { store, root: Arc::new(plan.root) }
    }

    async fn open(&self) -> Tiered {
        let options = CacheOptions { memory_bytes: 16 << 20, disk: None, ..CacheOptions::default() };
        let cache = Cache::open(options, Arc::clone(&self.store) as Arc<dyn ObjectStore>).await.expect("sound options");
        Tiered::new(cache, 1 << 20)
    }

    fn newest(&self) -> &SegmentEntry {
        self.root.newest().expect("there are many")
    }
}

/// Reads with one wrong answer succeed by one more GET; those with two fail, and the next succeeds: nothing wrong stays anywhere.
async fn wrong_once<T: PartialEq + std::fmt::Debug>(
    bucket: &Bucket,
    object: (&ObjectKey, u64),
    at: u64,
    read: impl AsyncFn(&Tiered) -> Result<T, TieredError>,
) {
    let path = self::object(object.0, object.1);
    let good = read(&bucket.open().await).await.expect("the bucket is sound");
    // What else the read takes is known; the object itself has to be got.
    let ready = async || {
        let tiered = bucket.open().await;
        // Only what a read of another object's bytes takes is left in the cache.
        read(&tiered).await.expect("the bucket is sound");
        tiered.cache.forget(&path, 0..path.size);
        lock(&tiered.nodes).values.clear();
        tiered
    };
    let tiered = ready().await;
    bucket.store.flip(at, 1);
    assert_eq!(read(&tiered).await.expect("it is asked again"), good);
    assert_eq!(bucket.store.gets(), 2, "one wrong, one right");
    lock(&tiered.nodes).values.clear();
    assert_eq!(read(&tiered).await.expect("the right bytes are cached"), good);
    assert_eq!(bucket.store.gets(), 2);
    let tiered = ready().await;
    bucket.store.flip(at, 2);
    let failed = read(&tiered).await.expect_err("wrong twice");
    assert!(matches!(failed, TieredError::Segment { .. } | TieredError::Manifest { .. }), "{failed}");
    assert_eq!(read(&tiered).await.expect("it is asked again"), good);
}

#[tokio::test]
async fn an_index_that_came_wrong_once_is_got_again() {
    let bucket = Bucket::new().await;
    let entry = bucket.newest();
    let read = async |tiered: &Tiered| {
        lock(&tiered.indexes).values.clear();
        tiered.index(PARTITION, entry).await.map(|index| index.chunks().to_vec())
    };
    wrong_once(&bucket, (&entry.object, entry.object_length), entry.index_bytes().start + 9, read).await;
}

#[tokio::test]
async fn a_producer_snapshot_that_came_wrong_once_is_got_again() {
    let bucket = Bucket::new().await;
    let entry = bucket.newest();
    let index = bucket.open().await.index(PARTITION, entry).await.expect("it is sound");
    let at = entry.in_object(&index.producers_bytes()).start + 3;
    let read = async |tiered: &Tiered| tiered.producers(PARTITION, entry).await;
    wrong_once(&bucket, (&entry.object, entry.object_length), at, read).await;
}

#[tokio::test]
async fn records_and_searches_by_time_that_came_wrong_once_are_got_again() {
    let bucket = Bucket::new().await;
    let entry = bucket.newest();
    let index = bucket.open().await.index(PARTITION, entry).await.expect("it is sound");
    let (object, at) = ((&entry.object, entry.object_length), entry.in_object(&index.data_bytes()).start + 70);
    let time = TimestampMs(i64::try_from(entry.base.0).expect("it is small") + 3);
    let read = async |tiered: &Tiered| tiered.first_at_or_after(&bucket.root, time, entry.base).await;
    wrong_once(&bucket, object, at, read).await;
    let read = async |tiered: &Tiered| tiered.first_of_largest(&bucket.root, entry.base).await;
    wrong_once(&bucket, object, at, read).await;
    let read = async |tiered: &Tiered| tiered.read(&bucket.root, entry.base..entry.end, 1 << 20, false).await;
    wrong_once(&bucket, object, at, read).await;
}

#[tokio::test]
async fn a_rolled_manifest_that_came_wrong_once_is_got_again() {
    let bucket = Bucket::new().await;
    let rolled = bucket.root.rolled()[0].clone();
    let read = async |tiered: &Tiered| {
        let mut view = ManifestView::new(ManifestRoot::clone(&bucket.root));
        tiered.ask(&mut view, |view| view.find(Offset(0)).map(|entry| entry.cloned())).await
    };
    wrong_once(&bucket, (&rolled.object, u64::from(rolled.length)), 40, read).await;
}

/// The threads for blocking work, of which this runtime has one, are what writes the cache's disk: while the test holds it, the disk hangs.
#[test]
fn a_disk_that_never_finishes_keeps_one_copy_of_what_is_uploaded() {
    const UPLOAD: usize = 4 << 20;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build();
    let runtime = runtime.expect("a runtime");
    let dir = tempfile::tempdir().expect("a temporary folder");
    runtime.block_on(async {
        let disk = Some(DiskOptions { dir: dir.path().to_owned(), bytes: 512 << 20 });
        let options = CacheOptions { memory_bytes: 32 << 20, disk, ..CacheOptions::default() };
        let cache = Cache::open(options, Arc::new(InMemory::new())).await.expect("sound options");
        let tiered = Tiered::new(cache, UPLOAD as u64);
        let (release, held) = mpsc::channel::<()>();
        let hanging = tokio::task::spawn_blocking(move || held.recv());
        let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
        // Of the cache, which has its own.
        let before = tasks();
        let name = |random| PartitionObject {
            partition: PARTITION,
            gc_epoch: GcEpoch(0),
            epoch: LeaderEpoch(1),
            base: Offset(0),
            random,
        };
        let upload = |random| {
            let parts = [Bytes::from(vec![1; UPLOAD / 2]), Bytes::from(vec![2; UPLOAD / 2])];
            tiered.warm(&ObjectKey::Segment(name(random)), &parts, UPLOAD as u64);
        };
        for random in 0..100 {
            upload(random);
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(tiered.warming.available_permits(), 0, "the disk hangs, and one copy waits for it");
        // What the disk has under way may be some more.
        assert!(tasks() < before + 10, "{} copies are alive", tasks() - before);
        release.send(()).expect("it waits");
        hanging.await.expect("it ends").expect("it was released");
        let freed = tiered.warming.acquire().await.expect("it stays open");
        drop(freed);
        tiered.cache.close().await;
    });
}
