//! What waits until a coordinator has said which transaction it belongs to (rule X3), in a real shard. The coordinator is the test.

use super::harness::*;
use crate::api::InTransaction;
use crate::partitions::messages::{ShardMsg, Verify};
use millpond_core::replica::Acks;
use millpond_log::batch::{BatchBuilder, NewRecord, ProducerStamp};
use millpond_log::codec::Codec;
use millpond_log::transactions::{EndMarker, Marker, TxnOutcome};
use millpond_log::{Batch, CoordinatorEpoch, ErrorCode, Offset, ProducerEpoch, ProducerId, TimestampMs};
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
