//! The leader: order, commit, duplicates, office.

use super::*;
use proptest::prelude::*;

#[test]
fn acks_all_is_answered_only_when_durable_and_in_order() {
    let mut leader = leader();
    assert_eq!(leader.produce(1, batch(3, None), Acks::All).appended, [(0, 100)]);
    assert_eq!(leader.produce(2, batch(2, None), Acks::All).appended, [(3, 100)]);
    assert_eq!(leader.sync_first(2).answers, [(1, Ok(0))]);
    assert_eq!(leader.sync().answers, [(2, Ok(3))]);
    assert_eq!(leader.hw(), 5);
}

#[test]
fn acks_none_is_answered_at_once_and_acks_leader_when_durable_here() {
    let mut leader = fresh();
    leader.step(Input::Assigned(assigned(1, 1, &[ME, PEER], 1, &[ME, PEER])));
    assert_eq!(leader.produce(1, batch(1, None), Acks::None).answers, [(1, Ok(0))]);
    assert_eq!(leader.produce(2, batch(1, None), Acks::Leader).answers, []);
    assert_eq!(leader.produce(3, batch(1, None), Acks::All).answers, []);
    assert_eq!(leader.sync().answers, [(2, Ok(1))], "rule R9: the follower has not acknowledged");
    assert_eq!(leader.hw(), 0);
    assert_eq!(leader.acknowledge(PEER, 1, 3).answers, [(3, Ok(2))]);
    assert_eq!(leader.hw(), 3);
}

#[test]
fn nothing_commits_before_the_epoch_is_durable() {
    let mut leader = fresh();
    leader.step(Input::Assigned(assigned(1, 1, &[ME, PEER], 1, &[ME, PEER])));
    leader.produce(1, batch(1, None), Acks::All);
    leader.acknowledge(PEER, 1, 1);
    assert_eq!(leader.hw(), 0, "rule R2");
    assert_eq!(leader.sync().answers, [(1, Ok(0))]);
}

#[test]
fn an_ack_of_another_epoch_or_disk_or_incarnation_or_beyond_the_log_counts_for_nothing() {
    let mut leader = leader_of_three();
    leader.produce(1, batch(1, None), Acks::All);
    leader.sync();
    leader.acknowledge(THIRD, 1, 1);
    let other_disk = Rid { wal_gen: WalGen(5), ..PEER };
    for (rid, epoch, end) in [(PEER, 0, 1), (PEER, 2, 1), (PEER, 1, 9), (other_disk, 1, 1)] {
        leader.acknowledge(rid, epoch, end);
        assert_eq!(leader.hw(), 0, "rule R8");
    }
    leader.acknowledge(PEER, 1, 1);
    assert_eq!(leader.hw(), 1);
}

#[test]
fn a_batch_that_is_in_the_log_is_never_refused_for_lack_of_replicas() {
    let mut leader = leader_of_three();
    leader.produce(1, batch(1, stamp(0, 0)), Acks::All);
    leader.sync();
    leader.step(Input::Assigned(assigned(2, 1, &[ME], 2, &[ME])));
    // Sent again by a producer that heard nothing: a refusal would let it give the record another sequence (S15).
    assert_eq!(leader.produce(2, batch(1, stamp(0, 0)), Acks::All), Seen::default());
    let next = leader.produce(3, batch(1, stamp(0, 1)), Acks::All);
    assert_eq!(next.answers, [(3, Err(ErrorCode::NotEnoughReplicas))], "rule I1");
    let ahead = leader.produce(4, batch(1, stamp(0, 2)), Acks::All);
    assert_eq!(ahead.answers, [(4, Err(ErrorCode::NotEnoughReplicas))], "what it follows was refused for the same");
    leader.step(Input::Assigned(assigned(3, 1, &[ME, PEER], 2, &[ME, PEER])));
    let seen = leader.acknowledge(PEER, 1, 1);
    assert_eq!(seen.answers, [(1, Ok(0)), (2, Ok(0))]);
}

