//! The broker's session and its leaderships: register, take office, keep the lease alive, step down when it is lost (rules B1 to B3, E3).

use crate::broker::Broker;
use crate::catalog::{PartitionHandle, Placement, Topic};
use crate::partitions::shard::ShardMsg;
use crate::tier::TierRequest;
use crate::wal::Wal;
use millpond_core::records::{Leader, PartitionRecord, SessionRecord};
use millpond_core::replica::{Input, Leadership};
use millpond_log::{BrokerId, Incarnation, LeaderEpoch, Lsn, PartitionId};
use millpond_metadata::store::{
    Election, Image, Outcome, Registered, Registration, Session, Store, StoreError, Versioned,
};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Pause between tries while the metadata store cannot be used.
const RETRY: Duration = Duration::from_millis(200);

/// Why a broker cannot take office. It has to stop.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OfficeError {
    /// Rule B1a. Nothing is lost that other replicas hold; this disk may not speak for them.
    #[error("the data directory is not the one that registered last ({reason}); start with an empty one")]
    StaleDisk { reason: String },
    /// Rule K7.
    #[error("the metadata is older than this disk ({reason}); it was restored from a backup, or is another cluster's")]
    StaleMetadata { reason: String },
    #[error("the WAL could not note the incarnation: {0}")]
    Wal(String),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What a broker registers with.
#[derive(Clone)]
pub(crate) struct Registrar {
    pub(crate) store: Store,
    pub(crate) wal: Wal,
    pub(crate) broker: BrokerId,
    pub(crate) record: SessionRecord,
    pub(crate) ttl: Duration,
}

impl Registrar {
    /// Registers, and makes the WAL carry the incarnation before anything is served (rule B1a).
    pub(crate) async fn register(&self, disk_inc: Incarnation) -> Result<Session, OfficeError> {
        let registration = Registration {
            broker: self.broker,
            record: self.record.clone(),
            disk_inc,
            durable_lsn: Lsn(0),
            ttl: self.ttl,
        };
        let session = loop {
            match self.store.register_broker(&registration).await {
                Ok(Registered::Session(session)) => break session,
                Ok(Registered::StaleDisk { reason }) => return Err(OfficeError::StaleDisk { reason }),
                Ok(Registered::StaleMetadata { reason }) => return Err(OfficeError::StaleMetadata { reason }),
                Ok(Registered::Occupied { wal_gen }) => {
                    tracing::warn!(%wal_gen, "another process holds this broker's id; waiting for its lease to end");
                }
                Ok(Registered::Conflict | Registered::Unknown) => {}
                Err(StoreError::Unavailable(reason)) => tracing::warn!(reason, "cannot register yet"),
                Err(error) => return Err(error.into()),
            }
            tokio::time::sleep(RETRY).await;
        };
        let wal = self.wal.clone();
        let noted = tokio::task::spawn_blocking(move || wal.set_incarnation(session.inc)).await;
        noted
            .map_err(|error| OfficeError::Wal(error.to_string()))?
            .map_err(|error| OfficeError::Wal(error.to_string()))?;
        self.store.refresh_broker(&session, millpond_metadata::kv::Revision(session.inc.0), Lsn(0)).await?;
        Ok(session)
    }
}

/// Keeps the broker in office until `shutdown`: a lost session means stepping down everywhere, and registering again (rule B3).
pub(crate) async fn run(
    broker: Broker,
    registrar: Registrar,
    mut session: Session,
    shutdown: CancellationToken,
) -> Result<(), OfficeError> {
    loop {
        tokio::select! {
            () = shutdown.cancelled() => break,
            () = keep_alive(&registrar.store, session) => {}
        }
        tracing::warn!(incarnation = %session.inc, "the session was lost; stepping down and registering again");
        broker.session_handle().set(None);
        broker.step_down_everywhere();
        session = registrar.register(session.inc).await?;
        broker.take_office(session).await?;
    }
    broker.session_handle().set(None);
    // If this fails the lease ends by itself.
    let _ = registrar.store.leave(&session).await;
    Ok(())
}

