//! The operator's acceptance of a loss (rule E7): one transaction, after which this broker leads what is left.
//!
//! It decides nothing: `core::loss` does. Without an order it changes nothing.

use crate::alive::live_session;
use crate::api::{AcceptedLoss, ApiError, PartitionLoss, TopicRef};
use crate::broker::{Broker, stopping};
use crate::catalog::{Local, PartitionHandle, Topic};
use crate::loss::give_up_command;
use crate::topics::unavailable;
use crate::unclean::OwnLog;
use millpond_core::election::Holds;
use millpond_core::loss::{self, Evidence};
use millpond_core::records::{Leader, PartitionRecord};
use millpond_core::replica::Live;
use millpond_log::{BrokerId, ErrorCode, PartitionId, WalGen};
use millpond_metadata::store::{Outcome, Session, UncleanElection};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Longest wait until a partition whose loss was accepted is served.
const LED_WAIT_MAX: Duration = Duration::from_secs(5);

impl Broker {
    /// Accepts that what only a lost replica held is gone: this broker leads the partition from what it has left (rule E7).
    /// With `validate_only` it only says what would be lost. Returns when it is led, and served if enough replicas are in sync for that within
    /// five seconds.
    ///
    /// # Errors
    /// `INVALID_REQUEST`: nothing is lost. Others may be tried again.
    pub async fn accept_loss(
        &self,
        topic: &TopicRef,
        index: u32,
        validate_only: bool,
    ) -> Result<AcceptedLoss, ApiError> {
        // One at a time, and not while the topic is deleted or changed.
        let one = self.inner().topic_changes.lock().await;
        let (topic, handle) = self.inner().catalog.partition(topic, index)?;
        let name = topic.record.name.as_str();
        let Some(loss) = handle.loss.clone() else { return Err(self.why_not(name, &handle).await) };
        self.check_that_nobody_holds_more(name, &handle).await?;
        if validate_only {
            return Ok(AcceptedLoss { topic: name.to_owned(), loss: PartitionLoss::clone(&loss), leader_epoch: None });
        }
        let record = self.accept(&handle, &loss).await?;
        // What it may take to be led in full, fewer wanted in sync or other topics gone, is a change of topics itself.
        drop(one);
        let (local, epoch) = (handle.local()?, record.epoch);
        let known = |topic: Option<&Arc<Topic>>| {
            let handle = topic.and_then(|topic| topic.partitions.get(index as usize));
            handle.is_none_or(|handle| handle.placement.epoch >= epoch && handle.loss.is_none())
        };
        let led = async {
            let mut view = local.view.clone();
            view.wait_for(|view| view.visible.leads && view.visible.bounds_proven()).await.map_err(|_| stopping())?;
            self.inner().catalog.until(topic.record.id, known).await;
            Ok(())
        };
        // Whoever is told that it is led finds it led. Not for ever: with fewer in sync than are wanted its end is not proven (rule I1).
        match tokio::time::timeout(LED_WAIT_MAX, led).await {
            Ok(led) => led?,
            Err(_) => {
                let wanted = record.min_isr;
                tracing::warn!(topic = name, index, %epoch, wanted, "its loss is accepted; too few are in sync yet to serve it");
            }
        }
        let topic = name.to_owned();
        Ok(AcceptedLoss { topic, loss: PartitionLoss::clone(&loss), leader_epoch: Some(epoch) })
    }

    /// Why nothing of a partition can be accepted as lost at this broker, and what can be done.
    async fn why_not(&self, name: &str, handle: &PartitionHandle) -> ApiError {
        let place = format!("{name}:{}", handle.id.index);
        let nothing = refused(&format!("{place} has lost nothing; there is nothing to accept"));
        if handle.placement.leader.is_some() {
            return nothing;
        }
        let awaited = match self.awaited(handle.id).await {
            Ok(awaited) => awaited,
            Err(error) => return error,
        };
        let sessions = self.inner().alive.sessions();
        match awaited.first() {
            // Whoever runs and has a replica leads it then, if need be one that the controller has just placed.
            None => {
                let message =
                    format!("{place} is lost, and this broker holds nothing of it; ask another one, or again");
                ApiError::new(ErrorCode::NotLeaderOrFollower, message)
            }
            Some(_) if awaited.iter().any(|broker| sessions.contains_key(broker)) => nothing,
            Some(first) => {
                let brokers = awaited.iter().map(ToString::to_string).collect::<Vec<String>>().join(", ");
                refused(&format!(
                    "{place} has lost nothing as long as it may come back with one of the brokers {brokers}: start one; or, if \
                     their disks are gone for good, say so of each with `{}`",
                    give_up_command(*first)
                ))
            }
        }
    }

