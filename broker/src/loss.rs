//! Partitions that nobody may lead any more: why, what is lost, what is said about it, and the operator's acceptance (rules B4, E7).
//!
//! It decides nothing: `core::loss` does. Without an order it changes nothing.

use crate::api::{AcceptedLoss, ApiError, DamagedPlace, PartitionLoss, TopicRef};
use crate::broker::{Broker, stopping};
use crate::catalog::{PartitionHandle, Placement, Topic};
use crate::server::decode_root;
use crate::topics::unavailable;
use crate::wal::{Damage, Recovered};
use millpond_core::loss::{self, Evidence};
use millpond_core::records::{Leader, PartitionRecord};
use millpond_log::{ErrorCode, Offset, PartitionId};
use millpond_metadata::store::{Outcome, Session, UncleanElection};
use std::collections::BTreeMap;

/// What this start found of its disk: it explains why replicas on it are other replicas now (rule K2).
pub(crate) struct DiskStory {
    /// Why the disk is not the one that registered last (rule B1a), if that is so.
    pub(crate) stale: Option<String>,
    /// Whether its WAL is another since this start.
    fresh: bool,
    /// Whether the WAL held nothing.
    empty: bool,
    damage: Vec<Damage>,
}

impl DiskStory {
    pub(crate) fn new(recovered: &Recovered, stale: Option<String>) -> DiskStory {
        let empty = recovered.partitions.is_empty();
        DiskStory { stale, fresh: recovered.fresh, empty, damage: recovered.damage.clone() }
    }

    /// Why a partition is lost, and where the WAL is bad, if that is why.
    fn cause(&self, partition: PartitionId, in_wal: bool) -> (String, Option<DamagedPlace>) {
        let place =
            |damage: &Damage| DamagedPlace { file: damage.file.display().to_string(), position: damage.position };
        let names = |damage: &&Damage| damage.partitions.iter().any(|(lost, _)| *lost == partition);
        if let Some(named) = self.damage.iter().find(names) {
            return ("synced data in the WAL cannot be read back".to_owned(), Some(place(named)));
        }
        if let Some(reason) = &self.stale {
            return (format!("the data directory is not the one that served it last: {reason}"), None);
        }
        let first = self.damage.first().map(place);
        let cause = match (self.fresh, &first) {
            (true, Some(_)) if in_wal => "the WAL is damaged; no record of this partition is known to be missing",
            (true, Some(_)) => "the WAL is damaged, and nothing of this partition is left in it",
            (true, None) if self.empty => "the data directory was empty",
            (true, None) => "a write or sync of the WAL had failed",
            (false, _) => "its only replica stood on a disk that was replaced, restored or damaged before this start",
        };
        (cause.to_owned(), first.filter(|_| self.fresh))
    }

    /// What is lost of a partition that was opened as lost, and whose log is known to have reached `known_end`.
    pub(crate) fn loss(&self, handle: &PartitionHandle, in_wal: bool, known_end: Offset) -> PartitionLoss {
        let end = handle.view.borrow().visible.end;
        let (cause, place) = self.cause(handle.id, in_wal);
        PartitionLoss { cause, place, end, known_end }
    }
}

impl PartitionLoss {
    /// What to tell whoever wants more of the partition than is in object storage.
    pub(crate) fn explain(&self, topic: &str, partition: u32) -> String {
        let place =
            self.place.as_ref().map_or(String::new(), |place| format!(" (`{}`, byte {})", place.file, place.position));
        let lost = match self.known_end.0.saturating_sub(self.end.0) {
            0 => format!("if anything was acknowledged from offset {} on, it is lost", self.end),
            count => format!(
                "the {count} offsets {} to {} are lost, with whatever came after them",
                self.end,
                self.known_end.0 - 1
            ),
        };
        format!(
            "{topic}:{partition} has no leader: {cause}{place}; {lost}; accept that with `{command}`",
            cause = self.cause,
            command = accept_command(topic, partition)
        )
    }
}

/// The command line that accepts a loss.
pub(crate) fn accept_command(topic: &str, partition: u32) -> String {
    format!("millpond partition accept-loss {topic}:{partition} --yes")
}

