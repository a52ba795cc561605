//! Transactions in one replica: what is stable, what is verified, which markers count (rules X3, X5, X6, X7, R7, P4).

use super::*;
use millpond_log::CoordinatorEpoch;
use millpond_log::transactions::{EndMarker, Marker, TxnOutcome, aborted_in};
use proptest::prelude::*;

const COORDINATOR: u32 = 5;

fn txn_batch(producer: u64, epoch: u16, sequence: i32) -> Batch {
    let stamp = ProducerStamp { id: ProducerId(producer), epoch: ProducerEpoch(epoch), base_sequence: sequence };
    let mut builder = BatchBuilder::new(Codec::None).producer(stamp).transactional();
    builder.push(NewRecord { timestamp: TimestampMs(5), key: None, value: Some(b"v"), headers: &[] });
    builder.build()
}

fn marker(producer: u64, epoch: u16, outcome: TxnOutcome) -> Marker {
    let end = EndMarker { outcome, coordinator_epoch: CoordinatorEpoch(COORDINATOR) };
    Marker { producer: ProducerId(producer), epoch: ProducerEpoch(epoch), raised: true, end }
}

fn abort(producer: u64, epoch: u16) -> Marker {
    marker(producer, epoch, TxnOutcome::Abort)
}

fn commit(producer: u64, epoch: u16) -> Marker {
    marker(producer, epoch, TxnOutcome::Commit)
}

impl Fixture {
    fn end_transaction(&mut self, token: u64, marker: Marker) -> Seen {
        self.step(Input::EndTransaction { token: Token(token), marker })
    }

    /// Says yes to what was asked.
    fn verify(&mut self, unverified: &Unverified) {
        let Unverified { producer, epoch, verification, .. } = *unverified;
        self.step(Input::Verified(Verified { producer, epoch, verification, epoch_per_transaction: true }));
    }

    /// Produces a batch; where that is asked for, the coordinator says yes and it is produced again.
    fn write(&mut self, batch: Batch) -> Seen {
        let seen = self.produce(0, batch, Acks::None);
        let [unverified] = &seen.unverified[..] else { return seen };
        self.verify(unverified);
        self.produce(0, unverified.batch.clone(), Acks::None)
    }

    fn lso(&self) -> u64 {
        self.replica.visible().lso.0
    }

    /// (first, marker) of the aborted transactions that a reader of everything has to know.
    fn aborted(&self) -> Vec<(u64, u64)> {
        let lso = self.replica.visible().lso;
        let found = aborted_in(self.replica.aborted().from(Offset(0)), &(Offset(0)..lso));
        found.iter().map(|txn| (txn.first.0, txn.marker.0)).collect()
    }
}

#[test]
fn what_is_stable_ends_at_the_oldest_open_transaction_until_its_marker_is_committed() {
    let mut leader = leader();
    leader.write(batch(2, None));
    leader.write(txn_batch(7, 0, 0));
    leader.write(batch(1, None));
    leader.sync();
    assert_eq!((leader.hw(), leader.lso()), (4, 2), "rule X6");
    let seen = leader.end_transaction(9, commit(7, 1));
    assert_eq!((seen.appended, seen.answers), (vec![(4, 100)], vec![]), "rule X5: not before it is committed");
    assert_eq!(leader.lso(), 2, "rule X6: the marker is not committed");
    assert_eq!(leader.sync().answers, [(9, Ok(4))]);
    assert_eq!((leader.hw(), leader.lso()), (5, 5));
    assert_eq!(leader.aborted(), []);
}

