//! A batch on its way: its records, who waits for them, and the memory they hold until they are answered.

use crate::error::Error;
use crate::record::{RecordMetadata, TopicPartition};
use millpond_log::batch::{Batch, BatchBuilder, NewRecord, ProducerStamp, Record};
use millpond_log::{Offset, TimestampMs};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, oneshot, watch};
use tokio::time::Instant;

/// Who waits for a record.
pub(super) struct Pending {
    pub(super) reply: oneshot::Sender<Result<RecordMetadata, Error>>,
    pub(super) timestamp: TimestampMs,
}

/// Records of one partition that are written together.
pub(super) struct RecordBatch {
    partition: TopicPartition,
    content: Content,
    /// One for each record, in order.
    pending: Vec<Pending>,
    memory: Option<OwnedSemaphorePermit>,
    created: Instant,
    /// Ends with the last batch of it; holds the first failure.
    generation: Arc<watch::Sender<Option<Error>>>,
}

/// The records: while they are gathered, and once they are encoded.
enum Content {
    Open(BatchBuilder),
    Encoded(Batch),
    /// Only inside `encode`.
    Taken,
}

/// Where the broker says a batch was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) base_offset: Option<Offset>,
    pub(super) append_time: Option<TimestampMs>,
}

impl RecordBatch {
    pub(super) fn new(
        partition: TopicPartition,
        builder: BatchBuilder,
        created: Instant,
        generation: Arc<watch::Sender<Option<Error>>>,
    ) -> RecordBatch {
        let content = Content::Open(builder);
        RecordBatch { partition, content, pending: Vec::new(), memory: None, created, generation }
    }

    /// Adds a record. Only before the first `encode`.
    pub(super) fn push(&mut self, record: NewRecord<'_>, pending: Pending, memory: OwnedSemaphorePermit) {
        let Content::Open(builder) = &mut self.content else {
            panic!("a batch that was encoded takes no more records")
        };
        builder.push(record);
        self.pending.push(pending);
        match &mut self.memory {
            Some(held) => held.merge(memory),
            None => self.memory = Some(memory),
        }
    }

    pub(super) fn partition(&self) -> &TopicPartition {
        &self.partition
    }

    pub(super) fn created(&self) -> Instant {
        self.created
    }

    /// How many records it holds.
    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.pending.len()).expect("a batch's records are counted in 32 bits")
    }

    /// Size in bytes: before compression while it is filled, then as encoded.
    pub(super) fn size(&self) -> usize {
        match &self.content {
            Content::Open(builder) => builder.size(),
            Content::Encoded(batch) => batch.size(),
            Content::Taken => unreachable!("only inside `encode`"),
        }
    }

    /// The batch under this stamp. The same stamp gives the same bytes.
    pub(super) fn encode(&mut self, stamp: Option<ProducerStamp>) -> Batch {
        let batch = match std::mem::replace(&mut self.content, Content::Taken) {
            Content::Open(builder) => stamped(builder, stamp).build(),
            Content::Encoded(batch) if batch.producer() == stamp => batch,
            Content::Encoded(batch) => encode_records(&batch, &decoded(&batch), stamp),
            Content::Taken => unreachable!("only inside `encode`"),
        };
        self.content = Content::Encoded(batch.clone());
        batch
    }

    /// Halves a batch that was too large for the broker; the halves keep its order. Only after `encode`.
    ///
    /// # Errors
    /// The batch itself if it is a single record.
    pub(super) fn split(mut self) -> Result<(RecordBatch, RecordBatch), Box<RecordBatch>> {
        let Content::Encoded(batch) = &self.content else { panic!("only a batch that was sent can be too large") };
        if self.pending.len() < 2 {
            return Err(Box::new(self));
        }
        let records = decoded(batch);
        let (first, second) = records.split_at(records.len() / 2);
        let halves = [first, second].map(|half| Content::Encoded(encode_records(batch, half, None)));
        let second_pending = self.pending.split_off(first.len());
        let second_memory = self.memory.as_mut().and_then(|memory| memory.split(memory.num_permits() / 2));
        let [first_content, second_content] = halves;
        let second = RecordBatch {
            partition: self.partition.clone(),
            content: second_content,
            pending: second_pending,
            memory: second_memory,
            created: self.created,
            generation: Arc::clone(&self.generation),
        };
        Ok((RecordBatch { content: first_content, ..self }, second))
    }

    /// Tells everyone who waits that the batch was written.
    pub(super) fn complete(self, written: Written) {
        for (index, pending) in (0..).zip(self.pending) {
            let metadata = RecordMetadata {
                topic: Arc::clone(&self.partition.topic),
                partition: self.partition.partition,
                offset: written.base_offset.map(|base| base.plus(index)),
                timestamp: written.append_time.unwrap_or(pending.timestamp),
            };
            // Who dropped the delivery does not want to know.
            let _ = pending.reply.send(Ok(metadata));
        }
    }

    /// Tells everyone who waits why the batch was not written, or may not have been.
    pub(super) fn fail(self, error: &Error) {
        let error = error.clone().at(&self.partition);
        // First: whoever waits for the generation asks what failed in it.
        self.generation.send_if_modified(|failed| failed.is_none() && failed.replace(error.clone()).is_none());
        for pending in self.pending {
            let _ = pending.reply.send(Err(error.clone()));
        }
    }
}

fn stamped(builder: BatchBuilder, stamp: Option<ProducerStamp>) -> BatchBuilder {
    match stamp {
        Some(stamp) => builder.producer(stamp),
        None => builder,
    }
}

fn decoded(batch: &Batch) -> Vec<Record> {
    let records = batch.records().and_then(Iterator::collect::<Result<Vec<Record>, _>>);
    records.expect("we encoded the batch ourselves")
}

/// Encodes some records of a batch anew, with its codec.
fn encode_records(batch: &Batch, records: &[Record], stamp: Option<ProducerStamp>) -> Batch {
    let codec = batch.codec().expect("we encoded the batch ourselves");
    let mut builder = stamped(BatchBuilder::new(codec), stamp);
    if batch.is_transactional() {
        builder = builder.transactional();
    }
    for record in records {
        builder.push(NewRecord {
            timestamp: record.timestamp,
            key: record.key.as_deref(),
            value: record.value.as_deref(),
            headers: &record.headers,
        });
    }
    builder.build()
}
