//! The frames of the write-ahead log, in bytes (rule W3): what one frame says, and how a reader knows that it is one.
//!
//! Pure codec. Where frames lie, when they are synced and what they mean for a partition is the broker's business.

use crate::ids::{LeaderEpoch, Lsn, Offset, PartitionId, TimestampMs, TopicId, WalGen};

/// Bytes of a frame before its payload.
pub const FRAME_HEAD_BYTES: usize = 112;

/// Frames inside a group begin at multiples of this many bytes.
pub const FRAME_ALIGN: u64 = 8;

/// Groups of frames begin at multiples of this many bytes, so that no write ever touches a sector that was synced before.
/// The page size of Linux and the largest physical sector in use; a full page is also written without being read first.
pub const BLOCK_BYTES: u64 = 4096;

/// Bytes of a file's head that say something; the rest of its first block is zero.
pub const FILE_HEAD_BYTES: usize = 48;

/// Format of WAL files and frames. A reader refuses any other.
pub const WAL_FORMAT: u32 = 2;

const FRAME_MAGIC: u32 = u32::from_le_bytes(*b"MPfr");
const FILE_MAGIC: [u8; 8] = *b"MPwalfil";
const FLAG_GROUP_END: u8 = 1;
const FLAG_COPIED: u8 = 2;
const FLAGS_KNOWN: u8 = FLAG_GROUP_END | FLAG_COPIED;

const _: () = assert!((FRAME_HEAD_BYTES as u64).is_multiple_of(FRAME_ALIGN));
const _: () = assert!(BLOCK_BYTES.is_multiple_of(FRAME_ALIGN) && FILE_HEAD_BYTES as u64 <= BLOCK_BYTES);

/// What the checksum of a frame starts from: the WAL and the life of the file it was written in, so that a frame of a reused
/// file's earlier life is no frame (rule W3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameSeed(u32);

impl FrameSeed {
    /// The seed of file number `file` of the WAL `wal_gen`.
    #[must_use]
    pub fn new(wal_gen: WalGen, file: u64) -> FrameSeed {
        FrameSeed(crc32c::crc32c_append(crc32c::crc32c(&wal_gen.0.to_le_bytes()), &file.to_le_bytes()))
    }

    pub(crate) fn checksum(self, covered: &[u8]) -> u32 {
        crc32c::crc32c_append(self.0, covered)
    }
}

/// What a frame records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// A record batch; the payload.
    Batch = 1,
    /// `leader_epoch` is the highest epoch seen.
    EpochSeen = 2,
    /// The log ends at `base_offset` again.
    Truncate = 3,
    /// `base_offset` is the high watermark.
    HighWatermark = 4,
    /// The log starts over, empty, at `base_offset`.
    Reset = 5,
    /// The partition is gone.
    Drop = 6,
    /// All that the partition's earlier frames said, batches apart; the payload is a `PartitionState`.
    State = 7,
    /// Nothing of a partition: `synced_lsn` proves the group before it.
    SyncMark = 8,
}

impl FrameKind {
    fn from_byte(byte: u8) -> Option<FrameKind> {
        Some(match byte {
            1 => FrameKind::Batch,
            2 => FrameKind::EpochSeen,
            3 => FrameKind::Truncate,
            4 => FrameKind::HighWatermark,
            5 => FrameKind::Reset,
            6 => FrameKind::Drop,
            7 => FrameKind::State,
            8 => FrameKind::SyncMark,
            _ => return None,
        })
    }
}

/// The head of one frame. Fields that a kind has no use for are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its number in the WAL; each frame's is one more than that of the frame before.
    pub lsn: Lsn,
    /// Newest frame that was durable before this one's group was written (rule W4).
    pub synced_lsn: Lsn,
    /// `crc` of the frame before it, whichever file that is in.
    pub prev_crc: u32,
    /// Counts the starts of the broker on this WAL. It never falls from a frame to the next, so what is left of a torn group is
    /// not taken for the end of a group written over it later.
    pub boot: u32,
    /// What it records.
    pub kind: FrameKind,
    /// Whether it is the last of the frames written and synced together.
    pub group_end: bool,
    /// Whether it repeats an older frame of its partition (rule W8a).
    pub copied: bool,
    /// Frames in its file, itself not counted, that are `copied` or a `State`. Tells whether a lost stretch held any.
    pub copies: u32,
    /// The partition.
    pub partition: PartitionId,
    /// Its place in the order of the partition's frames (rule W8a). A copy keeps the number of the original.
    pub seq: u64,
    /// The batch's epoch, or the epoch seen.
    pub leader_epoch: LeaderEpoch,
    /// The batch's base offset, or the offset that the kind speaks of.
    pub base_offset: Offset,
    /// The leader's time of append.
    pub append_time: TimestampMs,
    /// Largest timestamp of the batch's records, which the batch's own header need not tell truly.
    pub latest: TimestampMs,
    /// Chained hash of the partition's log (S6): up to and with a batch, or where a `Reset` or a `State` has the log begin. 0 above
    /// offset 0 says that it is not known.
    pub prefix_hash: u64,
    /// Bytes of the payload, which follows the head.
    pub payload_len: u32,
    /// CRC-32C of the payload.
    pub payload_crc: u32,
}

