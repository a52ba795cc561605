//! What the database holds: keys, the history that watches read, and a few counters. Reads and changes them within a
//! transaction of the caller; knows no leases' ends, no requests.

use crate::kv::{Event, Interval, KeyValue, LeaseId, Range, Ranged, Revision};
use bytes::{Buf, BufMut, Bytes};
use redb::{ReadableTable, StorageError, Table, TableDefinition, TableError, WriteTransaction};
use std::ops::Bound;

pub(super) const KEYS: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("keys");
pub(super) const HISTORY: TableDefinition<'static, (u64, u32), &[u8]> = TableDefinition::new("history");
pub(super) const COUNTERS: TableDefinition<'static, &str, u64> = TableDefinition::new("counters");

pub(super) const REVISION: &str = "revision";
pub(super) const COMPACTED: &str = "compacted";
pub(super) const BOOTS: &str = "boots";
pub(super) const IDENTITY: &str = "identity";

/// Bytes of a stored key's revisions and lease, before its value.
const HEAD_BYTES: usize = 24;

const DELETED: u8 = 0;
const PUT: u8 = 1;

/// Most events of one answer to a watch; it still ends with a whole revision.
const EVENTS_MAX: usize = 1000;

/// Most entries of history looked at for one answer, so that a watch of few keys does not hold up the thread.
const EVENTS_SCANNED_MAX: usize = 10_000;

pub(super) fn get(
    keys: &impl ReadableTable<&'static [u8], &'static [u8]>,
    key: &Bytes,
) -> Result<Option<KeyValue>, StorageError> {
    let stored = keys.get(key.as_ref())?;
    stored.map(|stored| decode(key.clone(), stored.value())).transpose()
}

pub(super) fn range(
    keys: &impl ReadableTable<&'static [u8], &'static [u8]>,
    range: &Range,
    revision: u64,
) -> Result<Ranged, StorageError> {
    let mut ranged = Ranged { revision: Revision(revision), found: Vec::new(), more: false };
    let Some(bounds) = bounds(&range.keys) else { return Ok(ranged) };
    for entry in keys.range::<&[u8]>(bounds)? {
        let (key, stored) = entry?;
        if ranged.found.len() == range.limit {
            ranged.more = true;
            break;
        }
        ranged.found.push(decode(Bytes::copy_from_slice(key.value()), stored.value())?);
    }
    Ok(ranged)
}

/// How many keys an interval holds.
pub(super) fn count(
    keys: &impl ReadableTable<&'static [u8], &'static [u8]>,
    interval: &Interval,
) -> Result<u64, StorageError> {
    let Some(bounds) = bounds(interval) else { return Ok(0) };
    keys.range::<&[u8]>(bounds)?.try_fold(0, |count, entry| entry.map(|_| count + 1))
}

/// Start and end of an interval, as redb takes them.
type Bounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// The interval for redb, which panics on one that ends before it starts.
fn bounds(keys: &Interval) -> Option<Bounds<'_>> {
    let start = keys.start.as_ref();
    match keys.end.as_deref() {
        None => Some((Bound::Included(start), Bound::Unbounded)),
        Some(end) if start < end => Some((Bound::Included(start), Bound::Excluded(end))),
        Some(_) => None,
    }
}

/// The events of `keys` from revision `from` on, and the revision up to which they are complete.
pub(super) fn events(
    history: &impl ReadableTable<(u64, u32), &'static [u8]>,
    keys: &Interval,
    from: u64,
    newest: u64,
) -> Result<(Revision, Vec<Event>), StorageError> {
    let mut events = Vec::new();
    let mut complete = from.saturating_sub(1);
    for (scanned, entry) in history.range((from, 0)..)?.enumerate() {
        let (place, stored) = entry?;
        let (revision, index) = place.value();
        if index == 0 && (events.len() >= EVENTS_MAX || scanned >= EVENTS_SCANNED_MAX) {
            return Ok((Revision(complete), events));
        }
        complete = revision;
        let event = decode_event(stored.value(), revision)?;
        if keys.contains(event.key()) {
            events.push(event);
        }
    }
    // Every revision that changed something is in the history; the newest may be one from before it was compacted.
    Ok((Revision(complete.max(newest)), events))
}

/// The tables of one write transaction, and the revision it has reached.
pub(super) struct Changes<'t> {
    pub(super) keys: Table<'t, &'static [u8], &'static [u8]>,
    pub(super) history: Table<'t, (u64, u32), &'static [u8]>,
    pub(super) counters: Table<'t, &'static str, u64>,
    pub(super) revision: u64,
    /// Changes made at the revision after `revision`.
    pending: u32,
}

