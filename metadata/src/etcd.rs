//! The metadata store of a fleet: etcd, through its own client. It passes the waist's suite as the embedded store does.
//!
//! Every call has a deadline. A request that may have happened is never sent again here: it ends as `Unknown` (rule K5), and
//! whoever decided it settles it.

mod convert;
mod failure;
mod leases;
mod link;
mod options;
mod problem;
mod watch;

use crate::kv::{
    BoxFuture, Interval, Kv, KvError, Lease, LeaseId, Position, Range, Ranged, Renewal, Revision, Txn, TxnOutcome,
    Watch,
};
use etcd_client::{
    CompactionResponse, Error, GetOptions, GetResponse, LeaseGrantResponse, LeaseRevokeResponse, ResponseHeader,
    TxnResponse,
};
use failure::{Failure, classify};
use leases::KeepAlives;
use link::{Link, Links, Seen};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use watch::EtcdWatch;

pub use options::{EtcdOptions, Files, Secret, Tls, UrlError, User};
pub use problem::{ConnectError, Problem};

/// Keys in one page of a read: at 64 KiB a value (rule Z5) half of what a connection accepts.
const PAGE_KEYS: usize = 500;

/// How long a member may take over a keep-alive's connection before the next one is tried beside it, half of the least patience of a
/// keep-alive (rule Z4), and before it is given up: a slow etcd is better than none.
const KEEP_ALIVE_TURN: Duration = Duration::from_secs(1);
const KEEP_ALIVE_ATTEMPT: Duration = Duration::from_secs(2);

/// The pause before a request that did not happen is sent again, and how far it grows.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Handle of an etcd. Cheap to clone. Connects when it is used, and anew when a connection fails.
#[derive(Clone)]
pub struct Etcd {
    shared: Arc<Shared>,
}

struct Shared {
    deadline: Duration,
    /// Everything but keep-alives.
    links: Arc<Links>,
    leases: KeepAlives,
}

/// Whether a request that may have happened may be sent again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Repeat {
    /// It changes nothing.
    Read,
    /// Only its owner may send it again (rule K5).
    Never,
}

impl Etcd {
    /// Connects, and finds out whether etcd can be used as the options say.
    ///
    /// # Errors
    /// What is wrong and what to do. It is certain that nothing was written.
    pub async fn connect(options: EtcdOptions) -> Result<Etcd, ConnectError> {
        let deadline = options.deadline;
        let (options, seen) = (Arc::new(options), Arc::new(Seen::default()));
        let links = Links::new(Arc::clone(&options), Arc::clone(&seen), deadline / 2, deadline / 2);
        let mut pause = Pause::new(Instant::now() + deadline);
        while let Err(error) = links.link().await {
            if !error.problem.passes() || !pause.wait().await {
                return Err(error);
            }
        }
        let leases = KeepAlives::new(Links::new(options, seen, KEEP_ALIVE_TURN, KEEP_ALIVE_ATTEMPT));
        Ok(Etcd { shared: Arc::new(Shared { deadline, links: Arc::new(links), leases }) })
    }

    async fn ask<T, Call, Answer>(&self, repeat: Repeat, call: Call) -> Result<T, KvError>
    where
        T: Answered,
        Call: Fn(Link) -> Answer + Send,
        Answer: Future<Output = Result<T, Error>> + Send,
    {
        ask(&self.shared.links, self.shared.deadline, repeat, call).await
    }

    /// One page of a read, at `revision` or at the newest.
    async fn page(&self, keys: &Interval, limit: usize, revision: Option<Revision>) -> Result<Ranged, KvError> {
        let answer = self.ask(Repeat::Read, |link| {
            let (key, mut options) = convert::read(keys, limit);
            if let Some(revision) = revision {
                options = options.with_revision(convert::signed(revision));
            }
            async move { link.kv.clone().get(key, Some(options)).await }
        });
        let answer = answer.await?;
        let found_at = convert::revision(answer.header());
        Ok(convert::ranged(answer, revision.unwrap_or(found_at)))
    }

