//! Keeps leases alive on a connection of their own (rule Z4): one stream for each lease, replaced when it stalls. Never asks for more time
//! over a connection that has not just answered.

use super::failure::{Failure, classify};
use super::link::{Link, Links};
use super::problem::Problem;
use super::{convert, unanswered};
use crate::kv::{KvError, LeaseId, Renewal};
use etcd_client::{Error, GetOptions, LeaseKeepAliveStream, LeaseKeeper};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How long the first answer may take, before the TTL is known: a third of the TTL of a broker's lease.
const FIRST_PATIENCE: Duration = Duration::from_secs(2);

/// How long ago an answer may have come that lets a keep-alive be sent: as long as a busy machine takes from one to the other. One that
/// cannot hear may be replaced so much later than one that is silent.
const JUST: Duration = Duration::from_millis(200);

/// What etcd-client says of a lease that has ended; it has no variant for it.
const ENDED: &str = "lease not found";

struct Stream {
    link: Link,
    keeper: LeaseKeeper,
    answers: LeaseKeepAliveStream,
    /// When the last answer to a keep-alive came.
    heard: Instant,
}

/// A lease that was kept alive before.
struct Held {
    ttl: Duration,
    /// Taken out while a question is under way: a dropped call leaves no answer behind that the next one would take for its own.
    stream: Option<Stream>,
}

/// Of every keep-alive that is sent here two things hold, whatever etcd and the network do, and the second whatever this process does (one
/// that was stopped may take an answer that waited for it for a new one, once):
///
/// - Its sender has just heard etcd. Within `JUST` before it the connection of its stream has answered: a read that was made for it, or the
///   keep-alive before it. How long the answer took does not matter. So who hears nothing any more asks for no more time, and its lease
///   ends as soon as that of one who is not heard, but for `JUST`.
/// - Its time is counted from before it was sent (`Renewal::sent_after`), and by etcd from when it came. So nobody believes in a lease
///   for longer than etcd does. The read before it costs none of that time: a slow etcd makes nobody stale that it answers.
pub(super) struct KeepAlives {
    links: Links,
    held: Mutex<BTreeMap<LeaseId, Held>>,
}

impl KeepAlives {
    pub(super) fn new(links: Links) -> KeepAlives {
        KeepAlives { links, held: Mutex::new(BTreeMap::new()) }
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<LeaseId, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets a lease that nobody keeps any more.
    pub(super) fn forget(&self, lease: LeaseId) {
        self.held().remove(&lease);
    }

    /// Renews the lease; `None` is etcd's own word that it has ended (rule B3). Silence is not.
    ///
    /// A request is heard also where its answer is not: whoever asked at once would be taken for alive for up to a third of the TTL longer
    /// than one that is not heard. So the connection has to answer first, unless it has just done so. Each answer may take a third of
    /// the TTL.
    pub(super) async fn renew(&self, lease: LeaseId) -> Result<Option<Renewal>, KvError> {
        let begun = Instant::now();
        let (patience, stream) = match self.held().get_mut(&lease) {
            Some(held) => (held.ttl / 3, held.stream.take()),
            None => (FIRST_PATIENCE, None),
        };
        let link = match &stream {
            Some(stream) => stream.link.clone(),
            // A connection that is being made moves on to the next member by itself.
            None => match tokio::time::timeout(patience, self.connect()).await {
                Ok(link) => link?,
                Err(_) => return Err(KvError::Unavailable(unanswered(patience))),
            },
        };
        if stream.as_ref().is_none_or(|stream| stream.heard.elapsed() > JUST) {
            self.patiently(patience, &link, self.hear(&link)).await?;
        }
        let opened = match stream {
            Some(stream) => Some(stream),
            None => self.patiently(patience, &link, self.open(lease, &link)).await?,
        };
        let sent_after = begun.elapsed();
        let renewed = match opened {
            Some(stream) => self.patiently(patience, &link, self.ask(stream)).await?,
            None => None,
        };
        let Some((left, stream)) = renewed else {
            self.forget(lease);
            return Ok(None);
        };
        self.held().insert(lease, Held { ttl: left, stream: Some(stream) });
        Ok(Some(Renewal { left, sent_after }))
    }

    /// Waits for an answer as long as one may take; a connection that owes it for longer is given up.
    async fn patiently<T>(
        &self,
        patience: Duration,
        link: &Link,
        asked: impl Future<Output = Result<T, KvError>>,
    ) -> Result<T, KvError> {
        match tokio::time::timeout(patience, asked).await {
            Ok(answer) => answer,
            Err(_) => {
                self.links.lost(link);
                Err(KvError::Unknown(unanswered(patience)))
            }
        }
    }

    async fn connect(&self) -> Result<Link, KvError> {
        self.links.link().await.map_err(|error| match error.problem {
            Problem::Restored => KvError::Restored(error.to_string()),
            _ => KvError::Unavailable(error.to_string()),
        })
    }

    /// Returns once the member has answered. What it knows does not matter, so it asks no other member.
    async fn hear(&self, link: &Link) -> Result<(), KvError> {
        let nothing = GetOptions::new().with_count_only().with_serializable();
        let answer = link.kv.clone().get(self.links.any_key(), Some(nothing)).await;
        answer.map(drop).map_err(|error| self.failed(link, &error))
    }

    async fn ask(&self, mut stream: Stream) -> Result<Option<(Duration, Stream)>, KvError> {
        let asked = stream.keeper.keep_alive().await;
        let answer = match asked {
            Ok(()) => stream.answers.message().await,
            Err(error) => Err(error),
        };
        match answer {
            Ok(Some(answer)) => match u64::try_from(answer.ttl()) {
                Ok(seconds) if seconds > 0 => {
                    stream.heard = Instant::now();
                    Ok(Some((Duration::from_secs(seconds), stream)))
                }
                _ => Ok(None),
            },
            Ok(None) => {
                self.links.lost(&stream.link);
                Err(KvError::Unknown("etcd closed the stream of keep-alives".to_owned()))
            }
            Err(error) => Err(self.failed(&stream.link, &error)),
        }
    }

    /// Opens a stream; etcd-client asks once while it does so, which is a keep-alive like any other.
    async fn open(&self, lease: LeaseId, link: &Link) -> Result<Option<Stream>, KvError> {
        match link.lease.clone().keep_alive(convert::lease_id(lease)).await {
            Ok((keeper, answers)) => Ok(Some(Stream { link: link.clone(), keeper, answers, heard: Instant::now() })),
            Err(Error::LeaseKeepAliveError(said)) if said == ENDED => Ok(None),
            Err(error) => Err(self.failed(link, &error)),
        }
    }

    fn failed(&self, link: &Link, error: &Error) -> KvError {
        self.links.lost(link);
        match classify(error) {
            Failure::Refused(reason) | Failure::Unable(reason) | Failure::NotDone(reason) => {
                KvError::Unavailable(reason)
            }
            Failure::Ambiguous(reason) => KvError::Unknown(reason),
            Failure::LeaseNotFound | Failure::Compacted => KvError::Unknown(error.to_string()),
        }
    }
}
