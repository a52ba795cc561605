//! What one commit of a shard holds: as many changes as one transaction takes (rules K8, O1), the last one of each key.

use super::Changes;
use crate::keys::{Key, Keys, ShardKind};
use crate::kv::{Revision, TXN_OPS_MAX, Write};
use crate::store::transition::{BATCH_BYTES_MAX, VALUE_BYTES_MAX};
use bytes::Bytes;

/// Most changes in one commit: the shard's sequence is one operation more.
const CHANGES_MAX: usize = TXN_OPS_MAX - 1;

/// Bytes counted for each change besides its key and value: what the waist counts, and the cluster's prefix.
const CHANGE_OVERHEAD_BYTES: usize = 256;

/// What is left for changes: a commit compares three keys and reads them when it fails.
const CHANGES_BYTES_MAX: usize = BATCH_BYTES_MAX - (16 << 10);

/// A put, or a deletion if there is no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardWrite {
    pub(in crate::store) key: Key,
    pub(in crate::store) value: Option<Bytes>,
}

/// Changes that are committed together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardBatch {
    changes: Changes,
    size: usize,
}

impl ShardWrite {
    /// Says that a shard has nothing left of any topic whose tombstone was laid at or before `seen`, behind the changes that make it true, and
    /// that its owner writes nothing more of these (rule K6).
    #[must_use]
    pub fn purged(kind: ShardKind, shard: u32, seen: Revision) -> ShardWrite {
        ShardWrite { key: Key::ShardPurged { kind, shard }, value: Some(seen.0.to_string().into()) }
    }

    /// Whether no transaction takes it (rules K8, Z5): a batch with it would be `Refused`, however often it is sent.
    #[must_use]
    pub fn is_too_large(&self) -> bool {
        size_of_value(self.value.as_ref()) >= VALUE_BYTES_MAX
            || size(&self.key, self.value.as_ref()) > CHANGES_BYTES_MAX
    }
}

impl ShardBatch {
    /// Adds a change behind those that are in it; a later change of a key replaces an earlier one, so that a batch is as good as
    /// all its changes one after the other.
    ///
    /// # Errors
    /// The batch is full: the change comes back, for the next one. An empty batch takes any.
    pub fn add(&mut self, write: ShardWrite) -> Result<(), ShardWrite> {
        let size = size(&write.key, write.value.as_ref());
        let before = self.changes.get(&write.key).map(|value| size_of_value(value.as_ref()));
        let after = match before {
            Some(before) => self.size - before + size_of_value(write.value.as_ref()),
            None => self.size + size,
        };
        let count = self.changes.len() + usize::from(before.is_none());
        if !self.changes.is_empty() && (count > CHANGES_MAX || after > CHANGES_BYTES_MAX) {
            return Err(write);
        }
        self.changes.insert(write.key, write.value);
        self.size = after;
        Ok(())
    }

    /// Whether there is nothing to commit.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// How many keys it changes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    pub(super) fn writes(&self, keys: &Keys) -> Vec<Write> {
        let write = |(key, value): (&Key, &Option<Bytes>)| match value {
            Some(value) => Write::put(keys.encode(key), value.clone()),
            None => Write::delete(&keys.encode(key)),
        };
        self.changes.iter().map(write).collect()
    }
}

/// An upper bound: in a key each byte of a name takes up to three.
fn size(key: &Key, value: Option<&Bytes>) -> usize {
    let names = match key {
        Key::Group { group, part } => group.len() + part.len(),
        Key::Offsets { group, .. } | Key::PendingOffsets { group, .. } | Key::ShareState { group, .. } => group.len(),
        Key::Transaction(name) => name.len(),
        _ => 0,
    };
    // A deletion has its key twice, as the bounds of an interval.
    CHANGE_OVERHEAD_BYTES + 6 * names + size_of_value(value)
}

fn size_of_value(value: Option<&Bytes>) -> usize {
    value.map_or(0, Bytes::len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::Txn;

    fn write(group: &str, bytes: Option<usize>) -> ShardWrite {
        let key = Key::Group { group: group.to_owned(), part: "group".to_owned() };
        ShardWrite { key, value: bytes.map(|bytes| vec![7; bytes].into()) }
    }

    fn fill(mut make: impl FnMut(usize) -> ShardWrite) -> ShardBatch {
        let mut batch = ShardBatch::default();
        for n in 0.. {
            if batch.add(make(n)).is_err() {
                break;
            }
        }
        batch
    }

    fn transaction(batch: &ShardBatch) -> Txn {
        Txn { then: batch.writes(&Keys::for_cluster("a-cluster-with-a-name")), ..Txn::default() }
    }

    #[test]
    fn a_batch_takes_what_one_transaction_takes() {
        let many = fill(|n| write(&n.to_string(), Some(10)));
        assert_eq!(many.len(), CHANGES_MAX);
        let large = fill(|n| write(&n.to_string(), Some(60 << 10)));
        assert_eq!(large.len(), 8);
        let long = fill(|n| write(&format!("{n}{}", "/".repeat(9000)), None));
        assert!((2..CHANGES_MAX).contains(&long.len()), "{}", long.len());
        for batch in [many, large, long] {
            let size = transaction(&batch).size();
            assert!(size <= CHANGES_BYTES_MAX, "{size}");
        }
    }

    #[test]
    fn what_no_transaction_takes_is_known_beforehand() {
        for (write, too_large) in [
            (write("g", Some(VALUE_BYTES_MAX - 1)), false),
            (write("g", Some(VALUE_BYTES_MAX)), true),
            (write(&"g".repeat(4 << 10), Some(VALUE_BYTES_MAX - 1)), false),
            (write(&"g".repeat(100 << 10), None), true),
        ] {
            assert_eq!(write.is_too_large(), too_large, "{} bytes", size(&write.key, write.value.as_ref()));
        }
    }

    #[test]
    fn the_last_change_of_a_key_counts_and_takes_no_room_twice() {
        let mut batch = ShardBatch::default();
        assert!(batch.is_empty());
        for n in 0..1000 {
            batch.add(write("g", (n % 2 == 0).then_some(60 << 10))).expect("replaces");
        }
        assert_eq!(batch.len(), 1);
        assert!(matches!(batch.writes(&Keys::for_cluster("c"))[..], [Write::Delete(_)]));
        batch.add(write("g", Some(3))).expect("replaces");
        assert!(matches!(&batch.writes(&Keys::for_cluster("c"))[..], [Write::Put { value, .. }] if value.len() == 3));
    }
}
