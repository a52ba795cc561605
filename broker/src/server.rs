//! Brings a broker up and takes it down: doors, recovery, office, tasks. It owns every task; none is silently gone.

use crate::alive::Alive;
use crate::api::BrokerDescription;
use crate::broker::{Broker, Inner};
use crate::bucket::{Bucket, BucketError};
use crate::budget::{Budget, Doors};
use crate::catalog::{Catalog, PartitionHandle};
use crate::compactor::Compactor;
use crate::config::Config;
use crate::controller;
use crate::coordinators::{Coordinators, Groups, Keeper, Parts, Transactions};
use crate::fleet::Fleet;
use crate::front::{grpc, http, kafka};
use crate::gc::Collector;
use crate::levels;
use crate::listeners::Listeners;
use crate::loss::DiskStory;
use crate::manifests::Manifests;
use crate::mark::Mark;
use crate::marks::LastCalls;
use crate::metered::Metered;
use crate::metrics::Metrics;
use crate::objects::Counted;
use crate::office::{self, OfficeError, Registrar};
use crate::partitions::links::Links;
use crate::partitions::messages::{Services, ShardSender};
use crate::partitions::shard;
use crate::peers::strangers::{STRANGERS_MAX, Strangers};
use crate::peers::{self, Peers};
use crate::producer_ids::ProducerIds;
use crate::proposals;
use crate::rebuild::Rebuilder;
use crate::session::SessionHandle;
use crate::start_error::StartError;
use crate::telemetry::{OtlpError, TracedTails};
use crate::tier::commit::Committer;
use crate::tier::upload::Uploader;
use crate::tier::{TierHandle, TierState, Tierer};
use crate::tiered::Tiered;
use crate::transactions::{BrokerWays, Desk, Verifier};
use crate::wal::disk::Disk;
use crate::wal::{Recovered, Wal, WalError, WalOptions};
use futures::future::join;
use millpond_cache::{Cache, CacheOptions, DiskOptions};
use millpond_core::records::SessionRecord;
use millpond_log::{Rid, WalGen};
use millpond_metadata::keys::Keys;
use millpond_metadata::kv::Kv;
use millpond_metadata::store::{Store, StoreError};
use object_store::ObjectStore;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{channel, unbounded_channel};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How long a broker that stops waits for the requests under way. Longer than the doors take to give up on a client.
const DRAIN: Duration = Duration::from_secs(12);

/// How long a broker that stops waits for whoever reads its metrics.
const HTTP_DRAIN: Duration = Duration::from_secs(1);

/// How long a broker that starts waits to hear whose the bucket is.
const BUCKET_WAIT_MAX: Duration = Duration::from_secs(5);

/// What other brokers ask about transactions that waits; more waits with those who ask.
const ASKED_MAX: usize = 256;

/// What a broker is made of besides its settings.
#[derive(Clone)]
pub struct Components {
    /// The metadata store.
    pub metadata: Arc<dyn Kv>,
    /// Spells the cluster's keys in it.
    pub keys: Keys,
    /// The bucket, at the cluster's prefix.
    pub objects: Arc<dyn ObjectStore>,
    /// The local disk.
    pub disk: Arc<dyn Disk>,
}

/// A broker that serves.
pub struct Running {
    /// Its handle.
    pub broker: Broker,
    /// Where it listens and what it advertises.
    pub addresses: BrokerDescription,
    tasks: JoinSet<Result<(), String>>,
    shards: JoinSet<Result<(), String>>,
    http: JoinSet<Result<(), String>>,
    http_end: CancellationToken,
    metrics: Arc<Metrics>,
    /// Somebody wants it to end.
    stop: CancellationToken,
    /// It ends.
    shutdown: CancellationToken,
    wal: Wal,
}

impl From<OfficeError> for StartError {
    fn from(error: OfficeError) -> StartError {
        StartError::Office(error.to_string())
    }
}

