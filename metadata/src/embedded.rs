//! The metadata store of a process that has no etcd: durable on local disk, or in memory, with etcd's semantics.
//!
//! One thread owns the database; handles send it requests. It never answers a write before the disk has it.

mod directory;
mod disk;
mod engine;
mod leases;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod properties;
mod snapshots;
mod tables;
mod watch;

use crate::clock::Clock;
use crate::kv::{
    BoxFuture, Interval, Kv, KvError, Lease, LeaseId, Position, Range, Ranged, Renewal, Revision, Txn, TxnOutcome,
    Watch,
};
use directory::Directory;
use disk::Disk;
use engine::{Engine, Envelope, Opened, Reply, Request};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot, watch as tokio_watch};
use watch::EmbeddedWatch;

pub use directory::OpenError;
pub(crate) use engine::{Applied, Page};
pub(crate) use leases::LeaseState;

/// Requests waiting for the thread, in units of `PERMIT_BYTES`: 16 MiB, so that every queue is bounded in bytes.
const PERMITS: u32 = 16 << 10;
const PERMIT_BYTES: usize = 1 << 10;

/// Handle of an embedded store. Cheap to clone; the store closes with its last handle, or by `close`.
#[derive(Clone)]
pub struct Embedded {
    shared: Arc<Shared>,
}

struct Shared {
    requests: mpsc::Sender<Envelope>,
    permits: Arc<Semaphore>,
    revisions: tokio_watch::Receiver<Revision>,
    identity: Option<u64>,
}

impl Embedded {
    /// Opens the store in `dir`, or makes a new one there. Voids all leases: their keys are deleted, at one revision.
    ///
    /// Blocks on the disk. `clock` tells when leases end.
    ///
    /// # Errors
    /// - `InUse`: another process, or another handle, has it open.
    /// - `NewerFormat`: a newer version wrote it. Nothing was changed.
    /// - `Damaged`, `Io`: it cannot be read. Nothing is ever started over by itself.
    pub fn open(dir: &Path, clock: Arc<dyn Clock>) -> Result<Embedded, OpenError> {
        let directory = Arc::new(Directory::open(dir)?);
        let file = Arc::clone(&directory);
        let disk = Disk::new(move || Ok(Box::new(redb::backends::FileBackend::new(file.file()?)?)));
        let store = Embedded::start(disk, clock, Some(Arc::clone(&directory)));
        let store = store.map_err(|error| directory.storage(error))?;
        directory.finish()?;
        Ok(store)
    }

    /// A store that is gone with its last handle: for tests. The same code over redb's memory backend.
    ///
    /// # Panics
    /// If the machine has no thread or memory for it.
    #[must_use]
    pub fn in_memory(clock: Arc<dyn Clock>) -> Embedded {
        let disk = Disk::new(|| Ok(Box::new(redb::backends::InMemoryBackend::new())));
        Embedded::start(disk, clock, None).expect("memory can be written")
    }

    fn start(disk: Disk, clock: Arc<dyn Clock>, directory: Option<Arc<Directory>>) -> Result<Embedded, redb::Error> {
        let identity = uuid::Uuid::new_v4().as_u64_pair().1;
        let Opened { engine, revisions, identity } = Engine::open(disk, clock, identity)?;
        let (requests, received) = mpsc::channel();
        let run = move || {
            let closing = engine.run(received);
            // The database is closed by now; the lock goes after it, and the answer last.
            drop(directory);
            if let Some(closing) = closing {
                closing.answer(Ok(()));
            }
        };
        std::thread::Builder::new().name("metadata".to_owned()).spawn(run).map_err(redb::Error::Io)?;
        let permits = Arc::new(Semaphore::new(PERMITS as usize));
        Ok(Embedded { shared: Arc::new(Shared { requests, permits, revisions, identity }) })
    }

    /// Closes the store after the requests before this one; other handles then get `Unavailable`. Once it returns, the
    /// directory can be opened again.
    ///
    /// # Errors
    /// `Unavailable`: it was closed before.
    pub async fn close(&self) -> Result<(), KvError> {
        self.ask(0, Request::Close).await
    }

