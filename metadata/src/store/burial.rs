//! Tombstones go once nobody has anything of their topics (rule K6): who says so, and the transaction that removes them.

use super::transition::{Guard, Transition};
use super::{Outcome, Session, Store, StoreError, Versioned, codec};
use crate::keys::{Key, ShardKind, Space};
use crate::kv::{Revision, Write};
use bytes::Bytes;
use millpond_core::coordinators::SHARDS;
use millpond_core::records::{DiskRecord, PurgedRecord, TombstoneRecord};
use millpond_log::{BrokerId, TopicId, WalGen};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Tombstones removed in one transaction: each takes two of its comparisons.
const BURIED_MAX: usize = 50;

/// How it ended that tombstones were to be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Burial {
    /// Those that are gone, by this call or before it.
    pub gone: BTreeSet<TopicId>,
    /// Why those that have to stand longer do so: who has not said yet that nothing of them is left, in order. Empty if none has to.
    pub missing: Vec<Missing>,
    /// What stopped it before the end, if anything did: call again later, which settles it (rule K5).
    pub stopped: Option<Outcome>,
}

/// Who may have something of a deleted topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Missing {
    /// A broker, on the disk it has now: it is down, or has frames yet.
    Broker(BrokerId),
    /// A coordinator shard of groups: nobody owns it, or its owner has offsets yet.
    Groups(u32),
}

impl fmt::Display for Missing {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Missing::Broker(broker) => write!(to, "broker {broker}"),
            Missing::Groups(shard) => write!(to, "shard {shard} of groups"),
        }
    }
}

/// Up to which revision each of those who may have something of a deleted topic has said that it has not.
struct Said(BTreeMap<Missing, Revision>);

impl Said {
    /// Those who have not said it of a topic whose tombstone was laid at `laid`.
    fn missing(&self, laid: Revision) -> impl Iterator<Item = Missing> + '_ {
        self.0.iter().filter(move |(_, said)| **said < laid).map(|(who, _)| *who)
    }
}

impl Store {
    /// Revision of the last removal of tombstones; `Revision::ABSENT` if there was none. A part of a new topic's identity.
    ///
    /// # Errors
    /// As all reads.
    pub async fn buried(&self) -> Result<Revision, StoreError> {
        Ok(self.read_bytes(&Key::Buried).await?.map_or(Revision::ABSENT, |seen| seen.revision))
    }

    /// Puts on record that the actor's disk has no frame of any topic whose tombstone was laid at or before `seen`, durably, and that none
    /// will come to it.
    ///
    /// # Errors
    /// As all reads.
    pub async fn note_purged(&self, actor: &Session, seen: Revision) -> Result<Outcome, StoreError> {
        let key = Key::BrokerPurged(actor.rid.broker);
        let before = self.read_bytes(&key).await?.map_or(Revision::ABSENT, |before| before.revision);
        let (key, value) =
            (self.keys.encode(&key), codec::value(&PurgedRecord { wal_gen: actor.rid.wal_gen, revision: seen.0 }));
        let note = Transition {
            guards: vec![self.own_session(actor), Guard::unmoved(key.clone(), before)],
            writes: vec![Write::put(key.clone(), value.clone())],
            proof: Some((key, value)),
        };
        Ok(self.run(note).await?.into())
    }

