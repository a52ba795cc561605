//! The streams to and from the other brokers: one link to each live one, and the door that theirs come in by.
//!
//! They carry what replicas decide (rules R3, R8) and prove who speaks. Nothing is queued but which partitions have something to
//! say: batches are read from the WAL when there is room to send them. Nothing is decided here about a partition.

mod caller;
mod cursors;
mod ends;
mod lane;
mod meters;
mod proof;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod properties;
mod pulse;
mod receive;
mod serve;
pub(crate) mod strangers;
mod suspect;
#[cfg(test)]
mod tests;
mod transactions;
mod wire;
mod wishes;

use crate::config::InternalTls;
use crate::marks::Asked;
use crate::partitions::links::{LinkMsg, Links};
use crate::partitions::messages::{ShardMsg, ShardSender};
use crate::secret::Secret;
use crate::session::SessionHandle;
use crate::tls::Credentials;
use crate::wal::Wal;
use caller::{CallError, Caller, Dialer};
use futures::future::join_all;
use lane::Lane;
use meters::PeerMeters;
use millpond_core::election::Holds;
use millpond_core::records::SessionRecord;
use millpond_log::limits::BATCH_BYTES_MAX;
use millpond_log::{BrokerId, Incarnation, PartitionId, Rid};
use millpond_metadata::store::{Store, Versioned};
use millpond_proto::internal::{HoldsRequest, PartitionRef};
use opentelemetry::metrics::Meter;
use proof::Prover;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use strangers::Strangers;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Largest message, in bytes: a frame of its usual size, and the largest batch.
const MESSAGE_BYTES_MAX: usize = FRAME_BYTES + BATCH_BYTES_MAX as usize + (1 << 20);

/// Bytes of batches that a frame is filled up to; a larger batch is alone in its own. One sync of a fast disk.
const FRAME_BYTES: usize = 1 << 20;

/// Another broker, in one life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) rid: Rid,
    pub(crate) inc: Incarnation,
    /// `host:port` of its internal door; `None` if it has none, and so takes part in no replication.
    pub(crate) address: Option<String>,
}

impl Peer {
    /// The broker behind a session.
    pub(crate) fn of(broker: BrokerId, session: &Versioned<SessionRecord>) -> Peer {
        Peer {
            rid: Rid { broker, wal_gen: session.value.wal_gen },
            inc: Incarnation(session.revision.0),
            address: session.value.internal.clone(),
        }
    }
}

/// What is known of whether a broker without a session runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Runs {
    /// It has proven itself there.
    At { address: String },
    /// Its port refuses connections wherever it is known to have been: its process is gone (rule E1a).
    No,
    /// Anything else: silence proves nothing.
    Unknown { reason: String },
}

/// One of the two ways to a broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaneKind {
    /// For partitions whose follower is near the log's end: it never waits for a disk for long.
    Live,
    /// For partitions whose follower has far to go.
    CatchUp,
}

impl LaneKind {
    fn name(self) -> &'static str {
        match self {
            LaneKind::Live => "live",
            LaneKind::CatchUp => "catch_up",
        }
    }
}

type ShardOf = for<'a> fn(PartitionId, &'a [ShardSender]) -> &'a ShardSender;

/// What the streams are made of. Given once.
pub(crate) struct Parts {
    pub(crate) cluster: String,
    pub(crate) me: BrokerId,
    /// Without one there are no streams at all.
    pub(crate) secret: Option<Secret>,
    /// Without it what is said can be read and changed on the way.
    pub(crate) tls: Option<InternalTls>,
    pub(crate) session: SessionHandle,
    pub(crate) store: Store,
    pub(crate) wal: Wal,
    pub(crate) links: Links,
    pub(crate) shards: Vec<ShardSender>,
    /// Which of `shards` has a partition.
    pub(crate) shard_of: ShardOf,
    /// Takes what other brokers ask about transactions.
    pub(crate) asked: mpsc::Sender<Asked>,
    /// Bounds of those who have not proven themselves.
    pub(crate) strangers: Strangers,
    pub(crate) meter: Meter,
}

/// All links. Cheap to clone. What it starts ends with `run`.
#[derive(Clone)]
pub(crate) struct Peers {
    shared: Arc<Shared>,
}

struct Shared {
    cluster: String,
    me: BrokerId,
    dialer: Option<Dialer>,
    session: SessionHandle,
    store: Store,
    wal: Wal,
    links: Links,
    shards: Vec<ShardSender>,
    shard_of: ShardOf,
    asked: mpsc::Sender<Asked>,
    strangers: Strangers,
    meters: PeerMeters,
    known: Mutex<BTreeMap<BrokerId, Link>>,
    /// Where brokers were that have no session any more.
    departed: Mutex<BTreeMap<BrokerId, String>>,
    begin: UnboundedSender<Lane>,
}

