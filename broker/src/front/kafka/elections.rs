//! ElectLeaders: preferred replicas lead again. Each partition succeeds or fails alone.

use super::orders::{by, given, told};
use super::throttle::throttle_ms;
use super::wire::{requests, responses};
use crate::Broker;
use crate::api::{ApiError, PartitionDescription, TopicRef};
use futures::stream::{self, StreamExt};
use millpond_log::ErrorCode;

/// Kafka's kinds of elections.
const PREFERRED: i8 = 0;
const UNCLEAN: i8 = 1;

/// How many leaderships of one request are moved at once. Each waits for its heir; what waits costs next to nothing.
const MOVED_AT_ONCE: usize = 64;

requests! {
    /// Which partitions, null for all, and by what kind of election.
    ElectLeadersRequest {
        election_type: i8 => 1..,
        topics: Option<Vec<ElectTopic>> => ..,
        timeout_ms: i32 => ..,
    }
    /// One topic.
    ElectTopic {
        name: String => ..,
        partitions: Vec<i32> => ..,
    }
}

responses! {
    /// What became of each partition. Where all were asked for, those that had their preferred leader are left out.
    ElectLeadersResponse {
        throttle_time_ms: i32 => ..,
        error_code: i16 => 1..,
        topics: Vec<ElectedTopic> => ..,
    }
    /// One topic.
    ElectedTopic {
        name: String => ..,
        partitions: Vec<ElectedPartition> => ..,
    }
    /// One partition.
    ElectedPartition {
        index: i32 => ..,
        error_code: i16 => ..,
        error_message: Option<String> => ..,
    }
}

/// Elects topic by topic.
pub(super) async fn answer(broker: &Broker, request: ElectLeadersRequest) -> ElectLeadersResponse {
    let ElectLeadersRequest { election_type, topics: asked, timeout_ms } = request;
    if !matches!(election_type, PREFERRED | UNCLEAN) {
        return ElectLeadersResponse { error_code: ErrorCode::InvalidRequest.kafka(), ..Default::default() };
    }
    let deadline = given(timeout_ms);
    let all = asked.is_none();
    let mut errors = Vec::new();
    let mut topics = Vec::new();
    for ElectTopic { name, partitions } in asked.unwrap_or_else(|| every_partition(broker)) {
        let topic = &TopicRef::Name(name.clone());
        let elections = partitions.into_iter().map(async |index| {
            let late = || ApiError::new(ErrorCode::RequestTimedOut, "the leadership may still move").in_doubt();
            let elected = by(deadline, elect(broker, topic, index, election_type)).await;
            (index, elected.unwrap_or_else(|| Err(late())))
        });
        let elected: Vec<(i32, Result<(), ApiError>)> = stream::iter(elections).buffered(MOVED_AT_ONCE).collect().await;
        let mut partitions = Vec::with_capacity(elected.len());
        for (index, elected) in elected {
            match elected {
                Ok(()) => partitions.push(ElectedPartition { index, ..Default::default() }),
                Err(error) if all && error.code == ErrorCode::ElectionNotNeeded => {}
                Err(error) => {
                    let (error_code, error_message) = (error.code.kafka(), Some(error.message.clone()));
                    partitions.push(ElectedPartition { index, error_code, error_message });
                    errors.push(error);
                }
            }
        }
        if !(all && partitions.is_empty()) {
            topics.push(ElectedTopic { name, partitions });
        }
    }
    ElectLeadersResponse { throttle_time_ms: throttle_ms(errors.iter()), error_code: 0, topics }
}

fn every_partition(broker: &Broker) -> Vec<ElectTopic> {
    let indexes = |partitions: Vec<PartitionDescription>| {
        partitions.iter().map(|partition| partition.id.index.cast_signed()).collect()
    };
    broker
        .topics()
        .into_iter()
        .map(|topic| ElectTopic { name: topic.name, partitions: indexes(topic.partitions) })
        .collect()
}

async fn elect(broker: &Broker, topic: &TopicRef, index: i32, election_type: i8) -> Result<(), ApiError> {
    let unknown = || ApiError::new(ErrorCode::UnknownTopicOrPartition, format!("there is no partition {index}"));
    let number = u32::try_from(index).map_err(|_| unknown())?;
    let described = broker.topic(topic)?;
    let partition = described.partitions.get(number as usize).ok_or_else(unknown)?;
    needed(partition, election_type)?;
    broker.elect_leader(topic, number).await.map(|_leader| ()).map_err(told)
}

/// Whether an election is to be tried.
fn needed(partition: &PartitionDescription, election_type: i8) -> Result<(), ApiError> {
    match (election_type, partition.leader) {
        (PREFERRED, leader) if leader.is_none() || leader.as_ref() != partition.replicas.first() => Ok(()),
        (UNCLEAN, None) => {
            let message = "whoever leads without all that was acknowledged loses records: `partition accept-loss` shows which and \
                elects, or the topic's `unclean.leader.election.enable` does";
            Err(ApiError::new(ErrorCode::EligibleLeadersNotAvailable, message))
        }
        (PREFERRED, _) => Err(ApiError::new(ErrorCode::ElectionNotNeeded, "the preferred replica leads")),
        _ => Err(ApiError::new(ErrorCode::ElectionNotNeeded, "the partition has a leader")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_log::{BrokerId, LeaderEpoch, PartitionId, TopicId};

    #[test]
    fn an_election_is_needed_where_another_than_the_preferred_replica_leads() {
        let partition = |leader: Option<u32>| PartitionDescription {
            id: PartitionId { topic: TopicId(1), index: 0 },
            leader: leader.map(BrokerId),
            leader_epoch: LeaderEpoch(1),
            replicas: vec![BrokerId(1), BrokerId(2)],
            isr: vec![],
            elr: vec![],
            offline: vec![],
            loss: None,
        };
        let needed = |leader, kind| needed(&partition(leader), kind).map_err(|error| error.code);
        assert_eq!(needed(Some(2), PREFERRED), Ok(()));
        assert_eq!(needed(None, PREFERRED), Ok(()));
        assert_eq!(needed(Some(1), PREFERRED), Err(ErrorCode::ElectionNotNeeded));
        assert_eq!(needed(Some(2), UNCLEAN), Err(ErrorCode::ElectionNotNeeded));
        assert_eq!(needed(None, UNCLEAN), Err(ErrorCode::EligibleLeadersNotAvailable));
    }
}
