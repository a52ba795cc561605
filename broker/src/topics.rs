//! Topics: creation, growth, deletion, and what is deleted or uploaded of them. Each asks the metadata store for one named transition and then serves what it says.

use crate::api::{ApiError, NewPartitions, NewTopic, TopicDescription, TopicMade, TopicRef};
use crate::broker::{Broker, stopping};
use crate::catalog::{PartitionHandle, Topic};
use crate::config::PARTITIONS_MAX;
use crate::loss;
use crate::placement::{Hosts, Wanted};
use crate::tier::TierRequest;
use millpond_core::records::{TopicRecord, TopicState};
use millpond_core::topic_config::{self, TopicConfig};
use millpond_core::topic_name::TopicName;
use millpond_log::{BrokerId, ErrorCode, Offset, PartitionId, TopicId};
use millpond_metadata::kv::Revision;
use millpond_metadata::store::{self, CreateOutcome, Outcome, Placement, Session, StoreError, Versioned};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Longest wait until this broker serves what the metadata store has taken in.
const SERVED_WAIT_MAX: Duration = Duration::from_secs(5);

impl Broker {
    /// All topics, by name.
    #[must_use]
    pub fn topics(&self) -> Vec<TopicDescription> {
        let sessions = self.inner().alive.sessions();
        self.inner().catalog.tables().topics().map(|topic| topic.describe(&sessions)).collect()
    }

    /// One topic.
    pub fn topic(&self, topic: &TopicRef) -> Result<TopicDescription, ApiError> {
        self.inner().catalog.topic(topic).map(|topic| topic.describe(&self.inner().alive.sessions()))
    }

    /// Whether a Metadata request may create topics (`auto.create.topics.enable`).
    #[must_use]
    pub fn auto_create(&self) -> bool {
        self.inner().config.auto_create_topics
    }

    /// Creates a topic; its partitions have a leader when this returns, or will have one: what is made is not taken back.
    pub async fn create_topic(&self, topic: NewTopic) -> Result<TopicMade, ApiError> {
        self.counted("CreateTopic", self.create(topic).await)
    }

    /// The topic whose name this one could be taken for where Kafka's tools write `.` as `_`: they refuse to have both.
    #[must_use]
    pub fn collision(&self, name: &str) -> Option<String> {
        let tables = self.inner().catalog.tables();
        let same = |other: &str| other.len() == name.len() && other.replace('.', "_") == name.replace('.', "_");
        tables.topics().map(|topic| topic.record.name.as_str()).find(|other| same(other)).map(str::to_owned)
    }

    async fn create(&self, topic: NewTopic) -> Result<TopicMade, ApiError> {
        let name: TopicName =
            TopicName::new(&topic.name).map_err(|error| ApiError::new(ErrorCode::InvalidTopic, error.to_string()))?;
        let config = parse_config(&topic.configs)?;
        let session = self.session()?;
        let mut hosts = self.hosts().await.map_err(|error| unavailable(&error))?;
        let assigned = assigned(&topic)?;
        let (partitions, replication_factor) = assigned.unwrap_or_else(|| {
            let partitions = topic.partitions.unwrap_or(self.inner().config.default_partitions);
            (partitions, topic.replication_factor.unwrap_or_else(|| hosts.replication_factor(&config)))
        });
        check_partitions(partitions)?;
        let wanted = Wanted { config: &config, replication_factor, partitions, existing: Vec::new() };
        let place = |hosts: &Hosts| match assigned {
            Some((_, factor)) => hosts.assign(&config, 0, factor as usize, &topic.assignments),
            None => hosts.place(&wanted, rand::random()),
        };
        let placements = match place(&hosts) {
            Ok(placements) => placements,
            Err(refusal) => return Err(self.judged(&session, refusal).await),
        };
        // One topic at a time, so that two requests for one name cannot both find it free here.
        let _one = self.inner().topic_changes.lock().await;
        if self.inner().catalog.topic(&TopicRef::Name(topic.name.clone())).is_ok() {
            return Err(exists(&topic.name));
        }
        let buried = self.inner().store.buried().await.map_err(|error| unavailable(&error))?;
        let id = TopicId(rand::random());
        let record = TopicRecord {
            name: name.clone(),
            id,
            state: TopicState::Active,
            partitions,
            replication_factor,
            config: topic.configs.clone(),
        };
        let made = |topic| TopicMade {
            topic,
            partitions,
            replication_factor,
            settings: topic_config::describe(&record.config, replication_factor),
        };
        if topic.validate_only {
            return Ok(made(self.unseen(record.clone(), config)));
        }
        let mut new =
            store::NewTopic { name, id, buried, replication_factor, config: topic.configs.clone(), placements };
        loop {
            match self.inner().store.create_topic(&session, &new).await.map_err(|error| unavailable(&error))? {
                CreateOutcome::Created { .. } => break,
                CreateOutcome::Exists { .. } => return Err(exists(&topic.name)),
                CreateOutcome::Fenced => return Err(stopping()),
                // Rule K5: the same again.
                CreateOutcome::Unknown => {}
                // A broker that was to lead is gone, perhaps; or this took so long that the controller took it back.
                CreateOutcome::Conflict => {
                    if let Some(buried) = self.voided(&new).await.map_err(|error| unavailable(&error))? {
                        (new.id, new.buried) = (TopicId(rand::random()), buried);
                    }
                    hosts = self.hosts().await.map_err(|error| unavailable(&error))?;
                    new.placements = match place(&hosts) {
                        Ok(placements) => placements,
                        Err(refusal) => {
                            self.take_back(&session, new.id).await;
                            return Err(self.judged(&session, refusal).await);
                        }
                    };
                }
            }
        }
        self.await_topic(new.id, partitions).await;
        let served = self.inner().catalog.by_id(new.id);
        let served = served.map(|topic| topic.describe(&self.inner().alive.sessions()));
        // This broker may hear of it later than that; it is made all the same.
        Ok(made(served.unwrap_or_else(|| self.unseen(TopicRecord { id: new.id, ..record.clone() }, config))))
    }