/// A broker, and the way to it if there can be one.
#[derive(Clone)]
struct Link {
    peer: Peer,
    way: Option<Way>,
}

#[derive(Clone)]
struct Way {
    sender: UnboundedSender<LinkMsg>,
    stop: CancellationToken,
    /// The live lane's connection, while there is one.
    caller: Arc<Mutex<Option<Caller>>>,
}

/// Runs the links. Dropped, it ends them.
pub(crate) struct Runner {
    lanes: UnboundedReceiver<Lane>,
}

impl Peers {
    /// No links yet; `set` makes them, and the runner runs them.
    pub(crate) fn new(parts: Parts) -> (Peers, Runner) {
        let (begin, lanes) = unbounded_channel();
        let Parts { cluster, me, secret, tls, session, store, wal, links, shards, shard_of, asked, strangers, meter } =
            parts;
        let tls = tls.map(Credentials::new);
        let dialer = secret.map(|secret| Dialer { me, prover: Prover::new(secret, cluster.clone()), tls });
        let (meters, known, departed) = (PeerMeters::new(&meter), Mutex::default(), Mutex::default());
        let shared = Shared {
            cluster,
            me,
            dialer,
            session,
            store,
            wal,
            links,
            shards,
            shard_of,
            asked,
            strangers,
            meters,
            known,
            departed,
            begin,
        };
        (Peers { shared: Arc::new(shared) }, Runner { lanes })
    }

    /// Makes the links those to `peers`, and hands shards the ways to them. To be called before any shard hears of these brokers.
    ///
    /// A broker that is registered anew, or lives elsewhere, gets a new link; one that is gone loses its own.
    pub(crate) fn set(&self, mut peers: BTreeMap<BrokerId, Peer>) {
        peers.remove(&self.shared.me);
        let (mut known, mut departed) = (self.shared.known(), self.shared.departed());
        departed.retain(|broker, _| !peers.contains_key(broker));
        known.retain(|broker, link| {
            let stays = peers.get(broker) == Some(&link.peer);
            if !stays {
                link.end();
            }
            if !peers.contains_key(broker) {
                departed.extend(link.peer.address.clone().map(|address| (*broker, address)));
            }
            stays
        });
        for (broker, peer) in peers {
            known.entry(broker).or_insert_with(|| self.link(peer));
        }
        let ways = known.iter().filter_map(|(broker, link)| Some((*broker, link.way.as_ref()?.sender.clone())));
        self.shared.links.set(ways.collect());
    }

    fn link(&self, peer: Peer) -> Link {
        let broker = peer.rid.broker;
        let (Some(dialer), Some(address)) = (&self.shared.dialer, &peer.address) else {
            let lacks = if peer.address.is_none() { broker } else { self.shared.me };
            tracing::warn!(
                %broker,
                "no replication between this broker and broker {broker}: broker {lacks} has no cluster secret; start every broker \
                 with the same --cluster-secret-file, or MILLPOND_CLUSTER_SECRET"
            );
            return Link { peer, way: None };
        };
        let (sender, inbox) = unbounded_channel();
        let (behind, behind_inbox) = unbounded_channel();
        let (stop, caller) = (CancellationToken::new(), Arc::default());
        let target = lane::Target { peer: peer.clone(), address: address.clone(), dialer: dialer.clone() };
        let way = Way { sender, stop: stop.clone(), caller: Arc::clone(&caller) };
        let live =
            Lane::live(Arc::clone(&self.shared), target.clone(), inbox, behind, way.caller.clone(), stop.clone());
        let catch_up = Lane::catch_up(Arc::clone(&self.shared), target, behind_inbox, stop);
        // Without a runner the broker is ending.
        let _ = self.shared.begin.send(live);
        let _ = self.shared.begin.send(catch_up);
        Link { peer, way: Some(way) }
    }

    /// Whether a broker without a session runs all the same, as one does that is cut off from the metadata store alone. It is looked for wherever it
    /// is known to have been: at `on_record`, `host:port` of its internal door by its last registration, and where this broker saw it.
    pub(crate) async fn runs(&self, broker: BrokerId, on_record: Option<String>) -> Runs {
        let Some(dialer) = &self.shared.dialer else {
            return Runs::Unknown {
                reason: "the broker that was asked has no cluster secret, and can call no other".to_owned(),
            };
        };
        let known = self.shared.known().get(&broker).and_then(|link| link.peer.address.clone());
        let was = self.shared.departed().get(&broker).cloned();
        let addresses: BTreeSet<String> = [on_record, known, was].into_iter().flatten().collect();
        if addresses.is_empty() {
            return Runs::Unknown { reason: "no address of it is known".to_owned() };
        }
        let asked = addresses.into_iter().map(async |address| (dialer.call(broker, &address).await.map(drop), address));
        let mut runs = Runs::No;
        for answered in join_all(asked).await {
            match answered {
                (Ok(()), address) => return Runs::At { address },
                (Err(CallError::Refused { .. }), _) => {}
                (Err(error), _) => runs = Runs::Unknown { reason: error.to_string() },
            }
        }
        runs
    }

