//! Commits of a group's offsets: as whom, for which partitions, one at a time, and again until it is known what became of them.
//!
//! A task of its own carries them out. Whoever commits may look elsewhere and holds up nobody: a listener commits while the application
//! polls, and the application commits while the listener's call waits to be polled.

use super::membership::wire;
use super::rights::{Grant, Held, Identity, Rights, Tenure};
use crate::client::answer;
use crate::coordinator::Coordinator;
use crate::error::Error;
use crate::record::{CommitOffset, TopicPartition};
use crate::transactional::OffsetsOf;
use futures::future::{self, BoxFuture, FutureExt};
use millpond_log::ErrorCode;
use millpond_proto::v1;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

/// Commits offsets of a member's partitions. Cheap to clone; can be used from other tasks.
///
/// One commit is under way at a time, in the order in which they were asked for.
#[derive(Clone, Debug)]
pub struct Committer {
    shared: Arc<Shared>,
    asks: UnboundedSender<Ask>,
}

#[derive(Debug)]
struct Shared {
    coordinator: Coordinator,
    instance: Option<String>,
    patience: Duration,
    rights: Mutex<Rights>,
}

/// Offsets as they were taken down: each with the assignment by which its partition was held then, if it was.
#[derive(Clone, Debug, Default)]
pub(crate) struct TakenDown {
    offsets: BTreeMap<TopicPartition, (CommitOffset, Option<Grant>)>,
}

impl TakenDown {
    pub(crate) fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }

    pub(crate) fn offsets(&self) -> impl Iterator<Item = (&TopicPartition, &CommitOffset)> {
        self.offsets.iter().map(|(partition, (offset, _))| (partition, offset))
    }
}

/// A commit that was asked for. Whoever asked has gone when `done` is closed.
#[derive(Debug)]
struct Ask {
    taken: TakenDown,
    deadline: Instant,
    done: oneshot::Sender<Result<(), Error>>,
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
    /// Must be called inside a Tokio runtime.
    pub(super) fn new(coordinator: Coordinator, instance: Option<String>, patience: Duration) -> Committer {
        let shared = Arc::new(Shared { coordinator, instance, patience, rights: Mutex::default() });
        let (asks, asked) = mpsc::unbounded_channel();
        // Ends with the last of those that ask.
        tokio::spawn(Carrier { shared: Arc::clone(&shared), attempts: 0 }.run(asked));
        Committer { shared, asks }
    }

    /// Commits offsets of partitions that the member holds. The future is ready once that is durable, and waits for nothing that its
    /// task has to do. It is asked for by this call; if the future is dropped, it may be committed or not.
    ///
    /// A partition that is not the member's any more is refused, and so is all of it for a member that was removed: whoever holds the
    /// partition now goes on at what was committed before. One that has come back since this call is another's offset, and refused too.
    /// Tried again up to `ClientConfig::api_timeout` where that may help, the time that commits before it take included.
    ///
    /// # Errors
    /// The first partition's that failed; others may have been committed. `StaleMemberEpoch`, `UnknownMemberId`, `FencedInstanceId`: the
    /// partitions are lost, and what was processed of them since the last commit will be processed again, elsewhere.
    pub fn commit(
        &self,
        offsets: impl IntoIterator<Item = (TopicPartition, CommitOffset)>,
    ) -> BoxFuture<'static, Result<(), Error>> {
        self.commit_taken(self.take_down(offsets))
    }

    /// Takes offsets down: they are committed by the assignments of now, or not at all.
    pub(crate) fn take_down(&self, offsets: impl IntoIterator<Item = (TopicPartition, CommitOffset)>) -> TakenDown {
        let offsets: Vec<(TopicPartition, CommitOffset)> = offsets.into_iter().collect();
        let rights = self.shared.rights();
        let by_now = |(partition, offset): (TopicPartition, CommitOffset)| {
            let grant = rights.grant(&partition);
            (partition, (offset, grant))
        };
        TakenDown { offsets: offsets.into_iter().map(by_now).collect() }
    }

    /// What of it is not committed yet, as far as is known. One that was lost is among it: its commit is refused.
    pub(crate) fn news(&self, mut taken: TakenDown) -> TakenDown {
        let rights = self.shared.rights();
        taken.offsets.retain(|partition, (position, grant)| {
            rights.held_by(*grant, partition).is_none_or(|held| held.committed != Some(position.offset))
        });
        taken
    }

    /// Commits offsets that were taken down, as `commit` does.
    pub(crate) fn commit_taken(&self, taken: TakenDown) -> BoxFuture<'static, Result<(), Error>> {
        if taken.is_empty() {
            return future::ready(Ok(())).boxed();
        }
        let (done, answer) = oneshot::channel();
        let deadline = Instant::now() + self.shared.patience;
        // The task lives as long as this handle, unless the runtime is shut down: then there is no answer.
        let _ = self.asks.send(Ask { taken, deadline, done });
        let committed = async move {
            answer.await.unwrap_or_else(|_| {
                Err(Error::new(ErrorCode::UnknownServerError, "the commit was cut short with its runtime"))
            })
        };
        committed.boxed()
    }

    /// The member and its epoch, for a commit inside a transaction, if it holds all of these partitions.
    ///
    /// # Errors
    /// `StaleMemberEpoch`.
    pub(super) fn offsets_of<'a>(
        &self,
        partitions: impl IntoIterator<Item = &'a TopicPartition>,
    ) -> Result<OffsetsOf, Error> {
        let rights = self.shared.rights();
        if let Some(gone) = partitions.into_iter().find(|partition| rights.held(partition).is_none()) {
            let message = format!("{gone} is not this member's any more; its offset is not to be committed");
            return Err(Error::new(ErrorCode::StaleMemberEpoch, message));
        }
        let Identity { member, epoch } = rights.identity().clone();
        Ok(OffsetsOf { group: self.shared.coordinator.name().to_owned(), member: Some((member, epoch)) })
    }

    pub(super) fn hold(&self, partition: TopicPartition, held: Held, of: Tenure) {
        self.shared.rights().hold(partition, held, of);
    }

    pub(super) fn let_go(&self, partition: &TopicPartition) {
        self.shared.rights().let_go(partition);
    }

    pub(super) fn identify(&self, member: &str, epoch: i32) {
        self.shared.rights().identify(member, epoch);
    }

    /// All partitions are gone; `next` is who it will be.
    pub(super) fn lose(&self, next: &str) {
        self.shared.rights().lose(next);
    }

    /// The membership that partitions are assigned to now.
    pub(super) fn tenure(&self) -> Tenure {
        self.shared.rights().tenure()
    }

    pub(super) fn identity(&self) -> Identity {
        self.shared.rights().identity().clone()
    }
}

