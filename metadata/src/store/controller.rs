//! Who acts as controller: one broker, for as long as its session lives. Hygiene only: nothing it does relies on being alone (rule E8).

use super::transition::{Broken, Guard, Transition};
use super::{Outcome, Session, Store, StoreError, Versioned, codec};
use crate::keys::Key;
use crate::kv::{Compare, Interval, KvError, Range, Revision, Write};
use futures::future::select;
use millpond_core::records::Leader;
use std::pin::pin;
use std::time::Duration;

/// Pause before a watch that ended is begun again.
const WATCH_AGAIN: Duration = Duration::from_millis(200);

impl Store {
    /// Makes the actor controller if nobody is, or if the session of whoever the key names has ended. The key is under the
    /// lease of the actor's session, and goes with it.
    ///
    /// A key outlives a session that was ended by another broker (rule E1a), or replaced by a quick restart (rule B1), until
    /// that session's lease ends. So both are compared: the key, and what stands where the holder's session did.
    ///
    /// # Errors
    /// As all reads. `Conflict` means that somebody acts as controller, or was faster.
    pub async fn take_control(&self, actor: &Session) -> Result<Outcome, StoreError> {
        let key = self.keys.encode(&Key::Controller);
        let me = Leader { rid: actor.rid, inc: actor.inc };
        let mut guards = vec![self.own_session(actor)];
        match self.controller().await? {
            None => guards.push(Guard::absent(key.clone())),
            Some(seen) if seen.value == me => return Ok(Outcome::Committed { revision: seen.revision }),
            Some(seen) => {
                let session = self.session_revision(&seen.value).await?;
                if session.0 == seen.value.inc.0 {
                    return Ok(Outcome::Conflict);
                }
                let session_key = self.keys.encode(&Key::BrokerSession(seen.value.rid.broker));
                guards.push(Guard::unmoved(key.clone(), seen.revision));
                guards.push(Guard::unmoved(session_key, session));
            }
        }
        let value = codec::value(&me);
        let take = Transition {
            guards,
            writes: vec![Write::Put { key: key.clone(), value: value.clone(), lease: Some(actor.lease) }],
            // The incarnation is in the value.
            proof: Some((key, value)),
        };
        Ok(self.run(take).await?.into())
    }

    /// Gives control up, so that another broker takes it at once (rule B7). `control` is the revision of the key.
    ///
    /// # Errors
    /// As all reads. `Fenced` means that it was lost before.
    pub async fn release_control(&self, actor: &Session, control: Revision) -> Result<Outcome, StoreError> {
        let key = self.keys.encode(&Key::Controller);
        let release = Transition {
            guards: vec![self.own_session(actor), self.in_control(control)],
            writes: vec![Write::delete(&key)],
            proof: None,
        };
        Ok(self.run(release).await?.into())
    }

    /// Who acts as controller, with the revision that its transactions compare.
    ///
    /// # Errors
    /// As all reads.
    pub async fn controller(&self) -> Result<Option<Versioned<Leader>>, StoreError> {
        self.read(&Key::Controller).await
    }

    /// Who acts as controller under a session that stands.
    ///
    /// # Errors
    /// As all reads.
    pub async fn acting_controller(&self) -> Result<Option<Leader>, StoreError> {
        Ok(self.holder().await?.map(|(holder, _)| holder))
    }

    /// Returns when `holder` acts as controller no longer: the key is gone or another's, or its session has ended.
    ///
    /// # Errors
    /// All but `Unavailable`, which is waited out.
    ///
    /// Cancel safe.
    pub async fn control_ended(&self, holder: &Leader) -> Result<(), StoreError> {
        let mut watched = false;
        loop {
            match self.holder().await {
                Ok(Some((now, from))) if now == *holder => {
                    // What a watch says is a hint: without a change behind it, not to be taken at once again.
                    if std::mem::replace(&mut watched, true) {
                        tokio::time::sleep(WATCH_AGAIN).await;
                    }
                    let control = Interval::key(&self.keys.encode(&Key::Controller));
                    let session = Interval::key(&self.keys.encode(&Key::BrokerSession(holder.rid.broker)));
                    select(pin!(self.stirred(control, from)), pin!(self.stirred(session, from))).await;
                }
                Ok(_) => return Ok(()),
                Err(StoreError::Unavailable(_)) => tokio::time::sleep(WATCH_AGAIN).await,
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns when the controller's key is no longer at `control`: whoever held it at that revision acts no longer.
    ///
    /// # Errors
    /// All but `Unavailable`, which is waited out.
    ///
    /// Cancel safe.
    pub async fn control_lost(&self, control: Revision) -> Result<(), StoreError> {
        let key = self.keys.encode(&Key::Controller);
        let mut from = control.next();
        loop {
            self.stirred(Interval::key(&key), from).await;
            match self.kv.range(Range::key(&key)).await {
                Ok(read) if read.found.first().is_some_and(|kv| kv.mod_revision == control) => {
                    from = read.revision.next();
                }
                Ok(_) => return Ok(()),
                Err(KvError::Unavailable(_) | KvError::Unknown(_)) => {}
                Err(error) => return Err(error.into()),
            }
            tokio::time::sleep(WATCH_AGAIN).await;
        }
    }

    /// Who acts as controller under a session that stands, and the revision after the one at which the key was read.
    async fn holder(&self) -> Result<Option<(Leader, Revision)>, StoreError> {
        let key = self.keys.encode(&Key::Controller);
        let read = self.kv.range(Range::key(&key)).await?;
        let Some(found) = read.found.first() else { return Ok(None) };
        let holder: Versioned<Leader> = codec::record(&key, &found.value, found.mod_revision)?;
        let stands = self.session_revision(&holder.value).await?.0 == holder.value.inc.0;
        Ok(stands.then_some((holder.value, read.revision.next())))
    }

    /// Revision of the session that stands under this broker's id, whichever it is.
    async fn session_revision(&self, holder: &Leader) -> Result<Revision, StoreError> {
        let session = self.read_bytes(&Key::BrokerSession(holder.rid.broker)).await?;
        Ok(session.map_or(Revision::ABSENT, |session| session.revision))
    }

    /// Waits for anything a watch has to say. Whatever it is, it is a hint (rule Z1): an event, or that history is gone, or
    /// that the store is out of reach.
    async fn stirred(&self, keys: Interval, from: Revision) {
        if let Ok(mut watch) = self.kv.watch(keys, from).await {
            let _ = watch.next().await;
        }
    }

    /// The guard of whoever acts as controller.
    pub(super) fn in_control(&self, control: Revision) -> Guard {
        let compare = Compare::ModRevision { key: self.keys.encode(&Key::Controller), is: control };
        Guard { compare, broken: Broken::Fenced }
    }
}
