//! Carries what leaders propose about their partitions' records to the metadata store, and the outcome back (rules I3, K5).
//!
//! It decides nothing: a proposal is sent as it is until its outcome is known.

use crate::alive::Alive;
use crate::partitions::messages::{Proposed, ShardMsg};
use crate::session::SessionHandle;
use futures::future::{join, join_all};
use millpond_core::records::{Leader, PartitionRecord};
use millpond_core::replica::Input;
use millpond_log::LeaderEpoch;
use millpond_metadata::kv::Revision;
use millpond_metadata::store::{Election, Outcome, RecordChange, Session, Store, StoreError, Versioned};
use std::time::Duration;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_util::sync::CancellationToken;

/// Proposals taken from the queue at once: one transaction holds no more (rule K8).
const BATCH_MAX: usize = 40;

/// Pause between tries while the metadata store cannot be used, or does not say what became of a proposal.
const RETRY: Duration = Duration::from_millis(200);

/// Carries proposals until `shutdown`.
pub(crate) async fn run(
    store: Store,
    session: SessionHandle,
    alive: Alive,
    mut inbox: UnboundedReceiver<Proposed>,
    shutdown: CancellationToken,
) {
    let mut open = Vec::new();
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            count = inbox.recv_many(&mut open, BATCH_MAX), if open.is_empty() => if count == 0 { return },
            () = tokio::time::sleep(RETRY), if !open.is_empty() => {}
        }
        // Without a session this broker leads nothing, so nobody waits for these any more (rule B3).
        let Some(session) = session.get() else {
            open.clear();
            continue;
        };
        let tries = std::mem::take(&mut open);
        open = carry(&store, &session, &alive, tries).await;
    }
}

/// Tries each proposal once; returns those whose outcome is not known.
async fn carry(store: &Store, session: &Session, alive: &Alive, tries: Vec<Proposed>) -> Vec<Proposed> {
    // A leader that hands over proposes an election; everything else keeps its epoch (rule E4).
    let (transfers, tries): (Vec<Proposed>, Vec<Proposed>) =
        tries.into_iter().partition(|proposed| proposed.proposal.heir.is_some());
    let elections: Vec<Election> = transfers.iter().map(election).collect();
    let changes: Vec<RecordChange> = tries.iter().map(change).collect();
    let (elected, changed) =
        join(store.elect(session, None, &elections), store.change_records(session, None, &changes)).await;
    let settle = |(proposed, outcome): (Proposed, Result<Outcome, StoreError>)| async move {
        match outcome {
            Ok(Outcome::Committed { revision }) => {
                let record = proposed.proposal.record.clone();
                tell(&proposed, alive, &Versioned { value: record, revision });
                None
            }
            // The session is gone, and this office with it.
            Ok(Outcome::Fenced) => None,
            Ok(Outcome::Conflict) => conflicted(store, alive, proposed).await,
            Ok(Outcome::Unknown) => Some(proposed),
            Err(error) => {
                tracing::warn!(partition = %proposed.partition, %error, "an ISR change waits for the metadata store");
                Some(proposed)
            }
        }
    };
    join_all(transfers.into_iter().zip(elected).chain(tries.into_iter().zip(changed)).map(settle))
        .await
        .into_iter()
        .flatten()
        .collect()
}

/// A compared key has moved for good: what holds now is read and told first, then that this proposal never will (rule K5).
async fn conflicted(store: &Store, alive: &Alive, proposed: Proposed) -> Option<Proposed> {
    match store.partition(proposed.partition).await {
        Ok(Some(seen)) => tell(&proposed, alive, &seen),
        // Its topic is being deleted: nobody leads it any more.
        Ok(None) => return None,
        Err(error) => {
            tracing::warn!(partition = %proposed.partition, %error, "a partition's record cannot be read yet");
            return Some(proposed);
        }
    }
    let failed = Input::ProposalFailed { base: proposed.proposal.base };
    // A shard that is gone ends the broker.
    let _ = proposed.shard.send(ShardMsg::Step { partition: proposed.partition, input: failed });
    None
}

fn tell(proposed: &Proposed, alive: &Alive, seen: &Versioned<PartitionRecord>) {
    alive.assign(&proposed.shard, proposed.partition, seen);
}

/// TXN-ELECT of the heir: its session is compared, and this broker's own (rule E9).
fn election(proposed: &Proposed) -> Election {
    let Proposed { partition, proposal, .. } = proposed;
    let next = proposal.record.clone();
    let epoch = LeaderEpoch(next.epoch.0 - 1);
    Election { partition: *partition, base: Revision(proposal.base), epoch, next }
}

fn change(proposed: &Proposed) -> RecordChange {
    let Proposed { partition, proposal, .. } = proposed;
    RecordChange {
        partition: *partition,
        base: Revision(proposal.base),
        epoch: proposal.record.epoch,
        next: proposal.record.clone(),
        joining: proposal.joining.map(|live| Leader { rid: live.rid, inc: live.inc }),
    }
}