    /// Whether a topic cannot be made under its id any more (rule K6), since it was deleted meanwhile, or since it may have been: what `buried`
    /// says now.
    async fn voided(&self, new: &store::NewTopic) -> Result<Option<Revision>, StoreError> {
        let store = &self.inner().store;
        let buried = store.buried().await?;
        let is_deleted = store.tombstone(new.id).await?.is_some();
        let may_be = buried != new.buried && store.topic(new.id).await?.is_none();
        Ok((is_deleted || may_be).then_some(buried))
    }

    /// Takes away the tombstones of deleted topics of which nobody has anything any more (rule K6).
    pub(crate) async fn bury(&self, session: &Session, topics: &[TopicId]) {
        match self.inner().store.bury(session, topics).await {
            Ok(burial) => {
                if !burial.gone.is_empty() {
                    tracing::info!(topics = burial.gone.len(), "deleted topics are forgotten");
                }
                if !burial.missing.is_empty() {
                    let missing: Vec<String> = burial.missing.iter().map(ToString::to_string).collect();
                    let missing = missing.join(", ");
                    tracing::info!(missing, "tombstones of deleted topics stay until nothing is left of them there");
                }
                if let Some(outcome) = burial.stopped {
                    tracing::debug!(?outcome, "tombstones stay until the next look");
                }
            }
            Err(error) => tracing::debug!(%error, "tombstones cannot be removed yet"),
        }
    }

    /// Why partitions found no place. A broker whose session, as it was before it looked, has ended does not say that there are too few brokers:
    /// others may be about to come back as well.
    async fn judged(&self, session: &Session, refusal: ApiError) -> ApiError {
        let of_place =
            matches!(refusal.code, ErrorCode::InvalidReplicationFactor | ErrorCode::InvalidReplicaAssignment);
        if !of_place {
            return refusal;
        }
        match self.inner().store.sessions().await {
            Ok(seen) if seen.get(&self.id()).is_some_and(|seen| seen.revision.0 == session.inc.0) => refusal,
            Ok(_) => ApiError::new(ErrorCode::NotController, "this broker's session has ended; retry"),
            Err(error) => unavailable(&error),
        }
    }

    /// A topic of which the metadata have shown nothing to this broker.
    fn unseen(&self, record: TopicRecord, config: TopicConfig) -> TopicDescription {
        let topic = Topic { record, revision: Revision::ABSENT, config, partitions: Vec::new() };
        topic.describe(&self.inner().alive.sessions())
    }

