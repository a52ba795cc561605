//! Leadership is handed over without losing a batch, and without a producer being told more than it has to be (rule E9).

use super::*;

const WITHIN_MS: u64 = 1_000;

fn wish(epoch: u32, to: Rid) -> Input {
    Input::Transfer(Transfer { epoch: LeaderEpoch(epoch), to: live(to), within_ms: WITHIN_MS })
}

/// A leader of three with one batch that all hold, and one that only it and `THIRD` do.
fn busy_leader() -> Fixture {
    let mut leader = leader_of_three();
    leader.produce(1, batch(1, None), Acks::All);
    leader.sync();
    leader.acknowledge(PEER, 1, 1);
    leader.acknowledge(THIRD, 1, 1);
    leader.produce(2, batch(1, None), Acks::All);
    leader.sync();
    leader.acknowledge(THIRD, 1, 2);
    leader
}

fn elected(epoch: u32, of: Rid, revision: u64) -> Input {
    let mut assigned = assigned(revision, epoch, &[of, ME, THIRD], 2, &[ME, PEER, THIRD]);
    assigned.record.leader = Some(Leader { rid: of, inc: inc(of) });
    Input::Assigned(assigned)
}

#[test]
fn a_leader_stops_admitting_and_waits_for_the_heir() {
    let mut leader = busy_leader();
    let seen = leader.step(wish(1, PEER));
    assert_eq!(seen.proposals, [], "the heir lacks a batch");
    assert_eq!(leader.replica.hands_over_to(), Some(PEER.broker));
    assert_eq!(leader.produce(3, batch(1, None), Acks::All).answers, [(3, Err(ErrorCode::NotLeaderOrFollower))]);
    let seen = leader.acknowledge(PEER, 1, 2);
    assert_eq!(seen.answers, [(2, Ok(1))], "whoever waited is answered first");
    let [proposal] = &seen.proposals[..] else { panic!("{seen:?}") };
    assert_eq!((proposal.base, proposal.heir, proposal.joining), (1, Some(live(PEER)), None));
    let record = &proposal.record;
    let heir = Leader { rid: PEER, inc: inc(PEER) };
    assert_eq!((record.leader, record.epoch, &record.isr[..]), (Some(heir), LeaderEpoch(2), &[ME, PEER, THIRD][..]));
    assert_eq!(leader.step(Input::Tick).proposals, [], "one proposal at a time");

    leader.step(elected(2, PEER, 2));
    assert_eq!(leader.replica.hands_over_to(), None);
    let refused = leader.produce(4, batch(1, None), Acks::All);
    assert_eq!(refused.answers, [(4, Err(ErrorCode::NotLeaderOrFollower))]);
    assert!(matches!(leader.replica.role, Role::Follower { leader: Some(leader), .. } if leader == PEER.broker));
}

#[test]
fn whoever_waits_for_a_commit_that_does_not_come_is_told_who_leads() {
    // The third is silent: the batch is not committed, but the heir holds it.
    let mut leader = leader_of_three();
    leader.produce(1, batch(1, None), Acks::All);
    leader.sync();
    leader.acknowledge(PEER, 1, 1);
    assert_eq!(leader.step(wish(1, PEER)).proposals, []);
    leader.now_ms = WITHIN_MS / 2;
    assert_eq!(leader.step(Input::Tick).proposals.len(), 1, "it waits no longer than half of the time");
    let deposed = leader.step(elected(2, PEER, 2));
    assert_eq!(deposed.answers, [(1, Err(ErrorCode::NotLeaderOrFollower))]);
}

#[test]
fn a_transfer_that_takes_too_long_ends_and_the_leader_goes_on() {
    let mut leader = busy_leader();
    leader.step(wish(1, PEER));
    leader.now_ms = WITHIN_MS;
    leader.step(Input::Tick);
    assert_eq!(leader.replica.hands_over_to(), None);
    assert_eq!(leader.produce(3, batch(1, None), Acks::Leader).appended.len(), 1);
    // Proposed, but the outcome does not come: it goes on leading all the same, and believes the record alone.
    leader.step(wish(1, THIRD));
    leader.sync();
    assert_eq!(leader.acknowledge(THIRD, 1, 3).proposals, [], "the second still waits");
    leader.now_ms += WITHIN_MS / 2;
    assert_eq!(leader.step(Input::Tick).proposals.len(), 1);
    leader.now_ms += WITHIN_MS;
    leader.step(Input::Tick);
    leader.produce(4, batch(1, None), Acks::All);
    leader.sync();
    leader.acknowledge(THIRD, 1, 4);
    assert_eq!(
        leader.acknowledge(PEER, 1, 4).answers,
        [(2, Ok(1)), (4, Ok(3))],
        "rule I3: the heir counted all the time"
    );
    let deposed = leader.step(elected(2, THIRD, 2));
    assert_eq!(deposed.faults, [], "it came to be after all: rule K5");
    assert!(leader.replica.leading().is_none());
}

