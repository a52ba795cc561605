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
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_util::sync::CancellationToken;

/// Pause before a log that could not be read is tried again: the first, and the longest as they grow.
const RETRY: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// Logs read at once: each costs a read of the metadata store and at most a few of the object store.
const AT_ONCE: usize = 32;

/// What logs are read from.
#[derive(Clone)]
pub(crate) struct Rebuilder {
    pub(crate) store: Store,
    pub(crate) wal: Wal,
    pub(crate) tiered: Arc<Tiered>,
}

/// A log that is to be read, and the pause after that if it fails.
struct Try {
    rebuild: Rebuild,
    pause: Duration,
}

impl Try {
    async fn pause(self) -> Try {
        tokio::time::sleep(self.pause).await;
        Try { pause: (self.pause * 2).min(RETRY_MAX), ..self }
    }
}

impl Rebuilder {
    /// Serves shards until `shutdown`.
    pub(crate) async fn run(self, mut inbox: UnboundedReceiver<Rebuild>, shutdown: CancellationToken) {
        let mut due = VecDeque::new();
        let (mut open, mut paused) = (FuturesUnordered::new(), FuturesUnordered::new());
        loop {
            while open.len() < AT_ONCE
                && let Some(next) = due.pop_front()
            {
                open.push(self.serve(next));
            }
            tokio::select! {
                () = shutdown.cancelled() => return,
                // One that cannot be read keeps nobody else waiting.
                Some(failed) = open.next() => paused.extend(failed.map(Try::pause)),
                Some(again) = paused.next() => due.push_back(again),
                asked = inbox.recv() => match asked {
                    Some(rebuild) => due.push_back(Try { rebuild, pause: RETRY }),
                    None => return,
                },
            }
        }
    }

    /// Tries once; returns what is to be tried again.
    async fn serve(&self, next: Try) -> Option<Try> {
        let Rebuild { partition, wanted, ticket, ref asker, ref shard } = next.rebuild;
        if asker.strong_count() == 0 {
            return None;
        }
        match self.read(partition, wanted, ticket).await {
            Ok(found) => {
                // A shard that is gone ends the broker.
                let _ = shard.send(found);
                None
            }
            Err(reason) => {
                tracing::warn!(%partition, ?wanted, reason, "a log cannot be read again yet; trying until it can");
                Some(next)
            }
        }
    }

