//! The task that owns all lanes of a producer: takes batches from the accumulator, sends them, takes in the answers.
//!
//! Lanes decide; this moves. It reads the clock and draws the random numbers for them.

use super::asks::Asks;
use super::batch::Written;
use super::config::Acks;
use super::lane::{Identity, Lane, LaneConfig, LinkId, Need, RequestId};
use super::link::{self, LinkEvent};
use super::{Life, ProducerConfig, Shared};
use crate::client::{Client, Repeat, answer, log_client};
use crate::error::Error;
use crate::record::TopicPartition;
use millpond_log::batch::Batch;
use millpond_log::{ErrorCode, ProducerEpoch, ProducerId};
use millpond_proto::v1;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// How long the sender sleeps when nothing at all is due.
const IDLE: Duration = Duration::from_secs(3600);

/// How often what is known of the topics is checked for its age, while there is something to do.
const AGE_CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// The producer's task.
pub(super) struct Sender {
    client: Client,
    shared: Arc<Shared>,
    config: ProducerConfig,
    lane_config: LaneConfig,
    /// A lane lives as long as its producer: it knows the partition's next sequence.
    lanes: HashMap<TopicPartition, Lane>,
    /// Which lane waits for an answer, and over which link.
    carried: HashMap<RequestId, (LinkId, TopicPartition)>,
    links: BTreeMap<String, Link>,
    identity: Option<Identity>,
    /// The transactional id whose transaction all batches are of.
    transactional_id: Option<Arc<str>>,
    requests: u64,
    links_made: u64,
    events: UnboundedReceiver<LinkEvent>,
    events_in: UnboundedSender<LinkEvent>,
    jobs: JoinSet<Done>,
    link_tasks: JoinSet<()>,
    /// Topics that are being asked for.
    refreshing: BTreeSet<Arc<str>>,
    /// The asks for the leaders of topics whose answers are late, by the link that they are to come by.
    asks: BTreeMap<(Arc<str>, LinkId), Asks>,
    identifying: bool,
    job_failures: u32,
    ages_checked: Instant,
}

struct Link {
    id: LinkId,
    requests: UnboundedSender<v1::ProduceRequest>,
}

/// What a job of the sender came to.
enum Done {
    Refreshed { topic: Arc<str>, result: Result<(), Error> },
    Identified(Result<Identity, Error>),
}

impl Sender {
    pub(super) fn new(
        client: Client,
        shared: Arc<Shared>,
        config: ProducerConfig,
        transaction: Option<(Arc<str>, Identity)>,
    ) -> Sender {
        let (events_in, events) = mpsc::unbounded_channel();
        let lane_config = LaneConfig {
            idempotent: config.idempotent(),
            transactional: transaction.is_some(),
            max_in_flight: config.max_in_flight,
            delivery_timeout: config.delivery_timeout,
            // The broker answers within the request's timeout; a quarter more is for the way.
            answer_timeout: config.request_timeout + config.request_timeout / 4,
            backoff: config.retry_backoff,
        };
        let (transactional_id, identity) = transaction.unzip();
        Sender {
            client,
            shared,
            config,
            lane_config,
            lanes: HashMap::new(),
            carried: HashMap::new(),
            links: BTreeMap::new(),
            identity,
            transactional_id,
            requests: 0,
            links_made: 0,
            events,
            events_in,
            jobs: JoinSet::new(),
            link_tasks: JoinSet::new(),
            refreshing: BTreeSet::new(),
            asks: BTreeMap::new(),
            identifying: false,
            job_failures: 0,
            ages_checked: Instant::now(),
        }
    }

    /// Runs until the producer is closed and everything it took is answered or given up.
    pub(super) async fn run(mut self) {
        loop {
            let closed = self.shared.is_closed();
            let now = Instant::now();
            self.collect(now);
            self.tend(now);
            self.dispatch(now);
            if closed && self.lanes.values().all(Lane::is_empty) && self.shared.accumulator().is_empty() {
                break;
            }
            let deadline = self.deadline(now);
            tokio::select! {
                Some(event) = self.events.recv() => self.take_in(event),
                Some(done) = self.jobs.join_next() => self.finish(done),
                Some(ended) = self.link_tasks.join_next() => ended.unwrap_or_else(|error| panic!("a link failed: {error}")),
                () = self.shared.woken() => {}
                () = sleep_until(deadline) => {}
            }
        }
        self.links.clear();
        if self.shared.abandoned().is_none() {
            // Without acks the last batches may still be on their way: a stream ends once the broker has taken them.
            let ended = async { while self.link_tasks.join_next().await.is_some() {} };
            if timeout(self.config.request_timeout, ended).await.is_err() {
                tracing::warn!("a produce stream did not end in time");
            }
        }
    }

