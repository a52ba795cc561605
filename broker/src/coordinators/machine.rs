//! What a lane asks of a machine: the seam between the runtime and what is coordinated. A machine does no I/O but its own loading.

use super::world::World;
use millpond_core::groups::{Now, Token};
use millpond_metadata::keys::ShardKind;
use millpond_metadata::store::{HeldShard, ShardWrite, Store, StoreError};
use std::fmt;
use std::future::Future;

/// A pure state machine of one shard. What it changes is in its memory at once; whoever cannot persist it drops the machine.
pub(crate) trait Machine: Sized + Send + Sync + 'static {
    /// What it is asked.
    type Request: fmt::Debug + Send + 'static;
    /// What it answers.
    type Answer: fmt::Debug + Send + 'static;

    /// What it coordinates.
    const KIND: ShardKind;

    /// Reads it back (rule O3).
    fn load(
        store: &Store,
        held: &HeldShard,
        now: Now,
        world: &World,
    ) -> impl Future<Output = Result<Loaded<Self>, LoadError>> + Send;

    /// Takes a request. Its answer is in this step, or in a later one.
    fn step(&mut self, now: Now, token: Token, request: Self::Request) -> Made<Self::Answer>;

    /// Does what is due.
    fn tick(&mut self, now: Now) -> Made<Self::Answer>;

    /// When `tick` is to be called, in milliseconds of the steady clock.
    fn next_deadline(&self) -> Option<u64>;

    /// Takes in what has changed around it.
    fn look_around(&mut self, now: Now, world: &World) -> Made<Self::Answer>;
}

/// What a step made.
#[derive(Debug)]
pub(crate) struct Made<A> {
    /// What is to be persisted, in this order.
    pub(crate) writes: Vec<ShardWrite>,
    /// What may be said once all that is durable.
    pub(crate) answers: Vec<(Token, A)>,
}

impl<A> Default for Made<A> {
    fn default() -> Made<A> {
        Made { writes: Vec::new(), answers: Vec::new() }
    }
}

impl<A> Made<A> {
    /// This, and then that.
    pub(crate) fn and(mut self, then: Made<A>) -> Made<A> {
        self.writes.extend(then.writes);
        self.answers.extend(then.answers);
        self
    }
}

/// A machine that was read back.
pub(crate) struct Loaded<M: Machine> {
    pub(crate) machine: M,
    /// What had been cut short is put right by this.
    pub(crate) made: Made<M::Answer>,
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