    /// The brokers that may come back with all that was committed of a partition.
    async fn awaited(&self, partition: PartitionId) -> Result<BTreeSet<BrokerId>, ApiError> {
        let seen = self.inner().store.partition(partition).await.map_err(|error| unavailable(&error))?;
        let seen = seen.ok_or_else(deleted)?.value;
        let disks = self.disks(&seen).await?;
        Ok(loss::awaited(&seen, |broker| disks.get(&broker).copied()).into_iter().collect())
    }

    /// The disks on record for the brokers of a partition's complete replicas.
    async fn disks(&self, seen: &PartitionRecord) -> Result<BTreeMap<BrokerId, WalGen>, ApiError> {
        let mut disks = BTreeMap::new();
        for rid in seen.isr.iter().chain(&seen.elr) {
            let disk = self.inner().store.read_disk(rid.broker).await.map_err(|error| unavailable(&error))?;
            disks.extend(disk.map(|disk| (rid.broker, disk.value.wal_gen)));
        }
        Ok(disks)
    }

    /// Has the WAL forget the damage to partitions that nobody needs to hear of any more.
    pub(crate) async fn forget_damage(&self, partitions: impl IntoIterator<Item = PartitionId>) {
        let (wal, partitions) = (self.wal().clone(), partitions.into_iter().collect::<Vec<PartitionId>>());
        let settle = move || partitions.into_iter().try_for_each(|partition| wal.settle_damage(partition));
        let settled = tokio::task::spawn_blocking(settle).await;
        if !matches!(settled, Ok(Ok(()))) {
            tracing::warn!("the damage could not be settled in the WAL; the next start reports it again");
        }
    }

    /// The most of what is left is to be kept: whoever is asked sends the order on to the broker that holds it, among those that answer.
    async fn check_that_nobody_holds_more(&self, name: &str, handle: &PartitionHandle) -> Result<(), ApiError> {
        let sessions = self.inner().alive.sessions();
        let live: Vec<Live> =
            handle.placement.replicas.iter().filter_map(|id| Some(live_session(*id, sessions.get(id)?))).collect();
        let held = self.ask_once(std::iter::once((&handle.id, &live.as_slice()))).await.remove(&handle.id);
        let held = held.unwrap_or_default();
        let most = |held: &Holds| (held.last_epoch, held.durable);
        let own = held.get(&self.inner().rid).map(most);
        match held.iter().filter(|(_, held)| own.is_some_and(|own| most(held) > own)).max_by_key(|(_, held)| most(held))
        {
            None => Ok(()),
            Some((rid, held)) => Err(ApiError::new(
                ErrorCode::NotLeaderOrFollower,
                format!(
                    "broker {} holds more of {name}:{}, up to offset {}: ask that one",
                    rid.broker, handle.id.index, held.durable
                ),
            )),
        }
    }

    /// Runs the transaction of rule E7 until it is settled. Returns the partition as it is then.
    async fn accept(&self, handle: &PartitionHandle, loss: &PartitionLoss) -> Result<PartitionRecord, ApiError> {
        let local = handle.local()?;
        loop {
            let session = self.session()?;
            let election = self.decide_acceptance(&session, handle, local, loss).await?;
            let outcome = self.elect_unclean(&session, &election, local).await;
            match outcome.map_err(|error| unavailable(&error))? {
                Outcome::Committed { .. } => return Ok(election.acceptance.next),
                Outcome::Fenced => return Err(stopping()),
                Outcome::Conflict | Outcome::Unknown => {}
            }
        }
    }

    async fn decide_acceptance(
        &self,
        session: &Session,
        handle: &PartitionHandle,
        local: &Local,
        loss: &PartitionLoss,
    ) -> Result<UncleanElection, ApiError> {
        let (store, partition) = (&self.inner().store, handle.id);
        let seen = store.partition(partition).await.map_err(|error| unavailable(&error))?.ok_or_else(deleted)?;
        let log = self.own_log(partition, local).await.map_err(|error| unavailable(&error))?;
        let OwnLog { visible, tier_root } =
            log.ok_or_else(|| refused(&"the manifest has moved since this broker read it; restart the broker"))?;
        let disks = self.disks(&seen.value).await?;
        let evidence = Evidence {
            leader: Leader { rid: session.rid, inc: session.inc },
            epoch_seen: visible.epoch,
            end: visible.end,
            tiered_end: visible.tiered_end,
            known_end: loss.known_end,
            cause: loss.cause.clone(),
        };
        let disk_of = |broker| disks.get(&broker).copied();
        let acceptance = loss::accept(&seen.value, evidence, disk_of).map_err(|refusal| refused(&refusal))?;
        // That the disks are gone for good needs no comparison: it stays so (rule B1a).
        let also = Vec::new();
        Ok(UncleanElection { partition, record: seen.revision, tier_root, also, acceptance })
    }
}

fn deleted() -> ApiError {
    ApiError::new(ErrorCode::UnknownTopicOrPartition, "the topic is being deleted")
}

fn refused(reason: &dyn std::fmt::Display) -> ApiError {
    ApiError::new(ErrorCode::InvalidRequest, reason.to_string())
}
