//! Producer ids, handed out from blocks that the metadata store gives out once (section 2.1, `/pid/next`).

use crate::api::ApiError;
use millpond_log::{ErrorCode, ProducerId};
use millpond_metadata::store::{Session, Store};
use std::num::NonZeroU64;
use std::ops::Range;
use tokio::sync::Mutex;

/// Ids in one block: a restart wastes the rest of it, and there are 2^63.
const BLOCK: NonZeroU64 = NonZeroU64::new(1000).expect("not zero");

/// The rest of the newest block.
#[derive(Default)]
pub(crate) struct ProducerIds {
    left: Mutex<Range<u64>>,
}

impl ProducerIds {
    /// An id that nobody else gets.
    pub(crate) async fn next(&self, store: &Store, session: Session) -> Result<ProducerId, ApiError> {
        let taken = self.take(1, store, session).await?;
        Ok(ProducerId(taken.start))
    }

    /// Up to `most` ids that nobody else gets, at least one.
    pub(crate) async fn take(&self, most: u64, store: &Store, session: Session) -> Result<Range<u64>, ApiError> {
        let mut left = self.left.lock().await;
        if left.is_empty() {
            *left = ProducerIds::block(store, session).await?;
        }
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
