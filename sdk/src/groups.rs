//! Consumer groups and their offsets, for operators and tools.

use crate::IsolationLevel;
use crate::admin::Admin;
use crate::client::answer;
use crate::coordinator::{Coordinator, Service};
use crate::error::Error;
use crate::shards::{OfShards, of_every_shard};
use millpond_log::{ErrorCode, Offset, TopicId};
use millpond_proto::v1;
use millpond_proto::v1::groups_client::GroupsClient;
use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;
use tonic::transport::Channel;

/// A group, in brief.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedGroup {
    /// Its name.
    pub group: String,
    /// Kafka's name: `Empty`, `Assigning`, `Reconciling`, `Stable`, `PreparingRebalance` or `CompletingRebalance`.
    pub state: String,
    /// What its members speak.
    pub kind: GroupKind,
}

/// What the members of a group speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupKind {
    /// Its coordinator assigns (KIP-848).
    Consumer,
    /// Its members assign.
    Classic,
    /// There never was a member: only offsets are there.
    Simple,
}

/// A group with its members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupDescription {
    /// What a list says of it.
    pub listed: ListedGroup,
    /// Group epoch, or generation.
    pub epoch: i32,
    /// Who assigns: an assignor's name; empty for none.
    pub assignor: String,
    /// In order of id.
    pub members: Vec<GroupMember>,
}

/// A member of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMember {
    /// Its id.
    pub member: String,
    /// Its static identity, if it has one.
    pub instance: Option<String>,
    /// Who it says it is.
    pub client_id: String,
    /// Where it called from.
    pub host: String,
    /// The epoch it has reached, or the generation.
    pub epoch: i32,
    /// What it owns. Empty in a classic group, whose members assign themselves in their own words.
    pub assigned: Vec<(TopicId, u32)>,
}

/// How far a group is in one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionLag {
    /// The topic's id.
    pub topic_id: TopicId,
    /// Its name; `None` if it was deleted.
    pub topic: Option<String>,
    /// The partition.
    pub partition: u32,
    /// The next offset to read, as it was committed; `None` if nothing was.
    pub offset: Option<Offset>,
    /// First offset that exists; `None` if no leader said so in time.
    pub log_start: Option<Offset>,
    /// End of what may be read; `None` if no leader said so in time.
    pub end: Option<Offset>,
    /// Offsets from the committed one to the end.
    pub lag: Option<u64>,
    /// For how long the first of them has waited, at least; zero if there is none. `None` if that is not known.
    pub waited: Option<Duration>,
    /// Id of the member that owns it.
    pub member: Option<String>,
}

/// A partition, and the offset to commit.
pub type OffsetToCommit = (TopicId, u32, Offset);

impl Admin {
    /// The groups of all coordinators, in order of name.
    ///
    /// # Errors
    /// If some coordinator does not answer for long: the list would not be whole.
    pub async fn list_groups(&self) -> Result<Vec<ListedGroup>, Error> {
        let call = |channel| async move {
            let groups = GroupsClient::over(channel);
            let told = answer({ groups }.list_groups(v1::ListGroupsRequest {}).await)?;
            let v1::ListGroupsResponse { groups, shards, shards_total } = told;
            Ok(OfShards { found: groups, shards, total: shards_total })
        };
        let listed = of_every_shard(self, call).await?;
        let named = |listed: v1::ListedGroup| (listed.group.clone(), ListedGroup::from(listed));
        Ok(listed.into_iter().map(named).collect::<BTreeMap<_, _>>().into_values().collect())
    }

    /// Describes a group.
    ///
    /// # Errors
    /// `GroupIdNotFound`.
    pub async fn describe_group(&self, group: &str) -> Result<GroupDescription, Error> {
        let call = |mut groups: GroupsClient<_>| async move {
            let request = v1::DescribeGroupRequest { group: group.to_owned() };
            answer(groups.describe_group(request).await)
        };
        let described = self.at_coordinator(group, call).await?;
        GroupDescription::try_from(described)
    }

    /// How far a group lags, by partition: those that it has committed offsets of, and those that a member owns. The offsets are of one
    /// moment, and the ends were read after them.
    ///
    /// # Errors
    /// `GroupIdNotFound`.
    pub async fn group_lag(&self, group: &str, isolation: IsolationLevel) -> Result<Vec<PartitionLag>, Error> {
        let isolation = isolation.on_the_wire().into();
        let call = |mut groups: GroupsClient<_>| async move {
            answer(groups.lag(v1::LagRequest { group: group.to_owned(), isolation }).await)
        };
        let told = self.at_coordinator(group, call).await?;
        told.partitions.into_iter().map(PartitionLag::try_from).collect()
    }