/// Rules X6, C1: what was deleted is nobody's to wait for, and nobody is sent where the log no longer is.
#[test]
fn what_is_stable_ends_no_earlier_than_the_log_starts() {
    let mut leader = leader();
    leader.write(batch(1, None));
    leader.write(txn_batch(7, 0, 0));
    leader.write(batch(3, None));
    leader.sync();
    assert_eq!((leader.hw(), leader.lso()), (5, 1));
    let (log_start, tiered_end, epoch) = (Offset(3), Offset(0), LeaderEpoch(1));
    leader.step(Input::Manifest { log_start, tiered_end, epoch });
    assert_eq!((leader.hw(), leader.lso()), (5, 3), "of an open transaction whose first records are gone");
    leader.end_transaction(1, abort(7, 1));
    assert_eq!(leader.lso(), 3);
    leader.sync();
    assert_eq!(leader.lso(), 6);
    // A follower hears of the log start before it hears of the high watermark.
    let log = written(vec![(txn_batch(7, 0, 0), 1), (txn_batch(7, 0, 1), 1), (batch(1, None), 1)]);
    let mut follower = fresh();
    for (hw, lso) in [(1, 1), (3, 2)] {
        let mut push = pushed(&log, 0, hw, 1, 1);
        push.head.log_start = Offset(2);
        follower.step(Input::Push(push));
        assert_eq!((follower.hw(), follower.lso()), (hw, lso));
    }
}

#[test]
fn an_older_transaction_holds_what_is_stable_when_a_later_one_ends() {
    let mut leader = leader();
    leader.write(txn_batch(7, 0, 0));
    leader.write(txn_batch(8, 0, 0));
    leader.end_transaction(1, abort(8, 1));
    leader.sync();
    assert_eq!((leader.lso(), leader.aborted()), (0, vec![]));
    leader.end_transaction(2, abort(7, 1));
    leader.sync();
    assert_eq!((leader.lso(), leader.aborted()), (4, vec![(0, 3), (1, 2)]), "by first offset");
}

/// Rule X7: what is stable may end between an aborted record and its marker, where another transaction is open.
#[test]
fn an_aborted_record_is_told_though_its_marker_lies_beyond_what_is_stable() {
    let mut leader = leader();
    leader.write(txn_batch(7, 0, 0));
    leader.write(txn_batch(8, 0, 0));
    leader.end_transaction(1, abort(7, 1));
    leader.sync();
    assert_eq!((leader.hw(), leader.lso(), leader.aborted()), (3, 1, vec![(0, 2)]));
}

/// Rule X3: nothing of a transaction is appended before the coordinator knows of the partition; order is kept meanwhile.
#[test]
fn a_first_batch_waits_for_its_verification_and_the_next_ones_behind_it() {
    let mut leader = leader();
    let seen = leader.produce(1, txn_batch(7, 0, 0), Acks::All);
    let [first] = &seen.unverified[..] else { panic!("{seen:?}") };
    assert_eq!((first.token, first.producer, first.epoch), (Token(1), ProducerId(7), ProducerEpoch(0)));
    assert_eq!((seen.appended.len(), seen.answers.len()), (0, 0));
    let seen = leader.produce(2, txn_batch(7, 0, 1), Acks::All);
    let [second] = &seen.unverified[..] else { panic!("{seen:?}") };
    assert_eq!(second.verification, first.verification, "one question for both");
    leader.verify(first);
    // Whatever the driver does wrong, what came later does not go first.
    let seen = leader.produce(2, second.batch.clone(), Acks::All);
    assert_eq!(seen.answers, [(2, Err(ErrorCode::OutOfOrderSequenceNumber))]);
    assert_eq!(leader.produce(1, first.batch.clone(), Acks::All).appended, [(0, 100)]);
    assert_eq!(leader.produce(3, second.batch.clone(), Acks::All).appended, [(1, 100)]);
    assert_eq!(leader.produce(4, txn_batch(7, 0, 2), Acks::All).appended, [(2, 100)], "the transaction is open");
}

/// Rules X3, P6: what was refused for lack of replicas did not come to be verified, and goes first all the same.
#[test]
fn a_first_batch_that_is_refused_for_now_is_verified_before_those_that_follow_it() {
    let mut leader = leader();
    leader.step(Input::Assigned(assigned(2, 1, &[ME], 2, &[ME])));
    let seen = leader.produce(1, txn_batch(7, 0, 4), Acks::All);
    assert_eq!((seen.answers, seen.unverified.len()), (vec![(1, Err(ErrorCode::NotEnoughReplicas))], 0), "rule I1");
    leader.step(Input::Assigned(assigned(3, 1, &[ME], 1, &[ME])));
    let seen = leader.produce(2, txn_batch(7, 0, 5), Acks::All);
    assert_eq!((seen.answers, seen.unverified.len()), (vec![(2, Err(ErrorCode::NotEnoughReplicas))], 0), "rule P6");
    let seen = leader.produce(3, txn_batch(7, 0, 4), Acks::All);
    assert_eq!((seen.answers.len(), seen.unverified.len()), (0, 1));
}