/// Rule P6: of a producer that is not known any batch may be the first. Acknowledged before the one that was refused, a later one would be taken
/// by some clients for an acknowledgement of both.
#[test]
fn the_first_batch_of_a_producer_that_is_refused_for_now_goes_before_those_that_follow_it() {
    let mut leader = leader_of_three();
    leader.step(Input::Assigned(assigned(2, 1, &[ME], 2, &[ME])));
    let not_enough = |token| vec![(token, Err(ErrorCode::NotEnoughReplicas))];
    assert_eq!(leader.produce(1, batch(2, stamp(0, 4)), Acks::All).answers, not_enough(1), "rule I1");
    leader.step(Input::Assigned(assigned(3, 1, &[ME, PEER], 2, &[ME, PEER])));
    assert_eq!(leader.produce(2, batch(1, stamp(0, 6)), Acks::All).answers, not_enough(2), "rule P6");
    assert_eq!(leader.produce(3, batch(1, None), Acks::All).appended, [(0, 100)], "another producer");
    assert_eq!(leader.produce(4, batch(2, stamp(0, 4)), Acks::All).appended, [(1, 100)]);
    assert_eq!(leader.produce(5, batch(1, stamp(0, 6)), Acks::All).appended, [(3, 100)]);
}

/// Rule P6: what was refused on its way counts only where nothing is known of its producer.
#[test]
fn what_was_refused_on_its_way_goes_first_unless_the_sequence_tells_what_is_next() {
    let mut leader = leader_of_three();
    let produce = |token, batch, behind| {
        let (token, latest, acks) = (Token(token), TimestampMs(5), Acks::All);
        Input::Produce { token, batch, latest, acks, behind }
    };
    let seen = leader.step(produce(1, batch(1, stamp(0, 6)), Some(4)));
    assert_eq!(seen.answers, [(1, Err(ErrorCode::NotEnoughReplicas))]);
    let other = Some(ProducerStamp { id: ProducerId(8), ..stamp(0, 6).expect("a stamp") });
    assert_eq!(leader.produce(2, batch(1, other), Acks::All).appended, [(0, 100)], "it holds up nobody else");
    assert_eq!(leader.produce(3, batch(2, stamp(0, 4)), Acks::All).appended, [(1, 100)]);
    assert_eq!(leader.step(produce(4, batch(1, stamp(0, 6)), Some(4))).appended, [(3, 100)]);
}

/// Rule P6, S15: out of order for nothing else than that the batch before it was refused for now. librdkafka gives all that is under way, and may be
/// written, other numbers when it hears of a sequence out of order.
#[test]
fn what_follows_a_batch_that_was_refused_for_now_is_refused_likewise_and_not_as_out_of_order() {
    let mut leader = leader_of_three();
    leader.produce(1, batch(1, stamp(0, 0)), Acks::All);
    leader.step(Input::Assigned(assigned(2, 1, &[ME], 2, &[ME])));
    assert_eq!(leader.produce(2, batch(1, stamp(0, 1)), Acks::All).answers, [(2, Err(ErrorCode::NotEnoughReplicas))]);
    leader.step(Input::Assigned(assigned(3, 1, &[ME, PEER], 2, &[ME, PEER])));
    assert_eq!(leader.produce(3, batch(1, stamp(0, 2)), Acks::All).answers, [(3, Err(ErrorCode::NotEnoughReplicas))]);
    assert_eq!(leader.produce(4, batch(1, stamp(0, 1)), Acks::All).appended, [(1, 100)]);
    let gap = leader.produce(5, batch(1, stamp(0, 3)), Acks::All);
    assert_eq!(gap.answers, [(5, Err(ErrorCode::OutOfOrderSequenceNumber))], "nothing was refused");
    assert_eq!(leader.produce(6, batch(1, stamp(0, 2)), Acks::All).appended, [(2, 100)]);
    // Refused before it came here.
    let (token, latest, acks, behind) = (Token(7), TimestampMs(5), Acks::All, Some(3));
    let seen = leader.step(Input::Produce { token, batch: batch(1, stamp(0, 4)), latest, acks, behind });
    assert_eq!(seen.answers, [(7, Err(ErrorCode::NotEnoughReplicas))]);
}

