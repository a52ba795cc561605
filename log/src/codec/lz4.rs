//! LZ4 frame format: one or several frames, independent or linked blocks, every checksum verified.
//!
//! The frame is read here and only its blocks by `lz4_flex`: its own frame reader takes a stream cut between blocks for a
//! whole one, and copies each block once more. Never allocates by the block size or the content size that a frame claims.

use super::{CodecError, first_guess};
use lz4_flex::block::{DecompressError, decompress_into, decompress_into_with_dict};
use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
use std::io::Write;
use twox_hash::XxHash32;

const MAGIC: u32 = 0x184D_2204;
/// How far back a match may reach, into earlier blocks too where blocks are linked.
const WINDOW_BYTES: usize = 64 << 10;
/// Most bytes that one byte of a block can make: a continued match length of 255.
const RATIO_MAX: usize = 255;

const FLAG_RESERVED: u8 = 0b0000_0010;
const FLAG_DICTIONARY: u8 = 0b0000_0001;
const FLAG_CONTENT_CHECKSUM: u8 = 0b0000_0100;
const FLAG_CONTENT_SIZE: u8 = 0b0000_1000;
const FLAG_BLOCK_CHECKSUMS: u8 = 0b0001_0000;
const FLAG_INDEPENDENT: u8 = 0b0010_0000;
const VERSION_MASK: u8 = 0b1100_0000;
const VERSION: u8 = 0b0100_0000;
const UNCOMPRESSED_BIT: u32 = 1 << 31;

/// Which streams are taken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// All that the format allows.
    Any,
    /// One frame of independent blocks: all that Kafka's Java client reads.
    Kafka,
}

/// One frame of independent blocks of 64 KiB, as Kafka's Java client writes it and alone reads it.
pub(super) fn deflate(raw: &[u8]) -> Vec<u8> {
    let layout = FrameInfo::new().block_mode(BlockMode::Independent).block_size(BlockSize::Max64KB);
    let mut encoder = FrameEncoder::with_frame_info(layout, Vec::with_capacity(raw.len() / 2));
    encoder.write_all(raw).expect("a `Vec` takes every write");
    encoder.finish().expect("a `Vec` takes every write")
}

pub(super) fn inflate(packed: &[u8], max: usize, dialect: Dialect) -> Result<Vec<u8>, CodecError> {
    let mut input = Input(packed);
    let mut raw = Vec::with_capacity(first_guess(packed.len(), max));
    loop {
        let descriptor = read_descriptor(&mut input)?;
        if descriptor.linked && dialect == Dialect::Kafka {
            return Err(CodecError::Corrupt("lz4 blocks are linked, which Kafka's clients do not read"));
        }
        inflate_frame(&descriptor, &mut input, &mut raw, max)?;
        if input.0.is_empty() {
            return Ok(raw);
        }
        if dialect == Dialect::Kafka {
            return Err(CodecError::Corrupt("more than one lz4 frame, of which Kafka's clients read one"));
        }
    }
}

/// What a frame's descriptor says.
struct Descriptor {
    linked: bool,
    block_checksums: bool,
    content_checksum: bool,
    content_size: Option<u64>,
    block_bytes_max: usize,
}

fn inflate_frame(
    descriptor: &Descriptor,
    input: &mut Input<'_>,
    raw: &mut Vec<u8>,
    max: usize,
) -> Result<(), CodecError> {
    let frame_start = raw.len();
    loop {
        let size = input.u32()?;
        if size == 0 {
            break;
        }
        let len = (size & !UNCOMPRESSED_BIT) as usize;
        if len > descriptor.block_bytes_max {
            return Err(CodecError::Corrupt("lz4 block over its frame's block size"));
        }
        let block = input.take(len)?;
        if descriptor.block_checksums && input.u32()? != XxHash32::oneshot(0, block) {
            return Err(CodecError::Corrupt("lz4 block checksum mismatch"));
        }
        if size & UNCOMPRESSED_BIT == 0 {
            inflate_block(block, descriptor, raw, frame_start, max)?;
        } else if max - raw.len() < len {
            return Err(CodecError::TooLarge { max });
        } else {
            raw.extend_from_slice(block);
        }
    }
    let content = &raw[frame_start..];
    if descriptor.content_size.is_some_and(|size| size != content.len() as u64) {
        return Err(CodecError::Corrupt("lz4 frame of another size than it says"));
    }
    if descriptor.content_checksum && input.u32()? != XxHash32::oneshot(0, content) {
        return Err(CodecError::Corrupt("lz4 content checksum mismatch"));
    }
    Ok(())
}

fn read_descriptor(input: &mut Input<'_>) -> Result<Descriptor, CodecError> {
    if input.u32()? != MAGIC {
        return Err(CodecError::Corrupt("no lz4 frame"));
    }
    let start = input.0;
    let [flags, block_size] = input.array()?;
    if flags & VERSION_MASK != VERSION || flags & FLAG_RESERVED != 0 || block_size & 0b1000_1111 != 0 {
        return Err(CodecError::Corrupt("lz4 frame of an unknown version"));
    }
    if flags & FLAG_DICTIONARY != 0 {
        return Err(CodecError::Corrupt("lz4 frame that needs a dictionary"));
    }
    let block_bytes_max = match block_size >> 4 {
        4 => 64 << 10,
        5 => 256 << 10,
        6 => 1 << 20,
        7 => 4 << 20,
        _ => return Err(CodecError::Corrupt("lz4 frame of an unknown block size")),
    };
    let content_size = match flags & FLAG_CONTENT_SIZE {
        0 => None,
        _ => Some(u64::from_le_bytes(input.array()?)),
    };
    let descriptor = &start[..start.len() - input.0.len()];
    let [checksum] = input.array()?;
    if checksum != XxHash32::oneshot(0, descriptor).to_le_bytes()[1] {
        return Err(CodecError::Corrupt("lz4 header checksum mismatch"));
    }
    Ok(Descriptor {
        linked: flags & FLAG_INDEPENDENT == 0,
        block_checksums: flags & FLAG_BLOCK_CHECKSUMS != 0,
        content_checksum: flags & FLAG_CONTENT_CHECKSUM != 0,
        content_size,
        block_bytes_max,
    })
}

fn inflate_block(
    block: &[u8],
    frame: &Descriptor,
    raw: &mut Vec<u8>,
    frame_start: usize,
    max: usize,
) -> Result<(), CodecError> {
    let start = raw.len();
    let room = frame.block_bytes_max.min(block.len() * RATIO_MAX);
    let bounded = room.min(max - start);
    raw.resize(start + bounded, 0);
    let (before, output) = raw.split_at_mut(start);
    let made = if frame.linked {
        let history = frame_start.max(start.saturating_sub(WINDOW_BYTES));
        decompress_into_with_dict(block, output, &before[history..])
    } else {
        decompress_into(block, output)
    };
    match made {
        Ok(len) => {
            raw.truncate(start + len);
            Ok(())
        }
        Err(DecompressError::OutputTooSmall { .. }) if bounded < room => Err(CodecError::TooLarge { max }),
        Err(_) => Err(CodecError::Corrupt("damaged lz4 block")),
    }
}

/// What is left of the stream.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], CodecError> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(CodecError::Corrupt("lz4 stream is cut"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const LEN: usize>(&mut self) -> Result<[u8; LEN], CodecError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(CodecError::Corrupt("lz4 stream is cut"))?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u32(&mut self) -> Result<u32, CodecError> {
        Ok(u32::from_le_bytes(self.array()?))
    }
}
