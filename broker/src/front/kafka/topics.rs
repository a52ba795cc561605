//! CreateTopics and DeleteTopics. Each topic of a request succeeds or fails alone.

use super::orders::Orders;
use super::throttle::throttle_ms;
use super::wire::{NO_TOPIC_ID, requests, responses};
use crate::Broker;
use crate::api::{ApiError, NewTopic, TopicMade, TopicRef};
use millpond_core::topic_config::{ConfigSource, Described};
use millpond_log::{BrokerId, ErrorCode, TopicId};
use std::collections::BTreeMap;

/// Kafka's "the broker's default" for a number of partitions or replicas.
const BROKER_DEFAULT: i32 = -1;

/// Kafka's numbers for a setting made on the topic itself, and for one that was not made.
const SET_ON_TOPIC: i8 = 1;
const NOT_SET: i8 = 5;

/// First version of DeleteTopics in which a topic may be named by its id.
const DELETE_BY_ID_SINCE: i16 = 6;

requests! {
    /// Topics to create.
    CreateTopicsRequest {
        topics: Vec<CreatableTopic> => ..,
        timeout_ms: i32 => ..,
        validate_only: bool => ..,
    }
    /// One topic.
    CreatableTopic {
        name: String => ..,
        partitions: i32 => ..,
        replication_factor: i16 => ..,
        assignments: Vec<Assignment> => ..,
        configs: Vec<CreatableConfig> => ..,
    }
    /// Replicas chosen by hand.
    Assignment {
        partition: i32 => ..,
        brokers: Vec<i32> => ..,
    }
    /// One setting.
    CreatableConfig {
        name: String => ..,
        value: Option<String> => ..,
    }
    /// Topics to delete.
    DeleteTopicsRequest {
        topics: Vec<DeletableTopic> => 6..,
        names: Vec<String> => ..=5,
        timeout_ms: i32 => ..,
    }
    /// One topic, by name or by id.
    DeletableTopic {
        name: Option<String> => ..,
        id: TopicId = NO_TOPIC_ID => ..,
    }
}

responses! {
    /// What became of each topic.
    CreateTopicsResponse {
        throttle_time_ms: i32 => ..,
        topics: Vec<CreatedTopic> => ..,
    }
    /// One topic.
    CreatedTopic {
        name: String => ..,
        id: TopicId = NO_TOPIC_ID => 7..,
        error_code: i16 => ..,
        error_message: Option<String> => ..,
        partitions: i32 = -1 => 5..,
        replication_factor: i16 = -1 => 5..,
        configs: Option<Vec<CreatedConfig>> => 5..,
    }
    /// One setting, with the value that holds (KIP-525).
    CreatedConfig {
        name: String => ..,
        value: Option<String> => ..,
        read_only: bool => ..,
        config_source: i8 = SET_ON_TOPIC => ..,
        is_sensitive: bool => ..,
    }
    /// What became of each topic.
    DeleteTopicsResponse {
        throttle_time_ms: i32 => ..,
        topics: Vec<DeletedTopic> => ..,
    }
    /// One topic.
    DeletedTopic {
        name: Option<String> => ..,
        id: TopicId = NO_TOPIC_ID => 6..,
        error_code: i16 => ..,
        error_message: Option<String> => 5..,
    }
}

/// Creates the topics, one after the other.
pub(super) async fn create(broker: &Broker, request: CreateTopicsRequest) -> CreateTopicsResponse {
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    request.topics.iter().for_each(|topic| *times.entry(topic.name.clone()).or_default() += 1);
    let mut orders = Orders::within(request.timeout_ms);
    let mut errors = Vec::new();
    let mut topics = Vec::with_capacity(request.topics.len());
    for topic in request.topics {
        let name = topic.name.clone();
        let made = if times[&name] > 1 {
            Err(ApiError::new(ErrorCode::InvalidRequest, format!("topic `{name}` is in the request more than once")))
        } else {
            match free(broker, &name).and_then(|()| new_topic(topic, request.validate_only)) {
                Ok(topic) => {
                    let broker = broker.clone();
                    orders.carry(async move { broker.create_topic(topic).await }).await
                }
                Err(error) => Err(error),
            }
        };
        topics.push(created(name, &made));
        errors.extend(made.err());
    }
    CreateTopicsResponse { throttle_time_ms: throttle_ms(errors.iter()), topics }
}