/// Brings a broker up: returns when it is recovered, registered and serving. Ends when `stop` is cancelled, or by itself
/// when its WAL fails (rule W2): see `Running::ended`.
///
/// # Errors
/// Whatever keeps it from serving; nothing was changed that a later start would miss.
pub async fn start(config: Config, components: Components, stop: CancellationToken) -> Result<Running, StartError> {
    // Leaderships are handed over before anything ends.
    let shutdown = CancellationToken::new();
    let listeners = Listeners::open(&config).await?;
    let addresses = BrokerDescription {
        id: config.id,
        rack: config.rack.clone(),
        grpc: listeners.grpc.address.clone(),
        kafka: listeners.first_kafka(),
        kafka_listeners: listeners.named_kafka(),
        http: listeners.http.address.clone(),
    };
    let Listeners { grpc: grpc_door, kafka: kafka_doors, http: http_door, internal, rereader } = listeners;
    let mut tasks = JoinSet::new();
    let metrics = Arc::new(open_metrics(&config)?);
    let session = SessionHandle::default();
    let open = Arc::new(AtomicBool::new(false));
    let readiness = http::Readiness { session: session.clone(), open: Arc::clone(&open), shutdown: stop.clone() };
    readiness.register(&metrics);
    let connections = Doors::new(config.connections_max as usize, STRANGERS_MAX);
    // Health answers while the WAL is still being recovered (case O5).
    let mut http_task = JoinSet::new();
    let http_end = CancellationToken::new();
    let (http_listener, http_tls, places) = (http_door.listener, http_door.tls, connections.http.clone());
    let served = http::serve(http_listener, http_tls, places, readiness, Arc::clone(&metrics), http_end.clone());
    http_task.spawn(async move { served.await.map_err(|error| format!("the HTTP door failed: {error}")) });

    let metadata = Metered::new(Arc::clone(&components.metadata), metrics.metadata.clone());
    let store = Store::new(Arc::new(metadata), components.keys.clone());
    let mark = Mark::new(Arc::clone(&components.disk), config.data_dir.clone());
    check_mark(&mark, &store, &config, &components.disk).await?;
    let cluster_id = store.init_cluster(&fresh_cluster_id()).await?.value.id;
    let (wal, recovered) = open_wal(&config, &components, cluster_id.clone()).await?;
    report_damage(&recovered);
    wal.measure(metrics.wal.clone());
    let objects: Arc<dyn ObjectStore> = Arc::new(Counted::new(components.objects, metrics.objects.clone()));
    let bucket = Bucket::new(Arc::clone(&objects), store.clone(), &cluster_id);
    check_bucket(&bucket).await?;
    let mut registrar = Registrar {
        store: store.clone(),
        wal: wal.clone(),
        broker: config.id,
        record: SessionRecord {
            wal_gen: recovered.identity.wal_gen,
            grpc: addresses.grpc.clone(),
            kafka: addresses.kafka.clone(),
            kafka_listeners: addresses.kafka_listeners.clone(),
            http: addresses.http.clone(),
            internal: internal.as_ref().map(|open| open.address.clone()),
            rack: config.rack.clone(),
        },
        ttl: config.lease_ttl,
        note_interval: config.disk_note_interval,
        mark,
    };
    let (disk_inc, stale) = registrar.examine(recovered.identity.incarnation).await?;
    let story = DiskStory::new(&recovered, stale);
    let gc_epoch = Arc::new(AtomicU64::new(store.gc_epoch().await?.value));
    let tiered = Arc::new(open_cache(&config, Arc::clone(&objects)).await?);
    let traced = Arc::new(TracedTails::default());
    let mut shard_tasks = JoinSet::new();
    let (proposals, proposed) = unbounded_channel();
    let (rebuilds, asked) = unbounded_channel();
    let links = Links::default();
    let (verifications, unverified) = unbounded_channel();
    let (questions, desk) = channel(ASKED_MAX);
    let services = Services { proposals, rebuilds, verifications, links: links.clone() };
    let shards = spawn_shards(&wal, &traced, &services, &mut shard_tasks);
    drop(services);
    let (peers, runner) = Peers::new(peers::Parts {
        cluster: cluster_id.clone(),
        me: config.id,
        secret: config.cluster_secret.clone(),
        tls: config.internal_tls.clone(),
        session: session.clone(),
        store: store.clone(),
        wal: wal.clone(),
        links,
        shards: shards.clone(),
        shard_of: crate::replicas::shard_of,
        asked: questions,
        strangers: Strangers::new(connections.strangers.clone()),
        meter: metrics.meter(),
    });
    // Like the shards, links go on until the doors have answered what is under way.
    shard_tasks.spawn(runner.run());
    if let Some(open) = internal {
        let served = peers.clone().serve(open.listener);
        shard_tasks.spawn(async move { served.await.map_err(|error| format!("the internal door failed: {error}")) });
    }
    let rebuilder = Rebuilder { store: store.clone(), wal: wal.clone(), tiered: Arc::clone(&tiered) };
    let until = shutdown.clone();
    tasks.spawn(async move {
        rebuilder.run(asked, until).await;
        Ok(())
    });
    let (tier, tier_inbox) = TierHandle::new();
    let alive = Alive::default();
    let broker = Broker::new(Inner {
        cluster_id: cluster_id.clone(),
        rid: Rid { broker: config.id, wal_gen: registrar.record.wal_gen },
        session: session.clone(),
        alive: alive.clone(),
        store: store.clone(),
        catalog: Catalog::default(),
        coordinators: Coordinators::new(config.groups),
        last_calls: LastCalls::default(),
        shards,
        peers,
        wal: wal.clone(),
        tier: tier.clone(),
        tiered: Arc::clone(&tiered),
        producer_ids: ProducerIds::default(),
        produce_memory: Arc::new(Semaphore::new(config.produce_memory_bytes as usize)),
        budget: Budget::new(config.request_memory_bytes as usize, config.answer_memory_bytes as usize),
        connections,
        topic_changes: tokio::sync::Mutex::new(()),
        manifest_reads: tokio::sync::Mutex::new(()),
        manifests: Manifests::default(),
        metrics: Arc::clone(&metrics),
        config: config.clone(),
    });
    let carried = proposals::run(store.clone(), session.clone(), alive, proposed, shutdown.clone());
    let mut fleet = Fleet::start(broker.clone(), &recovered, story).await?;
    // However long that took: others count on whoever has a session (rule B1).
    let registration = registrar.register(disk_inc).await?;
    let registered = registration.session;
    broker.take_office(&registration);
    fleet.assign_all();
    let office = office::run(broker.clone(), registrar, registration, shutdown.clone());
    tasks.spawn(async move { office.await.map_err(|error| error.to_string()) });
    fleet.catch_up(registered.inc).await;
    let uploader = Uploader {
        store: Arc::clone(&objects),
        bucket: bucket.clone(),
        wal: wal.clone(),
        cluster: cluster_id,
        broker: config.id,
        incarnation: registered.inc,
    };
    let compactor = Compactor {
        tier,
        tiered: Arc::clone(&tiered),
        uploader: uploader.clone(),
        gc_epoch: Arc::clone(&gc_epoch),
        meters: metrics.compaction.clone(),
        interval: config.tier_interval,
        looks: BTreeMap::new(),
    };
    let tierer = Tierer {
        inbox: tier_inbox,
        wal: wal.clone(),
        tiered: Arc::clone(&tiered),
        uploader,
        committer: Committer { store: store.clone(), session: session.clone(), gc_epoch: Arc::clone(&gc_epoch) },
        meters: metrics.tier.clone(),
        traced,
        interval: config.tier_interval,
        started: crate::clock::monotonic(),
        state: TierState::default(),
    };
    let collector = Collector {
        store,
        session,
        objects,
        bucket,
        tiered,
        gc_epoch,
        meters: metrics.tier.clone(),
        period: config.gc_period,
    };
    let until = shutdown.clone();
    tasks.spawn(async move {
        fleet.run(until).await;
        Ok(())
    });
    // Elects, also where this broker is the only one.
    let controls = controller::run(broker.clone(), config.controller, shutdown.clone());
    tasks.spawn(async move {
        controls.await;
        Ok(())
    });
    let (groups, transactions) = (broker.keep_groups(), broker.keep_transactions());
    let until = shutdown.clone();
    tasks.spawn(async move {
        join(groups.run(until.clone()), transactions.run(until)).await;
        Ok(())
    });
    // Like the shards, which wait for what these say, they go on until the doors have answered what is under way.
    let verifier = Verifier { broker: broker.clone(), inbox: unverified };
    let desk = Desk { broker: broker.clone(), inbox: desk };
    shard_tasks.spawn(async move {
        join(verifier.run(), desk.run()).await;
        Ok(())
    });
    broker.wait_for_proof().await;
    // The doors open only now: what a client is told is proven.
    let until = shutdown.clone();
    tasks.spawn(async move {
        tierer.run(until).await;
        Ok(())
    });
    let until = shutdown.clone();
    tasks.spawn(async move {
        compactor.run(until).await;
        Ok(())
    });
    let until = shutdown.clone();
    tasks.spawn(async move {
        collector.run(until).await;
        Ok(())
    });
    tasks.spawn(async move {
        carried.await;
        Ok(())
    });
    let served = grpc::serve(broker.clone(), grpc_door.listener, grpc_door.tls, shutdown.clone().cancelled_owned());
    tasks.spawn(async move { served.await.map_err(|error| format!("the gRPC door failed: {error}")) });
    for (name, open) in kafka_doors {
        let served = kafka::serve(broker.clone(), open.entrance(&name), shutdown.clone().cancelled_owned());
        tasks.spawn(async move {
            served.await;
            Ok(())
        });
    }
    if let Some(rereader) = rereader {
        let until = shutdown.clone();
        tasks.spawn(async move {
            rereader.run(until).await;
            Ok(())
        });
    }
    levels::register(&broker);
    open.store(true, Ordering::Release);
    tracing::info!(broker = %config.id, grpc = addresses.grpc, kafka = addresses.kafka, http = addresses.http, "serving");
    Ok(Running {
        broker,
        addresses,
        tasks,
        shards: shard_tasks,
        http: http_task,
        http_end,
        metrics,
        stop,
        shutdown,
        wal,
    })
}

