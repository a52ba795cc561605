//! The task that keeps a consumer's partitions flowing: one stream per broker, credit, reconnects, offset resets.
//!
//! It never looks at records, and never holds more than the credit it granted.

use super::config::{ConsumerConfig, OffsetReset, ReadFrom};
use super::decode::Aborted;
use super::link::{self, LinkEvent, LinkId};
use crate::admin::{OffsetSpec, find_offset};
use crate::client::Client;
use crate::error::Error;
use crate::leader::Leader;
use crate::record::TopicPartition;
use millpond_log::batch::Batch;
use millpond_log::{BrokerId, ErrorCode, LeaderEpoch, Offset, ProducerId};
use millpond_proto::v1;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// How long a topic may be unknown before the consumer says so: longer than news of a creation travels.
const UNKNOWN_TOPIC_PATIENCE: Duration = Duration::from_secs(10);

/// How long a partition is read from its leader after the nearest replica was not well, before the leader is asked for one again.
const STEER_PAUSE: Duration = Duration::from_secs(10);

/// How long the fetcher sleeps when nothing is due.
const IDLE: Duration = Duration::from_secs(3600);

/// One assignment of a partition: what was fetched for an earlier one is dropped.
pub(super) type Generation = u64;

/// What the consumer asks.
pub(super) enum Command {
    /// Fetches a partition from an offset, in place of what was fetched before.
    /// `epoch` is that of the record before, if it was read.
    Start { partition: TopicPartition, generation: Generation, offset: Offset, epoch: Option<LeaderEpoch> },
    /// Stops fetching a partition.
    Stop { partition: TopicPartition },
    /// Bytes that came from a broker are no longer held.
    Consumed { address: Arc<str>, bytes: usize },
}

/// What the consumer is told.
pub(super) enum Event {
    /// Batches, and where the partition stands.
    Fetched(Fetched),
    /// The position did not exist; fetching goes on here.
    Reset { partition: TopicPartition, generation: Generation, offset: Offset },
    /// The partition is not fetched any more.
    Failed { partition: TopicPartition, generation: Generation, error: Error },
}

/// One push.
pub(super) struct Fetched {
    pub(super) partition: TopicPartition,
    pub(super) generation: Generation,
    /// The broker it came from, to which its bytes are credited.
    pub(super) address: Arc<str>,
    pub(super) batches: Vec<Batch>,
    pub(super) aborted: Vec<Aborted>,
    pub(super) high_watermark: Offset,
    pub(super) log_start: Offset,
}

/// The consumer's task.
pub(super) struct Fetcher {
    client: Client,
    config: ConsumerConfig,
    commands: UnboundedReceiver<Command>,
    events: UnboundedSender<Event>,
    partitions: BTreeMap<TopicPartition, Partition>,
    links: BTreeMap<Arc<str>, Link>,
    /// Bytes the consumer holds, by the broker they came from.
    held: HashMap<Arc<str>, usize>,
    pushes: UnboundedReceiver<LinkEvent>,
    pushes_in: UnboundedSender<LinkEvent>,
    jobs: JoinSet<Done>,
    refreshing: BTreeSet<Arc<str>>,
    links_made: u64,
    subscriptions_made: u64,
}

struct Partition {
    generation: Generation,
    /// First offset not received.
    next: Offset,
    /// Leader epoch of the record before it, if that was read: the broker tells if its log is another one (KIP-595).
    epoch: Option<LeaderEpoch>,
    /// The broker to read from in place of the leader: a replica that the leader named (KIP-392), or anyone.
    nearest: Option<Arc<str>>,
    /// What is in object storage was read, where anyone would have done for that.
    past_tiered: bool,
    /// Read from the leader until then, although a rack is wanted: the replica in it was not well.
    leader_until: Option<Instant>,
    state: State,
    failures: u32,
    unknown_since: Option<Instant>,
}

