//! What an application is told when partitions come and go.

use super::commit::{Committer, TakenDown};
use crate::error::Error;
use crate::record::CommitOffset;
use crate::record::TopicPartition;
use futures::future::{BoxFuture, FutureExt};
use millpond_log::Offset;
use std::collections::BTreeMap;
use std::future::Future;

/// Is told of partitions that come and go. Each method does nothing unless it is written.
///
/// It is called when the application asks the consumer for more, so whatever was handed out before is the application's to account for.
/// Records of partitions that stay go on coming while a call lasts. Calls do not overlap.
pub trait RebalanceListener: Send + 'static {
    /// Partitions were assigned, and are read once this returns.
    fn assigned(&mut self, assigned: &mut Assigned) -> impl Future<Output = ()> + Send {
        let _ = assigned;
        async {}
    }

    /// Partitions are to be given up. They are still this member's until this returns, and nobody else reads them: what was processed
    /// can be committed now. None of their records is handed out any more. Bounded by four fifths of
    /// `GroupConfig::poll_interval_max`: then the call is dropped where it stands, and the partitions are given up.
    fn revoked(&mut self, revoked: &Revoked) -> impl Future<Output = ()> + Send {
        let _ = revoked;
        async {}
    }

    /// Partitions are gone, without a warning: the member was silent or stuck for too long, or somebody else took its identity. Others
    /// may be reading them already; nothing of them can be committed.
    fn lost(&mut self, partitions: &[TopicPartition]) -> impl Future<Output = ()> + Send {
        let _ = partitions;
        async {}
    }
}

/// Hears nothing.
pub(super) struct Unheard;

impl RebalanceListener for Unheard {}

/// Partitions that were assigned, and where they begin.
#[derive(Clone, Debug)]
pub struct Assigned {
    pub(super) starts: BTreeMap<TopicPartition, Option<CommitOffset>>,
}

impl Assigned {
    /// The partitions, in order.
    pub fn partitions(&self) -> impl Iterator<Item = &TopicPartition> {
        self.starts.keys()
    }

    /// Where a partition begins; `None` if the group has committed nothing of it and is to be told where to begin.
    #[must_use]
    pub fn start(&self, partition: &TopicPartition) -> Option<Offset> {
        self.starts.get(partition)?.as_ref().map(|start| start.offset)
    }

    /// Has a partition begin elsewhere, if it is one of them.
    pub fn start_at(&mut self, partition: &TopicPartition, offset: Offset) {
        if let Some(start) = self.starts.get_mut(partition) {
            *start = Some(CommitOffset::at(offset));
        }
    }
}

/// Partitions that are to be given up.
#[derive(Clone, Debug)]
pub struct Revoked {
    pub(super) partitions: Vec<TopicPartition>,
    pub(super) positions: TakenDown,
    pub(super) committer: Committer,
}

impl Revoked {
    /// The partitions, in order.
    #[must_use]
    pub fn partitions(&self) -> &[TopicPartition] {
        &self.partitions
    }

    /// What to commit of each of them of which all that was handed out is processed, as `GroupConsumer::next_commit`. One that was not
    /// read yet is left out.
    pub fn next_commits(&self) -> impl Iterator<Item = (&TopicPartition, &CommitOffset)> {
        self.positions.offsets()
    }

    /// Commits all that was handed out of them: for an application that has processed all of it.
    ///
    /// # Errors
    /// As `Committer::commit`.
    pub async fn commit(&self) -> Result<(), Error> {
        self.committer.commit_taken(self.committer.news(self.positions.clone())).await
    }

    /// Commits these offsets of them: for an application that has processed a part.
    ///
    /// # Errors
    /// As `Committer::commit`.
    pub async fn commit_offsets(
        &self,
        offsets: impl IntoIterator<Item = (TopicPartition, CommitOffset)>,
    ) -> Result<(), Error> {
        self.committer.commit(offsets).await
    }
}

/// A listener of any type.
pub(super) trait Listening: Send {
    fn assigned<'a>(&'a mut self, assigned: &'a mut Assigned) -> BoxFuture<'a, ()>;
    fn revoked<'a>(&'a mut self, revoked: &'a Revoked) -> BoxFuture<'a, ()>;
    fn lost<'a>(&'a mut self, partitions: &'a [TopicPartition]) -> BoxFuture<'a, ()>;
}

impl<L: RebalanceListener> Listening for L {
    fn assigned<'a>(&'a mut self, assigned: &'a mut Assigned) -> BoxFuture<'a, ()> {
        RebalanceListener::assigned(self, assigned).boxed()
    }

    fn revoked<'a>(&'a mut self, revoked: &'a Revoked) -> BoxFuture<'a, ()> {
        RebalanceListener::revoked(self, revoked).boxed()
    }

    fn lost<'a>(&'a mut self, partitions: &'a [TopicPartition]) -> BoxFuture<'a, ()> {
        RebalanceListener::lost(self, partitions).boxed()
    }
}