    /// Asks brokers how far their copies of partitions are (rule E5), for at most `within`. Who does not answer is not in it.
    pub(crate) async fn ask_holds(
        &self,
        brokers: &BTreeSet<BrokerId>,
        partitions: &[PartitionId],
        within: Duration,
    ) -> BTreeMap<(PartitionId, Rid), Holds> {
        let asked = brokers.iter().map(|broker| tokio::time::timeout(within, self.ask_one(*broker, partitions)));
        let answered = join_all(asked).await;
        answered.into_iter().filter_map(Result::ok).flatten().flatten().collect()
    }

    async fn ask_one(
        &self,
        broker: BrokerId,
        partitions: &[PartitionId],
    ) -> Option<BTreeMap<(PartitionId, Rid), Holds>> {
        if broker == self.shared.me {
            let rid = self.shared.session.get()?.rid;
            let held = self.shared.holds(partitions).await;
            return Some(held.into_iter().map(|(partition, holds)| ((partition, rid), holds)).collect());
        }
        let link = self.shared.known().get(&broker).cloned()?;
        let caller = self.shared.caller(&link).await?;
        let partition = |id: &PartitionId| PartitionRef { topic: wire::topic_out(id.topic), partition: id.index };
        let request = HoldsRequest { partitions: partitions.iter().map(partition).collect() };
        let answer = caller.client().holds(caller.request(request)).await.ok()?.into_inner();
        let (rid, inc) = wire::replica_in(&answer.replica?);
        // Another life than the one that is known may be another disk.
        if (rid, inc) != (link.peer.rid, link.peer.inc) {
            return None;
        }
        let held = answer.held.iter().filter_map(|held| wire::held_in(held).ok());
        let wanted: BTreeSet<&PartitionId> = partitions.iter().collect();
        Some(held.filter(|(id, _)| wanted.contains(id)).map(|(id, holds)| ((id, rid), holds)).collect())
    }
}

impl Shared {
    fn known(&self) -> MutexGuard<'_, BTreeMap<BrokerId, Link>> {
        // A panic cannot leave the table half changed for readers: each link is whole.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn departed(&self) -> MutexGuard<'_, BTreeMap<BrokerId, String>> {
        // As `known`. Whoever takes both takes that first.
        self.departed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shard(&self, partition: PartitionId) -> &ShardSender {
        (self.shard_of)(partition, &self.shards)
    }

    /// How far the copies here are. What is not here is not in it.
    async fn holds(&self, partitions: &[PartitionId]) -> Vec<(PartitionId, Holds)> {
        let partitions: Arc<[PartitionId]> = partitions.into();
        let asked = self.shards.iter().map(|shard| {
            let (reply, answer) = tokio::sync::oneshot::channel();
            // A shard that is gone ends the broker; nobody hears of its replicas any more.
            let _ = shard.send(ShardMsg::Holds { partitions: Arc::clone(&partitions), reply });
            answer
        });
        join_all(asked).await.into_iter().filter_map(Result::ok).flatten().collect()
    }

    /// The connection that the link has, or one of its own.
    async fn caller(&self, link: &Link) -> Option<Caller> {
        let open = link.way.as_ref()?.caller.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match open {
            Some(caller) => Some(caller),
            None => self.dialer.as_ref()?.call(link.peer.rid.broker, link.peer.address.as_deref()?).await.ok(),
        }
    }
}

impl Link {
    fn end(&self) {
        if let Some(way) = &self.way {
            way.stop.cancel();
        }
    }
}

impl Runner {
    /// Runs links as they are made, until the task is dropped.
    ///
    /// # Errors
    /// A link panicked: the broker has to end.
    pub(crate) async fn run(mut self) -> Result<(), String> {
        let mut lanes = JoinSet::new();
        loop {
            tokio::select! {
                Some(lane) = self.lanes.recv() => {
                    lanes.spawn(lane.run());
                }
                Some(ended) = lanes.join_next() => ended.map_err(|error| format!("a link to a broker panicked: {error}"))?,
                else => return Ok(()),
            }
        }
    }
}
