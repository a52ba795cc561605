//! What must hold of any bytes that are read as a segment or as the end of a bundle (rules S11, S13).
//!
//! Offered by `crate::properties` with those of the other formats; here, since it builds and takes apart private fields.

use super::bundle::directory_and_footer;
use super::format::put_index;
use super::header::HEADER_BYTES;
use super::{
    AbortedTxn, AppendTimes, BUNDLE_FOOTER_BYTES, BundleDirectory, BundleFooter, BundleItem, ChunkSpan, Density,
    OpenTxn, SegmentIdentity, SegmentIndex, SegmentTail, SegmentWriter, first_at_or_after, first_of_largest_timestamp,
};
use crate::batch::{Batch, BatchBuilder, NewRecord};
use crate::codec::Codec;
use crate::epochs::EpochStart;
use crate::ids::{LeaderEpoch, Offset, PartitionId, ProducerId, TimestampMs, TopicId};
use crate::testing::{Seed, decoding};
use bytes::{Bytes, BytesMut};
use std::ops::Range;

/// Reads the input as a whole segment: header, index, data, append times, each also behind checksums that fit. Whether the
/// index is sound.
pub fn segment(input: &[u8]) -> bool {
    let _ = decoding(input, || SegmentIndex::parse(input));
    let mut bytes = input.to_vec();
    mend_front(&mut bytes);
    let Ok(mut index) = decoding(&bytes, || SegmentIndex::parse(&bytes)) else { return false };
    rewritten(&index);
    answers(&index);
    if let Some(data) = part(&index.data_bytes(), bytes.len()) {
        mend_batches(&mut bytes[data]);
    }
    for chunk in &mut index.chunks {
        if let Some(data) = part(&(chunk.position..chunk.position + chunk.size), bytes.len()) {
            chunk.crc = crc32c::crc32c(&bytes[data]);
        }
    }
    let bytes = Bytes::from(bytes);
    for number in 0..index.chunks.len() {
        read(&index, &index.span(number..number + 1), &bytes);
    }
    if !index.chunks.is_empty() {
        read(&index, &index.span(0..index.chunks.len()), &bytes);
    }
    if let Some(times) = part(&index.append_times_bytes(), bytes.len()).map(|times| &bytes[times]) {
        let _ = decoding(times, || AppendTimes::parse(&index, times));
        if let Ok(times) = decoding(times, || AppendTimes::fields(times)) {
            times_hold(&times);
        }
    }
    true
}

/// Where a part of the segment lies in bytes that may end before it.
fn part(range: &Range<u64>, size: usize) -> Option<Range<usize>> {
    (range.end <= size as u64).then_some(range.start as usize..range.end as usize)
}

/// Magic, version and checksums of header and blocks, where they are at hand. The header's layout is at `HEADER_BYTES`.
fn mend_front(bytes: &mut [u8]) {
    let Some((header, rest)) = bytes.split_first_chunk_mut::<HEADER_BYTES>() else { return };
    header[..10].copy_from_slice(b"MPSEGMNT\x01\0");
    header[44..48].fill(0);
    let length = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]) as usize;
    // Data of 4 GiB are none that could be at hand.
    let (block, times) = (length(12), length(12).saturating_add(length(16)));
    let times = times..times.saturating_add(length(24));
    if let Some(block) = rest.get(..block) {
        header[40..44].copy_from_slice(&crc32c::crc32c(block).to_le_bytes());
    }
    if let Some(block) = rest.get(times) {
        header[28..32].copy_from_slice(&crc32c::crc32c(block).to_le_bytes());
    }
    let crc = crc32c::crc32c(&header[..48]);
    header[48..].copy_from_slice(&crc.to_le_bytes());
}

/// The checksum of each batch, as far as lengths lead from one to the next.
fn mend_batches(mut data: &mut [u8]) {
    while let Some(len) = data.get(8..12).map(|len| u32::from_be_bytes([len[0], len[1], len[2], len[3]]) as usize) {
        let Some((batch, rest)) = data.split_at_mut_checked(len.saturating_add(12)) else { return };
        if batch.len() >= 61 {
            let crc = crc32c::crc32c(&batch[21..]);
            batch[17..21].copy_from_slice(&crc.to_be_bytes());
        }
        data = rest;
    }
}

