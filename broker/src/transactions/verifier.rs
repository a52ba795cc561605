//! Asks coordinators about transactions for the leaders on this broker (rule X3), and tells what they said.
//!
//! What waits for an answer waits in the shards, in order, with its memory; each question is answered within bounds of time.

use super::unconfirmed;
use crate::api::ApiError;
use crate::broker::Broker;
use crate::marks::{Confirm, Confirmed};
use crate::partitions::messages::{ShardMsg, Verify};
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use millpond_core::records::ProducerInstance;
use millpond_core::transactions::{Parts, produce_code};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::mpsc::UnboundedReceiver;

/// Questions taken from the queue at once: those of one transaction go to its coordinator together.
const DRAIN_MAX: usize = 1000;

/// Asks for the shards.
pub(crate) struct Verifier {
    pub(crate) broker: Broker,
    /// Bounded by the produce memory: each stands for a batch.
    pub(crate) inbox: UnboundedReceiver<Verify>,
}

/// One transaction, of a client of one kind.
type Transaction = (Arc<str>, ProducerInstance, bool);

impl Verifier {
    /// Asks until no shard can want it any more.
    pub(crate) async fn run(mut self) {
        let mut under_way: FuturesUnordered<BoxFuture<'static, (Vec<Verify>, Confirmed)>> = FuturesUnordered::new();
        let mut drained = Vec::new();
        loop {
            tokio::select! {
                count = self.inbox.recv_many(&mut drained, DRAIN_MAX) => {
                    if count == 0 {
                        return;
                    }
                    let mut transactions: BTreeMap<Transaction, Vec<Verify>> = BTreeMap::new();
                    for verify in drained.drain(..) {
                        transactions.entry(transaction(&verify)).or_default().push(verify);
                    }
                    under_way.extend(transactions.into_iter().map(|(of, verifies)| self.ask(of, verifies)));
                }
                Some((verifies, confirmed)) = under_way.next() => tell(verifies, confirmed),
            }
        }
    }

    fn ask(
        &self,
        (id, producer, add): Transaction,
        verifies: Vec<Verify>,
    ) -> BoxFuture<'static, (Vec<Verify>, Confirmed)> {
        let partitions = verifies.iter().map(|verify| verify.partition).collect();
        let confirm = Confirm { id: id.to_string(), producer, parts: Parts { partitions, groups: Vec::new() }, add };
        let broker = self.broker.clone();
        async move { (verifies, broker.confirm(confirm).await) }.boxed()
    }
}

fn transaction(verify: &Verify) -> Transaction {
    let producer = ProducerInstance { id: verify.verified.producer, epoch: verify.verified.epoch };
    (Arc::clone(&verify.transaction.id), producer, verify.transaction.epoch_per_transaction)
}

fn tell(verifies: Vec<Verify>, confirmed: Confirmed) {
    // Producers know other codes than those who ask coordinators themselves.
    let refused = confirmed.err().map(|code| ApiError { code: produce_code(code), ..unconfirmed(code) });
    for Verify { partition, shard, verified, .. } in verifies {
        // A shard that is gone ends the broker.
        let _ = shard.send(ShardMsg::Verified { partition, verified, refused: refused.clone() });
    }
}
