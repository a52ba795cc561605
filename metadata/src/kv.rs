//! The waist: what the cluster asks of its metadata store, in etcd's terms. Every implementation passes one suite.
//!
//! It knows keys and bytes; what they mean is decided above. A limit of etcd holds for every implementation.

use bytes::Bytes;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

/// Most comparisons, and most operations of either branch, in one transaction. etcd's `--max-txn-ops` default.
pub const TXN_OPS_MAX: usize = 128;

/// Most bytes of keys and values in one transaction. etcd's `--max-request-bytes` default, 1.5 MiB.
pub const TXN_BYTES_MAX: usize = 3 << 19;

/// Bytes counted for each comparison and operation besides its keys and values: above what etcd's encoding adds, so
/// that a transaction accepted here is accepted there.
const OP_OVERHEAD_BYTES: usize = 48;

/// A future that can be kept behind `dyn`.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Counts the transactions that changed something. An empty store stands at 1, as etcd does.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Revision(pub u64);

impl Revision {
    /// What a comparison sees of a key that is not there.
    pub const ABSENT: Revision = Revision(0);

    /// The revision after this one: where a watch goes on after a read.
    #[must_use]
    pub fn next(self) -> Revision {
        Revision(self.0 + 1)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Identity of a lease. Never used twice by one store, not even after a restart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LeaseId(pub u64);

/// A lease, as granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease {
    /// Its identity.
    pub id: LeaseId,
    /// How long it lives after its last keep-alive; the store may grant more than was asked.
    pub ttl: Duration,
}

/// A lease whose time began anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Renewal {
    /// What remains of it, by the store.
    pub left: Duration,
    /// How long after the call began the request was sent that renewed it; never more than that. Who counts the lease's time from there
    /// does not believe in it for longer than the store, which counts from when the request came (rule B5).
    pub sent_after: Duration,
}

/// A key with its value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyValue {
    /// The key.
    pub key: Bytes,
    /// The value.
    pub value: Bytes,
    /// Revision that created the key; a deleted and re-created key has a new one.
    pub create_revision: Revision,
    /// Revision that last wrote the key.
    pub mod_revision: Revision,
    /// The lease whose end deletes the key.
    pub lease: Option<LeaseId>,
}

/// Keys from `start` to before `end`, in byte order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interval {
    /// First key.
    pub start: Bytes,
    /// Key after the last; `None` is the end of all keys.
    pub end: Option<Bytes>,
}

impl Interval {
    /// This key alone.
    #[must_use]
    pub fn key(key: &Bytes) -> Interval {
        let end = [key.as_ref(), &[0]].concat();
        Interval { start: key.clone(), end: Some(end.into()) }
    }

    /// Every key that starts with `prefix`.
    #[must_use]
    pub fn prefix(prefix: impl Into<Bytes>) -> Interval {
        let start = prefix.into();
        let mut end = start.to_vec();
        while end.last() == Some(&u8::MAX) {
            end.pop();
        }
        let end = end.last_mut().map(|last| *last += 1).map(|()| Bytes::from(end));
        Interval { start, end }
    }

    /// Whether `key` lies in it.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        key >= self.start.as_ref() && self.end.as_ref().is_none_or(|end| key < end.as_ref())
    }

    fn size(&self) -> usize {
        self.start.len() + self.end.as_ref().map_or(0, Bytes::len)
    }
}

/// A read of keys in order, at the newest revision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Range {
    /// Which keys.
    pub keys: Interval,
    /// Most keys in the answer.
    pub limit: usize,
}

impl Range {
    /// Reads one key.
    #[must_use]
    pub fn key(key: &Bytes) -> Range {
        Range { keys: Interval::key(key), limit: 1 }
    }
}

/// What a read found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ranged {
    /// The store's revision at the read; linearizable (rule Z1).
    pub revision: Revision,
    /// What was found, in order of key.
    pub found: Vec<KeyValue>,
    /// Whether the limit cut keys off: go on after the last key found.
    pub more: bool,
}

