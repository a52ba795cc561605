//! Opens replicas on this broker: from what WAL and manifest hold, to a shard that owns it and a tierer that knows it.

use crate::broker::Broker;
use crate::catalog::Local;
use crate::loss::Lost;
use crate::manifests::decode_root;
use crate::partitions::messages::{Closed, Open, ShardMsg, ShardSender};
use crate::partitions::recovery::{self, RecoveryError};
use crate::partitions::view::{PartitionView, ViewSender};
use crate::start_error::StartError;
use crate::tier::{Held, TierRequest};
use crate::wal::RecoveredPartition;
use millpond_core::loss::Standing;
use millpond_core::topic_config::TopicConfig;
use millpond_log::manifest::ManifestRoot;
use millpond_log::{LeaderEpoch, Offset, PartitionId};
use millpond_metadata::store::Versioned;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot, watch};

/// Pause between tries while the metadata store cannot be used.
const RETRY: Duration = Duration::from_millis(200);

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
    /// Where its readers look already, if it was open before.
    pub(crate) view: Option<ViewSender>,
    /// How far the log was known to be committed, if it was.
    pub(crate) known_end: Offset,
}

/// A replica that is open.
pub(crate) struct Opened {
    pub(crate) local: Local,
    /// Of a partition that nobody may lead any more: what is lost.
    pub(crate) lost: Option<Lost>,
}

/// What became of a try to open a replica.
pub(crate) enum Tried {
    /// It is open.
    Open(Opened),
    /// Object storage did not give what it takes: try again later, with the manifest as it is then.
    Unread {
        opening: Box<Opening>,
        /// Something is missing or damaged there, rather than out of reach.
        lasting: bool,
    },
    /// It was placed on another broker meanwhile: it is not to be opened here.
    Elsewhere,
}

impl Broker {
    /// Opens a replica, if what it takes can be read.
    pub(crate) async fn try_open(&self, opening: Opening) -> Result<Tried, StartError> {
        let inner = self.inner();
        let partition = opening.root.value.partition;
        let sources = recovery::Sources {
            root: &opening.root.value,
            in_wal: opening.in_wal.as_ref(),
            lost: opening.lost,
            complete: opening.complete,
            wal: &inner.wal,
            tiered: &inner.tiered,
        };
        let found = match recovery::assemble(inner.rid, sources, opening.config.timestamp_type).await {
            Ok(found) => found,
            Err(error @ RecoveryError::Tiered { .. }) => {
                tracing::warn!(error = %crate::refusals::storage_error(&error).message, "trying again");
                let RecoveryError::Tiered { source, .. } = error else { unreachable!("it has just been one") };
                let lasting = !source.is_retriable();
                return Ok(Tried::Unread { opening: Box::new(opening), lasting });
            }
            Err(error) => return Err(StartError::Recovery(error.to_string())),
        };
        let Opening { topic_name, config, root, in_wal, lost, view, known_end, .. } = opening;
        let (visible, in_wal) = (found.replica.visible(), in_wal.is_some());
        // What was deleted is not missed (rule C1).
        let end = visible.end.max(visible.log_start);
        let lost = lost.map(|_| Lost { offsets: end..found.known_end.max(known_end).max(end), in_wal });
        let manifest = Arc::new(root.value);
        let epochs = Arc::new(found.replica.epochs().clone());
        let (visible, aborted) = (found.replica.visible(), found.replica.aborted());
        let look = PartitionView { visible, manifest: Arc::clone(&manifest), epochs, aborted };
        let view_sender = match view {
            None => watch::Sender::new(look),
            Some(open) => {
                open.send_replace(look);
                open
            }
        };
        let view = view_sender.subscribe();
        let shard = shard_of(partition, &inner.shards).clone();
        let open = Open {
            partition,
            replica: found.replica,
            manifest: Arc::clone(&manifest),
            view: view_sender,
            reset_at: found.reset_at,
            known_end: found.known_end,
        };
        // A shard that is gone ends the broker.
        let _ = shard.send(ShardMsg::Open(Box::new(open)));
        inner.tier.send(TierRequest::Hold(Box::new(Held {
            topic_name,
            config,
            shard: shard.clone(),
            view: view.clone(),
            root: manifest,
            revision: root.revision,
            producers: found.producers_tiered,
        })));
        Ok(Tried::Open(Opened { local: Local { shard, view }, lost }))
    }