    /// All pages of a read, at the revision of the first.
    async fn pages(&self, range: &Range) -> Result<Ranged, KvError> {
        let mut all = self.page(&range.keys, range.limit.clamp(1, PAGE_KEYS), None).await?;
        while all.more && all.found.len() < range.limit {
            let Some(last) = all.found.last() else { break };
            let start = [last.key.as_ref(), &[0]].concat().into();
            let keys = Interval { start, end: range.keys.end.clone() };
            let limit = (range.limit - all.found.len()).min(PAGE_KEYS);
            let page = self.page(&keys, limit, Some(all.revision)).await?;
            all.found.extend(page.found);
            all.more = page.more;
        }
        Ok(all)
    }

    async fn range_all(&self, range: Range) -> Result<Ranged, KvError> {
        let mut pause = Pause::new(Instant::now() + self.shared.deadline);
        loop {
            match self.pages(&range).await {
                // Compacted between two pages: read anew, at a newer revision.
                Err(KvError::Compacted(_)) if pause.wait().await => {}
                Err(KvError::Compacted(_)) => {
                    return Err(KvError::Unavailable("history is compacted faster than it can be read".to_owned()));
                }
                answer => return answer,
            }
        }
    }

    async fn run(&self, txn: Txn) -> Result<TxnOutcome, KvError> {
        txn.check()?;
        let answer = self.ask(Repeat::Never, |link| {
            let txn = convert::txn(&txn);
            async move { link.kv.clone().txn(txn).await }
        });
        let answer = answer.await?;
        Ok(convert::outcome(&answer))
    }

    async fn grant_lease(&self, ttl: Duration) -> Result<Lease, KvError> {
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        let seconds = i64::try_from(seconds.max(1)).unwrap_or(i64::MAX);
        let granted =
            self.ask(Repeat::Never, |link| async move { link.lease.clone().grant(seconds, None).await }).await?;
        let ttl = Duration::from_secs(u64::try_from(granted.ttl()).unwrap_or(0));
        Ok(Lease { id: LeaseId(granted.id().cast_unsigned()), ttl })
    }

    async fn revoke_lease(&self, lease: LeaseId) -> Result<(), KvError> {
        self.shared.leases.forget(lease);
        let id = convert::lease_id(lease);
        self.ask(Repeat::Never, |link| async move { link.lease.clone().revoke(id).await }).await.map(drop)
    }

    async fn compact_to(&self, revision: Revision) -> Result<(), KvError> {
        let to = convert::signed(revision);
        let answer = self.ask(Repeat::Never, |link| async move { link.kv.clone().compact(to, None).await }).await;
        match answer {
            Err(KvError::Compacted(_)) => Err(KvError::Compacted(revision)),
            Err(error) => Err(error),
            Ok(_) => Ok(()),
        }
    }
}

/// Sends a request until it is certain what became of it, or it may not be sent again, or its time is over.
async fn ask<T, Call, Answer>(links: &Links, deadline: Duration, repeat: Repeat, call: Call) -> Result<T, KvError>
where
    T: Answered,
    Call: Fn(Link) -> Answer + Send,
    Answer: Future<Output = Result<T, Error>> + Send,
{
    let until = Instant::now() + deadline;
    let mut pause = Pause::new(until);
    loop {
        let reason = match tokio::time::timeout_at(until, links.link()).await {
            Ok(Ok(link)) => match send(links, &link, until, repeat, call(link.clone())).await {
                Ok(answer) => return Ok(answer),
                Err(Sent::Over(error)) => return Err(error),
                Err(Sent::Again(reason)) => reason,
            },
            Ok(Err(error)) if error.problem == Problem::Restored => return Err(KvError::Restored(error.to_string())),
            Ok(Err(error)) => error.to_string(),
            Err(_) => unanswered(deadline),
        };
        if !pause.wait().await {
            return Err(KvError::Unavailable(reason));
        }
    }
}

/// An answer with etcd's header. Each comes of a linearizable read or through the log, so that no revision is an old one.
trait Answered {
    fn header(&self) -> Option<&ResponseHeader>;
}

macro_rules! answered {
    ($($answer:ty),*) => {
        $(impl Answered for $answer {
            fn header(&self) -> Option<&ResponseHeader> {
                self.header()
            }
        })*
    };
}
answered!(GetResponse, TxnResponse, CompactionResponse, LeaseGrantResponse, LeaseRevokeResponse);

/// Why a request that was sent has no answer.
enum Sent {
    /// It may be sent again.
    Again(String),
    /// It may not.
    Over(KvError),
}

