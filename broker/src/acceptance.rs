//! The operator's acceptance of a loss (rule E7): one transaction, after which this broker leads what is left.
//!
//! It decides nothing: `core::loss` does. Without an order it changes nothing.

use crate::api::{AcceptedLoss, ApiError, PartitionLoss, TopicRef};
use crate::broker::{Broker, stopping};
use crate::catalog::{PartitionHandle, Topic};
use crate::manifests::decode_root;
use crate::topics::unavailable;
use millpond_core::loss::{self, Evidence};
use millpond_core::records::{Leader, PartitionRecord};
use millpond_log::{ErrorCode, PartitionId};
use millpond_metadata::store::{Outcome, Session, UncleanElection, Versioned};
use std::collections::BTreeMap;
use std::sync::Arc;

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
        let seen = self.elect_unclean(&handle, &loss).await?;
        let (record, epoch) = (seen.value.clone(), seen.value.epoch);
        self.forget_damage([handle.id]).await;
        tracing::warn!(
            topic = name,
            partition = index,
            %epoch,
            end = %loss.end,
            known_end = %loss.known_end,
            cause = loss.cause,
            "a loss was accepted; the partition is led again"
        );
        let local = handle.local()?;
        self.inner().alive.assign(&local.shard, handle.id, &seen);
        // Whoever is told that it is led finds it led.
        local
            .view
            .clone()
            .wait_for(|view| view.visible.leads && view.visible.end_proven)
            .await
            .map_err(|_| stopping())?;
        let led = |topic: Option<&Arc<Topic>>| {
            let handle = topic.and_then(|topic| topic.partitions.get(index as usize));
            handle.is_none_or(|handle| handle.placement.epoch >= record.epoch && handle.loss.is_none())
        };
        self.inner().catalog.until(topic.record.id, led).await;
        let topic = name.to_owned();
        Ok(AcceptedLoss { topic, loss: PartitionLoss::clone(&loss), leader_epoch: Some(epoch) })
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
    async fn elect_unclean(
        &self,
        handle: &PartitionHandle,
        loss: &PartitionLoss,
    ) -> Result<Versioned<PartitionRecord>, ApiError> {
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
                Outcome::Committed { revision } => {
                    return Ok(Versioned { value: election.acceptance.next, revision });
                }
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
        let local = handle.local()?;
        let (partition, visible) = (handle.id, local.view.borrow().visible);
        let gone = || ApiError::new(ErrorCode::UnknownTopicOrPartition, "the topic is being deleted");
        let seen = store.partition(partition).await.map_err(|error| unavailable(&error))?.ok_or_else(gone)?;
        let root = store.tier_root(partition).await.map_err(|error| unavailable(&error))?;
        let opened = local.view.borrow().manifest.seq;
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
