//! A consumer in a group: the coordinator assigns it partitions, and it commits what it has processed (KIP-848).
//!
//! A handle on a reader of assigned partitions and on the task of a member. What the task wants done (partitions that come and go) is
//! done here, when the application asks for more: then it is done with what it was given before.

mod commit;
mod config;
mod listener;
mod member;
mod membership;
mod rights;
mod starts;
mod turns;

pub use commit::Committer;
pub use config::{GroupConfig, Subscription};
pub use listener::{Assigned, RebalanceListener, Revoked};

use crate::client::Client;
use crate::consumer::{Consumer, StartAt};
use crate::coordinator::Coordinator;
use crate::error::Error;
use crate::record::{CommitOffset, ConsumerRecord, TopicPartition};
use crate::transactional::OffsetsOf;
use futures::future::{BoxFuture, FutureExt};
use futures::{Stream, StreamExt};
use listener::{Listening, Unheard};
pub(crate) use member::whenever;
use member::{Member, Order, Parts, Pulse, Wish};
use millpond_log::{ErrorCode, Offset};
use millpond_proto::v1::groups_client::GroupsClient;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};
use tonic::transport::Channel;
use turns::Turn;

/// The service of groups on a channel.
type GroupsChannel = GroupsClient<Channel>;

/// A consumer in a group.
///
/// It is a `Stream` of the records of the partitions that it is assigned, each partition in order. Partitions that stay are read on
/// while others move. An error that the stream yields concerns one partition, which is then at rest until it is sought, or the
/// membership: then it is the last. The application is taken to be alive while it asks for records; see
/// `GroupConfig::poll_interval_max`.
///
/// Nothing is committed unless the application does so, or has set `auto_commit_interval`. Dropped, it leaves the group without a
/// commit; `close` leaves it in order.
pub struct GroupConsumer {
    client: Client,
    coordinator: Coordinator,
    config: GroupConfig,
    reader: Consumer,
    committer: Committer,
    pulse: Arc<Pulse>,
    listener: Arc<tokio::sync::Mutex<Box<dyn Listening>>>,
    orders: UnboundedReceiver<Order>,
    wishes: UnboundedSender<Wish>,
    /// Orders that wait for the one being carried out.
    waiting: VecDeque<Order>,
    turn: Option<Turn>,
    /// Partitions that it holds.
    held: BTreeSet<TopicPartition>,
    /// Those of them that are to be given up.
    leaving: BTreeSet<TopicPartition>,
    /// Those of them that rest until they are sought, since nobody knows where to begin.
    unread: BTreeSet<TopicPartition>,
    /// The first record of each partition that was handed out since the application last asked for more.
    unconfirmed: Vec<(TopicPartition, Offset)>,
    errors: VecDeque<Error>,
    auto_commit: Option<AutoCommit>,
    ended: bool,
}

struct AutoCommit {
    interval: Duration,
    next: Instant,
    under_way: Option<BoxFuture<'static, Result<(), Error>>>,
}

impl GroupConsumer {
    /// A consumer that joins a group. Must be called inside a Tokio runtime.
    ///
    /// # Errors
    /// `InvalidRequest`: what is wrong with the settings.
    pub fn new(client: &Client, config: GroupConfig, subscription: Subscription) -> Result<GroupConsumer, Error> {
        GroupConsumer::with_listener(client, config, subscription, Unheard)
    }