    /// Moves what is due from the accumulator into the lanes.
    fn collect(&mut self, now: Instant) {
        let (lanes, config) = (&self.lanes, &self.lane_config);
        let has_room = |partition: &TopicPartition| lanes.get(partition).is_none_or(|lane| lane.has_room(config));
        let batches = self.shared.accumulator().take(now, self.config.delivery_timeout, has_room);
        for batch in batches {
            self.lanes.entry(batch.partition().clone()).or_default().push(batch);
        }
    }

    /// Gives up what is too old, and links that owe answers for too long.
    fn tend(&mut self, now: Instant) {
        let overdue: BTreeSet<LinkId> =
            self.lanes.values().filter_map(|lane| lane.overdue(now, &self.lane_config)).collect();
        for link in overdue {
            self.link_broke(link, &Error::connection("no answer in time"));
        }
        self.look_for_leaders(now);
        for lane in self.lanes.values_mut() {
            lane.expire(now, &self.lane_config);
        }
        if now >= self.ages_checked + AGE_CHECK_INTERVAL {
            self.ages_checked = now;
            let topics: BTreeSet<Arc<str>> = self.lanes.keys().map(|partition| Arc::clone(&partition.topic)).collect();
            for topic in topics {
                if self.client.is_old(&topic) {
                    self.refresh(&topic, now);
                }
            }
        }
        if let Some(doom) = self.lanes.values().find_map(Lane::doom).filter(|_| self.transactional_id.is_some()) {
            self.shared.close(Life::Abandoned(doom.clone()));
        }
        if let Some(error) = self.shared.abandoned() {
            self.lanes.values_mut().for_each(|lane| lane.abandon(&error));
        }
    }

    /// Sends what can be sent.
    fn dispatch(&mut self, now: Instant) {
        let busy = self.lanes.iter().filter(|(_, lane)| !lane.is_empty());
        let partitions: Vec<TopicPartition> = busy.map(|(partition, _)| partition.clone()).collect();
        for partition in partitions {
            let mut lane = self.lanes.remove(&partition).expect("a key of the map");
            while self.advance(&partition, &mut lane, now) {}
            if let Some(doom) = lane.doom().filter(|_| self.transactional_id.is_some()) {
                self.shared.close(Life::Abandoned(doom.clone()));
            }
            self.lanes.insert(partition, lane);
        }
    }

    /// Sends one batch of a lane; says whether to try another.
    fn advance(&mut self, partition: &TopicPartition, lane: &mut Lane, now: Instant) -> bool {
        match lane.need(now, &self.lane_config) {
            Need::Nothing => {
                if lane.is_stale() {
                    self.refresh(&partition.topic, now);
                }
                false
            }
            Need::Identity { not } => match self.identity {
                Some(identity) if Some(identity.id) != not => {
                    lane.identify(identity);
                    true
                }
                _ => {
                    self.identify();
                    false
                }
            },
            Need::Link => {
                let Some(leader) = self.client.leader(&partition.topic, partition.partition) else {
                    let why = self.client.leaderless(&partition.topic, partition.partition);
                    lane.leaderless(why, now, rand::random(), &self.lane_config);
                    return true;
                };
                let (link, requests) = self.link(leader.address);
                let request = RequestId(self.requests);
                let Some(batch) = lane.send(now, link, request, &self.lane_config) else { return false };
                self.requests += 1;
                self.shared.in_flight_most.fetch_max(lane.in_flight(), Ordering::Relaxed);
                // A link that is gone says so by an event of its own.
                let _ = requests.send(self.request(request, partition, batch));
                match self.config.acks {
                    Acks::None => lane.sent_without_answer(request, now),
                    Acks::Leader | Acks::All => drop(self.carried.insert(request, (link, partition.clone()))),
                }
                true
            }
        }
    }

