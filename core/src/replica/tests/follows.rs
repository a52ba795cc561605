//! The follower: what it takes, where it truncates, what it says.

use super::*;

/// A push of the leader of `epoch`, broker 2, of a log whose batches were written in `epochs`, from `prev` on.
fn push(epoch: u32, nonce: u64, epochs: &[u32], prev: usize) -> Push {
    let head = PushHead {
        epoch: LeaderEpoch(epoch),
        leader: Leader { rid: PEER, inc: inc(PEER) },
        unclean_epoch: None,
        hw: Offset(0),
        log_start: Offset(0),
        tiered_end: Offset(0),
    };
    Push {
        head,
        nonce,
        start: Offset(0),
        prev_offset: Offset(prev as u64),
        prev_epoch: prev.checked_sub(1).map(|last| LeaderEpoch(epochs[last])),
        batches: log_of(epochs)[prev..].to_vec(),
    }
}

/// A follower that holds batches written in these epochs, all durable.
fn holding(epochs: &[u32]) -> Fixture {
    let mut follower = fresh();
    let last = epochs.last().copied().unwrap_or_default();
    follower.step(Input::Push(push(last, 1, epochs, 0)));
    follower.sync();
    assert_eq!(follower.end(), epochs.len() as u64);
    follower
}

fn matched(end: u64) -> Said {
    Said::Matched { end: Offset(end) }
}

fn mismatch(end: u64, epoch: Option<u32>) -> Said {
    Said::Mismatch { end: Offset(end), epoch: epoch.map(LeaderEpoch) }
}

/// What the driver answers a truncation with.
fn rebuilt(epochs: &[u32]) -> Input {
    let mut state = EndState::empty();
    for placed in log_of(epochs) {
        state.absorb(&placed.batch, placed.append_time);
    }
    Input::Rebuilt(state)
}

#[test]
fn a_push_is_acknowledged_when_it_is_durable_and_not_before() {
    let mut follower = fresh();
    let seen = follower.step(Input::Push(push(1, 1, &[1, 1], 0)));
    assert_eq!((seen.appended.len(), seen.said), (2, vec![]), "rule R8");
    assert_eq!(follower.sync_first(2).said, [matched(1)]);
    assert_eq!(follower.sync().said, [matched(2)]);
}

#[test]
fn an_empty_push_is_answered_but_not_before_its_epoch_is_durable() {
    let mut follower = holding(&[1]);
    assert_eq!(follower.step(Input::Push(push(2, 1, &[1], 1))).said, [], "rule R4");
    assert_eq!(follower.sync().said, [matched(1)]);
    assert_eq!(follower.step(Input::Push(push(2, 1, &[1], 1))).said, [matched(1)]);
}

#[test]
fn pushes_of_an_older_epoch_are_refused_with_the_newer_one() {
    let mut follower = holding(&[3]);
    let seen = follower.step(Input::Push(push(2, 1, &[2, 2], 0)));
    assert_eq!((seen.said, seen.appended), (vec![Said::Stale { seen: LeaderEpoch(3) }], vec![]), "rule R3");
}

#[test]
fn what_is_held_already_is_skipped() {
    let mut follower = holding(&[1, 1, 1]);
    let seen = follower.step(Input::Push(push(2, 2, &[1, 1, 1, 2], 1)));
    assert_eq!(seen.appended, [(3, 100)], "rule R6");
}

#[test]
fn a_push_beyond_the_log_is_answered_with_its_end() {
    let mut follower = holding(&[1, 1]);
    let seen = follower.step(Input::Push(push(1, 2, &[1, 1, 1, 1], 3)));
    assert_eq!((seen.said, seen.appended), (vec![mismatch(2, Some(1))], vec![]), "rule R5");
}

#[test]
fn a_log_that_differs_is_truncated_where_the_epochs_part_and_no_further() {
    let mut follower = holding(&[1, 1, 2, 2]);
    // The leader of epoch 3 never saw epoch 2: it asks at its own end first.
    assert_eq!(follower.step(Input::Push(push(3, 1, &[1, 1, 1, 1], 4))).said, [mismatch(2, Some(1))], "rule R5");
    let seen = follower.step(Input::Push(push(3, 2, &[1, 1, 1, 1], 2)));
    assert_eq!((seen.ends, seen.appended), (vec![2], vec![]), "rule R6");
    assert_eq!(follower.step(Input::Push(push(3, 2, &[1, 1, 1, 1], 2))).appended, [], "the state is not rebuilt yet");
    assert_eq!(follower.step(rebuilt(&[1, 1])).said, [mismatch(2, Some(1))], "go on from here");
    assert_eq!(follower.step(Input::Push(push(3, 3, &[1, 1, 1, 1], 2))).appended.len(), 2);
    assert_eq!(follower.sync().said, [matched(4)]);
}

