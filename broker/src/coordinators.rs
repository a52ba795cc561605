//! Coordinators: the shards this broker owns, and how a request finds the one it is for (rules B3, B5, O1, O3).
//!
//! A shard is a lane: one task, one pure machine, one transaction under way at most. Nothing here decides what a machine decides.

mod groups;
mod keeper;
mod lane;
mod machine;
mod queue;
#[cfg(test)]
mod tests;
mod transactions;
mod world;

use crate::alive;
use crate::api::{ApiError, CurrentLeader};
use crate::broker::Broker;
use machine::{Machine, Message};
use millpond_core::coordinators::shard_of;
use millpond_core::groups::{Answer, GroupLimits, Listed, Request, Topics};
use millpond_log::{BrokerId, ErrorCode, LeaderEpoch, TopicId};
use millpond_metadata::keys::ShardKind;
use millpond_metadata::kv::Revision;
use millpond_metadata::store::Image;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::{mpsc, oneshot, watch};
use world::World;

pub(crate) use groups::Groups;
pub(crate) use keeper::{Keeper, Parts};
pub(crate) use transactions::{Ask, Place, Told, Transactions, Way, Ways};

/// What the broker knows of coordinators. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Coordinators {
    world: Arc<watch::Sender<Arc<World>>>,
    pub(crate) groups: Directory<Groups>,
    pub(crate) transactions: Directory<Transactions>,
}

impl Coordinators {
    /// Knows nothing yet but what groups keep to here.
    pub(crate) fn new(limits: GroupLimits) -> Coordinators {
        let coordinators = Coordinators::default();
        coordinators.world.send_replace(Arc::new(World { limits, ..World::default() }));
        coordinators
    }

    /// Takes in what the metadata image says of brokers, owners, and the topics that may have changed.
    pub(crate) fn note(&self, image: &Image, touched: &BTreeSet<TopicId>) {
        self.world.send_if_modified(|world| {
            let next = world.next(image, touched);
            next.is_some_and(|next| {
                *world = Arc::new(next);
                true
            })
        });
    }

    /// Every tombstone that was laid up to here has been noted, and no topic of these is served any more.
    pub(crate) fn note_deletions(&self, up_to: Revision) {
        self.world.send_modify(|world| *world = Arc::new(World { deleted_up_to: up_to, ..(**world).clone() }));
    }

    /// What is known, as it changes.
    pub(crate) fn world(&self) -> watch::Receiver<Arc<World>> {
        self.world.subscribe()
    }

    /// The broker that owns a shard, as far as is known. A hint.
    pub(crate) fn owner(&self, kind: ShardKind, shard: u32) -> Option<(BrokerId, u32)> {
        self.world.borrow().owners.get(&(kind, shard)).copied()
    }
}

/// The lanes of one kind on this broker, by shard.
pub(crate) struct Directory<M: Machine> {
    lanes: Arc<RwLock<BTreeMap<u32, Standing<M>>>>,
}

impl<M: Machine> Clone for Directory<M> {
    fn clone(&self) -> Directory<M> {
        Directory { lanes: Arc::clone(&self.lanes) }
    }
}

impl<M: Machine> Default for Directory<M> {
    fn default() -> Directory<M> {
        Directory { lanes: Arc::default() }
    }
}

/// Where a shard stands on this broker.
enum Standing<M: Machine> {
    /// It was taken and is being read back.
    Loading,
    /// It takes requests, in this epoch of its owner.
    Serving { epoch: u32, lane: mpsc::Sender<Message<M>> },
}

/// What the coordinator shards on this broker know, and which shards these are: who asks all brokers knows by that whether one that moved
/// meanwhile was passed over.
pub(crate) struct Here<T> {
    pub(crate) shards: Vec<u32>,
    pub(crate) found: Vec<T>,
}

/// Why a request was not answered by the shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// This broker does not own it.
    NotHere,
    /// It was taken and is being read back.
    Loading,
    /// It was lost with the request: that may have taken effect.
    Lost,
}

impl<M: Machine> Directory<M> {
    /// Asks the shard, and waits until the answer is durable. Waits too while the shard has much to do.
    pub(crate) async fn ask(&self, shard: u32, request: M::Request) -> Result<M::Answer, Unanswered> {
        let (_, lane) = self.lane(shard)?;
        let (reply, answer) = oneshot::channel();
        // A lane that is gone dropped what it had not taken.
        lane.send(Message { request, reply }).await.map_err(|_| Unanswered::NotHere)?;
        answer.await.map_err(|_| Unanswered::Lost)
    }

    /// Asks the shard if it is served in this epoch, without waiting: the request has its place behind all that came before once this returns. `Loading` also where the
    /// shard has too much to do.
    pub(crate) fn begin_in(
        &self,
        shard: u32,
        epoch: u32,
        request: M::Request,
    ) -> Result<oneshot::Receiver<M::Answer>, Unanswered> {
        let (serving, lane) = self.lane(shard)?;
        if serving != epoch {
            return Err(Unanswered::NotHere);
        }
        let (reply, answer) = oneshot::channel();
        match lane.try_send(Message { request, reply }) {
            Ok(()) => Ok(answer),
            Err(mpsc::error::TrySendError::Full(_)) => Err(Unanswered::Loading),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(Unanswered::NotHere),
        }
    }