/// Rule P6: a replica that is asked too early says so, and takes nothing that follows first once it leads; nor does one that leads anew.
#[test]
fn what_a_replica_refused_before_it_led_goes_first_when_it_leads() {
    let mut leader = fresh();
    let early = leader.produce(1, batch(1, stamp(0, 0)), Acks::All);
    assert_eq!(early.answers, [(1, Err(ErrorCode::NotLeaderOrFollower))]);
    leader.step(Input::Assigned(assigned(1, 1, &[ME], 2, &[ME])));
    assert_eq!(leader.produce(2, batch(1, stamp(0, 0)), Acks::All).answers, [(2, Err(ErrorCode::NotEnoughReplicas))]);
    leader.step(Input::Assigned(assigned(2, 2, &[ME], 1, &[ME])));
    assert_eq!(leader.produce(3, batch(1, stamp(0, 1)), Acks::All).answers, [(3, Err(ErrorCode::NotEnoughReplicas))]);
    assert_eq!(leader.produce(4, batch(1, stamp(0, 0)), Acks::All).appended, [(0, 100)]);
    assert_eq!(leader.produce(5, batch(1, stamp(0, 1)), Acks::All).appended, [(1, 100)]);
}

#[test]
fn below_min_isr_acks_all_is_refused_and_the_high_watermark_stays() {
    let mut leader = fresh();
    leader.step(Input::Assigned(assigned(1, 1, &[ME], 2, &[ME])));
    let seen = leader.produce(1, batch(1, None), Acks::All);
    assert_eq!((seen.answers, seen.appended), (vec![(1, Err(ErrorCode::NotEnoughReplicas))], vec![]));
    leader.produce(2, batch(1, None), Acks::Leader);
    assert_eq!(leader.sync().answers, [(2, Ok(0))]);
    assert_eq!(leader.hw(), 0, "rule I1");
}

#[test]
fn a_follower_refuses_produce_and_a_deposed_leader_answers_who_waits() {
    let mut replica = fresh();
    assert_eq!(replica.produce(1, batch(1, None), Acks::All).answers, [(1, Err(ErrorCode::NotLeaderOrFollower))]);
    replica.step(Input::Assigned(assigned(1, 1, &[ME, PEER], 1, &[ME, PEER])));
    replica.produce(2, batch(1, None), Acks::All);
    let seen = replica.step(Input::Assigned(assigned(2, 2, &[PEER, ME], 1, &[ME, PEER])));
    assert_eq!((seen.answers, seen.unfollowed), (vec![(2, Err(ErrorCode::NotLeaderOrFollower))], vec![2]));
    assert!(!replica.replica.visible().leads);
}

#[test]
fn without_its_session_a_replica_leads_nothing_and_takes_the_same_office_never_again() {
    let mut leader = leader();
    leader.produce(1, batch(1, None), Acks::All);
    assert_eq!(leader.step(Input::Session(None)).answers, [(1, Err(ErrorCode::NotLeaderOrFollower))], "rule B3");
    leader.step(Input::Session(Some(inc(ME))));
    leader.step(Input::Assigned(assigned(1, 1, &[ME], 1, &[ME])));
    assert!(!leader.replica.visible().leads, "rule B2");
    leader.step(Input::Assigned(assigned(2, 2, &[ME], 1, &[ME])));
    assert!(leader.replica.visible().leads);
}

#[test]
fn an_office_of_another_incarnation_is_not_taken() {
    let mut replica = fresh();
    let mut theirs = assigned(1, 1, &[ME], 1, &[ME]);
    theirs.record.leader = Some(Leader { rid: ME, inc: Incarnation(7) });
    replica.step(Input::Assigned(theirs));
    assert!(!replica.replica.visible().leads, "rule B2");
}

#[test]
fn a_higher_epoch_seen_by_a_follower_deposes() {
    let mut leader = leader_of_three();
    let reply = PushReply {
        rid: PEER,
        inc: inc(PEER),
        epoch: LeaderEpoch(1),
        nonce: 1,
        said: Said::Stale { seen: LeaderEpoch(4) },
    };
    leader.step(Input::Reply(reply));
    assert!(!leader.replica.visible().leads, "rule R4");
    assert_eq!(leader.replica.visible().epoch, LeaderEpoch(4));
}

