//! DescribeCluster and DescribeTopicPartitions: what Metadata says, for tools, and page by page.

use super::metadata::{NO_BROKER, controller_id, dialled, missing, node_id, node_ids};
use super::operations;
use super::wire::{FromWire, Malformed, NO_TOPIC_ID, Reader, ToWire, Writer, requests, responses};
use crate::Broker;
use crate::api::{PartitionDescription, TopicDescription, TopicRef};
use millpond_log::{ErrorCode, TopicId};
use std::collections::BTreeSet;

/// Kafka's kinds of endpoints: brokers, and controllers, which only controllers describe.
const BROKERS: i8 = 1;
const CONTROLLERS: i8 = 2;

/// Kafka's `MISMATCHED_ENDPOINT_TYPE`: asked of a broker, for controllers.
const MISMATCHED_ENDPOINT_TYPE: i16 = 114;

/// Kafka's `UNSUPPORTED_ENDPOINT_TYPE`.
const UNSUPPORTED_ENDPOINT_TYPE: i16 = 115;

/// Most partitions of one page. Kafka's default for `max.request.partition.size.limit`.
const PAGE_PARTITIONS_MAX: usize = 2000;

requests! {
    /// Which endpoints.
    DescribeClusterRequest {
        include_cluster_authorized_operations: bool => ..,
        endpoint_type: i8 = BROKERS => 1..,
        include_fenced_brokers: bool => 2..,
    }
    /// Which topics, and where to go on.
    DescribeTopicPartitionsRequest {
        topics: Vec<TopicName> => ..,
        response_partition_limit: i32 = 2000 => ..,
        cursor: Option<Cursor> => ..,
    }
    /// One topic.
    TopicName {
        name: String => ..,
    }
    /// First partition to describe.
    Cursor {
        topic_name: String => ..,
        partition_index: i32 => ..,
    }
}

responses! {
    /// The cluster.
    DescribeClusterResponse {
        throttle_time_ms: i32 => ..,
        error_code: i16 => ..,
        error_message: Option<String> => ..,
        endpoint_type: i8 = BROKERS => 1..,
        cluster_id: String => ..,
        controller_id: i32 = NO_BROKER => ..,
        brokers: Vec<ClusterBroker> => ..,
        cluster_authorized_operations: i32 = operations::UNKNOWN => ..,
    }
    /// One broker. Those that are fenced are not known as brokers here.
    ClusterBroker {
        broker_id: i32 => ..,
        host: String => ..,
        port: i32 => ..,
        rack: Option<String> => ..,
        is_fenced: bool => 2..,
    }
    /// One page.
    DescribeTopicPartitionsResponse {
        throttle_time_ms: i32 => ..,
        topics: Vec<DescribedTopic> => ..,
        next_cursor: Option<NextCursor> => ..,
    }
    /// One topic.
    DescribedTopic {
        error_code: i16 => ..,
        name: Option<String> => ..,
        topic_id: TopicId = NO_TOPIC_ID => ..,
        is_internal: bool => ..,
        partitions: Vec<DescribedPartition> => ..,
        topic_authorized_operations: i32 = operations::TOPIC => ..,
    }
    /// One partition.
    DescribedPartition {
        error_code: i16 => ..,
        partition_index: i32 => ..,
        leader_id: i32 = NO_BROKER => ..,
        leader_epoch: i32 = -1 => ..,
        replica_nodes: Vec<i32> => ..,
        isr_nodes: Vec<i32> => ..,
        eligible_leader_replicas: Vec<i32> => ..,
        last_known_elr: Vec<i32> => ..,
        offline_replicas: Vec<i32> => ..,
    }
    /// Where the next page begins.
    NextCursor {
        topic_name: String => ..,
        partition_index: i32 => ..,
    }
}

// A structure that may be null is preceded by one byte: -1 where it is.
impl FromWire for Option<Cursor> {
    fn read(r: &mut Reader) -> Result<Option<Cursor>, Malformed> {
        Ok(if i8::read(r)? < 0 { None } else { Some(Cursor::read(r)?) })
    }
}

