//! Keeps this broker what the metadata store says it is: which replicas it holds, who leads, who is alive (rules B2, K1, K6).
//!
//! Level by level from the watched image. It decides nothing, and writes nothing.

use crate::alive::{Alive, live_session};
use crate::broker::Broker;
use crate::catalog::{Local, PartitionHandle, Placement, Topic};
use crate::elections::{Vacancy, vacancies};
use crate::loss::{self, DiskStory};
use crate::partitions::shard::ShardMsg;
use crate::peers::Peer;
use crate::replicas::{Opened, Opening, decode_root};
use crate::start_error::StartError;
use crate::tier::TierRequest;
use crate::wal::{Recovered, RecoveredPartition};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use millpond_core::loss::{Standing, standing};
use millpond_core::records::{PartitionRecord, TopicRecord, TopicState};
use millpond_core::replica::Input;
use millpond_core::topic_config::TopicConfig;
use millpond_log::{BrokerId, PartitionId, TopicId};
use millpond_metadata::keys::Key;
use millpond_metadata::kv::Revision;
use millpond_metadata::store::{Follow, Image, StoreError, Versioned};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Pause between tries while the metadata store cannot be used.
const RETRY: Duration = Duration::from_millis(200);

/// How often vacancies are looked for that no controller has filled.
const LOOK: Duration = Duration::from_secs(1);

/// How often the image is loaded anew and compared (rule Z2).
const RELOAD: Duration = Duration::from_secs(60);

type OpeningTask = BoxFuture<'static, (PartitionId, Result<Opened, StartError>)>;

/// The task's state.
pub(crate) struct Fleet {
    broker: Broker,
    follow: Follow,
    /// The replicas that are open here, and those being opened (`None`).
    local: BTreeMap<PartitionId, Option<Local>>,
    opening: FuturesUnordered<OpeningTask>,
    /// The elections under way; at most one round.
    electing: FuturesUnordered<BoxFuture<'static, ()>>,
    /// Records of what nobody led at the last look.
    vacant: BTreeSet<(PartitionId, Revision)>,
}

impl Fleet {
    /// Follows the metadata store, and opens every replica that it places here.
    ///
    /// # Errors
    /// What keeps a replica from being opened: its data contradict each other.
    pub(crate) async fn start(broker: Broker, recovered: &Recovered, story: &DiskStory) -> Result<Fleet, StartError> {
        let follow = broker.inner().store.follow().await?;
        let mut fleet = Fleet {
            broker,
            follow,
            local: BTreeMap::new(),
            opening: FuturesUnordered::new(),
            electing: FuturesUnordered::new(),
            vacant: BTreeSet::new(),
        };
        fleet.note_sessions();
        fleet.open_all(recovered, story).await?;
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
                Some((partition, opened)) = self.opening.next() => {
                    self.on_opened(partition, opened);
                    continue;
                }
                Some(()) = self.electing.next() => continue,
                _ = look.tick() => {
                    self.fill_vacancies();
                    continue;
                }
                changed = self.follow.changed() => changed,
                _ = reload.tick() => self.follow.reload().await,
            };
            match changed {
                Ok(keys) => self.on_changed(&keys),
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
        if !brokers.is_empty() {
            self.note_sessions();
            let image = self.follow.image();
            topics.extend(image.topics.keys());
            let concerned = |id: &&PartitionId| {
                image.partitions.get(id).is_some_and(|seen| seen.value.replicas.iter().any(|id| brokers.contains(id)))
            };
            partitions.extend(self.local.keys().filter(concerned));
        }
        for topic in topics {
            self.refresh(topic);
        }
        for partition in partitions {
            self.assign(partition);
        }
    }