enum State {
    /// To be subscribed, once the pause is over and the leader is known anew.
    Waiting { until: Instant, stale: bool },
    /// Its new offset is being looked up.
    Resetting,
    /// Subscribed.
    Active { link: LinkId, subscription: u64 },
}

struct Link {
    id: LinkId,
    commands: UnboundedSender<v1::FetchRequest>,
    subscriptions: HashMap<u64, TopicPartition>,
    /// The credit it works with.
    share: usize,
    /// Consumed, and not granted again yet.
    owed: usize,
}

enum Done {
    Refreshed { topic: Arc<str>, result: Result<(), Error> },
    Found { partition: TopicPartition, generation: Generation, result: Result<Option<Offset>, Error> },
    LinkEnded,
}

impl Fetcher {
    pub(super) fn new(
        client: Client,
        config: ConsumerConfig,
        commands: UnboundedReceiver<Command>,
        events: UnboundedSender<Event>,
    ) -> Fetcher {
        let (pushes_in, pushes) = mpsc::unbounded_channel();
        Fetcher {
            client,
            config,
            commands,
            events,
            partitions: BTreeMap::new(),
            links: BTreeMap::new(),
            held: HashMap::new(),
            pushes,
            pushes_in,
            jobs: JoinSet::new(),
            refreshing: BTreeSet::new(),
            links_made: 0,
            subscriptions_made: 0,
        }
    }

    /// Runs until the consumer is dropped.
    pub(super) async fn run(mut self) {
        loop {
            self.subscribe();
            let deadline = self.deadline();
            tokio::select! {
                command = self.commands.recv() => match command {
                    Some(command) => self.obey(command),
                    None => break,
                },
                Some(event) = self.pushes.recv() => self.take_in(event),
                Some(done) = self.jobs.join_next() => self.finish(done),
                () = sleep_until(deadline) => {}
            }
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Start { partition, generation, offset, epoch } => {
                self.stop(&partition);
                let state = State::Waiting { until: Instant::now(), stale: false };
                let started = Partition {
                    generation,
                    next: offset,
                    epoch,
                    nearest: None,
                    past_tiered: false,
                    leader_until: None,
                    state,
                    failures: 0,
                    unknown_since: None,
                };
                self.partitions.insert(partition, started);
            }
            Command::Stop { partition } => self.stop(&partition),
            Command::Consumed { address, bytes } => {
                if let Some(held) = self.held.get_mut(&address) {
                    *held = held.saturating_sub(bytes);
                }
                if let Some(link) = self.links.get_mut(&address) {
                    link.owe(bytes);
                }
            }
        }
    }

    fn stop(&mut self, partition: &TopicPartition) {
        if let Some(Partition { state: State::Active { link, subscription }, .. }) = self.partitions.remove(partition) {
            self.unsubscribe(link, subscription);
        }
    }

    fn unsubscribe(&mut self, link: LinkId, subscription: u64) {
        if let Some(link) = self.links.values_mut().find(|known| known.id == link) {
            link.subscriptions.remove(&subscription);
            let reference = v1::FetchSubscriptionRef { subscription_id: subscription };
            link.command(v1::fetch_request::Command::Unsubscribe(reference));
        }
    }

    /// Asks leaders again for the nearest replica, where that was put off.
    fn steer_again(&mut self, now: Instant) {
        let mut left = Vec::new();
        for partition in self.partitions.values_mut() {
            if partition.leader_until.is_some_and(|until| until <= now) {
                partition.leader_until = None;
                if let State::Active { link, subscription } = partition.state {
                    partition.state = State::Waiting { until: now, stale: false };
                    left.push((link, subscription));
                }
            }
        }
        left.into_iter().for_each(|(link, subscription)| self.unsubscribe(link, subscription));
    }

