//! Builds an object from tails and puts it into the bucket, so that it is surely there and surely right (rules T2, T3).
//!
//! It knows nothing of manifests: an object that nobody commits is an orphan, and harmless.

use crate::bucket::{Bucket, BucketError};
use crate::wal::{TailEntry, TailReadError, Wal};
use bytes::Bytes;
use millpond_core::flush::Tail;
use millpond_core::replica::{EndState, Fault};
use millpond_core::tail_segment::{TailSegment, TailSegmentError};
use millpond_log::batch::BatchError;
use millpond_log::object_key::{BundleObject, GcEpoch, ObjectKey, PartitionObject};
use millpond_log::producers::ProducerTable;
use millpond_log::segment::{BuiltObject, BuiltSegment, BundleWriter, SegmentIdentity};
use millpond_log::{BrokerId, Incarnation, LeaderEpoch, Offset, PartitionId};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload, WriteMultipart};
use std::sync::Arc;

/// Bytes read from the WAL at a time while a segment is built.
const READ_BYTES: usize = 8 << 20;

/// Objects above this many bytes go up in parts, so that one lost connection does not repeat the whole.
const MULTIPART_BYTES: u64 = 16 << 20;

/// Parts of one object under way at once.
const PARTS_IN_FLIGHT: usize = 4;

/// Puts objects into the bucket, under the cluster's prefix.
#[derive(Clone)]
pub(crate) struct Uploader {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) bucket: Bucket,
    pub(crate) wal: Wal,
    pub(crate) cluster: String,
    pub(crate) broker: BrokerId,
    pub(crate) incarnation: Incarnation,
}

/// One tail and what its segment needs besides the batches.
#[derive(Clone)]
pub(crate) struct Source {
    pub(crate) tail: Tail,
    pub(crate) topic_name: String,
    pub(crate) epoch: LeaderEpoch,
    /// State of the log where the segment begins, as the manifest has it (rules T4, S6).
    pub(crate) from: EndState,
}

/// An object in the bucket, ready to be committed.
pub(crate) struct Uploaded {
    pub(crate) key: ObjectKey,
    pub(crate) object: BuiltObject,
    /// Producer state at the end of each segment, in the object's order.
    pub(crate) after: Vec<(PartitionId, ProducerTable)>,
}

/// Why an object is not in the bucket, as far as anyone knows. The next try uses another name (rule T2).
#[derive(Debug, thiserror::Error)]
pub(crate) enum UploadError {
    #[error("the tail of {partition} could not be read")]
    Tail {
        partition: PartitionId,
        #[source]
        source: TailReadError,
    },
    /// The tail changed under the upload: it will be planned anew.
    #[error("the tail of {partition} does not reach from {from} to {to}")]
    Moved { partition: PartitionId, from: Offset, to: Offset },
    /// Rule B6: our own synced data is bad.
    #[error("a batch in the tail of {partition} is damaged")]
    Damaged {
        partition: PartitionId,
        #[source]
        source: BatchError,
    },
    /// Rule B6: the tail is not what the manifest says was before it (S6).
    #[error("the log of {partition} up to offset {end} is not the one that the manifest goes on from")]
    OtherHistory { partition: PartitionId, end: Offset },
    /// Rule G5.
    #[error(transparent)]
    Bucket(#[from] BucketError),
    #[error("the object store refused `{key}`")]
    Store {
        key: String,
        #[source]
        source: object_store::Error,
    },
    #[error("`{key}` has {found} bytes in the object store where {expected} were written")]
    OtherLength { key: String, found: u64, expected: u64 },
    #[error("`{key}` does not read back as it was written")]
    OtherContent { key: String },
}

impl Uploader {
    /// Builds one object from `sources` and puts it into the bucket.
    pub(crate) async fn upload(&self, sources: Vec<Source>, gc_epoch: GcEpoch) -> Result<Uploaded, UploadError> {
        let mut segments = Vec::with_capacity(sources.len());
        let mut after = Vec::with_capacity(sources.len());
        for source in sources {
            let partition = source.tail.partition;
            let (segment, producers) = self.build(source).await?;
            segments.push(segment);
            after.push((partition, producers));
        }
        let random = rand::random();
        let (key, object) = match <[BuiltSegment; 1]>::try_from(segments) {
            Ok([segment]) => {
                let (partition, epoch, base) = (segment.meta.partition, segment.meta.epoch, segment.meta.base);
                (
                    ObjectKey::Segment(PartitionObject { partition, gc_epoch, epoch, base, random }),
                    BuiltObject::from(segment),
                )
            }
            Err(segments) => {
                let mut bundle = BundleWriter::new();
                segments.into_iter().for_each(|segment| bundle.push(segment));
                let name = BundleObject { broker: self.broker, incarnation: self.incarnation, gc_epoch, random };
                (ObjectKey::Bundle(name), bundle.finish())
            }
        };
        self.put(&key, &object.parts, object.length, object.crc).await?;
        Ok(Uploaded { key, object, after })
    }