    fn request(&self, request: RequestId, partition: &TopicPartition, batch: Batch) -> v1::ProduceRequest {
        let acks = match self.config.acks {
            Acks::All => v1::Acks::All,
            Acks::Leader => v1::Acks::Leader,
            Acks::None => v1::Acks::None,
        };
        v1::ProduceRequest {
            request_id: request.0,
            topic: Some(v1::TopicRef::name(&*partition.topic)),
            partition: partition.partition,
            acks: acks.into(),
            timeout_ms: u32::try_from(self.config.request_timeout.as_millis()).unwrap_or(u32::MAX),
            records: Some(vec![batch].into()),
            transactional_id: self.transactional_id.as_deref().unwrap_or_default().to_owned(),
        }
    }

    /// The link to a broker, begun if there is none.
    fn link(&mut self, address: String) -> (LinkId, UnboundedSender<v1::ProduceRequest>) {
        if let Some(link) = self.links.get(&address) {
            return (link.id, link.requests.clone());
        }
        let id = LinkId(self.links_made);
        self.links_made += 1;
        let (requests, carried) = mpsc::unbounded_channel();
        let run = link::run(self.client.clone(), address.clone(), id, carried, self.events_in.clone());
        self.link_tasks.spawn(run);
        self.links.insert(address, Link { id, requests: requests.clone() });
        (id, requests)
    }

    fn take_in(&mut self, event: LinkEvent) {
        let mut next = Some(event);
        while let Some(event) = next {
            match event {
                LinkEvent::Answered { request, answer } => {
                    let now = Instant::now();
                    if let Err(error) = &answer {
                        tracing::debug!(request = request.0, %error, "batch refused");
                    }
                    if let Some((link, partition)) = self.carried.remove(&request) {
                        self.answered(request, link, &partition, answer, now);
                    }
                }
                LinkEvent::Broke { link, error } => self.link_broke(link, &error),
            }
            next = self.events.try_recv().ok();
        }
    }

    fn answered(
        &mut self,
        request: RequestId,
        link: LinkId,
        partition: &TopicPartition,
        answer: Result<Written, Error>,
        now: Instant,
    ) {
        let Some(lane) = self.lanes.get_mut(partition) else { return };
        let moved = match &answer {
            Err(error) if error.code == Some(ErrorCode::NotLeaderOrFollower) => {
                self.client.adopt(&partition.topic, partition.partition, error);
                leads_elsewhere(&self.client, &self.links, partition, link)
            }
            _ => false,
        };
        lane.answered(request, answer, now, rand::random(), &self.lane_config);
        if moved {
            lane.redirected();
        }
    }

    /// Asks who leads where answers are late: a leader that is silent may have been replaced.
    fn look_for_leaders(&mut self, now: Instant) {
        let late = self
            .lanes
            .iter()
            .filter_map(|(partition, lane)| Some((Arc::clone(&partition.topic), lane.suspicious(now)?)));
        let late: BTreeSet<(Arc<str>, LinkId)> = late.collect();
        self.asks.retain(|of, asks| now < asks.next() || late.contains(of));
        for of in late {
            let due = self.asks.get(&of).is_none_or(|asks| now >= asks.next());
            let address = self.links.iter().find(|(_, known)| known.id == of.1).map(|(address, _)| address);
            if let Some(address) = address.filter(|_| due) {
                tracing::debug!(topic = %of.0, address, "an answer is late; asking who leads");
                self.client.suspect(address);
                self.asks.entry(of.clone()).or_insert_with(|| Asks::new(now)).asked(now, rand::random());
                self.refresh(&of.0, now);
            }
        }
    }

    /// Takes batches back from leaders that have been replaced.
    fn leave_deposed(&mut self, topic: &Arc<str>) {
        let now = Instant::now();
        for (partition, lane) in self.lanes.iter_mut().filter(|(partition, _)| partition.topic == *topic) {
            let Some(link) = lane.suspicious(now).and(lane.carrier()) else { continue };
            if leads_elsewhere(&self.client, &self.links, partition, link) {
                tracing::debug!(%partition, "another leads by now; what the old leader owes answers to is sent to it");
                lane.link_broke(link, now, rand::random(), &self.lane_config);
                lane.redirected();
                self.carried.retain(|_, (over, carried)| *over != link || carried != partition);
            }
        }
    }