    /// The same, with a listener that is told of partitions that come and go.
    ///
    /// # Errors
    /// As `new`.
    pub fn with_listener(
        client: &Client,
        config: GroupConfig,
        subscription: Subscription,
        listener: impl RebalanceListener,
    ) -> Result<GroupConsumer, Error> {
        config.check()?;
        subscription.check()?;
        let coordinator = Coordinator::of_group(client, &config.group);
        let committer = Committer::new(coordinator.clone(), config.instance.clone(), client.config().api_timeout);
        let (order, orders) = mpsc::unbounded_channel();
        let (wishes, wished) = mpsc::unbounded_channel();
        let pulse = Arc::new(Pulse::new());
        let parts = Parts {
            client: client.clone(),
            coordinator: coordinator.clone(),
            config: config.clone(),
            subscription,
            committer: committer.clone(),
            pulse: Arc::clone(&pulse),
            orders: order,
            wishes: wished,
        };
        // Ends when `wishes` is dropped, or asked to leave.
        tokio::spawn(Member::new(parts).run());
        let auto_commit = config.auto_commit_interval.map(|interval| AutoCommit {
            interval,
            next: Instant::now() + interval,
            under_way: None,
        });
        Ok(GroupConsumer {
            client: client.clone(),
            coordinator,
            reader: Consumer::new(client, config.reader.clone()),
            config,
            committer,
            pulse,
            listener: Arc::new(tokio::sync::Mutex::new(Box::new(listener))),
            orders,
            wishes,
            waiting: VecDeque::new(),
            turn: None,
            held: BTreeSet::new(),
            leaving: BTreeSet::new(),
            unread: BTreeSet::new(),
            unconfirmed: Vec::new(),
            errors: VecDeque::new(),
            auto_commit,
            ended: false,
        })
    }

    /// Reads other topics from now on. What is not read any more is revoked.
    ///
    /// # Errors
    /// `InvalidRequest`: the subscription names nothing.
    pub fn subscribe(&mut self, subscription: Subscription) -> Result<(), Error> {
        subscription.check()?;
        self.wish(Wish::Subscribe(subscription));
        Ok(())
    }

    /// The partitions that are assigned and not being revoked, in order.
    pub fn assignment(&self) -> impl Iterator<Item = &TopicPartition> {
        self.held.difference(&self.leaving)
    }

    /// The offset of the next record to be handed out, of an assigned partition.
    #[must_use]
    pub fn position(&self, partition: &TopicPartition) -> Option<Offset> {
        if self.unread.contains(partition) { None } else { self.reader.position(partition) }
    }

    /// What to commit of an assigned partition once all that was handed out of it is processed. It lies past what is never handed out, such
    /// as the markers of transactions and what was aborted, so that a group that has read everything has no lag.
    #[must_use]
    pub fn next_commit(&self, partition: &TopicPartition) -> Option<CommitOffset> {
        if self.unread.contains(partition) {
            return None;
        }
        let (offset, leader_epoch) = self.reader.place(partition)?;
        Some(CommitOffset { leader_epoch, ..CommitOffset::at(offset) })
    }

    /// `next_commit` of every partition that is assigned and not being revoked.
    pub(crate) fn next_commits(&self) -> impl Iterator<Item = (TopicPartition, CommitOffset)> {
        self.assignment().filter_map(|partition| Some((partition.clone(), self.next_commit(partition)?)))
    }

    /// The end of what is committed to the log, as the newest data of an assigned partition told.
    #[must_use]
    pub fn high_watermark(&self, partition: &TopicPartition) -> Option<Offset> {
        self.reader.high_watermark(partition)
    }

    /// Goes on reading an assigned partition from elsewhere.
    ///
    /// # Errors
    /// `InvalidRequest` if it is not assigned, or why an offset could not be found; the position is then as before.
    pub async fn seek(&mut self, partition: &TopicPartition, to: StartAt) -> Result<(), Error> {
        self.check(partition)?;
        self.reader.seek(partition, to).await?;
        if self.unread.remove(partition) {
            self.reader.resume(partition)?;
        }
        self.unconfirmed.retain(|(unconfirmed, _)| unconfirmed != partition);
        Ok(())
    }

    /// Holds a partition at its position; it stays assigned.
    ///
    /// # Errors
    /// `InvalidRequest` if it is not assigned.
    pub fn pause(&mut self, partition: &TopicPartition) -> Result<(), Error> {
        self.check(partition)?;
        self.reader.pause(partition)
    }

