//! The gRPC door: `millpond.v1`, health and reflection on one listener.
//!
//! Decodes, calls one method of `Broker`, encodes. Streams are pulled by the transport: a client that does not read its
//! answers stops us from reading its requests, and cannot grow our memory.

mod admin;
mod answers;
mod convert;
mod fetch;
mod groups;
mod intake;
mod log;
mod produce;
mod status;
mod subscriptions;
mod taken;
mod transactions;

use super::connections::{Accepting, Connection};
use crate::Broker;
use crate::budget::Budget;
use crate::metrics::Metrics;
use crate::tls::Handshake;
use millpond_proto::v1::admin_server::AdminServer;
use millpond_proto::v1::groups_server::GroupsServer;
use millpond_proto::v1::log_server::LogServer;
use millpond_proto::v1::transactions_server::TransactionsServer;
use millpond_proto::{FILE_DESCRIPTOR_SET, FRAME_BYTES_MAX, MESSAGE_BYTES_MAX};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::service::{Routes, RoutesBuilder};
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tonic_health::server::HealthReporter;

/// Most streams and calls one connection may have open. A client needs two streams and some calls; proxies share one
/// connection among clients.
const STREAMS_PER_CONNECTION_MAX: u32 = 256;

/// HTTP/2 windows of what clients send, in bytes. What fits them may lie in memory outside of the budget, for each connection, when
/// its streams are not read; they are as small as they may be for a stream of 1 MiB batches on a local network.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 2 << 20;

/// A connection is closed after this silence. A live one answers checks all the time.
const SILENCE_MAX: Duration = Duration::from_secs(90);

/// What a client is told whom there is no place for: the settings that begin every connection, and GOAWAY with
/// ENHANCE_YOUR_CALM (RFC 9113, sections 6.5 and 6.8).
const REFUSAL: &[u8] = b"\0\0\0\x04\0\0\0\0\0\
    \0\0\x1c\x07\0\0\0\0\0\0\0\0\0\0\0\0\x0btoo many connections";

/// How often a silent connection is checked, so that clients that vanished do not hold streams.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);

/// How long an unanswered check is waited for.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// How long connections may take to end after a shutdown. Batches in flight are answered well within it.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);

/// Serves the gRPC API on `listener`, over TLS if there is a handshake, until `shutdown` resolves.
///
/// After it, new calls are refused, streams answer what is in flight and end with `UNAVAILABLE`, and what has not ended
/// within 10 s is cut. Returns once no connection is left.
///
/// # Errors
/// Only if the server cannot be set up; a connection's failure is its own.
pub(crate) async fn serve(
    broker: Broker,
    listener: TcpListener,
    tls: Option<Handshake>,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), tonic::transport::Error> {
    let stop = CancellationToken::new();
    let metrics = Arc::clone(&broker.inner().metrics);
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<LogServer<log::LogService>>().await;
    health.set_serving::<GroupsServer<groups::GroupsService>>().await;
    health.set_serving::<TransactionsServer<transactions::TransactionsService>>().await;
    health.set_serving::<AdminServer<admin::AdminService>>().await;
    let (budget, places) = (broker.inner().budget.clone(), broker.inner().connections.grpc.clone());
    let log = LogServer::new(log::LogService::new(broker.clone(), stop.clone()))
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let groups = GroupsServer::new(groups::GroupsService::new(broker.clone()));
    let transactions = TransactionsServer::new(transactions::TransactionsService::new(broker.clone()));
    let admin = AdminServer::new(admin::AdminService::new(broker));
    let mut routes = Routes::builder();
    routes
        .add_service(log)
        .add_service(groups)
        .add_service(transactions)
        .add_service(admin)
        .add_service(health_service);
    add_reflection(&mut routes);
    let accepting = Accepting::new(listener, places, REFUSAL, SILENCE_MAX, tls);
    serve_routes(metrics, routes.routes(), budget, health, accepting, stop, shutdown).await
}

impl Connected for Connection {
    type ConnectInfo = intake::Share;

    fn connect_info(&self) -> intake::Share {
        intake::Share::new()
    }
}

/// Adds server reflection in both versions that tools ask for.
fn add_reflection(routes: &mut RoutesBuilder) {
    let builder = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            // What the details of an error are: without it clients that go by reflection show them as bytes.
            .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
    };
    routes.add_service(builder().build_v1().expect("our descriptors are valid"));
    routes.add_service(builder().build_v1alpha().expect("our descriptors are valid"));
}

async fn serve_routes(
    metrics: Arc<Metrics>,
    routes: Routes,
    budget: Budget,
    health: HealthReporter,
    accepting: Accepting,
    stop: CancellationToken,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), tonic::transport::Error> {
    let metered = axum::middleware::from_fn_with_state(budget, intake::meter);
    let routes = Routes::from(routes.into_axum_router().layer(metered));
    let server = Server::builder()
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES_MAX)
        .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .trace_fn(move |request| taken::call(&metrics, request))
        .add_routes(routes)
        .serve_with_incoming_shutdown(accepting.incoming(), stop.clone().cancelled_owned());
    let cut = async {
        shutdown.await;
        health.set_not_serving::<LogServer<log::LogService>>().await;
        health.set_not_serving::<GroupsServer<groups::GroupsService>>().await;
        health.set_not_serving::<TransactionsServer<transactions::TransactionsService>>().await;
        health.set_not_serving::<AdminServer<admin::AdminService>>().await;
        stop.cancel();
        tokio::time::sleep(SHUTDOWN_GRACE).await;
    };
    tokio::select! {
        served = server => served,
        () = cut => Ok(()),
    }
}

#[cfg(test)]
mod tests;
