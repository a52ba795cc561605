//! A log cut into segments as a bucket has them, a driver of passes over it, and a reader of what is left.

use super::super::*;
use crate::batch::{Batch, BatchBuilder, NewRecord, ProducerStamp, Record};
use crate::codec::Codec;
use crate::epochs::LeaderEpochs;
use crate::ids::{CoordinatorEpoch, LeaderEpoch, Offset, PartitionId, ProducerEpoch, ProducerId, TimestampMs, TopicId};
use crate::producers::ProducerTable;
use crate::segment::{
    AbortedSearch, AbortedTxn, AppendTimes, Density, ReadBounds, SegmentIdentity, SegmentIndex, SegmentTail,
    SegmentWriter,
};
use crate::transactions::{AbortedList, EndMarker, Marker, TxnOutcome};
use bytes::Bytes;
use std::collections::HashMap;
use std::ops::Range;

/// Small, so that a few batches make several chunks.
const CHUNK_BYTES: u64 = 200;

/// A record to be written: time, key, value.
pub(super) type Written = (i64, Option<Vec<u8>>, Option<Vec<u8>>);

/// Who writes a batch, and how.
#[derive(Clone, Copy, Debug)]
pub(super) enum Writer {
    /// Without a producer id.
    Nobody,
    /// Idempotent, outside of transactions.
    Plain(u64),
    /// In a transaction.
    Txn(u64),
}

/// A segment as the bucket has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) bytes: Bytes,
    pub(super) index: SegmentIndex,
    pub(super) batches: Vec<(Batch, TimestampMs)>,
}

/// A log in the making, and its segments.
#[derive(Clone, Debug, Default)]
pub(super) struct Log {
    pub(super) segments: Vec<Stored>,
    pub(super) producers: ProducerTable,
    pending: Vec<(Batch, TimestampMs)>,
    aborted: Vec<AbortedTxn>,
    epochs: LeaderEpochs,
    pub(super) epoch: LeaderEpoch,
    pub(super) now: TimestampMs,
    sequences: HashMap<u64, i32>,
    base: Offset,
    pub(super) end: Offset,
}

fn identity(epoch: LeaderEpoch) -> SegmentIdentity {
    let partition = PartitionId { topic: TopicId(5), index: 3 };
    SegmentIdentity { cluster: "c".to_owned(), partition, topic_name: "t".to_owned(), epoch }
}

pub(super) fn written(time: i64, key: &str, value: Option<&str>) -> Written {
    (time, Some(key.as_bytes().to_vec()), value.map(|value| value.as_bytes().to_vec()))
}

impl Log {
    /// An empty one, written from `now` on.
    pub(super) fn at(now: i64) -> Log {
        Log { now: TimestampMs(now), ..Log::default() }
    }

    pub(super) fn write(&mut self, writer: Writer, codec: Codec, records: &[Written]) -> Offset {
        self.append(self.batch(writer, codec, records))
    }

    /// A batch of `writer`, not yet in the log.
    pub(super) fn batch(&self, writer: Writer, codec: Codec, records: &[Written]) -> Batch {
        let mut builder = BatchBuilder::new(codec);
        if let Writer::Plain(id) | Writer::Txn(id) = writer {
            let base_sequence = self.sequences.get(&id).copied().unwrap_or(0);
            builder = builder.producer(ProducerStamp { id: ProducerId(id), epoch: ProducerEpoch(0), base_sequence });
        }
        if let Writer::Txn(_) = writer {
            builder = builder.transactional();
        }
        for (time, key, value) in records {
            let (key, value) = (key.as_deref(), value.as_deref());
            builder.push(NewRecord { timestamp: TimestampMs(*time), key, value, headers: &[] });
        }
        builder.build()
    }

    /// Values of one key each, one batch.
    pub(super) fn put(&mut self, writer: Writer, pairs: &[(&str, Option<&str>)]) -> Offset {
        let records: Vec<Written> = pairs.iter().map(|(key, value)| written(self.now.0, key, *value)).collect();
        self.write(writer, Codec::None, &records)
    }

    /// Ends the transaction of a producer.
    pub(super) fn end(&mut self, id: u64, outcome: TxnOutcome) -> Offset {
        let end = EndMarker { outcome, coordinator_epoch: CoordinatorEpoch(1) };
        let marker = Marker { producer: ProducerId(id), epoch: ProducerEpoch(0), raised: false, end };
        self.append(Batch::of_marker(&marker, self.now))
    }

    pub(super) fn append(&mut self, mut batch: Batch) -> Offset {
        let base = self.end;
        batch.place(base, self.epoch);
        self.epochs.append(self.epoch, base);
        if let Some(write) = batch.producer_write() {
            if write.stamp.base_sequence >= 0 {
                self.sequences.insert(write.stamp.id.0, write.stamp.base_sequence + batch.offset_span() as i32);
            }
            let ended = self.producers.append(write, batch.offset_span(), base, self.now);
            self.aborted.extend(ended.and_then(|ended| ended.aborted()));
        }
        self.end = batch.end_offset();
        self.pending.push((batch, self.now));
        base
    }

