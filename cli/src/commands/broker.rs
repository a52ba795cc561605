//! `millpond broker`: one broker of a fleet, by its settings.

use crate::failure::Failure;
use crate::launch::Launch;
use crate::parent;
use crate::settings::{Door, Internal, Resolved, Settings};
use crate::store::Missing;
use crate::telemetry::{Telemetry, TelemetrySettings};
use millpond_broker::config::{Config, KafkaListener, Listener};
use millpond_log::BrokerId;
use std::path::PathBuf;

/// Arguments of `broker`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: millpond broker --data-dir /var/lib/millpond --metadata etcd://10.0.0.1:2379,10.0.0.2:2379 \
    --object-store s3://bucket/prefix\n\nA file has the flags' names as keys, such as `object-store = \"s3://bucket/prefix\"`. \
    A flag wins over a variable, and that over the file."
)]
pub(crate) struct Args {
    /// Settings in a TOML file
    #[arg(long, env = "MILLPOND_CONFIG", value_name = "FILE.toml")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
    #[command(flatten)]
    telemetry: TelemetrySettings,
    /// End at once when standard input ends: for whoever starts it as a child
    #[arg(long, hide = true)]
    end_with_parent: bool,
}

pub(super) async fn run(args: Args) -> Result<(), Failure> {
    let (file, telemetry_file) = args.config.as_deref().map_or(Ok(Default::default()), Settings::read)?;
    let resolved = args.settings.or(file).resolve()?;
    let telemetry = args.telemetry.or(telemetry_file).begin("warn,millpond=info", instance(&resolved))?;
    let outcome = tokio::select! {
        outcome = launch(resolved, &telemetry).run() => outcome,
        () = parent::gone(), if args.end_with_parent => Err(Failure::new("whoever started this broker is gone")),
    };
    telemetry.end().await;
    outcome
}

/// Who this broker is to a collector. An id that is allocated is not known before the metadata store is open; then the folder tells
/// brokers of one machine apart.
fn instance(resolved: &Resolved) -> String {
    match resolved.id {
        Some(id) => format!("{}/{id}", resolved.cluster),
        None => format!("{}{}", resolved.cluster, resolved.data_dir.display()),
    }
}

fn launch(resolved: Resolved, telemetry: &Telemetry) -> Launch {
    let listener = |door: Door| Listener { bind: door.listen, advertise: door.advertise, tls: door.tls };
    let kafka_listener = |(name, door)| KafkaListener { name, listener: listener(door) };
    let defaults = Config::local(resolved.data_dir);
    let (internal, cluster_secret, internal_tls) = match resolved.internal {
        Some(Internal { door, secret, tls }) => (listener(door), Some(secret), tls),
        None => (defaults.internal.clone(), None, None),
    };
    let bytes = |set: Option<crate::units::ByteCount>, default| set.map_or(default, |size| size.0);
    let config = Config {
        id: resolved.id.map_or(defaults.id, BrokerId),
        rack: resolved.rack,
        grpc: listener(resolved.grpc),
        kafka: resolved.kafka.into_iter().map(kafka_listener).collect(),
        http: listener(resolved.http),
        tls: resolved.tls,
        internal,
        cluster_secret,
        internal_tls,
        otlp: telemetry.otlp.clone(),
        wal_bytes: bytes(resolved.wal_bytes, defaults.wal_bytes),
        cache_memory_bytes: bytes(resolved.cache_memory, defaults.cache_memory_bytes),
        cache_disk_bytes: bytes(resolved.cache_disk, defaults.cache_disk_bytes),
        groups: resolved.groups,
        default_partitions: resolved.num_partitions.unwrap_or(defaults.default_partitions),
        auto_create_topics: resolved.auto_create_topics,
        ..defaults
    };
    let flags = ["--grpc-listen", "--kafka-listen", "--http-listen"];
    let auto_id = resolved.id.is_none();
    Launch {
        config,
        auto_id,
        cluster: resolved.cluster,
        metadata: resolved.metadata,
        objects: resolved.object_store,
        bucket: Missing::Refuse,
        flags,
    }
}
