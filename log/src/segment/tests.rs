//! Segments against the batches they were built from, and against every damage to their bytes.

use super::sample::{Built, PARTITION, Sample, batch, build, bytes_of, samples};
use super::*;
use crate::batch::Batch;
use bytes::{Bytes, BytesMut};
use proptest::prelude::*;

/// Everything of a segment, read as a rebuild from the bucket would.
#[derive(Debug, PartialEq)]
struct Everything {
    index: SegmentIndex,
    batches: Vec<(Batch, TimestampMs)>,
    producers: Bytes,
}

fn read_all(bytes: &Bytes) -> Result<Everything, SegmentError> {
    let index = SegmentIndex::parse(bytes)?;
    let range = |bytes: &Bytes, range: std::ops::Range<u64>| {
        let cut = SegmentError::Cut { what: "test", need: range.end, have: bytes.len() as u64 };
        let in_bytes = range.end <= bytes.len() as u64;
        in_bytes.then(|| bytes.slice(range.start as usize..range.end as usize)).ok_or(cut)
    };
    if index.length() != bytes.len() as u64 {
        return Err(SegmentError::Malformed { what: "test", reason: "another length" });
    }
    let times = AppendTimes::parse(&index, &range(bytes, index.append_times_bytes())?)?;
    let producers = range(bytes, index.producers_bytes())?;
    index.verify_producers(&producers)?;
    let mut batches = Vec::new();
    if !index.chunks().is_empty() {
        let span = index.span(0..index.chunks().len());
        batches = index.read_timed(&span, &[range(bytes, span.bytes.clone())?], &times)?;
    }
    Ok(Everything { index, batches, producers })
}

fn density() -> impl Strategy<Value = Density> {
    prop_oneof![Just(Density::Dense), Just(Density::Sparse)]
}

fn built() -> impl Strategy<Value = (Built, Bytes)> {
    let base = prop_oneof![Just(0u64), 1u64..1_000, Just(i32::MAX as u64), Just(1 << 40)];
    (density(), base, 0u32..50)
        .prop_flat_map(|(density, base, epoch)| (Just((density, base, epoch)), samples(density == Density::Dense)))
        .prop_map(|((density, base, epoch), samples)| {
            let built = build(&samples, Offset(base), epoch, density);
            let bytes = bytes_of(&built.segment.parts);
            (built, bytes)
        })
}

impl std::fmt::Debug for Built {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Built")
            .field("meta", &self.segment.meta)
            .field("batches", &self.batches)
            .finish_non_exhaustive()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// S7, S11: what was put in comes out, byte for byte, and the figures are those of the bytes.
    #[test]
    fn segment_reads_back_what_was_written((built, bytes) in built()) {
        let Built { object, segment: BuiltSegment { meta, .. }, batches, producers } = built;
        let read = read_all(&bytes).expect("a sound segment");
        prop_assert_eq!(&read.batches, &batches);
        prop_assert_eq!(&read.producers, &producers);
        let index = &read.index;
        prop_assert_eq!((index.base(), index.end()), (meta.base, meta.end));
        prop_assert_eq!(index.batch_count(), batches.len() as u64);
        prop_assert_eq!(meta.record_count, batches.iter().map(|(batch, _)| u64::from(batch.record_count())).sum::<u64>());
        prop_assert_eq!(Some(meta.max_timestamp), batches.iter().flat_map(|(batch, _)| batch.latest_timestamp()).max());
        prop_assert_eq!(Some(meta.max_append_time), batches.last().map(|(_, time)| *time));
        prop_assert_eq!(meta.prefix_hash, sample::prefix_hash_at(meta.end));
        prop_assert_eq!((meta.length, meta.crc), (bytes.len() as u64, crc32c::crc32c(&bytes)));
        prop_assert_eq!((object.length, object.crc), (meta.length, meta.crc));
        let front = &bytes[..meta.index_length as usize];
        prop_assert_eq!(index, &SegmentIndex::parse(front).expect("the front is enough"));
        prop_assert_eq!(index.meta(front, meta.crc), meta);

        // The data are the batches and nothing else.
        let mut data = BytesMut::new();
        batches.iter().for_each(|(batch, _)| batch.put(&mut data));
        let range = index.data_bytes();
        prop_assert_eq!(&bytes[range.start as usize..range.end as usize], &data[..]);
    }