    /// Ends the leases that are due by the clock now, and returns when their keys are gone. The store does so by itself
    /// in time; a test that moves its clock by hand calls this.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn expire_leases(&self) -> Result<(), KvError> {
        self.ask(0, Request::ExpireLeases).await
    }

    /// What tells this store from every other (rule K7). A store that was made before stores had one has none.
    pub(crate) fn identity(&self) -> Option<u64> {
        self.shared.identity
    }

    /// The newest revision; no older than any that was in an answer.
    pub(crate) fn newest(&self) -> Revision {
        *self.shared.revisions.borrow()
    }

    /// One page of a read at the newest revision, or at that of an earlier page which was cut off.
    ///
    /// # Errors
    /// - `Compacted`: the earlier page was long ago. Read anew.
    /// - `Refused`: the revision lies ahead.
    /// - `Unavailable`.
    pub(crate) async fn page(&self, range: Range, at: Option<Revision>) -> Result<Page, KvError> {
        self.ask(0, |reply| Request::Page(range, at, reply)).await
    }

    /// As `Kv::txn`, and tells more of what happened.
    pub(crate) async fn apply(&self, txn: Txn) -> Result<Applied, KvError> {
        txn.check()?;
        self.change(txn.size(), |reply| Request::Txn(txn, reply)).await
    }

    /// How a lease stands; `None` if it has ended.
    pub(crate) async fn lease_state(&self, lease: LeaseId) -> Result<Option<LeaseState>, KvError> {
        self.ask(0, |reply| Request::LeaseState(lease, reply)).await
    }

    /// Sends a request that changes nothing durable.
    async fn ask<T>(&self, size: usize, request: impl FnOnce(Reply<T>) -> Request) -> Result<T, KvError> {
        let answer = self.shared.send(size, request).await?;
        answer.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Sends a change. If the thread ended with the change in its hands, the outcome is unknown.
    async fn change<T>(&self, size: usize, request: impl FnOnce(Reply<T>) -> Request) -> Result<T, KvError> {
        let answer = self.shared.send(size, request).await?;
        answer.await.unwrap_or_else(|_| Err(KvError::Unknown("the embedded metadata store ended".to_owned())))
    }
}

impl Shared {
    /// Queues a request of about `size` bytes. An error means that it did not happen.
    async fn send<T>(
        &self,
        size: usize,
        request: impl FnOnce(Reply<T>) -> Request,
    ) -> Result<oneshot::Receiver<Result<T, KvError>>, KvError> {
        let units = u32::try_from(size / PERMIT_BYTES + 1).unwrap_or(PERMITS).min(PERMITS);
        let permit = Arc::clone(&self.permits).acquire_many_owned(units).await.map_err(|_| closed())?;
        let (reply, answer) = oneshot::channel();
        self.requests.send(Envelope { request: request(Reply(reply)), permit }).map_err(|_| closed())?;
        Ok(answer)
    }
}

fn closed() -> KvError {
    KvError::Unavailable("the embedded metadata store is closed".to_owned())
}

impl Kv for Embedded {
    fn range(&self, range: Range) -> BoxFuture<'_, Result<Ranged, KvError>> {
        Box::pin(self.ask(0, |reply| Request::Range(range, reply)))
    }

    fn position(&self) -> BoxFuture<'_, Result<Position, KvError>> {
        Box::pin(async move {
            // A key that cannot be there: what counts is the revision.
            let nothing = Range::key(&bytes::Bytes::from_static(&[0]));
            let revision = self.range(nothing).await?.revision;
            Ok(Position { cluster: self.identity(), revision })
        })
    }

    fn txn(&self, txn: Txn) -> BoxFuture<'_, Result<TxnOutcome, KvError>> {
        Box::pin(async move {
            Ok(match self.apply(txn).await? {
                Applied::Succeeded { revision, deleted } => {
                    TxnOutcome::Succeeded { revision, deleted: deleted.into_iter().sum() }
                }
                Applied::Failed { revision, found } => TxnOutcome::Failed { revision, found },
            })
        })
    }

    fn grant(&self, ttl: Duration) -> BoxFuture<'_, Result<Lease, KvError>> {
        Box::pin(self.ask(0, move |reply| Request::Grant(ttl, reply)))
    }

    fn keep_alive(&self, lease: LeaseId) -> BoxFuture<'_, Result<Option<Renewal>, KvError>> {
        Box::pin(async move {
            let left = self.ask(0, move |reply| Request::KeepAlive(lease, reply)).await?;
            Ok(left.map(|left| Renewal { left, sent_after: Duration::ZERO }))
        })
    }

    fn revoke(&self, lease: LeaseId) -> BoxFuture<'_, Result<(), KvError>> {
        Box::pin(self.change(0, move |reply| Request::Revoke(lease, reply)))
    }

    fn watch(&self, keys: Interval, from: Revision) -> BoxFuture<'_, Result<Box<dyn Watch>, KvError>> {
        let watch = EmbeddedWatch::new(self.clone(), keys, from, self.shared.revisions.clone());
        Box::pin(async move { Ok(Box::new(watch) as Box<dyn Watch>) })
    }

    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<(), KvError>> {
        Box::pin(self.change(0, move |reply| Request::Compact(revision, reply)))
    }
}

#[cfg(test)]
mod tests;
