//! Connections to etcd: one at a time, to one member, and to the next one when that fails. A connection is handed out only
//! after the member answered a linearizable read, so that what is sent on it has a leader and a quorum behind it.

use super::convert;
use super::failure::{Failure, classify, reason};
use super::options::{EtcdOptions, Tls, User};
use super::problem::{ConnectError, Problem};
use crate::kv::Position;
use etcd_client::{
    Certificate, Channel, Client, ConnectOptions, GetOptions, Identity, KvClient, LeaseClient, ResponseHeader,
    TlsOptions, WatchClient,
};
use futures::future::{BoxFuture, Shared};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use hyper_util::rt::TokioIo;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::TcpStream;
use tonic::transport::{Endpoint, Uri};

/// Largest answer to a read: a page of values of 64 KiB (rule Z5), and what surrounds them.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Largest message of a watch: gRPC's own limit. etcd sends up to a thousand revisions at once to a watch that catches up.
const WATCH_BYTES_MAX: usize = i32::MAX as usize;

/// Pings on a connection that waits for an answer. etcd closes connections that ping more often than every 5 s.
const PING_INTERVAL: Duration = Duration::from_secs(6);
const PING_TIMEOUT: Duration = Duration::from_secs(4);

/// The first versions whose progress notices never overtake events (rule Z5).
const PROGRESS_ORDERED: [(u32, u32, u32); 2] = [(3, 4, 25), (3, 5, 8)];

/// What this process has seen of the store: its identity, and the greatest revision (rule K7).
#[derive(Default)]
pub(super) struct Seen(Mutex<Option<Position>>);

impl Seen {
    /// What was seen until now: no answer to what is asked from here on may fall behind it.
    pub(super) fn get(&self) -> Option<Position> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of an answer to what was asked after `before` was seen; `Err` if it can come of no store that was there.
    pub(super) fn admit(&self, before: Option<Position>, header: &ResponseHeader) -> Result<Position, String> {
        let revision = convert::unsigned(header.revision());
        let position = Position { cluster: convert::cluster(header), revision };
        if let Some(reason) = gone_back(before, position) {
            return Err(reason);
        }
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = seen.get_or_insert(position);
        seen.revision = seen.revision.max(revision);
        Ok(position)
    }
}

/// A connection that worked when it was handed out.
#[derive(Clone)]
pub(super) struct Link {
    pub(super) kv: KvClient,
    pub(super) lease: LeaseClient,
    pub(super) watch: WatchClient,
    /// Whether a progress notice of this member never overtakes events.
    pub(super) progress_ordered: bool,
    number: u64,
}

/// An attempt to get a connection, shared by all who wait for one: whoever is awake drives it on. A lock that one of them held instead
/// would keep all others waiting for as long as its task does something else.
type Connecting = Shared<BoxFuture<'static, Result<(usize, Link), ConnectError>>>;

struct Current {
    /// The endpoint to try next.
    at: usize,
    /// How many connections were asked for.
    made: u64,
    link: Option<Link>,
    /// The newest connection that was given up.
    lost: u64,
    connecting: Option<Connecting>,
}

/// What it takes to connect.
struct Connector {
    options: Arc<EtcdOptions>,
    seen: Arc<Seen>,
    /// How long one member may take to answer before the next is tried beside it.
    turn: Duration,
    /// How long one member may take to answer.
    attempt: Duration,
}

/// The connections of one kind of traffic.
pub(super) struct Links {
    connector: Arc<Connector>,
    current: Mutex<Current>,
}

impl Links {
    pub(super) fn new(options: Arc<EtcdOptions>, seen: Arc<Seen>, turn: Duration, attempt: Duration) -> Links {
        let current = Mutex::new(Current { at: 0, made: 0, link: None, lost: 0, connecting: None });
        Links { connector: Arc::new(Connector { options, seen, turn, attempt }), current }
    }

    /// How long one member may take to answer.
    pub(super) fn attempt(&self) -> Duration {
        self.connector.attempt
    }

    /// What was seen of the store, by all connections.
    pub(super) fn seen(&self) -> &Seen {
        &self.connector.seen
    }

