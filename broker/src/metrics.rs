//! What the broker counts and measures: the one registry of instruments, named `millpond_<noun>_<unit>`. It is read as
//! Prometheus' text, and pushed by OTLP where a collector is named. Counting never blocks on anything but itself.
//!
//! Labels are closed sets of our own words, never a client's: no client, host, group or partition is a label.

use millpond_log::ErrorCode;
use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Histogram, Meter, MeterProvider};
use opentelemetry_sdk::error::OTelSdkError;
use opentelemetry_sdk::metrics::{MeterProviderBuilder, SdkMeterProvider};
use std::time::Duration;

/// Bounds of latency buckets in seconds: 100 us to 3 s, from one fdatasync of a fast disk to a stalled one.
const LATENCY_BOUNDS: [f64; 16] = doubling(0.0001, 2.0);

/// Bounds of buckets for transfers to the object store, in seconds: 5 ms to 164 s.
const TRANSFER_BOUNDS: [f64; 16] = doubling(0.005, 2.0);

/// Bounds of buckets of bytes: 4 KiB to 64 MiB.
const BYTES_BOUNDS: [f64; 8] = doubling(4096.0, 4.0);

/// Bounds of buckets of batches in one group of the WAL: 1 to 2048.
const BATCHES_BOUNDS: [f64; 12] = doubling(1.0, 2.0);

/// How long the last push to a collector may take when the broker ends.
const PUSH_PATIENCE: Duration = Duration::from_secs(2);

const fn doubling<const N: usize>(first: f64, factor: f64) -> [f64; N] {
    let mut bounds = [first; N];
    let mut at = 1;
    while at < N {
        bounds[at] = bounds[at - 1] * factor;
        at += 1;
    }
    bounds
}

/// Through which door a request came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    Grpc,
    Kafka,
}

impl Door {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Door::Grpc => "grpc",
            Door::Kafka => "kafka",
        }
    }
}

/// Every instrument of one broker, except the levels, which are read off other parts (`levels`).
pub(crate) struct Metrics {
    provider: SdkMeterProvider,
    text: prometheus::Registry,
    requests: Counter<u64>,
    request_errors: Counter<u64>,
    produce_batches: Counter<u64>,
    produce_records: Counter<u64>,
    produce_bytes: Counter<u64>,
    produce_seconds: Histogram<f64>,
    pub(crate) unclean_elections: Counter<u64>,
    fetch_batches: Counter<u64>,
    fetch_bytes: Counter<u64>,
    fetch_seconds: Histogram<f64>,
    pub(crate) wal: WalMeters,
    pub(crate) tier: TierMeters,
    pub(crate) compaction: CompactionMeters,
    pub(crate) objects: ObjectMeters,
    pub(crate) metadata: MetadataMeters,
    pub(crate) coordinators: CoordinatorMeters,
}

/// What the owners of coordinator shards measure, by kind.
#[derive(Clone, Debug)]
pub(crate) struct CoordinatorMeters {
    load_seconds: Histogram<f64>,
    load_records: Counter<u64>,
    load_bytes: Counter<u64>,
    commit_seconds: Histogram<f64>,
    commit_changes: Histogram<u64>,
}

/// What the WAL's writer measures.
#[derive(Clone)]
pub(crate) struct WalMeters {
    sync_seconds: Histogram<f64>,
    group_bytes: Histogram<u64>,
    group_batches: Histogram<u64>,
}

/// What the tierer and the collector count.
#[derive(Clone)]
pub(crate) struct TierMeters {
    /// Objects that are in the bucket and sure to be right.
    pub(crate) uploads: Counter<u64>,
    pub(crate) upload_bytes: Counter<u64>,
    /// Uploads and commits that failed; each is tried again.
    pub(crate) upload_errors: Counter<u64>,
    pub(crate) upload_seconds: Histogram<f64>,
    /// Transactions on the metadata store that changed manifests, tries included.
    pub(crate) transactions: Counter<u64>,
    pub(crate) commit_seconds: Histogram<f64>,
    pub(crate) segments: Counter<u64>,
    pub(crate) objects_deleted: Counter<u64>,
}

