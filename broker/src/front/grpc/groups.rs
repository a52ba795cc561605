//! The service `millpond.v1.Groups`: each call is one request to the coordinator of a group.

use super::convert;
use super::status::{malformed, status};
use crate::Broker;
use crate::api::ApiError;
use crate::coordinators::Here;
use crate::lag::PartitionLag;
use millpond_core::coordinators::SHARDS;
use millpond_core::groups::{self, Answer, Members, Request as Ask};
use millpond_core::records::groups::{ClassicMemberRecord, Client, MemberRecord};
use millpond_log::{ErrorCode, LeaderEpoch, Offset, PartitionId};
use millpond_proto::v1;
use std::collections::BTreeSet;
use std::sync::Arc;
use tonic::{Request, Response, Status};

/// The service.
pub(super) struct GroupsService {
    broker: Broker,
}

impl GroupsService {
    pub(super) fn new(broker: Broker) -> GroupsService {
        GroupsService { broker }
    }

    async fn ask<T>(
        &self,
        api: &'static str,
        group: &str,
        ask: Ask,
        read: impl FnOnce(Answer) -> Option<Result<T, ErrorCode>>,
    ) -> Result<T, Status> {
        let answer = self.broker.counted(api, self.broker.ask_group(group, ask).await);
        let answer = read(answer.map_err(|error| status(&error))?).expect("each request has an answer of its name");
        let refused = |code| ApiError::new(code, format!("the coordinator of group `{group}` refused"));
        self.broker.counted(api, answer.map_err(refused)).map_err(|error| status(&error))
    }
}

#[tonic::async_trait]
impl v1::groups_server::Groups for GroupsService {
    async fn find_coordinator(
        &self,
        request: Request<v1::FindCoordinatorRequest>,
    ) -> Result<Response<v1::FindCoordinatorResponse>, Status> {
        let found = self.broker.group_coordinator(&request.into_inner().group);
        let found = self.broker.counted("FindCoordinator", found).map_err(|error| status(&error))?;
        let (id, epoch, grpc) = (found.broker.id.0, found.epoch.0, found.broker.grpc);
        Ok(Response::new(v1::FindCoordinatorResponse { id, epoch, grpc }))
    }

    async fn commit_offsets(
        &self,
        request: Request<v1::CommitOffsetsRequest>,
    ) -> Result<Response<v1::CommitOffsetsResponse>, Status> {
        let commit = commit(request.into_inner()).map_err(|error| status(&error))?;
        let partitions = partitions_committed(&commit);
        let group = commit.group.to_string();
        let read = |answer| match answer {
            Answer::Commit(outcomes) => Some(outcomes),
            _ => None,
        };
        let outcomes = self.ask("CommitOffsets", &group, Ask::Commit(commit), read).await?;
        Ok(Response::new(v1::CommitOffsetsResponse { outcomes: outcomes_of(&partitions, outcomes) }))
    }

    async fn fetch_offsets(
        &self,
        request: Request<v1::FetchOffsetsRequest>,
    ) -> Result<Response<v1::FetchOffsetsResponse>, Status> {
        let v1::FetchOffsetsRequest { group, partitions, member, epoch, require_stable } = request.into_inner();
        let partitions = partitions_of(partitions).map_err(|error| status(&error))?;
        let fetch = groups::Fetch {
            group: group.as_str().into(),
            member: member.map(|member| (member.as_str().into(), epoch)),
            partitions: (!partitions.is_empty()).then_some(partitions),
            require_stable,
        };
        let read = |answer| match answer {
            Answer::Fetch(fetched) => Some(fetched),
            _ => None,
        };
        let fetched = self.ask("FetchOffsets", &group, Ask::Fetch(fetch), read).await?;
        Ok(Response::new(v1::FetchOffsetsResponse { offsets: fetched.into_iter().map(fetched_offset).collect() }))
    }

    async fn delete_offsets(
        &self,
        request: Request<v1::DeleteOffsetsRequest>,
    ) -> Result<Response<v1::DeleteOffsetsResponse>, Status> {
        let v1::DeleteOffsetsRequest { group, partitions } = request.into_inner();
        let partitions = partitions_of(partitions).map_err(|error| status(&error))?;
        let ask = Ask::DeleteOffsets { group: group.as_str().into(), partitions: partitions.clone() };
        let read = |answer| match answer {
            Answer::DeleteOffsets(outcomes) => Some(outcomes),
            _ => None,
        };
        let outcomes = self.ask("DeleteOffsets", &group, ask, read).await?;
        Ok(Response::new(v1::DeleteOffsetsResponse { outcomes: outcomes_of(&partitions, outcomes) }))
    }

