//! Elections choose only who holds everything committed.

use super::*;
use millpond_log::{BrokerId, Incarnation, WalGen};

fn rid(broker: u32) -> Rid {
    Rid { broker: BrokerId(broker), wal_gen: WalGen(u64::from(broker) * 11) }
}

fn live(broker: u32) -> Live {
    Live { rid: rid(broker), inc: Incarnation(u64::from(broker) + 100) }
}

fn record(isr: &[u32], elr: &[u32], min_isr: u32) -> PartitionRecord {
    PartitionRecord {
        leader: Some(Leader { rid: rid(1), inc: Incarnation(101) }),
        epoch: LeaderEpoch(7),
        isr: isr.iter().copied().map(rid).collect(),
        elr: elr.iter().copied().map(rid).collect(),
        replicas: vec![BrokerId(1), BrokerId(2), BrokerId(3)],
        adding: Vec::new(),
        removing: Vec::new(),
        min_isr,
        unclean_epoch: None,
    }
}

fn elected(record: &PartitionRecord, alive: &[Live], answers: &[(u32, Holds)]) -> Option<(u32, Vec<u32>, Vec<u32>)> {
    let answers = answers.iter().map(|(broker, holds)| (rid(*broker), *holds)).collect();
    let next = elect(record, alive, &answers, Rules::ALL)?;
    assert_eq!(next.epoch, LeaderEpoch(8), "rule E4");
    let brokers = |rids: &[Rid]| rids.iter().map(|rid| rid.broker.0).collect();
    Some((next.leader?.rid.broker.0, brokers(&next.isr), brokers(&next.elr)))
}

fn holds(last_epoch: u32, durable: u64) -> Holds {
    let durable = Offset(durable);
    Holds { last_epoch: LeaderEpoch(last_epoch), durable, hw: Offset(0), known_end: durable }
}

#[test]
fn a_partition_is_vacant_when_its_leader_has_another_session() {
    let record = record(&[1, 2, 3], &[], 2);
    assert!(!vacant(&record, &[live(1)]));
    assert!(vacant(&record, &[live(2)]));
    let restarted = Live { inc: Incarnation(999), ..live(1) };
    assert!(vacant(&record, &[restarted]), "rule B2");
}

#[test]
fn the_preferred_replica_leads_and_the_dead_leave_the_isr() {
    assert_eq!(elected(&record(&[1, 2, 3], &[], 2), &[live(3), live(2)], &[]), Some((2, vec![2, 3], vec![])));
}

#[test]
fn whoever_leaves_a_too_small_isr_stays_electable() {
    assert_eq!(elected(&record(&[1, 2, 3], &[], 2), &[live(3)], &[]), Some((3, vec![3], vec![1, 2])), "rule I2");
    assert_eq!(elected(&record(&[3], &[1, 2], 2), &[live(2)], &[]), Some((2, vec![2], vec![1, 3])));
}

#[test]
fn nobody_outside_isr_and_elr_leads() {
    assert_eq!(elected(&record(&[1, 2], &[], 2), &[live(3)], &[]), None, "rule E2");
    let wiped = Live { rid: Rid { wal_gen: WalGen(5), ..rid(2) }, ..live(2) };
    assert_eq!(elected(&record(&[1, 2], &[], 2), &[wiped], &[]), None, "rules E2 and K2");
}

#[test]
fn the_longest_log_wins_if_candidates_were_asked() {
    let answers = [(2, holds(6, 50)), (3, holds(7, 40))];
    assert_eq!(
        elected(&record(&[1, 2, 3], &[], 2), &[live(2), live(3)], &answers),
        Some((3, vec![2, 3], vec![])),
        "rule E5"
    );
    let equal = [(2, holds(7, 40)), (3, holds(7, 40))];
    assert_eq!(elected(&record(&[1, 2, 3], &[], 2), &[live(2), live(3)], &equal), Some((2, vec![2, 3], vec![])));
}

#[test]
fn a_candidate_below_anothers_high_watermark_is_in_doubt() {
    let at = |durable, hw| Holds {
        last_epoch: LeaderEpoch(7),
        durable: Offset(durable),
        hw: Offset(hw),
        known_end: Offset(0),
    };
    let check = |answers: &[Holds], expected| {
        let answers = (1..).zip(answers).map(|(broker, holds)| (rid(broker), *holds)).collect();
        assert_eq!(short_of_committed(&answers), expected, "rule E5");
    };
    check(&[], None);
    check(&[at(5, 5)], None);
    check(&[at(9, 5), at(5, 3)], None);
    check(&[at(9, 5), at(4, 3)], Some(Offset(5)));
}

#[test]
fn an_unclean_election_says_so() {
    let next = won_unclean(&record(&[1, 2], &[], 2), live(3));
    assert_eq!((next.unclean_epoch, next.isr, next.elr), (Some(LeaderEpoch(8)), vec![rid(3)], vec![]), "rule E7");
}

#[test]
fn the_controller_only_ever_removes_the_dead() {
    let next = without_dead(&record(&[1, 2, 3], &[], 2), &[live(1), live(2)]).expect("one is dead");
    assert_eq!((next.epoch, next.isr, next.elr), (LeaderEpoch(7), vec![rid(1), rid(2)], vec![]), "rule E6");
    assert_eq!(without_dead(&record(&[1, 2], &[], 2), &[live(1), live(2), live(3)]), None);
}

#[test]
fn rule_e7_the_longest_of_the_rest_leads_and_nobody_who_lacks_what_is_tiered_or_lost_something() {
    let record = record(&[1], &[], 1);
    let best = |alive: &[u32], answers: &[(u32, Holds)]| {
        let alive: Vec<Live> = alive.iter().copied().map(live).collect();
        let answers = answers.iter().map(|(broker, holds)| (rid(*broker), *holds)).collect();
        best_of_the_rest(&record, &alive, &answers, Offset(10)).map(|live| live.rid.broker.0)
    };
    assert_eq!(best(&[2, 3], &[(2, holds(4, 20)), (3, holds(4, 21))]), Some(3));
    assert_eq!(best(&[2, 3], &[(2, holds(5, 20)), (3, holds(4, 21))]), Some(2), "a later epoch counts more");
    assert_eq!(best(&[3, 2], &[(2, holds(4, 20)), (3, holds(4, 20))]), Some(2), "the preferred one");
    assert_eq!(best(&[2, 3], &[(2, holds(4, 20))]), Some(2), "the other one did not answer");
    assert_eq!(best(&[2, 3], &[(2, holds(4, 9)), (3, holds(4, 10))]), Some(3));
    assert_eq!(best(&[2], &[(2, holds(4, 9))]), None, "it lacks what is in object storage");
    let lost_some = Holds { known_end: Offset(30), ..holds(6, 20) };
    assert_eq!(best(&[2, 3], &[(2, lost_some), (3, holds(4, 12))]), Some(3), "its disk is in doubt");
    let lost_committed = Holds { hw: Offset(21), ..holds(6, 20) };
    assert_eq!(best(&[2], &[(2, lost_committed)]), None);
    assert_eq!(best(&[2, 9], &[(2, holds(4, 20)), (9, holds(7, 90))]), Some(2), "only its replicas");
    let restarted = Live { inc: Incarnation(999), ..live(1) };
    let answers = [(rid(2), holds(4, 20))].into();
    assert_eq!(best_of_the_rest(&record, &[restarted, live(2)], &answers, Offset(10)), None, "rule E2 comes first");
}
