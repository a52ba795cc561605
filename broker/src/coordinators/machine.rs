//! What a lane asks of a machine: the seam between the runtime and what is coordinated. A machine does no I/O but its own loading;
//! what it wants done is carried out beside it, once that is durable.

use super::world::World;
use millpond_core::groups::{Now, Token};
use millpond_metadata::keys::ShardKind;
use millpond_metadata::store::{HeldShard, ShardWrite, Store, StoreError};
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

/// A pure state machine of one shard. What it changes is in its memory at once; whoever cannot persist it drops the machine.
pub(crate) trait Machine: Sized + Send + Sync + 'static {
    /// What it is asked.
    type Request: fmt::Debug + Send + 'static;
    /// What it answers.
    type Answer: fmt::Debug + Send + 'static;
    /// What it wants done.
    type Effect: fmt::Debug + Send + 'static;
    /// Does it, for one owner of the shard.
    type Carrier: Carry<Self::Effect>;
    /// What that takes.
    type Services: Clone + Send + Sync + 'static;

    /// What it coordinates.
    const KIND: ShardKind;

    /// Reads it back (rule O3). What times out counts from when it has been read, however long that takes: `now` tells it then.
    fn load(
        store: &Store,
        held: &HeldShard,
        now: impl Fn() -> Now + Send,
        world: &World,
    ) -> impl Future<Output = Result<Loaded<Self>, LoadError>> + Send;

    /// Begins to carry out what it will want done.
    fn carrier(office: Office<Self>, services: &Self::Services) -> Self::Carrier;

    /// The answer that refuses a request of which something would have to be persisted that no commit takes; none for what cannot be
    /// refused.
    fn too_large(&self, request: &Self::Request) -> Option<Self::Answer>;

    /// Takes a request. Its answer is in this step, or in a later one.
    fn step(&mut self, now: Now, token: Token, request: Self::Request) -> MadeBy<Self>;

    /// Does what is due.
    fn tick(&mut self, now: Now) -> MadeBy<Self>;

    /// When `tick` is to be called, in milliseconds of the steady clock.
    fn next_deadline(&self) -> Option<u64>;

    /// Takes in what has changed around it.
    fn look_around(&mut self, now: Now, world: &World) -> MadeBy<Self>;
}

/// What a step of a machine made.
pub(crate) type MadeBy<M> = Made<<M as Machine>::Answer, <M as Machine>::Effect>;

/// Carries out what a machine wants done. Dropped with the shard, it stops.
pub(crate) trait Carry<E>: Send {
    /// These are durable.
    fn begin(&mut self, effects: Vec<E>);
}

/// Of a machine that wants nothing done.
impl Carry<Infallible> for () {
    fn begin(&mut self, _: Vec<Infallible>) {}
}

/// A request, and where its answer goes.
pub(crate) struct Message<M: Machine> {
    pub(super) request: M::Request,
    pub(super) reply: oneshot::Sender<M::Answer>,
}

/// A shard as its carrier sees it: in one epoch of its owner.
pub(crate) struct Office<M: Machine> {
    pub(super) shard: u32,
    /// The epoch in which it was taken (rule O3).
    pub(super) epoch: u32,
    pub(super) lane: mpsc::Sender<Message<M>>,
    /// Cancelled, the shard is given up; it is taken anew if it still belongs here.
    pub(super) give_up: CancellationToken,
}

impl<M: Machine> Clone for Office<M> {
    fn clone(&self) -> Office<M> {
        let (lane, give_up) = (self.lane.clone(), self.give_up.clone());
        Office { shard: self.shard, epoch: self.epoch, lane, give_up }
    }
}

impl<M: Machine> Office<M> {
    /// Tells the machine. None if the shard did not take it, or was lost with it.
    pub(super) async fn tell(&self, request: M::Request) -> Option<M::Answer> {
        let (reply, answer) = oneshot::channel();
        self.lane.send(Message { request, reply }).await.ok()?;
        answer.await.ok()
    }
}

/// What a step made.
#[derive(Debug)]
pub(crate) struct Made<A, E> {
    /// What is to be persisted, in this order.
    pub(crate) writes: Vec<ShardWrite>,
    /// Whether a commit has to show that the shard is still this owner's, though there may be nothing to persist (rule O1).
    pub(crate) proven: bool,
    /// What may be said once all that is durable.
    pub(crate) answers: Vec<(Token, A)>,
    /// What is to be done once all that is durable.
    pub(crate) effects: Vec<E>,
    /// What is to be persisted behind that, and may wait for other changes to go with: nothing is said or done for it, and whoever loads
    /// the shard without it does the same again.
    pub(crate) lazy: Vec<ShardWrite>,
}

impl<A, E> Default for Made<A, E> {
    fn default() -> Made<A, E> {
        Made { writes: Vec::new(), proven: false, answers: Vec::new(), effects: Vec::new(), lazy: Vec::new() }
    }
}

impl<A, E> Made<A, E> {
    /// Whether something of it can never be persisted (rule Z5).
    pub(super) fn is_too_large(&self) -> bool {
        self.writes.iter().chain(&self.lazy).any(ShardWrite::is_too_large)
    }

    /// This, and then that. What was to wait for company waits no more.
    pub(crate) fn and(mut self, then: Made<A, E>) -> Made<A, E> {
        self.writes.append(&mut self.lazy);
        self.lazy = then.lazy;
        self.writes.extend(then.writes);
        self.proven |= then.proven;
        self.answers.extend(then.answers);
        self.effects.extend(then.effects);
        self
    }
}

/// A machine that was read back.
pub(crate) struct Loaded<M: Machine> {
    pub(crate) machine: M,
    /// What had been cut short is put right by this.
    pub(crate) made: MadeBy<M>,
    /// Records it was read from.
    pub(crate) records: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
}

/// Why a shard cannot be read back.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{0}")]
    Records(String),
}
