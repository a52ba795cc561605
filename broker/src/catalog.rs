//! The topics this broker knows: names, ids, settings and the handles of their partitions. An image of the metadata store, never its source.

use crate::alive::{Sessions, live_session};
use crate::api::{ApiError, PartitionDescription, PartitionLoss, TopicDescription, TopicRef};
use crate::partitions::messages::ShardSender;
use crate::partitions::view::ViewReceiver;
use crate::refusals::not_leader;
use millpond_core::records::{Leader, PartitionRecord, TopicRecord};
use millpond_core::topic_config::TopicConfig;
use millpond_log::{BrokerId, ErrorCode, LeaderEpoch, PartitionId, TopicId};
use millpond_metadata::kv::Revision;
use millpond_metadata::store::Image;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::watch;

/// One topic and how to reach its partitions.
pub(crate) struct Topic {
    /// What the metadata store has of it.
    pub(crate) record: TopicRecord,
    /// Revision of that.
    pub(crate) revision: Revision,
    /// Its settings, parsed.
    pub(crate) config: TopicConfig,
    pub(crate) partitions: Vec<PartitionHandle>,
}

/// How to reach one partition.
#[derive(Clone)]
pub(crate) struct PartitionHandle {
    pub(crate) id: PartitionId,
    /// The replica on this broker, if it holds one that is open.
    pub(crate) local: Option<Local>,
    pub(crate) placement: Placement,
    /// Why nobody may lead it, if that is so.
    pub(crate) loss: Option<Arc<PartitionLoss>>,
}

/// A replica that is open on this broker.
#[derive(Clone)]
pub(crate) struct Local {
    pub(crate) shard: ShardSender,
    pub(crate) view: ViewReceiver,
}

impl PartitionHandle {
    /// The replica on this broker.
    pub(crate) fn local(&self) -> Result<&Local, ApiError> {
        self.local.as_ref().ok_or_else(not_leader)
    }
}

/// Who holds a partition, as the metadata store says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Placement {
    pub(crate) leader: Option<BrokerId>,
    pub(crate) epoch: LeaderEpoch,
    pub(crate) replicas: Vec<BrokerId>,
    pub(crate) isr: Vec<BrokerId>,
    pub(crate) elr: Vec<BrokerId>,
    /// Who of the replicas is to be in sync before a move is done, and who is to leave then.
    pub(crate) adding: Vec<BrokerId>,
    pub(crate) removing: Vec<BrokerId>,
}

impl Placement {
    /// What clients are told: a leader whose session is gone leads no longer, whatever the record still says (rule E1).
    pub(crate) fn seen(record: &PartitionRecord, image: &Image) -> Placement {
        let leads = |leader: &Leader| {
            let session = image.sessions.get(&leader.rid.broker).map(|seen| live_session(leader.rid.broker, seen));
            session.is_some_and(|live| (live.rid, live.inc) == (leader.rid, leader.inc))
        };
        let leader = record.leader.filter(leads);
        Placement { leader: leader.map(|leader| leader.rid.broker), ..Placement::from(record) }
    }
}

impl From<&PartitionRecord> for Placement {
    fn from(record: &PartitionRecord) -> Placement {
        Placement {
            leader: record.leader.as_ref().map(|leader| leader.rid.broker),
            epoch: record.epoch,
            replicas: record.replicas.clone(),
            isr: record.isr.iter().map(|rid| rid.broker).collect(),
            elr: record.elr.iter().map(|rid| rid.broker).collect(),
            adding: record.adding.clone(),
            removing: record.removing.clone(),
        }
    }
}

/// All topics, by name and by id. Readers take a snapshot; a change replaces the tables.
pub(crate) struct Catalog {
    tables: watch::Sender<Arc<Tables>>,
}

impl Default for Catalog {
    fn default() -> Catalog {
        Catalog { tables: watch::Sender::new(Arc::default()) }
    }
}

#[derive(Clone, Default)]
pub(crate) struct Tables {
    by_name: BTreeMap<String, Arc<Topic>>,
    by_id: BTreeMap<TopicId, Arc<Topic>>,
}

impl Catalog {
    /// The tables as they are now.
    pub(crate) fn tables(&self) -> Arc<Tables> {
        Arc::clone(&self.tables.borrow())
    }

