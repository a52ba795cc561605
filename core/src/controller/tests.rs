//! The controller's duties bring a cluster to rest, evenly spread, and it stays there; nothing is moved in a hurry.

use super::*;
use crate::placement::{Host, Load, Placer};
use crate::replica::removal;
use millpond_log::{Incarnation, Rid, TopicId, WalGen};
use proptest::prelude::*;

const LIMITS: Limits = Limits {
    calm_ms: 10_000,
    replace_after_ms: 600_000,
    remove_after_ms: 2_000,
    transfer_ms: 5_000,
    finish_after_ms: 10_000,
    bury_after_ms: 600_000,
    transfers_max: 20,
    moves_max: 8,
};

/// A cluster whose leaders do at once what they are to do, and its controller.
struct Cluster {
    now_ms: u64,
    controller: Controller,
    members: BTreeMap<BrokerId, Member>,
    leaving: BTreeSet<BrokerId>,
    draining: BTreeSet<BrokerId>,
    disks: BTreeMap<BrokerId, WalGen>,
    partitions: BTreeMap<PartitionId, PartitionRecord>,
    /// Leaders that do not answer wishes.
    deaf: bool,
    changes: usize,
    transfers: usize,
}

fn rid(broker: u32) -> Rid {
    Rid { broker: BrokerId(broker), wal_gen: WalGen(u64::from(broker) + 100) }
}

fn member(broker: u32, inc: u64, rack: Option<&str>) -> Member {
    Member { live: Live { rid: rid(broker), inc: Incarnation(inc) }, rack: rack.map(ToOwned::to_owned) }
}

fn at(index: u32) -> PartitionId {
    PartitionId { topic: TopicId(u128::from(index % 3) + 1), index }
}

impl Cluster {
    /// `racks.len()` brokers, and partitions placed over the first `used` of them.
    fn new(racks: &[Option<&str>], used: usize, partitions: u32, replicas: u32) -> Cluster {
        let members: BTreeMap<BrokerId, Member> =
            (0..).zip(racks).map(|(id, rack)| (BrokerId(id), member(id, 1_000, *rack))).collect();
        let hosts: Vec<Host> = members
            .iter()
            .take(used)
            .map(|(broker, member)| Host { broker: *broker, rack: member.rack.clone(), load: Load::default() })
            .collect();
        let mut placer = Placer::new(&hosts, [], 4);
        let mut cluster = Cluster {
            now_ms: 0,
            controller: Controller::new(LIMITS, 0),
            members,
            leaving: BTreeSet::new(),
            draining: BTreeSet::new(),
            disks: (0..racks.len() as u32).map(|id| (BrokerId(id), rid(id).wal_gen)).collect(),
            partitions: BTreeMap::new(),
            deaf: false,
            changes: 0,
            transfers: 0,
        };
        for index in 0..partitions {
            let replicas = placer.place(replicas).expect("enough");
            let isr: Vec<Rid> = replicas.iter().map(|broker| rid(broker.0)).collect();
            let leader = Leader { rid: isr[0], inc: Incarnation(1_000) };
            let min_isr = u32::try_from(isr.len()).expect("few").min(2);
            let record = PartitionRecord {
                leader: Some(leader),
                epoch: LeaderEpoch(1),
                isr,
                elr: Vec::new(),
                replicas,
                adding: Vec::new(),
                removing: Vec::new(),
                min_isr,
                unclean_epoch: None,
            };
            cluster.partitions.insert(at(index), record);
        }
        cluster
    }

