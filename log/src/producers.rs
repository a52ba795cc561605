//! Producer state of one partition (rules P1 to P6): a deterministic function of the log's prefix.
//!
//! Time enters only as the append time stored with each batch, so replicas at one offset have equal state.

use crate::batch::ProducerStamp;
use crate::ids::{Offset, ProducerEpoch, ProducerId, TimestampMs};
use crate::limits::{PARTITION_PRODUCERS_MAX, PRODUCER_BATCHES_REMEMBERED};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::collections::{BTreeMap, VecDeque};

/// What the partition knows of its producers at one offset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProducerTable {
    producers: BTreeMap<ProducerId, Producer>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Producer {
    epoch: ProducerEpoch,
    /// Newest last, at most `PRODUCER_BATCHES_REMEMBERED`, all of `epoch`.
    batches: VecDeque<Remembered>,
    /// Start of the open transaction. Written by transactions, which are not there yet; in the format from the start.
    open_txn: Option<Offset>,
    /// Epoch of the coordinator that wrote the last marker (rule X5); likewise.
    coordinator_epoch: Option<u32>,
    last_append_time: TimestampMs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Remembered {
    first_sequence: i32,
    count: u32,
    base: Offset,
    append_time: TimestampMs,
}

impl Remembered {
    fn next_sequence(&self) -> i32 {
        sequence_after(self.first_sequence, self.count)
    }
}

/// What to do with a batch of an idempotent producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the next one.
    Append,
    /// It was appended before, as `[base, end)`; answer with `base` once the high watermark has passed `end` (rule P3).
    Duplicate {
        /// Original base offset.
        base: Offset,
        /// Original end offset.
        end: Offset,
        /// Append time of the original.
        append_time: TimestampMs,
    },
}

/// Why a producer's batch is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProducerError {
    /// Epoch below the known one.
    #[error("producer {id} is fenced: a newer instance writes with a higher epoch")]
    Fenced {
        /// The producer.
        id: ProducerId,
    },
    /// A gap, or a new epoch that does not begin at 0.
    #[error("sequence {got} where {expected} is next for producer {id}")]
    OutOfOrder {
        /// The producer.
        id: ProducerId,
        /// Expected base sequence.
        expected: i32,
        /// Sequence that came.
        got: i32,
    },
    /// A retry older than the batches remembered.
    #[error("producer {id} repeats a batch older than the last five")]
    DuplicateUnknown {
        /// The producer.
        id: ProducerId,
    },
    /// `limits::PARTITION_PRODUCERS_MAX` live producers (rule T4).
    #[error("the partition has {max} live producers; reuse producers instead of making new ones")]
    TooMany {
        /// The bound.
        max: usize,
    },
}

impl ProducerTable {
    /// Judges a batch of `count` records. Changes nothing.
    ///
    /// A producer that is not known may begin at any sequence (it may have expired), as Kafka's brokers allow.
    /// # Errors
    /// Each `ProducerError`.
    pub fn check(&self, stamp: ProducerStamp, count: u32) -> Result<Verdict, ProducerError> {
        let ProducerStamp { id, epoch, base_sequence: got } = stamp;
        let Some(known) = self.producers.get(&id) else {
            let full = self.producers.len() >= PARTITION_PRODUCERS_MAX;
            return if full {
                Err(ProducerError::TooMany { max: PARTITION_PRODUCERS_MAX })
            } else {
                Ok(Verdict::Append)
            };
        };
        // Rule P6.
        if epoch < known.epoch {
            return Err(ProducerError::Fenced { id });
        }
        if epoch > known.epoch {
            return if got == 0 {
                Ok(Verdict::Append)
            } else {
                Err(ProducerError::OutOfOrder { id, expected: 0, got })
            };
        }
        let Some(newest) = known.batches.back() else { return Ok(Verdict::Append) };
        let same = known.batches.iter().find(|batch| batch.first_sequence == got && batch.count == count);
        if let Some(batch) = same {
            let end = batch.base.plus(u64::from(batch.count));
            return Ok(Verdict::Duplicate { base: batch.base, end, append_time: batch.append_time });
        }
        let expected = newest.next_sequence();
        if got == expected {
            return Ok(Verdict::Append);
        }
        // Rule P3: a retry from before what is remembered was appended, but where is not known any more.
        let behind = sequences_between(got, expected);
        if behind > 0 && behind <= i64::from(i32::MAX) / 2 {
            return Err(ProducerError::DuplicateUnknown { id });
        }
        Err(ProducerError::OutOfOrder { id, expected, got })
    }