impl Running {
    /// Returns when the broker has ended and all its tasks with it.
    ///
    /// # Errors
    /// Why it ended by itself. Then the process has to end too: what was acknowledged is on its disk.
    pub async fn ended(mut self) -> Result<(), String> {
        let outcome = tokio::select! {
            biased;
            () = self.stop.cancelled() => Ok(()),
            Some(ended) = self.tasks.join_next() => Err(unasked(ended)),
            Some(ended) = self.shards.join_next() => Err(unasked(ended)),
            Some(ended) = self.http.join_next() => Err(unasked(ended)),
        };
        match &outcome {
            // Clients find the new leaders while this one still answers (rule B7).
            Ok(()) => self.broker.hand_everything_over().await,
            Err(reason) => tracing::error!(reason, "the broker ends"),
        }
        self.shutdown.cancel();
        // The doors answer what is under way, for which the shards have to go on meanwhile.
        let drained = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(DRAIN, drained).await.is_err() {
            tracing::warn!("requests under way are cut off");
            self.tasks.shutdown().await;
        }
        self.shards.shutdown().await;
        self.broker.tiered().cache().close().await;
        close_metrics(Arc::clone(&self.metrics)).await;
        // Health is answered as long as there is anything to say.
        self.http_end.cancel();
        if tokio::time::timeout(HTTP_DRAIN, self.http.join_next()).await.is_err() {
            self.http.shutdown().await;
        }
        if outcome.is_ok() {
            let wal = self.wal.clone();
            drop(self.broker);
            let closed = tokio::task::spawn_blocking(move || wal.close()).await;
            closed.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        }
        outcome
    }
}

