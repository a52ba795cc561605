//! Who is in sync, and what is pushed to whom.

use super::*;

#[test]
fn a_new_leader_pushes_to_every_live_replica_from_its_log_end() {
    let mut leader = fresh();
    let seen = leader.step(Input::Assigned(assigned(1, 1, &[ME, PEER], 1, &[ME, PEER, THIRD])));
    assert_eq!(seen.cursors, [(2, 0, 1), (3, 0, 2)]);
}

#[test]
fn a_cursor_goes_back_to_where_the_two_logs_may_agree() {
    let mut leader = leader_of_three();
    leader.produce(1, batch(3, None), Acks::All);
    leader.step(Input::Assigned(assigned(2, 2, &[ME, PEER], 2, &[ME, PEER])));
    leader.produce(2, batch(2, None), Acks::All);
    let says = |nonce, end, epoch: Option<u32>| {
        Input::Reply(PushReply {
            rid: PEER,
            inc: inc(PEER),
            epoch: LeaderEpoch(2),
            nonce,
            said: Said::Mismatch { end: Offset(end), epoch: epoch.map(LeaderEpoch) },
        })
    };
    assert_eq!(leader.step(says(1, 2, Some(1))).cursors, [(2, 2, 2)], "it is short");
    assert_eq!(leader.step(says(2, 5, Some(1))).cursors, [(2, 3, 3)], "rule R5: own records of epoch 1 end at 3");
    assert_eq!(leader.step(says(3, 2, None)).cursors, [(2, 0, 4)]);
    assert_eq!(leader.step(says(3, 2, None)).cursors, [], "of a cursor that was replaced");
}

#[test]
fn a_follower_without_session_leaves_at_once_but_stays_in_the_commit_set_until_that_is_confirmed() {
    let mut leader = leader_of_three();
    leader.produce(1, batch(1, None), Acks::All);
    leader.sync();
    leader.acknowledge(PEER, 1, 1);
    let seen = leader.step(Input::Assigned(assigned(1, 1, &[ME, PEER, THIRD], 2, &[ME, PEER])));
    assert_eq!(seen.proposals.len(), 1, "rule I6");
    assert_eq!((seen.proposals[0].base, &seen.proposals[0].record.isr[..]), (1, &[ME, PEER][..]));
    assert_eq!(leader.hw(), 0, "rule I3");
    let confirmed = leader.step(Input::Assigned(assigned(2, 1, &[ME, PEER], 2, &[ME, PEER])));
    assert_eq!(confirmed.answers, [(1, Ok(0))]);
}

#[test]
fn the_unchanged_key_does_not_resolve_a_proposal() {
    let mut leader = leader_of_three();
    leader.produce(1, batch(1, None), Acks::All);
    leader.sync();
    leader.acknowledge(PEER, 1, 1);
    leader.step(Input::Assigned(assigned(1, 1, &[ME, PEER, THIRD], 2, &[ME, PEER])));
    leader.step(Input::Assigned(assigned(1, 1, &[ME, PEER, THIRD], 2, &[ME, PEER])));
    let pending = |leader: &Fixture| match &leader.replica.role {
        Role::Leader(leading) => leading.pending.is_some(),
        Role::Follower { .. } => false,
    };
    assert!(pending(&leader), "rule K5");
    let failed = leader.step(Input::ProposalFailed { base: 1 });
    assert_eq!(failed.proposals.len(), 1, "it is wanted still, and decided anew");
}

#[test]
fn a_follower_that_lags_for_too_long_leaves_and_one_that_keeps_up_stays() {
    let mut leader = leader_of_three();
    for now_ms in (0..=LAG_MS).step_by(1_000) {
        leader.now_ms = now_ms;
        leader.produce(1, batch(1, None), Acks::None);
        leader.sync();
        let end = leader.end();
        // It is always one batch behind, which is no lag.
        leader.acknowledge(PEER, 1, end - 1);
    }
    leader.now_ms = LAG_MS + 1;
    let seen = leader.step(Input::Tick);
    assert_eq!(seen.proposals.iter().map(|proposal| &proposal.record.isr[..]).collect::<Vec<_>>(), [&[ME, PEER][..]]);
}

#[test]
fn an_idle_follower_that_holds_everything_does_not_lag() {
    let mut leader = leader_of_three();
    leader.produce(1, batch(1, None), Acks::All);
    leader.sync();
    leader.acknowledge(PEER, 1, 1);
    leader.acknowledge(THIRD, 1, 1);
    leader.now_ms = 100 * LAG_MS;
    assert_eq!(leader.step(Input::Tick), Seen::default());
}

