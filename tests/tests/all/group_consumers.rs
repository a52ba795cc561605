//! The SDK's consumers in a group, over real brokers.

mod closing;
mod commits;
mod fleet;
mod lag;
mod many;
mod one;
mod pipelines;
mod workers;

use bytes::Bytes;
use millpond_broker::Config;
use millpond_broker::config::GroupLimits;
use millpond_sdk::{
    Admin, Assigned, Client, GroupConfig, GroupConsumer, NewTopic, Offset, Producer, ProducerConfig, ProducerRecord,
    RebalanceListener, Revoked, Subscription, TopicId, TopicPartition,
};
use millpond_tests::broker::{TestBroker, config};
use millpond_tests::gate::Gate;
use millpond_tests::ports::free_ports;
use object_store::memory::InMemory;
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::time::timeout;

/// How long anything may take before the test is called stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// A broker in this process, whose groups are quick.
struct Pond {
    broker: TestBroker,
    client: Client,
    _dir: TempDir,
}

impl Pond {
    async fn start() -> Pond {
        Pond::start_with(|_| {}).await
    }

    /// One that is reached through a gate alone.
    async fn gated() -> (Pond, Gate) {
        let port = free_ports(Ipv4Addr::LOCALHOST, 1);
        let gate = Gate::start(port).await;
        let pond = Pond::start_with(|config| {
            config.grpc.bind.set_port(port);
            config.grpc.advertise = Some(gate.address());
        });
        (pond.await, gate)
    }

    async fn start_with(settings: impl FnOnce(&mut Config)) -> Pond {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let mut config = config(dir.path());
        settings(&mut config);
        config.groups = GroupLimits { heartbeat_interval_ms: 100, session_timeout_ms: 10_000, ..config.groups };
        let broker = TestBroker::start(config, Arc::new(InMemory::new())).await;
        let client = Client::connect(broker.grpc()).await.expect("the broker is up");
        Pond { broker, client, _dir: dir }
    }

    async fn stop(self) {
        drop(self.client);
        self.broker.stop().await;
    }
}

async fn create(client: &Client, name: &str, partitions: u32) -> TopicId {
    let mut topic = NewTopic::new(name);
    topic.partitions = Some(partitions);
    Admin::new(client).create_topic(topic).await.expect("the topic is new").id
}

/// Writes records with these values to a partition.
async fn produce(client: &Client, topic: &str, partition: u32, values: std::ops::Range<u32>) {
    let producer = Producer::new(client, ProducerConfig::default()).expect("the settings are good");
    for value in values {
        let record =
            ProducerRecord::new(topic).partition(partition).key(format!("k{}", value % 7)).value(value.to_string());
        drop(producer.send(record).await.expect("it is taken"));
    }
    producer.flush().await;
    producer.close().await;
}

fn value(value: &Option<Bytes>) -> u32 {
    let value = value.as_ref().expect("records have values");
    std::str::from_utf8(value).expect("a number").parse().expect("a number")
}

fn partition(topic: &str, index: u32) -> TopicPartition {
    TopicPartition::new(topic, index)
}

fn partitions(topic: &str, indexes: impl IntoIterator<Item = u32>) -> BTreeSet<TopicPartition> {
    indexes.into_iter().map(|index| partition(topic, index)).collect()
}

/// What a member was told, and what it holds by that. Commits what is revoked, once it may.
#[derive(Clone)]
struct Heard {
    told: Arc<Mutex<Vec<Told>>>,
    held: Arc<watch::Sender<BTreeSet<TopicPartition>>>,
    /// Nothing is given up while this is false.
    gives_up: watch::Receiver<bool>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Told {
    Assigned(BTreeSet<TopicPartition>),
    Revoked(BTreeSet<TopicPartition>),
    Lost(BTreeSet<TopicPartition>),
}

impl Heard {
    fn new() -> (Heard, watch::Sender<bool>) {
        let (gate, gives_up) = watch::channel(true);
        (Heard { told: Arc::default(), held: Arc::new(watch::channel(BTreeSet::new()).0), gives_up }, gate)
    }

    fn told(&self) -> Vec<Told> {
        self.told.lock().expect("no panic under the lock").clone()
    }

    fn tell(&self, told: Told) {
        self.told.lock().expect("no panic under the lock").push(told);
    }

    /// Waits until exactly this is held.
    async fn holds(&self, partitions: &BTreeSet<TopicPartition>) {
        self.holds_what(|held| held == partitions).await;
    }

    async fn holds_what(&self, right: impl FnMut(&BTreeSet<TopicPartition>) -> bool) {
        let mut held = self.held.subscribe();
        timeout(PATIENCE, held.wait_for(right)).await.expect("the group gets there").expect("the sender lives");
    }
}

impl RebalanceListener for Heard {
    async fn assigned(&mut self, assigned: &mut Assigned) {
        let partitions: BTreeSet<TopicPartition> = assigned.partitions().cloned().collect();
        self.tell(Told::Assigned(partitions.clone()));
        self.held.send_modify(|held| held.extend(partitions));
    }

    async fn revoked(&mut self, revoked: &Revoked) {
        let partitions: BTreeSet<TopicPartition> = revoked.partitions().iter().cloned().collect();
        self.tell(Told::Revoked(partitions.clone()));
        self.gives_up.wait_for(|gives_up| *gives_up).await.expect("the gate lives");
        revoked.commit().await.expect("they are still held");
        self.held.send_modify(|held| held.retain(|partition| !partitions.contains(partition)));
    }

    async fn lost(&mut self, lost: &[TopicPartition]) {
        let partitions: BTreeSet<TopicPartition> = lost.iter().cloned().collect();
        self.tell(Told::Lost(partitions.clone()));
        self.held.send_modify(|held| held.retain(|partition| !partitions.contains(partition)));
    }
}

fn join(client: &Client, config: GroupConfig, topic: &str, heard: &Heard) -> GroupConsumer {
    GroupConsumer::with_listener(client, config, Subscription::topics([topic]), heard.clone()).expect("good settings")
}

/// Polls until so many records came.
async fn take(consumer: &mut GroupConsumer, count: usize) -> BTreeMap<TopicPartition, Vec<u32>> {
    let mut taken: BTreeMap<TopicPartition, Vec<u32>> = BTreeMap::new();
    let all = async {
        while taken.values().map(Vec::len).sum::<usize>() < count {
            for record in consumer.poll(PATIENCE).await.expect("records come") {
                taken.entry(record.topic_partition()).or_default().push(value(&record.value));
            }
        }
    };
    timeout(PATIENCE, all).await.expect("records come");
    taken
}

/// Polls while `until` is not ready; nothing may come meanwhile.
async fn idle(consumer: &mut GroupConsumer, until: impl Future<Output = ()>) {
    tokio::select! {
        () = until => {}
        record = futures::StreamExt::next(consumer) => panic!("{record:?}"),
    }
}

/// The group's committed offsets of a topic's partitions.
async fn committed(consumer: &GroupConsumer, topic: &str, count: u32) -> Vec<Option<u64>> {
    let all = (0..count).map(|index| partition(topic, index));
    let found = consumer.committed(all.clone()).await.expect("the coordinator answers");
    all.map(|partition| found.get(&partition).map(|offset: &Offset| offset.0)).collect()
}