/// The first version's sequences go on from transaction to transaction, and wrap.
#[test]
fn what_waited_goes_first_also_where_sequences_wrap() {
    let last = i32::MAX;
    for (arrive, lowest) in [([4, 5], 4), ([5, 4], 4), ([last, 0], last), ([0, last], last)] {
        let mut leader = leader();
        let held = arrive.map(|sequence| leader.produce(1, txn_batch(7, 0, sequence), Acks::All).unverified[0].clone());
        let Unverified { producer, epoch, verification, .. } = held[0];
        leader.step(Input::Verified(Verified { producer, epoch, verification, epoch_per_transaction: false }));
        for Unverified { batch, .. } in held {
            let sequence = batch.producer().expect("it has one").base_sequence;
            let appended = leader.produce(1, batch, Acks::All).appended.len();
            let follows = leader.end() > u64::from(sequence == lowest);
            assert_eq!(appended == 1, sequence == lowest || follows, "{sequence} of {arrive:?}");
        }
    }
}

#[test]
fn a_marker_voids_what_was_verified_before_it() {
    let mut leader = leader();
    let seen = leader.produce(1, txn_batch(7, 0, 0), Acks::All);
    let asked = seen.unverified[0].clone();
    leader.end_transaction(2, abort(7, 1));
    leader.verify(&asked);
    let seen = leader.produce(1, asked.batch.clone(), Acks::All);
    assert_eq!(seen.answers, [(1, Err(ErrorCode::InvalidProducerEpoch))], "case T3: a late write is fenced");
    assert_eq!(leader.end(), 1, "the marker alone");
}

/// A client of the first version keeps its epoch: only the verification tells a late batch from one of the next transaction.
#[test]
fn a_late_batch_of_the_same_epoch_is_asked_about_again() {
    let mut leader = leader();
    let asked = leader.produce(1, txn_batch(7, 0, 0), Acks::All).unverified[0].clone();
    leader.verify(&asked);
    leader.end_transaction(2, Marker { raised: false, ..abort(7, 0) });
    let again = leader.produce(1, asked.batch.clone(), Acks::All);
    let [again] = &again.unverified[..] else { panic!("{again:?}") };
    assert_ne!(again.verification, asked.verification, "rule X3");
    leader.verify(&asked);
    assert_eq!(leader.produce(1, asked.batch, Acks::All).unverified.len(), 1, "an answer to the first counts no more");
}

/// Found by seed 1127: the partition was part of the transaction, and nothing was written before it ended. Its marker ends nothing.
#[test]
fn a_marker_that_ends_nothing_voids_what_was_verified_before_it() {
    for (raised, end_of_log) in [(true, 2), (false, 3)] {
        let mut leader = leader();
        let (epoch, sequence) = if raised { (1, 0) } else { (0, 1) };
        let end = Marker { raised, ..commit(7, epoch) };
        leader.write(txn_batch(7, 0, 0));
        leader.end_transaction(1, end);
        let asked = leader.produce(2, txn_batch(7, epoch, sequence), Acks::All).unverified[0].clone();
        leader.end_transaction(3, end);
        leader.verify(&asked);
        let again = leader.produce(2, asked.batch.clone(), Acks::All);
        assert_eq!((again.unverified.len(), leader.end()), (1, end_of_log), "rule X3");
    }
}

