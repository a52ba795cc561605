//! Admission of produced batches, the hot path of produce, and what it is made of.

use bytes::Bytes;
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use millpond_log::batch::{BatchBuilder, NewRecord, ProduceRules, TimestampType};
use millpond_log::codec::Codec;
use millpond_log::limits::BATCH_BYTES_MAX;
use millpond_log::{Batch, TimestampMs};
use std::hint::black_box;

const RULES: ProduceRules = ProduceRules {
    batch_bytes_max: BATCH_BYTES_MAX,
    compacted: false,
    timestamp_type: TimestampType::CreateTime,
    timestamp_before_max_ms: i64::MAX,
    timestamp_after_max_ms: 3_600_000,
    now: TimestampMs(1_700_000_000_000),
    codec: None,
};

/// A batch of about `size` bytes before compression, of records of 100 or of 1000 bytes that compress about as events do.
fn batch(codec: Codec, size: usize, value_size: usize) -> Batch {
    let mut builder = BatchBuilder::new(codec);
    let mut state = 1_u32;
    while builder.size() < size {
        let mut value = Vec::with_capacity(value_size);
        while value.len() < value_size {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            value.extend_from_slice(format!("{{\"tail\":\"N{}\",\"delay\":{}}}", state >> 18, state >> 26).as_bytes());
        }
        let key = (state >> 20).to_be_bytes();
        let timestamp = TimestampMs(RULES.now.0 + i64::from(builder.len()));
        builder.push(NewRecord { timestamp, key: Some(&key), value: Some(&value[..value_size]), headers: &[] });
    }
    builder.build()
}

/// Throughput is in bytes before compression.
fn admit(c: &mut Criterion) {
    let mut group = c.benchmark_group("admit");
    for (size_name, size) in [("16KiB", 16 << 10), ("1MiB", 1 << 20)] {
        for value_size in [100, 1000] {
            for codec in Codec::ALL {
                let batch = batch(codec, size, value_size);
                group.throughput(Throughput::Bytes(size as u64));
                group.bench_function(BenchmarkId::new(format!("{codec}/{size_name}"), value_size), |bench| {
                    bench.iter_batched(|| batch.clone(), |batch| batch.admit(black_box(&RULES)), BatchSize::SmallInput);
                });
            }
        }
    }
    group.finish();
}

fn parts(c: &mut Criterion) {
    let batch = batch(Codec::None, 1 << 20, 100);
    let mut group = c.benchmark_group("parts");
    group.throughput(Throughput::Bytes(batch.size() as u64));
    group.bench_function("crc", |bench| bench.iter(|| black_box(&batch).verify_crc()));
    group.bench_function("records", |bench| bench.iter(|| black_box(&batch).records().map(Iterator::count)));
    group.bench_function("latest_timestamp", |bench| bench.iter(|| black_box(&batch).latest_timestamp()));
    group.bench_function("stamp_append_time", |bench| {
        let mut stamped = batch.clone();
        bench.iter(|| stamped.stamp_append_time(black_box(TimestampMs(1))));
    });
    let mut bytes = Vec::new();
    batch.put(&mut bytes);
    let bytes = Bytes::from(bytes);
    group.bench_function("take", |bench| bench.iter(|| Batch::take(&mut black_box(bytes.clone()))));
    group.finish();
}

criterion_group!(benches, admit, parts);
criterion_main!(benches);
