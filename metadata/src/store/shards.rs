//! Coordinator shards: who owns one, and what its owner commits (rules O1, O3).
//!
//! What a shard decides is `core`'s. Here a commit is held to three keys: the owner's session, the shard, and the shard's sequence.

mod batch;

use super::transition::{Broken, Guard, Transition};
use super::{Outcome, Session, Store, StoreError, Versioned, codec};
use crate::keys::{Key, ShardKind};
use crate::kv::{Compare, Revision, Write};
use bytes::Bytes;
use millpond_core::records::{Leader, ShardRecord};
use std::collections::BTreeMap;

pub use batch::{ShardBatch, ShardWrite};

/// A shard that this process owns, and the commit it is at. Not to be cloned: one task writes.
#[derive(Debug, PartialEq, Eq)]
pub struct HeldShard {
    kind: ShardKind,
    shard: u32,
    coord_epoch: u32,
    /// Revision of the shard's key.
    taken: Revision,
    /// Revision of the key of its sequence: what the next commit compares.
    at: Revision,
    /// The number of the last commit.
    seq: u64,
}

impl HeldShard {
    /// What it coordinates.
    #[must_use]
    pub fn kind(&self) -> ShardKind {
        self.kind
    }

    /// Its number.
    #[must_use]
    pub fn shard(&self) -> u32 {
        self.shard
    }

    /// The epoch it is owned in. Rises with each owner.
    #[must_use]
    pub fn coord_epoch(&self) -> u32 {
        self.coord_epoch
    }
}

/// How it ended that a shard was to be taken.
#[derive(Debug, PartialEq, Eq)]
pub enum Takeover {
    /// It is the actor's.
    Taken(HeldShard),
    /// It is the one of another broker, whose session stands.
    Owned(Leader),
    /// Somebody was faster, or the outcome is unknown: call again, which settles it (rule K5).
    Again,
    /// The actor's session is gone (rules B3, K4).
    Fenced,
}

impl Store {
    /// Takes a shard that nobody owns, whose owner's session has ended, or which was the actor's before (rule O3).
    ///
    /// Every commit of an earlier owner that is still under way is void from then on: it compares the shard's key. The actor may
    /// have none under way itself.
    ///
    /// # Errors
    /// As all reads.
    pub async fn take_shard(&self, actor: &Session, kind: ShardKind, shard: u32) -> Result<Takeover, StoreError> {
        let key = self.keys.encode(&Key::Shard { kind, shard });
        let me = Leader { rid: actor.rid, inc: actor.inc };
        let seen = self.shard_owner(kind, shard).await?;
        let mut guards = vec![self.own_session(actor)];
        let owner = seen.as_ref().and_then(|seen| seen.value.owner).filter(|owner| *owner != me);
        if let Some(owner) = owner {
            let session_key = Key::BrokerSession(owner.rid.broker);
            let session = self.read_bytes(&session_key).await?.map_or(Revision::ABSENT, |session| session.revision);
            if session.0 == owner.inc.0 {
                return Ok(Takeover::Owned(owner));
            }
            guards.push(Guard::unmoved(self.keys.encode(&session_key), session));
        }
        guards.push(Guard::unmoved(key.clone(), seen.as_ref().map_or(Revision::ABSENT, |seen| seen.revision)));
        let coord_epoch = seen.map_or(0, |seen| seen.value.coord_epoch) + 1;
        let value = codec::value(&ShardRecord { owner: Some(me), coord_epoch });
        let take = Transition {
            guards,
            writes: vec![
                Write::put(key.clone(), value.clone()),
                Write::put(self.keys.encode(&Key::ShardSeq { kind, shard }), sequence(coord_epoch, 0)),
            ],
            // The incarnation and the epoch are in the value.
            proof: Some((key, value)),
        };
        Ok(match self.run(take).await?.into() {
            Outcome::Committed { revision } => {
                Takeover::Taken(HeldShard { kind, shard, coord_epoch, taken: revision, at: revision, seq: 0 })
            }
            Outcome::Conflict | Outcome::Unknown => Takeover::Again,
            Outcome::Fenced => Takeover::Fenced,
        })
    }

