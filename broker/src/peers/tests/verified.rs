//! What waits until a coordinator has said which transaction it belongs to (rule X3), in a real shard. The coordinator is the test.

use super::harness::*;
use crate::api::{ApiError, InTransaction};
use crate::partitions::messages::{ShardMsg, Verify};
use millpond_core::replica::{Acks, Input, Live, Transfer};
use millpond_log::batch::{BatchBuilder, NewRecord, ProducerStamp};
use millpond_log::codec::Codec;
use millpond_log::transactions::{EndMarker, Marker, TxnOutcome};
use millpond_log::{Batch, CoordinatorEpoch, ErrorCode, LeaderEpoch, Offset, ProducerEpoch, ProducerId, TimestampMs};
use tokio_util::sync::CancellationToken;

fn transactional(base_sequence: i32) -> Batch {
    let stamp = ProducerStamp { id: ProducerId(7), epoch: ProducerEpoch(0), base_sequence };
    let mut builder = BatchBuilder::new(Codec::None).producer(stamp).transactional();
    builder.push(NewRecord { timestamp: TimestampMs(1), key: None, value: Some(b"v"), headers: &[] });
    builder.build()
}

async fn asked(node: &mut Node) -> Verify {
    let asked = tokio::time::timeout(PATIENCE, node.unverified.recv()).await;
    asked.expect("somebody asks").expect("the shards run")
}

/// The coordinator says yes.
fn confirm(node: &Node, asked: &Verify) {
    let (partition, verified) = (asked.partition, asked.verified);
    node.tell(partition, ShardMsg::Verified { partition, verified, refused: None });
}

async fn answer(answered: Answered) -> Result<Offset, ErrorCode> {
    let answered = tokio::time::timeout(PATIENCE, answered).await.expect("it is answered");
    answered.expect("the shard runs").map(|appended| appended.base).map_err(|error| error.code)
}

/// Rules X3, P3: a client that keeps its epoch was told that its batch takes too long, aborts, and numbers the next transaction's alike.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_when_its_transaction_ends_is_no_part_of_the_next() {
    let store = store().await;
    let mut node = Node::start(1, &store).await;
    let partition = partition(0);
    node.open(partition);
    assign(partition, &[&node], 1, &[&node], 1);
    let older = InTransaction { id: "older".into(), epoch_per_transaction: false, hung_up: CancellationToken::new() };
    let waits = node.produce_in(Some(older.clone()), partition, transactional(0), Acks::All);
    let first = asked(&mut node).await;
    let end = EndMarker { outcome: TxnOutcome::Abort, coordinator_epoch: CoordinatorEpoch(1) };
    let marker = Marker { producer: ProducerId(7), epoch: ProducerEpoch(0), raised: false, end };
    let ended = node.end_transaction(partition, marker);
    assert_eq!(answer(waits).await, Err(ErrorCode::TransactionAbortable));
    assert_eq!(answer(ended).await, Ok(Offset(0)));
    // What is said of the transaction that has ended comes late.
    confirm(&node, &first);
    let next = node.produce_in(Some(older), partition, transactional(0), Acks::All);
    let second = asked(&mut node).await;
    assert_ne!(second.verified.verification, first.verified.verification);
    confirm(&node, &second);
    assert_eq!(answer(next).await, Ok(Offset(1)));
    assert_eq!(node.log(partition).await.len(), 2, "the marker and one batch");
    node.end().await;
}

/// Rules X3, E9: what a transfer of leadership holds back came before a marker that comes once it has failed. The shard finds the end of the
/// transfer and the marker in its queue at once: nothing else runs here before it looks.
#[tokio::test]
async fn what_waits_for_a_transfer_is_no_part_of_a_transaction_after_the_next_marker() {
    let store = store().await;
    let (mut node, heir) = (Node::start(1, &store).await, Node::start(2, &store).await);
    let partition = partition(0);
    node.open(partition);
    assign(partition, &[&node, &heir], 2, &[&node, &heir], 1);
    // The heir is said to live, and does not answer: it lacks this batch, so the transfer waits.
    let _lacks = node.produce(partition, batch(100, 1), Acks::Leader);
    let to = Live { rid: heir.peer.rid, inc: heir.peer.inc };
    let transfer = Transfer { epoch: LeaderEpoch(1), to, within_ms: 600_000 };
    node.tell(partition, ShardMsg::Step { partition, input: Input::Transfer(transfer) });
    let older = InTransaction { id: "older".into(), epoch_per_transaction: false, hung_up: CancellationToken::new() };
    let held = node.produce_in(Some(older.clone()), partition, transactional(0), Acks::All);
    let mut view = node.view(partition);
    tokio::time::timeout(PATIENCE, view.wait_for(|view| view.visible.end == Offset(1)))
        .await
        .expect("in time")
        .expect("it runs");
    // The heir is gone, and so is the transfer; then the marker.
    let end = EndMarker { outcome: TxnOutcome::Abort, coordinator_epoch: CoordinatorEpoch(1) };
    let marker = Marker { producer: ProducerId(7), epoch: ProducerEpoch(0), raised: false, end };
    assign(partition, &[&node, &heir], 1, &[&node], 2);
    let ended = node.end_transaction(partition, marker);
    assert_eq!(answer(held).await, Err(ErrorCode::TransactionAbortable));
    assert_eq!(answer(ended).await, Ok(Offset(1)));
    assert_eq!(node.log(partition).await.len(), 2, "a batch and the marker");
    node.end().await;
    heir.end().await;
}