/// Deletes the topics, one after the other.
pub(super) async fn delete(broker: &Broker, version: i16, request: DeleteTopicsRequest) -> DeleteTopicsResponse {
    let asked = if version >= DELETE_BY_ID_SINCE {
        request.topics
    } else {
        request.names.into_iter().map(|name| DeletableTopic { name: Some(name), id: NO_TOPIC_ID }).collect()
    };
    let mut orders = Orders::within(request.timeout_ms);
    let mut errors = Vec::new();
    let mut topics = Vec::with_capacity(asked.len());
    let mut times: BTreeMap<(Option<String>, TopicId), usize> = BTreeMap::new();
    asked.iter().for_each(|topic| *times.entry((topic.name.clone(), topic.id)).or_default() += 1);
    for topic in &asked {
        let twice = times[&(topic.name.clone(), topic.id)] > 1;
        // Looked up first: the answer gives both the name and the id.
        let found = if twice { Err(ambiguous("it is in the request more than once")) } else { named(topic) };
        let deleted = match found.and_then(|named| broker.topic(&named)) {
            Ok(found) => {
                let (broker, topic) = (broker.clone(), TopicRef::Id(found.id));
                orders.carry(async move { broker.delete_topic(&topic).await }).await.map(|()| found)
            }
            Err(error) => Err(error),
        };
        topics.push(match &deleted {
            Ok(found) => DeletedTopic { name: Some(found.name.clone()), id: found.id, ..Default::default() },
            Err(error) => DeletedTopic {
                name: topic.name.clone(),
                id: topic.id,
                error_code: error.code.kafka(),
                error_message: Some(error.message.clone()),
            },
        });
        errors.extend(deleted.err());
    }
    DeleteTopicsResponse { throttle_time_ms: throttle_ms(errors.iter()), topics }
}

/// Whether no other topic could be taken for the one of this name. Clients of Kafka count on that, as their metrics write `.` as `_`.
pub(super) fn free(broker: &Broker, name: &str) -> Result<(), ApiError> {
    match broker.collision(name).filter(|other| other != name) {
        None => Ok(()),
        Some(other) => {
            let message = format!("topic `{name}` collides with topic `{other}`: `.` and `_` are the same in metrics");
            Err(ApiError::new(ErrorCode::InvalidTopic, message))
        }
    }
}

/// Which topic is meant, by its name or by its id.
///
/// # Errors
/// `INVALID_REQUEST` for both at once, which may be two topics, and for neither.
fn named(topic: &DeletableTopic) -> Result<TopicRef, ApiError> {
    match (&topic.name, topic.id) {
        (Some(name), NO_TOPIC_ID) => Ok(TopicRef::Name(name.clone())),
        (None, NO_TOPIC_ID) => Err(ambiguous("it has neither a name nor an id")),
        (None, id) => Ok(TopicRef::Id(id)),
        (Some(_), _) => Err(ambiguous("it has a name and an id; use one")),
    }
}

fn ambiguous(why: &str) -> ApiError {
    ApiError::new(ErrorCode::InvalidRequest, format!("the topic was not deleted: {why}"))
}

fn new_topic(topic: CreatableTopic, validate_only: bool) -> Result<NewTopic, ApiError> {
    let assignments = assigned(topic.assignments)?;
    let partitions = positive(topic.partitions)
        .map_err(|number| ApiError::new(ErrorCode::InvalidPartitions, format!("{number} partitions; use 1 or more")))?;
    let replication_factor = positive(i32::from(topic.replication_factor)).map_err(|number| {
        ApiError::new(ErrorCode::InvalidReplicationFactor, format!("replication factor {number}; use 1 or more"))
    })?;
    let mut configs = BTreeMap::new();
    for CreatableConfig { name, value } in topic.configs {
        let value = value.ok_or_else(|| {
            ApiError::new(ErrorCode::InvalidConfig, format!("setting `{name}` is null; leave it out for the default"))
        })?;
        configs.insert(name, value);
    }
    Ok(NewTopic { name: topic.name, partitions, replication_factor, assignments, configs, validate_only })
}

/// The replicas of each partition in order; the request may name them in any.
fn assigned(mut assignments: Vec<Assignment>) -> Result<Vec<Vec<BrokerId>>, ApiError> {
    assignments.sort_by_key(|assignment| assignment.partition);
    let wrong = |message: String| ApiError::new(ErrorCode::InvalidReplicaAssignment, message);
    let in_turn = |(partition, Assignment { partition: named, brokers }): (usize, Assignment)| {
        if i32::try_from(partition) != Ok(named) {
            let message = "the partitions with replicas are not numbered from 0, each once and none left out";
            return Err(wrong(message.to_owned()));
        }
        self::brokers(brokers)
    };
    assignments.into_iter().enumerate().map(in_turn).collect()
}

