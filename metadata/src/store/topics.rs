//! Topics come to be, grow, and change their settings. Creation and growth go in batches that anybody can finish (rule K8).

use super::transition::{Broken, Guard, Settled, Transition};
use super::{Outcome, Session, Store, StoreError, Versioned, codec};
use crate::keys::{Key, Space};
use crate::kv::{Compare, Revision, Write};
use millpond_core::records::{Leader, PartitionRecord, TopicRecord, TopicState};
use millpond_core::topic_config::TopicConfig;
use millpond_core::topic_name::TopicName;
use millpond_log::{BrokerId, LeaderEpoch, PartitionId, Rid, TopicId};
use std::collections::BTreeMap;

/// Where the replicas of a new partition go, and who leads it first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Brokers that hold a copy, the preferred leader first.
    pub replicas: Vec<BrokerId>,
    /// Those of them that are there, as replicas: an empty log is complete everywhere.
    pub isr: Vec<Rid>,
    /// One of `isr` with a live session, which is compared; `None` leaves the first election to whoever elects.
    pub leader: Option<Leader>,
    /// In-sync replicas needed to commit.
    pub min_isr: u32,
    /// Those of `replicas` that have no session, with the revision of their disk's record: it is compared, so that none was forgotten or came
    /// back meanwhile.
    pub absent: Vec<(BrokerId, Revision)>,
}

/// A topic to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTopic {
    /// Its name.
    pub name: TopicName,
    /// Its identity, drawn at random by the caller: the identity of the request too, so that a retry is recognised.
    pub id: TopicId,
    /// What `buried` said before `id` was drawn, and with the same `id` always the same: no request makes a topic again that was made,
    /// deleted and forgotten meanwhile (rule K6).
    pub buried: Revision,
    /// Replicas wanted of each partition.
    pub replication_factor: u32,
    /// Settings that differ from the defaults.
    pub config: BTreeMap<String, String>,
    /// Its partitions, by index.
    pub placements: Vec<Placement>,
}

/// How a creation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateOutcome {
    /// The topic is active.
    Created {
        /// The revision that made it active.
        revision: Revision,
    },
    /// Another topic has the name; nothing was written.
    Exists {
        /// That topic.
        id: TopicId,
    },
    /// Somebody else works on this topic, or a leader of the placements is gone, or the topic was taken back. What was written stands:
    /// call again (with another id if this one has a tombstone, or if nothing is there of it and `buried` says otherwise than before), or
    /// `delete_topic`.
    Conflict,
    /// The actor's session is gone. What was written stands, until the controller takes it back.
    Fenced,
    /// No answer. Call again with the same id.
    Unknown,
}

impl From<Outcome> for CreateOutcome {
    fn from(outcome: Outcome) -> CreateOutcome {
        match outcome {
            Outcome::Committed { revision } => CreateOutcome::Created { revision },
            Outcome::Conflict => CreateOutcome::Conflict,
            Outcome::Fenced => CreateOutcome::Fenced,
            Outcome::Unknown => CreateOutcome::Unknown,
        }
    }
}

impl Placement {
    /// The record it makes, after a record of epoch `before` that was never served. An election bumps the epoch (rule E4).
    fn record(&self, before: LeaderEpoch) -> PartitionRecord {
        PartitionRecord {
            leader: self.leader,
            epoch: LeaderEpoch(before.0 + u32::from(self.leader.is_some())),
            isr: self.isr.clone(),
            elr: Vec::new(),
            replicas: self.replicas.clone(),
            adding: Vec::new(),
            removing: Vec::new(),
            min_isr: self.min_isr,
            unclean_epoch: None,
        }
    }

    /// Whether `found` is what this placement made, at some epoch.
    fn made(&self, found: &PartitionRecord) -> bool {
        *found == PartitionRecord { epoch: found.epoch, ..self.record(LeaderEpoch(0)) }
    }
}

