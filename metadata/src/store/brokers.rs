//! The life of a broker's registration: rules B1, B1a, E1a. Who keeps the lease alive, and when, is the broker's affair.

use super::transition::{Guard, Settled, Transition};
use super::{Outcome, Session, Store, StoreError, Versioned, codec};
use crate::keys::{Key, Space};
use crate::kv::{Interval, KvError, Range, Revision, Write};
use bytes::Bytes;
use millpond_core::records::{DiskRecord, SessionRecord};
use millpond_log::{BrokerId, Incarnation, Lsn, Rid, WalGen};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Pause before a watch that ended is begun again.
const WATCH_AGAIN: Duration = Duration::from_millis(200);

/// What a broker registers with, after its WAL was recovered.
#[derive(Clone, Debug)]
pub struct Registration {
    /// Its id.
    pub broker: BrokerId,
    /// What the others see of it.
    pub record: SessionRecord,
    /// The incarnation its WAL carries; 0 if its `wal_gen` never registered.
    pub disk_inc: Incarnation,
    /// A position its WAL is durable up to.
    pub durable_lsn: Lsn,
    /// TTL of its lease.
    pub ttl: Duration,
}

/// How a registration ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Registered {
    /// Registered. Write `session.inc` into the WAL and sync it, then call `refresh_broker` with the revision
    /// `session.inc`; serve only after that (rule B1a).
    Session(Session),
    /// The disk is not the one that registered last: an old snapshot, or a swapped disk. Take rule B4.
    StaleDisk {
        /// What does not fit.
        reason: String,
    },
    /// The metadata is older than the disk: it was restored, or is another cluster's. Stop (rule K7).
    StaleMetadata {
        /// What does not fit.
        reason: String,
    },
    /// A live session under this id runs on another WAL. Wait until its lease has ended (rule B1).
    Occupied {
        /// The WAL of that session.
        wal_gen: WalGen,
    },
    /// Another registration was faster. Call again.
    Conflict,
    /// No answer. Call again: a session that did come to be has the same `wal_gen`, and is replaced.
    Unknown,
}

/// The brokers that take new replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosts {
    /// Those with a session; the revision of each is its incarnation.
    pub live: BTreeMap<BrokerId, Versioned<SessionRecord>>,
    /// Those without one that may come back: they registered, and were neither forgotten nor given up. With the revision of their disk's record.
    pub absent: BTreeMap<BrokerId, Revision>,
}

impl Store {
    /// Hands out a broker id that no broker ever had, for one that has none yet. Whoever gets it keeps it with its data.
    ///
    /// Ids that operators chose are skipped once such a broker has registered. A lost answer or a crash wastes an id.
    ///
    /// # Errors
    /// - `Unavailable`: an id may have been wasted. Call again.
    /// - `Refused`: all ids are used up.
    pub async fn allocate_broker_id(&self) -> Result<BrokerId, StoreError> {
        let key = self.keys.encode(&Key::BrokerIds);
        loop {
            let seen = self.read_bytes(&Key::BrokerIds).await?;
            let next: u32 = seen.as_ref().map_or(Ok(0), |seen| codec::text(&key, &seen.value))?;
            let free = self.first_unregistered(BrokerId(next)).await?;
            // Kafka's clients know node ids as 31 bits.
            let after = free.0.checked_add(1).filter(|&after| i32::try_from(after).is_ok());
            let after = after.ok_or_else(|| StoreError::Refused("all broker ids are used up".to_owned()))?;
            let take = Transition {
                guards: vec![
                    Guard::unmoved(key.clone(), seen.map_or(Revision::ABSENT, |seen| seen.revision)),
                    Guard::absent(self.keys.encode(&Key::BrokerDisk(free))),
                ],
                writes: vec![Write::put(key.clone(), after.to_string())],
                // Somebody else's id leaves the same value.
                proof: None,
            };
            match self.run(take).await? {
                Settled::Committed(_) => return Ok(free),
                // Somebody took it. Or it was ours: then it is nobody's, and the next is as good.
                Settled::Broken(_) | Settled::Unknown => {}
            }
        }
    }

    async fn first_unregistered(&self, from: BrokerId) -> Result<BrokerId, StoreError> {
        let mut id = from;
        while self.read_disk(id).await?.is_some() {
            id = BrokerId(id.0 + 1);
        }
        Ok(id)
    }

    /// What stands against the disk of a registration, by what is known now: `StaleDisk` or `StaleMetadata`. None if it may register.
    ///
    /// # Errors
    /// As all reads.
    pub async fn examine_disk(&self, registration: &Registration) -> Result<Option<Registered>, StoreError> {
        Ok(examine_disk(registration, self.read_disk(registration.broker).await?.as_ref()))
    }

