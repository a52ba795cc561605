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
    held: Arc<RwLock<Option<Held>>>,
    /// The incarnation of what is held, for those who wait.
    told: Arc<watch::Sender<Option<Incarnation>>>,
}

#[derive(Clone, Copy)]
struct Held {
    session: Session,
    /// When the newest renewal that was answered was sent, by the clock that does not stand still in the machine's sleep.
    renewed: Duration,
}

impl SessionHandle {
    pub(crate) fn get(&self) -> Option<Session> {
        self.held().map(|held| held.session)
    }

    fn held(&self) -> Option<Held> {
        *self.held.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new session, renewed by a request that was sent at `renewed`.
    pub(crate) fn begin(&self, session: Session, renewed: Duration) {
        *self.held.write().unwrap_or_else(PoisonError::into_inner) = Some(Held { session, renewed });
        self.told.send_replace(Some(session.inc));
    }

    /// There is no session any more.
    pub(crate) fn end(&self) {
        *self.held.write().unwrap_or_else(PoisonError::into_inner) = None;
        self.told.send_replace(None);
    }

    /// Tells whenever a session begins or ends.
    pub(crate) fn changes(&self) -> watch::Receiver<Option<Incarnation>> {
        self.told.subscribe()
    }

    /// The session was renewed by a request that was sent at `renewed`.
    pub(crate) fn renew(&self, renewed: Duration) {
        if let Some(held) = self.held.write().unwrap_or_else(PoisonError::into_inner).as_mut() {
            held.renewed = held.renewed.max(renewed);
        }
    }

    /// Time since the newest renewal that was answered was sent; `None` without a session.
    pub(crate) fn age(&self) -> Option<Duration> {
        self.held().map(|held| clock::boot().saturating_sub(held.renewed))
    }

    /// Whether this broker may still take itself for what it was: a guard against staleness, never a safety measure (rule B5).
    pub(crate) fn is_fresh(&self) -> bool {
        self.held().is_some_and(|held| fresh(held.renewed, held.session.ttl, clock::boot()))
    }
}

/// Within 0.8 TTL of the renewal (rule B5).
fn fresh(renewed: Duration, ttl: Duration, now: Duration) -> bool {
    now.saturating_sub(renewed) <= ttl * 4 / 5
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