impl Store {
    /// Creates a topic: takes the name (state creating), writes its partitions in batches, makes it active.
    ///
    /// Idempotent by `topic.id`: a repeated call goes on where the last one ended.
    ///
    /// # Errors
    /// `Refused`: no partition, or bad settings. Others as all reads.
    pub async fn create_topic(&self, actor: &Session, topic: &NewTopic) -> Result<CreateOutcome, StoreError> {
        let partitions = partition_count(&topic.placements)?;
        check_config(&topic.config)?;
        let record = TopicRecord {
            name: topic.name.clone(),
            id: topic.id,
            state: TopicState::Creating,
            partitions,
            replication_factor: topic.replication_factor,
            config: topic.config.clone(),
        };
        let name_key = self.keys.encode(&Key::TopicName(topic.name.clone()));
        let topic_key = self.keys.encode(&Key::Topic(topic.id));
        let id = topic.id.to_string();
        // Rule K6: an id that was deleted is never used again; its tombstone would have its records dropped.
        let tombstone_key = self.keys.encode(&Key::Tombstone(topic.id));
        let begin = Transition {
            guards: vec![
                self.own_session(actor),
                Guard::absent(name_key.clone()),
                Guard::absent(topic_key.clone()),
                Guard::absent(tombstone_key),
                // Nor is one of which the tombstone is gone: this request may arrive as late as it wants to (rule K5).
                Guard::unmoved(self.keys.encode(&Key::Buried), topic.buried),
            ],
            writes: vec![Write::put(name_key.clone(), id.clone()), Write::put(topic_key, codec::value(&record))],
            proof: Some((name_key, id.into())),
        };
        match self.run(begin).await? {
            Settled::Committed(_) => self.resume_topic(actor, topic.id, &topic.placements).await,
            Settled::Broken(Broken::Conflict) => match self.topic_id(&topic.name).await? {
                Some(id) if id != topic.id => Ok(CreateOutcome::Exists { id }),
                _ => Ok(CreateOutcome::Conflict),
            },
            other => Ok(Outcome::from(other).into()),
        }
    }

    /// Finishes a creation that somebody began: writes the partitions that are missing or placed otherwise, then makes the
    /// topic active.
    ///
    /// # Errors
    /// `Refused`: `placements` are not as many as the topic has partitions. Others as all reads.
    pub async fn resume_topic(
        &self,
        actor: &Session,
        id: TopicId,
        placements: &[Placement],
    ) -> Result<CreateOutcome, StoreError> {
        let Some(topic) = self.topic(id).await? else { return Ok(CreateOutcome::Conflict) };
        match topic.value.state {
            TopicState::Creating => {}
            TopicState::Active => return Ok(CreateOutcome::Created { revision: topic.revision }),
            TopicState::Deleting => return Ok(CreateOutcome::Conflict),
        }
        if partition_count(placements)? != topic.value.partitions {
            let reason = format!("{} placements for {} partitions", placements.len(), topic.value.partitions);
            return Err(StoreError::Refused(reason));
        }
        if let Some(obstacle) = self.write_partitions(actor, &topic, 0, placements).await? {
            return Ok(obstacle.into());
        }
        let active = TopicRecord { state: TopicState::Active, ..topic.value.clone() };
        Ok(self.put_topic(actor, &topic, &active).await?.into())
    }

    /// Adds partitions after the last one; they are served once all are written and the count is raised.
    ///
    /// A growth that was cut short leaves records above the count, which nobody serves; the next growth replaces them.
    ///
    /// # Errors
    /// `Refused`: the topic is not active, or nothing is added. Others as all reads.
    pub async fn add_partitions(
        &self,
        actor: &Session,
        seen: &Versioned<TopicRecord>,
        placements: &[Placement],
    ) -> Result<Outcome, StoreError> {
        require_active(&seen.value)?;
        let added = partition_count(placements)?;
        let Some(partitions) = seen.value.partitions.checked_add(added) else {
            return Err(StoreError::Refused("more partitions than can be counted".to_owned()));
        };
        if let Some(obstacle) = self.write_partitions(actor, seen, seen.value.partitions, placements).await? {
            return Ok(obstacle);
        }
        self.put_topic(actor, seen, &TopicRecord { partitions, ..seen.value.clone() }).await
    }

    /// Replaces a topic's settings that differ from the defaults.
    ///
    /// `min.insync.replicas` also stands in each partition's record, where only its leader may change it (rule I7).
    ///
    /// # Errors
    /// `Refused`: the topic is not active, or the settings are bad. Others as all reads.
    pub async fn alter_topic_config(
        &self,
        actor: &Session,
        seen: &Versioned<TopicRecord>,
        config: &BTreeMap<String, String>,
    ) -> Result<Outcome, StoreError> {
        require_active(&seen.value)?;
        check_config(config)?;
        self.put_topic(actor, seen, &TopicRecord { config: config.clone(), ..seen.value.clone() }).await
    }

    /// A topic's record.
    ///
    /// # Errors
    /// As all reads.
    pub async fn topic(&self, id: TopicId) -> Result<Option<Versioned<TopicRecord>>, StoreError> {
        self.read(&Key::Topic(id)).await
    }

    /// The topic that has this name.
    ///
    /// # Errors
    /// As all reads.
    pub async fn topic_id(&self, name: &TopicName) -> Result<Option<TopicId>, StoreError> {
        let key = Key::TopicName(name.clone());
        let found = self.read_bytes(&key).await?;
        found.map(|found| codec::text(&self.keys.encode(&key), &found.value)).transpose()
    }

