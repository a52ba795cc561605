//! AlterPartitionReassignments and ListPartitionReassignments: replicas are moved, moves are given up, and those under way are told.

use super::metadata::node_ids;
use super::orders::{by, given, told};
use super::throttle::throttle_ms;
use super::topics::brokers;
use super::wire::{requests, responses};
use crate::Broker;
use crate::api::{ApiError, MoveTo, PartitionMove, TopicRef};
use futures::stream::{self, StreamExt};
use millpond_log::ErrorCode;
use std::collections::{BTreeMap, BTreeSet};

/// How many partitions of one request are decided at once. Each is a transaction of the metadata store.
const DECIDED_AT_ONCE: usize = 16;

requests! {
    /// Which replicas partitions are to have.
    AlterPartitionReassignmentsRequest {
        timeout_ms: i32 => ..,
        allow_replication_factor_change: bool = true => 1..,
        topics: Vec<MovedTopic> => ..,
    }
    /// One topic.
    MovedTopic {
        name: String => ..,
        partitions: Vec<MovedPartition> => ..,
    }
    /// One partition: its replicas, the preferred leader first, or null to give its move up.
    MovedPartition {
        index: i32 => ..,
        replicas: Option<Vec<i32>> => ..,
    }
    /// Whose moves are asked for; null for all.
    ListPartitionReassignmentsRequest {
        timeout_ms: i32 => ..,
        topics: Option<Vec<ListedMoves>> => ..,
    }
    /// One topic.
    ListedMoves {
        name: String => ..,
        partitions: Vec<i32> => ..,
    }
}

responses! {
    /// What became of each partition.
    AlterPartitionReassignmentsResponse {
        throttle_time_ms: i32 => ..,
        allow_replication_factor_change: bool = true => 1..,
        error_code: i16 => ..,
        error_message: Option<String> => ..,
        topics: Vec<MovedTopicResult> => ..,
    }
    /// One topic.
    MovedTopicResult {
        name: String => ..,
        partitions: Vec<MovedPartitionResult> => ..,
    }
    /// One partition. The move is decided; it is done when it is listed no more.
    MovedPartitionResult {
        index: i32 => ..,
        error_code: i16 => ..,
        error_message: Option<String> => ..,
    }
    /// The moves under way.
    ListPartitionReassignmentsResponse {
        throttle_time_ms: i32 => ..,
        error_code: i16 => ..,
        error_message: Option<String> => ..,
        topics: Vec<OngoingTopic> => ..,
    }
    /// Those of one topic.
    OngoingTopic {
        name: String => ..,
        partitions: Vec<OngoingMove> => ..,
    }
    /// One partition.
    OngoingMove {
        index: i32 => ..,
        replicas: Vec<i32> => ..,
        adding: Vec<i32> => ..,
        removing: Vec<i32> => ..,
    }
}

/// Decides partition by partition.
pub(super) async fn alter(
    broker: &Broker,
    request: AlterPartitionReassignmentsRequest,
) -> AlterPartitionReassignmentsResponse {
    let AlterPartitionReassignmentsRequest { timeout_ms, allow_replication_factor_change, topics: asked } = request;
    let deadline = given(timeout_ms);
    let mut errors = Vec::new();
    let mut topics = Vec::with_capacity(asked.len());
    for MovedTopic { name, partitions } in asked {
        let topic = &TopicRef::Name(name.clone());
        let moves = partitions.into_iter().map(async |MovedPartition { index, replicas }| {
            let late = || ApiError::new(ErrorCode::RequestTimedOut, "the move may still be decided").in_doubt();
            let decided = decide(broker, topic, index, replicas, allow_replication_factor_change);
            let decided = by(deadline, decided).await.unwrap_or_else(|| Err(late()));
            (index, decided.map_err(told))
        });
        let moved: Vec<(i32, Result<(), ApiError>)> = stream::iter(moves).buffered(DECIDED_AT_ONCE).collect().await;
        let result = |(index, moved): (i32, Result<(), ApiError>)| match moved {
            Ok(()) => MovedPartitionResult { index, ..Default::default() },
            Err(error) => {
                let (error_code, error_message) = (error.code.kafka(), Some(error.message.clone()));
                errors.push(error);
                MovedPartitionResult { index, error_code, error_message }
            }
        };
        let partitions = moved.into_iter().map(result).collect();
        topics.push(MovedTopicResult { name, partitions });
    }
    let (error_code, error_message) = match for_another_controller(&errors, &topics) {
        Some(error) => (error.code.kafka(), Some(error.message.clone())),
        None => (0, None),
    };
    AlterPartitionReassignmentsResponse {
        throttle_time_ms: throttle_ms(errors.iter()),
        allow_replication_factor_change,
        error_code,
        error_message,
        topics,
    }
}

/// The refusal that is said of the whole request: clients ask again where the whole of it is the controller's, and look at no partition. So it
/// is not said once anything was decided.
fn for_another_controller<'a>(errors: &'a [ApiError], topics: &[MovedTopicResult]) -> Option<&'a ApiError> {
    let not_controller = ErrorCode::NotController;
    let mut partitions = topics.iter().flat_map(|topic| &topic.partitions);
    let error = errors.iter().find(|error| error.code == not_controller)?;
    partitions.all(|partition| partition.error_code == not_controller.kafka()).then_some(error)
}

