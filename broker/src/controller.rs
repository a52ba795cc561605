//! Acts as controller while this broker has control: elects, moves and balances as `core::controller` says (rules E1 to E9, I8).
//!
//! It decides nothing and trusts no image: each transaction compares what it was decided on, the broker's session and its control. An
//! unreachable store only pauses it.

use crate::alive::live_session;
use crate::broker::Broker;
use crate::carry::{Hand, Stopped};
use crate::clock;
use crate::elections::Vacancy;
use millpond_core::controller::{self, Controller, Duty, Limits, Member, Progress, Unfinished, View};
use millpond_core::records::{PartitionRecord, TopicState};
use millpond_core::replica::Transfer;
use millpond_log::{BrokerId, PartitionId, TopicId};
use millpond_metadata::kv::Revision;
use millpond_metadata::store::{Follow, Image, Outcome, RecordChange, Session, Store, StoreError, Versioned};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

/// Pause between tries while the metadata store cannot be used, or does not say what became of a transaction.
const RETRY: Duration = Duration::from_millis(200);

/// Pause after a term that ended because the metadata cannot be read: the first, and the longest as they grow. Nobody else reads them
/// better, so that haste only costs the store.
const UNREADABLE: Duration = Duration::from_secs(1);
const UNREADABLE_MAX: Duration = Duration::from_secs(60);

/// How often it is looked whether the time for something has come. What happens in the cluster is acted on at once.
const LOOK: Duration = Duration::from_secs(1);

/// How often the image is loaded anew and compared (rule Z2).
const RELOAD: Duration = Duration::from_secs(60);

/// Waits for control, acts, and waits again, until `shutdown`.
pub(crate) async fn run(broker: Broker, limits: Limits, shutdown: CancellationToken) {
    let store = broker.inner().store.clone();
    let mut pause = UNREADABLE;
    loop {
        let (session, control) = tokio::select! {
            () = shutdown.cancelled() => return,
            taken = take(&broker, &store) => taken,
        };
        tracing::info!(revision = %control, "this broker acts as controller");
        let began = clock::monotonic();
        let over = tokio::select! {
            () = shutdown.cancelled() => {
                // If it fails the key goes with the lease.
                let _ = store.release_control(&session, control).await;
                return;
            }
            lost = store.control_lost(control) => lost.err().map_or(Stopped::Fenced, Stopped::Store),
            lost = store.session_ended(&session) => lost.err().map_or(Stopped::Fenced, Stopped::Store),
            over = act(&broker, limits, session, control) => over,
        };
        tracing::info!(reason = %over, "this broker acts as controller no longer");
        if clock::monotonic().duration_since(began) > UNREADABLE_MAX {
            pause = UNREADABLE;
        }
        if let Stopped::Store(error) = over {
            tracing::error!(%error, ?pause, "control is given up for a while: the metadata cannot be worked with");
            // If it fails the key is found in place, or goes with the lease.
            let _ = store.release_control(&session, control).await;
            broker.inner().alive.set_controller(None);
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            pause = (pause * 2).min(UNREADABLE_MAX);
        }
    }
}

