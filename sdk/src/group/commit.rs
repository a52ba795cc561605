//! Commits of a group's offsets: as whom, for which partitions, one at a time, and again until it is known what became of them.

use super::membership::wire;
use super::rights::{Held, Identity, Rights, Tenure};
use crate::client::answer;
use crate::coordinator::Coordinator;
use crate::error::Error;
use crate::record::{ConsumerRecord, TopicPartition};
use millpond_log::{ErrorCode, LeaderEpoch, Offset};
use millpond_proto::v1;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
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
    rights: Mutex<Rights>,
    /// Attempts so far: the coordinator refuses one that was given up and comes after a later one.
    attempts: AtomicU64,
    under_way: tokio::sync::Mutex<()>,
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
        let (rights, under_way) = (Mutex::default(), tokio::sync::Mutex::default());
        let attempts = AtomicU64::new(0);
        Committer { inner: Arc::new(Inner { coordinator, instance, patience, rights, attempts, under_way }) }
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
        self.commit_of(self.tenure(), offsets.into_iter().collect()).await
    }

    /// The same, for offsets that were taken down in this membership.
    pub(super) async fn commit_of(
        &self,
        tenure: Tenure,
        mut left: BTreeMap<TopicPartition, CommitOffset>,
    ) -> Result<(), Error> {
        if left.is_empty() {
            return Ok(());
        }
        let deadline = Instant::now() + self.inner.patience;
        let _under_way = self.inner.under_way.lock().await;
        let (mut failures, mut first) = (0, None);
        loop {
            // A partition that came back was another member's meanwhile: what is committed of it now could take it back.
            if self.tenure() != tenure {
                let message = "all partitions were lost meanwhile; what was not committed is processed again";
                return Err(first.unwrap_or_else(|| Error::new(ErrorCode::StaleMemberEpoch, message)));
            }
            let identity = self.identity();
            let (again, error) = match self.attempt(&identity, &left, deadline).await {
                Ok(Attempt::Done) => return first.map_or(Ok(()), Err),
                Ok(Attempt::Failed { again, error }) => (again, error),
                // The member was told of another epoch meanwhile, and may still hold what it commits.
                Err(error) if error.code == Some(ErrorCode::StaleMemberEpoch) && self.identity() != identity => {
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
            group: self.inner.coordinator.name().to_owned(),
            member: identity.member.clone(),
            epoch: identity.epoch,
            instance: self.inner.instance.clone(),
            offsets: Vec::new(),
            // One at a time: the order of attempts is that of their numbers.
            number: Some(1 + self.inner.attempts.fetch_add(1, Ordering::Relaxed)),
        };
        let (mut asked, mut refused) = (Vec::new(), None);
        for (partition, offset) in offsets {
            let Some(Held { id, .. }) = self.rights().held(partition) else {
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
                self.rights().committed(partition, id, offset.offset);
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

    /// Those of `positions` that are not committed yet, as far as is known. One that was lost is among them: its commit is refused.
    pub(crate) fn news(
        &self,
        mut positions: BTreeMap<TopicPartition, CommitOffset>,
    ) -> BTreeMap<TopicPartition, CommitOffset> {
        let rights = self.rights();
        positions.retain(|partition, position| {
            rights.held(partition).is_none_or(|held| held.committed != Some(position.offset))
        });
        positions
    }

    pub(super) fn hold(&self, partition: TopicPartition, held: Held, of: Tenure) {
        self.rights().hold(partition, held, of);
    }

    pub(super) fn let_go(&self, partition: &TopicPartition) {
        self.rights().let_go(partition);
    }

    pub(super) fn identify(&self, member: &str, epoch: i32) {
        self.rights().identify(member, epoch);
    }

    /// All partitions are gone; `next` is who it will be.
    pub(super) fn lose(&self, next: &str) {
        self.rights().lose(next);
    }

    /// The membership that partitions are assigned to now.
    pub(super) fn tenure(&self) -> Tenure {
        self.rights().tenure()
    }

    pub(super) fn identity(&self) -> Identity {
        self.rights().identity().clone()
    }

    fn rights(&self) -> MutexGuard<'_, Rights> {
        self.inner.rights.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
