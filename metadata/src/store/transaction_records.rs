//! The transactional ids of a shard as values: what its owner loads, and what it commits.

use super::shards::{HeldShard, ShardWrite};
use super::{Store, StoreError, codec};
use crate::keys::{Key, ShardKind, Space};
use millpond_core::records::TransactionRecord;
use millpond_core::transactions::Change;

/// What a shard was read back from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TransactionRecords {
    /// Transactional ids and what is known of them.
    pub records: Vec<(String, TransactionRecord)>,
    /// Bytes of their values.
    pub bytes: u64,
}

impl From<Change> for ShardWrite {
    fn from(change: Change) -> ShardWrite {
        ShardWrite { key: Key::Transaction(change.id), value: change.record.as_ref().map(codec::value) }
    }
}

impl Store {
    /// Reads all transactional ids of a shard that the caller has taken (rule O3): nobody else writes them any more, so pages read
    /// one after the other are one state.
    ///
    /// # Errors
    /// As all reads: one record that cannot be read refuses the whole (rule K6).
    ///
    /// # Panics
    /// The shard is none of transactions.
    pub async fn load_transactions(&self, held: &HeldShard) -> Result<TransactionRecords, StoreError> {
        assert_eq!(held.kind(), ShardKind::Txn, "a shard of transactions");
        let mut loaded = TransactionRecords::default();
        for (key, found) in self.list(&Space::TransactionsIn(held.shard())).await?.1 {
            loaded.bytes += found.value.len() as u64;
            let record = codec::record(&self.keys.encode(&key), &found.value, found.revision)?.value;
            let Key::Transaction(id) = key else { unreachable!("the space holds no other keys") };
            loaded.records.push((id, record));
        }
        Ok(loaded)
    }
}
