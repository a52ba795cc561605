//! What the client knows of the cluster: brokers, and topics with their leaders. A cache; decides nothing.

use crate::description::{BrokerDescription, PartitionDescription, TopicDescription};
use crate::error::Error;
use crate::leader::Leader;
use millpond_log::{BrokerId, ErrorCode, TopicId};
use millpond_proto::v1;
use std::collections::{BTreeMap, BTreeSet, HashMap};
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

impl Image {
    /// The topic, if known.
    pub(crate) fn topic(&self, name: &str) -> Option<&Known> {
        self.topics.get(name)
    }

    /// The names of those of `ids` that are known.
    pub(crate) fn names(&self, ids: &BTreeSet<TopicId>) -> BTreeMap<TopicId, String> {
        let wanted = self.topics.iter().filter(|(_, known)| ids.contains(&known.topic.id));
        wanted.map(|(name, known)| (known.topic.id, name.clone())).collect()
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

    /// A broker that may serve what is in object storage of a partition, whether it holds a copy or not: one in `rack` if there is
    /// one, and another for each partition.
    pub(crate) fn anyone(&self, topic: &str, partition: u32, rack: Option<&str>) -> Option<Leader> {
        let epoch = self.topics.get(topic)?.topic.partitions.get(partition as usize)?.leader_epoch;
        let near = |broker: &&BrokerDescription| rack.is_some() && broker.rack.as_deref() == rack;
        let mut brokers: Vec<&BrokerDescription> = self.brokers.values().filter(near).collect();
        if brokers.is_empty() {
            brokers = self.brokers.values().collect();
        }
        let lot = topic.bytes().fold(partition, |lot, byte| lot.wrapping_mul(31).wrapping_add(u32::from(byte)));
        let broker = brokers.get((lot as usize).checked_rem(brokers.len())?)?;
        Some(Leader { broker: broker.id, epoch, address: broker.grpc.clone() })
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

    /// Takes the word of a broker that another leads a partition, unless what is known is as new (KIP-951). Returns whether it was
    /// news.
    pub(crate) fn adopt(&mut self, topic: &str, partition: u32, leader: &Leader) -> bool {
        let Some(known) = self.topics.get_mut(topic) else { return false };
        let index = partition as usize;
        if known.topic.partitions.get(index).is_none_or(|known| known.leader_epoch >= leader.epoch) {
            return false;
        }
        let partition = &mut Arc::make_mut(&mut known.topic).partitions[index];
        (partition.leader, partition.leader_epoch) = (Some(leader.broker), leader.epoch);
        let named = BrokerDescription {
            id: leader.broker,
            rack: None,
            grpc: leader.address.clone(),
            kafka: String::new(),
            http: String::new(),
        };
        self.brokers.entry(leader.broker).or_insert(named).grpc.clone_from(&leader.address);
        true
    }

    /// Where a broker is reached.
    pub(crate) fn address(&self, broker: BrokerId) -> Option<String> {
        self.brokers.get(&broker).map(|broker| broker.grpc.clone())
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
        let known_before = std::mem::take(&mut self.brokers);
        self.brokers = brokers.map(|broker| (broker.id, broker)).collect();
        let mut failed = Vec::new();
        for (name, told) in names.iter().zip(answer.topics) {
            match told.result {
                Some(v1::topic_metadata::Result::Topic(topic)) => {
                    let mut topic = TopicDescription::try_from(topic)?;
                    if let Some(known) = self.topics.get(name).filter(|known| known.topic.id == topic.id) {
                        for leader in keep_newer(&known.topic.partitions, &mut topic.partitions) {
                            let before = known_before.get(&leader);
                            before.map(|before| self.brokers.entry(leader).or_insert_with(|| before.clone()));
                        }
                    }
                    self.topics.insert(name.clone(), Known { topic: Arc::new(topic), at: now });
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

/// Keeps what is known of a later epoch than a broker told that has not heard of it yet. Returns the leaders so kept.
fn keep_newer(known: &[PartitionDescription], told: &mut [PartitionDescription]) -> Vec<BrokerId> {
    let mut kept = Vec::new();
    for (known, told) in known.iter().zip(told) {
        if known.leader_epoch > told.leader_epoch {
            told.clone_from(known);
            kept.extend(known.leader);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_log::LeaderEpoch;

    fn answer(leader: u32, epoch: u32) -> v1::MetadataResponse {
        let broker = |id: u32| v1::BrokerDescription { id, grpc: format!("b{id}:7400"), ..Default::default() };
        let partition =
            v1::PartitionDescription { index: 0, leader: Some(leader), leader_epoch: epoch, ..Default::default() };
        let id = millpond_log::TopicId(1).to_string();
        let topic =
            v1::TopicDescription { id, name: "t".to_owned(), partitions: vec![partition], ..Default::default() };
        let result = Some(v1::topic_metadata::Result::Topic(topic));
        v1::MetadataResponse {
            brokers: vec![broker(1), broker(2)],
            topics: vec![v1::TopicMetadata { result }],
            ..Default::default()
        }
    }

    fn leader(image: &Image) -> Option<(u32, u32, String)> {
        image.leader("t", 0).map(|leader| (leader.broker.0, leader.epoch.0, leader.address))
    }

    fn told(broker: u32, epoch: u32, address: &str) -> Leader {
        Leader { broker: BrokerId(broker), epoch: LeaderEpoch(epoch), address: address.to_owned() }
    }

    #[test]
    fn anyone_is_of_the_rack_and_another_for_each_partition() {
        let mut image = Image::default();
        let mut told = answer(1, 3);
        for (broker, rack) in told.brokers.iter_mut().zip(["a", "b"]) {
            broker.rack = Some(rack.to_owned());
        }
        let Some(v1::topic_metadata::Result::Topic(topic)) = &mut told.topics[0].result else {
            unreachable!("a topic")
        };
        topic.partitions.push(v1::PartitionDescription { index: 1, leader_epoch: 5, ..Default::default() });
        image.learn(&["t".to_owned()], told, Instant::now()).expect("an answer to the question");
        let anyone = |partition, rack| image.anyone("t", partition, rack).map(|found| (found.broker.0, found.epoch.0));
        let (first, second) = (anyone(0, None).expect("there are two"), anyone(1, None).expect("nobody leads it"));
        assert_ne!(first.0, second.0);
        assert_eq!((first.1, second.1), (3, 5));
        for partition in [0, 1] {
            assert_eq!(anyone(partition, Some("b")).map(|found| found.0), Some(2));
            assert_eq!(anyone(partition, Some("elsewhere")), anyone(partition, None));
        }
        assert_eq!(anyone(2, None), None);
    }

    #[test]
    fn the_newest_leader_is_kept_whoever_tells() {
        let mut image = Image::default();
        let learn = |image: &mut Image, leader, epoch| {
            let failed = image.learn(&["t".to_owned()], answer(leader, epoch), Instant::now());
            assert!(failed.expect("an answer to the question").is_empty());
        };
        assert!(!image.adopt("t", 0, &told(2, 9, "b2:7400")), "nothing is known of the topic");
        learn(&mut image, 1, 3);
        assert!(!image.adopt("t", 0, &told(2, 3, "b2:7400")), "no newer than what is known");
        assert!(!image.adopt("t", 1, &told(2, 4, "b2:7400")), "no such partition");
        assert!(image.adopt("t", 0, &told(3, 4, "b3:7400")), "a broker that was not known either");
        assert_eq!(leader(&image), Some((3, 4, "b3:7400".to_owned())));
        learn(&mut image, 1, 3);
        assert_eq!(
            leader(&image),
            Some((3, 4, "b3:7400".to_owned())),
            "a broker that lags knows neither it nor its epoch"
        );
        learn(&mut image, 2, 6);
        assert_eq!(leader(&image), Some((2, 6, "b2:7400".to_owned())));
    }
}