#[test]
fn a_retried_batch_is_answered_with_its_first_offset_and_only_once_committed() {
    let mut leader = leader();
    leader.produce(1, batch(2, stamp(0, 0)), Acks::All);
    let retry = leader.produce(2, batch(2, stamp(0, 0)), Acks::All);
    assert_eq!((retry.answers, retry.appended), (vec![], vec![]), "rule P3: not before the commit");
    assert_eq!(leader.sync().answers, [(1, Ok(0)), (2, Ok(0))]);
    assert_eq!(leader.produce(3, batch(2, stamp(0, 0)), Acks::All).answers, [(3, Ok(0))]);
    assert_eq!(leader.end(), 2);
}

#[test]
fn a_retry_waits_ahead_of_batches_that_came_later() {
    let mut leader = leader();
    leader.produce(1, batch(1, stamp(0, 0)), Acks::All);
    leader.produce(2, batch(1, stamp(0, 1)), Acks::All);
    leader.produce(3, batch(1, stamp(0, 0)), Acks::All);
    assert_eq!(leader.sync_first(2).answers, [(1, Ok(0)), (3, Ok(0))]);
    assert_eq!(leader.sync().answers, [(2, Ok(1))]);
}

#[test]
fn a_gap_and_an_old_epoch_append_nothing() {
    let mut leader = leader();
    leader.produce(1, batch(1, stamp(1, 0)), Acks::All);
    for (producer, code) in [
        (stamp(1, 2), ErrorCode::OutOfOrderSequenceNumber),
        (stamp(2, 1), ErrorCode::OutOfOrderSequenceNumber),
        (stamp(0, 1), ErrorCode::InvalidProducerEpoch),
    ] {
        let seen = leader.produce(9, batch(1, producer), Acks::All);
        assert_eq!((seen.answers, seen.appended), (vec![(9, Err(code))], vec![]));
    }
}

#[test]
fn append_time_never_goes_back_with_the_wall_clock() {
    let mut leader = leader();
    let times = [50, 40, 60, i64::MIN].map(|now| {
        leader.wall = now;
        leader.produce(0, batch(1, None), Acks::None).appended[0].1
    });
    assert_eq!(times, [50, 50, 60, 60], "rule W3");
}

#[test]
fn the_wal_is_trimmed_only_to_what_the_manifest_holds_and_the_disk_has() {
    let mut leader = leader();
    leader.produce(1, batch(4, None), Acks::All);
    leader.sync();
    let epoch = leader.replica.leading().expect("it leads").0.epoch;
    let manifest =
        |log_start, tiered_end| Input::Manifest { log_start: Offset(log_start), tiered_end: Offset(tiered_end), epoch };
    assert_eq!(leader.step(manifest(0, 3)).trims, [3], "rule T6");
    assert_eq!(leader.step(manifest(0, 3)).trims, Vec::<u64>::new());
    leader.step(manifest(4, 3));
    assert_eq!(leader.replica.visible().log_start, Offset(4), "rule C1: log start may pass the tiered end");
    let beyond = leader.step(manifest(4, 9));
    assert!(matches!(beyond.faults[..], [Fault::TieredBeyondLog { .. }]), "S3");
}

#[test]
fn a_deposed_leader_takes_nothing_from_the_manifest_of_a_later_one() {
    let mut leader = fresh();
    leader.step(Input::Assigned(assigned(1, 1, &[ME, PEER], 2, &[ME, PEER])));
    leader.produce(1, batch(4, None), Acks::Leader);
    leader.sync();
    let before = leader.replica.visible();
    let LeaderEpoch(own) = leader.replica.leading().expect("it leads").0.epoch;
    // Within its log, where its own records were never committed; and beyond it, which is no fault of its own.
    for tiered_end in [3, 9] {
        let (log_start, tiered_end, epoch) = (Offset(0), Offset(tiered_end), LeaderEpoch(own + 1));
        let stepped = leader.step(Input::Manifest { log_start, tiered_end, epoch });
        assert!(stepped.faults.is_empty(), "rule B6 is about its own state: {:?}", stepped.faults);
        assert_eq!(stepped.trims, Vec::<u64>::new(), "rule T6");
        assert_eq!(leader.replica.visible().hw, before.hw, "S8");
    }
}

