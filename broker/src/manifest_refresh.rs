//! Newer manifests for readers: a follower, and a leader that was just elected, hear where the tiered part ends before they have its
//! manifest (rule F4: an older one may only answer less).

use crate::api::ApiError;
use crate::broker::{Broker, stopping};
use crate::manifests::decode_root;
use crate::partitions::messages::ShardMsg;
use crate::refusals::storage_error;
use millpond_log::PartitionId;
use std::sync::Arc;

impl Broker {
    /// Reads the manifest of a replica held here anew, unless a newer one than `known` is there already. Readers see it when this
    /// returns. Many who miss the same read once.
    pub(crate) async fn refresh_manifest(&self, partition: PartitionId, known: u64) -> Result<(), ApiError> {
        let inner = self.inner();
        let topic = inner.catalog.by_id(partition.topic);
        let handle = topic.as_ref().and_then(|topic| topic.partitions.get(partition.index as usize));
        let Some(local) = handle.and_then(|handle| handle.local.clone()) else { return Ok(()) };
        let _one = inner.manifest_reads.lock().await;
        if local.view.borrow().manifest.seq > known {
            return Ok(());
        }
        // In a code that readers know: Java's takes one of metadata for a fault of its own.
        let stored = inner.store.tier_root(partition).await.map_err(|error| storage_error(&error))?;
        let root = decode_root(partition, stored.as_ref()).map_err(|error| storage_error(&error))?.value;
        let seq = root.seq;
        local.shard.send(ShardMsg::Manifest { partition, root: Arc::new(root) }).map_err(|_| stopping())?;
        // A view ends with its replica, which the next look reports.
        let _ = local.view.clone().wait_for(|view| view.manifest.seq >= seq).await;
        Ok(())
    }
}
