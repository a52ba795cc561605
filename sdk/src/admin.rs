//! Topics, partitions and the cluster, for operators and tools.

use crate::client::{Client, Repeat, admin_client, answer, log_client};
use crate::description::{
    AcceptedLoss, ClusterDescription, FoundOffset, LastKnown, LostBroker, PartitionLoss, PartitionStatus,
    TopicDescription,
};
use crate::error::Error;
use crate::isolation::IsolationLevel;
use crate::record::TopicPartition;
use futures::stream::{self, StreamExt, TryStreamExt};
use millpond_log::{BrokerId, ErrorCode, LeaderEpoch, Offset, TimestampMs, TopicId};
use millpond_proto::v1;
use std::collections::BTreeMap;
use std::time::Duration;
use tonic::transport::Channel;

/// The admin API of a cluster. Cheap to clone.
///
/// Calls are tried again, up to `ClientConfig::api_timeout`, when that is known to be harmless.
#[derive(Clone, Debug)]
pub struct Admin {
    pub(crate) client: Client,
}

/// A topic to create. `NewTopic::new(name)` takes the brokers' defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewTopic {
    /// Its name, by Kafka's rules.
    pub name: String,
    /// How many partitions; the broker's default if `None`.
    pub partitions: Option<u32>,
    /// How many copies of each; the broker's default if `None`.
    pub replication_factor: Option<u32>,
    /// Settings by Kafka's names.
    pub configs: BTreeMap<String, String>,
}

impl NewTopic {
    /// A topic with the brokers' defaults.
    pub fn new(name: impl Into<String>) -> NewTopic {
        NewTopic { name: name.into(), ..NewTopic::default() }
    }
}

/// Which offset of a partition is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffsetSpec {
    /// The log start offset.
    Earliest,
    /// The end of what is committed.
    Latest,
    /// The first record with the largest timestamp.
    MaxTimestamp,
    /// The first offset on the leader's own disk.
    EarliestLocal,
    /// The last offset in object storage.
    LatestTiered,
    /// The earliest record at or after this time.
    AtOrAfter(TimestampMs),
}

/// Partitions of a topic that are flushed at once: enough to share objects, few enough for a broker to take.
const FLUSHES_MAX: usize = 64;

impl Admin {
    /// The admin API of the client's cluster.
    #[must_use]
    pub fn new(client: &Client) -> Admin {
        Admin { client: client.clone() }
    }

    /// Creates a topic; its partitions have leaders when this returns.
    ///
    /// # Errors
    /// `TopicAlreadyExists`, `InvalidTopic`, `InvalidPartitions`, `InvalidReplicationFactor`, `InvalidConfig`. One with
    /// `maybe_done` set: ask whether it exists.
    pub async fn create_topic(&self, topic: NewTopic) -> Result<TopicDescription, Error> {
        self.create(topic, false).await
    }

    /// Checks whether a topic could be created.
    ///
    /// # Errors
    /// As `create_topic`.
    pub async fn validate_topic(&self, topic: NewTopic) -> Result<(), Error> {
        self.create(topic, true).await.map(|_| ())
    }

    async fn create(&self, topic: NewTopic, validate_only: bool) -> Result<TopicDescription, Error> {
        let NewTopic { name, partitions, replication_factor, configs } = topic;
        let request = v1::CreateTopicRequest { name, partitions, replication_factor, configs, validate_only };
        let call = |channel| {
            let request = request.clone();
            async move { answer(admin_client(channel).create_topic(request).await) }
        };
        described(self.client.call(Repeat::IfNotDone, call).await?.topic)
    }

    /// Deletes a topic and its records, for good.
    ///
    /// # Errors
    /// `UnknownTopicOrPartition`.
    pub async fn delete_topic(&self, name: &str) -> Result<(), Error> {
        let call = |channel| async move {
            let request = v1::DeleteTopicRequest { topic: Some(v1::TopicRef::name(name)) };
            answer(admin_client(channel).delete_topic(request).await)
        };
        self.client.call(Repeat::IfNotDone, call).await.map(|_| ())
    }

