//! The committed offsets of one group, in blocks of 256 partitions, and those of transactions that have not ended (rule O1; KIP-447).
//!
//! Who may commit is decided elsewhere. A commit is never merged with an older one: the last one wins.

use super::scope::Scope;
use super::step::{BLOCK_METADATA_BYTES_MAX, CommitOffset, Fetched, TxnEnd};
use crate::records::groups::{Committed, OffsetBlock, PendingBlock, Record, RecordPart, block_of};
use millpond_log::{CoordinatorEpoch, ErrorCode, PartitionId, ProducerEpoch, ProducerId, TopicId};
use std::collections::{BTreeMap, BTreeSet};

/// Where a block is.
type Place = (TopicId, u32);

/// A transaction that its coordinator has confirmed (rule X3).
#[derive(Clone, Copy, Debug)]
pub(super) struct Confirmed {
    pub(super) producer: ProducerId,
    pub(super) epoch: ProducerEpoch,
    pub(super) coordinator: CoordinatorEpoch,
}

/// Offsets of one group.
#[derive(Clone, Debug, Default)]
pub(super) struct Offsets {
    blocks: BTreeMap<Place, OffsetBlock>,
    pending: BTreeMap<(Place, ProducerId), PendingBlock>,
    /// The greatest order of any pending offset: a later one has a greater.
    last_order: u64,
}

