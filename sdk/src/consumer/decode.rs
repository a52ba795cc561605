//! From fetched batches to records: checksum, decompression, what to leave out. Pure.

use crate::error::Error;
use crate::isolation::IsolationLevel;
use crate::record::{ConsumerRecord, TopicPartition};
use millpond_log::batch::{Batch, Records, TimestampType};
use millpond_log::{LeaderEpoch, Offset, ProducerId};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// A transaction whose records are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Aborted {
    pub(super) producer: ProducerId,
    pub(super) first_offset: Offset,
}

/// What one push brought, on its way to becoming records.
pub(super) struct Decoder {
    partition: TopicPartition,
    check_crcs: bool,
    batches: VecDeque<Batch>,
    open: Option<OpenBatch>,
    filter: Option<Filter>,
}

/// The batch whose records are being taken.
struct OpenBatch {
    records: Records,
    size: usize,
    end: Offset,
    leader_epoch: LeaderEpoch,
    timestamp_type: TimestampType,
}

/// Leaves out the records of aborted transactions.
struct Filter {
    /// Not reached yet, by first offset.
    ahead: VecDeque<Aborted>,
    /// Producers inside an aborted transaction.
    aborting: BTreeSet<ProducerId>,
}

/// One step.
pub(super) enum Step {
    /// A record at or after the position.
    Record(ConsumerRecord),
    /// A batch is done: the position is at least `end`, and `size` bytes are no longer held.
    BatchDone { end: Offset, size: usize, leader_epoch: LeaderEpoch },
    /// All batches are done.
    Done,
}

impl Decoder {
    /// `aborted` in order of first offset.
    pub(super) fn new(
        partition: TopicPartition,
        batches: Vec<Batch>,
        aborted: Vec<Aborted>,
        isolation: IsolationLevel,
        check_crcs: bool,
    ) -> Decoder {
        let filter = match isolation {
            IsolationLevel::ReadUncommitted => None,
            IsolationLevel::ReadCommitted => Some(Filter { ahead: aborted.into(), aborting: BTreeSet::new() }),
        };
        Decoder { partition, check_crcs, batches: batches.into(), open: None, filter }
    }

    /// The next step for a reader at `position`. A record below it is passed over: a fetch begins with a whole batch.
    ///
    /// # Errors
    /// The batch is damaged. What follows it must not be read as if it were not there.
    pub(super) fn step(&mut self, position: Offset) -> Result<Step, Error> {
        loop {
            let Some(open) = &mut self.open else {
                let Some(batch) = self.batches.pop_front() else { return Ok(Step::Done) };
                match self.open(&batch, position)? {
                    Some(open) => self.open = Some(open),
                    None => {
                        let (end, size, leader_epoch) = (batch.end_offset(), batch.size(), batch.leader_epoch());
                        return Ok(Step::BatchDone { end, size, leader_epoch });
                    }
                }
                continue;
            };
            match open.records.next() {
                Some(record) => {
                    let record = record.map_err(|error| Error::from(error).at(&self.partition))?;
                    if record.offset < position {
                        continue;
                    }
                    return Ok(Step::Record(ConsumerRecord {
                        topic: Arc::clone(&self.partition.topic),
                        partition: self.partition.partition,
                        offset: record.offset,
                        leader_epoch: open.leader_epoch,
                        timestamp: record.timestamp,
                        timestamp_type: open.timestamp_type,
                        key: record.key,
                        value: record.value,
                        headers: record.headers,
                    }));
                }
                None => {
                    let (end, size, leader_epoch) = (open.end, open.size, open.leader_epoch);
                    self.open = None;
                    return Ok(Step::BatchDone { end, size, leader_epoch });
                }
            }
        }
    }

    /// Bytes of batches it still holds.
    pub(super) fn size(&self) -> usize {
        self.batches.iter().map(Batch::size).sum::<usize>() + self.open.as_ref().map_or(0, |open| open.size)
    }

    /// Opens a batch, unless all of it is left out.
    fn open(&mut self, batch: &Batch, position: Offset) -> Result<Option<OpenBatch>, Error> {
        let place = format!("{} offset {}", self.partition, batch.base_offset());
        let damaged = |error: millpond_log::batch::BatchError| Error::from(error).at(&place);
        if self.check_crcs {
            batch.verify_crc().map_err(damaged)?;
        }
        let filtered = match &mut self.filter {
            Some(filter) => filter.leaves_out(batch).map_err(damaged)?,
            None => false,
        };
        if filtered || batch.is_control() || batch.end_offset() <= position || batch.record_count() == 0 {
            return Ok(None);
        }
        Ok(Some(OpenBatch {
            records: batch.records().map_err(damaged)?,
            size: batch.size(),
            end: batch.end_offset(),
            leader_epoch: batch.leader_epoch(),
            timestamp_type: batch.timestamp_type(),
        }))
    }
}

impl Filter {
    /// Whether a batch belongs to an aborted transaction. Takes the batches in order, markers included.
    fn leaves_out(&mut self, batch: &Batch) -> Result<bool, millpond_log::batch::BatchError> {
        while let Some(aborted) = self.ahead.pop_front_if(|aborted| aborted.first_offset < batch.end_offset()) {
            self.aborting.insert(aborted.producer);
        }
        let Some(stamp) = batch.producer().filter(|_| batch.is_transactional()) else { return Ok(false) };
        if batch.is_control() && is_abort_marker(batch)? {
            self.aborting.remove(&stamp.id);
        }
        Ok(self.aborting.contains(&stamp.id))
    }
}