/// What compaction counts.
#[derive(Clone)]
pub(crate) struct CompactionMeters {
    pub(crate) passes: Counter<u64>,
    /// Passes that ended early; each is begun again.
    pub(crate) errors: Counter<u64>,
    pub(crate) read_bytes: Counter<u64>,
    pub(crate) written_bytes: Counter<u64>,
    pub(crate) removed_records: Counter<u64>,
}

/// What is counted at the object store itself, whoever asked.
#[derive(Clone, Debug)]
pub(crate) struct ObjectMeters {
    requests: Counter<u64>,
    request_seconds: Histogram<f64>,
    bytes: Counter<u64>,
}

/// What is counted at the metadata store itself, whoever asked.
#[derive(Clone)]
pub(crate) struct MetadataMeters {
    requests: Counter<u64>,
    request_seconds: Histogram<f64>,
}

impl Metrics {
    /// A registry of its own for one broker; `push` says where else it goes.
    pub(crate) fn new(push: impl FnOnce(MeterProviderBuilder) -> MeterProviderBuilder) -> Metrics {
        let text = prometheus::Registry::new();
        let reader = opentelemetry_prometheus::exporter()
            .with_registry(text.clone())
            // Names carry their units already.
            .without_units()
            .without_target_info()
            .scope_info_enabled(false)
            .build()
            .expect("a new registry takes its only collector");
        let provider = push(SdkMeterProvider::builder().with_reader(reader)).build();
        let meter = provider.meter("millpond");
        let counter = |name, help| counting(&meter, name, help);
        let seconds = |name, help, bounds: &[f64]| {
            meter.f64_histogram(name).with_unit("s").with_description(help).with_boundaries(bounds.to_vec()).build()
        };
        Metrics {
            requests: meter
                .u64_counter("millpond_requests")
                .with_description("Requests taken in, by door and api")
                .build(),
            request_errors: meter
                .u64_counter("millpond_request_errors")
                .with_description("Requests, or partitions of one, refused or failed")
                .build(),
            produce_batches: counter("millpond_produce_batches", "Batches acknowledged"),
            produce_records: counter("millpond_produce_records", "Records acknowledged"),
            produce_bytes: counter("millpond_produce_bytes", "Bytes of batches acknowledged"),
            produce_seconds: seconds(
                "millpond_produce_seconds",
                "Time from a batch's arrival to its acknowledgement",
                &LATENCY_BOUNDS,
            ),
            unclean_elections: counter(
                "millpond_unclean_elections",
                "Partitions that this broker came to lead though committed records may be missing",
            ),
            fetch_batches: counter("millpond_fetch_batches", "Batches sent to readers"),
            fetch_bytes: counter("millpond_fetch_bytes", "Bytes of batches sent to readers"),
            fetch_seconds: seconds(
                "millpond_fetch_seconds",
                "Time of one fetch; those that waited for records apart",
                &LATENCY_BOUNDS,
            ),
            wal: WalMeters::new(&meter),
            tier: TierMeters::new(&meter),
            compaction: CompactionMeters::new(&meter),
            objects: ObjectMeters::new(&meter),
            metadata: MetadataMeters::new(&meter),
            coordinators: CoordinatorMeters::new(&meter),
            provider,
            text,
        }
    }

    /// Where further instruments are added.
    pub(crate) fn meter(&self) -> Meter {
        self.provider.meter("millpond")
    }

    /// Notes a request that a door took in. `api` is one of our own names.
    pub(crate) fn request(&self, door: Door, api: &'static str) {
        self.requests.add(1, &[KeyValue::new("door", door.name()), KeyValue::new("api", api)]);
    }

    /// Notes that a request, or its part for one partition, was not met.
    pub(crate) fn failed(&self, api: &'static str, error: ErrorCode) {
        self.request_errors.add(1, &[KeyValue::new("api", api), KeyValue::new("error", error.name())]);
    }

    /// Notes a batch that was acknowledged.
    pub(crate) fn produced(&self, size: u64, records: u64, took: Duration) {
        self.produce_batches.add(1, &[]);
        self.produce_records.add(records, &[]);
        self.produce_bytes.add(size, &[]);
        self.produce_seconds.record(took.as_secs_f64(), &[]);
    }

    /// Notes a fetch that was answered, whether it had to wait for records or not.
    pub(crate) fn fetched(&self, batches: u64, size: u64, took: Duration, waited: bool) {
        self.fetch_batches.add(batches, &[]);
        self.fetch_bytes.add(size, &[]);
        self.fetch_seconds.record(took.as_secs_f64(), &[KeyValue::new("waited", waited)]);
    }

