//! Answers what coordinators and leaders on other brokers ask of this one, in the order in which it comes (rules X3, X5).

use crate::api::ApiError;
use crate::broker::Broker;
use crate::coordinators::Unanswered;
use crate::marks::{Asked, Mark, MarkCall, MarkPlace, Marked};
use crate::partitions::messages::{Ending, ShardMsg};
use crate::replicas::shard_of;
use futures::future::{BoxFuture, join_all};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use millpond_core::coordinators;
use millpond_core::groups::{Answer, Request, TxnEnd};
use millpond_core::replica::Appended;
use millpond_log::transactions::{Marker, TxnOutcome};
use millpond_log::{Batch, ErrorCode, LeaderEpoch, PartitionId, TimestampMs};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

/// Questions that are answered at the same time. More wait with those who ask.
const UNDER_WAY_MAX: usize = 1024;

/// How long markers are waited for. What is not done by then is asked for again.
const MARKED_WITHIN: Duration = Duration::from_secs(1);

/// Answers other brokers.
pub(crate) struct Desk {
    pub(crate) broker: Broker,
    pub(crate) inbox: mpsc::Receiver<Asked>,
}

impl Desk {
    /// Answers until nobody can ask any more.
    pub(crate) async fn run(mut self) {
        let mut under_way: FuturesUnordered<BoxFuture<'static, ()>> = FuturesUnordered::new();
        loop {
            tokio::select! {
                asked = self.inbox.recv(), if under_way.len() < UNDER_WAY_MAX => match asked {
                    Some(asked) => under_way.push(self.answer(asked)),
                    None => return,
                },
                Some(()) = under_way.next() => {}
            }
        }
    }

    fn answer(&self, asked: Asked) -> BoxFuture<'static, ()> {
        // Whoever asked may be gone.
        match asked {
            Asked::Mark(call, reply) => {
                let marked = self.broker.mark_here(call);
                async move {
                    let _ = reply.send(marked.await);
                }
                .boxed()
            }
            Asked::Confirm(confirm, reply) => {
                let broker = self.broker.clone();
                async move {
                    let _ = reply.send(broker.confirm_here(confirm).await);
                }
                .boxed()
            }
        }
    }
}

/// Resolves when a marker is committed, or the offsets of a group are settled.
type Done = BoxFuture<'static, Result<(), ErrorCode>>;

impl Broker {
    /// Takes markers to what this broker leads and coordinates: in order of the calls, before it returns. The future tells what became
    /// of them.
    pub(crate) fn mark_here(&self, call: MarkCall) -> BoxFuture<'static, Marked> {
        let noted = self.inner().last_calls.note(&call);
        let until = Instant::now() + MARKED_WITHIN;
        let begun = call.marks.into_iter().map(|mark| match noted {
            Ok(()) => self.begin(mark),
            Err(code) => std::future::ready(Err(code)).boxed(),
        });
        let in_time =
            |done: Done| async move { timeout_at(until, done).await.unwrap_or(Err(ErrorCode::RequestTimedOut)) };
        join_all(begun.map(in_time).collect::<Vec<_>>()).boxed()
    }

    fn begin(&self, Mark { marker, place }: Mark) -> Done {
        match place {
            MarkPlace::Partition(partition, office) => self.end_in_partition(partition, office, marker),
            MarkPlace::Group(group, office) => self.end_in_group(&group, office, &marker),
        }
    }

    fn end_in_partition(&self, partition: PartitionId, office: LeaderEpoch, marker: Marker) -> Done {
        // Like any append it has its room before it has an offset.
        let size = Batch::of_marker(&marker, TimestampMs(0)).size();
        let Some(room) = self.inner().wal.reserve(size) else {
            return std::future::ready(Err(ErrorCode::KafkaStorageError)).boxed();
        };
        let (reply, answer) = oneshot::channel::<Result<Appended, ApiError>>();
        let ending = Ending { partition, office, marker, first: None, room, reply };
        // A shard that is gone ends the broker, and drops the reply.
        let _ = shard_of(partition, &self.inner().shards).send(ShardMsg::EndTransaction(ending));
        async move {
            match answer.await {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(error)) => Err(error.code),
                Err(_) => Err(ErrorCode::NotLeaderOrFollower),
            }
        }
        .boxed()
    }

    fn end_in_group(&self, group: &str, office: u32, marker: &Marker) -> Done {
        let Marker { producer, epoch, raised, end } = *marker;
        let (coordinator, commit) = (end.coordinator_epoch, end.outcome == TxnOutcome::Commit);
        let end = Request::EndTxn(TxnEnd { producer, epoch, raised, coordinator, commit });
        let groups = &self.inner().coordinators.groups;
        match groups.begin_in(coordinators::shard_of(group), office, end) {
            Ok(answer) => async move {
                match answer.await {
                    Ok(Answer::EndTxn) => Ok(()),
                    Ok(other) => unreachable!("an end is not answered by {other:?}"),
                    Err(_) => Err(ErrorCode::NotCoordinator),
                }
            }
            .boxed(),
            Err(Unanswered::Loading) => std::future::ready(Err(ErrorCode::CoordinatorLoadInProgress)).boxed(),
            Err(_) => std::future::ready(Err(ErrorCode::NotCoordinator)).boxed(),
        }
    }
}
