//! Commits of a group's offsets: as whom, for which partitions, one at a time, and again until it is known what became of them.

use super::membership::wire;
use crate::client::answer;
use crate::coordinator::Coordinator;
use crate::error::Error;
use crate::record::{ConsumerRecord, TopicPartition};
use millpond_log::{ErrorCode, LeaderEpoch, Offset, PartitionId};
use millpond_proto::v1;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// An offset to commit: where a group goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitOffset {
    /// The next offset to read: one more than that of the last record that was processed.
    pub offset: Offset,
    /// The leader epoch of that record, if known: whoever goes on is told if the log is another one by then.
    pub leader_epoch: Option<LeaderEpoch>,
    /// Whatever is to be kept beside it, up to 4 KiB.
    pub metadata: String,
}

impl CommitOffset {
    /// Goes on at this offset.
    #[must_use]
    pub fn at(offset: Offset) -> CommitOffset {
        CommitOffset { offset, leader_epoch: None, metadata: String::new() }
    }

    /// Goes on after this record.
    #[must_use]
    pub fn after(record: &ConsumerRecord) -> CommitOffset {
        CommitOffset { leader_epoch: Some(record.leader_epoch), ..CommitOffset::at(record.offset.plus(1)) }
    }
}

/// Who a member is, as it was told last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) member: String,
    pub(super) epoch: i32,
}

/// Commits offsets of a member's partitions. Cheap to clone; can be used from other tasks.
///
/// One commit is under way at a time, in the order in which they were asked for.
#[derive(Clone, Debug)]
pub struct Committer {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    coordinator: Coordinator,
    instance: Option<String>,
    patience: Duration,
    identity: Mutex<Identity>,
    held: Mutex<BTreeMap<TopicPartition, Held>>,
    under_way: tokio::sync::Mutex<()>,
}

/// A partition that may be committed.
#[derive(Clone, Copy, Debug)]
struct Held {
    id: PartitionId,
    /// What was committed last, as far as is known.
    committed: Option<Offset>,
}

/// What became of one attempt.
enum Attempt {
    Done,
    /// Some of it failed; the rest, if any, may be tried again.
    Failed {
        again: Vec<TopicPartition>,
        error: Error,
    },
}

impl Committer {
    pub(super) fn new(coordinator: Coordinator, instance: Option<String>, patience: Duration) -> Committer {
        let (identity, held, under_way) = (Mutex::default(), Mutex::default(), tokio::sync::Mutex::default());
        Committer { inner: Arc::new(Inner { coordinator, instance, patience, identity, held, under_way }) }
    }

    /// Commits offsets of partitions that the member holds. Returns once that is durable.
    ///
    /// A partition that is not the member's any more is refused, and so is all of it for a member that was removed: whoever holds the
    /// partition now goes on at what was committed before. Tried again up to `ClientConfig::api_timeout` where that may help.
    ///
    /// # Errors
    /// The first partition's that failed; others may have been committed. `StaleMemberEpoch`, `UnknownMemberId`, `FencedInstanceId`: the
    /// partitions are lost, and what was processed of them since the last commit will be processed again, elsewhere.
    pub async fn commit(&self, offsets: impl IntoIterator<Item = (TopicPartition, CommitOffset)>) -> Result<(), Error> {
        let mut left: BTreeMap<TopicPartition, CommitOffset> = offsets.into_iter().collect();
        if left.is_empty() {
            return Ok(());
        }
        let deadline = Instant::now() + self.inner.patience;
        let _under_way = self.inner.under_way.lock().await;
        let (mut failures, mut first) = (0, None);
        loop {
            let identity = self.identity().clone();
            let (again, error) = match self.attempt(&identity, &left, deadline).await {
                Ok(Attempt::Done) => return first.map_or(Ok(()), Err),
                Ok(Attempt::Failed { again, error }) => (again, error),
                // The member was told of another epoch meanwhile, and may still hold what it commits.
                Err(error) if error.code == Some(ErrorCode::StaleMemberEpoch) && *self.identity() != identity => {
                    continue;
                }
                Err(error) => return Err(first.unwrap_or(error)),
            };
            failures += 1;
            left.retain(|partition, _| again.contains(partition));
            let pause = self.inner.coordinator.backoff(&error, failures);
            if left.is_empty() || Instant::now() + pause >= deadline {
                return Err(first.unwrap_or(error));
            }
            if !error.retriable {
                first.get_or_insert(error);
            }
            sleep(pause).await;
        }
    }

