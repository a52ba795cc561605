//! The task of a member: heartbeats, and what has to happen for the next one to be true. What is said is decided by `Membership`.
//!
//! It never touches records. What the application has to know or to do is an order to the consumer, which takes it when it is polled.

use super::GroupsChannel;
use super::commit::Committer;
use super::config::{GroupConfig, Subscription};
use super::membership::{Membership, Refused, Said, member_id};
use super::rights::Tenure;
use super::starts::{Asker, Start, Starts};
use crate::client::{Client, answer};
use crate::coordinator::Coordinator;
use crate::error::Error;
use crate::record::TopicPartition;
use futures::future::{BoxFuture, FutureExt};
use futures::task::AtomicWaker;
use millpond_log::{ErrorCode, PartitionId};
use millpond_proto::v1;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout};

/// How long another process may hold the member's static identity before that is an error: longer than a session lasts by default, so
/// that a member that crashed comes back by itself.
const UNRELEASED_PATIENCE: Duration = Duration::from_secs(60);

/// How often it is asked whether a static identity was released.
const UNRELEASED_PAUSE: Duration = Duration::from_secs(1);

/// Of the time that the coordinator gives, what is left to the application: the rest is for saying so.
const OF_THE_TIME: (u32, u32) = (4, 5);

/// How long the member that leaves waits for the answer to its last heartbeat, so that the coordinator does not hear it afterwards.
const LAST_BEAT: Duration = Duration::from_secs(2);

/// What the consumer has to do.
#[derive(Debug)]
pub(super) enum Order {
    /// Partitions come.
    Assign { starts: Vec<Start>, of: Tenure },
    /// Partitions go, once the application is done with them. Nobody waits any more if `done` is closed.
    Revoke { partitions: Vec<TopicPartition>, until: Instant, done: oneshot::Sender<()> },
    /// All partitions are gone.
    Lose,
    /// The consumer is no member any more, and will be none.
    End(Error),
}

/// What the consumer asks.
#[derive(Debug)]
pub(super) enum Wish {
    /// The application is there again.
    Return,
    /// Reads other topics.
    Subscribe(Subscription),
    /// Leaves the group.
    Leave { until: Instant, done: oneshot::Sender<Result<(), Error>> },
}

/// Whether the application is alive, as both sides see it.
#[derive(Debug)]
pub(super) struct Pulse {
    polled_at: Mutex<Instant>,
    /// The member left since the application was stuck.
    away: AtomicBool,
    /// Wakes the application, so that whoever waits for records shows that he is alive.
    waker: AtomicWaker,
}

impl Pulse {
    pub(super) fn new() -> Pulse {
        Pulse { polled_at: Mutex::new(Instant::now()), away: AtomicBool::new(false), waker: AtomicWaker::new() }
    }

    /// The application asks for records. Whether the member has to join again.
    pub(super) fn polled(&self) -> bool {
        *self.polled_at() = Instant::now();
        self.away.swap(false, Ordering::AcqRel)
    }

    pub(super) fn wait(&self, waker: &std::task::Waker) {
        self.waker.register(waker);
    }