/// The refusal of what only a leader may do; `NOT_LEADER_OR_FOLLOWER` makes every client look for the leader again.
pub(crate) fn refusal(topic: &Topic, handle: &PartitionHandle, code: ErrorCode) -> Option<ApiError> {
    let loss = handle.loss.as_ref()?;
    Some(ApiError::new(code, loss.explain(topic.record.name.as_str(), handle.id.index)))
}

impl Broker {
    /// Accepts that what only a lost replica held is gone: this broker leads the partition from what it has left (rule E7).
    /// With `validate_only` it only says what would be lost.
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
        let _one = self.inner().topic_changes.lock().await;
        let (topic, handle) = self.inner().catalog.partition(topic, index)?;
        let name = topic.record.name.as_str();
        let Some(loss) = handle.loss.clone() else {
            let message = format!("{name}:{index} has lost nothing; there is nothing to accept");
            return Err(ApiError::new(ErrorCode::InvalidRequest, message));
        };
        if validate_only {
            return Ok(AcceptedLoss { topic: name.to_owned(), loss: PartitionLoss::clone(&loss), leader_epoch: None });
        }
        let record = self.elect_unclean(&handle, &loss).await?;
        self.forget_damage([handle.id]).await;
        tracing::warn!(
            topic = name,
            partition = index,
            epoch = %record.epoch,
            end = %loss.end,
            known_end = %loss.known_end,
            cause = loss.cause,
            "a loss was accepted; the partition is led again"
        );
        self.lead(&handle, &record);
        // Whoever is told that it is led finds it led.
        handle.view.clone().wait_for(|view| view.visible.leads).await.map_err(|_| stopping())?;
        let mut partitions = topic.partitions.clone();
        let led = PartitionHandle { placement: Placement::from(&record), loss: None, ..handle };
        partitions[index as usize] = led;
        self.inner().catalog.put(Topic { record: topic.record.clone(), config: topic.config.clone(), partitions });
        let topic = name.to_owned();
        Ok(AcceptedLoss { topic, loss: PartitionLoss::clone(&loss), leader_epoch: Some(record.epoch) })
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

    /// Runs the transaction of rule E7 until it is settled. Returns the partition as it is then.
    async fn elect_unclean(&self, handle: &PartitionHandle, loss: &PartitionLoss) -> Result<PartitionRecord, ApiError> {
        loop {
            let session = self.session()?;
            let election = self.decide_acceptance(&session, handle, loss).await?;
            // An unknown outcome is settled by the same transaction (rule K5).
            let outcome = loop {
                match self.inner().store.accept_loss(&session, &election).await.map_err(|error| unavailable(&error))? {
                    Outcome::Unknown => tokio::task::yield_now().await,
                    settled => break settled,
                }
            };
            match outcome {
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
        loss: &PartitionLoss,
    ) -> Result<UncleanElection, ApiError> {
        let store = &self.inner().store;
        let (partition, visible) = (handle.id, handle.view.borrow().visible);
        let gone = || ApiError::new(ErrorCode::UnknownTopicOrPartition, "the topic is being deleted");
        let seen = store.partition(partition).await.map_err(|error| unavailable(&error))?.ok_or_else(gone)?;
        let root = store.tier_root(partition).await.map_err(|error| unavailable(&error))?;
        let opened = handle.view.borrow().manifest.seq;
        let tier_root = decode_root(partition, root.as_ref())
            .ok()
            .filter(|root| root.value.seq == opened)
            .ok_or_else(|| refused(&"the manifest has moved since this broker read it; restart the broker"))?;
        let mut disks = BTreeMap::new();
        for rid in seen.value.isr.iter().chain(&seen.value.elr) {
            let disk = store.read_disk(rid.broker).await.map_err(|error| unavailable(&error))?;
            disks.extend(disk.map(|disk| (rid.broker, disk.value.wal_gen)));
        }
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
        Ok(UncleanElection { partition, record: seen.revision, tier_root: tier_root.revision, acceptance })
    }
}

fn refused(reason: &dyn std::fmt::Display) -> ApiError {
    ApiError::new(ErrorCode::InvalidRequest, reason.to_string())
}

/// Says each loss once in the log.
pub(crate) fn report(topic: &Topic) {
    for handle in &topic.partitions {
        if let Some(loss) = &handle.loss {
            tracing::error!("{}", loss.explain(topic.record.name.as_str(), handle.id.index));
        }
    }
}
