//! Every transition of the cluster's state as one named transaction, guarded by what it was decided on (rules K3, K4).
//!
//! It runs what others decided; it never decides. A read is linearizable (rule Z1), and no write is unconditional.

mod brokers;
mod burial;
mod cluster;
mod codec;
mod collection;
mod controller;
mod deletion;
mod drain;
mod election;
mod follow;
mod group_records;
mod group_settings;
mod image;
mod loss;
mod producer_ids;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod properties;
mod replicas;
mod shards;
mod tier;
mod topics;
mod transaction_records;
mod transition;

use crate::keys::{Key, Keys, Space};
use crate::kv::{Kv, KvError, LeaseId, Range, Revision};
use bytes::Bytes;
use millpond_log::{Incarnation, Rid};
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::Duration;

pub use brokers::{Hosts, Registered, Registration};
pub use burial::{Burial, Missing};
pub use cluster::{FEATURE_LEVEL, KEY_SPACE_FORMAT};
pub use collection::{Bumped, Dropped, GcEpoch};
pub use drain::{Forgotten, Held};
pub use election::Election;
pub use follow::Follow;
pub use group_records::GroupRecords;
pub use image::Image;
pub use loss::UncleanElection;
pub use producer_ids::ProducerIdBlock;
pub use replicas::RecordChange;
pub use shards::{HeldShard, ShardBatch, ShardWrite, Takeover};
pub use tier::{TIER_DROPPED_MAX, TIER_ROOT_BYTES_MAX, TierCommit, TierOutcome, TierRoot};
pub use topics::{CreateOutcome, NewTopic, Placement};
pub use transaction_records::TransactionRecords;

/// Keys read at once when a part of the key space is listed.
const PAGE_KEYS: usize = 500;

/// Times a transition that was decided here is decided anew when another writer was faster.
/// Each failure means that somebody else succeeded, so reaching it takes a stampede.
const ATTEMPTS_MAX: usize = 32;

/// The cluster's state in a metadata store. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    kv: Arc<dyn Kv>,
    keys: Keys,
}

/// A value with the revision that wrote it: what a transition compares (rule K3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned<T> {
    /// The value.
    pub value: T,
    /// Mod revision of its key.
    pub revision: Revision,
}

/// A broker's registration: who acts. Every transaction compares it (rule K4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// The replica identity of the broker.
    pub rid: Rid,
    /// Mod revision of its session key.
    pub inc: Incarnation,
    /// Its lease. Whoever holds the session keeps it alive (rules B3, Z4).
    pub lease: LeaseId,
    /// How long the lease lives after a keep-alive.
    pub ttl: Duration,
}

/// How a transition ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It holds, durably. Also when an earlier call wrote it, and this one found it in place.
    Committed {
        /// The revision that wrote it.
        revision: Revision,
    },
    /// This call wrote nothing: a compared key has moved. Read again; that also settles an earlier `Unknown` (rule K5).
    Conflict,
    /// This call wrote nothing, and never will: the actor's session or office is gone (rules B3, K4). Stop acting.
    Fenced,
    /// It may have been written, now or later (rule K5). Call again with the same arguments until it says otherwise.
    Unknown,
}

/// Why a transition could not be tried, or a record not be read. Nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The store is out of reach; try again.
    #[error("metadata store is unavailable: {0}")]
    Unavailable(String),
    /// The request breaks a limit or a rule; the same request will never be accepted.
    #[error("{0}")]
    Refused(String),
    /// The store was restored from a backup, or is another one. Stop (rule K7).
    #[error("the metadata store was restored from a backup, or is another one: {0}")]
    Restored(String),
    /// A record was written by a newer version.
    #[error("`{key}` has format {found}, this version reads up to {known}: upgrade this broker")]
    NewerFormat {
        /// Its key.
        key: String,
        /// Its format.
        found: u32,
        /// The newest format known here.
        known: u32,
    },
    /// A record cannot be read. Never treated as absent (rule K6).
    #[error("`{key}` cannot be read: {reason}")]
    Damaged {
        /// Its key.
        key: String,
        /// What is wrong.
        reason: String,
    },
}

impl From<KvError> for StoreError {
    fn from(error: KvError) -> StoreError {
        match error {
            KvError::Refused(reason) => StoreError::Refused(reason),
            KvError::LeaseNotFound | KvError::Compacted(_) => StoreError::Refused(error.to_string()),
            KvError::Restored(reason) => StoreError::Restored(reason),
            KvError::Unavailable(reason) | KvError::Unknown(reason) => StoreError::Unavailable(reason),
        }
    }
}

impl Store {
    /// A store over `kv`, whose keys are spelled by `keys`.
    #[must_use]
    pub fn new(kv: Arc<dyn Kv>, keys: Keys) -> Store {
        Store { kv, keys }
    }

    /// The waist below, for leases and watches.
    #[must_use]
    pub fn kv(&self) -> &Arc<dyn Kv> {
        &self.kv
    }

    /// The key space.
    #[must_use]
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Whether the actor's session still stands: its key at its incarnation (rule K4).
    ///
    /// # Errors
    /// As all reads.
    pub async fn holds(&self, actor: &Session) -> Result<bool, StoreError> {
        let found = self.read_bytes(&Key::BrokerSession(actor.rid.broker)).await?;
        Ok(found.is_some_and(|found| found.revision.0 == actor.inc.0))
    }

    /// One record, if it is there.
    async fn read<T: DeserializeOwned>(&self, key: &Key) -> Result<Option<Versioned<T>>, StoreError> {
        let found = self.read_bytes(key).await?;
        found.map(|found| codec::record(&self.keys.encode(key), &found.value, found.revision)).transpose()
    }

    async fn read_bytes(&self, key: &Key) -> Result<Option<Versioned<Bytes>>, StoreError> {
        let ranged = self.kv.range(Range::key(&self.keys.encode(key))).await?;
        let found = ranged.found.into_iter().next();
        Ok(found.map(|kv| Versioned { value: kv.value, revision: kv.mod_revision }))
    }

    /// Every key of a space in order, with the revision of the first page: a watch from the one after it misses nothing.
    async fn list(&self, space: &Space) -> Result<(Revision, Vec<(Key, Versioned<Bytes>)>), StoreError> {
        let mut keys = self.keys.space(space);
        let mut revision = None;
        let mut listed = Vec::new();
        loop {
            let page = self.kv.range(Range { keys: keys.clone(), limit: PAGE_KEYS }).await?;
            let first = *revision.get_or_insert(page.revision);
            let last = page.found.last().map(|kv| kv.key.clone());
            for kv in page.found {
                let key = self.keys.parse(&kv.key).map_err(|foreign| StoreError::Damaged {
                    key: String::from_utf8_lossy(&foreign.0).into_owned(),
                    reason: "no key of this version".to_owned(),
                })?;
                listed.push((key, Versioned { value: kv.value, revision: kv.mod_revision }));
            }
            match last {
                Some(last) if page.more => keys.start = crate::kv::Interval::key(&last).end.unwrap_or(last),
                _ => return Ok((first, listed)),
            }
        }
    }

    async fn list_records<T: DeserializeOwned>(
        &self,
        space: &Space,
    ) -> Result<(Revision, Vec<(Key, Versioned<T>)>), StoreError> {
        let (revision, listed) = self.list(space).await?;
        let read = |(key, found): (Key, Versioned<Bytes>)| {
            let record = codec::record(&self.keys.encode(&key), &found.value, found.revision)?;
            Ok((key, record))
        };
        Ok((revision, listed.into_iter().map(read).collect::<Result<_, StoreError>>()?))
    }
}