    fn view(&self) -> View<'_> {
        let partitions = self.partitions.iter().map(|(id, record)| (*id, record)).collect();
        View {
            members: self.members.clone(),
            leaving: self.leaving.clone(),
            draining: self.draining.clone(),
            disks: self.disks.clone(),
            partitions,
        }
    }

    /// One look of the controller, and what comes of it.
    fn look(&mut self) -> Vec<Duty> {
        let members = self.members.clone();
        let partitions = self.partitions.clone();
        let view = View {
            members,
            leaving: self.leaving.clone(),
            draining: self.draining.clone(),
            disks: self.disks.clone(),
            partitions: partitions.iter().map(|(id, record)| (*id, record)).collect(),
        };
        let vacancies = view.vacancies();
        for vacancy in &vacancies {
            let record = &partitions[&vacancy.partition];
            let next =
                election::elect(record, &view.live(record), &BTreeMap::new(), Rules::ALL).expect("somebody may lead");
            self.partitions.insert(vacancy.partition, next);
        }
        if !vacancies.is_empty() {
            self.controller.note_elections(self.now_ms);
            return Vec::new();
        }
        let duties = self.controller.due(self.now_ms, &view);
        for duty in &duties {
            self.carry_out(duty);
        }
        self.lead();
        duties
    }

    fn carry_out(&mut self, duty: &Duty) {
        match duty {
            Duty::Change { partition, next } => {
                self.changes += 1;
                assert_eq!(next.epoch, self.partitions[partition].epoch, "rule E4");
                let isr = &self.partitions[partition].isr;
                assert!(next.isr.iter().all(|rid| isr.contains(rid)), "rule E6: the controller never adds");
                self.partitions.insert(*partition, next.clone());
            }
            Duty::Transfer { .. } if self.deaf => self.transfers += 1,
            Duty::Transfer { partition, from, epoch, to } => {
                self.transfers += 1;
                let record = &self.partitions[partition];
                assert_eq!((record.leader, record.epoch), (Some(*from), *epoch));
                assert!(record.isr.contains(&to.rid), "rule E9: only who is in sync");
                let live: Vec<Live> = self.members.values().map(|member| member.live).collect();
                self.partitions.insert(*partition, election::won(record, *to, &live));
            }
        }
    }

    /// Leaders take into the ISR whoever is alive, drop who is not, and end moves (rules I5, I6, I8).
    fn lead(&mut self) {
        for record in self.partitions.values_mut() {
            let Some(leader) = record.leader else { continue };
            if self.members.get(&leader.rid.broker).is_none_or(|member| member.live.rid != leader.rid) {
                continue;
            }
            let live: Vec<Rid> = record.replicas.iter().filter_map(|id| Some(self.members.get(id)?.live.rid)).collect();
            record.elr = removal(record, &live);
            record.isr = live;
            let joined = record.adding.iter().all(|broker| record.isr.contains(&rid(broker.0)));
            let stays = |rid: &Rid| !record.removing.contains(&rid.broker);
            let isr: Vec<Rid> = record.isr.iter().copied().filter(stays).collect();
            if joined && stays(&leader.rid) && isr.len() >= record.min_isr as usize {
                let replicas = record.replicas.iter().filter(|id| !record.removing.contains(id)).copied().collect();
                (record.isr, record.replicas) = (isr, replicas);
                (record.adding, record.removing) = (Vec::new(), Vec::new());
            }
        }
    }

    /// Looks until nothing is left to do, and demands that it ends.
    fn settle(&mut self) {
        self.now_ms += LIMITS.calm_ms;
        for _ in 0..2_000 {
            self.now_ms += 100;
            let mut idle = self.look().is_empty();
            // What is put off or waits for calm comes later.
            self.now_ms += LIMITS.calm_ms;
            idle &= self.look().is_empty();
            if idle {
                return;
            }
        }
        panic!("it never comes to rest");
    }

    fn rests(&mut self) {
        for _ in 0..20 {
            self.now_ms += 7_000;
            assert_eq!(self.look(), [], "no flapping");
        }
    }

    fn led_by(&self, broker: u32) -> usize {
        let leads = |record: &&PartitionRecord| record.leader.is_some_and(|leader| leader.rid.broker.0 == broker);
        self.partitions.values().filter(leads).count()
    }

    fn held_by(&self, broker: u32) -> usize {
        self.partitions.values().filter(|record| record.replicas.contains(&BrokerId(broker))).count()
    }

    fn kill(&mut self, broker: u32) -> Member {
        self.members.remove(&BrokerId(broker)).expect("it was alive")
    }
}

#[test]
fn a_balanced_cluster_is_left_alone() {
    let mut cluster = Cluster::new(&[None; 3], 3, 30, 3);
    cluster.settle();
    cluster.rests();
    assert_eq!((cluster.changes, cluster.transfers), (0, 0));
}

