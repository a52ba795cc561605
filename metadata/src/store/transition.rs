//! Runs one transition, or many in batches, and says how each ended: the rules K3 to K5 and K8 in one place.

use super::{Outcome, Session, Store, StoreError};
use crate::keys::Key;
use crate::kv::{Compare, KvError, Range, Ranged, Revision, TXN_OPS_MAX, Txn, TxnOutcome, Write};
use bytes::Bytes;

/// Most partitions in one transaction (rule K8).
pub(super) const BATCH_PARTITIONS_MAX: usize = 40;

/// Most bytes in one transaction of several partitions (rule K8).
pub(super) const BATCH_BYTES_MAX: usize = 512 << 10;

/// Largest value (rule Z5): larger things live in object storage.
pub(super) const VALUE_BYTES_MAX: usize = 64 << 10;

/// What it means that a comparison failed; the worst comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Broken {
    /// The actor may not act any more.
    Fenced,
    /// The objects to commit are too old (rule G1).
    Expired,
    /// What it was decided on has moved.
    Conflict,
}

/// A comparison, and what its failure means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Guard {
    pub(super) compare: Compare,
    pub(super) broken: Broken,
}

/// One transition: all of it or nothing.
#[derive(Clone, Debug)]
pub(super) struct Transition {
    pub(super) guards: Vec<Guard>,
    pub(super) writes: Vec<Write>,
    /// A key and the value that only this transition puts there: finding it means that the transition happened, which
    /// settles an earlier unknown outcome (rule K5).
    pub(super) proof: Option<(Bytes, Bytes)>,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settled {
    Committed(Revision),
    Broken(Broken),
    Unknown,
}

impl From<Settled> for Outcome {
    fn from(settled: Settled) -> Outcome {
        match settled {
            Settled::Committed(revision) => Outcome::Committed { revision },
            Settled::Broken(Broken::Fenced) => Outcome::Fenced,
            Settled::Broken(Broken::Expired | Broken::Conflict) => Outcome::Conflict,
            Settled::Unknown => Outcome::Unknown,
        }
    }
}

impl Guard {
    pub(super) fn unmoved(key: Bytes, revision: Revision) -> Guard {
        Guard { compare: Compare::ModRevision { key, is: revision }, broken: Broken::Conflict }
    }

    pub(super) fn absent(key: Bytes) -> Guard {
        Guard::unmoved(key, Revision::ABSENT)
    }
}

/// What the failed transaction read of a key.
struct Seen(Vec<Ranged>);

impl Seen {
    fn get(&self, key: &Bytes) -> Option<&crate::kv::KeyValue> {
        self.0.iter().flat_map(|ranged| &ranged.found).find(|kv| kv.key == *key)
    }
}

impl Transition {
    /// Why it did not happen, or that it had happened before; `None` if nothing stands in its way.
    fn judge(&self, seen: &Seen) -> Option<Settled> {
        if let Some((key, value)) = &self.proof
            && let Some(found) = seen.get(key)
            && found.value == *value
            && self.moved(key, seen)
        {
            return Some(Settled::Committed(found.mod_revision));
        }
        let broken = self.guards.iter().filter(|guard| !guard.compare.holds(seen.get(guard.compare.key())));
        broken.map(|guard| guard.broken).min().map(Settled::Broken)
    }

