//! What may be accepted as lost, and what becomes of it (rules E7, R12).

use super::*;
use millpond_log::Incarnation;

const ME: Rid = Rid { broker: BrokerId(0), wal_gen: WalGen(2) };
const OLD: Rid = Rid { broker: BrokerId(0), wal_gen: WalGen(1) };
const PEER: Rid = Rid { broker: BrokerId(1), wal_gen: WalGen(7) };
const PEER_OLD: Rid = Rid { broker: BrokerId(1), wal_gen: WalGen(6) };
const STRANGER: Rid = Rid { broker: BrokerId(9), wal_gen: WalGen(9) };

fn disk_of(broker: BrokerId) -> Option<WalGen> {
    [ME, PEER].iter().find(|rid| rid.broker == broker).map(|rid| rid.wal_gen)
}

fn record(isr: &[Rid], elr: &[Rid]) -> PartitionRecord {
    PartitionRecord {
        leader: Some(Leader { rid: OLD, inc: Incarnation(5) }),
        epoch: LeaderEpoch(4),
        isr: isr.to_vec(),
        elr: elr.to_vec(),
        replicas: vec![BrokerId(0)],
        adding: Vec::new(),
        removing: Vec::new(),
        min_isr: 1,
        unclean_epoch: None,
    }
}

fn evidence(epoch_seen: u32, end: u64, known_end: u64) -> Evidence {
    Evidence {
        leader: Leader { rid: ME, inc: Incarnation(8) },
        epoch_seen: LeaderEpoch(epoch_seen),
        end: Offset(end),
        tiered_end: Offset(10),
        known_end: Offset(known_end),
        cause: "a test".to_owned(),
    }
}

#[test]
fn a_disk_that_was_given_up_is_gone_and_one_that_nobody_knows_is_not() {
    let seen = record(&[PEER_OLD], &[OLD]);
    assert_eq!(awaited(&seen, |_| None), [PEER_OLD.broker, OLD.broker], "rule K6");
    assert_eq!(awaited(&seen, |broker| (broker == OLD.broker).then_some(WalGen::LOST)), [PEER_OLD.broker]);
    assert_eq!(standing(&seen, ME, |_| Some(WalGen::LOST)), Standing::Lost);
    assert_eq!(standing(&record(&[ME], &[]), ME, |_| Some(WalGen::LOST)), Standing::Electable);
}

#[test]
fn a_partition_is_lost_when_every_complete_replica_is_another_disk_now() {
    let check = |isr: &[Rid], elr: &[Rid], expected| {
        assert_eq!(standing(&record(isr, elr), ME, disk_of), expected, "{isr:?} {elr:?}");
    };
    check(&[ME], &[], Standing::Electable);
    check(&[OLD], &[ME], Standing::Electable);
    check(&[PEER, ME], &[], Standing::Electable);
    check(&[OLD], &[], Standing::Lost);
    check(&[OLD, PEER_OLD], &[], Standing::Lost);
    check(&[OLD], &[PEER_OLD], Standing::Lost);
    check(&[PEER], &[], Standing::Elsewhere);
    check(&[OLD], &[PEER], Standing::Elsewhere);
    check(&[OLD, STRANGER], &[], Standing::Elsewhere);
}

#[test]
fn rule_e7_one_replica_the_next_epoch_and_a_mark() {
    let seen = record(&[OLD], &[PEER_OLD]);
    let Acceptance { next, loss } = accept(&seen, evidence(4, 30, 50), disk_of).expect("it is lost");
    let leader = Leader { rid: ME, inc: Incarnation(8) };
    assert_eq!((next.leader, next.epoch, next.unclean_epoch), (Some(leader), LeaderEpoch(5), Some(LeaderEpoch(5))));
    assert_eq!((&next.isr[..], &next.elr[..]), (&[ME][..], &[][..]));
    assert_eq!((&next.replicas, next.min_isr), (&seen.replicas, 1), "the rest is as it was");
    assert_eq!((loss.epoch, loss.leader, &loss.lost[..]), (LeaderEpoch(5), ME, &[OLD, PEER_OLD][..]));
    assert_eq!((loss.end, loss.known_end, loss.tiered_end), (Offset(30), Offset(50), Offset(10)));
    let Acceptance { loss, .. } = accept(&seen, evidence(4, 30, 0), disk_of).expect("it is lost");
    assert_eq!(loss.known_end, Offset(30), "nothing tells how far it reached");
    // Once accepted there is nothing left to accept.
    assert_eq!(accept(&next, evidence(5, 30, 50), disk_of), Err(Refusal::NotLost));
}

