//! A lane: the task that handles the records of one partition, one after the other, and sets those aside that fail.
//!
//! A record is done only when its handler has succeeded, or when its copy is durable in a delay or dead-letter topic. A lane that is
//! stopped, or dropped, leaves its record as it is: whoever reads the partition next handles it again.

use super::copies::{SetAside, event_id};
use super::decide::{Tried, Verdict, decide};
use super::failure::LastError;
use super::handler::{Attempt, Handler};
use super::place::{Ladder, Place};
use super::policy::RetryPolicy;
use super::topics::{Use, ensure};
use crate::client::Client;
use crate::clock::wall_now;
use crate::error::Error;
use crate::producer::Producer;
use crate::record::{ConsumerRecord, TopicPartition};
use futures::FutureExt;
use millpond_log::{LeaderEpoch, Offset, TimestampMs};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// What all lanes share.
pub(super) struct Shared<H> {
    pub(super) client: Client,
    pub(super) producer: Producer,
    pub(super) group: Arc<str>,
    pub(super) policy: RetryPolicy,
    pub(super) handler: H,
}

/// What a lane tells of itself.
pub(super) struct Told {
    pub(super) partition: TopicPartition,
    /// Which lane of the partition tells: there may have been one before.
    pub(super) lane: u64,
    pub(super) news: News,
}

/// The news.
pub(super) enum News {
    /// A record is done, and with it all before it. `size`: what it counted in the queue.
    Done { next: Offset, leader_epoch: LeaderEpoch, size: usize },
    /// The record at this offset stays where it is until the lane is told to go on.
    Paused { offset: Offset, error: LastError },
}

/// What a lane is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Order {
    /// Finish what is being done and begin nothing more.
    pub(super) stop: bool,
    /// Counts the times it was told to go on after a pause.
    pub(super) resumed: u64,
}

/// A lane.
pub(super) struct Lane<H> {
    pub(super) shared: Arc<Shared<H>>,
    pub(super) partition: TopicPartition,
    pub(super) lane: u64,
    pub(super) ladder: Arc<Ladder>,
    pub(super) place: Place,
    pub(super) records: UnboundedReceiver<ConsumerRecord>,
    pub(super) orders: watch::Receiver<Order>,
    pub(super) told: UnboundedSender<Told>,
}

/// The lane is to end, and the record at hand is not done.
struct Stopped;

/// What a record counts for beside its payload in a queue, in bytes: its fields, and its place.
pub(super) const RECORD_OVERHEAD_BYTES: usize = 256;

/// What a record counts for in a queue, in bytes.
pub(super) fn queued_size(record: &ConsumerRecord) -> usize {
    record.payload_size() + record.headers.len() * size_of::<millpond_log::batch::Header>() + RECORD_OVERHEAD_BYTES
}

impl<H: Handler> Lane<H> {
    /// Runs until it is stopped, or nobody gives it records any more.
    pub(super) async fn run(mut self) {
        while !self.is_stopped() {
            let record = tokio::select! {
                record = self.records.recv() => record,
                () = stopped(&mut self.orders) => None,
            };
            let Some(record) = record else { return };
            let (next, leader_epoch, size) = (record.offset.plus(1), record.leader_epoch, queued_size(&record));
            match self.until_done(record).await {
                Ok(()) => self.tell(News::Done { next, leader_epoch, size }),
                Err(Stopped) => return,
            }
        }
    }

    /// Returns when the record is done.
    async fn until_done(&mut self, read: ConsumerRecord) -> Result<(), Stopped> {
        let offset = read.offset;
        let copy = if self.place == Place::Source { None } else { SetAside::read(&read) };
        let (original, mut attempts) = match copy {
            // Another group's: it reads the same topic.
            Some(copy) if copy.group != *self.shared.group => return Ok(()),
            Some(copy) => {
                self.until_due(copy.next_at).await?;
                (copy.original, copy.attempts)
            }
            None => (read, 0),
        };
        let mut tried = 0u32;
        let mut first_failure = None;
        loop {
            attempts = attempts.saturating_add(1);
            tried = tried.saturating_add(1);
            let Err(error) = self.handle(original.clone(), attempts).await else { return Ok(()) };
            let since_first_failure = first_failure.get_or_insert_with(Instant::now).elapsed();
            let tried_so_far = Tried { times: tried, since_first_failure };
            let Shared { policy, .. } = &*self.shared;
            let verdict = decide(policy, &self.ladder, self.place, tried_so_far, error.kind, rand::random());
            tracing::debug!(partition = %self.partition, %offset, attempts, error = error.text, ?verdict, "a handler failed");
            match verdict {
                Verdict::Again(pause) => {
                    self.wait(pause).await?;
                    continue;
                }
                Verdict::Delay(_) | Verdict::DeadLetter => {
                    match self.set_aside(&original, attempts, &error, verdict).await {
                        Ok(()) => return Ok(()),
                        Err(refused) => self.pause(offset, LastError::of(&refused)).await?,
                    }
                }
                Verdict::Pause => self.pause(offset, error).await?,
            }
            // Somebody looked at it: it has its tries again.
            (tried, first_failure) = (0, None);
        }
    }