async fn send<T: Answered>(
    links: &Links,
    link: &Link,
    until: Instant,
    repeat: Repeat,
    answer: impl Future<Output = Result<T, Error>> + Send,
) -> Result<T, Sent> {
    let patience = links.attempt().min(until.saturating_duration_since(Instant::now()));
    let before = links.seen().get();
    let failure = match tokio::time::timeout(patience, answer).await {
        Ok(Ok(answer)) => {
            let admitted = answer.header().map_or(Ok(()), |header| links.seen().admit(before, header).map(drop));
            // Rule K7: whatever it says, it says it of another store.
            return admitted.map(|()| answer).map_err(|reason| Sent::Over(KvError::Restored(reason)));
        }
        Ok(Err(error)) => classify(&error),
        Err(_) => Failure::Ambiguous(unanswered(patience)),
    };
    Err(match failure {
        Failure::Refused(reason) => Sent::Over(KvError::Refused(reason)),
        Failure::LeaseNotFound => Sent::Over(KvError::LeaseNotFound),
        // The caller knows which revision it asked for.
        Failure::Compacted => Sent::Over(KvError::Compacted(Revision::ABSENT)),
        Failure::Unable(reason) => Sent::Over(KvError::Unavailable(reason)),
        Failure::NotDone(reason) => {
            links.lost(link);
            Sent::Again(reason)
        }
        Failure::Ambiguous(reason) => {
            links.lost(link);
            match repeat {
                Repeat::Read => Sent::Again(reason),
                Repeat::Never => Sent::Over(KvError::Unknown(reason)),
            }
        }
    })
}

/// Where the store stands: a linearizable read of one key.
async fn position_now(links: &Links, deadline: Duration) -> Result<Position, KvError> {
    let answer = ask(links, deadline, Repeat::Read, |link| {
        let (key, options) = (links.any_key(), GetOptions::new().with_count_only());
        async move { link.kv.clone().get(key, Some(options)).await }
    });
    let answer = answer.await?;
    let header = answer.header();
    Ok(Position { cluster: header.and_then(convert::cluster), revision: convert::revision(header) })
}

async fn revision_now(links: &Links, deadline: Duration) -> Result<Revision, KvError> {
    Ok(position_now(links, deadline).await?.revision)
}

fn unanswered(patience: Duration) -> String {
    format!("etcd gave no answer within {patience:?}")
}

/// Pauses that grow, until a moment.
struct Pause {
    until: Instant,
    next: Duration,
}

impl Pause {
    fn new(until: Instant) -> Pause {
        Pause { until, next: PAUSE_MIN }
    }

    /// Waits; says whether there is time for another try.
    async fn wait(&mut self) -> bool {
        if Instant::now() + self.next >= self.until {
            return false;
        }
        tokio::time::sleep(self.next).await;
        self.next = (self.next * 2).min(PAUSE_MAX);
        true
    }
}

impl Kv for Etcd {
    fn range(&self, range: Range) -> BoxFuture<'_, Result<Ranged, KvError>> {
        Box::pin(self.range_all(range))
    }

    fn position(&self) -> BoxFuture<'_, Result<Position, KvError>> {
        Box::pin(position_now(&self.shared.links, self.shared.deadline))
    }

    fn txn(&self, txn: Txn) -> BoxFuture<'_, Result<TxnOutcome, KvError>> {
        Box::pin(self.run(txn))
    }

    fn grant(&self, ttl: Duration) -> BoxFuture<'_, Result<Lease, KvError>> {
        Box::pin(self.grant_lease(ttl))
    }

    fn keep_alive(&self, lease: LeaseId) -> BoxFuture<'_, Result<Option<Renewal>, KvError>> {
        Box::pin(self.shared.leases.renew(lease))
    }

    fn revoke(&self, lease: LeaseId) -> BoxFuture<'_, Result<(), KvError>> {
        Box::pin(self.revoke_lease(lease))
    }

    fn watch(&self, keys: Interval, from: Revision) -> BoxFuture<'_, Result<Box<dyn Watch>, KvError>> {
        Box::pin(async move {
            let links = Arc::clone(&self.shared.links);
            let watch = EtcdWatch::open(links, keys, from, self.shared.deadline).await?;
            Ok(Box::new(watch) as Box<dyn Watch>)
        })
    }

    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<(), KvError>> {
        Box::pin(self.compact_to(revision))
    }
}
