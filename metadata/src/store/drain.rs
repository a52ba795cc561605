//! Brokers that are to be left: what they lead, and what they hold, goes elsewhere. And brokers that never come back.

use super::transition::{Guard, Transition};
use super::{Outcome, Session, Store, StoreError, Versioned, codec};
use crate::keys::{Key, Space};
use crate::kv::{Revision, Write};
use millpond_core::loss;
use millpond_core::records::{DiskRecord, DrainRecord, PartitionRecord};
use millpond_log::{BrokerId, PartitionId, WalGen};
use std::collections::BTreeMap;

/// How forgetting a broker ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Forgotten {
    /// Nothing is known of it any more. A disk of it that comes back is refused.
    Done,
    /// It has a session: stop it first.
    Alive,
    /// Partitions still name it.
    Holds(Held),
    /// Another writer was faster, or there was no answer. Call again.
    Again,
    /// The actor's session is gone.
    Fenced,
}

/// The partitions that name a broker, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// All of them.
    pub partitions: Vec<PartitionId>,
    /// Those of them of which nobody else may come back with all that was committed, by the disks on record (rule B4).
    pub last_copies: Vec<PartitionId>,
}

impl Store {
    /// Marks a broker as one to be left. Under the actor's lease the mark ends with its session: so marks itself who stops (rule B7).
    /// A mark that is there already and asks for as much stays.
    ///
    /// # Errors
    /// As all reads.
    pub async fn drain(
        &self,
        actor: &Session,
        broker: BrokerId,
        record: &DrainRecord,
        leased: bool,
    ) -> Result<Outcome, StoreError> {
        let key = self.keys.encode(&Key::BrokerDrain(broker));
        let seen: Option<Versioned<DrainRecord>> = self.read(&Key::BrokerDrain(broker)).await?;
        let lasting = |seen: &&Versioned<DrainRecord>| seen.value == *record || (leased && seen.value.replicas);
        if let Some(seen) = seen.as_ref().filter(lasting) {
            return Ok(Outcome::Committed { revision: seen.revision });
        }
        let value = codec::value(record);
        let base = seen.map_or(Revision::ABSENT, |seen| seen.revision);
        let lease = leased.then_some(actor.lease);
        let mark = Transition {
            guards: vec![self.own_session(actor), Guard::unmoved(key.clone(), base)],
            writes: vec![Write::Put { key: key.clone(), value: value.clone(), lease }],
            proof: Some((key, value)),
        };
        Ok(self.run(mark).await?.into())
    }

    /// Takes the mark away: the broker gets its share again.
    ///
    /// # Errors
    /// As all reads.
    pub async fn undrain(&self, actor: &Session, broker: BrokerId) -> Result<Outcome, StoreError> {
        let key = self.keys.encode(&Key::BrokerDrain(broker));
        let Some(seen) = self.read_bytes(&Key::BrokerDrain(broker)).await? else {
            return Ok(Outcome::Committed { revision: Revision::ABSENT });
        };
        let unmark = Transition {
            guards: vec![self.own_session(actor), Guard::unmoved(key.clone(), seen.revision)],
            writes: vec![Write::delete(&key)],
            proof: None,
        };
        Ok(self.run(unmark).await?.into())
    }

    /// Puts on record that a broker's disk is gone for good, by an operator's word (rule B4): from then on it counts as lost, and is stale
    /// should it come back (rule B1a). Compares that the broker has no session: `Conflict` while it has one.
    ///
    /// Nothing is done where no disk of it is on record. A broker without a session may run all the same, cut off from the store: that it does
    /// not is for the caller to see to.
    ///
    /// # Errors
    /// As all reads.
    pub async fn give_disk_up(&self, actor: &Session, broker: BrokerId) -> Result<Outcome, StoreError> {
        let Some(Versioned { value: seen, revision }) = self.read_disk(broker).await? else {
            return Ok(Outcome::Committed { revision: Revision::ABSENT });
        };
        if seen.wal_gen == WalGen::LOST {
            return Ok(Outcome::Committed { revision });
        }
        let key = self.keys.encode(&Key::BrokerDisk(broker));
        let value = codec::value(&DiskRecord { wal_gen: WalGen::LOST, last_inc: None, ..seen });
        let give_up = Transition {
            guards: vec![
                self.own_session(actor),
                Guard::absent(self.keys.encode(&Key::BrokerSession(broker))),
                Guard::unmoved(key.clone(), revision),
            ],
            writes: vec![Write::put(key.clone(), value.clone())],
            proof: Some((key, value)),
        };
        Ok(self.run(give_up).await?.into())
    }

    /// The partitions that name a broker.
    ///
    /// # Errors
    /// As all reads.
    pub async fn held_by(&self, broker: BrokerId) -> Result<Held, StoreError> {
        let (_, listed) = self.list(&Space::Brokers).await?;
        let mut disks = BTreeMap::new();
        for (key, found) in listed {
            if let Key::BrokerDisk(other) = key {
                let disk: Versioned<DiskRecord> = codec::record(&self.keys.encode(&key), &found.value, found.revision)?;
                disks.insert(other, disk.value.wal_gen);
            }
        }
        disks.insert(broker, WalGen::LOST);
        let (_, listed) = self.list_records::<PartitionRecord>(&Space::Partitions).await?;
        let mut held = Held::default();
        for (key, Versioned { value: record, .. }) in &listed {
            let Key::Partition(partition) = key else { continue };
            let complete = record.isr.iter().chain(&record.elr).any(|rid| rid.broker == broker);
            if complete || record.replicas.contains(&broker) {
                held.partitions.push(*partition);
            }
            if complete && loss::awaited(record, |broker| disks.get(&broker).copied()).is_empty() {
                held.last_copies.push(*partition);
            }
        }
        Ok(held)
    }

    /// Forgets a broker that holds nothing and has no session (rule K6: while a partition names it, its copy may be the last).
    ///
    /// Whoever places a new replica on a broker without a session compares the record that is deleted here, so none comes to it meanwhile.
    ///
    /// # Errors
    /// As all reads.
    pub async fn forget_broker(&self, actor: &Session, broker: BrokerId) -> Result<Forgotten, StoreError> {
        let held = self.held_by(broker).await?;
        if !held.partitions.is_empty() {
            return Ok(Forgotten::Holds(held));
        }
        let keys = [Key::BrokerDisk(broker), Key::BrokerDrain(broker), Key::BrokerPurged(broker)];
        let session = self.keys.encode(&Key::BrokerSession(broker));
        if self.read_bytes(&Key::BrokerSession(broker)).await?.is_some() {
            return Ok(Forgotten::Alive);
        }
        let mut guards = vec![self.own_session(actor), Guard::absent(session)];
        let mut writes = Vec::new();
        for key in keys {
            let revision = self.read_bytes(&key).await?.map(|seen| seen.revision);
            let key = self.keys.encode(&key);
            guards.push(Guard::unmoved(key.clone(), revision.unwrap_or(Revision::ABSENT)));
            writes.extend(revision.map(|_| Write::delete(&key)));
        }
        if writes.is_empty() {
            return Ok(Forgotten::Done);
        }
        Ok(match self.run(Transition { guards, writes, proof: None }).await?.into() {
            Outcome::Committed { .. } => Forgotten::Done,
            Outcome::Conflict | Outcome::Unknown => Forgotten::Again,
            Outcome::Fenced => Forgotten::Fenced,
        })
    }
}
