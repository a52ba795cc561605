//! Newer manifests for readers: a follower, and a leader that was just elected, hear where the tiered part ends before they have its
//! manifest (rule F4: an older one may only answer less).

use crate::api::ApiError;
use crate::broker::{Broker, stopping};
use crate::manifests::decode_root;
use crate::partitions::messages::ShardMsg;
use crate::refusals::storage_error;
use millpond_log::{ErrorCode, PartitionId};
use std::sync::Arc;
use std::time::Duration;

/// How long a shard may take to show its readers a manifest, before they ask again.
const SHOWN_WITHIN: Duration = Duration::from_secs(2);

impl Broker {
    /// Reads the manifest of a replica held here anew, unless a newer one than `known` is there already. Readers see it when this
    /// returns. Many who miss the same read once.
    pub(crate) async fn refresh_manifest(&self, partition: PartitionId, known: u64) -> Result<(), ApiError> {
        self.newer_manifest(partition, known).await.map(drop)
    }

    /// Rule G4: what a view's manifest names is gone. The manifest as it stands tells whether the log begins later by now: a follower
    /// that is cut off from its leader is not told. Readers see it when this returns.
    ///
    /// # Errors
    /// `KAFKA_STORAGE_ERROR`: there is no newer one, so the object should be there (S10).
    pub(crate) async fn look_past_gone(&self, partition: PartitionId, known: u64) -> Result<(), ApiError> {
        if self.newer_manifest(partition, known).await? { Ok(()) } else { Err(object_missing()) }
    }

    /// As `refresh_manifest`; whether there is a newer one.
    async fn newer_manifest(&self, partition: PartitionId, known: u64) -> Result<bool, ApiError> {
        let inner = self.inner();
        let topic = inner.catalog.by_id(partition.topic);
        let handle = topic.as_ref().and_then(|topic| topic.partitions.get(partition.index as usize));
        // The next look says that it is not here.
        let Some(local) = handle.and_then(|handle| handle.local.clone()) else { return Ok(true) };
        let seq = {
            let _one = inner.manifest_reads.lock().await;
            if local.view.borrow().manifest.seq > known {
                return Ok(true);
            }
            // In a code that readers know: Java's takes one of metadata for a fault of its own.
            let stored = inner.store.tier_root(partition).await.map_err(|error| storage_error(&error))?;
            let root = decode_root(partition, stored.as_ref()).map_err(|error| storage_error(&error))?.value;
            let seq = root.seq;
            if seq <= known {
                return Ok(false);
            }
            local.shard.send(ShardMsg::Manifest { partition, root: Arc::new(root) }).map_err(|_| stopping())?;
            seq
        };
        // A view ends with its replica, and stands still while its replica is opened anew: the next look reports it.
        let _ = tokio::time::timeout(SHOWN_WITHIN, local.view.clone().wait_for(|view| view.manifest.seq >= seq)).await;
        Ok(true)
    }
}

/// It has been said in the log which one.
pub(crate) fn object_missing() -> ApiError {
    ApiError::new(ErrorCode::KafkaStorageError, "an object of the log is not in the object store")
}