/// One condition of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Compare {
    /// The key was last written at this revision; `Revision::ABSENT` if it is not there.
    ModRevision {
        /// The key.
        key: Bytes,
        /// The revision.
        is: Revision,
    },
    /// The key was created at this revision; `Revision::ABSENT` if it is not there.
    CreateRevision {
        /// The key.
        key: Bytes,
        /// The revision.
        is: Revision,
    },
    /// The key is there and has this value.
    Value {
        /// The key.
        key: Bytes,
        /// The value.
        is: Bytes,
    },
    /// The key is there and its value sorts before this one, byte by byte.
    ValueBelow {
        /// The key.
        key: Bytes,
        /// The bound, exclusive.
        bound: Bytes,
    },
}

impl Compare {
    /// The key is not there.
    #[must_use]
    pub fn absent(key: Bytes) -> Compare {
        Compare::ModRevision { key, is: Revision::ABSENT }
    }

    /// The key it looks at.
    #[must_use]
    pub fn key(&self) -> &Bytes {
        match self {
            Compare::ModRevision { key, .. }
            | Compare::CreateRevision { key, .. }
            | Compare::Value { key, .. }
            | Compare::ValueBelow { key, .. } => key,
        }
    }

    /// Whether it holds for what is stored under its key. A key that is not there has no value: no value compare holds.
    #[must_use]
    pub fn holds(&self, stored: Option<&KeyValue>) -> bool {
        match self {
            Compare::ModRevision { is, .. } => stored.map_or(Revision::ABSENT, |kv| kv.mod_revision) == *is,
            Compare::CreateRevision { is, .. } => stored.map_or(Revision::ABSENT, |kv| kv.create_revision) == *is,
            Compare::Value { is, .. } => stored.is_some_and(|kv| kv.value == *is),
            Compare::ValueBelow { bound, .. } => stored.is_some_and(|kv| kv.value < *bound),
        }
    }

    fn size(&self) -> usize {
        let value = match self {
            Compare::Value { is: value, .. } | Compare::ValueBelow { bound: value, .. } => value.len(),
            Compare::ModRevision { .. } | Compare::CreateRevision { .. } => 0,
        };
        OP_OVERHEAD_BYTES + self.key().len() + value
    }
}

/// One change of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Write {
    /// Stores a value, and ties the key to `lease` or to none.
    Put {
        /// The key.
        key: Bytes,
        /// The value.
        value: Bytes,
        /// The lease whose end deletes the key.
        lease: Option<LeaseId>,
    },
    /// Removes keys, if they are there.
    Delete(Interval),
}

impl Write {
    /// Stores a value under no lease.
    #[must_use]
    pub fn put(key: Bytes, value: impl Into<Bytes>) -> Write {
        Write::Put { key, value: value.into(), lease: None }
    }

    /// Removes one key.
    #[must_use]
    pub fn delete(key: &Bytes) -> Write {
        Write::Delete(Interval::key(key))
    }

    fn size(&self) -> usize {
        let content = match self {
            Write::Put { key, value, .. } => key.len() + value.len(),
            Write::Delete(keys) => keys.size(),
        };
        OP_OVERHEAD_BYTES + content
    }
}

/// If every comparison holds, makes every change, all at one revision; else reads. Atomic either way.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Txn {
    /// All of them have to hold.
    pub compares: Vec<Compare>,
    /// Changes, in order; no key is put twice, or put and deleted.
    pub then: Vec<Write>,
    /// Reads, in order, when a comparison failed; they tell which.
    pub or_else: Vec<Range>,
}

impl Txn {
    /// Bytes it counts for against `TXN_BYTES_MAX`.
    #[must_use]
    pub fn size(&self) -> usize {
        let compares: usize = self.compares.iter().map(Compare::size).sum();
        let writes: usize = self.then.iter().map(Write::size).sum();
        let reads: usize = self.or_else.iter().map(|range| OP_OVERHEAD_BYTES + range.keys.size()).sum();
        compares + writes + reads
    }