    async fn heartbeat(
        &self,
        request: Request<v1::HeartbeatRequest>,
    ) -> Result<Response<v1::HeartbeatResponse>, Status> {
        let host = request.remote_addr().map_or_else(String::new, |address| address.ip().to_string());
        let request = request.into_inner();
        let group = request.group.clone();
        let heartbeat = heartbeat(request, host).map_err(|error| status(&error))?;
        let read = |answer| match answer {
            Answer::Heartbeat(beat) => Some(beat),
            _ => None,
        };
        let beat = self.ask("Heartbeat", &group, Ask::Heartbeat(heartbeat), read).await?;
        let owned = |partitions: BTreeSet<PartitionId>| v1::OwnedPartitions {
            partitions: partitions.into_iter().map(partition).collect(),
        };
        Ok(Response::new(v1::HeartbeatResponse {
            member: beat.member.to_string(),
            epoch: beat.epoch,
            heartbeat_interval_ms: beat.heartbeat_interval_ms,
            session_timeout_ms: beat.session_timeout_ms,
            assignment: beat.assignment.map(owned),
        }))
    }

    async fn list_groups(
        &self,
        _request: Request<v1::ListGroupsRequest>,
    ) -> Result<Response<v1::ListGroupsResponse>, Status> {
        let groups = self.broker.list_groups_here().await;
        let Here { shards, found } = self.broker.counted("ListGroups", groups).map_err(|error| status(&error))?;
        let groups = found.iter().map(listed).collect();
        Ok(Response::new(v1::ListGroupsResponse { groups, shards, shards_total: SHARDS }))
    }

    async fn describe_group(
        &self,
        request: Request<v1::DescribeGroupRequest>,
    ) -> Result<Response<v1::DescribeGroupResponse>, Status> {
        let group = request.into_inner().group;
        let read = |answer| match answer {
            Answer::Describe(description) => Some(description),
            _ => None,
        };
        let described = self.ask("DescribeGroup", &group, Ask::Describe(group.as_str().into()), read).await?;
        let (assignor, members) = members(described.members, described.epoch);
        let (group, epoch) = (Some(listed(&described.listed)), described.epoch);
        Ok(Response::new(v1::DescribeGroupResponse { group, epoch, assignor, members }))
    }

    async fn lag(&self, request: Request<v1::LagRequest>) -> Result<Response<v1::LagResponse>, Status> {
        let v1::LagRequest { group, isolation } = request.into_inner();
        let isolation = convert::isolation(isolation).map_err(|error| status(&error))?;
        let lags = self.broker.counted("Lag", self.broker.group_lag(&group, isolation).await);
        let lags = lags.map_err(|error| status(&error))?;
        Ok(Response::new(v1::LagResponse { partitions: lags.into_iter().map(partition_lag).collect() }))
    }

    async fn delete_group(
        &self,
        request: Request<v1::DeleteGroupRequest>,
    ) -> Result<Response<v1::DeleteGroupResponse>, Status> {
        let group = request.into_inner().group;
        let read = |answer| match answer {
            Answer::Delete(deleted) => Some(deleted),
            _ => None,
        };
        self.ask("DeleteGroup", &group, Ask::Delete(group.as_str().into()), read).await?;
        Ok(Response::new(v1::DeleteGroupResponse {}))
    }
}

/// The commit that a client asks for.
pub(super) fn commit(request: v1::CommitOffsetsRequest) -> Result<groups::Commit, ApiError> {
    let v1::CommitOffsetsRequest { group, member, epoch, instance, offsets, number } = request;
    let offsets = offsets.into_iter().map(offset_to_commit).collect::<Result<Vec<_>, _>>()?;
    let (group, member) = (group.as_str().into(), member.as_str().into());
    Ok(groups::Commit { group, member, instance, epoch, retention_ms: None, number, offsets })
}

/// Whose offsets it commits, in order.
pub(super) fn partitions_committed(commit: &groups::Commit) -> Vec<PartitionId> {
    commit.offsets.iter().map(|(partition, _)| *partition).collect()
}

fn partition_id(partition: v1::GroupPartition) -> Result<PartitionId, ApiError> {
    let v1::GroupPartition { topic_id, partition: index } = partition;
    let topic = topic_id.parse().map_err(|error| malformed(format!("`topic_id` is `{topic_id}`: {error}")))?;
    Ok(PartitionId { topic, index })
}

