//! Carries markers of one coordinator shard to where they belong, until each is there, whoever leads meanwhile (rules X2, X5).
//!
//! It decides no outcome, and sends nothing before that is durable. A place has one copy of a marker under way at most; what is left to do
//! is bounded by what the coordinator itself holds.

use super::super::machine::{Carry, Office};
use super::{Ask, Job, Transactions};
use crate::marks::{Mark, MarkCall, MarkPlace, Marked};
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use millpond_core::transactions::{Effect, Parts, Report, Ticket};
use millpond_log::transactions::Marker;
use millpond_log::{BrokerId, CoordinatorEpoch, ErrorCode, PartitionId, TopicId};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Most markers in one call to a broker.
pub(crate) const MARKS_MAX: usize = 500;

/// Calls to one broker at the same time: a partition that commits slowly holds up no others.
const CALLS_MAX: usize = 4;

/// Pause before a marker is sent again; it doubles up to the other.
const RETRY_FIRST: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// Tries without success after which the log tells of it, once.
const TRIES_TOLD: u32 = 10;

/// Where a marker belongs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    Partition(PartitionId),
    Group(String),
}

/// How a place is reached now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// This broker takes it, as far as is known.
    To(BrokerId, MarkPlace),
    /// Nobody leads the partition, or owns the shard, as far as is known.
    Nobody,
    /// The topic is not known.
    NoTopic(TopicId),
}

/// What a carrier needs of the broker.
pub(crate) trait Ways: Send + Sync + 'static {
    /// Where a marker has to go now. A hint.
    fn way(&self, place: &Place) -> Way;
    /// Sends markers. Who answers nothing in time, or cannot be reached, may have got them.
    fn mark(&self, broker: BrokerId, call: MarkCall) -> BoxFuture<'static, Marked>;
    /// Whether the metadata store says that a topic is deleted; none if it cannot be asked.
    fn is_deleted(&self, topic: TopicId) -> BoxFuture<'static, Option<bool>>;
    /// Whether the metadata store says that the shard is still owned in this epoch; none if it cannot be asked.
    fn is_owned(&self, shard: u32, epoch: u32) -> BoxFuture<'static, Option<bool>>;
    /// Producer ids that nobody else gets.
    fn producer_ids(&self) -> BoxFuture<'static, Option<Range<u64>>>;
}

/// The way to the task that carries markers. Dropped, that ends.
pub(crate) struct Carrier {
    jobs: UnboundedSender<Vec<Job>>,
    _end: DropGuard,
}

impl Carrier {
    pub(super) fn begin_for(office: Office<Transactions>, ways: Arc<dyn Ways>) -> Carrier {
        let (jobs, inbox) = unbounded_channel();
        let end = CancellationToken::new();
        let carrying = Carrying {
            office,
            ways,
            inbox,
            ready: VecDeque::new(),
            later: BTreeMap::new(),
            blocked: BTreeMap::new(),
            calls: BTreeMap::new(),
            under_way: FuturesUnordered::new(),
            reports: Vec::new(),
            reporting: false,
            numbers: 0,
        };
        tokio::spawn(carrying.run(end.clone()));
        Carrier { jobs, _end: end.drop_guard() }
    }
}

impl Carry<Job> for Carrier {
    fn begin(&mut self, effects: Vec<Job>) {
        // The task lives as long as this.
        let _ = self.jobs.send(effects);
    }
}

/// One place that lacks a marker.
#[derive(Debug)]
struct Item {
    head: Arc<Head>,
    place: Place,
    tries: u32,
}

/// What the places of a transaction share.
#[derive(Debug)]
struct Head {
    id: String,
    ticket: Ticket,
    marker: Marker,
}

/// What ended that was waited for.
enum Ended {
    Marked {
        broker: BrokerId,
        items: Vec<Item>,
        marked: Marked,
    },
    Topic {
        item: Item,
        deleted: Option<bool>,
    },
    /// The shard was looked up, after somebody had heard of a later owner.
    Owned(Option<bool>),
    /// Reports that were not taken come back.
    Reported(Option<Vec<Report>>),
    ProducerIds(Option<Range<u64>>),
    Nothing,
}