    /// Whether the key is no longer as it was decided on. The unchanged key proves nothing (rule K5), not even when the
    /// transition would put the same value.
    fn moved(&self, key: &Bytes, seen: &Seen) -> bool {
        self.guards.iter().any(|guard| guard.compare.key() == key && !guard.compare.holds(seen.get(key)))
    }
}

/// Several transitions as one transaction.
fn transaction(transitions: &[Transition]) -> Txn {
    let mut txn = Txn::default();
    let mut read = std::collections::BTreeSet::new();
    for transition in transitions {
        for guard in &transition.guards {
            if !txn.compares.contains(&guard.compare) {
                txn.compares.push(guard.compare.clone());
            }
            read.insert(guard.compare.key().clone());
        }
        txn.then.extend(transition.writes.iter().cloned());
        read.extend(transition.proof.iter().map(|(key, _)| key.clone()));
    }
    txn.or_else = read.iter().map(Range::key).collect();
    txn
}

fn fits(transitions: &[Transition]) -> bool {
    let txn = transaction(transitions);
    let ops = txn.compares.len().max(txn.then.len()).max(txn.or_else.len());
    transitions.len() <= BATCH_PARTITIONS_MAX && ops <= TXN_OPS_MAX && txn.size() <= BATCH_BYTES_MAX
}

impl Store {
    /// The guard of rule K4: the actor's own session.
    pub(super) fn own_session(&self, actor: &Session) -> Guard {
        let key = self.keys.encode(&Key::BrokerSession(actor.rid.broker));
        Guard { compare: Compare::ModRevision { key, is: Revision(actor.inc.0) }, broken: Broken::Fenced }
    }

    /// Runs one transition.
    pub(super) async fn run(&self, transition: Transition) -> Result<Settled, StoreError> {
        let seen = match self.attempt(std::slice::from_ref(&transition)).await? {
            Attempt::Settled(settled) => return Ok(settled),
            Attempt::Failed(seen) => seen,
        };
        // A comparison failed in the store, so one fails here, on what the same transaction read.
        Ok(transition.judge(&seen).unwrap_or(Settled::Broken(Broken::Conflict)))
    }

    /// Runs transitions of different partitions in batches; the answers are in their order. A batch of which one member
    /// fails changes nothing, and its other members are retried singly (rule K8).
    pub(super) async fn run_batched(&self, transitions: Vec<Transition>) -> Vec<Result<Settled, StoreError>> {
        let mut answers = Vec::with_capacity(transitions.len());
        let mut rest = transitions.as_slice();
        while !rest.is_empty() {
            let mut count = 1;
            while count < rest.len() && fits(&rest[..=count]) {
                count += 1;
            }
            let (batch, later) = rest.split_at(count);
            rest = later;
            match self.attempt(batch).await {
                Err(error) => answers.extend(batch.iter().map(|_| Err(error.clone()))),
                Ok(Attempt::Settled(settled)) => answers.extend(batch.iter().map(|_| Ok(settled))),
                Ok(Attempt::Failed(seen)) => {
                    for transition in batch {
                        let answer = match transition.judge(&seen) {
                            Some(settled) => Ok(settled),
                            None => self.run(transition.clone()).await,
                        };
                        answers.push(answer);
                    }
                }
            }
        }
        answers
    }

    async fn attempt(&self, transitions: &[Transition]) -> Result<Attempt, StoreError> {
        let txn = transaction(transitions);
        check_values(&txn)?;
        match self.kv.txn(txn).await {
            Ok(TxnOutcome::Succeeded { revision, .. }) => Ok(Attempt::Settled(Settled::Committed(revision))),
            Ok(TxnOutcome::Failed { found, .. }) => Ok(Attempt::Failed(Seen(found))),
            Err(KvError::Unknown(_)) => Ok(Attempt::Settled(Settled::Unknown)),
            // A put under the actor's lease found it ended: the actor is fenced.
            Err(KvError::LeaseNotFound) => Ok(Attempt::Settled(Settled::Broken(Broken::Fenced))),
            Err(error) => Err(error.into()),
        }
    }
}

fn check_values(txn: &Txn) -> Result<(), StoreError> {
    for write in &txn.then {
        if let Write::Put { key, value, .. } = write
            && value.len() >= VALUE_BYTES_MAX
        {
            let reason = format!("a value of {} bytes for {key:?}; below {VALUE_BYTES_MAX}", value.len());
            return Err(StoreError::Refused(reason));
        }
    }
    Ok(())
}

enum Attempt {
    Settled(Settled),
    Failed(Seen),
}