    /// Closes a segment, if anything was written since the last.
    pub(super) fn cut(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let mut writer =
            SegmentWriter::new(identity(self.epoch), self.base, Density::Dense).with_chunk_bytes(CHUNK_BYTES);
        for (batch, time) in std::mem::take(&mut self.pending) {
            writer.push(&batch, time).expect("sound");
        }
        let tail = SegmentTail {
            end: self.end,
            prefix_hash: self.end.0.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            epochs: self.epochs.slice(self.base, self.end),
            producers: self.producers.encode(),
            aborted: std::mem::take(&mut self.aborted),
            open: self.producers.open().collect(),
        };
        self.segments.push(Stored::read(writer.finish(tail).parts.concat().into()));
        self.base = self.end;
    }

    /// min(stable_end, tiered_end), once all is in segments.
    pub(super) fn stable_end(&self) -> Offset {
        assert!(self.pending.is_empty(), "all is in segments");
        self.producers.first_open().unwrap_or(self.end)
    }

    /// Its segments after a pass as `plan` says, if nothing fails.
    pub(super) fn compact(&mut self, plan: Plan) -> Compacted {
        self.cut();
        let bound = plan.bound.min(self.stable_end());
        let compacted = compact(&self.segments, &self.producers, &Plan { bound, ..plan });
        self.segments.clone_from(&compacted.segments);
        compacted
    }

    /// A pass over all of it, one group for each segment.
    pub(super) fn compact_all(&mut self, now: i64, delete_retention_ms: i64) -> Compacted {
        self.compact(Plan { now: TimestampMs(now), delete_retention_ms, ..Plan::default() })
    }

    /// What is left: offset, key and value of each record, those of control batches without.
    pub(super) fn left(&self) -> Vec<(u64, String)> {
        let show = |bytes: &Option<Bytes>| {
            bytes.as_ref().map_or("null".to_owned(), |bytes| String::from_utf8_lossy(bytes).into_owned())
        };
        let batches = self.segments.iter().flat_map(|segment| &segment.batches);
        batches
            .flat_map(|(batch, _)| {
                records(batch).into_iter().map(|record| match batch.end_marker().expect("sound") {
                    Some(end) => (record.offset.0, format!("{:?}", end.outcome)),
                    None => (record.offset.0, format!("{}={}", show(&record.key), show(&record.value))),
                })
            })
            .collect()
    }

    pub(super) fn batches(&self) -> Vec<&Batch> {
        self.segments.iter().flat_map(|segment| segment.batches.iter().map(|(batch, _)| batch)).collect()
    }
}

impl Stored {
    fn read(bytes: Bytes) -> Stored {
        let index = SegmentIndex::parse(&bytes).expect("sound");
        let part = |range: Range<u64>| bytes.slice(range.start as usize..range.end as usize);
        let times = AppendTimes::parse(&index, &part(index.append_times_bytes())).expect("sound");
        let mut batches = Vec::new();
        if !index.chunks().is_empty() {
            let span = index.span(0..index.chunks().len());
            batches = index.read_timed(&span, &[part(span.bytes.clone())], &times).expect("sound");
        }
        Stored { bytes, index, batches }
    }

    pub(super) fn producers(&self) -> Bytes {
        let Range { start, end } = self.index.producers_bytes();
        let bytes = self.bytes.slice(start as usize..end as usize);
        self.index.verify_producers(&bytes).expect("sound");
        bytes
    }
}

/// One pass.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) from: Offset,
    pub(super) bound: Offset,
    pub(super) keys_max: usize,
    pub(super) now: TimestampMs,
    pub(super) delete_retention_ms: i64,
    /// Segments of each group in turn, the last for all that follow.
    pub(super) groups: Vec<usize>,
    /// The group that cannot be committed.
    pub(super) fails: Option<usize>,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            from: Offset(0),
            bound: Offset(u64::MAX),
            keys_max: usize::MAX,
            now: TimestampMs(0),
            delete_retention_ms: 0,
            groups: vec![1],
            fails: None,
        }
    }
}

/// What a pass made.
#[derive(Debug)]
pub(super) struct Compacted {
    pub(super) segments: Vec<Stored>,
    /// Below it everything was noted.
    pub(super) noted: Offset,
    /// Below it everything was noted and gone over.
    pub(super) end: Offset,
    pub(super) changed: Vec<bool>,
    pub(super) removed_records: u64,
    pub(super) latest_horizon: Option<TimestampMs>,
}

pub(super) fn aborted_of(segments: &[Stored], read: Range<Offset>) -> Vec<AbortedTxn> {
    let mut search = AbortedSearch::new(read.clone());
    for segment in segments.iter().filter(|segment| segment.index.end() > read.start) {
        if !search.goes_on() {
            break;
        }
        if !search.passes_over(segment.index.end(), segment.index.open().first().map(|open| open.first)) {
            search.segment(&segment.index);
        }
    }
    search.finish(&AbortedList::default())
}