    /// Records that a batch was appended; also the replay after a restart and on followers. Accepts what the log holds.
    pub fn append(&mut self, stamp: ProducerStamp, count: u32, base: Offset, append_time: TimestampMs) {
        let producer = self.producers.entry(stamp.id).or_insert_with(|| Producer {
            epoch: stamp.epoch,
            batches: VecDeque::new(),
            open_txn: None,
            coordinator_epoch: None,
            last_append_time: append_time,
        });
        if producer.epoch != stamp.epoch {
            producer.epoch = stamp.epoch;
            producer.batches.clear();
        }
        if producer.batches.len() == PRODUCER_BATCHES_REMEMBERED {
            producer.batches.pop_front();
        }
        producer.batches.push_back(Remembered { first_sequence: stamp.base_sequence, count, base, append_time });
        producer.last_append_time = append_time;
    }

    /// Forgets producers whose last append is older than `expiry_ms` before `now` (an append time, rule P2).
    pub fn expire(&mut self, now: TimestampMs, expiry_ms: i64) {
        self.producers.retain(|_, producer| {
            producer.open_txn.is_some() || now.0.saturating_sub(producer.last_append_time.0) <= expiry_ms
        });
    }

    /// Producers known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.producers.len()
    }

    /// Whether none is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.producers.is_empty()
    }
}

/// The sequence number `count` records later; it wraps from `i32::MAX` to 0.
fn sequence_after(sequence: i32, count: u32) -> i32 {
    ((i64::from(sequence) + i64::from(count)) % (i64::from(i32::MAX) + 1)) as i32
}

/// How far `to` is ahead of `from`, in 0 to `i32::MAX`, wrapping.
fn sequences_between(from: i32, to: i32) -> i64 {
    (i64::from(to) - i64::from(from)).rem_euclid(i64::from(i32::MAX) + 1)
}

/// The snapshot's format: magic, version, count, producers in order of id, CRC-32C. Big-endian. Absent values are -1.
const MAGIC: [u8; 4] = *b"MPPS";
const VERSION: u16 = 1;
const CUT: &str = "producer snapshot is cut";

impl ProducerTable {
    /// The state as bytes, with format version and CRC. Equal states give equal bytes.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_slice(&MAGIC);
        out.put_u16(VERSION);
        out.put_u32(u32::try_from(self.producers.len()).expect("the number of producers is bounded"));
        for (id, producer) in &self.producers {
            out.put_u64(id.0);
            out.put_u16(producer.epoch.0);
            out.put_i64(producer.open_txn.map_or(-1, |offset| offset.0 as i64));
            out.put_i64(producer.coordinator_epoch.map_or(-1, i64::from));
            out.put_i64(producer.last_append_time.0);
            out.put_u8(producer.batches.len() as u8);
            for batch in &producer.batches {
                out.put_i32(batch.first_sequence);
                out.put_u32(batch.count);
                out.put_u64(batch.base.0);
                out.put_i64(batch.append_time.0);
            }
        }
        out.put_u32(crc32c::crc32c(&out));
        out.freeze()
    }

    /// Reads what `encode` wrote.
    ///
    /// # Errors
    /// A reason, when the bytes are cut, damaged or of a newer version.
    pub fn decode(bytes: &[u8]) -> Result<ProducerTable, &'static str> {
        let (covered, crc) = bytes.split_last_chunk::<4>().ok_or(CUT)?;
        if crc32c::crc32c(covered) != u32::from_be_bytes(*crc) {
            return Err("producer snapshot is damaged: its checksum does not match");
        }
        let mut rest = covered.strip_prefix(&MAGIC).ok_or("not a producer snapshot")?;
        if rest.try_get_u16().map_err(|_| CUT)? != VERSION {
            return Err("producer snapshot of an unknown version; upgrade this broker");
        }
        let count = rest.try_get_u32().map_err(|_| CUT)?;
        let mut producers = BTreeMap::new();
        for _ in 0..count {
            let (id, producer) = take_producer(&mut rest).map_err(|_| CUT)?;
            producers.insert(id, producer);
        }
        if rest.is_empty() { Ok(ProducerTable { producers }) } else { Err("producer snapshot has bytes left over") }
    }
}