/// Returns when the lease has ended.
async fn keep_alive(store: &Store, session: Session) {
    loop {
        tokio::time::sleep(session.ttl / 3).await;
        match store.kv().keep_alive(session.lease).await {
            Ok(Some(_)) => {}
            Ok(None) => return,
            Err(error) => tracing::warn!(%error, "the lease could not be renewed; trying again"),
        }
    }
}

impl Broker {
    /// Elects this broker where it may lead and nobody does, and tells shards and catalog (rules E2 to E4).
    pub(crate) async fn take_office(&self, session: Session) -> Result<(), OfficeError> {
        self.session_handle().set(Some(session));
        let image = self.inner().store.load().await?;
        let mut open: Vec<Election> = self.elections(&image, session);
        let mut elected: BTreeMap<PartitionId, PartitionRecord> = BTreeMap::new();
        while !open.is_empty() {
            let outcomes = self.inner().store.elect(&session, None, &open).await;
            let mut again = Vec::new();
            for (election, outcome) in open.into_iter().zip(outcomes) {
                match outcome? {
                    Outcome::Committed { .. } => drop(elected.insert(election.partition, election.next)),
                    Outcome::Unknown => again.push(election),
                    // Somebody else was elected, or this session is gone already: it is seen by the keep-alive.
                    Outcome::Conflict | Outcome::Fenced => {}
                }
            }
            open = again;
        }
        self.begin_leading(&elected);
        Ok(())
    }

    fn elections(&self, image: &Image, session: Session) -> Vec<Election> {
        let me = session.rid;
        let candidates = image.partitions.iter().filter(|(id, seen)| {
            let served = self.inner().catalog.tables().handle(**id).is_some();
            let record = &seen.value;
            served && (record.isr.contains(&me) || record.elr.contains(&me))
        });
        let election = |(id, seen): (&PartitionId, &Versioned<PartitionRecord>)| {
            let mut next = seen.value.clone();
            next.leader = Some(Leader { rid: me, inc: session.inc });
            next.epoch = LeaderEpoch(seen.value.epoch.0 + 1);
            next.isr = vec![me];
            next.elr.retain(|rid| *rid != me);
            Election { partition: *id, seen: seen.clone(), next }
        };
        candidates.map(election).collect()
    }

    fn begin_leading(&self, elected: &BTreeMap<PartitionId, PartitionRecord>) {
        let tables = self.inner().catalog.tables();
        for topic in tables.topics() {
            let mut partitions = topic.partitions.clone();
            for handle in &mut partitions {
                let Some(record) = elected.get(&handle.id) else { continue };
                handle.placement = Placement::from(record);
                self.lead(handle, record);
            }
            self.inner().catalog.put(Topic { record: topic.record.clone(), config: topic.config.clone(), partitions });
        }
    }

    /// Tells the shard that this broker leads a partition.
    pub(crate) fn lead(&self, handle: &PartitionHandle, record: &PartitionRecord) {
        let partition = handle.id;
        let terms =
            Leadership { epoch: record.epoch, isr: record.isr.iter().copied().collect(), min_isr: record.min_isr };
        // A shard that is gone ends the broker.
        let _ = handle.shard.send(ShardMsg::Step { partition, input: Input::Elected(terms) });
        self.inner().tier.send(TierRequest::Lead { partition, epoch: record.epoch });
    }

    /// Rule B3: no partition is led without a session.
    fn step_down_everywhere(&self) {
        for topic in self.inner().catalog.tables().topics() {
            for handle in &topic.partitions {
                let epoch = handle.view.borrow().visible.epoch;
                let input = Input::Deposed { epoch, leader: None };
                let _ = handle.shard.send(ShardMsg::Step { partition: handle.id, input });
                self.inner().tier.send(TierRequest::Resign { partition: handle.id });
            }
        }
    }
}
