//! Nodes: a WAL, shards, links and a door each, over one metadata store; and a proxy that cuts connections.

use crate::api::InTransaction;
use crate::budget::Connections;
use crate::config::InternalTls;
use crate::metrics::Metrics;
use crate::partitions::links::{LinkMsg, Links};
use crate::partitions::messages::{Ending, Open, Produce, ProduceSpans, Services, ShardMsg, ShardSender, Verify};
use crate::partitions::shard;
use crate::partitions::view::{PartitionView, ViewReceiver};
use crate::peers::strangers::Strangers;
use crate::peers::{Parts, Peer, Peers};
use crate::rebuild::Rebuilder;
use crate::secret::Secret;
use crate::session::SessionHandle;
use crate::telemetry::TracedTails;
use crate::tiered::Tiered;
use crate::wal::disk::RealDisk;
use crate::wal::{Wal, WalOptions, WalPermit};
use millpond_cache::{Cache, CacheOptions};
use millpond_core::records::{Leader, PartitionRecord, SessionRecord};
use millpond_core::replica::{Acks, Assignment, Cursor, EndState, Input, Live, Placed, PushHead, Recovered, Replica};
use millpond_core::rules::Rules;
use millpond_log::batch::{BatchBuilder, NewRecord, TimestampType};
use millpond_log::codec::Codec;
use millpond_log::epochs::LeaderEpochs;
use millpond_log::manifest::ManifestRoot;
use millpond_log::transactions::Marker;
use millpond_log::{Batch, BrokerId, Incarnation, LeaderEpoch, Lsn, Offset, PartitionId, TimestampMs, TopicId, WalGen};
use millpond_metadata::clock::SystemClock;
use millpond_metadata::embedded::Embedded;
use millpond_metadata::keys::Keys;
use millpond_metadata::store::{Registered, Registration, Store};
use object_store::memory::InMemory;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub(super) const CLUSTER: &str = "cluster-of-tests";

/// Nothing that a test waits for takes so long, unless it never comes.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn secret() -> Option<Secret> {
    Some(Secret::new(b"a secret that all of them know").expect("it is long enough"))
}

pub(super) fn partition(index: u32) -> PartitionId {
    PartitionId { topic: TopicId(77), index }
}

/// A metadata store in memory, founded.
pub(super) async fn store() -> Store {
    let kv = Arc::new(Embedded::in_memory(Arc::new(SystemClock::start())));
    let store = Store::new(kv, Keys::for_cluster("tests"));
    store.init_cluster(CLUSTER).await.expect("it is new");
    store
}

/// How a node differs from the others.
pub(super) struct Settings {
    pub(super) secret: Option<Secret>,
    pub(super) tls: Option<InternalTls>,
    pub(super) cluster: &'static str,
    pub(super) wal_bytes: u64,
    pub(super) memory_bytes: u64,
    pub(super) strangers: Strangers,
    /// Whether what streams hand to shards is held back until `release`.
    pub(super) gated: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            secret: secret(),
            tls: None,
            cluster: CLUSTER,
            wal_bytes: 256 << 20,
            memory_bytes: 8 << 20,
            strangers: Strangers::new(Connections::new("internal", 64)),
            gated: false,
        }
    }
}

pub(super) struct Node {
    pub(super) peer: Peer,
    pub(super) peers: Peers,
    pub(super) wal: Wal,
    pub(super) shards: Vec<ShardSender>,
    /// What its shards ask coordinators.
    pub(super) unverified: UnboundedReceiver<Verify>,
    links: Links,
    session: SessionHandle,
    registration: Registration,
    metrics: Arc<Metrics>,
    views: BTreeMap<PartitionId, ViewReceiver>,
    gate: watch::Sender<bool>,
    tasks: JoinSet<Result<(), String>>,
    stop: CancellationToken,
    _folder: tempfile::TempDir,
}

fn shard_of(partition: PartitionId, shards: &[ShardSender]) -> &ShardSender {
    &shards[partition.index as usize % shards.len()]
}

/// A way to a shard that passes everything on, in order, once it is opened: a shard that stands still until then.
fn behind(
    mut opened: watch::Receiver<bool>,
    shard: ShardSender,
    tasks: &mut JoinSet<Result<(), String>>,
) -> ShardSender {
    let (sender, mut inbox) = unbounded_channel();
    tasks.spawn(async move {
        let open = opened.wait_for(|open| *open).await.is_ok();
        while open && let Some(message) = inbox.recv().await {
            let _ = shard.send(message);
        }
        Ok(())
    });
    sender
}

