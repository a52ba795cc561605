//! Processes of the binary that clients are run against: `millpond dev` alone, or a fleet of three.

use millpond_sdk::{Admin, BrokerId, Client, ClusterDescription, NewTopic, TopicDescription};
use millpond_tests::fleet::{Fleet, FleetOptions};
use millpond_tests::process::{Dev, DevOptions};
use std::collections::BTreeSet;
use tempfile::TempDir;

/// What to run a client against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Brokers {
    /// `millpond dev`.
    One,
    /// A fleet of three.
    Three,
}

enum Running {
    Dev(Dev, TempDir),
    Fleet(Fleet),
}

/// Running brokers.
pub(crate) struct Cluster {
    running: Running,
    /// Addresses of their Kafka doors.
    pub(crate) bootstrap: String,
    /// How many there are, which is how many replicas a topic has unless somebody says otherwise.
    pub(crate) size: usize,
}

impl Cluster {
    pub(crate) async fn start(brokers: Brokers) -> Cluster {
        match brokers {
            Brokers::One => Cluster::dev(),
            Brokers::Three => Cluster::fleet().await,
        }
    }

    pub(crate) fn dev() -> Cluster {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let dev = Dev::start(&DevOptions::new(dir.path()));
        let bootstrap = dev.kafka.clone();
        Cluster { running: Running::Dev(dev, dir), bootstrap, size: 1 }
    }

    pub(crate) async fn fleet() -> Cluster {
        let fleet = Fleet::start(&FleetOptions::new(3)).await.expect("it needs nothing but this machine");
        // A topic has as many replicas as there are brokers when it is made.
        fleet.wait_until("all brokers are there", |cluster, _| cluster.brokers.len() == fleet.size()).await;
        Cluster { size: fleet.size(), bootstrap: fleet.kafka_bootstrap(), running: Running::Fleet(fleet) }
    }

    /// A client of the other door.
    pub(crate) async fn connect(&self) -> Client {
        match &self.running {
            Running::Dev(dev, _dir) => Client::connect(&dev.grpc).await.expect("it is up"),
            Running::Fleet(fleet) => fleet.connect().await,
        }
    }

    /// Makes a topic with as many replicas as there are brokers.
    pub(crate) async fn create(&self, topic: &str, partitions: u32, settings: &[(&str, &str)]) {
        let mut topic = NewTopic::new(topic);
        (topic.partitions, topic.replication_factor) = (Some(partitions), u32::try_from(self.size).ok());
        for &(name, value) in settings {
            topic.configs.insert(name.to_owned(), value.to_owned());
        }
        Admin::new(&self.connect().await).create_topic(topic).await.expect("the topic is new");
    }

    /// The broker that leads a partition, and its Kafka door.
    pub(crate) async fn leader(&self, topic: &str, partition: u32) -> (usize, String) {
        let described = Admin::new(&self.connect().await).describe_topic(topic).await.expect("it is there");
        let found = described.partitions.into_iter().find(|found| found.index == partition);
        let leader = found.and_then(|found| found.leader).expect("it is led").0 as usize;
        (leader, self.bootstrap.split(',').nth(leader).expect("brokers are numbered from 0").to_owned())
    }

    /// Waits until every partition has a replica on each broker, all of them in sync, and each broker leads some partitions, unless there are
    /// no topics.
    pub(crate) async fn is_used_in_full(&self) {
        let Running::Fleet(fleet) = &self.running else { return };
        let holds = |_: &ClusterDescription, topics: &[TopicDescription]| {
            let mut partitions = topics.iter().flat_map(|topic| &topic.partitions);
            let leaders: BTreeSet<Option<BrokerId>> = partitions.clone().map(|partition| partition.leader).collect();
            let whole =
                partitions.all(|partition| (partition.replicas.len(), partition.isr.len()) == (self.size, self.size));
            topics.is_empty() || whole && !leaders.contains(&None) && leaders.len() == self.size
        };
        fleet.wait_until("each broker has all partitions and leads some", holds).await;
    }

    /// The fleet, to be asked and mistreated.
    pub(crate) fn as_fleet(&mut self) -> &mut Fleet {
        match &mut self.running {
            Running::Fleet(fleet) => fleet,
            Running::Dev(..) => panic!("it is one broker"),
        }
    }

    pub(crate) async fn stop(self) {
        match self.running {
            Running::Dev(dev, _dir) => dev.stop(),
            Running::Fleet(fleet) => fleet.stop().await,
        }
    }
}

/// Two tests of each promise, against one broker and against three. What runs is told the test's name and the brokers.
macro_rules! with_one_broker_and_with_three {
    ($($(#[$doc:meta])* $test:ident: $run:expr;)*) => {$(
        $(#[$doc])*
        mod $test {
            use super::*;
            use $crate::kafka::cluster::Brokers;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn with_one_broker() {
                ($run)(concat!(stringify!($test), "::with_one_broker"), Brokers::One).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn with_three_brokers() {
                ($run)(concat!(stringify!($test), "::with_three_brokers"), Brokers::Three).await;
            }
        }
    )*};
}

pub(crate) use with_one_broker_and_with_three;