impl Frame {
    /// A frame of this kind that says nothing yet: every field is zero.
    #[must_use]
    pub fn blank(kind: FrameKind) -> Frame {
        Frame {
            lsn: Lsn(0),
            synced_lsn: Lsn(0),
            prev_crc: 0,
            boot: 0,
            kind,
            group_end: false,
            copied: false,
            copies: 0,
            partition: PartitionId { topic: TopicId(0), index: 0 },
            seq: 0,
            leader_epoch: LeaderEpoch(0),
            base_offset: Offset(0),
            append_time: TimestampMs(0),
            latest: TimestampMs(0),
            prefix_hash: 0,
            payload_len: 0,
            payload_crc: 0,
        }
    }

    /// The head in bytes, and its checksum, which the next frame repeats as `prev_crc`.
    #[must_use]
    pub fn encode(&self, seed: FrameSeed) -> ([u8; FRAME_HEAD_BYTES], u32) {
        let mut out = Fields { bytes: [0; FRAME_HEAD_BYTES], at: 0 };
        let flags = u8::from(self.group_end) * FLAG_GROUP_END + u8::from(self.copied) * FLAG_COPIED;
        out.put(FRAME_MAGIC.to_le_bytes());
        out.put([0; 4]);
        out.put(self.payload_len.to_le_bytes());
        out.put(self.payload_crc.to_le_bytes());
        out.put([self.kind as u8, flags, 0, 0]);
        out.put(self.leader_epoch.0.to_le_bytes());
        out.put(self.lsn.0.to_le_bytes());
        out.put(self.synced_lsn.0.to_le_bytes());
        out.put(self.partition.topic.0.to_le_bytes());
        out.put(self.partition.index.to_le_bytes());
        out.put(self.prev_crc.to_le_bytes());
        out.put(self.seq.to_le_bytes());
        out.put(self.base_offset.0.to_le_bytes());
        out.put(self.append_time.0.to_le_bytes());
        out.put(self.latest.0.to_le_bytes());
        out.put(self.prefix_hash.to_le_bytes());
        out.put(self.boot.to_le_bytes());
        out.put(self.copies.to_le_bytes());
        let crc = seed.checksum(&out.bytes[8..]);
        out.bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        (out.bytes, crc)
    }

    /// Reads a head and its checksum off the front of `bytes`; `None` if no frame with this seed is there.
    #[must_use]
    pub fn decode(bytes: &[u8], seed: FrameSeed) -> Option<(Frame, u32)> {
        let bytes: &[u8; FRAME_HEAD_BYTES] = bytes.first_chunk()?;
        let mut fields = Fields { bytes: *bytes, at: 0 };
        if u32::from_le_bytes(fields.take()) != FRAME_MAGIC {
            return None;
        }
        let crc = u32::from_le_bytes(fields.take());
        if seed.checksum(&bytes[8..]) != crc {
            return None;
        }
        let payload_len = u32::from_le_bytes(fields.take());
        let payload_crc = u32::from_le_bytes(fields.take());
        let [kind, flags @ 0..=FLAGS_KNOWN, 0, 0] = fields.take() else { return None };
        let frame = Frame {
            payload_len,
            payload_crc,
            kind: FrameKind::from_byte(kind)?,
            group_end: flags & FLAG_GROUP_END != 0,
            copied: flags & FLAG_COPIED != 0,
            leader_epoch: LeaderEpoch(u32::from_le_bytes(fields.take())),
            lsn: Lsn(u64::from_le_bytes(fields.take())),
            synced_lsn: Lsn(u64::from_le_bytes(fields.take())),
            partition: PartitionId {
                topic: TopicId(u128::from_le_bytes(fields.take())),
                index: u32::from_le_bytes(fields.take()),
            },
            prev_crc: u32::from_le_bytes(fields.take()),
            seq: u64::from_le_bytes(fields.take()),
            base_offset: Offset(u64::from_le_bytes(fields.take())),
            append_time: TimestampMs(i64::from_le_bytes(fields.take())),
            latest: TimestampMs(i64::from_le_bytes(fields.take())),
            prefix_hash: u64::from_le_bytes(fields.take()),
            boot: u32::from_le_bytes(fields.take()),
            copies: u32::from_le_bytes(fields.take()),
        };
        Some((frame, crc))
    }

