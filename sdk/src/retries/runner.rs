//! The work of a retrying consumer: hands records to lanes, one for each partition, and commits what they have done. It decides nothing
//! about records.
//!
//! It never waits for a lane: while one retries, waits for a record to be due, or is paused, the others go on and the group hears of
//! this member.

use super::config::RetryingConfig;
use super::control::PausedPartition;
use super::handler::Handler;
use super::lane::{Lane, News, Order, Shared, Told, queued_size};
use super::place::{Place, Places};
use crate::client::Client;
use crate::consumer::OffsetReset;
use crate::error::Error;
use crate::group::{
    Assigned, Committer, GroupConfig, GroupConsumer, RebalanceListener, Revoked, Subscription, whenever,
};
use crate::producer::Producer;
use crate::record::{CommitOffset, ConsumerRecord, TopicPartition};
use futures::StreamExt;
use futures::future::{BoxFuture, FutureExt};
use millpond_log::{ErrorCode, Offset};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::{oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep_until};

/// What a listener asks of the runner, and hears when it is done.
struct Ask {
    side: usize,
    what: What,
    done: oneshot::Sender<()>,
}

enum What {
    Assigned(usize),
    /// They are still this member's until it is done. With each, where the group goes on once all that was read of it is done.
    Revoked(Vec<(TopicPartition, Option<CommitOffset>)>),
    /// They are not.
    Lost(Vec<TopicPartition>),
}

/// Passes on what happens to partitions.
struct Listener {
    side: usize,
    asks: UnboundedSender<Ask>,
}

impl Listener {
    async fn ask(&self, what: What) {
        let (done, answered) = oneshot::channel();
        // A runner that is gone has no lanes.
        let _ = self.asks.send(Ask { side: self.side, what, done });
        let _ = answered.await;
    }
}

impl RebalanceListener for Listener {
    async fn assigned(&mut self, assigned: &mut Assigned) {
        self.ask(What::Assigned(assigned.partitions().count())).await;
    }

    async fn revoked(&mut self, revoked: &Revoked) {
        let next: BTreeMap<_, _> = revoked.next_commits().collect();
        let with_next = |partition: &TopicPartition| (partition.clone(), next.get(partition).copied().cloned());
        self.ask(What::Revoked(revoked.partitions().iter().map(with_next).collect())).await;
    }

    async fn lost(&mut self, partitions: &[TopicPartition]) {
        self.ask(What::Lost(partitions.to_vec())).await;
    }
}

/// A lane as the runner sees it.
struct Open {
    lane: u64,
    side: usize,
    records: UnboundedSender<ConsumerRecord>,
    orders: watch::Sender<Order>,
    task: AbortHandle,
    /// Bytes handed to it and not done.
    queued: usize,
    /// Nothing more is read for it.
    held_back: bool,
    /// What was handed to it last.
    handed: Option<Offset>,
    /// How far it is done.
    done: Option<CommitOffset>,
    paused: Option<PausedPartition>,
}

/// Partitions that are being given up.
struct Leaving {
    side: usize,
    partitions: Vec<(TopicPartition, Option<CommitOffset>)>,
    lanes: BTreeSet<u64>,
    /// When lanes are cut off that have not ended.
    until: Instant,
    done: oneshot::Sender<()>,
}

/// The members of the group that read: one for the topics, one for their delay topics. They differ in where they begin: a record in a
/// delay topic is owed, so nothing of it is ever passed over.
type Sides = Vec<GroupConsumer>;

/// The runner.
pub(super) struct Runner<H> {
    shared: Arc<Shared<H>>,
    config: RetryingConfig,
    places: Places,
    sides: Sides,
    /// The side that is read from first: they take turns, so that none waits for another that is always ready.
    turn: usize,
    committers: Vec<Committer>,
    /// Partitions held, on all sides.
    held: usize,
    open: BTreeMap<TopicPartition, Open>,
    lanes: u64,
    tasks: JoinSet<u64>,
    /// Last commits of partitions that are given up.
    farewells: JoinSet<()>,
    tell: UnboundedSender<Told>,
    told: UnboundedReceiver<Told>,
    asks: UnboundedReceiver<Ask>,
    leaving: Vec<Leaving>,
    /// When lanes are cut off that have not ended, once it closes.
    closing: Option<Instant>,
    paused: watch::Sender<Vec<PausedPartition>>,
}

/// A commit under way.
type Commit = BoxFuture<'static, ()>;

