//! DescribeProducers: which producers have written to partitions that are led here, and where their transactions began.

use super::wire::{requests, responses};
use crate::Broker;
use crate::api::TopicRef;
use futures::future::join_all;
use millpond_log::ErrorCode;
use millpond_log::producers::ProducerSummary;

requests! {
    /// Of which partitions.
    DescribeProducersRequest {
        topics: Vec<ProducersTopic> => ..,
    }
    /// One topic.
    ProducersTopic {
        name: String => ..,
        partitions: Vec<i32> => ..,
    }
}

responses! {
    /// The producers.
    DescribeProducersResponse {
        throttle_time_ms: i32 => ..,
        topics: Vec<ProducersTopicResult> => ..,
    }
    /// One topic.
    ProducersTopicResult {
        name: String => ..,
        partitions: Vec<ProducersOfPartition> => ..,
    }
    /// One partition.
    ProducersOfPartition {
        index: i32 => ..,
        error_code: i16 => ..,
        error_message: Option<String> => ..,
        producers: Vec<ActiveProducer> => ..,
    }
    /// One producer; -1 for what there is not.
    ActiveProducer {
        producer_id: i64 => ..,
        producer_epoch: i32 => ..,
        last_sequence: i32 = -1 => ..,
        last_timestamp: i64 = -1 => ..,
        coordinator_epoch: i32 = -1 => ..,
        transaction_start: i64 = -1 => ..,
    }
}

/// Describes partition by partition. A request's bytes bound how many there are.
pub(super) async fn answer(broker: &Broker, request: DescribeProducersRequest) -> DescribeProducersResponse {
    let mut topics = Vec::with_capacity(request.topics.len());
    for ProducersTopic { name, partitions } in request.topics {
        let asked = partitions.into_iter().map(|index| of_partition(broker, TopicRef::Name(name.clone()), index));
        topics.push(ProducersTopicResult { partitions: join_all(asked).await, name });
    }
    DescribeProducersResponse { throttle_time_ms: 0, topics }
}

async fn of_partition(broker: &Broker, topic: TopicRef, index: i32) -> ProducersOfPartition {
    let Ok(number) = u32::try_from(index) else {
        let error_code = ErrorCode::UnknownTopicOrPartition.kafka();
        return ProducersOfPartition { index, error_code, ..Default::default() };
    };
    match broker.active_producers(&topic, number).await {
        Ok(found) => {
            ProducersOfPartition { index, producers: found.into_iter().map(active).collect(), ..Default::default() }
        }
        Err(error) => ProducersOfPartition {
            index,
            error_code: error.code.kafka(),
            error_message: Some(error.message),
            ..Default::default()
        },
    }
}

fn active(summary: ProducerSummary) -> ActiveProducer {
    let ProducerSummary { id, epoch, last_sequence, last_append, coordinator_epoch, transaction_start } = summary;
    ActiveProducer {
        producer_id: id.0.cast_signed(),
        producer_epoch: i32::from(epoch.0),
        last_sequence: last_sequence.unwrap_or(-1),
        last_timestamp: last_append.0,
        coordinator_epoch: coordinator_epoch.map_or(-1, |epoch| epoch.0.cast_signed()),
        transaction_start: transaction_start.map_or(-1, |first| first.0.cast_signed()),
    }
}
