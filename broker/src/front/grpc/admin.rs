//! The service `millpond.v1.Admin`: one method of `Broker` for each call.

use super::convert::{self, topic_ref};
use super::status::{malformed, status};
use crate::Broker;
use crate::api::{
    ApiError, GiveUp, GivenUp, MoveTo, NewPartitions, NewTopic, PartitionStatus, SettingsChange, TopicDescription,
    TopicRef,
};
use crate::refusals::stale;
use millpond_core::topic_config::Alteration;
use millpond_log::{BrokerId, ErrorCode, Offset, PartitionId};
use millpond_proto::v1;
use std::collections::BTreeMap;
use tonic::{Request, Response, Status};

/// The service.
pub(super) struct AdminService {
    broker: Broker,
}

impl AdminService {
    pub(super) fn new(broker: Broker) -> AdminService {
        AdminService { broker }
    }

    /// Rule B5: whoever asks how the cluster is hears it from another broker while this one knows only how it was, unless they allow that.
    /// Milliseconds since this one knew, then.
    fn stale_ms(&self, allowed: bool) -> Result<Option<u64>, Status> {
        match self.broker.session_handle().stale_for() {
            None => Ok(None),
            Some(time) if allowed => Ok(Some(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))),
            Some(_) => Err(status(&stale(ErrorCode::LeaderNotAvailable))),
        }
    }
}

/// What the service's methods return.
type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl v1::admin_server::Admin for AdminService {
    async fn create_topic(&self, request: Request<v1::CreateTopicRequest>) -> Answer<v1::CreateTopicResponse> {
        let v1::CreateTopicRequest { name, partitions, replication_factor, configs, validate_only } =
            request.into_inner();
        let assignments = Vec::new();
        let topic = NewTopic { name, partitions, replication_factor, assignments, configs, validate_only };
        let created = self.broker.create_topic(topic).await;
        answer(created.map(|made| v1::CreateTopicResponse { topic: Some(convert::topic(made.topic)) }))
    }

    async fn delete_topic(&self, request: Request<v1::DeleteTopicRequest>) -> Answer<v1::DeleteTopicResponse> {
        let topic = named(request.into_inner().topic)?;
        answer(self.broker.delete_topic(&topic).await.map(|()| v1::DeleteTopicResponse {}))
    }

    async fn describe_topic(&self, request: Request<v1::DescribeTopicRequest>) -> Answer<v1::DescribeTopicResponse> {
        let v1::DescribeTopicRequest { topic, allow_stale } = request.into_inner();
        let (topic, stale_ms) = (named(topic)?, self.stale_ms(allow_stale)?);
        let described = self.broker.topic(&topic);
        answer(described.map(|topic| v1::DescribeTopicResponse { topic: Some(convert::topic(topic)), stale_ms }))
    }

    async fn list_topics(&self, request: Request<v1::ListTopicsRequest>) -> Answer<v1::ListTopicsResponse> {
        let stale_ms = self.stale_ms(request.into_inner().allow_stale)?;
        let topics = self.broker.topics().into_iter().map(convert::topic).collect();
        Ok(Response::new(v1::ListTopicsResponse { topics, stale_ms }))
    }

    async fn alter_topic(&self, request: Request<v1::AlterTopicRequest>) -> Answer<v1::AlterTopicResponse> {
        let v1::AlterTopicRequest { topic, set, unset, validate_only } = request.into_inner();
        let topic = named(topic)?;
        let changes = changes(set, unset).map_err(|error| status(&error))?;
        let altered = self.broker.alter_topic(&topic, SettingsChange::Alter(changes), validate_only).await;
        answer(altered.map(|()| v1::AlterTopicResponse {}))
    }

    async fn create_partitions(
        &self,
        request: Request<v1::CreatePartitionsRequest>,
    ) -> Answer<v1::CreatePartitionsResponse> {
        let v1::CreatePartitionsRequest { topic, total, validate_only } = request.into_inner();
        let wanted = NewPartitions { total, assignments: Vec::new(), validate_only };
        let created = self.broker.create_partitions(&named(topic)?, wanted).await;
        answer(created.map(|()| v1::CreatePartitionsResponse {}))
    }

    async fn delete_records(&self, request: Request<v1::DeleteRecordsRequest>) -> Answer<v1::DeleteRecordsResponse> {
        let v1::DeleteRecordsRequest { topic, partition, before } = request.into_inner();
        let deleted = self.broker.delete_records(&named(topic)?, partition, before.map(Offset)).await;
        answer(deleted.map(|log_start| v1::DeleteRecordsResponse { log_start: log_start.0 }))
    }

    async fn flush_topic(&self, request: Request<v1::FlushTopicRequest>) -> Answer<v1::FlushTopicResponse> {
        let v1::FlushTopicRequest { topic, partition } = request.into_inner();
        let topic = named(topic)?;
        let flushed = match partition {
            Some(partition) => self.broker.flush_partition(&topic, partition).await,
            None => self.broker.flush_topic(&topic).await,
        };
        answer(flushed.map(|()| v1::FlushTopicResponse {}))
    }

    async fn describe_cluster(
        &self,
        request: Request<v1::DescribeClusterRequest>,
    ) -> Answer<v1::DescribeClusterResponse> {
        let stale_ms = self.stale_ms(request.into_inner().allow_stale)?;
        let cluster = self.broker.describe_cluster();
        Ok(Response::new(v1::DescribeClusterResponse {
            id: cluster.id,
            controller: cluster.controller.map(|broker| broker.0),
            brokers: cluster.brokers.into_iter().map(convert::broker).collect(),
            stale_ms,
        }))
    }

    async fn describe_partition(
        &self,
        request: Request<v1::DescribePartitionRequest>,
    ) -> Answer<v1::DescribePartitionResponse> {
        let v1::DescribePartitionRequest { topic, partition } = request.into_inner();
        let topic = self.broker.topic(&named(topic)?);
        let partition = topic.and_then(|topic| partition_of(&topic, partition));
        answer(partition.and_then(|id| self.broker.partition_status(id)).map(convert::partition_status))
    }

    async fn describe_partitions(
        &self,
        request: Request<v1::DescribePartitionsRequest>,
    ) -> Answer<v1::DescribePartitionsResponse> {
        let wanted = request.into_inner().topics.into_iter().map(|topic| topic_ref(Some(topic)));
        let wanted = wanted.collect::<Result<Vec<TopicRef>, ApiError>>().map_err(|error| status(&error))?;
        answer(self.broker.partition_states(&wanted).await.map(|states| {
            let state = |(id, state): (PartitionId, PartitionStatus)| v1::PartitionState {
                topic_id: id.topic.to_string(),
                partition: id.index,
                state: Some(convert::partition_status(state)),
            };
            v1::DescribePartitionsResponse { partitions: states.into_iter().map(state).collect() }
        }))
    }

    async fn move_partition(&self, request: Request<v1::MovePartitionRequest>) -> Answer<v1::MovePartitionResponse> {
        let v1::MovePartitionRequest { topic, partition, to } = request.into_inner();
        let to = MoveTo { replicas: to.into_iter().map(BrokerId).collect(), factor_may_change: true };
        let moved = self.broker.move_partition(&named(topic)?, partition, to).await;
        answer(moved.map(|()| v1::MovePartitionResponse {}))
    }

    async fn elect_leader(&self, request: Request<v1::ElectLeaderRequest>) -> Answer<v1::ElectLeaderResponse> {
        let v1::ElectLeaderRequest { topic, partition } = request.into_inner();
        let elected = self.broker.elect_leader(&named(topic)?, partition).await;
        answer(elected.map(|leader| v1::ElectLeaderResponse { leader: leader.0 }))
    }

    async fn drain_broker(&self, request: Request<v1::DrainBrokerRequest>) -> Answer<v1::DrainBrokerResponse> {
        let v1::DrainBrokerRequest { broker, undo } = request.into_inner();
        answer(self.broker.drain_broker(BrokerId(broker), undo).await.map(|()| v1::DrainBrokerResponse {}))
    }

    async fn forget_broker(&self, request: Request<v1::ForgetBrokerRequest>) -> Answer<v1::ForgetBrokerResponse> {
        let v1::ForgetBrokerRequest { broker, lost, validate_only, machine_gone } = request.into_inner();
        let (broker, order) = (BrokerId(broker), GiveUp { machine_gone, validate_only });
        let forgotten = match lost {
            true => self.broker.forget_lost_broker(broker, order).await,
            false if order == GiveUp::default() => self.broker.forget_broker(broker).await.map(|()| GivenUp::default()),
            false => Err(malformed("`validate_only` and `machine_gone` go with `lost`".to_owned())),
        };
        answer(forgotten.map(convert::given_up))
    }

    async fn accept_loss(&self, request: Request<v1::AcceptLossRequest>) -> Answer<v1::AcceptLossResponse> {
        let v1::AcceptLossRequest { topic, partition, validate_only } = request.into_inner();
        let accepted = self.broker.accept_loss(&named(topic)?, partition, validate_only).await;
        answer(accepted.map(|accepted| v1::AcceptLossResponse {
            loss: Some(convert::loss(&accepted.topic, partition, accepted.loss)),
            leader_epoch: accepted.leader_epoch.map(|epoch| epoch.0),
        }))
    }
}

