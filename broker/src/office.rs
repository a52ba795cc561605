//! The broker's session: register, keep the lease alive, step down when it is lost (rules B1 to B3).

use crate::broker::Broker;
use crate::clock;
use crate::mark::Mark;
use crate::partitions::messages::ShardMsg;
use crate::session::SessionHandle;
use crate::wal::{Wal, WalError};
use millpond_core::records::SessionRecord;
use millpond_log::{BrokerId, Incarnation, Lsn, WalGen};
use millpond_metadata::kv::{KvError, Revision};
use millpond_metadata::store::{self, Outcome, Registered, Session, Store, StoreError};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

/// How often the store's position is looked at.
const LOOK: Duration = Duration::from_secs(10);

/// Rule Z2: history is cut every minute, and five minutes of it are kept.
const LOOKS_PER_COMPACTION: usize = 6;
const HISTORY_LOOKS: usize = 30;

/// Pause between tries while the metadata store cannot be used.
const RETRY: Duration = Duration::from_millis(200);

/// Why a broker cannot take office. It has to stop.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OfficeError {
    /// Rule B1a, while the broker ran or came up: another process took its id. The next start finds out what that means (rule B4).
    #[error("another disk registered under this broker's id ({reason}); this one may not speak for its partitions")]
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
    /// How often the disk's durable position is told.
    pub(crate) note_interval: Duration,
    /// How far this broker has seen the metadata store come (rule K7).
    pub(crate) mark: Mark,
}

/// A session, and what the metadata store knows of this broker's disk.
#[derive(Clone, Copy)]
pub(crate) struct Registration {
    pub(crate) session: Session,
    /// When the request that began it was sent (rule B5).
    sent: Duration,
    /// Revision of the disk's record.
    disk: Revision,
    /// The position it tells; `None` until it is confirmed that the disk carries the session's incarnation.
    noted: Option<Lsn>,
}