#[test]
fn a_dead_leaders_partitions_are_vacant_at_once() {
    let mut cluster = Cluster::new(&[None; 3], 3, 30, 3);
    cluster.look();
    cluster.kill(1);
    assert_eq!(cluster.view().vacancies().len(), 10);
    cluster.look();
    assert_eq!(cluster.view().vacancies(), []);
    assert_eq!((cluster.led_by(0) + cluster.led_by(2), cluster.led_by(1)), (30, 0));
    let restarted = member(0, 2_000, None);
    cluster.members.insert(BrokerId(0), restarted);
    assert!(!cluster.view().vacancies().is_empty(), "rules E1, B2: another session leads nothing");
}

#[test]
fn whoever_comes_back_gets_its_leaderships_again_in_calm() {
    let mut cluster = Cluster::new(&[None; 3], 3, 30, 3);
    cluster.look();
    cluster.kill(1);
    cluster.look();
    cluster.now_ms += 5_000;
    cluster.look();
    cluster.members.insert(BrokerId(1), member(1, 2_000, None));
    cluster.look();
    cluster.now_ms += LIMITS.calm_ms - 1;
    cluster.look();
    assert_eq!((cluster.led_by(1), cluster.transfers), (0, 0), "never right after an election");
    cluster.settle();
    assert_eq!([0, 1, 2].map(|broker| cluster.led_by(broker)), [10, 10, 10]);
    assert_eq!(cluster.transfers, 10);
    cluster.rests();
}

#[test]
fn a_tenth_elsewhere_is_no_imbalance() {
    let mut cluster = Cluster::new(&[None; 3], 3, 60, 3);
    let live: Vec<Live> = cluster.members.values().map(|member| member.live).collect();
    let mine = |record: &&mut PartitionRecord| record.replicas[0] == BrokerId(1);
    for record in cluster.partitions.values_mut().filter(mine).take(2) {
        *record = election::won(record, live[2], &live);
    }
    cluster.settle();
    assert_eq!(cluster.transfers, 0, "2 of 20");
    for record in cluster.partitions.values_mut().filter(mine).take(3) {
        *record = election::won(record, live[2], &live);
    }
    cluster.settle();
    assert_eq!((cluster.transfers, cluster.led_by(1)), (3, 20), "3 of 20: all of them go back");
}

#[test]
fn transfers_are_few_at_once_and_refused_ones_are_put_off() {
    let mut cluster = Cluster::new(&[None; 3], 3, 300, 3);
    cluster.look();
    cluster.kill(1);
    cluster.look();
    cluster.members.insert(BrokerId(1), member(1, 2_000, None));
    cluster.look();
    cluster.deaf = true;
    cluster.now_ms += LIMITS.calm_ms;
    assert_eq!(cluster.look().len(), 20);
    assert_eq!(cluster.look(), [], "they are under way");
    cluster.now_ms += LIMITS.transfer_ms;
    let second = cluster.look();
    assert_eq!((second.len(), cluster.transfers), (20, 40), "others are tried");
    cluster.deaf = false;
    cluster.settle();
    assert_eq!(cluster.led_by(1), 100);
}

#[test]
fn a_broker_that_is_gone_for_long_is_replaced_and_not_before() {
    let mut cluster = Cluster::new(&[None; 4], 4, 40, 3);
    cluster.look();
    cluster.kill(3);
    let held = cluster.held_by(3);
    for _ in 0..50 {
        cluster.now_ms += LIMITS.replace_after_ms / 51;
        cluster.look();
    }
    assert_eq!((cluster.held_by(3), held), (30, 30));
    cluster.now_ms += LIMITS.replace_after_ms;
    assert_eq!(cluster.look().len(), LIMITS.moves_max, "a few at a time");
    cluster.settle();
    assert_eq!([0, 1, 2, 3].map(|broker| cluster.held_by(broker)), [40, 40, 40, 0]);
    cluster.rests();
}

