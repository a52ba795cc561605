//! Bytes of manifests: `magic 4 | version u8 | fields | CRC-32C u32`. Equal manifests give equal bytes.
//!
//! Offsets are written as distances, since entries adjoin; the partition in an object's name is the manifest's own.

use super::entry::{Cover, OpenTxns, RolledRef, SegmentEntry, Totals};
use super::node::{ManifestNode, NodeItems};
use super::{Compacted, ManifestError, ManifestRoot, ROOT_BYTES_MAX};
use crate::epochs::EpochStart;
use crate::fields::{FieldError, Fields, put_signed, put_varint};
use crate::ids::{BrokerId, Incarnation, LeaderEpoch, Offset, PartitionId, TimestampMs, TopicId};
use crate::object_key::{BundleObject, GcEpoch, ObjectKey, PartitionObject};
use bytes::{BufMut, Bytes, BytesMut};

const ROOT_MAGIC: &[u8; 4] = b"MPMR";
const NODE_MAGIC: &[u8; 4] = b"MPMN";

/// Of rolled manifests, and of roots of logs that were never written anew.
const VERSION: u8 = 1;

/// Of roots that say how far their logs were written anew, and are compacted.
const VERSION_REWRITTEN: u8 = 2;

const KEY_SEGMENT: u8 = 0;
const KEY_MANIFEST: u8 = 1;
const KEY_BUNDLE: u8 = 2;

impl From<FieldError> for ManifestError {
    fn from(error: FieldError) -> ManifestError {
        match error {
            FieldError::Cut => ManifestError::Cut,
            FieldError::Malformed(reason) => ManifestError::Malformed(reason),
        }
    }
}

impl ManifestRoot {
    /// The value to store.
    ///
    /// Panics above `ROOT_BYTES_MAX`: then rolling was put off for far too long.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let rewritten = (self.compacted, self.rewritten_end) != (Compacted::default(), Offset(0));
        let mut out = begin(ROOT_MAGIC, if rewritten { VERSION_REWRITTEN } else { VERSION });
        put_partition(&mut out, self.partition);
        put_varint(&mut out, self.seq);
        put_varint(&mut out, self.log_start.0);
        put_varint(&mut out, self.tiered_end.0);
        put_varint(&mut out, self.tiered_end.0 - self.stable_end.0);
        put_varint(&mut out, u64::from(self.epoch.0));
        if rewritten {
            put_rewritten(&mut out, self.compacted, self.rewritten_end);
        }
        put_varint(&mut out, self.base().0);
        put_list(&mut out, &self.rolled, put_rolled);
        put_list(&mut out, &self.entries, put_entry);
        let bytes = finish(out);
        assert!(bytes.len() <= ROOT_BYTES_MAX, "rule Z5: a root of {} bytes", bytes.len());
        bytes
    }

    /// Reads what `encode` wrote.
    ///
    /// # Errors
    /// Every `ManifestError` but `OtherManifest`.
    pub fn decode(bytes: &[u8]) -> Result<ManifestRoot, ManifestError> {
        if bytes.len() > ROOT_BYTES_MAX {
            return Err(ManifestError::Malformed("a root of more than ROOT_BYTES_MAX"));
        }
        let (version, mut fields) = open(bytes, ROOT_MAGIC, VERSION_REWRITTEN)?;
        let partition = partition(&mut fields)?;
        let seq = fields.varint()?;
        let log_start = Offset(fields.varint()?);
        let tiered_end = Offset(fields.varint()?);
        let stable_end = tiered_end.0.checked_sub(fields.varint()?).map(Offset);
        let stable_end = stable_end.ok_or(ManifestError::Malformed("stable_end below 0"))?;
        let epoch = LeaderEpoch(fields.varint32()?);
        let (compacted, rewritten_end) =
            if version < VERSION_REWRITTEN { Default::default() } else { rewritten(&mut fields)? };
        let base = Offset(fields.varint()?);
        let (rolled, base) = list(&mut fields, base, ROLLED_BYTES_MIN, |fields, base| rolled(fields, partition, base))?;
        let (entries, _) = list(&mut fields, base, ENTRY_BYTES_MIN, |fields, base| entry(fields, partition, base))?;
        fields.end()?;
        let root = ManifestRoot {
            partition,
            seq,
            log_start,
            tiered_end,
            stable_end,
            epoch,
            compacted,
            rewritten_end,
            rolled,
            entries,
        };
        root.check().map_err(ManifestError::Malformed)?;
        Ok(root)
    }
}