fn take_producer(buf: &mut &[u8]) -> Result<(ProducerId, Producer), bytes::TryGetError> {
    let id = ProducerId(buf.try_get_u64()?);
    let epoch = ProducerEpoch(buf.try_get_u16()?);
    let open_txn = u64::try_from(buf.try_get_i64()?).ok().map(Offset);
    let coordinator_epoch = u32::try_from(buf.try_get_i64()?).ok();
    let last_append_time = TimestampMs(buf.try_get_i64()?);
    let mut batches = VecDeque::new();
    for _ in 0..buf.try_get_u8()? {
        batches.push_back(Remembered {
            first_sequence: buf.try_get_i32()?,
            count: buf.try_get_u32()?,
            base: Offset(buf.try_get_u64()?),
            append_time: TimestampMs(buf.try_get_i64()?),
        });
    }
    Ok((id, Producer { epoch, batches, open_txn, coordinator_epoch, last_append_time }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stamp(epoch: u16, base_sequence: i32) -> ProducerStamp {
        ProducerStamp { id: ProducerId(7), epoch: ProducerEpoch(epoch), base_sequence }
    }

    /// A table after these appends of (epoch, sequence, count); offsets are dense from 0.
    fn table(appends: &[(u16, i32, u32)]) -> ProducerTable {
        let mut table = ProducerTable::default();
        let mut base = Offset(0);
        for (epoch, sequence, count) in appends {
            table.append(stamp(*epoch, *sequence), *count, base, TimestampMs(0));
            base = base.plus(u64::from(*count));
        }
        table
    }

    #[track_caller]
    fn check(appends: &[(u16, i32, u32)], next: (u16, i32, u32), expected: Result<Option<u64>, &str>) {
        let judged = table(appends).check(stamp(next.0, next.1), next.2);
        let seen = judged.map(|verdict| match verdict {
            Verdict::Append => None,
            Verdict::Duplicate { base, .. } => Some(base.0),
        });
        let name = |error| match error {
            ProducerError::Fenced { .. } => "fenced",
            ProducerError::OutOfOrder { .. } => "gap",
            ProducerError::DuplicateUnknown { .. } => "old",
            ProducerError::TooMany { .. } => "many",
        };
        assert_eq!(seen.map_err(name), expected);
    }

    #[test]
    fn sequences_follow_one_another_and_gaps_are_refused() {
        check(&[], (0, 5, 1), Ok(None));
        check(&[(0, 0, 3)], (0, 3, 1), Ok(None));
        check(&[(0, 0, 3)], (0, 4, 1), Err("gap"));
        check(&[(0, i32::MAX, 1)], (0, 0, 1), Ok(None));
        check(&[(0, i32::MAX - 1, 4)], (0, 2, 1), Ok(None));
    }

    #[test]
    fn the_last_five_batches_are_recognised_with_their_offset_and_older_ones_as_unknown() {
        let six: Vec<(u16, i32, u32)> = (0..6).map(|at| (0, at * 2, 2)).collect();
        check(&six, (0, 10, 2), Ok(Some(10)));
        check(&six, (0, 2, 2), Ok(Some(2)));
        check(&six, (0, 0, 2), Err("old"));
        check(&six, (0, 2, 1), Err("old"));
    }

    #[test]
    fn a_new_epoch_begins_at_zero_and_fences_the_old_one() {
        check(&[(0, 0, 10)], (1, 10, 1), Err("gap"));
        check(&[(0, 0, 10)], (1, 0, 1), Ok(None));
        check(&[(0, 0, 10), (1, 0, 1)], (0, 10, 1), Err("fenced"));
        check(&[(0, 0, 10), (1, 0, 1)], (1, 0, 1), Ok(Some(10)));
    }

    #[test]
    fn expiry_counts_from_the_last_append_and_the_number_of_producers_is_bounded() {
        let mut table = table(&[(0, 0, 1)]);
        table.expire(TimestampMs(100), 100);
        assert_eq!(table.len(), 1);
        table.expire(TimestampMs(101), 100);
        assert!(table.is_empty());
        for id in 0..PARTITION_PRODUCERS_MAX as u64 {
            table.append(ProducerStamp { id: ProducerId(id), ..stamp(0, 0) }, 1, Offset(id), TimestampMs(0));
        }
        let another = ProducerStamp { id: ProducerId(u64::MAX), ..stamp(0, 0) };
        assert_eq!(table.check(another, 1), Err(ProducerError::TooMany { max: PARTITION_PRODUCERS_MAX }));
    }

    fn any_table() -> impl Strategy<Value = ProducerTable> {
        prop::collection::vec((0u64..4, 0u16..3, any::<i32>(), 1u32..9, any::<i64>()), 0..40).prop_map(|appends| {
            let mut table = ProducerTable::default();
            for (id, epoch, sequence, count, time) in appends {
                let stamp = ProducerStamp { id: ProducerId(id), ..stamp(epoch, sequence) };
                table.append(stamp, count, Offset(1), TimestampMs(time));
            }
            table
        })
    }

    proptest! {
        #[test]
        fn a_snapshot_reads_back_and_any_damage_is_seen(table in any_table(), bit: prop::sample::Index) {
            let bytes = table.encode();
            prop_assert_eq!(ProducerTable::decode(&bytes), Ok(table));
            let mut damaged = bytes.to_vec();
            let bit = bit.index(damaged.len() * 8);
            damaged[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(ProducerTable::decode(&damaged).is_err());
            prop_assert!(ProducerTable::decode(&bytes[..bit / 8]).is_err());
        }

        #[test]
        fn any_bytes_are_refused_without_panic(bytes: Vec<u8>) {
            prop_assert!(ProducerTable::decode(&bytes).is_err());
        }
    }
}