impl<H: Handler> Runner<H> {
    /// Joins the group.
    pub(super) fn start(
        client: Client,
        config: RetryingConfig,
        places: Places,
        handler: H,
        paused: watch::Sender<Vec<PausedPartition>>,
    ) -> Result<Runner<H>, Error> {
        let (ask, asks) = mpsc::unbounded_channel();
        let (tell, told) = mpsc::unbounded_channel();
        let mut sides = Sides::new();
        for (group, subscription) in subscriptions(&config.group, &places) {
            let listener = Listener { side: sides.len(), asks: ask.clone() };
            sides.push(GroupConsumer::with_listener(&client, group, subscription, listener)?);
        }
        let committers = sides.iter().map(GroupConsumer::committer).collect();
        let producer = Producer::new(&client, config.producer.clone())?;
        let (group, policy) = (config.group.group.as_str().into(), config.policy.clone());
        let shared = Arc::new(Shared { client, producer, group, policy, handler });
        Ok(Runner {
            shared,
            config,
            places,
            sides,
            turn: 0,
            committers,
            held: 0,
            open: BTreeMap::new(),
            lanes: 0,
            tasks: JoinSet::new(),
            farewells: JoinSet::new(),
            tell,
            told,
            asks,
            leaving: Vec::new(),
            closing: None,
            paused,
        })
    }

    pub(super) async fn run(
        mut self,
        mut resumes: UnboundedReceiver<TopicPartition>,
        until: impl Future<Output = ()>,
    ) -> Result<(), Error> {
        let mut until = pin!(until);
        let mut tick = interval(self.config.commit_interval);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut commit: Option<Commit> = None;
        let ended = loop {
            let cut_off_at = self.cut_off_at();
            tokio::select! {
                () = &mut until => break Ok(()),
                (side, read) = next(&mut self.sides, self.turn) => {
                    self.turn = side + 1;
                    match read {
                        Some(Ok(record)) => self.hand_over(side, record),
                        Some(Err(error)) => break Err(error),
                        None => break Err(Error::new(ErrorCode::UnknownServerError, "the consumer ended; run another")),
                    }
                }
                Some(told) = self.told.recv() => self.hear(told),
                Some(ask) = self.asks.recv() => self.answer(ask),
                Some(lane) = self.tasks.join_next() => self.lane_ended(lane.ok()),
                () = sleep_until(cut_off_at) => self.cut_off(),
                Some(partition) = resumes.recv() => self.resume(&partition),
                _ = tick.tick(), if commit.is_none() => commit = self.commit(),
                () = whenever(&mut commit) => {}
                Some(_) = self.farewells.join_next() => {}
            }
        };
        let closed = self.close(commit, tick).await;
        ended.and(closed)
    }

    /// Gives everything up in order: each side's consumer asks for its partitions back, as in any rebalance. Meanwhile is committed what
    /// is done, so that a handler that does not end costs no partition but its own.
    async fn close(mut self, mut commit: Option<Commit>, mut tick: Interval) -> Result<(), Error> {
        let cut_off_at = Instant::now() + self.patience(self.config.group.close_timeout);
        self.closing = Some(cut_off_at);
        for leaving in &mut self.leaving {
            leaving.until = leaving.until.min(cut_off_at);
        }
        let mut closing =
            pin!(futures::future::join_all(std::mem::take(&mut self.sides).into_iter().map(GroupConsumer::close)));
        let closed = loop {
            let cut_off_at = self.cut_off_at();
            tokio::select! {
                closed = &mut closing => break closed,
                Some(told) = self.told.recv() => self.hear(told),
                Some(ask) = self.asks.recv() => self.answer(ask),
                Some(lane) = self.tasks.join_next() => self.lane_ended(lane.ok()),
                () = sleep_until(cut_off_at) => self.cut_off(),
                _ = tick.tick(), if commit.is_none() => commit = self.commit(),
                () = whenever(&mut commit) => {}
                Some(_) = self.farewells.join_next() => {}
            }
        };
        // Nothing is left that would write; what was written was awaited.
        self.tasks.shutdown().await;
        self.shared.producer.close().await;
        closed.into_iter().collect()
    }

    /// Gives a record to its partition's lane.
    fn hand_over(&mut self, side: usize, record: ConsumerRecord) {
        let partition = record.topic_partition();
        if !self.open.contains_key(&partition) {
            let Some(open) = self.open_lane(side, &partition) else { return };
            self.open.insert(partition.clone(), open);
        }
        let share = self.share();
        let open = self.open.get_mut(&partition).expect("it was opened");
        open.queued += queued_size(&record);
        open.handed = Some(record.offset);
        // A lane ends only when it is told to, and is not open any more then.
        let _ = open.records.send(record);
        if open.queued > share && !open.held_back {
            // One that is leaving cannot be paused, and need not.
            open.held_back = self.sides[side].pause(&partition).is_ok();
        }
    }

