//! A broker in this process, and logs with transactions in it whose outcomes the tests decide: they stand in for the coordinator.

use super::super::Budget;
use super::super::elsewhere::Place;
use crate::api::{
    ApiError, FetchPartition, FetchRequest, FetchedPartition, Isolation, NewTopic, OffsetSpec, Reader, TopicRef,
};
use crate::broker::Broker;
use crate::catalog::PartitionHandle;
use crate::clock;
use crate::config::Config;
use crate::partitions::messages::{Ending, Produce, ProduceSpans, ShardMsg};
use crate::partitions::view::PartitionView;
use crate::server::{Components, Running, start};
use crate::wal::disk::RealDisk;
use millpond_cache::Object;
use millpond_core::records::{Leader, PartitionRecord};
use millpond_core::replica::{self, Appended, Assignment, Input, VerificationToken, Verified};
use millpond_log::batch::{BatchBuilder, NewRecord, ProducerStamp};
use millpond_log::codec::Codec;
use millpond_log::manifest::{ManifestRoot, SegmentEntry};
use millpond_log::transactions::{EndMarker, Marker, TxnOutcome};
use millpond_log::{
    Batch, BrokerId, CoordinatorEpoch, ErrorCode, Incarnation, LeaderEpoch, Offset, ProducerEpoch, ProducerId, Rid,
    TimestampMs, WalGen,
};
use millpond_metadata::clock::SystemClock;
use millpond_metadata::embedded::Embedded;
use millpond_metadata::keys::Keys;
use millpond_metadata::store::{TierCommit, TierOutcome};
use object_store::memory::InMemory;
use object_store::{ObjectStore, ObjectStoreExt};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Nothing that a test waits for takes so long, unless it never comes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A broker on a disk, a metadata store and a bucket that outlive it.
pub(super) struct World {
    running: Running,
    stop: CancellationToken,
    components: Components,
    config: Config,
    topics: AtomicU64,
    _dir: Arc<tempfile::TempDir>,
}

impl World {
    pub(super) async fn start() -> World {
        let dir = Arc::new(tempfile::tempdir().expect("a temporary folder"));
        let mut config = Config::local(dir.path().to_owned());
        for listener in [&mut config.grpc, &mut config.kafka[0].listener, &mut config.http] {
            listener.bind = SocketAddr::from(([127, 0, 0, 1], 0));
        }
        (config.wal_file_bytes, config.wal_bytes) = (4 << 20, 64 << 20);
        // What is cached is forgotten with the broker.
        (config.tier_interval, config.cache_disk_bytes) = (Duration::from_millis(20), 0);
        let components = Components {
            metadata: Arc::new(Embedded::in_memory(Arc::new(SystemClock::start()))),
            keys: Keys::for_cluster("tests"),
            objects: Arc::new(InMemory::new()),
            disk: Arc::new(RealDisk),
        };
        World::on(dir, config, components).await
    }

    async fn on(dir: Arc<tempfile::TempDir>, config: Config, components: Components) -> World {
        let stop = CancellationToken::new();
        let running = start(config.clone(), components.clone(), stop.clone()).await.expect("the broker comes up");
        World { running, stop, components, config, topics: AtomicU64::new(0), _dir: dir }
    }

    pub(super) async fn stop(self) {
        self.stop.cancel();
        self.running.ended().await.expect("it ends cleanly");
    }

    /// Another broker on what this one leaves.
    pub(super) async fn restart(self) -> World {
        let World { running, stop, components, config, _dir, .. } = self;
        stop.cancel();
        running.ended().await.expect("it ends cleanly");
        World::on(_dir, config, components).await
    }

    /// Objects read from the bucket so far, by this broker.
    pub(super) fn gets(&self) -> u64 {
        let text = self.running.broker.metrics().text().expect("metrics can be read");
        let read = |line: &str| -> Option<u64> {
            let (name, value) = line.rsplit_once(' ')?;
            let counted = name.starts_with("millpond_object_requests") && name.contains("operation=\"get\"");
            if counted { value.parse::<f64>().ok().map(|value| value as u64) } else { None }
        };
        text.lines().filter_map(read).sum()
    }

    /// Waits until nothing of a log that is in object storage is in the WAL as well, which keeps its newest files for readers.
    pub(super) async fn leaves_the_wal(&self, log: &Log) {
        let mut filler = self.topic("3600000").await;
        let tiered_end = log.view().manifest.tiered_end;
        let left = async {
            while log.broker.inner().wal.bounds(log.handle.id).is_some_and(|(start, _)| start < tiered_end) {
                filler.plain(20_000).await;
                filler.flush().await;
            }
        };
        tokio::time::timeout(PATIENCE, left).await.expect("files are given up");
    }