    /// Takes a topic back that somebody began to create, or goes on with its deletion; one that is served stays. If that fails, the
    /// controller does it: a creation was never acknowledged, so either end of it is true, but its name must not be taken for ever.
    pub(crate) async fn take_back(&self, session: &Session, id: TopicId) {
        let store = &self.inner().store;
        let taken_back = async {
            let Some(seen) = store.topic(id).await?.filter(|seen| seen.value.state != TopicState::Active) else {
                return Ok(None);
            };
            let outcome = store.delete_topic(session, &seen).await?;
            Ok(Some((seen.value, outcome)))
        };
        match taken_back.await {
            Ok(None) => {}
            Ok(Some((TopicRecord { name, state, .. }, outcome))) => {
                tracing::info!(%name, %id, ?state, ?outcome, "a topic that was not finished is taken back");
            }
            Err::<_, StoreError>(error) => {
                tracing::warn!(%error, %id, "a topic that is not finished cannot be taken back yet")
            }
        }
    }

    /// Waits until all partitions of a topic are served, as far as this broker sees; not for ever: what is not by then will be,
    /// and clients ask again.
    async fn await_topic(&self, id: TopicId, partitions: u32) {
        let me = self.id();
        let served = |handle: &PartitionHandle| match handle.placement.leader {
            Some(leader) => leader != me || handle.local.is_some(),
            None => false,
        };
        let wanted = |topic: Option<&Arc<Topic>>| {
            topic.is_some_and(|topic| {
                topic.partitions.len() >= partitions as usize && topic.partitions.iter().all(served)
            })
        };
        let led = async {
            self.inner().catalog.until(id, wanted).await;
            let Some(topic) = self.inner().catalog.by_id(id) else { return };
            let mine = topic.partitions.iter().filter(|handle| handle.placement.leader == Some(me));
            for local in mine.filter_map(|handle| handle.local.as_ref()) {
                // A view ends with its replica.
                let _ = local.view.clone().wait_for(|view| view.visible.leads).await;
            }
        };
        let _ = tokio::time::timeout(SERVED_WAIT_MAX, led).await;
    }

    /// Deletes a topic for good.
    pub async fn delete_topic(&self, topic: &TopicRef) -> Result<(), ApiError> {
        self.counted("DeleteTopic", self.delete(topic).await)
    }

    async fn delete(&self, topic: &TopicRef) -> Result<(), ApiError> {
        let one = self.inner().topic_changes.lock().await;
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
        // Other changes do not wait until this one is heard of here.
        drop(one);
        let gone = self.inner().catalog.until(topic.record.id, |topic| topic.is_none());
        let _ = tokio::time::timeout(SERVED_WAIT_MAX, gone).await;
        Ok(())
    }

    /// Grows a topic.
    ///
    /// # Errors
    /// `INVALID_PARTITIONS`: it has as many partitions already, or may not have so many. `INVALID_REPLICA_ASSIGNMENT`: replicas were
    /// chosen by hand, for another number of partitions, or where none can be.
    pub async fn create_partitions(&self, topic: &TopicRef, wanted: NewPartitions) -> Result<(), ApiError> {
        self.counted("CreatePartitions", self.grow(topic, wanted).await)
    }

    async fn grow(&self, topic: &TopicRef, wanted: NewPartitions) -> Result<(), ApiError> {
        let NewPartitions { total, assignments, validate_only } = wanted;
        let _one = self.inner().topic_changes.lock().await;
        let topic = self.inner().catalog.topic(topic)?;
        if total <= topic.record.partitions {
            let message =
                format!("topic `{}` has {} partitions; it can only grow", topic.record.name, topic.record.partitions);
            return Err(ApiError::new(ErrorCode::InvalidPartitions, message));
        }
        check_partitions(total)?;
        let session = self.session()?;
        if validate_only {
            let hosts = self.hosts().await.map_err(|error| unavailable(&error))?;
            return match added(&hosts, &topic, total - topic.record.partitions, &assignments) {
                Ok(_) => Ok(()),
                Err(refusal) => Err(self.judged(&session, refusal).await),
            };
        }
        loop {
            let seen = self.read_topic(topic.record.id).await?;
            // Grown by an earlier try whose answer was lost, or through another broker.
            let Some(more) = total.checked_sub(seen.value.partitions).filter(|more| *more > 0) else { break };
            let hosts = self.hosts().await.map_err(|error| unavailable(&error))?;
            let added = match added(&hosts, &topic, more, &assignments) {
                Ok(added) => added,
                Err(refusal) => return Err(self.judged(&session, refusal).await),
            };
            let added = self.inner().store.add_partitions(&session, &seen, &added).await;
            match added.map_err(|error| unavailable(&error))? {
                Outcome::Committed { .. } => break,
                Outcome::Fenced => return Err(stopping()),
                Outcome::Conflict | Outcome::Unknown => {}
            }
        }
        self.await_topic(topic.record.id, total).await;
        Ok(())
    }

