//! Finds places for the partitions of a topic that is created or grows: reads who is there and hands that to `core::placement`. Whoever is
//! alive comes first; a broker that is down for now holds the replicas that would be missing for ever otherwise, and joins when it is back.

use crate::api::ApiError;
use crate::broker::Broker;
use millpond_core::placement::{Host, Load, Placer, TooFewBrokers};
use millpond_core::records::{Leader, SessionRecord};
use millpond_core::topic_config::TopicConfig;
use millpond_log::{BrokerId, ErrorCode, Incarnation, Rid};
use millpond_metadata::kv::Revision;
use millpond_metadata::store::{self, Placement, StoreError, Versioned};
use std::collections::BTreeMap;

/// Replicas of a partition unless the request or the fleet says otherwise (section 8 of the design's defaults: three).
const REPLICATION_FACTOR_DEFAULT: u32 = 3;

/// The brokers there are, as one linearizable read had them (rule Z1).
pub(crate) struct Hosts {
    sessions: BTreeMap<BrokerId, Versioned<SessionRecord>>,
    hosts: Vec<Host>,
    /// Those that are down and may come back, with the revision of their disk's record.
    absent: BTreeMap<BrokerId, Revision>,
    absent_hosts: Vec<Host>,
    /// Those of them that have not been gone for long.
    expected_hosts: Vec<Host>,
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
    /// Who may hold replicas, with what they carry.
    pub(crate) async fn hosts(&self) -> Result<Hosts, StoreError> {
        let store::Hosts { live: sessions, absent } = self.inner().store.hosts().await?;
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
        let host = |broker: BrokerId, rack: Option<String>| {
            let load = loads.get(&broker).copied().unwrap_or_default();
            Host { broker, rack, load }
        };
        let hosts = sessions.iter().map(|(broker, session)| host(*broker, session.value.rack.clone())).collect();
        // In which rack it was nobody knows.
        let absent_hosts = absent.keys().map(|broker| host(*broker, None)).collect();
        let alive = &self.inner().alive;
        let expected = absent.iter().filter(|(broker, disk)| !alive.is_long_gone(**broker, **disk));
        let expected_hosts = expected.map(|(broker, _)| host(*broker, None)).collect();
        Ok(Hosts { sessions, hosts, absent, absent_hosts, expected_hosts })
    }
}

/// The replication factor of a topic for which none was asked, where so many brokers are alive.
pub(crate) fn replication_factor(brokers: usize) -> u32 {
    u32::try_from(brokers).unwrap_or(u32::MAX).clamp(1, REPLICATION_FACTOR_DEFAULT)
}

impl Hosts {
    /// The replication factor of a topic for which none was asked: three, or as many as there are brokers. Those that are down count where
    /// those that are alive are enough to write with (rule I1): a topic must not have fewer copies for ever since somebody was restarted, nor
    /// wait for brokers that may never come back. So they do not count any more once their replicas are made anew on others.
    pub(crate) fn replication_factor(&self, config: &TopicConfig) -> u32 {
        let all = replication_factor(self.hosts.len() + self.expected_hosts.len());
        match config.min_isr(all) as usize <= self.hosts.len() {
            true => all,
            false => replication_factor(self.hosts.len()),
        }
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
    /// `INVALID_REPLICATION_FACTOR`: there are fewer brokers than replicas, those that are down included.
    pub(crate) fn place(&self, wanted: &Wanted<'_>, seed: u64) -> Result<Vec<Placement>, ApiError> {
        let existing = || wanted.existing.iter().map(Vec::as_slice);
        let too_few = |error: TooFewBrokers| ApiError::new(ErrorCode::InvalidReplicationFactor, error.to_string());
        let mut placer = Placer::new(&self.hosts, existing(), seed);
        let factor = wanted.replication_factor;
        let missing = factor.saturating_sub(u32::try_from(self.hosts.len()).unwrap_or(u32::MAX));
        // Somebody has to lead.
        let missing = if missing as usize > self.absent.len() || missing == factor { 0 } else { missing };
        // Who has been gone for long comes last, however little is there.
        let likely =
            if missing as usize > self.expected_hosts.len() { &self.absent_hosts } else { &self.expected_hosts };
        let mut down = Placer::new(likely, existing(), seed);
        let mut placements = Vec::with_capacity(wanted.partitions as usize);
        for _ in 0..wanted.partitions {
            let mut replicas = placer.place(factor - missing).map_err(too_few)?;
            if missing > 0 {
                replicas.extend(down.place(missing).map_err(too_few)?);
            }
            placements.push(self.placement(replicas, wanted.config, factor));
        }
        Ok(placements)
    }

    /// A partition on brokers of which the first is alive. Whoever is not joins when it is back (rule I5).
    fn placement(&self, replicas: Vec<BrokerId>, config: &TopicConfig, replication_factor: u32) -> Placement {
        let lives: Vec<Leader> = replicas.iter().filter_map(|broker| self.live(*broker)).collect();
        let absent = replicas.iter().filter_map(|broker| Some((*broker, *self.absent.get(broker)?))).collect();
        Placement {
            replicas,
            absent,
            isr: lives.iter().map(|live| live.rid).collect(),
            leader: lives.first().copied(),
            min_isr: config.min_isr(replication_factor),
        }
    }

    fn live(&self, broker: BrokerId) -> Option<Leader> {
        let session = self.sessions.get(&broker)?;
        let rid = Rid { broker, wal_gen: session.value.wal_gen };
        Some(Leader { rid, inc: Incarnation(session.revision.0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(id: u32) -> Host {
        Host { broker: BrokerId(id), rack: None, load: Load::default() }
    }

    /// Two live brokers, and others that are down, some of them for long.
    fn hosts(expected: &[u32], long_gone: &[u32]) -> Hosts {
        let down = || expected.iter().chain(long_gone).copied();
        Hosts {
            sessions: BTreeMap::new(),
            hosts: vec![host(1), host(2)],
            absent: down().map(|id| (BrokerId(id), Revision(7))).collect(),
            absent_hosts: down().map(host).collect(),
            expected_hosts: expected.iter().copied().map(host).collect(),
        }
    }

    #[test]
    fn brokers_that_are_down_count_by_default_until_they_have_been_gone_for_long() {
        let check = |expected: &[u32], long_gone: &[u32], factor| {
            assert_eq!(hosts(expected, long_gone).replication_factor(&TopicConfig::default()), factor);
        };
        check(&[], &[], 2);
        check(&[3], &[], 3);
        check(&[], &[3, 4], 2);
        check(&[3], &[4], 3);
    }

    #[test]
    fn replicas_that_wait_for_a_broker_wait_for_one_that_has_not_been_gone_for_long() {
        let place = |hosts: &Hosts| {
            let config = TopicConfig::default();
            let wanted = Wanted { config: &config, replication_factor: 3, partitions: 8, existing: Vec::new() };
            hosts.place(&wanted, 1).expect("there are enough")
        };
        for placed in place(&hosts(&[3], &[4, 5])) {
            assert!(placed.replicas.contains(&BrokerId(3)), "{placed:?}");
        }
        // Whoever asks for three has them none the less, as in Kafka.
        assert!(place(&hosts(&[], &[4])).iter().all(|placed| placed.replicas.contains(&BrokerId(4))));
    }
}
