//! Why a broker does not come up. Nothing is decided here.

use crate::bucket::BucketError;
use crate::mark::MarkError;
use crate::telemetry::OtlpError;
use crate::wal::WalError;
use millpond_cache::InvalidOptions;
use millpond_log::PartitionId;
use millpond_log::manifest::ManifestError;
use millpond_metadata::store::StoreError;
use std::io;

/// Why a broker did not come up.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A port is taken, or may not be listened on.
    #[error("cannot listen on {address} for {door}: {source}")]
    Listen {
        /// Which door.
        door: &'static str,
        /// Which address.
        address: std::net::SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// A door is to speak TLS and cannot.
    #[error("{0}")]
    Tls(String),
    /// The collector of telemetry cannot be used.
    #[error(transparent)]
    Telemetry(#[from] OtlpError),
    /// The WAL cannot be used.
    #[error(transparent)]
    Wal(#[from] WalError),
    /// The cache's settings cannot work.
    #[error(transparent)]
    Cache(#[from] InvalidOptions),
    /// The metadata store cannot be used.
    #[error(transparent)]
    Metadata(#[from] StoreError),
    /// The metadata store is not what it was (rule K7).
    #[error(transparent)]
    Restored(#[from] MarkError),
    /// The bucket is not this cluster's (rule G5).
    #[error(transparent)]
    Bucket(#[from] BucketError),
    /// The broker may not act under its id.
    #[error("{0}")]
    Office(String),
    /// A partition's data contradict each other.
    #[error("{0}")]
    Recovery(String),
    /// A manifest in the metadata store cannot be read.
    #[error("the manifest of {partition} cannot be read: {source}")]
    Manifest {
        /// Whose.
        partition: PartitionId,
        /// Why.
        source: ManifestError,
    },
    /// A topic in the metadata store cannot be served by this version.
    #[error("topic `{name}` cannot be served: {reason}")]
    Topic {
        /// Its name.
        name: String,
        /// Why.
        reason: String,
    },
}