    /// Bytes of head and payload.
    #[must_use]
    pub fn size(&self) -> u64 {
        FRAME_HEAD_BYTES as u64 + u64::from(self.payload_len)
    }

    /// Whether `payload` is what was written.
    #[must_use]
    pub fn matches(&self, payload: &[u8]) -> bool {
        payload.len() as u64 == u64::from(self.payload_len) && crc32c::crc32c(payload) == self.payload_crc
    }
}

/// Payload of a `State` frame: with the head it replaces every earlier frame of the partition that is no batch (rule W8a).
/// The head carries the start of the log, the hash there, and the highest epoch seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionState {
    /// Log end offset.
    pub end: Offset,
    /// High watermark.
    pub hw: Offset,
    /// Earlier frames of the partition are void unless their sequence number is at least this...
    pub first_seq: u64,
    /// ...and less than this.
    pub end_seq: u64,
}

/// Bytes of a `PartitionState`.
pub const STATE_BYTES: usize = 32;

impl PartitionState {
    /// The payload.
    #[must_use]
    pub fn encode(&self) -> [u8; STATE_BYTES] {
        let mut out = Fields { bytes: [0; STATE_BYTES], at: 0 };
        for field in [self.end.0, self.hw.0, self.first_seq, self.end_seq] {
            out.put(field.to_le_bytes());
        }
        out.bytes
    }

    /// Reads what `encode` wrote; `None` if the length is another.
    #[must_use]
    pub fn decode(payload: &[u8]) -> Option<PartitionState> {
        let mut fields = Fields { bytes: *<&[u8; STATE_BYTES]>::try_from(payload).ok()?, at: 0 };
        let mut next = || u64::from_le_bytes(fields.take());
        Some(PartitionState { end: Offset(next()), hw: Offset(next()), first_seq: next(), end_seq: next() })
    }
}

/// Head of a WAL file, in its first block. Written together with the file's first group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHead {
    /// The WAL that seeds the checksums of its frames.
    pub wal_gen: WalGen,
    /// The file's number: each life of a reused file has another.
    pub file: u64,
    /// Its first frame; every frame before that was durable when this was written.
    pub first_lsn: Lsn,
}

impl FileHead {
    /// The head in bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; FILE_HEAD_BYTES] {
        let mut out = Fields { bytes: [0; FILE_HEAD_BYTES], at: 0 };
        out.put(FILE_MAGIC);
        out.put(WAL_FORMAT.to_le_bytes());
        out.put([0; 4]);
        out.put(self.wal_gen.0.to_le_bytes());
        out.put(self.file.to_le_bytes());
        out.put(self.first_lsn.0.to_le_bytes());
        let crc = crc32c::crc32c(&out.bytes[..40]);
        out.put(crc.to_le_bytes());
        out.bytes
    }

    /// Reads what `encode` wrote; `None` if that is not what `bytes` begin with.
    ///
    /// # Errors
    /// The format's number, when it is another than `WAL_FORMAT`.
    pub fn decode(bytes: &[u8]) -> Result<Option<FileHead>, u32> {
        let Some(bytes) = bytes.first_chunk::<FILE_HEAD_BYTES>() else { return Ok(None) };
        let mut fields = Fields { bytes: *bytes, at: 0 };
        if fields.take() != FILE_MAGIC || bytes[40..44] != crc32c::crc32c(&bytes[..40]).to_le_bytes() {
            return Ok(None);
        }
        let format = u32::from_le_bytes(fields.take());
        if format != WAL_FORMAT {
            return Err(format);
        }
        let reserved: [u8; 4] = fields.take();
        let mut next = || u64::from_le_bytes(fields.take());
        let head = FileHead { wal_gen: WalGen(next()), file: next(), first_lsn: Lsn(next()) };
        // A head has one spelling, so that what a later format puts there is never read past.
        Ok(Some(head).filter(|_| reserved == [0; 4] && bytes[44..] == [0; 4]))
    }
}

/// `position` or the next multiple of `align` after it.
#[must_use]
pub fn align_up(position: u64, align: u64) -> u64 {
    position.div_ceil(align) * align
}

/// A cursor over the fixed fields of one head.
struct Fields<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Fields<N> {
    fn put<const M: usize>(&mut self, field: [u8; M]) {
        self.bytes[self.at..self.at + M].copy_from_slice(&field);
        self.at += M;
    }