    /// Elects where nobody leads and this broker may. The controller is faster: this is for when there is none, and many that elect
    /// at the same time only hinder each other. So what was not vacant at the last look is left alone.
    fn fill_vacancies(&mut self) {
        let Some(session) = self.broker.session_handle().get().filter(|_| self.electing.is_empty()) else { return };
        let mut vacancies = vacancies(self.follow.image(), session);
        let found = vacancies.iter().map(Vacancy::record).collect();
        let before = std::mem::replace(&mut self.vacant, found);
        vacancies.retain(|vacancy| before.contains(&vacancy.record()));
        if !vacancies.is_empty() {
            let broker = self.broker.clone();
            self.electing.push(Box::pin(async move { broker.fill(session, vacancies).await }));
        }
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
        let partitions = (0..seen.value.partitions)
            .map(|index| self.handle(PartitionId { topic: id, index }, known.as_deref()))
            .collect();
        self.broker.inner().catalog.put(Topic { record: seen.value, revision: seen.revision, config, partitions });
    }

    fn handle(&self, id: PartitionId, known: Option<&Topic>) -> PartitionHandle {
        let image = self.follow.image();
        let record = image.partitions.get(&id).map(|seen| &seen.value);
        let placement = record.map_or_else(Placement::default, |record| placement(record, image));
        let known = known.and_then(|topic| topic.partitions.get(id.index as usize));
        // Whoever leads has everything that was committed, or what an operator accepted as all of it.
        let loss = known.and_then(|known| known.loss.clone()).filter(|_| placement.leader.is_none());
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
            if placed && !self.local.contains_key(&id) {
                self.local.insert(id, None);
                self.opening.push(Box::pin(open_later(
                    self.broker.clone(),
                    id,
                    topic.name.to_string(),
                    config.clone(),
                    config.min_isr(topic.replication_factor),
                )));
            } else if !placed && self.local.remove(&id).is_some() {
                // The record names this broker no more: a fact with a revision, not an absence (rule K6).
                self.broker.drop_replica(id);
            }
        }
    }

    fn on_opened(&mut self, partition: PartitionId, opened: Result<Opened, StartError>) {
        match opened {
            // Dropped while it was opened: its shard hears of both, in this order.
            Ok(_) if !self.local.contains_key(&partition) => self.broker.drop_replica(partition),
            Ok(Opened { local, .. }) => {
                self.local.insert(partition, Some(local));
                self.assign(partition);
                self.refresh(partition.topic);
            }
            Err(error) => {
                self.local.remove(&partition);
                tracing::error!(%partition, %error, "a replica cannot be opened; the partition goes on without it");
            }
        }
    }

    /// A topic is not served: it is not there yet, or is being deleted. Frames go only with its tombstone (rules K6, S14).
    fn withdraw(&mut self, id: TopicId) {
        let inner = self.broker.inner();
        let gone = inner.catalog.remove(id);
        if !self.follow.image().tombstones.contains_key(&id) {
            return;
        }
        let first = PartitionId { topic: id, index: 0 };
        let last = PartitionId { topic: id, index: u32::MAX };
        let held: Vec<PartitionId> = self.local.range(first..=last).map(|(id, _)| *id).collect();
        for partition in held {
            self.local.remove(&partition);
            self.broker.drop_replica(partition);
        }
        let lost: Vec<PartitionId> = gone
            .iter()
            .flat_map(|topic| &topic.partitions)
            .filter(|handle| handle.loss.is_some())
            .map(|handle| handle.id)
            .collect();
        if !lost.is_empty() {
            let broker = self.broker.clone();
            tokio::spawn(async move { broker.forget_damage(lost).await });
        }
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

    /// Opens the replicas that are placed here at the start, and drops what a tombstone or a record says is not.
    async fn open_all(&mut self, recovered: &Recovered, story: &DiskStory) -> Result<(), StartError> {
        let inner = self.broker.inner();
        let (_, roots) = inner.store.tier_roots(None).await?;
        let mut in_wal: BTreeMap<PartitionId, &RecoveredPartition> =
            recovered.partitions.iter().map(|held| (held.partition, held)).collect();
        let image = self.follow.image();
        let disk_of = |broker| image.disks.get(&broker).map(|disk| disk.value.wal_gen);
        for seen in image.topics.values().filter(|seen| seen.value.state == TopicState::Active) {
            let topic = &seen.value;
            let config = parse(topic)?;
            let mut losses = BTreeMap::new();
            for index in 0..topic.partitions {
                let id = PartitionId { topic: topic.id, index };
                let Some(record) = image.partitions.get(&id).map(|seen| &seen.value) else { continue };
                if !record.replicas.contains(&self.me()) {
                    continue;
                }
                let stands = standing(record, inner.rid, disk_of);
                let lost = (stands == Standing::Lost).then_some(record.epoch);
                let held = in_wal.remove(&id);
                let opening = Opening {
                    topic_name: topic.name.to_string(),
                    config: config.clone(),
                    root: decode_root(id, roots.get(&id))?,
                    in_wal: held.cloned(),
                    lost,
                    complete: stands == Standing::Electable,
                    min_isr: config.min_isr(topic.replication_factor),
                };
                let opened = self.broker.open_replica(opening).await?;
                if lost.is_some() {
                    let end = opened.local.view.borrow().visible.end;
                    losses.insert(id, story.loss(id, end..opened.known_end, held.is_some()));
                }
                self.local.insert(id, Some(opened.local));
            }
            let handles = (0..topic.partitions).map(|index| {
                let mut handle = self.handle(PartitionId { topic: topic.id, index }, None);
                if let Some(loss) = losses.remove(&handle.id) {
                    handle.placement.isr.clear();
                    (handle.placement.leader, handle.loss) = (None, Some(std::sync::Arc::new(loss)));
                }
                handle
            });
            let (record, partitions) = (topic.clone(), handles.collect());
            let topic = Topic { record, revision: seen.revision, config, partitions };
            loss::report(&inner.catalog.put(topic));
        }
        for id in in_wal.into_keys() {
            let elsewhere = image.partitions.get(&id).is_some_and(|seen| !seen.value.replicas.contains(&self.me()));
            if elsewhere || image.tombstones.contains_key(&id.topic) {
                self.broker.drop_replica(id);
            }
        }
        Ok(())
    }

    /// Tells every replica that is open what its record says. Once, when the broker has its session.
    pub(crate) fn assign_all(&self) {
        self.local.keys().for_each(|partition| self.assign(*partition));
    }
}

