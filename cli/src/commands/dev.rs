//! `millpond dev`: one broker or a fleet for local work, with everything it needs under one folder.

use crate::failure::{Doing, Failure};
use crate::fleet::{CLUSTER, Fleet, Plan};
use crate::launch::Launch;
use crate::metadata::Metadata;
use crate::output;
use crate::settings::{GRPC_PORT, HTTP_PORT, KAFKA_PORT, loopback, num_partitions};
use crate::signals::Shutdown;
use crate::store::Missing;
use crate::telemetry::TelemetrySettings;
use millpond_broker::config::{Config, KafkaListener, Listener};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Most brokers: as many as the default ports of one door leave room for before those of the next.
const BROKERS_MAX: i64 = 64;

/// Filter of the log unless one was given.
const LOG: &str = "warn";

/// Arguments of `dev`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: millpond dev --dir /tmp/pond --brokers 3")]
pub(crate) struct Args {
    /// Folder of all its data; made if it is not there
    #[arg(long, env = "MILLPOND_DIR", default_value = "millpond-data")]
    dir: PathBuf,
    /// How many brokers: one in this process, or several as its children
    #[arg(long, env = "MILLPOND_BROKERS", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=BROKERS_MAX))]
    brokers: u16,
    /// Port of the gRPC door; each further broker has the next one, and 0 takes free ones
    #[arg(long, env = "MILLPOND_GRPC_PORT", default_value_t = GRPC_PORT)]
    grpc_port: u16,
    /// Port of the Kafka door
    #[arg(long, env = "MILLPOND_KAFKA_PORT", default_value_t = KAFKA_PORT)]
    kafka_port: u16,
    /// Port of the HTTP door
    #[arg(long, env = "MILLPOND_HTTP_PORT", default_value_t = HTTP_PORT)]
    http_port: u16,
    /// Where objects go: s3://BUCKET/PREFIX (the bucket is made if it is not there), gs://, az://, file:///DIR or memory://;
    /// a folder under DIR if not given
    #[arg(long, env = "MILLPOND_OBJECT_STORE", value_name = "URL")]
    object_store: Option<String>,
    /// Partitions of a topic that is created without a number; Kafka's num.partitions
    #[arg(long, env = "MILLPOND_NUM_PARTITIONS", value_name = "N", default_value_t = 1)]
    num_partitions: u32,
    /// Create a topic when somebody writes to it or asks for it; Kafka's auto.create.topics.enable
    #[arg(long, env = "MILLPOND_AUTO_CREATE_TOPICS", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "true")]
    auto_create_topics: bool,
    #[command(flatten)]
    telemetry: TelemetrySettings,
}

pub(super) async fn run(args: Args) -> Result<(), Failure> {
    num_partitions(args.num_partitions)?;
    fs::create_dir_all(&args.dir).doing(format!("cannot make the folder `{}`", args.dir.display()))?;
    let dir = args.dir.canonicalize().doing(format!("cannot find `{}`", args.dir.display()))?;
    // Held until the process ends.
    let _lock = lock(&dir)?;
    let missing = dir.join(format!("broker-{}", args.brokers));
    if missing.exists() {
        eprintln!("`{}` is there: what only brokers that are not started hold cannot be read", missing.display());
    }
    if args.brokers == 1 { one(args, &dir).await } else { many(args, dir).await }
}

impl Args {
    /// What brokers are told of the topics that they make.
    fn of_topics(&self) -> Vec<String> {
        vec![
            format!("--num-partitions={}", self.num_partitions),
            format!("--auto-create-topics={}", self.auto_create_topics),
        ]
    }
}

/// One broker in this process.
async fn one(args: Args, dir: &Path) -> Result<(), Failure> {
    let telemetry = args.telemetry.begin(LOG, format!("{CLUSTER}/0"))?;
    let listener = |port| Listener { bind: loopback(port), advertise: None, tls: false };
    let config = Config {
        grpc: listener(args.grpc_port),
        kafka: vec![KafkaListener { name: KafkaListener::DEFAULT.to_owned(), listener: listener(args.kafka_port) }],
        http: listener(args.http_port),
        otlp: telemetry.otlp.clone(),
        default_partitions: args.num_partitions,
        auto_create_topics: args.auto_create_topics,
        ..Config::local(dir.join("broker-0"))
    };
    let launch = Launch {
        config,
        auto_id: false,
        cluster: CLUSTER.to_owned(),
        metadata: Metadata::Embedded(dir.join("metadata")),
        objects: args.object_store.unwrap_or_else(|| format!("file://{}", dir.join("objects").display())),
        bucket: Missing::Create,
        flags: ["--grpc-port", "--kafka-port", "--http-port"],
    };
    let outcome = launch.run().await;
    telemetry.end().await;
    outcome
}

/// Several brokers as children of this process.
async fn many(args: Args, dir: PathBuf) -> Result<(), Failure> {
    let mut shutdown = Shutdown::listen()?;
    let arguments = [args.telemetry.arguments(LOG), args.of_topics()].concat();
    let plan = Plan {
        brokers: args.brokers,
        ports: [args.grpc_port, args.kafka_port, args.http_port],
        objects: args.object_store.unwrap_or_else(|| format!("file://{}", dir.join("objects").display())),
        arguments,
        named: !args.telemetry.is_json(),
        dir,
    };
    let telemetry = args.telemetry.begin(LOG, format!("{CLUSTER}/metadata"))?;
    let outcome = tokio::select! {
        () = shutdown.asked() => Ok(()),
        fleet = Fleet::start(&plan) => match fleet {
            Ok(fleet) => keep(fleet, &mut shutdown).await,
            Err(failure) => Err(failure),
        },
    };
    telemetry.end().await;
    outcome
}

/// Says that the fleet is ready, and keeps it until the process is asked to end.
async fn keep(mut fleet: Fleet, shutdown: &mut Shutdown) -> Result<(), Failure> {
    fleet.ready().try_for_each(output::text)?;
    tokio::select! {
        () = shutdown.asked() => {}
        failure = fleet.keep() => return Err(failure),
    }
    tokio::select! {
        () = shutdown.asked() => Err(Failure::new("asked twice to end: killed the brokers")),
        ended = fleet.stop() => ended,
    }
}

/// Keeps a second `dev` off the folder.
fn lock(dir: &Path) -> Result<File, Failure> {
    let path = dir.join("lock");
    let file = File::create(&path).doing(format!("cannot write `{}`", path.display()))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Failure::new(format!(
            "another `millpond dev` runs on `{}`; end it, or give another folder with --dir",
            dir.display()
        ))),
        Err(error) => Err(Failure::new(format!("cannot lock `{}`: {error}", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_locked_once() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let held = lock(folder.path()).expect("nobody holds it");
        let refused = lock(folder.path()).expect_err("it is held");
        assert!(refused.to_string().contains("another `millpond dev`"), "{refused}");
        drop(held);
        lock(folder.path()).expect("it was given back");
    }
}
