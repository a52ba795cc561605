//! The cluster's own records: its identity, which versions may join, and which bucket is its own. Written once.

use super::transition::{Guard, Settled, Transition};
use super::{Store, StoreError, Versioned, codec};
use crate::keys::Key;
use crate::kv::Write;
use millpond_core::records::ClusterRecord;

/// Version of the key space that this version writes and reads.
pub const KEY_SPACE_FORMAT: u32 = 1;

/// The newest feature level that this version understands.
pub const FEATURE_LEVEL: u32 = 1;

impl Store {
    /// Founds the cluster with identity `id`, or returns the record of the cluster that is there.
    ///
    /// Whoever comes second gets the first one's record; calling again is harmless. Also puts the first gc epoch and the
    /// first producer id in place.
    ///
    /// # Errors
    /// - `NewerFormat`: the cluster was raised above this version. Upgrade.
    /// - `Unavailable`: it may or may not have been founded. Call again.
    pub async fn init_cluster(&self, id: &str) -> Result<Versioned<ClusterRecord>, StoreError> {
        if let Some(found) = self.cluster().await? {
            return Ok(found);
        }
        let record = ClusterRecord { id: id.to_owned(), format: KEY_SPACE_FORMAT, feature_level: FEATURE_LEVEL };
        let key = self.keys.encode(&Key::Cluster);
        let value = codec::value(&record);
        let founding = Transition {
            guards: vec![Guard::absent(key.clone())],
            writes: vec![
                Write::put(key.clone(), value.clone()),
                Write::put(self.keys.encode(&Key::GcEpoch), codec::gc_epoch(0)),
                Write::put(self.keys.encode(&Key::ProducerIds), "0"),
            ],
            proof: Some((key, value)),
        };
        match self.run(founding).await? {
            Settled::Committed(revision) => Ok(Versioned { value: record, revision }),
            Settled::Broken(_) => {
                let found = self.cluster().await?;
                found.ok_or_else(|| StoreError::Unavailable("the cluster's record came and went".to_owned()))
            }
            Settled::Unknown => Err(StoreError::Unavailable("founding the cluster had no answer".to_owned())),
        }
    }

    /// What the cluster's marker in its bucket says (rule G5); `None` until a bucket was taken.
    ///
    /// # Errors
    /// Of all reads.
    pub async fn bucket(&self) -> Result<Option<String>, StoreError> {
        let key = self.keys.encode(&Key::Bucket);
        let seen = self.read_bytes(&Key::Bucket).await?;
        seen.map(|seen| codec::text(&key, &seen.value)).transpose()
    }

    /// Takes the bucket whose marker says `place` for the cluster, for good, unless one was taken. Returns what the marker of the one that
    /// was taken says.
    ///
    /// # Errors
    /// `Unavailable`: it may or may not have been taken. Call again.
    pub async fn take_bucket(&self, place: &str) -> Result<String, StoreError> {
        let (key, value) = (self.keys.encode(&Key::Bucket), place.to_owned());
        let taking = Transition {
            guards: vec![Guard::absent(key.clone())],
            writes: vec![Write::put(key.clone(), value.clone())],
            proof: Some((key, value.into())),
        };
        match self.run(taking).await? {
            Settled::Committed(_) => Ok(place.to_owned()),
            Settled::Broken(_) => {
                let taken = self.bucket().await?;
                taken.ok_or_else(|| StoreError::Unavailable("the cluster's bucket came and went".to_owned()))
            }
            Settled::Unknown => Err(StoreError::Unavailable("taking a bucket had no answer".to_owned())),
        }
    }

    /// The cluster's record, if it was founded.
    ///
    /// # Errors
    /// `NewerFormat`: the cluster was raised above this version.
    pub async fn cluster(&self) -> Result<Option<Versioned<ClusterRecord>>, StoreError> {
        let found = self.read::<ClusterRecord>(&Key::Cluster).await?;
        if let Some(Versioned { value: record, .. }) = &found {
            let known = [(record.format, KEY_SPACE_FORMAT), (record.feature_level, FEATURE_LEVEL)];
            if let Some((found, known)) = known.into_iter().find(|(found, known)| found > known) {
                let key = String::from_utf8_lossy(&self.keys.encode(&Key::Cluster)).into_owned();
                return Err(StoreError::NewerFormat { key, found, known });
            }
        }
        Ok(found)
    }
}
