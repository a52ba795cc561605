//! Moves of replicas: their last steps, the replacement of brokers that are gone, and the emptying of those that are to leave (rules E9, I8).
//!
//! A move is two lists in the record, those who join and those who leave. The leader copies, and ends it once all are in sync.

use super::{Controller, Duty, View};
use crate::placement::{Host, Load, Placer};
use crate::records::PartitionRecord;
use millpond_log::{BrokerId, PartitionId};
use std::collections::BTreeMap;

/// The record once its replicas are to be `to`, the preferred leader first; `None` if they are already (rule I8).
///
/// A move that is under way is replaced by this one: who was joining and is not wanted leaves.
#[must_use]
pub fn reassigned(record: &PartitionRecord, to: &[BrokerId]) -> Option<PartitionRecord> {
    let settled = |broker: &BrokerId| record.replicas.contains(broker) && !record.adding.contains(broker);
    let adding: Vec<BrokerId> = to.iter().filter(|broker| !settled(broker)).copied().collect();
    let removing: Vec<BrokerId> = record.replicas.iter().filter(|broker| !to.contains(broker)).copied().collect();
    let replicas = [to, removing.as_slice()].concat();
    let next = PartitionRecord { replicas, adding, removing, ..record.clone() };
    (next != *record).then_some(next)
}

/// The record once `new` takes the place of `old`. The order of the others stays.
fn replaced(record: &PartitionRecord, old: BrokerId, new: BrokerId) -> Option<PartitionRecord> {
    let staying = record.replicas.iter().filter(|broker| !record.removing.contains(broker));
    let to: Vec<BrokerId> = staying.map(|broker| if *broker == old { new } else { *broker }).collect();
    reassigned(record, &to)
}

/// Whether a partition has a move under way.
pub(super) fn moves(record: &PartitionRecord) -> bool {
    !record.adding.is_empty() || !record.removing.is_empty()
}

/// Who may hold replicas, with what they carry now.
pub(super) fn hosts(view: &View<'_>) -> Vec<Host> {
    let mut loads: BTreeMap<BrokerId, Load> = BTreeMap::new();
    for (_, record) in &view.partitions {
        for (place, broker) in staying(record).enumerate() {
            let load = loads.entry(broker).or_default();
            load.replicas += 1;
            load.leaders += u32::from(place == 0);
        }
    }
    let takes_more = view.members.iter().filter(|(broker, _)| view.takes_more(**broker));
    let host = takes_more.map(|(broker, member)| Host {
        broker: *broker,
        rack: member.rack.clone(),
        load: loads.get(broker).copied().unwrap_or_default(),
    });
    host.collect()
}

/// The replicas that a partition has once its move is done, the preferred leader first.
pub(super) fn staying(record: &PartitionRecord) -> impl Iterator<Item = BrokerId> {
    record.replicas.iter().filter(|broker| !record.removing.contains(broker)).copied()
}

impl Controller {
    /// A leader that is to leave hands over once those who join are in sync (rules E9, I8).
    pub(super) fn finish_moves(&mut self, _now_ms: u64, view: &View<'_>) -> Vec<Duty> {
        let mut left = self.transfers_left();
        let mut duties = Vec::new();
        for (partition, record) in view.partitions.iter().filter(|(_, record)| !record.removing.is_empty()) {
            let leaves = record.leader.is_some_and(|leader| record.removing.contains(&leader.rid.broker));
            let joined = record.adding.iter().all(|broker| view.in_sync(record, *broker).is_some());
            let heir = staying(record).find_map(|broker| view.in_sync(record, broker));
            let Some(heir) = heir.filter(|_| leaves && joined && left > 0) else { continue };
            let duty = self.transfer(view, *partition, record, heir);
            left -= usize::from(duty.is_some());
            duties.extend(duty);
        }
        duties
    }

    /// Whoever is gone for long is replaced, and so is who was to join and has gone. What nobody leads has to wait for its replicas:
    /// nobody else has the log.
    pub(super) fn replace_gone(&mut self, now_ms: u64, view: &View<'_>) -> Vec<Duty> {
        let gone = |broker: BrokerId| self.is_gone_for_good(now_ms, view, broker);
        if !self.gone.keys().any(|broker| gone(*broker)) {
            return Vec::new();
        }
        self.give_elsewhere(view, gone)
    }