    /// Registers a broker: its session under a new lease, and the state of its disk (rules B1, B1a).
    ///
    /// The incarnation is the revision of the transaction. The stored disk record stays unconfirmed until the first
    /// `refresh_broker`, so that a crash between the registration and the WAL's own note of it does not make a good disk
    /// look like an old one: until then the disk may carry the new incarnation or the one it registered with. Nothing
    /// was acknowledged under the new one yet.
    ///
    /// # Errors
    /// As all reads. A lease that was granted and not used ends by itself.
    pub async fn register_broker(&self, registration: &Registration) -> Result<Registered, StoreError> {
        let session_key = self.keys.encode(&Key::BrokerSession(registration.broker));
        let disk_key = self.keys.encode(&Key::BrokerDisk(registration.broker));
        let session = self.read::<SessionRecord>(&Key::BrokerSession(registration.broker)).await?;
        let disk = self.read_disk(registration.broker).await?;
        if let Some(refusal) = examine_disk(registration, disk.as_ref()) {
            return Ok(refusal);
        }
        let wal_gen = registration.record.wal_gen;
        if let Some(other) = session.as_ref().map(|session| session.value.wal_gen).filter(|&other| other != wal_gen) {
            return Ok(Registered::Occupied { wal_gen: other });
        }
        let lease = self.kv.grant(registration.ttl).await?;
        let disk_record = DiskRecord {
            wal_gen,
            last_inc: None,
            previous_inc: registration.disk_inc,
            durable_lsn: registration.durable_lsn,
            internal: registration.record.internal.clone(),
        };
        let registering = Transition {
            guards: vec![
                Guard::unmoved(session_key.clone(), session.map_or(Revision::ABSENT, |session| session.revision)),
                Guard::unmoved(disk_key.clone(), disk.map_or(Revision::ABSENT, |disk| disk.revision)),
            ],
            writes: vec![
                Write::Put { key: session_key, value: codec::value(&registration.record), lease: Some(lease.id) },
                Write::put(disk_key, codec::value(&disk_record)),
            ],
            // An earlier session of this broker has the same value, so the value proves nothing.
            proof: None,
        };
        Ok(match self.run(registering).await? {
            Settled::Committed(revision) => Registered::Session(Session {
                rid: Rid { broker: registration.broker, wal_gen },
                inc: Incarnation(revision.0),
                lease: lease.id,
                ttl: lease.ttl,
            }),
            Settled::Broken(_) => Registered::Conflict,
            Settled::Unknown => Registered::Unknown,
        })
    }