/// Rule X5: a client that keeps its epoch ends each of its transactions by the same marker. A leader that was deposed and has not heard of
/// it may lack the one that this marker ends, and has the markers of those before: so it proves that it leads, like anyone who appends.
#[test]
fn a_marker_that_keeps_its_epoch_is_answered_once_the_isr_has_it_whatever_the_log_says() {
    let mut leader = fresh();
    leader.step(Input::Assigned(assigned(1, 1, &[ME, PEER], 2, &[ME, PEER])));
    leader.sync();
    leader.acknowledge(PEER, 1, 0);
    leader.write(txn_batch(7, 0, 0));
    let end = Marker { raised: false, ..commit(7, 0) };
    leader.end_transaction(1, end);
    leader.sync();
    assert_eq!(leader.acknowledge(PEER, 1, 2).answers, [(1, Ok(1))]);
    assert_eq!((leader.hw(), leader.lso()), (2, 2));
    // Of the next transaction, which another leader has.
    assert_eq!(leader.end_transaction(2, end).answers, [], "all that is here is committed, and proves nothing");
    assert_eq!(leader.sync().answers, []);
    let mut cut_off = leader.clone();
    let deposed = cut_off.step(Input::Assigned(assigned(2, 2, &[PEER, ME], 2, &[ME, PEER])));
    assert_eq!(deposed.answers, [(2, Err(ErrorCode::NotLeaderOrFollower))], "its coordinator asks the other");
    assert_eq!(leader.acknowledge(PEER, 1, 3).answers, [(2, Ok(2))]);
    assert_eq!((leader.lso(), leader.aborted()), (3, vec![]), "it ends nothing");
}

#[test]
fn a_verification_of_another_office_or_too_long_ago_counts_for_nothing() {
    let mut leader = leader();
    let asked = leader.produce(1, txn_batch(7, 0, 0), Acks::All).unverified[0].clone();
    leader.step(Input::Assigned(assigned(2, 2, &[PEER, ME], 1, &[ME, PEER])));
    leader.step(Input::Assigned(assigned(3, 3, &[ME], 1, &[ME])));
    leader.verify(&asked);
    let again = leader.produce(1, txn_batch(7, 0, 0), Acks::All).unverified[0].clone();
    assert_ne!(again.verification, asked.verification);
    leader.verify(&again);
    leader.now_ms += VERIFICATION_MS;
    leader.step(Input::Tick);
    assert_eq!(leader.produce(1, txn_batch(7, 0, 0), Acks::All).unverified.len(), 1);
}

/// What is asked is forgotten by time also where there is nobody else to wait for.
#[test]
fn a_lone_leader_looks_at_the_time_as_long_as_it_has_asked_something() {
    let mut leader = fresh();
    let mut alone = assigned(1, 1, &[ME], 1, &[ME]);
    alone.record.replicas = vec![ME.broker];
    leader.step(Input::Assigned(alone));
    leader.sync();
    assert!(!leader.replica.wants_ticks(), "an idle partition costs nothing");
    leader.produce(1, txn_batch(7, 0, 0), Acks::All);
    assert!(leader.replica.wants_ticks());
    leader.now_ms += VERIFICATION_MS;
    leader.step(Input::Tick);
    assert!(!leader.replica.wants_ticks(), "it is forgotten");
    assert!(leader_of_three().replica.wants_ticks(), "rule I6");
    assert!(!fresh().replica.wants_ticks());
}

/// Rule P2: nobody is forgotten but by what is in the log, so that all replicas forget alike. A clock that is a day ahead for a moment
/// makes no duplicate of a retry.
#[test]
fn what_is_refused_makes_nobody_forgotten_however_wrong_the_clock_is() {
    const DAY_AND_MORE_MS: i64 = 25 * 3_600_000;
    let (alone, both) =
        (|revision| assigned(revision, 1, &[ME], 2, &[ME]), assigned(1, 1, &[ME, PEER], 2, &[ME, PEER]));
    let mut leader = fresh();
    leader.step(Input::Assigned(both));
    leader.sync();
    leader.acknowledge(PEER, 1, 0);
    leader.produce(1, batch(1, stamp(0, 0)), Acks::All);
    leader.sync();
    leader.acknowledge(PEER, 1, 1);
    leader.write(txn_batch(8, 0, 0));
    leader.step(Input::Assigned(alone(2)));
    leader.wall += DAY_AND_MORE_MS;
    let gap = leader.produce(2, batch(1, stamp(0, 5)), Acks::All);
    assert_eq!(gap.answers, [(2, Err(ErrorCode::NotEnoughReplicas))]);
    let other = txn_batch(9, 0, 0);
    assert_eq!(leader.produce(3, other.clone(), Acks::Leader).unverified.len(), 1);
    let earlier = leader.produce(4, txn_batch(8, 0, 3), Acks::Leader);
    assert_eq!(earlier.answers, [(4, Err(ErrorCode::OutOfOrderSequenceNumber))], "an open transaction does not expire");
    assert_eq!(leader.end_transaction(5, commit(9, 1)).answers, [(5, Err(ErrorCode::NotEnoughReplicas))]);
    leader.wall -= DAY_AND_MORE_MS;
    let retried = leader.produce(6, batch(1, stamp(0, 0)), Acks::Leader);
    assert_eq!((retried.appended, retried.answers), (vec![], vec![(6, Ok(0))]), "rule P3: a duplicate");
    // What is appended does: with the time that it has in the log, which is everybody's.
    leader.wall += DAY_AND_MORE_MS;
    leader.produce(7, batch(1, None), Acks::Leader);
    assert!(leader.replica.producers().summaries().all(|known| known.id != ProducerId(7)));
}

