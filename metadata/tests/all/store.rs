//! What the store of transitions promises, over the embedded store in memory, and over one that loses answers.

use millpond_core::loss::{Evidence, accept};
use millpond_core::records::{GroupSettingsRecord, Leader, PartitionRecord, SessionRecord, TopicRecord, TopicState};
use millpond_log::{
    BrokerId, Incarnation, LeaderEpoch, Lsn, Offset, PartitionId, ProducerId, Rid, TimestampMs, TopicId, WalGen,
};
use millpond_metadata::clock::ManualClock;
use millpond_metadata::embedded::Embedded;
use millpond_metadata::keys::{Key, Keys};
use millpond_metadata::kv::{
    BoxFuture, Interval, Kv, KvError, Lease, LeaseId, Position, Range, Ranged, Renewal, Revision, Txn, TxnOutcome,
    Watch, Write,
};
use millpond_metadata::store::{
    Bumped, CreateOutcome, Election, Image, NewTopic, Outcome, Placement, Registered, Registration, Session, Store,
    StoreError, TierCommit, TierOutcome, UncleanElection, Versioned,
};
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const TTL: Duration = Duration::from_secs(6);
const HOUR: Duration = Duration::from_secs(3600);

/// A store of a founded cluster, with the waist below it that can be told to lose answers.
pub(crate) struct Cluster {
    pub(crate) store: Store,
    pub(crate) lossy: Arc<Lossy>,
    pub(crate) embedded: Embedded,
    clock: Arc<ManualClock>,
}

pub(crate) async fn cluster() -> Cluster {
    let clock = Arc::new(ManualClock::default());
    let embedded = Embedded::in_memory(clock.clone());
    let lossy = Arc::new(Lossy { inner: embedded.clone(), lose: AtomicU32::new(NOTHING), txns: AtomicU32::new(0) });
    let store = Store::new(lossy.clone(), Keys::for_cluster("test"));
    store.init_cluster("c1").await.expect("founded");
    Cluster { store, lossy, embedded, clock }
}

const NOTHING: u32 = 0;
pub(crate) const ANSWER: u32 = 1;
pub(crate) const REQUEST: u32 = 2;

/// A waist that loses the next transaction, or its answer: both look the same to the caller (rule K5).
pub(crate) struct Lossy {
    inner: Embedded,
    lose: AtomicU32,
    txns: AtomicU32,
}

impl Lossy {
    pub(crate) fn lose(&self, what: u32) {
        self.lose.store(what, Ordering::SeqCst);
    }
}

impl Kv for Lossy {
    fn range(&self, range: Range) -> BoxFuture<'_, Result<Ranged, KvError>> {
        self.inner.range(range)
    }
    fn position(&self) -> BoxFuture<'_, Result<Position, KvError>> {
        self.inner.position()
    }
    fn txn(&self, txn: Txn) -> BoxFuture<'_, Result<TxnOutcome, KvError>> {
        Box::pin(async move {
            self.txns.fetch_add(1, Ordering::SeqCst);
            let lose = self.lose.swap(NOTHING, Ordering::SeqCst);
            if lose != REQUEST {
                let outcome = self.inner.txn(txn).await;
                if lose == NOTHING {
                    return outcome;
                }
            }
            Err(KvError::Unknown("lost".to_owned()))
        })
    }
    fn grant(&self, ttl: Duration) -> BoxFuture<'_, Result<Lease, KvError>> {
        self.inner.grant(ttl)
    }
    fn keep_alive(&self, lease: LeaseId) -> BoxFuture<'_, Result<Option<Renewal>, KvError>> {
        self.inner.keep_alive(lease)
    }
    fn revoke(&self, lease: LeaseId) -> BoxFuture<'_, Result<(), KvError>> {
        self.inner.revoke(lease)
    }
    fn watch(&self, keys: Interval, from: Revision) -> BoxFuture<'_, Result<Box<dyn Watch>, KvError>> {
        self.inner.watch(keys, from)
    }
    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<(), KvError>> {
        self.inner.compact(revision)
    }
}

pub(crate) fn registration(broker: u32, wal_gen: u64, disk_inc: u64, durable_lsn: u64) -> Registration {
    Registration {
        broker: BrokerId(broker),
        record: SessionRecord {
            wal_gen: WalGen(wal_gen),
            grpc: format!("127.0.0.1:{}", 7400 + broker),
            kafka: format!("127.0.0.1:{}", 9092 + broker),
            kafka_listeners: std::collections::BTreeMap::new(),
            http: format!("127.0.0.1:{}", 7480 + broker),
            internal: None,
            rack: None,
        },
        disk_inc: Incarnation(disk_inc),
        durable_lsn: Lsn(durable_lsn),
        ttl: TTL,
    }
}

