//! Keepers of two brokers over one store in memory: one owner at a time, and nothing acknowledged is lost.

mod unsettled;

use super::world::World;
use super::{Directory, Groups, Keeper, Parts, Unanswered};
use crate::clock;
use crate::metrics::Metrics;
use crate::session::SessionHandle;
use millpond_core::coordinators::{SHARDS, placement, shard_of};
use millpond_core::groups::{
    Answer, Beat, Commit, CommitOffset, Fetch, GroupLimits, Heartbeat, Request, Topic, Topics, TxnEnd,
};
use millpond_core::records::SessionRecord;
use millpond_log::{
    BrokerId, CoordinatorEpoch, ErrorCode, Incarnation, Lsn, Offset, PartitionId, ProducerEpoch, ProducerId, TopicId,
    WalGen,
};
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

/// The same with a thousand topics more, and groups that keep to `limits`.
fn wide(hosts: &[u32], limits: GroupLimits) -> Arc<World> {
    let topic = |n: u128| {
        let topic = Topic { name: name(n).parse().expect("a name"), racks: vec![BTreeSet::new(); 1] };
        (TopicId(1_000 + n), topic)
    };
    let topics = Arc::new(Topics::new(2, (0..1_000).map(topic).collect()));
    Arc::new(World { topics, limits, ..World::clone(&world(hosts)) })
}

fn name(n: u128) -> String {
    format!("topic-{n}")
}

async fn keep(store: &Store, broker: u32, hosts: &[u32]) -> Kept {
    keep_in(store, broker, world(hosts)).await
}

async fn keep_in(store: &Store, broker: u32, world: Arc<World>) -> Kept {
    let session = session(store, broker, Incarnation(0)).await;
    let handle = SessionHandle::default();
    handle.begin(session, clock::boot());
    let (world, seen) = watch::channel(world);
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

    async fn beat(&self, heartbeat: Heartbeat) -> Result<Beat, ErrorCode> {
        match self.ask(shard_of(&heartbeat.group), Request::Heartbeat(heartbeat)).await {
            Answer::Heartbeat(beat) => beat,
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

/// Rules O1, X5: that a transaction has nothing here to be ended is for the owner of the shard to say, since its coordinator takes the answer
/// for the end. It is proven by a commit, though there is nothing to change.
#[tokio::test]
async fn only_the_owner_of_a_shard_says_that_a_transaction_has_nothing_there() {
    let store = store();
    let (one, two) = (keep(&store, 1, &[1]).await, keep(&store, 2, &[1]).await);
    one.serves(SHARDS as usize).await;
    let (producer, epoch, coordinator) = (ProducerId(9), ProducerEpoch(0), CoordinatorEpoch(1));
    let end = || Request::EndTxn(TxnEnd { producer, epoch, raised: false, coordinator, commit: true });
    assert_eq!(one.ask(shard_of("g"), end()).await, Answer::EndTxn);
    two.world.send_replace(world(&[2]));
    one.store.leave(&one.session).await.expect("up");
    two.serves(SHARDS as usize).await;
    // The first has not heard that its session is gone. Offsets may wait at the second.
    assert_eq!(one.directory.ask(shard_of("g"), end()).await, Err(Unanswered::Lost), "rule K4");
    assert_eq!(two.ask(shard_of("g"), end()).await, Answer::EndTxn);
}

/// A member of this group that subscribes to all the topics of `wide`.
fn joins_all(group: &str) -> Heartbeat {
    Heartbeat {
        group: group.into(),
        member: "m".into(),
        rebalance_timeout_ms: Some(60_000),
        topics: Some((0..1_000).map(name).collect()),
        owned: Some(BTreeSet::new()),
        ..Heartbeat::default()
    }
}

/// Rule Z5: what a member owns may be more than a value of the metadata store holds.
#[tokio::test]
async fn a_member_of_a_thousand_topics_is_kept_over_a_failover() {
    let store = store();
    let one = keep_in(&store, 1, wide(&[1], GroupLimits::default())).await;
    let told = one.beat(joins_all("g")).await.expect("it joins");
    let owned = told.assignment.expect("it is told");
    assert_eq!(owned.len(), 1_000);
    one.store.leave(&one.session).await.expect("up");
    one.handle.end();
    let two = keep_in(&store, 2, wide(&[2], GroupLimits::default())).await;
    let all = Heartbeat { epoch: told.epoch, owned: Some(owned.clone()), ..joins_all("g") };
    let told = two.beat(all).await.expect("it is a member still");
    assert_eq!(told.assignment, Some(owned));
}

/// Rule Z5: a request of which more would have to be persisted than a value holds is refused by itself. Its shard goes on, with all that
/// was acknowledged.
#[tokio::test]
async fn a_request_that_no_commit_takes_is_refused_and_nobody_else_is_held_up() {
    let store = store();
    let unbounded = GroupLimits { member_bytes_max: usize::MAX, ..GroupLimits::default() };
    let one = keep_in(&store, 1, wide(&[1], unbounded)).await;
    let other =
        (0..).map(|n| format!("other-{n}")).find(|name| shard_of(name) == shard_of("g")).expect("there are many");
    let small = Heartbeat { topics: Some([name(1)].into()), ..joins_all(&other) };
    let told = one.beat(small).await.expect("it joins");
    for _ in 0..3 {
        assert_eq!(one.beat(joins_all("g")).await, Err(ErrorCode::MessageTooLarge));
        let alive =
            Heartbeat { group: other.as_str().into(), member: "m".into(), epoch: told.epoch, ..Heartbeat::default() };
        assert_eq!(one.beat(alive).await.expect("it is a member still").epoch, told.epoch);
    }
    match one.ask(shard_of("g"), Request::List).await {
        Answer::List(listed) => assert_eq!(listed.len(), 1, "nothing is left of what was refused"),
        other => panic!("{other:?}"),
    }
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