    /// Describes a topic as the broker knows it that heard from the metadata store last.
    ///
    /// # Errors
    /// `UnknownTopicOrPartition`.
    pub async fn describe_topic(&self, name: &str) -> Result<TopicDescription, Error> {
        self.last_known_topic(name).await.map(|known| known.value)
    }

    /// The same, and for how long nobody has known how the topic is now.
    ///
    /// # Errors
    /// As `describe_topic`.
    pub async fn last_known_topic(&self, name: &str) -> Result<LastKnown<TopicDescription>, Error> {
        let call = |channel, allow_stale| async move {
            let request = v1::DescribeTopicRequest { topic: Some(v1::TopicRef::name(name)), allow_stale };
            let v1::DescribeTopicResponse { topic, stale_ms } =
                answer(admin_client(channel).describe_topic(request).await)?;
            Ok(last_known(described(topic)?, stale_ms))
        };
        self.client.ask_for_last_known(call).await
    }

    /// Describes all topics, in order of name.
    ///
    /// # Errors
    /// If no broker answers, or none has heard from the metadata store lately.
    pub async fn list_topics(&self) -> Result<Vec<TopicDescription>, Error> {
        let call = |channel| topics_of(channel, false);
        self.client.ask(call).await.map(|known| known.value)
    }

    /// All topics, in order of name, as the broker knows them that heard from the metadata store last.
    ///
    /// # Errors
    /// If no broker answers.
    pub async fn last_known_topics(&self) -> Result<LastKnown<Vec<TopicDescription>>, Error> {
        self.client.ask_for_last_known(topics_of).await
    }

    /// Sets (`Some`) and unsets (`None`) settings of a topic: all, or on an error none.
    ///
    /// # Errors
    /// `UnknownTopicOrPartition`, `InvalidConfig`.
    pub async fn alter_topic(&self, name: &str, changes: BTreeMap<String, Option<String>>) -> Result<(), Error> {
        let mut request = v1::AlterTopicRequest { topic: Some(v1::TopicRef::name(name)), ..Default::default() };
        for (key, value) in changes {
            match value {
                Some(value) => drop(request.set.insert(key, value)),
                None => request.unset.push(key),
            }
        }
        let call = |channel| {
            let request = request.clone();
            async move { answer(admin_client(channel).alter_topic(request).await) }
        };
        self.client.call(Repeat::Safe, call).await.map(|_| ())
    }

    /// Grows a topic to `total` partitions. Keys go to other partitions from then on.
    ///
    /// # Errors
    /// `UnknownTopicOrPartition`, `InvalidPartitions`.
    pub async fn create_partitions(&self, name: &str, total: u32) -> Result<(), Error> {
        let call = |channel| async move {
            let topic = Some(v1::TopicRef::name(name));
            let request = v1::CreatePartitionsRequest { topic, total, validate_only: false };
            answer(admin_client(channel).create_partitions(request).await)
        };
        self.client.call(Repeat::IfNotDone, call).await.map(|_| ())
    }

    /// Deletes a partition's records before `before` (`None`: all that are committed). Returns the log start offset.
    ///
    /// # Errors
    /// `UnknownTopicOrPartition`, `OffsetOutOfRange`.
    pub async fn delete_records(&self, name: &str, partition: u32, before: Option<Offset>) -> Result<Offset, Error> {
        let call = |channel| async move {
            let topic = Some(v1::TopicRef::name(name));
            let request = v1::DeleteRecordsRequest { topic, partition, before: before.map(|offset| offset.0) };
            answer(admin_client(channel).delete_records(request).await)
        };
        Ok(Offset(self.client.call_leader(name, partition, call).await?.log_start))
    }

    /// Uploads what is committed of every partition of a topic; returns when that is done.
    ///
    /// # Errors
    /// `UnknownTopicOrPartition`, `KafkaStorageError`.
    pub async fn flush_topic(&self, name: &str) -> Result<(), Error> {
        let topic = self.describe_topic(name).await?;
        let flush = |partition| {
            let call = move |channel| async move {
                let topic = Some(v1::TopicRef::name(name));
                let request = v1::FlushTopicRequest { topic, partition: Some(partition) };
                answer(admin_client(channel).flush_topic(request).await)
            };
            self.client.call_leader(name, partition, call)
        };
        // Each at its leader. Of a partition that nobody may lead there is nothing to upload.
        let led = topic.partitions.iter().filter(|partition| partition.loss.is_none());
        stream::iter(led.map(|partition| flush(partition.index)))
            .buffer_unordered(FLUSHES_MAX)
            .try_for_each(async |_| Ok(()))
            .await
    }