pub(crate) async fn register(store: &Store, broker: u32) -> Session {
    match store.register_broker(&registration(broker, 100 + u64::from(broker), 0, 0)).await {
        Ok(Registered::Session(session)) => session,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn leader(session: &Session) -> Leader {
    Leader { rid: session.rid, inc: session.inc }
}

fn placement(session: &Session) -> Placement {
    Placement {
        replicas: vec![session.rid.broker],
        isr: vec![session.rid],
        leader: Some(leader(session)),
        min_isr: 1,
        absent: Vec::new(),
    }
}

pub(crate) fn topic(name: &str, id: u128, partitions: usize, session: &Session) -> NewTopic {
    NewTopic {
        name: name.parse().expect("valid"),
        id: TopicId(id),
        buried: Revision::ABSENT,
        replication_factor: 1,
        config: BTreeMap::new(),
        placements: vec![placement(session); partitions],
    }
}

pub(crate) async fn create(
    store: &Store,
    actor: &Session,
    name: &str,
    id: u128,
    partitions: usize,
) -> Versioned<TopicRecord> {
    let new = NewTopic { buried: store.buried().await.expect("up"), ..topic(name, id, partitions, actor) };
    let created = store.create_topic(actor, &new).await.expect("up");
    assert!(matches!(created, CreateOutcome::Created { .. }), "{created:?}");
    store.topic(TopicId(id)).await.expect("up").expect("created")
}

pub(crate) fn partition(topic: u128, index: u32) -> PartitionId {
    PartitionId { topic: TopicId(topic), index }
}

pub(crate) async fn partition_record(store: &Store, id: PartitionId) -> Versioned<PartitionRecord> {
    store.partition(id).await.expect("up").expect("there")
}

pub(crate) fn committed(outcome: &Outcome) -> Revision {
    match outcome {
        Outcome::Committed { revision } => *revision,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn cluster_is_founded_once() {
    let Cluster { store, lossy, .. } = cluster().await;
    let first = store.init_cluster("c1").await.expect("founded");
    let second = store.init_cluster("c2").await.expect("there");
    assert_eq!(first, second);
    assert_eq!(second.value.id, "c1");
    assert_eq!(store.gc_epoch().await.expect("founded").value, 0);

    let other = Store::new(lossy.clone(), Keys::for_cluster("other"));
    lossy.lose(ANSWER);
    assert!(matches!(other.init_cluster("c3").await, Err(StoreError::Unavailable(_))));
    assert_eq!(other.init_cluster("c3").await.expect("founded").value.id, "c3");
}

#[tokio::test]
async fn newer_records_are_refused_not_misread() {
    let Cluster { store, embedded, .. } = cluster().await;
    let overwrite = |key: Key, value: &'static str| {
        let then = vec![Write::put(store.keys().encode(&key), value)];
        embedded.txn(Txn { then, ..Txn::default() })
    };
    overwrite(Key::Cluster, r#"{"v":1,"record":{"id":"c1","format":1,"feature_level":9}}"#).await.expect("up");
    assert!(matches!(store.cluster().await, Err(StoreError::NewerFormat { found: 9, known: 1, .. })));
    overwrite(Key::Cluster, r#"{"v":2,"id":"c1"}"#).await.expect("up");
    let error = store.cluster().await.expect_err("a newer envelope");
    assert!(error.to_string().contains("upgrade this broker"), "{error}");
    overwrite(Key::Cluster, r#"{"v":1,"record":{"id":"c1","format":1,"feature_level":1,"x":0}}"#).await.expect("up");
    assert!(matches!(store.cluster().await, Err(StoreError::Damaged { .. })));
    overwrite(Key::Topic(TopicId(1)), "{").await.expect("up");
    assert!(matches!(store.load().await, Err(StoreError::Damaged { .. })), "never treated as absent (rule K6)");
}

#[tokio::test]
async fn registration_gives_a_new_incarnation_each_time() {
    let Cluster { store, clock, embedded, .. } = cluster().await;
    let first = register(&store, 1).await;
    // Quick restart: the same WAL may replace its own live session (rule B1).
    let again = store.register_broker(&registration(1, 101, first.inc.0, 5)).await.expect("up");
    let Registered::Session(second) = again else { panic!("{again:?}") };
    assert!(second.inc > first.inc);
    assert!(!store.holds(&first).await.expect("up") && store.holds(&second).await.expect("up"));
    // Another WAL waits for the lease.
    let other = registration(1, 999, 0, 0);
    assert_eq!(store.register_broker(&other).await, Ok(Registered::Occupied { wal_gen: WalGen(101) }));
    clock.advance(TTL + Duration::from_secs(1));
    embedded.expire_leases().await.expect("up");
    assert!(matches!(store.register_broker(&other).await, Ok(Registered::Session(_))));
}

#[tokio::test]
async fn stale_disks_and_stale_metadata_are_told_apart() {
    let Cluster { store, .. } = cluster().await;
    let never_seen = store.register_broker(&registration(1, 101, 7, 0)).await.expect("up");
    assert!(matches!(never_seen, Registered::StaleMetadata { .. }), "rule K7: {never_seen:?}");
    let session = register(&store, 1).await;
    let seen = Revision(session.inc.0);
    let refreshed = store.refresh_broker(&session, seen, Lsn(50), None).await.expect("up");
    let refreshed = store.refresh_broker(&session, committed(&refreshed), Lsn(80), Some("a:4")).await;
    let second = committed(&refreshed.expect("up"));
    let disk = store.read_disk(BrokerId(1)).await.expect("up").expect("registered");
    assert_eq!((disk.revision, disk.value.durable_lsn, disk.value.last_inc), (second, Lsn(80), Some(session.inc)));
    assert_eq!(disk.value.internal.as_deref(), Some("a:4"));
    // A refresh that arrives late does not lower the position.
    assert_eq!(store.refresh_broker(&session, seen, Lsn(50), None).await, Ok(Outcome::Conflict));

    let inc = session.inc.0;
    let attempt = async |wal_gen, disk_inc, lsn| {
        store.register_broker(&registration(1, wal_gen, disk_inc, lsn)).await.expect("up")
    };
    assert!(matches!(attempt(101, inc - 1, 90).await, Registered::StaleDisk { .. }), "rule B1a: an old snapshot");
    assert!(matches!(attempt(101, inc, 79).await, Registered::StaleDisk { .. }), "rule B1a: a lower position");
    assert!(matches!(attempt(102, 3, 90).await, Registered::StaleDisk { .. }), "rule B1a: a swapped disk");
    assert!(matches!(attempt(101, inc + 1, 90).await, Registered::StaleMetadata { .. }), "rule K7");
    assert!(matches!(attempt(101, inc, 80).await, Registered::Session(_)));
}

#[tokio::test]
async fn crash_between_registration_and_its_note_keeps_the_disk() {
    let Cluster { store, lossy, .. } = cluster().await;
    let first = register(&store, 1).await;
    store.refresh_broker(&first, Revision(first.inc.0), Lsn(10), None).await.expect("up");
    // Registered, but the process died before its WAL carried the new incarnation; then once more, without an answer.
    let second = store.register_broker(&registration(1, 101, first.inc.0, 10)).await.expect("up");
    assert!(matches!(second, Registered::Session(_)), "{second:?}");
    lossy.lose(ANSWER);
    let third = store.register_broker(&registration(1, 101, first.inc.0, 10)).await.expect("up");
    assert_eq!(third, Registered::Unknown);
    let fourth = store.register_broker(&registration(1, 101, first.inc.0, 10)).await.expect("up");
    let Registered::Session(fourth) = fourth else { panic!("{fourth:?}") };
    // Confirmed: now only the new incarnation will do.
    committed(&store.refresh_broker(&fourth, Revision(fourth.inc.0), Lsn(10), None).await.expect("up"));
    let old = store.register_broker(&registration(1, 101, first.inc.0, 10)).await.expect("up");
    assert!(matches!(old, Registered::StaleDisk { .. }), "{old:?}");
}

#[tokio::test]
async fn every_transition_is_fenced_by_the_actors_session() {
    let Cluster { store, .. } = cluster().await;
    let live = register(&store, 1).await;
    let gone = register(&store, 2).await;
    let record = create(&store, &live, "t", 1, 1).await;
    let seen = partition_record(&store, partition(1, 0)).await;
    committed(&store.end_session(&live, gone.rid.broker, gone.inc).await.expect("up"));
    let before = store.kv().range(Range::key(&store.keys().encode(&Key::Cluster))).await.expect("up").revision;

    // Rule K4, for each transition.
    let created = store.create_topic(&gone, &topic("u", 2, 1, &live)).await;
    assert_eq!(created, Ok(CreateOutcome::Fenced));
    assert_eq!(store.add_partitions(&gone, &record, &[placement(&live)]).await, Ok(Outcome::Fenced));
    assert_eq!(store.alter_topic_config(&gone, &record, &BTreeMap::new()).await, Ok(Outcome::Fenced));
    assert_eq!(store.delete_topic(&gone, &record).await, Ok(Outcome::Fenced));
    let next = elected(&seen.value, &live);
    let election = Election::of(partition(1, 0), &seen, next);
    assert_eq!(store.elect(&gone, None, &[election]).await, [Ok(Outcome::Fenced)]);
    assert_eq!(store.commit_tier(&gone, &[commit(1, 0, Revision::ABSENT, "r")]).await, [Ok(TierOutcome::Fenced)]);
    assert_eq!(store.bump_gc_epoch(&gone, TimestampMs(0), HOUR).await, Ok(Bumped::Not(Outcome::Fenced)));
    let ids = NonZeroU64::new(10).expect("not 0");
    assert_eq!(store.allocate_producer_ids(&gone, ids).await, Ok(Err(Outcome::Fenced)));
    assert_eq!(store.refresh_broker(&gone, Revision(gone.inc.0), Lsn(1), None).await, Ok(Outcome::Fenced));
    assert_eq!(store.end_session(&gone, live.rid.broker, live.inc).await, Ok(Outcome::Fenced));
    let after = store.kv().range(Range::key(&store.keys().encode(&Key::Cluster))).await.expect("up").revision;
    assert_eq!(before, after, "nothing was written");
}

#[tokio::test]
async fn topic_is_created_in_batches_and_served_last() {
    let Cluster { store, lossy, .. } = cluster().await;
    let session = register(&store, 1).await;
    let before = lossy.txns.load(Ordering::SeqCst);
    let record = create(&store, &session, "flights", 1, 100).await;
    // Name, three batches (rule K8), and the switch to active.
    assert_eq!(lossy.txns.load(Ordering::SeqCst) - before, 5);
    assert_eq!((record.value.state, record.value.partitions), (TopicState::Active, 100));
    let image = store.load().await.expect("up");
    assert_eq!(image.partitions.len(), 100);
    for partition in image.partitions.values() {
        assert_eq!((partition.value.leader, partition.value.epoch), (Some(leader(&session)), LeaderEpoch(1)));
    }
    let name = "flights".parse().expect("valid");
    assert_eq!(store.topic_id(&name).await, Ok(Some(TopicId(1))));
    let again = store.create_topic(&session, &topic("flights", 2, 1, &session)).await;
    assert_eq!(again, Ok(CreateOutcome::Exists { id: TopicId(1) }));
    assert!(store.topic(TopicId(2)).await.expect("up").is_none());
    let same = store.create_topic(&session, &topic("flights", 1, 100, &session)).await;
    assert_eq!(same, Ok(CreateOutcome::Created { revision: record.revision }));
}

/// At whichever transaction an answer or a request is lost, calling again ends with the topic whole.
#[tokio::test]
async fn creation_resumes_after_any_loss() {
    for lose in [ANSWER, REQUEST] {
        for step in 0..4 {
            let Cluster { store, lossy, .. } = cluster().await;
            let session = register(&store, 1).await;
            let new = topic("t", 1, 50, &session);
            let steps = Arc::new(Stepped { inner: lossy.clone(), step: AtomicU32::new(step), lose });
            let shaky = Store::new(steps, store.keys().clone());
            assert_eq!(shaky.create_topic(&session, &new).await, Ok(CreateOutcome::Unknown), "{lose} {step}");
            let created = shaky.create_topic(&session, &new).await.expect("up");
            assert!(matches!(created, CreateOutcome::Created { .. }), "{lose} {step}: {created:?}");
            let image = store.load().await.expect("up");
            assert_eq!((image.partitions.len(), image.topics.len(), image.names.len()), (50, 1, 1));
            assert!(image.partitions.values().all(|partition| partition.value.epoch == LeaderEpoch(1)));
        }
    }
}

/// Loses the transaction after `step` others.
pub(crate) struct Stepped {
    pub(crate) inner: Arc<Lossy>,
    pub(crate) step: AtomicU32,
    pub(crate) lose: u32,
}

impl Kv for Stepped {
    fn range(&self, range: Range) -> BoxFuture<'_, Result<Ranged, KvError>> {
        self.inner.range(range)
    }
    fn position(&self) -> BoxFuture<'_, Result<Position, KvError>> {
        self.inner.position()
    }
    fn txn(&self, txn: Txn) -> BoxFuture<'_, Result<TxnOutcome, KvError>> {
        // Wraps around after the lost one, and so loses no other.
        if self.step.fetch_sub(1, Ordering::SeqCst) == 0 {
            self.inner.lose(self.lose);
        }
        self.inner.txn(txn)
    }
    fn grant(&self, ttl: Duration) -> BoxFuture<'_, Result<Lease, KvError>> {
        self.inner.grant(ttl)
    }
    fn keep_alive(&self, lease: LeaseId) -> BoxFuture<'_, Result<Option<Renewal>, KvError>> {
        self.inner.keep_alive(lease)
    }
    fn revoke(&self, lease: LeaseId) -> BoxFuture<'_, Result<(), KvError>> {
        self.inner.revoke(lease)
    }
    fn watch(&self, keys: Interval, from: Revision) -> BoxFuture<'_, Result<Box<dyn Watch>, KvError>> {
        self.inner.watch(keys, from)
    }
    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<(), KvError>> {
        self.inner.compact(revision)
    }
}

