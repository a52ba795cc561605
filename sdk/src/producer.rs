//! The producer: takes records, gathers them into batches, and says where each was written.
//!
//! A handle on a task that owns everything sent. Records wait in the accumulator, which the handles fill under a lock held
//! for the copy of one record: a queue of single records would cost more than the batch they end in.

mod accumulator;
mod asks;
mod batch;
mod config;
mod lane;
mod link;
mod partitioner;
mod sender;

pub use config::{Acks, ProducerConfig};
pub use partitioner::murmur2;

use crate::client::Client;
use crate::clock::wall_now;
use crate::error::Error;
use crate::record::{ProducerRecord, RecordMetadata};
use accumulator::{Accumulator, Append, Choice};
use batch::Pending;
pub(crate) use lane::Identity;
use millpond_log::ErrorCode;
use sender::Sender;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::JoinHandle;
use tokio::task::coop::unconstrained;
use tokio::time::{Instant, timeout_at};

/// Writes records. Cheap to clone; clones share batches, memory and sequences.
///
/// When the last clone is dropped, what was taken is still sent in the background, as long as the runtime lives;
/// `close` waits for that.
#[derive(Clone)]
pub struct Producer {
    handle: Arc<Handle>,
}

struct Handle {
    client: Client,
    config: ProducerConfig,
    shared: Arc<Shared>,
    sender: Mutex<Option<JoinHandle<()>>>,
}

/// What the handles and the sender's task share.
struct Shared {
    accumulator: Mutex<Accumulator>,
    memory: Arc<Semaphore>,
    news: Notify,
    life: Mutex<Life>,
    /// The most batches of one partition that were in flight at once.
    in_flight_most: AtomicUsize,
}

/// How far a producer is on its way out.
#[derive(Clone, Debug, Default)]
enum Life {
    /// Takes records.
    #[default]
    Open,
    /// Takes none, sends what it has.
    Closed,
    /// Gives up what it has.
    Abandoned(Error),
}

/// The fate of one record: a future of where it was written. Dropping it does not take the record back.
#[derive(Debug)]
pub struct Delivery {
    reply: oneshot::Receiver<Result<RecordMetadata, Error>>,
}

impl Producer {
    /// A producer on the client's cluster. Must be called inside a Tokio runtime.
    ///
    /// # Errors
    /// `InvalidConfig` when the settings contradict each other.
    pub fn new(client: &Client, config: ProducerConfig) -> Result<Producer, Error> {
        Producer::with_transaction(client, config, None)
    }

    /// A producer of one transaction: what it cannot write makes it give up everything.
    pub(crate) fn of_transaction(
        client: &Client,
        config: ProducerConfig,
        id: Arc<str>,
        identity: Identity,
    ) -> Result<Producer, Error> {
        Producer::with_transaction(client, config, Some((id, identity)))
    }

    fn with_transaction(
        client: &Client,
        config: ProducerConfig,
        transaction: Option<(Arc<str>, Identity)>,
    ) -> Result<Producer, Error> {
        config.validate()?;
        let transactional = transaction.is_some();
        let shared = Arc::new(Shared {
            accumulator: Mutex::new(Accumulator::new(
                config.batch_bytes,
                config.linger,
                config.compression,
                transactional,
            )),
            memory: Arc::new(Semaphore::new(config.buffer_memory)),
            news: Notify::new(),
            life: Mutex::new(Life::Open),
            in_flight_most: AtomicUsize::new(0),
        });
        let sender = tokio::spawn(Sender::new(client.clone(), Arc::clone(&shared), config.clone(), transaction).run());
        let handle = Handle { client: client.clone(), config, shared, sender: Mutex::new(Some(sender)) };
        Ok(Producer { handle: Arc::new(handle) })
    }

    /// Takes a record, and returns the future of its delivery.
    ///
    /// Records of one partition are written in the order in which their `send` returned. Waits up to `max_block` while
    /// memory is full or the topic is not known; with auto-creation on, a topic that does not exist is created.
    /// Cancel safe: a dropped call has taken nothing.
    ///
    /// # Errors
    /// - `ThrottlingQuotaExceeded`: memory stayed full for `max_block`. Wait for deliveries.
    /// - `UnknownTopicOrPartition`: no such topic or partition.
    /// - `MessageTooLarge`: the record alone exceeds `buffer_memory`.
    /// - `InvalidRequest`: the producer is closed.
    pub async fn send(&self, record: ProducerRecord) -> Result<Delivery, Error> {
        let Handle { client, config, shared, .. } = &*self.handle;
        let deadline = Instant::now() + config.max_block;
        self.refuse_if_closed()?;
        let count = client.partition_count(&record.topic, true, deadline).await?;
        let choice = choose(&record, count)?;
        let memory = self.reserve(record.size_estimate(), deadline).await?;
        let timestamp = record.timestamp.unwrap_or_else(wall_now);
        let (reply, delivery) = oneshot::channel();
        let append = Append { record, timestamp, choice, memory, pending: Pending { reply, timestamp } };
        let mut accumulator = shared.accumulator();
        // Under the lock: the sender looks here last after it has seen that the producer is closed.
        self.refuse_if_closed()?;
        let news = accumulator.append(Instant::now(), append);
        drop(accumulator);
        if news {
            shared.news.notify_one();
        }
        Ok(Delivery { reply: delivery })
    }

    /// Sends everything taken so far without lingering, and waits until it is written or given up.
    ///
    /// Each record's own fate is told by its `Delivery`. Cancel safe.
    pub async fn flush(&self) {
        // Who wants to know what failed asks for it.
        let _ = self.settle().await;
    }

