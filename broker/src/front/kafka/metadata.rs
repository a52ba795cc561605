//! Metadata: brokers, topics and who leads what. Creates topics that are asked for by name, where that is allowed (case A5).

use super::operations;
use super::topics::free;
use super::wire::{NO_TOPIC_ID, requests, responses};
use crate::Broker;
use crate::api::{
    ApiError, BrokerDescription, ClusterDescription, NewTopic, PartitionDescription, TopicDescription, TopicRef,
};
use millpond_core::topic_name::TopicName;
use millpond_log::{BrokerId, ErrorCode, TopicId};
use std::collections::HashMap;

/// Kafka's "no broker".
pub(super) const NO_BROKER: i32 = -1;

/// First version in which a topic may be named by its id, and be answered without a name.
const IDS_SINCE: i16 = 12;

requests! {
    /// Which topics.
    MetadataRequest {
        topics: Option<Vec<MetadataRequestTopic>> => ..,
        allow_auto_topic_creation: bool = true => 4..,
        include_cluster_authorized_operations: bool => 8..=10,
        include_topic_authorized_operations: bool => 8..,
    }
    /// One topic, by name or by id.
    MetadataRequestTopic {
        id: TopicId = NO_TOPIC_ID => 10..,
        name: Option<String> => ..,
    }
}

responses! {
    /// The cluster and the topics.
    MetadataResponse {
        throttle_time_ms: i32 => 3..,
        brokers: Vec<MetadataBroker> => ..,
        cluster_id: Option<String> => 2..,
        controller_id: i32 = NO_BROKER => 1..,
        topics: Vec<MetadataTopic> => ..,
        cluster_authorized_operations: i32 = operations::UNKNOWN => 8..=10,
        error_code: i16 => 13..,
    }
    /// One broker.
    MetadataBroker {
        node_id: i32 => ..,
        host: String => ..,
        port: i32 => ..,
        rack: Option<String> => 1..,
    }
    /// One topic.
    MetadataTopic {
        error_code: i16 => ..,
        name: Option<String> => ..,
        id: TopicId = NO_TOPIC_ID => 10..,
        is_internal: bool => 1..,
        partitions: Vec<MetadataPartition> => ..,
        topic_authorized_operations: i32 = operations::UNKNOWN => 8..,
    }
    /// One partition.
    MetadataPartition {
        error_code: i16 => ..,
        index: i32 => ..,
        leader_id: i32 = NO_BROKER => ..,
        leader_epoch: i32 = -1 => 7..,
        replicas: Vec<i32> => ..,
        isr: Vec<i32> => ..,
        offline_replicas: Vec<i32> => 5..,
    }
}

/// Topics that could not be made, with what their answer says instead.
pub(super) type NotMade = HashMap<String, ErrorCode>;

/// Creates what is asked for by name and missing, where both sides allow it, one topic after the other.
pub(super) async fn create_missing(broker: &Broker, version: i16, request: &MetadataRequest) -> NotMade {
    let mut not_made = NotMade::new();
    if !(request.allow_auto_topic_creation && broker.auto_create()) {
        return not_made;
    }
    // Where the metadata store does not take one, the next is not tried: each try may take seconds.
    let mut closed = None;
    for topic in request.topics.iter().flatten() {
        let Ok(TopicRef::Name(name)) = named(version, topic) else { continue };
        let found = broker.topic(&TopicRef::Name(name.clone()));
        if found.is_err_and(|error| error.code == ErrorCode::UnknownTopicOrPartition) {
            let made = match closed {
                Some(code) => Err(code),
                None => make(broker, &name).await.map_err(|error| unmade(error.code)),
            };
            if let Err(code) = made {
                closed = Some(code).filter(|code| *code == ErrorCode::LeaderNotAvailable);
                not_made.insert(name, code);
            }
        }
    }
    not_made
}

/// Why a topic was not made, to whoever asks for metadata: what passes by itself is that it has no leader yet, the code after which all
/// clients ask again.
fn unmade(code: ErrorCode) -> ErrorCode {
    match code {
        ErrorCode::NotController | ErrorCode::NotLeaderOrFollower => ErrorCode::LeaderNotAvailable,
        code => code,
    }
}