#[test]
fn with_nobody_to_replace_it_a_replica_stays_where_it_was() {
    let mut cluster = Cluster::new(&[None; 3], 3, 9, 3);
    cluster.look();
    cluster.kill(2);
    cluster.settle();
    cluster.now_ms += 2 * LIMITS.replace_after_ms;
    cluster.settle();
    assert_eq!(cluster.held_by(2), 9);
}

#[test]
fn what_nobody_leads_is_not_replaced() {
    let mut cluster = Cluster::new(&[None; 3], 3, 9, 1);
    cluster.look();
    cluster.kill(2);
    cluster.settle();
    cluster.now_ms += 2 * LIMITS.replace_after_ms;
    cluster.settle();
    assert_eq!(cluster.held_by(2), 3, "its disk has the only copies (rule K6)");
}

#[test]
fn a_last_copy_that_is_gone_for_long_keeps_no_new_broker_from_its_share() {
    let mut cluster = Cluster::new(&[None; 4], 3, 30, 1);
    cluster.look();
    cluster.kill(2);
    cluster.settle();
    assert_eq!(cluster.held_by(3), 0, "it may be a start anew");
    cluster.now_ms += LIMITS.replace_after_ms;
    cluster.settle();
    assert_eq!([0, 1, 2, 3].map(|broker| cluster.held_by(broker)), [7, 7, 10, 6], "rule K6: what only it has stays");
    cluster.rests();
}

#[test]
fn moves_that_nobody_leads_hold_up_no_other() {
    let mut cluster = Cluster::new(&[None; 5], 4, 40, 3);
    cluster.look();
    // Their only holder died while they were moved away from it.
    for index in 100..108 {
        let [joins, leaves] = [BrokerId(0), BrokerId(4)];
        let record = PartitionRecord {
            leader: Some(Leader { rid: rid(4), inc: Incarnation(1_000) }),
            isr: vec![rid(4)],
            replicas: vec![joins, leaves],
            adding: vec![joins],
            removing: vec![leaves],
            min_isr: 1,
            ..cluster.partitions[&at(0)].clone()
        };
        cluster.partitions.insert(at(index), record);
    }
    let stuck: Vec<PartitionRecord> = (100..108).map(|index| cluster.partitions[&at(index)].clone()).collect();
    cluster.kill(4);
    cluster.kill(3);
    cluster.look();
    assert_eq!(cluster.look(), [], "what 3 led was elected; from now on it is waited for");
    cluster.now_ms += LIMITS.replace_after_ms;
    let begun = |duty: &&Duty| matches!(duty, Duty::Change { next, .. } if !next.adding.is_empty());
    assert_eq!(cluster.look().iter().filter(begun).count(), LIMITS.moves_max);
    cluster.settle();
    assert_eq!((cluster.held_by(3), cluster.held_by(4)), (0, 8));
    assert!((100..108).map(|index| &cluster.partitions[&at(index)]).eq(&stuck), "rule K6");
}

/// Rules B4, E7, I8: somebody has to be there who can be ordered to go on. Without an operator's word nothing is touched.
#[test]
fn what_was_given_up_is_placed_on_others_and_leads_nowhere_without_an_order() {
    let mut cluster = Cluster::new(&[None; 3], 3, 9, 1);
    cluster.look();
    cluster.kill(2);
    cluster.look();
    // It came back with another disk, perhaps with what was left on the old one, and is down again.
    cluster.disks.insert(BrokerId(2), WalGen(999));
    cluster.now_ms += 2 * LIMITS.replace_after_ms;
    cluster.settle();
    assert_eq!(cluster.held_by(2), 3);
    let before = cluster.partitions.clone();
    cluster.disks.insert(BrokerId(2), WalGen::LOST);
    assert_eq!(cluster.look().len(), 3);
    for (id, record) in cluster.partitions.iter().filter(|(_, record)| !record.adding.is_empty()) {
        let was = &before[id];
        assert_eq!(
            (&record.isr, &record.elr, record.leader, record.epoch),
            (&was.isr, &was.elr, was.leader, was.epoch)
        );
        assert_eq!((record.adding.len(), &record.removing[..]), (1, &[BrokerId(2)][..]));
    }
    cluster.rests();
    // The order: the move ends like any other.
    for record in cluster.partitions.values_mut().filter(|record| !record.adding.is_empty()) {
        *record = election::won_unclean(record, cluster.members[&record.adding[0]].live);
    }
    cluster.settle();
    assert_eq!((cluster.held_by(0) + cluster.held_by(1), cluster.held_by(2)), (9, 0));
    assert!(cluster.partitions.values().all(|record| record.adding.is_empty() && record.replicas.len() == 1));
}

