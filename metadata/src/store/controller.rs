//! Who acts as controller: one broker, for as long as its session lives. Hygiene only: nothing it does relies on being alone (rule E8).

use super::transition::{Guard, Transition};
use super::{Outcome, Session, Store, StoreError, Versioned, codec};
use crate::keys::Key;
use crate::kv::Write;
use millpond_core::records::Leader;

impl Store {
    /// Makes the actor controller if nobody is. The key is under the lease of the actor's session, and goes with it.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn take_control(&self, actor: &Session) -> Result<Outcome, StoreError> {
        let key = self.keys.encode(&Key::Controller);
        let value = codec::value(&Leader { rid: actor.rid, inc: actor.inc });
        let take = Transition {
            guards: vec![self.own_session(actor), Guard::absent(key.clone())],
            writes: vec![Write::Put { key: key.clone(), value: value.clone(), lease: Some(actor.lease) }],
            // The incarnation is in the value.
            proof: Some((key, value)),
        };
        Ok(self.run(take).await?.into())
    }

    /// Who acts as controller, with the revision that its transactions compare.
    ///
    /// # Errors
    /// As all reads.
    pub async fn controller(&self) -> Result<Option<Versioned<Leader>>, StoreError> {
        self.read(&Key::Controller).await
    }
}
