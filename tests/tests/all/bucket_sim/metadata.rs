//! A metadata store whose transactions get lost, arrive late, or happen without an answer (rule K5). What it holds is the embedded
//! store's: its compares, revisions and leases are the real ones.

use millpond_metadata::clock::ManualClock;
use millpond_metadata::embedded::Embedded;
use millpond_metadata::kv::{
    BoxFuture, Interval, Kv, KvError, Lease, LeaseId, Position, Range, Ranged, Renewal, Revision, Txn, TxnOutcome,
    Watch,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

pub(super) struct LateKv {
    inner: Embedded,
    random: Mutex<StdRng>,
    odds: u32,
    late: Mutex<Vec<Txn>>,
    faulty: AtomicBool,
    pub(super) unknown: AtomicU64,
}

/// Nobody panics with a lock held.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nobody panics with it")
}

impl LateKv {
    /// Faults are drawn out of `odds`; the fewer, the more.
    pub(super) fn new(seed: u64, odds: u32) -> LateKv {
        LateKv {
            inner: Embedded::in_memory(Arc::new(ManualClock::default())),
            random: Mutex::new(StdRng::seed_from_u64(seed)),
            odds,
            late: Mutex::default(),
            faulty: AtomicBool::new(false),
            unknown: AtomicU64::new(0),
        }
    }

    pub(super) fn set_faulty(&self, faulty: bool) {
        self.faulty.store(faulty, Ordering::Relaxed);
    }

    /// One late transaction arrives, if there is one. `Some`: whether its comparisons held.
    pub(super) async fn arrive(&self) -> Option<bool> {
        let txn = {
            let mut late = lock(&self.late);
            if late.is_empty() {
                return None;
            }
            let at = lock(&self.random).random_range(0..late.len());
            late.swap_remove(at)
        };
        let outcome = self.inner.txn(txn).await.expect("memory does not fail");
        Some(matches!(outcome, TxnOutcome::Succeeded { .. }))
    }
}

impl Kv for LateKv {
    fn range(&self, range: Range) -> BoxFuture<'_, Result<Ranged, KvError>> {
        self.inner.range(range)
    }

    fn txn(&self, txn: Txn) -> BoxFuture<'_, Result<TxnOutcome, KvError>> {
        let faulty = self.faulty.load(Ordering::Relaxed);
        let drawn = if faulty { lock(&self.random).random_range(0..self.odds) } else { u32::MAX };
        let unknown = || {
            self.unknown.fetch_add(1, Ordering::Relaxed);
            Err(KvError::Unknown("no answer".to_owned()))
        };
        Box::pin(async move {
            match drawn {
                0..10 => unknown(),
                10..20 => {
                    self.inner.txn(txn).await?;
                    unknown()
                }
                20..30 => {
                    lock(&self.late).push(txn);
                    unknown()
                }
                30..35 => Err(KvError::Unavailable("no connection".to_owned())),
                _ => self.inner.txn(txn).await,
            }
        })
    }

    fn position(&self) -> BoxFuture<'_, Result<Position, KvError>> {
        self.inner.position()
    }

    fn grant(&self, ttl: Duration) -> BoxFuture<'_, Result<Lease, KvError>> {
        self.inner.grant(ttl)
    }

    fn keep_alive(&self, lease: LeaseId) -> BoxFuture<'_, Result<Option<Renewal>, KvError>> {
        self.inner.keep_alive(lease)
    }

    fn revoke(&self, lease: LeaseId) -> BoxFuture<'_, Result<(), KvError>> {
        self.inner.revoke(lease)
    }

    fn watch(&self, keys: Interval, from: Revision) -> BoxFuture<'_, Result<Box<dyn Watch>, KvError>> {
        self.inner.watch(keys, from)
    }

    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<(), KvError>> {
        self.inner.compact(revision)
    }
}
