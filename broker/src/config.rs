//! What a broker is told at its start. Plain data: parsing is the command line's, components (metadata, object store, disk) are arguments.

use crate::secret::Secret;
use crate::telemetry::Otlp;
use millpond_core::controller::Limits;
use millpond_log::BrokerId;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

pub use millpond_core::groups::GroupLimits;

/// Most partitions of one topic. Each costs some memory on its brokers; ten thousand is what a cluster is measured with.
pub const PARTITIONS_MAX: u32 = 10_000;

/// Settings of one broker.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its id; stays with its data directory.
    pub id: BrokerId,
    /// Its rack or zone, if told.
    pub rack: Option<String>,
    /// Holds `wal/` and `cache/`.
    pub data_dir: PathBuf,
    /// The gRPC door. Port 0 takes a free one.
    pub grpc: Listener,
    /// The listeners of the Kafka door: at least one, each of another name. The first is the one that is shown of the broker.
    pub kafka: Vec<KafkaListener>,
    /// The HTTP door: health and metrics.
    pub http: Listener,
    /// The internal door, where the other brokers come in. Opened only with a secret. Its TLS is `internal_tls`.
    pub internal: Listener,
    /// Certificates of the doors of clients that speak TLS.
    pub tls: Option<DoorTls>,
    /// What the brokers of the cluster prove to each other that they know. Without one a broker takes part in no replication.
    pub cluster_secret: Option<Secret>,
    /// Encrypts what brokers say to each other. All brokers of a cluster have it or none.
    pub internal_tls: Option<InternalTls>,
    /// Most bytes of WAL files.
    pub wal_bytes: u64,
    /// Bytes of one WAL file.
    pub wal_file_bytes: u64,
    /// Bytes of newest batches kept in memory for readers.
    pub tail_memory_bytes: u64,
    /// Bytes of batches that may wait for the WAL's sync.
    pub produce_memory_bytes: u32,
    /// Bytes of requests that are being received or answered, over all doors and connections. Half of it is for those over
    /// 2 MiB, and bounds the largest.
    pub request_memory_bytes: u32,
    /// Bytes of batches that were read and wait for their readers to take them, over all doors and connections.
    pub answer_memory_bytes: u32,
    /// Most connections of each door.
    pub connections_max: u32,
    /// Bytes of the read cache in memory.
    pub cache_memory_bytes: u64,
    /// Bytes of the read cache on disk; 0 for none.
    pub cache_disk_bytes: u64,
    /// Where metrics are pushed to, besides being read at the HTTP door. Traces are the process's and not one broker's.
    pub otlp: Option<Otlp>,
    /// `auto.create.topics.enable`.
    pub auto_create_topics: bool,
    /// `num.partitions`: partitions of a topic created without a number.
    pub default_partitions: u32,
    /// Lease of the broker's session.
    pub lease_ttl: Duration,
    /// How often the metadata store is told up to where the WAL is durable (rule B1a).
    pub disk_note_interval: Duration,
    /// How eager this broker is when it acts as controller.
    pub controller: Limits,
    /// What the groups keep to that this broker coordinates.
    pub groups: GroupLimits,
    /// How often tails are looked at for flushing, and retention is applied.
    pub tier_interval: Duration,
    /// Period of the garbage collector's epoch (rule G1).
    pub gc_period: Duration,
}

/// Where a door listens and what clients are told to dial.
#[derive(Clone, Debug)]
pub struct Listener {
    /// Address to bind.
    pub bind: SocketAddr,
    /// `host:port` for clients; the bound address when `None`.
    pub advertise: Option<String>,
    /// Whether it speaks TLS, and nothing else.
    pub tls: bool,
}

/// A listener of the Kafka door.
#[derive(Clone, Debug)]
pub struct KafkaListener {
    /// Its name. Clients that came in by it are told the addresses that the brokers' listeners of this name advertise.
    pub name: String,
    /// Where it listens.
    pub listener: Listener,
}

impl KafkaListener {
    /// Name of the listener of a broker that was told no names.
    pub const DEFAULT: &str = "default";
}

/// What the doors show to clients, and whom they let in. Files in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DoorTls {
    /// The broker's certificate, for the hosts that its doors advertise, with those that lead to its authority.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Certificates of the authorities whose clients are let in at the gRPC and the Kafka door; all clients, if `None`.
    pub client_ca: Option<PathBuf>,
    /// How often the files are looked at.
    pub reread_interval: Duration,
}

impl DoorTls {
    /// Files that are looked at every ten seconds: certificates live for days and more.
    #[must_use]
    pub fn new(certificate: PathBuf, key: PathBuf, client_ca: Option<PathBuf>) -> DoorTls {
        DoorTls { certificate, key, client_ca, reread_interval: Duration::from_secs(10) }
    }
}

/// What a broker shows to the others, and whom it takes for one. Files in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InternalTls {
    /// Certificate of the authority that signed those of all brokers.
    pub ca: PathBuf,
    /// This broker's, for the host that it advertises: for a server and for a client.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// How often the door looks at the files. Calls to other brokers read them for each connection. Both go on with the last that could be used.
    pub reread_interval: Duration,
}

impl InternalTls {
    /// Files that are looked at every ten seconds, as `DoorTls`.
    #[must_use]
    pub fn new(ca: PathBuf, certificate: PathBuf, key: PathBuf) -> InternalTls {
        InternalTls { ca, certificate, key, reread_interval: Duration::from_secs(10) }
    }
}

impl Config {
    /// The defaults of one broker on loopback, with its data under `data_dir`.
    #[must_use]
    pub fn local(data_dir: PathBuf) -> Config {
        let loopback = |port| Listener { bind: SocketAddr::from(([127, 0, 0, 1], port)), advertise: None, tls: false };
        Config {
            id: BrokerId(0),
            rack: None,
            data_dir,
            grpc: loopback(7400),
            kafka: vec![KafkaListener { name: KafkaListener::DEFAULT.to_owned(), listener: loopback(9092) }],
            http: loopback(7480),
            // Whoever has to find it reads where it is in the metadata store.
            internal: loopback(0),
            tls: None,
            cluster_secret: None,
            internal_tls: None,
            wal_bytes: 4 << 30,
            wal_file_bytes: 64 << 20,
            tail_memory_bytes: 64 << 20,
            produce_memory_bytes: 128 << 20,
            // Twice the largest frame Kafka's clients may send, with room.
            request_memory_bytes: 256 << 20,
            // Eight answers of the size that Java's consumer asks for at most, or 256 ordinary ones.
            answer_memory_bytes: 256 << 20,
            connections_max: 2048,
            cache_memory_bytes: 64 << 20,
            cache_disk_bytes: 1 << 30,
            otlp: None,
            auto_create_topics: true,
            default_partitions: 1,
            // Section 8: a silent broker is replaced within TTL + 2 s.
            lease_ttl: Duration::from_secs(6),
            disk_note_interval: Duration::from_secs(10),
            controller: Limits::default(),
            groups: GroupLimits::default(),
            tier_interval: Duration::from_secs(1),
            // Rule G1: at most once per hour.
            gc_period: Duration::from_secs(3600),
        }
    }
}
