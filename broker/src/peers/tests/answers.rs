//! To whom a follower's shard answers. The streams are the test's.

use super::harness::*;
use crate::partitions::links::{Answer, Pushed};
use crate::partitions::messages::ShardMsg;
use millpond_core::replica::{Acks, Placed, Push, Said};
use millpond_log::Offset;
use tokio::sync::mpsc::unbounded_channel;

/// Rule R8: a broker that stood still has the rest of an old stream before it, when the new one has begun. What is durable is told to the
/// new one: nobody hears the old, and a leader with nothing more to push would wait for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_late_from_an_older_stream_takes_no_answers_from_the_newer() {
    let store = store().await;
    let (mut one, mut two) = (Node::start(1, &store).await, Node::start(2, &store).await);
    let partition = partition(0);
    one.open(partition);
    assign(partition, &[&one], 1, &[&one], 1);
    acknowledged(vec![one.produce(partition, batch(100, 1), Acks::All)]).await;
    let log = one.log(partition).await;
    two.open(partition);
    let head = one.head();
    let push = |nonce: u64, batches: Vec<Placed>| {
        let (answers, answered) = unbounded_channel();
        let room = batches.iter().map(|placed| two.room(placed.batch.size())).collect();
        let push = Push { head, nonce, start: Offset(0), prev_offset: Offset(0), prev_epoch: None, batches };
        two.tell(partition, ShardMsg::Push(Box::new(Pushed { partition, push, room, memory: None, answers })));
        answered
    };
    let mut newer = push(2, log.clone());
    let _older = push(1, log);
    let told = tokio::time::timeout(PATIENCE, async {
        while let Some(answer) = newer.recv().await {
            let Answer::Said { reply, .. } = answer else { panic!("it is there: {answer:?}") };
            assert_eq!(reply.nonce, 2);
            if reply.said == (Said::Matched { end: Offset(1) }) {
                return;
            }
        }
        panic!("the stream's answers end");
    });
    told.await.expect("what is durable is told");
    one.end().await;
    two.end().await;
}