    /// Commits offsets of a group that has no members, which then begins there.
    ///
    /// # Errors
    /// `UnknownMemberId`: it has members. The first error of a partition, if there is one: others may have been committed.
    pub async fn commit_group_offsets(&self, group: &str, offsets: &[OffsetToCommit]) -> Result<(), Error> {
        let offset = |(topic, partition, offset): &OffsetToCommit| v1::OffsetToCommit {
            partition: Some(v1::GroupPartition { topic_id: topic.to_string(), partition: *partition }),
            offset: offset.0,
            leader_epoch: None,
            metadata: String::new(),
        };
        let request = v1::CommitOffsetsRequest {
            group: group.to_owned(),
            epoch: -1,
            offsets: offsets.iter().map(offset).collect(),
            ..Default::default()
        };
        let call = |mut groups: GroupsClient<_>| {
            let request = request.clone();
            async move { answer(groups.commit_offsets(request).await) }
        };
        refused(self.at_coordinator(group, call).await?.outcomes)
    }

    /// Forgets what a group has committed of these partitions: it begins there as one that has never read them.
    ///
    /// # Errors
    /// `GroupIdNotFound`. The first error of a partition, if there is one, though others may have been forgotten: `GroupSubscribedToTopic`,
    /// a member reads its topic.
    pub async fn delete_group_offsets(&self, group: &str, partitions: &[(TopicId, u32)]) -> Result<(), Error> {
        let place = |(topic, partition): &(TopicId, u32)| v1::GroupPartition {
            topic_id: topic.to_string(),
            partition: *partition,
        };
        let request =
            v1::DeleteOffsetsRequest { group: group.to_owned(), partitions: partitions.iter().map(place).collect() };
        let call = |mut groups: GroupsClient<_>| {
            let request = request.clone();
            async move { answer(groups.delete_offsets(request).await) }
        };
        refused(self.at_coordinator(group, call).await?.outcomes)
    }

    /// Deletes a group that has no members, with its offsets.
    ///
    /// # Errors
    /// `GroupIdNotFound`, `NonEmptyGroup`.
    pub async fn delete_group(&self, group: &str) -> Result<(), Error> {
        let call = |mut groups: GroupsClient<_>| async move {
            answer(groups.delete_group(v1::DeleteGroupRequest { group: group.to_owned() }).await)
        };
        self.at_coordinator(group, call).await.map(|_| ())
    }

    /// Calls the coordinator of a group. What is called may take effect twice.
    async fn at_coordinator<T, F>(&self, group: &str, call: impl Fn(GroupsClient<Channel>) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        Coordinator::of_group(&self.client, group).ask(call).await
    }
}

/// The first refusal among the outcomes.
fn refused(outcomes: Vec<v1::PartitionOutcome>) -> Result<(), Error> {
    let refused = outcomes.into_iter().find(|outcome| !outcome.error.is_empty());
    refused.map_or(Ok(()), |outcome| {
        let code = ErrorCode::from_name(&outcome.error).unwrap_or(ErrorCode::UnknownServerError);
        let place = outcome.partition.unwrap_or_default();
        let message = format!("partition {} of topic {}: {}", place.partition, place.topic_id, outcome.error);
        Err(Error::new(code, message))
    })
}

impl From<v1::ListedGroup> for ListedGroup {
    fn from(listed: v1::ListedGroup) -> ListedGroup {
        let v1::ListedGroup { group, state, consumer, protocol_type } = listed;
        let kind = match (consumer, protocol_type.is_empty()) {
            (true, _) => GroupKind::Consumer,
            (false, false) => GroupKind::Classic,
            (false, true) => GroupKind::Simple,
        };
        ListedGroup { group, state, kind }
    }
}

impl TryFrom<v1::DescribeGroupResponse> for GroupDescription {
    type Error = Error;

    fn try_from(told: v1::DescribeGroupResponse) -> Result<GroupDescription, Error> {
        let v1::DescribeGroupResponse { group, epoch, assignor, members } = told;
        let member = |member: v1::GroupMember| {
            let assigned = member.assigned.iter().map(|place| Ok((topic_id(&place.topic_id)?, place.partition)));
            Ok(GroupMember {
                assigned: assigned.collect::<Result<_, Error>>()?,
                member: member.member,
                instance: member.instance,
                client_id: member.client_id,
                host: member.host,
                epoch: member.epoch,
            })
        };
        let mut members = members.into_iter().map(member).collect::<Result<Vec<_>, Error>>()?;
        members.sort_by(|one, other| one.member.cmp(&other.member));
        Ok(GroupDescription { listed: group.unwrap_or_default().into(), epoch, assignor, members })
    }
}

impl TryFrom<v1::PartitionLag> for PartitionLag {
    type Error = Error;

    fn try_from(told: v1::PartitionLag) -> Result<PartitionLag, Error> {
        let place = told.partition.unwrap_or_default();
        Ok(PartitionLag {
            topic_id: topic_id(&place.topic_id)?,
            topic: told.topic,
            partition: place.partition,
            offset: told.offset.map(Offset),
            log_start: told.log_start.map(Offset),
            end: told.end.map(Offset),
            lag: told.lag,
            waited: told.waited_ms.map(Duration::from_millis),
            member: told.member,
        })
    }
}

fn topic_id(text: &str) -> Result<TopicId, Error> {
    text.parse().map_err(|_| Error::new(ErrorCode::UnknownServerError, format!("`{text}` is no topic id")))
}
