//! Keeps this broker the owner of the shards that belong on it, and of no others (rules B3, O3). Level by level: looks, reconciles, waits.

use super::Directory;
use super::lane::Lane;
use super::machine::Machine;
use super::world::World;
use crate::metrics::CoordinatorMeters;
use crate::session::SessionHandle;
use millpond_core::coordinators::{SHARDS, placement};
use millpond_log::{BrokerId, Incarnation};
use millpond_metadata::store::{Session, Store};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How often it is looked whether all is as it is to be, besides what is heard.
const LOOK: Duration = Duration::from_secs(1);

/// Shards that are read back at the same time: a failover is not to crowd the metadata store.
const LOADS_AT_ONCE: usize = 4;

/// What a keeper works with.
pub(crate) struct Parts<M: Machine> {
    pub(crate) me: BrokerId,
    pub(crate) store: Store,
    pub(crate) session: SessionHandle,
    pub(crate) world: watch::Receiver<Arc<World>>,
    pub(crate) directory: Directory<M>,
    /// What its carriers work with.
    pub(crate) services: M::Services,
    pub(crate) meters: CoordinatorMeters,
    /// What the steady clock of machines counts from.
    pub(crate) started: Instant,
}

/// The lanes of one kind.
pub(crate) struct Keeper<M: Machine> {
    parts: Parts<M>,
    lanes: BTreeMap<u32, Alive>,
    tasks: JoinSet<u32>,
    loads: Arc<Semaphore>,
}

/// A lane that has not ended. There is never a second one of its shard.
struct Alive {
    inc: Incarnation,
    give_up: CancellationToken,
    lost: CancellationToken,
}

impl<M: Machine> Keeper<M> {
    pub(crate) fn new(parts: Parts<M>) -> Keeper<M> {
        Keeper { parts, lanes: BTreeMap::new(), tasks: JoinSet::new(), loads: Arc::new(Semaphore::new(LOADS_AT_ONCE)) }
    }

    /// Keeps shards until `shutdown`, and gives them up then.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        let mut sessions = self.parts.session.changes();
        let mut world = self.parts.world.clone();
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            self.reconcile();
            tokio::select! {
                () = shutdown.cancelled() => break,
                Ok(()) = sessions.changed() => {}
                Ok(()) = world.changed() => {}
                Some(ended) = self.tasks.join_next() => {
                    self.lanes.remove(&ended.expect("a lane does not panic, and nobody ends it"));
                }
                _ = look.tick() => {}
            }
        }
        self.lanes.values().for_each(|lane| lane.give_up.cancel());
        while self.tasks.join_next().await.is_some() {}
    }

    fn reconcile(&mut self) {
        let session = self.parts.session.get();
        let inc = session.map(|session| session.inc);
        // Rule B3. Whoever asks hears at once that the shard is not here.
        for (shard, lane) in &self.lanes {
            if Some(lane.inc) != inc && !lane.lost.is_cancelled() {
                lane.lost.cancel();
                self.parts.directory.set(*shard, None);
            }
        }
        let Some(session) = session else { return };
        let world = Arc::clone(&self.parts.world.borrow());
        let placed = placement(&world.hosts);
        for shard in 0..SHARDS {
            let mine = placed.get(shard as usize) == Some(&self.parts.me);
            // Then nobody else may take it as long as the session stands (rule O3).
            let owned = || world.owners.get(&(M::KIND, shard)).is_some_and(|(owner, _)| *owner == self.parts.me);
            match self.lanes.get(&shard) {
                Some(lane) if !mine => lane.give_up.cancel(),
                None if mine => self.start(shard, session, Lane::run),
                None if owned() => self.start(shard, session, Lane::give_back),
                _ => {}
            }
        }
    }

    fn start<F>(&mut self, shard: u32, session: Session, live: impl FnOnce(Lane<M>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let alive = Alive { inc: session.inc, give_up: CancellationToken::new(), lost: CancellationToken::new() };
        let lane = Lane {
            shard,
            store: self.parts.store.clone(),
            session,
            handle: self.parts.session.clone(),
            world: self.parts.world.clone(),
            directory: self.parts.directory.clone(),
            services: self.parts.services.clone(),
            meters: self.parts.meters.clone(),
            loads: Arc::clone(&self.loads),
            started: self.parts.started,
            give_up: alive.give_up.clone(),
            lost: alive.lost.clone(),
        };
        self.lanes.insert(shard, alive);
        let living = live(lane);
        self.tasks.spawn(async move {
            living.await;
            shard
        });
    }
}