    /// Describes the cluster.
    ///
    /// # Errors
    /// If no broker answers, or none has heard from the metadata store lately.
    pub async fn describe_cluster(&self) -> Result<ClusterDescription, Error> {
        let call = |channel| cluster_of(channel, false);
        self.client.ask(call).await.map(|known| known.value)
    }

    /// The cluster as the broker knows it that heard from the metadata store last.
    ///
    /// # Errors
    /// If no broker answers.
    pub async fn last_known_cluster(&self) -> Result<LastKnown<ClusterDescription>, Error> {
        self.client.ask_for_last_known(cluster_of).await
    }

    /// Offsets and sizes of one partition's log.
    ///
    /// # Errors
    /// `UnknownTopicOrPartition`.
    pub async fn partition_status(&self, name: &str, partition: u32) -> Result<PartitionStatus, Error> {
        let call = |channel| async move {
            let request = v1::DescribePartitionRequest { topic: Some(v1::TopicRef::name(name)), partition };
            answer(admin_client(channel).describe_partition(request).await)
        };
        self.client.call_reader(name, partition, call).await.map(PartitionStatus::from)
    }

    /// Offsets and sizes of all partitions of these topics, or of all topics if none is named, by topic id and index: one answer for thousands
    /// of them. Those without a leader, or whose leader did not answer in time, are not in it.
    ///
    /// # Errors
    /// `UnknownTopicOrPartition`.
    pub async fn partition_states(&self, names: &[&str]) -> Result<BTreeMap<(TopicId, u32), PartitionStatus>, Error> {
        let topics: Vec<v1::TopicRef> = names.iter().map(|name| v1::TopicRef::name(*name)).collect();
        let call = |channel| {
            let request = v1::DescribePartitionsRequest { topics: topics.clone() };
            async move { answer(admin_client(channel).describe_partitions(request).await) }
        };
        let told = self.client.call(Repeat::Safe, call).await?.partitions;
        let state = |told: v1::PartitionState| {
            let id = told.topic_id.parse().map_err(|_| {
                Error::new(ErrorCode::UnknownServerError, format!("`{}` is no topic id", told.topic_id))
            })?;
            Ok(((id, told.partition), PartitionStatus::from(told.state.unwrap_or_default())))
        };
        told.into_iter().map(state).collect()
    }

    /// Accepts that what only a lost copy of a partition held is gone, for good: a broker leads it again, from what is left.
    ///
    /// # Errors
    /// `InvalidRequest`: it has lost nothing. One with `maybe_done` set: ask whether the partition has a leader.
    pub async fn accept_loss(&self, name: &str, partition: u32) -> Result<AcceptedLoss, Error> {
        self.loss(name, partition, false).await
    }

    /// What `accept_loss` would accept.
    ///
    /// # Errors
    /// `InvalidRequest`: it has lost nothing.
    pub async fn validate_loss(&self, name: &str, partition: u32) -> Result<AcceptedLoss, Error> {
        self.loss(name, partition, true).await
    }

    async fn loss(&self, name: &str, partition: u32, validate_only: bool) -> Result<AcceptedLoss, Error> {
        let call = |channel| async move {
            let topic = Some(v1::TopicRef::name(name));
            let request = v1::AcceptLossRequest { topic, partition, validate_only };
            answer(admin_client(channel).accept_loss(request).await)
        };
        let accepted = self.client.call(Repeat::IfNotDone, call).await?;
        let none = || Error::new(ErrorCode::UnknownServerError, "the broker answered without the loss");
        let loss = accepted.loss.map(PartitionLoss::from).ok_or_else(none)?;
        Ok(AcceptedLoss { loss, leader_epoch: accepted.leader_epoch.map(LeaderEpoch) })
    }

