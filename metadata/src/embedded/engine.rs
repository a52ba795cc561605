//! The thread that owns the database. It takes all waiting requests as one group, runs them in order, syncs once, and
//! answers them all (group commit). It never answers before the sync, and after a failed sync never writes again.

use super::disk::Disk;
use super::leases::{LeaseState, Leases};
use super::snapshots::Snapshots;
use super::tables::{self, BOOTS, COMPACTED, Changes, HISTORY, IDENTITY, KEYS};
use crate::clock::Clock;
use crate::kv::{Event, Interval, KvError, Lease, LeaseId, Range, Ranged, Revision, Txn, Write};
use redb::{Database, ReadTransaction, ReadableDatabase, ReadableTable, StorageError};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, oneshot, watch};

/// Most requests in one group; more wait for the next sync.
const GROUP_REQUESTS_MAX: usize = 512;

/// Revisions of history that are kept at least, for watches that come back; etcd compacts by time, about as much.
const HISTORY_REVISIONS_KEPT: u64 = 10_000;

/// Revisions beyond those kept, at which history is cut: cutting has a price that this spreads.
const HISTORY_REVISIONS_SLACK: u64 = 2_000;

/// Where an answer goes. Dropping the receiver is the caller's way to lose interest.
pub(super) struct Reply<T>(pub(super) oneshot::Sender<Result<T, KvError>>);

impl<T> Reply<T> {
    pub(super) fn answer(self, answer: Result<T, KvError>) {
        // A caller that is gone wants no answer.
        let _ = self.0.send(answer);
    }
}

/// One page of a read.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    /// The store's newest revision.
    pub(crate) newest: Revision,
    /// What was found, at the revision that was asked for.
    pub(crate) ranged: Ranged,
    /// How many keys the interval holds at that revision, whatever the limit.
    pub(crate) count: u64,
}

/// How a transaction ended, operation by operation.
pub(crate) enum Applied {
    /// As `TxnOutcome::Succeeded`, with a number of deleted keys for each operation; a put deletes none.
    Succeeded { revision: Revision, deleted: Vec<u64> },
    /// As `TxnOutcome::Failed`.
    Failed { revision: Revision, found: Vec<Ranged> },
}

/// What the thread can be asked.
pub(super) enum Request {
    Range(Range, Reply<Ranged>),
    /// A read at the newest revision, or at that of a page before.
    Page(Range, Option<Revision>, Reply<Page>),
    Txn(Txn, Reply<Applied>),
    Grant(Duration, Reply<Lease>),
    KeepAlive(LeaseId, Reply<Option<Duration>>),
    LeaseState(LeaseId, Reply<Option<LeaseState>>),
    Revoke(LeaseId, Reply<()>),
    Events {
        keys: Interval,
        from: Revision,
        reply: Reply<(Revision, Vec<Event>)>,
    },
    Compact(Revision, Reply<()>),
    ExpireLeases(Reply<()>),
    Close(Reply<()>),
}

impl Request {
    /// Whether it may change the database.
    fn writes(&self) -> bool {
        matches!(self, Request::Txn(..) | Request::Revoke(..) | Request::Compact(..))
    }
}

/// A request with its share of the queue, given back when it was answered.
pub(super) struct Envelope {
    pub(super) request: Request,
    pub(super) permit: OwnedSemaphorePermit,
}

/// An answer that waits for the sync. The error is what befell the group; a read did not happen, a write is unknown.
type Parked = Box<dyn FnOnce(Option<&KvError>)>;

pub(super) struct Engine {
    disk: Disk,
    /// Before the database, so that they go before it.
    snapshots: Snapshots,
    /// None while the disk is full, or for ever after another error.
    database: Option<Database>,
    clock: Arc<dyn Clock>,
    leases: Leases,
    revision: u64,
    compacted: u64,
    revisions: watch::Sender<Revision>,
    health: Health,
}

/// What there is to know of a store that was opened.
pub(super) struct Opened {
    pub(super) engine: Engine,
    pub(super) revisions: watch::Receiver<Revision>,
    /// Drawn when the store was made; none in one that was made before stores had one.
    pub(super) identity: Option<u64>,
}