    /// Moves the log start offset up to `before` (`None`: to the high watermark); returns the new one.
    ///
    /// # Errors
    /// `OFFSET_OUT_OF_RANGE`: it is above the high watermark. `POLICY_VIOLATION`: the topic is only compacted.
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
        let policy = topic.config.cleanup_policy;
        if policy.compact && !policy.delete {
            let message = "the topic is only compacted; records are deleted where `cleanup.policy` has `delete`";
            return Err(ApiError::new(ErrorCode::PolicyViolation, message));
        }
        let (done, answer) = oneshot::channel();
        self.inner().tier.send(TierRequest::DeleteRecords { partition: handle.id, before, done });
        answer.await.map_err(|_| stopping())?
    }

    /// Uploads what is committed of every partition of the topic, now.
    pub async fn flush_topic(&self, topic: &TopicRef) -> Result<(), ApiError> {
        let leads = |handle: &&PartitionHandle| handle.local().is_ok_and(|local| local.view.borrow().visible.leads);
        let flushed = match self.inner().catalog.topic(topic) {
            Ok(topic) => self.flush(topic.partitions.iter().filter(leads).map(|handle| handle.id).collect()).await,
            Err(error) => Err(error),
        };
        self.counted("FlushTopic", flushed)
    }

    /// Uploads what is committed of one partition; returns when that is done.
    ///
    /// # Errors
    /// `NOT_LEADER_OR_FOLLOWER`: it is not led here, or no longer. Others as `flush_topic`.
    pub async fn flush_partition(&self, topic: &TopicRef, index: u32) -> Result<(), ApiError> {
        let flushed = match self.inner().catalog.partition(topic, index) {
            Ok((_, handle)) => self.flush(vec![handle.id]).await,
            Err(error) => Err(error),
        };
        self.counted("FlushTopic", flushed)
    }

    async fn flush(&self, partitions: Vec<PartitionId>) -> Result<(), ApiError> {
        let (done, answer) = oneshot::channel();
        self.inner().tier.send(TierRequest::Flush { partitions, done });
        answer.await.map_err(|_| stopping())?
    }

    /// What the metadata store has of a topic.
    pub(crate) async fn read_topic(&self, id: TopicId) -> Result<Versioned<TopicRecord>, ApiError> {
        let read = self.inner().store.topic(id).await.map_err(|error| unavailable(&error))?;
        read.ok_or_else(|| ApiError::new(ErrorCode::UnknownTopicOrPartition, "the topic is being deleted"))
    }
}

fn parse_config(overrides: &BTreeMap<String, String>) -> Result<TopicConfig, ApiError> {
    TopicConfig::from_overrides(overrides).map_err(|error| bad_config(&error))
}

pub(crate) fn bad_config(error: &topic_config::ConfigError) -> ApiError {
    ApiError::new(ErrorCode::InvalidConfig, error.to_string())
}

/// Places partitions that a topic is to get.
fn added(hosts: &Hosts, topic: &Topic, more: u32, assignments: &[Vec<BrokerId>]) -> Result<Vec<Placement>, ApiError> {
    let replication_factor = topic.record.replication_factor;
    if assignments.is_empty() {
        let existing = topic.partitions.iter().map(|handle| handle.placement.replicas.clone()).collect();
        let wanted = Wanted { config: &topic.config, replication_factor, partitions: more, existing };
        return hosts.place(&wanted, rand::random());
    }
    if assignments.len() != more as usize {
        let message = format!("{more} partitions are to be added, and {} have replicas assigned", assignments.len());
        return Err(ApiError::new(ErrorCode::InvalidReplicaAssignment, message));
    }
    hosts.assign(&topic.config, topic.record.partitions, replication_factor as usize, assignments)
}

/// Partitions and replicas of a topic whose replicas were chosen by hand.
fn assigned(topic: &NewTopic) -> Result<Option<(u32, u32)>, ApiError> {
    let Some(first) = topic.assignments.first() else { return Ok(None) };
    if topic.partitions.is_some() || topic.replication_factor.is_some() {
        let message =
            "replicas were assigned, so neither a number of partitions nor a replication factor goes with them";
        return Err(ApiError::new(ErrorCode::InvalidRequest, message));
    }
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    Ok(Some((count(topic.assignments.len()), count(first.len()))))
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