    /// S13: bytes that come in pieces make the same batches, wherever they are cut, and a byte too few or too many is refused.
    #[test]
    fn pieces_read_as_the_whole_does((_, bytes) in built(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8)) {
        let index = SegmentIndex::parse(&bytes).expect("a sound segment");
        if index.chunks().is_empty() {
            return Ok(());
        }
        let span = index.span(0..index.chunks().len());
        let data = bytes.slice(span.bytes.start as usize..span.bytes.end as usize);
        let whole = index.read(&span, std::slice::from_ref(&data)).expect("sound");
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(data.len() + 1)).collect();
        cuts.extend([0, data.len()]);
        cuts.sort_unstable();
        let mut pieces: Vec<Bytes> = cuts.windows(2).map(|cut| data.slice(cut[0]..cut[1])).collect();
        prop_assert_eq!(&index.read(&span, &pieces).expect("sound"), &whole);
        pieces.push(Bytes::from_static(b"x"));
        prop_assert!(index.read(&span, &pieces).is_err(), "a byte too many");
        let short = [data.slice(1..)];
        prop_assert!(index.read(&span, &short).is_err(), "a byte too few");
    }

    /// Rule F4: the index finds what a scan from the start finds, whatever the offset and the limit.
    #[test]
    fn index_finds_what_a_scan_finds((built, bytes) in built(), bytes_max in 0u64..4_000) {
        let index = SegmentIndex::parse(&bytes).expect("a sound segment");
        let mut offsets: Vec<u64> = built.batches.iter().flat_map(|(batch, _)| {
            let (base, end) = (batch.base_offset().0, batch.end_offset().0);
            [base.saturating_sub(1), base, (base + end) / 2, end - 1, end]
        }).collect();
        offsets.extend([0, index.base().0, index.end().0 - 1, index.end().0, u64::MAX]);
        for offset in offsets.into_iter().map(Offset) {
            let bounds = ReadBounds { from: offset, until: Offset(u64::MAX), bytes_max };
            let mut expected = Vec::new();
            bounds.take(built.batches.iter().map(|(batch, _)| batch.clone()), &mut expected);
            let mut found = Vec::new();
            if let Some(span) = index.plan(offset, bytes_max) {
                let data = bytes.slice(span.bytes.start as usize..span.bytes.end as usize);
                let several = span.chunks.len() > 1;
                prop_assert!(!several || data.len() as u64 <= bytes_max, "more than was asked for");
                bounds.take(index.read(&span, &[data]).expect("sound"), &mut found);
            }
            // The plan counts whole chunks, so it may stop a little early, but never finds nothing where there is something.
            prop_assert_eq!(found.is_empty(), expected.is_empty());
            prop_assert_eq!(&found[..], &expected[..found.len()]);
            let first = expected.first().map(Batch::end_offset);
            prop_assert!(first.is_none_or(|end| end > offset));
        }
    }

    /// F10, F12, F16: a search by time finds the first record in order of offset, times in any order, inside batches too.
    #[test]
    fn time_index_finds_what_a_scan_finds((built, bytes) in built(), from in 0u64..80, timestamp in any::<i64>()) {
        let index = SegmentIndex::parse(&bytes).expect("a sound segment");
        let from = Offset(index.base().0 + from);
        let records: Vec<TimedOffset> = built.batches.iter().flat_map(|(batch, _)| batch.records().expect("sound"))
            .map(|record| record.expect("sound"))
            .map(|record| TimedOffset { offset: record.offset, timestamp: record.timestamp })
            .filter(|record| record.offset >= from).collect();
        let mut targets: Vec<i64> = records.iter().flat_map(|record| {
            [record.timestamp.0, record.timestamp.0.saturating_add(1), record.timestamp.0.saturating_sub(1)]
        }).collect();
        targets.push(timestamp);
        for target in targets.into_iter().map(TimestampMs) {
            let expected = records.iter().find(|record| record.timestamp >= target).copied();
            prop_assert_eq!(search_time(&index, &bytes, target, from), expected, "{:?} from {:?}", target, from);
        }
        let largest = records.iter().map(|record| record.timestamp).max();
        let expected = records.iter().find(|record| Some(record.timestamp) == largest).copied();
        prop_assert_eq!(search_largest(&index, &bytes, from), expected, "largest from {:?}", from);
    }

    #[test]
    fn bundle_reads_back_what_was_put_in(parts in prop::collection::vec(built(), 1..4)) {
        let mut writer = BundleWriter::new();
        parts.iter().for_each(|(built, _)| writer.push(built.segment.clone()));
        let object = writer.finish();
        let bytes = bytes_of(&object.parts);
        prop_assert_eq!((object.length, object.crc), (bytes.len() as u64, crc32c::crc32c(&bytes)));
        let directory = read_directory(&bytes).expect("a sound bundle");
        prop_assert_eq!(directory.items.len(), parts.len());
        for ((placed, item), (built, alone)) in object.segments.iter().zip(&directory.items).zip(&parts) {
            prop_assert_eq!((item.position, item.length, item.index_length),
                (placed.position, placed.meta.length, placed.meta.index_length));
            prop_assert_eq!((item.partition, item.base, item.end), (PARTITION, placed.meta.base, placed.meta.end));
            prop_assert_eq!(item.topic_name.as_str(), "flights");
            prop_assert_eq!(&placed.meta, &built.segment.meta);
            let range = item.position as usize..(item.position + item.length) as usize;
            prop_assert_eq!(&bytes.slice(range), alone);
        }
    }

    /// Parsers meet bytes from outside: whatever these are, there is an answer.
    #[test]
    fn any_bytes_are_refused_without_a_panic(noise in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = SegmentHeader::parse(&noise);
        let _ = SegmentIndex::parse(&noise);
        let _ = read_directory(&noise.into());
    }

    /// A right checksum proves nothing about who wrote the bytes: fields are checked, and what passes can be worked with.
    #[test]
    fn resealed_damage_never_panics((_, bytes) in built(), damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let mut damaged = bytes.to_vec();
        let index_length = SegmentIndex::parse(&bytes).expect("sound").data_bytes().start as usize;
        for (at, byte) in damage {
            damaged[12 + at.index(index_length - 12)] = byte;
        }
        let damaged = Bytes::from(reseal(damaged, index_length));
        if let Ok(index) = SegmentIndex::parse(&damaged) {
            prop_assert_eq!(index.check(), Ok(()));
            let _ = read_all(&damaged);
            let _ = index.plan(Offset(7), 1_000);
            let _ = search_time(&index, &damaged, TimestampMs(5), Offset(0));
        }
    }
}

