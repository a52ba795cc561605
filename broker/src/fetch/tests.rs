//! Reads of committed records (rules X6, X7, T7, F5): what a client sees of a log with transactions is what a model says, wherever the log lies.

mod harness;

use super::*;
use harness::{Log, World};
use millpond_log::transactions::TxnOutcome;
use millpond_log::{ProducerId, TimestampMs};
use proptest::prelude::*;
use std::collections::BTreeSet;

const EVERYTHING: usize = 1 << 20;

/// What a client of Kafka's makes of an answer under `read_committed`: the offsets of records that it hands on. The filter is written
/// after Kafka's description of the protocol, apart from the SDK's.
fn shown(fetched: &FetchedPartition, position: Offset) -> Vec<u64> {
    let mut ahead = fetched.aborted.clone().expect("a reader of committed records gets the list");
    let mut aborting = BTreeSet::new();
    let mut shown = Vec::new();
    for batch in &fetched.batches {
        let last = Offset(batch.end_offset().0 - 1);
        aborting.extend(ahead.extract_if(.., |txn| txn.first_offset <= last).map(|txn| txn.producer));
        let producer = batch.producer().map(|stamp| stamp.id);
        let aborts = batch.is_control()
            && batch.end_marker().expect("a sound marker").is_some_and(|end| end.outcome == TxnOutcome::Abort);
        if aborts {
            aborting.remove(&producer.expect("a marker is somebody's"));
        }
        let left_out = batch.is_transactional() && producer.is_some_and(|id| aborting.contains(&id));
        if !batch.is_control() && !left_out {
            shown.extend((batch.base_offset().0..batch.end_offset().0).filter(|offset| *offset >= position.0));
        }
    }
    shown
}

#[derive(Clone, Copy, Debug)]
enum Op {
    /// Records of nobody's transaction.
    Plain {
        records: u64,
    },
    /// Records of a producer's transaction, which begins with them if none is open.
    Write {
        producer: u64,
        records: u64,
    },
    End {
        producer: u64,
        outcome: TxnOutcome,
    },
    /// What the rules let go goes to object storage.
    Flush,
}

/// What a log holds, said in the plainest way.
#[derive(Default)]
struct Model {
    /// Producer of each record, if it is in a transaction; `None` for markers.
    offsets: Vec<Option<Option<u64>>>,
    /// (producer, first offset).
    open: Vec<(u64, u64)>,
    /// (producer, first offset, marker) of those that were aborted.
    aborted: Vec<(u64, u64, u64)>,
}

impl Model {
    fn stable(&self) -> u64 {
        self.open.iter().map(|(_, first)| *first).min().unwrap_or(self.offsets.len() as u64)
    }

    fn take(&mut self, op: Op) {
        let end = self.offsets.len() as u64;
        match op {
            Op::Plain { records } => self.offsets.extend((0..records).map(|_| Some(None))),
            Op::Write { producer, records } => {
                if self.open.iter().all(|(open, _)| *open != producer) {
                    self.open.push((producer, end));
                }
                self.offsets.extend((0..records).map(|_| Some(Some(producer))));
            }
            Op::End { producer, outcome } => {
                let at = self.open.iter().position(|(open, _)| *open == producer).expect("it is open");
                let (_, first) = self.open.remove(at);
                if outcome == TxnOutcome::Abort {
                    self.aborted.push((producer, first, end));
                }
                self.offsets.push(None);
            }
            Op::Flush => {}
        }
    }

    fn is_open(&self, producer: u64) -> bool {
        self.open.iter().any(|(open, _)| *open == producer)
    }

    /// The committed records of these offsets, in order.
    fn committed(&self, from: u64, to: u64) -> Vec<u64> {
        let aborted = |offset: u64, producer: u64| {
            self.aborted.iter().any(|(id, first, marker)| *id == producer && (*first..*marker).contains(&offset))
        };
        let seen = |offset: &u64| match self.offsets[*offset as usize] {
            None => false,
            Some(None) => true,
            Some(Some(producer)) => !aborted(*offset, producer),
        };
        (from..to).filter(seen).collect()
    }

