//! What a coordinator promises, request by request. What it and its surroundings promise together is shown by `sim`.

mod sim;

use super::*;
use millpond_log::{ProducerEpoch, TopicId};

const NOW: Now = Now { steady_ms: 5_000, wall_ms: 1_000_000 };
const TIMEOUT: i32 = 60_000;
const ID: &str = "payments";

/// A coordinator whose changes are durable at once.
struct Fixture {
    coordinator: Coordinator,
    store: BTreeMap<String, TransactionRecord>,
    now: Now,
    /// Effects of the newest step.
    effects: Vec<Effect>,
    writes: usize,
}

fn fresh() -> Fixture {
    let mut coordinator = Coordinator::load(CoordinatorEpoch(1), NOW, []).0;
    coordinator.give_producer_ids(100..200);
    Fixture { coordinator, store: BTreeMap::new(), now: NOW, effects: Vec::new(), writes: 0 }
}

fn instance(id: u64, epoch: u16) -> ProducerInstance {
    ProducerInstance { id: ProducerId(id), epoch: ProducerEpoch(epoch) }
}

fn partition(index: u32) -> PartitionId {
    PartitionId { topic: TopicId(7), index }
}

fn partitions(indexes: &[u32]) -> Parts {
    Parts { partitions: indexes.iter().copied().map(partition).collect(), groups: Vec::new() }
}

fn group(name: &str) -> Parts {
    Parts { partitions: Vec::new(), groups: vec![name.to_owned()] }
}

type Answer = Result<Granted, ErrorCode>;

fn granted(id: u64, epoch: u16) -> Answer {
    Ok(Granted::Producer(instance(id, epoch)))
}

const DONE: Answer = Ok(Granted::Done);
const FENCED: Answer = Err(ErrorCode::ProducerFenced);
const CONCURRENT: Answer = Err(ErrorCode::ConcurrentTransactions);
const STATE: Answer = Err(ErrorCode::InvalidTxnState);
const MAPPING: Answer = Err(ErrorCode::InvalidProducerIdMapping);

use TxnOutcome::{Abort, Commit};

impl Fixture {
    fn took(&mut self, step: Step) -> Option<Answer> {
        for Change { id, record } in step.changes {
            self.writes += 1;
            match record {
                Some(record) => drop(self.store.insert(id, record)),
                None => drop(self.store.remove(&id)),
            }
        }
        self.effects = step.effects;
        step.answer.map(|answer| answer.map_err(|error| error.code()))
    }

    fn step(&mut self, request: Request) -> Answer {
        let step = self.coordinator.step(self.now, request);
        self.took(step).expect("a request has an answer")
    }

    fn init_for(&mut self, timeout_ms: i32, expected: Option<ProducerInstance>) -> Answer {
        self.step(Request::Init { id: ID.to_owned(), timeout_ms, expected })
    }

    fn init(&mut self, expected: Option<ProducerInstance>) -> Answer {
        self.init_for(TIMEOUT, expected)
    }

    fn add(&mut self, producer: ProducerInstance, parts: Parts) -> Answer {
        self.step(Request::Add { id: ID.to_owned(), producer, parts })
    }

    fn verify(&mut self, producer: ProducerInstance, parts: Parts) -> Answer {
        self.step(Request::Verify { id: ID.to_owned(), producer, parts })
    }

    /// A client whose transactions have an epoch each.
    fn end(&mut self, producer: ProducerInstance, outcome: TxnOutcome) -> Answer {
        self.step(Request::End { id: ID.to_owned(), producer, outcome, epoch_per_transaction: true })
    }

    /// A client of the first version.
    fn end_v1(&mut self, producer: ProducerInstance, outcome: TxnOutcome) -> Answer {
        self.step(Request::End { id: ID.to_owned(), producer, outcome, epoch_per_transaction: false })
    }

    /// Time passes on both clocks.
    fn pass(&mut self, ms: u64) {
        self.now.steady_ms += ms;
        self.now.wall_ms += ms as i64;
    }

    fn tick(&mut self) {
        let step = self.coordinator.tick(self.now);
        assert_eq!(self.took(step), None);
    }

