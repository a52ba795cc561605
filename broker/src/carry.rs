//! Carries changes of partitions' records to the metadata store, elections among them, until each is settled (rules K5, K8). It decides
//! nothing: whoever decided is told what holds, and looks again at the rest.

use crate::broker::Broker;
use futures::future::join_all;
use millpond_core::records::PartitionRecord;
use millpond_log::PartitionId;
use millpond_metadata::kv::Revision;
use millpond_metadata::store::{Election, Outcome, RecordChange, Session, Store, StoreError, Versioned};
use std::future::Future;
use std::time::Duration;

/// Pause before what is not settled is sent again.
const RETRY: Duration = Duration::from_millis(200);

/// Transactions sent at the same time, of 40 partitions each: more only wait in etcd.
const LANES: usize = 4;

/// Under what something is changed: the session, and the control of whoever acts as controller (rules K4, E8).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hand {
    pub(crate) session: Session,
    pub(crate) control: Option<Revision>,
}

/// Why nothing more can be carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Stopped {
    /// The session or the control is gone.
    #[error("another broker acts as controller, or this one lost its session")]
    Fenced,
    /// The store cannot be worked with.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A partition's record as it was written.
pub(crate) type Written = (PartitionId, Versioned<PartitionRecord>);

/// Something that was decided on one revision of a partition's record.
pub(crate) trait Change: Sized + Sync {
    /// Sends changes once; the answers are in order.
    fn send(
        store: &Store,
        hand: Hand,
        changes: &[Self],
    ) -> impl Future<Output = Vec<Result<Outcome, StoreError>>> + Send;

    /// What holds once it is committed.
    fn written(self, revision: Revision) -> Written;
}

impl Change for Election {
    async fn send(store: &Store, hand: Hand, changes: &[Election]) -> Vec<Result<Outcome, StoreError>> {
        store.elect(&hand.session, hand.control, changes).await
    }

    fn written(self, revision: Revision) -> Written {
        (self.partition, Versioned { value: self.next, revision })
    }
}

impl Change for RecordChange {
    async fn send(store: &Store, hand: Hand, changes: &[RecordChange]) -> Vec<Result<Outcome, StoreError>> {
        store.change_records(&hand.session, hand.control, changes).await
    }

    fn written(self, revision: Revision) -> Written {
        (self.partition, Versioned { value: self.next, revision })
    }
}

impl Broker {
    /// Carries changes out; returns those that hold. What is missing was decided on something that has moved since.
    ///
    /// What became of a change may not be known: it is sent again as it is (rule K5), also while the store is out of reach. Dropped,
    /// it leaves changes that may come to hold.
    ///
    /// # Errors
    /// Nothing more can be changed. Some changes may hold.
    pub(crate) async fn carry_out<C: Change>(&self, hand: Hand, mut open: Vec<C>) -> Result<Vec<Written>, Stopped> {
        let store = &self.inner().store;
        let mut written = Vec::new();
        while !open.is_empty() {
            let lane = open.len().div_ceil(LANES);
            let outcomes = join_all(open.chunks(lane).map(|lane| C::send(store, hand, lane))).await;
            let mut again = Vec::new();
            for (change, outcome) in open.into_iter().zip(outcomes.into_iter().flatten()) {
                match outcome {
                    Ok(Outcome::Committed { revision }) => written.push(change.written(revision)),
                    Ok(Outcome::Conflict) => {}
                    Ok(Outcome::Fenced) => return Err(Stopped::Fenced),
                    Ok(Outcome::Unknown) | Err(StoreError::Unavailable(_)) => again.push(change),
                    Err(error) => return Err(error.into()),
                }
            }
            open = again;
            if !open.is_empty() {
                tokio::time::sleep(RETRY).await;
            }
        }
        Ok(written)
    }
}