fn answer<T>(answer: Result<T, ApiError>) -> Answer<T> {
    answer.map(Response::new).map_err(|error| status(&error))
}

fn named(topic: Option<v1::TopicRef>) -> Result<crate::api::TopicRef, Status> {
    topic_ref(topic).map_err(|error| status(&error))
}

/// Settings to set and to unset, each once.
fn changes(set: BTreeMap<String, String>, unset: Vec<String>) -> Result<Vec<(String, Alteration)>, ApiError> {
    let mut changes: BTreeMap<String, Alteration> =
        set.into_iter().map(|(key, value)| (key, Alteration::Set(value))).collect();
    for key in unset {
        if let Some(Alteration::Set(_)) = changes.insert(key.clone(), Alteration::Delete) {
            return Err(malformed(format!("`{key}` is both in `set` and in `unset`")));
        }
    }
    Ok(changes.into_iter().collect())
}

/// A partition of a topic that a message names.
fn partition_of(topic: &TopicDescription, index: u32) -> Result<PartitionId, ApiError> {
    let found = topic.partitions.iter().map(|partition| partition.id).find(|id| id.index == index);
    found.ok_or_else(|| {
        let message = format!("topic `{}` has {} partitions; there is no {index}", topic.name, topic.partitions.len());
        ApiError::new(ErrorCode::UnknownTopicOrPartition, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_set_or_unset_but_not_both() {
        let set = || BTreeMap::from([("retention.ms".to_owned(), "1".to_owned())]);
        let both = changes(set(), vec!["retention.ms".to_owned()]);
        assert_eq!(both.map_err(|error| error.code), Err(ErrorCode::InvalidRequest));
        let merged = changes(set(), vec!["cleanup.policy".to_owned()]).expect("no contradiction");
        let expected = [("cleanup.policy", Alteration::Delete), ("retention.ms", Alteration::Set("1".to_owned()))];
        assert!(merged.iter().map(|(name, change)| (name.as_str(), change.clone())).eq(expected), "{merged:?}");
    }
}