impl ManifestNode {
    /// The object's bytes.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = begin(NODE_MAGIC, VERSION);
        put_partition(&mut out, self.partition);
        out.put_u8(self.level());
        put_varint(&mut out, self.span().expect("checked when it was made").base.0);
        match &self.items {
            NodeItems::Segments(entries) => put_list(&mut out, entries, put_entry),
            NodeItems::Manifests(rolled) => put_list(&mut out, rolled, put_rolled),
        }
        finish(out)
    }

    /// Reads a rolled manifest.
    ///
    /// # Errors
    /// Every `ManifestError` but `OtherManifest`.
    pub fn decode(bytes: &[u8]) -> Result<ManifestNode, ManifestError> {
        let (_, mut fields) = open(bytes, NODE_MAGIC, VERSION)?;
        let partition = partition(&mut fields)?;
        let level = fields.u8()?;
        let base = Offset(fields.varint()?);
        let items = match level {
            1 => NodeItems::Segments(list(&mut fields, base, ENTRY_BYTES_MIN, |f, base| entry(f, partition, base))?.0),
            _ => {
                NodeItems::Manifests(list(&mut fields, base, ROLLED_BYTES_MIN, |f, base| rolled(f, partition, base))?.0)
            }
        };
        fields.end()?;
        let node = ManifestNode { partition, items };
        node.span().map_err(ManifestError::Malformed)?;
        if node.level() == level { Ok(node) } else { Err(ManifestError::Malformed("items are of another level")) }
    }

    /// Reads the object that `reference` names and makes sure that it is the one (rule S11).
    ///
    /// # Errors
    /// Every `ManifestError`.
    pub fn open(reference: &RolledRef, partition: PartitionId, bytes: &[u8]) -> Result<ManifestNode, ManifestError> {
        if bytes.len() as u64 != u64::from(reference.length) {
            return Err(ManifestError::OtherManifest("length"));
        }
        if crc32c::crc32c(bytes) != reference.crc {
            return Err(ManifestError::Corrupt);
        }
        let node = ManifestNode::decode(bytes)?;
        match () {
            () if node.partition != partition => Err(ManifestError::OtherManifest("partition")),
            () if node.level() != reference.level => Err(ManifestError::OtherManifest("level")),
            () if node.span() != Ok(reference.span()) => Err(ManifestError::OtherManifest("what it covers")),
            () => Ok(node),
        }
    }
}

/// Encoded size of each entry, in bytes.
pub(super) fn entry_sizes(entries: &[SegmentEntry]) -> Vec<usize> {
    let mut out = BytesMut::new();
    let size = |entry| {
        out.clear();
        put_entry(&mut out, entry);
        out.len()
    };
    entries.iter().map(size).collect()
}

fn begin(magic: &[u8; 4], version: u8) -> BytesMut {
    let mut out = BytesMut::from(&magic[..]);
    out.put_u8(version);
    out
}

fn finish(mut out: BytesMut) -> Bytes {
    let crc = crc32c::crc32c(&out);
    out.put_u32_le(crc);
    out.freeze()
}

/// The version, `newest` at most, and the fields between it and the CRC, once magic and CRC are as they should be.
fn open<'a>(bytes: &'a [u8], magic: &[u8; 4], newest: u8) -> Result<(u8, Fields<'a>), ManifestError> {
    let (covered, crc) = bytes.split_last_chunk::<4>().ok_or(ManifestError::Cut)?;
    let mut fields = Fields::new(covered);
    let has_magic = fields.bytes(4)? == magic;
    let version = fields.u8()?;
    match () {
        () if !has_magic => Err(ManifestError::Malformed("no manifest begins here")),
        () if crc32c::crc32c(covered).to_le_bytes() != *crc => Err(ManifestError::Corrupt),
        () if version > newest => Err(ManifestError::NewerVersion { found: version, known: newest }),
        () if version < VERSION => Err(ManifestError::Malformed("version 0")),
        () => Ok((version, fields)),
    }
}

fn put_rewritten(out: &mut BytesMut, compacted: Compacted, rewritten_end: Offset) {
    put_varint(out, rewritten_end.0);
    put_varint(out, compacted.end.0);
    // No purge is due at the end of all time.
    put_signed(out, compacted.purge_at.map_or(i64::MAX, |at| at.0));
}