/// Whether a control batch says "abort": its key is a version and a type, both 16 bits; type 0 aborts, 1 commits.
fn is_abort_marker(batch: &Batch) -> Result<bool, millpond_log::batch::BatchError> {
    let Some(marker) = batch.records()?.next() else { return Ok(false) };
    Ok(marker?.key.is_some_and(|key| key.get(2..4) == Some(&[0, 0])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::{Bytes, BytesMut};
    use millpond_log::batch::{BatchBuilder, NewRecord, ProducerStamp};
    use millpond_log::codec::Codec;
    use millpond_log::{ErrorCode, ProducerEpoch, TimestampMs};

    fn batch(base: u64, values: &[&str], transaction_of: Option<u64>) -> Batch {
        let mut builder = BatchBuilder::new(Codec::Lz4);
        if let Some(id) = transaction_of {
            let stamp = ProducerStamp { id: ProducerId(id), epoch: ProducerEpoch(0), base_sequence: 0 };
            builder = builder.producer(stamp).transactional();
        }
        for value in values {
            let value = Some(value.as_bytes());
            builder.push(NewRecord { timestamp: TimestampMs(1), key: None, value, headers: &[] });
        }
        let mut batch = builder.build();
        batch.place(Offset(base), LeaderEpoch(3));
        batch
    }

    /// A control batch: attribute bits 4 and 5, a marker's key, the CRC made anew.
    fn marker(base: u64, producer: u64, kind: u8) -> Batch {
        let stamp = ProducerStamp { id: ProducerId(producer), epoch: ProducerEpoch(0), base_sequence: 0 };
        let mut builder = BatchBuilder::new(Codec::None).producer(stamp).transactional();
        builder.push(NewRecord { timestamp: TimestampMs(1), key: Some(&[0, 0, 0, kind]), value: None, headers: &[] });
        let mut bytes = BytesMut::new();
        builder.build().put(&mut bytes);
        bytes[22] |= 0x20;
        let crc = crc32c(&bytes[21..]).to_be_bytes();
        bytes[17..21].copy_from_slice(&crc);
        let mut batch = Batch::take(&mut bytes.freeze()).expect("whole").expect("there");
        batch.place(Offset(base), LeaderEpoch(3));
        assert!(batch.is_control() && batch.verify_crc().is_ok());
        batch
    }

    /// CRC-32C, bit by bit.
    fn crc32c(bytes: &[u8]) -> u32 {
        let step = |crc: u32, _| if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
        !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
    }

    fn decoder(batches: Vec<Batch>, aborted: Vec<Aborted>, isolation: IsolationLevel) -> Decoder {
        Decoder::new(TopicPartition::new("t", 0), batches, aborted, isolation, true)
    }

    /// Values read from `position`, and where the position ends.
    fn read(mut decoder: Decoder, mut position: Offset) -> Result<(Vec<String>, Offset), Error> {
        let (mut values, held, mut released) = (Vec::new(), decoder.size(), 0);
        loop {
            match decoder.step(position)? {
                Step::Record(record) => {
                    position = record.offset.plus(1);
                    values.push(String::from_utf8_lossy(&record.value.unwrap_or_default()).into_owned());
                }
                Step::BatchDone { end, size, .. } => (position, released) = (position.max(end), released + size),
                Step::Done => break,
            }
        }
        assert_eq!(held, released, "what was held is given back");
        Ok((values, position))
    }

    #[test]
    fn reading_begins_inside_a_batch() {
        let batches = || vec![batch(10, &["a", "b", "c"], None), batch(13, &["d"], None)];
        let check = |position, expected: &[&str]| {
            let (values, end) =
                read(decoder(batches(), vec![], IsolationLevel::ReadUncommitted), Offset(position)).expect("sound");
            assert_eq!(
                (values.iter().map(String::as_str).collect::<Vec<_>>().as_slice(), end),
                (expected, Offset(14).max(Offset(position)))
            );
        };
        check(10, &["a", "b", "c", "d"]);
        check(12, &["c", "d"]);
        check(13, &["d"]);
        check(14, &[]);
    }

    #[test]
    fn aborted_records_and_markers_are_left_out_of_committed_reads() {
        let batches = || {
            vec![
                batch(0, &["open-1"], Some(1)),
                batch(1, &["plain"], None),
                batch(2, &["open-2"], Some(2)),
                marker(3, 1, 0),
                batch(4, &["again-1"], Some(1)),
                marker(5, 2, 1),
                marker(6, 1, 1),
            ]
        };
        let aborted = vec![Aborted { producer: ProducerId(1), first_offset: Offset(0) }];
        let committed =
            read(decoder(batches(), aborted.clone(), IsolationLevel::ReadCommitted), Offset(0)).expect("sound");
        assert_eq!(committed, (vec!["plain".into(), "open-2".into(), "again-1".into()], Offset(7)));
        let all = read(decoder(batches(), aborted, IsolationLevel::ReadUncommitted), Offset(0)).expect("sound");
        assert_eq!(all.0, ["open-1", "plain", "open-2", "again-1"]);
    }

    #[test]
    fn a_damaged_batch_is_an_error_that_says_where() {
        let mut bytes = BytesMut::new();
        batch(5, &["abc"], None).put(&mut bytes);
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        let mut bytes: Bytes = bytes.freeze();
        let damaged = Batch::take(&mut bytes).expect("whole").expect("there");
        let error =
            read(decoder(vec![damaged], vec![], IsolationLevel::ReadUncommitted), Offset(5)).expect_err("damaged");
        assert_eq!(error.code, Some(ErrorCode::CorruptMessage));
        assert!(error.to_string().starts_with("t:0 offset 5: "), "{error}");
    }
}
