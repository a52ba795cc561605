//! The metadata store in memory, with faults at the places that a test names. Everything else is the store as it is.

use millpond_metadata::clock::ManualClock;
use millpond_metadata::embedded::Embedded;
use millpond_metadata::kv::{
    BoxFuture, Interval, Kv, KvError, Lease, LeaseId, Position, Range, Ranged, Renewal, Revision, Txn, TxnOutcome,
    Watch,
};
use std::sync::Arc;
use std::time::Duration;

/// What goes wrong.
pub(crate) trait Fault: Send + Sync {
    /// How a read goes.
    fn range<'a>(&'a self, inner: &'a Embedded, range: Range) -> BoxFuture<'a, Result<Ranged, KvError>> {
        inner.range(range)
    }

    /// How a transaction goes.
    fn txn<'a>(&'a self, inner: &'a Embedded, txn: Txn) -> BoxFuture<'a, Result<TxnOutcome, KvError>> {
        inner.txn(txn)
    }
}

/// A store that has faults.
pub(crate) struct Faulted<F> {
    pub(crate) inner: Embedded,
    pub(crate) fault: F,
}

impl<F: Fault> Faulted<F> {
    pub(crate) fn new(fault: F) -> Arc<Faulted<F>> {
        Arc::new(Faulted { inner: Embedded::in_memory(Arc::new(ManualClock::default())), fault })
    }
}

impl<F: Fault> Kv for Faulted<F> {
    fn range(&self, range: Range) -> BoxFuture<'_, Result<Ranged, KvError>> {
        self.fault.range(&self.inner, range)
    }
    fn position(&self) -> BoxFuture<'_, Result<Position, KvError>> {
        self.inner.position()
    }
    fn txn(&self, txn: Txn) -> BoxFuture<'_, Result<TxnOutcome, KvError>> {
        self.fault.txn(&self.inner, txn)
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