#[tokio::test]
async fn another_broker_finishes_a_creation() {
    let Cluster { store, lossy, .. } = cluster().await;
    let first = register(&store, 1).await;
    let steps = Arc::new(Stepped { inner: lossy.clone(), step: AtomicU32::new(2), lose: REQUEST });
    let shaky = Store::new(steps, store.keys().clone());
    let new = topic("t", 1, 50, &first);
    assert_eq!(shaky.create_topic(&first, &new).await, Ok(CreateOutcome::Unknown));
    let record = store.topic(TopicId(1)).await.expect("up").expect("begun");
    assert_eq!(record.value.state, TopicState::Creating);
    let second = register(&store, 2).await;
    store.leave(&first).await.expect("up");
    let few = store.resume_topic(&second, TopicId(1), &[placement(&second)]).await;
    assert!(matches!(few, Err(StoreError::Refused(_))), "{few:?}");
    let resumed = store.resume_topic(&second, TopicId(1), &vec![placement(&second); 50]).await.expect("up");
    assert!(matches!(resumed, CreateOutcome::Created { .. }), "{resumed:?}");
    let image = store.load().await.expect("up");
    assert_eq!(image.partitions.len(), 50);
    for (id, partition) in image.partitions {
        assert_eq!(partition.value.leader, Some(leader(&second)));
        // Those that were written before are elected anew, with a higher epoch (rule E4).
        assert_eq!(partition.value.epoch, LeaderEpoch(if id.index < 40 { 2 } else { 1 }));
    }
}