    /// Everything, in Prometheus' text format 0.0.4.
    pub(crate) fn text(&self) -> Result<String, prometheus::Error> {
        prometheus::TextEncoder::new().encode_to_string(&self.text.gather())
    }

    /// Pushes what was counted last, and ends. Blocks.
    pub(crate) fn close(&self) -> Result<(), OTelSdkError> {
        self.provider.shutdown_with_timeout(PUSH_PATIENCE)
    }
}

/// A counter without labels, which is there from the start.
fn counting(meter: &Meter, name: &'static str, help: &'static str) -> Counter<u64> {
    let counter = meter.u64_counter(name).with_description(help).build();
    counter.add(0, &[]);
    counter
}

impl WalMeters {
    fn new(meter: &Meter) -> WalMeters {
        WalMeters {
            sync_seconds: meter
                .f64_histogram("millpond_wal_sync_seconds")
                .with_unit("s")
                .with_description("Time to write and sync one group of the WAL")
                .with_boundaries(LATENCY_BOUNDS.to_vec())
                .build(),
            group_bytes: meter
                .u64_histogram("millpond_wal_group_bytes")
                .with_unit("By")
                .with_description("Bytes written and synced together")
                .with_boundaries(BYTES_BOUNDS.to_vec())
                .build(),
            group_batches: meter
                .u64_histogram("millpond_wal_group_batches")
                .with_description("Batches written and synced together")
                .with_boundaries(BATCHES_BOUNDS.to_vec())
                .build(),
        }
    }

    /// Notes one group that is durable.
    pub(crate) fn synced(&self, batches: u64, size: u64, took: Duration) {
        self.sync_seconds.record(took.as_secs_f64(), &[]);
        self.group_bytes.record(size, &[]);
        self.group_batches.record(batches, &[]);
    }
}

impl TierMeters {
    fn new(meter: &Meter) -> TierMeters {
        let counter = |name, help| counting(meter, name, help);
        let seconds = |name, help, bounds: &[f64]| {
            meter.f64_histogram(name).with_unit("s").with_description(help).with_boundaries(bounds.to_vec()).build()
        };
        TierMeters {
            uploads: counter("millpond_uploads", "Objects uploaded"),
            upload_bytes: counter("millpond_upload_bytes", "Bytes of objects uploaded"),
            upload_errors: counter("millpond_upload_errors", "Uploads and commits that failed and are tried again"),
            upload_seconds: seconds(
                "millpond_upload_seconds",
                "Time to build one object and put it into the bucket",
                &TRANSFER_BOUNDS,
            ),
            transactions: counter("millpond_commit_transactions", "Metadata transactions that change manifests"),
            commit_seconds: seconds("millpond_commit_seconds", "Time to commit manifests", &LATENCY_BOUNDS),
            segments: counter("millpond_committed_segments", "Segments committed to manifests"),
            objects_deleted: counter("millpond_deleted_objects", "Objects that garbage collection deleted"),
        }
    }
}

impl CompactionMeters {
    fn new(meter: &Meter) -> CompactionMeters {
        let counter = |name, help| counting(meter, name, help);
        CompactionMeters {
            passes: counter("millpond_compaction_passes", "Passes of compaction that came to their end"),
            errors: counter("millpond_compaction_errors", "Passes of compaction that ended early and are begun again"),
            read_bytes: counter("millpond_compaction_read_bytes", "Bytes of segments that compaction read"),
            written_bytes: counter("millpond_compaction_written_bytes", "Bytes of segments that compaction wrote"),
            removed_records: counter("millpond_compaction_removed_records", "Records that compaction removed"),
        }
    }
}