    fn take<const M: usize>(&mut self) -> [u8; M] {
        let field = *self.bytes[self.at..].first_chunk().expect("the fields add up to the head");
        self.at += M;
        field
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frames() -> impl Strategy<Value = Frame> {
        let ids = (any::<u64>(), any::<u64>(), any::<u32>(), any::<u32>(), 1..=8u8, any::<bool>(), any::<bool>());
        let place = (any::<u32>(), any::<u128>(), any::<u32>(), any::<u64>(), any::<u32>(), any::<u64>());
        let rest = (any::<i64>(), any::<u64>(), any::<u32>(), any::<u32>(), any::<i64>());
        (ids, place, rest).prop_map(|(ids, place, rest)| Frame {
            lsn: Lsn(ids.0),
            synced_lsn: Lsn(ids.1),
            prev_crc: ids.2,
            boot: ids.3,
            kind: FrameKind::from_byte(ids.4).expect("1 to 8 are kinds"),
            group_end: ids.5,
            copied: ids.6,
            copies: place.0,
            partition: PartitionId { topic: TopicId(place.1), index: place.2 },
            seq: place.3,
            leader_epoch: LeaderEpoch(place.4),
            base_offset: Offset(place.5),
            append_time: TimestampMs(rest.0),
            latest: TimestampMs(rest.4),
            prefix_hash: rest.1,
            payload_len: rest.2,
            payload_crc: rest.3,
        })
    }

    proptest! {
        #[test]
        fn a_frame_reads_back_under_its_own_seed_only(frame in frames(), wal_gen: u64, file: u64, other: u64) {
            let seed = FrameSeed::new(WalGen(wal_gen), file);
            let (bytes, crc) = frame.encode(seed);
            prop_assert_eq!(Frame::decode(&bytes, seed), Some((frame, crc)));
            // Rule W3: the same bytes in another life of the file are no frame.
            prop_assert_eq!(Frame::decode(&bytes, FrameSeed::new(WalGen(wal_gen), file ^ (other | 1))), None);
        }

        #[test]
        fn a_flipped_bit_makes_no_frame(frame in frames(), bit in 0..FRAME_HEAD_BYTES * 8) {
            let seed = FrameSeed::new(WalGen(7), 1);
            let (mut bytes, _) = frame.encode(seed);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Frame::decode(&bytes, seed), None);
        }

        #[test]
        fn any_bytes_decode_without_a_panic(bytes: Vec<u8>) {
            let _ = Frame::decode(&bytes, FrameSeed::new(WalGen(1), 1));
            let _ = FileHead::decode(&bytes);
            let _ = PartitionState::decode(&bytes);
        }

        #[test]
        fn file_head_and_state_read_back(a: u64, b: u64, c: u64, d: u64, bit in 0..FILE_HEAD_BYTES * 8) {
            let head = FileHead { wal_gen: WalGen(a), file: b, first_lsn: Lsn(c) };
            let mut bytes = head.encode();
            prop_assert_eq!(FileHead::decode(&bytes), Ok(Some(head)));
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(FileHead::decode(&bytes), Ok(None));
            let state = PartitionState { end: Offset(a), hw: Offset(b), first_seq: c, end_seq: d };
            prop_assert_eq!(PartitionState::decode(&state.encode()), Some(state));
        }
    }

    #[test]
    fn what_no_frame_says_is_no_frame() {
        let seed = FrameSeed::new(WalGen(7), 1);
        // Kinds 0 and 9, an unknown flag, the reserved bytes; each under a checksum that fits.
        for (at, byte) in [(16, 0), (16, 9), (17, 4), (17, 0x80), (18, 1), (19, 1)] {
            let (mut bytes, _) = Frame::blank(FrameKind::Batch).encode(seed);
            bytes[at] = byte;
            let crc = seed.checksum(&bytes[8..]);
            bytes[4..8].copy_from_slice(&crc.to_le_bytes());
            assert_eq!(Frame::decode(&bytes, seed), None, "{byte} at {at}");
        }
        for at in [12, 15, 44, 47] {
            let mut bytes = FileHead { wal_gen: WalGen(1), file: 2, first_lsn: Lsn(3) }.encode();
            bytes[at] = 1;
            let crc = crc32c::crc32c(&bytes[..40]);
            bytes[40..44].copy_from_slice(&crc.to_le_bytes());
            assert_eq!(FileHead::decode(&bytes), Ok(None), "1 at {at}");
        }
    }

    #[test]
    fn another_format_is_named() {
        for format in [WAL_FORMAT - 1, WAL_FORMAT + 1] {
            let mut bytes = FileHead { wal_gen: WalGen(1), file: 2, first_lsn: Lsn(3) }.encode();
            bytes[8..12].copy_from_slice(&format.to_le_bytes());
            let crc = crc32c::crc32c(&bytes[..40]);
            bytes[40..44].copy_from_slice(&crc.to_le_bytes());
            assert_eq!(FileHead::decode(&bytes), Err(format));
        }
    }
}