    /// A new topic of one partition, with this `segment.ms`: tails of twice the age go up past what is stable.
    pub(super) async fn topic(&self, segment_ms: &str) -> Log {
        let name = format!("t{}", self.topics.fetch_add(1, Ordering::Relaxed));
        let configs = BTreeMap::from([("segment.ms".to_owned(), segment_ms.to_owned())]);
        let topic = NewTopic { name: name.clone(), partitions: Some(1), configs, ..Default::default() };
        self.running.broker.create_topic(topic).await.expect("it is new");
        self.find(&name).await
    }

    /// A topic that is there, once this broker leads it.
    pub(super) async fn find(&self, name: &str) -> Log {
        let broker = self.running.broker.clone();
        let topic = TopicRef::Name(name.to_owned());
        let leads = async {
            loop {
                if let Ok((_, handle)) = broker.inner().catalog.partition(&topic, 0)
                    && let Some(local) = &handle.local
                {
                    let mut view = local.view.clone();
                    view.wait_for(|view| view.visible.leads && view.visible.bounds_proven()).await.expect("it stays");
                    return handle;
                }
                tokio::task::yield_now().await;
            }
        };
        let handle = tokio::time::timeout(PATIENCE, leads).await.expect("it is led");
        let name = name.to_owned();
        let objects = Arc::clone(&self.components.objects);
        Log { broker, objects, name, handle, asked: 0, open: BTreeSet::new(), sequences: BTreeMap::new() }
    }
}

/// The one partition of a topic.
pub(super) struct Log {
    broker: Broker,
    objects: Arc<dyn ObjectStore>,
    name: String,
    handle: PartitionHandle,
    /// Verifications that its leader asked for.
    asked: u64,
    open: BTreeSet<ProducerId>,
    /// What each producer writes next: its epoch and sequence.
    sequences: BTreeMap<ProducerId, (u16, i32)>,
}

impl Log {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn view(&self) -> PartitionView {
        self.local().view.borrow().clone()
    }

    fn local(&self) -> &crate::catalog::Local {
        self.handle.local.as_ref().expect("it is here")
    }

    fn topic(&self) -> TopicRef {
        TopicRef::Name(self.name.clone())
    }

    /// Records of no transaction.
    pub(super) async fn plain(&mut self, records: u64) {
        self.append(batch(records, None)).await.expect("nothing is against it");
    }

    /// Records of a producer's transaction. Its first batch is verified by the test.
    pub(super) async fn write(&mut self, producer: ProducerId, records: u64) {
        let (epoch, sequence) = self.sequences.get(&producer).copied().unwrap_or_default();
        let stamp = ProducerStamp { id: producer, epoch: ProducerEpoch(epoch), base_sequence: sequence };
        let batch = batch(records, Some(stamp));
        if self.open.insert(producer) {
            // Without a transactional id no coordinator is asked.
            let refused = self.append(batch.clone()).await.expect_err("rule X3: nobody has verified it");
            assert!(refused.code != ErrorCode::InvalidProducerEpoch, "{refused}");
            self.asked += 1;
            let office = self.view().visible.epoch;
            let verification = VerificationToken { office, number: self.asked };
            let epoch_per_transaction = true;
            let verified = Verified { producer, epoch: stamp.epoch, verification, epoch_per_transaction };
            self.step(Input::Verified(verified));
        }
        self.append(batch).await.expect("it is verified");
        let records = i32::try_from(records).expect("few");
        self.sequences.insert(producer, (epoch, sequence + records));
    }

    /// Ends a producer's transaction.
    pub(super) async fn end(&mut self, producer: ProducerId, outcome: TxnOutcome) {
        assert!(self.open.remove(&producer), "it is open");
        let (epoch, _) = self.sequences[&producer];
        self.sequences.insert(producer, (epoch + 1, 0));
        let end = EndMarker { outcome, coordinator_epoch: CoordinatorEpoch(1) };
        let marker = Marker { producer, epoch: ProducerEpoch(epoch + 1), raised: true, end };
        let (reply, answer) = oneshot::channel();
        let partition = self.handle.id;
        let room = self.broker.inner().wal.reserve(128).expect("the WAL has room");
        let office = self.view().visible.epoch;
        let ending = Ending { partition, office, marker, first: None, room, reply };
        let sent = self.local().shard.send(ShardMsg::EndTransaction(ending));
        sent.expect("the shard is there");
        answer.await.expect("it answers").expect("the marker is appended");
    }