struct Carrying {
    office: Office<Transactions>,
    ways: Arc<dyn Ways>,
    inbox: UnboundedReceiver<Vec<Job>>,
    /// To be sent.
    ready: VecDeque<Item>,
    /// To be sent again, and when.
    later: BTreeMap<(Instant, u64), Item>,
    /// To be sent when fewer calls to the broker are under way.
    blocked: BTreeMap<BrokerId, Vec<Item>>,
    calls: BTreeMap<BrokerId, usize>,
    under_way: FuturesUnordered<BoxFuture<'static, Ended>>,
    /// To be told to the coordinator.
    reports: Vec<Report>,
    reporting: bool,
    /// Calls, and pauses, so far.
    numbers: u64,
}

impl Carrying {
    async fn run(mut self, end: CancellationToken) {
        loop {
            self.dispatch();
            self.tell();
            let due = self.later.first_key_value().map(|((due, _), _)| *due);
            tokio::select! {
                () = end.cancelled() => return,
                Some(jobs) = self.inbox.recv() => jobs.into_iter().for_each(|job| self.take(job)),
                Some(ended) = self.under_way.next() => self.on_ended(ended),
                () = until(due) => self.wake(),
            }
        }
    }

    fn take(&mut self, job: Job) {
        match job {
            Job::ProducerIds => self.ask_for_ids(None),
            Job::End(Effect { id, ticket, marker, parts }) => {
                let head = Arc::new(Head { id, ticket, marker });
                let partitions = parts.partitions.into_iter().map(Place::Partition);
                let places = partitions.chain(parts.groups.into_iter().map(Place::Group));
                self.ready.extend(places.map(|place| Item { head: Arc::clone(&head), place, tries: 0 }));
            }
        }
    }

    fn wake(&mut self) {
        let now = Instant::now();
        while let Some(entry) = self.later.first_entry().filter(|entry| entry.key().0 <= now) {
            self.ready.push_back(entry.remove());
        }
    }

    /// Sends what is ready, in as few calls as it takes.
    fn dispatch(&mut self) {
        let mut batches: BTreeMap<BrokerId, (Vec<Item>, Vec<Mark>)> = BTreeMap::new();
        while let Some(item) = self.ready.pop_front() {
            match self.ways.way(&item.place) {
                Way::To(broker, _) if self.calls.get(&broker).is_some_and(|calls| *calls >= CALLS_MAX) => {
                    self.blocked.entry(broker).or_default().push(item);
                }
                Way::To(broker, place) => {
                    let (items, marks) = batches.entry(broker).or_default();
                    marks.push(Mark { marker: item.head.marker, place });
                    items.push(item);
                    if items.len() == MARKS_MAX {
                        let (items, marks) = batches.remove(&broker).expect("it was filled just now");
                        self.call(broker, items, marks);
                    }
                }
                Way::Nobody => self.put_off(item),
                Way::NoTopic(topic) => {
                    let asked = self.ways.is_deleted(topic);
                    self.under_way.push(asked.map(|deleted| Ended::Topic { item, deleted }).boxed());
                }
            }
        }
        for (broker, (items, marks)) in batches {
            self.call(broker, items, marks);
        }
    }

    fn call(&mut self, broker: BrokerId, items: Vec<Item>, marks: Vec<Mark>) {
        self.numbers += 1;
        *self.calls.entry(broker).or_default() += 1;
        let (shard, coordinator) = (self.office.shard, CoordinatorEpoch(self.office.epoch));
        let call = MarkCall { shard, coordinator, number: self.numbers, marks };
        let marked = self.ways.mark(broker, call);
        self.under_way.push(marked.map(move |marked| Ended::Marked { broker, items, marked }).boxed());
    }

    fn on_ended(&mut self, ended: Ended) {
        match ended {
            Ended::Marked { broker, items, marked } => self.on_marked(broker, items, marked),
            // Rule K6: the store itself says so. Nothing is left that could hold the marker.
            Ended::Topic { item, deleted: Some(true) } => self.done(&item),
            Ended::Topic { item, .. } => self.put_off(item),
            // Rule O3: another owner sees to it all.
            Ended::Owned(Some(false)) => self.office.give_up.cancel(),
            Ended::Owned(_) | Ended::Nothing => {}
            Ended::Reported(back) => {
                self.reporting = false;
                self.reports.extend(back.into_iter().flatten());
            }
            Ended::ProducerIds(ids) => self.ask_for_ids(ids),
        }
    }