    fn lane(&self, shard: u32) -> Result<(u32, mpsc::Sender<Message<M>>), Unanswered> {
        match self.lanes.read().unwrap_or_else(PoisonError::into_inner).get(&shard) {
            None => Err(Unanswered::NotHere),
            Some(Standing::Loading) => Err(Unanswered::Loading),
            Some(Standing::Serving { epoch, lane }) => Ok((*epoch, lane.clone())),
        }
    }

    /// The shards that are here, those being read back too.
    pub(crate) fn shards(&self) -> Vec<u32> {
        self.lanes.read().unwrap_or_else(PoisonError::into_inner).keys().copied().collect()
    }

    /// How many shards take requests here.
    pub(crate) fn serving(&self) -> usize {
        let lanes = self.lanes.read().unwrap_or_else(PoisonError::into_inner);
        lanes.values().filter(|standing| matches!(standing, Standing::Serving { .. })).count()
    }

    fn set(&self, shard: u32, standing: Option<Standing<M>>) {
        let mut lanes = self.lanes.write().unwrap_or_else(PoisonError::into_inner);
        match standing {
            Some(standing) => drop(lanes.insert(shard, standing)),
            None => drop(lanes.remove(&shard)),
        }
    }
}

impl Broker {
    /// Asks the coordinator of a group.
    ///
    /// # Errors
    /// `NOT_COORDINATOR` names the owner where it is known. `COORDINATOR_LOAD_IN_PROGRESS`: come back soon.
    pub(crate) async fn ask_group(&self, group: &str, request: Request) -> Result<Answer, ApiError> {
        self.ask_groups(shard_of(group), request).await
    }

    /// Asks a shard of groups.
    ///
    /// # Errors
    /// As `ask_group`.
    pub(crate) async fn ask_groups(&self, shard: u32, request: Request) -> Result<Answer, ApiError> {
        // Rule B5: another broker may own the shard by now.
        if !self.session_handle().is_fresh() {
            let message = "this broker has not heard from the metadata store for too long to coordinate; ask again";
            return Err(ApiError::new(ErrorCode::NotCoordinator, message));
        }
        let coordinators = &self.inner().coordinators;
        coordinators.groups.ask(shard, request).await.map_err(|unanswered| match unanswered {
            Unanswered::NotHere => self.not_coordinator(ShardKind::Group, shard),
            Unanswered::Lost => self.not_coordinator(ShardKind::Group, shard).in_doubt(),
            Unanswered::Loading => ApiError::new(
                ErrorCode::CoordinatorLoadInProgress,
                "the groups of this coordinator are being read back; try again",
            ),
        })
    }

    /// The groups that this broker coordinates.
    ///
    /// # Errors
    /// `COORDINATOR_LOAD_IN_PROGRESS`: some are being read back. As `ask_group`, if a shard is lost meanwhile.
    pub(crate) async fn list_groups_here(&self) -> Result<Here<Listed>, ApiError> {
        let (shards, mut found) = (self.inner().coordinators.groups.shards(), Vec::new());
        for shard in &shards {
            match self.ask_groups(*shard, Request::List).await? {
                Answer::List(listed) => found.extend(listed),
                other => unreachable!("a list is answered by a list, not by {other:?}"),
            }
        }
        found.sort_by(|one: &Listed, other| one.group.cmp(&other.group));
        Ok(Here { shards, found })
    }

    /// The broker that coordinates a group, and in which epoch it owns the shard.
    ///
    /// # Errors
    /// `COORDINATOR_NOT_AVAILABLE`: nobody owns the shard, as far as is known.
    pub(crate) fn group_coordinator(&self, group: &str) -> Result<CurrentLeader, ApiError> {
        self.coordinator(ShardKind::Group, shard_of(group)).ok_or_else(|| {
            let message = "nobody coordinates the group yet; try again";
            ApiError::new(ErrorCode::CoordinatorNotAvailable, message)
        })
    }

    /// The topics that are served, by name and by id, as coordinators know them.
    pub(crate) fn group_topics(&self) -> Arc<Topics> {
        Arc::clone(&self.inner().coordinators.world.borrow().topics)
    }

    /// The owner of a shard, as far as is known, and how it is reached.
    pub(crate) fn coordinator(&self, kind: ShardKind, shard: u32) -> Option<CurrentLeader> {
        let (owner, epoch) = self.inner().coordinators.owner(kind, shard)?;
        let sessions = self.inner().alive.sessions();
        let broker = alive::describe(owner, &sessions.get(&owner)?.value);
        Some(CurrentLeader { epoch: LeaderEpoch(epoch), broker })
    }

    /// The refusal of a request for a shard that is not here.
    pub(crate) fn not_coordinator(&self, kind: ShardKind, shard: u32) -> ApiError {
        let owner = self.coordinator(kind, shard);
        let message = match &owner {
            Some(owner) => format!("broker {} at {} coordinates it", owner.broker.id, owner.broker.grpc),
            None => "nobody coordinates it yet; try again".to_owned(),
        };
        ApiError { leader: owner.map(Box::new), ..ApiError::new(ErrorCode::NotCoordinator, message) }
    }
}
