//! WriteTxnMarkers: ends transactions in single partitions, whatever their coordinator knows of them. Kafka's tool aborts a hanging
//! transaction by it.

use super::super::wire::{requests, responses};
use super::instance;
use crate::Broker;
use crate::api::TopicRef;
use futures::future::join_all;
use millpond_log::transactions::{EndMarker, Marker, TxnOutcome};
use millpond_log::{CoordinatorEpoch, ErrorCode};

requests! {
    /// Markers to append.
    WriteTxnMarkersRequest {
        markers: Vec<WrittenMarker> => ..,
    }
    /// One transaction.
    WrittenMarker {
        producer_id: i64 => ..,
        producer_epoch: i16 => ..,
        committed: bool => ..,
        topics: Vec<MarkedTopic> => ..,
        coordinator_epoch: i32 => ..,
    }
    /// One topic.
    MarkedTopic {
        name: String => ..,
        partitions: Vec<i32> => ..,
    }
}

responses! {
    /// What became of each marker.
    WriteTxnMarkersResponse {
        markers: Vec<WrittenMarkerResult> => ..,
    }
    /// One transaction.
    WrittenMarkerResult {
        producer_id: i64 => ..,
        topics: Vec<MarkedTopicResult> => ..,
    }
    /// One topic.
    MarkedTopicResult {
        name: String => ..,
        partitions: Vec<MarkedPartitionResult> => ..,
    }
    /// One partition.
    MarkedPartitionResult {
        index: i32 => ..,
        error_code: i16 => ..,
    }
}

/// Appends the markers, where this broker leads. Those of one partition in the order of the request.
pub(in crate::front::kafka) async fn write_markers(
    broker: &Broker,
    request: WriteTxnMarkersRequest,
) -> WriteTxnMarkersResponse {
    let mut markers = Vec::with_capacity(request.markers.len());
    for WrittenMarker { producer_id, producer_epoch, committed, topics, coordinator_epoch } in request.markers {
        let marker = marker(producer_id, producer_epoch, committed, coordinator_epoch);
        let mut marked = Vec::with_capacity(topics.len());
        for MarkedTopic { name, partitions } in topics {
            let each = partitions.into_iter().map(|index| mark(broker, &name, index, marker));
            let partitions = join_all(each).await;
            marked.push(MarkedTopicResult { name, partitions });
        }
        markers.push(WrittenMarkerResult { producer_id, topics: marked });
    }
    WriteTxnMarkersResponse { markers }
}

/// The marker by Kafka's signed numbers. It carries the epoch that the transaction's records have: an operator read it off them.
fn marker(producer_id: i64, producer_epoch: i16, committed: bool, coordinator: i32) -> Result<Marker, ErrorCode> {
    let producer = instance(producer_id, producer_epoch)?;
    let coordinator = u32::try_from(coordinator).map_err(|_| ErrorCode::TransactionCoordinatorFenced)?;
    let outcome = if committed { TxnOutcome::Commit } else { TxnOutcome::Abort };
    let end = EndMarker { outcome, coordinator_epoch: CoordinatorEpoch(coordinator) };
    Ok(Marker { producer: producer.id, epoch: producer.epoch, raised: false, end })
}

async fn mark(broker: &Broker, topic: &str, index: i32, marker: Result<Marker, ErrorCode>) -> MarkedPartitionResult {
    let written = async {
        let marker = marker?;
        let number = u32::try_from(index).map_err(|_| ErrorCode::UnknownTopicOrPartition)?;
        broker.write_marker(&TopicRef::Name(topic.to_owned()), number, marker).await.map_err(|error| error.code)
    };
    MarkedPartitionResult { index, error_code: written.await.err().map_or(0, ErrorCode::kafka) }
}