    /// What an answer of these offsets has to list, in order.
    fn listed(&self, read: Range<Offset>) -> Vec<(u64, u64)> {
        let bears = |(_, first, marker): &&(u64, u64, u64)| *marker >= read.start.0 && *first < read.end.0;
        let mut listed: Vec<_> = self.aborted.iter().filter(bears).map(|(id, first, _)| (*first, *id)).collect();
        listed.sort_unstable();
        listed
    }
}

/// What is wrong with an answer by itself, and which records a client sees of it.
fn judge(model: &Model, fetched: &FetchedPartition, position: Offset) -> Result<Vec<u64>, TestCaseError> {
    prop_assert!(fetched.error.is_none(), "{:?}", fetched.error);
    let listed: Vec<_> = fetched.aborted.iter().flatten().map(|txn| (txn.first_offset.0, txn.producer.0)).collect();
    let read = covered(&fetched.batches);
    prop_assert_eq!(listed, read.clone().map_or_else(Vec::new, |read| model.listed(read)), "rule X7");
    prop_assert!(read.is_none_or(|read| read.end <= fetched.last_stable), "rule F1: nothing at or above the LSO");
    Ok(shown(fetched, position))
}

/// Reads as a client does from `from` on, until there is no more, in bites of `bite` bytes. The records seen, and where it ends.
async fn drain(
    log: &Log,
    model: &Model,
    from: u64,
    bite: usize,
    elsewhere: bool,
) -> Result<(Vec<u64>, u64), TestCaseError> {
    let (mut position, mut seen) = (Offset(from), Vec::new());
    loop {
        let fetched = match elsewhere {
            false => log.fetch(position, bite, Isolation::ReadCommitted).await,
            true => log.fetch_elsewhere(position, bite).await,
        };
        if elsewhere && fetched.error.as_ref().is_some_and(|error| error.code == ErrorCode::NotLeaderOrFollower) {
            return Ok((seen, position.0));
        }
        seen.extend(judge(model, &fetched, position)?);
        match fetched.batches.last() {
            Some(last) => position = last.end_offset(),
            None => return Ok((seen, position.0)),
        }
    }
}

fn op() -> impl Strategy<Value = Op> {
    let outcome = prop_oneof![Just(TxnOutcome::Abort), Just(TxnOutcome::Commit)];
    prop_oneof![
        1 => (1u64..3).prop_map(|records| Op::Plain { records }),
        4 => (0u64..4, 1u64..3).prop_map(|(producer, records)| Op::Write { producer, records }),
        3 => (0u64..4, outcome).prop_map(|(producer, outcome)| Op::End { producer, outcome }),
        2 => Just(Op::Flush),
    ]
}

async fn one_history(
    log: &mut Log,
    ops: &[Op],
    positions: &[(prop::sample::Index, usize)],
) -> Result<(), TestCaseError> {
    let mut model = Model::default();
    for op in ops {
        match *op {
            Op::Plain { records } => log.plain(records).await,
            Op::Write { producer, records } => log.write(ProducerId(producer), records).await,
            Op::End { producer, .. } if !model.is_open(producer) => continue,
            Op::End { producer, outcome } => log.end(ProducerId(producer), outcome).await,
            Op::Flush => log.flush().await,
        }
        model.take(*op);
    }
    let (end, stable) = (model.offsets.len() as u64, model.stable());
    let view = log.view();
    prop_assert_eq!((view.visible.hw.0, view.visible.lso.0), (end, stable), "rule X6");
    for (position, bite) in positions {
        let from = position.index(end as usize + 1) as u64;
        let (seen, reached) = drain(log, &model, from, *bite, false).await?;
        prop_assert_eq!(reached, from.max(stable));
        prop_assert_eq!(seen, model.committed(from.min(stable), stable), "from {}", from);
        let (seen, reached) = drain(log, &model, from, *bite, true).await?;
        // What goes up meanwhile may be seen already.
        prop_assert!(reached >= from.max(view.manifest.stable_end.0) && reached <= from.max(stable), "rule T7");
        prop_assert_eq!(seen, model.committed(from.min(reached), reached), "elsewhere from {}", from);
    }
    Ok(())
}