#[tokio::test]
async fn topics_grow_and_change_settings() {
    let Cluster { store, .. } = cluster().await;
    let session = register(&store, 1).await;
    let first = create(&store, &session, "t", 1, 2).await;
    committed(&store.add_partitions(&session, &first, &vec![placement(&session); 3]).await.expect("up"));
    let grown = store.topic(TopicId(1)).await.expect("up").expect("there");
    assert_eq!(grown.value.partitions, 5);
    assert_eq!(store.load().await.expect("up").partitions.len(), 5);
    assert_eq!(store.add_partitions(&session, &first, &[placement(&session)]).await, Ok(Outcome::Conflict));
    assert!(matches!(store.add_partitions(&session, &grown, &[]).await, Err(StoreError::Refused(_))));

    let config = |value: &str| BTreeMap::from([("retention.ms".to_owned(), value.to_owned())]);
    let bad = store.alter_topic_config(&session, &grown, &config("soon")).await;
    assert!(matches!(bad, Err(StoreError::Refused(_))), "{bad:?}");
    committed(&store.alter_topic_config(&session, &grown, &config("1000")).await.expect("up"));
    assert_eq!(store.alter_topic_config(&session, &grown, &config("2000")).await, Ok(Outcome::Conflict));
    assert_eq!(store.topic(TopicId(1)).await.expect("up").expect("there").value.config, config("1000"));
}

