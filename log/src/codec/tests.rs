//! Each codec by table: what other programs write is read, what is damaged, cut or a bomb is refused.

use super::{Codec, CodecError, UnknownCodec};
use bytes::Bytes;
use proptest::prelude::*;
use std::io::Write;

const MAX: usize = 8 << 20;
const COMPRESSED: [Codec; 4] = [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd];

/// Bytes that compress, but not to nothing.
fn text(len: usize) -> Vec<u8> {
    let mut state = 7_u32;
    let mut words = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ["mill ", "pond ", "log ", "offset ", "epoch\n"][(state >> 29) as usize % 5]
    });
    let mut text = String::new();
    while text.len() < len {
        text.extend(words.next());
    }
    text.truncate(len);
    text.into_bytes()
}

fn check(codec: Codec, packed: &[u8], expected: Result<&[u8], CodecError>) {
    let raw = codec.decompress(&Bytes::copy_from_slice(packed), MAX);
    assert_eq!(raw.as_deref().map_err(|&error| error), expected, "{codec} {packed:x?}");
}

fn concat(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

#[test]
fn names_and_bits_are_kafkas() {
    for (bits, name) in ["none", "gzip", "snappy", "lz4", "zstd"].into_iter().enumerate() {
        let codec: Codec = name.parse().unwrap();
        assert_eq!((usize::from(codec.bits()), codec.name()), (bits, name));
        assert_eq!(Codec::from_bits(codec.bits()), Some(codec));
    }
    for bits in [5, 6, 7, 8, u16::MAX] {
        assert_eq!(Codec::from_bits(bits), None);
    }
    for name in ["", "producer", "LZ4", "uncompressed"] {
        assert_eq!(name.parse::<Codec>(), Err(UnknownCodec(name.to_owned())));
    }
}

#[test]
fn round_trip_across_block_borders() {
    for codec in Codec::ALL {
        for len in [0, 1, 2, 1000, 32 << 10, (32 << 10) + 1, 64 << 10, (64 << 10) + 1, 3 << 20] {
            let raw = text(len);
            let packed = codec.compress(&raw);
            assert_eq!(codec.decompress(&packed, len), Ok(Bytes::from(raw)), "{codec}, {len} bytes");
            if codec != Codec::None && len >= 1000 {
                assert!(packed.len() < len, "{codec} makes {} bytes of {len}", packed.len());
            }
        }
    }
}

#[test]
fn bound_is_exact() {
    let raw = text(200_000);
    for codec in Codec::ALL {
        let packed = codec.compress(&raw);
        for max in [0, 1, 65_535, 65_536, 199_999] {
            assert_eq!(codec.decompress(&packed, max), Err(CodecError::TooLarge { max }), "{codec}");
        }
        assert_eq!(codec.decompress(&packed, 200_000).map(|raw| raw.len()), Ok(200_000), "{codec}");
        assert_eq!(codec.decompress(&packed, usize::MAX).map(|raw| raw.len()), Ok(200_000), "{codec}");
    }
}

#[test]
fn bombs_are_refused() {
    let zeros = vec![0; 64 << 20];
    for codec in COMPRESSED {
        let packed = codec.compress(&zeros);
        assert!(packed.len() < 4 << 20, "{codec} makes {} bytes", packed.len());
        assert_eq!(codec.decompress(&packed, MAX), Err(CodecError::TooLarge { max: MAX }), "{codec}");
    }
}

#[test]
fn every_truncation_and_every_byte_more_is_corrupt() {
    // Several blocks in each framing, the last one short; cuts between blocks are the ones readers overlook.
    let raw = text(70_000);
    for codec in COMPRESSED {
        let packed = codec.compress(&raw);
        let near = |cut: usize| cut < 600 || cut + 600 > packed.len();
        let mut cuts: Vec<usize> = (0..packed.len()).filter(|&cut| near(cut) || cut % 97 == 0).collect();
        cuts.extend(block_borders(codec, &packed));
        for cut in cuts {
            match codec.decompress(&packed.slice(..cut), MAX) {
                Err(CodecError::Corrupt(_)) => {}
                // Snappy's framing has no end mark: a cut between blocks shows only in what is missing.
                Ok(short) if codec == Codec::Snappy && short.len() < raw.len() => {
                    assert!(block_borders(codec, &packed).contains(&cut), "cut at {cut}");
                }
                other => panic!("{codec} cut at {cut} of {}: {:?}", packed.len(), other.map(|raw| raw.len())),
            }
        }
        for extra in [&[0][..], &[0; 4], &[0xff; 20], b"\x1f"] {
            let longer = Bytes::from(concat(&[&packed, extra]));
            assert!(matches!(codec.decompress(&longer, MAX), Err(CodecError::Corrupt(_))), "{codec} {extra:x?}");
        }
    }
}

/// Where a cut leaves whole blocks.
fn block_borders(codec: Codec, packed: &[u8]) -> Vec<usize> {
    let (mut at, mut borders) = match codec {
        Codec::Snappy => (16, vec![16]),
        Codec::Lz4 => (7, vec![7]),
        _ => return Vec::new(),
    };
    while at + 4 <= packed.len() {
        let len = packed[at..at + 4].try_into().unwrap();
        let len = if codec == Codec::Snappy { u32::from_be_bytes(len) } else { u32::from_le_bytes(len) & !(1 << 31) };
        at += 4 + len as usize;
        borders.push(at);
    }
    borders.retain(|&border| border < packed.len());
    borders
}

#[test]
fn empty_is_no_stream() {
    check(Codec::None, b"", Ok(b""));
    check(Codec::Gzip, b"", Err(CodecError::Corrupt("damaged gzip stream")));
    check(Codec::Snappy, b"", Err(CodecError::Corrupt("damaged snappy block")));
    check(Codec::Lz4, b"", Err(CodecError::Corrupt("lz4 stream is cut")));
    check(Codec::Zstd, b"", Err(CodecError::Corrupt("zstd stream is cut")));
}

#[test]
fn several_frames_are_one_stream() {
    for codec in COMPRESSED {
        let both = concat(&[&codec.compress(b"mill "), &codec.compress(b""), &codec.compress(b"pond")]);
        check(codec, &both, Ok(b"mill pond"));
        let cut = match codec {
            Codec::Gzip => "damaged gzip stream",
            Codec::Snappy => "snappy stream is cut",
            Codec::Lz4 => "lz4 stream is cut",
            _ => "zstd stream is cut",
        };
        check(codec, &both[..both.len() - 1], Err(CodecError::Corrupt(cut)));
    }
}

#[test]
fn snappy_is_read_raw_and_framed() {
    let block = snap::raw::Encoder::new().compress_vec(b"mill pond").unwrap();
    let len = u32::try_from(block.len()).unwrap().to_be_bytes();
    let magic = b"\x82SNAPPY\0";
    check(Codec::Snappy, &block, Ok(b"mill pond"));
    check(Codec::Snappy, &concat(&[magic, &[0, 0, 0, 1, 0, 0, 0, 1], &len, &block]), Ok(b"mill pond"));
    check(Codec::Snappy, &concat(&[magic, &[1, 0, 0, 0, 1, 0, 0, 0], &len, &block]), Ok(b"mill pond"));
    let twice = concat(&[magic, &[0, 0, 0, 1, 0, 0, 0, 1], &len, &block, &len, &block]);
    check(Codec::Snappy, &twice, Ok(b"mill pondmill pond"));
    check(Codec::Snappy, &concat(&[magic, &[0, 0, 0, 1, 0, 0, 0, 1]]), Ok(b""));
    let unknown = CodecError::Corrupt("snappy framing of an unknown version");
    check(Codec::Snappy, &concat(&[magic, &[0, 0, 0, 2, 0, 0, 0, 2], &len, &block]), Err(unknown));
    check(Codec::Snappy, magic, Err(unknown));
    let negative = CodecError::Corrupt("snappy block of negative length");
    check(Codec::Snappy, &concat(&[magic, &[0, 0, 0, 1, 0, 0, 0, 1], &[0xff; 4], &block]), Err(negative));
    // A claim of 4 GiB in five bytes.
    let bomb = CodecError::Corrupt("snappy block that claims more than it can hold");
    check(Codec::Snappy, &[0xff, 0xff, 0xff, 0xff, 0x0f], Err(bomb));
}

#[test]
fn lz4_is_read_with_linked_blocks_and_all_checksums() {
    use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
    let raw = text(300_000);
    let info = || FrameInfo::new().block_size(BlockSize::Max64KB);
    for info in [
        info().block_mode(BlockMode::Linked),
        info().block_checksums(true),
        info().content_checksum(true),
        info().content_size(Some(300_000)),
        info().block_mode(BlockMode::Linked).block_checksums(true).content_checksum(true).content_size(Some(300_000)),
        FrameInfo::new().block_size(BlockSize::Max4MB),
    ] {
        let mut encoder = FrameEncoder::with_frame_info(info.clone(), Vec::new());
        encoder.write_all(&raw).unwrap();
        let packed = encoder.finish().unwrap();
        check(Codec::Lz4, &packed, Ok(&raw));
        // A frame after another one: its blocks must not reach into the first.
        check(Codec::Lz4, &concat(&[&packed, &packed]), Ok(&concat(&[&raw, &raw])));
        // Descriptor, its checksum, and the end mark or the content checksum.
        for at in [4, 5, 6, packed.len() - 1] {
            let mut flipped = packed.clone();
            flipped[at] ^= 1;
            let read = Codec::Lz4.decompress(&Bytes::from(flipped), MAX);
            assert!(matches!(read, Err(CodecError::Corrupt(_))), "byte {at} of {info:?}");
        }
    }
}

#[test]
fn what_javas_lz4_reader_does_not_take_is_not_portable() {
    use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
    let linked = FrameInfo::new().block_mode(BlockMode::Linked).block_size(BlockSize::Max64KB);
    let mut encoder = FrameEncoder::with_frame_info(linked, Vec::new());
    encoder.write_all(&text(100_000)).unwrap();
    let linked = Bytes::from(encoder.finish().unwrap());
    let one = Codec::Lz4.compress(b"mill pond");
    let two = Bytes::from(concat(&[&one, &one]));
    let check = |packed: &Bytes, expected: Result<usize, &'static str>| {
        let raw = Codec::Lz4.decompress_portable(packed, MAX).map(|raw| raw.len());
        assert_eq!(raw, expected.map_err(CodecError::Corrupt));
    };
    check(&one, Ok(9));
    check(&Codec::Lz4.compress(&text(100_000)), Ok(100_000));
    check(&linked, Err("lz4 blocks are linked, which Kafka's clients do not read"));
    check(&two, Err("more than one lz4 frame, of which Kafka's clients read one"));
    for codec in [Codec::Gzip, Codec::Snappy, Codec::Zstd] {
        let two = Bytes::from(concat(&[&codec.compress(b"mill "), &codec.compress(b"pond")]));
        assert_eq!(codec.decompress_portable(&two, MAX), Ok(Bytes::from_static(b"mill pond")));
    }
}