    fn polled_at(&self) -> MutexGuard<'_, Instant> {
        self.polled_at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a member is made of.
pub(super) struct Parts {
    pub(super) client: Client,
    pub(super) coordinator: Coordinator,
    pub(super) config: GroupConfig,
    pub(super) subscription: Subscription,
    pub(super) committer: Committer,
    pub(super) pulse: Arc<Pulse>,
    pub(super) orders: UnboundedSender<Order>,
    pub(super) wishes: UnboundedReceiver<Wish>,
}

/// The task.
pub(super) struct Member {
    parts: Parts,
    membership: Membership,
    /// Names of what is owned.
    names: BTreeMap<PartitionId, TopicPartition>,
    /// The heartbeat that is under way: one at a time (rule O2).
    beat: Option<BoxFuture<'static, Beaten>>,
    /// What has to be done before the next thing is said.
    work: Option<BoxFuture<'static, Work>>,
    /// While `work` looks something up, of that: what it may hold since before that began. What it was told to leave meanwhile, others may
    /// have read and committed, even if it is told to take it again.
    looking: Option<BTreeSet<PartitionId>>,
    next_beat: Instant,
    /// When it is looked again for where partitions begin.
    next_look: Instant,
    interval: Duration,
    /// How long the coordinator keeps what a silent member owns, and since when the member is silent, as it may seem.
    session: Option<(Instant, Duration)>,
    failures: u32,
    looks: u32,
    unreleased_since: Option<Instant>,
    standing: Standing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Member,
    /// Left; joins again when the application comes back.
    Away,
    /// Refused for good.
    Ended,
}

struct Beaten {
    sent: Instant,
    said: Said,
    result: Result<v1::HeartbeatResponse, Error>,
}

enum Work {
    Revoked(BTreeSet<PartitionId>),
    Found(Starts),
}

impl Member {
    pub(super) fn new(parts: Parts) -> Member {
        let client_id = &parts.client.config().client_id;
        let subscription = parts.subscription.clone();
        let membership = Membership::new(&parts.config, client_id, subscription, member_id(rand::random()));
        let now = Instant::now();
        Member {
            membership,
            names: BTreeMap::new(),
            beat: None,
            work: None,
            looking: None,
            next_beat: now,
            next_look: now,
            interval: Duration::from_secs(3),
            session: None,
            failures: 0,
            looks: 0,
            unreleased_since: None,
            standing: Standing::Member,
            parts,
        }
    }

    /// Runs until the consumer leaves, or is dropped; then it leaves.
    pub(super) async fn run(mut self) {
        loop {
            self.look_after();
            let deadline = self.deadline();
            tokio::select! {
                wish = self.parts.wishes.recv() => match wish {
                    Some(Wish::Return) => self.come_back(),
                    Some(Wish::Subscribe(subscription)) => self.membership.subscribe(subscription),
                    Some(Wish::Leave { until, done }) => {
                        // A consumer that was dropped meanwhile does not mind.
                        let _ = done.send(self.leave(until).await);
                        return;
                    }
                    None => {
                        let until = Instant::now() + self.parts.client.config().request_timeout;
                        if let Err(error) = self.leave(until).await {
                            tracing::debug!(%error, "left the group without a word; its session will end");
                        }
                        return;
                    }
                },
                beaten = whenever(&mut self.beat) => self.beaten(beaten),
                work = whenever(&mut self.work) => self.worked(work),
                () = sleep_until(deadline) => {}
            }
        }
    }

    /// Does what is due.
    fn look_after(&mut self) {
        if self.standing != Standing::Member {
            return;
        }
        let now = Instant::now();
        let polled_at = *self.parts.pulse.polled_at();
        if now.duration_since(polled_at) > self.parts.config.poll_interval_max {
            return self.go_away();
        }
        if let Some((heard, session)) = self.session
            && now.duration_since(heard) > session
        {
            // Others may have been given what it owns: it stops before they begin.
            tracing::warn!(
                group = self.parts.config.group,
                "the coordinator was silent for a whole session; all partitions are lost"
            );
            self.lose();
            self.next_beat = now;
        }
        self.reconcile(now);
        if self.beat.is_none() && (self.next_beat <= now || (self.failures == 0 && self.membership.has_news())) {
            self.send(now);
        }
    }

    fn send(&mut self, now: Instant) {
        // Whoever waits for records shows that he is alive.
        self.parts.pulse.waker.wake();
        let (request, said) = self.membership.heartbeat();
        let coordinator = self.parts.coordinator.clone();
        let patience = self.parts.client.config().request_timeout;
        // A broker that is stopped leaves time to find another coordinator before the session ends.
        let until = now + self.session.map_or(patience, |(_, session)| patience.min(session / 3));
        let beat = async move {
            let call = |mut groups: GroupsChannel| async move { answer(groups.heartbeat(request).await) };
            Beaten { sent: now, said, result: coordinator.call_once(until, call).await }
        };
        self.beat = Some(beat.boxed());
    }