    /// The same; tells what was given up, of all that was taken since the last call.
    pub(crate) async fn settle(&self) -> Result<(), Error> {
        let generations = self.handle.shared.accumulator().flush();
        self.handle.shared.news.notify_one();
        let mut settled = Ok(());
        for mut generation in generations {
            // It is closed when the last batch of the generation is answered, and holds what failed by then.
            while generation.changed().await.is_ok() {}
            settled = settled.and(generation.borrow().clone().map_or(Ok(()), Err));
        }
        self.refuse_if_closed().and(settled)
    }

    /// Takes no more records, waits until those taken are written or given up, and ends the producer's task.
    pub async fn close(&self) {
        self.handle.shared.close(Life::Closed);
        let sender = self.handle.sender.lock().unwrap_or_else(PoisonError::into_inner).take();
        match sender {
            Some(sender) => sender.await.unwrap_or_else(|error| tracing::error!(%error, "the producer's task failed")),
            None => self.flush().await,
        }
    }

    /// The most batches of one partition that were in flight at once so far: sent, and not answered. Where that is `max_in_flight`, the
    /// setting was the limit.
    #[must_use]
    pub fn in_flight_most(&self) -> usize {
        self.handle.shared.in_flight_most.load(Ordering::Relaxed)
    }

    /// Takes no more records and gives up those not written yet; those in flight may be written all the same.
    pub fn abort(&self) {
        let error = Error::new(ErrorCode::InvalidRequest, "the producer was aborted");
        self.handle.shared.close(Life::Abandoned(error));
    }

    /// Why everything was given up, if it was.
    pub(crate) fn abandoned(&self) -> Option<Error> {
        self.handle.shared.abandoned()
    }

    fn refuse_if_closed(&self) -> Result<(), Error> {
        if let Some(error) = self.abandoned() {
            return Err(error);
        }
        if self.handle.shared.is_closed() {
            return Err(Error::new(ErrorCode::InvalidRequest, "the producer is closed"));
        }
        Ok(())
    }

    async fn reserve(&self, size: usize, deadline: Instant) -> Result<OwnedSemaphorePermit, Error> {
        let Handle { config, shared, .. } = &*self.handle;
        let permits = match u32::try_from(size) {
            Ok(permits) if size <= config.buffer_memory => permits,
            _ => {
                let message = format!("record of {size} bytes is over buffer_memory={}", config.buffer_memory);
                return Err(Error::new(ErrorCode::MessageTooLarge, message));
            }
        };
        let memory = Arc::clone(&shared.memory);
        if let Ok(permit) = Arc::clone(&memory).try_acquire_many_owned(permits) {
            return Ok(permit);
        }
        // What lingers would be waited for in vain.
        shared.accumulator().hurry();
        shared.news.notify_one();
        match timeout_at(deadline, memory.acquire_many_owned(permits)).await {
            Ok(permit) => Ok(permit.expect("the semaphore is never closed")),
            Err(_) => {
                let held = config.buffer_memory;
                let message =
                    format!("buffer_memory={held} stayed full for {:?}; the broker is slower", config.max_block);
                Err(Error::new(ErrorCode::ThrottlingQuotaExceeded, message))
            }
        }
    }
}

/// Where a record goes in a topic of `count` partitions.
fn choose(record: &ProducerRecord, count: u32) -> Result<Choice, Error> {
    match (record.partition, &record.key) {
        (Some(partition), _) if partition < count => Ok(Choice::Partition(partition)),
        (None, Some(key)) if count > 0 => Ok(Choice::Partition(partitioner::by_key(key, count))),
        (None, None) if count > 0 => Ok(Choice::Any { count, random: rand::random() }),
        (asked, _) => {
            let asked = asked.map_or_else(|| "a partition".to_owned(), |partition| format!("partition {partition}"));
            let message = format!("topic `{}` has {count} partitions; there is no {asked}", record.topic);
            Err(Error::new(ErrorCode::UnknownTopicOrPartition, message).given_up())
        }
    }
}

impl std::fmt::Debug for Producer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Producer").field("config", &self.handle.config).finish_non_exhaustive()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.close(Life::Closed);
    }
}

impl Shared {
    fn accumulator(&self) -> MutexGuard<'_, Accumulator> {
        self.accumulator.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn life(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_closed(&self) -> bool {
        !matches!(*self.life(), Life::Open)
    }

    /// Why everything is to be given up, if it is.
    fn abandoned(&self) -> Option<Error> {
        match &*self.life() {
            Life::Abandoned(error) => Some(error.clone()),
            _ => None,
        }
    }

    fn close(&self, life: Life) {
        let mut now = self.life();
        if !matches!((&*now, &life), (Life::Abandoned(_), Life::Closed)) {
            *now = life;
        }
        drop(now);
        self.accumulator().hurry();
        self.news.notify_one();
    }

    async fn woken(&self) {
        self.news.notified().await;
    }
}

impl Future for Delivery {
    type Output = Result<RecordMetadata, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // One reply is no work that a task should be made to yield for. Whoever polls many at once would be told that each of them
        // has to wait, and be woken for all of them again.
        pin!(unconstrained(&mut self.reply)).poll(context).map(|reply| {
            let lost =
                || Error { maybe_done: true, ..Error::new(ErrorCode::UnknownServerError, "the producer's task ended") };
            reply.unwrap_or_else(|_| Err(lost()))
        })
    }
}