/// Returns with control once nobody else has it, and notes meanwhile who has.
async fn take(broker: &Broker, store: &Store) -> (Session, Revision) {
    let alive = &broker.inner().alive;
    loop {
        let holder = store.acting_controller().await;
        alive.set_controller(holder.as_ref().ok().copied().flatten().map(|holder| holder.rid.broker));
        let me = broker.session_handle().get();
        let taken = match (holder, me) {
            (Err(error), _) => Err(error),
            // Somebody acts; or this broker, which did not hear that it took control.
            (Ok(Some(holder)), me) if me.is_none_or(|me| me.rid != holder.rid || me.inc != holder.inc) => {
                match store.control_ended(&holder).await {
                    Ok(()) => continue,
                    Err(error) => Err(error),
                }
            }
            (Ok(_), Some(session)) => match store.take_control(&session).await {
                Ok(Outcome::Committed { revision }) => {
                    alive.set_controller(Some(session.rid.broker));
                    return (session, revision);
                }
                // Another broker was faster.
                Ok(Outcome::Conflict) => continue,
                outcome => outcome.map(drop),
            },
            (Ok(_), None) => Ok(()),
        };
        match taken {
            // Rule K5: taken again, it is found in place.
            Ok(()) | Err(StoreError::Unavailable(_)) => {}
            Err(error) => tracing::error!(%error, "control cannot be taken"),
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// One term of office.
async fn act(broker: &Broker, limits: Limits, session: Session, control: Revision) -> Stopped {
    let follow = loop {
        match broker.inner().store.follow().await {
            Ok(follow) => break follow,
            Err(StoreError::Unavailable(_)) => tokio::time::sleep(RETRY).await,
            Err(error) => return error.into(),
        }
    };
    let started = clock::monotonic();
    let controller = Controller::new(limits, 0);
    let hand = Hand { session, control: Some(control) };
    let term = Term {
        broker,
        hand,
        follow,
        controller,
        wishes: JoinSet::new(),
        unfinished: Unfinished::default(),
        finishing: JoinSet::new(),
        dead: Unfinished::default(),
        burying: JoinSet::new(),
        written: BTreeMap::new(),
        started,
    };
    term.run().await
}

struct Term<'a> {
    broker: &'a Broker,
    hand: Hand,
    follow: Follow,
    controller: Controller,
    /// Calls to leaders, each bounded in time.
    wishes: JoinSet<bool>,
    unfinished: Unfinished,
    /// Topics that are taken back. Any of it may end with the term: the next one goes on.
    finishing: JoinSet<()>,
    /// Deleted topics of which only the tombstone is left, and their burials; at most one round.
    dead: Unfinished,
    burying: JoinSet<()>,
    /// What was written here and is not in the image yet.
    written: BTreeMap<PartitionId, Versioned<PartitionRecord>>,
    started: Instant,
}

impl Term<'_> {
    async fn run(mut self) -> Stopped {
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut reload = tokio::time::interval_at(tokio::time::Instant::now() + RELOAD, RELOAD);
        reload.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            match self.attend().await {
                Ok(()) => {}
                Err(Stopped::Store(StoreError::Unavailable(reason))) => {
                    tracing::warn!(reason, "the controller waits for the metadata store");
                    tokio::time::sleep(RETRY).await;
                }
                Err(over) => return over,
            }
            let changed = tokio::select! {
                changed = self.follow.changed() => changed.map(drop),
                _ = look.tick() => Ok(()),
                _ = reload.tick() => self.follow.reload().await.map(drop),
            };
            if let Err(error) = changed {
                if !matches!(error, StoreError::Unavailable(_)) {
                    tracing::error!(%error, "the metadata cannot be followed");
                }
                tokio::time::sleep(RETRY).await;
            }
            self.take_in();
        }
    }

    /// What has come meanwhile is taken in before anything is decided.
    fn take_in(&mut self) {
        while let Some(Ok(_)) = futures::FutureExt::now_or_never(self.follow.changed()) {}
        let image = self.follow.image();
        self.written.retain(|id, written| {
            // A partition that is gone has no newer record.
            image.partitions.get(id).is_some_and(|seen| seen.revision < written.revision)
        });
    }

    fn now_ms(&self) -> u64 {
        let since = clock::monotonic().duration_since(self.started);
        u64::try_from(since.as_millis()).expect("a broker runs for less than an age")
    }

    /// Does what there is to do now.
    async fn attend(&mut self) -> Result<(), Stopped> {
        self.elect_vacant().await?;
        let now_ms = self.now_ms();
        self.take_back_unfinished(now_ms);
        self.bury_dead(now_ms);
        let duties = {
            let view = view(self.follow.image(), &self.written);
            self.controller.due(now_ms, &view)
        };
        let within_ms = self.broker.inner().config.controller.transfer_ms / 2;
        let mut changes = Vec::new();
        let mut wishes: BTreeMap<BrokerId, Vec<(PartitionId, Transfer)>> = BTreeMap::new();
        for duty in duties {
            match duty {
                Duty::Change { partition, next } => changes.extend(self.change(partition, next)),
                Duty::Transfer { partition, from, epoch, to } => {
                    wishes.entry(from.rid.broker).or_default().push((partition, Transfer { epoch, to, within_ms }));
                }
            }
        }
        for (leader, wishes) in wishes {
            let peers = self.broker.inner().peers.clone();
            // Whoever does not hear is asked again when its time is over.
            self.wishes.spawn(async move { peers.wish(leader, &wishes).await });
        }
        while self.wishes.try_join_next().is_some() {}
        for (partition, written) in self.broker.carry_out(self.hand, changes).await? {
            self.written.insert(partition, written);
        }
        Ok(())
    }

    /// Takes back what somebody began and left: topics that are neither there nor gone.
    fn take_back_unfinished(&mut self, now_ms: u64) {
        let after_ms = self.broker.inner().config.controller.finish_after_ms;
        for topic in self.unfinished.due(now_ms, after_ms, unfinished(self.follow.image())) {
            let (broker, session) = (self.broker.clone(), self.hand.session);
            self.finishing.spawn(async move { broker.take_back(&session, topic).await });
        }
        while self.finishing.try_join_next().is_some() {}
    }

    /// Removes the tombstones that nobody needs any more (rule K6). One that has to stand is looked at again after as long.
    fn bury_dead(&mut self, now_ms: u64) {
        while self.burying.try_join_next().is_some() {}
        if !self.burying.is_empty() {
            return;
        }
        let after_ms = self.broker.inner().config.controller.bury_after_ms;
        let due = self.dead.due(now_ms, after_ms, dead(self.follow.image()));
        if !due.is_empty() {
            let (broker, session) = (self.broker.clone(), self.hand.session);
            self.burying.spawn(async move { broker.bury(&session, &due).await });
        }
    }

    /// The record as it is known here: in the image, or newer.
    fn seen(&self, partition: PartitionId) -> Option<&Versioned<PartitionRecord>> {
        self.written.get(&partition).or_else(|| self.follow.image().partitions.get(&partition))
    }

    fn change(&self, partition: PartitionId, next: PartitionRecord) -> Option<RecordChange> {
        let seen = self.seen(partition)?;
        Some(RecordChange { partition, base: seen.revision, epoch: seen.value.epoch, next, joining: None })
    }

    /// Elects leaders wherever there is none and may be one (rules E1 to E5).
    async fn elect_vacant(&mut self) -> Result<(), Stopped> {
        let vacancies: Vec<Vacancy> = {
            let view = view(self.follow.image(), &self.written);
            let vacancy = |found: controller::Vacancy| {
                let seen = self.seen(found.partition)?.clone();
                let live = view.live(&seen.value);
                Some(Vacancy { partition: found.partition, seen, live, candidates: found.candidates })
            };
            view.vacancies().into_iter().filter_map(vacancy).collect()
        };
        if vacancies.is_empty() {
            return Ok(());
        }
        let elected = self.broker.fill(self.hand, vacancies).await?;
        if !elected.is_empty() {
            self.written.extend(elected);
            let now_ms = self.now_ms();
            self.controller.note_elections(now_ms);
        }
        Ok(())
    }
}