    /// Starts what brings what it owns closer to what it was told.
    fn reconcile(&mut self, now: Instant) {
        let give_up = self.membership.to_give_up();
        if self.looking.as_ref().is_some_and(|looking| !give_up.is_empty() || looking.is_empty()) {
            // Others wait for what it gives up, or nobody for what is found; and a lookup may take as long as a partition has no leader.
            (self.work, self.looking) = (None, None);
        }
        if self.work.is_some() || self.membership.epoch() <= 0 {
            return;
        }
        if !give_up.is_empty() {
            let (done, is_done) = oneshot::channel();
            let (part, whole) = OF_THE_TIME;
            let until = now + self.parts.config.poll_interval_max * part / whole;
            let partitions = give_up.iter().filter_map(|id| self.names.get(id).cloned()).collect();
            self.order(Order::Revoke { partitions, until, done });
            let given_up = async move {
                // A consumer that goes without a word has given nothing up: it leaves.
                if is_done.await.is_err() {
                    std::future::pending::<()>().await;
                }
                Work::Revoked(give_up)
            };
            self.work = Some(given_up.boxed());
            return;
        }
        let take = self.membership.to_take();
        if !take.is_empty() && self.next_look <= now {
            let asker = Asker {
                client: self.parts.client.clone(),
                coordinator: self.parts.coordinator.clone(),
                initial: self.parts.config.initial_offset,
                isolation: self.parts.config.reader.isolation.on_the_wire(),
            };
            let identity = self.parts.committer.identity().clone();
            self.looking = Some(take.clone());
            self.work = Some(asker.starts(identity, take).map(Work::Found).boxed());
        }
    }

    fn worked(&mut self, work: Work) {
        match work {
            Work::Revoked(partitions) => {
                self.membership.give_up(&partitions);
                self.names.retain(|id, _| !partitions.contains(id));
            }
            Work::Found(Starts { mut found, trouble }) => {
                let looking = self.looking.take().unwrap_or_default();
                found.retain(|start| looking.contains(&start.id));
                if let Some(error) = trouble {
                    tracing::debug!(%error, "looking again for where partitions begin");
                    self.looks += 1;
                    self.next_look = Instant::now() + self.parts.coordinator.backoff(&error, self.looks);
                } else {
                    self.looks = 0;
                }
                if !found.is_empty() {
                    // Owned from now on: the consumer reads them as soon as it hears of it.
                    self.membership.take(found.iter().map(|start| start.id));
                    self.names.extend(found.iter().map(|start| (start.id, start.partition.clone())));
                    let of = self.parts.committer.tenure();
                    self.order(Order::Assign { starts: found, of });
                }
            }
        }
    }

    fn beaten(&mut self, Beaten { sent, said, result }: Beaten) {
        let result = result.and_then(|answer| {
            let session = Duration::from_millis(answer.session_timeout_ms.into());
            self.session = (!session.is_zero()).then_some((sent, session));
            self.interval = Duration::from_millis(answer.heartbeat_interval_ms.max(1).into());
            self.membership.answered(said, answer)
        });
        match result {
            Ok(()) => {
                (self.failures, self.unreleased_since) = (0, None);
                if let Some(looking) = &mut self.looking {
                    looking.retain(|id| self.membership.is_told(id));
                }
                self.parts.committer.identify(self.membership.member(), self.membership.epoch());
                self.next_beat = sent + self.interval;
            }
            Err(error) => self.refused(error),
        }
    }

    fn refused(&mut self, error: Error) {
        self.failures += 1;
        let now = Instant::now();
        self.next_beat = now + self.parts.coordinator.backoff(&error, self.failures);
        match self.membership.refused(&error, member_id(rand::random())) {
            Refused::Again => {
                tracing::debug!(%error, "heartbeat failed; trying again");
                self.membership.unanswered();
            }
            Refused::Rejoin => {
                tracing::warn!(group = self.parts.config.group, %error, "removed from the group; joining again");
                self.lose();
            }
            Refused::Unreleased => {
                self.membership.unanswered();
                let since = *self.unreleased_since.get_or_insert(now);
                if now.duration_since(since) < UNRELEASED_PATIENCE {
                    self.next_beat = now + UNRELEASED_PAUSE;
                    return;
                }
                self.end(error.at("another process has the same static identity (`instance`), and is alive"));
            }
            Refused::Final if error.code == Some(ErrorCode::FencedInstanceId) => {
                self.end(error.at("another process took over the static identity (`instance`)"));
            }
            Refused::Final => self.end(error),
        }
    }