    /// Aborts a producer's open transaction as an operator does, who says where it begins.
    pub(super) async fn abort_from(&mut self, producer: ProducerId, first: Offset) -> Result<(), ErrorCode> {
        let (epoch, _) = self.sequences[&producer];
        let end = EndMarker { outcome: TxnOutcome::Abort, coordinator_epoch: CoordinatorEpoch(0) };
        let marker = Marker { producer, epoch: ProducerEpoch(epoch), raised: false, end };
        let (reply, answer) = oneshot::channel();
        let room = self.broker.inner().wal.reserve(128).expect("the WAL has room");
        let (partition, office) = (self.handle.id, self.view().visible.epoch);
        let ending = Ending { partition, office, marker, first: Some(first), room, reply };
        self.local().shard.send(ShardMsg::EndTransaction(ending)).expect("the shard is there");
        answer.await.expect("it answers").map_err(|error| error.code)?;
        self.open.remove(&producer);
        Ok(())
    }

    fn step(&self, input: Input) {
        let sent = self.local().shard.send(ShardMsg::Step { partition: self.handle.id, input });
        sent.expect("the shard is there");
    }

    async fn append(&self, batch: Batch) -> Result<Appended, ApiError> {
        let inner = self.broker.inner();
        let room = inner.wal.reserve(batch.size()).expect("the WAL has room");
        let size = u32::try_from(batch.size()).expect("it is small");
        let memory = Arc::clone(&inner.produce_memory).acquire_many_owned(size).await.expect("it stays open");
        let (reply, answer) = oneshot::channel();
        let (partition, latest, acks) = (self.handle.id, TimestampMs(5), replica::Acks::All);
        let spans = ProduceSpans { append: tracing::Span::none(), produce: tracing::Span::none() };
        let produce =
            Produce { partition, batch, latest, acks, behind: None, transaction: None, room, memory, reply, spans };
        self.local().shard.send(ShardMsg::Produce(produce)).expect("the shard is there");
        answer.await.expect("it answers")
    }

    /// Another leads from now on, and this replica hears nothing of it: it is cut off.
    pub(super) fn follow_nobody(&self) {
        let other = Rid { broker: BrokerId(9), wal_gen: WalGen(9) };
        let record = PartitionRecord {
            leader: Some(Leader { rid: other, inc: Incarnation(9) }),
            epoch: LeaderEpoch(self.view().visible.epoch.0 + 1),
            isr: vec![other],
            elr: Vec::new(),
            replicas: vec![self.broker.id(), other.broker],
            adding: Vec::new(),
            removing: Vec::new(),
            min_isr: 1,
            unclean_epoch: None,
        };
        // Of a revision that nothing the metadata store says comes up to.
        self.step(Input::Assigned(Assignment { record, revision: u64::MAX, live: Vec::new() }));
    }

    /// Waits until what this replica shows is so.
    pub(super) async fn shows(&self, so: impl Fn(&PartitionView) -> bool) {
        let mut view = self.local().view.clone();
        let shown = view.wait_for(|view| so(view));
        tokio::time::timeout(PATIENCE, shown).await.expect("it is shown").expect("it stays");
    }

    /// The log begins at `to` from now on, by a commit that this broker is not told of; the objects below are deleted.
    pub(super) async fn begins_elsewhere(&self, to: Offset) {
        let (inner, partition) = (self.broker.inner(), self.handle.id);
        let session = inner.session.get().expect("it has one");
        let stored = inner.store.tier_root(partition).await.expect("the store is up").expect("it was uploaded");
        let root = ManifestRoot::decode(&stored.value).expect("it is sound");
        let commit = TierCommit {
            partition,
            epoch: self.handle.placement.epoch,
            base: stored.revision,
            root: root.advance_log_start(to, root.epoch).encode(),
            objects_gc_epoch: None,
            dropped: Vec::new(),
        };
        let outcome = inner.store.commit_tier(&session, &[commit]).await.remove(0).expect("the store is up");
        assert!(matches!(outcome, TierOutcome::Committed { .. }), "{outcome:?}");
        self.lose(root.entries().iter().filter(|entry| entry.end <= to)).await;
    }