/// KIP-890: where each transaction has its own epoch, one that is not known here begins with it.
#[test]
fn with_an_epoch_per_transaction_an_unknown_producer_begins_at_sequence_0() {
    for (epoch_per_transaction, expected) in [(true, 0), (false, 1)] {
        let mut leader = leader();
        let asked = leader.produce(1, txn_batch(7, 0, 4), Acks::All).unverified[0].clone();
        let Unverified { producer, epoch, verification, .. } = asked;
        leader.step(Input::Verified(Verified { producer, epoch, verification, epoch_per_transaction }));
        let seen = leader.produce(1, asked.batch, Acks::All);
        assert_eq!(seen.appended.len(), expected);
    }
}

#[test]
fn a_batch_of_a_transaction_that_ended_answers_none_of_the_next() {
    let mut leader = leader();
    leader.write(txn_batch(7, 0, 0));
    leader.end_transaction(1, Marker { raised: false, ..abort(7, 0) });
    leader.sync();
    // Of a client that keeps its epoch, gave the transaction up, and numbers the next as the one before (rule P3).
    let seen = leader.produce(2, txn_batch(7, 0, 0), Acks::All);
    assert_eq!(seen, Seen { answers: vec![(2, Err(ErrorCode::UnknownProducerId))], ..Seen::default() });
}

#[test]
fn records_outside_of_the_open_transaction_are_refused() {
    let mut leader = leader();
    leader.write(txn_batch(7, 0, 0));
    assert_eq!(leader.produce(1, batch(1, stamp(0, 1)), Acks::All).answers, [(1, Err(ErrorCode::InvalidTxnState))]);
    // The next transaction, whose client has heard of the outcome before this leader has its marker: it retries.
    assert_eq!(leader.produce(2, txn_batch(7, 1, 0), Acks::All).answers, [(2, Err(ErrorCode::NotEnoughReplicas))]);
}

#[test]
fn a_repeated_marker_changes_nothing_and_is_answered_when_the_first_is_committed() {
    let mut leader = leader();
    leader.write(txn_batch(7, 0, 0));
    leader.end_transaction(1, commit(7, 1));
    let again = leader.end_transaction(2, commit(7, 1));
    assert_eq!((again.appended, again.answers), (vec![], vec![]), "not before it is committed");
    assert_eq!(leader.sync().answers, [(1, Ok(1)), (2, Ok(2))]);
    assert_eq!(leader.end(), 2);
}

#[test]
fn a_marker_of_an_earlier_coordinator_or_epoch_is_refused() {
    let mut leader = leader();
    leader.write(txn_batch(7, 2, 0));
    leader.end_transaction(1, commit(7, 3));
    leader.sync();
    leader.write(txn_batch(7, 3, 0));
    let older = EndMarker { outcome: TxnOutcome::Abort, coordinator_epoch: CoordinatorEpoch(COORDINATOR - 1) };
    let zombie = Marker { end: older, ..abort(7, 4) };
    let seen = leader.end_transaction(2, zombie);
    assert_eq!(seen.answers, [(2, Err(ErrorCode::TransactionCoordinatorFenced))], "rule X5");
    // The marker of the transaction before, once more: the one that is open is another.
    let seen = leader.end_transaction(3, commit(7, 3));
    assert_eq!(seen.answers, [(3, Err(ErrorCode::InvalidProducerEpoch))], "rule X5");
    let seen = leader.end_transaction(4, commit(7, 2));
    assert_eq!(seen.answers, [(4, Err(ErrorCode::InvalidProducerEpoch))]);
    assert_eq!((leader.end(), leader.lso()), (3, 2));
}