/// Brokers, as a client numbers them.
pub(super) fn brokers(ids: Vec<i32>) -> Result<Vec<BrokerId>, ApiError> {
    let wrong = |id: i32| ApiError::new(ErrorCode::InvalidReplicaAssignment, format!("{id} is no broker"));
    ids.into_iter().map(|id| u32::try_from(id).map(BrokerId).map_err(|_| wrong(id))).collect()
}

/// A count, `None` for the broker's default; any other number below 1 is an error.
fn positive(number: i32) -> Result<Option<u32>, i32> {
    match u32::try_from(number) {
        Ok(count) if count > 0 => Ok(Some(count)),
        _ if number == BROKER_DEFAULT => Ok(None),
        _ => Err(number),
    }
}

fn created(name: String, made: &Result<TopicMade, ApiError>) -> CreatedTopic {
    match made {
        Ok(made) => {
            let config = |described: &Described| CreatedConfig {
                name: described.setting.name.to_owned(),
                value: Some(described.value.clone()),
                config_source: match described.source {
                    ConfigSource::Topic => SET_ON_TOPIC,
                    ConfigSource::Default => NOT_SET,
                },
                ..Default::default()
            };
            CreatedTopic {
                name,
                id: made.topic.id,
                partitions: i32::try_from(made.partitions).unwrap_or(i32::MAX),
                replication_factor: i16::try_from(made.replication_factor).unwrap_or(i16::MAX),
                configs: Some(made.settings.iter().map(config).collect()),
                ..Default::default()
            }
        }
        Err(error) => CreatedTopic {
            name,
            error_code: error.code.kafka(),
            error_message: Some(error.message.clone()),
            ..Default::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_below_one_are_refused_but_for_the_default() {
        assert_eq!([-1, 1, i32::MAX].map(positive), [Ok(None), Ok(Some(1)), Ok(Some(i32::MAX as u32))]);
        assert_eq!([0, -2, i32::MIN].map(positive), [Err(0), Err(-2), Err(i32::MIN)]);
    }

    #[test]
    fn a_topic_to_delete_is_named_in_one_way() {
        let check = |name: Option<&str>, id, expected: Result<TopicRef, ErrorCode>| {
            let topic = DeletableTopic { name: name.map(str::to_owned), id };
            assert_eq!(named(&topic).map_err(|error| error.code), expected, "{topic:?}");
        };
        check(Some("a"), NO_TOPIC_ID, Ok(TopicRef::Name("a".to_owned())));
        check(None, TopicId(7), Ok(TopicRef::Id(TopicId(7))));
        check(Some("a"), TopicId(7), Err(ErrorCode::InvalidRequest));
        check(None, NO_TOPIC_ID, Err(ErrorCode::InvalidRequest));
    }

    #[test]
    fn assignments_name_each_partition_once() {
        let of = |partitions: &[(i32, &[i32])]| {
            let assignment =
                |&(partition, brokers): &(i32, &[i32])| Assignment { partition, brokers: brokers.to_vec() };
            assigned(partitions.iter().map(assignment).collect()).map_err(|error| error.code)
        };
        assert_eq!(of(&[]), Ok(vec![]));
        assert_eq!(
            of(&[(1, &[2, 0]), (0, &[0, 1])]),
            Ok(vec![vec![BrokerId(0), BrokerId(1)], vec![BrokerId(2), BrokerId(0)]])
        );
        for wrong in
            [&[(1, &[0][..])][..], &[(0, &[0]), (0, &[1])], &[(0, &[0]), (2, &[1])], &[(-1, &[0])], &[(0, &[-1])]]
        {
            assert_eq!(of(wrong), Err(ErrorCode::InvalidReplicaAssignment), "{wrong:?}");
        }
    }

    #[test]
    fn what_the_cluster_cannot_do_is_refused_with_its_own_code() {
        let check = |topic: CreatableTopic, expected| {
            assert_eq!(new_topic(topic, false).map_err(|error| error.code), Err(expected));
        };
        let topic =
            || CreatableTopic { name: "t".to_owned(), partitions: -1, replication_factor: -1, ..Default::default() };
        check(CreatableTopic { partitions: 0, ..topic() }, ErrorCode::InvalidPartitions);
        check(CreatableTopic { replication_factor: 0, ..topic() }, ErrorCode::InvalidReplicationFactor);
        check(CreatableTopic { configs: vec![CreatableConfig::default()], ..topic() }, ErrorCode::InvalidConfig);
        assert!(new_topic(topic(), true).is_ok_and(|topic| topic.validate_only && topic.partitions.is_none()));
    }
}
