//! Opens replicas on this broker: from what WAL and manifest hold, to a shard that owns it and a tierer that knows it.

use crate::broker::Broker;
use crate::catalog::Local;
use crate::partitions::recovery::{self, RecoveryError};
use crate::partitions::shard::{Open, ShardMsg, ShardSender};
use crate::partitions::view::PartitionView;
use crate::start_error::StartError;
use crate::tier::{Held, TierRequest};
use crate::wal::RecoveredPartition;
use bytes::Bytes;
use millpond_core::replica::Input;
use millpond_core::topic_config::TopicConfig;
use millpond_log::manifest::ManifestRoot;
use millpond_log::{LeaderEpoch, Offset, PartitionId};
use millpond_metadata::kv::Revision;
use millpond_metadata::store::Versioned;
use std::sync::Arc;
use tokio::sync::watch;

/// What a replica is opened from.
pub(crate) struct Opening {
    pub(crate) topic_name: String,
    pub(crate) config: TopicConfig,
    pub(crate) root: Versioned<ManifestRoot>,
    /// What recovery found of it in the WAL, if anything.
    pub(crate) in_wal: Option<RecoveredPartition>,
    /// The epoch of a partition that nobody may lead any more (rule B4).
    pub(crate) lost: Option<LeaderEpoch>,
    /// This replica may lead: it holds all that was committed.
    pub(crate) complete: bool,
    /// `min.insync.replicas` as the topic wants it: its record may say otherwise, if a change came while this replica was not open
    /// (rule I7).
    pub(crate) min_isr: u32,
}

/// A replica that is open.
pub(crate) struct Opened {
    pub(crate) local: Local,
    /// How far its log is known to have reached.
    pub(crate) known_end: Offset,
}

impl Broker {
    /// Opens a replica. Waits while the object store is away; a broker that waits is not ready, and not dead (case S1).
    pub(crate) async fn open_replica(&self, opening: Opening) -> Result<Opened, StartError> {
        let Opening { topic_name, config, root, in_wal, lost, complete, min_isr } = opening;
        let inner = self.inner();
        let partition = root.value.partition;
        let found = loop {
            let (wal, tiered) = (&inner.wal, &inner.tiered);
            let sources = recovery::Sources { root: &root.value, in_wal: in_wal.as_ref(), lost, complete, wal, tiered };
            match recovery::assemble(inner.rid, sources, config.timestamp_type).await {
                Ok(found) => break found,
                Err(error @ RecoveryError::Tiered { .. }) => {
                    tracing::warn!(error = %crate::refusals::storage_error(&error).message, "trying again");
                    tokio::time::sleep(inner.config.tier_interval).await;
                }
                Err(error) => return Err(StartError::Recovery(error.to_string())),
            }
        };
        let manifest = Arc::new(root.value);
        let epochs = Arc::new(found.replica.epochs().clone());
        let view = PartitionView { visible: found.replica.visible(), manifest: Arc::clone(&manifest), epochs };
        let (view_sender, view) = watch::channel(view);
        let shard = shard_of(partition, &inner.shards).clone();
        let open = Open {
            partition,
            replica: found.replica,
            manifest: Arc::clone(&manifest),
            view: view_sender,
            reset_at: found.reset_at,
        };
        // A shard that is gone ends the broker.
        let _ = shard.send(ShardMsg::Open(Box::new(open)));
        let _ = shard.send(ShardMsg::Step { partition, input: Input::MinIsr(min_isr) });
        inner.tier.send(TierRequest::Hold(Box::new(Held {
            topic_name,
            config,
            shard: shard.clone(),
            view: view.clone(),
            root: manifest,
            revision: root.revision,
            producers: found.producers_tiered,
        })));
        Ok(Opened { local: Local { shard, view }, known_end: found.known_end })
    }

    /// Stops a replica and forgets its frames, because a tombstone or the partition's record says so (rule K6).
    pub(crate) fn drop_replica(&self, partition: PartitionId) {
        self.inner().tier.send(TierRequest::Leave { partition });
        let _ = shard_of(partition, &self.inner().shards).send(ShardMsg::Drop { partition });
    }
}

/// Spreads partitions over shards: those of one topic go round, wherever the topic begins.
pub(crate) fn shard_of(partition: PartitionId, shards: &[ShardSender]) -> &ShardSender {
    &shards[(partition.topic.0 as usize).wrapping_add(partition.index as usize) % shards.len()]
}

/// Reads the manifest's root as the metadata store has it.
pub(crate) fn decode_root(
    partition: PartitionId,
    stored: Option<&Versioned<Bytes>>,
) -> Result<Versioned<ManifestRoot>, StartError> {
    match stored {
        None => Ok(Versioned { value: ManifestRoot::new(partition), revision: Revision::ABSENT }),
        Some(stored) => {
            let value =
                ManifestRoot::decode(&stored.value).map_err(|source| StartError::Manifest { partition, source })?;
            Ok(Versioned { value, revision: stored.revision })
        }
    }
}
