//! Runs one broker in this process: makes what it is given, says when it is ready, and asks it to end when the process is asked
//! to. What a broker does is the broker's.

use crate::failure::{Doing, Failure, causes};
use crate::metadata::Metadata;
use crate::ports;
use crate::signals::Shutdown;
use crate::store::Missing;
use crate::{output, store};
use millpond_broker::api::BrokerDescription;
use millpond_broker::wal::disk::RealDisk;
use millpond_broker::{Components, Config, StartError};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::ErrorKind;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// One broker to run.
pub(crate) struct Launch {
    pub(crate) config: Config,
    /// The id is that of the data directory or a new one, not the one in `config`.
    pub(crate) auto_id: bool,
    pub(crate) cluster: String,
    pub(crate) metadata: Metadata,
    /// URL of the object store.
    pub(crate) objects: String,
    /// What to do about its bucket, if that is not there.
    pub(crate) bucket: Missing,
    /// Flags that set the ports of the three doors, to be named when one is taken.
    pub(crate) flags: [&'static str; 3],
}

impl Launch {
    /// Runs the broker until the process is asked to end. Prints the ready line once it serves.
    pub(crate) async fn run(self) -> Result<(), Failure> {
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            cluster = self.cluster,
            data_dir = %self.config.data_dir.display(),
            object_store = self.objects,
            "starting"
        );
        open_many_files();
        let mut shutdown = Shutdown::listen()?;
        let metadata = self.metadata.open(&self.cluster).await?;
        let components = Components {
            metadata: Arc::clone(&metadata.kv),
            keys: metadata.keys.clone(),
            objects: store::open(&self.objects, self.bucket).await?,
            disk: Arc::new(RealDisk),
        };
        let mut config = self.config;
        if self.auto_id {
            let id = millpond_broker::auto_id(&components, &config.data_dir).await;
            config.id = id.map_err(|error| explain(error, self.flags))?;
        }
        let stop = CancellationToken::new();
        let started = millpond_broker::start(config, components, stop.clone());
        let running = tokio::select! {
            () = shutdown.asked() => return Ok(()),
            started = started => started.map_err(|error| explain(error, self.flags))?,
        };
        output::text(&ready(&running.addresses))?;
        let mut ended = std::pin::pin!(running.ended());
        tokio::select! {
            () = shutdown.asked() => stop.cancel(),
            ended = &mut ended => return ended.doing("the broker ended"),
        }
        tokio::select! {
            () = shutdown.asked() => return Err(Failure::new("asked twice to end: did not wait for the broker")),
            ended = ended => ended.doing("the broker did not end well")?,
        }
        metadata.close().await
    }
}

/// Raises the limit of open files to the most that is allowed: the usual 1024 are fewer than the connections of one door.
fn open_many_files() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}

/// Says what to do about a broker that does not start.
fn explain(error: StartError, flags: [&str; 3]) -> Failure {
    let StartError::Listen { door, address, source } = &error else {
        return Failure::new(format!("cannot start the broker: {}", causes(&error)));
    };
    let [grpc, kafka, http] = flags;
    let flag = match *door {
        "gRPC" => grpc,
        "Kafka" => kafka,
        "internal" => "--internal-listen",
        _ => http,
    };
    match source.kind() {
        ErrorKind::AddrInUse => Failure::new(ports::taken(*address, flag)),
        _ => Failure::new(format!("{error}; give another address with {flag}")),
    }
}

/// `ready broker=0 grpc=127.0.0.1:7400 kafka=127.0.0.1:9092 http=127.0.0.1:7480`: scripts wait for it.
fn ready(broker: &BrokerDescription) -> String {
    format!("ready broker={} grpc={} kafka={} http={}", broker.id, broker.grpc, broker.kafka, broker.http)
}
