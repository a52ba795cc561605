//! How a broker comes up: every replica that is placed on it is opened before it has a session (rule B1).

use super::{Fleet, OPENED_AT_ONCE, RETRY, parse};
use crate::broker::Broker;
use crate::catalog::Topic;
use crate::manifests::decode_root;
use crate::replicas::{Opened, Opening, Tried};
use crate::start_error::StartError;
use crate::wal::{Recovered, RecoveredPartition};
use futures::stream::{self, StreamExt};
use millpond_core::loss::Standing;
use millpond_core::records::{PartitionRecord, TopicRecord, TopicState};
use millpond_log::{Incarnation, Offset, PartitionId};
use millpond_metadata::store::Versioned;
use std::collections::BTreeMap;
use std::time::Duration;

/// Longest wait for the metadata to show the broker itself, before it serves.
const CATCH_UP_MAX: Duration = Duration::from_secs(5);

impl Fleet {
    /// Opens the replicas that are placed here at the start, and drops what a tombstone or a record says is not.
    pub(super) async fn open_all(&mut self, recovered: &Recovered) -> Result<(), StartError> {
        let broker = self.broker.clone();
        let inner = broker.inner();
        let (_, roots) = inner.store.tier_roots(None).await?;
        let mut in_wal: BTreeMap<PartitionId, &RecoveredPartition> =
            recovered.partitions.iter().map(|held| (held.partition, held)).collect();
        let topics = self.follow.image().topics.values();
        let topics: Vec<Versioned<TopicRecord>> =
            topics.filter(|seen| seen.value.state == TopicState::Active).cloned().collect();
        let mut openings = Vec::new();
        for seen in &topics {
            let topic = &seen.value;
            let config = parse(topic)?;
            for index in 0..topic.partitions {
                let id = PartitionId { topic: topic.id, index };
                let placed = |seen: &Versioned<PartitionRecord>| seen.value.replicas.contains(&self.me());
                if !self.follow.image().partitions.get(&id).is_some_and(placed) {
                    continue;
                }
                let (stands, epoch) = self.stands(id).expect("its record is there");
                openings.push(Opening {
                    topic_name: topic.name.to_string(),
                    config: config.clone(),
                    root: decode_root(id, roots.get(&id))?,
                    in_wal: in_wal.remove(&id).cloned(),
                    lost: (stands == Standing::Lost).then_some(epoch),
                    complete: stands == Standing::Electable,
                    view: None,
                    known_end: Offset(0),
                });
            }
        }
        let opened = openings.into_iter().map(|opening| open_at_start(&broker, opening));
        let mut opened = stream::iter(opened).buffer_unordered(OPENED_AT_ONCE);
        while let Some(opened) = opened.next().await {
            let (id, topic_name, tried) = opened?;
            match tried {
                Tried::Open(opened) => self.note_opened(id, &topic_name, opened),
                Tried::Elsewhere => {}
                // What is missing or damaged there keeps nobody else waiting.
                Tried::Unread { opening, .. } => {
                    tracing::error!(partition = %id, "what object storage has of it cannot be read; the others are served without it");
                    self.local.insert(id, None);
                    self.try_again(id, opening);
                }
            }
        }
        for seen in topics {
            let topic = &seen.value;
            let partitions = (0..topic.partitions).map(|index| self.handle(PartitionId { topic: topic.id, index }));
            let (record, config, partitions) = (topic.clone(), parse(topic)?, partitions.collect());
            inner.catalog.put(Topic { record, revision: seen.revision, config, partitions });
        }
        let image = self.follow.image();
        for id in in_wal.into_keys() {
            let elsewhere = image.partitions.get(&id).is_some_and(|seen| !seen.value.replicas.contains(&self.me()));
            if elsewhere || image.tombstones.contains_key(&id.topic) {
                self.broker.drop_replica(id);
            } else if !image.topics.contains_key(&id.topic) {
                // Rule K6: not found is no fact. Nobody opens it, since ids are not used again.
                tracing::warn!(partition = %id, "frames of a topic that is not known, nor known as deleted; they are kept, and not served");
            }
        }
        Ok(())
    }

    /// Takes in what was opened at the start.
    fn note_opened(&mut self, id: PartitionId, topic_name: &str, opened: Opened) {
        let Opened { local, lost } = opened;
        self.local.insert(id, Some(local));
        self.tell_min_isr(id);
        self.note_loss(id, topic_name, lost.as_ref());
    }

    /// Tells every replica that is open what its record says. Once, when the broker has its session.
    pub(crate) fn assign_all(&self) {
        self.local.keys().for_each(|partition| self.assign(*partition));
    }

    /// Takes in what came while replicas were opened and the broker registered, up to its own session, so that it knows itself when it
    /// answers: also what its own registration made of them, such as a loss where its disk is another. Bounded in time: what has not come
    /// by then comes later.
    pub(crate) async fn catch_up(&mut self, inc: Incarnation) {
        let me = self.me();
        // Nobody waits for what object storage has not.
        let unread = self.being_opened.clone();
        let caught_up = async {
            while self.follow.image().sessions.get(&me).is_none_or(|seen| seen.revision.0 < inc.0) {
                match self.follow.changed().await {
                    Ok(keys) => self.on_changed(&keys),
                    // The task tells of it.
                    Err(_) => tokio::time::sleep(RETRY).await,
                }
            }
            while self.being_opened.iter().any(|partition| !unread.contains(partition)) {
                let Some(opened) = self.opening.join_next().await else { return };
                self.take_opened(opened);
            }
        };
        let _ = tokio::time::timeout(CATCH_UP_MAX, caught_up).await;
    }
}

/// Opens a replica, or finds that object storage has not what it takes. While it is away, this broker waits (case S1).
async fn open_at_start(broker: &Broker, opening: Opening) -> Result<(PartitionId, String, Tried), StartError> {
    let (id, topic_name) = (opening.root.value.partition, opening.topic_name.clone());
    let mut tried = broker.try_open(opening).await?;
    while let Tried::Unread { opening, lasting: false } = tried {
        broker.pause().await;
        tried = broker.open_again(opening).await?;
    }
    Ok((id, topic_name, tried))
}