impl Node {
    pub(super) async fn start(id: u32, store: &Store) -> Node {
        Node::start_as(id, store, Settings::default()).await
    }

    pub(super) async fn start_as(id: u32, store: &Store, settings: Settings) -> Node {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let broker = BrokerId(id);
        let options = WalOptions {
            dir: folder.path().join("wal"),
            bytes_max: settings.wal_bytes,
            file_bytes: 4 << 20,
            memory_bytes: settings.memory_bytes,
        };
        let opened = Wal::open(options, Arc::new(RealDisk), CLUSTER, broker, WalGen(100 + u64::from(id)));
        let (wal, recovered) = opened.expect("the folder is new");
        let wal_gen = recovered.identity.wal_gen;
        let has_secret = settings.secret.is_some();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("loopback has a free port");
        let address = listener.local_addr().expect("it is bound").to_string();
        let record = SessionRecord {
            wal_gen,
            grpc: "127.0.0.1:1".to_owned(),
            kafka: "127.0.0.1:2".to_owned(),
            kafka_listeners: std::collections::BTreeMap::new(),
            http: "127.0.0.1:3".to_owned(),
            internal: settings.secret.as_ref().map(|_| address.clone()),
            rack: None,
        };
        let (disk_inc, durable_lsn, ttl) = (Incarnation(0), Lsn(0), Duration::from_secs(600));
        let registration = Registration { broker, record, disk_inc, durable_lsn, ttl };
        let registered = store.register_broker(&registration).await.expect("the store is up");
        let Registered::Session(registered) = registered else { panic!("{registered:?}") };
        let session = SessionHandle::default();
        session.begin(registered, crate::clock::boot());
        let objects = Arc::new(InMemory::new());
        let options = CacheOptions { memory_bytes: 1 << 20, disk: None, ..CacheOptions::default() };
        let tiered = Arc::new(Tiered::new(Cache::open(options, objects).await.expect("sound options"), 1 << 18));
        let (proposals, mut proposed) = unbounded_channel();
        let (rebuilds, asked) = unbounded_channel();
        let links = Links::default();
        // Coordinators are the tests'.
        let (verifications, unverified) = unbounded_channel();
        let services = Services { proposals, rebuilds, verifications, links: links.clone() };
        let mut tasks = JoinSet::new();
        // Assignments come from the tests; what is proposed is not written.
        tasks.spawn(async move {
            while proposed.recv().await.is_some() {}
            Ok(())
        });
        let stop = CancellationToken::new();
        let rebuilder = Rebuilder { store: store.clone(), wal: wal.clone(), tiered };
        let rebuilt = rebuilder.run(asked, stop.clone());
        tasks.spawn(async move {
            rebuilt.await;
            Ok(())
        });
        let mut shards = Vec::new();
        for _ in 0..2 {
            let (sender, task) = shard::spawn(wal.clone(), Arc::new(TracedTails::default()), services.clone());
            tasks.spawn(async move { task.await.expect("a shard does not panic") });
            shards.push(sender);
        }
        let (gate, opened) = watch::channel(!settings.gated);
        let gated = shards.iter().map(|shard| behind(opened.clone(), shard.clone(), &mut tasks)).collect();
        let metrics = Arc::new(Metrics::new(|builder| builder));
        let (peers, runner) = Peers::new(Parts {
            cluster: settings.cluster.to_owned(),
            me: broker,
            secret: settings.secret,
            tls: settings.tls,
            session: session.clone(),
            store: store.clone(),
            wal: wal.clone(),
            links: links.clone(),
            shards: gated,
            shard_of,
            asked: tokio::sync::mpsc::channel(1).0,
            strangers: settings.strangers,
            meter: metrics.meter(),
        });
        tasks.spawn(runner.run());
        if has_secret {
            let served = peers.clone().serve(listener);
            tasks.spawn(async move { served.await.map_err(|error| error.to_string()) });
        }
        let peer = Peer { rid: registered.rid, inc: registered.inc, address: Some(address) };
        let views = BTreeMap::new();
        Node {
            peer,
            peers,
            wal,
            shards,
            unverified,
            links,
            session,
            registration,
            metrics,
            views,
            gate,
            tasks,
            stop,
            _folder: folder,
        }
    }

