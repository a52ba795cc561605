//! Objects: one segment as it is, or a bundle of segments of many partitions with a directory behind them.
//!
//! A bundle is `segment | segment | … | directory | footer`. The directory serves a rebuild from the bucket and garbage
//! collection; readers come by the manifest, which knows each segment's place.

use super::write::BuiltSegment;
use super::{SegmentError, SegmentMeta};
use crate::fields::{FieldError, Fields, put_text, put_varint};
use crate::ids::{Offset, PartitionId, TopicId};
use bytes::{BufMut, Bytes, BytesMut};
use std::ops::Range;

const MAGIC: [u8; 8] = *b"MPBUNDLE";
const VERSION: u16 = 1;

/// Size of a bundle's footer in bytes: the end of the object.
///
/// `object length u64 | directory length u32 | directory CRC u32 | reserved u16 | version u16 | footer CRC u32 | magic 8`.
pub const BUNDLE_FOOTER_BYTES: usize = 32;

/// Where a segment lies in its object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedSegment {
    /// Its first byte, from the object's start.
    pub position: u64,
    /// What the manifest says of it.
    pub meta: SegmentMeta,
}

/// An object to upload: its bytes in parts, to be written one after the other.
#[derive(Clone, Debug)]
pub struct BuiltObject {
    /// The bytes. Immutable during upload (rule T3).
    pub parts: Vec<Bytes>,
    /// Size of the object in bytes.
    pub length: u64,
    /// CRC-32C of the whole object, to compare with what the store computed (rule T3).
    pub crc: u32,
    /// The segments in it, in order.
    pub segments: Vec<PlacedSegment>,
}

impl From<BuiltSegment> for BuiltObject {
    /// The object that is one segment.
    fn from(segment: BuiltSegment) -> BuiltObject {
        let BuiltSegment { parts, meta, .. } = segment;
        BuiltObject { parts, length: meta.length, crc: meta.crc, segments: vec![PlacedSegment { position: 0, meta }] }
    }
}

/// Puts segments one after the other into one object.
#[derive(Default)]
pub struct BundleWriter {
    parts: Vec<Bytes>,
    length: u64,
    crc: u32,
    segments: Vec<PlacedSegment>,
    topic_names: Vec<String>,
}

impl BundleWriter {
    /// An empty bundle.
    #[must_use]
    pub fn new() -> BundleWriter {
        BundleWriter::default()
    }

    /// Size so far in bytes, without the directory.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Segments so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.segments.len()
    }

    /// Whether nothing was pushed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Adds a segment.
    pub fn push(&mut self, segment: BuiltSegment) {
        let BuiltSegment { parts, meta, topic_name } = segment;
        // A segment is at most `SEGMENT_BYTES_MAX` long, which fits any `usize`.
        self.crc = crc32c::crc32c_combine(self.crc, meta.crc, meta.length as usize);
        let position = self.length;
        self.length += meta.length;
        self.parts.extend(parts);
        self.segments.push(PlacedSegment { position, meta });
        self.topic_names.push(topic_name);
    }

    /// The object, with its directory.
    ///
    /// Panics when empty.
    #[must_use]
    pub fn finish(mut self) -> BuiltObject {
        assert!(!self.is_empty(), "a bundle holds at least one segment");
        let item = |(PlacedSegment { position, meta }, topic_name): (&PlacedSegment, String)| BundleItem {
            partition: meta.partition,
            topic_name,
            base: meta.base,
            end: meta.end,
            position: *position,
            length: meta.length,
            index_length: meta.index_length,
        };
        let items: Vec<BundleItem> = self.segments.iter().zip(self.topic_names).map(item).collect();
        let end = directory_and_footer(&items, self.length);
        let length = self.length + end.len() as u64;
        let crc = crc32c::crc32c_append(self.crc, &end);
        self.parts.push(end.freeze());
        BuiltObject { parts: self.parts, length, crc, segments: self.segments }
    }
}

/// The end of a bundle whose segments, `position` bytes of them, these are.
pub(super) fn directory_and_footer(items: &[BundleItem], position: u64) -> BytesMut {
    let mut end = BytesMut::new();
    put_varint(&mut end, items.len() as u64);
    for item in items {
        end.put_u128_le(item.partition.topic.0);
        put_varint(&mut end, u64::from(item.partition.index));
        put_text(&mut end, &item.topic_name);
        put_varint(&mut end, item.base.0);
        put_varint(&mut end, item.end.0 - item.base.0);
        put_varint(&mut end, item.position);
        put_varint(&mut end, item.length);
        put_varint(&mut end, u64::from(item.index_length));
    }
    let directory_length = u32::try_from(end.len()).expect("a bundle's segments are few");
    let directory_crc = crc32c::crc32c(&end);
    let footer = end.len();
    end.put_u64_le(position + end.len() as u64 + BUNDLE_FOOTER_BYTES as u64);
    end.put_u32_le(directory_length);
    end.put_u32_le(directory_crc);
    end.put_u16_le(0);
    end.put_u16_le(VERSION);
    let footer_crc = crc32c::crc32c(&end[footer..]);
    end.put_u32_le(footer_crc);
    end.put_slice(&MAGIC);
    debug_assert_eq!(end.len() - footer, BUNDLE_FOOTER_BYTES);
    end
}