/// As a leader would: notes, rewrites, and commits group after group.
pub(super) fn compact(segments: &[Stored], producers: &ProducerTable, plan: &Plan) -> Compacted {
    let base = segments[0].index.base();
    let aborted = if plan.bound > base { aborted_of(segments, base..plan.bound) } else { Vec::new() };
    let aborted = AbortedTxns::new(aborted);
    let mut keys = KeyOffsets::new(plan.keys_max, plan.from);
    for (batch, _) in segments.iter().flat_map(|segment| &segment.batches) {
        if batch.end_offset() > plan.bound || !keys.note(batch, &aborted).expect("sound") {
            break;
        }
    }
    let noted = keys.end();
    let mut pass = Pass::new(keys, aborted, producers.last_batches(), plan.now, plan.delete_retention_ms);
    let mut out = Compacted {
        segments: Vec::new(),
        noted,
        end: noted,
        changed: Vec::new(),
        removed_records: 0,
        latest_horizon: None,
    };
    let mut left = segments;
    let mut groups = (0..).map(|nth: usize| (nth, plan.groups[nth.min(plan.groups.len() - 1)]));
    while left.first().is_some_and(|segment| segment.index.base() < noted) {
        let (nth, len) = groups.next().expect("there is no end of them");
        let (group, rest) = left.split_at(len.clamp(1, left.len()));
        if plan.fails == Some(nth) {
            out.end = noted.min(group[0].index.base()).max(plan.from);
            break;
        }
        let epoch = group[group.len() - 1].index.identity().epoch;
        let mut rewrite = Rewrite::new(identity(epoch), group[0].index.base()).with_chunk_bytes(CHUNK_BYTES);
        for (batch, time) in group.iter().flat_map(|segment| &segment.batches) {
            rewrite.push(&mut pass, batch, *time).expect("sound");
        }
        let indexes: Vec<&SegmentIndex> = group.iter().map(|segment| &segment.index).collect();
        let tail = SegmentTail::joined(&indexes, group[group.len() - 1].producers());
        let rewritten = rewrite.finish(&mut pass, tail).expect("sound");
        out.changed.push(rewritten.changed);
        out.removed_records += rewritten.removed_records;
        out.segments.push(Stored::read(rewritten.segment.parts.concat().into()));
        left = rest;
    }
    out.segments.extend_from_slice(left);
    out.latest_horizon = pass.latest_horizon();
    out
}

pub(super) fn records(batch: &Batch) -> Vec<Record> {
    batch.records().expect("sound").collect::<Result<_, _>>().expect("sound")
}

/// What a fetch at `from` is answered: the batches of one segment, and the aborted transactions among them.
pub(super) fn fetch(segments: &[Stored], from: Offset, until: Offset, bytes_max: u64) -> (Vec<Batch>, Vec<AbortedTxn>) {
    let mut answer = Vec::new();
    for segment in segments.iter().filter(|segment| segment.index.end() > from) {
        let Some(span) = segment.index.plan(from, bytes_max) else { continue };
        let data = segment.bytes.slice(span.bytes.start as usize..span.bytes.end as usize);
        let batches = segment.index.read(&span, &[data]).expect("sound");
        ReadBounds { from, until, bytes_max }.take(batches, &mut answer);
        break;
    }
    let end = answer.last().map_or(from, Batch::end_offset);
    let aborted = if end > from { aborted_of(segments, from..end) } else { Vec::new() };
    (answer, aborted)
}

/// Who reads, as Kafka's Java client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Isolation {
    Uncommitted,
    Committed,
}

/// Reads from `from` up to `until` in steps of `bytes_max`; panics if a step leads nowhere.
pub(super) fn consume(
    segments: &[Stored],
    from: Offset,
    until: Offset,
    bytes_max: u64,
    isolation: Isolation,
) -> Vec<Record> {
    let (mut at, mut seen) = (from, Vec::new());
    while at < until {
        let (batches, aborted) = fetch(segments, at, until, bytes_max);
        let mut aborted = aborted.into_iter().peekable();
        let mut dropping = Vec::new();
        let before = at;
        for batch in &batches {
            while let Some(txn) = aborted.next_if(|txn| txn.first < batch.end_offset()) {
                dropping.push(txn.producer);
            }
            let id = batch.producer().map(|stamp| stamp.id);
            if batch.is_control() {
                let end = batch.end_marker().expect("sound").map(|end| end.outcome);
                dropping.retain(|dropped| end != Some(TxnOutcome::Abort) || Some(*dropped) != id);
            } else {
                let drops = batch.is_transactional() && id.is_some_and(|id| dropping.contains(&id));
                if !drops || isolation == Isolation::Uncommitted {
                    seen.extend(records(batch).into_iter().filter(|record| record.offset >= at));
                }
            }
            at = batch.end_offset();
        }
        assert!(at > before, "a reader at {before} gets nowhere before {until}");
    }
    seen
}