    /// A key that our user may read, for reads that ask for nothing but an answer.
    pub(super) fn any_key(&self) -> String {
        self.connector.any_key()
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        // Every change is one assignment.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection in use, or a new one; tries every member once. Nothing of the caller's was sent if this fails.
    ///
    /// Cancel safe: others go on with it.
    pub(super) async fn link(&self) -> Result<Link, ConnectError> {
        let connecting = {
            let mut current = self.current();
            if let Some(link) = &current.link {
                return Ok(link.clone());
            }
            match &current.connecting {
                Some(under_way) if under_way.peek().is_none() => under_way.clone(),
                _ => self.begin(&mut current),
            }
        };
        let (at, link) = connecting.await?;
        let mut current = self.current();
        // It may have been found out meanwhile that it is of no use.
        let newer = current.lost < link.number;
        if newer && current.link.is_none() {
            (current.at, current.link) = (at, Some(link.clone()));
        }
        Ok(link)
    }

    /// Begins with the endpoint to try now.
    fn begin(&self, current: &mut Current) -> Connecting {
        let (from, number) = (current.at, current.made + 1);
        current.made = number;
        // Also if nobody waits for this to its end, the next one begins elsewhere.
        current.at = (from + 1) % self.connector.options.endpoints.len().max(1);
        let connector = Arc::clone(&self.connector);
        let connecting = async move { connector.connect_any(from, number).await }.boxed().shared();
        current.connecting = Some(connecting.clone());
        connecting
    }

    /// Stops using a connection that failed, for everyone; the next one is to the next member.
    pub(super) fn lost(&self, lost: &Link) {
        let mut current = self.current();
        current.lost = current.lost.max(lost.number);
        if current.link.as_ref().is_some_and(|link| link.number == lost.number) {
            current.link = None;
            current.at = (current.at + 1) % self.connector.options.endpoints.len();
        }
    }
}

impl Connector {
    /// A key that our user may read.
    fn any_key(&self) -> String {
        format!("{}/cluster", self.options.prefix.trim_end_matches('/'))
    }

    /// Tries every member once, beginning with one: the next when one has failed, and beside one whose turn is over, which may be slow
    /// as they all are. Says which it was.
    async fn connect_any(&self, from: usize, number: u64) -> Result<(usize, Link), ConnectError> {
        let count = self.options.endpoints.len();
        let mut untried = (from..from + count).map(|at| at % count);
        let mut tried = FuturesUnordered::new();
        let mut worst: Option<ConnectError> = None;
        loop {
            tried.extend(untried.next().map(|at| async move { (at, self.connect(at, number).await) }));
            let ended = if untried.len() == 0 {
                tried.next().await
            } else {
                let Ok(ended) = tokio::time::timeout(self.turn, tried.next()).await else { continue };
                ended
            };
            match ended {
                Some((at, Ok(link))) => return Ok((at, link)),
                Some((_, Err(error))) => {
                    if worst.as_ref().is_none_or(|worst| error.problem > worst.problem) {
                        worst = Some(error);
                    }
                }
                None => break,
            }
        }
        Err(worst.unwrap_or_else(|| ConnectError::new("", Problem::Unreachable, "no address was given")))
    }

    async fn connect(&self, at: usize, number: u64) -> Result<Link, ConnectError> {
        let endpoint = &self.options.endpoints[at];
        let failed = |error: &etcd_client::Error| ConnectError::of(endpoint, error);
        let before = self.seen.get();
        let options = Arc::clone(&self.options);
        let read = tokio::task::spawn_blocking(move || options.reread()).await;
        // Only a runtime that ends drops it.
        let (tls, user) = read.unwrap_or_else(|_| (self.options.tls.clone(), self.options.user.clone()));
        if tls.as_ref().is_some_and(|tls| !tls.is_pem()) {
            return Err(ConnectError::new(endpoint, Problem::BadPem, "nothing in it begins as PEM does"));
        }
        let answered = async {
            let channel = dial(endpoint, tls.as_ref()).await.map_err(|error| failed(&error.into()))?;
            let client = Client::from_channel(Channel::Tonic(channel), Some(connect_options(user.as_ref()))).await;
            let client = client.map_err(|error| failed(&error))?;
            let kv = client.kv_client().max_decoding_message_size(ANSWER_BYTES_MAX);
            let (mut reader, mut maintenance) = (kv.clone(), client.maintenance_client());
            let read = reader.get(self.any_key(), Some(GetOptions::new().with_count_only()));
            // Older servers keep their version from users without the root role; that is no reason to refuse them.
            let status = maintenance.status().map(Result::ok).map(Ok);
            // Both at once, for the sake of a slow etcd.
            let (answer, status) = tokio::try_join!(read, status).map_err(|error| failed(&error))?;
            let header = answer
                .header()
                .ok_or_else(|| ConnectError::new(endpoint, Problem::NotEtcd, "it answered a read without a header"))?;
            let restored = |reason: String| ConnectError::new(endpoint, Problem::Restored, &reason);
            self.seen.admit(before, header).map_err(restored)?;
            let version = status.and_then(|status| version(status.version()));
            Ok((client, kv, version))
        };
        let answered = tokio::time::timeout(self.attempt, answered).await;
        let silent = |_| ConnectError::new(endpoint, Problem::Silent, &format!("no answer within {:?}", self.attempt));
        let (client, kv, version) = answered.map_err(silent)??;
        if let Some(old) = version.filter(|version| !progress_ordered(*version)) {
            tracing::warn!(%endpoint, version = ?old, "this etcd is too old to be relied on; upgrade it to 3.5.12 or later");
        }
        let watch = client.watch_client().max_decoding_message_size(WATCH_BYTES_MAX);
        let progress_ordered = version.is_none_or(progress_ordered);
        Ok(Link { kv, lease: client.lease_client(), watch, progress_ordered, number })
    }
}

fn connect_options(user: Option<&User>) -> ConnectOptions {
    let mut options = ConnectOptions::new()
        // A member cut off from its leader says so, instead of waiting with us.
        .with_require_leader(true)
        .with_auto_token_refresh(true);
    if let Some(user) = user {
        options = options.with_user(&user.name, String::from_utf8_lossy(user.password.reveal()));
    }
    options
}

/// One connection to a member, and never a second: one that breaks would else be made anew below us, past what `connect`
/// looks at, perhaps to a restored store (rule K7).
async fn dial(address: &str, tls: Option<&Tls>) -> Result<tonic::transport::Channel, tonic::transport::Error> {
    let scheme = if tls.is_some() { "https" } else { "http" };
    let mut endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))?
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    if let Some(tls) = tls {
        let mut theirs = TlsOptions::new().ca_certificate(Certificate::from_pem(&tls.ca));
        if let Some((certificate, key)) = &tls.identity {
            theirs = theirs.identity(Identity::from_pem(certificate, key.reveal()));
        }
        endpoint = endpoint.tls_config(theirs)?;
    }
    let (address, dialled) = (address.to_owned(), AtomicBool::new(false));
    let connector = tower::service_fn(move |_uri: Uri| {
        let again = dialled.swap(true, Ordering::Relaxed);
        let address = address.clone();
        async move {
            if again {
                return Err(io::Error::new(io::ErrorKind::NotConnected, "the connection broke"));
            }
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Ok(TokioIo::new(stream))
        }
    });
    endpoint.connect_with_connector(connector).await
}

