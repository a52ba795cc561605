//! Producer state as bytes: in each segment, at its end (rules P5 and T4), and on disk beside the WAL.
//!
//! Big-endian: magic, version, count, producers by id (who writes in no transaction first), CRC-32C of all that. Equal states give equal bytes, and no other bytes
//! are read: what decodes encodes to the same.

use super::{Producer, ProducerTable, Remembered, SEQUENCES, Writer, advance};
use crate::ids::{CoordinatorEpoch, Offset, ProducerEpoch, ProducerId, TimestampMs};
use crate::limits::PRODUCER_BATCHES_REMEMBERED;
use bytes::{BufMut, Bytes};

const MAGIC: [u8; 4] = *b"MPps";
const VERSION: u16 = 2;
/// In place of an offset or a coordinator epoch that is not there.
const NONE: i64 = -1;
const PRODUCER_BYTES: usize = 8 + 2 + 4 + 8 + 8 + 8 + 8 + 1;
const BATCH_BYTES: usize = 4 + 4 + 8 + 8;

impl ProducerTable {
    /// The state as bytes, with format version and CRC. Equal states give equal bytes.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let batches: usize = self.producers.values().map(|producer| producer.batches.len()).sum();
        let size = MAGIC.len() + 2 + 4 + self.len() * PRODUCER_BYTES + batches * BATCH_BYTES + 4;
        let mut out = Vec::with_capacity(size);
        out.put_slice(&MAGIC);
        out.put_u16(VERSION);
        out.put_u32(u32::try_from(self.len()).expect("rule T4 bounds the producers of a partition"));
        for (writer, producer) in &self.producers {
            put_producer(&mut out, writer.id, producer);
        }
        out.put_u32(crc32c::crc32c(&out));
        out.into()
    }

    /// Reads what `encode` wrote.
    ///
    /// # Errors
    /// A reason, when the bytes are cut, damaged or of another version.
    pub fn decode(bytes: &[u8]) -> Result<ProducerTable, &'static str> {
        let (body, crc) = bytes.split_last_chunk().ok_or("producer snapshot is cut")?;
        if crc32c::crc32c(body) != u32::from_be_bytes(*crc) {
            return Err("producer snapshot has a CRC mismatch");
        }
        let mut input = Input(body);
        if input.take()? != MAGIC {
            return Err("no producer snapshot");
        }
        if u16::from_be_bytes(input.take()?) != VERSION {
            return Err("producer snapshot of another version");
        }
        let count = u32::from_be_bytes(input.take()?);
        let mut table = ProducerTable::default();
        for _ in 0..count {
            let (id, producer) = take_producer(&mut input)?;
            let writer = Writer { id, transactional: producer.is_transactional() };
            if table.producers.last_key_value().is_some_and(|(&last, _)| last >= writer) {
                return Err("producer snapshot is out of order");
            }
            match producer.transaction_start {
                None => {
                    table.idle.insert((producer.last_append, writer));
                }
                Some(first) if table.open.insert(first, id).is_some() => {
                    return Err("producer snapshot with two transactions that begin at one offset");
                }
                Some(_) => {}
            }
            table.producers.insert(writer, producer);
        }
        if input.0.is_empty() { Ok(table) } else { Err("producer snapshot has bytes left over") }
    }
}

impl Producer {
    /// Whether it writes in transactions: it has one open, or one was ended.
    fn is_transactional(&self) -> bool {
        self.has_transaction() || self.coordinator_epoch.is_some()
    }
}

fn put_producer(out: &mut Vec<u8>, id: ProducerId, producer: &Producer) {
    out.put_u64(id.0);
    out.put_u16(producer.epoch.0);
    out.put_i32(producer.next_sequence);
    out.put_u64(producer.records);
    out.put_i64(producer.last_append.0);
    out.put_i64(producer.transaction_start.map_or(NONE, |start| start.0.cast_signed()));
    out.put_i64(producer.coordinator_epoch.map_or(NONE, |epoch| i64::from(epoch.0)));
    out.put_u8(u8::try_from(producer.batches.len()).expect("at most five batches are remembered"));
    for batch in &producer.batches {
        out.put_i32(batch.base_sequence);
        out.put_u32(batch.count);
        out.put_u64(batch.base.0);
        out.put_i64(batch.append_time.0);
    }
}

fn take_producer(input: &mut Input<'_>) -> Result<(ProducerId, Producer), &'static str> {
    let id = ProducerId(u64::from_be_bytes(input.take()?));
    let mut producer = Producer::new(ProducerEpoch(u16::from_be_bytes(input.take()?)));
    producer.next_sequence = i32::from_be_bytes(input.take()?);
    producer.records = u64::from_be_bytes(input.take()?);
    producer.last_append = TimestampMs(i64::from_be_bytes(input.take()?));
    producer.transaction_start = match i64::from_be_bytes(input.take()?) {
        NONE => None,
        start => Some(Offset(u64::try_from(start).map_err(|_| "producer snapshot with a negative offset")?)),
    };
    producer.coordinator_epoch = match i64::from_be_bytes(input.take()?) {
        NONE => None,
        epoch => {
            Some(CoordinatorEpoch(u32::try_from(epoch).map_err(|_| "producer snapshot with a bad coordinator epoch")?))
        }
    };
    let [batches] = input.take()?;
    if usize::from(batches) > PRODUCER_BATCHES_REMEMBERED {
        return Err("producer snapshot with more batches than are remembered");
    }
    for _ in 0..batches {
        let batch = take_batch(input)?;
        if producer.batches.back().is_some_and(|before| !follows(before, &batch)) {
            return Err("producer snapshot with batches out of order");
        }
        producer.batches.push_back(batch);
    }
    let remembered: u64 = producer.batches.iter().map(|batch| u64::from(batch.count)).sum();
    let next =
        producer.batches.back().map_or(producer.next_sequence, |batch| advance(batch.base_sequence, batch.count));
    // Records that are counted end at the newest batch.
    let counted = producer.records >= remembered && (producer.records == 0 || batches > 0);
    if !counted || producer.next_sequence < 0 || producer.next_sequence != next {
        return Err("producer snapshot that contradicts its batches");
    }
    Ok((id, producer))
}

fn take_batch(input: &mut Input<'_>) -> Result<Remembered, &'static str> {
    let batch = Remembered {
        base_sequence: i32::from_be_bytes(input.take()?),
        count: u32::from_be_bytes(input.take()?),
        base: Offset(u64::from_be_bytes(input.take()?)),
        append_time: TimestampMs(i64::from_be_bytes(input.take()?)),
    };
    let in_log = batch.base.0.checked_add(u64::from(batch.count)).is_some_and(|end| i64::try_from(end).is_ok());
    if batch.base_sequence < 0 || batch.count == 0 || batch.count >= SEQUENCES || !in_log {
        return Err("producer snapshot with a batch that cannot be");
    }
    Ok(batch)
}

fn follows(before: &Remembered, batch: &Remembered) -> bool {
    batch.base_sequence == advance(before.base_sequence, before.count)
        && batch.base >= before.base.plus(u64::from(before.count))
}

/// What is left to read.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn take<const LEN: usize>(&mut self) -> Result<[u8; LEN], &'static str> {
        let (taken, rest) = self.0.split_first_chunk().ok_or("producer snapshot is cut")?;
        self.0 = rest;
        Ok(*taken)
    }
}