impl Registrar {
    /// Settles which replica this disk is, before anything of it is opened. One that is not the one that registered last takes another
    /// `wal_gen`, durably: it is another replica then (rules B1a, B4). Returns the incarnation that it carries from here on, and what did
    /// not fit.
    pub(crate) async fn examine(
        &mut self,
        disk_inc: Incarnation,
    ) -> Result<(Incarnation, Option<String>), OfficeError> {
        // What the WAL writes while the store is away brings an old copy of a disk to where that disk was, without what it held.
        let found = store::Registration { durable_lsn: self.wal.found_lsn(), ..self.registration(disk_inc) };
        loop {
            match self.store.examine_disk(&found).await {
                Ok(Some(Registered::StaleDisk { reason })) => {
                    let fresh = WalGen(rand::random_range(1..=u64::MAX));
                    tracing::error!(
                        reason,
                        wal_gen = format!("{:016x}", fresh.0),
                        "this disk is another replica from now on (rules B1a, B4)"
                    );
                    self.change_wal(move |wal| wal.renew(fresh)).await?;
                    self.record.wal_gen = fresh;
                    return Ok((Incarnation(0), Some(reason)));
                }
                Ok(Some(Registered::StaleMetadata { reason })) => return Err(OfficeError::StaleMetadata { reason }),
                Ok(_) => return Ok((disk_inc, None)),
                Err(StoreError::Unavailable(reason)) => tracing::warn!(reason, "the disk cannot be looked up yet"),
                Err(error) => return Err(error.into()),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Registers, and makes the WAL carry the incarnation and the metadata store know it before anything is served (rule B1a).
    pub(crate) async fn register(&self, mut disk_inc: Incarnation) -> Result<Registration, OfficeError> {
        loop {
            let (session, sent) = self.open_session(disk_inc).await?;
            self.change_wal(move |wal| wal.set_incarnation(session.inc)).await?;
            disk_inc = session.inc;
            let mut registration = Registration { session, sent, disk: Revision(session.inc.0), noted: None };
            // Fenced: the lease has ended meanwhile.
            while self.note_disk(&mut registration).await? {
                if registration.noted.is_some() {
                    return Ok(registration);
                }
                tokio::time::sleep(RETRY).await;
            }
        }
    }

    fn registration(&self, disk_inc: Incarnation) -> store::Registration {
        store::Registration {
            broker: self.broker,
            record: self.record.clone(),
            disk_inc,
            durable_lsn: self.wal.durable_lsn(),
            ttl: self.ttl,
        }
    }

    /// The session, and when the request that began it was sent.
    async fn open_session(&self, disk_inc: Incarnation) -> Result<(Session, Duration), OfficeError> {
        let registration = self.registration(disk_inc);
        let mut told = false;
        loop {
            let sent = clock::boot();
            match self.store.register_broker(&registration).await {
                Ok(Registered::Session(session)) => return Ok((session, sent)),
                Ok(Registered::StaleDisk { reason }) => return Err(OfficeError::StaleDisk { reason }),
                Ok(Registered::StaleMetadata { reason }) => return Err(OfficeError::StaleMetadata { reason }),
                Ok(Registered::Occupied { wal_gen }) => {
                    // Once, however often it is looked at.
                    if !std::mem::replace(&mut told, true) {
                        tracing::warn!(%wal_gen, "another process holds this broker's id; waiting for its lease to end");
                    }
                }
                Ok(Registered::Conflict | Registered::Unknown) => {}
                Err(StoreError::Unavailable(reason)) => tracing::warn!(reason, "cannot register yet"),
                Err(error) => return Err(error.into()),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Changes what the WAL says of itself.
    async fn change_wal(
        &self,
        change: impl FnOnce(Wal) -> Result<(), WalError> + Send + 'static,
    ) -> Result<(), OfficeError> {
        let wal = self.wal.clone();
        let changed = tokio::task::spawn_blocking(move || change(wal)).await;
        let failed = |error: &dyn std::fmt::Display| OfficeError::Wal(error.to_string());
        changed.map_err(|error| failed(&error))?.map_err(|error| failed(&error))
    }

    /// Tells the metadata store up to where the disk is durable, if that has moved (rule B1a): an older snapshot of the disk is
    /// told by it. What cannot be told now is told with the next one: too low a position only proves less.
    /// False when the session is gone.
    ///
    /// # Errors
    /// `Restored`: the broker has to stop (rule K7).
    async fn note_disk(&self, registration: &mut Registration) -> Result<bool, StoreError> {
        let durable = self.wal.durable_lsn();
        if registration.noted == Some(durable) {
            return Ok(true);
        }
        let internal = self.record.internal.as_deref();
        match self.store.refresh_broker(&registration.session, registration.disk, durable, internal).await {
            Ok(Outcome::Committed { revision }) => (registration.disk, registration.noted) = (revision, Some(durable)),
            Ok(Outcome::Fenced) => return Ok(false),
            Ok(Outcome::Conflict) => {
                // An earlier note whose answer was lost; or another process, and then the session is gone too.
                match self.store.read_disk(self.broker).await {
                    Ok(Some(disk)) => registration.disk = disk.revision,
                    Err(error @ StoreError::Restored(_)) => return Err(error),
                    Ok(None) | Err(_) => {}
                }
            }
            Ok(Outcome::Unknown) => tracing::warn!("it is unknown whether the disk's position was noted; trying again"),
            Err(error @ StoreError::Restored(_)) => return Err(error),
            Err(error) => tracing::warn!(%error, "the disk's position could not be noted; trying again"),
        }
        Ok(true)
    }

    /// Notes the disk's position again and again. Returns only when the broker has to stop.
    async fn keep_noted(&self, registration: &mut Registration) -> StoreError {
        loop {
            tokio::time::sleep(self.note_interval).await;
            // That the session is gone is the keep-alive's to find out.
            if let Err(restored) = self.note_disk(registration).await {
                return restored;
            }
        }
    }
}

/// Keeps the broker in office until `shutdown`: a lost session means stepping down everywhere, and registering again (rule B3).
pub(crate) async fn run(
    broker: Broker,
    registrar: Registrar,
    mut registration: Registration,
    shutdown: CancellationToken,
) -> Result<(), OfficeError> {
    loop {
        let session = registration.session;
        tokio::select! {
            () = shutdown.cancelled() => break,
            lost = lost(&registrar, session, broker.session_handle()) => lost?,
            restored = registrar.keep_noted(&mut registration) => return Err(restored.into()),
        }
        tracing::warn!(incarnation = %session.inc, "the session was lost; stepping down and registering again");
        broker.session_handle().end();
        broker.tell_session(None);
        let renewed = async {
            let registration = registrar.register(session.inc).await?;
            broker.take_office(&registration);
            Ok::<Registration, OfficeError>(registration)
        };
        registration = tokio::select! {
            () = shutdown.cancelled() => break,
            renewed = renewed => renewed?,
        };
    }
    broker.session_handle().end();
    let _ = registrar.note_disk(&mut registration).await;
    // If this fails the lease ends by itself.
    let _ = registrar.store.leave(&registration.session).await;
    Ok(())
}

/// Returns when the session has ended by the store's own word (rule B3). Silence of the store ends nothing.
async fn lost(registrar: &Registrar, session: Session, handle: &SessionHandle) -> Result<(), OfficeError> {
    tokio::select! {
        ended = keep_alive(&registrar.store, session, handle) => Ok(ended?),
        ended = registrar.store.session_ended(&session) => Ok(ended?),
        failed = upkeep(registrar) => failed,
    }
}

/// Renews the lease four times in its TTL, or as often as a slow store answers (rule Z4). Returns when it has ended.
async fn keep_alive(store: &Store, session: Session, handle: &SessionHandle) -> Result<(), StoreError> {
    let mut heard = true;
    loop {
        let called = clock::boot();
        match store.kv().keep_alive(session.lease).await {
            Ok(Some(renewal)) => {
                let sent = called + renewal.sent_after;
                handle.renew(sent);
                if !heard {
                    tracing::info!("the lease is renewed again");
                }
                heard = true;
                tokio::time::sleep(rest(session.ttl, clock::boot().saturating_sub(sent))).await;
            }
            Ok(None) => return Ok(()),
            Err(KvError::Restored(reason)) => return Err(StoreError::Restored(reason)),
            Err(error) => {
                if heard {
                    tracing::warn!(%error, "the lease could not be renewed; trying until it can");
                }
                heard = false;
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// How long to wait after a renewal whose answer took so long: the next keep-alive goes out a quarter of the TTL after this one, and the
/// store is heard before that, by an answer that takes as long again. Where there is no time for one the next is asked for at once, since
/// the store was just heard.
///
/// A quarter, and two answers that take as long all of a sudden, are less than what a broker is fresh for (rule B5).
fn rest(ttl: Duration, took: Duration) -> Duration {
    (ttl / 4).saturating_sub(took * 2)
}

/// Notes how far the store has come (rule K7) and has it forget old history (rule Z2). Returns only when it may not go on.
async fn upkeep(registrar: &Registrar) -> Result<(), OfficeError> {
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // One entry a look, the oldest first.
    let mut history: VecDeque<Revision> = VecDeque::new();
    loop {
        looks.tick().await;
        let kv = registrar.store.kv();
        let position = match kv.position().await {
            Ok(position) => position,
            Err(KvError::Restored(reason)) => return Err(StoreError::Restored(reason).into()),
            Err(error) => {
                tracing::debug!(%error, "the metadata store does not say where it stands");
                continue;
            }
        };
        registrar.mark.raise(position).await;
        history.push_back(position.revision);
        // The embedded store bounds its history itself.
        if position.cluster.is_some() && history.len() > HISTORY_LOOKS + LOOKS_PER_COMPACTION {
            history.drain(..LOOKS_PER_COMPACTION);
            match kv.compact(history[0]).await {
                // Another broker was faster.
                Ok(()) | Err(KvError::Compacted(_)) => {}
                Err(error) => tracing::warn!(%error, "the metadata store's history could not be cut"),
            }
        }
    }
}

impl Broker {
    /// Acts under this session from now on. Who leads is heard from the image.
    pub(crate) fn take_office(&self, registration: &Registration) {
        let session = registration.session;
        // Before the door lets leaders in: a push that a shard takes without a session is not answered, and its leader waits.
        self.tell_session(Some(session.inc));
        self.session_handle().begin(session, registration.sent);
    }

    /// Rule B3: no partition is led without a session.
    fn tell_session(&self, inc: Option<Incarnation>) {
        for shard in &self.inner().shards {
            // A shard that is gone ends the broker.
            let _ = shard.send(ShardMsg::Session(inc));
        }
    }
}

#[cfg(test)]
mod tests;