#[test]
fn a_truncation_takes_back_what_was_on_its_way_to_the_disk() {
    let mut follower = fresh();
    follower.step(Input::Push(push(1, 1, &[1, 1, 1], 0)));
    let seen = follower.step(Input::Push(push(2, 1, &[1, 2], 1)));
    assert_eq!(seen.ends, [1]);
    follower.step(rebuilt(&[1]));
    follower.sync_first(4);
    assert_eq!(follower.replica.durable(), Offset(1), "rule R8: the records that were synced are gone");
}

#[test]
fn nothing_below_the_high_watermark_is_truncated() {
    let mut follower = holding(&[1, 1, 1]);
    let mut committed = push(1, 2, &[1, 1, 1], 3);
    committed.head.hw = Offset(2);
    follower.step(Input::Push(committed));
    assert_eq!(follower.hw(), 2);
    let seen = follower.step(Input::Push(push(2, 1, &[1, 2], 1)));
    assert!(matches!(seen.faults[..], [Fault::TruncationBelowCommitted { .. }]), "rule R7, S4");
    assert_eq!(follower.end(), 3);
}

#[test]
fn after_an_unclean_election_a_log_that_took_no_part_may_lose_what_was_committed() {
    let mut follower = holding(&[1, 1, 1]);
    let mut committed = push(1, 2, &[1, 1, 1], 3);
    committed.head.hw = Offset(3);
    follower.step(Input::Push(committed));
    let mut unclean = push(2, 1, &[1, 2], 1);
    unclean.head.unclean_epoch = Some(LeaderEpoch(2));
    assert_eq!(follower.step(Input::Push(unclean.clone())).ends, [1], "rule E7");
    assert_eq!(follower.hw(), 1);
    follower.step(rebuilt(&[1]));
    unclean.nonce = 2;
    unclean.head.hw = Offset(2);
    follower.step(Input::Push(unclean));
    follower.sync();
    let mut again = push(3, 1, &[1, 3], 1);
    again.head.unclean_epoch = Some(LeaderEpoch(2));
    assert_eq!(follower.step(Input::Push(again)).faults.len(), 1, "once");
}

#[test]
fn the_high_watermark_follows_the_leader_but_not_beyond_what_was_verified() {
    let mut follower = fresh();
    let mut first = push(1, 1, &[1, 1], 0);
    first.head.hw = Offset(9);
    follower.step(Input::Push(first));
    assert_eq!(follower.hw(), 2, "rule R10");
    assert_eq!(follower.replica.hw_to_persist(), Offset(0), "rule R10: nothing is durable yet");
}

#[test]
fn a_log_the_leader_cannot_serve_is_replaced_by_the_manifest() {
    let mut follower = holding(&[1]);
    let mut far = push(2, 1, &[1, 2, 2, 2, 2], 4);
    far.start = Offset(3);
    let seen = follower.step(Input::Push(far.clone()));
    assert_eq!((seen.installs, seen.said), (1, vec![]), "rule R12");
    let mut at_end = EndState::empty();
    for placed in &log_of(&[1, 2, 2, 2, 2])[..3] {
        at_end.absorb(&placed.batch, placed.append_time);
    }
    let epochs = [(1, 0), (2, 1)]
        .map(|(epoch, start)| millpond_log::epochs::EpochStart { epoch: LeaderEpoch(epoch), start: Offset(start) });
    let epochs = LeaderEpochs::from_entries(epochs.to_vec()).expect("in order");
    let seen = follower.step(Input::Installed(Installed { log_start: Offset(1), at_end, epochs }));
    assert_eq!((seen.ends, seen.said), (vec![3], vec![mismatch(3, Some(2))]));
    let mut rest = push(2, 2, &[1, 2, 2, 2, 2], 3);
    rest.start = Offset(3);
    assert_eq!(follower.step(Input::Push(rest)).appended.len(), 2);
    let visible = follower.replica.visible();
    assert_eq!((visible.log_start, visible.tiered_end, visible.hw), (Offset(1), Offset(3), Offset(3)));
}

/// Found by the simulation: power that went before the reset was on the disk left a member of the ISR with another log.
#[test]
fn nothing_is_acknowledged_before_the_reset_that_an_install_begins_with_is_durable() {
    let mut follower = holding(&[1, 1, 1, 1, 1]);
    let mut far = push(2, 1, &[1, 2, 2, 2, 2], 4);
    far.start = Offset(4);
    assert_eq!(follower.step(Input::Push(far)).installs, 1, "rule R12");
    let mut at_end = EndState::empty();
    for placed in &log_of(&[1, 2, 2, 2, 2])[..4] {
        at_end.absorb(&placed.batch, placed.append_time);
    }
    let epochs = [(1, 0), (2, 1)]
        .map(|(epoch, start)| millpond_log::epochs::EpochStart { epoch: LeaderEpoch(epoch), start: Offset(start) });
    let epochs = LeaderEpochs::from_entries(epochs.to_vec()).expect("in order");
    follower.step(Input::Installed(Installed { log_start: Offset(0), at_end, epochs }));
    let nothing_new = push(2, 2, &[1, 2, 2, 2], 4);
    follower.step(Input::Push(nothing_new));
    assert_eq!(follower.replica.durable(), Offset(0), "rule W1: the disk may still hold the old log");
    assert_eq!(follower.sync().said, [matched(4)], "rule R8");
}