/// What is read can be written, and reads back; written by another hand, varints may have been longer than they need be.
fn rewritten(index: &SegmentIndex) {
    let mut block = BytesMut::new();
    put_index(&mut block, index);
    let mut again = index.clone();
    again.header.index_block_length = block.len() as u32;
    again.header.index_block_crc = crc32c::crc32c(&block);
    let (old, new) = (index.data_bytes().start, again.data_bytes().start);
    for chunk in &mut again.chunks {
        chunk.position = chunk.position - old + new;
    }
    let mut front = BytesMut::new();
    again.header.put(&mut front);
    front.extend_from_slice(&block);
    assert_eq!(SegmentIndex::parse(&front).as_ref(), Ok(&again));
    let meta = again.meta(&front, 0);
    assert_eq!((meta.index_length as usize, meta.length), (front.len(), again.length()));
}

/// Whatever the index is asked, it answers with chunks inside the data.
fn answers(index: &SegmentIndex) {
    let data = index.data_bytes();
    let inside = |span: Option<ChunkSpan>| {
        if let Some(ChunkSpan { chunks, bytes }) = span {
            assert!(chunks.start < chunks.end && chunks.end <= index.chunks().len());
            assert!(data.start <= bytes.start && bytes.start < bytes.end && bytes.end <= data.end);
        }
    };
    let ends = index.chunks().iter().take(8).flat_map(|chunk| [chunk.base, chunk.end]);
    for offset in ends.chain([Offset(0), index.base(), index.end(), Offset(u64::MAX)]) {
        let one = index.plan(offset, 0);
        assert!(one.as_ref().is_none_or(|span| span.chunks.len() == 1), "one chunk at least, and no more than asked");
        assert_eq!(one.is_some(), index.plan(offset, u64::MAX).is_some());
        inside(one);
        inside(index.plan(offset, u64::MAX));
        for timestamp in [i64::MIN, 0, index.max_timestamp().0, i64::MAX] {
            inside(index.find_time(TimestampMs(timestamp), offset));
        }
        inside(index.find_max_timestamp(offset));
        if index.base() <= offset && offset < index.end() {
            assert!(index.epoch_at(offset) <= index.identity().epoch);
        }
    }
}

/// Reads the chunks of a span; batches that come out are whole, in order, and inside.
fn read(index: &SegmentIndex, span: &ChunkSpan, bytes: &Bytes) {
    let Some(data) = part(&span.bytes, bytes.len()).map(|data| bytes.slice(data)) else { return };
    let Ok(batches) = decoding(&data, || index.read(span, std::slice::from_ref(&data))) else { return };
    let mut at = index.chunks()[span.chunks.start].base;
    for batch in &batches {
        assert!(at <= batch.base_offset() && batch.base_offset() < batch.end_offset(), "batches are in order");
        assert_eq!(batch.verify_crc(), Ok(()));
        at = batch.end_offset();
    }
    assert!(at <= index.end());
    assert_eq!(batches.iter().map(Batch::size).sum::<usize>(), data.len(), "no byte is left out");
    for from in [index.base(), at] {
        let _ = first_at_or_after(&batches, TimestampMs(0), from);
        let _ = first_of_largest_timestamp(&batches, from);
    }
}

fn times_hold(times: &AppendTimes) {
    let mut out = BytesMut::new();
    times.put(&mut out);
    assert_eq!(AppendTimes::fields(&out).as_ref(), Ok(times), "what is read can be written");
    let count = times.batch_count();
    assert_eq!(times.get(count), None);
    if let Some(last) = count.checked_sub(1) {
        assert_eq!(times.get(last), Some(times.last()));
        assert!(times.get(0) <= times.get(last), "rule W3: append times never run backwards");
    }
}

/// Reads the input as the end of a bundle, behind checksums that fit and a length that fits the directory's segments.
pub fn bundle(input: &[u8]) -> bool {
    let _ = decoding(input, || BundleFooter::parse(input));
    let mut bytes = input.to_vec();
    let Some(footer) = mend_footer(&mut bytes) else { return false };
    let Range { start, end } = footer.directory_bytes();
    let directory = &bytes[..bytes.len() - BUNDLE_FOOTER_BYTES];
    let directory = &directory[directory.len() - (end - start) as usize..];
    let Ok(BundleDirectory { items }) = decoding(directory, || BundleDirectory::parse(&footer, directory)) else {
        return false;
    };
    let mut position = 0;
    for item in &items {
        assert!(item.position == position && item.base < item.end && u64::from(item.index_length) <= item.length);
        position += item.length;
    }
    assert_eq!(position, footer.directory_bytes().start, "the segments fill the object");
    let again = directory_and_footer(&items, position);
    let footer = BundleFooter::parse(&again).expect("what is read can be written");
    let read = BundleDirectory::parse(&footer, &again[..again.len() - BUNDLE_FOOTER_BYTES]);
    assert_eq!(read, Ok(BundleDirectory { items }), "what is read can be written");
    true
}