    /// Every effect that is not done is done.
    fn finish(&mut self) {
        for Effect { id, ticket, parts, .. } in self.coordinator.outstanding() {
            let step = self.coordinator.report(self.now, Report { id, ticket, done: parts });
            self.took(step);
        }
        assert_eq!(self.coordinator.outstanding(), []);
    }

    fn state(&self) -> TransactionState {
        assert_eq!(self.store.get(ID), self.coordinator.describe(ID), "what is known is what was written");
        self.store[ID].state
    }

    /// The markers that are wanted: (producer, epoch, raised, outcome, partitions).
    fn markers(&self) -> Vec<(u64, u16, bool, TxnOutcome, Vec<u32>)> {
        let marker = |effect: &Effect| {
            let Marker { producer, epoch, raised, end } = effect.marker;
            let indexes = effect.parts.partitions.iter().map(|partition| partition.index).collect();
            (producer.0, epoch.0, raised, end.outcome, indexes)
        };
        self.effects.iter().map(marker).collect()
    }

    /// Another owner of the shard loads what was written.
    fn fail_over(&mut self) {
        let records: Vec<_> = self.store.iter().map(|(id, record)| (id.clone(), record.clone())).collect();
        let epoch = CoordinatorEpoch(self.coordinator.epoch.0 + 1);
        (self.coordinator, self.effects) = Coordinator::load(epoch, self.now, records);
        self.coordinator.give_producer_ids(500..600);
    }

    /// A record with these epochs used up already.
    fn aged(epoch: u16) -> Fixture {
        let mut fixture = fresh();
        fixture.init(None).expect("it is the first");
        fixture.store.get_mut(ID).expect("it was written").producer.epoch = ProducerEpoch(epoch);
        fixture.fail_over();
        fixture
    }
}

#[test]
fn a_transaction_commits_everywhere_and_raises_its_epoch_by_one() {
    let mut txn = fresh();
    assert_eq!(txn.init(None), granted(100, 0));
    assert_eq!(txn.add(instance(100, 0), partitions(&[3])), DONE);
    assert_eq!(txn.add(instance(100, 0), partitions(&[1, 3])), DONE);
    assert_eq!((txn.state(), txn.effects.len()), (TransactionState::Ongoing, 0));
    assert_eq!(txn.end(instance(100, 0), Commit), granted(100, 1), "rule X1");
    assert_eq!(txn.state(), TransactionState::PrepareCommit);
    assert_eq!(txn.markers(), [(100, 1, true, Commit, vec![1, 3])]);
    txn.finish();
    assert_eq!(txn.state(), TransactionState::CompleteCommit);
    assert!(txn.store[ID].partitions.is_empty());
    assert_eq!(txn.add(instance(100, 1), partitions(&[1])), DONE);
    assert_eq!(txn.end(instance(100, 1), Abort), granted(100, 2));
    assert_eq!(txn.markers(), [(100, 2, true, Abort, vec![1])]);
}

#[test]
fn it_is_complete_only_when_every_part_has_reported() {
    let mut txn = fresh();
    txn.init(None).unwrap();
    txn.add(instance(100, 0), partitions(&[1, 2])).unwrap();
    txn.add(instance(100, 0), group("g")).unwrap();
    txn.end(instance(100, 0), Commit).unwrap();
    let ticket = txn.effects[0].ticket;
    let other = Ticket { number: ticket.number + 1, ..ticket };
    let report = |ticket, done| Report { id: ID.to_owned(), ticket, done };
    // What another transaction's markers did says nothing.
    let reports =
        [(ticket, partitions(&[1])), (other, partitions(&[2])), (ticket, group("g")), (ticket, partitions(&[1]))];
    for (ticket, done) in reports {
        let step = txn.coordinator.report(NOW, report(ticket, done));
        txn.took(step);
        assert_eq!(txn.state(), TransactionState::PrepareCommit, "rule X5");
    }
    let step = txn.coordinator.report(NOW, report(ticket, partitions(&[2])));
    txn.took(step);
    assert_eq!(txn.state(), TransactionState::CompleteCommit);
}