#[tokio::test]
async fn deletion_leaves_a_tombstone_and_drops() {
    let Cluster { store, lossy, .. } = cluster().await;
    let session = register(&store, 1).await;
    let other = register(&store, 2).await;
    let record = create(&store, &session, "t", 1, 70).await;
    let tiered = store.commit_tier(&session, &[commit(1, 0, Revision::ABSENT, "root of 0")]).await;
    assert!(matches!(tiered[0], Ok(TierOutcome::Committed { .. })), "{tiered:?}");

    // The deleter dies midway; another broker goes on.
    let steps = Arc::new(Stepped { inner: lossy, step: AtomicU32::new(2), lose: REQUEST });
    let shaky = Store::new(steps, store.keys().clone());
    assert_eq!(shaky.delete_topic(&session, &record).await, Ok(Outcome::Unknown));
    let half = store.topic(TopicId(1)).await.expect("up").expect("not finished");
    assert_eq!(half.value.state, TopicState::Deleting);
    assert_eq!(store.topic_id(&record.value.name).await, Ok(None), "the name is free at once");
    let created = store.create_topic(&other, &topic("t", 2, 1, &other)).await.expect("up");
    assert!(matches!(created, CreateOutcome::Created { .. }), "{created:?}");
    committed(&store.resume_deletion(&other, TopicId(1)).await.expect("up"));

    let image = store.load().await.expect("up");
    assert_eq!(image.topics.keys().collect::<Vec<_>>(), [&TopicId(2)]);
    assert!(image.partitions.keys().all(|partition| partition.topic == TopicId(2)));
    assert!(store.tier_roots(None).await.expect("up").1.is_empty());
    let drops = store.drops_before(1).await.expect("up");
    assert_eq!(drops.len(), 1);
    assert_eq!((drops[0].partition, drops[0].record.value.root.as_deref()), (partition(1, 0), Some(&b"root of 0"[..])));

    // Rule K6: whoever created it and comes back late must not give a name to what is to be dropped.
    let late = store.create_topic(&session, &topic("t1", 1, 1, &session)).await;
    assert_eq!(late, Ok(CreateOutcome::Conflict));
    assert_eq!(store.topic_id(&"t1".parse().expect("valid")).await, Ok(None));
}

/// The record after `session` won an election.
fn elected(seen: &PartitionRecord, session: &Session) -> PartitionRecord {
    let mut next = seen.clone();
    next.leader = Some(leader(session));
    next.epoch = LeaderEpoch(seen.epoch.0 + 1);
    if !next.isr.contains(&session.rid) {
        next.isr.push(session.rid);
    }
    next
}

#[tokio::test]
async fn elections_compare_partition_candidate_and_controller() {
    let Cluster { store, embedded, .. } = cluster().await;
    let first = register(&store, 1).await;
    let second = register(&store, 2).await;
    create(&store, &first, "t", 1, 3).await;
    let id = partition(1, 0);
    let seen = partition_record(&store, id).await;
    let election =
        |seen: &Versioned<PartitionRecord>, winner: &Session| Election::of(id, seen, elected(&seen.value, winner));
    let won = store.elect(&first, None, &[election(&seen, &second)]).await;
    let revision = committed(won[0].as_ref().expect("up"));
    let now = partition_record(&store, id).await;
    assert_eq!((now.revision, now.value.epoch, now.value.leader), (revision, LeaderEpoch(2), Some(leader(&second))));
    // Sent again, it is recognised (rule K5); decided otherwise on the same record, it fails (rule E3).
    assert_eq!(store.elect(&first, None, &[election(&seen, &second)]).await, [Ok(Outcome::Committed { revision })]);
    assert_eq!(store.elect(&first, None, &[election(&seen, &first)]).await, [Ok(Outcome::Conflict)]);
    let dead = Session { inc: Incarnation(second.inc.0 + 100), ..second };
    assert_eq!(store.elect(&first, None, &[election(&now, &dead)]).await, [Ok(Outcome::Conflict)]);

    let controller = Write::put(store.keys().encode(&Key::Controller), "1");
    let office = embedded.txn(Txn { then: vec![controller], ..Txn::default() }).await.expect("up");
    let TxnOutcome::Succeeded { revision: office, .. } = office else { panic!("{office:?}") };
    let out = store.elect(&first, Some(Revision(office.0 - 1)), &[election(&now, &first)]).await;
    assert_eq!(out, [Ok(Outcome::Fenced)]);
    committed(store.elect(&first, Some(office), &[election(&now, &first)]).await[0].as_ref().expect("up"));
}