    /// Subscribes whatever waits and may.
    fn subscribe(&mut self) {
        let now = Instant::now();
        self.steer_again(now);
        let waiting: Vec<TopicPartition> = self
            .partitions
            .iter()
            .filter(|(_, partition)| matches!(partition.state, State::Waiting { until, .. } if until <= now))
            .map(|(name, _)| name.clone())
            .collect();
        for name in waiting {
            let stale = matches!(self.partitions[&name].state, State::Waiting { stale: true, .. });
            let anyone = self.anyone(&name);
            match anyone.clone().or_else(|| self.client.reader(&name.topic, name.partition)) {
                Some(reader) if !stale => {
                    let partition = self.partitions.get_mut(&name).expect("it waits");
                    if anyone.is_some() {
                        partition.nearest = Some(reader.address.as_str().into());
                    }
                    let address = partition.nearest.clone();
                    self.subscribe_at(&name, address.unwrap_or_else(|| reader.address.into()), reader.epoch);
                }
                _ => self.refresh(&name.topic, now),
            }
        }
    }

    /// A broker that need not hold the partition, where that is wanted and may serve it.
    fn anyone(&self, name: &TopicPartition) -> Option<Leader> {
        let partition = self.partitions.get(name)?;
        if !self.may_be_anyone(partition) || partition.nearest.is_some() {
            return None;
        }
        // The leader is for when somebody was not well; where nobody leads, somebody else is all there is.
        if partition.leader_until.is_some() && self.client.reader(&name.topic, name.partition).is_some() {
            return None;
        }
        self.client.anyone(&name.topic, name.partition, self.config.rack.as_deref())
    }

    /// Whether whoever it is read from need not hold it.
    fn may_be_anyone(&self, partition: &Partition) -> bool {
        self.config.read_from == ReadFrom::AnyBroker && !partition.past_tiered
    }

    fn subscribe_at(&mut self, name: &TopicPartition, address: Arc<str>, leader_epoch: LeaderEpoch) {
        let subscription = self.subscriptions_made;
        self.subscriptions_made += 1;
        let partition = self.partitions.get_mut(name).expect("it waits");
        let asks_leader = partition.nearest.is_none() && partition.leader_until.is_none();
        let command = v1::FetchSubscribe {
            subscription_id: subscription,
            topic: Some(v1::TopicRef::name(&*name.topic)),
            partition: name.partition,
            offset: partition.next.0,
            current_leader_epoch: Some(leader_epoch.0),
            last_fetched_epoch: partition.epoch.map(|epoch| epoch.0),
            rack: self.config.rack.clone().filter(|_| asks_leader),
        };
        let link = match self.links.entry(Arc::clone(&address)) {
            std::collections::btree_map::Entry::Occupied(link) => link.into_mut(),
            std::collections::btree_map::Entry::Vacant(place) => {
                let id = LinkId(self.links_made);
                self.links_made += 1;
                let (commands, carried) = mpsc::unbounded_channel();
                let run = link::run(self.client.clone(), address.to_string(), id, carried, self.pushes_in.clone());
                self.jobs.spawn(async move {
                    run.await;
                    Done::LinkEnded
                });
                let share = (self.config.read_ahead_bytes / self.client.broker_count().max(1)).max(1);
                let held = self.held.get(&address).copied().unwrap_or(0);
                place.insert(Link::open(id, commands, share, held, &self.config))
            }
        };
        partition.state = State::Active { link: link.id, subscription };
        link.subscriptions.insert(subscription, name.clone());
        link.command(v1::fetch_request::Command::Subscribe(command));
    }

