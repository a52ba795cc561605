//! The HTTP door: `/livez`, `/readyz`, `/metrics`. It is up before recovery and until the end, and answers at once (case O5).

use super::connections::{Accepting, Connection};
use crate::budget::Connections;
use crate::metrics::Metrics;
use crate::session::SessionHandle;
use crate::tls::Handshake;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// A connection is closed after this silence: longer than the usual interval of scrapes.
const SILENCE_MAX: Duration = Duration::from_secs(75);

/// What a client is told whom there is no place for.
const REFUSAL: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 21\r\n\r\ntoo many connections\n";

/// The listener, with places.
struct Places(Accepting);

impl axum::serve::Listener for Places {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        self.0.next().await
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

/// Whether the broker serves, as its parts show it.
#[derive(Clone)]
pub(crate) struct Readiness {
    /// Held while the broker is registered.
    pub(crate) session: SessionHandle,
    /// Set once the broker is recovered and its doors are open.
    pub(crate) open: Arc<AtomicBool>,
    /// Cancelled once it was asked to end, or has to.
    pub(crate) shutdown: CancellationToken,
}

impl Readiness {
    /// Why clients had better go elsewhere, if they had. Never about lag, replicas or the object store: a broker that waits for
    /// those still serves what it can.
    fn unready(&self) -> Option<&'static str> {
        if self.shutdown.is_cancelled() {
            Some("stopping\n")
        } else if !self.open.load(Ordering::Acquire) {
            Some("recovering\n")
        } else if self.session.get().is_none() {
            Some("registering\n")
        } else {
            None
        }
    }

    /// Makes it a metric.
    pub(crate) fn register(&self, metrics: &Metrics) {
        let readiness = self.clone();
        metrics
            .meter()
            .u64_observable_gauge("millpond_broker_ready")
            .with_description("1 while recovered, registered and serving")
            .with_callback(move |observer| observer.observe(u64::from(readiness.unready().is_none()), &[]))
            .build();
    }
}

/// What the door can tell.
#[derive(Clone)]
struct Health {
    readiness: Readiness,
    metrics: Arc<Metrics>,
}

/// Serves until `end`.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Option<Handshake>,
    places: Connections,
    readiness: Readiness,
    metrics: Arc<Metrics>,
    end: CancellationToken,
) -> std::io::Result<()> {
    let live = || async { "ok\n" };
    let router = Router::new()
        .route("/livez", get(live))
        .route("/healthz", get(live))
        .route("/readyz", get(readyz))
        .route("/metrics", get(self::metrics))
        .route("/", get(|| async { "Millpond. See /livez, /readyz, /metrics.\n" }))
        .with_state(Health { readiness, metrics });
    let places = Places(Accepting::new(listener, places, REFUSAL, SILENCE_MAX, tls));
    axum::serve(places, router).with_graceful_shutdown(async move { end.cancelled().await }).await
}

async fn readyz(State(health): State<Health>) -> Response {
    match health.readiness.unready() {
        None => "ready\n".into_response(),
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, why).into_response(),
    }
}

async fn metrics(State(health): State<Health>) -> Response {
    match health.metrics.text() {
        Ok(text) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}
