//! What a broker process says about itself: its log on standard error, and its traces to a collector. Never a secret: credentials
//! are read by those who use them and pass through no setting that is logged.

use crate::failure::{Doing, Failure, causes};
use millpond_broker::telemetry::{Otlp, TRACE_RATIO_DEFAULT, Traces};
use serde::Deserialize;
use std::io::IsTerminal;
use tracing_subscriber::filter::{FilterExt, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// The variable by which OpenTelemetry's own tools are told the collector.
const OTEL_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

/// What the operator said about logs and traces; all of it may be left out.
#[derive(Clone, Debug, Default, PartialEq, clap::Args, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[command(next_help_heading = "Telemetry")]
pub(crate) struct TelemetrySettings {
    /// What is logged: error, warn, info, debug or trace, also by module, such as info,millpond_broker::wal=debug
    #[arg(long, env = "MILLPOND_LOG", value_name = "FILTER", value_parser = filter)]
    #[serde(deserialize_with = "filter_from_file")]
    log: Option<String>,
    /// How a line looks [default: text]
    #[arg(long, env = "MILLPOND_LOG_FORMAT", value_enum)]
    log_format: Option<LogFormat>,
    /// Collector that traces and metrics are sent to, by OTLP over gRPC, such as http://127.0.0.1:4317
    /// [default: OTEL_EXPORTER_OTLP_ENDPOINT; nothing is sent without either]
    #[arg(long, env = "MILLPOND_OTLP_ENDPOINT", value_name = "URL")]
    otlp_endpoint: Option<String>,
    /// Share of requests that are traced where the client did not decide, from 0 to 1 [default: 0.01]
    #[arg(long, env = "MILLPOND_TRACE_RATIO", value_name = "RATIO", value_parser = ratio)]
    #[serde(deserialize_with = "ratio_from_file")]
    trace_ratio: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum LogFormat {
    Text,
    Json,
}

/// The AWS libraries name key ids and signed requests below this level; nobody has to see them to run a broker.
fn is_free_of_secrets(metadata: &tracing::Metadata<'_>) -> bool {
    !metadata.target().starts_with("aws_") || *metadata.level() <= tracing::Level::INFO
}

fn filter(text: &str) -> Result<String, String> {
    EnvFilter::try_new(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

fn ratio(text: &str) -> Result<f64, String> {
    checked(text.parse().map_err(|_| format!("`{text}` is no number"))?)
}

fn checked(ratio: f64) -> Result<f64, String> {
    if (0.0..=1.0).contains(&ratio) { Ok(ratio) } else { Err(format!("{ratio} is not between 0 and 1")) }
}

fn filter_from_file<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    filter(&String::deserialize(deserializer)?).map(Some).map_err(serde::de::Error::custom)
}

fn ratio_from_file<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    checked(f64::deserialize(deserializer)?).map(Some).map_err(serde::de::Error::custom)
}

/// Telemetry of this process, begun.
pub(crate) struct Telemetry {
    /// Where metrics go, too.
    pub(crate) otlp: Option<Otlp>,
    traces: Option<Traces>,
}

impl TelemetrySettings {
    /// The keys of a settings file that are about telemetry.
    pub(crate) const KEYS: [&str; 4] = ["log", "log-format", "otlp-endpoint", "trace-ratio"];

    /// What `self` says, and where it says nothing, `other`.
    pub(crate) fn or(self, other: TelemetrySettings) -> TelemetrySettings {
        TelemetrySettings {
            log: self.log.or(other.log),
            log_format: self.log_format.or(other.log_format),
            otlp_endpoint: self.otlp_endpoint.or(other.otlp_endpoint),
            trace_ratio: self.trace_ratio.or(other.trace_ratio),
        }
    }

    /// The arguments that say the same to another process; `log` is its filter unless one was given.
    pub(crate) fn arguments(&self, log: &str) -> Vec<String> {
        let format = self.log_format.map(|format| match format {
            LogFormat::Text => "text".to_owned(),
            LogFormat::Json => "json".to_owned(),
        });
        let pairs = [
            ("--log", Some(self.log.clone().unwrap_or_else(|| log.to_owned()))),
            ("--log-format", format),
            ("--otlp-endpoint", self.otlp_endpoint.clone()),
            ("--trace-ratio", self.trace_ratio.map(|ratio| ratio.to_string())),
        ];
        let said = pairs.into_iter().filter_map(|(flag, value)| Some([flag.to_owned(), value?]));
        said.flatten().collect()
    }

    /// Whether lines of the log are for machines.
    pub(crate) fn is_json(&self) -> bool {
        self.log_format == Some(LogFormat::Json)
    }

    /// Begins to log, and to trace if there is a collector. `log` holds unless a filter was given; `instance` is who we are to
    /// the collector.
    pub(crate) fn begin(self, log: &str, instance: String) -> Result<Telemetry, Failure> {
        let endpoint = self.otlp_endpoint.or_else(|| std::env::var(OTEL_ENDPOINT).ok()).filter(|url| !url.is_empty());
        let otlp = endpoint.map(|endpoint| collector(endpoint, instance)).transpose()?;
        let ratio = self.trace_ratio.unwrap_or(TRACE_RATIO_DEFAULT);
        let traces = otlp.as_ref().map(|otlp| Traces::start(otlp, ratio)).transpose();
        let traces = traces.map_err(|error| Failure::usage(format!("--otlp-endpoint: {}", causes(&error))))?;
        let filter = EnvFilter::new(self.log.as_deref().unwrap_or(log));
        let format = self.log_format.unwrap_or(LogFormat::Text);
        match &traces {
            None => tracing_subscriber::registry()
                .with(log_layer(format).with_filter(filter.and(filter_fn(is_free_of_secrets))))
                .init(),
            Some(traces) => {
                let registry = tracing_subscriber::registry().with(traces.layer());
                registry.with(log_layer(format).with_filter(filter.and(filter_fn(is_free_of_secrets)))).init();
            }
        }
        Ok(Telemetry { otlp, traces })
    }
}

fn log_layer<S>(format: LogFormat) -> Box<dyn Layer<S> + Send + Sync>
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
{
    let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    match format {
        LogFormat::Text => layer.with_ansi(std::io::stderr().is_terminal()).boxed(),
        LogFormat::Json => layer.json().boxed(),
    }
}

fn collector(endpoint: String, instance: String) -> Result<Otlp, Failure> {
    if holds_credentials(&endpoint) {
        return Err(Failure::usage(
            "the collector's URL holds a user or password, and would be logged; give them in OTEL_EXPORTER_OTLP_HEADERS",
        ));
    }
    if !["http://", "https://"].iter().any(|scheme| endpoint.starts_with(scheme)) {
        return Err(Failure::usage(format!(
            "--otlp-endpoint `{endpoint}` is not http://HOST:PORT or https://HOST:PORT"
        )));
    }
    Ok(Otlp { endpoint, instance })
}

/// Whether a URL carries a user or a password before its host.
pub(crate) fn holds_credentials(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split(['/', '?', '#']).next().is_some_and(|authority| authority.contains('@'))
}

impl Telemetry {
    /// Sends the last spans and ends. Says so if they were not taken; nothing else depends on it.
    pub(crate) async fn end(self) {
        let Some(traces) = self.traces else { return };
        let closed = tokio::task::spawn_blocking(move || traces.close()).await;
        if let Err(error) = closed.doing("the last spans").and_then(|closed| closed.doing("the last spans")) {
            tracing::warn!(%error, "traces could not be sent");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_found_in_urls() {
        let check = |url: &str, expected| assert_eq!(holds_credentials(url), expected, "{url}");
        check("http://user:secret@host:4317", true);
        check("s3://key@bucket/prefix", true);
        check("http://host:4317", false);
        check("s3://bucket/pre@fix", false);
        check("file:///a@b", false);
    }

    #[test]
    fn collectors_that_cannot_be_used_are_refused_without_saying_their_secrets() {
        let refused = |url: &str| collector(url.to_owned(), String::new()).expect_err(url).to_string();
        assert!(!refused("http://user:hunter2@host").contains("hunter2"));
        assert!(refused("host:4317").contains("http://HOST:PORT"));
    }

    #[test]
    fn ratios_are_shares() {
        assert_eq!((ratio("0"), ratio("0.5"), ratio("1")), (Ok(0.0), Ok(0.5), Ok(1.0)));
        for wrong in ["-0.1", "1.1", "NaN", "half", ""] {
            assert!(ratio(wrong).is_err(), "{wrong}");
        }
    }
}