impl ToWire for Option<NextCursor> {
    fn write(&self, w: &mut Writer) {
        match self {
            None => (-1i8).write(w),
            Some(cursor) => {
                1i8.write(w);
                cursor.write(w);
            }
        }
    }
}

/// The brokers that are alive, and who controls.
pub(super) fn cluster(
    broker: &Broker,
    listener: &str,
    version: i16,
    request: &DescribeClusterRequest,
) -> DescribeClusterResponse {
    let refused = match request.endpoint_type {
        BROKERS => None,
        CONTROLLERS => Some((MISMATCHED_ENDPOINT_TYPE, "brokers describe brokers only")),
        _ => Some((UNSUPPORTED_ENDPOINT_TYPE, "there are no endpoints of that type")),
    };
    if let Some((error_code, message)) = refused {
        // Version 0 has no types, so none is refused in it.
        debug_assert!(version > 0);
        let (error_message, endpoint_type) = (Some(message.to_owned()), request.endpoint_type);
        return DescribeClusterResponse { error_code, error_message, endpoint_type, ..Default::default() };
    }
    let cluster = broker.describe_cluster();
    let controller_id = controller_id(broker, &cluster);
    let brokers = cluster.brokers.into_iter().filter_map(|broker| {
        let (host, port) = dialled(broker.kafka_at(listener)?)?;
        Some(ClusterBroker { broker_id: node_id(broker.id), host, port, rack: broker.rack, is_fenced: false })
    });
    let asked = request.include_cluster_authorized_operations;
    DescribeClusterResponse {
        cluster_id: cluster.id,
        controller_id,
        brokers: brokers.collect(),
        cluster_authorized_operations: operations::told(asked, operations::CLUSTER),
        ..Default::default()
    }
}

/// Topics in order of name, from the cursor on: those asked for, or all.
pub(super) fn topic_partitions(
    broker: &Broker,
    request: DescribeTopicPartitionsRequest,
) -> DescribeTopicPartitionsResponse {
    let DescribeTopicPartitionsRequest { topics, response_partition_limit, cursor } = request;
    let asked: BTreeSet<String> = topics.into_iter().map(|topic| topic.name).collect();
    let topics: Vec<(String, Result<TopicDescription, ErrorCode>)> = if asked.is_empty() {
        broker.topics().into_iter().map(|topic| (topic.name.clone(), Ok(topic))).collect()
    } else {
        let find = |name: String| {
            let named = TopicRef::Name(name.clone());
            let found = broker.topic(&named).map_err(|error| missing(&named, error.code));
            (name, found)
        };
        asked.into_iter().map(find).collect()
    };
    let limit = usize::try_from(response_partition_limit).unwrap_or(0).clamp(1, PAGE_PARTITIONS_MAX);
    page(topics, cursor, limit)
}

/// At most `limit` partitions of `topics`, which are in order of name, from `cursor` on.
fn page(
    topics: Vec<(String, Result<TopicDescription, ErrorCode>)>,
    cursor: Option<Cursor>,
    limit: usize,
) -> DescribeTopicPartitionsResponse {
    let cursor = cursor.unwrap_or_default();
    let mut answer = DescribeTopicPartitionsResponse::default();
    let mut left = limit;
    for (name, topic) in topics.into_iter().filter(|(name, _)| *name >= cursor.topic_name) {
        // A topic that is gone since the last page does not lend its place to the next one.
        let from = if name == cursor.topic_name { usize::try_from(cursor.partition_index).unwrap_or(0) } else { 0 };
        if left == 0 {
            answer.next_cursor = Some(NextCursor { topic_name: name, partition_index: 0 });
            return answer;
        }
        let topic = match topic {
            Ok(topic) => topic,
            Err(code) => {
                answer.topics.push(DescribedTopic { error_code: code.kafka(), name: Some(name), ..Default::default() });
                continue;
            }
        };
        let partitions: Vec<DescribedPartition> =
            topic.partitions.iter().skip(from).take(left).map(described).collect();
        left -= partitions.len();
        let next = from + partitions.len();
        let more = next < topic.partitions.len();
        answer.topics.push(DescribedTopic {
            name: Some(topic.name),
            topic_id: topic.id,
            partitions,
            ..Default::default()
        });
        if more {
            let partition_index = i32::try_from(next).expect("partitions are counted in 31 bits");
            answer.next_cursor = Some(NextCursor { topic_name: name, partition_index });
            return answer;
        }
    }
    answer
}

