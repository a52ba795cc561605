//! Two clusters and one bucket (rule G5): what no manifest of one names may be the other's.

use millpond_broker::wal::disk::RealDisk;
use millpond_broker::{Components, Config, start};
use millpond_metadata::clock::SystemClock;
use millpond_metadata::embedded::Embedded;
use millpond_metadata::keys::Keys;
use millpond_tests::broker::{TestBroker, config};
use object_store::memory::InMemory;
use object_store::prefix::PrefixStore;
use object_store::{ObjectStore, ObjectStoreExt};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Nothing that a test waits for takes so long, unless it never comes.
const PATIENCE: Duration = Duration::from_secs(60);

/// An object of some log, that no manifest of ours names, from the first epoch of garbage collection.
const ORPHAN: &str = "1-1/0000000000000000/00000000000000000000000000000001.bundle";

/// Starts a broker of a cluster that is founded for it.
async fn found(config: Config, objects: Arc<dyn ObjectStore>) -> Result<(), String> {
    let components = Components {
        metadata: Arc::new(Embedded::in_memory(Arc::new(SystemClock::start()))),
        keys: Keys::for_cluster("test"),
        objects,
        disk: Arc::new(RealDisk),
    };
    let shutdown = CancellationToken::new();
    let running = start(config, components, shutdown.clone()).await.map_err(|error| error.to_string())?;
    shutdown.cancel();
    running.ended().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_is_one_cluster_s() {
    let (one, two) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let bucket = Arc::new(InMemory::new());
    let first = TestBroker::start(config(one.path()), bucket.clone()).await;
    let refused = found(config(two.path()), bucket.clone()).await.expect_err("it is the first one's");
    assert!(refused.contains("belongs to cluster") && refused.contains("a prefix of its own"), "{refused}");
    first.stop().await;
    TestBroker::start(config(one.path()), bucket.clone()).await.stop().await;
    let three = tempfile::tempdir().expect("a folder");
    let refused = found(config(three.path()), bucket.clone()).await.expect_err("it is that of the old metadata");
    assert!(refused.contains("belongs to cluster"), "{refused}");
    let prefix = Arc::new(PrefixStore::new(bucket.clone(), "of/its/own"));
    found(config(tempfile::tempdir().expect("a folder").path()), prefix).await.expect("nobody has it");
    let old = Arc::new(InMemory::new());
    old.put(&ORPHAN.into(), "data".into()).await.expect("memory takes it");
    let refused = found(config(tempfile::tempdir().expect("a folder").path()), old).await.expect_err("whose is it");
    assert!(refused.contains(ORPHAN) && refused.contains("put an empty object `cluster/"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_takes_nothing_while_another_cluster_is_in_the_bucket() {
    let dir = tempfile::tempdir().expect("a folder");
    let bucket = Arc::new(InMemory::new());
    let config = Config { gc_period: Duration::from_millis(5), ..config(dir.path()) };
    let broker = TestBroker::start(config, bucket.clone()).await;
    bucket.put(&"cluster/another/1".into(), "".into()).await.expect("memory takes it");
    bucket.put(&ORPHAN.into(), "data".into()).await.expect("memory takes it");
    let mut again = tokio::time::interval(Duration::from_millis(10));
    let swept = async {
        // More than two sweeps.
        let until = broker.gc_epoch().await + 60;
        while broker.gc_epoch().await < until {
            again.tick().await;
        }
    };
    tokio::time::timeout(PATIENCE, swept).await.expect("it collects");
    bucket.head(&ORPHAN.into()).await.expect("it may be the other's");
    // Alone again, it is an orphan.
    bucket.delete(&"cluster/another/1".into()).await.expect("it is there");
    let deleted = async {
        while bucket.head(&ORPHAN.into()).await.is_ok() {
            again.tick().await;
        }
    };
    tokio::time::timeout(PATIENCE, deleted).await.expect("it is swept");
    broker.stop().await;
}
