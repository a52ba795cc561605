//! Where the replicas of partitions go: over racks first, then evenly over brokers. The same brokers, loads and seed give the same placement.
//!
//! It chooses among the brokers it is given; who is alive, and when anything moves, is decided elsewhere.

use millpond_log::BrokerId;
use std::collections::BTreeMap;

/// What a broker carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Partitions it leads, or is the preferred leader of.
    pub leaders: u32,
    /// Replicas it holds, those it leads included.
    pub replicas: u32,
}

/// A broker that may hold replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its id.
    pub broker: BrokerId,
    /// Its rack. A broker that names none stands alone: it shares its fate with nobody that is known.
    pub rack: Option<String>,
    /// What it carries of all topics.
    pub load: Load,
}

/// More replicas were asked for than there are brokers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("replication factor {replicas} is not possible with {}; use {} or start more brokers", brokers(*.live), at_most(*.live))]
pub struct TooFewBrokers {
    /// Replicas asked for.
    pub replicas: u32,
    /// Brokers there are.
    pub live: u32,
}

fn brokers(live: u32) -> String {
    if live == 1 { "1 live broker".to_owned() } else { format!("{live} live brokers") }
}

fn at_most(live: u32) -> String {
    if live == 1 { "1".to_owned() } else { format!("at most {live}") }
}

/// Places the replicas of one topic's partitions, one after the other.
///
/// A topic is spread evenly before the cluster is: a broker that has just joined must not get every leader of the next topic.
#[derive(Clone, Debug)]
pub struct Placer {
    hosts: Vec<Candidate>,
    seed: u64,
    placed: u64,
}

#[derive(Clone, Debug)]
struct Candidate {
    broker: BrokerId,
    /// Equal for brokers of one rack.
    rack: u32,
    of_topic: Load,
    of_all: Load,
}

impl Placer {
    /// A placer for a topic whose partitions that are there already have `existing` replicas, the preferred leader first.
    #[must_use]
    pub fn new<'a>(hosts: &[Host], existing: impl IntoIterator<Item = &'a [BrokerId]>, seed: u64) -> Placer {
        let mut racks: BTreeMap<&str, u32> = BTreeMap::new();
        let mut candidates: Vec<Candidate> = Vec::with_capacity(hosts.len());
        let mut next = 0;
        for host in hosts {
            let fresh = next;
            let rack = host.rack.as_deref().map_or(fresh, |rack| *racks.entry(rack).or_insert(fresh));
            next += u32::from(rack == fresh);
            candidates.push(Candidate { broker: host.broker, rack, of_topic: Load::default(), of_all: host.load });
        }
        let mut placer = Placer { hosts: candidates, seed, placed: 0 };
        for replicas in existing {
            placer.placed += 1;
            placer.count(replicas, |host| &mut host.of_topic);
        }
        placer
    }

    /// Replicas of the next partition, the preferred leader first: on brokers that differ, and never two in one rack while
    /// another has none.
    ///
    /// # Errors
    /// There are fewer brokers than replicas.
    ///
    /// # Panics
    /// If no replica is asked for.
    pub fn place(&mut self, replicas: u32) -> Result<Vec<BrokerId>, TooFewBrokers> {
        assert!(replicas > 0, "a partition has a replica");
        if self.hosts.len() < replicas as usize {
            let live = u32::try_from(self.hosts.len()).expect("brokers are counted in 31 bits");
            return Err(TooFewBrokers { replicas, live });
        }
        let mut chosen = Vec::with_capacity(replicas as usize);
        chosen.extend(self.leader());
        while chosen.len() < replicas as usize {
            chosen.extend(self.one_more(&chosen, &chosen));
        }
        self.placed += 1;
        self.count(&chosen, |host| &mut host.of_topic);
        self.count(&chosen, |host| &mut host.of_all);
        Ok(chosen)
    }

    /// The best broker for one more replica beside `others`, none of `taken`; `None` if all are.
    #[must_use]
    pub fn one_more(&self, taken: &[BrokerId], others: &[BrokerId]) -> Option<BrokerId> {
        let in_rack =
            |rack: u32| self.hosts.iter().filter(|host| host.rack == rack && others.contains(&host.broker)).count();
        let free = self.hosts.iter().filter(|host| !taken.contains(&host.broker));
        let best = free.min_by_key(|host| {
            (in_rack(host.rack), host.of_topic.replicas, host.of_all.replicas, self.lot(host.broker))
        });
        best.map(|host| host.broker)
    }

    fn leader(&self) -> Option<BrokerId> {
        let best = self.hosts.iter().min_by_key(|host| {
            let (topic, all) = (host.of_topic, host.of_all);
            (topic.leaders, all.leaders, topic.replicas, all.replicas, self.lot(host.broker))
        });
        best.map(|host| host.broker)
    }

    fn count(&mut self, replicas: &[BrokerId], load: impl Fn(&mut Candidate) -> &mut Load) {
        for (place, broker) in replicas.iter().enumerate() {
            if let Some(host) = self.hosts.iter_mut().find(|host| host.broker == *broker) {
                let load = load(host);
                load.replicas += 1;
                load.leaders += u32::from(place == 0);
            }
        }
    }

    /// Decides between equals: another order for each partition, so that followers of one leader are spread too.
    /// SplitMix64's finaliser.
    fn lot(&self, broker: BrokerId) -> u64 {
        let mut lot = self.seed ^ (self.placed << 32) ^ u64::from(broker.0);
        lot = (lot ^ (lot >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        lot = (lot ^ (lot >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        lot ^ (lot >> 31)
    }
}

#[cfg(test)]
mod tests;
