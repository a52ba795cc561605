//! Producer ids, handed out in blocks: no id twice, and one transaction for many producers.

use super::transition::{Broken, Guard, Settled, Transition};
use super::{ATTEMPTS_MAX, Outcome, Session, Store, StoreError, codec};
use crate::keys::Key;
use crate::kv::{Revision, Write};
use millpond_log::ProducerId;
use std::num::NonZeroU64;

/// Producer ids that are the caller's alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerIdBlock {
    /// The first.
    pub first: ProducerId,
    /// How many.
    pub len: NonZeroU64,
}

impl Store {
    /// Takes the next `len` producer ids.
    ///
    /// `Err` holds the outcome if there is no block: after `Unknown` some ids may be lost, which is harmless; call again.
    ///
    /// # Errors
    /// `Refused`: Kafka's 2^63 ids are used up. Others as all reads.
    pub async fn allocate_producer_ids(
        &self,
        actor: &Session,
        len: NonZeroU64,
    ) -> Result<Result<ProducerIdBlock, Outcome>, StoreError> {
        let key = self.keys.encode(&Key::ProducerIds);
        for _ in 0..ATTEMPTS_MAX {
            let seen = self.read_bytes(&Key::ProducerIds).await?;
            let first: u64 = seen.as_ref().map_or(Ok(0), |seen| codec::text(&key, &seen.value))?;
            let next = first.checked_add(len.get()).filter(|&next| i64::try_from(next).is_ok());
            let Some(next) = next else {
                return Err(StoreError::Refused("all producer ids are used up".to_owned()));
            };
            let take = Transition {
                guards: vec![
                    self.own_session(actor),
                    Guard::unmoved(key.clone(), seen.map_or(Revision::ABSENT, |seen| seen.revision)),
                ],
                writes: vec![Write::put(key.clone(), next.to_string())],
                // Somebody else's block of the same length leaves the same value.
                proof: None,
            };
            match self.run(take).await? {
                Settled::Committed(_) => return Ok(Ok(ProducerIdBlock { first: ProducerId(first), len })),
                Settled::Broken(Broken::Conflict) => {}
                other => return Ok(Err(other.into())),
            }
        }
        Ok(Err(Outcome::Conflict))
    }
}