    async fn read(&self, partition: PartitionId, wanted: Wanted, ticket: u64) -> Result<ShardMsg, String> {
        let root = self.store.tier_root(partition).await.map_err(|error| error.to_string())?;
        let root = decode_root(partition, root.as_ref()).map_err(|error| error.to_string())?.value;
        if wanted == Wanted::Newest {
            return Ok(ShardMsg::Manifest { partition, root: Arc::new(root) });
        }
        if let Wanted::ForOffice(office) = wanted {
            return Ok(ShardMsg::OfficeManifest { partition, office, root: Arc::new(root) });
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wal::WalOptions;
    use crate::wal::disk::RealDisk;
    use millpond_cache::{Cache, CacheOptions};
    use millpond_core::replica::EndState;
    use millpond_core::tail_segment::TailSegment;
    use millpond_log::batch::{BatchBuilder, NewRecord};
    use millpond_log::codec::Codec;
    use millpond_log::manifest::{ManifestRoot, SegmentEntry};
    use millpond_log::object_key::{GcEpoch, ObjectKey, PartitionObject};
    use millpond_log::producers::ProducerTable;
    use millpond_log::segment::{BuiltObject, SegmentIdentity};
    use millpond_log::{BrokerId, LeaderEpoch, Offset, TimestampMs, TopicId, WalGen};
    use millpond_metadata::clock::SystemClock;
    use millpond_metadata::embedded::Embedded;
    use millpond_metadata::keys::{Key, Keys};
    use millpond_metadata::kv::{Txn, Write};
    use object_store::memory::InMemory;
    use std::sync::Weak;
    use tokio::sync::mpsc::unbounded_channel;

    /// Nothing that a test waits for takes so long, unless it never comes.
    const PATIENCE: Duration = Duration::from_secs(60);

    fn partition(index: u32) -> PartitionId {
        PartitionId { topic: TopicId(7), index }
    }

    /// The manifest of a log of one record, in an object that nobody has put.
    fn missing(partition: PartitionId) -> ManifestRoot {
        let (root, epoch, base) = (ManifestRoot::new(partition), LeaderEpoch(1), Offset(0));
        let mut builder = BatchBuilder::new(Codec::None);
        builder.push(NewRecord { timestamp: TimestampMs(1), key: None, value: Some(b"v"), headers: &[] });
        let mut batch = builder.build();
        batch.place(base, epoch);
        let identity = SegmentIdentity { cluster: "tests".into(), partition, topic_name: "t".into(), epoch };
        let mut segment = TailSegment::new(identity, EndState::tiered(&root, ProducerTable::default()), Offset(1));
        segment.push(&batch, TimestampMs(1), TimestampMs(1)).expect("it follows");
        let object = BuiltObject::from(segment.finish().0);
        let name = PartitionObject { partition, gc_epoch: GcEpoch(0), epoch, base, random: 1 };
        root.append(SegmentEntry::new(ObjectKey::Segment(name), object.length, object.segments[0].clone()), epoch)
    }

    async fn rebuilder(dir: &std::path::Path) -> Rebuilder {
        let store =
            Store::new(Arc::new(Embedded::in_memory(Arc::new(SystemClock::start()))), Keys::for_cluster("tests"));
        let sizes = WalOptions { dir: dir.join("wal"), bytes_max: 8 << 20, file_bytes: 1 << 20, memory_bytes: 1 << 20 };
        let opened = Wal::open(sizes, Arc::new(RealDisk), "tests", BrokerId(1), WalGen(1));
        let options = CacheOptions { memory_bytes: 1 << 20, disk: None, ..CacheOptions::default() };
        let cache = Cache::open(options, Arc::new(InMemory::new())).await.expect("sound options");
        Rebuilder { store, wal: opened.expect("it opens").0, tiered: Arc::new(Tiered::new(cache, 1 << 18)) }
    }

    fn ask(partition: PartitionId, shard: &crate::partitions::messages::ShardSender, asker: Weak<()>) -> Rebuild {
        Rebuild { partition, shard: shard.clone(), wanted: Wanted::Manifest, ticket: u64::from(partition.index), asker }
    }

    fn rebuilt(found: Option<ShardMsg>) -> PartitionId {
        match found {
            Some(ShardMsg::Rebuilt(rebuilt)) => rebuilt.partition,
            _ => panic!("nothing else is asked for"),
        }
    }

    #[tokio::test]
    async fn logs_that_cannot_be_read_keep_no_sound_one_waiting() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let rebuilder = rebuilder(dir.path()).await;
        let unread = u32::try_from(AT_ONCE).expect("few");
        for index in 0..unread {
            let key = rebuilder.store.keys().encode(&Key::TierRoot(partition(index)));
            let write = Write::put(key, missing(partition(index)).encode());
            rebuilder.store.kv().txn(Txn { then: vec![write], ..Txn::default() }).await.expect("it is up");
        }
        let ((asks, inbox), (shard, mut answers)) = (unbounded_channel(), unbounded_channel());
        let (asker, stop) = (Arc::new(()), CancellationToken::new());
        let running = tokio::spawn(rebuilder.run(inbox, stop.clone()));
        for index in 0..=unread {
            asks.send(ask(partition(index), &shard, Arc::downgrade(&asker))).expect("it runs");
        }
        let first = tokio::time::timeout(PATIENCE, answers.recv()).await.expect("it is read");
        assert_eq!(rebuilt(first), partition(unread));
        stop.cancel();
        running.await.expect("it ends");
        assert!(answers.try_recv().is_err(), "nothing else can be read");
    }

    #[tokio::test]
    async fn a_log_that_nobody_waits_for_any_more_is_not_read() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let rebuilder = rebuilder(dir.path()).await;
        let ((asks, inbox), (shard, mut answers)) = (unbounded_channel(), unbounded_channel());
        let asker = Arc::new(());
        asks.send(ask(partition(0), &shard, Weak::new())).expect("it is there");
        asks.send(ask(partition(1), &shard, Arc::downgrade(&asker))).expect("it is there");
        let stop = CancellationToken::new();
        let running = tokio::spawn(rebuilder.run(inbox, stop.clone()));
        let first = tokio::time::timeout(PATIENCE, answers.recv()).await.expect("it is read");
        assert_eq!(rebuilt(first), partition(1));
        stop.cancel();
        running.await.expect("it ends");
        assert!(answers.try_recv().is_err(), "it would have been read first");
    }
}