    /// Runs the handler once.
    async fn handle(&self, record: ConsumerRecord, number: u32) -> Result<(), LastError> {
        let attempt = Attempt { record, number };
        let run = AssertUnwindSafe(async { self.shared.handler.handle(attempt).await });
        match run.catch_unwind().await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(LastError::of(&error)),
            Err(panic) => Err(LastError::panicked(&*panic)),
        }
    }

    /// Copies the record to where it waits or rests, and returns when the copy is durable. Goes on trying while that may help: a copy
    /// may be there twice, but never not at all.
    ///
    /// # Errors
    /// It cannot be copied.
    async fn set_aside(
        &mut self,
        original: &ConsumerRecord,
        attempts: u32,
        error: &LastError,
        verdict: Verdict,
    ) -> Result<(), Error> {
        let mut failures = 0;
        loop {
            let refused = match self.copy(original, attempts, error, verdict).await {
                Ok(()) => return Ok(()),
                Err(refused) => refused,
            };
            failures += 1;
            if !refused.retriable {
                return Err(refused);
            }
            tracing::warn!(partition = %self.partition, offset = %original.offset, error = %refused, "cannot set a record aside yet");
            if self.wait(self.shared.policy.backoff.pause(failures, rand::random())).await.is_err() {
                return Err(refused);
            }
        }
    }

    async fn copy(
        &self,
        original: &ConsumerRecord,
        attempts: u32,
        error: &LastError,
        verdict: Verdict,
    ) -> Result<(), Error> {
        let Shared { client, producer, group, .. } = &*self.shared;
        let (topic, next_at, for_what) = match verdict {
            Verdict::Delay(rung) => {
                let (topic, delay) = &self.ladder.rungs[rung];
                (topic, Some(later(wall_now(), *delay)), Use::Delay)
            }
            _ => {
                let topic =
                    self.ladder.dead_letters.as_ref().expect("only ladders with such a topic are told to use it");
                (topic, None, Use::DeadLetters)
            }
        };
        let count = ensure(client, topic, &self.ladder.source, for_what).await?;
        let set_aside = SetAside {
            original: original.clone(),
            event_id: event_id(original),
            group: group.to_string(),
            attempts,
            error: error.clone(),
            next_at,
        };
        // The same partition, so that records of one key keep their order here as well.
        let copy = set_aside.copy(Arc::clone(topic), original.partition.checked_rem(count).unwrap_or(0));
        producer.send(copy).await?.await.map(drop)
    }

    /// Waits until a copy is due, never longer than its topic's delay: clocks differ.
    async fn until_due(&mut self, next_at: Option<TimestampMs>) -> Result<(), Stopped> {
        let (Some(next_at), Place::Rung(rung)) = (next_at, self.place) else { return Ok(()) };
        let ms = u64::try_from(next_at.0.saturating_sub(wall_now().0)).unwrap_or(0);
        self.wait(Duration::from_millis(ms).min(self.ladder.rungs[rung].1)).await
    }

    /// Holds the partition at its record until told to go on.
    async fn pause(&mut self, offset: Offset, error: LastError) -> Result<(), Stopped> {
        if self.is_stopped() {
            return Err(Stopped);
        }
        let before = self.orders.borrow_and_update().resumed;
        tracing::warn!(partition = %self.partition, %offset, error = error.text, "a record fails; its partition waits to be resumed");
        self.tell(News::Paused { offset, error });
        let lives = self.orders.wait_for(|order| order.stop || order.resumed > before).await.is_ok();
        if !lives || self.is_stopped() { Err(Stopped) } else { Ok(()) }
    }

    async fn wait(&mut self, pause: Duration) -> Result<(), Stopped> {
        tokio::select! {
            () = sleep(pause) => Ok(()),
            () = stopped(&mut self.orders) => Err(Stopped),
        }
    }

    fn is_stopped(&self) -> bool {
        self.orders.borrow().stop || self.orders.has_changed().is_err()
    }

    fn tell(&self, news: News) {
        // Whoever listens lives as long as its lanes.
        let _ = self.told.send(Told { partition: self.partition.clone(), lane: self.lane, news });
    }
}

/// Resolves when the lane is to end.
async fn stopped(orders: &mut watch::Receiver<Order>) {
    // An error: whoever gives orders is gone.
    let _ = orders.wait_for(|order| order.stop).await;
}

fn later(now: TimestampMs, delay: Duration) -> TimestampMs {
    TimestampMs(now.0.saturating_add(i64::try_from(delay.as_millis()).unwrap_or(i64::MAX)))
}