#[test]
fn only_who_was_given_up_is_replaced_where_all_is_lost_and_only_while_nobody_is_left() {
    let mut cluster = Cluster::new(&[None; 6], 3, 1, 3);
    cluster.look();
    let back = cluster.kill(2);
    cluster.kill(1);
    cluster.kill(0);
    cluster.disks.extend([0, 1].map(|broker| (BrokerId(broker), WalGen::LOST)));
    assert_eq!(cluster.look(), [], "the third may have it all");
    cluster.disks.insert(BrokerId(2), WalGen(999));
    let other = Rid { wal_gen: WalGen(999), ..back.live.rid };
    cluster.members.insert(BrokerId(2), Member { live: Live { rid: other, ..back.live }, ..back });
    assert_eq!(cluster.look(), [], "it can be ordered to lead");
    cluster.kill(2);
    assert_eq!(cluster.look().len(), 1);
    let record = cluster.partitions[&at(0)].clone();
    assert_eq!((record.adding.len(), record.removing.len(), record.replicas.contains(&BrokerId(2))), (2, 2, true));
    assert_eq!(cluster.look(), []);
    // Whoever was to join and is gone again has nothing, and is replaced in its turn.
    let joining = record.adding.clone();
    joining.iter().for_each(|broker| drop(cluster.kill(broker.0)));
    assert_eq!(cluster.look().len(), 1);
    assert_eq!(cluster.partitions[&at(0)].adding.len(), 2, "one of them stays, since nobody else is there");
}

#[test]
fn who_was_given_up_is_replaced_at_once() {
    let mut cluster = Cluster::new(&[None; 4], 4, 40, 3);
    cluster.look();
    cluster.kill(3);
    cluster.settle();
    assert_eq!(cluster.held_by(3), 30);
    cluster.disks.insert(BrokerId(3), WalGen::LOST);
    assert_eq!(cluster.look().len(), LIMITS.moves_max);
    cluster.settle();
    assert_eq!([0, 1, 2, 3].map(|broker| cluster.held_by(broker)), [40, 40, 40, 0]);
}

/// Rule I8: it would wait for the one that is gone, and nobody else could take its place.
#[test]
fn no_share_is_taken_of_what_lacks_a_replica() {
    let mut cluster = Cluster::new(&[None; 3], 2, 30, 2);
    cluster.look();
    cluster.kill(0);
    cluster.look();
    cluster.look();
    cluster.now_ms += LIMITS.replace_after_ms;
    for duty in cluster.look() {
        let Duty::Change { next, .. } = duty else { continue };
        assert!(next.removing.iter().all(|broker| *broker == BrokerId(0)), "{next:?}");
    }
    cluster.settle();
    assert_eq!([0, 1, 2].map(|broker| cluster.held_by(broker)), [0, 30, 30]);
}

/// Rule I8: whoever was to leave stays, where nobody else is there to replace one that is gone.
#[test]
fn a_move_of_which_a_staying_replica_is_gone_ends() {
    let mut cluster = Cluster::new(&[None; 3], 3, 1, 2);
    let [leads, stays] = [0, 1].map(|place| cluster.partitions[&at(0)].replicas[place]);
    let joins = *cluster.members.keys().find(|id| ![leads, stays].contains(id)).expect("three");
    let moved = reassigned(&cluster.partitions[&at(0)], &[joins, stays]).expect("it changes");
    cluster.look();
    cluster.partitions.insert(at(0), moved);
    cluster.kill(stays.0);
    cluster.settle();
    assert!(moves::moves(&cluster.partitions[&at(0)]), "it may come back");
    cluster.now_ms += LIMITS.replace_after_ms;
    cluster.settle();
    let record = &cluster.partitions[&at(0)];
    assert_eq!(record.replicas.iter().copied().collect::<BTreeSet<BrokerId>>(), BTreeSet::from([leads, joins]));
    assert!(!moves::moves(record) && record.isr.len() == 2, "{record:?}");
    cluster.rests();
}