/// Makes header and index checksums right again, where the damage left room for that.
fn reseal(mut bytes: Vec<u8>, index_length: usize) -> Vec<u8> {
    let index_crc = crc32c::crc32c(&bytes[HEADER_BYTES..index_length]);
    bytes[40..44].copy_from_slice(&index_crc.to_le_bytes());
    let header_crc = crc32c::crc32c(&bytes[..HEADER_BYTES - 4]);
    bytes[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&header_crc.to_le_bytes());
    bytes
}

fn read_directory(bytes: &Bytes) -> Result<BundleDirectory, SegmentError> {
    let footer = BundleFooter::parse(bytes)?;
    let range = footer.directory_bytes();
    let cut = SegmentError::Cut { what: "test", need: range.end, have: bytes.len() as u64 };
    if footer.object_length != bytes.len() as u64 {
        return Err(cut);
    }
    BundleDirectory::parse(&footer, &bytes[range.start as usize..range.end as usize])
}

fn chunks(index: &SegmentIndex, bytes: &Bytes, span: &ChunkSpan) -> Vec<Batch> {
    let Some(data) = bytes.get(span.bytes.start as usize..span.bytes.end as usize) else { return Vec::new() };
    index.read(span, &[Bytes::copy_from_slice(data)]).unwrap_or_default()
}