#[test]
fn the_end_is_proven_once_the_high_watermark_reaches_the_log_end_of_the_election() {
    let mut leader = fresh();
    leader.step(Input::Assigned(assigned(1, 1, &[ME, PEER], 1, &[ME, PEER])));
    leader.produce(1, batch(2, None), Acks::Leader);
    leader.sync();
    leader.step(Input::Assigned(assigned(2, 2, &[ME, PEER], 1, &[ME, PEER])));
    leader.sync();
    assert!(!leader.replica.visible().end_proven, "rule R11");
    leader.acknowledge(PEER, 2, 2);
    assert!(leader.replica.visible().end_proven);
}

#[test]
fn the_start_is_proven_once_it_was_read_in_this_office() {
    let read = |office: u32, by: u32, log_start: u64| Input::OfficeManifest {
        office: LeaderEpoch(office),
        log_start: Offset(log_start),
        tiered_end: Offset(0),
        epoch: LeaderEpoch(by),
    };
    let mut leader = fresh();
    let taken = leader.step(Input::Assigned(assigned(1, 1, &[ME, PEER], 1, &[ME, PEER])));
    assert_eq!(taken.office_reads, [1], "rule F3");
    leader.step(read(1, 0, 0));
    assert!(leader.replica.visible().start_proven);
    leader.produce(1, batch(2, None), Acks::Leader);
    leader.sync();
    let again = leader.step(Input::Assigned(assigned(2, 2, &[ME, PEER], 1, &[ME, PEER])));
    assert_eq!((again.office_reads, leader.replica.visible().start_proven), (vec![2], false));
    // What was read for an earlier office may be older than the change of whoever led between.
    leader.step(read(1, 1, 0));
    assert!(!leader.replica.visible().start_proven);
    // A later leader's is of a log that may part from this one (S8).
    leader.step(read(2, 3, 2));
    assert!(!leader.replica.visible().start_proven);
    leader.step(read(2, 1, 1));
    assert_eq!((leader.replica.visible().start_proven, leader.replica.visible().log_start), (true, Offset(1)));
}

/// A leader of `epoch` by an unclean election, whose log of three records ends below what was deleted.
fn winner_below_the_log_start(epoch: u32, unclean: Option<u32>, log_start: u64) -> (Fixture, Seen) {
    let mut at_end = EndState::empty();
    for placed in log_of(&[1, 1, 1]) {
        at_end.absorb(&placed.batch, placed.append_time);
    }
    let mut epochs = LeaderEpochs::default();
    epochs.append(LeaderEpoch(1), Offset(0));
    let from = Recovered { epoch_seen: LeaderEpoch(1), log_start: Offset(log_start), at_end, epochs, ..recovered() };
    let mut winner = start(from);
    let mut won = assigned(2, epoch, &[ME], 1, &[ME, PEER]);
    won.record.unclean_epoch = unclean.map(LeaderEpoch);
    let seen = winner.step(Input::Assigned(won));
    (winner, seen)
}

#[test]
fn the_winner_of_an_unclean_election_passes_over_what_was_deleted() {
    let (mut winner, seen) = winner_below_the_log_start(2, Some(2), 10);
    assert_eq!((seen.faults, seen.appended), (vec![], vec![(3, 100)]), "rules E7, C1");
    let hole = winner.placed[0].batch.clone();
    assert_eq!((hole.record_count(), hole.leader_epoch(), hole.end_offset()), (0, LeaderEpoch(2), Offset(10)));
    assert!(!winner.replica.visible().end_proven, "rule R11: the log start is above what is committed");
    assert_eq!(
        winner.produce(1, batch(1, None), Acks::All).appended,
        [(10, 100)],
        "nothing is written where nobody reads"
    );
    assert_eq!(winner.sync().answers, [(1, Ok(10))]);
    let visible = winner.replica.visible();
    assert_eq!((visible.hw, visible.log_start, visible.end_proven), (Offset(11), Offset(10), true));
    // A follower takes it as it takes any other batch, and has the same log then (S6).
    let mut follower = holding_three();
    let mut whole = push_of(&winner, 3);
    whole.head.unclean_epoch = Some(LeaderEpoch(2));
    assert_eq!(follower.step(Input::Push(whole)).appended, [(3, 100), (10, 100)]);
    assert_eq!(follower.replica.prefix_hash(), winner.replica.prefix_hash());
}