#[test]
fn a_failed_election_ends_the_transfer() {
    let mut leader = leader_of_three();
    assert_eq!(leader.step(wish(1, PEER)).proposals.len(), 1, "of an empty log everybody holds all");
    assert_eq!(leader.step(Input::ProposalFailed { base: 1 }).proposals, []);
    assert_eq!(leader.replica.hands_over_to(), None);
}

#[test]
fn an_heir_that_is_gone_ends_the_transfer() {
    let mut leader = busy_leader();
    leader.step(wish(1, PEER));
    leader.step(Input::Assigned(assigned(1, 1, &[ME, PEER, THIRD], 2, &[ME, THIRD])));
    assert_eq!(leader.replica.hands_over_to(), None);
}

#[test]
fn wishes_that_cannot_be_met_change_nothing() {
    let mut leader = leader_of_three();
    leader.step(Input::Assigned(assigned(2, 1, &[ME, PEER], 2, &[ME, PEER, THIRD])));
    leader.acknowledge(THIRD, 1, 0);
    let another_life = Transfer {
        epoch: LeaderEpoch(1),
        to: Live { inc: Incarnation(inc(PEER).0 + 1), ..live(PEER) },
        within_ms: WITHIN_MS,
    };
    for wish in [wish(2, PEER), wish(0, PEER), wish(1, ME), wish(1, THIRD), Input::Transfer(another_life)] {
        leader.step(wish.clone());
        assert_eq!(leader.replica.hands_over_to(), None, "{wish:?}");
    }
    let mut follower = fresh();
    follower.step(elected(1, PEER, 1));
    follower.step(wish(1, ME));
    assert_eq!(follower.replica.hands_over_to(), None);
}

/// Rule I6 goes on afterwards: what the ISR needs is proposed once the transfer has ended.
#[test]
fn an_open_proposal_is_settled_before_the_election() {
    let mut leader = busy_leader();
    let shrinks = leader.step(Input::Assigned(assigned(1, 1, &[ME, PEER, THIRD], 2, &[ME, PEER])));
    assert_eq!(shrinks.proposals.len(), 1);
    leader.step(wish(1, PEER));
    assert_eq!(leader.acknowledge(PEER, 1, 2).proposals, [], "one at a time (rule I3)");
    let confirmed = leader.step(Input::Assigned(assigned(2, 1, &[ME, PEER], 2, &[ME, PEER])));
    let heirs: Vec<_> = confirmed.proposals.iter().map(|proposal| (proposal.base, proposal.heir)).collect();
    assert_eq!(heirs, [(2, Some(live(PEER)))]);
}

/// Whoever asks may have heard of the ISR before the leader has.
#[test]
fn a_wish_waits_for_an_heir_that_is_about_to_be_in_sync() {
    let mut leader = leader_of_three();
    leader.step(Input::Assigned(assigned(2, 1, &[ME, PEER], 2, &[ME, PEER, THIRD])));
    leader.step(wish(1, THIRD));
    assert_eq!(leader.replica.hands_over_to(), None);
    assert_eq!(leader.produce(1, batch(1, None), Acks::Leader).appended.len(), 1, "it goes on admitting");
    leader.step(Input::Assigned(assigned(3, 1, &[ME, PEER, THIRD], 2, &[ME, PEER, THIRD])));
    assert_eq!(leader.replica.hands_over_to(), Some(THIRD.broker));

    let mut leader = leader_of_three();
    leader.step(Input::Assigned(assigned(2, 1, &[ME, PEER], 2, &[ME, PEER, THIRD])));
    leader.step(wish(1, THIRD));
    leader.now_ms += WITHIN_MS;
    leader.step(Input::Assigned(assigned(3, 1, &[ME, PEER, THIRD], 2, &[ME, PEER, THIRD])));
    assert_eq!(leader.replica.hands_over_to(), None, "its time is over");
}
