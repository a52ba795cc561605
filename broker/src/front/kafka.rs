//! The Kafka door: existing clients and tools, unchanged, on the same topics.
//!
//! Frames are read and answered in order by `connection`; `request` holds the table of what is served; each request has a
//! file with its messages and its handler, which calls one method of `Broker`. The messages are declared here rather than
//! taken from a crate: what generic decoders allocate, they allocate from lengths that the client claims.

mod active_producers;
mod configs;
mod connection;
mod coordinator;
mod describe;
mod door;
mod elections;
mod epochs;
mod fetch;
mod frame;
mod groups;
mod leaders;
mod log_dirs;
mod metadata;
mod offsets;
mod operations;
mod orders;
mod partitions;
mod produce;
mod producers;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod properties;
mod reassignments;
mod refused;
mod request;
mod throttle;
mod topics;
mod transactions;
mod versions;
mod wire;

pub use request::{Request, RequestError, decode_request};
pub use wire::Malformed;

use super::connections::accept;
use crate::Broker;
use crate::api::BrokerDescription;
use crate::budget::{Held, Pace};
use crate::tls::{Handshake, Stream};
use connection::{End, Limits};
use door::Door;
use frame::{Foreign, FrameError};
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// What one connection may take.
const LIMITS: Limits = Limits {
    frame_bytes_max: 100 << 20,
    // Clients keep five in flight at most if they are to keep order, librdkafka any number if not; this many hide any latency.
    requests_max: 64,
    share_bytes_max: 16 << 20,
    answer_bytes_max: 64 << 20,
    pace: Pace::DEFAULT,
    idle: Duration::from_secs(600),
    stalled: Duration::from_secs(10),
    drain: Duration::from_secs(5),
};

const _: () = assert!(fetch::ANSWER_BYTES_MAX <= LIMITS.answer_bytes_max, "a full fetch fits");
const _: () =
    assert!(2 * fetch::ANSWER_BYTES_MAX > LIMITS.answer_bytes_max, "requests of a session are carried out one by one");

/// One listener of the door.
pub(crate) struct Entrance {
    pub(crate) listener: TcpListener,
    /// Its name: clients are told to dial what the brokers advertise under it.
    pub(crate) name: Arc<str>,
    /// Its handshake, if it speaks TLS.
    pub(crate) tls: Option<Handshake>,
}

/// Serves the Kafka protocol at one listener until `shutdown` resolves.
///
/// After `shutdown` no request is read; those under way
/// are answered within 5 s. Returns once no connection is left.
pub(crate) async fn serve(broker: Broker, entrance: Entrance, shutdown: impl Future<Output = ()> + Send) {
    let Entrance { listener, name, tls } = entrance;
    let stop = CancellationToken::new();
    let mut connections = JoinSet::new();
    let places = &broker.inner().connections.kafka;
    let accept = async {
        loop {
            tokio::select! {
                // Kafka has no message for who did not ask anything.
                (stream, peer, place) = accept(&listener, places, b"") => {
                    let (broker, name, tls, stop) = (broker.clone(), Arc::clone(&name), tls.clone(), stop.clone());
                    connections.spawn(async move {
                        let _place: Held = place;
                        match tls {
                            None => plain(broker, name, stream, peer, stop).await,
                            Some(tls) => encrypted(broker, name, tls, stream, peer, stop).await,
                        }
                    });
                }
                Some(ended) = connections.join_next(), if !connections.is_empty() => log_panic(ended),
            }
        }
    };
    tokio::select! {
        () = accept => {}
        () = shutdown => {}
    }
    drop(listener);
    stop.cancel();
    while let Some(ended) = connections.join_next().await {
        log_panic(ended);
    }
}

fn log_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a Kafka connection ended by a fault of ours");
    }
}

async fn plain(broker: Broker, listener: Arc<str>, stream: TcpStream, peer: SocketAddr, stop: CancellationToken) {
    let local = stream.local_addr().ok();
    let (reader, writer) = stream.into_split();
    serve_one(broker, listener, (reader, writer), (local, peer), stop).await;
}

async fn encrypted(
    broker: Broker,
    listener: Arc<str>,
    tls: Handshake,
    stream: TcpStream,
    peer: SocketAddr,
    stop: CancellationToken,
) {
    let local = stream.local_addr().ok();
    let shaken: Option<Stream> = tokio::select! {
        shaken = tls.shake(stream, peer) => shaken,
        () = stop.cancelled() => None,
    };
    if let Some(stream) = shaken {
        serve_one(broker, listener, tokio::io::split(stream), (local, peer), stop).await;
    }
}

async fn serve_one(
    broker: Broker,
    listener: Arc<str>,
    (reader, writer): (impl AsyncRead + Unpin, impl AsyncWrite + Unpin),
    (local, peer): (Option<SocketAddr>, SocketAddr),
    stop: CancellationToken,
) {
    let door = Door::new(broker.clone(), listener, peer);
    let budget = &broker.inner().budget;
    let frame_bytes_max = LIMITS.frame_bytes_max.min(budget.large_requests.bytes());
    let limits = Limits { frame_bytes_max, ..LIMITS };
    match connection::run(reader, writer, &door, limits, budget, stop.cancelled()).await {
        End::Shutdown | End::Frame(FrameError::Closed | FrameError::Idle | FrameError::Io(_)) | End::Send(_) => {}
        End::Foreign(speaks) => {
            let port = local.map_or(0, |local| local.port());
            tracing::warn!(%peer, "{}", hint(speaks, port, grpc_address(&broker, port).as_deref()));
        }
        ended => tracing::warn!(%peer, reason = %ended, "closed a Kafka connection"),
    }
}

/// What to tell an operator whose client dialled the wrong port.
fn hint(speaks: Foreign, port: u16, grpc: Option<&str>) -> String {
    let grpc = grpc.unwrap_or("which `millpond cluster describe` shows");
    match speaks {
        Foreign::Grpc => format!("the client speaks gRPC; Kafka's port is {port}; use the gRPC port, {grpc}"),
        Foreign::Http => format!("the client speaks HTTP; Kafka's port is {port}; for gRPC use {grpc}"),
        Foreign::Tls => format!("the client speaks TLS; Kafka's port {port} is plain text (see --kafka-listener)"),
    }
}

/// The gRPC address of the broker whose Kafka door listens on `port`.
fn grpc_address(broker: &Broker, port: u16) -> Option<String> {
    let ours = format!(":{port}");
    let listens = |broker: &BrokerDescription| {
        broker.kafka_listeners.values().chain([&broker.kafka]).any(|address| address.ends_with(&ours))
    };
    broker.describe_cluster().brokers.into_iter().find(listens).map(|broker| broker.grpc)
}