/// A client whose transactions have an epoch each.
fn newer() -> Option<InTransaction> {
    Some(InTransaction { id: "newer".into(), epoch_per_transaction: true, hung_up: CancellationToken::new() })
}

/// The marker of the transaction before, whose end was decided when the client was told its epoch.
fn marker_before() -> Marker {
    let end = EndMarker { outcome: TxnOutcome::Commit, coordinator_epoch: CoordinatorEpoch(1) };
    Marker { producer: ProducerId(7), epoch: ProducerEpoch(0), raised: true, end }
}

/// Rule X3: what came to be known of the producer voids what was asked, and so the next batch asks anew. The batch before it, which waits
/// for the older answer, is appended first all the same: refused as out of order, the later one would end its client, which had an
/// acknowledgement of the earlier one when it heard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_of_a_producer_are_appended_in_order_though_a_marker_comes_while_they_wait() {
    let store = store().await;
    let mut node = Node::start(1, &store).await;
    let partition = partition(0);
    node.open(partition);
    assign(partition, &[&node], 1, &[&node], 1);
    let first = node.produce_in(newer(), partition, transactional(0), Acks::All);
    let before = asked(&mut node).await;
    assert_eq!(answer(node.end_transaction(partition, marker_before())).await, Ok(Offset(0)));
    let second = node.produce_in(newer(), partition, transactional(1), Acks::All);
    let after = asked(&mut node).await;
    assert_ne!(before.verified.verification, after.verified.verification);
    confirm(&node, &before);
    confirm(&node, &after);
    assert_eq!(answer(first).await, Ok(Offset(1)));
    assert_eq!(answer(second).await, Ok(Offset(2)));
    node.end().await;
}

/// Rule X3: as above, where the answer to what was asked first comes before anybody asks again, is a refusal, or never comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_that_wait_go_by_the_newest_question_whatever_becomes_of_an_older_one() {
    let store = store().await;
    let mut node = Node::start(1, &store).await;
    let partition = partition(0);
    node.open(partition);
    assign(partition, &[&node], 1, &[&node], 1);
    let first = node.produce_in(newer(), partition, transactional(0), Acks::All);
    let before = asked(&mut node).await;
    assert_eq!(answer(node.end_transaction(partition, marker_before())).await, Ok(Offset(0)));
    // Nobody asked since: the batch is looked at again, and asks itself.
    confirm(&node, &before);
    let again = asked(&mut node).await;
    let known_again =
        Marker { end: EndMarker { coordinator_epoch: CoordinatorEpoch(2), ..marker_before().end }, ..marker_before() };
    assert_eq!(answer(node.end_transaction(partition, known_again)).await, Ok(Offset(1)));
    let second = node.produce_in(newer(), partition, transactional(1), Acks::All);
    let after = asked(&mut node).await;
    let refused = Some(ApiError::new(ErrorCode::NotEnoughReplicas, "the coordinator moved"));
    node.tell(partition, ShardMsg::Verified { partition, verified: again.verified, refused });
    confirm(&node, &after);
    assert_eq!(answer(first).await, Ok(Offset(2)));
    assert_eq!(answer(second).await, Ok(Offset(3)));
    node.end().await;
}

/// Rules X3, E9: what waits for a coordinator came before what a transfer of leadership holds back.
#[tokio::test]
async fn batches_of_a_producer_are_appended_in_order_though_a_transfer_begins_while_they_wait() {
    let store = store().await;
    let (mut node, heir) = (Node::start(1, &store).await, Node::start(2, &store).await);
    let partition = partition(0);
    node.open(partition);
    assign(partition, &[&node, &heir], 2, &[&node, &heir], 1);
    let first = node.produce_in(newer(), partition, transactional(0), Acks::Leader);
    let before = asked(&mut node).await;
    let _lacks = node.produce(partition, batch(100, 1), Acks::Leader);
    let to = Live { rid: heir.peer.rid, inc: heir.peer.inc };
    let transfer = Transfer { epoch: LeaderEpoch(1), to, within_ms: 600_000 };
    node.tell(partition, ShardMsg::Step { partition, input: Input::Transfer(transfer) });
    let second = node.produce_in(newer(), partition, transactional(1), Acks::Leader);
    confirm(&node, &before);
    // The heir is gone, and so is the transfer.
    assign(partition, &[&node, &heir], 1, &[&node], 2);
    assert_eq!(answer(first).await, Ok(Offset(1)));
    assert_eq!(answer(second).await, Ok(Offset(2)));
    node.end().await;
    heir.end().await;
}

