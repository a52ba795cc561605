//! How fast segments are built and read: against one CRC-32C of the same bytes, which is the least either can cost.

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use millpond_log::batch::{Batch, BatchBuilder, NewRecord};
use millpond_log::codec::Codec;
use millpond_log::epochs::EpochStart;
use millpond_log::segment::{BuiltSegment, Density, SegmentIdentity, SegmentIndex, SegmentTail, SegmentWriter};
use millpond_log::{LeaderEpoch, Offset, PartitionId, TimestampMs, TopicId};
use std::hint::black_box;

const SEGMENT_BYTES: usize = 16 << 20;

fn batches(batch_bytes: usize) -> Vec<Batch> {
    let value: Vec<u8> = (0..batch_bytes.min(1_000)).map(|at| (at * 131) as u8).collect();
    let mut batches = Vec::new();
    let (mut base, mut size) = (Offset(0), 0);
    while size < SEGMENT_BYTES {
        let mut builder = BatchBuilder::new(Codec::None);
        while builder.is_empty() || builder.size() + value.len() < batch_bytes {
            builder.push(NewRecord { timestamp: TimestampMs(1), key: None, value: Some(&value), headers: &[] });
        }
        let mut batch = builder.build();
        batch.place(base, LeaderEpoch(1));
        base = batch.end_offset();
        size += batch.size();
        batches.push(batch);
    }
    batches
}

fn build(batches: &[Batch]) -> BuiltSegment {
    let partition = PartitionId { topic: TopicId(1), index: 0 };
    let identity =
        SegmentIdentity { cluster: "c".into(), partition, topic_name: "flights".into(), epoch: LeaderEpoch(1) };
    let mut writer = SegmentWriter::new(identity, Offset(0), Density::Dense);
    for batch in batches {
        writer.push(batch, TimestampMs(1)).expect("its CRC is right");
    }
    let end = writer.end();
    writer.finish(SegmentTail {
        end,
        prefix_hash: 0,
        epochs: vec![EpochStart { epoch: LeaderEpoch(1), start: Offset(0) }],
        producers: Bytes::new(),
        aborted: Vec::new(),
        open: Vec::new(),
    })
}

fn segments(criterion: &mut Criterion) {
    for (name, batch_bytes) in [("200 B", 200), ("16 KiB", 16 << 10), ("1 MiB", 1 << 20)] {
        let batches = batches(batch_bytes);
        let built = build(&batches);
        let bytes: Bytes = built.parts.concat().into();
        let index = SegmentIndex::parse(&bytes).expect("sound");
        let span = index.span(0..index.chunks().len());
        let data = bytes.slice(span.bytes.start as usize..span.bytes.end as usize);
        let mut group = criterion.benchmark_group(format!("batches of {name}"));
        group.sample_size(20);
        group.bench_function("parse index", |bencher| bencher.iter(|| SegmentIndex::parse(black_box(&bytes)).is_ok()));
        group.throughput(Throughput::Bytes(data.len() as u64));
        group.bench_function("crc32c", |bencher| bencher.iter(|| crc32c::crc32c(black_box(&data))));
        group.bench_function("build", |bencher| bencher.iter(|| build(black_box(&batches)).meta.crc));
        group.bench_function("read", |bencher| {
            bencher.iter(|| index.read(&span, black_box(std::slice::from_ref(&data))).map(|all| all.len()))
        });
        group.finish();
        println!("index of {} bytes for {} batches in {} bytes", built.meta.index_length, batches.len(), data.len());
    }
}

criterion_group!(benches, segments);
criterion_main!(benches);
