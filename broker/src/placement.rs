//! Finds places for the partitions of a topic that is created or grows: reads who is alive and hands that to `core::placement`.

use crate::api::ApiError;
use crate::broker::Broker;
use millpond_core::placement::{Host, Load, Placer};
use millpond_core::records::{Leader, SessionRecord};
use millpond_core::topic_config::TopicConfig;
use millpond_log::{BrokerId, ErrorCode, Incarnation, Rid};
use millpond_metadata::store::{Placement, StoreError, Versioned};
use std::collections::BTreeMap;

/// Replicas of a partition unless the request or the fleet says otherwise (section 8 of the design's defaults: three).
const REPLICATION_FACTOR_DEFAULT: u32 = 3;

/// The brokers that are alive, as one linearizable read had them (rule Z1).
pub(crate) struct Hosts {
    sessions: BTreeMap<BrokerId, Versioned<SessionRecord>>,
    hosts: Vec<Host>,
}

/// What a topic's new partitions are placed by.
pub(crate) struct Wanted<'a> {
    pub(crate) config: &'a TopicConfig,
    pub(crate) replication_factor: u32,
    pub(crate) partitions: u32,
    /// Replicas of the partitions that the topic has.
    pub(crate) existing: Vec<Vec<BrokerId>>,
}

impl Broker {
    /// Who may hold replicas now, with what they carry.
    pub(crate) async fn hosts(&self) -> Result<Hosts, StoreError> {
        let sessions = self.inner().store.hosts().await?;
        let mut loads: BTreeMap<BrokerId, Load> = BTreeMap::new();
        for topic in self.inner().catalog.tables().topics() {
            for handle in &topic.partitions {
                for (place, broker) in handle.placement.replicas.iter().enumerate() {
                    let load = loads.entry(*broker).or_default();
                    load.replicas += 1;
                    load.leaders += u32::from(place == 0);
                }
            }
        }
        let host = |(broker, session): (&BrokerId, &Versioned<SessionRecord>)| Host {
            broker: *broker,
            rack: session.value.rack.clone(),
            load: loads.get(broker).copied().unwrap_or_default(),
        };
        let hosts = sessions.iter().map(host).collect();
        Ok(Hosts { sessions, hosts })
    }
}

/// The replication factor of a topic for which none was asked, where so many brokers are alive.
pub(crate) fn replication_factor(brokers: usize) -> u32 {
    u32::try_from(brokers).unwrap_or(u32::MAX).clamp(1, REPLICATION_FACTOR_DEFAULT)
}

impl Hosts {
    /// The replication factor of a topic for which none was asked: three, or as many as there are brokers.
    pub(crate) fn replication_factor(&self) -> u32 {
        replication_factor(self.hosts.len())
    }

    /// Places partitions, numbered from `first` on, where somebody says; each has `factor` replicas.
    ///
    /// # Errors
    /// `INVALID_REPLICA_ASSIGNMENT`: a partition has no replicas, or another number of them, or two on one broker, or one
    /// where nothing can be placed.
    pub(crate) fn assign(
        &self,
        config: &TopicConfig,
        first: u32,
        factor: usize,
        assignments: &[Vec<BrokerId>],
    ) -> Result<Vec<Placement>, ApiError> {
        let check = |(partition, replicas): (u32, &Vec<BrokerId>)| {
            let twice = |(place, broker): (usize, &BrokerId)| replicas[..place].contains(broker).then_some(*broker);
            let wrong = |what: String| {
                let message = format!("the replicas of partition {partition} {what}");
                Err(ApiError::new(ErrorCode::InvalidReplicaAssignment, message))
            };
            if replicas.is_empty() {
                return wrong("are none".to_owned());
            }
            if replicas.len() != factor {
                return wrong(format!("are {}, and each partition of the topic has {factor}", replicas.len()));
            }
            if let Some(broker) = replicas.iter().enumerate().find_map(twice) {
                return wrong(format!("name broker {broker} more than once"));
            }
            if let Some(broker) = replicas.iter().find(|broker| !self.sessions.contains_key(broker)) {
                return wrong(format!("name broker {broker}, which is not alive or is to be left"));
            }
            Ok(self.placement(replicas.clone(), config, u32::try_from(factor).unwrap_or(u32::MAX)))
        };
        (first..).zip(assignments).map(check).collect()
    }

    /// Places new partitions. `seed` decides between equals.
    ///
    /// # Errors
    /// `INVALID_REPLICATION_FACTOR`: there are fewer brokers than replicas.
    pub(crate) fn place(&self, wanted: &Wanted<'_>, seed: u64) -> Result<Vec<Placement>, ApiError> {
        let mut placer = Placer::new(&self.hosts, wanted.existing.iter().map(Vec::as_slice), seed);
        let mut placements = Vec::with_capacity(wanted.partitions as usize);
        for _ in 0..wanted.partitions {
            let replicas = placer
                .place(wanted.replication_factor)
                .map_err(|error| ApiError::new(ErrorCode::InvalidReplicationFactor, error.to_string()))?;
            placements.push(self.placement(replicas, wanted.config, wanted.replication_factor));
        }
        Ok(placements)
    }

    /// A partition on brokers that are all alive.
    fn placement(&self, replicas: Vec<BrokerId>, config: &TopicConfig, replication_factor: u32) -> Placement {
        let lives: Vec<Leader> = replicas.iter().map(|broker| self.leader(*broker)).collect();
        Placement {
            replicas,
            isr: lives.iter().map(|live| live.rid).collect(),
            leader: lives.first().copied(),
            min_isr: config.min_isr(replication_factor),
        }
    }

    fn leader(&self, broker: BrokerId) -> Leader {
        let session = &self.sessions[&broker];
        let rid = Rid { broker, wal_gen: session.value.wal_gen };
        Leader { rid, inc: Incarnation(session.revision.0) }
    }
}