#[test]
fn lz4_headers_out_of_the_ordinary_are_named() {
    let good = Codec::Lz4.compress(b"mill pond");
    let with = |at: usize, byte: u8| {
        let mut bytes = good.to_vec();
        bytes[at] = byte;
        bytes[6] = twox_hash::XxHash32::oneshot(0, &bytes[4..6]).to_le_bytes()[1];
        bytes
    };
    check(Codec::Lz4, &with(4, 0x60), Ok(b"mill pond"));
    check(Codec::Lz4, &with(0, 0x05), Err(CodecError::Corrupt("no lz4 frame")));
    check(Codec::Lz4, &with(4, 0xa0), Err(CodecError::Corrupt("lz4 frame of an unknown version")));
    check(Codec::Lz4, &with(4, 0x62), Err(CodecError::Corrupt("lz4 frame of an unknown version")));
    check(Codec::Lz4, &with(5, 0x41), Err(CodecError::Corrupt("lz4 frame of an unknown version")));
    check(Codec::Lz4, &with(4, 0x61), Err(CodecError::Corrupt("lz4 frame that needs a dictionary")));
    check(Codec::Lz4, &with(5, 0x30), Err(CodecError::Corrupt("lz4 frame of an unknown block size")));
}

#[test]
fn zstd_is_read_without_content_size() {
    let raw = text(500_000);
    let mut encoder = zstd::stream::Encoder::new(Vec::new(), 3).unwrap();
    encoder.include_contentsize(false).unwrap();
    encoder.write_all(&raw).unwrap();
    let packed = encoder.finish().unwrap();
    assert_eq!(zstd::zstd_safe::get_frame_content_size(&packed).unwrap(), None);
    check(Codec::Zstd, &packed, Ok(&raw));
    check(Codec::Zstd, &concat(&[&packed, &Codec::Zstd.compress(b"!")]), Ok(&concat(&[&raw, b"!"])));
}