    /// All partitions are gone. It joins again.
    fn lose(&mut self) {
        // What is under way was said before, and whoever is asked to give partitions up hears that nobody waits for it.
        (self.beat, self.work, self.looking, self.session) = (None, None, None, None);
        self.names.clear();
        self.membership.lose();
        // At once: the application may commit before it hears of it, and this member may have joined again by then.
        self.parts.committer.lose(self.membership.member());
        self.order(Order::Lose);
    }

    /// The application is stuck: others get what it holds.
    fn go_away(&mut self) {
        let group = &self.parts.config.group;
        tracing::warn!(
            group,
            "the application asked for no records for `poll_interval_max`; leaving the group until it does"
        );
        self.standing = Standing::Away;
        let (coordinator, farewell) = (self.parts.coordinator.clone(), self.membership.farewell());
        let until = Instant::now() + self.parts.client.config().request_timeout;
        // Before the consumer hears of the loss: woken by that, it comes back, and nothing would wake it again.
        self.parts.pulse.away.store(true, Ordering::Release);
        // Nobody takes a late word of the old member for one of the new.
        self.membership.renew(member_id(rand::random()));
        self.lose();
        self.work = Some(
            async move {
                let call = |mut groups: GroupsChannel| async move { answer(groups.heartbeat(farewell).await) };
                if let Err(error) = coordinator.call_once(until, call).await {
                    tracing::debug!(%error, "left the group without a word; its session will end");
                }
                Work::Found(Starts::default())
            }
            .boxed(),
        );
    }

    fn come_back(&mut self) {
        if self.standing == Standing::Away {
            self.standing = Standing::Member;
            self.next_beat = Instant::now();
        }
    }

    fn end(&mut self, error: Error) {
        self.lose();
        self.standing = Standing::Ended;
        self.order(Order::End(error.given_up()));
    }

    /// Says farewell. What the member held is free once this returns well.
    async fn leave(mut self, until: Instant) -> Result<(), Error> {
        if self.standing != Standing::Member {
            return Ok(());
        }
        if let Some(beat) = self.beat.take() {
            match timeout(LAST_BEAT, beat).await {
                Ok(Beaten { said, result: Ok(answer), .. }) => self.membership.answered(said, answer)?,
                Ok(Beaten { result: Err(_), .. }) | Err(_) => self.membership.unanswered(),
            }
        } else if self.membership.epoch() <= 0 && self.session.is_none() && self.failures == 0 {
            return Ok(());
        }
        let farewell = self.membership.farewell();
        let call = |mut groups: GroupsChannel| {
            let farewell = farewell.clone();
            async move { answer(groups.heartbeat(farewell).await) }
        };
        match self.parts.coordinator.call(until, call).await {
            Ok(_) => Ok(()),
            Err(error) if matches!(error.code, Some(ErrorCode::UnknownMemberId | ErrorCode::FencedInstanceId)) => {
                Ok(())
            }
            Err(error) => Err(error.at("could not leave the group; what it held is free when its session ends")),
        }
    }

    fn order(&self, order: Order) {
        // A consumer that is gone closes the wishes, which ends the loop.
        let _ = self.parts.orders.send(order);
    }

    fn deadline(&self) -> Instant {
        if self.standing != Standing::Member {
            return Instant::now() + Duration::from_secs(3600);
        }
        let mut deadline = *self.parts.pulse.polled_at() + self.parts.config.poll_interval_max;
        if self.beat.is_none() {
            deadline = deadline.min(self.next_beat);
        }
        if let Some((heard, session)) = self.session {
            deadline = deadline.min(heard + session);
        }
        if self.work.is_none() && !self.membership.to_take().is_empty() {
            deadline = deadline.min(self.next_look);
        }
        // Just after: what is due is due then.
        deadline + Duration::from_millis(1)
    }
}

/// Waits for a future if there is one, and takes it away; for ever if there is none.
pub(crate) async fn whenever<T>(future: &mut Option<BoxFuture<'static, T>>) -> T {
    let Some(waited) = future else { return std::future::pending().await };
    let done = waited.await;
    *future = None;
    done
}
