//! Works on the records of a group's partitions in parallel, in order by key, and commits what is completed.
//!
//! One task that reads, hands out and commits; each record is worked on in a task of its own. Which one may be, and up to where
//! a partition is done, is decided by `Dispatcher`.

mod dispatch;

use crate::client::Client;
use crate::error::Error;
use crate::group::{
    Assigned, Committer, GroupConfig, GroupConsumer, RebalanceListener, Revoked, Subscription, whenever,
};
use crate::record::{ConsumerRecord, TopicPartition};
use dispatch::{Dispatcher, JobId};
use futures::StreamExt;
use futures::future::BoxFuture;
use millpond_log::{ErrorCode, Offset};
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};

/// Of the time that closing may take, what records have that are under way.
const DRAIN_OF_CLOSING: f64 = 0.6;

/// How a worker behaves.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// Most records that are worked on at once.
    pub workers: usize,
    /// Most records taken in and not done, those that wait for others of their key included.
    pub in_flight_max: usize,
    /// Most bytes of their keys, values and headers. One record may exceed it.
    pub in_flight_bytes_max: usize,
    /// How often is committed what is done.
    pub commit_interval: Duration,
    /// How long records that were begun, and those below them, may take to end when their partition is revoked or the worker stops.
    /// Then they are abandoned at their next `await`, and are worked on again elsewhere. Less than four fifths of
    /// `GroupConfig::poll_interval_max`. When the worker stops, they have six tenths of `GroupConfig::close_timeout` at most.
    pub drain_timeout: Duration,
}

impl Default for WorkerConfig {
    fn default() -> WorkerConfig {
        WorkerConfig {
            workers: 16,
            in_flight_max: 1000,
            in_flight_bytes_max: 64 << 20,
            commit_interval: Duration::from_secs(1),
            drain_timeout: Duration::from_secs(20),
        }
    }
}

/// Why a worker ended.
#[derive(Debug)]
pub enum WorkerError<E> {
    /// A record could not be worked on. All below it in its partition that was done is committed; it comes again.
    Handler {
        /// The record's partition.
        partition: TopicPartition,
        /// The record's offset.
        offset: Offset,
        /// What the handler said.
        error: E,
    },
    /// The consumer failed.
    Consumer(Error),
}

impl<E: fmt::Display> fmt::Display for WorkerError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WorkerError::Handler { partition, offset, error } => write!(f, "{partition} at offset {offset}: {error}"),
            WorkerError::Consumer(error) => error.fmt(f),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> std::error::Error for WorkerError<E> {}

/// Works on the records of a group's partitions in parallel.
///
/// Records of one key of a partition are worked on in order, one at a time; records without a key in any order. What is committed of a
/// partition is what lies below its lowest record that is not done, so a record is worked on at least once whatever happens, and twice
/// only after a crash, a revocation that took longer than `drain_timeout`, or a failure above it.
#[derive(Clone, Debug, Default)]
pub struct Worker {
    config: WorkerConfig,
}

impl Worker {
    /// A worker.
    ///
    /// # Errors
    /// `InvalidRequest`: what is wrong with the settings.
    pub fn new(config: WorkerConfig) -> Result<Worker, Error> {
        if config.workers == 0 || config.in_flight_max == 0 || config.in_flight_bytes_max == 0 {
            return Err(Error::new(ErrorCode::InvalidRequest, "a worker works on one record at least"));
        }
        Ok(Worker { config })
    }

