//! `millpond dev`: one broker for local work, with everything it needs under one folder.

use crate::failure::{Doing, Failure};
use crate::launch::Launch;
use crate::metadata::Metadata;
use crate::settings::{GRPC_PORT, HTTP_PORT, KAFKA_PORT, loopback};
use crate::store::Missing;
use crate::telemetry::TelemetrySettings;
use millpond_broker::config::{Config, Listener};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Arguments of `dev`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: millpond dev --dir /tmp/pond --kafka-port 9093")]
pub(crate) struct Args {
    /// Folder of all its data; made if it is not there
    #[arg(long, env = "MILLPOND_DIR", default_value = "millpond-data")]
    dir: PathBuf,
    /// How many brokers; this version runs one
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1))]
    brokers: u32,
    /// Port of the gRPC door; 0 takes a free one
    #[arg(long, env = "MILLPOND_GRPC_PORT", default_value_t = GRPC_PORT)]
    grpc_port: u16,
    /// Port of the Kafka door; 0 takes a free one
    #[arg(long, env = "MILLPOND_KAFKA_PORT", default_value_t = KAFKA_PORT)]
    kafka_port: u16,
    /// Port of the HTTP door; 0 takes a free one
    #[arg(long, env = "MILLPOND_HTTP_PORT", default_value_t = HTTP_PORT)]
    http_port: u16,
    /// Where objects go: s3://BUCKET/PREFIX (the bucket is made if it is not there), gs://, az://, file:///DIR or memory://;
    /// a folder under DIR if not given
    #[arg(long, env = "MILLPOND_OBJECT_STORE", value_name = "URL")]
    object_store: Option<String>,
    #[command(flatten)]
    telemetry: TelemetrySettings,
}

pub(super) async fn run(args: Args) -> Result<(), Failure> {
    let telemetry = args.telemetry.begin("warn", "dev/0".to_owned())?;
    fs::create_dir_all(&args.dir).doing(format!("cannot make the folder `{}`", args.dir.display()))?;
    let dir = args.dir.canonicalize().doing(format!("cannot find `{}`", args.dir.display()))?;
    // Held until the process ends.
    let _lock = lock(&dir)?;
    let listener = |port| Listener { bind: loopback(port), advertise: None };
    let config = Config {
        grpc: listener(args.grpc_port),
        kafka: listener(args.kafka_port),
        http: listener(args.http_port),
        otlp: telemetry.otlp.clone(),
        ..Config::local(dir.join("broker-0"))
    };
    let launch = Launch {
        config,
        auto_id: false,
        cluster: "dev".to_owned(),
        metadata: Metadata::Embedded(dir.join("metadata")),
        objects: args.object_store.unwrap_or_else(|| format!("file://{}", dir.join("objects").display())),
        bucket: Missing::Create,
        flags: ["--grpc-port", "--kafka-port", "--http-port"],
    };
    let outcome = launch.run().await;
    telemetry.end().await;
    outcome
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
