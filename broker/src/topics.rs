//! Topics: creation, growth, settings, deletion. Each asks the metadata store for one named transition and then serves what it says.

use crate::api::{ApiError, NewTopic, TopicDescription, TopicRef};
use crate::broker::{Broker, stopping};
use crate::catalog::{PartitionHandle, Topic};
use crate::loss;
use crate::partitions::shard::ShardMsg;
use crate::placement::Wanted;
use crate::tier::TierRequest;
use millpond_core::records::TopicRecord;
use millpond_core::replica::Input;
use millpond_core::topic_config::TopicConfig;
use millpond_core::topic_name::TopicName;
use millpond_log::{ErrorCode, Offset, TopicId};
use millpond_metadata::store::{self, CreateOutcome, Outcome, StoreError, Versioned};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Most partitions of one topic. Each costs some memory on its brokers; ten thousand is what a cluster is measured with.
const PARTITIONS_MAX: u32 = 10_000;

impl Broker {
    /// All topics, by name.
    #[must_use]
    pub fn topics(&self) -> Vec<TopicDescription> {
        self.inner().catalog.tables().topics().map(|topic| topic.describe()).collect()
    }

    /// One topic.
    pub fn topic(&self, topic: &TopicRef) -> Result<TopicDescription, ApiError> {
        self.inner().catalog.topic(topic).map(|topic| topic.describe())
    }

    /// Whether a Metadata request may create topics (`auto.create.topics.enable`).
    #[must_use]
    pub fn auto_create(&self) -> bool {
        self.inner().config.auto_create_topics
    }

    /// Creates a topic; its partitions have a leader when this returns.
    pub async fn create_topic(&self, topic: NewTopic) -> Result<TopicDescription, ApiError> {
        self.counted("CreateTopic", self.create(topic).await)
    }

    async fn create(&self, topic: NewTopic) -> Result<TopicDescription, ApiError> {
        let name: TopicName =
            TopicName::new(&topic.name).map_err(|error| ApiError::new(ErrorCode::InvalidTopic, error.to_string()))?;
        let config = parse_config(&topic.configs)?;
        let partitions = topic.partitions.unwrap_or(self.inner().config.default_partitions);
        check_partitions(partitions)?;
        let mut hosts = self.hosts().await.map_err(|error| unavailable(&error))?;
        let replication_factor = topic.replication_factor.unwrap_or_else(|| hosts.replication_factor());
        let wanted = Wanted { config: &config, replication_factor, partitions, existing: Vec::new() };
        let placements = hosts.place(&wanted, rand::random())?;
        // One topic at a time, so that two requests for one name cannot both find it free here.
        let _one = self.inner().topic_changes.lock().await;
        if self.inner().catalog.topic(&TopicRef::Name(topic.name.clone())).is_ok() {
            return Err(exists(&topic.name));
        }
        let session = self.session()?;
        let id = TopicId(rand::random());
        let record = TopicRecord {
            name: name.clone(),
            id,
            state: millpond_core::records::TopicState::Active,
            partitions,
            replication_factor,
            config: topic.configs.clone(),
        };
        if topic.validate_only {
            return Ok(Topic { record, config, partitions: Vec::new() }.describe());
        }
        let mut new = store::NewTopic { name, id, replication_factor, config: topic.configs, placements };
        loop {
            match self.inner().store.create_topic(&session, &new).await.map_err(|error| unavailable(&error))? {
                CreateOutcome::Created { .. } => break,
                CreateOutcome::Exists { .. } => return Err(exists(&topic.name)),
                CreateOutcome::Fenced => return Err(stopping()),
                // Rule K5: the same again.
                CreateOutcome::Unknown => {}
                // A broker that was to lead is gone, perhaps.
                CreateOutcome::Conflict => {
                    hosts = self.hosts().await.map_err(|error| unavailable(&error))?;
                    new.placements = hosts.place(&wanted, rand::random())?;
                }
            }
        }
        let topic = self.serve_topic(record).await?;
        Ok(topic.describe())
    }

    /// Deletes a topic for good.
    pub async fn delete_topic(&self, topic: &TopicRef) -> Result<(), ApiError> {
        self.counted("DeleteTopic", self.delete(topic).await)
    }