/// For any interleaving of producers, outcomes, flushes and positions, a reader of committed records sees exactly those, in order, here and
/// where no replica is; what it is told of aborted transactions is what overlaps each answer, no more. Segments end inside transactions
/// where `segment.ms` makes tails overdue (rule T1).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_of_committed_records_see_exactly_those_however_the_log_is_cut() {
    let world = World::start().await;
    let strategy = (
        prop::collection::vec(op(), 1..40),
        prop::collection::vec((any::<prop::sample::Index>(), prop_oneof![Just(1), Just(300), Just(EVERYTHING)]), 1..4),
        any::<bool>(),
    );
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(96));
    let runtime = tokio::runtime::Handle::current();
    tokio::task::block_in_place(|| {
        let run = runner.run(&strategy, |(ops, positions, overdue)| {
            runtime.block_on(async {
                let mut log = world.topic(if overdue { "1" } else { "600000" }).await;
                one_history(&mut log, &ops, &positions).await
            })
        });
        run.unwrap_or_else(|failure| panic!("{failure}"));
    });
}

/// Case T1: offsets 0 to 4 of an aborted transaction, its marker at 5, 6 to 9 of a committed one, its marker at 10.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t1_aborted_records_are_listed_for_whoever_reads_a_part_of_them() {
    let mut world = World::start().await;
    let mut log = world.topic("600000").await;
    log.write(ProducerId(1), 5).await;
    log.end(ProducerId(1), TxnOutcome::Abort).await;
    log.write(ProducerId(2), 4).await;
    log.end(ProducerId(2), TxnOutcome::Commit).await;
    let name = log.name().to_owned();
    // In the tail, after a restart that replays it, in object storage, and after a restart with an empty tail.
    for (flush, restart) in [(false, false), (false, true), (true, false), (true, true)] {
        if restart {
            world = world.restart().await;
            log = world.find(&name).await;
        }
        if flush {
            log.flush().await;
        }
        for from in [0, 3, 5] {
            let fetched = log.fetch(Offset(from), EVERYTHING, Isolation::ReadCommitted).await;
            let listed: Vec<_> = fetched.aborted.iter().flatten().map(|txn| (txn.producer, txn.first_offset)).collect();
            assert_eq!(listed, [(ProducerId(1), Offset(0))], "from {from}, {flush} {restart}");
            assert_eq!(shown(&fetched, Offset(from)), [6, 7, 8, 9]);
            assert_eq!((fetched.last_stable, fetched.high_watermark), (Offset(11), Offset(11)));
        }
        assert_eq!(log.fetch(Offset(6), EVERYTHING, Isolation::ReadCommitted).await.aborted, Some(vec![]));
        let all = log.fetch(Offset(0), EVERYTHING, Isolation::ReadUncommitted).await;
        assert_eq!((all.aborted, all.batches.len()), (None, 4), "null at isolation 0");
    }
    world.stop().await;
}

/// Case T3: a transaction that hangs holds what is stable; a marker, whoever has it written, lets it go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t3_a_hanging_transaction_holds_the_last_stable_offset_until_it_is_aborted() {
    let world = World::start().await;
    let mut log = world.topic("600000").await;
    log.plain(2).await;
    log.write(ProducerId(1), 1).await;
    log.plain(3).await;
    let fetched = log.fetch(Offset(0), EVERYTHING, Isolation::ReadCommitted).await;
    assert_eq!((fetched.last_stable, fetched.high_watermark), (Offset(2), Offset(6)));
    assert_eq!(shown(&fetched, Offset(0)), [0, 1]);
    assert_eq!(log.latest(Isolation::ReadCommitted).await, Offset(2), "ListOffsets latest is the LSO");
    assert_eq!(log.latest(Isolation::ReadUncommitted).await, Offset(6));
    let waiting = log.waiting_fetch(Offset(2));
    log.end(ProducerId(1), TxnOutcome::Abort).await;
    let fetched = waiting.await.expect("it does not panic");
    assert_eq!(shown(&fetched, Offset(2)), [3, 4, 5], "a long poll wakes when the transaction ends");
    assert_eq!(log.latest(Isolation::ReadCommitted).await, Offset(7));
    world.stop().await;
}

