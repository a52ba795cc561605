//! Which producers have written to a partition of late, as its leader knows them: for operators who look for a hanging transaction.

use crate::api::{ApiError, TopicRef};
use crate::broker::{Broker, stopping};
use crate::partitions::messages::ShardMsg;
use millpond_log::producers::ProducerSummary;
use tokio::sync::oneshot;

impl Broker {
    /// The producers that the partition remembers, by id, with their open transactions; at most 10 000 (rule T4).
    ///
    /// # Errors
    /// Of the partition: unknown, or not led here.
    pub async fn active_producers(&self, topic: &TopicRef, partition: u32) -> Result<Vec<ProducerSummary>, ApiError> {
        let found = self.counted("DescribeProducers", self.find_producers(topic, partition).await);
        found.map_err(|error| self.naming_leader(topic, partition, error))
    }

    async fn find_producers(&self, topic: &TopicRef, partition: u32) -> Result<Vec<ProducerSummary>, ApiError> {
        let (_, handle) = self.inner().catalog.partition(topic, partition)?;
        let (reply, answer) = oneshot::channel();
        let asked = ShardMsg::Producers { partition: handle.id, reply };
        handle.local()?.shard.send(asked).map_err(|_| stopping())?;
        answer.await.map_err(|_| stopping())?
    }
}