/// The end of a bundle: where its directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BundleFooter {
    /// Size of the object in bytes.
    pub object_length: u64,
    directory_length: u32,
    directory_crc: u32,
}

impl BundleFooter {
    /// Reads the last `BUNDLE_FOOTER_BYTES` bytes of an object; more before them are ignored.
    ///
    /// # Errors
    /// `Cut`, `Corrupt`, `NewerVersion`; `Malformed` also when the object is no bundle.
    pub fn parse(bytes: &[u8]) -> Result<BundleFooter, SegmentError> {
        const WHAT: &str = "bundle footer";
        let have = bytes.len() as u64;
        let bytes = bytes.last_chunk::<BUNDLE_FOOTER_BYTES>();
        let bytes = bytes.ok_or(SegmentError::Cut { what: WHAT, need: BUNDLE_FOOTER_BYTES as u64, have })?;
        let (covered, rest) = bytes.split_at(BUNDLE_FOOTER_BYTES - 12);
        let (crc, magic) = rest.split_at(4);
        let mut fields = Fields::new(covered);
        let parsed: Result<_, FieldError> =
            (|| Ok((fields.u64()?, fields.u32()?, fields.u32()?, fields.u16()?, fields.u16()?)))();
        let (object_length, directory_length, directory_crc, reserved, version) =
            parsed.map_err(SegmentError::field(WHAT, covered.len()))?;
        let ends_before_it = (BUNDLE_FOOTER_BYTES as u64).checked_add(u64::from(directory_length));
        match () {
            () if magic != MAGIC => Err(SegmentError::Malformed { what: WHAT, reason: "no bundle ends here" }),
            () if crc32c::crc32c(covered).to_le_bytes() != crc => Err(SegmentError::Corrupt { what: WHAT }),
            () if version > VERSION => Err(SegmentError::NewerVersion { found: version, known: VERSION }),
            () if version != VERSION || reserved != 0 || ends_before_it.is_none_or(|end| end > object_length) => {
                Err(SegmentError::Malformed { what: WHAT, reason: "unknown version or impossible lengths" })
            }
            () => Ok(BundleFooter { object_length, directory_length, directory_crc }),
        }
    }

    /// Bytes of the directory, from the object's start.
    #[must_use]
    pub fn directory_bytes(&self) -> Range<u64> {
        let end = self.object_length - BUNDLE_FOOTER_BYTES as u64;
        end - u64::from(self.directory_length)..end
    }
}

/// What a bundle says of one of its segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleItem {
    /// The partition.
    pub partition: PartitionId,
    /// Name of its topic when the segment was written.
    pub topic_name: String,
    /// First offset covered.
    pub base: Offset,
    /// Offset after the last covered.
    pub end: Offset,
    /// First byte of the segment, from the object's start.
    pub position: u64,
    /// Size of the segment in bytes.
    pub length: u64,
    /// Size of its header and index in bytes.
    pub index_length: u32,
}

/// The segments of a bundle, in order; together they fill the object up to the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleDirectory {
    /// The segments.
    pub items: Vec<BundleItem>,
}

impl BundleDirectory {
    /// Reads the bytes that `footer.directory_bytes()` names.
    ///
    /// # Errors
    /// `Cut`, `Corrupt` or `Malformed`.
    pub fn parse(footer: &BundleFooter, bytes: &[u8]) -> Result<BundleDirectory, SegmentError> {
        const WHAT: &str = "bundle directory";
        let (need, have) = (u64::from(footer.directory_length), bytes.len() as u64);
        match () {
            () if have < need => return Err(SegmentError::Cut { what: WHAT, need, have }),
            () if have > need || crc32c::crc32c(bytes) != footer.directory_crc => {
                return Err(SegmentError::Corrupt { what: WHAT });
            }
            () => {}
        }
        let items = items(bytes).map_err(SegmentError::field(WHAT, bytes.len()))?;
        let mut position = 0u64;
        for item in &items {
            let holds_its_index = u64::from(item.index_length) <= item.length && item.base < item.end;
            if item.position != position || !holds_its_index {
                return Err(SegmentError::Malformed { what: WHAT, reason: "segments do not adjoin" });
            }
            position = position
                .checked_add(item.length)
                .ok_or(SegmentError::Malformed { what: WHAT, reason: "lengths beyond 64 bits" })?;
        }
        if position != footer.directory_bytes().start {
            return Err(SegmentError::Malformed { what: WHAT, reason: "segments do not fill the object" });
        }
        Ok(BundleDirectory { items })
    }
}

fn items(bytes: &[u8]) -> Result<Vec<BundleItem>, FieldError> {
    let mut fields = Fields::new(bytes);
    let count = fields.count(23)?;
    let mut items = Vec::with_capacity(count);
    for _ in 0..count {
        let topic = TopicId(fields.u128()?);
        let partition = PartitionId { topic, index: fields.varint32()? };
        let topic_name = fields.text()?.to_owned();
        let base = Offset(fields.varint()?);
        let end =
            base.0.checked_add(fields.varint()?).map(Offset).ok_or(FieldError::Malformed("offset beyond 64 bits"))?;
        let position = fields.varint()?;
        let length = fields.varint()?;
        let index_length = fields.varint32()?;
        items.push(BundleItem { partition, topic_name, base, end, position, length, index_length });
    }
    fields.end()?;
    Ok(items)
}