    async fn attempt(
        &self,
        identity: &Identity,
        offsets: &BTreeMap<TopicPartition, CommitOffset>,
        deadline: Instant,
    ) -> Result<Attempt, Error> {
        if identity.epoch <= 0 {
            return Err(Error::new(ErrorCode::UnknownMemberId, "the consumer is no member of its group now"));
        }
        let mut request = v1::CommitOffsetsRequest {
            group: self.inner.coordinator.group().to_owned(),
            member: identity.member.clone(),
            epoch: identity.epoch,
            instance: self.inner.instance.clone(),
            offsets: Vec::new(),
        };
        let (mut asked, mut refused) = (Vec::new(), None);
        for (partition, offset) in offsets {
            let Some(Held { id, .. }) = self.held().get(partition).copied() else {
                let message = format!("{partition} is not this member's any more; nothing of it was committed");
                refused = Some(Error::new(ErrorCode::StaleMemberEpoch, message));
                continue;
            };
            asked.push((partition, id, offset));
            request.offsets.push(v1::OffsetToCommit {
                partition: Some(wire(id)),
                offset: offset.offset.0,
                leader_epoch: offset.leader_epoch.map(|epoch| epoch.0),
                metadata: offset.metadata.clone(),
            });
        }
        let outcomes = if asked.is_empty() {
            Vec::new()
        } else {
            let call = |mut groups: super::GroupsChannel| {
                let request = request.clone();
                async move { answer(groups.commit_offsets(request).await) }
            };
            self.inner.coordinator.call(deadline, call).await?.outcomes
        };
        if outcomes.len() != asked.len() {
            return Err(Error::new(ErrorCode::UnknownServerError, "the coordinator answered for other partitions"));
        }
        let mut again = Vec::new();
        for ((partition, id, offset), outcome) in asked.into_iter().zip(outcomes) {
            if outcome.error.is_empty() {
                let mut held = self.held();
                if let Some(held) = held.get_mut(partition).filter(|held| held.id == id) {
                    held.committed = Some(offset.offset);
                }
                continue;
            }
            let code = ErrorCode::from_name(&outcome.error).unwrap_or(ErrorCode::UnknownServerError);
            if code.retriable() {
                again.push(partition.clone());
            }
            let error = Error::new(code, format!("{partition} was not committed: {}", outcome.error));
            if refused.as_ref().is_none_or(|refused| refused.retriable) {
                refused = Some(error);
            }
        }
        Ok(refused.map_or(Attempt::Done, |error| Attempt::Failed { again, error }))
    }

    /// Those of `positions` that are not committed yet, as far as is known.
    pub(crate) fn news(
        &self,
        mut positions: BTreeMap<TopicPartition, CommitOffset>,
    ) -> BTreeMap<TopicPartition, CommitOffset> {
        let held = self.held();
        positions.retain(|partition, position| {
            held.get(partition).is_some_and(|held| held.committed != Some(position.offset))
        });
        positions
    }

    pub(super) fn hold(&self, partition: TopicPartition, id: PartitionId, committed: Option<Offset>) {
        self.held().insert(partition, Held { id, committed });
    }

    pub(super) fn let_go(&self, partition: &TopicPartition) {
        self.held().remove(partition);
    }

    pub(super) fn identify(&self, member: &str, epoch: i32) {
        *self.identity() = Identity { member: member.to_owned(), epoch };
    }

    pub(super) fn identity(&self) -> MutexGuard<'_, Identity> {
        self.inner.identity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<TopicPartition, Held>> {
        self.inner.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