/// The footer, once magic, version, and checksums of footer and directory are as they should be.
fn mend_footer(bytes: &mut [u8]) -> Option<BundleFooter> {
    let at = bytes.len().checked_sub(BUNDLE_FOOTER_BYTES)?;
    let (directory, footer) = bytes.split_at_mut(at);
    // The length of the directory is at 8 of the footer; more than there is becomes all that there is.
    let claimed = u32::from_le_bytes([footer[8], footer[9], footer[10], footer[11]]) as usize;
    let length = claimed.min(directory.len());
    footer[8..12].copy_from_slice(&(length as u32).to_le_bytes());
    let crc = crc32c::crc32c(&directory[directory.len() - length..]);
    footer[12..16].copy_from_slice(&crc.to_le_bytes());
    footer[16..20].copy_from_slice(&[0, 0, 1, 0]);
    let crc = crc32c::crc32c(&footer[..20]);
    footer[20..24].copy_from_slice(&crc.to_le_bytes());
    footer[24..].copy_from_slice(b"MPBUNDLE");
    decoding(bytes, || BundleFooter::parse(bytes)).ok()
}

const PARTITION: PartitionId = PartitionId { topic: TopicId(0xfeed << 100), index: 4 };

/// A dense segment of several epochs with transactions, one of several chunks, and a sparse one that holds nothing.
#[must_use]
pub fn segment_seeds() -> Vec<Seed> {
    let dense = built(Density::Dense, &[20, 30, 10]);
    // Records of more than a chunk each: as many chunks as batches.
    let chunks = built(Density::Dense, &[1, 1]);
    let empty = built(Density::Sparse, &[]);
    vec![("dense".to_owned(), dense), ("two".to_owned(), chunks), ("sparse-empty".to_owned(), empty)]
}

fn built(density: Density, values: &[usize]) -> Vec<u8> {
    let base = Offset(1000);
    let identity = SegmentIdentity {
        cluster: "c".to_owned(),
        partition: PARTITION,
        topic_name: "flights".to_owned(),
        epoch: LeaderEpoch(9),
    };
    let mut writer = SegmentWriter::new(identity, base, density);
    let mut epochs = vec![EpochStart { epoch: LeaderEpoch(1), start: base }];
    for (nth, &size) in (1u32..).zip(values) {
        let mut builder = BatchBuilder::new(Codec::None);
        for time in [7, 5] {
            let record =
                NewRecord { timestamp: TimestampMs(time), key: None, value: Some(&vec![b'v'; size]), headers: &[] };
            builder.push(record);
        }
        let mut batch = builder.build();
        batch.place(writer.end(), LeaderEpoch(nth));
        if nth > 1 {
            epochs.push(EpochStart { epoch: LeaderEpoch(nth), start: writer.end() });
        }
        writer.push(&batch, TimestampMs(1_700_000_000_000 + i64::from(nth))).expect("its CRC is right");
    }
    let end = Offset(writer.end().0.max(base.0 + 3));
    let aborted = vec![AbortedTxn { marker: base, first: Offset(3), producer: ProducerId(9) }];
    let open = vec![OpenTxn { first: base, producer: ProducerId(1) }];
    let producers = Bytes::from_static(b"producers");
    let prefix_hash = 0x0123_4567_89ab_cdef;
    writer.finish(SegmentTail { end, prefix_hash, epochs, producers, aborted, open }).parts.concat()
}

/// The ends of bundles of one segment and of three.
#[must_use]
pub fn bundle_seeds() -> Vec<Seed> {
    let item = |nth: u64| BundleItem {
        partition: PartitionId { topic: PARTITION.topic, index: nth as u32 },
        topic_name: "flights".to_owned(),
        base: Offset(nth << 20),
        end: Offset((nth << 20) + 100),
        position: nth * 700,
        length: 700,
        index_length: 90,
    };
    [("one", 1), ("three", 3)]
        .map(|(name, count)| {
            let items: Vec<BundleItem> = (0..count).map(item).collect();
            (name.to_owned(), directory_and_footer(&items, count * 700).to_vec())
        })
        .into()
}