#[test]
fn a_winner_that_was_started_again_before_it_had_passed_over_what_was_deleted_does_so_in_its_next_office() {
    let (mut winner, seen) = winner_below_the_log_start(3, Some(2), 10);
    assert_eq!((seen.faults, seen.appended), (vec![], vec![(3, 100)]));
    winner.sync();
    assert_eq!(winner.hw(), 10);
}

#[test]
fn deleted_offsets_of_more_than_one_batch_are_passed_over_in_several() {
    let (winner, seen) = winner_below_the_log_start(2, Some(2), 5 << 30);
    assert_eq!(seen.appended, [(3, 100), (3 + (1 << 31), 100), (3 + (1 << 32), 100)]);
    assert_eq!(winner.end(), 5 << 30);
}

#[test]
fn a_log_that_ends_below_its_start_is_a_fault_where_no_unclean_election_was_held() {
    let (winner, seen) = winner_below_the_log_start(2, None, 10);
    assert_eq!(seen.faults, [Fault::StartBeyondLog { log_start: Offset(10), end: Offset(3) }], "S3, C1");
    assert!(winner.placed.is_empty() && !winner.replica.visible().leads);
}

/// A replica that is opened again in the session it had forgets what it has proposed: the ISR may have grown by it meanwhile (rule I3).
#[test]
fn an_office_of_an_epoch_that_was_seen_before_the_replica_was_opened_is_refused() {
    let mut opened = start(Recovered { epoch_seen: LeaderEpoch(4), ..recovered() });
    opened.step(Input::Assigned(assigned(7, 4, &[ME], 1, &[ME])));
    assert!(!opened.replica.visible().leads, "rule B2");
    assert_eq!(opened.produce(1, batch(1, None), Acks::Leader).answers, [(1, Err(ErrorCode::NotLeaderOrFollower))]);
    opened.step(Input::Assigned(assigned(8, 5, &[ME], 1, &[ME])));
    assert!(opened.replica.visible().leads, "the next epoch is another office");
}

/// A follower that holds the three records, durably.
fn holding_three() -> Fixture {
    let mut follower = fresh();
    let head = PushHead {
        epoch: LeaderEpoch(1),
        leader: Leader { rid: PEER, inc: inc(PEER) },
        unclean_epoch: None,
        hw: Offset(0),
        log_start: Offset(0),
        tiered_end: Offset(0),
    };
    let (prev_offset, start) = (Offset(0), Offset(0));
    let batches = log_of(&[1, 1, 1]);
    follower.step(Input::Push(Push { head, nonce: 1, start, prev_offset, prev_epoch: None, batches }));
    follower.sync();
    follower
}

/// All that a leader has appended, from where its log ended in epoch 1.
fn push_of(leader: &Fixture, from: u64) -> Push {
    let head = leader.replica.push_head().expect("it leads");
    let prev_epoch = Some(LeaderEpoch(1));
    Push { head, nonce: 1, start: Offset(0), prev_offset: Offset(from), prev_epoch, batches: leader.placed.clone() }
}

proptest! {
    /// Rule P2 and S6: two replicas that hold the same batches hold equal state, whatever was asked of one in between.
    #[test]
    fn equal_logs_make_equal_state(sequences in prop::collection::vec((0u16..3, 0i32..6, 0i64..200_000), 1..60)) {
        let (mut leader, mut other) = (leader(), EndState::empty());
        for (epoch, sequence, now) in sequences {
            let mut outputs = Vec::new();
            let input = Input::Produce {
                behind: None,
                token: Token(1),
                batch: batch(1, stamp(epoch, sequence)),
                latest: TimestampMs(5),
                acks: Acks::None,
            };
            leader.replica.step(Now { wall: TimestampMs(now), mono_ms: 0 }, input, &mut outputs);
            for output in outputs {
                if let Output::Append { placed, .. } = output {
                    other.absorb(&placed.batch, placed.append_time);
                    prop_assert_eq!(placed.prefix_hash, other.prefix_hash);
                }
            }
        }
        prop_assert_eq!(leader.replica.at_end.producers.encode(), other.producers.encode());
        prop_assert_eq!(leader.replica.at_end.end, other.end);
    }
}
