//! Where assigned partitions begin: their topics' names, what the group committed, or what its settings say.

use super::GroupsChannel;
use super::membership::{read, wire};
use super::rights::Identity;
use crate::admin::{OffsetSpec, find_offset};
use crate::client::{Client, answer};
use crate::consumer::OffsetReset;
use crate::coordinator::Coordinator;
use crate::error::Error;
use crate::record::CommitOffset;
use crate::record::TopicPartition;
use futures::stream::{self, StreamExt};
use millpond_log::{ErrorCode, LeaderEpoch, Offset, PartitionId, TopicId};
use millpond_proto::v1;
use std::collections::{BTreeMap, BTreeSet};
use tokio::time::Instant;

/// Partitions whose first offset is looked up at once.
const LOOKUPS_MAX: usize = 32;

/// Who asks where partitions begin.
#[derive(Clone, Debug)]
pub(super) struct Asker {
    pub(super) client: Client,
    pub(super) coordinator: Coordinator,
    pub(super) initial: OffsetReset,
    pub(super) isolation: v1::Isolation,
}

/// Where one partition begins.
#[derive(Clone, Debug)]
pub(super) struct Start {
    pub(super) id: PartitionId,
    pub(super) partition: TopicPartition,
    /// An error is for the application: the partition rests until it is sought.
    pub(super) at: Result<CommitOffset, Error>,
    pub(super) committed: Option<Offset>,
}

/// What was found, and why that is not all.
#[derive(Debug, Default)]
pub(super) struct Starts {
    pub(super) found: Vec<Start>,
    pub(super) trouble: Option<Error>,
}

impl Asker {
    /// Finds where `partitions` begin. What cannot be told yet is left out.
    pub(super) async fn starts(self, identity: Identity, partitions: BTreeSet<PartitionId>) -> Starts {
        self.find(&identity, partitions)
            .await
            .unwrap_or_else(|error| Starts { found: Vec::new(), trouble: Some(error) })
    }

    async fn find(&self, identity: &Identity, partitions: BTreeSet<PartitionId>) -> Result<Starts, Error> {
        let deadline = Instant::now() + self.client.config().api_timeout;
        let topics: BTreeSet<TopicId> = partitions.iter().map(|id| id.topic).collect();
        let names = self.client.topic_names(&topics, deadline).await?;
        let mut starts = Starts::default();
        let (known, unknown): (Vec<PartitionId>, Vec<PartitionId>) =
            partitions.into_iter().partition(|id| names.contains_key(&id.topic));
        if let Some(unknown) = unknown.first() {
            // The coordinator may have heard of a topic before the broker that was asked.
            let message = format!("the topic of {unknown} is not known yet");
            starts.trouble = Some(Error::new(ErrorCode::UnknownTopicId, message));
        }
        if known.is_empty() {
            return Ok(starts);
        }
        let mut fresh = Vec::new();
        for fetched in self.committed(identity, &known, deadline).await? {
            let id = read(fetched.partition.unwrap_or_default())?;
            let Some(name) = names.get(&id.topic) else { continue };
            let partition = TopicPartition::new(name.as_str(), id.index);
            match (ErrorCode::from_name(&fetched.error), fetched.offset) {
                (None, Some(offset)) => {
                    let at = CommitOffset {
                        offset: Offset(offset),
                        leader_epoch: fetched.leader_epoch.map(LeaderEpoch),
                        metadata: fetched.metadata,
                    };
                    starts.found.push(Start { id, partition, at: Ok(at), committed: Some(Offset(offset)) });
                }
                (None, None) if fetched.error.is_empty() => fresh.push((id, partition)),
                // A transaction that is open, say (KIP-447): where the group goes on is not known before it ends.
                (code, _) => {
                    let message = format!("the committed offset of {partition} cannot be told: {}", fetched.error);
                    starts.trouble = Some(Error::new(code.unwrap_or(ErrorCode::UnknownServerError), message));
                }
            }
        }
        let mut begun = stream::iter(fresh.into_iter().map(|(id, partition)| self.initial(id, partition)))
            .buffer_unordered(LOOKUPS_MAX);
        while let Some(begins) = begun.next().await {
            match begins {
                Ok(start) => starts.found.push(start),
                Err(error) => starts.trouble = Some(error),
            }
        }
        Ok(starts)
    }

    async fn committed(
        &self,
        identity: &Identity,
        partitions: &[PartitionId],
        deadline: Instant,
    ) -> Result<Vec<v1::FetchedOffset>, Error> {
        let request = v1::FetchOffsetsRequest {
            group: self.coordinator.name().to_owned(),
            partitions: partitions.iter().map(|id| wire(*id)).collect(),
            member: Some(identity.member.clone()),
            epoch: identity.epoch,
            require_stable: true,
        };
        let call = |mut groups: GroupsChannel| {
            let request = request.clone();
            async move { answer(groups.fetch_offsets(request).await) }
        };
        Ok(self.coordinator.call(deadline, call).await?.offsets)
    }

    /// Where a partition begins of which nothing was committed.
    async fn initial(&self, id: PartitionId, partition: TopicPartition) -> Result<Start, Error> {
        let spec = match self.initial {
            OffsetReset::Earliest => OffsetSpec::Earliest,
            OffsetReset::Latest => OffsetSpec::Latest,
            OffsetReset::Fail => {
                let group = self.coordinator.name();
                let message = format!("group `{group}` has committed no offset of {partition}; seek to begin");
                let error = Error::new(ErrorCode::OffsetNotAvailable, message).given_up();
                return Ok(Start { id, partition, at: Err(error), committed: None });
            }
        };
        let TopicPartition { topic, partition: index } = &partition;
        let found = find_offset(&self.client, topic, *index, spec, self.isolation).await?;
        let none = || Error::new(ErrorCode::OffsetNotAvailable, format!("{partition} has no {spec:?} offset"));
        let at = CommitOffset::at(found.ok_or_else(none)?.offset);
        Ok(Start { id, partition, at: Ok(at), committed: None })
    }
}

/// What a group has committed of partitions.
pub(super) async fn committed(
    client: &Client,
    coordinator: &Coordinator,
    partitions: impl IntoIterator<Item = TopicPartition>,
) -> Result<BTreeMap<TopicPartition, Offset>, Error> {
    let deadline = Instant::now() + client.config().api_timeout;
    let mut asked = BTreeMap::new();
    for partition in partitions {
        let topic = match client.topic(&partition.topic) {
            Some(known) => known.topic.id,
            None => client.refresh(&partition.topic, false, Instant::now(), deadline).await?.topic.id,
        };
        asked.insert(PartitionId { topic, index: partition.partition }, partition);
    }
    if asked.is_empty() {
        return Ok(BTreeMap::new());
    }
    let request = v1::FetchOffsetsRequest {
        group: coordinator.name().to_owned(),
        partitions: asked.keys().map(|id| wire(*id)).collect(),
        ..Default::default()
    };
    let call = |mut groups: GroupsChannel| {
        let request = request.clone();
        async move { answer(groups.fetch_offsets(request).await) }
    };
    let mut committed = BTreeMap::new();
    for fetched in coordinator.call(deadline, call).await?.offsets {
        let id = read(fetched.partition.unwrap_or_default())?;
        if let (Some(offset), Some(partition)) = (fetched.offset, asked.remove(&id)) {
            committed.insert(partition, Offset(offset));
        }
    }
    Ok(committed)
}
