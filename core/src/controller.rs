//! What the controller has to do, from the cluster as it is seen: elections, removal of the dead, moves of replicas, balance (rules E1 to
//! E9, I8).
//!
//! It decides on a hint: every duty is a transaction that compares what it was decided on, or a wish that the leader may refuse. So
//! nothing here is needed for safety (rule E8), and a controller that follows goes on from the records alone.

mod balance;
mod moves;
mod unfinished;

pub use moves::reassigned;
pub use unfinished::{Progress, Unfinished};

use crate::election;
use crate::loss;
use crate::records::{Leader, PartitionRecord};
use crate::replica::Live;
use crate::rules::Rules;
use millpond_log::{BrokerId, LeaderEpoch, PartitionId, WalGen};
use std::collections::{BTreeMap, BTreeSet};

/// A broker with a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The replica it is, and its incarnation.
    pub live: Live,
    /// Its rack, if told.
    pub rack: Option<String>,
}

/// The cluster as it is seen.
#[derive(Clone, Debug, Default)]
pub struct View<'a> {
    /// Brokers with a session.
    pub members: BTreeMap<BrokerId, Member>,
    /// Brokers that are to be left without leaderships.
    pub leaving: BTreeSet<BrokerId>,
    /// Those of them that are to be left without replicas too.
    pub draining: BTreeSet<BrokerId>,
    /// The WAL on record for each broker: that with which it registered last, or `WalGen::LOST`.
    pub disks: BTreeMap<BrokerId, WalGen>,
    /// Partitions of active topics, in order.
    pub partitions: Vec<(PartitionId, &'a PartitionRecord)>,
}

/// How eager the controller is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Time without elections and without a broker that comes or goes, before anything is moved for balance.
    pub calm_ms: u64,
    /// A broker that is gone for so long is replaced on others. One whose disk was given up is at once.
    pub replace_after_ms: u64,
    /// A broker that is gone for so long is taken out of the ISR where the leader has not done it (rule E6).
    pub remove_after_ms: u64,
    /// Time for a transfer of leadership, after which another is asked for.
    pub transfer_ms: u64,
    /// A topic whose creation or deletion stands still for so long was left by whoever began it.
    pub finish_after_ms: u64,
    /// The tombstone of a deleted topic stands for so long at least after the topic's record is gone.
    pub bury_after_ms: u64,
    /// Most transfers under way.
    pub transfers_max: usize,
    /// Most partitions that gain a replica from their leaders at the same time.
    pub moves_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            calm_ms: 10_000,
            // Long enough for a machine to be mended or started anew, since moving costs copies of tails.
            replace_after_ms: 600_000,
            // The leader is told of the same session and is faster.
            remove_after_ms: 2_000,
            transfer_ms: 5_000,
            // Each step is a transaction of milliseconds.
            finish_after_ms: 10_000,
            // Longer than any broker goes by what it had seen before, though nothing depends on it.
            bury_after_ms: 600_000,
            transfers_max: 20,
            moves_max: 8,
        }
    }
}

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Duty {
    /// Change a partition's record; the epoch stays (rules E6, I8).
    Change {
        /// The partition.
        partition: PartitionId,
        /// What is to hold.
        next: PartitionRecord,
    },
    /// Ask the leader to hand over (rule E9).
    Transfer {
        /// The partition.
        partition: PartitionId,
        /// Who leads it.
        from: Leader,
        /// In which epoch.
        epoch: LeaderEpoch,
        /// Who is to lead it.
        to: Live,
    },
}

impl Duty {
    /// Whose duty it is.
    #[must_use]
    pub fn partition(&self) -> PartitionId {
        match self {
            Duty::Change { partition, .. } | Duty::Transfer { partition, .. } => *partition,
        }
    }
}

/// A partition that nobody leads, and who may (rule E2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vacancy {
    /// The partition.
    pub partition: PartitionId,
    /// The preferred one first; at least one.
    pub candidates: Vec<Live>,
}