/// A client of the first version has one epoch for all its transactions: a late report of the one before looks the same but for its ticket.
#[test]
fn a_report_of_the_transaction_before_says_nothing_about_this_one() {
    let mut txn = fresh();
    txn.init(None).unwrap();
    txn.add(instance(100, 0), partitions(&[1])).unwrap();
    txn.end_v1(instance(100, 0), Commit).unwrap();
    let late = Report { id: ID.to_owned(), ticket: txn.effects[0].ticket, done: partitions(&[1]) };
    txn.finish();
    txn.add(instance(100, 0), partitions(&[1])).unwrap();
    txn.end_v1(instance(100, 0), Commit).unwrap();
    let before = txn.effects[0].ticket;
    let step = txn.coordinator.report(NOW, late);
    txn.took(step);
    assert_eq!(txn.state(), TransactionState::PrepareCommit);
    txn.fail_over();
    let step = txn.coordinator.report(NOW, Report { id: ID.to_owned(), ticket: before, done: partitions(&[1]) });
    txn.took(step);
    assert_eq!(txn.state(), TransactionState::PrepareCommit, "nor does one to the owner before");
}

#[test]
fn a_client_of_the_first_version_keeps_its_epoch() {
    let mut txn = fresh();
    txn.init(None).unwrap();
    assert_eq!(txn.verify(instance(100, 0), partitions(&[1])), Err(ErrorCode::TransactionAbortable), "rule X3");
    txn.add(instance(100, 0), partitions(&[1])).unwrap();
    assert_eq!(txn.verify(instance(100, 0), partitions(&[1])), DONE);
    assert_eq!(txn.verify(instance(100, 0), partitions(&[1, 2])), Err(ErrorCode::TransactionAbortable));
    assert_eq!(txn.end_v1(instance(100, 0), Commit), granted(100, 0));
    assert_eq!(txn.markers(), [(100, 0, false, Commit, vec![1])]);
    assert_eq!(txn.verify(instance(100, 0), partitions(&[1])), CONCURRENT);
    assert_eq!(txn.add(instance(100, 0), partitions(&[1])), CONCURRENT);
    txn.finish();
    assert_eq!(txn.verify(instance(100, 0), partitions(&[1])), Err(ErrorCode::TransactionAbortable));
}

/// Rule X4, and KIP-890's table: what a second end is answered, by what the first one led to.
#[test]
fn a_repeated_end_has_the_earlier_outcome_and_no_other() {
    let check = |v2: bool, done: bool, first, again, second, expected: Answer| {
        let mut txn = fresh();
        txn.init(None).unwrap();
        txn.add(instance(100, 0), partitions(&[1])).unwrap();
        let end = if v2 { Fixture::end } else { Fixture::end_v1 };
        end(&mut txn, instance(100, 0), first).unwrap();
        if done {
            txn.finish();
        }
        let writes = txn.writes;
        let answer = end(&mut txn, instance(100, again), second);
        assert_eq!(answer, expected, "v2 {v2}, done {done}, {first:?}, then {second:?} in epoch {again}");
        // Only a new, empty transaction changes anything.
        assert_eq!(txn.writes > writes, expected == granted(100, 2));
    };
    // The second version: epoch 0 is a retry, epoch 1 the next transaction, to which nothing was added.
    for (first, other) in [(Commit, Abort), (Abort, Commit)] {
        check(true, true, first, 0, first, granted(100, 1));
        check(true, true, first, 0, other, STATE);
        check(true, true, first, 1, Abort, granted(100, 2));
        check(true, true, first, 1, Commit, STATE);
        check(true, false, first, 0, first, CONCURRENT);
        check(true, false, first, 0, other, STATE);
        check(true, false, first, 1, Abort, CONCURRENT);
        check(false, true, first, 0, first, granted(100, 0));
        check(false, true, first, 0, other, STATE);
        check(false, false, first, 0, first, CONCURRENT);
        check(false, false, first, 0, other, STATE);
    }
}

#[test]
fn an_end_without_a_transaction_is_refused_unless_it_aborts_with_an_epoch_of_its_own() {
    let mut txn = fresh();
    txn.init(None).unwrap();
    assert_eq!(txn.end_v1(instance(100, 0), Commit), STATE);
    assert_eq!(txn.end_v1(instance(100, 0), Abort), STATE);
    assert_eq!(txn.end(instance(100, 0), Commit), STATE);
    assert_eq!(txn.end(instance(100, 0), Abort), granted(100, 1));
    assert_eq!((txn.state(), txn.markers().len()), (TransactionState::CompleteAbort, 0), "there is nothing to mark");
    assert_eq!(txn.end(instance(100, 0), Abort), granted(100, 1), "rule X4");
}

