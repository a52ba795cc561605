//! The consumer: assigned partitions as one stream of records, each partition in order.
//!
//! A handle on a task that keeps the streams; what it fetched is decoded here, when it is asked for.

mod config;
mod decode;
mod fetcher;
mod link;

pub use config::{ConsumerConfig, OffsetReset, ReadFrom, StartAt};

use crate::admin::{OffsetSpec, find_offset};
use crate::client::Client;
use crate::error::Error;
use crate::record::{ConsumerRecord, TopicPartition};
use decode::{Decoder, Step};
use fetcher::{Command, Event, Fetched, Fetcher, Generation};
use futures::{Stream, StreamExt};
use millpond_log::{ErrorCode, LeaderEpoch, Offset};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::time::timeout;

/// Reads partitions that are assigned to it.
///
/// It is a `Stream` of records that does not end while its runtime lives; `poll` gives them many at a time. Connections that break are made again, and
/// reading goes on where it stopped. An error that the stream yields concerns one partition, which is then at rest at its
/// position until it is sought; the others go on.
pub struct Consumer {
    client: Client,
    config: ConsumerConfig,
    commands: UnboundedSender<Command>,
    events: UnboundedReceiver<Event>,
    partitions: BTreeMap<TopicPartition, Assigned>,
    generations: Generation,
    decoding: Option<Decoding>,
    /// An error found behind records that had to be given out first.
    deferred: Option<Error>,
    /// The task is gone, and that was said.
    ended: bool,
}

/// What the consumer knows of a partition.
#[derive(Clone, Copy, Debug)]
struct Assigned {
    generation: Generation,
    position: Offset,
    /// Leader epoch of the record before the position, if that was read.
    epoch: Option<LeaderEpoch>,
    paused: bool,
    high_watermark: Option<Offset>,
    log_start: Option<Offset>,
}

/// A push whose records are being given out.
struct Decoding {
    partition: TopicPartition,
    generation: Generation,
    address: Arc<str>,
    decoder: Decoder,
}

impl Consumer {
    /// A consumer on the client's cluster, with nothing assigned. Must be called inside a Tokio runtime.
    #[must_use]
    pub fn new(client: &Client, config: ConsumerConfig) -> Consumer {
        let (commands, commanded) = mpsc::unbounded_channel();
        let (tell, events) = mpsc::unbounded_channel();
        // Ends when `commands` is dropped.
        tokio::spawn(Fetcher::new(client.clone(), config.clone(), commanded, tell).run());
        Consumer {
            client: client.clone(),
            config,
            commands,
            events,
            partitions: BTreeMap::new(),
            generations: 0,
            decoding: None,
            deferred: None,
            ended: false,
        }
    }

    /// Reads these partitions and no others from now on, each from where it says.
    ///
    /// # Errors
    /// `UnknownTopicOrPartition`, or why an offset could not be found; the assignment is then as before.
    pub async fn assign(
        &mut self,
        partitions: impl IntoIterator<Item = (TopicPartition, StartAt)>,
    ) -> Result<(), Error> {
        let mut starts = Vec::new();
        for (partition, at) in partitions {
            let offset = self.find(&partition, at).await?;
            starts.push((partition, offset));
        }
        for partition in std::mem::take(&mut self.partitions).into_keys() {
            self.command(Command::Stop { partition });
        }
        for (partition, offset) in starts {
            self.start(partition, offset, None, false);
        }
        Ok(())
    }

    /// Goes on reading an assigned partition from elsewhere.
    ///
    /// # Errors
    /// `InvalidRequest` if it is not assigned, or why an offset could not be found; the position is then as before.
    pub async fn seek(&mut self, partition: &TopicPartition, to: StartAt) -> Result<(), Error> {
        let paused = self.assigned(partition)?.paused;
        let offset = self.find(partition, to).await?;
        self.start(partition.clone(), offset, None, paused);
        Ok(())
    }

    /// Holds a partition at its position. What was read ahead of it is dropped.
    ///
    /// # Errors
    /// `InvalidRequest` if it is not assigned.
    pub fn pause(&mut self, partition: &TopicPartition) -> Result<(), Error> {
        let generation = self.next_generation();
        let assigned = self.assigned(partition)?;
        (assigned.paused, assigned.generation) = (true, generation);
        self.command(Command::Stop { partition: partition.clone() });
        Ok(())
    }

    /// Goes on reading a paused partition at its position.
    ///
    /// # Errors
    /// `InvalidRequest` if it is not assigned.
    pub fn resume(&mut self, partition: &TopicPartition) -> Result<(), Error> {
        let assigned = *self.assigned(partition)?;
        if assigned.paused {
            self.start(partition.clone(), assigned.position, assigned.epoch, false);
        }
        Ok(())
    }

