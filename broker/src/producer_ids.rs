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

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_core::records::SessionRecord;
    use millpond_log::{BrokerId, Incarnation, Lsn, WalGen};
    use millpond_metadata::clock::SystemClock;
    use millpond_metadata::embedded::Embedded;
    use millpond_metadata::keys::Keys;
    use millpond_metadata::store::{Registered, Registration};
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    async fn registered() -> (Store, Session) {
        let metadata = Embedded::in_memory(Arc::new(SystemClock::start()));
        let store = Store::new(Arc::new(metadata), Keys::for_cluster("tests"));
        store.init_cluster("tests").await.expect("it is new");
        let record = SessionRecord {
            wal_gen: WalGen(1),
            grpc: "127.0.0.1:1".to_owned(),
            kafka: "127.0.0.1:2".to_owned(),
            kafka_listeners: BTreeMap::new(),
            http: "127.0.0.1:3".to_owned(),
            internal: None,
            rack: None,
        };
        let (broker, ttl) = (BrokerId(1), Duration::from_secs(600));
        let registration = Registration { broker, record, disk_inc: Incarnation(0), durable_lsn: Lsn(0), ttl };
        match store.register_broker(&registration).await {
            Ok(Registered::Session(session)) => (store, session),
            other => panic!("{other:?}"),
        }
    }

    fn no_session() -> Result<Session, ApiError> {
        Err(ApiError::new(ErrorCode::NotController, "there is none"))
    }

    #[tokio::test]
    async fn ids_that_are_left_are_given_out_without_a_session() {
        let (store, session) = registered().await;
        let ids = ProducerIds::default();
        let none = ids.next(&store, no_session).await.map_err(|error| error.code);
        assert_eq!(none, Err(ErrorCode::NotController));
        let first = ids.next(&store, || Ok(session)).await.expect("the store is up");
        for more in 1..BLOCK.get() {
            let next = ids.next(&store, no_session).await.expect("the block is not used up");
            assert_eq!(next, ProducerId(first.0 + more));
        }
        let none = ids.next(&store, no_session).await.map_err(|error| error.code);
        assert_eq!(none, Err(ErrorCode::NotController), "a new block takes one (rule K4)");
    }

    /// Many who wait for a store that takes seconds to refuse would else be answered after their patience.
    #[tokio::test]
    async fn all_who_wait_for_a_block_that_is_refused_hear_it_at_one_try() {
        let (store, session) = registered().await;
        let (ids, tries) = (ProducerIds::default(), AtomicUsize::new(0));
        let gone = Session { inc: Incarnation(session.inc.0 + 1), ..session };
        let next = || {
            let session = || {
                tries.fetch_add(1, Ordering::Relaxed);
                Ok(gone)
            };
            ids.next(&store, session)
        };
        // All have asked before anybody may try.
        let pool = ids.pool.lock().await;
        let mut asking = futures::future::join_all((0..20).map(|_| next()));
        assert!(futures::poll!(&mut asking).is_pending());
        drop(pool);
        let refused = asking.await;
        let codes = refused.into_iter().map(|refused| refused.map_err(|error| error.code));
        assert!(codes.eq([Err(ErrorCode::LeaderNotAvailable); 20]));
        assert_eq!(tries.load(Ordering::Relaxed), 1);
        // Whoever asks later is not told of it.
        ids.next(&store, || Ok(session)).await.expect("the store is up");
    }
}
