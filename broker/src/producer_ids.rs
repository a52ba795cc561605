//! Producer ids, handed out from blocks that the metadata store gives out once (section 2.1, `/pid/next`).

use crate::api::ApiError;
use crate::clock;
use millpond_log::{ErrorCode, ProducerId};
use millpond_metadata::store::{Session, Store};
use std::num::NonZeroU64;
use std::ops::Range;
use std::time::Instant;
use tokio::sync::Mutex;

/// Ids in one block: a restart wastes the rest of it, and there are 2^63.
const BLOCK: NonZeroU64 = NonZeroU64::new(1000).expect("not zero");

/// What this broker has of producer ids.
#[derive(Default)]
pub(crate) struct ProducerIds {
    pool: Mutex<Pool>,
}

#[derive(Default)]
struct Pool {
    /// The rest of the newest block.
    left: Range<u64>,
    /// When the last block was asked for that could not be had, and why.
    refused: Option<(Instant, ApiError)>,
}

impl ProducerIds {
    /// An id that nobody else gets.
    ///
    /// # Errors
    /// As `take`.
    pub(crate) async fn next(
        &self,
        store: &Store,
        session: impl FnOnce() -> Result<Session, ApiError>,
    ) -> Result<ProducerId, ApiError> {
        let taken = self.take(1, store, session).await?;
        Ok(ProducerId(taken.start))
    }

    /// Up to `most` ids that nobody else gets, at least one. What is left of a block needs no `session`: the store gave it out for good.
    ///
    /// # Errors
    /// `LEADER_NOT_AVAILABLE`: there are none now. What `session` says.
    pub(crate) async fn take(
        &self,
        most: u64,
        store: &Store,
        session: impl FnOnce() -> Result<Session, ApiError>,
    ) -> Result<Range<u64>, ApiError> {
        let asked = clock::monotonic();
        let mut pool = self.pool.lock().await;
        if pool.left.is_empty() {
            // All who waited for one answer of the store hear it: each would wait for another one else.
            if let Some((_, refusal)) = pool.refused.as_ref().filter(|(begun, _)| *begun >= asked) {
                return Err(refusal.clone());
            }
            let begun = clock::monotonic();
            pool.left = match ProducerIds::block(store, session()?).await {
                Ok(block) => block,
                Err(refusal) => {
                    pool.refused = Some((begun, refusal.clone()));
                    return Err(refusal);
                }
            };
        }
        let left = &mut pool.left;
        let taken = left.start..left.end.min(left.start + most);
        left.start = taken.end;
        Ok(taken)
    }

    async fn block(store: &Store, session: Session) -> Result<Range<u64>, ApiError> {
        let refused = |reason: String| {
            ApiError::new(ErrorCode::LeaderNotAvailable, format!("no producer ids can be had now: {reason}; retry"))
        };
        let block = store.allocate_producer_ids(&session, BLOCK).await.map_err(|error| refused(error.to_string()))?;
        let block = block.map_err(|outcome| refused(format!("{outcome:?}")))?;
        Ok(block.first.0..block.first.0 + block.len.get())
    }
}