/// Describes the topics asked for.
pub(super) fn answer(
    broker: &Broker,
    listener: &str,
    version: i16,
    request: MetadataRequest,
    not_made: &NotMade,
) -> MetadataResponse {
    let asked = match request.topics {
        // Version 0 has no null: there an empty list means all.
        Some(topics) if version > 0 || !topics.is_empty() => Some(topics),
        _ => None,
    };
    let cluster_operations = operations::told(request.include_cluster_authorized_operations, operations::CLUSTER);
    let topic_operations = operations::told(request.include_topic_authorized_operations, operations::TOPIC);
    let topics: Vec<_> = match asked {
        None => broker.topics().into_iter().map(Ok).collect(),
        Some(asked) => asked.iter().map(|topic| find(broker, version, topic, not_made)).collect(),
    };
    // After the topics: a topic that was made just now may have woken a broker that the list should name.
    let cluster = broker.describe_cluster();
    MetadataResponse {
        brokers: cluster.brokers.iter().filter_map(|known| metadata_broker(known, listener)).collect(),
        controller_id: controller_id(broker, &cluster),
        cluster_id: Some(cluster.id),
        topics: topics.into_iter().map(|topic| metadata_topic(version, topic, topic_operations)).collect(),
        cluster_authorized_operations: cluster_operations,
        ..Default::default()
    }
}

/// A topic that could not be described, as it was named.
struct Missing {
    named: TopicRef,
    code: ErrorCode,
}

/// What a topic is asked for by.
///
/// # Errors
/// An id in a version that has none.
fn named(version: i16, asked: &MetadataRequestTopic) -> Result<TopicRef, Missing> {
    let MetadataRequestTopic { name, id, .. } = asked;
    let named = match name {
        // Who names both means the id: the name may be another topic's by now.
        Some(name) if *id == NO_TOPIC_ID || version < IDS_SINCE => TopicRef::Name(name.clone()),
        _ => TopicRef::Id(*id),
    };
    if version < IDS_SINCE && (*id != NO_TOPIC_ID || matches!(named, TopicRef::Id(_))) {
        return Err(Missing { named, code: ErrorCode::InvalidRequest });
    }
    Ok(named)
}

fn find(
    broker: &Broker,
    version: i16,
    asked: &MetadataRequestTopic,
    not_made: &NotMade,
) -> Result<TopicDescription, Missing> {
    let named = named(version, asked)?;
    broker.topic(&named).map_err(|error| {
        let code = match &named {
            TopicRef::Name(name) => not_made.get(name).copied().unwrap_or(error.code),
            TopicRef::Id(_) => error.code,
        };
        Missing { code: missing(&named, code), named }
    })
}

/// What is said of a topic that is not there: that it cannot be, where no topic may have that name.
pub(super) fn missing(named: &TopicRef, code: ErrorCode) -> ErrorCode {
    match (named, code) {
        (TopicRef::Name(name), ErrorCode::UnknownTopicOrPartition) if name.parse::<TopicName>().is_err() => {
            ErrorCode::InvalidTopic
        }
        (_, code) => code,
    }
}

async fn make(broker: &Broker, name: &str) -> Result<(), ApiError> {
    free(broker, name)?;
    match broker.create_topic(NewTopic { name: name.to_owned(), ..Default::default() }).await {
        // Another client was quicker.
        Err(error) if error.code == ErrorCode::TopicAlreadyExists => Ok(()),
        made => made.map(|_| ()),
    }
}

fn metadata_topic(
    version: i16,
    topic: Result<TopicDescription, Missing>,
    topic_authorized_operations: i32,
) -> MetadataTopic {
    let topic = match topic {
        Ok(topic) => MetadataTopic {
            name: Some(topic.name),
            id: topic.id,
            partitions: topic.partitions.iter().map(metadata_partition).collect(),
            ..Default::default()
        },
        Err(Missing { named, code }) => {
            let (name, id) = match named {
                TopicRef::Name(name) => (Some(name), NO_TOPIC_ID),
                TopicRef::Id(id) => ((version < IDS_SINCE).then(String::new), id),
            };
            MetadataTopic { error_code: code.kafka(), name, id, ..Default::default() }
        }
    };
    MetadataTopic { topic_authorized_operations, ..topic }
}

