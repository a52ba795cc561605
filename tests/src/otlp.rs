//! A collector of telemetry on loopback: takes spans and metrics by OTLP over gRPC, keeps them, and lets a test wait for them.

use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{ExportMetricsServiceRequest, ExportMetricsServiceResponse};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::Metric;
use opentelemetry_proto::tonic::trace::v1::Span;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

/// How long something may take to arrive.
const PATIENCE: Duration = Duration::from_secs(60);

/// What arrived.
#[derive(Clone, Debug, Default)]
pub struct Received {
    /// Every span, in the order of arrival.
    pub spans: Vec<Span>,
    /// The metrics of the newest push.
    pub metrics: Vec<Metric>,
    /// `service.instance.id` of whoever sent last.
    pub instance: Option<String>,
    /// Values of the header `authorization`, in the order of arrival.
    pub authorizations: Vec<String>,
}

/// A collector. Ended when dropped.
pub struct Collector {
    address: SocketAddr,
    received: watch::Sender<Received>,
    server: JoinHandle<()>,
}

impl Collector {
    /// Starts one on a free port.
    ///
    /// # Panics
    /// If loopback has no free port.
    pub async fn start() -> Collector {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("loopback has a free port");
        let address = listener.local_addr().expect("it is bound");
        let received = watch::Sender::new(Received::default());
        let service = Service { received: received.clone() };
        let server = Server::builder()
            .add_service(TraceServiceServer::new(service.clone()))
            .add_service(MetricsServiceServer::new(service));
        let server = tokio::spawn(async move {
            server.serve_with_incoming(TcpIncoming::from(listener)).await.expect("the collector serves");
        });
        Collector { address, received, server }
    }

    /// The URL that a sender is given.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What has arrived so far.
    #[must_use]
    pub fn received(&self) -> Received {
        self.received.borrow().clone()
    }

    /// Waits until what arrived satisfies `enough`, which is called again with each arrival.
    ///
    /// # Panics
    /// If it does not in time, with what is there.
    pub async fn wait_for(&self, what: &str, enough: impl Fn(&Received) -> bool) -> Received {
        let mut received = self.received.subscribe();
        let arrived = tokio::time::timeout(PATIENCE, received.wait_for(|received| enough(received))).await;
        match arrived {
            Ok(received) => received.expect("the sender lives as long as this").clone(),
            Err(_) => panic!("{what} did not arrive; spans: {:#?}", self.received().spans),
        }
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.server.abort();
    }
}

#[derive(Clone)]
struct Service {
    received: watch::Sender<Received>,
}

impl Service {
    fn note<T>(&self, request: &Request<T>, resource: Option<&[KeyValue]>, arrived: impl FnOnce(&mut Received)) {
        let authorization = request.metadata().get("authorization").and_then(|value| value.to_str().ok());
        self.received.send_modify(|received| {
            received.authorizations.extend(authorization.map(str::to_owned));
            received.instance = resource.and_then(|attributes| text(attributes, "service.instance.id"));
            arrived(received);
        });
    }
}

#[tonic::async_trait]
impl TraceService for Service {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let resources = &request.get_ref().resource_spans;
        let resource = resources.first().and_then(|spans| spans.resource.as_ref());
        let spans = resources.iter().flat_map(|spans| &spans.scope_spans).flat_map(|spans| spans.spans.clone());
        let attributes = resource.map(|resource| resource.attributes.as_slice());
        self.note(&request, attributes, |received| received.spans.extend(spans));
        Ok(Response::new(Default::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Service {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        let resources = &request.get_ref().resource_metrics;
        let resource = resources.first().and_then(|metrics| metrics.resource.as_ref());
        let metrics =
            resources.iter().flat_map(|metrics| &metrics.scope_metrics).flat_map(|scope| scope.metrics.clone());
        let attributes = resource.map(|resource| resource.attributes.as_slice());
        self.note(&request, attributes, |received| received.metrics = metrics.collect());
        Ok(Response::new(Default::default()))
    }
}

/// The text that `key` has among `attributes`.
#[must_use]
pub fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    match found.value.as_ref()?.value.as_ref()? {
        any_value::Value::StringValue(text) => Some(text.clone()),
        any_value::Value::IntValue(number) => Some(number.to_string()),
        other => Some(format!("{other:?}")),
    }
}