/// Whether the database can be used.
enum Health {
    Well,
    /// The disk was full. Each group tries to open the database again.
    Full(String),
    /// Another storage error: what is on disk is not known any more, as rule W2 has it for the WAL.
    Failed(String),
}

impl Engine {
    /// Reads the counters and voids the leases of earlier boots. A store that is made here is `new_identity` from now on.
    pub(super) fn open(disk: Disk, clock: Arc<dyn Clock>, new_identity: u64) -> Result<Opened, redb::Error> {
        let database = disk.open()?;
        let write = database.begin_write()?;
        let (boot, revision, compacted, identity) = {
            let mut changes = Changes::open(&write)?;
            let boot = changes.counter(BOOTS)? + 1;
            changes.counters.insert(BOOTS, boot)?;
            if boot == 1 {
                changes.counters.insert(IDENTITY, new_identity)?;
            }
            for (key, _) in changes.leased()? {
                changes.delete(&key)?;
            }
            (boot, changes.seal()?, changes.counter(COMPACTED)?, changes.counter(IDENTITY)?)
        };
        write.commit()?;
        let (revisions, published) = watch::channel(Revision(revision));
        let leases = Leases::of_boot(boot);
        let (database, health, snapshots) = (Some(database), Health::Well, Snapshots::default());
        let engine = Engine { disk, snapshots, database, clock, leases, revision, compacted, revisions, health };
        Ok(Opened { engine, revisions: published, identity: Some(identity).filter(|&identity| identity != 0) })
    }

    /// Serves requests until `Close`, whose reply it returns, or until every handle is gone.
    pub(super) fn run(mut self, requests: Receiver<Envelope>) -> Option<Reply<()>> {
        loop {
            let mut group = match self.first(&requests) {
                Ok(first) => Vec::from_iter(first),
                Err(Disconnected) => return None,
            };
            group.extend(requests.try_iter().take(GROUP_REQUESTS_MAX - group.len()));
            let mut closing = None;
            let mut permits = Vec::with_capacity(group.len());
            let mut accepted = Vec::with_capacity(group.len());
            for Envelope { request, permit } in group {
                permits.push(permit);
                match request {
                    Request::Close(reply) if closing.is_none() => closing = Some(reply),
                    // What comes after the close finds the store closed.
                    _ if closing.is_some() => {}
                    other => accepted.push(other),
                }
            }
            self.serve(accepted);
            if closing.is_some() {
                return closing;
            }
        }
    }

    /// The first request of a group; none when a lease has to end first.
    fn first(&self, requests: &Receiver<Envelope>) -> Result<Option<Envelope>, Disconnected> {
        let Some(end) = self.leases.next_end().filter(|_| matches!(self.health, Health::Well)) else {
            return requests.recv().map(Some).map_err(|_| Disconnected);
        };
        match requests.recv_timeout(end.saturating_sub(self.clock.now())) {
            Ok(first) => Ok(Some(first)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Disconnected),
        }
    }

    fn serve(&mut self, group: Vec<Request>) {
        let now = self.clock.now();
        if matches!(self.health, Health::Full(_))
            && let Err(error) = self.reopen()
        {
            self.fail(&error);
        }
        let Some(database) = self.database.take() else {
            return group.into_iter().for_each(|request| self.refuse(request));
        };
        self.snapshots.expire(now);
        let due = self.leases.due(now);
        let served = if due.is_empty() && !group.iter().any(Request::writes) {
            self.serve_reads(&database, group, now)
        } else {
            // A page can be gone on from only if it is of a state that was committed.
            let (pages, group) = group.into_iter().partition(|request| matches!(request, Request::Page(..)));
            let written = self.serve_writes(&database, group, &due, now);
            written.and_then(|()| self.serve_reads(&database, pages, now))
        };
        match served {
            Ok(()) => self.database = Some(database),
            Err(error) => {
                // Closed before it may be opened again.
                self.snapshots.clear();
                drop(database);
                self.fail(&error);
            }
        }
    }