    /// Removes the tombstones of these topics, except where a record of the topic is there yet, or where somebody has not said that
    /// nothing of it is left: every broker that is known, of the disk it has now, and every shard of groups.
    ///
    /// Each is compared at the revision it was laid at, with the absence of its topic.
    ///
    /// # Errors
    /// As all reads.
    pub async fn bury(&self, actor: &Session, topics: &[TopicId]) -> Result<Burial, StoreError> {
        let mut burial = Burial { gone: BTreeSet::new(), missing: Vec::new(), stopped: None };
        let mut laid = Vec::new();
        for &topic in topics {
            // Absence of the topic is compared as well, and for good: its id is not used again.
            match self.tombstone(topic).await? {
                Some(tombstone) if self.topic(topic).await?.is_none() => laid.push((topic, tombstone)),
                Some(_) => {}
                None => drop(burial.gone.insert(topic)),
            }
        }
        // After the tombstones: what is said is said of all that were laid before.
        let said = self.said().await?;
        let (mut due, mut missing) = (Vec::new(), BTreeSet::new());
        for (topic, tombstone) in laid {
            if said.missing(tombstone.revision).next().is_none() {
                due.push((topic, tombstone));
            } else {
                missing.extend(said.missing(tombstone.revision));
            }
        }
        burial.missing.extend(missing);
        for batch in due.chunks(BURIED_MAX) {
            match self.remove_tombstones(actor, batch).await? {
                Outcome::Committed { .. } => burial.gone.extend(batch.iter().map(|(topic, _)| *topic)),
                stopped => {
                    burial.stopped = Some(stopped);
                    break;
                }
            }
        }
        Ok(burial)
    }

    async fn remove_tombstones(
        &self,
        actor: &Session,
        batch: &[(TopicId, Versioned<TombstoneRecord>)],
    ) -> Result<Outcome, StoreError> {
        let key = self.keys.encode(&Key::Buried);
        let before = self.read_bytes(&Key::Buried).await?;
        let count: u64 = before.as_ref().map_or(Ok(0), |before| codec::text(&key, &before.value))?;
        let count = count + batch.len() as u64;
        let mut removal = Transition {
            guards: vec![
                self.own_session(actor),
                Guard::unmoved(key.clone(), before.map_or(Revision::ABSENT, |before| before.revision)),
            ],
            writes: vec![Write::put(key, count.to_string())],
            proof: None,
        };
        for (topic, tombstone) in batch {
            let key = self.keys.encode(&Key::Tombstone(*topic));
            removal.guards.push(Guard::unmoved(key.clone(), tombstone.revision));
            removal.guards.push(Guard::absent(self.keys.encode(&Key::Topic(*topic))));
            removal.writes.push(Write::delete(&key));
        }
        Ok(self.run(removal).await?.into())
    }

    /// What everybody says who may have something of a deleted topic.
    async fn said(&self) -> Result<Said, StoreError> {
        let (_, brokers) = self.list(&Space::Brokers).await?;
        let mut disks: BTreeMap<BrokerId, WalGen> = BTreeMap::new();
        let mut purged: BTreeMap<BrokerId, PurgedRecord> = BTreeMap::new();
        for (key, found) in brokers {
            match key {
                Key::BrokerDisk(broker) => {
                    disks.insert(broker, self.record_of::<DiskRecord>(&key, &found)?.wal_gen);
                }
                Key::BrokerPurged(broker) => drop(purged.insert(broker, self.record_of(&key, &found)?)),
                _ => {}
            }
        }
        let of_disk = |(broker, wal_gen): (BrokerId, WalGen)| {
            // What another disk said under this broker's id says nothing of this one (rule K2).
            let said = purged.get(&broker).filter(|purged| purged.wal_gen == wal_gen);
            (Missing::Broker(broker), said.map_or(Revision::ABSENT, |said| Revision(said.revision)))
        };
        let mut said: BTreeMap<Missing, Revision> = disks.into_iter().map(of_disk).collect();
        said.extend((0..SHARDS).map(|shard| (Missing::Groups(shard), Revision::ABSENT)));
        for (key, found) in self.list(&Space::ShardsPurged).await?.1 {
            if let Key::ShardPurged { kind: ShardKind::Group, shard } = key {
                let revision = codec::text(&self.keys.encode(&key), &found.value)?;
                said.insert(Missing::Groups(shard), Revision(revision));
            }
        }
        Ok(Said(said))
    }

    fn record_of<T: serde::de::DeserializeOwned>(&self, key: &Key, found: &Versioned<Bytes>) -> Result<T, StoreError> {
        Ok(codec::record(&self.keys.encode(key), &found.value, found.revision)?.value)
    }
}
