//! The broker's session with the metadata store, as everyone who acts sees it.

use crate::clock;
use millpond_log::Incarnation;
use millpond_metadata::store::Session;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::watch;

/// The session this broker has now, if any. Everyone who acts asks it first (rule K4).
#[derive(Clone, Default)]
pub(crate) struct SessionHandle {
    held: Arc<RwLock<Held>>,
    /// The incarnation of what is held, for those who wait.
    told: Arc<watch::Sender<Option<Incarnation>>>,
}

#[derive(Clone, Copy, Default)]
struct Held {
    session: Option<Session>,
    /// When the newest renewal that was answered was sent, of this session or the last one, by the clock that does not stand still in the
    /// machine's sleep. Zero before the first.
    renewed: Duration,
}

impl SessionHandle {
    pub(crate) fn get(&self) -> Option<Session> {
        self.held().session
    }

    fn held(&self) -> Held {
        *self.held.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new session, renewed by a request that was sent at `renewed`.
    pub(crate) fn begin(&self, session: Session, renewed: Duration) {
        *self.held.write().unwrap_or_else(PoisonError::into_inner) = Held { session: Some(session), renewed };
        self.told.send_replace(Some(session.inc));
    }

    /// There is no session any more.
    pub(crate) fn end(&self) {
        self.held.write().unwrap_or_else(PoisonError::into_inner).session = None;
        self.told.send_replace(None);
    }

    /// Tells whenever a session begins or ends.
    pub(crate) fn changes(&self) -> watch::Receiver<Option<Incarnation>> {
        self.told.subscribe()
    }

    /// The session was renewed by a request that was sent at `renewed`.
    pub(crate) fn renew(&self, renewed: Duration) {
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        if held.session.is_some() {
            held.renewed = held.renewed.max(renewed);
        }
    }

    /// Time since the newest renewal that was answered was sent; `None` without a session.
    pub(crate) fn age(&self) -> Option<Duration> {
        let Held { session, renewed } = self.held();
        session.map(|_| clock::boot().saturating_sub(renewed))
    }

    /// Whether this broker may still take itself for what it was: a guard against staleness, never a safety measure (rule B5).
    pub(crate) fn is_fresh(&self) -> bool {
        self.stale_for().is_none()
    }

    /// Time since the newest renewal, if that is too long ago for this broker to be taken for fresh.
    pub(crate) fn stale_for(&self) -> Option<Duration> {
        let (Held { session, renewed }, now) = (self.held(), clock::boot());
        let is_fresh = session.is_some_and(|session| fresh(renewed, session.ttl, now));
        (!is_fresh).then(|| now.saturating_sub(renewed))
    }
}

/// Within 0.8 TTL of the renewal (rule B5).
fn fresh(renewed: Duration, ttl: Duration, now: Duration) -> bool {
    now.saturating_sub(renewed) <= ttl * 4 / 5
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_log::{BrokerId, Rid, WalGen};
    use millpond_metadata::kv::LeaseId;

    #[test]
    fn session_is_fresh_for_four_fifths_of_its_ttl() {
        let at = Duration::from_secs;
        let check = |now, expected| assert_eq!(fresh(at(100), at(10), now), expected, "{now:?}");
        check(at(99), true);
        check(at(100), true);
        check(at(108), true);
        check(at(108) + Duration::from_millis(1), false);
        check(at(1000), false);
    }

    #[test]
    fn a_session_that_ended_is_stale_since_it_was_renewed() {
        let handle = SessionHandle::default();
        assert!(handle.stale_for().is_some() && !handle.is_fresh(), "nothing was heard yet");
        let rid = Rid { broker: BrokerId(1), wal_gen: WalGen(1) };
        let session = Session { rid, inc: Incarnation(1), lease: LeaseId(1), ttl: Duration::from_secs(3_600) };
        handle.begin(session, clock::boot());
        assert_eq!(handle.stale_for(), None);
        handle.end();
        assert!(handle.stale_for().is_some_and(|time| time < session.ttl), "and not since the machine began");
        handle.renew(clock::boot());
        assert!(handle.age().is_none() && !handle.is_fresh(), "a late answer brings no session back");
    }
}
