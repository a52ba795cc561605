//! A broker inside the test's own process: the real code on a real disk, with the object store the test hands in.
//! It can be stopped and started again on the same data.

use millpond_broker::wal::disk::RealDisk;
use millpond_broker::{Broker, Components, Config, Running, start};
use millpond_log::Lsn;
use millpond_metadata::clock::SystemClock;
use millpond_metadata::embedded::Embedded;
use millpond_metadata::keys::Keys;
use millpond_metadata::store::Store;
use object_store::ObjectStore;
use object_store::memory::InMemory;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

/// Name of its cluster.
const CLUSTER: &str = "test";

/// A running broker and what it takes to stop it.
pub struct TestBroker {
    running: Running,
    metadata: Embedded,
    shutdown: CancellationToken,
}

/// Settings that suit a test: free ports on loopback, small files, a tierer that looks often.
#[must_use]
pub fn config(dir: &Path) -> Config {
    let mut config = Config::local(dir.to_owned());
    for listener in [&mut config.grpc, &mut config.kafka[0].listener, &mut config.http] {
        listener.bind = SocketAddr::from(([127, 0, 0, 1], 0));
    }
    config.wal_file_bytes = 4 << 20;
    config.wal_bytes = 64 << 20;
    config.tier_interval = Duration::from_millis(20);
    config
}

/// What the HTTP door at `address` serves under `/metrics`.
///
/// # Panics
/// If it does not answer.
pub async fn scrape(address: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("the HTTP door is open");
    let request = "GET /metrics HTTP/1.1\r\nHost: broker\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await.expect("the broker reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("the answer is text");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer
}

impl TestBroker {
    /// Starts a broker whose metadata and WAL are under `config.data_dir`.
    ///
    /// # Panics
    /// If it does not come up.
    pub async fn start(config: Config, objects: Arc<dyn ObjectStore>) -> TestBroker {
        let metadata = config.data_dir.join("metadata");
        std::fs::create_dir_all(&metadata).expect("a folder for the metadata");
        let metadata = Embedded::open(&metadata, Arc::new(SystemClock::start())).expect("the metadata can be opened");
        let components = Components {
            metadata: Arc::new(metadata.clone()),
            keys: Keys::for_cluster(CLUSTER),
            objects,
            disk: Arc::new(RealDisk),
        };
        let shutdown = CancellationToken::new();
        let running = start(config, components, shutdown.clone()).await.expect("the broker comes up");
        TestBroker { running, metadata, shutdown }
    }

    /// Starts another broker on the same metadata.
    ///
    /// # Errors
    /// Why it does not come up.
    pub async fn start_another(&self, config: Config) -> Result<Running, String> {
        let components = Components {
            metadata: Arc::new(self.metadata.clone()),
            keys: Keys::for_cluster(CLUSTER),
            objects: Arc::new(InMemory::new()),
            disk: Arc::new(RealDisk),
        };
        start(config, components, CancellationToken::new()).await.map_err(|error| error.to_string())
    }

    /// Its handle.
    #[must_use]
    pub fn handle(&self) -> &Broker {
        &self.running.broker
    }

    /// Up to where the metadata store knows its WAL to be durable (rule B1a).
    ///
    /// # Panics
    /// If it never registered.
    pub async fn noted_position(&self) -> Lsn {
        let store = Store::new(Arc::new(self.metadata.clone()), Keys::for_cluster(CLUSTER));
        let disk = store.read_disk(self.handle().id()).await.expect("the metadata can be read");
        disk.expect("the broker has registered").value.durable_lsn
    }

    /// The epoch of its garbage collection.
    ///
    /// # Panics
    /// If the metadata cannot be read.
    pub async fn gc_epoch(&self) -> u64 {
        let store = Store::new(Arc::new(self.metadata.clone()), Keys::for_cluster(CLUSTER));
        store.gc_epoch().await.expect("the metadata can be read").value
    }

    /// Address of its gRPC door.
    #[must_use]
    pub fn grpc(&self) -> &str {
        &self.running.addresses.grpc
    }

    /// Address of its Kafka door.
    #[must_use]
    pub fn kafka(&self) -> &str {
        &self.running.addresses.kafka
    }

    /// Addresses of the listeners of its Kafka door that have names, by these.
    #[must_use]
    pub fn kafka_listeners(&self) -> &BTreeMap<String, String> {
        &self.running.addresses.kafka_listeners
    }

    /// Address of its HTTP door.
    #[must_use]
    pub fn http(&self) -> &str {
        &self.running.addresses.http
    }

    /// Stops it and waits until its data can be opened again.
    ///
    /// # Panics
    /// If it does not end cleanly.
    pub async fn stop(self) {
        self.shutdown.cancel();
        self.running.ended().await.expect("it ends cleanly");
        self.metadata.close().await.expect("the metadata were open");
    }
}
