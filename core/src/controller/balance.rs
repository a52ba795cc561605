//! Balance: leaderships go back to the preferred replicas, and a broker with too little gets its share of replicas and of preferred
//! leaderships. Only in calm, a few at a time, and each step makes the greatest difference smaller: so it ends, and never swings.

use super::moves::{by_topic, hosts, moves, staying};
use super::{Controller, Duty, View};
use crate::controller::reassigned;
use crate::placement::Host;
use crate::records::PartitionRecord;
use crate::replica::Live;
use millpond_log::{BrokerId, PartitionId};
use std::collections::BTreeMap;

/// Share of a broker's preferred partitions that others may lead before they are given back: one in ten, as Kafka has it.
const IMBALANCE_PARTS: usize = 10;

/// Records that are changed at once to change who is preferred.
const PREFERENCES_MAX: usize = 40;

impl Controller {
    /// Leaderships go back to the preferred replicas, where more than one in ten of a broker's is elsewhere.
    pub(super) fn balance_leaders(&mut self, now_ms: u64, view: &View<'_>) -> Vec<Duty> {
        let mut owned: BTreeMap<BrokerId, usize> = BTreeMap::new();
        let mut misled: BTreeMap<BrokerId, Vec<(PartitionId, &PartitionRecord, Live)>> = BTreeMap::new();
        for (partition, record) in &view.partitions {
            let Some(preferred) = staying(record).find(|broker| view.takes_more(*broker)) else { continue };
            *owned.entry(preferred).or_default() += 1;
            let elsewhere = record.leader.is_some_and(|leader| leader.rid.broker != preferred);
            if let Some(live) = view.in_sync(record, preferred).filter(|_| elsewhere && view.led(record)) {
                misled.entry(preferred).or_default().push((*partition, record, live));
            }
        }
        self.balancing.retain(|broker| misled.contains_key(broker));
        let unbalanced = |broker: &BrokerId, misled: usize| misled * IMBALANCE_PARTS > owned[broker];
        let tipped = misled.iter().filter(|(broker, misled)| unbalanced(broker, misled.len()));
        self.balancing.extend(tipped.map(|(broker, _)| *broker));
        if !self.is_calm(now_ms) {
            return Vec::new();
        }
        let given_back = misled.iter().filter(|(broker, _)| self.balancing.contains(broker));
        let wishes = given_back.flat_map(|(_, misled)| misled);
        let duties = wishes.filter_map(|(partition, record, live)| self.transfer(view, *partition, record, *live));
        duties.take(self.transfers_left()).collect()
    }

    /// Who has too few replicas, or is preferred too seldom, gets more from who has most.
    pub(super) fn share(&mut self, now_ms: u64, view: &View<'_>) -> Vec<Duty> {
        // With somebody missing, what looks like a share may be its own: until it is replaced where it can be. What only it has stays.
        let awaited = |broker: &BrokerId| !self.is_gone_for_good(now_ms, view, *broker);
        if !self.is_calm(now_ms) || self.gone.keys().any(awaited) {
            return Vec::new();
        }
        let mut duties = self.share_replicas(view);
        if duties.is_empty() {
            duties = share_preferences(view);
        }
        duties
    }

    fn share_replicas(&self, view: &View<'_>) -> Vec<Duty> {
        let mut hosts = hosts(view);
        let mut topics = by_topic(&view.partitions);
        let mut moved: Vec<PartitionId> = Vec::new();
        let mut duties = Vec::new();
        let left = self.moves_left(view);
        while duties.len() < left {
            let pairs = apart(&hosts, |host| host.load.replicas);
            let mut moves = pairs.iter().filter_map(|(from, to)| {
                let spare = view.partitions.iter().filter(|(id, record)| !moved.contains(id) && view.led(record));
                let movable = spare.filter(|(_, record)| may_move(view, record, from.broker, to.broker));
                // First what evens out a topic, then what evens out who is preferred.
                let best = movable.min_by_key(|(id, record)| {
                    let held = |host: &Host| topics.get(&(id.topic.0, host.broker)).copied().unwrap_or(0);
                    let leads = staying(record).next() == Some(from.broker);
                    let loses = i64::from(held(to)) - i64::from(held(from));
                    (loses, leads != (from.load.leaders > to.load.leaders + 1))
                });
                best.map(|(partition, record)| (from.clone(), to.clone(), partition, record))
            });
            let Some((from, to, partition, record)) = moves.next() else { break };
            let wanted: Vec<BrokerId> =
                staying(record).map(|broker| if broker == from.broker { to.broker } else { broker }).collect();
            let Some(next) = reassigned(record, &wanted) else { break };
            let leads = staying(record).next() == Some(from.broker);
            for host in &mut hosts {
                let (lost, gained) = (u32::from(host.broker == from.broker), u32::from(host.broker == to.broker));
                host.load.replicas = host.load.replicas + gained - lost;
                host.load.leaders = host.load.leaders + gained * u32::from(leads) - lost * u32::from(leads);
            }
            *topics.entry((partition.topic.0, to.broker)).or_default() += 1;
            *topics.entry((partition.topic.0, from.broker)).or_default() -= 1;
            moved.push(*partition);
            duties.push(Duty::Change { partition: *partition, next });
        }
        duties
    }
}