#[test]
fn nobody_but_the_newest_instance_acts() {
    let mut txn = fresh();
    assert_eq!(txn.add(instance(100, 0), partitions(&[1])), MAPPING);
    txn.init(None).unwrap();
    assert_eq!(txn.init(None), granted(100, 1));
    for (producer, expected) in [(instance(100, 0), FENCED), (instance(100, 2), FENCED), (instance(9, 1), MAPPING)] {
        assert_eq!(txn.add(producer, partitions(&[1])), expected);
        assert_eq!(txn.verify(producer, partitions(&[1])), expected);
        assert_eq!(txn.end(producer, Commit), expected);
        assert_eq!(txn.end_v1(producer, Commit), expected);
    }
    assert_eq!(txn.init(Some(instance(9, 1))), FENCED);
}

#[test]
fn initialising_aborts_what_was_ongoing_and_fences_its_producer() {
    let mut txn = fresh();
    txn.init(None).unwrap();
    txn.add(instance(100, 0), partitions(&[1])).unwrap();
    assert_eq!(txn.init(None), CONCURRENT);
    assert_eq!(txn.markers(), [(100, 1, true, Abort, vec![1])], "rules X1, X8: raised once, and before the markers");
    assert_eq!(txn.init(None), CONCURRENT);
    // Case T5: the older one learns of it whatever it does, retry or not.
    assert_eq!(txn.end(instance(100, 0), Abort), FENCED);
    assert_eq!(txn.add(instance(100, 0), partitions(&[1])), FENCED);
    txn.finish();
    assert_eq!(txn.end_v1(instance(100, 0), Abort), FENCED);
    assert_eq!(txn.end(instance(100, 0), Abort), FENCED);
    assert_eq!(txn.init(Some(instance(100, 0))), FENCED, "KIP-360: another may have taken over");
    assert_eq!(txn.init(None), granted(100, 2));
}

/// KIP-360: a client that goes on after an error gets its next epoch, once, however often it asks.
#[test]
fn a_client_that_missed_its_new_epoch_is_told_again() {
    let mut txn = fresh();
    txn.init(None).unwrap();
    assert_eq!(txn.init(Some(instance(100, 0))), granted(100, 1));
    assert_eq!(txn.init(Some(instance(100, 0))), granted(100, 1));
    txn.fail_over();
    assert_eq!(txn.init(Some(instance(100, 0))), granted(100, 1));
    // It writes, so it has heard: what still comes of the old epoch is stale, and aborts nothing.
    txn.add(instance(100, 1), partitions(&[1])).unwrap();
    assert_eq!(txn.init(Some(instance(100, 0))), FENCED);
    assert_eq!(txn.state(), TransactionState::Ongoing);
    // After an end whose answer it missed.
    txn.end(instance(100, 1), Commit).unwrap();
    assert_eq!(txn.init(Some(instance(100, 1))), CONCURRENT);
    txn.finish();
    assert_eq!(txn.init(Some(instance(100, 1))), granted(100, 3));
    // In the middle of its own transaction.
    txn.add(instance(100, 3), partitions(&[1])).unwrap();
    assert_eq!(txn.init(Some(instance(100, 3))), CONCURRENT);
    txn.finish();
    assert_eq!(txn.init(Some(instance(100, 3))), granted(100, 5));
}

#[test]
fn an_id_that_was_forgotten_starts_anew_whoever_asks() {
    let mut txn = fresh();
    assert_eq!(txn.init(Some(instance(3, 9))), granted(100, 0));
}

