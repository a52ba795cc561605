//! Keepers of two brokers over one store in memory: one owner at a time, and nothing acknowledged is lost.

use super::world::World;
use super::{Directory, Groups, Keeper, Parts, Unanswered};
use crate::clock;
use crate::metrics::Metrics;
use crate::session::SessionHandle;
use millpond_core::coordinators::{SHARDS, placement, shard_of};
use millpond_core::groups::{Answer, Commit, CommitOffset, Fetch, Request, Topic, Topics};
use millpond_core::records::SessionRecord;
use millpond_log::{BrokerId, Incarnation, Lsn, Offset, PartitionId, TopicId, WalGen};
use millpond_metadata::clock::ManualClock;
use millpond_metadata::embedded::Embedded;
use millpond_metadata::keys::{Keys, ShardKind};
use millpond_metadata::store::{Registered, Registration, Session, Store};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const TOPIC: TopicId = TopicId(7);

struct Kept {
    store: Store,
    session: Session,
    handle: SessionHandle,
    world: watch::Sender<Arc<World>>,
    directory: Directory<Groups>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

fn store() -> Store {
    let clock = Arc::new(ManualClock::default());
    Store::new(Arc::new(Embedded::in_memory(clock)), Keys::for_cluster("test"))
}

async fn session(store: &Store, broker: u32, disk_inc: Incarnation) -> Session {
    let at = || format!("127.0.0.1:{}", 7000 + broker);
    let registration = Registration {
        broker: BrokerId(broker),
        record: SessionRecord {
            wal_gen: WalGen(100 + u64::from(broker)),
            grpc: at(),
            kafka: at(),
            kafka_listeners: std::collections::BTreeMap::new(),
            http: at(),
            internal: None,
            rack: None,
        },
        disk_inc,
        durable_lsn: Lsn(0),
        ttl: Duration::from_secs(60),
    };
    match store.register_broker(&registration).await {
        Ok(Registered::Session(session)) => session,
        other => panic!("{other:?}"),
    }
}

fn world(hosts: &[u32]) -> Arc<World> {
    let topic = Topic { name: "t".parse().expect("a name"), racks: vec![BTreeSet::new(); 4] };
    Arc::new(World {
        hosts: hosts.iter().map(|host| BrokerId(*host)).collect(),
        topics: Arc::new(Topics::new(1, [(TOPIC, topic)].into())),
        ..World::default()
    })
}

async fn keep(store: &Store, broker: u32, hosts: &[u32]) -> Kept {
    let session = session(store, broker, Incarnation(0)).await;
    let handle = SessionHandle::default();
    handle.begin(session, clock::boot());
    let (world, seen) = watch::channel(world(hosts));
    let (directory, stop) = (Directory::default(), CancellationToken::new());
    let keeper = Keeper::new(Parts {
        me: BrokerId(broker),
        store: store.clone(),
        session: handle.clone(),
        world: seen,
        directory: directory.clone(),
        services: (),
        meters: Metrics::new(|push| push).coordinators,
        started: clock::monotonic(),
    });
    let task = tokio::spawn(keeper.run(stop.clone()));
    Kept { store: store.clone(), session, handle, world, directory, stop, task }
}

impl Kept {
    /// Asks until the shard is served here.
    async fn ask(&self, shard: u32, request: Request) -> Answer {
        loop {
            match self.directory.ask(shard, request.clone()).await {
                Ok(answer) => return answer,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    }

    async fn commit(&self, group: &str, offset: u64) {
        let answer = self.ask(shard_of(group), commit(group, offset)).await;
        assert_eq!(answer, Answer::Commit(Ok(vec![Ok(())])));
    }

    async fn committed(&self, group: &str) -> Option<Offset> {
        let partitions = Some(vec![partition()]);
        let fetch = Fetch { group: group.into(), partitions, ..Fetch::default() };
        match self.ask(shard_of(group), Request::Fetch(fetch)).await {
            Answer::Fetch(Ok(fetched)) => fetched[0].1.as_ref().expect("no transaction").as_ref().map(|at| at.offset),
            other => panic!("{other:?}"),
        }
    }

    async fn serves(&self, count: usize) {
        while self.directory.serving() != count {
            tokio::task::yield_now().await;
        }
    }
}

fn partition() -> PartitionId {
    PartitionId { topic: TOPIC, index: 1 }
}

fn commit(group: &str, offset: u64) -> Request {
    let offset = CommitOffset { offset: Offset(offset), leader_epoch: None, metadata: String::new() };
    Request::Commit(Commit {
        group: group.into(),
        epoch: -1,
        offsets: vec![(partition(), offset)],
        ..Commit::default()
    })
}

#[tokio::test]
async fn shards_are_where_they_belong_and_move_with_what_was_acknowledged() {
    let store = store();
    let one = keep(&store, 1, &[1]).await;
    one.serves(SHARDS as usize).await;
    for n in 0..40 {
        one.commit(&format!("g{n}"), n).await;
    }
    let two = keep(&store, 2, &[1, 2]).await;
    one.world.send_replace(world(&[1, 2]));
    two.serves(SHARDS as usize / 2).await;
    one.serves(SHARDS as usize / 2).await;
    let placed = placement(&[BrokerId(1), BrokerId(2)].into());
    for n in 0..40 {
        let group = format!("g{n}");
        let shard = shard_of(&group);
        let (at, other) = if placed[shard as usize] == BrokerId(1) { (&one, &two) } else { (&two, &one) };
        assert_eq!(at.committed(&group).await, Some(Offset(n)), "{group}");
        let elsewhere = other.directory.ask(shard, commit(&group, 99)).await;
        assert_eq!(elsewhere, Err(Unanswered::NotHere));
    }
    // Whoever stops gives its shards up before its session ends.
    one.stop.cancel();
    one.task.await.expect("ended");
    two.world.send_replace(world(&[2]));
    two.serves(SHARDS as usize).await;
    for n in 0..40 {
        assert_eq!(two.committed(&format!("g{n}")).await, Some(Offset(n)));
    }
}

/// Rules B3, K4, O3.
#[tokio::test]
async fn a_lost_session_drops_all_shards_and_what_was_acknowledged_stands() {
    let store = store();
    let (one, two) = (keep(&store, 1, &[1]).await, keep(&store, 2, &[1]).await);
    one.serves(SHARDS as usize).await;
    one.commit("g", 5).await;
    // The other takes nothing while the session stands, whatever it sees of who is alive.
    two.world.send_replace(world(&[2]));
    one.commit("g", 6).await;
    assert_eq!(two.directory.ask(shard_of("g"), commit("g", 1)).await, Err(Unanswered::NotHere));
    one.store.leave(&one.session).await.expect("up");
    two.serves(SHARDS as usize).await;
    assert_eq!(two.committed("g").await, Some(Offset(6)));
    two.commit("g", 7).await;
    // The first has not heard that its session is gone: what it is told it cannot make durable, and says nothing.
    let late = one.directory.ask(shard_of("g"), commit("g", 100)).await;
    assert_eq!(late, Err(Unanswered::Lost), "rule K4");
    one.handle.end();
    one.serves(0).await;
    assert_eq!(two.committed("g").await, Some(Offset(7)));
    let owner = two.store.shard_owner(ShardKind::Group, shard_of("g")).await.expect("up").expect("taken");
    assert_eq!(owner.value.owner.map(|owner| owner.rid.broker), Some(BrokerId(2)));
    // Under a new session it may own shards again.
    let again = session(&store, 1, one.session.inc).await;
    one.handle.begin(again, clock::boot());
    two.world.send_replace(world(&[1]));
    one.serves(SHARDS as usize).await;
    assert_eq!(one.committed("g").await, Some(Offset(7)));
}

/// Rule B5: after a silence of the store that is longer than 0.8 TTL, nothing is answered.
#[tokio::test]
async fn a_stale_broker_answers_nothing() {
    let store = store();
    let one = keep(&store, 1, &[1]).await;
    one.serves(SHARDS as usize).await;
    one.commit("g", 5).await;
    let long_ago = clock::boot().saturating_sub(Duration::from_secs(50));
    one.handle.begin(one.session, long_ago);
    assert_eq!(one.directory.ask(shard_of("g"), commit("g", 6)).await, Err(Unanswered::Lost));
    one.handle.renew(clock::boot());
    assert_eq!(one.committed("g").await, Some(Offset(5)), "nothing was done");
}