#[test]
fn a_new_broker_gets_its_share() {
    let mut cluster = Cluster::new(&[None; 4], 3, 120, 3);
    cluster.settle();
    for broker in 0..4 {
        assert!((82..=93).contains(&cluster.held_by(broker)), "broker {broker} holds {}", cluster.held_by(broker));
        assert!((27..=33).contains(&cluster.led_by(broker)), "broker {broker} leads {}", cluster.led_by(broker));
    }
    assert!(cluster.changes <= 130, "{} changes for 90 replicas", cluster.changes);
    cluster.rests();
}

#[test]
fn a_draining_broker_is_left_without_anything() {
    let mut cluster = Cluster::new(&[None; 4], 4, 40, 3);
    cluster.draining.insert(BrokerId(0));
    cluster.settle();
    assert_eq!((cluster.led_by(0), cluster.held_by(0)), (0, 0));
    cluster.rests();
    // With nobody to take the replicas, leaderships go all the same.
    let mut cluster = Cluster::new(&[None; 3], 3, 30, 3);
    cluster.draining.insert(BrokerId(0));
    cluster.settle();
    assert_eq!((cluster.led_by(0), cluster.held_by(0)), (0, 30));
    cluster.rests();
}

/// Rule B7: who stops keeps its replicas, and is not given its leaderships back meanwhile.
#[test]
fn a_broker_that_stops_is_left_without_leaderships_alone() {
    let mut cluster = Cluster::new(&[None; 4], 4, 40, 3);
    cluster.leaving.insert(BrokerId(0));
    let held = cluster.held_by(0);
    cluster.settle();
    assert_eq!((cluster.led_by(0), cluster.held_by(0)), (0, held));
    cluster.rests();
    cluster.leaving.clear();
    cluster.settle();
    assert_eq!(cluster.led_by(0), 10);
}

#[test]
fn racks_stay_spread_when_replicas_move() {
    let racks = [Some("a"), Some("a"), Some("b"), Some("b"), Some("c"), Some("c")];
    let mut cluster = Cluster::new(&racks, 6, 60, 3);
    cluster.look();
    cluster.kill(0);
    cluster.settle();
    cluster.now_ms += LIMITS.replace_after_ms;
    cluster.settle();
    assert_eq!(cluster.held_by(0), 0);
    cluster.rests();
    let rack = |broker: &BrokerId| broker.0 / 2;
    for record in cluster.partitions.values() {
        let racks: BTreeSet<u32> = record.replicas.iter().map(rack).collect();
        assert_eq!(racks.len(), 3, "{:?}", record.replicas);
    }
}

#[test]
fn a_move_goes_on_where_its_target_died() {
    let mut cluster = Cluster::new(&[None; 5], 3, 3, 3);
    cluster.draining.insert(BrokerId(4));
    cluster.kill(3);
    let moved = at(0);
    let next = reassigned(&cluster.partitions[&moved], &[BrokerId(0), BrokerId(1), BrokerId(3)]).expect("a change");
    assert_eq!(
        (next.adding.as_slice(), next.removing.as_slice()),
        ([BrokerId(3)].as_slice(), [BrokerId(2)].as_slice())
    );
    cluster.partitions.insert(moved, next);
    cluster.look();
    cluster.draining.clear();
    cluster.now_ms += LIMITS.replace_after_ms;
    cluster.settle();
    assert_eq!(cluster.held_by(3), 0);
    assert!(cluster.partitions.values().all(|record| record.adding.is_empty() && record.removing.is_empty()));
}

