//! The broker's session with the metadata store, as everyone who acts sees it.

use millpond_metadata::store::Session;
use std::sync::{Arc, PoisonError, RwLock};

/// The session this broker has now, if any. Everyone who acts asks it first (rule K4).
#[derive(Clone, Default)]
pub(crate) struct SessionHandle {
    session: Arc<RwLock<Option<Session>>>,
}

impl SessionHandle {
    pub(crate) fn get(&self) -> Option<Session> {
        *self.session.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, session: Option<Session>) {
        *self.session.write().unwrap_or_else(PoisonError::into_inner) = session;
    }
}
