//! Keeps this broker what the metadata store says it is: which replicas it holds, who leads, who is alive, what is lost (rules B2, B4, K1,
//! K6).
//!
//! Level by level from the watched image. It decides nothing, and writes nothing.

mod start;

use crate::alive::Alive;
use crate::api::PartitionLoss;
use crate::broker::Broker;
use crate::carry::{Hand, Stopped};
use crate::catalog::{Local, PartitionHandle, Placement, Topic};
use crate::elections::{Vacancy, vacancies};
use crate::loss::{self, DiskStory, Lost};
use crate::partitions::messages::ShardMsg;
use crate::peers::Peer;
use crate::purge::Purge;
use crate::replicas::{Found, Opened, Opening, Tried, open_later};
use crate::start_error::StartError;
use crate::tier::TierRequest;
use crate::unclean::{Forsaken, forsaken};
use crate::wal::Recovered;
use futures::FutureExt;
use millpond_core::loss::{Standing, standing};
use millpond_core::records::{Leader, TopicRecord, TopicState};
use millpond_core::replica::Input;
use millpond_core::topic_config::TopicConfig;
use millpond_log::{BrokerId, LeaderEpoch, PartitionId, TopicId, WalGen};
use millpond_metadata::keys::Key;
use millpond_metadata::kv::Revision;
use millpond_metadata::store::{Follow, Session, StoreError};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

/// Pause between tries while the metadata store cannot be used.
const RETRY: Duration = Duration::from_millis(200);

/// How often vacancies are looked for that no controller has filled.
const LOOK: Duration = Duration::from_secs(1);

/// Looks after which others elect though a controller is alive.
const LOOKS_FOR_CONTROLLER: u32 = 5;

/// Looks after which a forsaken partition is led by the best of the replicas that answer, though others are alive.
const LOOKS_FOR_ALL: u32 = 10;

/// Replicas opened at once: each costs a read of the metadata store.
const OPENED_AT_ONCE: usize = 64;

/// How often the image is loaded anew and compared (rule Z2).
const RELOAD: Duration = Duration::from_secs(60);

/// The task's state.
pub(crate) struct Fleet {
    broker: Broker,
    follow: Follow,
    /// The replicas that are open here, and those being opened (`None`).
    local: BTreeMap<PartitionId, Option<Local>>,
    /// Tasks of their own: whatever this one does, they go on.
    opening: JoinSet<(PartitionId, Result<Tried, StartError>)>,
    /// What they open. Of one there is at most one.
    being_opened: BTreeSet<PartitionId>,
    /// Replicas that cannot be opened, since what is here and in object storage contradict each other. What is here of them is kept.
    unusable: BTreeSet<PartitionId>,
    /// Replicas that are to be given up, and the questions whether they really are.
    leaving: BTreeSet<PartitionId>,
    asking: JoinSet<(PartitionId, bool)>,
    opened_at_once: Arc<Semaphore>,
    /// The elections under way; at most one round. A task too: this one waits for the metadata store now and then.
    electing: JoinSet<()>,
    /// Records of what nobody led at the last look, and for how many looks it has been so.
    vacant: BTreeMap<(PartitionId, Revision), u32>,
    /// The unclean elections under way; at most one round. They return what has to be opened again first.
    giving_up: JoinSet<Vec<PartitionId>>,
    /// Records of what nobody may lead while its topic wants a leader all the same, and for how many looks it has been so.
    forsaken: BTreeMap<(PartitionId, Revision), u32>,
    /// What this start found of the disk.
    story: DiskStory,
    /// The partitions here that nobody may lead any more, and why.
    lost: BTreeMap<PartitionId, Arc<PartitionLoss>>,
    /// The disks that brokers had at the last look.
    disks: BTreeMap<BrokerId, WalGen>,
    purge: Purge,
}

