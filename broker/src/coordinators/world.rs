//! What coordinators see of the cluster, made from the metadata image: hints, but for the topics that are deleted (rule K6).

use crate::alive::live_session;
use millpond_core::groups::{GroupLimits, GroupOverrides, GroupRules, Topic, Topics};
use millpond_core::records::{GroupSettingsRecord, ShardRecord, TopicState};
use millpond_log::{BrokerId, PartitionId, TopicId};
use millpond_metadata::keys::ShardKind;
use millpond_metadata::kv::Revision;
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
    /// Of all tombstones laid up to here, those that stand are among them, and their topics are served no more.
    pub(crate) deleted_up_to: Revision,
    /// What groups keep to, as this broker was told at its start.
    pub(crate) limits: GroupLimits,
    /// What is set on groups, by name.
    pub(crate) settings: Arc<BTreeMap<String, Versioned<GroupSettingsRecord>>>,
    /// The same, as groups keep to it.
    pub(crate) overrides: Arc<BTreeMap<Arc<str>, GroupOverrides>>,
}

impl World {
    /// What follows this one by `image`, in which no topics but `touched` have changed; none if nothing has.
    pub(crate) fn next(&self, image: &Image, touched: &BTreeSet<TopicId>) -> Option<World> {
        let mut next = World {
            hosts: hosts(image),
            owners: owners(image),
            topics: Arc::clone(&self.topics),
            deleted: image.tombstones.keys().copied().collect(),
            deleted_up_to: self.deleted_up_to,
            limits: self.limits,
            settings: Arc::clone(&self.settings),
            overrides: Arc::clone(&self.overrides),
        };
        if touched.iter().any(|id| self.topics.get(*id) != topic(image, *id).as_ref()) {
            let topics = image.topics.keys().filter_map(|id| Some((*id, topic(image, *id)?))).collect();
            next.topics = Arc::new(Topics::new(self.topics.version() + 1, topics));
        }
        if *self.settings != image.group_settings {
            next.settings = Arc::new(image.group_settings.clone());
            let kept = |(group, seen): (&String, &Versioned<GroupSettingsRecord>)| {
                (Arc::from(group.as_str()), GroupOverrides::kept(&seen.value.settings))
            };
            next.overrides = Arc::new(image.group_settings.iter().map(kept).collect());
        }
        (next != *self).then_some(next)
    }

    /// What groups keep to.
    pub(crate) fn rules(&self) -> GroupRules {
        GroupRules { limits: self.limits, overrides: Arc::clone(&self.overrides) }
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

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_core::records::{DrainRecord, Leader, SessionRecord, TopicRecord};
    use millpond_log::{Incarnation, Rid, WalGen};

    const TOPIC: TopicId = TopicId(7);

    fn at<T>(revision: u64, value: T) -> Versioned<T> {
        Versioned { value, revision: Revision(revision) }
    }

    fn session(broker: u64) -> SessionRecord {
        SessionRecord {
            wal_gen: WalGen(broker),
            grpc: String::new(),
            kafka: String::new(),
            kafka_listeners: BTreeMap::new(),
            http: String::new(),
            internal: None,
            rack: None,
        }
    }

    fn image() -> Image {
        let mut image = Image::default();
        for broker in 1..=2 {
            image.sessions.insert(BrokerId(broker), at(u64::from(broker), session(broker.into())));
        }
        let topic = TopicRecord {
            name: "t".parse().expect("a name"),
            id: TOPIC,
            state: TopicState::Active,
            partitions: 3,
            replication_factor: 1,
            config: BTreeMap::new(),
        };
        image.topics.insert(TOPIC, at(9, topic));
        let owner = Leader { rid: Rid { broker: BrokerId(1), wal_gen: WalGen(1) }, inc: Incarnation(1) };
        image.shards.insert((ShardKind::Group, 4), at(5, ShardRecord { owner: Some(owner), coord_epoch: 3 }));
        image
    }

    #[test]
    fn only_what_has_changed_makes_another_world() {
        let mut image = image();
        let touched = BTreeSet::from([TOPIC]);
        let world = World::default().next(&image, &touched).expect("all is new");
        assert_eq!(world.hosts, [BrokerId(1), BrokerId(2)].into());
        assert_eq!(world.owners, [((ShardKind::Group, 4), (BrokerId(1), 3))].into());
        assert_eq!((world.topics.version(), world.topics.partitions(TOPIC)), (1, 3));
        assert_eq!(world.next(&image, &touched), None);
        image.topics.get_mut(&TOPIC).expect("there").value.partitions = 4;
        let grown = world.next(&image, &touched).expect("it has grown");
        assert_eq!((grown.topics.version(), grown.topics.partitions(TOPIC)), (2, 4));
        image.topics.clear();
        assert_eq!(grown.next(&image, &touched).expect("it is gone").topics.partitions(TOPIC), 0);
    }

    #[test]
    fn groups_keep_to_what_is_set_on_them_until_it_is_not() {
        let mut image = image();
        let world = World::default().next(&image, &BTreeSet::new()).expect("all is new");
        let settings = [("consumer.session.timeout.ms".to_owned(), "50000".to_owned())].into();
        image.group_settings.insert("g".to_owned(), at(10, GroupSettingsRecord { settings }));
        let set = world.next(&image, &BTreeSet::new()).expect("it was set");
        let session = |world: &World, group| world.rules().times(group).session_timeout_ms;
        assert_eq!((session(&set, "g"), session(&set, "h")), (50_000, 45_000));
        assert_eq!(set.next(&image, &BTreeSet::new()), None);
        image.group_settings.clear();
        assert_eq!(session(&set.next(&image, &BTreeSet::new()).expect("it is gone"), "g"), 45_000);
    }

    #[test]
    fn whoever_is_to_be_left_hosts_nothing_and_ended_sessions_own_nothing() {
        let mut image = image();
        image.drains.insert(BrokerId(1), at(6, DrainRecord { replicas: false }));
        let world = World::default().next(&image, &BTreeSet::new()).expect("all is new");
        assert_eq!(world.hosts, [BrokerId(2)].into());
        assert_eq!(world.owners.len(), 1, "until it gives the shard up");
        image.drains.insert(BrokerId(2), at(7, DrainRecord { replicas: false }));
        assert_eq!(world.next(&image, &BTreeSet::new()).expect("changed").hosts.len(), 2, "somebody has to");
        // Another session of the same broker.
        image.sessions.insert(BrokerId(1), at(8, session(1)));
        assert!(world.next(&image, &BTreeSet::new()).expect("changed").owners.is_empty(), "rule B3");
    }
}
