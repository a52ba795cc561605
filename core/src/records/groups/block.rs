//! Offsets of a block of partitions as bytes: what is written most often, so it is small. Reading never panics.
//!
//! Version byte, then partitions in ascending order; varints are LEB128, times and offsets zigzag. Equal blocks give equal bytes.

use millpond_log::{CoordinatorEpoch, LeaderEpoch, Offset, ProducerEpoch};
use std::collections::BTreeMap;

const VERSION: u8 = 1;

/// A committed offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The next offset to read.
    pub offset: Offset,
    /// The leader epoch of what was read last, if told.
    pub leader_epoch: Option<LeaderEpoch>,
    /// What the client keeps beside it.
    pub metadata: String,
    /// When it was committed, in wall-clock milliseconds.
    pub committed_at_ms: i64,
    /// When it expires, where the client said so (before Kafka's OffsetCommit v5).
    pub expires_at_ms: Option<i64>,
}

/// Committed offsets of a block, by the index of their partition.
pub type OffsetBlock = BTreeMap<u32, Committed>;

/// Offsets of a block that a transaction is to commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingBlock {
    /// The producer's epoch.
    pub epoch: ProducerEpoch,
    /// The newest epoch of the transaction's coordinator that confirmed it: ends that older ones tell of are of an earlier transaction
    /// (rule X5).
    pub coordinator: CoordinatorEpoch,
    /// By the index of the partition: when they came, as a number in the group, and what is to be committed.
    pub offsets: BTreeMap<u32, (u64, Committed)>,
}

/// Committed offsets as bytes.
#[must_use]
pub fn encode(block: &OffsetBlock) -> Vec<u8> {
    let mut out = vec![VERSION];
    put_entries(&mut out, block.iter().map(|(&index, committed)| (index, committed)));
    out
}

/// Reads what `encode` wrote.
#[must_use]
pub fn decode(bytes: &[u8]) -> Option<OffsetBlock> {
    let mut fields = Fields(bytes);
    let known = fields.byte()? == VERSION;
    let block = fields.entries()?;
    (known && fields.0.is_empty()).then_some(block)
}

impl PendingBlock {
    /// The block as bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        put(&mut out, self.epoch.0.into());
        put(&mut out, self.coordinator.0.into());
        put_entries(&mut out, self.offsets.iter().map(|(&index, (_, committed))| (index, committed)));
        for (order, _) in self.offsets.values() {
            put(&mut out, *order);
        }
        out
    }

    /// Reads what `encode` wrote.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<PendingBlock> {
        let mut fields = Fields(bytes);
        let known = fields.byte()? == VERSION;
        let epoch = ProducerEpoch(u16::try_from(fields.varint()?).ok()?);
        let coordinator = CoordinatorEpoch(fields.varint32()?);
        let entries = fields.entries()?;
        let ordered = entries.into_iter().map(|(index, committed)| Some((index, (fields.varint()?, committed))));
        let offsets = ordered.collect::<Option<BTreeMap<u32, (u64, Committed)>>>()?;
        (known && fields.0.is_empty()).then_some(PendingBlock { epoch, coordinator, offsets })
    }
}

fn put_entries<'a>(out: &mut Vec<u8>, entries: impl ExactSizeIterator<Item = (u32, &'a Committed)>) {
    put(out, entries.len() as u64);
    for (index, committed) in entries {
        put(out, index.into());
        put(out, committed.offset.0);
        put(out, committed.leader_epoch.map_or(0, |epoch| u64::from(epoch.0) + 1));
        put_signed(out, committed.committed_at_ms);
        put(out, committed.expires_at_ms.is_some().into());
        if let Some(expires) = committed.expires_at_ms {
            put_signed(out, expires);
        }
        put(out, committed.metadata.len() as u64);
        out.extend_from_slice(committed.metadata.as_bytes());
    }
}

fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn put_signed(out: &mut Vec<u8>, value: i64) {
    put(out, ((value << 1) ^ (value >> 63)).cast_unsigned());
}

struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// Only the shortest spelling of a number is read.
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return None;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return (byte != 0 || shift == 0).then_some(value);
            }
        }
        None
    }

    fn varint32(&mut self) -> Option<u32> {
        u32::try_from(self.varint()?).ok()
    }

    fn signed(&mut self) -> Option<i64> {
        let raw = self.varint()?;
        Some((raw >> 1).cast_signed() ^ -(raw & 1).cast_signed())
    }

    fn text(&mut self) -> Option<&'a str> {
        let len = usize::try_from(self.varint()?).ok()?;
        let (text, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        std::str::from_utf8(text).ok()
    }

    fn entries(&mut self) -> Option<OffsetBlock> {
        let count = self.varint()?;
        let mut block = OffsetBlock::new();
        for _ in 0..count {
            let index = self.varint32()?;
            if block.last_key_value().is_some_and(|(&last, _)| last >= index) {
                return None;
            }
            block.insert(index, self.committed()?);
        }
        Some(block)
    }

    fn committed(&mut self) -> Option<Committed> {
        let offset = Offset(self.varint()?);
        let leader_epoch = match self.varint()? {
            0 => None,
            more => Some(LeaderEpoch(u32::try_from(more - 1).ok()?)),
        };
        let committed_at_ms = self.signed()?;
        let expires_at_ms = match self.byte()? {
            0 => None,
            1 => Some(self.signed()?),
            _ => return None,
        };
        let metadata = self.text()?.to_owned();
        Some(Committed { offset, leader_epoch, metadata, committed_at_ms, expires_at_ms })
    }
}