/// Rule X3: what waits while its leader is deposed is answered at once, and is no part of what begins when the same broker leads again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_a_coordinator_is_told_when_its_leader_is_deposed() {
    let store = store().await;
    let (mut node, other) = (Node::start(1, &store).await, Node::start(2, &store).await);
    let partition = partition(0);
    node.open(partition);
    assign(partition, &[&node], 1, &[&node], 1);
    let first = node.produce_in(newer(), partition, transactional(0), Acks::All);
    let before = asked(&mut node).await;
    assign_in(LeaderEpoch(2), partition, &[&other, &node], 2, &[&node], 2);
    assert_eq!(answer(first).await, Err(ErrorCode::NotLeaderOrFollower));
    // Nobody waits for this any more.
    confirm(&node, &before);
    assign_in(LeaderEpoch(3), partition, &[&node], 1, &[&node], 3);
    let again = node.produce_in(newer(), partition, transactional(0), Acks::All);
    let after = asked(&mut node).await;
    confirm(&node, &after);
    assert_eq!(answer(again).await, Ok(Offset(0)));
    node.end().await;
    other.end().await;
}

/// Rules X3, X5: a marker that comes late ends nothing of what a later instance of its producer has begun.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_marker_of_an_older_epoch_drops_nothing_that_waits() {
    let store = store().await;
    let mut node = Node::start(1, &store).await;
    let partition = partition(0);
    node.open(partition);
    assign(partition, &[&node], 1, &[&node], 1);
    let keeps_epoch =
        InTransaction { id: "older".into(), epoch_per_transaction: false, hung_up: CancellationToken::new() };
    let stamp = ProducerStamp { id: ProducerId(7), epoch: ProducerEpoch(2), base_sequence: 0 };
    let mut builder = BatchBuilder::new(Codec::None).producer(stamp).transactional();
    builder.push(NewRecord { timestamp: TimestampMs(1), key: None, value: Some(b"v"), headers: &[] });
    let waits = node.produce_in(Some(keeps_epoch), partition, builder.build(), Acks::All);
    let before = asked(&mut node).await;
    let late = Marker { epoch: ProducerEpoch(1), ..marker_before() };
    assert_eq!(answer(node.end_transaction(partition, late)).await, Ok(Offset(0)));
    // It voids the question, as every marker does.
    confirm(&node, &before);
    let after = asked(&mut node).await;
    confirm(&node, &after);
    assert_eq!(answer(waits).await, Ok(Offset(1)));
    node.end().await;
}

/// Rules X3, P6: of a client that keeps its epoch any batch may be the first that a partition sees. One that its coordinator could not vouch for
/// yet, or whose leader was deposed while it waited, is not overtaken by the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_batch_that_waited_and_was_refused_is_not_overtaken() {
    let store = store().await;
    let mut node = Node::start(1, &store).await;
    let partition = partition(0);
    node.open(partition);
    assign(partition, &[&node], 1, &[&node], 1);
    let keeps_epoch =
        || Some(InTransaction { id: "older".into(), epoch_per_transaction: false, hung_up: CancellationToken::new() });
    let first = node.produce_in(keeps_epoch(), partition, transactional(4), Acks::All);
    let before = asked(&mut node).await;
    let refused = Some(ApiError::new(ErrorCode::NotEnoughReplicas, "the coordinator moves"));
    node.tell(partition, ShardMsg::Verified { partition, verified: before.verified, refused });
    let second = node.produce_in(keeps_epoch(), partition, transactional(5), Acks::All);
    assert_eq!(answer(first).await, Err(ErrorCode::NotEnoughReplicas));
    assert_eq!(answer(second).await, Err(ErrorCode::NotEnoughReplicas));
    let first = node.produce_in(keeps_epoch(), partition, transactional(4), Acks::All);
    asked(&mut node).await;
    assign_in(LeaderEpoch(2), partition, &[&node], 1, &[&node], 2);
    let second = node.produce_in(keeps_epoch(), partition, transactional(5), Acks::All);
    assert_eq!(answer(first).await, Err(ErrorCode::NotLeaderOrFollower));
    assert_eq!(answer(second).await, Err(ErrorCode::NotEnoughReplicas));
    let first = node.produce_in(keeps_epoch(), partition, transactional(4), Acks::All);
    let after = asked(&mut node).await;
    confirm(&node, &after);
    assert_eq!(answer(first).await, Ok(Offset(0)));
    assert_eq!(answer(node.produce_in(keeps_epoch(), partition, transactional(5), Acks::All)).await, Ok(Offset(1)));
    node.end().await;
}