impl Shared {
    fn rights(&self) -> MutexGuard<'_, Rights> {
        self.rights.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task that carries commits out, so that none waits for one whose caller looks elsewhere.
struct Carrier {
    shared: Arc<Shared>,
    /// Attempts so far: the coordinator refuses one that was given up and comes after a later one.
    attempts: u64,
}

impl Carrier {
    async fn run(mut self, mut asked: UnboundedReceiver<Ask>) {
        while let Some(Ask { taken, deadline, mut done }) = asked.recv().await {
            let committed = tokio::select! {
                biased;
                // Nobody waits for it, and others do for what comes after it.
                () = done.closed() => continue,
                committed = self.commit(taken, deadline) => committed,
            };
            // Whoever goes away now does not mind.
            let _ = done.send(committed);
        }
    }

    /// Commits, and again until it is known what became of it.
    async fn commit(&mut self, mut left: TakenDown, deadline: Instant) -> Result<(), Error> {
        let (mut failures, mut first) = (0, None);
        loop {
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
            left.offsets.retain(|partition, _| again.contains(partition));
            let pause = self.shared.coordinator.backoff(&error, failures);
            if left.is_empty() || Instant::now() + pause >= deadline {
                return Err(first.unwrap_or(error));
            }
            if !error.retriable {
                first.get_or_insert(error);
            }
            sleep(pause).await;
        }
    }

    fn identity(&self) -> Identity {
        self.shared.rights().identity().clone()
    }

    async fn attempt(&mut self, identity: &Identity, left: &TakenDown, deadline: Instant) -> Result<Attempt, Error> {
        if identity.epoch <= 0 {
            return Err(Error::new(ErrorCode::UnknownMemberId, "the consumer is no member of its group now"));
        }
        self.attempts += 1;
        let mut request = v1::CommitOffsetsRequest {
            group: self.shared.coordinator.name().to_owned(),
            member: identity.member.clone(),
            epoch: identity.epoch,
            instance: self.shared.instance.clone(),
            offsets: Vec::new(),
            // One at a time: the order of attempts is that of their numbers.
            number: Some(self.attempts),
        };
        let (mut asked, mut refused) = (Vec::new(), None);
        for (partition, (offset, grant)) in &left.offsets {
            let Some(Held { id, .. }) = self.shared.rights().held_by(*grant, partition) else {
                let message = format!("{partition} is not this member's any more; nothing of it was committed");
                refused = Some(Error::new(ErrorCode::StaleMemberEpoch, message));
                continue;
            };
            asked.push((partition, *grant, offset));
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
            self.shared.coordinator.call(deadline, call).await?.outcomes
        };
        if outcomes.len() != asked.len() {
            return Err(Error::new(ErrorCode::UnknownServerError, "the coordinator answered for other partitions"));
        }
        let mut again = Vec::new();
        for ((partition, grant, offset), outcome) in asked.into_iter().zip(outcomes) {
            if outcome.error.is_empty() {
                self.shared.rights().committed(grant, partition, offset.offset);
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
}