/// Rule E7: one transaction that is decided on the record and the tier root, recognised when sent again, and on record for good.
#[tokio::test]
async fn an_accepted_loss_is_one_transaction_and_stays_on_record() {
    let Cluster { store, lossy, .. } = cluster().await;
    let gone = register(&store, 1).await;
    create(&store, &gone, "t", 1, 1).await;
    let id = partition(1, 0);
    let tiered = committed_tier(&store, &gone, Revision::ABSENT, "root-1").await;
    store.leave(&gone).await.expect("up");
    let registered = store.register_broker(&registration(1, 999, 0, 0)).await.expect("up");
    let Registered::Session(back) = registered else { panic!("{registered:?}") };
    let seen = partition_record(&store, id).await;
    let evidence = Evidence {
        leader: leader(&back),
        epoch_seen: LeaderEpoch(0),
        end: Offset(5),
        tiered_end: Offset(5),
        known_end: Offset(9),
        cause: "a test".to_owned(),
    };
    let disk_of = |_| Some(WalGen(999));
    let acceptance = accept(&seen.value, evidence, disk_of).expect("it is lost");
    let election = UncleanElection {
        partition: id,
        record: seen.revision,
        tier_root: tiered,
        also: vec![],
        acceptance: acceptance.clone(),
    };
    let stale_root = UncleanElection { tier_root: Revision(tiered.0 - 1), ..election.clone() };
    assert_eq!(store.accept_loss(&back, &stale_root).await, Ok(Outcome::Conflict));
    let also = vec![(Key::BrokerSession(BrokerId(1)), Revision::ABSENT)];
    let of_another = UncleanElection { also, ..election.clone() };
    assert_eq!(store.accept_loss(&back, &of_another).await, Ok(Outcome::Conflict), "rule K3: it has a session");
    assert_eq!(store.accept_loss(&gone, &election).await, Ok(Outcome::Fenced), "rule K4");
    assert_eq!(store.losses().await, Ok(vec![]), "nothing was written");

    lossy.lose(ANSWER);
    assert_eq!(store.accept_loss(&back, &election).await, Ok(Outcome::Unknown));
    let revision = committed(&store.accept_loss(&back, &election).await.expect("up"));
    let now = partition_record(&store, id).await;
    assert_eq!((now.revision, &now.value), (revision, &acceptance.next));
    assert_eq!(store.losses().await, Ok(vec![(id, acceptance.loss)]));
    // The leader of the unclean epoch commits to the manifest, and its predecessor does not (rule T5).
    let next = TierCommit { epoch: acceptance.next.epoch, ..commit(1, 0, tiered, "root-2") };
    assert_eq!(store.commit_tier(&gone, std::slice::from_ref(&next)).await, [Ok(TierOutcome::Fenced)]);
    assert!(matches!(store.commit_tier(&back, &[next]).await[0], Ok(TierOutcome::Committed { .. })));
}

async fn committed_tier(store: &Store, leader: &Session, base: Revision, root: &'static str) -> Revision {
    match store.commit_tier(leader, &[commit(1, 0, base, root)]).await.remove(0) {
        Ok(TierOutcome::Committed { revision }) => revision,
        other => panic!("{other:?}"),
    }
}

/// One member of a batch that fails takes no other with it (rule K8).
#[tokio::test]
async fn failed_members_of_a_batch_are_retried_singly() {
    let Cluster { store, lossy, .. } = cluster().await;
    let session = register(&store, 1).await;
    create(&store, &session, "t", 1, 60).await;
    let image = store.load().await.expect("up");
    let mut elections: Vec<Election> = image
        .partitions
        .into_iter()
        .map(|(partition, seen)| Election::of(partition, &seen, elected(&seen.value, &session)))
        .collect();
    elections[7].base = Revision(elections[7].base.0 - 1);
    let before = lossy.txns.load(Ordering::SeqCst);
    let answers = store.elect(&session, None, &elections).await;
    // A batch of 40 that failed, its 39 others, and a batch of 20.
    assert_eq!(lossy.txns.load(Ordering::SeqCst) - before, 1 + 39 + 1);
    for (index, answer) in answers.iter().enumerate() {
        let expected = index != 7;
        assert_eq!(matches!(answer, Ok(Outcome::Committed { .. })), expected, "{index} {answer:?}");
    }
    assert_eq!(answers[7], Ok(Outcome::Conflict));
}

fn commit(topic: u128, index: u32, base: Revision, root: &str) -> TierCommit {
    TierCommit {
        partition: partition(topic, index),
        epoch: LeaderEpoch(1),
        base,
        root: root.to_owned().into(),
        objects_gc_epoch: Some(0),
        dropped: Vec::new(),
    }
}

