//! Topics go: the name at once, then partition by partition, and last the topic itself. What remains is a tombstone, the
//! only reason for a broker to drop data (rule K6), until nobody holds any: see `burial`.

use super::transition::{BATCH_BYTES_MAX, Broken, Guard, Transition};
use super::{ATTEMPTS_MAX, Outcome, Session, Store, StoreError, Versioned, codec};
use crate::keys::{Key, Space};
use crate::kv::{Compare, Revision, Write};
use bytes::Bytes;
use millpond_core::records::{DropRecord, PartitionRecord, TombstoneRecord, TopicRecord, TopicState};
use millpond_log::{PartitionId, TopicId};
use std::collections::BTreeMap;

/// Partitions removed in one transaction: each takes four of its operations.
const REMOVE_PARTITIONS_MAX: usize = 30;

/// Bytes of tier roots in one such transaction. They are written in hexadecimal, at twice their size.
const REMOVE_ROOT_BYTES_MAX: usize = BATCH_BYTES_MAX / 4;

/// A partition to remove: its records, with what they were read as.
struct Doomed {
    partition: PartitionId,
    record: Option<Versioned<PartitionRecord>>,
    root: Option<Versioned<Bytes>>,
}

impl Store {
    /// Deletes a topic: frees its name and lays its tombstone in one transaction, then removes its partitions.
    ///
    /// After the first transaction there is no way back; `resume_deletion` finishes what was cut short.
    ///
    /// # Errors
    /// As all reads.
    pub async fn delete_topic(&self, actor: &Session, seen: &Versioned<TopicRecord>) -> Result<Outcome, StoreError> {
        let topic = &seen.value;
        if topic.state == TopicState::Deleting {
            return self.resume_deletion(actor, topic.id).await;
        }
        let topic_key = self.keys.encode(&Key::Topic(topic.id));
        let name_key = self.keys.encode(&Key::TopicName(topic.name.clone()));
        let value = codec::value(&TopicRecord { state: TopicState::Deleting, ..topic.clone() });
        let tombstone = TombstoneRecord { name: topic.name.clone(), revision: seen.revision.0 };
        let name_is_ours = Compare::Value { key: name_key.clone(), is: topic.id.to_string().into() };
        let begin = Transition {
            guards: vec![
                self.own_session(actor),
                Guard::unmoved(topic_key.clone(), seen.revision),
                Guard { compare: name_is_ours, broken: Broken::Conflict },
            ],
            writes: vec![
                Write::put(topic_key.clone(), value.clone()),
                Write::delete(&name_key),
                Write::put(self.keys.encode(&Key::Tombstone(topic.id)), codec::value(&tombstone)),
            ],
            proof: Some((topic_key, value)),
        };
        match self.run(begin).await?.into() {
            Outcome::Committed { .. } => self.resume_deletion(actor, topic.id).await,
            other => Ok(other),
        }
    }

    /// Goes on with a deletion that somebody began, until the topic's record is gone too.
    ///
    /// # Errors
    /// As all reads.
    pub async fn resume_deletion(&self, actor: &Session, id: TopicId) -> Result<Outcome, StoreError> {
        let mut conflicts = 0;
        loop {
            let Some(topic) = self.topic(id).await? else {
                return Ok(match self.tombstone(id).await? {
                    Some(tombstone) => Outcome::Committed { revision: tombstone.revision },
                    None => Outcome::Conflict,
                });
            };
            if topic.value.state != TopicState::Deleting {
                return Ok(Outcome::Conflict);
            }
            match self.remove_all(actor, &topic).await? {
                Outcome::Committed { .. } => {}
                Outcome::Conflict if conflicts < ATTEMPTS_MAX => conflicts += 1,
                other => return Ok(other),
            }
        }
    }

    /// Removes every partition the topic has, or the topic's record if it has none.
    async fn remove_all(&self, actor: &Session, topic: &Versioned<TopicRecord>) -> Result<Outcome, StoreError> {
        let doomed = self.doomed(topic.value.id).await?;
        if doomed.is_empty() {
            let key = self.keys.encode(&Key::Topic(topic.value.id));
            let end = Transition {
                guards: vec![self.own_session(actor), Guard::unmoved(key.clone(), topic.revision)],
                writes: vec![Write::delete(&key)],
                proof: None,
            };
            return Ok(self.run(end).await?.into());
        }
        let mut rest = doomed.as_slice();
        while !rest.is_empty() {
            let (batch, later) = rest.split_at(removal_size(rest));
            rest = later;
            let Some(step) = self.removal(actor, topic, batch).await? else { return Ok(Outcome::Conflict) };
            match self.run(step).await?.into() {
                Outcome::Committed { .. } => {}
                other => return Ok(other),
            }
        }
        Ok(Outcome::Committed { revision: topic.revision })
    }

