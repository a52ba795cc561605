//! Processes of the binary that Kafka's programs are run against: `millpond dev` alone, or a fleet of three.

use millpond_sdk::Client;
use millpond_tests::fleet::{Fleet, FleetOptions};
use millpond_tests::process::{Dev, DevOptions};
use tempfile::TempDir;

enum Brokers {
    Dev(Dev, TempDir),
    Fleet(Fleet),
}

/// Running brokers.
pub(super) struct Cluster {
    brokers: Brokers,
    /// Addresses of their Kafka doors.
    pub(super) bootstrap: String,
    /// How many there are, which is how many replicas a topic can have.
    pub(super) size: usize,
}

impl Cluster {
    pub(super) fn dev() -> Cluster {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let dev = Dev::start(&DevOptions::new(dir.path()));
        let bootstrap = dev.kafka.clone();
        Cluster { brokers: Brokers::Dev(dev, dir), bootstrap, size: 1 }
    }

    pub(super) async fn fleet() -> Cluster {
        let fleet = Fleet::start(&FleetOptions::new(3)).await.expect("it needs nothing but this machine");
        let bootstrap: Vec<String> = (0..fleet.size()).map(|broker| fleet.kafka(broker)).collect();
        Cluster { size: fleet.size(), brokers: Brokers::Fleet(fleet), bootstrap: bootstrap.join(",") }
    }

    /// A client of the other door.
    pub(super) async fn connect(&self) -> Client {
        match &self.brokers {
            Brokers::Dev(dev, _dir) => Client::connect(&dev.grpc).await.expect("it is up"),
            Brokers::Fleet(fleet) => fleet.connect().await,
        }
    }

    /// The fleet, to be asked and mistreated.
    pub(super) fn as_fleet(&mut self) -> &mut Fleet {
        match &mut self.brokers {
            Brokers::Fleet(fleet) => fleet,
            Brokers::Dev(..) => panic!("it is one broker"),
        }
    }

    pub(super) async fn stop(self) {
        match self.brokers {
            Brokers::Dev(dev, _dir) => dev.stop(),
            Brokers::Fleet(fleet) => fleet.stop().await,
        }
    }
}
