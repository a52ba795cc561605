//! The topics of the cluster as groups see them, by name and by id. Replaced whole, with a version that rises.

use crate::topic_name::TopicName;
use millpond_log::{PartitionId, TopicId};
use std::collections::{BTreeMap, BTreeSet};

/// A topic that is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    /// Its name.
    pub name: TopicName,
    /// The racks that hold replicas, by partition.
    pub racks: Vec<BTreeSet<String>>,
}

/// All topics that are served, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topics {
    version: u64,
    by_id: BTreeMap<TopicId, Topic>,
    by_name: BTreeMap<TopicName, TopicId>,
}

impl Topics {
    /// The topics as of `version`, a number that is greater than those of all earlier images and not 0.
    #[must_use]
    pub fn new(version: u64, topics: BTreeMap<TopicId, Topic>) -> Topics {
        let by_name = topics.iter().map(|(&id, topic)| (topic.name.clone(), id)).collect();
        Topics { version, by_id: topics, by_name }
    }

    /// Which image this is.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The topic of this id.
    #[must_use]
    pub fn get(&self, id: TopicId) -> Option<&Topic> {
        self.by_id.get(&id)
    }

    /// The id of the topic that has this name now.
    #[must_use]
    pub fn id(&self, name: &str) -> Option<TopicId> {
        self.by_name.get(&TopicName::new(name).ok()?).copied()
    }

    /// Names and ids, by name.
    pub fn names(&self) -> impl Iterator<Item = (&TopicName, TopicId)> {
        self.by_name.iter().map(|(name, &id)| (name, id))
    }

    /// Number of partitions of a topic; 0 if it is not served.
    #[must_use]
    pub fn partitions(&self, id: TopicId) -> u32 {
        self.get(id).map_or(0, |topic| u32::try_from(topic.racks.len()).expect("partitions are counted in 32 bits"))
    }

    /// Whether the partition is there.
    #[must_use]
    pub fn holds(&self, partition: PartitionId) -> bool {
        partition.index < self.partitions(partition.topic)
    }

    /// The racks that hold replicas of a partition.
    pub(super) fn racks(&self, partition: PartitionId) -> Option<&BTreeSet<String>> {
        self.get(partition.topic)?.racks.get(partition.index as usize)
    }

    /// A number that differs, but for chance, if `topics` differ in what an assignment depends on.
    #[must_use]
    pub(super) fn hash<'a>(&self, topics: impl IntoIterator<Item = &'a TopicId>) -> u64 {
        let mut hash = Fnv::default();
        for id in topics {
            let Some(topic) = self.get(*id) else { continue };
            hash.add(&id.0.to_be_bytes());
            hash.add(&self.partitions(*id).to_be_bytes());
            for racks in &topic.racks {
                for rack in racks {
                    hash.add(rack.as_bytes());
                    hash.add(&[0]);
                }
                hash.add(&[1]);
            }
        }
        hash.0
    }
}

/// FNV-1a, 64 bits: stable between versions and machines, since its values are persisted.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}