    /// The partitions assigned, in order.
    pub fn assignment(&self) -> impl Iterator<Item = &TopicPartition> {
        self.partitions.keys()
    }

    /// The offset of the next record to come, of an assigned partition.
    #[must_use]
    pub fn position(&self, partition: &TopicPartition) -> Option<Offset> {
        self.partitions.get(partition).map(|assigned| assigned.position)
    }

    /// The end of what is committed, as the newest data of an assigned partition told.
    #[must_use]
    pub fn high_watermark(&self, partition: &TopicPartition) -> Option<Offset> {
        self.partitions.get(partition)?.high_watermark
    }

    /// The first offset that exists, as the newest data of an assigned partition told.
    #[must_use]
    pub fn log_start(&self, partition: &TopicPartition) -> Option<Offset> {
        self.partitions.get(partition)?.log_start
    }

    /// Reads a partition beside those assigned already. `epoch` is that of the record before the offset, if known.
    pub(crate) fn begin(&mut self, partition: TopicPartition, offset: Offset, epoch: Option<LeaderEpoch>) {
        self.start(partition, offset, epoch, false);
    }

    /// Takes a partition in without reading it, until it is sought.
    pub(crate) fn rest(&mut self, partition: TopicPartition) {
        self.start(partition, Offset(0), None, true);
    }

    /// Reads a partition no more; the others go on.
    pub(crate) fn end(&mut self, partition: &TopicPartition) {
        if self.partitions.remove(partition).is_some() {
            self.command(Command::Stop { partition: partition.clone() });
        }
    }

    /// The position of an assigned partition, and the leader epoch of the record before it, if that was read.
    pub(crate) fn place(&self, partition: &TopicPartition) -> Option<(Offset, Option<LeaderEpoch>)> {
        self.partitions.get(partition).map(|assigned| (assigned.position, assigned.epoch))
    }

    /// Waits up to `wait` for records, and returns those that are there, at most `poll_records_max`. Empty: none came.
    ///
    /// Cancel safe: what is not returned comes with the next call.
    ///
    /// # Errors
    /// As the stream; records before the error come first.
    pub async fn poll(&mut self, wait: Duration) -> Result<Vec<ConsumerRecord>, Error> {
        let mut records = Vec::new();
        match timeout(wait, self.next()).await {
            Ok(Some(first)) => records.push(first?),
            Ok(None) | Err(_) => return Ok(records),
        }
        while records.len() < self.config.poll_records_max {
            match self.here() {
                Some(Ok(record)) => records.push(record),
                Some(Err(error)) => {
                    self.deferred = Some(error);
                    break;
                }
                None => break,
            }
        }
        Ok(records)
    }

    /// The next record or error, if it is here already.
    pub(crate) fn here(&mut self) -> Option<Result<ConsumerRecord, Error>> {
        loop {
            if let Some(decoded) = self.decode() {
                return Some(decoded);
            }
            if let Some(error) = self.events.try_recv().ok().map(|event| self.take_in(event))? {
                return Some(Err(error));
            }
        }
    }

    /// The offset at which to start.
    async fn find(&self, partition: &TopicPartition, at: StartAt) -> Result<Offset, Error> {
        let TopicPartition { topic, partition: index } = partition;
        let isolation = self.config.isolation.on_the_wire();
        let find = |spec| find_offset(&self.client, topic, *index, spec, isolation);
        let found = match at {
            StartAt::Offset(offset) => return self.exists(partition).await.map(|()| offset),
            StartAt::Earliest => find(OffsetSpec::Earliest).await?,
            StartAt::Latest => find(OffsetSpec::Latest).await?,
            StartAt::Time(time) => match find(OffsetSpec::AtOrAfter(time)).await? {
                Some(found) => Some(found),
                None => find(OffsetSpec::Latest).await?,
            },
        };
        let none = || Error::new(ErrorCode::OffsetNotAvailable, format!("{partition}: no offset for {at:?}"));
        found.map(|found| found.offset).ok_or_else(none)
    }

    async fn exists(&self, partition: &TopicPartition) -> Result<(), Error> {
        let deadline = tokio::time::Instant::now() + self.client.config().api_timeout;
        let count = self.client.partition_count(&partition.topic, false, deadline).await?;
        if partition.partition < count {
            return Ok(());
        }
        let message = format!("topic `{}` has {count} partitions, not {}", partition.topic, partition.partition);
        Err(Error::new(ErrorCode::UnknownTopicOrPartition, message).given_up())
    }

    fn assigned(&mut self, partition: &TopicPartition) -> Result<&mut Assigned, Error> {
        let not_assigned = || Error::new(ErrorCode::InvalidRequest, format!("{partition} is not assigned"));
        self.partitions.get_mut(partition).ok_or_else(not_assigned)
    }

    fn next_generation(&mut self) -> Generation {
        self.generations += 1;
        self.generations
    }