#[test]
fn whom_no_way_leads_to_leaves_at_once_where_the_others_are_enough_and_comes_back_once_it_answers() {
    let mut leader = leader_of_three();
    leader.produce(1, batch(1, None), Acks::All);
    leader.sync();
    leader.acknowledge(PEER, 1, 1);
    let seen = leader.step(Input::Unreachable(THIRD.broker));
    assert_eq!(seen.proposals.len(), 1, "rule I6");
    assert_eq!(&seen.proposals[0].record.isr[..], [ME, PEER]);
    assert_eq!(leader.hw(), 0, "rule I3");
    let alive = [ME, PEER, THIRD];
    let confirmed = leader.step(Input::Assigned(assigned(2, 1, &[ME, PEER], 2, &alive)));
    assert_eq!((confirmed.answers, confirmed.proposals), (vec![(1, Ok(0))], vec![]));
    // The other one is needed: it stays, until it has lagged for too long.
    leader.produce(2, batch(1, None), Acks::All);
    leader.sync();
    assert_eq!(leader.step(Input::Unreachable(PEER.broker)).proposals, []);
    leader.acknowledge(PEER, 1, 2);
    assert_eq!(leader.hw(), 2);
    let back = leader.acknowledge(THIRD, 1, 2);
    assert_eq!(back.proposals.len(), 1, "rule I5");
    assert_eq!(back.proposals[0].joining, Some(live(THIRD)));
}

#[test]
fn whom_no_way_leads_to_does_not_leave_for_nothing_nor_join_meanwhile() {
    let mut leader = leader_of_three();
    leader.produce(1, batch(1, None), Acks::All);
    leader.sync();
    leader.acknowledge(PEER, 1, 1);
    leader.acknowledge(THIRD, 1, 1);
    assert_eq!(leader.step(Input::Unreachable(THIRD.broker)).proposals, [], "it holds everything");
    leader.produce(2, batch(1, None), Acks::All);
    let seen = leader.sync();
    assert_eq!(seen.proposals.iter().map(|proposal| &proposal.record.isr[..]).collect::<Vec<_>>(), [&[ME, PEER][..]]);
    // It held everything committed when it left, which would be enough to come back.
    let confirmed = leader.step(Input::Assigned(assigned(2, 1, &[ME, PEER], 2, &[ME, PEER, THIRD])));
    assert_eq!(confirmed.proposals, []);
}

#[test]
fn who_holds_the_committed_log_and_that_of_the_election_joins_and_counts_from_then_on() {
    let mut leader = fresh();
    leader.step(Input::Assigned(assigned(1, 1, &[ME], 1, &[ME])));
    leader.produce(1, batch(2, None), Acks::All);
    leader.sync();
    leader.step(Input::Assigned(assigned(2, 2, &[ME], 1, &[ME, PEER])));
    leader.sync();
    assert_eq!(leader.acknowledge(PEER, 2, 1).proposals, [], "rule I5");
    let seen = leader.acknowledge(PEER, 2, 2);
    assert_eq!(seen.proposals.len(), 1);
    assert_eq!((&seen.proposals[0].record.isr[..], seen.proposals[0].joining), (&[ME, PEER][..], Some(live(PEER))));
    leader.produce(2, batch(1, None), Acks::All);
    leader.sync();
    assert_eq!(leader.hw(), 2, "rule I3: who is proposed counts");
}

#[test]
fn an_unconfirmed_member_does_not_make_the_isr_large_enough() {
    let mut leader = fresh();
    leader.step(Input::Assigned(assigned(1, 1, &[ME], 2, &[ME, PEER])));
    leader.sync();
    leader.produce(1, batch(1, None), Acks::Leader);
    leader.sync();
    assert_eq!(leader.acknowledge(PEER, 1, 1).proposals.len(), 1);
    assert_eq!(leader.hw(), 0, "rule I4");
    leader.step(Input::Assigned(assigned(2, 1, &[ME, PEER], 2, &[ME, PEER])));
    assert_eq!(leader.hw(), 1);
}

#[test]
fn a_restarted_follower_has_acknowledged_nothing_yet() {
    let mut leader = leader_of_three();
    leader.produce(1, batch(1, None), Acks::All);
    leader.sync();
    leader.acknowledge(THIRD, 1, 1);
    let mut restarted = assigned(1, 1, &[ME, PEER, THIRD], 2, &[ME, PEER, THIRD]);
    restarted.live[1].inc = Incarnation(999);
    assert_eq!(leader.step(Input::Assigned(restarted)).cursors, [(2, 1, 3)]);
    leader.acknowledge(PEER, 1, 1);
    assert_eq!(leader.hw(), 0, "rule R8: an answer of the old incarnation");
}