    /// Takes no more requests until the database was opened again, if it may be.
    fn fail(&mut self, error: &redb::Error) {
        self.health = if self.disk.may_reopen(error) {
            tracing::warn!(%error, "the disk of the embedded metadata store is full");
            Health::Full(error.to_string())
        } else {
            tracing::error!(%error, "the embedded metadata store failed; it takes no more requests");
            // Ends all watches.
            self.revisions = watch::channel(Revision(self.revision)).0;
            Health::Failed(error.to_string())
        };
    }

    /// Opens the database again after the disk was full. The last group may have been committed or not; its leases and
    /// keys are brought together by what is stored.
    fn reopen(&mut self) -> Result<(), redb::Error> {
        let database = self.disk.open()?;
        let write = database.begin_write()?;
        let (revision, compacted) = {
            let mut changes = Changes::open(&write)?;
            if changes.revision < self.revision {
                let reason = format!("opened again at revision {}, was at {}", changes.revision, self.revision);
                return Err(redb::Error::Corrupted(reason));
            }
            let leased = changes.leased()?;
            for key in self.leases.reattach(leased) {
                changes.delete(&key)?;
            }
            (changes.seal()?, changes.counter(COMPACTED)?)
        };
        write.commit()?;
        tracing::info!(revision, "the embedded metadata store has room again");
        (self.revision, self.compacted) = (revision, compacted);
        self.revisions.send_replace(Revision(revision));
        (self.database, self.health) = (Some(database), Health::Well);
        Ok(())
    }

    /// A group that changes nothing on disk: answered from the last commit, without a sync.
    fn serve_reads(&mut self, database: &Database, group: Vec<Request>, now: Duration) -> Result<(), redb::Error> {
        let read = database.begin_read()?;
        let (keys, history) = (read.open_table(KEYS)?, read.open_table(HISTORY)?);
        for request in group {
            match request {
                Request::Range(range, reply) => reply.answer(unavailable(tables::range(&keys, &range, self.revision))),
                Request::Page(range, at, reply) => reply.answer(self.page(database, &read, &range, at, now)?),
                Request::Events { keys, from, reply } => {
                    reply.answer(events(&history, &keys, from, self.revision, self.compacted));
                }
                other => self.serve_lease(other, now),
            }
        }
        Ok(())
    }

    /// A page of a read from `read`, the newest state, or from the view that an earlier page left.
    fn page(
        &mut self,
        database: &Database,
        read: &ReadTransaction,
        range: &Range,
        at: Option<Revision>,
        now: Duration,
    ) -> Result<Result<Page, KvError>, redb::Error> {
        let newest = Revision(self.revision);
        let revision = at.unwrap_or(newest);
        let view = if revision == newest { Some(read) } else { self.snapshots.at(revision.0) };
        let Some(view) = view else {
            let ahead = || KvError::Refused(format!("revision {revision} lies ahead; the store is at {newest}"));
            return Ok(Err(if revision > newest { ahead() } else { KvError::Compacted(revision) }));
        };
        let keys = view.open_table(KEYS)?;
        let ranged = tables::range(&keys, range, revision.0)?;
        let count = if ranged.more { tables::count(&keys, &range.keys)? } else { ranged.found.len() as u64 };
        if ranged.more && revision == newest {
            // Nothing was committed since `read` began: this thread is the only one that does.
            self.snapshots.hold(revision.0, now, database.begin_read()?);
        }
        Ok(Ok(Page { newest, ranged, count }))
    }

    /// What needs no disk.
    fn serve_lease(&mut self, request: Request, now: Duration) {
        match request {
            Request::Grant(ttl, reply) => reply.answer(Ok(self.leases.grant(ttl, now))),
            Request::KeepAlive(lease, reply) => reply.answer(Ok(self.leases.keep_alive(lease, now))),
            Request::LeaseState(lease, reply) => reply.answer(Ok(self.leases.state(lease, now))),
            Request::ExpireLeases(reply) => reply.answer(Ok(())),
            other => self.refuse(other),
        }
    }