impl Offsets {
    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.pending.is_empty()
    }

    /// Commits, each partition by itself.
    pub(super) fn commit(
        &mut self,
        cx: &mut Scope<'_>,
        offsets: Vec<(PartitionId, CommitOffset)>,
        expires_at_ms: Option<i64>,
        may: impl Fn(PartitionId) -> Result<(), ErrorCode>,
    ) -> Vec<Result<(), ErrorCode>> {
        let mut touched = BTreeSet::new();
        let mut superseded = BTreeSet::new();
        let mut commit = |(partition, offset): (PartitionId, CommitOffset)| {
            may(partition).and_then(|()| self.check(cx, partition, &offset))?;
            let committed = stamp(offset, cx.now.wall_ms, expires_at_ms);
            self.blocks.entry(place(partition)).or_default().insert(partition.index, committed);
            touched.insert(place(partition));
            superseded.extend(self.supersede(partition, u64::MAX));
            Ok(())
        };
        let results = offsets.into_iter().map(&mut commit).collect();
        self.put_blocks(cx, touched);
        self.put_pending(cx, superseded);
        results
    }

    /// Adds offsets to a transaction. They count for nothing until it is committed.
    pub(super) fn add_pending(
        &mut self,
        cx: &mut Scope<'_>,
        of: Confirmed,
        offsets: Vec<(PartitionId, CommitOffset)>,
    ) -> Result<Vec<Result<(), ErrorCode>>, ErrorCode> {
        let Confirmed { producer, epoch, coordinator } = of;
        let known = self.pending.iter().filter(|((_, owner), _)| *owner == producer).map(|(_, block)| block.epoch);
        // An older instance of the producer is fenced; what a newer one meets of an older transaction was never ended.
        if known.clone().any(|known| known > epoch) {
            return Err(ErrorCode::InvalidProducerEpoch);
        }
        let mut touched = BTreeSet::new();
        if known.max().is_some_and(|known| known < epoch) {
            touched = self.drop_pending(producer);
        }
        let mut add = |(partition, offset): (PartitionId, CommitOffset)| {
            self.check(cx, partition, &offset)?;
            self.last_order += 1;
            let key = (place(partition), producer);
            let fresh = || PendingBlock { epoch, coordinator, offsets: BTreeMap::new() };
            let block = self.pending.entry(key).or_insert_with(fresh);
            block.coordinator = block.coordinator.max(coordinator);
            block.offsets.insert(partition.index, (self.last_order, stamp(offset, cx.now.wall_ms, None)));
            touched.insert(key);
            Ok(())
        };
        let results = offsets.into_iter().map(&mut add).collect();
        self.put_pending(cx, touched);
        Ok(results)
    }

    /// Whether the producer has offsets waiting here.
    pub(super) fn has_pending_of(&self, producer: ProducerId) -> bool {
        self.pending.keys().any(|(_, owner)| *owner == producer)
    }

    /// Producers that have offsets waiting here.
    pub(super) fn producers(&self) -> BTreeSet<ProducerId> {
        self.pending.keys().map(|(_, producer)| *producer).collect()
    }

    /// Ends a transaction: its offsets are committed, or dropped. Nothing happens twice, and nothing to a later transaction.
    pub(super) fn end(&mut self, cx: &mut Scope<'_>, end: TxnEnd) {
        let ended = |(key, block): (&(Place, ProducerId), &PendingBlock)| {
            (key.1 == end.producer && ends(end, block)).then_some(*key)
        };
        let keys: Vec<(Place, ProducerId)> = self.pending.iter().filter_map(ended).collect();
        let mut dropped: BTreeSet<(Place, ProducerId)> = keys.iter().copied().collect();
        let mut touched = BTreeSet::new();
        for key in keys {
            let block = self.pending.remove(&key).expect("it was found just now");
            if !end.commit {
                continue;
            }
            let ((topic, _), _) = key;
            for (index, (order, mut committed)) in block.offsets {
                // The group was kept alive by the transaction: its offsets are as old as its end.
                committed.committed_at_ms = cx.now.wall_ms;
                dropped.extend(self.supersede(PartitionId { topic, index }, order));
                self.blocks.entry(key.0).or_default().insert(index, committed);
                touched.insert(key.0);
            }
        }
        // Committed first, forgotten after: whoever loads only the first is told of the end again.
        self.put_blocks(cx, touched);
        self.put_pending(cx, dropped);
    }

    /// What was committed of these partitions, or of all that have offsets. `require_stable` refuses where a transaction is open.
    pub(super) fn fetch(&self, partitions: Option<Vec<PartitionId>>, require_stable: bool) -> Vec<Fetched> {
        let partitions = partitions.unwrap_or_else(|| self.partitions());
        let fetch = |partition: PartitionId| {
            if require_stable && self.is_pending(partition) {
                return (partition, Err(ErrorCode::UnstableOffsetCommit));
            }
            let block = self.blocks.get(&place(partition));
            (partition, Ok(block.and_then(|block| block.get(&partition.index)).cloned()))
        };
        partitions.into_iter().map(fetch).collect()
    }

    /// Forgets offsets of partitions, those of open transactions too.
    pub(super) fn delete(&mut self, cx: &mut Scope<'_>, partitions: impl IntoIterator<Item = PartitionId>) {
        let mut touched = BTreeSet::new();
        let mut superseded = BTreeSet::new();
        for partition in partitions {
            let block = self.blocks.get_mut(&place(partition));
            if block.is_some_and(|block| block.remove(&partition.index).is_some()) {
                touched.insert(place(partition));
            }
            superseded.extend(self.supersede(partition, u64::MAX));
        }
        self.put_pending(cx, superseded);
        self.put_blocks(cx, touched);
    }

    /// Forgets the offsets of topics for which `gone` holds.
    pub(super) fn delete_topics(&mut self, cx: &mut Scope<'_>, gone: impl Fn(TopicId) -> bool) {
        let blocks: BTreeSet<Place> = self.blocks.keys().copied().filter(|(topic, _)| gone(*topic)).collect();
        let pending: BTreeSet<_> = self.pending.keys().copied().filter(|((topic, _), _)| gone(*topic)).collect();
        self.blocks.retain(|place, _| !blocks.contains(place));
        self.pending.retain(|key, _| !pending.contains(key));
        self.put_pending(cx, pending);
        self.put_blocks(cx, blocks);
    }

    /// Forgets what has expired (KIP-211). `since` says from when on an offset is not needed any more; none while it is.
    pub(super) fn expire(
        &mut self,
        cx: &mut Scope<'_>,
        since: impl Fn(&Scope<'_>, TopicId, &Committed) -> Option<i64>,
    ) {
        let expired = |partition: &PartitionId| {
            let committed = &self.blocks[&place(*partition)][&partition.index];
            let Some(since) = since(cx, partition.topic, committed) else { return false };
            let end = committed.expires_at_ms.unwrap_or(since.saturating_add(cx.limits.offsets_retention_ms));
            end <= cx.now.wall_ms && !self.is_pending(*partition)
        };
        let committed = self
            .blocks
            .iter()
            .flat_map(|(&(topic, _), block)| block.keys().map(move |&index| PartitionId { topic, index }));
        let expired: Vec<PartitionId> = committed.filter(expired).collect();
        self.delete(cx, expired);
    }

    /// How many offsets there are.
    pub(super) fn count(&self) -> usize {
        self.blocks.values().map(BTreeMap::len).sum()
    }

    pub(super) fn load(&mut self, place: Place, block: OffsetBlock) {
        self.blocks.insert(place, block);
    }

    pub(super) fn load_pending(&mut self, place: Place, producer: ProducerId, block: PendingBlock) {
        let orders = block.offsets.values().map(|(order, _)| *order);
        self.last_order = orders.fold(self.last_order, u64::max);
        self.pending.insert((place, producer), block);
    }

    /// All that is persisted of the offsets.
    pub(super) fn records(&self) -> impl Iterator<Item = (RecordPart, Record)> {
        let block = |(&(topic, block), offsets): (&Place, &OffsetBlock)| {
            (RecordPart::Offsets { topic, block }, Record::Offsets(offsets.clone()))
        };
        let pending = |(&((topic, block), producer), offsets): (&(Place, ProducerId), &PendingBlock)| {
            (RecordPart::Pending { topic, block, producer }, Record::Pending(offsets.clone()))
        };
        self.blocks.iter().map(block).chain(self.pending.iter().map(pending))
    }

    /// All partitions that have an offset, or are to get one.
    fn partitions(&self) -> Vec<PartitionId> {
        let committed =
            self.blocks.iter().map(|(&(topic, _), block)| (topic, block.keys().copied().collect::<Vec<u32>>()));
        let pending =
            self.pending.iter().map(|(&((topic, _), _), block)| (topic, block.offsets.keys().copied().collect()));
        let partitions = committed.chain(pending);
        let partitions =
            partitions.flat_map(|(topic, indexes)| indexes.into_iter().map(move |index| PartitionId { topic, index }));
        partitions.collect::<BTreeSet<PartitionId>>().into_iter().collect()
    }

    /// Pending blocks of the block that a partition is in.
    fn pending_at(&self, at: Place) -> impl Iterator<Item = (&(Place, ProducerId), &PendingBlock)> {
        self.pending.range((at, ProducerId(0))..=(at, ProducerId(u64::MAX)))
    }

    fn is_pending(&self, partition: PartitionId) -> bool {
        self.pending_at(place(partition)).any(|(_, block)| block.offsets.contains_key(&partition.index))
    }

    /// Drops pending offsets of a partition that are older than `order`: something newer was committed, so whatever becomes of their
    /// transactions they cannot count. Where they were.
    fn supersede(&mut self, partition: PartitionId, order: u64) -> Vec<(Place, ProducerId)> {
        let older = |(key, block): (&(Place, ProducerId), &PendingBlock)| {
            block.offsets.get(&partition.index).is_some_and(|(pending, _)| *pending < order).then_some(*key)
        };
        let keys: Vec<(Place, ProducerId)> = self.pending_at(place(partition)).filter_map(older).collect();
        for key in &keys {
            let block = self.pending.get_mut(key).expect("it was found just now");
            block.offsets.remove(&partition.index);
            if block.offsets.is_empty() {
                self.pending.remove(key);
            }
        }
        keys
    }

    fn drop_pending(&mut self, producer: ProducerId) -> BTreeSet<(Place, ProducerId)> {
        let keys: BTreeSet<_> = self.pending.keys().copied().filter(|(_, owner)| *owner == producer).collect();
        self.pending.retain(|key, _| !keys.contains(key));
        keys
    }

    fn check(&self, cx: &Scope<'_>, partition: PartitionId, offset: &CommitOffset) -> Result<(), ErrorCode> {
        if !cx.topics.holds(partition) {
            return Err(ErrorCode::UnknownTopicOrPartition);
        }
        let size = offset.metadata.len();
        if size > cx.limits.metadata_bytes_max
            || (size > 0 && self.metadata_bytes(partition) + size > BLOCK_METADATA_BYTES_MAX)
        {
            return Err(ErrorCode::OffsetMetadataTooLarge);
        }
        Ok(())
    }

    /// Bytes of metadata in the partition's block and in what is pending for it, the partition's own committed ones aside.
    fn metadata_bytes(&self, partition: PartitionId) -> usize {
        let block = self.blocks.get(&place(partition));
        let others = block.into_iter().flatten().filter(|(index, _)| **index != partition.index);
        let committed: usize = others.map(|(_, committed)| committed.metadata.len()).sum();
        let pending = self.pending_at(place(partition)).flat_map(|(_, block)| block.offsets.values());
        committed + pending.map(|(_, committed)| committed.metadata.len()).sum::<usize>()
    }

    fn put_blocks(&mut self, cx: &mut Scope<'_>, places: BTreeSet<Place>) {
        for at in places {
            let part = RecordPart::Offsets { topic: at.0, block: at.1 };
            match self.blocks.get(&at).filter(|block| !block.is_empty()) {
                Some(block) => cx.put(part, Record::Offsets(block.clone())),
                None => {
                    self.blocks.remove(&at);
                    cx.delete(part);
                }
            }
        }
    }

    fn put_pending(&self, cx: &mut Scope<'_>, keys: BTreeSet<(Place, ProducerId)>) {
        for ((topic, block), producer) in keys {
            let part = RecordPart::Pending { topic, block, producer };
            match self.pending.get(&((topic, block), producer)) {
                Some(pending) => cx.put(part, Record::Pending(pending.clone())),
                None => cx.delete(part),
            }
        }
    }
}

/// Rule X5, as partitions judge markers: a raised epoch is above that of the offsets it ends, and what only equals it is a later
/// transaction's; an older coordinator tells of an earlier one.
fn ends(end: TxnEnd, block: &PendingBlock) -> bool {
    let covers = block.epoch < end.epoch || (block.epoch == end.epoch && !end.raised);
    covers && block.coordinator <= end.coordinator
}

fn place(partition: PartitionId) -> Place {
    (partition.topic, block_of(partition))
}

fn stamp(offset: CommitOffset, committed_at_ms: i64, expires_at_ms: Option<i64>) -> Committed {
    let CommitOffset { offset, leader_epoch, metadata } = offset;
    Committed { offset, leader_epoch, metadata, committed_at_ms, expires_at_ms }
}
