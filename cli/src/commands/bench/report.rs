//! The figures of a run, as text or JSON.

use crate::failure::{Doing, Failure};
use crate::output::{self, Format};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::time::Duration;

/// Latencies up to this are told apart to three digits; longer ones count as this long.
const LATENCY_MAX: Duration = Duration::from_secs(3600);

/// Latencies as they are collected, in microseconds.
pub(super) struct Latencies(Histogram<u64>);

impl Latencies {
    pub(super) fn new() -> Result<Latencies, Failure> {
        let most = u64::try_from(LATENCY_MAX.as_micros()).unwrap_or(u64::MAX);
        Histogram::new_with_bounds(1, most, 3).map(Latencies).doing("cannot make the histogram")
    }

    pub(super) fn add(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_micros()).unwrap_or(u64::MAX).max(1));
    }

    fn percentiles(&self) -> Percentiles {
        let at = |quantile| self.0.value_at_quantile(quantile) as f64 / 1000.0;
        Percentiles { p50: at(0.5), p90: at(0.9), p99: at(0.99), p999: at(0.999), max: self.0.max() as f64 / 1000.0 }
    }
}

/// Latencies in milliseconds.
#[derive(Debug, Serialize)]
struct Percentiles {
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

/// What a run came to.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    records: u64,
    bytes: u64,
    seconds: f64,
    records_per_second: f64,
    mib_per_second: f64,
    /// None where nothing is waited for.
    latency_ms: Option<Percentiles>,
}

impl Report {
    pub(super) fn new(records: u64, bytes: u64, took: Duration, latencies: Option<&Latencies>) -> Report {
        // A run without records takes no time; rates are then 0 and not undefined.
        let seconds = took.as_secs_f64().max(f64::MIN_POSITIVE);
        Report {
            records,
            bytes,
            seconds: took.as_secs_f64(),
            records_per_second: if records == 0 { 0.0 } else { records as f64 / seconds },
            mib_per_second: if bytes == 0 { 0.0 } else { bytes as f64 / seconds / f64::from(1 << 20) },
            latency_ms: latencies.map(Latencies::percentiles),
        }
    }

    pub(super) fn print(&self, format: Format) -> Result<(), Failure> {
        match format {
            Format::Json => output::json(self),
            Format::Text => output::text(&self.to_text()),
        }
    }

    fn to_text(&self) -> String {
        let Report { records, seconds, records_per_second, mib_per_second, .. } = self;
        let mut text = format!(
            "{records} records in {seconds:.2} s: {records_per_second:.0} records/s, {mib_per_second:.1} MiB/s"
        );
        if let Some(Percentiles { p50, p90, p99, p999, max }) = &self.latency_ms {
            text.push_str(&format!(
                "\nlatency in ms: p50 {p50:.2}, p90 {p90:.2}, p99 {p99:.2}, p99.9 {p999:.2}, max {max:.2}"
            ));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_percentiles_follow_from_the_run() {
        let mut latencies = Latencies::new().expect("the bounds are valid");
        for ms in 1..=1000 {
            latencies.add(Duration::from_millis(ms));
        }
        latencies.add(LATENCY_MAX * 2);
        let report = Report::new(1001, 2 << 20, Duration::from_secs(2), Some(&latencies));
        assert!((report.records_per_second - 500.5).abs() < 1e-9);
        assert!((report.mib_per_second - 1.0).abs() < 1e-9);
        let latency = report.latency_ms.as_ref().expect("latencies were given");
        assert!((latency.p50 - 501.0).abs() < 1.0 && (latency.p99 - 991.0).abs() < 1.0, "{latency:?}");
        assert!(latency.max >= 3_600_000.0, "{latency:?}");
    }

    #[test]
    fn json_has_the_fields_of_the_schema() {
        let latencies = Latencies::new().expect("the bounds are valid");
        for latencies in [Some(&latencies), None] {
            crate::schemas::check("bench", &Report::new(1, 100, Duration::from_millis(1), latencies));
        }
    }

    #[test]
    fn empty_runs_have_no_rate() {
        let report = Report::new(0, 0, Duration::ZERO, None);
        assert_eq!(report.to_text(), "0 records in 0.00 s: 0 records/s, 0.0 MiB/s");
    }
}