async fn decide(
    broker: &Broker,
    topic: &TopicRef,
    index: i32,
    replicas: Option<Vec<i32>>,
    factor_may_change: bool,
) -> Result<(), ApiError> {
    let partition = u32::try_from(index)
        .map_err(|_| ApiError::new(ErrorCode::UnknownTopicOrPartition, format!("there is no partition {index}")))?;
    match replicas {
        None => broker.cancel_move(topic, partition).await,
        Some(ids) => {
            let to = MoveTo { replicas: brokers(ids)?, factor_may_change };
            broker.move_partition(topic, partition, to).await
        }
    }
}

/// The moves under way, as far as they are asked for.
pub(super) fn list(broker: &Broker, request: ListPartitionReassignmentsRequest) -> ListPartitionReassignmentsResponse {
    ListPartitionReassignmentsResponse { topics: chosen(broker.moves(), request.topics), ..Default::default() }
}

/// By topic, in the order of `moves`. Names that nothing has are passed over.
fn chosen(moves: Vec<PartitionMove>, asked: Option<Vec<ListedMoves>>) -> Vec<OngoingTopic> {
    let asked = asked.map(|topics| {
        let mut wanted: BTreeMap<String, BTreeSet<i32>> = BTreeMap::new();
        topics.into_iter().for_each(|topic| wanted.entry(topic.name).or_default().extend(topic.partitions));
        wanted
    });
    let mut topics: Vec<OngoingTopic> = Vec::new();
    for PartitionMove { topic, partition, replicas, adding, removing } in moves {
        let index = partition.cast_signed();
        let wanted = |asked: &BTreeMap<String, BTreeSet<i32>>| {
            asked.get(&topic).is_some_and(|partitions| partitions.contains(&index))
        };
        if !asked.as_ref().is_none_or(wanted) {
            continue;
        }
        let (replicas, adding, removing) = (node_ids(&replicas), node_ids(&adding), node_ids(&removing));
        let under_way = OngoingMove { index, replicas, adding, removing };
        match topics.last_mut().filter(|last| last.name == topic) {
            Some(last) => last.partitions.push(under_way),
            None => topics.push(OngoingTopic { name: topic, partitions: vec![under_way] }),
        }
    }
    topics
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_log::BrokerId;

    #[test]
    fn clients_are_told_of_another_controller_only_while_nothing_is_decided() {
        let of = |codes: &[Option<ErrorCode>]| {
            let errors: Vec<ApiError> = codes.iter().flatten().map(|code| ApiError::new(*code, "no")).collect();
            let result = |(index, code): (i32, &Option<ErrorCode>)| MovedPartitionResult {
                index,
                error_code: code.map_or(0, |code| code.kafka()),
                error_message: None,
            };
            let topic = MovedTopicResult { name: "t".to_owned(), partitions: (0..).zip(codes).map(result).collect() };
            for_another_controller(&errors, &[topic]).map(|error| error.code)
        };
        let away = Some(ErrorCode::NotController);
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[None, None]), None);
        assert_eq!(of(&[away, away]), Some(ErrorCode::NotController));
        assert_eq!(of(&[away, None]), None);
        assert_eq!(of(&[away, Some(ErrorCode::InvalidReplicaAssignment)]), None);
    }

    #[test]
    fn moves_are_listed_by_topic_as_far_as_they_are_asked_for() {
        let moves = || {
            let under_way = |topic: &str, partition| PartitionMove {
                topic: topic.to_owned(),
                partition,
                replicas: vec![BrokerId(3), BrokerId(1)],
                adding: vec![BrokerId(3)],
                removing: vec![BrokerId(1)],
            };
            vec![under_way("a", 0), under_way("a", 2), under_way("b", 1)]
        };
        let listed = |asked: Option<&[(&str, &[i32])]>| -> Vec<(String, Vec<i32>)> {
            let topic = |(name, partitions): &(&str, &[i32])| ListedMoves {
                name: (*name).to_owned(),
                partitions: partitions.to_vec(),
            };
            let topics = chosen(moves(), asked.map(|asked| asked.iter().map(topic).collect()));
            let indexes = |topic: OngoingTopic| topic.partitions.iter().map(|each| each.index).collect();
            topics.into_iter().map(|topic| (topic.name.clone(), indexes(topic))).collect()
        };
        let of = |name: &str, partitions: &[i32]| (name.to_owned(), partitions.to_vec());
        assert_eq!(listed(None), [of("a", &[0, 2]), of("b", &[1])]);
        assert_eq!(listed(Some(&[])), []);
        assert_eq!(listed(Some(&[("b", &[0, 1]), ("a", &[2]), ("c", &[0])])), [of("a", &[2]), of("b", &[1])]);
        let first = &chosen(moves(), None)[0].partitions[0];
        assert_eq!((&first.replicas[..], &first.adding[..], &first.removing[..]), (&[3, 1][..], &[3][..], &[1][..]));
    }
}