#[tokio::test]
async fn tier_commits_follow_one_another() {
    let Cluster { store, lossy, .. } = cluster().await;
    let session = register(&store, 1).await;
    create(&store, &session, "t", 1, 2).await;
    let one = async |commit: TierCommit| {
        let mut answers = store.commit_tier(&session, &[commit]).await;
        answers.remove(0).expect("up")
    };
    assert_eq!(store.tier_root(partition(1, 0)).await, Ok(None));
    let first = one(commit(1, 0, Revision::ABSENT, "1")).await;
    let TierOutcome::Committed { revision } = first else { panic!("{first:?}") };
    let root = store.tier_root(partition(1, 0)).await.expect("up").expect("committed");
    assert_eq!((root.revision, root.value.as_ref()), (revision, &b"1"[..]));
    assert_eq!(one(commit(1, 0, Revision::ABSENT, "other")).await, TierOutcome::Conflict);

    // Rule K5: unknown until the same commit, sent again, says what happened; either way it happens once.
    for (lose, root) in [(ANSWER, "2"), (REQUEST, "3")] {
        let base = store.tier_root(partition(1, 0)).await.expect("up").expect("committed").revision;
        lossy.lose(lose);
        assert_eq!(one(commit(1, 0, base, root)).await, TierOutcome::Unknown);
        let settled = one(commit(1, 0, base, root)).await;
        let found = store.tier_root(partition(1, 0)).await.expect("up").expect("committed");
        assert_eq!(settled, TierOutcome::Committed { revision: found.revision });
        assert_eq!(found.value, root);
    }
}

#[tokio::test]
async fn tier_commits_need_the_leadership_they_were_decided_under() {
    let Cluster { store, .. } = cluster().await;
    let first = register(&store, 1).await;
    let second = register(&store, 2).await;
    create(&store, &first, "t", 1, 1).await;
    let id = partition(1, 0);
    // Not the leader; then the leader of an epoch that is over.
    assert_eq!(store.commit_tier(&second, &[commit(1, 0, Revision::ABSENT, "1")]).await, [Ok(TierOutcome::Fenced)]);
    let seen = partition_record(&store, id).await;
    let next = elected(&seen.value, &first);
    store.elect(&first, None, &[Election::of(id, &seen, next)]).await[0].as_ref().expect("up");
    assert_eq!(store.commit_tier(&first, &[commit(1, 0, Revision::ABSENT, "1")]).await, [Ok(TierOutcome::Fenced)]);
    let current = TierCommit { epoch: LeaderEpoch(2), ..commit(1, 0, Revision::ABSENT, "1") };
    assert!(matches!(store.commit_tier(&first, &[current]).await[0], Ok(TierOutcome::Committed { .. })));
}

#[tokio::test]
async fn objects_of_an_old_gc_epoch_are_not_committed() {
    let Cluster { store, .. } = cluster().await;
    let session = register(&store, 1).await;
    create(&store, &session, "t", 1, 40).await;
    let at = |hours: i64| TimestampMs(hours * 3_600_000);
    let bump = async |hours| store.bump_gc_epoch(&session, at(hours), HOUR).await.expect("up");
    assert!(matches!(bump(10).await, Bumped::To { epoch: 1, .. }));
    let early = store.bump_gc_epoch(&session, TimestampMs(at(11).0 - 1), HOUR).await;
    assert_eq!(early, Ok(Bumped::TooEarly), "rule G1");
    // Named at epoch 0, at epoch 1: still committable.
    let bundle: Vec<TierCommit> = (0..40).map(|n| commit(1, n, Revision::ABSENT, "1")).collect();
    for answer in store.commit_tier(&session, &bundle).await {
        assert!(matches!(answer, Ok(TierOutcome::Committed { .. })), "{answer:?}");
    }
    assert!(matches!(bump(11).await, Bumped::To { epoch: 2, .. }));
    let base = store.tier_root(partition(1, 0)).await.expect("up").expect("committed").revision;
    assert_eq!(store.commit_tier(&session, &[commit(1, 0, base, "2")]).await, [Ok(TierOutcome::Expired)]);
    let newer = TierCommit { objects_gc_epoch: Some(1), ..commit(1, 0, base, "2") };
    assert!(matches!(store.commit_tier(&session, &[newer]).await[0], Ok(TierOutcome::Committed { .. })));
    // A clock that was far ahead once does not stop collection for good.
    assert!(matches!(bump(1000).await, Bumped::To { epoch: 3, .. }));
    assert!(matches!(bump(12).await, Bumped::To { epoch: 4, .. }));
}

#[tokio::test]
async fn drops_enter_the_log_with_their_commit() {
    let Cluster { store, .. } = cluster().await;
    let session = register(&store, 1).await;
    create(&store, &session, "t", 1, 2).await;
    let dropping = |base, root: &str, dropped: &[&str]| TierCommit {
        dropped: dropped.iter().map(|&object| object.to_owned()).collect(),
        objects_gc_epoch: None,
        ..commit(1, 0, base, root)
    };
    let refused = store.commit_tier(&session, &[dropping(Revision(1), "x", &["a"])]).await;
    assert_eq!(refused, [Ok(TierOutcome::Conflict)]);
    assert_eq!(store.drops_before(u64::MAX).await, Ok(Vec::new()), "no drop without its commit (rule G2)");
    let first = store.commit_tier(&session, &[dropping(Revision::ABSENT, "1", &["a", "b"])]).await;
    let Ok(TierOutcome::Committed { revision }) = first[0] else { panic!("{first:?}") };
    store.bump_gc_epoch(&session, TimestampMs(0), HOUR).await.expect("up");
    store.commit_tier(&session, &[dropping(revision, "2", &["c"])]).await[0].as_ref().expect("up");
    let names = async |before| {
        let drops = store.drops_before(before).await.expect("up");
        drops.iter().map(|drop| (drop.gc_epoch, drop.record.value.objects.join(","))).collect::<Vec<_>>()
    };
    assert_eq!(names(1).await, [(0, "a,b".to_owned())]);
    assert_eq!(names(2).await, [(0, "a,b".to_owned()), (1, "c".to_owned())]);
    let old = store.drops_before(1).await.expect("up");
    committed(store.forget_drops(&session, &old).await[0].as_ref().expect("up"));
    assert_eq!(names(2).await, [(1, "c".to_owned())]);
    let too_many = vec!["x"; 257];
    let newest = store.tier_root(partition(1, 0)).await.expect("up").expect("committed").revision;
    let other = |root| commit(1, 1, Revision::ABSENT, root);
    let answers = store.commit_tier(&session, &[dropping(newest, "3", &too_many), other("1")]).await;
    assert!(matches!(answers[0], Err(StoreError::Refused(_))), "{answers:?}");
    assert!(
        matches!(answers[1], Ok(TierOutcome::Committed { .. })),
        "another partition's is not kept back: {answers:?}"
    );
}