proptest! {
    #[test]
    fn any_bytes_round_trip(raw in prop::collection::vec(any::<u8>(), 0..1000), repeat in 1..100_usize) {
        let raw = raw.repeat(repeat);
        for codec in Codec::ALL {
            prop_assert_eq!(codec.decompress(&codec.compress(&raw), raw.len()), Ok(Bytes::from(raw.clone())));
        }
    }

    #[test]
    fn no_bytes_panic_or_pass_the_bound(bytes in prop::collection::vec(any::<u8>(), 0..300), max in 0..100_000_usize) {
        for codec in Codec::ALL {
            if let Ok(raw) = codec.decompress(&Bytes::from(bytes.clone()), max) {
                prop_assert!(raw.len() <= max);
            }
        }
    }

    #[test]
    fn no_damage_panics_or_passes_the_bound(
        at in any::<prop::sample::Index>(), byte in any::<u8>(), len in 0..20_000_usize, max in 0..20_000_usize,
    ) {
        for codec in COMPRESSED {
            let mut packed = codec.compress(&text(len)).to_vec();
            let at = at.index(packed.len());
            packed[at] ^= byte;
            if let Ok(raw) = codec.decompress(&Bytes::from(packed), max) {
                prop_assert!(raw.len() <= max);
            }
        }
    }
}
