//! What controllers and whoever ends another's session rely on, over a real etcd of each version.

use super::{VERSIONS, cluster, connect};
use millpond_core::controller::{Controller, Limits, Member, Vacancy, View};
use millpond_core::election::elect;
use millpond_core::placement::{Host, Load, Placer};
use millpond_core::records::{Leader, SessionRecord};
use millpond_core::replica::Live;
use millpond_core::rules::Rules;
use millpond_log::{BrokerId, Incarnation, Lsn, Rid, TopicId, WalGen};
use millpond_metadata::keys::Keys;
use millpond_metadata::kv::{Kv, Revision};
use millpond_metadata::store::{
    CreateOutcome, Election, Image, NewTopic, Outcome, Placement, Registered, Registration, Session, Store, Versioned,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Rules E1a, B3, K4, E8.
#[tokio::test]
async fn controllers_and_ended_sessions() {
    for tool in VERSIONS {
        let Some(cluster) = cluster("controllers_and_ended_sessions", tool, 1).await else { continue };
        let kv: Arc<dyn Kv> = Arc::new(connect(&cluster.url()).await);
        crate::control::promises(&kv).await;
    }
}

/// Rules O1, O3, K4.
#[tokio::test]
async fn shards_and_their_owners() {
    for tool in VERSIONS {
        let Some(cluster) = cluster("shards_and_their_owners", tool, 1).await else { continue };
        let kv: Arc<dyn Kv> = Arc::new(connect(&cluster.url()).await);
        crate::shards::promises(&kv).await;
    }
}

/// Partitions that a cluster is measured with.
const PARTITIONS: u32 = 10_000;

/// Transactions that are sent at the same time.
const LANES: usize = 4;

/// What a controller does when a broker of three dies that leads a third of 10 000 partitions. It prints how long that takes.
#[tokio::test]
async fn ten_thousand_partitions_have_leaders_after_a_death() {
    let test = "ten_thousand_partitions_have_leaders_after_a_death";
    for tool in VERSIONS {
        let Some(cluster) = cluster(test, tool, 1).await else { continue };
        let store = Store::new(Arc::new(connect(&cluster.url()).await), Keys::for_cluster("wide"));
        let mut sessions = Vec::new();
        for broker in 0..3 {
            sessions.push(register(&store, broker).await);
        }
        let created = Instant::now();
        create(&store, &sessions).await;
        let created = created.elapsed();
        let control = match store.take_control(&sessions[0]).await {
            Ok(Outcome::Committed { revision }) => revision,
            other => panic!("{other:?}"),
        };
        let dead = sessions[2];
        store.end_session(&sessions[0], dead.rid.broker, dead.inc).await.expect("up");
        let loaded = Instant::now();
        let image = store.load().await.expect("up");
        let loaded = loaded.elapsed();

        let decided = Instant::now();
        let view = view(&image);
        let vacancies = view.vacancies();
        let election = |vacancy: &Vacancy| {
            let seen = &image.partitions[&vacancy.partition];
            let next =
                elect(&seen.value, &view.live(&seen.value), &BTreeMap::new(), Rules::ALL).expect("two of three live");
            Election::of(vacancy.partition, seen, next)
        };
        let elections: Vec<Election> = vacancies.iter().map(election).collect();
        let decided = decided.elapsed();
        assert!(elections.len().abs_diff(PARTITIONS as usize / 3) <= 1, "{}", elections.len());
        let carried = Instant::now();
        let lanes = elections.chunks(elections.len().div_ceil(LANES));
        let lanes = lanes.map(|lane| store.elect(&sessions[0], Some(control), lane));
        let outcomes: Vec<_> = futures::future::join_all(lanes).await.into_iter().flatten().collect();
        let carried = carried.elapsed();
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Ok(Outcome::Committed { .. }))));

        let image = store.load().await.expect("up");
        let view = self::view(&image);
        assert_eq!(view.vacancies(), []);
        let due = Instant::now();
        let mut controller = Controller::new(Limits::default(), 0);
        let duties = controller.due(0, &view);
        let due = due.elapsed();
        assert_eq!(duties, [], "nothing is moved in a hurry");
        let rate = elections.len() as f64 / carried.as_secs_f64();
        eprintln!(
            "{tool:?}: {PARTITIONS} partitions created in {created:?}, loaded in {loaded:?}; {} elections decided in {decided:?}, \
             carried out in {carried:?} ({rate:.0}/s); all other duties decided in {due:?}",
            elections.len()
        );
    }
}

async fn register(store: &Store, broker: u32) -> Session {
    let at = |port: u32| format!("127.0.0.1:{}", port + broker);
    let wal_gen = WalGen(100 + u64::from(broker));
    let (grpc, kafka, http, kafka_listeners) = (at(7400), at(9092), at(7480), BTreeMap::new());
    let record = SessionRecord { wal_gen, grpc, kafka, kafka_listeners, http, internal: None, rack: None };
    let (broker, disk_inc, durable_lsn) = (BrokerId(broker), Incarnation(0), Lsn(0));
    let ttl = Duration::from_secs(60);
    match store.register_broker(&Registration { broker, record, disk_inc, durable_lsn, ttl }).await {
        Ok(Registered::Session(session)) => session,
        other => panic!("{other:?}"),
    }
}

async fn create(store: &Store, sessions: &[Session]) {
    let host = |session: &Session| Host { broker: session.rid.broker, rack: None, load: Load::default() };
    let mut placer = Placer::new(&sessions.iter().map(host).collect::<Vec<_>>(), [], 1);
    let live = |broker: &BrokerId| {
        let session = sessions.iter().find(|session| session.rid.broker == *broker).expect("a host");
        Leader { rid: session.rid, inc: session.inc }
    };
    let placement = |_| {
        let replicas = placer.place(3).expect("three brokers");
        let lives: Vec<Leader> = replicas.iter().map(live).collect();
        let (isr, leader) = (lives.iter().map(|live| live.rid).collect(), Some(lives[0]));
        Placement { replicas, isr, leader, min_isr: 2, absent: Vec::new() }
    };
    let topic = NewTopic {
        name: "wide".parse().expect("a name"),
        id: TopicId(7),
        buried: Revision::ABSENT,
        replication_factor: 3,
        config: BTreeMap::new(),
        placements: (0..PARTITIONS).map(placement).collect(),
    };
    let created = store.create_topic(&sessions[0], &topic).await;
    assert!(matches!(created, Ok(CreateOutcome::Created { .. })), "{created:?}");
}

fn view(image: &Image) -> View<'_> {
    let member = |(broker, seen): (&BrokerId, &Versioned<SessionRecord>)| {
        let rid = Rid { broker: *broker, wal_gen: seen.value.wal_gen };
        (*broker, Member { live: Live { rid, inc: Incarnation(seen.revision.0) }, rack: None })
    };
    let members = image.sessions.iter().map(member).collect();
    let partitions = image.partitions.iter().map(|(id, seen)| (*id, &seen.value)).collect();
    View { members, partitions, ..View::default() }
}
