//! Reads a partition's log again for a replica whose log was taken apart (rules R7, R12), as a start does. It decides nothing but
//! whether the manifest has passed what was asked for.

use crate::manifests::decode_root;
use crate::partitions::messages::{Rebuild, Rebuilt, ShardMsg, Wanted};
use crate::partitions::recovery::{self, Sources};
use crate::refusals::storage_error;
use crate::tiered::Tiered;
use crate::wal::Wal;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use millpond_core::replica::Input;
use millpond_log::PartitionId;
use millpond_metadata::store::Store;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_util::sync::CancellationToken;

/// Pause between tries while the metadata store or the object store cannot be used.
const RETRY: Duration = Duration::from_millis(200);

/// Logs read at once: each costs a read of the metadata store and at most a few of the object store.
const AT_ONCE: usize = 32;

/// What logs are read from.
#[derive(Clone)]
pub(crate) struct Rebuilder {
    pub(crate) store: Store,
    pub(crate) wal: Wal,
    pub(crate) tiered: Arc<Tiered>,
}

impl Rebuilder {
    /// Serves shards until `shutdown`.
    pub(crate) async fn run(self, mut inbox: UnboundedReceiver<Rebuild>, shutdown: CancellationToken) {
        let mut open = FuturesUnordered::new();
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                Some(()) = open.next() => {}
                asked = inbox.recv(), if open.len() < AT_ONCE => match asked {
                    Some(rebuild) => open.push(self.serve(rebuild)),
                    None => return,
                },
            }
        }
    }

    async fn serve(&self, rebuild: Rebuild) {
        let Rebuild { partition, wanted, ticket, .. } = rebuild;
        let found = loop {
            match self.read(partition, wanted, ticket).await {
                Ok(found) => break found,
                Err(reason) => {
                    tracing::warn!(%partition, ?wanted, reason, "a log cannot be read again yet; trying until it can");
                    tokio::time::sleep(RETRY).await;
                }
            }
        };
        // A shard that is gone ends the broker.
        let _ = rebuild.shard.send(found);
    }

    async fn read(&self, partition: PartitionId, wanted: Wanted, ticket: u64) -> Result<ShardMsg, String> {
        let root = self.store.tier_root(partition).await.map_err(|error| error.to_string())?;
        let root = decode_root(partition, root.as_ref()).map_err(|error| error.to_string())?.value;
        if wanted == Wanted::Newest {
            return Ok(ShardMsg::Manifest { partition, root: Arc::new(root) });
        }
        let (wal, tiered) = (&self.wal, &*self.tiered);
        let sources = Sources { root: &root, in_wal: None, lost: None, complete: false, wal, tiered };
        let failed = |error: &recovery::RecoveryError| storage_error(error).message;
        let input = match wanted {
            Wanted::StateAt(end) if root.tiered_end <= end => {
                Input::Rebuilt(recovery::state_at(sources, end).await.map_err(|error| failed(&error))?)
            }
            _ => Input::Installed(recovery::installed(sources).await.map_err(|error| failed(&error))?),
        };
        Ok(ShardMsg::Rebuilt(Box::new(Rebuilt { partition, ticket, input, root: Arc::new(root) })))
    }
}