    async fn delete(&self, topic: &TopicRef) -> Result<(), ApiError> {
        let _one = self.inner().topic_changes.lock().await;
        let topic = self.inner().catalog.topic(topic)?;
        let session = self.session()?;
        loop {
            let seen = self.read_topic(topic.record.id).await?;
            match self.inner().store.delete_topic(&session, &seen).await.map_err(|error| unavailable(&error))? {
                Outcome::Committed { .. } => break,
                Outcome::Fenced => return Err(stopping()),
                Outcome::Conflict | Outcome::Unknown => {}
            }
        }
        self.inner().catalog.remove(topic.record.id);
        for handle in &topic.partitions {
            self.inner().tier.send(TierRequest::Leave { partition: handle.id });
            // The tombstone was seen as committed: the frames may go (rules K6, S14).
            let _ = handle.shard.send(ShardMsg::Drop { partition: handle.id });
        }
        self.forget_damage(topic.partitions.iter().filter(|handle| handle.loss.is_some()).map(|handle| handle.id))
            .await;
        Ok(())
    }

    /// Grows a topic to `total` partitions.
    pub async fn create_partitions(&self, topic: &TopicRef, total: u32, validate_only: bool) -> Result<(), ApiError> {
        self.counted("CreatePartitions", self.grow(topic, total, validate_only).await)
    }

    async fn grow(&self, topic: &TopicRef, total: u32, validate_only: bool) -> Result<(), ApiError> {
        let _one = self.inner().topic_changes.lock().await;
        let topic = self.inner().catalog.topic(topic)?;
        if total <= topic.record.partitions {
            let message =
                format!("topic `{}` has {} partitions; it can only grow", topic.record.name, topic.record.partitions);
            return Err(ApiError::new(ErrorCode::InvalidPartitions, message));
        }
        check_partitions(total)?;
        if validate_only {
            return Ok(());
        }
        let session = self.session()?;
        loop {
            let seen = self.read_topic(topic.record.id).await?;
            // Grown by an earlier try whose answer was lost, or through another broker.
            let Some(partitions) = total.checked_sub(seen.value.partitions).filter(|added| *added > 0) else { break };
            let wanted = Wanted {
                config: &topic.config,
                replication_factor: topic.record.replication_factor,
                partitions,
                existing: topic.partitions.iter().map(|handle| handle.placement.replicas.clone()).collect(),
            };
            let hosts = self.hosts().await.map_err(|error| unavailable(&error))?;
            let added = hosts.place(&wanted, rand::random())?;
            let added = self.inner().store.add_partitions(&session, &seen, &added).await;
            match added.map_err(|error| unavailable(&error))? {
                Outcome::Committed { .. } => break,
                Outcome::Fenced => return Err(stopping()),
                Outcome::Conflict | Outcome::Unknown => {}
            }
        }
        let record = TopicRecord { partitions: total, ..topic.record.clone() };
        self.serve_topic(record).await.map(drop)
    }

    /// Sets (`Some`) and unsets (`None`) settings of a topic, all or none.
    pub async fn alter_topic(
        &self,
        topic: &TopicRef,
        changes: BTreeMap<String, Option<String>>,
        validate_only: bool,
    ) -> Result<(), ApiError> {
        self.counted("AlterTopic", self.alter(topic, changes, validate_only).await)
    }

    async fn alter(
        &self,
        topic: &TopicRef,
        changes: BTreeMap<String, Option<String>>,
        validate_only: bool,
    ) -> Result<(), ApiError> {
        let _one = self.inner().topic_changes.lock().await;
        let topic = self.inner().catalog.topic(topic)?;
        let mut overrides = topic.record.config.clone();
        for (name, value) in changes {
            // A name that does not exist is refused also when it is only unset.
            millpond_core::topic_config::Setting::find(&name).map_err(|error| bad_config(&error))?;
            match value {
                Some(value) => overrides.insert(name, value),
                None => overrides.remove(&name),
            };
        }
        let config = parse_config(&overrides)?;
        if validate_only {
            return Ok(());
        }
        let session = self.session()?;
        loop {
            let seen = self.read_topic(topic.record.id).await?;
            let altered = self.inner().store.alter_topic_config(&session, &seen, &overrides).await;
            match altered.map_err(|error| unavailable(&error))? {
                Outcome::Committed { .. } => break,
                Outcome::Fenced => return Err(stopping()),
                Outcome::Conflict | Outcome::Unknown => {}
            }
        }
        for handle in &topic.partitions {
            let min_isr = Input::MinIsr(config.min_isr(topic.record.replication_factor));
            for input in [Input::TimestampType(config.timestamp_type), min_isr] {
                handle.shard.send(ShardMsg::Step { partition: handle.id, input }).map_err(|_| stopping())?;
            }
            self.inner().tier.send(TierRequest::Configure { partition: handle.id, config: Box::new(config.clone()) });
        }
        let record = TopicRecord { config: overrides, ..topic.record.clone() };
        self.inner().catalog.put(Topic { record, config, partitions: topic.partitions.clone() });
        Ok(())
    }