    /// A group with changes: one database transaction, one sync, then the answers.
    fn serve_writes(
        &mut self,
        database: &Database,
        group: Vec<Request>,
        due: &[LeaseId],
        now: Duration,
    ) -> Result<(), redb::Error> {
        let mut parked: Vec<Parked> = Vec::with_capacity(group.len());
        let write = database.begin_write()?;
        let applied = self.apply(&write, group, due, now, &mut parked);
        let (revision, compacted) = match applied {
            Ok(reached) => reached,
            Err(error) => {
                // Nothing was committed.
                let failure = KvError::Unavailable(error.to_string());
                parked.into_iter().for_each(|answer| answer(Some(&failure)));
                return Err(error);
            }
        };
        let unchanged = (revision, compacted) == (self.revision, self.compacted);
        let ended = if unchanged { write.abort().map_err(Into::into) } else { write.commit().map_err(Into::into) };
        if let Err(error) = ended {
            let failure = KvError::Unknown(redb::Error::to_string(&error));
            parked.into_iter().for_each(|answer| answer(Some(&failure)));
            return Err(error);
        }
        self.revision = revision;
        self.compacted = compacted;
        // Before the answers: a watch knows of every transaction that its caller has seen acknowledged.
        if !unchanged {
            self.revisions.send_replace(Revision(revision));
        }
        parked.into_iter().for_each(|answer| answer(None));
        Ok(())
    }

    /// Runs a group within a database transaction; returns the revision and the compaction it reached.
    fn apply(
        &mut self,
        write: &redb::WriteTransaction,
        group: Vec<Request>,
        due: &[LeaseId],
        now: Duration,
        parked: &mut Vec<Parked>,
    ) -> Result<(u64, u64), redb::Error> {
        let mut compacted = self.compacted;
        let mut changes = Changes::open(write)?;
        for &lease in due {
            end_lease(&mut changes, &mut self.leases, lease)?;
        }
        for request in group {
            let answer = match request {
                Request::Range(range, reply) => {
                    let found = tables::range(&changes.keys, &range, changes.revision)?;
                    park_read(reply, Ok(found))
                }
                Request::Events { keys, from, reply } => {
                    let found = events(&changes.history, &keys, from, changes.revision, compacted);
                    park_read(reply, found)
                }
                Request::Txn(txn, reply) => park_write(reply, run_txn(&mut changes, &mut self.leases, &txn)?),
                Request::Revoke(lease, reply) => {
                    let found = end_lease(&mut changes, &mut self.leases, lease)?;
                    park_write(reply, if found { Ok(()) } else { Err(KvError::LeaseNotFound) })
                }
                Request::Compact(Revision(revision), reply) => {
                    let allowed = may_compact(revision, changes.revision, compacted);
                    if allowed.is_ok() {
                        changes.compact(revision)?;
                        compacted = revision;
                    }
                    park_write(reply, allowed)
                }
                Request::Grant(ttl, reply) => park_read(reply, Ok(self.leases.grant(ttl, now))),
                Request::KeepAlive(lease, reply) => park_read(reply, Ok(self.leases.keep_alive(lease, now))),
                Request::LeaseState(lease, reply) => park_read(reply, Ok(self.leases.state(lease, now))),
                Request::ExpireLeases(reply) => park_read(reply, Ok(())),
                Request::Page(..) => unreachable!("`serve` takes it out of a group that writes"),
                Request::Close(_) => unreachable!("`run` takes it out of the group"),
            };
            parked.push(answer);
        }
        if changes.revision.saturating_sub(compacted) > HISTORY_REVISIONS_KEPT + HISTORY_REVISIONS_SLACK {
            compacted = changes.revision - HISTORY_REVISIONS_KEPT;
            changes.compact(compacted)?;
        }
        Ok((changes.revision, compacted))
    }

    fn refuse(&self, request: Request) {
        let error = KvError::Unavailable(match &self.health {
            Health::Well => "the embedded metadata store is closed".to_owned(),
            Health::Full(why) => format!("the disk of the embedded metadata store is full: {why}; make room"),
            Health::Failed(why) => format!("the embedded metadata store has failed: {why}; restart"),
        });
        match request {
            Request::Range(_, reply) => reply.answer(Err(error)),
            Request::Page(_, _, reply) => reply.answer(Err(error)),
            Request::Txn(_, reply) => reply.answer(Err(error)),
            Request::Grant(_, reply) => reply.answer(Err(error)),
            Request::KeepAlive(_, reply) => reply.answer(Err(error)),
            Request::LeaseState(_, reply) => reply.answer(Err(error)),
            Request::Events { reply, .. } => reply.answer(Err(error)),
            Request::Revoke(_, reply)
            | Request::Compact(_, reply)
            | Request::ExpireLeases(reply)
            | Request::Close(reply) => {
                reply.answer(Err(error));
            }
        }
    }
}