    /// Puts an object and makes sure of it. An unclear answer is settled by reading the object back: its name is ours alone.
    pub(crate) async fn put(&self, key: &ObjectKey, parts: &[Bytes], length: u64, crc: u32) -> Result<(), UploadError> {
        let path = Path::from(key.to_string());
        self.bucket.hold().await?;
        let written = if length > MULTIPART_BYTES {
            self.put_multipart(&path, parts).await
        } else {
            self.store.put(&path, parts.iter().cloned().collect::<PutPayload>()).await.map(drop)
        };
        match written {
            Ok(()) => self.check_length(&path, length).await,
            Err(error) => self
                .check_content(&path, length, crc)
                .await
                .map_err(|_| UploadError::Store { key: path.to_string(), source: error }),
        }
    }

    async fn put_multipart(&self, path: &Path, parts: &[Bytes]) -> object_store::Result<()> {
        let mut write =
            WriteMultipart::new_with_chunk_size(self.store.put_multipart(path).await?, MULTIPART_BYTES as usize / 2);
        for part in parts {
            write.wait_for_capacity(PARTS_IN_FLIGHT).await?;
            write.put(part.clone());
        }
        write.finish().await.map(drop)
    }

    async fn check_length(&self, path: &Path, expected: u64) -> Result<(), UploadError> {
        let key = || path.to_string();
        let head = self.store.head(path).await.map_err(|source| UploadError::Store { key: key(), source })?;
        if head.size == expected {
            Ok(())
        } else {
            Err(UploadError::OtherLength { key: key(), found: head.size, expected })
        }
    }

    async fn check_content(&self, path: &Path, length: u64, crc: u32) -> Result<(), UploadError> {
        let store_error = |source| UploadError::Store { key: path.to_string(), source };
        let found = self.store.get(path).await.map_err(store_error)?.bytes().await.map_err(store_error)?;
        if found.len() as u64 == length && crc32c::crc32c(&found) == crc {
            Ok(())
        } else {
            Err(UploadError::OtherContent { key: path.to_string() })
        }
    }

    /// Builds the segment `[tiered_end, end)` of one partition, with the producer state at its end.
    async fn build(&self, source: Source) -> Result<(BuiltSegment, ProducerTable), UploadError> {
        let Source { tail, topic_name, epoch, from } = source;
        let partition = tail.partition;
        let moved = || UploadError::Moved { partition, from: tail.tiered_end, to: tail.end };
        let identity = SegmentIdentity { cluster: self.cluster.clone(), partition, topic_name, epoch };
        let mut segment = TailSegment::new(identity, from, tail.end);
        while segment.reached() < tail.end {
            let read = self.wal.read(partition, segment.reached(), tail.end, READ_BYTES).await;
            let batches = read.map_err(|source| UploadError::Tail { partition, source })?;
            let end = batches.last().ok_or_else(moved)?.0.end_offset();
            let entries: Vec<TailEntry> = self.wal.entries(partition, segment.reached(), end);
            if entries.len() != batches.len() {
                return Err(moved());
            }
            for ((batch, append_time), entry) in batches.iter().zip(entries) {
                if entry.base != batch.base_offset() {
                    return Err(moved());
                }
                // Rule W3 and case F13: the index has the time that admission read off the records, the header a claim.
                segment.push(batch, *append_time, entry.latest).map_err(|error| match error {
                    TailSegmentError::Moved { .. } => moved(),
                    TailSegmentError::Damaged(source) => UploadError::Damaged { partition, source },
                })?;
            }
        }
        // The WAL has the hash that the replica chained when it appended; this one goes back over all segments.
        if self.wal.prefix_hash_at(partition, tail.end).is_some_and(|hash| hash != segment.prefix_hash()) {
            return Err(UploadError::OtherHistory { partition, end: tail.end });
        }
        Ok(segment.finish())
    }
}

impl UploadError {
    /// The invariant that it shows to be broken, if it does (rule B6).
    pub(super) fn fault(&self) -> Option<Fault> {
        match self {
            UploadError::OtherHistory { end, .. } => Some(Fault::PrefixHash { end: *end }),
            _ => None,
        }
    }

    /// Whose fault it is, where it is one partition's and not the object store's.
    pub(super) fn partition(&self) -> Option<PartitionId> {
        match self {
            UploadError::Tail { partition, .. }
            | UploadError::Moved { partition, .. }
            | UploadError::OtherHistory { partition, .. }
            | UploadError::Damaged { partition, .. } => Some(*partition),
            UploadError::Bucket(_)
            | UploadError::Store { .. }
            | UploadError::OtherLength { .. }
            | UploadError::OtherContent { .. } => None,
        }
    }
}
