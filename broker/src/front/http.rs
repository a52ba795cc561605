//! The HTTP door: `/livez`, `/readyz`, `/metrics`. It is up before recovery and answers at once (case O5).

use super::connections::{Connection, accept};
use crate::broker::Broker;
use crate::budget::Connections;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Filled with the broker once it is recovered, registered and serving: that is what "ready" means.
pub(crate) type Ready = Arc<OnceLock<Broker>>;

/// A connection is closed after this silence: longer than the usual interval of scrapes.
const SILENCE_MAX: Duration = Duration::from_secs(75);

/// What a client is told whom there is no place for.
const REFUSAL: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 21\r\n\r\ntoo many connections\n";

/// The listener, with places.
struct Places {
    listener: TcpListener,
    places: Connections,
}

impl axum::serve::Listener for Places {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let (stream, peer, place) = accept(&self.listener, &self.places, REFUSAL).await;
        (Connection::new(stream, place, SILENCE_MAX), peer)
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Serves until `shutdown`.
pub(crate) async fn serve(
    listener: TcpListener,
    places: Connections,
    ready: Ready,
    shutdown: CancellationToken,
) -> std::io::Result<()> {
    let live = || async { "ok\n" };
    let router = Router::new()
        .route("/livez", get(live))
        .route("/healthz", get(live))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/", get(|| async { "Millpond. See /livez, /readyz, /metrics.\n" }))
        .with_state(ready);
    axum::serve(Places { listener, places }, router)
        .with_graceful_shutdown(async move { shutdown.cancelled().await })
        .await
}

async fn readyz(State(ready): State<Ready>) -> Response {
    match ready.get() {
        Some(_) => "ready\n".into_response(),
        None => (StatusCode::SERVICE_UNAVAILABLE, "recovering\n").into_response(),
    }
}

async fn metrics(State(ready): State<Ready>) -> Response {
    match ready.get() {
        Some(broker) => (
            [(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")],
            broker.metrics_text(),
        )
            .into_response(),
        None => (StatusCode::SERVICE_UNAVAILABLE, "recovering\n").into_response(),
    }
}