/// As Kafka's delayed fetch has it: a reader at the end of a topic learns of its deletion then, and its broker does not spin until it does.
#[tokio::test]
async fn a_fetch_that_waits_in_a_topic_that_is_deleted_is_answered_at_once() {
    let world = World::start().await;
    for (by_id, expected) in [(false, ErrorCode::UnknownTopicOrPartition), (true, ErrorCode::UnknownTopicId)] {
        let mut log = world.topic("600000").await;
        log.plain(2).await;
        let mut waiting = std::pin::pin!(log.fetch_for_long(Offset(2), by_id));
        assert!(futures::poll!(&mut waiting).is_pending(), "it waits in the topic that is there");
        let (fetched, ()) = tokio::join!(waiting, log.delete());
        assert_eq!(fetched.error.map(|error| error.code), Some(expected));
    }
    world.stop().await;
}

#[tokio::test]
async fn a_fetch_that_waits_on_a_replica_that_is_dropped_is_sent_to_the_leader() {
    let world = World::start().await;
    let mut log = world.topic("600000").await;
    log.plain(2).await;
    let mut waiting = std::pin::pin!(log.fetch_for_long(Offset(2), false));
    assert!(futures::poll!(&mut waiting).is_pending(), "it waits for records");
    // The catalog has not heard of it yet.
    log.drop_replica();
    assert_eq!(waiting.await.error.map(|error| error.code), Some(ErrorCode::NotLeaderOrFollower));
    world.stop().await;
}

/// Case T3: what was found may have ended meanwhile, and the same producer have begun another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_ends_the_transaction_that_was_found_and_no_later_one_of_the_same_producer() {
    let world = World::start().await;
    let mut log = world.topic("600000").await;
    log.plain(3).await;
    log.write(ProducerId(7), 2).await;
    for wrong in [0, 2, 4, 5] {
        assert_eq!(log.abort_from(ProducerId(7), Offset(wrong)).await, Err(ErrorCode::InvalidTxnState), "{wrong}");
    }
    assert_eq!(log.latest(Isolation::ReadCommitted).await, Offset(3), "nothing was appended for it");
    log.abort_from(ProducerId(7), Offset(3)).await.expect("that is where it begins");
    assert_eq!(log.latest(Isolation::ReadCommitted).await, Offset(6));
    assert_eq!(log.abort_from(ProducerId(7), Offset(3)).await, Err(ErrorCode::InvalidTxnState), "it has ended");
    world.stop().await;
}

/// Rule F5: after an unclean election another log may be there than the view knows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_of_another_log_than_the_view_are_told_apart() {
    let world = World::start().await;
    let mut log = world.topic("600000").await;
    log.plain(2).await;
    let batches = log.fetch(Offset(0), EVERYTHING, Isolation::ReadCommitted).await.batches;
    assert!(is_of(&log.view(), &batches) && is_of(&log.view(), &[]));
    let mut other = batches[0].clone();
    other.place(Offset(0), LeaderEpoch(batches[0].leader_epoch().0 + 1));
    assert!(!is_of(&log.view(), &[other]));
    world.stop().await;
}