/// Case T4, rule X8: a timeout aborts, fences its producer, and lets it come back.
#[test]
fn a_transaction_that_times_out_is_aborted_and_its_producer_fenced() {
    let mut txn = fresh();
    txn.init_for(2_000, None).unwrap();
    txn.add(instance(100, 0), partitions(&[1])).unwrap();
    txn.pass(1_000);
    txn.add(instance(100, 0), partitions(&[2])).unwrap();
    assert_eq!(txn.coordinator.next_deadline(), Some(NOW.steady_ms + 2_000), "counted from its beginning");
    txn.pass(999);
    txn.tick();
    assert_eq!(txn.state(), TransactionState::Ongoing);
    txn.pass(1);
    txn.tick();
    assert_eq!((txn.state(), txn.markers()), (TransactionState::PrepareAbort, vec![(100, 1, true, Abort, vec![1, 2])]));
    assert_eq!(txn.add(instance(100, 0), partitions(&[1])), FENCED);
    assert_eq!(txn.end(instance(100, 0), Commit), FENCED);
    assert_eq!(txn.init(Some(instance(100, 0))), CONCURRENT);
    txn.finish();
    assert_eq!(txn.end(instance(100, 0), Commit), FENCED);
    assert_eq!(txn.end_v1(instance(100, 0), Commit), FENCED);
    txn.fail_over();
    assert_eq!(txn.init(Some(instance(100, 0))), granted(100, 2), "case T4");
}

/// A clock that jumps says nothing about how long a transaction has been open.
#[test]
fn a_jump_of_the_wall_clock_ends_no_transaction_and_keeps_none_open() {
    for jump_ms in [3_600_000, -3_600_000, i64::MAX / 2, -1_000_000] {
        let mut txn = fresh();
        txn.init(None).unwrap();
        txn.add(instance(100, 0), partitions(&[1])).unwrap();
        txn.now.wall_ms += jump_ms;
        txn.tick();
        assert_eq!(txn.state(), TransactionState::Ongoing, "{jump_ms}");
        txn.pass(TIMEOUT as u64 - 1);
        txn.add(instance(100, 0), partitions(&[2])).unwrap();
        txn.tick();
        assert_eq!(txn.state(), TransactionState::Ongoing, "{jump_ms}");
        txn.pass(1);
        txn.tick();
        assert_eq!(txn.state(), TransactionState::PrepareAbort, "{jump_ms}: rule X8");
        txn.finish();
        assert_eq!(txn.state(), TransactionState::CompleteAbort);
        txn.now.wall_ms -= jump_ms;
        txn.tick();
        assert!(txn.store.contains_key(ID), "{jump_ms}: nor is an id forgotten");
    }
}

/// Another owner counts on by its own wall clock, but gives nobody more than the whole timeout, nor so little that nothing can be done.
#[test]
fn whoever_takes_over_counts_on_and_a_clock_that_is_ahead_leaves_time_to_end() {
    let least = LOADED_LEAST_MS;
    let whole = TIMEOUT as u64;
    let check = |timeout_ms: u64, open_ms: u64, skew_ms: i64, left_ms: u64| {
        let mut txn = fresh();
        txn.init_for(timeout_ms as i32, None).unwrap();
        txn.add(instance(100, 0), partitions(&[1])).unwrap();
        txn.pass(open_ms);
        // The steady clock of another process begins anywhere.
        txn.now = Now { steady_ms: 77, wall_ms: txn.now.wall_ms + skew_ms };
        txn.fail_over();
        let due = txn.coordinator.next_deadline();
        assert_eq!(due, Some(77 + left_ms), "{timeout_ms} ms, open for {open_ms} ms, ahead by {skew_ms} ms");
        assert_eq!(txn.end(instance(100, 0), Commit), granted(100, 1), "and its client may still end it");
    };
    check(whole, 20_000, 0, 40_000);
    check(whole, 20_000, 5_000, 35_000);
    check(whole, 59_000, 0, least);
    check(whole, 20_000, 3_600_000, least);
    check(whole, 20_000, i64::MAX / 2, least);
    check(whole, 20_000, -15_000, 55_000);
    check(whole, 20_000, -3_600_000, whole);
    check(5_000, 4_000, 0, 5_000);
    check(900_000, 30_000, 3_600_000, least);
}

