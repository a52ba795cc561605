//! Several brokers inside the test's own process, over one metadata store and one object store: the real code on real disks and
//! sockets. Each can be stopped and started again on its data.

use crate::broker::config;
use millpond_broker::api::BrokerDescription;
use millpond_broker::secret::Secret;
use millpond_broker::wal::disk::{Disk, RealDisk};
use millpond_broker::{Broker, Components, Config, Running, start};
use millpond_log::BrokerId;
use millpond_metadata::clock::SystemClock;
use millpond_metadata::embedded::Embedded;
use millpond_metadata::keys::Keys;
use millpond_metadata::store::Store;
use object_store::ObjectStore;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

/// Name of their cluster.
const CLUSTER: &str = "test";

/// Bytes of the WAL of each.
pub const WAL_BYTES: u64 = 24 << 20;

/// The brokers that run, and what they share.
pub struct TestBrokers {
    dir: TempDir,
    metadata: Embedded,
    objects: Arc<dyn ObjectStore>,
    disks: Disks,
    running: BTreeMap<u32, (Running, CancellationToken)>,
}

/// The disk of a broker's WAL, as a process sees it that starts now.
pub type Disks = Box<dyn Fn(u32) -> Arc<dyn Disk> + Send + Sync>;

impl TestBrokers {
    /// Starts brokers 0 to `count - 1`, each in a rack of its own.
    ///
    /// # Panics
    /// If one does not come up.
    pub async fn start(count: u32, objects: Arc<dyn ObjectStore>) -> TestBrokers {
        TestBrokers::start_on(Box::new(|_| Arc::new(RealDisk)), count, objects).await
    }

    /// As `start`, with their WALs on other disks than the real one.
    ///
    /// # Panics
    /// As `start`.
    pub async fn start_on(disks: Disks, count: u32, objects: Arc<dyn ObjectStore>) -> TestBrokers {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let metadata = dir.path().join("metadata");
        std::fs::create_dir_all(&metadata).expect("a folder for the metadata");
        let metadata = Embedded::open(&metadata, Arc::new(SystemClock::start())).expect("the metadata can be opened");
        let mut brokers = TestBrokers { dir, metadata, objects, disks, running: BTreeMap::new() };
        for id in 0..count {
            brokers.start_one(id).await;
        }
        brokers
    }

    /// The settings of a broker.
    #[must_use]
    pub fn config(&self, id: u32) -> Config {
        let mut config = config(&self.folder(id));
        config.id = BrokerId(id);
        config.wal_bytes = WAL_BYTES;
        config.rack = Some(format!("r{id}"));
        // Balance waits for a short calm, so that it happens while a test looks.
        config.controller.calm_ms = 1_000;
        config.controller.bury_after_ms = 1_000;
        config.cluster_secret = Some(Secret::new(b"known to the brokers of this test").expect("it is long enough"));
        config
    }

    /// The folder of a broker's data.
    #[must_use]
    pub fn folder(&self, id: u32) -> PathBuf {
        self.dir.path().join(format!("broker-{id}"))
    }

    /// Starts a broker on the data it has.
    ///
    /// # Panics
    /// If it does not come up.
    pub async fn start_one(&mut self, id: u32) {
        self.start_one_with(id, |_| {}).await;
    }

    /// As `start_one`, with settings that differ.
    ///
    /// # Panics
    /// As `start_one`.
    pub async fn start_one_with(&mut self, id: u32, change: impl FnOnce(&mut Config)) {
        let components = Components {
            metadata: Arc::new(self.metadata.clone()),
            keys: self.keys(),
            objects: Arc::clone(&self.objects),
            disk: (self.disks)(id),
        };
        let shutdown = CancellationToken::new();
        let mut config = self.config(id);
        change(&mut config);
        let running = start(config, components, shutdown.clone()).await.expect("the broker comes up");
        assert!(self.running.insert(id, (running, shutdown)).is_none(), "it ran already");
    }

    /// Stops a broker and waits until its data can be opened again.
    ///
    /// # Panics
    /// If it does not run, or does not end cleanly.
    pub async fn stop_one(&mut self, id: u32) {
        let (running, shutdown) = self.running.remove(&id).expect("it runs");
        shutdown.cancel();
        running.ended().await.expect("it ends cleanly");
    }

    /// Waits until a broker has ended by itself; why it did.
    ///
    /// # Panics
    /// If it does not run, or ends as if it had been asked to.
    pub async fn ended_one(&mut self, id: u32) -> String {
        let (running, _) = self.running.remove(&id).expect("it runs");
        running.ended().await.expect_err("nobody asked it to end")
    }

    /// Their metadata store.
    #[must_use]
    pub fn store(&self) -> Store {
        Store::new(Arc::new(self.metadata.clone()), self.keys())
    }

    /// How its keys are spelled.
    #[must_use]
    pub fn keys(&self) -> Keys {
        Keys::for_cluster(CLUSTER)
    }

    /// A broker's handle.
    ///
    /// # Panics
    /// If it does not run.
    #[must_use]
    pub fn handle(&self, id: u32) -> &Broker {
        &self.running[&id].0.broker
    }

    /// Where a broker is reached.
    ///
    /// # Panics
    /// If it does not run.
    #[must_use]
    pub fn addresses(&self, id: u32) -> &BrokerDescription {
        &self.running[&id].0.addresses
    }

    /// The gRPC addresses of those that run, as a client takes them.
    #[must_use]
    pub fn bootstrap(&self) -> String {
        let addresses: Vec<&str> = self.running.values().map(|(running, _)| running.addresses.grpc.as_str()).collect();
        addresses.join(",")
    }

    /// Stops all of them.
    ///
    /// # Panics
    /// If one does not end cleanly.
    pub async fn stop(mut self) {
        for id in self.running.keys().copied().collect::<Vec<u32>>() {
            self.stop_one(id).await;
        }
        self.metadata.close().await.expect("the metadata were open");
    }
}