/// What a controller remembers between two looks. A new one starts from nothing, which only makes it slower to act.
#[derive(Clone, Debug)]
pub struct Controller {
    limits: Limits,
    /// Who was alive at the last look.
    members: BTreeMap<BrokerId, Live>,
    /// Since when brokers that hold replicas are gone.
    gone: BTreeMap<BrokerId, u64>,
    /// Since when nobody came or went, and nothing was elected.
    calm_since: u64,
    /// Transfers that were asked for: the epoch they are to end, and when to give up.
    transfers: BTreeMap<PartitionId, (LeaderEpoch, u64)>,
    /// Transfers that were given up are not asked for again before this.
    put_off: BTreeMap<PartitionId, u64>,
    /// Preferred leaders whose partitions are being given back to them.
    balancing: BTreeSet<BrokerId>,
}

impl View<'_> {
    /// The sessions of a partition's replicas.
    #[must_use]
    pub fn live(&self, record: &PartitionRecord) -> Vec<Live> {
        record.replicas.iter().filter_map(|broker| Some(self.members.get(broker)?.live)).collect()
    }

    /// Whether a partition has a leader with a session.
    #[must_use]
    pub fn led(&self, record: &PartitionRecord) -> bool {
        !election::vacant(record, &self.live(record))
    }

    /// Partitions that nobody leads and somebody may (rules E1, E2).
    #[must_use]
    pub fn vacancies(&self) -> Vec<Vacancy> {
        let vacant = self.partitions.iter().filter_map(|(partition, record)| {
            let live = self.live(record);
            let candidates = match election::vacant(record, &live) {
                true => election::candidates(record, &live, Rules::ALL),
                false => Vec::new(),
            };
            (!candidates.is_empty()).then_some(Vacancy { partition: *partition, candidates })
        });
        vacant.collect()
    }

    /// Whether an operator gave the disk of this broker up, and it has no other yet.
    fn gave_up(&self, broker: BrokerId) -> bool {
        self.disks.get(&broker) == Some(&WalGen::LOST) && !self.members.contains_key(&broker)
    }

    /// Whether nobody who held all that was committed can come back (rule B4).
    fn lost(&self, record: &PartitionRecord) -> bool {
        loss::awaited(record, |broker| self.disks.get(&broker).copied()).is_empty()
    }

    /// Whether a broker may be given more than it has.
    fn takes_more(&self, broker: BrokerId) -> bool {
        self.members.contains_key(&broker) && !self.leaving.contains(&broker) && !self.draining.contains(&broker)
    }

    /// A member of the ISR with a session, on this broker.
    fn in_sync(&self, record: &PartitionRecord, broker: BrokerId) -> Option<Live> {
        let member = self.members.get(&broker)?;
        record.isr.contains(&member.live.rid).then_some(member.live)
    }
}

impl Controller {
    /// A controller that has just taken over.
    #[must_use]
    pub fn new(limits: Limits, now_ms: u64) -> Controller {
        Controller {
            limits,
            members: BTreeMap::new(),
            gone: BTreeMap::new(),
            calm_since: now_ms,
            transfers: BTreeMap::new(),
            put_off: BTreeMap::new(),
            balancing: BTreeSet::new(),
        }
    }

    /// Notes that leaders were elected where there were none: no time for balance.
    pub fn note_elections(&mut self, now_ms: u64) {
        self.calm_since = now_ms;
    }

