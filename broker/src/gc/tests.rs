//! What cannot be deleted keeps itself and nothing else, over a bucket that refuses to give one object up.

use super::*;
use crate::metrics::Metrics;
use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use millpond_cache::{Cache, CacheOptions};
use millpond_core::records::{Leader, SessionRecord};
use millpond_log::object_key::PartitionObject;
use millpond_log::{BrokerId, Incarnation, LeaderEpoch, Lsn, Offset, PartitionId, TopicId, WalGen};
use millpond_metadata::clock::ManualClock;
use millpond_metadata::embedded::Embedded;
use millpond_metadata::keys::Keys;
use millpond_metadata::kv::Revision;
use millpond_metadata::store::{NewTopic, Placement, Registered, Registration, Session, TierCommit, TierOutcome};
use object_store::memory::InMemory;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, PutMultipartOptions, PutOptions,
    PutPayload, PutResult, Result as StoreResult,
};
use std::collections::BTreeMap;
use std::fmt;

const TOPIC: TopicId = TopicId(7);

/// A bucket out of which one object does not go.
#[derive(Debug)]
struct Clinging {
    inner: InMemory,
    stays: Path,
}

impl fmt::Display for Clinging {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a bucket that keeps one object")
    }
}

#[async_trait]
impl ObjectStore for Clinging {
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
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, StoreResult<Path>>) -> BoxStream<'static, StoreResult<Path>> {
        let stays = self.stays.clone();
        let refuse = move |location: StoreResult<Path>| match location {
            Ok(path) if path == stays => {
                Err(object_store::Error::PermissionDenied { path: path.to_string(), source: "it is held".into() })
            }
            other => other,
        };
        self.inner.delete_stream(locations.map(refuse).boxed())
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

async fn register(store: &Store) -> Session {
    let record = SessionRecord {
        wal_gen: WalGen(1),
        grpc: "a:1".to_owned(),
        kafka: "a:2".to_owned(),
        kafka_listeners: BTreeMap::new(),
        http: "a:3".to_owned(),
        internal: None,
        rack: None,
    };
    let (disk_inc, durable_lsn, ttl) = (Incarnation(0), Lsn(0), Duration::from_secs(60));
    let registration = Registration { broker: BrokerId(1), record, disk_inc, durable_lsn, ttl };
    match store.register_broker(&registration).await {
        Ok(Registered::Session(session)) => session,
        other => panic!("{other:?}"),
    }
}

fn object(index: u32) -> Path {
    let partition = PartitionId { topic: TOPIC, index };
    let (gc_epoch, epoch, base, random) = (GcEpoch(0), LeaderEpoch(1), Offset(0), u128::from(index));
    Path::from(ObjectKey::Segment(PartitionObject { partition, gc_epoch, epoch, base, random }).to_string())
}

/// A collector of a cluster with three partitions, and their objects in its bucket, of which the first does not go.
async fn collector() -> (Collector, Session) {
    let store = Store::new(Arc::new(Embedded::in_memory(Arc::new(ManualClock::default()))), Keys::for_cluster("c"));
    store.init_cluster("c").await.expect("founded");
    let session = register(&store).await;
    let leader = Some(Leader { rid: session.rid, inc: session.inc });
    let topic = NewTopic {
        name: "t".parse().expect("valid"),
        id: TOPIC,
        buried: Revision::ABSENT,
        replication_factor: 1,
        config: BTreeMap::new(),
        placements: vec![
            Placement {
                replicas: vec![BrokerId(1)],
                isr: vec![session.rid],
                leader,
                min_isr: 1,
                absent: Vec::new()
            };
            3
        ],
    };
    store.create_topic(&session, &topic).await.expect("it is new");
    let objects: Arc<dyn ObjectStore> = Arc::new(Clinging { inner: InMemory::new(), stays: object(0) });
    let bucket = Bucket::new(Arc::clone(&objects), store.clone(), "c");
    bucket.check().await.expect("it is empty");
    for index in 0..3 {
        objects.put(&object(index), vec![7; 10].into()).await.expect("there is room");
    }
    let handle = SessionHandle::default();
    handle.begin(session, clock::boot());
    let cache = Cache::open(CacheOptions::default(), Arc::clone(&objects)).await.expect("it is in memory");
    let collector = Collector {
        bucket,
        store,
        session: handle,
        objects,
        tiered: Arc::new(Tiered::new(cache, 0)),
        gc_epoch: Arc::default(),
        meters: Metrics::new(|builder| builder).tier.clone(),
        period: Duration::from_secs(3600),
    };
    (collector, session)
}

/// Objects of the log that are still there.
async fn left(collector: &Collector) -> Vec<Path> {
    let listed = collector.objects.list(None).map_ok(|meta| meta.location);
    let listed: Vec<Path> = listed.try_collect().await.expect("it can be listed");
    listed.into_iter().filter(|path| path.as_ref().parse::<ObjectKey>().is_ok()).collect()
}

#[tokio::test]
async fn a_dropped_object_that_cannot_be_deleted_keeps_its_own_entry_and_no_other() {
    let (collector, session) = collector().await;
    let commits: Vec<TierCommit> = (0..3)
        .map(|index| TierCommit {
            partition: PartitionId { topic: TOPIC, index },
            epoch: LeaderEpoch(1),
            base: Revision::ABSENT,
            root: format!("root of {index}").into(),
            objects_gc_epoch: None,
            dropped: vec![object(index).to_string()],
        })
        .collect();
    for committed in collector.store.commit_tier(&session, &commits).await {
        assert!(matches!(committed, Ok(TierOutcome::Committed { .. })), "{committed:?}");
    }
    collector.delete_dropped(3).await.expect("what cannot be deleted is left for later");
    assert_eq!(left(&collector).await, [object(0)], "the others are gone");
    let noted = collector.store.drops_before(3).await.expect("up");
    let noted: Vec<u32> = noted.iter().map(|drop| drop.partition.index).collect();
    assert_eq!(noted, [0], "and forgotten");
}

#[tokio::test]
async fn an_orphan_that_cannot_be_deleted_keeps_no_other() {
    let (collector, _) = collector().await;
    collector.sweep(GcEpoch(5)).await.expect("what cannot be deleted is left for later");
    assert_eq!(left(&collector).await, [object(0)], "the others are gone");
}