#[test]
fn a_marker_is_appended_only_by_a_leader_that_can_commit_it() {
    let mut replica = fresh();
    let seen = replica.end_transaction(1, commit(7, 1));
    assert_eq!(seen.answers, [(1, Err(ErrorCode::NotLeaderOrFollower))]);
    replica.step(Input::Assigned(assigned(1, 1, &[ME], 2, &[ME])));
    let seen = replica.end_transaction(2, commit(7, 1));
    assert_eq!((seen.answers, seen.appended), (vec![(2, Err(ErrorCode::NotEnoughReplicas))], vec![]), "rule I1");
    replica.step(Input::Assigned(assigned(2, 1, &[ME, PEER], 2, &[ME, PEER])));
    replica.step(Input::Transfer(Transfer { epoch: LeaderEpoch(1), to: live(PEER), within_ms: 100 }));
    let seen = replica.end_transaction(3, commit(7, 1));
    assert_eq!((seen.answers, seen.appended), (vec![(3, Err(ErrorCode::NotLeaderOrFollower))], vec![]), "rule E9");
}

/// What a leader pushes: its log as it stands, from `from` on, with its high watermark.
fn pushed(leader: &[Placed], from: usize, hw: u64, epoch: u32, nonce: u64) -> Push {
    let head = PushHead {
        epoch: LeaderEpoch(epoch),
        leader: Leader { rid: PEER, inc: inc(PEER) },
        unclean_epoch: None,
        hw: Offset(hw),
        log_start: Offset(0),
        tiered_end: Offset(0),
    };
    let prev_epoch = from.checked_sub(1).map(|last| leader[last].batch.leader_epoch());
    let (start, prev_offset) = (Offset(0), Offset(from as u64));
    Push { head, nonce, start, prev_offset, prev_epoch, batches: leader[from..].to_vec() }
}

/// A log of one-record batches, written in the given epochs.
fn written(batches: Vec<(Batch, u32)>) -> Vec<Placed> {
    let mut hash = 0;
    let place = |(offset, (mut batch, epoch)): (usize, (Batch, u32))| {
        batch.place(Offset(offset as u64), LeaderEpoch(epoch));
        hash = chain_hash(hash, &batch);
        Placed { batch, append_time: TimestampMs(100), latest: TimestampMs(5), prefix_hash: hash }
    };
    batches.into_iter().enumerate().map(place).collect()
}

fn replayed(log: &[Placed]) -> EndState {
    let mut state = EndState::empty();
    for placed in log {
        state.absorb(&placed.batch, placed.append_time);
    }
    state
}

fn marker_batch(marker: Marker) -> Batch {
    Batch::of_marker(&marker, TimestampMs(100))
}

#[test]
fn a_follower_knows_what_is_stable_by_its_own_high_watermark() {
    let log = written(vec![(txn_batch(7, 0, 0), 1), (txn_batch(7, 0, 1), 1), (marker_batch(abort(7, 1)), 1)]);
    let mut follower = fresh();
    for (hw, lso, aborted) in [(1, 0, vec![]), (2, 0, vec![]), (3, 3, vec![(0, 2)])] {
        follower.step(Input::Push(pushed(&log, 0, hw, 1, 1)));
        assert_eq!((follower.hw(), follower.lso(), follower.aborted()), (hw, lso, aborted), "rule X6");
    }
}