    /// Adds a topic, or replaces the one of this id.
    pub(crate) fn put(&self, topic: Topic) -> Arc<Topic> {
        let topic = Arc::new(topic);
        self.tables.send_modify(|tables| {
            let tables = Arc::make_mut(tables);
            tables.by_name.insert(topic.record.name.to_string(), Arc::clone(&topic));
            tables.by_id.insert(topic.record.id, Arc::clone(&topic));
        });
        topic
    }

    /// Removes a topic.
    pub(crate) fn remove(&self, id: TopicId) -> Option<Arc<Topic>> {
        let mut removed = None;
        self.tables.send_if_modified(|tables| {
            if !tables.by_id.contains_key(&id) {
                return false;
            }
            let tables = Arc::make_mut(tables);
            removed = tables.by_id.remove(&id);
            let name = removed.as_ref().map(|topic| topic.record.name.to_string());
            // A topic that was made anew under the same name stays.
            if let Some(name) = name.filter(|name| tables.by_name.get(name).is_some_and(|now| now.record.id == id)) {
                tables.by_name.remove(&name);
            }
            true
        });
        removed
    }

    /// The topic of this id.
    pub(crate) fn by_id(&self, id: TopicId) -> Option<Arc<Topic>> {
        self.tables.borrow().by_id.get(&id).cloned()
    }

    /// Waits until the topic is as wanted; `None` stands for one that is not served. Never returns if that never comes.
    pub(crate) async fn until(&self, id: TopicId, wanted: impl Fn(Option<&Arc<Topic>>) -> bool) {
        // The sender lives as long as the catalog.
        let _ = self.tables.subscribe().wait_for(|tables| wanted(tables.by_id.get(&id))).await;
    }

    /// The topic a client named.
    pub(crate) fn topic(&self, topic: &TopicRef) -> Result<Arc<Topic>, ApiError> {
        let tables = self.tables();
        let found = match topic {
            TopicRef::Name(name) => tables.by_name.get(name),
            TopicRef::Id(id) => tables.by_id.get(id),
        };
        found.cloned().ok_or_else(|| unknown_topic(topic))
    }

    /// The partition a client named, with its topic.
    pub(crate) fn partition(&self, topic: &TopicRef, index: u32) -> Result<(Arc<Topic>, PartitionHandle), ApiError> {
        let topic = self.topic(topic)?;
        match topic.partitions.get(index as usize) {
            Some(handle) => {
                let handle = handle.clone();
                Ok((topic, handle))
            }
            None => Err(ApiError::new(
                ErrorCode::UnknownTopicOrPartition,
                format!(
                    "topic `{}` has {} partitions, numbered from 0; there is no {index}",
                    topic.record.name,
                    topic.partitions.len()
                ),
            )),
        }
    }
}

impl Tables {
    /// Topics in order of name.
    pub(crate) fn topics(&self) -> impl Iterator<Item = &Arc<Topic>> {
        self.by_name.values()
    }
}

impl Topic {
    /// What clients see of it, while the brokers of `sessions` are alive.
    pub(crate) fn describe(&self, sessions: &Sessions) -> TopicDescription {
        let offline = |replicas: &[BrokerId]| {
            replicas.iter().filter(|replica| !sessions.contains_key(replica)).copied().collect()
        };
        let describe = |handle: &PartitionHandle| PartitionDescription {
            id: handle.id,
            leader: handle.placement.leader,
            leader_epoch: handle.placement.epoch,
            replicas: handle.placement.replicas.clone(),
            isr: handle.placement.isr.clone(),
            elr: handle.placement.elr.clone(),
            offline: offline(&handle.placement.replicas),
            loss: handle.loss.as_deref().cloned(),
        };
        TopicDescription {
            id: self.record.id,
            name: self.record.name.to_string(),
            partitions: self.partitions.iter().map(describe).collect(),
            configs: self.record.config.clone(),
        }
    }
}

fn unknown_topic(topic: &TopicRef) -> ApiError {
    match topic {
        TopicRef::Name(name) => {
            ApiError::new(ErrorCode::UnknownTopicOrPartition, format!("no topic is named `{name}`; create it first"))
        }
        TopicRef::Id(id) => {
            ApiError::new(ErrorCode::UnknownTopicId, format!("no topic has the id {id}; refresh the metadata"))
        }
    }
}