    /// Has another session in place of the one it has, without having stopped (rule B3). Nobody else has heard of it yet.
    pub(super) async fn register_again(&mut self, store: &Store) {
        let disk_inc = self.peer.inc;
        let registration = Registration { disk_inc, ..self.registration.clone() };
        let registered = store.register_broker(&registration).await.expect("the store is up");
        let Registered::Session(registered) = registered else { panic!("{registered:?}") };
        assert_eq!(registered.rid, self.peer.rid, "it is the same disk");
        for shard in &self.shards {
            assert!(shard.send(ShardMsg::Session(Some(registered.inc))).is_ok(), "the shard runs");
        }
        self.session.begin(registered, crate::clock::boot());
        self.peer.inc = registered.inc;
    }

    pub(super) fn id(&self) -> BrokerId {
        self.peer.rid.broker
    }

    fn live(&self) -> Live {
        Live { rid: self.peer.rid, inc: self.peer.inc }
    }

    pub(super) fn tell(&self, partition: PartitionId, message: ShardMsg) {
        assert!(shard_of(partition, &self.shards).send(message).is_ok(), "the shard runs");
    }

    /// What an empty disk holds.
    fn nothing(&self) -> Recovered {
        Recovered {
            rid: self.peer.rid,
            epoch_seen: LeaderEpoch(0),
            log_start: Offset(0),
            tiered_end: Offset(0),
            hw: Offset(0),
            at_end: EndState::empty(),
            epochs: LeaderEpochs::default(),
            timestamp_type: TimestampType::CreateTime,
            lag_time_ms: 600_000,
            rules: Rules::ALL,
        }
    }

    /// Opens an empty replica.
    pub(super) fn open(&mut self, partition: PartitionId) {
        let replica = Replica::new(self.nothing());
        let manifest = Arc::new(ManifestRoot::new(partition));
        let epochs = Arc::new(LeaderEpochs::default());
        let (visible, aborted) = (replica.visible(), replica.aborted());
        let view = PartitionView { visible, manifest: Arc::clone(&manifest), epochs, aborted };
        let (view, seen) = watch::channel(view);
        self.views.insert(partition, seen);
        let (reset_at, known_end) = (Some(Offset(0)), Offset(0));
        let open = Open { partition, replica, manifest, view, reset_at, known_end };
        self.tell(partition, ShardMsg::Open(Box::new(open)));
        self.tell(partition, ShardMsg::Step { partition, input: Input::Session(Some(self.peer.inc)) });
    }

    /// Closes a replica and opens it again from what the WAL holds, as a broker does.
    pub(super) async fn open_again(&mut self, partition: PartitionId) {
        let (done, closed) = oneshot::channel();
        self.tell(partition, ShardMsg::Close { partition, done });
        let closed = tokio::time::timeout(PATIENCE, closed).await.expect("it is closed").expect("the shard runs");
        let held = self.wal.held(partition).expect("it holds the log");
        let mut at_end = EndState::empty();
        let mut epochs = LeaderEpochs::default();
        for placed in self.log(partition).await {
            epochs.append(placed.batch.leader_epoch(), placed.batch.base_offset());
            at_end.absorb(&placed.batch, placed.append_time);
        }
        let replica =
            Replica::new(Recovered { epoch_seen: held.epoch_seen, hw: closed.hw, at_end, epochs, ..self.nothing() });
        let manifest = Arc::new(ManifestRoot::new(partition));
        let (reset_at, known_end) = (None, held.known_end);
        let open = Open { partition, replica, manifest, view: closed.view, reset_at, known_end };
        self.tell(partition, ShardMsg::Open(Box::new(open)));
        self.tell(partition, ShardMsg::Step { partition, input: Input::Session(Some(self.peer.inc)) });
    }

    /// Room for so much.
    pub(super) fn room(&self, bytes: usize) -> WalPermit {
        loop {
            match self.wal.reserve(bytes) {
                Some(room) => return room,
                // Another thread makes the next file.
                None => std::thread::yield_now(),
            }
        }
    }

    /// Appends a batch; its answer comes when it is durable wherever `acks` says.
    pub(super) fn produce(&self, partition: PartitionId, batch: Batch, acks: Acks) -> Answered {
        self.produce_in(None, partition, batch, acks)
    }

    /// Ends a producer's transaction in the first epoch; the answer comes when the marker is durable.
    pub(super) fn end_transaction(&self, partition: PartitionId, marker: Marker) -> Answered {
        let (reply, answer) = oneshot::channel();
        let (office, room) = (LeaderEpoch(1), self.room(128));
        self.tell(partition, ShardMsg::EndTransaction(Ending { partition, office, marker, first: None, room, reply }));
        answer
    }

