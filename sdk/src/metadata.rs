//! What the client knows of the cluster: brokers, and topics with their leaders. A cache; decides nothing.

use crate::description::{BrokerDescription, PartitionDescription, TopicDescription};
use crate::error::Error;
use millpond_log::{BrokerId, ErrorCode, LeaderEpoch};
use millpond_proto::v1;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tokio::time::Instant;

/// The image of the cluster, as of the newest answers.
#[derive(Debug, Default)]
pub(crate) struct Image {
    brokers: BTreeMap<BrokerId, BrokerDescription>,
    topics: HashMap<String, Known>,
}

/// What is known of a topic, and since when.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) topic: Arc<TopicDescription>,
    pub(crate) at: Instant,
}

/// Who leads a partition, and where to reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leader {
    pub(crate) broker: BrokerId,
    pub(crate) epoch: LeaderEpoch,
    pub(crate) address: String,
}

impl Image {
    /// The topic, if known.
    pub(crate) fn topic(&self, name: &str) -> Option<&Known> {
        self.topics.get(name)
    }

    /// The leader of a partition, if it is known and has an address.
    pub(crate) fn leader(&self, topic: &str, partition: u32) -> Option<Leader> {
        let partition: &PartitionDescription = self.topics.get(topic)?.topic.partitions.get(partition as usize)?;
        let broker = self.brokers.get(&partition.leader?)?;
        Some(Leader { broker: broker.id, epoch: partition.leader_epoch, address: broker.grpc.clone() })
    }

    /// Who can be read from: the leader, or a broker that serves what is in object storage of a partition nobody may lead.
    pub(crate) fn reader(&self, topic: &str, partition: u32) -> Option<Leader> {
        self.leader(topic, partition).or_else(|| {
            let partition = self.topics.get(topic)?.topic.partitions.get(partition as usize)?;
            partition.loss.as_ref()?;
            let broker = partition.replicas.iter().find_map(|replica| self.brokers.get(replica))?;
            Some(Leader { broker: broker.id, epoch: partition.leader_epoch, address: broker.grpc.clone() })
        })
    }

    /// Why a partition has no leader, as far as is known.
    pub(crate) fn leaderless(&self, topic: &str, partition: u32) -> Error {
        let known = self.topics.get(topic).and_then(|known| known.topic.partitions.get(partition as usize));
        let message = match known.and_then(|known| known.loss.as_ref()) {
            Some(loss) => format!("{topic}:{partition} has no leader: {loss}; accept that with `{}`", loss.command),
            None => format!("{topic}:{partition} has no leader"),
        };
        Error::new(ErrorCode::LeaderNotAvailable, message)
    }

    /// Addresses of all brokers.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.brokers.values().map(|broker| broker.grpc.clone()).collect()
    }

    /// Takes in an answer to a question about `names`, asked before `now`. Returns what went wrong, by topic.
    pub(crate) fn learn(
        &mut self,
        names: &[String],
        answer: v1::MetadataResponse,
        now: Instant,
    ) -> Result<Vec<(String, Error)>, Error> {
        if answer.topics.len() != names.len() {
            return Err(Error::new(ErrorCode::UnknownServerError, "metadata about other topics than were asked for"));
        }
        let brokers = answer.brokers.into_iter().map(BrokerDescription::from);
        self.brokers = brokers.map(|broker| (broker.id, broker)).collect();
        let mut failed = Vec::new();
        for (name, told) in names.iter().zip(answer.topics) {
            match told.result {
                Some(v1::topic_metadata::Result::Topic(topic)) => {
                    let topic = Arc::new(TopicDescription::try_from(topic)?);
                    self.topics.insert(name.clone(), Known { topic, at: now });
                }
                Some(v1::topic_metadata::Result::Error(error)) => {
                    self.topics.remove(name);
                    failed.push((name.clone(), Error::from(error)));
                }
                None => return Err(Error::new(ErrorCode::UnknownServerError, "metadata without a topic")),
            }
        }
        Ok(failed)
    }
}