/// Every handle is gone.
struct Disconnected;

/// Ends a lease and deletes its keys, at one revision. Says whether it was there.
fn end_lease(changes: &mut Changes<'_>, leases: &mut Leases, lease: LeaseId) -> Result<bool, StorageError> {
    let Some(keys) = leases.end(lease) else { return Ok(false) };
    for key in &keys {
        changes.delete(key)?;
    }
    changes.seal()?;
    Ok(true)
}

fn run_txn(
    changes: &mut Changes<'_>,
    leases: &mut Leases,
    txn: &Txn,
) -> Result<Result<Applied, KvError>, StorageError> {
    for compare in &txn.compares {
        if !compare.holds(tables::get(&changes.keys, compare.key())?.as_ref()) {
            let read = |range| tables::range(&changes.keys, range, changes.revision);
            let found = txn.or_else.iter().map(read).collect::<Result<_, StorageError>>()?;
            return Ok(Ok(Applied::Failed { revision: Revision(changes.revision), found }));
        }
    }
    let named = txn.then.iter().filter_map(|write| match write {
        Write::Put { lease, .. } => *lease,
        Write::Delete(_) => None,
    });
    // Before the first change: a refused transaction changes nothing.
    if named.into_iter().any(|lease| !leases.contains(lease)) {
        return Ok(Err(KvError::LeaseNotFound));
    }
    let mut deleted = vec![0; txn.then.len()];
    for (write, deleted) in txn.then.iter().zip(&mut deleted) {
        match write {
            Write::Put { key, value, lease } => {
                let before = changes.put(key, value, *lease)?;
                if let Some(lease) = before.and_then(|before| before.lease) {
                    leases.detach(lease, key);
                }
                if let Some(lease) = lease {
                    leases.attach(*lease, key.clone());
                }
            }
            Write::Delete(keys) => {
                let doomed = Range { keys: keys.clone(), limit: usize::MAX };
                for kv in tables::range(&changes.keys, &doomed, changes.revision)?.found {
                    changes.delete(&kv.key)?;
                    *deleted += 1;
                    if let Some(lease) = kv.lease {
                        leases.detach(lease, &kv.key);
                    }
                }
            }
        }
    }
    let revision = Revision(changes.seal()?);
    Ok(Ok(Applied::Succeeded { revision, deleted }))
}

fn events(
    history: &impl ReadableTable<(u64, u32), &'static [u8]>,
    keys: &Interval,
    from: Revision,
    newest: u64,
    compacted: u64,
) -> Result<(Revision, Vec<Event>), KvError> {
    if from.0 < compacted {
        return Err(KvError::Compacted(Revision(compacted)));
    }
    unavailable(tables::events(history, keys, from.0, newest))
}

fn may_compact(revision: u64, newest: u64, compacted: u64) -> Result<(), KvError> {
    if revision > newest {
        return Err(KvError::Refused(format!("revision {revision} lies ahead; the store is at {newest}")));
    }
    if revision <= compacted { Err(KvError::Compacted(Revision(compacted))) } else { Ok(()) }
}

fn unavailable<T>(result: Result<T, StorageError>) -> Result<T, KvError> {
    result.map_err(|error| KvError::Unavailable(error.to_string()))
}

fn park_write<T: 'static>(reply: Reply<T>, answer: Result<T, KvError>) -> Parked {
    Box::new(move |failure| reply.answer(failure.map_or(answer, |failure| Err(failure.clone()))))
}

fn park_read<T: 'static>(reply: Reply<T>, answer: Result<T, KvError>) -> Parked {
    Box::new(move |failure| {
        let failed = |failure: &KvError| Err(KvError::Unavailable(failure.to_string()));
        reply.answer(failure.map_or(answer, failed));
    })
}
