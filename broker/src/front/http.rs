//! The HTTP door: `/livez`, `/readyz`, `/metrics`. It is up before recovery and answers at once (case O5).

use crate::broker::Broker;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use std::sync::Arc;
use std::sync::OnceLock;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Filled with the broker once it is recovered, registered and serving: that is what "ready" means.
pub(crate) type Ready = Arc<OnceLock<Broker>>;

/// Serves until `shutdown`.
pub(crate) async fn serve(listener: TcpListener, ready: Ready, shutdown: CancellationToken) -> std::io::Result<()> {
    let live = || async { "ok\n" };
    let router = Router::new()
        .route("/livez", get(live))
        .route("/healthz", get(live))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/", get(|| async { "Millpond. See /livez, /readyz, /metrics.\n" }))
        .with_state(ready);
    axum::serve(listener, router).with_graceful_shutdown(async move { shutdown.cancelled().await }).await
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