#[test]
fn nothing_is_accepted_while_a_copy_may_lead_or_the_metadata_is_old() {
    for (isr, elr) in [(vec![ME], vec![]), (vec![PEER], vec![]), (vec![OLD], vec![PEER]), (vec![STRANGER], vec![])] {
        assert_eq!(accept(&record(&isr, &elr), evidence(4, 30, 50), disk_of), Err(Refusal::NotLost));
    }
    let stale = Refusal::StaleMetadata { seen: LeaderEpoch(5), known: LeaderEpoch(4) };
    assert_eq!(accept(&record(&[OLD], &[]), evidence(5, 30, 50), disk_of), Err(stale), "rule K7");
}

#[test]
#[should_panic(expected = "rule E7")]
fn what_is_tiered_is_never_given_up() {
    let _ = accept(&record(&[OLD], &[]), evidence(4, 9, 9), disk_of);
}

#[test]
fn rule_r12_a_disk_is_kept_only_where_it_goes_on_from_object_storage() {
    let check = |start, end, epoch: Option<u32>, tiered_end, tiered_epoch: Option<u32>, expected| {
        let seam = Seam {
            start: Offset(start),
            end: Offset(end),
            epoch: epoch.map(LeaderEpoch),
            tiered_end: Offset(tiered_end),
            tiered_epoch: tiered_epoch.map(LeaderEpoch),
            hash: None,
            tiered_hash: 7,
        };
        assert_eq!(meet(&seam), expected, "{seam:?}");
        assert_eq!(meet(&Seam { hash: Some(7), ..seam }), expected, "S6: {seam:?}");
        if expected == Meeting::Continues {
            assert_eq!(meet(&Seam { hash: Some(8), ..seam }), Meeting::Diverged, "S6: {seam:?}");
        }
    };
    check(0, 20, Some(3), 0, None, Meeting::Continues);
    check(0, 20, Some(3), 10, Some(3), Meeting::Continues);
    check(0, 9, Some(3), 10, Some(3), Meeting::Behind);
    check(0, 10, Some(3), 10, Some(3), Meeting::Continues);
    // An unclean election replaced what the disk holds at 9, and more was tiered since.
    check(0, 20, Some(3), 10, Some(4), Meeting::Diverged);
    check(0, 20, Some(5), 10, Some(4), Meeting::Diverged);
    check(10, 20, Some(3), 10, Some(3), Meeting::Continues);
    check(10, 20, Some(5), 10, Some(3), Meeting::Continues);
    check(10, 20, Some(2), 10, Some(3), Meeting::Diverged);
    check(10, 10, None, 10, Some(3), Meeting::Continues);
}

#[test]
fn rule_e7_a_partition_is_given_up_only_while_nobody_may_lead_it() {
    let seen = record(&[OLD], &[PEER]);
    let live = |rid| Live { rid, inc: Incarnation(8) };
    let give_up = |alive: &[Live]| give_up(&seen, alive, evidence(4, 30, 50));
    let Acceptance { next, loss } = give_up(&[live(ME)]).expect("nobody of ISR and ELR is alive");
    assert_eq!((&next.isr[..], next.epoch, next.unclean_epoch), (&[ME][..], LeaderEpoch(5), Some(LeaderEpoch(5))));
    assert_eq!((&loss.lost[..], loss.end, loss.known_end), (&[OLD, PEER][..], Offset(30), Offset(50)));
    assert_eq!(give_up(&[live(ME), live(PEER)]), Err(Refusal::NotLost), "rule E2 comes first");
    let led = Live { rid: OLD, inc: Incarnation(5) };
    assert_eq!(give_up(&[live(ME), led]), Err(Refusal::NotLost));
    let newer = super::give_up(&seen, &[live(ME)], evidence(5, 30, 50));
    assert_eq!(newer, Err(Refusal::StaleMetadata { seen: LeaderEpoch(5), known: LeaderEpoch(4) }), "rule K7");
}