    fn open_lane(&mut self, side: usize, partition: &TopicPartition) -> Option<Open> {
        let (ladder, place) = self.places.get(&partition.topic)?;
        self.lanes += 1;
        let (records, queue) = mpsc::unbounded_channel();
        let (orders, ordered) = watch::channel(Order::default());
        let lane = Lane {
            shared: Arc::clone(&self.shared),
            partition: partition.clone(),
            lane: self.lanes,
            ladder: Arc::clone(ladder),
            place: *place,
            records: queue,
            orders: ordered,
            told: self.tell.clone(),
        };
        let id = self.lanes;
        let task = self.tasks.spawn(async move {
            lane.run().await;
            id
        });
        Some(Open {
            lane: id,
            side,
            records,
            orders,
            task,
            queued: 0,
            held_back: false,
            handed: None,
            done: None,
            paused: None,
        })
    }

    /// Most bytes that one partition may have waiting.
    fn share(&self) -> usize {
        self.config.queue_bytes_max / self.held.max(1)
    }

    fn hear(&mut self, told: Told) {
        let Told { partition, lane, news } = told;
        let share = self.share();
        // Of a lane that was lost nothing counts any more.
        let Some(open) = self.open.get_mut(&partition).filter(|open| open.lane == lane) else { return };
        match news {
            News::Done { next, leader_epoch, size } => {
                open.queued = open.queued.saturating_sub(size);
                open.done = Some(CommitOffset { leader_epoch: Some(leader_epoch), ..CommitOffset::at(next) });
                if open.held_back && open.queued <= share / 2 {
                    open.held_back = false;
                    if let Some(side) = self.sides.get_mut(open.side) {
                        // One that is leaving is read no more.
                        let _ = side.resume(&partition);
                    }
                }
            }
            News::Paused { offset, error } => {
                open.paused = Some(PausedPartition { partition, offset, error });
                self.tell_paused();
            }
        }
    }

    fn tell_paused(&self) {
        let now: Vec<PausedPartition> = self.open.values().filter_map(|open| open.paused.clone()).collect();
        self.paused.send_if_modified(|paused| {
            let news = *paused != now;
            *paused = now;
            news
        });
    }

    fn resume(&mut self, partition: &TopicPartition) {
        // Not paused from now on: it says so again if it has to.
        let Some(open) = self.open.get_mut(partition).filter(|open| open.paused.is_some()) else { return };
        open.paused = None;
        open.orders.send_modify(|order| order.resumed += 1);
        self.tell_paused();
    }

    fn answer(&mut self, ask: Ask) {
        let Ask { side, what, done } = ask;
        match what {
            What::Assigned(count) => {
                self.held += count;
                // A listener that was dropped meanwhile waits no more.
                let _ = done.send(());
            }
            What::Lost(partitions) => {
                self.held = self.held.saturating_sub(partitions.len());
                self.leaving.retain(|leaving| leaving.side != side);
                for partition in &partitions {
                    if let Some(open) = self.open.remove(partition) {
                        open.task.abort();
                    }
                }
                self.tell_paused();
                let _ = done.send(());
            }
            What::Revoked(partitions) => {
                let mut lanes = BTreeSet::new();
                for open in partitions.iter().filter_map(|(partition, _)| self.open.get(partition)) {
                    open.orders.send_modify(|order| order.stop = true);
                    lanes.insert(open.lane);
                }
                let until = Instant::now() + self.patience(self.config.group.poll_interval_max);
                let until = self.closing.map_or(until, |cut_off_at| cut_off_at.min(until));
                self.leaving.push(Leaving { side, partitions, lanes, until, done });
                self.let_go();
            }
        }
    }

    fn lane_ended(&mut self, lane: Option<u64>) {
        // What it told before it ended.
        while let Ok(told) = self.told.try_recv() {
            self.hear(told);
        }
        for leaving in &mut self.leaving {
            match lane {
                Some(lane) => drop(leaving.lanes.remove(&lane)),
                // One was cut off, and does not say which: those that live are known.
                None => leaving
                    .lanes
                    .retain(|lane| self.open.values().any(|open| open.lane == *lane && !open.task.is_finished())),
            }
        }
        self.let_go();
    }

    /// How long lanes may take to end, of the time in which all is given up: the rest is for the last commits.
    fn patience(&self, whole: Duration) -> Duration {
        whole.min(self.config.group.poll_interval_max).mul_f64(0.6)
    }

    /// When the next lane is cut off that does not end.
    fn cut_off_at(&self) -> Instant {
        let far = || Instant::now() + Duration::from_secs(3600);
        self.leaving.iter().map(|leaving| leaving.until).min().unwrap_or_else(far)
    }