fn partitions_of(partitions: Vec<v1::GroupPartition>) -> Result<Vec<PartitionId>, ApiError> {
    partitions.into_iter().map(partition_id).collect()
}

pub(super) fn partition(id: PartitionId) -> v1::GroupPartition {
    v1::GroupPartition { topic_id: id.topic.to_string(), partition: id.index }
}

fn offset_to_commit(offset: v1::OffsetToCommit) -> Result<(PartitionId, groups::CommitOffset), ApiError> {
    let v1::OffsetToCommit { partition, offset, leader_epoch, metadata } = offset;
    let id = partition_id(partition.ok_or_else(|| malformed("`partition` is missing"))?)?;
    let leader_epoch = leader_epoch.map(LeaderEpoch);
    Ok((id, groups::CommitOffset { offset: Offset(offset), leader_epoch, metadata }))
}

pub(super) fn outcomes_of(
    partitions: &[PartitionId],
    outcomes: Vec<Result<(), ErrorCode>>,
) -> Vec<v1::PartitionOutcome> {
    let outcome = |(id, outcome): (&PartitionId, Result<(), ErrorCode>)| v1::PartitionOutcome {
        partition: Some(partition(*id)),
        error: outcome.err().map_or_else(String::new, |code| code.name().to_owned()),
    };
    partitions.iter().zip(outcomes).map(outcome).collect()
}

fn fetched_offset((id, fetched): groups::Fetched) -> v1::FetchedOffset {
    let place = Some(partition(id));
    match fetched {
        Ok(None) => v1::FetchedOffset { partition: place, ..Default::default() },
        Ok(Some(committed)) => v1::FetchedOffset {
            partition: place,
            offset: Some(committed.offset.0),
            leader_epoch: committed.leader_epoch.map(|epoch| epoch.0),
            metadata: committed.metadata,
            committed_at_ms: committed.committed_at_ms,
            error: String::new(),
        },
        Err(code) => v1::FetchedOffset { partition: place, error: code.name().to_owned(), ..Default::default() },
    }
}

fn partition_lag(lag: PartitionLag) -> v1::PartitionLag {
    let PartitionLag { partition: id, topic, member, offset, log_start, end, lag } = lag;
    v1::PartitionLag {
        partition: Some(partition(id)),
        topic,
        offset: offset.map(|offset| offset.0),
        log_start: log_start.map(|offset| offset.0),
        end: end.map(|offset| offset.0),
        lag: lag.offsets,
        waited_ms: lag.waited_ms,
        member: member.map(|member| member.to_string()),
    }
}

fn heartbeat(request: v1::HeartbeatRequest, host: String) -> Result<groups::Heartbeat, ApiError> {
    let owned = request.owned.map(|owned| partitions_of(owned.partitions)).transpose()?;
    Ok(groups::Heartbeat {
        group: request.group.as_str().into(),
        member: request.member.as_str().into(),
        epoch: request.epoch,
        instance: request.instance,
        rack: request.rack,
        client: Client { id: request.client_id, host },
        rebalance_timeout_ms: request.rebalance_timeout_ms,
        topics: request.topics.map(|topics| topics.names.into_iter().collect()),
        regex: request.regex,
        assignor: request.assignor,
        owned: owned.map(BTreeSet::from_iter),
    })
}

fn listed(listed: &groups::Listed) -> v1::ListedGroup {
    v1::ListedGroup {
        group: listed.group.to_string(),
        state: format!("{:?}", listed.state),
        consumer: listed.consumer,
        protocol_type: listed.protocol_type.clone(),
    }
}

fn members(members: Members, generation: i32) -> (String, Vec<v1::GroupMember>) {
    match members {
        Members::Consumer { assignor, members, .. } => {
            let member = |(id, (record, _)): (Arc<str>, (MemberRecord, BTreeSet<PartitionId>))| v1::GroupMember {
                member: id.to_string(),
                instance: record.instance,
                client_id: record.client.id,
                host: record.client.host,
                epoch: record.epoch,
                assigned: record.assigned.into_keys().map(partition).collect(),
            };
            (assignor.to_owned(), members.into_iter().map(member).collect())
        }
        Members::Classic { protocol, members } => {
            let member = |(id, record): (Arc<str>, ClassicMemberRecord)| v1::GroupMember {
                member: id.to_string(),
                instance: record.instance,
                client_id: record.client.id,
                host: record.client.host,
                epoch: generation,
                assigned: Vec::new(),
            };
            (protocol.unwrap_or_default(), members.into_iter().map(member).collect())
        }
    }
}