    fn on_marked(&mut self, broker: BrokerId, items: Vec<Item>, marked: Marked) {
        if let Some(calls) = self.calls.get_mut(&broker) {
            *calls -= 1;
            if *calls == 0 {
                self.calls.remove(&broker);
            }
        }
        self.ready.extend(self.blocked.remove(&broker).into_iter().flatten());
        let mut fenced = false;
        // What is not answered was not done, as far as is known.
        let marked = marked.into_iter().chain(std::iter::repeat(Err(ErrorCode::RequestTimedOut)));
        for (item, marked) in items.into_iter().zip(marked) {
            match marked {
                Ok(()) => self.done(&item),
                Err(code) => {
                    fenced |= matches!(code, ErrorCode::TransactionCoordinatorFenced | ErrorCode::InvalidProducerEpoch);
                    if item.tries == TRIES_TOLD {
                        let Head { id, marker, .. } = &*item.head;
                        let (place, code) = (&item.place, code.name());
                        tracing::warn!(id, ?marker, ?place, code, "a marker cannot be written yet; it is tried again");
                    }
                    self.put_off(item);
                }
            }
        }
        if fenced {
            let owned = self.ways.is_owned(self.office.shard, self.office.epoch);
            self.under_way.push(owned.map(Ended::Owned).boxed());
        }
    }

    fn put_off(&mut self, mut item: Item) {
        let pause = RETRY_MAX.min(RETRY_FIRST * 2u32.saturating_pow(item.tries.min(16)));
        item.tries = item.tries.saturating_add(1);
        self.numbers += 1;
        self.later.insert((Instant::now() + pause, self.numbers), item);
    }

    fn done(&mut self, item: &Item) {
        let Head { id, ticket, .. } = &*item.head;
        let parts = match &item.place {
            Place::Partition(partition) => Parts { partitions: vec![*partition], groups: Vec::new() },
            Place::Group(group) => Parts { partitions: Vec::new(), groups: vec![group.clone()] },
        };
        match self.reports.last_mut().filter(|report| report.ticket == *ticket) {
            Some(report) => {
                report.done.partitions.extend(parts.partitions);
                report.done.groups.extend(parts.groups);
            }
            None => self.reports.push(Report { id: id.clone(), ticket: *ticket, done: parts }),
        }
    }

    /// Tells the coordinator, and again if it did not take it: it drops what it is told while it has no session. What it took and has not
    /// persisted when it loses the shard, the next owner finds out again.
    fn tell(&mut self) {
        if self.reporting || self.reports.is_empty() {
            return;
        }
        self.reporting = true;
        let (office, reports) = (self.office.clone(), std::mem::take(&mut self.reports));
        let told = async move {
            match office.tell(Ask::Report(reports.clone())).await {
                Some(_) => Ended::Reported(None),
                None => {
                    tokio::time::sleep(RETRY_MAX).await;
                    Ended::Reported(Some(reports))
                }
            }
        };
        self.under_way.push(told.boxed());
    }

    /// Hands producer ids to the coordinator, or asks for some.
    fn ask_for_ids(&mut self, ids: Option<Range<u64>>) {
        let (office, ways) = (self.office.clone(), Arc::clone(&self.ways));
        let asked = async move {
            let ids = match ids {
                Some(ids) => Some(ids),
                None => ways.producer_ids().await,
            };
            let Some(ids) = ids else {
                tokio::time::sleep(RETRY_FIRST * 10).await;
                return Ended::ProducerIds(None);
            };
            match office.tell(Ask::ProducerIds(ids.clone())).await {
                Some(_) => Ended::Nothing,
                None => {
                    tokio::time::sleep(RETRY_MAX).await;
                    Ended::ProducerIds(Some(ids))
                }
            }
        };
        self.under_way.push(asked.boxed());
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}