    /// Appends a batch of a transaction, or of none.
    pub(super) fn produce_in(
        &self,
        transaction: Option<InTransaction>,
        partition: PartitionId,
        batch: Batch,
        acks: Acks,
    ) -> Answered {
        let (reply, answer) = oneshot::channel();
        let room = self.room(batch.size());
        let memory = Arc::new(Semaphore::new(1)).try_acquire_owned().expect("it is free");
        let spans = ProduceSpans { append: tracing::Span::none(), produce: tracing::Span::none() };
        let latest = batch.max_timestamp();
        self.tell(
            partition,
            ShardMsg::Produce(Produce {
                partition,
                batch,
                latest,
                acks,
                behind: None,
                transaction,
                room,
                memory,
                reply,
                spans,
            }),
        );
        answer
    }

    /// The whole log that the WAL holds.
    pub(super) async fn log(&self, partition: PartitionId) -> Vec<Placed> {
        let Some((start, _)) = self.wal.bounds(partition) else { return Vec::new() };
        self.wal.read_placed(partition, start, Offset(u64::MAX), usize::MAX).await.expect("it can be read")
    }

    /// What readers see here.
    pub(super) fn view(&self, partition: PartitionId) -> ViewReceiver {
        self.views[&partition].clone()
    }

    /// Waits until the high watermark here has reached `hw`.
    pub(super) async fn reaches(&self, partition: PartitionId, hw: Offset) {
        let mut view = self.views[&partition].clone();
        let reached = view.wait_for(|view| view.visible.hw >= hw);
        let reached = tokio::time::timeout(PATIENCE, reached).await;
        reached.unwrap_or_else(|_| panic!("{hw} is reached")).expect("the shard runs");
    }

    /// What this node says of itself as a leader of the first epoch, of a log that nothing is known of yet.
    pub(super) fn head(&self) -> PushHead {
        PushHead {
            epoch: LeaderEpoch(1),
            leader: Leader { rid: self.peer.rid, inc: self.peer.inc },
            unclean_epoch: None,
            hw: Offset(0),
            log_start: Offset(0),
            tiered_end: Offset(0),
        }
    }

    /// Has the link to `peer` push the whole log, as a leader does that has heard of a follower without any.
    pub(super) fn push_from_the_start(&self, partition: PartitionId, peer: &Peer) {
        let head = self.head();
        let cursor = Cursor { to: peer.rid.broker, nonce: 1, from: Offset(0), prev_epoch: None };
        let (_, end) = self.wal.bounds(partition).expect("it is here");
        self.links.send(peer.rid.broker, LinkMsg::Follow { partition, cursor, head, end });
    }

    /// A series of the node's metrics; 0 if it is not there.
    pub(super) fn metric(&self, series: &str) -> u64 {
        let text = self.metrics.text().expect("metrics are text");
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.map_or(0, |value| value.parse::<f64>().expect("a number") as u64)
    }

    /// Lets through what was held back.
    pub(super) fn release(&self) {
        self.gate.send_replace(true);
    }

    /// Ends everything that runs here, as a killed process would: its port refuses connections from then on.
    pub(super) async fn end(mut self) {
        self.stop.cancel();
        self.tasks.shutdown().await;
    }
}

pub(super) type Answered = oneshot::Receiver<Result<millpond_core::replica::Appended, crate::api::ApiError>>;

/// Waits until all are acknowledged.
pub(super) async fn acknowledged(answers: Vec<Answered>) {
    for answer in answers {
        let answer = tokio::time::timeout(PATIENCE, answer).await.expect("it is answered");
        answer.expect("the shard runs").expect("it is appended");
    }
}

/// Makes the nodes know each other.
pub(super) fn meet(nodes: &[&Node]) {
    let peers: BTreeMap<BrokerId, Peer> = nodes.iter().map(|node| (node.id(), node.peer.clone())).collect();
    nodes.iter().for_each(|node| node.peers.set(peers.clone()));
}

/// What the metadata store would say: the first node leads, the first `in_sync` are in sync, all are replicas, those in `alive` live.
pub(super) fn assign(partition: PartitionId, nodes: &[&Node], in_sync: usize, alive: &[&Node], revision: u64) {
    assign_in(LeaderEpoch(1), partition, nodes, in_sync, alive, revision);
}