/// Case T7.
#[test]
fn the_timeout_is_bounded() {
    for (timeout_ms, good) in [(900_001, false), (900_000, true), (1, true), (0, false), (-1, false)] {
        let mut txn = fresh();
        let expected = if good { granted(100, 0) } else { Err(ErrorCode::InvalidTransactionTimeout) };
        assert_eq!(txn.init_for(timeout_ms, None), expected, "{timeout_ms}");
    }
    let mut txn = fresh();
    let init = |id: String| Request::Init { id, timeout_ms: TIMEOUT, expected: None };
    assert_eq!(txn.step(init(String::new())), Err(ErrorCode::InvalidRequest));
    assert_eq!(txn.step(init("x".repeat(ID_BYTES_MAX + 1))), Err(ErrorCode::InvalidRequest));
    assert_eq!(txn.step(init("x".repeat(ID_BYTES_MAX))), granted(100, 0));
}

/// Case T9: offsets alone make a transaction.
#[test]
fn a_transaction_of_offsets_alone_is_settled_and_times_out() {
    let mut txn = fresh();
    txn.init(None).unwrap();
    txn.add(instance(100, 0), group("g")).unwrap();
    txn.end(instance(100, 0), Commit).unwrap();
    let settles = |txn: &Fixture, epoch, outcome| {
        let [effect] = &txn.effects[..] else { panic!("{:?}", txn.effects) };
        let end = EndMarker { outcome, coordinator_epoch: CoordinatorEpoch(1) };
        let marker = Marker { producer: ProducerId(100), epoch: ProducerEpoch(epoch), raised: true, end };
        assert_eq!((effect.marker, &effect.parts), (marker, &group("g")));
    };
    settles(&txn, 1, Commit);
    txn.finish();
    assert_eq!(txn.state(), TransactionState::CompleteCommit);
    txn.add(instance(100, 1), group("g")).unwrap();
    txn.pass(TIMEOUT as u64);
    txn.tick();
    settles(&txn, 2, Abort);
}

#[test]
fn whoever_takes_over_completes_what_is_prepared() {
    let mut txn = fresh();
    txn.init(None).unwrap();
    txn.add(instance(100, 0), partitions(&[1, 2])).unwrap();
    txn.end(instance(100, 0), Commit).unwrap();
    txn.fail_over();
    assert_eq!(txn.markers(), [(100, 1, true, Commit, vec![1, 2])], "rule X2: it is final");
    assert_eq!(txn.effects[0].marker.end.coordinator_epoch, CoordinatorEpoch(2), "rule X5");
    assert_eq!(txn.end(instance(100, 0), Commit), CONCURRENT);
    txn.finish();
    txn.fail_over();
    assert_eq!(txn.effects, []);
    assert_eq!(txn.end(instance(100, 0), Commit), granted(100, 1), "rule X4, over a failover");
}

/// Rule X1: the last epoch is for markers; whoever reaches it goes on with another producer id, in the same change.
#[test]
fn used_up_epochs_are_replaced_by_another_producer_id() {
    let mut txn = Fixture::aged(32_765);
    let old = instance(100, 32_765);
    txn.add(old, partitions(&[1])).unwrap();
    assert_eq!(txn.end(old, Commit), granted(500, 0));
    assert_eq!(txn.markers(), [(100, 32_766, true, Commit, vec![1])]);
    // It knows who it is before the transaction is complete.
    assert_eq!(txn.add(instance(500, 0), partitions(&[1])), CONCURRENT);
    assert_eq!(txn.end(old, Commit), CONCURRENT);
    txn.finish();
    assert_eq!(txn.end(old, Commit), granted(500, 0), "rule X4");
    assert_eq!(txn.end(old, Abort), STATE);
    assert_eq!(txn.init(Some(old)), granted(500, 1), "KIP-360: the old one is its last");
    assert_eq!(txn.add(instance(500, 1), partitions(&[1])), DONE);
    assert_eq!(txn.add(old, partitions(&[1])), MAPPING);

    let mut txn = Fixture::aged(32_765);
    assert_eq!(txn.init(Some(old)), granted(500, 0));
    assert_eq!(txn.init(Some(old)), granted(500, 0), "KIP-360");

    let mut txn = Fixture::aged(32_765);
    txn.add(old, partitions(&[1])).unwrap();
    assert_eq!(txn.init(None), CONCURRENT);
    assert_eq!(txn.markers(), [(100, 32_766, true, Abort, vec![1])]);
    txn.finish();
    // Nobody was ever told of this instance.
    assert_eq!(txn.end(instance(100, 32_766), Abort), FENCED);
    assert_eq!(txn.add(instance(100, 32_766), partitions(&[1])), FENCED);
    assert_eq!(txn.init(None), granted(500, 0));

    let mut txn = Fixture::aged(32_765);
    assert_eq!(txn.end(old, Abort), granted(500, 0), "nothing was added");
    assert_eq!(txn.state(), TransactionState::CompleteAbort);
}