    /// Refuses what etcd refuses before it looks at any key; every implementation calls it first.
    ///
    /// # Errors
    /// `Refused`: over a limit, an empty key, or a key changed twice.
    pub fn check(&self) -> Result<(), KvError> {
        let ops = self.compares.len().max(self.then.len()).max(self.or_else.len());
        if ops > TXN_OPS_MAX {
            return Err(KvError::Refused(format!("a transaction of {ops} operations; at most {TXN_OPS_MAX}")));
        }
        let size = self.size();
        if size > TXN_BYTES_MAX {
            return Err(KvError::Refused(format!("a transaction of {size} bytes; at most {TXN_BYTES_MAX}")));
        }
        let starts = self.then.iter().map(|write| match write {
            Write::Put { key, .. } => key,
            Write::Delete(keys) => &keys.start,
        });
        let reads = self.or_else.iter().map(|range| &range.keys.start);
        if self.compares.iter().map(Compare::key).chain(starts).chain(reads).any(Bytes::is_empty) {
            return Err(KvError::Refused("an empty key".to_owned()));
        }
        self.check_changed_once()
    }

    fn check_changed_once(&self) -> Result<(), KvError> {
        let mut put = std::collections::BTreeSet::new();
        for write in &self.then {
            if let Write::Put { key, .. } = write
                && !put.insert(key)
            {
                return Err(KvError::Refused(format!("{key:?} is put twice in one transaction")));
            }
        }
        for write in &self.then {
            if let Write::Delete(keys) = write
                && let Some(key) = put.iter().find(|key| keys.contains(key))
            {
                return Err(KvError::Refused(format!("{key:?} is put and deleted in one transaction")));
            }
        }
        Ok(())
    }
}

/// How a transaction ended. Both are certain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TxnOutcome {
    /// Every comparison held; the changes are durable.
    Succeeded {
        /// The revision of all its changes; the store's current one if nothing changed.
        revision: Revision,
        /// How many keys were deleted.
        deleted: u64,
    },
    /// A comparison failed; nothing was changed.
    Failed {
        /// The store's revision at the comparison.
        revision: Revision,
        /// The answers to `or_else`, in its order.
        found: Vec<Ranged>,
    },
}

/// One change that a watch saw.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The key has this value now.
    Put(KeyValue),
    /// The key is gone: deleted, or its lease ended.
    Delete {
        /// The key.
        key: Bytes,
        /// The revision that removed it.
        mod_revision: Revision,
    },
}

impl Event {
    /// The key that changed.
    #[must_use]
    pub fn key(&self) -> &Bytes {
        match self {
            Event::Put(kv) => &kv.key,
            Event::Delete { key, .. } => key,
        }
    }

    /// The revision of the change.
    #[must_use]
    pub fn mod_revision(&self) -> Revision {
        match self {
            Event::Put(kv) => kv.mod_revision,
            Event::Delete { mod_revision, .. } => *mod_revision,
        }
    }
}

/// What happened, in order of revision and within one revision in the transaction's order. A revision is never split.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WatchBatch {
    /// Every event up to and with this revision has been handed out.
    pub revision: Revision,
    /// The events; none in a progress notice.
    pub events: Vec<Event>,
}

/// A watch on an interval of keys. Dropping it ends it.
pub trait Watch: Send {
    /// Waits for the next changes.
    ///
    /// # Errors
    /// - `Compacted`: the history asked for is gone. List, and watch from the list's revision + 1 (rule Z2).
    /// - `Unavailable`: the store is out of reach. Watch again from the last batch's revision + 1.
    ///
    /// Cancel safe: a dropped call loses no event.
    fn next(&mut self) -> BoxFuture<'_, Result<WatchBatch, KvError>>;

    /// Makes `next` return soon, with no events if there are none, at a revision no older than the store's at this call.
    ///
    /// # Errors
    /// `Unavailable`, as `next`.
    fn request_progress(&mut self) -> BoxFuture<'_, Result<(), KvError>>;
}

/// Why the store gave no answer. The variants differ in what may have happened.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KvError {
    /// The request breaks a rule of the store. It did not happen; the same request will never be accepted.
    #[error("metadata store refused the request: {0}")]
    Refused(String),
    /// The lease of the request is not there (any more). It did not happen.
    #[error("lease is not there")]
    LeaseNotFound,
    /// The store cannot be reached or cannot write. It did not happen; it may be tried again.
    #[error("metadata store is unavailable: {0}")]
    Unavailable(String),
    /// No answer. It may have happened, or may yet happen (rule K5).
    #[error("outcome of a metadata request is unknown: {0}")]
    Unknown(String),
    /// History at the revision asked for is gone.
    #[error("history up to revision {0} was compacted")]
    Compacted(Revision),
    /// The store is not the one it was, or its history went back: it was restored from a backup. What was asked counts for
    /// nothing. Stop (rule K7).
    #[error("the metadata store was restored from a backup, or is another one: {0}")]
    Restored(String),
}