/// The same, in this epoch.
pub(super) fn assign_in(
    epoch: LeaderEpoch,
    partition: PartitionId,
    nodes: &[&Node],
    in_sync: usize,
    alive: &[&Node],
    revision: u64,
) {
    let leader = Leader { rid: nodes[0].peer.rid, inc: nodes[0].peer.inc };
    let record = PartitionRecord {
        leader: Some(leader),
        epoch,
        isr: nodes[..in_sync].iter().map(|node| node.peer.rid).collect(),
        elr: Vec::new(),
        replicas: nodes.iter().map(|node| node.id()).collect(),
        adding: Vec::new(),
        removing: Vec::new(),
        min_isr: 1,
        unclean_epoch: None,
    };
    let live: Vec<Live> = alive.iter().map(|node| node.live()).collect();
    for node in alive {
        let assignment = Assignment { record: record.clone(), revision, live: live.clone() };
        node.tell(partition, ShardMsg::Step { partition, input: Input::Assigned(assignment) });
    }
}

/// A batch of one record of `bytes`, which depends on `salt`.
pub(super) fn batch(bytes: usize, salt: u64) -> Batch {
    let mut builder = BatchBuilder::new(Codec::None);
    let mut value = format!("{salt} ").into_bytes();
    value.resize(value.len().max(bytes), salt as u8);
    let timestamp = TimestampMs(1_000 + salt.cast_signed());
    builder.push(NewRecord { timestamp, key: None, value: Some(&value), headers: &[] });
    builder.build()
}

/// An authority of a test's own.
pub(super) struct Authority {
    dir: tempfile::TempDir,
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
    pem: String,
}

impl Authority {
    pub(super) fn new() -> Authority {
        let key = rcgen::KeyPair::generate().expect("keys can be made");
        let mut params = rcgen::CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).expect("it signs itself").pem();
        let dir = tempfile::tempdir().expect("a temporary folder");
        Authority { dir, issuer: rcgen::Issuer::new(params, key), pem }
    }

    /// A certificate for `host`, and whom it trusts: this authority.
    pub(super) fn sign(&self, host: &str) -> InternalTls {
        let key = rcgen::KeyPair::generate().expect("keys can be made");
        let params = rcgen::CertificateParams::new(vec![host.to_owned()]).expect("a name");
        let certificate = params.signed_by(&key, &self.issuer).expect("it is signed").pem();
        // Of its own, so that one that is replaced is no other's.
        let dir = tempfile::tempdir_in(self.dir.path()).expect("a temporary folder").keep();
        let file = |name: &str, pem: &str| {
            std::fs::write(dir.join(name), pem).expect("the folder can be written");
            dir.join(name)
        };
        let (ca, certificate) = (file("ca", &self.pem), file("certificate", &certificate));
        let key = file("key", &key.serialize_pem());
        InternalTls { reread_interval: Duration::from_millis(20), ..InternalTls::new(ca, certificate, key) }
    }
}

/// A proxy that ends each connection after a number of bytes that it draws, until it is told to let them be.
pub(super) struct Cutter {
    pub(super) address: String,
    pub(super) cuts: Arc<std::sync::atomic::AtomicU64>,
    gentle: watch::Sender<bool>,
    _tasks: JoinSet<()>,
}

impl Cutter {
    pub(super) async fn start(upstream: String, bytes_max: usize) -> Cutter {
        use std::sync::atomic::{AtomicU64, Ordering};
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("loopback has a free port");
        let address = listener.local_addr().expect("it is bound").to_string();
        let (gentle, seen) = watch::channel(false);
        let cuts = Arc::new(AtomicU64::new(0));
        let mut tasks = JoinSet::new();
        let counted = Arc::clone(&cuts);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (upstream, seen, counted) = (upstream.clone(), seen.clone(), Arc::clone(&counted));
                connections.spawn(async move {
                    let Ok(server) = TcpStream::connect(&upstream).await else { return };
                    let limit = if *seen.borrow() { usize::MAX } else { rand::random_range(1..bytes_max) };
                    if pass(client, server, limit).await {
                        counted.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        Cutter { address, cuts, gentle, _tasks: tasks }
    }

    pub(super) fn let_be(&self) {
        self.gentle.send_replace(true);
    }
}

/// Passes bytes both ways until an end, or until so many came from the client. Whether it was cut.
async fn pass(client: TcpStream, server: TcpStream, limit: usize) -> bool {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let mut limited = from_client.take(limit as u64);
    let there = async {
        let passed = tokio::io::copy(&mut limited, &mut to_server).await.unwrap_or(0);
        let _ = to_server.flush().await;
        passed >= limit as u64
    };
    let back = tokio::io::copy(&mut from_server, &mut to_client);
    tokio::select! {
        cut = there => cut,
        _ = back => false,
    }
}