/// Rule R7: where a marker is truncated away, its transaction is open again.
#[test]
fn a_truncation_takes_back_what_it_takes_away() {
    let log = written(vec![
        (batch(1, None), 1),
        (txn_batch(7, 0, 0), 1),
        (marker_batch(abort(7, 1)), 1),
        (batch(1, None), 1),
    ]);
    let mut follower = fresh();
    follower.step(Input::Push(pushed(&log, 0, 1, 1, 1)));
    follower.sync();
    assert_eq!((follower.hw(), follower.lso()), (1, 1));
    let other = written(vec![(batch(1, None), 1), (txn_batch(7, 0, 0), 1), (batch(1, None), 2), (batch(2, None), 2)]);
    let seen = follower.step(Input::Push(pushed(&other, 2, 2, 2, 1)));
    assert_eq!(seen.ends, [2]);
    assert_eq!(follower.lso(), 1, "while it is replayed");
    follower.step(Input::Rebuilt(replayed(&other[..2])));
    follower.step(Input::Push(pushed(&other, 2, 3, 2, 2)));
    assert_eq!((follower.hw(), follower.lso(), follower.aborted()), (3, 1, vec![]));
    let ended = written(vec![
        (batch(1, None), 1),
        (txn_batch(7, 0, 0), 1),
        (batch(1, None), 2),
        (marker_batch(commit(7, 1)), 2),
    ]);
    assert_eq!(ended[2].prefix_hash, other[2].prefix_hash, "the same log so far");
    let mut leader = fresh();
    leader.step(Input::Push(pushed(&ended, 0, 4, 2, 1)));
    assert_eq!((leader.lso(), leader.aborted()), (4, vec![]));
}

/// Rules E7, X6: an unclean election may take a committed marker away; until the log is replayed nothing is known to be stable.
#[test]
fn after_an_unclean_election_nothing_is_stable_before_the_log_is_replayed() {
    let log = written(vec![(txn_batch(7, 0, 0), 1), (marker_batch(commit(7, 1)), 1), (batch(1, None), 1)]);
    let mut follower = fresh();
    follower.step(Input::Push(pushed(&log, 0, 3, 1, 1)));
    follower.sync();
    assert_eq!(follower.lso(), 3);
    let other = written(vec![(txn_batch(7, 0, 0), 1), (batch(1, None), 2)]);
    let mut push = pushed(&other, 1, 1, 2, 1);
    push.head.unclean_epoch = Some(LeaderEpoch(2));
    assert_eq!(follower.step(Input::Push(push)).ends, [1]);
    assert_eq!((follower.hw(), follower.lso()), (1, 0));
    follower.step(Input::Rebuilt(replayed(&other[..1])));
    assert_eq!(follower.lso(), 0, "the transaction is open again");
}

/// Rules E7, X6: an unclean election may also uncommit a marker that stays in the log. Which transactions it decides is known again once
/// everything is committed that was before.
#[test]
fn a_marker_that_is_uncommitted_is_stable_no_more() {
    let log = written(vec![(txn_batch(7, 0, 0), 1), (batch(1, None), 1), (marker_batch(commit(7, 1)), 1)]);
    let mut follower = fresh();
    follower.step(Input::Push(pushed(&log, 0, 3, 1, 1)));
    follower.sync();
    assert_eq!((follower.hw(), follower.lso()), (3, 3));
    let push = |hw, nonce| {
        let mut push = pushed(&log, 3, hw, 2, nonce);
        push.head.unclean_epoch = Some(LeaderEpoch(2));
        Input::Push(push)
    };
    follower.step(push(2, 1));
    assert_eq!((follower.hw(), follower.lso()), (2, 0), "the marker is above the high watermark again");
    follower.step(push(3, 2));
    assert_eq!((follower.hw(), follower.lso()), (3, 3));
}