/// Topics that are being created or deleted.
fn unfinished(image: &Image) -> impl Iterator<Item = (TopicId, Progress)> + '_ {
    let topics = image.topics.iter().filter(|(_, seen)| seen.value.state != TopicState::Active);
    topics.map(|(topic, seen)| {
        let all = PartitionId { topic: *topic, index: 0 }..=PartitionId { topic: *topic, index: u32::MAX };
        (*topic, Progress { revision: seen.revision.0, partitions: image.partitions.range(all).count() })
    })
}

/// Topics of which nothing but a tombstone is left.
fn dead(image: &Image) -> impl Iterator<Item = (TopicId, Progress)> + '_ {
    let dead = image.tombstones.iter().filter(|(topic, _)| !image.topics.contains_key(topic));
    dead.map(|(topic, tombstone)| (*topic, Progress { revision: tombstone.revision.0, partitions: 0 }))
}

/// The cluster as it is known here.
fn view<'a>(image: &'a Image, written: &'a BTreeMap<PartitionId, Versioned<PartitionRecord>>) -> View<'a> {
    let member = |(broker, seen): (&BrokerId, &Versioned<_>)| {
        let session: &Versioned<millpond_core::records::SessionRecord> = seen;
        (*broker, Member { live: live_session(*broker, session), rack: session.value.rack.clone() })
    };
    let served = |id: &PartitionId| {
        let topic = image.topics.get(&id.topic);
        topic.is_some_and(|topic| topic.value.state == TopicState::Active && id.index < topic.value.partitions)
    };
    let partitions = image.partitions.iter().filter(|(id, _)| served(id));
    let newest = |(id, seen): (&PartitionId, &'a Versioned<PartitionRecord>)| {
        let seen = written.get(id).filter(|written| written.revision > seen.revision).unwrap_or(seen);
        (*id, &seen.value)
    };
    View {
        disks: image.disks.iter().map(|(id, disk)| (*id, disk.value.wal_gen)).collect(),
        members: image.sessions.iter().map(member).collect(),
        leaving: image.drains.keys().copied().collect(),
        draining: image.drains.iter().filter(|(_, drain)| drain.value.replicas).map(|(id, _)| *id).collect(),
        partitions: partitions.map(newest).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::faulted::{Fault, Faulted};
    use crate::server::{Components, start};
    use crate::wal::disk::RealDisk;
    use millpond_metadata::embedded::Embedded;
    use millpond_metadata::keys::{Key, Keys};
    use millpond_metadata::kv::{BoxFuture, Kv, KvError, Range, Ranged, Txn, TxnOutcome, Write};
    use object_store::memory::InMemory;
    use std::net::SocketAddr;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Nothing that the test waits for takes so long, unless it never comes.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Counts the reads, and how often control was taken.
    #[derive(Default)]
    struct Counted {
        reads: AtomicUsize,
        takes: AtomicUsize,
    }

    impl Fault for Counted {
        fn range<'a>(&'a self, inner: &'a Embedded, range: Range) -> BoxFuture<'a, Result<Ranged, KvError>> {
            self.reads.fetch_add(1, Ordering::Relaxed);
            inner.range(range)
        }

        fn txn<'a>(&'a self, inner: &'a Embedded, txn: Txn) -> BoxFuture<'a, Result<TxnOutcome, KvError>> {
            let takes = |write: &Write| matches!(write, Write::Put { key, .. } if key.ends_with(b"/controller"));
            let takes = usize::from(txn.then.iter().any(takes));
            self.takes.fetch_add(takes, Ordering::Relaxed);
            inner.txn(txn)
        }
    }

    async fn until_controlled(store: &Store, controlled: bool) {
        let told = async {
            let mut look = tokio::time::interval(Duration::from_millis(5));
            while store.controller().await.expect("it is up").is_some() != controlled {
                look.tick().await;
            }
        };
        tokio::time::timeout(PATIENCE, told).await.expect("it comes to that");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_controller_that_cannot_read_a_record_gives_control_up_and_takes_its_time() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let mut config = Config::local(dir.path().to_owned());
        for listener in [&mut config.grpc, &mut config.kafka[0].listener, &mut config.http] {
            listener.bind = SocketAddr::from(([127, 0, 0, 1], 0));
        }
        (config.wal_file_bytes, config.wal_bytes, config.cache_disk_bytes) = (4 << 20, 64 << 20, 0);
        let (faulted, keys) = (Faulted::new(Counted::default()), Keys::for_cluster("tests"));
        let metadata: Arc<dyn Kv> = Arc::<Faulted<Counted>>::clone(&faulted);
        let store = Store::new(Arc::clone(&metadata), keys.clone());
        let (objects, disk) = (Arc::new(InMemory::new()), Arc::new(RealDisk));
        let components = Components { metadata, keys: keys.clone(), objects, disk };
        let stop = CancellationToken::new();
        let running = start(config, components, stop.clone()).await.expect("the broker comes up");
        until_controlled(&store, true).await;

        // A record of a version that nobody knows, and a new term.
        let unread = keys.encode(&Key::Topic(TopicId(9)));
        let control = keys.encode(&Key::Controller);
        let newer = Write::put(unread.clone(), "{\"v\":2,\"record\":{}}");
        let txn = Txn { then: vec![newer, Write::delete(&control)], ..Txn::default() };
        faulted.txn(txn).await.expect("it is up");
        let taken_again = async {
            let mut look = tokio::time::interval(Duration::from_millis(5));
            while faulted.fault.takes.load(Ordering::Relaxed) < 2 {
                look.tick().await;
            }
        };
        tokio::time::timeout(PATIENCE, taken_again).await.expect("it takes control again");
        until_controlled(&store, false).await;
        let before = faulted.fault.reads.load(Ordering::Relaxed);
        let window = tokio::time::timeout(Duration::from_secs(1), std::future::pending::<()>()).await;
        assert!(window.is_err());
        let reads = faulted.fault.reads.load(Ordering::Relaxed) - before;
        assert!(reads < 200, "{reads} reads in a second");

        let mend = Txn { then: vec![Write::delete(&unread)], ..Txn::default() };
        faulted.txn(mend).await.expect("it is up");
        until_controlled(&store, true).await;
        stop.cancel();
        running.ended().await.expect("it ends cleanly");
    }
}