/// Found by the simulation: a late push took a follower for one whose log differs below the tiered end, and ended its broker.
#[test]
fn a_late_push_of_what_the_log_start_has_passed_is_no_difference() {
    let mut follower = fresh();
    let mut far = push(2, 1, &[1, 2, 2, 2, 2], 4);
    far.start = Offset(4);
    follower.step(Input::Push(far));
    let mut at_end = EndState::empty();
    for placed in &log_of(&[1, 2, 2, 2])[..] {
        at_end.absorb(&placed.batch, placed.append_time);
    }
    // The log starts at its tiered end, so only the epoch of the record before it is told (rule R1).
    let newest = millpond_log::epochs::EpochStart { epoch: LeaderEpoch(2), start: Offset(3) };
    let epochs = LeaderEpochs::from_entries(vec![newest]).expect("in order");
    follower.step(Input::Installed(Installed { log_start: Offset(4), at_end, epochs }));
    follower.sync();
    let seen = follower.step(Input::Push(push(2, 1, &[1, 2, 2, 2, 2], 0)));
    assert_eq!((seen.faults, seen.ends, seen.appended.len()), (vec![], vec![], 1), "S4: nothing differs");
    assert_eq!(follower.sync().said, [matched(5)]);
}

#[test]
fn nothing_is_acknowledged_before_the_reset_of_a_log_that_starts_over_is_durable() {
    let mut follower = holding(&[1, 1]);
    let mark = follower.replica.start_over();
    follower.marks.push(mark);
    assert_eq!(follower.step(Input::Push(push(1, 2, &[1, 1], 2))).said, [matched(0)], "rule W1");
    assert_eq!(follower.sync().said, [matched(2)]);
}

#[test]
fn a_replaced_cursor_says_nothing_any_more() {
    let mut follower = holding(&[1]);
    follower.step(Input::Push(push(1, 5, &[1], 1)));
    let late = follower.step(Input::Push(push(1, 4, &[1, 1], 1)));
    assert_eq!((late.said, late.appended), (vec![], vec![]));
}

#[test]
fn another_log_under_the_same_epochs_is_a_fault() {
    let mut follower = holding(&[1, 1]);
    let mut other = push(1, 2, &[1, 1, 1], 2);
    other.batches[0].prefix_hash ^= 1;
    assert!(matches!(follower.step(Input::Push(other)).faults[..], [Fault::PrefixHash { .. }]), "rule S6");
}

#[test]
fn a_follower_trims_what_the_leader_says_is_tiered_once_it_is_durable_here() {
    let mut follower = fresh();
    let mut first = push(1, 1, &[1, 1, 1], 0);
    (first.head.hw, first.head.tiered_end) = (Offset(3), Offset(2));
    assert_eq!(follower.step(Input::Push(first)).trims, Vec::<u64>::new(), "rule T6");
    assert_eq!(follower.sync().trims, [2]);
}

#[test]
fn an_office_waits_until_the_log_stands_again() {
    let mut follower = holding(&[1, 1, 2]);
    follower.step(Input::Push(push(3, 1, &[1, 1, 1], 2)));
    follower.step(Input::Assigned(assigned(9, 4, &[ME], 1, &[ME])));
    assert!(!follower.replica.visible().leads);
    follower.step(rebuilt(&[1, 1]));
    assert!(follower.replica.visible().leads);
    assert_eq!(follower.replica.visible().epoch, LeaderEpoch(4));
}

#[test]
fn an_unclean_election_says_anew_what_is_committed_once() {
    let mut follower = holding(&[1, 1, 1]);
    let says = |epoch, end: usize, hw, unclean: Option<u32>| {
        let mut push = push(epoch, 1, &[1, 1, 1][..end], end);
        (push.head.hw, push.head.unclean_epoch) = (Offset(hw), unclean.map(LeaderEpoch));
        Input::Push(push)
    };
    follower.step(says(1, 3, 3, None));
    assert_eq!(follower.hw(), 3);
    follower.step(says(2, 2, 1, None));
    assert_eq!(follower.hw(), 3, "rule R9: it never falls after an election that loses nothing");
    follower.step(says(3, 2, 1, Some(3)));
    assert_eq!(follower.hw(), 1, "rule E7");
    follower.step(says(3, 2, 2, Some(3)));
    follower.step(says(3, 2, 1, Some(3)));
    assert_eq!(follower.hw(), 2, "only once");
}