impl CoordinatorMeters {
    pub(crate) fn new(meter: &Meter) -> CoordinatorMeters {
        let seconds = |name, help, bounds: &[f64]| {
            meter.f64_histogram(name).with_unit("s").with_description(help).with_boundaries(bounds.to_vec()).build()
        };
        CoordinatorMeters {
            load_seconds: seconds(
                "millpond_coordinator_load_seconds",
                "Time to read one coordinator shard back after it was taken",
                &TRANSFER_BOUNDS,
            ),
            load_records: counting(
                meter,
                "millpond_coordinator_load_records",
                "Records that shards were read back from",
            ),
            load_bytes: counting(
                meter,
                "millpond_coordinator_load_bytes",
                "Bytes of records that shards were read back from",
            ),
            commit_seconds: seconds(
                "millpond_coordinator_commit_seconds",
                "Time until a group commit of a shard was durable",
                &LATENCY_BOUNDS,
            ),
            commit_changes: meter
                .u64_histogram("millpond_coordinator_commit_changes")
                .with_description("Keys changed by one group commit of a shard")
                .with_boundaries(BATCHES_BOUNDS.to_vec())
                .build(),
        }
    }

    /// Notes that a shard was read back.
    pub(crate) fn loaded(&self, kind: &'static str, records: u64, bytes: u64, took: Duration) {
        self.load_seconds.record(took.as_secs_f64(), &[KeyValue::new("kind", kind)]);
        self.load_records.add(records, &[]);
        self.load_bytes.add(bytes, &[]);
    }

    /// Notes a group commit that is durable.
    pub(crate) fn committed(&self, kind: &'static str, changes: u64, took: Duration) {
        let labels = [KeyValue::new("kind", kind)];
        self.commit_seconds.record(took.as_secs_f64(), &labels);
        self.commit_changes.record(changes, &labels);
    }
}

impl MetadataMeters {
    fn new(meter: &Meter) -> MetadataMeters {
        let meters = MetadataMeters {
            requests: meter
                .u64_counter("millpond_metadata_requests")
                .with_description("Requests to the metadata store, by operation and outcome")
                .build(),
            request_seconds: meter
                .f64_histogram("millpond_metadata_request_seconds")
                .with_unit("s")
                .with_description("Time until the metadata store answered")
                .with_boundaries(LATENCY_BOUNDS.to_vec())
                .build(),
        };
        // What nobody asked for yet was asked for zero times: rates begin with the first request.
        for operation in ["range", "txn"] {
            meters.requests.add(0, &[KeyValue::new("operation", operation), KeyValue::new("outcome", "ok")]);
        }
        meters
    }

    /// Notes how a request ended, and when.
    pub(crate) fn answered(&self, operation: &'static str, outcome: &'static str, took: Duration) {
        let labels = [KeyValue::new("operation", operation), KeyValue::new("outcome", outcome)];
        self.requests.add(1, &labels);
        self.request_seconds.record(took.as_secs_f64(), &labels[..1]);
    }
}

impl ObjectMeters {
    fn new(meter: &Meter) -> ObjectMeters {
        let meters = ObjectMeters {
            requests: meter
                .u64_counter("millpond_object_requests")
                .with_description("Requests to the object store, by operation and outcome")
                .build(),
            request_seconds: meter
                .f64_histogram("millpond_object_request_seconds")
                .with_unit("s")
                .with_description("Time until the object store answered, bodies of GETs not included")
                .with_boundaries(TRANSFER_BOUNDS.to_vec())
                .build(),
            bytes: meter
                .u64_counter("millpond_object_bytes")
                .with_unit("By")
                .with_description("Bytes of objects read and written")
                .build(),
        };
        // What nobody asked for yet was asked for zero times: rates begin with the first request.
        for operation in ["get", "put"] {
            meters.requests.add(0, &[KeyValue::new("operation", operation), KeyValue::new("outcome", "ok")]);
        }
        meters.read(0);
        meters.written(0);
        meters
    }

    /// Notes how a request ended; `took` where it was measured.
    pub(crate) fn answered(&self, operation: &'static str, outcome: &'static str, took: Option<Duration>) {
        let labels = [KeyValue::new("operation", operation), KeyValue::new("outcome", outcome)];
        self.requests.add(1, &labels);
        if let Some(took) = took {
            self.request_seconds.record(took.as_secs_f64(), &labels[..1]);
        }
    }

    /// Notes bytes that came from the object store.
    pub(crate) fn read(&self, size: u64) {
        self.bytes.add(size, &[KeyValue::new("direction", "read")]);
    }

    /// Notes bytes that the object store took.
    pub(crate) fn written(&self, size: u64) {
        self.bytes.add(size, &[KeyValue::new("direction", "written")]);
    }
}
