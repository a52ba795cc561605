//! Batches and segments for the tests of segments and of read plans.

use super::*;
use crate::batch::{Batch, BatchBuilder, NewRecord};
use crate::codec::Codec;
use crate::ids::{ProducerId, TopicId};
use bytes::{Bytes, BytesMut};
use proptest::prelude::*;

pub(crate) const PARTITION: PartitionId =
    PartitionId { topic: TopicId(0xfeed_0000_0000_0000_0000_0000_0000_beef), index: 4 };

/// A batch to be made: its records' times, and where it stands relative to the one before.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) times: Vec<i64>,
    pub(crate) value_bytes: usize,
    pub(crate) codec: Codec,
    /// Offsets missing before it.
    pub(crate) gap: u64,
    /// Offsets missing inside it, after its last record.
    pub(crate) hole: u32,
    pub(crate) new_epoch: bool,
    pub(crate) waited_ms: i64,
}

impl Sample {
    pub(crate) fn of_times(times: &[i64]) -> Sample {
        Sample {
            times: times.to_vec(),
            value_bytes: 20,
            codec: Codec::None,
            gap: 0,
            hole: 0,
            new_epoch: false,
            waited_ms: 1,
        }
    }
}

/// Any batches, for a dense segment if `dense`.
pub(crate) fn samples(dense: bool) -> impl Strategy<Value = Vec<Sample>> {
    let time = prop_oneof![6 => 0i64..1_000, 1 => Just(-1), 1 => any::<i64>()];
    let codec = prop_oneof![3 => Just(Codec::None), 1 => Just(Codec::Lz4), 1 => Just(Codec::Zstd)];
    let distance = prop_oneof![2 => Just(0u64), 2 => 1u64..10, 1 => Just(1 << 31)];
    let sample = (
        prop::collection::vec(time, 1..6),
        prop_oneof![3 => 0usize..60, 1 => 900usize..1_500],
        codec,
        distance,
        0u32..4,
        prop::bool::weighted(0.2),
        0i64..3,
    );
    let sample = sample.prop_map(move |(times, value_bytes, codec, gap, hole, new_epoch, waited_ms)| Sample {
        times,
        value_bytes,
        codec,
        gap: if dense { 0 } else { gap },
        hole,
        new_epoch,
        waited_ms,
    });
    prop::collection::vec(sample, 1..24)
}

/// One batch at its place. A hole is made as compaction makes it: the last offset delta stays, records are gone.
pub(crate) fn batch(sample: &Sample, base: Offset, epoch: LeaderEpoch) -> Batch {
    let mut builder = BatchBuilder::new(sample.codec);
    for (nth, &time) in sample.times.iter().enumerate() {
        // Values that neither repeat nor compress away.
        let value: Vec<u8> =
            (0..sample.value_bytes).map(|at| (base.0 as usize * 31 + nth * 7 + at * at) as u8).collect();
        builder.push(NewRecord { timestamp: TimestampMs(time), key: None, value: Some(&value), headers: &[] });
    }
    let mut batch = with_last_offset_delta(&builder.build(), sample.times.len() as u32 - 1 + sample.hole);
    batch.place(base, epoch);
    batch
}

/// The batch with another last offset delta.
pub(crate) fn with_last_offset_delta(batch: &Batch, last_offset_delta: u32) -> Batch {
    patched(batch, 23, &last_offset_delta.to_be_bytes())
}

/// The batch with another largest timestamp, which its records need not bear out.
pub(crate) fn with_max_timestamp(batch: &Batch, max_timestamp: i64) -> Batch {
    patched(batch, 35, &max_timestamp.to_be_bytes())
}

/// The batch with other bytes at a place in its header, and a CRC to match.
fn patched(batch: &Batch, at: usize, field: &[u8]) -> Batch {
    let mut bytes = BytesMut::new();
    batch.put(&mut bytes);
    bytes[at..at + field.len()].copy_from_slice(field);
    let crc = crc32c::crc32c(&bytes[21..]);
    bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    Batch::take(&mut bytes.freeze()).expect("a sound batch").expect("not empty")
}

/// A segment in the making, and all that a plain list says of it.
pub(crate) struct Built {
    pub(crate) object: BuiltObject,
    pub(crate) segment: BuiltSegment,
    pub(crate) batches: Vec<(Batch, TimestampMs)>,
    pub(crate) producers: Bytes,
}

/// Builds the segment of `samples` from `base` on, in small chunks. In a sparse one a hole is left after the last batch.
pub(crate) fn build(samples: &[Sample], base: Offset, first_epoch: u32, density: Density) -> Built {
    let epochs_in_it = samples.iter().filter(|sample| sample.new_epoch).count() as u32;
    let identity = SegmentIdentity {
        cluster: "c-1".into(),
        partition: PARTITION,
        topic_name: "flights".into(),
        epoch: LeaderEpoch(first_epoch + epochs_in_it),
    };
    let mut writer = SegmentWriter::new(identity, base, density).with_chunk_bytes(400);
    let mut epochs: Vec<EpochStart> = Vec::new();
    let mut batches = Vec::new();
    let (mut epoch, mut time) = (first_epoch, 1_700_000_000_000);
    for sample in samples {
        epoch += u32::from(sample.new_epoch && !batches.is_empty());
        time += sample.waited_ms;
        let batch = batch(sample, writer.end().plus(sample.gap), LeaderEpoch(epoch));
        if epochs.last().map(|last| last.epoch) != Some(batch.leader_epoch()) {
            let start = if epochs.is_empty() { base } else { batch.base_offset() };
            epochs.push(EpochStart { epoch: batch.leader_epoch(), start });
        }
        writer.push(&batch, TimestampMs(time)).expect("its CRC is right");
        batches.push((batch, TimestampMs(time)));
    }
    let end = writer.end().plus(if density == Density::Sparse { 3 } else { 0 });
    let marker = Offset(end.0 - 1);
    let aborted =
        if marker.0 == 0 { Vec::new() } else { vec![AbortedTxn { marker, first: Offset(0), producer: ProducerId(9) }] };
    let open = vec![OpenTxn { first: base, producer: ProducerId(1) }, OpenTxn { first: base, producer: ProducerId(2) }];
    let producers = Bytes::from_static(b"state of the producers");
    let prefix_hash = prefix_hash_at(end);
    let tail = SegmentTail { end, prefix_hash, epochs, producers: producers.clone(), aborted, open };
    let segment = writer.finish(tail);
    Built { object: segment.clone().into(), segment, batches, producers }
}

/// What a sample says of the log up to `end`: any number that differs from place to place.
pub(crate) fn prefix_hash_at(end: Offset) -> u64 {
    end.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The bytes of an object, as the bucket has them.
pub(crate) fn bytes_of(parts: &[Bytes]) -> Bytes {
    parts.concat().into()
}
