//! What was redriven, remembered in the cluster: as the offsets of a group without members, with the pieces above each beside it.

use super::marks::Marks;
use crate::client::{Client, answer};
use crate::coordinator::Coordinator;
use crate::description::TopicDescription;
use crate::error::Error;
use millpond_log::{ErrorCode, Offset};
use millpond_proto::v1;
use millpond_proto::v1::groups_client::GroupsClient;
use std::collections::BTreeMap;
use tokio::time::Instant;
use tonic::transport::Channel;

/// The group whose offsets say what was redriven. Its offsets expire like any group's: seven days after the last redrive of a topic, by
/// default.
pub const REDRIVE_GROUP: &str = "millpond.dlq.redrive";

/// The epoch of a consumer that is no member.
const NO_MEMBER: i32 = -1;

/// The memory of one topic.
pub(super) struct Memory {
    client: Client,
    coordinator: Coordinator,
    topic: TopicDescription,
}

impl Memory {
    pub(super) fn new(client: &Client, topic: TopicDescription) -> Memory {
        Memory { client: client.clone(), coordinator: Coordinator::of_group(client, REDRIVE_GROUP), topic }
    }

    fn place(&self, partition: u32) -> v1::GroupPartition {
        v1::GroupPartition { topic_id: self.topic.id.to_string(), partition }
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.client.config().api_timeout
    }

    /// What was redriven, by partition. One that was never redriven from is left out.
    pub(super) async fn recall(&self) -> Result<BTreeMap<u32, Marks>, Error> {
        let partitions = self.topic.partitions.iter().map(|partition| self.place(partition.index)).collect();
        let request = v1::FetchOffsetsRequest {
            group: REDRIVE_GROUP.to_owned(),
            partitions,
            ..v1::FetchOffsetsRequest::default()
        };
        let call = |mut groups: GroupsClient<Channel>| {
            let request = request.clone();
            async move { answer(groups.fetch_offsets(request).await) }
        };
        let mut recalled = BTreeMap::new();
        for found in self.coordinator.call(self.deadline(), call).await?.offsets {
            refuse(&found.error, "what was redriven cannot be told")?;
            if let (Some(place), Some(offset)) = (found.partition, found.offset) {
                let marks = Marks::read(offset, &found.metadata).unwrap_or_else(|| Marks::below(offset));
                recalled.insert(place.partition, marks);
            }
        }
        Ok(recalled)
    }

    /// Remembers what was redriven of these partitions. Durable when this returns.
    pub(super) async fn remember<'a>(&self, marks: impl IntoIterator<Item = (u32, &'a Marks)>) -> Result<(), Error> {
        let to_commit = |(partition, marks): (u32, &Marks)| v1::OffsetToCommit {
            partition: Some(self.place(partition)),
            offset: Offset(marks.position()).0,
            leader_epoch: None,
            metadata: marks.text(),
        };
        let offsets: Vec<v1::OffsetToCommit> = marks.into_iter().map(to_commit).collect();
        if offsets.is_empty() {
            return Ok(());
        }
        let request = v1::CommitOffsetsRequest {
            group: REDRIVE_GROUP.to_owned(),
            member: String::new(),
            epoch: NO_MEMBER,
            instance: None,
            offsets,
            number: None,
        };
        let call = |mut groups: GroupsClient<Channel>| {
            let request = request.clone();
            async move { answer(groups.commit_offsets(request).await) }
        };
        for outcome in self.coordinator.call(self.deadline(), call).await?.outcomes {
            refuse(&outcome.error, "what was redriven cannot be remembered")?;
        }
        Ok(())
    }
}

/// The error that a partition's outcome names, if it names one.
fn refuse(name: &str, what: &str) -> Result<(), Error> {
    if name.is_empty() {
        return Ok(());
    }
    Err(Error::new(ErrorCode::from_name(name).unwrap_or(ErrorCode::UnknownServerError), format!("{what}: {name}")))
}