    /// Goes on reading a paused partition at its position.
    ///
    /// # Errors
    /// `InvalidRequest` if it is not assigned, or was never told where to begin.
    pub fn resume(&mut self, partition: &TopicPartition) -> Result<(), Error> {
        self.check(partition)?;
        if self.unread.contains(partition) {
            return Err(Error::new(ErrorCode::InvalidRequest, format!("{partition} has no position; seek to begin")));
        }
        self.reader.resume(partition)
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
        while records.len() < self.config.reader.poll_records_max {
            match self.reader.here() {
                Some(Ok(record)) => {
                    self.handed_out(&record);
                    records.push(record);
                }
                Some(Err(error)) => {
                    self.errors.push_back(error);
                    break;
                }
                None => break,
            }
        }
        Ok(records)
    }

    /// Commits all that was handed out: for an application that has processed all of it. Returns once that is durable.
    ///
    /// # Errors
    /// As `Committer::commit`.
    pub async fn commit(&mut self) -> Result<(), Error> {
        self.commit_all().await
    }

    /// The same without waiting: the commit goes on by itself, in the order in which commits are asked for. What it came to may be
    /// awaited, or not.
    pub fn commit_async(&mut self) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        // A task that waits for it, so that it goes on.
        let committing = tokio::spawn(self.commit_all());
        async move {
            committing.await.unwrap_or_else(|ended| {
                Err(Error::new(ErrorCode::UnknownServerError, format!("the commit was cut short: {ended}")))
            })
        }
    }

    fn commit_all(&mut self) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        self.unconfirmed.clear();
        let taken = self.committer.take_down(self.positions(&self.held));
        self.committer.commit_taken(self.committer.news(taken))
    }

    /// Commits these offsets, of assigned partitions. Returns once that is durable.
    ///
    /// # Errors
    /// As `Committer::commit`.
    pub async fn commit_offsets(
        &self,
        offsets: impl IntoIterator<Item = (TopicPartition, CommitOffset)>,
    ) -> Result<(), Error> {
        self.committer.commit(offsets).await
    }

    /// What the group has committed of partitions, whoever holds them; a partition of which it has committed nothing is left out.
    ///
    /// # Errors
    /// `UnknownTopicOrPartition`; if the coordinator does not answer.
    pub async fn committed(
        &self,
        partitions: impl IntoIterator<Item = TopicPartition>,
    ) -> Result<BTreeMap<TopicPartition, Offset>, Error> {
        starts::committed(&self.client, &self.coordinator, partitions).await
    }

    /// As whom offsets of these partitions are committed inside a transaction (`TransactionalProducer::send_offsets`). To be asked for each
    /// transaction: it names the membership in which the partitions were assigned, by which the coordinator refuses what another member
    /// goes on with by then.
    ///
    /// # Errors
    /// `StaleMemberEpoch`: not all of them are this member's any more. Abort the transaction, and drop what was read of them.
    pub fn offsets_of<'a>(&self, partitions: impl IntoIterator<Item = &'a TopicPartition>) -> Result<OffsetsOf, Error> {
        self.committer.offsets_of(partitions)
    }

    /// Commits for this member, from elsewhere.
    #[must_use]
    pub fn committer(&self) -> Committer {
        self.committer.clone()
    }

    /// Leaves the group in order: hands out nothing more, lets the listener end what it has begun and give everything up, commits what auto
    /// commit would (not what was handed out last, since nothing was asked for after it), and says farewell, so that others go on at once.
    /// A static member's partitions stay its own until its session ends. Takes up to `close_timeout`.
    ///
    /// # Errors
    /// Why the last commit failed, or why the coordinator could not be told: then others go on when the session ends.
    pub async fn close(mut self) -> Result<(), Error> {
        let until = Instant::now() + self.config.close_timeout;
        if let Some(auto) = &mut self.auto_commit {
            // The last one says the same and more, and has less time.
            auto.under_way = None;
        }
        for partition in &self.held {
            // It is held, so it is assigned to the reader.
            let _ = self.reader.pause(partition);
        }
        let given_up = async {
            // The listener is not interrupted: what it has begun to commit would be nobody's.
            if let Some(turn) = self.turn.take() {
                self.turned(turn.await);
            }
            self.give_up(self.held.iter().cloned().collect()).await
        };
        let given_up = match timeout_at(until, given_up).await {
            Ok(given_up) => given_up,
            Err(_) => Err(Error::new(
                ErrorCode::RequestTimedOut,
                "closing took too long; not all that was processed is committed",
            )),
        };
        let (done, left) = oneshot::channel();
        // Farewells are short; one is said also if all else took too long.
        self.wish(Wish::Leave { until: until.max(Instant::now() + Duration::from_secs(1)), done });
        let left = left.await.unwrap_or(Ok(()));
        given_up.and(left)
    }

    /// What is asked of the partition's owner alone.
    fn check(&self, partition: &TopicPartition) -> Result<(), Error> {
        if self.held.contains(partition) && !self.leaving.contains(partition) {
            return Ok(());
        }
        Err(Error::new(ErrorCode::InvalidRequest, format!("{partition} is not assigned")))
    }

    /// Where the group would go on in each of `partitions`, by what was handed out and confirmed.
    fn positions(&self, partitions: &BTreeSet<TopicPartition>) -> BTreeMap<TopicPartition, CommitOffset> {
        let position = |partition: &TopicPartition| {
            let next = self.next_commit(partition)?;
            let unconfirmed = self.unconfirmed.iter().find(|(unconfirmed, _)| unconfirmed == partition);
            let at = match unconfirmed {
                Some((_, first)) if *first < next.offset => CommitOffset::at(*first),
                _ => next,
            };
            Some((partition.clone(), at))
        };
        partitions.iter().filter_map(position).collect()
    }

    fn handed_out(&mut self, record: &ConsumerRecord) {
        let known = |(partition, _): &(TopicPartition, Offset)| {
            partition.partition == record.partition && partition.topic == record.topic
        };
        if !self.unconfirmed.iter().any(known) {
            self.unconfirmed.push((record.topic_partition(), record.offset));
        }
    }

    fn wish(&self, wish: Wish) {
        // The task lives as long as this handle, unless the runtime is shut down.
        let _ = self.wishes.send(wish);
    }

    /// Commits what is due, if nothing is under way.
    fn commit_by_itself(&mut self, context: &mut Context<'_>) {
        let Some(auto) = &mut self.auto_commit else { return };
        if let Some(under_way) = &mut auto.under_way {
            let Poll::Ready(result) = under_way.poll_unpin(context) else { return };
            auto.under_way = None;
            if let Err(error) = result {
                tracing::warn!(group = self.config.group, %error, "auto commit failed; the next one tries again");
            }
        }
        // Whoever waits is woken with each heartbeat at least, so this is looked at often enough.
        if Instant::now() < auto.next {
            return;
        }
        auto.next = Instant::now() + auto.interval;
        let stay: BTreeSet<TopicPartition> = self.held.difference(&self.leaving).cloned().collect();
        let news = self.committer.news(self.committer.take_down(self.positions(&stay)));
        if news.is_empty() {
            return;
        }
        let commit = self.committer.commit_taken(news);
        self.auto_commit.as_mut().expect("looked at above").under_way = Some(commit);
    }
}

impl Stream for GroupConsumer {
    type Item = Result<ConsumerRecord, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        // Whoever asks for more is done with what he was given.
        this.unconfirmed.clear();
        this.pulse.wait(context.waker());
        if this.pulse.polled() {
            this.wish(Wish::Return);
        }
        this.take_turns(context);
        this.commit_by_itself(context);
        if let Some(error) = this.errors.pop_front() {
            return Poll::Ready(Some(Err(error)));
        }
        if this.ended {
            return Poll::Ready(None);
        }
        let next = this.reader.poll_next_unpin(context);
        if let Poll::Ready(Some(Ok(record))) = &next {
            this.handed_out(record);
        }
        next
    }
}

impl std::fmt::Debug for GroupConsumer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GroupConsumer")
            .field("group", &self.config.group)
            .field("held", &self.held)
            .finish_non_exhaustive()
    }
}
