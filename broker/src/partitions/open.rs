//! Transactions that are open in partitions which are led here, for operators who look for those that hang: of what replicas know, so that
//! it can be asked of thousands at once.

use crate::api::ApiError;
use millpond_core::records::ProducerInstance;
use millpond_core::replica::Replica;
use millpond_log::{ErrorCode, Offset, PartitionId, ProducerId, TimestampMs};
use std::sync::Arc;
use tokio::sync::oneshot;

/// What a transaction has open in one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenTransaction {
    pub(crate) partition: PartitionId,
    pub(crate) producer: ProducerInstance,
    /// First offset of it.
    pub(crate) first: Offset,
    /// When its newest batch was appended.
    pub(crate) written: TimestampMs,
}

/// A question about many partitions, and where the answer goes: those that are led here.
pub(crate) struct AskedOpen {
    pub(crate) partitions: Arc<[PartitionId]>,
    /// Only those that were not written to after this.
    pub(crate) written_by: TimestampMs,
    pub(crate) reply: oneshot::Sender<Vec<OpenTransaction>>,
}

impl AskedOpen {
    /// Answers from the replicas that are here.
    pub(crate) fn answer<'a>(self, replica: impl Fn(PartitionId) -> Option<&'a Replica>) {
        let led = self.partitions.iter().filter_map(|id| Some((*id, replica(*id)?)));
        let led = led.filter(|(_, replica)| replica.leading().is_some() && replica.producers().first_open().is_some());
        let open = led.flat_map(|(partition, replica)| open_in(partition, replica));
        let found = open.filter(|open| open.written <= self.written_by).collect();
        // Who asked may have waited long enough.
        let _ = self.reply.send(found);
    }
}

fn open_in(partition: PartitionId, replica: &Replica) -> impl Iterator<Item = OpenTransaction> {
    replica.producers().summaries().filter_map(move |summary| {
        let producer = ProducerInstance { id: summary.id, epoch: summary.epoch };
        Some(OpenTransaction { partition, producer, first: summary.transaction_start?, written: summary.last_append })
    })
}

/// Whether the producer's open transaction begins there.
pub(crate) fn is_open(replica: &Replica, producer: ProducerId, first: Offset) -> bool {
    replica.producers().open().any(|open| open.producer == producer && open.first == first)
}

/// The refusal to end what is not open.
pub(crate) fn not_open() -> ApiError {
    ApiError::new(
        ErrorCode::InvalidTxnState,
        "no such transaction is open in the partition; it may have ended meanwhile",
    )
}