    fn take_in(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Pushed { link, push } => self.pushed(link, push),
            LinkEvent::Broke { link, error } => self.link_broke(link, &error),
        }
    }

    fn pushed(&mut self, id: LinkId, mut push: v1::FetchResponse) {
        let Some((address, link)) = self.links.iter_mut().find(|(_, link)| link.id == id) else { return };
        let address = Arc::clone(address);
        let mut bytes = push.records.take().unwrap_or_default().into_bytes();
        let size = bytes.len();
        let Some(name) = link.subscriptions.get(&push.subscription_id).cloned() else {
            // Of a subscription that was ended meanwhile.
            return link.owe(size);
        };
        let partition = self.partitions.get_mut(&name).expect("a subscription has its partition");
        if let Some(error) = push.error {
            link.subscriptions.remove(&push.subscription_id);
            return self.refused(&name, Error::from(error));
        }
        if let Some(nearest) = push.preferred_replica {
            link.subscriptions.remove(&push.subscription_id);
            return self.steered(&name, BrokerId(nearest));
        }
        if let Some(diverging) = push.diverging {
            link.subscriptions.remove(&push.subscription_id);
            return self.diverged(&name, Offset(diverging.end_offset));
        }
        let mut batches = Vec::new();
        loop {
            match Batch::take(&mut bytes) {
                Ok(Some(batch)) => batches.push(batch),
                Ok(None) => break,
                Err(error) => return self.link_broke(id, &Error::from(error).at(&name)),
            }
        }
        partition.failures = 0;
        partition.unknown_since = None;
        if let Some(last) = batches.last().filter(|last| last.end_offset() > partition.next) {
            (partition.next, partition.epoch) = (last.end_offset(), Some(last.leader_epoch()));
        }
        *self.held.entry(Arc::clone(&address)).or_default() += size;
        let aborted = push.aborted.iter().map(|aborted| Aborted {
            producer: ProducerId(aborted.producer_id),
            first_offset: Offset(aborted.first_offset),
        });
        let generation = partition.generation;
        self.tell(Event::Fetched(Fetched {
            generation,
            partition: name,
            address,
            batches,
            aborted: aborted.collect(),
            high_watermark: Offset(push.high_watermark),
            log_start: Offset(push.log_start),
        }));
    }

    /// The leader named a replica that is nearer.
    fn steered(&mut self, name: &TopicPartition, nearest: BrokerId) {
        let address = self.client.address(nearest);
        let partition = self.partitions.get_mut(name).expect("a subscription has its partition");
        match address {
            Some(address) => {
                partition.nearest = Some(address.into());
                partition.state = State::Waiting { until: Instant::now(), stale: false };
            }
            // A broker that was not known yet.
            None => self.retry(name, None),
        }
    }

    /// Goes back to the leader if the partition was read elsewhere; says whether it was.
    fn leave_nearest(&mut self, name: &TopicPartition) -> bool {
        let Some(partition) = self.partitions.get_mut(name) else { return false };
        if partition.nearest.take().is_none() {
            return false;
        }
        let now = Instant::now();
        partition.leader_until = Some(now + STEER_PAUSE);
        partition.state = State::Waiting { until: now, stale: false };
        true
    }

    /// The log is no longer the one that was read: it differs from `first` on.
    fn diverged(&mut self, name: &TopicPartition, first: Offset) {
        let partition = self.partitions.get_mut(name).expect("a subscription has its partition");
        let first = first.min(partition.next);
        let error = Error::truncated(first, partition.next);
        if self.config.offset_reset == OffsetReset::Fail {
            return self.fail(name, error);
        }
        tracing::warn!(partition = %name, %error, "going on where the log parts from what was read");
        (partition.next, partition.epoch) = (first, None);
        partition.state = State::Waiting { until: Instant::now(), stale: false };
        let generation = partition.generation;
        self.tell(Event::Reset { partition: name.clone(), generation, offset: first });
    }

    /// A subscription ended with an error.
    fn refused(&mut self, name: &TopicPartition, error: Error) {
        let moved = self.client.adopt(&name.topic, name.partition, &error);
        if self.leave_nearest(name) {
            tracing::debug!(partition = %name, %error, "whoever was read from refused; back to the leader");
            let was_anyone = self.may_be_anyone(&self.partitions[name]);
            let partition = self.partitions.get_mut(name).expect("a subscription has its partition");
            if was_anyone && error.code == Some(ErrorCode::NotLeaderOrFollower) {
                partition.past_tiered = true;
                // The leader is asked for the nearest replica at once: nobody was unwell.
                partition.leader_until = None;
            }
            return;
        }
        if moved {
            let partition = self.partitions.get_mut(name).expect("a subscription has its partition");
            partition.state = State::Waiting { until: Instant::now(), stale: false };
            return;
        }
        if error.code == Some(ErrorCode::OffsetOutOfRange) {
            return self.out_of_range(name, error);
        }
        if !error.retriable {
            return self.fail(name, error);
        }
        tracing::debug!(partition = %name, %error, "fetch refused; trying again");
        self.retry(name, error.retry_after);
        let unknown = matches!(error.code, Some(ErrorCode::UnknownTopicOrPartition | ErrorCode::UnknownTopicId));
        if unknown {
            self.unknown(name, error);
        }
    }

    fn unknown(&mut self, name: &TopicPartition, error: Error) {
        let Some(partition) = self.partitions.get_mut(name) else { return };
        let since = *partition.unknown_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= UNKNOWN_TOPIC_PATIENCE {
            self.fail(name, error);
        }
    }

    fn out_of_range(&mut self, name: &TopicPartition, error: Error) {
        let spec = match self.config.offset_reset {
            OffsetReset::Fail => return self.fail(name, error),
            OffsetReset::Earliest => OffsetSpec::Earliest,
            OffsetReset::Latest => OffsetSpec::Latest,
        };
        let partition = self.partitions.get_mut(name).expect("a subscription has its partition");
        tracing::warn!(partition = %name, position = %partition.next, "position out of range; resetting it");
        partition.state = State::Resetting;
        let (client, generation, partition) = (self.client.clone(), partition.generation, name.clone());
        let isolation = self.config.isolation.on_the_wire();
        self.jobs.spawn(async move {
            let found = find_offset(&client, &partition.topic, partition.partition, spec, isolation).await;
            Done::Found { partition, generation, result: found.map(|found| found.map(|found| found.offset)) }
        });
    }

    fn fail(&mut self, name: &TopicPartition, error: Error) {
        if let Some(partition) = self.partitions.remove(name) {
            let (generation, error) = (partition.generation, error.at(name));
            self.tell(Event::Failed { partition: name.clone(), generation, error });
        }
    }

    /// Has a partition wait and then subscribe again where it stopped, at the leader known by then.
    fn retry(&mut self, name: &TopicPartition, asked: Option<Duration>) {
        let Some(partition) = self.partitions.get_mut(name) else { return };
        partition.failures += 1;
        let backoff = self.config.retry_backoff.pause(partition.failures, rand::random());
        let pause = asked.map_or(backoff, |asked| asked.max(backoff));
        partition.state = State::Waiting { until: Instant::now() + pause, stale: true };
    }

    fn link_broke(&mut self, id: LinkId, error: &Error) {
        let Some(address) = self.links.iter().find(|(_, link)| link.id == id).map(|(address, _)| Arc::clone(address))
        else {
            return;
        };
        let link = self.links.remove(&address).expect("found above");
        if !link.subscriptions.is_empty() {
            tracing::warn!(%error, "fetch stream broke; subscribing again");
        }
        for name in link.subscriptions.into_values() {
            let was_anyone = self.partitions.get(&name).is_some_and(|partition| self.may_be_anyone(partition));
            // Whoever is gone is not to be chosen again: that takes newer metadata.
            if !self.leave_nearest(&name) || was_anyone {
                self.retry(&name, error.retry_after);
            }
        }
    }

    fn refresh(&mut self, topic: &Arc<str>, now: Instant) {
        if self.refreshing.insert(Arc::clone(topic)) {
            let (client, topic) = (self.client.clone(), Arc::clone(topic));
            self.jobs.spawn(async move {
                let deadline = now + client.config().request_timeout;
                let result = client.refresh(&topic, false, now, deadline).await.map(|_| ());
                Done::Refreshed { topic, result }
            });
        }
    }

    fn finish(&mut self, done: Result<Done, tokio::task::JoinError>) {
        match done {
            Ok(Done::Refreshed { topic, result }) => self.refreshed(&topic, result),
            Ok(Done::Found { partition: name, generation, result }) => {
                let Some(partition) = self.partitions.get_mut(&name).filter(|known| known.generation == generation)
                else {
                    return;
                };
                match result {
                    Ok(found) => {
                        let offset = found.unwrap_or(partition.next);
                        (partition.next, partition.epoch) = (offset, None);
                        // Where the last one led out of range again, the next need not lead elsewhere.
                        let pause = match partition.failures {
                            0 => Duration::ZERO,
                            failures => self.config.retry_backoff.pause(failures, rand::random()),
                        };
                        partition.failures += 1;
                        partition.state = State::Waiting { until: Instant::now() + pause, stale: false };
                        self.tell(Event::Reset { partition: name, generation, offset });
                    }
                    Err(error) if error.retriable => self.retry(&name, error.retry_after),
                    Err(error) => self.fail(&name, error),
                }
            }
            Ok(Done::LinkEnded) => {}
            Err(ended) => match ended.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is shutting down, and this task with it.
                Err(_cancelled) => {}
            },
        }
    }

    fn refreshed(&mut self, topic: &Arc<str>, result: Result<(), Error>) {
        self.refreshing.remove(topic);
        let names: Vec<TopicPartition> = self.partitions.keys().filter(|name| name.topic == *topic).cloned().collect();
        for name in names {
            let has_reader = self.client.reader(topic, name.partition).is_some() || self.anyone(&name).is_some();
            let Some(partition) = self.partitions.get_mut(&name) else { continue };
            let State::Waiting { until, .. } = partition.state else { continue };
            match &result {
                Ok(()) if has_reader => partition.state = State::Waiting { until, stale: false },
                Ok(()) => self.retry(&name, None),
                Err(error) => {
                    self.retry(&name, error.retry_after);
                    if error.code == Some(ErrorCode::UnknownTopicOrPartition) {
                        self.unknown(&name, error.clone());
                    } else if !error.retriable {
                        self.fail(&name, error.clone());
                    }
                }
            }
        }
    }

    fn deadline(&self) -> Instant {
        let now = Instant::now();
        let waiting = self.partitions.iter().filter_map(|(name, partition)| match partition.state {
            State::Waiting { until, .. } if !self.refreshing.contains(&name.topic) => Some(until),
            State::Active { .. } => partition.leader_until,
            _ => None,
        });
        waiting.min().unwrap_or(now + IDLE)
    }

    fn tell(&self, event: Event) {
        // A consumer that is gone closes the commands, which ends the loop.
        let _ = self.events.send(event);
    }
}

impl Link {
    /// A link with its options and first credit on their way: its share, less what the consumer still holds.
    fn open(
        id: LinkId,
        commands: UnboundedSender<v1::FetchRequest>,
        share: usize,
        held: usize,
        config: &ConsumerConfig,
    ) -> Link {
        let link = Link { id, commands, subscriptions: HashMap::new(), share, owed: 0 };
        let options = v1::FetchOptions { isolation: config.isolation.on_the_wire().into(), scan: config.scan };
        link.command(v1::fetch_request::Command::Options(options));
        link.grant(share.saturating_sub(held));
        link
    }

    fn command(&self, command: v1::fetch_request::Command) {
        // A link that is gone says so by an event of its own.
        let _ = self.commands.send(v1::FetchRequest { command: Some(command) });
    }

    fn grant(&self, bytes: usize) {
        if bytes > 0 {
            self.command(v1::fetch_request::Command::Credit(v1::FetchCredit { bytes: bytes as u64 }));
        }
    }

    /// Grants again what was consumed, in parts large enough to be worth a message.
    fn owe(&mut self, bytes: usize) {
        self.owed += bytes;
        if self.owed * 4 >= self.share {
            let owed = std::mem::take(&mut self.owed);
            self.grant(owed);
        }
    }
}
