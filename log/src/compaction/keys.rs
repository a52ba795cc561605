//! The newest offset of each key in a part of the log, in little memory: keys are held as hashes.
//!
//! Two keys of one hash would be taken for one, and the older one's record lost. So the hashes are of 128 bits and keyed at random:
//! whoever does not know the keys cannot make records that collide. With a hash that is not keyed (Kafka's cleaner uses MD5) a producer
//! could have another's record removed.

use super::AbortedTxns;
use crate::batch::{Batch, BatchError};
use crate::ids::Offset;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};

/// Bytes of one slot of the table: hash, offset, and the table's own byte. Up to seven slots of eight are filled, of a power of two: of 26
/// MiB 917 504 keys fit, and of 416 MiB 14 680 064 (`KeyOffsets::keys_in`). While the table grows to that size it takes half as much again.
const SLOT_BYTES: usize = 25;

/// The newest offset of each key in `[from, end)`. Control batches and aborted data have no keys.
#[derive(Debug)]
pub struct KeyOffsets {
    newest: HashMap<KeyHash, Offset, BuildHasherDefault<Hashed>>,
    /// Two, keyed apart: std's are SipHash with 64 bits each.
    hashers: [RandomState; 2],
    keys_max: usize,
    from: Offset,
    end: Offset,
    /// Whether a batch did not fit: nothing that follows it may be noted.
    is_full: bool,
    /// Room for the keys of the batch at hand.
    found: Vec<(KeyHash, Offset)>,
}

impl KeyOffsets {
    /// Holds nothing, with room for `keys_max` keys, and begins at `from`: the end of what earlier passes have noted and gone over.
    #[must_use]
    pub fn new(keys_max: usize, from: Offset) -> KeyOffsets {
        let hashers = [RandomState::new(), RandomState::new()];
        let (newest, found) = (HashMap::default(), Vec::new());
        KeyOffsets { newest, hashers, keys_max, from, end: from, is_full: false, found }
    }

    /// The keys that fit in `bytes` of memory, while they are looked up.
    #[must_use]
    pub fn keys_in(bytes: usize) -> usize {
        let slots = (bytes / SLOT_BYTES).checked_ilog2().map_or(0, |power| 1 << power);
        slots / 8 * 7
    }

    /// Notes the keys of the next batch of the log; those below `from` are passed over.
    ///
    /// `false`, with nothing of the batch noted, when they do not fit: the pass ends before it, and so does each later call. The keys of the
    /// first batch that has any are held all the same, however many, so that a pass always gets on.
    ///
    /// # Errors
    /// As `Batch::records`. Nothing of the batch was noted.
    pub fn note(&mut self, batch: &Batch, aborted: &AbortedTxns) -> Result<bool, BatchError> {
        if batch.end_offset() <= self.end {
            return Ok(true);
        }
        if self.is_full {
            return Ok(false);
        }
        let mut found = std::mem::take(&mut self.found);
        found.clear();
        if !batch.is_control() && !aborted.holds(batch) {
            batch.each_keyed(|record| found.extend(record.key.map(|key| (self.hash(key), record.offset))))?;
        }
        self.is_full = !self.fits(&found);
        if !self.is_full {
            self.newest.extend(found.iter().copied());
            self.end = batch.end_offset();
        }
        self.found = found;
        Ok(!self.is_full)
    }

    /// Whether these keys can be held besides those that are.
    fn fits(&self, found: &[(KeyHash, Offset)]) -> bool {
        let room = self.keys_max.saturating_sub(self.newest.len());
        if found.len() <= room || self.newest.is_empty() {
            return true;
        }
        let unknown = found.iter().map(|(key, _)| key).filter(|key| !self.newest.contains_key(key));
        unknown.collect::<HashSet<&KeyHash>>().len() <= room
    }

    /// The newest offset of `key`, if it is in the noted part.
    #[must_use]
    pub fn newest(&self, key: &[u8]) -> Option<Offset> {
        self.newest.get(&self.hash(key)).copied()
    }

    /// Where the noted part begins.
    #[must_use]
    pub fn from(&self) -> Offset {
        self.from
    }

    /// Offset after the last that is noted.
    #[must_use]
    pub fn end(&self) -> Offset {
        self.end
    }

    /// Keys held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.newest.len()
    }

    /// Whether no key is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.newest.is_empty()
    }

    fn hash(&self, key: &[u8]) -> KeyHash {
        // One thread draws its random keys once and counts on from there. So the second hash is also of other bytes.
        let [first, second] = &self.hashers;
        let (mut first, mut second) = (first.build_hasher(), second.build_hasher());
        first.write(key);
        second.write_u8(1);
        second.write(key);
        KeyHash([first.finish(), second.finish()])
    }
}

/// A key's hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KeyHash([u64; 2]);

impl Hash for KeyHash {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0[0]);
    }
}

/// The hash of what is one already.
#[derive(Debug, Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("`KeyHash` writes a number");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

const _: () = assert!(size_of::<(KeyHash, Offset)>() + 1 == SLOT_BYTES);