    /// Objects that are gone, from the bucket and from what is cached of it.
    pub(super) async fn lose<'a>(&self, segments: impl Iterator<Item = &'a SegmentEntry>) {
        for entry in segments {
            let object = Object { path: entry.object.to_string().into(), size: entry.object_length };
            self.objects.delete(&object.path).await.expect("it is there");
            self.broker.inner().tiered.cache().forget(&object, 0..object.size);
        }
    }

    /// What may go to object storage is there when this returns: up to the last stable offset.
    pub(super) async fn flush(&self) {
        self.broker.flush_partition(&self.topic(), 0).await.expect("it is led here");
    }

    /// All that is committed is there when this returns: of an overdue tail (rule T1).
    pub(super) async fn flush_past_stable(&self) {
        let mut view = self.local().view.clone();
        let all_is_there = view.wait_for(|view| view.manifest.tiered_end >= view.visible.hw);
        tokio::time::timeout(PATIENCE, all_is_there).await.expect("the tail is overdue").expect("it stays");
    }

    pub(super) async fn latest(&self, isolation: Isolation) -> Offset {
        let found = self.broker.list_offsets(&self.topic(), 0, None, OffsetSpec::Latest, isolation).await;
        found.expect("it leads").expect("there is an end").offset
    }

    fn request(&self, offset: Offset, bytes_max: usize, bytes_min: usize, isolation: Isolation) -> FetchRequest {
        let partition = FetchPartition {
            topic: self.topic(),
            partition: 0,
            offset,
            bytes_max,
            current_leader_epoch: None,
            last_fetched_epoch: None,
            reader: Reader::Anywhere,
        };
        FetchRequest {
            partitions: vec![partition],
            bytes_max,
            bytes_min,
            wait_max: Duration::from_secs(30),
            isolation,
            scan: false,
        }
    }

    /// The first offset of at least this time.
    pub(super) async fn at_or_after(&self, time: TimestampMs) -> Result<Option<Offset>, ErrorCode> {
        let (spec, isolation) = (OffsetSpec::AtOrAfter(time), Isolation::ReadUncommitted);
        let found = self.broker.list_offsets(&self.topic(), 0, None, spec, isolation).await;
        found.map(|found| found.map(|found| found.offset)).map_err(|error| error.code)
    }

    /// One read of what is there.
    pub(super) async fn fetch(&self, offset: Offset, bytes_max: usize, isolation: Isolation) -> FetchedPartition {
        let mut answer = self.broker.fetch(self.request(offset, bytes_max, 0, isolation)).await;
        answer.pop().expect("one partition, one answer")
    }

    /// A read of committed records that waits for some.
    pub(super) fn waiting_fetch(&self, offset: Offset) -> JoinHandle<FetchedPartition> {
        let (broker, request) = (self.broker.clone(), self.request(offset, 1 << 20, 1, Isolation::ReadCommitted));
        tokio::spawn(async move { broker.fetch(request).await.pop().expect("one partition, one answer") })
    }

    /// A read that waits for records, longer than any test does. By the topic's name, or by its id.
    pub(super) async fn fetch_for_long(&self, offset: Offset, by_id: bool) -> FetchedPartition {
        let mut request = self.request(offset, 1 << 20, 1, Isolation::ReadUncommitted);
        request.wait_max = 2 * PATIENCE;
        if by_id {
            request.partitions[0].topic = TopicRef::Id(self.handle.id.topic);
        }
        let answered = tokio::time::timeout(PATIENCE, self.broker.fetch(request));
        answered.await.expect("it is answered long before its wait ends").pop().expect("one partition, one answer")
    }

    pub(super) async fn delete(&self) {
        self.broker.delete_topic(&self.topic()).await.expect("it is there");
    }

    /// Drops the replica as a move does that is over.
    pub(super) fn drop_replica(&self) {
        self.broker.drop_replica(self.handle.id);
    }

    /// A read of committed records as a broker makes it that holds no replica (rule F4).
    pub(super) async fn fetch_elsewhere(&self, offset: Offset, bytes_max: usize) -> FetchedPartition {
        let request = self.request(offset, bytes_max, 0, Isolation::ReadCommitted);
        let place = Place { id: self.handle.id, epoch: self.handle.placement.epoch };
        let budget = Budget { bytes: bytes_max, may_overshoot: true };
        let deadline = clock::monotonic() + PATIENCE;
        self.broker.read_elsewhere(&request, &request.partitions[0], place, budget, deadline).await
    }
}

fn batch(records: u64, producer: Option<ProducerStamp>) -> Batch {
    let mut builder = BatchBuilder::new(Codec::None);
    if let Some(stamp) = producer {
        builder = builder.producer(stamp).transactional();
    }
    for _ in 0..records {
        builder.push(NewRecord { timestamp: TimestampMs(5), key: None, value: Some(b"value"), headers: &[] });
    }
    builder.build()
}