    /// Lets some time pass before what could not be read is tried again.
    pub(crate) async fn pause(&self) {
        tokio::time::sleep(self.inner().config.tier_interval).await;
    }

    /// Tries again, by the manifest as it is now: what the one before named may be gone (rule G4).
    pub(crate) async fn open_again(&self, mut opening: Box<Opening>) -> Result<Tried, StartError> {
        let partition = opening.root.value.partition;
        // A store that does not answer now may the next time.
        if let Ok(stored) = self.inner().store.tier_root(partition).await {
            opening.root = decode_root(partition, stored.as_ref())?;
        }
        self.try_open(*opening).await
    }

    /// Closes a replica that is open here, and keeps its frames. `None` if it is gone already.
    pub(crate) async fn close_replica(&self, partition: PartitionId, local: &Local) -> Option<Closed> {
        let (done, closed) = oneshot::channel();
        // A shard that is gone ends the broker.
        let _ = local.shard.send(ShardMsg::Close { partition, done });
        closed.await.ok()
    }

    /// Stops a replica and forgets its frames, because a tombstone or the partition's record says so (rule K6).
    pub(crate) fn drop_replica(&self, partition: PartitionId) {
        self.inner().tier.send(TierRequest::Leave { partition });
        let _ = shard_of(partition, &self.inner().shards).send(ShardMsg::Drop { partition });
    }
}

/// How a replica was found to stand in its partition, and in which epoch.
pub(crate) struct Found {
    pub(crate) stands: Standing,
    pub(crate) epoch: LeaderEpoch,
}

/// Opens a replica while the broker runs: one that was placed here, of which nothing is in the WAL, or one that is open and is to be read
/// again.
pub(crate) async fn open_later(
    broker: Broker,
    id: PartitionId,
    topic_name: String,
    config: TopicConfig,
    open: Option<(Local, Found)>,
    turns: Arc<Semaphore>,
) -> (PartitionId, Result<Tried, StartError>) {
    let _turn = turns.acquire_owned().await.expect("it is never closed");
    let (mut in_wal, mut view, mut lost, mut complete, mut known_end) = (None, None, None, false, Offset(0));
    if let Some((local, found)) = open
        && let Some(closed) = broker.close_replica(id, &local).await
    {
        in_wal = broker.wal().held(id);
        if let Some(held) = &mut in_wal {
            held.hw = closed.hw.min(held.end);
        }
        (view, known_end) = (Some(closed.view), closed.known_committed);
        lost = (found.stands == Standing::Lost).then_some(found.epoch);
        complete = found.stands == Standing::Electable;
    }
    // Read once nothing here goes on: what is opened fits it.
    let stored = loop {
        match broker.inner().store.tier_root(id).await {
            Ok(stored) => break stored,
            Err(error) => {
                tracing::warn!(partition = %id, %error, "a manifest cannot be read yet");
                tokio::time::sleep(RETRY).await;
            }
        }
    };
    let tried = match decode_root(id, stored.as_ref()) {
        Ok(root) => {
            broker.try_open(Opening { topic_name, config, root, in_wal, lost, complete, view, known_end }).await
        }
        Err(error) => Err(error),
    };
    (id, tried)
}

/// Spreads partitions over shards: those of one topic go round, wherever the topic begins.
pub(crate) fn shard_of(partition: PartitionId, shards: &[ShardSender]) -> &ShardSender {
    &shards[(partition.topic.0 as usize).wrapping_add(partition.index as usize) % shards.len()]
}