    /// Joins the group and works on what comes, until `shutdown` is ready or something fails; then finishes or abandons what is under
    /// way, commits what is done, and leaves. `group.auto_commit_interval` has no effect.
    ///
    /// Cancel safe in so far as nothing is committed that was not done; the group is then left without a word of what was.
    ///
    /// # Errors
    /// The handler's first error, or the consumer's.
    ///
    /// # Panics
    /// If the handler does.
    pub async fn run<H, F, E>(
        &self,
        client: &Client,
        group: GroupConfig,
        subscription: Subscription,
        handler: H,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), WorkerError<E>>
    where
        H: Fn(ConsumerRecord) -> F,
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Send + 'static,
    {
        let group = GroupConfig { auto_commit_interval: None, ..group };
        if self.config.drain_timeout >= group.poll_interval_max * 4 / 5 {
            let message =
                "`drain_timeout` is less than four fifths of `poll_interval_max`: else partitions are lost meanwhile";
            return Err(WorkerError::Consumer(Error::new(ErrorCode::InvalidRequest, message)));
        }
        let close_timeout = group.close_timeout;
        let bench = Bench { drain_timeout: self.config.drain_timeout, shared: Arc::default() };
        let consumer = GroupConsumer::with_listener(client, group, subscription, bench.clone());
        let consumer = consumer.map_err(WorkerError::Consumer)?;
        let committer = consumer.committer();
        let mut shift = Shift {
            config: &self.config,
            close_timeout,
            handler,
            bench,
            committer,
            jobs: JoinSet::new(),
            commit: None,
        };
        let mut consumer = consumer;
        let ended = shift.work(&mut consumer, shutdown).await;
        let closed = shift.close(consumer).await;
        ended.and(closed)
    }
}

/// What the worker's task and its listener share.
#[derive(Clone)]
struct Bench {
    drain_timeout: Duration,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Something was done.
    done: Notify,
    /// When all that is under way is abandoned, once the worker stops.
    cut_off: watch::Sender<Option<Instant>>,
}

#[derive(Default)]
struct State {
    dispatcher: Dispatcher,
    aborts: HashMap<JobId, AbortHandle>,
}

impl Bench {
    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nothing of these partitions is worked on or waits for it.
    async fn idle(&self, partitions: &BTreeSet<TopicPartition>) {
        loop {
            let mut done = pin!(self.shared.done.notified());
            done.as_mut().enable();
            if self.state().dispatcher.is_idle(partitions) {
                return;
            }
            done.await;
        }
    }

    /// Waits until all that is under way is to be abandoned.
    async fn cut_off(&self) {
        let mut cut_off = self.shared.cut_off.subscribe();
        let at = cut_off.wait_for(Option::is_some).await.ok().and_then(|at| *at);
        sleep_until(at.expect("`self` keeps its sender")).await;
    }

    /// Abandons what is worked on of these partitions, and forgets them.
    fn abandon(&self, partitions: &BTreeSet<TopicPartition>) {
        let mut state = self.state();
        for job in state.dispatcher.working(partitions).collect::<Vec<JobId>>() {
            if let Some(abort) = state.aborts.remove(&job) {
                abort.abort();
            }
        }
        state.dispatcher.forget(partitions);
    }
}

impl RebalanceListener for Bench {
    async fn assigned(&mut self, assigned: &mut Assigned) {
        // Of a revocation that was cut short something may be left, and it is not of this assignment.
        self.abandon(&assigned.partitions().cloned().collect());
    }

    async fn revoked(&mut self, revoked: &Revoked) {
        let partitions: BTreeSet<TopicPartition> = revoked.partitions().iter().cloned().collect();
        self.state().dispatcher.hold(&partitions);
        let drained = tokio::select! {
            drained = timeout(self.drain_timeout, self.idle(&partitions)) => drained.is_ok(),
            () = self.cut_off() => false,
        };
        if !drained {
            tracing::warn!("records of partitions that are given up took too long; they are abandoned");
        }
        let read = revoked.next_commits().map(|(partition, next)| (partition.clone(), next.clone()));
        let done = self.state().dispatcher.positions(read);
        self.abandon(&partitions);
        if let Err(error) = revoked.commit_offsets(done).await {
            tracing::warn!(%error, "what was done of revoked partitions was not committed; it will be done again");
        }
    }

    async fn lost(&mut self, partitions: &[TopicPartition]) {
        self.abandon(&partitions.iter().cloned().collect());
    }
}

/// A worker at work.
struct Shift<'a, H, E> {
    config: &'a WorkerConfig,
    /// How long the consumer takes at most to leave.
    close_timeout: Duration,
    handler: H,
    bench: Bench,
    committer: Committer,
    jobs: JoinSet<Done<E>>,
    commit: Option<BoxFuture<'static, Result<(), Error>>>,
}

