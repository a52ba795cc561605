//! An image is followed by who waits for much else and drops its calls all the time: what a call had begun is not begun anew.

use crate::store::{Cluster, cluster, create, partition, register};
use futures::FutureExt;
use millpond_metadata::embedded::Embedded;
use millpond_metadata::keys::Key;
use millpond_metadata::kv::{
    BoxFuture, Interval, Kv, KvError, Lease, LeaseId, Position, Range, Ranged, Renewal, Revision, Txn, TxnOutcome,
    Watch, WatchBatch,
};
use millpond_metadata::store::{Follow, Store};
use std::sync::Arc;
use std::time::Duration;

/// How many slices every read, every watch that is opened, and every wait for what comes next on it takes at least.
const SLICES: u32 = 5;

/// A store that takes longer to answer than anybody waits.
struct Slow(Embedded);

async fn slow<T>(call: impl Future<Output = T>) -> T {
    for _ in 0..SLICES {
        tokio::task::yield_now().await;
    }
    call.await
}

impl Kv for Slow {
    fn range(&self, range: Range) -> BoxFuture<'_, Result<Ranged, KvError>> {
        Box::pin(slow(self.0.range(range)))
    }
    fn position(&self) -> BoxFuture<'_, Result<Position, KvError>> {
        self.0.position()
    }
    fn txn(&self, txn: Txn) -> BoxFuture<'_, Result<TxnOutcome, KvError>> {
        self.0.txn(txn)
    }
    fn grant(&self, ttl: Duration) -> BoxFuture<'_, Result<Lease, KvError>> {
        self.0.grant(ttl)
    }
    fn keep_alive(&self, lease: LeaseId) -> BoxFuture<'_, Result<Option<Renewal>, KvError>> {
        self.0.keep_alive(lease)
    }
    fn revoke(&self, lease: LeaseId) -> BoxFuture<'_, Result<(), KvError>> {
        self.0.revoke(lease)
    }
    fn watch(&self, keys: Interval, from: Revision) -> BoxFuture<'_, Result<Box<dyn Watch>, KvError>> {
        Box::pin(async move {
            let watch = slow(self.0.watch(keys, from)).await?;
            Ok(Box::new(SlowWatch(watch)) as Box<dyn Watch>)
        })
    }
    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<(), KvError>> {
        self.0.compact(revision)
    }
}

/// As one that looks for another member first.
struct SlowWatch(Box<dyn Watch>);

impl Watch for SlowWatch {
    fn next(&mut self) -> BoxFuture<'_, Result<WatchBatch, KvError>> {
        Box::pin(slow(self.0.next()))
    }
    fn request_progress(&mut self) -> BoxFuture<'_, Result<(), KvError>> {
        self.0.request_progress()
    }
}

/// Polls once, and drops the call, until the image is as wanted.
async fn in_slices(follow: &mut Follow, wanted: impl Fn(&Follow) -> bool) {
    let followed = async {
        while !wanted(follow) {
            follow.changed().now_or_never().transpose().expect("up");
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), followed).await.expect("it comes to its end");
}

/// Rules Z2, Z3.
#[tokio::test]
async fn an_image_is_followed_and_loaded_again_though_every_call_for_it_is_dropped() {
    let Cluster { store, embedded, .. } = cluster().await;
    let me = register(&store, 1).await;
    let slow = Store::new(Arc::new(Slow(embedded.clone())), store.keys().clone());
    let mut follow = slow.follow().await.expect("loaded");
    create(&store, &me, "t", 7, 1).await;
    in_slices(&mut follow, |follow| follow.image().partitions.contains_key(&partition(7, 0))).await;

    // History goes before the watches of another one are open.
    let mut follow = slow.follow().await.expect("loaded");
    create(&store, &me, "u", 8, 1).await;
    let now = embedded.range(Range::key(&store.keys().encode(&Key::Cluster))).await.expect("up");
    embedded.compact(Revision(now.revision.0)).await.expect("compacted");
    in_slices(&mut follow, |follow| follow.image().partitions.contains_key(&partition(8, 0))).await;
}