async fn close_metrics(metrics: Arc<Metrics>) {
    let closed = tokio::task::spawn_blocking(move || metrics.close()).await;
    if let Ok(Err(error)) = closed {
        tracing::warn!(%error, "the last metrics could not be pushed");
    }
}

/// Why a task ended that should have gone on.
fn unasked(ended: Result<Result<(), String>, tokio::task::JoinError>) -> String {
    match ended {
        Ok(Ok(())) => "a task ended although nobody asked it to".to_owned(),
        Ok(Err(reason)) => reason,
        Err(panic) => format!("a task panicked: {panic}"),
    }
}

fn fresh_cluster_id() -> String {
    uuid::Uuid::new_v4().to_string()
}

fn open_metrics(config: &Config) -> Result<Metrics, OtlpError> {
    let Some(otlp) = &config.otlp else { return Ok(Metrics::new(|builder| builder)) };
    let exporter = otlp.metric_exporter()?;
    Ok(Metrics::new(|builder| otlp.push(builder, exporter)))
}

async fn open_cache(config: &Config, objects: Arc<dyn ObjectStore>) -> Result<Tiered, StartError> {
    let disk = DiskOptions { dir: config.data_dir.join("cache"), bytes: config.cache_disk_bytes };
    let options = CacheOptions { memory_bytes: config.cache_memory_bytes, disk: Some(disk), ..CacheOptions::default() };
    // What fits the window of pages that nobody has asked for yet.
    let warm_bytes_max = config.cache_memory_bytes / 4;
    Ok(Tiered::new(Cache::open(options, objects).await?, warm_bytes_max))
}

/// Rule K7, before a restored store is founded anew. That the directory is another process's is said first.
async fn check_mark(mark: &Mark, store: &Store, config: &Config, disk: &Arc<dyn Disk>) -> Result<(), StartError> {
    let position = store.kv().position().await.map_err(StoreError::from)?;
    let Err(refused) = mark.check(position).await else { return Ok(()) };
    let (dir, disk) = (config.data_dir.join("wal"), Arc::clone(disk));
    let looked = tokio::task::spawn_blocking(move || Wal::is_locked(&dir, disk.as_ref()).then_some(dir)).await;
    match looked {
        Ok(Some(dir)) => Err(WalError::Locked { dir }.into()),
        _ => Err(refused.into()),
    }
}

