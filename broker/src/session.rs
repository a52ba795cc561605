//! The broker's session with the metadata store, as everyone who acts sees it.

use millpond_metadata::store::Session;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// The session this broker has now, if any. Everyone who acts asks it first (rule K4).
#[derive(Clone, Default)]
pub(crate) struct SessionHandle {
    session: Arc<RwLock<Option<Session>>>,
    renewed: Arc<RwLock<Option<Instant>>>,
}

impl SessionHandle {
    pub(crate) fn get(&self) -> Option<Session> {
        *self.session.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, session: Option<Session>) {
        *self.session.write().unwrap_or_else(PoisonError::into_inner) = session;
    }

    /// Notes that the lease was renewed by a request that was sent at `sent`.
    pub(crate) fn renewed(&self, sent: Instant) {
        *self.renewed.write().unwrap_or_else(PoisonError::into_inner) = Some(sent);
    }

    /// Time since the lease was last renewed; `None` before it was.
    pub(crate) fn age(&self, now: Instant) -> Option<Duration> {
        self.renewed.read().unwrap_or_else(PoisonError::into_inner).map(|sent| now.saturating_duration_since(sent))
    }
}
