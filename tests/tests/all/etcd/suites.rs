//! The waist's suite over one real etcd of each version, and over three of which one after the other is killed meanwhile.

use super::{cluster, connect};
use crate::conformance::{Subject, suite};
use bytes::Bytes;
use millpond_metadata::etcd::Etcd;
use millpond_metadata::kv::{
    BoxFuture, Interval, Kv, KvError, Lease, LeaseId, Position, Range, Ranged, Renewal, Revision, Txn, TxnOutcome,
    Watch,
};
use millpond_tests::etcd::EtcdCluster;
use millpond_tests::tools::Tool;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Mutex, RwLock};

suite!(each single_etcd_of_the_distribution, super::single_of_the_distribution);
suite!(each single_etcd_pinned, super::single_pinned);
suite!(in_a_row three_etcds_of_the_distribution_of_which_one_is_killed, three_of_the_distribution);
suite!(in_a_row three_etcds_pinned_of_which_one_is_killed, three_pinned);

async fn single_of_the_distribution(test: &str) -> Option<Subject> {
    single(test, Tool::EtcdOfDistribution).await
}

async fn single_pinned(test: &str) -> Option<Subject> {
    single(test, Tool::EtcdPinned).await
}

async fn three_of_the_distribution(test: &str) -> Option<Subject> {
    three(test, Tool::EtcdOfDistribution).await
}

async fn three_pinned(test: &str) -> Option<Subject> {
    three(test, Tool::EtcdPinned).await
}

async fn single(test: &str, tool: Tool) -> Option<Subject> {
    let cluster = cluster(test, tool, 1).await?;
    let kv = Arc::new(connect(&cluster.url()).await);
    let pass = move |time| {
        // The cluster lives as long as the subject.
        let _ = &cluster;
        Box::pin(tokio::time::sleep(time)) as BoxFuture<'static, ()>
    };
    Some(Subject { kv, pass: Box::new(pass) })
}

async fn three(test: &str, tool: Tool) -> Option<Subject> {
    let cluster = cluster(test, tool, 3).await?;
    let kv = Arc::new(Harassed::new(connect(&cluster.url()).await, cluster));
    Some(Subject { kv, pass: Box::new(|time| Box::pin(tokio::time::sleep(time))) })
}

/// The kill after one at a number of calls. The pauses grow, since one promise makes most of the calls by far.
fn next_kill(calls: u64) -> u64 {
    calls + 10 + calls / 8
}

/// Kills at least, for the suite to have shown anything.
const KILLS_MIN: u64 = 12;

/// An etcd whose members are killed between the calls on it, every second time the leader, and started again before the
/// next kill. Watches and leases stand meanwhile. No call is under way at a kill, so that none ends as unknown: what the
/// suite asserts of outcomes is asserted here too. `faults` has the kills in the midst of calls.
struct Harassed {
    etcd: Etcd,
    cluster: Mutex<EtcdCluster>,
    /// Held by calls for reading, by kills for writing.
    calm: RwLock<()>,
    calls: AtomicU64,
    /// The number of calls that the next kill waits for.
    next_kill: AtomicU64,
    kills: AtomicU64,
}

impl Harassed {
    fn new(etcd: Etcd, cluster: EtcdCluster) -> Harassed {
        let (calls, kills) = (AtomicU64::new(0), AtomicU64::new(0));
        let next_kill = AtomicU64::new(next_kill(0));
        Harassed { etcd, cluster: Mutex::new(cluster), calm: RwLock::new(()), calls, next_kill, kills }
    }

    async fn disturb(&self) {
        let calls = self.calls.fetch_add(1, Ordering::Relaxed);
        if calls < self.next_kill.load(Ordering::Relaxed) {
            return;
        }
        let _calm = self.calm.write().await;
        if calls < self.next_kill.load(Ordering::Relaxed) {
            return;
        }
        self.next_kill.store(next_kill(calls), Ordering::Relaxed);
        let mut cluster = self.cluster.lock().await;
        let dead = (0..cluster.size()).find(|index| !cluster.runs(*index));
        if let Some(dead) = dead {
            cluster.restart(dead).await;
        }
        let kill = self.kills.fetch_add(1, Ordering::Relaxed);
        let leader = cluster.leader().await;
        let victim = if kill.is_multiple_of(2) { leader } else { (leader + 1) % cluster.size() };
        cluster.kill(victim);
        // Returns when another member serves: the client has noticed, and a leader is there.
        while self.etcd.range(Range::key(&Bytes::from("any"))).await.is_err() {}
    }

    async fn undisturbed<'a, T>(&'a self, call: impl Future<Output = T> + Send + 'a) -> T {
        self.disturb().await;
        let _calm = self.calm.read().await;
        call.await
    }
}

impl Drop for Harassed {
    fn drop(&mut self) {
        let kills = *self.kills.get_mut();
        if !std::thread::panicking() {
            eprintln!("{} calls, {kills} kills", *self.calls.get_mut());
            assert!(kills >= KILLS_MIN, "only {kills} kills");
        }
    }
}

impl Kv for Harassed {
    fn range(&self, range: Range) -> BoxFuture<'_, Result<Ranged, KvError>> {
        Box::pin(self.undisturbed(self.etcd.range(range)))
    }

    fn position(&self) -> BoxFuture<'_, Result<Position, KvError>> {
        Box::pin(self.undisturbed(self.etcd.position()))
    }

    fn txn(&self, txn: Txn) -> BoxFuture<'_, Result<TxnOutcome, KvError>> {
        Box::pin(self.undisturbed(self.etcd.txn(txn)))
    }

    fn grant(&self, ttl: Duration) -> BoxFuture<'_, Result<Lease, KvError>> {
        Box::pin(self.undisturbed(self.etcd.grant(ttl)))
    }

    /// Keep-alives have a connection of their own, which may be to the killed member: they are asked again, as a broker does.
    fn keep_alive(&self, lease: LeaseId) -> BoxFuture<'_, Result<Option<Renewal>, KvError>> {
        Box::pin(self.undisturbed(async move {
            loop {
                match self.etcd.keep_alive(lease).await {
                    Err(KvError::Unknown(_) | KvError::Unavailable(_)) => {}
                    answer => return answer,
                }
            }
        }))
    }

    fn revoke(&self, lease: LeaseId) -> BoxFuture<'_, Result<(), KvError>> {
        Box::pin(self.undisturbed(self.etcd.revoke(lease)))
    }

    fn watch(&self, keys: Interval, from: Revision) -> BoxFuture<'_, Result<Box<dyn Watch>, KvError>> {
        Box::pin(self.undisturbed(self.etcd.watch(keys, from)))
    }

    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<(), KvError>> {
        Box::pin(self.undisturbed(self.etcd.compact(revision)))
    }
}