/// Rule P4: a restart replays the tail, and knows of transactions what it knew before.
#[test]
fn a_restart_knows_which_transactions_are_open_and_which_were_aborted() {
    let log = written(vec![
        (txn_batch(7, 0, 0), 1),
        (marker_batch(abort(7, 1)), 1),
        (txn_batch(8, 0, 0), 1),
        (txn_batch(9, 0, 0), 1),
        (marker_batch(commit(9, 1)), 1),
    ]);
    let mut from = recovered();
    (from.at_end, from.hw) = (replayed(&log), Offset(1));
    from.epochs.append(LeaderEpoch(1), Offset(0));
    let mut fixture = start(from);
    assert_eq!(fixture.lso(), 0, "rule X6: the marker is above the high watermark as it was noted");
    fixture.step(Input::Assigned(assigned(1, 2, &[ME], 1, &[ME])));
    fixture.sync();
    assert_eq!((fixture.hw(), fixture.lso(), fixture.aborted()), (5, 2, vec![(0, 1)]));
    let open: Vec<u64> = fixture.replica.producers().open().map(|txn| txn.producer.0).collect();
    assert_eq!(open, [8]);
    fixture.end_transaction(1, commit(8, 1));
    fixture.sync();
    assert_eq!((fixture.lso(), fixture.aborted()), (6, vec![(0, 1)]));
    // What the manifest tells of, nobody else has to.
    fixture.replica.forget_aborted(Offset(1));
    assert_eq!(fixture.aborted(), [(0, 1)]);
    fixture.replica.forget_aborted(Offset(2));
    assert_eq!(fixture.aborted(), []);
}

/// What a log of one-record batches makes stable under `hw`, read off it: (last stable offset, aborted (first, marker)).
fn stable_of(log: &[Placed], hw: u64) -> (u64, Vec<(u64, u64)>) {
    let mut open: Vec<(ProducerId, u64)> = Vec::new();
    let mut aborted = Vec::new();
    for placed in &log[..hw as usize] {
        let stamp = placed.batch.producer().expect("all are producers'");
        let at = placed.batch.base_offset().0;
        match placed.batch.end_marker().expect("sound") {
            None if open.iter().all(|(id, _)| *id != stamp.id) => open.push((stamp.id, at)),
            None => {}
            Some(end) => {
                let found = open.iter().position(|(id, _)| *id == stamp.id);
                if let Some((_, first)) = found.map(|found| open.remove(found))
                    && end.outcome == TxnOutcome::Abort
                {
                    aborted.push((first, at));
                }
            }
        }
    }
    let lso = open.iter().map(|(_, first)| *first).min().unwrap_or(hw);
    aborted.retain(|(first, _)| *first < lso);
    aborted.sort_unstable();
    (lso, aborted)
}

proptest! {
    /// Rules X6, X7, P2: leader, follower and a restart at any place agree with what is read off the log.
    #[test]
    fn all_replicas_agree_on_what_is_stable(
        steps in prop::collection::vec((7u64..10, 0u8..4, 0usize..3), 1..60),
        restart in any::<prop::sample::Index>(),
    ) {
        let mut leader = leader();
        let (mut log, mut epochs, mut sequences) = (Vec::new(), [0u16; 10], [0i32; 10]);
        for (producer, what, sync) in steps {
            let at = producer as usize;
            let input = match what {
                0 | 1 => {
                    sequences[at] += 1;
                    let batch = txn_batch(producer, epochs[at], sequences[at] - 1);
                    let seen = leader.produce(0, batch.clone(), Acks::None);
                    seen.unverified.iter().for_each(|unverified| leader.verify(unverified));
                    let _ = seen.appended;
                    (!seen.unverified.is_empty()).then_some(batch)
                }
                _ => {
                    epochs[at] += 1;
                    sequences[at] = 0;
                    let outcome = if what == 2 { TxnOutcome::Commit } else { TxnOutcome::Abort };
                    leader.end_transaction(0, marker(producer, epochs[at], outcome));
                    None
                }
            };
            if let Some(batch) = input {
                leader.produce(0, batch, Acks::None);
            }
            log = leader.placed.clone();
            if sync == 0 {
                leader.sync();
            }
            prop_assert_eq!((leader.lso(), leader.aborted()), stable_of(&log, leader.hw()));
        }
        let hw = restart.index(log.len() + 1);
        let expected = stable_of(&log, hw as u64);
        let mut follower = fresh();
        follower.step(Input::Push(pushed(&log, 0, hw as u64, 1, 1)));
        prop_assert_eq!((follower.lso(), follower.aborted()), expected.clone());
        let mut from = recovered();
        (from.at_end, from.hw) = (replayed(&log), Offset(hw as u64));
        let restarted = start(from);
        prop_assert_eq!((restarted.lso(), restarted.aborted()), expected);
    }
}
