//! Carries out the member's orders while the consumer is polled: one at a time, with the listener's word between. Records of partitions
//! that stay are handed out meanwhile.

use super::GroupConsumer;
use super::listener::{Assigned, Revoked};
use super::member::Order;
use super::rights::Held;
use super::starts::Start;
use crate::error::Error;
use crate::record::CommitOffset;
use crate::record::TopicPartition;
use futures::future::{BoxFuture, FutureExt};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::oneshot;
use tokio::time::timeout_at;

/// An order that is being carried out.
pub(super) type Turn = BoxFuture<'static, Turned>;

/// What an order came to.
pub(super) enum Turned {
    Assigned { starts: Vec<Start>, at: BTreeMap<TopicPartition, Option<CommitOffset>> },
    Revoked { partitions: Vec<TopicPartition>, done: oneshot::Sender<()> },
    Lost,
}

impl GroupConsumer {
    /// Does what the member asks for, as far as it can be done now.
    pub(super) fn take_turns(&mut self, context: &mut Context<'_>) {
        while let Poll::Ready(Some(order)) = self.orders.poll_recv(context) {
            self.receive(order);
        }
        loop {
            if let Some(turn) = &mut self.turn {
                let Poll::Ready(turned) = turn.poll_unpin(context) else { return };
                self.turn = None;
                self.turned(turned);
            }
            let Some(order) = self.waiting.pop_front() else { return };
            self.begin(order);
        }
    }

    /// What cannot wait: nothing is handed out any more of what is to be given up, or is lost.
    fn receive(&mut self, order: Order) {
        match &order {
            Order::Assign { .. } | Order::End(_) => {}
            Order::Revoke { partitions, .. } => {
                for partition in partitions {
                    // One that has not come yet cannot be held.
                    if self.reader.pause(partition).is_ok() {
                        self.leaving.insert(partition.clone());
                    }
                }
            }
            Order::Lose => {
                // What the listener was doing about them is void.
                self.turn = None;
                self.waiting.clear();
                for partition in &self.held {
                    self.reader.end(partition);
                    self.committer.let_go(partition);
                }
            }
        }
        self.waiting.push_back(order);
    }

    fn begin(&mut self, order: Order) {
        match order {
            Order::Assign { starts, of } => {
                let at = |start: &Start| (start.partition.clone(), start.at.clone().ok());
                let mut assigned = Assigned { starts: starts.iter().map(at).collect() };
                for start in &starts {
                    self.held.insert(start.partition.clone());
                    let held = Held { id: start.id, committed: start.committed };
                    self.committer.hold(start.partition.clone(), held, of);
                }
                let listener = Arc::clone(&self.listener);
                let turn = async move {
                    listener.lock().await.assigned(&mut assigned).await;
                    Turned::Assigned { starts, at: assigned.starts }
                };
                self.turn = Some(turn.boxed());
            }
            Order::Revoke { partitions, until, done } => {
                if done.is_closed() {
                    return;
                }
                for partition in &partitions {
                    // One that came since the order was received.
                    if self.reader.pause(partition).is_ok() {
                        self.leaving.insert(partition.clone());
                    }
                }
                let giving_up = self.give_up(partitions.clone());
                let turn = async move {
                    match timeout_at(until, giving_up).await {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) => tracing::warn!(%error, "the commit of revoked partitions failed"),
                        Err(_) => tracing::warn!("giving partitions up took too long; they are given up as they are"),
                    }
                    Turned::Revoked { partitions, done }
                };
                self.turn = Some(turn.boxed());
            }
            Order::Lose => {
                let lost: Vec<TopicPartition> = std::mem::take(&mut self.held).into_iter().collect();
                self.leaving.clear();
                self.unread.clear();
                self.unconfirmed.clear();
                if lost.is_empty() {
                    return;
                }
                let listener = Arc::clone(&self.listener);
                let turn = async move {
                    listener.lock().await.lost(&lost).await;
                    Turned::Lost
                };
                self.turn = Some(turn.boxed());
            }
            Order::End(error) => {
                self.errors.push_back(error);
                self.ended = true;
            }
        }
    }

    /// Has the listener give partitions up, and commits what auto commit would.
    pub(super) fn give_up(
        &self,
        partitions: Vec<TopicPartition>,
    ) -> impl Future<Output = Result<(), Error>> + Send + 'static {
        let held = partitions.iter().cloned().collect();
        let committer = self.committer.clone();
        let positions = committer.take_down(self.positions(&held));
        let revoked = Revoked { partitions, positions: positions.clone(), committer: committer.clone() };
        let (listener, commits) = (Arc::clone(&self.listener), self.auto_commit.is_some());
        async move {
            if !revoked.partitions.is_empty() {
                listener.lock().await.revoked(&revoked).await;
            }
            if commits { committer.commit_taken(committer.news(positions)).await } else { Ok(()) }
        }
    }

    pub(super) fn turned(&mut self, turned: Turned) {
        match turned {
            Turned::Assigned { starts, at } => {
                for Start { partition, at: found, .. } in starts {
                    match (at.get(&partition).cloned().flatten(), found) {
                        (Some(CommitOffset { offset, leader_epoch, .. }), _) => {
                            self.reader.begin(partition, offset, leader_epoch);
                        }
                        (None, found) => {
                            self.errors.extend(found.err());
                            self.reader.rest(partition.clone());
                            self.unread.insert(partition);
                        }
                    }
                }
            }
            Turned::Revoked { partitions, done } => {
                for partition in &partitions {
                    self.reader.end(partition);
                    self.committer.let_go(partition);
                    self.held.remove(partition);
                    self.leaving.remove(partition);
                    self.unread.remove(partition);
                }
                // A member that does not wait any more has lost them.
                let _ = done.send(());
            }
            Turned::Lost => {}
        }
    }
}