#[tokio::test]
async fn producer_ids_are_given_out_once() {
    let Cluster { store, lossy, .. } = cluster().await;
    let session = register(&store, 1).await;
    let len = NonZeroU64::new(10).expect("not 0");
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { store.allocate_producer_ids(&session, len).await })
        })
        .collect();
    let mut firsts = BTreeSet::new();
    for task in tasks {
        let block = task.await.expect("no panic").expect("up").expect("allocated");
        assert_eq!(block.len, len);
        assert!(firsts.insert(block.first), "{block:?} twice");
    }
    assert_eq!(firsts, (0..8).map(|i| ProducerId(i * 10)).collect());
    lossy.lose(ANSWER);
    assert_eq!(store.allocate_producer_ids(&session, len).await, Ok(Err(Outcome::Unknown)));
    let next = store.allocate_producer_ids(&session, len).await.expect("up").expect("allocated");
    assert_eq!(next.first, ProducerId(90), "the lost block stays lost");
}

#[tokio::test]
async fn image_follows_the_store_by_watching() {
    let Cluster { store, .. } = cluster().await;
    let session = register(&store, 1).await;
    let record = create(&store, &session, "t", 1, 3).await;
    let mut image = store.load().await.expect("up");
    let mut watches = Vec::new();
    for space in Image::SPACES {
        watches.push(store.kv().watch(store.keys().space(&space), image.revision.next()).await.expect("up"));
    }
    let other = register(&store, 2).await;
    create(&store, &session, "u", 2, 2).await;
    committed(&store.delete_topic(&session, &record).await.expect("up"));
    let settings = GroupSettingsRecord { settings: [("a".to_owned(), "1".to_owned())].into() };
    committed(&store.alter_group_settings(&session, "g", Revision::ABSENT, &settings).await.expect("up"));
    store.leave(&other).await.expect("up");
    let newest = store.load().await.expect("up").revision;
    let mut old = Vec::new();
    for watch in &mut watches {
        watch.request_progress().await.expect("up");
        let mut reached = Revision::ABSENT;
        while reached < newest {
            let batch = watch.next().await.expect("up");
            for event in &batch.events {
                image.apply(store.keys(), event).expect("readable");
            }
            old.extend(batch.events);
            reached = batch.revision;
        }
    }
    let fresh = store.load().await.expect("up");
    image.revision = fresh.revision;
    assert_eq!(image, fresh);
    assert_eq!(fresh.partitions.len(), 2);
    assert_eq!(fresh.group_settings["g"].value, settings);
    assert_eq!(fresh.sessions.keys().collect::<Vec<_>>(), [&BrokerId(1)]);
    // Rule Z2: what is older than what is held changes nothing.
    let held = fresh.topics.get(&TopicId(2)).expect("there").revision;
    for event in old.iter().filter(|event| event.mod_revision() < held) {
        let key = store.keys().parse(event.key()).expect("ours");
        if key == Key::Topic(TopicId(2)) {
            assert_eq!(image.apply(store.keys(), event), Ok(None));
        }
    }
    assert_eq!(image, fresh);
}

#[test]
fn a_rid_names_its_broker_and_wal() {
    let rid = Rid { broker: BrokerId(3), wal_gen: WalGen(0xab) };
    assert_eq!(rid.to_string(), "3.00000000000000ab", "the value of `/pe` is compared with this spelling (rule T5)");
}

#[tokio::test]
async fn broker_ids_are_handed_out_once_and_skip_those_in_use() {
    let cluster = cluster().await;
    let next = || async { cluster.store.allocate_broker_id().await.expect("the store answers").0 };
    assert_eq!([next().await, next().await], [0, 1]);
    register(&cluster.store, 2).await;
    register(&cluster.store, 3).await;
    assert_eq!(next().await, 4, "operators gave 2 and 3 to theirs");
    // A lost request costs nothing, a lost answer an id; neither gives one out twice.
    cluster.lossy.lose(REQUEST);
    assert_eq!(next().await, 5);
    cluster.lossy.lose(ANSWER);
    assert_eq!(next().await, 7);
    let (one, two) = tokio::join!(next(), next());
    assert_ne!(one, two);
}