    /// Gives a shard up, so that another broker takes it at once. `Fenced` if it was lost before.
    ///
    /// # Errors
    /// As all reads. If it is not settled, `disown_shard` gives it up, or the end of its owner's session.
    pub async fn release_shard(&self, actor: &Session, held: &HeldShard) -> Result<Outcome, StoreError> {
        self.give_up(actor, self.own_shard(held), held.kind, held.shard, held.coord_epoch).await
    }

    /// Gives up a shard that is the actor's by the store's word, though nobody holds it: its take or its release was not settled, or what
    /// it holds could not be read. None if it is not the actor's.
    ///
    /// What the actor has under way for it, a take or a commit, is void once this is `Committed`. After `Conflict` and `Unknown` call again.
    ///
    /// # Errors
    /// As all reads.
    pub async fn disown_shard(
        &self,
        actor: &Session,
        kind: ShardKind,
        shard: u32,
    ) -> Result<Option<Outcome>, StoreError> {
        let me = Leader { rid: actor.rid, inc: actor.inc };
        let Some(seen) = self.shard_owner(kind, shard).await?.filter(|seen| seen.value.owner == Some(me)) else {
            return Ok(None);
        };
        let unmoved = Guard::unmoved(self.keys.encode(&Key::Shard { kind, shard }), seen.revision);
        Ok(Some(self.give_up(actor, unmoved, kind, shard, seen.value.coord_epoch).await?))
    }

    async fn give_up(
        &self,
        actor: &Session,
        owned: Guard,
        kind: ShardKind,
        shard: u32,
        coord_epoch: u32,
    ) -> Result<Outcome, StoreError> {
        let key = self.keys.encode(&Key::Shard { kind, shard });
        let value = codec::value(&ShardRecord { owner: None, coord_epoch });
        let release = Transition {
            guards: vec![self.own_session(actor), owned],
            writes: vec![Write::put(key.clone(), value.clone())],
            proof: Some((key, value)),
        };
        Ok(self.run(release).await?.into())
    }

    /// Commits a batch of changes of a shard, all or none (rule O1).
    ///
    /// After `Unknown` call again with the same batch and nothing else: the sequence tells whether it was written (rule K5).
    /// `Fenced` means that the shard, or the actor's session, is lost: drop the shard. `Conflict` is never the answer.
    ///
    /// # Errors
    /// `Unavailable`: nothing was written, by this call; after an earlier `Unknown` call again with the same batch.
    /// `Refused`: the batch will never be accepted.
    pub async fn commit_shard(
        &self,
        actor: &Session,
        held: &mut HeldShard,
        batch: &ShardBatch,
    ) -> Result<Outcome, StoreError> {
        let key = self.keys.encode(&Key::ShardSeq { kind: held.kind, shard: held.shard });
        let value = sequence(held.coord_epoch, held.seq + 1);
        let mut writes = batch.writes(&self.keys);
        writes.push(Write::put(key.clone(), value.clone()));
        // Nobody but the owner moves the sequence: if it has moved, by other than this commit, the shard is not the actor's.
        let sequence = Compare::ModRevision { key: key.clone(), is: held.at };
        let commit = Transition {
            guards: vec![
                self.own_session(actor),
                self.own_shard(held),
                Guard { compare: sequence, broken: Broken::Fenced },
            ],
            writes,
            proof: Some((key, value)),
        };
        let outcome = self.run(commit).await?.into();
        if let Outcome::Committed { revision } = outcome {
            held.at = revision;
            held.seq += 1;
        }
        Ok(outcome)
    }

    /// Who owns a shard; none if it was never taken.
    ///
    /// # Errors
    /// As all reads.
    pub async fn shard_owner(&self, kind: ShardKind, shard: u32) -> Result<Option<Versioned<ShardRecord>>, StoreError> {
        self.read(&Key::Shard { kind, shard }).await
    }

    fn own_shard(&self, held: &HeldShard) -> Guard {
        let key = self.keys.encode(&Key::Shard { kind: held.kind, shard: held.shard });
        Guard { compare: Compare::ModRevision { key, is: held.taken }, broken: Broken::Fenced }
    }
}

/// The value of a shard's sequence: no two commits have the same.
fn sequence(coord_epoch: u32, seq: u64) -> Bytes {
    format!("{coord_epoch} {seq}").into()
}

/// Changes by key, the last one of each.
type Changes = BTreeMap<Key, Option<Bytes>>;