fn rewritten(fields: &mut Fields<'_>) -> Result<(Compacted, Offset), ManifestError> {
    let rewritten_end = Offset(fields.varint()?);
    let end = Offset(fields.varint()?);
    let purge_at = Some(fields.signed()?).filter(|at| *at != i64::MAX).map(TimestampMs);
    match (Compacted { end, purge_at }, rewritten_end) {
        never if never == Default::default() => Err(ManifestError::Malformed("a later version, and nothing of it")),
        rewritten => Ok(rewritten),
    }
}

fn put_list<T>(out: &mut BytesMut, items: &[T], put: impl Fn(&mut BytesMut, &T)) {
    put_varint(out, items.len() as u64);
    for item in items {
        put(out, item);
    }
}

/// A list whose items adjoin from `base` on, and its end.
fn list<T: Cover>(
    fields: &mut Fields<'_>,
    mut base: Offset,
    item_bytes_min: usize,
    item: impl Fn(&mut Fields<'_>, Offset) -> Result<T, FieldError>,
) -> Result<(Vec<T>, Offset), FieldError> {
    let count = fields.count(item_bytes_min)?;
    let mut items = Vec::with_capacity(count);
    for _ in 0..count {
        let next = item(fields, base)?;
        base = next.span().end;
        items.push(next);
    }
    Ok((items, base))
}

/// Span, key (kind, epoch, random at least), four lengths, two CRCs, count, two times, hash, one epoch, count of open transactions.
const ENTRY_BYTES_MIN: usize = 1 + 20 + 4 + 8 + 1 + 2 + 8 + 3 + 1;

fn put_entry(out: &mut BytesMut, entry: &SegmentEntry) {
    put_varint(out, entry.end.0 - entry.base.0);
    put_key(out, &entry.object);
    put_varint(out, entry.object_length - entry.position - entry.length);
    put_varint(out, entry.position);
    put_varint(out, entry.length);
    put_varint(out, u64::from(entry.index_length));
    out.put_u32_le(entry.crc);
    out.put_u32_le(entry.index_crc);
    put_varint(out, entry.record_count);
    put_signed(out, entry.max_timestamp.0);
    put_signed(out, entry.max_append_time.0);
    out.put_u64_le(entry.prefix_hash);
    put_varint(out, entry.epochs.len() as u64);
    for EpochStart { epoch, start } in &entry.epochs {
        put_varint(out, u64::from(epoch.0));
        put_varint(out, start.0 - entry.base.0);
    }
    match entry.open {
        None => put_varint(out, 0),
        Some(OpenTxns { count, first }) => {
            put_varint(out, u64::from(count));
            put_varint(out, entry.end.0 - first.0);
        }
    }
}

fn entry(fields: &mut Fields<'_>, partition: PartitionId, base: Offset) -> Result<SegmentEntry, FieldError> {
    let end = sum(base.0, fields.varint()?).map(Offset)?;
    let object = key(fields, partition)?;
    let after = fields.varint()?;
    let position = fields.varint()?;
    let length = fields.varint()?;
    let object_length = sum(sum(position, length)?, after)?;
    let index_length = fields.varint32()?;
    let crc = fields.u32()?;
    let index_crc = fields.u32()?;
    let record_count = fields.varint()?;
    let max_timestamp = TimestampMs(fields.signed()?);
    let max_append_time = TimestampMs(fields.signed()?);
    let prefix_hash = fields.u64()?;
    let epochs = (0..fields.count(2)?)
        .map(|_| {
            Ok(EpochStart { epoch: LeaderEpoch(fields.varint32()?), start: Offset(sum(base.0, fields.varint()?)?) })
        })
        .collect::<Result<Vec<_>, FieldError>>()?;
    let open = match fields.varint32()? {
        0 => None,
        count => {
            let first = end.0.checked_sub(fields.varint()?).map(Offset);
            Some(OpenTxns { count, first: first.ok_or(FieldError::Malformed("offset below 0"))? })
        }
    };
    let epochs_in_order = epochs.is_sorted_by(|older, newer| older.epoch < newer.epoch && older.start < newer.start)
        && epochs.first().is_some_and(|first| first.start == base)
        && epochs.last().is_some_and(|last| last.start < end);
    match () {
        () if matches!(object, ObjectKey::Manifest(_)) => Err(FieldError::Malformed("a segment in a manifest object")),
        () if !epochs_in_order => Err(FieldError::Malformed("leader epochs out of order or out of range")),
        () if u64::from(index_length) > length => Err(FieldError::Malformed("an index longer than its segment")),
        () if open.is_some_and(|open| open.first >= end) => {
            Err(FieldError::Malformed("an open transaction past the end"))
        }
        () => Ok(SegmentEntry {
            base,
            end,
            object,
            object_length,
            position,
            length,
            index_length,
            crc,
            index_crc,
            record_count,
            max_timestamp,
            max_append_time,
            prefix_hash,
            epochs,
            open,
        }),
    }
}

/// Span, key, length, CRC, level, three sums, two times, two epochs.
const ROLLED_BYTES_MIN: usize = 1 + 20 + 1 + 4 + 1 + 3 + 2 + 2;

fn put_rolled(out: &mut BytesMut, rolled: &RolledRef) {
    put_varint(out, rolled.end.0 - rolled.base.0);
    put_key(out, &rolled.object);
    put_varint(out, u64::from(rolled.length));
    out.put_u32_le(rolled.crc);
    out.put_u8(rolled.level);
    let totals = &rolled.totals;
    put_varint(out, totals.segment_count);
    put_varint(out, totals.record_count);
    put_varint(out, totals.size);
    put_signed(out, totals.max_timestamp.0);
    put_signed(out, totals.max_append_time.0);
    put_varint(out, u64::from(totals.first_epoch.0));
    put_varint(out, u64::from(totals.last_epoch.0));
}

fn rolled(fields: &mut Fields<'_>, partition: PartitionId, base: Offset) -> Result<RolledRef, FieldError> {
    let end = sum(base.0, fields.varint()?).map(Offset)?;
    let object = key(fields, partition)?;
    if !matches!(object, ObjectKey::Manifest(_)) {
        return Err(FieldError::Malformed("a manifest in an object of segments"));
    }
    let length = fields.varint32()?;
    let crc = fields.u32()?;
    let level = fields.u8()?;
    if level == 0 || level > super::node::LEVEL_MAX {
        return Err(FieldError::Malformed("impossible level of a manifest"));
    }
    let totals = Totals {
        segment_count: fields.varint()?,
        record_count: fields.varint()?,
        size: fields.varint()?,
        max_timestamp: TimestampMs(fields.signed()?),
        max_append_time: TimestampMs(fields.signed()?),
        first_epoch: LeaderEpoch(fields.varint32()?),
        last_epoch: LeaderEpoch(fields.varint32()?),
    };
    Ok(RolledRef { object, length, crc, level, base, end, totals })
}

fn put_partition(out: &mut BytesMut, partition: PartitionId) {
    out.put_u128_le(partition.topic.0);
    put_varint(out, u64::from(partition.index));
}

fn partition(fields: &mut Fields<'_>) -> Result<PartitionId, FieldError> {
    Ok(PartitionId { topic: TopicId(fields.u128()?), index: fields.varint32()? })
}

fn put_key(out: &mut BytesMut, key: &ObjectKey) {
    match key {
        ObjectKey::Segment(name) | ObjectKey::Manifest(name) => {
            out.put_u8(if matches!(key, ObjectKey::Segment(_)) { KEY_SEGMENT } else { KEY_MANIFEST });
            put_varint(out, name.gc_epoch.0);
            put_varint(out, u64::from(name.epoch.0));
            put_varint(out, name.base.0);
            out.put_u128_le(name.random);
        }
        ObjectKey::Bundle(name) => {
            out.put_u8(KEY_BUNDLE);
            put_varint(out, name.gc_epoch.0);
            put_varint(out, u64::from(name.broker.0));
            put_varint(out, name.incarnation.0);
            out.put_u128_le(name.random);
        }
    }
}

fn key(fields: &mut Fields<'_>, partition: PartitionId) -> Result<ObjectKey, FieldError> {
    let kind = fields.u8()?;
    let gc_epoch = GcEpoch(fields.varint()?);
    let writer = fields.varint32()?;
    let (third, random) = (fields.varint()?, fields.u128()?);
    let name = PartitionObject { partition, gc_epoch, epoch: LeaderEpoch(writer), base: Offset(third), random };
    let bundle = BundleObject { broker: BrokerId(writer), incarnation: Incarnation(third), gc_epoch, random };
    match kind {
        KEY_SEGMENT => Ok(ObjectKey::Segment(name)),
        KEY_MANIFEST => Ok(ObjectKey::Manifest(name)),
        KEY_BUNDLE => Ok(ObjectKey::Bundle(bundle)),
        _ => Err(FieldError::Malformed("unknown kind of object")),
    }
}

fn sum(left: u64, right: u64) -> Result<u64, FieldError> {
    left.checked_add(right).ok_or(FieldError::Malformed("sum beyond 64 bits"))
}