/// Opens a replica that was placed here while the broker runs: nothing of it is in the WAL.
async fn open_later(
    broker: Broker,
    id: PartitionId,
    topic_name: String,
    config: TopicConfig,
    min_isr: u32,
) -> (PartitionId, Result<Opened, StartError>) {
    let stored = loop {
        match broker.inner().store.tier_root(id).await {
            Ok(stored) => break stored,
            Err(error) => {
                tracing::warn!(partition = %id, %error, "a manifest cannot be read yet");
                tokio::time::sleep(RETRY).await;
            }
        }
    };
    let opened = match decode_root(id, stored.as_ref()) {
        Ok(root) => {
            let (in_wal, lost, complete) = (None, None, false);
            broker.open_replica(Opening { topic_name, config, root, in_wal, lost, complete, min_isr }).await
        }
        Err(error) => Err(error),
    };
    (id, opened)
}

fn parse(topic: &TopicRecord) -> Result<TopicConfig, StartError> {
    TopicConfig::from_overrides(&topic.config)
        .map_err(|error| StartError::Topic { name: topic.name.to_string(), reason: error.to_string() })
}

/// What clients are told: a leader whose session is gone leads no longer, whatever the record still says (rule E1).
fn placement(record: &PartitionRecord, image: &Image) -> Placement {
    let leads = |seen: &Versioned<_>, leader: &millpond_core::records::Leader| {
        let live = live_session(leader.rid.broker, seen);
        (live.rid, live.inc) == (leader.rid, leader.inc)
    };
    let leader =
        record.leader.filter(|leader| image.sessions.get(&leader.rid.broker).is_some_and(|seen| leads(seen, leader)));
    Placement { leader: leader.map(|leader| leader.rid.broker), ..Placement::from(record) }
}