    /// Moves a partition's replicas to the brokers `to`, the preferred leader first. Returns once that is decided: it is done when the
    /// partition's replicas are these alone, and all in sync.
    ///
    /// # Errors
    /// `UnknownTopicOrPartition`, `InvalidReplicaAssignment`.
    pub async fn move_partition(&self, name: &str, partition: u32, to: &[BrokerId]) -> Result<(), Error> {
        let to: Vec<u32> = to.iter().map(|broker| broker.0).collect();
        let call = |channel| {
            let to = to.clone();
            async move {
                let topic = Some(v1::TopicRef::name(name));
                let request = v1::MovePartitionRequest { topic, partition, to };
                answer(admin_client(channel).move_partition(request).await)
            }
        };
        self.client.call(Repeat::Safe, call).await.map(|_| ())
    }

    /// Has a partition's preferred replica lead it. Returns who leads.
    ///
    /// # Errors
    /// `UnknownTopicOrPartition`; `PreferredLeaderNotAvailable`: it is not in sync.
    pub async fn elect_leader(&self, name: &str, partition: u32) -> Result<BrokerId, Error> {
        let call = |channel| async move {
            let request = v1::ElectLeaderRequest { topic: Some(v1::TopicRef::name(name)), partition };
            answer(admin_client(channel).elect_leader(request).await)
        };
        self.client.call(Repeat::Safe, call).await.map(|elected| BrokerId(elected.leader))
    }

    /// Marks a broker as one to be left: its leaderships and replicas go elsewhere. With `undo` it gets its share again.
    ///
    /// # Errors
    /// `InvalidRequest`: there never was such a broker.
    pub async fn drain_broker(&self, broker: BrokerId, undo: bool) -> Result<(), Error> {
        let call = |channel| async move {
            answer(admin_client(channel).drain_broker(v1::DrainBrokerRequest { broker: broker.0, undo }).await)
        };
        self.client.call(Repeat::Safe, call).await.map(|_| ())
    }

    /// Forgets a broker that will not come back.
    ///
    /// # Errors
    /// `InvalidRequest`: it runs, a partition names it, or there is no such broker.
    pub async fn forget_broker(&self, broker: BrokerId) -> Result<(), Error> {
        let call = |channel| async move {
            let request = v1::ForgetBrokerRequest { broker: broker.0, ..v1::ForgetBrokerRequest::default() };
            answer(admin_client(channel).forget_broker(request).await)
        };
        self.client.call(Repeat::IfNotDone, call).await.map(|_| ())
    }

    /// Says that a broker's disk is gone for good, and forgets the broker if no partition names it. Returns what does: what it had the last
    /// copy of waits for `accept_loss`, and its other replicas go elsewhere; call `forget_broker` then.
    ///
    /// The broker must not run, for what it still acknowledged would be lost: one that is seen to run is refused, and one that does not answer
    /// too, for it may run. With `machine_gone` the latter counts as stopped: to be said by who knows that its machine is gone. This cannot be
    /// taken back: should the disk come back, it counts as an empty one.
    ///
    /// # Errors
    /// `InvalidRequest`: it runs, it is not known whether it does, or there is no such broker.
    pub async fn forget_lost_broker(&self, broker: BrokerId, machine_gone: bool) -> Result<LostBroker, Error> {
        self.lost_broker(broker, machine_gone, false).await
    }

    /// What `forget_lost_broker` would come to. Nothing is changed.
    ///
    /// # Errors
    /// As `forget_lost_broker`.
    pub async fn validate_lost_broker(&self, broker: BrokerId, machine_gone: bool) -> Result<LostBroker, Error> {
        self.lost_broker(broker, machine_gone, true).await
    }

    async fn lost_broker(
        &self,
        broker: BrokerId,
        machine_gone: bool,
        validate_only: bool,
    ) -> Result<LostBroker, Error> {
        let call = |channel| async move {
            let request = v1::ForgetBrokerRequest { broker: broker.0, lost: true, validate_only, machine_gone };
            answer(admin_client(channel).forget_broker(request).await)
        };
        let v1::ForgetBrokerResponse { partitions, last_copies } = self.client.call(Repeat::IfNotDone, call).await?;
        let place = |last: v1::LastCopy| TopicPartition::new(last.topic, last.partition);
        Ok(LostBroker { partitions, last_copies: last_copies.into_iter().map(place).collect() })
    }