#[test]
fn without_producer_ids_clients_are_told_to_retry_and_nothing_changes() {
    let mut coordinator = Coordinator::load(CoordinatorEpoch(1), NOW, []).0;
    let init = |id: &str| Request::Init { id: id.to_owned(), timeout_ms: TIMEOUT, expected: None };
    let step = coordinator.step(NOW, init("a"));
    assert_eq!((step.changes.len(), step.answer), (0, Some(Err(TransactionError::NoProducerId))));
    coordinator.give_producer_ids(5..6);
    coordinator.give_producer_ids(8..9);
    assert_eq!(coordinator.producer_ids_left(), 2);
    for (id, producer) in [("a", 5), ("b", 8)] {
        let answer = coordinator.step(NOW, init(id)).answer;
        assert_eq!(answer, Some(Ok(Granted::Producer(instance(producer, 0)))));
    }
    assert_eq!(coordinator.step(NOW, init("c")).answer, Some(Err(TransactionError::NoProducerId)));
}

#[test]
fn an_operator_aborts_what_is_ongoing_and_nothing_else() {
    let terminate = || Request::Terminate { id: ID.to_owned() };
    let mut txn = fresh();
    assert_eq!(txn.step(terminate()), Err(ErrorCode::TransactionalIdNotFound));
    txn.init(None).unwrap();
    assert_eq!((txn.step(terminate()), txn.state()), (DONE, TransactionState::Empty));
    txn.add(instance(100, 0), partitions(&[1])).unwrap();
    assert_eq!(txn.step(terminate()), DONE);
    assert_eq!(txn.markers(), [(100, 1, true, Abort, vec![1])]);
    assert_eq!(txn.step(terminate()), DONE);
    txn.finish();
    assert_eq!(txn.end(instance(100, 0), Commit), FENCED);
}

#[test]
fn ids_are_forgotten_after_a_week_without_use_and_never_while_something_is_open() {
    let mut txn = fresh();
    txn.init(None).unwrap();
    txn.pass(EXPIRY_MS - 1);
    txn.tick();
    assert!(txn.store.contains_key(ID));
    txn.add(instance(100, 0), partitions(&[1])).unwrap();
    txn.end(instance(100, 0), Commit).unwrap();
    txn.pass(10 * EXPIRY_MS);
    txn.tick();
    assert_eq!((txn.state(), txn.coordinator.next_deadline()), (TransactionState::PrepareCommit, None));
    txn.finish();
    txn.pass(EXPIRY_MS);
    txn.tick();
    assert!(txn.store.is_empty() && txn.coordinator.describe(ID).is_none());
    assert_eq!(txn.add(instance(100, 1), partitions(&[1])), MAPPING);
    assert_eq!(txn.init(None), granted(101, 0));
}

#[test]
fn an_id_is_not_forgotten_at_once_where_the_clock_of_a_new_owner_is_ahead() {
    let mut txn = fresh();
    txn.init(None).unwrap();
    txn.now.wall_ms += 400 * 24 * 3_600_000;
    txn.fail_over();
    txn.pass(LOADED_ID_LEAST_MS - 1);
    txn.tick();
    assert_eq!(txn.add(instance(100, 0), partitions(&[1])), DONE, "it is still known");
    assert_eq!(txn.end(instance(100, 0), Commit), granted(100, 1));
    txn.finish();
    txn.pass(EXPIRY_MS - 1);
    txn.tick();
    assert!(txn.store.contains_key(ID), "what is used is kept for a week from then on");
    txn.pass(1);
    txn.tick();
    assert!(txn.store.is_empty());
}

