//! Frames of the WAL and heads of its files (rule W3). What decodes encodes to the same bytes: no other bytes are a frame.

use crate::frame::{FILE_HEAD_BYTES, FRAME_HEAD_BYTES, FileHead, Frame, FrameKind, FrameSeed, PartitionState};
use crate::testing::{Seed, decoding};
use crate::{LeaderEpoch, Lsn, Offset, PartitionId, TimestampMs, TopicId, WalGen};
use std::ops::Range;

/// Reads the input as a frame with its payload and as the head of a file, each also behind a checksum that fits. Whether a
/// frame or a head is there.
pub fn frame(input: &[u8]) -> bool {
    let seed = FrameSeed::new(WalGen(7), 3);
    let mut taken = false;
    for bytes in [input.to_vec(), mended(input, b"MPfr", 4, 8..FRAME_HEAD_BYTES, |covered| seed.checksum(covered))] {
        let Some((frame, crc)) = decoding(&bytes, || Frame::decode(&bytes, seed)) else { continue };
        let (head, payload) = bytes.split_at(FRAME_HEAD_BYTES);
        assert_eq!(frame.encode(seed), (*head.first_chunk().expect("as long as a head"), crc), "no other bytes");
        // Rule W3: the same bytes in another file, or in another WAL, are none.
        for other in [FrameSeed::new(WalGen(7), 4), FrameSeed::new(WalGen(8), 3)] {
            assert_eq!(Frame::decode(&bytes, other), None, "a frame of another life");
        }
        assert_eq!(frame.size(), FRAME_HEAD_BYTES as u64 + u64::from(frame.payload_len));
        if frame.matches(payload) {
            assert_eq!(payload.len(), frame.payload_len as usize);
        }
        if let Some(state) = PartitionState::decode(payload) {
            assert_eq!(state.encode(), payload);
        }
        taken = true;
    }
    for bytes in [input.to_vec(), mended(input, b"MPwalfil", 40, 0..40, crc32c::crc32c)] {
        if let Ok(Some(head)) = decoding(&bytes, || FileHead::decode(&bytes)) {
            assert_eq!(head.encode(), bytes[..FILE_HEAD_BYTES], "no other bytes");
            taken = true;
        }
    }
    taken
}

/// One frame of each kind, and the head of a file.
#[must_use]
pub fn frame_seeds() -> Vec<Seed> {
    let seed = FrameSeed::new(WalGen(7), 3);
    let state = PartitionState { end: Offset(40), hw: Offset(39), first_seq: 5, end_seq: 9 }.encode();
    let kinds = [
        (FrameKind::Batch, &b"a batch"[..]),
        (FrameKind::EpochSeen, b""),
        (FrameKind::Truncate, b""),
        (FrameKind::HighWatermark, b""),
        (FrameKind::Reset, b""),
        (FrameKind::Drop, b""),
        (FrameKind::State, &state),
        (FrameKind::SyncMark, b""),
    ];
    let frames = kinds.into_iter().map(|(kind, payload)| {
        let frame = Frame {
            lsn: Lsn(1000),
            synced_lsn: Lsn(990),
            prev_crc: 0xdead_beef,
            boot: 2,
            group_end: kind == FrameKind::Batch,
            copied: kind == FrameKind::State,
            copies: 4,
            partition: PartitionId { topic: TopicId(0xfeed << 64), index: 6 },
            seq: 77,
            leader_epoch: LeaderEpoch(3),
            base_offset: Offset(40),
            append_time: TimestampMs(1_700_000_000_000),
            latest: TimestampMs(1_700_000_000_001),
            prefix_hash: 0x1234_5678_9abc_def0,
            payload_len: payload.len() as u32,
            payload_crc: crc32c::crc32c(payload),
            ..Frame::blank(kind)
        };
        (format!("{kind:?}"), [&frame.encode(seed).0[..], payload].concat())
    });
    let head = FileHead { wal_gen: WalGen(7), file: 3, first_lsn: Lsn(1000) };
    frames.chain([("FileHead".to_owned(), head.encode().to_vec())]).collect()
}

/// The input with this magic, and with the checksum of what is covered at `crc_at`, where it is long enough for both.
fn mended(
    input: &[u8],
    magic: &[u8],
    crc_at: usize,
    covered: Range<usize>,
    checksum: impl Fn(&[u8]) -> u32,
) -> Vec<u8> {
    let mut bytes = input.to_vec();
    if bytes.len() >= covered.end.max(crc_at + 4) {
        bytes[..magic.len()].copy_from_slice(magic);
        let crc = checksum(&bytes[covered]);
        bytes[crc_at..crc_at + 4].copy_from_slice(&crc.to_le_bytes());
    }
    bytes
}
