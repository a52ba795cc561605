//! The metadata store, with every request to it counted and timed, whoever makes it. It changes nothing about any of them.

use crate::clock;
use crate::metrics::MetadataMeters;
use millpond_metadata::kv::{
    BoxFuture, Interval, Kv, KvError, Lease, LeaseId, Position, Range, Ranged, Renewal, Revision, Txn, TxnOutcome,
    Watch,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A metadata store that counts.
pub(crate) struct Metered {
    inner: Arc<dyn Kv>,
    meters: MetadataMeters,
}

impl Metered {
    pub(crate) fn new(inner: Arc<dyn Kv>, meters: MetadataMeters) -> Metered {
        Metered { inner, meters }
    }

    /// Counts and times one request.
    fn counted<'a, T: Send + 'a>(
        &'a self,
        operation: &'static str,
        request: BoxFuture<'a, Result<T, KvError>>,
    ) -> BoxFuture<'a, Result<T, KvError>> {
        Box::pin(async move {
            let mut sent = Sent { meters: &self.meters, operation, begun: clock::monotonic(), outcome: "given_up" };
            let answer = request.await;
            sent.outcome = outcome(&answer);
            answer
        })
    }
}

/// The word for how a request ended.
fn outcome<T>(answer: &Result<T, KvError>) -> &'static str {
    match answer {
        Ok(_) => "ok",
        Err(KvError::Refused(_) | KvError::LeaseNotFound | KvError::Compacted(_) | KvError::Restored(_)) => "refused",
        Err(KvError::Unavailable(_)) => "unavailable",
        Err(KvError::Unknown(_)) => "unknown",
    }
}

/// A request that was sent, counted when it is over: also when whoever made it gave it up, since the store may have it all the same.
struct Sent<'a> {
    meters: &'a MetadataMeters,
    operation: &'static str,
    begun: Instant,
    outcome: &'static str,
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        self.meters.answered(self.operation, self.outcome, clock::monotonic() - self.begun);
    }
}

impl Kv for Metered {
    fn range(&self, range: Range) -> BoxFuture<'_, Result<Ranged, KvError>> {
        self.counted("range", self.inner.range(range))
    }

    fn position(&self) -> BoxFuture<'_, Result<Position, KvError>> {
        self.counted("position", self.inner.position())
    }

    fn txn(&self, txn: Txn) -> BoxFuture<'_, Result<TxnOutcome, KvError>> {
        self.counted("txn", self.inner.txn(txn))
    }

    fn grant(&self, ttl: Duration) -> BoxFuture<'_, Result<Lease, KvError>> {
        self.counted("grant", self.inner.grant(ttl))
    }

    fn keep_alive(&self, lease: LeaseId) -> BoxFuture<'_, Result<Option<Renewal>, KvError>> {
        self.counted("keep_alive", self.inner.keep_alive(lease))
    }

    fn revoke(&self, lease: LeaseId) -> BoxFuture<'_, Result<(), KvError>> {
        self.counted("revoke", self.inner.revoke(lease))
    }

    fn watch(&self, keys: Interval, from: Revision) -> BoxFuture<'_, Result<Box<dyn Watch>, KvError>> {
        self.counted("watch", self.inner.watch(keys, from))
    }

    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<(), KvError>> {
        self.counted("compact", self.inner.compact(revision))
    }
}