fn described(partition: &PartitionDescription) -> DescribedPartition {
    DescribedPartition {
        error_code: if partition.leader.is_some() { 0 } else { ErrorCode::LeaderNotAvailable.kafka() },
        partition_index: partition.id.index.cast_signed(),
        leader_id: partition.leader.map_or(NO_BROKER, node_id),
        leader_epoch: partition.leader_epoch.0.cast_signed(),
        replica_nodes: node_ids(&partition.replicas),
        isr_nodes: node_ids(&partition.isr),
        eligible_leader_replicas: node_ids(&partition.elr),
        offline_replicas: node_ids(&partition.offline),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_log::{BrokerId, LeaderEpoch, PartitionId};
    use std::collections::BTreeMap;

    fn topic(name: &str, partitions: u32) -> (String, Result<TopicDescription, ErrorCode>) {
        let partition = |index| PartitionDescription {
            id: PartitionId { topic: TopicId(1), index },
            leader: Some(BrokerId(1)),
            leader_epoch: LeaderEpoch(3),
            replicas: vec![BrokerId(1), BrokerId(2)],
            isr: vec![BrokerId(1)],
            elr: vec![BrokerId(2)],
            offline: vec![BrokerId(2)],
            loss: None,
        };
        let partitions = (0..partitions).map(partition).collect();
        let topic = TopicDescription { id: TopicId(1), name: name.to_owned(), partitions, configs: BTreeMap::new() };
        (name.to_owned(), Ok(topic))
    }

    type Numbered<T> = Vec<(String, T)>;

    /// Every partition once, whatever the page's size: (topic, partition), and the errors of topics.
    fn all_pages(limit: usize) -> (Numbered<i32>, Numbered<i16>) {
        let (mut found, mut errors, mut cursor) = (Vec::new(), Vec::new(), None);
        loop {
            let missing = ("b".to_owned(), Err(ErrorCode::UnknownTopicOrPartition));
            let topics = vec![topic("a", 3), missing, topic("c", 5), topic("d", 1)];
            let answer = page(topics, cursor.take(), limit);
            assert!(answer.topics.iter().map(|topic| topic.partitions.len()).sum::<usize>() <= limit);
            for topic in answer.topics {
                let name = topic.name.expect("each has its name");
                if topic.error_code != 0 {
                    errors.push((name.clone(), topic.error_code));
                }
                found.extend(topic.partitions.iter().map(|partition| (name.clone(), partition.partition_index)));
            }
            let Some(NextCursor { topic_name, partition_index }) = answer.next_cursor else { return (found, errors) };
            cursor = Some(Cursor { topic_name, partition_index });
        }
    }

    #[test]
    fn pages_of_any_size_add_up_to_all_partitions() {
        let expected: Vec<(String, i32)> = [("a", 3), ("c", 5), ("d", 1)]
            .iter()
            .flat_map(|(name, count)| (0..*count).map(|at| ((*name).to_owned(), at)))
            .collect();
        for limit in 1..11 {
            let (found, errors) = all_pages(limit);
            assert_eq!(found, expected, "pages of {limit}");
            assert_eq!(errors, [("b".to_owned(), 3)], "pages of {limit}");
        }
    }

    #[test]
    fn a_partition_is_described_with_all_who_hold_it() {
        let (_, topic) = topic("a", 1);
        let partition = described(&topic.expect("it is there").partitions[0]);
        assert_eq!((partition.leader_id, partition.leader_epoch, partition.error_code), (1, 3, 0));
        assert_eq!((partition.replica_nodes, partition.isr_nodes), (vec![1, 2], vec![1]));
        assert_eq!((partition.eligible_leader_replicas, partition.offline_replicas), (vec![2], vec![2]));
    }
}