/// The way to a broker is another one once its new session is seen, and nothing is pushed on that before there is a cursor on it.
#[test]
fn who_answered_in_a_new_incarnation_before_it_was_seen_alive_is_pushed_to_anew_once_it_is() {
    let mut leader = leader_of_three();
    leader.produce(1, batch(1, None), Acks::All);
    leader.sync();
    leader.acknowledge(THIRD, 1, 1);
    let says = |inc, nonce, end| {
        let (epoch, said) = (LeaderEpoch(1), Said::Matched { end: Offset(end) });
        Input::Reply(PushReply { rid: PEER, inc: Incarnation(inc), epoch, nonce, said })
    };
    // Its session ended and it has another one: it says so on the stream that was opened before.
    assert_eq!(leader.step(says(999, 1, 1)).answers, [(1, Ok(0))]);
    let alive = |inc, revision| {
        let mut seen = assigned(revision, 1, &[ME, PEER, THIRD], 2, &[ME, PEER, THIRD]);
        seen.live[1].inc = Incarnation(inc);
        Input::Assigned(seen)
    };
    let stays = leader.step(alive(200, 2));
    assert_eq!((stays.unfollowed, stays.cursors), (vec![], vec![]), "what is seen is of before");
    let seen = leader.step(alive(999, 2));
    assert_eq!((seen.unfollowed, seen.cursors), (vec![2], vec![(2, 1, 3)]));
    let again = leader.step(alive(999, 3));
    assert_eq!((again.unfollowed, again.cursors), (vec![], vec![]), "once");
    leader.produce(2, batch(1, None), Acks::All);
    leader.sync();
    leader.acknowledge(THIRD, 1, 2);
    leader.step(says(999, 1, 2));
    assert_eq!(leader.hw(), 1, "rule R8: an answer to the old cursor");
    assert_eq!(leader.step(says(999, 3, 2)).answers, [(2, Ok(1))]);
}

#[test]
fn a_smaller_least_isr_is_the_leaders_to_write() {
    let mut leader = leader_of_three();
    let seen = leader.step(Input::MinIsr(1));
    assert_eq!(seen.proposals.iter().map(|proposal| proposal.record.min_isr).collect::<Vec<_>>(), [1], "rule I7");
}

#[test]
fn a_reassignment_ends_when_who_joins_is_in_sync() {
    let mut leader = leader_of_three();
    let mut moving = assigned(2, 1, &[ME, PEER], 2, &[ME, PEER, THIRD]);
    (moving.record.adding, moving.record.removing) = (vec![THIRD.broker], vec![PEER.broker]);
    assert_eq!(leader.step(Input::Assigned(moving.clone())).proposals, [], "rule I8");
    let joins = leader.acknowledge(THIRD, 1, 0);
    assert_eq!(joins.proposals.len(), 1);
    let mut joined = moving;
    joined.revision = 3;
    joined.record.isr.push(THIRD);
    let seen = leader.step(Input::Assigned(joined));
    let done = &seen.proposals[0].record;
    assert_eq!((&done.isr[..], &done.replicas[..]), (&[ME, THIRD][..], &[ME.broker, THIRD.broker][..]));
    assert!(done.adding.is_empty() && done.removing.is_empty());
}

#[test]
fn a_replica_that_was_moved_away_and_back_within_an_epoch_starts_anew() {
    let mut leader = leader_of_three();
    leader.produce(1, batch(1, None), Acks::All);
    leader.sync();
    leader.acknowledge(PEER, 1, 1);
    leader.acknowledge(THIRD, 1, 1);
    assert_eq!(leader.hw(), 1);
    let mut leaves = assigned(2, 1, &[ME, PEER, THIRD], 2, &[ME, PEER, THIRD]);
    leaves.record.removing = vec![THIRD.broker];
    let proposed = leader.step(Input::Assigned(leaves)).proposals;
    assert_eq!(proposed[0].record.replicas, [ME.broker, PEER.broker], "rule I8");
    // The record in which it was gone is missed: it was placed there again at once, and may have given its log up in between.
    let mut back = assigned(4, 1, &[ME, PEER], 2, &[ME, PEER, THIRD]);
    back.record.adding = vec![THIRD.broker];
    let seen = leader.step(Input::Assigned(back.clone()));
    assert_eq!((seen.unfollowed, seen.proposals), (vec![3], vec![]), "rule R8: what it held counts no more");
    let nonce = seen.cursors[0].2;
    let says = |nonce, end| {
        let said = Said::Matched { end: Offset(end) };
        Input::Reply(PushReply { rid: THIRD, inc: inc(THIRD), epoch: LeaderEpoch(1), nonce, said })
    };
    assert_eq!(leader.step(says(nonce - 1, 1)).proposals, [], "rule R8: said before");
    back.revision = 5;
    assert!(leader.step(Input::Assigned(back)).unfollowed.is_empty(), "it starts anew once");
    let joins = leader.step(says(nonce, 1)).proposals;
    assert_eq!(joins[0].record.isr, [ME, PEER, THIRD], "rule I5: it holds the log again");
}