    /// What there is to do besides elections.
    pub fn due(&mut self, now_ms: u64, view: &View<'_>) -> Vec<Duty> {
        self.observe(now_ms, view);
        let mut duties = self.removals(now_ms, view);
        // What was just decided about a partition has to be seen first.
        let mut busy: BTreeSet<PartitionId> = duties.iter().map(Duty::partition).collect();
        for decide in [
            Controller::finish_moves as fn(&mut Controller, u64, &View<'_>) -> Vec<Duty>,
            Controller::place_lost,
            Controller::replace_gone,
            Controller::empty_draining,
            Controller::balance_leaders,
            Controller::share,
        ] {
            for duty in decide(self, now_ms, view) {
                if busy.insert(duty.partition()) {
                    self.note_transfer(now_ms, &duty);
                    duties.push(duty);
                }
            }
        }
        duties
    }

    fn observe(&mut self, now_ms: u64, view: &View<'_>) {
        let members: BTreeMap<BrokerId, Live> = view.members.iter().map(|(id, member)| (*id, member.live)).collect();
        if members != self.members {
            (self.members, self.calm_since) = (members, now_ms);
        }
        let holders: BTreeSet<BrokerId> =
            view.partitions.iter().flat_map(|(_, record)| record.replicas.iter().copied()).collect();
        self.gone.retain(|broker, _| holders.contains(broker) && !view.members.contains_key(broker));
        for broker in holders.into_iter().filter(|broker| !view.members.contains_key(broker)) {
            self.gone.entry(broker).or_insert(now_ms);
        }
        self.settle_transfers(now_ms, view);
    }

    fn settle_transfers(&mut self, now_ms: u64, view: &View<'_>) {
        let epochs: BTreeMap<PartitionId, LeaderEpoch> = match self.transfers.is_empty() {
            true => BTreeMap::new(),
            false => view.partitions.iter().map(|(id, record)| (*id, record.epoch)).collect(),
        };
        self.put_off.retain(|_, until| *until > now_ms);
        let (put_off, pause) = (&mut self.put_off, self.limits.calm_ms.max(self.limits.transfer_ms));
        self.transfers.retain(|partition, (epoch, deadline)| {
            let open = epochs.get(partition) == Some(epoch);
            if open && *deadline <= now_ms {
                put_off.insert(*partition, now_ms + pause);
            }
            open && *deadline > now_ms
        });
    }

    fn note_transfer(&mut self, now_ms: u64, duty: &Duty) {
        if let Duty::Transfer { partition, epoch, .. } = duty {
            self.transfers.insert(*partition, (*epoch, now_ms + self.limits.transfer_ms));
        }
    }

    /// Rule E6: the dead leave the ISR, where the leader has not seen to it.
    fn removals(&self, now_ms: u64, view: &View<'_>) -> Vec<Duty> {
        let overdue = |broker: &BrokerId| self.is_gone_for(*broker, self.limits.remove_after_ms, now_ms);
        if !self.gone.keys().any(overdue) {
            return Vec::new();
        }
        let removal = |(partition, record): &(PartitionId, &PartitionRecord)| {
            if !view.led(record) || !record.isr.iter().any(|rid| overdue(&rid.broker)) {
                return None;
            }
            let next = election::without_dead(record, &view.live(record))?;
            Some(Duty::Change { partition: *partition, next })
        };
        view.partitions.iter().filter_map(removal).collect()
    }

    /// Brokers that are not waited for any longer.
    fn is_gone_for_good(&self, now_ms: u64, view: &View<'_>, broker: BrokerId) -> bool {
        view.gave_up(broker) || self.is_gone_for(broker, self.limits.replace_after_ms, now_ms)
    }

    fn is_gone_for(&self, broker: BrokerId, least_ms: u64, now_ms: u64) -> bool {
        self.gone.get(&broker).is_some_and(|since| now_ms.saturating_sub(*since) >= least_ms)
    }

    fn is_calm(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.calm_since) >= self.limits.calm_ms
    }

    /// A wish for another leader, unless one is under way or was just given up.
    fn transfer(&self, view: &View<'_>, partition: PartitionId, record: &PartitionRecord, to: Live) -> Option<Duty> {
        let from = record.leader.filter(|_| view.led(record))?;
        let open = self.transfers.contains_key(&partition) || self.put_off.contains_key(&partition);
        (!open && from.rid != to.rid).then_some(Duty::Transfer { partition, from, epoch: record.epoch, to })
    }

    /// Transfers that may be asked for now.
    fn transfers_left(&self) -> usize {
        self.limits.transfers_max.saturating_sub(self.transfers.len())
    }
}

#[cfg(test)]
mod tests;
