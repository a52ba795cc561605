//! Replicas that are given up, and come back. The streams are the test's.

use super::harness::*;
use crate::partitions::links::{Answer, Pushed};
use crate::partitions::messages::ShardMsg;
use millpond_core::replica::{Acks, Placed, Push, PushReply, Said};
use millpond_log::{Incarnation, Offset, PartitionId};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// A leader with a log, and a follower without.
async fn two_nodes(partition: PartitionId, batches: u64) -> (Node, Node, Vec<Placed>) {
    let store = store().await;
    let (mut one, two) = (Node::start(1, &store).await, Node::start(2, &store).await);
    one.open(partition);
    assign(partition, &[&one], 1, &[&one], 1);
    for seq in 0..batches {
        acknowledged(vec![one.produce(partition, batch(100, seq), Acks::All)]).await;
    }
    let log = one.log(partition).await;
    (one, two, log)
}

/// A push of this log from its start.
fn push(leader: &Node, to: &Node, partition: PartitionId, nonce: u64, log: &[Placed]) -> UnboundedReceiver<Answer> {
    let (answers, answered) = unbounded_channel();
    let room = log.iter().map(|placed| to.room(placed.batch.size())).collect();
    let (head, batches) = (leader.head(), log.to_vec());
    let push = Push { head, nonce, start: Offset(0), prev_offset: Offset(0), prev_epoch: None, batches };
    to.tell(partition, ShardMsg::Push(Box::new(Pushed { partition, push, room, memory: None, answers })));
    answered
}

/// What is answered next.
async fn next(answered: &mut UnboundedReceiver<Answer>) -> Answer {
    let next = tokio::time::timeout(PATIENCE, answered.recv()).await;
    next.expect("it is answered").expect("the shard runs")
}

/// Waits until the follower has acknowledged so much.
async fn matches(answered: &mut UnboundedReceiver<Answer>, nonce: u64, end: Offset) -> PushReply {
    loop {
        match next(answered).await {
            Answer::Said { reply, .. } if reply.nonce == nonce && reply.said == (Said::Matched { end }) => {
                return reply;
            }
            Answer::Said { .. } => {}
            Answer::Unknown { .. } => panic!("it is there"),
        }
    }
}

/// Rules S5 and L2: a session that begins in between gives no incarnation to a replica that may be dropped in the next moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_to_be_given_up_acknowledges_nothing_whatever_session_begins() {
    let partition = partition(0);
    let (one, mut two, log) = two_nodes(partition, 1).await;
    two.open(partition);
    two.tell(partition, ShardMsg::Leave { partition, leaves: true });
    two.tell(partition, ShardMsg::Session(Some(Incarnation(999))));
    let mut answered = push(&one, &two, partition, 1, &log);
    assert_eq!(next(&mut answered).await, Answer::Unknown { partition, nonce: 1 });
    assert!(answered.recv().await.is_none(), "and nothing more is said to it");
    assert!(two.log(partition).await.is_empty(), "nothing is written");
    // It stays, in the session that began meanwhile.
    two.tell(partition, ShardMsg::Leave { partition, leaves: false });
    let mut answered = push(&one, &two, partition, 2, &log);
    assert_eq!(matches(&mut answered, 2, Offset(1)).await.inc, Incarnation(999));
    one.end().await;
    two.end().await;
}

/// Rule L2: whoever was told that the replica is not there pushes again, and is answered though nothing more is written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_stays_after_all_is_pushed_to_again() {
    let partition = partition(0);
    let (one, mut two, log) = two_nodes(partition, 1).await;
    two.tell(partition, ShardMsg::Session(Some(two.peer.inc)));
    two.open(partition);
    two.tell(partition, ShardMsg::Leave { partition, leaves: true });
    let mut early = push(&one, &two, partition, 1, &log);
    assert_eq!(next(&mut early).await, Answer::Unknown { partition, nonce: 1 });
    meet(&[&one, &two]);
    assign(partition, &[&one, &two], 1, &[&one, &two], 2);
    two.tell(partition, ShardMsg::Leave { partition, leaves: false });
    two.reaches(partition, Offset(1)).await;
    one.end().await;
    two.end().await;
}

/// Rule R8: dropped and opened again while its last batches are on their way to the disk. What becomes durable then is not its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dropped_replica_wrote_becomes_durable_for_nobody() {
    let partition = partition(0);
    let (one, mut two, log) = two_nodes(partition, 20).await;
    two.tell(partition, ShardMsg::Session(Some(two.peer.inc)));
    two.open(partition);
    let _unheard = push(&one, &two, partition, 1, &log);
    two.tell(partition, ShardMsg::Drop { partition });
    two.open(partition);
    // Of the same shard, and durable after all that.
    let other = super::harness::partition(2);
    two.open(other);
    assign(other, &[&two], 1, &[&two], 1);
    acknowledged(vec![two.produce(other, batch(100, 1), Acks::All)]).await;
    let mut answered = push(&one, &two, partition, 2, &log);
    matches(&mut answered, 2, Offset(20)).await;
    assert_eq!(two.log(partition).await.len(), 20);
    one.end().await;
    two.end().await;
}