    /// Confirms that the WAL carries the session's incarnation, and raises the position it is durable up to (rule B1a).
    ///
    /// `seen` is the revision of the broker's disk record: that of the registration, then that of the last refresh. After
    /// a `Conflict` read it with `read_disk`. `internal` is where its internal door is, `host:port`, as it registered.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn refresh_broker(
        &self,
        session: &Session,
        seen: Revision,
        durable_lsn: Lsn,
        internal: Option<&str>,
    ) -> Result<Outcome, StoreError> {
        let key = self.keys.encode(&Key::BrokerDisk(session.rid.broker));
        let record = DiskRecord {
            wal_gen: session.rid.wal_gen,
            last_inc: Some(session.inc),
            previous_inc: session.inc,
            durable_lsn,
            internal: internal.map(str::to_owned),
        };
        let value = codec::value(&record);
        let refresh = Transition {
            guards: vec![self.own_session(session), Guard::unmoved(key.clone(), seen)],
            writes: vec![Write::put(key.clone(), value.clone())],
            proof: Some((key, value)),
        };
        Ok(self.run(refresh).await?.into())
    }

    /// What is known of a broker's disk.
    ///
    /// # Errors
    /// As all reads.
    pub async fn read_disk(&self, broker: BrokerId) -> Result<Option<Versioned<DiskRecord>>, StoreError> {
        self.read(&Key::BrokerDisk(broker)).await
    }

    /// The sessions that stand, by broker; the revision of each is its incarnation.
    ///
    /// # Errors
    /// As all reads.
    pub async fn sessions(&self) -> Result<BTreeMap<BrokerId, Versioned<SessionRecord>>, StoreError> {
        let (_, listed) = self.list(&Space::Brokers).await?;
        self.sessions_among(listed)
    }

    /// The brokers that take new replicas: all but those that are to be left.
    ///
    /// # Errors
    /// As all reads.
    pub async fn hosts(&self) -> Result<Hosts, StoreError> {
        let (_, listed) = self.list(&Space::Brokers).await?;
        let (mut left, mut absent) = (BTreeSet::new(), BTreeMap::new());
        for (key, found) in &listed {
            match key {
                Key::BrokerDrain(broker) => drop(left.insert(*broker)),
                Key::BrokerDisk(broker) => {
                    let disk: Versioned<DiskRecord> =
                        codec::record(&self.keys.encode(key), &found.value, found.revision)?;
                    if disk.value.wal_gen != WalGen::LOST {
                        absent.insert(*broker, disk.revision);
                    }
                }
                _ => {}
            }
        }
        let mut live = self.sessions_among(listed)?;
        absent.retain(|broker, _| !live.contains_key(broker) && !left.contains(broker));
        live.retain(|broker, _| !left.contains(broker));
        Ok(Hosts { live, absent })
    }

    fn sessions_among(
        &self,
        listed: Vec<(Key, Versioned<Bytes>)>,
    ) -> Result<BTreeMap<BrokerId, Versioned<SessionRecord>>, StoreError> {
        let sessions = listed.into_iter().filter_map(|(key, found)| match key {
            Key::BrokerSession(broker) => {
                let session = codec::record(&self.keys.encode(&key), &found.value, found.revision);
                Some(session.map(|session| (broker, session)))
            }
            _ => None,
        });
        sessions.collect()
    }

    /// Returns when the actor's session has ended: its key is gone, or was written again (rules B3, E1a).
    ///
    /// The store's silence is no end.
    ///
    /// # Errors
    /// All but `Unavailable`, which is waited out.
    ///
    /// Cancel safe.
    pub async fn session_ended(&self, session: &Session) -> Result<(), StoreError> {
        let key = self.keys.encode(&Key::BrokerSession(session.rid.broker));
        let mut from = Revision(session.inc.0).next();
        loop {
            if let Ok(mut watch) = self.kv.watch(Interval::key(&key), from).await {
                // Whatever it says is a hint (rule Z1): an event, or that history is gone.
                let _ = watch.next().await;
            }
            match self.kv.range(Range::key(&key)).await {
                Ok(read) if read.found.first().is_some_and(|kv| kv.mod_revision.0 == session.inc.0) => {
                    from = read.revision.next();
                }
                Ok(_) => return Ok(()),
                Err(KvError::Unavailable(_) | KvError::Unknown(_)) => {}
                Err(error) => return Err(error.into()),
            }
            tokio::time::sleep(WATCH_AGAIN).await;
        }
    }

    /// Ends the actor's own session at once, so that its partitions get new leaders without waiting (rule B7).
    ///
    /// # Errors
    /// `Unavailable`: the session may have ended, else it ends with its lease.
    pub async fn leave(&self, session: &Session) -> Result<(), StoreError> {
        match self.kv.revoke(session.lease).await {
            Ok(()) | Err(KvError::LeaseNotFound) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Ends another broker's session: its port refuses connections (rule E1a). If it lives after all, it falls under rule B3.
    ///
    /// Compares that session's incarnation, so that a broker that registered again meanwhile is left alone: `Conflict`, as is
    /// a session that has ended already.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn end_session(
        &self,
        actor: &Session,
        broker: BrokerId,
        inc: Incarnation,
    ) -> Result<Outcome, StoreError> {
        let key = self.keys.encode(&Key::BrokerSession(broker));
        let end = Transition {
            guards: vec![self.own_session(actor), Guard::unmoved(key.clone(), Revision(inc.0))],
            writes: vec![Write::delete(&key)],
            proof: None,
        };
        Ok(self.run(end).await?.into())
    }
}

/// Whether the disk is the one that registered last (rule B1a) and the metadata no older than it (rule K7).
fn examine_disk(registration: &Registration, stored: Option<&Versioned<DiskRecord>>) -> Option<Registered> {
    let carries = registration.disk_inc;
    let fresh = carries == Incarnation(0);
    let Some(Versioned { value: stored, revision }) = stored else {
        let reason = format!("the disk carries incarnation {carries}, the metadata knows no disk of this broker");
        return (!fresh).then_some(Registered::StaleMetadata { reason });
    };
    if stored.wal_gen != registration.record.wal_gen {
        let reason = format!("the disk registered before, but another one, `{:016x}`, did after it", stored.wal_gen.0);
        return (!fresh).then_some(Registered::StaleDisk { reason });
    }
    // Unconfirmed: the WAL may or may not have noted the registration, which is the key's own revision.
    let newest = stored.last_inc.unwrap_or(Incarnation(revision.0));
    let unconfirmed = stored.last_inc.is_none() && carries == stored.previous_inc;
    if carries > newest {
        let reason = format!("the disk carries incarnation {carries}, the metadata's newest is {newest}");
        return Some(Registered::StaleMetadata { reason });
    }
    if carries != newest && !unconfirmed {
        let reason = format!("the disk carries incarnation {carries}, but {newest} registered after it");
        return Some(Registered::StaleDisk { reason });
    }
    if registration.durable_lsn < stored.durable_lsn {
        let reason =
            format!("the disk ends at LSN {}, but was durable up to {}", registration.durable_lsn, stored.durable_lsn);
        return Some(Registered::StaleDisk { reason });
    }
    None
}
