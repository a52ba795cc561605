//! Whether a batch is of an aborted transaction. Knows only what it was told: the caller has the complete list (rule C2).

use crate::batch::Batch;
use crate::ids::{Offset, ProducerId};
use crate::transactions::AbortedTxn;
use std::collections::HashMap;

/// The aborted transactions that bear on a range of the log.
#[derive(Clone, Debug, Default)]
pub struct AbortedTxns {
    /// First offset and marker of each, in order.
    by_producer: HashMap<ProducerId, Vec<(Offset, Offset)>>,
}

impl AbortedTxns {
    /// Those of `txns`: all that bear on the range to be compacted, as `AbortedSearch` finds them, in any order.
    #[must_use]
    pub fn new(txns: Vec<AbortedTxn>) -> AbortedTxns {
        let mut by_producer: HashMap<ProducerId, Vec<(Offset, Offset)>> = HashMap::new();
        for AbortedTxn { marker, first, producer } in txns {
            by_producer.entry(producer).or_default().push((first, marker));
        }
        by_producer.values_mut().for_each(|txns| txns.sort_unstable());
        AbortedTxns { by_producer }
    }

    /// Whether records of `producer` at `offset`, written in a transaction, are of one of these.
    #[must_use]
    pub fn contains(&self, producer: ProducerId, offset: Offset) -> bool {
        let Some(txns) = self.by_producer.get(&producer) else { return false };
        // One producer's transactions follow each other: only the last that began by then can hold the offset.
        let began = txns.partition_point(|(first, _)| *first <= offset);
        began.checked_sub(1).is_some_and(|last| offset < txns[last].1)
    }

    /// Whether `batch` holds records of an aborted transaction. Markers are none.
    #[must_use]
    pub fn holds(&self, batch: &Batch) -> bool {
        let in_transaction = batch.is_transactional() && !batch.is_control();
        in_transaction && batch.producer().is_some_and(|stamp| self.contains(stamp.id, batch.base_offset()))
    }
}