/// Case T11: each transaction lies in a segment of its own; a reader reads through all of them to the end, for one object's index each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t11_a_reader_reaches_the_end_over_many_segments_that_end_with_markers() {
    let world = World::start().await;
    let mut log = world.topic("600000").await;
    let mut model = Model::default();
    for txn in 0..60 {
        let outcome = if txn % 2 == 0 { TxnOutcome::Abort } else { TxnOutcome::Commit };
        for op in [Op::Write { producer: 1, records: 2 }, Op::End { producer: 1, outcome }] {
            model.take(op);
        }
        log.write(ProducerId(1), 2).await;
        log.end(ProducerId(1), outcome).await;
        log.flush().await;
    }
    assert_eq!(log.view().manifest.tiered_end, Offset(180), "all of it is in object storage");
    let (seen, reached) = drain(&log, &model, 0, 1, false).await.expect("all is well");
    assert_eq!((seen.len(), reached), (60, 180));
    assert_eq!(seen, model.committed(0, 180));
    world.stop().await;
}

/// What is open for long costs a reader no look into each segment in between (rule T7).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_was_open_for_many_segments_is_told_and_costs_few_reads() {
    let mut world = World::start().await;
    let mut log = world.topic("1").await;
    log.write(ProducerId(9), 1).await;
    for _ in 0..12 {
        log.plain(1).await;
        log.flush_past_stable().await;
    }
    log.end(ProducerId(9), TxnOutcome::Abort).await;
    log.flush().await;
    let name = log.name().to_owned();
    world = world.restart().await;
    let log = world.find(&name).await;
    assert!(log.view().manifest.tiered_end >= Offset(14), "all of it is in object storage");
    let before = world.gets();
    let fetched = log.fetch(Offset(0), 1, Isolation::ReadCommitted).await;
    assert_eq!(fetched.batches.len(), 1, "one byte is asked for, a batch is given");
    assert_eq!(fetched.aborted.map(|list| list.len()), Some(1), "its marker is twelve segments further on");
    // The index and the page of the first segment, and the index of the one with the marker.
    assert!(world.gets() - before <= 4, "{} requests", world.gets() - before);
    world.stop().await;
}

/// Rules G4 and F3: a replica that is not told where the log begins by now finds out when an object is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_deleted_behind_a_replica_s_back_is_no_fault_of_its_storage() {
    let world = World::start().await;
    for (cut_off, code) in [(false, ErrorCode::OffsetOutOfRange), (true, ErrorCode::NotLeaderOrFollower)] {
        let mut log = world.topic("3600000").await;
        for _ in 0..2 {
            log.plain(50).await;
            log.flush().await;
        }
        world.leaves_the_wal(&log).await;
        let read = log.fetch(Offset(10), EVERYTHING, Isolation::ReadCommitted).await;
        assert!(read.error.is_none() && !read.batches.is_empty(), "{:?}", read.error);
        if cut_off {
            log.follow_nobody();
            log.shows(|view| !view.visible.leads).await;
        }
        log.begins_elsewhere(Offset(50)).await;
        for isolation in [Isolation::ReadCommitted, Isolation::ReadUncommitted] {
            let read = log.fetch(Offset(10), EVERYTHING, isolation).await;
            assert_eq!(read.error.map(|error| error.code), Some(code), "cut off: {cut_off}");
        }
        // What the newest manifest names has to be there (S10).
        let view = log.view();
        log.lose(view.manifest.entries().iter()).await;
        let error = log.fetch(Offset(60), EVERYTHING, Isolation::ReadCommitted).await.error.expect("it is lost");
        assert_eq!(error.code, ErrorCode::KafkaStorageError);
        assert!(error.message.contains("is not in the object store"), "{error:?}");
    }
    world.stop().await;
}

/// Rule G4 for searches: they go by the newest manifest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_search_by_time_passes_what_was_deleted_behind_its_back() {
    let world = World::start().await;
    let mut log = world.topic("3600000").await;
    for _ in 0..2 {
        log.plain(50).await;
        log.flush().await;
    }
    assert_eq!(log.at_or_after(TimestampMs(5)).await, Ok(Some(Offset(0))));
    log.begins_elsewhere(Offset(50)).await;
    assert_eq!(log.at_or_after(TimestampMs(5)).await, Ok(Some(Offset(50))));
    world.stop().await;
}