    /// Moves the log start offset up to `before` (`None`: to the high watermark); returns the new one.
    pub async fn delete_records(
        &self,
        topic: &TopicRef,
        partition: u32,
        before: Option<Offset>,
    ) -> Result<Offset, ApiError> {
        self.counted("DeleteRecords", self.move_log_start(topic, partition, before).await)
    }

    async fn move_log_start(
        &self,
        topic: &TopicRef,
        partition: u32,
        before: Option<Offset>,
    ) -> Result<Offset, ApiError> {
        let (topic, handle) = self.inner().catalog.partition(topic, partition)?;
        if let Some(refusal) = loss::refusal(&topic, &handle, ErrorCode::LeaderNotAvailable) {
            return Err(refusal);
        }
        let (done, answer) = oneshot::channel();
        self.inner().tier.send(TierRequest::DeleteRecords { partition: handle.id, before, done });
        answer.await.map_err(|_| stopping())?
    }

    /// Uploads what is committed of every partition of the topic, now.
    pub async fn flush_topic(&self, topic: &TopicRef) -> Result<(), ApiError> {
        self.counted("FlushTopic", self.flush(topic).await)
    }

    async fn flush(&self, topic: &TopicRef) -> Result<(), ApiError> {
        let topic = self.inner().catalog.topic(topic)?;
        let (done, answer) = oneshot::channel();
        let partitions = topic.partitions.iter().map(|handle| handle.id).collect();
        self.inner().tier.send(TierRequest::Flush { partitions, done });
        answer.await.map_err(|_| stopping())?
    }

    /// Opens what is new of a topic that the metadata store has as active, and puts it into the catalog.
    pub(crate) async fn serve_topic(&self, record: TopicRecord) -> Result<Arc<Topic>, ApiError> {
        let config = parse_config(&record.config)?;
        let known = self.inner().catalog.topic(&TopicRef::Id(record.id)).ok();
        let mut partitions: Vec<PartitionHandle> = known.map(|topic| topic.partitions.clone()).unwrap_or_default();
        for index in partitions.len() as u32..record.partitions {
            partitions.push(self.open_new(&record, &config, index).await?);
        }
        Ok(self.inner().catalog.put(Topic { record, config, partitions }))
    }

    async fn read_topic(&self, id: TopicId) -> Result<Versioned<TopicRecord>, ApiError> {
        let read = self.inner().store.topic(id).await.map_err(|error| unavailable(&error))?;
        read.ok_or_else(|| ApiError::new(ErrorCode::UnknownTopicOrPartition, "the topic is being deleted"))
    }
}

fn parse_config(overrides: &BTreeMap<String, String>) -> Result<TopicConfig, ApiError> {
    TopicConfig::from_overrides(overrides).map_err(|error| bad_config(&error))
}

fn bad_config(error: &millpond_core::topic_config::ConfigError) -> ApiError {
    ApiError::new(ErrorCode::InvalidConfig, error.to_string())
}

fn check_partitions(partitions: u32) -> Result<(), ApiError> {
    if (1..=PARTITIONS_MAX).contains(&partitions) {
        return Ok(());
    }
    Err(ApiError::new(
        ErrorCode::InvalidPartitions,
        format!("a topic has 1 to {PARTITIONS_MAX} partitions, not {partitions}"),
    ))
}

fn exists(name: &str) -> ApiError {
    ApiError::new(ErrorCode::TopicAlreadyExists, format!("a topic is named `{name}` already"))
}

pub(crate) fn unavailable(error: &StoreError) -> ApiError {
    match error {
        StoreError::Refused(reason) => ApiError::new(ErrorCode::InvalidRequest, reason.clone()),
        error => ApiError::new(
            ErrorCode::LeaderNotAvailable,
            format!("the metadata store cannot be used now: {error}; retry"),
        ),
    }
}