impl Fleet {
    /// Follows the metadata store, and opens every replica that it places here.
    ///
    /// # Errors
    /// What keeps a replica from being opened: its data contradict each other.
    pub(crate) async fn start(broker: Broker, recovered: &Recovered, story: DiskStory) -> Result<Fleet, StartError> {
        let follow = broker.inner().store.follow().await?;
        let mut fleet = Fleet {
            broker,
            follow,
            local: BTreeMap::new(),
            opening: JoinSet::new(),
            being_opened: BTreeSet::new(),
            unusable: BTreeSet::new(),
            leaving: BTreeSet::new(),
            asking: JoinSet::new(),
            opened_at_once: Arc::new(Semaphore::new(OPENED_AT_ONCE)),
            electing: JoinSet::new(),
            vacant: BTreeMap::new(),
            giving_up: JoinSet::new(),
            forsaken: BTreeMap::new(),
            story,
            lost: BTreeMap::new(),
            disks: BTreeMap::new(),
            purge: Purge::default(),
        };
        fleet.note_sessions();
        fleet.note_disks();
        fleet.open_all(recovered).await?;
        let image = fleet.follow.image();
        fleet.broker.inner().coordinators.note(image, &image.topics.keys().copied().collect());
        Ok(fleet)
    }

    /// Follows until `shutdown`.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        let mut reload = tokio::time::interval_at(tokio::time::Instant::now() + RELOAD, RELOAD);
        reload.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let changed = tokio::select! {
                () = shutdown.cancelled() => return,
                Some(first) = self.opening.join_next() => {
                    self.take_opened(first);
                    continue;
                }
                Some(asked) = self.asking.join_next() => {
                    let (partition, placed) = asked.expect("asking does not panic, and nobody ends it");
                    self.on_asked(partition, placed);
                    continue;
                }
                Some(elected) = self.electing.join_next() => {
                    elected.expect("electing does not panic, and nobody ends it");
                    continue;
                }
                Some(outdated) = self.giving_up.join_next() => {
                    for partition in outdated.expect("nor does an unclean election") {
                        // Elected meanwhile: a replica that leads is not opened again.
                        let leads = |local: &Local| local.view.borrow().visible.leads;
                        if !self.local.get(&partition).is_some_and(|local| local.as_ref().is_some_and(leads)) {
                            self.open_again(partition);
                        }
                    }
                    continue;
                }
                _ = look.tick() => {
                    self.fill_vacancies();
                    self.lead_forsaken();
                    self.purge();
                    continue;
                }
                changed = self.follow.changed() => changed,
                _ = reload.tick() => self.follow.reload().await,
            };
            match changed {
                Ok(mut keys) => {
                    // What has come meanwhile is taken in with it: a topic of many partitions changes in many steps.
                    while let Some(Ok(more)) = self.follow.changed().now_or_never() {
                        keys.extend(more);
                    }
                    self.on_changed(&keys);
                }
                Err(error) => {
                    if !matches!(error, StoreError::Unavailable(_)) {
                        tracing::error!(%error, "the metadata cannot be followed");
                    }
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    fn me(&self) -> BrokerId {
        self.broker.id()
    }

    fn on_changed(&mut self, keys: &BTreeSet<Key>) {
        let mut topics = BTreeSet::new();
        let mut partitions = BTreeSet::new();
        let mut brokers = BTreeSet::new();
        for key in keys {
            match key {
                Key::BrokerSession(broker) => drop(brokers.insert(*broker)),
                Key::Topic(topic) | Key::Tombstone(topic) => drop(topics.insert(*topic)),
                Key::Partition(partition) => {
                    topics.insert(partition.topic);
                    partitions.insert(*partition);
                }
                _ => {}
            }
        }
        let disks = self.note_disks();
        let image = self.follow.image();
        let stood_there = |id: &&PartitionId| {
            let complete = image.partitions.get(id).map(|seen| seen.value.isr.iter().chain(&seen.value.elr));
            complete.is_some_and(|mut complete| complete.any(|rid| disks.contains(&rid.broker)))
        };
        let judged: Vec<PartitionId> = match disks.is_empty() {
            true => Vec::new(),
            false => self.local.keys().filter(stood_there).copied().collect(),
        };
        topics.extend(judged.iter().map(|partition| partition.topic));
        partitions.iter().copied().chain(judged).for_each(|partition| self.judge(partition));
        if !brokers.is_empty() {
            self.note_sessions();
            let image = self.follow.image();
            topics.extend(image.topics.keys());
            let concerned = |id: &&PartitionId| {
                image.partitions.get(id).is_some_and(|seen| seen.value.replicas.iter().any(|id| brokers.contains(id)))
            };
            partitions.extend(self.local.keys().filter(concerned));
        }
        for topic in &topics {
            self.refresh(*topic);
        }
        for partition in partitions {
            self.assign(partition);
        }
        self.broker.inner().coordinators.note(self.follow.image(), &topics);
    }

    /// Elects where nobody leads and this broker may. The controller is faster: this is for when there is none, and many that elect
    /// at the same time only hinder each other, most of all where thousands of partitions lost their leader at once. So what has not been
    /// vacant for some looks is left alone.
    fn fill_vacancies(&mut self) {
        let Some(session) = self.broker.session_handle().get().filter(|_| self.electing.is_empty()) else { return };
        let mut vacancies = vacancies(self.follow.image(), session);
        vacancies.extend(self.refused(session));
        let looks = |vacancy: &Vacancy| self.vacant.get(&vacancy.record()).map_or(0, |looks| looks + 1);
        self.vacant = vacancies.iter().map(|vacancy| (vacancy.record(), looks(vacancy))).collect();
        let patience = if self.alive().controller().is_some() { LOOKS_FOR_CONTROLLER } else { 1 };
        vacancies.retain(|vacancy| self.vacant[&vacancy.record()] >= patience);
        if !vacancies.is_empty() {
            let (broker, hand) = (self.broker.clone(), Hand { session, control: None });
            self.electing.spawn(async move {
                match broker.fill(hand, vacancies).await {
                    // A session that is gone the keep-alive sees.
                    Ok(_) | Err(Stopped::Fenced) => {}
                    Err(error) => tracing::error!(%error, "nobody could be elected"),
                }
            });
        }
    }

    /// The offices of this broker that its replicas refuse, since they were opened in that epoch or stepped down in it (rule B2): its session
    /// stands, so nobody else finds them vacant.
    fn refused(&self, session: Session) -> impl Iterator<Item = Vacancy> {
        let (image, me) = (self.follow.image(), Leader { rid: session.rid, inc: session.inc });
        self.local.iter().filter_map(move |(id, local)| {
            let (local, seen) = (local.as_ref()?, image.partitions.get(id)?);
            let visible = local.view.borrow().visible;
            let refuses = seen.value.leader == Some(me) && visible.epoch == seen.value.epoch && !visible.leads;
            (refuses && !self.leaving.contains(id)).then(|| Vacancy::of(*id, seen, image))
        })
    }

    /// Leads what its topic wants to be led by whoever is left (rule E7), if this broker holds the most of it. Like a vacancy it has to
    /// last: who may lead is given the time to come back that a start takes at least.
    fn lead_forsaken(&mut self) {
        let Some(session) = self.broker.session_handle().get().filter(|_| self.giving_up.is_empty()) else { return };
        let found = forsaken(self.follow.image(), session);
        let looks = |found: &Forsaken| self.forsaken.get(&found.record()).map_or(0, |looks| looks + 1);
        let looks: Vec<u32> = found.iter().map(looks).collect();
        self.forsaken = found.iter().map(Forsaken::record).zip(looks.iter().copied()).collect();
        let due = found.into_iter().zip(looks).filter_map(|(mut found, looks)| {
            found.hurried = looks >= LOOKS_FOR_ALL;
            let local = self.local.get(&found.record().0).cloned().flatten();
            local.filter(|_| looks > 0).map(|local| (found, local))
        });
        let due: Vec<(Forsaken, Local)> = due.collect();
        if !due.is_empty() {
            let broker = self.broker.clone();
            self.giving_up.spawn(async move { broker.lead_forsaken(session, due).await });
        }
    }

    /// Notes which disks brokers have, and which of these have no session; returns those that have another one than before.
    fn note_disks(&mut self) -> BTreeSet<BrokerId> {
        let disks = &self.follow.image().disks;
        let now: BTreeMap<BrokerId, WalGen> = disks.iter().map(|(id, disk)| (*id, disk.value.wal_gen)).collect();
        let before = std::mem::replace(&mut self.disks, now);
        let sessions = &self.follow.image().sessions;
        let absent = disks.iter().filter(|(broker, _)| !sessions.contains_key(broker));
        self.alive().note_absent(absent.map(|(broker, disk)| (*broker, disk.revision)));
        let others = self.disks.iter().filter(|(broker, wal_gen)| before.get(broker) != Some(wal_gen));
        others.map(|(broker, _)| *broker).collect()
    }

    /// Looks again at how this broker stands in a partition: all complete replicas may have come back with other disks, so that it is
    /// lost (rule B4), and somebody may lead what was lost (rule E7).
    fn judge(&mut self, partition: PartitionId) {
        if !matches!(self.local.get(&partition), Some(Some(_))) {
            return;
        }
        match self.stands(partition) {
            None => {}
            Some((Standing::Lost, _)) if self.lost.contains_key(&partition) => {}
            Some((Standing::Lost, _)) => self.open_again(partition),
            Some((stands, _)) => {
                let found = self.lost.remove(&partition).is_some();
                // Also what was copied again is damaged no longer.
                if (found || stands == Standing::Electable) && self.story.heal(partition) {
                    self.forget_damage(vec![partition]);
                }
            }
        }
    }

    /// How this broker stands in a partition, and in which epoch.
    fn stands(&self, partition: PartitionId) -> Option<(Standing, LeaderEpoch)> {
        let record = &self.follow.image().partitions.get(&partition)?.value;
        let disk_of = |broker| self.disks.get(&broker).copied();
        Some((standing(record, self.broker.inner().rid, disk_of), record.epoch))
    }

    /// Opens a replica again, from its frames and the manifest as they are now.
    fn open_again(&mut self, partition: PartitionId) {
        let Some(topic) = self.broker.inner().catalog.by_id(partition.topic) else { return };
        let (Some((stands, epoch)), Some(open)) = (self.stands(partition), self.local.get_mut(&partition)) else {
            return;
        };
        let Some(local) = open.take() else { return };
        let (topic_name, config) = (topic.record.name.to_string(), topic.config.clone());
        let found = Found { stands, epoch };
        self.open(partition, topic_name, config, Some((local, found)));
    }

    fn forget_damage(&self, partitions: Vec<PartitionId>) {
        let broker = self.broker.clone();
        tokio::spawn(async move { broker.forget_damage(partitions).await });
    }

    /// Puts on record here what is lost of a partition that was opened as lost.
    fn note_loss(&mut self, partition: PartitionId, topic_name: &str, lost: Option<&Lost>) {
        let Some(lost) = lost else { return };
        let loss = self.story.loss(partition, lost);
        loss::report(&loss, topic_name, partition);
        self.lost.insert(partition, Arc::new(loss));
    }

    /// Who is alive is known to links before any shard hears of it.
    fn note_sessions(&self) {
        let sessions = &self.follow.image().sessions;
        self.broker.inner().peers.set(sessions.iter().map(|(id, seen)| (*id, Peer::of(*id, seen))).collect());
        self.alive().set(sessions.clone());
    }

    fn alive(&self) -> &Alive {
        &self.broker.inner().alive
    }

    /// Tells the shard of a replica what its record says now.
    fn assign(&self, partition: PartitionId) {
        let (Some(Some(local)), Some(seen)) =
            (self.local.get(&partition), self.follow.image().partitions.get(&partition))
        else {
            return;
        };
        let record = &seen.value;
        tracing::debug!(%partition, epoch = %record.epoch, leader = ?record.leader, isr = ?record.isr, "record");
        self.alive().assign(&local.shard, partition, seen);
    }

    /// Makes catalog and replicas what the image says of a topic.
    fn refresh(&mut self, id: TopicId) {
        let image = self.follow.image();
        let Some(seen) = image.topics.get(&id).filter(|seen| seen.value.state == TopicState::Active).cloned() else {
            return self.withdraw(id);
        };
        let config = match parse(&seen.value) {
            Ok(config) => config,
            Err(error) => return tracing::error!(%error, "a topic cannot be served as it is now"),
        };
        let known = self.broker.inner().catalog.by_id(id);
        self.place(&seen.value, &config);
        if known.as_ref().is_some_and(|known| known.record.config != seen.value.config) {
            self.configure(&seen.value, &config);
        }
        let partitions =
            (0..seen.value.partitions).map(|index| self.handle(PartitionId { topic: id, index })).collect();
        self.broker.inner().catalog.put(Topic { record: seen.value, revision: seen.revision, config, partitions });
    }

    fn handle(&self, id: PartitionId) -> PartitionHandle {
        let image = self.follow.image();
        let record = image.partitions.get(&id).map(|seen| &seen.value);
        let mut placement = record.map_or_else(Placement::default, |record| Placement::seen(record, image));
        // Whoever leads has everything that was committed, or what was given up as all of it.
        let loss = self.lost.get(&id).filter(|_| placement.leader.is_none()).cloned();
        if loss.is_some() {
            // These replicas are gone (rule K2), whatever their brokers hold now.
            placement.isr.clear();
            placement.elr.clear();
        }
        let local = self.local.get(&id).cloned().flatten();
        PartitionHandle { id, placement, loss, local }
    }

    /// Opens the replicas of a topic that are placed here, and drops those that no longer are.
    fn place(&mut self, topic: &TopicRecord, config: &TopicConfig) {
        let me = self.me();
        for index in 0..topic.partitions {
            let id = PartitionId { topic: topic.id, index };
            let Some(seen) = self.follow.image().partitions.get(&id) else { continue };
            let placed = seen.value.replicas.contains(&me);
            // Opened anew, one that cannot be used would begin its log anew, and what it holds may be the only copy (rules K6, S5).
            if placed && !self.local.contains_key(&id) && !self.unusable.contains(&id) {
                tracing::debug!(partition = %id, "a replica is placed here");
                self.local.insert(id, None);
                self.open(id, topic.name.to_string(), config.clone(), None);
            } else if !placed {
                // The record names this broker no more: a fact with a revision, not an absence (rule K6).
                self.leave(id);
            }
        }
    }

    /// Gives a replica up, unless the record names this broker again by now: an image may be old, and a leader that placed the replica
    /// here anew may count on it already (rule S5). So it acknowledges nothing from here on, and only then the store is asked.
    fn leave(&mut self, id: PartitionId) {
        // One that is being opened is looked at once it is open: were it forgotten, another would be opened beside it.
        let open = self.local.get(&id).cloned().flatten();
        if (open.is_none() && !self.unusable.contains(&id)) || !self.leaving.insert(id) {
            return;
        }
        tracing::debug!(partition = %id, "a replica is placed elsewhere");
        self.tell_leave(id, true);
        let broker = self.broker.clone();
        self.asking.spawn(async move { (id, is_placed(&broker, id).await) });
    }

    /// Tells a replica, if it is open, whether it is to be given up: it acknowledges nothing then.
    fn tell_leave(&self, partition: PartitionId, leaves: bool) {
        if let Some(Some(local)) = self.local.get(&partition) {
            // A shard that is gone ends the broker.
            let _ = local.shard.send(ShardMsg::Leave { partition, leaves });
        }
    }

    /// What the store said of a replica that was to be given up.
    fn on_asked(&mut self, id: PartitionId, placed: bool) {
        self.leaving.remove(&id);
        let open = self.local.get(&id).cloned().flatten();
        if open.is_none() && !self.unusable.contains(&id) {
            return;
        }
        if placed {
            self.tell_leave(id, false);
            return self.assign(id);
        }
        self.local.remove(&id);
        self.unusable.remove(&id);
        self.lost.remove(&id);
        self.broker.drop_replica(id);
        // It may have been placed here again meanwhile.
        self.refresh(id.topic);
    }

    /// Has a replica opened, or opened again, when it is its turn.
    fn open(&mut self, id: PartitionId, topic_name: String, config: TopicConfig, open: Option<(Local, Found)>) {
        let (broker, turns) = (self.broker.clone(), Arc::clone(&self.opened_at_once));
        self.being_opened.insert(id);
        self.opening.spawn(open_later(broker, id, topic_name, config, open, turns));
    }

    /// Takes in what was opened, all that there is: a topic's entry in the catalog is made anew only once for it.
    fn take_opened(&mut self, first: Result<(PartitionId, Result<Tried, StartError>), JoinError>) {
        let mut topics = BTreeSet::new();
        let mut next = Some(first);
        while let Some(joined) = next {
            let (partition, opened) = joined.expect("opening a replica does not panic, and nobody ends it");
            self.being_opened.remove(&partition);
            if self.on_opened(partition, opened) {
                topics.insert(partition.topic);
            }
            next = self.opening.try_join_next();
        }
        topics.into_iter().for_each(|topic| self.refresh(topic));
    }

    /// Whether the catalog has to hear of it.
    fn on_opened(&mut self, partition: PartitionId, opened: Result<Tried, StartError>) -> bool {
        match opened {
            Ok(Tried::Unread { opening, .. }) => {
                self.try_again(partition, opening);
                false
            }
            // Its topic was deleted while it was opened: its shard hears of both, in this order.
            Ok(Tried::Open(_)) if !self.local.contains_key(&partition) => {
                self.broker.drop_replica(partition);
                false
            }
            Ok(Tried::Open(Opened { local, lost })) => {
                self.local.insert(partition, Some(local));
                let topic = self.broker.inner().catalog.by_id(partition.topic);
                let name = topic.map_or_else(|| partition.topic.to_string(), |topic| topic.record.name.to_string());
                self.note_loss(partition, &name, lost.as_ref());
                // What was seen meanwhile.
                self.tell_min_isr(partition);
                self.judge(partition);
                if self.leaving.contains(&partition) {
                    self.tell_leave(partition, true);
                }
                self.assign(partition);
                true
            }
            Ok(Tried::Elsewhere) => {
                self.local.remove(&partition);
                self.broker.drop_replica(partition);
                // It may have been placed here again meanwhile.
                true
            }
            Err(error) => {
                self.local.remove(&partition);
                self.unusable.insert(partition);
                tracing::error!(%partition, %error, "a replica cannot be opened; the partition goes on without it");
                // Whoever was open here before is not.
                true
            }
        }
    }

    /// Tries to open a replica again, as it stands by now, unless its topic was deleted meanwhile, or it is placed elsewhere.
    fn try_again(&mut self, partition: PartitionId, mut opening: Box<Opening>) {
        let (Some((stands, epoch)), true) = (self.stands(partition), self.local.contains_key(&partition)) else {
            return;
        };
        (opening.lost, opening.complete) = ((stands == Standing::Lost).then_some(epoch), stands == Standing::Electable);
        let record = self.follow.image().partitions.get(&partition);
        let leaves = record.is_some_and(|seen| !seen.value.replicas.contains(&self.me()));
        let (broker, turns) = (self.broker.clone(), Arc::clone(&self.opened_at_once));
        self.being_opened.insert(partition);
        self.opening.spawn(async move {
            broker.pause().await;
            if leaves && !is_placed(&broker, partition).await {
                return (partition, Ok(Tried::Elsewhere));
            }
            let _turn = turns.acquire_owned().await.expect("it is never closed");
            (partition, broker.open_again(opening).await)
        });
    }

    /// A topic is not served: it is not there yet, or is being deleted. Frames go only with its tombstone (rules K6, S14).
    fn withdraw(&mut self, id: TopicId) {
        self.broker.inner().catalog.remove(id);
        if !self.follow.image().tombstones.contains_key(&id) {
            return;
        }
        let all = all_of(id);
        // What is left of these goes by the next look (`purge`).
        self.unusable.retain(|partition| partition.topic != id);
        let held: Vec<PartitionId> = self.local.range(all.clone()).map(|(id, _)| *id).collect();
        for partition in held {
            self.local.remove(&partition);
            self.broker.drop_replica(partition);
        }
        let lost: Vec<PartitionId> = self.lost.range(all).map(|(id, _)| *id).collect();
        if !lost.is_empty() {
            self.lost.retain(|partition, _| partition.topic != id);
            self.forget_damage(lost);
        }
    }

    /// Looks whether anything is left here of deleted topics (rule K6), also of replicas that could not be opened.
    fn purge(&mut self) {
        let (local, being_opened) = (&self.local, &self.being_opened);
        let is_open =
            |topic| local.range(all_of(topic)).next().is_some() || being_opened.range(all_of(topic)).next().is_some();
        for partition in self.purge.look(&self.broker, &self.follow, is_open) {
            self.broker.drop_replica(partition);
        }
    }

    /// Tells a replica that has just been opened what `min.insync.replicas` its topic wants: a change may have come while this broker was
    /// down, or held no replica (rule I7).
    fn tell_min_isr(&self, partition: PartitionId) {
        let Some(Some(local)) = self.local.get(&partition) else { return };
        let Some(topic) = self.follow.image().topics.get(&partition.topic) else { return };
        // One that cannot be read is told of where it is refreshed.
        let Ok(config) = parse(&topic.value) else { return };
        let input = Input::MinIsr(config.min_isr(topic.value.replication_factor));
        // A shard that is gone ends the broker.
        let _ = local.shard.send(ShardMsg::Step { partition, input });
    }

    /// Tells the replicas here of a topic's new settings.
    fn configure(&self, topic: &TopicRecord, config: &TopicConfig) {
        for index in 0..topic.partitions {
            let partition = PartitionId { topic: topic.id, index };
            let Some(Some(local)) = self.local.get(&partition) else { continue };
            let min_isr = Input::MinIsr(config.min_isr(topic.replication_factor));
            for input in [Input::TimestampType(config.timestamp_type), min_isr] {
                // A shard that is gone ends the broker.
                let _ = local.shard.send(ShardMsg::Step { partition, input });
            }
            self.broker.inner().tier.send(TierRequest::Configure { partition, config: Box::new(config.clone()) });
        }
    }
}

/// What may be partitions of a topic.
fn all_of(topic: TopicId) -> RangeInclusive<PartitionId> {
    PartitionId { topic, index: 0 }..=PartitionId { topic, index: u32::MAX }
}

/// Whether the store still names this broker in the record of a partition.
async fn is_placed(broker: &Broker, id: PartitionId) -> bool {
    loop {
        match broker.inner().store.partition(id).await {
            // No record is no fact: its topic's tombstone will be one (rule K6).
            Ok(seen) => return seen.is_none_or(|seen| seen.value.replicas.contains(&broker.id())),
            Err(error) => {
                tracing::warn!(partition = %id, %error, "a partition's record cannot be read yet");
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

fn parse(topic: &TopicRecord) -> Result<TopicConfig, StartError> {
    TopicConfig::from_overrides(&topic.config)
        .map_err(|error| StartError::Topic { name: topic.name.to_string(), reason: error.to_string() })
}