    fn start(&mut self, partition: TopicPartition, offset: Offset, epoch: Option<LeaderEpoch>, paused: bool) {
        let generation = self.next_generation();
        let assigned = Assigned { generation, position: offset, epoch, paused, high_watermark: None, log_start: None };
        self.partitions.insert(partition.clone(), assigned);
        self.command(match paused {
            true => Command::Stop { partition },
            false => Command::Start { partition, generation, offset, epoch },
        });
    }

    fn command(&self, command: Command) {
        // The task lives as long as this handle, unless the runtime is shut down.
        let _ = self.commands.send(command);
    }

    fn consumed(&self, address: &Arc<str>, bytes: usize) {
        if bytes > 0 {
            self.command(Command::Consumed { address: Arc::clone(address), bytes });
        }
    }

    /// The partition of an event, if it still concerns the present assignment.
    fn current(&mut self, partition: &TopicPartition, generation: Generation) -> Option<&mut Assigned> {
        self.partitions.get_mut(partition).filter(|assigned| assigned.generation == generation)
    }

    /// Takes in what the task tells. Returns an error to report.
    fn take_in(&mut self, event: Event) -> Option<Error> {
        match event {
            Event::Fetched(fetched) => self.fetched(fetched),
            Event::Reset { partition, generation, offset } => {
                if let Some(assigned) = self.current(&partition, generation) {
                    (assigned.position, assigned.epoch) = (offset, None);
                }
            }
            Event::Failed { partition, generation, error } => {
                return self.current(&partition, generation).map(|_| error);
            }
        }
        None
    }

    fn fetched(&mut self, fetched: Fetched) {
        let Fetched { partition, generation, address, batches, aborted, high_watermark, log_start } = fetched;
        let Some(assigned) = self.current(&partition, generation) else {
            let size = batches.iter().map(millpond_log::Batch::size).sum();
            return self.consumed(&address, size);
        };
        (assigned.high_watermark, assigned.log_start) = (Some(high_watermark), Some(log_start));
        let ConsumerConfig { isolation, check_crcs, .. } = self.config;
        let decoder = Decoder::new(partition.clone(), batches, aborted, isolation, check_crcs);
        self.decoding = Some(Decoding { partition, generation, address, decoder });
    }

    /// Takes the next record out of the push at hand, if there is one left.
    fn decode(&mut self) -> Option<Result<ConsumerRecord, Error>> {
        loop {
            // In its place, for as long as records come: it is larger than most of them.
            let decoding = self.decoding.as_mut()?;
            let generation = decoding.generation;
            let assigned =
                self.partitions.get_mut(&decoding.partition).filter(|assigned| assigned.generation == generation);
            let Some(assigned) = assigned else {
                self.give_up_decoding();
                return None;
            };
            match decoding.decoder.step(assigned.position) {
                Ok(Step::Record(record)) => {
                    (assigned.position, assigned.epoch) = (record.offset.plus(1), Some(record.leader_epoch));
                    return Some(Ok(record));
                }
                Ok(Step::BatchDone { end, size, leader_epoch }) => {
                    if end > assigned.position {
                        (assigned.position, assigned.epoch) = (end, Some(leader_epoch));
                    }
                    let address = Arc::clone(&decoding.address);
                    self.consumed(&address, size);
                }
                Ok(Step::Done) => {
                    self.decoding = None;
                    return None;
                }
                Err(error) => {
                    // The partition rests at the damaged batch: reading on would skip it silently.
                    assigned.generation = Generation::MAX;
                    let partition = decoding.partition.clone();
                    self.give_up_decoding();
                    self.command(Command::Stop { partition });
                    return Some(Err(error));
                }
            }
        }
    }

    /// Drops what is left of the push at hand.
    fn give_up_decoding(&mut self) {
        if let Some(decoding) = self.decoding.take() {
            self.consumed(&decoding.address, decoding.decoder.size());
        }
    }
}

impl Stream for Consumer {
    type Item = Result<ConsumerRecord, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(error) = self.deferred.take() {
            return Poll::Ready(Some(Err(error)));
        }
        loop {
            if let Some(item) = self.decode() {
                return Poll::Ready(Some(item));
            }
            match ready!(self.events.poll_recv(context)) {
                Some(event) => {
                    if let Some(error) = self.take_in(event) {
                        return Poll::Ready(Some(Err(error)));
                    }
                }
                None if self.ended => return Poll::Ready(None),
                None => {
                    // An end without a word would look like the end of the data.
                    self.ended = true;
                    let message = "the consumer's task ended; make a new consumer";
                    return Poll::Ready(Some(Err(Error::new(ErrorCode::UnknownServerError, message))));
                }
            }
        }
    }
}

impl std::fmt::Debug for Consumer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Consumer").field("partitions", &self.partitions).finish_non_exhaustive()
    }
}