/// Where a store stands: what tells a restored one from the one it was (rule K7).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position {
    /// etcd's cluster id, or what the embedded store has instead; `None` where a store has no identity besides its place.
    pub cluster: Option<u64>,
    /// The newest revision.
    pub revision: Revision,
}

/// A strictly serializable key-value store with transactions over several keys, leases and watches: etcd, or its like.
///
/// A call that is dropped before it returns has the outcome `Unknown`. Every call may also fail with `Restored`.
pub trait Kv: Send + Sync {
    /// Reads keys in order at the newest revision; sees every transaction acknowledged before the call (rule Z1).
    ///
    /// # Errors
    /// `Refused`, `Unavailable`.
    fn range(&self, range: Range) -> BoxFuture<'_, Result<Ranged, KvError>>;

    /// The store's identity and newest revision, as linearizable as a read (rule K7).
    ///
    /// # Errors
    /// `Unavailable`, `Restored`.
    fn position(&self) -> BoxFuture<'_, Result<Position, KvError>>;

    /// Runs a transaction. What is acknowledged is durable.
    ///
    /// # Errors
    /// `Refused`, `LeaseNotFound` (a put names it), `Unavailable`, `Unknown`.
    fn txn(&self, txn: Txn) -> BoxFuture<'_, Result<TxnOutcome, KvError>>;

    /// Grants a lease of `ttl`, rounded up to whole seconds and to the store's minimum.
    ///
    /// # Errors
    /// `Refused`, `Unavailable`, `Unknown` (the lease then ends by itself).
    fn grant(&self, ttl: Duration) -> BoxFuture<'_, Result<Lease, KvError>>;

    /// Starts the lease's time anew; `None` if the lease has ended (rule B3).
    ///
    /// # Errors
    /// `Unavailable`, `Unknown`.
    fn keep_alive(&self, lease: LeaseId) -> BoxFuture<'_, Result<Option<Renewal>, KvError>>;

    /// Ends the lease and deletes its keys, at one revision.
    ///
    /// # Errors
    /// `LeaseNotFound`, `Unavailable`, `Unknown`.
    fn revoke(&self, lease: LeaseId) -> BoxFuture<'_, Result<(), KvError>>;

    /// Watches `keys` for changes at or after revision `from`, which may lie ahead or in the history that is kept.
    ///
    /// # Errors
    /// `Unavailable`. A compacted `from` shows in the first `next`.
    fn watch(&self, keys: Interval, from: Revision) -> BoxFuture<'_, Result<Box<dyn Watch>, KvError>>;

    /// Forgets history before `revision`; a watch from an older one then ends with `Compacted`. Keys are not touched.
    ///
    /// # Errors
    /// `Compacted` (it was compacted to there or beyond), `Refused` (it lies ahead), `Unavailable`, `Unknown`.
    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<(), KvError>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_holds_what_starts_with_it() {
        fn check(prefix: &[u8], inside: &[&[u8]], outside: &[&[u8]]) {
            let interval = Interval::prefix(prefix.to_vec());
            for key in inside {
                assert!(interval.contains(key), "{prefix:?} {key:?}");
            }
            for key in outside {
                assert!(!interval.contains(key), "{prefix:?} {key:?}");
            }
        }
        check(b"/a/", &[b"/a/", b"/a/x", b"/a/\xff\xff"], &[b"/a", b"/a0", b"/b/", b""]);
        check(b"a\xff", &[b"a\xff", b"a\xff\xff"], &[b"a", b"b", b"a\xfe"]);
        check(b"\xff\xff", &[b"\xff\xff", b"\xff\xff\x01"], &[b"\xff", b"\xff\xfe"]);
        check(b"", &[b"a", b"\xff"], &[]);
        let one = Interval::key(&Bytes::from_static(b"k"));
        assert!(one.contains(b"k") && !one.contains(b"k\0") && !one.contains(b"j"));
    }
}