struct Done<E> {
    job: JobId,
    partition: TopicPartition,
    offset: Offset,
    result: Result<(), E>,
}

impl<H, F, E> Shift<'_, H, E>
where
    H: Fn(ConsumerRecord) -> F,
    F: Future<Output = Result<(), E>> + Send + 'static,
    E: Send + 'static,
{
    async fn work(
        &mut self,
        consumer: &mut GroupConsumer,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), WorkerError<E>> {
        let mut shutdown = pin!(shutdown);
        let mut next_commit = Instant::now() + self.config.commit_interval;
        loop {
            self.begin();
            let (records, bytes) = self.bench.state().dispatcher.in_flight();
            // Without room nothing is asked for: an application whose records take too long is stuck, and loses its partitions.
            let room = records < self.config.in_flight_max && bytes < self.config.in_flight_bytes_max;
            tokio::select! {
                () = &mut shutdown => return Ok(()),
                next = consumer.next(), if room => match next {
                    Some(Ok(record)) => self.bench.state().dispatcher.push(record),
                    Some(Err(error)) => return Err(WorkerError::Consumer(error)),
                    None => return Ok(()),
                },
                Some(done) = self.jobs.join_next() => self.done(done)?,
                () = sleep_until(next_commit), if self.commit.is_none() => {
                    next_commit = Instant::now() + self.config.commit_interval;
                    self.commit(consumer);
                }
                committed = whenever(&mut self.commit) => if let Err(error) = committed {
                    tracing::warn!(%error, "what was done was not committed; the next commit tries again");
                }
            }
        }
    }

    /// Begins what may be worked on.
    fn begin(&mut self) {
        let mut state = self.bench.state();
        while self.jobs.len() < self.config.workers {
            let Some((job, record)) = state.dispatcher.begin() else { break };
            let (partition, offset) = (record.topic_partition(), record.offset);
            let work = (self.handler)(record);
            let abort = self.jobs.spawn(async move { Done { job, partition, offset, result: work.await } });
            state.aborts.insert(job, abort);
        }
    }

    fn done(&mut self, done: Result<Done<E>, JoinError>) -> Result<(), WorkerError<E>> {
        let Done { job, partition, offset, result } = match done {
            Ok(done) => done,
            Err(ended) => match ended.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // It was abandoned.
                Err(_cancelled) => return Ok(()),
            },
        };
        let known = self.bench.state().aborts.remove(&job).is_some();
        match result {
            Ok(()) => self.bench.state().dispatcher.finish(job),
            // Of a partition that was given up, it is somebody else's.
            Err(_) if !known => {}
            Err(error) => {
                // It is not done, and nothing of its key may follow.
                self.bench.state().dispatcher.discard(&BTreeSet::from([partition.clone()]));
                self.bench.state().dispatcher.fail(job);
                self.bench.shared.done.notify_waiters();
                return Err(WorkerError::Handler { partition, offset, error });
            }
        }
        self.bench.shared.done.notify_waiters();
        Ok(())
    }

    fn commit(&mut self, consumer: &GroupConsumer) {
        let done = self.bench.state().dispatcher.positions(consumer.next_commits());
        let done = self.committer.take_down(done);
        let news = self.committer.news(done);
        if !news.is_empty() {
            self.commit = Some(self.committer.commit_taken(news));
        }
    }

    /// Leaves the group: its listener finishes or abandons what is under way, and commits what is done.
    async fn close(mut self, consumer: GroupConsumer) -> Result<(), WorkerError<E>> {
        // The last one says the same and more, and has less time.
        self.commit = None;
        // What is left of the time is for the last commit and the farewell.
        self.bench.shared.cut_off.send_replace(Some(Instant::now() + self.close_timeout.mul_f64(DRAIN_OF_CLOSING)));
        let mut closing = pin!(consumer.close());
        let mut failed = Ok(());
        loop {
            // Also what lies below records that were begun.
            self.begin();
            tokio::select! {
                closed = &mut closing => return failed.and(closed.map_err(WorkerError::Consumer)),
                Some(done) = self.jobs.join_next() => failed = failed.and(self.done(done)),
            }
        }
    }
}