/// The first record at or after `from` with a time of at least `target`, by index.
fn search_time(index: &SegmentIndex, bytes: &Bytes, target: TimestampMs, mut from: Offset) -> Option<TimedOffset> {
    while let Some(span) = index.find_time(target, from) {
        let found = first_at_or_after(&chunks(index, bytes, &span), target, from).expect("sound");
        if found.is_some() {
            return found;
        }
        from = index.chunks()[span.chunks.start].end;
    }
    None
}

/// The first record of the largest time at or after `from`, by index: the chunk that straddles `from`, then the rest.
fn search_largest(index: &SegmentIndex, bytes: &Bytes, from: Offset) -> Option<TimedOffset> {
    let straddling = index.chunks().iter().position(|chunk| chunk.base < from && from < chunk.end);
    let spans = [straddling.map(|at| index.span(at..at + 1)), index.find_max_timestamp(from)];
    let batches: Vec<Batch> = spans.iter().flatten().flat_map(|span| chunks(index, bytes, span)).collect();
    first_of_largest_timestamp(&batches, from).expect("sound")
}

fn small() -> (Built, Bytes) {
    let mut samples: Vec<Sample> = (0..6).map(|nth| Sample::of_times(&[nth, nth * 7, 3])).collect();
    samples[3].value_bytes = 1_100;
    samples[4].new_epoch = true;
    let built = build(&samples, Offset(100), 5, Density::Dense);
    let bytes = bytes_of(&built.segment.parts);
    (built, bytes)
}

/// A sparse one, with room between the batches of one chunk for an offset to be wrong and still in order.
fn small_sparse() -> (Built, Bytes) {
    let samples: Vec<Sample> = (0..6).map(|nth| Sample { gap: 9, ..Sample::of_times(&[nth, 3]) }).collect();
    let built = build(&samples, Offset(100), 5, Density::Sparse);
    let bytes = bytes_of(&built.segment.parts);
    (built, bytes)
}