#[test]
fn a_leader_that_is_to_leave_hands_over_once_the_others_are_in_sync() {
    let mut cluster = Cluster::new(&[None; 4], 3, 1, 3);
    let record = cluster.partitions[&at(0)].clone();
    let old = record.leader.expect("led").rid.broker;
    let to: Vec<BrokerId> = (0..4).map(BrokerId).filter(|broker| *broker != old).collect();
    cluster.partitions.insert(at(0), reassigned(&record, &to).expect("a change"));
    let duties = cluster.look();
    assert_eq!(duties, [], "rule I8: who joins is not in sync yet");
    let duties = cluster.look();
    assert!(matches!(&duties[..], [Duty::Transfer { to: heir, .. }] if heir.rid.broker == to[0]), "{duties:?}");
    let record = &cluster.partitions[&at(0)];
    assert_eq!((record.replicas.clone(), record.removing.len()), (to, 0));
}

#[test]
fn a_reassignment_replaces_the_one_before() {
    let cluster = Cluster::new(&[None; 5], 3, 1, 3);
    let record = &cluster.partitions[&at(0)];
    let original = record.replicas.clone();
    assert_eq!(reassigned(record, &original), None);
    let moving = reassigned(record, &[original[0], original[1], BrokerId(4)]).expect("a change");
    let back = reassigned(&moving, &original).expect("a change");
    assert_eq!((back.adding.as_slice(), back.removing.as_slice()), ([].as_slice(), [BrokerId(4)].as_slice()));
    let elsewhere = reassigned(&moving, &[original[0], original[1], BrokerId(3)]).expect("a change");
    assert_eq!(elsewhere.adding, [BrokerId(3)]);
    assert_eq!(elsewhere.removing, [BrokerId(4), original[2]]);
    let mut order = original.clone();
    order.reverse();
    let reordered = reassigned(record, &order).expect("a change");
    assert_eq!((reordered.replicas, reordered.adding, reordered.removing), (order, vec![], vec![]));
}

proptest! {
    /// Whatever the fleet, who joins and who dies for good: it comes to rest, evenly, and stays.
    #[test]
    fn every_fleet_comes_to_rest(
        racks in proptest::collection::vec(proptest::option::of(0u8..3), 3..8),
        used in 3usize..8,
        partitions in 1u32..60,
        replicas in 1u32..4,
        dies in proptest::option::of(0u32..8),
        drains in proptest::option::of(0u32..8),
    ) {
        let names: Vec<Option<String>> = racks.iter().map(|rack| rack.map(|rack| format!("r{rack}"))).collect();
        let racks: Vec<Option<&str>> = names.iter().map(Option::as_deref).collect();
        let used = used.min(racks.len());
        let mut cluster = Cluster::new(&racks, used, partitions, replicas);
        cluster.settle();
        cluster.rests();
        if let Some(dies) = dies.filter(|dies| cluster.members.contains_key(&BrokerId(*dies))) {
            cluster.kill(dies);
            cluster.settle();
            cluster.now_ms += LIMITS.replace_after_ms;
            cluster.settle();
            cluster.rests();
        }
        if let Some(drains) = drains.filter(|drains| cluster.members.contains_key(&BrokerId(*drains))) {
            cluster.draining.insert(BrokerId(drains));
            cluster.settle();
            cluster.rests();
        }
        for record in cluster.partitions.values() {
            prop_assert_eq!(record.replicas.len(), replicas as usize);
            prop_assert!(record.adding.is_empty() && record.removing.is_empty());
        }
        let alike = racks.iter().all(Option::is_none);
        if alike && cluster.gone_holds_nothing() {
            let hosts: Vec<u32> = cluster.members.keys().filter(|id| !cluster.draining.contains(id)).map(|id| id.0).collect();
            let held: Vec<usize> = hosts.iter().map(|broker| cluster.held_by(*broker)).collect();
            let (least, most) = (held.iter().min().expect("some"), held.iter().max().expect("some"));
            let tolerated = (held.iter().sum::<usize>() / held.len() / 10).max(1);
            prop_assert!(most - least <= tolerated, "{:?}", held);
        }
    }
}

impl Cluster {
    fn gone_holds_nothing(&self) -> bool {
        let holds = |record: &PartitionRecord| record.replicas.iter().all(|broker| self.members.contains_key(broker));
        self.partitions.values().all(holds)
    }
}