#[test]
fn a_tick_is_short_and_the_next_one_goes_on() {
    let mut txn = fresh();
    txn.coordinator.give_producer_ids(1_000..2_000);
    for id in 0..250 {
        let init = Request::Init { id: format!("t{id}"), timeout_ms: TIMEOUT, expected: None };
        txn.step(init).unwrap();
    }
    txn.pass(EXPIRY_MS);
    for left in [150, 50, 0, 0] {
        txn.tick();
        assert_eq!(txn.store.len(), left);
    }
}

/// Rule Z5: a record stays below what the metadata store takes.
#[test]
fn a_transaction_has_no_more_parts_than_its_record_can_hold() {
    let mut txn = fresh();
    txn.init(None).unwrap();
    let mut added = 0;
    let refused = loop {
        let next: Vec<u32> = (added..added + 100).collect();
        match txn.add(instance(100, 0), partitions(&next)) {
            DONE => added += 100,
            other => break other,
        }
    };
    assert_eq!(refused, Err(ErrorCode::InvalidRequest));
    assert!(added >= 8_000, "{added}");
    let size = |txn: &Fixture| serde_json::to_vec(&txn.store[ID]).expect("JSON").len();
    assert!(size(&txn) < 64 << 10, "{}", size(&txn));
    let mut txn = fresh();
    txn.init(None).unwrap();
    while txn.add(instance(100, 0), group(&"\u{1}".repeat(txn.store[ID].groups.len() + 1))) == DONE {}
    assert!((40 << 10..64 << 10).contains(&size(&txn)), "{}", size(&txn));
    let topic =
        |topic| Parts { partitions: vec![PartitionId { topic: TopicId(topic), index: u32::MAX }], groups: Vec::new() };
    let mut txn = fresh();
    txn.init(None).unwrap();
    for next in 1.. {
        if txn.add(instance(100, 0), topic(next)) != DONE {
            break;
        }
    }
    assert!((40 << 10..64 << 10).contains(&size(&txn)), "{}", size(&txn));
}

#[test]
fn records_read_back_as_they_were_written() {
    let mut txn = Fixture::aged(32_765);
    let check = |txn: &Fixture| {
        let written = serde_json::to_string(&txn.store[ID]).expect("JSON");
        let read: TransactionRecord = serde_json::from_str(&written).expect("it was written");
        assert_eq!(&read, &txn.store[ID], "{written}");
    };
    check(&txn);
    txn.add(instance(100, 32_765), Parts { groups: vec!["g\"".to_owned()], ..partitions(&[1, 9]) }).unwrap();
    check(&txn);
    txn.end(instance(100, 32_765), Abort).unwrap();
    check(&txn);
    txn.finish();
    check(&txn);
    let written = serde_json::to_string(&txn.store[ID]).expect("JSON");
    for (from, to) in [("\"groups\":[]", "\"groups\":[],\"x\":1"), ("complete-abort", "complete"), ("[]", "[-1]")] {
        let broken = written.replacen(from, to, 1);
        assert_ne!(broken, written, "{from}");
        assert!(serde_json::from_str::<TransactionRecord>(&broken).is_err(), "{broken}");
    }
}

#[test]
fn a_producer_is_found_by_its_id() {
    let mut txn = fresh();
    txn.init(None).unwrap();
    assert_eq!(txn.coordinator.id_of(ProducerId(100)), Some(ID));
    assert_eq!(txn.coordinator.id_of(ProducerId(101)), None);
    let listed: Vec<_> = txn.coordinator.list().map(|(id, record)| (id, record.state)).collect();
    assert_eq!(listed, [(ID, TransactionState::Empty)]);
}

#[test]
fn a_producer_that_cannot_be_verified_is_told_what_it_understands() {
    for (said, told) in [
        (ErrorCode::ProducerFenced, ErrorCode::InvalidProducerEpoch),
        (ErrorCode::ConcurrentTransactions, ErrorCode::NotEnoughReplicas),
        (ErrorCode::NotCoordinator, ErrorCode::NotEnoughReplicas),
        (ErrorCode::TransactionAbortable, ErrorCode::TransactionAbortable),
        (ErrorCode::InvalidProducerIdMapping, ErrorCode::InvalidProducerIdMapping),
    ] {
        assert_eq!(produce_code(said), told, "case T5");
    }
}