/// Rule G5, before this broker acts. While the bucket cannot be reached the broker comes up all the same (case S1); it writes nothing there
/// before it has been told.
async fn check_bucket(bucket: &Bucket) -> Result<(), StartError> {
    let unreachable = match tokio::time::timeout(BUCKET_WAIT_MAX, bucket.check()).await {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(BucketError::Unreachable(error))) => error.to_string(),
        Ok(Err(BucketError::Metadata(error))) => error.to_string(),
        Ok(Err(refused)) => return Err(refused.into()),
        Err(_) => "no answer in time".to_owned(),
    };
    tracing::warn!(
        error = unreachable,
        "the bucket cannot be asked whose it is now; nothing is uploaded before it was"
    );
    Ok(())
}

async fn open_wal(config: &Config, components: &Components, cluster: String) -> Result<(Wal, Recovered), StartError> {
    let options = WalOptions {
        dir: config.data_dir.join("wal"),
        bytes_max: config.wal_bytes,
        file_bytes: config.wal_file_bytes,
        memory_bytes: config.tail_memory_bytes,
    };
    let (disk, broker, fresh) = (Arc::clone(&components.disk), config.id, WalGen(rand::random_range(1..=u64::MAX)));
    let opened = tokio::task::spawn_blocking(move || Wal::open(options, disk, &cluster, broker, fresh)).await;
    Ok(opened.map_err(|panic| StartError::Recovery(panic.to_string()))??)
}

fn report_damage(recovered: &Recovered) {
    for damage in &recovered.damage {
        tracing::error!(
            ?damage,
            "synced data in the WAL cannot be read back; the disk is another replica from now on (rules W4, B4)"
        );
    }
}

/// One shard per core.
fn spawn_shards(
    wal: &Wal,
    traced: &Arc<TracedTails>,
    services: &Services,
    tasks: &mut JoinSet<Result<(), String>>,
) -> Vec<ShardSender> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (0..cores)
        .map(|_| {
            let (sender, task) = shard::spawn(wal.clone(), Arc::clone(traced), services.clone());
            tasks.spawn(async move { task.await.map_err(|panic| panic.to_string())? });
            sender
        })
        .collect()
}

/// Longest wait for the proof of log ends before the doors open: a hundred syncs of a slow disk.
const PROOF_WAIT_MAX: Duration = Duration::from_secs(5);

impl Broker {
    /// Whoever keeps the shards of groups.
    fn keep_groups(&self) -> Keeper<Groups> {
        let inner = self.inner();
        Keeper::new(Parts {
            me: self.id(),
            store: inner.store.clone(),
            session: inner.session.clone(),
            world: inner.coordinators.world(),
            directory: inner.coordinators.groups.clone(),
            services: (),
            meters: inner.metrics.coordinators.clone(),
            started: crate::clock::monotonic(),
        })
    }

    /// Whoever keeps the shards of transactional ids.
    fn keep_transactions(&self) -> Keeper<Transactions> {
        let inner = self.inner();
        Keeper::new(Parts {
            me: self.id(),
            store: inner.store.clone(),
            session: inner.session.clone(),
            world: inner.coordinators.world(),
            directory: inner.coordinators.transactions.clone(),
            services: Arc::new(BrokerWays(self.clone())),
            meters: inner.metrics.coordinators.clone(),
            started: crate::clock::monotonic(),
        })
    }

    /// Waits until the log ends of the partitions that this broker leads alone are proven (rule R11): that takes a sync of the
    /// WAL, for the new epochs. Where others are in sync, it takes them; and where too few are, it may never come, so the wait is
    /// bounded: clients are told to try again then.
    async fn wait_for_proof(&self) {
        // Whether it was long enough is what clients find out.
        let _ = tokio::time::timeout(PROOF_WAIT_MAX, self.proofs()).await;
    }

    async fn proofs(&self) {
        for topic in self.inner().catalog.tables().topics() {
            let alone = |handle: &&PartitionHandle| handle.placement.isr == [self.id()] && handle.loss.is_none();
            for local in topic.partitions.iter().filter(alone).filter_map(|handle| handle.local.as_ref()) {
                // A view ends with its shard, and the broker with that.
                let _ = local.view.clone().wait_for(|view| view.visible.bounds_proven()).await;
            }
        }
    }
}