    /// The tombstone of a deleted topic.
    ///
    /// # Errors
    /// As all reads.
    pub async fn tombstone(&self, id: TopicId) -> Result<Option<Versioned<TombstoneRecord>>, StoreError> {
        self.read(&Key::Tombstone(id)).await
    }

    /// Everything the topic still has under its partitions.
    async fn doomed(&self, id: TopicId) -> Result<Vec<Doomed>, StoreError> {
        let (_, records) = self.list_records::<PartitionRecord>(&Space::PartitionsOf(id)).await?;
        let (_, roots) = self.list(&Space::TierRootsOf(id)).await?;
        let mut doomed: BTreeMap<PartitionId, Doomed> = BTreeMap::new();
        let entry = |partition| Doomed { partition, record: None, root: None };
        for (key, record) in records {
            if let Key::Partition(partition) = key {
                doomed.entry(partition).or_insert_with(|| entry(partition)).record = Some(record);
            }
        }
        for (key, root) in roots {
            if let Key::TierRoot(partition) = key {
                doomed.entry(partition).or_insert_with(|| entry(partition)).root = Some(root);
            }
        }
        Ok(doomed.into_values().collect())
    }

    /// Removes some partitions. `None` if the tombstone is missing, which nothing of ours brings about.
    async fn removal(
        &self,
        actor: &Session,
        topic: &Versioned<TopicRecord>,
        batch: &[Doomed],
    ) -> Result<Option<Transition>, StoreError> {
        let Some(tombstone) = self.tombstone(topic.value.id).await? else { return Ok(None) };
        let topic_key = self.keys.encode(&Key::Topic(topic.value.id));
        let tombstone_key = self.keys.encode(&Key::Tombstone(topic.value.id));
        // The drops carry the gc epoch of this very transaction (rule G2).
        let gc = self.gc_epoch().await?;
        let mut step = Transition {
            guards: vec![
                self.own_session(actor),
                Guard::unmoved(topic_key, topic.revision),
                Guard::unmoved(tombstone_key, tombstone.revision),
                Guard::unmoved(self.keys.encode(&Key::GcEpoch), gc.revision),
            ],
            writes: Vec::new(),
            proof: None,
        };
        for doomed in batch {
            self.remove_partition(&mut step, doomed, gc.value);
        }
        Ok(Some(step))
    }

    fn remove_partition(&self, step: &mut Transition, doomed: &Doomed, gc_epoch: u64) {
        let partition = doomed.partition;
        let record_key = self.keys.encode(&Key::Partition(partition));
        let root_key = self.keys.encode(&Key::TierRoot(partition));
        let revision = |revision: Option<Revision>| revision.unwrap_or(Revision::ABSENT);
        let record_revision = revision(doomed.record.as_ref().map(|record| record.revision));
        step.guards.push(Guard::unmoved(record_key.clone(), record_revision));
        let root_revision = revision(doomed.root.as_ref().map(|root| root.revision));
        step.guards.push(Guard::unmoved(root_key.clone(), root_revision));
        step.writes.push(Write::delete(&record_key));
        step.writes.push(Write::delete(&self.keys.encode(&Key::Leadership(partition))));
        if let Some(root) = &doomed.root {
            step.writes.push(Write::delete(&root_key));
            let key = Key::GcDrop { gc_epoch, partition, seq: root.revision.0 };
            let record = DropRecord { objects: Vec::new(), root: Some(root.value.to_vec()) };
            step.writes.push(Write::put(self.keys.encode(&key), codec::value(&record)));
        }
    }
}

/// How many of the partitions one transaction removes.
fn removal_size(doomed: &[Doomed]) -> usize {
    let mut root_bytes = 0;
    let fits = |doomed: &&Doomed| {
        root_bytes += doomed.root.as_ref().map_or(0, |root| root.value.len());
        root_bytes <= REMOVE_ROOT_BYTES_MAX
    };
    doomed.iter().take(REMOVE_PARTITIONS_MAX).take_while(fits).count().max(1)
}
