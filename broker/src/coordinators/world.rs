//! What coordinators see of the cluster, made from the metadata image: hints, but for the topics that are deleted (rule K6).

use crate::alive::live_session;
use millpond_core::groups::{Topic, Topics};
use millpond_core::records::{ShardRecord, TopicState};
use millpond_log::{BrokerId, PartitionId, TopicId};
use millpond_metadata::keys::ShardKind;
use millpond_metadata::store::{Image, Versioned};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The cluster at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct World {
    /// The brokers that shards belong on: those that are alive and are not to be left; all that are alive if each is to be left.
    pub(crate) hosts: BTreeSet<BrokerId>,
    /// Owners whose session stands, and the epoch they own a shard in.
    pub(crate) owners: BTreeMap<(ShardKind, u32), (BrokerId, u32)>,
    /// The topics that are served.
    pub(crate) topics: Arc<Topics>,
    /// The topics that have a tombstone.
    pub(crate) deleted: BTreeSet<TopicId>,
}

impl World {
    /// What follows this one by `image`, in which no topics but `touched` have changed; none if nothing has.
    pub(crate) fn next(&self, image: &Image, touched: &BTreeSet<TopicId>) -> Option<World> {
        let mut next = World {
            hosts: hosts(image),
            owners: owners(image),
            topics: Arc::clone(&self.topics),
            deleted: image.tombstones.keys().copied().collect(),
        };
        if touched.iter().any(|id| self.topics.get(*id) != topic(image, *id).as_ref()) {
            let topics = image.topics.keys().filter_map(|id| Some((*id, topic(image, *id)?))).collect();
            next.topics = Arc::new(Topics::new(self.topics.version() + 1, topics));
        }
        (next != *self).then_some(next)
    }
}

fn hosts(image: &Image) -> BTreeSet<BrokerId> {
    let alive: BTreeSet<BrokerId> = image.sessions.keys().copied().collect();
    let stay: BTreeSet<BrokerId> = alive.iter().filter(|broker| !image.drains.contains_key(broker)).copied().collect();
    if stay.is_empty() { alive } else { stay }
}

fn owners(image: &Image) -> BTreeMap<(ShardKind, u32), (BrokerId, u32)> {
    let owner = |(shard, seen): (&(ShardKind, u32), &Versioned<ShardRecord>)| {
        let record = &seen.value;
        let owner = record.owner?;
        let live = live_session(owner.rid.broker, image.sessions.get(&owner.rid.broker)?);
        ((live.rid, live.inc) == (owner.rid, owner.inc)).then_some((*shard, (owner.rid.broker, record.coord_epoch)))
    };
    image.shards.iter().filter_map(owner).collect()
}

/// A topic, if it is served.
fn topic(image: &Image, id: TopicId) -> Option<Topic> {
    let seen = image.topics.get(&id).filter(|seen| seen.value.state == TopicState::Active)?;
    let rack = |broker: &BrokerId| image.sessions.get(broker)?.value.rack.clone();
    let racks = (0..seen.value.partitions).map(|index| {
        let replicas = image.partitions.get(&PartitionId { topic: id, index }).map(|seen| &seen.value.replicas);
        replicas.into_iter().flatten().filter_map(rack).collect()
    });
    Some(Topic { name: seen.value.name.clone(), racks: racks.collect() })
}
