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
        let mut left = self.left.lock().await;
        if let Some(id) = left.next() {
            return Ok(ProducerId(id));
        }
        let refused = |reason: String| {
            ApiError::new(ErrorCode::LeaderNotAvailable, format!("no producer ids can be had now: {reason}; retry"))
        };
        let block = store.allocate_producer_ids(&session, BLOCK).await.map_err(|error| refused(error.to_string()))?;
        let block = block.map_err(|outcome| refused(format!("{outcome:?}")))?;
        *left = block.first.0 + 1..block.first.0 + block.len.get();
        Ok(block.first)
    }
}