impl<'t> Changes<'t> {
    pub(super) fn open(write: &'t WriteTransaction) -> Result<Changes<'t>, TableError> {
        let counters = write.open_table(COUNTERS)?;
        // An empty store stands at 1, as etcd does.
        let revision = counters.get(REVISION)?.map_or(1, |revision| revision.value());
        Ok(Changes {
            keys: write.open_table(KEYS)?,
            history: write.open_table(HISTORY)?,
            counters,
            revision,
            pending: 0,
        })
    }

    pub(super) fn counter(&self, name: &str) -> Result<u64, StorageError> {
        Ok(self.counters.get(name)?.map_or(0, |counter| counter.value()))
    }

    /// The keys under leases. Reads every key's record, but holds no values.
    pub(super) fn leased(&self) -> Result<Vec<(Bytes, LeaseId)>, StorageError> {
        let mut leased = Vec::new();
        for entry in self.keys.iter()? {
            let (key, stored) = entry?;
            let head = stored.value().get(..HEAD_BYTES).unwrap_or_default();
            let key = Bytes::copy_from_slice(key.value());
            if let Some(lease) = decode(key.clone(), head)?.lease {
                leased.push((key, lease));
            }
        }
        Ok(leased)
    }

    /// Stores a value; returns what was there.
    pub(super) fn put(
        &mut self,
        key: &Bytes,
        value: &Bytes,
        lease: Option<LeaseId>,
    ) -> Result<Option<KeyValue>, StorageError> {
        let before = get(&self.keys, key)?;
        let mod_revision = Revision(self.revision + 1);
        let kv = KeyValue {
            key: key.clone(),
            value: value.clone(),
            create_revision: before.as_ref().map_or(mod_revision, |before| before.create_revision),
            mod_revision,
            lease,
        };
        self.keys.insert(key.as_ref(), encode(&kv).as_slice())?;
        self.record(&encode_event(&Event::Put(kv)))?;
        Ok(before)
    }

    /// Deletes a key that is there.
    pub(super) fn delete(&mut self, key: &Bytes) -> Result<(), StorageError> {
        self.keys.remove(key.as_ref())?;
        let mod_revision = Revision(self.revision + 1);
        self.record(&encode_event(&Event::Delete { key: key.clone(), mod_revision }))
    }

    fn record(&mut self, event: &[u8]) -> Result<(), StorageError> {
        self.history.insert((self.revision + 1, self.pending), event)?;
        self.pending += 1;
        Ok(())
    }

    /// Ends one transaction of the waist: if it changed something, the revision moves by one.
    pub(super) fn seal(&mut self) -> Result<u64, StorageError> {
        if self.pending > 0 {
            self.revision += 1;
            self.pending = 0;
            self.counters.insert(REVISION, self.revision)?;
        }
        Ok(self.revision)
    }

    /// Forgets history before `revision`.
    pub(super) fn compact(&mut self, revision: u64) -> Result<(), StorageError> {
        self.history.retain_in(..(revision, 0), |_, _| false)?;
        self.counters.insert(COMPACTED, revision)?;
        Ok(())
    }
}

fn encode(kv: &KeyValue) -> Vec<u8> {
    let mut stored = Vec::with_capacity(HEAD_BYTES + kv.value.len());
    put_record(&mut stored, kv);
    stored
}

fn put_record(to: &mut Vec<u8>, kv: &KeyValue) {
    to.put_u64_le(kv.create_revision.0);
    to.put_u64_le(kv.mod_revision.0);
    to.put_u64_le(kv.lease.map_or(0, |lease| lease.0));
    to.put_slice(&kv.value);
}

fn decode(key: Bytes, mut stored: &[u8]) -> Result<KeyValue, StorageError> {
    if stored.len() < HEAD_BYTES {
        return Err(StorageError::Corrupted(format!("the record of {key:?} is cut short")));
    }
    let create_revision = Revision(stored.get_u64_le());
    let mod_revision = Revision(stored.get_u64_le());
    let lease = Some(stored.get_u64_le()).filter(|&lease| lease != 0).map(LeaseId);
    Ok(KeyValue { key, value: Bytes::copy_from_slice(stored), create_revision, mod_revision, lease })
}

pub(super) fn encode_event(event: &Event) -> Vec<u8> {
    let mut stored = Vec::new();
    match event {
        Event::Delete { key, .. } => {
            stored.put_u8(DELETED);
            stored.put_slice(key);
        }
        Event::Put(kv) => {
            stored.put_u8(PUT);
            stored.put_u32_le(u32::try_from(kv.key.len()).expect("a request is far below 4 GiB"));
            stored.put_slice(&kv.key);
            put_record(&mut stored, kv);
        }
    }
    stored
}

pub(super) fn decode_event(mut stored: &[u8], revision: u64) -> Result<Event, StorageError> {
    let cut_short = || StorageError::Corrupted(format!("the history of revision {revision} is cut short"));
    match stored.try_get_u8() {
        Ok(DELETED) => Ok(Event::Delete { key: Bytes::copy_from_slice(stored), mod_revision: Revision(revision) }),
        Ok(PUT) => {
            let key_len = stored.try_get_u32_le().map_err(|_| cut_short())? as usize;
            let (key, record) = stored.split_at_checked(key_len).ok_or_else(cut_short)?;
            Ok(Event::Put(decode(Bytes::copy_from_slice(key), record)?))
        }
        _ => Err(cut_short()),
    }
}