/// S13: a damaged segment is refused; there is no byte in it that no checksum covers.
#[test]
fn every_cut_and_every_flipped_bit_is_refused() {
    for (_, bytes) in [small(), small_sparse()] {
        let sound = read_all(&bytes).expect("sound");
        assert!(sound.index.chunks().len() > 1, "several chunks");
        for cut in 0..bytes.len() {
            assert!(read_all(&bytes.slice(..cut)).is_err(), "cut at {cut}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(read_all(&damaged.into()).is_err(), "bit {bit} flipped");
        }
    }
}

#[test]
fn every_cut_and_every_flipped_bit_of_a_directory_is_refused() {
    let mut writer = BundleWriter::new();
    let segment = small().0.segment;
    (0..3).for_each(|_| writer.push(segment.clone()));
    let bytes = bytes_of(&writer.finish().parts);
    let start = segment.meta.length as usize * 3;
    assert!(read_directory(&bytes).is_ok());
    for at in start..bytes.len() {
        assert!(read_directory(&bytes.slice(..at)).is_err(), "cut at {at}");
        for bit in 0..8 {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 1 << bit;
            assert!(read_directory(&damaged.into()).is_err(), "bit {bit} of byte {at} flipped");
        }
    }
}

/// The index knows where each batch stands: sound batches in another place are not served (S2).
#[test]
fn sound_batches_in_the_wrong_place_are_refused() {
    let (built, bytes) = small();
    let index = SegmentIndex::parse(&bytes).expect("sound");
    let chunk = index.chunks()[0];
    let span = index.span(0..1);
    check_replaced(&index, &span, chunk.crc, built.batches[0].0.clone(), true);
    for (base, epoch) in [(101, 5), (99, 5), (100, 4), (100, 6)] {
        let mut moved = built.batches[0].0.clone();
        moved.place(Offset(base), LeaderEpoch(epoch));
        check_replaced(&index, &span, chunk.crc, moved, false);
    }
    // It ends before the next begins: an offset would be skipped without a word (S7, S19).
    assert!(chunk.batch_count > 1, "a batch follows in the chunk");
    let shorter = sample::with_last_offset_delta(&built.batches[0].0, 1);
    check_replaced(&index, &span, chunk.crc, shorter, false);
}

/// Puts `batch` for the first of the chunk, with the chunk's checksum made right again.
fn check_replaced(index: &SegmentIndex, span: &ChunkSpan, crc: u32, batch: Batch, accepted: bool) {
    let mut index = index.clone();
    let (_, bytes) = small();
    let mut data = BytesMut::new();
    batch.put(&mut data);
    data.extend_from_slice(&bytes[span.bytes.start as usize + data.len()..span.bytes.end as usize]);
    index.chunks[0].crc = crc32c::crc32c(&data);
    assert_eq!(index.chunks[0].crc == crc, accepted);
    assert_eq!(index.read(span, &[data.freeze()]).is_ok(), accepted);
}

/// Case S3: offsets 0 and 2^31 in one segment, as compaction leaves them; the spans around 2^31 as well.
#[test]
fn offsets_more_than_two_to_the_31_apart_stay_in_order() {
    for far in [2_147_483_646u64, 2_147_483_647, 2_147_483_648, 1 << 33] {
        let mut samples = vec![Sample::of_times(&[1]), Sample::of_times(&[2])];
        samples[1].gap = far - 1;
        let built = build(&samples, Offset(0), 0, Density::Sparse);
        let bytes = bytes_of(&built.segment.parts);
        assert_eq!((built.segment.meta.base, built.segment.meta.end), (Offset(0), Offset(far + 1 + 3)));
        let read = read_all(&bytes).expect("sound");
        let offsets: Vec<u64> = read.batches.iter().map(|(batch, _)| batch.base_offset().0).collect();
        assert_eq!(offsets, [0, far]);
        for (from, found) in [(0, Some(0)), (1, Some(far)), (far, Some(far)), (far + 1, None)] {
            let span = read.index.plan(Offset(from), u64::MAX);
            let mut batches = span.map(|span| chunks(&read.index, &bytes, &span)).unwrap_or_default();
            batches.retain(|batch| batch.end_offset() > Offset(from));
            assert_eq!(batches.first().map(|batch| batch.base_offset().0), found, "from {from}");
        }
    }
}

/// Rule C3: compaction may leave nothing of a range, which is still covered.
#[test]
fn segment_without_batches_covers_its_range() {
    let epochs = vec![EpochStart { epoch: LeaderEpoch(1), start: Offset(10) }];
    let built = SegmentWriter::new(identity(), Offset(10), Density::Sparse).finish(tail(Offset(20), epochs));
    let read = read_all(&bytes_of(&built.parts)).expect("sound");
    assert_eq!((read.index.base(), read.index.end(), read.batches.len()), (Offset(10), Offset(20), 0));
    assert_eq!((built.meta.max_timestamp, built.meta.max_append_time), (TimestampMs::NONE, TimestampMs::NONE));
    assert_eq!(read.index.plan(Offset(10), 1), None);
}

/// Cases F10, F11, F12, F14, F16, with their figures.
#[test]
fn searches_by_time_answer_as_kafka_does() {
    const T: i64 = 1_700_000_000_000;
    const DAY: i64 = 86_400_000;
    let f10 = [Sample::of_times(&[2, 4]), Sample::of_times(&[6, 8])];
    for (target, offset) in [(2, Some(0)), (3, Some(1)), (4, Some(1)), (7, Some(3)), (8, Some(3)), (9, None)] {
        check_time(&f10, target, offset);
    }
    let v17 = [Sample::of_times(&[T + 5_000, T, T + 9_000, T + 1_000])];
    for (target, offset) in [(T + 1, Some(0)), (T + 5_001, Some(2)), (T + 9_001, None)] {
        check_time(&v17, target, offset);
    }
    let f16 = [T, T - 60 * DAY, T + 50 * DAY, T + 1].map(|time| Sample::of_times(&[time]));
    for (target, offset) in [(T - 61 * DAY, Some(0)), (T, Some(0)), (T + 1, Some(2)), (T + 50 * DAY + 1, None)] {
        check_time(&f16, target, offset);
    }
    check_largest(&[Sample::of_times(&[4, 7, 7])], 0, 1);
    check_largest(&v17, 0, 2);
    check_largest(&v17, 3, 3);
    check_largest(&[v17[0].clone(), Sample::of_times(&[T - 1])], 0, 2);
    check_largest(&f16, 0, 2);
    check_largest(&f16, 3, 3);
}

fn check_time(samples: &[Sample], target: i64, offset: Option<u64>) {
    let bytes = bytes_of(&build(samples, Offset(0), 0, Density::Dense).segment.parts);
    let index = SegmentIndex::parse(&bytes).expect("sound");
    let found = search_time(&index, &bytes, TimestampMs(target), Offset(0));
    assert_eq!(found.map(|found| found.offset.0), offset, "{target} in {samples:?}");
}

fn check_largest(samples: &[Sample], from: u64, offset: u64) {
    let bytes = bytes_of(&build(samples, Offset(0), 0, Density::Dense).segment.parts);
    let index = SegmentIndex::parse(&bytes).expect("sound");
    let found = search_largest(&index, &bytes, Offset(from));
    assert_eq!(found.map(|found| found.offset.0), Some(offset), "largest from {from} in {samples:?}");
}

/// Case F16: times at the ends of 64 bits, in any order, each in a chunk of its own.
#[test]
fn extreme_times_stay_what_they_are() {
    let times = [i64::MAX, i64::MIN, -1, i64::MAX - 1, 0, i64::MIN];
    let mut writer = SegmentWriter::new(identity(), Offset(0), Density::Dense).with_chunk_bytes(1);
    for time in times {
        let batch = batch(&Sample::of_times(&[0]), writer.end(), LeaderEpoch(0));
        writer.push_timed(&batch, TimestampMs(0), TimestampMs(time)).expect("its CRC is right");
    }
    let epochs = vec![EpochStart { epoch: LeaderEpoch(0), start: Offset(0) }];
    let built = writer.finish(tail(Offset(6), epochs));
    let index = SegmentIndex::parse(&bytes_of(&built.parts)).expect("sound");
    let found: Vec<i64> = index.chunks().iter().map(|chunk| chunk.max_timestamp.0).collect();
    assert_eq!(found, times);
    assert_eq!(built.meta.max_timestamp, TimestampMs(i64::MAX));
}

fn identity() -> SegmentIdentity {
    SegmentIdentity { cluster: "c".into(), partition: PARTITION, topic_name: "t".into(), epoch: LeaderEpoch(2) }
}

fn tail(end: Offset, epochs: Vec<EpochStart>) -> SegmentTail {
    let producers = Bytes::from_static(b"p");
    SegmentTail { end, prefix_hash: 0, epochs, producers, aborted: Vec::new(), open: Vec::new() }
}

/// Cases F12 and F14: a producer's header may understate or overstate its times; searches go by the records.
#[test]
fn searches_by_time_do_not_trust_headers() {
    for claimed in [i64::MIN, 0, 6, i64::MAX] {
        let mut writer = SegmentWriter::new(identity(), Offset(0), Density::Dense).with_chunk_bytes(1);
        for times in [[1, 5], [9, 2], [3, 3]] {
            let batch = batch(&Sample::of_times(&times), writer.end(), LeaderEpoch(0));
            writer.push(&sample::with_max_timestamp(&batch, claimed), TimestampMs(0)).expect("its CRC is right");
        }
        let epochs = vec![EpochStart { epoch: LeaderEpoch(0), start: Offset(0) }];
        let bytes = bytes_of(&writer.finish(tail(Offset(6), epochs)).parts);
        let index = SegmentIndex::parse(&bytes).expect("sound");
        assert_eq!(index.max_timestamp(), TimestampMs(9));
        for (target, offset) in [(2, Some(1)), (5, Some(1)), (6, Some(2)), (9, Some(2)), (10, None)] {
            let found = search_time(&index, &bytes, TimestampMs(target), Offset(0));
            assert_eq!(found.map(|found| found.offset.0), offset, "{target} where headers claim {claimed}");
        }
        let largest = search_largest(&index, &bytes, Offset(0));
        assert_eq!(largest, Some(TimedOffset { offset: Offset(2), timestamp: TimestampMs(9) }));
    }
}

/// Large records are shared with whoever holds the batch, not copied.
#[test]
fn records_of_large_batches_are_not_copied() {
    let large = Sample { value_bytes: 70_000, ..Sample::of_times(&[1, 2]) };
    let Built { segment, batches, .. } = build(&[large.clone(), large], Offset(0), 0, Density::Dense);
    for (batch, _) in &batches {
        let records = batch.records_bytes().as_ptr();
        assert!(segment.parts.iter().any(|part| part.as_ptr() == records), "shared");
    }
    let bytes = bytes_of(&segment.parts);
    let read = read_all(&bytes).expect("sound");
    let range = bytes.as_ptr_range();
    assert!(
        read.batches.iter().all(|(batch, _)| range.contains(&batch.records_bytes().as_ptr())),
        "read without a copy"
    );
}

/// Rule R13: damage in memory does not get a checksum that makes it look sound.
#[test]
fn damaged_batch_is_not_built_in() {
    let mut bytes = BytesMut::new();
    batch(&Sample::of_times(&[1]), Offset(0), LeaderEpoch(0)).put(&mut bytes);
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    let damaged = Batch::take(&mut bytes.freeze()).expect("its header is sound").expect("not empty");
    let mut writer = SegmentWriter::new(identity(), Offset(0), Density::Dense);
    assert!(writer.push(&damaged, TimestampMs(0)).is_err());
    assert_eq!((writer.end(), writer.data_length()), (Offset(0), 0));
}

#[test]
#[should_panic(expected = "S7")]
fn gap_in_a_dense_segment_is_a_mistake() {
    let gap = Sample { gap: 1, ..Sample::of_times(&[1]) };
    let _ = build(&[Sample::of_times(&[1]), gap], Offset(0), 0, Density::Dense);
}

#[test]
#[should_panic(expected = "append times run backwards")]
fn append_time_running_backwards_is_a_mistake() {
    let back = Sample { waited_ms: -1, ..Sample::of_times(&[1]) };
    let _ = build(&[Sample::of_times(&[1]), back], Offset(0), 0, Density::Dense);
}

#[test]
fn newer_format_says_to_upgrade() {
    let (_, bytes) = small();
    let mut newer = bytes.to_vec();
    newer[8] = 2;
    assert_eq!(SegmentIndex::parse(&newer), Err(SegmentError::Corrupt { what: "segment header" }));
    let index_length = SegmentIndex::parse(&bytes).expect("sound").data_bytes().start as usize;
    let error = SegmentIndex::parse(&reseal(newer, index_length)).expect_err("newer");
    assert_eq!(error, SegmentError::NewerVersion { found: 2, known: 1 });
}

/// Readers reserve room for the batches that an index counts.
#[test]
fn chunk_that_claims_more_batches_than_fit_is_refused() {
    let (built, bytes) = small();
    let index = SegmentIndex::parse(&bytes).expect("sound");
    for claimed in [1 << 20, u32::MAX] {
        let mut index = index.clone();
        index.chunks[0].batch_count = claimed;
        assert_eq!(index.check(), Err("a chunk of more batches than fit in it"), "{claimed}");
    }
    assert_eq!(index.batch_count(), built.batches.len() as u64);
}