    /// A partition's record.
    ///
    /// # Errors
    /// As all reads.
    pub async fn partition(&self, id: PartitionId) -> Result<Option<Versioned<PartitionRecord>>, StoreError> {
        self.read(&Key::Partition(id)).await
    }

    /// Replaces the topic's record, decided on `seen`.
    pub(super) async fn put_topic(
        &self,
        actor: &Session,
        seen: &Versioned<TopicRecord>,
        next: &TopicRecord,
    ) -> Result<Outcome, StoreError> {
        let key = self.keys.encode(&Key::Topic(seen.value.id));
        let value = codec::value(next);
        let put = Transition {
            guards: vec![self.own_session(actor), Guard::unmoved(key.clone(), seen.revision)],
            writes: vec![Write::put(key.clone(), value.clone())],
            proof: Some((key, value)),
        };
        Ok(self.run(put).await?.into())
    }

    /// Writes the records of partitions `first..`, which nobody serves yet. `None` once all are in place; otherwise what
    /// stands in the way.
    async fn write_partitions(
        &self,
        actor: &Session,
        topic: &Versioned<TopicRecord>,
        first: u32,
        placements: &[Placement],
    ) -> Result<Option<Outcome>, StoreError> {
        let (_, listed) = self.list_records::<PartitionRecord>(&Space::PartitionsOf(topic.value.id)).await?;
        let mut found: BTreeMap<Key, Versioned<PartitionRecord>> = listed.into_iter().collect();
        let mut transitions = Vec::new();
        for (index, placement) in (first..).zip(placements) {
            let partition = PartitionId { topic: topic.value.id, index };
            let found = found.remove(&Key::Partition(partition));
            if !found.as_ref().is_some_and(|found| placement.made(&found.value)) {
                transitions.push(self.place(actor, topic, partition, found.as_ref(), placement));
            }
        }
        for answer in self.run_batched(transitions).await {
            match Outcome::from(answer?) {
                Outcome::Committed { .. } => {}
                obstacle => return Ok(Some(obstacle)),
            }
        }
        Ok(None)
    }

    fn place(
        &self,
        actor: &Session,
        topic: &Versioned<TopicRecord>,
        partition: PartitionId,
        found: Option<&Versioned<PartitionRecord>>,
        placement: &Placement,
    ) -> Transition {
        let key = self.keys.encode(&Key::Partition(partition));
        let topic_key = self.keys.encode(&Key::Topic(partition.topic));
        let record = placement.record(found.map_or(LeaderEpoch(0), |found| found.value.epoch));
        let value = codec::value(&record);
        let mut guards = vec![
            self.own_session(actor),
            Guard::unmoved(topic_key, topic.revision),
            Guard::unmoved(key.clone(), found.map_or(Revision::ABSENT, |found| found.revision)),
        ];
        let disk = |(broker, revision): &(BrokerId, Revision)| {
            Guard::unmoved(self.keys.encode(&Key::BrokerDisk(*broker)), *revision)
        };
        guards.extend(placement.absent.iter().map(disk));
        let mut writes = vec![Write::put(key.clone(), value.clone())];
        if let Some(leader) = &placement.leader {
            guards.push(self.live_session(leader));
            let leadership = self.keys.encode(&Key::Leadership(partition));
            writes.push(Write::put(leadership, codec::leadership(leader, record.epoch)));
        }
        Transition { guards, writes, proof: Some((key, value)) }
    }

    /// The session of a leader to be (rule E3).
    pub(super) fn live_session(&self, leader: &Leader) -> Guard {
        let key = self.keys.encode(&Key::BrokerSession(leader.rid.broker));
        Guard { compare: Compare::ModRevision { key, is: Revision(leader.inc.0) }, broken: Broken::Conflict }
    }
}

fn partition_count(placements: &[Placement]) -> Result<u32, StoreError> {
    match u32::try_from(placements.len()) {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(StoreError::Refused(format!("{} partitions: a topic has at least one", placements.len()))),
    }
}

fn check_config(config: &BTreeMap<String, String>) -> Result<(), StoreError> {
    TopicConfig::from_overrides(config).map(drop).map_err(|error| StoreError::Refused(error.to_string()))
}

fn require_active(topic: &TopicRecord) -> Result<(), StoreError> {
    match topic.state {
        TopicState::Active => Ok(()),
        TopicState::Creating | TopicState::Deleting => {
            Err(StoreError::Refused(format!("topic `{}` is not active", topic.name)))
        }
    }
}
