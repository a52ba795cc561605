//! What the broker counts, by Prometheus names `millpond_<noun>_<unit>`. Counting never blocks and never fails.

use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, LabelSetEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::time::Duration;

/// One label `code`: the name of an error.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Code(pub(crate) &'static str);

impl EncodeLabelSet for Code {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> Result<(), std::fmt::Error> {
        ("code", self.0).encode(encoder.encode_label())
    }
}

use prometheus_client::encoding::EncodeLabel;

/// Every counter of one broker.
pub(crate) struct Metrics {
    registry: Registry,
    pub(crate) produce_batches: Counter,
    pub(crate) produce_bytes: Counter,
    pub(crate) produce_errors: Family<Code, Counter>,
    pub(crate) produce_seconds: Histogram,
    pub(crate) fetch_requests: Counter,
    pub(crate) fetch_bytes: Counter,
    pub(crate) uploads: Counter,
    pub(crate) upload_bytes: Counter,
    pub(crate) upload_errors: Counter,
    pub(crate) segments_committed: Counter,
    pub(crate) metadata_tier_transactions: Counter,
    pub(crate) objects_deleted: Counter,
    pub(crate) connections_refused: Counter,
    levels: Levels,
}

/// What is read off other parts when someone asks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Readings {
    pub(crate) wal_live_bytes: u64,
    pub(crate) wal_file_bytes: u64,
    pub(crate) wal_free_bytes: u64,
    pub(crate) partitions: u64,
    pub(crate) object_gets: u64,
    pub(crate) object_get_bytes: u64,
    pub(crate) cache_memory_hits: u64,
    pub(crate) cache_disk_hits: u64,
    pub(crate) cache_misses: u64,
    pub(crate) cache_corrupt_entries: u64,
    pub(crate) request_memory_held: u64,
    pub(crate) answer_memory_held: u64,
    pub(crate) connections: u64,
}

#[derive(Default)]
struct Levels {
    wal_live_bytes: Gauge,
    wal_file_bytes: Gauge,
    wal_free_bytes: Gauge,
    partitions: Gauge,
    object_gets: Gauge,
    object_get_bytes: Gauge,
    cache_memory_hits: Gauge,
    cache_disk_hits: Gauge,
    cache_misses: Gauge,
    cache_corrupt_entries: Gauge,
    request_memory_held: Gauge,
    answer_memory_held: Gauge,
    connections: Gauge,
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        let mut metrics = Metrics {
            registry: Registry::with_prefix("millpond"),
            produce_batches: Counter::default(),
            produce_bytes: Counter::default(),
            produce_errors: Family::default(),
            // 100 us to 3 s: from one fdatasync of a fast disk to a stalled one.
            produce_seconds: Histogram::new(exponential_buckets(0.0001, 2.0, 16)),
            fetch_requests: Counter::default(),
            fetch_bytes: Counter::default(),
            uploads: Counter::default(),
            upload_bytes: Counter::default(),
            upload_errors: Counter::default(),
            segments_committed: Counter::default(),
            metadata_tier_transactions: Counter::default(),
            objects_deleted: Counter::default(),
            connections_refused: Counter::default(),
            levels: Levels::default(),
        };
        metrics.register();
        metrics
    }

    fn register(&mut self) {
        let registry = &mut self.registry;
        registry.register("produce_batches", "Batches acknowledged", self.produce_batches.clone());
        registry.register("produce_bytes", "Bytes of batches acknowledged", self.produce_bytes.clone());
        registry.register("produce_errors", "Batches refused or failed, by error", self.produce_errors.clone());
        registry.register("produce_seconds", "Time from admission to acknowledgement", self.produce_seconds.clone());
        registry.register("fetch_requests", "Fetches answered", self.fetch_requests.clone());
        registry.register("fetch_bytes", "Bytes of batches sent to readers", self.fetch_bytes.clone());
        registry.register("object_uploads", "Objects uploaded", self.uploads.clone());
        registry.register("object_upload_bytes", "Bytes of objects uploaded", self.upload_bytes.clone());
        registry.register("object_upload_errors", "Uploads that failed and are retried", self.upload_errors.clone());
        registry.register("segments_committed", "Segments committed to manifests", self.segments_committed.clone());
        registry.register(
            "metadata_tier_transactions",
            "Metadata transactions that changed manifests",
            self.metadata_tier_transactions.clone(),
        );
        registry.register("objects_deleted", "Objects deleted from the bucket", self.objects_deleted.clone());
        registry.register(
            "connections_refused",
            "Connections closed at once, there being as many as may be",
            self.connections_refused.clone(),
        );
        let levels = &self.levels;
        for (name, help, gauge) in [
            ("wal_live_bytes", "Bytes of frames that some partition needs", &levels.wal_live_bytes),
            ("wal_file_bytes", "Bytes of WAL files in use", &levels.wal_file_bytes),
            ("wal_free_bytes", "Bytes the WAL can still take", &levels.wal_free_bytes),
            ("partitions", "Partitions held", &levels.partitions),
            ("object_gets", "GET requests to the object store since the start", &levels.object_gets),
            ("object_get_bytes", "Bytes read from the object store since the start", &levels.object_get_bytes),
            ("cache_memory_hits", "Pages found in memory since the start", &levels.cache_memory_hits),
            ("cache_disk_hits", "Pages found in the disk cache since the start", &levels.cache_disk_hits),
            ("cache_misses", "Pages found in neither since the start", &levels.cache_misses),
            ("cache_corrupt_entries", "Disk cache entries dropped as corrupt", &levels.cache_corrupt_entries),
            ("request_memory_bytes", "Bytes held for requests under way", &levels.request_memory_held),
            ("answer_memory_bytes", "Bytes held for answers not yet sent", &levels.answer_memory_held),
            ("connections", "Connections of all doors", &levels.connections),
        ] {
            registry.register(name, help, gauge.clone());
        }
    }

    /// Notes how a produce ended.
    pub(crate) fn produced(&self, bytes: usize, took: Duration, error: Option<&'static str>) {
        match error {
            None => {
                self.produce_batches.inc();
                self.produce_bytes.inc_by(bytes as u64);
                self.produce_seconds.observe(took.as_secs_f64());
            }
            Some(code) => {
                self.produce_errors.get_or_create(&Code(code)).inc();
            }
        }
    }

    /// Everything, in Prometheus' text format.
    pub(crate) fn render(&self, readings: &Readings) -> String {
        let levels = &self.levels;
        for (gauge, value) in [
            (&levels.wal_live_bytes, readings.wal_live_bytes),
            (&levels.wal_file_bytes, readings.wal_file_bytes),
            (&levels.wal_free_bytes, readings.wal_free_bytes),
            (&levels.partitions, readings.partitions),
            (&levels.object_gets, readings.object_gets),
            (&levels.object_get_bytes, readings.object_get_bytes),
            (&levels.cache_memory_hits, readings.cache_memory_hits),
            (&levels.cache_disk_hits, readings.cache_disk_hits),
            (&levels.cache_misses, readings.cache_misses),
            (&levels.cache_corrupt_entries, readings.cache_corrupt_entries),
            (&levels.request_memory_held, readings.request_memory_held),
            (&levels.answer_memory_held, readings.answer_memory_held),
            (&levels.connections, readings.connections),
        ] {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        }
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a string does not fail");
        text
    }
}