    fn link_broke(&mut self, link: LinkId, error: &Error) {
        // Dropping the sender ends a stream that is still there.
        self.links.retain(|_, known| known.id != link);
        self.carried.retain(|_, (over, _)| *over != link);
        let (now, mut carried) = (Instant::now(), false);
        for lane in self.lanes.values_mut() {
            carried |= lane.link_broke(link, now, rand::random(), &self.lane_config);
        }
        if carried {
            tracing::warn!(%error, "produce stream broke; unanswered batches are sent again");
        }
    }

    fn refresh(&mut self, topic: &Arc<str>, now: Instant) {
        if !self.refreshing.insert(Arc::clone(topic)) {
            return;
        }
        let (client, topic, pause) = (self.client.clone(), Arc::clone(topic), self.job_pause());
        self.jobs.spawn(async move {
            sleep(pause).await;
            let deadline = Instant::now() + client.config().request_timeout;
            let create = client.topic(&topic).is_none();
            let result = client.refresh(&topic, create, now, deadline).await.map(|_| ());
            Done::Refreshed { topic, result }
        });
    }

    fn identify(&mut self) {
        if std::mem::replace(&mut self.identifying, true) {
            return;
        }
        let (client, pause) = (self.client.clone(), self.job_pause());
        self.jobs.spawn(async move {
            sleep(pause).await;
            // An id that was handed out and got lost is not missed.
            let call =
                |channel| async move { answer(log_client(channel).init_producer(v1::InitProducerRequest {}).await) };
            let identity = client.call(Repeat::Safe, call).await.and_then(|told| {
                let epoch = u16::try_from(told.producer_epoch)
                    .map_err(|_| Error::new(ErrorCode::UnknownServerError, "the broker gave an impossible epoch"))?;
                Ok(Identity { id: ProducerId(told.producer_id), epoch: ProducerEpoch(epoch) })
            });
            Done::Identified(identity)
        });
    }

    fn job_pause(&self) -> Duration {
        match self.job_failures {
            0 => Duration::ZERO,
            failures => self.config.retry_backoff.pause(failures, rand::random()),
        }
    }

    fn finish(&mut self, done: Result<Done, tokio::task::JoinError>) {
        let failed = match done {
            Ok(Done::Refreshed { topic, result }) => {
                self.refreshing.remove(&topic);
                if result.is_ok() {
                    self.leave_deposed(&topic);
                }
                let lanes = self.lanes.iter_mut().filter(|(partition, _)| partition.topic == topic);
                lanes.filter(|_| result.is_ok()).for_each(|(_, lane)| lane.refreshed());
                result.err()
            }
            Ok(Done::Identified(result)) => {
                self.identifying = false;
                result.map(|identity| self.identity = Some(identity)).err()
            }
            Err(ended) => match ended.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is shutting down, and this task with it.
                Err(_cancelled) => None,
            },
        };
        match failed {
            Some(error) => {
                self.job_failures += 1;
                tracing::debug!(%error, "will ask again");
            }
            None => self.job_failures = 0,
        }
    }

    fn deadline(&self, now: Instant) -> Instant {
        let (lanes, config) = (&self.lanes, &self.lane_config);
        let has_room = |partition: &TopicPartition| lanes.get(partition).is_none_or(|lane| lane.has_room(config));
        let gathered = self.shared.accumulator().deadline(self.config.delivery_timeout, has_room);
        let sent = lanes.values().filter_map(|lane| lane.deadline(now, config)).min();
        let late =
            lanes.iter().filter_map(|(partition, lane)| Some((Arc::clone(&partition.topic), lane.suspicious(now)?)));
        let ask = late.filter_map(|of| Some(self.asks.get(&of)?.next())).min();
        gathered.into_iter().chain(sent).chain(ask).min().unwrap_or(now + IDLE)
    }
}

/// Whether another broker is known to lead the partition than the one at the end of `link`.
fn leads_elsewhere(client: &Client, links: &BTreeMap<String, Link>, partition: &TopicPartition, link: LinkId) -> bool {
    let leader = client.leader(&partition.topic, partition.partition);
    leader.is_some_and(|leader| links.get(&leader.address).is_none_or(|known| known.id != link))
}

impl Drop for Sender {
    /// However the task ends, nobody waits for it in vain: nothing more is taken, and what it still holds is failed.
    fn drop(&mut self) {
        self.shared.close(Life::Closed);
        self.shared.accumulator().clear();
    }
}