    /// What is lost for good, with no replica on a broker that runs, gets replicas in the place of those that an operator gave up (rules B4,
    /// I8): somebody has to be there who can be ordered to go on from object storage (rule E7). They only learn, and nobody leads
    /// before that order. A broker that was not given up keeps its replica: its disk may hold what is left.
    pub(super) fn place_lost(&mut self, _now_ms: u64, view: &View<'_>) -> Vec<Duty> {
        let waits = |record: &PartitionRecord| view.live(record).is_empty() && view.lost(record);
        let waiting = view.partitions.iter().filter(|(_, record)| waits(record));
        let mut hosts = hosts(view);
        let mut duties = Vec::new();
        for (partition, record) in waiting {
            let mut to: Vec<BrokerId> = staying(record).collect();
            for place in 0..to.len() {
                // Who was to join has nothing.
                let replaced = view.gave_up(to[place]) || record.adding.contains(&to[place]);
                let held = [record.replicas.as_slice(), &to].concat();
                let others: Vec<BrokerId> = to.iter().filter(|broker| **broker != to[place]).copied().collect();
                let placer = Placer::new(&hosts, [], u64::from(partition.index));
                let Some(new) = placer.one_more(&held, &others).filter(|_| replaced) else { continue };
                to[place] = new;
                if let Some(host) = hosts.iter_mut().find(|host| host.broker == new) {
                    host.load.replicas += 1;
                }
            }
            let next = reassigned(record, &to).filter(|_| to.iter().any(|broker| view.takes_more(*broker)));
            duties.extend(next.map(|next| Duty::Change { partition: *partition, next }));
        }
        duties
    }

    /// A broker that is to leave gives its leaderships away at once, and its replicas step by step.
    pub(super) fn empty_draining(&mut self, _now_ms: u64, view: &View<'_>) -> Vec<Duty> {
        if view.leaving.is_empty() && view.draining.is_empty() {
            return Vec::new();
        }
        let left_alone = |broker| view.leaving.contains(&broker) || view.draining.contains(&broker);
        let mut left = self.transfers_left();
        let mut duties = Vec::new();
        for (partition, record) in &view.partitions {
            let drains = record.leader.is_some_and(|leader| left_alone(leader.rid.broker));
            if !drains || left == 0 {
                continue;
            }
            let others = staying(record).filter(|broker| view.takes_more(*broker));
            let Some(heir) = others.filter_map(|broker| view.in_sync(record, broker)).next() else { continue };
            let duty = self.transfer(view, *partition, record, heir);
            left -= usize::from(duty.is_some());
            duties.extend(duty);
        }
        duties.extend(self.give_elsewhere(view, |broker| view.draining.contains(&broker)));
        duties
    }

    /// Moves replicas from the brokers that `leaves` says to the best of the others, a few at a time.
    fn give_elsewhere(&self, view: &View<'_>, leaves: impl Fn(BrokerId) -> bool) -> Vec<Duty> {
        let mut left = self.moves_left(view);
        let mut hosts = hosts(view);
        let mut duties = Vec::new();
        for (partition, record) in &view.partitions {
            let Some(old) = staying(record).find(|broker| leaves(*broker)) else { continue };
            // A replica that never joined costs nothing more than the one that it is replaced by.
            let counted = record.adding.is_empty();
            if !view.led(record) || counted && left == 0 {
                continue;
            }
            // Whoever was to leave may stay instead: if nobody else is there, the move would never end (rule I8).
            let held: Vec<BrokerId> = staying(record).collect();
            let others: Vec<BrokerId> = held.iter().filter(|broker| **broker != old).copied().collect();
            let placer = Placer::new(&hosts, [], u64::from(partition.index));
            let Some(new) = placer.one_more(&held, &others) else { continue };
            let Some(next) = replaced(record, old, new) else { continue };
            left -= usize::from(counted);
            if let Some(host) = hosts.iter_mut().find(|host| host.broker == new) {
                host.load.replicas += 1;
            }
            duties.push(Duty::Change { partition: *partition, next });
        }
        duties
    }

    /// Moves that may begin now. One that nobody leads copies nothing, and may wait for ever: it holds up no other.
    pub(super) fn moves_left(&self, view: &View<'_>) -> usize {
        let copies = |record: &PartitionRecord| !record.adding.is_empty() && view.led(record);
        let open = view.partitions.iter().filter(|(_, record)| copies(record)).count();
        self.limits.moves_max.saturating_sub(open)
    }
}

/// Replicas of each broker in each topic: what a share is evened out by.
pub(super) fn by_topic(partitions: &[(PartitionId, &PartitionRecord)]) -> BTreeMap<(u128, BrokerId), u32> {
    let mut counts = BTreeMap::new();
    for (partition, record) in partitions {
        for broker in staying(record) {
            *counts.entry((partition.topic.0, broker)).or_default() += 1;
        }
    }
    counts
}
