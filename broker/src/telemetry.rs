//! What leaves the process by OTLP: traces, and the push of `metrics`. Nothing is made or sent unless a collector is named.
//!
//! Credentials for the collector come from `OTEL_EXPORTER_OTLP_HEADERS`, which the exporter reads; they pass through nothing of ours.

mod parents;
mod tails;

pub(crate) use parents::{Parent, child};
pub(crate) use tails::TracedTails;

use opentelemetry::trace::{Link, SpanKind, TraceId, TracerProvider as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{ExporterBuildError, MetricExporter, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkError;
use opentelemetry_sdk::metrics::MeterProviderBuilder;
use opentelemetry_sdk::trace::{Sampler, SamplingDecision, SamplingResult, SdkTracerProvider, ShouldSample};
use std::time::Duration;
use tracing::level_filters::LevelFilter;
use tracing::{Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::FilterFn;
use tracing_subscriber::registry::LookupSpan;

/// Share of traces that are kept unless told otherwise. One in a hundred shows what is slow, and costs a busy broker little;
/// a client that sampled its own request has it traced in any case.
pub const TRACE_RATIO_DEFAULT: f64 = 0.01;

/// How long the last spans may take to leave when the process ends.
const PUSH_PATIENCE: Duration = Duration::from_secs(2);

/// A collector, and as whom we speak to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Otlp {
    /// Its URL, such as `http://127.0.0.1:4317`. Holds no credentials.
    pub endpoint: String,
    /// Which broker this is: `service.instance.id`.
    pub instance: String,
}

/// Why a collector cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("telemetry cannot be sent to `{endpoint}`")]
pub struct OtlpError {
    endpoint: String,
    #[source]
    source: ExporterBuildError,
}

impl Otlp {
    /// Resource attributes of `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME` win where they name the same.
    fn resource(&self) -> Resource {
        let ours = Resource::builder_empty().with_attributes([
            KeyValue::new("service.name", "millpond"),
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", self.instance.clone()),
        ]);
        let detectors: [Box<dyn opentelemetry_sdk::resource::ResourceDetector>; 1] =
            [Box::new(opentelemetry_sdk::resource::EnvResourceDetector::new())];
        ours.with_detectors(&detectors).build()
    }

    fn refused(&self, source: ExporterBuildError) -> OtlpError {
        OtlpError { endpoint: self.endpoint.clone(), source }
    }

    /// What pushes metrics to the collector. Has to be made within a tokio runtime.
    ///
    /// # Errors
    /// The endpoint cannot be used.
    pub(crate) fn metric_exporter(&self) -> Result<MetricExporter, OtlpError> {
        let exporter = MetricExporter::builder().with_tonic().with_endpoint(&self.endpoint).build();
        exporter.map_err(|source| self.refused(source))
    }

    /// Has what `builder` provides pushed by `exporter`, every minute or as `OTEL_METRIC_EXPORT_INTERVAL` says.
    pub(crate) fn push(&self, builder: MeterProviderBuilder, exporter: MetricExporter) -> MeterProviderBuilder {
        builder.with_periodic_exporter(exporter).with_resource(self.resource())
    }
}

/// Keeps what is linked to a span that is kept: work done for many requests at once, such as one group of the WAL, is kept if
/// any of them is traced.
#[derive(Clone, Debug)]
struct Linked(Sampler);

impl ShouldSample for Linked {
    fn should_sample(
        &self,
        parent: Option<&Context>,
        trace: TraceId,
        name: &str,
        kind: &SpanKind,
        attributes: &[KeyValue],
        links: &[Link],
    ) -> SamplingResult {
        let mut result = self.0.should_sample(parent, trace, name, kind, attributes, links);
        if links.iter().any(|link| link.span_context.is_sampled()) {
            result.decision = SamplingDecision::RecordAndSample;
        }
        result
    }
}

/// The traces of this process on their way to a collector.
pub struct Traces {
    provider: SdkTracerProvider,
}

impl Traces {
    /// Begins to collect spans. Keeps `ratio` of the traces that begin here; those that a client began follow its decision.
    ///
    /// # Errors
    /// The endpoint cannot be used. Has to be called within a tokio runtime.
    pub fn start(otlp: &Otlp, ratio: f64) -> Result<Traces, OtlpError> {
        let exporter = SpanExporter::builder().with_tonic().with_endpoint(&otlp.endpoint).build();
        let provider = SdkTracerProvider::builder()
            .with_sampler(Linked(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(ratio)))))
            .with_resource(otlp.resource())
            // A bounded queue, emptied by a thread of its own: what does not fit is dropped, and requests never wait.
            .with_batch_exporter(exporter.map_err(|source| otlp.refused(source))?)
            .build();
        Ok(Traces { provider })
    }

    /// The layer that turns our spans, and no library's, into those of the traces.
    pub fn layer<S>(&self) -> impl Layer<S> + Send + Sync + 'static
    where
        S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
    {
        let ours = |metadata: &Metadata<'_>| {
            metadata.target().starts_with("millpond") && *metadata.level() <= tracing::Level::DEBUG
        };
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer("millpond"))
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_tracked_inactivity(false)
            .with_filter(FilterFn::new(ours).with_max_level_hint(LevelFilter::DEBUG))
    }

    /// Sends the last spans, and ends. Blocks for 2 s at most.
    ///
    /// # Errors
    /// Some were not taken.
    pub fn close(&self) -> Result<(), OTelSdkError> {
        self.provider.shutdown_with_timeout(PUSH_PATIENCE)
    }
}