/// Why `now` cannot follow `seen` (rule K7). Both are of linearizable answers, the second asked for after the first came.
fn gone_back(seen: Option<Position>, now: Position) -> Option<String> {
    let seen = seen?;
    if seen.cluster != now.cluster {
        let hex = |id: Option<u64>| format!("{:x}", id.unwrap_or(0));
        return Some(format!("it is cluster {}, not {}", hex(now.cluster), hex(seen.cluster)));
    }
    let behind = now.revision < seen.revision;
    behind.then(|| format!("it stands at revision {}, and stood at {}", now.revision, seen.revision))
}

fn version(text: &str) -> Option<(u32, u32, u32)> {
    let mut numbers = text.split('.').map(|part| {
        let digits = part.find(|c: char| !c.is_ascii_digit()).map_or(part, |end| &part[..end]);
        digits.parse().ok()
    });
    Some((numbers.next()??, numbers.next()??, numbers.next()??))
}

fn progress_ordered(version: (u32, u32, u32)) -> bool {
    let (major, minor, _) = version;
    match PROGRESS_ORDERED.iter().find(|first| (first.0, first.1) == (major, minor)) {
        Some(first) => version >= *first,
        None => version > PROGRESS_ORDERED[1],
    }
}

impl ConnectError {
    fn of(endpoint: &str, error: &etcd_client::Error) -> ConnectError {
        let said = reason(error);
        let problem = Problem::of(&said);
        let problem = match classify(error) {
            Failure::NotDone(_) if problem == Problem::Unreachable => Problem::NoLeader,
            _ => problem,
        };
        ConnectError::new(endpoint, problem, &said)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::Revision;

    #[test]
    fn restored_store_is_told_by_identity_and_revision() {
        let at = |cluster, revision| Position { cluster: Some(cluster), revision: Revision(revision) };
        assert_eq!(gone_back(None, at(1, 5)), None);
        assert_eq!(gone_back(Some(at(1, 5)), at(1, 5)), None);
        assert_eq!(gone_back(Some(at(1, 5)), at(1, 9)), None);
        assert!(gone_back(Some(at(1, 5)), at(1, 4)).is_some_and(|why| why.contains("revision 4")));
        assert!(gone_back(Some(at(0xab, 5)), at(2, 9)).is_some_and(|why| why.contains("ab")));
    }

    #[test]
    fn versions_are_told_apart() {
        let ordered = |text: &str| version(text).map(progress_ordered);
        assert_eq!(ordered("3.4.23"), Some(false));
        assert_eq!(ordered("3.4.25"), Some(true));
        assert_eq!(ordered("3.5.7"), Some(false));
        assert_eq!(ordered("3.5.12"), Some(true));
        assert_eq!(ordered("3.6.0-rc.1"), Some(true));
        assert_eq!(ordered("4.0.0"), Some(true));
        assert_eq!(ordered("3.3.10"), Some(false));
        assert_eq!(ordered("unknown"), None);
    }
}