/// Who of the replicas is preferred changes without a copy: only the order of the record does.
fn share_preferences(view: &View<'_>) -> Vec<Duty> {
    let mut hosts = hosts(view);
    let mut moved: Vec<PartitionId> = Vec::new();
    let mut duties = Vec::new();
    // From who is preferred most to whoever of the others has least, along partitions that both hold.
    while duties.len() < PREFERENCES_MAX {
        let leaders = |broker: BrokerId| hosts.iter().find(|host| host.broker == broker).map(|host| host.load.leaders);
        let spare = view.partitions.iter().filter(|(id, record)| !moved.contains(id) && !moves(record));
        let exchanges = spare.filter_map(|(id, record)| {
            let first = *record.replicas.first()?;
            let most = leaders(first)?;
            let others = record.replicas.iter().skip(1).filter_map(|broker| Some((leaders(*broker)?, *broker)));
            let (least, other) = others.filter(|(_, broker)| view.in_sync(record, *broker).is_some()).min()?;
            let tips = most > least + 1 && most - least > average(&hosts, |host| host.load.leaders) / 10;
            tips.then(|| (most - least, *id, *record, first, other))
        });
        let Some((_, partition, record, first, other)) = exchanges.max_by_key(|(gain, id, ..)| (*gain, *id)) else {
            break;
        };
        let mut next = record.clone();
        next.replicas.retain(|broker| *broker != other);
        next.replicas.insert(0, other);
        for host in &mut hosts {
            let (lost, gained) = (u32::from(host.broker == first), u32::from(host.broker == other));
            host.load.leaders = host.load.leaders + gained - lost;
        }
        moved.push(partition);
        duties.push(Duty::Change { partition, next });
    }
    duties
}

fn average(hosts: &[Host], load: impl Fn(&Host) -> u32) -> u32 {
    let total: u64 = hosts.iter().map(|host| u64::from(load(host))).sum();
    u32::try_from(total / hosts.len().max(1) as u64).unwrap_or(u32::MAX)
}

/// Pairs of brokers of which the first has more than a tenth, and more than one, over the second: the furthest apart first. One step
/// between them brings them nearer.
fn apart(hosts: &[Host], load: impl Fn(&Host) -> u32) -> Vec<(Host, Host)> {
    let least = (average(hosts, &load) / 10).max(1);
    let pairs = hosts.iter().flat_map(|from| hosts.iter().map(move |to| (from, to)));
    let mut pairs: Vec<(&Host, &Host)> = pairs.filter(|(from, to)| load(from) > load(to) + least).collect();
    pairs.sort_by_key(|(from, to)| (std::cmp::Reverse(load(from) - load(to)), from.broker, to.broker));
    pairs.into_iter().map(|(from, to)| (from.clone(), to.clone())).collect()
}

/// Whether a replica may go from one broker to another: it is in sync where it is or will be copied, and the racks stay as spread. What lacks
/// a replica is left to whoever replaces that one: a move for balance would wait for it, for ever if nobody else is there (rule I8).
fn may_move(view: &View<'_>, record: &PartitionRecord, from: BrokerId, to: BrokerId) -> bool {
    if moves(record) || !record.replicas.contains(&from) || record.replicas.contains(&to) {
        return false;
    }
    if !record.replicas.iter().all(|broker| view.members.contains_key(broker)) {
        return false;
    }
    let rack = |broker: BrokerId| view.members.get(&broker).and_then(|member| member.rack.as_deref());
    let beside = |broker: BrokerId| {
        let Some(own) = rack(broker) else { return 0 };
        record.replicas.iter().filter(|other| **other != from && rack(**other) == Some(own)).count()
    };
    beside(to) <= beside(from)
}
