//! From fetched batches to records: checksum, decompression, what to leave out. Pure.

use super::config::IsolationLevel;
use crate::error::Error;
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
    BatchDone { end: Offset, size: usize },
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
                    None => return Ok(Step::BatchDone { end: batch.end_offset(), size: batch.size() }),
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
                    let (end, size) = (open.end, open.size);
                    self.open = None;
                    return Ok(Step::BatchDone { end, size });
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