fn metadata_partition(partition: &PartitionDescription) -> MetadataPartition {
    MetadataPartition {
        error_code: if partition.leader.is_some() { 0 } else { ErrorCode::LeaderNotAvailable.kafka() },
        index: partition.id.index.cast_signed(),
        leader_id: partition.leader.map_or(NO_BROKER, node_id),
        leader_epoch: partition.leader_epoch.0.cast_signed(),
        replicas: node_ids(&partition.replicas),
        isr: node_ids(&partition.isr),
        offline_replicas: node_ids(&partition.offline),
    }
}

/// A broker with the address of its listener of this name. `None` where it has none that a client could dial.
fn metadata_broker(broker: &BrokerDescription, listener: &str) -> Option<MetadataBroker> {
    let (host, port) = dialled(broker.kafka_at(listener)?)?;
    Some(MetadataBroker { node_id: node_id(broker.id), host, port, rack: broker.rack.clone() })
}

/// Host and port of an address, as clients are told them.
pub(super) fn dialled(address: &str) -> Option<(String, i32)> {
    let (host, port) = address.rsplit_once(':')?;
    // An IPv6 address stands in brackets before its port, and alone on the wire.
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    Some((host, i32::from(port.parse::<u16>().ok()?)))
}

/// Where clients send what is the controller's: to this broker while it is not known who controls, since any broker does all of it.
pub(super) fn controller_id(broker: &Broker, cluster: &ClusterDescription) -> i32 {
    node_id(cluster.controller.unwrap_or_else(|| broker.id()))
}

pub(super) fn node_id(broker: BrokerId) -> i32 {
    broker.0.cast_signed()
}

pub(super) fn node_ids(brokers: &[BrokerId]) -> Vec<i32> {
    brokers.iter().copied().map(node_id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_apart_for_clients() {
        let check = |address: &str, expected: Option<(&str, i32)>| {
            let broker = BrokerDescription {
                id: BrokerId(7),
                rack: None,
                grpc: String::new(),
                kafka: "unused:1".to_owned(),
                kafka_listeners: [("TLS".to_owned(), address.to_owned())].into(),
                http: String::new(),
            };
            let found = metadata_broker(&broker, "TLS").map(|broker| (broker.host, broker.port));
            assert_eq!(found, expected.map(|(host, port)| (host.to_owned(), port)), "{address}");
        };
        check("127.0.0.1:9092", Some(("127.0.0.1", 9092)));
        check("[::1]:9092", Some(("::1", 9092)));
        check("kafka.example:65535", Some(("kafka.example", 65535)));
        check("kafka.example:65536", None);
        check("", None);
    }

    #[test]
    fn a_topic_that_cannot_be_made_now_has_no_leader_yet() {
        for code in [ErrorCode::NotController, ErrorCode::NotLeaderOrFollower, ErrorCode::LeaderNotAvailable] {
            assert_eq!(unmade(code), ErrorCode::LeaderNotAvailable);
        }
        assert_eq!(unmade(ErrorCode::InvalidReplicationFactor), ErrorCode::InvalidReplicationFactor);
    }

    #[test]
    fn a_name_that_no_topic_may_have_is_told_from_one_that_none_has() {
        let check = |named: TopicRef, expected| {
            assert_eq!(missing(&named, ErrorCode::UnknownTopicOrPartition), expected, "{named:?}");
        };
        check(TopicRef::Name("nowhere".to_owned()), ErrorCode::UnknownTopicOrPartition);
        for name in ["", ".", "..", "a/b", "with space"] {
            check(TopicRef::Name(name.to_owned()), ErrorCode::InvalidTopic);
        }
        check(TopicRef::Id(TopicId(7)), ErrorCode::UnknownTopicOrPartition);
        let other = missing(&TopicRef::Name("a/b".to_owned()), ErrorCode::LeaderNotAvailable);
        assert_eq!(other, ErrorCode::LeaderNotAvailable);
    }
}