    /// Looks up an offset; `None` when no record qualifies.
    ///
    /// # Errors
    /// `UnknownTopicOrPartition`, `OffsetNotAvailable`.
    pub async fn list_offset(
        &self,
        name: &str,
        partition: u32,
        spec: OffsetSpec,
    ) -> Result<Option<FoundOffset>, Error> {
        find_offset(&self.client, name, partition, spec, v1::Isolation::ReadUncommitted).await
    }

    /// As `list_offset`, as a consumer of this isolation sees it: to one of committed records the latest offset is the last stable one.
    ///
    /// # Errors
    /// As `list_offset`.
    pub async fn list_offset_seen_by(
        &self,
        isolation: IsolationLevel,
        name: &str,
        partition: u32,
        spec: OffsetSpec,
    ) -> Result<Option<FoundOffset>, Error> {
        find_offset(&self.client, name, partition, spec, isolation.on_the_wire()).await
    }
}

/// Looks up an offset at the partition's leader, or, of a partition nobody may lead, at whoever serves the rest of it.
pub(crate) async fn find_offset(
    client: &Client,
    topic: &str,
    partition: u32,
    spec: OffsetSpec,
    isolation: v1::Isolation,
) -> Result<Option<FoundOffset>, Error> {
    use v1::OffsetPosition as P;
    use v1::offset_query::Spec;
    let spec = match spec {
        OffsetSpec::Earliest => Spec::Position(P::Earliest.into()),
        OffsetSpec::Latest => Spec::Position(P::Latest.into()),
        OffsetSpec::MaxTimestamp => Spec::Position(P::MaxTimestamp.into()),
        OffsetSpec::EarliestLocal => Spec::Position(P::EarliestLocal.into()),
        OffsetSpec::LatestTiered => Spec::Position(P::LatestTiered.into()),
        OffsetSpec::AtOrAfter(time) => Spec::AtOrAfterMs(time.0),
    };
    let call = |channel| async move {
        let query = v1::OffsetQuery {
            topic: Some(v1::TopicRef::name(topic)),
            partition,
            spec: Some(spec),
            current_leader_epoch: None,
        };
        let request = v1::ListOffsetsRequest { queries: vec![query], isolation: isolation.into() };
        match answer(log_client(channel).list_offsets(request).await)?.results.pop() {
            // The refusal of the only query is the refusal of the call, and is tried again as such.
            Some(v1::OffsetResult { error: Some(error), .. }) => Err(Error::from(error)),
            Some(found) => Ok(found),
            None => Err(Error::new(ErrorCode::UnknownServerError, "no answer to the offset asked for")),
        }
    };
    let found = client.call_reader(topic, partition, call).await?;
    Ok(found.offset.map(|offset| FoundOffset {
        offset: Offset(offset),
        timestamp: found.timestamp_ms.map(TimestampMs),
        leader_epoch: found.leader_epoch.map(LeaderEpoch),
    }))
}

async fn topics_of(channel: Channel, allow_stale: bool) -> Result<LastKnown<Vec<TopicDescription>>, Error> {
    let asked = admin_client(channel).list_topics(v1::ListTopicsRequest { allow_stale }).await;
    let v1::ListTopicsResponse { topics, stale_ms } = answer(asked)?;
    let topics = topics.into_iter().map(TopicDescription::try_from).collect::<Result<_, Error>>()?;
    Ok(last_known(topics, stale_ms))
}

async fn cluster_of(channel: Channel, allow_stale: bool) -> Result<LastKnown<ClusterDescription>, Error> {
    let told = answer(admin_client(channel).describe_cluster(v1::DescribeClusterRequest { allow_stale }).await)?;
    let stale_ms = told.stale_ms;
    Ok(last_known(ClusterDescription::from(told), stale_ms))
}

fn last_known<T>(value: T, stale_ms: Option<u64>) -> LastKnown<T> {
    LastKnown { value, stale_for: stale_ms.map(Duration::from_millis) }
}

fn described(topic: Option<v1::TopicDescription>) -> Result<TopicDescription, Error> {
    topic
        .ok_or_else(|| Error::new(ErrorCode::UnknownServerError, "the broker answered without the topic"))
        .and_then(TopicDescription::try_from)
}
