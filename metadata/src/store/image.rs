//! The cluster's state in memory: loaded once, then kept near by watches. A hint, never a reason to write (rules K3, Z1, Z2).

use super::{Store, StoreError, Versioned, codec};
use crate::keys::{Key, Keys, ShardKind, Space};
use crate::kv::{Event, Revision};
use bytes::Bytes;
use millpond_core::records::{
    DiskRecord, DrainRecord, GroupSettingsRecord, PartitionRecord, SessionRecord, ShardRecord, TombstoneRecord,
    TopicRecord,
};
use millpond_core::topic_name::TopicName;
use millpond_log::{BrokerId, PartitionId, TopicId};
use std::collections::{BTreeMap, BTreeSet};

/// The watched part of the key space (rule Z2), as one revision had it or later.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// Everything up to and with this revision is in it: watch from the next one.
    pub revision: Revision,
    /// Live sessions; the revision is the incarnation.
    pub sessions: BTreeMap<BrokerId, Versioned<SessionRecord>>,
    /// What is known of disks.
    pub disks: BTreeMap<BrokerId, Versioned<DiskRecord>>,
    /// Brokers that are to be left.
    pub drains: BTreeMap<BrokerId, Versioned<DrainRecord>>,
    /// Topics by name.
    pub names: BTreeMap<TopicName, Versioned<TopicId>>,
    /// Topics, in every state.
    pub topics: BTreeMap<TopicId, Versioned<TopicRecord>>,
    /// Partitions; those at or above their topic's count are not served.
    pub partitions: BTreeMap<PartitionId, Versioned<PartitionRecord>>,
    /// What deleted topics left.
    pub tombstones: BTreeMap<TopicId, Versioned<TombstoneRecord>>,
    /// Owners of coordinator shards.
    pub shards: BTreeMap<(ShardKind, u32), Versioned<ShardRecord>>,
    /// What is set on groups, by name.
    pub group_settings: BTreeMap<String, Versioned<GroupSettingsRecord>>,
}

impl Image {
    /// What an image is made of; each is listed and watched by itself.
    pub const SPACES: [Space; 7] = [
        Space::Brokers,
        Space::TopicNames,
        Space::Topics,
        Space::Partitions,
        Space::Tombstones,
        Space::Shards,
        Space::GroupSettings,
    ];

    /// Takes in one event of a watch. An older event than what is held changes nothing (rule Z2).
    ///
    /// Returns the key that changed, if it is part of an image.
    ///
    /// # Errors
    /// The value cannot be read; the image is unchanged.
    pub fn apply(&mut self, keys: &Keys, event: &Event) -> Result<Option<Key>, StoreError> {
        let Ok(key) = keys.parse(event.key()) else { return Ok(None) };
        let value = match event {
            Event::Put(kv) => Some(&kv.value),
            Event::Delete { .. } => None,
        };
        let changed = self.set(&key, event.key(), value, event.mod_revision())?;
        Ok(changed.then_some(key))
    }

    /// Keys that one of two images has and the other has not, or has at another revision.
    pub(super) fn differing_keys(&self, other: &Image) -> BTreeSet<Key> {
        let mut keys = BTreeSet::new();
        differing(&self.sessions, &other.sessions, |id| Key::BrokerSession(*id), &mut keys);
        differing(&self.disks, &other.disks, |id| Key::BrokerDisk(*id), &mut keys);
        differing(&self.drains, &other.drains, |id| Key::BrokerDrain(*id), &mut keys);
        differing(&self.names, &other.names, |name| Key::TopicName(name.clone()), &mut keys);
        differing(&self.topics, &other.topics, |id| Key::Topic(*id), &mut keys);
        differing(&self.partitions, &other.partitions, |id| Key::Partition(*id), &mut keys);
        differing(&self.tombstones, &other.tombstones, |id| Key::Tombstone(*id), &mut keys);
        differing(&self.shards, &other.shards, |&(kind, shard)| Key::Shard { kind, shard }, &mut keys);
        differing(&self.group_settings, &other.group_settings, |group| Key::GroupSettings(group.clone()), &mut keys);
        keys
    }

    fn set(
        &mut self,
        key: &Key,
        spelled: &Bytes,
        value: Option<&Bytes>,
        revision: Revision,
    ) -> Result<bool, StoreError> {
        macro_rules! record {
            ($entries:expr, $id:expr) => {{
                let next = value.map(|value| codec::record(spelled, value, revision)).transpose()?;
                Ok(replace($entries, $id, next, revision))
            }};
        }
        match key {
            Key::BrokerSession(id) => record!(&mut self.sessions, *id),
            Key::BrokerDisk(id) => record!(&mut self.disks, *id),
            Key::BrokerDrain(id) => record!(&mut self.drains, *id),
            Key::Topic(id) => record!(&mut self.topics, *id),
            Key::Partition(id) => record!(&mut self.partitions, *id),
            Key::Tombstone(id) => record!(&mut self.tombstones, *id),
            Key::GroupSettings(group) => record!(&mut self.group_settings, group.clone()),
            Key::Shard { kind, shard } => record!(&mut self.shards, (*kind, *shard)),
            Key::TopicName(name) => {
                let id = value.map(|value| codec::text(spelled, value)).transpose()?;
                Ok(replace(&mut self.names, name.clone(), id.map(|value| Versioned { value, revision }), revision))
            }
            _ => Ok(false),
        }
    }
}

fn differing<K: Ord, T>(
    one: &BTreeMap<K, Versioned<T>>,
    other: &BTreeMap<K, Versioned<T>>,
    key: impl Fn(&K) -> Key,
    keys: &mut BTreeSet<Key>,
) {
    let revision = |entries: &BTreeMap<K, Versioned<T>>, id: &K| entries.get(id).map(|entry| entry.revision);
    keys.extend(one.keys().chain(other.keys()).filter(|id| revision(one, id) != revision(other, id)).map(key));
}

/// Puts or removes an entry unless a newer one is there; says whether anything changed.
fn replace<K: Ord, T>(
    entries: &mut BTreeMap<K, Versioned<T>>,
    id: K,
    next: Option<Versioned<T>>,
    revision: Revision,
) -> bool {
    if entries.get(&id).is_some_and(|held| held.revision >= revision) {
        return false;
    }
    match next {
        Some(next) => {
            entries.insert(id, next);
            true
        }
        None => entries.remove(&id).is_some(),
    }
}

impl Store {
    /// Loads everything a broker needs to start: sessions, topics with their settings, partitions, tombstones.
    ///
    /// # Errors
    /// As all reads: one record that cannot be read refuses the whole, since absence would be misread (rule K6).
    pub async fn load(&self) -> Result<Image, StoreError> {
        let mut image = Image::default();
        let mut first = None;
        for space in Image::SPACES {
            let (revision, listed) = self.list(&space).await?;
            // Later pages and spaces are newer; watching from the oldest misses nothing.
            first.get_or_insert(revision);
            for (key, found) in listed {
                image.set(&key, &self.keys.encode(&key), Some(&found.value), found.revision)?;
            }
        }
        image.revision = first.unwrap_or_default();
        Ok(image)
    }
}