    fn cut_off(&mut self) {
        let now = Instant::now();
        for leaving in self.leaving.iter().filter(|leaving| leaving.until <= now) {
            for open in leaving.partitions.iter().filter_map(|(partition, _)| self.open.get(partition)) {
                tracing::warn!(
                    lane = open.lane,
                    "a handler takes too long; its partition goes to another member, which handles the record again"
                );
                open.task.abort();
            }
        }
        // They end at their next `await`; a handler that has none is not told again before long.
        let next = now + self.patience(self.config.group.poll_interval_max);
        for leaving in &mut self.leaving {
            if leaving.until <= now {
                leaving.until = next;
            }
        }
    }

    /// Commits the last of partitions whose lanes have ended, and lets them go.
    fn let_go(&mut self) {
        let (ended, leaving) =
            std::mem::take(&mut self.leaving).into_iter().partition(|leaving| leaving.lanes.is_empty());
        self.leaving = leaving;
        for Leaving { side, partitions, done, .. } in ended {
            self.held = self.held.saturating_sub(partitions.len());
            let closed = partitions.into_iter().filter_map(|(partition, next)| {
                let open = self.open.remove(&partition);
                Some((partition, goes_on(open.as_ref(), next)?))
            });
            let offsets: BTreeMap<TopicPartition, CommitOffset> = closed.collect();
            let committer = &self.committers[side];
            let committed = committer.commit_taken(committer.news(committer.take_down(offsets)));
            self.farewells.spawn(async move {
                if let Err(error) = committed.await {
                    tracing::warn!(%error, "what was done last could not be committed, and will be done again");
                }
                let _ = done.send(());
            });
        }
        self.tell_paused();
    }

    /// Commits what is done and not committed. What fails is committed with what is done next.
    fn commit(&mut self) -> Option<Commit> {
        let mut asked = Vec::new();
        for (side, committer) in self.committers.iter().enumerate() {
            let news = committer.news(committer.take_down(self.done(side)));
            if !news.is_empty() {
                // Asked for now: a partition that moves while another side's commit lasts is not this one's any more.
                asked.push(committer.commit_taken(news));
            }
        }
        if asked.is_empty() {
            return None;
        }
        let commit = async move {
            for done in asked {
                if let Err(error) = done.await {
                    tracing::warn!(%error, "what is done could not be committed; trying again");
                }
            }
        };
        Some(commit.boxed())
    }

    /// Where the group goes on in the partitions of a side.
    fn done(&self, side: usize) -> BTreeMap<TopicPartition, CommitOffset> {
        let open = self.open.iter().filter(|(_, open)| open.side == side);
        let mut done: BTreeMap<TopicPartition, CommitOffset> =
            open.filter_map(|(partition, open)| Some((partition.clone(), open.done.clone()?))).collect();
        // One that closes has no sides any more.
        for (partition, next) in self.sides.get(side).into_iter().flat_map(GroupConsumer::next_commits) {
            if let Some(at) = goes_on(self.open.get(&partition), Some(next)) {
                done.insert(partition, at);
            }
        }
        done
    }
}

/// Where the group goes on in a partition with this lane, if it has one: at `next` if all that was read below it is done. That lies past
/// what no handler is given, such as the markers of transactions.
fn goes_on(open: Option<&Open>, next: Option<CommitOffset>) -> Option<CommitOffset> {
    let Some(open) = open else { return next };
    let done = open.done.as_ref().map(|done| done.offset);
    let all_done = open.handed.map(|handed| handed.plus(1)) == done;
    next.filter(|_| all_done).or_else(|| open.done.clone())
}

/// What each side reads, and as whom.
fn subscriptions(group: &GroupConfig, places: &Places) -> Vec<(GroupConfig, Subscription)> {
    let of = |wanted: fn(Place) -> bool| -> Vec<&str> {
        places.iter().filter(|(_, (_, place))| wanted(*place)).map(|(name, _)| &**name).collect()
    };
    let mut sides = vec![(group.clone(), Subscription::topics(of(|place| place == Place::Source)))];
    let delays = of(|place| place != Place::Source);
    if !delays.is_empty() {
        let mut delayed = group.clone();
        delayed.instance = group.instance.as_ref().map(|instance| format!("{instance}.retry"));
        (delayed.initial_offset, delayed.reader.offset_reset) = (OffsetReset::Earliest, OffsetReset::Earliest);
        sides.push((delayed, Subscription::topics(delays)));
    }
    sides
}

/// The next record of any side; of those that have one, the first from `turn` on.
async fn next(sides: &mut Sides, turn: usize) -> (usize, Option<Result<ConsumerRecord, Error>>) {
    let count = sides.len();
    let mut nexts: Vec<_> = sides.iter_mut().map(StreamExt::next).collect();
    nexts.rotate_left(turn % count);
    let (read, at, _) = futures::future::select_all(nexts).await;
    ((at + turn) % count, read)
}
